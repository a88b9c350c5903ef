"""The matrix: which strategies run for real, as what in PyTorch, at which sizes, and what is known to differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import Any

from placealg.errors import InputError
from placealg.frozen import FrozenMap

WORLDS = (2, 4, 8)
"""How many processes a strategy runs on."""

FAKE_WORLDS = (64, 1024)
"""How many ranks one process stands for, on tensors without numbers and a process group that sends nothing."""

LARGE: Mapping[str, int] = {"h": 1024, "a": 8, "L": 2, "V": 2048, "s_max": 1024}
"""The sizes of the model there: every one that is split divides by 1024, heads by 8."""

SIZES: Mapping[str, int] = {"h": 16, "a": 8, "L": 2, "V": 32, "s_max": 8}
"""The sizes of the model: every one that is split divides by 8."""

UNEVEN: Mapping[str, int] = {"h": 12, "a": 4, "L": 2, "V": 30, "s_max": 10}
"""Sizes of which many do not divide by 4 or 8: FSDP2 fills up the rows of every parameter."""

SEQUENCES, TOKENS = 2, 8
"""The sequences of a rank's microbatch, and the tokens of each."""

BYTES: Mapping[str, int] = {"w": 4, "g": 4, "wire": 4, "o": 8, "act": 4}
"""Bytes per element of a run in float32 with Adam, whose two moments are its state: there is no master copy.

SGD, which fake cells train with, has one."""


MIXED: Mapping[str, int] = {"wire_w": 2, "use": 2, "act": 2}
"""The same of FSDP2 that rests in float32 and computes in bfloat16: of gathered copies, and of activations."""


@dataclass(frozen=True, slots=True)
class Residue:
    """Bytes that a rank holds or sends beyond the formula: of which figure, how many, and why they are no part of it.

    `bytes` is arithmetic over the sizes of model, mesh and microbatch.
    """

    figure: str
    bytes: str
    why: str


@dataclass(frozen=True, slots=True)
class Cell:
    """One strategy on one mesh: a name, the strategy's expression or file, how PyTorch runs it.

    `system` is a class of `systems.py`, `pipeline.py` or `experts.py`, `options` what it is told besides. `balanced`
    are figures of which ranks have unequal parts: their mean over ranks is what the formula says; of the `largest` it
    says what the rank has that has most. A `fake` cell counts
    the bytes of one rank of many. `bytes` are those of an element where they are not those of BYTES. `sgd` and `adam`
    are the differences of parameters that rounding may make.
    """

    name: str
    strategy: str
    system: str
    axes: tuple[str, ...]
    mesh: FrozenMap[str, int] = FrozenMap()
    fake: bool = False
    m: int = 1
    clip: bool = False
    options: frozenset[str] = frozenset()
    sizes: FrozenMap[str, int] = FrozenMap(SIZES)
    residues: tuple[Residue, ...] = ()
    balanced: frozenset[str] = frozenset()
    largest: frozenset[str] = frozenset()
    bytes: FrozenMap[str, int] = FrozenMap()
    sgd: float = 1e-12
    adam: float = 1e-10
    world: int = field(default=0)

    def __str__(self) -> str:
        return f"{self.name} on {' × '.join(f'{a} = {n}' for a, n in self.mesh.items())}"


TOTAL_WEIGHT = Residue("activations", "4", "nll_loss keeps its total weight, one number, for a mean that is not taken")
WHOLE_EMBEDDING = Residue("gradients", "4*V*h*(tp - 1)/tp", "the gradient of an embedding whose rows are split is "
                          "whole on every rank until the optimizer takes its rows")

ALL_NORMS = Residue("step all_reduce[dp]", "2*4*(16*L + 5)*(dp - 1)/dp", "clip_grad_norm_ reduces the norms of all "
                    "parameters as one vector; one number would do, and numbers are counted apart")

INDICES = Residue("activations", "20*L*b*s*topk", "the order of pairs, its inverse and the choice are kept as indices "
                  "of 8 bytes, where the formula has the choice in 4")
COUNTS = Residue("forward all_to_all[ep]", "8*m*L*experts*(ep - 1)/ep", "how many pairs there are for each expert is "
                 "exchanged first, 8 bytes each")

NARROW = Residue("activations", "-2*b*s*V - 4*b*s*(2*L + 1)", "log-probabilities and the row statistics of norms are "
                 "kept in bfloat16 by kernels of the CPU, where the formula has 4 bytes")


def _cell(name: str, strategy: str, system: str, *axes: str, options: Iterable[str] = (), **more: Any) -> Cell:
    return Cell(name, strategy, system, axes, options=frozenset(options), **more)


