"""Python read without running it: literals, arithmetic, calls as records, and straight-line functions.

No name is imported, no function called. What is more than that is an Unknown, which says where it stands.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from placealg.errors import InputError

MAX_NODES = 60_000


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that is more than literals: what it is in the text, and its line."""

    text: str
    line: int


@dataclass(slots=True)
class Record:
    """A call: the dotted name of what is called, and its arguments; attributes may be set on it later."""

    name: str
    arguments: tuple[Any, ...]
    fields: dict[str, Any]
    line: int
    lines: dict[str, int] = field(default_factory=dict)

    def get(self, path: str) -> Any:
        """The value of a dotted attribute; None where nothing sets it."""
        value: Any = self
        for part in path.split("."):
            value = value.fields.get(part) if isinstance(value, Record) else None
        return value

    def line_of(self, path: str) -> int:
        """The line on which a dotted attribute is set; 0 where nothing sets it."""
        *above, last = path.split(".")
        inner = self.get(".".join(above)) if above else self
        return inner.lines.get(last, 0) if isinstance(inner, Record) else 0


_OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Mod: operator.mod}


def parse_python(text: str, file: str) -> ast.Module:
    """The tree of a Python text; bad syntax is an InputError at its line."""
    try:
        tree = ast.parse(text)
        if sum(1 for _ in ast.walk(tree)) > MAX_NODES:
            raise InputError("is too long a Python file for a configuration", where=file)
        return tree
    except SyntaxError as error:
        raise InputError(f"not Python: {error.msg}", where=f"{file}:{error.lineno or 1}") from None
    except (ValueError, RecursionError, MemoryError):
        raise InputError("not Python that is read: nested too deeply", where=file) from None


