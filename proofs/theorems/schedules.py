"""Pipeline schedules: an order that goes with times has no deadlock, and GPipe and 1F1B have times.

A schedule gives every stage the order of its items, F_k and B_k for each microbatch k. An item also waits for what
it needs: F_k for F_k of the stage before, B_k for B_k of the stage behind, on the last stage for its own F_k. A message
waits until it is fetched, and its sender does not wait.

Theorem. Let every item have a time, an integer that is larger than that of the item before it on its stage and of the
item that it needs. Then no walk along these edges comes back (each of its j edges gains at least 1: induction over j),
and whatever has run, of the items that have not the earliest can run: nobody waits for ever.

Times, for p stages and m microbatches, on stage i:
- gpipe, all forwards and then all backwards: F_k at i + k, B_k at (m + p - 1) + (p - 1 - i) + k;
- 1f1b, p - 1 - i forwards and then one forward and one backward in turn: F_k at i + k for k < p - i and at i + 2 k
  from there on, B_k at 2 p - 1 - i + 2 k.
Both end within 2 (m + p - 1) slots; in 2 m of them a stage works, in 2 (p - 1), the bubble, it waits. In 1f1b at most
p - i microbatches are in flight on stage i, whatever m is.

Sources: Huang et al., arXiv 1811.06965; Narayanan et al., arXiv 2006.09503 and 2104.04473.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import z3
from networkx import is_directed_acyclic_graph
from telling import Account, Bool, Int, Twin

from placealg.step.pipeline import Item, Pipeline
from placealg.step.waits import schedule_graph

p, m, i, k, j = z3.Ints("p m i k j")
Clock = Callable[[Int, Int], Int]
STAGE = [p >= 1, m >= 1, i >= 0, i < p, k >= 0, k < m]


@dataclass(frozen=True, slots=True)
class Times:
    """When stage i runs F_k and B_k, and how many forwards it runs before its first backward."""

    forward: Clock
    backward: Clock
    started: Int


GPIPE = Times(lambda i, k: i + k, lambda i, k: (m + p - 1) + (p - 1 - i) + k, m)
ONE_F_ONE_B = Times(lambda i, k: z3.If(k < p - i, i + k, i + 2 * k), lambda i, k: 2 * p - 1 - i + 2 * k,
                    z3.If(m < p - i, m, p - i))


def in_order(times: Times) -> Bool:
    """Times grow along a stage's order: `started` forwards, then B_0, F, B_1, F, ..., then what backwards remain."""
    forward, backward, started = times.forward, times.backward, times.started
    alternate = z3.And(backward(i, k) < forward(i, k + started), forward(i, k + started) < backward(i, k + 1))
    return z3.And(z3.Implies(k + 1 < started, forward(i, k) < forward(i, k + 1)),
                  forward(i, started - 1) < backward(i, 0),
                  z3.Implies(k + started < m, alternate),
                  z3.Implies(k + 1 < m, backward(i, k) < backward(i, k + 1)))


def after_needs(times: Times) -> Bool:
    """Times grow along what an item needs."""
    forward, backward = times.forward, times.backward
    return z3.And(z3.Implies(i > 0, forward(i - 1, k) < forward(i, k)),
                  z3.Implies(i < p - 1, backward(i + 1, k) < backward(i, k)),
                  z3.Implies(i == p - 1, forward(i, k) < backward(i, k)))


def prove_times(account: Account) -> None:
    """Any schedule with times."""
    time, walk = (z3.Function(name, z3.IntSort(), z3.IntSort()) for name in ("time", "walk"))
    first, item, needed = z3.Ints("first item needed")
    gains = z3.And(time(walk(0)) >= time(walk(0)) + 0,
                   z3.Implies(time(walk(j)) >= time(walk(0)) + j, time(walk(j + 1)) >= time(walk(0)) + j + 1))
    edge = time(walk(j)) < time(walk(j + 1))
    account.theorem("a walk of j edges gains at least j, for every j", gains, [j >= 0, edge],
                    twin=Twin("  if times may stay as they are", gains, [j >= 0, time(walk(j)) <= time(walk(j + 1))]))
    account.theorem("so it does not come back", walk(j) != walk(0), [j >= 1, time(walk(j)) >= time(walk(0)) + j],
                    twin=Twin("  a walk of no edges does", walk(j) != walk(0), [j >= 0, walk(0) == first]))
    done = z3.Function("done", z3.IntSort(), z3.BoolSort())
    earliest = z3.Implies(z3.Not(done(needed)), time(item) <= time(needed))
    account.theorem("whatever has run: what the earliest of the others needs has run", done(needed),
                    [z3.Not(done(item)), earliest, time(needed) < time(item)],
                    twin=Twin("  if an item may need a later one", done(needed), [z3.Not(done(item)), earliest]))


