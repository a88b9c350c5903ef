"""Where a backward starts: by which factor, through which loss, and whether in one term alone."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from placealg.watch.recorder import tables
from placealg.watch.recorder.nodes import Node
from placealg.watch.recorder.shadows import PLACES, Region

Start = tuple[int, float, float, tuple[int, ...], bool]
"""(node of the start, factor since, tokens of the loss, products with tensors, whether through a loss)."""


class Seeds:
    """Backward, by its number -> what the first op that is not linear makes of its start."""

    def __init__(self, nodes: list[Node]):
        self.nodes = nodes
        self.told: dict[int, tuple[float, float, tuple[int, ...], str, bool, bool]] = {}
        self.takers: dict[int, dict[tuple[int, str], bool]] = {}

    def meet(self, task: int, name: str, inputs: Sequence[Tensor], written: Sequence[Tensor], before: Sequence[Region]
             ) -> None:
        """Look whether an op of backward takes what it starts with, and keep the first that does."""
        if name in tables.LOSSES:
            return
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
            self.takers.setdefault(task, {})[start, name] = known
            if task not in self.told:
                made = tensor.numel() if tensor.numel() > 1 else max((t.numel() for t in written), default=1)
                self.told[task] = factor, tokens or made, scalars, name, not tokens and tensor.numel() == 1, known
            return

    def beside(self) -> list[str]:
        """The ops that take a backward's start where a cross entropy takes it as well: terms that are none."""
        found: dict[str, None] = {}
        for takers in self.takers.values():
            losses = {start for (start, _), known in takers.items() if known}
            found.update(dict.fromkeys(n for (start, n), known in takers.items() if start in losses and not known))
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
