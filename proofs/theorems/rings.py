"""Rings: which blocks have come by after k turns, and what a sum that goes round has collected, for every n.

Rank c of n passes a block to its right neighbour every turn. In turn 0 it has its own block; in every later turn it
gets what its left neighbour got last, and passes it on.

Theorem. In turn k < n rank c gets the block of rank (c - k) mod n. Hence after k turns it has had exactly the
blocks tau with (c - tau) mod n < k, each once: the owner's for k = 1, every block for k = n. So n - 1 messages per rank
are an all_gather, and attention may visit keys and values block by block (softmax.py).

Theorem. A block of sums that starts behind rank r and to which each rank adds its part as it passes arrives at
r in turn n - 1; when r has added its own part it is the sum over all ranks, each once. That is a reduce_scatter.

Corollary. A ring of sums and then a ring of blocks are an all_reduce (sums.py has it for any owners).

Each is an induction over turns, base and step by Z3 for every n, rank and part. A ring that turns the other way covers
as well; one in which a rank passes its own block every turn does not, nor does one that is a turn short.
"""

from __future__ import annotations

from collections.abc import Callable

import z3
from telling import Account, Bool, Int, Twin, inductive, run_equals, step_of, verdict

from placealg.models.config import resolve_model

n, k, c, r, tau = z3.Ints("n k c r tau")
Number = z3.IntSort()
got, held = z3.Function("got", Number, Number, Number), z3.Function("held", Number, Number)
place, f, F, total = (z3.Function(name, Number, Number) for name in ("place", "f", "F", "total"))
"""got(c, k): the block that rank c gets in turn k. place(k): where a sum is in turn k. f(c): the part of rank c, F(c):
the sum of the parts of the ranks below c. held(c): the sum that ends at rank c, total(tau): the whole sum of tau."""

RANKS = [n >= 1, *(z3.And(rank >= 0, rank < n) for rank in (c, r, tau))]
TURN = [*RANKS, k >= 0, k < n]


def around(rank: Int) -> Int:
    """`rank` mod n, for -n <= rank < 2 n."""
    return z3.If(rank < 0, rank + n, z3.If(rank < n, rank, rank - n))


def left(rank: Int) -> Int:
    """The left neighbour."""
    return around(rank - 1)


def right(rank: Int) -> Int:
    """The right neighbour."""
    return around(rank + 1)


def within(distance: Int, turns: Int) -> Int:
    """1 where a block `distance` ranks away has come after so many turns, else 0."""
    return z3.If(around(distance) < turns, 1, 0)


def by_turns(closed: Callable[[Int, Int], Int], source: Callable[[Int], Int]) -> Bool:
    """In every turn rank c gets closed(c, k): in turn 0, and in turn k + 1 if `source(c)` got closed(source(c), k)."""
    return z3.And(got(c, 0) == closed(c, z3.IntVal(0)),
                  z3.Implies(got(source(c), k) == closed(source(c), k), got(c, k + 1) == closed(c, k + 1)))


def prove_blocks(account: Account) -> None:
    """What each turn brings, and how often each block has come after k turns."""
    def passed(source: Callable[[Int], Int]) -> list[Bool]:
        return [*TURN, got(c, 0) == c, got(c, k + 1) == got(source(c), k)]

    def behind(rank: Int, turn: Int) -> Int:
        return around(rank - turn)

    def counted(block: Callable[[Int], Int], times: Callable[[Int], Int]) -> Bool:
        """Of the blocks that rank c gets in turns 0..k-1, times(k) are that of tau."""
        return inductive(lambda j: z3.If(block(j) == tau, 1, 0), times, k)

    def repeated(turns: Int) -> Int:
        return z3.If(turns == 0, 0, z3.If(c == tau, 1, 0) + (turns - 1) * z3.If(left(c) == tau, 1, 0))

    own = [*TURN, got(c, 0) == c, got(c, k + 1) == left(c)]
    once = counted(lambda j: behind(c, j), lambda j: within(c - tau, j))
    account.theorem("for every n: in turn k rank c gets the block of rank (c - k) mod n", by_turns(behind, left),
                    passed(left), twin=Twin("  if ranks pass their own block every turn", by_turns(behind, left), own))
    account.theorem("after k turns: the blocks tau with (c - tau) mod n < k, each once",
                    once, TURN, twin=Twin("  in turn n another new block comes", once, [*RANKS, k == n]))
    account.theorem("k = 1: the owner's. k = n: every block, once",
                    z3.And(within(c - tau, 1) == z3.If(c == tau, 1, 0), within(c - tau, n) == 1), RANKS,
                    twin=Twin("  one turn fewer leaves none out", within(c - tau, n - 1) == 1))
    account.theorem("one turn fewer leaves out one block, that of the right neighbour",
                    (within(c - tau, n - 1) == 0) == (tau == right(c)), RANKS,
                    twin=Twin("  that of the left neighbour", (within(c - tau, n - 1) == 0) == (tau == left(c))))
    account.theorem("a ring that turns the other way covers as well: (tau - c) mod n < k, every block for k = n",
                    z3.And(by_turns(lambda rank, turn: around(rank + turn), right), within(tau - c, n) == 1,
                           counted(lambda j: around(c + j), lambda j: within(tau - c, j))), passed(right),
                    twin=Twin("  with the same blocks in the same turns", by_turns(behind, left)))
    account.theorem("if ranks pass their own block every turn: the own once, the left neighbour's k - 1 times",
                    counted(lambda j: z3.If(j == 0, c, left(c)), repeated), TURN,
                    twin=Twin("  and so in n turns every block once", repeated(n) == 1))


