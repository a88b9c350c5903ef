"""What the events on tensors of an op graph do on a machine: ops forward and backward, versions, redistributions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from placealg.errors import InputError
from placealg.models.graph import Op, unit_of
from placealg.simulator import functions, parameters
from placealg.simulator.box import Box, Extent, total, union
from placealg.simulator.divisors import divided
from placealg.simulator.field import Array
from placealg.simulator.functions import Missing
from placealg.simulator.machine import Machine, fraction
from placealg.simulator.redistribute import REDISTRIBUTE, Boxes, Team
from placealg.simulator.rules import WEIGHTS_APART
from placealg.simulator.space import seed_of
from placealg.simulator.store import Name, Store
from placealg.simulator.tiers import CARRIES, carry, end, keeper
from placealg.simulator.tokens import BATCH
from placealg.step.program import Event
from placealg.step.versions import LEFT_OUT

LOCAL = ("slice", "scale")
"""The redistributions for which a rank looks at what it holds alone."""


def operate(m: Machine, e: Event) -> None:
    """Run an event on a tensor, on a tensor's gradient, on what enters a repeated unit or on a region."""
    if m.microbatch is None or (m.reads_only and (e.verb != "compute" or e.on_gradient)):
        return
    if e.verb == "compute":
        (_backward if e.on_gradient else _forward)(m, e)
    elif e.verb == "assign":
        _enter(m, e)
    elif e.verb == "free":
        _free(m, e)
    elif e.verb in CARRIES:
        carry(m, e, _at(m, e, keeper(m, e) or e.tensor), lambda rank: _read(m, e, rank, e.tensor, e.version))
    else:
        _redistribute(m, e)


def read_loss(m: Machine, e: Event, rank: int) -> None:
    """The loss reads its tokens; backward starts from one over its divisor."""
    last, at = m.space.graph.ops[-1], m.stores[rank]
    final = at.finals[e.unit] = _read(m, e, rank, last.inputs[0], _labels(e, last)[0])
    if not m.reads_only:
        m.watch.losses(m, e, rank, (last.output, 0), final)
    own = final and final.cut({BATCH: m.space.sequences(m.microbatch or 0, e.unit)})
    at.seeds[e.unit] = divided(m, e, rank, Fraction(1), m.space.weight(own.extent) if own else 0)


def _op(m: Machine, e: Event) -> Op:
    graph = m.space.graph
    op = graph.producer(e.tensor)
    if op is None:
        raise InputError(f"{e.path}: no op makes '{e.tensor}'", name=e.tensor, valid=[op.output for op in graph.ops])
    return op


def _labels(e: Event, op: Op) -> tuple[str, ...]:
    """The labels of the operands, in order; native versions where the event says nothing."""
    if not e.reads:
        return ("",) * len(op.inputs)
    names = [text.partition("@") for text in e.reads]
    if tuple(name for name, _, _ in names) != op.inputs:
        raise InputError(f"{e.path}: reads {', '.join(e.reads)}, but '{op.output}' is made from {', '.join(op.inputs)}")
    return tuple(label for _, _, label in names)


def _run(op: Op, labels: tuple[str, ...]) -> tuple[Op, tuple[str, ...]]:
    """The op as it runs, and the labels of its operands: without those that are left out, and what goes with them."""
    out = {k for k, label in enumerate(labels) if label == LEFT_OUT}
    if not out:
        return op, labels
    if op.row.attributes:
        out = {k for k in range(len(op.inputs)) if op.role(k) in op.row.attributes}
    kept = [k for k in range(len(op.inputs)) if k not in out]
    return replace(op, inputs=tuple(op.inputs[k] for k in kept)), tuple(labels[k] for k in kept)


def _at(m: Machine, e: Event, tensor: str) -> Name:
    """The instance of a tensor that an event means: its own loop's, the last one of another loop."""
    unit = unit_of(tensor)
    if unit == e.unit:
        return tensor, m.instance
    return tensor, m.setting.instances(unit, m.space.graph) - 1


def _read(m: Machine, e: Event, rank: int, tensor: str, label: str) -> Box | None:
    """A version of an activation or of data, or a parameter, on a rank."""
    space = m.space
    kind = space.graph.tensors[tensor].kind if tensor in space.graph.tensors else ""
    if kind == "parameter":
        return parameters.read(m, e, rank, tensor)
    found = m.stores[rank].read(_at(m, e, tensor), label)
    if found is None and kind == "data":
        return space.data(tensor, m.number, m.sequences())
    return found


