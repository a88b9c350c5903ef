"""The oracle: right programs equal the single device, wrong ones differ, and it says where."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from simulate_steps import (
    change,
    double,
    dp,
    drop,
    found,
    move,
    owner,
    per_matrix,
    reference,
    zero1,
    zero3,
)

from placealg.arith import Monomial
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.config import resolve_model
from placealg.simulator import Outcome, Setting, network, simulate
from placealg.simulator.device import trajectory
from placealg.simulator.execute import EXECUTE
from placealg.simulator.setting import Cell, cells
from placealg.step.derive import derive
from placealg.step.lower import of_ops
from placealg.step.program import Clause, Event, Reference, Step
from placealg.step.verbs import VERBS
from placealg.strategy.expression import parse_strategy
from placealg.strategy.streams import Stream

STRATEGIES = {"dp": dp, "zero1": zero1, "zero3": zero3}
each_strategy = pytest.mark.parametrize("build", STRATEGIES.values(), ids=STRATEGIES)


def tried(step: Step, size: int = 2, m: int = 2, **fields: Any) -> Outcome:
    """The outcome under equal counts."""
    return simulate(step, Setting.equal(step.reference, dict.fromkeys(step.reference.mesh.names, size), m, **fields))


def first_event(step: Step, **fields: Any) -> str:
    """The event at which a wrong step is seen to differ."""
    outcome = tried(step, **fields)
    assert not outcome.equal
    assert outcome.difference is not None
    return outcome.difference.event


@each_strategy
@pytest.mark.parametrize(("size", "m"), [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 2), (5, 2)])
def test_right_programs_equal_the_single_device(build: Callable[..., Step], size: int, m: int) -> None:
    outcome = tried(build(), size, m)
    assert outcome.difference is None
    assert outcome.observed > 100


@each_strategy
@pytest.mark.parametrize("units", [("embedding", "layer"), ("embedding", "layer", "head")])
@pytest.mark.parametrize("tied", [False, True])
def test_several_units_and_tied_parameters(build: Callable[..., Step], units: tuple[str, ...], tied: bool) -> None:
    assert tried(build(reference(units=units, tied=tied)), size=3).difference is None


@each_strategy
def test_two_axes(build: Callable[..., Step]) -> None:
    step = build(reference("outer", "inner"))
    assert simulate(step, Setting.equal(step.reference, {"outer": 2, "inner": 3}, 2)).difference is None


@each_strategy
def test_more_steps_and_layers(build: Callable[..., Step]) -> None:
    step = build()
    assert simulate(step, Setting.equal(step.reference, {"dp": 2}, 1, layers=3), steps=4).difference is None


@each_strategy
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_token_mean_needs_no_equal_counts(build: Callable[..., Step], size: int, seed: int) -> None:
    step = build(token_mean=True)
    assert simulate(step, Setting.unequal(step.reference, {"dp": size}, 2, seed=seed)).difference is None


def test_token_mean_with_empty_cells() -> None:
    step = zero3(token_mean=True)
    counts: dict[Cell, int] = {((0,), 0): 2, ((1,), 0): 0, ((0,), 1): 0, ((1,), 1): 1}
    assert simulate(step, Setting({"dp": 2}, 2, counts)).difference is None
    with pytest.raises(InputError, match="batch is empty"):
        simulate(step, Setting({"dp": 2}, 2, dict.fromkeys(counts, 0)))


def test_mean_of_means_needs_equal_counts() -> None:
    step = dp()
    assert not simulate(step, Setting.unequal(step.reference, {"dp": 2}, 2)).equal
    assert not simulate(step, Setting({"dp": 2}, 2, {((r,), k): 1 + k for r in range(2) for k in range(2)})).equal


def test_mean_over_microbatches_is_a_reference_of_its_own() -> None:
    step = dp(reference(weighting="microbatch_mean"))
    assert simulate(step, Setting({"dp": 2}, 2, {((r,), k): 1 + k for r in range(2) for k in range(2)})).equal
    assert not simulate(step, Setting.unequal(step.reference, {"dp": 2}, 2)).equal


def test_a_count_that_is_not_reduced_divides_by_less() -> None:
    step = dp(token_mean=True)
    assert not tried(drop(step, "prepare.loss.count.all_reduce[dp]")).equal
    assert not tried(drop(step, "prepare.loss.count.compute")).equal
    assert tried(drop(step, "prepare.loss.count.all_reduce[dp]"), size=1).equal


MUTANTS: dict[str, Callable[[], Step]] = {
    "dp: reduce dropped": lambda: drop(dp(), "reduce.*"),
    "zero1: reduce dropped": lambda: drop(zero1(), "reduce.*"),
    "zero3: reduce dropped": lambda: drop(zero3(), "*.grad.reduce[dp]"),
    "dp: sum for mean": lambda: change(dp(), "reduce.*", op="sum"),
    "zero3: sum for mean": lambda: change(zero3(), "*.grad.reduce[dp]", op="sum"),
    "dp: token mean, reduction doubled": lambda: double(dp(token_mean=True), "reduce.*"),
    "zero1: reduction to owners doubled": lambda: double(zero1(), "reduce.*"),
    "dp: publish dropped": lambda: drop(dp(), "publish.*"),
    "zero1: publish dropped": lambda: drop(zero1(), "publish.*"),
    "zero1: publish is local": lambda: change(zero1(), "publish.*", axes=()),
    "zero1: publish from another layout": lambda: change(zero1(), "publish.*", layout="alt"),
    "zero3: publish dropped": lambda: drop(zero3(), "publish.*"),
    "zero3: forward gather dropped": lambda: drop(zero3(), "forward.layer.weight.gather[dp]"),
    "zero3: backward gather dropped": lambda: drop(zero3(), "backward.layer.weight.gather[dp]"),
    "zero3: gather at the first microbatch only": lambda: change(zero3(), "forward.*.gather[dp]", at=("first",)),
    "zero3: foreign layout": lambda: change(zero3(), "*.grad.reduce[dp]", layout="alt"),
    "dp: zero dropped": lambda: drop(dp(), "prepare.*.zero"),
    "zero3: zero dropped": lambda: drop(zero3(), "prepare.*.zero"),
    "dp: assigned, not accumulated": lambda: change(dp(), "backward.*.accumulate", verb="assign"),
    "zero3: assigned, not accumulated": lambda: change(zero3(), "backward.*.accumulate", verb="assign"),
    "dp: accumulated twice": lambda: double(dp(), "backward.*.accumulate"),
    "dp: reduced before the last microbatch is in": lambda: move(
        dp(), "reduce.*", "backward.*.accumulate", phase="backward", at=("last",)),
    "dp: loss not scaled": lambda: drop(dp(), "backward.loss.scale"),
    "dp: scaled before it is computed": lambda: move(dp(), "backward.loss.scale", "forward.loss.compute"),
    "dp: loss dropped": lambda: drop(dp(), "forward.loss.compute"),
    "dp: forward dropped": lambda: drop(dp(), "forward.layer.compute"),
    "dp: backward dropped": lambda: drop(dp(), "backward.layer.compute"),
    "zero1: norm not reduced": lambda: drop(zero1(), "update.norm.all_reduce[dp]"),
    "zero1: norm mean": lambda: change(zero1(), "update.norm.all_reduce[dp]", op="mean"),
    "dp: norm counted on every replica": lambda: change(dp(), "update.layer.weight.norm", where=()),
    "dp: norm dropped": lambda: drop(dp(), "update.layer.weight.norm"),
    "dp: clip dropped": lambda: drop(dp(), "update.*.clip"),
    "dp: clip doubled": lambda: double(dp(), "update.*.clip"),
    "dp: norm, all_reduce and clip dropped": lambda: drop(drop(drop(
        dp(), "update.*.clip"), "update.norm.all_reduce[dp]"), "update.layer.weight.norm"),
    "dp: update doubled": lambda: double(dp(), "update.layer.weight.update"),
    "dp: update on one rank": lambda: change(dp(), "update.layer.weight.update", where=(Clause("dp", 0),)),
    "dp: step counter stands still": lambda: drop(dp(), "update.step.update"),
    "dp: stream stands still": lambda: drop(dp(), "update.rng.update"),
    "dp: init not broadcast": lambda: drop(dp(), "init.*.broadcast[dp]"),
    "dp: init broadcast from a rank without it": lambda: change(dp(), "init.*.broadcast[dp]", root=1),
    "dp: init broadcast from no rank": lambda: change(dp(), "init.*.broadcast[dp]", root=9),
    "dp: master never assigned": lambda: drop(dp(), "init.*.master.assign"),
    "dp: moments never assigned": lambda: drop(dp(), "init.*.moments.assign"),
    "dp: stream never assigned": lambda: drop(dp(), "init.rng.assign"),
    "dp: clip on the host copy": lambda: change(dp(), "update.*.clip", tier="host"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_programs_differ(name: str) -> None:
    outcome = tried(MUTANTS[name]())
    assert not outcome.equal
    assert outcome.difference is not None
    assert not outcome.difference.resumed


@each_strategy
@pytest.mark.parametrize("path", ["resume.layer.weight.load", "resume.*.moments.load", "resume.*.master.assign",
                                  "resume.step.load", "resume.rng.load", "save.layer.weight.store",
                                  "save.*.moments.store", "save.step.store", "save.rng.store"])
def test_an_incomplete_resume_differs(build: Callable[..., Step], path: str) -> None:
    outcome = tried(drop(build(), path))
    assert outcome.difference is not None
    assert outcome.difference.resumed
    assert outcome.difference.step in (2, 3)


def test_a_program_without_resume_is_run_without_it() -> None:
    assert tried(drop(dp(), "resume.*")).difference is None


def saving(step: Step, *events: Event) -> Step:
    """The step with more events at the end of saving."""
    at = found(step, "save.rng.store")[0] + 1
    return replace(step, events=(*step.events[:at], *events, *step.events[at:]))


FREED = Event("save", "free", "moments", "layer.weight")
PUBLISHED = Event("save", "publish", "weight", "layer.weight", axes=("dp",))


def test_a_step_goes_on_behind_a_save_and_without_one() -> None:
    """The first step's new parameters are published by a save alone, or lost by one."""
    unpublished = tried(saving(drop(drop(zero1(), "publish.*"), "save.layer.weight.store"), PUBLISHED)).difference
    assert unpublished is not None
    assert (unpublished.step, unpublished.event, unpublished.resumed) == (3, "forward.layer.compute", False)
    lost = tried(saving(dp(), FREED)).difference
    assert lost is not None and (lost.step, lost.event, lost.resumed) == (2, "save.layer.weight.store", False)


