"""One owner along an axis serves all states: what is drawn and stored, element by element, beside the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import placealg as pa
from placealg.frozen import FrozenMap
from placealg.render.mesh_drawing import held
from placealg.simulator import device
from placealg.simulator.machine import Machine
from placealg.simulator.run import Comparison, Trees, go_through, switch_on, train
from placealg.simulator.setting import ELEMENTS, Setting
from placealg.step.checkpoint import Checkpoint, Sizes, checkpoint, lines_of
from placealg.step.checkpoint import held as stored_by
from placealg.step.lower import lowered
from placealg.strategy.file import parse_strategy_file

AXES = ("x", "y", "z")
"""The axes of a mesh, major to minor; all split the batch."""

Over = Mapping[str, frozenset[str]]
"""State -> the axes over which it is sharded."""

NODE_LOCAL: Over = {"parameters": frozenset("y"), "optimizer": frozenset("xy"), "gradients": frozenset("y")}
CROSSING: Over = {"parameters": frozenset("x"), "optimizer": frozenset("y"), "gradients": frozenset("xy")}
APART: Over = {"parameters": frozenset("y"), "optimizer": frozenset("x"), "gradients": frozenset("y")}


def strategy(over: Over) -> pa.Strategy:
    def modes(state: str) -> str:
        letter = "S*" if state == "parameters" else "S"
        return ", ".join(f'{a} = "{letter if a in over[state] else "R"}"' for a in AXES)

    lines = ["[mesh]", *(f'{a} = "symbolic"' for a in AXES), "[dims]", *(f'{a} = ["batch"]' for a in AXES), "[states]",
             *(f"{state} = {{ {modes(state)} }}" for state in over)]
    return parse_strategy_file("\n".join(lines)).strategy


overs = st.fixed_dictionaries(dict.fromkeys(NODE_LOCAL, st.frozensets(st.sampled_from(AXES))))
meshes = st.fixed_dictionaries(dict.fromkeys(AXES, st.integers(1, 3)))


def owners(found: Mapping[str, tuple[frozenset[str], Mapping[tuple[int, ...], frozenset[int]]]], length: int,
           mesh: Mapping[str, int]) -> dict[tuple[str, int], int]:
    """(axis, element) -> its owner: the one that explains who holds it, of every state (its axes, rank -> elements)."""
    every: dict[tuple[str, int], set[int]] = {}
    for axes, at in found.values():
        for element in range(length):
            holders = [rank for rank, elements in at.items() if element in elements]
            told = {a: {rank[AXES.index(a)] for rank in holders} for a in axes}
            assert all(len(ranks) == 1 for ranks in told.values()), (axes, element, holders)
            assert len(holders) == len(at) // prod(mesh[a] for a in axes)
            for a, ranks in told.items():
                every.setdefault((a, element), set()).update(ranks)
    assert all(len(ranks) == 1 for ranks in every.values()), every
    return {key: ranks.pop() for key, ranks in every.items()}


def ranks(mesh: Mapping[str, int]) -> list[tuple[int, ...]]:
    return list(product(*(range(mesh[a]) for a in AXES)))


@settings(max_examples=40)
@given(over=overs, mesh=meshes)
@example(over=NODE_LOCAL, mesh={"x": 2, "y": 2, "z": 1})
@example(over=CROSSING, mesh={"x": 2, "y": 3, "z": 2})
@example(over=APART, mesh={"x": 2, "y": 3, "z": 2})
def test_rows_are_drawn_with_one_owner_along_an_axis(over: Over, mesh: dict[str, int]) -> None:
    said, length = strategy(over), prod(mesh.values())
    drawn = {}
    for state, axes in over.items():
        at = {}
        for rank in ranks(mesh):
            parts = held(said, state, dict(zip(AXES, rank, strict=True)), mesh)[0]
            rows = [(round(p.top * length), round(p.bottom * length)) for p in parts]
            at[rank] = frozenset(k for top, bottom in rows for k in range(top, bottom))
            assert sum(p.bottom - p.top for p in parts) * prod(mesh[a] for a in axes) == pytest.approx(1)
        drawn[state] = (axes, at)
    owners(drawn, length, mesh)


def of(over: Over) -> tuple[pa.Strategy, Checkpoint]:
    said = strategy(over)
    return said, checkpoint(pa.derive(said, pa.abstract()), said, pa.abstract())


def stored(found: Checkpoint, mesh: Mapping[str, int], length: int) -> dict[str, Any]:
    """Value -> the axes over which it is stored, and what every rank has of it."""
    sizes = Sizes(FrozenMap(mesh), FrozenMap({"Psi": Fraction(length)}))
    told = {}
    for item in found.items:
        at = {}
        for rank in ranks(mesh):
            (spans,) = stored_by(item, dict(zip(AXES, rank, strict=True)), sizes, lines_of(item)).values()
            at[rank] = frozenset(k for low, high in spans for k in range(low, high))
        told[item.value] = (frozenset(item.cut), at)
    return told


@settings(max_examples=15)
@given(over=overs, mesh=meshes, length=st.integers(1, 30))
@example(over=NODE_LOCAL, mesh={"x": 2, "y": 2, "z": 1}, length=8)
@example(over=CROSSING, mesh={"x": 2, "y": 3, "z": 2}, length=13)
@example(over=APART, mesh={"x": 2, "y": 3, "z": 2}, length=13)
def test_elements_are_stored_with_one_owner_along_an_axis(over: Over, mesh: dict[str, int], length: int) -> None:
    owners(stored(of(over)[1], mesh, length), length, mesh)


@settings(max_examples=6)
@given(over=overs, mesh=st.fixed_dictionaries(dict.fromkeys(AXES, st.integers(1, 2))))
@example(over=NODE_LOCAL, mesh={"x": 2, "y": 2, "z": 1})
@example(over=CROSSING, mesh={"x": 2, "y": 2, "z": 1})
@example(over=APART, mesh={"x": 2, "y": 2, "z": 1})
def test_the_simulator_stores_what_is_counted(over: Over, mesh: dict[str, int]) -> None:
    """With the owners that are read off the counted blocks every rank's file has exactly these elements."""
    said, found = of(over)
    told = stored(found, mesh, len(ELEMENTS))
    at = {("own", axis, element): rank for (axis, element), rank in owners(told, len(ELEMENTS), mesh).items()}
    step = lowered(pa.derive(said, pa.abstract()))
    plain = Setting.equal(step.reference, mesh, 1, 1)
    setting = Setting(plain.sizes, 1, plain.counts, plain.layers, at)
    states = device.trajectory(step.reference, setting, 1)
    machine = Machine(step, setting, Comparison(states))
    switch_on(machine, {s: states[0].weight[s] for s in machine.slots})
    go_through(machine, step.tree("init"))
    files = train(machine, Trees.of(step), 1)[-1][1]
    names = ranks(mesh)
    for (value, group, _), tables in files.items():
        if group:
            assert {rank: frozenset(table) for rank, table in zip(names, tables, strict=True)} == told[value][1], value


@settings(max_examples=10)
@given(over=overs, mesh=meshes, length=st.integers(1, 30))
@example(over=APART, mesh={"x": 2, "y": 3, "z": 2}, length=13)
@example(over={"parameters": frozenset("xy"), "optimizer": frozenset("yz"), "gradients": frozenset()},
         mesh={"x": 2, "y": 1, "z": 2}, length=3)
def test_a_state_is_one_block_unless_others_cross_it(over: Over, mesh: dict[str, int], length: int) -> None:
    """Only where two states have axes of their own, and a third one is sharded over some of both."""
    sets = [*over.values()]
    crossed = any(a - b and b - a and c & (a - b) and c & (b - a) for a in sets for b in sets for c in sets)
    for axes, at in stored(of(over)[1], mesh, length).values():
        for elements in at.values():
            assert crossed or not axes or not elements or max(elements) - min(elements) == len(elements) - 1
