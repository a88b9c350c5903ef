"""The contribution calculus: what a device's value is, as counted contributions, and how events change it.

A *term* is a coefficient times the indicator that the device is at given positions (positions.py). A *value* is a sum
of terms, with a mask (where it is held), side conditions (where it is defined) and the transforms applied to it. All
is plain data, canonical on construction, so that equal means equal; no solver is needed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from placealg.arith import ONE, Monomial
from placealg.frozen import FrozenMap
from placealg.prover.calculus.positions import DEVICE, PEER, Pairs, Position, elsewhere, is_rank, rank, varies

Equality = tuple[str, Position, Position]
"""(axis, position, position): the two positions are the same coordinate."""

SIZE_ONE = Position("=")
"""Marks the equality (axis, "=", "1"): the axis has one rank."""

EXISTS = Position("<")
"""Marks the condition (axis, "<", k): the axis has a rank k."""


def size_one(axis: str) -> Equality:
    """The condition that `axis` has a single rank."""
    return (axis, SIZE_ONE, rank(1))


def exists(axis: str, position: Position) -> frozenset[Equality]:
    """The condition that the axis has a rank at `position`: only a numeral above 0 can lie outside its axis."""
    return frozenset({(axis, EXISTS, position)}) if is_rank(position) and position != rank(0) else frozenset()


OPAQUE = "#opaque"
"""The prefix of symbols for sums over an axis that have no known closed form; no axis has such a name."""


def _moved(places: Mapping[str, Position], axis: str, there: Position) -> FrozenMap[str, Position]:
    """Places (axis -> position), evaluated on the rank at `there` along `axis`."""
    return FrozenMap({a: there if (a, p) == (axis, DEVICE) else elsewhere(p, axis, there) for a, p in places.items()})


_COUNT = re.compile(r"N(?:\((\w+)\))?\[(.*)\]")


def count_name(cell: Mapping[str, str], of: str = "") -> str:
    """The symbol of a number in a cell: axes (and `microbatch`) fixed at positions, others summed.

    It is one of the tokens that are followed, or of what else is counted: `samples`, or tokens of another loss.

    >>> count_name({"dp": "c", "microbatch": "unit"}), count_name({}, "samples")
    ('N[dp@c,microbatch@unit]', 'N(samples)[]')
    """
    inside = ",".join(f"{a}@{p}" for a, p in sorted(cell.items()))
    return f"N({of})[{inside}]" if of else f"N[{inside}]"


def count_cell(name: str) -> dict[str, Position] | None:
    """The cell of a count symbol, or None when `name` is another symbol."""
    found = _COUNT.fullmatch(name) if name.startswith("N") else None
    if found is None:
        return None
    pairs = (part.split("@") for part in found[2].split(",") if part)
    return {axis: Position(position) for axis, position in pairs}


def counts_of(name: str) -> str:
    """What a count symbol counts, as `count_name` has it.

    >>> counts_of("N[dp@c]"), counts_of("N(samples)[]")
    ('', 'samples')
    """
    found = _COUNT.fullmatch(name)
    return (found[1] or "") if found else ""


def each_cell(coefficient: Monomial, change: Callable[[dict[str, Position]], Mapping[str, Position]]) -> Monomial:
    """The coefficient with `change` applied to the cell of each of its counts."""
    changed = Monomial(coefficient.coefficient)
    for name, power in coefficient.powers:
        cell = count_cell(name)
        changed = changed * Monomial.of(name if cell is None else count_name(change(cell), counts_of(name))) ** power
    return changed


@lru_cache(maxsize=2**12)
def move(coefficient: Monomial, axis: str, position: Position) -> Monomial:
    """The coefficient, evaluated on the device at `position` along `axis`."""
    return each_cell(coefficient, lambda cell: _moved(cell, axis, position))


def depends(coefficient: Monomial, axis: str) -> bool:
    """Whether the coefficient differs between ranks along `axis`."""
    cells = [count_cell(name) or {} for name in coefficient.names()]
    return any(cell.get(axis) == DEVICE or any(varies(p) == axis for p in cell.values()) for cell in cells)


def _off(pairs: Pairs, axis: str) -> Pairs:
    """The pairs on other axes whose positions do not differ along `axis`."""
    return frozenset((a, p) for a, p in pairs if a != axis and varies(p) != axis)


def _differs(equality: Equality, axis: str) -> bool:
    """Whether the truth of an equality differs between ranks along an axis."""
    a, *places = equality
    return (a == axis and DEVICE in places) or any(varies(p) == axis for p in places)


def put(equality: Equality, axis: str, position: Position) -> Equality | None:
    """The equality with the device's coordinate on `axis` set to `position`; None if it has become true.

    If both positions become PEER, they name two arbitrary ranks: the equality then requires an axis of one rank.
    """
    a, *places = equality
    if not _differs(equality, axis):
        return equality
    p, q = sorted(position if x == DEVICE and a == axis else elsewhere(x, axis, position) for x in places)
    if p == q and position == PEER:
        return size_one(axis)
    return None if p == q else (a, p, q)


def _put_all(equalities: Iterable[Equality], axis: str, position: Position) -> frozenset[Equality]:
    return frozenset(e for e in (put(x, axis, position) for x in equalities) if e is not None)


def equality(axis: str, p: Position, q: Position) -> frozenset[Equality]:
    """The condition that two positions coincide: empty when they are the same name."""
    return frozenset() if p == q else frozenset({(axis, min(p, q), max(p, q))})


def stands_at(pairs: Iterable[tuple[str, Position]]) -> frozenset[Equality]:
    """The conditions that the device is at every (axis, position) pair.

    >>> sorted(stands_at([("dp", rank(0)), ("tp", DEVICE)]))
    [('dp', '0', 'c')]
    """
    return frozenset(e for axis, position in pairs for e in equality(axis, DEVICE, position))


@dataclass(frozen=True, slots=True)
class Term:
    """coefficient * product over `at` of [device stands at position] * product of the `given` equalities."""

    coefficient: Monomial
    at: FrozenMap[str, Position] = FrozenMap()
    given: frozenset[Equality] = frozenset()

    def times(self, factor: Monomial) -> Term:
        """The term scaled."""
        return replace(self, coefficient=self.coefficient * factor)

    def on(self, pairs: Pairs) -> Term:
        """The term on the ranks at all `pairs`, 0 elsewhere."""
        if not pairs:
            return self
        at, given = dict(self.at), self.given
        for axis, position in sorted(pairs):
            if at.setdefault(axis, position) != position:
                given |= equality(axis, at[axis], position)
        return replace(self, at=FrozenMap(at), given=given)

    def differs(self, axis: str) -> bool:
        """Whether ranks along `axis` count differently."""
        return axis in self.at or depends(self.coefficient, axis) or any(
            varies(p) == axis for p in self.at.values()) or any(_differs(e, axis) for e in self.given)

    def summed(self, axis: str) -> Term:
        """The sum over all ranks of `axis`: an indicator on it selects one rank, otherwise all ranks count alike."""
        at = FrozenMap({a: p for a, p in self.at.items() if a != axis})
        if axis in self.at and varies(self.at[axis]) != axis:
            position = self.at[axis]
            given = _put_all(self.given, axis, position) | exists(axis, position)
            return Term(move(self.coefficient, axis, position), _moved(at, axis, position), given)
        differs = any(_differs(e, axis) for e in self.given) or any(varies(p) == axis for p in self.at.values())
        if differs or depends(self.coefficient, axis):
            content = f"{axis}|{self.coefficient}|{sorted(self.at.items())}|{sorted(self.given)}".encode()
            unknown = Monomial.of(f"{OPAQUE}{hashlib.sha1(content).hexdigest()[:10]}")
            at = FrozenMap({a: p for a, p in at.items() if varies(p) != axis})
            return Term(unknown, at, frozenset(e for e in self.given if not _differs(e, axis)))
        return self.times(Monomial.of(axis))

    def read_at(self, axis: str, position: Position) -> Term:
        """The term's value on the rank at `position` along `axis`, as every rank receives it."""
        given = _put_all(self.given, axis, position)
        if axis in self.at:
            given |= equality(axis, elsewhere(self.at[axis], axis, position), position)
        at = _moved({a: p for a, p in self.at.items() if a != axis}, axis, position)
        return Term(move(self.coefficient, axis, position), at, given)


