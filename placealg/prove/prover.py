"""From a Step to verdicts and candidate counterexamples: generate the obligations, ask the solver, report.

What the solver finds satisfiable is a *candidate*: it becomes REFUTED only after it was replayed by an
independent engine, which this floor does not know.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import z3

from placealg.announce import say
from placealg.prove import correct, lemmas, symbols
from placealg.prove.contribution import Term, count_name
from placealg.prove.flow import Flows
from placealg.prove.machine import Site, Updated
from placealg.prove.microbatches import CASES
from placealg.prove.network import WHOLE, network_obligations, site_signature, sites_of, supposed, unfollowed
from placealg.prove.obligations import Failure, Obligations, obligations
from placealg.prove.premises import premises
from placealg.prove.reading import NoRule, pairs
from placealg.prove.schedule import acyclic
from placealg.prove.solver import PROCESS, SAT, UNSAT, Answer, versions
from placealg.prove.verdict import BOUNDED, OBLIGATIONS, PARAMETRIC, PROVED, REFUTED, UNDECIDED, Verdict
from placealg.step.event import PARTIALS, READERS, STEP_PHASES
from placealg.step.program import LOOPED, Event, Group, Step

OF_OPS = ("forward", "random")
PER_GROUP = ("forward", "gradient", "normalizer", "view", "update", "invariant", "init", "random", "schedule")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible counterexample: the failure, and a model of it as integers by constant name.

    `siblings` is the same update for a unit in the first, a middle and the last of many microbatches, for any number
    of them; no update where that is not one for each.
    """

    verdict: Verdict
    group: Group
    failure: Failure
    model: dict[str, int]
    siblings: Mapping[str, Updated]


@dataclass(frozen=True, slots=True)
class Findings:
    """All verdicts of a step (REFUTED ones pending their replay), and the candidates behind them."""

    verdicts: tuple[Verdict, ...]
    candidates: tuple[Candidate, ...]
    hypotheses: tuple[str, ...]
    lemmas: tuple[str, ...]
    versions: str


def examine(step: Step) -> Findings:
    """Check every obligation of every parameter group; groups that are treated alike are checked once."""
    say("proving the lemmas")
    proved, unproved = _lemmas(step)
    verdicts: list[Verdict] = [_vacuity(step)]
    candidates: list[Candidate] = []
    flows = Flows(step) if step.reference.graph else None
    if flows:
        say("proving forward, op by op")
        verdicts, candidates = _examine_network(step, flows, verdicts)
    done: dict[object, list[Verdict]] = {}
    for group in step.reference.groups:
        try:
            sites = sites_of(step, group, flows)
            key = _signature(step, group, sites, flows)
        except NoRule as gap:
            verdicts += _open(group.name, of_group(flows), gap)
            continue
        if key in done:
            verdicts += [replace(v, group=group.name, seconds=0.0, reason=v.reason or f"as {v.group}")
                         for v in done[key]]
            continue
        say(f"proving what concerns {group.name}")
        found, maybe = _examine_group(step, group, sites, flows)
        verdicts += found
        candidates += maybe
        if not maybe:
            done[key] = found
    if not candidates:
        candidates = _suppose(step, flows, verdicts)
        verdicts += [c.verdict for c in candidates]
    clash = _disagreement(step, candidates)
    verdicts.append(clash.verdict if clash else _partition(step))
    candidates += [clash] if clash else []
    if unproved:
        verdicts = [replace(v, verdict=UNDECIDED, cls=None, reason=unproved) if v.verdict == PROVED else v
                    for v in verdicts]
    order = list(OBLIGATIONS)
    verdicts.sort(key=lambda v: order.index(v.id))
    return Findings(tuple(verdicts), tuple(candidates), hypotheses(step), proved, versions())


def _lemmas(step: Step) -> tuple[tuple[str, ...], str]:
    """The lemmas on which verdicts rest, all proved; or none, and why there is one that is not."""
    try:
        return lemmas.proved_lemmas(lemmas.used(step)), ""
    except lemmas.Unproved as gap:
        return (), str(gap)


def hypotheses(step: Step) -> tuple[str, ...]:
    """The named hypotheses under which the verdicts hold, in words."""
    named = []
    if "equal_counts" in step.reference.hypotheses and step.reference.data_axes:
        named.append(f"equal_counts over {{{', '.join((*step.reference.data_axes, 'microbatch'))}}}")
    if step.reference.graph is None:
        named.append("units_independent: the model outside the parameters is computed alike on every device")
    divisors = {n for e in step.events for n in e.divisor.names()}
    inside = any(e.value == "count" and e.phase in LOOPED for e in step.events)
    if "equal_counts" not in step.reference.hypotheses and ("tokens" in divisors or ("count" in divisors and inside)):
        named.append("nonzero_divisors: a token count by which something is divided is not zero there")
    if not step.phase("resume"):
        named.append("never_resumed: the program has no resume phase, so a resumed run is not covered")
    if step.reference.microbatches == 1:
        named.append("microbatches = 1")
    return tuple(named)


