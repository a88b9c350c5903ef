"""What each op computes, and its derivative, over the prime field.

Linear ops are what they are. In place of exponentials and roots stand rational functions: every claim about
placement treats a nonlinear function as one that nothing is known about, except which numbers it reads. A row function
(norm, softmax, attention, cross entropy) keeps the form of the real one: elementwise parts, and statistics summed over
the row. Each derivative is written beside its function, and reads what the real one reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from placealg.frozen import FrozenMap
from placealg.models.graph import Graph, Op
from placealg.models.ops import ATTENDING, SEEN_BY, within
from placealg.simulator import network, scans
from placealg.simulator.box import Box, Extent, aligned, common, elementwise, largest, product
from placealg.simulator.field import Array, inverse, keyed, objects, reduced
from placealg.simulator.unary import SLOPES, UNARY

Draw = Callable[[Extent], Array]
"""Extent -> the random factor at every point of it."""


class Missing(Exception):
    """A derivative reads what is not held."""


class SavedOperands(Protocol):
    """What the backward of an op finds: each lookup raises Missing where the value is not held."""

    def operand(self, position: int) -> Box:
        """An operand, as the forward read it."""

    def extent(self, position: int) -> Extent:
        """The indices of an operand that the forward found; they outlive the numbers."""

    def result(self) -> Box:
        """The op's result."""

    def kept(self, name: str) -> Box:
        """A value that the op made beside its result."""

    def draw(self, extent: Extent) -> Array:
        """The random factors, drawn again."""


Kept = dict[str, Box]


def forward(graph: Graph, op: Op, operands: list[Box], draw: Draw, sizes: Mapping[str, int]) -> tuple[Box, Kept]:
    """The op's result, and what it keeps beside it; `sizes` are those of all dims but the batch."""
    dims, x = tuple(graph.tensors[op.output].dims), operands[0]
    if op.kind in ("einsum", "sum"):
        return product(operands, dims), {}
    if op.kind == "largest":
        return largest(x, dims), {}
    if op.kind in ("add", "mul"):
        return elementwise(_sum if op.kind == "add" else _product, operands, dims), {}
    if op.kind in ("cast", "copy"):
        return x.ordered(dims), {}
    if op.kind == "rename":
        return x.renamed(op.rename).ordered(dims), {}
    if op.kind in ("fold", "unfold"):
        return _in_blocks(op, x, dims, sizes).ordered(dims), {}
    if op.kind == "tail":
        return scans.tail(op, x, sizes[op.over[1]], dims), {}
    if op.kind == "scale":
        return Box(x.extent, reduced(x.numbers * factor(op))).ordered(dims), {}
    if op.kind == "dropout":
        return _dropout(x.ordered(dims), draw)
    if op.kind == "route":
        return _route(op, x, dims, sizes), {}
    if op.kind == "one_hot":
        return _one_hot(op, operands, dims, sizes), {}
    if op.kind in UNARY:
        return Box(x.extent, UNARY[op.kind](x.numbers)).ordered(dims), {}
    return ROWS[op.kind](op, operands, dims, draw)


def backward(graph: Graph, op: Op, position: int, dy: Box, saved: SavedOperands) -> Box:
    """What the gradient `dy` of the op's result contributes to the gradient of the operand at `position`."""
    dims = tuple(graph.tensors[op.inputs[position]].dims)
    if op.kind in ("einsum", "mul", "sum", "add"):
        partners = [k for k in range(len(op.inputs)) if k != position] if op.kind in ("einsum", "mul") else []
        missing = set(dims) - set(dy.dims)
        along = saved.extent(position) if missing else {}
        return product([dy, *(saved.operand(k) for k in partners)], dims, along)
    if op.kind in ("cast", "copy"):
        return dy.ordered(dims)
    if op.kind == "rename":
        return dy.renamed({new: old for old, new in op.rename.items()}).ordered(dims)
    if op.kind in ("fold", "unfold"):
        back = replace(op, kind="unfold" if op.kind == "fold" else "fold",
                       rename=FrozenMap({new: old for old, new in op.rename.items()}))
        return _in_blocks(back, dy, dims, {d: len(at) for d, at in saved.extent(0).items()}).ordered(dims)
    if op.kind == "scale":
        return Box(dy.extent, reduced(dy.numbers * factor(op))).ordered(dims)
    if op.kind == "dropout":
        return elementwise(_product, [dy, saved.kept("mask")], dims)
    if op.kind in SLOPES:
        reads, slope = SLOPES[op.kind]
        at = saved.operand(0) if reads == "x" else saved.result()
        return elementwise(lambda d, v: d * slope(v), [dy, at], dims)
    return _ROWS_BACK[op.kind](op, position, dy, saved, dims)


