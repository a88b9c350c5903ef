"""By which numbers an op multiplies: Python's own, and tensors of one number that were there before the step."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from placealg.watch.recorder.nodes import Node, Parent

UNSCALES = "aten::_amp_foreach_non_finite_check_and_unscale_"
"""It multiplies its first operand, a list, by its third: a GradScaler's."""


def factor_of(name: str, args: Any, kwargs: Any) -> Any:
    """The operand by which an op multiplies or divides."""
    return args[2] if name == UNSCALES else args[1] if len(args) > 1 else kwargs.get("other")


def given(nodes: list[Node], parents: tuple[Parent, ...]) -> bool:
    """Whether something is made of nothing but what was there before the step: numbers that it merely uses."""
    todo, seen = [n for n, _, _ in parents], set()
    while todo:
        node = nodes[number := todo.pop()]
        if node.kind not in ("zero", "outside", "constant", "compute", "scaled", "sum") or node.task >= 0:
            return False
        if number not in seen:
            seen.add(number)
            todo += [n for n, _, _ in node.parents]
    return True


def alone(tensor: Any) -> bool:
    """Whether something is a tensor of one number."""
    return isinstance(tensor, Tensor) and tensor.dim() == 0
