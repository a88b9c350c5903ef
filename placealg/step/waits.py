"""What each item of a pipeline waits for, as a graph: the order can run iff no item waits for itself."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from placealg.step.pipeline import Item, Pipeline, work


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
