"""A solver's model as facts of the domain: sizes, device, unit, owners, counts; got, want and their mass.

Raw models are read only in this module: nothing above it knows about solvers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from placealg.arith import ONE, Monomial
from placealg.mesh import PREDICTION
from placealg.polynomial import Polynomial
from placealg.prover import correct
from placealg.prover.calculus.contribution import Slot, Value
from placealg.prover.calculus.machine import Read, Updated
from placealg.prover.calculus.microbatches import Case
from placealg.prover.calculus.positions import DEVICE, elsewhere, is_owner, layout_of, of_the_first, taken_at, varies
from placealg.prover.evidence import symbols
from placealg.prover.evidence.counterexample_words import (
    HELD,
    ModelPlaces,
    got,
    mass,
    right,
    scattered,
    tell,
    times,
    told_ratio,
)
from placealg.prover.evidence.parts import Look, flag_of, gradient_of, norm_of, ratio_of, told_parts
from placealg.prover.examine import Candidate
from placealg.prover.obligations import Failure
from placealg.prover.ops import paths
from placealg.prover.ops.findings import FailureKind
from placealg.prover.ops.stages import ends, held_by, held_on, tied
from placealg.step.pipeline import FIRST, LAST
from placealg.step.program import Group, Reference


@dataclass(frozen=True, slots=True)
class Facts:
    """A counterexample for one group, in the terms of the domain.

    `owners` maps (layout, axis, element) to a rank: element 0 is the element under scrutiny, element 1 another element
    of its matrix. `cell` is the unit's place: coordinates on the data axes and its microbatch. `unequal` says that
    token counts differ between cells; `counts`, for a run, is the number of tokens of every cell.
    """

    group: str
    sizes: dict[str, int]
    microbatches: int
    device: dict[str, int]
    cell: tuple[tuple[int, ...], int]
    owners: dict[tuple[str, str, int], int]
    unequal: bool
    got: str
    want: str
    mass: str | None
    explanation: str
    counts: tuple[tuple[tuple[tuple[int, ...], int], int], ...] = ()


def facts(candidate: Candidate, reference: Reference, at: Facts | None = None) -> Facts:
    """The facts in the model of a candidate, at its own sizes or at those `at` which it was run."""
    model, axes = candidate.model, reference.mesh.names
    sizes = at.sizes if at else {a: model.get(a, 2) for a in axes}
    stages = reference.pipeline
    if stages.axis and stages.axis not in reference.unrolled and not at:
        sizes[stages.axis] = max(sizes[stages.axis], stages.least)
    candidate, at_ends = _at_ends(candidate, reference, sizes)
    failure, place = candidate.failure, ModelPlaces(model, {**sizes, **at_ends})
    microbatches = at.microbatches if at else max(1, model.get("m", failure.cases[0].least if failure.cases else 2))
    case = next((c for c in failure.cases if c.least == microbatches or (not c.exact and c.least <= microbatches)),
                failure.cases[0] if failure.cases else None)
    if failure.update and not place.held(failure.update.gradient):
        place = place.where_wrong(failure.update.gradient, correct.group_weight(reference, candidate.group),
                                  correct.equal_counts(reference))
    elif failure.update and failure.obligation in WEIGHED and (
            _fault(failure.update, reference, candidate.group, own=False) is None):
        place = place.where_absent(failure.update.gradient)
    has, want, ratio, explanation = _told(candidate, reference, place, case, microbatches)
    device = {a: place.coordinate(a, DEVICE) for a in axes}
    if at_ends:
        axis = reference.pipeline.axis
        held = held_on(reference, candidate.group.parameters[0])
        device[axis] = _rank_of(held[place.coordinate(ends(reference, held), DEVICE)], reference, sizes)
    return Facts(
        group=candidate.group.name,
        sizes=sizes,
        microbatches=microbatches,
        device=device,
        cell=(tuple(place.unit(a) for a in reference.data_axes), _microbatch(case, microbatches)),
        owners={key: rank for key, rank in _owners(model, place, reference) if key[1] in sizes},
        unequal=(failure.obligation == "normalizer" or failure.kind is FailureKind.SUPPOSED)
        and "equal_counts" not in reference.hypotheses,
        got=has, want=want, mass=ratio, explanation=explanation)


def _at_ends(candidate: Candidate, reference: Reference, sizes: Mapping[str, int]) -> tuple[Candidate, dict[str, int]]:
    """The candidate of a tied group with the number of pipeline ends in place of its symbol, and that symbol's value.

    Any other candidate is returned unchanged. The ranks of the ends are the stages that hold the group, in order.
    """
    parameters = candidate.group.parameters
    if not parameters or not tied(reference, parameters[0]):
        return candidate, {}
    held = held_on(reference, parameters[0])
    name, number = ends(reference, held), min(len(held), sizes[reference.pipeline.axis])

    def numbered(value: Value) -> Value:
        tags = tuple(replace(t, slot=replace(t.slot, terms=numbered(Value(t.slot.terms)).terms)) if t.slot else t
                     for t in value.tags)
        return replace(paths.substituted(value, name, Monomial.number(number)), tags=tags)

    def told(update: Updated) -> Updated:
        return replace(update, gradient=numbered(update.gradient))

    failure = candidate.failure
    failure = replace(failure, update=told(failure.update)) if failure.update else failure
    parts = tuple(replace(part, updates={case: told(u) for case, u in part.updates.items()})
                  for part in candidate.parts)
    return replace(candidate, failure=failure, parts=parts), {name: number}


Owned = tuple[tuple[str, str, int], int]
"""((layout, axis, element), the rank that owns it)."""


def _rank_of(part: str, reference: Reference, sizes: Mapping[str, int]) -> int:
    """The rank along the pipeline that runs a part of the model: FIRST, PREDICTION or LAST."""
    pipeline, ranks = reference.pipeline, sizes[reference.pipeline.axis]
    last = 0 if pipeline.folded else ranks - 1
    return {FIRST: 0, PREDICTION: pipeline.predicting_rank(ranks), LAST: last}[part]


def _owners(model: Mapping[str, int], place: ModelPlaces, reference: Reference) -> Iterator[Owned]:
    """Every owner in a model; a layout that differs along an axis has an entry for each rank of it."""
    for name, rank in model.items():
        axis, position = symbols.place_of(name) or ("", DEVICE)
        first = of_the_first(position)
        if is_owner(position) or first:
            order, along, there = taken_at(elsewhere(position, varies(position), DEVICE))
            layout = layout_of(order)
            if along:
                coordinate = place.coordinate(along, there)
                held = held_by(reference, along)
                if held:
                    along = reference.pipeline.axis
                    coordinate = _rank_of(held[coordinate], reference, place.sizes)
                layout = f"{layout}({along})={coordinate}"
            yield (layout, axis, 1 if first else 0), rank


def _microbatch(case: Case | None, microbatches: int) -> int:
    """The index of the unit's microbatch, where runs of passive microbatches are as short as they can be."""
    if case is None:
        return 0
    if case.name == "last":
        return microbatches - 1
    before = next(k for k, i in enumerate(case.iterations) if i.active)
    return min(before, microbatches - 1)


