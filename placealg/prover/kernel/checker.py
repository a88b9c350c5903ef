"""The verified checker as it runs without Coq: `check` of `proofs/coq/kernel/Decide.v`, extracted, and an evaluator.

`checker.json` is written by Coq's extraction. It is a list of closed functional programs; here each expression becomes
a Python function of an environment, a chain of pairs (value, rest). A constructor is a tuple of its name and arguments.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from placealg.errors import InputError
from placealg.prover.kernel.program import Term

Environment = Any
Code = Callable[[Environment], Any]

_DEPTH = 200_000
_TERMS = '"terms":['


def digest(terms: str) -> str:
    """The digest of the extracted programs as they are written."""
    return hashlib.sha256(terms.encode()).hexdigest()


def written(sources: str, terms: Sequence[Any]) -> str:
    """Extracted programs as a file: the digest of their sources, their own, and a line each.

    >>> Checker(written("none", [["yes", ["c", "True", []]]])).value("yes")
    ('True',)
    """
    lines = ",\n".join(json.dumps(term, separators=(",", ":")) for term in terms)
    body = f"\n{lines}\n]}}\n"
    return f'{{"sources":"{sources}","digest":"{digest(body)}",{_TERMS}{body}'


@dataclass(frozen=True, slots=True)
class Closure:
    """A function value: the number of arguments that it expects, its body, and the environment that it closes over."""

    waits: int
    body: Code
    environment: Environment


class Checker:
    """The programs of `checker.json`, ready to run."""

    def __init__(self, text: str) -> None:
        """Read the extracted text; raises InputError if it is not one, or not what its digest says."""
        try:
            found = json.loads(text)
            self.sources = str(found["sources"])
            terms, said = dict(found["terms"]), found["digest"]
        except (ValueError, KeyError, TypeError):
            raise InputError("checker.json is not an extracted checker: run make coq") from None
        if said != digest(text.partition(_TERMS)[2]):
            raise InputError("checker.json was edited by hand: its programs are not those whose digest it names; "
                             "run make coq, or install the package anew")
        self._functions: dict[str, Closure] = {}
        self._values: dict[str, Any] = {}
        self._terms = terms
        self._compiled: dict[str, Code] = {}

    def check(self, program: Term) -> bool:
        """Whether the verified checker accepts the program."""
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(_DEPTH)
        try:
            answer = apply(self.value("check"), [value(program)])
        finally:
            sys.setrecursionlimit(limit)
        return bool(answer == ("True",))

    def value(self, name: str) -> Any:
        """The value of a name."""
        if name not in self._values:
            if name not in self._terms:
                raise InputError(f"checker.json lacks '{name}': run make coq")
            self._values[name] = self._code(self._terms[name], ())(None)
        return self._values[name]

    def _code(self, e: Sequence[Any], scope: tuple[str, ...]) -> Code:
        kind = e[0]
        if kind == "v":
            return _look_up(scope.index(e[1]))
        if kind == "g":
            return functools.partial(self._global, e[1])
        if kind == "c":
            return _construct(e[1], [self._code(a, scope) for a in e[2]])
        if kind == "f":
            body, waits = self._code(e[2], (*reversed(e[1]), *scope)), len(e[1])
            return lambda env: Closure(waits, body, env)
        if kind == "a":
            return self._call(e[1], [self._code(a, scope) for a in e[2]], scope)
        if kind == "l":
            bound, inner = self._code(e[2], scope), self._code(e[3], (e[1], *scope))
            return lambda env: inner((bound(env), env))
        assert kind == "m", kind
        return _match(self._code(e[1], scope), [
            (name, bool(names), self._code(inner, (*reversed(names), *scope))) for name, names, inner in e[2]])

    def _global(self, name: str, _: Environment) -> Any:
        found = self._values.get(name)
        return self.value(name) if found is None else found

    def _call(self, e: Sequence[Any], args: list[Code], scope: tuple[str, ...]) -> Code:
        function = self._code(e, scope)
        count = len(args)

        def call(env: Environment) -> Any:
            f = function(env)
            if f.waits != count:
                return apply(f, [a(env) for a in args])
            inner = f.environment
            for a in args:
                inner = (a(env), inner)
            return f.body(inner)
        return call


def _look_up(depth: int) -> Code:
    if depth == 0:
        return lambda env: env[0]
    if depth == 1:
        return lambda env: env[1][0]
    if depth == 2:
        return lambda env: env[1][1][0]

    def look_up(env: Environment) -> Any:
        for _ in range(depth):
            env = env[1]
        return env[0]
    return look_up


def _construct(name: str, args: list[Code]) -> Code:
    if not args:
        made = (name,)
        return lambda env: made
    return lambda env: (name, *[a(env) for a in args])


def _match(scrutinee: Code, cases: list[tuple[str, bool, Code]]) -> Code:
    branches = {name: body for name, _, body in cases if name}
    rest = next(((binds, body) for name, binds, body in cases if not name), None)

    def match(env: Environment) -> Any:
        found = scrutinee(env)
        body = branches.get(found[0])
        if body is None:
            assert rest is not None, found
            return rest[1]((found, env) if rest[0] else env)
        for part in found[1:]:
            env = (part, env)
        return body(env)
    return match


def apply(f: Any, args: list[Any]) -> Any:
    """A function value applied to some arguments, which may be fewer or more than it expects.

    >>> apply(Closure(2, lambda env: (env[1][0], env[0]), None), [1, 2])
    (1, 2)
    """
    while args:
        now, args = args[:f.waits], args[f.waits:]
        env = f.environment
        for a in now:
            env = (a, env)
        f = f.body(env) if len(now) == f.waits else Closure(f.waits - len(now), f.body, env)
    return f


def value(term: Term) -> Any:
    """A term in the representation of the extracted programs: Peano numbers, and lists of pairs.

    >>> value(("Owner", 1)), value([True])
    (('Owner', ('S', ('O',))), ('Cons', ('True',), ('Nil',)))
    """
    if isinstance(term, bool):
        return ("True",) if term else ("False",)
    made: Any
    if isinstance(term, int):
        made = ("O",)
        for _ in range(term):
            made = ("S", made)
        return made
    if isinstance(term, list):
        made = ("Nil",)
        for t in reversed(term):
            made = ("Cons", value(t), made)
        return made
    if isinstance(term, tuple):
        return (term[0], *map(value, term[1:]))
    return (term,)


@functools.cache
def shipped() -> Checker:
    """The checker that the package ships."""
    return Checker(resources.files(__package__).joinpath("checker.json").read_text(encoding="utf-8"))

