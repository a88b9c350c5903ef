"""How parameters rest on the ranks, beside the modes that the strategy says: whole, or split over which axes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

from placealg.arith import Monomial
from placealg.errors import InputError
from placealg.models.model import Model
from placealg.step.event import Group
from placealg.step.program import Step
from placealg.watch.differences import Difference
from placealg.watch.names import Named
from placealg.watch.seen import Chain, RankSeen, Seen


def split_over(step: Step, group: Group) -> set[str]:
    """The axes along which a rank holds a part of a group's parameters when the step starts, stages left out."""
    sliced = {a for e in step.events if e.group == group.name and e.phase == "init" and e.verb == "slice"
              for a in e.axes}
    return {*group.split, *sliced} - {step.reference.pipeline.axis}


def sizes_of(model: Model) -> dict[str, int]:
    """Parameter -> its elements, of those whose sizes are known."""
    return {p.name: int(prod(p.dims.values(), start=Monomial()).evaluate(model.sizes)) for p in model.parameters
            if known(p.dims.values(), model)}


def known(sizes: Iterable[Monomial], model: Model) -> bool:
    """Whether sizes are numbers."""
    return all(set(n.names()) <= set(model.sizes) for n in sizes)


def resting(step: Step, seen: Seen, rank: RankSeen, names: Mapping[str, Named], model: Model,
            group_of: Mapping[str, Any]) -> Iterator[Difference]:
    """Parameters that are whole along axes where the program splits them, or the other way round.

    Of a DTensor placements say it. Of a plain tensor its size tells only whether it is whole.
    """
    whole = sizes_of(model)
    for chain in rank.chains:
        named = names[chain.parameter]
        group: Group = group_of[named.parameter]
        _fits(chain, sum(whole.get(p, 0) for p in (named.parameter, *named.also)), seen, model)
        want = [a for a in seen.mesh if a in split_over(step, group) and seen.mesh[a] > 1]
        got = placed(chain, want, sum(whole.get(p, 0) for p in (named.parameter, *named.also)), seen)
        if got is None or got == want:
            continue
        yield Difference("placement", group.name, f"{chain.parameter} rests {_words(got)}; the program holds it "
                         f"{_words(want)}", "", (), (chain.parameter,))


def _fits(chain: Chain, whole: int, seen: Seen, model: Model) -> None:
    """Raise InputError where a parameter is of a model of other sizes: what all ranks hold cannot be the whole.

    Some rows more or less are no other size: frameworks fill them up.
    """
    held = prod(chain.shape) if chain.placed else chain.elements
    most = held if chain.placed else held * seen.world
    if whole and held and (held > 2 * whole or 2 * most < whole):
        raise InputError(f"the run's model has other sizes than {model.name}: of {chain.parameter} "
                         f"{'there are' if chain.placed else 'a rank holds'} {held} elements, and it has {whole}")


def placed(chain: Chain, want: list[str], whole: int, seen: Seen) -> list[str] | None:
    """The axes over which a parameter is split, None where nothing tells."""
    if chain.placed:
        return [a for a in seen.mesh if a in chain.shard and seen.mesh[a] > 1]
    if not whole or not chain.elements:
        return None
    if chain.elements == whole:
        return []
    return want if want else [f"its ranks: {chain.elements} of {whole} elements"]


def _words(axes: list[str]) -> str:
    return f"split over {', '.join(axes)}" if axes else "whole"
