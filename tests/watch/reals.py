"""The rules of ops in real numbers instead of a field, so that they can be held against the ops themselves."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch

from placealg.watch.lift.field import Field

FUNCTIONS: dict[str, Any] = {
    "root": torch.sqrt, "exp": torch.exp, "log": torch.log, "tanh": torch.tanh, "abs": torch.abs, "cos": torch.cos,
    "sin": torch.sin, "erf": torch.erf, "relu": torch.relu, "sgn": torch.sgn, "sign": torch.sign,
    "expm1": torch.expm1, "floor": torch.floor, "ceil": torch.ceil, "round": torch.round, "tan": torch.tan,
    "trunc": torch.trunc, "frac": torch.frac, "nan_to_num": torch.nan_to_num,
    "gelu none": torch.nn.functional.gelu, "gelu tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "clamp min": lambda x, b: torch.maximum(x, b), "clamp max": lambda x, b: torch.minimum(x, b),
    "above": lambda x, b: (x > b).to(x.dtype), "pow": torch.pow,
}
"""The functions that are oracles in a field."""


class Reals(Field):
    """Real numbers, in which nothing is unknown."""

    kind = np.float64

    def __init__(self) -> None:
        super().__init__(2**31 - 1)
        self.minus_infinity, self.infinity = float("-inf"), float("inf")  # type: ignore[assignment]

    def number(self, value: Any, kind: str = "float64") -> Any:
        return float(value)

    def numbers_of(self, values: Any, kind: str) -> Any:
        return np.asarray(values, np.float64)

    def over(self, count: int) -> Any:
        return np.array(1.0 / count)

    def known(self, x: Any) -> Any:
        return x

    def add(self, x: Any, y: Any) -> Any:
        return x + y

    def neg(self, x: Any) -> Any:
        return -x

    def sub(self, x: Any, y: Any) -> Any:
        return x - y

    def plus(self, x: Any, y: Any) -> Any:
        return x + y

    def minus(self, x: Any) -> Any:
        return -x

    def mul(self, x: Any, y: Any) -> Any:
        return x * y

    def div(self, x: Any, y: Any) -> Any:
        return x / y

    def inverse(self, x: Any) -> Any:
        return 1.0 / x

    def power(self, x: Any, n: int) -> Any:
        return x ** n

    def square(self, x: Any) -> Any:
        return x * x

    def sum(self, x: Any, axes: tuple[int, ...], keep: bool = False) -> Any:
        return np.asarray(np.sum(x, axis=axes, keepdims=keep))

    def product(self, a: Any, b: Any) -> Any:
        return np.matmul(a, b)

    def added(self, x: Any, places: Any, values: Any) -> Any:
        made = np.array(x, np.float64).ravel()
        np.add.at(made, places, values)
        return made.reshape(x.shape)

    def oracle(self, name: str, *xs: Any) -> Any:
        slope = re.fullmatch(r"gelu' (\w+)", name)
        if slope:
            x = torch.tensor(xs[0], requires_grad=True)
            FUNCTIONS[f"gelu {slope[1]}"](x).sum().backward()
            assert x.grad is not None
            return x.grad.numpy()
        if name.startswith("pow "):
            return xs[0] ** float(name[4:])
        if name not in FUNCTIONS:
            return _by_op(name, xs)
        return FUNCTIONS[name](*(torch.tensor(np.asarray(x, np.float64)) for x in xs)).numpy()

    def root(self, x: Any) -> Any:
        return np.sqrt(x)

    def exp(self, x: Any) -> Any:
        return np.exp(x)

    def log(self, x: Any) -> Any:
        return np.log(x)

    def largest(self, x: Any, axis: int, keep: bool = False) -> Any:
        return np.max(x, axis=axis, keepdims=keep)

    def larger(self, x: Any, y: Any) -> Any:
        return np.maximum(x, y)


def _by_op(name: str, xs: tuple[Any, ...]) -> Any:
    """A function of elements that is an op by itself, or with an ' its derivative, as the op of backward says it."""
    given: list[Any] = [torch.tensor(x, dtype=torch.float64) if np.ndim(x) else float(x) for x in xs]
    op: Any = getattr(torch.ops.aten, name.replace("'", "_backward"))
    schema = next(getattr(op, o)._schema for o in op.overloads() if "out" not in o)
    if name.endswith("'"):
        given.insert(0, torch.ones(np.broadcast_shapes(*(np.shape(x) for x in xs)), dtype=torch.float64))
    named = {a.name: v if isinstance(v, torch.Tensor) or str(a.type) != "bool" else bool(v)
             for a, v in zip((a for a in schema.arguments if a.name not in ("weight", "pos_weight", "reduction")
                              or len(given) > len(schema.arguments) - 1), given, strict=False)}
    return op(**named, **({"reduction": 0} if any(a.name == "reduction" for a in schema.arguments) else {})).numpy()
