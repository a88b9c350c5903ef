"""What the kernel's language has of a step's reference, and where its loop over microbatches is."""

from __future__ import annotations

from collections.abc import Sequence

from placealg.prover.kernel.fields import Outside
from placealg.step.event import MICROBATCH, Group
from placealg.step.program import EventLoop, Node, Step

WEIGHTINGS = {"token_mean": "TokenMean", "microbatch_mean": "MicrobatchMean", "sum": "Sum"}
_MERGED = {"mean": "MeanTaken", "sum": "SumTaken", "max": "MostTaken"}


def around_loop(step: Step) -> tuple[Sequence[Node], EventLoop, Sequence[Node]]:
    """What a step does before, in and behind its loop over microbatches."""
    nodes = step.tree()
    loops = [(k, n) for k, n in enumerate(nodes) if isinstance(n, EventLoop) and n.name == MICROBATCH]
    if len(loops) != 1:
        raise Outside("", f"{len(loops)} loops over microbatches")
    k, loop = loops[0]
    return nodes[:k], loop, nodes[k + 1:]


def check_reference(step: Step) -> None:
    """Raise Outside if the reference has what the language lacks."""
    r = step.reference
    for wrong, told in (
        (bool(r.pipeline.axis), "a pipeline"),
        (r.weighting not in WEIGHTINGS, f"weights of tokens: {r.weighting}"),
        (bool(r.random_keys), "random streams keyed by rank"),
        (any(g.locality != ("matrix" if g.whole_reads else "elementwise") for g in r.groups),
         "an update that reads neither its element nor whole matrices"),
    ):
        if wrong:
            raise Outside("", f"{told}: not in the kernel")


def mover(group: Group) -> str:
    """What moves a group."""
    if not group.statistic:
        return "Nothing" if group.frozen else "Gradient"
    if group.merge not in _MERGED:
        raise Outside(group.name, f"merge = {group.merge}")
    return _MERGED[group.merge]
