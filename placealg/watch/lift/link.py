"""The stages of a pipeline, each of which ran its part of a step, as one device that ran all of them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from placealg.watch.lift.messages import communicates
from placealg.watch.lift.rules import moves
from placealg.watch.lift.trace import Group, Held, Op, Place, Trace, Word, places


class Unlinked(Exception):
    """Why stages are not one device."""


def linked(traces: Sequence[Trace]) -> Trace:
    """One trace that does what several did: what one sends to another is copied there.

    Raises Unlinked where stages update anything by what they compute together, or by a number of their own gradients:
    what a single device does in its place, such as clipping by one norm, no stage tells.
    """
    for k, trace in enumerate(traces):
        if any(trace.first & other.first for other in traces[:k]):
            raise Unlinked("two of them were made with a parameter of the same numbers, which may be one")
    link = Link(traces)
    while any(stage.run(link, stage.trace.mark) for stage in link.stages):
        pass
    link.made.mark = len(link.made.ops)
    while any(stage.run(link, len(stage.trace.ops)) for stage in link.stages):
        pass
    for stage in link.stages:
        if stage.at < len(stage.trace.ops):
            op = stage.trace.ops[stage.at]
            raise Unlinked(f"stage {stage.number} waits for ever at {op.name} ({op.line})")
        stage.end(link)
    return link.made


def named_apart(traces: Sequence[Trace], stages: Sequence[int], among: Sequence[Iterable[str]]) -> None:
    """Call what traces name by their stages, where the stages' own names, `among`, are not all different."""
    names = [name for own in among for name in own]
    if len(set(names)) == len(names):
        return
    for trace, stage in zip(traces, stages, strict=True):
        of = f"stage {stage}: "
        trace.named = {of + name: held for name, held in trace.named.items()}
        trace.final = {of + name: held for name, held in trace.final.items()}
        trace.gradients = {of + name: read for name, read in trace.gradients.items()}
        trace.tied = {of + name: of + first for name, first in trace.tied.items()}


class Link:
    """The trace that is made, and what is between the stages."""

    def __init__(self, traces: Sequence[Trace]):
        begun = max(t.begun for t in traces) * len(traces)
        self.made = Trace(0, begun=begun, lost=next((t.lost for t in traces if t.lost), ""))
        self.stages = [Stage(t, k, len(traces), begun) for k, t in enumerate(traces)]
        self.sent: dict[tuple[int, int, int], deque[tuple[Place, ...]]] = defaultdict(deque)
        self.awaited: dict[tuple[int, int, int], deque[tuple[Place, ...]]] = defaultdict(deque)
        self.of: dict[int, set[int]] = {}
        """Storage -> the stages that made it of a number of their own gradients, or with others."""
        for stage in self.stages:
            stage.begin(self.made)

    def put(self, op: Op, number: int = -1) -> None:
        """The next op; a number that it makes of gradients is that of a stage, unless it is none's."""
        read = [p for p in op.read if p.floating]
        written = [p for p in op.written if p.floating]
        found = set().union(*(self.of.get(p.store, set()) for p in read))
        name = op.name.removeprefix("aten::").removesuffix("_")
        if number >= 0 and written and not moves(name) and (
                max((p.size for p in read), default=0) > max(p.size for p in written)):
            found |= {number}
        for place in written:
            if found:
                self.of[place.store] = self.of.get(place.store, set()) | found
        self.made.ops.append(op)

    def copy(self, given: Place, there: Place, like: Op) -> None:
        """What a place holds is copied to another one."""
        if there.floating:
            self.put(Op("aten::copy_", {"self": there, "src": given}, there, ("self",), like.line, like.phase))

    def communicate(self, stage: Stage, op: Op) -> None:
        """A message, or another collective, at a stage."""
        verb = op.name.partition("::")[2].strip("_").removeprefix("i")
        found = tuple(places(op.given.get("tensors")))
        if verb in ("send", "recv"):
            peer, tag = int(op.given.get("dst", op.given.get("src", -1))), int(op.given.get("tag") or 0)
            key = (stage.number, peer, tag) if verb == "send" else (peer, stage.number, tag)
            (self.sent if verb == "send" else self.awaited)[key].append(found)
            if verb == "recv":
                stage.pending.update(p.store for p in found)
            while self.sent[key] and self.awaited[key]:
                there = self.awaited[key].popleft()
                for one, other in zip(self.sent[key].popleft(), there, strict=True):
                    self.copy(one, other, op)
                self.stages[key[1]].pending -= {p.store for p in there}
        else:  # what comes of it must not reach what ends the step: see Stage.end
            for place in (*op.read, *op.written):
                self.of.setdefault(place.store, set()).add(stage.number)


class Stage:
    """One of the traces: how far it is, and the storages into which something is still on its way."""

    def __init__(self, trace: Trace, number: int, of: int, begun: int):
        self.trace, self.number, self.of, self.shift = trace, number, of, begun - trace.begun * of
        self.at = 0
        self.last = max((k for k, op in enumerate(trace.ops) if op.phase == "backward"), default=-1)
        """The last op of backward: what is made of gradients comes after it."""
        self.pending: set[int] = set()
        self.ends: dict[int, int] = {}

    def store(self, store: int) -> int:
        """The number of a storage among those of all stages: those that were there before the step stand first."""
        return store * self.of + self.number + self.shift

    def told(self, value: Any) -> Any:
        """An argument with the numbers of storages, and of ranks, in the joined trace."""
        if isinstance(value, Place):
            return value._replace(store=self.store(value.store))
        if isinstance(value, Group):
            return Group((0,)) if len(value.ranks) == 1 else value
        if isinstance(value, Word):
            return value
        return tuple(map(self.told, value)) if isinstance(value, list | tuple) else value

    def held(self, held: Held) -> Held:
        """A named tensor with the numbers of the joined trace."""
        return replace(held, place=self.told(held.place))

    def begin(self, made: Trace) -> None:
        """Give what there was before the step."""
        for name in self.trace.named.keys() & made.named.keys():
            raise Unlinked(f"several stages have a parameter '{name}'")
        made.named.update({k: self.held(h) for k, h in self.trace.named.items()})
        made.leaf.update({self.store(k): v for k, v in self.trace.leaf.items()})
        made.tied.update(self.trace.tied)
        made.unseen.update(self.trace.unseen)

    def run(self, link: Link, until: int) -> bool:
        """Run ops, until the one with a number, or something is awaited; whether any ran."""
        before = self.at
        while self.at < until:
            op = self.trace.ops[self.at]
            op = replace(op, given={k: self.told(v) for k, v in op.given.items()}, made=self.told(op.made),
                         lost=tuple(map(self.store, op.lost)))
            if self.pending & {p.store for p in (*op.read, *op.written)}:
                break
            self.ends[self.at] = len(link.made.ops)
            if communicates(op) and any(len(v.ranks) > 1 for v in op.given.values() if isinstance(v, Group)):
                link.communicate(self, op)
            else:
                link.put(op, self.number if self.at > self.last else -1)
            self.at += 1
        return self.at > before

    def end(self, link: Link) -> None:
        """Give where everything stands at the end, and what the optimizer read."""
        made = link.made
        self.ends[self.at] = len(made.ops)
        made.final.update({k: self.held(h) for k, h in self.trace.final.items()})
        made.gradients.update({k: (self.ends[at], self.told(place), size)
                               for k, (at, place, size) in self.trace.gradients.items()})
        for name, held in self.trace.final.items():
            if link.of.get(self.store(held.place.store)):
                raise Unlinked(f"'{name}' is updated by a number that a stage makes of its own gradients, such as "
                               "their norm, or by what stages compute together")
