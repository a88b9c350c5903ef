"""What the prover found satisfiable, run on the simulator: which refutations are confirmed, and the counterexample.

A refutation is confirmed where the run differs from the single device; what does not replay is UNDECIDED.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from random import Random

from placealg.check.repair import Mended, by_token_mean, find_repair
from placealg.models.graph import Graph
from placealg.models.tokens import summed
from placealg.progress import say
from placealg.prover.calculus.versions import UNHELD
from placealg.prover.evidence.counterexample import WEIGHED, Facts, facts
from placealg.prover.evidence.counterexample_words import HELD
from placealg.prover.examine import LARGEST_REPLAY, Candidate, Findings, by_run
from placealg.prover.verdict import OBLIGATIONS, REFUTED, UNDECIDED, Counterexample, Verdict
from placealg.simulator import Difference, Outcome, Setting, simulate
from placealg.simulator.run import PRIME_TOLD, floats_beside
from placealg.simulator.setting import fitting_microbatches
from placealg.step.edit import Edited
from placealg.step.program import Step

Replayed = tuple[Candidate, Facts, Outcome]


@dataclass(frozen=True)
class Refutations:
    """The findings of the prover with what only a run showed, the verdicts after the runs, and the runs by verdict."""

    findings: Findings
    verdicts: tuple[Verdict, ...]
    replayed: Mapping[tuple[str, str], Replayed]

    def counterexample(self, step: Step, base: Step | None, file: Edited | None,
                       token_mean: Callable[[], Mended | None]) -> Counterexample:
        """The counterexample of the first confirmed refutation, with a repair if one is found."""
        return _counterexample(step, base, file, self.verdicts, self.replayed, token_mean)


def refutations(step: Step, findings: Findings) -> Refutations:
    """Every candidate among the findings, run on the simulator."""
    findings, replays = _resuming(step, findings, tuple(_replays(step, findings)))
    replayed = {(c.verdict.id, c.verdict.group): (c, f, o) for c, f, o in replays}
    return Refutations(findings, tuple(_confirmed(v, replayed, step) for v in findings.verdicts), replayed)


def _replays(step: Step, findings: Findings) -> Iterator[Replayed]:
    known: Runs = {}
    for candidate in findings.candidates:
        found = facts(candidate, step.reference)
        replayed = replay(step, found, candidate.verdict.id == "init", known)
        if replayed is not None:
            run, outcome = replayed
            yield candidate, replace(run, mass=facts(candidate, step.reference, run).mass), outcome


def _resuming(step: Step, findings: Findings, replays: tuple[Replayed, ...]) -> tuple[Findings, tuple[Replayed, ...]]:
    """Where no candidate replays, though a resumed run differs: one candidate more, which says that."""
    if any(_differs(o, c.verdict.id == "init") for c, _, o in replays):
        return findings, replays
    for _, found, outcome in replays:
        if outcome.difference is not None:
            more = by_run("init", outcome.difference.event, "a resumed run differs",
                          {**found.sizes, "m": found.microbatches})
            verdicts = sorted((*findings.verdicts, more.verdict), key=lambda v: list(OBLIGATIONS).index(v.id))
            findings = replace(findings, verdicts=tuple(verdicts), candidates=(*findings.candidates, more))
            told = replace(facts(more, step.reference), owners=found.owners, counts=found.counts)
            return findings, (*replays, (more, told, outcome))
    return findings, replays


Runs = dict[Setting, Outcome]
"""What was simulated already: candidates of one cause often say the same."""


def replay(step: Step, found: Facts, resumed: bool, known: Runs) -> tuple[Facts, Outcome] | None:
    """The facts at which the simulator differs, and its outcome; else the last facts, and an outcome that does not.

    Tried are a few seeds and token counts at the model's own sizes, then one more microbatch, then larger axes, axes
    that have every rank that an event names, stages enough for layers on two of them where parts stand alone, and three
    microbatches in the middle; with fewer microbatches first. An order that is written down is run at its own sizes.
    None where all are too large to run.
    """
    last: tuple[Facts, Outcome] | None = None
    larger = {a: max(3, n) for a, n in found.sizes.items()}
    enough = {a: max(n, step.enough(a)) for a, n in found.sizes.items()}
    m, pipeline = found.microbatches, step.reference.pipeline
    staged = {a: max(n, pipeline.least + 1) if pipeline.alone and a == pipeline.axis else n
              for a, n in found.sizes.items()}
    written = bool(pipeline and pipeline.actions)
    tried = ((found.sizes, m), (found.sizes, m + 1), *((larger, k) for k in range(m, max(3, m) + 1)), (enough, m),
             (staged, m), (found.sizes, max(5, m)))
    for sizes, microbatches in tried[:1] if written else tried:
        fitting = fitting_microbatches(step.reference, sizes, microbatches)
        if prod(sizes.values()) * fitting > LARGEST_REPLAY and not written:
            continue
        here = replace(found, sizes=sizes, microbatches=fitting)
        for seed, tokens in ((0, 1), (1, 2), (2, 3)):
            run = setting(step, here, tokens, seed)
            say(f"replaying the counterexample on {prod(sizes.values())} ranks")
            outcome = known[run] if run in known else simulate(step, run)
            known[run] = outcome
            last = replace(here, counts=tuple(run.counts.items()) if found.unequal else ()), outcome
            if _differs(outcome, resumed):
                return last
    return last


def _differs(outcome: Outcome, resumed: bool) -> bool:
    """Whether a run shows the failure: one that only a `resumed` run shows is about `init`, and about nothing else."""
    return outcome.difference is not None and (resumed or not outcome.difference.resumed)


def setting(step: Step, found: Facts, tokens: int, seed: int) -> Setting:
    """The concrete run that a counterexample describes."""
    plain = Setting.equal(step.reference, found.sizes, found.microbatches, tokens, seed=seed)
    counts = dict(plain.counts)
    if found.unequal:
        draw, others = Random(seed), [cell for cell in counts if cell != found.cell]
        for k, cell in enumerate(reversed(others)):
            counts[cell] = tokens + 2 if k == 0 else tokens + draw.choice((0, 1))
    flagged = step.reference.skip or any(e.value == "skip" for e in step.events)
    risk = (found.group,) if found.group and flagged else ()
    return replace(plain, counts=counts, owners=found.owners, at_risk=risk)


def _confirmed(verdict: Verdict, replayed: Mapping[tuple[str, str], Replayed], step: Step) -> Verdict:
    if verdict.verdict != REFUTED:
        return verdict
    found = replayed.get((verdict.id, verdict.group))
    if found is None:
        return replace(verdict, verdict=UNDECIDED, cls=None, reason="the counterexample is too large to replay")
    if not _differs(found[2], verdict.id == "init"):
        return replace(verdict, verdict=UNDECIDED, cls=None,
                       reason=f"the counterexample does not replay: {verdict.reason}{_unclaimed(verdict, step)}")
    return verdict


def _unclaimed(verdict: Verdict, step: Step) -> str:
    """What the prover claims nothing of, so that a refutation need not be one: ranks that a `where` leaves out."""
    own = [e for e in step.events if e.where and (e.on_tensor or e.group in ("", verdict.group))]
    own.sort(key=lambda e: (e.verb in RESTRICTED, not e.on_tensor and e.value not in ("grad", "grad_sum")))
    return f"; of ranks that the `where` of {own[0].path} leaves out nothing is claimed" if own else ""


def _counterexample(step: Step, base: Step | None, file: Edited | None, verdicts: tuple[Verdict, ...],
                    replayed: Mapping[tuple[str, str], Replayed],
                    token_mean: Callable[[], Mended | None]) -> Counterexample:
    """The first refuted obligation of the table, or what stops a run before its event; in program order."""
    refuted = [v for v in verdicts if v.verdict == REFUTED]
    order = {e.path: k for k, e in enumerate(step.events)}
    first = min((v for v in refuted if v.id in (refuted[0].id, "schedule")),
                key=lambda v: order.get(v.event, len(order)))
    same = {v.group: replayed[v.id, v.group][0] for v in refuted if v.id == first.id}
    graph = step.reference.graph
    if not step.reference.whole and all(map(_used_by, same.values())):
        same = {group: same[group] for group in _at_fault(graph, same)}
    lead = min((v for v in refuted if v.id == first.id and v.group in same),
               key=lambda v: order.get(v.event, len(order)))
    candidate, found, outcome = replayed[lead.id, lead.group]
    difference = outcome.difference
    assert difference is not None
    lines, counted = {e.path: e.line for e in step.events}, summed(graph)
    sizes = {**found.sizes, "m": found.microbatches}
    site = candidate.failure.site
    of = f" of the loss {site.loss}" if site and len(step.reference.losses) > 1 else ""
    event, has, want, explanation = candidate.failure.event, found.got, found.want, found.explanation
    if candidate.failure.update and has == UNHELD_TOLD and _is_there(step, lead.group, difference):
        has = "a value that is there, and is not the reference's"
        explanation = f"{event} reads a gradient that was not treated on this rank as on others"
    stops = difference.deadlock
    if stops and lead.id != "schedule":
        event, has, want = difference.event, difference.got, difference.want
        explanation = f"{event} never ends: {difference.got}"
    floats = floats_beside(step, outcome)
    at = f" at element {floats.element}" if floats and floats.element != difference.element else ""
    single, many = (f"{floats.want} in floats{at}", f"{floats.got} in floats{at}") if floats else ("", "")
    return Counterexample(
        obligation=lead.id, event=event, group=lead.group,
        sizes=tuple(sizes.items()), device=difference.rank if stops else tuple(found.device.items()),
        unit=f"a {counted}{of} on {_cell(step, found.cell)}", got=has, want=want, mass=found.mass,
        explanation=explanation,
        single_device="runs to its end" if stops else _beside(difference.want, single),
        distributed=f"{_beside(difference.got, many)} ({_where(difference, lines)})",
        repair=find_repair(step, base, file) if base else
        by_token_mean(step, token_mean()) if lead.id == "normalizer" else None, line=lines.get(event, 0),
        tokens=tuple((_cell(step, cell), count) for cell, count in found.counts), counted=counted)


RESTRICTED = ("norm", "assign", "update")
"""The verbs that derived programs restrict to some ranks, too."""

UNHELD_TOLD = HELD[UNHELD]
"""What a counterexample says of a gradient of which the calculus knows nothing on a rank."""

NOT_DEFINED = ("garbage", "nothing")
"""Begins what a run says of a number that no event defined, or of one that is not there."""


def _beside(exact: str, floats: str) -> str:
    """A number of a run, with that of the same run in floats where there is one."""
    return f"{exact}, {floats}" if floats and PRIME_TOLD in exact else exact


def _is_there(step: Step, group: str, difference: Difference) -> bool:
    """Whether a run shows a value where the calculus knows none: on ranks that a `where` left out.

    Residues do not tell a number that no event defined from one that is wrong.
    """
    left_out = any(e.where and e.verb in ("clip", "reduce") and e.group == group for e in step.events)
    return left_out and (difference.got.endswith(PRIME_TOLD) or not difference.got.startswith(NOT_DEFINED))


def _used_by(candidate: Candidate) -> str:
    """The op whose parameter has a wrong gradient; "" where the failure is about something else."""
    site = candidate.failure.site
    return site.use.partition("/")[0] if site and candidate.failure.update and candidate.verdict.id in WEIGHED else ""


def _at_fault(graph: Graph, candidates: Mapping[str, Candidate]) -> list[str]:
    """The groups whose gradients are wrong by themselves, not because what backward handed on to them was.

    That is so of those whose ops reach no op of another of them in forward, through one instance of each unit.
    """
    ops = {group: _used_by(candidate) for group, candidate in candidates.items()}
    found = [group for group, op in ops.items() if not _reached(graph, op) & {o for o in ops.values() if o != op}]
    return found or list(candidates)


def _reached(graph: Graph, op: str) -> set[str]:
    """The ops that read what `op` makes, and those behind them."""
    found, pending = set[str](), [op]
    while pending:
        name = pending.pop()
        pending += [loop.slot for loop in graph.handed if loop.first == name]
        for reader in graph.consumers(name):
            if reader.output not in found:
                found.add(reader.output)
                pending.append(reader.output)
    return found


def _cell(step: Step, cell: tuple[tuple[int, ...], int]) -> str:
    """A cell of the batch in words: coordinates on the data axes, and the microbatch.

    >>> import placealg as pa
    >>> _cell(pa.derive(pa.dp(), pa.abstract()), ((1,), 0))
    'dp = 1, microbatch 0'
    """
    axes = (f"{a} = {c}" for a, c in zip(step.reference.data_axes, cell[0], strict=True))
    return ", ".join([*axes, f"microbatch {cell[1]}"])


def _where(difference: Difference, lines: Mapping[str, int]) -> str:
    """Where a difference shows, with the line of the event on which stages wait for ever, if a file says it."""
    told, where = str(difference).split(": got")[0], difference.where
    line = lines.get(difference.event, 0) if difference.deadlock else 0
    return told.replace(where, f"{where}, line {line}", 1) if line else told
