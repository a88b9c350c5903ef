"""Chains: from what the optimizer reads back to the ops that made it, element by element."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from placealg.watch.recorder import tables
from placealg.watch.recorder.mode import Recorder
from placealg.watch.recorder.nodes import below
from placealg.watch.recorder.shadows import PLACES, Region, nodes_of
from placealg.watch.seen import BACKWARD, EARLIER, UNSEEN, Hop, Term

_MASK = (1 << PLACES) - 1

Step = tuple[str, int]
"""("message", its index) or ("scale", the number of the node)."""


Begun = tuple[int, torch.Tensor, torch.Tensor, torch.Tensor, tuple[Step, ...]]
"""(node, places in it, factors, places in the region, steps since): elements at which a walk ends."""

PASSED = ("sum", "scaled", "read", "message")
"""Kinds of nodes through which an element is followed back to what it was."""


def walk(recorder: Recorder, region: Region, through: Sequence[str] = PASSED,
         scaled: dict[tuple[Step, ...], list[torch.Tensor]] | None = None,
         since: dict[tuple[Step, ...], set[float]] | None = None) -> Iterator[Begun]:
    """Where the elements of a region come from, through nodes of the kinds that are named; zeros come from nowhere.

    What a peer gave to a message ends at the message. `scaled` keeps the places in every product that was passed,
    `since` by which numbers what a message gave was multiplied behind it.
    """
    origin, factor = (t.contiguous().flatten() for t in region)
    todo: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, tuple[Step, ...]]] = [
        (origin, factor, torch.arange(origin.numel()), ())]
    while todo:
        here, times, places, steps = todo.pop()
        numbers = nodes_of(here)
        for number in numbers:
            node = recorder.nodes[number]
            if node.kind == "zero":
                continue
            where, counted, at = here & _MASK, times, places
            if len(numbers) > 1:
                chosen = (here >> PLACES) == number
                where, counted, at = where[chosen], times[chosen], places[chosen]
            if node.kind not in through or (node.kind == "message" and (node.start < 0 or not node.sources)):
                yield number, where, counted, at, steps
            elif node.kind == "message":
                after, source, own = (*steps, ("message", node.message)), node.sources[0], torch.ones_like(where) > 0
                if since is not None:
                    since.setdefault(after, set()).update(_values(counted))
                if node.chunk:
                    inner = where - node.start
                    own = (inner >= 0) & (inner < node.chunk)
                    where = torch.where(own, inner, 0)
                else:
                    where = where + node.start
                if not bool(own.all()):
                    yield number, where[~own], counted[~own], at[~own], after
                where = where[own]
                todo.append((source[0][where], source[1][where] * counted[own] * node.value, at[own], after))
            else:
                after = (*steps, ("scale", number)) if node.kind == "scaled" else steps
                if node.kind == "scaled" and scaled is not None:
                    scaled.setdefault(after, []).append(where)
                todo += [(s[0].flatten()[where], s[1].flatten()[where] * counted, at, after) for s in node.sources]


def terms_of(recorder: Recorder, region: Region) -> tuple[tuple[Term, ...], str]:
    """The summands of a region's elements, and what is wrong with them; "" where every element is alike."""
    size = region[0].numel()
    counts: dict[tuple[int, float, tuple[Step, ...]], torch.Tensor] = {}
    scaled: dict[tuple[Step, ...], list[torch.Tensor]] = {}
    since: dict[tuple[Step, ...], set[float]] = {}
    for number, _, times, places, steps in walk(recorder, region, scaled=scaled, since=since):
        _count(counts, (number, steps), places, times, size)
    alike: dict[tuple[Any, ...], torch.Tensor] = {}
    first: dict[tuple[Any, ...], tuple[int, tuple[Step, ...]]] = {}
    for (number, times_, steps), each in counts.items():  # parts of a tensor that ops of one kind made are one summand
        node = recorder.nodes[number]
        key = (*begin_of(recorder, number), node.task, node.module, times_, steps)
        first.setdefault(key, (number, steps))
        alike[key] = alike[key] + each if key in alike else each
    terms, wrong = [], ""
    for key, each in alike.items():
        number, steps = first[key]
        node = recorder.nodes[number]
        held = int((each > 0).sum())
        often = int(each.max())
        if held != size or int(each.min()) != often:
            wrong = wrong or f"{held} of {size} elements come from {node.name}"
        if any(len(since.get(steps[:k + 1], ())) > 1 for k in range(len(steps))):
            wrong = wrong or "numbers by which parts of it are multiplied after a reduction"
        hops = tuple(_hop(recorder, step, scaled.get(steps[:k + 1], []), min(since.get(steps[:k + 1], {1.0})))
                     for k, step in reversed(list(enumerate(steps))))
        begin, what = begin_of(recorder, number)
        below = tuple(sorted(_messages_below(recorder, number))) if begin == UNSEEN else ()
        terms += [Term(begin, what, node.task, key[-2], hops, held, node.module, through=below)] * often
    order = sorted(terms, key=lambda t: (t.begin, t.microbatch, t.what, t.factor))
    return tuple(order), wrong


