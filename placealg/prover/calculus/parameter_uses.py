"""The effect of ops on one parameter: where they read it, what they add to its gradient, where they draw."""

from __future__ import annotations

from dataclasses import replace

from placealg.arith import ONE, Monomial
from placealg.frozen import FrozenMap
from placealg.models.backward import terms
from placealg.models.graph import Op, unit_of
from placealg.prover.calculus import versions
from placealg.prover.calculus.contribution import Value, move, stands_at
from placealg.prover.calculus.machine import Machine
from placealg.prover.calculus.microbatches import Iteration
from placealg.prover.calculus.places import NoRule, divisor, observe
from placealg.prover.calculus.positions import UNIT, Pairs, stage
from placealg.prover.calculus.versions import CURRENT, GARBAGE, UNHELD, Version
from placealg.prover.ops.findings import SEED, GradientPart, seed_of, started_by
from placealg.prover.ops.flow import Flows
from placealg.prover.ops.paths import substituted
from placealg.prover.ops.stages import ends, held_on, tied
from placealg.step.gradient_targets import WEIGHTS
from placealg.step.pipeline import part_of
from placealg.step.program import Event, Group, Reference
from placealg.strategy.vocabulary import LAYER


def concerns(event: Event, parameter: str, reference: Reference) -> bool:
    """Whether an event on a tensor uses a parameter, draws random numbers, or starts the backward."""
    graph = reference.graph
    op = graph.producer(event.tensor) if event.verb == "compute" else None
    if op is None:
        return False
    starting = starts(event, reference) or starts_a_term(event, reference)
    return starting or parameter in op.inputs or op.draws_in(event.on_gradient)


def starts(event: Event, reference: Reference) -> bool:
    """Whether the backward of a microbatch starts with an event: the loss's sum, or the last whole unit."""
    if not event.on_gradient or event.verb != "compute":
        return False
    last = reference.graph.ops[-1]
    if event.phase == WEIGHTS:
        return False
    return event.tensor in last.inputs if reference.whole else event.tensor == last.output


def starts_a_term(event: Event, reference: Reference) -> bool:
    """Whether the backward of a further term of the loss starts with an event."""
    op = reference.graph.producer(event.tensor) if event.on_gradient and event.verb == "compute" else None
    return op is not None and op.kind == "sum" and op in terms(reference.graph)


def operate(machine: Machine, event: Event, iteration: Iteration, flows: Flows) -> None:
    """The transfer rule of an op event, projected to one parameter: it may read it, draw, or add to its gradient."""
    graph, parameter = machine.reference.graph, machine.site.parameter
    if event.value == "loss":
        by = divisor(machine, event, iteration)
        ready = event.path in flows.at(iteration.position).loss
        machine.seed = ONE / by if by is not None and ready and not event.where else None
        return
    op = graph.producer(event.tensor)
    assert op is not None
    if starts(event, machine.reference):
        machine.started = machine.seed
    if starts_a_term(event, machine.reference):
        known = seed_of(event) in machine.terms
        if known and machine.terms[seed_of(event)] != _seed_at(machine, event, iteration):
            raise NoRule(event.path, "a term of the loss that is divided otherwise in other layers")
    if parameter in op.inputs:
        if not event.on_gradient or flows.reads_parameter(event, op, parameter):
            where = used_at(machine, op, parameter)
            shared = _shared(machine, where)
            observe(machine, event, "weight", _share(machine, shared), iteration, where - shared)
        for part in flows.at(iteration.position).of(event.path, parameter) if event.on_gradient else ():
            _receive(machine, part, iteration)
    if op.draws_in(event.on_gradient):
        observe(machine, event, "rng", machine.version("rng"), iteration)


def unset(machine: Machine, event: Event, iteration: Iteration) -> None:
    """Let grad be 0 if no use has added to it in the microbatch; of ops, not of whole units."""
    if not iteration.position or machine.reference.whole or machine.site.parameter in machine.begun:
        return
    if event.verb != "compute" and "grad" in (event.value, event.origin) and event.tiers[0] == "device":
        machine.values["grad", "device"] = Value(zero=True, mask=machine.owners)


def used_at(machine: Machine, op: Op, parameter: str) -> Pairs:
    """The ranks on which an op uses a parameter: its owners; for a tied one, those at the op's end of the pipeline."""
    graph = machine.reference.graph
    if not tied(machine.reference, parameter):
        return machine.owners
    end = ends(machine.reference, held_on(machine.reference, parameter))
    return machine.owners | {(end, stage(part_of(op.unit, graph)))}


