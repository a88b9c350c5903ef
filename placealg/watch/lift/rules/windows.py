"""Rules of ops on images and signals: convolutions, pooling, the norms of batches and of groups of channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from placealg.watch.lift.field import Array
from placealg.watch.lift.rules.call import Call, Values, rule
from placealg.watch.lift.rules.sums import asked, mean


def _each(value: Any, count: int) -> tuple[int, ...]:
    """A number for each of some dims, of which one may stand for all."""
    found = tuple(value) if isinstance(value, list | tuple) else (value,)
    return found * count if len(found) == 1 else found


def _windows(shape: tuple[int, ...], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
             dilation: Sequence[int]) -> tuple[Any, tuple[int, ...]]:
    """(flat places of the padded dims: a row for each window, a column for each element of it; windows of each dim)."""
    padded = [n + 2 * p for n, p in zip(shape, padding, strict=True)]
    counts = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(padded, kernel, stride, dilation, strict=True)]
    places: Any = np.zeros((1, 1), np.int64)
    for n, count, k, s, d in zip(padded, counts, kernel, stride, dilation, strict=True):
        here = np.arange(count)[:, None] * s + np.arange(k) * d
        places = (places[:, None, :, None] * n + here[None, :, None, :]).reshape(
            places.shape[0] * count, places.shape[1] * k)
    return places, tuple(counts)


class _Convolution:
    """A convolution of an image as a product of matrices: (group, sequences and windows, elements of a window)."""

    def __init__(self, c: Call, image: Array):
        self.c, weight = c, c.array("weight")
        dims = weight.ndim - 2
        self.dims, self.groups = dims, c.raw("groups", 1)
        self.padding, kernel = _each(c.raw("padding"), dims), weight.shape[2:]
        self.x = image
        self.places, self.counts = _windows(self.x.shape[2:], kernel, _each(c.raw("stride"), dims), self.padding,
                                            _each(c.raw("dilation"), dims))
        self.weight = weight.reshape(self.groups, weight.shape[0] // self.groups, -1)

    def padded(self, x: Array) -> Array:
        """The input with its margins, each channel in one row."""
        wide = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in self.padding)])
        return np.asarray(wide.reshape(*x.shape[:2], -1))

    def rows(self) -> Array:
        """The input by group, window and element of a window."""
        wide = self.padded(self.x)[:, :, self.places]  # sequence, channel, window, element
        n, channels, windows, size = wide.shape
        wide = wide.reshape(n, self.groups, channels // self.groups, windows, size)
        return np.asarray(wide.transpose(1, 0, 3, 2, 4).reshape(self.groups, n * windows, -1))

    def outputs(self, made: Array) -> Array:
        """What stands by group, window and channel, as an output does."""
        n = self.x.shape[0]
        made = made.reshape(self.groups, n, -1, made.shape[-1]).transpose(1, 0, 3, 2)
        return np.asarray(made.reshape(n, -1, *self.counts))

    def by_group(self, g: Array) -> Array:
        """An output by group, window and channel."""
        n, channels = g.shape[:2]
        g = g.reshape(n, self.groups, channels // self.groups, -1)
        return np.asarray(g.transpose(1, 0, 3, 2).reshape(self.groups, -1, channels // self.groups))

    def back(self, rows: Array) -> Array:
        """The sum of what the windows give to each element of the input."""
        n, channels = self.x.shape[:2]
        windows, size = self.places.shape
        rows = rows.reshape(self.groups, n, windows, channels // self.groups, size).transpose(1, 0, 3, 2, 4)
        rows = rows.reshape(n * channels, -1)
        wide = self.padded(np.zeros_like(self.x)).reshape(n * channels, -1)
        at = np.arange(n * channels)[:, None] * wide.shape[1] + self.places.ravel()
        made = self.c.f.added(wide, at.ravel(), rows.ravel()).reshape(
            n, channels, *(s + 2 * p for s, p in zip(self.x.shape[2:], self.padding, strict=True)))
        inside = tuple(slice(p, p + s) for s, p in zip(self.x.shape[2:], self.padding, strict=True))
        return np.asarray(made[(slice(None), slice(None), *inside)])


@rule("convolution")
def _convolution(c: Call) -> Values:
    """A transposed one is what a convolution of its output gives back."""
    x, turned = c.array("input"), bool(c.raw("transposed", False))
    one = _Convolution(c, np.zeros(c.outs[0].shape, x.dtype) if turned else x)
    made = one.back(c.f.product(one.by_group(x), one.weight)) if turned else one.outputs(
        c.f.product(one.rows(), one.weight.transpose(0, 2, 1)))
    if c.is_tensor("bias"):
        made = c.f.add(made, c.array("bias").reshape(-1, *(1,) * one.dims))
    return [made]


@rule("convolution_backward")
def _convolution_backward(c: Call) -> Values:
    x, g, turned = c.array("input"), c.array("grad_output"), bool(c.raw("transposed", False))
    one = _Convolution(c, g if turned else x)
    grouped = one.by_group(x if turned else g)
    back = one.outputs(c.f.product(one.rows(), one.weight.transpose(0, 2, 1))) if turned else one.back(
        c.f.product(grouped, one.weight))
    return asked(c, (back, c.f.product(grouped.transpose(0, 2, 1), one.rows()).reshape(c.array("weight").shape),
                     c.f.sum(g, (0, *range(2, g.ndim)))))


@rule("upsample_nearest1d_backward", "upsample_nearest2d_backward", "upsample_nearest3d_backward")
def _upsample_backward(c: Call) -> Values:
    """Every element gets what those give that were taken from it."""
    g, size = c.array("grad_output"), tuple(c.raw("input_size"))
    dims = g.ndim - 2
    said = [c.raw(n) for n in ("scales",) * (dims == 1) + ("scales_d",) * (dims == 3) + ("scales_h", "scales_w") * (
        dims > 1)]
    places = np.zeros(1, np.int64)
    for n, m, scale in zip(size[2:], g.shape[2:], said, strict=True):
        here = np.minimum((np.arange(m) * (1 / scale if scale else n / m)).astype(np.int64), n - 1)
        places = (places[:, None] * n + here).ravel()
    wide, rows = np.zeros((size[0] * size[1], int(np.prod(size[2:]))), g.dtype), g.reshape(size[0] * size[1], -1)
    at = np.arange(len(wide))[:, None] * wide.shape[1] + places
    return [np.asarray(c.f.added(wide, at.ravel(), rows.ravel())).reshape(size)]


# ---------------------------------------------------------------------- pooling


@rule("max_pool2d_with_indices")
def _max_pool(c: Call) -> Values:
    """The elements that were the largest: which ones steers, and is taken as it was."""
    x, at = c.array("self"), c.held(c.made()[1])
    flat = x.reshape(*x.shape[:-2], -1)
    return [np.take_along_axis(flat, at.reshape(*at.shape[:-2], -1), -1).reshape(at.shape)]


@rule("max_pool2d_with_indices_backward")
def _max_pool_backward(c: Call) -> Values:
    g, at, shape = c.array("grad_output"), c.ints("indices"), c.outs[0].shape
    area = shape[-1] * shape[-2]
    rows = at.reshape(-1, at.shape[-1] * at.shape[-2])
    places = (np.arange(len(rows))[:, None] * area + rows).ravel()
    return [c.f.added(c.f.zeros(shape), places, g.ravel())]


def _means(c: Call, size: int, spans: Sequence[tuple[int, int]], over: Sequence[int]) -> Array:
    """The matrix of means of spans of a dim, each over so many elements."""
    made = c.f.zeros((len(spans), size))
    for row, (first, end), count in zip(made, spans, over, strict=True):
        row[max(first, 0):end] = c.f.over(count)
    return made


def _pooled(c: Call, shape: tuple[int, ...]) -> list[Array] | None:
    """The matrix of each of the last two dims of a mean over windows; None where windows count their elements."""
    if c.given.get("output_size") is not None or "adaptive" in c.op.name:
        counts = c.raw("output_size") or c.array("grad_output").shape[-2:]
        every = [[(k * n // m, -(-(k + 1) * n // m)) for k in range(m)] for n, m in zip(shape, counts, strict=True)]
        return [_means(c, n, spans, [b - a for a, b in spans]) for n, spans in zip(shape, every, strict=True)]
    kernel = _each(c.raw("kernel_size"), 2)
    stride, padding = _each(c.raw("stride") or kernel, 2), _each(c.raw("padding", 0), 2)
    uneven = any(padding) and not c.raw("count_include_pad", True)
    if c.raw("ceil_mode", False) or c.raw("divisor_override") or uneven:
        return None
    made = []
    for n, k, s, p in zip(shape, kernel, stride, padding, strict=True):
        spans = [(t * s - p, t * s - p + k) for t in range((n + 2 * p - k) // s + 1)]
        made.append(_means(c, n, spans, [k] * len(spans)))
    return made


@rule("avg_pool2d", "_adaptive_avg_pool2d")
def _mean_pool(c: Call) -> Values:
    x = c.array("self")
    found = _pooled(c, x.shape[-2:])
    return None if found is None else [c.f.product(found[0], c.f.product(x, found[1].T))]


@rule("avg_pool2d_backward", "_adaptive_avg_pool2d_backward")
def _mean_pool_backward(c: Call) -> Values:
    found = _pooled(c, c.array("self").shape[-2:])
    return None if found is None else [c.f.product(found[0].T, c.f.product(c.array("grad_output"), found[1]))]


# ---------------------------------------------------------------------- norms over channels


def _turn(c: Call, variance: Array) -> Array:
    """1 / sqrt(variance + eps)."""
    return c.f.reciprocal(c.f.root(c.f.add(variance, c.array("eps"))))


def _weighed(c: Call, made: Array, shape: tuple[int, ...]) -> Array:
    """A norm's output times its weight, and its bias added, for each channel."""
    if c.is_tensor("weight"):
        made = c.f.mul(made, c.array("weight").reshape(shape))
    return c.f.add(made, c.array("bias").reshape(shape)) if c.is_tensor("bias") else made


