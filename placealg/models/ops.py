"""The op set as data: what each op keeps for its backward, where it is linear, along which dims it cannot be split.

A nonlinear op declares its vector-Jacobian product once, as steps on the values it saves; the backward of a
linear or multilinear op is its transpose, derived in `backward.py`. Readers take both from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from placealg.frozen import FrozenMap

TAKEN_OF = "taken"
"""The attribute of an op of which the step takes the result: no op reads it."""


@dataclass(frozen=True, slots=True)
class KeptValue:
    """A value that an op makes beside its result and keeps for its backward.

    `dims` is a role: the kept value has that operand's dims ("y" is the result, "row" the result without `over`).
    `optional` values are counted on request only.
    """

    name: str
    element: str
    dims: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Backprop:
    """One line of a vector-Jacobian product: `output` with the dims of role `dims`, made from `inputs`.

    `kind` is einsum (sum the product over the dims that `dims` lacks), add, scale, unary, or carry: what is made at a
    place along the first dim of `over` reads the inputs at other places along it, and is linear in the first of them.
    `note` is the factor of a scale and the function of a unary or a carry. Roles: the operands' names, `y` the result,
    `dy` its gradient, the op's kept values, `row` (result without `over`), `grid` (the dims of the first two operands,
    but for those of `over` that the first has), `outer` (all dims of the first two operands and of the result), `inner`
    (those of `outer` but for the second of `over`).
    """

    output: str
    kind: str
    inputs: tuple[str, ...]
    dims: str
    note: str = ""


OpName = Literal[
    "einsum", "add", "scale", "rope", "cast", "copy", "rename", "fold", "unfold", "sum", "largest", "mul", "gelu",
    "silu", "tanh", "relu", "clamp", "sigmoid", "reciprocal", "rsqrt", "one_plus", "cube", "exp", "softplus",
    "dropout", "layer_norm", "rms_norm", "layer_norm_plain", "rms_norm_plain", "softmax_sink", "softmax", "logsumexp",
    "route", "one_hot", "flash", "flash_sink", "flash_rope", "scan", "delta", "scan_from", "delta_from", "left",
    "delta_left", "passed", "delta_passed", "entering", "delta_entering", "preceding", "conv", "conv_from", "tail",
    "lookup", "cross_entropy", "unit", "softmax_sink_within", "softmax_within", "flash_within", "flash_sink_within",
    "flash_rope_within"]
"""The name of a kind of op: a row of OPS."""

SEEN_BY = ("document", "document_kv")
"""The operands of an attention within documents: of the keys that a query would see it sees those of its document."""

POSITION = "position"
"""The operand of a rope that turns each token by its position as the data says it, not by its place."""

ATTRIBUTES = (*SEEN_BY, POSITION)

Over = Literal["", "whole", "partial", "statistics"]

OpFamily = Literal[
    "add", "cast", "conv", "copy", "cross_entropy", "dropout", "einsum", "flash", "largest", "logsumexp", "lookup",
    "mul", "norm", "one_hot", "rename", "rope", "route", "scale", "scan", "softmax", "sum", "unary", "unit"]
"""What kinds of op have in common that differ in their function alone."""


@dataclass(frozen=True, slots=True)
class OpKind:
    """One kind of op; kinds of one `family` differ in their function only (gelu and silu are both unary).

    `operands` names the operands' roles; `optional` of them may be missing at the end, and `*` takes any number.
    `saved` names what the backward reads besides gradients and parameters, by role; "partners" is each operand
    whose partner needs a gradient. `linear` is "each" (in each operand), "all" (in its operands together, which
    may all be partial), "table" (in the first operand) or "". `over` says what splitting along the op's `over`
    dims does: "whole" (cannot be split), "partial" (the result is a partial sum), "statistics" (the op contains
    one all-reduce for each of `merges`), or "" (no such dims). `view` results share their operand's storage.
    `zero_at_zero` ops make 0 where all that they read is 0, and so do their derivatives where their gradient is 0.
    Ops that are not `differentiable` give their operands no gradient. `element` is what one element of a result takes.
    An op that consists of several products has as many in its backward for the operand `alike`.
    """

    name: OpName
    family: OpFamily
    operands: tuple[str, ...]
    saved: tuple[str, ...] = ()
    linear: Literal["", "each", "all", "table"] = ""
    over: Over = ""
    merges: tuple[str, ...] = ()
    optional: int = 0
    view: bool = False
    random: bool = False
    kept: tuple[KeptValue, ...] = ()
    vjp: FrozenMap[str, tuple[Backprop, ...]] = FrozenMap()
    differentiable: bool = True
    zero_at_zero: bool = False
    element: str = "act"
    alike: str = ""

    @property
    def mixes(self) -> bool:
        """Whether a result reads whole rows along `over` of every operand that has them, not of the first alone."""
        return self.family in ("flash", "scan", "conv")

    @property
    def attributes(self) -> tuple[str, ...]:
        """The roles of operands that are attributes of tokens, by which it decides what sees what, or turns it."""
        return tuple(role for role in self.operands if role in ATTRIBUTES)


def _einsum(output: str, *inputs: str, dims: str) -> Backprop:
    return Backprop(output, "einsum", inputs, dims)


_STANDARDIZED = Backprop("xhat", "unary", ("x", "mean", "rstd"), "x", "standardize")
_NORM_X = (
    _STANDARDIZED,
    _einsum("g", "dy", "weight", dims="x"),
    _einsum("along", "g", "xhat", dims="row"),
    Backprop("minus_along", "scale", ("along",), "row", "-1/over"),
    _einsum("projection", "minus_along", "xhat", dims="x"),
    _einsum("total", "g", dims="row"),
    Backprop("minus_total", "scale", ("total",), "row", "-1/over"),
    Backprop("centred", "add", ("g", "minus_total", "projection"), "x"),
    _einsum("x.grad", "centred", "rstd", dims="x"),
)
_NORM_WEIGHT = (_STANDARDIZED, _einsum("weight.grad", "dy", "xhat", dims="weight"))
_NORM_BIAS = (_einsum("bias.grad", "dy", dims="bias"),)
_RMS = Backprop("xhat", "unary", ("x", "rstd"), "x", "standardize")
_RMS_X = (_RMS, *_NORM_X[1:5], Backprop("centred", "add", ("g", "projection"), "x"), _NORM_X[-1])


def _weightless(steps: tuple[Backprop, ...]) -> tuple[Backprop, ...]:
    """The product of a norm with x where there is no weight: what arrives is not multiplied by it."""
    return tuple(replace(s, inputs=tuple("dy" if name == "g" else name for name in s.inputs))
                 for s in steps if s.output != "g")


_PROBS = (
    _einsum("products", "q", "k", dims="grid"),
    Backprop("scores", "scale", ("products",), "grid", "factor"),
    Backprop("probs", "unary", ("scores", "lse"), "grid", "exp_minus"),
)
_DSCORES = (
    *_PROBS,
    _einsum("dprobs", "dy", "v", dims="grid"),
    _einsum("inner", "dy", "y", dims="row"),
    Backprop("minus_inner", "scale", ("inner",), "row", "-1"),
    Backprop("centred", "add", ("dprobs", "minus_inner"), "grid"),
    _einsum("dscores", "probs", "centred", dims="grid"),
    Backprop("dproducts", "scale", ("dscores",), "grid", "factor"),
)
_TWO_PRODUCTS = (
    _einsum("plain", "q", "k", dims="grid"),
    _einsum("rotated", "q_rope", "k_rope", dims="grid"),
    Backprop("products", "add", ("plain", "rotated"), "grid"),
)
_ROPE_PROBS = (*_TWO_PRODUCTS, *_PROBS[1:])
_ROPE_DSCORES = (*_TWO_PRODUCTS, *_DSCORES[1:])
_SOFTMAX = (
    _einsum("inner", "dy", "y", dims="row"),
    Backprop("minus_inner", "scale", ("inner",), "row", "-1"),
    Backprop("centred", "add", ("dy", "minus_inner"), "x"),
    _einsum("x.grad", "centred", "y", dims="x"),
)
_SINK = (
    *_SOFTMAX[:2],
    _einsum("seen", "y", dims="row"),
    Backprop("unseen", "unary", ("seen",), "row", "one_minus"),
    _einsum("sink.grad", "minus_inner", "unseen", dims="sink"),
)
_FLASH_SINK = (
    *_DSCORES[4:6],
    Backprop("unseen", "unary", ("sink", "lse"), "row", "exp_minus"),
    _einsum("sink.grad", "minus_inner", "unseen", dims="sink"),
)
_CROSS_ENTROPY = (
    Backprop("minus_one_hot", "unary", ("targets",), "x", "minus_one_hot"),
    Backprop("error", "add", ("softmax", "minus_one_hot"), "x"),
    _einsum("x.grad", "dy", "error", dims="x"),
)


def _carry(output: str, *inputs: str, note: str, dims: str = "outer") -> Backprop:
    return Backprop(output, "carry", inputs, dims, note)


_WROTE = ("k", "v", "decay", "beta")
_SCAN_STATES = (
    _carry("before", *_WROTE, note="before"),
    _carry("held", *_WROTE, note="held"),
    _einsum("written", "k", "v", "beta", dims="outer"),
    Backprop("after", "add", ("held", "written"), "outer"),
)
_READ = _einsum("read", "q", "dy", dims="outer")
_ADJOINT = (_READ, _carry("adjoint", "read", "decay", note="adjoint"))
_SCAN = {
    "k": (*_ADJOINT, _einsum("k.grad", "adjoint", "v", "beta", dims="k")),
    "v": (*_ADJOINT, _einsum("v.grad", "adjoint", "k", "beta", dims="v")),
    "q": (*_SCAN_STATES, _einsum("q.grad", "after", "dy", dims="q")),
    "decay": (*_ADJOINT, _SCAN_STATES[0], _einsum("decay.grad", "adjoint", "before", dims="decay")),
    "beta": (*_ADJOINT, _einsum("beta.grad", "adjoint", "k", "v", dims="beta")),
}
_DELTA_ERROR = (
    _carry("held", *_WROTE, note="held"),
    _einsum("seen", "held", "k", dims="inner"),
    Backprop("minus_seen", "scale", ("seen",), "inner", "-1"),
    Backprop("error", "add", ("v", "minus_seen"), "inner"),
)
_ALONG = (_READ, _carry("adjoint", "read", "decay", "k", "beta", note="adjoint"),
          _einsum("along", "adjoint", "k", dims="inner"))
_OF_SEEN = (_einsum("of_error", "along", "beta", dims="inner"),
            Backprop("of_seen", "scale", ("of_error",), "inner", "-1"))
_DELTA = {
    "k": (*_ALONG, *_OF_SEEN, *_DELTA_ERROR,
          _einsum("of_written", "adjoint", "error", "beta", dims="k"),
          _einsum("of_held", "held", "of_seen", dims="k"),
          Backprop("k.grad", "add", ("of_written", "of_held"), "k")),
    "v": (*_ALONG, _einsum("v.grad", "along", "beta", dims="v")),
    "q": (*_DELTA_ERROR,
          _einsum("written", "k", "error", "beta", dims="outer"),
          Backprop("after", "add", ("held", "written"), "outer"),
          _einsum("q.grad", "after", "dy", dims="q")),
    "decay": (*_ALONG, *_OF_SEEN,
              _einsum("of_key", "k", "of_seen", dims="outer"),
              Backprop("of_held", "add", ("adjoint", "of_key"), "outer"),
              _carry("before", *_WROTE, note="before"),
              _einsum("decay.grad", "of_held", "before", dims="decay")),
    "beta": (*_ALONG, *_DELTA_ERROR, _einsum("beta.grad", "along", "error", dims="beta")),
}


def _from_state(vjp: Mapping[str, tuple[Backprop, ...]], delta: bool) -> dict[str, tuple[Backprop, ...]]:
    """The product of a scan whose states begin with one that enters, which gets a gradient, too."""
    def begun(line: Backprop) -> Backprop:
        return replace(line, inputs=(*line.inputs, "state")) if line.note in ("before", "held") else line

    writing = ("decay", "k", "beta") if delta else ("decay",)
    return {**{role: tuple(map(begun, steps)) for role, steps in vjp.items()},
            "state": (_READ, _carry("state.grad", "read", *writing, note="entry", dims="state"))}


def _of_last(vjp: Mapping[str, tuple[Backprop, ...]]) -> dict[str, tuple[Backprop, ...]]:
    """The product of the last state of a scan: no query reads, and what arrives is its gradient."""
    def alone(line: Backprop) -> Backprop:
        return replace(line, inputs=("dy", *line.inputs[1:]), note="adjoint_of_last") if (
            line.output == "adjoint") else line

    return {role: tuple(alone(line) for line in steps if line.output != "read")
            for role, steps in vjp.items() if role != "q"}


def _of_passing(vjp: Mapping[str, tuple[Backprop, ...]]) -> dict[str, tuple[Backprop, ...]]:
    """The product of the matrix by which a delta rule multiplies what enters: its last state, with values of 0."""
    def valueless(line: Backprop) -> Backprop:
        if line.output == "minus_seen":
            return replace(line, output="error")
        return replace(line, inputs=tuple(name for name in line.inputs if name != "v"))

    return {role: tuple(valueless(line) for line in steps if line.output != "error")
            for role, steps in _of_last(vjp).items() if role != "v"}


_ENTERING = _carry("adjoint", "dy", "passed", "block", note="adjoint_of_entering", dims="left")
_BEFORE_BLOCK = _carry("before", "left", "passed", note="before_block", dims="left")
_ENTERED = {
    "left": (replace(_ENTERING, output="left.grad"),),
    "passed": (_ENTERING, _BEFORE_BLOCK, _einsum("passed.grad", "adjoint", "before", dims="passed")),
}
_DELTA_ENTERED = {
    **_ENTERED, "passed": (*_ENTERED["passed"][:2], _carry("passed.grad", "adjoint", "before", note="product",
                                                          dims="passed"))}
_CONV = {
    "x": (_einsum("spread", "dy", "weight", dims="outer"), _carry("x.grad", "spread", note="from_windows", dims="x")),
    "weight": (_carry("windows", "x", note="windows"), _einsum("weight.grad", "windows", "dy", dims="weight")),
}

_CONV_FROM = {
    "x": _CONV["x"],
    "weight": (_carry("windows", "x", "before", note="windows"), _CONV["weight"][1]),
    "before": (_CONV["x"][0], _carry("before.grad", "spread", note="from_windows_before", dims="before")),
}


def _linear(name: Literal["add", "scale", "rope", "cast", "copy", "rename", "sum"], over: Over = "",
            view: bool = False, operands: str = "x") -> OpKind:
    return OpKind(name, name, (operands,), linear="all", over=over, view=view, zero_at_zero=not (over or view))


def _unary(name: OpName, reads: str, zero_at_zero: bool = True) -> OpKind:
    slope = (Backprop("slope", "unary", (reads,), "x", f"slope_of_{name}"), _einsum("x.grad", "dy", "slope", dims="x"))
    return OpKind(name, "unary", ("x",), (reads,), vjp=FrozenMap({"x": slope}), zero_at_zero=zero_at_zero)


def _along(name: OpName, operands: tuple[str, ...], vjp: Mapping[str, tuple[Backprop, ...]], alike: str = "",
           family: OpFamily = "scan", saved: tuple[str, ...] | None = None) -> OpKind:
    return OpKind(name, family, operands, operands if saved is None else saved, over="whole", vjp=FrozenMap(vjp),
                  alike=alike)


_KINDS = (
    OpKind("einsum", "einsum", ("*",), ("partners",), "each"),
    _linear("add", operands="*"),
    _linear("scale"),
    OpKind("rope", "rope", ("x", POSITION), ("position",), linear="all", over="whole", optional=1, zero_at_zero=False),
    _linear("cast"),
    _linear("copy"),
    _linear("rename", view=True),
    OpKind("fold", "rename", ("x",), linear="all", view=True),
    OpKind("unfold", "rename", ("x",), linear="all", view=True),
    _linear("sum"),
    OpKind("largest", "largest", ("x",), differentiable=False, element="stat"),
    OpKind("mul", "mul", ("*",), ("partners",)),
    _unary("gelu", "x"),
    _unary("silu", "x"),
    _unary("tanh", "y"),
    _unary("relu", "y"),
    _unary("clamp", "x"),
    _unary("sigmoid", "y", zero_at_zero=False),
    _unary("reciprocal", "y", zero_at_zero=False),
    _unary("rsqrt", "y", zero_at_zero=False),
    _unary("one_plus", "y", zero_at_zero=False),
    _unary("cube", "x"),
    _unary("exp", "y", zero_at_zero=False),
    _unary("softplus", "x", zero_at_zero=False),
    OpKind("dropout", "dropout", ("x",), ("mask",), "all", random=True, kept=(KeptValue("mask", "mask", "y"),),
           vjp=FrozenMap({"x": (_einsum("x.grad", "dy", "mask", dims="x"),)}), zero_at_zero=True),
    OpKind("layer_norm", "norm", ("x", "weight", "bias"), ("x", "mean", "rstd"), over="whole", optional=1,
           kept=(KeptValue("mean", "stat", "row", True), KeptValue("rstd", "stat", "row", True)),
           vjp=FrozenMap({"x": _NORM_X, "weight": _NORM_WEIGHT, "bias": _NORM_BIAS})),
    OpKind("rms_norm", "norm", ("x", "weight"), ("x", "rstd"), over="whole",
           kept=(KeptValue("rstd", "stat", "row", True),),
           vjp=FrozenMap({"x": _RMS_X, "weight": (_RMS, _NORM_WEIGHT[-1])})),
    OpKind("layer_norm_plain", "norm", ("x",), ("x", "mean", "rstd"), over="whole",
           kept=(KeptValue("mean", "stat", "row", True), KeptValue("rstd", "stat", "row", True)),
           vjp=FrozenMap({"x": _weightless(_NORM_X)})),
    OpKind("rms_norm_plain", "norm", ("x",), ("x", "rstd"), over="whole",
           kept=(KeptValue("rstd", "stat", "row", True),),
           vjp=FrozenMap({"x": _weightless(_RMS_X)})),
    OpKind("softmax_sink", "softmax", ("x", "sink"), ("y",), over="whole",
           vjp=FrozenMap({"x": _SOFTMAX, "sink": _SINK})),
    OpKind("softmax", "softmax", ("x",), ("y",), over="whole", vjp=FrozenMap({"x": _SOFTMAX})),
    OpKind("logsumexp", "logsumexp", ("x",), ("x", "y"), over="whole", vjp=FrozenMap({"x": (
        Backprop("probs", "unary", ("x", "y"), "x", "exp_minus"), _einsum("x.grad", "dy", "probs", dims="x"))})),
    OpKind("route", "route", ("x",), over="whole", differentiable=False, element="ids"),
    OpKind("one_hot", "one_hot", ("ids",), over="", differentiable=False, element="ids"),
    OpKind("flash", "flash", ("q", "k", "v"), ("q", "k", "v", "y", "lse"), over="whole", alike="v",
           kept=(KeptValue("lse", "stat", "row"),), vjp=FrozenMap({
               "q": (*_DSCORES, _einsum("q.grad", "dproducts", "k", dims="q")),
               "k": (*_DSCORES, _einsum("k.grad", "dproducts", "q", dims="k")),
               "v": (*_PROBS, _einsum("v.grad", "probs", "dy", dims="v"))})),
    OpKind("flash_sink", "flash", ("q", "k", "v", "sink"), ("q", "k", "v", "y", "lse"), over="whole", alike="v",
           kept=(KeptValue("lse", "stat", "row"),), vjp=FrozenMap({
               "q": (*_DSCORES, _einsum("q.grad", "dproducts", "k", dims="q")),
               "k": (*_DSCORES, _einsum("k.grad", "dproducts", "q", dims="k")),
               "v": (*_PROBS, _einsum("v.grad", "probs", "dy", dims="v")),
               "sink": _FLASH_SINK})),
    OpKind("flash_rope", "flash", ("q", "k", "v", "q_rope", "k_rope"), ("q", "k", "v", "q_rope", "k_rope", "y", "lse"),
           over="whole", alike="v", kept=(KeptValue("lse", "stat", "row"),), vjp=FrozenMap({
               "q": (*_ROPE_DSCORES, _einsum("q.grad", "dproducts", "k", dims="q")),
               "k": (*_ROPE_DSCORES, _einsum("k.grad", "dproducts", "q", dims="k")),
               "v": (*_ROPE_PROBS, _einsum("v.grad", "probs", "dy", dims="v")),
               "q_rope": (*_ROPE_DSCORES, _einsum("q_rope.grad", "dproducts", "k_rope", dims="q_rope")),
               "k_rope": (*_ROPE_DSCORES, _einsum("k_rope.grad", "dproducts", "q_rope", dims="k_rope"))})),
    _along("scan", ("k", "v", "q", "decay", "beta"), _SCAN, "q"),
    _along("delta", ("k", "v", "q", "decay", "beta"), _DELTA, "q"),
    _along("scan_from", ("k", "v", "q", "decay", "beta", "state"), _from_state(_SCAN, False), "q"),
    _along("delta_from", ("k", "v", "q", "decay", "beta", "state"), _from_state(_DELTA, True), "q"),
    _along("left", _WROTE, _of_last(_SCAN), "beta"),
    _along("delta_left", _WROTE, _of_last(_DELTA), "beta"),
    _along("passed", ("decay",), {"decay": (_carry("others", "decay", note="others", dims="decay"),
                                            _einsum("decay.grad", "dy", "others", dims="decay"))}),
    _along("delta_passed", ("k", "decay", "beta"), _of_passing(_DELTA), "beta"),
    _along("entering", ("left", "passed", "block"), _ENTERED),
    _along("delta_entering", ("left", "passed", "block"), _DELTA_ENTERED),
    _along("preceding", ("left", "block"),
           {"left": (_carry("left.grad", "dy", "block", note="preceding", dims="left"),)}, saved=("block",)),
    _along("conv", ("x", "weight"), _CONV, "weight", "conv", ("x",)),
    _along("conv_from", ("x", "weight", "before"), _CONV_FROM, "weight", "conv", ("x", "before")),
    _along("tail", ("x",), {"x": (_carry("x.grad", "dy", note="tail", dims="x"),)}, "", "conv", ()),
    OpKind("lookup", "lookup", ("table", "ids"), ("ids",), "table", over="partial"),
    OpKind("cross_entropy", "cross_entropy", ("x", "targets"), ("softmax", "targets"), over="statistics",
           merges=("max", "sum", "sum"), kept=(KeptValue("softmax", "stat", "x"),),
           vjp=FrozenMap({"x": _CROSS_ENTROPY})),
    OpKind("unit", "unit", ("*",), random=True),
)


def _within(kind: OpKind) -> OpKind:
    """The same attention within documents: its scores are weighed, forward and backward, where a query sees the key."""
    def weighed(line: Backprop) -> Backprop:
        return replace(line, inputs=(*line.inputs, *SEEN_BY)) if line.note == "exp_minus" else line

    vjp = FrozenMap({role: tuple(map(weighed, steps)) for role, steps in kind.vjp.items()})
    saved = (*kind.saved, *SEEN_BY) if kind.family == "flash" else kind.saved
    return replace(kind, name=within(kind.name), operands=(*kind.operands, *SEEN_BY), saved=saved, vjp=vjp)


def within(name: str) -> OpName:
    """The kind of an attention within documents, from that of one in whole sequences.

    >>> within("flash"), within("layer_norm") in OPS
    ('flash_within', False)
    """
    return f"{name}_within"  # type: ignore[return-value]  # of the kinds of `ATTENDING`, a name of the list


ATTENDING = ("softmax", "softmax_sink", "flash", "flash_sink", "flash_rope")
"""The kinds of op that can be told which keys a query sees."""

OPS: Mapping[str, OpKind] = {kind.name: kind for kind in (
    *_KINDS, *(_within(kind) for kind in _KINDS if kind.name in ATTENDING))}
"""Name -> op kind: the whole op set.

