"""Programs written out by hand, as published: the cost is read off these events, with no derivation in between."""

from __future__ import annotations

from placealg.arith import Monomial
from placealg.frozen import FrozenMap
from placealg.mesh import Axis, Mesh
from placealg.step.program import Clause, Event, Group, LoopUnit, Reference, Step

UNIT = LoopUnit("layer", Monomial.of("L"))
GROUP = Group("layer.weight", "layer", ("layer",), ("layer.weight",), (Monomial.of("Psi_unit"),), Monomial.of("L"))
TYPES = FrozenMap({"w": "2", "g": "2", "wire": "2", "o": "12", "act": "2"})
OWNER = (Clause("dp"),)


def reference(*groups: Group, units: tuple[LoopUnit, ...] = (UNIT,), axes: tuple[str, ...] = ("dp",),
              sizes: dict[str, int] | None = None, prefetch: int = 0, microbatches: int | None = None) -> Reference:
    """A reference of the abstract model, or of `groups` with `sizes`."""
    return Reference("by hand", "by hand", Mesh(tuple(Axis(a) for a in axes)), axes, units, groups or (GROUP,),
                     types=TYPES, sizes=FrozenMap(sizes or {}), prefetch=prefetch, microbatches=microbatches,
                     abstract=not groups)


def on(phase: str, verb: str, value: str, axes: tuple[str, ...] = (), **fields: object) -> Event:
    """An event of the one group."""
    return Event(phase, verb, value, "layer.weight", axes=axes, **fields)  # type: ignore[arg-type]


def forward() -> Event:
    return Event("forward", "compute", "activation", unit="layer")


def backward() -> Event:
    return Event("backward", "compute", "activation", unit="layer")


def update(**fields: object) -> tuple[Event, ...]:
    return (on("update", "norm", "norm"), Event("update", "all_reduce", "norm", axes=("dp",), op="sum"),
            on("update", "clip", "grad_sum"), on("update", "update", "master", **fields))


DP = (
    on("init", "broadcast", "weight", ("dp",)), on("init", "assign", "master"), on("init", "assign", "moments"),
    on("prepare", "zero", "grad_sum"),
    forward(), backward(), on("backward", "accumulate", "grad_sum"),
    on("reduce", "reduce", "grad_sum", ("dp",), op="mean", to="I"),
    *update(), on("publish", "publish", "weight"),
)

ZERO1 = (
    on("init", "broadcast", "weight", ("dp",)),
    on("init", "assign", "master", where=OWNER), on("init", "assign", "moments", where=OWNER),
    on("prepare", "zero", "grad_sum"),
    forward(), backward(), on("backward", "accumulate", "grad_sum"),
    on("reduce", "reduce", "grad_sum", ("dp",), op="mean", to="S"),
    *update(where=OWNER), on("publish", "publish", "weight", ("dp",)),
)

ZERO3 = (
    on("init", "broadcast", "weight", ("dp",)), on("init", "slice", "weight", ("dp",)),
    on("init", "assign", "master"), on("init", "assign", "moments", where=OWNER),
    on("prepare", "zero", "grad_sum", where=OWNER),
    on("forward", "gather", "weight", ("dp",)), forward(), on("forward", "free", "weight", ("dp",)),
    on("backward", "gather", "weight", ("dp",)), backward(), on("backward", "free", "weight", ("dp",)),
    on("backward", "reduce", "grad", ("dp",), op="mean", to="S"), on("backward", "accumulate", "grad_sum"),
    *update(where=OWNER), on("publish", "publish", "weight"),
)

PROGRAMS = {"dp": DP, "zero1": ZERO1, "zero3": ZERO3}


def by_hand(name: str, **fields: object) -> Step:
    """The program `name` on the abstract model."""
    return Step(reference(**fields), PROGRAMS[name])  # type: ignore[arg-type]
