"""The transfer rules: how each verb changes the abstract machine.

Each rule is the abstract counterpart of the verb's meaning (step/verbs.py), for versions and values on every rank at
once. An event without a rule leaves the verdict open; no rule is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache

from placealg.arith import ONE, Monomial
from placealg.frozen import FrozenMap
from placealg.placement import Kind
from placealg.prover.calculus import versions
from placealg.prover.calculus.contribution import ABSENT, Slot, Tag, Term, Value, chosen, excepted, merged
from placealg.prover.calculus.event_ranks import left_out, owner_of, owner_pairs, pairs
from placealg.prover.calculus.largest import larger, merged_over
from placealg.prover.calculus.machine import Key, Machine, Read, Relied, Updated
from placealg.prover.calculus.microbatches import Iteration
from placealg.prover.calculus.parameter_uses import operate, unset
from placealg.prover.calculus.places import (
    NoRule,
    at_places,
    count_over,
    counted,
    divisor,
    observe,
)
from placealg.prover.calculus.positions import Pairs, Position, of_any, owner, rank
from placealg.prover.calculus.versions import CURRENT, GARBAGE, NEXT, UNHELD, Guarded, Guards, Leaf, Version
from placealg.prover.ops.flow import Flows
from placealg.prover.ops.stages import ends, held_on, tied
from placealg.step.program import LOOPED, STEP_PHASES, Event
from placealg.step.verbs import CARRIED, COUNTERS, LOSS_SCALE, SOURCES, STATES, VERBS


def execute(machine: Machine, event: Event, iteration: Iteration) -> None:
    """Apply the transfer rule of one event, in place; `check` must have passed."""
    if event.divisor.powers and LOSS_SCALE in event.divisor.names():
        observe(machine, event, "scale", machine.version(LOSS_SCALE), iteration)
    unset(machine, event, iteration)
    if event.value not in ("grad", "grad_sum") or not (out := left_out(event)):
        RULES[event.verb](machine, event, iteration)
        return
    key = (event.value, event.tiers[1])
    before = machine.value(*key)
    RULES[event.verb](machine, replace(event, where=tuple(c for c in event.where if not c.but)), iteration)
    for pair in sorted(out):
        machine.values[key] = excepted(machine.value(*key), before, pair)


def check(event: Event) -> None:
    """Raise NoRule unless a transfer rule covers the whole event."""
    gap = event.verb if event.verb not in RULES else uncovered(event)
    if gap:
        raise NoRule(event.path, f"no transfer rule for {gap}")


def uncovered(event: Event) -> str:
    """The aspect of an event that no rule covers; "" if a rule covers it whole."""
    kinds = ("", *(k.value for k in Kind))
    if event.source not in kinds:
        alike = any(event.value in family and event.source in family for family in (STATES, ("grad", "grad_sum")))
        alike = alike and (event.effect.copies or event.value in CARRIED)
        if event.source != replace(event, source="").origin and not alike:
            return f"{event.verb} of {event.value} from {event.source}"
    if "->" in event.tier and not event.effect.copies:
        return f"{event.verb} across tiers"
    if event.tier != "device" and (not event.group or (event.value != "skip" and event.verb in (
            "compute", "publish", "broadcast", "gather"))):
        return f"{event.verb} of {'activation' if event.said else event.value} on tier {event.tier}"
    if event.divisor != ONE and not event.effect.divides:
        return f"{event.verb} of {event.value} with a divisor"
    if event.verb == "all_reduce" and (event.divisor != ONE or event.to not in ("", "I")):
        return "an all_reduce with a divisor or to a shard"
    if event.verb == "compute" and event.value not in ("count", "skip") and event.phase not in LOOPED:
        return f"a computation in phase {event.phase}"
    if event.value == "skip" and event.phase in LOOPED:
        return "a flag inside the loop over microbatches"
    if event.verb == "store" and event.phase != "save":
        return f"a checkpoint stored in phase {event.phase}"
    if event.verb == "update" and event.group and event.phase not in STEP_PHASES:
        return f"an update in phase {event.phase}"
    return ""


def _selected(event: Event, met: Pairs, new: Version, old: Version) -> Version:
    """`new` on the ranks at all of `met` that the event does not leave out, `old` on the others."""
    made = versions.where(met, new, old)
    for pair in sorted(left_out(event)):
        made = versions.where([pair], old, made)
    return made


def _set(machine: Machine, key: Key, new: Version, event: Event) -> None:
    machine.versions[key] = _selected(event, pairs(event) | _own(machine, event), new, machine.version(*key))


def _own(machine: Machine, event: Event) -> Pairs:
    """The ranks that a group's event concerns: the owners along axes that split its parameters, other than its own.

    A local event acts on all that a rank holds, its own or gathered, on the stages of its parameters.
    """
    pipeline = machine.reference.pipeline
    local = not (VERBS[event.verb].collective and event.axes)
    return frozenset((a, p) for a, p in machine.owners if event.group and a not in event.axes
                     and (not local or a == pipeline.axis))


def _set_value(machine: Machine, key: Key, new: Value, event: Event) -> None:
    met = _own(machine, event) if event.axes else frozenset()
    machine.values[key] = chosen(new, machine.value(*key), pairs(event) | met)


def _broadcast(machine: Machine, event: Event, _: Iteration) -> None:
    tier = event.tiers[0]
    root = at_places(machine.version(event.value, tier), {a: rank(event.root) for a in event.axes})
    _set(machine, (event.value, tier), versions.each(root, lambda leaf: GARBAGE if leaf == UNHELD else leaf), event)


def _keep_owned(machine: Machine, event: Event, _: Iteration) -> None:
    """Drop all but what a rank owns. An owner's gradient stays as it is, on ranks outside of `where` too."""
    key, owned = (event.value, event.tiers[0]), owner_pairs(event)
    if event.value in STATES:
        _set(machine, key, versions.where(owned, machine.version(*key), UNHELD) if owned else UNHELD, event)
        return
    old = machine.value(*key)
    if not owned or not old.held:
        _set_value(machine, key, ABSENT, event)
    elif not owned <= pairs(event):
        left = old.masked(owned)
        before = old.mixed if event.where or old.mixed is None else old.mixed | owned
        beyond = [r for r in (before, old.mask if event.where else None) if r is not None and not r >= left.mask]
        machine.values[key] = replace(left, mixed=frozenset.intersection(*beyond) if beyond else None)


