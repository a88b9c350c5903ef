"""Set-ups under the recorder of ops: every rank's trace, and the single device's."""

from __future__ import annotations

from typing import Any

import local_faults as local
import loss_faults as loss
import quiet_faults as quiet
import state_faults as kept
import torch
from set_ups import INSIDE, RIGHT, WRONG, SetUp, made, watched

from placealg.measure.cells import TOKENS
from placealg.measure.count import TrafficCounter
from placealg.measure.experts import Experts
from placealg.measure.experts import Single as SingleExperts
from placealg.measure.pipeline import PipelineSystem
from placealg.measure.run import OPTIMIZERS
from placealg.measure.systems import System, Trial
from placealg.watch.lift.trace import Trace

EVERY = {**RIGHT, **WRONG, **INSIDE}


def traced(name: str, _rank: int = 0) -> Any:
    """The trace of the second step of a set-up on this rank; what went wrong, as text."""
    from placealg.watch.recorder.trace import tracing

    try:
        system, mesh, data = made(EVERY[name])
        system.step(TrafficCounter(), data)
        models = watched(system)
        at = dict(zip(mesh.mesh_dim_names, mesh.get_coordinate(), strict=True)) if mesh is not None else {}
        with tracing(models, at) as trace:
            system.step(TrafficCounter(), data)
        return trace
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
    with tracing(single.model) as trace:
        single.step(TrafficCounter(), [data])
    return trace


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
