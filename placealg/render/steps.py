"""Published steps as text: the time of each beside the bound and the estimate of the same step, table by table."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import groupby

from placealg.check.steps import StepFinding, kendall
from placealg.render.text_layout import Cell, Line, bold, dim, indent, line, prose, table


def table_of(findings: Sequence[StepFinding], width: int) -> list[Line]:
    """A row per step under its source, with how the bound and the estimate rank the steps of each source."""
    held = sum(f.holds for f in findings)
    ratios = [f.ratio for f in findings]
    lines = [line(bold(f"{len(findings)} published steps"), f": {held} take at least their bound, "
                  f"{float(min(ratios)):.2f} to {float(max(ratios)):.2f} times it"),
             *prose("seconds of a step as printed; at least, by the bound; their ratio; and about, by the estimate "
                    "with its default parameters, which are fitted to none of these. Kendall's tau says how the steps "
                    "of a source are ranked: 1 as measured, 0 by chance, -1 the other way round", width, "dim")]
    for source, group in groupby(findings, key=lambda f: f.step.source):
        chosen = list(group)
        lines += [(), *prose(source, width, "cyan")]
        rows: list[list[Cell]] = [[dim(head) for head in ("", "", "printed, s", "at least, s", "ratio", "about, s")]]
        rows += [[f.step.id, f.step.title, _number(f.step.seconds), _number(f.bound), f"{float(f.ratio):.2f}",
                  _number(f.estimate)] for f in chosen]
        lines += indent(table(rows, "llrrrr", width - 2, wrap={1: 20}))
        if len(chosen) > 1:
            lines += [line(dim(f"  tau of the bound {ranked(chosen, 'bound')}, of the estimate "
                               f"{ranked(chosen, 'estimate')}"))]
    return lines


def page_of(finding: StepFinding, width: int) -> list[Line]:
    """One step: what ran, what was printed, what follows."""
    step = finding.step
    sizes = ", ".join(f"{n} = {v}" for n, v in step.sizes.items())
    told = [("step", step.title), ("source", step.source), ("program", f"{step.strategy} on {step.model}"),
            ("at", sizes), ("machine", step.machine), ("printed", f"{_number(step.seconds)} s"),
            ("at least", f"{_number(finding.bound)} s"), ("ratio", f"{float(finding.ratio):.3f}"),
            ("about", f"{_number(finding.estimate)} s"),
            ("verdict", "no faster than the bound" if finding.holds else "faster than the bound: one of them is wrong")]
    return [line(bold(step.id), dim("  published step")),
            *indent(table([[dim(name), said] for name, said in told], "ll", width - 2))]


def ranked(findings: Sequence[StepFinding], by: str) -> str:
    """Kendall's tau of the printed times and the bounds, or the estimates."""
    found = kendall([f.step.seconds for f in findings], [f.bound if by == "bound" else f.estimate for f in findings])
    return "undefined" if found is None else f"{float(found):.2f}"


def _number(value: Fraction) -> str:
    return f"{float(value):.4g}"
