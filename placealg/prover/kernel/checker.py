"""The verified checker as it runs without Coq: `check` of `proofs/coq/kernel/Check.v`, extracted, as a Python module.

`extraction.py` is written by `make coq`: a functional program, each definition of which is an expression of Python, or
a loop where it ends with itself. A constructor is a tuple of its name and arguments; truth values and numbers are
Python's own. Beside its programs stand the digest of the Coq files that they were extracted from, and their own.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

from placealg.errors import InputError
from placealg.prover.kernel.program import Program, term
from placealg.prover.kernel.terms import Term

MODULE = "extraction.py"
_DEPTH = 200_000
_HEAD = re.compile(r'SOURCES = "([0-9a-f]*)"\nDIGEST = "([0-9a-f]{64})"\n', re.MULTILINE)


def digest(programs: str) -> str:
    """The digest of extracted programs as they are written."""
    return hashlib.sha256(programs.encode()).hexdigest()


def sources(text: str) -> str:
    r"""The digest of the Coq files of which a module was extracted; raises InputError if it was edited since.

    >>> programs = "check = None"
    >>> sources("\n".join(['SOURCES = "ab"', f'DIGEST = "{digest(programs)}"', programs]))
    'ab'
    """
    head = _HEAD.search(text)
    if head is None:
        raise InputError(f"{MODULE} is not an extracted checker: run make coq")
    if head[2] != digest(text[head.end():]):
        raise InputError(f"{MODULE} was edited by hand: its programs are not those whose digest it names; "
                         "run make coq, or install the package anew")
    return head[1]


@dataclass(frozen=True, slots=True)
class Checker:
    """The extracted `check`, and the digest of the Coq files that it is from."""

    sources: str
    extracted: Callable[[Any], Any]

    def check(self, program: Term) -> bool:
        """Whether the verified checker accepts the program."""
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(_DEPTH)
        try:
            answer = self.extracted(value(program))
        finally:
            sys.setrecursionlimit(limit)
        return answer is True


def value(term: Term) -> Any:
    """A term in the representation of the extracted checker: Python's truth values and numbers, and lists of pairs.

    >>> value(("Shard", 1)), value([True]), value(("xI", "xH"))
    (('Shard', 1), ('Cons', True, ('Nil',)), 3)
    """
    if isinstance(term, (bool, int)):
        return term
    made: Any
    if isinstance(term, list):
        made = ("Nil",)
        for t in reversed(term):
            made = ("Cons", value(t), made)
        return made
    if isinstance(term, tuple):
        head: Any = term[0]
        return _number(term) if head in ("xO", "xI") else (_extracted(head), *map(value, term[1:]))
    return 1 if term == "xH" else (_extracted(term),)


@functools.cache
def _number(binary: Any) -> int:
    return 1 if binary == "xH" else 2 * _number(binary[1]) + (binary[0] == "xI")


@functools.cache
def _extracted(constructor: Any) -> str:
    """A constructor's name as Coq's extraction writes it: with a capital."""
    return f"{constructor[0].upper()}{constructor[1:]}"


@functools.cache
def shipped() -> Checker:
    """The checker that the package ships; raises InputError if it was edited since it was extracted."""
    package = "placealg.prover.kernel"
    found = sources(resources.files(package).joinpath(MODULE).read_text(encoding="utf-8"))
    return Checker(found, importlib.import_module(f"{package}.{MODULE.removesuffix('.py')}").check)


def accepts(program: Program) -> bool:
    """Whether the checker accepts a program, which is then correct, as `check_sound` in Sound.v proves."""
    return shipped().check(term(program))
