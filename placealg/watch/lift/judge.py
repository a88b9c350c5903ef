"""Whether every rank ends with the single device's elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from placealg.watch.lift.field import PRIMES, UNKNOWN, Array, Field
from placealg.watch.lift.ranks import Run, run
from placealg.watch.lift.trace import Held, Trace

CONFORMS, DIFFERS, UNSEEN = "CONFORMS", "DIFFERS", "UNSEEN"


@dataclass(frozen=True)
class Finding:
    """One thing that is not the single device's, or could not be followed: of which tensor, on which rank, how many."""

    what: str
    label: str = ""
    rank: int = -1
    count: int = 0
    of: int = 0


@dataclass
class Judgement:
    """The verdict on ranks beside a single device, with what it rests on."""

    verdict: str
    differs: list[Finding] = field(default_factory=list)
    unseen: list[Finding] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    single: Run | None = None
    checked: int = 0


def judge(ranks: Sequence[Trace], single: Trace, primes: Sequence[int] = PRIMES, keep: bool = False) -> Judgement:
    """Run ranks and the single device again in each field, and hold their ends together."""
    told: list[Judgement] = []
    for prime in primes:
        told.append(_judge(ranks, single, Field(prime), keep))
        if told[-1].verdict == DIFFERS:
            return told[-1]
    return next((t for t in told if t.verdict != CONFORMS), told[0])


def _judge(ranks: Sequence[Trace], single: Trace, numbers: Field, keep: bool) -> Judgement:
    starts = Starts(single, numbers)
    named = [starts.values(t) for t in ranks]
    runs, stuck = run(ranks, named, numbers, keep)
    (alone,), _ = run([single], [starts.values(single)], numbers, keep)
    told = Judgement(CONFORMS, runs=runs, single=alone)
    told.differs.extend(starts.differs)
    told.unseen.extend(starts.unseen)
    if stuck:
        told.unseen.append(Finding(f"ranks wait for each other: {stuck}"))
    for one in (*runs, alone):
        told.unseen.extend(Finding(f"{what} ({line})" if line else what, rank=one.rank)
                           for what, line in one.trace.unseen.items())
    told.differs.extend(masks_differ(runs))
    _compare(told, runs, alone, starts)
    reads = [Finding(f"a number that is read from a tensor ({line})", rank=r.rank) for r in runs for line in r.read]
    if told.differs and reads and not any(f.what.startswith("start") for f in told.differs) and starts.odd(ranks):
        told.unseen.extend(reads)
        told.differs = []
    told.verdict = DIFFERS if told.differs else UNSEEN if told.unseen else CONFORMS
    return told


def _compare(told: Judgement, runs: Sequence[Run], alone: Run, starts: Starts) -> None:
    """Hold every element of every named tensor on every rank against the single device's."""
    for label, final in alone.trace.final.items():
        want, began = alone.held(final).ravel(), starts.start(label, final)
        seen = np.zeros(want.size, bool)
        moment = label not in starts.parameters
        if final.trained and not moment and not (want != began).any():
            told.unseen.append(Finding("the single device does not update it", label))
        for one, name, mine in ((r, n, h) for r in runs for n, h in r.trace.final.items() if starts.label(n) == label):
            where = starts.where(one.trace, name)
            if where is None:
                told.unseen.append(Finding("which elements a rank holds is not known", label, one.rank))
                seen[:] = True
                continue
            got, wanted = one.held(mine).ravel(), want[where]
            seen[where] = True
            told.checked += got.size
            unknown = (got == UNKNOWN) | (wanted == UNKNOWN)
            wrong = (got != wanted) & ~unknown
            if wrong.any():
                told.differs.append(Finding("ends with other elements", label, one.rank, int(wrong.sum()), got.size))
            if unknown.any():
                told.unseen.append(Finding("could not be followed: " + causes(one, alone), label, one.rank,
                                           int(unknown.sum()), got.size))
        if not seen.all():
            told.unseen.append(Finding("no rank holds it", label, -1, int((~seen).sum()), seen.size))


def causes(*runs: Run) -> str:
    """What could not be followed, by op and line."""
    found = dict.fromkeys(f"{what} ({line})" if line else what for r in runs for what, line in r.unseen.items())
    return "; ".join(list(found)[:3])


def masks_differ(runs: Sequence[Run]) -> list[Finding]:
    """Elements for which a rank drew otherwise than another, or than itself in its forward."""
    drawn: dict[int, float] = {}
    found: dict[str, int] = {}
    for one in runs:
        for element, mask, line in one.memory.masks:
            for x, m in zip(element.tolist(), mask.tolist(), strict=True):
                if drawn.setdefault(x, m) != m:
                    found[line] = found.get(line, 0) + 1
    return [Finding(f"an element is masked in two ways ({line})", count=n) for line, n in found.items()]


