"""The sizes over which a comparison is decided: positive integers and rationals, whole quotients, premises.

Sizes that depend on each other are expressed by free ones: if a/kv is an integer, a is kv times another size; if tp >=
2, tp is 2 and a rest. Every allowed value of the original sizes comes from some value of the free ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from random import Random

from placealg.arith import Monomial
from placealg.polynomial import REST, Polynomial

RELATIONS = (">=", ">", "==")
"""The relations of a premise to 0."""

Premise = tuple[Polynomial, str]
"""A sum, and its relation to 0."""

_SMALL = (1, 2, 3, 4, 8, 16, 64, 1024, 8192, 10**6)
_RATIONAL = tuple(Fraction(t) for t in ("1", "2", "4", "12", "1/2", "1/8", "1/1000", "1000"))


@dataclass(frozen=True, slots=True)
class Domain:
    """The allowed sizes: `rational` names are positive rationals, all others integers of at least 1.

    The quotients in `whole` are positive integers, and the `premises` hold.
    """

    whole: tuple[Monomial, ...] = ()
    premises: tuple[Premise, ...] = ()
    rational: frozenset[str] = frozenset()

    def allows(self, sizes: Mapping[str, Fraction]) -> bool:
        """Whether sizes belong to the domain, evaluated exactly."""
        return (all(v > 0 and (n in self.rational or v.denominator == 1) for n, v in sizes.items())
                and all((v := m.evaluate(sizes)) >= 1 and v.denominator == 1 for m in self.whole)
                and all(_stands(p.evaluate(sizes), relation) for p, relation in self.premises))

    def names(self) -> set[str]:
        """The sizes that are constrained."""
        return {n for m in self.whole for n in m.names()} | {n for p, _ in self.premises for n in p.names()}

    def whole_names(self, names: Iterable[str]) -> bool:
        """Whether all the names are integers."""
        return not any(n.rstrip(REST) in self.rational for n in names)


def _stands(value: Fraction, relation: str) -> bool:
    return value == 0 if relation == "==" else value > 0 if relation == ">" else value >= 0


@dataclass(frozen=True, slots=True)
class Freed:
    """The sizes of a domain expressed by free ones, step by step: each step substitutes a sum for one size."""

    domain: Domain
    steps: tuple[tuple[str, Polynomial], ...]

    def same_sign(self, value: Polynomial) -> Polynomial:
        """A sum in the free sizes, without denominators, that has the same sign as `value` everywhere."""
        for name, put in self.steps:
            value = value.cleared().put(name, put)
        return value.cleared()

    def written(self, name: str) -> Polynomial:
        """One size, expressed by the free ones."""
        value = Polynomial.name(name)
        for step, put in self.steps:
            value = value.put(step, put)
        return value

    def free(self, names: Iterable[str]) -> tuple[str, ...]:
        """The free sizes that express `names`."""
        found = dict.fromkeys(n for name in names for n in self.written(name).names())
        return tuple(found)

    def sizes(self, names: Iterable[str], free: Mapping[str, Fraction]) -> dict[str, Fraction]:
        """The original sizes, at values of the free ones."""
        known = dict(free)
        for name, put in reversed(self.steps):
            known[name] = put.evaluate(known)
        return {n: known[n] for n in names}


def freed(domain: Domain) -> Freed:
    """The sizes of a domain expressed by free ones, as far as its premises allow.

    >>> domain = Domain((Monomial.parse("a/kv"),), ((Polynomial.of([Monomial.of("tp"), Monomial.number(-2)]), ">="),))
    >>> freed(domain).steps
    (('a', a/kv*kv), ('tp', tp' + 2))
    """
    result = Freed(domain, ())
    for quotient in domain.whole:
        now = quotient
        for step, put in result.steps:
            (rest,) = put.monomials()
            power = dict(now.powers).get(step, 0)
            now = now / Monomial.of(step) ** power * rest**power
        above = [n for n, p in now.powers if p > 0]
        if len(above) == 1 and dict(now.powers)[above[0]] == 1 and "/" not in above[0]:
            rest = Monomial.of(above[0]) / now * Monomial.of(str(quotient))
            result = Freed(domain, (*result.steps, (above[0], Polynomial.of([rest]))))
    for premise, relation in domain.premises:
        found = _step(result.same_sign(premise), relation, domain)
        if found:
            result = Freed(domain, (*result.steps, found))
    return result


def _step(premise: Polynomial, relation: str, domain: Domain) -> tuple[str, Polynomial] | None:
    """The size that a premise bounds from below or determines, and its substitute: the bound, and a rest if needed."""
    for sum_ in (premise, -premise) if relation == "==" else (premise,):
        for name in sum_.names():
            by = sum_.coefficient(name).monomials()
            if sum_.powers(name) != {1} or len(by) != 1 or by[0].powers or by[0].coefficient < 0 \
                    or name.endswith(REST):
                continue
            one = relation == ">" and domain.whole_names(sum_.names())
            bound = -(sum_.without(name) - Polynomial.number(int(one))).times(Monomial.number(1 / by[0].coefficient))
            if not any(c > 0 for c in bound.terms.values()):
                continue
            rest = Polynomial.of([Monomial.of(name + REST) * Monomial.number(1 / by[0].coefficient)])
            return name, bound if relation == "==" else bound + rest
    return None


def points(free: tuple[str, ...], rational: frozenset[str], many: int) -> Iterator[dict[str, Fraction]]:
    """Values of free sizes to try: the least, then one of them larger, then random ones; the same every time."""
    least = {n: Fraction(0 if n.endswith(REST) else 1) for n in free}
    values = {n: _RATIONAL if n.rstrip(REST) in rational else tuple(map(Fraction, _SMALL)) for n in free}
    yield least
    for name in free:
        for value in values[name]:
            yield {**least, name: value}
    draw = Random(0)
    for k in range(many):
        top = 3 + k % (len(_SMALL) - 2)
        yield {n: draw.choice((least[n], *values[n][:top])) for n in free}


def smaller(value: Fraction, least: Fraction) -> Iterator[Fraction]:
    """Smaller values to try for a value, the least first."""
    found = dict.fromkeys([least, *(Fraction(n) for n in (1, 2, 3, 4, 8, 16, 64, 1024)), Fraction(value // 2)])
    return iter([v for v in found if least <= v < value])
