"""Inserted events whose results nothing reads, held against runs in which other numbers stand for those results.

A run of the simulator, which knows nothing of who reads what, is told apart from one in which everything that the
inserted event writes is noise. If both are equal in all that is observed, nothing reads what the event makes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest

from placealg.cases.case import read_case
from placealg.errors import InputError
from placealg.models.backward import GRAD
from placealg.simulator import Setting, execute, operate, run
from placealg.simulator.box import Box
from placealg.simulator.field import PRIME, Residues, element_type
from placealg.simulator.machine import Machine
from placealg.simulator.setting import fewest_layers
from placealg.simulator.store import Store
from placealg.step.edit import edit
from placealg.step.event import LOOPED, Event
from placealg.step.lint import unread
from placealg.step.program import Step

PROGRAMS = (("dp*tp", "gpt"), ("zero1*tp_sp", "gpt"), ("zero3", "mlp"), ("dp*cp_ring", "gpt"), ("zero1*pp", "mlp"),
            ("dp*offload_activations", "gpt"), ("dp*recompute_full", "gpt"))


class Noise:
    """Numbers that stand for what one event of a run writes."""

    def __init__(self, path: str) -> None:
        self.path, self.draw, self.on = path, np.random.default_rng(7), False

    def box(self, box: Box | None) -> Box | None:
        """Other numbers of the same indices, while the event runs."""
        if box is None or not self.on:
            return box
        return Box(box.extent, self.draw.integers(1, PRIME, size=box.numbers.shape).astype(element_type()))


class Table(dict[int, Any]):
    """A rank's elements of a value, which become noise where the event writes them."""

    noise: Noise

    def __setitem__(self, element: int, number: Any) -> None:
        if self.noise.on:
            number = type(number)(int(self.noise.draw.integers(2, 10**6))) if not isinstance(number, Residues) else (
                Residues(self.noise.draw.integers(1, PRIME, size=np.shape(number.numbers))))
        super().__setitem__(element, number)

    def __deepcopy__(self, _memo: Any) -> Table:
        twin = Table(self)
        twin.noise = self.noise
        return twin


class Observed:
    """A watch that notes everything and complains of nothing."""

    def __init__(self, states: Any) -> None:
        self.states, self.observed, self.seen = states, 0, list[Any]()
        LAST.append(self)

    def parameter(self, machine: Machine, event: Event, rank: int, slot: Any, name: str, box: Box | None,
                  _missing: Any) -> None:
        self.seen.append((event.path, rank, slot, name, box and box.numbers.tolist()))

    def mask(self, _machine: Machine, event: Event, rank: int, _op: Any, box: Box) -> None:
        self.seen.append((event.path, rank, box.numbers.tolist()))

    def losses(self, _machine: Machine, event: Event, rank: int, _of: tuple[str, int], box: Box | None) -> None:
        self.seen.append((event.path, rank, box and box.numbers.tolist()))

    def stream(self, *_: Any) -> None:
        pass

    scale = stream

    def stored(self, _machine: Machine, event: Event, rank: int, element: int, number: Any) -> None:
        self.seen.append((event.path, rank, element, repr(number)))

    def result(self, machine: Machine) -> None:
        for key, tables in sorted(machine._tables.items()):
            if key[1] in ("weight", "master", "moments", "average"):
                self.seen.append((key, [sorted((k, repr(v)) for k, v in held.items()) for held in tables]))

    def end(self) -> None:
        pass


LAST: list[Observed] = []


