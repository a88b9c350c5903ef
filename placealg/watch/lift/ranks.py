"""The ranks of a recording, run again beside each other in one field."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from placealg.watch.lift.field import ENDLESS, SHORT, UNKNOWN, Array, Field, Told, fraction_of, told
from placealg.watch.lift.memory import Memory
from placealg.watch.lift.messages import Message, communicates, message_of
from placealg.watch.lift.rules import RULES, Call, Chance, listed, moves
from placealg.watch.lift.trace import HANDED, READ, Held, Op, Place, Trace


class Value(NamedTuple):
    """What an op computed: its number among the rank's ops, and the array."""

    op: int
    array: Array


@dataclass
class Run:
    """One rank run again: where it stands, what it computed, and what could not be followed: what, and its line."""

    trace: Trace
    memory: Memory
    named: Mapping[str, Array] = field(default_factory=dict)
    at: int = 0
    values: list[Value] = field(default_factory=list)
    pending: dict[int, int] = field(default_factory=dict)
    read: dict[int, float] = field(default_factory=dict)
    """Element that was read from a tensor -> its number."""
    reads: str = ""
    """The line where one was read first."""
    odd: bool = False
    """Whether an op was given a number, after one was read, that is none of the single device's."""
    gradients: dict[str, Array | None] = field(default_factory=dict)
    gives: dict[int, bool] = field(default_factory=dict)
    """Another rank -> whether both have given the same to every sum that they take part in."""
    derived: int = 0
    """How many of the tensors that the script has handed to models and losses were made of what models have made."""
    inputs: list[Array] = field(default_factory=list)
    """What modules read that no op in a module has written, and that is no named tensor."""
    computed: set[int] = field(default_factory=set)
    """Storages that ops in modules, in backward and in updates have written, and what was made of these, or of named
    tensors."""
    due: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Op -> the gradients that the optimizer reads before it."""

    def __post_init__(self) -> None:
        for name, (before, _, _) in self.trace.gradients.items():
            self.due[before].append(name)

    @property
    def unseen(self) -> dict[str, str]:
        """What could not be followed -> its line."""
        return self.memory.unseen

    @cached_property
    def numbers(self) -> frozenset[float]:
        """The numbers that its ops are given, but for short fractions."""
        return frozenset(n for op in self.trace.ops for n in numbers_in(op))

    @property
    def rank(self) -> int:
        """The number of the rank."""
        return self.trace.rank

    def held(self, held: Held) -> Array:
        """What a named tensor holds now."""
        return np.array(self.memory.view(held.place))


def run(traces: Sequence[Trace], values: Sequence[Mapping[str, Array]], numbers: Field, tables: Any,
        keep: bool = False, handed: bool = False, apart: int = 0, single: Run | None = None) -> tuple[list[Run], str]:
    """Run all ranks again, beside the `single` device: (what each did; where they wait for ever, "" if nowhere).

    `values` are the unknowns of each rank's named tensors, `tables` the numbers that the single device has met; with
    `keep` every value that is computed is kept, with `handed` what models were handed is the numbers that it was; equal
    elements that a draw meets are told `apart` by so many dims.
    """
    runs = [Run(t, Memory(numbers, t, tables, apart), named) for t, named in zip(traces, values, strict=True)]
    world = World({r.rank: r for r in runs}, numbers, keep, handed, single)
    moved = True
    while moved:
        moved = False
        for one in runs:
            while one.at < len(one.trace.ops) and world.step(one):
                moved = True
    stuck = [f"rank {r.rank} at {r.trace.ops[r.at].name} ({r.trace.ops[r.at].line})" for r in runs
             if r.at < len(r.trace.ops)]
    for one in runs:
        for store in one.pending:
            if store in one.memory.stores:
                one.memory.stores[store][1].fill(UNKNOWN)
        for at in [at for at in one.due if at >= one.at]:
            world.read_gradients(one, at)
    return runs, ", ".join(stuck)


class World:
    """What is between the ranks: collectives that have begun, and messages on their way."""

    def __init__(self, runs: Mapping[int, Run], numbers: Field, keep: bool, handed: bool = False,
                 single: Run | None = None):
        self.runs, self.field, self.keep, self.handed, self.single = runs, numbers, keep, handed, single
        self.met: dict[tuple[tuple[int, ...], int], dict[int, tuple[Message, int]]] = defaultdict(dict)
        self.count: dict[tuple[tuple[int, ...], int], int] = defaultdict(int)
        self.sent: dict[tuple[int, int, int], deque[tuple[Array, ...]]] = defaultdict(deque)
        self.awaited: dict[tuple[int, int, int], deque[tuple[Message, int]]] = defaultdict(deque)

    def step(self, one: Run) -> bool:
        """Run the next op of a rank; False if it waits for others."""
        op = one.trace.ops[one.at]
        if one.pending:
            due = (g for g in (one.trace.gradients[n][1] for n in one.due.get(one.at, ())) if g is not None)
            if any(p.store in one.pending for p in (*op.read, *op.written, *due)):
                return False
        if one.at == one.trace.mark:
            if one.memory.named & one.pending.keys():
                return False
            one.memory.name({k: h for k, h in one.trace.named.items() if k in one.named}, one.named)
        self.read_gradients(one, one.at)
        self.apply(one, op)
        one.at += 1
        return True

    def read_gradients(self, one: Run, at: int) -> None:
        """Keep what the optimizer reads before the op with a number."""
        for name in one.due.get(at, ()):
            place = one.trace.gradients[name][1]
            one.gradients[name] = None if place is None else np.array(one.memory.get(place))

    def apply(self, one: Run, op: Op) -> None:
        """Do to a rank's memory what an op does."""
        if op.name == HANDED:
            for place, numbers in zip(op.read, op.drawn, strict=True):
                if place.store in one.computed or place.store in one.memory.named:
                    one.derived += 1
                elif self.handed:
                    one.memory.put(place, self.field.numbers_of(numbers, place.dtype))
            return
        if op.phase == "forward" and not communicates(op):
            one.inputs += [one.memory.get(p) for p in op.read if p.floating and p.size > 1 and p.shape
                           and p.store not in one.computed and p.store not in one.memory.named]
        if op.phase != "between" or any(p.store in one.computed or p.store in one.memory.named for p in op.read):
            one.computed.update(p.store for p in op.written)
        for store in op.lost:
            if store in one.memory.stores:
                one.memory.stores[store][1].fill(UNKNOWN)
        if chances(op) or any(one.memory.hangs_on_draws(p) for p in op.read):
            one.memory.by_chance.update(p.store for p in op.written if p.floating)
            one.memory.chancy.update(p.store for p in op.written if not p.floating and p.dtype != "uint8")
        if communicates(op):
            self.communicate(one, op)
            return
        if op.name in (READ, "aten::_local_scalar_dense"):
            self.read_number(one, op)
            return
        written = list(op.written)
        if not written:
            return
        if not any(p.floating or p.dtype == "uint8" for p in written):
            return
        op = self.with_numbers(one, op)
        drawn = self.carried(one, op, written)
        values = self.compute(one, op, written)
        for place, value in zip(written, values, strict=True):
            one.memory.put(place, value)
            if self.keep and place.floating:
                one.values.append(Value(one.at, np.asarray(value)))
        if noise(op):
            drawn = {p.store: d for p, d in zip(written, op.drawn, strict=False)}  # what is in place is told twice
        one.memory.random.update(drawn)

    @staticmethod
    def carried(one: Run, op: Op, written: Sequence[Place]) -> dict[int, Array]:
        """Random numbers that have not met what they multiply, where an op copies or scales them."""
        read = [p for p in op.read if p.store in one.memory.random]
        scales = op.name.rstrip("_") in ("aten::mul", "aten::div", "aten::clone", "aten::_to_copy")
        if len(read) != 1 or not scales or isinstance(op.given.get("other"), Place) or len(written) != 1:
            return {}
        return {written[0].store: one.memory.random[read[0].store]}

    def compute(self, one: Run, op: Op, written: Sequence[Place]) -> Sequence[Array]:
        """What an op writes: by its rule, or nothing known of it."""
        name = op.name.removeprefix("aten::").removesuffix("_")
        name = name if name.startswith("_foreach_") or op.name.startswith("aten::") else op.name.removesuffix("_")
        call = Call(op, one.memory)
        why, values = f"{op.name} has no rule", None
        known = moves(name) and any(p.store in one.memory.told for p in op.read)
        loose = [p for p in op.read if p.store in one.memory.random]
        if loose and not (self.carried(one, op, written) or name in ("mul", "add", "sub") or noise(op)):
            one.unseen.setdefault(f"{op.name} of random numbers", op.line)
            return call.unknown()
        try:
            if noise(op):
                return [np.ones(p.shape, np.int64) for p in written]
            if op.drawn and op.name not in COUNTED:
                return self.drew(one, op, call, written)
            if name.startswith("_foreach_"):
                values = listed(name, call)
            elif name in RULES:
                values = self.by_parts(name, op, one) if moves(name) and any(p.complex for p in written) else (
                    RULES[name](call))
            if name in RULES or name.startswith("_foreach_"):
                why = f"{op.name} as it is called"
            if values is not None and len(values) < len(written):  # integers, which are taken as they were
                every = iter(values)
                values = [next(every) if p.floating else np.zeros(p.shape, np.int64) for p in written]
            if values is not None:
                shaped = [np.broadcast_to(v, p.shape) if v.size != p.size else v.reshape(p.shape)
                          for v, p in zip(values, written, strict=True)]
                return [told(v) for v in shaped] if known else shaped
        except Chance:
            why = f"{op.name} by random numbers"
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            why = f"{op.name} as it is called: {type(error).__name__} {error}"
        one.unseen.setdefault(why, op.line)
        return call.unknown()

    @staticmethod
    def by_parts(name: str, op: Op, one: Run) -> Sequence[Array] | None:
        """What an op that moves complex numbers writes: it moves real and imaginary parts."""
        parts = [RULES[name](Call(op, one.memory, part=k)) for k in (0, 1)]
        return None if parts[0] is None or parts[1] is None else [
            np.stack(pair, -1) for pair in zip(*parts, strict=True)]

    def drew(self, one: Run, op: Op, call: Call, written: Sequence[Place]) -> Sequence[Array]:
        """Random numbers: outside modules they are data, inside nothing is known of them, nor of what they steer."""
        if not chances(op):
            return [self.field.numbers_of(d, p.dtype) for d, p in zip(op.drawn, written, strict=False)]
        one.unseen.setdefault(f"random numbers of {op.name}", op.line)
        one.memory.chancy.update(p.store for p in written)
        return call.unknown()

    def read_number(self, one: Run, op: Op) -> None:
        """Numbers that are read from a tensor: told where they are not the numbers that they are known to be."""
        place = next(iter(op.read))
        if place.floating and op.number is not None:
            known = self.field.numbers_of(np.asarray(op.number), place.dtype)
            mine = one.memory.get(place).reshape(known.shape)
            if not np.array_equal(mine, known):
                one.reads = one.reads or op.line or op.name
                one.read.update(zip(mine.ravel().tolist(), np.asarray(op.number, np.float64).ravel().tolist(),
                                    strict=True))

    def with_numbers(self, one: Run, op: Op) -> Op:
        """An op, of which a number that Python may have made of one that was read is the single device's.

        Both have read the same elements, and made the same of them but for rounding, if all that a rank has read the
        single device has read as well, nothing of it is unknown, and one number alone of its own is near.
        """
        if self.single is None or not one.read:
            return op
        strange = set(numbers_in(op)) - self.single.numbers
        if not strange:
            return op
        alike = UNKNOWN not in one.read and all(near(n, self.single.read.get(e)) for e, n in one.read.items())
        meant = {n: [s for s in self.single.numbers if near(n, s)] for n in strange} if alike else {}
        if not meant or any(len(s) != 1 for s in meant.values()):
            one.odd = True
            return op

        def put(value: Any) -> Any:
            if isinstance(value, float):
                return meant.get(value, [value])[0]
            return tuple(map(put, value)) if isinstance(value, tuple) and not isinstance(value, Place) else value
        return replace(op, given={name: put(value) for name, value in op.given.items()})

    def communicate(self, one: Run, op: Op) -> None:
        """Begin a collective, or a message; the last rank that comes ends it."""
        message = message_of(op, one.rank, self.field, one.memory.get)
        if message is None:
            one.unseen.setdefault(f"{op.name} has no rule", op.line)
            for place in op.written:
                one.memory.put(place, np.full(place.shape, UNKNOWN, np.int64))
            return
        for place in message.outs:
            one.pending[place.store] = one.pending.get(place.store, 0) + 1
        if message.verb == "send":
            self.sent[one.rank, message.peer, message.tag].append(message.given)
            self.deliver(one.rank, message.peer, message.tag)
        elif message.verb == "recv":
            self.awaited[message.peer, one.rank, message.tag].append((message, one.at))
            self.deliver(message.peer, one.rank, message.tag)
        else:
            turn = self.count[message.ranks, one.rank]
            self.count[message.ranks, one.rank] += 1
            meeting = self.met[message.ranks, turn]
            meeting[one.rank] = message, one.at
            if len(meeting) == len(message.ranks):
                self.meet([meeting[q] for q in message.ranks])
                del self.met[message.ranks, turn]

    def deliver(self, source: int, to: int, tag: int) -> None:
        """Hand over messages that both sides have posted."""
        key = source, to, tag
        while self.sent[key] and self.awaited[key]:
            values, (message, at) = self.sent[key].popleft(), self.awaited[key].popleft()
            self.arrive(self.runs[to], message, values, at, any(isinstance(v, Told) for v in values))

    def meet(self, posted: Sequence[tuple[Message, int]]) -> None:
        """End a collective that every rank of its group has begun."""
        verbs = {m.verb for m, _ in posted}
        given = [m.given for m, _ in posted]
        if verbs <= {"all_reduce", "reduce_scatter", "reduce"}:
            self.hold_together(posted[0][0].ranks, given if any(p.floating for p in posted[0][0].outs) else [()])
        for me, (message, at) in enumerate(posted):
            one = self.runs[message.ranks[me]]
            try:
                values = message.meet(given, me) if len(verbs) == 1 else None
            except (ValueError, IndexError):
                values = None
            if values is None:
                one.unseen.setdefault(f"a {message.verb} that meets another collective", one.trace.ops[at].line)
                values = [np.full(p.shape, UNKNOWN, np.int64) for p in message.outs]
            self.arrive(one, message, values, at, any(isinstance(v, Told) for part in given for v in part))

    def hold_together(self, ranks: tuple[int, ...], given: Sequence[tuple[Array, ...]]) -> None:
        """Note which ranks give the same to a sum of several elements: such as train on the same tokens always do."""
        if sum(part.size for part in given[0]) < 2:
            return
        for a, b in combinations(range(len(ranks)), 2):
            same = len(given[a]) == len(given[b]) and all(map(np.array_equal, given[a], given[b]))
            if same and (not any((part > 0).any() for part in given[a]) or any((part == UNKNOWN).any()
                                                                               for part in given[a])):
                continue
            for one, other in ((ranks[a], ranks[b]), (ranks[b], ranks[a])):
                gives = self.runs[one].gives
                gives[other] = gives.get(other, True) and same

    def arrive(self, one: Run, message: Message, values: Sequence[Array], at: int, knows: bool) -> None:
        """Put what comes out of a collective where it goes; `knows` if something is known of it by value."""
        for place, value in zip(message.outs, values, strict=False):
            shaped = value.reshape(place.shape) if value.size == place.size else np.full(place.shape, UNKNOWN)
            one.memory.put(place, told(shaped) if knows else shaped)
            if self.keep and place.floating:
                one.values.append(Value(at, np.array(one.memory.get(place))))
        for place in message.outs:
            one.pending[place.store] -= 1
            if not one.pending[place.store]:
                del one.pending[place.store]