@pytest.mark.parametrize("more", [PUBLISHED, replace(FREED, axes=("dp",)),
                                  Event("save", "zero", "grad", "layer.weight")])
def test_saving_may_change_what_nobody_misses(more: Event) -> None:
    step, plain = saving(zero1(), more), tried(zero1())
    outcome = tried(step)
    assert outcome.difference is None
    assert outcome.observed > plain.observed, "two steps were followed from each state"


def resumed_sharded(*before: Event) -> Step:
    """dp whose optimizer state is sharded by resuming; `before` stand in front of it."""
    step = change(dp(), "publish.*", axes=("dp",))
    at = found(step, "resume.layer.weight.master.assign")[0]
    parted = [Event("resume", "slice", value, "layer.weight", axes=("dp",)) for value in ("master", "moments")]
    return replace(step, events=(*step.events[:at], *before, step.events[at], *parted, *step.events[at + 1:]))


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_resumed_runs_are_resumed_from_what_they_save(steps: int) -> None:
    """The second checkpoint holds shards: what the first rank sends of it is not all."""
    setting = Setting.equal(dp().reference, {"dp": 2}, 2)
    plain, sharded = (simulate(step, setting, steps) for step in (dp(), resumed_sharded()))
    assert plain.difference is None and sharded.difference is None
    assert sharded.observed > plain.observed, "it is resumed twice"
    send = Event("resume", "broadcast", "moments", "layer.weight", axes=("dp",))
    sent = simulate(resumed_sharded(send), setting, steps)
    assert sent.difference is not None
    assert (sent.difference.step, sent.difference.resumed) == (3, True)


