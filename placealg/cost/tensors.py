"""What a device holds of the tensors of an op graph, event by event: an abstract interpretation over boxes.

A *box* says along which axes a version of a tensor is split, and by which dims. A version is live from the event that
makes it to the last event that reads it by name, or to the event that frees it; a view shares its operand's storage.
The walk covers one microbatch and one instance of a repeated unit. On a stage of a pipeline, what the stage before or
after made arrives by recv, in the layout in which it was made there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from placealg.arith import ONE, Monomial
from placealg.cost.rings import RING, brought, summed
from placealg.cost.storages import DEVICE, Box, Storage, Touch, Version, along, names_of
from placealg.cost.unsupported import unknown
from placealg.frozen import FrozenMap
from placealg.models.backward import GRAD, BackwardOp, backward, keepers, kept, sparse_gradients
from placealg.models.graph import Graph, Op, Tensor
from placealg.models.losses import LossRun, chunk_parts, run_of
from placealg.models.tokens import attributes
from placealg.placement import MEMORY_TIERS
from placealg.step.event import ACROSS, Event, dim_of
from placealg.step.gradient_targets import receivers
from placealg.step.program import Reference, Step
from placealg.step.recompute import members
from placealg.step.saved_tensors import PER_DEVICE
from placealg.step.verbs import MESSAGES
from placealg.step.versions import Version as Parsed
from placealg.step.versions import on_tier, origins

IN_PLACE = ("all_reduce", "scale")
"""The redistributions that need no second buffer if no later event reads their source."""


def batch_axes(step: Step) -> tuple[str, ...]:
    """The axes along which some event of the program splits the batch."""
    split = {a for e in step.events if e.on_tensor and PER_DEVICE in (dim_of(e.source), dim_of(e.to)) for a in e.axes}
    return tuple(a for a in step.reference.mesh.names if a in split)


def touches(reference: Reference, events: Iterable[Event], statistics: bool = False,
            arriving: Mapping[str, Box] = FrozenMap()) -> tuple[Touch, ...]:
    """The walk over the events of one microbatch, in order.

    Tokens and targets are not storage of the step, because every batch has them; attributes of tokens are, from the
    first to the last event that reads them. Row statistics of norms count only with `statistics`. `arriving` are the
    layouts of what another stage sends forward. Events of which nothing is known hold none.
    """
    if unknown(reference):
        return tuple(Touch(event, {}) for event in events)
    free = set() if statistics else {t.name for op in reference.graph.ops for t, k in kept(reference.graph, op)
                                     if k.optional}
    free |= {on_tier(name, tier) for name in free for tier in MEMORY_TIERS}
    counted = attributes_beside(reference.graph)
    walk = _Walk(reference, reference.graph, tuple(events), known=dict(arriving))
    found = [walk.run(event, k) for k, event in enumerate(walk.events)]
    last = {version: k for k, touch in enumerate(found) for version in touch.reads}
    for k, touch in enumerate(found):
        touch.before = {v: s for v, s in touch.before.items()
                        if last.get(v, -1) >= k and stored(s.tensor, counted) and v[0] not in free}
        around = set(touch.before.values())
        if touch.event.verb in IN_PLACE:
            around = {s for v, s in touch.before.items() if last[v] > k or v not in touch.reads}
        made = {s for s in touch.writes if stored(s.tensor, counted) and s.version[0] not in free}
        if touch.event.verb == RING and touch.event.on_gradient:
            made = set()
        touch.during = walk.during(touch, frozenset(around | made))
    return tuple(found)


def attributes_beside(graph: Graph) -> frozenset[str]:
    """The data of a batch beside what every batch has: tokens, targets, and the places of learned positions.

    >>> from placealg.models.tokens import Attributes, with_attributes
    >>> from placealg.models.transformer import gpt
    >>> sorted(attributes_beside(with_attributes(gpt(), Attributes(weights=True, documents=True)).graph))
    ['data.documents', 'data.weights']
    """
    plain = {name for op in graph.ops if op.row.family in ("lookup", "cross_entropy") for name in op.inputs}
    return frozenset(attributes(graph)) - plain


def stored(tensor: Tensor, counted: Collection[str]) -> bool:
    """Whether a tensor takes memory of the step: of data, those that are counted."""
    return tensor.kind != "data" or tensor.name in counted


def entering(reference: Reference, events: Iterable[Event]) -> dict[str, Box]:
    """The box of what enters each repeated unit, read off the events of a whole program."""
    if unknown(reference):
        return {}
    walk = _Walk(reference, reference.graph, tuple(events))
    found: dict[str, Box] = {}
    for k, event in enumerate(walk.events):
        if event.on_gradient:
            break
        walk.run(event, k)
        if event.verb == "assign" and event.on_tensor and (event.value, "") in walk.held:
            found[event.value] = walk.box_of((event.value, ""))
    return found


@dataclass(slots=True)
class _Walk:
    """The interpreter: the storage held of every version, and the effect of each event."""

    reference: Reference
    graph: Graph
    events: tuple[Event, ...]
    held: dict[Version, Storage] = field(default_factory=dict)
    known: dict[str, Box] = field(default_factory=dict)
    transposed: dict[str, list[BackwardOp]] = field(default_factory=dict)
    sparse: Mapping[str, FrozenMap[str, str]] = field(default_factory=dict)
    summed: Mapping[str, tuple[tuple[str, Monomial], ...]] = field(default_factory=dict)
    brought: Mapping[int, Monomial] = field(default_factory=dict)
    chunks: Mapping[str, Monomial] = field(default_factory=dict)
    runs: dict[str, LossRun] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for step in backward(self.graph):
            self.transposed.setdefault(step.forward, []).append(step)
        self.sparse = sparse_gradients(self.graph)
        self.chunks = chunk_parts(self.graph)
        self.summed = summed(self.events)
        self.brought = {k: brought(e, self.events[k + 1:]) for k, e in enumerate(self.events) if e.verb == RING}
        self.held = {(t.name, ""): Storage((t.name, ""), frozenset(), t)
                     for t in self.graph.tensors.values() if t.kind == "data"}

    def run(self, event: Event, place: int) -> Touch:
        """Interpret one event, at its place in the walk: what it read, wrote, and what was live before."""
        touch = Touch(event, dict(self.held))
        if event.verb == "compute" and event.on_gradient:
            self.differentiate(touch)
        elif event.verb == "compute" and event.on_tensor:
            self.compute(touch)
        elif event.verb == "assign" and event.on_tensor:
            self.enter(touch)
        elif event.verb == "free" and event.on_tensor:
            self.free(event)
        elif event.verb in ACROSS and event.on_tensor:
            self.carry(touch)
        elif event.verb in MESSAGES:
            self.message(touch)
        elif event.on_tensor:
            self.redistribute(touch, self.brought.get(place, ONE))
        else:
            self.read(touch, event.reads)
        return touch

    def during(self, touch: Touch, held: frozenset[Storage]) -> frozenset[Storage]:
        """What is held while an event runs: with the mask of a softmax within documents, which forward makes of them.

        Of a cross entropy the buffers are those of its implementation.
        """
        op = self.graph.producer(touch.event.tensor)
        if op is not None and op.row.family == "softmax" and op.row.attributes and not touch.event.on_gradient and (
                touch.event.verb == "compute" and touch.writes):
            dims = {d: n for role, name in zip(op.row.operands, op.inputs, strict=True) if role in op.row.attributes
                    for d, n in self.graph.tensors[name].dims.items()}
            mask = Tensor(f"{op.output}.seen", FrozenMap(dims), element="mask")
            return held | {Storage((mask.name, ""), along(touch.box, mask), mask)}
        if op is None or touch.event.verb != "compute" or not (run := self.runs.get(op.output)):
            return held
        its = (op.inputs[0], f"{op.output}.softmax", op.inputs[0] + GRAD)
        mine = sorted((s for s in held if s.version[0] in its), key=lambda s: s.version)
        elements = run.backward if touch.event.on_gradient else run.forward
        return held.difference(mine) | {
            Storage((f"{its[0]}.{k}", ""), one.box, replace(one.tensor, element=element), one.part)
            for one in mine[:1] for k, element in enumerate(elements)}

    def find(self, name: str, label: str) -> Version | None:
        """The version that a reader finds: the one named, or the nearest from which it derives."""
        return next(((name, made) for made in origins(label) if (name, made) in self.held), None)

    def below(self, name: str, label: str = "") -> list[Version]:
        """The held versions of `name` at `label` and all that derive from it."""
        return [(n, at) for n, at in self.held if n == name and (not label or f"{at}/".startswith(f"{label}/"))]

    def read(self, touch: Touch, texts: Iterable[str]) -> list[Storage | None]:
        """Record what is read; None if nothing is held."""
        found = [self.find(*Parsed.parse(text)) for text in texts]
        touch.reads.update({v: self.held[v] for v in found if v})
        return [self.held[v] if v else None for v in found]

    def make(self, touch: Touch, version: Version, box: Box, tensor: Tensor, part: Monomial = ONE) -> None:
        """Make new storage for a version."""
        part = part * self.chunks.get(tensor.name.removesuffix(GRAD), ONE)
        self.held[version] = Storage(version, box, tensor, part)
        self.known[version[0]] = box
        touch.writes.append(self.held[version])

    def operands(self, op: Op, event: Event) -> Iterator[tuple[str, Version]]:
        """(operand, version in which it is read), in order."""
        for name, text in zip(op.inputs, event.reads or op.inputs, strict=True):
            yield name, Parsed.parse(text)

    def iterated(self, op: Op, event: Event) -> tuple[Box, list[Version], bool]:
        """The box of the op's iteration space under the result's names, what it reads, whether all of it is held."""
        box: set[tuple[str, str]] = set()
        read: list[Version] = []
        complete = True
        for name, version in self.operands(op, event):
            if self.graph.tensors[name].kind == "parameter":
                box |= set(self.reference.split_dims.get(name, {}).items())
                continue
            found = self.find(*version)
            if found is None:
                complete = False
            else:
                read.append(found)
                box |= {(axis, op.rename.get(dim, dim)) for axis, dim in self.box_of(found)}
        return frozenset(box), read, complete

    def box_of(self, version: Version) -> Box:
        """The box of a version in the dims of its own tensor; a view's storage is in the dims of what it shows."""
        storage, name = self.held[version], version[0].removesuffix(GRAD)
        owner = storage.tensor.name.removesuffix(GRAD)
        if owner == name:
            return storage.box
        shown, mine = names_of(self.graph, owner), names_of(self.graph, name)
        back = {now: root for root, now in shown.items()}
        return frozenset((axis, mine.get(back.get(dim, dim), back.get(dim, dim))) for axis, dim in storage.box)

    def compute(self, touch: Touch) -> None:
        """Interpret a forward op: its result and what it keeps; only the mask, for a dropout without its operand."""
        op = self.graph.producer(touch.event.value)
        if op is None:
            return
        box, read, complete = self.iterated(op, touch.event)
        touch.reads, touch.box = ({v: self.held[v] for v in read}, box) if complete else ({}, frozenset())
        if op.row.view and complete:
            self.held[op.output, ""] = self.held[read[0]]
            return
        if complete:
            result = self.graph.tensors[op.output]
            self.make(touch, (op.output, ""), along(box, result), result)
        if op.kind == "cross_entropy":
            self.runs[op.output] = run_of(op, any(dim in op.over for _, dim in box))
        for tensor, _ in kept(self.graph, op):
            if op.output in self.runs:
                tensor = replace(tensor, element=self.runs[op.output].kept)
            if complete or op.row.random:
                there = along(box, tensor) if complete else self.known.get(tensor.name, frozenset())
                self.make(touch, (tensor.name, ""), there, tensor)

    def differentiate(self, touch: Touch) -> None:
        """Interpret an op's backward: it reads its result's gradient and saved values, adds to operands' gradients."""
        op = self.graph.producer(touch.event.tensor)
        if op is None:
            return
        box, _, _ = self.iterated(op, touch.event)
        grads = self.below(op.output + GRAD)
        touch.reads = {v: self.held[v] for v in grads}
        touch.box = box = box.union(*map(self.box_of, grads))
        versions = [version for _, version in self.operands(op, touch.event)]
        now, order = receivers(touch.event, self.reference), self.reference.pipeline
        for step in (s for s in self.transposed.get(op.output, ()) if s.operand in now):
            read = [version for k, (name, version) in enumerate(zip(op.inputs, versions, strict=True))
                    if name in step.reads and not (step.kind == "einsum" and k == step.operand)]
            for version in (*read, *((name, "") for name in step.reads if name not in op.inputs)):
                found = self.find(*version)
                if found:
                    touch.reads[found] = self.held[found]
            tensor = self.graph.tensors[step.of]
            if op.output in self.runs and self.runs[op.output].logits and (found := self.find(*versions[0])):
                touch.reads[found] = self.held[found]
            if tensor.kind == "activation":
                target = (step.output, versions[step.operand][1])
                back = {new: old for old, new in op.rename.items()}
                mine = along(frozenset((axis, back.get(dim, dim)) for axis, dim in box), tensor)
                passed_on = order is not None and order.splits and op.kind == "add" and step.kind == "rename"
                same = op.row.view or passed_on  # gradients that wait: a sum passes its own on to what it adds
                if same and len(grads) == 1 and target not in self.held:
                    self.held[target] = self.held[grads[0]]
                else:
                    self.add(touch, target, mine, tensor)

    def add(self, touch: Touch, target: Version, box: Box, tensor: Tensor) -> None:
        """Add a contribution to a gradient: new storage, or added to what is there."""
        if target in self.held:
            touch.reads[target] = self.held[target]
            box &= self.box_of(target)
        rounds = (part for label, part in self.summed.get(target[0], ())
                  if f"{target[1]}/".startswith(f"{label}/" if label else ""))
        self.make(touch, target, box, self.gradient(tensor), Monomial.product(rounds))

    def gradient(self, tensor: Tensor) -> Tensor:
        """The tensor of a gradient, with its element size and sparse dims."""
        return replace(tensor, element="act", sparse=self.sparse.get(tensor.name, FrozenMap()))

    def enter(self, touch: Touch) -> None:
        """Interpret the assignment to a slot: what enters a repeated unit, or the gradient that goes back from it."""
        loop = self.graph.slot(touch.event.tensor)
        if loop is None:
            return
        first, label = Parsed.parse((*touch.event.reads, loop.first)[0])
        if not touch.event.on_gradient:
            (found,) = self.read(touch, (f"{first}@{label}",))
            if found and found.tensor.kind == "data":
                self.make(touch, (loop.slot, ""), found.box, self.graph.tensors[loop.slot])
            elif found:
                self.held[loop.slot, ""] = found
            return
        grads = self.below(loop.slot + GRAD)
        touch.reads = {v: self.held[v] for v in grads}
        target = (first + GRAD, label)
        if len(grads) == 1 and target not in self.held:
            self.held[target] = self.held[grads[0]]
        elif grads:
            box = frozenset.intersection(*(self.held[v].box for v in grads))
            self.add(touch, target, box, self.graph.tensors[loop.slot])

    def redistribute(self, touch: Touch, part: Monomial) -> None:
        """Interpret a redistribution: it makes the named version, `part` of it held at once; gradients in place."""
        event = touch.event
        tensor = self.graph.tensors.get(event.tensor)
        found = self.find(event.value, event.version)
        sources = self.below(event.value, event.version) if event.on_gradient else [found] if found else []
        if tensor is None or not sources:
            return
        touch.reads = {v: self.held[v] for v in sources}
        box = frozenset.intersection(*map(self.box_of, sources))
        tensor = self.gradient(tensor) if event.on_gradient else tensor
        touch.source = replace(self.held[sources[0]], box=box, tensor=tensor, part=ONE)
        if event.on_gradient:
            for version in sources:
                del self.held[version]
        gone, come = dim_of(event.source), dim_of(event.to)
        if event.verb in ("all_gather", "all_to_all", "pad") or (event.verb == "shift" and gone):
            box = frozenset((a, d) for a, d in box if a not in event.axes or (gone and d != gone))
        if event.verb in ("slice", "reduce_scatter", "all_to_all") or (event.verb == "shift" and come):
            box |= {(a, come) for a in event.axes}
        self.make(touch, (event.value, event.version), box, tensor, part)
        shown = self.held[sources[0]].tensor
        if shown.kind == "data" and tensor.name != shown.name:  # the same part of the batch, under other names of dims
            root = {mine: dim for dim, mine in names_of(self.graph, tensor.name).items()}
            there = frozenset((a, root[d]) for a, d in box)
            self.held[event.value, event.version] = Storage((shown.name, event.version), there, shown, part)
            touch.writes[-1] = self.held[event.value, event.version]

    def carry(self, touch: Touch) -> None:
        """Interpret a copy from tier to tier: new storage of what is found on the one, on the other."""
        event, (source, target) = touch.event, touch.event.tiers
        found = self.find(on_tier(event.value, source), event.version)
        if found is None:
            return
        storage = touch.source = touch.reads[found] = self.held[found]
        made = (on_tier(event.value, target), event.version)
        tensor = self.graph.tensors.get(event.value, storage.tensor)
        box = self.box_of(found) if source == DEVICE and event.value in self.graph.tensors else storage.box
        self.held[made] = Storage(made, box, tensor, storage.part, target)
        if target == DEVICE:
            self.known[event.value] = box
        touch.writes.append(self.held[made])

    def message(self, touch: Touch) -> None:
        """Interpret a message: what is sent is read as it is; what is received is held from then on."""
        event = touch.event
        name = event.tensor
        found = self.below(event.value) if event.on_gradient else [v for v in [self.find(event.value, "")] if v]
        if event.verb == "send":
            touch.reads = {v: self.held[v] for v in found}
            touch.source = self.held[found[0]] if found else None
        elif not found and name in self.known:
            tensor = self.graph.tensors[name]
            self.make(touch, (event.value, ""), self.known[name],
                      self.gradient(tensor) if event.on_gradient else tensor)

    def free(self, event: Event) -> None:
        """End a version, or what a region made and no op outside reads."""
        named = event.value in self.graph.tensors or event.value in keepers(self.graph)
        ended = {(on_tier(event.value, event.tier), event.version)} if named else self.inside(event)
        for version in ended:
            self.held.pop(version, None)

    def inside(self, free: Event) -> set[Version]:
        """The held versions that end with a region's forward: not those of the ops that the event reads."""
        ops = {op.output for op in members(self.graph, free.value)}
        ending = ops - {version.tensor for version in free.operands}
        beside = {t.name for op in self.graph.ops if op.output in ending for t, _ in kept(self.graph, op)}
        readers: dict[Version, set[str]] = {}
        for event in self.events:
            if event.phase == "forward" and event.reads:
                for name, label in map(Parsed.parse, event.reads):
                    for end in range(len(label.split("/")) + 1 if label else 1):
                        at = "/".join(label.split("/")[:end])
                        readers.setdefault((name, at), set()).add(event.value)
        away = {name for loop in self.graph.loops for name in self.graph.leaving(loop.unit)}
        return {(name, label) for name, label in self.held if not name.endswith(GRAD) and (
            name in beside or ((name in ending or label) and name not in away
                               and readers.get((name, label), set()) <= ops))}