Granularity is the fusion boundary: `silu` and `mul` are separate ops (8 bytes saved per element of a 16-bit SwiGLU),
the bias of a projection is an `add`, the weight and bias of a norm are operands of it, and `flash` is one op that
contains its attention factor; `flash_rope` adds to the scores the product of rotary parts that have dims of their own.
A `sink` is one more score of every row, which has no value (Xiao et al., arXiv 2309.17453, section 3.3). Norms called
`plain` have no weight. `clamp` cuts numbers off at a bound. `softplus` is the logarithm of one plus the exponential.
A `scan` has a state for each head, a matrix: at each place along its first `over` dim the state is multiplied by what
`decay` says, `beta` times the product of key and value is added to it, and the query reads it; a query sees what was
written at its own place. A `delta` writes `beta` times what the value differs in from what the key reads (Yang et al.,
arXiv 2412.06464, section 3.1). A `conv` is depthwise and causal: at a place it reads the places before it, as many as
its weight has taps, its own being the last.

Of a dim in blocks (`fold`, and back) such ops go along the places of each. `left` is the state that a block leaves
where it began with 0, `passed` that by which it multiplies the state that enters it; `entering` takes of these, of all
blocks, what enters the block of a number. `tail` are the last places of a block, `preceding` those of the block before.
`unit` is opaque: what it keeps is unknown, and it may draw. A `rope` mixes the elements along its `over` dim, so it is
not split along it. `route` chooses the largest elements along one dim, each as a one-hot row under a dim of the
choices: it is stored as one index per choice, and passes no gradient. Of `largest` a rank that holds a part has that
part's, which only a maximum over ranks completes.
"""