def factor(op: Op) -> float:
    """The constant of a scale, or of attention: whatever its text says, one number."""
    found: float = keyed(f"factor {op.attrs.get('factor', '1')}", {"factor": (0,)})[0].item()
    return found


def _sum(*numbers: Array) -> Array:
    made = numbers[0]
    for other in numbers[1:]:
        made = made + other
    return made


def _product(*numbers: Array) -> Array:
    made = numbers[0]
    for other in numbers[1:]:
        made = reduced(made * other)
    return made


def _dropout(x: Box, draw: Draw) -> tuple[Box, Kept]:
    mask = Box(x.extent, draw(x.extent))
    return Box(x.extent, reduced(x.numbers * mask.numbers)), {"mask": mask}


def _without(dims: tuple[str, ...], over: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(d for d in dims if d not in over)


def _mean(box: Box, over: tuple[str, ...]) -> Box:
    """The mean over dims, of the indices held."""
    count = int(np.prod([len(box.extent[d]) for d in over]))
    summed = product([box], _without(box.dims, over))
    return Box(summed.extent, reduced(summed.numbers * inverse(np.array([count]))))


_VARIANCE_FLOOR = 7


def _centred(op: Op) -> bool:
    """Whether a norm takes the mean away."""
    return op.kind.startswith("layer_norm")


def _norm(op: Op, operands: list[Box], dims: tuple[str, ...], _draw: Draw) -> tuple[Box, Kept]:
    """(x - mean) * rstd * weight + bias, with rstd = 1/(7 + variance); the root-mean-square norm takes mean = 0."""
    x, centred = operands[0], _centred(op)
    mean = _mean(x, op.over)
    if not centred:
        mean = Box(mean.extent, np.zeros_like(mean.numbers))
    apart = elementwise(lambda a, m: a - m, [x, mean], dims)
    variance = _mean(elementwise(_product, [apart, apart], dims), op.over)
    rstd = Box(variance.extent, inverse(reduced(variance.numbers + _VARIANCE_FLOOR)))
    made = elementwise(_product, [apart, rstd, *operands[1:2]], dims)
    if len(operands) > 2:
        made = elementwise(_sum, [made, operands[2]], dims)
    return made, {"mean": mean, "rstd": rstd} if centred else {"rstd": rstd}


def _norm_back(op: Op, position: int, dy: Box, saved: SavedOperands, dims: tuple[str, ...]) -> Box:
    if position == 2:
        return product([dy], dims)
    x, rstd = saved.operand(0), saved.kept("rstd")
    apart = elementwise(lambda a, m: a - m, [x, saved.kept("mean")], x.dims) if _centred(op) else x
    if position == 1:
        return product([dy, apart, rstd], dims)
    g = elementwise(_product, [dy, *([saved.operand(1)] if len(op.inputs) > 1 else [])], dims)
    along = product([g, apart], _without(dims, op.over))
    rate = elementwise(_product, [along, rstd, rstd], along.dims)
    count = int(np.prod([len(apart.extent[d]) for d in op.over]))
    twice = 2 * inverse(np.array([count]))[0].item()
    found = elementwise(lambda a, r, s, c: a * r - s * reduced(c * twice), [g, rstd, rate, apart], dims)
    if _centred(op):
        found = elementwise(lambda a, m: a - m, [found, _mean(found, op.over)], dims)
    return found


def exponential(numbers: Array) -> Array:
    """x**2 + 3, in place of a function that is its own derivative: no function on this field is.

    So a derivative reads what the real one reads, results and no scores; it is one where numbers have a small part.
    """
    return reduced(numbers * numbers + 3)


def _weight(scores: Box, op: Op, documents: Sequence[Box] = ()) -> Box:
    """The exponential of the scores, and its derivative; 0 where the mask, or another document, hides a key.

    `documents` are those of the queries and of the keys.
    """
    w = exponential(scores.numbers)
    if op.attrs.get("mask") == "causal" and {"seq", "seq_kv"} <= set(scores.dims):
        seen = aligned(Box({d: scores.extent[d] for d in ("seq", "seq_kv")}, np.array(
            [[int(_sees(op, q, k)) for k in scores.extent["seq_kv"]] for q in scores.extent["seq"]], np.int64).reshape(
                len(scores.extent["seq"]), len(scores.extent["seq_kv"]))), scores.dims)
        w = w * seen
    if not documents:
        return Box(scores.extent, w)
    dims = tuple(dict.fromkeys(d for box in documents for d in box.dims))
    alike = elementwise(lambda a, b: (a == b).astype(np.int64), list(documents), dims)
    return elementwise(_product, [Box(scores.extent, w), alike], scores.dims)


def _played(op: Op, role: str, operands: Sequence[Box]) -> list[Box]:
    """The operand in a role, where there is one."""
    return [box for name, box in zip(op.row.operands, operands, strict=False) if name == role]


def _documents(op: Op, operands: Sequence[Box]) -> list[Box]:
    """The documents of the queries and of the keys, where an attention is within them."""
    return [box for role in SEEN_BY for box in _played(op, role, operands)]


def _sees(op: Op, q: int, k: int) -> bool:
    """Whether the query at position `q` sees the key at position `k`: windows and chunks are of _NEAR positions."""
    return k <= q and ("window" not in op.attrs or q - k < _NEAR) and ("chunk" not in op.attrs
                                                                       or q // _NEAR == k // _NEAR)


_NEAR = 2


def _inverse(box: Box) -> Box:
    return Box(box.extent, inverse(box.numbers))


def _route(op: Op, x: Box, dims: tuple[str, ...], sizes: Mapping[str, int]) -> Box:
    """1 at the largest residue of each row for the first choice, at the next for the second, and so on; else 0."""
    over, choice = op.over
    rows = tuple(d for d in x.dims if d != over)
    order = np.argsort(-x.ordered((*rows, over)).numbers, axis=-1, kind="stable")
    rank = np.argsort(order, axis=-1, kind="stable")
    chosen = rank[..., None, :] == np.arange(sizes[choice])[:, None]
    extent = {**{d: x.extent[d] for d in rows}, choice: tuple(range(sizes[choice])), over: x.extent[over]}
    return Box(extent, chosen.astype(np.int64)).ordered(dims)


def _softmax(op: Op, operands: list[Box], dims: tuple[str, ...], _draw: Draw) -> tuple[Box, Kept]:
    w = _weight(operands[0], op, _documents(op, operands))
    normaliser = _with_sink(product([w], _without(dims, op.over)), _played(op, "sink", operands))
    return elementwise(_product, [w, _inverse(normaliser)], dims), {}


def _logsumexp(op: Op, operands: list[Box], dims: tuple[str, ...], _draw: Draw) -> tuple[Box, Kept]:
    """-1/(the sum of weights), whose derivative is a weight over the square of their sum."""
    share = _inverse(product([_weight(operands[0], op)], dims))
    return Box(share.extent, reduced(-share.numbers)), {}


def _logsumexp_back(op: Op, _position: int, dy: Box, saved: SavedOperands, dims: tuple[str, ...]) -> Box:
    y = saved.result()
    return product([dy, y, y, _weight(saved.operand(0), op)], dims)


def _with_sink(normaliser: Box, sinks: list[Box]) -> Box:
    """The sum of a row's weights, and that of the sink's, where there is one."""
    weights = [Box(sink.extent, exponential(sink.numbers)) for sink in sinks]
    return elementwise(_sum, [normaliser, *weights], normaliser.dims)


def _softmax_back(op: Op, position: int, dy: Box, saved: SavedOperands, dims: tuple[str, ...]) -> Box:
    y = saved.result()
    rows = _without(y.dims, op.over)
    inner = product([dy, y], rows)
    if position == 1:
        unseen = product([y], rows)
        return product([inner, Box(unseen.extent, reduced(unseen.numbers - 1))], dims)
    return elementwise(lambda d, i, own: reduced(d - i) * own, [dy, inner, y], dims)


def _grid(op: Op, q: Box, k: Box) -> tuple[str, ...]:
    """The dims of attention scores: those of queries and keys but the head dim, over which they are contracted."""
    return tuple(d for d in dict.fromkeys((*q.dims, *k.dims)) if d not in op.over or d not in q.dims)


def _probabilities(op: Op, q: Box, k: Box, rotary: list[Box], documents: list[Box], draw: Draw) -> tuple[Box, Box]:
    """(the exponentials of the scores, the dropout factors) of attention."""
    grid = _grid(op, q, k)
    products = elementwise(_sum, [product([q, k], grid), *([product(rotary, grid)] if rotary else [])], grid)
    w = _weight(Box(products.extent, reduced(products.numbers * factor(op))), op, documents)
    return w, Box(w.extent, draw(w.extent) if op.attrs.get("dropout") else np.ones_like(w.numbers))


def _flash(op: Op, operands: list[Box], dims: tuple[str, ...], draw: Draw) -> tuple[Box, Kept]:
    """The weights w(q k) of the values, over the sum of all weights, which is kept as the statistic."""
    q, k, v, *_ = operands
    rotary = [box for role in ("q_rope", "k_rope") for box in _played(op, role, operands)]
    w, mask = _probabilities(op, q, k, rotary, _documents(op, operands), draw)
    normaliser = _with_sink(product([w], tuple(d for d in w.dims if d not in op.over)), _played(op, "sink", operands))
    return product([w, mask, _inverse(normaliser), v], dims), {"lse": normaliser}


VALUES = 2
"""The position of attention's values."""

_PARTNER = {0: 1, 1: 0, 3: 3, 4: 2}
"""Position of a query or key of attention -> that of its factor in the scores, among all operands but the values."""


def _flash_back(op: Op, position: int, dy: Box, saved: SavedOperands, dims: tuple[str, ...]) -> Box:
    share = _inverse(saved.kept("lse"))
    if op.row.operands[position] == "sink":
        sink = saved.operand(position)
        unseen = elementwise(_product, [share, Box(sink.extent, exponential(sink.numbers))], share.dims)
        return product([Box(unseen.extent, reduced(-unseen.numbers)), product([dy, saved.result()], share.dims)], dims)
    roles = op.row.operands[:len(op.inputs)]
    q, k, *rotary = factors = [saved.operand(i) for i, role in enumerate(roles) if role not in ("v", "sink", *SEEN_BY)]
    documents = [saved.operand(roles.index(role)) for role in SEEN_BY if role in roles]
    w, mask = _probabilities(op, q, k, rotary, documents, saved.draw)
    if position == VALUES:
        return product([w, mask, share, dy], dims)
    dprobs = product([mask, product([dy, saved.operand(VALUES)], w.dims)], w.dims)
    inner = product([dy, saved.result()], share.dims)
    dscores = elementwise(lambda d, i, s, c: reduced(reduced(d - i) * reduced(s * c)) * factor(op),
                          [dprobs, inner, w, share], w.dims)
    return product([dscores, factors[_PARTNER[position]]], dims)


def _rope(op: Op, operands: list[Box], dims: tuple[str, ...], _draw: Draw) -> tuple[Box, Kept]:
    return _rotated(op, operands[0], 1, operands[1:]).ordered(dims), {}


def _rope_back(op: Op, _position: int, dy: Box, saved: SavedOperands, dims: tuple[str, ...]) -> Box:
    return _rotated(op, dy, -1, [saved.operand(k) for k in range(1, len(op.inputs))]).ordered(dims)


def _rotated(op: Op, x: Box, sign: int, positions: Sequence[Box]) -> Box:
    """Each pair (2k, 2k + 1) turned by an angle with rational sine and cosine; pairs held by half are left out.

    The angle is one of the token's position, or, where none is given, of its place.
    """
    dim = op.over[0]
    whole = {dim: tuple(i for i in x.extent[dim] if i ^ 1 in x.extent[dim])}
    x = x.cut(whole)
    pairs = {dim: tuple(i // 2 for i in x.extent[dim])}
    if positions:
        (x, at), _ = common([x, positions[0]])
        known = np.unique(at.numbers)
        angles = keyed("rotary", {"seq": tuple(known.tolist()), **pairs})
        t = Box({**at.extent, dim: x.extent[dim]}, angles[np.searchsorted(known, at.numbers)])
    else:
        angle = {d: x.extent[d] for d in ("seq",) if d in x.extent} | pairs
        t = Box({**angle, dim: x.extent[dim]}, keyed("rotary", angle))
    share = inverse(reduced(1 + t.numbers * t.numbers))
    cosine = Box(t.extent, reduced(reduced(1 - t.numbers * t.numbers) * share))
    turned = sign * np.array([1 if i % 2 else -1 for i in x.extent[dim]], np.int64)
    sine = Box(t.extent, reduced(2 * t.numbers * share) * aligned(Box(whole, turned), t.dims))
    partner = Box(x.extent, x.numbers.take([x.extent[dim].index(i ^ 1) for i in x.extent[dim]], x.dims.index(dim)))
    return elementwise(lambda a, c, b, s: reduced(a * c) + b * s, [x, cosine, partner, sine], x.dims)


def _one_hot(op: Op, operands: list[Box], dims: tuple[str, ...], sizes: Mapping[str, int]) -> Box:
    return _hits(operands[0], op.over[0], tuple(range(sizes[op.over[0]]))).ordered(dims)


def _hits(ids: Box, over: str, rows: tuple[int, ...]) -> Box:
    """1 where an id is the row's, else 0."""
    return Box({**ids.extent, over: rows}, (ids.numbers[..., None] == np.array(rows, np.int64)).astype(np.int64))


def _lookup(op: Op, operands: list[Box], dims: tuple[str, ...], _draw: Draw) -> tuple[Box, Kept]:
    table, ids = operands
    return product([_hits(ids, op.over[0], table.extent[op.over[0]]), table], dims), {}


def _lookup_back(op: Op, _position: int, dy: Box, saved: SavedOperands, dims: tuple[str, ...]) -> Box:
    return product([_hits(saved.operand(1), op.over[0], saved.extent(0)[op.over[0]]), dy], dims)


def statistics(op: Op, x: Box, targets: Box) -> tuple[Box, Box]:
    """What cross entropy sums over the logits that are held: their weights, and the target's logit."""
    w = _weight(x, op)
    rows = _without(x.dims, op.over)
    return product([w], rows), product([_hits(targets, op.over[0], x.extent[op.over[0]]), x], rows)


def cross_entropy(op: Op, x: Box, weight: Box, target: Box, dims: tuple[str, ...]) -> tuple[Box, Kept]:
    """-1/(the sum of weights) - the target's logit, from the statistics of the whole row; the derivatives are kept."""
    share = _inverse(weight)
    return (elementwise(lambda s, t: -s - t, [share, target], dims),
            {"softmax": elementwise(_product, [_weight(x, op), share, share], x.dims)})


def _cross_entropy(op: Op, operands: list[Box], dims: tuple[str, ...], _draw: Draw) -> tuple[Box, Kept]:
    x, targets = operands
    return cross_entropy(op, x, *statistics(op, x, targets), dims)


def _cross_entropy_back(op: Op, _position: int, dy: Box, saved: SavedOperands, dims: tuple[str, ...]) -> Box:
    slope = saved.kept("softmax")
    hits = _hits(saved.operand(1), op.over[0], slope.extent[op.over[0]])
    return elementwise(lambda d, s, h: d * (s - h), [dy, slope, hits], dims)


def _unit(_op: Op, operands: list[Box], _dims: tuple[str, ...], draw: Draw) -> tuple[Box, Kept]:
    """A whole unit, token by token: what it keeps is what entered, that times its matrix, and the random factors."""
    x, *matrices = operands
    factors = Box(x.extent, draw(x.extent))
    made, kept = network.forward([_matrix(box) for box in matrices], x.numbers.tolist(), factors.numbers.tolist())
    hidden = Box(x.extent, objects(kept.hidden))
    return Box(x.extent, objects(made)), {"inputs": x, "hidden": hidden, "factors": factors}


def _unit_back(op: Op, position: int, dy: Box, saved: SavedOperands, _dims: tuple[str, ...]) -> Box:
    matrices = [saved.operand(k) for k in range(1, len(op.inputs))]
    (dy, *held), extent = common([dy, *(saved.kept(name) for name in ("inputs", "hidden", "factors"))])
    kept = network.KeptByUnit(*(tuple(box.numbers.tolist()) for box in held))
    entering, found = network.backward([_matrix(box) for box in matrices], kept, dy.numbers.tolist())
    if position == 0:
        return Box(extent, objects(entering))
    of = matrices[position - 1]
    return Box(of.extent, objects(found[position - 1]).reshape(of.numbers.shape))


def _matrix(box: Box) -> network.Matrix:
    a, b, c, d = box.ordered(sorted(box.dims, reverse=True)).numbers.ravel().tolist()
    return a, b, c, d


def _in_blocks(op: Op, x: Box, dims: tuple[str, ...], sizes: Mapping[str, int]) -> Box:
    """A dim as blocks and the places in them, or back."""
    ((before, after),) = op.rename.items()
    if op.kind == "fold":
        (place,) = set(dims) - set(x.dims) - {after}
        return scans.folded(x, before, (after, place), sizes[place])
    (place,) = set(x.dims) - set(dims) - {before}
    return scans.unfolded(x, after, (before, place))


_STATES: Mapping[str, Callable[[Op, list[Box], tuple[str, ...]], Box]] = {
    **dict.fromkeys(("scan", "delta", "scan_from", "delta_from", "left", "delta_left", "delta_passed"), scans.scan),
    "passed": lambda op, operands, dims: scans.passed(op, operands[0], dims),
    "entering": scans.entering, "delta_entering": scans.entering, "preceding": scans.preceding,
    "conv": scans.conv, "conv_from": scans.conv,
}
"""Kind -> its forward, of those that go along a dim."""


def _along(op: Op, operands: list[Box], dims: tuple[str, ...], _draw: Draw) -> tuple[Box, Kept]:
    return _STATES[op.kind](op, operands, dims), {}


def _along_back(op: Op, position: int, dy: Box, saved: SavedOperands, dims: tuple[str, ...]) -> Box:
    read, extent = saved.operand, saved.extent
    if op.kind == "passed":
        return scans.passed_back(op, dy, read(0), dims)
    if op.kind in ("entering", "delta_entering"):
        return scans.entering_back(op, position, dy, read, extent, dims)
    if op.kind == "preceding":
        return scans.preceding_back(op, dy, read, extent, dims)
    if op.kind == "tail":
        return scans.tail_back(op, dy, extent, dims)
    if op.row.family == "conv":
        return scans.conv_back(op, position, dy, read, extent, dims)
    return scans.scan_back(op, position, dy, read, dims)


_FORWARD: Mapping[str, Callable[[Op, list[Box], tuple[str, ...], Draw], tuple[Box, Kept]]] = {
    "layer_norm": _norm, "rms_norm": _norm, "layer_norm_plain": _norm, "rms_norm_plain": _norm, "softmax": _softmax,
    "softmax_sink": _softmax, "flash": _flash, "flash_rope": _flash, "flash_sink": _flash, "rope": _rope,
    "lookup": _lookup, "cross_entropy": _cross_entropy, "unit": _unit, "logsumexp": _logsumexp,
    **dict.fromkeys(_STATES, _along),
}
ROWS: Mapping[str, Callable[[Op, list[Box], tuple[str, ...], Draw], tuple[Box, Kept]]] = {
    **_FORWARD, **{str(within(kind)): _FORWARD[kind] for kind in ATTENDING}}
"""Kind -> its forward, of those that work over dims."""

_BACKWARD: Mapping[str, Callable[[Op, int, Box, SavedOperands, tuple[str, ...]], Box]] = {
    "layer_norm": _norm_back, "rms_norm": _norm_back, "layer_norm_plain": _norm_back, "rms_norm_plain": _norm_back,
    "softmax": _softmax_back, "softmax_sink": _softmax_back, "flash": _flash_back, "flash_rope": _flash_back,
    "flash_sink": _flash_back, "rope": _rope_back, "lookup": _lookup_back, "cross_entropy": _cross_entropy_back,
    "unit": _unit_back, "logsumexp": _logsumexp_back, **dict.fromkeys((*_STATES, "tail"), _along_back),
}
_ROWS_BACK: Mapping[str, Callable[[Op, int, Box, SavedOperands, tuple[str, ...]], Box]] = {
    **_BACKWARD, **{str(within(kind)): _BACKWARD[kind] for kind in ATTENDING}}
