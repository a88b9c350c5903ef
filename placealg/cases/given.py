"""What a caller in Python gives (a strategy, a program, a reading, an expression, a file), as cases and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from placealg.cases.case import CommandCase, CommandOptions, files, is_foreign, of_strategy, read_case
from placealg.cases.source import Source
from placealg.check.claims import Side
from placealg.cost.divisibility import Divides
from placealg.errors import InputError, kind, need
from placealg.models.config import read_model
from placealg.models.model import Model
from placealg.step.compatibility import check_sizes
from placealg.step.derive import derive
from placealg.step.program import Step
from placealg.strategy.file import packaged, read_expression
from placealg.strategy.spec import Strategy

Given = Strategy | Step | CommandCase | Source | str | Path
"""What stands for a strategy or its program."""


def read(path: str | Path, **said: Any) -> Source | CommandCase:
    """The case of a strategy file, or the reading of a framework's configuration; `said` is what it leaves open."""
    if not isinstance(path, str | Path):
        raise InputError(f"{kind(path)} is no path of a file")
    word = str(path)
    if packaged(word) or (word.endswith(".toml") and not is_foreign(word)):
        if unknown := [name for name in said if name != "model"]:
            raise InputError(f"{unknown[0]} belongs to a framework's configuration, which this is not", where=word)
        return read_case(word, said.get("model"), ())

    found: Source = files().read(word, **said)
    return found


def model_given(model: Model | str | Path | None) -> Model | None:
    """The model that is given, or the one of a name."""
    return model if model is None or isinstance(model, Model) else read_model(model)


def case_of(what: object, model: Model | str | None = None, sizes: Mapping[str, Any] | None = None,
            devices: int | None = None, **said: Unpack[CommandOptions]) -> CommandCase:
    """The case of a strategy, expression, file or reading, on the model that is given, that it names or that it needs.

    `sizes` are checked as on the command line; `devices` complete the mesh; `said` are a precision and how the loss is
    run, which need `sizes`.
    """
    for option, word in said.items():
        need(word, str, f"{option}: it is named by a word")
    on = files().model_for(what, model) if isinstance(what, Source) and isinstance(model, str) else model_given(model)
    words = [f"{name}={size}" for name, size in (sizes or {}).items()]
    if isinstance(what, CommandCase) and on is None:
        return what if sizes is None else _sized(what, what.model, words, devices, what.step, **said)
    if isinstance(what, Strategy | CommandCase | Source):
        given = on if on is not None or not isinstance(what, Source) else files().model_for(what)
        if given is None:
            raise InputError("a strategy stands on a model: name one, such as pa.abstract()")
        if isinstance(what, CommandCase) and what.lead is not None:
            raise InputError("a file that edits the program stands on its own model: read it with model=")
        return _sized(what, given, words, devices, **said)
    if not isinstance(what, str | Path):
        raise InputError(f"{kind(what)} is no strategy: a Strategy, a Step, an expression such as "
                         "'zero3*tp_sp' or a strategy file is one")
    case = read_case(str(what), on, ())
    return case if sizes is None else _sized(case, case.model, words, devices, case.step, **said)


def _sized(one: Strategy | CommandCase | Source, model: Model, words: list[str], devices: int | None,
           step: Step | None = None, **said: Unpack[CommandOptions]) -> CommandCase:
    """A case at sizes; of a configuration that leaves the microbatches open, as it is with one where they say so."""
    strategy = one if isinstance(one, Strategy) else one.strategy
    case = of_strategy(strategy, model, words, devices, step, **said)
    if isinstance(one, Strategy) or not (one.accumulates if isinstance(one, Source) else one.once):
        return case
    once = partial(_once, one, model, words, devices, **said)
    return once() if case.sizes.get("m") == 1 else replace(case, once=once)


def _once(one: CommandCase | Source, *words: Any, **said: Unpack[CommandOptions]) -> CommandCase:

    if isinstance(one, Source):
        return _sized(files().read_once(one), *words, **said)
    return _sized(one.once() if one.once else one, *words, **said)


def program_of(what: Given, model: Model | str | None) -> Step:
    """The program that is meant: itself, or the one that follows from a strategy and a model, or that a file says."""
    if isinstance(what, Step):
        if model is not None:
            raise InputError("a program is of its own model: name none beside it")
        return what
    if isinstance(what, Strategy):
        on = model_given(model)
        if on is None:
            raise InputError("a strategy stands on a model: name one, such as pa.abstract()")
        return derive(what, on)
    return case_of(what, model).step


def strategy_of(what: Given) -> Strategy:
    """The strategy that is meant, without a model; a program has none."""
    if isinstance(what, Strategy):
        return what
    if isinstance(what, CommandCase | Source):
        return what.strategy
    if isinstance(what, str | Path) and not Path(what).exists() and not packaged(str(what)):
        return read_expression(str(what))
    if isinstance(what, str | Path):
        return read(what).strategy
    raise InputError(f"{kind(what)} is no strategy: a Strategy, a Step, a reading, an expression or a file is drawn")


def side_of(what: Given, model: Model | str | None) -> Side:
    """A program, with the strategy and model from which it comes where there are any."""
    if isinstance(what, Step):
        return Side(None, program_of(what, model), {})
    if isinstance(what, Strategy):
        return Side(what, program_of(what, model), {}, model_given(model))
    case = case_of(what, model)
    return Side(case.strategy, case.step, {}, case.model)


def check_given(side: Side, sizes: Mapping[str, Fraction]) -> None:
    """Raise InputError where sizes do not divide what a strategy splits; a program alone has no such rule."""
    if side.strategy is not None and side.model is not None:
        check_sizes(side.strategy, side.model, sizes)


def rules_of(side: Side) -> tuple[Divides, ...]:
    """The rules that the formulas of a side keep."""
    return () if side.strategy is None or side.model is None else (Divides(side.strategy, side.model),)
