"""The museum as text: one row per bug, and the story of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placealg.number_formats import told
from placealg.prover.verdict import ASKED_FOR, PROVED, Report
from placealg.render.proof import coloured, counterexample
from placealg.render.show import claim, placements, settings
from placealg.render.text_layout import Cell, Line, Span, bold, dim, indent, line, prose, table
from placealg.simulator import Outcome
from placealg.step.program import Event, Step
from placealg.strategy.file import Expect, Masked
from placealg.strategy.spec import Strategy

MOST_EVENTS = 8
"""Events of one kind that a story lists; the rest are counted."""


@dataclass(frozen=True)
class Exhibit:
    """One bug: what its file says, the program with and without it, and what prover and simulator say.

    `hidden` are the masked sets of the file, each with a run at its sizes; `wrong` is what did not come as expected.
    """

    name: str
    comment: str
    source: str
    strategy: Strategy
    step: Step
    base: Step
    expect: Expect
    report: Report
    hidden: tuple[tuple[Masked, Outcome], ...]
    wrong: tuple[str, ...]
    seconds: float

    def to_json(self, timing: bool = True) -> dict[str, Any]:
        """The bug as a JSON object."""
        return {
            "name": self.name, "what": self.strategy.name, "comment": self.comment, "source": self.source,
            "verdict": self.report.verdict, "obligation": self.report.refuted()[:1], "ratio": self.expect.ratio or None,
            "masked": [{"sizes": dict(m.sizes), "counts": m.counts or None, "equal": o.equal, "observed": o.observed}
                       for m, o in self.hidden],
            "as_expected": not self.wrong, "wrong": list(self.wrong), "seconds": self.seconds if timing else None,
            "report": self.report.to_json(timing)}


def cells(exhibit: Exhibit) -> tuple[str, ...]:
    """What a row says of a bug: name, what went wrong, what is refuted, by which factor, where it does not show."""
    refuted, expected = exhibit.report.refuted(), exhibit.expect.obligation
    told = expected if expected in refuted else next(iter(refuted), exhibit.report.verdict.lower())
    return (exhibit.name, exhibit.strategy.name, told, exhibit.expect.ratio,
            " or ".join(str(masked) for masked, _ in exhibit.hidden))


HEADS = ("bug", "what went wrong", "refuted", "ratio", "hides at")
"""The columns of the museum."""

SHOWN = (*HEADS, "numbers equal there")
"""The columns of its Markdown table: also how many numbers a run at those sizes compared, all equal."""


def museum(exhibits: Sequence[Exhibit], width: int, timing: bool = True) -> list[Line]:
    """A row per bug, then how many came as their files expect."""
    rows: list[list[Cell]] = [[dim("  " + HEADS[0]), *(dim(h) for h in HEADS[1:]), dim("time" if timing else "")]]
    for e in exhibits:
        name, what, refuted, ratio, hides = cells(e)
        mark = Span("✗ ", "bold red") if e.wrong else Span("✓ ", "green")
        rows.append([line(mark, name), what, refuted, ratio, hides, f"{e.seconds:.1f} s" if timing else ""])
        rows += [[text] for wrong in e.wrong for text in indent(prose(wrong, width - 4, "red"), 4)]
    runs = sum(len(e.hidden) for e in exhibits)
    right = sum(not e.wrong for e in exhibits)
    summary = (f"{right} of {len(exhibits)} bugs as their files expect; {runs} runs where they hide, "
               f"{sum(o.equal for e in exhibits for _, o in e.hidden)} of them equal to the single device's")
    return [*table(rows, "lllllr", width, wrap={1: 24}), (), *prose(summary, width)]


def markdown(exhibits: Sequence[Exhibit]) -> Iterator[str]:
    """The museum as the lines of a Markdown table."""
    yield f"| {' | '.join(SHOWN)} |"
    yield "|---" * len(SHOWN) + "|"
    for e in exhibits:
        yield markdown_row(e)


def markdown_row(exhibit: Exhibit) -> str:
    """One line of the Markdown table."""
    there = " or ".join(str(outcome.observed) if outcome.equal else "differ" for _, outcome in exhibit.hidden)
    return "|" + "|".join(f" {cell} " if cell else " " for cell in (*cells(exhibit), there)) + "|"


def story(exhibit: Exhibit, width: int) -> list[Line]:
    """What happened, the placement, the events that differ, the counterexample with its repair, where it hides."""
    lines = [line(bold(exhibit.name), dim("  bug: "), exhibit.strategy.name)]
    for text, style in ((exhibit.comment, ""), (exhibit.source, "dim")):
        lines += indent(prose(text, width - 2, style)) if text else []
    lines.append(())
    lines += indent(placements(exhibit.strategy), 4)
    lines += [(), *indent(changed(exhibit, width - 2)), ()]
    found = exhibit.report.counterexample
    head = line(bold("counterexample" if found else "verdict"), dim("  to " if found else "  on "),
                exhibit.report.strategy, ": ", coloured(exhibit.report.verdict))
    lines += [head, *indent(counterexample(found, width - 2)), ()] if found else [head, ()]
    for masked, outcome in exhibit.hidden:
        says = "equal the single device's: it does not show" if outcome.equal else f"differ: {outcome.difference}"
        lines += prose(f"at {masked} all {outcome.observed} numbers of a run {says}", width, hang=2)
    if exhibit.report.refuted() and set(exhibit.report.refuted()) <= set(ASKED_FOR):
        lines += prose("in exact numbers nothing differs, at any size: only the types of its sums show it", width)
    elif not exhibit.hidden and exhibit.report.verdict != PROVED:
        lines += prose("no size hides it", width)
    for wrong in exhibit.wrong:
        lines += prose(f"✗ {wrong}", width, "bold red")
    return lines


SAYS = ("optimizer", "loss", "dropout", "types", "schedule")
"""The settings of a strategy that a story shows where no event differs."""


def said(event: Event) -> str:
    """What an event claims, and the type of what it moves."""
    return " ".join(filter(None, (claim(event), f"in {told(event.bytes)}" if event.bytes else ""))) or "plain"


def changed(exhibit: Exhibit, width: int) -> list[Line]:
    """The events that the program lacks, has beyond the derived one, or has with other claims."""
    here = {e.path: e for e in exhibit.step.events}
    there = {e.path: e for e in exhibit.base.events}
    kinds: Mapping[str, list[tuple[Event, str]]] = {
        "missing": [(e, claim(e)) for path, e in there.items() if path not in here],
        "extra": [(e, claim(e)) for path, e in here.items() if path not in there],
        "changed": [(e, f"{said(there[path])}, now {said(e)}") for path, e in here.items()
                    if path in there and (e.plain, e.bytes) != (there[path].plain, there[path].bytes)],
    }
    rows: list[list[Cell]] = []
    for kind, events in kinds.items():
        for k, (event, says) in enumerate(events[:MOST_EVENTS]):
            rows.append([dim(kind if k == 0 else ""), event.path, says])
        if len(events) > MOST_EVENTS:
            rows.append(["", dim(f"and {len(events) - MOST_EVENTS} more"), ""])
    if rows:
        return table(rows, "lll", width, wrap={1: 30, 2: 16})
    moved = [p for p, q in zip(here, there, strict=True) if p != q]
    if moved:
        return prose(f"out of order from {moved[0]} on", width)
    rows = [[dim(name), text] for name, text in settings(exhibit.strategy) if name in SAYS]
    return [*prose("no event differs from the derived program: the strategy itself says it", width),
            *table(rows, "ll", width, wrap={1: 30})]
