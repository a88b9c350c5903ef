"""Where a backward starts: by which factor, through which loss, and whether in one term alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from placealg.watch.recorder import tables
from placealg.watch.recorder.nodes import Node, below
from placealg.watch.recorder.shadows import PLACES, Region, nodes_of
from placealg.watch.seen import Hop, Seed

Start = tuple[int, float, float, tuple[int, ...], bool]
"""(node of the start, factor since, tokens of the loss, products with tensors, whether through a loss)."""

ROWS = "aten::_log_softmax_backward_data"
"""Backward of a cross entropy's logarithms: each row of what it reads sums up to how often a token counts, negated."""


class Taker(NamedTuple):
    """An op that is not linear, or the backward of logarithms behind a known loss, that takes a backward's start."""

    start: int
    name: str
    factor: float
    tokens: float
    scalars: tuple[int, ...]
    known: bool
    single: bool
    node: int
    """What it makes."""


@dataclass
class Begun:
    """What took the start of one backward, and how often tokens count, by rows of logarithms."""

    takers: list[Taker] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)
    behind: set[int] = field(default_factory=set)
    """The nodes through which the rows have come."""


class Seeds:
    """Backward, by its number -> what takes its start."""

    def __init__(self, nodes: list[Node]):
        self.nodes = nodes
        self.begun: dict[int, Begun] = {}

    def meet(self, task: int, name: str, inputs: Sequence[Tensor], written: Sequence[Tensor], before: Sequence[Region],
             dim: int) -> None:
        """Look whether an op of backward takes what it starts with, and how often tokens count in logarithms."""
        if name in tables.LOSSES:
            return
        here = self.begun.setdefault(task, Begun())
        if name == ROWS and inputs[0].element_size() >= 4:
            behind = self._behind(before[0], task)
            if behind is not None:
                here.rows.append(-inputs[0].detach().double().sum(dim).flatten())
                here.behind |= behind
        for region, tensor in zip(before, inputs, strict=False):
            if not region[0].numel():
                continue
            first = (0,) * region[0].dim()
            origin = int(region[0][first])
            if self.nodes[origin >> PLACES].kind not in ("constant", "scaled", "loss"):
                continue
            found = self.start_of(origin, float(region[1][first]))
            if found is None:
                continue
            start, factor, tokens, scalars, known = found
            made = tensor.numel() if tensor.numel() > 1 else max((t.numel() for t in written), default=1)
            here.takers.append(Taker(start, name, factor, tokens or made, scalars, known,
                                     not tokens and tensor.numel() == 1, len(self.nodes)))
            return

    def _behind(self, region: Region, task: int) -> set[int] | None:
        """The nodes of one backward from which something comes; None if products or other logarithms are among them."""
        found: set[int] = set()
        for number, node in below(self.nodes, nodes_of(region[0]), lambda n: n.task != task):
            if node.task == task:
                if node.name in tables.GRADIENTS or node.name == ROWS or node.kind == "message":
                    return None
                found.add(number)
        return found

    def seed(self, task: int, hop: Callable[[int], Hop]) -> Seed:
        """How a backward begins: by its known losses, else by its rows, else by the first op that takes its start."""
        here = self.begun.get(task, Begun())
        if not here.takers:
            return Seed(task, None, 0)
        first = next((t for t in here.takers if t.known), here.takers[0])
        hops = tuple(map(hop, dict.fromkeys(s for t in here.takers for s in t.scalars)))
        if not first.known and here.rows and any(t.node in here.behind for t in here.takers):
            each = torch.cat(here.rows)
            each = each[each.abs() > 1e-9 * each.abs().max()]
            if each.numel() and float(each.mean()):
                mean = float(each.mean())
                ends = sorted(float(f"{float(e) / mean:.6g}") for e in torch.aminmax(each))
                return Seed(task, mean, each.numel(), hops, ROWS, ends[1] - ends[0] > 1e-4, True, *ends)
        alike = [t for t in here.takers if t.known == first.known and (t.known or t.name == first.name)]
        tokens = sum(t.tokens for t in alike)
        factor = sum(t.factor * t.tokens for t in alike) / tokens
        ends = sorted(t.factor / factor for t in alike) if factor else [1.0, 1.0]
        return Seed(task, factor, tokens, hops, first.name, not first.known and (first.single or len(alike) > 1),
                    first.known, float(f"{ends[0]:.6g}"), float(f"{ends[-1]:.6g}"))

    def beside(self) -> list[str]:
        """The ops that take a backward's start where a cross entropy takes it as well: terms that are none."""
        found: dict[str, None] = {}
        for here in self.begun.values():
            losses = {t.start for t in here.takers if t.known or t.node in here.behind}
            found.update(dict.fromkeys(t.name for t in here.takers
                                       if t.start in losses and not t.known and t.node not in here.behind))
            every = here.behind - {t.start for t in here.takers}
            read = ((k, n) for k, n in enumerate(self.nodes) if n.name != ROWS and k not in every) if every else ()
            found.update(dict.fromkeys(n.name for _, n in read if any(parent in every for parent, _, _ in n.parents)))
        return list(found)

    def start_of(self, origin: int, factor: float) -> Start | None:
        """What comes from a backward's start; None of anything else."""
        tokens, known = 0.0, False
        scalars: list[int] = []
        while True:
            number = origin >> PLACES
            node = self.nodes[number]
            if node.kind == "constant" and node.phase != "backward":
                return number, factor, tokens, tuple(scalars), known
            if node.kind not in ("scaled", "loss"):
                return None
            if node.kind == "scaled":
                scalars.append(number)
            tokens, known = node.tokens or tokens, known or node.kind == "loss"
            place = origin & ((1 << PLACES) - 1) if node.kind == "scaled" else 0
            source = node.sources[0]
            factor *= node.value * float(source[1].flatten()[place])
            origin = int(source[0].flatten()[place])
