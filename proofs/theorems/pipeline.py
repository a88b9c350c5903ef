"""Pipeline stages: handing on changes no value, and the order of microbatches changes none if copies stay.

A stage holds a copy of its weights, a gradient sum, and of each microbatch k what F_k kept for B_k. F_k keeps
keep(copy, k) and sends out(copy, k); B_k adds gamma(copy, kept_k, k) to the sum and sends back(copy, kept_k, k). All
four are any functions; what came by message is part of k.

Theorem. Hypotheses: *copies stay*, neither F_k nor B_k leaves another copy than it found; *forwards add nothing*, F_k
leaves the sum alone. Then neighbours in a stage's order that are of different microbatches may change places: copy,
sum, what is kept and every message are the same. Any order with each F_k before its B_k comes from F_0 B_0 F_1 B_1 ...
by such swaps: in any other some neighbours are out of turn, they are of different microbatches, and a swap leaves one
pair less out of turn. So gpipe, 1f1b and interleaved schedules compute on each stage what one microbatch after the
other computes. (They take forwards in turn and backwards in turn, so what the first forward gathers and the last
backward frees is outside of all that moves.) The prover checks the hypotheses for each group of parameters
(`placealg/prover/calculus/explore.py`), else it claims nothing. They suffice; without them, a copy that every backward
frees is gone for the next where forwards run ahead.

Theorem. If messages are the identity and each stage has the weights of its layers, layer l of any stage has what layer
l of the single device has, for every number of layers and every map of layers to stages. Position moves; weights do
not. Backward is the same from the last layer to the first. Of whole programs, with what the stages compute, the loop
lemma `blocks_sound` in proofs/coq/kernel says it: a stage is a way that moves with the instances of a unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from typing import Any

import z3
from telling import Account, Bool, Int, Twin, step_of, verdict

from placealg.models.config import resolve_model
from placealg.step.pipeline import Item, Pipeline, work

Number = z3.IntSort()
Copy, Kept, Message = (z3.DeclareSort(name) for name in ("Copy", "Kept", "Message"))
keep, out = z3.Function("keep", Copy, Number, Kept), z3.Function("out", Copy, Number, Message)
gamma, back = (z3.Function(name, Copy, Kept, Number, sort) for name, sort in (("gamma", Number), ("back", Message)))
after_forward, after_backward = (z3.Function(name, Copy, Number, Copy) for name in ("after_F", "after_B"))
touched = z3.Function("touched", Number, Number, Number)
i, j, l = z3.Ints("i j l")  # noqa: E741  microbatches i and j, layer l


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage's state, and the messages that it sent forwards and backwards, by microbatch."""

    copy: Any = z3.Const("copy", Copy)
    total: Any = z3.Int("total")
    kept: Any = z3.Array("kept", Number, Kept)
    sent: Any = z3.Array("sent", Number, Message)
    sent_back: Any = z3.Array("sent_back", Number, Message)


def forward(stage: Stage, k: Int) -> Stage:
    """F_k."""
    return replace(stage, copy=after_forward(stage.copy, k), total=touched(stage.total, k),
                   kept=z3.Store(stage.kept, k, keep(stage.copy, k)), sent=z3.Store(stage.sent, k, out(stage.copy, k)))


def backward(stage: Stage, k: Int, *, adds: bool = True) -> Stage:
    """B_k, which adds its gradient to the sum or, wrongly, puts it in its place."""
    found = stage.copy, stage.kept[k], k
    return replace(stage, copy=after_backward(stage.copy, k), total=(stage.total if adds else 0) + gamma(*found),
                   sent_back=z3.Store(stage.sent_back, k, back(*found)))


def swap(first: Callable[..., Stage], second: Callable[..., Stage]) -> Bool:
    """`first` of microbatch i and `second` of j may change places."""
    one, two = second(first(Stage(), i), j), first(second(Stage(), j), i)
    return z3.And([getattr(one, name) == getattr(two, name) for name in Stage.__slots__])


def prove_order(account: Account) -> None:
    """Swaps, with each hypothesis and without; and that swaps are enough."""
    apart, stage = i != j, Stage()
    forwards = [after_forward(stage.copy, k) == stage.copy for k in (i, j)]
    backwards = [after_backward(stage.copy, k) == stage.copy for k in (i, j)]
    nothing = [touched(total, k) == total for k in (i, j) for total in (stage.total, backward(stage, j).total)]
    stay = [apart, *forwards, *backwards]
    account.theorem("F_i and B_j may change places", swap(forward, backward), [*stay, *nothing],
                    twin=Twin("  if a backward changes the copy: frees it", swap(forward, backward),
                              [apart, *forwards, *nothing]))
    account.refuted("  if a forward changes the copy", swap(forward, backward), [apart, *backwards, *nothing])
    account.refuted("  if a forward changes the sum: clears it", swap(forward, backward), stay)
    account.refuted("  if they are of one microbatch", swap(forward, backward), [i == j, *stay[1:], *nothing])
    account.theorem("F_i and F_j may change places", swap(forward, forward), [*stay, *nothing],
                    twin=Twin("  if a forward changes the copy", swap(forward, forward), [apart, *nothing]))
    account.theorem("B_i and B_j may change places", swap(backward, backward), stay,
                    twin=Twin("  if a backward frees the copy", swap(backward, backward), [apart]))
    account.refuted("  if gradients are assigned, not added", swap(*[partial(backward, adds=False)] * 2), stay)
    a, b, x = z3.Ints("a b x")

    def before(*order: Int) -> Int:
        """How many pairs are out of turn."""
        return z3.Sum([z3.If(p > q, 1, 0) for n, p in enumerate(order) for q in order[n + 1:]])

    fewer = z3.And(a != b, before(x, b, a) == before(x, a, b) - 1, before(b, a, x) == before(a, b, x) - 1)
    account.theorem("neighbours out of turn are of two microbatches; a swap leaves one pair less out of turn", fewer,
                    [a > b], twin=Twin("  of items that are no neighbours", before(b, x, a) == before(a, x, b) - 1))


