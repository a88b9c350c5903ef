"""Two rules that a strategy's lists leave to whoever runs them, written here for the simulator alone.

Along which dim an axis splits an op, and in which order a stage of a pipeline runs its microbatches: derivation and
prover have both in `placealg.step`, in other words, so that an error in either shows as a difference of a run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from placealg.errors import InputError
from placealg.models.graph import Graph, Op
from placealg.step.pipeline import Item, Pipeline

_IN_A_V = ("zb_v", "dualpipe_v")

WEIGHTS_APART = ("zb_h1", "zb_h2", "interleaved_zb", *_IN_A_V)
"""The orders in which the backward for the weights is a phase of its own."""

WHOLE = "none"
"""The word by which an entry keeps ops whole."""

COPIES = "each"
"""The same, where every rank has a part of the gradient."""

_ALSO = {"heads": ("kv", "group", "state_kv", "state_group", "channel"), "ffn": ("dense_ffn",), "seq": ("block",)}
"""The dims for which a word stands besides its own."""

_ROWS_IN_PARTS = ("lookup", "cross_entropy")
"""The kinds of op that can be split along the dims that they look up or normalise over."""


def split_dim(entries: Sequence[str], op: Op, graph: Graph) -> str:
    """The dim by which an axis with these entries splits an op: that of the first entry which speaks of it and fits.

    WHOLE where that entry keeps the op whole, "" where none speaks of it.

    >>> from placealg.models.transformer import mlp
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
        if word in (WHOLE, COPIES):
            return WHOLE
        named = [d for d in (word, *_ALSO.get(word, ())) if d in dims]
        if named and (named[0] not in op.over or op.kind in _ROWS_IN_PARTS):
            return named[0]
    return ""


def home(pipeline: Pipeline, chunk: int, ranks: int) -> int:
    """The stage of a chunk: stages take turns; in a V the way back is the way there in reverse.

    >>> [home(Pipeline("pp", "zb_v", 2), chunk, 2) for chunk in range(4)]
    [0, 1, 1, 0]
    """
    turn, at = divmod(chunk, ranks)
    return ranks - 1 - at if pipeline.order in _IN_A_V and turn % 2 else at


def stage_order(pipeline: Pipeline, stage: int, ranks: int, microbatches: int) -> tuple[Item, ...]:
    """What a stage does in the loop over microbatches: its forwards and its backwards, each in their order.

    It runs some forwards ahead: all of them (gpipe), as many as stages follow it (1f1b, zb_h1), twice as many (zb_h2),
    and those of all chunks but the last for one group (interleaved; interleaved_zb has these beside as many as stages
    follow). Then forwards and backwards alternate. Where the weights' backward is apart it follows at once on the first
    stage, and one item later on each next, two in zb_h2.
    In a V a stage has a chunk of the way there and one of the way back.

    >>> stage_order(Pipeline("pp"), 0, 2, 3)
    (F0, F1, B0, F2, B1, B2)
    """
    chunks = pipeline.chunks or 1
    if pipeline.actions:
        mine = [chunk for chunk in range(ranks * chunks) if home(pipeline, chunk, ranks) == stage]
        done = []
        for chunk, kind, microbatch in re.findall(r"(?<![\w])(\d+)([FIWB])(\d+)", pipeline.actions[stage]):
            parts = {"F": ("forward",), "I": ("backward",), "W": ("weights",), "B": ("backward", "weights")}[kind]
            done += [Item(part, int(microbatch), mine.index(int(chunk))) for part in parts
                     if part != "weights" or pipeline.order in WEIGHTS_APART]
        return tuple(done)
    if pipeline.order in _IN_A_V:
        doing = _zb_v if pipeline.order == "zb_v" else _dualpipe_v
        return tuple(item for item in doing(stage, ranks, microbatches) if item.microbatch < microbatches)
    if pipeline.order in ("interleaved", "interleaved_zb") and microbatches % ranks:
        raise InputError(f"the {pipeline.order} order takes microbatches in groups of {pipeline.axis} = {ranks}, which "
                         f"does not divide m = {microbatches}")
    forwards = list(_through("forward", range(chunks), ranks, microbatches))
    backwards = list(_through("backward", range(chunks)[::-1], ranks, microbatches))
    ahead = runs_ahead(pipeline, stage, ranks, len(forwards))
    done, waiting = forwards[:ahead], forwards[ahead:]
    held = {"zb_h1": stage, "zb_h2": 2 * stage, "interleaved_zb": stage}.get(pipeline.order)
    put_off: list[Item] = []
    for backward in backwards:
        done += [*waiting[:1], backward]
        waiting = waiting[1:]
        if held is not None:
            put_off.append(Item("weights", backward.microbatch, backward.chunk))
            if len(put_off) > held:
                done.append(put_off.pop(0))
    return (*done, *put_off)


