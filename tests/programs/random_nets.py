"""Random op graphs of a few ops, programs of them under random placements, and random events among theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from placealg.arith import ONE, Monomial
from placealg.errors import InputError
from placealg.models.backward import GRAD
from placealg.models.build import Builder, graph
from placealg.models.model import Model
from placealg.prover.ops.redistributions import uncovered
from placealg.step.derive import derive
from placealg.step.event import LOOPED, Event
from placealg.step.program import Step
from placealg.step.recompute import POLICIES
from placealg.step.well_formed import check_event
from placealg.strategy.spec import strategy_on

AXES, PIPELINE, REGIONS = ("a1", "a2"), "pp", ("one", "two")
WIDE, NARROW = "batch seq embed", "batch seq ffn"


@dataclass
class Net:
    """A graph under construction: what it has of each shape, and what nothing has read."""

    g: Builder
    rng: Random
    wide: list[str]
    narrow: list[str]
    unread: list[str]
    unit: str
    number: int = 0

    def name(self) -> str:
        """The name of another op, in one of two regions."""
        self.number += 1
        return f"{self.unit}.{self.rng.choice(REGIONS)}.t{self.number}"

    def some(self, pool: Sequence[str]) -> str:
        """One of some tensors, more often the last."""
        chosen = pool[-1] if self.rng.random() < 0.6 else self.rng.choice(pool)
        self.unread = [n for n in self.unread if n != chosen]
        return chosen

    def put(self, made: str, pool: list[str]) -> None:
        made = str(made)
        pool.append(made)
        self.unread.append(made)


SAME = ("gelu", "gelu", "tanh", "tanh", "scaled", "biased", "norm", "rms", "softmax", *["rope"] * 5, "dropout",
        "scale", "cast", "copy", "times", "mul", "add", "add", "product")
"""Ops that keep their operand's dims."""


def _same(net: Net) -> None:
    """An op that keeps its operand's dims."""
    pool = net.narrow if net.narrow and net.rng.random() < 0.4 else net.wide
    dims, name, g = (NARROW if pool is net.narrow else WIDE), net.name(), net.g
    x, last = net.some(pool), dims.split()[-1]
    kind = net.rng.choice(SAME)
    if kind in ("gelu", "tanh"):
        made = g.unary(name, x, kind)
    elif kind == "scaled":
        made = g.einsum(name, x, g.parameter(f"{name}.weight", last), to=dims)
    elif kind == "times":
        made = g.mul(name, x, g.parameter(f"{name}.weight", last))
    elif kind == "biased":
        made = g.biased(name, x, last)
    elif kind in ("norm", "rms"):
        made = g.norm(name, x, last, bias=kind == "norm")
    elif kind == "softmax":
        made = g.softmax(name, x, over=net.rng.choice((last, "seq")))
    elif kind == "rope":
        made = g.rope(name, x, over=last)
    elif kind == "scale":
        made = g.scale(name, x, "2")
    elif kind in ("dropout", "cast", "copy"):
        made = getattr(g, kind)(name, x)
    else:
        y = net.some(pool)
        made = (g.add(name, x, y) if kind == "add" else g.mul(name, x, y) if kind == "mul"
                else g.einsum(name, x, y, to=dims))
    net.put(str(made), pool)


def _projected(net: Net) -> None:
    down = bool(net.narrow) and net.rng.random() < 0.6
    x, name = net.some(net.narrow if down else net.wide), net.name()
    weight = net.g.parameter(f"{name}.weight", "ffn embed" if down else "embed ffn")
    net.put(str(net.g.einsum(name, x, weight, to=WIDE if down else NARROW)), net.wide if down else net.narrow)


def _summed(net: Net) -> None:
    """A dim is lost, and comes back by a product."""
    x, y, name, g = net.some(net.wide), net.some(net.wide), net.name(), net.g
    inner = (g.sum(f"{name}.sum", x, to="batch seq") if net.rng.random() < 0.5
             else g.einsum(f"{name}.dot", x, y, to="batch seq"))
    net.put(str(g.einsum(name, inner, y, to=WIDE) if net.rng.random() < 0.5
                else g.einsum(name, inner, g.parameter(f"{name}.weight", "embed"), to=WIDE)), net.wide)


