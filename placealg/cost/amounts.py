"""Amounts: numbers of elements per parameter group, opaque until a formula is written.

An amount is a linear form over (group, part): part `one` is one instance of the group's unit, `others` all further
instances. If all parts have the same weight, the form is a multiple of Psi; what one unit has beyond the others is a
multiple of Psi_unit if that unit is the largest; anything else is written in the model's own sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import sympy

from placealg.arith import Monomial, parse
from placealg.cost.algebra import tidy
from placealg.cost.divisibility import Divides
from placealg.cost.expressions import EXPRESSIONS, monomial, symbol
from placealg.cost.formula import Formula
from placealg.cost.held import Share
from placealg.cost.shards import Piece, filled, largest_share
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.mesh import SYMBOLS
from placealg.polynomial import Polynomial, R, Ring, add
from placealg.step.program import Group, Reference

Part = tuple[str, str, Share]
"""(group, `one` or `others`, the axes along which a share of it is padded to a whole number)."""

EXACT: Share = frozenset()
"""No axis: nothing is padded."""

Linear = Mapping[Part, Any]
"""Part -> SymPy coefficient."""

Buffer = tuple[str, str, str, Share]
"""(group, part, element size, share)."""

Tally = Counter[Buffer]
"""Buffer -> its number of occurrences: memory, before any symbol is made."""


@dataclass(frozen=True)
class Amounts:
    """The amounts of one reference, and the formulas made of them."""

    reference: Reference
    rules: tuple[Divides, ...] = ()
    largest: str = field(init=False)
    _sums: dict[Part, Polynomial] = field(default_factory=dict, init=False, repr=False, compare=False)
    _buffers: dict[Buffer, Polynomial] = field(default_factory=dict, init=False, repr=False, compare=False)
    _known: dict[Monomial, Monomial] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        numbers = {u.name: sum((self._number(g) for g in self.of_unit(u.name)), Fraction(0))
                   for u in self.reference.units}
        known = 0 not in numbers.values()
        one = next(iter(numbers), "") if len(numbers) == 1 else ""
        object.__setattr__(self, "largest", max(numbers, key=lambda u: numbers[u]) if known else one)

    def of_unit(self, unit: str) -> tuple[Group, ...]:
        """The groups that belong to `unit`."""
        return tuple(g for g in self.reference.groups if g.unit == unit)

    def _number(self, group: Group) -> Fraction:
        try:
            return sum((e.evaluate(self.reference.sizes) for e in group.elements), Fraction(0))
        except InputError:
            return Fraction(0)

    @cached_property
    def one(self) -> dict[str, Any]:
        """Group -> elements of one instance, in the model's sizes."""
        return {g.name: sympy.factor(sum((monomial(e) for e in g.elements), sympy.S.Zero))
                for g in self.reference.groups}

    @cached_property
    def all(self) -> dict[str, Any]:
        """Group -> elements of all instances; the one place that knows that abstract units sum to Psi."""
        if self.reference.abstract:
            return {g.name: symbol("Psi") for g in self.reference.groups}
        return {g.name: monomial(g.count) * self.one[g.name] for g in self.reference.groups}

    @cached_property
    def others(self) -> dict[str, Any]:
        """Group -> elements of all instances but one."""
        return {g.name: self.all[g.name] - self.one[g.name] for g in self.reference.groups}

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Every part there is: `others` only where a unit has more than one instance."""
        groups = self.reference.groups
        return (*((g.name, "one", EXACT) for g in groups),
                *((g.name, "others", EXACT) for g in groups if g.count != Monomial()))

    @cached_property
    def bulk(self) -> Part:
        """The part with most of the parameters, with free sizes taken as 16: Psi is written with its coefficient."""

        def size(part: Part) -> tuple[Fraction, bool]:
            terms = self.elements(part).terms.items()
            amount = sum((c * t.evaluate(dict.fromkeys(t.names(), 16)) for t, c in terms), Fraction(0))
            return amount, part[1] == "others"
        return max(self.parts, key=size)

    @cached_property
    def total(self) -> Any:
        """The number of parameters in the model's sizes."""
        return sum(self.all.values(), sympy.S.Zero)

    @cached_property
    def trained(self) -> Any:
        """The number of parameters that a step updates."""
        kept = [g.name for g in self.reference.groups if not g.frozen]
        return sum((self.all[name] for name in kept), sympy.S.Zero)

    @cached_property
    def values(self) -> FrozenMap[str, Fraction]:
        """The numbers that are known: types, microbatches (1 unless fixed), bound axes, the model's sizes, Psi.

        An interleaved pipeline takes microbatches in groups as large as the number of stages, so there m has no
        default.
        """
        ref = self.reference
        values = {n: s.default for n, s in SYMBOLS.items() if s.default is not None}
        values.update({n: parse(t).evaluate({}) for n, t in ref.types.items()})
        values.update({n: Fraction(size) for n, size in (*ref.mesh.sizes().items(), *ref.sizes.items())})
        if ref.pipeline.grouped:
            del values["m"]
        if ref.microbatches is not None:
            values["m"] = Fraction(ref.microbatches)
        if self.largest and self.named:
            bound = {symbol(n): size for n, size in ref.sizes.items()}
            total = self.total.subs(bound)
            if total.is_number:
                values["Psi"] = Fraction(int(total))
                values["Psi_unit"] = sum((self._number(g) for g in self.of_unit(self.largest)), Fraction(0))
        return FrozenMap(values)

    @cached_property
    def defined(self) -> FrozenMap[str, Any]:
        """The symbols that stand for amounts -> their definition in the model's sizes."""
        if self.reference.abstract or not self.named:
            return FrozenMap()
        units = {"Psi_unit": sum((self.one[g.name] for g in self.of_unit(self.largest)), sympy.S.Zero)}
        return FrozenMap({"Psi": self.total, **(units if self.largest else {})})

    @cached_property
    def named(self) -> bool:
        """Whether Psi and Psi_unit are written: not for a stage, which has only a part of the parameters."""
        return not self.reference.pipeline.axis

    def size(self, group: Group, name: str, ring: Ring[R]) -> R:
        """Bytes per element: a symbol, or the number that the group has in its place, or arithmetic over both."""
        found: R = _size(name, group.types, ring)
        return found

    def linear(self, tally: Tally, ring: Ring[Any] = EXPRESSIONS) -> dict[Part, Any]:
        """The coefficients of a tally of buffers: sizes over shares, summed."""
        form: dict[Part, Any] = {}
        for (name, part, size, share), count in tally.items():
            group = self.reference.group(name)
            cut = filled(self.reference, group, share)
            times = Monomial.number(count) / Monomial.of(*sorted(share - cut))
            term = ring.spread(self.size(group, size, ring) * ring.of(times))
            form[name, part, cut] = form[name, part, cut] + term if (name, part, cut) in form else term
        return form

    def write(self, form: Linear, name_unit: bool = False) -> tuple[Any, str]:
        """The expression of a linear form, and a note; `name_unit` writes the largest unit's excess in Psi_unit.

        There are two exact forms, a multiple of Psi with what differs from it, and a sum over groups: the shorter is
        taken.
        """
        weights = {part: form.get(part, sympy.S.Zero) for part in self.parts}
        base = weights[self.bulk] if self.named else sympy.S.Zero
        expr, note = self._write(weights, base, name_unit and self.named)
        if base != 0 and expr.free_symbols & self.sizes:
            expanded = self._write(weights, sympy.S.Zero, name_unit)
            expr, note = expanded if sympy.count_ops(expanded[0]) < sympy.count_ops(expr) else (expr, note)
        return expr + self._filled(form), note

    def _filled(self, form: Linear) -> Any:
        """The terms of a form whose shares are padded, as an expression."""
        total = sympy.S.Zero
        for name, cut in dict.fromkeys((name, cut) for name, _, cut in form if cut):
            group = self.reference.group(name)
            one, others = (form.get((name, part, cut), sympy.S.Zero) for part in ("one", "others"))
            count = monomial(group.count)
            times = one * count if one == others else one + others * (count - 1)
            total += tidy(times) * self.share(group, cut)
        return total

    def share(self, group: Group, cut: Share) -> Any:
        """Elements of the largest share of one instance, cut and padded along `cut`, in the model's sizes."""
        if not cut:
            return self.one[group.name]
        return sum((sympy.ceiling(sum(map(monomial, piece.lengths), sympy.S.Zero) / monomial(piece.ranks))
                    * monomial(piece.width) for piece in largest_share(self.reference, group, cut)), sympy.S.Zero)

    @cached_property
    def sizes(self) -> set[Any]:
        """The symbols of the model's sizes."""
        return set().union(*(e.free_symbols for e in self.one.values())) - {symbol("Psi_unit")}

    def of_group(self, group: Group, coefficient: Any, cut: Share) -> Any:
        """All instances of one group, with `coefficient` per element, as an expression; see `share` for `cut`."""
        if cut:
            return tidy(coefficient) * monomial(group.count) * self.share(group, cut)
        if self.reference.groups == (group,) and self.named:
            return tidy(coefficient) * symbol("Psi")
        return tidy(coefficient) * self.all[group.name]

    def _write(self, weights: Linear, base: Any, name_unit: bool) -> tuple[Any, str]:
        note = ""
        terms: dict[Any, Any] = {base: symbol("Psi")}
        for unit in self.reference.units:
            groups = self.of_unit(unit.name)
            names = {g.name for g in groups}
            extra = {p: _difference(w, base) for p, w in weights.items() if p[0] in names}
            first = {extra[n, "one", EXACT] for n in names}
            if name_unit and unit.name == self.largest and len(first) == 1 and self._stands_out(first, extra):
                more = first.pop()
                terms[more] = terms.get(more, sympy.S.Zero) + symbol("Psi_unit")
                extra = {p: e for p, e in extra.items() if p[1] == "others"}
                note = f"Psi_unit is the {unit.name}" if len(self.reference.units) > 1 else ""
            for group in groups:
                for coefficient, amount in self._instances(group, extra):
                    terms[coefficient] = terms.get(coefficient, sympy.S.Zero) + amount
        return sum((tidy(c) * amount for c, amount in terms.items() if c != 0), sympy.S.Zero), note

    def _stands_out(self, first: set[Any], extra: Linear) -> bool:
        return first != {0} and not any(e in first for (_, part, _), e in extra.items() if part == "others")

    def _instances(self, group: Group, extra: Linear) -> Iterator[tuple[Any, Any]]:
        one, others = (extra.get((group.name, part, EXACT)) for part in ("one", "others"))
        if one is not None and one == others:
            yield one, self.all[group.name]
            return
        if one is not None:
            yield one, self.one[group.name]
        if others is not None:
            yield others, self.others[group.name]

    def formula(self, form: Linear, unit: str, convention: str = "exact", name_unit: bool = False) -> Formula:
        """The Formula of a linear form."""
        expr, note = self.write(form, name_unit)
        return self.made(expr, unit, convention, note)

    def made(self, expr: Any, unit: str, convention: str = "exact", note: str = "") -> Formula:
        """A Formula with the reference's values and axes."""
        return Formula(expr, unit, convention, self.values, note=note, axes=self.reference.mesh.names,
                       defined=self.defined, rules=self.rules)

    def elements(self, part: Part) -> Polynomial:
        """The elements of a part as a sum of monomials: numbers if the model's sizes are known."""
        if part not in self._sums:
            self._sums[part] = self._sum(*part)
        return self._sums[part]

    def _sum(self, name: str, which: str, cut: Share) -> Polynomial:
        group = self.reference.group(name)
        if self.reference.abstract and which == "others":
            return Polynomial.name(f"{name} of the others")
        listed = [*map(self._opaque, largest_share(self.reference, group, cut))] if cut else group.elements
        one = Polynomial.of(map(self.known, listed))
        return one if which == "one" else Polynomial.of(self.known(m * group.count) for m in listed) - one

    def _opaque(self, piece: Piece) -> Monomial:
        """A piece as a monomial in which one factor is the name of a whole quotient."""
        lengths = " + ".join(str(self.known(length)) for length in piece.lengths)
        return Monomial.of(f"ceiling(({lengths})/({piece.ranks}))") * piece.width

    def known(self, value: Monomial) -> Monomial:
        """The monomial with the model's known sizes substituted."""
        if value not in self._known:
            self._known[value] = known(value, self.reference.sizes)
        return self._known[value]

    def known_sum(self, total: Polynomial) -> Polynomial:
        """A sum with the model's known sizes substituted."""
        found: dict[Monomial, Fraction] = {}
        for term, coefficient in total.terms.items():
            add(found, self.known(term), coefficient)
        return Polynomial.collected(found)

    def spelled(self, part: Part) -> Polynomial:
        """The elements of a part; for an abstract unit, `others` is written as Psi less one instance."""
        if self.reference.abstract and part[1] == "others":
            return Polynomial.name("Psi") - self.elements((part[0], "one", part[2]))
        return self.elements(part)

    def buffer(self, buffer: Buffer) -> Polynomial:
        """One buffer as a sum of monomials, in bytes."""
        if buffer not in self._buffers:
            name, part, size, share = buffer
            group = self.reference.group(name)
            cut = filled(self.reference, group, share)
            per = _bytes(size, group) / Monomial.of(*(share - cut))
            self._buffers[buffer] = self.elements((name, part, cut)).times(per)
        return self._buffers[buffer]


def known(value: Monomial, sizes: Mapping[str, int]) -> Monomial:
    """The monomial with the sizes that are numbers substituted.

    >>> known(Monomial.parse("h*L/tp"), {"h": 8})
    8*L/tp
    """
    free = Monomial.of()
    number = value.coefficient
    for name, power in value.powers:
        if name in sizes:
            number *= Fraction(sizes[name]) ** power
        else:
            free *= Monomial.of(name) ** power
    return Monomial.number(number) * free


def _bytes(size: str, group: Group) -> Monomial:
    """Bytes per element as a monomial; a difference of two symbols is one symbol of its own, which is not negative."""
    names = parse(size).names()
    if set(names) <= set(group.types):
        return Monomial.number(parse(size).evaluate({n: parse(group.types[n]).evaluate({}) for n in names}))
    return Monomial.of(size)


@lru_cache(4096)
def _size(size: str, types: FrozenMap[str, str], ring: Ring[Any]) -> Any:
    return ring.read(size, {n: ring.read(t, {}) for n, t in types.items()})


def _difference(a: Any, b: Any) -> Any:
    return sympy.S.Zero if a == b else a if b == 0 else sympy.expand(a - b)
