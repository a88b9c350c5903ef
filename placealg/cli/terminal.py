"""The terminal while a command works: one line that says what it is at, an interrupt that ends it at once, and a reader
that leaves.

The line stands on stderr, and only where that is a terminal; a command that works for minutes tells a log what it is
at in lines, now and then (`told_in_lines`). The line is drawn by a timer's signal, so that it lives while
the work waits for a solver; no thread runs, because solvers are forked.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from placealg.atomic_files import remove_unfinished
from placealg.progress import listening

FIRST, EVERY = 0.8, 0.25
"""Seconds until the line first shows, and between two drawings."""

LINES = 15.0
"""Seconds between two lines of what a long command is at, where no terminal is."""

INTERRUPTED = 130
"""The exit code of a command that was interrupted."""

SAYS = "placealg: interrupted\n"

_ERASE = b"\r\x1b[2K"


@contextmanager
def dropped_unread() -> Iterator[None]:
    """In here is written to stdout; where its reader has gone, this and all that follows is dropped.

    The command goes on to its end, so that `prove STRATEGY | head` has the exit code of the verdict.
    """
    try:
        yield
    except BrokenPipeError:
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Attended:
    """What the terminal shows now; `descriptor` is None where there is none."""

    def __init__(self, descriptor: int | None) -> None:
        self.descriptor = descriptor
        self.text, self.since, self.shown = "", time.monotonic(), False

    def hear(self, text: str) -> None:
        """What is done from here on; "" makes room for output."""
        self.text = text
        if not text:
            self.erase()

    def tick(self, *_signal: Any) -> None:
        """Draw the line."""
        if self.descriptor is None or not self.text:
            return
        told = f"{self.text} … {time.monotonic() - self.since:.0f} s"
        room = self.width() - 1
        told = told if len(told) <= room else told[:max(room - 1, 0)] + "…"
        _write(self.descriptor, _ERASE + told.encode("utf-8", "replace"))
        self.shown = True

    def width(self) -> int:
        """The columns of the terminal: what COLUMNS says, else its own, else 80."""
        said = os.environ.get("COLUMNS", "")
        if said.isascii() and said.isdecimal() and len(said) < 6 and int(said):
            return int(said)
        with suppress(OSError):
            return os.get_terminal_size(self.descriptor or 0).columns or 80
        return 80

    def erase(self) -> None:
        """Leave the terminal as it was before the line."""
        if self.shown and self.descriptor is not None:
            _write(self.descriptor, _ERASE)
            self.shown = False

    def interrupt(self, *_signal: Any) -> None:
        """End the process: no exception runs through solvers, which would lose it, or turn it into another.

        Solvers and other children are ended, and files on their way removed; what was written is whole.
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.erase()
        _end_children()
        remove_unfinished()
        with suppress(OSError, ValueError):
            _write(sys.stderr.fileno(), SAYS.encode())
        os._exit(INTERRUPTED)


def work_for_another() -> None:
    """Prepare a process that works for a command: interrupts are that one's, and its end is the end of all children."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)


def _end(*_signal: Any) -> None:
    _end_children()
    os._exit(INTERRUPTED)


def _end_children() -> None:
    known = getattr(sys.modules.get("multiprocessing"), "active_children", None)  # None while it is being imported
    for child in known() if known else ():
        child.terminate()


def _write(descriptor: int, text: bytes) -> None:
    """Write past all buffers: a signal comes in the midst of anything."""
    with suppress(OSError):
        os.write(descriptor, text)


@contextmanager
def attended(alone: bool) -> Iterator[None]:
    """Show on the terminal what is said inside, and leave nothing of it behind.

    Where the command is `alone` in its process an interrupt ends that, and is ignored once the work is done.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    line = Attended(_terminal())
    before = signal.signal(signal.SIGALRM, line.tick)
    if alone:
        signal.signal(signal.SIGINT, line.interrupt)
    try:
        if line.descriptor is not None:
            signal.setitimer(signal.ITIMER_REAL, FIRST, EVERY)
        with listening(line.hear):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        line.erase()
        if alone:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def told_in_lines(command: str) -> Iterator[None]:
    """Where stderr is no terminal, what is said inside is written there, one line every LINES seconds and no more."""
    if _terminal() is not None:
        yield
        return
    began = last = time.monotonic()

    def hear(text: str) -> None:
        nonlocal last
        now = time.monotonic()
        if text and now - last >= LINES:
            last = now
            print(f"placealg {command}: {text}, {now - began:.0f} s", file=sys.stderr, flush=True)

    with listening(hear):
        yield


def _terminal() -> int | None:
    """The descriptor of stderr where it is a terminal that can erase a line."""
    try:
        descriptor = sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        return None
    return descriptor if os.isatty(descriptor) and os.environ.get("TERM") != "dumb" else None
