"""Positions: what is made is read back, and nothing is taken for another kind."""

from __future__ import annotations

from itertools import product

from placealg.prover.calculus import positions
from placealg.prover.calculus.positions import DEVICE, OWNER, PEER, UNIT, Position

EVERY = (DEVICE, UNIT, PEER, OWNER, positions.owner("even"), positions.owner("mine", "dp"), positions.at("seq"),
         positions.drawn("seq", "mine", "dp"), positions.path_index("ffn"), positions.stage("layer"),
         positions.neighbour(positions.stage("layer")), positions.rank(0), positions.rank(7), positions.example(1))
"""A position of each kind."""


def kinds(position: Position) -> tuple[bool, ...]:
    """Which readers know a position as theirs."""
    return (positions.is_rank(position), positions.is_owner(position), position.startswith(positions.stage("")),
            positions.is_contracted(position), bool(positions.dim_of(position)))


def test_positions_of_different_kinds_have_different_names() -> None:
    assert len(set(EVERY)) == len(EVERY)
    assert all(sum(kinds(p)) <= 1 for p in EVERY)
    assert [sum(found) for found in zip(*map(kinds, EVERY), strict=True)] == [2, 3, 2, 1, 2]


def test_which_dim_a_position_is_the_owner_of() -> None:
    assert positions.dim_of("own:own") == positions.dim_of("op/seq") == positions.dim_of("stage:layer") == ""
    assert positions.contracted_dim(positions.behind("op", {"seq"}.__contains__)(positions.at("seq"))) == "seq"
    assert positions.contracted_dim(positions.path_index("seq", 2)) == "seq"


def test_another_element_and_any_element() -> None:
    mine = positions.owner("zigzag")
    assert [f(mine) for f in (positions.of_another, positions.of_any)] == ["other:zigzag", "any:zigzag"]
    assert [f(UNIT) for f in (positions.of_another, positions.of_any)] == ["unit", "unit"]
    assert positions.of_the_first(positions.of_another(mine)) == mine
    assert {positions.layout_of(f(mine)) for f in (positions.of_another, positions.of_any, str)} == {"zigzag"}


def test_a_position_that_differs_from_rank_to_rank_is_taken_at_one_rank() -> None:
    for position, there in product(EVERY, (DEVICE, PEER, positions.rank(3))):
        taken = positions.elsewhere(position, "dp", there)
        assert positions.elsewhere(position, "tp", there) == position
        assert positions.varies(taken) == ""
        assert (taken != position) == (positions.varies(position) == "dp")
        order, axis, rank = positions.taken_at(taken)
        assert (axis, rank) == (("dp", there) if taken != position else ("", ""))
        assert f"{order}~dp" == position if axis else order == position


def test_names_are_changed_at_the_rank_of_a_position_too() -> None:
    changed = positions.inside(lambda p: positions.at("keys") if p == "at:seq" else p)
    taken = positions.elsewhere(positions.drawn("seq", "mine", "dp"), "dp", positions.at("seq"))
    assert changed(taken) == "at:seq!mine^dp=at:keys"
    assert changed(changed(taken)) == changed(taken)
