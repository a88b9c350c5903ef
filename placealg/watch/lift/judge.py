"""Whether every rank ends with the single device's elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placealg.watch.lift.field import PRIMES, UNKNOWN, Array, Field
from placealg.watch.lift.ranks import Run, run
from placealg.watch.lift.trace import Group, Held, Trace

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
    starts: Starts | None = None
    sizes: tuple[int, ...] = ()
    checked: int = 0
    alike: tuple[int, ...] = ()
    """Ranks that have given the same as another one to every sum that both take part in."""
    still: int = 0
    """Parameters of which the single device's optimizers read no gradient."""


def judge(ranks: Sequence[Trace], single: Trace, primes: Sequence[int] = PRIMES, keep: bool = False,
          alike: bool = False, handed: bool = False, around: Sequence[int] = (0, 1, 2, 3)) -> Judgement:
    """Run ranks and the single device again in fields, and hold their ends together.

    With `alike` they begin alike, whatever numbers they began with: what differs then the step itself does. What is
    `handed` to models counts as the numbers that it is, whatever made them.
    What differs does so in two fields: in one alone an element was met by chance that something is remembered of.
    Equal elements that were masked in two ways may be different ones: then they are told apart by what is around them,
    in one dim, in two or in three, as `around` says, and the ranks conform if they do in any of these.
    """
    first = _in_fields(ranks, single, primes, keep, alike, handed, around[0])
    if first.verdict == CONFORMS or not any(f.what.startswith(TWO_WAYS) for f in first.unseen):
        return first
    others = (_in_fields(ranks, single, primes, keep, alike, handed, dims) for dims in around[1:])
    return next((told for told in others if told.verdict == CONFORMS), first)


def _in_fields(ranks: Sequence[Trace], single: Trace, primes: Sequence[int], keep: bool, alike: bool, handed: bool,
               apart: int) -> Judgement:
    told: list[Judgement] = []
    for prime in primes:
        told.append(_judge(ranks, single, Field(prime), keep, alike, handed, apart))
        differ = [t for t in told if t.verdict == DIFFERS]
        others = [t for t in told if t.verdict != DIFFERS]
        if len(differ) == min(2, len(primes)):
            return differ[0]
        if len(others) == 2:
            break
    return next((t for t in others if t.verdict != CONFORMS), others[0])


def _judge(ranks: Sequence[Trace], single: Trace, numbers: Field, keep: bool, alike: bool, handed: bool,
           apart: int) -> Judgement:
    starts = Starts(single, ranks, numbers, alike)
    named = [starts.values(t) for t in ranks]
    with np.errstate(invalid="ignore"):  # memory that nobody wrote may hold anything
        tables = np.unique(np.concatenate([np.zeros(1), *(v.astype(np.float64) for _, v in single.leaf.values())]))
    (alone,), _ = run([single], [starts.values(single)], numbers, tables, keep, handed, apart)
    runs, stuck = run(ranks, named, numbers, tables, keep, handed, apart, alone)
    sizes = tuple(sorted({len(v.ranks) for t in ranks for op in t.ops for v in op.given.values()
                          if isinstance(v, Group)} - {1}))
    told = Judgement(CONFORMS, runs=runs, single=alone, starts=starts, sizes=sizes)
    random = any(r.memory.masks or r.memory.chancy for r in (*runs, alone))  # an earlier step was another one, too
    told.differs.extend([*starts.differs, *([] if random else starts.compare())])
    if stuck:
        told.unseen.append(Finding(f"ranks wait for each other: {stuck}"))
    for one in (*runs, alone):
        told.unseen.extend(Finding(f"{what} ({line})" if line else what, rank=one.rank)
                           for what, line in one.trace.unseen.items())
    told.unseen.extend(masks_differ(runs))
    _compare(told, runs, alone, starts)
    for name in dict.fromkeys(n for r in runs for n in r.trace.final if starts.label(n) not in single.named):
        told.unseen.append(Finding("the single device has none of this name", name))
    steering = [Finding(f"a number that is read from a tensor ({r.reads}) may be in what follows", rank=r.rank)
                for r in runs if r.odd]
    made = [r.derived for r in runs]
    if handed and alone.derived not in (sum(made), *(made[:1] if len(set(made)) == 1 else ())):
        steering.append(Finding("what models have made was handed to the single device as data"))
    if steering:
        told.unseen.extend(steering)
        told.differs = [f for f in told.differs if f.what.startswith(BEGAN)]
    told.alike = tuple(r.rank for r in runs if any(r.gives.values()))
    told.verdict = DIFFERS if told.differs or told.alike else UNSEEN if told.unseen else CONFORMS
    return told


