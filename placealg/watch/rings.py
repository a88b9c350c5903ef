"""Rings: what is passed from rank to rank, hop by hop, against the turns that the program says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from placealg.watch.differences import Difference, Tally
from placealg.watch.expected import Expected
from placealg.watch.seen import Message, RankSeen, Seen


def is_hop(message: Message) -> bool:
    """Whether a message may be a hop of a ring."""
    return message.verb in ("send", "recv") and len(message.axes) == 1


def turns(seen: Seen, rank: RankSeen, got: Sequence[Message], want: Sequence[Expected], where: str,
          tally: Tally) -> Iterator[Difference]:
    """How the hops of one unit in one phase differ: each turn sends once to a neighbour, and gets once from the other.

    A sum goes home in as many turns as there are other ranks, or in one more where each rank adds its own part first.
    """
    axis = want[0].axes[0]
    size = seen.mesh[axis]
    count = len(want) * (size - 1)
    first = sum(1 for e in want if e.event.op == "sum")
    own = rank.coordinates.get(axis, 0)
    at = {r.rank: r.coordinates.get(axis, 0) for r in seen.ranks}
    paths = " and ".join(dict.fromkeys(e.event.path for e in want))
    for verb in ("send", "recv"):
        mine = [m for m in got if m.verb == verb and m.axes == (axis,)]
        steps = {(at[m.root] - own) % size for m in mine if m.root in at}
        if len(mine) not in (count, count + first):
            yield Difference("message", want[0].unit, f"{where}: {len(mine)} hops {verb} for {paths}; the program has "
                             f"{count}", mine[0].line if mine else "")
        elif len(steps) > 1 or steps - {1, size - 1}:
            yield Difference("message", want[0].unit, f"{where}: hops {verb} with several neighbours for {paths}; a "
                             "ring goes one way", mine[0].line)
        else:
            tally.messages += len(mine)
            if len(mine) > count:
                tally.legal.setdefault(f"turns {axis}", f"sums go round {axis} with one turn more than the program "
                                       "says: each rank adds its own part first")
    for message in got:
        if message.axes != (axis,):
            yield Difference("message", want[0].unit, f"{where}: {message.verb}[{','.join(message.axes)}], which the "
                             "program lacks", message.line)
