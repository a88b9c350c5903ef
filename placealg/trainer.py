"""A callback for the Trainer of transformers: one of its training steps is recorded and held against a strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike, environ, fspath
from typing import Any

from placealg.cases.case import read_case
from placealg.cli.glosses import SAYS
from placealg.cli.output import write_file
from placealg.errors import InputError
from placealg.models.model import Model
from placealg.render.conformance import page
from placealg.render.text_layout import plain
from placealg.watch.conformance import conformance
from placealg.watch.requirement import need_torch
from placealg.watch.verdict import Conformance

_WIDTH = 100


class Callback:
    """Records a training step of a Trainer, prints the verdict on the first rank, and keeps it as `.told`.

    `Trainer(..., callbacks=[Callback("zero3", config="config.json")])` changes nothing of the training. `strategy` is
    an expression over the catalogue or a file; None takes the one that is read off the run. `mesh` says the sizes of
    its axes, the last one fastest; without it all ranks are of the axis dp. `config` is a shipped name, the path of a
    config.json or a Model, `names` tells parameters that no table knows. Recorded is the step after `step`, which is 1
    or more; `output` keeps the recording, for `placealg conform`. With `strict`, a run that is not a proved strategy's
    raises AssertionError on every rank. It needs the extra `torch`.
    """

    def __init__(self, strategy: str | PathLike[str] | None = None, *, mesh: Mapping[str, int] | None = None,
                 config: Model | str | None = None, names: Mapping[str, str] | None = None, step: int = 1,
                 output: str | PathLike[str] | None = None, strict: bool = False):
        if step < 1:
            raise InputError(f"a step is recorded after another one: {step} is none", where="step")
        need_torch()
        self.strategy, self.config = None if strategy is None else fspath(strategy), config
        if self.strategy is not None:  # what is wrong with it is told before the run
            read_case(self.strategy, config, (), default="gpt")
        self.mesh, self.names, self.step, self.output, self.strict = mesh, names, step, output, strict
        self.told: Conformance | None = None
        self._block: Any = None
        self._observation: Any = None

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("on_"):
            return _nothing
        raise AttributeError(name)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Begin after one step, end after the next one."""
        if self._block is not None:
            block, self._block = self._block, None
            block.__exit__(None, None, None)
            self._judge()
        elif state.global_step == self.step:
            from placealg.watch.recorder.observe import observe

            mesh = self.mesh if self.mesh is not None else {"dp": int(args.world_size)}
            self._block = observe(model, mesh)
            self._observation = self._block.__enter__()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Say so where the training ended before a step was recorded."""
        if self._block is not None:  # it began with the last step
            block, self._block = self._block, None
            block.__exit__(None, None, None)
        if self.told is None:
            raise InputError(f"the training had {state.global_step} steps: step {self.step + 1} is the one to record")

    def _judge(self) -> None:
        seen = self._observation.seen
        self.told = told = conformance(seen, self.strategy, self.config, self.names)
        text = "\n".join(plain(each).rstrip() for each in page(told, _WIDTH, SAYS, "the Trainer"))
        if environ.get("RANK", "0") == "0":
            print(text, flush=True)
            if self.output is not None:
                write_file(fspath(self.output), seen.text())
        if self.strict and not told.good:
            raise AssertionError(text)


def _nothing(*args: Any, **kwargs: Any) -> None:
    """What most events of a Trainer are to the callback."""
