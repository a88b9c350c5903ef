"""The order in which a flow can be followed: an instance of a repeated unit reads only what it made itself.

The flow follows one instance of a repeated unit for all of them. This is sound if an instance reads only what it made
itself and what it was handed. So data are copied before anything in the loop reads the copy; the result of an op is
redistributed after the op (what backward recomputes is there already, as forward kept it); nothing is done only to the
last instance of what all instances read again; a gradient is redistributed after all uses have added to it, and before
the op reads it. A program in any other order is left open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from placealg.models.backward import differentiated, kept, transposed
from placealg.models.graph import Graph
from placealg.step.event import ACROSS, Event
from placealg.step.gradient_targets import WEIGHTS
from placealg.step.verbs import MESSAGES
from placealg.step.versions import Version


def untimely(events: Iterable[Event], graph: Graph) -> Iterator[tuple[Event, str]]:
    """The events on tensors of one microbatch whose order is not followed, each with the reason."""
    listed = [e for e in events if e.on_tensor or e.value == "loss"]
    for phases in (("forward",), ("backward", WEIGHTS)):
        order = _Order(graph)
        for event in (e for e in listed if e.phase in phases):
            if why := order.gradient(event) if event.on_gradient else order.value(event):
                yield event, why
    behind = apart = False
    for event in (e for e in listed if e.on_tensor):
        if event.phase == WEIGHTS:
            apart = True
            if event.on_gradient and event.verb != "compute":
                yield event, f"changes {event.value} among the backward for the weights"
        elif apart:
            yield event, "stands behind events of the backward for the weights"
        behind = behind or event.phase == "backward"
        if behind and event.phase == "forward":
            yield event, "stands behind events of the backward"
        if event.on_gradient and event.phase == "forward":
            yield event, f"acts on {event.value} in the forward"
        if event.verb in MESSAGES and event.phase == "backward" and not event.on_gradient:
            yield event, f"passes {event.value} on in the backward"
    yield from _of_the_last_alone(listed, graph)


def _of_the_last_alone(events: list[Event], graph: Graph) -> Iterator[tuple[Event, str]]:
    """Events that change a tensor only for a repeated unit's last instance, or read it after others ran again."""
    back = [e for e in events if e.phase in ("backward", WEIGHTS)]
    for loop in (x for x in graph.loops if not graph.single(x.unit)):
        read = {version for e in back if e.unit == loop.unit for version in _reads(e, graph)}
        for event in events:
            if event.unit != loop.unit and event.value == loop.last and (loop.last, event.version) in read:
                yield event, f"changes {loop.last} for the last instance of {loop.unit} alone, and all read it again"
        first = next((k for k, e in enumerate(back) if e.unit == loop.unit), len(back))
        before = {e.unit for e in back[:first]}
        for event in back[first:]:
            apart = event.phase == WEIGHTS and event.unit in before
            if event.unit != loop.unit and not apart and any(n == loop.last for n, _ in _reads(event, graph)):
                yield event, f"reads {loop.last} behind the backward of {loop.unit}"


class _Order:
    """What one phase has read, redistributed and added so far."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.read: dict[Version, set[str]] = {}
        self.moved: set[str] = set()
        self.gathered: dict[Version, str] = {}
        self.consumed: set[str] = set()

    def value(self, event: Event) -> str:
        """What is wrong with an event on a tensor or a loss: data are copied before readers, results moved after ops.

        "" if nothing is.
        """
        why, version = "", Version(event.tensor, event.version)
        makes = event.on_tensor and event.verb != "offload" and bool(event.effect.writes)
        makes = makes and self.graph.loop(event.unit) is not None
        if makes and event.unit in self.read.get(version, ()) and self.outlives(event):
            why = f"makes {event.value} anew after it was read"
        elif makes and event.phase == "forward" and event.effect.of_op and event.tensor in self.moved:
            why = f"makes {event.value} after it was redistributed"
        if event.on_tensor and not event.effect.at_home:
            self.moved.add(event.tensor)
        self.reading(event)
        return why

    def outlives(self, event: Event) -> bool:
        """Whether a version made inside a layer outlives that layer instance.

        Data, and the layer's input slot, are shared by all instances; op results are per instance.
        """
        tensor = self.graph.tensors.get(event.tensor)
        if tensor is None:
            return False
        return tensor.kind == "data" or (event.phase == "forward" and self.graph.producer(event.tensor) is None)

    def reading(self, event: Event) -> None:
        """Record what an event reads, and in which unit."""
        for version in _reads(event, self.graph):
            self.read.setdefault(version, set()).add(event.unit)

    def gradient(self, event: Event) -> str:
        """What is wrong with an event on a gradient: all uses add, then it is redistributed, then the op reads it."""
        self.reading(event)
        name = event.tensor
        if event.effect.of_op or event.verb == "send":
            self.consumed.add(name)
            late = (v for v in _adds(event, self.graph) if v[0] in self.consumed or self.gathered.keys() & _from(v))
            return next((f"adds to {v[0]}.grad after it was redistributed or read" for v in late), "")
        version = Version(name, event.version)
        if name in self.consumed:
            return f"redistributes {event.value} after it was read"
        if event.verb == "recv":
            here = any(n == name and unit == event.unit for (n, _), unit in self.gathered.items())
            return f"adds to {event.value} after it was redistributed" if here else ""
        if self.gathered.keys() & (_from(version) - {version}):
            return f"redistributes a part of {event.value} after the whole"
        self.gathered[version] = event.unit
        return ""


def _from(version: Version) -> frozenset[Version]:
    """The version and its ancestors (T@a/b, T@a, T): a read resolves to the first that exists."""
    return frozenset(version.origins())


def _reads(event: Event, graph: Graph) -> frozenset[Version]:
    """The versions of tensors that an event reads, and those from which they would be resolved.

    A redistribution's own operand is not among them, nor what enters only the first instance, nor what is handed on.
    """
    return frozenset(v for read in _named(event, graph) for v in _from(read))


def _named(event: Event, graph: Graph) -> Iterator[Version]:
    op = graph.producer(event.tensor)
    given = list(event.operands)
    if event.value == "loss":
        if event.verb == "compute":
            yield given[0] if given else Version(graph.ops[-1].inputs[0])
    elif event.verb == "compute" and op is not None:
        operands = given or list(map(Version, op.inputs))
        if not event.on_gradient:
            yield from operands
            return
        read = {n for k in differentiated(graph, op) for n in transposed(graph, op, k).reads}
        if read.intersection((op.output, *(tensor.name for tensor, _ in kept(graph, op)))):
            yield Version(op.output)  # the result, or what the op kept beside it
        yield from (v for v in operands if v[0] in read)
    elif event.verb in ACROSS:
        yield event.acted_on
    elif not event.on_gradient and event.version and event.verb != "free":
        yield Version(event.tensor, event.version).source


def _adds(event: Event, graph: Graph) -> Iterator[Version]:
    """The versions to whose gradients an op's backward adds, or to which a repeated unit hands back its gradient."""
    op = graph.producer(event.tensor)
    given = list(event.operands)
    if event.phase == WEIGHTS:
        return
    if event.verb == "assign":
        yield from given or [Version(loop.first) for loop in graph.handed if loop.slot == event.tensor]
    elif event.verb == "compute" and op is not None:
        operands = given or list(map(Version, op.inputs))
        yield from (operands[k] for k in differentiated(graph, op) if graph.tensors[operands[k][0]].kind != "parameter")