def _gather(machine: Machine, event: Event, _: Iteration) -> None:
    """Give every rank what the owner holds. A gradient is mixed if it is garbage on ranks whose owner lacks it."""
    key = (event.value, event.tiers[0])
    places = dict.fromkeys(event.axes, owner_of(event))
    if event.value in STATES:
        owned = at_places(machine.version(*key), places)
        _set(machine, key, versions.each(owned, lambda leaf: GARBAGE if leaf == UNHELD else leaf), event)
    else:
        whole = machine.value(*key).gathered(places)
        _set_value(machine, key, replace(whole, mixed=frozenset()) if whole.mask - machine.owners else whole, event)


def _assign(machine: Machine, event: Event, _: Iteration) -> None:
    source = event.source if event.source in (*STATES, "grad", "grad_sum") else SOURCES.get(event.value, "")
    key = (event.value, event.tiers[1])
    if event.value == "grad_sum":
        _set_value(machine, key, machine.value(source, event.tiers[0]), event)
    elif source:
        _set(machine, key, _copy(machine, event, source), event)
    else:
        start = CURRENT if event.phase == "init" else GARBAGE
        _set(machine, key, versions.where(machine.owners if event.group else (), start, UNHELD), event)


def _copy(machine: Machine, event: Event, source: str) -> Version:
    """A state's version as another state: weights and master weights are the same numbers, moments are not.

    An average of weights is the same numbers in init only, where it starts from them.
    """
    version = machine.version(source, event.tiers[0])
    alike = ("weight", "master", "average") if event.phase == "init" else ("weight", "master")
    if source == event.value or {source, event.value} <= {*alike}:
        return version
    return versions.each(version, lambda leaf: leaf if leaf == UNHELD else GARBAGE)


def _zero(machine: Machine, event: Event, _: Iteration) -> None:
    """Zero what a rank owns; anything else that it holds stays."""
    key = (event.value, event.tiers[1])
    old = machine.value(*key)
    beyond = [r for r in (old.mask if old.held else None, old.mixed) if r is not None and not r >= machine.owners]
    mixed = frozenset.intersection(*beyond) if beyond else None
    _set_value(machine, key, Value(zero=True, mask=machine.owners, mixed=mixed), event)


def _copy_tier(machine: Machine, event: Event, _: Iteration) -> None:
    read, written = event.tiers
    source = event.source if event.source in (*STATES, "grad", "grad_sum") else event.value
    if event.value in STATES:
        _set(machine, (event.value, written), _copy(machine, event, source), event)
    else:
        _set_value(machine, (event.value, written), machine.value(source, read), event)


def _compute(machine: Machine, event: Event, iteration: Iteration) -> None:
    if event.value == "count":
        machine.counts.pop(event.unit, None)
        if not event.where and not any(version.label for version in event.operands):
            machine.counts[event.unit] = Monomial.of(counted(machine, event, iteration))
        return
    if event.value == "skip":
        apart = _apart(machine)  # a flag checked at one end counts only there
        machine.skip = _counted(machine, event, {apart: of_any(owner("end"))} if apart else FrozenMap())
        return
    assert machine.flows is not None, "ops are not followed"
    if event.value == "grad":
        _take(machine, event, iteration, machine.flows)
    else:
        operate(machine, event, iteration, machine.flows)


