"""Words of shell scripts expanded: variables, arrays, defaults, cuts, arithmetic; what nothing sets is open."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from placealg.errors import InputError
from placealg.importers.document import written
from placealg.importers.shell_arithmetic import arithmetic
from placealg.importers.shell_text import ShellToken

OPEN, CLOSE = "\x01", "\x02"
BLANKS = re.compile(r"[ \t\n]+")
"""What a shell splits words at; a blank inside open text is no such."""
MAX_TEXT = 200_000
Value = str | list[str]
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_BRACED = re.compile(r"(#?)([A-Za-z_]\w*|[0-9@*#?$!-]+)(?:\[([^\]]*)\])?(.*)\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Command:
    """A command that the script would run: its words, the line it begins on, and whether it is certain to.

    `empty` are the variables among its words that come out empty, `environment` those that are set when it runs.
    """

    words: tuple[str, ...]
    line: int
    certain: bool = True
    empty: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, compare=False)


@dataclass
class Script:
    """What following a script found."""

    file: str
    variables: dict[str, Value] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)
    open: dict[str, int] = field(default_factory=dict)
    candidates: dict[str, list[str]] = field(default_factory=dict)
    sourced: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)


class Words:
    """Expands words over a table of variables."""

    def __init__(self, script: Script, arguments: tuple[str, ...]):
        self.script, self.arguments = script, list(arguments)
        self.empty: list[str] = []

    def opened(self, name: str, line: int) -> str:
        """Open text, by the name of what leaves it open."""
        name = " ".join(name.replace(OPEN, "").replace(CLOSE, "").split()).replace(" ", "\u00a0")
        self.script.open.setdefault(name, line)
        return f"{OPEN}{name}{CLOSE}"

    def look(self, name: str, index: str | None, line: int) -> list[str] | None:
        """The fields of a variable; None where nothing sets it."""
        if name in ("@", "*"):
            return list(self.arguments)
        if name == "#":
            return [str(len(self.arguments))]
        if name.isdecimal():
            at = written(name, 9) or 0
            return [self.arguments[at - 1]] if 1 <= at <= len(self.arguments) else None
        value = self.script.variables.get(name)
        if value is None:
            return None
        if isinstance(value, list):
            if index in ("@", "*"):
                return list(value)
            at = written(index, 9) or 0
            return [value[at]] if at < len(value) else None
        return [value]

    def expand(self, token: ShellToken) -> list[str]:
        """The fields that a raw word becomes."""
        fields: list[str] = []
        current, begun = "", False
        text, at = token.text, 0
        if len(text) > MAX_TEXT:
            raise InputError("a word is too long", where=f"{self.script.file}:{token.line}")
        while at < len(text):
            sign = text[at]
            if sign == "'":
                end = text.find("'", at + 1)
                current += text[at + 1:end].replace("\x00", "\\\n")
                begun, at = True, end + 1
            elif sign == '"':
                inner, at = self.double(text, at + 1, token.line)
                first, *more = inner
                current, begun = current + first, True
                for field_ in more:
                    fields.append(current)
                    current = field_
                if not inner[0] and len(inner) == 1 and inner == [""] and text[at - 2:at] != '""' and "@" in text:
                    begun = bool(current)
            elif sign == "\\":
                current += text[at + 1:at + 2]
                begun, at = True, at + 2
            elif sign in "$`":
                values, at = self.dollar(text, at, token.line)
                for k, value in enumerate(values):
                    pieces = BLANKS.split(value.strip(" \t\n")) if value.strip(" \t\n") else []
                    if k and begun:
                        fields.append(current)
                        current, begun = "", False
                    if value[:1].isspace() and begun:
                        fields.append(current)
                        current, begun = "", False
                    for n, piece in enumerate(pieces):
                        if n:
                            fields.append(current)
                            current = ""
                        current += piece
                        begun = True
                    if value[-1:].isspace() and begun:
                        fields.append(current)
                        current, begun = "", False
            else:
                current += sign
                begun, at = True, at + 1
        return [*fields, current] if begun else fields

    def double(self, text: str, at: int, line: int) -> tuple[list[str], int]:
        """(fields, where it ends) of a text in double quotes: one field, unless it holds "$@" or an array."""
        fields = [""]
        while at < len(text) and text[at] != '"':
            sign = text[at]
            if sign == "\\":
                follows = text[at + 1:at + 2]
                fields[-1] += follows if follows in '"\\$`' else "" if follows == "\n" else f"\\{follows}"
                at += 2
            elif sign == "\x00":
                fields[-1] += " "
                at += 1
            elif sign in "$`":
                several = re.match(r"\$\{?\w+\[@\]\}|\$\{\w+\[@\]\}|\$@|\$\{@\}", text[at:])
                values, at = self.dollar(text, at, line)
                if several:
                    fields[-1] += values[0] if values else ""
                    fields += values[1:]
                else:
                    fields[-1] += " ".join(values)
            else:
                fields[-1] += sign
                at += 1
        return fields, at + 1

    def dollar(self, text: str, at: int, line: int) -> tuple[list[str], int]:
        """(fields, where it ends) of an expansion that begins with $ or a backtick."""
        if text[at] == "`":
            end = text.find("`", at + 1)
            return [self.opened("`...`", line)], (end if end > 0 else len(text)) + 1
        if text.startswith("$((", at):
            end = _closing(text, at + 1, "(", ")")
            inner = self.text(text[at + 3:end - 1], line)
            found = arithmetic(inner, lambda name: self.scalar(name))
            return [self.opened(inner.strip()[:40], line) if found is None else str(found)], end + 1
        if text.startswith("$(", at):
            end = _closing(text, at + 1, "(", ")")
            inner = " ".join(text[at + 2:end].split())
            echoed = re.fullmatch(r"echo\s+(?:-n\s+)?([^|;&`(]*)", inner)
            if echoed:
                return [" ".join(self.expand_text(echoed[1], line))], end + 1
            return [self.opened(f"$({inner[:30]})", line)], end + 1
        if text.startswith("${", at):
            end = _closing(text, at + 1, "{", "}")
            return self.braced(text[at + 2:end], line), end + 1
        name = _NAME.match(text, at + 1)
        if not name:
            return ["$"], at + 1
        values = self.look(name[0], None, line)
        if values is None:
            return [self.opened(name[0], line)] if name[0] not in "?!$-" else ["0"], name.end()
        self.note(name[0], values)
        return values, name.end()

    def note(self, name: str, values: list[str]) -> None:
        """Keep the name of a variable that comes out empty."""
        if name.isidentifier() and not any(value.strip() for value in values):
            self.empty.append(name)

    def scalar(self, name: str) -> str | None:
        """The first field of a variable; None where nothing sets it."""
        found = self.look(name, None, 0)
        return found[0] if found else None

    def text(self, raw: str, line: int) -> str:
        """A text with its expansions, as one field."""
        return self.double(raw.replace('"', r'\"') + '"', 0, line)[0][0]

    def expand_text(self, raw: str, line: int) -> list[str]:
        """The fields of a text of several raw words."""
        return [f for token in raw.split() for f in self.expand(ShellToken(token, line))]

    def braced(self, inner: str, line: int) -> list[str]:
        """The fields of ${...}."""
        found = _BRACED.match(inner)
        if not found:
            return [self.opened(inner[:30], line)]
        count, name, index, rest = found.groups()
        value = self.look(name, index, line)
        if count:
            return [str(len(value)) if index in ("@", "*") else str(len(value[0]))] if value is not None else ["0"]
        if not rest:
            self.note(name, value if value is not None else ["open"])
            return [self.opened(name, line)] if value is None else value
        operator = re.match(r":?[-=+?]", rest)
        if operator:
            word = rest[operator.end():]
            empty = value is None or (operator[0].startswith(":") and not any(value))
            kind = operator[0][-1]
            if kind == "+":
                return [] if empty else self.fields(word, line)
            if not empty:
                return value or []
            if kind == "?":
                return [self.opened(name, line)]
            made = self.fields(word, line)
            if kind == "=":
                self.script.variables[name] = " ".join(made)
            return made
        if value is None:
            return [self.opened(name, line)]
        return [_trimmed(v, rest, lambda raw: self.text(raw, line)) for v in value]

    def fields(self, word: str, line: int) -> list[str]:
        """The fields of the word in ${V:-word}."""
        made: list[str] = []
        for token in _split_quoted(word):
            made += self.expand(ShellToken(token, line))
        return made


def _closing(text: str, at: int, left: str, right: str) -> int:
    """Where the bracket that opens at `at` closes; quotes hide round brackets."""
    depth, quote = 0, ""
    for k in range(at, len(text)):
        if left == "(" and text[k] in "'\"" and quote in ("", text[k]) and text[k - 1] != "\\":
            quote = "" if quote else text[k]
        if quote:
            continue
        depth += (text[k] == left) - (text[k] == right)
        if depth == 0:
            return k
    return len(text) - 1


def _split_quoted(word: str) -> list[str]:
    return re.findall(r"(?:\"[^\"]*\"|'[^']*'|\$\{[^}]*\}|\S)+", word)


def _trimmed(value: str, rest: str, text: Callable[[str], str]) -> str:
    """A value with an affix cut, a pattern replaced, or its case changed."""
    if OPEN in value:
        return value
    if rest in (",,", "^^"):
        return value.lower() if rest == ",," else value.upper()
    found = re.match(r"(%%?|##?)(.*)\Z", rest, re.DOTALL)
    if found:
        kind, pattern = found.groups()
        cuts = range(len(value) + 1)
        ends = [k for k in cuts if fnmatchcase(value[k:] if kind[0] == "%" else value[:k], pattern)]
        if not ends:
            return value
        at = (min if kind == "%%" else max)(ends) if kind[0] == "%" else (max if kind == "##" else min)(ends)
        return value[:at] if kind[0] == "%" else value[at:]
    replaced = re.match(r"(//?)([^/]*)/(.*)\Z", rest, re.DOTALL)
    if replaced:
        return value.replace(replaced[2], replaced[3], -1 if replaced[1] == "//" else 1)
    return f"{OPEN}{value}{rest}{CLOSE}"
