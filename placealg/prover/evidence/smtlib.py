"""Formulas as SMT-LIB 2 text that any solver reads, the same text for the same formula.

Symbols are quoted if they have to be, empty conjunctions and sums are written as their values, a repeated operand of a
conjunction or a disjunction is written once, and a term that occurs often is defined once. Nothing else is simplified.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import z3

from placealg.prover.evidence.symbols import names

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_RESERVED = frozenset(("and", "or", "not", "ite", "let", "true", "false", "xor", "distinct", "div", "mod", "abs", "par",
                       "exists", "forall", "assert", "as", "_", "match", "Int", "Bool"))
_NOTHING = {"and": "true", "or": "false", "+": "0", "*": "1"}
_LEXEMES = re.compile(r";[^\x00-\x1f\x7f]*(?=\n|\Z)|\|[^|\\\x00-\x1f\x7f]*\||[()]|[\w.~!@$%^&*+=<>/?-]+|[ \n]",
                      re.ASCII)
_COMMANDS = frozenset(("set-logic", "declare-const", "declare-fun", "define-fun", "assert", "check-sat"))
_WORTH_A_NAME = 6
_TITLE = 12


def quoted(name: str) -> str:
    """A symbol, in bars unless it is a plain word.

    >>> quoted("dp"), quoted("unit@dp"), quoted("and")
    ('dp', '|unit@dp|', '|and|')
    """
    if _PLAIN.match(name) and name not in _RESERVED:
        return name
    if "|" in name or "\\" in name:
        raise ValueError(f"no symbol of SMT-LIB: {name!r}")
    return f"|{name}|"


def comment(text: str) -> str:
    r"""A line that every solver skips, whatever the text holds.

    >>> comment("zero3\n(assert false)")
    '; zero3 (assert false)'
    """
    return f"; {' '.join(text.split())}".rstrip()


def header(rows: Iterable[tuple[str, str]]) -> list[str]:
    r"""Titles and texts as comments, in two columns; of rows with one title the first names it.

    >>> print(*header([("expected", "unsat"), ("assuming", "a"), ("assuming", "b")]), sep="\n")
    ; expected     unsat
    ; assuming     a
    ;              b
    """
    lines, before = [], ""
    for title, text in rows:
        lines.append(f"; {'' if title == before else title:<{_TITLE}} {' '.join(text.split())}".rstrip())
        before = title
    return lines


def read_header(text: str) -> dict[str, list[str]]:
    r"""The rows of the header with which a text begins: title -> its texts.

    >>> read_header("\n".join(header([("expected", "unsat"), ("assuming", "a"), ("assuming", "b")])) + "\n(check-sat)")
    {'expected': ['unsat'], 'assuming': ['a', 'b']}
    """
    rows: dict[str, list[str]] = {}
    title = ""
    for line in itertools.takewhile(lambda line: line.startswith("; "), text.split("\n")):
        title = line[2:2 + _TITLE].strip() or title
        rows.setdefault(title, []).append(line[2 + _TITLE:].strip())
    return rows


def foreign(text: str) -> str:
    r"""What a text has that is never written here: a command other than declare, define, assert and check-sat; or "".

    A solver executes its input: an option may name a file that the solver overwrites.

    >>> foreign("(declare-const x Int) ; x\n(assert (> x |(y|))\n(check-sat)\n")
    ''
    >>> foreign('(set-option :regular-output-channel "f")'), foreign("(assert true))"), foreign("(assert #b1)")
    ('the command set-option', 'brackets that do not match', "the character '#'")
    """
    depth = end = 0
    opened = False
    for found in _LEXEMES.finditer(text):
        if found.start() != end:
            break
        end, lexeme = found.end(), found.group()
        if lexeme.isspace() or lexeme[0] == ";":
            continue
        if opened and lexeme not in _COMMANDS:
            return f"the command {lexeme}"
        opened = depth == 0
        depth += {"(": 1, ")": -1}.get(lexeme, 0)
        if depth < 0 or (opened and lexeme != "("):
            return "brackets that do not match"
    if end != len(text):
        return f"the character {text[end]!r}"
    return "brackets that do not match" if depth else ""


def declarations(formulas: Iterable[Any]) -> list[str]:
    """The declarations of all constants and functions of the formulas, in the order of their names."""
    whole = z3.And(list(formulas))
    lines = [f"(declare-const {quoted(name)} Int)" for name in names(whole)]
    return lines + [f"(declare-fun {quoted(name)} ({' '.join(['Int'] * arity)}) Int)"
                    for name, arity in sorted(_functions(whole))]


def _functions(formula: Any) -> set[tuple[str, int]]:
    return {(t.decl().name(), t.num_args()) for t in _terms([formula])
            if t.decl().kind() == z3.Z3_OP_UNINTERPRETED and t.num_args()}


def _terms(roots: Iterable[Any]) -> Iterator[Any]:
    """Every term below the roots, once."""
    todo, seen = list(roots), set[int]()
    while todo:
        term = todo.pop()
        if term.get_id() not in seen:
            seen.add(term.get_id())
            yield term
            todo.extend(term.children())


class Writer:
    """Writes formulas that share terms: a term that occurs several times is defined before its first use."""

    def __init__(self, formulas: Iterable[Any]):
        formulas = list(formulas)
        self._uses = Counter(c.get_id() for t in _terms(formulas) for c in t.children())
        self._text: dict[int, str] = {}
        self._kept = formulas
        self._named = 0

    def write(self, formula: Any) -> tuple[list[str], str]:
        """(definitions that the text needs in addition to earlier ones, the text of the formula)."""
        defined: list[str] = []
        return defined, self._write(formula, defined)

    def _write(self, term: Any, defined: list[str]) -> str:
        known = self._text.get(term.get_id())
        if known is None:
            known = _applied(term, [self._write(c, defined) for c in term.children()])
            if self._uses[term.get_id()] > 1 and known.count(" ") >= _WORTH_A_NAME:
                self._named += 1
                name = f"|shared {self._named}|"
                defined.append(f"(define-fun {name} () {'Bool' if z3.is_bool(term) else 'Int'} {known})")
                known = name
            self._text[term.get_id()] = known
        return known


def _applied(term: Any, arguments: list[str]) -> str:
    """An operator or a function on the texts of its arguments.

    >>> _applied(z3.And([]), []), _applied(z3.IntVal(-1), []), _applied(z3.If(z3.Int("x") > 0, 1, 2), ["c", "1", "2"])
    ('true', '(- 1)', '(ite c 1 2)')
    >>> x = z3.Int("x")
    >>> _applied(z3.Or(x == 1, x == 1), ["(= x 1)", "(= x 1)"]), _applied(x + x, ["x", "x"])
    ('(= x 1)', '(+ x x)')
    """
    if z3.is_int_value(term):
        number = term.as_long()
        return str(number) if number >= 0 else f"(- {-number})"
    name = term.decl().name()
    if term.decl().kind() in (z3.Z3_OP_AND, z3.Z3_OP_OR):
        arguments = list(dict.fromkeys(arguments))
    if term.decl().kind() == z3.Z3_OP_UNINTERPRETED:
        name = quoted(name)
    elif name == "if":
        name = "ite"
    elif name in _NOTHING and len(arguments) < 2:
        return arguments[0] if arguments else _NOTHING[name]
    return f"({name} {' '.join(arguments)})" if arguments else name