@rule("native_batch_norm", "_native_batch_norm_legit")
def _batch_norm(c: Call) -> Values:
    x = c.array("input")
    over, shape, kept = (0, *range(2, x.ndim)), (-1, *(1,) * (x.ndim - 2)), c.is_tensor("running_mean")
    stats: list[Array] = [c.array("running_mean"), c.array("running_var")] if kept else []
    if c.raw("training"):
        middle = mean(c, x, over)
        away = c.f.add(x, c.f.neg(middle.reshape(shape)))
        variance = mean(c, c.f.mul(away, away), over)
        turn, by, count = _turn(c, variance), c.array("momentum"), x.size // x.shape[1]
        if kept:
            spread = c.f.mul(variance, c.f.mul(np.array(count), c.f.over(count - 1)))
            rest = c.f.add(np.array(1), c.f.neg(by))
            stats = [c.f.add(c.f.mul(old, rest), c.f.mul(new, by)) for old, new in zip(
                stats, (middle, spread), strict=True)]
        saved = [middle, turn]
    else:
        away, turn = c.f.add(x, c.f.neg(stats[0].reshape(shape))), _turn(c, stats[1])
        saved = []
    made = _weighed(c, c.f.mul(away, turn.reshape(shape)), shape)
    own = [p for p in c.made() if p.size or p is c.made()[0]]
    return [*stats, made, *saved[:len(own) - 1], *([c.f.zeros((0,))] * (len(c.made()) - len(own)))]


