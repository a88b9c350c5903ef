"""Orders of a pipeline that is folded into a V: a rank has a chunk of the model's first half, and one of its second.

With p ranks and 2*p chunks, rank i holds chunks i and 2*p - 1 - i, so that the model begins and ends on rank 0 and
turns on rank p - 1. What a rank does is a few runs, one behind the other, each of which repeats some items; how often
is arithmetic over p, the rank's number i and the number of microbatches m, and so are places, counts and times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from placealg.arith import parse
from placealg.step.closed_forms import SAMPLES, Derived, Stage, held_form


class Entry(NamedTuple):
    """One item of a run: the phase and the chunk of the rank, 0 or 1; chunk None is the oldest that was put off."""

    phase: str
    chunk: int | None


@dataclass(frozen=True, slots=True)
class Run:
    """Items that a rank repeats, `times` times: arithmetic over p, i, m, and half of i + 1 and what is left of it."""

    times: str
    items: tuple[Entry, ...]

    @property
    def put_off(self) -> tuple[int, ...]:
        """The places of backwards whose part for the weights neither follows in the run nor has a run of its own."""
        return tuple(k for k, item in enumerate(self.items)
                     if item.phase == "backward" and Entry("weights", item.chunk) not in self.items)


def _runs(*said: tuple[str, str]) -> tuple[Run, ...]:
    phase = {"F": "forward", "B": "backward", "W": "weights"}
    return tuple(Run(times, tuple(Entry(phase[word[0]], int(word[1:]) if word[1:] else None) for word in words.split()))
                 for times, words in said)


FOLDED: Mapping[str, tuple[Run, ...]] = {
    "zb_v": _runs(
        ("2*(p - i) - 1", "F0"), ("i", "F1 F0"), ("p - i", "F1 B1 W1"), ("m - 2*p + 1 + i", "F0 B0 W0 F1 B1 W1"),
        ("p - 1 - i", "B0 W0 F1 B1 W1"), ("i", "B0 B1"), ("p - i", "B0 W0"), ("i", "W1"), ("i", "W0")),
    "dualpipe_v": _runs(
        ("2*(p - 1 - i)", "F0"), ("i + 1", "F0 F1"), ("p - 1 - i", "B1 W1 F1"),
        ("m - 2*p + 1 + i", "F0 B1 W1 F1 B0 W0"), ("p - 1 - i", "B1 W1 F1 B0 W0"),
        ("half", "B1 W1 B0 W0"), ("odd", "B1 W1 B0"), ("half", "B1 B0"), ("p - 1 - i", "W B0"), ("i + 1", "W")),
}
"""Order -> what rank i does, run by run, of at least as many microbatches as `LEAST` says.

zb_v: Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362, where a backward for the weights
follows the one for the inputs until forwards end. dualpipe_v: DualPipe (DeepSeek-AI, arXiv 2412.19437, section 3.2.1)
cut in half by its symmetry; a forward and a backward that it runs at the same time stand here one behind the other.
"""

LEAST: Mapping[str, str] = {"zb_v": "2*p - 1", "dualpipe_v": "2*p"}
"""Order -> the least m that fills it. Of fewer microbatches a rank does what is left without those that lack."""

def counted(times: str, ranks: int, rank: int, microbatches: int) -> int:
    """How often a rank repeats a run."""
    half, odd = divmod(rank + 1, 2)
    return int(parse(times).evaluate({"p": ranks, "i": rank, "m": microbatches, "half": half, "odd": odd}))


def folded_work(order: str, rank: int, ranks: int, microbatches: int) -> Iterator[tuple[str, int, int]]:
    """(phase, microbatch, chunk of the rank) of everything that a rank does, in order.

    >>> [f"{phase[0].upper()}{chunk}.{k}" for phase, k, chunk in folded_work("zb_v", 0, 1, 2)]
    ['F0.0', 'F1.0', 'B1.0', 'W1.0', 'F0.1', 'B0.0', 'W0.0', 'F1.1', 'B1.1', 'W1.1', 'B0.1', 'W0.1']
    """
    filled = max(microbatches, counted(LEAST[order], ranks, rank, microbatches))
    done = dict[Entry, int]()
    late = deque[tuple[str, int, int]]()
    queued = any(item.chunk is None for run in FOLDED[order] for item in run.items)
    for run in FOLDED[order]:
        for _ in range(counted(run.times, ranks, rank, filled)):
            for place, item in enumerate(run.items):
                if item.chunk is None:
                    found = late.popleft()
                else:
                    found = item.phase, done.get(item, 0), item.chunk
                    done[item] = found[1] + 1
                    if queued and place in run.put_off:
                        late.append(("weights", *found[1:]))
                if found[1] < microbatches:
                    yield found


def _most_held(order: str) -> str:
    """The forwards of both chunks without their backwards where a rank has most of them, read off small runs."""
    found: dict[Stage, tuple[int, int]] = {}
    for ranks, rank in SAMPLES:
        now = [0, 0]
        for phase, _, chunk in folded_work(order, rank, ranks, 2 * ranks + 1):
            now[chunk] += {"forward": 1, "backward": -1}.get(phase, 0)
            if sum(now) > sum(found.get((ranks, rank), ())):
                found[ranks, rank] = now[0], now[1]
    return held_form(found)


HELD: Mapping[str, str] = Derived(_most_held)
"""Order -> the most forwards of a chunk that rank i has run without their backwards for the inputs, or the weights."""