def _take(machine: Machine, event: Event, iteration: Iteration, flows: Flows) -> None:
    """Set grad to a statistic of the rank's tokens in its unit; garbage if the unit's forward did not run on them."""
    held, by = flows.at(iteration.position).taken.get(event.path, ()), divisor(machine, event, iteration)
    new = held[min(machine.site.part, len(held) - 1)] if held else Value(garbage=True)
    new = new.masked(machine.owners).scaled(ONE / by) if by else replace(new, garbage=True)
    new = new if iteration.active else replace(new, terms=())
    machine.begun.add(machine.site.parameter)
    _set_value(machine, (event.value, event.tiers[1]), new, event)


def _scale(machine: Machine, event: Event, iteration: Iteration) -> None:
    by = divisor(machine, event, iteration)
    if event.value == "loss":
        machine.seed = None if by is None or machine.seed is None or event.where else machine.seed / by
        return
    key = (event.value, event.tiers[1])
    old = machine.value(*key)
    if by is None:
        _set_value(machine, key, replace(old, garbage=True), event)
    else:
        machine.values[key] = old.scaled_on(ONE / by, pairs(event))


def _accumulate(machine: Machine, event: Event, _: Iteration) -> None:
    tier = event.tiers[1]
    old, new = machine.value("grad_sum", tier), machine.value("grad", tier)
    added = larger(old, new, event.op) if machine.group.merge == "max" else old.plus(new)
    _set_value(machine, ("grad_sum", tier), added, event)


_reduced = lru_cache(maxsize=2**12)(Value.reduced)
"""Sums over ranks: from state to state, and from microbatch to microbatch, mostly the same values are summed."""


def _reduce(machine: Machine, event: Event, iteration: Iteration) -> None:
    key = (event.value, event.tiers[0])
    by, old = divisor(machine, event, iteration), machine.value(*key)
    if by is None:  # garbage on every rank that receives the sum
        by, old = ONE, replace(old, garbage=True)
    factor = ONE / by
    if event.op == "mean":
        factor = factor / Monomial.of(*event.axes)
    if event.op == "premultiplied":
        old, factor = old.scaled(factor), ONE
    if machine.group.merge == "max":
        new = merged_over(old, event.axes, event.op, machine.reference.unrolled).scaled(ONE / by)
    else:
        new = _reduced(old, event.axes, factor, machine.reference.unrolled)
    if event.to == "S" and new.held:
        new = new.masked(owner_pairs(event))
    _set_value(machine, key, new, event)


def _all_reduce(machine: Machine, event: Event, _: Iteration) -> None:
    mean = event.op == "mean"
    if event.value == "norm":
        unrolled = machine.reference.unrolled
        machine.slot = machine.slot.summed(event.axes, mean, unrolled) if machine.slot and not event.where else None
        return
    if event.value == "skip":
        if machine.skip:
            found = machine.skip.summed(event.axes, False, machine.reference.unrolled)
            machine.skip = replace(found, defined=found.defined and not event.where)
        return
    count = machine.counts.pop(event.unit, None)
    for axis in event.axes:
        count = count_over(count, axis) if count is not None else None
    if count is not None and not event.where:
        machine.counts[event.unit] = count / Monomial.of(*event.axes) if mean else count


def _norm(machine: Machine, event: Event, _: Iteration) -> None:
    machine.slot = replace(_counted(machine, event), apart=_apart(machine))


def _apart(machine: Machine) -> str:
    """The axis of a pipeline's ends, if the group is tied and is held there; "" otherwise."""
    reference, parameter = machine.reference, machine.site.parameter
    return ends(reference, held_on(reference, parameter)) if tied(reference, parameter) else ""


def _counted(machine: Machine, event: Event, beside: Mapping[str, Position] = FrozenMap()) -> Slot:
    """The slot that counts what a rank holds of grad_sum and `where` selects, on ranks that also stand at `beside`."""
    counted, where = machine.value("grad_sum", event.tiers[0]), pairs(event)
    placed = counted.mask | where
    beside = FrozenMap({a: p for a, p in beside.items() if a not in dict(placed)})
    defined = not (counted.mixed is not None and not where >= counted.mask)
    terms: tuple[Term, ...] = (Term(ONE, beside).on(placed),)
    for pair in sorted(left_out(event)):
        terms = merged((*terms, *(t.on(frozenset({pair})).times(Monomial.number(-1)) for t in terms)))
    return Slot(terms, counted, placed, defined)


def _clip(machine: Machine, event: Event, _: Iteration) -> None:
    if event.group != machine.group.name:
        machine.relied.append(Relied(event.path, "norm", machine.slot, pairs(event)))
        return
    key = (event.value, event.tiers[0])
    old = machine.value(*key)
    tag = Tag("clip", machine.slot)
    _set_value(machine, key, replace(old, tags=(*old.tags, tag)) if old.held else old, event)


