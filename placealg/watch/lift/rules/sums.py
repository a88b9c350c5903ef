"""Rules of ops that sum: reductions, products of matrices, norms of layers, attention, losses."""

from __future__ import annotations

from typing import Any

import numpy as np

from placealg.watch.lift.field import Array
from placealg.watch.lift.rules.call import Call, Values, axes, axis, rule
from placealg.watch.lift.trace import Place


@rule("sum")
def _sum(c: Call) -> Values:
    x = c.array("self")
    return [c.f.sum(x, axes(c.raw("dim"), x.ndim), bool(c.raw("keepdim", False)))]


def mean(c: Call, x: Array, over: tuple[int, ...], keep: bool = False) -> Array:
    """The mean over some axes."""
    count = int(np.prod([x.shape[k] for k in over], dtype=np.int64))
    return c.f.mul(c.f.sum(x, over, keep), c.f.over(count))


@rule("mean")
def _mean(c: Call) -> Values:
    x = c.array("self")
    return [mean(c, x, axes(c.raw("dim"), x.ndim), bool(c.raw("keepdim", False)))]


@rule("amax", "max")
def _largest(c: Call) -> Values:
    x = c.array("self")
    if c.raw("other") is not None:
        return [c.f.larger(x, c.array("other"))]
    return [_largest_of(c, x)]


def _largest_of(c: Call, x: Array) -> Array:
    """The largest over the dims that a call says."""
    over = axes(c.raw("dim"), x.ndim)
    flat = np.moveaxis(x, over, range(-len(over), 0)).reshape(*(n for k, n in enumerate(x.shape) if k not in over), -1)
    return c.f.largest(flat, -1).reshape(c.outs[0].shape)


@rule("min", "amin")
def _smallest(c: Call) -> Values:
    if c.raw("other") is not None:
        return None
    return [c.f.minus(_largest_of(c, c.f.minus(c.array("self"))))]


@rule("logsumexp")
def _logsumexp(c: Call) -> Values:
    x = c.array("self")
    return [c.f.log(c.f.sum(c.f.exp(x), axes(c.raw("dim"), x.ndim), bool(c.raw("keepdim", False))))]


@rule("var", "var_mean", "std")
def _var(c: Call) -> Values:
    x = c.array("self")
    over = axes(c.raw("dim"), x.ndim)
    count = int(np.prod([x.shape[k] for k in over], dtype=np.int64))
    less = c.raw("correction", 1 if c.raw("unbiased", True) else 0)
    if count <= less:
        return None
    middle = mean(c, x, over, True)
    away = c.f.add(x, c.f.neg(middle))
    made = c.f.mul(c.f.sum(c.f.mul(away, away), over, bool(c.raw("keepdim", False))),
                   c.f.over(int(count - less)))
    if "std" in c.op.name:
        return [c.f.root(made)]
    return [made] if "mean" not in c.op.name else [made, middle.reshape(c.outs[1].shape)]


@rule("linalg_vector_norm", "norm")
def _norm(c: Call) -> Values:
    x = c.array("self")
    kind = c.raw("ord", c.raw("p", 2))
    over, keep = axes(c.raw("dim"), x.ndim), bool(c.raw("keepdim", False))
    if isinstance(kind, Place):
        return None
    if float(kind) == 2:
        return [c.f.root(c.f.sum(c.f.square(x), over, keep))]
    if float(kind) == 1:
        return [c.f.sum(c.f.oracle("abs", x), over, keep)]
    if float(kind) == float("inf"):
        return [_largest_of(c, c.f.oracle("abs", x))]
    return None


@rule("mm", "bmm")
def _product(c: Call) -> Values:
    return [c.f.product(c.array("self"), c.array("mat2"))]


@rule("mv", "dot")
def _vector(c: Call) -> Values:
    x, y = c.array("self"), c.array("vec") if c.is_tensor("vec") else c.array("tensor")
    made = c.f.product(x if x.ndim > 1 else x[None], y[:, None])
    return [made.reshape(c.outs[0].shape)]


@rule("addmm", "baddbmm", "addmv")
def _added_product(c: Call) -> Values:
    names = next(n for n in (("mat1", "mat2"), ("batch1", "batch2"), ("mat", "vec")) if c.is_tensor(n[0]))
    one, two = c.array(names[0]), c.array(names[1])
    made = c.f.product(one, two) if two.ndim > 1 else c.f.product(one, two[:, None])[:, 0]
    beta, alpha = c.raw("beta", 1), c.raw("alpha", 1)
    if alpha != 1:
        made = c.f.mul(made, c.of(alpha))
    if beta == 0:
        return [made]
    x = c.array("self")
    return [c.f.add(x if beta == 1 else c.f.mul(x, c.of(beta)), made)]


# ---------------------------------------------------------------------- norms of layers


