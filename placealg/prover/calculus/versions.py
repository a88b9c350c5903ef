"""Versions: which copy of a state a device holds, as a function of the device's position.

A version is an ordered decision diagram over equalities of positions: plain data, canonical on construction, so that
two versions are the same function iff they are equal. A leaf is the reference's CURRENT copy (of the start of the
step), its NEXT, GARBAGE, UNHELD (nothing is held), or a copy that is right provided that certain updates were right.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from placealg.frozen import FrozenMap
from placealg.prover.calculus.contribution import Equality
from placealg.prover.calculus.positions import DEVICE, Pairs, Position, elsewhere, is_rank

CURRENT, NEXT, GARBAGE, UNHELD = 0, 1, -1, -2


Guards = frozenset[tuple[str, FrozenMap[str, Position]]]
"""Updates, each with the rank on which it must have been right."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """`version` if every update in `updates` was right on the rank given with it, else GARBAGE."""

    updates: Guards
    version: int


Leaf = int | Guarded


@dataclass(frozen=True, slots=True)
class Choice:
    """`yes` where the equality holds, `no` elsewhere."""

    test: Equality
    yes: Version
    no: Version
    mark: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mark", hash((self.test, self.yes, self.no)))

    def __hash__(self) -> int:
        return self.mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Choice, (self.test, self.yes, self.no)


Version = Leaf | Choice


def _cofactor(version: Version, test: Equality, holds: bool) -> Version:
    if isinstance(version, Choice) and version.test == test:
        return version.yes if holds else version.no
    return version


@lru_cache(maxsize=2**16)
def choose(test: Equality, yes: Version, no: Version) -> Version:
    """The diagram that is `yes` where `test` holds and `no` elsewhere, in canonical form.

    >>> here = ("dp", "c", "own:own")
    >>> choose(here, choose(here, CURRENT, GARBAGE), UNHELD) == choose(here, CURRENT, UNHELD)
    True
    """
    _, p, q = test
    if is_rank(p) and is_rank(q):
        return yes if p == q else no
    if yes == no:
        return yes
    tests = [v.test for v in (yes, no) if isinstance(v, Choice)]
    if not tests:
        return Choice(test, yes, no)
    top = min([test, *tests])
    if top == test:
        yes, no = _cofactor(yes, test, True), _cofactor(no, test, False)
        return yes if yes == no else Choice(test, yes, no)
    branches = [choose(test, _cofactor(yes, top, side), _cofactor(no, top, side)) for side in (True, False)]
    return branches[0] if branches[0] == branches[1] else Choice(top, *branches)


def where(pairs: Iterable[tuple[str, Position]], yes: Version, no: Version) -> Version:
    """`yes` on the devices at every (axis, position) pair, `no` on the others."""
    return _where(frozenset(pairs), yes, no)


@lru_cache(maxsize=2**16)
def _where(pairs: Pairs, yes: Version, no: Version) -> Version:
    result = yes
    for axis, position in sorted(pairs, reverse=True):
        result = choose((axis, min(DEVICE, position), max(DEVICE, position)), result, no)
    return result


def each(version: Version, change: Callable[[Leaf], Leaf]) -> Version:
    """The diagram with `change` applied to every leaf."""
    if isinstance(version, Choice):
        return choose(version.test, each(version.yes, change), each(version.no, change))
    return change(version)


@lru_cache(maxsize=2**16)
def every(version: Version, change: Callable[[Leaf], Leaf]) -> Version:
    """`each`, for a change that is asked for again and again."""
    return each(version, change)


def both(one: Version, two: Version, join: Callable[[Leaf, Leaf], Leaf]) -> Version:
    """The diagram of `join` applied to the leaves of two diagrams, position by position."""
    if isinstance(one, Choice):
        return choose(one.test, both(one.yes, _cofactor(two, one.test, True), join),
                      both(one.no, _cofactor(two, one.test, False), join))
    return each(two, lambda leaf: join(one, leaf))


@lru_cache(maxsize=2**16)
def read_at(version: Version, axis: str, position: Position) -> Version:
    """The version held by the rank at `position` along `axis`, as every rank receives it."""
    if isinstance(version, Choice):
        yes, no = read_at(version.yes, axis, position), read_at(version.no, axis, position)
        a, *places = version.test
        there = [position if x == DEVICE and a == axis else elsewhere(x, axis, position) for x in places]
        if there == places:
            return choose(version.test, yes, no)
        p, q = sorted(there)
        return yes if p == q else choose((a, p, q), yes, no)
    if isinstance(version, Guarded):
        return Guarded(frozenset((u, _rank_at(rank, axis, position)) for u, rank in version.updates), version.version)
    return version


def somewhere(version: Version, wanted: int) -> Version:
    """The version on some rank that holds `wanted`, searched among the ranks at the positions that the version tests.

    If none of them holds it, the version on the first of them.

    >>> owner, first, same = ("dp", "c", "own:own"), ("dp", "0", "c"), ("dp", "0", "own:own")
    >>> somewhere(choose(owner, NEXT, GARBAGE), NEXT)
    1
    >>> somewhere(choose(first, choose(owner, NEXT, GARBAGE), UNHELD), NEXT) == choose(same, NEXT, GARBAGE)
    True
    """
    asked = places(version)
    found: Version | None = None
    for chosen in itertools.product(*asked.values()):
        here = version
        for axis, position in zip(asked, chosen, strict=True):
            here = read_at(here, axis, position)
        found = here if found is None else either(found, here, wanted)
    assert found is not None
    return found


def places(version: Version) -> dict[str, list[Position]]:
    """Axis -> the positions with which the version compares the device's coordinate."""
    asked: dict[str, set[Position]] = {}
    for axis, *pair in _questions(version):
        if DEVICE in pair:
            asked.setdefault(axis, set()).update(p for p in pair if p != DEVICE)
    return {axis: sorted(asked[axis]) for axis in sorted(asked)}


def either(one: Version, two: Version, wanted: int) -> Version:
    """Position by position, the one of two versions that is `wanted` if every update was right.

    It is the first if both are or neither is.
    """
    return both(one, two, lambda a, b: b if trusted(b) == wanted != trusted(a) else a)


def _questions(version: Version) -> set[Equality]:
    """The equalities on which a version depends."""
    if not isinstance(version, Choice):
        return set()
    return {version.test} | _questions(version.yes) | _questions(version.no)


def _rank_at(rank: FrozenMap[str, Position], axis: str, position: Position) -> FrozenMap[str, Position]:
    """The rank of an update, evaluated on the rank at `position` along `axis`."""
    moved = FrozenMap({a: elsewhere(p, axis, position) for a, p in rank.items()})
    return moved if axis in moved else moved.plus({axis: position})


def kept(leaf: Leaf) -> Leaf:
    """What the next step finds of a value that no step changes: CURRENT and UNHELD stay, everything else is garbage."""
    return leaf if leaf in (CURRENT, UNHELD) else GARBAGE


def aged(leaf: Leaf) -> Leaf:
    """What the next step finds: NEXT has become CURRENT, UNHELD stays, everything else is garbage."""
    if isinstance(leaf, Guarded):
        return Guarded(leaf.updates, CURRENT) if leaf.version == NEXT else GARBAGE
    return {NEXT: CURRENT, UNHELD: UNHELD}.get(leaf, GARBAGE)


def trusted(leaf: Leaf) -> Leaf:
    """The version of a leaf if every update was right."""
    return leaf.version if isinstance(leaf, Guarded) else leaf
