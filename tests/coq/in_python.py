"""Extracted programs in Python: what Coq's extraction to JSON says, as expressions.

A constructor is a tuple of its name and arguments. A definition with parameters is a function of all of them, and is
called so where it is given all; any other function takes its arguments one by one.
"""

from __future__ import annotations

import functools
import itertools
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


def apply(f: Any, args: Iterable[Any]) -> Any:
    """A function value applied to some arguments, one by one.

    >>> apply(lambda a: lambda b: (a, b), [1, 2])
    (1, 2)
    """
    return functools.reduce(lambda f, a: f(a), args, f)
