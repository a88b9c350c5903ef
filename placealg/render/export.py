"""Costs for other documents: Markdown tables, LaTeX alignments, Python functions, rows for a spreadsheet."""

from __future__ import annotations

import csv
import io
import keyword
import re
from collections.abc import Mapping
from fractions import Fraction

from placealg.cost.costs import Costs
from placealg.cost.formula import Formula, json_number
from placealg.render.cost import value_of
from placealg.render.values import scale_for, scaled

Rows = list[tuple[str, Formula]]
Sections = dict[str, Rows]

_MARKDOWN, _ESCAPE = re.compile(r"([\\`*_{}\[\]<>#|])"), r"\\\1"
_LATEX = {"\\": r"\textbackslash{}", "_": r"\_", "#": r"\#", "%": r"\%", "&": r"\&", "$": r"\$", "{": r"\{",
          "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def sections(costs: Costs) -> Sections:
    """Every quantity by section, named as on the page of costs."""
    return {
        **{part: list(costs.named(part).items()) for part in ("memory", "communication")},
        **({"schedule": list(costs.schedule.items())} if costs.schedule else {}),
        "events": [(e.path, e.formula) for e in costs.communication.events if not e.left_out],
    }


def escaped(text: str) -> str:
    r"""Text that LaTeX prints as it stands.

    >>> print(escaped("grad_sum.reduce[dp]"))
    grad\_sum.reduce[dp]
    """
    return "".join(_LATEX.get(c, c) for c in text)


def plain_markdown(text: str) -> str:
    r"""Text that Markdown shows as it stands, in a table too.

    >>> print(plain_markdown("zero3*tp_sp"))
    zero3\*tp\_sp
    """
    return _MARKDOWN.sub(_ESCAPE, " ".join(text.split()))


def code(text: str) -> str:
    r"""Text as code in a table of Markdown; "" stays empty.

    >>> code("a|b"), code("")
    ('`a\\|b`', '')
    """
    return f"`{text.replace('|', chr(92) + '|').replace('`', chr(39))}`" if text else ""


def markdown(title: str, parts: Sections, sizes: Mapping[str, Fraction], gib: bool) -> str:
    """A Markdown table per section: quantity, formula, value."""
    lines = [f"# {plain_markdown(title)}"]
    for name, rows in parts.items():
        unit = rows[0][1].unit if rows else "bytes"
        head, divisor = scale_for(unit, (value_of(f, sizes) for _, f in rows), gib)
        told = "formula" if unit == "1" else unit
        lines += ["", f"## {name}", "", f"| quantity | {told} | {head} |", "|---|---|---:|"]
        for quantity, formula in rows:
            text = f"${formula.latex()}$" if formula.expr is not None else f"none: {formula.reason}"
            lines.append(f"| `{quantity}` | {text} | {scaled(value_of(formula, sizes), divisor)} |")
    return "\n".join(lines) + "\n"


def latex(title: str, parts: Sections) -> str:
    """An `align*` per section, to be input into a document that uses amsmath."""
    lines = [f"% {title}", r"% \usepackage{amsmath} defines what stands here"]
    for name, rows in parts.items():
        unit = rows[0][1].unit if rows else "bytes"
        lines += [rf"\paragraph{{{escaped(name)}}} ({unit})", r"\begin{align*}"]
        for q, f in rows:
            first, *rest = f.latex_lines()
            lines += [rf"  \text{{{escaped(q)}}} &= {first} \\", *(rf"    &\quad {more} \\" for more in rest)]
        lines.append(r"\end{align*}")
    return "\n".join(lines) + "\n"


def comma_separated(parts: Sections, sizes: Mapping[str, Fraction]) -> str:
    """A row per quantity for a spreadsheet: section, quantity, unit, formula, value; "" where there is no value."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(("section", "quantity", "unit", "formula", "value"))
    for section, quantities in parts.items():
        for quantity, formula in quantities:
            value = value_of(formula, sizes)
            rows.writerow((section, quantity, formula.unit, "" if formula.expr is None else str(formula.expr),
                           "" if value is None else json_number(value)))
    return out.getvalue()


def python(title: str, parts: Sections) -> str:
    """A Python module with a typed function per quantity, which needs nothing: exact for fractions.Fraction."""
    bodies = [f.python(function_name(section, q)) for section, rows in parts.items() for q, f in rows]
    return f"# Costs of {title}\n" + "".join(f"\n\n{body}\n" for body in bodies)


def function_name(*words: str) -> str:
    """The words as a Python name.

    >>> function_name("events", "forward.layer.weight.gather[dp]")
    'events_forward_layer_weight_gather_dp'
    """
    name = re.sub(r"\W+", "_", "_".join(words)).strip("_")
    return name + "_" if keyword.iskeyword(name) else name
