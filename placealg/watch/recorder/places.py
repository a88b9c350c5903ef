"""Which elements of a whole parameter each rank holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement, Shard, _StridedShard


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
