"""Which dims each kind of op takes and makes: faults are one line that names the op and says what would fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from placealg.errors import InputError
from placealg.models.ops import OpKind

Dims = tuple[str, ...]
Operand = tuple[str, Dims, str]
"""An operand's name, dims and element."""


def result_dims(kind: OpKind, operands: Sequence[Operand], over: Dims, rename: Mapping[str, str]) -> Dims:
    """The dims an op makes when nothing else is said: einsum and sum need to be told.

    >>> from placealg.models.ops import OPS
    >>> result_dims(OPS["lookup"], [("t", ("vocab", "embed"), "w"), ("i", ("seq",), "ids")], ("vocab",), {})
    ('seq', 'embed')
    """
    dims = [d for _, d, _ in operands]
    if not dims:
        return ()
    if kind.name in ("add", "mul"):
        return max(dims, key=len)
    if kind.name == "lookup":
        return (*dims[-1], *_without(dims[0], over))
    if kind.name in ("cross_entropy", "logsumexp"):
        return _without(dims[0], over)
    if kind.name == "one_hot":
        return (*dims[0], *over)
    if kind.family in ("scan", "conv"):
        return _along(kind, dims, over)
    if kind.family == "flash":
        return (*_without(dims[0], over), *(d for d in dims[2] if d in over and d not in _keys(dims[0], dims[1], over)))
    return tuple(rename.get(d, d) for d in dims[0])


def _along(kind: OpKind, dims: Sequence[Dims], over: Dims) -> Dims:
    """The dims that an op makes which goes along the first of `over`: those of values, of states, or of its operand."""
    if kind.name in ("left", "delta_left"):
        return _without((*dict.fromkeys((*dims[0], *dims[1])),), over[:1])
    if kind.name in ("passed", "delta_passed"):
        return (*_without((*dict.fromkeys((*dims[0], *dims[-2:][0])),), over[:1]), *over[2:])
    if kind.name in ("entering", "delta_entering", "preceding"):
        return (*dims[-1], *_without(dims[0], over[:1]))
    if kind.name == "tail":
        return (*_without(dims[0], over[:1]), *over[1:])
    return dims[1] if kind.family == "scan" else dims[0]


def check_dims(where: str, kind: OpKind, operands: Sequence[Operand], over: Dims, rename: Mapping[str, str],
               result: Dims) -> None:
    """An InputError, placed at `where`, unless an op of `kind` maps `operands` to a tensor with dims `result`."""
    _check_number(where, kind, operands)
    operands = _without_attributes(where, kind, operands, over)
    dims = [d for _, d, _ in operands]
    everywhere = tuple(dict.fromkeys(d for ds in dims for d in ds))
    _check_over(where, kind, dims[0], over)
    if kind.name == "unit":
        return
    if kind.name in ("einsum", "sum", "largest"):
        for dim in result:
            if dim not in everywhere:
                raise InputError(f"the result has '{dim}', which no operand has", where=where, name=dim,
                                 valid=everywhere)
        _check_once(where, result)
        return
    if kind.name in ("fold", "unfold"):
        less, more = (set(result), {rename.get(d, d) for d in dims[0]})[::1 if kind.name == "unfold" else -1]
        if not less < more or len(more) != len(less) + 1 or len(rename) != 1:
            _fail(where, f"one dim becomes blocks and places in them, or back; given {_shown(dims[0])} and "
                         f"{_shown(result)}")
        return
    if kind.name == "route":
        _check_once(where, result)
        if over[0] not in dims[0] or set(result) != {*dims[0], *over} or len(result) != len(dims[0]) + 1:
            _fail(where, f"over is the dim to choose along and the dim of the choices; given {_shown(over)}, from "
                         f"{_shown(dims[0])} to {_shown(result)}")
        return
    _check_operands(where, kind, operands, over, rename)
    _check_once(where, result)
    want = result_dims(kind, operands, over, rename)
    if set(want) != set(result):
        _fail(where, f"the result has dims {_shown(result)}; its operands give {_shown(want)}")


def _check_once(where: str, result: Dims) -> None:
    for dim in result:
        if result.count(dim) > 1:
            _fail(where, f"the result has '{dim}' twice")


