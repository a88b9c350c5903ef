"""Two rules that a strategy's lists leave to whoever runs them, written here for the simulator alone.

Along which dim an axis splits an op, and in which order a stage of a pipeline runs its microbatches: derivation and
prover have both in `placealg.step`, in other words, so that an error in either shows as a difference of a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from placealg.errors import InputError
from placealg.model.graph import Graph, Op
from placealg.step.pipeline import Item, Pipeline

WHOLE = "none"
"""The word by which an entry keeps ops whole."""

_ALSO = {"heads": ("kv", "group"), "ffn": ("dense_ffn",)}
"""The dims for which a word stands besides its own."""

_ROWS_IN_PARTS = ("lookup", "cross_entropy")
"""The kinds of op that can be split along the dims that they look up or normalise over."""


def split_dim(entries: Sequence[str], op: Op, graph: Graph) -> str:
    """The dim by which an axis with these entries splits an op: that of the first entry which speaks of it and fits.

    WHOLE where that entry keeps the op whole, "" where none speaks of it.

    >>> from placealg.model.transformer import mlp
    >>> graph = mlp().graph
    >>> [split_dim(("loss.none", "ffn", "batch"), op, graph) for op in (graph.ops[-1], *graph.of_unit("layer")[-2:])]
    ['none', 'ffn', 'batch']
    """
    read = [op.rename.get(d, d) for name in op.inputs for d in graph.tensors[name].dims]
    dims = dict.fromkeys([*graph.tensors[op.output].dims, *read])
    regions = op.region.split(".")
    for entry in entries:
        where, _, word = entry.rpartition(".")
        if where not in ("", op.output, *regions):
            continue
        if word == WHOLE:
            return WHOLE
        named = [d for d in (word, *_ALSO.get(word, ())) if d in dims]
        if named and (named[0] not in op.over or op.kind in _ROWS_IN_PARTS):
            return named[0]
    return ""


def stage_order(pipeline: Pipeline, stage: int, ranks: int, microbatches: int) -> tuple[Item, ...]:
    """What a stage does in the loop over microbatches: its forwards and its backwards, each in their order.

    It runs some forwards ahead: all of them (gpipe), as many as stages follow it (1f1b, zb_h1), twice as many (zb_h2),
    and those of all chunks but the last for one group (interleaved). Then forwards and backwards alternate. In zb_h1
    and zb_h2 the weights' backward follows at once on the first stage, and one or two microbatches later on each next.

    >>> stage_order(Pipeline("pp"), 0, 2, 3)
    (F0, F1, B0, F2, B1, B2)
    """
    chunks, behind = pipeline.chunks or 1, ranks - 1 - stage
    if pipeline.order == "interleaved" and microbatches % ranks:
        raise InputError(f"the interleaved order takes microbatches in groups of {pipeline.axis} = {ranks}, which does "
                         f"not divide m = {microbatches}")
    forwards = list(_through("forward", range(chunks), ranks, microbatches))
    backwards = list(_through("backward", range(chunks)[::-1], ranks, microbatches))
    ahead = {"gpipe": len(forwards), "interleaved": 2 * behind + (chunks - 1) * ranks, "zb_h2": 2 * behind}.get(
        pipeline.order, behind)
    done, waiting = forwards[:ahead], forwards[ahead:]
    held = {"zb_h1": stage, "zb_h2": 2 * stage}.get(pipeline.order)
    put_off: list[Item] = []
    for backward in backwards:
        done += [*waiting[:1], backward]
        waiting = waiting[1:]
        if held is not None:
            put_off.append(Item("weights", backward.microbatch, backward.chunk))
            if len(put_off) > held:
                done.append(put_off.pop(0))
    return (*done, *put_off)


def _through(phase: str, chunks: Sequence[int], ranks: int, microbatches: int) -> Iterator[Item]:
    """Every microbatch through every chunk: as many microbatches as there are ranks, chunk by chunk, then the next."""
    for first in range(0, microbatches, ranks):
        for chunk in chunks:
            for microbatch in range(first, min(first + ranks, microbatches)):
                yield Item(phase, microbatch, chunk)