def merged(terms: Iterable[Term]) -> tuple[Term, ...]:
    """Like terms added, zero terms dropped, in a canonical order."""
    total: dict[tuple[object, ...], Term] = {}
    for term in terms:
        key = (term.coefficient.powers, frozenset(term.at.items()), term.given)
        if key in total:
            number = total[key].coefficient.coefficient + term.coefficient.coefficient
            term = replace(term, coefficient=Monomial(number, term.coefficient.powers))
        total[key] = term
    kept = [t for t in total.values() if t.coefficient.coefficient != 0]
    if len(kept) < 2:
        return tuple(kept)
    return tuple(sorted(kept, key=lambda t: (str(t.coefficient), sorted(t.at.items()), sorted(t.given))))


def sum_over(terms: Iterable[Term], axis: str, ranks: int = 0) -> tuple[Term, ...]:
    """The sum of terms over all ranks of an axis: in closed form, or written out if the number of ranks is given.

    >>> both = [Term(ONE, FrozenMap({"dp": "unit"}))]
    >>> sum_over(both, "dp") == sum_over(both, "dp", 3) == (Term(ONE),)
    True
    >>> sum_over([Term(ONE)], "dp", 3)[0].coefficient, sum_over([Term(ONE)], "dp")[0].coefficient
    (3, dp)
    """
    if not ranks:
        return merged(t.summed(axis) for t in terms)
    written = merged(t.read_at(axis, rank(k)) for t in terms for k in range(ranks))
    return merged(_counted(written, axis, ranks))


