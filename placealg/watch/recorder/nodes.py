"""Nodes: what made the elements that are followed, and from what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from placealg.watch.recorder.shadows import Region

KINDS = ("zero", "torn", "param", "buffer", "earlier", "outside", "constant", "compute", "unknown", "message", "sum",
         "scaled", "loss", "read")
"""Zeros; bytes of several origins; a parameter; a buffer of the model; a gradient from before the step; memory from
before the step; a number; an op that is not linear; an op in no table; what a collective made; a sum; a product with a
0-dim tensor; the gradient of a loss; what the optimizer reads of a gradient."""

Parent = tuple[int, int, int]
"""(node, first place, last place)."""


@dataclass(slots=True)
class Node:
    """What made some elements. `sources` are regions that its elements come from one by one, by kind:

    of a sum, its summands; of a product, a loss or what the optimizer reads, the one region; of a message, this rank's
    input. `parents` are all nodes that it depends on. `task` is the backward that was running, -1 if none.
    """

    kind: str
    name: str
    phase: str = ""
    task: int = -1
    module: str = ""
    line: str = ""
    parents: tuple[Parent, ...] = ()
    sources: tuple[Region, ...] = ()
    message: int = -1
    start: int = 0
    """Of a message, the place of the input from which the first element of the output comes; -1 if a peer sent it."""
    chunk: int = 0
    """Of a gather, how many elements each rank gives; 0 otherwise."""
    value: float = 1.0
    scalar: int = -1
    tokens: float = 0.0
    read_by: list[tuple[str, int, str]] = field(default_factory=list)
    shares: Mapping[int, float] = field(default_factory=dict)
    """Of a norm or a power, parent -> by what the number that it was multiplied by before multiplies its power."""


def below(nodes: Sequence[Node], starts: Iterable[int], ends: Callable[[Node], bool] = lambda node: False
          ) -> Iterator[tuple[int, Node]]:
    """The nodes of which some are made, these included, each once, by its number; nothing behind one that ends."""
    todo, seen = list(starts), set()
    while todo:
        number = todo.pop()
        if number in seen:
            continue
        seen.add(number)
        node = nodes[number]
        yield number, node
        if not ends(node):
            todo += [parent for parent, _, _ in node.parents]


def parents_of(regions: list[tuple[Tensor, Tensor]]) -> tuple[Parent, ...]:
    """The nodes from which regions come, with the places that are used."""
    from placealg.watch.recorder.shadows import PLACES, nodes_of

    found: dict[int, tuple[int, int]] = {}
    mask = (1 << PLACES) - 1
    for origin, _ in regions:
        if not origin.numel():
            continue
        first, last = (int(k) for k in torch.aminmax(origin))
        alone = first >> PLACES == last >> PLACES
        for node in [first >> PLACES] if alone else nodes_of(origin):
            if not alone:
                flat = origin.flatten()
                first, last = (int(k) for k in torch.aminmax(flat[(flat >> PLACES) == node]))
            low, high = first & mask, last & mask
            if node in found:
                low, high = min(low, found[node][0]), max(high, found[node][1])
            found[node] = low, high
    return tuple((node, low, high) for node, (low, high) in found.items())


def shares_of(name: str, args: Any, regions: list[tuple[Tensor, Tensor]]) -> dict[int, float]:
    """Of a norm (of order 2), or a power: each node that it reads -> the power of the factor that stands on it.

    A factor of 1/√n on each of n replicas is a share of 1/n in the sum of squares.
    """
    from placealg.watch.recorder.shadows import PLACES, nodes_of
    from placealg.watch.recorder.tables import NORMS

    power = 2.0 if name in NORMS else args[1] if name == "aten::pow" and len(args) > 1 else None
    if not isinstance(power, int | float):
        return {}
    found: dict[int, float] = {}
    for origin, factor in regions:
        for node in nodes_of(origin):
            chosen = factor[(origin >> PLACES) == node]
            if float(chosen.abs().min()) == float(chosen.abs().max()) != 1:
                found[node] = abs(float(chosen.flatten()[0])) ** power
    return found
