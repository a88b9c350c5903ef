"""Words of a command line that are no option of it: sizes, and what was meant by others."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence

from placealg.cases.sizes import with_axis
from placealg.errors import InputError
from placealg.mesh import SYMBOLS, called, meant_size
from placealg.strategy.catalogue import names

SIZE = re.compile(r"[A-Za-z_][\w,]*=")
"""Begins a word that gives a size."""

_MANY = ("--set", "--bandwidth", "--fix", "--assume")
_LISTS = ("--set", "--fix")
_NEXT_SIZE = re.compile(r",(?=[A-Za-z_]\w*=)")

AXES = ("dp", "tp", "pp", "cp", "ep", "dp_shard", "dp_replicate")
"""The axes of the catalogue's strategies."""


def split_sizes(words: Iterable[str]) -> list[str]:
    """Each NAME=VALUE behind an option of _MANY becomes an option of its own, so that a strategy may follow.

    >>> split_sizes(["cost", "--set", "dp=8,tp=2", "m=4", "zero3"])
    ['cost', '--set=dp=8', '--set=tp=2', '--set=m=4', 'zero3']
    """
    found: list[str] = []
    option, taken = "", False
    for word in words:
        if word in _MANY:
            found += [option] if option and not taken else []
            option, taken = word, False
        elif option and (not taken or SIZE.match(word)):
            found += [f"{option}={part}" for part in (_NEXT_SIZE.split(word) if option in _LISTS else (word,))]
            taken = True
        else:
            option = ""
            found.append(word)
    return [*found, option] if option and not taken else found


def meant(chosen: argparse.Namespace, rest: Sequence[str]) -> None:
    """Raise what was meant by words that are no option: a size without --set, or factors without a `*`."""
    option, equals, value = rest[0].partition("=")
    value = value if equals else rest[1] if len(rest) > 1 else ""
    name, sized = option.removeprefix("--"), hasattr(chosen, "sizes")
    if option.startswith("--") and sized and re.fullmatch(r"[0-9]+", value):
        if called(name) == "devices":
            meant = f"--devices {value}" if hasattr(chosen, "devices") else f"--set devices={value}"
            raise InputError(f"unknown option '{option}'; did you mean '{meant}'?", where=chosen.command)
        size = name.replace("-", "_")
        size = size if size in (*SYMBOLS, *AXES) else meant_size(size, SYMBOLS)
        if size:
            whole = with_axis(getattr(chosen, "strategy", None) or "", size)
            meant = f"{whole} --set {size}={value}".strip()
            raise InputError(f"unknown option '{option}'; did you mean '{meant}'?", where=chosen.command)
    if option == "--stage" and hasattr(chosen, "rank"):
        raise InputError(f"unknown option '--stage'; did you mean '--rank stage={value or 'first'}'?",
                         where=chosen.command)
    if SIZE.match(rest[0]) and sized:
        raise InputError(f"unexpected argument '{rest[0]}'; did you mean '--set {rest[0]}'?", where=chosen.command)
    if getattr(chosen, "strategy", None) and not option.startswith("-") and option.partition("[")[0] in names():
        raise InputError(f"unexpected argument '{rest[0]}'; did you mean '{chosen.strategy}*{rest[0]}'?",
                         where=chosen.command)
