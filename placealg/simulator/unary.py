"""Elementwise functions over the prime field, each with its derivative, rational in place of the real ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from placealg.simulator.field import PRIME, Array, inverse

UNARY: Mapping[str, Callable[[Array], Array]] = {
    "gelu": lambda x: (x * x + 3 * x) % PRIME,
    "silu": lambda x: (x * x + 5 * x) % PRIME,
    "tanh": lambda x: inverse((3 - x) % PRIME),
    "relu": lambda x: inverse((5 - 2 * x) % PRIME),
    "clamp": lambda x: (x * x + 7 * x) % PRIME,
    "sigmoid": lambda x: inverse((7 - 3 * x) % PRIME),
    "reciprocal": lambda x: inverse(x),
}
"""Kind -> an elementwise function; gelu, silu and clamp are 0 at 0, as the real ones are.

The derivatives of tanh, relu, sigmoid and reciprocal are functions of the result.
"""

SLOPES: Mapping[str, tuple[str, Callable[[Array], Array]]] = {
    "gelu": ("x", lambda x: (2 * x + 3) % PRIME),
    "silu": ("x", lambda x: (2 * x + 5) % PRIME),
    "tanh": ("y", lambda y: y * y % PRIME),
    "relu": ("y", lambda y: 2 * y * y % PRIME),
    "clamp": ("x", lambda x: (2 * x + 7) % PRIME),
    "sigmoid": ("y", lambda y: 3 * y * y % PRIME),
    "reciprocal": ("y", lambda y: -y * y % PRIME),
}
"""Kind -> what its derivative reads, and the derivative as a function of that."""