HARMLESS: dict[str, Callable[[], Step]] = {
    "frees dropped": lambda: drop(zero3(), "*.free[dp]"),
    "forward gather doubled": lambda: double(zero3(), "forward.*.gather[dp]"),
    "mean over replicas doubled": lambda: double(dp(), "reduce.*"),
    "broadcast doubled": lambda: double(dp(), "init.*.broadcast[dp]"),
    "publish doubled": lambda: double(zero1(), "publish.*"),
    "zero doubled": lambda: double(zero3(), "prepare.*.zero"),
    "norm doubled": lambda: double(zero3(), "update.layer.weight.norm"),
    "loss doubled": lambda: double(dp(), "forward.loss.compute"),
    "slice dropped": lambda: drop(zero3(), "init.*.slice[dp]"),
    "a dead update of a dead master copy": lambda: change(
        change(zero1(), "init.*.assign", where=()), "update.layer.weight.update", where=()),
    "another layout everywhere": lambda: replace(zero3(), events=tuple(
        replace(e, layout="alt") for e in zero3().events)),
    "norm at another rank": lambda: change(dp(), "update.layer.weight.norm", where=(Clause("dp", 1),)),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_changes_do_not_differ(name: str) -> None:
    assert tried(HARMLESS[name]()).difference is None


@pytest.mark.parametrize("build", [zero1, zero3])
def test_a_matrix_optimizer_needs_the_whole_matrix(build: Callable[..., Step]) -> None:
    step = build(per_matrix(reference(), "grad_sum", "moments"))
    assert not tried(step).equal
    assert tried(step, size=1).difference is None
    at = next(i for i, e in enumerate(step.events) if e.path == "update.layer.weight.update")
    gathers = tuple(Event("update", "all_gather", v, "layer.weight", axes=("dp",)) for v in ("grad_sum", "moments"))
    whole = replace(step, events=(*step.events[:at], *gathers, *step.events[at:]))
    assert tried(whole).difference is None
    assert not tried(drop(whole, "*.moments.all_gather[dp]")).equal


@pytest.mark.parametrize("value", ["grad_sum", "moments", "master"])
def test_each_value_that_is_read_whole_is_needed_whole(value: str) -> None:
    assert tried(dp(per_matrix(reference(), value))).difference is None
    assert not tried(zero1(per_matrix(reference(), value))).equal


@pytest.mark.parametrize("where", [owner("dp"), (Clause("dp", 0),)])
@pytest.mark.parametrize("path", ["reduce.*", "init.*.broadcast[dp]", "update.norm.all_reduce[dp]"])
def test_a_split_collective_is_a_deadlock(path: str, where: tuple[Clause, ...]) -> None:
    step = change(dp(), path, where=where)
    outcome = tried(step)
    assert outcome.difference is not None
    assert outcome.difference.deadlock and str(outcome.difference).startswith("step ")
    assert f": deadlock at {outcome.difference.event} on " in str(outcome.difference)
    assert tried(step, size=1).difference is None


def test_a_collective_may_be_split_along_another_axis() -> None:
    ref = replace(reference("dp", "other"), data_axes=("dp",))
    step = change(dp(ref), "update.norm.all_reduce[dp,other]", axes=("dp",))
    step = change(step, "update.layer.weight.norm", where=(Clause("dp", 0),))
    step = change(step, "reduce.*", axes=("dp",))
    assert tried(step).difference is None
    assert "deadlock" not in first_event(change(step, "reduce.*", where=(Clause("other", 0),)))
    assert "deadlock" not in first_event(change(step, "reduce.*", where=owner("other")))


@pytest.mark.parametrize(("key", "needs"), [("rank(dp)", "dp"), ("local(batch)", "dp or m")])
def test_random_streams_are_keyed_logically(key: str, needs: str) -> None:
    step = dp(reference(random_keys=(Stream.parse(key),)))
    assert not tried(step).equal
    assert tried(step, size=1, m=1).difference is None
    assert tried(step, size=1).equal == (needs == "dp")
    with pytest.raises(InputError, match="rank\\(dq\\)"):
        tried(dp(reference(random_keys=(Stream("dq"),))))


def test_offload_to_the_host() -> None:
    step, group = dp(), "layer.weight"
    for value in ("master", "moments"):
        step = change(step, f"init.*.{value}.assign", verb="offload" if value == "master" else "assign",
                      source="weight" if value == "master" else "", tier="device" if value == "master" else "host")
    step = change(step, "update.layer.weight.*", tier="host")
    step = change(step, "*.moments.store", tier="host")
    step = change(step, "*.moments.load", tier="host")
    step = change(step, "resume.*.master.assign", verb="offload", source="weight")
    at = next(i for i, e in enumerate(step.events) if e.phase == "update")
    step = replace(step, events=(*step.events[:at], Event("reduce", "offload", "grad_sum", group), *step.events[at:]))
    at = next(i for i, e in enumerate(step.events) if e.phase == "publish")
    right = replace(step, events=(*step.events[:at], Event("publish", "fetch", "master", group), *step.events[at:]))
    assert tried(right).difference is None
    for path in ("publish.*.fetch", "reduce.*.offload", "init.*.master.offload", "resume.*.master.offload"):
        assert not tried(drop(right, path)).equal


@pytest.mark.parametrize("name", ["dp", "zero1", "zero2", "zero3", "fsdp_no_reshard", "hsdp", "zero2*offload_optimizer",
                                  "zero3*offload_optimizer", "zero1[d1]*zero3[d2]", "zero3[d1]*zero3[d2]"])
def test_derived_programs(name: str) -> None:
    step = derive(parse_strategy(name), resolve_model("abstract"))
    for sizes, m in itertools.product(((2, 3), (3, 2), (1, 2)), (1, 2)):
        setting = Setting.equal(step.reference, dict(zip(step.reference.mesh.names, sizes, strict=False)), m)
        assert simulate(step, setting).difference is None


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "lamb"])
def test_derived_programs_of_a_tied_model(optimizer: str) -> None:
    strategy = parse_strategy("zero3")
    tables = strategy.tables.plus({"optimizer": FrozenMap({"name": optimizer})})
    step = derive(replace(strategy, tables=tables), resolve_model("gpt2"))
    assert any(len(g.sites) == 2 for g in step.reference.groups)
    assert tried(step).difference is None