def _signature(step: Step, group: Group, sites: tuple[Site, ...], flows: Flows | None) -> object:
    """Groups with equal signatures have equal obligations.

    In a step that runs op by op each use of a parameter has its own. Else, where every unit runs exactly once in
    every microbatch, in order, the other units say nothing about a group but when the backward starts; else their
    computations are part of the signature.
    """
    if flows:
        return (frozenset(site_signature(step, group, site, flows) for site in sites), _readers(step, group),
                group.locality, group.whole_reads, group.split)
    units = [u.name for u in step.reference.units]
    order = {name: k for k, name in enumerate(units)}
    plain = _units_in_order(step, units)

    def alike(event: Event) -> Iterator[object]:
        if event.verb != "compute" or event.unit not in order:
            yield event.plain
            return
        place = tuple((order[event.unit] > order[s]) - (order[event.unit] < order[s]) for s in group.sites)
        if plain and event.phase == "backward" and event.unit == units[-1]:
            yield "backward starts"
        if not plain:
            yield event.phase, event.at, event.where, place
        elif event.unit in group.sites:
            yield event.phase, group.sites.index(event.unit)
    own = (e for e in step.events if e.group in ("", group.name))
    return (tuple(mark for e in own for mark in alike(e)), _readers(step, group), len(group.sites), group.locality,
            group.whole_reads, group.statistic)


def _units_in_order(step: Step, units: list[str]) -> bool:
    """Whether all units run once in every microbatch on every rank: forward in order, the loss, backward reversed."""
    beside = ("count", "skip", "grad")
    ran = [(e.phase, e.unit) for e in step.events
           if e.verb == "compute" and e.value not in beside and not e.at and not e.where]
    losses = [("forward", loss) for loss in step.reference.losses]
    wanted = [("forward", u) for u in units] + losses + [("backward", u) for u in reversed(units)]
    return ran == wanted and len(ran) == sum(e.verb == "compute" and e.value not in beside for e in step.events)


def _readers(step: Step, group: Group) -> frozenset[object]:
    """Where clips and updates of other groups stand among the events that make this group's norm and flag."""
    made, found = Counter[str](), set()
    for event in step.events:
        if event.value in PARTIALS and event.group in ("", group.name):
            made[event.value] += 1
        elif event.verb in READERS and event.group not in ("", group.name):
            found.add((event.verb, made[READERS[event.verb]], event.phase, event.at, event.where, event.layout))
    return frozenset(found)


def _examine_network(step: Step, flows: Flows, before: list[Verdict]) -> tuple[list[Verdict], list[Candidate]]:
    """The verdicts on the ops, after those that came before."""
    try:
        generated = network_obligations(step, flows)
    except NoRule as gap:
        return [*before, *_open("", of_ops(step), gap)], []
    decided = [_decide(step, WHOLE, identifier, generated) for identifier in of_ops(step)]
    if step.reference.pipeline:
        decided = [(_ordered(step, v), c) if v.id == "schedule" else (v, c) for v, c in decided]
    return [*before, *(verdict for verdict, _ in decided)], [c for _, c in decided if c]


def _ordered(step: Step, verdict: Verdict) -> Verdict:
    """The verdict on the messages, with the fact that the order in which stages run has no deadlock."""
    assert step.reference.pipeline is not None
    fact = acyclic(step.reference.pipeline)
    verdict = replace(verdict, instances=verdict.instances + 1)
    if verdict.verdict != PROVED or fact.verdict == PROVED:
        return verdict
    return replace(verdict, verdict=UNDECIDED, cls=None, reason=f"the order {fact.order}: {fact.reason}")


def _open(group: str, identifiers: Iterable[str], gap: NoRule) -> list[Verdict]:
    """Verdicts that an event without a rule leaves open."""
    return [Verdict(i, group, OBLIGATIONS[i], UNDECIDED, None, 0, 0.0, str(gap), gap.event) for i in identifiers]


