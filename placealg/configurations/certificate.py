"""A certificate that nothing in a space is better than the winner: what was asked, every strategy's sums, the outcome.

It is one JSON document. Of each kind of stage of each strategy it holds the figures by which configurations are
compared, as sums of monomials in the sizes of a layout with exact coefficients; all other numbers are put in. Of each
strategy it says how many layouts there are, how many fit, and the best value, exactly. `replay` evaluates all of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from placealg.configurations.evaluate import (
    BOUND,
    CARD,
    ESTIMATE,
    PEAK,
    STATES,
    Evaluated,
    asked,
)
from placealg.configurations.exactly import Exact
from placealg.configurations.found import Configuration, Found
from placealg.configurations.left_out import Decided
from placealg.configurations.programs import Program
from placealg.configurations.pruning import WORK, Pruned, Work
from placealg.configurations.question import Question
from placealg.configurations.stages import kinds
from placealg.cost.figure import Figure
from placealg.cost.times import HYPOTHESES
from placealg.errors import InputError
from placealg.models.model import Model
from placealg.polynomial import Polynomial
from placealg.progress import say
from placealg.prover.verdict import Report
from placealg.version import VERSION

FORMAT = 2
KEY = "placealg_search"
"""The key that holds the format, by which a file is known."""

FIGURES: Mapping[str, str] = {"peak": PEAK, "states": STATES, "bound": BOUND, "estimate": ESTIMATE, "card": CARD}
"""Name in a certificate -> path of the figure: bytes, and seconds."""

CLAIM = ("no configuration of this space that fits is better than the winner by this objective, and none that fits "
         "takes less than the bound, at these rates, parameters and sizes and under these hypotheses")

CLAIM_OF_THE_BEST = ("no configuration of this space that fits is better than the winner by this objective, at these "
                     "rates, parameters and sizes")
"""What a certificate claims of a search that left strategies out by a bound: of the smallest bound it says nothing."""


def certified(found: Found, said: Mapping[str, Any], report: Report | None, outside: Iterable[Decided] = ()
              ) -> dict[str, Any]:
    """The certificate of a search that came to its end; `said` are the words that name the model, `report` the proof.

    Where nothing fits there is no winner and no report. A search that was interrupted has none: an InputError.
    """
    if not found.complete:
        raise InputError("the search was interrupted: what it found is no optimum, and has no certificate")
    question, best = found.question, found.best if found.counts.fit else None
    made = {
        KEY: FORMAT, "placealg": VERSION, "claim": CLAIM_OF_THE_BEST if found.pruned else CLAIM,
        "hypotheses": dict(HYPOTHESES),
        "model": {**said, "config": _config(question.model)}, "question": asked_for(question),
        "left_out": [{"worse": one.pair.worse, "better": one.pair.better, "verdicts": list(one.verdicts)}
                     for one in outside],
        "refused": dict(found.refused),
        "strategies": {one.programs.expression: _strategy(one, question) for one in found.every},
        "pruned": {expression: _left(expression, one, question) for expression, one in found.pruned.items()},
        "work": {again: str(seconds) for again, seconds in Work.of(question).per_sequence.items()} if any(
            one.by == WORK for one in found.pruned.values()) else {},
        "counts": {"strategies": len(found.every), "layouts": found.counts.layouts, "fit": found.counts.fit,
                   "places": found.counts.places},
        "winner": {**written(best), **proof(report)} if best and report is not None else None,
        "least_bound": str(found.least_bound) if best and not found.pruned else None,
    }
    return {**made, "digest": digest(made)}


def asked_for(question: Question) -> dict[str, Any]:
    """A question as data, without the names of its machine and its space, whose numbers and choices it has."""
    said = question.to_json()
    said.pop("machine")
    said["space"] = {k: said["space"][k] for k in ("parts", "fixed", "only", "uneven")}
    return said


def proof(report: Report) -> dict[str, Any]:
    """What a proof says of the winner."""
    return {"verdict": str(report.verdict), "class": report.cls, "assuming": [h.name for h in report.hypotheses]}


def _config(model: Model) -> str | None:
    try:
        return Path(model.source).read_bytes().decode() if model.source else None
    except (OSError, UnicodeDecodeError):
        return None


def digest(made: Mapping[str, Any]) -> str:
    """The SHA-256 of a certificate without its digest."""
    return sha256(text_of({k: v for k, v in made.items() if k != "digest"}).encode()).hexdigest()


def text_of(made: Mapping[str, Any]) -> str:
    """The text of a certificate: the same of the same."""
    return json.dumps(made, ensure_ascii=False, separators=(",", ":"))


def written(one: Configuration) -> dict[str, Any]:
    """A configuration with its figures, exactly: bytes and seconds."""
    return {"strategy": one.expression, "sizes": {n: int(v) for n, v in one.sizes.items()}, "need": str(one.need),
            "bound": str(one.bound), "estimate": str(one.estimate), "card": str(one.card)}


def _strategy(one: Evaluated, question: Question) -> dict[str, Any]:
    say(f"writing {one.programs.expression}")
    near = one.near
    best = None if near is None else min(one.exactly(question.objective, Exact(one.programs, question), near[0]))
    wanted = kinds(one.programs.strategy, question.units, asked(one.programs, question)) if one.count else ()
    return {"stages": [stage(one.programs.of(kind), question) for kind in wanted], "layouts": one.count,
            "fit": one.fit, "places": one.places, "least": None if best is None else str(best)}


def _left(expression: str, one: Pruned, question: Question) -> dict[str, Any]:
    """What shows that a strategy is worse than the winner."""
    say(f"writing {expression}")
    programs = one.programs.stages if one.programs else ()
    return {"by": one.by, "stages": [stage(program, question) for program in programs], "layouts": one.layouts}


def stage(program: Program, question: Question) -> dict[str, Any]:
    """The figures of a kind of stage, with all numbers of a question put in but those of a layout."""
    constants = {n: v for n, v in question.constants(program).items() if n not in ("b", "m", "v")}
    figures = program.figures
    return {"place": program.kind.place, "units": list(program.kind.units),
            **{name: _sums(figures[path].put(constants)) if path in figures else [] for name, path in FIGURES.items()}}


def _sums(figure: Figure) -> list[list[list[Any]]]:
    assert figure.over == Polynomial.number(1), "these figures are sums"
    return [[[str(c), dict(m.powers)] for m, c in piece.terms.items()] for piece in figure.pieces]