def runs_ahead(pipeline: Pipeline, stage: int, ranks: int, forwards: int) -> int:
    """How many forwards a stage runs before it alternates them with backwards, of an order that does.

    >>> [runs_ahead(Pipeline("pp"), stage, 3, 5) for stage in range(3)]
    [2, 1, 0]
    """
    behind, more = ranks - 1 - stage, ((pipeline.chunks or 1) - 1) * ranks
    return {"gpipe": forwards, "interleaved": 2 * behind + more, "zb_h2": 2 * behind,
            "interleaved_zb": behind + more}.get(pipeline.order, behind)


def _through(phase: str, chunks: Sequence[int], ranks: int, microbatches: int) -> Iterator[Item]:
    """Every microbatch through every chunk: as many microbatches as there are ranks, chunk by chunk, then the next."""
    for first in range(0, microbatches, ranks):
        for chunk in chunks:
            for microbatch in range(first, min(first + ranks, microbatches)):
                yield Item(phase, microbatch, chunk)


class _Doing:
    """What a stage of a V does: the next microbatch of each kind of item, and the backwards without their weights."""

    def __init__(self) -> None:
        self.done: list[Item] = []
        self.late: list[Item] = []

    def __call__(self, *words: str) -> None:
        for word in words:
            phase, chunk = {"F": "forward", "B": "backward", "W": "weights"}[word[0]], int(word[1])
            so_far = sum(item.phase == phase and item.chunk == chunk for item in self.done)
            self.done.append(Item(phase, so_far, chunk))


def _zb_v(stage: int, ranks: int, microbatches: int) -> list[Item]:
    """Forwards of the way there as far as the way back can begin; forwards in turn; then one of everything in turn.

    Backwards go first once forwards have ended, and the weights' backwards that they left come last.
    """
    all_of, behind, do = max(microbatches, 2 * ranks - 1), ranks - stage, _Doing()
    do(*["F0"] * (2 * behind - 1), *["F1", "F0"] * stage, *["F1", "B1", "W1"] * behind)
    for n in range(all_of - ranks):
        do(*["F0"] * (n < all_of - 2 * ranks + stage + 1), "B0", "W0", "F1", "B1", "W1")
    do(*["B0", "B1"] * stage, *["B0", "W0"] * behind, *["W1"] * stage, *["W0"] * stage)
    return do.done


def _dualpipe_v(stage: int, ranks: int, microbatches: int) -> list[Item]:
    """The eight steps of DualPipe's own code, of which a stage's half is taken.

    In the sixth the second half of the backwards leave their weights to a queue, which the last two steps empty.
    """
    all_of, behind, do = max(microbatches, 2 * ranks), ranks - 1 - stage, _Doing()

    def backward(chunk: int, apart: bool = False) -> None:
        do(f"B{chunk}")
        weights = Item("weights", do.done[-1].microbatch, chunk)
        (do.late if apart else do.done).append(weights)

    do(*["F0"] * (2 * behind), *["F0", "F1"] * (stage + 1))
    for _ in range(behind):
        backward(1)
        do("F1")
    for n in range(all_of - ranks):
        do(*["F0"] * (n < all_of - 2 * ranks + stage + 1))
        backward(1)
        do("F1")
        backward(0)
    for n in range(2 * (stage + 1)):
        backward((n + 1) % 2, n > stage)
    for _ in range(behind):
        do.done.append(do.late.pop(0))
        backward(0, apart=True)
    return do.done + do.late
