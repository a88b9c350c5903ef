"""The obligations of one parameter group: what can fail in a program, which instances stand behind it, and when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import z3
from nets import opaque_layers
from test_explore import SENT, steps_of
from test_mutation import step_of
from worlds import WORLDS, World

from placealg.arith import Monomial
from placealg.frozen import FrozenMap
from placealg.models.transformer import gpt
from placealg.prover import correct
from placealg.prover.calculus import explore
from placealg.prover.calculus.explore import Chain, observed
from placealg.prover.calculus.machine import Site
from placealg.prover.calculus.microbatches import CASES, Case
from placealg.prover.calculus.one_step import AGAIN
from placealg.prover.calculus.places import NoRule
from placealg.prover.calculus.versions import CURRENT, NEXT
from placealg.prover.evidence import symbols
from placealg.prover.evidence.premises import premises
from placealg.prover.examine import in_case
from placealg.prover.obligations import (
    FACTS,
    MISSES,
    WRONG,
    Failure,
    Obligations,
    _lasting,
    obligations,
    of_loss,
    untransformed,
)
from placealg.prover.ops.flow import Flows
from placealg.prover.ops.op_obligations import network_obligations, sites_of
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.event import Clause, Event
from placealg.step.lower import lowered
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.streams import Stream

SKIPPING = 'base = "zero3"\n[optimizer]\nskip = "overflow"\n'
TOKENS = 'base = "dp"\n[loss]\npreset = "token_mean"\n'
STALE = "reads a stale or undefined copy in step"
LAYER_WEIGHT = "layer.weight"
UNSET = "reads a copy that initialisation did not set, in step"
LOST = "reads a copy that resuming did not restore, in step"
LEFT = "leaves no rank with the new parameters, in step"
LAYER = ("forward.layer.compute", "backward.layer.compute")
FIRST = {(c.name, c.least) for c in CASES if c.name in ("only", "first")}
"""The first case of each class of m: what a state holds does not depend on the unit's microbatch."""

Row = tuple[str, str, str]


def generated(step: Step, name: str = "layer.weight", full: bool = False) -> Obligations:
    """The obligations of a group, and, where units run whole, of the units."""
    step = lowered(step)
    group, flows = step.reference.group(name), Flows(step)
    found = obligations(step, group, sites_of(step, group, flows), flows, full)
    if step.reference.whole:
        units = network_obligations(step, flows, full)
        found.failures |= units.failures
        found.instances += units.instances
        found.data += units.data
        for obligation, facts in units.facts.items():
            found.facts[obligation] = found.facts.get(obligation, Counter()) + facts
    return found


def edited(text: str, model: str, *changes: dict[str, Any]) -> Step:
    step = step_of(text, model)
    for change in changes:
        step = edit(step, change)
    return step


def can_happen(step: Step, failure: Failure) -> bool:
    if z3.is_false(z3.simplify(failure.formula)):
        return False
    solver, formula = z3.Solver(), in_case(failure)
    solver.add(formula, *premises(step, [formula]))
    return bool(solver.check() == z3.sat)


def wrong(step: Step, name: str = "layer.weight", full: bool = False) -> list[Failure]:
    return [f for f in generated(step, name, full).failures.values() if can_happen(step, f)]


def rows(failures: Iterable[Failure]) -> set[Row]:
    return {(f.obligation, f.event, f.says) for f in failures}


def reads(obligation: str, says: str, *events: str) -> set[Row]:
    return {(obligation, event, says) for event in events}


def updates(event: str, *kinds: str, words: str = "") -> set[Row]:
    return {(kind, event, words or WRONG[kind]) for kind in kinds}


