"""Rules of ops that put elements elsewhere, or make constants."""

from __future__ import annotations

from typing import Any

import numpy as np

from placealg.watch.lift.field import Array
from placealg.watch.lift.rules.call import Call, Values, axis, rule


@rule("copy", "clone", "_to_copy", "fsdp::copy")
def _copy(c: Call) -> Values:
    source = c.raw("src", c.raw("self"))
    found = c.of(source)
    shape = c.outs[0].shape
    return [found.reshape(shape) if found.size == int(np.prod(shape)) else np.broadcast_to(found, shape)]


@rule("cat")
def _cat(c: Call) -> Values:
    parts = c.arrays("tensors")
    parts = [p for p in parts if not (p.ndim == 1 and not p.size)] or parts[:1]
    return [np.concatenate(parts, axis(c.raw("dim", 0), parts[0].ndim))]


@rule("stack")
def _stack(c: Call) -> Values:
    return [np.stack(c.arrays("tensors"), axis=c.raw("dim", 0))]


@rule("zeros", "zeros_like", "new_zeros", "zero")
def _zeros(c: Call) -> Values:
    return [c.f.zeros(p.shape) for p in c.outs]


@rule("ones", "ones_like", "new_ones")
def _ones(c: Call) -> Values:
    return [np.ones(p.shape, c.f.kind) for p in c.outs]


@rule("full", "full_like", "fill", "scalar_tensor", "new_full")
def _full(c: Call) -> Values:
    value = next(c.raw(n) for n in ("fill_value", "value", "s") if c.raw(n) is not None)
    return [np.broadcast_to(c.of(value), p.shape) for p in c.outs]


@rule("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted")
def _empty(c: Call) -> Values:
    return c.unknown()


@rule("arange", "linspace")
def _counted(c: Call) -> Values:
    return [c.f.numbers_of(c.op.drawn[0], "float32")] if c.op.drawn else None


@rule("eye")
def _eye(c: Call) -> Values:
    return [np.eye(*c.outs[0].shape, dtype=c.f.kind)]


@rule("flip")
def _flip(c: Call) -> Values:
    return [np.flip(c.array("self"), tuple(c.raw("dims")))]


@rule("roll")
def _roll(c: Call) -> Values:
    dims = c.raw("dims", [])
    shifts = c.raw("shifts")
    x = c.array("self")
    if not dims:
        return [np.roll(x.ravel(), shifts[0] if isinstance(shifts, list | tuple) else shifts).reshape(x.shape)]
    return [np.roll(x, tuple(shifts), tuple(dims))]


@rule("repeat")
def _repeat(c: Call) -> Values:
    return [np.tile(c.array("self"), tuple(c.raw("repeats")))]


@rule("triu", "tril")
def _triangle(c: Call) -> Values:
    keep = np.triu if "triu" in c.op.name else np.tril
    x = c.array("self")
    mask = keep(np.ones(x.shape[-2:], bool), c.raw("diagonal", 0))
    return [np.where(mask, x, 0)]


