"""One rank of many, alone: tensors without numbers, a process group that sends nothing, and the bytes of a step."""

from __future__ import annotations

import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from placealg.measure.cells import Cell
from placealg.measure.run import RankFindings, count, mesh_of


def measure(cell: Cell, _rank: int) -> RankFindings:
    """Count the bytes of rank 0 of a cell's world; parameters are compared with nothing."""
    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=cell.world)
    mesh = mesh_of(tuple(cell.mesh.items()))
    with FakeTensorMode(allow_non_fake_inputs=True):
        return count(cell, mesh, {})
