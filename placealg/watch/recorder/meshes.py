"""Meshes: which axes a group of ranks spans, and where this rank stands."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from math import prod

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from placealg.errors import InputError


def backend() -> str:
    """What the process group sends by, such as gloo; "none" without one."""
    if not dist.is_initialized():
        return "none"
    kind = str(dist.get_backend())
    if kind == "undefined":  # a group that has one for each kind of device
        kind = dict(w.split(":") for w in str(dist.get_backend_config()).split(",")).get("cpu", kind)
    return kind


def axes_of_mesh(mesh: DeviceMesh | Mapping[str, int] | None
                 ) -> tuple[dict[str, int], dict[tuple[int, ...], tuple[str, ...]], dict[str, int]]:
    """(axis -> size, ranks of a group -> the axes that it spans, this rank's coordinates)."""
    if mesh is None:
        return {}, {}, {}
    world = dist.get_world_size() if dist.is_initialized() else 1
    if isinstance(mesh, Mapping):
        names, grid = tuple(mesh), torch.arange(prod(mesh.values())).view(tuple(mesh.values()))
    else:
        names, grid = tuple(mesh.mesh_dim_names or ()), mesh.mesh
    if not names:
        raise InputError("the device mesh has no names: make it with mesh_dim_names=(\"dp\", ...)")
    if grid.numel() != world:
        raise InputError(f"the mesh has {grid.numel()} ranks, and the run {world}")
    rank = dist.get_rank() if dist.is_initialized() else 0
    at = [int(k) for k in (grid == rank).nonzero()[0]]
    found: dict[tuple[int, ...], tuple[str, ...]] = {}
    for count in range(1, len(names) + 1):
        for chosen in combinations(range(len(names)), count):
            where = tuple(slice(None) if k in chosen else at[k] for k in range(len(names)))
            spanned = tuple(names[k] for k in chosen if grid.shape[k] > 1) or tuple(names[k] for k in chosen)
            found.setdefault(tuple(sorted(grid[where].flatten().tolist())), spanned)
    return dict(zip(names, grid.shape, strict=True)), found, dict(zip(names, at, strict=True))
