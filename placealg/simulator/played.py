"""Rows of actions played by ranks, one queue of messages for each pair: where they stop, or do something twice.

Nothing here knows how rows are read elsewhere: what a word does is written again, so that an error shows.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterator

from placealg.simulator.rules import home
from placealg.step.pipeline import Pipeline


class _Wrong(Exception):
    """A rank does what nothing allows."""


class _Player:
    """The ranks of a pipeline with their rows, and what is done so far."""

    def __init__(self, pipeline: Pipeline):
        self.pipeline, self.ranks = pipeline, len(pipeline.actions)
        self.rows = [_words(row) for row in pipeline.actions]
        self.end = self.ranks * (pipeline.chunks or 1) - 1
        self.sends = any("_" in word[1] and word[1] != "REDUCE_GRAD" for row in self.rows for word in row)
        self.gathers = {word[0] for row in self.rows for word in row if word[1] in ("UNSHARD", "RESHARD")}
        self.done: set[tuple[int, str, int]] = set()
        self.whole: set[int] = set()
        self.summed: set[int] = set()
        self.line: dict[tuple[int, int], deque[tuple[int, str, int]]] = defaultdict(deque)
        self.got: set[tuple[int, str, int]] = set()

    def step(self, rank: int) -> bool:
        """Let a rank do its next word; whether it could."""
        chunk, word, microbatch = self.rows[rank][0]
        if home(self.pipeline, chunk, self.ranks) != rank:
            raise _Wrong(f"stage {chunk} is not on rank {rank}")
        if word in ("UNSHARD", "RESHARD"):
            if (chunk in self.whole) is (word == "UNSHARD"):
                raise _Wrong(f"{word} of stage {chunk}, which is {'' if chunk in self.whole else 'not '}whole")
            self.whole ^= {chunk}
        elif word == "REDUCE_GRAD":
            if chunk in self.summed:
                raise _Wrong(f"gradients of stage {chunk} are reduced again")
            self.summed.add(chunk)
        elif not self.ready(rank, chunk, word, microbatch):
            return False
        elif (chunk, word, microbatch) in self.done:
            raise _Wrong(f"{chunk}{word}{microbatch} is done again")
        if word in "FIBW" and chunk in self.gathers and chunk not in self.whole:
            raise _Wrong(f"{chunk}{word}{microbatch} reads parameters that are sharded")
        if word in "BW" and chunk in self.summed:
            raise _Wrong(f"{chunk}{word}{microbatch} adds to gradients that are reduced")
        self.done.add((chunk, word, microbatch))
        self.rows[rank].popleft()
        return True

    def ready(self, rank: int, chunk: int, word: str, microbatch: int) -> bool:
        """Whether what a word needs is there; a message is put into its queue, or taken out."""
        def is_done(words: str, at: int) -> bool:
            return any((at, w, microbatch) in self.done for w in words)

        way = -1 if word[-1] == "F" and word != "RECV_B" else 1
        if word in ("F", "I", "B"):
            if word != "F" and not is_done("F", chunk):
                return False
            if word != "F" and is_done("IB", chunk):
                raise _Wrong(f"{chunk}{word}{microbatch} is a second backward")
            there = chunk + way
            if not 0 <= there <= self.end:
                return True
            if self.sends and home(self.pipeline, there, self.ranks) != rank:
                return (chunk, "F" if word == "F" else "B", microbatch) in self.got
            return is_done("F" if word == "F" else "IB", there)
        if word == "W":
            return is_done("I", chunk)
        there = chunk + (1 if word in ("SEND_F", "RECV_B") else -1)
        other = home(self.pipeline, there, self.ranks) if 0 <= there <= self.end else rank
        if other == rank:
            raise _Wrong(f"{chunk}{word}{microbatch} has nobody at its other end")
        if word.startswith("SEND"):
            if not is_done("F" if word == "SEND_F" else "IB", chunk):
                return False
            self.line[rank, other].append((there, word[-1], microbatch))
            return True
        line = self.line[other, rank]
        if line and line[0] != (chunk, word[-1], microbatch):
            there, way_, other_ = line[0]
            raise _Wrong(f"rank {rank} receives {chunk}{word}{microbatch}, and {there}RECV_{way_}{other_} arrives")
        if line:
            self.got.add(line.popleft())
            return True
        return False

    def lacking(self) -> Iterator[str]:
        """What is left over when nothing moves, or was never done."""
        for rank, row in enumerate(self.rows):
            if row:
                yield f"rank {rank} waits for ever at {row[0][0]}{row[0][1]}{row[0][2] if row[0][2] >= 0 else ''}"
        count = 1 + max((m for _, _, m in self.done), default=-1)
        for chunk in range(self.end + 1):
            for k in range(count):
                if (chunk, "F", k) not in self.done or not (
                        (chunk, "B", k) in self.done or {(chunk, "I", k), (chunk, "W", k)} <= self.done):
                    yield f"microbatch {k} did not go through stage {chunk} and back"
            if self.summed and chunk not in self.summed:
                yield f"gradients of stage {chunk} are not reduced"
            if chunk in self.whole:
                yield f"parameters of stage {chunk} stay whole"
        for (one, two), line in self.line.items():
            if line:
                yield f"a message from rank {one} to rank {two} is never received"


def _words(row: str) -> deque[tuple[int, str, int]]:
    """The words of a row, those in brackets one behind the other."""
    found: deque[tuple[int, str, int]] = deque()
    for cell in re.split(r"[,;()]", row.replace("OVERLAP_F_B", "")):
        if cell.strip():
            parts = re.fullmatch(r"(\d+)([A-Z_]+)(\d*)", cell.strip())
            assert parts
            found.append((int(parts[1]), parts[2], int(parts[3]) if parts[3] else -1))
    return found


def played(pipeline: Pipeline) -> str:
    """How the rows of a pipeline stop; "" where they come to their ends.

    >>> played(Pipeline("pp", actions=("0F0,0B0", "1F0,1B0"))), played(Pipeline("pp", actions=("0F0,0B0", "1B0,1F0")))
    ('', 'rank 0 waits for ever at 0B0')
    """
    player = _Player(pipeline)
    try:
        while sum(player.step(rank) for rank in range(player.ranks) if player.rows[rank]):
            pass
    except _Wrong as wrong:
        return str(wrong)
    return next(player.lacking(), "")
