"""Arithmetic against traffic: how much a device computes per byte that it sends, and how fast the wires must be.

Nothing here is a time unless rates are given. Then a step takes at least as long as the arithmetic at the flop rate,
and at least as long as the bytes over each set of axes at its bandwidth, which is what one device sends per second: the
largest of these is the lower bound. They are not added, since a program may overlap all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from placealg.cost.communication import communication
from placealg.cost.flop import flop
from placealg.cost.formula import Formula
from placealg.cost.walk import Walk, walked
from placealg.errors import InputError
from placealg.step.program import Step

COMPUTE = "compute"
"""The name of the arithmetic in the table of times."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a device sends over one set of axes in a step, bytes; `intensity` is flop computed per byte sent."""

    axes: str
    bytes: Formula
    intensity: Formula

    def needed(self, rate: Fraction, sizes: Mapping[str, Fraction]) -> Fraction | None:
        """The bytes per second that hide the traffic behind the arithmetic at `rate` flop per second."""
        per_byte = value_of(self.intensity, sizes)
        return None if not per_byte else rate / per_byte


@dataclass(frozen=True, slots=True)
class Compute:
    """The flop of a device in a step, and its traffic over every set of axes that it uses."""

    flop: Formula
    traffic: tuple[Traffic, ...]

    def bound(self, rate: Fraction | None, bandwidth: Mapping[str, Fraction],
              sizes: Mapping[str, Fraction]) -> dict[str, Fraction]:
        """The seconds that the arithmetic takes at `rate`, and each set of axes at its bandwidth, as far as known.

        A step takes at least the largest of them. Naming a set of axes over which nothing is sent is an InputError.
        """
        unknown = next((axes for axes in bandwidth if axes not in {t.axes for t in self.traffic}), None)
        if unknown is not None:
            raise InputError(f"nothing is sent over '{unknown}'", name=unknown, valid=[t.axes for t in self.traffic])
        found = {COMPUTE: (self.flop, rate), **{t.axes: (t.bytes, bandwidth.get(t.axes)) for t in self.traffic}}
        values = {name: (value_of(f, sizes), speed) for name, (f, speed) in found.items()}
        return {name: Fraction(value) / speed for name, (value, speed) in values.items()
                if value is not None and speed is not None}


def compute(step: Step | Walk) -> Compute:
    """The arithmetic and the traffic of a program.

    >>> from placealg.models.transformer import gpt
    >>> from placealg.step.derive import derive
    >>> from placealg.strategy.catalogue import zero3
    >>> compute(derive(zero3(), gpt())).traffic[0].axes
    'dp'
    """
    walk = walked(step)
    work = flop(walk)
    rows = communication(walk).by_axes.items()
    return Compute(work, tuple(Traffic(axes, f, _per_byte(work, f)) for axes, f in rows if f.expr != 0))


def _per_byte(work: Formula, sent: Formula) -> Formula:
    if work.expr is None or sent.expr is None:
        return Formula.none("1", work.reason or sent.reason)
    elements = Formula(work.expr, sent.unit, work.convention, work.values, axes=work.axes, defined=work.defined)
    return elements.ratio(sent)


def value_of(formula: Formula, sizes: Mapping[str, Fraction]) -> int | Fraction | None:
    """The formula's value at those of `sizes` on which it depends."""
    return formula.if_known(**{n: v for n, v in sizes.items() if n in formula.inputs})
