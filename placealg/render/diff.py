"""Two strategies held against each other: what differs in placements, program, costs and verdict, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import Any

from placealg.cost.formula import Formula
from placealg.placement import STATES
from placealg.prover.verdict import UNDECIDED, Report
from placealg.render.compare import Compared, Ratio, ratio
from placealg.render.cost import Sizes, value_of
from placealg.render.export import code, plain_markdown
from placealg.render.proof import coloured, joined
from placealg.render.show import claim, settings
from placealg.render.text_layout import Cell, Line, bold, dim, indent, line, plain, prose, table
from placealg.render.values import scale_for, scaled
from placealg.step.difference import CHANGED, LEFT, MOVED, RIGHT, EventChange, difference
from placealg.step.program import Step
from placealg.strategy.spec import Strategy

SIGNS: Mapping[str, str] = {LEFT: "−", RIGHT: "+", MOVED: "↕", CHANGED: "~"}
"""Kind of difference -> the sign before its event."""

NOTHING = "—"
_LONGEST, _LONGEST_RATIO = 320, 60
"""Formulas longer than this, in characters, are left to the JSON document; ratios give way to their values."""


@dataclass(frozen=True, slots=True)
class DiffSide:
    """One of the two: its strategy, its program, its costs (of a pipeline one stage's), and its verdict.

    `figures` are the costs' formulas by name, `sizes` those at which their values are taken.
    """

    strategy: Strategy
    program: Step
    figures: Mapping[str, Formula]
    sizes: Sizes
    report: Report

    @property
    def placements(self) -> dict[str, str]:
        """Subject -> what is said of it: every state along every axis, then every setting."""
        found = {f"{state} along {axis}": self.strategy.mode_text(state, axis)
                 for axis in self.strategy.mesh.names for state in STATES}
        found |= {f"{state} along {axis} of {rule.match}": placement.text(axis) for rule in self.strategy.groups
                  for state, placement in rule.states.items() for axis in self.strategy.mesh.names}
        found |= {f"[dims] {axis}": ", ".join(self.strategy.dims.get(axis, ())) for axis in self.strategy.mesh.names}
        found |= {f"size of {a.name}": "symbolic" if a.size is None else str(a.size) for a in self.strategy.mesh}
        found |= {f"[{name}] {key}": str(value) for name in self.strategy.tables
                  for key, value in self.strategy.tables[name].items()}
        return {**found, **dict(settings(self.strategy))}

    @property
    def verdicts(self) -> dict[str, str]:
        """The verdict, that of every obligation, and what is assumed and not covered."""
        def told(verdict: str, cls: str | None) -> str:
            return f"{verdict}, {cls}" if cls else str(verdict)

        found = {"verdict": told(self.report.verdict, self.report.cls)}
        found |= {identifier: told(*joined(self.report.of(identifier))) for identifier in self.report.statements}
        found["assuming"] = "; ".join(self.report.assuming) or "nothing"
        found["not covered"] = "; ".join(self.report.not_covered)
        return found


def figures(compared: Compared) -> dict[str, Formula]:
    """The formulas in which a strategy may differ, by name."""
    found = compared.costs
    sent = {f"sent {name}": f for name, f in found.named("communication").items() if name.startswith("over ")}
    return {**compared.quantities(), **sent, **found.named("schedule")}


@dataclass(frozen=True, slots=True)
class Change:
    """A formula of each side that differs, None where a side has none; their values, and the ratio of the second."""

    name: str
    one: Formula | None
    two: Formula | None
    values: tuple[int | Fraction | None, int | Fraction | None]
    ratio: Ratio | None

    @property
    def factor(self) -> str:
        """The ratio as text: short enough to read, else its value, else ""."""
        text = self.ratio.formula.text() if self.ratio else ""
        if self.ratio is None or 0 < len(text) <= _LONGEST_RATIO:
            return text
        return "" if self.ratio.value is None else f"{float(self.ratio.value):.4g}"


@dataclass(frozen=True, slots=True)
class Differences:
    """Everything in which two strategies differ."""

    one: DiffSide
    two: DiffSide
    placements: tuple[tuple[str, str, str], ...]
    events: tuple[EventChange, ...]
    costs: tuple[Change, ...]
    verdicts: tuple[tuple[str, str, str], ...]

    @property
    def alike(self) -> bool:
        """Whether nothing differs."""
        return not (self.placements or self.events or self.costs or self.verdicts)

    @property
    def undecided(self) -> tuple[str, ...]:
        """Why a side has no verdict that could be held against the other's."""
        return tuple(f"{side.strategy.name} is UNDECIDED: {side.report.why_undecided}" for side in (self.one, self.two)
                     if side.report.verdict == UNDECIDED)


def held_against(one: DiffSide, two: DiffSide) -> Differences:
    """The differences of two sides."""
    return Differences(one, two, _differing(one.placements, two.placements), difference(one.program, two.program),
                   tuple(_changes(one, two)), _differing(one.verdicts, two.verdicts))


def _differing(one: Mapping[str, str], two: Mapping[str, str]) -> tuple[tuple[str, str, str], ...]:
    return tuple((name, one.get(name, NOTHING), two.get(name, NOTHING)) for name in {**one, **two}
                 if one.get(name) != two.get(name))


def _changes(one: DiffSide, two: DiffSide) -> Iterable[Change]:
    left, right = one.figures, two.figures
    mine, theirs = ({n for n in side if n.startswith("sent over ")} for side in (left, right))
    if len(mine) < 2 and mine == theirs:
        left, right = ({n: f for n, f in side.items() if n not in mine} for side in (left, right))
    for name in {**left, **right}:
        first, second = left.get(name), right.get(name)
        values = (None if first is None else value_of(first, one.sizes),
                  None if second is None else value_of(second, two.sizes))
        if first is not None and second is not None and first == second and values[0] == values[1]:
            continue
        yield Change(name, first, second, values, None if first is None or second is None else ratio(
            second, first, two.sizes, one.sizes))


def diff(found: Differences, width: int) -> list[Line]:
    """The differences as text: − stands before what the first alone has, + before what the second alone has."""
    names = found.one.strategy.name, found.two.strategy.name
    lines = prose(f"{names[0]} → {names[1]} on {found.one.program.reference.model}", width, "bold")
    for reason in found.undecided:
        lines += indent(prose(reason, width - 2))
    if found.alike:
        return [*lines, line(f"  no difference in {_alike(found)}")]
    verdicts = [(name, _verdict(a), _verdict(b)) for name, a, b in found.verdicts]
    return [*lines, *_pairs("placements and settings", found.placements, names, width), *_program(found, width),
            *_costs(found, names, width), *_pairs("verdict", verdicts, names, width)]


def _alike(found: Differences) -> str:
    """In what two sides do not differ."""
    return "placements, program or costs" if found.undecided else "placements, program, costs or verdict"


def _pairs(title: str, rows: Sequence[tuple[str, Cell, Cell]], names: tuple[str, str], width: int) -> list[Line]:
    """What differs, one line each, below its title."""
    if not rows:
        return [(), line(bold(title), dim("  no difference"))]
    cells: list[list[Cell]] = [["", dim(names[0]), dim(names[1])], *([dim(name), a, b] for name, a, b in rows)]
    return [(), line(bold(title)), *indent(table(cells, "lll", width - 2, wrap={0: 16, 1: 20, 2: 20}))]


def _verdict(text: str) -> Cell:
    word, comma, rest = text.partition(",")
    return line(coloured(word), comma + rest)


def _program(found: Differences, width: int) -> list[Line]:
    counts = {kind: sum(d.kind == kind for d in found.events) for kind in SIGNS}
    said = {LEFT: f"only in {found.one.strategy.name}", RIGHT: f"only in {found.two.strategy.name}",
            MOVED: "in another place", CHANGED: "with other fields"}
    told = ", ".join(f"{n} {said[kind]}" for kind, n in counts.items() if n) or "no difference"
    rows: list[list[Cell]] = [[SIGNS[kind], head, dim(detail)] for kind, head, detail in folded(found.events)]
    head = line(bold("program"), dim(f"  {told}"))
    heads = [head] if len(plain(head)) <= width else [line(bold("program")), *indent(prose(told, width - 2, "dim"))]
    return [(), *heads, *indent(table(rows, "lll", width - 2, wrap={1: 30, 2: 24}))]


def folded(events: Sequence[EventChange]) -> Iterable[tuple[str, str, str]]:
    """(kind, event, what it says) of runs of events that differ alike in several parameter groups, each run once."""
    def alike(d: EventChange) -> tuple[Any, ...]:
        e = d.event
        subject = (bool(e.group), e.value) if e.group else e.subject
        return d.kind, e.phase, e.verb, subject, e.axes, claim(e), str(d.fields)

    order = {key: k for k, key in reversed(list(enumerate(map(alike, events))))}
    for _, run in groupby(sorted(events, key=lambda d: order[alike(d)]), alike):
        first, *others = run
        path = first.event.path + (f" … {1 + len(others)} groups" if others else "")
        said = "; ".join(f"{key} {_said(a)} → {_said(b)}" for key, a, b in first.fields)
        yield first.kind, path, said or claim(first.event)


def _said(value: Any) -> str:
    return ", ".join(map(str, value)) or NOTHING if isinstance(value, list | tuple) else str(value) or NOTHING


def _costs(found: Differences, names: tuple[str, str], width: int) -> list[Line]:
    if not found.costs:
        return [(), line(bold("costs of a device"), dim("  no difference"))]
    scale = scale_for("bytes", (v for c in found.costs for v in c.values if _unit(c) == "bytes"))
    lines: list[Line] = [(), line(bold("costs of a device"))]
    for c in found.costs:
        rows: list[list[Cell]] = []
        for sign, name, formula, value in zip("−+", names, (c.one, c.two), c.values, strict=True):
            number = scaled(value, scale.divisor if _unit(c) == "bytes" else 1)
            rows.append([sign, dim(name), _formula(formula),
                         f"{number} {scale.head if _unit(c) == 'bytes' else ''}".strip() if number else ""])
        lines += [*indent([line(bold(c.name), dim(f"  × {c.factor}" if c.factor else ""))]),
                  *indent(table(rows, "lllr", width - 4, wrap={2: 30}), 4)]
    return lines


def _unit(change: Change) -> str:
    formula = change.one or change.two
    return formula.unit if formula else ""


def _formula(formula: Formula | None) -> str:
    if formula is None or formula.expr is None:
        return NOTHING if formula is None else f"none: {formula.reason}"
    text = formula.text()
    return text if len(text) <= _LONGEST else f"{len(text)} signs: --format json has it"


def markdown(found: Differences) -> str:
    """The differences as a comment for a pull request."""
    names = [plain_markdown(side.strategy.name) for side in (found.one, found.two)]
    lines = [f"### {names[0]} → {names[1]} on {plain_markdown(found.one.program.reference.model)}"]
    lines += [text for reason in found.undecided for text in ("", f"{plain_markdown(reason)}.")]
    if found.alike:
        return "\n".join([*lines, "", f"No difference in {_alike(found)}."]) + "\n"
    for title, rows in (("Verdict", found.verdicts), ("Placements and settings", found.placements)):
        if rows:
            lines += ["", f"**{title}**", "", f"| | {names[0]} | {names[1]} |", "|---|---|---|"]
            lines += [f"| {plain_markdown(name)} | {plain_markdown(a)} | {plain_markdown(b)} |" for name, a, b in rows]
    if found.costs:
        lines += ["", "**Costs of a device**", "", f"| quantity | {names[0]} | {names[1]} | ratio |",
                  "|---|---|---|---|"]
        lines += [f"| {c.name} | {code(_formula(c.one))} | {code(_formula(c.two))} | {code(c.factor)} |"
                  for c in found.costs]
    if found.events:
        lines += ["", "**Program**", "", "```diff"]
        signs = {**SIGNS, LEFT: "-", CHANGED: "!", MOVED: "!"}
        lines += [f"{signs[kind]} {head}{f'  {said}' if said else ''}".replace("```", "'''")
                  for kind, head, said in folded(found.events)]
        lines.append("```")
    return "\n".join(lines) + "\n"


def document(found: Differences) -> dict[str, Any]:
    """The differences as a JSON object."""
    def leaf(formula: Formula | None, side: DiffSide) -> dict[str, Any] | None:
        return None if formula is None else formula.to_json(
            **{n: v for n, v in side.sizes.items() if n in formula.inputs})

    return {
        "version": 1, "strategies": [found.one.strategy.name, found.two.strategy.name],
        "model": found.one.program.reference.model, "alike": found.alike,
        "placements": [{"subject": name, "before": a, "after": b} for name, a, b in found.placements],
        "events": [{"kind": d.kind, "path": d.event.path,
                    "fields": [{"field": key, "before": a, "after": b} for key, a, b in d.fields]}
                   for d in found.events],
        "costs": [{"quantity": c.name, "before": leaf(c.one, found.one), "after": leaf(c.two, found.two),
                   "ratio": c.ratio.formula.to_json() if c.ratio else None} for c in found.costs],
        "undecided": list(found.undecided),
        "verdicts": [{"subject": name, "before": a, "after": b} for name, a, b in found.verdicts],
    }
