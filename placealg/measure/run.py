"""One rank's part of one cell: train beside the single device, then count a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from placealg.measure import experts, pipeline, systems
from placealg.measure.cells import SEQUENCES, TOKENS, Cell
from placealg.measure.count import TrafficCounter, held, optimizer_state
from placealg.measure.predict import Key, volume
from placealg.measure.systems import Batch, System, Trial

STEPS = 3
"""Training steps of a run."""

COUNTED = {"Ddp": 3, "Zero1": 3}
"""System -> the step that is counted: DDP makes its buckets anew in the second. Of all others it is the second."""

def _sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    listed = list(parameters)
    return torch.optim.SGD(listed, lr=0.1, momentum=0.9, foreach=_alike(listed))


def _adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    listed = list(parameters)
    return torch.optim.Adam(listed, lr=1e-3, foreach=_alike(listed))


def _alike(parameters: list[nn.Parameter]) -> bool:
    """Whether one call may take all parameters: tensors, or DTensors of one mesh."""
    return len({p.device_mesh if isinstance(p, DTensor) else None for p in parameters}) == 1


OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {"sgd": _sgd, "adam": _adam}
"""Name -> how the optimizer of some parameters is made."""


@lru_cache(maxsize=32)
def mesh_of(axes: tuple[tuple[str, int], ...]) -> DeviceMesh:
    """The mesh of these axes over all ranks; its process groups are made once."""
    return init_device_mesh("cpu", tuple(size for _, size in axes), mesh_dim_names=tuple(axis for axis, _ in axes))


@dataclass(frozen=True, slots=True)
class RankFindings:
    """What one rank found: bytes held and sent, scalars sent, step counters held, differences of parameters.

    `differences` are the largest of any parameter to the single device's after STEPS steps, by optimizer.
    """

    held: dict[str, int]
    sent: dict[Key, Fraction]
    scalars: int
    counters: int
    differences: dict[str, float]


def measure(cell: Cell, rank: int) -> RankFindings:
    """Run a cell on this rank."""
    mesh = mesh_of(tuple(cell.mesh.items()))
    differences = {name: difference(cell, mesh, name) for name in OPTIMIZERS}
    torch.set_default_dtype(torch.float32)
    return count(cell, mesh, differences)


def count(cell: Cell, mesh: DeviceMesh, differences: dict[str, float]) -> RankFindings:
    """What a rank holds and sends in float32, once everything is there that a first step makes.

    Adam reads its step counter, a number that fake tensors do not have: there it is SGD with momentum.
    """
    system = make(cell, mesh, "sgd" if cell.fake else "adam")
    for step in range(COUNTED.get(cell.system, 2)):
        sent = TrafficCounter(tagged=system.tagged)
        with sent:
            system.step(sent, batches(cell, step, whole_rows(cell, _kind(cell))))
    moments, counters = optimizer_state(getattr(system.optimizer, "optim", system.optimizer))
    parameters = list(system.model.parameters())
    figures = {"parameters": held(parameters), "gradients": held(p.grad for p in parameters), "optimizer": moments,
               "activations": system.kept()}
    return RankFindings(figures, named(sent, mesh), sent.scalars.total(), counters, differences)


def make(cell: Cell, mesh: DeviceMesh | None, optimizer: str) -> System:
    """The system of a cell; without a mesh, the single device that sees the sequences of all ranks."""
    kind = _kind(cell)
    whole = whole_rows(cell, kind)
    trial = Trial(cell.mesh if mesh else {}, cell.sizes, SEQUENCES if mesh else whole, TOKENS, cell.m, cell.clip,
                  cell.options)
    alone = experts.Single if "experts" in cell.sizes else System
    return (kind if mesh else alone)(trial, mesh, OPTIMIZERS[optimizer])


def _kind(cell: Cell) -> type[System]:
    kinds: list[type[System]] = [getattr(room, cell.system) for room in (systems, pipeline, experts)
                                 if hasattr(room, cell.system)]
    return kinds[0]


def whole_rows(cell: Cell, kind: type[System]) -> int:
    """How many sequences all ranks together have in a microbatch."""
    return SEQUENCES * prod(cell.mesh[axis] for axis in kind.data)


def batches(cell: Cell, step: int, rows: int) -> list[Batch]:
    """The microbatches of one step, `rows` sequences of all ranks each, the same on every rank."""
    draw = torch.Generator().manual_seed(step)
    found = []
    for _ in range(cell.m):
        ids = torch.randint(cell.sizes["V"], (rows, TOKENS + 1), generator=draw)
        found.append((ids[:, :-1].contiguous(), ids[:, 1:].contiguous()))
    return found


def difference(cell: Cell, mesh: DeviceMesh, optimizer: str) -> float:
    """The largest difference of a parameter to the single device's, in float64, after some steps."""
    torch.set_default_dtype(torch.float64)
    want, system = single(replace(cell, name="", strategy="", residues=()), optimizer), make(cell, mesh, optimizer)
    for step in range(STEPS):
        system.step(TrafficCounter(), batches(cell, step, whole_rows(cell, _kind(cell))))
    return max(float((got - system.share(name, want[name])).abs().max()) for name, got in system.parameters())


@lru_cache(maxsize=32)
def single(cell: Cell, optimizer: str) -> dict[str, Tensor]:
    """The parameters of the single device after some steps in float64; they depend on the optimizer."""
    system = make(cell, None, optimizer)
    for step in range(STEPS):
        system.step(TrafficCounter(), batches(cell, step, whole_rows(cell, _kind(cell))))
    return dict(system.parameters())


def named(sent: TrafficCounter, mesh: DeviceMesh) -> dict[Key, Any]:
    """What was sent, by the axes of the mesh instead of ranks, as volumes."""
    axes: dict[tuple[int, ...], str] = {}
    names = tuple(mesh.mesh_dim_names or ())
    for count in range(1, len(names) + 1):
        for chosen in combinations(names, count):
            with unset_fake_temporarily():
                group = mesh[chosen].mesh.flatten().tolist()
            for ranks in (tuple(sorted(group)), (group[0], group[-1])):
                axes.setdefault(ranks, ",".join(chosen))
    found: dict[Key, Fraction] = {}
    for (phase, collective, ranks), message in sent.bytes.items():
        where = axes.get(tuple(sorted(ranks)), f"ranks {ranks}")
        published = collective == "broadcast" and phase == "step"
        named = "all_gather" if published else collective
        key = phase, named, where
        found[key] = found.get(key, Fraction(0)) + volume(named, message, len(ranks))
    return found
