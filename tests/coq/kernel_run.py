"""The kernel's semantics as it runs: a program on a small mesh, rank by rank, beside the single device.

What runs is `Semantics.v` itself, which Coq extracts as data beside the checker (`semantics.json`); only the world is
given here: sizes, owners, tokens, and a model and an optimizer of which nothing is known, each function a digest of its
arguments modulo a prime. So the semantics, which the theorem speaks of, can be held against the simulator, which the
prover is held against.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from in_python import Translation, apply

from placealg.errors import InputError
from placealg.prover.kernel.checker import value
from placealg.prover.kernel.program import FIELDS
from placealg.prover.kernel.terms import Term

SEMANTICS = Path(__file__).with_name("semantics.json")
PRIME = 2**61 - 1
"""Numbers of a run are residues modulo this prime, in which every count that occurs has an inverse."""

_MEMOISED = {1: 3, 2: 3, 3: 3, 4: 2, 5: 2, 6: 2, 7: 2, 8: 3, 9: 3}
"""The fields of a memory that are functions, with the number of their arguments."""


def native(arguments: int, function: Callable[..., Any], *given: Any) -> Callable[[Any], Any]:
    """A function of Python as a value of the extracted programs, which takes its arguments one by one.

    >>> apply(native(2, lambda a, b: a - b), [5, 3])
    2
    """
    if len(given) + 1 == arguments:
        return lambda last: function(*given, last)
    return lambda one: native(arguments, function, *given, one)


def whole(number: Any) -> int:
    """A Peano number as an int.

    >>> whole(value(3))
    3
    """
    n = 0
    while number[0] == "S":
        number, n = number[1], n + 1
    return n


def listed(found: Any) -> list[Any]:
    """A list of the extracted programs as a list."""
    items = []
    while found[0] == "Cons":
        items.append(found[1])
        found = found[2]
    return items


def digest(*of: Any) -> int:
    """A residue that depends on all of its arguments.

    >>> digest("a", 1) == digest("a", 1), digest("a", 1) == digest("a", 2)
    (True, False)
    """
    return int.from_bytes(hashlib.blake2b(repr(of).encode(), digest_size=8).digest(), "big") % PRIME


class Semantics(Translation):
    """The extracted semantics; what a memory or the reference holds is computed once for all arguments."""

    def __init__(self, text: str, axes: int) -> None:
        try:
            found = json.loads(text)
            super().__init__(dict(found["terms"]))
        except (ValueError, KeyError, TypeError):
            raise InputError("semantics.json is no extracted semantics: run make coq") from None
        self.sources = found["sources"]
        self.axes = axes
        self.defined: dict[str, Any] = {"remembered": self._remembered}
        exec(self.text(), self.defined)
        for name in _REFERENCE:
            known = self.names[name]
            self.defined[known] = self._single(self.defined[known], name)

    def value(self, name: str) -> Any:
        """The value of a name."""
        return eval(self.named(name), self.defined)

    def construct(self, name: str, args: Sequence[str]) -> str:
        """A memory remembers what was computed of it."""
        made = super().construct(name, args)
        return f"remembered({made})" if name == "Memory" else made

    def _single(self, plain: Callable[..., Any], name: str) -> Callable[..., Any]:
        found: dict[Any, tuple[Any, Any]] = {}

        def call(*given: Any) -> Any:
            key = tuple(id(x) if callable(x) or x[0] in _LONG else x for x in given)
            if key not in found:
                made = plain(*given)
                if name == "reference":
                    made = ("Pair", made[1], self.once(made[2], 1))
                found[key] = (made, given)
            return found[key][0]
        return call

    def _remembered(self, memory: Any) -> Any:
        return (memory[0], *(self.once(field, _MEMOISED[k]) if k in _MEMOISED else field
                             for k, field in enumerate(memory[1:], 1)))

    def once(self, function: Callable[[Any], Any], arguments: int) -> Callable[[Any], Any]:
        """A function that is computed once for all arguments; a rank is told by its coordinates."""
        found: dict[Any, Any] = {}

        def call(*given: Any) -> Any:
            key = tuple(map(self._key, given))
            if key not in found:
                found[key] = apply(function, given)
            return found[key]
        return native(arguments, call)

    def _key(self, argument: Any) -> Any:
        if callable(argument):
            return tuple(argument(value(a)) for a in range(self.axes))
        return argument


_LONG = frozenset(("Build_world", "Program"))
_REFERENCE = ("reference", "gradient", "norm")
"""What the single device computes; functions are told apart as they are made."""


@dataclass(frozen=True, slots=True)
class World:
    """One small world: axis sizes in the program's order, microbatches, instances of a repeated unit, its elements."""

    sizes: tuple[int, ...]
    microbatches: int = 1
    layers: int = 2
    elements: int = 2

    def term(self, program: Mapping[str, Any]) -> Any:
        """The world as the extracted programs read it."""
        data: list[int] = program["data"]
        cells = list(itertools.product(*(range(self.sizes[a]) for a in data)))
        repeated, indices = program["repeated"], range(self.elements)
        elements = [(g, layer, k) for g, group in enumerate(program["groups"])
                    for layer in range(self.layers if repeated[group[1][0]] else 1) for k in indices]

        def tokens(t: int, j: int) -> list[Any]:
            count = [2 if program["equal"] else 1 + digest("count", t, j, cell) % 3 for cell in cells]
            return [(t, j, cell, n, loss) for loss in range(1 + program["further"])
                    for cell, many in zip(cells, count, strict=True) for n in range(many + loss)]

        def home(x: Any, a: Any) -> Any:
            axis = whole(a)
            return value(x[2][data.index(axis)] if axis in data else 0)

        def size(a: Any) -> Any:
            axis = whole(a)
            return value(self.sizes[axis] if axis < len(self.sizes) else 1)

        def owner(s: Any, c: Any, a: Any, i: Any) -> Any:
            axis, layout = whole(a), whole(s)
            turn = sum(i) + i[2] // 3 + axis + layout * (1 + i[2]) + whole(c) * (layout + i[2])
            return value(turn % self.sizes[axis] if axis < len(self.sizes) else 0)

        def plain(*of: Any) -> tuple[Any, ...]:
            return tuple(tuple(listed(x)) if isinstance(x, tuple) and x[:1] in (("Cons",), ("Nil",)) else x for x in of)

        def hashed(name: str, arguments: int) -> Callable[[Any], Any]:
            return native(arguments, lambda *of: digest(name, plain(*of)))

        def at(rank: Callable[[Any], Any]) -> tuple[Any, ...]:
            return tuple(whole(rank(value(a))) for a in range(len(self.sizes)))

        ring = ("Build_CRing", 0, 1, native(2, lambda a, b: (a + b) % PRIME), native(2, lambda a, b: a * b % PRIME),
                native(2, lambda a, b: (a - b) % PRIME), native(1, lambda a: -a % PRIME),
                native(2, lambda a, b: ("Left",) if a == b else ("Right",)))
        return (
            "Build_world", native(1, size), items(elements), native(1, lambda i: value(i[0])),
            native(1, lambda i: value(i[1])), native(1, lambda i: value(i[2] // 2)), native(4, owner),
            value(self.microbatches), native(2, lambda t, j: items(tokens(whole(t), whole(j)))),
            native(1, lambda x: value(x[4])), native(2, home), ring,
            native(1, lambda n: pow(whole(n), -1, PRIME) if n[0] == "S" else 0),
            native(2, max),
            native(1, lambda u: value(self.layers)),
            hashed("weight", 1), hashed("moments", 1), hashed("input", 1), hashed("forward", 6), hashed("seed", 2),
            hashed("backward", 6), hashed("gamma", 7), hashed("statistic", 5),
            native(1, lambda n: 1 + digest("padding", n) % 1000),
            native(1, lambda n: pow(1 + digest("padding", n) % 1000, -1, PRIME)),
            native(1, lambda n: 1 + digest("scale", n) % 1000),
            native(1, lambda n: pow(1 + digest("scale", n) % 1000, -1, PRIME)),
            native(2, lambda n, out: value((0 if out == ("True",) else whole(n) + 1) % 7)), hashed("measure", 2),
            native(2, lambda i, g: ("True",) if digest("overflow", i, g) % 9 == 0 else ("False",)), hashed("clip", 2),
            native(6, lambda *of: ("Pair", digest("master", plain(*of)), digest("moments", plain(*of)))),
            hashed("average", 3), native(3, lambda c, r, i: ("Inl", digest("junk", whole(c), at(r), i))),
            native(2, lambda c, r: value(50 + whole(c) % 7)),
            native(3, lambda c, g, r: digest("norm", whole(c), at(r))),
            native(3, lambda c, g, r: ("True",)), native(2, lambda n, r: digest("junk scale", whole(n), at(r))),
            native(3, lambda c, n, r: value(60 + whole(c) % 7)), native(2, lambda r, x: digest("flow", at(r), x)))


def items(found: list[Any]) -> Any:
    """A list of values as a list of the extracted programs."""
    made: Any = ("Nil",)
    for x in reversed(found):
        made = ("Cons", x, made)
    return made


@dataclass(slots=True)
class Run:
    """A program in a world: `wrong` tells what `correct` says that does not hold there."""

    program: tuple[Term, ...]
    world: World
    steps: int = 1

    def wrong(self) -> str:
        """The first thing that differs from the single device in runs of up to `steps` steps; "" if none does."""
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(200_000)
        try:
            return next(self._differences(), "")
        finally:
            sys.setrecursionlimit(limit)

    def _differences(self) -> Iterator[str]:
        fields = dict(zip(FIELDS, self.program[1:], strict=True))
        machine = Semantics(_text(), len(self.world.sizes))
        w, p = self.world.term(fields), value(self.program)

        def ask(name: str, *of: Any) -> Any:
            return apply(machine.value(name), [*of])

        ranks = [native(1, functools.partial(_coordinate, at))
                 for at in itertools.product(*map(range, self.world.sizes))]
        elements = listed(w[2])
        groups: list[Any] = fields["groups"]  # type: ignore[assignment]
        for stopping in (False, True) if fields["resume"] else (False,):
            stops = native(1, lambda _, stopping=stopping: ("True",) if stopping else ("False",))
            for t in range(self.steps + 1):
                m, now = ask("run", w, p, stops, value(t)), f"step {t}{', resumed' * stopping}"
                held = m[1]
                truth = {(v, i): ask("truth", w, p, (v,), value(t), i)
                         for v in ("Weight", "Moments", "Average") for i in elements}
                for i, r in itertools.product(elements, ranks):
                    _, _, rests, lies, _, _, average = groups[i[0]]
                    for v, place, tier in (("Weight", rests, lies), *([("Average", *average[1:])]
                                                                     if average != "NoAverage" else [])):
                        got = apply(held, [("At", (v,), (tier,)), r, i])
                        if ask("sat", w, value(place), r, i) == ("True",) and got != ("Some", truth[v, i]):
                            yield f"{now}: {v} of {i} at rest"
                    for v in ("Weight", "Moments", *(["Average"] if average != "NoAverage" else [])):
                        got = apply(held, [("At", (v,), ("Disk",)), r, i])
                        if got not in (("None",), ("Some", truth[v, i])):
                            yield f"{now}: {v} of {i} in the checkpoint"
                if fields["resume"]:
                    for c in ("Step", "Stream", *(["LossScale"] if fields["scales"] else [])):
                        tick = ("Some", ask("ticks_of", w, p, (c,), value(t)))
                        got = [apply(m[3], [(c,), ("True",), r]) for r in ranks]
                        if got[0] != tick or any(n not in (("None",), tick) for n in got):
                            yield f"{now}: {c} in the checkpoint"
                for read in listed(ask("step", w, p, value(t), m)[10]):
                    (_, (_, unit, layer), view) = read
                    for i in listed(ask("needs", w, p, unit, layer)):
                        if any(apply(view, [r, i]) != ("Some", truth["Weight", i]) for r in ranks):
                            yield f"{now}: {i} as unit {whole(unit)} reads it"


def _coordinate(at: tuple[int, ...], a: Any) -> Any:
    axis = whole(a)
    return value(at[axis] if axis < len(at) else 0)


@functools.cache
def _text() -> str:
    return SEMANTICS.read_text(encoding="utf-8")