@rule("native_layer_norm")
def _layer_norm(c: Call) -> Values:
    x, over = c.array("input"), tuple(range(-len(c.raw("normalized_shape")), 0))
    middle = mean(c, x, over, True)
    away = c.f.add(x, c.f.neg(middle))
    turn = c.f.reciprocal(c.f.root(c.f.add(mean(c, c.f.mul(away, away), over, True), c.array("eps"))))
    made = c.f.mul(away, turn)
    if c.is_tensor("weight"):
        made = c.f.mul(made, c.array("weight"))
    if c.is_tensor("bias"):
        made = c.f.add(made, c.array("bias"))
    return [v.reshape(p.shape) for v, p in zip((made, middle, turn), c.outs, strict=True)]


@rule("native_layer_norm_backward")
def _layer_norm_backward(c: Call) -> Values:
    count = len(c.raw("normalized_shape"))
    x, g, over = c.array("input"), c.array("grad_out"), tuple(range(-count, 0))
    turn, lead = c.array("rstd"), tuple(range(x.ndim - count))
    unit = c.f.mul(c.f.add(x, c.f.neg(c.array("mean"))), turn)
    inner = c.f.mul(g, c.array("weight")) if c.is_tensor("weight") else g
    back = c.f.add(inner, c.f.neg(c.f.add(mean(c, inner, over, True),
                                          c.f.mul(unit, mean(c, c.f.mul(inner, unit), over, True)))))
    return asked(c, (c.f.mul(turn, back), c.f.sum(c.f.mul(g, unit), lead), c.f.sum(g, lead)))


@rule("_weight_norm_interface")
def _weight_norm(c: Call) -> Values:
    v = c.array("v")
    norms = c.f.root(c.f.sum(c.f.square(v), _but(c, v), True))
    return [c.f.mul(v, c.f.div(c.array("g"), norms)), norms]


@rule("_weight_norm_interface_backward")
def _weight_norm_backward(c: Call) -> Values:
    up, v, g, norms = (c.array(n) for n in ("grad_w", "saved_v", "saved_g", "saved_norms"))
    along = c.f.sum(c.f.mul(up, v), _but(c, v), True)
    across = c.f.add(up, c.f.neg(c.f.mul(v, c.f.div(along, c.f.square(norms)))))
    return [c.f.mul(across, c.f.div(g, norms)), c.f.div(along, norms)]


def _but(c: Call, x: Array) -> tuple[int, ...]:
    """All dims but the one that the call names."""
    return tuple(d for d in range(x.ndim) if d != axis(c.raw("dim", 0), x.ndim))


def asked(c: Call, values: tuple[Array, ...]) -> list[Array]:
    """Those of some results that a mask asks for and that were made."""
    mask = list(c.raw("output_mask"))
    made = c.op.made if isinstance(c.op.made, list | tuple) else [c.op.made]
    return [v for v, on, place in zip(values, mask, made, strict=False) if on and isinstance(place, Place)]


# ---------------------------------------------------------------------- softmax, losses


def softmax(c: Call, x: Array, dim: int = -1, mask: Any = None) -> Array:
    """exp(x) over its sum; masked elements are 0."""
    e = c.f.exp(x)
    if mask is not None:
        e = np.where(mask, e, 0)
    return c.f.div(e, c.f.sum(e, (axis(dim, x.ndim),), True))


@rule("_softmax", "_safe_softmax")
def _softmax(c: Call) -> Values:
    return [softmax(c, c.array("self"), c.raw("dim"))]


@rule("_log_softmax")
def _log_softmax(c: Call) -> Values:
    x = c.array("self")
    return [c.f.sub(x, c.f.log(c.f.sum(c.f.exp(x), (axis(c.raw("dim"), x.ndim),), True)))]


@rule("_softmax_backward_data")
def _softmax_backward(c: Call) -> Values:
    g, o = c.array("grad_output"), c.array("output")
    over = (axis(c.raw("dim"), g.ndim),)
    return [c.f.mul(o, c.f.add(g, c.f.neg(c.f.sum(c.f.mul(g, o), over, True))))]


@rule("_log_softmax_backward_data")
def _log_softmax_backward(c: Call) -> Values:
    """g - softmax * sum(g), where softmax is exp of the output: x - log s has exp(x) / s."""
    g, o = c.array("grad_output"), c.array("output")
    over = (axis(c.raw("dim"), g.ndim),)
    return [c.f.add(g, c.f.neg(c.f.mul(c.f.exp(o), c.f.sum(g, over, True))))]


