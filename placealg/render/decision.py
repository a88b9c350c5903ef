"""A comparison of formulas as text: the verdict, over which sizes, and of a refutation both values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from placealg.cost.comparison import Answer, Claim, Decision
from placealg.cost.formula import Formula
from placealg.mesh import SYMBOLS
from placealg.prover.verdict import PROVED
from placealg.render.proof import coloured
from placealg.render.text_layout import Cell, Line, bold, dim, indent, line, prose, table
from placealg.render.values import number, plain_number, readable

_SIGNS = {"<=": "≤", ">=": "≥", "==": "=", "<": "<", ">": ">"}


def decided(answer: Answer, claim: Claim, names: tuple[str, str], model: str, width: int,
            crossing: tuple[str, Sequence[Formula]] | None = None) -> list[Line]:
    """The page of one answer; `crossing` is a size, and its values where both formulas are equal."""
    first = answer.decisions[0]
    title = f"{names[0]} against {names[1]} on {model}: "
    lines = [line(bold(title), coloured(answer.verdict))]
    says = f"{claim.left} of {names[0]} {_SIGNS[claim.relation]} {claim.right} of {names[1]}"
    where = " and ".join(_signs(c.text) for c in first.given if c not in answer.iff)
    says += f", for all sizes{' where ' + where if where else ''}"
    says += f", exactly where {' and '.join(_signs(c.text) for c in answer.iff)}" if answer.iff else ""
    lines += [*indent(prose(says, width - 2)), ()]
    for decision in answer.decisions:
        lines += _one(decision, answer, names, width)
    rows: list[list[Cell]] = [[dim(kind), text] for kind, text in scope(first)]
    lines += indent(table(rows, "ll", width - 2, wrap={1: 30}))
    if crossing:
        size, values = crossing
        told = " or ".join(f"{size} = {f.text()}" for f in values) or f"no {size}"
        lines += [(), *indent(prose(f"equal at {told}, where that is a size", width - 2, hang=9))]
    return lines


def _one(decision: Decision, answer: Answer, names: tuple[str, str], width: int) -> list[Line]:
    """The rows of one decision: how it was made, or sizes and values that refute it."""
    rows: list[list[Cell]] = []
    if answer.iff:
        here = " and ".join(_signs(c.text) for c in decision.given)
        rows.append([dim("where"), line(f"{here}: {names[0]} {_SIGNS[decision.relation]} {names[1]}  ",
                                        coloured(decision.verdict))])
    rows.append([dim("by" if decision.verdict == PROVED else "because"), decision.method])
    if decision.values:
        rows.append([dim("at"), ", ".join(f"{n} = {plain_number(v)}" for n, v in decision.sizes.items())])
        rows += [[dim("" if k else "values"), f"{names[k]}: {_exact(v)}"] for k, v in enumerate(decision.values)]
    rows += [[dim(names[k]), readable(f.text())] for k, f in enumerate((decision.left, decision.right))
             if decision is answer.decisions[0] and len(f.text()) <= 240]
    return [*indent(table(rows, "ll", width - 2, wrap={1: 30})), ()]


def scope(decision: Decision) -> list[tuple[str, str]]:
    """Over which sizes a decision speaks, kind by kind."""
    over, free = decision.over, decision.free
    rational = [n for n in free if n in SYMBOLS and SYMBOLS[n].assumption == "positive rational"]
    whole = [n for n in free if n not in rational]
    used = {*decision.left.inputs, *decision.right.inputs}
    fixed = [f"{n} = {_exact(v)}" for n, v in over.fixed.items() if n in used]
    quotients = [str(q) for q in over.whole if set(q.names()) & {*whole}]
    orders = [f"{small} ≤ {large}" for small, large in over.ordered if set((small * large).names()) & {*whole}]
    rows = [("sizes", f"{', '.join(whole)}: all integers of at least 1" if whole else ""),
            ("bytes", f"{', '.join(rational)}: all positive rationals" if rational else ""),
            ("whole", f"{', '.join(quotients)}, since sizes divide" if quotients else ""),
            ("ordered", ", ".join(orders)), ("fixed", ", ".join(fixed))]
    return [(kind, readable(text)) for kind, text in rows if text]


def _signs(text: str) -> str:
    for written, sign in (("<=", "≤"), (">=", "≥"), ("==", "=")):
        text = text.replace(written, sign)
    return text


def _exact(value: Fraction) -> str:
    return number(int(value)) if value.denominator == 1 else str(value)


def document(answer: Answer, claim: Claim, names: tuple[str, str], model: str, hypotheses: Iterable[str],
             crossing: tuple[str, Sequence[Formula]] | None = None) -> dict[str, Any]:
    """The answer as a JSON object (version 1); sizes and values are exact, as text."""
    return {
        "version": 1, "model": model, "strategies": list(names), "verdict": str(answer.verdict),
        "claim": {"left": claim.left, "relation": claim.relation, "right": claim.right, "iff": claim.iff or None},
        "left": answer.decisions[0].left.to_json(), "right": answer.decisions[0].right.to_json(),
        "decisions": [{
            "relation": d.relation, "where": [c.text for c in d.given], "verdict": str(d.verdict), "method": d.method,
            "sizes": _texts(d.sizes), "values": [str(v) for v in d.values] if d.values else None,
        } for d in answer.decisions],
        "over": {"free": list(answer.decisions[0].free), "fixed": _texts(answer.decisions[0].over.fixed),
                 "whole": [str(q) for q in answer.decisions[0].over.whole],
                 "ordered": [[str(a), str(b)] for a, b in answer.decisions[0].over.ordered]},
        "hypotheses": list(hypotheses),
        "crossing": {"symbol": crossing[0], "values": [str(f.expr) for f in crossing[1]]} if crossing else None,
    }


def _texts(sizes: Mapping[str, Fraction]) -> dict[str, str]:
    return {n: str(v) for n, v in sizes.items()}
