"""The collector of a reading: asks a document for its keys, and accounts for every one of them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from placealg.errors import InputError, nearest
from placealg.errors import shown as shown_value
from placealg.importers.document import Document, Include, Key, dotted
from placealg.importers.kinds import kind_of, says_nothing
from placealg.importers.reading import Options, ReadingItem, refusal
from placealg.importers.tables import Format, default_of

SUSPICIOUS = re.compile(r"parallel(?![_-]?(?:attn|attention|residual|block))|model.?parallel|shard|recomp|"
                        r"pipe(?!line_tag)|"
                        r"checkpoint.?act|activation.?(checkpoint|offload)|offload|"
                        r"zero(?![_-]?(?:grad|cent|point|pad|shot|init))|expert|moe|fp8|dpp|remat|"
                        r"(?<![a-z])(?:tp|pp|dp|cp|ep|sp)[._-]?(?:size|degree)", re.IGNORECASE)
"""What a key is called that may place something; one that no table knows is refused rather than passed over."""


class Said:
    """What one format's reader asks and tells.

    Keys are dotted: "zero_optimization.stage". `value` gives what the document says, else the framework's default;
    every key of the document that the reader did not account for is ignored for the reason that the format's table
    gives, or refused where none does and its name speaks of placement.
    """

    def __init__(self, table: Format, document: Document, options: Options, prefix: Key = ()):
        self.table, self.document, self.options, self.prefix = table, document, options, prefix
        self.lists: dict[str, list[ReadingItem]] = {"read": [], "unsaid": [], "approximated": [], "ignored": []}
        self.listed: set[Key] = set()
        self.asked = options.versions.get(table.framework, "")

    def path(self, key: str) -> Key:
        """The path of a dotted key."""
        return (*self.prefix, *key.split(".")) if key else self.prefix

    def has(self, key: str) -> bool:
        """Whether the document holds the key, with another value than null."""
        return self.raw(key) is not None

    def raw(self, key: str) -> Any:
        """What the document says under a key, None where it is silent."""
        path = self.path(key)
        if included := self.included(key):
            raise refusal(f"{dotted(included)} stands in another file, {self.document.get(included)}",
                          self.where(key), "put its keys in this one")
        value = self.document.get(path)
        if value is not None and (first := self.document.twice.get(path)):
            raise refusal(f"'{dotted(path)}' stands twice in one table; it was said on line {first}", self.where(key))
        return value

    def included(self, key: str) -> Key:
        """The path of the key, or of the table around it, that stands in another file; () where neither does."""
        path = self.path(key)
        return next((path[:end] for end in range(1, len(path) + 1)
                     if isinstance(self.document.get(path[:end]), Include)), ())

    def default(self, key: str) -> Any:
        """The framework's default of a key, at the version asked for."""
        row = self.table.keys[key]
        value, open_ = default_of(row, self.asked)
        if open_ and not self.has(key):
            self.unsaid(key, open_, f"--framework {self.table.framework}={row.moved[0].since}")
        return value

    def value(self, key: str) -> Any:
        """What the document says under a key of the table, else the framework's default."""
        found = self.raw(key)
        return self.default(key) if found is None else found

    def where(self, key: str) -> str:
        """`FILE:LINE` of a key."""
        return self.document.where(self.path(key))

    def _item(self, key: str, text: str, value: Any, option: str = "") -> ReadingItem:
        path = self.path(key)
        here = self.document.get(path) is not None or path in self.document.lines
        if here:
            self.listed.add(path)
        if value is None and here:
            value = self.document.get(path)
            value = "" if isinstance(value, Mapping) else value
        return ReadingItem(self.document.file, self.document.line(path), key, "" if value is None or value == "" else
                    shown_value(value), text, option)

    def read(self, key: str, text: str, value: Any = None) -> None:
        """A key became something; one that the document lacks is the framework's default, and says so."""
        silent = not self.has(key)
        if silent and value is None and key in self.table.keys:
            value = self.default(key)
        self.lists["read"].append(self._item(key, f"{text} (default)" if silent else text, value))

    def follows(self, key: str, text: str) -> None:
        """Something that no key says, and that follows from who runs the file."""
        self.lists["read"].append(ReadingItem(self.document.file, 0, key, "", text))

    def unsaid(self, key: str, text: str, option: str = "") -> None:
        """Something that the file does not decide: who does, and what supplies it."""
        self.lists["unsaid"].append(self._item(key, text, None, option))

    def missing(self, what: str, text: str, option: str = "") -> None:
        """`unsaid`, for what is no key of the document, even where a section of it has that name."""
        self.lists["unsaid"].append(ReadingItem(self.document.file, 0, what, "", text, option))

    def approximated(self, key: str, text: str, value: Any = None) -> None:
        """Something that is understood and cannot be said."""
        self.lists["approximated"].append(self._item(key, text, value))

    def take(self, part: Said) -> None:
        """What was asked and told of a part of the same document, by another format's names."""
        for name, items in part.lists.items():
            self.lists[name] += items
        self.listed |= part.listed

    def inactive(self, key: str, why: str) -> None:
        """A key that the framework does not act on here."""
        here = self.document.get(self.path(key)) is not None or self.path(key) in self.document.lines
        if here and not self.accounted(self.path(key)):
            self.lists["ignored"].append(self._item(key, why, None))

    def leave(self, key: str, why: str) -> None:
        """`inactive`, for a key that is in no list so far."""
        if not self.accounted(self.path(key)):
            self.inactive(key, why)

    def refuse(self, key: str, what: str, remedy: str = "") -> InputError:
        """The refusal of the whole file for what stands under a key."""
        return refusal(what, self.where(key), remedy)

    def number(self, key: str, least: int = 1) -> int | None:
        """The whole number under a key; None where the file is silent or says "auto"."""
        return self.whole(key, self.raw(key), least)

    def whole(self, key: str, value: Any, least: int = 1) -> int | None:
        """A value as a whole number; None for None and "auto"."""
        if value is None or value == "auto":
            return None
        if isinstance(value, str) and re.fullmatch(r"[-+]?\d{1,30}(\.0{1,30})?", value):
            value = int(value.split(".")[0])
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least or value > 10**12:
            raise self.refuse(key, f"{key} is {shown_value(value)}: expected a whole number of at least {least}")
        return value

    def amount(self, key: str) -> float:
        """The number under a key of the table, or its default's; an InputError where it is none."""
        return self.rate(key, self.value(key))

    def rate(self, key: str, value: Any) -> float:
        """A value as a number; an InputError where it is none."""
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            raise self.refuse(key, f"{key} is {shown_value(value)}: expected a number") from None

    def flag(self, key: str) -> bool:
        """The truth value under a key of the table."""
        return self.truth(key, self.value(key))

    def truth(self, key: str, value: Any) -> bool:
        """A value as a truth value: also the words true, false, yes, no, on, off and 1, 0."""
        if isinstance(value, bool):
            return value
        word = str(value).lower()
        if word in ("true", "yes", "on", "1"):
            return True
        if word in ("false", "no", "off", "0", "none", ""):
            return False
        raise self.refuse(key, f"{key} is {shown_value(value)}: expected true or false")

    def choice(self, key: str, value: Any, valid: Iterable[str]) -> str:
        """A value that is one of some words, or a refusal with the nearest of them."""
        names = tuple(valid)
        if not isinstance(value, (str, int)) or str(value) not in names:
            error = InputError(f"{key} is {shown_value(value)}", where=self.where(key), name=str(value), valid=names)
            raise error
        return str(value)

    def accounted(self, path: Key) -> bool:
        """Whether a path, or something around it, is in one of the lists."""
        return any(path[:end] in self.listed for end in range(1, len(path) + 1))

    def finish(self) -> None:
        """Put every key that is in no list among the ignored ones, or refuse it."""
        known = {*self.table.keys, *(k for k in self.table.ignored if "*" not in k)}
        for path, value in self.document.leaves():
            if path and not self.accounted(path):
                inner = path[len(self.prefix):] if path[:len(self.prefix)] == self.prefix else path
                self._leave(path, dotted(inner), value, known)

    def _leave(self, path: Key, key: str, value: Any, known: set[str]) -> None:
        bare = re.sub(r"\[\d+\]", "", key)
        why = self.table.why_ignored(bare)
        if not why and key in self.table.keys:
            why = "says what holds anyway" if value not in (None, "") else "empty"
        if self._judged(path, value):
            return
        left = self.table.why_left(bare)
        if not why and left and not (SUSPICIOUS.search(key) and not _off(value)):
            why = left
        if not why and not self.ignores(key):
            section = key.rpartition(".")[0]
            near = nearest(key, known)
            hint = f"; did you mean '{near}'?" if near else ""
            close = difflib.get_close_matches(key, self.table.keys, n=1, cutoff=0.88)
            if close:
                raise refusal(f"'{key}' is no known key of {self.table.title}; did you mean '{close[0]}'?",
                              self.document.where(path), f"--ignore {key} reads on")
            if section in self.table.closed or ("" in self.table.closed and not section):
                raise refusal(f"{self.table.framework} has no key '{key}' and does not start with it{hint}",
                              self.document.where(path), f"--ignore {key} reads on")
            if SUSPICIOUS.search(key) and not _off(value):
                raise refusal(f"'{key}' is no known key of {self.table.title}, and speaks of placement{hint}",
                              self.document.where(path), f"--ignore {key} reads on")
        line = self.document.line(path)
        self.lists["ignored"].append(ReadingItem(self.document.file, line, key, shown_value(value),
                                          why or "no key of the framework that is known here"))

    def _judged(self, path: Key, value: Any) -> bool:
        """Whether a key of no row speaks of what bears on the program: it is approximated by name, or refused.

        Of a table it is the outermost key that speaks of that, unless something in it is read.
        """
        inside = len(self.prefix) if path[:len(self.prefix)] == self.prefix else 0
        bare = re.sub(r"\[\d+\]", "", dotted(path[inside:]))
        kind = kind_of(bare)
        if kind is None or kind.becomes == "ignored" or says_nothing(value) or self.table.decides(bare, kind):
            return False
        above = [path[:n] for n in range(inside + 1, len(path))]
        if any(says_nothing(self.document.get(table)) for table in above) or self.ignores(bare):
            return False
        whole = next((table for table in above if kind_of(dotted(table[inside:])) == kind and not any(
            found[:len(table)] == table for found in self.listed)), path)
        key = dotted(whole[inside:])
        if kind.becomes == "refused":
            raise refusal(f"'{key}' {kind.says}", self.document.where(path), f"--ignore {key} reads on")
        self.lists["approximated"].append(ReadingItem(self.document.file, self.document.line(whole), key, "" if
                                          whole != path else shown_value(value), kind.says))
        self.listed.add(whole)
        return True

    def ignores(self, key: str) -> bool:
        """Whether the user says to read on past a key."""
        return any(key == name or key.endswith(f".{name}") for name in self.options.ignore)


def _off(value: Any) -> bool:
    """Whether a value turns nothing on, or is a degree of 1.

    >>> _off("0.0"), _off("1"), _off(True), _off("null")
    (True, True, False, True)
    """
    return says_nothing(value) or (value is not True and bool(re.fullmatch(r"1(\.0*)?", str(value))))