ROWS: tuple[Cell, ...] = (
    _cell("torch.ddp", "torch.ddp", "Ddp", "dp", m=2),
    _cell("torch.zero1", "torch.zero1", "Zero1", "dp", balanced=frozenset({"optimizer"})),
    _cell("zero3", "zero3", "Fsdp", "dp", m=2),
    _cell("zero3.clipped", "zero3", "Fsdp", "dp", clip=True, residues=(ALL_NORMS,)),
    _cell("zero3.recomputed", "zero3*recompute_full", "Fsdp", "dp", options=["recompute"]),
    _cell("fsdp_no_reshard", "fsdp_no_reshard", "Fsdp", "dp", options=["no_reshard"]),
    _cell("torch.fsdp2", "torch.fsdp2", "Fsdp", "dp", options=["root"]),
    _cell("torch.fsdp2.uneven", "torch.fsdp2", "Fsdp", "dp", options=["root"], sizes=FrozenMap(UNEVEN),
          largest=frozenset({"optimizer"})),
    _cell("torch.fsdp2.mixed", "torch.fsdp2_mixed", "Fsdp", "dp", options=["mixed"], bytes=FrozenMap(MIXED),
          residues=(NARROW,)),
    _cell("torch.ddp.frozen", "torch.ddp_frozen", "Ddp", "dp", m=2, options=["frozen"]),
    _cell("torch.fsdp2.frozen", "torch.fsdp2_frozen", "Fsdp", "dp", m=2, options=["frozen"]),
    _cell("torch.hsdp", "torch.hsdp", "Hsdp", "dp_replicate", "dp_shard", m=2),
    _cell("tp", "tp", "Tp", "tp", residues=(TOTAL_WEIGHT,), options=["rows"]),
    _cell("torch.tp", "torch.tp", "Tp", "tp", residues=(TOTAL_WEIGHT, WHOLE_EMBEDDING), options=["per_use"]),
    _cell("torch.tp.recomputed", "torch.tp_recompute", "Tp", "tp", residues=(TOTAL_WEIGHT,),
          options=["recompute", "rows"]),
    _cell("tp_sp_keep", "tp_sp_keep", "TpSp", "tp", residues=(TOTAL_WEIGHT,)),
    _cell("zero3*tp", "zero3*tp", "FsdpTp", "dp", "tp", residues=(TOTAL_WEIGHT,)),
    _cell("torch.fsdp2_tp_sp", "torch.fsdp2_tp_sp", "FsdpTpSp", "dp", "tp", residues=(TOTAL_WEIGHT,)),
    _cell("pp_gpipe", "pp_gpipe", "PipelineSystem", "pp", m=4, options=["gpipe"]),
    _cell("pp_1f1b", "pp_1f1b", "PipelineSystem", "pp", m=8),
    _cell("pp.tied", "pp", "PipelineSystem", "pp", m=8, options=["tied"]),
    _cell("pp_interleaved", "pp_interleaved", "PipelineSystem", "pp", m=8, options=["interleaved"]),
    _cell("torch.pp_fsdp2", "torch.pp_fsdp2", "PipelineFsdp", "pp", "dp", m=4, options=["gpipe"]),
    _cell("torch.pp_fsdp2.once", "torch.pp_fsdp2_step", "PipelineFsdp", "pp", "dp", m=4,
          options=["gather_once"]),
    _cell("cp", "cp", "Context", "cp", sgd=1e-11),
    _cell("ep", "ep", "Experts", "ep", sizes=FrozenMap({**SIZES, "experts": 8, "topk": 2, "f": 32}),
          residues=(INDICES, COUNTS), balanced=frozenset({"activations", "forward all_to_all[ep]",
                                                          "backward all_to_all[ep]"})),
    _cell("torch.ep_losses", "torch.ep_losses", "Experts", "ep", options=["router_losses"],
          sizes=FrozenMap({**SIZES, "experts": 8, "topk": 2, "f": 32}), residues=(INDICES, COUNTS),
          balanced=frozenset({"activations", "forward all_to_all[ep]", "backward all_to_all[ep]"})),
)
"""The strategies of the matrix, without meshes."""


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    """The names of the matrix's strategies."""
    return tuple(row.name for row in ROWS)


def mesh_of(axes: Sequence[str], world: int) -> FrozenMap[str, int] | None:
    """The mesh of a world: along every axis but the last two ranks; None where the world is too small.

    >>> dict(mesh_of(("dp", "tp"), 8)), mesh_of(("dp", "tp"), 2)
    ({'dp': 2, 'tp': 4}, None)
    """
    *first, last = axes
    rest = world // 2 ** len(first)
    return FrozenMap({**dict.fromkeys(first, 2), last: rest}) if rest > 1 else None


def matrix(chosen: Sequence[str] = (), worlds: Sequence[int] = (*WORLDS, *FAKE_WORLDS)) -> tuple[Cell, ...]:
    """The cells to run, world by world: all of them, or those whose names are chosen."""
    for name in chosen:
        if name not in names():
            raise InputError(f"check-torch has no strategy '{name}'", name=name, valid=names())
    rows = [row for row in ROWS if not chosen or row.name in chosen]
    return (*(replace(row, mesh=mesh, world=world, sizes=FrozenMap({**row.sizes, **_layers(row, mesh)}))
              for world in WORLDS if world in worlds for row in rows if (mesh := mesh_of(row.axes, world))),
            *(replace(row, mesh=mesh, world=world, fake=True,
                      sizes=row.sizes if row.sizes == FrozenMap(UNEVEN) else FrozenMap(LARGE))
              for world in FAKE_WORLDS if world in worlds for row in rows for mesh in _large(row, world)))


def _large(row: Cell, world: int) -> Iterator[FrozenMap[str, int]]:
    """The meshes of a fake world, of the strategies that shard states: eight replicas, the others shard.

    A split vocabulary is left out: its cross entropy looks at numbers, which fake tensors do not have.
    """
    if row.system in ("Fsdp", "Hsdp") and "recompute" not in row.options and not row.clip:
        others = {axis: 8 for axis in row.axes if axis == "dp_replicate"}
        yield FrozenMap({axis: others.get(axis, world // prod(others.values())) for axis in row.axes})


def _layers(row: Cell, mesh: Mapping[str, int]) -> dict[str, int]:
    """As many layers as a pipeline has chunks, if those are more."""
    chunks = 2 if "interleaved" in row.options else 1
    return {"L": max(row.sizes["L"], mesh.get("pp", 1) * chunks)}
