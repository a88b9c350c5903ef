"""The kernel's language, and a small program in it: that of proofs/coq/kernel/Told.v, and wrong ones."""

from __future__ import annotations

import pytest

from placealg.prover.kernel.checker import accepts
from placealg.prover.kernel.program import (
    AllReduce,
    Do,
    Einsum,
    Free,
    Full,
    Held,
    Instruction,
    Line,
    Mesh,
    Microbatches,
    Number,
    Once,
    Pair,
    Plain,
    Program,
    Read,
    Row,
    Run,
    Scale,
    SEinsum,
    Send,
    Shard,
    Shared,
    Slot,
    Some,
    SRow,
    SScale,
    Zero,
    term,
)
from placealg.prover.kernel.terms import coq_text

X, W, Y, E, S, G, NEW = map(Number, range(1, 8))


def first(n: Number) -> Pair:
    return Pair(n, "First")


ALONE = Plain(tuple(Pair(Number(k), line) for k, line in enumerate((
    Line(first(Y), SEinsum((1,)), (first(X), first(W))), Line(first(E), SRow(0, ()), (first(Y),)),
    Line(first(S), SScale((Pair(0, 1),)), (first(E),)), Line(first(G), SEinsum((0,)), (first(S), first(X))),
    Line(first(NEW), SRow(1, ()), (first(W), first(G)))), 1)))
SPLIT = (Pair(0, 0), Pair(1, 0))
WEIGHT, BATCH, GRADIENT, SUM, OLD = (Shared(Number(n)) for n in (1, 2, 6, 7, 8))
A, B, C = (Shared(Number(n)) for n in (3, 4, 5))
LOCAL = (Pair(0, 0), Pair(0, 0), Pair(0, 0), Pair(0, 1))


def do(op: Einsum | Row | Scale | Send, args: tuple[Slot, ...], out: Slot, claim: int = 0) -> Do:
    return Do(op, args, out, Some(Number(claim)) if claim else None)


FORWARD: tuple[Instruction, ...] = (
    Read(X, BATCH), do(Einsum(SPLIT, (1,)), (BATCH, WEIGHT), A, 1), do(Row(0, (), SPLIT), (A,), B, 2),
    do(Scale(LOCAL), (B,), C, 3))
BACKWARD = (do(Einsum(SPLIT, (0,)), (C, BATCH), GRADIENT, 4),)
REDUCE = do(Send(1, AllReduce()), (SUM,), SUM)
MEAN = do(Scale((Pair(0, 0), Pair(0, 1), Pair(0, 1))), (SUM,), SUM)
UPDATE = do(Row(1, (), ()), (WEIGHT, SUM), WEIGHT, 5)


def program(behind: tuple[Instruction, ...] = (REDUCE, MEAN, UPDATE), before: tuple[Instruction, ...] = (Zero(SUM),),
            body: tuple[Instruction, ...] = (*FORWARD, *BACKWARD)) -> Program:
    """A step of data parallelism."""
    lies = Held(W, None, (Full(), Full()))
    return Program(
        Mesh(2, (), (), (), ()), ((Pair(1, 0), Pair(0, 1), Pair(0, 1), Pair(0, 1)),), (ALONE,), (Pair(W, NEW),), (),
        (lies,),
        (Held(X, None, (Shard(0), Shard(0))),), (Run((Read(W, WEIGHT),)),),
        (Once((Run(before),)), Microbatches((Pair(GRADIENT, SUM),), (Run(body),)), Once((Run(behind),))), (), (),
        (WEIGHT,), (Pair(WEIGHT, lies),))


def test_the_right_step_is_accepted() -> None:
    assert accepts(program())


WRONG = {
    "not reduced": program((MEAN, UPDATE)),
    "not divided": program((REDUCE, UPDATE)),
    "reduced twice": program((REDUCE, REDUCE, MEAN, UPDATE)),
    "not cleared": program(before=()),
    "not updated": program((REDUCE, MEAN)),
    "updated twice": program((REDUCE, MEAN, UPDATE, UPDATE)),
    "freed too early": program(body=(*FORWARD, Free(BATCH), *BACKWARD)),
    "backward first": program(body=(FORWARD[0], *BACKWARD, *FORWARD[1:])),
    "a weight that changes in a microbatch": program(body=(*FORWARD, *BACKWARD, UPDATE)),
    "stale": program((do(Scale(()), (WEIGHT,), OLD), REDUCE, MEAN, UPDATE, do(Scale(()), (OLD,), WEIGHT))),
    "another line is claimed": program((REDUCE, MEAN, do(Row(1, (), ()), (SUM, WEIGHT), WEIGHT, 5))),
    "sent over microbatches": program((do(Send(0, AllReduce()), (SUM,), SUM), REDUCE, MEAN, UPDATE)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_step_is_rejected(wrong: str) -> None:
    assert not accepts(WRONG[wrong])


def test_a_term_is_coq_s() -> None:
    assert coq_text(term(do(Einsum(SPLIT, (1,)), (BATCH,), A, 4))) == (
        "(Do (Einsum [pair 0 0; pair 1 0] [1]) [Shared (xO xH)] (Shared (xI xH)) (Some (xO (xO xH))))")


@pytest.mark.parametrize("number", [0, -3])
def test_numbers_begin_at_one(number: int) -> None:
    with pytest.raises(ValueError, match="is no number"):
        term(Number(number))
