"""What following a program claims of every tensor, rank by rank, and whether a table of the ranks has it.

Of each class of contributions is claimed how often a rank counts one; which contributions a class has, nobody says. So
all that came the same way must be counted as some class has it. What is read as exact must be what one device has.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import product

from box_moves import Layout, Owners, Rank
from boxes import Boxes, alone
from counted import Box, Contribution, Extent, Number, TooMany, points
from worlds import GARBAGE, World, any_of

from placealg.frozen import FrozenMap
from placealg.models.graph import unit_of
from placealg.prover.calculus.contribution import EXISTS, SIZE_ONE, Value
from placealg.prover.calculus.positions import OWNER, dim_of, elsewhere, varies
from placealg.prover.ops.findings import SEED
from placealg.prover.ops.flow import _Follower
from placealg.prover.ops.paths import Sum, is_exact
from placealg.step.event import Event
from placealg.step.pipeline import part_of
from placealg.step.program import Step
from placealg.step.versions import origins
from placealg.strategy.vocabulary import LAYER

Spot = tuple[Rank, Mapping[str, int]]
"""A rank and an element."""

Way = tuple[tuple[str, int], ...]
"""How contributions came: which dims were contracted (-1), which operands added."""

LENGTH = 2
"""As many indices has every dim."""

SAME = {"seq_kv": "seq"}
"""Dim -> the dim that a rename made it of."""


@dataclass(frozen=True)
class Cell(World):
    """A mesh at one element and one contribution: `indices` says which, by the names of positions."""

    owners: Owners = lambda *_: 0
    indices: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    def position(self, axis: str, name: str, rank: Mapping[str, int]) -> int:
        if along := varies(name):
            name = elsewhere(name, along, str(rank[along]))
        bare, _, drawn = name.partition("!")
        if bare not in self.indices:
            return super().position(axis, name, rank)
        layout, _, said = drawn.partition("^")
        along, _, place = said.partition("=")
        return self.owners(axis, *self.indices[bare], layout, self.position(along, place, rank) if along else 0)

    def symbol(self, name: str, rank: Mapping[str, int]) -> Fraction:
        return Fraction(1) if name == SEED else super().symbol(name, rank)


def positions(value: Value) -> set[str]:
    """The names of owners in a value."""
    found = {p for _, p in value.mask} | {p for t in value.terms for p in t.at.values()}
    for e in (*value.sides, *(e for t in value.terms for e in t.given)):
        found |= {*e[1:]} if e[1] not in (SIZE_ONE, EXISTS) else set()
    return {p.partition("!")[0] for p in found if dim_of(p) or "/" in p}


def label_dim(position: str) -> str:
    return position.rpartition("/")[2]


@dataclass
class Claims:
    """What values claim in one world. `owned` has the dim of "own:own" by axis, `stages` who stands at a stage.

    `instances` are the stages of every instance of a repeated unit: what is followed of one is claimed if the
    conditions hold in each.
    """

    world: World
    owners: Owners
    whole: Extent
    owned: Mapping[str, str] = FrozenMap()
    stages: Mapping[str, int] = FrozenMap()
    instances: Sequence[Mapping[str, int]] = ()

    def cell(self, point: Mapping[str, int], labels: Mapping[str, tuple[str, int]]) -> Cell:
        owned = {a: self.owners(a, d, point[d], "", 0) for a, d in self.owned.items() if d in point}
        named = FrozenMap({**{f"{a}:{OWNER}": k for a, k in owned.items()}, **self.stages})
        at = {f"at:{d}": (d, i) for d, i in point.items()}
        return Cell(self.world.sizes, self.world.seed, named, owners=self.owners, indices={**at, **labels})

    def assignments(self, names: Iterable[str]) -> Iterator[dict[str, tuple[str, int]]]:
        known = sorted(n for n in names if "/" in n)
        for at in product(*(self.whole[label_dim(n)] for n in known)):
            yield {n: (label_dim(n), i) for n, i in zip(known, at, strict=True)}

    def standing(self, value: Value, point: Mapping[str, int], rank: Rank) -> bool:
        return self.cell(point, {}).stands(value.mask, rank)

    def defined(self, value: Value, point: Mapping[str, int], rank: Rank) -> bool:
        """Whether something is claimed: the conditions hold at every contribution, whoever is the peer."""
        if value.garbage:
            return False
        names = positions(replace(value, terms=(), mask=frozenset()))
        worlds = [replace(self, stages=stages) for stages in self.instances] or [self]
        return all(w.holds(e, rank) for world in worlds for labels in self.assignments(names) for e in value.sides
                   for w in world.cell(point, labels).for_each_peer())

    def count(self, value: Value, point: Mapping[str, int], labels: Mapping[str, tuple[str, int]],
              rank: Rank) -> Fraction:
        return self.cell(point, labels).total(value.terms, rank)

    def exact(self, held: Sum) -> bool:
        """Whether what is demanded holds in this world."""
        if not held:
            return False
        names = set[str]().union(*(positions(v) for v in held))
        extent = {d: self.whole[d] for d in {dim_of(n) for n in names if dim_of(n)}}
        return all(self.defined(v, p, FrozenMap(r)) and all(
            self.count(v, p, labels, FrozenMap(r)) == 1 for labels in self.assignments(names))
            for p in points(extent) for r in self.world.ranks() for v in held
            if self.standing(v, p, FrozenMap(r)))


def ways(numbers: Iterable[Number]) -> dict[Way, list[Contribution]]:
    """Contributions by the way they came: the same dims contracted, the same operands added."""
    found: dict[Way, dict[Contribution, None]] = {}
    for number in numbers:
        if number != GARBAGE:
            for c in number:
                way = tuple(sorted((key, k if ">+" in key or key[0] == "+" else -1) for key, k in c))
                found.setdefault(way, {})[c] = None
    return {way: list(some) for way, some in found.items()}


def matches(names: Sequence[str], way: Way) -> Iterator[dict[str, str]]:
    """Which contracted index of a way each name may stand for."""
    keys = [key for key, k in way if k == -1]
    fitting = [[key for key in keys if _stands_for(name, key)] or [""] for name in names]
    for chosen in product(*fitting):
        yield dict(zip(names, chosen, strict=True))


def _stands_for(name: str, key: str) -> bool:
    """Whether a name may stand for an index: of a factor of a product, whichever it is, for that of its op."""
    op, _, dim = key.rpartition(">")[2].rpartition("/")
    bare, _, wanted = name.rpartition("*")[2].rpartition("/")
    return dim == wanted and (bare.startswith("path") or _INSTANCE.sub("", op) == bare.replace("'", ""))


_INSTANCE = re.compile(r"#\d+")


@dataclass
class Found:
    """How many claims were made of each kind, which did not hold, and how following the program ended."""

    claims: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Found) -> None:
        self.claims.update(other.claims)
        self.ends.update(other.ends)
        self.wrong += other.wrong


@dataclass(frozen=True)
class Comparison:
    """All claims about one tensor, against the boxes of all ranks.

    `lone` is what one device has of it; of a version of a gradient, to which others than all uses may add, None.
    """

    name: str
    held: Sum
    boxes: Mapping[Rank, Box | None]
    extent: Extent
    lone: Box | None
    claims: Claims

    def into(self, found: Found) -> None:
        """Count what is claimed, and keep the first claim that does not hold."""
        if not self.held:
            return
        cells = [(rank, p) for rank in self.boxes for p in points(self.extent)]
        inside = [cell for cell in cells if self.claims.standing(self.held[0], cell[1], cell[0])]
        certain = [(rank, p) for rank, p in inside if all(self.claims.defined(v, p, rank) for v in self.held)]
        wrong = next(itertools.chain(self._elsewhere(cells, inside), self._missing(certain)), "")
        if not wrong:
            wrong = next(self._miscounted(inside), "")
        found.wrong += [f"{self.name}{wrong}"] if wrong else []
        found.claims["undefined" if not certain else "exact" if is_exact(self.held) else "sum"] += 1
        found.claims["not everywhere"] += len(inside) < len(cells)

    def _elsewhere(self, cells: Sequence[Spot], inside: Sequence[Spot]) -> Iterator[str]:
        if self.held[0].mixed is None:
            yield from (f" on {rank} at {p}: claimed not to be held, but it is" for rank, p in cells
                        if (rank, p) not in inside and self._there(rank, p))

    def _missing(self, certain: Sequence[Spot]) -> Iterator[str]:
        for rank, p in certain:
            if not self._there(rank, p):
                yield f" on {rank} at {p}: claimed to be held, and it is not"
            elif self._at(rank, p) == GARBAGE:
                yield f" on {rank} at {p}: claimed to be a number, and it is garbage"

    def _miscounted(self, inside: Sequence[Spot]) -> Iterator[str]:
        numbers = ([self.lone.at(p) for p in points(self.extent)] if self.lone
                   else [self._at(rank, p) for rank, p in inside])
        for way, contributions in ways(numbers).items():
            if not any(self._counts(v, inside, way, contributions) for v in self.held):
                steps = ", ".join(key for key, _ in way) or "itself"
                yield f": what came by {steps} counts as none of {[v.terms for v in self.held]}"

    def _counts(self, value: Value, inside: Sequence[Spot], way: Way, contributions: Sequence[Contribution]) -> bool:
        """Whether all that came one way is counted as a class has it, wherever that claims something."""
        named, known = positions(value), dict[object, Fraction]()
        names, dims = sorted(n for n in named if "/" in n), sorted({*map(dim_of, named)} & {*self.extent})
        at = sorted({*dims, *self.claims.owned.values()} & {*self.extent})
        sound = [(rank, p, self._at(rank, p)) for rank, p in inside if self.claims.defined(value, p, rank)]

        def count(rank: Rank, p: Mapping[str, int], labels: Mapping[str, tuple[str, int]]) -> Fraction:
            key = rank, tuple(p[d] for d in at), tuple(labels.items())
            if key not in known:
                known[key] = self.claims.count(value, p, labels, rank)
            return known[key]

        return any(all(
            count(rank, p, labels) == number.get(c, 0) for rank, p, number in sound if number != GARBAGE
            for c in contributions if self.lone is None or c in self.lone.at(p)
            for labels in self._labels(c, match))
            for match in matches(names, way))

    def _labels(self, contribution: Contribution, match: Mapping[str, str]) -> Iterator[dict[str, tuple[str, int]]]:
        """The indices for which names stand in a contribution; any, where it has none."""
        indices = dict(contribution)
        fixed = {n: (label_dim(n), indices[key]) for n, key in match.items() if key}
        for some in self.claims.assignments(n for n, key in match.items() if not key):
            yield {**fixed, **some}

    def _there(self, rank: Rank, point: Mapping[str, int]) -> bool:
        box = self.boxes[rank]
        return box is not None and box.holds(point)

    def _at(self, rank: Rank, point: Mapping[str, int]) -> Number:
        box = self.boxes[rank]
        return box.at(point) if box is not None and self._there(rank, point) else GARBAGE


class Over(Exception):
    """Nothing more is claimed: something demanded is "wrong" here, or what cannot be followed is left "open"."""


class Followed(_Follower):
    """Follows one microbatch of a program and runs it on a table side by side."""

    def __init__(self, step: Step, table: Boxes, world: World, found: Found):
        super().__init__(step, "only")
        self.table, self.found = table, found
        self.claims = Claims(world, table.layout.owners, table.layout.whole)
        self.settled = 0
        self.repeating = False

    def execute(self, event: Event) -> None:
        super().execute(event)
        if not self.repeating:
            self.settle()
            self.table.run(event)
            self.compare([event])

    def layers(self, events: tuple[Event, ...], unit: str, reverse: bool) -> None:
        self.repeating = True
        super().layers(events, unit, reverse)
        self.repeating = False
        self.settle()
        self.table.run_layers(unit, events, reverse)
        self.compare(events)

    def settle(self) -> None:
        """What follows is claimed if all that was demanded holds in this world."""
        for demand in self.flow.demands[self.settled:]:
            if not self.at(0, False).exact(demand.held):
                raise Over("wrong")
        if self.flow.open:
            raise Over("open")
        self.settled = len(self.flow.demands)

    def at(self, instance: int, back: bool, name: str = "") -> Claims:
        """The claims of an instance of the repeated unit; of a parameter also who owns it."""
        splits = {a: d for a, d in self.reference.split_dims.get(name, FrozenMap()).items() if d != LAYER}
        if not self.table.pipeline:
            return replace(self.claims, owned=splits)
        every = [self.stages_of(k, way, name) for k in range(self.table.layers) for way in (False, True)]
        return replace(self.claims, owned=splits, stages=self.stages_of(instance, back, name), instances=every)

    def stages_of(self, instance: int, back: bool, name: str) -> Mapping[str, int]:
        """Who stands at the stages of which an instance speaks: its neighbour is who it was handed something by."""
        (unit,), stages = (loop.unit for loop in self.graph.loops), self.table.stages
        neighbour = instance + (1 if back else -1)
        named = {"first": stages[0], "last": stages[-1], unit: stages[instance]}
        named[f"{unit}'"] = stages[neighbour] if 0 <= neighbour < len(stages) else stages[instance]
        known = {f"{self.table.pipeline}:stage:{part}": stage for part, stage in named.items()}
        if name:
            known[f"{self.table.pipeline}:{OWNER}"] = named[part_of(unit_of(name), self.graph)]
        return known

    def compare(self, events: Sequence[Event]) -> None:
        """The claims about all that some events touched and that others may read."""
        tensors = [e for e in events if e.on_tensor]
        touched = {n.partition("@")[0] for e in tensors for n in (e.tensor, *e.reads)}
        (lone,), one = self.table.alone.ranks, self.table.alone
        seen = {n for n in touched if (loop := self.graph.loop(unit_of(n))) is None or n == loop.last}
        forward, backward = self.at(self.table.layers - 1, False), self.at(0, True)
        for (name, label), held in self.tensors.made.items():
            if name in seen:
                data = self.graph.tensors[name].kind == "data"
                ranks = self.table.acting(events[0].unit) if data else self.table.ranks
                boxes = {r: self.table.made[r].get((self.table.at(name), label)) for r in ranks}
                self.compared(f"{name}@{label}", name, held, boxes, one.made[lone].get((one.at(name), "")), forward)
        for name, label in list(self.tensors.gradients):
            if name in seen and any(e.on_gradient and self.graph.loop(unit_of(name)) is None for e in tensors):
                boxes = {r: self.table.gradient(r, name, label) for r in self.table.ranks}
                whole = None if label else one.gradient(lone, name)
                self.compared(f"{name}.grad@{label}", name, self.tensors.gradient(name, label), boxes, whole, backward)
        parts = [part for e in tensors for part in self.flow.parts.get(e.path, {}).values()]
        for (use, instance), deposits in self.table.deposited.items():
            for part in (p for p in parts if p.use == use):
                name, claims = part.parameter, self.at(instance, True, part.parameter)
                given = {r: deposits[name].get(r) for r in self.table.ranks}
                self.compared(f"{name}.grad of {use}, instance {instance}", name, part.held, given,
                              one.deposited[use, instance][name][lone], claims)
        if self.table.stuck:
            self.found.wrong.append(f"{self.table.stuck} waits for ever")

    def compared(self, says: str, name: str, held: Sum, boxes: Mapping[Rank, Box | None], lone: Box | None,
                 claims: Claims) -> None:
        """Instances may hold it in different places: each is like one of those that were followed."""
        extent = {d: self.table.layout.whole[d] for d in self.graph.tensors[name].dims}
        tries = []
        for alike in dict.fromkeys((v.mask, v.mixed) for v in held):
            tries.append(Found())
            some = tuple(v for v in held if (v.mask, v.mixed) == alike)
            Comparison(says, some, boxes, extent, lone, claims).into(tries[-1])
        if tries:
            self.found.add(next((found for found in tries if not found.wrong), tries[0]))


@dataclass(frozen=True)
class Mesh:
    """Some ranks, some layers, who owns what, and on which of the stages each layer runs."""

    sizes: FrozenMap[str, int]
    layers: int
    seed: int
    stages: tuple[int, ...] = ()

    def owner(self, axis: str, dim: str, index: int, layout: str, asks: int) -> int:
        """Dims that a rename takes for each other have the same owners."""
        return any_of(self.seed, axis, SAME.get(dim, dim), index, layout, asks) % self.sizes[axis]


def followed(step: Step, mesh: Mesh) -> Found:
    """What following a program came to: to the end, or to the first that is wrong here or cannot be followed."""
    graph, found = step.reference.graph, Found()
    whole = {d: tuple(range(LENGTH)) for d in graph.dims}
    readers = dict[tuple[str, str], set[str]]()
    for event in step.phase("forward"):
        for name, _, label in (r.partition("@") for r in event.reads if event.verb in ("compute", "assign")):
            for known in origins(label):
                readers.setdefault((name, known), set()).add(event.value)
    users = {version: frozenset(some) for version, some in readers.items()}
    try:
        pipeline = step.reference.pipeline
        table = Boxes(graph, Layout(whole, mesh.sizes, mesh.owner), step.reference.split_dims, users, mesh.layers,
                      pipeline.axis, mesh.stages, alone(graph, whole, mesh.layers))
        Followed(step, table, World(mesh.sizes, mesh.seed), found).run()
        found.ends["to the end"] += 1
    except TooMany:
        found.ends["too many contributions"] += 1
    except Over as why:
        found.ends[str(why)] += 1
    return found