def _update(machine: Machine, event: Event, iteration: Iteration) -> None:
    if event.group != machine.group.name and event.value not in ("rng", *CARRIED):
        machine.relied.append(Relied(event.path, "skip", machine.skip, pairs(event)))
    if event.group not in ("", machine.group.name):
        return
    if event.value in COUNTERS:
        old = machine.version(event.value)
        _set(machine, (event.value, "device"), versions.each(old, lambda v: NEXT if v == CURRENT else GARBAGE), event)
        return
    if event.value in CARRIED:
        _carry(machine, event)
        return
    if iteration.position and machine.reference.pipeline.axis:
        raise NoRule(event.path, "an update inside the loop over microbatches, which overlap in a pipeline")
    tier, where = event.tiers[0], pairs(event)
    master, moments = machine.version("master", tier), machine.version("moments", tier)
    flag = f"right{machine.steps}:{len(machine.updates)}"
    observe(machine, event, "hyper", machine.version("step"), iteration)
    machine.updates.append(Updated(event.path, flag, machine.value("grad_sum", tier), machine.slot,
                                   machine.skip, (("master", master), ("moments", moments)),
                                   divisor(machine, event, iteration), where))
    inputs = versions.both(master, moments, lambda one, two: _updated(flag, one, two))
    for value, old in (("master", master), ("moments", moments)):
        kept = versions.both(inputs, old, lambda new, was: was if new == UNHELD else new)
        machine.versions[value, tier] = _selected(event, where, kept, old)


def _carry(machine: Machine, event: Event) -> None:
    """Move on a state that no gradient reaches: to NEXT, where it is CURRENT and what it takes in is NEXT."""
    key = (event.value, event.tiers[1])
    numbers = event.origin in ("weight", "master")
    taken, old = machine.version(event.origin, event.tiers[0]) if numbers else GARBAGE, machine.version(*key)
    new = versions.both(old, taken, lambda own, other: _advanced((own, CURRENT), (other, NEXT)))
    _set(machine, key, new, event)


def _updated(flag: str, master: Leaf, moments: Leaf) -> Leaf:
    """The result of an update: UNHELD without a master, GARBAGE if an input is not CURRENT, else a guarded NEXT."""
    return _advanced((master, CURRENT), (moments, CURRENT), frozenset({(flag, FrozenMap())}))


def _advanced(own: tuple[Leaf, int], other: tuple[Leaf, int], guards: Guards = frozenset()) -> Leaf:
    """A state made of itself and another, each with the version it must have: NEXT under the guards of both.

    UNHELD where it is not held itself, GARBAGE where one of them has another version.
    """
    if own[0] == UNHELD:
        return UNHELD
    for leaf, wanted in (own, other):
        if isinstance(leaf, Guarded) and leaf.version == wanted:
            guards |= leaf.updates
        elif leaf != wanted:
            return GARBAGE
    return Guarded(guards, NEXT) if guards else NEXT


def _publish(machine: Machine, event: Event, _: Iteration) -> None:
    master = at_places(machine.version("master", event.tiers[0]), dict.fromkeys(event.axes, owner_of(event)))
    missing: Version = GARBAGE if event.axes else machine.version("weight")
    _set(machine, ("weight", "device"), _else(master, missing), event)


def _else(version: Version, missing: Version) -> Version:
    """`version` where something is held, `missing` elsewhere."""
    return versions.both(version, missing, lambda leaf, other: other if leaf == UNHELD else leaf)


def _store(machine: Machine, event: Event, _: Iteration) -> None:
    version, want = machine.version(event.value, event.tiers[0]), machine.after(event.value)
    read = _selected(event, pairs(event), versions.each(version, lambda leaf: want if leaf == UNHELD else leaf), want)
    machine.reads.append(Read(event.path, "store", "", read, want))
    old = machine.stored.get(event.value, UNHELD)
    machine.stored[event.value] = _selected(event, pairs(event), _else(version, old), old)


def _load(machine: Machine, event: Event, _: Iteration) -> None:
    _set(machine, (event.value, event.tiers[1]), machine.stored.get(event.value, UNHELD), event)


RULES: Mapping[str, Callable[[Machine, Event, Iteration], None]] = {
    "broadcast": _broadcast, "slice": _keep_owned, "free": _keep_owned, "gather": _gather, "all_gather": _gather,
    "assign": _assign, "zero": _zero, "offload": _copy_tier, "fetch": _copy_tier, "compute": _compute,
    "scale": _scale, "accumulate": _accumulate, "reduce": _reduce, "all_reduce": _all_reduce, "norm": _norm,
    "clip": _clip, "update": _update, "publish": _publish, "store": _store, "load": _load,
}
"""Verb -> transfer rule."""
