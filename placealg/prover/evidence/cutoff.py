"""The second engine: one axis at a time written out rank by rank, at as many sizes as a cutoff lemma requires.

The claim that a weight is right is a polynomial identity in the size n of an axis, once cleared of denominators. A
non-zero polynomial of degree d has at most d roots, so an identity of degree d holds for every n iff it holds at d + 1
sizes. Here d is bounded by counting: every reduction along the axis can raise the degree by one, and so can every
divisor by the size or by a count that was summed over the axis, and every data axis that the reference weight counts.
At each size the sums over the axis are written out, and not taken in closed form; all other axes stay symbolic. Sizes
are distinct primes, because equal sizes hide wrong groups.

A query also depends on which of its positions along the axis coincide, and which are a rank that the program names.
Each such case has an identity of its own. From a bound on, the cases are the same at every size, because all positions
can differ and all named ranks exist: the d + 1 primes are taken from there on. They do not cover smaller sizes, each of
which is checked by itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count, groupby, islice
from math import isqrt
from typing import Any

import z3

from placealg.frozen import FrozenMap
from placealg.placement import Kind
from placealg.progress import each
from placealg.prover.calculus.places import NoRule
from placealg.prover.calculus.positions import COUNTER, DEVICE, PEER, UNIT, stage
from placealg.prover.evidence.certificate import LEMMA as LEMMA_FILE
from placealg.prover.evidence.certificate import Query, certificate, lemma_query, of_types
from placealg.prover.evidence.logic import or_
from placealg.prover.evidence.parts import parts
from placealg.prover.examine import Candidate, Findings, examine
from placealg.prover.joined import prepared
from placealg.prover.obligations import obligations
from placealg.prover.ops.flow import Flows
from placealg.prover.ops.op_obligations import network_obligations, paths_of, sites_of
from placealg.prover.symmetry import signature
from placealg.prover.verdict import (
    BOUNDED,
    CUTOFF,
    OBLIGATIONS,
    PARAMETRIC,
    PROVED,
    REFUTED,
    UNDECIDED,
    Report,
    Verdict,
)
from placealg.step.event import COUNT, COUNTS_OF_SAMPLES
from placealg.step.pipeline import FIRST, LAST
from placealg.step.program import LOOPED, STEP_PHASES, Event, Step

_KEPT = ("grad", "grad_sum", "norm", "skip", "count")
"""Values that persist from one microbatch to the next, so that an event in the loop acts on one repeatedly."""

_RUNS = 3
"""How often an event in the loop runs in the prover: in the first, in middle and in the last microbatch."""

LEMMA = "cutoff: a rational identity of degree d in a size holds for all sizes iff it holds at d + 1 distinct ones"


@dataclass(frozen=True, slots=True)
class WrittenOut:
    """A report's record of an axis whose sums were written out: the bound on the degree, and the sizes.

    >>> said = WrittenOut("dp", 2, (7, 11, 13), 7)
    >>> WrittenOut.read(said.text) == said, WrittenOut.read("ring: in k turns")
    (True, None)
    """

    axis: str
    degree: int
    roots: tuple[int, ...]
    least: int

    @property
    def text(self) -> str:
        """The record as a lemma of a report."""
        roots = ", ".join(map(str, self.roots))
        return (f"{self.axis}: of degree {self.degree} at most, written out at {roots}, and at all below {self.least}, "
                "where positions must coincide")

    @classmethod
    def read(cls, text: str) -> WrittenOut | None:
        """The record that `text` states; None if it states another lemma."""
        found = _WRITTEN_OUT.match(text)
        return cls(found[1], int(found[2]), tuple(map(int, found[3].split(", "))), int(found[4])) if found else None

    @property
    def sizes(self) -> tuple[int, ...]:
        """Every size at which the obligations were checked."""
        return (*range(1, self.least), *self.roots)


_WRITTEN_OUT = re.compile(r"(\w+): of degree (\d+) at most, written out at (\d+(?:, \d+)*), and at all below (\d+), ")


@dataclass(frozen=True, slots=True)
class Unrolled:
    """One axis: the bound on the degree, the sizes at which it was written out, and the findings at each.

    Its sizes are all those below `least`, at which not all positions can differ, and d + 1 primes from there on. If
    several sizes show a failure, the first is reported; size 1 is therefore the last.
    """

    axis: str
    degree: int
    least: int
    sizes: tuple[int, ...]
    findings: tuple[Findings, ...]

    @property
    def roots(self) -> tuple[int, ...]:
        """The sizes at which all positions can differ, to which the lemma applies."""
        return tuple(n for n in self.sizes if n >= self.least)

    @property
    def written(self) -> WrittenOut:
        """The record of the axis for a report."""
        return WrittenOut(self.axis, self.degree, self.roots, self.least)


def degree(step: Step, axis: str) -> int:
    """A bound on the degree, in the size of `axis`, of every identity between weights of the program and the reference.

    >>> from placealg.models.abstract import abstract
    >>> from placealg.step.derive import derive
    >>> from placealg.strategy.catalogue import dp
    >>> degree(derive(dp(), abstract()), "dp")
    4
    """
    along = [e for e in step.events if axis in e.axes and (e.effect.sums or e.source == Kind.P.value)
             for _ in range(_runs(e))]
    per_group = [sum(e.group == g.name for e in along) for g in step.reference.groups]
    shared = sum(not e.group for e in along)
    means = max((sum(e.op == "mean" for e in along if e.group == g.name) for g in step.reference.groups), default=0)
    each = {axis: 1, **dict.fromkeys((COUNT, *COUNTS_OF_SAMPLES), sum(e.value == "count" for e in along))}
    divided = Counter[str]()
    for event in step.events:
        divided[event.group] += _runs(event) * sum(abs(power) * each.get(n, 0) for n, power in event.divisor.powers)
    own = max((divided[g.name] for g in step.reference.groups), default=0)
    counted = 1 if axis in step.reference.data_axes else 0
    return max(per_group, default=0) + shared + means + divided[""] + own + counted


def _runs(event: Event) -> int:
    return _RUNS if event.phase in LOOPED and event.value in _KEPT else 1


PLACES = (DEVICE, UNIT, PEER, COUNTER)
"""The positions that a query has once along an axis: the device, the unit's rank, any peer, and a rank that counts."""

