"""A cache of solver answers for the lifetime of the process, which keeps conclusive answers and no others.

That a solver gave up or was killed is not a property of the question: the same question is asked again next time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from placealg.prover.verdict import UNDECIDED


class HasVerdict(Protocol):
    """Anything that has a verdict."""

    @property
    def verdict(self) -> str:
        """PROVED, REFUTED or UNDECIDED."""


Asked = ParamSpec("Asked")
Found = TypeVar("Found")


class AskedOnce(Generic[Asked, Found]):
    """A function of hashable arguments whose answer is cached unless it is open.

    At most `most` answers are kept; the oldest is dropped first.
    """

    def __init__(self, ask: Callable[Asked, Found], still_open: Callable[[Found], bool], most: int) -> None:
        self._ask, self._open, self._most = ask, still_open, most
        self._answers: dict[Hashable, Found] = {}

    def __call__(self, *args: Asked.args, **named: Asked.kwargs) -> Found:
        """The cached answer, or a new one."""
        key = args, tuple(named.items())
        if key in self._answers:
            return self._answers[key]
        found = self._ask(*args, **named)
        if not self._open(found):
            while len(self._answers) >= self._most:
                del self._answers[next(iter(self._answers))]
            self._answers[key] = found
        return found

    def forget(self) -> None:
        """Drop all cached answers."""
        self._answers.clear()


def kept(still_open: Callable[[Any], bool], most: int) -> Callable[[Callable[Asked, Found]], AskedOnce[Asked, Found]]:
    """A decorator that caches up to `most` answers of a function, except those that are still open.

    >>> answers = iter(["unknown", "yes", "no"])
    >>> @kept(lambda answer: answer == "unknown", 8)
    ... def ask(question: str) -> str:
    ...     return next(answers)
    >>> ask("true?"), ask("true?"), ask("true?")
    ('unknown', 'yes', 'yes')
    """
    return lambda ask: AskedOnce(ask, still_open, most)


def is_open(found: HasVerdict) -> bool:
    """Whether the verdict is UNDECIDED."""
    return found.verdict == UNDECIDED
