"""Files on their way: what is written beside its place until it is whole, and what an interrupt removes.

Every command imports this before an interrupt is handled, so that it imports little itself.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_UNFINISHED: set[Path] = set()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let an interrupt wait until the end, where the system can; a child that is started inside lets it wait, too.

    Masking alone would not do: another thread, of a numeric library say, may take the signal, and Python then calls the
    handler here.

    >>> from contextlib import suppress
    >>> with suppress(KeyboardInterrupt), uninterrupted():
    ...     signal.raise_signal(signal.SIGINT)
    ...     print("still at work")
    still at work
    """
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _frame: seen.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, signal.SIG_DFL if handler is None else handler)
        if seen:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def beside(target: Path) -> Iterator[Path]:
    """An empty folder beside `target`, from which what is whole can be moved there; it is gone in the end.

    >>> import tempfile
    >>> with beside(Path(tempfile.gettempdir()) / "report.html") as folder:
    ...     there = folder.is_dir()
    >>> there, folder.exists()
    (True, False)
    """
    import shutil
    import tempfile

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
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
