"""Where results go: lines and JSON on stdout, files written whole or not at all."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from placealg.atomic_files import write_whole
from placealg.cli.terminal import dropped_unread
from placealg.errors import InputError
from placealg.progress import say
from placealg.render.text_layout import NARROWEST, Line, width_of, write


def width(narrowest: int = NARROWEST) -> int:
    """The width of stdout, for layout."""
    return width_of(sys.stdout, narrowest)


def print_lines(lines: Iterable[Line]) -> None:
    """Print lines on stdout."""
    say("")
    with dropped_unread():
        write(lines, sys.stdout)


def print_text(text: str) -> None:
    """Print text on stdout as it stands."""
    say("")
    with dropped_unread():
        sys.stdout.write(text)


def print_json(value: Any) -> None:
    """Print a JSON document on stdout."""
    print_text(json_text(value))


def json_text(value: Any) -> str:
    """A JSON document as commands print it."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def flush() -> None:
    """What was printed so far reaches the reader now."""
    with dropped_unread():
        sys.stdout.flush()


def check_file(path: str) -> None:
    """Raise InputError where no file could be written at `path`, before any work is done for it."""
    target = Path(path)
    if target.is_dir():
        raise InputError("is a folder", where=path)
    if not target.resolve().parent.is_dir():
        raise InputError("its parent is no folder", where=path)


def write_file(path: str, text: str) -> None:
    """Write `text` to `path` in one move: a reader sees the old file or the new one, never a part."""
    target = Path(path)
    if target.is_dir():
        raise InputError("is a folder", where=path)
    try:
        write_whole(target, text)
    except OSError as error:
        raise InputError(f"cannot write there: {error.strerror}", where=path) from None
