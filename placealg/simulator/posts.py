"""The messages of a pipeline alone, run stage by stage with sends that wait for their receiver.

A stage is a list of posts. It stands at one until every message there has moved; a message moves when both of its
stages stand at posts that hold it. Which item sends what to whom, and what is posted together, is written here again,
from the meaning of `[overlap] messages` alone: derivation and prover have it in `placealg.step.messages`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from placealg.simulator.rules import home, runs_ahead, stage_order
from placealg.step.pipeline import Item, Pipeline

_ALTERNATE = ("gpipe", "1f1b", "interleaved", "interleaved_zb", "zb_h1", "zb_h2")


class Moved(NamedTuple):
    """A message by what it carries: a microbatch's activations (or their gradient) between two chunks of the model."""

    gradient: bool
    microbatch: int
    lower: int


class Waits(NamedTuple):
    """What a stage has posted and not moved when no stage can go on, and the other stage of each message."""

    stage: int
    messages: tuple[tuple[Moved, int], ...]


def stopped(pipeline: Pipeline, ranks: int, microbatches: int) -> tuple[Waits, ...]:
    """Run the messages of all stages; the stages that are left when none can go on, () if all end.

    >>> stopped(Pipeline("pp", "gpipe", messages="alone"), 2, 2)
    ()
    >>> [waits.stage for waits in stopped(Pipeline("pp", messages="alone"), 2, 2)]
    [0, 1]
    """
    todo = {stage: list(_posted(pipeline, stage, ranks, microbatches))[::-1] for stage in range(ranks)}
    standing = {stage: dict(posts.pop()) for stage, posts in todo.items() if posts}
    moving = True
    while moving:
        moving = False
        for stage in [*standing]:
            for message, other in [*standing[stage].items()]:
                if message in standing.get(other, {}):
                    del standing[stage][message], standing[other][message]
                    moving = True
        for stage in [*standing]:
            while stage in standing and not standing[stage]:
                if todo[stage]:
                    standing[stage] = dict(todo[stage].pop())
                else:
                    del standing[stage]
                moving = True
    return tuple(Waits(stage, tuple(left.items())) for stage, left in sorted(standing.items()))


def _posted(pipeline: Pipeline, stage: int, ranks: int, microbatches: int) -> Iterator[dict[Moved, int]]:
    """The posts of a stage: each message with the stage at its other end."""
    items = stage_order(pipeline, stage, ranks, microbatches)
    ahead = 0 if pipeline.actions or pipeline.order not in _ALTERNATE else runs_ahead(
        pipeline, stage, ranks, microbatches * (pipeline.chunks or 1))
    out: dict[Moved, int] = {}
    taken, n = 0, 0
    while n < len(items):
        together = items[n:n + 1]
        if items[n].phase == "forward":
            taken += 1
            if pipeline.messages == "four" and taken > ahead and [x.phase for x in items[n + 1:n + 2]] == ["backward"]:
                together = items[n:n + 2]
        n += len(together)
        needs = {k: v for item in together for k, v in _ends(pipeline, item, stage, ranks, True)}
        gives = {k: v for item in together for k, v in _ends(pipeline, item, stage, ranks, False)}
        if pipeline.messages == "alone":
            yield needs
            yield gives
        else:
            yield {**out, **needs}
            out = gives
    yield out


def _ends(pipeline: Pipeline, item: Item, stage: int, ranks: int, into: bool) -> Iterator[tuple[Moved, int]]:
    """The message into an item, or out of it, and the stage at its other end; none inside a stage."""
    if item.phase == "weights":
        return
    chunks = ranks * (pipeline.chunks or 1)
    mine = [chunk for chunk in range(chunks) if home(pipeline, chunk, ranks) == stage][item.chunk]
    other = mine - 1 if (item.phase == "forward") == into else mine + 1
    if 0 <= other < chunks and home(pipeline, other, ranks) != stage:
        yield Moved(item.phase == "backward", item.microbatch, min(mine, other)), home(pipeline, other, ranks)
