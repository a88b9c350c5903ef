"""Extracted programs in Python: what Coq's extraction to JSON says, as expressions.

A constructor is a tuple of its name and arguments. A definition with parameters is a function of all of them, and is
called so where it is given all; any other function takes its arguments one by one.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

STUCK = "def stuck(found):raise AssertionError(found)\n"
"""What a choice without a case for a value says."""


class Translation:
    """Named terms as definitions; their names are Coq's, with a line below behind them."""

    def __init__(self, terms: Mapping[str, Any]) -> None:
        self.terms = terms
        self.names = {name: f"{name.replace(chr(39), '_')}_" for name in terms}
        assert len(set(self.names.values())) == len(terms) and all(map(str.isidentifier, self.names.values()))
        self._made = itertools.count()

    def text(self) -> str:
        """All definitions, a line each.

        >>> print(Translation({"yes": ["c", "True", []]}).text().splitlines()[-1])
        yes_=('True',)
        """
        return STUCK + "".join(f"{line}\n" for line in map(self._definition, self.terms))

    def named(self, name: str) -> str:
        """A name by itself: a function that is defined with all of its parameters takes them one by one."""
        bound = [self._new() for _ in self._parameters(name)]
        known = self.names[name]
        return _lambda(bound, f"{known}({','.join(bound)})") if len(bound) > 1 else known

    def _parameters(self, name: str) -> Sequence[str]:
        term = self.terms[name]
        return term[1] if term[0] == "f" else ()

    def _definition(self, name: str) -> str:
        bound = [self._new() for _ in self._parameters(name)]
        term, known = self.terms[name], self.names[name]
        if not bound:
            return f"{known}={self._text(term, {})}"
        body = self._text(term[2], dict(zip(term[1], bound, strict=True)))
        return f"def {known}({','.join(bound)}):return {body}"

    def _new(self) -> str:
        return f"v{next(self._made)}"

    def _text(self, e: Sequence[Any], scope: Mapping[str, str]) -> str:
        """An expression in Python; no name in it is one of the file's."""
        kind = e[0]
        if kind == "v":
            return scope[e[1]]
        if kind == "g":
            return self.named(e[1])
        if kind == "c":
            return self.construct(e[1], [self._text(a, scope) for a in e[2]])
        if kind == "f":
            bound = [self._new() for _ in e[1]]
            return _lambda(bound, self._text(e[2], {**scope, **dict(zip(e[1], bound, strict=True))}))
        if kind == "a":
            args = [self._text(a, scope) for a in e[2]]
            if e[1][0] == "g" and len(self._parameters(e[1][1])) == len(args):
                return f"{self.names[e[1][1]]}({','.join(args)})"
            return self._text(e[1], scope) + "".join(f"({a})" for a in args)
        if kind == "l":
            name = self._new()
            return f"({name}:={self._text(e[2], scope)},{self._text(e[3], {**scope, e[1]: name})})[1]"
        assert kind == "m", kind
        return self._match(self._text(e[1], scope), e[2], scope)

    def _match(self, read: str, cases: Sequence[Any], scope: Mapping[str, str]) -> str:
        """A choice by constructor, "" being any other: the value has a name where the first one looks at it."""
        found = read if read.isidentifier() else self._new()
        first, otherwise = read if found == read else f"({found}:={read})", f"stuck({found})"
        choices: dict[str, list[str]] = {}
        for name, names, body in cases:
            parts = {bound: f"{found}[{k}]" if name else found for k, bound in enumerate(names, 1)}
            inner = self._text(body, {**scope, **parts})
            if not name:
                otherwise = inner
                break
            choices.setdefault(inner, []).append(repr(name))
        text = ""
        for inner, (name, *more) in choices.items():
            test = f" in({','.join((name, *more))})" if more else f"=={name}"
            text += f"{inner} if {found if text else first}[0]{test} else "
        return f"({text}{otherwise})" if text else f"({first},{otherwise})[1]"

    def construct(self, name: str, args: Sequence[str]) -> str:
        """A constructor with its arguments, in Python."""
        return f"({','.join((repr(name), *args))},)"


