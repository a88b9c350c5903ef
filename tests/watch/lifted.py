"""Set-ups under the recorder of ops: every rank's trace, and the single device's."""

from __future__ import annotations

import random
from typing import Any

import local_faults as local
import loss_faults as loss
import quiet_faults as quiet
import state_faults as kept
import torch
import torch.distributed as dist
from set_ups import INSIDE, RIGHT, WRONG, SetUp, made, watched
from torch.utils._python_dispatch import TorchDispatchMode

from placealg.measure.cells import TOKENS
from placealg.measure.count import TrafficCounter, tensors
from placealg.measure.experts import Experts
from placealg.measure.experts import Single as SingleExperts
from placealg.measure.pipeline import PipelineSystem
from placealg.measure.run import OPTIMIZERS
from placealg.measure.systems import System, Trial
from placealg.watch.lift.trace import Trace
from placealg.watch.recorder.ops import only_views, wrapper, written_by
from placealg.watch.recorder.parameters import local as part_of

EVERY = {**RIGHT, **WRONG, **INSIDE}


def traced(name: str, _rank: int = 0) -> Any:
    """The trace of the second step of a set-up on this rank; what went wrong, as text."""
    from placealg.watch.recorder.trace import tracing

    try:
        system, _, data = made(EVERY[name])
        system.step(TrafficCounter(), data)
        models = watched(system)
        with tracing(models) as followed:
            system.step(TrafficCounter(), data)
        return followed.trace
    except Exception as error:  # told to the parent
        import traceback
        return f"{type(error).__name__}: {error}\n{traceback.format_exc()}"


class Spoiler(TorchDispatchMode):
    """Makes of what one op writes something else, by ops that others see: on one rank, of which others may send it."""

    def __init__(self, at: int, how: str, who: int = -1):
        super().__init__()
        self.at, self.how, self.count, self.what, self.who = at, how, -1, "", who

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(wrapper(t) for t in types):
            return NotImplemented
        made = func(*args, **(kwargs or {}))
        written = [t for t in (*tensors(made), *written_by(func, args, kwargs or {})) if t.is_floating_point()
                   and t.numel() and t.device.type == "cpu"]
        if only_views(func) or func.namespace != "aten" or not written or "empty" in func._schema.name:
            return made
        self.count += 1
        if self.count == self.at:
            self.what = f"{func._schema.name} {self.how} {tuple(written[0].shape)}"
            if self.how == "another's":
                sent = written[0].detach().clone(memory_format=torch.contiguous_format)
                dist.broadcast(sent, (self.who + 1) % dist.get_world_size())
                if dist.get_rank() == self.who:
                    with torch.no_grad():
                        written[0].copy_(sent)
            elif dist.get_rank() == self.who:
                spoil(written[0], self.how)
        return made


def spoil(tensor: torch.Tensor, how: str) -> None:
    """Change a tensor in place."""
    with torch.no_grad():
        if how == "negated":
            tensor.neg_()
        elif how == "scaled":
            tensor.mul_(1.5)
        elif how == "zeroed":
            tensor.zero_()
        elif how == "shuffled":
            tensor.copy_(tensor.flatten().flip(0).view(tensor.shape))
        else:
            tensor.add_(0.25)


WAYS = ("negated", "scaled", "zeroed", "shuffled", "moved")
MORE = (*WAYS, "another's", "twice")
"""Besides: what the same op of the next rank has made, and a microbatch that a rank reads again for the next one."""