BOTH = ("gradient", "normalizer")
STORES = ("save.layer.weight.store", "save.layer.weight.moments.store")
RESULT = "update.layer.weight.update"
NOT_RESTORED = reads("init", f"{LEFT} 1 after resuming", RESULT) | reads("init", f"{LEFT} 2 after resuming", RESULT)
BROKEN: tuple[tuple[str, str, str, Sequence[dict[str, Any]], set[Row]], ...] = (
    ("dp", "abstract", "layer.weight", (), set()),
    ("zero3", "abstract", "layer.weight", ({"drop": "forward.*.gather*"},),
     reads("view", f"{STALE} 1", LAYER[0]) | reads("invariant", f"{STALE} 2", LAYER[0])),
    ("zero1", "abstract", "layer.weight", ({"drop": "publish.*"},),
     reads("invariant", f"{STALE} 1", STORES[0]) | reads("invariant", f"{STALE} 2", STORES[0], *LAYER)),
    ("dp", "abstract", "layer.weight", ({"drop": "update.rng.update"},),
     reads("invariant", f"{STALE} 1", "save.rng.store")
     | reads("invariant", f"{STALE} 2", "save.rng.store", LAYER[0])),
    ("dp", "abstract", "layer.weight", ({"drop": "update.step.update"},),
     reads("invariant", f"{STALE} 1", "save.step.store")
     | reads("invariant", f"{STALE} 2", "save.step.store", "update.layer.weight.update")),
    ("dp", "abstract", "layer.weight", ({"set": "update.step.update", "where": "rank(dp)=1"},
                                        {"move": "update.step.update", "before": "update.layer.weight.norm"}),
     reads("update", f"{STALE} 1", "update.layer.weight.update") | reads("invariant", f"{STALE} 1", "save.step.store")
     | reads("invariant", f"{STALE} 2", "save.step.store", "update.layer.weight.update")),
    ("dp", "abstract", "layer.weight", ({"drop": "init.step.assign"},),
     reads("init", f"{UNSET} 1", "save.step.store", "update.layer.weight.update")
     | reads("init", f"{UNSET} 2", "save.step.store", "update.layer.weight.update")),
    ("dp", "abstract", "layer.weight", ({"drop": "resume.rng.load"},),
     reads("init", f"{LOST} 1 after it", "save.rng.store", LAYER[0])
     | reads("init", f"{LOST} 2 after it", "save.rng.store", LAYER[0])),
    ("dp", "abstract", "layer.weight", ({"drop": "resume.*"},), set()),
    ("zero2*offload_optimizer", "abstract", "layer.weight", ({"drop": "resume.*.master.*"},),
     reads("init", f"{LOST} 1 after it", *STORES) | reads("init", f"{LOST} 2 after it", *STORES, *LAYER)
     | NOT_RESTORED),
    # a copy that is wrong without being resumed is not what resuming lost
    ("zero2*offload_optimizer", "abstract", "layer.weight", ({"drop": "resume.*.master.*"}, {"drop": "publish.*"}),
     reads("invariant", f"{STALE} 1", STORES[0]) | reads("invariant", f"{STALE} 2", STORES[0], *LAYER)
     | reads("init", f"{LOST} 1 after it", STORES[1]) | reads("init", f"{LOST} 2 after it", STORES[1])
     | NOT_RESTORED),
    ("dp", "abstract", "layer.weight", ({"drop": "init.layer.weight.moments.assign"},),
     reads("init", f"{UNSET} 1", *STORES) | reads("init", f"{UNSET} 2", *STORES, *LAYER)
     | reads("init", f"{LEFT} 1", RESULT) | reads("init", f"{LEFT} 2", RESULT)),
    # without forward and backward nobody reads what the step makes: its result is looked at all the same
    ("zero1", "abstract", "layer.weight", ({"drop": "forward.*"}, {"drop": "save.*"}, {"drop": "resume.*"},
                                           {"drop": "update.layer.weight.update"}),
     reads("invariant", f"{LEFT} 1", RESULT) | reads("invariant", f"{LEFT} 2", RESULT)
     | reads("invariant", f"{STALE} 2", LAYER[1])
     | {("forward", f"{phase}.{of}.compute", f"does not run ({at} microbatch)") for phase, of in (
         ("forward", "layer"), ("forward", "loss")) for at in ("only", "first", "middle", "last")}
     | {("forward", "backward.layer.compute", f"runs before its input is there ({at} microbatch)")
        for at in ("only", "first", "middle", "last")}),
    ("dp", "abstract", "layer.weight", ({"set": "*.grad_sum.reduce[dp]", "op": "sum"},),
     updates("update.layer.weight.update", *BOTH)),
    ("zero3", "abstract", "layer.weight", ({"set": "*.grad.reduce[dp]", "where": "rank(dp)=0"},),
     updates("update.layer.weight.update", *BOTH)
     | {("schedule", "backward.layer.weight.grad.reduce[dp]", "some ranks of the group do not take part: deadlock")}),
    ("hsdp", "abstract", "layer.weight", ({"set": "*.grad.reduce[dp_shard]", "where": "rank(dp_replicate)=0"},),
     updates("update.layer.weight.update", *BOTH)),
    ("zero3", "abstract", "layer.weight", ({"double": "update.*.clip"},),
     updates("update.layer.weight.update", "update")),
    # what concerns this group in what others do
    (SKIPPING, "units", "embedding.weight", (), set()),
    (SKIPPING, "units", "embedding.weight", ({"drop": "update.embedding.weight.skip.compute"},),
     updates("update.embedding.weight.update", "update")
     | updates("update.layer.weight.update", "update", words=MISSES["skip"])
     | updates("update.step.update", "update", words=MISSES["skip"])),
    (SKIPPING, "units", "layer.weight", ({"drop": "update.embedding.weight.skip.compute"},), set()),
    (SKIPPING, "units", "embedding.weight", ({"drop": "update.embedding.weight.norm"},),
     updates("update.embedding.weight.update", "update")
     | updates("update.layer.weight.clip", "update", words=MISSES["norm"])),
    (SKIPPING, "units", "layer.weight", ({"drop": "update.embedding.weight.norm"},), set()),
    (SKIPPING, "units", "layer.weight", ({"set": "backward.layer.weight.grad.reduce[dp]", "op": "sum"},),
     updates("update.layer.weight.update", *BOTH)
     | updates("update.embedding.weight.clip", *BOTH, words=MISSES["norm"])
     | updates("update.embedding.weight.update", *BOTH, words=MISSES["skip"])
     | updates("update.step.update", *BOTH, words=MISSES["skip"])),
    ("zero3", "units", "embedding.weight", ({"drop": "update.embedding.weight.norm"},
                                            {"move": "update.layer.weight.update",
                                             "before": "update.layer.weight.clip"}),
     updates("update.embedding.weight.update", "update")
     | updates("update.layer.weight.clip", "update", words=MISSES["norm"])),
    ('base = "zero3"\n[optimizer]\nclip = "none"\nskip = "overflow"\n', "units", "embedding.weight",
     ({"drop": "update.embedding.weight.skip.compute"},),
     updates("update.embedding.weight.update", "update")
     | updates("update.layer.weight.update", "update", words=MISSES["skip"])
     | updates("update.step.update", "update", words=MISSES["skip"])),
    # nobody clips, or nothing is skipped: what a norm or a flag would miss does not matter
    ('base = "zero3"\n[optimizer]\nclip = "none"\n', "units", "embedding.weight", (), set()),
    ("zero3", "units", "embedding.weight", (), set()),
)
"""Strategy, model, group, edits -> all that can fail."""


