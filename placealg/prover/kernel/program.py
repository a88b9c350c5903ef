"""The language of programs, as `Machine.v` and `Meaning.v` of proofs/coq/kernel have it: a type for each of theirs.

A program is what ranks do, and, apart from that, what a single device does. What an instruction claims is a hint: the
checker takes no claim for true. Numbers of slots, values and lines are of type Number; axes, dims, functions and units
are small numbers, too, and axis 0 counts microbatches. `term` is a program as Coq reads it, and as the extracted
checker does.
"""

from __future__ import annotations

import functools
from operator import itemgetter
from typing import Any, ClassVar, Self, TypeAlias, dataclass_transform

from placealg.prover.kernel.terms import Term


class Number(int):
    """A number of a slot, a value or a line: 1 or more, binary in Coq."""


@dataclass_transform(frozen_default=True)
class Constructor(tuple[Any, ...]):
    """A constructor of Coq: its name, and its arguments by the names that its class gives them.

    >>> Send(1, AllReduce()), Send(1, AllReduce()).axis, Shared(Number(2)) == Each(Number(2))
    (('Send', 1, ('AllReduce',)), 1, False)
    """

    __slots__ = ()
    head: ClassVar[str]

    def __init_subclass__(cls, head: str = "") -> None:
        cls.head = head or cls.__name__
        for place, part in enumerate(cls.__annotations__, 1):
            setattr(cls, part, property(itemgetter(place)))

    def __new__(cls, *arguments: Any) -> Constructor:
        """The constructor with its arguments, in order."""
        return tuple.__new__(cls, (cls.head, *arguments))

    def but(self, **parts: Any) -> Self:
        """The same with other arguments by these names."""
        return type(self)(*(parts.get(name, old) for name, old in zip(self.__annotations__, self[1:], strict=True)))


class Pair(Constructor, head="pair"):
    """Two things."""

    first: Any
    second: Any


class Some(Constructor):
    """What may lack, and is there; what lacks is None."""

    value: Any


class Full(Constructor):
    """All ranks of an axis have all of it."""


class Shard(Constructor):
    """It is split along an axis, by a way: a dim's number, or another number with the dims that it reads."""

    way: int


class Part(Constructor):
    """Ranks of an axis have parts of a sum."""


Kind: TypeAlias = Full | Shard | Part
Layout: TypeAlias = tuple[Pair, ...]
"""Axis and way of splitting."""

Powers: TypeAlias = tuple[Pair, ...]
"""A monomial: of each atom, in order, its exponents above and below the line."""


class AllReduce(Constructor):
    """Every rank gets the sum."""


class ReduceScatter(Constructor):
    """Every rank gets its own of the sum."""

    way: int


class AllGather(Constructor):
    """Every rank gets what each owner has."""

    way: int


class Slice(Constructor):
    """Every rank keeps its own."""

    way: int


class AllToAll(Constructor):
    """Every rank gets its own by one way of what each owner by another has."""

    source: int
    target: int


class Only(Constructor):
    """What is not a rank's own is zero there: what is split, as parts of a sum."""

    way: int


class Einsum(Constructor):
    """The product of the operands, summed over some dims."""

    layout: Layout
    over: tuple[int, ...]


class Row(Constructor):
    """A function, of which nothing is known, of the operands' rows along some dims."""

    function: int
    over: tuple[int, ...]
    layout: Layout


class Add(Constructor):
    """The sum of the operands."""

    layout: Layout


class Scale(Constructor):
    """The operand times a monomial."""

    by: Powers


class Rename(Constructor):
    """The operand with its dims under other names: pairs of a dim of the operand and of the result."""

    names: tuple[Pair, ...]


class Send(Constructor):
    """What is sent along an axis."""

    axis: int
    sent: AllReduce | ReduceScatter | AllGather | Slice | AllToAll | Only


Op: TypeAlias = Einsum | Row | Add | Scale | Rename | Send


class Shared(Constructor):
    """A slot, one for all instances of units."""

    number: Number


class Each(Constructor):
    """Slots, one for each instance of a unit."""

    number: Number


Slot: TypeAlias = Shared | Each


class Do(Constructor):
    """A slot gets the result of an op; `claim` is the line of the single device that it is said to be."""

    op: Op
    args: tuple[Slot, ...]
    out: Slot
    claim: Some | None


class Read(Constructor):
    """A slot gets what comes from outside."""

    value: Number
    out: Slot


