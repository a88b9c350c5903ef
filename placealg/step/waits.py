"""What each item of a pipeline waits for: the order can run iff no item waits for itself; how long its stages wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import pairwise
from operator import mul
from typing import Any

from placealg.errors import InputError
from placealg.step.closed_forms import SAMPLES, Derived, Stage, inside, waiting_form
from placealg.step.folded import FOLDED
from placealg.step.pipeline import FAST, TIMES, TURNS, Item, Pipeline, work


def needs(item: Item, stage: int, ranks: int, pipeline: Pipeline) -> Iterator[tuple[int, Item]]:
    """The (stage, item) pairs whose results an item waits for.

    >>> list(needs(Item("forward", 0, 1), 1, 2, Pipeline("pp", "zb_v", 2)))
    [(1, F0)]
    """
    own, last = pipeline.own(stage, ranks), ranks * (pipeline.chunks or 1) - 1
    chunk = own[item.chunk]
    if item.phase == "weights":
        yield stage, Item("backward", item.microbatch, item.chunk)
    elif item.phase == "backward" and chunk == last:
        yield stage, Item("forward", item.microbatch, item.chunk)
    elif item.phase == "backward" or chunk:
        there = chunk + (1 if item.phase == "backward" else -1)
        yield pipeline.rank(there, ranks), Item(item.phase, item.microbatch, there // ranks)


def schedule_graph(pipeline: Pipeline, ranks: int, microbatches: int) -> Any:
    """The wait-for graph of all items of all stages, as a networkx.DiGraph; the schedule can run iff it has no cycle.

    An item has an edge from the item before it on its stage, and from the item whose result it waits for.

    >>> import networkx as nx
    >>> nx.is_directed_acyclic_graph(schedule_graph(Pipeline("pp"), 4, 6))
    True
    """
    import networkx as nx

    drawn = nx.DiGraph()
    for stage in range(ranks):
        items = work(pipeline, stage, ranks, microbatches)
        drawn.add_nodes_from((stage, item) for item in items)
        drawn.add_edges_from(((stage, a), (stage, b)) for a, b in pairwise(items))
        drawn.add_edges_from((needed, (stage, item)) for item in items
                             for needed in needs(item, stage, ranks, pipeline))
    return drawn


Times = tuple[int, int, int]
"""So many T_F, T_B and T_W."""

NONE: Times = (0, 0, 0)


def ends(pipeline: Pipeline, ranks: int, microbatches: int, at: Times) -> dict[tuple[int, Item], Times]:
    """When each item of each stage ends, if all begin as soon as they can, near these lengths of T_F, T_B and T_W.

    >>> ends(Pipeline("pp", "zb_h1"), 2, 1, (11, 7, 5))[0, Item("backward", 0)]
    (2, 2, 0)
    """
    took = durations(pipeline)
    found: dict[tuple[int, Item], Times] = {}
    left = {stage: deque(work(pipeline, stage, ranks, microbatches)) for stage in range(ranks)}
    free = dict.fromkeys(left, NONE)
    while any(left.values()):
        ready = [stage for stage, items in left.items()
                 if items and all(key in found for key in needs(items[0], stage, ranks, pipeline))]
        if not ready:
            raise InputError(f"the {pipeline.order} order waits for itself at {pipeline.axis} = {ranks}")
        for stage in ready:
            item = left[stage].popleft()
            start = max((free[stage], *(found[key] for key in needs(item, stage, ranks, pipeline))),
                        key=lambda time: sum(map(mul, time, at)))
            found[stage, item] = free[stage] = _plus(start, took[item.phase])
    return found


def durations(pipeline: Pipeline) -> Mapping[str, Times]:
    """Phase -> how long an item takes, where T_F, T_B and T_W are times of one chunk."""
    return {"forward": (1, 0, 0), "backward": (0, 1, 0 if pipeline.splits else 1), "weights": (0, 0, 1)}


def longest_wait(pipeline: Pipeline) -> tuple[int, int]:
    """(the longest time that a stage waits in a step, the time that it works) of an order that is written down.

    The unit is that of a forward, of a backward for the inputs and of one for the weights, which take equally long; a
    stage waits from the first item of all to its own first, between its items, and from its last to the last of all.

    >>> longest_wait(Pipeline("pp", actions=("0F0,0B0", "1F0,1B0")))
    (3, 3)
    """
    table, took = pipeline.table, durations(pipeline)
    run = ends(pipeline, table.ranks, table.microbatches, (1, 1, 1))
    every = max(map(sum, run.values()))
    works = [sum(sum(took[item.phase]) for item in work(pipeline, rank, table.ranks, table.microbatches))
             for rank in range(table.ranks)]
    return every - min(works), min(works)


def _plus(one: Times, other: Times, times: int = 1) -> Times:
    return one[0] + times * other[0], one[1] + times * other[1], one[2] + times * other[2]


def _waited(order: str, chunks: int) -> dict[Stage, Times]:
    """What the stages of small runs wait between their first and their last item, in times of a chunk."""
    pipeline = Pipeline("pp", order, chunks)
    took, at = durations(pipeline), inside([said for said in FAST.get(order, ()) if "T" in said[0]], TIMES)
    found: dict[Stage, Times] = {}
    for ranks in {ranks for ranks, _ in SAMPLES}:
        run = ends(pipeline, ranks, 2 * ranks, at)
        for stage in range(ranks):
            first, *_, last = work(pipeline, stage, ranks, 2 * ranks)
            span = _plus(run[stage, last], _plus(run[stage, first], took[first.phase], -1), -1)
            found[ranks, stage] = _plus(span, (1, 1, 1), -2 * ranks * chunks)
    return found


def _waiting(order: str) -> str:
    found = _waited(order, 2 if order in FOLDED else 1)
    if order in TURNS:
        if found != _waited(order, 2) or found != _waited(order, 3):
            raise InputError(f"what stages of the {order} order wait is no v-th part of the same for all v")
        return waiting_form(found, TIMES) + "/v"
    return waiting_form(found, TIMES, 2 if order in FOLDED else 1)


WAITING: Mapping[str, str] = Derived(_waiting)
"""Order -> the time that stage i waits between its first and last item: arithmetic that costs print and proofs are of.

TIMES are of one microbatch through all chunks of the stage.
"""
