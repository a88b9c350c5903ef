"""What every rank holds of every tensor while one microbatch runs: the first of the two theorems.

Forward, an op is right if what it reads is exact: every contribution of every sum is counted once, no partial sum
enters a nonlinear op, statistics cover the whole row. Backward, gradients are linear in the loss's: each op is
transposed at values that must be exact, and a parameter receives, for each contribution, how often each rank counts it.
This is handed to the machine of its parameter group. No solver is needed here. Equal layers are followed up to a fixed
point: until what enters one is what entered the one before.
"""

from __future__ import annotations

from dataclasses import replace

from placealg.models.backward import transposed
from placealg.models.graph import Graph, Loop, Op, unit_of
from placealg.prover.calculus.positions import dim_of
from placealg.prover.ops import paths
from placealg.prover.ops.findings import Demand, FailureKind, Flow, GradientPart
from placealg.prover.ops.operators import Operators
from placealg.prover.ops.order import untimely
from placealg.prover.ops.paths import Sum
from placealg.prover.ops.redistributions import MOVES
from placealg.prover.ops.stages import AMISS, Stages
from placealg.prover.ops.tensors import Instance, Tensors, on_some
from placealg.prover.ops.units import counted, follow_units
from placealg.step.event import LOOPED, MICROBATCH, POSITIONS, Event, takes_part
from placealg.step.gradient_targets import WEIGHTS, receivers
from placealg.step.program import EventLoop, Node, Reference, Step
from placealg.step.verbs import MESSAGES
from placealg.step.versions import Version

_PASSES = 3


FOLLOWED = ("loss", "count", "grad")
"""The values, besides tensors, whose events affect a microbatch's tensors or its losses."""


class Flows:
    """The flows of a step by position of the microbatch; only one if no event that it follows is restricted in them.

    `signatures` are those of the uses of parameters, by group and use, as they are found.
    """

    def __init__(self, step: Step):
        self.step = step
        self._known: dict[object, Flow] = {}
        self._at: dict[str, Flow] = {}
        self.signatures: dict[tuple[object, object], object] = {}
        self._reading: dict[tuple[str, str, str], bool] = {}
        self._restricted = [e for e in step.phase(*LOOPED) if e.at and (e.on_tensor or e.value in FOLLOWED)]

    def at(self, position: str) -> Flow:
        """The flow of a microbatch at `position`."""
        if position not in self._at:
            self._at[position] = self._followed(position)
        return self._at[position]

    def _followed(self, position: str) -> Flow:
        whole = self.step.reference.whole
        key = (frozenset(e.path for e in self._restricted if takes_part(e.at, position)),
               counted(self.step, position) if whole else frozenset())
        if key not in self._known:
            self._known[key] = follow_units(self.step, position) if whole else _Follower(self.step, position).run()
        return self._known[key]

    def parts_of(self, parameter: str, use: str) -> list[GradientPart]:
        """What a use of a parameter adds to its gradient, at every position."""
        added = (mine.get((parameter, use)) for position in POSITIONS for mine in self.at(position).parts.values())
        return [part for part in added if part]

    def reads_parameter(self, event: Event, op: Op, parameter: str) -> bool:
        """Whether the backward of an op reads one of its parameters, for the gradient of another operand.

        The backward of a whole unit reads all of its parameters.
        """
        if self.step.reference.whole:
            return True
        key, graph = (event.phase, op.output, parameter), self.step.reference.graph
        if key not in self._reading:
            self._reading[key] = any(parameter in transposed(graph, op, k).reads
                                     for k in receivers(event, self.step.reference))
        return self._reading[key]


