"""Training steps written by hand, event by event: what the oracle is tried on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from placealg.arith import ONE, Monomial
from placealg.mesh import Axis, Mesh
from placealg.step.program import Clause, Event, Group, LoopUnit, Reference, Step

LAYERS = Monomial.of("L")


def reference(*axes: str, units: tuple[str, ...] = ("layer",), tied: bool = False, **fields: Any) -> Reference:
    """One group per unit, `layer` repeated; with `tied` the last unit uses the first one's group and has none."""
    own = units[:-1] if tied else units
    groups = tuple(Group(f"{u}.weight", u, (u, units[-1]) if tied and u == units[0] else (u,), (f"{u}.weight",),
                         (ONE,), LAYERS if u == "layer" else ONE) for u in own)
    return Reference("by hand", "small", Mesh(tuple(map(Axis, axes or ("dp",)))), axes or ("dp",),
                     tuple(LoopUnit(u, LAYERS if u == "layer" else ONE) for u in units), groups, **fields)


def per_matrix(ref: Reference, *reads: str) -> Reference:
    """The reference with an optimizer that reads whole matrices of `reads`."""
    return replace(ref, groups=tuple(replace(g, optimizer="muon", locality="matrix", whole_reads=reads)
                                     for g in ref.groups))


def owner(*axes: str) -> tuple[Clause, ...]:
    return tuple(map(Clause, axes))


def each(ref: Reference, phase: str, verb: str, value: str, **fields: Any) -> list[Event]:
    """One event per group."""
    return [Event(phase, verb, value, g.name, **fields) for g in ref.groups]


def start(ref: Reference, where: tuple[Clause, ...]) -> Iterator[Event]:
    yield from each(ref, "init", "broadcast", "weight", axes=ref.mesh.names)
    yield from each(ref, "init", "assign", "master", where=where)
    yield from each(ref, "init", "assign", "moments", where=where)
    yield Event("init", "assign", "step")
    yield Event("init", "assign", "rng")


def loss(token_mean: bool) -> tuple[list[Event], list[Event], list[Event]]:
    """(prepare, forward, backward) events of a token mean over dp and microbatches, or of a mean of local means."""
    if token_mean:
        return ([Event("prepare", "compute", "count", unit="loss"),
                 Event("prepare", "all_reduce", "count", unit="loss", axes=("dp",), op="sum")],
                [Event("forward", "compute", "loss", unit="loss", divisor=Monomial.of("count"))], [])
    return ([], [Event("forward", "compute", "loss", unit="loss", divisor=Monomial.of("tokens"))],
            [Event("backward", "scale", "loss", unit="loss", divisor=Monomial.of("m"))])


def finish(ref: Reference, owned: tuple[str, ...], gathered: tuple[str, ...]) -> Iterator[Event]:
    """Norm, clip, update, publish, save and resume of an optimizer state sharded over `owned`."""
    axes, where = ref.mesh.names, owner(*owned)
    counts_once = tuple(Clause(a) if a in owned else Clause(a, 0) for a in axes)
    if ref.clip:
        yield from each(ref, "update", "norm", "norm", where=counts_once)
        yield Event("update", "all_reduce", "norm", axes=axes, op="sum")
        yield from each(ref, "update", "clip", "grad_sum")
    yield from each(ref, "update", "update", "master", where=where)
    yield Event("update", "update", "step")
    yield Event("update", "update", "rng")
    yield from each(ref, "publish", "publish", "weight", axes=tuple(a for a in owned if a not in gathered))
    yield from each(ref, "save", "store", "weight", where=owner(*gathered))
    yield from each(ref, "save", "store", "moments", where=where)
    yield Event("save", "store", "step")
    yield Event("save", "store", "rng")
    yield from each(ref, "resume", "load", "weight")
    yield from each(ref, "resume", "load", "moments")
    yield from each(ref, "resume", "assign", "master", where=where)
    yield Event("resume", "load", "step")
    yield Event("resume", "load", "rng")