@pytest.mark.parametrize(("text", "model", "name", "changes", "expected"), BROKEN)
def test_what_can_fail(text: str, model: str, name: str, changes: Sequence[dict[str, Any]], expected: set[Row]) -> None:
    failures = wrong(edited(text, model, *changes), name)
    assert rows(failures) == expected
    for failure in failures:
        assert failure.exact and bool(failure.cases) == (failure.obligation != "schedule")
        assert len(failure.slot) == (failure.says in MISSES.values())
        assert bool(failure.update and failure.site) == (failure.says in WRONG.values())
        assert bool(failure.read) == (" copy " in failure.says or LEFT in failure.says)


def test_a_unit_that_does_not_run_and_those_that_need_it() -> None:
    failures = wrong(edited("zero3", "units", {"drop": "forward.head.compute"}))
    broken = {(f.event, f.says) for f in failures if f.obligation == "forward"}
    later = ("forward.loss.compute", "backward.head.compute", "backward.layer.compute", "backward.embedding.compute")
    assert broken == {("forward.head.compute", "does not run (only microbatch)"),
                      *((event, "runs before its input is there (only microbatch)") for event in later)}
    assert all(f.exact and {*f.cases} == {*CASES} for f in failures if f.obligation == "forward")
    failures = wrong(edited("zero3", "units", {"set": "forward.head.compute", "at": ["first", "middle"]}))
    broken = {(f.event, f.says) for f in failures if f.obligation == "forward"}
    assert broken == {(event, f"{says} (last microbatch)") for event, says in (
        ("forward.head.compute", "does not run"), *((event, "runs before its input is there") for event in later))}


def test_a_unit_that_runs_on_some_ranks_fails_on_the_others() -> None:
    failures = wrong(edited("zero3", "units", {"set": "forward.loss.compute", "where": "rank(dp)=0"}))
    ran = [f for f in failures if f.obligation == "forward"]
    assert {f.event for f in ran} == {"forward.loss.compute"}
    for world in (World(FrozenMap({"dp": 3})), World(FrozenMap({"dp": 1}))):
        for rank in world.ranks():
            assert all(world.true(f.formula, rank) == (rank["dp"] != 0) for f in ran)
    halves = edited("zero3", "units", {"double": "forward.head.compute"})
    places = iter((0, 1))
    split = replace(halves, events=tuple(replace(e, where=(Clause("dp", next(places)),))
                                         if e.unit == "head" and e.phase == "forward" else e for e in halves.events))
    two = {f.event: f for f in wrong(split) if f.obligation == "forward"}
    world = World(FrozenMap({"dp": 3}))
    assert [world.true(two["forward.head.compute"].formula, rank) for rank in world.ranks()] == [False, False, True]


def test_a_unit_that_runs_otherwise_is_named_by_its_event() -> None:
    halves = edited("zero3", "units", {"double": "forward.head.compute"})
    second = tuple(replace(e, where=(Clause("dp", 0),)) if e.path == "forward.head.compute#2" else e
                   for e in halves.events if e.path != "forward.head.compute")
    failures = wrong(replace(halves, events=second))
    assert {f.event for f in failures if f.obligation == "forward"} == {"forward.head.compute#2"}


def test_a_unit_that_runs_twice_is_judged_once() -> None:
    assert not wrong(edited("zero3", "units", {"double": "forward.head.compute"}))


@pytest.mark.parametrize("text", ["dp", "zero3"])
def test_every_microbatch_of_every_case_and_step_is_checked(text: str) -> None:
    """Two steps until the state repeats; the state of a copy is the same for all cases of one class of m."""
    step = step_of(text, "abstract")
    found, steps = generated(step), 2
    iterations = sum(len({i.position for i in c.iterations}) for c in CASES)
    firsts = [c for c in CASES if (c.name, c.least) in FIRST]
    passes = sum(len(c.iterations) for c in firsts)
    collectives = sum(e.verb in ("broadcast", "gather", "reduce", "all_reduce") for e in step.events)
    for kind in BOTH:
        assert found.instances[kind] == steps * len(CASES)
    assert found.instances["update"] == steps * len(CASES) + len(firsts)
    assert found.instances["view"] == passes * len(LAYER) and found.instances["random"] == passes + 1
    assert found.instances["forward"] == found.data["forward"] == iterations * 3
    own = sum(found.instances[k] for k in ("view", "random", "invariant", "update")) - steps * len(CASES)
    assert found.instances["init"] == own - 1
    assert found.instances["schedule"] == collectives
    assert found.facts == {
        "random": {"an op draws from a stream keyed by logical coordinates": 1},
        "schedule": {"a collective without `where` is called by every rank of its group": collectives}}
    assert not found.open


@pytest.mark.parametrize(("text", "model", "name", "edits", "fails"), [
    ("zero3", "abstract", "layer.weight", (), ()), (SKIPPING, "units", "embedding.weight", (), ()),
    ("zero2*offload_optimizer", "abstract", "layer.weight", ({"drop": "resume.*.master.*"},), ("init",)),
    ("zero3", "units", "layer.weight", ({"drop": "forward.head.compute"},), ("forward", *BOTH))])
