"""The obligation on the types of sums: the first that is taken in fewer digits, or a smaller range, than was asked."""

from __future__ import annotations

import time
from dataclasses import replace
from fractions import Fraction

from placealg.number_formats import FORMATS, Element, told
from placealg.prover.verdict import (
    ASKED_FOR,
    BOUNDED,
    PARAMETRIC,
    PROVED,
    REFUTED,
    UNDECIDED,
    Conclusion,
    Counterexample,
    Decided,
    Verdict,
)
from placealg.step.program import Step
from placealg.step.sums import Sum, names_types, sums

PRECISION = next(iter(ASKED_FOR))
"""The identifier of the obligation."""

def precision(step: Step, asked: str = "") -> tuple[Verdict, Counterexample | None] | None:
    """The verdict on the types of all sums of gradients, and the first that is too narrow; None where none is named.

    It holds for all sizes: no event's type depends on one.
    """
    if not asked and not names_types(step):
        return None
    start = time.perf_counter()
    every = [s for s in sums(step, asked) if s.least]
    verdict = Verdict(PRECISION, "", ASKED_FOR[PRECISION], PROVED, PARAMETRIC, len(every),
                      decided=Decided(data=len(every)),
                      reason="" if every else "the program takes no sum of a gradient")
    narrow = next((s for s in every if s.narrow), None)
    left = next((s for s in every if s.narrow is None), None)
    found = None
    if narrow is not None:
        more = sum(bool(s.narrow) for s in every) - 1
        verdict = _ended(verdict, narrow, REFUTED, BOUNDED, _too_narrow(narrow) + (
            f"; so do {more} more sums" if more > 1 else "; so does 1 more sum" if more else ""))
        found = Counterexample(PRECISION, narrow.event, narrow.group, (), (), "", f"adds in {told(narrow.type)}",
                               f"at least {told(narrow.least)}", None, f"{_too_narrow(narrow)}. {shows(narrow)}",
                               line=step.event(narrow.event).line)
    elif left is not None:
        named = isinstance(left.type, Element)
        size, says = (left.least, f"{left.says} is") if named else (left.type, "it adds in")
        verdict = _ended(verdict, left, UNDECIDED, None, f"{left.event}: {says} {size} bytes, and bytes name no type: "
                         f"say one, such as \"{'bf16' if size == '2' else 'fp32'}\"")
    return _timed(verdict, start), found


def _ended(verdict: Verdict, at: Sum, how: Conclusion, cls: str | None, reason: str) -> Verdict:
    return replace(verdict, verdict=how, cls=cls, reason=reason, event=at.event)


def _timed(verdict: Verdict, start: float) -> Verdict:
    return replace(verdict, seconds=time.perf_counter() - start)


def _too_narrow(found: Sum) -> str:
    over = "microbatches" if found.terms == ("m",) else " and ".join(found.terms)
    return f"the sum over {over} is taken in {told(found.type)}, and {found.says} asks for {told(found.least)}"


def shows(found: Sum) -> str:
    """A sum of two numbers that both types have, on which they differ.

    >>> shows(Sum("reduce", "", "gradient", ("dp",), Element("bf16"), Element("fp32")))
    '1 + 0.00390625 is 1 in bf16, and 1.00390625 in fp32'
    >>> shows(Sum("reduce", "", "gradient", ("dp",), Element("fp16"), Element("bf16")))
    '65504 + 65504 is beyond fp16, and 131072 in bf16'
    """
    own, asked = FORMATS[told(found.type)], FORMATS[told(found.least)]
    if own.digits < asked.digits:
        low, high = (f"{_number(f.rounded(1 + own.roundoff))} in {f.name}" for f in (own, asked))
        return f"1 + {float(own.roundoff)} is {low}, and {high}"
    most = _number(own.largest)
    return f"{most} + {most} is beyond {own.name}, and {_number(asked.rounded(2 * own.largest))} in {asked.name}"


def _number(value: Fraction) -> str:
    return str(float(value)).removesuffix(".0")
