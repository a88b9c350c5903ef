"""The table of effects, held against the language and against the simulator, which does not read it.

Each table and each tensor of a machine tells what is read and written of it while one event is executed. What an
instance of a repeated unit finds of the instance before it is in no row.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from conftest import ROOT
from test_house import imports

from placealg.cases.case import read_case
from placealg.cost.held import _CHANGES
from placealg.models.backward import GRAD
from placealg.simulator import Setting, execute, simulate, tiers
from placealg.simulator.machine import Machine
from placealg.simulator.store import Name, Store
from placealg.step import graph
from placealg.step.effects import EFFECTS, Access, Holding, SubjectKind
from placealg.step.event import Event
from placealg.step.event_fields import holders, values_of
from placealg.step.lower import lowered
from placealg.step.program import Reference, Step
from placealg.step.verbs import VERBS

PROGRAMS = (("zero3*tp_sp", "gpt"), ("zero1*tp*pp", "gpt"), ("zero3*offload_optimizer", "abstract"),
            ("dp*offload_activations", "gpt"), ("zero1*cp_ring*ep", "moe"),
            ("proofs/refuted/hsdp_flag_within_replicas.toml", None),
            ("proofs/refuted/pytorch_22192.toml", None), ("proofs/refuted/average_before_publish.toml", None),
            ("proofs/refuted/loss_scale_of_each_rank.toml", None))


def test_every_verb_has_an_effect_on_all_that_it_applies_to() -> None:
    found = set()
    for word, model in PROGRAMS:
        reference = read_case(word, model, []).step.reference
        for verb in VERBS:
            for value in values_of(verb, reference):
                for group, unit in holders(value, verb, reference):
                    event = Event("forward", verb, value, group, unit)
                    if (verb, value) != ("free", "loss"):  # a region, of which nothing can be freed
                        assert event.effect.reads or event.effect.writes or verb == "free"
                    assert not group or event.effect.holds in _CHANGES, f"{verb} of {value}: what becomes of its share"
                    found |= {(verb, value), (verb, event.kind)}
    assert {*EFFECTS} - found == set()


def test_what_becomes_of_a_share_is_said_of_groups_alone() -> None:
    assert {effect.holds for effect in EFFECTS.values()} == {*_CHANGES, None} == {*Holding, None}
    of_others = (SubjectKind.GLOBAL, SubjectKind.TENSOR, SubjectKind.GRADIENT)
    assert all(effect.holds is None for (_, kind), effect in EFFECTS.items() if kind in of_others)


def test_the_simulator_does_not_read_the_table() -> None:
    for path in sorted((ROOT / "placealg/simulator").glob("*.py")):
        assert not imports(path.read_text()) & {"placealg.step.effects", "placealg.step.graph"}, path
        assert ".effect" not in path.read_text(), path


_OF_TENSORS = (SubjectKind.TENSOR, SubjectKind.GRADIENT)
NEVER_RUN: set[Any] = {
    ("compute", "activation"), ("all_gather", SubjectKind.GROUP), ("broadcast", SubjectKind.GLOBAL),
    ("slice", SubjectKind.GRADIENT), *itertools.product(("pad", "scale"), _OF_TENSORS)}
"""Rows of what is no table or tensor here (units run as ops, a loss is kept beside them), or in no derived program."""


class Touched:
    """What events were seen to read and to write: owner or none, value, tier."""

    def __init__(self) -> None:
        self.event: Event | None = None
        self.machine: Machine | None = None
        self.read: dict[Event, set[graph.Storage]] = defaultdict(set)
        self.written: dict[Event, set[graph.Storage]] = defaultdict(set)

    def reads(self, *storage: str) -> None:
        if self.event:
            self.read[self.event].add(storage)  # type: ignore[arg-type]

    def writes(self, *storage: str) -> None:
        if self.event:
            self.written[self.event].add(storage)  # type: ignore[arg-type]


class Spied(dict[int, Any]):
    """A rank's elements of one value, which tell who reads and who writes them."""

    touched: Touched
    storage: tuple[str, str, str]

    def tell(self) -> None:
        self.touched.reads(*self.storage)

    def __getitem__(self, element: int) -> Any:
        self.tell()
        return super().__getitem__(element)

    def get(self, element: int, default: Any = None) -> Any:
        self.tell()
        return super().get(element, default)

    def __contains__(self, element: object) -> bool:
        self.tell()
        return super().__contains__(element)

    def __len__(self) -> int:
        self.tell()
        return super().__len__()

    def __iter__(self) -> Iterator[int]:
        self.tell()
        return super().__iter__()

    def keys(self) -> Any:
        self.tell()
        return super().keys()

    def items(self) -> Any:
        self.tell()
        return super().items()

    def __setitem__(self, element: int, number: Any) -> None:
        self.touched.writes(*self.storage)
        super().__setitem__(element, number)

    def pop(self, element: int, default: Any = None) -> Any:
        self.touched.writes(*self.storage)
        return super().pop(element, default)


def told(method: Callable[..., Any], tell: Callable[..., None], gradient: str) -> Callable[..., Any]:
    """A method of a rank's tensors that tells of which one it is."""
    def telling(self: Store, of: tuple[str, int], *said: Any) -> Any:
        tell("", of[0] + gradient, "device")
        return method(self, of, *said)
    return telling