def test_in_full_every_instance_is_behind_a_formula_or_a_fact(text: str, model: str, name: str, edits: Any,
                                                              fails: tuple[str, ...]) -> None:
    step = edited(text, model, *edits)
    short, full = generated(step, name), generated(step, name, full=True)
    assert full.instances == short.instances and full.facts == short.facts and len(full.failures) > len(short.failures)
    behind: Counter[str] = Counter()
    for failure in full.failures.values():
        behind[failure.obligation] += failure.instances
        assert failure.obligation in fails or not can_happen(step, failure)
        assert not failure.read or {(c.name, c.least) for c in failure.cases} <= FIRST
        assert not failure.read or failure.cases
    assert not any(correct.always_right(f.read) for f in short.failures.values() if f.read)
    possible = [rows(f for f in made.failures.values() if can_happen(step, f)) for made in (short, full)]
    assert possible[0] == possible[1]
    for obligation, number in full.instances.items():
        assert number == behind[obligation] + full.facts.get(obligation, Counter()).total()
    says = {(f.obligation, f.says) for f in full.failures.values()}
    assert {(k, f"{STALE} {n}") for k, n in (("view", 1), ("update", 1), ("random", 1), ("invariant", 2))} <= says
    assert {("init", f"{UNSET} {n}") for n in (1, 2)} <= says


def test_the_cases_in_which_something_can_happen() -> None:
    """A missing reduction is seen wherever the unit is; a missing gather of the first microbatch by m alone."""
    every = {(c.name, c.least, c.exact) for c in CASES}
    for failure in wrong(edited("dp", "abstract", {"set": "*.grad_sum.reduce[dp]", "op": "sum"})):
        assert failure.exact and failure.update and failure.site and failure.instances == len(failure.cases)
    cases = {(c.name, c.least, c.exact) for f in wrong(edited("dp", "abstract", {"drop": "*.grad_sum.reduce*"}))
             for c in f.cases}
    assert cases == every
    for failure in wrong(edited("zero1", "abstract", {"drop": "publish.*"})):
        assert failure.read and {(c.name, c.least) for c in failure.cases} <= FIRST
    stores = [f for f in wrong(edited("zero1", "abstract", {"drop": "publish.*"})) if f.event == STORES[0]]
    assert all({(c.name, c.least) for c in f.cases} == FIRST and f.instances == 3 for f in stores)
    only = edited('base = "dp"\n[schedule]\nmicrobatches = 1\n', "abstract", {"drop": "*.grad_sum.reduce*"})
    assert {c for f in wrong(only) for c in f.cases} == {CASES[0]}
    assert all(not f.cases for f in wrong(edited("zero3", "abstract", {"set": "*.grad.reduce*", "where": "rank(dp)=0"}))
               if f.obligation == "schedule")


def at(step: Step, **places: str) -> Step:
    """The events of a verb at one position of the loop over microbatches only."""
    return replace(step, events=tuple(replace(e, at=(places[e.verb],)) if e.verb in places else e
                                      for e in step.events))


def test_what_a_second_middle_microbatch_misses_needs_one_microbatch_more() -> None:
    """The first one uses the gathered copy and frees it."""
    failures = wrong(at(step_of("fsdp_no_reshard", "abstract"), gather="first", free="middle"))
    where = {(f.read.position, c.least, c.exact) for f in failures if f.read for c in f.cases}
    assert where == {(AGAIN, 4, False), ("last", 3, False)}
    assert {f.obligation for f in failures} == {"view", "invariant"}


def refreshed(step: Step) -> Step:
    """The weight is copied anew from the master behind each backward of a microbatch in the middle."""
    fresh = Event("backward", "assign", "weight", "layer.weight", source="master", at=("middle",))
    place = max(k for k, e in enumerate(step.events) if e.phase == "backward") + 1
    return replace(step, events=(*step.events[:place], fresh, *step.events[place:]))


@pytest.mark.parametrize(("dropped", "says"), [("resume.*.master.*", f"{LOST} 1 after it"),
                                               ("init.*.master.*", f"{UNSET} 1")])
def test_what_only_a_second_middle_microbatch_reads_may_be_wrong_from_the_start(dropped: str, says: str) -> None:
    step = refreshed(edited("dp", "abstract", {"drop": dropped}))
    assert not wrong(refreshed(step_of("dp", "abstract")))
    late = [f for f in wrong(step) if f.read and f.read.kind == "weight" and f.says == says]
    where = {(f.read.position, f.event, c.least, c.exact) for f in late if f.read for c in f.cases}
    assert where == {(p, e, n, False) for p, n in ((AGAIN, 4), ("last", 3)) for e in LAYER}
    assert {f.obligation for f in late} == {"init"}


def test_a_unit_may_miss_its_input_from_the_second_middle_microbatch_on() -> None:
    """There the count is one that only some ranks took, which is known of the first one only afterwards."""
    step = step_of(TOKENS, "abstract")
    count = Event("forward", "compute", "count", unit="loss", where=(Clause("dp", 0),), at=("middle",))
    place = [e.path for e in step.events].index("forward.loss.compute") + 1
    step = replace(step, events=(*step.events[:place], count, *step.events[place:]))
    late = [f for f in wrong(step) if f.obligation == "forward"]
    assert {(f.event, f.says) for f in late} == {
        ("backward.layer.compute", f"runs before its input is there ({place} microbatch)") for place in (
            "middle", "last")}