class Evaluator:
    """Evaluates expressions and straight-line functions of one module."""

    def __init__(self, tree: ast.Module, file: str):
        self.file = file
        self.functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
        self.names: dict[str, Any] = {}
        self.depth = 0
        for node in tree.body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                self.names[node.targets[0].id] = self.value(node.value, self.names)

    def value(self, node: ast.expr | None, names: Mapping[str, Any]) -> Any:
        """The value of an expression, or an Unknown."""
        if node is None:
            return None
        try:
            return self._value(node, names)
        except (TypeError, ValueError, ZeroDivisionError, OverflowError, KeyError, IndexError):
            return Unknown(ast.unparse(node)[:60], node.lineno)

    def _value(self, node: ast.expr, names: Mapping[str, Any]) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            return [self.value(e, names) for e in node.elts]
        if isinstance(node, ast.Dict):
            return {str(self.value(k, names)): self.value(v, names) for k, v in zip(node.keys, node.values, strict=True)
                    if k is not None}
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
            value = self._value(node.operand, names)
            if isinstance(value, (bool, int, float)):
                return -value if isinstance(node.op, ast.USub) else not value
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            left, right = self._value(node.left, names), self._value(node.right, names)
            if all(type(v) in (int, float) and abs(v) < 10**15 for v in (left, right)):
                return _OPERATORS[type(node.op)](left, right)
        if isinstance(node, ast.Name):
            return names.get(node.id, self.names.get(node.id, Unknown(node.id, node.lineno)))
        if isinstance(node, ast.Attribute):
            inner = self.value(node.value, names)
            if isinstance(inner, Record):
                return inner.fields.get(node.attr, Unknown(ast.unparse(node), node.lineno))
            return Unknown(ast.unparse(node), node.lineno)
        if isinstance(node, ast.Call):
            return self.call(node, names)
        return Unknown(ast.unparse(node)[:60], node.lineno)

    def call(self, node: ast.Call, names: Mapping[str, Any]) -> Any:
        """A call: of a function of the module, its result; of anything else a record."""
        name = ast.unparse(node.func)
        if name in self.functions and self.depth < 10:
            return self.function(name, [self.value(a, names) for a in node.args],
                                 {k.arg: self.value(k.value, names) for k in node.keywords if k.arg})
        if name == "replace" and node.args:
            old = self.value(node.args[0], names)
            if isinstance(old, Record):
                new = Record(old.name, old.arguments, dict(old.fields), old.line, dict(old.lines))
                self._fill(new, node, names)
                return new
        made = Record(name, tuple(self.value(a, names) for a in node.args), {}, node.lineno)
        self._fill(made, node, names)
        return made

    def _fill(self, made: Record, node: ast.Call, names: Mapping[str, Any]) -> None:
        for keyword in node.keywords:
            if keyword.arg:
                made.fields[keyword.arg] = self.value(keyword.value, names)
                made.lines[keyword.arg] = keyword.value.lineno

    def function(self, name: str, arguments: list[Any] | None = None, keywords: Mapping[str, Any] | None = None) -> Any:
        """What a straight-line function returns; a branch that is more than that makes it Unknown."""
        node = self.functions[name]
        names: dict[str, Any] = dict(zip((a.arg for a in node.args.args), arguments or [], strict=False))
        defaults = node.args.defaults
        for argument, default in zip(node.args.args[len(node.args.args) - len(defaults):], defaults, strict=True):
            names.setdefault(argument.arg, self.value(default, names))
        names.update(keywords or {})
        self.depth += 1
        try:
            return self._body(node.body, names, node)
        finally:
            self.depth -= 1

    def _body(self, body: list[ast.stmt], names: dict[str, Any], node: ast.FunctionDef) -> Any:
        for statement in body:
            if isinstance(statement, ast.Return):
                return self.value(statement.value, names)
            if isinstance(statement, (ast.Assign, ast.AnnAssign)):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                for target in targets:
                    self._assign(target, self.value(statement.value, names), names)
            elif isinstance(statement, ast.If):
                for inner in ast.walk(statement):
                    if isinstance(inner, ast.Return):
                        return Unknown(f"{node.name}: a branch", statement.lineno)
                    if isinstance(inner, (ast.Assign, ast.AugAssign)):
                        targets = inner.targets if isinstance(inner, ast.Assign) else [inner.target]
                        for target in targets:
                            self._assign(target, Unknown("set in a branch", inner.lineno), names)
            elif isinstance(statement, (ast.For, ast.While, ast.With, ast.Try)):
                for inner in ast.walk(statement):
                    if isinstance(inner, ast.Assign):
                        for target in inner.targets:
                            self._assign(target, Unknown("set in a loop", inner.lineno), names)
        return None

    def _assign(self, target: ast.expr, value: Any, names: dict[str, Any]) -> None:
        if isinstance(target, ast.Name):
            names[target.id] = value
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value, names)
            if isinstance(owner, Record):
                owner.fields[target.attr] = value
                owner.lines[target.attr] = target.lineno


def class_attributes(tree: ast.Module, name: str) -> Iterator[tuple[str, ast.expr, int]]:
    """(class, value, line) of every class that sets an attribute."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            for statement in node.body:
                target = statement.targets[0] if isinstance(statement, ast.Assign) else \
                    statement.target if isinstance(statement, ast.AnnAssign) else None
                value = getattr(statement, "value", None)
                if isinstance(target, ast.Name) and target.id == name and value is not None:
                    yield node.name, value, statement.lineno


def class_defaults(tree: ast.Module, name: str) -> dict[str, Any]:
    """Field of a class -> its default, where that is a number, a text, a truth value or a list of such.

    Fields are annotated attributes, and what `__init__` takes; a null is left out.
    """
    found: dict[str, ast.expr | None] = {}
    body = next((n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name), [])
    for statement in body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            found[statement.target.id] = statement.value
        elif isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            taken = statement.args.args[-len(statement.args.defaults):] if statement.args.defaults else []
            found |= dict(zip((a.arg for a in taken), statement.args.defaults, strict=True))
            found |= {a.arg: d for a, d in zip(statement.args.kwonlyargs, statement.args.kw_defaults, strict=True)}
    values = {}
    for name_, node in found.items():
        try:
            values[name_] = ast.literal_eval(node) if node is not None else None
        except ValueError:
            continue
    return {key: value for key, value in values.items() if isinstance(value, (int, float, str, list))}
