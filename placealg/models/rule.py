"""The expressions of family files: what a configuration's fields say, as a small part of Python.

Names are fields, `i` is a layer's number; there are numbers, texts, lists, arithmetic, comparisons, `and`, `or`, `not`,
`A if B else C`, subscripts, and `len`, `int`, `str` and `range` of such. `same` of a list with an entry for every layer
is their one value, `spread` of pairs of a list and a number is the lists one after another, each that many times.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from placealg.errors import InputError

LAYER = "i"
"""How expressions call the number of a layer."""

_BINARY: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARED: Mapping[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}


def _same(value: Any) -> Any:
    """The one value of all entries of a list; what is no list is itself."""
    if not isinstance(value, list):
        return value
    if not value or any(v != value[0] for v in value):
        raise ValueError("its entries differ, and all layers have one here")
    return value[0]


def _spread(pairs: Any) -> list[Any]:
    """The lists of pairs (list, number) one after another, each as often as its number says."""
    return [entry for entries, times in pairs for _ in range(times) for entry in entries]


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {"len": len, "int": int, "str": str, "range": range, "same": _same,
                                                "spread": _spread}


@lru_cache(maxsize=4096)
def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


@lru_cache(maxsize=4096)
def names(text: str) -> tuple[str, ...]:
    """The fields that an expression reads, in order; those of a table inside the configuration are dotted.

    >>> names("head_dim or hidden_size // num_attention_heads")
    ('head_dim', 'hidden_size', 'num_attention_heads')
    """
    nodes = list(ast.walk(_parsed(text)))
    inside = {n.value for n in nodes if isinstance(n, ast.Attribute)} | {n.func for n in nodes
                                                                         if isinstance(n, ast.Call)}
    plain = [n for n in nodes if isinstance(n, (ast.Name, ast.Attribute)) and n not in inside]
    plain.sort(key=lambda n: (n.lineno, n.col_offset))
    return tuple(dict.fromkeys(_dotted(n) for n in plain))


def evaluate(text: str, fields: Mapping[str, Any]) -> Any:
    """The value of an expression; a field that is not there is an InputError.

    >>> evaluate("head_dim or hidden_size // heads", {"head_dim": None, "hidden_size": 64, "heads": 4})
    16
    >>> evaluate("layer_types[i] == 'full_attention'", {"layer_types": ["full_attention"], "i": 0})
    True
    >>> evaluate("spread(kinds)[i]", {"kinds": [[["global"], 1], [["local"], 3]], "i": 2})
    'local'
    >>> evaluate("i >= first", {"first": None, "i": 0})
    Traceback (most recent call last):
    placealg.errors.InputError: first is null, which has no meaning here
    """
    try:
        return _value(_parsed(text), fields)
    except (TypeError, IndexError, ZeroDivisionError, ValueError, KeyError) as error:
        null = [name for name in names(text) if name in fields and fields[name] is None]
        if null:
            raise InputError(f"{null[0]} is null, which has no meaning here") from None
        raise InputError(f"{', '.join(n for n in names(text) if n != LAYER)}: {error}") from None


def _dotted(node: ast.expr) -> str:
    return f"{_dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ast.unparse(node)


def _value(node: ast.expr, fields: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name() | ast.Attribute():
            name = _dotted(node)
            if name not in fields:
                raise InputError(f"no field '{name}'", name=name, valid=fields)
            return fields[name]
        case ast.List() | ast.Tuple():
            return [_value(n, fields) for n in node.elts]
        case ast.BoolOp():
            found = None
            for part in node.values:
                found = _value(part, fields)
                if bool(found) == isinstance(node.op, ast.Or):
                    break
            return found
        case ast.UnaryOp(op=ast.Not()):
            return not _value(node.operand, fields)
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand, fields)
        case ast.BinOp() if type(node.op) in _BINARY:
            return _BINARY[type(node.op)](_value(node.left, fields), _value(node.right, fields))
        case ast.Compare(ops=[test]) if type(test) in _COMPARED:
            return _COMPARED[type(test)](_value(node.left, fields), _value(node.comparators[0], fields))
        case ast.IfExp():
            return _value(node.body if _value(node.test, fields) else node.orelse, fields)
        case ast.Subscript():
            return _value(node.value, fields)[_value(node.slice, fields)]
        case ast.Call(func=ast.Name(id=name)) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(n, fields) for n in node.args))
    raise InputError(f"not an expression of a family file: {ast.unparse(node)}")