def test_positions_of_the_microbatch_loop() -> None:
    """first and last include the only microbatch; only is that one alone."""
    parts = [("first",), ("middle",), ("last",)]
    accumulate = next(e for e in dp().events if e.verb == "accumulate")

    def split(*positions: tuple[str, ...]) -> Step:
        copies = tuple(replace(accumulate, at=at, copy=i) for i, at in enumerate(positions, 1))
        return replace(dp(), events=tuple(c for e in dp().events for c in (copies if e == accumulate else (e,))))

    assert [tried(split(*parts), m=m).equal for m in (1, 2, 3, 4)] == [False, True, True, True]
    assert [tried(split(("first",), ("last",)), m=m).equal for m in (1, 2, 3)] == [False, True, False]
    assert [tried(split(("only",)), m=m).equal for m in (1, 2)] == [True, False]
    assert [tried(split(("only", "first", "middle", "last")), m=m).equal for m in (1, 2, 3)] == [True] * 3
    assert tried(change(dp(), "reduce.*", at=("first",)), m=2).equal


def test_divisors_are_honoured() -> None:
    step = change(dp(), "reduce.*", op="sum", divisor=Monomial.of("dp"))
    assert tried(step, size=3).difference is None
    assert not tried(change(step, "reduce.*", divisor=Monomial.of("m")), size=3).equal
    whole = drop(change(step, "reduce.*", divisor=Monomial.of("dp", "m")), "backward.loss.scale")
    assert tried(whole, size=3).difference is None
    assert tried(change(whole, "reduce.*", divisor=Monomial.of("tokens") * Monomial.of("dp") / Monomial.number(2)),
                 size=3, m=2, tokens=2).difference is None, "outside the loop, tokens are those of all microbatches"
    assert not tried(change(whole, "reduce.*", divisor=Monomial.of("count"))).equal


