"""The solver's constants, and the one place where the calculus becomes solver terms.

Every size, coordinate and token count is an integer constant. Sizes and counts are positive; coordinates
lie inside their axis. Coefficients are sent as cleared polynomials: never a division, never an inverse.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from math import lcm
from typing import Any

import z3

from placealg.arith import ONE, Monomial
from placealg.prover.calculus.contribution import EXISTS, SIZE_ONE, Equality, Term, count_cell, counts_of
from placealg.prover.calculus.positions import DEVICE, LAST, UNIT, Position, excluded, is_rank, varies
from placealg.prover.evidence.logic import and_
from placealg.prover.evidence.solver import text_of
from placealg.step.event import MICROBATCH, SAMPLES_HERE

Bool = Any
Int = Any
_DECLARED = re.compile(r"\(declare-fun (\|[^|]*\||\S+) \(\) Int\)")
CELL = "#cell"
"""The number of tokens of a cell when all cells hold equally many; no axis can have this name."""


@lru_cache(maxsize=4096)
def size(axis: str) -> Int:
    """The size of an axis; of `microbatch`, the number of microbatches."""
    return z3.Int("m" if axis == MICROBATCH else axis)


@lru_cache(maxsize=4096)
def coordinate(axis: str, position: Position) -> Int:
    """A position along an axis, as an integer."""
    if is_rank(position):
        return z3.IntVal(int(position))
    if position == LAST:
        return size(axis) - 1
    return z3.Int(f"{position}@{axis}")


def place_of(name: str) -> tuple[str, Position] | None:
    """The (axis, position) of which a constant is the coordinate; None where it is a size or a count.

    >>> place_of(str(coordinate("dp", "own:own"))), place_of("dp"), place_of("N[dp@c]")
    (('dp', 'own:own'), None, None)
    """
    position, at, axis = name.partition("@")
    return (axis, Position(position)) if at and count_cell(name) is None else None


@lru_cache(maxsize=4096)
def varying(formula: Any) -> tuple[tuple[str, Position], ...]:
    """(axis, position) of the coordinates in a formula that differ from rank to rank; most formulas have none."""
    places = map(place_of, names(formula))
    return tuple(sorted(p for p in places if p and varies(p[1])))


def names(formula: Any) -> list[str]:
    """The names of the integer constants of a formula, each once, in order: those that its text declares."""
    return sorted(name.strip("|") for name in _DECLARED.findall(text_of([formula])))


def device(axis: str) -> Int:
    """The coordinate of the device under scrutiny."""
    return coordinate(axis, DEVICE)


@lru_cache(maxsize=4096)
def equal(pair: Equality) -> Bool:
    """An equality of the calculus as a solver formula."""
    axis, p, q = pair
    if p == EXISTS:
        return size(axis) > int(q)
    return size(axis) == 1 if p == SIZE_ONE else _meet(axis, p, q)


def _meet(axis: str, p: Position, q: Position) -> Bool:
    """Two positions are the same coordinate; one that is any rank but some is another one."""
    for one, other in ((p, q), (q, p)):
        if (out := excluded(one)) is not None:
            return coordinate(axis, out) != coordinate(axis, other)
    return coordinate(axis, p) == coordinate(axis, q)


def conjunction(pairs: Iterable[Equality]) -> Bool:
    """All of the equalities."""
    return _conjunction(tuple(sorted(pairs)))


@lru_cache(maxsize=4096)
def _conjunction(pairs: tuple[Equality, ...]) -> Bool:
    return and_([equal(e) for e in pairs])


def at_pairs(pairs: Iterable[tuple[str, Position]]) -> Bool:
    """The device is at every (axis, position) pair."""
    return _at_pairs(tuple(sorted(pairs)))


@lru_cache(maxsize=4096)
def _at_pairs(pairs: tuple[tuple[str, Position], ...]) -> Bool:
    return and_([_meet(a, DEVICE, p) for a, p in pairs])


def indicator(term: Term) -> Bool:
    """The condition under which the term counts."""
    return and_(at_pairs(term.at.items()), conjunction(term.given))


@lru_cache(maxsize=4096)
def symbol(name: str) -> Int:
    """A size, `m`, a token count or an opaque sum as an integer constant."""
    return z3.Int(name)


def product(monomial: Monomial) -> Int:
    """A monomial without denominators, as an integer term."""
    factors = [symbol(name) for name, power in monomial.powers for _ in range(power)]
    number = int(monomial.coefficient)
    return z3.Product([z3.IntVal(number), *factors] if number != 1 else factors) if factors else z3.IntVal(number)


def equals(terms: Iterable[Term], want: Monomial) -> Bool:
    """sum of terms = want, multiplied by the denominators of both; the divisors of a term that counts are not zero."""
    return _equals(tuple(terms), want)


@lru_cache(maxsize=4096)
def _equals(listed: tuple[Term, ...], want: Monomial) -> Bool:
    ours, theirs = _denominator(t.coefficient for t in listed), _denominator([want])
    divides = [z3.Implies(indicator(t), and_([symbol(n) >= 1 for n, p in t.coefficient.powers
                                              if p < 0 and count_cell(n) is not None])) for t in listed]
    got = z3.Sum([z3.IntVal(0), *(z3.If(indicator(t), product(t.coefficient * ours), z3.IntVal(0)) for t in listed)])
    return and_(got * product(theirs) == product(want * theirs) * product(ours), *divides)


def _denominator(monomials: Iterable[Monomial]) -> Monomial:
    number, powers = 1, dict[str, int]()
    for monomial in monomials:
        number = lcm(number, monomial.coefficient.denominator)
        for name, power in monomial.powers:
            powers[name] = max(powers.get(name, 0), -power)
    return Monomial(Fraction(number), tuple(sorted((n, p) for n, p in powers.items() if p)))


def clear_counts(monomial: Monomial, axes: tuple[str, ...]) -> Monomial:
    """The monomial if all cells hold equally many tokens: every count of them becomes its number of cells times CELL.

    The cells are those of `axes`; every other axis divides the tokens of a cell evenly.
    """
    cleared = Monomial(monomial.coefficient)
    for name, power in monomial.powers:
        cell = count_cell(name)
        factor = Monomial.of(name)
        if cell is not None and not counts_of(name):
            factor = Monomial.of(CELL)
            for axis in axes:
                if axis not in cell:
                    factor = factor * Monomial.of("m" if axis == MICROBATCH else axis)
            for axis in cell:
                if axis not in axes:
                    factor = factor / Monomial.of(axis)
        cleared = cleared * factor**power
    return cleared


def ranges(axes: Iterable[str], positions: Iterable[tuple[str, Position]]) -> list[Bool]:
    """Sizes are at least 1; every (axis, position) lies inside its axis."""
    premises = [size(a) >= 1 for a in axes]
    for axis, position in sorted(set(positions)):
        premises += _inside(axis, position)
    return premises


@lru_cache(maxsize=4096)
def _inside(axis: str, position: Position) -> tuple[Bool, Bool]:
    here = coordinate(axis, position)
    return here >= 0, here < size(axis)


def count_premises(names: Iterable[str]) -> list[Bool]:
    """Token counts are realisable: monotone in the cell, functions of the cell, positive in the unit's own cell."""
    cells = {n: count_cell(n) or {} for n in sorted(set(names))}
    here = ("", SAMPLES_HERE)  # the unit is a token, of a sample; of another loss there may be none
    premises = [symbol(n) >= (1 if set(c.values()) <= {UNIT} and counts_of(n) in here else 0)
                for n, c in cells.items()]
    for small, inner in cells.items():
        for large, outer in cells.items():
            if small == large or not set(outer) <= set(inner) or counts_of(small) != counts_of(large):
                continue
            together = [coordinate(a, inner[a]) == coordinate(a, outer[a]) for a in outer if inner[a] != outer[a]]
            alone = [size(a) == 1 for a in inner if a not in outer]
            premises.append(z3.Implies(and_(together), symbol(small) <= symbol(large)))
            premises.append(z3.Implies(and_([*together, *alone]), symbol(small) == symbol(large)))
    return premises


__all__ = ["MICROBATCH", "ONE", "at_pairs", "clear_counts", "conjunction", "coordinate", "count_premises", "device",
           "equal", "equals", "indicator", "product", "ranges", "size", "symbol"]
