"""A report as text: one line per obligation, what is assumed and not covered, and the counterexample told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from placealg.prover.verdict import (
    NOT_CHECKED,
    OBLIGATIONS,
    PROVED,
    REFUTED,
    UNDECIDED,
    Counterexample,
    Hypothesis,
    Report,
    Verdict,
    overall,
)
from placealg.render.text_layout import Cell, Line, Span, bold, dim, indent, line, prose, table

COLOURS: dict[str, str] = {PROVED: "green", REFUTED: "bold red", UNDECIDED: "yellow"}
MARKS: dict[str, Span] = {PROVED: Span("✓", "green"), REFUTED: Span("✗", "bold red"), UNDECIDED: Span("?", "yellow"),
         NOT_CHECKED: Span("–", "dim")}
SAYS = {
    (PROVED, "PARAMETRIC"): "the distributed step equals the single-device step, for all sizes",
    (PROVED, "CUTOFF"): "the distributed step equals the single-device step, for all sizes (by a cutoff lemma)",
    (PROVED, "BOUNDED"): "the distributed step equals the single-device step, at the sizes that were checked",
    (REFUTED, "BOUNDED"): "the distributed step differs from the single-device step",
}


def coloured(verdict: str) -> Span:
    """A verdict in its colour."""
    return Span(str(verdict), COLOURS.get(verdict, "dim"))


STATEMENTS_FROM = 110
"""The width from which the statements of the obligations stand beside their verdicts."""


def proof(report: Report, width: int, timing: bool = True, says: Mapping[str, str] | None = None,
          kernel: str = "") -> list[Line]:
    """The whole report; `says` maps the name of a hypothesis to what it says, `kernel` is the verified checker's."""
    head = line(bold(f"{report.strategy} on {report.model}"), ": ", coloured(report.verdict))
    meaning = SAYS.get((report.verdict, report.cls or ""), "")
    if report.refuted() == ("precision",):
        meaning = "a sum is taken in fewer bits, or a smaller range, than was said; nothing else was found to differ"
    if report.refuted() and {*report.refuted()} <= {"race", "alias"}:
        meaning = "as it is printed nothing was found to differ, but what its streams do to memory does"
    lines = [line(*head, dim(f", {report.cls}" if report.cls else ""))]
    lines += indent(prose(meaning, width - 2)) if meaning else []
    lines += [(), *indent(obligations(report, width - 2, timing)), ()]
    lines += indent(conditions(report, width - 2, says or {}, kernel))
    if report.counterexample:
        lines += [(), line(bold("counterexample")), *indent(counterexample(report.counterexample, width - 2))]
        others = [name for name in report.refuted() if name != report.counterexample.obligation]
        if others:
            text = f"{len(others)} more obligation{'s' * (len(others) > 1)} refuted: {', '.join(others)}"
            lines += [(), *indent(prose(text, width - 2, "dim"))]
    return lines


_ALL_COLUMNS = 76
"""The width from which the class and the number of groups have room beside the others."""


def obligations(report: Report, width: int, timing: bool) -> list[Line]:
    """One line per identifier: how it ended, over how many groups and instances, in how many milliseconds."""
    heads = ("obligation", "verdict", "class", "groups", "instances", "time" if timing else "", "")
    rows: list[list[Cell]] = [[dim("  " + heads[0]), *(dim(h) for h in heads[1:])]]
    shown = [0, 1, 4, 5] if width < _ALL_COLUMNS else range(len(heads))
    for identifier, statement in report.statements.items():
        found = report.of(identifier)
        verdict, cls = joined(found)
        groups = {v.group for v in found if v.group}
        instances = sum(v.instances for v in found)
        known = [v.seconds for v in found if v.seconds is not None]
        told = _reason(found, verdict) if verdict != PROVED or not instances else ""
        wide = width >= STATEMENTS_FROM - 2
        if not told and wide:
            told = statement
        rows.append([
            line(MARKS[verdict], " ", identifier), coloured(verdict), dim(cls or ""), str(len(groups) or ""),
            str(instances), f"{1000 * sum(known):.1f} ms" if known and timing else "",
            dim(told if wide else "")])
        if told and not wide:
            rows += [[text] for text in indent(prose(told, width - 4, "dim"), 4)]
    cells = [[row[k] for k in shown] if len(row) > 1 else row for row in rows]
    return table(cells, "".join("lllrrrl"[k] for k in shown), width, wrap={6: 20} if len(shown) == len(heads) else {})


