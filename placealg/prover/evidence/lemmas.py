"""The closed forms of sums that the calculus uses, each proved once by explicit induction.

The solver never sees an unbounded sum. A lemma gives a partial sum S(k) over ranks 0..k-1 in closed form:
S(0) is right (base), and S(k+1) = S(k) + f(k) (step), for every k, every position tau and every f.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import z3

from placealg.prover.evidence.solver import PROCESS, UNSAT
from placealg.step.program import Step


class Unproved(Exception):
    """The solver did not prove a lemma, so that what depends on it is open."""


@dataclass(frozen=True, slots=True)
class Lemma:
    """A closed form: its statement, its summand f(k) and its partial sum S(k).

    `verbs` are those whose transfer rules use it; if it is empty, every rule may.
    """

    name: str
    statement: str
    summand: Callable[[Any], Any]
    partial: Callable[[Any], Any]
    verbs: tuple[str, ...] = ()


_tau, _k, _value, _c, _n = z3.Ints("tau k value c n")
_behind = z3.If(_c >= _tau, _c - _tau, _c - _tau + _n)
"""The number of ranks from rank tau on to rank c, in the direction in which blocks travel round a ring of n."""

_f = z3.Function("f", z3.IntSort(), z3.IntSort())

LEMMAS: tuple[Lemma, ...] = (
    Lemma("sum_of_owner", "sum over c of [c = tau] f(c) is f(tau), for tau inside the axis",
          lambda c: z3.If(c == _tau, _f(c), 0), lambda k: z3.If(k > _tau, _f(_tau), 0)),
    Lemma("sum_of_constant", "sum over the n ranks of an axis of x is n x",
          lambda c: _value, lambda k: k * _value),
    Lemma("ring", "in k turns of a ring rank c gets the blocks of the k ranks before it, each once; in n of them all",
          lambda k: z3.If(_behind == k, 1, 0), lambda k: z3.If(_behind < k, 1, 0), ("shift",)),
)
"""Every closed form that the transfer rules use."""


def obligations(lemma: Lemma) -> tuple[list[Any], list[Any]]:
    """(base, step) as assertions whose unsatisfiability proves the lemma."""
    premises = [_k >= 0, _tau >= 0, _tau < _n, _c >= 0, _c < _n]
    base = [*premises, lemma.partial(z3.IntVal(0)) != 0]
    step = [*premises, lemma.partial(_k + 1) != lemma.partial(_k) + lemma.summand(_k)]
    return base, step


def used(step: Step) -> tuple[Lemma, ...]:
    """The lemmas that the rules for the verbs of a program use."""
    verbs = {e.verb for e in step.events}
    return tuple(lemma for lemma in LEMMAS if not lemma.verbs or verbs.intersection(lemma.verbs))


def proved_lemmas(chosen: Iterable[Lemma] = LEMMAS) -> tuple[str, ...]:
    """The lemmas as `name: statement`, each proved by the solver in this process; raises Unproved if one is not."""
    return tuple(_proved(lemma) for lemma in chosen)


@lru_cache(maxsize=16)
def _proved(lemma: Lemma) -> str:
    for part in obligations(lemma):
        answer = PROCESS.ask(part)
        if answer.status != UNSAT:
            raise Unproved(f"lemma {lemma.name} is not proved: {answer.reason or answer.status}")
    return f"{lemma.name}: {lemma.statement}"
