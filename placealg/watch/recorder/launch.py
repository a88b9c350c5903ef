"""One rank of `placealg watch`: run a script, record one of its training steps, write it down, and end.

With `--alone` it is the single device beside the ranks: the script at a world of one, which reads what they read, or
one of the stages of a pipeline.

The model is the outermost module that runs and whose parameters train. A step lasts from the end of one optimizer's
step to the first forward after its next one; what a wrapper still does to bring new weights home before the model
runs is of the step before. A stage of a pipeline may begin by a message of another one: if one step does, so does the
next. Where no optimizer of torch runs, as in a script that subtracts gradients by itself, a step has ended when the
model runs with other weights than before. Nothing of the script is changed: modules, optimizers and torch's dispatcher
tell what happens.
"""

from __future__ import annotations

import os
import pickle
import runpy
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes

from placealg.watch.ranks import ALONE, ENDED, FED, TURNS
from placealg.watch.recorder.alone import INSIDE, one_device, whole_batches
from placealg.watch.recorder.batches import in_turn, kept, replayed, together
from placealg.watch.recorder.feed import Feed
from placealg.watch.recorder.meshes import axes_of_mesh, backend
from placealg.watch.recorder.observe import Observation, observe
from placealg.watch.recorder.ops import unwrapped
from placealg.watch.recorder.parameters import is_flat, local
from placealg.watch.recorder.shadows import digest, storage_sum
from placealg.watch.recorder.trace import Followed, tracing
from placealg.watch.seen import UNFOLLOWED, RankSeen, Seen

BY_ITSELF = "a stage sends by itself, and not by a schedule of torch.distributed.pipelining"
COMPILED = "what torch.compile is given runs as it was written"


