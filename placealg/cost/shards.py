"""Shares that are not whole numbers: what a device holds, and what it sends, if shares are padded.

Along the axes that split a group's parameters by their dims sizes divide, as the split rule demands. Along the others
an uneven share is padded to the largest one: every rank holds, and sends, that much. Where another state is sharded
over further axes, too, and these cut outside, as `placement.nested` says, a share is a block of each of their blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from placealg.arith import Monomial
from placealg.cost.held import Share
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.placement import nested
from placealg.step.program import Group, Reference


@dataclass(frozen=True, slots=True)
class Piece:
    """⌈(sum of `lengths`) / `ranks`⌉ times `width`: elements of one instance."""

    lengths: tuple[Monomial, ...]
    ranks: Monomial
    width: Monomial


def filled(reference: Reference, group: Group, share: Share) -> Share:
    """The axes of a share along which it is padded; none unless the strategy asks for it."""
    cut = share - frozenset(group.split) if reference.pad != "none" else frozenset()
    if cut and reference.abstract:
        raise InputError(f'[shards] pad = "{reference.pad}" needs the shapes of parameters, which {reference.model} '
                         "lacks: name a model")
    return cut


def largest_share(reference: Reference, group: Group, cut: Share) -> tuple[Piece, ...]:
    r"""The share of one instance on the device that holds most, cut and padded along `cut`.

    It is stated as if the axes that split the group by its dims did not: their sizes, which divide, are applied on top.

    >>> from placealg.models.transformer import mlp
    >>> from placealg.step.derive import derive
    >>> from placealg.strategy.file import parse_strategy_file
    >>> said = parse_strategy_file('base = "zero3"\n[shards]\npad = "rows"').strategy
    >>> step = derive(said, mlp())
    >>> largest_share(step.reference, step.reference.group("head.weight"), frozenset({"dp"}))
    (Piece(lengths=(V,), ranks=dp, width=h),)
    """
    levels = nested((a for a in reference.mesh.names if a not in group.split), cut, [*group.shares, cut])
    blocks = Monomial.of(*sorted({a for level in levels for a in level} - cut))
    ranks = Monomial.of(*sorted(cut)) * blocks
    if reference.pad == "elements":
        whole = Monomial.of(*group.split)
        return (Piece(group.elements, ranks * whole, whole * blocks),)
    return tuple(Piece((length,), ranks * local, elements / length * local * blocks)
                 for elements, length, local in _rows(reference, group))


def _rows(reference: Reference, group: Group) -> Iterable[tuple[Monomial, Monomial, Monomial]]:
    """Per parameter: its elements, the number of its rows, and the ranks between which its dims already split these.

    An axis that does not split the rows splits another dim, which leaves the number of rows as it is.
    """
    for parameter, elements, rows in zip(group.parameters, group.elements, group.rows, strict=True):
        splits = reference.split_dims.get(parameter, FrozenMap())
        yield (elements, Monomial.product(rows.values()),
               Monomial.of(*(axis for axis in group.split if splits.get(axis) in rows)))
