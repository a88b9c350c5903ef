"""The terminal while a command works: one line that says what it is at, and an interrupt that is never lost.

The line stands on stderr, and only where that is a terminal. It is drawn by a timer's signal, so that it lives while
the work waits for a solver; no thread runs, because solvers are forked.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from placealg.announce import listening

FIRST, EVERY = 0.8, 0.25
"""Seconds until the line first shows, and between two drawings."""

AGAIN = 0.02
"""Seconds after which an interrupt that was swallowed is raised again."""

_ERASE = b"\r\x1b[2K"


class Attended:
    """What the terminal shows now."""

    def __init__(self, descriptor: int | None) -> None:
        self.descriptor = descriptor
        self.text, self.since, self.shown, self.swallowed = "", time.monotonic(), False, False

    def hear(self, text: str) -> None:
        """What is done from here on; "" makes room for output."""
        self.text = text
        if not text:
            self.erase()

    def tick(self, *_signal: Any) -> None:
        """Draw the line; raise an interrupt again that something swallowed."""
        if self.swallowed:
            self.swallowed = False
            raise KeyboardInterrupt
        if self.descriptor is None or not self.text:
            return
        told = f"{self.text} … {time.monotonic() - self.since:.0f} s"
        room = shutil.get_terminal_size().columns - 1
        told = told if len(told) <= room else told[:max(room - 1, 0)] + "…"
        self.write(_ERASE + told.encode("utf-8", "replace"))
        self.shown = True

    def erase(self) -> None:
        """Leave the terminal as it was before the line."""
        if self.shown:
            self.write(_ERASE)
            self.shown = False

    def write(self, text: bytes) -> None:
        """Write past all buffers: this runs in the midst of anything."""
        if self.descriptor is not None:
            with suppress(OSError):
                os.write(self.descriptor, text)

    def unraisable(self, found: Any) -> None:
        """What a finalizer raised: an interrupt is raised again outside it, anything else is told as ever."""
        if found.exc_type is not KeyboardInterrupt:
            sys.__unraisablehook__(found)
            return
        self.swallowed = True
        signal.setitimer(signal.ITIMER_REAL, AGAIN, EVERY)


@contextmanager
def attended() -> Iterator[None]:
    """Show on the terminal what is said inside; leave nothing of it behind."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    line = Attended(_terminal())
    before, hook = signal.signal(signal.SIGALRM, line.tick), sys.unraisablehook
    sys.unraisablehook = line.unraisable
    try:
        if line.descriptor is not None:
            signal.setitimer(signal.ITIMER_REAL, FIRST, EVERY)
        with listening(line.hear):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        sys.unraisablehook = hook
        line.erase()


def _terminal() -> int | None:
    """The descriptor of stderr where it is a terminal that can erase a line."""
    try:
        descriptor = sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        return None
    return descriptor if os.isatty(descriptor) and os.environ.get("TERM") != "dumb" else None
