"""A rule: what an op does to elements of the field; and the call that it is asked about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from placealg.watch.lift.field import UNKNOWN, Array, Field
from placealg.watch.lift.memory import Memory
from placealg.watch.lift.trace import Group, Op, Place, Word, places

Values = Array | Sequence[Array] | None
"""What an op writes, in the order of `Op.written`; None where a rule does not cover the call."""

Rule = Callable[["Call"], Values]

RULES: dict[str, Rule] = {}
"""Op, without its namespace aten and the underscore of those in place -> its rule."""


class Chance(Exception):
    """An op is steered by random numbers."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Say that a function is the rule of some ops."""
    def put(function: Rule) -> Rule:
        for name in names:
            if name in RULES:
                raise ValueError(f"{name} has two rules")
            RULES[name] = function
        return function
    return put


class Call:
    """One call of an op on one rank: its arguments as arrays of the field."""

    def __init__(self, op: Op, memory: Memory, given: dict[str, Any] | None = None, part: int = -1):
        self.op, self.memory, self.field, self.part = op, memory, memory.field, part
        self.given = dict(op.given) if given is None else given

    @property
    def f(self) -> Field:
        """The field."""
        return self.field

    def raw(self, name: str, default: Any = None) -> Any:
        """An argument as it was given; the default where it is absent or None."""
        found = self.given.get(name)
        return default if found is None else found

    def array(self, name: str, default: Any = None) -> Array:
        """An argument, tensor or number, as an array."""
        return self.of(self.raw(name, default))

    def of(self, value: Any) -> Array:
        """A tensor or a number as an array."""
        if isinstance(value, Place):
            found = self.memory.get(value)
            return found[..., self.part] if value.complex and self.part >= 0 else found
        if isinstance(value, Word | Group) or value is None:
            raise TypeError("no number")
        return np.array(self.field.number(value), self.field.kind)

    def arrays(self, name: str) -> list[Array]:
        """A list of tensors or numbers."""
        return [self.of(v) for v in self.raw(name, ())]

    def ints(self, name: str) -> Any:
        """Integers or truth values of a tensor, as they were; Chance if random numbers made them."""
        return self.held(self.raw(name))

    def held(self, place: Any) -> Any:
        """The same of a place."""
        if not isinstance(place, Place) or place.held is None:
            raise TypeError("what steers was not recorded")
        if place.store in self.memory.chancy:
            raise Chance
        return place.held

    def is_tensor(self, name: str) -> bool:
        """Whether an argument is a tensor."""
        return isinstance(self.raw(name), Place)

    def is_complex(self, name: str) -> bool:
        """Whether an argument is a tensor of complex numbers."""
        found = self.raw(name)
        return isinstance(found, Place) and found.complex

    def number(self, name: str, default: Any = None) -> int:
        """A number as an element."""
        return self.field.number(self.raw(name, default))

    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of what is written."""
        return [p.shape for p in self.outs]

    @property
    def outs(self) -> list[Place]:
        """What is written; of complex numbers, of which parts are moved, without the dim of these."""
        every = list(self.op.written)
        if self.part < 0:
            return every
        return [p._replace(shape=p.shape[:-1], stride=p.stride[:-1]) if p.complex else p for p in every]

    def made(self) -> list[Place]:
        """What is returned."""
        return list(places(self.op.made))

    def unknown(self) -> list[Array]:
        """Nothing known of what is written."""
        return [np.full(shape, UNKNOWN, self.field.kind) for shape in self.shapes()]


def axis(dim: int, ndim: int) -> int:
    """A dim counted from the front."""
    return dim % ndim if ndim else 0


def axes(dims: Any, ndim: int) -> tuple[int, ...]:
    """Dims counted from the front; all where none are said."""
    if dims is None or (isinstance(dims, list | tuple) and not dims):
        return tuple(range(ndim))
    return tuple(axis(d, ndim) for d in (dims if isinstance(dims, list | tuple) else [dims]))