def together(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The body of the loop over microbatches, the backward of each unit for its weights directly behind the other one.

    Where it is apart, it reads what its own instance of the unit holds, which stays as it is between the two
    (`order.untimely`), so that an instance can be followed through both.
    """
    apart = [node for node in nodes if _first(node).phase == WEIGHTS]
    found: list[Node] = []
    others = [node for node in nodes if _first(node).phase != WEIGHTS]
    for node, then in zip(others, (*others[1:], None), strict=True):
        event = _first(node)
        ends = event.phase == "backward" and (then is None or _first(then).unit != event.unit or not event.unit)
        own = [n for n in apart if ends and _first(n).unit == event.unit and isinstance(n, type(node))]
        apart = [n for n in apart if n not in own]
        if isinstance(node, EventLoop):
            node = replace(node, body=(*node.body, *(e for n in own if isinstance(n, EventLoop) for e in n.body)))
            own = []
        found += [node, *own]
    return (*found, *apart)


def _first(node: Node) -> Event:
    """The first event of a node on a tensor or a unit; of a loop without one, its first."""
    if isinstance(node, Event):
        return node
    inside = [_first(n) for n in node.body]
    return next((e for e in inside if e.unit), inside[0])


class _Follower:
    """The symbolic execution of one microbatch at one position, event by event."""

    def __init__(self, step: Step, position: str):
        self.step, self.position = step, position
        self.reference: Reference = step.reference
        self.graph: Graph = step.reference.graph
        self.flow = Flow()
        self.tensors = Tensors(step)
        self.stages = Stages(self.reference, self.tensors)
        self.operators = Operators(self.reference, self.tensors, self.flow, self.stages)
        self.handed: list[tuple[str, str, str, Sum]] = []
        self.entered: Sum = ()
        self.inside = ""
        self.followed: set[tuple[str, bool]] = set()
        self.odd: dict[str, list[Instance]] = {}

    def run(self) -> Flow:
        """Follow the whole microbatch."""
        running = [e for e in self.step.phase(*LOOPED) if takes_part(e.at, self.position)]
        for event, why in untimely(running, self.graph):
            self.give_up(event, why)
        for node in self.step.tree(*LOOPED):
            assert isinstance(node, EventLoop) and node.name == MICROBATCH
            for inner in together(node.body):
                if isinstance(inner, Event):
                    self.execute(inner)
                else:
                    self.layers(tuple(e for e in inner.body if isinstance(e, Event)), inner.name, inner.reverse)
        if not any(d.kind in _OF_MESSAGES for d in self.flow.demands):
            self.flow.demands += (_of_message(path, FailureKind.UNRECEIVED) for path in self.stages.left())
        return self.flow

    def layers(self, events: tuple[Event, ...], unit: str, reverse: bool) -> None:
        """Follow the instances of a repeated unit one by one, until what enters an instance repeats.

        A fault, or a gradient whose contributions do not all count alike, ends this and leaves the other instances
        open: following what is wrong already gains nothing.
        """
        loop, before, self.inside = self.graph.loop(unit), len(self.flow.faults), unit
        if loop is None or not self.whole(loop, events, reverse):
            for event in events:
                alone = event.on_gradient or event.verb in MESSAGES or (event.on_tensor and self.odd.get(unit))
                if loop is not None and alone and takes_part(event.at, self.position):
                    self.give_up(event, f"runs through {unit} apart from the ops of its instances")
                self.execute(event)
            self.inside = ""
            return
        if self.graph.single(unit):
            self.pass_of(1)
            self.instance_of(unit, events)
            self.back(events[-1])
            return
        forward = self.tensors.instance(unit)
        for number in range(1, _PASSES + 1):
            self.pass_of(number)
            entered = self.tensors.gradient(loop.last) if reverse else ()
            arrived = tuple(self.tensors.gradients)
            self.instance_of(unit, events)
            if len(self.flow.faults) > before:
                self.give_up(events[0], f"is not followed into other instances of {unit}: something is not exact")
                break
            if reverse:
                left = self.handed[0][3] if len(self.handed) == 1 else ()
            else:
                entered, left = self.entered, self.tensors.made.get((loop.last, ""), ())
            alike = {*self.stages.anywhere(left)} == {*self.stages.anywhere(entered)}
            first = reverse and number == 1 and any(name == loop.last and label for name, label in arrived)
            if alike and number >= self.stages.least and not first:
                if self.odd.get(unit) and (number > 1 if reverse else self.left_otherwise(loop)):
                    self.give_up(events[0], f"is not followed where {unit} has few instances, the first unlike others")
                self.back_through(self.odd.get(unit, []) if reverse else [], events, loop)
                break
            if number == _PASSES or not paths.is_plain(left):
                self.give_up(events[0], f"passes the input of one instance of {unit} to the next in a way that "
                                        "does not repeat")
                break
            if reverse:
                self.tensors.put_back(unit, forward)
                self.tensors.back_again(unit, loop.last, self.stages.neighbour(left, unit))
            else:
                instance = self.tensors.again(unit, loop.last)
                self.odd.setdefault(unit, []).extend([] if alike else [instance])
        self.pass_of(1, self.handed)
        self.back(events[-1])

    def back(self, event: Event) -> None:
        """End the instances of a unit: what they hand back is added to the gradients of what they were handed."""
        self.inside = ""
        for name, label, slot, held in self.handed:
            if not self.tensors.add(name, label, slot, held):
                self.give_up(event, f"adds to the gradient of {name} once more")
        self.handed = []

    def instance_of(self, unit: str, events: tuple[Event, ...]) -> None:
        """Run one instance; give up if it changes data or tensors of other units, which the next would find changed."""
        found = {key: held for key, held in self.tensors.made.items() if unit_of(key[0]) != unit}
        for event in events:
            self.execute(event)
        for key, held in found.items():
            if self.tensors.made.get(key) != held:
                self.give_up(events[0], f"is not followed into other instances of {unit}: they find another {key[0]}")

    def left_otherwise(self, loop: Loop) -> bool:
        """Whether the first instances hold other versions of the last tensor than the last instance does."""
        left = [{key: self.stages.anywhere(held) for key, held in made.items() if key[0] == loop.last}
                for made in (*(instance[0] for instance in self.odd[loop.unit]), self.tensors.made)]
        return any(versions != left[-1] for versions in left)

    def pass_of(self, number: int, handed: list[tuple[str, str, str, Sum]] | None = None) -> None:
        """Begin another instance of a repeated unit."""
        self.operators.passes = self.stages.passes = number
        self.handed = handed or []

    def back_through(self, instances: list[Instance], events: tuple[Event, ...], loop: Loop) -> None:
        """Run backward through the first instances, the last of them first, if they hold what later ones do not."""
        for instance in reversed(instances):
            if len(self.handed) == 1:
                self.tensors.back_again(loop.unit, loop.last, self.stages.neighbour(self.handed[0][3], loop.unit))
            self.tensors.put_back(loop.unit, instance)
            self.pass_of(self.operators.passes + 1)
            self.instance_of(loop.unit, events)

    def whole(self, loop: Loop, events: tuple[Event, ...], reverse: bool) -> bool:
        """Whether events are a whole instance of their unit: they compute in one direction, and hand on once."""
        here = [e for e in events if e.on_tensor and takes_part(e.at, self.position)]
        if not any(e.effect.of_op for e in here):
            return False
        key = (loop.unit, reverse)
        if key in self.followed:
            self.give_up(here[0], f"runs instances of {loop.unit} in several parts")
            return False
        self.followed.add(key)
        if any(e.on_gradient != reverse for e in here if e.verb == "assign" or (e.verb == "compute" and not reverse)):
            self.give_up(here[0], f"runs instances of {loop.unit} in the wrong order")
        assigned = [e for e in here if e.verb == "assign" and e.on_gradient == reverse]
        if not assigned:
            self.give_up(here[-1], f"passes nothing from one instance of {loop.unit} to the next")
        elif reverse and len({e.tensor for e in assigned}) < len(assigned):
            self.give_up(assigned[1], f"passes the input of one instance of {loop.unit} to the next a second time")
        return True

    def give_up(self, event: Event, why: str) -> None:
        """Record an event that cannot be followed: the verdict stays open, unless a run shows that it is wrong."""
        self.flow.open.append(Demand(event.path, why, (), frozenset()))

    def execute(self, event: Event) -> None:
        """Execute one event, if it takes part at this position."""
        if not takes_part(event.at, self.position):
            return
        if event.on_tensor and not self.at_home(event):
            self.give_up(event, f"acts on {event.value}, of which there is one for each instance of a repeated unit")
        if event.value == "loss":
            self.loss(event)
        elif event.value == "grad" and event.verb == "compute":
            self.operators.take(event)
        elif event.on_tensor and event.verb == "compute":
            self.operators.compute(event)
        elif event.on_tensor and event.verb == "assign":
            self.slot(event)
        elif event.verb in MESSAGES:
            self.message(event)
        elif event.on_tensor:
            MOVES[event.verb](self.tensors, event)

    def at_home(self, event: Event) -> bool:
        """Whether an event runs once for each instance of its tensor, or has the same effect each time.

        What leaves the last instance of a repeated unit may be redistributed after it.
        """
        unit, tensor = event.tensor.partition(".")[0], self.graph.tensors.get(event.tensor)
        if event.verb == "slice" and tensor is not None and tensor.kind == "data":
            return True
        loop = self.graph.loop(unit)
        if self.inside == unit or (not self.inside and loop is None):
            return True
        handed_on = loop is not None and event.tensor in self.graph.leaving(unit)
        return not self.inside and handed_on and event.verb != "compute"

    # the loss

    def loss(self, event: Event) -> None:
        """Execute an event on the loss: each of the rank's tokens that it sums must be there, whole."""
        if event.verb == "compute":
            name, label = event.operands[0] if event.reads else Version(self.graph.ops[-1].inputs[0])
            held = self.operators.demand(event, name, self.stages.here(event.unit, self.tensors.read(name, label)))
            self.operators.split = paths.mask_of(held) if held else None
            if held:
                self.flow.loss[event.path] = paths.mask_of(held)
            axes = [a for a, position in self.operators.split or () if dim_of(position)]
            if len(set(axes)) < len(axes):
                self.operators.demand(event, name, (), f"reads {name}, which is split twice along one axis")

    def slot(self, event: Event) -> None:
        """Assign what enters a repeated unit, or hand the gradient of that back to where it came from."""
        loop = next(x for x in self.graph.handed if x.slot == event.tensor)
        name, label = event.operands[0] if event.reads else Version(loop.first)
        if event.on_gradient:
            self.handed.append((name, label, loop.slot, on_some(event, self.tensors.gradient(loop.slot))))
        else:
            before = self.tensors.made.get((loop.last, ""), ())
            first = self.operators.passes == 1
            self.entered = self.tensors.read(name, label) if first else self.stages.neighbour(before, loop.unit)
            self.entered = on_some(event, self.entered)
            self.tensors.made[loop.slot, ""] = self.entered
            self.tensors.shape(loop.slot, self.entered)

    def message(self, event: Event) -> None:
        """Send or receive what an instance hands on from stage to stage."""
        if event.verb == "send":
            left = self.stages.send(event)
            if left:
                self.flow.demands.append(_of_message(left, FailureKind.UNRECEIVED))
            return
        loop = self.graph.slot(event.tensor) or self.graph.loop(event.unit)
        assert loop is not None
        wrong = self.stages.receive(event, loop)
        if wrong in (FailureKind.UNSENT, FailureKind.OUT_OF_TURN):
            self.flow.demands.append(_of_message(event.path, wrong))
        elif wrong:
            self.give_up(event, AMISS[wrong])
        elif not event.on_gradient:
            self.entered = self.tensors.made.get((loop.slot, ""), ())
            self.tensors.shape(loop.slot, self.entered)


_OF_MESSAGES = (FailureKind.UNSENT, FailureKind.UNRECEIVED, FailureKind.OUT_OF_TURN)
"""What may be wrong with a message: what is left behind such a fault is no other one."""


def _of_message(event: str, kind: FailureKind) -> Demand:
    """The demand that a message is sent and received, which fails."""
    return Demand(event, AMISS[kind], (), frozenset(), "schedule", kind)