def _suppose(step: Step, flows: Flows | None, verdicts: list[Verdict]) -> list[Candidate]:
    """Where nothing else is wrong: a candidate from what could not be followed, or has no rule, for a run to confirm.

    What an event of init, save or resume does is seen in a resumed run at the latest.
    """
    failures = [supposed(demand, step) for demand in (unfollowed(step, flows) if flows else ())]
    failures += [Failure("invariant" if step.event(v.event).phase in STEP_PHASES else "init", v.event,
                         z3.BoolVal(True), f"cannot be followed, only run: {v.reason.partition(': ')[2]}")
                 for v in verdicts if v.verdict == UNDECIDED and v.event]
    for failure in failures:
        verdict = Verdict(failure.obligation, "", OBLIGATIONS[failure.obligation], REFUTED, BOUNDED, 1, 0.0,
                          failure.says, failure.event)
        model = {**dict.fromkeys(step.reference.mesh.names, 2), "m": 2}
        return [Candidate(verdict, WHOLE, failure, model, {})]
    return []


def _examine_group(step: Step, group: Group, sites: tuple[Site, ...],
                   flows: Flows | None) -> tuple[list[Verdict], list[Candidate]]:
    checked = of_group(flows)
    try:
        generated = obligations(step, group, sites, flows)
    except NoRule as gap:
        return _open(group.name, checked, gap), []
    verdicts, candidates = [], []
    for identifier in checked:
        verdict, candidate = _decide(step, group, identifier, generated)
        verdicts.append(verdict)
        if candidate:
            candidates.append(candidate)
    return verdicts, candidates


def of_ops(step: Step) -> tuple[str, ...]:
    """The identifiers that are checked on the ops of the whole step: `schedule` only where messages are sent."""
    return (*OF_OPS, "schedule") if step.reference.pipeline else OF_OPS


def of_group(flows: Flows | None) -> tuple[str, ...]:
    """The identifiers that are checked group by group: `forward` only where units run whole."""
    return tuple(i for i in PER_GROUP if flows is None or i != "forward")


def _decide(step: Step, group: Group, identifier: str,
            generated: Obligations) -> tuple[Verdict, Candidate | None]:
    start = time.perf_counter()
    failures = [f for f in generated.failures.values() if f.obligation == identifier]
    possible = [f for f in failures if not z3.is_false(z3.simplify(f.formula))]
    instances = generated.instances[identifier]
    verdict = Verdict(identifier, group.name, OBLIGATIONS[identifier], PROVED, PARAMETRIC, instances)
    if not instances:
        verdict = replace(verdict, reason=f"no event of {group.name or 'the ops'} has anything to check")
    candidate: Candidate | None = None
    if possible:
        answer = ask(step, [z3.Or([in_case(f) for f in possible])])
        if answer.status == SAT:
            failure, model = _smallest(step, possible, answer)
            verdict = replace(verdict, verdict=REFUTED, cls=BOUNDED, event=failure.event, reason=failure.says)
            candidate = Candidate(verdict, group, failure, model, siblings(failure, generated))
        elif answer.status != UNSAT:
            verdict = replace(verdict, verdict=UNDECIDED, cls=None, reason=answer.reason or "the solver gave up")
    if verdict.verdict == PROVED and generated.open:
        verdict = replace(verdict, verdict=UNDECIDED, cls=None, reason="; ".join(dict.fromkeys(generated.open)))
    verdict = replace(verdict, seconds=time.perf_counter() - start)
    if candidate:
        candidate = replace(candidate, verdict=verdict)
    return verdict, candidate


def siblings(failure: Failure, generated: Obligations) -> dict[str, Updated]:
    """The failing update, by the place of the unit's microbatch among three or more, if that is all that counts."""
    update, site = failure.update, failure.site
    if update is None or site is None:
        return {}
    found: dict[str, dict[tuple[Term, ...], Updated]] = {}
    for case in (c for c in CASES if c.least >= 3):
        sibling = generated.updates.get((update.event, site, case))
        if sibling is None:
            return {}
        found.setdefault(case.name, {})[sibling.gradient.terms] = sibling
    return {name: next(iter(one.values())) for name, one in found.items() if len(one) == 1}


def in_case(failure: Failure) -> Any:
    """The failure in one of its cases of m: that it can happen is that this has a model."""
    count = symbols.size(symbols.MICROBATCH)
    cases = [count == c.least if c.exact or not failure.exact else count >= c.least for c in failure.cases]
    return z3.And(failure.formula, z3.Or(cases)) if cases else failure.formula


def ask(step: Step, assertions: Iterable[Any]) -> Answer:
    """The solver's answer, under the premises of every constant that the assertions mention."""
    listed = list(assertions)
    return PROCESS.ask([*premises(step, listed), *listed])


_SIZES = ((2, 2, 3), (2, 3, 3), (1, 3, 3), (1, 6, 6))
"""Bounds tried for a counterexample: smallest and largest axis size, largest m."""