def _shared(machine: Machine, where: Pairs) -> Pairs:
    """The owners along axes that split a dim of the parameter; layers are not such a dim, as ranks hold whole ones."""
    splits = machine.reference.split_dims.get(machine.site.parameter, FrozenMap())
    return frozenset((axis, position) for axis, position in where if splits.get(axis, LAYER) != LAYER)


def _share(machine: Machine, owners: Pairs) -> Version:
    """A parameter's version as an op reads it: garbage on a rank that also holds elements of another rank's share."""
    held = machine.version("weight")
    foreign = versions.each(held, lambda leaf: CURRENT if leaf == UNHELD else GARBAGE)
    return versions.where(owners, held, foreign)


def _receive(machine: Machine, part: GradientPart, iteration: Iteration) -> None:
    """Set grad to the first contribution of a microbatch, or add a later one; only those of the site's use count.

    The seed is the one with which the backward started; what is 0 needs none. Raises NoRule if one use contributes
    twice with several classes, because its contributions cannot be added class by class.
    """
    new = part.held[min(machine.site.part, len(part.held) - 1)]
    named = seeds_in(new)
    foreign = any(loss_of(name, machine.flows) not in ("", machine.site.loss) for name in named)
    seeds = {} if foreign else {
        name: machine.started if name == SEED else _own_seed(machine, name, iteration) for name in sorted(named)}
    if foreign:
        new = replace(new, terms=())
    elif None in seeds.values():
        new = replace(new, terms=(), garbage=new.garbage or iteration.active)
    elif part.use != machine.site.use or not iteration.active:
        new = replace(new, terms=())
    else:
        for name, seed in seeds.items():
            for axis in machine.reference.mesh.names:
                seed = seed and move(seed, axis, UNIT)
            new = substituted(new, name, seed or ONE)
    if part.use in machine.begun and len(part.held) > 1:
        raise NoRule(part.event, "no transfer rule for one use that contributes twice, counted differently")
    first = part.parameter not in machine.begun
    if machine.reference.whole:
        first = _of_the_last_unit(machine, part)
    machine.values["grad", "device"] = new if first else _held(machine).plus(new)
    machine.begun |= {part.parameter, part.use}


def seeds_in(value: Value) -> set[str]:
    """The symbols of the gradients from which backwards started that a value counts."""
    return {name for term in value.terms for name in term.coefficient.names() if name.startswith(SEED)}


def loss_of(seed: str, flows: Flows | None) -> str:
    """The loss of an op graph whose tokens the backward that started with a seed counts; of whole units "", any."""
    if flows is None or flows.step.reference.whole:
        return ""
    losses = flows.step.reference.losses
    return losses[0] if seed == SEED else flows.step.reference.counter(flows.step.event(started_by(seed)))


def _own_seed(machine: Machine, name: str, iteration: Iteration) -> Monomial | None:
    """The seed of a further term of the loss, by its symbol: an instance of its unit adds to gradients of earlier ones.

    These stand before the event in the program; that it divides by the same is checked there.
    """
    if name not in machine.terms:
        assert machine.flows is not None
        machine.terms[name] = _seed_at(machine, machine.flows.step.event(started_by(name)), iteration)
    return machine.terms[name]


def _seed_at(machine: Machine, event: Event, iteration: Iteration) -> Monomial | None:
    by = divisor(machine, event, iteration)
    return ONE / by if by is not None else None


def _held(machine: Machine) -> Value:
    """The gradient to which a further use adds: a whole unit adds on every rank, and to garbage if nothing is held."""
    old = machine.value("grad")
    if not machine.reference.whole:
        return old
    held = stands_at(old.mask)
    return replace(old, mask=frozenset(), sides=old.sides | held, garbage=old.garbage or not old.held, held=True)


def begins(use: str, group: Group, reference: Reference) -> str:
    """How a whole unit's part of a parameter's gradient is combined with the old value: "sets", "adds", or "one sets".

    The last of the units that use the parameter sets its gradient. If that is a repeated unit that uses another unit's
    parameter, one of its instances sets it, and the others add.
    """
    unit = unit_of(use)
    if unit != group.sites[-1]:
        return "adds"
    return "one sets" if unit != group.unit and reference.unit(unit).repeated else "sets"


def _of_the_last_unit(machine: Machine, part: GradientPart) -> bool:
    """Whether a whole unit sets the gradient of a parameter."""
    how = begins(part.use, machine.group, machine.reference)
    if how == "one sets" and part.use in machine.begun:
        raise NoRule(part.event, f"no transfer rule for another backward of {unit_of(part.use)} in a microbatch")
    return how != "adds"
