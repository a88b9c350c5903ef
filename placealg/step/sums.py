"""Every sum that a program takes over ranks or microbatches, with the type in which it is taken, and what was asked.

A reduction adds in the type of its wire, or in the one that [schedule] adds names. Gradients accumulate in the type in
which they rest, or, where no microbatch's is reduced before, in that of what is not reduced yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from placealg.number_formats import FORMATS, Element, told
from placealg.placement import Kind
from placealg.step.program import STEP_PHASES, Event, Group, Step
from placealg.strategy.vocabulary import ACC

_ADDING = ("all_reduce", "reduce_scatter", "shift")

OF_GRADIENTS, OF_TENSORS, OF_SCALARS = "gradient", "activation", "scalar"
"""What a sum is of: a gradient of parameters, a tensor of the op graph or its gradient, or a number of the step."""


@dataclass(frozen=True, slots=True)
class Sum:
    """One event that adds: `terms` are the axes whose product is their number, `m` for microbatches.

    `type` is the element size in which it adds, a named type or bytes; `least` the one that it is to have at least, ""
    where nothing is asked of it; `says` who asks. `wire` is the element size in which a collective sends.
    """

    event: str
    group: str
    of: str
    terms: tuple[str, ...]
    type: str
    least: str = ""
    says: str = ""
    wire: str = ""

    @property
    def narrow(self) -> bool | None:
        """Whether it adds in fewer bits than is asked, or in a smaller range; None where that is open."""
        if not self.least:
            return False
        if not (isinstance(self.type, Element) and isinstance(self.least, Element)):
            return None
        return not FORMATS[self.type.name].holds(FORMATS[self.least.name])


def sums(step: Step, asked: str = "") -> Iterator[Sum]:
    """The sums of one training step, in program order; `asked` is the least type of those of gradients.

    >>> from placealg.models.abstract import abstract
    >>> from placealg.step.derive import derive
    >>> from placealg.strategy.spec import overlay
    >>> from placealg.strategy.expression import parse_strategy
    >>> named = overlay(parse_strategy("zero2"), {"types": {"g": "fp32", "wire": "bf16"}})
    >>> [(s.terms, told(s.type), s.narrow) for s in sums(derive(named, abstract()), "fp32") if s.of == "gradient"]
    [(('dp',), 'bf16', True), (('m',), 'fp32', False)]
    """
    reduced = {e.group for e in step.events if e.verb == "reduce" and e.value == "grad"}
    trained = {g.name: g for g in step.reference.trained}
    for event in step.phase(*STEP_PHASES):
        group = trained.get(event.group)
        if group is not None and event.verb in ("reduce", "accumulate") and event.op != "max":
            rest = "g" if event.verb == "accumulate" else "wire"
            own = rest if event.verb == "reduce" or group.name in reduced else ACC
            least, says = _least(step, group, rest, asked)
            held = type_of(step, group, event, own)
            adds = Element(step.reference.adds) if step.reference.adds and event.verb == "reduce" else held
            yield Sum(event.path, group.name, OF_GRADIENTS, event.axes or ("m",), adds, least, says, held)
        elif event.on_tensor and event.verb in _ADDING and event.source == Kind.P.value:
            yield Sum(event.path, "", OF_TENSORS, event.axes, type_of(step, None, event, "act"))
        elif event.verb == "all_reduce" and event.value in ("norm", "count") and event.op != "max":
            yield Sum(event.path, "", OF_SCALARS, event.axes, SCALAR if event.bytes == "4" else event.bytes)


SCALAR = Element("fp32")
"""The type of norms and counts, whose 4 bytes derivation says."""


def type_of(step: Step, group: Group | None, event: Event, usual: str) -> str:
    """The element size that an event names, else that of the symbol `usual`, as the group or the strategy says it."""
    types = {**step.reference.types, **(group.types if group else {})}
    if isinstance(event.bytes, Element):
        return event.bytes
    symbol = event.bytes or usual
    return types.get(symbol, types["g"] if symbol == ACC else symbol)


def _least(step: Step, group: Group, rest: str, asked: str) -> tuple[str, str]:
    if asked:
        return Element(asked), f"--sums {asked}"
    if step.reference.sums:
        return Element(step.reference.sums), f"[schedule] sums = \"{step.reference.sums}\""
    size = {**step.reference.types, **group.types}[rest]
    return size, f"[types] {rest} = {told(size)}"


def names_types(step: Step) -> bool:
    """Whether a type is named anywhere, so that the obligation is asked."""
    said = (step.reference.types, *(g.types for g in step.reference.groups))
    named = any(isinstance(t, Element) for types in said for t in types.values())
    return named or bool(step.reference.sums or step.reference.adds) or any(
        isinstance(e.bytes, Element) for e in step.events)
