"""One mesh with one choice of everything that the calculus leaves open: what each rank holds, in plain numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import Any

import z3

from placealg.arith import Monomial
from placealg.frozen import FrozenMap
from placealg.prover.calculus.contribution import EXISTS, SIZE_ONE, Equality, Term, Value, count_cell
from placealg.prover.calculus.positions import DEVICE, PEER, elsewhere, varies
from placealg.prover.evidence.symbols import names

Rank = Mapping[str, int]
GARBAGE = "garbage"
MICROBATCHES = 2


@lru_cache(maxsize=10_000)
def any_of(*about: Any) -> int:
    """A number that has nothing to do with those of other names, not even in its parity."""
    return int.from_bytes(hashlib.sha256(repr(about).encode()).digest()[:8])


@dataclass(frozen=True)
class World:
    """A mesh, and one choice of everything that is unknown. `named` fixes positions, `peers` what "peer" stands for."""

    sizes: FrozenMap[str, int]
    seed: int = 0
    named: FrozenMap[str, int] = FrozenMap()
    peers: FrozenMap[str, int] = FrozenMap()
    microbatches: int = MICROBATCHES

    def ranks(self) -> list[dict[str, int]]:
        return [dict(zip(self.sizes, at, strict=True)) for at in product(*(range(n) for n in self.sizes.values()))]

    def position(self, axis: str, name: str, rank: Rank) -> int:
        """The coordinate that a position names on a rank."""
        if name == DEVICE:
            return rank[axis]
        if name == PEER:
            return self.peers[axis]
        if name.isdigit():
            return int(name)
        if along := varies(name):
            name = elsewhere(name, along, str(rank[along]))
        if "^" in name:
            base, _, said = name.partition("^")
            along, _, place = said.partition("=")
            name = f"{base}^{along}={self.position(along, place, rank)}"
        if f"{axis}:{name}" in self.named:
            return self.named[f"{axis}:{name}"]
        return any_of(self.seed, axis, name) % self.sizes.get(axis, self.microbatches)

    def tokens(self, cell: Mapping[str, int]) -> int:
        """The tokens of one rank in one microbatch."""
        return 1 + any_of(self.seed, *sorted(cell.items())) % 7

    def symbol(self, name: str, rank: Rank) -> Fraction:
        """A size, or the tokens of a cell, summed along the axes that it does not fix."""
        cell = count_cell(name)
        if cell is None:
            return Fraction(self.microbatches if name == "m" else self.sizes[name])
        fixed = {a: self.position(a, p, rank) for a, p in cell.items()}
        free = [a for a in (*self.sizes, "microbatch") if a not in fixed]
        cells = ({**fixed, **dict(zip(free, at, strict=True))}
                 for at in product(*(range(self.sizes.get(a, self.microbatches)) for a in free)))
        return Fraction(sum(self.tokens(c) for c in cells))

    def number(self, monomial: Monomial, rank: Rank) -> Fraction:
        result = Fraction(monomial.coefficient)
        for name, power in monomial.powers:
            result *= self.symbol(name, rank) ** power
        return result

    def holds(self, condition: Equality, rank: Rank) -> bool:
        axis, p, q = condition
        if p == SIZE_ONE:
            return self.sizes[axis] == 1
        if p == EXISTS:
            return self.sizes[axis] > int(q)
        return self.position(axis, p, rank) == self.position(axis, q, rank)

    def stands(self, pairs: Iterable[tuple[str, str]], rank: Rank) -> bool:
        return all(rank[a] == self.position(a, p, rank) for a, p in pairs)

    def total(self, terms: Iterable[Term], rank: Rank) -> Fraction:
        return sum((self.number(t.coefficient, rank) for t in terms if self.stands(t.at.items(), rank)
                    and all(self.holds(e, rank) for e in t.given)), Fraction(0))

    def for_each_peer(self) -> Iterator[World]:
        """The world with each rank in turn as the peer."""
        return (replace(self, peers=FrozenMap(rank)) for rank in self.ranks())

    def on(self, value: Value, rank: Rank) -> Any:
        """What a rank holds: a number, garbage, or None. A condition on a peer is one on every peer."""
        if not value.held or not self.stands(value.mask, rank):
            return None
        if value.garbage or not all(w.holds(e, rank) for e in value.sides for w in self.for_each_peer()):
            return GARBAGE
        return self.total(value.terms, rank)

    def true(self, formula: Any, rank: Rank) -> bool:
        """Whether a formula of the solver holds on a rank."""
        def value(name: str) -> int:
            position, at, axis = name.rpartition("@")
            if not at or name.startswith("N["):
                return int(self.symbol(name, rank))
            return self.position(axis, position, rank)
        known = [(z3.Int(name), z3.IntVal(value(name))) for name in names(formula)]
        result = z3.simplify(z3.substitute(formula, *known) if known else formula)
        assert z3.is_true(result) or z3.is_false(result), result
        return z3.is_true(result)


WORLDS = [World(FrozenMap({"dp": dp, "tp": tp}), seed) for dp, tp in ((1, 2), (2, 1), (3, 2)) for seed in (1, 5, 7)]
"""Small meshes; of three ranks each is once the owner of the element at hand."""


def holds(formula: Any) -> bool:
    """Whether a formula holds on every rank of every world."""
    return all(world.true(formula, rank) for world in WORLDS for rank in world.ranks())