def _forward(m: Machine, e: Event) -> None:
    op, here = _op(m, e), (e.tensor, m.instance)
    op, labels = _run(op, _labels(e, op))
    operands = {rank: [_read(m, e, rank, name, label) for name, label in zip(op.inputs, labels, strict=True)]
                for rank in m.acting(e) if m.chosen(e, rank)}
    for rank in operands:
        if op.draws:
            m.watch.stream(m, e, rank, m.scalar("rng", rank))
    if m.reads_only:
        return
    if op.kind == "cross_entropy" and e.axes:
        for _, team in m.teams(e):
            _merged(m, e, op, [(rank, operands[rank]) for rank in team.values()])
        return
    for rank, given in operands.items():
        if m.space.sums_a_term(op):
            m.watch.losses(m, e, rank, here, given[0])
        held = [box for box in given if box is not None]
        if len(held) < len(given):
            _unmade(m, e, rank, op)
            continue
        made, kept = functions.forward(m.space.graph, op, held, _OperandsOnRank(m, e, rank, op, labels).draw,
                                       m.space.sizes)
        _made(m.stores[rank], here, held, made, kept)


def _made(at: Store, here: Name, operands: Sequence[Box], made: Box, kept: functions.Kept) -> None:
    at.write(here, "", made)
    at.kept[here], at.extents[here] = kept, tuple(box.extent for box in operands)


def _unmade(m: Machine, e: Event, rank: int, op: Op) -> None:
    """An op whose operands are not all there makes nothing; a dropout that has run before draws its mask again."""
    at, here = m.stores[rank], (op.output, m.instance)
    at.write(here, "", None)
    at.kept.pop(here, None)
    if op.kind == "dropout" and here in at.extents:
        extent = at.extents[here][0]
        at.kept[here] = {"mask": Box(extent, _OperandsOnRank(m, e, rank, op, ("",)).draw(extent))}


def _merged(m: Machine, e: Event, op: Op, members: list[tuple[int, list[Box | None]]]) -> None:
    """Cross entropy of logits that are split over the members: the row statistics are summed first."""
    graph, here = m.space.graph, (op.output, m.instance)
    parts: list[tuple[Box, Box] | None] = []
    for _, (x, targets) in members:
        parts.append(functions.statistics(op, x, targets) if x is not None and targets is not None else None)
    team = _team(m, e, [rank for rank, _ in members])
    weights, hits = (REDISTRIBUTE["all_reduce"](team, [p[k] if p else None for p in parts]) for k in range(2))
    for (rank, (x, targets)), weight, hit in zip(members, weights, hits, strict=True):
        if x is None or targets is None or weight is None or hit is None:
            _unmade(m, e, rank, op)
        else:
            made, kept = functions.cross_entropy(op, x, weight, hit, tuple(graph.tensors[op.output].dims))
            _made(m.stores[rank], here, [x, targets], made, kept)


@dataclass(frozen=True, slots=True)
class _OperandsOnRank:
    """What the backward of an op finds on a rank."""

    machine: Machine
    event: Event
    rank: int
    op: Op
    labels: tuple[str, ...]

    @property
    def here(self) -> Name:
        return self.op.output, self.machine.instance

    def operand(self, position: int) -> Box:
        return _held(_read(self.machine, self.event, self.rank, self.op.inputs[position], self.labels[position]))

    def extent(self, position: int) -> Extent:
        found = self.machine.stores[self.rank].extents.get(self.here)
        if found is None:
            raise Missing
        return found[position]

    def result(self) -> Box:
        return _held(self.machine.stores[self.rank].read(self.here, ""))

    def kept(self, name: str) -> Box:
        return _held(self.machine.stores[self.rank].kept.get(self.here, {}).get(name))

    def draw(self, extent: Extent) -> Array:
        """The factors under the rank's stream and keys; it shows them to the watch."""
        m, space = self.machine, self.machine.space
        stream = m.scalar("rng", self.rank)
        indices, deviation = _keys(m, self.rank, extent)
        made = space.mask(self.op, m.instance, m.garbage() if stream is None else stream, indices, *deviation)
        m.watch.mask(m, self.event, self.rank, self.op, Box(extent, made))
        return made


def _held(box: Box | None) -> Box:
    if box is None:
        raise Missing
    return box


