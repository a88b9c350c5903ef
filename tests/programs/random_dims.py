"""Seeded random strategies over lists of dims, on many op graphs, and random edits of the programs they derive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from placealg.check.prove import prove
from placealg.errors import InputError
from placealg.models.build import graph
from placealg.models.graph import Graph
from placealg.models.model import Model
from placealg.models.router_losses import routers
from placealg.models.stage_parts import alone_problem, predicting
from placealg.models.transformer import DEEPSEEK, GPT, LATENT, LLAMA, Style, gpt, mlp, transformer
from placealg.prover.verdict import PROVED, REFUTED, UNDECIDED, Report
from placealg.simulator import Setting, simulate
from placealg.simulator.setting import fitting, fitting_microbatches
from placealg.step.derive import derive
from placealg.step.pipeline import TURNS, spread
from placealg.step.program import LOOPED, Event, Step
from placealg.step.recompute import POLICIES
from placealg.strategy.spec import Strategy, strategy_on
from placealg.strategy.vocabulary import EACH, IN_A_V

AXES = ("a1", "a2", "a3")
GROUPED = {"vocab": "V", "embed": "h", "kv": "kv", "group": "a/kv", "head_dim": "h/a", "ffn": "f"}
USUAL = ("heads", "ffn", "vocab", "seq", "batch", "loss.none")
"""The entries of the strategies that people use: drawn more often than the rest."""

KINDS = ("drop", "double", "move", "op", "axes", "place", "version")


def qk_normed() -> Graph:
    """Two equal blocks of attention whose queries and keys are normalised per head, a gate, and a squared error."""
    g = graph(batch="b", seq="s", seq_kv="s", embed="h", heads="a", head_dim="h/a", ffn="f")
    target = g.data("data.target", "batch seq embed")
    x = g.repeat("block", "L", g.data("data.input", "batch seq embed"))
    q, k, v = (g.linear(f"block.attn.{n}", x, "batch seq heads head_dim", "embed heads head_dim") for n in "qkv")
    q = g.norm("block.attn.q.norm", q, "head_dim", bias=False)
    k = g.rename("block.attn.keys", g.norm("block.attn.k.norm", k, "head_dim"), {"seq": "seq_kv"})
    v = g.rename("block.attn.values", v, {"seq": "seq_kv"})
    scores = g.scale("block.attn.scaled", g.einsum("block.attn.scores", q, k, to="batch heads seq seq_kv"),
                     "head_dim**(-1/2)")
    probs = g.softmax("block.attn.probs", scores, over="seq_kv", mask="causal")
    mixed = g.einsum("block.attn.mixed", probs, v, to="batch seq heads head_dim")
    y = g.linear("block.attn.out", g.cast("block.attn.cast", mixed), "batch seq embed", "heads head_dim embed")
    x = g.add("block.residual", x, g.biased("block.attn.out", y, "embed"))
    gate = g.unary("block.mlp.tanh", g.linear("block.mlp.gate", x, "batch seq ffn", "embed ffn"), "tanh")
    up = g.unary("block.mlp.relu", g.linear("block.mlp.up", x, "batch seq ffn", "embed ffn", "ffn"), "relu")
    y = g.mul("block.mlp.product", gate, up, g.parameter("block.mlp.gain", "ffn"))
    g.add("block.out", x, g.dropout("block.dropped", g.linear("block.mlp.down", y, "batch seq embed", "ffn embed")))
    off = g.add("head.off", "block.out", g.scale("head.minus", target, "-1"))
    g.sum("head.loss", g.mul("head.square", off, off), to="batch seq")
    g.sum("loss.sum", "head.loss")
    return g.build()


MODELS: Mapping[str, Model] = {m.name: m for m in (
    gpt(),
    replace(gpt(Style(parallel=True, tied=False, flash=True)), name="gpt, parallel"),
    Model.of_graph("llama", transformer(LLAMA, GROUPED)),
    Model.of_graph("llama, unfused", transformer(replace(LLAMA, flash=False, dropout=True), GROUPED)),
    Model.of_graph("llama, biased", transformer(replace(GPT, grouped=True, rotary=True, gated=True), GROUPED)),
    mlp(),
    Model.of_graph("deepseek", transformer(replace(DEEPSEEK, shared=True, first_dense=True), {
        "vocab": "V", "embed": "h", "heads": "a", "ffn": "f", "expert": "experts", "choice": "topk", "shared": "shared",
        "dense_ffn": "f_dense", **LATENT})),
    Model.of_graph("qk-normed", qk_normed()),
)}


def settings(step: Step) -> Iterator[Setting]:
    """Two runs: two of every axis and two microbatches; one axis of three, and unequal token counts where allowed.

    Of more than three axes the others have two ranks in one run and one in the next. Microbatches are as many as the
    order of a pipeline takes, and stages enough for ends that stand alone: with layers on one stage, and on two.
    """
    reference = step.reference
    names = reference.mesh.names
    small = {a: 2 if k < 3 else 1 for k, a in enumerate(names)}
    larger = {a: (3, 2, 1)[k] if k < 3 else 2 for k, a in enumerate(names)}
    if reference.pipeline.alone:
        small[reference.pipeline.axis] = max(2, reference.pipeline.least)
        larger[reference.pipeline.axis] = small[reference.pipeline.axis] + 1
    yield Setting.equal(reference, small, fitting_microbatches(reference, small, 2), 1, seed=1)
    most = fitting_microbatches(reference, larger, 1)
    if "equal_counts" in reference.hypotheses:
        yield Setting.equal(reference, larger, most, 2, seed=2)
    else:
        yield Setting.unequal(reference, larger, most, seed=2)


def of_other_depths(step: Step) -> Iterator[Setting]:
    """A run with one layer, on one stage, and one with three: what is proved holds of these, too."""
    reference, pipeline = step.reference, step.reference.pipeline
    sizes = {a: 1 if pipeline and a == pipeline.axis else 2 if k < 3 else 1 for k, a in enumerate(reference.mesh.names)}
    chunks = (fitting(pipeline, 1).chunks or 1) if pipeline else 1
    for layers in (1, 3) if any(u.repeated for u in reference.units) else ():
        microbatches = fitting_microbatches(reference, sizes, 1)
        yield Setting.equal(reference, sizes, microbatches, 1, layers=max(layers, chunks), seed=3)


def of_empty_cells(step: Step, report: Report) -> Iterator[Setting]:
    """Runs in which some ranks, or a microbatch, have no tokens, unless the verdict assumes that counts are not 0."""
    reference = step.reference
    assumed = "equal_counts" in reference.hypotheses or any(h.name == "nonzero_divisors" for h in report.hypotheses)
    if not assumed and reference.data_axes:
        sizes = {a: 2 if k < 3 else 1 for k, a in enumerate(reference.mesh.names)}
        whole = Setting.equal(reference, sizes, fitting_microbatches(reference, sizes, 2), 2, seed=4)
        last = sizes[reference.data_axes[0]] - 1
        for empty in ([c for c in whole.counts if c[0][0] == last > 0], [c for c in whole.counts if c[1] > 0]):
            yield replace(whole, counts={**whole.counts, **dict.fromkeys(empty, 0)})


def of_many_microbatches(step: Step) -> Iterator[Setting]:
    """A run of five microbatches, three of them in the middle, with unequal token counts where they are allowed."""
    reference = step.reference
    sizes = {a: 2 if k < 1 else 1 for k, a in enumerate(reference.mesh.names)}
    microbatches = fitting_microbatches(reference, sizes, 5)
    if "equal_counts" not in reference.hypotheses:
        yield Setting.unequal(reference, sizes, microbatches, seed=5)
    elif any(set(e.at) & {"first", "middle", "last"} for e in step.events):
        yield Setting.equal(reference, sizes, microbatches, 1, seed=5)


def differs(step: Step, among: Iterable[Setting] | None = None) -> str:
    """Where a run differs from the single device; "" when none does."""
    for setting in settings(step) if among is None else among:
        outcome = simulate(step, setting)
        if not outcome.equal:
            return f"{outcome.difference} at {dict(setting.sizes)}, m = {setting.microbatches}"
    return ""


def judged(step: Step) -> tuple[str, str]:
    """(verdict, complaint): what the prover says, and "" unless a run contradicts it or it leaves the step open."""
    report = prove(step)
    found = differs(step) if report.verdict != REFUTED else ""
    if report.verdict == PROVED:
        found = found or next(filter(None, (differs(step, runs) for runs in (
            of_other_depths(step), of_empty_cells(step, report), of_many_microbatches(step)))), "")
        return PROVED, f"PROVED, but {found}" if found else ""
    if report.verdict == REFUTED:
        return REFUTED, ""
    reasons = [f"{v.id}: {v.reason}" for v in report.obligations if v.verdict == UNDECIDED]
    return UNDECIDED, f"UNDECIDED {reasons}; {found or 'no run differs'}"


def agreed(drawn: Iterable[tuple[str, Step]]) -> Counter[str]:
    """How many programs have which verdict: none is proved where a run differs. What means nothing is passed over."""
    counted: Counter[str] = Counter()
    for story, step in drawn:
        try:
            verdict, complaint = judged(step)
        except InputError:
            continue
        counted[verdict] += 1
        assert verdict == UNDECIDED or not complaint, f"{story}\n{complaint}"
    return counted


@dataclass(frozen=True)
class Sample:
    """A random program and how it came about."""

    step: Step
    story: str


def declared(draw: Random, model: Model) -> tuple[Strategy, str]:
    """A strategy over one to three axes with random lists of dims, modes, regions and schedule, and its story."""
    axes = AXES[: draw.choice((1, 2, 2, 3))]
    dims = {a: _entries(draw, model) for a in axes}
    if draw.random() < 0.25:
        dims[axes[-1]] = ["layer"]
    data = [a for a in axes if dims[a] == ["batch"]]
    kind = {a: draw.choice(("R", "zero1", "zero2", "zero3")) for a in data}
    activations = {a: draw.choice(("R", "S*")) for a in axes
                   if a not in data and dims[a] != ["layer"] and draw.random() < 0.6}
    words = sorted({word for region in model.graph.regions for word in region.split(".")})
    region = draw.choice(words) if draw.random() < 0.4 else ""
    if region:
        activations |= {f"region:{region}": "M"}
    states: dict[str, dict[str, str]] = {
        "parameters": {a: "S*" for a in data if kind[a] == "zero3"},
        "optimizer": {a: "S" for a in data if kind[a] != "R"},
        "gradients": {a: "S" for a in data if kind[a] in ("zero2", "zero3")},
        "activations": activations}
    schedule: dict[str, Any] = {"replay": draw.choice(POLICIES),
                                "sharing": draw.choice(("shared", "shared", "per_use"))}
    if region and draw.random() < 0.5:
        within = [op.output for op in model.graph.ops if op.within(region)]
        schedule[draw.choice(("keep", "recompute"))] = draw.sample(within, min(len(within), draw.randint(1, 3)))
    if dims[axes[-1]] == ["layer"]:
        apart = not any(spread(model.graph.sites(p.name), model.graph) for p in model.graph.parameters)
        schedule |= draw.choice(({"pipeline": "gpipe"}, {"pipeline": "1f1b"}, {"pipeline": "zb_h1"},
                                 {"pipeline": "zb_h2"}, *({"pipeline": v, "chunks": 2} for v in IN_A_V if apart),
                                 {"pipeline": draw.choice(TURNS), "chunks": draw.choice((2, "v"))}))
        alone = Random(repr((dims, schedule))).choice(([], [], ["first"], ["last"], ["first", "last"]))
        alone = [*alone, "prediction"] if predicting(model.graph) else alone
        schedule["alone"] = [end for end in alone if not alone_problem(model, [end])]
    groups: dict[str, Any] = {}
    if draw.random() < 0.2:
        whole = draw.choice(model.graph.parameters).name
        groups["whole"] = {"match": whole, "parameters": {draw.choice(axes): "R"}}
    rings = [a for a in axes if a not in data and dims[a] != ["layer"] and draw.random() < 0.3]
    if rings:
        schedule["gather"] = dict.fromkeys(rings, "ring")
    loss: dict[str, Any] = {"preset": draw.choice(("mean_of_means", "mean_of_means", "token_mean", "sum"))}
    loss |= terms_of(draw, model, loss["preset"])
    if loss["preset"] == "mean_of_means" and draw.random() < 0.2:
        schedule["microbatch_mean"] = "gradients"
    schedule["reduction"] = {a: "all_reduce" for a in data if kind[a] != "R" and draw.random() < 0.3}
    gathered = [a for a in data if kind[a] == "zero3"]
    if gathered and not groups:
        groups["living"] = {"match": draw.choice(model.graph.parameters).name,
                            "lifetime": {draw.choice(gathered): draw.choice(("microbatch", "step"))}}
    said: dict[str, Any] = {"dims": dims, "states": {k: v for k, v in states.items() if v}, "schedule": schedule,
                            "loss": loss, "groups": groups,
                            "optimizer": {"norm": draw.choice(("all_axes", "split_axes"))}}
    return strategy_on("random", dict.fromkeys(axes), **said), f"{said} on {model.name}"


def terms_of(draw: Random, model: Model, preset: str) -> dict[str, Any]:
    """What [loss] says of further terms, where the model has routers."""
    if not routers(model.graph) or draw.random() < 0.4:
        return {}
    said: dict[str, Any] = {"terms": draw.choice((["balance"], ["z"], ["z", "balance"]))}
    if preset == "mean_of_means" and draw.random() < 0.3:
        said["term_divisor"] = "count"
    elif preset == "token_mean" and draw.random() < 0.3:
        said |= {"term_divisor": "tokens", "assume": ["equal_counts"]}
    return said


def _entries(draw: Random, model: Model) -> list[str]:
    """An ordered list of entries of one axis."""
    if draw.random() < 0.25:
        return ["batch"]
    known = [*model.graph.dims, *(["heads"] if "kv" in model.graph.dims else [])]
    words = sorted({word for region in model.graph.regions for word in region.split(".")})
    usual = [e for e in USUAL if e in known or "." in e]
    drawn = [draw.choice(usual) if draw.random() < 0.6 else draw.choice(known) if draw.random() < 0.5
             else f"{draw.choice(words)}.{draw.choice((*known, 'none', 'none'))}" for _ in range(draw.randint(1, 6))]
    if draw.random() < 0.2:
        drawn.insert(0, f"{draw.choice([op.output for op in model.graph.ops])}.{draw.choice((*known, 'none'))}")
    return list(dict.fromkeys(drawn))


def programs(seed: int, models: Mapping[str, Model] = MODELS) -> Iterator[Sample]:
    """Derived programs without end; what does not fit its model is passed over."""
    draw = Random(seed)
    while True:
        strategy, story = declared(draw, draw.choice(list(models.values())))
        try:
            yield Sample(derive(strategy, models[story.rpartition(" on ")[2]]), story)
        except InputError:
            continue


def on_each(seed: int, models: Mapping[str, Model] = MODELS) -> Iterator[Sample]:
    """Derived programs of which some ops are run whole by each rank of an axis, on its own part of the gradient."""
    draw = Random(seed)
    while True:
        strategy, story = declared(draw, draw.choice(list(models.values())))
        model = models[story.rpartition(" on ")[2]]
        axis = draw.choice(strategy.mesh.names)
        entries = [f"{op.output}.{EACH}" for op in draw.sample(model.graph.ops, draw.randint(1, 2))]
        dims = strategy.dims.plus({axis: (*entries, *strategy.dims[axis])})
        try:
            yield Sample(derive(replace(strategy, dims=dims), model), f"{entries} first on {axis}, {story}")
        except InputError:
            continue


def edited(sample: Sample, seed: int) -> Sample:
    """The program with one random edit of one random event on a tensor."""
    draw, step = Random(seed), sample.step
    events = list(step.events)
    k = draw.choice([i for i, e in enumerate(events) if e.on_tensor])
    event = events[k]
    kind = draw.choice(KINDS)
    if kind == "drop":
        del events[k]
    elif kind == "double":
        events.insert(k + 1, replace(event, copy=event.copy + 7))
    elif kind == "move":
        goal = max(0, min(len(events) - 1, k + draw.choice((-3, -2, -1, 1, 2, 3))))
        if events[goal].phase not in LOOPED or events[goal].unit != event.unit or not events[goal].on_tensor:
            return edited(sample, seed + 1_000_003)
        del events[k]
        events.insert(goal, replace(event, copy=event.copy + 13))
    else:
        events[k] = _changed(draw, event, kind, step)
        if events[k] == event:
            return edited(sample, seed + 1_000_003)
    return Sample(replace(step, events=tuple(events)),
                  f"{sample.story}; {kind} {event.path} -> {events[min(k, len(events) - 1)].path}")


def _changed(draw: Random, event: Event, kind: str, step: Step) -> Event:
    """The event with one field drawn anew; the same where the field says nothing about it."""
    axes, graph = step.reference.mesh.names, step.reference.graph
    if kind == "axes" and event.axes:
        return replace(event, axes=draw.choice([(a,) for a in axes] + [axes]))
    if kind == "op" and event.op and event.verb != "compute":
        return replace(event, op="mean" if event.op == "sum" else "sum")
    if kind == "place" and event.tensor in graph.tensors:
        dims = [f"S({d})" for d in graph.tensors[event.tensor].dims]
        if event.verb in ("all_gather", "pad") and dims:
            return replace(event, source=draw.choice(dims))
        if event.verb in ("slice", "reduce_scatter") and dims:
            return replace(event, to=draw.choice(dims))
        if event.verb == "all_to_all":
            return replace(event, source=event.to, to=event.source)
    if kind == "version" and event.reads:
        at = draw.randrange(len(event.reads))
        read = event.reads[at].partition("@")[0]
        return replace(event, reads=(*event.reads[:at], read, *event.reads[at + 1:]))
    if kind == "version" and event.version:
        return replace(event, version=event.version.rpartition("/")[0])
    return event