def _count(counts: dict[tuple[int, float, tuple[Step, ...]], torch.Tensor], key: tuple[int, tuple[Step, ...]],
           places: torch.Tensor, times: torch.Tensor, size: int) -> None:
    every = _values(times)
    for value in every:
        at = places if len(every) < 2 else places[(times - value).abs() <= 1e-8 * abs(value)]
        into = counts.setdefault((key[0], value, key[1]), torch.zeros(size, dtype=torch.int64))
        into.index_add_(0, at, torch.ones(at.numel(), dtype=torch.int64))


def _values(times: torch.Tensor) -> set[float]:
    """The different numbers in a tensor, in nine digits."""
    ends = {float(t) for t in torch.aminmax(times)} if times.numel() else set()
    return {float(f"{v:.9g}") for v in (ends if len(ends) < 2 else torch.unique(times).tolist())}


def begin_of(recorder: Recorder, number: int) -> tuple[str, str]:
    """Where a chain begins: an op of backward that makes gradients, a gradient of an earlier step, or unseen."""
    node = recorder.nodes[number]
    makes = number in recorder.handed or node.name in tables.GRADIENTS
    if node.kind == "compute" and node.task >= 0 and makes:
        return BACKWARD, node.name
    if node.kind == "earlier":
        return EARLIER, node.name
    return UNSEEN, node.name


def _messages_below(recorder: Recorder, number: int) -> set[int]:
    """The messages through which what an op reads has come since ops of backward made it."""
    return {node.message for _, node in below(recorder.nodes, [number], lambda n: n.kind == "compute" and n.task >= 0)
            if node.kind == "message"}


def _hop(recorder: Recorder, step: Step, where: Sequence[torch.Tensor], since: float) -> Hop:
    """A collective, behind which numbers multiply, or a product with a tensor, of the elements at some places."""
    kind, number = step
    if kind == "message":
        message = recorder.messages[number]
        return Hop(message.verb, message.axes, message.op, number, factor=since, line=message.line)
    node = recorder.nodes[number]
    meant = node.sources[0][0].flatten()[torch.cat(list(where))]
    sources = {(n, int((of := meant[(meant >> PLACES) == n].bitwise_and(_MASK)).min()), int(of.max()))
               for n in nodes_of(meant)}
    paths, counts, through, shares = ancestors(recorder, node.scalar, sources)
    norm = tuple(("", axes) for axes in sorted(paths))
    return Hop("scale", message=node.scalar, factor=node.value, norm=norm, counts=counts, through=through,
               line=node.line, share=min(shares) if len(shares) == 1 else 1.0)


def ancestors(recorder: Recorder, scalar: int, sources: set[tuple[int, int, int]]
              ) -> tuple[set[tuple[str, ...]], tuple[str, ...], tuple[int, ...], set[float]]:
    """(the axes over which what is made of `sources` is reduced on every way to a scalar, those of other ways, all
    messages on the way, how often a square of `sources` counts on each way).
    """
    found: set[tuple[str, ...]] = set()
    shares: set[float] = set()
    through: set[int] = set()
    others: set[str] = set()
    gradients = False
    seen: set[tuple[int, tuple[str, ...], float]] = set()
    todo: list[tuple[int, tuple[str, ...], float]] = [(scalar, (), 1.0)] if scalar >= 0 else []
    while todo:
        number, axes, share = todo.pop()
        if (number, axes, share) in seen:
            continue
        seen.add((number, axes, share))
        node = recorder.nodes[number]
        if node.kind == "message":
            axes = (*recorder.messages[node.message].axes, *axes)
            through.add(node.message)
            others.update(axes)
        if node.task >= 0:
            gradients = True
            continue
        for parent, low, high in node.parents:
            if any(parent == n and low <= last and first <= high for n, first, last in sources):
                found.add(axes)
                shares.add(share)
            else:
                todo.append((parent, axes, float(f"{share * node.shares.get(parent, 1.0):.9g}")))
    return found, () if found or gradients else tuple(sorted(others)), tuple(sorted(through)), shares