def _counted(terms: Iterable[Term], axis: str, ranks: int) -> Iterator[Term]:
    """Merge terms equal up to [p = k] that occur for every rank k of the axis: their guards sum to 1."""
    found: dict[tuple[Term, Position], list[int]] = {}
    for term in terms:
        placed = [((a, p, q), q, p) for a, p, q in term.given if a == axis and is_rank(p) and not is_rank(q)]
        if len(placed) != 1:
            yield term
            continue
        (stands, position, number), = placed
        found.setdefault((replace(term, given=term.given - {stands}), position), []).append(int(number))
    for (term, position), numbers in found.items():
        if sorted(numbers) == list(range(ranks)):
            yield term
        else:
            yield from (replace(term, given=term.given | equality(axis, position, rank(k))) for k in numbers)


@dataclass(frozen=True, slots=True)
class Slot:
    """A partial norm or a flag: how often ranks count (or check) an element, and the value that they count there.

    A flag needs one check or more. A norm with `apart` counts at a pipeline's ends only, until summed over that axis.
    """

    terms: tuple[Term, ...]
    counted: Value
    where: frozenset[tuple[str, Position]]
    defined: bool = True
    apart: str = ""

    def summed(self, axes: tuple[str, ...], mean: bool, unrolled: Mapping[str, int] = FrozenMap()) -> Slot:
        """The slot after an all_reduce over `axes`."""
        terms = self.terms
        for axis in axes:
            terms = sum_over(terms, axis, unrolled.get(axis, 0))
        factor = ONE / Monomial.of(*axes) if mean else ONE
        apart = "" if self.apart in axes else self.apart
        return replace(self, terms=merged(t.times(factor) for t in terms), apart=apart)


