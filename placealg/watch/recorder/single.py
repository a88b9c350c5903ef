"""The single device of a test: the same two steps, of the reference's model and losses, kept op by op."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from placealg.watch.lift.told import lifted
from placealg.watch.lift.trace import Trace
from placealg.watch.recorder.trace import Followed, tracing
from placealg.watch.seen import Seen


@dataclass(frozen=True)
class Reference:
    """The single device: its model, of which `losses(model, batch)` are the losses of each token of a whole step.

    They have the shape (sequences, tokens), and their sum is what the single device minimises. `clip` is the norm to
    which it clips; 0 if it does not.
    """

    model: nn.Module
    losses: Callable[[nn.Module, Any], Tensor]
    batch: Any
    clip: float = 0.0


def beside(seen: Seen, trace: Trace, alone: Callable[[], Trace]) -> Seen:
    """A recording with what comes of running its ranks again beside the reference; every rank calls it.

    `trace` is this rank's, `alone` gives the single device's, on the first rank.
    """
    world = dist.get_world_size() if dist.is_initialized() else 1
    traces: list[Any] = [trace]
    if world > 1:
        traces = [None] * world
        dist.all_gather_object(traces, trace)
    answer: list[Any] = [None]
    if not dist.is_initialized() or dist.get_rank() == 0:
        answer = [_judged(seen, traces, alone)]
    if world > 1:
        dist.broadcast_object_list(answer, src=0)
    return replace(seen, lifted=answer[0].lifted, alone=answer[0].alone)


def _judged(seen: Seen, traces: list[Trace], alone: Callable[[], Trace]) -> Seen:
    try:
        own = alone()
    except (TypeError, ValueError, RuntimeError) as error:
        return replace(seen, alone=f"the single device has no step: {type(error).__name__} {error}")
    return lifted(seen, traces, own, "the reference")


def traced(reference: Reference, followed: Followed) -> Trace:
    """The second of two steps of the reference, by an optimizer like that of the run."""
    model = reference.model
    optimizer = optimizer_of(followed, model)

    def step() -> None:
        optimizer.zero_grad()
        reference.losses(model, reference.batch).sum().backward()
        if reference.clip:
            nn.utils.clip_grad_norm_(model.parameters(), reference.clip)
        optimizer.step()

    kept = {k: v.detach().clone() for k, v in model.state_dict().items()}
    step()
    with tracing(model) as alone:
        step()
    model.load_state_dict(kept)
    model.zero_grad()
    return alone.trace


def optimizer_of(followed: Followed, model: nn.Module) -> Any:
    """An optimizer like the run's, on all of the reference's parameters, with its groups."""
    made: Any = followed.optimizer
    if made is None:
        raise ValueError("the run has no optimizer")
    named, groups = dict(model.named_parameters()), []
    for group in made.param_groups:
        names = [followed.labels[id(p)] for p in group["params"] if id(p) in followed.labels]
        options = {k: v for k, v in group.items() if k in made.defaults}
        groups.append({"params": [named[n] for n in names if n in named], **options})
    taken = {id(p) for g in groups for p in g["params"]}  # what this rank does not hold is trained as what it does
    groups[0]["params"] += [p for p in named.values() if id(p) not in taken and p.requires_grad]
    return type(made)(groups, **made.defaults)
