"""The language of programs, as `Machine.v` and `Meaning.v` of proofs/coq/kernel have it: a type for each of theirs.

A program is what ranks do, and, apart from that, what a single device does. What an instruction claims is a hint: the
checker takes no claim for true. Numbers of slots, values and lines are of type Number; axes, dims, functions and units
are small numbers, too, and axis 0 counts microbatches. `term` is a program as Coq reads it, and as the extracted
checker does.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from placealg.prover.kernel.terms import Term


class Number(int):
    """A number of a slot, a value or a line: 1 or more, binary in Coq."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two things."""

    first: Any
    second: Any


@dataclass(frozen=True, slots=True)
class Some:
    """What may lack, and is there; what lacks is None."""

    value: Any


@dataclass(frozen=True, slots=True)
class Full:
    """All ranks of an axis have all of it."""


@dataclass(frozen=True, slots=True)
class Shard:
    """It is split along an axis, by a way: a dim's number, or another number with the dims that it reads."""

    way: int


@dataclass(frozen=True, slots=True)
class Part:
    """Ranks of an axis have parts of a sum."""


Kind: TypeAlias = Full | Shard | Part
Layout: TypeAlias = tuple[Pair, ...]
"""Axis and way of splitting."""

Powers: TypeAlias = tuple[Pair, ...]
"""A monomial: of each atom, in order, its exponents above and below the line."""


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Every rank gets the sum."""


@dataclass(frozen=True, slots=True)
class ReduceScatter:
    """Every rank gets its own of the sum."""

    way: int


@dataclass(frozen=True, slots=True)
class AllGather:
    """Every rank gets what each owner has."""

    way: int


@dataclass(frozen=True, slots=True)
class Slice:
    """Every rank keeps its own."""

    way: int


@dataclass(frozen=True, slots=True)
class AllToAll:
    """Every rank gets its own by one way of what each owner by another has."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Only:
    """What is not a rank's own is zero there: what is split, as parts of a sum."""

    way: int


@dataclass(frozen=True, slots=True)
class Einsum:
    """The product of the operands, summed over some dims."""

    layout: Layout
    over: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A function, of which nothing is known, of the operands' rows along some dims."""

    function: int
    over: tuple[int, ...]
    layout: Layout


@dataclass(frozen=True, slots=True)
class Add:
    """The sum of the operands."""

    layout: Layout


@dataclass(frozen=True, slots=True)
class Scale:
    """The operand times a monomial."""

    by: Powers


@dataclass(frozen=True, slots=True)
class Rename:
    """The operand with its dims under other names: pairs of a dim of the operand and of the result."""

    names: tuple[Pair, ...]


@dataclass(frozen=True, slots=True)
class Send:
    """What is sent along an axis."""

    axis: int
    sent: AllReduce | ReduceScatter | AllGather | Slice | AllToAll | Only


Op: TypeAlias = Einsum | Row | Add | Scale | Rename | Send


@dataclass(frozen=True, slots=True)
class Shared:
    """A slot, one for all instances of units."""

    number: Number


@dataclass(frozen=True, slots=True)
class Each:
    """Slots, one for each instance of a unit."""

    number: Number


Slot: TypeAlias = Shared | Each


@dataclass(frozen=True, slots=True)
class Do:
    """A slot gets the result of an op; `claim` is the line of the single device that it is said to be."""

    op: Op
    args: tuple[Slot, ...]
    out: Slot
    claim: Some | None


@dataclass(frozen=True, slots=True)
class Read:
    """A slot gets what comes from outside."""

    value: Number
    out: Slot


@dataclass(frozen=True, slots=True)
class Zero:
    """A slot gets zero."""

    out: Slot


@dataclass(frozen=True, slots=True)
class Free:
    """A slot holds nothing that is known."""

    out: Slot


Instruction: TypeAlias = Do | Read | Zero | Free


@dataclass(frozen=True, slots=True)
class Run:
    """Instructions that run once."""

    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Layers:
    """Instructions that run in each instance of a unit; pairs of a slot and the value that it hands on."""

    unit: int
    down: bool
    carried: tuple[Pair, ...]
    instructions: tuple[Instruction, ...]


Block: TypeAlias = Run | Layers


@dataclass(frozen=True, slots=True)
class Once:
    """Blocks that run once."""

    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Microbatches:
    """Blocks that run in each microbatch; behind each, the first slot of a pair is added to the second."""

    sums: tuple[Pair, ...]
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Moves:
    """Ways that move with the instances of a unit: by `here` an instance belongs to one rank of an axis.

    By `behind` the next one does; by `entry` the first, by `exit` what comes behind the last.
    """

    unit: int
    entry: int
    here: int
    behind: int
    exit: int


@dataclass(frozen=True, slots=True)
class Mesh:
    """The axes, axis 0 included; for each dim the first that is like it; for each way the dims that it reads.

    `sized` are pairs of an axis and the atom that is its number of ranks; along axis 0, of microbatches. `moving` are
    the ways that are others in each instance of a unit.
    """

    axes: int
    like: tuple[int, ...]
    touch: tuple[tuple[int, ...], ...]
    sized: tuple[Pair, ...]
    moving: tuple[Moves, ...]


@dataclass(frozen=True, slots=True)
class Last:
    """The index behind all instances of a unit. The others are the words First, This and Next."""

    unit: int


Index: TypeAlias = str | Last


@dataclass(frozen=True, slots=True)
class SEinsum:
    """An einsum of the single device."""

    over: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SRow:
    """A function of rows."""

    function: int
    over: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SAdd:
    """A sum."""


@dataclass(frozen=True, slots=True)
class SScale:
    """A multiple."""

    by: Powers


@dataclass(frozen=True, slots=True)
class SRename:
    """Another name for dims."""

    names: tuple[Pair, ...]


Single: TypeAlias = SEinsum | SRow | SAdd | SScale | SRename


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the single device: the value that it makes, and those that it reads, each a number and an index."""

    target: Pair
    made: Single
    reads: tuple[Pair, ...]


@dataclass(frozen=True, slots=True)
class Plain:
    """Numbered lines that run once."""

    lines: tuple[Pair, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """Numbered lines that run in each instance of a unit."""

    unit: int
    down: bool
    lines: tuple[Pair, ...]


Stretch: TypeAlias = Plain | Repeat


@dataclass(frozen=True, slots=True)
class Held:
    """What comes from outside or is kept: its value, in the instances of which unit, how it lies along each axis."""

    value: Number
    per: Some | None
    lying: tuple[Kind, ...]


@dataclass(frozen=True, slots=True)
class Program:
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
    if isinstance(of, tuple):
        return [term(one) for one in of]
    kind = type(of)
    if kind not in _PARTS:
        _PARTS[kind] = "pair" if kind is Pair else kind.__name__, tuple(field.name for field in fields(kind))
    name, names = _PARTS[kind]
    return (name, *(term(getattr(of, part)) for part in names)) if names else name


_PARTS: dict[type, tuple[str, tuple[str, ...]]] = {}
"""Type -> the constructor of Coq, and the fields that are its arguments; filled as they are met."""
