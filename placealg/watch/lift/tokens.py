"""Which tokens a step has read: whole numbers that no op of the step has computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from placealg.watch.lift.field import Array
from placealg.watch.lift.messages import communicates
from placealg.watch.lift.ranks import Run
from placealg.watch.lift.rules import moves
from placealg.watch.lift.trace import Trace

WHOLE = ("int64", "int32")


def read_by(trace: Trace, phases: Sequence[str]) -> list[Array]:
    """The arrays of whole numbers that ops of some phases read, which nothing but a draw has made."""
    computed: set[int] = set()
    found: list[Array] = []
    for op in trace.ops:
        if op.phase in phases and op.name != "aten::copy_" and not communicates(op):
            found += [place.held for place in op.read if place.dtype in WHOLE and place.held is not None
                      and place.store not in computed and place.held.ndim and place.held.size > 1]
        counted = op.name in ("aten::arange", "aten::linspace")
        whole = [p for p in op.read if p.dtype in WHOLE]
        made = whole and all(p.store in computed for p in whole)
        if counted or made or not (op.drawn or moves(op.name.removeprefix("aten::").removesuffix("_"))):
            computed.update(p.store for p in op.written)
    return found


def lines(array: Array) -> tuple[set[tuple[int, ...]], set[tuple[int, ...]]]:
    """The rows of an array, and its columns: Megatron's tokens are columns inside of its loss."""
    rows = array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array.reshape(1, -1)
    return set(map(tuple, rows.tolist())), set(map(tuple, rows.T.tolist())) if len(rows) > 1 else set()


def same_tokens(ranks: Sequence[Trace], single: Trace, phases: Sequence[str]) -> bool | None:
    """Whether ranks together read in some phases what a single device reads: the same sequences, or tokens as often.

    None where neither reads any whole numbers.
    """
    together, alone = [a for trace in ranks for a in read_by(trace, phases)], read_by(single, phases)
    if not together and not alone:
        return None
    if _all_among(together, alone) and _all_among(alone, together):
        return True
    mine, other = (Counter(t for row in set().union(*(lines(a)[0] for a in arrays)) for t in row)
                   for arrays in (together, alone))
    if set(mine) != set(other) or not mine:
        return False
    return len({mine[t] * 1.0 / other[t] for t in mine}) == 1


def same_inputs(ranks: Sequence[Run], single: Run) -> bool | None:
    """Whether ranks' modules together read the rows that the single device's do, of numbers that are no whole ones.

    None where this is not so: what ranks send in forward may be among what is read.
    """
    together, alone = [a for one in ranks for a in one.inputs], single.inputs
    return True if together and alone and _all_among(together, alone) and _all_among(alone, together) else None


def _all_among(arrays: Sequence[Array], others: Sequence[Array]) -> bool:
    """Whether each array of several sequences is of sequences that stand in the others, by rows or by columns."""
    known = set().union(*(line for other in others for line in lines(other)))
    several = [lines(array) for array in arrays if array.ndim > 1] or [lines(array) for array in arrays]
    return all(rows <= known or (columns and columns <= known) for rows, columns in several) and bool(several)