def test_the_difference_says_where() -> None:
    found = tried(drop(zero1(), "publish.*")).difference
    assert found is not None
    assert (found.step, found.event, found.rank) == (1, "save.layer.weight.store", (("dp", 0),))
    assert str(found).startswith("step 1: save.layer.weight.store on dp=0: layer.weight, instance 0, element 0: got ")
    held = tried(drop(zero3(), "forward.*.gather[dp]")).difference
    assert held is not None
    assert (held.step, held.microbatch, held.got) == (1, 0, "nothing (not held)")


def test_an_outcome_is_not_a_truth_value() -> None:
    with pytest.raises(TypeError, match="equal"):
        bool(tried(dp()))


def test_backward_differentiates_forward() -> None:
    """The loss is a polynomial of degree two in each element: a central difference is its exact derivative."""
    matrices = [network.initial_weight(0, "a", 0), network.initial_weight(0, "b", 0)]
    tokens = [network.token(0, 0, i) for i in range(3)]
    factors = [network.random_factor(0, Fraction(1), i, "u", 0) for i in range(3)]
    targets = [t.target for t in tokens]

    def outputs(weights: list[network.Matrix]) -> tuple[
            tuple[network.Vector, ...], network.KeptByUnit, network.KeptByUnit]:
        middle, one = network.forward(weights[:1], [t.x for t in tokens], factors)
        last, two = network.forward(weights, middle, factors)
        return last, one, two

    def loss(weights: list[network.Matrix]) -> Fraction:
        return sum((((x - s) ** 2 + (y - t) ** 2) / 6 for (x, y), (s, t) in
                    zip(outputs(weights)[0], targets, strict=True)), Fraction(0))

    last, one, two = outputs(matrices)
    flowing = [network.loss_gradient(y, target, Fraction(1, 3)) for y, target in zip(last, targets, strict=True)]
    entering, (shared, second) = network.backward(matrices, two, flowing)
    _, (first,) = network.backward(matrices[:1], one, entering)
    eps = Fraction(1, 10**9)
    for group, element in itertools.product(range(2), range(4)):
        around = []
        for sign in (1, -1):
            moved = [list(w) for w in matrices]
            moved[group][element] += sign * eps
            around.append(loss([(a, b, c, d) for a, b, c, d in moved]))
        slope = (around[0] - around[1]) / (2 * eps)
        want = second[element] if group else first[element] + shared[element]
        assert abs(slope - want) <= (0 if group else abs(want) * eps)


