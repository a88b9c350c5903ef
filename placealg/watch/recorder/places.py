"""Which elements of a whole parameter each rank holds, and parameters of the single device made equal to the run's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement, Shard, _StridedShard

from placealg.watch.recorder.parameters import local


def place_of(name: str, parameter: Tensor, wholes: Mapping[str, Tensor]) -> Tensor | str:
    """The places of a rank's elements in the whole parameter, flat; why they are not known, in words.

    A DTensor says it by its placements. Of a plain tensor with part of the elements, values say it.
    """
    if name not in wholes:
        return "the single device has no parameter of this name"
    whole = wholes[name].detach()
    every = torch.arange(whole.numel()).view(whole.shape)
    if isinstance(parameter, DTensor):
        if parameter.shape != whole.shape:
            return f"it has the shape {tuple(parameter.shape)}, that of the single device {tuple(whole.shape)}"
        part = held(parameter, every)
        fits = part is not None and part.shape == parameter.to_local().shape
        return part.flatten() if part is not None and fits else f"its placements {parameter.placements} are not read"
    if parameter.shape == whole.shape:
        return every.flatten()
    if parameter.dim() != whole.dim() or any(a > b for a, b in zip(parameter.shape, whole.shape, strict=True)):
        return f"it has the shape {tuple(parameter.shape)}, that of the single device {tuple(whole.shape)}"
    return by_values(parameter, whole, every)


def by_values(part: Tensor, whole: Tensor, every: Tensor) -> Tensor | str:
    """Where the numbers of a part stand in the whole."""
    ordered, order = whole.flatten().sort()
    if bool((ordered[1:] != ordered[:-1]).all()):
        at = torch.searchsorted(ordered, part.flatten()).clamp(max=ordered.numel() - 1)
        return order[at] if bool((ordered[at] == part.flatten()).all()) else "its numbers are not the single device's"
    apart = [d for d in range(whole.dim()) if part.shape[d] != whole.shape[d]]
    if len(apart) == 1:
        d, size = apart[0], part.shape[apart[0]]
        found = [k for k in range(0, whole.shape[d] - size + 1, size) if bool((whole.narrow(d, k, size) == part).all())]
        if len(found) == 1:
            return every.narrow(d, found[0], size).flatten()
    return "its numbers do not tell which part a rank holds: start it with different ones"


def held(parameter: DTensor, whole: Tensor) -> Tensor | None:
    """What this rank has of a whole tensor that is placed as a DTensor is; None where a placement is not known."""
    return part_of(parameter.device_mesh, parameter.placements, whole)


def part_of(mesh: DeviceMesh, placements: Sequence[Placement], whole: Tensor) -> Tensor | None:
    """What this rank has of a whole tensor that is placed on a mesh; None where a placement is not known."""
    at = mesh.get_coordinate()
    if at is None:
        return None
    steps = [k for k, p in enumerate(placements) if type(p) is Shard]
    steps += [k for k, p in reversed(list(enumerate(placements))) if isinstance(p, _StridedShard)]
    for k in steps:
        placement: Any = placements[k]
        chunks = whole.chunk(mesh.size(k), placement.dim)
        whole = chunks[at[k]] if at[k] < len(chunks) else whole.narrow(placement.dim, 0, 0)
    known = all(p.is_replicate() or isinstance(p, Shard | _StridedShard) for p in placements)
    return whole if known else None


def copied(parameters: Mapping[str, Tensor], places: Mapping[str, Tensor | str], wholes: Mapping[str, Tensor]
           ) -> tuple[str, ...]:
    """Give the single device the numbers that the ranks hold; the parameters of which replicas differed.

    These get the numbers of the first rank that holds them.
    """
    own = {n: (places[n], local(p).detach().flatten()) for n, p in parameters.items()
           if isinstance(places[n], Tensor)}
    every: list[Any] = [own]
    if dist.is_initialized() and dist.get_world_size() > 1:
        every = [None] * dist.get_world_size()
        dist.all_gather_object(every, own)
    apart: dict[str, None] = {}
    with torch.no_grad():
        known: dict[str, Tensor] = {}
        for rank in every:
            for name, (place, values) in rank.items():
                flat = wholes[name].detach().view(-1)
                written = known.setdefault(name, torch.zeros(flat.numel(), dtype=torch.bool))
                again = written[place]
                if bool((flat[place][again] != values[again]).any()):
                    apart[name] = None
                flat[place] = torch.where(again, flat[place], values)
                written[place] = True
        for name in apart:  # weights are measured where replicas are equal
            place = places.get(name)
            if isinstance(place, Tensor):
                mine = local(parameters[name]).detach()
                mine.copy_(wholes[name].detach().view(-1)[place].view(mine.shape))
    return tuple(apart)
