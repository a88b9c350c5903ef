"""Stages of a pipeline: what a rank runs, hands on and gets, and the loss that its gradients serve."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from placealg.errors import InputError
from placealg.step.program import Step
from placealg.watch.differences import Difference, Tally
from placealg.watch.names import Named
from placealg.watch.seen import Message, RankSeen, Seen

ORDERS = ("1f1b", "gpipe")
"""The orders whose ranks hand on to their neighbours alone, in which a message tells its direction."""


@dataclass(frozen=True)
class Stage:
    """A rank's part of a pipeline: the axis, its number of so many, and the (unit, instance)s that it runs."""

    axis: str
    number: int
    of: int
    runs: frozenset[tuple[str, int]]


def stage_of(step: Step, seen: Seen, rank: RankSeen, names: Mapping[str, Named]) -> Stage | None:
    """The rank's stage; None of a program without a pipeline."""
    pipeline = step.reference.pipeline
    if not pipeline.axis:
        return None
    if pipeline.order not in ORDERS:
        raise InputError(f"stages in the order '{pipeline.order}' are not held against their program; these are: "
                         f"{', '.join(ORDERS)}", name=step.reference.strategy)
    runs = frozenset((n.unit, n.instance) for c in rank.chains for n in (names[c.parameter],))
    return Stage(pipeline.axis, rank.coordinates.get(pipeline.axis, 0), seen.mesh.get(pipeline.axis, 1), runs)


def with_seeds(step: Step, seen: Seen) -> Seen:
    """The recording in which every stage has the loss's factors of the stage that computes the loss."""
    pipeline = step.reference.pipeline
    if not pipeline.axis:
        return seen
    made = []
    for rank in seen.ranks:
        if all(s.factor is not None for s in rank.seeds):
            made.append(rank)
            continue
        last = [r for r in seen.ranks if _apart(rank, r, pipeline.axis) and len(r.seeds) == len(rank.seeds)
                and r.coordinates.get(pipeline.axis) == seen.mesh[pipeline.axis] - 1]
        made.append(replace(rank, seeds=tuple(replace(s, hops=()) for s in last[0].seeds)) if last else rank)
    return replace(seen, ranks=tuple(made))


def _apart(one: RankSeen, two: RankSeen, axis: str) -> bool:
    return all(k == two.coordinates.get(a) for a, k in one.coordinates.items() if a != axis)


def stage_axes(seen: Seen, axis: str, names: Mapping[str, Named]) -> Seen:
    """The recording in which a group of those stages that have a parameter is called by the pipeline's axis."""
    holders: dict[str, set[int]] = {}
    for rank in seen.ranks:
        for chain in rank.chains:
            named = names[chain.parameter]
            holders.setdefault(f"{named.parameter} {named.instance}", set()).add(rank.rank)
    at = {r.rank: r for r in seen.ranks}

    def called(axes: tuple[str, ...], rank: RankSeen) -> tuple[str, ...]:
        if len(axes) != 1 or not axes[0].startswith("ranks "):
            return axes
        group = {int(k) for k in axes[0].removeprefix("ranks ").split(",")}
        near = all(k in at and _apart(rank, at[k], axis) for k in group)
        one = {k for k, r in at.items() if _apart(rank, r, axis)}
        return (axis,) if near and any(held & one == group for held in holders.values()) else axes

    ranks = tuple(replace(
        r, messages=tuple(replace(m, axes=called(m.axes, r)) for m in r.messages),
        chains=tuple(replace(c, terms=tuple(replace(t, hops=tuple(replace(h, axes=called(h.axes, r)) for h in t.hops))
                                            for t in c.terms)) for c in r.chains)) for r in seen.ranks)
    return replace(seen, ranks=ranks)


def _ahead(stage: Stage, rank: RankSeen, at: Mapping[int, int], count: int) -> int | None:
    """How many microbatches a stage hands on before a gradient comes back; None of the last stage, or if none do."""
    sent = [m.index for m in rank.messages if between_stages(m, stage) and m.verb == "send"
            and at.get(m.root) == stage.number + 1]
    back = [m.index for m in rank.messages if between_stages(m, stage) and m.verb == "recv"
            and at.get(m.root) == stage.number + 1]
    return sum(1 for k in sent if k < min(back)) if len(sent) == len(back) == count else None


def handed_on(stage: Stage, order: str, seen: Seen, rank: RankSeen, tally: Tally) -> Iterator[Difference]:
    """How the sends and receipts between stages differ: one each way for each microbatch, with the neighbours alone."""
    at = {r.rank: r.coordinates.get(stage.axis, 0) for r in seen.ranks}
    found: dict[tuple[str, int], list[Message]] = {}
    for message in rank.messages:
        if between_stages(message, stage):
            found.setdefault((message.verb, at.get(message.root, -1) - stage.number), []).append(message)
    count = max(len(rank.seeds), 1)
    for verb, step, phase in (("recv", -1, "forward"), ("send", 1, "forward"), ("recv", 1, "backward"),
                              ("send", -1, "backward")):
        got = found.pop((verb, step), [])
        want = count if 0 <= stage.number + step < stage.of else 0
        tally.messages += min(len(got), want)
        if len(got) != want:
            whom = f"{'from' if verb == 'recv' else 'to'} the stage {'before' if step < 0 else 'behind'}"
            yield Difference("message", "", f"stage {stage.number} has {len(got)} messages {whom} in {phase}; the "
                             f"program has {want}, one for each microbatch", got[0].line if got else "")
    ahead = _ahead(stage, rank, at, count)
    if ahead is not None and ahead != (wanted := count if order == "gpipe" else min(count, stage.of - stage.number)):
        yield Difference("order", "", f"stage {stage.number} runs {ahead} forward{'s' if ahead > 1 else ''} before its "
                         f"first backward; in the order {order} it runs {wanted}")
    for (verb, _), more in found.items():
        yield Difference("message", "", f"stage {stage.number}: {verb}[{stage.axis}] with a rank that is no neighbour",
                         more[0].line)


def between_stages(message: Message, stage: Stage | None) -> bool:
    """Whether a message hands something on from stage to stage."""
    return stage is not None and message.verb in ("send", "recv") and message.axes == (stage.axis,)