def once_per_step(ref: Reference, owned: tuple[str, ...], token_mean: bool) -> Step:
    """dp (nothing owned) and zero1 (the optimizer owned): one reduction after the last microbatch."""
    op = "sum" if token_mean else "mean"
    prepare, after_forward, before_backward = loss(token_mean)
    events = list(start(ref, owner(*owned)))
    events += each(ref, "prepare", "zero", "grad_sum") + prepare
    events += [Event("forward", "compute", "activation", unit=u.name) for u in ref.units] + after_forward
    events += before_backward
    for unit in reversed(ref.units):
        events.append(Event("backward", "compute", "activation", unit=unit.name))
        events += [Event("backward", "accumulate", "grad_sum", g.name) for g in ref.groups if g.sites[0] == unit.name]
    events += each(ref, "reduce", "reduce", "grad_sum", axes=ref.mesh.names, op=op, to="S" if owned else "I")
    return Step(ref, (*events, *finish(ref, owned, ())))


def dp(ref: Reference | None = None, token_mean: bool = False) -> Step:
    """Everything replicated; gradients all-reduced once per step."""
    return once_per_step(ref or reference(), (), token_mean)


def zero1(ref: Reference | None = None, token_mean: bool = False) -> Step:
    """Optimizer sharded: reduce to the owners, update, publish."""
    chosen = ref or reference()
    return once_per_step(chosen, chosen.mesh.names, token_mean)


def zero3(ref: Reference | None = None, token_mean: bool = False) -> Step:
    """All states sharded: gather and free around every use, reduce to the owners every microbatch."""
    ref = ref or reference()
    axes, where, op = ref.mesh.names, owner(*ref.mesh.names), "sum" if token_mean else "mean"
    prepare, after_forward, before_backward = loss(token_mean)
    events = [*start(ref, where), *each(ref, "init", "slice", "weight", axes=axes)]
    events += each(ref, "prepare", "zero", "grad_sum", where=where) + prepare
    for unit in ref.units:
        compute = Event("forward", "compute", "activation", unit=unit.name)
        events += around(ref, "forward", unit.name, compute, axes)
    events += after_forward + before_backward
    for unit in reversed(ref.units):
        events += around(ref, "backward", unit.name, Event("backward", "compute", "activation", unit=unit.name), axes)
        for g in ref.groups:
            if g.sites[0] == unit.name:
                events.append(Event("backward", "reduce", "grad", g.name, axes=axes, op=op, to="S"))
                events.append(Event("backward", "accumulate", "grad_sum", g.name))
    return Step(ref, (*events, *finish(ref, axes, axes)))


def around(ref: Reference, phase: str, unit: str, compute: Event, axes: tuple[str, ...]) -> list[Event]:
    """`compute` between the gathers and frees of the groups that it uses."""
    used = [g for g in ref.groups if unit in g.sites]
    return [*(Event(phase, "gather", "weight", g.name, axes=axes) for g in used), compute,
            *(Event(phase, "free", "weight", g.name, axes=axes) for g in used)]


def found(step: Step, pattern: str) -> list[int]:
    """The positions of the events whose path matches `pattern` (`*` crosses dots, brackets are literal)."""
    positions = [i for i, e in enumerate(step.events) if fnmatchcase(e.path, pattern.replace("[", "[[]"))]
    assert positions, f"{pattern} matches none of {[e.path for e in step.events]}"
    return positions


def drop(step: Step, pattern: str) -> Step:
    """The step without these events."""
    gone = found(step, pattern)
    return replace(step, events=tuple(e for i, e in enumerate(step.events) if i not in gone))


def double(step: Step, pattern: str) -> Step:
    """The step with these events twice in a row."""
    again = found(step, pattern)
    return replace(step, events=tuple(copy for i, e in enumerate(step.events)
                                      for copy in ([e, replace(e, copy=2)] if i in again else [e])))


def change(step: Step, pattern: str, **fields: Any) -> Step:
    """The step with fields of these events changed."""
    changed = found(step, pattern)
    return replace(step, events=tuple(replace(e, **fields) if i in changed else e for i, e in enumerate(step.events)))


def move(step: Step, pattern: str, before: str, **fields: Any) -> Step:
    """The step with one event moved before another, into its phase, and fields of it changed."""
    (i,), events = found(step, pattern), list(step.events)
    moved = replace(events.pop(i), **fields)
    (j,) = found(replace(step, events=tuple(events)), before)
    events.insert(j, replace(moved, phase=events[j].phase))
    return replace(step, events=tuple(events))
