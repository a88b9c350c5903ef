"""For the tests of other projects: that a strategy is proved, and that a training step of PyTorch is one of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from os import PathLike, fspath
from typing import Any

from placealg.cases.case import read_case
from placealg.check.prove import prove
from placealg.cli.glosses import SAYS
from placealg.errors import InputError
from placealg.models.config import resolve_model
from placealg.models.model import Model
from placealg.prover.verdict import CUTOFF, PARAMETRIC, PROVED, Report
from placealg.render.conformance import page as conformance_page
from placealg.render.proof import proof
from placealg.render.text_layout import plain
from placealg.step.derive import derive
from placealg.step.edit import Edited
from placealg.step.program import Step
from placealg.strategy.spec import Strategy
from placealg.watch.conformance import judged
from placealg.watch.requirement import need_torch
from placealg.watch.verdict import Conformance

FOR_ALL_SIZES = (PARAMETRIC, CUTOFF)
"""The classes of verdicts that hold for all sizes."""

_WIDTH = 100


def assert_proved(strategy: Strategy | Step | str | PathLike[str], model: Model | str | None = None, *,
                  assuming: Iterable[str] | None = None) -> Report:
    """Prove a strategy, and return the report; raise AssertionError unless it is PROVED for all sizes.

    `strategy` is an expression over the catalogue, the path of a TOML file, a Strategy, or a Step, which has its model.
    `model` is a shipped name, the path of a config.json, or a Model; where it is None, what the command line would
    take. `assuming` names the hypotheses that the proof may rest on; None allows any. REFUTED fails with the
    counterexample, UNDECIDED with what was left open: neither is a pass. What a file says under `expect` is not asked.

    >>> assert_proved("zero3*tp_sp", "gpt", assuming=["equal_counts"])
    zero3*tp_sp on gpt: PROVED, PARAMETRIC
    >>> assert_proved("zero3", assuming=["units_independent"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    AssertionError: zero3 on abstract is proved only under hypotheses beyond units_independent: equal_counts over ...
    """
    __tracebackhide__ = True
    step, base, edited = _program(strategy, model)
    report = prove(step, base, edited)
    if report.verdict != PROVED or report.cls not in FOR_ALL_SIZES:
        told = proof(report, _WIDTH, timing=False, says=SAYS)
        raise AssertionError("\n".join(plain(text).rstrip() for text in told))
    if assuming is not None:
        allowed = set(assuming)
        if unknown := sorted(allowed - set(SAYS)):
            raise InputError(f"no hypothesis is called '{unknown[0]}'", name=unknown[0], valid=SAYS)
        more = [h.text for h in report.hypotheses if h.name not in allowed]
        if more:
            beyond = ", ".join(sorted(allowed)) or "none"
            raise AssertionError(f"{report!r}".partition(":")[0] + " is proved only under hypotheses beyond "
                                 f"{beyond}: {'; '.join(more)}")
    return report


def assert_trains_as(strategy: str | PathLike[str] | None, step: Callable[[], object], *, model: Any, mesh: Any = None,
                     config: Model | str | None = None, names: Mapping[str, str] | None = None,
                     reference: tuple[Any, Callable[[Any, Any], Any]] | None = None, batch: Any = None,
                     clip: float = 0.0) -> Conformance:
    """Run a training step of PyTorch under the recorder, and raise AssertionError unless it is a proved strategy's.

    `step` runs forward, backward and the optimizer's step, with the gradients of earlier steps cleared. It is called
    twice, and recorded the second time: what a step keeps or loses of the one before is seen there. `model` is what it
    trains, `mesh` a DeviceMesh whose dims have the names of the strategy's axes (see `pa.observe`). `config` is a
    shipped name, the path of a config.json or a Model; None takes what the strategy's file or the default says. `names`
    tells parameters that no table knows. Where `strategy` is None, the one is taken that the placements and the
    gradients' ways tell, and `.rests` of what is returned says on what that rests.

    With a `reference`, three more steps measure how often each token counts in every gradient, which nothing else sees
    inside an op: (the single device's model in float64, a function of it and `batch`). The function gives the losses
    of each token, (sequences, tokens), whose sum is the loss; `batch` is what all ranks together train on in a step,
    the same each time. `clip` is the norm to which the single device clips; 0 leaves it open. Without a reference the
    verdict says that nothing was measured.
    """
    __tracebackhide__ = True
    need_torch()
    from placealg.watch.recorder.record import record

    case = None if strategy is None else read_case(fspath(strategy), config, (), default="gpt")
    seen = record(step, model, mesh, reference=reference, batch=batch, clip=clip)
    on = config if isinstance(config, Model) else resolve_model(config or "gpt")
    told = judged(seen, case, on, names)
    if not told.good:
        raise AssertionError("\n".join(plain(text).rstrip() for text in conformance_page(told, _WIDTH, SAYS)))
    return told


def _program(strategy: Strategy | Step | str | PathLike[str],
             model: Model | str | None) -> tuple[Step, Step | None, Edited | None]:
    """The program that is meant, the derived one from which a file leads away, and the file's edits."""
    if isinstance(strategy, Step):
        if model is not None:
            raise InputError("a program is of its own model: name none beside it")
        return strategy, None, None
    if isinstance(strategy, Strategy):
        if model is None:
            raise InputError("a strategy stands on a model: name one, such as model=\"gpt\"")
        return derive(strategy, resolve_model(model) if isinstance(model, str) else model), None, None
    if isinstance(model, Model):
        raise InputError("a model beside an expression or a file is a name, or the path of a config.json")
    case = read_case(fspath(strategy), model, ())
    return case.step, case.lead, case.edited