def update_hops(recorder: Recorder, region: Region, name: str) -> tuple[tuple[Hop, ...], tuple[Hop, ...], bool, str]:
    """(reductions inside the update, collectives after it, whether it was updated, what is not seen) of a parameter."""
    paths: set[tuple[int, ...]] = set()
    published: set[tuple[int, ...]] = set()
    stale = False
    for number in nodes_of(region[0]):
        kind = walk_update(recorder, number, name, paths, published)
        stale = stale or kind == "param"
        if kind == "unseen":
            return (), (), False, recorder.nodes[number].name
        if kind == "mixed":
            return (), (), True, "what an optimizer makes of the gradients of several parameters"
    if len(paths) > 1:
        kinds = {tuple((recorder.messages[i].verb, recorder.messages[i].axes, recorder.messages[i].op) for i in p)
                 for p in paths}
        if len(kinds) > 1:
            return (), (), True, "the optimizer reads the gradient reduced and not reduced"
    inside, after = hops_of(recorder, paths), hops_of(recorder, published)
    return inside, after, bool(paths or published) and not stale, ""


def hops_of(recorder: Recorder, paths: set[tuple[int, ...]]) -> tuple[Hop, ...]:
    """The messages on a way, as hops."""
    return tuple(Hop(m.verb, m.axes, m.op, i, line=m.line) for i in min(paths, default=())
                 for m in (recorder.messages[i],))


def walk_update(recorder: Recorder, number: int, name: str, paths: set[tuple[int, ...]],
                published: set[tuple[int, ...]], beside: Container[str] = ()) -> str:
    """Collect the messages on every way from an updated value back to its gradient; say where it began.

    It is "mixed" where gradients of other parameters are read, but for those that stand `beside` it in one tensor.
    """
    top = recorder.nodes[number]
    if top.kind in ("param", "unknown", "torn"):
        return "param" if top.kind == "param" else "unseen"
    seen: set[tuple[int, tuple[int, ...], bool]] = set()
    todo: list[tuple[int, tuple[int, ...], bool]] = [(number, (), False)]
    reached = mixed = False
    while todo:
        here, way, inside = todo.pop()
        if (here, way, inside) in seen:
            continue
        seen.add((here, way, inside))
        node = recorder.nodes[here]
        if node.kind == "read":
            if node.name == name:
                paths.add(way if inside else ())
                if not inside:
                    published.add(way)
                reached = True
            mixed = mixed or (node.name != name and node.name not in beside)
            continue
        if node.kind == "message" and node.phase in ("update", "between"):
            way = (node.message, *way)
            if node.start < 0:
                published.add(way)
                reached = True
                continue
        computes = node.kind in ("sum", "compute", "unknown")
        if computes and not inside:
            published.add(way)
            way, inside = (), True
        if node.phase == "update" or (node.phase == "between" and not inside):
            todo += [(p, way, inside) for p, _, _ in node.parents]
    return "unseen" if not reached else "mixed" if mixed else "update"


def moved(terms: Sequence[Term]) -> set[int]:
    """The messages that the terms passed through."""
    return {h.message for t in terms for h in t.hops if h.verb != "scale"}


def live_messages(recorder: Recorder, regions: Sequence[Region]) -> set[int]:
    """The messages on which regions depend."""
    todo = [n for region in regions for n in nodes_of(region[0])]
    seen: set[int] = set()
    found: set[int] = set()
    while todo:
        number = todo.pop()
        if number in seen:
            continue
        seen.add(number)
        node = recorder.nodes[number]
        if node.kind == "message":
            found.add(node.message)
        todo += [p for p, _, _ in node.parents]
        todo += [n for source in node.sources for n in nodes_of(source[0])]
    return found


def forget(recorder: Recorder, gone: set[int]) -> None:
    """Drop messages of earlier steps; nodes that read them become external inputs."""
    kept = [m for m in recorder.messages if m.index not in gone]
    at = {m.index: k for k, m in enumerate(kept)}
    recorder.messages = [replace(m, index=k) for k, m in enumerate(kept)]
    for node in recorder.nodes:
        if node.kind == "message":
            node.kind, node.message = ("message", at[node.message]) if node.message in at else ("outside", -1)
