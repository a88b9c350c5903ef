"""The kernel's semantics as it runs: a program on a small mesh, rank by rank, beside the single device.

What runs is `Machine.v` and `Meaning.v` themselves, which Coq extracts as data beside the checker (`semantics.json`);
only the world is given here: sizes, owners, numbers, and functions of rows of which nothing is known, each a digest of
the rows that it reads modulo a prime. So the semantics, which the theorem speaks of, can be held against the simulator,
which the prover is held against.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from in_python import Translation, apply, value

from placealg.errors import InputError
from placealg.prover.kernel.coq import atoms_of
from placealg.prover.kernel.program import Full, Held, Number, Program, Shard, Shared, SRow, term

SEMANTICS = Path(__file__).with_name("semantics.json")
PRIME = 2**61 - 1
"""Numbers of a run are residues modulo this prime, in which every size that occurs has an inverse."""


def native(arguments: int, function: Callable[..., Any], *given: Any) -> Callable[[Any], Any]:
    """A function of Python as a value of the extracted programs, which takes its arguments one by one.

    >>> apply(native(2, lambda a, b: a - b), [5, 3])
    2
    """
    if len(given) + 1 == arguments:
        return lambda last: function(*given, last)
    return lambda one: native(arguments, function, *given, one)


def whole(number: Any) -> int:
    """A Peano number, or a binary one, as an int.

    >>> whole(value(3)), whole(value(("xI", ("xO", "xH"))))
    (3, 5)
    """
    if number[0] in ("XH", "XO", "XI"):
        return 1 if number[0] == "XH" else 2 * whole(number[1]) + (number[0] == "XI")
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


class Once:
    """A tensor, of coordinates and positions, or a value, of positions: computed once for what it asks of them."""

    def __init__(self, of: Callable[[Any], Any], arguments: int) -> None:
        self.of, self.arguments, self.root = of, arguments, dict[Any, Any]()

    def at(self, *given: Callable[[Any], Any]) -> Any:
        """The number there: what was asked before, and answered alike, leads to what was found then."""
        node = self.root
        while "asks" in node:
            k, n = node["asks"]
            node = node.setdefault(given[k](n), {})
        if "is" not in node:
            asked: dict[tuple[int, Any], Any] = {}

            def told(k: int, n: Any) -> Any:
                if (k, n) not in asked:
                    asked[k, n] = given[k](n)
                return asked[k, n]

            found = apply(self.of, [functools.partial(told, k) for k in range(self.arguments)])
            node = self.root
            for asking, answer in asked.items():
                if "asks" not in node:
                    node["asks"] = asking
                assert node["asks"] == asking
                node = node.setdefault(answer, {})
            node["is"] = found
        return node["is"]

    def __call__(self, first: Any) -> Any:
        return self.at(first) if self.arguments == 1 else lambda second: self.at(first, second)


class Semantics(Translation):
    """The extracted semantics; what is stored, and what the single device makes, is computed once."""

    def __init__(self, text: str) -> None:
        try:
            found = json.loads(text)
            super().__init__(dict(found["terms"]))
        except (ValueError, KeyError, TypeError):
            raise InputError("semantics.json is no extracted semantics: run make coq") from None
        self.sources = found["sources"]
        self.defined: dict[str, Any] = {}
        self.kept: dict[Any, tuple[Any, Any]] = {}
        exec(self.text(), self.defined)
        for name, arguments in (("apply", 2), ("computed", 1), ("store", 2), ("accumulate", 2)):
            self.defined[self.names[name]] = self._remembered(self.defined[self.names[name]], arguments)
        for name in ("run_line", "reference", "run", "store", "accumulate"):
            self.defined[self.names[name]] = self._single(name)

    def _remembered(self, plain: Callable[..., Any], arguments: int) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            made = plain(*given)
            return made if isinstance(made, Once) else Once(made, arguments)
        return call

    def _single(self, name: str) -> Callable[..., Any]:
        plain = self.defined[self.names[name]]

        def call(*given: Any) -> Any:
            key = (name, *(id(x) if callable(x) or x[0] in _LONG else x for x in given))
            if key not in self.kept:
                self.kept[key] = (plain(*given), given)
            return self.kept[key][0]
        return call

    def value(self, name: str) -> Any:
        """The value of a name."""
        return eval(self.named(name), self.defined)


_LONG = ("World", "Program", "Build_CRing", "Line", "Cons", "Moment")
"""Constructors of what is told apart as it is made."""


@dataclass(frozen=True, slots=True)
class World:
    """One small world: sizes of axes in the program's order, microbatches, instances of a repeated unit."""

    sizes: tuple[int, ...]
    microbatches: int = 1
    layers: int = 2

    def term(self, program: Program) -> Any:
        """The world as the extracted programs read it."""
        sizes = (self.microbatches, *self.sizes)
        touch, like = program.on.touch, program.on.like
        batch = {k.way for h in program.data for k in h.lying if isinstance(k, Shard)}
        overs = {x.second.made.function: x.second.made.over for stretch in program.alone for x in stretch.lines
                 if isinstance(x.second.made, SRow)}
        atoms = atoms_of(term(program), sizes, PRIME)

        def reads(way: int) -> tuple[int, ...]:
            return touch[way] if way < len(touch) else (way,)

        def extent(d: Any) -> int:
            return int(2 ** len(sizes)) if whole(d) in batch else 2

        stages: dict[int, tuple[int, bool]] = {}
        for k, m in enumerate(program.on.moving):  # the instances of one unit after those of another
            start, end = k * self.layers, (k + 1) * self.layers
            stages |= {m.entry: (start, False), m.here: (start, True), m.behind: (start + 1, True),
                       m.exit: (end, False)}

        def home(layer: Any, a: Any, way: Any, i: Any) -> Any:
            axis, dims = whole(a), reads(whole(way))
            if whole(way) in stages:
                at, moves = stages[whole(way)]
                instance, every = at + whole(layer) * moves, len(program.on.moving) * self.layers
                return value(min(instance * sizes[axis] // every, sizes[axis] - 1))
            if len(dims) > 3:
                return value(0)
            at = sum(whole(i(value(d))) for d in dims)
            one = dims == (whole(way),) and like[whole(way)] in batch
            return value(((at >> axis) if one else at + axis) % sizes[axis])

        def fn(f: Any, t: Any, layer: Any, i: Any, vs: Any) -> int:
            over = overs.get(whole(f), ())
            rows = []
            for at in itertools.product(*(range(extent(value(d))) for d in over)):
                chosen = {value(d): value(n) for d, n in zip(over, at, strict=True)}
                rows.append([v(lambda d, chosen=chosen: chosen.get(d) or i(d)) for v in listed(vs)])
            return digest(whole(f), whole(t), whole(layer), rows)

        lying: dict[int, set[int]] = {}
        for h in (*program.given, *program.data, *(pair.second for pair in program.rest)):
            for kind in h.lying:
                if isinstance(kind, Shard) and len(reads(kind.way)) <= 3:
                    lying.setdefault(int(h.value), set()).update(reads(kind.way))

        def outside(n: Any, t: Any, layer: Any, i: Any) -> int:
            dims = sorted(lying.get(whole(n), ()))
            return digest("outside", whole(n), whole(t), whole(layer), [whole(i(value(d))) for d in dims])

        begins = {int(pair.first): pair.second for pair in program.begins}
        given = {int(h.value): h for h in program.given}
        data = {int(h.value): h for h in program.data}

        def free(t: Any, n: Any, layer: Any, i: Any) -> int:
            return outside(value(term(begins[whole(n)])) if t[0] == "O" and whole(n) in begins else n, t, layer, i)

        def come(start: Any, n: Any, t: Any, layer: Any, r: Any, i: Any) -> int:
            held = (given if start == ("True",) else data)[whole(n)]
            own = all(r(value(a)) == home(layer, value(a), value(kind.way), i) for a, kind in enumerate(held.lying)
                      if isinstance(kind, Shard))
            return free(value(0) if start == ("True",) else t, n, layer, i) if own else digest(
                "elsewhere", whole(n), [whole(r(value(a))) for a in range(len(sizes))])

        return native(4, free), ring(), (
            "World", native(1, lambda a: value(sizes[whole(a)])), native(1, lambda d: value(extent(d))),
            native(4, home), native(1, lambda _: value(self.layers)),
            native(1, lambda k: atoms[whole(k)]), native(1, lambda k: pow(atoms[whole(k)], -1, PRIME)),
            native(5, fn), native(6, come),
            native(3, lambda path, r, _: digest("junk", [whole(n) for n in listed(path)],
                                                [whole(r(value(a))) for a in range(len(sizes))])))


def ring() -> Any:
    """The residues as the extracted programs read a ring."""
    return ("Build_CRing", 0, 1, native(2, lambda a, b: (a + b) % PRIME), native(2, lambda a, b: a * b % PRIME),
            native(2, lambda a, b: (a - b) % PRIME), native(1, lambda a: -a % PRIME),
            native(2, lambda a, b: ("Left",) if a == b else ("Right",)))


@dataclass(slots=True)
class Run:
    """A program in a world: `wrong` tells what `correct` says that does not hold there."""

    program: Program
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
        machine, p = Semantics(_text()), value(term(self.program))
        free, numbers, w = self.world.term(self.program)
        run, truth = machine.value("run"), machine.value("truth")
        sizes = (self.world.microbatches, *self.world.sizes)
        ranks = [native(1, functools.partial(_coordinate, at)) for at in itertools.product(*map(range, sizes))]
        saves = bool(self.program.resume)
        for pause in ("On", "Stopped") if saves else ("On",):
            for t in range(self.steps + 1):
                memory = apply(run, [numbers, w, p, native(1, lambda _, pause=pause: (pause,)), value(t)])
                for pair in self.program.rest:
                    slot, held = pair.first, pair.second
                    for layer in range(self.world.layers if held.per else 1):
                        inst = value(0 if isinstance(slot, Shared) else layer)
                        right = apply(truth, [numbers, w, p, free, value(term(Number(held.value))), value(t),
                                              value(layer)])
                        found = apply(memory, [value(term(slot)), inst])
                        for i, r in itertools.product(self._positions(held, w), ranks):
                            if _holds(held, w, value(layer), r, i) and apply(found, [r, i]) != right(i):
                                yield f"step {t}{', resumed' * (pause == 'Stopped')}: value {int(held.value)} at rest"

    def _positions(self, held: Held, w: Any) -> Iterator[Callable[[Any], Any]]:
        touch = self.program.on.touch
        dims = sorted({d for k in held.lying if isinstance(k, Shard) for d in touch[k.way]})
        for at in itertools.product(*(range(whole(w[2](value(d)))) for d in dims)):
            chosen = {value(d): value(n) for d, n in zip(dims, at, strict=True)}
            yield lambda d, chosen=chosen: chosen.get(d, value(0))


def _holds(held: Held, w: Any, layer: Any, r: Any, i: Any) -> bool:
    """Whether a rank has its own there."""
    return all(isinstance(kind, Full) or r(value(a)) == apply(w[3], [layer, value(a), value(kind.way), i])
               for a, kind in enumerate(held.lying) if isinstance(kind, (Full, Shard)))


def _coordinate(at: tuple[int, ...], a: Any) -> Any:
    axis = whole(a)
    return value(at[axis] if axis < len(at) else 0)


@functools.cache
def _text() -> str:
    return SEMANTICS.read_text(encoding="utf-8")
