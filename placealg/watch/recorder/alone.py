"""What makes a script run as a single device: meshes of one device, and pipelines of one microbatch.

A pipeline runs on as many processes as it has stages; each runs its stage once, on the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch.distributed import device_mesh
from torch.distributed.pipelining import schedules


@contextmanager
def one_device(axis: str = "", size: int = 1) -> Iterator[None]:
    """Meshes have one device, whatever sizes a script says; along a pipeline's axis one of each stage."""
    own: Any = device_mesh.init_device_mesh

    def of_one(device: str, shape: Sequence[int], *args: Any, mesh_dim_names: Any = None, **kwargs: Any) -> Any:
        names = mesh_dim_names or (axis,) * (len(shape) == 1)
        shape = tuple(size if k < len(names) and names[k] == axis else 1 for k in range(len(shape)))
        return own(device, shape, *args, mesh_dim_names=mesh_dim_names, **kwargs)

    device_mesh.init_device_mesh = dist.init_device_mesh = of_one
    try:
        yield
    finally:
        device_mesh.init_device_mesh = dist.init_device_mesh = own


INSIDE: list[int] = []
"""The steps of schedules that run now."""


@contextmanager
def whole_batches() -> Iterator[None]:
    """Schedules of torch's pipelines run one microbatch, in the plainest order."""
    single: Any = schedules.PipelineScheduleSingle
    several: Any = schedules.PipelineScheduleMulti
    kinds = {kind: kind.step for kind in (single, several)}

    def plain(own: Any) -> Any:
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self, "_whole", None) is None:
                stages = getattr(self, "_stages", None)
                self._whole = schedules.ScheduleGPipe(self._stage, 1, loss_fn=self._loss_fn) if stages is None else (
                    schedules.ScheduleLoopedBFS(stages, 1, loss_fn=self._loss_fn))
                self._whole._whole = self._whole
            INSIDE.append(1)
            try:
                return own(self._whole, *args, **kwargs)
            finally:
                INSIDE.pop()
        return step

    for kind, own in kinds.items():
        kind.step = plain(own)
    try:
        yield
    finally:
        for kind, own in kinds.items():
            kind.step = own
