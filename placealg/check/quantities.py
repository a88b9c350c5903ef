"""What a published number claims, read off the derived program: paths into its costs, and arithmetic over them.

The paths are those of the document that `placealg cost --format json` prints, and a few more:

    memory.states                     any state, activations, transient, host, total, peak
    communication.total               host_link, by_axes.AXIS, by_phase.PHASE
    regions.layer.mlp.activations     what the ops of one region keep for backward; `sent` what they send
    executions.all_reduce             how often a step runs the collective, scalars left out
    schedule.bubble                   bubble_of_total, in_flight: the order of a pipeline's microbatches
    parameters                        of the model; parameters.layer.attn those whose names begin so, of all layers
    collective.all_reduce             what one of n devices sends, as a factor of the array
    beside.PATH                       the same of the strategy beside
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from typing import TypeVar

from placealg.cost.communication import sent_factor
from placealg.cost.costs import Costs
from placealg.cost.formula import Formula
from placealg.cost.memory import chosen
from placealg.errors import InputError
from placealg.models.config import resolve_model
from placealg.models.losses import with_loss
from placealg.placement import SENT
from placealg.step.derive import derive
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import parse_strategy_file

T = TypeVar("T")

BESIDE = "beside."
_COUNTS = ("collective.", "schedule.")
"""What is read of no sum over the program's tensors, so that `terms` does not apply to it."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The program of which quantities are read: a strategy on a model; how what is sent is written.

    A strategy is an expression, or the text of a strategy file: several lines. `stage` says of a pipeline whose
    devices are meant: a number, `first` or `last`; "" the first. `loss` is how the cross
    entropy is run; "" as by default.
    """

    strategy: str
    model: str
    convention: str = "exact"
    unit: str = "bytes"
    stage: str = ""
    loss: str = ""


def quantity(text: str, subject: Subject, beside: Subject | None = None, terms: str = "", leading: str = "") -> Formula:
    """The formula of arithmetic over paths and symbols.

    Of every sum that is read of a program, `terms` NAME keeps what grows with the size NAME, "not NAME" the rest;
    `leading` NAME what grows fastest with it.

    >>> quantity("memory.states/Psi", Subject("zero1", "abstract"))
    w + g + o/dp
    >>> quantity("memory.activations/L", Subject("dp*recompute_full", "gpt"), terms="L")
    act·b·s·h
    """
    values: dict[str, Fraction] = {}

    def written(found: re.Match[str]) -> str:
        path = found[0]
        of = beside if path.startswith(BESIDE) else subject
        if of is None:
            raise InputError(f"'{path}' is read of a strategy beside, and there is none")
        read = reading(of, path.removeprefix(BESIDE))
        values.update(read.values)
        if not path.startswith(_COUNTS):
            read = _selected(read, terms, leading)
        return f"({read.expr})"

    made = Formula.parse(_PATH.sub(written, text), "1", subject.convention)
    return replace(made, values=made.values.plus(values))


def reads_a_program(text: str) -> bool:
    """Whether arithmetic reads anything of a program, rather than symbols and collectives alone.

    >>> reads_a_program("memory.states/Psi"), reads_a_program("(w + g + o)*Psi")
    (True, False)
    """
    return any(not path.startswith("collective.") for path in _PATH.findall(text))


@lru_cache(maxsize=512)
def reading(subject: Subject, path: str) -> Formula:
    """The formula at one path, with symbols such as Psi written in the model's sizes.

    >>> reading(Subject("zero3", "abstract", unit="elements"), "communication.by_phase.forward")
    Ψ·m·(dp − 1)/dp elements
    >>> reading(Subject("zero3", "abstract"), "memory.stats")
    Traceback (most recent call last):
    placealg.errors.InputError: zero3 on abstract has no memory.stats; did you mean 'states'?
    """
    head, _, rest = path.partition(".")
    try:
        found = READINGS[head](subject, rest)
    except KeyError as error:
        raise InputError(f"{subject.strategy} on {subject.model} has no {path}", name=rest,
                         valid=error.args[1:]) from None
    if found.expr is None:
        raise InputError(f"{path} of {subject.strategy} on {subject.model}: {found.reason}")
    text = str(found.expr)
    for name, definition in found.defined.items():
        text = re.sub(rf"\b{name}\b", f"({definition})", text)
    return replace(Formula.parse(text, found.unit, found.convention), values=found.values)


def _step(subject: Subject) -> Step:
    return chosen(_derived(subject.strategy, subject.model, subject.loss), subject.stage or None)


@lru_cache(maxsize=256)
def _derived(strategy: str, model: str, loss: str) -> Step:
    written = "\n" in strategy
    named = resolve_model(model)
    return derive(parse_strategy_file(strategy).strategy if written else parse_strategy(strategy),
                  with_loss(named, loss) if loss else named)


@lru_cache(maxsize=256)
def _costs(subject: Subject) -> Costs:
    return Costs(_step(subject), subject.convention, subject.unit)


def _figure(head: str, subject: Subject, rest: str) -> Formula:
    """The figure at a path that begins with `head`."""
    found = _costs(subject).figures
    return _at({p.removeprefix(f"{head}."): f for p, f in found.items() if p.startswith(f"{head}.")}, rest)


def _executions(subject: Subject, rest: str) -> Formula:
    _at(SENT, rest)
    counts = [e.count for e in _costs(subject).communication.events if not e.left_out and e.collective == rest]
    return sum(counts, Formula.parse("0", "1"))


def _parameters(subject: Subject, rest: str) -> Formula:
    whole = _costs(subject).parameters
    if not rest:
        return whole
    model = resolve_model(subject.model)
    found = [p for p in model.parameters if f"{p.name}.".startswith(f"{rest}.")]
    if not found:
        raise KeyError(rest, *(p.name for p in model.parameters))
    counts = (f"{p.elements}*{model.unit(p.unit).count}" for p in found)
    return replace(Formula.parse(" + ".join(counts), "elements"), values=whole.values)


def _collective(subject: Subject, rest: str) -> Formula:
    _at(SENT, rest)
    return Formula(sent_factor(rest, ("n",), subject.convention), "1", subject.convention)


def _at(found: Mapping[str, T], name: str) -> T:
    if name not in found:
        raise KeyError(name, *found)
    return found[name]


FIGURES = ("memory", "communication", "regions", "schedule")
"""First words of the paths that are figures of the program's costs."""

READINGS: Mapping[str, Callable[[Subject, str], Formula]] = {
    **{head: partial(_figure, head) for head in FIGURES},
    "executions": _executions, "parameters": _parameters, "collective": _collective,
}
"""First word of a path -> what reads the rest of it."""

_PATH = re.compile(rf"(?<![\w.])(?:{re.escape(BESIDE)})?(?:{'|'.join(READINGS)})(?:\.\w+)*")


def _selected(formula: Formula, terms: str, leading: str) -> Formula:
    """The part of a formula that the claim speaks of."""
    if terms:
        name = terms.removeprefix("not ")
        one, two, three = (formula.subs(**{name: k}) if name in formula.names else formula for k in (1, 2, 3))
        slope = two - one
        if three - two != slope:
            raise InputError(f"{formula} is not linear in {name}")
        formula = replace(one - slope if terms != name else
                          Formula.parse(f"({slope.expr})*{name}", formula.unit), values=formula.values)
    return formula.leading(leading) if leading else formula
