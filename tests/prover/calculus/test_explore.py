"""The states that a run reaches: initialise, step after step until the state repeats, resume."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import z3
from test_flow import step_of

from placealg.arith import ONE, Monomial
from placealg.frozen import FrozenMap
from placealg.models.abstract import abstract
from placealg.prover.calculus import explore, versions
from placealg.prover.calculus.contribution import count_name
from placealg.prover.calculus.explore import (
    AGAIN,
    OUTSIDE,
    Chain,
    Program,
    Run,
    again,
    chain,
    checkpoint,
    execute,
    initial,
    initialised,
    matrices,
    observed,
    result,
    resumed,
    run_step,
    settled,
    shapes,
    top,
    trusting,
)
from placealg.prover.calculus.machine import Machine, Read, Site
from placealg.prover.calculus.microbatches import CASES, Case
from placealg.prover.calculus.places import NoRule
from placealg.prover.calculus.positions import OWNER, UNIT
from placealg.prover.calculus.versions import CURRENT, GARBAGE, NEXT, UNHELD, Guarded, Version, choose, where
from placealg.prover.correct import always_right, wrong_read
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


def steps_of(step: Step, case: Case = ONLY) -> Chain:
    return chain(started(step), program_of(step), case)


# the program of a group

def test_a_group_sees_its_own_events_the_global_ones_and_who_reads_its_norm_and_flag() -> None:
    group = next(g for g in GPT.reference.groups if g.name == "layer.weight")
    program = Program.of(GPT, group, "layer.mlp.up.weight")
    told = {e.path for e in program.everything}
    wanted = {e.path for e in GPT.events if not e.on_tensor and (
        e.group in ("", group.name) or e.verb in ("clip", "update"))}
    ops = {f"{phase}.{op}.compute" for phase, op in (
        ("forward", "layer.mlp.up"), ("backward", "layer.mlp.up.grad"), ("backward", "loss.sum.grad"),
        *(("forward", f"{n}dropped") for n in ("embedding.", "layer.attn.core.", "layer.attn.", "layer.mlp.")))}
    assert told == wanted | ops
    assert [e.path for e in program.everything] == [e.path for e in GPT.events if e.path in told]
    for phases, events in ((("init",), program.init), (("save",), program.save), (("resume",), program.resume),
                           (("prepare", "forward", "backward", "reduce", "update", "publish"), program.step)):
        assert events and {e.phase for e in events} <= set(phases)
    without = {e.path for e in Program.of(GPT, group).everything}
    assert without == told - {"forward.layer.mlp.up.compute", "backward.layer.mlp.up.grad.compute"}


def test_an_event_that_no_rule_covers_is_no_program() -> None:
    zero = next(e.path for e in ZERO2.events if e.verb == "zero")
    with pytest.raises(NoRule, match=r"no transfer rule for zero of grad_sum with a divisor"):
        program_of(changed(ZERO2, zero, divisor=Monomial.of("dp")))


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


def test_events_outside_the_loop_run_for_no_unit() -> None:
    machine = initial(ZERO2.reference, GROUP, SITE, None)
    assert execute(machine, program_of(ZERO2).init) is machine
    assert (OUTSIDE.position, OUTSIDE.active, OUTSIDE.many) == ("", False, False)
    assert GARBAGE not in leaves(machine.version("weight"))
    zero = next(e for e in DP.events if e.verb == "zero")
    assert execute(initial(DP.reference, DP.reference.groups[0], SITE, None), (zero,)).value("grad_sum").zero


# one step

def test_one_step_counts_the_units_microbatch_once_wherever_it_stands() -> None:
    program, start = program_of(DP), started(DP)
    for case in CASES:
        run = run_step(start, program, case, 3)
        assert (run.case, run.start, run.index, run.whole) == (case, start, 3, True)
        (update,) = run.end.updates
        assert len(update.gradient.terms) == 1 and not update.gradient.garbage
        assert run.end.stored and run.end.steps == 0
        position = next(i.position for i in case.iterations if i.active)
        cell = count_name({"dp": UNIT, "microbatch": UNIT})
        assert update.gradient.terms[0].coefficient == ONE / Monomial.of(cell) / Monomial.of("m") / Monomial.of("dp")
        read = {r.position for r in run.end.reads if r.kind == "weight" and r.event.startswith("backward.")}
        assert read == {i.position for i in case.iterations} and position in read
    assert run_step(start, program, ONLY).index == 0
    assert start.updates == [] and start.stored == {}, "the state before is left as it is"


def test_a_step_knows_nothing_of_what_was_counted_before_it() -> None:
    start = replace(started(DP), count=Monomial.of("tokens"))
    empty = replace(program_of(DP), step=())
    assert run_step(start, empty, CASES[0]).end.count is None
    assert start.count == Monomial.of("tokens")


def test_the_first_microbatch_alone_does_what_is_restricted_to_it() -> None:
    accumulate = next(e.path for e in DP.events if e.verb == "accumulate")
    program, start = program_of(changed(DP, accumulate, at=("first",))), started(DP)
    counted = {c.name for c in CASES if run_step(start, program, c).end.updates[0].gradient.terms}
    assert counted == {"only", "first"}


def test_more_microbatches_change_nothing_or_the_step_stands_for_small_m_only() -> None:
    accumulate = next(e for e in DP.events if e.verb == "accumulate")
    program, start = program_of(DP), started(DP)
    assert all(run_step(start, program, c).whole for c in CASES)
    scale = replace(accumulate, verb="scale", divisor=Monomial.of("dp"), source="", copy=2)
    growing = program_of(edited(DP, accumulate.path, accumulate, scale))
    wholes = {c: run_step(start, growing, c).whole for c in CASES}
    assert {c for c, whole in wholes.items() if not whole} <= {c for c in CASES if any(i.many for i in c.iterations)}
    assert not all(wholes.values())


def test_a_second_passive_microbatch_reads_at_a_position_of_its_own_where_that_differs() -> None:
    """A weight that each microbatch spoils is right for the first of them only."""
    compute = DP.event("forward.layer.compute")
    free = Event("forward", "free", "weight", DP.reference.groups[0].name)
    run = run_step(started(DP), program_of(edited(DP, compute.path, compute, free)), LATER)
    positions = [r.position for r in run.end.reads if r.kind == "weight" and r.event == compute.path]
    assert positions[0] == LATER.iterations[0].position
    plain = run_step(started(DP), program_of(DP), LATER)
    assert AGAIN not in {r.position for r in plain.end.reads}
    late = changed(edited(DP, compute.path, compute, replace(free, at=("middle",))), free.path, at=("middle",))
    found = run_step(started(DP), program_of(late), LATER)
    assert {r.version for r in found.end.reads if r.position == AGAIN and r.event == compute.path} == {UNHELD}
    assert {r.version for r in found.end.reads if r.position == "middle" and r.event == compute.path} == {CURRENT}


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


def held_after(**copies: Version) -> Read:
    """The result of a step after which these copies are held: weight, weight_on_host, master, ..."""
    machine = Machine(ZERO3.reference, ZERO3.reference.groups[0], Site(ZERO3.reference.groups[0].sites[0]))
    machine.versions = {(name.partition("_on_")[0], name.partition("_on_")[2] or "device"): v
                        for name, v in copies.items()}
    return result(machine)


OWNED = ("dp", "c", "own:own")
RIGHT = Guarded(frozenset({("right0:0", FrozenMap())}), NEXT)


@pytest.mark.parametrize("copies", [
    {"weight": NEXT},
    {"weight": choose(OWNED, RIGHT, UNHELD)},
    {"weight": choose(("dp", "0", "c"), NEXT, GARBAGE)},
    {"weight": CURRENT, "master": NEXT},
    {"weight": GARBAGE, "master": choose(OWNED, NEXT, UNHELD)},
    {"weight": UNHELD, "master_on_host": NEXT},
    {"weight": choose(("dp", "0", "own:own"), NEXT, GARBAGE), "master": choose(OWNED, NEXT, CURRENT)},
])
def test_a_step_whose_result_somebody_holds(copies: dict[str, Version]) -> None:
    assert always_right(held_after(**copies))


@pytest.mark.parametrize("copies", [
    {},
    {"moments": NEXT},
    {"weight": CURRENT},
    {"weight": CURRENT, "master": choose(OWNED, GARBAGE, UNHELD)},
    {"weight": choose(("dp", "0", "own:own"), NEXT, GARBAGE)},
    {"weight": choose(("dp", "0", "own:own"), NEXT, CURRENT), "master": choose(("dp", "0", "own:own"), NEXT, CURRENT)},
])
def test_a_step_whose_result_nobody_holds(copies: dict[str, Version]) -> None:
    """Of some element at least."""
    read = held_after(**copies)
    assert not always_right(read) and read.event == "update.layer.weight.update"
    solver = z3.Solver()
    solver.add(wrong_read(read))
    assert solver.check() == z3.sat


def test_a_rank_that_holds_the_result_is_looked_for_wherever_a_copy_depends_on_the_rank() -> None:
    """The first rank holds it of its own elements alone, and each owner of its own: some rank holds it, of each."""
    first = ("dp", "0", "c")
    held = choose(first, choose(OWNED, NEXT, GARBAGE), choose(OWNED, NEXT, UNHELD))
    assert always_right(held_after(weight=held)) and always_right(held_after(weight=CURRENT, master=held))
    assert versions.places(held) == {"dp": ["0", "own:own"]}
    assert versions.somewhere(held, NEXT) == NEXT
    assert versions.somewhere(held, GARBAGE) == choose(("dp", "0", "own:own"), NEXT, GARBAGE)


def test_all_that_a_copy_depends_on_is_asked() -> None:
    a, b, c, fixed = ("dp", "c", "own:own"), ("pp", "0", "c"), ("tp", "c", "own:own"), ("dp", "0", "own:own")
    held = choose(a, choose(b, NEXT, GARBAGE), choose(c, choose(fixed, NEXT, UNHELD), CURRENT))
    assert versions.places(held) == {"dp": ["own:own"], "pp": ["0"], "tp": ["own:own"]}
    assert versions.places(choose(fixed, NEXT, UNHELD)) == {} == versions.places(NEXT)


def test_of_two_copies_the_first_is_taken_where_both_or_none_will_do() -> None:
    assert versions.either(RIGHT, NEXT, NEXT) == RIGHT and versions.either(NEXT, RIGHT, NEXT) == NEXT
    assert versions.either(CURRENT, GARBAGE, NEXT) == CURRENT and versions.either(UNHELD, RIGHT, NEXT) == RIGHT


def test_the_read_of_a_result() -> None:
    assert held_after() == Read("update.layer.weight.update", "result", "", UNHELD, NEXT)
    assert held_after(weight=CURRENT) == Read("update.layer.weight.update", "result", "", CURRENT, NEXT)


def test_the_rank_that_should_hold_the_result_is_the_one_that_is_told() -> None:
    read = held_after(weight=CURRENT, master=choose(OWNED, GARBAGE, UNHELD))
    assert read.version == choose(OWNED, CURRENT, NEXT)


# microbatches that overlap in a pipeline

def staged(step: Step, case: Case = LATER) -> Run:
    group = next(g for g in step.reference.groups if "layer.mlp.up.weight" in g.parameters)
    site, flows = Site("layer.mlp.up/1", "layer.mlp.up.weight"), Flows(step)
    program = Program.of(step, group, site.parameter)
    return run_step(initialised(step.reference, group, site, program, flows), program, case)


def test_microbatches_overlap_where_none_changes_a_state() -> None:
    for case in CASES:
        assert staged(STAGED, case).end.updates
    spoilt = {
        "weight": Event("backward", "free", "weight", "layer.weight", unit=""),
        "grad_sum": Event("forward", "zero", "grad_sum", "layer.weight", unit=""),
    }
    last = [e.path for e in STAGED.events if e.phase == "backward"][-1]
    up = "forward.layer.mlp.up.compute"
    step = edited(STAGED, up, STAGED.event(up), spoilt["grad_sum"])
    with pytest.raises(NoRule) as found:
        staged(step)
    assert "microbatches overlap in a pipeline, and each changes grad_sum of layer.weight" in str(found.value)
    assert found.value.event == [e.path for e in Program.of(step, step.reference.group(
        "layer.weight"), "layer.mlp.up.weight").step if e.phase in ("forward", "backward")][-1]
    assert not wrongly_read(STAGED) and wrongly_read(edited(STAGED, last, STAGED.event(last), spoilt["weight"]))


def wrongly_read(step: Step, case: Case | None = None) -> bool:
    """Whether some forward or backward of a microbatch finds another weight than it should."""
    reads = (staged(step) if case is None else staged(step, case)).end.reads
    return any(read.kind == "weight" and read.version != read.want for read in reads)


@pytest.mark.parametrize(("phase", "position", "fine"), [
    ("forward", "first", True), ("forward", "last", False), ("backward", "last", True), ("backward", "first", False)])
def test_states_change_before_the_first_backward_and_behind_the_last_forward(phase: str, position: str,
                                                                             fine: bool) -> None:
    behind = "forward.layer.mlp.up.compute" if phase == "forward" else [
        e.path for e in STAGED.events if e.phase == "backward"][-1]
    free = Event(phase, "free", "weight", "layer.weight", at=(position,))
    step = edited(STAGED, behind, STAGED.event(behind), free, replace(free, value="moments"))
    for case in CASES:
        if not fine and case is not ONLY:
            try:
                assert wrongly_read(step, case), "another microbatch reads what is gone"
            except NoRule as found:  # a copy that nobody reads is there or not, by the order
                assert "depends on their order" in str(found)
        else:
            assert staged(step, case).end.updates


@pytest.mark.parametrize(("position", "fine"), [("last", True), ("first", False), ("middle", False)])
def test_a_backward_changes_no_count_that_a_later_forward_reads(position: str, fine: bool) -> None:
    last = [e.path for e in STAGED.events if e.phase == "backward"][-1]
    count = Event("backward", "compute", "count", unit="loss", at=(position,))
    step = edited(STAGED, last, STAGED.event(last), count)
    assert staged(step, ONLY).end.updates
    if fine:
        assert staged(step).end.updates
    else:
        with pytest.raises(NoRule, match=r"each changes count of layer\.weight"):
            staged(step)


def test_no_forward_stands_behind_a_backward_in_a_pipeline() -> None:
    first = next(e for e in STAGED.events if e.phase == "backward" and e.verb == "compute")
    draw = STAGED.event("forward.layer.mlp.dropped.compute")
    step = edited(edited(STAGED, draw.path), first.path, first, draw)
    with pytest.raises(NoRule) as found:
        staged(step)
    assert str(found.value) == f"{draw.path}: a forward behind a backward of its microbatch, in a pipeline"
    flat = step_of("zero1*tp", "gpt")
    assert staged(edited(edited(flat, draw.path), first.path, first, draw))


def test_a_count_that_the_next_forward_may_change_is_no_divisor_in_a_pipeline() -> None:
    count = Event("forward", "compute", "count")
    scale = STAGED.event("backward.loss.scale")
    late = replace(scale, divisor=Monomial.of("count"))
    loss = STAGED.event("forward.loss.compute")
    step = edited(edited(STAGED, scale.path, late), loss.path, loss, count)
    for case in CASES:
        with pytest.raises(NoRule) as found:
            staged(step, case)
        assert str(found.value) == f"{late.path}: in a pipeline the next forward may have changed the count"
    before = edited(edited(STAGED, scale.path, late), "prepare.layer.weight.grad_sum.zero", STAGED.event(
        "prepare.layer.weight.grad_sum.zero"), replace(count, phase="prepare"))
    assert staged(before), "it counts before the microbatches"
    assert staged(edited(STAGED, loss.path, loss, count)), "nothing is divided by it"
