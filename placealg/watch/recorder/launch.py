"""One rank of `placealg watch`: run a script, record one of its training steps, write it down, and end.

The model is the outermost module that runs and whose parameters train. A step lasts from the end of one optimizer's
step to the first forward after the next one's; what a wrapper still does to bring new weights home before the model
runs is of the step before. Nothing of the script is changed: modules, optimizers and torch's dispatcher tell what
happens.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from placealg.watch.ranks import ENDED
from placealg.watch.recorder.observe import Observation, observe


class Launch:
    """Waits for the first optimizer's step, records the step after it, and ends the process."""

    def __init__(self, folder: Path, mesh: dict[str, int]):
        self.folder, self.mesh = folder, mesh
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
            if self.depth == 0 and self.observation is not None and not self.begun:
                self.begun = True
                self.observation.begin_again()
            if self.depth == 0 and self.block is None and module not in self.roots and any(
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
        if self.block is not None:  # before a module ran it is a part of the step before
            self.stepped = self.begun
            return
        self.steps += 1
        if self.roots:
            self.block = observe(self.roots, self.mesh, gather=False)
            self.observation = self.block.__enter__()

    def finish(self) -> None:
        """Write down what was seen, and end this process."""
        block, self.block = self.block, None
        block.__exit__(None, None, None)
        assert self.observation is not None
        rank = dist.get_rank() if dist.is_initialized() else 0
        (self.folder / f"{rank}.json").write_text(self.observation.seen.text())
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ENDED)


def main(words: list[str]) -> None:
    """FOLDER MESH SCRIPT ARGS... ."""
    folder, mesh, script, *arguments = words
    torch.set_num_threads(1)
    sizes = {a: int(n) for a, _, n in (w.partition("=") for w in mesh.split(",")) if a}
    launch = Launch(Path(folder), sizes)
    launch.start()
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")
    if launch.stepped:
        launch.finish()
    print("placealg: no optimizer stepped" if not launch.steps else
          "placealg: the optimizer stepped once; the step after the first one is what is recorded", file=sys.stderr)
    sys.exit(3)


if __name__ == "__main__":
    main(sys.argv[1:])