def test_a_loop_without_a_fixpoint_is_open_and_claims_small_m_only() -> None:
    """Each microbatch multiplies what is summed so far by the number of ranks: also the unit's, once it is there."""
    step = edited("dp", "abstract", {"move": "*.grad_sum.reduce[dp]", "before": "backward.*.accumulate", "op": "sum"})
    found = generated(step)
    assert set(found.open) == {"the loop over microbatches has no fixpoint: checked for small m only"}
    inexact = {c for f in wrong(step) if not f.exact for c in f.cases}
    steady = {c for c in CASES if not any(i.many for i in c.iterations[[i.active for i in c.iterations].index(True):])}
    assert {case for *_, case in found.updates} == steady and inexact == {*CASES} - steady


def test_without_a_fixpoint_all_that_a_later_microbatch_shows_is_for_small_m_only() -> None:
    step = edited("dp", "units", {"move": "reduce.layer.weight.grad_sum.reduce[dp]",
                                  "before": "backward.layer.weight.grad_sum.accumulate", "op": "sum"},
                  {"set": "backward.layer.compute", "where": "rank(dp)=0"})
    failures = wrong(step)
    for says in (WRONG["gradient"], MISSES["norm"]):
        exact = {f.exact: set(f.cases) for f in failures if f.says == says}
        assert exact[False] and all(any(i.many for i in c.iterations) for c in exact[False] if c.least > 4)
    assert {f.exact for f in failures if f.says == MISSES["norm"]} == {True, False}


def test_states_that_do_not_repeat_soon_are_open() -> None:
    """What is not held moves on by one copy in each step."""
    def moves(phase: str) -> list[Event]:
        def event(verb: str, value: str, tier: str, source: str = "") -> Event:
            return Event(phase, verb, value, "layer.weight", tier=tier, source=source)
        if phase == "init":
            return [event("offload", "weight", "device->host"), event("offload", "weight", "host->nvme"),
                    event("offload", "master", "device->host"), event("offload", "master", "host->nvme")]
        return [event("offload", "master", "host->nvme"), event("fetch", "master", "nvme->host", "weight"),
                event("offload", "weight", "host->nvme"), event("free", "weight", "host")]

    step = step_of("dp", "abstract")
    split = {p: [e for e in step.events if e.phase == p] for p in dict.fromkeys(e.phase for e in step.events)}
    for phase in ("init", "publish"):
        split[phase] += moves(phase)
    found = generated(replace(step, events=tuple(e for events in split.values() for e in events)))
    assert set(found.open) == {"the states of a run do not repeat"}
    split["publish"] = [e for e in split["publish"] if (e.verb, e.value) != ("offload", "master")]
    assert not generated(replace(step, events=tuple(e for events in split.values() for e in events))).open


def test_resumed_runs_that_do_not_repeat_soon_are_open() -> None:
    with patch.object(explore, "_MOST_RESUMES", 1):
        found = generated(SENT)
    assert set(found.open) == {"runs that are resumed again and again do not repeat"} and not generated(SENT).open


def test_updates_that_show_later_than_is_followed_are_open() -> None:
    step = step_of("dp", "abstract")
    with patch.dict(obligations.__globals__, {"observed": lambda run, program: (observed(run, program)[0], False)}):
        found = generated(step)
    assert set(found.open) == {"the states in which an update would show do not repeat"}


def test_a_run_that_is_resumed_again_is_told_as_that() -> None:
    assert {f.says for f in wrong(SENT)} == {says for number in (1, 2) for says in (
        f"reads a copy that resuming a resumed run did not restore, in step {number} after it",
        f"leaves no rank with the new parameters, in step {number} after resuming a resumed run")}


def test_a_read_is_held_against_each_that_lasts() -> None:
    """Steps that last and read otherwise: of a resumed run's read, all of them say what was right before."""
    run = steps_of(SENT).runs[0]
    once, other = (replace(run.end.reads[0], version=version) for version in (CURRENT, NEXT))
    runs = [replace(run, end=replace(run.end, reads=reads)) for reads in ([once], [other], [once])]
    assert _lasting(Chain((), tuple(runs), True)) == {(once.event, once.kind, once.position): (once, other)}


@pytest.mark.parametrize(("text", "model"), [("dp", "abstract"), ("zero3", "units")])
def test_the_updates_of_each_case_are_known(text: str, model: str) -> None:
    step = step_of(text, model)
    for group in step.reference.groups:
        found = generated(step, group.name)
        sites = [Site(f"{u}.out/1", group.name) for u in group.sites]
        assert {(event, site, case) for event, _, site, case in found.updates} == {
            (f"update.{group.name}.update", s, c) for s in sites for c in CASES}
        assert all((event, flag) == (update.event, update.flag) for (event, flag, *_), update in found.updates.items())


def with_keys(step: Step, *keys: str) -> Step:
    return replace(step, reference=replace(step.reference, random_keys=tuple(map(Stream.parse, keys))))


