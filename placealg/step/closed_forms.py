"""What pipelines wait and hold, in closed form: read off small runs of an order, and proved of it for all sizes.

A stage's waiting time is a sum of T_F, T_B and T_W whose coefficients are linear in p and in the stage's number i, and
so is what each chunk of a stage holds at most. Three stages settle such a form, others are held against it, and
`prover/waiting.py`, `interleaved.py` and `v_schedule.py` prove it of the order for all p, m and v, or refute it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import permutations

from placealg.arith import parse
from placealg.errors import InputError

Stage = tuple[int, int]
"""(p, i): the number of stages, and the number of one."""

SAMPLES: tuple[Stage, ...] = tuple((p, i) for p in (2, 3, 4) for i in range(p))
"""The stages of small runs, of which the first three settle a form and the others are held against it."""


class Derived(dict[str, str]):
    """Order -> a form that is derived when it is first asked for.

    >>> Derived(lambda order: order + "!")["1f1b"]
    '1f1b!'
    """

    def __init__(self, derive: Callable[[str], str]) -> None:
        super().__init__()
        self._derive = derive

    def __missing__(self, order: str) -> str:
        self[order] = self._derive(order)
        return self[order]


def affine(numbers: Mapping[Stage, int]) -> tuple[int, int, int]:
    """(c, a, b) of c + a*p + b*i, which the numbers at SAMPLES are; an InputError where they are no such form.

    >>> affine({(p, i): 3 * p - i + 1 for p, i in SAMPLES})
    (1, 3, -1)
    """
    a, b = numbers[3, 0] - numbers[2, 0], numbers[2, 1] - numbers[2, 0]
    c = numbers[2, 0] - 2 * a
    if any(number != c + a * p + b * i for (p, i), number in numbers.items()):
        raise InputError("what small runs show is not linear in p and i")
    return c, a, b


def times(terms: Iterable[tuple[int, str]]) -> str:
    """A sum of multiples of names, or of 1 where a name is empty, as arithmetic, the positive terms first.

    >>> times([(-2, "T_W"), (1, "T_F")]), times([(3, "")]), times([])
    ('T_F - 2*T_W', '3', '0')
    """
    found = ""
    for factor, name in sorted(terms, key=lambda term: term[0] < 0):
        if factor:
            shown = name if name and abs(factor) == 1 else f"{abs(factor)}*{name}".removesuffix("*")
            found += (" - " if factor < 0 else " + ") + shown if found else ("-" if factor < 0 else "") + shown
    return found or "0"


def waiting_form(numbers: Mapping[Stage, Sequence[int]], names: Sequence[str], over: int = 1) -> str:
    """What stages wait, each so many of the times called `names`, as arithmetic over p, i and these, divided by `over`.

    >>> waiting_form({(p, i): (p - 1 - i, 1 + i - p) for p, i in SAMPLES}, ("T_F", "T_W"))
    '(p - 1 - i)*(T_F - T_W)'
    """
    parts: list[tuple[int, int]] = []
    for k in range(len(names)):
        c, a, b = affine({at: found[k] for at, found in numbers.items()})
        if c + a:
            raise InputError("the only stage of a pipeline of one waits")
        parts.append((-b, a + b))
    sums = [(outside, times((part[k], name) for part, name in zip(parts, names, strict=True)))
            for k, outside in enumerate(("p - 1 - i", "p - 1"))]
    return " + ".join(f"({outside})*({inside})" + f"/{over}" * (over > 1)
                      for outside, inside in sums if inside != "0") or "0"


def held_form(numbers: Mapping[Stage, tuple[int, int]]) -> str:
    """The most that both chunks of a stage hold, each of all microbatches at most, as arithmetic over p, i and m.

    >>> held_form({(p, i): (2 * p - 1 - i, i + 1) for p, i in SAMPLES})
    'Min(m, 2*p - 1 - i) + Min(m, i + 1)'
    """
    forms = (affine({at: found[chunk] for at, found in numbers.items()}) for chunk in (0, 1))
    sums = ([(a, "p"), *([(b, "i"), (c, "")] if c > 0 else [(c, ""), (b, "i")])] for c, a, b in forms)
    return " + ".join(f"Min(m, {times(terms)})" for terms in sums)


def inside(conditions: Iterable[tuple[str, str, str]], names: Sequence[str]) -> tuple[int, int, int]:
    """Times called `names`, no two of which are equal, at which conditions hold with room to spare.

    >>> inside([("T_W", "<=", "T_F")], ("T_F", "T_B", "T_W"))
    (11, 17, 7)
    """
    for values in permutations((7, 11, 17, 29), 3):
        at = dict(zip(names, values, strict=True))
        if all(parse(one).evaluate(at) < parse(other).evaluate(at) for one, _, other in conditions):
            return values
    raise InputError(f"no times satisfy {conditions}")
