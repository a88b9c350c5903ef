"""The states that a run reaches: initialise, step after step until the state repeats, resume."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from test_flow import step_of

from placealg.frozen import FrozenMap
from placealg.models.abstract import abstract
from placealg.prover.calculus import explore, versions
from placealg.prover.calculus.explore import (
    Chain,
    again,
    chain,
    checkpoint,
    initial,
    initialised,
    matrices,
    observed,
    resumed,
    settled,
    shapes,
    top,
    trusting,
)
from placealg.prover.calculus.machine import Machine, Read, Site
from placealg.prover.calculus.microbatches import CASES, Case
from placealg.prover.calculus.one_step import Program, Run, run_step
from placealg.prover.calculus.positions import OWNER
from placealg.prover.calculus.versions import CURRENT, GARBAGE, NEXT, UNHELD, Guarded, where
from placealg.prover.ops.flow import Flows
from placealg.step.derive import derive
from placealg.step.event import Event
from placealg.step.lower import lowered
from placealg.step.program import Clause, Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import overlay

ZERO2, ZERO3, DP = (derive(parse_strategy(name), abstract()) for name in ("zero2", "zero3", "dp"))
GPT, STAGED = step_of("zero1*tp", "gpt"), step_of("zero1*pp", "gpt")
GROUP = ZERO2.reference.groups[0]
SITE = Site("layer.out/1", "layer.weight")
ONLY = CASES[0]
LATER = next(c for c in CASES if any(i.many for i in c.iterations))


def edited(step: Step, path: str, *events: Event) -> Step:
    """The step with other events in place of one."""
    assert any(e.path == path for e in step.events), path
    return Step(step.reference, tuple(n for e in step.events for n in (events if e.path == path else (e,))))


def changed(step: Step, path: str, **fields: Any) -> Step:
    return edited(step, path, replace(step.event(path), **fields))


def program_of(step: Step) -> Program:
    step = lowered(step)
    return Program.of(step, step.reference.groups[0], SITE.parameter)


def started(step: Step) -> Machine:
    step = lowered(step)
    return initialised(step.reference, step.reference.groups[0], SITE, program_of(step), Flows(step))


def staged(step: Step, case: Case = LATER) -> Run:
    group = next(g for g in step.reference.groups if "layer.mlp.up.weight" in g.parameters)
    site, flows = Site("layer.mlp.up/1", "layer.mlp.up.weight"), Flows(step)
    program = Program.of(step, group, site.parameter)
    return run_step(initialised(step.reference, group, site, program, flows), program, case)


def steps_of(step: Step, case: Case = ONLY) -> Chain:
    return chain(started(step), program_of(step), case)


# before and after init, and after resuming

def test_before_init_the_first_rank_holds_the_weights() -> None:
    machine = initial(ZERO2.reference, GROUP, SITE, None)
    assert machine.versions == {("weight", "device"): where([("dp", "0")], CURRENT, GARBAGE)}
    assert (machine.stored, machine.values, machine.steps, machine.flows) == ({}, {}, 0, None)
    split = next(g for g in GPT.reference.groups if g.split)
    flows = Flows(GPT)
    machine = initial(GPT.reference, split, Site("x", split.parameters[0]), flows)
    assert machine.flows is flows and split.split == ("tp",)
    assert machine.versions["weight", "device"] == where(
        [("tp", OWNER)], where([("dp", "0")], CURRENT, GARBAGE), UNHELD), "every owner along its own axes"


def test_init_and_what_is_resumed_are_the_state_in_which_a_step_starts() -> None:
    for step in (DP, ZERO2, ZERO3):
        start = started(step)
        steps = steps_of(step)
        assert start.version("weight") in (CURRENT, where([("dp", "own:own")], CURRENT, UNHELD))
        assert steps.runs[-1].end.stored
        again = resumed(settled(steps.runs[-1].end), program_of(step))
        assert again.version("weight") == start.version("weight") and again.stored == {}
        assert again.version("moments") == start.version("moments")
        assert again.snapshot() in [r.start.snapshot() for r in steps.runs]


def test_who_resumes_without_loading_holds_garbage() -> None:
    program = replace(program_of(DP), resume=())
    end = steps_of(DP).runs[-1].end
    assert resumed(end, program).versions == {("weight", "device"): GARBAGE}
    split = next(g for g in GPT.reference.groups if g.split)
    machine = initial(GPT.reference, split, Site("x", split.parameters[0]), Flows(GPT))
    machine.stored["weight"] = where([("dp", "0")], NEXT, UNHELD)
    found = resumed(machine, replace(program, resume=()))
    assert found.versions == {("weight", "device"): where([("tp", OWNER)], GARBAGE, UNHELD)}
    assert (found.reference, found.site, found.group) == (GPT.reference, machine.site, split)
    assert found.flows is machine.flows and found.stored == {}
    load = next(e for e in GPT.events if e.phase == "resume" and e.group == split.name and e.value == "weight")
    loaded = resumed(machine, replace(program, resume=(load,)))
    assert GARBAGE not in leaves(loaded.version("weight")), "what was stored is trusted"


def leaves(version: versions.Version) -> set[object]:
    """Everything that a rank may hold."""
    if isinstance(version, versions.Choice):
        return leaves(version.yes) | leaves(version.no)
    return {version}


# the chain of steps

def test_the_chain_ends_where_the_state_was_seen_before() -> None:
    for step in (DP, ZERO2, ZERO3):
        steps = steps_of(step)
        assert steps.closed and [r.index for r in steps.runs] == list(range(len(steps.runs)))
        assert steps.runs[0].start.snapshot() == started(step).snapshot()
        assert steps.lasting == steps.runs[-1:] and steps.resumes == 0
        for run in steps.runs:
            (later,) = run.later
            assert later.snapshot() == run.end.next_step().snapshot()
        ends = [settled(r.later[0]).snapshot() for r in steps.runs]
        assert ends[:-1] == [r.start.snapshot() for r in steps.runs[1:]]
        assert ends[-1] in [r.start.snapshot() for r in steps.runs]


def saving(step: Step, *events: Event) -> Step:
    """The step with more events at the end of saving."""
    last = [e.path for e in step.events if e.phase == "save"][-1]
    return edited(step, last, step.event(last), *events)


def test_a_step_is_followed_behind_a_save_and_without_one() -> None:
    freed = Event("save", "free", "moments", "layer.weight")
    steps = steps_of(saving(DP, freed))
    first = steps.runs[0]
    assert [m.version("moments") for m in (first.end, first.unsaved)] == [UNHELD, first.unsaved.version("moments")]
    assert [m.version("moments") for m in map(settled, first.later)] == [UNHELD, CURRENT]
    assert steps.closed and {r.start.version("moments") for r in steps.runs[1:]} >= {UNHELD}
    assert first.unsaved.stored == {} and not first.unsaved.reads
    starts = [r.start.snapshot() for r in steps.runs]
    assert all(starts.count(s) == 1 for s in starts), "each state once"
    assert all(settled(later).snapshot() in starts for r in steps.runs for later in r.later)
    news = {k for k, r in enumerate(steps.runs) if any(
        settled(later).snapshot() not in starts[:k + 1] for later in r.later)}
    assert {r.index for r in steps.runs} == {0, 1, 2} and first not in steps.lasting and 0 in news
    assert steps.lasting and set(map(id, steps.lasting)) <= {id(r) for k, r in enumerate(steps.runs) if k not in news}


def test_what_saving_changes_and_changes_back_is_no_state_of_its_own() -> None:
    fetched = Event("save", "publish", "weight", "layer.weight")
    assert [len(steps_of(step).runs) for step in (DP, saving(DP, fetched))] == [2, 2]


def test_an_update_shows_behind_a_save_and_without_one() -> None:
    step = saving(DP, *(Event("save", "free", value, "layer.weight") for value in ("weight", "master")))
    run, program = steps_of(step).runs[0], program_of(step)
    both, saved, unsaved = ({r.version for r in observed(r, program)[0] if r.kind == "weight"} for r in (
        run, replace(run, unsaved=run.end), replace(run, end=run.unsaved)))
    assert both == saved | unsaved and UNHELD in saved and any(isinstance(v, Guarded) for v in unsaved - saved)


def test_states_in_which_an_update_shows_may_not_repeat() -> None:
    run = steps_of(DP).runs[0]
    with patch.object(explore, "_LONGEST_CHAIN", 0):
        assert not observed(run, program_of(DP))[1]


def test_every_state_is_followed_whichever_was_seen_before() -> None:
    first, then = (r.start for r in steps_of(DP).runs)
    for states in ((first, first, then), (then, then, first)):
        followed = explore._follow(states, program_of(DP), ONLY, settled)
        assert [r.start.snapshot() for r in followed.runs] == [states[0].snapshot(), states[2].snapshot()]
        assert {r.index for r in followed.runs} == {0} and followed.closed


def sharded(step: Step, *before: Event) -> Step:
    """The step whose optimizer state is sharded by resuming; `before` stand in front of it."""
    load, group = "resume.layer.weight.master.assign", "layer.weight"
    return edited(step, load, *before, step.event(load), *(
        Event("resume", "slice", value, group, axes=("dp",)) for value in ("moments", "master")))


GATHERED = changed(DP, "publish.layer.weight.publish", axes=("dp",))
RESUMED_SHARDED = sharded(GATHERED)
SENT = sharded(GATHERED, Event("resume", "broadcast", "moments", "layer.weight", axes=("dp",)))
"""What the first rank stored is sent to all, of which it holds one shard once the run was resumed."""


def test_what_is_saved_is_resumed_from_until_no_state_is_new() -> None:
    for step in (DP, ZERO2, ZERO3):
        assert again(steps_of(step), program_of(step), ONLY) == ((), True), "the state after init"
    assert again(steps_of(DP), replace(program_of(DP), resume=()), ONLY) == ((), True), "it is never resumed"
    (once,), followed = again(steps_of(RESUMED_SHARDED), program_of(RESUMED_SHARDED), ONLY)
    assert followed and once.resumes == 1 and once.closed
    assert once.runs[0].start.version("moments") == where([("dp", "own:own")], CURRENT, UNHELD)
    (first, second), followed = again(steps_of(SENT), program_of(SENT), ONLY)
    assert followed and (first.resumes, second.resumes) == (1, 2)
    assert first.runs[0].start.snapshot() == once.runs[0].start.snapshot()
    assert second.runs[0].start.version("moments") not in (CURRENT, first.runs[0].start.version("moments"))


def test_runs_that_are_resumed_again_and_again_in_another_state_are_left_open() -> None:
    with patch.object(explore, "_MOST_RESUMES", 1):
        chains, followed = again(steps_of(SENT), program_of(SENT), ONLY)
    assert len(chains) == 1 and not followed
    with patch.object(explore, "_MOST_RESUMES", 2):
        assert not again(steps_of(SENT), program_of(SENT), ONLY)[1], "what the last one saved is not looked at"


def test_every_checkpoint_is_resumed_from_once_and_every_state_is_followed_once() -> None:
    run = steps_of(SENT).runs[0]
    resumed_once = again(steps_of(SENT), program_of(SENT), ONLY)[0][0].runs[0]
    for runs, resumes in (((run, run, resumed_once), [1]), ((resumed_once, run), [1]), ((run,), [1, 2])):
        chains, followed = again(Chain(runs, runs[-1:], True), program_of(SENT), ONLY)
        assert followed and [c.resumes for c in chains] == resumes, "the first of the resumed states is among the runs"


def test_a_checkpoint_says_where_what_is_stored_is_held() -> None:
    machine = started(DP)
    machine.stored = {"weight": where([("dp", "0")], GUARDED, UNHELD), "moments": GARBAGE, "step": NEXT}
    assert checkpoint(machine) == {"weight": where([("dp", "0")], CURRENT, UNHELD), "moments": CURRENT, "step": CURRENT}


def test_a_chain_that_does_not_repeat_is_open() -> None:
    class Growing(Machine):
        def snapshot(self) -> tuple[object, ...]:
            return (self.steps,)
    start = started(DP)
    growing = Growing(**{name: getattr(start, name) for name in start.__dataclass_fields__})
    steps = chain(growing, program_of(DP), ONLY)
    assert steps.closed is False and len(steps.runs) == 4
    assert [r.start.steps for r in steps.runs] == [0, 1, 2, 3] and steps.lasting == steps.runs[-1:]


def test_cases_by_the_number_of_microbatches() -> None:
    every = shapes(DP.reference)
    assert [c for cases in every for c in cases] == list(CASES)
    assert [{c.shape for c in cases} for cases in every] == [{"1"}, {"2"}, {"3+"}]
    assert shapes(replace(DP.reference, microbatches=1)) == ((CASES[0],),)
    assert shapes(replace(DP.reference, microbatches=2)) == every


def test_the_best_state_holds_everything_right() -> None:
    steps = steps_of(ZERO2)
    best = top(steps)
    assert best.versions == dict.fromkeys(steps.runs[-1].end.versions, CURRENT) and len(best.versions) > 1
    start = steps.runs[0].start
    assert (best.reference, best.group, best.site) == (start.reference, start.group, start.site)
    assert best.flows is start.flows is not None
    run = staged(STAGED)
    assert run.end.flows is not None and top(Chain((run,), (run,), True)).flows is run.end.flows


GUARDED = Guarded(frozenset({("right1:a", versions.FrozenMap()), ("right2:b", versions.FrozenMap())}), NEXT)


def test_trusting_updates() -> None:
    machine = started(DP)
    held = where([("dp", "0")], GUARDED, UNHELD)
    machine.versions["weight", "device"] = held
    machine.stored["weight"] = held
    machine.reads = [Read("e", "weight", "only", held, CURRENT)]
    right = settled(machine)
    assert right.versions["weight", "device"] == right.stored["weight"] == where([("dp", "0")], NEXT, UNHELD)
    assert machine.versions["weight", "device"] == held and right.reads == []
    first = Guarded(frozenset({("right1:a", versions.FrozenMap())}), NEXT)
    trusted = trusting(machine, "right1:")
    assert trusted.versions["weight", "device"] == where([("dp", "0")], first, UNHELD)
    assert [r.version for r in trusted.reads] == [where([("dp", "0")], first, UNHELD)]
    assert (trusted.reads[0].event, trusted.reads[0].want) == ("e", CURRENT)
    assert trusting(machine, "right3:").versions["weight", "device"] == where([("dp", "0")], NEXT, UNHELD)
    assert machine.reads[0].version == held


def test_what_shows_an_update_is_what_is_stored_and_what_later_steps_read() -> None:
    for step in (DP, ZERO2, ZERO3):
        run = steps_of(step).runs[0]
        shown, followed = observed(run, program_of(step))
        assert followed
        names = {name for r in shown for leaf in leaves(r.version) if isinstance(leaf, Guarded)
                 for name, _ in leaf.updates}
        assert names and all(name.startswith("right0:") for name in names)
        assert {r.kind for r in shown} <= {"weight", "store", "result"} and len(set(shown)) == len(shown)
        assert "store" in {r.kind for r in shown} and all(r.version != r.want for r in shown)
        assert len({(r.version, r.want) for r in shown}) == len(shown)


def test_what_is_stored_counts_in_the_step_itself_and_in_later_ones() -> None:
    """A copy of the last step's weights that is stored shows that step's update one step later."""
    group, zero = DP.reference.groups[0].name, "prepare.layer.weight.grad_sum.zero"
    step = edited(DP, zero, Event("prepare", "offload", "weight", group), DP.event(zero))
    step = changed(step, "save.layer.weight.store", tier="host")

    def right(version: int) -> Guarded:
        return Guarded(frozenset({("right0:0", versions.FrozenMap())}), version)
    shown = {(r.event, r.version, r.want) for r in observed(steps_of(step).runs[0], program_of(step))[0]}
    assert shown == {("save.layer.weight.store", CURRENT, NEXT), ("save.layer.weight.store", right(CURRENT), NEXT),
                     ("save.layer.weight.moments.store", right(NEXT), NEXT),
                     ("backward.layer.compute", right(CURRENT), CURRENT)}


def test_an_update_of_what_nobody_stores_shows_in_the_result_and_in_the_next_step() -> None:
    stored = [e.path for e in DP.events if e.phase == "save"]
    step = Step(DP.reference, tuple(e for e in DP.events if e.path not in stored))
    shown, _ = observed(steps_of(step).runs[0], program_of(step))
    assert {r.kind for r in shown} == {"result", "weight"}


def test_an_update_of_a_matrix_shows_what_others_of_its_elements_became() -> None:
    """Of the moments of all elements that Muon reads where it updates one; an elementwise update reads its own."""
    muon = derive(overlay(parse_strategy("dp"), {"optimizer": {"name": "muon"}}), abstract())
    step = changed(muon, "update.layer.weight.update", where=(Clause("dp"),))
    assert step.reference.groups[0].whole_reads == ("grad_sum", "moments")
    run = steps_of(step).runs[0]
    assert list(matrices(run.end)) == [Read("update.layer.weight.update", "matrix", "", CURRENT, CURRENT)]
    guarded = Guarded(frozenset({("right0:0", FrozenMap())}), CURRENT)
    spoilt = run.end.copy()
    spoilt.updates = [replace(u, others=(("master", guarded), ("moments", guarded))) for u in run.end.updates]
    seen = where([("dp", "other:own")], guarded, CURRENT)
    assert [r.version for r in matrices(spoilt)] == [seen], "where another element of the matrix is updated"
    assert [r.version for r in matrices(trusting(spoilt, "right0:"))] == [seen]
    assert [r.version for r in matrices(trusting(spoilt, "right1:"))] == [CURRENT]
    again = edited(muon, "update.layer.weight.update", muon.event("update.layer.weight.update"),
                   replace(muon.event("update.layer.weight.update"), copy=2))
    shown, _ = observed(steps_of(again).runs[0], program_of(again))
    assert any(r.kind == "matrix" and r.event == "update.layer.weight.update#2" for r in shown)
    later, _ = observed(steps_of(muon).runs[0], program_of(muon))
    assert any(r.kind == "matrix" for r in later), "in the next step"
    assert list(matrices(steps_of(DP).runs[0].end)) == []
    alone = spoilt.copy()
    alone.updates, alone.group = spoilt.updates, replace(spoilt.group, locality="elementwise")
    assert list(matrices(alone)) == [], "whatever is said of what it reads"
    apart = run.end.copy()
    apart.updates = [replace(u, others=(("master", CURRENT), ("moments", guarded))) for u in run.end.updates]
    assert [r.version for r in matrices(apart)] == [seen], "moments, not master weights"
