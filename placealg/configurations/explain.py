"""Why a configuration wins or loses: its terms, its neighbours, and one that a user had in mind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial

import numpy as np

from placealg.configurations.evaluate import BOUND, ESTIMATE, PEAK, asked, at, exact, exact_need
from placealg.configurations.found import Configuration, Found, configurations, order
from placealg.configurations.layouts import PASSES, Columns, layouts, placed
from placealg.configurations.programs import Programs, compiled, outlined, stage_program
from placealg.configurations.question import Question
from placealg.configurations.stages import Load, kinds
from placealg.cost.costs import Costs
from placealg.cost.formula import Formula
from placealg.cost.stage import on_stage
from placealg.cost.times import PART, TERM, Written
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.step.derive import derive
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy

Sizes = Mapping[str, Fraction | int]

HELD_PARTS = ("parameters", "optimizer", "gradients", "activations", "transient")
"""The parts of memory by which two needs are compared."""


@dataclass(frozen=True, slots=True)
class TermValue:
    """One term of a figure: its name, its exact value in seconds, and the formulas among which it has its own."""

    name: str
    value: Fraction
    formulas: Mapping[str, Formula] = field(repr=False)
    path: str

    @property
    def formula(self) -> Formula | None:
        """The term as a formula, written when it is asked for."""
        return self.formulas.get(self.path)


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A configuration that differs from the best in one thing, `what`: by how much it loses, and in which term.

    `other` is None where it does not fit; then `over` is by how much it misses the memory, and `term` that of memory
    which grew most. Otherwise `ratio` is its objective over that of the best, less 1.
    """

    what: str
    other: Configuration | None
    ratio: Fraction
    term: str
    by: Fraction
    over: Fraction = Fraction(0)


def terms(one: Configuration, question: Question, kind: str = TERM) -> dict[str, Fraction]:
    """Term -> seconds, of the stage that takes longest: of the estimate, or the parts of the bound."""
    _, program, load = exact(one.programs, question, ESTIMATE if kind == TERM else BOUND, one.sizes)
    known: Sizes = {**question.constants(program), **one.sizes, **load.values}
    return {path.removeprefix(kind): figure.value(known) for path, figure in program.figures.items()
            if path.startswith(kind)}


def held_terms(programs: Programs, question: Question, sizes: Mapping[str, Fraction]) -> dict[str, Fraction]:
    """Part of memory -> bytes, of the stage that holds most."""
    _, program, load = exact(programs, question, PEAK, sizes)
    known: Sizes = {**question.constants(program), **sizes, **load.values}
    return {name: program.figures[f"memory.{name}"].value(known) for name in HELD_PARTS
            if f"memory.{name}" in program.figures}


def told(one: Configuration, question: Question, kind: str = TERM) -> list[TermValue]:
    """The terms, largest first, each with its formula."""
    _, _, load = exact(one.programs, question, ESTIMATE if kind == TERM else BOUND, one.sizes)
    written = Written(_program(one, question, load))
    values = terms(one, question, kind)
    return [TermValue(name, value, written, kind + name) for name, value in
            sorted(values.items(), key=lambda pair: -pair[1]) if value]


def need_formula(one: Configuration, question: Question) -> Formula:
    """The formula of what the fullest stage needs, without the margin."""
    _, _, load = exact(one.programs, question, PEAK, one.sizes)
    return Costs(_program(one, question, load)).memory.peak


def _program(one: Configuration, question: Question, load: Load) -> Step:
    """The program of a stage: as users write it at an end of even stages of one kind of layer, else of any map."""
    step = derive(one.programs.strategy, question.model)
    if load.kind.place in ("first", "last") and len(question.units) == 1:
        ((_, layers),) = question.units
        if layers % (one.sizes[one.programs.strategy.pipeline_axis] * one.sizes.get("v", 1)) == 0:
            return on_stage(step, load.kind.place)
    return stage_program(step, load.kind)


def neighbours(found: Found, best: Configuration) -> list[Neighbour]:
    """What differs from the best in one thing, nearest first: one choice of a part, b, v, or a factor between axes."""
    question = found.question
    every = {e.programs.expression: e.programs for e in found.every}
    choices = question.space.choices()
    mine = choices.get(best.expression)
    near: list[Neighbour] = []
    for expression, chosen in choices.items():
        if expression not in every or mine is None:
            continue
        differ = [k for k, (a, b) in enumerate(zip(mine, chosen, strict=True)) if a != b]
        if len(differ) > 1:
            continue
        for what, rows in _variations(best, every[expression], question,
                                      chosen[differ[0]] or f"no {mine[differ[0]]}" if differ else ""):
            near.append(_against(what, rows, every[expression], best, question))
    return sorted(near, key=lambda n: (n.other is None, n.ratio, n.over, n.what))


def _variations(best: Configuration, programs: Programs, question: Question,
                label: str) -> Iterator[tuple[str, Columns]]:
    """(what differs, the layouts that differ so)."""
    columns = asked(programs, question)
    names = programs.strategy.mesh.names
    shared = [a for a in names if a in best.axes]
    count = len(columns[names[0]])
    if not count:
        return
    apart = {n: columns[n] != int(best.sizes[n]) for n in (*shared, "b", *(n for n in ("batch", "v") if n in columns
                                                                         and n in best.sizes))}
    axes_apart = np.sum([apart[a] for a in shared], axis=0) if shared else np.zeros(count, dtype=int)
    others = np.logical_or.reduce([apart[n] for n in apart if n not in shared])
    if label:
        rows = (axes_apart <= 1) & ~others
        if rows.any():
            yield label, {n: c[rows] for n, c in columns.items()}
        return
    single = np.sum([apart[n] for n in apart if n not in shared], axis=0)
    wanted = ((axes_apart == 0) & (single == 1)) | ((axes_apart == 2) & (single == 0))
    for k in np.flatnonzero(wanted):
        changed = [f"{n} {int(columns[n][k])}" for n in apart if apart[n][k]]
        yield ", ".join(changed), {n: c[k:k + 1] for n, c in columns.items()}