def _keys(m: Machine, rank: int, extent: Extent) -> tuple[Extent, list[str]]:
    """The coordinates that enter a random key, and what else does: those of the logical key, but for `random_keys`."""
    indices, deviation = dict(extent), []
    for key in m.reference.random_keys:
        if key.axis in m.axes:
            coordinate = m.coordinates[rank][m.axes[key.axis]]
            deviation += [f"{key.axis}={coordinate}"] if coordinate else []
        elif key.dim in m.space.graph.dims:
            indices |= {key.dim: tuple(range(len(extent[key.dim])))} if key.dim in extent else {}
        else:
            raise InputError(f"random key '{key}' is not a deviation", name=str(key), valid=[
                *(f"local({d})" for d in m.space.graph.dims), *(f"rank({a})" for a in m.axes)])
    return indices, deviation


def _backward(m: Machine, e: Event) -> None:
    whole, space = _op(m, e), m.space
    op, labels = _run(whole, _labels(e, whole))
    starts = e.tensor == space.graph.ops[-1].inputs[0] if space.whole else whole == space.graph.ops[-1]
    starts = starts and m.instance == (m.setting.instances(op.unit, space.graph) - 1 if space.whole else 0)
    for rank in m.acting(e):
        if not m.chosen(e, rank):
            continue
        saved = _OperandsOnRank(m, e, rank, op, labels)
        dy = _seeds(m, rank) if starts else _own_seeds(m, e, rank, saved) if space.sums_a_term(op) else gradient(
            m, rank, (e.tensor, m.instance), "")
        for position, name in enumerate(op.inputs if op.row.differentiable else ()):
            if name not in space.differentiable or not _now(m, e, space.graph.tensors[name].kind == "parameter"):
                continue
            try:
                found = None if dy is None else functions.backward(space.graph, op, position, dy, saved)
            except Missing:
                found = None
            if space.graph.tensors[name].kind == "parameter":
                parameters.deposit(m, e, rank, name, found)
            elif space.whole:
                m.stores[rank].replace(_at(m, e, name), "", found)
            else:
                m.stores[rank].contribute(_at(m, e, name), labels[position], found)


def _now(m: Machine, e: Event, parameter: bool) -> bool:
    """Whether an operand's gradient belongs to this event: a stage may run the backward for parameters later."""
    if e.phase == "weights":
        return parameter
    return not (parameter and m.stages is not None and m.stages.pipeline.order in WEIGHTS_APART)


def _seeds(m: Machine, rank: int) -> Box | None:
    """The gradient of what the losses read: of every token the value from which its loss's backward starts."""
    at, found, weight = m.stores[rank], None, dict[int, Fraction]()
    for loss in m.reference.separate:
        found, seed = at.finals.get(loss), fraction(at.seeds.get(loss))
        if found is None or seed is None or m.microbatch is None:
            return None
        weight |= dict.fromkeys(m.space.sequences(m.microbatch, loss), seed)
    return None if found is None else seed_of(m.space, m.number, found, weight)


def _own_seeds(m: Machine, e: Event, rank: int, saved: _OperandsOnRank) -> Box | None:
    """The gradient of what a further term of the loss sums: one over the event's divisor, of each token there is."""
    seed = fraction(divided(m, e, rank, Fraction(1)))
    try:
        extent = saved.extent(0)
    except Missing:
        return None
    if seed is None:
        return None
    box = Box(extent, m.space.zeros([len(at) for at in extent.values()]))
    return seed_of(m.space, m.number, box, dict.fromkeys(extent[BATCH], seed))


def gradient(m: Machine, rank: int, name: Name, label: str) -> Box | None:
    """The sum of what has been contributed to a gradient; garbage where a contribution could not be computed.

    The gradient of a tensor to which no op has contributed is 0.
    """
    found = m.stores[rank].contributions(name, label)
    if not found and not label and not m.space.whole and (shape := m.stores[rank].shapes.get(name)) is not None:
        return Box(shape, m.space.zeros([len(at) for at in shape.values()]))
    held = [box for box in found if box is not None]
    if not held:
        return None
    if len(held) < len(found):
        extent = union(box.ordered(held[0].dims) for box in held)
        return Box(extent, m.noise([len(at) for at in extent.values()]))
    return total(held, m.noise)