def _mixed(net: Net) -> None:
    """Attention without a softmax, or with one."""
    x, y, v, name, g = net.some(net.wide), net.some(net.wide), net.some(net.wide), net.name(), net.g
    keys = g.rename(f"{name}.keys", y, {"seq": "seq_kv"})
    values = g.rename(f"{name}.values", v, {"seq": "seq_kv"})
    scores = g.einsum(f"{name}.scores", x, keys, to="batch seq seq_kv")
    if net.rng.random() < 0.6:
        scores = g.softmax(f"{name}.probs", scores, over="seq_kv")
    net.put(str(g.einsum(name, scores, values, to=WIDE)), net.wide)


def _attended(net: Net) -> None:
    """Attention in one op."""
    x, y, v, name, g = net.some(net.wide), net.some(net.wide), net.some(net.wide), net.name(), net.g
    keys = g.rename(f"{name}.keys", y, {"seq": "seq_kv"})
    values = g.rename(f"{name}.values", v, {"seq": "seq_kv"})
    net.put(str(g.flash(name, x, keys, values, over="embed seq_kv")), net.wide)


PARTS: Sequence[Callable[[Net], None]] = (*[_same] * 5, *[_projected] * 3, _summed, _mixed, _attended)


def some_model(rng: Random, staged: bool) -> Model:
    """A random graph of a few ops between a lookup and a loss: half of them are repeated, all of those with stages."""
    g = graph(batch="b", seq="s", seq_kv="s", embed="h", ffn="f", vocab="V")
    table = g.parameter("embedding.weight", "vocab embed")
    x = str(g.lookup("embedding.tokens", table, g.ids("data.tokens", "batch seq"), over="vocab"))
    unit = "layer" if staged else rng.choice(("mid", "layer"))
    x = str(g.repeat(unit, "L", x)) if unit == "layer" else x
    net = Net(g, rng, [x], [], [x], unit)
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        rng.choice(PARTS)(net)
    for name in [n for n in net.unread if n in net.narrow]:
        made = g.einsum(f"{name}.down", name, g.parameter(f"{name}.down.weight", "ffn embed"), to=WIDE)
        net.unread = [*(n for n in net.unread if n != name), str(made)]
    left = net.unread
    y = left[0] if len(left) == 1 else str(g.add(f"{unit}.out", *left))
    weight = table if not staged and rng.random() < 0.3 else g.parameter("head.weight", "embed vocab")
    logits = g.einsum("head.logits", y, weight, to="batch seq vocab")
    g.cross_entropy("head.loss", logits, g.ids("data.targets", "batch seq"), over="vocab")
    g.sum("loss.sum", "head.loss")
    return Model.of_graph("random", g.build())


KNOWN = ("batch", "seq", "seq_kv", "embed", "ffn", "vocab", "embed", "ffn")


def some_step(rng: Random, staged: bool = False) -> Step:
    """What a random placement of a random graph derives, with up to four random edits that have a meaning."""
    while True:
        axes = AXES[: 1 if staged else rng.choice((1, 2, 2))]
        dims = {a: list(dict.fromkeys(rng.sample(KNOWN, rng.choice((0, 1, 1, 2, 3))))) for a in axes}
        schedule = {"sharing": rng.choice(("shared", "per_use")), "replay": rng.choice(POLICIES)}
        activations = {a: "S*" for a in axes if rng.random() < 0.3}
        if rng.random() < 0.3:
            activations |= {f"region:{rng.choice((*REGIONS, 'layer'))}": "M"}
        if staged:
            axes, dims, schedule = (*axes, PIPELINE), {**dims, PIPELINE: ["layer"]}, {**schedule, "pipeline": "1f1b"}
        try:
            strategy = strategy_on("random", dict.fromkeys(axes), dims=dims, schedule=schedule,
                                   states={"activations": activations})
            step = derive(strategy, some_model(rng, staged))
        except InputError:
            continue
        for _ in range(rng.choice((0, 1, 1, 2, 3, 4))):
            step = _edited(rng, step)
        return step


