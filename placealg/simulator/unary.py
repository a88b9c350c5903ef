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
    "rsqrt": lambda x: inverse((11 - 5 * x) % PRIME),
    "one_plus": lambda x: (1 + x) % PRIME,
    "cube": lambda x: x * x % PRIME * x % PRIME,
}
"""Kind -> an elementwise function; gelu, silu and clamp are 0 at 0, as the real ones are.

The derivatives of tanh, relu, sigmoid, reciprocal, rsqrt and one_plus are functions of the result.
"""

SLOPES: Mapping[str, tuple[str, Callable[[Array], Array]]] = {
    "gelu": ("x", lambda x: (2 * x + 3) % PRIME),
    "silu": ("x", lambda x: (2 * x + 5) % PRIME),
    "tanh": ("y", lambda y: y * y % PRIME),
    "relu": ("y", lambda y: 2 * y * y % PRIME),
    "clamp": ("x", lambda x: (2 * x + 7) % PRIME),
    "sigmoid": ("y", lambda y: 3 * y * y % PRIME),
    "reciprocal": ("y", lambda y: -y * y % PRIME),
    "rsqrt": ("y", lambda y: y * y % PRIME * 5 % PRIME),
    "one_plus": ("y", lambda y: y * 0 + 1),
    "cube": ("x", lambda x: x * x % PRIME * 3 % PRIME),
}
"""Kind -> what its derivative reads, and the derivative as a function of that."""