def test_owners_are_total_uneven_and_apart() -> None:
    setting = Setting({"one": 1, "two": 2, "dp": 3, "big": 7}, 1, {})
    for axis in ("two", "dp", "big"):
        own, alt = ([setting.owner(layout, axis, e) for e in range(4)] for layout in ("own", "alt"))
        assert own != alt
        counts = [own.count(r) for r in range(setting.sizes[axis])]
        assert len(set(counts)) > 1
        assert all(0 <= r < setting.sizes[axis] for r in own + alt)
    assert setting.owner("own", "one", 3) == 0


def test_owners_can_be_given() -> None:
    step = zero3()
    base = Setting.equal(step.reference, {"dp": 3}, 2)
    for everything in range(3):
        table = {("own", "dp", e): everything for e in range(4)}
        assert simulate(step, replace(base, owners=table)).difference is None
    same = {(layout, "dp", e): e % 3 for layout in ("own", "alt") for e in range(4)}
    mixed = change(step, "*.grad.reduce[dp]", layout="alt")
    assert simulate(mixed, replace(base, owners=same)).difference is None
    assert not simulate(mixed, base).equal


@pytest.mark.parametrize(("fields", "text"), [
    ({"sizes": {"dp": 0}}, "dp = 0 is not a size"),
    ({"microbatches": 0}, "m = 0 is not a size"),
    ({"counts": {((0,), 0): -1}}, "-1 tokens"),
    ({"owners": {("own", "dp", 0): 2}}, "rank 2 of axis dp, which has 2"),
])
def test_a_bad_setting_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        Setting(**{"sizes": {"dp": 2}, "microbatches": 1, "counts": {}, **fields})