NEAR = 1e-4
"""By how much of it two numbers may be apart that Python has made of the same elements."""


def near(one: float, other: float | None) -> bool:
    """Whether two numbers are one but for rounding."""
    return other is not None and abs(one - other) <= NEAR * abs(other)


def numbers_in(op: Op) -> Iterator[float]:
    """The numbers that an op was given, but for short fractions."""
    for value in op.given.values():
        for number in value if isinstance(value, tuple) and not isinstance(value, Place) else (value,):
            if isinstance(number, float) and abs(number) < ENDLESS and fraction_of(number) is None and (
                    len(repr(number)) > SHORT):
                yield number


COUNTED = ("aten::arange", "aten::linspace")
"""Ops whose numbers are recorded because they are made of numbers alone."""


def noise(op: Op) -> bool:
    """Whether an op draws numbers inside modules that are to meet what they are multiplied by or added to."""
    return (op.name == "aten::bernoulli_" and bool(op.drawn)) or (chances(op) and op.name in DRAWN)


DRAWN = tuple(f"aten::{n}" for n in ("randn", "randn_like", "rand", "rand_like", "normal_", "uniform_"))
"""Ops that draw a number for each element."""


def chances(op: Op) -> bool:
    """Whether an op draws random numbers inside modules: outside of them they are data, as a loader's order is."""
    return bool(op.drawn) and op.name not in COUNTED and op.phase != "between"
