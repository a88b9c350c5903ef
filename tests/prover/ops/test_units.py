"""What whole units leave in a microbatch, and what a group's machine makes of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from random_programs import two_units

from placealg.arith import ONE, Monomial
from placealg.frozen import FrozenMap
from placealg.models.abstract import statistics, two_losses
from placealg.prover.calculus import transfer
from placealg.prover.calculus.contribution import Term, Value, count_name
from placealg.prover.calculus.machine import Machine, Site
from placealg.prover.calculus.microbatches import Iteration
from placealg.prover.calculus.parameter_uses import concerns
from placealg.prover.calculus.places import NoRule
from placealg.prover.calculus.positions import DEVICE, UNIT
from placealg.prover.ops.flow import Flows
from placealg.step.derive import derive
from placealg.step.event import Clause, Event
from placealg.step.lower import lowered
from placealg.step.program import Step
from placealg.strategy.spec import strategy_on

TWO = strategy_on("two", {"dp": None, "tp": None}, dims={"dp": ["batch"], "tp": ["batch"]})
UNITS, BATCH, LOSSES = (derive(TWO, m) for m in (two_units(tied=True), statistics(), two_losses()))
ACTIVE, PASSIVE = Iteration("only", True), Iteration("first", False)
RAN = (("forward", "embedding"), ("forward", "layer"), ("forward", "head"), ("forward", "loss"),
       ("backward", "head"), ("backward", "layer"), ("backward", "embedding"))
AT = FrozenMap({"dp": UNIT, "tp": UNIT})
THIRD = Term(Monomial(Fraction(1, 3)), AT)
TIED, LAYER = "embedding.weight", "layer.weight"


def unit(phase: str, name: str, **fields: Any) -> Event:
    """One computation of a whole unit, or of a loss, which divides by 3."""
    loss = name in ("loss", "ahead")
    by = {"divisor": Monomial(Fraction(3))} if loss else {}
    return Event(phase, "compute", "loss" if loss else "activation", unit=name, **{**by, **fields})


WHOLE = tuple(unit(*one) for one in RAN)


def run(step: Step, group: str, use: str, events: Iterable[Event], iteration: Iteration = ACTIVE,
        loss: str = "loss", **fields: Any) -> Machine:
    """The machine of a group behind the events of one microbatch."""
    ran = lowered(Step(step.reference, tuple(replace(e, copy=k) for k, e in enumerate(events, 1))))
    machine = Machine(ran.reference, ran.reference.group(group), Site(use, group, loss=loss), Flows(ran), **fields)
    for event in ran.events:
        if not event.on_tensor or concerns(event, group, ran.reference):
            transfer.execute(machine, event, iteration)
    return machine


def grad(use: str, *events: Event, **fields: Any) -> Value:
    """The gradient at a use by a unit of the tied model."""
    group = LAYER if use.startswith("layer") else TIED
    return run(UNITS, group, use, events or WHOLE, **fields).value("grad")


def wrong(step: Step, events: Iterable[Event]) -> list[tuple[str, str]]:
    """What does not run, or not after what it needs, or on some ranks only."""
    ran = lowered(Step(step.reference, tuple(replace(e, copy=k) for k, e in enumerate(events, 1))))
    return [(d.event.partition("#")[0], d.says.partition(" (")[0]) for d in Flows(ran).at("only").faults]


@pytest.mark.parametrize("use", ["head.out/1", "embedding.out/1", "layer.out/1"])
def test_a_unit_s_contribution_is_that_of_one_rank_weighted_as_the_loss(use: str) -> None:
    assert grad(use) == Value((THIRD,))
    assert grad(use, iteration=PASSIVE) == Value(())
    assert wrong(UNITS, WHOLE) == []


@pytest.mark.parametrize("partly", range(len(RAN)))
@pytest.mark.parametrize(("use", "last"), [("embedding.out/1", "embedding"), ("layer.out/1", "layer")])
def test_what_some_ranks_only_ran_is_defined_there_only(use: str, last: str, partly: int) -> None:
    """Whatever ran before a unit's backward, on some ranks only, says where the unit's gradient is defined."""
    events = [replace(e, where=(Clause("dp", 0),)) if k == partly else e for k, e in enumerate(WHOLE)]
    needed = partly <= RAN.index(("backward", last))
    found = grad(use, *events)
    if RAN[partly] != ("forward", "loss"):
        assert found == Value((THIRD,), sides=frozenset({("dp", "0", DEVICE)}) if needed else frozenset())
    else:
        assert found.garbage, "a loss of some ranks alone starts no backward"
    assert (RAN[partly][0] + "." + (RAN[partly][1] if RAN[partly][1] != "loss" else "loss") + ".compute"
            in [event for event, _ in wrong(UNITS, events)])


@pytest.mark.parametrize("missing", range(len(RAN) - 1))
def test_what_did_not_run_leaves_nothing_to_what_follows(missing: int) -> None:
    events = [e for k, e in enumerate(WHOLE) if k != missing]
    assert grad("embedding.out/1", *events).garbage
    found = wrong(UNITS, events)
    assert [says for _, says in found] == ["does not run"] + ["runs before its input is there"] * (len(found) - 1)
    assert found[0][0] == ".".join((*RAN[missing], "compute")) and len(found) == len(RAN) - missing


def test_a_loss_of_unknown_weight_starts_no_backward() -> None:
    """Where its divisor is not known, and where a scale is by nothing known."""
    counted = replace(WHOLE[3], divisor=Monomial.of("count"))
    assert grad("head.out/1", *WHOLE[:3], counted, *WHOLE[4:]).garbage
    count = Event("forward", "compute", "count", unit="loss")
    assert not grad("head.out/1", *WHOLE[:3], count, counted, *WHOLE[4:]).garbage
    unknown = Event("backward", "scale", "loss", unit="loss", divisor=Monomial.of("count"))
    assert grad("head.out/1", *WHOLE[:4], unknown, *WHOLE[4:]).garbage
    found = wrong(UNITS, (*WHOLE[:4], unknown, *WHOLE[4:]))
    assert ("backward.head.compute", "runs before its input is there") in found


def test_a_gradient_that_flows_is_not_scaled_with_the_loss() -> None:
    """A scale of the loss scales what starts after it: the backward that has begun goes on with its own weight."""
    scale = Event("backward", "scale", "loss", unit="loss", divisor=Monomial.of("m"))
    assert grad("layer.out/1", *WHOLE[:5], scale, *WHOLE[5:]).terms == (THIRD,)
    assert grad("layer.out/1", *WHOLE[:4], scale, *WHOLE[4:]).terms == (THIRD.times(ONE / Monomial.of("m")),)


def test_the_last_unit_sets_a_gradient_and_others_add_to_it() -> None:
    """Running again, the last one sets it anew; another adds once more."""
    assert grad("head.out/1", *WHOLE[:5], WHOLE[4], *WHOLE[5:]) == Value((THIRD,))
    again = grad("embedding.out/1", *WHOLE, WHOLE[6])
    assert again.terms == (THIRD.times(Monomial(Fraction(2))),)


def test_a_further_use_adds_to_what_is_held() -> None:
    """What an earlier use left says where the sum is defined; added to nothing, or to garbage, it is garbage."""
    def between(*events: Event) -> Value:
        return grad("head.out/1", *WHOLE[:6], *events, WHOLE[6])
    tied = Event("backward", "slice", "grad", TIED, axes=("dp",))
    assert between(tied) == Value((THIRD,), sides=frozenset({("dp", DEVICE, "own:own")}))
    assert between(replace(tied, verb="free", axes=())) == Value(held=True, garbage=True)
    assert between(replace(tied, verb="scale", axes=(), divisor=Monomial.of("count"))).garbage


def test_one_loss_s_tokens_weigh_as_that_loss_says() -> None:
    events = (unit("forward", "layer"), unit("forward", "loss"), unit("forward", "ahead", divisor=Monomial.of("m")),
              unit("backward", "layer"))
    def alone(loss: str) -> tuple[Event, ...]:
        return tuple(e for e in events if e.value != "loss" or e.unit == loss)
    assert run(LOSSES, LAYER, "layer.out/1", alone("loss")).value("grad").terms == (THIRD,)
    assert run(LOSSES, LAYER, "layer.out/1", alone("ahead"), loss="ahead").value("grad").terms == (
        Term(ONE / Monomial.of("m"), AT),)
    assert wrong(LOSSES, events) == [] and ("forward.ahead.compute", "does not run") in wrong(LOSSES, alone("loss"))


RUNNING = next(g.name for g in BATCH.reference.groups if g.statistic)
FORWARD = unit("forward", "layer")


def take(**fields: Any) -> Event:
    return Event("forward", "compute", "grad", group=RUNNING, **fields)


def taken(*events: Event, **fields: Any) -> Value:
    return run(BATCH, RUNNING, "layer.out/2", events, **fields).value("grad")


def test_a_statistic_is_a_mean_over_the_tokens_of_a_rank() -> None:
    """One contribution of every rank's token, divided as the event says; none of another microbatch's."""
    tokens = Monomial.of(count_name({"dp": DEVICE, "tp": DEVICE, "microbatch": UNIT}))
    for divisor, by in ((Monomial.of("m"), Monomial.of("m")), (Monomial.of("tokens"), tokens)):
        assert taken(FORWARD, take(divisor=divisor)) == Value((Term(ONE / by, AT),))
        assert taken(FORWARD, take(divisor=divisor), iteration=PASSIVE) == Value(())
    assert taken(FORWARD, take(divisor=Monomial.of("count"))).garbage


def test_a_statistic_is_of_a_forward_that_ran() -> None:
    for iteration in (ACTIVE, PASSIVE):
        assert taken(take(), iteration=iteration).garbage
    partly = replace(FORWARD, where=(Clause("dp", 0),))
    assert taken(partly, take()) == Value((Term(ONE, AT),), sides=frozenset({("dp", "0", DEVICE)}))
    backward = taken(FORWARD, take(), unit("forward", "loss"), unit("backward", "layer"))
    assert backward == Value((Term(ONE, AT),)), "no gradient reaches a statistic"


def test_another_backward_of_instances_of_which_one_sets_the_gradient_has_no_rule() -> None:
    model = two_units(tied=False)
    shared = replace(model.parameters[0], sites=("embedding", "layer"))
    step = derive(TWO, replace(model, parameters=(shared, model.parameters[1])))
    events = (unit("forward", "embedding"), unit("forward", "layer"), unit("forward", "loss"),
              unit("backward", "layer"), unit("backward", "layer"))
    with pytest.raises(NoRule, match="another backward of layer"):
        run(step, TIED, "layer.out/1", events)
