"""Replayed queries as text: what each solver says to each, and how many agree."""

from __future__ import annotations

from collections.abc import Iterable

from placealg.prover.evidence.replay import AGREE, DISAGREE, NO_ANSWER, Rechecked, Replay
from placealg.prover.evidence.solver import UNKNOWN
from placealg.render.text_layout import Cell, Line, Span, bold, dim, indent, line, prose, table

MARKS = {AGREE: Span("✓", "green"), DISAGREE: Span("✗", "bold red"), NO_ANSWER: Span("?", "yellow")}


UNKNOWABLE = ("whether these are all of the prover's questions on this program, --regenerate alone tells")
REGENERATED = "its program was proved again, and gives these very files"


def rechecked(found: Rechecked, path: str, width: int) -> list[Line]:
    """A certificate that was rechecked: what was edited, or every query and the totals."""
    claim = ", ".join(str(found.manifest[k]) for k in ("verdict", "class") if found.manifest.get(k))
    about = f"{found.manifest.get('strategy', '?')} on {found.manifest.get('model', '?')}"
    known = REGENERATED if found.regenerated else UNKNOWABLE
    head = prose(f"{path}: {about}, {claim}; {known}", width, "bold") if found.manifest and not found.edited else \
        [line(bold(path), f": {about}, {claim}" if found.manifest else "")]
    if found.edited:
        rows: list[list[Cell]] = [[line(MARKS[DISAGREE], " ", name), what] for name, what in found.edited.items()]
        return [*head, (), *indent(table(rows, "ll", width - 2, wrap={1: 20})), (),
                *prose("The certificate is not as it was written; nothing was replayed.", width)]
    seal = f"manifest SHA-256 {found.sha256}, to be held against the one that `prove` printed"
    return [*head, (), *indent(_files(found.replays, width - 2)), (), *totals(found, width), *prose(seal, width, "dim")]


def totals(found: Rechecked, width: int) -> list[Line]:
    """Of the files that ask something how many agree, how many ask nothing, what the proofs rest on, who was asked."""
    counts = {outcome: found.count(outcome) for outcome in (AGREE, DISAGREE, NO_ANSWER)}
    worst = next((o for o in (DISAGREE, NO_ANSWER) if counts[o]), AGREE)
    of = f"of {len(found.replays) + found.settled + found.undecided} files"
    rows: list[list[Cell]] = [[line(MARKS[worst], " ", dim("queries")),
                               f"{len(found.replays)} {of} ask something: {counts[AGREE]} agree, "
                               f"{counts[DISAGREE]} disagree, {counts[NO_ANSWER]} without an answer"]]
    if found.settled:
        rows.append([dim("  by construction"),
                     f"{found.settled} {of} ask nothing: what they say holds by how the program is built"])
    if found.undecided:
        rows.append([line(MARKS[NO_ANSWER], " ", dim("undecided")),
                     f"{found.undecided} {of} ask nothing: the prover left them open, and their headers say why"])
    proofs = [r.proof for r in found.replays if r.proof]
    if proofs:
        steps, holes = sum(p.steps for p in proofs), sum(p.holes for p in proofs)
        rows.append([dim("  proofs"), f"cvc5 gave {len(proofs)}, of {steps} steps, {holes} of them on trust"])
    rows.append([dim("  replayed by"), ", ".join(f"{name} {version}" for name, version in found.solvers.items())])
    return table(rows, "ll", width, wrap={1: 30})


def not_agreed(found: Rechecked, width: int) -> list[Line]:
    """The queries on which the solvers do not agree."""
    others = [r for r in found.replays if r.outcome != AGREE]
    return indent(_files(others, width - 2)) if others else []


def _files(replays: Iterable[Replay], width: int) -> list[Line]:
    """One line per query."""
    listed = list(replays)
    solvers = list(listed[0].answers) if listed else []
    rows: list[list[Cell]] = [[dim(h) for h in ("  query", "expected", *solvers, "proof steps", "holes", "")]]
    for replay in listed:
        proof = replay.proof
        said = [Span(a.status, "yellow" if a.status == UNKNOWN else "") for a in replay.answers.values()]
        size: list[Cell] = [str(proof.steps), str(proof.holes)] if proof else [dim("—"), ""]
        told = "" if replay.outcome == AGREE else replay.reason or replay.outcome
        rows.append([line(MARKS[replay.outcome], " ", replay.name.removesuffix(".smt2")), replay.expected or dim("—"),
                     *said, *size, told])
    return table(rows, "l" * (2 + len(solvers)) + "rrl", width, wrap={0: 30, 4 + len(solvers): 20})