class Launch:
    """Waits for the first optimizer's step, records the step after it, and ends the process."""

    def __init__(self, folder: Path, mesh: dict[str, int], alone: bool = False):
        self.folder, self.mesh, self.alone = folder, mesh, alone
        self.batches: list[Any] = []
        self.feed = Feed(self.outside)
        self.updating = 0
        self.held: list[set[int]] = []
        """The parameters of each optimizer that was made."""
        self.known: set[int] = set()
        """Those of optimizers that have stepped."""
        self.updated: set[int] = set()
        """Those of the optimizer with whose step a step ends: of several, which step in turn, the last one."""
        self.tracing: Any = None
        self.followed: Followed
        self.roots: list[nn.Module] = []
        self.depth = 0
        self.steps = 0
        self.block: Any = None
        self.observation: Observation | None = None
        self.stepped = False
        self.begun = False
        self.begins_by_message = False
        self.compiles = False
        self.apart = False
        """Whether a stage that stands for a part of a single device sends what no schedule of torch does."""
        self.bare = False
        """Whether the step that is recorded has no optimizer of torch."""
        self.weights: dict[int, tuple[int, ...]] = {}
        self.first: set[str] = set()
        """Digests of the parameters as the script made them, but for those of which all elements are equal."""

    def start(self) -> None:
        """Hear modules, optimizers, and messages of one rank to another."""
        call = nn.Module._call_impl

        def heard(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self.depth == 0 and torch._C._current_graph_task_id() == -1:  # else it is run again, in backward
                with temporarily_clear_interpreter_stack():  # of torch.func
                    self.runs(module)
                    if self.outside():
                        args, kwargs = self.feed.call(args, kwargs, any(p.requires_grad for p in module.parameters()))
            self.depth += 1
            try:
                return call(module, *args, **kwargs)
            finally:
                self.depth -= 1

        begun = torch.optim.Optimizer.__init__

        def holds(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            begun(optimizer, *args, **kwargs)
            self.held.append({id(p) for group in optimizer.param_groups for p in group["params"]})

        def told(method: Any) -> Any:
            def between_two(group: Any, tensors: Sequence[Tensor], *args: Any) -> Any:
                self.message(tensors)
                return method(group, tensors, *args)
            return between_two

        def as_written(method: Any) -> Any:
            def compiles(*args: Any, **kwargs: Any) -> Any:
                self.compiles = True
                return method(*args, **kwargs)
            return compiles

        torch._dynamo.config.disable = True  # what is compiled runs no ops that a recorder sees
        torch._C._set_mkldnn_enabled(False)  # of which an LSTM is one op, and else its gates
        made: Any = nn.Module
        made.compile, compiled = as_written(made.compile), torch.compile
        torch.compile = as_written(compiled)
        nn.Module._call_impl = heard
        optimizers: Any = torch.optim.Optimizer
        optimizers.__init__ = holds
        for name in ("send", "recv", "recv_anysource"):
            setattr(dist.ProcessGroup, name, told(getattr(dist.ProcessGroup, name)))
        register_optimizer_step_pre_hook(self.before)
        register_optimizer_step_post_hook(self.after)

    def runs(self, module: nn.Module) -> None:
        """A module runs that no other one calls."""
        if self.bare or not self.steps:
            self.run_with(module)
        if self.stepped:
            self.finish()
        if self.tracing is not None and not self.begun:
            self.begin()
        if self.tracing is None and module not in self.roots and any(p.requires_grad for p in module.parameters()):
            self.roots.append(module)
            if not self.steps:
                self.first |= {hash_of(local(unwrapped(p)).detach()) for p in module.parameters() if p.numel() > 1}

    def outside(self) -> bool:
        """Whether the script itself computes: no module, no backward, no update."""
        return not (self.depth or self.updating or self.stepped) and torch._C._current_graph_task_id() == -1

    def begin(self) -> None:
        """The step that is recorded begins: the model runs, or a message of another stage is awaited."""
        self.begun = True
        self.feed.begin()
        self.followed.begin_again()
        if self.observation is not None:
            self.observation.begin_again()

    def message(self, tensors: Sequence[Tensor]) -> None:
        """A rank is about to send to another one, or to receive: between steps a stage begins so, but for weights."""
        if self.alone and not INSIDE:
            self.apart = True
        if self.tracing is None or self.depth or (self.begun and not self.stepped):
            return
        own = {local(p).untyped_storage()._cdata for part in self.roots for p in part.parameters()}
        if any(t.untyped_storage()._cdata in own for t in tensors):
            return
        if self.stepped and self.begins_by_message:
            self.finish()
        elif not self.begun:
            self.begins_by_message = True
            self.begin()

    def run_with(self, module: nn.Module) -> None:
        """A script without an optimizer of torch runs a model: if its weights are others than before, a step ended."""
        with _disable_current_modes():
            now = tuple(storage_sum(unwrapped(local(p)).detach()) for p in module.parameters())
        before, self.weights[id(module)] = self.weights.get(id(module)), now
        if before is None or before == now:
            return
        if self.tracing is None:
            self.steps, self.bare = 1, True
            self.record()
        else:
            self.stepped = True

    def before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer begins its step."""
        self.updating += 1

    def after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer has ended its step."""
        self.updating -= 1
        updated = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if self.tracing is not None:  # before a module ran it is a part of the step before, as is another optimizer's
            self.stepped = self.stepped or (self.begun and bool(updated & self.updated))
            return
        self.steps += 1
        again, self.known = bool(updated & self.known), self.known | updated
        own = {id(p) for module in self.roots for p in module.parameters() if p.requires_grad}
        if self.roots and (again or all(held & self.known or not held & own for held in self.held)):
            self.updated = updated
            self.record()

    def record(self) -> None:
        """From here on everything is kept."""
        if not self.alone and not self.bare and not any(map(is_flat, self.roots)):
            self.block = observe(self.roots, self.mesh, gather=False)
            self.observation = self.block.__enter__()
        self.tracing = tracing(self.roots)
        self.followed = self.tracing.__enter__()
        self.feed.hear = self.followed.hand

    def finish(self) -> None:
        """Write down what was seen, and end this process."""
        rank = dist.get_rank() if dist.is_initialized() else 0
        block, self.tracing = self.tracing, None
        try:
            block.__exit__(None, None, None)
            self.followed.trace.first = frozenset(self.first - {""})
            self.followed.trace.lost = BY_ITSELF if self.apart else self.feed.doubt
            (self.folder / f"{rank}.{ALONE if self.alone else 'trace'}").write_bytes(pickle.dumps(self.followed.trace))
            if self.batches and not self.alone:
                torch.save(self.batches, self.folder / f"{rank}.batches")
            if not self.alone:
                torch.save(self.feed.given, self.folder / f"{rank}.fed")
        except Exception as error:  # what is recorded beside it stands
            (self.folder / f"{rank}.lost").write_text(" ".join(f"{type(error).__name__}: {error}".split()))
        if not self.alone:
            (self.folder / f"{rank}.json").write_text(self.seen(rank).text())
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ENDED)


    def seen(self, rank: int) -> Seen:
        """The recording, with what was changed."""
        shims = (COMPILED,) if self.compiles else ()
        return replace(self.recorded(rank), shims=shims)

    def recorded(self, rank: int) -> Seen:
        """The recording; without an optimizer of torch, and of flat parameters, nothing is known of messages."""
        if self.observation is None:
            sizes, _, place = axes_of_mesh(self.mesh)
            return Seen(sizes, (RankSeen(rank, place, (), (), (), (UNFOLLOWED,)),), backend(), torch.__version__)
        block, self.block = self.block, None
        block.__exit__(None, None, None)
        return self.observation.seen


def hash_of(tensor: Tensor) -> str:
    """The digest of a tensor's numbers; "" where all are equal."""
    flat = tensor.flatten()
    return "" if not flat.numel() or bool((flat == flat[0]).all()) else f"{tuple(tensor.shape)} {digest(tensor)}"


def main(words: list[str]) -> None:
    """FOLDER MESH SCRIPT ARGS..., or FOLDER --alone[=AXIS,RANK,RANK...][/WAY] SCRIPT ARGS...: ranks of this stage."""
    folder, mesh, script, *arguments = words
    torch.set_num_threads(1)
    alone = mesh.startswith("--alone")
    mesh, _, way = mesh.partition("/")
    axis, *own = mesh.partition("=")[2].split(",") if alone else [""]
    sizes = {} if alone else {a: int(n) for a, _, n in (w.partition("=") for w in mesh.split(",")) if a}
    launch = Launch(Path(folder), sizes, alone)
    launch.start()
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    files = sorted(Path(folder).glob("*.batches")) if alone else []
    read = [torch.load(file, weights_only=False) for file in files if not own or file.stem in own]
    if alone and not axis:
        fed = [torch.load(file, weights_only=False) for file in sorted(Path(folder).glob("*.fed"))]
        launch.feed = Feed(launch.outside, fed, way)
    stages = int(os.environ["WORLD_SIZE"])
    with (replayed((in_turn if way == TURNS else together)(read)) if read and not way.startswith(FED) else
          kept(launch.batches),
          one_device(axis, stages) if alone else nullcontext(), whole_batches() if axis else nullcontext(),
          launch.feed):
        runpy.run_path(script, run_name="__main__")
    if launch.stepped:
        launch.finish()
    print("placealg: no optimizer stepped, and no model ran with new weights" if not launch.steps else
          "placealg: the optimizer stepped once; the step after the first one is what is recorded", file=sys.stderr)
    sys.exit(3)


if __name__ == "__main__":
    main(sys.argv[1:])
