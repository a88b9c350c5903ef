"""By which numbers an op multiplies: Python's own, and tensors of one number that were there before the step."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from placealg.watch.recorder import tables
from placealg.watch.recorder.nodes import Node, Parent, below


def factor_of(name: str, args: Any, kwargs: Any) -> Any:
    """The operand by which an op multiplies or divides."""
    return args[2] if name == tables.UNSCALES else args[1] if len(args) > 1 else kwargs.get("other")


def given(nodes: list[Node], parents: tuple[Parent, ...]) -> bool:
    """Whether something is made of nothing but what was there before the step: numbers that it merely uses."""
    return all(node.kind in ("zero", "outside", "constant", "compute", "scaled", "sum") and node.task < 0
               for _, node in below(nodes, [n for n, _, _ in parents]))


def alone(tensor: Any) -> bool:
    """Whether something is a tensor of one number."""
    return isinstance(tensor, Tensor) and tensor.dim() == 0
