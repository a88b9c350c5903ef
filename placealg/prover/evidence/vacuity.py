"""The check against vacuous proofs: the premises have models, since contradictory premises would prove everything."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import z3

from placealg.frozen import FrozenMap
from placealg.prover import correct
from placealg.prover.calculus.contribution import count_name
from placealg.prover.calculus.event_ranks import left_out, pairs
from placealg.prover.calculus.positions import DEVICE, UNIT, Pairs, example, of_example
from placealg.prover.evidence import symbols
from placealg.prover.evidence.logic import and_, not_
from placealg.prover.evidence.premises import ask
from placealg.prover.evidence.solver import SAT, UNSAT
from placealg.prover.verdict import OBLIGATIONS, PARAMETRIC, PROVED, UNDECIDED, Decided, Verdict
from placealg.step.event import Event
from placealg.step.program import Step
from placealg.step.where import Clause, least_size, meets


def vacuity_sizes(step: Step) -> tuple[int, int]:
    """The sizes, of every axis and of m, at which the premises must have a model: 2 and 3, or all named ranks exist.

    There are stages enough for ends that stand alone.
    """
    least = max(2, step.enough(), step.reference.pipeline.least)
    return least, least + 1


@dataclass(frozen=True)
class Question:
    """What has to hold at these sizes, by what would be vacuous if it had no model, each on a rank of its own.

    Each `where` is of an element of its own, too.
    """

    sizes: FrozenMap[str, int]
    occurrences: FrozenMap[str, Any]

    @property
    def pinned(self) -> list[Any]:
        """Every size is its number."""
        return [symbols.size(a) == n for a, n in self.sizes.items()]

    @property
    def together(self) -> Any:
        """All occurrences at once."""
        axes = [a for a in self.sizes if a != symbols.MICROBATCH]
        return and_([correct.on_rank(q, {a: example(k) for a in axes})
                     for k, q in enumerate(self.occurrences.values())])


def questions(step: Step) -> tuple[Question, ...]:
    """The premises on counts and every `where`: at the two sizes if it can hold there, else at sizes of its own.

    If an axis is written out, a `where` that names a rank beyond its size is left out.
    """
    unrolled, data = step.reference.unrolled, step.reference.data_axes
    cells = [count_name({}), count_name({**dict.fromkeys(data, UNIT), symbols.MICROBATCH: UNIT}),
             count_name({**dict.fromkeys(data, DEVICE), symbols.MICROBATCH: UNIT})]
    wheres = {(pairs(e), left_out(e)): e for e in step.events if e.where
              and not any(c.axis in unrolled and (c.rank or 0) >= unrolled[c.axis] for c in e.where)}
    found, left, sizes = [], set(wheres), dict[str, int]()
    for number in vacuity_sizes(step):
        sizes = {a: unrolled.get(a, number) for a in (*step.reference.mesh.names, symbols.MICROBATCH)}
        here = {key: e for key, e in wheres.items() if all(meets(c, sizes[a]) for a, c in _by_axis(e).items())}
        left -= set(here)
        found.append(Question(FrozenMap(sizes), FrozenMap({
            "the premises have no model": z3.Sum([symbols.symbol(n) for n in cells]) >= 0,
            **dict(_holds(k, *key, e) for k, (key, e) in enumerate(here.items()))})))
    for key in (k for k in wheres if k in left):
        own = {a: least_size(c) or sizes[a] for a, c in _by_axis(wheres[key]).items()
               if not meets(c, sizes[a]) and a not in unrolled}
        found.append(Question(FrozenMap({**sizes, **own}), FrozenMap(dict([_holds(0, *key, wheres[key])]))))
    return tuple(found)


def _by_axis(event: Event) -> dict[str, list[Clause]]:
    return {axis: [c for c in event.where if c.axis == axis] for axis in dict.fromkeys(c.axis for c in event.where)}


def _holds(number: int, here: Pairs, but: Pairs, event: Event) -> tuple[str, Any]:
    """(what would be vacuous, that the `where` of an event holds on some rank, of an element with this number)."""
    met, out = ([(a, of_example(p, number)) for a, p in sorted(some)] for some in (here, but))
    return (f"no rank satisfies the `where` of {event.path}",
            and_(symbols.at_pairs(met), *(not_(symbols.at_pairs([p])) for p in out)))


def vacuity(step: Step) -> Verdict:
    """The premises, those on token counts included, have models at two sizes; every `where` holds on some rank."""
    start = time.perf_counter()
    asked, reason = questions(step), ""
    for question in asked:
        numbers = sorted(set(question.sizes.values()))
        at = f"at sizes {' and '.join(map(str, numbers))}"
        answer = ask(step, [*question.pinned, question.together], model=False)
        if answer.status == UNSAT:
            failed = next((text for text, q in question.occurrences.items()
                           if ask(step, [*question.pinned, q]).status != SAT), "")
            reason = f"{failed or 'the premises have no common model'} {at}"
        elif answer.status != SAT:
            reason = f"no model of the premises was found {at}: {answer.reason}"
    count = sum(len(question.occurrences) for question in asked)
    return Verdict("vacuity", "", OBLIGATIONS["vacuity"], UNDECIDED if reason else PROVED,
                   None if reason else PARAMETRIC, count, time.perf_counter() - start,
                   reason, decided=Decided(solver=count))