@rule("nll_loss_forward", "nll_loss2d_forward")
def _nll(c: Call) -> Values:
    x, kind = c.array("self"), c.raw("reduction", 1)
    rows, keep, weights = _targets(c, x)
    picked = np.take_along_axis(x, np.expand_dims(rows, 1), 1).squeeze(1) if x.ndim > 1 else x[rows]
    picked = np.where(keep, c.f.neg(picked if weights is None else c.f.mul(picked, weights)), 0)
    total = np.array(int(keep.sum()))
    if weights is not None:
        total = c.f.sum(np.where(keep, weights, 0), tuple(range(keep.ndim)))
    made = picked if kind == 0 else c.f.sum(picked, tuple(range(picked.ndim)))
    if kind == 1:
        made = c.f.div(made, total)
    return [made, *(np.broadcast_to(total if kind else c.f.zeros(()), p.shape) for p in c.outs[1:])]


def _targets(c: Call, x: Array) -> tuple[Any, Any, Array | None]:
    """(the class of each row, 0 where it is ignored; which count; their weights)."""
    target = c.ints("target")
    keep = target != c.raw("ignore_index", -100)
    rows = np.where(keep, target, 0)
    return rows, keep, c.array("weight")[rows] if c.is_tensor("weight") else None


@rule("nll_loss_backward", "nll_loss2d_backward")
def _nll_backward(c: Call) -> Values:
    x, g, kind = c.array("self"), c.array("grad_output"), c.raw("reduction", 1)
    rows, keep, weights = _targets(c, x)
    if kind == 1:
        g = c.f.div(g, c.array("total_weight"))
    each = np.broadcast_to(g, keep.shape)
    each = c.f.neg(each if weights is None else c.f.mul(each, weights))
    made = c.f.zeros(x.shape)
    each = np.where(keep, each, 0)
    if x.ndim > 1:
        np.put_along_axis(made, np.expand_dims(rows, 1), np.expand_dims(each, 1), 1)
    else:
        made[rows] = each
    return [made]


@rule("mse_loss")
def _mse(c: Call) -> Values:
    away = c.f.add(c.array("self"), c.f.neg(c.array("target")))
    made, kind = c.f.mul(away, away), c.raw("reduction", 1)
    every = tuple(range(made.ndim))
    return [made if kind == 0 else mean(c, made, every) if kind == 1 else c.f.sum(made, every)]


@rule("mse_loss_backward")
def _mse_backward(c: Call) -> Values:
    away = c.f.add(c.array("self"), c.f.neg(c.array("target")))
    by = c.f.mul(np.array(2), c.array("grad_output"))
    if c.raw("reduction", 1) == 1:
        by = c.f.mul(by, c.f.over(away.size))
    return [c.f.mul(away, by)]


# ---------------------------------------------------------------------- attention


def _scores(c: Call) -> tuple[Array, Array, Array, Array, Array, int]:
    """(queries, keys and values of all heads, probabilities, the scale, how often a head of keys is used)."""
    q, k, v = c.array("query"), c.array("key"), c.array("value")
    times = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, times, 1), np.repeat(v, times, 1)
    scale = np.array(c.f.number(c.raw("scale") if c.raw("scale") is not None else q.shape[-1] ** -0.5))
    x = c.f.mul(c.f.product(q, k.swapaxes(-1, -2)), scale)
    mask = np.tril(np.ones(x.shape[-2:], bool)) if c.raw("is_causal", False) else None
    given = c.raw("attn_mask")
    if given is not None:
        if given.dtype == "bool":
            mask = c.held(given)
        else:
            x = c.f.plus(x, c.of(given))
    return q, k, v, softmax(c, x, -1, mask), x if mask is None else np.where(mask, x, c.f.minus_infinity), times


@rule("_scaled_dot_product_flash_attention_for_cpu")
def _attention(c: Call) -> Values:
    if c.raw("dropout_p", 0):
        return None
    _, _, v, p, x, _ = _scores(c)
    made = c.f.product(p, v)
    total = c.f.log(c.f.sum(c.f.exp(x), (-1,)))
    return [made, *(total.reshape(place.shape) for place in c.outs[1:])]


@rule("_scaled_dot_product_flash_attention_for_cpu_backward")
def _attention_backward(c: Call) -> Values:
    if c.raw("dropout_p", 0):
        return None
    q, k, v, p, _, times = _scores(c)
    g, o = c.array("grad_out"), c.array("out")
    scale = np.array(c.f.number(c.raw("scale") if c.raw("scale") is not None else q.shape[-1] ** -0.5))

    def folded(z: Array) -> Array:
        return z if times == 1 else c.f.sum(z.reshape(z.shape[0], -1, times, *z.shape[2:]), (2,))

    d = c.f.mul(p, c.f.add(c.f.product(g, v.swapaxes(-1, -2)), c.f.neg(c.f.sum(c.f.mul(g, o), (-1,), True))))
    return [c.f.mul(c.f.product(d, k), scale), folded(c.f.mul(c.f.product(d.swapaxes(-1, -2), q), scale)),
            folded(c.f.product(p.swapaxes(-1, -2), g))]
