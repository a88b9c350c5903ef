"""Arithmetic and tests of shell scripts, three-valued: None is what cannot be decided."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placealg.importers.shell_text import ShellToken
    from placealg.importers.shell_words import Words

_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod}
_LARGEST = 10**15


def arithmetic(text: str, look: Callable[[str], str | None]) -> int | None:
    """The value of $(( text )); None where a variable is open or the text is more than arithmetic of whole numbers.

    >>> arithmetic("8 * NODES", {"NODES": "4"}.get)
    32
    """
    if len(text) > 300:
        return None
    try:
        tree = ast.parse(text.strip().replace("$", ""), mode="eval")
        return _value(tree.body, look)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, OverflowError):
        return None


def _value(node: ast.expr, look: Callable[[str], str | None]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        found = look(node.id)
        if found is not None and re.fullmatch(r"\s*-?\d{1,15}\s*", found):
            return int(found)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, look)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        value = _OPERATORS[type(node.op)](_value(node.left, look), _value(node.right, look))
        if abs(value) <= _LARGEST:
            return value
    raise ValueError


_COMPARED: dict[str, Callable[[int, int], bool]] = {"-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt,
                                                    "-le": operator.le, "-gt": operator.gt, "-ge": operator.ge}


def test(words: Sequence[ShellToken], run: Words) -> bool | None:
    """Whether `[ ... ]` or `[[ ... ]]` holds."""
    inner = [t for t in words[1:] if t.text not in ("]", "]]")]
    return _either(inner, run)


def _either(words: list[ShellToken], run: Words) -> bool | None:
    for sign, absorbing in (("||", True), ("-o", True), ("&&", False), ("-a", False)):
        at = next((k for k, t in enumerate(words) if t.text == sign and 0 < k < len(words) - 1), 0)
        if at:
            parts = (_either(words[:at], run), _either(words[at + 1:], run))
            return absorbing if absorbing in parts else None if None in parts else not absorbing
    if words and words[0].text == "!":
        found = _either(words[1:], run)
        return None if found is None else not found
    return _one([t for t in words if t.text not in ("(", ")")], run)


def _one(words: list[ShellToken], run: Words) -> bool | None:
    from placealg.importers.shell_words import OPEN

    def said(token: ShellToken) -> str | None:
        text = "".join(run.expand(token))
        return None if OPEN in text else text

    def unset(token: ShellToken) -> bool:
        """Whether a word is one variable that nothing sets."""
        name = re.fullmatch(r"[\"']?\$\{?(\w+)(?::?-)?\}?[\"']?", token.text)
        return name is not None and run.look(name[1], None, 0) is None

    if len(words) == 2 and words[0].text in ("-z", "-n"):
        if unset(words[1]):
            return words[0].text == "-z"
        text = said(words[1])
        return None if text is None else (not text) is (words[0].text == "-z")
    if len(words) == 1:
        text = said(words[0])
        return False if unset(words[0]) else None if text is None else bool(text)
    if len(words) != 3:
        return None
    left, right = said(words[0]), said(words[2])
    if left is None or right is None:
        return None
    kind = words[1].text
    if kind in _COMPARED:
        numbers = [int(t) for t in (left, right) if re.fullmatch(r"-?\d{1,15}", t)]
        return _COMPARED[kind](*numbers) if len(numbers) == 2 else None
    if kind in ("=", "=="):
        return left == right if "*" not in right else None
    return left != right if kind == "!=" else None