class Starts:
    """What named tensors hold when the step begins: unknowns, by their place in the single device's tensor."""

    def __init__(self, single: Trace, numbers: Field):
        self.single, self.field = single, numbers
        self.parameters = {k for k in single.named if not any(k != p and k.startswith(f"{p}.") for p in single.named)}
        self.differs: list[Finding] = []
        self.unseen: list[Finding] = []
        halved = any(p.dtype in ("bfloat16", "float16") for op in single.ops for p in op.written)
        self.tolerance = HALVED if halved else TOLERANCE
        self.places: dict[tuple[int, str], Array | None] = {}

    def start(self, label: str, held: Held) -> Array:
        """The unknowns of a whole tensor; counts of steps are numbers."""
        if is_count(label):
            return self.field.numbers_of(self.single.named[label].start, "float32").ravel()
        return self.field.leaf(label, np.arange(int(np.prod(held.whole, dtype=np.int64))))

    def values(self, trace: Trace) -> dict[str, Array]:
        """Label -> the unknowns of the elements that a rank holds."""
        found = {}
        for label, held in trace.named.items():
            own, label = label, self.label(label)
            if label not in self.single.named:
                continue
            if is_count(label):
                held = trace.named[own]
                found[own] = self.field.numbers_of(held.start, "float32")
                continue
            where = self.where(trace, own)
            if where is None:
                continue
            made = self.field.leaf(label, where).reshape(held.place.shape)
            if trace is not self.single and not self.alike(label, held, where, trace.rank):
                made = np.full(made.shape, UNKNOWN, np.int64)
            found[own] = made
        return found

    def label(self, name: str) -> str:
        """What the single device calls a tensor: a further name of a tied one is that of the first."""
        name = name.partition("@")[0]
        if name in self.single.named:
            return name
        for other, first in self.single.tied.items():
            if name == other or name.startswith(f"{other}."):
                return first + name[len(other):]
        return name

    def alike(self, label: str, held: Held, where: Array, rank: int) -> bool:
        """Whether a rank starts with the single device's numbers, as far as rounding lets one say."""
        if self.noise(label):
            return True
        want, got = self.single.named[label].start.ravel()[where].astype(np.float64), held.start.ravel()
        away = np.abs(want - got)
        size = max(float(np.abs(want).max(initial=0.0)), self.scale(label) * 1e-2)
        off = int((away > self.tolerance * size).sum())
        if off:
            self.differs.append(Finding("starts with other numbers", label, rank, off, got.size))
        return not off

    def noise(self, label: str) -> bool:
        """Whether a parameter's gradient is rounding alone, of which an optimizer may make any number."""
        sizes = {name: size for name, (_, _, size) in self.single.gradients.items()}
        own = next((size for name, size in sizes.items() if label == name or label.startswith(f"{name}.")), None)
        return own is not None and own < 1e-5 * max(sizes.values())

    def scale(self, label: str) -> float:
        """The largest number among all tensors of a kind."""
        kind = label.rpartition(".")[2] if label not in self.parameters else ""
        return max((float(np.abs(h.start).max(initial=0.0)) for k, h in self.single.named.items()
                    if (k.rpartition(".")[2] == kind if kind else k in self.parameters)), default=0.0)

    def where(self, trace: Trace, label: str) -> Array | None:
        """The flat places, in the single device's tensor, of the elements that a rank holds."""
        key = trace.rank if trace is not self.single else -1, label
        if key not in self.places:
            held = trace.named[label]
            whole = self.single.named[self.label(label)]
            alike = held.whole == whole.whole
            self.places[key] = held.elements.ravel() if alike else None if "@" in label else located(held, whole)
        return self.places[key]

    def odd(self, ranks: Sequence[Trace]) -> bool:
        """Whether a number that is no short fraction was met."""
        return bool(self.field.odd)


TOLERANCE = 1e-3
"""By how much of a tensor's largest number two runs may start apart."""


HALVED = 0.1
"""The same where the single device computes in two bytes."""


def is_count(label: str) -> bool:
    """Whether a named tensor counts steps."""
    return label.endswith(".step")


def located(held: Held, whole: Held) -> Array | None:
    """Where a part stands in the whole, found by its numbers: along one dim, as a block or row by row."""
    mine, every = held.start, whole.start
    if mine.ndim != every.ndim:
        return None
    places = np.arange(every.size).reshape(every.shape)
    dims = [d for d in range(mine.ndim) if mine.shape[d] != every.shape[d]]
    if len(dims) != 1:
        return None
    rows = np.moveaxis(every, dims[0], 0).reshape(every.shape[dims[0]], -1).astype(np.float64)
    parts = np.moveaxis(mine, dims[0], 0).reshape(mine.shape[dims[0]], -1).astype(np.float64)
    size = TOLERANCE * float(np.abs(rows).max(initial=1e-30))
    chosen = []
    for part in parts:
        near = np.flatnonzero((np.abs(rows - part) <= size).all(1))
        if near.size != 1:
            return None
        chosen.append(int(near[0]))
    return np.asarray(np.take(places, chosen, axis=dims[0]).ravel())


__all__ = ["CONFORMS", "DIFFERS", "UNSEEN", "Finding", "Judgement", "Mapping", "judge"]
