"""The loop over microbatches of a pipeline: every stage runs its items in its own order, and waits for messages.

In an item a stage runs the events of one phase, in program order, for one microbatch and the instances of one chunk.
An event of a tied group runs on each of its stages at that stage's own item, one of no unit on every stage with its
first chunk, a count with its last (`Stages.runs`). A stage goes on until it has to wait: in `recv` for a message, in a
collective along the pipeline axis for the other stages that take part. The run ends in a Deadlock when all that are
left wait.

A message goes from a rank to the one with equal other coordinates, and is received once; messages of one instance and
microbatch, of whatever tensors, are received in the order in which they were sent. One that nobody receives is a
Deadlock too: its sender may not return from it, or what follows on the channel is taken for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from placealg.errors import InputError
from placealg.models.backward import GRAD
from placealg.models.graph import Graph, unit_of
from placealg.simulator.machine import Deadlock, Machine, Message, RankMessage
from placealg.simulator.operate import gradient
from placealg.simulator.setting import Setting
from placealg.simulator.stages import Instance, Stages
from placealg.step.program import Event, Node
from placealg.step.verbs import MESSAGES, VERBS

SEND, RECV = MESSAGES


class Task(NamedTuple):
    """One event that a stage has to run."""

    event: Event
    instance: int
    microbatch: int


Left = dict[int, list[Task]]
"""Stage -> what it has left to do, last to first."""


def run_stages(m: Machine, stages: Stages, body: Sequence[Node], act: Callable[[Machine, Event], None],
               microbatches: int | None = None) -> None:
    """Run the body for the first `microbatches` (default: all) on all stages, each as far as it can go in turn."""
    left: Left = {stage: list(_tasks(m, stages, body, stage, microbatches))[::-1] for stage in range(stages.ranks)}
    moved = True
    while moved:
        moved = False
        for stage, tasks in left.items():
            while tasks and (meeting := _meeting(m, stages, left, stage)):
                _turn_to(m, tasks[-1], meeting)
                act(m, tasks[-1].event)
                for member in meeting:
                    left[member].pop()
                moved = True
    if any(left.values()):
        stage = _cause(stages, left)
        task = left[stage][-1]
        _turn_to(m, task, frozenset({stage}))
        raise Deadlock(task.event, m.on_stages(frozenset({stage}))[0])
    for (_, _, instance, microbatch), sent in m.messages.items():
        if sent:
            _turn_to(m, Task(sent[0].event, instance, microbatch), frozenset())
            raise Deadlock(sent[0].event, sent[0].rank)
    m.enter(None)
    m.instance, m.meeting = 0, None
    m.messages.clear()


def _tasks(m: Machine, stages: Stages, body: Sequence[Node], stage: int, microbatches: int | None) -> Iterator[Task]:
    known: dict[tuple[str, int], list[tuple[Event, int]]] = {}
    for item in stages.items(stage):
        if item.microbatch in range(m.setting.microbatches)[:microbatches]:
            m.enter(item.microbatch)
            key = item.phase, item.chunk
            if key not in known:
                known[key] = [(e, i) for e, i in _unrolled(body, m.setting, stages.graph)
                              if e.phase == item.phase and stages.runs(e, i, stage, item.chunk)]
            for event, instance in known[key]:
                if m.runs_now(event):
                    yield Task(event, instance, item.microbatch)


def _unrolled(body: Sequence[Node], setting: Setting, graph: Graph) -> Iterator[tuple[Event, int]]:
    """Every event with the instance of its unit, in program order."""
    for node in body:
        if isinstance(node, Event):
            yield node, 0
        else:
            every = range(setting.instances(node.name, graph))
            for instance in reversed(every) if node.reverse else every:
                yield from ((event, instance) for event, _ in _unrolled(node.body, setting, graph))


def _turn_to(m: Machine, task: Task, meeting: frozenset[int]) -> None:
    m.enter(task.microbatch)
    m.instance, m.meeting = task.instance, meeting


def _meeting(m: Machine, stages: Stages, left: Left, stage: int) -> frozenset[int]:
    """The stages that run a stage's next task together; none where it has to wait."""
    task, alone = left[stage][-1], frozenset({stage})
    if task.event.verb in MESSAGES:
        _turn_to(m, task, alone)
        return alone if m.reads_only or all(_arrived(m, key) for key in _awaited(m, stages, task)) else frozenset()
    if stages.pipeline.axis not in task.event.axes or not VERBS[task.event.verb].collective:
        return alone
    members = stages.stages(task.event, task.instance)
    return members if all(left[s] and left[s][-1] == task for s in members) else frozenset()