def _lambda(bound: Sequence[str], body: str) -> str:
    return f"({''.join(f'lambda {name}:' for name in bound)}{body})"


class Native(Translation):
    """The same with truth values and numbers, of either kind, as Python's own.

    >>> nat = ["f", ["n"], ["m", ["v", "n"], [["O", [], ["c", "True", []]], ["S", ["k"], ["c", "S", [["v", "k"]]]]]]]
    >>> print(Native({"f": nat}).text().splitlines()[-1])
    def f_(v0):return (((v0-1)+1) if v0 else True)
    """

    def _definition(self, name: str) -> str:
        """A definition; of one that compares or adds numbers digit by digit, what Python does."""
        term = self.terms[name]
        known = KNOWN.get(json.dumps(term).replace(json.dumps(["g", name]), '["g", ""]'))
        if known:
            return f"def {self.names[name]}(v,w):return {known}"
        if term[0] != "f" or not _ends_with(term[2], name) or _has_function(term[2]):
            return super()._definition(name)
        bound = [self._new() for _ in term[1]]
        head = f"def {self.names[name]}({','.join(bound)}):\n while 1:\n"
        return head + self._steps(term[2], dict(zip(term[1], bound, strict=True)), name, bound, "  ").rstrip()

    def _steps(self, e: Sequence[Any], scope: Mapping[str, str], name: str, bound: Sequence[str], space: str) -> str:
        """A body as statements: where it ends with the function itself, the next round of a loop."""
        if e[0] == "a" and e[1] == ["g", name] and len(e[2]) == len(bound):
            passed = zip(bound, (self._text(a, scope) for a in e[2]), strict=True)
            changed = [(v, text) for v, text in passed if v != text]
            return f"{space}{','.join(v for v, _ in changed)}={','.join(text for _, text in changed)}\n"
        if e[0] != "m" or not _ends_with(e, name):
            return f"{space}return {self._text(e, scope)}\n"
        found, made = self._text(e[1], scope), ""
        if not found.isidentifier():
            found, made = (new := self._new()), f"{space}{new}={found}\n"
        tests = next((tests for tests in CHOICES if any(e[2][0][0] == c for c, _, _ in tests)), None) or [
            *((c, f"{{}}[0]=={c!r}", "") for c, _, _ in e[2] if c)]
        for k, (constructor, test, part) in enumerate(tests):
            _, names, body = next(case for case in e[2] if case[0] in (constructor, ""))
            inner = {n: part.format(found) if part else f"{found}[{i}]" for i, n in enumerate(names, 1)}
            word = "if" if not k else "elif"
            made += f"{space}{word} {test.format(found)}:\n" if test else f"{space}else:\n"
            made += self._steps(body, {**scope, **inner}, name, bound, space + " ")
        if all(test for _, test, _ in tests):
            other = next((body for c, _, body in e[2] if not c), None)
            made += f"{space}else:\n" + (self._steps(other, scope, name, bound, space + " ") if other else
                                         f"{space} return stuck({found})\n")
        return made

    def _match(self, read: str, cases: Sequence[Any], scope: Mapping[str, str]) -> str:
        tests = next((tests for tests in CHOICES if any(cases[0][0] == name for name, _, _ in tests)), None)
        if tests is None:
            return super()._match(read, cases, scope)
        found = read if read.isidentifier() else self._new()
        first, made = read if found == read else f"({found}:={read})", ""
        for name, test, part in tests:
            _, names, body = next(case for case in cases if case[0] in (name, ""))
            bound = dict.fromkeys(names, part.format(found) if part else found)
            text = self._text(body, {**scope, **bound})
            made += f"{text} if {test.format(found if made else first)} else " if test else text
        return f"({made})"

    def construct(self, name: str, args: Sequence[str]) -> str:
        """A constructor with its arguments, in Python."""
        return NUMBERS[name].format(*args) if name in NUMBERS else super().construct(name, args)