def _against(what: str, rows: Columns, programs: Programs, best: Configuration, question: Question) -> Neighbour:
    every = [at(rows, k) for k in range(len(rows["b"]))]
    exactly = [(exact_need(programs, question, sizes), k) for k, sizes in enumerate(every)]
    fitting = [k for need, k in exactly if need <= question.memory]
    placing = best_places(programs, question, {n: c[fitting] for n, c in rows.items()}) if fitting else []
    if not placing:
        need, k = min(exactly)
        own, other = (held_terms(p, question, s) for p, s in ((best.programs, best.sizes), (programs, every[k])))
        if need <= question.memory:
            return Neighbour(what, None, Fraction(0), "places", Fraction(0), Fraction(0))
        term, by = _most(own, other)
        return Neighbour(what, None, Fraction(0), term, by, need - question.memory)
    nearest = min(placing, key=lambda c: c.value(question.objective))
    kind = PART if question.objective == "bound" else TERM
    term, by = _most(*({name: question.by_sequence(value, one.sizes)
                        for name, value in terms(one, question, kind).items()} for one in (best, nearest)))
    mine = best.value(question.objective)
    return Neighbour(what, nearest, nearest.value(question.objective) / mine - 1 if mine else Fraction(0), term, by)


def compared(found: Found, best: Configuration, programs: Programs, sizes: Mapping[str, Fraction]) -> Neighbour:
    """One configuration against the best, as a neighbour of it, whatever it differs in."""
    one = {n: np.array([int(v)]) for n, v in sizes.items()}
    return _against(programs.expression, one, programs, best, found.question)


def best_place(programs: Programs, question: Question, sizes: Mapping[str, Fraction]) -> Configuration | None:
    """The configuration in its best place; None where no place fills the nodes evenly."""
    found = best_places(programs, question, {n: np.array([int(v)]) for n, v in sizes.items()})
    return found[0] if found else None


def best_places(programs: Programs, question: Question, layouts_of: Columns) -> list[Configuration]:
    """Configurations in their best places, in order, without those of which no place fills the nodes evenly."""
    everywhere, rows = placed(layouts_of, programs.strategy.mesh.names, question.devices)
    if not len(rows):
        return []
    each = configurations(programs, question, everywhere)
    return [min((each[k] for k in np.flatnonzero(rows == row)), key=partial(order, question))
            for row in np.unique(rows)]


def _most(own: Mapping[str, Fraction], other: Mapping[str, Fraction]) -> tuple[str, Fraction]:
    """The term that grew most, and by how much; of what is no worse, the one that fell least."""
    grown = {name: other.get(name, Fraction(0)) - own.get(name, Fraction(0)) for name in {**own, **other}}
    name = max(grown, key=lambda n: grown[n])
    return name, grown[name]


def meant(text: str, question: Question) -> tuple[Programs, FrozenMap[str, Fraction]]:
    """A configuration in a user's words: an expression, then sizes; m follows from the batch, and b is 1 if not said.

    What does not divide is an InputError that says so.
    """
    words = text.split()
    if not words:
        raise InputError("says no strategy: 'zero3*tp_sp dp=64 tp=8'")
    expression = question.space.said(words[0])
    strategy = parse_strategy(expression)
    said: dict[str, int] = {}
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if not equals or not value.isascii() or not value.isdigit() or not int(value):
            raise InputError(f"'{word}' is not NAME=NUMBER, such as dp=8")
        said[name] = int(value)
    names = strategy.mesh.names
    bound = {**strategy.mesh.sizes(), **said}
    for name in said:
        if name not in (*names, *PASSES, "v"):
            raise InputError(f"{strategy.name} has no '{name}'", name=name, valid=(*names, *PASSES, "v"))
    free = [a for a in names if a not in bound]
    given = int(np.prod([bound[a] for a in names if a in bound], dtype=object)) if names else 1
    if len(free) > 1:
        raise InputError(f"{' and '.join(free)} have no sizes")
    if free:
        if question.devices.count % given:
            raise InputError(f"{question.devices.count} devices are not a multiple of {given}")
        bound[free[0]], given = question.devices.count // given, question.devices.count
    if given != question.devices.count:
        raise InputError(f"{' x '.join(f'{a} = {bound[a]}' for a in names)} are {given} devices, not "
                         f"{question.devices.count}")
    alone = [a for a in names if bound[a] == 1 < question.devices.count]
    if alone:
        raise InputError(f"{alone[0]} = 1 is no axis: leave its strategy out")
    fixed = {n: v for n, v in bound.items() if n in (*names, *PASSES, "v")}
    if "m" not in fixed:
        fixed.setdefault("b", 1)
    programs = outlined(expression, question.model)
    if programs.refused:
        raise InputError(programs.refused)
    found = layouts(strategy, question.model, question.devices, question.sizes, fixed, programs.whole)
    if not len(found["b"]):
        raise InputError("no layout of it divides the model, the batch of "
                         f"{' or '.join(map(str, question.devices.batches))} and the sizes said")
    one = {n: c[:1] for n, c in found.items()}
    programs = compiled(expression, question.model, kinds(strategy, question.units, one))
    if programs.refused:
        raise InputError(programs.refused)
    return programs, FrozenMap(at(one, 0))


__all__ = ["compared", "Neighbour", "TermValue", "best_place", "held_terms", "meant", "need_formula", "neighbours",
           "terms", "told"]