class Zero(Constructor):
    """A slot gets zero."""

    out: Slot


class Free(Constructor):
    """A slot holds nothing that is known."""

    out: Slot


Instruction: TypeAlias = Do | Read | Zero | Free


class Run(Constructor):
    """Instructions that run once."""

    instructions: tuple[Instruction, ...]


class Layers(Constructor):
    """Instructions that run in each instance of a unit; pairs of a slot and the value that it hands on."""

    unit: int
    down: bool
    carried: tuple[Pair, ...]
    instructions: tuple[Instruction, ...]


Block: TypeAlias = Run | Layers


class Once(Constructor):
    """Blocks that run once."""

    blocks: tuple[Block, ...]


class Microbatches(Constructor):
    """Blocks that run in each microbatch; behind each, the first slot of a pair is added to the second."""

    sums: tuple[Pair, ...]
    blocks: tuple[Block, ...]


class Moves(Constructor):
    """Ways that move with the instances of a unit: by `here` an instance belongs to one rank of an axis.

    By `behind` the next one does; by `entry` the first, by `exit` what comes behind the last.
    """

    unit: int
    entry: int
    here: int
    behind: int
    exit: int


class Mesh(Constructor):
    """The axes, axis 0 included; for each dim the first that is like it; for each way the dims that it reads.

    `sized` are pairs of an axis and the atom that is its number of ranks; along axis 0, of microbatches. `moving` are
    the ways that are others in each instance of a unit.
    """

    axes: int
    like: tuple[int, ...]
    touch: tuple[tuple[int, ...], ...]
    sized: tuple[Pair, ...]
    moving: tuple[Moves, ...]


class Last(Constructor):
    """The index behind all instances of a unit. The others are the words First, This and Next."""

    unit: int


Index: TypeAlias = str | Last


class SEinsum(Constructor):
    """An einsum of the single device."""

    over: tuple[int, ...]


class SRow(Constructor):
    """A function of rows."""

    function: int
    over: tuple[int, ...]


class SAdd(Constructor):
    """A sum."""


class SScale(Constructor):
    """A multiple."""

    by: Powers


class SRename(Constructor):
    """Another name for dims."""

    names: tuple[Pair, ...]


Single: TypeAlias = SEinsum | SRow | SAdd | SScale | SRename


class Line(Constructor):
    """A line of the single device: the value that it makes, and those that it reads, each a number and an index."""

    target: Pair
    made: Single
    reads: tuple[Pair, ...]


class Plain(Constructor):
    """Numbered lines that run once."""

    lines: tuple[Pair, ...]


class Repeat(Constructor):
    """Numbered lines that run in each instance of a unit."""

    unit: int
    down: bool
    lines: tuple[Pair, ...]


Stretch: TypeAlias = Plain | Repeat


class Held(Constructor):
    """What comes from outside or is kept: its value, in the instances of which unit, how it lies along each axis."""

    value: Number
    per: Some | None
    lying: tuple[Kind, ...]


class Program(Constructor):
    """A program beside its single device; the fields are those of `program` in Meaning.v."""

    on: Mesh
    ones: tuple[Powers, ...]
    alone: tuple[Stretch, ...]
    states: tuple[Pair, ...]
    begins: tuple[Pair, ...]
    given: tuple[Held, ...]
    data: tuple[Held, ...]
    init: tuple[Block, ...]
    step: tuple[Once | Microbatches, ...]
    save: tuple[Block, ...]
    resume: tuple[Block, ...]
    disk: tuple[Slot, ...]
    rest: tuple[Pair, ...]


@functools.cache
def _binary(number: int) -> Term:
    if number < 1:
        raise ValueError(f"{number} is no number of a slot, a value or a line")
    return "xH" if number == 1 else ("xI" if number % 2 else "xO", _binary(number // 2))


def term(of: Any) -> Term:
    """A program, or a part of one, as a term of Coq.

    >>> term(Do(Send(1, AllReduce()), (Shared(Number(2)),), Shared(Number(3)), None))
    ('Do', ('Send', 1, 'AllReduce'), [('Shared', ('xO', 'xH'))], ('Shared', ('xI', 'xH')), 'None')
    """
    if isinstance(of, Number):
        return _binary(int(of))
    if of is None:
        return "None"
    if isinstance(of, (bool, int, str)):
        return of
    parts = [term(one) for one in of]
    return parts if not isinstance(of, Constructor) else tuple(parts) if len(parts) > 1 else of.head
