"""Orders that are written down action by action, as torch.distributed.pipelining does, at the sizes they are for.

A row is what one rank does, in order: `0F1` is the forward of microbatch 1 through chunk 0 of the model, `B` its
backward, `I` and `W` the parts of that for the inputs and for the weights; `(0F1;1B0)OVERLAP_F_B` are two at once, read
one behind the other. A row may say messages, too (`0SEND_F1`, `1RECV_F1`), and when a chunk's parameters are whole
(`0UNSHARD`, `0RESHARD`) and its gradients reduced (`0REDUCE_GRAD`). Nothing here is for all sizes.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from placealg.errors import InputError

FORM = re.compile(r"(\d{1,6})(F|I|W|B|UNSHARD|RESHARD|SEND_F|RECV_F|SEND_B|RECV_B|REDUCE_GRAD)(\d{1,6})?")
TOGETHER = re.compile(r"\(([^()]*)\)OVERLAP_F_B")
WORK, STATES = ("F", "I", "W", "B"), ("UNSHARD", "RESHARD", "REDUCE_GRAD")
SENT = {"SEND_F": ("F", "RECV_F", 1), "SEND_B": ("B", "RECV_B", -1)}
"""What sends -> the work that makes it, what receives it, and which chunk does, from the sender's on."""

MOST = 200_000
"""The most actions of a table."""


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """One action: its chunk of the model, what it does, its microbatch (-1 for none), and where it stands."""

    chunk: int
    kind: str
    microbatch: int
    rank: int = -1
    column: int = 0

    def __repr__(self) -> str:
        return f"{self.chunk}{self.kind}{self.microbatch if self.microbatch >= 0 else ''}"

    @property
    def what(self) -> tuple[int, str, int]:
        """What it does, wherever it stands."""
        return self.chunk, self.kind, self.microbatch

    @property
    def place(self) -> str:
        """The action and its column, counted from 1."""
        return f"{self} (action {self.column})"


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a table, in words, and two numbers of which `left` would be less if it were not."""

    says: str
    left: int = 0
    right: int = 0


@dataclass(frozen=True)
class Table:
    """The rows of an order; `chunks` of each rank, `microbatches`, and whether chunks are dealt in a V or in turns."""

    rows: tuple[tuple[Action, ...], ...]
    chunks: int
    microbatches: int
    folded: bool

    @property
    def ranks(self) -> int:
        """The number of rows."""
        return len(self.rows)

    @property
    def splits(self) -> bool:
        """Whether any backward is in two parts."""
        return any(action.kind in ("I", "W") for row in self.rows for action in row)

    @property
    def messages(self) -> bool:
        """Whether messages are among the actions."""
        return any(action.kind in ("SEND_F", "RECV_F", "SEND_B", "RECV_B") for row in self.rows for action in row)

    def rank(self, chunk: int) -> int:
        """The rank of a chunk of the model."""
        return 2 * self.ranks - 1 - chunk if self.folded and chunk >= self.ranks else chunk % self.ranks

    def held(self, rank: int, kinds: Sequence[str] = ("I", "B"), chunk: int | None = None) -> int:
        """The most forwards of a rank, or of one of its chunks, that have no backward (of these kinds) at once."""
        most = now = 0
        for action in self.rows[rank]:
            if chunk in (None, action.chunk):
                now += (action.kind == "F") - (action.kind in kinds)
                most = max(most, now)
        return most


def read_row(text: str, rank: int) -> tuple[Action, ...]:
    """The actions of a row; an InputError names the cell that is none.

    >>> read_row("0F0,,(0F1;0B0)OVERLAP_F_B,0B1", 0)
    (0F0, 0F1, 0B0, 0B1)
    """
    found: list[Action] = []
    for column, cell in enumerate(text.split(","), 1):
        word = cell.strip()
        together = TOGETHER.fullmatch(word)
        for part in (together[1].split(";") if together else [word] if word else []):
            one = FORM.fullmatch(part.strip())
            if not one or (one[2] in STATES) is (one[3] is not None):
                raise InputError(f"row {rank + 1}, column {column}: '{part.strip()}' is no action such as 0F1, 1B0, "
                                 "0SEND_F1 or 1UNSHARD")
            found.append(Action(int(one[1]), one[2], -1 if one[3] is None else int(one[3]), rank, column))
    return tuple(found)


@lru_cache(maxsize=16)
def read_table(rows: tuple[str, ...]) -> Table:
    """The table of some rows; an InputError where its chunks are not dealt as a pipeline here deals them.

    >>> table = read_table(("0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1"))
    >>> table.ranks, table.chunks, table.microbatches, table.folded
    (2, 1, 2, False)
    """
    read = tuple(read_row(text, rank) for rank, text in enumerate(rows))
    every = [action for row in read for action in row]
    if not every or len(every) > MOST:
        raise InputError(f"{len(every)} actions: expected 1 to {MOST}")
    count = 1 + max(action.chunk for action in every)
    if count % len(read):
        raise InputError(f"{count} stages on {len(read)} ranks: every rank has as many")
    home: dict[int, Action] = {}
    for action in every:
        first = home.setdefault(action.chunk, action)
        if first.rank != action.rank:
            raise InputError(f"stage {action.chunk} is on rank {first.rank}, {first.place}, and on rank {action.rank}, "
                             f"{action.place}")
    for folded in (False, True) if count == 2 * len(read) else (False,):
        table = Table(read, count // len(read), 1 + max(a.microbatch for a in every), folded)
        if all(table.rank(chunk) == action.rank for chunk, action in home.items()):
            return table
    raise InputError("its stages go neither from rank to rank in turns nor in a V")


def needs(action: Action, table: Table) -> Iterator[tuple[int, str, int]]:
    """What an action waits for, by what it is; a backward is made whole, or in its part for the inputs."""
    chunk, kind, microbatch = action.what
    last = table.ranks * table.chunks - 1
    if kind == "W":
        yield chunk, "I", microbatch
    if kind in ("I", "B"):
        yield chunk, "F", microbatch
    there = chunk + (1 if kind in ("I", "B") else -1)
    if kind in WORK[:2] + ("B",) and 0 <= there <= last:
        apart = table.rank(there) != table.rank(chunk)
        if table.messages and apart:
            yield chunk, "RECV_F" if kind == "F" else "RECV_B", microbatch
        else:
            yield there, "F" if kind == "F" else "B", microbatch
    if kind in SENT:
        yield chunk, SENT[kind][0], microbatch
    if kind in ("RECV_F", "RECV_B"):
        yield chunk + (-1 if kind == "RECV_F" else 1), f"SEND_{kind[-1]}", microbatch


def faults(table: Table) -> tuple[Fault, ...]:
    """What is wrong with a table: counted, in its order, and in what it waits for; none where it can run.

    >>> [fault.says for fault in faults(read_table(("0F0,0B0", "1B0,1F0")))]
    ['rank 1: 1B0 (action 1) needs 1F0 (action 2), which stands behind it']
    """
    found = [*_counts(table)]
    return tuple(found or [*_waits(table), *_matched(table), *_states(table)])


def _at(table: Table) -> dict[tuple[int, str, int], Action]:
    """What is done -> the action that does it; the part of a backward for the inputs is a backward, too."""
    found = {action.what: action for row in table.rows for action in row}
    return {**{(c, "B", k): a for (c, kind, k), a in found.items() if kind == "I"}, **found}


def _counts(table: Table) -> Iterator[Fault]:
    """Each microbatch goes forward and backward once through each chunk, and each message is sent and received once."""
    every = [action for row in table.rows for action in row]
    times = Counter(action.what for action in every)
    first: dict[tuple[int, str, int], Action] = {}
    for action in every:
        if action.kind not in STATES and first.setdefault(action.what, action) is not action:
            yield Fault(f"rank {action.rank}: {first[action.what].place} is done again as {action.place}",
                        times[action.what], 1)
    for chunk in range(table.ranks * table.chunks):
        rank = table.rank(chunk)
        for microbatch in range(table.microbatches):
            has = {kind: first.get((chunk, kind, microbatch)) for kind in WORK}
            beside = next((a for a in has.values() if a is not None), None)
            back = [a for a in (has["B"], has["I"]) if a is not None]
            told = f"rank {rank}: " + (beside.place if beside else f"stage {chunk}") + " has no "
            if has["F"] is None:
                yield Fault(f"{told}forward {chunk}F{microbatch}")
            if not back:
                yield Fault(f"{told}backward {chunk}{'I' if has['W'] else 'B'}{microbatch}")
            if len(back) == 2:
                yield Fault(f"rank {rank}: {back[0].place} is done again as {back[1].place}")
            if has["I"] is not None and has["W"] is None:
                yield Fault(f"rank {rank}: {has['I'].place} has no {chunk}W{microbatch}, the part for the weights")
            if has["W"] is not None and has["I"] is None and has["B"] is not None:
                yield Fault(f"rank {rank}: {has['B'].place} is for the weights, too, and {has['W'].place} again")
    if table.messages:
        yield from _missing_messages(table, first)


def _missing_messages(table: Table, first: Mapping[tuple[int, str, int], Action]) -> Iterator[Fault]:
    """Each result that another rank needs is sent by the one and received by the other."""
    for send, (made, receive, step) in SENT.items():
        for chunk in range(table.ranks * table.chunks):
            there = chunk + step
            apart = 0 <= there < table.ranks * table.chunks and table.rank(there) != table.rank(chunk)
            for microbatch in range(table.microbatches):
                pair = [(chunk, send, microbatch), (there, receive, microbatch)]
                for what, other in (pair, pair[::-1]):
                    if (what in first) is not apart:
                        name = f"{what[0]}{what[1]}{what[2]}"
                        beside = first.get(other) or first.get((chunk, made, microbatch))
                        near = beside.place if beside is not None else f"stage {chunk}"
                        yield Fault(f"rank {table.rank(what[0])}: {name} is not there, and {near} is" if apart else
                                    f"rank {table.rank(what[0])}: {name} has no rank to go to")


def edges(table: Table) -> Iterator[tuple[Action, Action]]:
    """(before, behind): from each action to the next of its rank, and from what an action waits for to it."""
    at = _at(table)
    for row in table.rows:
        yield from pairwise(row)
        for action in row:
            yield from ((at[what], action) for what in needs(action, table) if what in at)


def starts(table: Table) -> dict[Action, int]:
    """When each action starts, in steps, if all start as soon as they can; those that never do are left out."""
    behind, left = defaultdict(list), Counter()  # type: ignore[var-annotated]
    for one, two in edges(table):
        behind[one].append(two)
        left[two] += 1
    ready = [action for row in table.rows for action in row if not left[action]]
    found = dict.fromkeys(ready, 0)
    for one in ready:
        for two in behind[one]:
            found[two] = max(found.get(two, 0), found[one] + 1)
            left[two] -= 1
            if not left[two]:
                ready.append(two)
    return {action: found[action] for action in ready}


def _waits(table: Table) -> Iterator[Fault]:
    """What stands before something of its own rank that it needs; else what waits in a circle over ranks."""
    at, inside = _at(table), False
    place = {action: n for row in table.rows for n, action in enumerate(row)}
    for row in table.rows:
        for action in row:
            for what in needs(action, table):
                other = at.get(what)
                if other is not None and other.rank == action.rank and place[other] > place[action]:
                    inside = True
                    yield Fault(f"rank {action.rank}: {action.place} needs {other.place}, which stands behind it",
                                place[other], place[action])
    if inside:
        return
    started = starts(table)
    stuck = [next((a for a in row if a not in started), None) for row in table.rows]
    waiting = [a for a in stuck if a is not None]
    if waiting:
        yield from _circle(waiting[0], table, at)


def _circle(one: Action, table: Table, at: Mapping[tuple[int, str, int], Action]) -> Iterator[Fault]:
    """A circle of ranks, each of which waits for what the next has behind what waits itself."""
    started = starts(table)
    seen: list[tuple[Action, Action]] = []
    while one not in [a for a, _ in seen]:
        asked = next((at[what] for what in needs(one, table) if at.get(what) not in started and what in at), None)
        if asked is None:
            return
        seen.append((one, asked))
        one = next(a for a in table.rows[asked.rank] if a not in started)
    circle = seen[[a for a, _ in seen].index(one):]
    yield Fault("; ".join(f"rank {a.rank}: {a.place} waits for {b.place} of rank {b.rank}" for a, b in circle)
                + ": these ranks wait for one another")


def _matched(table: Table) -> Iterator[Fault]:
    """Messages from one rank to another are received in the order in which they are sent."""
    sent, received = defaultdict(list), defaultdict(list)
    for row in table.rows:
        for action in row:
            if action.kind in SENT:
                sent[action.rank, table.rank(action.chunk + SENT[action.kind][2])].append(action)
            elif action.kind in ("RECV_F", "RECV_B"):
                received[table.rank(action.chunk + (-1 if action.kind == "RECV_F" else 1)), action.rank].append(action)
    for pair in sent:
        for n, (one, two) in enumerate(zip(sent[pair], received[pair], strict=False)):
            _, receives, step = SENT[one.kind]
            if two.what != (one.chunk + step, receives, one.microbatch):
                yield Fault(f"message {n + 1} from rank {pair[0]} is {one.place}, and rank {pair[1]} receives "
                            f"{two.place} then")
                break


def _states(table: Table) -> Iterator[Fault]:
    """Where a table says when parameters are whole, they are so in each use; gradients are reduced behind the last."""
    any_reduced = any(action.kind == "REDUCE_GRAD" for row in table.rows for action in row)
    for row in table.rows:
        whole: dict[int, Action] = {}
        told = {action.chunk for action in row if action.kind in ("UNSHARD", "RESHARD")}
        reduced = [action for action in row if action.kind == "REDUCE_GRAD"]
        sums = {action.chunk: action for action in reduced}
        for n, action in enumerate(row):
            if action.kind == "UNSHARD":
                if action.chunk in whole:
                    yield Fault(f"rank {action.rank}: {action.place} gathers what {whole[action.chunk].place} gathered")
                whole[action.chunk] = action
            elif action.kind == "RESHARD":
                if whole.pop(action.chunk, None) is None:
                    yield Fault(f"rank {action.rank}: {action.place} frees what no {action.chunk}UNSHARD before it "
                                "gathered")
            elif action.kind in WORK and action.chunk in told and action.chunk not in whole:
                yield Fault(f"rank {action.rank}: {action.place} needs {action.chunk}UNSHARD before it, and parameters "
                            "are sharded then")
            elif action.kind in ("B", "W") and action.chunk in sums and row.index(sums[action.chunk]) < n:
                yield Fault(f"rank {action.rank}: {action.place} adds to gradients that {sums[action.chunk].place} "
                            "reduced")
        for one, two in ((a, b) for k, a in enumerate(reduced) for b in reduced[k + 1:] if a.chunk == b.chunk):
            yield Fault(f"rank {one.rank}: {one.place} is done again as {two.place}")
        yield from (Fault(f"rank {action.rank}: {action.place} gathers what no {chunk}RESHARD behind it frees")
                    for chunk, action in whole.items())
        for chunk in sorted({a.chunk for a in row} - set(sums)) if any_reduced else ():
            yield Fault(f"rank {row[0].rank}: {row[-1].place} is the last of its rank, and no {chunk}REDUCE_GRAD is "
                        "there")