@rule("native_batch_norm_backward")
def _batch_norm_backward(c: Call) -> Values:
    x, g = c.array("input"), c.array("grad_out")
    over, shape = (0, *range(2, x.ndim)), (-1, *(1,) * (x.ndim - 2))
    inner = c.f.mul(g, c.array("weight").reshape(shape)) if c.is_tensor("weight") else g
    if c.raw("train"):
        turn = c.array("save_invstd").reshape(shape)
        unit = c.f.mul(c.f.add(x, c.f.neg(c.array("save_mean").reshape(shape))), turn)
        inner = c.f.add(inner, c.f.neg(c.f.add(mean(c, inner, over, True), c.f.mul(
            unit, mean(c, c.f.mul(inner, unit), over, True)))))
    else:
        turn = _turn(c, c.array("running_var")).reshape(shape)
        unit = c.f.mul(c.f.add(x, c.f.neg(c.array("running_mean").reshape(shape))), turn)
    return asked(c, (c.f.mul(turn, inner), c.f.sum(c.f.mul(g, unit), over), c.f.sum(g, over)))


@rule("native_group_norm")
def _group_norm(c: Call) -> Values:
    x, groups = c.array("input"), c.raw("group")
    rows, over = x.reshape(x.shape[0], groups, -1), (2,)
    middle = mean(c, rows, over, True)
    away = c.f.add(rows, c.f.neg(middle))
    turn = _turn(c, mean(c, c.f.mul(away, away), over, True))
    made = _weighed(c, c.f.mul(away, turn).reshape(x.shape), (-1, *(1,) * (x.ndim - 2)))
    return [made, middle[..., 0], turn[..., 0]]


@rule("native_group_norm_backward")
def _group_norm_backward(c: Call) -> Values:
    x, g, groups = c.array("input"), c.array("grad_out"), c.raw("group")
    over, shape = (0, *range(2, x.ndim)), (-1, *(1,) * (x.ndim - 2))
    turn = c.array("rstd")[..., None]
    unit = c.f.mul(c.f.add(x.reshape(x.shape[0], groups, -1), c.f.neg(c.array("mean")[..., None])), turn)
    inner = (c.f.mul(g, c.array("weight").reshape(shape)) if c.is_tensor("weight") else g).reshape(unit.shape)
    back = c.f.add(inner, c.f.neg(c.f.add(mean(c, inner, (2,), True),
                                          c.f.mul(unit, mean(c, c.f.mul(inner, unit), (2,), True)))))
    return asked(c, (c.f.mul(turn, back).reshape(x.shape), c.f.sum(c.f.mul(g, unit.reshape(x.shape)), over),
                     c.f.sum(g, over)))
