"""Blocks of a line: every place has one owner, for all lengths and all numbers of ranks.

A rank reads its part of a checkpoint from the blocks that other ranks stored. If every place of a line has exactly one
owner in the old layout, every place of a block of the new layout is read exactly once, whatever the two lengths of
blocks are. The same holds for several lines, one after the other, and for a block that is cut again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import z3

from placealg.prover.evidence.kept import kept
from placealg.prover.evidence.logic import and_
from placealg.prover.evidence.solver import PROCESS, SAT, UNSAT
from placealg.prover.verdict import PROVED, REFUTED, UNDECIDED, Conclusion


@dataclass(frozen=True, slots=True)
class Lemma:
    """A statement about blocks for all sizes, and how it ended."""

    name: str
    statement: str
    verdict: Conclusion
    reason: str = ""


Each = Callable[[Any, Any], tuple[Any, list[Any]]]
"""(length, number of ranks) -> (the number of places in a block, the assertions that define it)."""


def rounded_up(length: Any, ranks: Any) -> tuple[Any, list[Any]]:
    """Blocks of ⌈length/ranks⌉ places."""
    each = z3.Int("each")
    return each, [each * ranks >= length, (each - 1) * ranks < length]


def stage_ends(length: Any, ranks: Any, name: str, place: Any) -> tuple[Any, list[Any]]:
    """The first layer of the stage at `place`: ⌊length place/ranks⌋."""
    end = z3.Int(name)
    return end, [end * ranks <= length * place, length * place < (end + 1) * ranks]


def lemmas() -> tuple[Lemma, ...]:
    """Every lemma on which a reshard depends.

    >>> [(lemma.name, lemma.verdict) for lemma in lemmas()]
    [('blocks', 'PROVED'), ('stages', 'PROVED'), ('rows', 'PROVED')]
    """
    return _lemmas()


@kept(lambda found: any(lemma.verdict == UNDECIDED for lemma in found), 1)
def _lemmas() -> tuple[Lemma, ...]:
    return blocks(), stages(), rows()


def blocks(each_of: Each = rounded_up) -> Lemma:
    """The lemma that every place of a line that is cut into blocks by some ranks has exactly one owner among them.

    `each_of` gives the places of a block; the last block ends with the line at the latest.
    """
    length, ranks, place, owner, other, inside = z3.Ints("length ranks place owner other inside")
    each, defined = each_of(length, ranks)
    known = [length >= 1, ranks >= 1, place >= 0, place < length, *defined]
    has_none = and_(owner * each + inside == place, inside >= 0, inside < each, owner >= ranks)
    empty = each <= 0
    has_two = and_(owner * each <= place, place < (owner + 1) * each, other * each <= place,
                   place < (other + 1) * each, owner < other)
    return _asked("blocks", "every place of a line that is cut into blocks of ⌈length/n⌉ has exactly one owner",
                  known, empty, has_none, has_two)


def stages(end_of: Callable[[Any, Any, str, Any], tuple[Any, list[Any]]] = stage_ends) -> Lemma:
    """The lemma that the layers of stages follow each other without a gap, from the first layer to the last."""
    length, ranks, stage = z3.Ints("length ranks stage")
    start, first = end_of(length, ranks, "start", stage)
    end, second = end_of(length, ranks, "end", stage + 1)
    known = [length >= 1, ranks >= 1, stage >= 0, stage < ranks, *first, *second]
    return _asked("stages", "the layers of stage k end where those of stage k + 1 begin, the first begins with the "
                  "first layer and the last ends with the last one", known,
                  end < start,
                  and_(stage == 0, start != 0), and_(stage == ranks - 1, end != length))


def rows() -> Lemma:
    """The lemma on the elements of several dims in one row: each has one place, and each place one element."""
    width, row, column, other_row, other_column = z3.Ints("width row column other_row other_column")
    known = [width >= 1, column >= 0, column < width, other_column >= 0, other_column < width, row >= 0, other_row >= 0]
    return _asked("rows", "elements of two dims that are laid out in one row have different places in it", known,
                  and_(row * width + column == other_row * width + other_column, row < other_row),
                  and_(row == other_row, row * width + column == other_row * width + other_column,
                       column != other_column))


def _asked(name: str, statement: str, known: list[Any], *failures: Any) -> Lemma:
    """The lemma that no sizes that satisfy `known` let one of the failures happen."""
    for failure in failures:
        answer = PROCESS.ask([*known, failure])
        if answer.status == SAT:
            sizes = ", ".join(f"{n} = {answer.model[n]}" for n in sorted(answer.model))
            return Lemma(name, statement, REFUTED, f"not at {sizes}")
        if answer.status != UNSAT:
            return Lemma(name, statement, UNDECIDED, answer.reason)
    return Lemma(name, statement, PROVED)