def spy(patch: pytest.MonkeyPatch, touched: Touched) -> None:
    """Let machines tell what they touch."""
    table, act, put = Machine.table, execute._act, tiers._put

    def spied(self: Machine, tier: str, value: str, group: str = "", instance: int = 0) -> Any:
        tables = table(self, tier, value, group, instance)
        for rank, held in enumerate(tables):
            if not isinstance(held, Spied):
                tables[rank] = Spied(held)
                tables[rank].touched, tables[rank].storage = touched, (group, value, tier or "device")
        return tables

    def acting(m: Machine, event: Event) -> None:
        touched.event, touched.machine = event, m
        act(m, event)
        touched.event = None

    def putting(m: Machine, event: Event, rank: int, tier: str, name: Name, *what: Any) -> None:
        if tier != "device":
            touched.writes("", event.tensor, tier)
        put(m, event, rank, tier, name, *what)

    patch.setattr(tiers, "_put", putting)
    patch.setattr(Machine, "table", spied)
    patch.setattr(execute, "_act", acting)
    for name, tell, gradient in (("read", touched.reads, ""), ("write", touched.writes, ""),
                                 ("contributions", touched.reads, GRAD), ("contribute", touched.writes, GRAD),
                                 ("replace", touched.writes, GRAD)):
        patch.setattr(Store, name, told(getattr(Store, name), tell, gradient))


def touched_by(step: Step) -> Touched:
    """What a run of a step touches, event by event."""
    touched = Touched()
    with pytest.MonkeyPatch.context() as patch:
        spy(patch, touched)
        sizes = {a.name: a.size or 2 for a in step.reference.mesh}
        simulate(step, Setting.equal(step.reference, sizes, 2), steps=1)
    return touched


SCALARS = ("norm", "skip", "count", "step", "rng")
PARTIAL = ("norm", "skip")
"""What every rank has once, on no tier; of these a whole one is the parts of all groups, each reduced in place."""


def plain(storages: Iterable[graph.Storage], reference: Reference) -> set[graph.Storage]:
    """Tensors without labels; a whole norm as its parts."""
    found = set()
    for group, value, tier in storages:
        groups = [g.name for g in reference.groups] if value in PARTIAL and not group else [group]
        found |= {(g, value.partition("@")[0], "device" if value in SCALARS else tier) for g in groups}
    return found


def beside(event: Event, reference: Reference) -> set[graph.Storage]:
    """What is in no row: what an op's forward kept, what an instance finds of the one before, what ends."""
    ops = reference.graph
    assert ops is not None
    names = {event.tensor} if event.effect.of_op and event.on_gradient else set()
    if event.verb == "assign":
        names |= {name + end for loop in ops.loops for name in (loop.first, loop.last) for end in ("", GRAD)
                  if loop.slot == event.tensor}
    if event.value == "loss" and event.verb == "compute":
        names |= {name for op in ops.ops if op.unit == event.unit for name in op.inputs}
    if event.verb == "free" and event.on_tensor:
        inside = [op for op in ops.ops if f"{op.region}.".startswith(f"{event.value}.")]
        names |= {event.value, *(n for op in inside for n in (op.output, *op.inputs))}
    return {("", name, "device") for name in names}


@cache
def runs() -> tuple[tuple[Reference, Touched], ...]:
    """What a step of each program touches."""
    found = []
    for word, model in PROGRAMS:
        step = read_case(word, model, []).step
        found.append((lowered(step).reference, touched_by(step)))
    return tuple(found)


def test_the_simulator_touches_what_the_table_says_and_nothing_else() -> None:
    for reference, touched in runs():
        for event in {**touched.read, **touched.written}:
            changed = plain(graph.writes(event, reference), reference) | beside(event, reference)
            assert plain(touched.written[event], reference) <= changed, event
            assert plain(touched.read[event], reference) <= changed | plain(
                graph.reads(event, reference), reference), event


def test_the_simulator_touches_all_that_the_table_says_of_some_event() -> None:
    """Whatever a row names is seen to be read, or written, in one program at least."""
    said, seen = set(), set()
    for reference, touched in runs():
        for event in {**touched.read, **touched.written}:
            key = event.verb, event.value if (event.verb, event.value) in EFFECTS else event.kind
            for way, accesses, of, found in (
                    ("reads", event.effect.reads, graph._READS, touched.read),
                    ("writes", event.effect.writes, graph._WRITES, touched.written)):
                for access in accesses:
                    said.add((*key, way, access))
                    if plain(of[access](event, reference), reference) & plain(found[event], reference):
                        seen.add((*key, way, access))
    beside_the_tensors = {("compute", "loss", "writes", Access.OWN), ("compute", "grad", "reads", Access.ENTERED),
                          ("scale", "loss", "writes", Access.OWN), ("scale", "loss", "reads", Access.ORIGIN),
                              ("fetch", SubjectKind.TENSOR, "reads", Access.VERSIONS)}  # among all copies on a tier
    assert said - seen == beside_the_tensors
    rows = {key for key, effect in EFFECTS.items() if effect.reads or effect.writes}
    assert rows - {k[:2] for k in said} == NEVER_RUN


@pytest.mark.parametrize(("key", "wrong"), [
    (("accumulate", SubjectKind.GROUP), {"reads": (Access.OWN,)}), (("clip", SubjectKind.GROUP), {"reads": ()}),
    (("update", SubjectKind.GROUP), {"writes": (Access.OWN,)}), (("compute", SubjectKind.TENSOR), {"reads": ()})])
def test_a_row_that_says_too_little_is_told(key: Any, wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    runs()
    monkeypatch.setitem(EFFECTS, key, replace(EFFECTS[key], **wrong))  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        test_the_simulator_touches_what_the_table_says_and_nothing_else()


def test_a_row_that_says_too_much_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    runs()
    key = "accumulate", SubjectKind.GROUP
    more = replace(EFFECTS[key], reads=(*EFFECTS[key].reads, Access.NORMS))
    monkeypatch.setitem(EFFECTS, key, more)  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        test_the_simulator_touches_all_that_the_table_says_of_some_event()