def _edited(rng: Random, step: Step) -> Step:
    """The program with one event more, less, or other; half of the edits are beside ops over rows."""
    graph = step.reference.graph
    for _ in range(20):
        events = list(step.events)
        inside = [i for i, e in enumerate(events) if e.on_tensor and e.phase in LOOPED]
        rows = [i for i in inside if (op := graph.producer(events[i].tensor)) is not None and op.over]
        k = rng.choice(rows if rng.random() < 0.5 else inside)
        kind = rng.choice(("insert", "insert", "insert", "drop", "double", "axes", "place", "version", "move", "op"))
        if kind == "insert":
            events.insert(k + rng.choice((0, 1)), _some_move(rng, events[k], step))
        elif kind == "drop":
            del events[k]
        elif kind == "double":
            events.insert(k + 1, replace(events[k], copy=events[k].copy + 7))
        elif kind == "move":
            goal = max(0, min(len(events) - 1, k + rng.choice((-2, -1, 1, 2))))
            event = events.pop(k)
            events.insert(goal, replace(event, copy=event.copy + 13))
        else:
            events[k] = _changed(rng, events[k], kind, step)
        try:
            made = replace(step, events=tuple(events))
            for event in events:
                if event not in step.events:
                    check_event(event, step.reference)
        except InputError:
            continue
        if made.events != step.events and not any(uncovered(e, graph, step.reference.pipeline) for e in events):
            return made
    return step


MOVED = ("all_gather", "all_gather", "slice", "slice", "all_reduce", "reduce_scatter", "all_to_all", *["pad"] * 4,
         "scale", "shift", "free")


def _some_move(rng: Random, beside: Event, step: Step) -> Event:
    """A redistribution of what an event is about, or reads."""
    graph, names = step.reference.graph, step.reference.mesh.names
    read = [r.partition("@")[0] + GRAD * beside.on_gradient for r in beside.reads]
    value, verb = rng.choice([beside.value, *read]), rng.choice(MOVED)
    tensor = graph.tensors.get(value.removesuffix(GRAD))
    places = [f"S({d})" for d in tensor.dims] if tensor is not None and tensor.dims else ["S(batch)"]
    axes = tuple(rng.sample(names, rng.choice((1, 1, len(names)))))
    version = rng.choice(("", "", *dict.fromkeys(r.partition("@")[2] for r in beside.reads)))
    event = Event(beside.phase, verb, value, unit=beside.unit, axes=axes, copy=rng.randrange(2, 10**6), version=version)
    if verb == "free":
        return replace(event, axes=())
    if verb == "scale":
        return replace(event, divisor=rng.choice((Monomial.of(*axes), ONE / Monomial.of(*axes))))
    source = rng.choice(places) if verb in ("all_gather", "pad", "all_to_all") else ""
    if verb == "shift":
        source = rng.choice((*places, "P"))
    to = rng.choice(places) if verb in ("slice", "reduce_scatter", "all_to_all") or source == "P" else ""
    op = rng.choice(("sum", "sum", "mean", "premultiplied")) if verb in ("all_reduce", "reduce_scatter") else ""
    divisor = Monomial.of(*axes) if op == "premultiplied" else ONE
    layout = f"mine({rng.choice(names)})" if verb == "slice" and rng.random() < 0.3 else "own"
    return replace(event, source=source, to=to, divisor=divisor, op=op, layout=layout)


def _changed(rng: Random, event: Event, kind: str, step: Step) -> Event:
    graph = step.reference.graph
    names = step.reference.mesh.names
    if kind == "axes" and event.axes:
        return replace(event, axes=rng.choice([(a,) for a in names] + [names]))
    if kind == "op" and event.op in ("sum", "mean"):
        return replace(event, op="mean" if event.op == "sum" else "sum")
    if kind == "place" and event.tensor in graph.tensors:
        dims = [f"S({d})" for d in graph.tensors[event.tensor].dims]
        if dims and event.source.startswith("S("):
            return replace(event, source=rng.choice(dims))
        if dims and event.to.startswith("S("):
            return replace(event, to=rng.choice(dims))
    if kind == "version" and event.reads:
        at = rng.randrange(len(event.reads))
        name, _, _ = event.reads[at].partition("@")
        other = rng.choice([r.partition("@")[2] for e in step.events for r in e.reads if r.partition("@")[0] == name])
        read = f"{name}@{other}" if other and rng.random() < 0.7 else name
        return replace(event, reads=(*event.reads[:at], read, *event.reads[at + 1:]))
    if kind == "version" and event.version:
        return replace(event, version=event.version.rpartition("/")[0])
    return event