def _compare(told: Judgement, runs: Sequence[Run], alone: Run, starts: Starts) -> None:
    """Hold every element of every named tensor on every rank against the single device's."""
    for label, final in alone.trace.final.items():
        if starts.label(label) != label:  # a copy of it, from which it comes
            continue
        want, began = alone.held(final).ravel(), starts.start(label, final)
        seen = np.zeros(want.size, bool)
        moment = label not in starts.parameters
        if final.trained and not moment and not (want != began).any():
            if unread(alone, label):
                told.still += 1
            else:
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
                told.differs.append(Finding("ends with other elements than the single device's", label, one.rank,
                                            int(wrong.sum()), got.size))
            if unknown.any():
                told.unseen.append(Finding("could not be followed: " + causes(one, alone), label, one.rank,
                                           int(unknown.sum()), got.size))
        if not seen.all():
            told.unseen.append(Finding("no rank holds it", label, -1, int((~seen).sum()), seen.size))


def unread(alone: Run, label: str) -> bool:
    """Whether the single device's optimizers read no gradient of a parameter, but of others."""
    read = alone.trace.gradients
    return (label not in read or read[label][1] is None) and any(place is not None for _, place, _ in read.values())


def causes(*runs: Run) -> str:
    """What could not be followed, by op and line."""
    found = dict.fromkeys(f"{what} ({line})" if line else what for r in runs for what, line in r.unseen.items())
    return "; ".join(list(found)[:3])


TWO_WAYS = "equal elements are masked in two ways"


def masks_differ(runs: Sequence[Run]) -> list[Finding]:
    """Elements for which a rank drew otherwise than another, or than itself in its forward."""
    drawn: dict[int, float] = {}
    found: dict[str, int] = {}
    for one in runs:
        for element, mask, line in one.memory.masks:
            for x, m in zip(element.tolist(), mask.tolist(), strict=True):
                if drawn.setdefault(x, m) != m:
                    found[line] = found.get(line, 0) + 1
    return [Finding(f"{TWO_WAYS}: whether they should be is not known ({line})", count=n)
            for line, n in found.items()]


