"""Numbers beside their formulas: units, scales, and the signs in which people write products."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

SCALES: Mapping[tuple[str, bool], tuple[str, int]] = {
    ("bytes", False): ("GB", 10**9),
    ("bytes", True): ("GiB", 2**30),
    ("elements", False): ("10⁹ elements", 10**9),
    ("elements", True): ("10⁹ elements", 10**9),
    ("flop", False): ("PFLOP", 10**15),
    ("flop", True): ("PFLOP", 10**15),
    ("1", False): ("", 1),
    ("1", True): ("", 1),
}
"""(unit of a formula, whether binary) -> how its values are headed, and what they are divided by."""

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def readable(text: str) -> str:
    """A monomial's text in the signs of people.

    >>> readable("2*Psi*h**2/dp")
    '2·Ψ·h²/dp'
    """
    text = re.sub(r"\*\*(\d+)", lambda power: power[1].translate(_SUPERSCRIPT), text)
    return text.replace("*", "·").replace("Psi", "Ψ").replace(" - ", " − ")


def scaled(value: float | Fraction | None, scale: int = 1) -> str:
    """A value in the unit of `scale`: three decimals, more where they would vanish; "" when unknown.

    >>> scaled(1120 * 10**9, 10**9), scaled(123456, 10**9), scaled(0, 10**9), scaled(Fraction(3, 2))
    ('1,120.000', '0.000123', '0', '1.500')
    """
    if value is None:
        return ""
    exact = Fraction(value) / scale
    if exact == 0:
        return "0"
    if abs(exact) >= Fraction(1, 10):
        return f"{float(exact):,.3f}"
    return f"{float(exact):.6f}" if abs(exact) >= Fraction(1, 10**4) else f"{float(exact):.3g}"


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