def _check_number(where: str, kind: OpKind, operands: Sequence[Operand]) -> None:
    most = None if kind.operands == ("*",) else len(kind.operands)
    least = 1 if most is None else most - kind.optional
    if len(operands) < least or (most is not None and len(operands) > most):
        takes = "one or more operands" if most is None else f"{', '.join(kind.operands)}"
        _fail(where, f"it takes {takes}; given {len(operands)}")


def _check_over(where: str, kind: OpKind, first: Dims, over: Dims) -> None:
    if kind.over and not over:
        _fail(where, "it needs the dims it works over", first)
    if kind.name == "one_hot":
        if len(over) != 1 or over[0] in first:
            _fail(where, f"over is the dim of what its ids name; given {_shown(over)}")
        return
    if over and not kind.over:
        _fail(where, f"it works over no dim; given {_shown(over)}")
    for dim in over:
        if dim not in first and kind.family not in ("scan", "conv", "flash", "route", "one_hot"):
            raise InputError(f"its first operand has no dim '{dim}'", where=where, name=dim, valid=first)
    if kind.over in ("partial", "statistics") and len(over) != 1:
        _fail(where, f"it works over one dim; given {_shown(over)}")


def _without_attributes(where: str, kind: OpKind, operands: Sequence[Operand], over: Dims) -> Sequence[Operand]:
    """The operands that are no attributes of tokens; those that are have one number for each query, or each key."""
    own = [o for o, role in zip(operands, kind.operands, strict=False) if role not in kind.attributes]
    for (name, dims, _), role in zip(operands, kind.operands, strict=False):
        if role in kind.attributes:
            every = {d for _, ds, _ in own for d in ds}
            if not set(dims) <= every:
                _fail(where, f"'{name}' has dims {_shown(dims)}, not among those of what it is an attribute of")
            if bool(set(dims) & set(over)) != role.endswith(KEY):
                _fail(where, f"'{name}' has dims {_shown(dims)}; as {role} it goes along the "
                             f"{'keys' if role.endswith(KEY) else 'queries'}")
    return own if kind.attributes else operands


KEY = "_kv"
"""The role of an attribute of keys ends so."""


def _check_operands(where: str, kind: OpKind, operands: Sequence[Operand], over: Dims,
                    rename: Mapping[str, str]) -> None:
    (name, first, _), *others = operands
    sink = "; a sink is one score per head" if "sink" in kind.operands else ""
    if kind.name in ("add", "mul"):
        longest, most, _ = max(operands, key=lambda o: len(o[1]))
        for operand in operands:
            _check_among(where, operand, most, f", not among {_shown(most)} of '{longest}'")
    elif kind.family == "norm":
        for other, ds, _ in others:
            if set(ds) != set(over):
                _fail(where, f"'{other}' has dims {_shown(ds)}; it normalises over {_shown(over)}")
    elif kind.family == "flash":
        if sink:
            _check_among(where, others.pop(), _without(first, over), sink)
        _check_flash(where, [first, *(ds for _, ds, _ in others)], over)
    elif kind.family == "softmax" and sink:
        _check_among(where, others[0], _without(first, over), sink)
    elif "q" in kind.operands and kind.family == "scan":
        _check_scan(where, operands[:5], over)
    elif "weight" in kind.operands and kind.family == "conv":
        _check_conv(where, operands[:2], over)
    elif kind.family in ("scan", "conv") and over[0] not in first:
        _fail(where, f"'{name}' has dims {_shown(first)}; it goes along {over[0]}")
    elif kind.name == "rename":
        for dim in rename:
            if dim not in first:
                raise InputError(f"'{name}' has no dim '{dim}'", where=where, name=dim, valid=first)
    elif kind.name in ("lookup", "cross_entropy"):
        _check_ids(where, kind, operands, over)


def _check_among(where: str, operand: Operand, most: Sequence[str], why: str) -> None:
    """An InputError that says why unless all dims of an operand are among some."""
    name, dims, _ = operand
    if not set(dims) <= set(most):
        _fail(where, f"'{name}' has dims {_shown(dims)}{why}")