@dataclass(frozen=True, slots=True)
class Tag:
    """A nonlinear transform that was applied, with the norm that it used, as evaluated on the rank at `rank`."""

    name: str
    slot: Slot | None
    rank: FrozenMap[str, Position] = FrozenMap()
    mixed: bool = False

    def read_at(self, axis: str, position: Position) -> Tag:
        """The transform as it was on the rank at `position` along `axis`, as every rank receives it."""
        rank = _moved(self.rank, axis, position)
        return replace(self, rank=rank if axis in rank else rank.plus({axis: position}))


@dataclass(frozen=True, slots=True)
class Value:
    """A gradient-like value of the unit under scrutiny, on every rank at once.

    `mask` holds (axis, position) pairs: a rank holds the element iff it stands at all of them. `sides`
    must hold for what is held to be defined. `held` False: no rank holds it. `garbage`: held, never defined.
    `mixed`: ranks outside the mask that stand at these pairs may hold something else, about which nothing is claimed;
    None: no rank does. `zero`: what is held is 0, whatever the batch.
    """

    terms: tuple[Term, ...] = ()
    mask: frozenset[tuple[str, Position]] = frozenset()
    sides: frozenset[Equality] = frozenset()
    tags: tuple[Tag, ...] = ()
    held: bool = True
    garbage: bool = False
    mixed: Pairs | None = None
    zero: bool = False

    def stale(self) -> Value:
        """The value at the start of the next step: held by the same ranks; unless it is 0, its content is garbage."""
        if not self.held or (self.zero and not self.garbage and not self.tags):
            return self
        return Value(mask=self.mask, garbage=True, mixed=self.mixed)

    def scaled(self, factor: Monomial) -> Value:
        """The value times a factor."""
        return replace(self, terms=merged(t.times(factor) for t in self.terms))

    def scaled_on(self, factor: Monomial, pairs: Pairs) -> Value:
        """The value times a factor on the ranks at all `pairs`, unchanged elsewhere."""
        if pairs <= self.mask:
            return self.scaled(factor)
        changed = (t.on(pairs).times(by) for t in self.terms for by in (factor, Monomial.number(-1)))
        return replace(self, terms=merged((*self.terms, *changed)))

    def masked(self, pairs: Iterable[tuple[str, Position]]) -> Value:
        """The value held only where the device is at all `pairs` as well."""
        mask = self.mask.union(pairs)
        return self if len(mask) == len(self.mask) else replace(self, mask=mask)

    def plus(self, other: Value) -> Value:
        """`other` added where this value is held; undefined where `other` is not held."""
        if not self.held:
            return self
        if not other.held:
            return replace(self, garbage=True)
        missing = stands_at(other.mask - self.mask)
        tags = self.tags if self.tags == other.tags else (Tag("unequal", None, mixed=True),)
        return replace(self, terms=merged((*self.terms, *other.terms)), tags=tags,
                       sides=self.sides | other.sides | missing, garbage=self.garbage or other.garbage,
                       zero=self.zero and other.zero)

    def reduced(self, axes: tuple[str, ...], factor: Monomial, unrolled: Mapping[str, int] = FrozenMap()) -> Value:
        """The sum over `axes` on every rank, times `factor`: defined only where every peer holds the element.

        Along an axis of `unrolled` the sum is written out over that many ranks, otherwise it is in closed form.
        """
        if not self.held:
            return self
        value = self
        for axis in axes:
            ranks = unrolled.get(axis, 0)
            alone = {e for a, p in value.mask if a == axis
                     for e in (*exists(axis, p), *(() if ranks == 1 else (size_one(axis),)))}
            mask = frozenset((a, p) for a, p in value.mask if a != axis)
            other = frozenset(e for a, p in mask for e in equality(a, p, elsewhere(p, axis, PEER)))
            value = replace(
                value, terms=sum_over(value.terms, axis, ranks), mask=mask,
                mixed=frozenset() if other else None if value.mixed is None else _off(value.mixed, axis),
                tags=tuple(t.read_at(axis, PEER) for t in value.tags),
                sides=_put_all(value.sides, axis, PEER) | alone | other)
        return value.scaled(factor)

    def gathered(self, axes: Mapping[str, Position]) -> Value:
        """The value of the rank at the given positions, on every rank; undefined if that rank holds nothing."""
        if not self.held:
            return replace(self, held=True, garbage=True)
        value = self
        for axis, position in axes.items():
            lacking = exists(axis, position)
            lacking |= frozenset(e for a, p in value.mask if a == axis
                                 for e in equality(axis, elsewhere(p, axis, position), position))
            value = replace(
                value, terms=merged(t.read_at(axis, position) for t in value.terms),
                tags=tuple(t.read_at(axis, position) for t in value.tags),
                mask=frozenset((a, elsewhere(p, axis, position)) for a, p in value.mask if a != axis),
                mixed=None if value.mixed is None else _off(value.mixed, axis),
                sides=_put_all(value.sides, axis, position) | lacking)
        return value


