"""For the tests of other projects: that a strategy is proved, and that a training step of PyTorch is one of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from placealg.cases.case import CommandCase, read_case
from placealg.check.claims import Side, decide_claim, figures
from placealg.check.prove import prove
from placealg.cli.glosses import SAYS
from placealg.cost.comparison import read_claim
from placealg.errors import InputError
from placealg.models.config import resolve_model
from placealg.models.model import Model
from placealg.prover.verdict import CUTOFF, PARAMETRIC, PROVED, Report
from placealg.render.conformance import page as conformance_page
from placealg.render.proof import counterexample, proof
from placealg.render.text_layout import Line, plain, prose
from placealg.step.derive import derive
from placealg.step.edit import Edited
from placealg.step.program import Step
from placealg.strategy.spec import Strategy
from placealg.watch.conformance import conformance
from placealg.watch.requirement import need_torch
from placealg.watch.verdict import Conformance

FOR_ALL_SIZES = (PARAMETRIC, CUTOFF)
"""The classes of verdicts that hold for all sizes."""

_WIDTH = 100


AT_MOST = ("memory.total", "communication.total")
"""The figures that `at_most` holds against those of another strategy."""

Given = Strategy | Step | str | PathLike[str]


def assert_proved(strategy: Given, model: Model | str | None = None, *, assuming: Iterable[str] | None = None,
                  keeps: str = "", at_most: Given | None = None) -> Report:
    """Prove a strategy, and return the report; raise AssertionError unless it is PROVED for all sizes.

    `strategy` is an expression over the catalogue, the path of a TOML file, the text of one (of several lines), a
    Strategy, or a Step, which has its model.
    `model` is a shipped name, the path of a config.json, or a Model; where it is None, what the command line would
    take. `assuming` names the hypotheses that the proof may rest on; None allows any. REFUTED fails with the
    counterexample, UNDECIDED with what was left open: neither is a pass. What a file says under `expect` is not asked.

    For exercises: `keeps` is the text with which the strategy's text must begin, and `at_most` a strategy, given in the
    same ways, which for all sizes is to take no less memory and to send no less.

    >>> assert_proved("zero3*tp_sp", "gpt", assuming=["equal_counts"])
    zero3*tp_sp on gpt: PROVED, PARAMETRIC
    >>> assert_proved("zero3", assuming=["units_independent"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    AssertionError: zero3 on abstract is proved only under hypotheses beyond units_independent: equal_counts over ...
    """
    __tracebackhide__ = True
    if keeps and not (isinstance(strategy, str) and _lines(strategy)[:len(_lines(keeps))] == _lines(keeps)):
        raise AssertionError(f"what is given does not stand as it was: {_changed(strategy, keeps)}")
    side, base, edited = _program(strategy, model)
    report = prove(side.step, base, edited)
    if report.verdict != PROVED or report.cls not in FOR_ALL_SIZES:
        raise NotProved(_text(proof(report, _WIDTH, timing=False, says=SAYS)), report)
    if assuming is not None:
        allowed = set(assuming)
        if unknown := sorted(allowed - set(SAYS)):
            raise InputError(f"no hypothesis is called '{unknown[0]}'", name=unknown[0], valid=SAYS)
        more = [h.text for h in report.hypotheses if h.name not in allowed]
        if more:
            beyond = ", ".join(sorted(allowed)) or "none"
            raise AssertionError(f"{report!r}".partition(":")[0] + " is proved only under hypotheses beyond "
                                 f"{beyond}: {'; '.join(more)}")
    if at_most is not None:
        other = _program(at_most, None if isinstance(at_most, Step) else model)[0]
        for name in AT_MOST:
            if (answer := decide_claim(side, other, f"{name} <=")).verdict != PROVED:
                own, least = figures(side, other, read_claim(f"{name} <="))
                raise AssertionError(f"{name} is {own.text()}, not at most {least.text()} ({answer.verdict})")
    return report


def graded(strategy: Given, model: Model | str | None = None, *, keeps: str = "",
           at_most: Given | None = None) -> Graded:
    """What `assert_proved` says of an answer to an exercise, without an error: solved, or not, and why.

    The repair that was found is not among it: to find one is the exercise.

    >>> graded("zero3", keeps="zero1", at_most="zero1")
    not solved: what is given does not stand as it was: line 1 is 'zero1'
    >>> graded("zero1", at_most="zero3").solved, graded("zero1", at_most="zero1").solved
    (False, True)
    """
    try:
        report = assert_proved(strategy, model, keeps=keeps, at_most=at_most)
    except NotProved as error:
        found = error.report.counterexample
        why = error.report.why_undecided
        lines = counterexample(replace(found, repair=None), _WIDTH) if found else prose(why, _WIDTH)
        return Graded(False, f"{error.report!r}".partition(":")[0] + f" is {error.report.verdict}\n{_text(lines)}")
    except (AssertionError, InputError) as error:
        return Graded(False, str(error))
    beside = "" if at_most is None else ", at no more memory and communication than is asked for"
    return Graded(True, f"{report!r}".partition("\n")[0] + beside)


class NotProved(AssertionError):
    """A strategy is not PROVED for all sizes; `report` says what it is."""

    def __init__(self, text: str, report: Report) -> None:
        super().__init__(text)
        self.report = report


@dataclass(frozen=True, slots=True)
class Graded:
    """Whether an exercise is solved, and what is said of it."""

    solved: bool
    says: str

    def __repr__(self) -> str:
        return f"{'solved' if self.solved else 'not solved'}: {self.says}"


def _text(lines: Iterable[Line]) -> str:
    return "\n".join(plain(text).rstrip() for text in lines)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _changed(strategy: Given, keeps: str) -> str:
    """The first line of what is given that does not stand where it stood."""
    mine = _lines(strategy) if isinstance(strategy, str) else []
    given = _lines(keeps)
    k = next(k for k, line in enumerate(given) if mine[k:k + 1] != [line])
    return f"line {k + 1} is {given[k]!r}"


def assert_trains_as(strategy: str | PathLike[str] | None, step: Callable[[], object], *, model: Any, mesh: Any = None,
                     config: Model | str | None = None, names: Mapping[str, str] | None = None,
                     reference: tuple[Any, Callable[[Any, Any], Any]] | None = None, batch: Any = None,
                     clip: float = 0.0) -> Conformance:
    """Run a training step of PyTorch under the recorder, and raise AssertionError unless it is a proved strategy's.

    `step` runs forward, backward and the optimizer's step, with the gradients of earlier steps cleared. It is called
    twice, and recorded the second time: what a step keeps or loses of the one before is seen there. `model` is what it
    trains, `mesh` a DeviceMesh whose dims have the names of the strategy's axes (see `pa.observe`). `config` is a
    shipped name, the path of a config.json or a Model; None takes what the strategy's file says, or a model of which
    nothing is known but the names of parameters. `names` tells parameters that no table knows. Where `strategy` is
    None, the one is taken that the placements and the gradients' ways tell, and `.rests` of what is returned says on
    what that rests.

    The `reference` is the single device, beside which all that ran is run again: (its model, a function of that and
    `batch`). The function gives the losses of each token, (sequences, tokens), whose sum is the loss; `batch` is what
    all ranks together train on in a step, the same each time. `clip` is the norm to which the single device clips; 0 if
    it does not clip. Without a reference nothing is known of what ops compute, and this raises: a difference is told.
    """
    __tracebackhide__ = True
    need_torch()
    from placealg.watch.recorder.record import record

    word = None if strategy is None else fspath(strategy)
    if word is not None:  # what is wrong with it is told before the run
        read_case(word, config, (), default="gpt")
    seen = record(step, model, mesh, reference=reference, batch=batch, clip=clip)
    told = conformance(seen, word, config, names)
    if not told.good:
        raise AssertionError(_text(conformance_page(told, _WIDTH, SAYS)))
    return told


def _program(strategy: Given, model: Model | str | None) -> tuple[Side, Step | None, Edited | None]:
    """The program that is meant, the derived one from which a file leads away, and the file's edits."""
    if isinstance(strategy, Step):
        if model is not None:
            raise InputError("a program is of its own model: name none beside it")
        return Side(None, strategy, {}), None, None
    if isinstance(strategy, Strategy):
        if model is None:
            raise InputError("a strategy stands on a model: name one, such as model=\"gpt\"")
        on = resolve_model(model) if isinstance(model, str) else model
        return Side(strategy, derive(strategy, on), {}, on), None, None
    if isinstance(model, Model):
        raise InputError("a model beside an expression or a file is a name, or the path of a config.json")
    case = _of_text(strategy, model) if isinstance(strategy, str) and "\n" in strategy.strip() else read_case(
        fspath(strategy), model, ())
    return Side(case.strategy, case.step, case.sizes, case.model), case.lead, case.edited


def _of_text(text: str, model: str | None) -> CommandCase:
    """The case of a strategy file that is a text; bad input is placed in it as in a file `strategy.toml`."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "strategy.toml"
        file.write_text(text, encoding="utf-8")
        try:
            return read_case(str(file), model, ())
        except InputError as error:
            raise error.moved(error.where.replace(str(file), file.name)) from None
