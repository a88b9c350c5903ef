"""A text with places: the values that a configuration holds, and the line of every key, from JSON, YAML or TOML."""

from __future__ import annotations

import json.decoder
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from placealg.errors import InputError
from placealg.strategy.toml_lines import parse_toml

MAX_BYTES = 2_000_000
MAX_DEPTH = 60
MAX_NODES = 100_000

Key = tuple[str | int, ...]
"""The keys and list positions that lead to a value."""


def dotted(path: Key) -> str:
    """A path of keys in one word.

    >>> dotted(("zero_optimization", "stage")), dotted(("defaults", 0))
    ('zero_optimization.stage', 'defaults[0]')
    """
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def written(value: object, digits: int = 30) -> int | None:
    """The whole number that a value is written as, in at most so many digits; None where it is none.

    Python refuses to read one of thousands of digits, and what is counted needs no more than these.

    >>> written("16"), written(16), written("-1"), written("9" * 5000)
    (16, 16, None, None)
    """
    text = str(value)
    return int(text) if text.isdecimal() and len(text) <= digits else None


class Include(str):
    """A value that stands in another file, which a YAML text names after `!include`."""


@dataclass(frozen=True, slots=True)
class Document:
    """What one file says: its values, the line of every key, and the text itself.

    `twice` gives the first line of every key that one table says twice, of which the last holds.
    """

    file: str
    data: Any
    lines: Mapping[Key, int]
    text: str = ""
    twice: Mapping[Key, int] = field(default_factory=dict)

    def where(self, path: Key = ()) -> str:
        """`FILE:LINE` of a path, or of the nearest enclosing key that stands in the text."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.lines:
                return f"{self.file}:{self.lines[path[:end]]}"
        return self.file

    def line(self, path: Key) -> int:
        """The line of a path, 0 where the text does not hold it."""
        return self.lines.get(path, 0)

    def get(self, path: Key) -> Any:
        """The value at a path; None where there is none."""
        value = self.data
        for part in path:
            if isinstance(part, int):
                value = value[part] if isinstance(value, list) and part < len(value) else None
            else:
                value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def leaves(self) -> Iterator[tuple[Key, Any]]:
        """Every value below which no key stands: a scalar, an empty table, a list without tables."""
        yield from _leaves((), self.data)


def _leaves(path: Key, value: Any) -> Iterator[tuple[Key, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves((*path, str(key)), inner)
    elif isinstance(value, list) and any(isinstance(inner, (Mapping, list)) for inner in value):
        for at, inner in enumerate(value):
            yield from _leaves((*path, at), inner)
    else:
        yield path, value


def typed(text: str) -> Any:
    """A value as JSON would have it, else the text.

    >>> typed("true"), typed("3"), typed("cpu")
    (True, 3, 'cpu')
    """
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_text(path: str | Path) -> str:
    """The text of a file that may be a configuration; what keeps it from being one is an InputError."""
    file = str(path)
    try:
        with open(path, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError("no such file", where=file) from None
    except IsADirectoryError:
        raise InputError("is a folder; expected a configuration", where=file) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=file) from None
    if len(data) > MAX_BYTES:
        raise InputError(f"is larger than {MAX_BYTES} bytes, which no configuration is", where=file)
    if b"\0" in data:
        line = data[:data.index(b"\0")].count(b"\n") + 1
        raise InputError("is no text: it holds a zero byte", where=f"{file}:{line}")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data[:error.start].count(b"\n") + 1
        raise InputError(f"is not UTF-8 text (byte {error.start})", where=f"{file}:{line}") from None


def toml_document(text: str, file: str) -> Document:
    """The tables of a TOML text."""
    data, positions = parse_toml(text, file)
    return Document(file, data, positions.lines, text)


_scan_string: Any = json.decoder.scanstring  # type: ignore[attr-defined]  # absent from the stubs

_BLANK = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.])")
_WORD = re.compile(r"[^\s,\]}:\"]+")
_CONSTANTS = {"true": True, "false": False, "null": None}
_SIZE = 4000
"""Digits beyond which Python turns no text into a whole number."""


def json_document(text: str, file: str) -> Document:
    r"""The value of a JSON text; a key that stands twice in one object is an InputError, as is a bare word.

    >>> json_document('{"a": 1,\n "a": 2}', "c.json")
    Traceback (most recent call last):
    placealg.errors.InputError: c.json:2: 'a' stands twice in one object; it was said on line 1
    """
    reader = _Json(text, file)
    value, at = reader.value(reader.blank(0), ())
    if reader.blank(at) != len(text):
        raise reader.error("the text goes on after the value's end", reader.blank(at))
    return Document(file, value, reader.lines, text)


class _Json:
    """Reads JSON by recursive descent, with the line of every key."""

    def __init__(self, text: str, file: str):
        self.text, self.file = text, file
        self.lines: dict[Key, int] = {}
        self.starts = [0, *(found.end() for found in re.finditer("\n", text))]

    def line(self, at: int) -> int:
        from bisect import bisect_right

        return bisect_right(self.starts, at)

    def error(self, what: str, at: int) -> InputError:
        return InputError(what, where=f"{self.file}:{self.line(min(at, max(len(self.text) - 1, 0)))}")

    def blank(self, at: int) -> int:
        found = _BLANK.match(self.text, at)
        return found.end() if found else at

    def value(self, at: int, path: Key) -> tuple[Any, int]:
        if len(path) > MAX_DEPTH:
            raise self.error(f"nested more than {MAX_DEPTH} deep", at)
        sign = self.text[at:at + 1]
        if sign == "{":
            return self.table(at, path)
        if sign == "[":
            return self.array(at, path)
        if sign == '"':
            return self.string(at)
        if number := _NUMBER.match(self.text, at):
            word = number[0]
            if len(word) > _SIZE:
                raise self.error("a number of too many digits", at)
            return (int(word) if word.lstrip("-").isdecimal() else float(word)), number.end()
        word = found[0] if (found := _WORD.match(self.text, at)) else ""
        if word in _CONSTANTS:
            return _CONSTANTS[word], at + len(word)
        if not word:
            raise self.error("the text ends before its value does" if not sign else f"unexpected '{sign}'", at)
        raise self.error(f"{word} is no JSON value: a template's placeholder? --key {word.strip('${}')}=VALUE puts a "
                         "value in its place", at)

    def string(self, at: int) -> tuple[str, int]:
        try:
            read: tuple[str, int] = _scan_string(self.text, at + 1, False)
            return read
        except json.JSONDecodeError as error:
            raise self.error(f"not JSON: {error.msg}", at) from None

    def table(self, start: int, path: Key) -> tuple[dict[str, Any], int]:
        made: dict[str, Any] = {}
        at = self.blank(start + 1)
        while self.text[at:at + 1] != "}":
            if made:
                if self.text[at:at + 1] != ",":
                    raise self.error("expected ',' or '}'", at)
                at = self.blank(at + 1)
            if self.text[at:at + 1] != '"':
                raise self.error("expected a key in double quotes", at)
            key, after = self.string(at)
            inner = (*path, key)
            if key in made:
                raise self.error(f"'{key}' stands twice in one object; it was said on line {self.lines[inner]}", at)
            self.lines[inner] = self.line(at)
            at = self.blank(after)
            if self.text[at:at + 1] != ":":
                raise self.error("expected ':'", at)
            made[key], at = self.value(self.blank(at + 1), inner)
            at = self.blank(at)
        return made, at + 1

    def array(self, start: int, path: Key) -> tuple[list[Any], int]:
        made: list[Any] = []
        at = self.blank(start + 1)
        while self.text[at:at + 1] != "]":
            if made:
                if self.text[at:at + 1] != ",":
                    raise self.error("expected ',' or ']'", at)
                at = self.blank(at + 1)
            self.lines[(*path, len(made))] = self.line(at)
            value, at = self.value(at, (*path, len(made)))
            made.append(value)
            at = self.blank(at)
        return made, at + 1
