"""The check against vacuous proofs: the premises have models, since contradictory premises would prove everything."""

from __future__ import annotations

import time
from typing import Any

import z3

from placealg.prover import correct
from placealg.prover.calculus.contribution import count_name
from placealg.prover.calculus.event_ranks import left_out, pairs
from placealg.prover.calculus.positions import DEVICE, UNIT, example
from placealg.prover.evidence import symbols
from placealg.prover.evidence.logic import and_, not_
from placealg.prover.evidence.premises import ask
from placealg.prover.evidence.solver import SAT, UNSAT
from placealg.prover.verdict import OBLIGATIONS, PARAMETRIC, PROVED, UNDECIDED, Decided, Verdict
from placealg.step.program import Step


def vacuity_sizes(step: Step) -> tuple[int, int]:
    """The sizes, of every axis and of m, at which the premises must have a model: 2 and 3, or all named ranks exist.

    There are stages enough for ends that stand alone.
    """
    least = max(2, step.enough(), pipeline.least if (pipeline := step.reference.pipeline) else 1)
    return least, least + 1


def occurrences(step: Step) -> dict[str, Any]:
    """What would be vacuous -> a formula that has no model if it is: the premises on counts, and every `where`.

    If an axis is written out, a `where` that names a rank beyond its size is left out.
    """
    sizes = step.reference.unrolled
    data = step.reference.data_axes
    cells = [count_name({}), count_name({**dict.fromkeys(data, UNIT), symbols.MICROBATCH: UNIT}),
             count_name({**dict.fromkeys(data, DEVICE), symbols.MICROBATCH: UNIT})]
    wheres = {(pairs(e), left_out(e)): e.path for e in step.events if e.where
              and not any(c.axis in sizes and (c.rank or 0) >= sizes[c.axis] for c in e.where)}
    return {"the premises have no model": z3.Sum([symbols.symbol(n) for n in cells]) >= 0,
            **{f"no rank satisfies the `where` of {path}": and_(
                symbols.at_pairs(w), *(not_(symbols.at_pairs([p])) for p in sorted(but)))
               for (w, but), path in wheres.items()}}


def occurring(step: Step, number: int) -> list[Any]:
    """All occurrences at once, each on its own rank; every size is `number`, or that at which it is written out."""
    axes, unrolled = step.reference.mesh.names, step.reference.unrolled
    pinned = [symbols.size(a) == unrolled.get(a, number) for a in (*axes, symbols.MICROBATCH)]
    return [*pinned, and_([correct.on_rank(q, {a: example(k) for a in axes})
                           for k, q in enumerate(occurrences(step).values())])]


def vacuity(step: Step) -> Verdict:
    """The premises, those on token counts included, have models at two sizes; every `where` holds on some rank."""
    start = time.perf_counter()
    questions, reason, numbers = occurrences(step), "", vacuity_sizes(step)
    for number in numbers:
        *pinned, together = occurring(step, number)
        answer = ask(step, [*pinned, together], model=False)
        if answer.status == UNSAT:
            failed = next((text for text, q in questions.items() if ask(step, [*pinned, q]).status != SAT), "")
            reason = f"{failed or 'the premises have no common model'} at sizes {number}"
        elif answer.status != SAT:
            reason = f"no model of the premises was found at sizes {number}: {answer.reason}"
    return Verdict("vacuity", "", OBLIGATIONS["vacuity"], UNDECIDED if reason else PROVED,
                   None if reason else PARAMETRIC, len(numbers) * len(questions), time.perf_counter() - start,
                   reason, decided=Decided(solver=len(numbers) * len(questions)))
