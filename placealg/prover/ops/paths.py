"""Sums along paths: what every rank holds of a tensor, as counted contributions, and how linear ops change it.

A tensor's element is a sum of contributions: the terms of a contraction, the operands of an addition, the uses whose
gradients are added. What a rank holds is a *Sum*: for every class of contributions a `Value` (contribution.py) that
says how often each rank counts one of them. Classes that count alike are merged, because every op treats them alike. A
Sum is *exact* if every contribution counts once on every rank that holds the element. Positions are "at:DIM", the owner
of the element's index of that dim, and "OP/DIM", the owner of an index that the op contracted; "at:DIM!NAME~AXIS" is
the rank along AXIS that the device itself takes for the owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import product

from placealg.arith import ONE, Monomial
from placealg.frozen import FrozenMap
from placealg.prover.calculus.contribution import (
    EXISTS,
    SIZE_ONE,
    Equality,
    Term,
    Value,
    equality,
    merged,
    per_element,
    stands_at,
)
from placealg.prover.calculus.positions import (
    OWNER,
    Pairs,
    Position,
    all_but,
    at,
    behind,
    contracted_dim,
    dim_of,
    inside,
    is_contracted,
    of_factor,
    path_index,
)
from placealg.strategy.vocabulary import LAYER

Sum = tuple[Value, ...]
"""The distinct values of the classes of contributions, all with one mask; () when no rank holds anything."""



def exact(mask: Iterable[tuple[str, Position]] = ()) -> Sum:
    """Every contribution once, on the ranks of `mask`."""
    return (Value((Term(ONE),), frozenset(mask)),)


def is_exact(held: Sum) -> bool:
    """Whether every contribution counts once wherever the element is held.

    >>> is_exact(narrowed(padded(exact(), ["tp"], "ffn"), [("tp", at("ffn"))]))
    True
    """
    return bool(held) and each(held, _where_held) == exact(held[0].mask)


def _where_held(value: Value) -> Value:
    """The value without the indicators of its terms that are true wherever it is held."""
    def left(term: Term) -> Term:
        return replace(term, at=FrozenMap({a: p for a, p in term.at.items() if (a, p) not in value.mask}))

    if not any(place in value.mask for term in value.terms for place in term.at.items()):
        return value
    return replace(value, terms=merged(map(left, value.terms)))


def is_plain(held: Sum) -> bool:
    """Whether every contribution counts alike on all ranks that hold the element, each in its own loss."""
    return bool(held) and all(len(v.terms) <= 1 and not any(t.at for t in v.terms) and not v.sides and not v.garbage
                              for v in held)


def mask_of(held: Sum) -> Pairs:
    """The mask of a Sum: where the element is held."""
    return held[0].mask if held else frozenset()


def distinct(values: Iterable[Value]) -> Sum:
    """The values, each once."""
    return tuple(dict.fromkeys(values))


def undefined(mask: Pairs) -> Sum:
    """The Sum that is held on the ranks of `mask`, and is garbage."""
    return (Value(mask=mask, garbage=True),)


def added(operands: Sequence[Sum]) -> Sum:
    """The sum of operands, held where all are: each operand has classes of contributions of its own."""
    if not all(operands):
        return ()
    mask = frozenset(p for held in operands for p in mask_of(held))
    if any(v.garbage for held in operands for v in held):
        return undefined(mask)
    sides = frozenset(e for held in operands for v in held for e in v.sides)
    return distinct(replace(v, mask=mask, sides=sides) for held in operands for v in held)


def accumulated(parts: Sequence[Sum]) -> Sum:
    """The sum of gradient contributions, held wherever one of them is, and undefined where only some are.

    A contribution that could not be computed makes it garbage.
    """
    held = [p for p in parts if p]
    if not held:
        return ()
    if len(held) < len(parts):
        return undefined(frozenset.intersection(*(mask_of(p) for p in held)))
    common = frozenset.intersection(*(mask_of(p) for p in held))
    lacking = stands_at(pair for p in held for pair in mask_of(p) - common)
    if any(v.garbage for p in held for v in p):
        return undefined(common)
    sides = lacking.union(*(v.sides for p in held for v in p))
    return distinct(replace(v, mask=common, sides=sides) for p in held for v in p)


def contracted(operands: Sequence[Sum], dims: Iterable[str], op: str) -> Sum:
    """The product of operands, summed over the indices that a rank holds of every dim that is not in `dims`.

    A product of sums is the sum of the products of their contributions. Each sum runs over indices of its own, so
    that two that are split are complete only together.

    >>> half = contracted([padded(exact(), ["tp"], "ffn")], ["embed"], "y")
    >>> square = contracted([half, half], ["embed"], "z")
    >>> is_exact(reduced(half, ("tp",), ONE, {})), is_exact(reduced(square, ("tp",), ONE, {}))
    (True, False)
    """
    if not all(operands):
        return ()
    kept = {*dims}
    masks = frozenset(p for held in operands for p in mask_of(held))
    mask = frozenset((a, p) for a, p in masks if dim_of(p) in kept or not dim_of(p))
    partial = [held for held in operands if not is_exact(held)]
    if any(v.garbage for held in operands for v in held):
        return undefined(mask)

    path = behind(op, lambda dim: dim not in kept)
    summed = sorted((a, path(p)) for a, p in masks - mask)
    values = []
    own = [held if not k else each(held, lambda v, k=k: per_element(v, of_factor(op, k)))  # type: ignore[misc]
           for k, held in enumerate(partial or [exact()])]
    for factors in product(*own):
        value = per_element(reduce(_times, factors), path)
        values.append(replace(value, mask=mask, terms=merged(_standing(t, summed) for t in value.terms)))
    return distinct(values)


def _times(a: Value, b: Value) -> Value:
    """The product of two contributions; what is claimed of neither, or unknown in one, is so of the product."""
    terms = [replace(made, coefficient=s.coefficient * t.coefficient, given=made.given | t.given)
             for s in a.terms for t in b.terms for made in [_standing(s, t.at.items())]]
    mixed = b.mixed if a.mixed is None else a.mixed if b.mixed is None else a.mixed & b.mixed
    return replace(a, terms=merged(terms), mask=a.mask | b.mask, sides=a.sides | b.sides, mixed=mixed,
                   zero=a.zero or b.zero)


def _standing(term: Term, places: Iterable[tuple[str, Position]]) -> Term:
    """The term on the ranks that are also at `places`, 0 elsewhere."""
    for axis, position in places:
        if axis in term.at:
            term = replace(term, given=term.given | equality(axis, term.at[axis], position))
        else:
            term = replace(term, at=term.at.plus({axis: position}))
    return term


def mixed(held: Sum, dims: Iterable[str], op: str) -> Sum:
    """The Sum with every index of `dims` replaced by a sum over all of them; a path names the owner of the old index.

    >>> rows = mixed(padded(exact(), ["tp"], "head_dim"), ["head_dim"], "rotated")
    >>> is_exact(narrowed(rows, [("tp", at("head_dim"))])), is_exact(reduced(rows, ("tp",), ONE, {}))
    (False, True)
    """
    path = behind(op, {*dims}.__contains__)
    return each(held, lambda v: per_element(v, path))


def renamed(held: Sum, names: Mapping[str, str]) -> Sum:
    """The Sum under other names of dims."""
    @inside
    def name(position: Position) -> Position:
        dim = dim_of(position)
        return Position(at(names.get(dim, dim)) + position[len(at(dim)):]) if dim else position

    return each(held, lambda v: per_element(v, name))


def each(held: Sum, change: Callable[[Value], Value]) -> Sum:
    """The Sum with `change` applied to every class."""
    return distinct(change(v) for v in held)


def scaled(held: Sum, factor: Monomial) -> Sum:
    """Every contribution times a factor."""
    return each(held, lambda v: v.scaled(factor))


def narrowed(held: Sum, pairs: Iterable[tuple[str, Position]]) -> Sum:
    """The Sum, held only where the device is also at `pairs`."""
    return each(held, lambda v: v.masked(pairs))


def chosen(new: Sum, old: Sum, where: Pairs, out: Pairs) -> Sum:
    """`new` on the ranks at all of `where` and at none of `out`, `old` on the others, which may hold nothing.

    What is not known to be one value on all ranks that hold it counts as undefined where it is not `new`, or is
    garbage; what has become whole again, on the ranks that were left out before, is known.

    >>> zero = frozenset({("dp", Position("0"))})
    >>> part = chosen(exact(), (), zero, frozenset())
    >>> is_exact(chosen(exact(), part, frozenset(), zero)), mask_of(part) == zero
    (True, True)
    """
    if new == old or not (where or out):
        return new
    alone = len(where) + len(out) == 1
    if new and alone and old == _on(new, out, where):
        return new
    if new and not old:
        return _on(new, where, out)
    if old and not new:
        return _on(old, out, where) if alone else undefined(mask_of(old))
    return undefined(mask_of(new) & mask_of(old))


def _on(held: Sum, where: Pairs, out: Pairs) -> Sum:
    """The Sum as it is known on the ranks at all of `where` and at none of `out`; other ranks may hold anything."""
    but = stands_at((axis, all_but(position)) for axis, position in out)
    return each(held, lambda v: replace(v.masked(where), sides=v.sides | but, mixed=frozenset()))


def gathered(held: Sum, axes: Iterable[str], dim: str) -> Sum:
    """The Sum in which every rank has what the owner of the index of `dim` holds."""
    return each(held, lambda v: v.gathered(dict.fromkeys(axes, at(dim))))


def reduced(held: Sum, axes: tuple[str, ...], factor: Monomial, unrolled: Mapping[str, int]) -> Sum:
    """The sum over axes, on every rank; written out along those of `unrolled`."""
    return each(held, lambda v: v.reduced(axes, factor, unrolled))


def padded(held: Sum, axes: Iterable[str], dim: str) -> Sum:
    """The Sum held on every rank along `axes`, 0 where the rank does not own the index of `dim`."""
    places = [(a, at(dim)) for a in axes]
    return each(held, lambda v: replace(v, mask=v.mask - frozenset(places),
                                        terms=merged(_standing(t, places) for t in v.terms)))


def lost(held: Sum) -> Sum:
    """The Sum with one more class, of contributions that count nowhere."""
    return distinct((*held, replace(held[0], terms=()))) if held else held


def substituted(value: Value, symbol: str, monomial: Monomial) -> Value:
    """The value with a symbol of its coefficients replaced."""
    def put(coefficient: Monomial) -> Monomial:
        result = Monomial(coefficient.coefficient)
        for name, power in coefficient.powers:
            result = result * (monomial if name == symbol else Monomial.of(name)) ** power
        return result

    return replace(value, terms=merged(Term(put(t.coefficient), t.at, t.given) for t in value.terms))


def owned(value: Value, split: Mapping[str, str], stage: Position) -> Value:
    """A parameter's value in which the owners along its own split dims (axis -> dim) are owners of the element.

    Along a pipeline axis the owner is the stage on which the parameter is used.
    """
    def place(axis: str, position: Position) -> Position:
        return OWNER if axis in split and position in (at(split[axis]), stage) else position

    def places(pairs: Iterable[Equality]) -> frozenset[Equality]:
        return frozenset(e for axis, p, q in pairs
                         for e in ([(axis, p, q)] if p in (SIZE_ONE, EXISTS)
                                   else equality(axis, place(axis, p), place(axis, q))))

    terms = merged(Term(t.coefficient, FrozenMap({a: place(a, p) for a, p in t.at.items()}), places(t.given))
                   for t in value.terms)
    mask = frozenset((a, place(a, p)) for a, p in value.mask) | {(a, OWNER) for a in split}
    beyond = value.mixed if all((a, at(d)) in value.mask or d == LAYER for a, d in split.items()) else frozenset()
    return plainly(replace(value, terms=terms, mask=mask, sides=places(value.sides), mixed=beyond))


def plainly(value: Value) -> Value:
    """The value with short names for positions of contracted indices, so that values that count alike are equal.

    >>> plainly(Value((Term(ONE, FrozenMap({"tp": "layer.norm1.out.grad.weight.grad/seq"})),))).terms[0].at
    {tp: path/seq}
    """
    names: dict[Position, Position] = {}

    def short(position: Position) -> Position:
        if not is_contracted(position):
            return position
        dim = contracted_dim(position)
        taken = sum(1 for name in names if contracted_dim(name) == dim and name != position)
        return names.setdefault(position, path_index(dim, taken))

    for term in value.terms:
        for axis in sorted(term.at):
            short(term.at[axis])
    return per_element(value, short)
