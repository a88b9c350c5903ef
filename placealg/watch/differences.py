"""What is told of a run that is not its program: differences, what could not be followed, and how much was matched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Table = Mapping[str, Any]
"""One [[edit]] table."""

@dataclass(frozen=True)
class Difference:
    """One way in which the run is not the program: of which parameter, which event, in words, and as edits.

    `kind` names the sort of difference. Without `edits` the language has no words for it; `tables` are entries of the
    strategy's tables that say it in their place. `factor` is by how much a contribution counts, as a multiple of the
    program's, where that is what differs.
    """

    kind: str
    group: str
    says: str
    line: str = ""
    edits: tuple[Table, ...] = ()
    parameters: tuple[str, ...] = ()
    factor: float | None = None
    ranks: tuple[int, ...] = ()
    tables: Mapping[str, Table] = field(default_factory=dict)


@dataclass(frozen=True)
class Unseen:
    """Something that could not be followed, so that nothing is claimed of it: of which parameter, what, where."""

    parameter: str
    what: str
    ranks: tuple[int, ...] = ()


@dataclass
class Tally:
    """What was matched: gradient paths and messages, each of how many; how, where it is not word by word.

    `not_compared` says what was left out, and why.
    """

    paths: int = 0
    of_paths: int = 0
    messages: int = 0
    of_messages: int = 0
    apart: int = 0
    legal: dict[str, str] = field(default_factory=dict)
    not_compared: list[str] = field(default_factory=list)


def merged(raw: Sequence[tuple[int, Difference]]) -> tuple[Difference, ...]:
    """Differences of all ranks and of parameters of one group, each told once, in the order in which they were met."""
    found: dict[tuple[str, str, str], list[tuple[int, Difference]]] = {}
    for rank, d in raw:
        found.setdefault((d.kind, d.group, str(d.edits) if d.edits else d.says), []).append((rank, d))
    every = []
    for alike in found.values():
        first = alike[0][1]
        names = tuple(dict.fromkeys(p for _, d in alike for p in d.parameters))
        ranks = tuple(sorted({r for r, _ in alike if r >= 0}))
        every.append(Difference(first.kind, first.group, first.says, first.line, first.edits, names, first.factor,
                                ranks, first.tables))
    return tuple(every)
