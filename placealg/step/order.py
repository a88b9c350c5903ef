"""What a program says of order: on which stream an event runs, when it is issued, what it waits for, which buffers.

The host issues events in the order of the program, but for those that are issued `ahead`. A stream runs what it was
given in the order of issue; nothing else is ordered but by waits. What the program computes is said by its values,
which are read in printed order; that every order that the streams allow gives the same is the obligations `race` and
`alias`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from placealg.errors import InputError, shown
from placealg.strategy.buffers import NAME, SIZE

if TYPE_CHECKING:
    from placealg.step.event import Event

COMPUTE, HOST = "compute", "host"
"""The stream on which an event runs that names none; and the host itself, which runs an event as it issues it."""

OrderVerb = Literal["join", "copy"]
"""A verb that changes no value."""

JOIN: OrderVerb = "join"
COPY: OrderVerb = "copy"

ORDERING: Mapping[OrderVerb, str] = {
    JOIN: "the stream that it names waits until all has ended that the stream `of` was given so far, or what `wait` "
          "names; where that is the host, it issues nothing before",
    COPY: "a value is copied out of a buffer (`out_of`) into its own place, or from there `into` a buffer",
}
"""The verbs that change no value, only where it lies and what waits for what."""

COPIED = ("weight", "grad", "grad_sum", "master")
"""The values of a parameter group that a copy moves."""


@dataclass(frozen=True, slots=True)
class Wait:
    """An event begins only when the event at the path `on` has ended: in the same turn of the loops that both are in.

    `turn` counts turns of the innermost loop that both are in, -1 the last one, "-K" as many turns ago as a ring has
    slots; `step` = -1 is the step before. Instances of one unit wait for each other in different loops, too: layer by
    layer. Of a loop that only `on` is in, the last turn is meant.
    """

    on: str
    turn: int | str = 0
    step: int = 0

    def __repr__(self) -> str:
        turn = f", turn {self.turn}" if self.turn else ""
        return f"{self.on}{turn}" + (f", step {self.step}" if self.step else "")

    def said(self) -> dict[str, Any] | str:
        """The wait as a file says it."""
        more = {key: value for key, value in (("turn", self.turn), ("step", self.step)) if value}
        return {"on": self.on, **more} if more else self.on


def read_stream(key: str, value: Any, _reference: Any) -> str:
    """The name of a stream; that of the default one is ""."""
    if not isinstance(value, str) or not NAME.match(value):
        raise InputError(f"{key} is {shown(value)}: expected the name of a stream, such as \"gather\"")
    return "" if value == COMPUTE else value


def read_buffer(key: str, value: Any, _reference: Any) -> str:
    """The name of a buffer."""
    if not isinstance(value, str) or not NAME.match(value):
        raise InputError(f"{key} is {shown(value)}: expected the name of a buffer, such as \"flat\"")
    return value


def read_ahead(key: str, value: Any, _reference: Any) -> int:
    """By how many turns of its innermost loop an event is issued earlier."""
    if type(value) is not int or not 0 <= value <= 64:
        raise InputError(f"{key} is {shown(value)}: expected a whole number of turns, from 0 to 64")
    return value


def read_behind(key: str, value: Any, _reference: Any) -> str:
    """The path of the event behind which another is issued."""
    if not isinstance(value, str) or not value:
        raise InputError(f"{key} is {shown(value)}: expected the path of an event")
    return value


def read_waits(key: str, value: Any, _reference: Any) -> tuple[Wait, ...]:
    """The waits of an event: paths, or tables { on = PATH, turn = -1 }."""
    listed = value if isinstance(value, list | tuple) else [value]
    return tuple(_wait(key, each) for each in listed)


def _wait(key: str, value: Any) -> Wait:
    if isinstance(value, Wait):
        return value
    table = {"on": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping) or not isinstance(table.get("on"), str):
        raise InputError(f"{key} is {shown(value)}: expected the path of an event, or {{ on = PATH, turn = -1 }}")
    for name in table:
        if name not in ("on", "turn", "step"):
            raise InputError(f"{key}: unknown key '{name}'", name=str(name), valid=("on", "turn", "step"))
    turn, step = table.get("turn", 0), table.get("step", 0)
    if turn != f"-{SIZE}" and (type(turn) is not int or not -64 <= turn <= 0):
        raise InputError(f"{key}: turn is {shown(turn)}: expected 0, -1, -2, ..., or \"-{SIZE}\"")
    if type(step) is not int or step not in (0, -1):
        raise InputError(f"{key}: step is {shown(step)}: expected 0 or -1")
    return Wait(table["on"], turn, step)


FIELDS = ("stream", "ahead", "behind", "waits", "into", "out_of", "of")
"""The fields of an event that speak of order."""


def ordered(event: Event) -> bool:
    """Whether an event says anything of order."""
    return event.verb in ORDERING or any(getattr(event, name) for name in FIELDS)


def values(listing: Iterable[Event]) -> tuple[Event, ...]:
    """The events without what they say of order, and without those that say nothing else.

    >>> from placealg.step.event import Event
    >>> values((Event("forward", "join", "gather", of="compute"), Event("update", "update", "step", stream="side")))
    (update.step.update,)
    """
    plain: dict[str, Any] = {**dict.fromkeys(FIELDS, ""), "ahead": 0, "waits": ()}
    return tuple(replace(e, **plain) if ordered(e) else e for e in listing if e.verb not in ORDERING)


def check_ordering(event: Event) -> InputError | None:
    """What is wrong with an event that only orders; None if it has a meaning."""
    if event.verb == JOIN:
        if not NAME.match(event.value):
            return InputError(f"{event.path}: '{event.value}' is no name of a stream")
        if bool(event.of) == bool(event.waits):
            return InputError(f"{event.path}: a join says for which stream, or for what, it waits: `of` or `wait`")
        if event.of == event.value:
            return InputError(f"{event.path}: {event.of} waits for itself")
        if event.stream or event.ahead or event.into or event.out_of:
            return InputError(f"{event.path}: a join says of, wait, and behind what it is issued; nothing else")
    elif event.verb == COPY and bool(event.into) == bool(event.out_of):
        return InputError(f"{event.path}: a copy goes into a buffer or out of one: one of `into` and `out_of`")
    return None