def _enter(m: Machine, e: Event) -> None:
    """What enters an instance of a repeated unit: the version read, then what the instance before has made.

    Where that runs on another stage of a pipeline, nothing does; the gradient is not added to anything.
    """
    graph = m.space.graph
    loop = graph.slot(e.tensor)
    if loop is None:
        raise InputError(f"{e.path}: '{e.tensor}' is not what enters a repeated unit", name=e.tensor,
                         valid=[loop.slot for loop in graph.handed])
    label = e.reads[0].partition("@")[2] if e.reads else ""
    tensor, label = (loop.last, "") if m.instance else (loop.first, label)
    elsewhere = m.stages is not None and m.stages.neighbour(e, m.instance, -1) is not None
    for rank in m.acting(e):
        if not m.chosen(e, rank) or (elsewhere and e.on_gradient):
            continue
        source = (tensor, m.instance - 1) if m.instance else _at(m, e, tensor)
        at = m.stores[rank]
        if e.on_gradient and m.space.whole:
            at.replace(source, "", gradient(m, rank, (loop.slot, m.instance), ""))
        elif e.on_gradient:
            at.contribute(source, label, gradient(m, rank, (loop.slot, m.instance), ""))
        else:
            box = at.read(source, "") if m.instance else _read(m, e, rank, tensor, label)
            at.write((loop.slot, m.instance), "", box)


def _free(m: Machine, e: Event) -> None:
    """One version ends; or, of a region, all that its ops made and kept for themselves, but for those it names."""
    graph = m.space.graph
    if e.tensor in graph.tensors or keeper(m, e):
        end(m, e, _at(m, e, keeper(m, e) or e.tensor))
        return
    inside = [op for op in graph.ops if op.unit == e.unit and f"{op.region}.".startswith(f"{e.value}.")]
    ended = list(_own(m, e, inside))
    kept = [(op.output, m.instance) for op in inside if op.row.kept and op.output not in e.reads]
    for rank in m.acting(e):
        if m.chosen(e, rank):
            for name, label in ended:
                m.stores[rank].write(name, label, None)
            for name in kept:
                m.stores[rank].kept.pop(name, None)


def _own(m: Machine, e: Event, inside: list[Op]) -> list[tuple[Name, str]]:
    """The versions of which only ops `inside` a region know: what they made, and copies made for them.

    What a repeated unit is entered by, and what it hands on, others know.
    """
    graph, names = m.space.graph, {op.output for op in inside}
    shared = {name for loop in graph.handed for name in (loop.first, loop.last)}
    shared |= {name for name in names if any(op.output not in names for op in graph.consumers(name))}
    ended = [(name, label) for (name, label), users in m.users.items() if label and users <= names]
    found = [(_at(m, e, name), label) for name, label in ended]
    for name in names - shared - set(e.reads):
        here = _at(m, e, name)
        found += [(here, label) for at in m.stores for label in at.versions.get(here, {})]
    return found


def _team(m: Machine, e: Event, ranks: Sequence[int]) -> Team:
    at: list[Mapping[str, int]] = [m.named(rank) for rank in ranks]
    return Team(m.space, e, at, m.sequences(), m.noise, lambda member: divided(m, e, ranks[member], Fraction(1)))


def _looking(m: Machine, e: Event) -> list[list[int]]:
    """The ranks that look at what they hold together; for a pad, which sends nothing, at which indices others have."""
    if e.verb in LOCAL:
        return [[rank] for rank in m.acting(e) if m.chosen(e, rank)]
    return [list(team.values()) for team in (m.together(e) if e.verb == "pad" else (t for _, t in m.teams(e)))]


def _redistribute(m: Machine, e: Event) -> None:
    if e.verb not in REDISTRIBUTE:
        raise InputError(f"{e.path}: {e.verb} does not apply to a tensor", name=e.verb, valid=REDISTRIBUTE)
    name = _at(m, e, e.tensor)
    for ranks in _looking(m, e):
        adding = [rank for rank in ranks if not e.on_gradient or m.stores[rank].contributions(name, e.version)]
        if not adding:
            continue  # 0 stays 0
        boxes: Boxes = [gradient(m, rank, name, e.version) if e.on_gradient else _read(m, e, rank, e.tensor, e.version)
                        for rank in ranks]
        for rank, box in zip(ranks, REDISTRIBUTE[e.verb](_team(m, e, ranks), boxes), strict=True):
            if e.verb == "pad" and not (rank in adding and m.chosen(e, rank)):
                continue
            if e.on_gradient:
                m.stores[rank].replace(name, e.version, box)
            else:
                m.stores[rank].write(name, e.version, box)
