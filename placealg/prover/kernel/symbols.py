"""The numbers under which dims, ways of splitting, functions, atoms and units stand in a program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from placealg.models.graph import Graph
from placealg.prover.kernel.network import ALONG, ROTATED, VALUE, WIDTH
from placealg.prover.kernel.program import Pair, Powers

ROOT = "rank 0"
"""The way by which rank 0 of an axis has everything."""


class Symbols:
    """Names and their numbers, given in the order in which they are asked for; dims of a graph come first.

    `like` says which dims renames and rotations take for each other, `touch` which dims a way reads that is no dim.
    """

    def __init__(self, graph: Graph, ways: Mapping[str, tuple[str, ...]]) -> None:
        self.functions: dict[str, int] = {}
        self.atoms: dict[str, int] = {}
        self.units: dict[str, int] = {}
        dims = [d for t in graph.tensors.values() for d in t.dims]
        rotated = {d: d + ROTATED for op in graph.ops if op.kind in ("rope", "unit", *ALONG)
                   for d in op.over[:1 if op.kind in ALONG else None] or (WIDTH,)}
        dims += [*(d for d in rotated if d not in dims), VALUE]
        turned = list(rotated.values())
        self.ways = {name: k for k, name in enumerate(dict.fromkeys([*dims, *turned, ROOT, *ways]))}
        self.like = {d: d for d in self.ways}
        for op in graph.ops:
            self.like.update((new, self.like[old]) for old, new in op.rename.items())
        self.like.update((turned, self.like[d]) for d, turned in rotated.items())
        self.touch = {ROOT: tuple(dict.fromkeys([*dims, *turned])), **ways}

    def dims(self, names: Iterable[str]) -> tuple[int, ...]:
        """The numbers of dims."""
        return tuple(self.ways[d] for d in names)

    def function(self, name: str) -> int:
        """The number of a function of rows."""
        return self.functions.setdefault(name, len(self.functions))

    def unit(self, name: str) -> int:
        """The number of a unit that has several instances."""
        return self.units.setdefault(name, len(self.units))

    def atom(self, name: str) -> int:
        """The number of a size or a count."""
        return self.atoms.setdefault(name, len(self.atoms))

    def powers(self, factor: Mapping[str, int]) -> Powers:
        """A monomial."""
        at = {self.atom(name): n for name, n in factor.items() if n}
        return tuple(Pair(max(at.get(k, 0), 0), max(-at.get(k, 0), 0)) for k in range(max(at, default=-1) + 1))

    def names(self, renamed: Mapping[str, str]) -> tuple[Pair, ...]:
        """Dims of an operand and of a result."""
        return tuple(Pair(self.ways[old], self.ways[new]) for old, new in renamed.items())
