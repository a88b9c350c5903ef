"""Two small steps written by hand, on which the text of programs and edits is tested apart from the derivation."""

from __future__ import annotations

from placealg.arith import Monomial
from placealg.mesh import Axis, Mesh
from placealg.step.program import Clause, Event, Group, LoopUnit, Reference, Rule, Step

LAYERS = Monomial.of("L")


def reference(name: str, *axes: Axis) -> Reference:
    mesh = Mesh(axes)
    return Reference(
        name, "by hand", mesh, mesh.names, (LoopUnit("embedding"), LoopUnit("layer", LAYERS)),
        (Group("embedding.weight", "embedding", ("embedding",), ("embedding.weight",), (Monomial.of("V", "h"),)),
         Group("layer.weight", "layer", ("layer",), ("layer.weight",), (Monomial.of("h", "h"),), LAYERS)),
        hypotheses=("equal_counts",))


def _each(groups: tuple[str, ...], phase: str, verb: str, value: str, **fields: object) -> list[Event]:
    return [Event(phase, verb, value, group, **fields) for group in groups]  # type: ignore[arg-type]


def zero1() -> Step:
    held = reference("zero1", Axis("dp"))
    groups, owner = tuple(g.name for g in held.groups), (Clause("dp"),)
    back = groups[::-1]
    events = [
        *_each(groups, "init", "broadcast", "weight", axes=("dp",), rule=Rule("initialise", "copies start equal")),
        *_each(groups, "init", "assign", "master", source="weight", where=owner),
        Event("init", "assign", "step"),
        *_each(groups, "prepare", "zero", "grad_sum"),
        Event("forward", "compute", "activation", unit="embedding"),
        Event("forward", "compute", "activation", unit="layer"),
        Event("forward", "compute", "loss", unit="loss", divisor=Monomial.of("tokens")),
        Event("backward", "scale", "loss", unit="loss", divisor=Monomial.of("m")),
        Event("backward", "compute", "activation", unit="layer"),
        Event("backward", "accumulate", "grad_sum", "layer.weight"),
        Event("backward", "compute", "activation", unit="embedding"),
        Event("backward", "accumulate", "grad_sum", "embedding.weight"),
        *_each(back, "reduce", "reduce", "grad_sum", axes=("dp",), op="mean", source="P", to="S"),
        *_each(groups, "update", "norm", "norm", where=owner),
        Event("update", "all_reduce", "norm", axes=("dp",), op="sum", bytes="4", rule=Rule("norm", "one \"total\"\n")),
        *_each(groups, "update", "clip", "grad_sum"),
        *_each(groups, "update", "update", "master", where=owner),
        Event("update", "update", "step"),
        *_each(groups, "publish", "publish", "weight", axes=("dp",)),
        *_each(groups, "save", "store", "weight"),
        *_each(groups, "resume", "load", "weight"),
        *_each(groups, "resume", "assign", "master", source="weight", where=owner),
    ]
    return Step(held, tuple(events))


def zero3() -> Step:
    held = reference("zero3[fsdp]*dp[4]", Axis("fsdp"), Axis("dp", 4))
    groups, owner = tuple(g.name for g in held.groups), (Clause("fsdp"), Clause("dp", 3))
    events = [
        *_each(groups, "init", "slice", "weight", axes=("fsdp",)),
        *_each(groups, "init", "offload", "master", source="weight", tier="device->host", where=owner),
        *_each(groups, "prepare", "zero", "grad_sum", tier="host"),
    ]
    for phase, order in (("forward", groups), ("backward", groups[::-1])):
        for group in order:
            events += _each((group,), phase, "gather", "weight", axes=("fsdp",), source="S", to="R")
            events += [Event(phase, "compute", "activation", unit=group.split(".")[0])]
            events += _each((group,), phase, "free", "weight", axes=("fsdp",))
            if phase == "backward":
                events += _each((group,), phase, "reduce", "grad", axes=("fsdp",), op="mean", to="S", bytes="wire")
                events += _each((group,), phase, "accumulate", "grad_sum", at=("first", "last"), where=owner[:1],
                                layout="rows")
    events += [
        *_each(groups, "reduce", "reduce", "grad_sum", axes=("dp",), divisor=Monomial.parse("dp*m/2")),
        *_each(groups, "reduce", "reduce", "grad_sum", axes=("dp",), copy=2),
        *_each(groups, "update", "update", "master", where=owner, tier="host"),
        *_each(groups, "publish", "fetch", "master", tier="host->device", bytes="w"),
        *_each(groups, "publish", "publish", "weight"),
    ]
    return Step(held, tuple(events))
