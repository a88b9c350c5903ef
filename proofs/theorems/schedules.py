"""Pipeline schedules: an order that goes with times has no deadlock, and GPipe and 1F1B have times.

A schedule gives every stage the order of its items, F_k and B_k for each microbatch k. An item also waits for what
it needs: F_k for F_k of the stage before, B_k for B_k of the stage behind, on the last stage for its own F_k.

Theorem. Let every item have a time, an integer that is larger than that of the item before it on its stage and of the
item that it needs. Then no walk along these edges comes back (each of its j edges gains at least 1: induction over j),
and whatever has run, of the items that have not the earliest can run: nobody waits for ever.

Times, for p stages and m microbatches, on stage i:
- gpipe, all forwards and then all backwards: F_k at i + k, B_k at (m + p - 1) + (p - 1 - i) + k;
- 1f1b, p - 1 - i forwards and then one forward and one backward in turn: F_k at i + k for k < p - i and at i + 2 k
  from there on, B_k at 2 p - 1 - i + 2 k.
Both end within 2 (m + p - 1) slots, of which a stage works in 2 m: the bubble is 2 (p - 1) of them. In 1f1b at most
p - i microbatches are in flight on stage i, whatever m is.

Sources: Huang et al., arXiv 1811.06965; Narayanan et al., arXiv 2006.09503 and 2104.04473.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import z3
from telling import Account, Bool, Int, Twin

from placealg.step.pipeline import Item, Pipeline, schedule_graph

p, m, i, k, j = z3.Ints("p m i k j")
Clock = Callable[[Int, Int], Int]
STAGE = [p >= 1, m >= 1, i >= 0, i < p, k >= 0, k < m]


@dataclass(frozen=True, slots=True)
class Times:
    """When stage i runs F_k and B_k, and how many forwards it runs before its first backward."""

    forward: Clock
    backward: Clock
    started: Int


def least(one: Int, two: Int) -> Int:
    """The smaller of two numbers."""
    return z3.If(one < two, one, two)


GPIPE = Times(lambda i, k: i + k, lambda i, k: (m + p - 1) + (p - 1 - i) + k, m)
EAGER = Times(lambda i, k: i + k, lambda i, k: 2 * p - 1 - i + 2 * k, least(m, p - i))
"""1f1b, its forwards as early as in gpipe: the twin."""
ONE_F_ONE_B = Times(lambda i, k: z3.If(k < p - i, i + k, i + 2 * k), EAGER.backward, EAGER.started)


def in_order(times: Times) -> Bool:
    """Times grow along a stage's order: `started` forwards, then B_0, F, B_1, F, ..., then the backwards that remain."""
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
    for name, times in (("gpipe", GPIPE), ("1f1b", ONE_F_ONE_B)):
        account.theorem(f"{name}, for every p and m: times grow along each stage's order and along every need",
                        z3.And(in_order(times), after_needs(times)), STAGE,
                        twin=Twin("  if every forward runs as early as it can, and every backward as in 1f1b",
                                  in_order(EAGER)))
        account.theorem(f"{name}: it ends within 2 (m + p - 1) slots, on stage 0 in the last of them",
                        z3.And(times.backward(i, k) < 2 * (m + p - 1), times.backward(0, m - 1) == 2 * (m + p) - 3),
                        STAGE, twin=Twin("  within 2 (m + p - 2)", times.backward(i, k) < 2 * (m + p - 2)))
    ahead = k + (p - i)
    account.theorem("1f1b: F_k runs after B of p - i microbatches before, so at most p - i are in flight",
                    ONE_F_ONE_B.backward(i, k) < ONE_F_ONE_B.forward(i, ahead), STAGE,
                    twin=Twin("  so in gpipe", GPIPE.backward(i, k) < GPIPE.forward(i, ahead)))
    stuck = [z3.Int(name) for name in ("F0", "B0", "F1", "B1", "f0", "b0", "f1", "b1")]
    F0, B0, F1, B1, f0, b0, f1, b1 = stuck