@pytest.mark.parametrize(("key", "elsewhere"), [
    ("rank(dp)", lambda world, rank: rank["dp"] != 0),
    ("rank(tp)", lambda world, rank: rank["tp"] != 0),
    ("local(batch)", lambda world, rank: True),
    ("local(seq)", lambda world, rank: world.position("dp", "unit", rank) != 0),
])
def test_a_stream_keyed_by_rank_or_locally_draws_other_numbers(key: str, elsewhere: Any) -> None:
    """There are two microbatches in these worlds."""
    step = step_of("dp", "abstract")
    mesh = replace(step.reference.mesh, axes=(*step.reference.mesh.axes, replace(step.reference.mesh.axes[0],
                                                                               name="tp")))
    step = with_keys(replace(step, reference=replace(step.reference, mesh=mesh)), key)
    draws = [f for f in wrong(step) if f.obligation == "random"]
    assert rows(draws) == {("random", "forward.layer.compute", f"draws from a stream keyed by {key}: equal to the "
                            "reference in distribution only")}
    (draw,) = draws
    for world in WORLDS:
        for rank in world.ranks():
            assert world.true(draw.formula, rank) == elsewhere(world, rank)
    first = [z3.Int(name) == 0 for name in ("unit@dp", "c@dp", "c@tp")]
    alone = z3.Solver()
    alone.add(draw.formula, z3.Int("m") == 1, *first)
    assert alone.check() == z3.unsat
    there, two = z3.Int({"rank(tp)": "c@tp", "rank(dp)": "c@dp"}.get(key, "unit@dp")) == 1, z3.Int("m") == 2
    for one, draws_otherwise in ((there, True), (two, key == "local(batch)")):
        alone = z3.Solver()
        alone.add(draw.formula, one, *([two] if one is two else [z3.Int("m") == 1]),
                  *(first if one is two else []))
        assert (alone.check() == z3.sat) == draws_otherwise


def test_a_stream_is_drawn_from_where_a_unit_runs() -> None:
    step = with_keys(step_of("dp", "units"), "rank(dp)", "local(batch)")
    draws = [f for f in wrong(step) if f.obligation == "random"]
    assert Counter(f.event for f in draws) == {f"forward.{u}.compute": 2 for u in ("embedding", "layer", "head")}
    assert all(f.instances == 1 and not f.cases for f in draws)
    before = generated(step_of("dp", "units"))
    assert generated(step).instances["random"] == before.instances["random"] - 3 + len(draws)
    assert before.facts["random"].total() == 3 and "random" not in generated(step).facts


def test_a_collective_that_some_ranks_call() -> None:
    """Along another axis than its own, a `where` is the same for all ranks of its group."""
    for where, waits in (("rank(dp_shard)=0", True), ("rank(dp_replicate)=0", False), ("owner(dp_shard)", True),
                         ("rank(dp_replicate)=0, rank(dp_shard)=0", True)):
        step = edited("hsdp", "abstract", {"set": "backward.*.grad.reduce[dp_shard]", "where": where})
        calls = [f for f in generated(step, full=True).failures.values() if f.obligation == "schedule"]
        assert [f.event for f in calls] == ["backward.layer.weight.grad.reduce[dp_shard]"]
        assert can_happen(step, calls[0]) == waits and calls[0].instances == 1 and not calls[0].cases
        before = generated(step_of("hsdp", "abstract"))
        found = generated(step)
        assert found.instances["schedule"] == before.instances["schedule"] == found.facts["schedule"].total() + 1
    world = World(FrozenMap({"dp_replicate": 2, "dp_shard": 2}), peers=FrozenMap({"dp_replicate": 0, "dp_shard": 1}))
    step = edited("hsdp", "abstract", {"set": "backward.*.grad.reduce[dp_shard]", "where": "rank(dp_shard)=0"})
    (call,) = [f for f in wrong(step) if f.obligation == "schedule"]
    assert [r["dp_shard"] for r in world.ranks() if world.true(call.formula, r)] == [0, 0]
    assert set(symbols.names(call.formula)) == {"c@dp_shard", "peer@dp_shard"}
    both = edit(step, {"set": "update.norm.all_reduce*", "where": "rank(dp_shard)=0"})
    assert {f.event.rpartition(".")[2] for f in wrong(both) if f.obligation == "schedule"} == {
        "reduce[dp_shard]", "all_reduce[dp_replicate,dp_shard]"}


def test_stages_that_call_on_each_other_for_what_one_holds_wait_without_end() -> None:
    """Wherever there are two of them; `where` may leave them out."""
    for where, alone in (("", ""), ("rank(dp)=0", "dp"), ("rank(pp)=1", "pp")):
        step = edited("dp*pp", "mlp", {"set": "reduce.layer.weight.grad_sum.reduce[dp]", "axes": ["dp", "pp"],
                                       **({"where": where} if where else {})})
        (call,) = [f for f in generated(step, full=True).failures.values() if f.obligation == "schedule"]
        assert (call.event, call.says, call.cases) == (
            "reduce.layer.weight.grad_sum.reduce[dp,pp]", "waits for stages that hold other parameters: deadlock", ())
        for stages in (1, 2, 3):
            world = World(FrozenMap({"dp": 2, "pp": stages}))
            waiting = [r for r in world.ranks() if world.true(call.formula, r)]
            wanted = {"": 2 * stages, "dp": stages, "pp": 2}[alone] if stages > 1 else 0
            assert len(waiting) == wanted
    several = edited("dp*pp", "mlp", {"set": "reduce.layer.weight.grad_sum.reduce[dp]", "axes": ["dp", "pp"]},
                     {"double": "reduce.layer.weight.grad_sum.reduce*"})
    found, before = generated(several), generated(step_of("dp*pp", "mlp"))
    assert sum(f.obligation == "schedule" for f in found.failures.values()) == 2
    assert found.instances["schedule"] == before.instances["schedule"] + 1 and found.instances.keys() == (
        before.instances.keys())
    tied = derive(parse_strategy("dp*pp"), gpt())
    assert not [f for f in generated(tied, "embedding.weight", True).failures.values() if f.obligation == "schedule"]


