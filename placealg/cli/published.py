"""`placealg explain published`, and of one published number: findings as rows, as a page, as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from placealg.check.published import DIFFERS, KINDS, ClaimFinding, claims, find
from placealg.check.steps import StepFinding, find_steps, published_steps
from placealg.cli.output import print_json, print_lines, width
from placealg.cost.formula import Formula, json_number
from placealg.mesh import SYMBOLS
from placealg.progress import each
from placealg.render import steps as steps_page
from placealg.render.published import PublishedRow, page_of, table_of
from placealg.render.text_layout import line
from placealg.render.values import plain_number

ALL = "published"
"""What is explained as the table of all published numbers."""

STEPS = "steps"
"""What is explained as the table of all published steps."""

_DIGITS = 4


def names() -> tuple[str, ...]:
    """What can be explained here: the tables, each published number, and each published step."""
    return (ALL, STEPS, *claims(), *(step.id for step in published_steps()))


def explain_published(name: str, as_json: bool) -> None:
    """Print a table, or the page of one number or step."""
    chosen = [step for step in published_steps() if name in (STEPS, step.id)]
    if chosen:
        _explain_steps(name, list(find_steps(each(chosen, lambda step: step.id))), as_json)
        return
    asked = [c for c in claims().values() if name in (ALL, c.id)]
    findings = [find(c) for c in each(asked, lambda claim: claim.id)]
    if as_json:
        print_json({"version": 1, "published": [document(f) for f in findings]})
    elif name == ALL:
        told = f"{len(published_steps())} published steps, each beside its bound: placealg explain {STEPS}"
        print_lines([*table_of([row(f) for f in findings], KINDS, width()), (), line(told)])
    else:
        found = row(findings[0])
        print_lines(page_of(found._replace(ours=found.ours + unit(findings[0])), derivation(findings[0]), width()))


def _explain_steps(name: str, findings: list[StepFinding], as_json: bool) -> None:
    if as_json:
        print_json({"version": 1, "steps": [step_document(f) for f in findings]})
    elif name == STEPS:
        print_lines(steps_page.table_of(findings, width()))
    else:
        print_lines(steps_page.page_of(findings[0], width()))


def step_document(finding: StepFinding) -> dict[str, Any]:
    """A published step as a JSON object, times in seconds."""
    step = finding.step
    return {"id": step.id, "title": step.title, "source": step.source, "model": step.model, "strategy": step.strategy,
            "machine": step.machine, "chunks": step.chunks, "sizes": {n: json_number(v) for n, v in step.sizes.items()},
            **{key: {"exact": str(value), "value": float(value)} for key, value in (
                ("printed", step.seconds), ("bound", finding.bound), ("estimate", finding.estimate),
                ("ratio", finding.ratio))},
            "holds": finding.holds}


def row(finding: ClaimFinding) -> PublishedRow:
    """A finding as a row of the table."""
    claim = finding.claim
    figure = claim.printed if finding.printed.if_known() is not None else finding.printed.text()
    ours = written(finding.at_sizes, len(claim.printed.partition(".")[2]) + 2)
    return PublishedRow(claim.id, claim.claim, claim.source, claim.kind, ours, _grouped(figure) + unit(finding),
               written(finding.ratio, _DIGITS), finding.verdict, finding.verdict != DIFFERS, claim.why, claim.instead)


def unit(finding: ClaimFinding) -> str:
    """The claim's unit, to stand behind a figure."""
    said = finding.claim.unit
    return f" × {said}" if said[:1].isdigit() else f" {said}" if said else ""


def derivation(finding: ClaimFinding) -> Iterator[tuple[str, str]]:
    """How a number is found: what is read of which program at which sizes, or the formula that is evaluated."""
    claim = finding.claim
    if claim.formula:
        yield "formula", claim.formula
    else:
        terms = claim.terms.removeprefix("not ")
        grow = "that grow" if terms == claim.terms else "that do not grow"
        said = ((claim.beside, f"beside {claim.beside}"), (terms, f"terms {grow} with {terms}"),
                (claim.leading, f"leading in {claim.leading}"), (claim.limit, f"as {claim.limit} grows"),
                (claim.convention.removeprefix("exact"), claim.convention))
        options = [text for value, text in said if value]
        strategy = " ".join(claim.strategy.split())
        yield "program", f"{strategy} on {claim.model}" if strategy else claim.model
        if claim.stage:
            yield "stage", claim.stage
        yield "quantity", ", ".join([claim.quantity, *options])
        if finding.ours != finding.at_sizes:
            yield "in symbols", finding.ours.text()
    default = {n: v for n, v in finding.ours.values.items() if n in SYMBOLS and SYMBOLS[n].default is not None
               and n in finding.ours.names and n not in (*finding.printed.names, *claim.sizes)}
    for name, sizes in (("at", claim.sizes), ("by default", default)):
        if sizes:
            yield name, ", ".join(f"{n} = {plain_number(v)}" for n, v in sizes.items())


def document(finding: ClaimFinding) -> dict[str, Any]:
    """A finding as a JSON object."""
    claim = finding.claim
    said = {"strategy": claim.strategy, "beside": claim.beside, "model": claim.model, "stage": claim.stage,
            "quantity": claim.quantity, "terms": claim.terms,
            "leading": claim.leading, "limit": claim.limit} if claim.quantity else {
            "formula": claim.formula}
    return {"id": claim.id, "claim": claim.claim, "source": claim.source, "kind": claim.kind,
            **{key: value for key, value in said.items() if value}, "convention": claim.convention,
            "sizes": {n: json_number(v) for n, v in claim.sizes.items()}, "unit": claim.unit,
            "ours": _leaf(finding.at_sizes), "printed": _leaf(finding.printed), "ratio": _leaf(finding.ratio),
            "verdict": finding.verdict, "why": claim.why or None, "instead": claim.instead or None}


def written(formula: Formula, digits: int) -> str:
    """A formula's text, or its number to so many decimals.

    >>> written(Formula.parse("1005/32", "1"), 3), written(Formula.parse("6738415616", "1"), 2)
    ('31.406', '6,738,415,616')
    """
    value = formula.if_known()
    if value is None:
        return formula.text()
    return f"{value:,}" if isinstance(value, int) else f"{float(value):,.{digits}f}".rstrip("0").rstrip(".")


def _grouped(text: str) -> str:
    """A whole number with its thousands apart, any other text as it is."""
    return f"{int(text):,}" if text.isdigit() else text


def _leaf(formula: Formula) -> dict[str, Any]:
    value = formula.if_known()
    return {"expr": None if formula.expr is None else str(formula.expr),
            "value": None if value is None else json_number(value)}
