"""As much of numpy as the simulator asks for, in Python alone: for a browser, for which registries have no numpy.

An array is the list of its elements, row by row, with its shape and the type of its elements. `reshape` shares the
list, so that what is written to an array in another shape is written; everything else copies. What numpy does and this
does not raises NotImplementedError. Numbers of int64 do not wrap around: the simulator keeps them below 2**63.
"""

from __future__ import annotations

import math
import numbers
import operator
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any

_WHOLE = (1 << 64) - 1
_ORDER = "buifO"
"""The kinds of elements; an operation on two of them makes the later one."""


@dataclass(frozen=True)
class Type:
    """The type of an array's elements; called on a number, the number as an array without dims."""

    kind: str
    name: str
    of: Callable[[Any], Any]

    def __call__(self, value: Any) -> Array:  # noqa: D102
        return Array([self.of(value)], (), self)


bool_ = Type("b", "bool", bool)
uint64 = Type("u", "uint64", lambda x: int(x) & _WHOLE)
int64 = Type("i", "int64", int)
float64 = Type("f", "float64", float)
object_ = Type("O", "object", lambda x: x)
_TYPES: dict[Any, Type] = {bool: bool_, int: int64, float: float64, object: object_}


def _type(of: Any) -> Type:
    return of if isinstance(of, Type) else _TYPES[of]


def _type_of(value: Any) -> Type:
    """The type of one element; anything that is no number of Python is an object."""
    return next((_TYPES[t] for t in (bool, int, float) if isinstance(value, t)), object_)


def _later(one: Type, other: Type) -> Type:
    return max(one, other, key=lambda t: _ORDER.index(t.kind))


class Element:
    """What indexing gives of an array of numbers: a number of Python that has a few methods of an array."""

    ndim, shape = 0, ()

    @property
    def dtype(self) -> Type:
        """The type of an array that holds it."""
        return _type_of(self)

    def item(self) -> Any:
        """The number itself."""
        return self.dtype.of(self)

    tolist = item

    def ravel(self) -> Array:
        """An array of one element."""
        return array([self])


class _Int(int, Element):
    pass


class _Float(float, Element):
    pass


def _element(value: Any, of: Type) -> Any:
    wraps: dict[str, Callable[[Any], Any]] = {"i": _Int, "f": _Float, "u": uint64}
    return wraps.get(of.kind, lambda x: x)(value)


def _strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[k + 1:]) for k in range(len(shape))]


def _outer(ways: Iterable[Iterable[int]]) -> list[int]:
    """The sums of one number from each, the last one's first."""
    found = [0]
    for steps in ways:
        own = list(steps)
        found = [at + step for at in found for step in own]
    return found


