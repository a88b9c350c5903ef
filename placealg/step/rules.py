"""The derivation rules: from one group's plan to events, each rule small, named, and with its reason.

A rule is a function of a plan (and of the schedule) that yields events in order. `derive` decides only in which phase,
and around which computation, a rule is applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from placealg.arith import ONE, Monomial
from placealg.placement import MEMORY_TIERS
from placealg.step.event import MICROBATCH, SAMPLES_HERE, SAMPLES_IN_ALL, Operator, Phase
from placealg.step.groups import Plan, owners
from placealg.step.program import Clause, Event, Rule
from placealg.step.verbs import LOSS_SCALE, VerbName


@dataclass(frozen=True, slots=True)
class Averaging:
    """How a sum over ranks and microbatches becomes the loss's mean.

    `counted` are the axes (and perhaps `microbatch`) that the loss's own divisor covers: over these, gradients are
    summed. Over every other axis of `data`, which split the tokens, they are averaged. Over the remaining axes a
    gradient's parts are parts of one token's: they are summed. With `merge` max it is the largest of the parts instead.
    `by_samples`: in a mean over microbatches each counts by its share of the samples.
    """

    divisor: str
    counted: tuple[str, ...]
    data: tuple[str, ...]
    merge: str = "sum"
    by_samples: bool = False

    @property
    def by(self) -> Monomial:
        """The divisor of the local sum; 1 if the loss is a sum."""
        return ONE if self.divisor == "one" else Monomial.of(self.divisor)

    @property
    def mean_of_microbatches(self) -> Monomial:
        """By what the loss of a microbatch is divided besides; 1 where its divisor covers all of them."""
        if MICROBATCH in self.counted:
            return ONE
        return Monomial.of(SAMPLES_IN_ALL) / Monomial.of(SAMPLES_HERE) if self.by_samples else Monomial.of("m")

    def op(self, axes: tuple[str, ...]) -> tuple[Operator, Monomial]:
        """(operator, divisor) of a reduction over `axes`."""
        if self.merge == "max":
            return "max", ONE
        averaged = tuple(a for a in axes if a in self.data and a not in self.counted)
        if not averaged:
            return "sum", ONE
        return ("mean", ONE) if averaged == axes else ("sum", Monomial.of(*averaged))


def global_states(phase: Phase, verb: VerbName, scaled: bool = False) -> Iterator[Event]:
    """The events on the states that belong to no group, and rest on every rank; with `scaled`, a loss scale is one."""
    for value in ("step", "rng"):
        yield Event(phase, verb, value, rule=Rule(
            "global_state", "the step counter and the random stream are states of their own"))
    if scaled:
        yield Event(phase, verb, LOSS_SCALE, rule=Rule(
            "scale_loss", "the loss scale is a state of its own, which grows, and shrinks where a gradient overflows"))


def scale_loss(loss: str) -> Event:
    """Backward starts from the loss times its scale."""
    return Event("backward", "scale", "loss", unit=loss, divisor=Monomial.of(LOSS_SCALE) ** -1, rule=Rule(
        "scale_loss", "small gradients would be lost in 16 bits: the loss is multiplied by a scale"))


def unscale(plan: Plan) -> Event:
    """What the optimizer and the flags read is the gradient, without the loss scale."""
    return Event("update", "scale", "grad_sum", plan.group.name, divisor=Monomial.of(LOSS_SCALE), tier=plan.update_tier,
                 rule=Rule("scale_loss", "a reduced gradient is divided by the loss scale before anything looks at it"))


def _names(axes: tuple[str, ...]) -> str:
    return " and ".join(axes)


def _rests(plan: Plan) -> str:
    return f"the optimizer state rests on the {plan.state_tier}"


def initialise(plan: Plan) -> Iterator[Event]:
    """Replicas start equal, then every state takes its layout at rest."""
    group = plan.group.name
    if plan.axes:
        first = "rank 0 of each shard's replicas" if plan.group.split else "rank 0 of the mesh"
        yield Event("init", "broadcast", "weight", group, axes=plan.axes, rule=Rule(
            "initialise", f"{first} holds the initial value; all copies start equal to it"))
    if not plan.group.frozen:
        yield from _initial_state(plan)
    if plan.averaged != "none":
        axes, tier = plan.average_rests
        yield from carry(Event("init", "assign", "average", group, source="weight", where=owners(axes), rule=Rule(
            "average_weights", f"the average starts from the initial weights; it rests as {plan.averaged} do")),
            "device", tier)
    if plan.gathered:
        yield Event("init", "slice", "weight", group, axes=plan.gathered, rule=Rule(
            "initialise", f"parameters rest sharded over {_names(plan.gathered)}"))
    if plan.weight_tier != "device":
        yield from leave(Event("init", "offload", "weight", group, rule=Rule(
            "offload", f"parameters rest on the {plan.weight_tier}")), plan.weight_tier)


def _initial_state(plan: Plan) -> Iterator[Event]:
    """The master copy and the moments start where the optimizer state rests."""
    group = plan.group.name
    where, why = owners(plan.owned), Rule("initialise", "the optimizer starts from the initial weights")
    master = Event("init", "assign", "master", group, source="weight", where=where, rule=why)
    yield from carry(master, "device", plan.state_tier)
    yield Event("init", "assign", "moments", group, where=where, tier=plan.state_tier, rule=Rule(
        "initialise", "moments start at their initial value, where the optimizer state rests"))


def carry(copy: Event, start: str, goal: str) -> Iterator[Event]:
    """The copy of a value from one tier to another: over every link on the way, with nothing left in between.

    >>> list(carry(Event("publish", "offload", "master", "layer.weight"), "nvme", "device"))
    [publish.layer.weight.master.fetch, publish.layer.weight.master.fetch, publish.layer.weight.master.free]
    """
    if start == goal:
        yield replace(copy, verb="assign", tier=goal)
        return
    at, end = MEMORY_TIERS.index(start), MEMORY_TIERS.index(goal)
    verb: VerbName = "offload" if at < end else "fetch"
    on = 1 if at < end else -1
    for here in range(at, end, on):
        tier, target = MEMORY_TIERS[here], MEMORY_TIERS[here + on]
        passed = replace(copy, verb=verb, tier=f"{tier}->{target}")
        yield passed if here == at else replace(passed, source="", where=())
        if here != at:
            yield Event(copy.phase, "free", copy.value, copy.group, tier=tier, rule=copy.rule)


def leave(copy: Event, goal: str) -> Iterator[Event]:
    """The move of the value that `copy` names from the device to the tier `goal`: nothing of it stays."""
    yield from carry(copy, "device", goal)
    yield Event(copy.phase, "free", copy.value, copy.group, rule=copy.rule)


def clear_gradients(plan: Plan) -> Iterator[Event]:
    """The accumulator is cleared once per step, in its layout at rest."""
    yield Event("prepare", "zero", "grad_sum", plan.group.name, where=owners(plan.scattered),
                tier=plan.grad_sum_tier,
                rule=Rule("accumulate", "a step sums the gradients of its own microbatches only"))


@dataclass(frozen=True, slots=True)
class Living:
    """The part of a group's parameters that is on a device for one lifetime.

    `axes` are those along which they are gathered; `fetched`: they rest on another tier, and come from there.
    """

    lifetime: str
    axes: tuple[str, ...]
    fetched: bool


def gather(plan: Plan, phase: Phase, living: Living) -> Iterator[Event]:
    """Parameters that rest elsewhere are fetched, sharded ones gathered, before the computation that uses them."""
    group, life = plan.group.name, living.lifetime
    if living.fetched:
        yield from carry(Event(phase, "fetch", "weight", group, rule=Rule(
            "offload", f"parameters rest on the {plan.weight_tier}: a unit is fetched, for one {life}")),
            plan.weight_tier, "device")
    if living.axes:
        yield Event(phase, "gather", "weight", group, axes=living.axes, source="S", to="R", bytes=plan.gather_bytes,
                    rule=Rule("gather_for_use", "S*: parameters are used whole, one unit at a time; the copy lives "
                                                f"for one {life}"))


def free(plan: Plan, phase: Phase, living: Living) -> Iterator[Event]:
    """The gathered copy ends with its lifetime, and so does what was fetched."""
    if living.fetched:
        yield Event(phase, "free", "weight", plan.group.name, rule=Rule(
            "offload", f"what was fetched ends with its {living.lifetime}: parameters rest on the {plan.weight_tier}"))
    elif living.axes:
        yield Event(phase, "free", "weight", plan.group.name, axes=living.axes, rule=Rule(
            "gather_for_use", f"S*: the gathered copy ends with its {living.lifetime}; the shard stays"))


def _merging(plan: Plan, averaging: Averaging) -> Averaging:
    """How the parts of a group's gradient become the whole: as the loss's, but of a statistic that is a sum or max."""
    merge = plan.group.merge
    return averaging if merge == "mean" else Averaging("one", averaging.data, averaging.data, merge)


def take_statistic(plan: Plan, averaging: Averaging) -> Iterator[Event]:
    """Forward takes a mean over the rank's tokens; the step's statistic is a mean of these, like the loss."""
    if plan.group.merge != "mean":
        what = plan.group.taken or "what is largest"
        yield Event("forward", "compute", "grad", plan.group.name, rule=Rule(
            "statistic", f"{what} of the rank's tokens moves {plan.group.name}, which no gradient reaches"))
        return
    by = Monomial.of(averaging.divisor) * averaging.mean_of_microbatches
    yield Event("forward", "compute", "grad", plan.group.name, divisor=by, rule=Rule(
                    "statistic", f"the batch's statistic is a mean over tokens: a sum, divided by {averaging.divisor}"))


def reduce_microbatch(plan: Plan, averaging: Averaging, phase: Phase = "backward") -> Iterator[Event]:
    """Gradients that rest sharded are reduced to their owners every microbatch; then they accumulate."""
    group = plan.group.name
    axes = plan.reduced_each_microbatch
    if axes:
        yield from _reduced(plan, averaging, axes, Event(phase, "reduce", "grad", group, to="S", rule=Rule(
            "reduce_gradient", f"gradients rest S over {_names(axes)}: reduced every microbatch")))
    whole = tuple(a for a in plan.scattered if a not in plan.summed)
    if whole:
        yield Event(phase, "slice", "grad", group, axes=whole, rule=Rule(
            "reduce_gradient", f"gradients rest S over {_names(whole)}, where every rank computes them whole"))
    if plan.accumulates_on_host:
        yield Event(phase, "offload", "grad", group, tier="device->host", where=owners(plan.scattered),
                    bytes="g", rule=Rule("offload", f"{_rests(plan)}: a gradient follows its final reduction there"))
    largest = plan.group.merge == "max"
    yield Event(phase, "accumulate", "grad_sum", group, op="max" if largest else "", tier=plan.grad_sum_tier, rule=Rule(
        "accumulate", f"the step's {'statistic is the largest' if largest else 'gradient is the sum'} over its "
                      "microbatches"))


def _reduced(plan: Plan, averaging: Averaging, axes: tuple[str, ...], event: Event) -> Iterator[Event]:
    """The reduction of `event` over some axes: one for all axes with equal bytes per element.

    If owners are to keep their parts of a whole sum, it is that sum, followed by a slice.
    """
    whole = tuple(a for a in axes if a in plan.all_reduced) if event.to == "S" else ()
    for to, among in ((event.to, tuple(a for a in axes if a not in whole)), ("I", whole)):
        for wire in dict.fromkeys(plan.wires.get(a, "") for a in among):
            here = tuple(a for a in among if plan.wires.get(a, "") == wire)
            op, divisor = _merging(plan, averaging).op(here)
            yield replace(event, axes=here, op=op, divisor=divisor, source="P", to=to, bytes=wire)
    if whole:
        yield replace(event, verb="slice", axes=whole, to="", rule=Rule(
            "reduce_gradient", f"what is summed whole over {_names(whole)} is kept by its owner"))


def mean_of_microbatches(plan: Plan) -> Iterator[Event]:
    """The accumulated gradient takes the mean over microbatches if the loss does not."""
    yield Event("reduce", "scale", "grad_sum", plan.group.name, divisor=Monomial.of("m"), tier=plan.grad_sum_tier,
                rule=Rule("loss", "the step's loss is the mean over microbatches, which gradients take"))


def average_shares(plan: Plan, averaging: Averaging) -> Iterator[Event]:
    """A parameter split over a data axis sees the tokens of all its ranks: its gradient needs no sum, only the mean."""
    averaging = _merging(plan, averaging)
    axes = tuple(a for a in averaging.data if a not in averaging.counted and a not in plan.summed)
    if axes:
        yield Event("reduce", "scale", "grad_sum", plan.group.name, divisor=Monomial.of(*axes),
                    tier=plan.grad_sum_tier, rule=Rule(
                        "reduce_gradient", f"the loss is a mean over {_names(axes)}, along which each rank holds other "
                                           "parameters: its gradient is a sum over all tokens there"))


def reduce_once(plan: Plan, averaging: Averaging) -> Iterator[Event]:
    """Gradients that rest whole are reduced once per step, to their owners first."""
    group = plan.group.name
    for to in ("S", "I"):
        axes = tuple(a for a in plan.reduced_once if (a in plan.owned) == (to == "S"))
        if axes:
            why = (f"the optimizer is sharded over {_names(axes)}: each rank needs only what it updates" if to == "S"
                   else f"every rank along {_names(axes)} updates its own copy: all need the whole sum")
            yield from _reduced(plan, averaging, axes, Event("reduce", "reduce", "grad_sum", group, to=to,
                                                             rule=Rule("reduce_gradient", why)))
    if plan.updates_on_host and not plan.accumulates_on_host:
        yield Event("reduce", "offload", "grad_sum", group, tier="device->host", bytes="g",
                    where=owners(plan.owned), rule=Rule(
                        "offload", f"{_rests(plan)}: the gradient follows its final reduction"))


def flag_overflow(plan: Plan) -> Iterator[Event]:
    """Every rank checks what it owns of the reduced gradient for overflow."""
    where = owners((*plan.grad_sum_axes, *plan.group.split))
    yield Event("update", "compute", "skip", plan.group.name, where=where, tier=plan.update_tier, rule=Rule(
        "skip_on_overflow", "a step whose gradient overflows is skipped: its owner looks at each element, reduced"))


def agree_to_skip(plans: Iterable[Plan], axes: tuple[str, ...], pipeline: str) -> Iterator[Event]:
    """One reduction of all flags, over the axes along which some rank holds a part of a gradient only, or none."""
    parted = tuple(a for a in axes if a == pipeline or any(a in (*p.grad_sum_axes, *p.group.split) for p in plans))
    if parted:
        yield Event("update", "all_reduce", "skip", axes=parted, op="max", source="P", to="I", bytes="4", rule=Rule(
            "skip_on_overflow", f"gradients are split over {_names(parted)}: all ranks skip the step, or none"))


def norm_axes(plans: Iterable[Plan], axes: tuple[str, ...], how: str) -> tuple[str, ...]:
    """The axes over which the norm is summed: all, or those along which some gradient is split."""
    parted = {a for p in plans for a in (*p.grad_sum_axes, *p.group.split)}
    return tuple(a for a in axes if how == "all_axes" or a in parted)


def partial_norm(plan: Plan, over: tuple[str, ...]) -> Iterator[Event]:
    """Each element is counted once along the axes of the sum: at its owner where it shards, else at one marked rank."""
    where = tuple(Clause(a) if a in plan.grad_sum_axes else Clause(a, 0) for a in plan.axes
                  if a in over or a in plan.grad_sum_axes)
    where += owners(plan.group.split)
    yield Event("update", "norm", "norm", plan.group.name, where=where, tier=plan.update_tier, rule=Rule(
        "clip_by_global_norm", "each element counts once: at its owner where it shards, at rank 0 where it replicates"))


def total_norm(axes: tuple[str, ...]) -> Iterator[Event]:
    """One reduction of all partial norms over the union of axes."""
    if axes:
        yield Event("update", "all_reduce", "norm", axes=axes, op="sum", source="P", to="I", bytes="4", rule=Rule(
            "clip_by_global_norm", "one reduction of all partial norms, over every axis"))


def clip(plan: Plan) -> Iterator[Event]:
    """Every rank scales what it holds by the same factor."""
    yield Event("update", "clip", "grad_sum", plan.group.name, tier=plan.update_tier, rule=Rule(
        "clip_by_global_norm", "the gradient is scaled by one factor, a function of the global norm"))


def update(plan: Plan) -> Iterator[Event]:
    """Each owner updates its elements; what an update reads beyond its own element is gathered first."""
    group, tier = plan.group, plan.update_tier
    away = Rule("offload", f"the optimizer state rests on the {plan.state_tier}: {tier} memory holds one unit's")
    states = [Event("update", "fetch", value, group.name, rule=away) for value in ("master", "moments")]
    if plan.state_tier != tier:
        for state in states:
            yield from carry(state, plan.state_tier, tier)
    wide: dict[str, tuple[str, ...]] = {"grad_sum": tuple(a for a in plan.grad_sum_axes if a not in plan.owned)}
    for value in group.whole_reads:
        wide[value] = (*plan.cut, *(plan.grad_sum_axes if value == "grad_sum" else plan.owned))
    for value, axes in wide.items():
        if axes:
            why = (f"{group.optimizer} reads whole matrices of {value}, which is sharded over {_names(axes)}"
                   if value in group.whole_reads else
                   f"every rank along {_names(axes)} updates all elements, and gradients rest sharded there")
            yield Event("update", "all_gather", value, group.name, axes=axes, source="S", to="I", tier=tier,
                        bytes="" if value == "grad_sum" else group.bytes_of(value), rule=Rule("update_owned", why))
    yield Event("update", "update", "master", group.name, where=owners(plan.owned), tier=tier, rule=Rule(
        "update_owned", f"{group.optimizer} runs where the optimizer state rests"))
    for value, axes in wide.items():
        if axes:
            yield Event("update", "free", value, group.name, axes=axes, tier=tier, rule=Rule(
                "update_owned", f"the gathered {value} ends with the update"))
    if plan.averaged == "optimizer":
        yield from average(plan, "update", "master")
    if plan.state_tier != tier:
        for state in states:
            yield from carry(state, tier, plan.state_tier)
        yield Event("update", "free", "moments", group.name, tier=tier, rule=away)
    if plan.materialized:
        yield Event("update", "free", "grad_sum", group.name, rule=Rule(
            "update_owned", "M: a gradient rests nowhere"))


def average(plan: Plan, phase: Phase, source: str) -> Iterator[Event]:
    """The average takes in the new parameters, of which `source` is a copy where it rests; nothing is reduced."""
    group, tier = plan.group.name, plan.average_rests[1]
    here = "device" if tier == "device" else "host"
    away = Rule("offload", f"the average of the weights rests on the {tier}: {here} memory holds one unit's")
    passing = [Event(phase, "fetch", value, group, bytes=plan.average_bytes if value == "average" else "", rule=away)
               for value in ("average", "weight")]
    if tier != here:
        for state in passing if source == "weight" else passing[:1]:
            yield from carry(state, tier, here)
    yield Event(phase, "update", "average", group, source=source, tier=here, rule=Rule(
        "average_weights", f"the average takes in the new {source}, after the update, where both rest"))
    if tier != here:
        yield from carry(passing[0], here, tier)
        for value in ("average", "weight") if source == "weight" else ("average",):
            yield Event(phase, "free", value, group, tier=here, rule=away)


def publish(plan: Plan) -> Iterator[Event]:
    """Updated elements reach every rank, and the tier, on which the parameters rest.

    An optimizer state that is fetched only for its update is published while it is there: in the same phase.
    """
    group = plan.group.name
    phase: Phase = "publish" if plan.state_tier == plan.update_tier else "update"
    axes = tuple(a for a in plan.owned if a not in plan.gathered)
    where = owners(tuple(a for a in plan.gathered if a not in plan.owned))
    on_device = plan.weight_tier == "device" or bool(axes)
    if plan.updates_on_host and on_device:
        yield Event(phase, "fetch", "master", group, tier="host->device", bytes="w", where=owners(plan.owned),
                    rule=Rule("offload", "the updated elements come back from the host, cast to the weights' type"))
    if on_device:
        why = (f"parameters rest whole over {_names(axes)}, the optimizer is sharded there" if axes
               else "the updated master copy is cast into the weights where they rest")
        yield Event(phase, "publish", "weight", group, axes=axes, where=where, rule=Rule("publish_parameters", why))
    away = Rule("offload", f"the updated elements go to the {plan.weight_tier}, where parameters rest")
    if not on_device:
        yield from carry(Event(phase, "offload", "weight", group, source="master", where=where, rule=away),
                         plan.update_tier, plan.weight_tier)
    elif plan.weight_tier != "device":
        yield from leave(Event(phase, "offload", "weight", group, rule=away), plan.weight_tier)
    if plan.updates_on_host and on_device:
        yield Event(phase, "free", "master", group, rule=Rule(
            "offload", f"the master copy rests on the {plan.state_tier} only"))
    if plan.state_tier != plan.update_tier:
        yield Event(phase, "free", "master", group, tier=plan.update_tier, rule=Rule(
            "offload", f"the master copy rests on the {plan.state_tier} only"))
    if plan.averaged == "parameters":
        yield from average(plan, phase, "weight")
