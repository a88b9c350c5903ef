"""Every rule of the prover names what stands behind it; what it names is there, and on the page."""

from __future__ import annotations

from pathlib import Path

import pytest

import placealg as pa
from placealg.prover.backed import OBLIGATIONS, STATES, TENSORS
from placealg.prover.calculus.transfer import RULES
from placealg.prover.ops.redistributions import MOVES
from placealg.strategy.spec import overlay

ROOT = Path(__file__).parents[2]


def stands(name: str, proofs: Path) -> bool:
    """Whether a theorem, or an essay, is there."""
    file, _, theorem = name.partition(": ")
    if file == "no theorem":
        return bool(theorem)
    if not theorem:
        return (proofs / "theorems" / file).exists()
    text = (proofs / "coq" / file).read_text(encoding="utf-8")
    return any(f"{word} {theorem} " in text for word in ("Theorem", "Lemma", "Corollary"))


def table() -> str:
    """All rows, in Markdown."""
    rows = ["| rule | of | stands on |", "|---|---|---|"]
    for of, names in (("states", STATES), ("tensors", TENSORS), ("obligations", OBLIGATIONS)):
        rows += [f"| `{rule}` | {of} | {', '.join(n if n.startswith('no theorem') else f'`{n}`' for n in found)} |"
                 for rule, found in names.items()]
    return "\n".join(rows) + "\n"


def test_every_rule_has_a_row() -> None:
    assert set(STATES) == set(RULES) and set(TENSORS) == set(MOVES)
    proved = pa.prove(pa.derive(overlay(pa.zero3(), {"overlap": {"waits": "fsdp2"}}), pa.abstract()))
    assert set(OBLIGATIONS) == {v.id for v in proved.obligations}


@pytest.mark.parametrize("name", sorted({n for of in (STATES, TENSORS, OBLIGATIONS) for names in of.values()
                                         for n in names}))
def test_what_a_row_names_is_there(name: str) -> None:
    assert stands(name, ROOT / "proofs")


def test_a_name_of_nothing_stands_for_nothing() -> None:
    assert not stands("Rules.v: gathered_soun", ROOT / "proofs") and not stands("sepa.py", ROOT / "proofs")


def test_the_page_has_the_table() -> None:
    assert table() in (ROOT / "docs" / "proofs.md").read_text(encoding="utf-8")