def prove_handing_on(account: Account) -> None:
    """What enters a layer, by message or not, is what the layer before made: induction over layers."""
    own, single = z3.Function("own", Number, Number), z3.Function("single", Number, Message)
    held, weight = z3.Function("held", Number, Number, Message), z3.Function("weight", Number, Number, Copy)
    layer, message = z3.Function("layer", Copy, Message, Message), z3.Const("message", Message)
    true_weight = z3.Function("true_weight", Number, Copy)
    here, there, entered = own(l + 1), own(l), z3.Const("entered", Message)
    runs = [l >= 0, held(here, l + 1) == layer(weight(here, l + 1), entered),
            single(l + 1) == layer(true_weight(l + 1), single(l))]
    placed, local = weight(here, l + 1) == true_weight(l + 1), held(here, l)
    entering, arrived = entered == z3.If(here == there, local, message), message == held(there, l)
    goal = z3.Implies(held(there, l) == single(l), held(here, l + 1) == single(l + 1))
    account.theorem("for every map of layers to stages: layer l + 1 has what the single device has, if layer l has",
                    goal, [*runs, placed, entering, arrived],
                    twin=Twin("  without the message", goal, [*runs, placed, entered == local]))
    account.refuted("  with a message of another microbatch", goal, [*runs, placed, entering])
    account.refuted("  with a stage that has the weights of another", goal, [*runs, entering, arrived])


def sum_of(order: Sequence[Item], *, freed: bool) -> int | None:
    """What one stage adds up, where the gradient of microbatch k is 3**k; None once it read a copy that was gone."""
    total, held = 0, False
    for item in order:
        held = held or item.phase == "forward"
        if item.phase == "backward":
            if not held:
                return None
            total, held = total + 3 ** item.microbatch, not freed
    return total


def run_orders(account: Account) -> None:
    """All orders of three microbatches; those of GPipe and 1F1B; and the same copy in placealg's programs."""
    items = [Item(phase, k) for k in range(3) for phase in ("forward", "backward")]
    orders = [o for o in permutations(items) if all(o.index(items[k]) < o.index(items[k + 1]) for k in (0, 2, 4))]
    right = sum_of(items, freed=False)
    account.run(f"all {len(orders)} orders of three microbatches add up to the same, if the copy stays",
                {sum_of(order, freed=False) for order in orders} == {right})
    account.run("if each backward frees it, only those 6 that take one microbatch after the other",
                [o for o in orders if sum_of(o, freed=True) == right]
                == [o for o in orders if all(o[k].microbatch == o[k + 1].microbatch for k in (0, 2, 4))])
    ends = {(order, stage): sum_of(work(Pipeline("pp", order), stage, 2, 3), freed=True)
            for order in ("gpipe", "1f1b") for stage in (0, 1)}
    account.run("of two stages under gpipe and 1f1b, only the last of 1f1b",
                [at for at, total in ends.items() if total == right] == [("1f1b", 1)])


def run_package(account: Account) -> None:
    """One gathered copy for forward and backward, freed by each backward or by the last."""
    model = resolve_model("gpt")
    forward, backward = (f"{phase}.layer.weight." for phase in ("forward", "backward"))
    once = "".join(f'[[edit]]\ndrop = "{path}"\n' for path in (f"{forward}free[dp]", f"{backward}gather[dp]"))
    first, last = (f'[[edit]]\nset = "{path}"\nat = "{which}"\n'
                   for path, which in ((f"{forward}gather[dp]", "first"), (f"{backward}free[dp]", "last")))

    def proved(text: str) -> bool:
        return verdict(step_of(text, model)) == ("PROVED", ())

    account.run("placealg on zero3: each forward gathers, each backward frees. Proved without a pipeline, not with one",
                proved(f'base = "zero3"\n{once}') and not proved(f'base = "zero3*pp"\n{once}'))
    account.run("  the first forward gathers, the last backward frees: proved with one",
                proved(f'base = "zero3*pp"\n{once}{first}{last}'))
    account.run("  the first forward gathers, each backward frees: not",
                not proved(f'base = "zero3*pp"\n{once}{first}'))


def main() -> Account:
    """Prove that orders and messages change nothing, and hold that against runs and the package."""
    account = Account("Pipeline stages: neither messages nor the order of microbatches change a value")
    for prove_part in (prove_order, prove_handing_on, run_orders, run_package):
        prove_part(account)
    return account.close()


if __name__ == "__main__":
    main()