def observed(step: Step, noise: Noise) -> list[Any]:
    """All that is observed of a run in which the event of `noise`, if any, writes noise."""
    sizes = {a.name: a.size or 2 for a in step.reference.mesh}
    setting = Setting.equal(step.reference, sizes, 2, layers=fewest_layers(step.reference, sizes))
    act, table, write = execute._act, Machine.table, Store.write
    replaced, contribute, made = Store.replace, Store.contribute, operate._made

    def acting(m: Machine, event: Event) -> None:
        noise.on = event.path == noise.path
        act(m, event)
        noise.on = False

    def tables(self: Machine, *key: Any) -> Any:
        found = table(self, *key)
        for rank, held in enumerate(found):
            if not isinstance(held, Table):
                found[rank] = Table(held)
                found[rank].noise = noise
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execute, "_act", acting)
        patch.setattr(Machine, "table", tables)
        patch.setattr(Store, "write", lambda self, name, label, box: write(self, name, label, noise.box(box)))
        patch.setattr(Store, "replace", lambda self, name, label, box: replaced(self, name, label, noise.box(box)))
        patch.setattr(Store, "contribute", lambda self, name, label, box: contribute(
            self, name, label, noise.box(box)))
        patch.setattr(operate, "_made", lambda at, here, operands, result, kept: made(
            at, here, operands, result, {name: noise.box(box) or box for name, box in kept.items()}))
        patch.setattr(run, "Comparison", Observed)
        run.simulate(step, setting, steps=2)
    return LAST.pop().seen


@cache
def base(word: str, model: str) -> Step:
    return read_case(word, model, []).step


def drawn(draw: Random, programs: Sequence[tuple[str, str]]) -> tuple[Step, Event] | None:
    """A program with an event inserted somewhere in its loop; None if what was drawn is no program."""
    step = base(*draw.choice(programs))
    graph, axes = step.reference.graph, step.reference.mesh.names
    around = [e for e in step.events if e.phase in LOOPED]
    at = draw.choice(around)
    near = [e for e in around if e.on_tensor and e.unit == at.unit and e.tensor in graph.tensors] or [
        e for e in around if e.on_tensor and e.tensor in graph.tensors]
    of = draw.choice(near)
    name = draw.choice([of.tensor, *(v.tensor for v in of.operands)])
    tensor, gradient = graph.tensors[name], draw.random() < 0.4
    labels = {v.label for e in around for v in (*e.operands, e.acted_on) if v.tensor.removesuffix(GRAD) == name}
    label = draw.choice(["", draw.choice(axes), *labels])
    place = f"S({draw.choice([*tensor.dims] or ['batch'])})"
    verb = draw.choice(["slice", "all_gather", "all_reduce", "reduce_scatter", "scale", "pad", "compute", "fetch"])
    loop = step.unit_of(at)
    table: dict[str, Any] = {"verb": verb, "value": name + GRAD * gradient, "unit": loop}
    if verb == "scale":
        table["divisor"] = 3
    elif verb not in ("compute", "fetch"):
        table["axes"] = [draw.choice(axes)]
    table |= {"slice": {"to": place}, "reduce_scatter": {"to": place}, "all_gather": {"from": place},
              "pad": {"from": place}, "all_reduce": {"op": "sum"}}.get(verb, {})
    table |= {"version": label} if label and verb != "compute" else {}
    if draw.random() < 0.15:
        groups = [g.name for g in step.reference.groups if g.unit == loop] or [""]
        table = draw.choice([{"verb": "reduce", "value": "grad", "group": draw.choice(groups), "axes": [axes[0]]},
                             {"verb": "scale", "value": "grad", "group": draw.choice(groups), "divisor": 3}])
    side = draw.choice(["before", "after"])
    try:
        step = edit(step, **{"insert": table, side: at.path})
        inserted, = (e for e in step.events if e.rule.name == "edit")
    except (InputError, ValueError):
        return None
    return step, inserted


def alone(step: Step, event: Event) -> bool:
    """Whether nothing observed depends on an event of a program: neither on what it makes, nor on its being there.

    What the event itself reads is not counted.
    """
    without = replace(step, events=tuple(e for e in step.events if e is not event))
    plain, noisy, left = ([seen for seen in observed(one, noise) if seen[0] != event.path] for one, noise in (
        (step, Noise("")), (step, Noise(event.path)), (without, Noise(""))))
    return plain == noisy == left


def wrong(seed: int, *programs: tuple[str, str]) -> str:
    """The draw for which `unread` and the runs disagree; "" if they agree, or no program was drawn."""
    found = drawn(Random(seed), programs)
    try:
        agree = found is None or (found[1] in unread(found[0], [found[1]])) == alone(*found)
    except InputError:  # no run: a dim of a place that is not there
        agree = True
    return "" if agree or found is None else f"{seed}: {found[1].path} {found[1].version} in {found[0]}"