def _check_ids(where: str, kind: OpKind, operands: Sequence[Operand], over: Dims) -> None:
    """An InputError unless the second operand holds ids, of which each names an element of the first one."""
    (name, first, _), (ids, dims, element), *_ = operands
    if element != "ids":
        _fail(where, f"'{ids}' does not hold ids")
    if kind.name == "lookup" and set(dims) & set(first):
        _fail(where, f"'{ids}' and '{name}' share the dims {_shown(sorted(set(dims) & set(first)))}")
    if kind.name == "cross_entropy" and set(dims) != set(_without(first, over)):
        _fail(where, f"'{ids}' has dims {_shown(dims)}; it takes one target per {_shown(_without(first, over))}")


def _keys(q: Dims, k: Dims, over: Dims) -> Dims:
    """The dim of the keys: what k has of `over` and q lacks."""
    return tuple(d for d in k if d in over and d not in q)


def _check_flash(where: str, dims: Sequence[Dims], over: Dims) -> None:
    q, k, v, *rotary = dims
    both, only = set(q) & set(over), set(_keys(q, k, over))
    values, turned = set(v) & set(over) - only, {d for pair in rotary for d in pair if d in over} - only
    if not both or not only or both | only | values | turned != set(over):
        _fail(where, f"over is the head dim of q and the key dim of k; given {_shown(over)}, q has {_shown(q)}, "
                     f"k has {_shown(k)}")
    if set(k) - both != set(v) - values or (not rotary and both != values):
        _fail(where, f"k has dims {_shown(k)}, v has {_shown(v)}")
    if not set(k) - only <= set(q):
        _fail(where, f"k has dims {_shown(sorted(set(k) - only - set(q)))} that q {_shown(q)} lacks")
    if rotary and (set(rotary[0]) - turned != set(q) - both or not turned <= set(rotary[1])
                   or not only <= set(rotary[1]) <= set(k) - both | turned):
        _fail(where, f"q_rope has dims {_shown(rotary[0])}, k_rope has {_shown(rotary[1])}; with a head dim of their "
                     f"own they follow q {_shown(q)} and k {_shown(k)}")


def _check_scan(where: str, operands: Sequence[Operand], over: Dims) -> None:
    """An InputError unless the states of a scan along the first dim of `over` are a key by a value, for each head."""
    (_, k, _), (_, v, _), (q_name, q, _), *strengths = operands
    if len(over) != 2 or not set(over) <= set(k) or over[0] not in v or over[1] in v:
        _fail(where, f"over is the dim that it goes along and the dim of the keys; given {_shown(over)}, k has "
                     f"{_shown(k)}, v has {_shown(v)}")
    if set(q) != set(k) or not set(k) - {over[1]} <= set(v):
        _fail(where, f"'{q_name}' has dims {_shown(q)}, k has {_shown(k)}, v has {_shown(v)}: a query is like a key, "
                     "and v has all their dims but the last")
    for (name, dims, _), most in zip(strengths, ({*k, *v}, {*v}), strict=True):
        if over[0] not in dims or not set(dims) <= most:
            _fail(where, f"'{name}' has dims {_shown(dims)}; it goes along {over[0]}, with dims of "
                         f"{_shown(sorted(most))}")


def _check_conv(where: str, operands: Sequence[Operand], over: Dims) -> None:
    """An InputError unless a convolution has a weight for each tap of each of its channels."""
    (_, x, _), (name, weight, _) = operands
    if len(over) != 2 or over[0] not in x or over[1] in x or over[1] not in weight:
        _fail(where, f"over is the dim that it goes along and the dim of the taps; given {_shown(over)}, x has "
                     f"{_shown(x)}, '{name}' has {_shown(weight)}")
    if not set(weight) - {over[1]} <= set(x) - {over[0]}:
        _fail(where, f"'{name}' has dims {_shown(weight)}; it has a weight for each tap of channels of {_shown(x)}")


def _without(dims: Sequence[str], over: Sequence[str]) -> Dims:
    return tuple(d for d in dims if d not in over)


def _shown(dims: Sequence[str]) -> str:
    return f"({', '.join(dims)})"


def _fail(where: str, what: str, valid: Sequence[str] = ()) -> NoReturn:
    raise InputError(what, where=where, valid=valid)
