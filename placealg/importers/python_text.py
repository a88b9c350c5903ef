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
MAX_STATEMENTS = 20_000
MAX_HOPS = 20
"""How often a name may be imported from a file that imports it itself."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that is more than literals: what it is in the text, and its line."""

    text: str
    line: int


@dataclass(slots=True)
class Record:
    """A call: the dotted name of what is called, and its arguments; attributes may be set on it later.

    `within` is the function in which it stands. One that `grows` stands for an object of which nothing is known: it has
    whatever is asked of it, and as the elements of a list it has one, "*". `files` are
    those in which its attributes are set.
    """

    name: str
    arguments: tuple[Any, ...]
    fields: dict[str, Any]
    line: int
    lines: dict[str, int] = field(default_factory=dict)
    within: str = ""
    grows: bool = False
    files: dict[str, str] = field(default_factory=dict)

    def grown(self, name: str, line: int = 0) -> Record:
        """The attribute of a growing record."""
        found: Record = self.fields.setdefault(name, Record("", (), {}, line, grows=True))
        return found

    def copied(self) -> Record:
        """A record of the same fields, so that one may be changed without the other; records in it are copied, too."""
        fields = {k: v.copied() if isinstance(v, Record) else list(v) if isinstance(v, list) else v
                  for k, v in self.fields.items()}
        return Record(self.name, self.arguments, fields, self.line, dict(self.lines), self.within)

    def get(self, path: str) -> Any:
        """The value of a dotted attribute; None where nothing sets it."""
        value: Any = self
        for part in path.split("."):
            value = value.fields.get(part) if isinstance(value, Record) else None
        return value


_OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Mod: operator.mod}