class Starts:
    """What named tensors hold when the step begins: unknowns, by their place in the single device's tensor."""

    def __init__(self, single: Trace, ranks: Sequence[Trace], numbers: Field, alike: bool = False):
        self.single, self.field, self.alike = single, numbers, alike
        self.copied = {first: k for k in single.named for first in (k.partition("@")[0],) if first not in single.named}
        """What an optimizer keeps of a parameter that it updates in a copy -> what the single device calls that."""
        self.parameters = {k for k in single.named if "@" not in k and not any(
            k != p and k.startswith(f"{p}.") for p in single.named)}
        self.differs: list[Finding] = []
        halved = any(p.dtype in ("bfloat16", "float16") for t in (single, *ranks) for op in t.ops for p in op.written)
        self.tolerance = HALVED if halved else TOLERANCE
        sizes = {name: size for name, (_, _, size) in single.gradients.items()}
        least = 1e-5 * max((float(size.max(initial=0.0)) for size in sizes.values()), default=0.0)
        self.still = {n: size.ravel() < least if size.size else np.ones(single.named[n].start.size, bool)
                      for n, size in sizes.items() if n in single.named}
        """Elements of parameters whose gradient is rounding alone, of which an optimizer may make any number."""
        self.scales: dict[str, float] = {}
        self.numbers: dict[str, Array] = {}
        self.places: dict[tuple[int, str], Array | None] = {}

    def start(self, label: str, held: Held) -> Array:
        """The unknowns of a whole tensor; counts of steps are numbers."""
        if is_count(label):
            return self.field.numbers_of(self.single.named[label].start, "float32").ravel()
        return self.field.leaf(label, np.arange(int(np.prod(held.whole, dtype=np.int64))))

    def values(self, trace: Trace) -> dict[str, Array]:
        """Label -> the unknowns of the elements that a rank holds.

        Elements that began as other numbers than on another rank get unknowns of their own.
        """
        found = {}
        for own, held in trace.named.items():
            label = self.label(own)
            if is_count(label):
                found[own] = self.field.numbers_of(held.start, "float32")
                continue
            where = self.where(trace, own) if label in self.single.named else None
            if where is None:  # it has no place on the single device
                found[own] = np.full(held.place.shape, UNKNOWN, np.int64)
                continue
            made = self.field.leaf(label, where)
            off = self.apart(label, held, where)
            if off.any() and trace is not self.single and not self.alike:
                self.differs.append(Finding(f"{BEGAN} another rank", label, trace.rank,
                                            int(off.sum()), off.size))
                made = np.where(off, self.field.leaf(f"{label} on rank {trace.rank}", where), made)
            found[own] = made.reshape(held.place.shape)
        return found

    def apart(self, label: str, held: Held, where: Array) -> Array:
        """Which elements of a rank's tensor began as other numbers than those of a rank before it."""
        kept = self.numbers.setdefault(label, np.full(self.single.named[label].start.size, np.nan))
        mine, before = held.start.ravel().astype(np.float64), kept[where]
        fresh = np.isnan(before)
        kept[where[fresh]] = mine[fresh]
        size = max(float(np.abs(mine).max(initial=0.0)), 1e-2 * self.scale(label))
        return np.asarray(~fresh & (np.abs(mine - before) > ALIKE * size) & ~self.noise(label)[where])

    def compare(self) -> list[Finding]:
        """What began as other numbers than on the single device, where most began alike: else nothing is compared."""
        off: dict[str, tuple[int, int]] = {}
        for label, mine in self.numbers.items():
            if is_count(label):
                continue
            want = self.single.named[label].start.ravel().astype(np.float64)
            size = max(float(np.abs(want).max(initial=0.0)), 1e-2 * self.scale(label))
            off[label] = int(((np.abs(want - mine) > self.tolerance * size) & ~self.noise(label)).sum()), want.size
        lost = {self.label(own) for (_, own), where in self.places.items() if where is None} & self.parameters
        weights = [(n, size) for k, (n, size) in off.items() if k in self.parameters - lost]
        weights += [(size, size) for k in lost for size in (self.single.named[k].start.size,)]
        if 2 * sum(n for n, _ in weights) > sum(size for _, size in weights):
            return []
        return [Finding(f"{BEGAN} the single device", k, count=n, of=size)
                for k, (n, size) in off.items() if n > size // 2 or (n and k in self.parameters)]

    def label(self, name: str) -> str:
        """What the single device calls a tensor: a further name of a tied one is that of the first."""
        name = name.partition("@")[0]
        name = self.copied.get(name, name)
        if name in self.single.named:
            return name
        for other, first in self.single.tied.items():
            if name == other or name.startswith(f"{other}."):
                return first + name[len(other):]
        return name

    @staticmethod
    def parameter(label: str, trace: Trace) -> str:
        """The parameter of which a tensor is a moment, "" if it is none."""
        first = label.rpartition(".")[0]
        return first if first in trace.named else ""

    def noise(self, label: str) -> NDArray[np.bool_]:
        """Which elements of a tensor are of such a parameter, or what an optimizer keeps of them."""
        size = self.single.named[label].start.size
        none = np.zeros(size, bool)
        return next((each for name, each in self.still.items() if each.size == size and (
            label == name or label.startswith(f"{name}."))), none)

    def scale(self, label: str) -> float:
        """The largest number among all tensors of a kind."""
        kind = label.rpartition(".")[2] if label not in self.parameters else ""
        if kind not in self.scales:
            self.scales[kind] = self._scale(kind)
        return self.scales[kind]

    def _scale(self, kind: str) -> float:
        return max((float(np.abs(h.start).max(initial=0.0)) for k, h in self.single.named.items()
                    if (k.rpartition(".")[2] == kind if kind else k in self.parameters)), default=0.0)

    def where(self, trace: Trace, label: str) -> Array | None:
        """The flat places, in the single device's tensor, of the elements that a rank holds."""
        key = trace.rank if trace is not self.single else -1, label
        if key not in self.places:
            held = trace.named[label]
            whole = self.single.named[self.label(label)]
            alike, of = held.whole == whole.whole, self.parameter(label, trace)
            if not alike and of and trace.named[of].place.shape == held.place.shape:
                return self.where(trace, of)
            self.places[key] = held.elements.ravel() if alike else None if "@" in label else located(held, whole)
            if self.places[key] is None and label in self.parameters:
                self.places[key] = self._beside_others(trace, held, whole)
        return self.places[key]

    def _beside_others(self, trace: Trace, held: Held, whole: Held) -> Array | None:
        """The block at which all parameters of a rank stand that are cut into as many and that numbers locate."""
        dim = parted(held, whole)
        if dim is None:
            return None
        length, parts = held.start.shape[dim], whole.start.shape[dim] // held.start.shape[dim]
        found = set()
        for name in self.parameters & trace.named.keys():
            other, every = trace.named[name], self.single.named[name]
            along = parted(other, every)
            if along is not None and every.start.shape[along] == parts * other.start.shape[along] and (
                    chosen := _block(*_rows_of(other, every, along))) is not None:
                found.add(int(chosen[0]) // other.start.shape[along])
        at = found.pop() if len(found) == 1 else None
        return None if at is None else _taken(whole, dim, np.arange(at * length, (at + 1) * length))


ALIKE = 1e-4
"""By how much of a tensor's largest number two ranks may start apart."""

BEGAN = "began the step with other numbers than"

TOLERANCE = 1e-3
"""By how much of a tensor's largest number two runs may start apart."""

HALVED = 0.1
"""The same where anything is computed in two bytes."""


def is_count(label: str) -> bool:
    """Whether a named tensor counts steps."""
    return label.partition("@")[0].endswith(".step")


def parted(held: Held, whole: Held) -> int | None:
    """The dim along which a part is shorter than the whole, if it is one."""
    mine, every = held.start.shape, whole.start.shape
    dims = [d for d in range(len(mine)) if mine[d] != every[d]] if len(mine) == len(every) else []
    return dims[0] if len(dims) == 1 and mine[dims[0]] else None


def located(held: Held, whole: Held) -> Array | None:
    """Where a part stands in the whole, along one dim, found by its numbers: as a block, or row by row."""
    dim = parted(held, whole)
    if dim is None:
        return None
    told = _rows_of(held, whole, dim)
    chosen = _block(*told)
    return _taken(whole, dim, _rows(*told) if chosen is None else chosen)


def _rows_of(held: Held, whole: Held, dim: int) -> tuple[Any, Any, float]:
    """(the whole's rows along a dim, the part's, how far apart two may be that are one)."""
    rows, parts = (np.moveaxis(n, dim, 0).reshape(n.shape[dim], -1).astype(np.float64)
                   for n in (whole.start, held.start))
    return rows, parts, HALVED * float(np.abs(rows).max(initial=0.0))


def _taken(whole: Held, dim: int, chosen: Array | None) -> Array | None:
    """The flat places of some rows of the whole."""
    places = np.arange(whole.start.size).reshape(whole.start.shape)
    return None if chosen is None else np.asarray(np.take(places, chosen, axis=dim).ravel())


def _block(rows: Any, parts: Any, limit: float) -> Array | None:
    """The rows of the block that is nearest, if it is one block that is."""
    count = len(rows) // len(parts)
    if count * len(parts) != len(rows):
        return None
    away = np.abs(rows.reshape(count, *parts.shape) - parts).max((1, 2))
    first, second = np.sort(away)[:2]
    if first > limit or second <= 3 * first:
        return None
    at = int(away.argmin()) * len(parts)
    return np.arange(at, at + len(parts))


def _rows(rows: Any, parts: Any, limit: float) -> Array | None:
    """For each row the one that is nearest, if it is one that is and no row is taken twice."""
    chosen = []
    for part in parts:
        away = np.abs(rows - part).max(1)
        first, second = np.sort(away)[:2]
        if first > limit or second <= 3 * first:
            return None
        chosen.append(int(away.argmin()))
    return np.array(chosen) if len(set(chosen)) == len(chosen) else None
