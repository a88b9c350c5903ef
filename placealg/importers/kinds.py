"""What a key that no table names speaks of, by the words of its name: what bears on the program is not passed over."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from importlib.resources import files
from itertools import pairwise
from typing import Any

WORD = re.compile(r"[A-Z]?[a-z]+\d*|[A-Z]+(?![a-z])\d*|\d+")


@dataclass(frozen=True, slots=True)
class KeyKind:
    """A kind of keys: the words that tell it, what becomes of such a key (ignored, approximated, refused), and why."""

    name: str
    words: tuple[str, ...]
    becomes: str
    says: str


@lru_cache(maxsize=1)
def kinds() -> tuple[KeyKind, ...]:
    """The kinds, of which the first that fits holds."""
    text = files("placealg.importers").joinpath("formats", "kinds.toml").read_text(encoding="utf-8")
    return tuple(KeyKind(name, tuple(row["words"]), row["becomes"], row["says"])
                 for name, row in tomllib.loads(text).items())


def words_of(key: str) -> tuple[str, ...]:
    """The words of a key, and each two that stand together.

    >>> words_of("use_asft_loss"), words_of("refModel")
    (('use', 'asft', 'loss', 'use_asft', 'asft_loss'), ('ref', 'model', 'ref_model'))
    """
    words = [found.lower() for found in WORD.findall(key)]
    return (*words, *(f"{a}_{b}" for a, b in pairwise(words)))


@lru_cache(maxsize=1)
def _patterns() -> tuple[tuple[KeyKind, re.Pattern[str]], ...]:
    return tuple((kind, re.compile("|".join(map(translate, kind.words)))) for kind in kinds())


@lru_cache(maxsize=4096)
def kind_of(key: str) -> KeyKind | None:
    """What a key speaks of by its words; None where they say nothing of the kinds.

    >>> [kind.name if (kind := kind_of(key)) else "" for key in ("reward_model", "log_loss", "hidden_size")]
    ['second_model', 'run', '']
    """
    words = words_of(key)
    return next((kind for kind, pattern in _patterns() if any(map(pattern.match, words))), None)


def says_nothing(value: Any) -> bool:
    """Whether a value turns nothing on: false, null, zero, nothing in it, or a word for that.

    >>> says_nothing("0.00"), says_nothing("none"), says_nothing({"enabled": False}), says_nothing(1)
    (True, True, True, False)
    """
    if isinstance(value, Mapping):
        return not value or value.get("enabled", value.get("enable", True)) in (False, "false")
    if value is None or value is False or value in ([], ()):
        return True
    word = str(value).strip().lower()
    return word in ("", "false", "no", "off", "null", "none", "[]", "{}") or bool(re.fullmatch(r"[-+]?0*\.?0+", word))
