"""What a collective sends across the boundary of a node, at least: a factor of the full tensor, for a device's card.

A group of n ranks lies in n/r nodes, r of its ranks in each; the nodes are full, so that other groups of the same axes
take the rest of each. What must enter a node, or leave it, is shared by the cards of the group's ranks in it. For
all_gather it is the shards of the other nodes, for reduce_scatter what the node adds up for them, for all_reduce both
(Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009); of all_to_all the pairs of ranks in two nodes; of
the rings and chains of `shift` and `send` only one rank of a node has its next neighbour outside. What other verbs send
is taken as nothing, so that the factor is a lower bound for whatever algorithm runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from math import gcd

from placealg.arith import Monomial
from placealg.frozen import FrozenMap
from placealg.mesh import IN_NODE
from placealg.polynomial import Polynomial

CROSSING: Mapping[str, str] = FrozenMap({
    "all_gather": "1/r - 1/n", "reduce_scatter": "1/r - 1/n", "all_reduce": "2/r - 2/n", "all_to_all": "1/n - r/n**2",
    "shift": "Min(1, n/r - 1)*(1/r - 1/(n*r))", "send": "Min(1, n/r - 1)/r",
})
"""Collective -> what of the tensor a card carries across the node's boundary; n ranks, r of them in a node."""

INNERMOST = ("tp", "cp", "ep", "dp_shard", "dp", "dp_replicate", "pp")
"""The axes in the order in which their ranks fill a node where nothing else is said."""

NOTHING = Polynomial()


def in_node(axis: str) -> str:
    """The name of the number of ranks of an axis that lie in one node.

    >>> in_node("tp")
    'tp_in_node'
    """
    return axis + IN_NODE


@lru_cache(maxsize=1024)
def crossing(collective: str, axes: tuple[str, ...]) -> Polynomial:
    """The factor of a collective over a product of axes.

    >>> crossing("all_gather", ("dp",))
    -1/dp + 1/dp_in_node
    >>> crossing("all_reduce", ("dp",)).evaluate({"dp": 16, "dp_in_node": 8})
    Fraction(1, 8)
    """
    if collective not in CROSSING or not axes:
        return NOTHING
    n, r = (Polynomial.of([Monomial.of(*names)]) for names in (sorted(axes), sorted(map(in_node, axes))))
    return Polynomial.read(CROSSING[collective], {"n": n, "r": r})


def places(sizes: Mapping[str, Fraction], names: Iterable[str], per_node: int) -> dict[str, Fraction]:
    """The ranks of each axis in one node, innermost axes first.

    >>> places({"dp": Fraction(32), "tp": Fraction(4)}, ("dp", "tp"), 8)
    {'tp_in_node': Fraction(4, 1), 'dp_in_node': Fraction(2, 1)}
    """
    left, found = per_node, {}
    for axis in sorted(names, key=lambda a: INNERMOST.index(a) if a in INNERMOST else len(INNERMOST)):
        inside = gcd(int(sizes[axis]), left)
        found[in_node(axis)] = Fraction(inside)
        left //= inside
    return found