def test_a_setting_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="axis 'dp' has no size"):
        Setting.equal(reference(), {"dq": 2}, 1)
    with pytest.raises(InputError, match="no count for rank"):
        simulate(dp(), Setting({"dp": 2}, 1, {((0,), 0): 1}))
    with pytest.raises(InputError, match="op = 'max'"):
        tried(change(dp(), "reduce.*", op="max"))
    with pytest.raises(InputError, match="no value for symbol 'q'"):
        tried(change(dp(), "reduce.*", divisor=Monomial.of("q")))
    with pytest.raises(InputError, match="no unit 'leyer'"):
        tried(change(dp(), "forward.layer.compute", unit="leyer"))


def test_every_verb_is_executed() -> None:
    assert EXECUTE.keys() == VERBS.keys()


def test_runs_are_deterministic_and_seeds_differ() -> None:
    broken = drop(dp(), "reduce.*")
    assert str(tried(broken).difference) == str(tried(broken).difference)
    assert str(tried(broken).difference) != str(tried(broken, seed=1).difference)


def test_the_reference_is_one_device() -> None:
    """Cutting one batch into cells in any way leaves the single device's run as it is."""
    ref = of_ops(reference())
    def weights(ref: Reference, setting: Setting) -> list[object]:
        return [state.weight for state in trajectory(ref, setting, 2)]

    whole = weights(ref, Setting({"dp": 1}, 1, {((0,), 0): 4}))
    assert weights(ref, Setting.equal(ref, {"dp": 2}, 2, tokens=1)) == whole
    assert weights(replace(ref, clip=False), Setting({"dp": 1}, 1, {((0,), 0): 4})) != whole
    assert len(list(cells(ref, {"dp": 2}, 2))) == 4


@pytest.mark.parametrize(("phase", "after"), [("init", "init.rng.assign"), ("resume", "resume.rng.load")])
def test_a_store_between_steps_holds_the_state_that_is_there(phase: str, after: str) -> None:
    def ended(*verbs: str) -> Outcome:
        step = dp()
        at = found(step, after)[0] + 1
        more = [Event(phase, verb, "rng") for verb in verbs]
        return simulate(replace(step, events=(*step.events[:at], *more, *step.events[at:])),
                        Setting.equal(step.reference, {"dp": 2}, 1), steps=1)

    assert ended("store").difference is None
    wrong = ended("update", "store").difference
    assert wrong is not None
    assert wrong.event == f"{phase}.rng.store"


def test_every_state_enters_every_state_of_the_optimizer() -> None:
    """A proof is about every update of the declared locality: what one state kept from another, no run would see."""
    from placealg.simulator.network import optimize
    plain = optimize(*map(Fraction, (3, 5, 7, 2, 11)))
    for changed in ((4, 5, 7, 2, 11), (3, 6, 7, 2, 11), (3, 5, 8, 2, 11)):
        master, moments = optimize(*map(Fraction, changed))
        assert master != plain[0] and moments != plain[1]
    for changed in ((3, 5, 7, 3, 11), (3, 5, 7, 2, 12)):
        assert optimize(*map(Fraction, changed))[0] != plain[0]