@rule("constant_pad_nd")
def _pad(c: Call) -> Values:
    x, widths = c.array("self"), list(c.raw("pad"))
    every = [(0, 0)] * x.ndim
    for k in range(len(widths) // 2):
        every[x.ndim - 1 - k] = widths[2 * k], widths[2 * k + 1]
    if any(w < 0 for pair in every for w in pair):
        return None
    return [np.pad(x, every, constant_values=c.number("value", 0))]


@rule("slice_backward")
def _slice_backward(c: Call) -> Values:
    made = c.f.zeros(tuple(c.raw("input_sizes")))
    made[_sliced(c, made.ndim)] = c.array("grad_output")
    return [made]


@rule("slice_scatter")
def _slice_scatter(c: Call) -> Values:
    made = c.array("self")
    made[_sliced(c, made.ndim)] = c.array("src")
    return [made]


def _sliced(c: Call, ndim: int) -> tuple[slice, ...]:
    every = [slice(None)] * ndim
    every[axis(c.raw("dim", 0), ndim)] = slice(c.raw("start"), c.raw("end"), c.raw("step", 1))
    return tuple(every)


@rule("select_backward")
def _select_backward(c: Call) -> Values:
    made = c.f.zeros(tuple(c.raw("input_sizes")))
    np.moveaxis(made, axis(c.raw("dim"), made.ndim), 0)[c.raw("index")] = c.array("grad_output")
    return [made]


@rule("select_scatter")
def _select_scatter(c: Call) -> Values:
    made = c.array("self")
    np.moveaxis(made, axis(c.raw("dim"), made.ndim), 0)[c.raw("index")] = c.array("src")
    return [made]


@rule("unbind_copy")
def _unbind(c: Call) -> Values:
    x = c.array("self")
    return list(np.moveaxis(x, axis(c.raw("dim", 0), x.ndim), 0))


@rule("split_with_sizes_copy", "fsdp::split_with_sizes_copy")
def _split(c: Call) -> Values:
    x = c.array("self") if c.raw("self") is not None else c.array("all_gather_output")
    sizes = c.raw("split_sizes", c.raw("all_gather_input_split_sizes"))
    dim = axis(c.raw("dim", 0), x.ndim)
    parts = np.split(x, np.cumsum(sizes)[:-1], axis=dim)
    return [part.reshape(p.shape) for part, p in zip(parts, c.outs, strict=True)]


@rule("_chunk_cat", "fsdp::chunk_cat", "fsdp::chunk_cat_mixed_dtype")
def _chunk_cat(c: Call) -> Values:
    out, count = c.outs[0], c.raw("num_chunks")
    dim, rows = c.raw("dim", 0), []
    if dim != 0:
        return None
    parts = c.arrays("tensors")
    for k in range(count):
        for x in parts:
            each = -(-x.shape[0] // count)
            chunk = x[k * each:(k + 1) * each].ravel()
            rows.append(np.concatenate([chunk, c.f.zeros((each * int(np.prod(x.shape[1:])) - chunk.size,))]))
    return [np.concatenate(rows).reshape(out.shape)]


@rule("fsdp::all_gather_copy_in")
def _copy_in(c: Call) -> Values:
    """All inputs behind each other into this rank's share of the gather's output, which is returned beside it."""
    flat = np.concatenate([x.ravel() for x in c.arrays("all_gather_inputs")])
    share = next(p for p in c.made() if p.size == flat.size or p.size * p.item == flat.size)
    c.memory.view(share)[...] = flat.reshape(share.shape)
    return [c.memory.view(p).copy() for p in c.outs]


# ---------------------------------------------------------------------- chosen elements


@rule("embedding")
def _embedding(c: Call) -> Values:
    return [c.array("weight")[c.ints("indices")]]


@rule("embedding_dense_backward")
def _embedding_backward(c: Call) -> Values:
    g, rows = c.array("grad_output"), c.ints("indices")
    made = c.f.zeros((c.raw("num_weights"), g.shape[-1]))
    padding = c.raw("padding_idx", -1)
    for row, part in zip(rows.ravel().tolist(), g.reshape(-1, g.shape[-1]), strict=True):
        if row != padding:
            made[row] = c.f.add(made[row], part)
    return [made]


@rule("index_select")
def _index_select(c: Call) -> Values:
    x = c.array("self")
    return [np.take(x, c.ints("index"), axis(c.raw("dim"), x.ndim)) if x.ndim else x]


@rule("index")
def _index(c: Call) -> Values:
    return [c.array("self")[_indices(c)]]


def _indices(c: Call) -> tuple[Any, ...]:
    """The index of an array that a list of tensors and None says; None before tensors keeps a dim."""
    found: list[Any] = []
    for place in c.raw("indices"):
        found.append(slice(None) if place is None else c.held(place))
    return tuple(found)


@rule("index_put", "_index_put_impl")
def _index_put(c: Call) -> Values:
    x, values, where = c.array("self"), c.array("values"), _indices(c)
    if not c.raw("accumulate", False):
        x[where] = values
        return [x]
    return [_added(c, x, where, np.broadcast_to(values, x[where].shape))]


def _added(c: Call, x: Array, where: tuple[Any, ...], values: Array) -> Array:
    """Values added where indices say, an element as often as it is named."""
    places = np.arange(x.size).reshape(x.shape)[where].ravel()
    return c.f.added(x, places, values.ravel())


@rule("gather")
def _gather(c: Call) -> Values:
    x, where = c.array("self"), c.ints("index")
    if not x.ndim:
        return [x.reshape(where.shape)]
    dim = axis(c.raw("dim"), x.ndim)
    cut = tuple(slice(None) if d == dim else slice(n) for d, n in enumerate(where.shape))
    return [np.take_along_axis(x[cut], where, dim)]


def _scattered(c: Call, shape: tuple[int, ...]) -> Array:
    """The flat places that an index along a dim says."""
    where = c.ints("index")
    dim = axis(c.raw("dim"), len(shape))
    grid = list(np.indices(where.shape))
    grid[dim] = where
    return np.asarray(np.ravel_multi_index(tuple(grid), shape).ravel())


@rule("scatter")
def _scatter(c: Call) -> Values:
    if c.raw("reduce") is not None:
        return None
    x, places = c.array("self"), _scattered(c, c.raw("self").shape)
    values = c.array("src") if c.is_tensor("src") else np.broadcast_to(c.array("value"), c.ints("index").shape)
    cut = tuple(slice(n) for n in c.ints("index").shape)
    flat = x.ravel()
    flat[places] = values[cut].ravel()
    return [flat.reshape(x.shape)]


@rule("scatter_add")
def _scatter_add(c: Call) -> Values:
    x, places = c.array("self"), _scattered(c, c.raw("self").shape)
    cut = tuple(slice(n) for n in c.ints("index").shape)
    return [c.f.added(x, places, c.array("src")[cut].ravel())]


@rule("index_add", "index_copy")
def _index_add(c: Call) -> Values:
    x, values, rows = c.array("self"), c.array("source"), c.ints("index")
    dim = axis(c.raw("dim"), x.ndim)
    where = (slice(None),) * dim + (rows,)
    if "copy" in c.op.name:
        x[where] = values
        return [x]
    return [_added(c, x, where, c.f.mul(values, c.array("alpha", 1)))]


@rule("topk", "sort")
def _chosen(c: Call) -> Values:
    """What is chosen by values is where it really stood: the indices were recorded."""
    x = c.array("self")
    dim = axis(c.raw("dim", -1), x.ndim)
    made = c.made()
    where = made[1].held
    if where is None:
        return None
    cut = tuple(slice(None) if d == dim else slice(n) for d, n in enumerate(where.shape))
    return [np.take_along_axis(x[cut], where, dim)]


@rule("masked_select")
def _masked_select(c: Call) -> Values:
    x, mask = np.broadcast_arrays(c.array("self"), c.ints("mask").astype(bool))
    return [x[mask]]


@rule("masked_scatter")
def _masked_scatter(c: Call) -> Values:
    x = c.array("self")
    mask = np.broadcast_to(c.ints("mask").astype(bool), x.shape)
    x[mask] = c.array("source").ravel()[:int(mask.sum())]
    return [x]


@rule("cumsum")
def _cumsum(c: Call) -> Values:
    x = c.array("self")
    dim = axis(c.raw("dim"), x.ndim)
    made = np.moveaxis(x.copy(), dim, 0)
    for k in range(1, made.shape[0]):
        made[k] = c.f.add(made[k], made[k - 1])
    return [np.moveaxis(made, 0, dim)]
