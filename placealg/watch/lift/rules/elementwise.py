"""Rules of ops that work element by element, on one tensor or on a list of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from placealg.watch.lift.field import Array
from placealg.watch.lift.rules.call import RULES, Call, Values, rule
from placealg.watch.lift.trace import Place


def _scaled(c: Call, name: str) -> Array:
    """An operand of a sum, times its number."""
    found = c.array(name)
    return found if c.raw("alpha", 1) == 1 else c.f.mul(found, c.array("alpha"))


@rule("add")
def _add(c: Call) -> Values:
    _meet(c)
    return [c.f.plus(c.array("self"), _scaled(c, "other"))]


@rule("sub")
def _sub(c: Call) -> Values:
    _meet(c)
    return [c.f.sub(c.array("self"), _scaled(c, "other"))]


@rule("rsub")
def _rsub(c: Call) -> Values:
    return [c.f.sub(c.array("other"), _scaled(c, "self"))]


@rule("mul")
def _mul(c: Call) -> Values:
    first, second = c.raw("self"), c.raw("other")
    if c.is_complex("self") or c.is_complex("other"):
        return _complex_product(c)
    _meet(c, product=True)
    x, y = c.of(first), c.of(second)
    if first == second and isinstance(first, Place):
        return [c.f.square(x)]
    return [c.f.mul(x, y)]


def _meet(c: Call, product: bool = False) -> None:
    """What was drawn meets what it is multiplied by or added to: it is an unknown of the element that each draw meets.

    Elements that are equal are told apart, as far as `memory.apart` says, by the last dims in which they stand, and the
    draws that one tensor meets by their order. A forward that runs again in backward must have drawn what it did
    before: then it masks as before.
    """
    first, second = c.raw("self"), c.raw("other")
    if not isinstance(first, Place) or not isinstance(second, Place):
        return
    noise, met = (second, first) if second.store in c.memory.random else (first, second)
    if noise.store not in c.memory.random:
        return
    drawn = np.asarray(c.memory.random[noise.store])
    x, scale = c.of(met), c.of(noise)
    again = (m for d, m in c.memory.drawn if c.op.phase == "backward" and np.array_equal(d, drawn))
    mask = next(again, None)
    if mask is None:
        before = c.memory.met.get(met.store, 0)
        c.memory.met[met.store] = before + 1
        each = _grouped(c, x, scale.shape)
        key = c.f.oracle("of a draw", _told_apart(c, each), np.array(before)) if before else _told_apart(c, each)
        mask, some = c.f.oracle("mask", key), (each.ravel() != 0) | (not product)  # of zeros nothing is left
        c.memory.masks.append((key.ravel()[some], drawn.ravel()[some], c.op.line))
        c.memory.drawn.append((drawn, mask))
    c.memory.put(noise, c.f.mul(mask, scale))


def _grouped(c: Call, x: Array, shape: tuple[int, ...]) -> Array:
    """What each of some numbers meets: an element, or one for all the elements that it is broadcast to."""
    whole = np.broadcast_shapes(x.shape, shape)
    over = tuple(d for d, n in enumerate((1,) * (len(whole) - len(shape)) + shape) if n == 1 < whole[d])
    if not over:
        return np.broadcast_to(x, shape)
    return c.f.oracle("of a group", _together(c, np.broadcast_to(x, whole), over)[0]).reshape(shape)


def _together(c: Call, x: Array, over: tuple[int, ...]) -> tuple[Array, Array]:
    """(one element for all that stand along some dims, the place of each of them among these)."""
    sizes = tuple(n if d in over else 1 for d, n in enumerate(x.shape))
    place = np.arange(int(np.prod(sizes, dtype=np.int64))).reshape(sizes)
    return c.f.sum(c.f.mul(x, c.f.leaf("place", place)), over, True), place


def _told_apart(c: Call, x: Array) -> Array:
    """An element for each of some, by its value, by those in its last dims, and by its place among these."""
    dims = min(c.memory.apart, x.ndim)
    if not dims:
        return x
    around, place = _together(c, x, tuple(range(x.ndim - dims, x.ndim)))
    return c.f.oracle("of a place", x, around, place)


def _complex_product(c: Call) -> Values:
    x, y = c.array("self"), c.array("other")
    if not c.is_complex("self") or not c.is_complex("other"):
        real, other = (x, y) if c.is_complex("other") else (y, x)
        real = real[..., None] if real.ndim else real
        return [c.f.mul(real, other)]
    a, b, u, v = x[..., 0], x[..., 1], y[..., 0], y[..., 1]
    return [np.stack([c.f.add(c.f.mul(a, u), c.f.neg(c.f.mul(b, v))), c.f.add(c.f.mul(a, v), c.f.mul(b, u))], -1)]


@rule("div")
def _div(c: Call) -> Values:
    if c.raw("rounding_mode") is not None:
        return None
    return [c.f.div(c.array("self"), c.array("other"))]


@rule("neg")
def _neg(c: Call) -> Values:
    return [c.f.minus(c.array("self"))]


@rule("reciprocal")
def _reciprocal(c: Call) -> Values:
    return [c.f.reciprocal(c.array("self"))]


@rule("sqrt")
def _sqrt(c: Call) -> Values:
    return [c.f.root(c.array("self"))]


@rule("rsqrt")
def _rsqrt(c: Call) -> Values:
    return [c.f.reciprocal(c.f.root(c.array("self")))]


@rule("exp")
def _exp(c: Call) -> Values:
    return [c.f.exp(c.array("self"))]


@rule("log")
def _log(c: Call) -> Values:
    return [c.f.log(c.array("self"))]


@rule("log1p")
def _log1p(c: Call) -> Values:
    return [c.f.log(c.f.plus(c.array("self"), np.array(1)))]


@rule("pow")
def _pow(c: Call) -> Values:
    base, by = c.raw("self"), c.raw("exponent")
    if isinstance(by, Place) or not isinstance(base, Place):
        return [c.f.oracle("pow", c.of(base), c.of(by))]
    x = c.of(base)
    if by == 2:
        return [c.f.square(x)]
    if by in (0.5, -0.5):
        return [c.f.root(x) if by > 0 else c.f.reciprocal(c.f.root(x))]
    if float(by).is_integer() and abs(by) < 2**20:
        made = c.f.power(x, abs(int(by)))
        return [made if by >= 0 else c.f.inverse(made)]
    return [c.f.oracle(f"pow {by}", x)]


def sigmoid(c: Call, x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return c.f.reciprocal(c.f.plus(np.ones_like(x), c.f.exp(c.f.minus(x))))


@rule("sigmoid")
def _sigmoid(c: Call) -> Values:
    return [sigmoid(c, c.array("self"))]


@rule("sigmoid_backward")
def _sigmoid_backward(c: Call) -> Values:
    g, o = c.array("grad_output"), c.array("output")
    return [c.f.mul(g, c.f.mul(o, c.f.add(np.array(1), c.f.neg(o))))]


@rule("silu")
def _silu(c: Call) -> Values:
    x = c.array("self")
    return [c.f.mul(x, sigmoid(c, x))]


@rule("silu_backward")
def _silu_backward(c: Call) -> Values:
    g, x = c.array("grad_output"), c.array("self")
    s = sigmoid(c, x)
    one = np.array(1)
    return [c.f.mul(g, c.f.mul(s, c.f.add(one, c.f.mul(x, c.f.add(one, c.f.neg(s))))))]


@rule("log_sigmoid_forward")
def _log_sigmoid(c: Call) -> Values:
    x = c.array("self")
    made = c.f.log(sigmoid(c, x))
    return [made, *(c.f.exp(c.f.minus(c.f.oracle("abs", x))) for p in c.outs[1:] if p.size)]


@rule("log_sigmoid_backward")
def _log_sigmoid_backward(c: Call) -> Values:
    g, x = c.array("grad_output"), c.array("self")
    return [c.f.mul(g, sigmoid(c, c.f.minus(x)))]


@rule("tanh")
def _tanh(c: Call) -> Values:
    return [c.f.oracle("tanh", c.array("self"))]


@rule("tanh_backward")
def _tanh_backward(c: Call) -> Values:
    g, o = c.array("grad_output"), c.array("output")
    return [c.f.mul(g, c.f.add(np.array(1), c.f.neg(c.f.mul(o, o))))]


@rule("gelu")
def _gelu(c: Call) -> Values:
    return [c.f.oracle(f"gelu {c.raw('approximate', 'none')}", c.array("self"))]


@rule("gelu_backward")
def _gelu_backward(c: Call) -> Values:
    slope = c.f.oracle(f"gelu' {c.raw('approximate', 'none')}", c.array("self"))
    return [c.f.mul(c.array("grad_output"), slope)]


@rule("threshold_backward")
def _threshold_backward(c: Call) -> Values:
    return [c.f.mul(c.array("grad_output"), c.f.oracle("above", c.array("self"), c.array("threshold")))]


@rule("abs", "cos", "sin", "erf", "relu", "sgn", "sign", "expm1", "floor", "ceil", "round", "tan", "trunc", "frac")
def _function(c: Call) -> Values:
    """A function of each element."""
    if c.raw("decimals", 0):
        return None
    return [c.f.oracle(c.op.name.split("::")[1].rstrip("_"), c.array("self"))]


SMOOTH = ("leaky_relu", "elu", "softplus", "hardtanh", "hardswish", "hardsigmoid", "mish", "smooth_l1_loss",
          "huber_loss", "binary_cross_entropy")
"""Functions of the elements of some tensors and of numbers, which have ops of their own for their derivatives."""


@rule(*SMOOTH, "binary_cross_entropy_with_logits", "atan", "atan2", "exp2", "log2", "logit", "xlogy", "logaddexp",
      "nan_to_num", "softshrink", "hardshrink", "erfc", "asinh")
def _of_elements(c: Call) -> Values:
    made = c.f.oracle(c.op.name.split("::")[1].rstrip("_"), *_operands(c))
    kind, every = c.raw("reduction", 0), tuple(range(made.ndim))
    return [c.f.mul(c.f.sum(made, every), c.f.over(made.size)) if kind == 1 else c.f.sum(made, every) if kind else made]


@rule(*(f"{name}_backward" for name in SMOOTH))
def _slope_of_elements(c: Call) -> Values:
    slope = c.f.oracle(c.op.name.split("::")[1].removesuffix("_backward") + "'", *_operands(c))
    made = c.f.mul(c.array("grad_output"), slope)
    return [c.f.mul(made, c.f.over(slope.size)) if c.raw("reduction", 0) == 1 else made]


def _operands(c: Call) -> list[Array]:
    """What a function of elements depends on, in the order of its arguments."""
    return [c.of(v) for k, v in c.given.items() if v is not None and k not in ("grad_output", "reduction")]


@rule("clamp", "clamp_max", "clamp_min")
def _clamp(c: Call) -> Values:
    made = c.array("self")
    for which in ("min", "max"):
        if c.raw(which) is not None:
            made = c.f.oracle(f"clamp {which}", made, c.array(which))
    return [made]


@rule("maximum")
def _maximum(c: Call) -> Values:
    return [c.f.larger(c.array("self"), c.array("other"))]


@rule("minimum")
def _minimum(c: Call) -> Values:
    return [c.f.minus(c.f.larger(c.f.minus(c.array("self")), c.f.minus(c.array("other"))))]


@rule("lerp")
def _lerp(c: Call) -> Values:
    x, w = c.array("self"), c.array("weight")
    return [c.f.add(x, c.f.mul(w, c.f.add(c.array("end"), c.f.neg(x))))]


@rule("addcmul")
def _addcmul(c: Call) -> Values:
    by = c.array("value", 1)
    one, two = c.raw("tensor1"), c.raw("tensor2")
    product = c.f.square(c.of(one)) if one == two else c.f.mul(c.of(one), c.of(two))
    return [c.f.add(c.array("self"), c.f.mul(product, by))]


@rule("addcdiv")
def _addcdiv(c: Call) -> Values:
    return [c.f.add(c.array("self"), c.f.mul(c.f.div(c.array("tensor1"), c.array("tensor2")), c.array("value", 1)))]


@rule("where")
def _where(c: Call) -> Values:
    if c.raw("self") is None:
        return None
    return [np.where(c.ints("condition").astype(bool), c.array("self"), c.array("other"))]


@rule("masked_fill")
def _masked_fill(c: Call) -> Values:
    return [np.where(c.ints("mask").astype(bool), c.array("value"), c.array("self"))]


@rule("_conj_physical")
def _conjugate(c: Call) -> Values:
    x = c.array("self")
    return [np.stack([x[..., 0], c.f.neg(x[..., 1])], -1)]


@rule("polar")
def _polar(c: Call) -> Values:
    r, angle = c.array("abs"), c.array("angle")
    return [np.stack([c.f.mul(r, c.f.oracle("cos", angle)), c.f.mul(r, c.f.oracle("sin", angle))], -1)]


def listed(name: str, c: Call) -> Values:
    """An op on lists of tensors: the same op on each, `_foreach_mul` the one of `mul`."""
    base = name.removeprefix("_foreach_")
    found = RULES.get(base)
    if found is None:
        return None
    listed_arguments = {k: v for k, v in c.given.items() if isinstance(v, list | tuple) and not isinstance(v, Place)}
    count = len(c.given["self"])
    made: list[Array] = []
    for k in range(count):
        given: dict[str, Any] = {n: v[k] if n in listed_arguments and len(v) == count else v
                                 for n, v in c.given.items()}
        for names, into in _NAMES.get(base, {}).items():
            if names in given and given[names] is not None:
                given[into] = given.pop(names)
        out = c.outs[k]
        writes = ("self",) if name.endswith("_") or c.op.name.endswith("_") else ()
        one = Call(replace(c.op, name=f"aten::{base}", given=given, made=out, writes=writes), c.memory, given)
        values = found(one)
        if values is None:
            return None
        made.append(values[0])
    return made


_NAMES = {
    **{n: {"scalar": "other", "scalars": "other", "tensor": "other"} for n in ("add", "sub", "mul", "div", "maximum",
                                                                               "minimum", "rsub")},
    "clamp_max": {"scalar": "max", "scalars": "max", "other": "max"},
    "clamp_min": {"scalar": "min", "scalars": "min", "other": "min"},
    "addcmul": {"scalars": "value", "tensors": "value"}, "addcdiv": {"scalars": "value", "tensors": "value"},
    "lerp": {"tensors1": "end", "weights": "weight", "scalars": "weight"},
}
"""What the arguments of ops on lists are called in the op on one tensor."""