def _walk(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """The positions of the elements of a shape, where a step along each dim is so far."""
    return _outer(range(0, n * s, s) if s else [0] * n for n, s in zip(shape, strides, strict=True))


def _axes(axis: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    said = range(ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    return tuple(a % ndim for a in said)


class Array:
    """Elements in row-major order, a shape and a type."""

    def __init__(self, data: list[Any], shape: Iterable[int], dtype: Type) -> None:
        self.data, self.shape, self.dtype = data, tuple(shape), dtype

    def __class_getitem__(cls, _: Any) -> type[Array]:
        return cls

    @property
    def ndim(self) -> int:
        """How many dims there are."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many elements there are."""
        return len(self.data)

    @property
    def flat(self) -> Iterator[Any]:
        """The elements, row by row."""
        return (_element(x, self.dtype) for x in self.data)

    def item(self) -> Any:
        """The only element."""
        (only,) = self.data
        return only

    def tolist(self) -> Any:
        """The elements as nested lists."""
        found: list[Any] = list(self.data)
        for axis in range(self.ndim - 1, 0, -1):
            n = self.shape[axis]
            found = [found[k * n:(k + 1) * n] for k in range(math.prod(self.shape[:axis]))]
        return found if self.shape else found[0]

    def copy(self) -> Array:
        """The same elements in a list of their own."""
        return Array(list(self.data), self.shape, self.dtype)

    def astype(self, dtype: Any) -> Array:
        """The elements as another type."""
        to = _type(dtype)
        return Array([to.of(x) for x in self.data], self.shape, to)

    def reshape(self, *shape: Any) -> Array:
        """The same elements in another shape; -1 stands for what is left."""
        sizes = [int(n) for n in (shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)]
        if -1 in sizes:
            sizes[sizes.index(-1)] = self.size // max(1, -math.prod(sizes))
        if math.prod(sizes) != self.size:
            raise ValueError(f"{self.size} elements have no shape {sizes}")
        return Array(self.data, sizes, self.dtype)

    def ravel(self) -> Array:
        """The elements in one dim."""
        return self.reshape(-1)

    def transpose(self, *axes: Any) -> Array:
        """The dims in another order: by default the reverse."""
        order = list(axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes) or range(self.ndim)[::-1]
        own, shape = _strides(self.shape), [self.shape[a] for a in order]
        at = _walk(shape, [own[a] for a in order])
        return Array([self.data[k] for k in at], shape, self.dtype)

    def take(self, which: Any, axis: int) -> Array:
        """The elements at places of a dim; the dim goes where there is one place."""
        found = self[(slice(None),) * (axis % self.ndim) + (which if isinstance(which, int) else list(which),)]
        return found if isinstance(found, Array) else Array([found], (), self.dtype)

    def _at(self, key: Any) -> tuple[list[int], tuple[int, ...]]:
        """The positions that an index names, and their shape."""
        words: list[Any] = []
        for word in key if isinstance(key, tuple) else (key,):
            word = array(word) if isinstance(word, list | tuple | range) else word
            words += nonzero(word) if isinstance(word, Array) and word.dtype.kind == "b" and word.ndim else [word]
        used = sum(word is not None and word is not Ellipsis for word in words)
        whole = next((k for k, word in enumerate(words) if word is Ellipsis), len(words))
        words[whole:whole + 1] = [slice(None)] * (self.ndim - used)
        axis, ways, shape, chosen = 0, list[list[int]](), list[int](), list[int]()
        picked = [word for word in words if isinstance(word, Array) and word.ndim]
        common = broadcast_shapes(*(word.shape for word in picked))
        steps, offset = [0] * math.prod(common), 0
        strides = _strides(self.shape)
        for k, word in enumerate(words):
            if word is None:
                ways.append([0])
                shape.append(1)
                continue
            n, stride = self.shape[axis], strides[axis]
            axis += 1
            if isinstance(word, slice):
                inside = range(n)[word]
                ways.append([i * stride for i in inside])
                shape.append(len(inside))
                continue
            if picked:
                chosen.append(k)
            if isinstance(word, Array) and word.ndim:
                if not steps or len(chosen) == 1 or not any(w is steps for w in ways):
                    ways.append(steps)
                    shape += common
                for j, i in enumerate(broadcast_to(word, common).data):
                    steps[j] += _inside(i, n) * stride
            else:
                offset += _inside(operator.index(word), n) * stride
        if chosen and chosen[-1] - chosen[0] >= len(chosen):
            raise NotImplementedError("indices with a slice between them")
        return [offset + at for at in _outer(ways)], tuple(shape)

    def __getitem__(self, key: Any) -> Any:
        at, shape = self._at(key)
        if not shape and key is not Ellipsis:
            return _element(self.data[at[0]], self.dtype)
        return Array([self.data[k] for k in at], shape, self.dtype)

    def __setitem__(self, key: Any, value: Any) -> None:
        at, shape = self._at(key)
        if not shape and self.dtype.kind == "O" and not isinstance(value, Array):
            self.data[at[0]] = value
            return
        for k, x in zip(at, broadcast_to(value, shape).data, strict=True):
            self.data[k] = self.dtype.of(x)

    def __iter__(self) -> Iterator[Any]:
        return (self[k] for k in range(self.shape[0]))

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        return bool(self.item())

    def __index__(self) -> int:
        return operator.index(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"array({self.tolist()})"

    def __neg__(self) -> Array:
        return Array([self.dtype.of(-x) for x in self.data], self.shape, self.dtype)

    def __invert__(self) -> Array:
        of = operator.not_ if self.dtype.kind == "b" else operator.invert
        return Array([self.dtype.of(of(x)) for x in self.data], self.shape, self.dtype)

    def _along(self, of: Callable[[list[Any]], Any], axis: Any, keepdims: bool, dtype: Type) -> Any:
        """`of` what stands along some dims, for each place of the others; these dims go, or are kept with length 1."""
        axes = _axes(axis, self.ndim)
        rest = [a for a in range(self.ndim) if a not in axes]
        n = math.prod(self.shape[a] for a in axes)
        data = self.transpose([*rest, *axes]).data if self.ndim else self.data
        made = [dtype.of(of(data[k * n:(k + 1) * n])) for k in range(math.prod(self.shape[a] for a in rest))]
        kept = range(self.ndim) if keepdims else rest
        shape = [1 if a in axes else self.shape[a] for a in kept]
        return made[0] if dtype.kind == "O" and not shape else Array(made, shape, dtype)

    def sum(self, axis: Any = None, keepdims: bool = False) -> Any:
        """The sum along dims: by default of all elements."""
        return self._along(sum, axis, keepdims, int64 if self.dtype.kind == "b" else self.dtype)

    def max(self, axis: Any = None, initial: Any = None) -> Any:
        """The largest along dims: `initial` is one more element."""
        more = [] if initial is None else [initial]
        return self._along(lambda found: builtin_max(more + found), axis, False, self.dtype)

    def any(self, axis: Any = None) -> Any:
        """Whether some element along dims is not 0."""
        return self._along(builtin_any, axis, False, bool_)

    def all(self, axis: Any = None) -> Any:
        """Whether no element along dims is 0."""
        return self._along(builtin_all, axis, False, bool_)


builtin_any, builtin_all, builtin_max = any, all, max


def _inside(place: int, n: int) -> int:
    if not -n <= place < n:
        raise IndexError(f"{place} is outside of a dim of {n}")
    return place % n


def _divided(a: Any, b: Any) -> Any:
    """A quotient, as floats divide: by 0 it is infinite, or no number."""
    if b or not isinstance(b, int | float):
        return a / b
    return math.nan if not a or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)


def _elementwise(of: Callable[[Any, Any], Any], made: Type | None = None, turned: bool = False
                 ) -> Callable[[Any, Any], Any]:
    """An operation on two arrays, or an array and a number; a number of Python takes the type of the array.

    `made` is the type of what comes out, where that does not follow from both; `turned`: the operands change places.
    """
    def run(one: Any, other: Any) -> Any:
        one, other = (other, one) if turned else (one, other)
        if not (isinstance(one, _OPERANDS) and isinstance(other, _OPERANDS)):
            return NotImplemented
        left, right = asarray(one), asarray(other)
        shape = left.shape if left.shape == right.shape else broadcast_shapes(left.shape, right.shape)
        kinds = [t for t, x in ((left.dtype, one), (right.dtype, other)) if isinstance(x, Array)]
        weak = [t for t, x in ((left.dtype, one), (right.dtype, other)) if not isinstance(x, Array)]
        of_both = kinds[0] if len(kinds) == 1 and weak[0].kind in "bi" and kinds[0].kind != "b" else _later(
            left.dtype, right.dtype)
        to = made or (float64 if of is _divided and of_both.kind != "O" else of_both)
        pairs = zip(broadcast_to(left, shape).data, broadcast_to(right, shape).data, strict=True)
        return Array([to.of(of(x, y)) for x, y in pairs], shape, to)
    return run


_OPERANDS = (Array, list, numbers.Number)
"""What an operation takes; anything else does arithmetic with arrays itself."""

for _name in ("add", "sub", "mul", "mod", "floordiv", "pow", "xor", "rshift", "lshift", "and", "or", "truediv"):
    _of = _divided if _name == "truediv" else getattr(operator, f"__{_name}__")
    setattr(Array, f"__{_name}__", _elementwise(_of))
    setattr(Array, f"__r{_name}__", _elementwise(_of, turned=True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Array, f"__{_name}__", _elementwise(getattr(operator, _name), bool_))

maximum = _elementwise(lambda a, b: b if b > a else a)


def isclose(one: Any, other: Any, rtol: float = 1e-5, atol: float = 1e-8) -> Any:
    """Where two arrays differ by no more than atol + rtol |other|."""
    return _elementwise(lambda a, b: a == b or abs(a - b) <= atol + rtol * abs(b), bool_)(one, other)


def array(value: Any, dtype: Any = None) -> Array:
    """An array of nested sequences, numbers or arrays."""
    if isinstance(value, Array):
        return value.copy() if dtype is None else value.astype(dtype)
    if isinstance(value, list | tuple | range):
        parts = [array(one, dtype) for one in value]
        inner = parts[0].shape if parts else ()
        of = _type(dtype) if dtype is not None else float64
        if dtype is None and parts:
            of = parts[0].dtype
            for part in parts:
                of = _later(of, part.dtype)
        if builtin_any(part.shape != inner for part in parts):
            raise ValueError("rows of unequal lengths")
        return Array([of.of(x) for part in parts for x in part.data], (len(parts), *inner), of)
    of = _type_of(value) if dtype is None else _type(dtype)
    return Array([of.of(value)], (), of)


def asarray(value: Any) -> Array:
    """The array itself, or the array of something else."""
    return value if isinstance(value, Array) else array(value)


def full(shape: Any, value: Any, dtype: Any = None) -> Array:
    """An array of one value."""
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    of = _type_of(value) if dtype is None else _type(dtype)
    return Array([of.of(value)] * math.prod(sizes), sizes, of)


def zeros(shape: Any, dtype: Any = float) -> Array:
    """An array of 0."""
    return full(shape, 0, dtype)


def ones(shape: Any, dtype: Any = float) -> Array:
    """An array of 1."""
    return full(shape, 1, dtype)


def empty(shape: Any, dtype: Any = float) -> Array:
    """An array of 0; of objects, of None."""
    return full(shape, None if _type(dtype) is object_ else 0, dtype)


def zeros_like(like: Array) -> Array:
    """An array of 0 of the same shape and type."""
    return full(like.shape, 0, like.dtype)


def ones_like(like: Array) -> Array:
    """An array of 1 of the same shape and type."""
    return full(like.shape, 1, like.dtype)


def arange(*ends: int) -> Array:
    """The numbers of a range."""
    return array(range(*ends), int64)


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape to which all are repeated, along dims of length 1 or that they lack."""
    n, made = builtin_max((len(s) for s in shapes), default=0), list[int]()
    for sizes in zip(*((1,) * (n - len(s)) + tuple(s) for s in shapes), strict=True):
        others = {size for size in sizes if size != 1}
        if len(others) > 1:
            raise ValueError(f"shapes {shapes} do not agree")
        made.append(others.pop() if others else 1)
    return tuple(made)


def broadcast_to(value: Any, shape: Any) -> Array:
    """The array repeated along dims of length 1 or that it lacks."""
    of, wanted = asarray(value), (shape,) if isinstance(shape, int) else tuple(shape)
    if of.shape == wanted:
        return of
    if broadcast_shapes(of.shape, wanted) != wanted:
        raise ValueError(f"shape {of.shape} is not repeated to {wanted}")
    own = (1,) * (len(wanted) - of.ndim) + of.shape
    strides = [0 if n == 1 else s for n, s in zip(own, _strides(own), strict=True)]
    return Array([of.data[k] for k in _walk(wanted, strides)], wanted, of.dtype)


def stack(arrays: Iterable[Any], axis: int = 0) -> Array:
    """Arrays of one shape along a dim of their own."""
    parts = [asarray(one) for one in arrays]
    return moveaxis(array(parts), 0, axis)


def concatenate(arrays: Iterable[Any], axis: int = 0) -> Array:
    """Arrays one after the other along a dim."""
    parts = [moveaxis(asarray(one), axis, 0) for one in arrays]
    of = parts[0].dtype
    for part in parts:
        of = _later(of, part.dtype)
    inner = parts[0].shape[1:]
    made = Array([of.of(x) for p in parts for x in p.data], (sum(len(p) for p in parts), *inner), of)
    return moveaxis(made, 0, axis)


def moveaxis(of: Array, source: int, to: int) -> Array:
    """One dim at another place."""
    order = [a for a in range(of.ndim) if a != source % of.ndim]
    order.insert(to % of.ndim, source % of.ndim)
    return of if order == list(range(of.ndim)) else of.transpose(order)


def where(which: Any, one: Any, other: Any) -> Array:
    """The elements of `one` where `which` holds, else those of `other`."""
    parts = [asarray(x) for x in (which, one, other)]
    shape, of = broadcast_shapes(*(p.shape for p in parts)), _later(parts[1].dtype, parts[2].dtype)
    rows = zip(*(broadcast_to(p, shape).data for p in parts), strict=True)
    return Array([of.of(a if yes else b) for yes, a, b in rows], shape, of)


def divide(one: Any, other: Any, out: Array, where: Any) -> Array:
    """Quotients, in a copy of `out` where `where` does not hold."""
    shape = out.shape
    rows = zip(*(broadcast_to(x, shape).data for x in (one, other, where)), out.data, strict=True)
    return Array([float(_divided(a, b)) if yes else kept for a, b, yes, kept in rows], shape, float64)


def sum_of(value: Any, axis: Any = None) -> Any:
    """The sum of an array, or of arrays."""
    return asarray(value if isinstance(value, Array) else list(value)).sum(axis)


def max_of(value: Any, axis: Any = None, initial: Any = None) -> Any:
    """The largest element of an array."""
    return asarray(value).max(axis, initial)


def any_of(value: Any, axis: Any = None) -> Any:
    """Whether some element is not 0."""
    return asarray(value).any(axis)


def prod(value: Any, dtype: Any = None) -> Any:
    """The product of all elements."""
    found = math.prod(asarray(value).data)
    return found if dtype is None else _type(dtype).of(found)


def unique(value: Any) -> Array:
    """The different elements, sorted."""
    of = asarray(value)
    found = sorted(set(of.data))
    return Array(found, (len(found),), of.dtype)


def searchsorted(known: Array, value: Any) -> Array:
    """Where each element stands among sorted ones."""
    of = asarray(value)
    return Array([bisect_left(known.data, x) for x in of.data], of.shape, int64)


def argsort(of: Array, axis: int = -1, kind: str | None = None) -> Array:
    """The order that sorts the last dim; equal elements stay in order."""
    if axis % of.ndim != of.ndim - 1:
        raise NotImplementedError("argsort along another dim than the last")
    n = of.shape[-1]
    rows = (of.data[k:k + n] for k in range(0, of.size, n or 1))
    return Array([k for row in rows for k in sorted(range(n), key=row.__getitem__)], of.shape, int64)


def argmax(value: Any) -> int:
    """The place of the first of the largest elements."""
    data = asarray(value).data
    return data.index(builtin_max(data))


def flatnonzero(value: Any) -> Array:
    """The places of the elements that are not 0, in one dim."""
    return array([k for k, x in enumerate(asarray(value).data) if x], int64)


def nonzero(of: Array) -> tuple[Array, ...]:
    """The indices of the elements that are not 0, an array for each dim."""
    places = flatnonzero(of).data
    return tuple(array([k // s % n for k in places], int64)
                 for n, s in zip(of.shape, _strides(of.shape), strict=True))


def argwhere(value: Any) -> Array:
    """The indices of the elements that are not 0, a row for each."""
    of = asarray(value)
    return stack(nonzero(of), axis=1)


def indices(shape: Sequence[int]) -> Array:
    """For each dim an array of a shape, of the indices along it."""
    every = range(math.prod(shape))
    return array([Array([k // s % n for k in every], shape, int64)
                  for n, s in zip(shape, _strides(shape), strict=True)])


def ix_(*lists: Any) -> tuple[Array, ...]:
    """Indices that together name every combination of some along each dim."""
    return tuple(array(list(asarray(list(one) if not isinstance(one, Array) else one).data), int64).reshape(
        [-1 if a == k else 1 for a in range(len(lists))]) for k, one in enumerate(lists))


def einsum(one: Array, of_one: Sequence[int], other: Array, of_other: Sequence[int], kept: Sequence[int]) -> Array:
    """The product of two arrays with numbered dims, summed over those that are not kept."""
    sizes = {**dict(zip(of_one, one.shape, strict=True)), **dict(zip(of_other, other.shape, strict=True))}
    lost = [d for d in sizes if d not in kept]

    def places(of: Array, names: Sequence[int], dims: Sequence[int]) -> list[int]:
        own = dict(zip(names, _strides(of.shape), strict=True))
        return _walk([sizes[d] for d in dims], [own.get(d, 0) for d in dims])

    a, b, to = one.data, other.data, _later(one.dtype, other.dtype)
    inner = list(zip(places(one, of_one, lost), places(other, of_other, lost), strict=True))
    outer = zip(places(one, of_one, kept), places(other, of_other, kept), strict=True)
    return Array([to.of(sum(a[i + k] * b[j + n] for k, n in inner)) for i, j in outer], [sizes[d] for d in kept], to)


def errstate(**_: Any) -> AbstractContextManager[None]:
    """Nothing: no operation here warns."""
    return nullcontext()


def install() -> None:
    """Let `import numpy` find this module's functions, under numpy's names."""
    made, typing = ModuleType("numpy"), ModuleType("numpy.typing")
    own = {name: value for name, value in globals().items() if not name.startswith("__")}
    made.__dict__.update(own, ndarray=Array, sum=sum_of, max=max_of, any=any_of, typing=typing, number=Element,
                         __file__=__file__)
    typing.__dict__.update(NDArray=Array, ArrayLike=Any)
    sys.modules["numpy"], sys.modules["numpy.typing"] = made, typing

