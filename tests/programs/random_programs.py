"""Hypothesis strategies: random placements, schedules and losses, and random edits of the derived programs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from placealg.arith import Monomial
from placealg.frozen import FrozenMap
from placealg.models.abstract import abstract
from placealg.models.model import Model, Parameter, Unit
from placealg.models.transformer import mlp
from placealg.step.derive import derive
from placealg.step.folded import FOLDED
from placealg.step.pipeline import ORDERS, TURNS
from placealg.step.program import LOOPED, PHASES, Clause, Event, Step
from placealg.strategy.spec import Strategy, strategy_on

AXES = ("a1", "a2", "a3")
STATES = ("weight", "master", "moments")
KINDS = ("drop", "double", "move", "axes", "op", "at", "where", "to", "layout", "divisor", "verb", "source", "tier",
         "root", "clear")


def two_units(tied: bool) -> Model:
    """An embedding and L layers; a tied embedding is used again by a head."""
    size = {"vocab": Monomial.of("V"), "embed": Monomial.of("h")}
    units: tuple[Unit, ...] = (Unit("embedding"), Unit("layer", Monomial.of("L")))
    sites: tuple[str, ...] = ("embedding",)
    if tied:
        units, sites = (*units, Unit("head")), ("embedding", "head")
    return Model("two units", units, (
        Parameter("embedding.weight", "embedding", FrozenMap(size), sites),
        Parameter("layer.weight", "layer", FrozenMap({"embed": Monomial.of("h"), "ffn": Monomial.of("f")}), ("layer",)),
    ))


@st.composite
def placements(draw: st.DrawFn) -> Strategy:
    """A declared strategy over one to three axes: every mode, lifetime, optimizer, loss and tier."""
    axes = AXES[: draw(st.sampled_from([1, 1, 2, 2, 2, 3]))]
    dims = {a: ["batch"] if draw(st.integers(0, 4)) else [] for a in axes}
    states = {
        "parameters": {a: draw(st.sampled_from(["R", "S*"])) for a in axes},
        "optimizer": {a: draw(st.sampled_from(["R", "S"])) for a in axes},
        "gradients": {a: draw(st.sampled_from(["R", "S"])) for a in axes},
    }
    gathered = [a for a in axes if states["parameters"][a] == "S*"]
    lifetime = {a: draw(st.sampled_from(["use", "microbatch", "step"])) for a in gathered}
    optimizer = {"name": draw(st.sampled_from(["adamw", "adamw", "muon", "lamb"])),
                 "clip": draw(st.sampled_from(["global_norm", "global_norm", "none"])),
                 "skip": draw(st.sampled_from(["none", "none", "overflow"])),
                 "tier": draw(st.sampled_from(["device", "device", "host", "nvme"]))}
    parameters = {"tier": draw(st.sampled_from(["device", "device", "host", "nvme"]))}
    if optimizer["clip"] != "none":
        optimizer["norm"] = draw(st.sampled_from(["all_axes", "split_axes"]))
    loss: dict[str, Any] = {"preset": draw(st.sampled_from(["mean_of_means", "mean_of_means", "token_mean", "sum"]))}
    if not draw(st.integers(0, 5)):
        loss["assume"] = ()
    if loss["preset"] == "token_mean" and draw(st.booleans()):
        loss["count_axes"] = tuple(a for a in axes if dims[a])
    schedule: dict[str, Any] = {"lifetime": FrozenMap(lifetime)}
    owned = [a for a in axes if "S" in (states["optimizer"][a], states["gradients"][a])]
    schedule["reduction"] = {a: draw(st.sampled_from(["reduce_scatter", "all_reduce"])) for a in owned}
    schedule["wire"] = {a: 4 for a in axes if dims[a] and not draw(st.integers(0, 3))}
    if loss["preset"] == "mean_of_means":
        schedule["microbatch_mean"] = draw(st.sampled_from(["loss", "loss", "gradients"]))
    away = {optimizer["tier"], parameters["tier"]} != {"device"}
    checkpoint = {"by": "owners" if away else draw(st.sampled_from(["owners", "replica", "one"]))}
    return strategy_on("random", dict.fromkeys(axes), dims=dims, states=states, parameters=parameters,
                       schedule=schedule, optimizer=optimizer, loss=loss, checkpoint=checkpoint)


@st.composite
def placements_of_ops(draw: st.DrawFn) -> Strategy:
    """A strategy for ops without attention: an axis of data, one of split dims that may gather in rings, a pipeline."""
    split = draw(st.sampled_from([["ffn", "vocab"], ["loss.none", "ffn", "embed"], ["embed"]]))
    order = draw(st.sampled_from(ORDERS))
    every = {"a1": ["batch"], "a2": split, "a3": ["layer"]}
    axes = draw(st.sampled_from([("a3",), ("a1", "a3"), ("a1", "a2"), ("a2",), ("a2", "a3"), ("a1", "a2", "a3")]))
    zero = draw(st.sampled_from([("R", "R", "R"), ("R", "S", "R"), ("R", "S", "S"), ("S*", "S", "S")]))
    states = {state: {"a1": mode} for state, mode in zip(("parameters", "optimizer", "gradients"), zero, strict=True)
              if "a1" in axes}
    schedule: dict[str, Any] = {}
    if "a2" in axes:
        states["activations"] = {"a2": draw(st.sampled_from(["R", "S*"]))}
        schedule["gather"] = {"a2": draw(st.sampled_from(["at_once", "ring"]))}
    if "a3" in axes:
        schedule |= {"pipeline": order, **({"chunks": 2} if order in (*TURNS, *FOLDED) else {}),
                     "alone": draw(st.sampled_from([[], ["last"]]))}
    return strategy_on("random", dict.fromkeys(axes), dims={a: every[a] for a in axes}, states=states,
                       schedule=schedule, optimizer={"clip": draw(st.sampled_from(["global_norm", "none"]))},
                       checkpoint={"by": draw(st.sampled_from(["owners", "replica", "one"]))})


@dataclass(frozen=True)
class Sample:
    """A random program and how it came about."""

    step: Step
    story: str


@st.composite
def programs(draw: st.DrawFn) -> Sample:
    """A derived program, one in ten of ops, with zero to two random edits."""
    if draw(st.integers(0, 9)):
        strategy, model = draw(placements()), draw(st.sampled_from([abstract(), abstract(), two_units(False),
                                                                    two_units(True)]))
    else:
        strategy, model = draw(placements_of_ops()), mlp()
    step = derive(strategy, model)
    story = [f"{strategy.states} {dict(strategy.dims)} {dict(strategy.tables)} on {model.name}"]
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2]))):
        name, step = draw(edited(step))
        story.append(name)
    return Sample(step, "; ".join(story))


@st.composite
def edited(draw: st.DrawFn, step: Step) -> tuple[str, Step]:
    """One random edit of one random event that is not on a tensor of an op: those are edited elsewhere."""
    events, axes = list(step.events), step.reference.mesh.names
    k = draw(st.sampled_from([k for k, e in enumerate(events) if not e.on_tensor]))
    event = events[k]
    kind = draw(st.sampled_from(KINDS))
    if kind == "drop":
        del events[k]
    elif kind == "double":
        events.insert(k + 1, replace(event, copy=event.copy + 7))
    elif kind == "move":
        goal = max(0, min(len(events) - 1, k + draw(st.sampled_from([-3, -2, -1, 1, 2, 3]))))
        anchor = events[goal]
        if event.verb == "compute" and anchor.phase not in LOOPED and event.phase in LOOPED:
            return "nothing", step
        del events[k]
        events.insert(goal, replace(event, phase=anchor.phase, copy=event.copy + 13))
    elif kind == "clear":
        left = [e for e in events if e.phase != event.phase]
        return f"clear {event.phase}", replace(step, events=tuple(left))
    else:
        events[k] = _changed(draw, event, kind, axes)
    ordered = sorted(events, key=lambda e: PHASES.index(e.phase))
    return f"{kind} {event.path} -> {events[min(k, len(events) - 1)].path}", replace(step, events=tuple(ordered))


def _changed(draw: st.DrawFn, event: Event, kind: str, axes: tuple[str, ...]) -> Event:
    if kind == "axes" and event.axes:
        return replace(event, axes=draw(st.sampled_from([(a,) for a in axes] + [axes])))
    if kind == "op" and event.op:
        return replace(event, op="sum" if event.op == "mean" else "mean")
    if kind == "at" and event.phase in LOOPED:
        return replace(event, at=draw(st.sampled_from([("first",), ("last",), ("middle",), ("middle", "last"),
                                                       ("first", "middle"), ("only",)])))
    if kind == "where" and event.group:
        clause = Clause(draw(st.sampled_from(axes)), draw(st.sampled_from([None, 0])))
        return replace(event, where=draw(st.sampled_from([(), (clause,)])))
    if kind == "to" and event.verb == "reduce":
        return replace(event, to="I" if event.to == "S" else "S")
    if kind == "layout" and event.group:
        return replace(event, layout="alt")
    if kind == "divisor" and event.verb in ("reduce", "scale"):
        return replace(event, divisor=event.divisor * Monomial.of(draw(st.sampled_from([*axes, "m"]))))
    if kind == "source" and event.verb in ("assign", "offload", "fetch"):
        family = next((f for f in (STATES, ("grad", "grad_sum")) if event.value in f), ())
        return replace(event, source=draw(st.sampled_from(family))) if family else event
    if kind == "tier" and event.verb in ("assign", "offload", "fetch", "free", "update", "publish", "store", "load"):
        one, two = draw(st.permutations(("device", "host", "nvme")))[:2]
        return replace(event, tier=f"{one}->{two}" if "->" in event.tier else one)
    if kind == "root" and event.verb == "broadcast":
        return replace(event, root=1)
    if kind == "verb" and event.verb in ("accumulate", "assign") and event.value == "grad_sum":
        return replace(event, verb="assign" if event.verb == "accumulate" else "accumulate")
    return event
