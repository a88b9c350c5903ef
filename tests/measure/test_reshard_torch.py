"""A checkpoint that PyTorch saves on one mesh and plans to read on another: its read items against ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

import placealg as pa
from placealg.frozen import FrozenMap
from placealg.measure import ranks
from placealg.models.config import resolve_model
from placealg.step.checkpoint import Checkpoint, Sizes, checkpoint
from placealg.step.reshard import Reshard
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import parse_strategy_file

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

EVEN = {"h": 16, "a": 8, "L": 2, "V": 32, "s_max": 8}
UNEVEN = {"h": 12, "a": 4, "L": 2, "V": 30, "s_max": 10}
STATES = {"weight": ("weight",), "moments": ("exp_avg", "exp_avg_sq")}
"""State -> the tensors of which it consists."""


@dataclass(frozen=True)
class Side:
    """One run: how PyTorch runs it, the strategy, the mesh."""

    system: str
    strategy: str
    mesh: FrozenMap[str, int]

    @property
    def world(self) -> int:
        return prod(self.mesh.values())


@dataclass(frozen=True)
class Job:
    """What a rank does: save the states of a run, or plan to read them."""

    side: Side
    sizes: FrozenMap[str, int]
    folder: str
    save: bool


def work(job: Job, _rank: int) -> Any:
    """The read items that the load is planned with, (tensor, elements) each; of a save nothing."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import DefaultLoadPlanner

    from placealg.measure import systems
    from placealg.measure.run import mesh_of

    trial = systems.Trial(job.side.mesh, job.sizes, 2, job.sizes["s_max"], 1)
    made = getattr(systems, job.side.system)(trial, mesh_of(tuple(job.side.mesh.items())),
                                             lambda parameters: torch.optim.SGD(list(parameters)))
    state = {f"{name}/{one}": parameter.detach().clone() for name, parameter in made.model.named_parameters()
             for many in STATES.values() for one in many}
    planned: list[tuple[str, int]] = []

    class Planner(DefaultLoadPlanner):
        def finish_plan(self, plan: Any) -> Any:
            planned.extend((item.storage_index.fqn, prod(item.lengths)) for item in plan.items)
            return super().finish_plan(plan)

    if job.save:
        dcp.save(state, checkpoint_id=job.folder)
    else:
        dcp.load(state, checkpoint_id=job.folder, planner=Planner())
    return planned


def torch_reads(old: Side, new: Side, sizes: Mapping[str, int], folder: Path) -> Counter[tuple[int, str, str, int]]:
    """(reader, parameter, state, elements) -> how many such read items PyTorch plans; those of all instances."""
    for side, save in ((old, True), (new, False)):
        job = Job(side, FrozenMap(sizes), str(folder), save)
        (found,) = list(ranks.run(side.world, work, [job], 120.0))
    told: Counter[tuple[int, str, str, int]] = Counter()
    for reader, items in enumerate(found):
        for name, elements in items:
            parameter, _, one = name.partition("/")
            state = next(s for s, many in STATES.items() if one in many)
            told[reader, ours(parameter), state, elements] += 1
    return told


def ours(name: str) -> str:
    """The parameter of the op graph that a module's is."""
    parts = name.replace("layers.", "layer.").replace(".product", "").split(".")
    found = ".".join(p for p in parts if not p.isdecimal())
    return {"embedding.tokens.weight": "embedding.weight", "embedding.positions.weight": "embedding.position.weight",
            "head.logits.weight": "head.weight"}.get(found, found)


def our_reads(old: Side, new: Side, sizes: Mapping[str, int]) -> Counter[tuple[int, str, str, int]]:
    model = resolve_model(str(ROOT / "proofs" / "torch" / "gpt.json"))
    symbols = FrozenMap({**{n: Fraction(v) for n, v in sizes.items()}, "s": Fraction(sizes["s_max"])})

    def of(side: Side) -> Checkpoint:
        said = parse_strategy_file(f'base = "{side.strategy}"\n[shards]\npad = "rows"').strategy \
            if "zero" in side.strategy or "hsdp" in side.strategy else parse_strategy(side.strategy)
        return checkpoint(pa.derive(said, model), said, model)

    found = Reshard(of(old), of(new))
    told: Counter[tuple[int, str, str, int]] = Counter()
    for read in found.reads(Sizes(old.mesh, symbols), Sizes(new.mesh, symbols)):
        count = sum(b - a for a, b in read.box["instance"])
        told[read.reader, read.item.parameter, read.item.value, read.elements // count] += count * len(
            STATES[read.item.value])
    return told


def fsdp(n: int) -> Side:
    return Side("Fsdp", "zero3", FrozenMap({"dp": n}))


def tp(n: int) -> Side:
    return Side("Tp", "tp", FrozenMap({"tp": n}))


def fsdp_tp(n: int, k: int) -> Side:
    return Side("FsdpTp", "zero3*tp", FrozenMap({"dp": n, "tp": k}))


def hsdp(n: int, k: int) -> Side:
    return Side("Hsdp", "hsdp", FrozenMap({"dp_replicate": n, "dp_shard": k}))


@pytest.mark.parametrize(("old", "new", "sizes"), [
    (fsdp(2), fsdp(4), EVEN), (fsdp(4), fsdp(2), UNEVEN), (fsdp(2), fsdp(8), UNEVEN), (fsdp(8), fsdp(4), UNEVEN),
    (fsdp(4), tp(2), UNEVEN), (tp(4), fsdp(2), UNEVEN), (hsdp(2, 2), fsdp(8), UNEVEN), (fsdp(8), hsdp(2, 4), UNEVEN),
    (fsdp_tp(2, 2), fsdp(4), EVEN), (fsdp_tp(2, 2), fsdp_tp(2, 4), EVEN), (fsdp_tp(2, 4), tp(2), EVEN),
], ids=lambda v: v.strategy + str(tuple(v.mesh.values())) if isinstance(v, Side) else f"h={v['h']}")
def test_read_items_are_what_pytorch_plans(old: Side, new: Side, sizes: dict[str, int], tmp_path: Path) -> None:
    theirs, mine = torch_reads(old, new, sizes, tmp_path), our_reads(old, new, sizes)
    assert theirs and mine == theirs
    assert sum(n * elements for (*_, elements), n in theirs.items()) * 4 == sum(
        n * elements for (*_, elements), n in mine.items()) * 4


def test_read_items_of_another_mesh_are_others(tmp_path: Path) -> None:
    assert torch_reads(fsdp(2), fsdp(4), UNEVEN, tmp_path) != our_reads(fsdp(3), fsdp(4), UNEVEN)
