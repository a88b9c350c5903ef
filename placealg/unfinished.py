"""Files on their way: what is written beside its place until it is whole, and what an interrupt removes."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_UNFINISHED: set[Path] = set()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let an interrupt wait until the end, where the system can; a child that is started inside lets it wait, too."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def beside(target: Path) -> Iterator[Path]:
    """An empty folder beside `target`, from which what is whole can be moved there; it is gone in the end.

    >>> with beside(Path(tempfile.gettempdir()) / "report.html") as folder:
    ...     there = folder.is_dir()
    >>> there, folder.exists()
    (True, False)
    """
    with uninterrupted():
        folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
        _UNFINISHED.add(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _UNFINISHED.discard(folder)


def write_whole(target: Path, text: str) -> None:
    """Write a file in one move: a reader sees the old one or the new one, never a part."""
    with beside(target) as folder:
        fresh = folder / "new"
        fresh.write_text(text, encoding="utf-8")
        os.replace(fresh, target)


def remove_unfinished() -> None:
    """Remove what is on its way, for a process that ends at once."""
    for folder in tuple(_UNFINISHED):
        shutil.rmtree(folder, ignore_errors=True)
