"""The one error class of bad input: what is wrong, where it stands, and what would have been valid."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from datetime import date, time
from typing import Any

_MAX_NAME = 200
_MOST_REPEATED = 80
_QUOTED = re.compile(r"(?<!\w)'(.*?)'(?!\w)")  # an apostrophe inside a word is no quotation mark
_WORD = re.compile(r"\S{161,}")


class InputError(ValueError):
    """Bad input, reported as one line; the command line exits with 2.

    >>> raise InputError("unknown mode 'Q'", where="s.toml:4", valid=["R", "S"])
    Traceback (most recent call last):
    placealg.errors.InputError: s.toml:4: unknown mode 'Q'; valid: R, S
    """

    def __init__(self, what: str, *, where: str = "", name: str = "", valid: Iterable[str] = (),
                 key: tuple[str | int, ...] = (), near: str | None = None):
        self.what = what
        self.where = where
        self.key = key  # the path of the strategy's key that says it; () where no key does
        names = tuple(valid)
        if near is None:  # the valid name that was meant; "" where it is known that none was
            near = nearest(name, names) if name else ""
        self.unlike = name if names and not near else ""  # a name that is like no valid one; "" where there is none
        self.hint = _hint(near, names)
        super().__init__(str(self))

    def __str__(self) -> str:
        where = _cut(self.where) if self.where.startswith("--") else self.where
        text = f"{where}: {self.what}" if self.where else self.what
        line = brief(" ".join((text + self.hint).split()))
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)

    def at(self, where: str) -> InputError:
        """The same error, placed at `where` unless it already has a place."""
        return self if self.where else self.moved(where)

    def moved(self, where: str) -> InputError:
        """The same error, placed at `where` and nowhere else."""
        error = InputError(self.what, where=where, key=self.key)
        error.unlike, error.hint = self.unlike, self.hint
        error.args = (str(error),)
        return error


def kind(value: object) -> str:
    """The kind of a value, with its article.

    >>> kind(3), kind(None), kind("x")
    ('an int', 'None', 'a str')
    """
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def need(value: object, kinds: type | tuple[type, ...], what: str) -> None:
    """Raise InputError unless a value is of the kind that is asked for.

    >>> need(3, str, "strategy expression")
    Traceback (most recent call last):
    placealg.errors.InputError: an int is no strategy expression
    """
    if not isinstance(value, kinds):
        raise InputError(f"{kind(value)} is no {what}")


def brief(text: str) -> str:
    """A message that repeats at most 80 characters of each word, or quotation, that was wrong.

    >>> len(brief("unknown strategy '" + "x y" * 1000 + "'")), len(brief("dp = " + "9" * 1000))
    (99, 85)
    >>> brief("'gpt' is" + " so" * 40 + " with 'zero3'") == "'gpt' is" + " so" * 40 + " with 'zero3'"
    True
    """
    found = _QUOTED.sub(lambda m: f"'{_cut(m[1])}'", text)
    return _WORD.sub(lambda m: _cut(m[0]), found)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_REPEATED else text[:_MOST_REPEATED - 3] + "..."


def shown(value: Any) -> str:
    """A value in the spelling of TOML, short enough for one line.

    >>> shown(True), shown([{"dp": "S*"}])
    ('true', "[{ dp = 'S*' }]")
    """
    text = " ".join(_spelled(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def _spelled(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{k} = {_spelled(v)}" for k, v in value.items()) + " }" if value else "{}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_spelled, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, (date, time)) else repr(value)


def begun(name: str, valid: Iterable[str]) -> tuple[str, ...]:
    """The valid names that begin as one of three letters at least does.

    >>> begun("gpt3", ["gpt", "gpt3-175b"]), begun("llama-3", ["llama-3-70b", "llama-3-8b"]), begun("g", ["gpt"])
    (('gpt3-175b',), ('llama-3-70b', 'llama-3-8b'), ())
    """
    start = letters(name)
    return tuple(n for n in valid if len(start) >= 3 and letters(n).startswith(start))


def nearest(name: str, valid: Iterable[str]) -> str:
    """The valid name closest to `name`, or "" when none is near.

    >>> nearest("zero33", ["dp", "zero3", "hsdp"])
    'zero3'
    """
    names = list(valid)
    name = name[:_MAX_NAME]
    if same := next((n for n in names if letters(n) == letters(name)), ""):
        return same
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return close[0]
    return ""


def letters(name: str) -> str:
    """A name without what people write differently: capitals, hyphens, underscores, spaces."""
    return re.sub(r"[-_ ]", "", name).lower()


def _hint(near: str, valid: tuple[str, ...]) -> str:
    if not valid:
        return ""
    if near:
        return f"; did you mean '{near}'?"
    shown = ", ".join(valid[:12]) + (", ..." if len(valid) > 12 else "")
    return f"; valid: {shown}"
