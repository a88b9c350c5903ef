"""Positions: the coordinates along one axis that the calculus has names for.

A position is its name, since formulas and certificates are written with it and decision diagrams sort and hash it; what
a name means is made and read here, and nowhere else:

    c             the device under scrutiny (a Skolem device: any rank, the same throughout a formula)
    unit          the rank that computes the contribution
    peer          any rank at all; counter: any rank that counts an element of a norm
    7             the rank with that number; last: the last one along the axis; not 7: any rank but that one
    own:L         the owner of the element under layout L; other:L, of a second element of its matrix; any:L, of any
    at:DIM        the owner of the element's index of a dim
    at:DIM!L      the rank that the device takes for that owner, in an order L of its own
    OP/DIM        the owner of an index over which an op contracted
    OP*K*OTHER/DIM  the same, of the K-th factor of a product by OP: an index of its own, whatever the others' are
    stage:PART    the stage of a pipeline on which a part of the model runs
    P~AXIS        a position that differs from rank to rank along AXIS
    P^AXIS=Q      that position, evaluated on the rank at Q along AXIS
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NewType

Position = NewType("Position", str)
"""A coordinate along one axis, by its name."""

Pairs = frozenset[tuple[str, Position]]
"""(axis, position) pairs: the ranks that are at all of them."""

DEVICE = Position("c")
UNIT = Position("unit")
PEER = Position("peer")
COUNTER = Position("counter")
OWNER = Position("own:own")
LAST = Position("last")

_OWN, _OTHER, _ANY, _AT, _STAGE, _BUT = "own:", "other:", "any:", "at:", "stage:", "not "
_ORDER, _ALONG, _CONTRACTED, _NEIGHBOUR = "!", "~", "/", "'"


def rank(number: int) -> Position:
    """The rank with a number."""
    return Position(str(number))


def owner(layout: str, along: str = "") -> Position:
    """The owner of the element under a layout; with `along`, a rank's own choice of it, which differs along that axis.

    >>> owner("own"), owner("shuffled", "dp")
    ('own:own', 'own:shuffled~dp')
    """
    return Position(f"{_OWN}{layout}{_ALONG}{along}" if along else _OWN + layout)


def at(dim: str) -> Position:
    """The owner of the element's index of a dim."""
    return Position(_AT + dim)


def drawn(dim: str, order: str, axis: str) -> Position:
    """The position along `axis` that the device takes for the owner of the element's index of `dim`."""
    return Position(f"{at(dim)}{_ORDER}{order}{_ALONG}{axis}")


def stage(part: str) -> Position:
    """The stage on which a part of the model runs: a repeated unit, or an end of the pipeline."""
    return Position(_STAGE + part)


def neighbour(position: Position) -> Position:
    """The stage of the neighbouring instance of the unit whose stage a position is."""
    return Position(position + _NEIGHBOUR)


def path_index(dim: str, number: int = 0) -> Position:
    """The owner of an index of `dim` over which some op contracted, with a number in place of the op.

    >>> path_index("seq"), path_index("seq", 1)
    ('path/seq', 'path2/seq')
    """
    return Position(f"path{number + 1 if number else ''}{_CONTRACTED}{dim}")


def all_but(position: Position) -> Position:
    """Any rank but the one at a position: what stands there stands elsewhere.

    >>> all_but(rank(1)), excluded(all_but(LAST)), excluded(LAST)
    ('not 1', 'last', None)
    """
    return Position(_BUT + position)


def excluded(position: Position) -> Position | None:
    """The position that `all_but` excludes; None if the position excludes none."""
    return Position(position[len(_BUT):]) if position.startswith(_BUT) else None


def example(number: int) -> Position:
    """A fresh Skolem constant: the `number`-th witness rank."""
    return Position(f"some{number}")


def is_rank(position: str) -> bool:
    """Whether a position is the number of a rank."""
    return position.isdigit()


def is_owner(position: str) -> bool:
    """Whether a position is the owner of the element under some layout."""
    return position.startswith(_OWN)


def is_contracted(position: str) -> bool:
    """Whether a position is the owner of an index over which an op contracted."""
    return _CONTRACTED in position


def layout_of(position: str) -> str:
    """The layout under which a position owns the element, or another one of its matrix; "" if it is no owner.

    >>> layout_of(OWNER), layout_of(of_another(owner("even"))), layout_of(DEVICE)
    ('own', 'even', '')
    """
    return position.partition(":")[2] if position.startswith((_OWN, _OTHER, _ANY)) else ""


