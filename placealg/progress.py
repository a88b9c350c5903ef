"""What long work is at: it says so, and whoever listens shows it; where nobody does, nothing happens."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Listener = Callable[[str], None]
T = TypeVar("T")

_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


def say(text: str) -> None:
    """Tell the listener what is being done from here on; "" that nothing is."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(text)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Let `listener` hear what is said inside.

    >>> heard = []
    >>> with listening(heard.append):
    ...     say("proving layer.weight")
    >>> say("nobody hears this"); heard
    ['proving layer.weight']
    """
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


_REMARKED: ContextVar[list[str] | None] = ContextVar("remarked", default=None)


def remark(text: str) -> None:
    """Tell the user of a command, once, how what was typed is understood; nothing where no command runs."""
    told = _REMARKED.get()
    if told is not None and text not in told:
        told.append(text)


@contextmanager
def remarking() -> Iterator[None]:
    """Let remarks inside go to stderr, a line each, behind what ended well; an error stands alone there."""
    told: list[str] = []
    token = _REMARKED.set(told)
    try:
        yield
    finally:
        _REMARKED.reset(token)
    for text in told:
        print(f"placealg: {text}", file=sys.stderr)


def each(items: Sequence[T], name: Callable[[T], str]) -> Iterable[T]:
    """The items one by one; what is said while one is worked on stands behind its number and name.

    >>> heard = []
    >>> with listening(heard.append):
    ...     for item in each(["dp", "zero3"], str):
    ...         say("proving")
    >>> heard
    ['1 of 2, dp', '1 of 2, dp: proving', '2 of 2, zero3', '2 of 2, zero3: proving']
    """
    outer = _LISTENER.get()
    for k, item in enumerate(items, 1):
        head = f"{k} of {len(items)}, {name(item)}" if len(items) > 1 else ""
        if outer is None or not head:
            yield item
            continue

        def heard(text: str, head: str = head) -> None:
            outer(f"{head}: {text}" if text else "")

        token = _LISTENER.set(heard)
        try:
            outer(head)
            yield item
        finally:
            if _LISTENER.get() is heard:
                _LISTENER.reset(token)
