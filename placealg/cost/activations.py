"""Activations: what forward keeps for backward, and what is held of tensors at every event, in closed form.

Element sizes are `act` for activations and their gradients, 1 byte for masks, 4 for statistics and ids. One microbatch
is in flight, or on a stage of a pipeline as many as its order allows. One instance of a repeated unit is at work; all
others hold what they keep for backward, or wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import sympy

from placealg.arith import ONE, Monomial
from placealg.cost.amounts import Amounts
from placealg.cost.bounds import factored
from placealg.cost.expressions import EXPRESSIONS, expression, monomial
from placealg.cost.formula import Formula
from placealg.cost.stage import StageStep, stage_of
from placealg.cost.storages import DEVICE, Box, Storage, Touch, Version, local
from placealg.cost.tensors import attributes_beside, batch_axes, entering, touches
from placealg.mesh import SYMBOLS
from placealg.models.backward import GRAD, keepers
from placealg.models.backward import kept as kept_beside
from placealg.models.graph import Graph, Op, unit_of
from placealg.models.losses import LossRun, run_of
from placealg.polynomial import SUMS, Polynomial, add
from placealg.step.event import ACROSS, LOOPED
from placealg.step.gradient_targets import WEIGHTS
from placealg.step.pipeline import part_of
from placealg.step.program import Step
from placealg.step.verbs import VERBS
from placealg.step.versions import on_tier
from placealg.strategy.vocabulary import ACT_FUNCTION, ACT_LINEAR, ACT_NORM, KEPT_FOR

ELEMENT: Mapping[str, str] = {"act": "act", "w": "w", "mask": "1", "stat": "4", "ids": "4",
                                **{name: name for name in KEPT_FOR}}
"""Kind of element -> its size in bytes."""

NOTE = "activations are those of one microbatch, without the data of the batch"
IN_FLIGHT = "activations are those of all microbatches in flight, without the data of the batch"
BUT_ATTRIBUTES = ", but with the attributes of tokens that it has, of 4 bytes each, weights of act"
STATISTICS = "row statistics of norms are left out"

_LAYERS = frozenset(name for name in SYMBOLS if name == "L" or name.startswith(("L_", "n_")))
"""The symbols that count layers."""

_SIZE = {name: Monomial.parse(size) for name, size in ELEMENT.items()}

READ, AGAIN, REPLAY = "read by the backward of", "gathered again for the backward of", "read to recompute"
FETCHED = "fetched for the backward of"
"""The reasons for which a storage is kept."""

Picture = Counter[tuple[Monomial, str, str]]
"""(elements on a device, kind of element, unit whose other instances hold it; "" for the one at work) -> number."""


@dataclass(frozen=True, slots=True)
class KeptStorage:
    """One storage that forward keeps for backward.

    `tensor` is its version, `layout` how it is split, `mode` R (as its readers use it), S* (the shard of a value that
    backward gathers again) or O (on another tier, its name beside the tensor's); `readers` are the ops for which it is
    kept, `why` says how they use it, `count` is the number of instances that keep it, `bytes` the size of all of these.
    """

    tensor: str
    region: str
    layout: str
    mode: str
    readers: tuple[str, ...]
    why: str
    count: Formula
    bytes: Formula


class Activations:
    """The tensors of one program: what each event of a microbatch holds, and what is kept between the passes."""

    def __init__(self, step: Step, amounts: Amounts, statistics: bool = False):
        self.step, self.amounts, self.statistics = step, amounts, statistics
        self.stage = stage_of(step)
        every = step.every_stage if isinstance(step, StageStep) else step
        self.split_batch = batch_axes(every)
        self.arriving = entering(every.reference, every.phase(*LOOPED)) if not self.stage.first else {}
        self.walked: dict[tuple[int, ...], tuple[Touch, ...]] = {}
        self.sizes: dict[Storage, Monomial] = {}
        self.flown: dict[str, str] = {}
        self.units = {u.name: u.count for u in step.reference.units}

    @property
    def looped(self) -> tuple[int, ...]:
        """The places in the program of the events of the microbatch loop."""
        return tuple(k for k, event in enumerate(self.step.events) if event.phase in LOOPED)

    def walk(self, places: tuple[int, ...] | None = None) -> tuple[Touch, ...]:
        """The effect of one microbatch's events on tensors: of the events at `places` of the program, or of all."""
        chosen = self.looped if places is None else places
        if chosen not in self.walked:
            events = [self.step.events[k] for k in chosen]
            self.walked[chosen] = touches(self.step.reference, events, self.statistics, self.arriving)
        return self.walked[chosen]

    def pictures(self, places: tuple[int, ...], tier: str = DEVICE) -> tuple[Picture, ...]:
        """What a tier holds at each event of one microbatch, all instances of all units together."""
        walked = self.walk(places)
        waiting, later = (self.waiting(walked, boundary(walked, phase), tier) for phase in ("backward", WEIGHTS))
        own = {unit: [j for j, t in enumerate(walked) if self.step.unit_of(t.event) == unit] for unit in waiting}
        behind = {unit: next((j for j in reversed(inside) if walked[j].event.phase != WEIGHTS), -1)
                  for unit, inside in own.items()}
        found = []
        for k, touch in enumerate(walked):
            picture = self.picture(s for s in touch.during if s.tier == tier)
            for unit, inside in own.items():
                if inside[0] <= k <= inside[-1]:
                    picture += (waiting if k <= behind[unit] else later)[unit]
            found.append(picture)
        return tuple(found)

    def between(self, tier: str = DEVICE) -> Picture:
        """What one microbatch holds on a tier between forward and backward."""
        return sum(self._between("backward", tier).values(), Picture())

    def waited(self, tier: str = DEVICE) -> Any:
        """What all microbatches in flight hold on a tier between forward and backward, in bytes."""
        alike: dict[Any, Picture] = {}
        for (unit, times), picture in self._waiting(tier):
            key = times, self.stage.several and self.graph.loop(unit) is not None
            alike[key] = alike.get(key, Picture()) + picture
        return sum((self.stage.value(times, EXPRESSIONS) * written(self.amounts, picture)
                    for (times, _), picture in alike.items()), sympy.S.Zero)

    def waited_sum(self, tier: str = DEVICE) -> Polynomial:
        """The bytes of `waited` as a sum of monomials, with the model's known sizes substituted."""
        return Polynomial.total(self.stage.value(times, SUMS) * self.amounts.known_sum(in_bytes(self.amounts, picture))
                                for (_, times), picture in self._waiting(tier))

    @property
    def parts(self) -> tuple[str, ...]:
        """The phases for which tensors wait: backward, and the one for the weights, if that is apart."""
        apart = self.stage.for_weights != "0" and self.stage.pipeline.splits
        return ("backward", WEIGHTS) if apart else ("backward",)

    def _waiting(self, tier: str) -> Iterator[tuple[tuple[str, str], Picture]]:
        return (held for phase in self.parts for held in self._between(phase, tier).items())

    def _between(self, phase: str, tier: str) -> dict[tuple[str, str], Picture]:
        """(unit, microbatches) -> what its instances hold on a tier of one of these, which wait for `phase`."""
        walked = self.walk()
        start = boundary(walked, phase)
        if start == len(walked):
            return {}
        found = {(unit, self.flights(unit, phase)): held for unit, held in self.waiting(walked, start, tier).items()}
        repeated = {v for found in self.others(walked, start).values() for v in found}
        for version, storage in self.shown(walked, start).items():
            if storage.tier != tier:
                continue
            key = self.kept_by(version, storage, walked, version in repeated, start)
            found[key] = found.get(key, Picture()) + self.picture([storage], "", walked, start)
        return found

    def flights(self, unit: str, phase: str = "backward") -> str:
        """The number of microbatches for which a unit's instances here hold what `phase` needs; see `Stage`."""
        if phase == WEIGHTS:
            return self.stage.for_weights
        if unit not in self.flown:
            self.flown[unit] = self.stage.flights(part_of(unit, self.graph))
        return self.flown[unit]

    def kept_by(self, version: Version, storage: Storage, walked: tuple[Touch, ...], repeated: bool,
                start: int) -> tuple[str, str]:
        """(unit that keeps a storage, number of microbatches): the unit of its name, or else of its first reader.

        It is the unit of its name if each of that unit's instances keeps it. What leaves a repeated unit, and is kept
        in addition to what enters the next instance, is kept once per chunk.
        """
        unit, phase = unit_of(version[0]), walked[start].event.phase
        if repeated:
            return unit, self.flights(unit, phase)
        unit = next((t.event.unit for t in walked[start:] if storage in t.reads.values()), unit)
        leaves = any(loop.unit == unit and loop.last == version[0] for loop in self.graph.loops) and phase != WEIGHTS
        return unit, self.stage.outputs_in_flight if leaves else self.flights(unit, phase)

    def shown(self, walked: tuple[Touch, ...], start: int) -> dict[Version, Storage]:
        """What is held where a phase starts: every storage once, under the name by which a repeated unit keeps it."""
        before = walked[start].before
        names = {before[v]: v for v in reversed(before)} | {
            before[v]: v for found in self.others(walked, start).values() for v in found}
        return {version: storage for storage, version in sorted(names.items(), key=lambda s: list(before).index(s[1]))}

    def waiting(self, walked: tuple[Touch, ...], start: int, tier: str = DEVICE) -> dict[str, Picture]:
        """Repeated unit -> what each of its instances that are not at work holds on a tier where a phase starts."""
        return {unit: self.picture({s for s in found.values() if s.tier == tier}, unit, walked, start)
                for unit, found in self.others(walked, start).items() if self.units[unit] != ONE}

    def picture(self, held: Iterable[Storage], unit: str = "", walked: tuple[Touch, ...] = (),
                start: int = 0) -> Picture:
        """The picture of some storages, in one instance or in all others of `unit`.

        With `walked`, it is that of what waits for the events from `start` on.
        """
        return Picture((self.elements(s), self.element(s, walked, start), unit) for s in held)

    def element(self, storage: Storage, walked: tuple[Touch, ...], start: int) -> str:
        """The kind of element of a storage: that of a class of ops, if the strategy has it, while those alone wait."""
        element = storage.tensor.element
        gradient = storage.version[0].endswith(GRAD)
        if not walked or gradient or element != "act" or not set(KEPT_FOR) & set(self.step.reference.types):
            return element
        readers = [self.graph.producer(op) for ops in _uses(storage, walked, start).values() for op in ops]
        classes = {class_of(op, self.graph) if op else "" for op in readers}
        return next((c for c in classes if len(classes) == 1 and c in self.step.reference.types), element)

    def counts(self, name: str) -> bool:
        """Whether a tensor is counted: without `statistics`, the row statistics of norms are not."""
        maker = self.graph.producer(keepers(self.graph).get(name, ""))
        optional = {t.name for t, row in kept_beside(self.graph, maker) if row.optional} if maker else set()
        return self.statistics or name not in optional

    def carried(self, touch: Touch) -> str:
        """The size of an element of what is copied from tier to tier: that in which it is kept for backward."""
        walked = self.walk()
        start = boundary(walked)
        size = (self.element(s, walked, start) for s in (*touch.writes, touch.source) if s)
        return ELEMENT[next(size, "act")]

    def elements(self, storage: Storage) -> Monomial:
        """The number of a storage's elements on one device."""
        if storage not in self.sizes:
            self.sizes[storage] = local(storage.tensor, storage.box, self.split_batch) * storage.part
        return self.sizes[storage]

    def others(self, walked: tuple[Touch, ...], start: int) -> dict[str, dict[Version, Storage]]:
        """Repeated unit -> what each of its instances keeps until the phase that starts at `start`.

        What leaves one instance enters the next: only the name under which it enters is counted. Data are of all.
        """
        found: dict[str, dict[Version, Storage]] = {u: {} for u in self.units if self.graph.loop(u)}
        for touch in walked[start:]:
            for version, storage in touch.reads.items():
                unit = touch.event.unit
                own = storage.tensor.kind != "data" and unit_of(version[0]) == unit
                if unit in found and own and version in walked[start].before:
                    found[unit].setdefault(version, storage)
        for loop in self.graph.loops:
            mine = found.get(loop.unit, {})
            if (loop.slot, "") in mine:
                mine.pop((loop.last, ""), None)
        return found

    @property
    def graph(self) -> Graph:
        """The op graph."""
        return self.step.reference.graph

    def kept(self) -> tuple[KeptStorage, ...]:
        """Every storage that is held between forward and backward, in order of its making."""
        return tuple(row for phase in self.parts for row in self._kept(boundary(self.walk(), phase)))

    def _kept(self, start: int) -> Iterator[KeptStorage]:
        walked = self.walk()
        if start < len(walked):
            counted = {v: unit for unit, found in self.others(walked, start).items() for v in found}
            yield from (self._row(version, storage, counted.get(version, ""), walked, start)
                        for version, storage in self.shown(walked, start).items())

    def _row(self, version: Version, storage: Storage, unit: str, walked: tuple[Touch, ...],
             start: int) -> KeptStorage:
        uses = _uses(storage, walked, start)
        flying = self.kept_by(version, storage, walked, bool(unit), start)[1]
        times = self.stage.value(flying, EXPRESSIONS) * (monomial(self.units[unit]) if unit else 1)
        size = expression(ELEMENT[self.element(storage, walked, start)]) * monomial(self.elements(storage)) * times
        name = version[0].removesuffix(f" on {storage.tier}")
        told = "@".join(p for p in (name, version[1]) if p)
        mode = "O" if storage.tier != DEVICE else "S*" if AGAIN in uses else "R"
        return KeptStorage(on_tier(told, storage.tier), region(self.graph, name),
                    layout_text(storage.box), mode, tuple(dict.fromkeys(op for ops in uses.values() for op in ops)),
                    "; ".join(f"{use} {', '.join(ops)}" for use, ops in uses.items()),
                    self.amounts.made(times, "1"), self.amounts.made(size, "bytes"))

    def total(self) -> Formula:
        """The bytes of everything that forward keeps for backward."""
        said = IN_FLIGHT if self.stage.several else NOTE
        said += BUT_ATTRIBUTES if attributes_beside(self.graph) else ""
        notes = [said, *([] if self.statistics else [STATISTICS])]
        notes += [f"the loss is run {run.name} (--loss): it holds {run.most} at most" for run in self.runs()]
        return self.amounts.made(self.waited(), "bytes", note="; ".join(notes))

    def runs(self) -> tuple[LossRun, ...]:
        """The implementations of the cross entropies in this device's program."""
        found: dict[LossRun, None] = {}
        for touch in self.walk():
            op = self.graph.producer(touch.event.value) if touch.event.verb == "compute" else None
            if op and op.kind == "cross_entropy":
                found[run_of(op, any(dim in op.over for _, dim in touch.box))] = None
        return tuple(found)


def class_of(op: Op, graph: Graph) -> str:
    """The element size of what an op of its class alone keeps; "" where its class has none.

    >>> from placealg.models.transformer import gpt
    >>> graph = gpt().graph
    >>> [class_of(graph.producer(f"layer.{name}"), graph) for name in ("mlp.up", "norm1.out", "mlp.gelu", "residual1")]
    ['act_linear', 'act_norm', 'act_function', '']
    """
    if op.kind == "einsum":
        return ACT_LINEAR if any(graph.tensors[n].kind == "parameter" for n in op.inputs) else ""
    return {"norm": ACT_NORM, "unary": ACT_FUNCTION, "mul": ACT_FUNCTION}.get(op.row.family, "")


def region(graph: Graph, name: str) -> str:
    """The region of the op that makes a tensor, or keeps it beside its result; the unit for what enters a unit."""
    op = graph.producer(name) or graph.producer(name.rpartition(".")[0])
    return op.region if op else unit_of(name)


def boundary(walked: Sequence[Touch], phase: str = "backward") -> int:
    """The place of the first event of a phase, the backward pass; the number of events if there is none."""
    return next((k for k, touch in enumerate(walked) if touch.event.phase == phase), len(walked))


def layout_text(box: Box) -> str:
    """The split of a version in words.

    >>> layout_text(frozenset({("tp", "seq"), ("dp", "batch")}))
    'batch over dp, seq over tp'
    """
    return ", ".join(sorted(f"{dim} over {axis}" for axis, dim in box)) or "whole"


def in_bytes(amounts: Amounts, picture: Picture) -> Polynomial:
    """A picture as a sum of monomials, in bytes."""
    total: dict[Monomial, Fraction] = {}
    for (elements, element, unit), times in picture.items():
        size = elements * _SIZE[element]
        if unit:
            add(total, size * amounts.reference.unit(unit).count, times)
        add(total, size, -times if unit else times)
    return Polynomial.collected(total)


def written(amounts: Amounts, picture: Picture) -> Any:
    """The expression of a picture: for each kind of layer what all its layers hold, factored, and the rest."""
    layered: dict[frozenset[str], dict[Monomial, Fraction]] = {}
    for term, coefficient in in_bytes(amounts, picture).terms.items():
        layered.setdefault(_LAYERS.intersection(term.names()), {})[term] = coefficient
    whole = sympy.S.Zero
    for part in layered.values():
        common, rest = factored(Polynomial.collected(part))
        whole += monomial(common) * sympy.Add(*(monomial(term) * sympy.Rational(*c.as_integer_ratio())
                                                for term, c in rest.terms.items()))
    return whole


def collected(terms: Iterable[Any]) -> Any:
    """A sum of expressions, factored by kind of layer: the terms of each kind together, then the rest."""
    layered: dict[frozenset[str], list[Any]] = {}
    for term in terms:
        names = {s.name for s in term.free_symbols}
        layered.setdefault(frozenset(names.intersection(_LAYERS)), []).append(term)
    return sympy.Add(*(sympy.factor_terms(sympy.Add(*parts)) for parts in layered.values()))


def _uses(storage: Storage, walked: tuple[Touch, ...], start: int) -> dict[str, tuple[str, ...]]:
    """Use -> the ops for whose backward a storage is kept: read, gathered again, or read to recompute."""
    found: dict[str, dict[str, None]] = {READ: {}, AGAIN: {}, FETCHED: {}, REPLAY: {}}
    copies: set[Version] = set()
    for k, touch in enumerate(walked[start:], start):
        event = touch.event
        if storage in touch.reads.values():
            if event.verb in ACROSS:
                for made in touch.writes:
                    uses = _uses(made, walked, k + 1)
                    found[FETCHED] |= dict.fromkeys(op for ops in uses.values() for op in ops)
            elif not event.on_gradient and VERBS[event.verb].collective:
                copies.add((event.value, event.version))
            else:
                found[READ if event.on_gradient else REPLAY][event.tensor] = None
        elif event.on_gradient and copies & touch.reads.keys():
            found[AGAIN][event.tensor] = None
    return {use: tuple(ops) for use, ops in found.items() if ops}
