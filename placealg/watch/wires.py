"""Bytes per element on the wire: the types of messages beside those that the strategy says in [types] or a group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from placealg.polynomial import Polynomial
from placealg.step.event import Event, Group
from placealg.step.program import Step
from placealg.step.verbs import BYTES
from placealg.strategy.vocabulary import WIRE_W
from placealg.watch.differences import Difference
from placealg.watch.expected import Expected, Route
from placealg.watch.names import Named
from placealg.watch.seen import Chain, Message, RankSeen, Seen

WIDTHS: Mapping[str, int] = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
}
"""A type of numbers -> its bytes per element. Messages of other types, such as indices, are not compared."""


class Wires:
    """The sizes of elements that a strategy says; what it leaves open is held against nothing."""

    def __init__(self, step: Step, seen: Seen, said: Mapping[str, str]):
        self.step, self.seen, self.said = step, seen, said

    def size(self, event: Event, group: Group | None = None) -> tuple[str, Fraction | None]:
        """(the symbol of [types], the bytes per element) of an event; None where the strategy does not say it."""
        symbol = event.bytes or ("act" if event.on_tensor else "wire" if event.value in ("grad", "grad_sum") else
                                 "4" if group is None or event.value not in BYTES else group.bytes_of(event.value))
        types = {**self.said, **(group.types if group else {})}
        size = Polynomial.read(symbol, {n: Polynomial.read(t) for n, t in types.items()})
        return symbol, None if size.names() or symbol not in types else size.evaluate({})

    def differs(self, event: Event, message: Message, what: str, group: Group | None = None) -> Iterator[Difference]:
        """Whether a message has elements of another size than its event; `what` is sent, in words."""
        symbol, want = self.size(event, group)
        got = WIDTHS.get(message.dtype)
        if want is None or got is None or got == want:
            return
        own = WIRE_W if symbol == "w" and WIDTHS.get(self.seen.dtype) != got else symbol
        yield Difference("types", "", f"{what} in {got} bytes an element ({message.dtype}); the strategy says "
                         f"{symbol} = {want}", message.line, (), (), tables={"types": {own: got}})

    def of_chain(self, rank: RankSeen, chain: Chain, route: Route) -> Iterator[Difference]:
        """Of one parameter: reductions of its gradient, and what brings its new value."""
        over = {a: e for e in route.reductions for a in e.axes}
        at = {m.index: m for m in rank.messages}
        passed = dict.fromkeys(h.message for t in chain.terms for h in t.hops if h.verb != "scale")
        for message in (at[k] for k in passed if k in at):
            event = next((over[a] for a in message.axes if a in over), None)
            if event is not None:
                yield from self.differs(event, message, "gradients are reduced", route.group)
        for message in (at[h.message] for h in chain.new if h.message in at):
            if route.publish is not None:
                yield from self.differs(route.publish, message, "new weights are published", route.group)

    def of_gathers(self, rank: RankSeen, names: Mapping[str, Named], routes: Mapping[str, Route],
                   group_of: Mapping[str, Any]) -> Iterator[Difference]:
        """Of the gathers of weights for forward and backward."""
        for message in rank.messages:
            if message.verb != "all_gather" or message.phase not in ("forward", "backward"):
                continue
            for name in message.carries:
                route = routes[group_of[names[name].parameter].name] if name in names else None
                if route is not None and route.gathers:
                    yield from self.differs(route.gathers[0], message, "weights are gathered", route.group)

    def of_tensors(self, expected: Expected, message: Message) -> Iterator[Difference]:
        """Of a redistribution of an activation or its gradient."""
        if not expected.optional:
            yield from self.differs(expected.event, message, "activations are sent")

    def at_rest(self) -> Iterator[Difference]:
        """Of the weights where they rest."""
        want, got = self.said.get("w"), WIDTHS.get(self.seen.dtype)
        if want is not None and got is not None and Fraction(want) != got and not any(
                "w" in g.types for g in self.step.reference.groups):
            yield Difference("types", "", f"weights rest in {got} bytes an element ({self.seen.dtype}); the strategy "
                             f"says w = {want}", "", (), (), tables={"types": {"w": got}})


def sent(rank: RankSeen) -> dict[tuple[str, str], tuple[int, int]]:
    """(what, type) -> (bytes, messages) that a rank's live messages have: weights, gradients, activations, others."""
    gradients = {h.message for c in rank.chains for t in c.terms for h in t.hops if h.verb != "scale"}
    published = {h.message for c in rank.chains for h in c.new}
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for message in rank.messages:
        if not message.live:
            continue
        what = ("gradients" if message.index in gradients else "new weights" if message.index in published else
                "weights" if message.verb == "all_gather" and message.carries else
                "activations" if message.module else "others")
        size, count = found.get((what, message.dtype), (0, 0))
        found[what, message.dtype] = size + message.bytes, count + 1
    return found