def spoiled(job: tuple[str, int, tuple[str, ...]], rank: int) -> Any:
    """(the trace of a step in which one op of one rank is spoiled, how far its end is from the right one, the op)."""
    from placealg.watch.recorder.trace import tracing

    name, seed, ways = job
    draw = random.Random(seed)
    try:
        ends = []
        for wrong in (False, True):
            system, _, data = made(EVERY[name])
            system.step(TrafficCounter(), data)
            if not wrong:
                counted = Spoiler(-1, "")
                with counted:
                    system.step(TrafficCounter(), data)
                most: list[Any] = [None] * dist.get_world_size()
                dist.all_gather_object(most, counted.count)
                who = draw.randrange(len(most))
                at, how = draw.randrange(most[who] + 1), draw.choice(ways)
                if how == "another's" and len(set(most)) > 1:  # ranks that run other ops do not meet there
                    how = "moved"
                spoiler = Spoiler(at if how != "twice" else -1, how, who)
                draw = random.Random(seed)  # every rank draws alike
            else:
                models = watched(system)
                if how == "twice" and who == rank and len(data) > 1:
                    data, spoiler.what = [data[0], data[0], *data[2:]], "a microbatch twice"
                with tracing(models) as followed, spoiler:
                    system.step(TrafficCounter(), data)
            ends.append({n: part_of(p).detach().clone() for part in (
                watched(system) if isinstance(watched(system), list) else [watched(system)])
                for n, p in part.named_parameters() if not n.endswith("attn.k.bias")})  # its gradient is rounding
        size = max(float(v.abs().max()) for v in ends[0].values() if v.numel())
        away = max(float((ends[0][n] - v).abs().nan_to_num(1e9).max()) for n, v in ends[1].items() if v.numel())
        return followed.trace, away / size, spoiler.what
    except Exception as error:  # told to the parent
        import traceback
        return f"{type(error).__name__}: {error}\n{traceback.format_exc()}"


def alone(name: str) -> Trace:
    """The trace of the second step of the single device on the whole batch."""
    from placealg.watch.recorder.trace import tracing

    chosen: SetUp = EVERY[name]
    _, _, data = batched(chosen)
    torch.set_default_dtype(torch.float32)
    trial = Trial({}, chosen.sizes, len(data[0]), TOKENS, 1, chosen.clip, chosen.options & {"tied"})
    single: Any = single_of(chosen.kind)(trial, None, OPTIMIZERS["sgd"])
    single.step(TrafficCounter(), [data])
    with tracing(single.model) as followed:
        single.step(TrafficCounter(), [data])
    return followed.trace


def single_of(kind: Any) -> Any:
    """What the single device of a set-up is: the model, with the optimizer and the loss that are meant."""
    made: dict[str, Any] = {}
    for kinds, optimizer in ((KINDS_OF_ADAM, lambda p: torch.optim.Adam(p, kept.RATE)),
                             (KINDS_OF_ADAMW, lambda p: torch.optim.AdamW(p, kept.RATE)),
                             ((kept.MomentumLost,), lambda p: torch.optim.SGD(p, kept.RATE, momentum=0.9))):
        if issubclass(kind, kinds):
            made["make_optimizer"] = lambda self, _, optimizer=optimizer: optimizer(self.model.parameters())
    for losses in (loss.Smoothed, loss.Tokens):
        if issubclass(kind, losses) and kind in loss.RIGHT.values():
            made |= {n: getattr(losses, n) for n in ("loss", "together") if hasattr(losses, n)}
    if issubclass(kind, local.Autocast):
        return type("Single", (local.Autocast,), made)
    return type("Single", (SingleExperts if issubclass(kind, Experts) else System,), made)


KINDS_OF_ADAMW = (kept.FsdpAdam, local.FusedScaler, kept.ScaledInside)
KINDS_OF_ADAM = (kept.Adam, kept.ZeroAdam, quiet.OtherMoments)


def batched(chosen: SetUp) -> Any:
    """(rows per microbatch, microbatches, the whole batch)."""
    from placealg.measure.cells import SEQUENCES
    from placealg.measure.run import batches

    rows = SEQUENCES
    for axis in chosen.kind.data:
        rows *= chosen.mesh[axis]
    cell: Any = type("Sizes", (), {"m": chosen.m, "sizes": chosen.sizes})
    data = batches(cell, 0, rows)
    return rows, chosen.m, tuple(torch.cat([d[k] for d in data]) for k in (0, 1))


__all__ = ["EVERY", "PipelineSystem", "alone", "traced"]