_TESTS: Mapping[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not, ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b}


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
    """Evaluates expressions and straight-line functions of one module.

    `find` maps a module that the file imports from, as it is written there, to the evaluator of its file; None where
    that is not here. A function that is imported is followed if `follows` says so of it, and a record otherwise;
    `known` are functions of which the value is this. Where a condition asks a growing record, both of its branches are
    followed, and what they set differently is Unknown.
    """

    def __init__(self, tree: ast.Module, file: str, find: Callable[[str], Evaluator | None] = lambda _: None,
                 follows: Callable[[ast.FunctionDef], bool] = lambda _: False,
                 known: Mapping[str, Callable[..., Any]] | None = None):
        self.file, self.find, self.follows, self.known = file, find, follows, known or {}
        self.functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
        self.imported = {a.asname or a.name: ("." * n.level + (n.module or ""), a.name) for n in ast.walk(tree)
                         if isinstance(n, ast.ImportFrom) for a in n.names}
        self.names: dict[str, Any] = {}
        self.depth, self.followed, self.within = 0, 0, ""
        self.put: list[tuple[Record, str]] = []
        for node in tree.body:
            target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else \
                node.target if isinstance(node, ast.AnnAssign) else None
            if isinstance(target, ast.Name) and isinstance(node, (ast.Assign, ast.AnnAssign)):
                self.names[target.id] = self.value(node.value, self.names)

    def value(self, node: ast.expr | None, names: Mapping[str, Any]) -> Any:
        """The value of an expression, or an Unknown."""
        if node is None:
            return None
        try:
            return self._value(node, names)
        except (TypeError, ValueError, ZeroDivisionError, OverflowError, KeyError, IndexError):
            return self._unknown(node)

    @staticmethod
    def _unknown(node: ast.expr | ast.stmt) -> Unknown:
        return Unknown(ast.unparse(node)[:60], node.lineno)

    def _value(self, node: ast.expr, names: Mapping[str, Any]) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.List() | ast.Tuple() | ast.Set():
                return [self.value(e, names) for e in node.elts]
            case ast.Dict():
                return {_key(self.value(k, names)): self.value(v, names)
                        for k, v in zip(node.keys, node.values, strict=True) if k is not None}
            case ast.DictComp(generators=[ast.comprehension(ifs=[], is_async=0) as each]):
                return {_key(self.value(node.key, inner)): self.value(node.value, inner)
                        for inner in self._each(each, names)}
            case ast.ListComp(generators=[ast.comprehension(ifs=[], is_async=0) as each]):
                return [self.value(node.elt, inner) for inner in self._each(each, names)]
            case ast.UnaryOp(op=ast.USub() | ast.Not()):
                value = self._value(node.operand, names)
                if isinstance(node.op, ast.Not) and _told(value):
                    return not value
                return -value if isinstance(value, (bool, int, float)) else self._unknown(node)
            case ast.BinOp():
                return self._arithmetic(node, names)
            case ast.BoolOp():
                return self._either(node, names)
            case ast.Compare(ops=[test]):
                left, right = self._value(node.left, names), self._value(node.comparators[0], names)
                if isinstance(left, Record) and left.grows:
                    return isinstance(test, ast.IsNot) if right is None and isinstance(test, (ast.Is, ast.IsNot)) \
                        else Record("", (), {}, node.lineno, grows=True)
                if type(test) in _TESTS and _told(left) and _told(right):
                    return _TESTS[type(test)](left, right)
            case ast.IfExp():
                test = self.value(node.test, names)
                return self.value(node.body if test else node.orelse, names) if _told(test) else self._unknown(node)
            case ast.Subscript():
                inner = self.value(node.value, names)
                if isinstance(inner, (dict, list)):
                    return inner[self.value(node.slice, names)]
            case ast.Name():
                return names[node.id] if node.id in names else self._name(node)
            case ast.Attribute():
                inner = self.value(node.value, names)
                if isinstance(inner, Record) and inner.grows:
                    return inner.fields.get(node.attr) or inner.grown(node.attr, node.lineno)
                return inner.fields.get(node.attr, self._unknown(node)) if isinstance(inner, Record) else \
                    self._unknown(node)
            case ast.Call():
                return self.call(node, names)
        return self._unknown(node)

    def _name(self, node: ast.Name) -> Any:
        """The value of a name of the module, or of one that it imports from."""
        if node.id in self.names:
            return self.names[node.id]
        module, inside = self.imported.get(node.id, ("", ""))
        owner = self.find(module) if module else None
        unknown = Unknown(node.id, node.lineno)
        return unknown if owner is None else owner.names.get(inside, unknown)

    def _each(self, each: ast.comprehension, names: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The names inside a comprehension, once for each element; a TypeError where these are not known."""
        over = self.value(each.iter, names)
        if not isinstance(over, (list, dict)):
            raise TypeError("no list")
        for item in over:
            inner = dict(names)
            self._assign(each.target, item, inner)
            yield inner

    def _arithmetic(self, node: ast.BinOp, names: Mapping[str, Any]) -> Any:
        left, right = self._value(node.left, names), self._value(node.right, names)
        if type(node.op) in _OPERATORS and all(type(v) in (int, float) and abs(v) < 10**15 for v in (left, right)):
            return _OPERATORS[type(node.op)](left, right)
        return self._unknown(node)

    def _either(self, node: ast.BoolOp, names: Mapping[str, Any]) -> Any:
        """The value of `and` and `or`: that of the first operand that decides it, if all before are told."""
        for operand in node.values:
            value = self.value(operand, names)
            if not _told(value):
                return self._unknown(node)
            if bool(value) is isinstance(node.op, ast.Or):
                return value
        return value

    def call(self, node: ast.Call, names: Mapping[str, Any]) -> Any:
        """A call: of a function that is followed, its result; of anything else a record."""
        name = ast.unparse(node.func)
        home = self._home(name)
        if home is not None and self.depth < 10:
            owner, inside = home
            before, owner.depth = owner.depth, self.depth
            try:
                return owner.function(inside, [self.value(a, names) for a in node.args], self._named(node, names))
            finally:
                owner.depth = before
        if name in self.known:
            return self.known[name](*(self.value(a, names) for a in node.args))
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("items", "keys", "values") and not node.args:
            owner_ = self.value(node.func.value, names)
            if isinstance(owner_, dict):
                return [list(i) if isinstance(i, tuple) else i for i in getattr(owner_, node.func.attr)()]
        if name in ("replace", "dataclasses.replace", "deepcopy", "copy.deepcopy") and node.args:
            old = self.value(node.args[0], names)
            if isinstance(old, Record):
                new = old.copied()
                self._fill(new, node, names)
                return new
        made = Record(name, tuple(self.value(a, names) for a in node.args), {}, node.lineno, within=self.within)
        self._fill(made, node, names)
        return made

    def _home(self, name: str, hops: int = 0) -> tuple[Evaluator, str] | None:
        """(evaluator, name) of a function that is followed: of this module, or of one that it imports from."""
        if name in self.functions:
            return self, name
        module, inside = self.imported.get(name, ("", ""))
        owner = self.find(module) if module else None
        home = owner._home(inside, hops + 1) if owner is not None and hops < MAX_HOPS else None
        return home if home is not None and self.follows(home[0].functions[home[1]]) else None

    def _fill(self, made: Record, node: ast.Call, names: Mapping[str, Any]) -> None:
        made.fields.update(self._named(node, names))
        made.lines.update({k.arg: k.value.lineno for k in node.keywords if k.arg})

    def _named(self, node: ast.Call, names: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call that have names; a ValueError where it takes those of a value that is unknown."""
        found: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value, names)
            found.update({keyword.arg: value} if keyword.arg else dict(value.items() if isinstance(value, dict) else
                                                                      _none(value)))
        return found

    def function(self, name: str, arguments: list[Any] | None = None, keywords: Mapping[str, Any] | None = None) -> Any:
        """What a function returns, as far as it can be followed; Unknown where that is undecided."""
        node = self.functions[name]
        taken = [*node.args.posonlyargs, *node.args.args]
        names: dict[str, Any] = dict(zip((a.arg for a in taken), arguments or [], strict=False))
        defaults = [*zip(taken[len(taken) - len(node.args.defaults):], node.args.defaults, strict=True),
                    *((a, d) for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d)]
        for argument, default in defaults:
            names.setdefault(argument.arg, self.value(default, names))
        names.update(keywords or {})
        self.depth += 1
        before, self.within = self.within, name
        try:
            return self._body(node.body, names, node.name)[1]
        finally:
            self.depth -= 1
            self.within = before

    def _body(self, body: list[ast.stmt], names: dict[str, Any], where: str) -> tuple[bool, Any]:
        """(whether it returned, what): statements in order, each followed or what it may set made Unknown."""
        for statement in body:
            self.followed += 1
            if self.followed > MAX_STATEMENTS:
                raise InputError(f"has more than {MAX_STATEMENTS} statements to follow", where=self.file)
            returned = self._statement(statement, names, where)
            if returned[0]:
                return returned
        return False, None

    def _statement(self, statement: ast.stmt, names: dict[str, Any], where: str) -> tuple[bool, Any]:
        match statement:
            case ast.Return():
                return True, self.value(statement.value, names)
            case ast.If():
                return self._branch(statement, names, where)
            case ast.For():
                return self._loop(statement, names, where)
            case ast.With():
                return self._body(statement.body, names, where)
            case ast.Assign():
                value = self.value(statement.value, names)
                for target in statement.targets:
                    self._assign(target, value, names)
            case ast.AnnAssign():
                self._assign(statement.target, self.value(statement.value, names), names)
            case ast.AugAssign():
                whole = ast.BinOp(_loaded(statement.target), statement.op, statement.value)
                value = self.value(ast.copy_location(whole, statement), names)
                self._assign(statement.target, self._unknown(statement) if isinstance(value, Unknown) else value, names)
            case ast.Expr(value=ast.Call() as call):
                self._called(call, names)
            case ast.While() | ast.Try() | ast.Match() | ast.Delete():
                self._open([statement], names, "set where it cannot be followed")
        return False, None

    def _branch(self, statement: ast.If, names: dict[str, Any], where: str) -> tuple[bool, Any]:
        """The branch that is taken; where that is not known, what both may do."""
        test = self.value(statement.test, names)
        returns = any(isinstance(n, ast.Return) for n in ast.walk(statement))
        if _told(test):
            return self._body(statement.body if test else statement.orelse, names, where)
        if returns:
            return True, Unknown(f"{where}: a branch", statement.lineno)
        if isinstance(test, Record) and test.grows:
            self._both(statement, names, where)
        else:
            self._open([*statement.body, *statement.orelse], names, "set in a branch")
        return False, None

    def _loop(self, statement: ast.For, names: dict[str, Any], where: str) -> tuple[bool, Any]:
        """The body for every item of a list that is known."""
        over = self.value(statement.iter, names)
        if isinstance(over, Record) and over.grows:
            over = [over.grown("*", statement.lineno)]
        leaves = any(isinstance(n, (ast.Break, ast.Continue)) for n in ast.walk(statement))
        if not isinstance(over, list) or len(over) > 1000 or leaves:
            self._open([statement], names, "set in a loop")
            return False, None
        for item in over:
            self._assign(statement.target, item, names)
            returned = self._body(statement.body, names, where)
            if returned[0]:
                return returned
        return False, None

    def _both(self, statement: ast.If, names: dict[str, Any], where: str) -> None:
        """Follow both branches of a condition; a field that both set to different values is Unknown."""
        set_: list[dict[tuple[int, str], tuple[Record, Any]]] = []
        for body in (statement.body, statement.orelse):
            outer, self.put = self.put, []
            self._body(body, names, where)
            set_.append({(id(record), name): (record, record.fields[name]) for record, name in self.put})
            self.put = [*outer, *self.put]
        for at in set_[0].keys() & set_[1].keys():
            record, value = set_[0][at]
            if value != set_[1][at][1]:
                record.fields[at[1]] = Unknown("set in a branch", statement.lineno)

    def _called(self, call: ast.Call, names: dict[str, Any]) -> None:
        """A call for what it does: of a function that is followed, or of a list; another one may change its owner.

        What it is given it may change, too: a configuration that goes elsewhere is Unknown from there on.
        """
        home = self._home(ast.unparse(call.func))
        given = [*call.args, *(k.value for k in call.keywords)]
        if home is not None:
            self.call(call, names)
        elif isinstance(call.func, ast.Attribute):
            owner = self.value(call.func.value, names)
            values = [self.value(a, names) for a in given]
            if isinstance(owner, list) and call.func.attr in ("append", "extend") and len(values) == 1:
                owner += values if call.func.attr == "append" else values[0]
            else:
                self._assign(call.func.value, self._unknown(call), names)
        else:
            for argument in given:
                if isinstance(argument, (ast.Name, ast.Attribute)) and isinstance(self.value(argument, names), Record):
                    self._assign(argument, self._unknown(call), names)

    def _open(self, body: list[ast.stmt], names: dict[str, Any], why: str) -> None:
        """Make Unknown what statements may set."""
        for inner in (n for statement in body for n in ast.walk(statement)):
            targets = inner.targets if isinstance(inner, (ast.Assign, ast.Delete)) else \
                [inner.target] if isinstance(inner, (ast.AugAssign, ast.AnnAssign, ast.For)) else []
            for target in targets:
                self._assign(target, Unknown(why, getattr(inner, "lineno", 0)), names)
            if isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Call):
                self._called(ast.Call(ast.Name("?", ast.Load(), lineno=inner.lineno), [
                    *inner.value.args, *([inner.value.func.value] if isinstance(inner.value.func, ast.Attribute) else
                                         [])], inner.value.keywords, lineno=inner.lineno), names)

    def _assign(self, target: ast.expr, value: Any, names: dict[str, Any]) -> None:
        """Set what a target names; a field that a record lacks holds defaults, and becomes a record of its own."""
        match target:
            case ast.Name():
                names[target.id] = value
            case ast.Attribute():
                if (owner := self._owner(target.value, names)) is not None:
                    owner.fields[target.attr] = value
                    owner.lines[target.attr] = target.lineno
                    owner.files[target.attr] = self.file
                    self.put.append((owner, target.attr))
            case ast.Tuple() | ast.List():
                fits = isinstance(value, list) and len(value) == len(target.elts)
                for at, inner in enumerate(target.elts):
                    self._assign(inner, value[at] if fits else Unknown(ast.unparse(target), target.lineno), names)
            case ast.Subscript():
                inside = self.value(target.value, names)
                key = self.value(target.slice, names)
                if isinstance(inside, dict) and isinstance(key, str):
                    inside[key] = value
                else:
                    self._assign(target.value, self._unknown(target), names)

    def _owner(self, node: ast.expr, names: dict[str, Any]) -> Record | None:
        """The record at a path of attributes; None where something on it is none."""
        if isinstance(node, ast.Name):
            found = self.value(node, names)
            return found if isinstance(found, Record) else None
        if not isinstance(node, ast.Attribute):
            return None
        owner = self._owner(node.value, names)
        if owner is None:
            return None
        found = owner.fields.setdefault(node.attr, Record("", (), {}, node.lineno, grows=owner.grows))
        owner.lines.setdefault(node.attr, node.lineno)
        return found if isinstance(found, Record) else None


def _key(value: Any) -> str:
    """A key of a dict as text: a name that is not known stands for itself."""
    return value.text if isinstance(value, Unknown) else str(value)


def _none(value: Any) -> Any:
    raise ValueError(f"{value} holds no named arguments")


def _told(value: Any) -> bool:
    """Whether a value is one that a condition may ask: no Unknown, and no record, which may be anything."""
    return not isinstance(value, (Unknown, Record)) and not (isinstance(value, list) and any(
        isinstance(v, Unknown) for v in value))


def _loaded(target: ast.expr) -> ast.expr:
    """A target as the expression that reads it."""
    return ast.parse(ast.unparse(target), mode="eval").body


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