def message(m: Machine, e: Event) -> None:
    """Send or receive on every rank that `where` selects."""
    if m.stages is None or e.axes != (m.stages.pipeline.axis,):
        raise InputError(f"{e.path}: a message goes from stage to stage, along the pipeline axis alone")
    if m.reads_only or m.microbatch is None:
        return
    if e.verb == RECV:
        for key in _awaited(m, m.stages, Task(e, m.instance, m.microbatch)):
            received = m.messages[key].pop(0).box
            store, name = m.stores[key[0]], (e.tensor, m.instance)
            if e.on_gradient:
                store.replace(name, "", received)
            else:
                store.write(name, "", received)
        return
    neighbour = m.stages.neighbour(e, m.instance, -1 if e.on_gradient else 1)
    if neighbour is None:
        return
    for rank in m.acting(e):
        if m.chosen(e, rank):
            name = (e.tensor, m.instance)
            sent = gradient(m, rank, name, e.version) if e.on_gradient else m.stores[rank].read(name, e.version)
            key = _across(m, m.stages, rank, neighbour), e.value, m.instance, m.microbatch
            m.messages.setdefault(key, []).append(RankMessage(e, rank, sent))


def _across(m: Machine, stages: Stages, rank: int, there: Instance) -> int:
    """The rank on the stage of an instance, with the other coordinates of `rank`."""
    at = list(m.coordinates[rank])
    at[m.axes[stages.pipeline.axis]] = stages.home(stages.chunk(*there))
    return m.coordinates.index(tuple(at))


def _awaited(m: Machine, stages: Stages, task: Task) -> list[Message]:
    """The messages that ranks wait for in a task: those of the neighbouring instance, if that runs elsewhere."""
    said = _said(stages, task)
    return [(rank, *said) for rank in m.acting(task.event) if m.chosen(task.event, rank)] if said else []


def _arrived(m: Machine, awaited: Message) -> bool:
    """Whether a message is there, and next: no other one of the sender's instance and microbatch was sent before."""
    rank, value, *which = awaited
    unit, back = unit_of(value), value.endswith(GRAD)
    waiting = (key for key, sent in m.messages.items() if sent and key[0] == rank and list(key[2:]) == which
               and unit_of(key[1]) == unit and key[1].endswith(GRAD) == back)
    return next(waiting, None) == awaited if m.space.graph.beside else bool(m.messages.get(awaited))


def _said(stages: Stages, task: Task) -> tuple[str, int, int] | None:
    """What a task waits for, in whatever rank: a tensor or a gradient, its instance, the microbatch."""
    e = task.event
    if e.verb != RECV:
        return None
    graph = stages.graph
    entering, leaving = graph.entering(e.unit), graph.leaving(e.unit)
    if entering and e.tensor not in (leaving if e.on_gradient else [loop.slot for loop in entering]):
        raise InputError(f"{e.path}: '{e.tensor}' is not received", name=e.tensor,
                         valid=(*(loop.slot for loop in entering), *(name + GRAD for name in leaving)))
    neighbour = stages.neighbour(e, task.instance, 1 if e.on_gradient else -1)
    if neighbour is None:
        return None
    same = neighbour[0] == e.unit
    if e.on_gradient:
        named = next((loop.slot for loop in graph.entering(neighbour[0])
                      if e.tensor == (loop.last if same else loop.first)), "") + GRAD
    else:
        here = next(loop for loop in entering if loop.slot == e.tensor)
        named = here.last if same else here.first
    return named, neighbour[1], task.microbatch


def _cause(stages: Stages, left: Left) -> int:
    """A root of the wait-for graph: a blocked stage that no other one would unblock; in a cycle, any of its stages."""
    stage, seen = next(s for s in left if left[s]), set[int]()
    while stage not in seen:
        seen.add(stage)
        stage = next((s for s in left if s != stage and any(_serves(stages, t, left[stage][-1]) for t in left[s])),
                     stage)
    return stage


def _serves(stages: Stages, task: Task, waiting: Task) -> bool:
    """Whether a task is what another one waits for: the message's send, or the collective itself."""
    e = task.event
    return task == waiting or (e.verb == SEND and (e.value, task.instance, task.microbatch) == _said(stages, waiting))
