"""Sends that wait for their receiver, as part of `schedule`: asked where a strategy says how messages are posted."""

from __future__ import annotations

from dataclasses import replace

from placealg.prover.messages import Stuck, dealt, posts_end, smallest
from placealg.prover.verdict import (
    BOUNDED,
    PROVED,
    REFUTED,
    UNDECIDED,
    Counterexample,
    Decided,
    Report,
    Verdict,
    overall,
)
from placealg.simulator.posts import Moved, Waits, stopped
from placealg.step.messages import Message, sends_wait, unlike
from placealg.step.pipeline import Pipeline
from placealg.step.program import Step

SCHEDULE = "schedule"

WANT = "each message moves once both of its stages stand at it, and every stage comes to its end"


def with_messages(step: Step, report: Report) -> Report:
    """The report with what `schedule` says of sends that wait; as it was where nothing is said of messages.

    Where nothing else is wrong with it `schedule` is then PROVED if every post ends too, and REFUTED if stages wait for
    each other in a run of their messages alone.

    >>> import placealg as pa
    >>> from placealg.strategy.spec import overlay
    >>> step = pa.derive(overlay(pa.parse_strategy("pp"), {"overlap": {"messages": "alone"}}), "gpt")
    >>> print(pa.prove(step).of("schedule")[0].reason)
    at pp = 2, m = 2 stage 0 waits to send F1 of chunk 0 to stage 1; stage 1 waits to send B0 of chunk 1 to stage 0
    """
    if not sends_wait(step.reference.pipeline):
        return report
    place = next(n for n, v in enumerate(report.obligations) if v.id == SCHEDULE and not v.group)
    before = report.obligations[place]
    verdict, found = _judged(step, before)
    obligations = (*report.obligations[:place], verdict, *report.obligations[place + 1:])
    whole, cls = overall(obligations)
    return replace(report, verdict=whole, cls=cls, obligations=obligations,
                   counterexample=report.counterexample or found)


def _judged(step: Step, before: Verdict) -> tuple[Verdict, Counterexample | None]:
    verdict = replace(before, instances=before.instances + 1, decided=before.decided + Decided(solver=1))
    if before.verdict != PROVED:
        return verdict, None
    if why := unlike(step):
        return replace(verdict, verdict=UNDECIDED, cls=None, reason=f"sends that wait: {why}"), None
    pipeline, fact = step.reference.pipeline, posts_end(step)
    if fact.verdict == PROVED:
        return replace(verdict, cls=BOUNDED if fact.cls == BOUNDED else verdict.cls), None
    sizes = step.reference.mesh.sizes().get(pipeline.axis), step.reference.microbatches
    found = smallest(pipeline, *sizes) if fact.verdict == REFUTED else None
    if found is None:
        return replace(verdict, verdict=UNDECIDED, cls=None, reason=f"sends that wait: {fact.reason}"), None
    left = replayed(pipeline, found)
    if left is None:
        return replace(verdict, verdict=UNDECIDED, cls=None,
                       reason=f"sends that wait: a run of the messages does not stop where {found}"), None
    example = _example(step, found, left)
    return replace(verdict, verdict=REFUTED, cls=BOUNDED, event=example.event,
                   reason=example.explanation.partition(". A run")[0]), example


def replayed(pipeline: Pipeline, found: Stuck) -> tuple[Waits, ...] | None:
    """The stages that an independent run of the messages leaves waiting, if those of the circle wait as it says."""
    left = stopped(dealt(pipeline), found.ranks, found.microbatches)
    waiting = {(waits.stage, message) for waits in left for message, _ in waits.messages}
    return left if all((stage, _moved(message)) in waiting for stage, message in found.waits) else None


def _moved(message: Message) -> Moved:
    back = message.phase == "backward"
    return Moved(back, message.microbatch, message.chunk - back)


def _example(step: Step, found: Stuck, left: tuple[Waits, ...]) -> Counterexample:
    axis = step.reference.pipeline.axis
    sizes = {axis: found.ranks, "m": found.microbatches, **({"v": found.chunks} if found.chunks > 1 else {})}
    stage, message = found.waits[0]
    verb = "send" if message.source == stage else "recv"
    event = next((e for e in step.events if e.verb == verb and e.phase == message.phase), step.events[-1])
    told = f"at {', '.join(f'{name} = {size}' for name, size in sizes.items())} {found}"
    stages = ", ".join(str(waits.stage) for waits in left)
    return Counterexample(
        SCHEDULE, event.path, "", tuple(sizes.items()), ((axis, stage),), "",
        f"{len(left)} of {found.ranks} stages wait forever", WANT, None,
        f"{told}. A run of the messages alone stops there, with stages {stages} left",
        single_device="runs to its end", distributed=f"stages {stages} wait forever", line=event.line)
