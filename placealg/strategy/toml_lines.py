"""TOML with places: the tables of a text, and the line of every key in it.

tomllib decides what is valid and gives the values; a scan of the same, then valid, text gives the lines.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placealg.errors import InputError
from placealg.strategy.kinds import Path as KeyPath

MAX_BYTES = 2_000_000
_MAX_DOTS = 200
_BARE = re.compile(r"[A-Za-z0-9_-]+(?:[ \t]*\.[ \t]*[A-Za-z0-9_-]+)*")
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_SCALAR = re.compile(r"[^,\]}#\r\n]*")
_STRINGS = (  # the long delimiters first: each is the whole string, quotes included
    re.compile(r'"""(?:[^\\]|\\.)*?"""(?:"{0,2})', re.DOTALL),
    re.compile(r"'''.*?'''(?:'{0,2})", re.DOTALL),
    re.compile(r'"(?:[^"\\\n]|\\.)*"'),
    re.compile(r"'[^'\n]*'"),
)
_AT_LINE = re.compile(r" \(at line (\d+), column \d+\)\Z")


@dataclass(frozen=True, slots=True)
class Positions:
    """The line of every key of a text, by the path of keys and array indices that leads to it."""

    file: str
    lines: Mapping[KeyPath, int]

    def line(self, *path: str | int) -> int:
        """The line of `path`, or of the nearest enclosing key that stands in the text."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.lines:
                return self.lines[path[:end]]
        return 1

    def where(self, *path: str | int) -> str:
        """`FILE:LINE` of `path`; "" where there is no file."""
        return f"{self.file}:{self.line(*path)}" if self.file else ""

    def place(self, path: KeyPath) -> str:
        """`FILE:LINE` of a path given as one tuple."""
        return self.where(*path)


NOWHERE = Positions("", {})
"""The positions of tables that come from no file."""


def read_toml(path: str | Path) -> tuple[dict[str, Any], Positions]:
    """The tables of a TOML file with their places; whatever keeps it from being read is an InputError."""
    file = str(path)
    try:
        with open(path, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError("no such file", where=file) from None
    except IsADirectoryError:
        raise InputError("is a directory; expected a TOML file", where=file) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=file) from None
    if len(data) > MAX_BYTES:
        raise InputError(f"is larger than {MAX_BYTES} bytes", where=file)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[:error.start].count(b"\n") + 1
        raise InputError(f"is not UTF-8 text (byte {error.start})", where=f"{file}:{line}") from None
    return parse_toml(text, file)


def parse_toml(text: str, file: str) -> tuple[dict[str, Any], Positions]:
    r"""The tables of a TOML text with their places; `file` names it in errors.

    >>> tables, positions = parse_toml('[mesh]\ndp = 8\n', "s.toml")
    >>> tables, positions.where("mesh", "dp")
    ({'mesh': {'dp': 8}}, 's.toml:2')
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if not text.strip():
        raise InputError("is empty", where=file)
    for number, line_text in enumerate(text.split("\n"), 1):
        if line_text.count(".") > _MAX_DOTS:  # tomllib takes quadratic time for a long dotted key
            raise InputError(f"has more than {_MAX_DOTS} dots in one line", where=f"{file}:{number}")
    try:
        tables = tomllib.loads(text)
        return tables, Positions(file, _Scan(text).lines)
    except RecursionError:
        raise InputError("is nested too deeply", where=file) from None
    except ValueError as error:
        message = str(error)
        found = _AT_LINE.search(message)
        line = int(found[1]) if found else text.rstrip().count("\n") + 1
        what = _AT_LINE.sub("", message).replace(" (at end of document)", ", at the end of the file")
        raise InputError(f"not TOML: {what}", where=f"{file}:{line}") from None


class _Scan:
    """One pass over valid TOML text that notes the line of each key."""

    def __init__(self, text: str):
        self.text = text
        self.at = 0
        self.line = 1
        self.counted = 0
        self.lines: dict[KeyPath, int] = {}
        self.arrays: dict[KeyPath, int] = {}
        table: KeyPath = ()
        while self._blank() < len(text):
            if text.startswith("[[", self.at):
                table = self._header(2)
                self.arrays[table] = self.arrays.get(table, -1) + 1
                table = (*table, self.arrays[table])
                self._note(table)
            elif text[self.at] == "[":
                table = self._header(1)
                self._note(table)
            else:
                self._pair(table)

    def _blank(self) -> int:
        return self._skip(_BLANK)

    def _skip(self, pattern: re.Pattern[str]) -> int:
        found = pattern.match(self.text, self.at)
        if found:
            self.at = found.end()
        return self.at

    def _note(self, path: KeyPath) -> None:
        self.line += self.text.count("\n", self.counted, self.at)
        self.counted = self.at
        for end in range(1, len(path) + 1):
            self.lines.setdefault(path[:end], self.line)

    def _header(self, brackets: int) -> KeyPath:
        self.at += brackets
        self._skip(_SPACE)
        path: KeyPath = ()
        for key in self._key():
            path = (*path, key) if path not in self.arrays else (*path, self.arrays[path], key)
        self._skip(_SPACE)
        self.at += brackets
        return path

    def _key(self) -> tuple[str, ...]:
        parts: list[str] = []
        while True:
            self._skip(_SPACE)
            found = _BARE.match(self.text, self.at)
            if found:
                parts.extend(p.strip() for p in found[0].split("."))
                self.at = found.end()
            else:
                quoted = self._string()
                parts.extend(tomllib.loads(f"{quoted} = 0"))
            self._skip(_SPACE)
            if self.text[self.at] != ".":
                return tuple(parts)
            self.at += 1

    def _string(self) -> str:
        for pattern in _STRINGS:
            found = pattern.match(self.text, self.at)
            if found:
                self.at = found.end()
                return found[0]
        raise ValueError("Invalid string")

    def _pair(self, table: KeyPath) -> None:
        path = (*table, *self._key())
        self._note(path)
        self.at += 1  # the equals sign
        self._skip(_SPACE)
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        opening = self.text[self.at]
        if opening in "\"'":
            self._string()
        elif opening == "[":
            self.at += 1
            index = 0
            while self.text[self._blank()] != "]":
                self._note((*path, index))
                self._value((*path, index))
                index += 1
                if self.text[self._blank()] == ",":
                    self.at += 1
            self.at += 1
        elif opening == "{":
            self.at += 1
            while self.text[self._blank()] != "}":
                self._pair(path)
                if self.text[self._blank()] == ",":
                    self.at += 1
            self.at += 1
        else:
            self._skip(_SCALAR)
