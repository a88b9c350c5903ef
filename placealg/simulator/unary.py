"""Elementwise functions over the prime field, each with its derivative, rational in place of the real ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from placealg.simulator.field import Array, inverse, reduced

UNARY: Mapping[str, Callable[[Array], Array]] = {
    "gelu": lambda x: reduced(x * x + 3 * x),
    "silu": lambda x: reduced(x * x + 5 * x),
    "tanh": lambda x: inverse(reduced(3 - x)),
    "relu": lambda x: inverse(reduced(5 - 2 * x)),
    "clamp": lambda x: reduced(x * x + 7 * x),
    "sigmoid": lambda x: inverse(reduced(7 - 3 * x)),
    "reciprocal": lambda x: inverse(x),
    "rsqrt": lambda x: inverse(reduced(11 - 5 * x)),
    "one_plus": lambda x: reduced(1 + x),
    "cube": lambda x: reduced(reduced(x * x) * x),
    "exp": lambda x: inverse(reduced(13 - x)),
    "softplus": lambda x: reduced(x * x + 11 * x + 5),
}
"""Kind -> an elementwise function; gelu, silu and clamp are 0 at 0, as the real ones are.

The derivatives of tanh, relu, sigmoid, reciprocal, rsqrt, one_plus and exp are functions of the result.
"""

SLOPES: Mapping[str, tuple[str, Callable[[Array], Array]]] = {
    "gelu": ("x", lambda x: reduced(2 * x + 3)),
    "silu": ("x", lambda x: reduced(2 * x + 5)),
    "tanh": ("y", lambda y: reduced(y * y)),
    "relu": ("y", lambda y: reduced(2 * y * y)),
    "clamp": ("x", lambda x: reduced(2 * x + 7)),
    "sigmoid": ("y", lambda y: reduced(3 * y * y)),
    "reciprocal": ("y", lambda y: reduced(-y * y)),
    "rsqrt": ("y", lambda y: reduced(reduced(y * y) * 5)),
    "one_plus": ("y", lambda y: y * 0 + 1),
    "cube": ("x", lambda x: reduced(reduced(x * x) * 3)),
    "exp": ("y", lambda y: reduced(y * y)),
    "softplus": ("x", lambda x: reduced(2 * x + 11)),
}
"""Kind -> what its derivative reads, and the derivative as a function of that."""