ABSENT = Value(held=False)

STALE = Slot((), Value(garbage=True), frozenset(), defined=False)
"""A flag that an earlier step computed."""


def chosen(new: Value, old: Value, where: frozenset[tuple[str, Position]]) -> Value:
    """`new` on the ranks of `where`; what other ranks hold of `old` is `mixed`, so that nothing is claimed about it."""
    if not where or new == old:
        return new
    if not new.held:
        return replace(old, garbage=True, mixed=frozenset()) if old.held else new
    beyond = [region for region in (old.mask if old.held else None, old.mixed)
              if region is not None and not region >= where]
    beyond += [] if new.mixed is None else [new.mixed | where]
    return replace(new.masked(where), mixed=frozenset.intersection(*beyond) if beyond else None)


def excepted(new: Value, old: Value, pair: tuple[str, Position]) -> Value:
    """`new` on all ranks but those at an (axis, position) pair, which keep `old`: each counts on its own ranks.

    Where the two are not held by the same ranks, nothing is claimed of what is held.

    >>> summed = Value((Term(ONE),))
    >>> excepted(summed, summed, ("dp", rank(0))) == summed
    True
    >>> [t.coefficient for t in excepted(summed, replace(summed, zero=True, terms=()), ("dp", rank(0))).terms]
    [-1, 1]
    """
    if new == old:
        return new
    beyond = [region for region in (new.mixed, old.mixed) if region is not None]
    mixed = frozenset.intersection(*beyond) if beyond else None
    if new.held != old.held or new.mask != old.mask:
        return replace(new if new.held else old, garbage=True, mixed=frozenset())
    here = frozenset({pair})
    terms = (*new.terms, *(t.on(here).times(Monomial.number(-1)) for t in new.terms), *(t.on(here) for t in old.terms))
    tags = new.tags if new.tags == old.tags else (Tag("unequal", None, mixed=True),)
    return replace(new, terms=merged(terms), sides=new.sides | old.sides, tags=tags,
                   garbage=new.garbage or old.garbage, mixed=mixed, zero=new.zero and old.zero)


def per_element(value: Value, rename: Callable[[Position], Position], kept: tuple[str, ...] = ()) -> Value:
    """The value at another element: owner positions are renamed, except along the axes that are `kept`."""
    def term(t: Term) -> Term:
        cells = each_cell(t.coefficient, lambda cell: dict(map(at, cell.items())))
        return Term(cells, FrozenMap(dict(map(at, t.at.items()))), equalities(t.given))
    def at(pair: tuple[str, Position]) -> tuple[str, Position]:
        return pair if pair[0] in kept else (pair[0], rename(pair[1]))
    def equalities(given: frozenset[Equality]) -> frozenset[Equality]:
        return frozenset(e for a, p, q in given for e in (
            [(a, p, q)] if p in (SIZE_ONE, EXISTS) else equality(a, at((a, p))[1], at((a, q))[1])))
    mask = frozenset(map(at, value.mask))
    return replace(value, terms=merged(map(term, value.terms)), sides=equalities(value.sides), mask=mask)
