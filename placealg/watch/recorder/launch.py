"""One rank of `placealg watch`: run a script, record one of its training steps, write it down, and end.

With `--alone` it is the single device beside the ranks: the script at a world of one, which reads what they read.

The model is the outermost module that runs and whose parameters train. A step lasts from the end of one optimizer's
step to the first forward after the next one's; what a wrapper still does to bring new weights home before the model
runs is of the step before. Nothing of the script is changed: modules, optimizers and torch's dispatcher tell what
happens.
"""

from __future__ import annotations

import os
import pickle
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import device_mesh
from torch.optim.optimizer import register_optimizer_step_post_hook

from placealg.watch.lift.trace import Trace
from placealg.watch.ranks import ALIKE, ALONE, ENDED
from placealg.watch.recorder.batches import kept, replayed, same, together
from placealg.watch.recorder.observe import Observation, observe
from placealg.watch.recorder.trace import tracing


class Launch:
    """Waits for the first optimizer's step, records the step after it, and ends the process."""

    def __init__(self, folder: Path, mesh: dict[str, int], alone: bool = False):
        self.folder, self.mesh, self.alone = folder, mesh, alone
        self.batches: list[Any] = []
        self.tracing: Any = None
        self.trace: Trace | None = None
        self.roots: list[nn.Module] = []
        self.depth = 0
        self.steps = 0
        self.block: Any = None
        self.observation: Observation | None = None
        self.stepped = False
        self.begun = False

    def start(self) -> None:
        """Hear modules and optimizers."""
        call = nn.Module._call_impl

        def heard(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self.depth == 0 and self.stepped:
                self.finish()
            if self.depth == 0 and self.tracing is not None and not self.begun:
                self.begun = True
                if self.observation is not None:
                    self.observation.begin_again()
            if self.depth == 0 and self.tracing is None and module not in self.roots and any(
                    p.requires_grad for p in module.parameters()):
                self.roots.append(module)
            self.depth += 1
            try:
                return call(module, *args, **kwargs)
            finally:
                self.depth -= 1

        nn.Module._call_impl = heard
        register_optimizer_step_post_hook(self.after)

    def after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer has ended its step."""
        if self.tracing is not None:  # before a module ran it is a part of the step before
            self.stepped = self.begun
            return
        self.steps += 1
        if self.roots:
            if not self.alone:
                self.block = observe(self.roots, self.mesh, gather=False)
                self.observation = self.block.__enter__()
            self.tracing = tracing(self.roots)
            self.trace = self.tracing.__enter__().trace

    def finish(self) -> None:
        """Write down what was seen, and end this process."""
        rank = dist.get_rank() if dist.is_initialized() else 0
        followed, self.tracing = self.tracing, None
        try:
            followed.__exit__(None, None, None)
            (self.folder / (ALONE if self.alone else f"{rank}.trace")).write_bytes(pickle.dumps(self.trace))
            if self.batches and not self.alone:
                torch.save(self.batches, self.folder / f"{rank}.batches")
        except Exception as error:  # what is recorded beside it stands
            (self.folder / f"{rank}.lost").write_text(" ".join(f"{type(error).__name__}: {error}".split()))
        if not self.alone:
            block, self.block = self.block, None
            block.__exit__(None, None, None)
            assert self.observation is not None
            (self.folder / f"{rank}.json").write_text(self.observation.seen.text())
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ENDED)


@contextmanager
def one_device() -> Iterator[None]:
    """Meshes have one device, whatever sizes a script says."""
    made = device_mesh.init_device_mesh

    def of_one(device: str, shape: Any, *args: Any, **kwargs: Any) -> Any:
        return made(device, (1,) * len(shape), *args, **kwargs)

    device_mesh.init_device_mesh = dist.init_device_mesh = of_one
    try:
        yield
    finally:
        device_mesh.init_device_mesh = dist.init_device_mesh = made


def main(words: list[str]) -> None:
    """FOLDER MESH SCRIPT ARGS..., or FOLDER --alone SCRIPT ARGS... ."""
    folder, mesh, script, *arguments = words
    torch.set_num_threads(1)
    alone = mesh == "--alone"
    sizes = {} if alone else {a: int(n) for a, _, n in (w.partition("=") for w in mesh.split(",")) if a}
    launch = Launch(Path(folder), sizes, alone)
    launch.start()
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    read = [torch.load(file, weights_only=False) for file in sorted(Path(folder).glob("*.batches"))] if alone else []
    if len(read) > 1 and all(same(batches, read[0]) for batches in read):
        (Path(folder) / ALIKE).touch()
    with replayed(together(read)) if read else kept(launch.batches), one_device() if alone else nullcontext():
        runpy.run_path(script, run_name="__main__")
    if launch.stepped:
        launch.finish()
    print("placealg: no optimizer stepped" if not launch.steps else
          "placealg: the optimizer stepped once; the step after the first one is what is recorded", file=sys.stderr)
    sys.exit(3)


if __name__ == "__main__":
    main(sys.argv[1:])