@pytest.mark.parametrize("seed", range(16))
def test_an_inserted_event_is_told_iff_no_run_depends_on_it(seed: int) -> None:
    assert not wrong(seed, ("zero3", "mlp"), ("zero1*pp", "mlp"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 160))
def test_an_inserted_event_of_a_transformer_is_told_iff_no_run_depends_on_it(seed: int) -> None:
    assert not wrong(seed, *PROGRAMS)


SLICE = {"verb": "slice", "value": "data.tokens", "axes": ["tp"], "to": "S(batch)", "layout": "loader(tp)"}
EXAMPLES: Mapping[str, tuple[str, str, dict[str, Any], bool]] = {
    "data whose copy was taken before": ("dp*tp", "gpt", {
        "insert": SLICE, "after": "forward.data.tokens.slice[dp]"}, True),
    "data whose copy is taken later": ("dp*tp", "gpt", {
        "insert": SLICE, "before": "forward.data.tokens.slice[dp]"}, False),
    "a copy that derives from the one that is read": ("zero3", "mlp", {
        "insert": {"path": "forward.data.input.slice[dp]", "to": "S(batch)", "version": "dp/dp"},
        "after": "forward.data.input.slice[dp]"}, True),
    "a gradient that is whole already": ("dp*tp", "gpt", {
        "insert": {"path": "backward.layer.mlp.up.grad.scale", "divisor": 2},
        "after": "backward.layer.mlp.up.grad.compute"}, True),
    "what the next instance reads": ("dp*tp", "gpt", {
        "insert": {"path": "forward.layer.mlp.down.biased.scale", "divisor": 2},
        "after": "forward.layer.mlp.down.biased.compute"}, False),
    "a gradient that is not there yet": ("dp", "abstract", {
        "insert": {"path": "backward.layer.weight.grad.scale", "divisor": 2},
        "before": "backward.layer.compute"}, True),
    "a gradient after it was added": ("dp", "abstract", {
        "insert": {"path": "backward.layer.weight.grad.scale", "divisor": 2},
        "after": "backward.layer.weight.grad_sum.accumulate"}, True),
    "a gradient before it is added": ("dp", "abstract", {
        "insert": {"path": "backward.layer.weight.grad.scale", "divisor": 2},
        "before": "backward.layer.weight.grad_sum.accumulate"}, False),
    "a sum of gradients behind the update": ("dp", "abstract", {
        "insert": {"path": "update.layer.weight.grad_sum.scale", "divisor": 2},
        "after": "update.layer.weight.update"}, True),
    "a loss whose backward has started": ("dp", "abstract", {
        "insert": {"path": "backward.loss.scale#2", "divisor": 2}, "after": "backward.layer.compute"}, True),
    "a norm that is taken anew": ("zero1", "abstract", {
        "insert": {"path": "update.norm.all_reduce[dp]"}, "before": "update.layer.weight.norm"}, True),
    "a norm that is summed twice": ("zero1", "abstract", {
        "insert": {"path": "update.norm.all_reduce[dp]"}, "after": "update.norm.all_reduce[dp]"}, False),
}
"""What is inserted where, and whether nothing reads it."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_told_and_what_is_not(name: str) -> None:
    word, model, table, told = EXAMPLES[name]
    step = edit(base(word, model), **table)
    inserted = [e for e in step.events if e.rule.name == "edit"]
    assert len(inserted) == 1 and bool(unread(step, inserted)) == told


def test_what_inserted_events_alone_read_is_told() -> None:
    first = {"insert": {"path": "forward.data.input.slice[dp]", "to": "S(batch)", "version": "dp/dp"},
             "after": "forward.data.input.slice[dp]"}
    then = {"insert": {"path": "forward.data.input.all_gather[dp]", "from": "S(batch)", "version": "dp/dp/dp"},
            "after": "forward.data.input.slice[dp]"}
    step = edit(base("zero3", "mlp"), first, then)
    inserted = tuple(e for e in step.events if e.rule.name == "edit")
    assert len(inserted) == 2 and unread(step, inserted) == inserted
