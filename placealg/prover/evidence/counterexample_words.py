"""Weights in words: coordinates in a solver's model, the weight of a value there, and its ratio to the reference.

Read `contribution.py` first: positions, terms, values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from placealg.arith import ONE, Monomial
from placealg.polynomial import Polynomial
from placealg.prover import correct
from placealg.prover.calculus.contribution import (
    EXISTS,
    OPAQUE,
    SIZE_ONE,
    Equality,
    Term,
    Value,
    count_cell,
    counts_of,
    merged,
)
from placealg.prover.calculus.places import ELEMENTS, PADDED
from placealg.prover.calculus.positions import (
    DEVICE,
    LAST,
    UNIT,
    Position,
    contracted_dim,
    dim_of,
    excluded,
    is_contracted,
    is_owner,
    is_rank,
    layout_of,
)
from placealg.prover.calculus.versions import CURRENT, GARBAGE, NEXT, UNHELD, Choice, Guarded, Version
from placealg.prover.evidence import symbols
from placealg.prover.evidence.symbols import CELL
from placealg.step.event import SAMPLES_HERE
from placealg.step.program import Reference

HELD = {CURRENT: "the copy of the step's start", NEXT: "the updated copy", GARBAGE: "a stale or undefined copy",
        UNHELD: "nothing: the element is not held"}
OPAQUE_SUM = "s"
_SUM_SAYS = "is a sum over ranks, of weights that differ from rank to rank"


@dataclass(frozen=True, slots=True)
class ModelPlaces:
    """The coordinates of positions in one model; a position that the model leaves open has coordinate 0."""

    model: Mapping[str, int]
    sizes: dict[str, int]

    def coordinate(self, axis: str, position: Position) -> int:
        """The coordinate of a position along an axis."""
        if position == LAST:
            return self.sizes.get(axis, 1) - 1
        return int(position) if is_rank(position) else self.model.get(f"{position}@{axis}", 0)

    def unit(self, axis: str) -> int:
        """The rank along an axis that computed the unit, or that owns the contracted index."""
        places = [n for n in self.model if n == f"{UNIT}@{axis}" or (n.startswith("path") and n.endswith(f"@{axis}"))]
        return self.model[places[0]] if places else 0

    def where_wrong(self, value: Value, want: Monomial, weighting: correct.Weighting) -> ModelPlaces:
        """The same model with the device on a rank that holds the value.

        It is unchanged if nobody holds the value, or if its weight there is the wanted one.
        """
        if not value.held:
            return self
        held = {f"{DEVICE}@{a}": self.coordinate(a, p) for a, p in value.mask}
        there = replace(self, model={**self.model, **held})
        counted = [weighting(t.coefficient) for t in value.terms
                   if all(there.holds((a, DEVICE, p)) for a, p in t.at.items()) and all(map(there.holds, t.given))]
        return self if counted == [weighting(want)] else there

    def where_absent(self, value: Value) -> ModelPlaces:
        """The same model with the device on the element's owner by some layout, where it does not hold the value.

        It is unchanged if there is no such layout.
        """
        layouts = sorted({p for n in self.model for _, p in [symbols.place_of(n) or ("", DEVICE)] if is_owner(p)})
        owners = [{f"{DEVICE}@{a}": self.coordinate(a, layout) for a, p in value.mask if is_owner(p)}
                  for layout in layouts]
        there = (replace(self, model={**self.model, **device}) for device in owners)
        return next((place for place in there if not place.held(value)), self)

    def ranks(self, axis: str, reference: Reference) -> Monomial:
        """The number of ranks along an axis: a symbol, or a number for the ends of a pipeline."""
        return Monomial.of(axis) if axis in reference.mesh.names else Monomial.number(self.sizes[axis])

    def holds(self, test: Equality) -> bool:
        """Whether an equality of positions, or a condition on an axis, is true in the model."""
        axis, p, q = test
        if p == EXISTS:
            return self.sizes[axis] > int(q)
        if p == SIZE_ONE:
            return self.sizes[axis] == 1
        for one, other in ((p, q), (q, p)):
            if (out := excluded(one)) is not None:
                return self.coordinate(axis, out) != self.coordinate(axis, other)
        return self.coordinate(axis, p) == self.coordinate(axis, q)

    def leaf(self, version: Version) -> str:
        """Which copy the device holds, in words."""
        while isinstance(version, Choice):
            version = version.yes if self.holds(version.test) else version.no
        return HELD[version.version if isinstance(version, Guarded) else version]

    def held(self, value: Value) -> bool:
        """Whether the device holds the value."""
        return value.held and all(self.holds((a, DEVICE, p)) for a, p in value.mask)

    def defined(self, value: Value) -> bool:
        """Whether the device holds the value, and it is not garbage."""
        return self.held(value) and not value.garbage and all(self.holds(e) for e in value.sides)


def right(terms: tuple[Term, ...], want: Monomial, weighting: correct.Weighting) -> bool:
    """Whether the terms equal the wanted weight on every rank and in every model, compared as data."""
    return merged(Term(weighting(t.coefficient), t.at, t.given) for t in terms) == merged([Term(weighting(want))])


def scattered(terms: tuple[Term, ...]) -> bool:
    """Whether the weight differs between ranks, units or elements."""
    return any(t.at or t.given for t in terms)


def got(terms: tuple[Term, ...], weighting: correct.Weighting) -> str:
    """The weight in words: where all its conditions are true, and where none is.

    >>> from placealg.frozen import FrozenMap
    >>> one, own = Term(ONE), Term(ONE, FrozenMap({"dp": UNIT}))
    >>> got((one,), lambda w: w), got((own,), lambda w: w)
    ('1', "1 on the device's own units, 0 on the others")
    >>> got((Term(ONE, given=frozenset({("dp", "own:even", "own:own")})),), lambda w: w)
    "1 where along dp the element's owner by 'even' is its owner, 0 elsewhere"
    """
    return _by_case(terms, weighting, str)


def _by_case(terms: tuple[Term, ...], weighting: correct.Weighting, say: Callable[[str], str]) -> str:
    """The weight in words, each of its numbers put into words by `say`."""
    whole = told_sum([weighting(t.coefficient) for t in terms])
    free = told_sum([weighting(t.coefficient) for t in terms if not t.at and not t.given])
    if whole == free:
        opaque = any(name.startswith(OPAQUE) for t in terms for name in t.coefficient.names())
        return f"{say(whole)}, where {OPAQUE_SUM} {_SUM_SAYS}" if opaque else say(whole)
    conditions = sorted({e for t in terms for e in t.given})
    if not conditions:
        return f"{say(whole)} on the device's own units, {say(free)} on the others"
    said = [_condition(e) for e in conditions]
    if any(t.at for t in terms):
        said.append("the unit is the device's own")
    return f"{say(whole)} where {' and '.join(said)}, {say(free)} elsewhere"


def times(terms: tuple[Term, ...]) -> str:
    """How often contributions are counted, in words.

    >>> times((Term(ONE),)), times((Term(Monomial.of("tp")),)), times(())
    ('once', 'tp times', 'never')
    >>> times((Term(ONE, given=frozenset({("tp", "=", "1")})),))
    'once where tp has one rank, never elsewhere'
    """
    if scattered(terms) and all(t.coefficient == ONE and t.at and not t.given for t in terms):
        return "only on the rank that computed them"
    return _by_case(terms, lambda weight: weight, lambda n: {"0": "never", "1": "once"}.get(n, f"{n} times"))


def _condition(equality: Equality) -> str:
    """An equality of positions in words."""
    axis, p, q = equality
    if p == SIZE_ONE:
        return f"{axis} has one rank"
    if p == EXISTS:
        return f"{axis} has a rank {q}"
    if is_contracted(p) and is_contracted(q):
        dims = " and ".join(sorted({contracted_dim(x) for x in (p, q)}))
        return f"two indices that were summed over, of {dims}, have one owner along {axis}"
    first, second = sorted((_position(p), _position(q)), key=lambda text: (text in _LAST, text))
    return f"along {axis} {first} is {second}"


_LAST = ("its owner", "the device")
"""Positions that come second in a sentence."""


def _position(position: Position) -> str:
    """A position along an axis in words."""
    if is_rank(position):
        return f"rank {position}"
    if (out := excluded(position)) is not None:
        return f"any rank but {_position(out).removeprefix('rank ')}"
    if layout := layout_of(position):
        return "its owner" if layout == "own" else f"the element's owner by '{layout}'"
    if is_contracted(position):
        return f"the owner of the index of {contracted_dim(position)} that was summed over"
    dim = dim_of(position)
    said: Mapping[str, str] = {LAST: "the last rank", DEVICE: "the device", UNIT: "the unit's rank"}
    return f"the owner of its index of {dim}" if dim else said.get(position, position)


def told_sum(parts: Iterable[Monomial]) -> str:
    """A sum of weights in words; "0" if it is empty."""
    return " + ".join(tell(p) for p in parts).replace(" + -1*", " - ").replace(" + -", " - ") or "0"


def told_ratio(ratio: Polynomial) -> str:
    """A ratio in words: what all its terms are divided by, where m is, stands behind their sum.

    >>> told_ratio(Polynomial.read("2 - 1/m")), told_ratio(Polynomial.read("dp - 1"))
    ('(2*m - 1)/m', 'dp - 1')
    """
    def told(total: Polynomial) -> str:
        return told_sum(sorted(total.monomials(), key=lambda part: not part.powers))

    if len(ratio.terms) > 1 and min(ratio.powers("m"), default=0) == -1:
        return f"({told(ratio.times(Monomial.of('m')))})/m"
    return told(ratio)


def _of_sequences(position: Position) -> bool:
    """Whether a position is where whole sequences are."""
    return position == UNIT or (contracted_dim(position) if is_contracted(position) else dim_of(position)) == "batch"


def mass(terms: tuple[Term, ...], want: Monomial, reference: Reference, place: ModelPlaces) -> Polynomial | None:
    """sum of got / sum of want over the unit class under equal counts, in the axis sizes.

    None if a term has no closed form, counts tokens, or depends on where sequences are along an axis that splits no
    data: the program cuts a microbatch there by itself, and a rank may have none of its sequences.
    """
    weighting = correct.equal_counts(reference)
    total = Polynomial()
    for term in terms:
        part = Polynomial.of([weighting(term.coefficient) / weighting(want)])
        for axis in sorted({*term.at, *(a for a, _, _ in term.given)}):
            said = [(p, q) for a, p, q in (*term.given, *((a, DEVICE, p) for a, p in term.at.items())) if a == axis]
            if axis not in reference.data_axes and any(map(_of_sequences, {p for pair in said for p in pair})):
                return None
            part = part * _share(axis, said, place.ranks(axis, reference), place)
        total = total + part
    kept = total.monomials()
    if any(OPAQUE in str(p) or any(count_cell(n) is not None for n in p.names()) for p in kept):
        return None
    return total


def _share(axis: str, equal: Iterable[tuple[Position, Position]], size: Monomial, place: ModelPlaces) -> Polynomial:
    """The share of units, and of elements, at which all these positions along an axis are equal, in its size.

    Where a unit is computed, and who owns an element or an index, is any rank, and none of these depends on another;
    the other positions stand where they do in the model. Equal positions are one: a unit is at one rank alone.
    """
    apart = Polynomial.number(1)
    classes: list[set[Position]] = []
    for p, q in equal:
        if p in (EXISTS, SIZE_ONE):
            apart = apart if place.holds((axis, p, q)) else Polynomial()
        elif out := excluded(p) or excluded(q):
            other = p if excluded(q) else q
            apart = apart * (Polynomial.number(1) - _share(axis, [(out, other)], size, place))
        else:
            joined = [c for c in classes if c & {p, q}]
            classes = [c for c in classes if c not in joined] + [{p, q}.union(*joined)]
    for together in classes:
        free = {p for p in together if p == UNIT or is_owner(p) or dim_of(p) or is_contracted(p)}
        fixed = together - free
        if len(at := {place.coordinate(axis, p) for p in fixed}) > 1 or any(k >= place.sizes[axis] for k in at):
            return Polynomial()
        if LAST in fixed and any(map(is_rank, fixed)):  # so it is at this size alone
            size = Monomial.number(place.sizes[axis])
        apart = apart * Polynomial.of([size ** -(len(free) - (not fixed))])
    return apart


def tell(weight: Monomial) -> str:
    """A weight that can be read without a legend: each count of tokens is named by the axes of its cell.

    >>> tell(Monomial.parse("1/m") / Monomial.of("N[dp@unit,microbatch@unit]"))
    '1/(m*tokens[dp, microbatch])'
    """
    renamed = Monomial(weight.coefficient)
    for name, power in weight.powers:
        cell = count_cell(name)
        if cell is not None:
            what = {"": "tokens", SAMPLES_HERE: SAMPLES_HERE}.get(of := counts_of(name), f"tokens_{of}")
            name = f"{what}[{', '.join(cell)}]" if cell else f"{what}_total"
        elif name == CELL:
            name = "tokens_per_cell"
        elif name.startswith((PADDED, ELEMENTS)):
            name = name.partition(":")[0]
        elif name.startswith(OPAQUE):
            name = OPAQUE_SUM
        renamed = renamed * Monomial.of(name) ** power
    return str(renamed)

