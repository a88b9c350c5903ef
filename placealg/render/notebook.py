"""Values as pages of HTML for notebooks: tables in which every text of a user is escaped, and drawings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import singledispatch

from placealg.cost.communication import Communication
from placealg.cost.formula import Formula
from placealg.cost.memory import Memory
from placealg.errors import InputError
from placealg.placement import STATES
from placealg.prover.verdict import PROVED, REFUTED, Counterexample, Report
from placealg.render.compare import Comparison
from placealg.render.mesh_drawing import draw_strategy
from placealg.render.mesh_exchanges import draw_moves
from placealg.render.proof import MARKS, SAYS, counterexample_rows, joined
from placealg.render.step_drawing import draw_step
from placealg.render.svg import element, written
from placealg.render.text_layout import plain
from placealg.step.program import Step
from placealg.strategy.spec import Strategy

_LEFT = "text-align:left;vertical-align:top"
_COLOURS = {str(PROVED): "#00664b", str(REFUTED): "#a63c00"}


@singledispatch
def html(value: object) -> str:
    """The page of a value."""
    raise TypeError(f"a {type(value).__name__} has no page")


@html.register
def _(strategy: Strategy) -> str:
    head = ["", *map(repr, strategy.mesh)]
    rows = [[state, *(strategy.mode_text(state, a) for a in strategy.mesh.names)] for state in STATES]
    try:
        drawn = _drawing(str(draw_strategy(strategy)))
    except InputError as error:
        drawn = element("p", written(str(error)))
    return _table([head, *rows], strategy.name) + drawn


@html.register
def _(step: Step) -> str:
    try:
        moves = _drawing(str(draw_moves(step)))
    except InputError as error:
        moves = element("p", written(str(error)))
    return moves + _drawing(str(draw_step(step)))


@html.register
def _(report: Report) -> str:
    rows: list[Sequence[str]] = [("", "obligation", "verdict", "class", "it holds iff")]
    for identifier, statement in report.statements.items():
        verdict, cls = joined(report.of(identifier))
        rows.append((plain((MARKS[verdict],)), identifier, str(verdict), cls or "", statement))
    told = [SAYS.get((report.verdict, report.cls or ""), ""),
            f"assuming: {'; '.join(report.assuming) or 'nothing'}", f"not covered: {'; '.join(report.not_covered)}"]
    head = element("b", written(f"{report.strategy} on {report.model}: "), element(
        "span", written(str(report.verdict)), style=f"color:{_COLOURS.get(str(report.verdict), '#6b6b6b')}"))
    page = element("p", head + written(f", {report.cls}" if report.cls else "")) + _table(rows)
    page += "".join(element("p", written(text)) for text in told if text)
    return page + (html(report.counterexample) if report.counterexample else "")


@html.register
def _(found: Counterexample) -> str:
    told = element("p", element("b", "counterexample"), written(": " + found.explanation))
    return told + _table([(name, text) for name, text in counterexample_rows(found) if text])


@html.register
def _(compared: Comparison) -> str:
    return element("pre", written(repr(compared)))


@html.register
def _(memory: Memory) -> str:
    return _formulas("memory of a device", memory.items())


@html.register
def _(sent: Communication) -> str:
    parts = [(f"over {axes}", formula) for axes, formula in sent.by_axes.items()]
    parts += [(f"in {phase}", formula) for phase, formula in sent.by_phase.items()]
    return _formulas("sent by a device in a step", [("total", sent.total), *parts, ("host link", sent.host_link)])


def _formulas(title: str, rows: Iterable[tuple[str, Formula]]) -> str:
    told = [(name, formula.text() or formula.reason, formula.unit) for name, formula in rows]
    return _table([("", "formula", "unit"), *told], title)


def _table(rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """Rows as a table; the first is its head where its first cell is empty."""
    drawn = [element("caption", written(caption), style="font-weight:bold;text-align:left")] if caption else []
    for k, row in enumerate(rows):
        kind = "th" if k == 0 and not row[0] else "td"
        drawn.append(element("tr", *(element(kind, written(cell) or " ", style=_LEFT) for cell in row)))
    return element("table", *drawn)


def _drawing(svg: str) -> str:
    return element("div", svg, style="overflow-x:auto")