def collected(start: Int, turns: Int) -> Int:
    """The parts of `turns` ranks from `start` on, as partial sums F."""
    return z3.If(start + turns <= n, F(start + turns) - F(start), F(n) - F(start) + F(start + turns - n))


def prove_sums(account: Account) -> None:
    """Where the sum of rank r stands, and what it is."""
    start, whole = right(r), [*RANKS, F(0) == 0]

    def moves(first: Int) -> Bool:
        return z3.And(place(0) == first,
                      z3.Implies(place(k) == around(first + k), place(k + 1) == around(first + k + 1)))

    account.theorem("for every n: the sum that starts behind r stands at rank (r + 1 + k) mod n in turn k",
                    moves(start), [*TURN, place(0) == start, place(k + 1) == right(place(k))],
                    twin=Twin("  at rank (r + k) mod n", moves(r)))
    account.theorem("in turn n - 1 it stands at r", around(start + n - 1) == r, RANKS,
                    twin=Twin("  so does a sum that starts at r", around(r + n - 1) == r))

    def adds(first: Int) -> Bool:
        return inductive(lambda j: f(around(start + j)), lambda j: collected(first, j), k)

    passing = around(start + k)
    account.theorem("after k turns it is the sum of the parts of the k ranks that it passed, whatever the parts",
                    adds(start), [*TURN, F(0) == 0, F(passing + 1) == F(passing) + f(passing)],
                    twin=Twin("  of the k ranks from r on", adds(r)))
    account.theorem("for every n: after n turns it is the sum over all ranks, each once", collected(start, n) == F(n),
                    whole, twin=Twin("  after n - 1 turns: the part of r itself is missing",
                                     collected(start, n - 1) == F(n)))
    account.refuted("  started at r and brought home in n + 1 turns: the part of r counts twice",
                    collected(r, n) + f(around(r + n)) == F(n), whole)
    read = held(around(c - around(c - tau)))
    account.theorem("sums, then blocks: in turn (c - tau) mod n rank c reads the whole sum of tau: all_reduce",
                    read == total(tau), [*RANKS, held(tau) == total(tau)],
                    twin=Twin("  if sums start at their own rank and end one before it",
                              read == total(tau), [*RANKS, held(left(tau)) == total(tau)]))


def visits(size: int, source: Callable[[int, int], int], own: bool = False) -> list[list[int]]:
    """The blocks that each rank of a ring gets in n turns, from `source(rank, n)`, run turn by turn."""
    ranks = range(size)
    turns = [list(ranks)]
    for _ in ranks[1:]:
        turns.append([turns[0 if own else -1][source(rank, size)] for rank in ranks])
    return [sorted(blocks) for blocks in zip(*turns, strict=True)]


def run_rings(account: Account) -> None:
    """Rings of one to seven ranks; and the package's own ring of keys and values."""
    every = {size: [list(range(size))] * size for size in range(1, 8)}

    def missed(way: int, own: bool = False) -> list[int]:
        return [size for size in every if visits(size, lambda rank, size: (rank + way) % size, own) != every[size]]

    account.run("turn by turn on one to seven ranks: every block once, either way round", missed(-1) == missed(1) == [])
    account.run("but, from three ranks on, not if a rank passes its own every turn", missed(-1, True) == [*every][2:])
    model = resolve_model("gpt")
    ring = step_of('base = "cp_ring"\n', model)
    account.run("placealg proves attention over a ring of keys and values, for every n; a run on 3 ranks agrees",
                verdict(ring) == ("PROVED", ()) and run_equals(ring, {"cp": 3}))
    path = next(event.path for event in ring.events if event.verb == "shift")
    without = step_of(f'base = "cp_ring"\n[[edit]]\ndrop = "{path}"\n', model)
    account.run(f"without {path} it refutes it, and the run differs",
                verdict(without) == ("REFUTED", ("forward",)) and not run_equals(without, {"cp": 3}))


def main() -> Account:
    """Prove the intervals, the sums that go round, and hold both against runs."""
    account = Account("Rings: n turns bring every block, and collect every part, once", {"n": 3})
    for said, prove_part in (("Blocks", prove_blocks), ("Sums", prove_sums), ("Runs", run_rings)):
        account.say(f"{said} that go round.")
        prove_part(account)
    return account.close()


if __name__ == "__main__":
    main()
