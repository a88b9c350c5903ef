"""Types of numbers by name: how they round, how far they reach, and the bytes of one number.

An element size of a strategy is a number of bytes; where a type was named it also knows which (`Element`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """A binary type: `bytes` of one number, `digits` of its significand, the largest and the smallest normal number.

    `digits` count the leading 1, which most formats do not store.
    """

    name: str
    bytes: Fraction
    digits: int
    largest: Fraction
    smallest: Fraction
    source: str

    @property
    def roundoff(self) -> Fraction:
        """The unit roundoff: the largest relative error of one rounding to nearest, 2^-digits.

        >>> FORMATS["bf16"].roundoff, FORMATS["fp32"].roundoff == Fraction(1, 2**24)
        (Fraction(1, 256), True)
        """
        return Fraction(1, 2**self.digits)

    @property
    def symbol(self) -> str:
        """The symbol of its unit roundoff in formulas."""
        return f"u_{self.name}"

    @property
    def exponents(self) -> tuple[int, int]:
        """The exponents of 2 of its largest and of its smallest normal number.

        >>> FORMATS["fp16"].exponents, FORMATS["fp8_e4m3"].exponents
        ((15, -14), (8, -6))
        """
        return self.largest.numerator.bit_length() - 1, 1 - self.smallest.denominator.bit_length()

    def holds(self, other: NumberFormat) -> bool:
        """Whether it has as many digits as another format, and reaches as far.

        >>> [FORMATS[a].holds(FORMATS[b]) for a, b in (("fp32", "fp16"), ("fp16", "bf16"), ("bf16", "fp16"))]
        [True, False, False]
        """
        (most, least), (top, bottom) = self.exponents, other.exponents
        return self.digits >= other.digits and most >= top and least <= bottom

    def rounded(self, value: Fraction) -> Fraction:
        """The nearest number of the format, to even where two are; of what overflows an OverflowError.

        >>> FORMATS["bf16"].rounded(1 + Fraction(1, 512)), FORMATS["fp16"].rounded(1 + Fraction(1, 512))
        (Fraction(1, 1), Fraction(513, 512))
        """
        if not value:
            return value
        size = abs(value)
        exponent = size.numerator.bit_length() - size.denominator.bit_length()
        exponent -= size < Fraction(2)**exponent
        step = max(Fraction(2)**(exponent + 1 - self.digits), self.smallest * Fraction(2)**(1 - self.digits))
        near = round(value / step) * step  # a Fraction rounds half to even
        if abs(near) > self.largest:
            raise OverflowError(f"{float(value):g} is beyond the largest number of {self.name}")
        return near


def _format(name: str, size: str, digits: int, most: int, least: int, source: str,
            largest: Fraction | None = None) -> NumberFormat:
    top = (2 - Fraction(2)**(1 - digits)) * Fraction(2)**most
    return NumberFormat(name, Fraction(size), digits, largest or top, Fraction(2)**least, source)


_FP8 = "Micikevicius et al., FP8 Formats for Deep Learning, arXiv 2209.05433, table 1"

FORMATS: Mapping[str, NumberFormat] = {f.name: f for f in (
    _format("fp32", "4", 24, 127, -126, "IEEE 754-2019, binary32"),
    _format("tf32", "4", 11, 127, -126, "NVIDIA A100 whitepaper, 2020: 8 bits of exponent, 10 of fraction"),
    _format("fp16", "2", 11, 15, -14, "IEEE 754-2019, binary16"),
    _format("bf16", "2", 8, 127, -126, "Kalamkar et al., arXiv 1905.12322"),
    _format("fp8_e4m3", "1", 4, 8, -6, _FP8, Fraction(448)),
    _format("fp8_e5m2", "1", 3, 15, -14, _FP8),
    _format("fp4", "1/2", 2, 2, 0, "Open Compute Project, Microscaling Formats 1.0, section 5.3.3: E2M1"),
)}
"""Name -> the type of numbers."""


class Element(str):
    """Bytes of an element, as the text of a number, where the type was named; without the name it is another value.

    >>> Element("bf16"), Element("bf16").name, Element("bf16") == Element("fp16"), Element("bf16") == "2"
    ('2', 'bf16', False, False)
    """

    __slots__ = ("name",)
    name: str

    def __new__(cls, name: str) -> Element:
        """The bytes of a number of the type `name`, one of FORMATS."""
        made = super().__new__(cls, str(FORMATS[name].bytes))
        made.name = name
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Element) and self.name == other.name

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(("element", self.name))

    def __reduce__(self) -> tuple[type[Element], tuple[str]]:
        return Element, (self.name,)


def element(text: str) -> str:
    """The bytes of an element that a text says: a number, or the name of a type.

    >>> element("fp32"), element("4") == "4"
    ('4', True)
    """
    return Element(text) if text in FORMATS and not isinstance(text, Element) else text


def told(size: str) -> str:
    """An element size as a user writes it: the name of its type, else its bytes.

    >>> told(Element("bf16")), told("2")
    ('bf16', '2')
    """
    return size.name if isinstance(size, Element) else size
