"""Words of a command line that are no option of it: sizes, and what was meant by others."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from placealg.cases.sizes import with_axis
from placealg.errors import InputError
from placealg.mesh import AXES, SYMBOLS, called, meant_size
from placealg.strategy.catalogue import names

SIZE = re.compile(r"[A-Za-z_][\w,]*=")
"""Begins a word that gives a size."""

_MANY = ("--set", "--bandwidth", "--fix", "--assume")
_LISTS = ("--set", "--fix")
_NEXT_SIZE = re.compile(r",(?=[A-Za-z_]\w*=)")


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


def is_model(word: str) -> bool:
    """Whether a word is the name of a model, or the file of one, and no strategy.

    >>> is_model("llama-3-8b"), is_model("runs/config.json"), is_model("zero3")
    (True, True, False)
    """
    from placealg.models.config import SYMBOLIC, shipped

    if Path(word).name != "config.json":
        return word in SYMBOLIC or word in shipped()
    try:
        said = json.loads(Path(word).read_bytes())
    except (OSError, ValueError):
        return not Path(word).exists()
    return isinstance(said, dict) and not {"model_type", "architectures"}.isdisjoint(said)


def check_models(chosen: argparse.Namespace, words: Sequence[str]) -> None:
    """Raise InputError where one of the words that stand for strategies is a model, with how it is said."""
    model = next((word for word in words if is_model(word)), "")
    if model and hasattr(chosen, "model"):
        others = [word for word in words if word != model] or ["zero3"]
        raise InputError(f"'{model}' is a model, and no strategy; did you mean '{' '.join(others)} --model {model}'?",
                         where=chosen.command)


def with_minus(words: Iterable[str]) -> list[str]:
    """The words, a number below 0 as the value of the option before it, which then says what is wrong with it.

    >>> with_minus(["fit", "--device-memory", "-80GB", "--devices=8"])
    ['fit', '--device-memory=-80GB', '--devices=8']
    """
    found: list[str] = []
    for word in words:
        if re.match(r"-[0-9.]", word) and found and re.fullmatch(r"--[a-z][a-z-]*", found[-1]):
            found[-1] += f"={word}"
        else:
            found.append(word)
    return found


def meant(chosen: argparse.Namespace, rest: Sequence[str]) -> None:
    """Raise what was meant by words that are no option: a size without --set, or factors without a `*`."""
    option, equals, value = rest[0].partition("=")
    value = value if equals else rest[1] if len(rest) > 1 else ""
    name, sized = option.removeprefix("--"), hasattr(chosen, "sizes")
    if option.startswith("--") and re.fullmatch(r"[0-9]+", value) and called(name) == "devices":
        meant = (f"--devices {value}" if hasattr(chosen, "devices") else f"--set devices={value}" if sized else
                 f"--world-size {value}" if hasattr(chosen, "world_size") else "")
        if meant:
            raise InputError(f"unknown option '{option}'; did you mean '{meant}'?", where=chosen.command)
    if option.startswith("--") and sized and re.fullmatch(r"[0-9]+", value):
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
