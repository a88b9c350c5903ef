"""The files of the bugs: where they lie, what they are called, what each says at its head."""

from __future__ import annotations

import re
from pathlib import Path

from placealg.errors import InputError
from placealg.strategy.file import proofs_folder, read_strategy_file


def folder() -> Path:
    """Where the files of the bugs lie."""
    return proofs_folder("refuted")


def names() -> tuple[str, ...]:
    """The names of all bugs: files that say which report they come from."""
    return tuple(p.stem for p in sorted(folder().glob("*.toml")) if read_strategy_file(p).source)


def is_bug(name: str) -> bool:
    """Whether a bug has that name.

    >>> is_bug("megatron_1446"), is_bug("zero3"), is_bug("../proved/token_mean")
    (True, False, False)
    """
    return re.fullmatch(r"\w+", name, re.ASCII) is not None and _path(name).is_file()


def path_of(name: str) -> Path:
    """The file of a bug, or a strategy file of one's own; an InputError where there is none of that name."""
    if name.endswith(".toml"):
        if not Path(name).is_file():
            raise InputError("there is no such file", where=name)
        return Path(name)
    if not is_bug(name):
        raise InputError(f"no bug is called '{name}'", name=name, valid=names())
    return _path(name)


def _path(name: str) -> Path:
    return folder() / f"{name.lower()}.toml"


def comment(path: Path) -> str:
    """The comment at the head of a file, as one text."""
    found: list[str] = []
    for text in path.read_text(encoding="utf-8").splitlines():
        if not text.startswith("#"):
            break
        found.append(text.lstrip("#").strip())
    return " ".join(found)