OF_LAYOUT = ("own", "other", "any")
"""The positions that a query has for each layout: owners of the element, of another of its matrix, of any in the norm.

A layout that differs from rank to rank has one for each position on which it is evaluated.
"""

OF_STAGES = (stage(FIRST), stage(LAST))
"""The positions along a pipeline axis, besides the stage of each repeated unit and that of its neighbour."""


def least_size(step: Step, axis: str) -> int:
    """The least size at which all positions of a query along `axis` can differ, and all named ranks exist.

    >>> from placealg.models.abstract import abstract
    >>> from placealg.step.derive import derive
    >>> from placealg.strategy.catalogue import zero1
    >>> least_size(derive(zero1(), abstract()), "dp")
    7
    """
    layouts = {(e.group or e.tensor, e.layout, len(PLACES) if e.drawn else 1) for e in step.events if axis in e.owning}
    owners = Counter[str]()
    for holder, _, seen in layouts:
        owners[holder] += len(OF_LAYOUT) * seen
    staged = step.reference.pipeline.axis == axis and step.reference.graph
    stages = len(OF_STAGES) + 2 * len(staged.loops) if staged else 0
    places = len(PLACES) + max(owners.values(), default=0) + stages + len(step.ranks(axis))
    return max(places, step.enough(axis))


def primes(least: int = 2) -> Iterator[int]:
    """The primes from `least` on: 2, 3, 5, 7, ..."""
    return (n for n in count(max(2, least)) if all(n % k for k in range(2, isqrt(n) + 1)))


def unroll(step: Step, axis: str) -> Unrolled:
    """Every obligation with one axis written out, at d + 1 primes and at every size too small for them."""
    bound, least = degree(step, axis), least_size(step, axis)
    sizes = (*range(2, least), *islice(primes(least), bound + 1), 1)
    return Unrolled(axis, bound, least, sizes, tuple(
        examine(written_out(step, axis, size)) for size in each(sizes, lambda size: f"{axis} = {size}")))


def written_out(step: Step, axis: str, size: int) -> Step:
    """The step with the sums over one axis written out at a size."""
    return replace(step, reference=replace(step.reference, unrolled=FrozenMap({axis: size})))


def proofs_of_groups(step: Step) -> int:
    """How many proofs of a parameter group the engine makes: one of each that differs, at each size of each axis.

    >>> from placealg.models.abstract import abstract
    >>> from placealg.step.derive import derive
    >>> from placealg.strategy.catalogue import zero1
    >>> proofs_of_groups(derive(zero1(), abstract()))
    11
    """
    step = prepared(step)
    flows, kinds = Flows(step), set[object]()
    for group in step.reference.groups:
        try:
            kinds.add(signature(step, group, sites_of(step, group, flows), flows))
        except NoRule:
            kinds.add(group)
    sizes = sum(least_size(step, axis) + degree(step, axis) for axis in step.reference.mesh.names)
    return sizes * len(kinds)


def examine_by_cutoff(step: Step) -> tuple[Findings, tuple[Unrolled, ...]]:
    """The engine's findings and its runs: an obligation is PROVED, CUTOFF if it is so on every axis at every size.

    Otherwise its verdict is the first refutation found, or else the first UNDECIDED. A step without axes has no sums to
    write out.
    """
    step = prepared(step)
    runs = tuple(unroll(step, axis) for axis in step.reference.mesh.names)
    if not runs:
        return examine(step), ()
    found = [f for run in runs for f in run.findings]
    without = _no_degree(step)
    ended = [(_by_cutoff(v, without), f) for v, f in _ended(found)]
    candidates = [in_closed_form(step, c) for v, f in ended if v.verdict == REFUTED
                  for c in f.candidates if (c.verdict.id, c.verdict.group) == (v.id, v.group)]
    told = (LEMMA, *(run.written.text for run in runs), *dict.fromkeys(text for f in found for text in f.lemmas))
    return replace(found[-1], verdicts=tuple(v for v, _ in ended), candidates=tuple(candidates), lemmas=told), runs


