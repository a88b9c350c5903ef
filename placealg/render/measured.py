"""Real runs as text: what was predicted, what was measured, their ratio; and as a Markdown table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from placealg.measure.compare import MeasuredFigure, Result
from placealg.measure.faults import LEAST, FaultRun
from placealg.measure.requirement import TORCH
from placealg.render.text_layout import Cell, Line, Span, bold, dim, indent, line, prose, table

HEADS = ("bytes", "ranks", "predicted", "measured", "ratio")


def page(result: Result, width: int) -> list[Line]:
    """One strategy on one mesh: a row per figure, the differences in parameters, the residues explained."""
    cell = result.cell
    rows: list[list[Cell]] = [[dim(head) for head in HEADS]]
    rows += [[line(_mark(row.agrees), row.figure), row.ranks, number(row.predicted), _measured(row), ratio(row)]
             for row in result.rows]
    lines = [line(bold(str(cell)), dim(f"  {result.seconds:.1f} s")), *indent(table(rows, "llrrr", width - 2))]
    for d in result.differences:
        text = f"parameters after 3 steps of {d.optimizer} differ from the single device's by at most {d.largest:.1e}"
        lines += indent([line(_mark(d.agrees), text, "" if d.agrees else f", where {d.allowed:.0e} is allowed")])
    for known in cell.residues:
        lines += indent(prose(f"{known.figure} + {known.bytes}: {known.why}", width - 4, "dim"), 4)
    if cell.balanced:
        lines += indent(prose(f"ranks hold unequal parts of {', '.join(sorted(cell.balanced))}: the mean over ranks is "
                              "compared", width - 4, "dim"), 4)
    return [*lines, ()]


def closing(results: Sequence[Result], width: int) -> list[Line]:
    """How many agree, and what no row counts."""
    right, figures = sum(r.agrees for r in results), [row for r in results for row in r.rows]
    text = (f"{right} of {len(results)} runs agree with torch {TORCH}: {sum(r.agrees for r in figures)} of "
            f"{len(figures)} figures, byte for byte")
    beside = ("Beside the figures: Adam's step counters, 4 bytes per parameter, and messages of one number, which no "
              "formula counts.")
    return [*prose(text, width), *prose(beside, width, "dim")]


def markdown(results: Sequence[Result]) -> Iterator[str]:
    """The lines of a Markdown table: a row per strategy and mesh, held and sent bytes of the most loaded rank."""
    yield "| strategy | mesh | bytes | predicted | measured | ratio |"
    yield "|---|---|---|---|---|---|"
    for result in results:
        mesh = " × ".join(f"{a} = {n}" for a, n in result.cell.mesh.items())
        for row in result.rows:
            ranks = "" if row.ranks == "all" else f", ranks {row.ranks}" if row.ranks != "mean" else ", mean"
            yield (f"| {result.cell.name} | {mesh} | {row.figure}{ranks} | {number(row.predicted)} | "
                   f"{''.join(_measured(row))} | {ratio(row)} |")


def to_json(result: Result) -> dict[str, Any]:
    """One result as JSON; bytes are numbers, or texts where they are no integers."""
    return {"name": result.cell.name, "strategy": result.cell.strategy, "mesh": dict(result.cell.mesh),
            "agrees": result.agrees, "bytes": [{
                "figure": r.figure, "ranks": r.ranks, "predicted": _plain(r.predicted), "measured": _plain(r.measured),
                "residue": _plain(r.residue), "agrees": r.agrees} for r in result.rows],
            "differences": [{"optimizer": d.optimizer, "largest": d.largest, "allowed": d.allowed, "agrees": d.agrees}
                            for d in result.differences],
            "residues": [{"figure": r.figure, "bytes": r.bytes, "why": r.why} for r in result.cell.residues],
            "step_counters": result.counters, "scalars": result.scalars, "seconds": round(result.seconds, 3)}


def faults_page(shown: Sequence[FaultRun], width: int) -> list[Line]:
    """A row per fault: the file, its verdict, the ratio that it names and the measured one, how far the run is off."""
    rows: list[list[Cell]] = [[dim("  " + FAULT_HEADS[0]), *(dim(head) for head in FAULT_HEADS[1:])]]
    rows += [[line(_mark(s.agrees), s.fault.name), *fault_cells(s)] for s in shown]
    right = sum(s.agrees for s in shown)
    text = (f"{right} of {len(shown)} faults are refuted, and make a real run differ by {LEAST:.0e} or more and in the "
            "ratio that the counterexample names")
    lines = [*table(rows, "lllrrr", width), (), *prose(text, width), line(dim("ratios are of"))]
    for s in shown:
        lines += indent(prose(f"{s.fault.name}: {s.fault.measured}", width - 4, "dim"), 4)
    return lines


FAULT_HEADS = ("fault", "file", "verdict", "ratio named", "measured", "difference")


def fault_cells(shown: FaultRun) -> tuple[str, ...]:
    """The cells of a fault's row, beside its name."""
    named = shown.names if shown.names == f"{shown.expected:g}" else f"{shown.names} = {shown.expected:g}"
    return shown.fault.file, shown.verdict, named, f"{shown.ratio:g}", f"{shown.difference:.1e}"


def faults_markdown(shown: Sequence[FaultRun]) -> Iterator[str]:
    """The faults as the lines of a Markdown table, without the differences, which are of floating-point numbers."""
    yield f"| {' | '.join(FAULT_HEADS[:-1])} |"
    yield "|---" * len(FAULT_HEADS[:-1]) + "|"
    for s in shown:
        yield f"| {s.fault.name} | {' | '.join(fault_cells(s)[:-1])} |"


def fault_json(shown: FaultRun) -> dict[str, Any]:
    """One fault as JSON."""
    return {"name": shown.fault.name, "file": shown.fault.file, "verdict": shown.verdict, "agrees": shown.agrees,
            "names": shown.names, "expected": shown.expected, "ratio": shown.ratio, "difference": shown.difference,
            "mesh": dict(shown.fault.mesh), "measured": shown.fault.measured}


def ratio(row: MeasuredFigure) -> str:
    """Measured over predicted, without the residue: `1` where they are equal."""
    if row.ratio is None:
        return "1" if row.agrees else "∞"
    return str(row.ratio) if row.ratio.denominator == 1 else f"{float(row.ratio):.4f}"


def number(value: Fraction) -> str:
    """A number of bytes.

    >>> number(Fraction(30976)), number(Fraction(1, 2))
    ('30,976', '1/2')
    """
    return f"{value.numerator:,}" if value.denominator == 1 else str(value)


def _measured(row: MeasuredFigure) -> str:
    return f"{number(row.measured - row.residue)} + {number(row.residue)}" if row.residue else number(row.measured)


def _plain(value: Fraction) -> int | str:
    return value.numerator if value.denominator == 1 else str(value)


def _mark(good: bool) -> Span:
    return Span("✓ ", "green") if good else Span("✗ ", "bold red")
