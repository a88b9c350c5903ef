"""The obligation `precision` as formulas: the digits of types are constants, of which a type by name says the value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import z3

from placealg.number_formats import FORMATS, Element, told
from placealg.prover.sums import Sum


def digits(size: str) -> Any:
    """The digits of the significand of an element size, as an integer constant.

    >>> digits(Element("bf16")), digits("2")
    (digits of bf16, digits of 2 bytes)
    """
    return z3.Int(f"digits of {told(size)}{'' if isinstance(size, Element) else ' bytes'}")


def formulas(sums: Iterable[Sum]) -> tuple[list[Any], list[tuple[str, Any]]]:
    """(how many digits the named types have, each way in which a sum can be too narrow, in words and as a formula).

    >>> formulas([Sum("reduce", "", "gradient", ("dp",), Element("bf16"), Element("fp32"))])[1]
    [('1 instance: a sum is taken in bf16, and fp32 is asked', digits of bf16 < digits of fp32)]
    """
    pairs = Counter((s.type, s.least) for s in sums)
    named = dict.fromkeys(t.name for pair in pairs for t in pair if isinstance(t, Element))
    known = [digits(Element(name)) == FORMATS[name].digits for name in named]
    return known, [(f"{n} instance{'s' * (n > 1)}: a sum is taken in {told(own)}, and {told(least)} is asked",
                    digits(own) < digits(least)) for (own, least), n in pairs.items()]