_FIRST = (REFUTED, UNDECIDED, PROVED)


def _ended(found: Iterable[Findings]) -> list[tuple[Verdict, Findings]]:
    """The worst verdict on each obligation of each group, with the first findings that have it; one for partition."""
    places: dict[tuple[str, str], list[tuple[Verdict, Findings]]] = {}
    for findings in found:
        for v in findings.verdicts:
            places.setdefault((v.id, "" if v.id == "partition" else v.group), []).append((v, findings))
    worst = [min(runs, key=lambda run: _FIRST.index(run[0].verdict)) for runs in places.values()]
    taken = [sum(v.seconds or 0.0 for v, _ in runs) for runs in places.values()]
    order = list(OBLIGATIONS)
    ended = [(replace(v, seconds=seconds), f) for (v, f), seconds in zip(worst, taken, strict=True)]
    return sorted(ended, key=lambda end: order.index(end[0].id))


def certificate_by_cutoff(step: Step, report: Report, asked: str = "") -> tuple[Query, ...]:
    """The queries behind a report of this engine: every obligation at each size of each axis, and the cutoff lemma.

    What is asked of types is one query, as no type depends on a size; `asked` as in `certificate`.
    """
    findings, runs = examine_by_cutoff(step)
    if not runs:
        return certificate(step, report, findings.candidates, asked=asked)
    queries: dict[str, Query] = {}
    for run in runs:
        name, says = f"cutoff.{run.axis}", LEMMA.partition(": ")[2]
        told = f"a polynomial of degree {run.degree} with {len(run.roots)} roots is 0"
        queries[name] = lemma_query(f"{LEMMA_FILE}.{name}.smt2", name, says, told, report, roots(run))
        for size, found in zip(run.sizes, run.findings, strict=True):
            there = replace(report, obligations=tuple(replace(v, cls=v.cls and BOUNDED) for v in found.verdicts))
            listed = certificate(written_out(step, run.axis, size), there, found.candidates, f"{run.axis}-{size}")
            for query in listed:
                queries.setdefault(query.text if query.obligation == LEMMA_FILE else query.name, query)
    return (*queries.values(), *of_types(step, report, asked))


def roots(run: Unrolled) -> list[Any]:
    """The negation of the lemma for an axis, as assertions: a polynomial is 0 at each of its sizes, but is not 0."""
    at = z3.Ints(" ".join(f"coefficient-{k}" for k in range(run.degree + 1)))
    zero = [z3.Sum([size ** k * a for k, a in enumerate(at)]) == 0 for size in run.roots]
    return [*zero, or_([a != 0 for a in at])]


def in_closed_form(step: Step, candidate: Candidate) -> Candidate:
    """The candidate with closed forms in place of written-out sums, for its description.

    The failure's formula and its model, on which the verdict depends, stay.
    """
    failure, flows = candidate.failure, Flows(step)
    if failure.update and failure.site:
        paths = paths_of(step, candidate.group, flows)
        known = obligations(step, candidate.group, dict.fromkeys(paths.values()), flows)
        own = parts(failure, known, paths)
        return replace(candidate, failure=replace(failure, update=own[0].updates.get(failure.cases[0], failure.update)),
                       parts=own)
    if failure.held:
        same = (f.held for f in network_obligations(step, flows).failures.values()
                if (f.obligation, f.event, f.says) == (failure.obligation, failure.event, failure.says))
        return replace(candidate, failure=replace(failure, held=next(same, failure.held)))
    return candidate


def _no_degree(step: Step) -> str:
    """Why weights are not polynomials in the size of an axis; "" if they are."""
    unequal = step.reference.data_axes and "equal_counts" not in step.reference.hypotheses
    if unequal and (any("tokens" in e.divisor.names() for e in step.events) or _counts_of_ranks(step)):
        return "weights depend on how many tokens each rank holds: they have no degree in the size of an axis"
    return ""


def _counts_of_ranks(step: Step) -> bool:
    """Whether a divisor reads a count before it is summed over the axes of the data."""
    reference, summed = step.reference, dict[str, set[str]]()
    rows = {a for a in reference.data_axes if "batch" in reference.dims.get(a, ())}
    for looped, events in groupby(step.phase(*STEP_PHASES), key=lambda e: e.phase in LOOPED):
        for event in list(events) * (2 if looped else 1):
            if event.value == "count":
                summed[event.unit] = summed.get(event.unit, set()).union(event.axes) if event.effect.sums else set()
            elif any(not summed.get(c, set()) >= (rows if c in COUNTS_OF_SAMPLES else {*reference.data_axes})
                     for c in reference.counters_of(event)):
                return True
    return False


def _by_cutoff(verdict: Verdict, without: str) -> Verdict:
    if without and verdict.verdict == PROVED and verdict.id in ("gradient", "normalizer"):
        return replace(verdict, verdict=UNDECIDED, cls=None, reason=without)
    return replace(verdict, cls=CUTOFF) if verdict.cls == PARAMETRIC else verdict
