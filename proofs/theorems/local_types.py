"""The forward/backward table of local SPMD types, made of rows that were proved.

Its types are [I], [R], [P], and V for [S]. A row that sends nothing is a `convert` where it keeps the value and a
`reinterpret` where it keeps the bytes; any other is a collective, by name. What the rows do to a tensor on any mesh is
`send_sound`, and that an op keeps its types `einsum_sound` and `row_sound`, in proofs/coq/kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

from telling import PROVED, Account

from placealg import placement
from placealg.placement import Kind


@dataclass(frozen=True, slots=True)
class LocalRow:
    """A row of the table of local types that was proved: what its local sums, and the value, are multiplied by."""

    forward: str
    backward: str
    sums: str
    value: str
    theorem: str


def local(source: Kind | str, target: Kind | str, event: str) -> str:
    """A redistribution, or a `reinterpret`, in the words of the table of local types.

    >>> local(Kind.I, Kind.S, "slice"), local(Kind.P, Kind.I, "all_reduce")
    ('I->V convert', 'P->I all_reduce')
    """
    one, two = (str(kind).strip("[]").replace("S", "V") for kind in (source, target))
    return f"{one}->{two} {event if event in placement.SENT or event == 'reinterpret' else 'convert'}"


def tell_local_types(account: Account, rows: Sequence[LocalRow]) -> None:
    """Print the table of local types, and hold it to be all of it: each pair of types once, V->V, and R, V, P as bytes.

    A backward is a row too, and its backward is the row again.
    """
    head = LocalRow("forward", "backward", "sums x", "value x", "proved above as")
    account.say("\n".join(f"  {r.forward:19} {r.backward:19} {r.sums:7} {r.value:8} {r.theorem}"
                          for r in (head, *rows)))
    pairs = {(*pair, False) for pair in (*permutations("IRVP", 2), "VV")}
    pairs |= {(*pair, True) for pair in combinations("RVP", 2)}
    told = {(row.forward[0], row.forward[3], row.forward.endswith("reinterpret")) for row in rows}
    back = {row.forward: row.backward for row in rows}
    known = [claim.claim for claim in account.told if claim.kind == PROVED]
    account.run(f"all {len(pairs)} rows of the table of local types are told, each by a theorem above; the backward of "
                "each is a row,\n           and its backward is the row again",
                told == pairs and len(rows) == len(pairs) and all(back.get(back[f]) == f for f in back)
                and all(any(claim.startswith(row.theorem) for claim in known) for row in rows))