def joined(found: Iterable[Verdict]) -> tuple[str, str | None]:
    """(verdict, class) of several verdicts of one identifier."""
    seen = list(found)
    if not seen or all(v.verdict == NOT_CHECKED for v in seen):
        return NOT_CHECKED, None
    verdict, cls = overall([*seen, *(Verdict(i, "", "", PROVED, None, 0) for i in OBLIGATIONS)])
    return verdict, cls if any(v.cls for v in seen) else None


DECIDING: Mapping[str, str] = {
    "data": "what the calculus found is right as it stands: no formula is made",
    "construction": "it holds by how every program is built",
    "simplification": "a formula that rewriting alone shows to have no model",
    "solver": "asked of the solver",
}
"""By what an instance of an obligation is decided, and what that means."""


def decided(report: Report, width: int) -> list[Line]:
    """How many instances, and which share of them, were decided by what."""
    counts, shares = report.decided.counts(), report.decided.shares()
    rows: list[list[Cell]] = [[dim(h) for h in ("decided by", "instances", "share", "")]]
    rows += [[name, str(counts[name]), f"{100 * shares[name]:.2f} %", dim(says)] for name, says in DECIDING.items()]
    return table(rows, "lrrl", width, wrap={3: 20})


def _reason(found: Iterable[Verdict], verdict: str) -> str:
    for v in found:
        if v.verdict == verdict and (v.reason or v.event):
            place = f"{v.event}: " if v.event and verdict == REFUTED else ""
            return place + v.reason if v.reason else v.event
    return ""


def conditions(report: Report, width: int, says: Mapping[str, str], kernel: str = "") -> list[Line]:
    """What the verdict assumes, what no verdict covers, and who has checked it."""
    rows: list[list[Cell]] = []
    for k, text in enumerate([assumption(h, says) for h in report.hypotheses] or ["nothing"]):
        rows.append([dim("assuming" if k == 0 else ""), text])
    for k, text in enumerate(report.not_covered):
        rows.append([dim("not covered" if k == 0 else ""), text])
    for k, text in enumerate(report.lemmas):
        rows.append([dim("lemmas" if k == 0 else ""), text])
    if report.versions:
        rows.append([dim("checked by"), report.versions])
    if kernel:
        rows.append([dim("kernel"), kernel])
    return table(rows, "ll", width, wrap={1: 30})


def assumption(hypothesis: Hypothesis, says: Mapping[str, str]) -> str:
    """A hypothesis of a report with what it says, unless its text says so already.

    >>> assumption(Hypothesis("equal_counts", over=("dp",)), {"equal_counts": "counts are equal"})
    'equal_counts over {dp}: counts are equal'
    """
    said = says.get(hypothesis.name, "")
    return f"{hypothesis.text}: {said}" if said and not hypothesis.says else hypothesis.text


def counterexample_rows(found: Counterexample) -> list[tuple[str, str]]:
    """(name, text) of what a counterexample says; "" where it says nothing."""
    def sizes(pairs: Iterable[tuple[str, int]]) -> str:
        return ", ".join(f"{name} = {value}" for name, value in pairs)

    rows: list[tuple[str, str]] = [
        ("obligation", found.obligation + (f" of {found.group}" if found.group else "")),
        ("event", found.event + (f", line {found.line}" if found.line else "")),
        ("sizes", sizes(found.sizes)),
        ("device", sizes(found.device)),
        ("unit", found.unit),
        (f"{found.counted}s", "; ".join(f"{count} on {cell}" for cell, count in found.tokens)),
        ("got", found.got),
        ("want", found.want),
        ("ratio", _ratio(found.mass)),
        ("single device", found.single_device),
        ("distributed", found.distributed),
    ]
    if found.repair:
        first, *more = found.repair.edit.splitlines()
        rows += [("repair", first), *(("", edit) for edit in more),
                 ("in the file", found.repair.file), ("its cost", found.repair.cost)]
    return rows


def _ratio(mass: str | None) -> str:
    """The sum of the weights over the reference's, and what it means where the sums agree."""
    if mass == "1":
        return "1  (the weights sum to the reference's; how they are spread is wrong)"
    return f"{mass}  (sum of got / sum of want)" if mass else ""


def counterexample(found: Counterexample, width: int) -> list[Line]:
    """What goes wrong, where it shows, both runs' numbers, and the edit that repairs it."""
    rows = counterexample_rows(found)
    table_of_rows = table([[dim(name), text] for name, text in rows if text], "ll", width, wrap={1: 30})
    return [*prose(found.explanation, width), (), *table_of_rows]
