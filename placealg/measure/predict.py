"""What the formulas say of a cell: bytes held and sent on one rank, as integers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import product

from placealg.arith import parse
from placealg.cost.communication import Communication, communication
from placealg.cost.formula import Formula
from placealg.cost.memory import Memory, memory
from placealg.cost.stage import on_stage
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.measure.cells import BYTES, SEQUENCES, TOKENS, Cell
from placealg.models.losses import with_loss
from placealg.models.model import Model
from placealg.models.transformer import GPT, transformer
from placealg.placement import SENT
from placealg.step.derive import derive
from placealg.step.edit import apply_edits, read_edits
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import SYSTEM, read_strategy_file, system_path
from placealg.strategy.spec import overlay

HELD = ("parameters", "gradients", "optimizer", "activations")
"""The figures of what a device holds."""

PHASE = {"update": "step", "publish": "step"}
"""Phase of the program -> the part of a real step in which it runs, where the names differ: the optimizer's step."""

Key = tuple[str, str, str]
"""(phase, collective, axes)."""


@dataclass(frozen=True, slots=True)
class PredictedBytes:
    """Bytes on one rank: by figure what it holds, by (phase, collective, axes) what it sends in a step."""

    held: FrozenMap[str, Fraction]
    sent: FrozenMap[Key, Fraction]


def model_of(cell: Cell) -> Model:
    """The model that runs: a GPT without dropout, with experts if the cell has sizes of them, tied if it says so.

    Of its loss only the log-probabilities are kept for backward, which take what `vocab_parallel` keeps.
    """
    routed = "experts" in cell.sizes
    dims: dict[str, str | int] = {"vocab": "V", "embed": "h", "heads": "a", "kv": "a", "group": 1, "head_dim": "h/a",
                                  "ffn": "f" if routed else "4*h", "position": "s_max"}
    if routed:
        dims |= {"expert": "experts", "choice": "topk"}
    graph = transformer(replace(GPT, tied="tied" in cell.options, dropout=False, experts=routed), dims)
    return with_loss(Model.of_graph("gpt", graph, sizes=dict(cell.sizes)), "vocab_parallel")


@lru_cache(maxsize=64)
def program_of(cell: Cell) -> Step:
    """The step program of a cell: derived, then edited as its file says; clipped if the cell clips."""
    model, clip = model_of(cell), {"optimizer": {"clip": "global_norm" if cell.clip else "none"}}
    if not cell.strategy.startswith(SYSTEM):
        return derive(overlay(parse_strategy(cell.strategy), clip), model)
    file = read_strategy_file(system_path(cell.strategy))
    step = derive(overlay(file.strategy, clip), model)
    return apply_edits(step, read_edits(file.edits, step.reference, file.positions)) if file.edits else step


def sizes_of(cell: Cell) -> dict[str, int]:
    """Every size that a formula of the cell may mention."""
    chunks = {"v": 2} if "interleaved" in cell.options else {}
    momentum = {"o": 4} if cell.fake else {}
    return {**BYTES, **cell.bytes, **momentum, **cell.mesh, **cell.sizes, **chunks, "b": SEQUENCES, "s": TOKENS,
            "m": cell.m}


def predicted(cell: Cell) -> tuple[PredictedBytes, ...]:
    """What every rank holds and sends, in the order of the mesh; only along a pipeline's axis do ranks differ."""
    sizes = sizes_of(cell)
    axis = pipeline_axis(cell)
    if not axis:
        return (_bytes(_formulas(_unsized(cell)), sizes),) * cell.world
    stages = [_bytes(_formulas(cell, number), sizes) for number in range(cell.mesh[axis])]
    place = list(cell.mesh).index(axis)
    return tuple(stages[at[place]] for at in product(*(range(size) for size in cell.mesh.values())))


def pipeline_axis(cell: Cell) -> str:
    """The axis along which a cell's layers are split; "" where none is."""
    return program_of(_unsized(cell)).reference.pipeline.axis


def _unsized(cell: Cell) -> Cell:
    """The cell on no mesh in particular: formulas hold for all."""
    return replace(cell, mesh=FrozenMap(), world=0)


@lru_cache(maxsize=64)
def _formulas(cell: Cell, stage: int | None = None) -> tuple[Memory, Communication]:
    """What a device holds and sends, of a pipeline's stage, as formulas."""
    step = program_of(cell)
    if stage is not None:
        step = on_stage(step, stage, sizes_of(cell))
    return memory(step, statistics=True), communication(step)


def _bytes(formulas: tuple[Memory, Communication], sizes: Mapping[str, int]) -> PredictedBytes:
    held, moved = formulas
    sent: dict[Key, Fraction] = {}
    for event in moved.events:
        if not event.left_out:
            phase = event.path.partition(".")[0]
            key = PHASE.get(phase, phase), event.collective, ",".join(event.axes)
            sent[key] = sent.get(key, Fraction(0)) + _value(event.formula, sizes)
    figures = {name: _value(getattr(held, name), sizes) for name in HELD}
    return PredictedBytes(FrozenMap(figures), FrozenMap({k: n for k, n in sent.items() if n}))


def _value(formula: Formula, sizes: Mapping[str, int]) -> Fraction:
    value = formula.if_known(**{n: size for n, size in sizes.items() if n in formula.inputs})
    if value is None:
        raise InputError(f"{formula} has no value at the sizes of the run")
    return Fraction(value)


def volume(collective: str, message: int, ranks: int) -> Fraction:
    """What one device sends of a message on so many ranks, by the table that the formulas use.

    An all_to_all is counted by what a rank puts in, 1/n of the tensor of the table.

    >>> volume("all_reduce", 1024, 4)
    Fraction(1536, 1)
    """
    whole = message * ranks if collective == "all_to_all" else message
    return parse(SENT[collective], ("n",)).evaluate({"n": Fraction(ranks)}) * whole


def residue(cell: Cell, figure: str) -> Fraction:
    """The bytes of a figure that are known to be no part of the formula."""
    sizes = {n: Fraction(size) for n, size in sizes_of(cell).items()}
    return sum((parse(r.bytes, tuple(sizes)).evaluate(sizes) for r in cell.residues if r.figure == figure), Fraction(0))
