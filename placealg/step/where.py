"""The ranks on which an event runs: clauses that all hold."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from placealg.errors import InputError

_CLAUSE = re.compile(r"(?:all|(not)?(?:owner\((\w+)\)|rank\((\w+)\)=(\d+|last)))\Z")

LAST_RANK = -1
"""What stands for the number of the last rank along an axis, whatever its size."""


@dataclass(frozen=True, slots=True)
class Clause:
    """One condition of `where`: the rank that owns the element along an axis, a fixed rank, or all but that one."""

    axis: str
    rank: int | None = None
    but: bool = False

    def __repr__(self) -> str:
        number = "last" if self.rank == LAST_RANK else self.rank
        text = f"owner({self.axis})" if self.rank is None else f"rank({self.axis})={number}"
        return f"not {text}" if self.but else text


def meets(clauses: Iterable[Clause], size: int) -> bool:
    """Whether a rank along an axis of this size meets all clauses on that axis, if any rank may be the owner.

    >>> middle = parse_where("not rank(dp)=0, not rank(dp)=last", ("dp",))
    >>> [n for n in range(1, 6) if meets(middle, n)]
    [3, 4, 5]
    """
    listed = tuple(clauses)
    owns = {c.but for c in listed if c.rank is None}
    if owns == {True, False} or (True in owns and size == 1):
        return False
    numbers = [(size - 1 if c.rank == LAST_RANK else c.rank, c.but) for c in listed if c.rank is not None]
    tried = {*range(len(numbers) + 1), *(n for n, _ in numbers)}
    return any(k < size and all((k == n) != but for n, but in numbers) for k in tried)


def least_size(clauses: Iterable[Clause]) -> int | None:
    """The least size of an axis at which some rank meets all clauses on it; None if there is none.

    Each clause leaves out one rank at most, or wants one, so that few sizes from 1, or beyond a named rank, are tried.
    """
    listed = tuple(clauses)
    least = {1, *(c.rank + 1 for c in listed if c.rank is not None)}
    tried = sorted({n + more for n in least for more in range(len(listed) + 2)} - {0})
    return next((n for n in tried if meets(listed, n)), None)


def parse_where(text: str, axes: tuple[str, ...]) -> tuple[Clause, ...]:
    """Read comma-joined `all`, `owner(axis)`, `rank(axis)=k`, `rank(axis)=last`, and `not` before one of these.

    >>> parse_where("owner(dp_shard), not rank(dp_replicate)=last", ("dp_replicate", "dp_shard"))
    (owner(dp_shard), not rank(dp_replicate)=last)
    """
    clauses = []
    for part in (p.strip() for p in text.split(",") if p.strip()):
        found = _CLAUSE.match(part.replace(" ", ""))
        if not found:
            raise InputError(f"where = '{part}' is not a condition; valid: all, owner(AXIS), rank(AXIS)=K, "
                             "rank(AXIS)=last, and not before one of these")
        axis = found[2] or found[3]
        if axis is None:
            continue
        if axis not in axes:
            raise InputError(f"where names axis '{axis}', which the mesh lacks", name=axis, valid=axes)
        number = None if found[4] is None else LAST_RANK if found[4] == "last" else int(found[4])
        clauses.append(Clause(axis, number, found[1] is not None))
    for axis in dict.fromkeys(c.axis for c in clauses):
        if least_size(c for c in clauses if c.axis == axis) is None:
            raise InputError(f"where = '{text}' holds on no rank, whatever the size of {axis}")
    return tuple(clauses)
