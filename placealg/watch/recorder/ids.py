"""Whole numbers that a step reads, such as ids of tokens: what came from outside, and what lookups make of it."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from placealg.watch.recorder.nodes import Node, below
from placealg.watch.recorder.shadows import PLACES, Region, nodes_of
from placealg.watch.seen import CHANGED, MOVED, REPEATED

LEAST = 8
"""How many numbers a tensor has at least that is looked at."""

_LOOKUPS = {"aten::embedding": 0, "aten::nll_loss_forward": 1, "aten::nll_loss2d_forward": 1, "aten::gather": None}
"""Op that takes elements by their numbers, its second tensor -> the dim of the first that they number; None where an
argument says it."""


class Ids:
    """What a rank has read of whole numbers, in order: `told` are words with a digest each."""

    def __init__(self) -> None:
        self.told: dict[tuple[int, ...], str] = {}
        self.known: list[Tensor] = []

    def clear(self) -> None:
        """Forget what was read before the step."""
        self.told.clear()
        self.known.clear()

    def read(self, func: Any, args: Any, inputs: list[Tensor], before: list[Region], nodes: list[Node],
             microbatch: int) -> None:
        """Keep a digest of every tensor of whole numbers that an op reads as it came from outside the step.

        Those that only count on, as positions do, repeat one number, or are masks, are left out. What stands in
        another order than outside is told so, and so are numbers that a lookup has changed, or reads twice.
        """
        for tensor, (origin, _) in zip(inputs, before, strict=False):
            if tensor.dtype not in (torch.int64, torch.int32) or tensor.numel() < LEAST:
                continue
            made_by = [nodes[n] for n in nodes_of(origin) if n]  # memory that nothing has written yet is of node 0
            if not made_by or any(n.kind != "outside" and (n.kind != "compute" or n.parents) for n in made_by):
                continue
            flat = tensor.detach().flatten().to("cpu", torch.int64)
            if _counts_on(tensor.detach()) or (int(flat.min()) >= 0 and int(flat.max()) <= 1):
                continue
            ends = origin.flatten()
            key = int(ends[0]), int(ends[-1]), tensor.numel()
            if key not in self.told:
                moved = "" if bool((ends[1:] > ends[:-1]).all()) else MOVED
                self.told[key] = f"{microbatch}:{moved}{_digest(flat)}"
                self.known.append(flat)
        if func._schema.name in _LOOKUPS and len(inputs) > 1:
            self._lookup(func, args, inputs, before[1][0], nodes, microbatch)

    def _lookup(self, func: Any, args: Any, inputs: list[Tensor], origin: Tensor, nodes: list[Node], microbatch: int
                ) -> None:
        """Tell numbers of a lookup that are none that were read, in any split of the table over ranks."""
        table, index = inputs[0], inputs[1].detach()
        if index.numel() < LEAST or _counts_on(index):
            return
        dim = _LOOKUPS[func._schema.name]
        rows = table.shape[args[1] if dim is None else min(dim, table.dim() - 1)] if table.dim() else 1
        flat = index.flatten().to("cpu", torch.int64)
        alike = [k for k in self.known if k.numel() == flat.numel()]
        outside = [k for k in nodes_of(origin) if nodes[k].kind == "outside"]
        if outside:
            read = origin[torch.isin(origin >> PLACES, torch.tensor(outside))]  # what pads is of no place
            if torch.unique(read).numel() < read.numel():
                self.told[(-1, len(self.told), 0)] = f"{microbatch}:{REPEATED}{_digest(flat)}"
        elif _made_of_numbers(origin, nodes) and not any(_fits(flat, k, rows) for k in alike):
            how = CHANGED if alike else "" if any(_picked(flat, k) for k in self.known) else REPEATED
            if how:
                self.told[(-1, len(self.told), 0)] = f"{microbatch}:{how}{_digest(flat)}"


def _digest(flat: Tensor) -> str:
    return sha256(flat.numpy().tobytes()).hexdigest()[:16]


def _counts_on(tensor: Tensor) -> bool:
    """Whether numbers only count on, or are one number."""
    tensor = tensor.squeeze()  # an index of one number each, as of gather, has a dim of size 1
    steps = tensor[1:] - tensor[:-1] if tensor.dim() == 1 else (tensor[..., 1:] - tensor[..., :-1]).flatten()
    return bool((steps == steps[:1]).all())


def _fits(flat: Tensor, known: Tensor, rows: int) -> bool:
    """Whether a lookup reads numbers that were read, less the first of this rank's rows, where they are in these."""
    if bool(((flat == 0) | (flat == rows - 1)).all()):
        return True  # none of them is in this rank's rows
    for first in range(0, int(known.max()) + 1, rows):
        inside = (known >= first) & (known < first + rows)
        if bool(inside.any()) and bool((known[inside] - flat[inside] == first).all()):
            return True
    return False


def _picked(flat: Tensor, known: Tensor) -> bool:
    """Whether a lookup reads some of the numbers that were read, each once, in their order."""
    at: int = 0
    for number in known.tolist():
        at += int(at < flat.numel() and int(flat[at]) == number)
    return bool(at == flat.numel())


def _made_of_numbers(origin: Tensor, nodes: list[Node]) -> bool:
    """Whether numbers are made of numbers that came from outside, and not of weights, as a router's choices are."""
    outside = False
    for _, node in below(nodes, nodes_of(origin)):
        if node.kind in ("param", "message"):
            return False
        outside = outside or (node.kind == "outside" and node.name.startswith("int"))
    return outside
