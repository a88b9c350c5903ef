"""The obligations `race` and `alias` beside the others: asked where a program says on which streams its events run."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from placealg.errors import InputError
from placealg.prover.races import ALIAS, ORDER, RACE, Asked, Found, ask, told
from placealg.prover.verdict import (
    ASKED_FOR,
    BOUNDED,
    PARAMETRIC,
    PROVED,
    RACES_LEFT_OUT,
    REFUTED,
    UNDECIDED,
    Counterexample,
    Decided,
    Repair,
    Report,
    Verdict,
    overall,
)
from placealg.simulator.streams import Name, Race, Unrolled, Wrong
from placealg.step.edit import Edited
from placealg.step.event import MICROBATCH
from placealg.step.instances import Ordered, ordered
from placealg.step.order import HOST
from placealg.step.program import Step

LEFT = ("races inside one collective, the skew of ranks on two communicators, memory that an allocator gives to "
        "another value where [buffers] does not say so, and what runs beside init, save and resume: race says in which "
        "order the streams of one rank touch memory in a step")
"""What a verdict does not cover of order where `race` is asked."""

RUNS = 400
"""The orders that are tried to show a race as a read that is wrong."""

PLACED = 20
"""How often blocks and slots are given out by chance, beside the usual way, to show a failure."""


@dataclass(frozen=True)
class Shown:
    """A race at some sizes that the unrolled program has, and a run in which it shows, if one was found."""

    sizes: Mapping[str, int]
    slots: int
    race: Race | None
    wrong: Wrong | None


def with_order(step: Step, report: Report, base: Step | None = None, file: Edited | None = None) -> Report:
    """The report with the verdicts on order, and the first race if nothing else is wrong; as it was without streams.

    `base` and `file` as in `judge`: where there is a `base`, a wait is looked for that mends a race.

    >>> import placealg as pa
    >>> from placealg.strategy.spec import overlay
    >>> step = pa.derive(overlay(pa.zero3(), {"overlap": {"waits": "fsdp2"}}), pa.abstract())
    >>> [v.verdict for v in pa.prove(step).obligations if v.id in ("race", "alias")]
    ['PROVED', 'PROVED']
    """
    if not step.order:
        if step.reference.buffers:
            raise InputError("[buffers] speaks of events that run on several streams, and all run on one: [overlap] "
                             "waits or an edit says `stream`")
        return report
    try:
        program = ordered(step)
    except InputError as error:
        raise error.at(_place(step, error, file)) from None
    verdicts, example = list(report.obligations), report.counterexample
    for identifier in ORDER:
        answers = ask(program, identifier)
        verdict, found = _judged(program, identifier, answers)
        verdicts.append(verdict)
        if found is not None and example is None:
            example = replace(found, repair=_repair(step, answers, file)) if base is not None else found
    whole, cls = overall(verdicts)
    return replace(report, verdict=whole, cls=cls, obligations=tuple(verdicts),
                   not_covered=left_by_order(report.not_covered), counterexample=example)


def _place(step: Step, error: InputError, file: Edited | None) -> str:
    """FILE:LINE of the edit that wrote the event with whose path an error begins; "" where none did."""
    line = next((e.line for e in step.order if error.what.startswith(e.path)), 0)
    return next((e.place for e in file.edits if e.line == line), "") if file and line else ""


def left_by_order(lines: Iterable[str]) -> tuple[str, ...]:
    """What a verdict does not cover, where `race` is asked.

    >>> left_by_order([RACES_LEFT_OUT]) == (LEFT,)
    True
    """
    return tuple(LEFT if line == RACES_LEFT_OUT else line for line in lines)


def _repair(step: Step, answers: Asked, file: Edited | None) -> Repair | None:
    from placealg.check.repair import by_wait

    pairs = dict.fromkeys((f.conflict.first.name, f.conflict.second.name) for f in answers.found
                          if f.conflict.obligation == RACE)
    return next((found for one, other in list(pairs)[:3] if (found := by_wait(step, one, other, file))), None)


def _judged(program: Ordered, identifier: str, answers: Asked) -> tuple[Verdict, Counterexample | None]:
    verdict = Verdict(identifier, "", ASKED_FOR[identifier], PROVED, PARAMETRIC, answers.pairs, answers.seconds,
                      decided=Decided(solver=answers.pairs))
    if not answers.pairs:
        reason = "no two streams touch one slot" if identifier == RACE else "no two values have one slot"
        return replace(verdict, reason=reason), None
    for found in sorted(answers.found, key=lambda f: (sum(f.sizes.values()), f.slots, f.second)):
        shown = replayed(program, found)
        if shown is not None:
            more = len(answers.found) - 1
            example = _example(program, found, shown)
            others = f"; so are {more} more pairs" if more > 1 else "; so is 1 more pair" if more else ""
            reason = example.explanation.partition(". In one order")[0] + others
            return replace(verdict, verdict=REFUTED, cls=BOUNDED, event=example.event, reason=reason), example
    open_ = (*answers.open, *answers.found)
    if open_:
        first = open_[0]
        why = first.reason or f"at {_at(first.sizes, first.slots)} the unrolled program has no such race"
        return replace(verdict, verdict=UNDECIDED, cls=None, event=first.conflict.second.name,
                       reason=f"{told(first.conflict)}: {why}"), None
    return verdict, None


def replayed(program: Ordered, found: Found) -> Shown | None:
    """The same failure in the unrolled program, with real slots, at the sizes found; None if there is none."""
    steps = max(found.first[0], found.second[0]) + 1
    if steps * _instances(program, found.sizes) > 20_000:
        return None
    names = (found.conflict.first.name, found.conflict.second.name)
    for chance in (None, *map(random.Random, range(PLACED))):
        unrolled = Unrolled(program, found.sizes, found.slots, steps, chance)
        if found.conflict.obligation == ALIAS:
            if wrong := unrolled.run():
                return Shown(found.sizes, found.slots, None, wrong)
        elif race := next((r for r in unrolled.races() if (r.first[0], r.second[0]) == names), None):
            runs = (unrolled.run(random.Random(seed)) for seed in range(RUNS))
            return Shown(found.sizes, found.slots, race, next((w for w in runs if w), None))
    return None


def _instances(program: Ordered, sizes: Mapping[str, int]) -> int:
    total = 0
    for node in program.nodes:
        count = 1
        for loop in node.loops:
            count *= sizes[str(loop.count)]
        total += count
    return total


def _at(sizes: Mapping[str, int], slots: int, ring: bool = True) -> str:
    return ", ".join([*(f"{name} = {size}" for name, size in sizes.items()), *([f"K = {slots}"] if ring else [])])


def where(program: Ordered, name: Name, sizes: Mapping[str, int]) -> str:
    """An instance in words: the event, the step, the microbatch, and the instance of its unit.

    Steps, microbatches and instances are counted from 0.
    """
    node, turns = program.node(name[0]), name[1]
    parts = [f"step {turns[0]}"]
    for loop, turn in zip(node.loops, turns[1:], strict=True):
        if loop.name == MICROBATCH:
            parts.append(f"microbatch {turn}")
        else:
            parts.append(f"{loop.name} {sizes[str(loop.count)] - 1 - turn if loop.reverse else turn}")
    return f"{name[0]} ({', '.join(parts)})"


def _example(program: Ordered, found: Found, shown: Shown) -> Counterexample:
    sizes, ring = shown.sizes, any(isinstance(b.size, str) for b in program.reference.buffers.values()
                                   if b.kind == "ring")
    said = _at(sizes, shown.slots, ring)
    wrong = shown.wrong
    if shown.race is not None:
        first, second, cell = shown.race.first, shown.race.second, shown.race.cell
        one, two = program.node(first[0]), program.node(second[0])
        does = "writes" if any(c.place == cell.place for c in one.writes) else "reads"
        also = "writes" if any(c.place == cell.place for c in two.writes) else "reads"
        explanation = (f"{said}: {where(program, first, sizes)} {_on(one.stream)} {does} {cell}; "
                       f"{where(program, second, sizes)} {_on(two.stream)} {also} the same slot, and nothing lets it "
                       "wait")
        event = second[0]
    else:
        assert wrong is not None
        event = wrong.reader[0]
        explanation = (f"{said}: {where(program, wrong.reader, sizes)} reads {wrong.cell}, whose slot then holds "
                       f"{_wrote(program, wrong.got, sizes)}, also in printed order")
    node = program.node(event)
    got, want = (_wrote(program, w, sizes) for w in (wrong.got, wrong.want)) if wrong else ("", "")
    seen = f". In one order that the streams allow, {where(program, wrong.reader, sizes)} finds {got}, and should " \
           f"find {want}" if wrong and shown.race else ""
    return Counterexample(
        found.conflict.obligation, event, node.event.group, (*sizes.items(), *((("K", shown.slots),) if ring else ())),
        (), "", got, want, None, explanation + seen, line=node.event.line)


def _on(stream: str) -> str:
    return "on the host" if stream == HOST else f"on stream {stream}"


def _wrote(program: Ordered, name: Name | None, sizes: Mapping[str, int]) -> str:
    return f"what {where(program, name, sizes)} wrote" if name else "what was there before"
