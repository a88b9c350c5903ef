"""The ranks on which an event runs: clauses that all hold."""

from __future__ import annotations

import re
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
    return tuple(clauses)