def dim_of(position: str) -> str:
    """The dim whose index a position owns; "" if it owns none.

    >>> dim_of(at("batch")), dim_of(drawn("batch", "shuffled", "dp")), dim_of("0")
    ('batch', 'batch', '')
    """
    return position[len(_AT):].partition(_ORDER)[0] if position.startswith(_AT) else ""


def contracted_dim(position: str) -> str:
    """The dim of the index over which an op contracted, of which a position is the owner."""
    return position.rpartition(_CONTRACTED)[2]


def of_another(position: Position) -> Position:
    """The owner of another element of the same matrix, if the position is an owner; else the position."""
    return Position(_OTHER + position[len(_OWN):]) if is_owner(position) else position


def of_any(position: Position) -> Position:
    """The owner of any element of the group, if the position is an owner; else the position."""
    return Position(_ANY + position[len(_OWN):]) if is_owner(position) else position


def of_example(position: Position, number: int) -> Position:
    """The owner of the `number`-th of some elements, if the position is an owner; else the position.

    >>> of_example(owner("own"), 3), of_example(rank(0), 3)
    ('own:3.own', '0')
    """
    return Position(f"{_OWN}{number}.{position[len(_OWN):]}") if is_owner(position) else position


def taken_at(position: Position) -> tuple[Position, str, Position]:
    """The arguments of the `elsewhere` that made a position: the position, the axis, the rank along it.

    A position that `elsewhere` did not make has "" for the axis and the rank.

    >>> taken_at(elsewhere(owner("mine", "dp"), "dp", DEVICE)), taken_at(OWNER)
    (('own:mine', 'dp', 'c'), ('own:own', '', ''))
    """
    order, _, taken = position.partition("^")
    axis, _, there = taken.partition("=")
    return Position(order), axis, Position(there)


def of_the_first(position: Position) -> Position | None:
    """The owner of the element under scrutiny, if the position is that of another one of its matrix; else None.

    >>> of_the_first(of_another(OWNER)), of_the_first(OWNER)
    ('own:own', None)
    """
    return Position(_OWN + position[len(_OTHER):]) if position.startswith(_OTHER) else None


def varies(position: str) -> str:
    """The axis along which a position differs from rank to rank; "" if it is the same on all ranks.

    >>> varies("own:of_stage~pp"), varies("own:own"), varies(elsewhere(owner("of_stage", "pp"), "pp", rank(0)))
    ('pp', '', '')
    """
    return position.partition(_ALONG)[2]


def elsewhere(position: Position, axis: str, there: Position) -> Position:
    """A position, evaluated on the rank at `there` along `axis`.

    >>> elsewhere(owner("of_stage", "pp"), "pp", PEER), elsewhere(owner("of_stage", "pp"), "dp", PEER)
    ('own:of_stage^pp=peer', 'own:of_stage~pp')
    """
    if not position.endswith(_ALONG + axis):
        return position
    return Position(f"{position.removesuffix(_ALONG + axis)}^{axis}={there}")


def inside(rename: Callable[[Position], Position]) -> Callable[[Position], Position]:
    """The renaming of a position, applied also to the rank on which the position is evaluated.

    >>> inside(lambda p: Position(p.replace("at:seq", "at:keys")))(Position("at:seq!mine^dp=at:seq"))
    'at:keys!mine^dp=at:keys'
    """
    def renamed(position: Position) -> Position:
        order, of, there = position.partition("=")
        return Position(rename(Position(order)) + of + (renamed(Position(there)) if of else ""))

    return renamed


def of_factor(op: str, number: int) -> Callable[[Position], Position]:
    """The renaming of the contracted indices of one factor of a product, which tells them from those of the others.

    >>> of_factor("layer.y", 1)(behind("layer.x", lambda dim: True)(at("ffn"))), of_factor("layer.y", 1)(at("ffn"))
    ('layer.y*1*layer.x/ffn', 'at:ffn')
    """
    return inside(lambda position: Position(f"{op}*{number}*{position}") if is_contracted(position) else position)


def behind(op: str, contracted: Callable[[str], bool]) -> Callable[[Position], Position]:
    """The renaming of positions by an op that contracts the dims for which `contracted` is true.

    >>> behind("layer.y", lambda dim: dim == "ffn")(at("ffn")), behind("layer.y", lambda dim: False)(at("ffn"))
    ('layer.y/ffn', 'at:ffn')
    """
    def called(position: Position) -> Position:
        dim = dim_of(position)
        return Position(f"{op}{_CONTRACTED}{position[len(_AT):]}") if dim and contracted(dim) else position

    return inside(called)
