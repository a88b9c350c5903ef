"""The obligation `precision` as formulas: digits and exponents of types are constants; a name says their values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import z3

from placealg.number_formats import FORMATS, Element, told
from placealg.step.sums import Sum


def digits(size: str) -> Any:
    """The digits of the significand of an element size, as an integer constant.

    >>> digits(Element("bf16")), digits("2")
    (digits of bf16, digits of 2 bytes)
    """
    return z3.Int(f"digits of {told(size)}{'' if isinstance(size, Element) else ' bytes'}")


def exponents(size: str) -> tuple[Any, Any]:
    """The exponents of the largest and of the smallest normal number of an element size, as integer constants.

    >>> exponents(Element("fp16"))
    (most of fp16, least of fp16)
    """
    most, least = z3.Ints([str(digits(size)).replace("digits", which) for which in ("most", "least")])
    return most, least


def narrower(own: str, asked: str) -> Any:
    """That a type has fewer digits than another, or does not reach as far up, or down."""
    (most, least), (top, bottom) = exponents(own), exponents(asked)
    return z3.Or(digits(own) < digits(asked), most < top, least > bottom)


def formulas(sums: Iterable[Sum]) -> tuple[list[Any], list[tuple[str, Any]]]:
    """(how many digits the named types have, each way in which a sum can be too narrow, in words and as a formula).

    >>> formulas([Sum("reduce", "", "gradient", ("dp",), Element("bf16"), Element("fp32"))])[1]
    [('1 instance: a sum is taken in bf16, and fp32 is asked', Or(digits of bf16 < digits of fp32,
       most of bf16 < most of fp32,
       least of bf16 > least of fp32))]
    """
    pairs = Counter((s.type, s.least) for s in sums)
    named = dict.fromkeys(t.name for pair in pairs for t in pair if isinstance(t, Element))
    known = [constant == value for name in named for constant, value in zip(
        (digits(Element(name)), *exponents(Element(name))), (FORMATS[name].digits, *FORMATS[name].exponents),
        strict=True)]
    return known, [(f"{n} instance{'s' * (n > 1)}: a sum is taken in {told(own)}, and {told(least)} is asked",
                    narrower(own, least)) for (own, least), n in pairs.items()]
