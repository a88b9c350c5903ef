"""The definition of correctness: the conditions that make a distributed step equal the single-device step.

Read this file as the theorem's two conditions, for one unknown element i, unit x and device c. *Gradient integrity*: at
every live update the gradient's weight of x is the reference weight, on a defined value, with exactly the reference's
transforms applied, each element counted once in the norm. *State consistency*: every observed read sees the reference's
version. Nothing here depends on how a program came about.

Its words, by the modules of `calculus` that define them. `contribution.py`: a *Value* is what a device holds of a
gradient, a sum of *Terms*, each a coefficient where the device stands at some positions; a *Tag* is a transform that
was applied to it, with the *Slot* (a partial norm, or a flag) that it used, which says on which ranks each element
counts. `versions.py`: a *Version* says which copy of a state a device holds; *Guarded* is one that is right if some
updates were. `machine.py`: what is observed of a step: *Read* (a version is used), *Updated* (an update ran), *Relied*
(an event of another group used this group's norm or flag).

In the order of the questions, `examine.py` asks of a group

    gradient                     gradient_integrity of every Updated, counted_integrity of every Relied: equal_counts
    normalizer                   the same, under own_counts
    update                       update_integrity of every Updated, part_integrity of every Relied
    view, update, random         no Read of the step itself is a wrong_read: of a weight, of a counter, of the stream
    invariant                    nor one of what it stores and leaves, nor any of a later step
    init                         nor any of a run from its start, or resumed, where those of every step are right
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any

import z3

from placealg.arith import ONE, Monomial
from placealg.frozen import FrozenMap
from placealg.prover.calculus.contribution import EXISTS, OPAQUE, STALE, Slot, Tag, Term, Value, count_name, per_element
from placealg.prover.calculus.machine import Read, Relied, Updated
from placealg.prover.calculus.positions import COUNTER, DEVICE, UNIT, Position, elsewhere, of_another, of_any, varies
from placealg.prover.calculus.versions import CURRENT, Choice, Guarded, Version, choose, each, trusted
from placealg.prover.evidence import symbols
from placealg.prover.evidence.logic import and_, not_, or_, substituted
from placealg.prover.evidence.symbols import MICROBATCH
from placealg.step.event import SAMPLES_HERE
from placealg.step.program import Group, Reference

Bool = Any
Right = Callable[[str, FrozenMap[str, Position]], Bool]
"""Whether an update was right on a rank."""

Weighting = Callable[[Monomial], Monomial]


def reference_weight(reference: Reference) -> Monomial:
    """The weight of one unit in the single-device gradient.

    `token_mean`: 1/|B|. `microbatch_mean`: 1/(m * tokens of the unit's microbatch). `sample_mean`: in place of 1/m the
    share that the unit's microbatch has of all samples. `sum`: 1.
    """
    if reference.weighting == "sum":
        return ONE
    if reference.weighting == "sample_mean":
        here, every = (Monomial.of(count_name(cell, SAMPLES_HERE)) for cell in ({MICROBATCH: UNIT}, {}))
        return here / (every * Monomial.of(count_name({MICROBATCH: UNIT})))
    if reference.weighting == "microbatch_mean":
        return ONE / (Monomial.of("m") * Monomial.of(count_name({MICROBATCH: UNIT})))
    return ONE / Monomial.of(count_name({}))


def group_weight(reference: Reference, group: Group) -> Monomial:
    """The weight of one unit in what moves a group: in its gradient, or in a statistic: of a sum or a max 1."""
    return reference_weight(reference) if group.merge == "mean" else ONE


def equal_counts(reference: Reference) -> Weighting:
    """Weights if every cell (rank of the data axes, microbatch) holds equally many valid tokens, over cp, too."""
    axes = (*reference.data_axes, MICROBATCH)
    return lambda weight: symbols.clear_counts(weight, axes)


def own_counts(reference: Reference) -> Weighting:
    """Weights under only the hypotheses that the strategy names."""
    return equal_counts(reference) if "equal_counts" in reference.hypotheses else lambda weight: weight


def defined(value: Value) -> Bool:
    """The device holds the element, and what it holds is not garbage."""
    if not value.held or value.garbage:
        return z3.BoolVal(False)
    return and_(symbols.at_pairs(value.mask), symbols.conjunction(value.sides))


def weighted(value: Value, want: Monomial, weighting: Weighting) -> Bool:
    """The unit's weight is the reference weight: right contributions, each once, at the right scale."""
    terms = [Term(weighting(t.coefficient), t.at, t.given) for t in value.terms]
    return symbols.equals(terms, weighting(want))


def reached(value: Value) -> Bool:
    """The largest magnitude is over all units: the unit is among them, once or more often, and nothing scales it."""
    unscaled = [z3.Implies(symbols.indicator(t), symbols.equals([Term(t.coefficient)], ONE)) for t in value.terms]
    return and_(or_([symbols.indicator(t) for t in value.terms]), *unscaled)


def gradient_integrity(update: Updated, reference: Reference, group: Group, weighting: Weighting) -> Bool:
    """The gradient that an update reads, and the one that the norm counted, are the reference's."""
    want = group_weight(reference, group)
    value = update.gradient
    if group.merge == "max":
        return and_(defined(value), reached(value))
    conditions = [defined(value), weighted(value, want, weighting)]
    conditions.append(counted_integrity(update.skip, reference, weighting))
    if group.locality != "elementwise" and "grad_sum" in group.whole_reads:
        conditions.append(weighted(another_element(value, group.stacked), want, weighting))
    if reference.clip:
        for tag in value.tags:
            if tag.slot is not None:
                conditions.append(_counted_gradient(tag.slot, reference.mesh.names, want, weighting))
    return and_(conditions)


def counted_integrity(slot: Slot | None, reference: Reference, weighting: Weighting) -> Bool:
    """What the norm counts, or the flag checks, is the reference's gradient."""
    if slot is None or slot == STALE:
        return z3.BoolVal(True)
    return _counted_gradient(slot, reference.mesh.names, reference_weight(reference), weighting)


def _counted_gradient(slot: Slot, axes: tuple[str, ...], want: Monomial, weighting: Weighting) -> Bool:
    """Wherever the norm counts an element, any of the group, the gradient there is the reference's."""
    value = per_element(slot.counted, of_any)
    if not value.held or value.garbage:
        return z3.BoolVal(False)
    counts = symbols.at_pairs((a, of_any(p)) for a, p in slot.where)
    right = and_(symbols.conjunction(value.sides), weighted(value, want, weighting))
    return on_rank(z3.Implies(counts, right), dict.fromkeys(axes, COUNTER))


def update_integrity(update: Updated, reference: Reference, group: Group) -> Bool:
    """Given right gradients, the declared transforms and no others, a whole norm, and every input element is held.

    The step that is taken is the declared one: nothing scales it.
    """
    value = update.gradient
    declared = ("clip",) if reference.clip else ()
    conditions = [z3.BoolVal(tuple(t.name for t in value.tags) == declared), skip_integrity(update.skip, reference)]
    conditions += [_whole_norm(tag) for tag in value.tags]
    conditions.append(z3.BoolVal(False) if update.divisor is None else symbols.equals([Term(update.divisor)], ONE))
    if group.locality != "elementwise":
        conditions += list(_whole_matrix(update, group))
    return and_(conditions)


def part_integrity(relied: Relied, reference: Reference) -> Bool:
    """Where an event reads it, the norm counts each element of the group once, or the flag is the reference's.

    A norm that counts the group only at the ends of a pipeline fails this: other stages read it, and have nothing.
    """
    if relied.value == "norm":
        whole = z3.BoolVal(False) if relied.slot and relied.slot.apart else _whole_norm(Tag("clip", relied.slot))
    else:
        whole = skip_integrity(relied.slot, reference)
    return z3.Implies(symbols.at_pairs(relied.where), whole)


def skip_integrity(flag: Slot | None, reference: Reference) -> Bool:
    """The device decides as the reference does whether the step is skipped.

    It does iff its flag is of this step and, if the reference skips, each element of the group was checked, once or
    more often, untransformed; if it does not skip, none was. A sum without a closed form is no evidence of either.
    """
    if flag is None:
        return z3.BoolVal(not reference.skip)
    if not flag.defined or flag.counted.tags:
        return z3.BoolVal(False)
    terms = per_element(Value(flag.terms), of_any).terms
    known = [t for t in terms if not any(n.startswith(OPAQUE) for n in t.coefficient.names())]
    looked = or_([symbols.indicator(t) for t in known])
    return looked if reference.skip else and_(z3.BoolVal(known == list(terms)), not_(looked))


def _whole_norm(tag: Tag) -> Bool:
    """The norm counts each element once, untransformed, on the rank where the transform ran."""
    slot = tag.slot
    if tag.mixed or slot is None or not slot.defined or slot.counted.tags:
        return z3.BoolVal(False)
    counted = per_element(Value(slot.terms), of_any)
    return on_rank(symbols.equals(counted.terms, ONE), tag.rank)


def _whole_matrix(update: Updated, group: Group) -> list[Bool]:
    """A non-elementwise update finds every other element j of its matrix defined on the device."""
    conditions = []
    if "grad_sum" in group.whole_reads:
        conditions.append(defined(another_element(update.gradient, group.stacked)))
    for value, version in update.others:
        if value in group.whole_reads:
            conditions.append(not_(wrong_version(other_version(version, group.stacked), CURRENT)))
    return conditions


def another_element(value: Value, stacked: tuple[str, ...] = ()) -> Value:
    """The value at another element of the same matrix; along axes that split a stack of them the owner is the same."""
    return per_element(value, of_another, stacked)


def other_version(version: Version, stacked: tuple[str, ...] = ()) -> Version:
    """A version at another element of the same matrix, which has the same owner along the axes `stacked`."""
    if isinstance(version, Choice):
        axis, p, q = version.test
        if p != EXISTS and axis not in stacked:
            p, q = sorted((of_another(p), of_another(q)))
        return choose((axis, p, q), other_version(version.yes, stacked), other_version(version.no, stacked))
    return version


def on_ranks(right: Callable[[str], Bool]) -> Right:
    """What `right` says of an update, on the rank that is asked about; each of these formulas is made once."""
    return cache(lambda update, rank: on_rank(right(update), rank))


def _always(update: str, rank: Mapping[str, Position]) -> Bool:
    """Every update is right on every rank."""
    return z3.BoolVal(True)


@lru_cache(maxsize=2**12)
def wrong_version(version: Version, want: int, right: Right = _always) -> Bool:
    """The device does not hold version `want`; `right(update, rank)` says whether an update was right on a rank."""
    if isinstance(version, Choice):
        test = symbols.equal(version.test)
        yes, no = (wrong_version(v, want, right) for v in (version.yes, version.no))
        return or_(and_(test, yes), and_(not_(test), no))
    if isinstance(version, Guarded):
        if version.version != want:
            return z3.BoolVal(True)
        return not_(and_([right(u, rank) for u, rank in sorted(version.updates, key=str)]))
    return z3.BoolVal(version != want)


def wrong_read(read: Read, right: Right = _always) -> Bool:
    """An observed read sees another version than the reference's."""
    return wrong_version(read.version, read.want, right)


def always_right(read: Read) -> bool:
    """Whether the read is right on every device if every update was: then no formula is needed."""
    return each(read.version, trusted) == read.want


def on_rank(formula: Bool, rank: Mapping[str, Position]) -> Bool:
    """The formula, evaluated on the rank at the given position along each axis."""
    places = [(symbols.coordinate(a, DEVICE), symbols.coordinate(a, p)) for a, p in rank.items()]
    for axis, position in symbols.varying(formula):
        along = varies(position)
        if along in rank:
            there = elsewhere(position, along, rank[along])
            places.append((symbols.coordinate(axis, position), symbols.coordinate(axis, there)))
    return substituted(formula, places)
