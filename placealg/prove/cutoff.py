"""The second engine: one axis at a time written out rank by rank, at as many sizes as a cutoff lemma asks for.

That a weight is right is a polynomial identity in the size n of an axis, once cleared of denominators. A non-zero
polynomial of degree d has at most d roots, so an identity of degree d holds for every n iff it holds at d + 1 sizes.
Here d is bounded by counting: every reduction along the axis can raise the degree by one, so can every divisor and
every axis of the data that the reference weight counts. At each size the sums over the axis are written out, and not
taken in closed form; all other axes stay symbolic. Sizes are distinct primes, because equal sizes hide wrong groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from placealg.frozen import FrozenMap
from placealg.prove.flow import Flows
from placealg.prove.network import network_obligations
from placealg.prove.obligations import obligations
from placealg.prove.prover import Candidate, Findings, examine, siblings
from placealg.prove.verdict import CUTOFF, PARAMETRIC, PROVED, UNDECIDED, Verdict
from placealg.step.program import Step

REDUCTIONS = ("reduce", "all_reduce", "reduce_scatter")
LEMMA = "cutoff: a rational identity of degree d in a size holds for all sizes iff it holds at d + 1 distinct ones"


@dataclass(frozen=True, slots=True)
class Unrolled:
    """One axis: the bound on the degree, the sizes at which it was written out, and what was found at each."""

    axis: str
    degree: int
    sizes: tuple[int, ...]
    findings: tuple[Findings, ...]

    @property
    def proved(self) -> bool:
        """Whether every obligation is proved at every size."""
        return all(v.verdict == PROVED for found in self.findings for v in found.verdicts)


def degree(step: Step, axis: str) -> int:
    """A bound on the degree, in the size of `axis`, of every identity between weights of the program and the reference.

    >>> from placealg.model.abstract import abstract
    >>> from placealg.step.derive import derive
    >>> from placealg.strategy.catalogue import dp
    >>> degree(derive(dp(), abstract()), "dp")
    4
    """
    along = [e for e in step.events if axis in e.axes and e.verb in REDUCTIONS]
    per_group = [sum(e.group == g.name for e in along) for g in step.reference.groups]
    shared = sum(not e.group for e in along)
    means = max((sum(e.op == "mean" for e in along if e.group == g.name) for g in step.reference.groups), default=0)
    divisors = sum(abs(power) for e in step.events for name, power in e.divisor.powers if name == axis and not e.group)
    own = max((sum(abs(power) for e in step.events if e.group == g.name for name, power in e.divisor.powers
                   if name == axis) for g in step.reference.groups), default=0)
    counted = 1 if axis in step.reference.data_axes else 0
    return max(per_group, default=0) + shared + means + divisors + own + counted


def primes() -> Iterator[int]:
    """2, 3, 5, 7, ..."""
    found: list[int] = []
    n = 2
    while True:
        if all(n % p for p in found):
            found.append(n)
            yield n
        n += 1


def unroll(step: Step, axis: str) -> Unrolled:
    """Every obligation with one axis written out at d + 1 prime sizes, until one of them is not proved."""
    bound, sizes, findings = degree(step, axis), [], []
    for size in primes():
        reference = replace(step.reference, unrolled=FrozenMap({axis: size}))
        sizes.append(size)
        findings.append(examine(replace(step, reference=reference)))
        if len(sizes) > bound or any(v.verdict != PROVED for v in findings[-1].verdicts):
            return Unrolled(axis, bound, tuple(sizes), tuple(findings))
    raise AssertionError("there are infinitely many primes")


def examine_by_cutoff(step: Step) -> tuple[Findings, tuple[Unrolled, ...]]:
    """What the engine finds: PROVED, CUTOFF where every axis is proved at all its sizes; else the first that is not."""
    runs: list[Unrolled] = []
    for axis in step.reference.mesh.names:
        runs.append(unroll(step, axis))
        if not runs[-1].proved:
            found = runs[-1].findings[-1]
            return replace(found, candidates=tuple(in_closed_form(step, c) for c in found.candidates)), tuple(runs)
    last, told = runs[-1].findings[-1], tuple(map(_told, runs))
    without = _no_degree(step)
    verdicts = tuple(_by_cutoff(v, without) for v in last.verdicts)
    return replace(last, verdicts=verdicts, lemmas=(LEMMA, *told)), tuple(runs)


def in_closed_form(step: Step, candidate: Candidate) -> Candidate:
    """The candidate with its sums in closed form where they are written out: as formulas are told.

    What the verdict rests on, the failure's formula and its model, stays.
    """
    failure, flows = candidate.failure, Flows(step) if step.reference.graph else None
    if failure.update and failure.site:
        known = obligations(step, candidate.group, [failure.site], flows)
        update = known.updates.get((failure.update.event, failure.site, failure.cases[0]), failure.update)
        failure = replace(failure, update=update)
        return replace(candidate, failure=failure, siblings=siblings(failure, known))
    if failure.held and flows:
        same = (f.held for f in network_obligations(step, flows).failures.values()
                if (f.obligation, f.event, f.says) == (failure.obligation, failure.event, failure.says))
        return replace(candidate, failure=replace(failure, held=next(same, failure.held)))
    return candidate


def _told(run: Unrolled) -> str:
    return f"{run.axis}: of degree {run.degree} at most, written out at {', '.join(map(str, run.sizes))}"


def _no_degree(step: Step) -> str:
    """Why a weight is no polynomial in the size of an axis, if it is none."""
    divisors = {name for e in step.events for name in e.divisor.names()}
    if "tokens" in divisors and "equal_counts" not in step.reference.hypotheses:
        return "weights depend on how many tokens each rank holds: they have no degree in the size of an axis"
    return ""


def _by_cutoff(verdict: Verdict, without: str) -> Verdict:
    if without and verdict.id in ("gradient", "normalizer"):
        return replace(verdict, verdict=UNDECIDED, cls=None, reason=without)
    return replace(verdict, cls=CUTOFF) if verdict.cls == PARAMETRIC else verdict
