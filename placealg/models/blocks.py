"""Scans and convolutions of sequences that are cut into blocks: what a block leaves is handed on to the next.

Each rank along the axes that cut a sequence has a block of it. A scan hands on a state for each head, and by what a
block multiplies the state that enters it; a convolution the last places of a block. All blocks of these are gathered,
and each takes what comes before it (Sun et al., LASP-2, arXiv 2502.07563): that a scan in blocks computes the scan is
arithmetic, which holds of the ops, whoever runs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from placealg.arith import Monomial
from placealg.frozen import FrozenMap
from placealg.models.build import Builder
from placealg.models.graph import Graph, Op, Tensor
from placealg.models.model import Model

BLOCK, BLOCKS, PLACE, HALO, KEY_IN = "block", "block_kv", "place", "halo", "state_key_in"
"""The dims of blocks, of those that are read, of places in a block, of the places before it, and of keys that enter."""

NUMBERS = "data.blocks"
"""The number of each block: data, of which each rank has its own."""

ARITHMETIC = "that a scan in blocks which hand on their states is the scan of the sequence: arithmetic of the op"
"""What is not proved of a program whose sequences are in blocks, in words."""

ALONG = ("scan", "delta", "conv")
"""The kinds of op that go along a sequence."""


def with_blocks(model: Model, axes: Mapping[str, tuple[str, ...]]) -> Model:
    """The model in which some ops go along blocks: op -> the axes along which there is one block for each rank."""
    if not axes:
        return model
    graph = model.graph
    count = Monomial.of(*dict.fromkeys(a for found in axes.values() for a in found))
    along = next(op.over[0] for op in graph.ops if op.output in axes)
    sizes = {BLOCK: count, BLOCKS: count, PLACE: graph.dims[along] / count}
    more: dict[str, int] = {}
    for op in graph.ops:
        if op.output in axes and op.kind == "conv":
            taps = graph.dims[op.over[1]]
            if taps.names():
                sizes[HALO] = Monomial.of("halo")
                more = {"halo": int(taps.evaluate(model.sizes)) - 1} if model.sizes else {}
            else:
                sizes[HALO] = Monomial.number(taps.coefficient - 1)
        if op.output in axes and op.kind == "delta":
            sizes[KEY_IN] = graph.dims[op.over[1]]
    g = Builder.beside(graph, sizes)
    g.ids(NUMBERS, BLOCK)
    ops = tuple(new for op in graph.ops for new in (_in_blocks(g, graph, op) if op.output in axes else (op,)))
    made = Graph(g.tensors, ops, graph.loops, graph.beside)
    return replace(model, graph=made, sizes=FrozenMap({**model.sizes, **more}),
                   left_out=(*model.left_out, ARITHMETIC))


def _in_blocks(g: Builder, graph: Graph, op: Op) -> tuple[Op, ...]:
    """The op as ops along blocks; the last makes what the op made."""
    known, along, path = len(g.ops), op.over[0], op.output
    operands = [g.fold(f"{path}.{op.role(k)}.blocks", name, along, (BLOCK, PLACE), region=op.region)
                if along in graph.tensors[name].dims else graph.tensors[name] for k, name in enumerate(op.inputs)]
    made = _convolved(g, op, operands) if op.kind == "conv" else _scanned(g, op, operands)
    return (*g.ops[known:], Op(path, "unfold", (made.name,), op.region, rename=FrozenMap({BLOCK: along})))


def _gathered(g: Builder, path: str, x: Tensor, region: str) -> Tensor:
    """What each block leaves, under the name by which others read it."""
    return g.rename(f"{path}.of_all", x, {BLOCK: BLOCKS}, region=region)


def _convolved(g: Builder, op: Op, operands: list[Tensor]) -> Tensor:
    x, weight = operands
    path, region = op.output, op.region
    tail = g.tail(f"{path}.tail", x, (PLACE, HALO), region=region)
    before = g.preceding(f"{path}.before", _gathered(g, f"{path}.tail", tail, region), NUMBERS, BLOCKS, region=region)
    return g.conv(f"{path}.made", x, weight, (PLACE, op.over[1]), region=region, before=before)


def _scanned(g: Builder, op: Op, operands: list[Tensor]) -> Tensor:
    k, v, q, decay, beta = operands
    path, region, delta, over = op.output, op.region, op.kind == "delta", (PLACE, op.over[1])
    left = g.left(f"{path}.left", k, v, decay, beta, over, delta=delta, region=region)
    passed = g.passed(f"{path}.passed", k, decay, beta, (*over, *([KEY_IN] if delta else [])), delta=delta,
                      region=region)
    state = g.entering(f"{path}.state", _gathered(g, f"{path}.left", left, region),
                       _gathered(g, f"{path}.passed", passed, region), NUMBERS,
                       (BLOCKS, *((op.over[1], KEY_IN) if delta else ())), delta=delta, region=region)
    return g.scan(f"{path}.made", k, v, q, decay, beta, over, delta=delta, region=region, state=state)

