"""One abstract step of one group: what takes part, what the loop over microbatches stands for, what is its result."""

from __future__ import annotations

from dataclasses import replace

import pytest
import z3
from test_explore import (
    DP,
    GPT,
    GROUP,
    LATER,
    ONLY,
    SITE,
    STAGED,
    ZERO2,
    ZERO3,
    changed,
    edited,
    leaves,
    program_of,
    staged,
    started,
)
from test_flow import step_of

from placealg.arith import ONE, Monomial
from placealg.frozen import FrozenMap
from placealg.prover.calculus import versions
from placealg.prover.calculus.contribution import count_name
from placealg.prover.calculus.explore import (
    initial,
)
from placealg.prover.calculus.machine import Machine, Read, Site
from placealg.prover.calculus.microbatches import CASES, Case
from placealg.prover.calculus.one_step import AGAIN, OUTSIDE, Prefixes, Program, execute, result, run_step
from placealg.prover.calculus.places import NoRule
from placealg.prover.calculus.positions import UNIT
from placealg.prover.calculus.versions import CURRENT, GARBAGE, NEXT, UNHELD, Guarded, Version, choose
from placealg.prover.correct import always_right, wrong_read
from placealg.step.event import Event
from placealg.step.program import Step

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
    start = replace(started(DP), counts={"loss": Monomial.of("tokens")})
    empty = replace(program_of(DP), step=())
    assert run_step(start, empty, CASES[0]).end.counts == {}
    assert start.counts == {"loss": Monomial.of("tokens")}


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


def test_cases_that_begin_alike_share_what_they_run_and_end_as_if_each_had_run_alone() -> None:
    for step in (DP, ZERO2, ZERO3):
        start, program, shared = started(step), program_of(step), Prefixes()
        for case in CASES:
            alone, alike = run_step(start, program, case), run_step(start, program, case, shared=shared)
            assert (alike.end, alike.unsaved, alike.whole) == (alone.end, alone.unsaved, alone.whole), case
        assert len(shared) < sum(len(case.iterations) for case in CASES)
        spoilt = shared[CASES[-1].iterations[:1]]
        spoilt.machine.reads.append(Read("spoilt", "view", "", GARBAGE, CURRENT))
        shared = {CASES[-1].iterations[:1]: spoilt}
        assert run_step(start, program, CASES[-1], shared=shared).end != alone.end, "what is shared is what is run on"
