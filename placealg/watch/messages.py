"""Messages that are on no gradient's way: gathers of weights, and redistributions of activations, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any

from placealg.step.event import takes_part
from placealg.step.program import Step
from placealg.watch.differences import Difference, Table, Tally
from placealg.watch.expected import Expected, Route, activations, positions
from placealg.watch.names import Named, unit_of, units_of
from placealg.watch.rings import is_hop, turns
from placealg.watch.seen import BUFFER, Message, RankSeen, Seen
from placealg.watch.stages import Stage, between_stages, handed_on
from placealg.watch.wires import Wires


def other_messages(step: Step, seen: Seen, rank: RankSeen, names: Mapping[str, Named], layers: Mapping[str, int],
                   routes: Mapping[str, Route], group_of: Mapping[str, Any], tally: Tally, stage: Stage | None = None,
                   wires: Wires | None = None) -> Iterator[Difference]:
    """How a rank's messages differ from the program's, but for those that its gradients pass through."""
    passed = {h.message for c in rank.chains for t in c.terms for h in t.hops if h.verb != "scale"}
    passed |= {k for c in rank.chains for t in c.terms for h in t.hops for k in h.through}
    passed |= {h.message for c in rank.chains for h in c.new}
    passed |= {k for c in rank.chains for t in c.terms for k in t.through}
    counted = {e.axes for e in step.events if e.value == "count" and e.verb == "all_reduce"}
    passed |= {k for s in rank.seeds for h in s.hops for k in h.through if rank.messages[k].axes in counted}
    weights = {m.index for m in rank.messages if m.verb == "all_gather" and m.carries and m.index not in passed}
    buffers = {m.index for m in rank.messages if m.verb == "broadcast" and m.index not in passed and m.carries
               and all(name.startswith(BUFFER) for name in m.carries)}
    for k in buffers:
        axes = ", ".join(rank.messages[k].axes)
        tally.legal.setdefault(f"buffers {axes}", f"buffers of the model are broadcast over [{axes}]: what no step "
                               "changes is equal everywhere")
    passed |= buffers
    handed = {m.index for m in rank.messages if between_stages(m, stage)}
    others = [m for m in rank.messages if m.index not in passed | weights | handed]
    rest = [m for m in others if m.live and any(seen.mesh.get(a, 2) > 1 for a in m.axes)]  # not with itself alone
    tally.of_messages += len(rank.messages)
    tally.apart += len(others) - len(rest)
    tally.messages += len(passed)
    gathers = list(_gathers(step, seen, rank, names, routes, group_of))
    yield from gathers
    tally.messages += len(weights) if not gathers else 0
    if stage is not None:
        yield from handed_on(stage, step.reference.pipeline.order, seen, rank, tally)
    yield from _activations(step, seen, rank, rest, names, layers, tally, stage, wires)


def _gathers(step: Step, seen: Seen, rank: RankSeen, names: Mapping[str, Named], routes: Mapping[str, Route],
             group_of: Mapping[str, Any]) -> Iterator[Difference]:
    """Gathers of weights that are missing, or that the program lacks."""
    count = max(len(rank.seeds), 1)
    where = positions(count)
    got: dict[str, Counter[tuple[str, int, str]]] = {}
    lines: dict[str, str] = {}
    for message in rank.messages:
        if message.verb == "all_gather" and message.phase in ("forward", "backward"):
            for name in message.carries:
                if name in names:
                    mine = got.setdefault(name, Counter())
                    at = 0 if step.reference.pipeline.axis else message.microbatch
                    mine.update((message.phase, at, a) for a in message.axes)
                    lines.setdefault(name, message.line)
    for chain in (c for c in rank.chains if c.elements):  # a rank that has none of it sends nothing of it
        name = chain.parameter
        route = routes[group_of[names[name].parameter].name]
        want: Counter[tuple[str, int, str]] = Counter()
        for event in route.gathers:
            for k in range(count):
                if takes_part(event.at, where[k]):
                    at = 0 if step.reference.pipeline.axis else k  # of stages, only how often is compared
                    want.update((event.phase, at, a) for a in event.axes if seen.mesh.get(a, 1) > 1)
        have = got.get(name, Counter())
        if have == want:
            continue
        missing, extra = want - have, have - want
        phase, k, axis = next(iter(missing or extra))
        word = "not gathered" if missing else "gathered once more than the program says"
        edits: tuple[Table, ...] = tuple({"drop": e.path} for e in route.gathers if missing and e.phase == phase
                                         and axis in e.axes and all(missing[phase, j, axis] for j in range(count)))
        if edits and phase == "backward":  # what backward does not gather again, forward has not freed
            edits = (*({"drop": e.path} for e in step.events if e.verb == "free" and e.phase == "forward"
                       and e.group == route.group.name and axis in e.axes), *edits)
        if extra and not missing and all(extra["backward", j, axis] == 1 for j in range(count)):
            edits = _gathered_again(step, route, axis)
        yield Difference("gathers", route.group.name, f"{name} is {word} over {axis} in the {phase} of microbatch {k}",
               lines.get(name, ""), edits, (name,))


def _gathered_again(step: Step, route: Route, axis: str) -> tuple[Table, ...]:
    """Edits by which a weight that lives for a microbatch ends with the forward and is gathered again in backward."""
    sites = route.group.sites
    first = next((e for e in route.gathers if e.phase == "forward" and axis in e.axes), None)
    uses = {phase: [e.path for e in step.phase(phase) if e.on_tensor and e.unit in sites]
            for phase in ("forward", "backward")}
    if first is None or not all(uses.values()) or any(e.phase == "backward" for e in route.gathers):
        return ()
    free, gather = replace(first, verb="free").path, replace(first, phase="backward", verb="gather").path
    return ({"insert": {"path": free}, "after": uses["forward"][-1]},
            {"insert": {"path": gather, "from": first.source, "to": first.to}, "before": uses["backward"][0]})


def _activations(step: Step, seen: Seen, rank: RankSeen, rest: list[Message], names: Mapping[str, Named],
                 layers: Mapping[str, int], tally: Tally, stage: Stage | None, wires: Wires | None
                 ) -> Iterator[Difference]:
    """Redistributions of activations, unit by unit, against those of the program.

    Forwards of a stage's microbatches run ahead of their backwards, each unit's in order: they are compared as one row.
    """
    units = units_of(names)
    count = max(len(rank.seeds), 1)
    last = [u.name for u in step.reference.units][-1]
    got: dict[tuple[str, int, str, int], list[Message]] = {}
    behind = {m.microbatch: m.index for m in rest if m.phase == "forward" and unit_of(m.module, units)[0]}
    for message in rest:
        phase = "backward" if message.phase == "backward" else "forward"
        unit, instance = unit_of(message.module, units)
        if not unit and (message.phase == "between" or (  # the loss: by itself, or in the forward of the whole model
                message.phase == "forward" and message.index > behind.get(message.microbatch, message.index))):
            unit = last
        got.setdefault((phase, message.microbatch if stage is None else 0, unit, instance), []).append(message)
    want: dict[tuple[str, int, str, int], list[Expected]] = {}
    for k, position in enumerate(positions(count)):
        for phase in ("forward", "backward"):
            for expected in activations(step, phase, position, layers, seen.mesh):
                if stage is not None and ((expected.unit, expected.instance) not in stage.runs
                                          or expected.axes == (stage.axis,)):
                    continue
                at = k if stage is None else 0
                want.setdefault((phase, at, expected.unit, expected.instance), []).append(expected)
    for key, expected_here in want.items():
        round_it = [e for e in expected_here if e.event.verb == "shift"]
        if round_it:
            hops = [m for m in got.get(key, []) if is_hop(m)]
            got[key] = [m for m in got.get(key, []) if not is_hop(m)]
            want[key] = [e for e in expected_here if e.event.verb != "shift"]
            where = f"{key[2]} {key[3]} in {key[0]} of microbatch {key[1]}"
            yield from turns(seen, rank, hops, round_it, where, tally)
    told = 0
    for key in [*want, *(k for k in got if k not in want)]:
        there = want.get(key, [])
        here = _arranged(got.get(key, []), there)
        good, differences = _unit(key, here, there, wires)
        tally.messages += good
        for difference in differences:
            told += 1
            if told <= 40:
                yield difference


def _arranged(got: list[Message], want: list[Expected]) -> list[Message]:
    """Messages in the order of the program's, where those that a forward sends again may stand otherwise to the rest.

    Each of both stays in its own order: backward runs a forward again when it first needs what that makes, which may
    be after a gradient has been sent.
    """
    again, rest = [m for m in got if m.again], [m for m in got if not m.again]
    todo: list[tuple[int, int, int, tuple[Message, ...]]] = [(0, 0, 0, ())] if again and rest else []
    seen: set[tuple[int, int, int]] = set()
    while todo:
        i, j, k, taken = todo.pop()
        if i == len(again) and j == len(rest) and all(e.optional for e in want[k:]):
            return list(taken)
        if k == len(want) or (i, j, k) in seen:
            continue
        seen.add((i, j, k))
        if want[k].optional:
            todo.append((i, j, k + 1, taken))
        for row, at, after in ((rest, j, (i, j + 1)), (again, i, (i + 1, j))):
            if at < len(row) and (row[at].verb, row[at].axes) == (want[k].verb, want[k].axes) and not (
                    row[at].again and want[k].event.on_gradient):
                todo.append((*after, k + 1, (*taken, row[at])))
    return got


def _unit(key: tuple[str, int, str, int], got: list[Message], want: list[Expected],
          wires: Wires | None) -> tuple[int, list[Difference]]:
    """(how many match, the differences) of one unit in one phase of a microbatch."""
    phase, microbatch, unit, _ = key
    one = [(m.verb, m.axes) for m in got]
    two = [(e.verb, e.axes) for e in want]
    matcher = SequenceMatcher(None, one, two, autojunk=False)
    good = sum(block.size for block in matcher.get_matching_blocks())
    found: list[Difference] = []
    for tag, i, j, k, n in matcher.get_opcodes():
        if tag == "equal":
            found += [d for pair in zip(got[i:j], want[k:n], strict=True) for d in _combined(unit, *pair)]
            found += [d for m, e in zip(got[i:j], want[k:n], strict=True) if wires for d in wires.of_tensors(e, m)]
            continue
        for message in got[i:j]:
            found.append(Difference("message", unit, f"{message.module or phase}: {message.verb}"
                                    f"[{','.join(message.axes)}] in {phase}, which the program lacks", message.line))
        for expected in want[k:n]:
            if not expected.optional:
                found.append(Difference("message", unit, f"{expected.event.path} is missing in the {phase} of "
                                        f"microbatch {microbatch}", "", ({"drop": expected.event.path},)))
    return good - len([d for d in found if d.kind == "combined"]), found


def _combined(unit: str, message: Message, expected: Expected) -> Iterator[Difference]:
    """Whether what a message reduces is combined as the program says: parts of an activation are summed."""
    want = expected.event.op or "sum"
    if not expected.optional and message.op not in ("", want):
        edits = ({"set": expected.event.path, "op": message.op},) if message.op in ("sum", "mean") else ()
        yield Difference("combined", unit, f"{expected.event.path}: its parts are combined by {message.op}, where the "
                         f"program takes their {want}", message.line, edits)