def _ends_with(e: Sequence[Any], name: str) -> bool:
    """Whether an expression may end with a call of a function."""
    if e[0] == "m":
        return any(_ends_with(body, name) for _, _, body in e[2])
    return bool(e[0] == "a" and e[1] == ["g", name])


def _has_function(e: Any) -> bool:
    """Whether an expression makes a function, which would go on to look at the names of a loop."""
    return isinstance(e, list) and (e[:1] == ["f"] or any(map(_has_function, e)))


NUMBERS = {"True": "True", "False": "False", "O": "0", "S": "({}+1)", "XH": "1", "XO": "({}<<1)", "XI": "({}<<1|1)"}
"""Constructors of truth values, of Peano numbers and of binary ones, in Python."""

CHOICES = ((("True", "{}", ""), ("False", "", "")), (("S", "{}", "({}-1)"), ("O", "", "")),
           (("XH", "{}==1", ""), ("XI", "{}&1", "({}>>1)"), ("XO", "", "({}>>1)")))
"""Of each type its constructors: by what a value is told to be of one, none for the last, and its argument."""


def _both(name: str, left: list[Any], right: list[Any]) -> str:
    return json.dumps(["f", [name, "m"], ["m", ["v", name], [["O", [], left], ["S", ["n'"], right]]]])


_NO, _YES = ["c", "False", []], ["c", "True", []]
_AGAIN = ["a", ["g", ""], [["v", "n'"], ["v", "m'"]]]
_NEXT = ["a", ["g", ""], [["v", "p0"], ["v", "q0"]]]
_SAME = [[name, ["p0"], ["m", ["v", "q"], [[name, ["q0"], _NEXT], ["", [], _NO]]]] for name in ("XI", "XO")]
KNOWN = {
    _both("n", ["m", ["v", "m"], [["O", [], _YES], ["S", ["_"], _NO]]],
          ["m", ["v", "m"], [["O", [], _NO], ["S", ["m'"], _AGAIN]]]): "v==w",
    _both("n", _YES, ["m", ["v", "m"], [["O", [], _NO], ["S", ["m'"], _AGAIN]]]): "v<=w",
    json.dumps(["f", ["p", "q"], ["m", ["v", "p"], [*_SAME, ["XH", [], ["m", ["v", "q"], [
        ["XH", [], _YES], ["", [], _NO]]]]]]]): "v==w"}
"""Coq's definitions of Nat.eqb, Nat.leb and Pos.eqb, as they are extracted, and what they are of Python's numbers."""


def value(term: Any) -> Any:
    """A term in the representation of extracted programs whose numbers are Coq's.

    >>> value(("Shard", 1)), value([True]), value("xH")
    (('Shard', ('S', ('O',))), ('Cons', ('True',), ('Nil',)), ('XH',))
    """
    if isinstance(term, bool):
        return ("True",) if term else ("False",)
    if isinstance(term, int):
        return _peano(term)
    if isinstance(term, list):
        made: Any = ("Nil",)
        for t in reversed(term):
            made = ("Cons", value(t), made)
        return made
    if isinstance(term, tuple):
        return (f"{term[0][0].upper()}{term[0][1:]}", *map(value, term[1:]))
    return (f"{term[0].upper()}{term[1:]}",)


@functools.cache
def _peano(number: int) -> Any:
    return ("S", _peano(number - 1)) if number else ("O",)


def apply(f: Any, args: Iterable[Any]) -> Any:
    """A function value applied to some arguments, one by one.

    >>> apply(lambda a: lambda b: (a, b), [1, 2])
    (1, 2)
    """
    return functools.reduce(lambda f, a: f(a), args, f)
