"""What a recording holds of one rank: every op that ran, with the geometry of its tensors, as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Place(NamedTuple):
    """A tensor as memory: the elements `offset + sum(stride * index)` of a storage, in units of `item` bytes.

    `held` are the numbers themselves of what no float is: integers and truth values steer, and are taken as they were.
    A complex tensor is told as pairs along a last dim; `conjugate` if what is stored stands for its conjugate.
    """

    store: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    item: int
    held: Array | None = None
    complex: bool = False
    conjugate: bool = False

    @property
    def floating(self) -> bool:
        """Whether its elements are numbers that the step computes."""
        return self.dtype.startswith(("float", "bfloat"))

    @property
    def size(self) -> int:
        """How many elements it has."""
        return int(np.prod(self.shape, dtype=np.int64))


READ = "python::read"
"""What stands for an op where Python reads a tensor's memory."""


HANDED = "python::handed"
"""What stands for an op where a script hands a tensor to its model or its loss: `drawn` are its numbers."""


class Group(NamedTuple):
    """The ranks of a process group."""

    ranks: tuple[int, ...]


class Word(NamedTuple):
    """An argument that is no tensor and no number: a type, a device, an operator of a reduction."""

    text: str


@dataclass(frozen=True)
class Op:
    """One op: its name, its arguments by name, what it returned, which arguments it wrote.

    `drawn` are the numbers that it drew, if it draws; `line` the script's line, in backward that of the forward op.
    `lost` are storages whose memory was given back before it, `number` what Python read from a tensor.
    """

    name: str
    given: Mapping[str, Any]
    made: Any
    writes: tuple[str, ...]
    line: str
    phase: str = ""
    drawn: tuple[Array, ...] = ()
    lost: tuple[int, ...] = ()
    number: Any = None

    @property
    def written(self) -> Iterator[Place]:
        """The places that the op writes: its arguments first, then what it returned and is no argument."""
        mine = [p for name in self.writes for p in places(self.given.get(name))]
        yield from mine
        known = {p.store for p in places(list(self.given.values()))}
        yield from (p for p in places(self.made) if p.store not in known)

    @property
    def read(self) -> Iterator[Place]:
        """The places among its arguments."""
        return places(list(self.given.values()))


@dataclass(frozen=True)
class Held:
    """What a rank holds of a tensor that has a name: where, and which elements of the whole, by flat place."""

    place: Place
    elements: Array
    whole: tuple[int, ...]
    start: Array
    trained: bool = True


@dataclass
class Trace:
    """What one rank did in a step, in order; `leaf` are the numbers that storages held when they were first met.

    `named` are parameters, and what optimizers keep, as the step began; `final` where they stood when it ended, and
    `gradients` what the optimizer read, with the number of the op before which it did, and the sizes of its numbers.
    `tied` are further names of a parameter; `clash` says that several models had parameters of one name. Of the
    storages the first `begun` were known when the step began. The step begins before the op with the number `mark`:
    what ran before it made the batch, or brought new weights. `first` are digests of the parameters as the script made
    them. `lost` says why a trace cannot be run again.
    """

    rank: int
    ops: list[Op] = field(default_factory=list)
    leaf: dict[int, tuple[int, Array]] = field(default_factory=dict)
    named: dict[str, Held] = field(default_factory=dict)
    final: dict[str, Held] = field(default_factory=dict)
    gradients: dict[str, tuple[int, Place | None, Array]] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    unseen: dict[str, str] = field(default_factory=dict)
    clash: bool = False
    begun: int = 0
    mark: int = 0
    first: frozenset[str] = frozenset()
    lost: str = ""


def places(value: Any) -> Iterator[Place]:
    """All places in nested lists and tuples."""
    if isinstance(value, Place):
        yield value
    elif isinstance(value, list | tuple) and not isinstance(value, Group | Word):
        for one in value:
            yield from places(one)


def drawn_apart(ranks: Sequence[Trace]) -> bool:
    """Whether ranks draw other random numbers than each other outside of their modules: noise, or whole batches."""
    every = [[d.tobytes() for op in trace.ops if op.phase == "between" and op.name in _DRAWS for d in op.drawn]
             for trace in ranks]
    return any(own != every[0] for own in every)


_DRAWS = frozenset(f"aten::{name}" for name in ("rand", "randn", "randint", "rand_like", "randn_like", "randint_like",
                                                "normal"))
