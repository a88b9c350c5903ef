"""Writes proofs/coq/Table.v: the Python tables and transfer rules, each row an equation that Coq has to compute.

    python tests/coq/coq_table.py             prints it
    python tests/coq/coq_table.py FILE        writes it to FILE

A row of REDISTRIBUTIONS that is changed or deleted, a wrong dual, or a transfer rule that answers otherwise makes a
file that Coq rejects; tests/coq/test_coq.py says so where the file kept is not the file written here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

from placealg import placement
from placealg.arith import ONE, Monomial
from placealg.frozen import FrozenMap
from placealg.placement import Kind
from placealg.prover.calculus.contribution import SIZE_ONE, Equality, Term, Value

TABLE = Path(__file__).resolve().parents[2] / "proofs" / "coq" / "Table.v"

EVENTS: Mapping[str, str] = {
    "none": "none", "scale 1/n": "scale", "slice": "slice", "zero-pad": "zero_pad", "all_gather": "all_gather",
    "all_reduce": "all_reduce", "reduce_scatter": "reduce_scatter", "all_to_all": "all_to_all",
}
"""Event, as the Python table writes it -> its constructor in Moves.v."""

POSITIONS: Mapping[str, str] = {"unit": "unit_rank", "own:own": "owner", "own:alt": "other_owner"}
"""Position, as the prover writes it -> its constructor in Rules.v."""

AXIS = "a"

HEAD = """\
(** The tie: the tables and rules that the Python code runs on, computed by Coq. Written by tests/coq/coq_table.py.

    What it backs: REDISTRIBUTIONS and DUAL of placealg/placement.py, and the rules [summed], [read_at], [reduced],
    [gathered] and [masked] of placealg/prover/calculus/contribution.py, for every value of one term on one axis. *)

From Placealg Require Import Sums Moves Rules.

(** A value of one term. *)
Definition one (n : nat) (at_rank : option position) (conditions : list (position * position))
    (held_by : option position) (defined_if : list side) : value :=
  {| terms := [{| sizes := n; stands := at_rank; given := conditions |}]; mask := held_by; sides := defined_if |}.
"""

WHOLE = """
(** No pair of different types is missing, and [S] to [S], where owners change, is there. *)

Definition same_kind (k k' : kind) : bool :=
  match k, k' with kI, kI | kR, kR | kP, kP | kS, kS => true | _, _ => false end.
Definition listed (k k' : kind) : bool :=
  existsb (fun row => same_kind (fst row) k && same_kind (snd row) k')%bool rows.
Definition needed (k k' : kind) : bool := (negb (same_kind k k') || same_kind k kS)%bool.
Definition every_kind := [kI; kR; kS; kP].
Example no_pair_is_missing :
  forallb (fun k => forallb (fun k' => negb (needed k k') || listed k k')%bool every_kind) every_kind = true := eq_refl.
"""


def kind(value: Kind) -> str:
    """The constructor of a kind."""
    return f"k{value.value}"


def duals() -> Iterator[str]:
    """One equation for each row of DUAL."""
    for one, two in placement.DUAL.items():
        yield f"Example dual_of_{one.value} : dual_kind {kind(one)} = {kind(two)} := eq_refl."


def rows() -> Iterator[str]:
    """Two equations for each row of REDISTRIBUTIONS: its event, and its backward event."""
    for row in placement.REDISTRIBUTIONS:
        pair, name = f"{kind(row.source)} {kind(row.target)}", f"{row.source.value}_to_{row.target.value}"
        yield f"Example {name} : event_of {pair} = {EVENTS[row.event]} := eq_refl."
        yield f"Example {name}_backward : backward_of {pair} = {EVENTS[row.backward]} := eq_refl."


def listed() -> str:
    """The pairs of types that have a row."""
    pairs = ";\n  ".join(f"({kind(row.source)}, {kind(row.target)})" for row in placement.REDISTRIBUTIONS)
    return f"Definition rows : list (kind * kind) := [\n  {pairs}]."


def option(position: str | None) -> str:
    return "None" if position is None else f"(Some {POSITIONS[position]})"


def pair(equality: Equality) -> str:
    _, p, q = equality
    return f"({POSITIONS[p]}, {POSITIONS[q]})"


def term(value: Term) -> str:
    """A term on one axis, whose coefficient is a power of the axis size."""
    sizes = dict(value.coefficient.powers).get(AXIS, 0)
    if sizes < 0 or value.coefficient != Monomial.of(AXIS) ** sizes:
        raise ValueError(f"{value.coefficient} is no power of {AXIS}")
    given = "; ".join(pair(e) for e in sorted(value.given))
    return f"{sizes} {option(value.at.get(AXIS))} [{given}]"


def contribution(value: Value) -> str:
    """A value on one axis."""
    masks = [position for _, position in sorted(value.mask)]
    if len(masks) > 1 or len(value.terms) != 1 or value.tags or value.garbage or not value.held:
        raise ValueError(f"Rules.v has no such value: {value}")
    sides = "; ".join("SizeOne" if e[1] == SIZE_ONE else f"Coincide {pair(e)}" for e in sorted(value.sides))
    return f"one {term(value.terms[0])} {option(masks[0] if masks else None)} [{sides}]"


def rules() -> Iterator[str]:
    """One equation for each rule on each value of one term: wherever it stands, whoever holds it."""
    places = (None, *POSITIONS)
    for k, (stands, mask) in enumerate(product(places, places)):
        at = FrozenMap({AXIS: stands} if stands else {})
        value = Value((Term(ONE, at),), frozenset({(AXIS, mask)} if mask else ()))
        before = contribution(value)
        yield _rule(f"reduced_{k}", f"reduced ({before})", value.reduced((AXIS,), ONE))
        for q, name in POSITIONS.items():
            yield _rule(f"gathered_{k}_{name}", f"gathered {name} ({before})", value.gathered({AXIS: q}))
            if mask is None:
                yield _rule(f"masked_{k}_{name}", f"masked {name} ({before})", value.masked([(AXIS, q)]))


def _rule(name: str, asked: str, answer: Value) -> str:
    return f"Example {name} :\n  {asked}\n  = {contribution(answer)} := eq_refl."


def table() -> str:
    """The whole file."""
    parts = ["(** Duals. *)", *duals(), "\n(** Rows, and their backward column. *)", *rows(), "", listed()]
    return "\n".join([HEAD, *parts]) + "\n" + WHOLE + "\n" + "\n".join(["(** Transfer rules. *)", *rules()]) + "\n"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(table(), encoding="utf-8")
    else:
        print(table(), end="")