def _smallest(step: Step, failures: list[Failure], answer: Answer) -> tuple[Failure, dict[str, int]]:
    """The first failure in program order that can happen, at the smallest sizes tried; own updates before norms."""
    order = {e.path: k for k, e in enumerate(step.events)}
    ranked = sorted(failures, key=lambda f: (bool(f.slot), order.get(f.event, len(order))))
    for low, high, most in _SIZES:
        bounds = [z3.And(symbols.size(a) >= low, symbols.size(a) <= high) for a in step.reference.mesh.names]
        bounds.append(symbols.size(symbols.MICROBATCH) <= most)
        for failure in ranked:
            found = ask(step, [in_case(failure), *bounds])
            if found.status == SAT:
                return failure, dict(found.model)
    for failure in ranked:
        found = ask(step, [in_case(failure)])
        if found.status == SAT:
            return failure, dict(found.model)
    return ranked[0], dict(answer.model)


def _partition(step: Step) -> Verdict:
    """Owner functions are total, so that units and elements have exactly one owner each; what is left is agreement."""
    start = time.perf_counter()
    places = len(step.reference.data_axes) + len(layouts(step))
    return Verdict("partition", "", OBLIGATIONS["partition"], PROVED, PARAMETRIC, places, time.perf_counter() - start,
                   "owner functions are total" if places else "nothing is split")


def layouts(step: Step) -> set[tuple[str, str, str]]:
    """(group, axis, layout) wherever an event speaks of the owners along an axis."""
    return {(e.group or e.tensor, a, e.layout) for e in step.events if e.group or e.drawn for a in e.owning}


def _disagreement(step: Step, candidates: list[Candidate]) -> Candidate | None:
    """The candidate that a disagreement of layouts explains: with one layout everywhere nothing is wrong."""
    data = {e.layout for e in step.events if e.drawn and not e.group}
    differ = {e.layout for e in step.events if e.drawn and e.group and e.owning}
    named = {name for _, _, name in layouts(step)} - data
    if (len(named) < 2 and not data and not differ) or not candidates:
        return None
    one = replace(step, events=tuple(replace(e, layout=min(named - differ, default="own")) for e in step.events))
    if examine(one).candidates:
        return None
    first = candidates[0]
    reason = (f"{' and '.join(sorted(data))} is no partition: each rank takes data for itself" if data else
              f"{' and '.join(sorted(differ))} is one layout here and another there, and they meet" if differ else
              f"layouts {' and '.join(sorted(named))} disagree where they meet")
    verdict = Verdict("partition", first.group.name, OBLIGATIONS["partition"], REFUTED, BOUNDED, len(layouts(step)),
                      None, reason, first.failure.event)
    return replace(first, verdict=verdict)


VACUITY_SIZES = (2, 3)
"""The sizes, of every axis and of m, at which the premises must have a model."""


def occurrences(step: Step) -> dict[str, Any]:
    """What would be vacuous -> a formula without a model if it is: the premises on counts, and every `where`."""
    data = step.reference.data_axes
    cells = [count_name({}), count_name({**dict.fromkeys(data, "unit"), symbols.MICROBATCH: "unit"}),
             count_name({**dict.fromkeys(data, "c"), symbols.MICROBATCH: "unit"})]
    wheres = {pairs(e): e.path for e in step.events if e.where}
    return {"the premises have no model": z3.Sum([symbols.symbol(n) for n in cells]) >= 0,
            **{f"no rank satisfies the `where` of {path}": symbols.at_pairs(w) for w, path in wheres.items()}}


def occurring(step: Step, number: int) -> list[Any]:
    """All occurrences at once, each on its own rank; every size is `number`, or that at which it is written out."""
    axes, unrolled = step.reference.mesh.names, step.reference.unrolled
    pinned = [symbols.size(a) == unrolled.get(a, number) for a in (*axes, symbols.MICROBATCH)]
    return [*pinned, z3.And([correct.on_rank(q, {a: f"some{k}" for a in axes})
                             for k, q in enumerate(occurrences(step).values())])]


def _vacuity(step: Step) -> Verdict:
    """The premises, those on token counts included, have models at sizes 2 and 3; every `where` holds on some rank."""
    start = time.perf_counter()
    questions, reason = occurrences(step), ""
    for number in VACUITY_SIZES:
        *pinned, together = occurring(step, number)
        answer = ask(step, [*pinned, together])
        if answer.status == UNSAT:
            failed = next((text for text, q in questions.items() if ask(step, [*pinned, q]).status != SAT), "")
            reason = f"{failed or 'the premises have no common model'} at sizes {number}"
        elif answer.status != SAT:
            reason = f"no model of the premises was found at sizes {number}: {answer.reason}"
    return Verdict("vacuity", "", OBLIGATIONS["vacuity"], UNDECIDED if reason else PROVED,
                   None if reason else PARAMETRIC, len(VACUITY_SIZES) * len(questions), time.perf_counter() - start,
                   reason)