def _told(candidate: Candidate, reference: Reference, place: ModelPlaces, case: Case | None,
          microbatches: int) -> tuple[str, str, str | None, str]:
    failure = candidate.failure
    if failure.obligation in WEIGHED and failure.update:
        return _weights(failure.update, candidate, reference, place, case, microbatches)
    if failure.obligation == "update" and failure.update:
        return _transforms(failure.update, reference, place)
    if failure.obligation == "forward" and failure.held:
        return _sums(failure, reference, place)
    if failure.slot:
        want = "a norm that counts every group once" if failure.kind is FailureKind.NORM else OWN_FLAG
        return failure.says, want, None, f"{failure.event} {failure.says}"
    if failure.read:
        return _copy(failure.read, place, failure.says)
    if failure.kind is FailureKind.SUPPOSED:
        return "other numbers, as a run shows", "the single device's", None, f"{failure.event} {failure.says}"
    want = WANT_OF_KIND.get(failure.kind) or WANT.get(failure.obligation, "what the single device does")
    return failure.says, want, None, f"{failure.event} {failure.says}"


def _sums(failure: Failure, reference: Reference, place: ModelPlaces) -> tuple[str, str, str | None, str]:
    """(got, want, ratio, explanation) of an op that reads sums that are not whole.

    They have a ratio if all classes of contributions have the same.
    """
    why, want = f"{failure.event} {failure.says}", "each contribution once"
    wrong = [v for v in failure.held if v.terms != paths.exact()[0].terms]
    if any(v.garbage for v in failure.held) or not wrong:
        return "undefined: garbage, or only some of its parts", "what the reference's op reads", None, why
    shares = [mass(v.terms, ONE, reference, place) for v in failure.held]
    share = shares[0] if all(s == shares[0] for s in shares) else None
    first, *others = dict.fromkeys(times(v.terms) for v in (*wrong, *failure.held))
    says = f"some contributions {first}" + "".join(f", others {more}" for more in others)
    return says if others else f"each contribution {first}", want, _ratio(share), why


WANT = {
    "random": "the stream keyed by logical coordinates",
    "forward": "what the reference's op reads",
    "schedule": "every rank of the group takes part, or none",
}
"""Obligation -> the wanted behaviour in words, if no number expresses it."""

WANT_OF_KIND = {
    FailureKind.UNSENT: "one send for each message that is received",
    FailureKind.UNRECEIVED: "one receive for each message that is sent",
    FailureKind.OUT_OF_TURN: "messages received in the order in which they are sent",
}
"""Kind of failure -> the wanted behaviour in words, for obligations that can fail in several ways."""


def _copy(read: Read, place: ModelPlaces, says: str) -> tuple[str, str, str | None, str]:
    what = {"hyper": "the step counter", "rng": "the random stream",
            "scale": "the loss scale"}.get(read.kind, "the parameters")
    of = "" if read.kind == "result" else f": {what}"
    return place.leaf(read.version), HELD[read.want], None, f"{read.event} {says}{of}"


