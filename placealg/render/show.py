"""Placements as a table, and the step program as an indented tree in which every event gives its reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from placealg.arith import ONE
from placealg.errors import InputError
from placealg.number_formats import Element, told
from placealg.placement import SENT, STATES
from placealg.render.text_layout import Line, Span, bold, dim, indent, line, prose, table
from placealg.render.values import readable, short
from placealg.step.program import STEP_PHASES, Event, EventLoop, Node, Step
from placealg.strategy.spec import Strategy
from placealg.strategy.vocabulary import AS_TYPED, BUFFERED

SENTENCES_FROM = 110
"""The width from which the reasons stand beside the events as sentences; below, as names of rules."""

_STYLES = {"R": "", "S": "cyan", "S*": "cyan", "M": "magenta", "O": "yellow"}


def mode_span(text: str) -> Span:
    """A mode in its colour."""
    return Span(text, _STYLES.get(text.partition("+")[0], "") if "+" not in text else "yellow")


def placements(strategy: Strategy) -> list[Line]:
    """A row per state, a column per axis."""
    axes = strategy.mesh.names
    head: list[Span | str] = [dim(""), *(bold(repr(a)) for a in strategy.mesh)]
    rows: list[list[Span | str]] = [head]
    for state in STATES:
        rows.append([state, *(mode_span(strategy.mode_text(state, a)) for a in axes)])
    for rule in strategy.groups:
        for state, placement in rule.states.items():
            rows.append([f"{state} of {rule.match}", *(mode_span(placement.text(a)) for a in axes)])
    return table(rows, "l" + "c" * len(axes), gap=3)


_COUNTS = {"mean_of_means": "mean of local means", "token_mean": "token mean", "sum": "sum over tokens"}
_HOW = {"all_reduce": "summed whole", "reduce_scatter": "summed for their owners"}


def _over(axes: Iterable[str], only: str = " only") -> str:
    """Over which axes tokens are counted."""
    return f"over {' and '.join(axes)}{only}" if axes else "by each rank in each microbatch"


def _size(size: object) -> str:
    """An element size in words: the name of its type, or its bytes."""
    return size.name if isinstance(size, Element) else f"{size} bytes"


def settings(strategy: Strategy) -> list[tuple[str, str]]:
    """What the strategy says beside its placements, as (subject, text)."""
    option = strategy.option
    types: Mapping[str, Any] = strategy.tables.get("types", {})
    typed = any(isinstance(size, Element) for size in types.values())
    least, pad = option("schedule", "sums"), option("shards", "pad")
    stored = option("checkpoint", "by"), option("checkpoint", "holds")
    rows = (
        ("optimizer", _optimizer(strategy)),
        ("loss", _loss(strategy)),
        ("further terms", _further_terms(strategy)),
        ("microbatches", str(option("schedule", "microbatches"))),
        ("offloaded", ", ".join(_resting(strategy))),
        ("gradients", _along(option("schedule", "reduction"))),
        ("wire", _along(option("schedule", "wire"))),
        ("types", ", ".join(f"{symbol} {told(size)}" for symbol, size in types.items()) if typed else ""),
        ("sums", f"gradients in {least} at least" if least != AS_TYPED else ""),
        ("lifetime", ", ".join(f"{life} along {axis}" for axis, life in dict(option("schedule", "lifetime")).items())),
        ("pipeline", _pipeline(strategy) if strategy.pipeline_axis else ""),
        ("gathered", f"in a ring along {', '.join(strategy.rings)}" if strategy.rings else ""),
        ("recomputed", _recomputed(strategy) if strategy.recomputed else ""),
        ("sharing", "every use redistributes for itself" if option("schedule", "sharing") != "shared" else ""),
        ("dropout", f"keyed by {', '.join(map(str, streams))}" if (streams := option("random", "dropout")) else ""),
        ("prefetch", f"{ahead} unit ahead" if (ahead := option("schedule", "prefetch")) else ""),
        ("shards", f"{pad} filled up to equal shares" if pad != "none" else ""),
        ("checkpoint", f"stored by {stored[0]}, {stored[1]}" if stored != ("owners", "all") else ""),
    )
    return [(subject, text) for subject, text in rows if text]


def _optimizer(strategy: Strategy) -> str:
    name, locality, _ = strategy.optimizer()
    clip = "clipped by the global norm" if strategy.option("optimizer", "clip") == "global_norm" else "not clipped"
    split = ", summed over the axes that split gradients" * (strategy.option("optimizer", "norm") == "split_axes")
    return f"{name}, {locality}; gradients {clip}{split}"


def _loss(strategy: Strategy) -> str:
    loss = strategy.loss()
    text = _COUNTS[str(loss["preset"])]
    if loss["count_axes"] is not None and set(loss["count_axes"]) != {*strategy.data_axes, "microbatch"}:
        text += f", tokens counted {_over(loss['count_axes'])}"
    if loss["reference"] == "microbatch_mean":
        text += ", held against the mean of every microbatch's mean"
    if strategy.option("schedule", "microbatch_mean") == "gradients":
        text += ", the mean over microbatches taken by gradients"
    return f"{text}, assuming {', '.join(str(a).replace('_', ' ') for a in loss['assume']) or 'nothing'}"


def _further_terms(strategy: Strategy) -> str:
    terms = strategy.option("loss", "terms")
    if not terms:
        return ""
    divisor, axes = strategy.loss_of_terms()
    counted = "" if divisor != "count" else f" {_over(axes, '')}" if axes else f", counted {_over(axes)}"
    return f"{', '.join(terms)} of each router, divided by {divisor}{counted}"


def _resting(strategy: Strategy) -> Iterator[str]:
    """What rests on another tier than the device."""
    share = strategy.share_away
    for state in STATES:
        if strategy.tier(state) != "device" and not (share and state == "optimizer"):
            yield f"{state} on the {strategy.tier(state)}"
    if share:
        yield f"optimizer of {share} of the layers on the {strategy.offload_tier('optimizer')}"
    if strategy.offloaded:
        layers = "".join(f"; in {text}" for text in _layers(strategy, "offload_layers"))
        yield f"activations of {', '.join(strategy.offloaded)} on the {strategy.option('activations', 'tier')}{layers}"


def _along(said: Mapping[str, Any]) -> str:
    """How something is done along each axis of which something is said."""
    return ", ".join(f"{_HOW.get(how) or _size(how)} along {axis}" for axis, how in said.items()) if said else ""


def _pipeline(strategy: Strategy) -> str:
    order, chunks = strategy.option("schedule", "pipeline"), strategy.option("schedule", "chunks")
    stages = ", ".join(map(str, strategy.option("schedule", "stages")))
    posted = strategy.option("overlap", "messages")
    return (f"{order} along {strategy.pipeline_axis}" + (f", {chunks} chunks" if chunks != 1 else "")
            + (f"; layers {stages}" if stages else "") + (f"; messages posted {posted}" if posted != BUFFERED else ""))


def _recomputed(strategy: Strategy) -> str:
    """The recomputed regions, and which of their ops and layers are kept, or alone run again."""
    replay = str(strategy.option("schedule", "replay")).replace("_", " ")
    keep, again = (strategy.option("schedule", key) for key in ("keep", "recompute"))
    told = f"; kept: {', '.join(keep)}" if keep else f"; only {', '.join(again)}" if again else ""
    layers = "".join(f"; in {text}" for text in _layers(strategy, "recompute_layers"))
    return f"{', '.join(strategy.recomputed)}; replayed {replay}{told}{layers}"


def _layers(strategy: Strategy, key: str) -> list[str]:
    """The layers that a key of [schedule] chooses, in words; none where it chooses none."""
    said = dict(strategy.option("schedule", key))
    return [f"the first {n} layers" if how == "first" else f"one layer of {n}" for how, n in said.items()]


def show(strategy: Strategy, step: Step, width: int, why: bool = False) -> list[Line]:
    """Placements, then the program; `why` adds the name of the rule to every reason, below its event where narrow."""
    lines = [line(bold(f"{strategy.name} on {step.reference.model}")), ()]
    lines += indent(placements(strategy)) + [()]
    lines += indent(table([[dim(a), b] for a, b in settings(strategy)], wrap={1: 40}, width=width - 2)) + [()]
    sentences = width >= SENTENCES_FROM
    rows: list[list[Line | Span | str]] = []
    before = ""
    for depth, node in _walk(step):
        if isinstance(node, str):
            rows.append([line("  " * depth, bold(node))])
            before = before if "×" in node else ""
            continue
        reason = f"{node.rule.name}: {node.rule.why}" if why else node.rule.why if sentences else node.rule.name
        told = "″" if reason == before and not why else reason
        before = reason
        below = why and not sentences
        rows.append(["  " * depth + node.path.removeprefix(node.phase + "."), claim(node), size(step, node),
                     dim("" if below else told)])
        if waits := awaited(node):
            rows += [[text] for text in indent(prose(waits, width - 2 * depth - 4, "dim"), 2 * depth + 2)]
        if below:
            rows += [[text] for text in indent(prose(told, width - 2 * depth - 4, "dim"), 2 * depth + 4)]
    lines += table(rows, "lll", width, wrap={1: 16, 3: 34} if sentences else {1: 16}, spill=min(44, width - 48))
    if not sentences and not why:
        lines += [(), line(bold("rules"), dim("  (--why tells each event's reason beside it)"))]
        for name, text in dict.fromkeys((e.rule.name, e.rule.why) for e in step.listing):
            lines += indent(prose(f"{name}: {text}", width - 2, hang=4))
    return lines


def _walk(step: Step) -> Iterator[tuple[int, str | Event]]:
    for phases in (("init",), STEP_PHASES, ("save",), ("resume",)):
        yield from _nodes(Step(step.reference, step.listing).tree(*phases), 0, "")


def _nodes(nodes: tuple[Node, ...], depth: int, phase: str) -> Iterator[tuple[int, str | Event]]:
    for node in nodes:
        first = node if isinstance(node, Event) else _first(node)
        in_microbatch = isinstance(node, EventLoop) and node.name == "microbatch"
        if isinstance(node, EventLoop) and in_microbatch:
            yield depth, f"microbatch × {readable(str(node.count))}"
            yield from _nodes(node.body, depth + 1, "")
            phase = ""
            continue
        if first.phase != phase:
            phase = first.phase
            yield depth, phase
        if isinstance(node, EventLoop):
            yield depth + 1, f"{node.name} × {readable(str(node.count))}" + (", last to first" if node.reverse else "")
            yield from ((depth + 2, event) for event in node.body if isinstance(event, Event))
        else:
            yield depth + 1, node


def _first(loop: EventLoop) -> Event:
    head = loop.body[0]
    return head if isinstance(head, Event) else _first(head)


def claim(event: Event) -> str:
    """What the event claims beside its name: kinds, operator, divisor, ranks, positions, tiers."""
    parts = [f"@{event.version}"] if event.on_tensor and event.verb == "free" and event.version else []
    if event.source[:1] in ("I", "R", "S", "P") and event.to:
        parts.append(f"[{event.source}]→[{event.to}]")
    elif event.source:
        parts.append(f"from {event.source}")
    if event.op:
        parts.append(event.op)
    if event.divisor != ONE:
        parts.append(f"/ {event.divisor}")
    if event.tier != "device":
        parts.append(event.tier.replace("->", "→"))
    if event.where:
        parts.append("at " + ", ".join(map(repr, event.where)))
    if event.at:
        parts.append("on " + ", ".join(event.at))
    parts += [f"{word} {name}" for word, name in (("out of", event.out_of), ("into", event.into)) if name]
    return " ".join([*parts, *placed_in_order(event)])


def placed_in_order(event: Event) -> list[str]:
    """The stream of an event, and by how much it is issued earlier; nothing where it runs as it is printed."""
    parts = [f"on {event.stream}"] if event.stream else []
    if event.ahead:
        parts.append(f"{event.ahead} ahead")
    return parts


def awaited(event: Event) -> str:
    """What an event waits for, and behind what it is issued, in words."""
    def short_(path: str) -> str:
        return path.removeprefix(f"{event.phase}.")

    waits = [short_(w.on) + (f" of turn {w.turn}" if w.turn else "") + (" of the last step" if w.step else "")
             for w in event.waits]
    if event.of:
        waits.insert(0, f"all that {event.of} was given so far")
    parts = [f"waits for {' and '.join(waits)}"] if waits else []
    if event.behind:
        parts.append(f"is issued behind {short_(event.behind)}")
    return "; ".join(parts)


def size(step: Step, event: Event) -> str:
    """The elements that a collective moves (of one instance), where they are known or short."""
    if event.on_tensor and event.axes and event.verb in SENT:
        return readable(str(step.reference.graph.tensors[event.tensor].elements))
    if not event.group or not event.axes or event.verb in ("free", "slice", "norm"):
        return ""
    group = step.reference.group(event.group)
    try:
        return short(int(sum(e.evaluate(step.reference.sizes) for e in group.elements)))
    except InputError:
        text = readable(" + ".join(map(str, group.elements)))
        return text if len(text) <= 16 else f"size of {group.name}" if len(group.name) < 9 else ""
