"""The builder by which a model is written down: declare the dims once, then one line per op.

Every line is checked as it is written, so an error points at it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from placealg.arith import Monomial
from placealg.errors import InputError, need
from placealg.frozen import FrozenMap
from placealg.models.graph import Graph, Loop, Op, Tensor, TensorKind, check_name, check_op, known, sparse_of, unit_of
from placealg.models.ops import OPS, TAKEN_OF, OpName
from placealg.models.shapes import result_dims

Size = str | int | Monomial
Dims = str | Iterable[str]
"""Names of dims, as a sequence or as words in one text."""


def graph(sizes: Mapping[str, Size] | None = None, **more: Size) -> Builder:
    """A builder of an op graph whose dims have these sizes: symbols, numbers or products of them.

    >>> g = graph(batch="b", embed="h", ffn="4*h")
    >>> x, target = g.data("data.input", "batch embed"), g.data("data.target", "batch embed")
    >>> w1, w2 = g.parameter("net.up.weight", "embed ffn"), g.parameter("net.down.weight", "ffn embed")
    >>> up = g.einsum("net.up", x, w1, to="batch ffn")
    >>> down = g.einsum("net.down", g.unary("net.gelu", up, "gelu"), w2, to="batch embed")
    >>> loss = g.einsum("loss.sum", down, target, to="")
    >>> built = g.build()
    >>> built.contracted(built.producer("net.down"))
    ('ffn',)
    >>> g.einsum("net.wrong", x, w1, to="batch fnn")
    Traceback (most recent call last):
    placealg.errors.InputError: op 'net.wrong': unknown dim 'fnn'; did you mean 'ffn'?
    """
    if sizes is not None:
        need(sizes, Mapping, "table of the sizes of dims")
    return Builder({**(sizes or {}), **more})


class Builder:
    """An op graph under construction: every method adds one tensor and returns it.

    An operand is a tensor or its name. `region` defaults to the name without its last component.
    """

    def __init__(self, sizes: Mapping[str, Size]):
        self.dims: FrozenMap[str, Monomial] = FrozenMap({d: _size(d, n) for d, n in sizes.items()})
        self._tensors: dict[str, Tensor] = {}
        self._ops: list[Op] = []
        self._open: dict[str, tuple[Monomial, str, str]] = {}
        self._around: dict[str, str] = {}
        self._wide = False

    @classmethod
    def beside(cls, graph: Graph, dims: Mapping[str, Monomial] = FrozenMap()) -> Builder:
        """A builder of further ops on the tensors of a graph that is there, with further dims."""
        made = cls({**graph.dims, **dims})
        made._tensors = dict(graph.tensors)
        return made

    @property
    def tensors(self) -> FrozenMap[str, Tensor]:
        """The tensors so far, by name."""
        return FrozenMap(self._tensors)

    @property
    def ops(self) -> tuple[Op, ...]:
        """The ops so far, in order."""
        return tuple(self._ops)

    def parameter(self, name: str, dims: Dims) -> Tensor:
        """A parameter; declaring it again with the same dims is the same parameter."""
        tensor = self._tensor(name, dims, "parameter", "w")
        if name in self._tensors and self._tensors[name] == tensor:
            return tensor
        return self._new(tensor)

    def data(self, name: str, dims: Dims) -> Tensor:
        """Numbers that come with the batch; they take no gradient."""
        return self._new(self._tensor(name, dims, "data", "act"))

    def ids(self, name: str, dims: Dims) -> Tensor:
        """Integer ids that come with the batch: tokens, positions, targets."""
        return self._new(self._tensor(name, dims, "data", "ids"))

    def repeat(self, unit: str, count: Size, first: Tensor | str) -> Tensor:
        """Open a unit of `count` equal instances; its input, `UNIT.in`, has the dims of `first`.

        The ops named after the unit are its body; the last of them is what the next instance reads.
        """
        (source,) = known((str(first),), self._tensors, f"{unit}.in")
        self._open[unit] = (_size(unit, count), f"{unit}.in", source.name)
        return self._new(Tensor(f"{unit}.in", source.dims))

    def enclose(self, region: str, inner: Iterable[str]) -> None:
        """Regions that stand in one more from here on: `layer.router` in `layer.moe` is `layer.moe.router`.

        >>> g = graph(batch="b", embed="h", expert="4")
        >>> g.enclose("layer.moe", ["layer.router"])
        >>> x = g.data("data.input", "batch embed")
        >>> w = g.parameter("layer.router.weight", "embed expert")
        >>> _ = g.einsum("layer.router.logits", x, w, to="batch expert")
        >>> _ = g.sum("loss.sum", "layer.router.logits")
        >>> g.build().regions
        ('layer.moe.router', 'loss')
        """
        self._around |= {name: f"{region}.{name.rpartition('.')[2]}" for name in inner}

    def einsum(self, name: str, *operands: Tensor | str, to: Dims, region: str | None = None) -> Tensor:
        """The product of the operands, summed over every dim that `to` lacks."""
        return self._op(name, "einsum", operands, to=to, region=region)

    def linear(self, name: str, x: Tensor | str, to: Dims, weight: Dims, bias: Dims | None = None,
               region: str | None = None) -> Tensor:
        """A projection with `NAME.weight`, and, where `bias` gives its dims, `NAME.bias` added as `NAME.biased`."""
        y = self.einsum(name, x, self.parameter(f"{name}.weight", weight), to=to, region=region)
        return y if bias is None else self.biased(name, y, bias)

    def biased(self, name: str, x: Tensor | str, dims: Dims) -> Tensor:
        """`NAME.biased`: `x` plus the parameter `NAME.bias`."""
        return self.add(f"{name}.biased", x, self.parameter(f"{name}.bias", dims), region=_region(name))

    def add(self, name: str, *operands: Tensor | str, region: str | None = None) -> Tensor:
        """The sum of the operands; the dims of one contain those of the others."""
        return self._op(name, "add", operands, region=region)

    def mul(self, name: str, *operands: Tensor | str, region: str | None = None) -> Tensor:
        """The elementwise product of the operands; the dims of one contain those of the others."""
        return self._op(name, "mul", operands, region=region)

    def sum(self, name: str, x: Tensor | str, to: Dims = "", region: str | None = None) -> Tensor:
        """The sum over every dim that `to` lacks."""
        return self._op(name, "sum", (x,), to=to, region=region)

    def statistic(self, name: str, x: Tensor | str, to: Dims = "", region: str | None = None) -> Tensor:
        """A sum of which the step takes the result, to move a parameter: no op reads it."""
        return self._op(name, "sum", (x,), to=to, attrs={TAKEN_OF: "yes"}, region=region)

    def largest(self, name: str, x: Tensor | str, to: Dims = "", region: str | None = None) -> Tensor:
        """The largest over every dim that `to` lacks, which the step takes to move a parameter: no op reads it."""
        return self._op(name, "largest", (x,), to=to, attrs={TAKEN_OF: "yes"}, region=region)

    def scale(self, name: str, x: Tensor | str, factor: str, region: str | None = None) -> Tensor:
        """The operand times a constant."""
        return self._op(name, "scale", (x,), attrs={"factor": factor}, region=region)

    def cast(self, name: str, x: Tensor | str, region: str | None = None) -> Tensor:
        """The operand in another number format: in 32 bits inside `wide`, else in that of activations."""
        return self._op(name, "cast", (x,), region=region)

    @contextmanager
    def wide(self, wanted: bool = True) -> Iterator[None]:
        """While it is open, what ops make of activations has 32 bits, where that is `wanted`."""
        before, self._wide = self._wide, wanted
        try:
            yield
        finally:
            self._wide = before

    def copy(self, name: str, x: Tensor | str, region: str | None = None) -> Tensor:
        """The operand in new storage."""
        return self._op(name, "copy", (x,), region=region)

    def rope(self, name: str, x: Tensor | str, over: Dims, region: str | None = None) -> Tensor:
        """Rotary positions: a rotation of the elements along `over`."""
        return self._op(name, "rope", (x,), over=over, region=region)

    def rename(self, name: str, x: Tensor | str, renamed: Mapping[str, str], region: str | None = None) -> Tensor:
        """The same storage under other names of dims."""
        for dim in renamed.values():
            self._known(name, dim)
        return self._op(name, "rename", (x,), rename=renamed, region=region)

    def unary(self, name: str, x: Tensor | str, function: str, region: str | None = None) -> Tensor:
        """An elementwise function: gelu, silu, tanh, relu, clamp, sigmoid, reciprocal, rsqrt, one_plus, cube, exp or
        softplus.
        """
        functions = {k.name: k for k in OPS.values() if k.family == "unary"}
        if function not in functions:
            raise InputError(f"op '{name}': unknown unary function '{function}'", name=function, valid=functions)
        return self._op(name, functions[function].name, (x,), region=region)

    def dropout(self, name: str, x: Tensor | str, region: str | None = None) -> Tensor:
        """The operand under a random mask."""
        return self._op(name, "dropout", (x,), region=region)

    def norm(self, name: str, x: Tensor | str, over: Dims, *, bias: bool = True, centred: bool | None = None,
             weight: bool = True, fused: bool = True, upcast: bool = False) -> Tensor:
        """`NAME.out`: layer norm with weight and bias, or, without bias, the root-mean-square norm with weight.

        `centred` says that it is a layer norm where there is no bias; without `weight` it has no parameters. A
        root-mean-square norm that is not `fused` is written out, and keeps what it multiplies by its weight, too; with
        `upcast` it is computed on a copy of 32 bits.
        """
        shifted = bias if centred is None else centred
        if not shifted and not fused:
            return self._written_norm(name, x, over, weight, upcast)
        if not weight:
            return self._op(f"{name}.out", "layer_norm_plain" if shifted else "rms_norm_plain", (x,), over=over)
        parameters = [self.parameter(f"{name}.{p}", over) for p in (("weight", "bias") if bias else ("weight",))]
        return self._op(f"{name}.out", "layer_norm" if shifted else "rms_norm", (x, *parameters), over=over)

    def _written_norm(self, name: str, x: Tensor | str, over: Dims, weight: bool, upcast: bool) -> Tensor:
        """The root-mean-square norm as products, sums and a root."""
        (read,) = known((str(x),), self._tensors, name)
        with self.wide(upcast):
            x = self.cast(f"{name}.wide", x) if upcast else x
            square = self.mul(f"{name}.square", x, x)
            total = self.sum(f"{name}.total", square, [d for d in read.dims if d not in _words(over)], region=name)
            share = self.unary(f"{name}.rstd", self.scale(f"{name}.mean", total, "1/over"), "rsqrt")
            named = f"{name}.standard" if weight or upcast else f"{name}.out"
            standard = self.mul(named, x, share)
        if upcast:
            standard = self.cast(f"{name}.narrow" if weight else f"{name}.out", standard)
        return self.mul(f"{name}.out", standard, self.parameter(f"{name}.weight", over)) if weight else standard

    def softmax(self, name: str, x: Tensor | str, over: Dims, region: str | None = None,
                sink: Tensor | str | None = None, upcast: bool = False, **attrs: str) -> Tensor:
        """The softmax over dims; a `sink` is one more score of every row, which no result belongs to.

        With `upcast` it is taken of a copy of 32 bits.
        """
        if upcast:
            inside = region or _region(name)
            with self.wide():
                scores = self.cast(f"{name}.wide", x, inside)
                probs = self.softmax(f"{name}.softmax", scores, over, inside, sink, False, **attrs)
            return self.cast(name, probs, region)
        if sink is not None:
            return self._op(name, "softmax_sink", (x, sink), over=over, region=region, attrs=attrs)
        return self._op(name, "softmax", (x,), over=over, region=region, attrs=attrs)

    def logsumexp(self, name: str, x: Tensor | str, over: Dims, region: str | None = None) -> Tensor:
        """The logarithm of the sum of exponentials over dims."""
        return self._op(name, "logsumexp", (x,), over=over, region=region)

    def flash(self, name: str, q: Tensor | str, k: Tensor | str, v: Tensor | str, over: Dims,
              region: str | None = None, rotary: Iterable[Tensor | str] = (), sink: Tensor | str | None = None,
              **attrs: str) -> Tensor:
        """Attention as one op; `over` are the head dims, which scores contract, and the dim of the keys.

        `rotary` are a query and a key with a head dim of their own, whose product is added to the scores; then `over`
        names that dim and the head dim of the values too.
        """
        more = (sink,) if sink is not None else tuple(rotary)
        kind: OpName = "flash_sink" if sink is not None else "flash_rope" if more else "flash"
        return self._op(name, kind, (q, k, v, *more), over=over, region=region, attrs=attrs)

    def scan(self, name: str, k: Tensor | str, v: Tensor | str, q: Tensor | str, decay: Tensor | str,
             beta: Tensor | str, over: Dims, *, delta: bool = False, region: str | None = None,
             state: Tensor | str | None = None) -> Tensor:
        """What queries read of states, a matrix for each head; `over` is the dim that they go along, and that of keys.

        `decay` multiplies a state before each write, `beta` what is written. With `delta` a value is written less
        what its key reads. The states begin with 0, or with `state`.
        """
        kind: OpName = ("delta" if delta else "scan") if state is None else "delta_from" if delta else "scan_from"
        return self._op(name, kind, (k, v, q, decay, beta, *([] if state is None else [state])), over=over,
                        region=region)

    def conv(self, name: str, x: Tensor | str, weight: Tensor | str, over: Dims, region: str | None = None,
             before: Tensor | str | None = None) -> Tensor:
        """The depthwise causal convolution along the first of `over`; the second is the dim of the weight's taps.

        Before the first place stands 0, or what is `before`.
        """
        if before is not None:
            return self._op(name, "conv_from", (x, weight, before), over=over, region=region)
        return self._op(name, "conv", (x, weight), over=over, region=region)

    def fold(self, name: str, x: Tensor | str, along: str, into: tuple[str, str], region: str | None = None) -> Tensor:
        """The same storage with the dim `along` as blocks and places in them."""
        (read,) = known((str(x),), self._tensors, name)
        to = [e for d in read.dims for e in (into if d == along else (d,))]
        return self._op(name, "fold", (x,), to=to, rename={along: into[0]}, region=region)

    def unfold(self, name: str, x: Tensor | str, along: str, of: tuple[str, str], region: str | None = None) -> Tensor:
        """The same storage with blocks and places in them as the dim `along`."""
        (read,) = known((str(x),), self._tensors, name)
        to = [along if d == of[0] else d for d in read.dims if d != of[1]]
        return self._op(name, "unfold", (x,), to=to, rename={of[0]: along}, region=region)

    def left(self, name: str, k: Tensor | str, v: Tensor | str, decay: Tensor | str, beta: Tensor | str, over: Dims, *,
             delta: bool = False, region: str | None = None) -> Tensor:
        """The last state of a scan."""
        return self._op(name, "delta_left" if delta else "left", (k, v, decay, beta), over=over, region=region)

    def passed(self, name: str, k: Tensor | str, decay: Tensor | str, beta: Tensor | str, over: Dims, *,
               delta: bool = False, region: str | None = None) -> Tensor:
        """By what a scan multiplies the state that enters it: a product of decays, or, with `delta`, a matrix.

        The third of `over` is then the dim of the keys of what enters.
        """
        if delta:
            return self._op(name, "delta_passed", (k, decay, beta), over=over, region=region)
        return self._op(name, "passed", (decay,), over=_words(over)[:1], region=region)

    def entering(self, name: str, left: Tensor | str, passed: Tensor | str, block: Tensor | str, over: Dims, *,
                 delta: bool = False, region: str | None = None) -> Tensor:
        """The state that enters each block, from what all of them leave and pass on; `block` are their numbers."""
        return self._op(name, "delta_entering" if delta else "entering", (left, passed, block), over=over,
                        region=region)

    def tail(self, name: str, x: Tensor | str, over: Dims, region: str | None = None) -> Tensor:
        """The last places along the first of `over`, as the second."""
        return self._op(name, "tail", (x,), over=over, region=region)

    def preceding(self, name: str, x: Tensor | str, block: Tensor | str, over: str,
                  region: str | None = None) -> Tensor:
        """What the block before each has, of all along `over`; `block` are their numbers."""
        return self._op(name, "preceding", (x, block), over=over, region=region)

    def lookup(self, name: str, table: Tensor | str, ids: Tensor | str, over: Dims,
               region: str | None = None) -> Tensor:
        """The rows of a table, one per id."""
        return self._op(name, "lookup", (table, ids), over=over, region=region)

    def cross_entropy(self, name: str, x: Tensor | str, targets: Tensor | str, over: Dims,
                      region: str | None = None) -> Tensor:
        """The cross entropy of logits against target ids, one number per target."""
        return self._op(name, "cross_entropy", (x, targets), over=over, region=region)

    def route(self, name: str, x: Tensor | str, over: str, choice: str, region: str | None = None) -> Tensor:
        """Of each row along `over` the largest elements, as many as the dim `choice` has: a one-hot row for each."""
        (read,) = known((str(x),), self._tensors, name)
        rest = [d for d in read.dims if d != over]
        return self._op(name, "route", (x,), to=(*rest, choice, over), over=(over, choice), region=region)

    def one_hot(self, name: str, ids: Tensor | str, over: str, region: str | None = None) -> Tensor:
        """Of each id a row along `over`, 1 where the id names it."""
        return self._op(name, "one_hot", (ids,), over=(over,), region=region)

    def opaque(self, name: str, *operands: Tensor | str, to: Dims) -> Tensor:
        """A unit of which only operands and result are known."""
        return self._op(name, "unit", operands, to=to)

    def build(self) -> Graph:
        """The graph, checked as a whole: every tensor is read, every repeated unit ends as it begins."""
        loops = []
        for unit, (count, slot, first) in self._open.items():
            body = [op.output for op in self._ops if op.unit == unit]
            loops.append(Loop(unit, count, slot, first, body[-1] if body else slot))
        return Graph(FrozenMap(self._tensors), tuple(self._ops), tuple(loops))

    def _op(self, name: str, kind: OpName, operands: Iterable[Tensor | str], *, to: Dims | None = None, over: Dims = (),
            rename: Mapping[str, str] | None = None, attrs: Mapping[str, str] | None = None,
            region: str | None = None) -> Tensor:
        inputs = known(map(str, operands), self._tensors, name)
        given = [(t.name, tuple(t.dims), t.element) for t in inputs]
        here = _region(name) if region is None else region
        op = Op(name, kind, tuple(t.name for t in inputs), self._around.get(here, here), _words(over),
                FrozenMap(rename), FrozenMap(attrs))
        result = result_dims(op.row, given, op.over, op.rename) if to is None else _words(to)
        element = "stat" if self._wide and op.row.element == "act" else op.row.element
        made = self._tensor(name, result, "activation", element)
        check_op(op, self._tensors, result)
        self._new(replace(made, sparse=sparse_of(op, self._tensors, result)))
        self._ops.append(op)
        return made

    def _tensor(self, name: str, dims: Dims, kind: TensorKind, element: str) -> Tensor:
        words = _words(dims)
        return Tensor(name, FrozenMap({d: self._known(name, d) for d in words}), kind, element)

    def _known(self, name: str, dim: str) -> Monomial:
        if dim not in self.dims:
            raise InputError(f"op '{name}': unknown dim '{dim}'", name=dim, valid=self.dims)
        return self.dims[dim]

    def _new(self, tensor: Tensor) -> Tensor:
        check_name(tensor.name)
        if tensor.name in self._tensors:
            raise InputError(f"op '{tensor.name}': there is a tensor of this name; an op makes a new one")
        self._tensors[tensor.name] = tensor
        return tensor


def _size(dim: str, size: Size) -> Monomial:
    if isinstance(size, Monomial):
        return size
    try:
        found = Monomial.parse(str(size))
    except InputError as error:
        raise error.at(f"dim '{dim}'") from None
    if found.coefficient <= 0:
        raise InputError(f"dim '{dim}' has size {size}; a size is positive")
    return found


def _words(dims: Dims) -> tuple[str, ...]:
    return tuple(dims.split()) if isinstance(dims, str) else tuple(dims)


def _region(name: str) -> str:
    return name.rpartition(".")[0] or unit_of(name)