def test_a_group_answers_for_its_own_collectives_and_those_of_all() -> None:
    step = edited("zero3", "units", {"set": "backward.embedding.weight.grad.reduce[dp]", "where": "rank(dp)=0"})
    assert "schedule" in {f.obligation for f in wrong(step, "embedding.weight")}
    assert "schedule" not in {f.obligation for f in wrong(step, "layer.weight")}
    norm = edited("zero3", "units", {"set": "update.norm.all_reduce[dp]", "where": "rank(dp)=0"})
    for group in norm.reference.groups:
        assert "update.norm.all_reduce[dp]" in {f.event for f in wrong(norm, group.name) if f.obligation == "schedule"}


def test_the_step_of_one_loss() -> None:
    step = step_of(TOKENS, "abstract")
    assert of_loss(step, "loss") is step
    two = replace(step.reference, losses=("loss", "ahead"))
    other = [replace(e, unit="ahead") for e in step.events if e.value in ("loss", "count")]
    both = replace(step, reference=two, events=tuple(sorted((*step.events, *other), key=order(step))))
    alone = of_loss(both, "ahead")
    assert alone.reference.losses == ("ahead",)
    assert {e.unit for e in alone.events if e.value in ("loss", "count")} == {"ahead"}
    assert [e for e in alone.events if e.value not in ("loss", "count")] == [
        e for e in step.events if e.value not in ("loss", "count")]


def order(step: Step) -> Any:
    phases = list(dict.fromkeys(e.phase for e in step.events))
    return lambda event: phases.index(event.phase)


def test_a_statistic_is_neither_clipped_nor_looked_at() -> None:
    reference = untransformed(step_of(SKIPPING, "units")).reference
    assert (reference.clip, reference.skip) == (False, False)
    assert replace(reference, clip=True, skip=True) == step_of(SKIPPING, "units").reference
    step = step_of("dp", "statistics")
    assert step.reference.clip and not wrong(step, "layer.running")


def test_what_other_microbatches_counted_stays_in_no_gradient() -> None:
    """Of the middle ones there is any number, each with a count of its own; of the first and the last there is one."""
    def scaled(divisor: str, *at: str) -> Step:
        return edited(TOKENS, "abstract", {"insert": {"path": "forward.layer.weight.grad_sum.scale", "at": list(at),
                                                      "divisor": divisor}, "before": "forward.layer.compute"})

    for at in ((), ("middle",)):
        for divisor in ("tokens", "1/tokens", "m/tokens**2"):
            with pytest.raises(NoRule, match=r"^backward\.layer\.weight\.grad_sum\.accumulate: a gradient of "
                                             r"layer\.weight keeps what another microbatch counted$"):
                generated(scaled(divisor, *at))
    for step in (scaled("tokens", "last", "only"), scaled("m", "middle")):
        assert wrong(step)
    assert not wrong(scaled("1")) and not wrong(scaled("tokens", "first")), "there the sum is 0"


def test_a_layer_that_begins_the_gradient_of_another_unit_runs_its_backward_once() -> None:
    """Only one instance begins it, and all others add; a gradient of its own each instance begins anew."""
    step = edit(derive(parse_strategy("dp"), opaque_layers()), {"double": "backward.layer.compute"})
    with pytest.raises(NoRule, match=r"^backward\.layer\.compute#2: no transfer rule for another backward of layer "
                                     r"in a microbatch$"):
        generated(step, "embedding.weight")
    assert not wrong(step, "layer.weight") and not wrong(edited("zero3", "units", {"double": "backward.head.compute"}))


def test_a_tied_group_on_a_stage_in_the_middle_has_no_rule() -> None:
    from test_stages import TIED
    group = TIED.reference.group("embedding.weight")
    axis = TIED.reference.pipeline.axis
    events = tuple(replace(e, where=(Clause(axis, 1),)) if e.group == group.name and e.phase == "update" else e
                   for e in TIED.events)
    with pytest.raises(NoRule, match=r"^update\.\S*: no transfer rule for a stage by its number, which may be no end "
                                     r"of the pipeline$"):
        obligations(replace(TIED, events=events), group, (), None)


def test_of_a_step_that_runs_op_by_op_the_ops_are_judged_elsewhere() -> None:
    for changes, kinds in (((), set()), (({"drop": "backward.layer.mlp.up.grad.compute"},), set(BOTH))):
        step = edited("ffn", "mlp", *changes)
        (group,) = [g for g in step.reference.groups if "layer.mlp.up.weight" in g.parameters]
        found = generated(step, group.name)
        assert not found.instances["forward"] and found.instances["gradient"]
        assert {f.obligation for f in found.failures.values() if can_happen(step, f)} == kinds


