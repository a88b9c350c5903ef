"""Which tokens a step has read: whole numbers that no op of the step has computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from placealg.watch.lift.messages import communicates
from placealg.watch.lift.rules import moves
from placealg.watch.lift.trace import Trace

WHOLE = ("int64", "int32")


def rows_of(trace: Trace) -> set[tuple[int, ...]]:
    """The rows of whole numbers that forward reads, which nothing but a draw has made."""
    computed: set[int] = set()
    found: set[tuple[int, ...]] = set()
    for op in trace.ops:
        if op.phase in ("forward", "between") and op.name != "aten::copy_" and not communicates(op):
            for place in op.read:
                if place.dtype in WHOLE and place.held is not None and place.store not in computed and place.held.ndim:
                    rows = place.held.reshape(-1, place.held.shape[-1])
                    if rows.size > 1:
                        found.update(map(tuple, rows.tolist()))
        if not op.drawn and not moves(op.name.removeprefix("aten::").removesuffix("_")):
            computed.update(p.store for p in op.written)
    return found


def same_tokens(ranks: Sequence[Trace], single: Trace) -> bool | None:
    """Whether ranks together read what a single device reads: the same rows, or the same tokens as often.

    None where neither reads any whole numbers.
    """
    together, alone = set().union(*map(rows_of, ranks)), rows_of(single)
    if together == alone:
        return True if alone else None
    mine, other = (Counter(t for row in rows for t in row) for rows in (together, alone))
    if set(mine) != set(other) or not mine:
        return False
    return len({mine[t] * 1.0 / other[t] for t in mine}) == 1