def prove_schedules(account: Account) -> None:
    """GPipe and 1F1B, for all p and m, and what they take."""
    early = replace(ONE_F_ONE_B, forward=GPIPE.forward), "its forwards run when gpipe runs them"
    soon = replace(GPIPE, backward=ONE_F_ONE_B.backward), "its backwards run when 1f1b runs them"
    for name, times, (wrong, said) in (("gpipe", GPIPE, soon), ("1f1b", ONE_F_ONE_B, early)):
        account.theorem(f"{name}, for all p and m: times grow along each stage's order and along every need",
                        z3.And(in_order(times), after_needs(times)), STAGE,
                        twin=Twin(f"  if {said}", in_order(wrong)))
        account.theorem(f"{name}: it ends within 2 (m + p - 1) slots, on stage 0 in the last of them",
                        z3.And(times.backward(i, k) < 2 * (m + p - 1), times.backward(0, m - 1) == 2 * (m + p) - 3),
                        STAGE, twin=Twin("  within 2 (m + p - 2)", times.backward(i, k) < 2 * (m + p - 2)))
    ahead = k + (p - i)
    account.theorem("1f1b: F_k runs after B of p - i microbatches before, so at most p - i are in flight",
                    ONE_F_ONE_B.backward(i, k) < ONE_F_ONE_B.forward(i, ahead), STAGE,
                    twin=Twin("  so in gpipe", GPIPE.backward(i, k) < GPIPE.forward(i, ahead)))
    chains = ("F0 f0 b0 B0", "F1 f1 b1 B1", "F0 B0 F1 B1")
    """What items need, and the order of stage 0; those of stage 1 in small letters."""
    account.theorem("no times at all: stage 0 runs F0 B0 F1 B1, and stage 1 F1 before F0",
                    z3.Not(growing(*chains, "f1 f0 b0 b1")),
                    twin=Twin("  nor if stage 1 runs F0 B0 F1 B1", z3.Not(growing(*chains, "f0 b0 f1 b1"))))


def growing(*chains: str) -> Bool:
    """Times grow along chains of items."""
    return z3.And([z3.Int(a) < z3.Int(b) for chain in chains for a, b in pairwise(chain.split())])


def when(times: Times, size: tuple[int, int], stage: int, item: Item) -> int:
    """The time of an item, for p and m as `size` says."""
    clock = {"forward": times.forward, "backward": times.backward}[item.phase]
    values = zip((p, m, i, k), (*size, stage, item.microbatch), strict=True)
    return int(z3.simplify(z3.substitute(clock(i, k), *((a, z3.IntVal(b)) for a, b in values))).as_long())


def run_orders(account: Account) -> None:
    """The orders that placealg generates."""
    sizes = [(ranks, microbatches) for ranks in range(1, 5) for microbatches in range(1, 7)]
    for name, times in (("gpipe", GPIPE), ("1f1b", ONE_F_ONE_B)):
        account.run(f"{name}: these times grow along every edge of placealg's schedules, p to 4 and m to 6",
                    all(when(times, size, *a) < when(times, size, *b) for size in sizes
                        for a, b in schedule_graph(Pipeline("pp", name), *size).edges))
    account.run("interleaved, 2 and 3 chunks: no cycle at these sizes",
                all(is_directed_acyclic_graph(schedule_graph(Pipeline("pp", "interleaved", chunks), ranks, count))
                    for chunks in (2, 3) for ranks, count in sizes if count % ranks == 0))


def main() -> Account:
    """Prove that times exclude deadlock, and that GPipe and 1F1B have them."""
    account = Account("Pipeline schedules: times exclude deadlock, for every p and m", {"p": 2, "m": 3})
    for prove_part in (prove_times, prove_schedules, run_orders):
        prove_part(account)
    return account.close()


if __name__ == "__main__":
    main()