def test_instances_and_cases_are_counted_by_way_to_fail() -> None:
    def failure(says: str) -> Failure:
        return Failure("view", "event", z3.BoolVal(True), says)

    found, made = Obligations(), list[str]()

    def add(key: str, case: Case | None, decided: bool = False, says: str = "") -> None:
        found.add("view", key, case, lambda: made.append(key) or failure(says), decided)  # type: ignore[func-returns-value]
    add("one", CASES[0], says="first")
    add("one", CASES[1], says="again")
    add("one", CASES[1])
    add("one", None)
    add("two", None)
    add("three", CASES[0], decided=True)
    assert found.instances == {"view": 6} and made == ["one", "two"]
    assert {k: (f.says, f.cases, f.instances) for k, f in found.failures.items()} == {
        "one": ("first", CASES[:2], 4), "two": ("", (), 1)}
    found.full = True
    add("three", CASES[0], decided=True)
    assert found.failures["three"].instances == 1 and found.instances == {"view": 7}
    for obligation in ("partition", "partition", "schedule"):
        found.hold(obligation)
    assert found.instances == {"view": 7, "partition": 2, "schedule": 1}
    assert found.facts == {"partition": {FACTS["partition"][0]: 2}, "schedule": {FACTS["schedule"][0]: 1}}
    step = step_of("dp", "abstract")
    assert Obligations().full is obligations(step, step.reference.groups[0], (), None).full is False


def test_what_is_divided_by_a_count_is_judged_with_equal_counts_and_without() -> None:
    """Without the hypothesis a mean of local means is right only if every rank holds equally many tokens."""
    step = step_of("dp", "abstract")
    assumed = replace(step, reference=replace(step.reference, hypotheses=()))
    assert "equal_counts" in step.reference.hypotheses
    assert {f.obligation for f in wrong(assumed)} == {"normalizer"}
    assert Monomial.of("m") in [e.divisor for e in step.events]


@pytest.mark.parametrize(("copied", "stored", "expected"), [
    (f"update.{LAYER_WEIGHT}.clip", "host", set()),
    (f"reduce.{LAYER_WEIGHT}.grad_sum.reduce[dp]", "host", {("update", f"update.{LAYER_WEIGHT}.update#2")}),
    (f"reduce.{LAYER_WEIGHT}.grad_sum.reduce[dp]", "device", set()),
])
def test_a_read_shows_whether_its_own_update_was_right(copied: str, stored: str,
                                                       expected: set[tuple[str, str]]) -> None:
    """The host updates a copy of its own, wrongly where its gradient was not clipped: seen only if that is stored."""
    phase, name = copied.partition(".")[0], LAYER_WEIGHT
    there = {"tier": "device->host"}
    step = edit(
        step_of("dp", "abstract"),
        {"insert": {"path": f"init.{name}.master.offload", **there}, "after": f"init.{name}.master.assign"},
        {"insert": {"path": f"init.{name}.moments.assign", "tier": "host"}, "after": f"init.{name}.moments.assign"},
        {"insert": {"path": f"{phase}.{name}.grad_sum.offload", **there}, "after": copied},
        {"insert": {"path": f"update.{name}.update", "tier": "host"}, "after": f"update.{name}.update"},
        {"set": f"save.{name}.moments.store", "tier": stored},
        {"insert": {"path": f"resume.{name}.master.offload", **there}, "after": f"resume.{name}.master.assign"},
        {"insert": {"path": f"resume.{name}.moments.offload", **there}, "after": f"resume.{name}.moments.load"})
    failures = wrong(step)
    assert {(f.obligation, f.event) for f in failures} == expected
    tiers = [e.tier for e in step.events if e.verb == "update" and e.group]
    assert tiers == ["device", "host"] and all(f.update and f.update.gradient.terms for f in failures)


def test_a_read_that_goes_wrong_in_the_third_step_is_the_fault_of_the_steps_alone() -> None:
    """Moments of the last checkpoint are loaded in every step: a checkpoint of step n is read in n + 2."""
    step = edited("dp", "abstract", {"move": f"resume.{LAYER_WEIGHT}.moments.load", "after": "update.step.update"})
    assert rows(wrong(step)) == (reads("invariant", f"{STALE} 2", f"save.{LAYER_WEIGHT}.store")
                                 | reads("invariant", f"{STALE} 3", *LAYER, f"save.{LAYER_WEIGHT}.store")
                                 | reads("invariant", f"{LEFT} 2", RESULT) | reads("invariant", f"{LEFT} 3", RESULT))


@pytest.mark.parametrize(("root", "lost"), [(None, True), (1, True), (0, False)])
def test_a_run_may_be_resumed_from_its_first_checkpoint(root: int | None, lost: bool) -> None:
    """In the first step rank 0 alone holds optimizer states, and stores them; from the second on all ranks do."""
    name = LAYER_WEIGHT
    again = {"insert": {"path": f"resume.{name}.moments.broadcast[dp]", "root": root or 0},
             "after": f"resume.{name}.moments.load"}
    step = edit(
        step_of("dp", "abstract"),
        *({"set": f"init.{name}.{state}.assign", "where": "rank(dp)=0"} for state in ("master", "moments")),
        {"insert": {"path": f"publish.{name}.broadcast[dp]"}, "after": f"publish.{name}.publish"},
        *({"insert": {"path": f"save.{name}.{state}.broadcast[dp]"}, "after": f"save.{name}.moments.store"}
          for state in ("master", "moments")),
        *([] if root is None else [again]))
    failures = rows(wrong(step))
    assert bool(failures) == lost and all(
        kind == "init" and says.startswith((LOST, LEFT)) for kind, _, says in failures)
