"""Predicted beside measured: integers against integers, on every rank; and parameters beside the single device's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from placealg.measure.cells import Cell
from placealg.measure.predict import HELD, Key, PredictedBytes, residue

if TYPE_CHECKING:
    from placealg.measure.run import RankFindings


@dataclass(frozen=True, slots=True)
class MeasuredFigure:
    """One figure on the ranks on which it is the same: bytes predicted, bytes measured, the residue between them.

    `ranks` is a text such as `0,1`; `mean` or `most` where the ranks' mean is compared, or the rank that has most.
    """

    figure: str
    ranks: str
    predicted: Fraction
    measured: Fraction
    residue: Fraction

    @property
    def agrees(self) -> bool:
        """Whether the measured bytes are the predicted ones and the residue, exactly."""
        return self.measured == self.predicted + self.residue

    @property
    def ratio(self) -> Fraction | None:
        """Measured over predicted, the residue left out; None where nothing is predicted."""
        return (self.measured - self.residue) / self.predicted if self.predicted else None


@dataclass(frozen=True, slots=True)
class ParameterDifference:
    """The largest difference of a parameter to the single device's after some steps, and what it may be."""

    optimizer: str
    largest: float
    allowed: float

    @property
    def agrees(self) -> bool:
        """Whether the run trained the same model; a number that is none does not."""
        return self.largest <= self.allowed


@dataclass(frozen=True, slots=True)
class Result:
    """What a cell's real run showed; `seconds` is how long it took, `counters` bytes of Adam's step counters."""

    cell: Cell
    rows: tuple[MeasuredFigure, ...]
    differences: tuple[ParameterDifference, ...]
    counters: int
    scalars: int
    seconds: float

    @property
    def agrees(self) -> bool:
        """Whether bytes and parameters are as predicted."""
        return all(r.agrees for r in self.rows) and all(d.agrees for d in self.differences)


def compared(cell: Cell, predicted: Sequence[PredictedBytes], found: Sequence[RankFindings], seconds: float) -> Result:
    """The result of a cell, from what is predicted of its ranks and what they found."""
    allowed = {"sgd": cell.sgd, "adam": cell.adam}
    differences = tuple(ParameterDifference(name, max((f.differences[name] for f in found), key=_worst), allowed[name])
                        for name in found[0].differences)
    return Result(cell, tuple(_rows(cell, predicted, found)), differences, max(f.counters for f in found),
                  max(f.scalars for f in found), seconds)


def _worst(difference: float) -> float:
    return difference if difference == difference else float("inf")


def _rows(cell: Cell, predicted: Sequence[PredictedBytes], found: Sequence[RankFindings]) -> Iterator[MeasuredFigure]:
    ranks = list(zip(predicted, found, strict=True))
    for name in HELD:
        yield from _figure(cell, name, [(p.held[name], Fraction(f.held[name])) for p, f in ranks])
    keys = dict.fromkeys(key for p, f in ranks for key in (*p.sent, *f.sent))
    for key in sorted(keys, key=_order):
        yield from _figure(cell, sent_name(key), [(p.sent.get(key, Fraction(0)), Fraction(f.sent.get(key, 0)))
                                                  for p, f in ranks])


def _figure(cell: Cell, name: str, pairs: Sequence[tuple[Fraction, Fraction]]) -> Iterator[MeasuredFigure]:
    more = residue(cell, name)
    if name in cell.balanced:
        want, got = (sum(column, Fraction(0)) / len(pairs) for column in zip(*pairs, strict=True))
        yield MeasuredFigure(name, "mean", want, got, more)
        return
    if name in cell.largest:
        want, got = (max(column) for column in zip(*pairs, strict=True))
        yield MeasuredFigure(name, "most", want, got, more)
        return
    for pair in dict.fromkeys(pairs):
        ranks = [k for k, other in enumerate(pairs) if other == pair]
        yield MeasuredFigure(name, "all" if len(ranks) == len(pairs) else ",".join(map(str, ranks)), *pair, more)


_PHASES = ("prepare", "forward", "backward", "reduce", "step")


def _order(key: Key) -> tuple[int, str, str]:
    phase, collective, axes = key
    return _PHASES.index(phase) if phase in _PHASES else len(_PHASES), axes, collective


def sent_name(key: Key) -> str:
    """What is sent, as a figure's name.

    >>> sent_name(("backward", "reduce_scatter", "dp"))
    'backward reduce_scatter[dp]'
    """
    phase, collective, axes = key
    return f"{phase} {collective}[{axes}]"
