"""How a stage of a pipeline posts its messages: which of them together, and in which order.

A *post* is a set of messages that a stage hands over together and then waits for together. Where a send waits for its
receiver, a message moves once both of its stages stand at the post that holds it, and a stage goes on once all
messages of its post have moved. `[overlap] messages` says what a post is:

- alone: every message is a post; an item of work stands between what it receives and what it sends.
- grouped: what an item sends is one post with what the next item receives (`batch_isend_irecv`, as
  `send_forward_recv_backward` of Megatron-LM, core/pipeline_parallel/p2p_communication.py).
- four: as grouped, but where forwards and backwards alternate such a pair is one block, between two of which up to
  four messages are one post (`send_forward_backward_recv_forward_backward` there). The forwards that a stage runs
  ahead are no part of a block. Where an order has no such number, a block is a forward with the backward behind it.

Several tensors that pass between the same two items are one message: both sides post them in the same order, and
nothing that waits for another stage stands between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from placealg.arith import parse
from placealg.step.event import LOOPED
from placealg.step.pipeline import AHEAD, Item, Pipeline, work
from placealg.step.program import Step
from placealg.step.verbs import MESSAGES
from placealg.strategy.vocabulary import BUFFERED, FOUR

ALONE = "alone"

SEND, RECV = MESSAGES


@dataclass(frozen=True, slots=True, order=True)
class Message:
    """What passes from one stage to another: the result of a microbatch's forward or backward through a chunk."""

    phase: str
    microbatch: int
    chunk: int
    source: int
    target: int

    def __str__(self) -> str:
        return f"{self.phase[0].upper()}{self.microbatch} of chunk {self.chunk}"


Post = tuple[Message, ...]


def hops(pipeline: Pipeline, stage: int, ranks: int, microbatches: int) -> Iterator[tuple[Item, Post, Post]]:
    """Each item of a stage with the message that it receives and the one that it sends, if there are any.

    >>> [(item, len(received), len(sent)) for item, received, sent in hops(Pipeline("pp"), 1, 2, 1)]
    [(F0, 1, 0), (B0, 0, 1)]
    """
    own, last = pipeline.own(stage, ranks), ranks * (pipeline.chunks or 1) - 1
    for item in work(pipeline, stage, ranks, microbatches):
        chunk, step = own[item.chunk], {"forward": 1, "backward": -1}.get(item.phase, 0)
        received, sent = Post(), Post()
        if step and 0 <= chunk - step <= last and (source := pipeline.rank(chunk - step, ranks)) != stage:
            received = (Message(item.phase, item.microbatch, chunk - step, source, stage),)
        if step and 0 <= chunk + step <= last and (target := pipeline.rank(chunk + step, ranks)) != stage:
            sent = (Message(item.phase, item.microbatch, chunk, stage, target),)
        yield item, received, sent


def blocks(pipeline: Pipeline, stage: int, ranks: int, microbatches: int) -> tuple[tuple[int, ...], ...]:
    """The places in a stage's work of the items between which it posts no message.

    >>> blocks(Pipeline("pp", messages="four"), 0, 2, 3), blocks(Pipeline("pp", messages="grouped"), 0, 2, 2)
    (((0,), (1, 2), (3, 4), (5,)), ((0,), (1,), (2,), (3,)))
    """
    items = work(pipeline, stage, ranks, microbatches)
    if pipeline.messages != FOUR:
        return tuple((n,) for n in range(len(items)))
    sizes = {"p": ranks, "i": stage, "m": microbatches, "v": pipeline.chunks or 1}
    ahead = 0 if pipeline.actions or pipeline.order not in AHEAD else int(parse(AHEAD[pipeline.order]).evaluate(sizes))
    found, done = list[tuple[int, ...]](), 0
    for n, item in enumerate(items):
        behind = bool(n) and items[n - 1].phase == "forward" and item.phase == "backward" and done > ahead
        if behind:
            found[-1] = (*found[-1], n)
        else:
            found.append((n,))
        done += item.phase == "forward"
    return tuple(found)


def posts(pipeline: Pipeline, stage: int, ranks: int, microbatches: int) -> tuple[Post, ...]:
    """The posts of a stage, in their order.

    >>> for post in posts(Pipeline("pp", messages="grouped"), 0, 2, 2):
    ...     print(" and ".join(f"{message} from {message.source}" for message in post))
    F0 of chunk 0 from 0
    F1 of chunk 0 from 0 and B0 of chunk 1 from 1
    B1 of chunk 1 from 1
    """
    every = list(hops(pipeline, stage, ranks, microbatches))
    if pipeline.messages == ALONE:
        return tuple(post for _, received, sent in every for post in (received, sent) if post)
    found, behind = list[Post](), Post()
    for block in blocks(pipeline, stage, ranks, microbatches):
        found.append((*behind, *(x for n in block for x in every[n][1])))
        behind = tuple(x for n in block for x in every[n][2])
    return tuple(post for post in (*found, behind) if post)


def unlike(step: Step) -> str:
    """Why a program's messages are not those of its pipeline's order, one before an item and one behind it; else "".

    >>> import placealg as pa
    >>> unlike(pa.derive("pp", "gpt"))
    ''
    """
    axis = step.reference.pipeline.axis
    sent = set[tuple[str, str]]()
    for event in step.events:
        at = str(event.phase), event.unit
        if axis not in event.axes or event.phase not in LOOPED:
            continue
        if event.verb not in MESSAGES:
            return f"{event.path} is among stages of {axis}, inside the loop over microbatches"
        if event.on_gradient != (event.phase == "backward"):
            return f"{event.path} sends forward in the backward, or back in the forward"
        if event.verb == SEND:
            sent.add(at)
        elif at in sent:
            return f"{event.path} stands behind what its item sends"
    return ""


def chain(lists: Sequence[Sequence[Post]]) -> tuple[tuple[int, Message], ...]:
    """Stages that wait for each other in a circle, each with the message that it waits for; () where all posts end.

    A stage goes from post to post as far as it can: it has ended a post once the other stage of each of its messages
    stands at that message, or is past it.
    """
    place = [{message: n for n, post in enumerate(found) for message in post} for found in lists]
    at = [0] * len(lists)

    def missing(stage: int) -> Iterator[tuple[int, Message]]:
        for message in lists[stage][at[stage]]:
            other = message.target if message.source == stage else message.source
            if place[other][message] > at[other]:
                yield other, message

    moved = True
    while moved:
        moved = False
        for stage, found in enumerate(lists):
            while at[stage] < len(found) and not any(True for _ in missing(stage)):
                at[stage] += 1
                moved = True
    stuck = [stage for stage, found in enumerate(lists) if at[stage] < len(found)]
    if not stuck:
        return ()
    walked = dict[int, Message]()
    stage = stuck[0]
    while stage not in walked:
        other, message = next(missing(stage))
        walked[stage] = message
        stage = other
    listed = list(walked.items())
    first = next(n for n, (found_at, _) in enumerate(listed) if found_at == stage)
    return tuple(listed[first:])


def sends_wait(pipeline: Pipeline) -> bool:
    """Whether it is said of a pipeline how its messages are posted, so that sends wait for their receiver."""
    return bool(pipeline.axis) and pipeline.messages != BUFFERED
