"""Numbers beside their formulas: units, scales, and the signs in which people write products."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import NamedTuple


class Scale(NamedTuple):
    """How the values of one table are headed, and what they are divided by."""

    head: str
    divisor: int


_COUNTS = (Scale("10⁹ elements", 10**9), Scale("10⁶ elements", 10**6), Scale("10³ elements", 10**3),
           Scale("elements", 1))
SCALES: Mapping[tuple[str, bool], tuple[Scale, ...]] = {
    ("bytes", False): (Scale("GB", 10**9), Scale("MB", 10**6), Scale("kB", 10**3), Scale("B", 1)),
    ("bytes", True): (Scale("GiB", 2**30), Scale("MiB", 2**20), Scale("KiB", 2**10), Scale("B", 1)),
    ("elements", False): _COUNTS,
    ("elements", True): _COUNTS,
    ("1", False): (Scale("number", 1),),
    ("1", True): (Scale("number", 1),),
}
"""(unit of a formula, whether binary) -> its scales, the largest first."""


def scale_for(unit: str, values: Iterable[float | Fraction | None], gib: bool = False) -> Scale:
    """The one scale of a table: the largest in which the largest known value is at least 1.

    >>> scale_for("bytes", [2 * 10**6, None, 70]).head, scale_for("bytes", []).head
    ('MB', 'GB')
    """
    scales = SCALES[unit, gib]
    largest = max((abs(Fraction(v)) for v in values if v), default=Fraction(0))
    return next((s for s in scales if largest >= s.divisor), scales[-1] if largest else scales[0])


_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def readable(text: str) -> str:
    """A monomial's text in the signs of people.

    >>> readable("2*Psi*h**2/dp")
    '2·Ψ·h²/dp'
    """
    text = re.sub(r"\*\*(\d+)", lambda power: power[1].translate(_SUPERSCRIPT), text)
    return text.replace("*", "·").replace("Psi", "Ψ").replace(" - ", " − ")


def scaled(value: float | Fraction | None, scale: int = 1) -> str:
    """A value in the unit of `scale`, to three decimals; "" when unknown.

    >>> scaled(1120 * 10**9, 10**9), scaled(123456, 10**9), scaled(0, 10**9), scaled(70)
    ('1,120.000', '<0.001', '0', '70')
    """
    if value is None:
        return ""
    exact = Fraction(value) / scale
    if exact.denominator == 1 and (scale == 1 or not exact):
        return f"{int(exact):,}"
    return f"{float(exact):,.3f}" if abs(exact) >= Fraction(1, 2000) else "<0.001"


def plain_number(value: float | Fraction) -> str:
    """A size as one would type it.

    >>> plain_number(Fraction(512)), plain_number(Fraction(1, 2))
    ('512', '1/2')
    """
    exact = Fraction(value)
    return str(exact)


def number(value: int) -> str:
    """A whole number with its thousands apart.

    >>> number(70553706496)
    '70,553,706,496'
    """
    return f"{value:,}"


def short(count: int) -> str:
    """A count in three digits.

    >>> short(855654400), short(4096)
    ('856 M', '4.10 k')
    """
    for power, sign in ((12, " T"), (9, " G"), (6, " M"), (3, " k")):
        if count >= 10**power:
            whole = count / 10**power
            return f"{whole:.{2 if whole < 9.995 else 1 if whole < 99.95 else 0}f}{sign}"
    return str(count)