def _weights(update: Updated, candidate: Candidate, reference: Reference, place: ModelPlaces, case: Case | None,
             microbatches: int) -> tuple[str, str, str | None, str]:
    own = candidate.failure.obligation == "normalizer"
    want = correct.group_weight(reference, candidate.group)
    weighting = correct.own_counts(reference) if own else correct.equal_counts(reference)
    value, at = update.gradient, update.event
    if not place.held(value):
        return ("nothing: the element is not held", tell(weighting(want)), None,
                f"{at} reads an undefined gradient")
    if not place.defined(value):
        return ("undefined: garbage, or a foreign element's bytes", tell(weighting(want)), None,
                f"{at} reads a gradient some of whose contributions are undefined")
    if candidate.group.merge == "max":
        return (got(value.terms, weighting), "the largest over all tokens", None,
                f"{at} reads a largest magnitude that is not the largest over all tokens")
    look: Look = gradient_of
    what = "gradient"
    if fault := _fault(update, reference, candidate.group, own):
        look, what = fault
    told = told_parts(candidate.parts, replace(candidate.failure, update=update), look, case, weighting, reference)
    shares = [ratio_of(part, look, want, reference, place, microbatches) for part in candidate.parts]
    share = shares[0] if candidate.followed and all(s == shares[0] for s in shares) else None
    has = told.says if candidate.followed else f"{told.says}, in the layers that are followed"
    wrong = [s is not None and s != Polynomial.number(1) for s in shares]
    zero, among = not any(s != Polynomial() for s, w in zip(shares, wrong, strict=True) if w), told.among(wrong)
    explanation = (
        f"{at}: the {what} was taken of a gradient that is not the reference's" if fault else
        f"{at} reads a weight that depends on how the tokens are distributed" if own else
        f"{at} reads a gradient " + (f"whose contributions{among} are zero" if among else "that is zero")
        if zero and any(wrong) and candidate.followed else
        f"{at} reads a gradient whose contributions{among} are not each counted once at the reference's scale")
    return has, tell(weighting(want)), _ratio(share), explanation


def _fault(update: Updated, reference: Reference, group: Group, own: bool) -> tuple[Look, str] | None:
    """The flag or norm that was taken from a wrong gradient, if the update itself reads a right one; else None."""
    want = correct.group_weight(reference, group)
    weighting = correct.own_counts(reference) if own else correct.equal_counts(reference)
    if not right(update.gradient.terms, want, weighting):
        return None
    taken: list[tuple[Look, str]] = [(flag_of, "flag")]
    taken += [(partial(norm_of, k), "norm") for k in range(len(update.gradient.tags)) if reference.clip]
    return next(((look, what) for look, what in taken if (terms := look(update)) is not None
                 and not right(terms, want, weighting)), None)


def _ratio(share: Polynomial | None) -> str | None:
    return None if share is None else told_ratio(share)


WEIGHED = ("gradient", "normalizer")
"""The obligations whose counterexamples are described by weights."""

OWN_FLAG = "a flag that is set iff an element of the whole reduced gradient overflows"


def _flaw(flag: Slot | None, reference: Reference) -> str:
    """What is wrong with a flag; "" if nothing is."""
    if flag is None:
        return "no flag" if reference.skip else ""
    if not flag.defined:
        return "a flag of another step, or of unknown values"
    if flag.counted.tags:
        return "a flag of the clipped gradient"
    if not reference.skip:
        return "a step that is skipped"
    whole = any(not t.at and not t.given for t in flag.terms)
    return "" if whole else "a flag that leaves elements of the group out"


def _transforms(update: Updated, reference: Reference, place: ModelPlaces) -> tuple[str, str, str | None, str]:
    tags = update.gradient.tags
    declared = ("clip",) if reference.clip else ()
    applied = tuple(t.name for t in tags)
    if applied != declared:
        return (", ".join(applied) or "no transform", ", ".join(declared) or "no transform", None,
                f"{update.event} reads a gradient that was not transformed as the reference's is")
    for tag in tags:
        if tag.slot is None or not tag.slot.defined:
            return "no norm of this step", "1", None, f"{update.event}: the clip factor used an undefined norm"
        if tag.slot.counted.tags:
            return "a norm of the clipped gradient", "a norm of the gradient", None, f"{update.event}: norm after clip"
        share = _ratio(mass(tag.slot.terms, ONE, reference, place))
        if share != "1" or scattered(tag.slot.terms):
            often = f"{share or 'other than 1'} times in the norm (on average over elements)"
            return (f"each element counted {often}", "once", share,
                    f"{update.event}: the norm behind the clip factor does not count each element once")
    if flaw := _flaw(update.skip, reference):
        return flaw, OWN_FLAG if reference.skip else "every step updates", None, (
            f"{update.event} decides otherwise than the reference whether the step is skipped")
    if update.divisor != ONE:
        by = tell(update.divisor) if update.divisor else "a count that nothing defined"
        return (f"a step divided by {by}", "the optimizer's step", None,
                f"{update.event} takes another step than the optimizer's")
    return ("only the device's own elements", "every element of the matrix", None,
            f"{update.event} reads elements of the matrix that the device does not hold")
