"""Steps written op by op, run again in a finite field: what is the single device's conforms, all else does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placealg.watch.lift.explain import summary
from placealg.watch.lift.field import PRIMES, UNKNOWN, Field, told
from placealg.watch.lift.judge import CONFORMS, DIFFERS, UNSEEN, Judgement, judge
from placealg.watch.lift.tokens import same_tokens
from placealg.watch.lift.trace import READ, Group, Held, Op, Place, Trace, Word

FIELD = Field(PRIMES[0])
ELEMENT = st.integers(1, min(PRIMES) - 1)


def of(*values: int) -> Any:
    return np.array(values, np.int64)


# ---------------------------------------------------------------------- numbers


@given(st.lists(ELEMENT, min_size=2, max_size=6), st.lists(ELEMENT, min_size=2, max_size=6))
def test_arithmetic_is_that_of_whole_numbers(xs: list[int], ys: list[int]) -> None:
    n, p = min(len(xs), len(ys)), PRIMES[0]
    x, y = of(*xs[:n]), of(*ys[:n])
    assert FIELD.add(x, y).tolist() == [(a + b) % p for a, b in zip(xs, ys, strict=False)]
    assert FIELD.mul(x, y).tolist() == [a * b % p for a, b in zip(xs, ys, strict=False)]
    assert FIELD.mul(FIELD.div(x, y), y).tolist() == xs[:n]
    assert FIELD.product(x[None], y[:, None]).tolist() == [[sum(a * b for a, b in zip(xs, ys, strict=False)) % p]]


@given(st.lists(ELEMENT, min_size=3, max_size=5, unique=True))
def test_what_is_unknown_spreads_and_nothing_else(xs: list[int]) -> None:
    x = of(UNKNOWN, *xs[1:])
    for made in (FIELD.add(x, of(*xs)), FIELD.mul(x, of(*xs)), FIELD.oracle("f", x), FIELD.exp(x)):
        assert made[0] == UNKNOWN and (made[1:] >= 0).all()
    assert FIELD.sum(x, (0,)) == UNKNOWN and FIELD.sum(x[1:], (0,)) >= 0


@pytest.mark.parametrize(("value", "fraction"), [(0.1, Fraction(1, 10)), (1 - 0.9, Fraction(1, 10)),
                                                 (1 - 0.999, Fraction(1, 1000)), (1 / 3, Fraction(1, 3)),
                                                 (3e-4, Fraction(3, 10000)), (1e-8, Fraction(1, 10**8)),
                                                 (-0.5263157894736844, Fraction(-10, 19))])
def test_a_number_is_the_fraction_that_it_stands_for(value: float, fraction: Fraction) -> None:
    assert FIELD.number(value) == FIELD.fraction(fraction)
    assert FIELD.number(value * (1 + 1e-9)) != FIELD.number(value)


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=8), st.sampled_from(("float32", "float64")))
def test_a_number_is_one_element_whatever_the_array_holds(values: list[float], kind: str) -> None:
    """Also in an array of a table's size: a batch of ranks together is longer than that of each."""
    few = np.array(values, kind)
    many = np.concatenate([few, np.linspace(0.001, 0.999, 1000).astype(kind)])
    assert FIELD.numbers_of(many, kind)[:few.size].tolist() == FIELD.numbers_of(few, kind).tolist()
    assert FIELD.numbers_of(np.array([0.1], kind), kind)[0] == FIELD.fraction(Fraction(1, 10))


def test_the_root_of_a_fraction_is_its_root() -> None:
    for square in (2, 0.5, 1 / 8, 0.001999):
        assert FIELD.number(sqrt(square)) == FIELD.root(of(FIELD.number(square)))[0]


@given(st.lists(ELEMENT, min_size=2, max_size=5, unique=True), ELEMENT)
def test_the_square_of_a_root_is_what_it_is_of(xs: list[int], c: int) -> None:
    field = Field(PRIMES[1])
    root = field.root(of(*xs))
    assert field.square(root).tolist() == [x % field.prime for x in xs]
    scaled = field.mul(root, of(c))
    assert field.square(scaled).tolist() == [x * c * c % field.prime for x in xs]
    assert field.square(of(*xs)).tolist() == [x * x % field.prime for x in xs]


@given(st.lists(ELEMENT, min_size=4, max_size=6, unique=True))
def test_a_softmax_does_not_know_what_was_subtracted(xs: list[int]) -> None:
    field = Field(PRIMES[0])
    x = of(*xs)
    plain = field.div(field.exp(x), field.sum(field.exp(x), (0,), True))
    largest = field.largest(x, 0, True)
    e = field.exp(field.sub(x, largest))
    assert field.div(e, field.sum(e, (0,), True)).tolist() == plain.tolist()
    total = field.log(field.sum(e, (0,), True))
    assert field.plus(total, largest).tolist() == field.log(field.sum(field.exp(x), (0,), True)).tolist()


@given(st.lists(ELEMENT, min_size=4, max_size=6, unique=True))
def test_parts_of_a_softmax_join_only_if_they_are_rescaled(xs: list[int]) -> None:
    field = Field(PRIMES[0])
    x = of(*xs)
    parts = x[:2], x[2:]
    largest = [field.largest(p, 0, True) for p in parts]
    both = field.larger(*largest)
    assert both.tolist() == field.largest(x, 0, True).tolist()
    sums = [field.sum(field.exp(field.sub(p, m)), (0,), True) for p, m in zip(parts, largest, strict=True)]
    right = [field.mul(s, field.exp(field.sub(m, both))) for s, m in zip(sums, largest, strict=True)]
    want = field.plus(field.log(field.sum(field.exp(field.sub(x, both)), (0,), True)), both)
    assert field.plus(field.log(field.plus(*right)), both).tolist() == want.tolist()
    assert field.plus(field.log(field.plus(*sums)), both).tolist() != want.tolist()


def test_only_what_is_told_is_looked_up() -> None:
    """An element that equals a root by chance has a square of its own."""
    field = Field(PRIMES[0])
    root = np.asarray(field.root(of(5)))
    assert field.square(root)[0] == int(root[0]) ** 2 % field.prime and field.square(told(root))[0] == 5


# ---------------------------------------------------------------------- steps

SIZE, RANKS = 3, 2
ROWS = (7.0, 11.0), (13.0, 17.0)
W, X, G, WEIGHTED, GROUP = 0, 1, 2, 3, Group((0, 1))


def at(store: int, size: int = SIZE) -> Place:
    return Place(store, 0, (size,), (1,), "float32", 4)


def held(numbers: Any = (0.25, 0.5, 0.75)) -> Held:
    values = np.array(numbers, np.float32)
    return Held(at(W), np.arange(SIZE), (SIZE,), values)


def step(rank: int, rows: tuple[float, ...], ops: Callable[[list[Op]], list[Op]] = lambda ops: ops) -> Trace:
    """A rank whose gradient is the mean of some rows times the weights squared; rows stand for tokens."""
    trace = Trace(rank, begun=20)
    trace.named["w"], trace.final["w"] = held(), held()
    trace.leaf[X] = 4, np.array([v for row in rows for v in (row,) * SIZE], np.float32)
    made = [Op("aten::zeros", {}, at(G), (), "")]
    for k, _ in enumerate(rows):
        row = Place(X, k * SIZE, (SIZE,), (1,), "float32", 4)
        made += [Op("aten::mul", {"self": row, "other": at(W)}, at(WEIGHTED), (), "train.py:1", phase="forward"),
                 Op("aten::mul_", {"self": at(WEIGHTED), "other": at(W)}, at(WEIGHTED), ("self",), "train.py:2",
                    phase="forward"),
                 Op("aten::add_", {"self": at(G), "other": at(WEIGHTED), "alpha": 1}, at(G), ("self",), "train.py:3",
                    phase="backward")]
    made.append(Op("aten::div_", {"self": at(G), "other": float(len(rows))}, at(G), ("self",), "train.py:4"))
    if rank >= 0:
        made.append(Op("c10d::allreduce_", {"tensors": (at(G),), "process_group": GROUP, "reduce_op": Word("mean")},
                       ((at(G),), None), (), "train.py:5"))
    made.append(Op("aten::add_", {"self": at(W), "other": at(G), "alpha": -0.1}, at(W), ("self",), "train.py:6",
                   phase="update"))
    trace.ops = ops(made)
    trace.gradients["w"] = len(trace.ops) - 1, at(G), np.ones(1)
    return trace


def of_ranks(change: Callable[[list[Op]], list[Op]] = lambda ops: ops, rank: int = 1) -> Judgement:
    """The verdict where one rank's ops are changed."""
    ranks = [step(r, ROWS[r], change if r == rank else lambda ops: ops)
             for r in range(RANKS)]
    return judge(ranks, step(-1, (17.0, 7.0, 13.0, 11.0)), keep=True)


def index(ops: list[Op], name: str) -> int:
    return next(k for k, op in enumerate(ops) if op.name == name)


def changed(name: str, **given: Any) -> Callable[[list[Op]], list[Op]]:
    def change(ops: list[Op]) -> list[Op]:
        k = index(ops, name)
        return [*ops[:k], replace(ops[k], given={**ops[k].given, **given}), *ops[k + 1:]]
    return change


def test_data_parallelism_is_the_single_device_in_any_order_of_rows() -> None:
    told = of_ranks()
    assert told.verdict == CONFORMS and told.checked == RANKS * SIZE


def test_ranks_that_train_on_the_same_rows_differ_however_the_step_ends() -> None:
    told = judge([step(r, ROWS[0]) for r in range(RANKS)], step(-1, ROWS[0]))
    assert not told.differs and told.alike == (0, 1) and told.verdict == DIFFERS
    assert not of_ranks().alike


@pytest.mark.parametrize(("around", "verdict"), [((0,), UNSEEN), ((0, 1), CONFORMS)])
def test_equal_elements_that_are_masked_apart_are_told_apart(around: tuple[int, ...], verdict: str) -> None:
    """Of ones a draw drops the second, in every row: nothing but its place tells it from the others."""
    ones, drawn = at(7), (np.array([1.0, 0.0, 1.0], np.float32),)
    dropped = [Op("aten::fill_", {"self": ones, "value": 1.0}, ones, ("self",), "", "forward"),
               Op("aten::bernoulli_", {"self": at(9), "p": 0.5}, at(9), ("self",), "", "forward", drawn),
               Op("aten::mul_", {"self": ones, "other": at(9)}, ones, ("self",), "", "forward")]

    def drops(ops: list[Op]) -> list[Op]:
        return [o for op in ops for o in ([*dropped, replace(op, given={**op.given, "other": ones})]
                                          if op.name == "aten::mul_" else [op])]
    told = judge([step(r, ROWS[r], drops) for r in range(RANKS)], step(-1, (*ROWS[0], *ROWS[1]), drops), around=around)
    assert told.verdict == verdict


@pytest.mark.parametrize(("lost", "verdict"), [(False, CONFORMS), (True, UNSEEN)])
def test_draws_that_one_tensor_meets_are_told_apart_by_their_order(lost: bool, verdict: str) -> None:
    """What a layer reads goes through a dropout for queries and another one for values; one that is written again."""
    ones = at(7)
    filled = Op("aten::fill_", {"self": ones, "value": 1.0}, ones, ("self",), "", "forward")
    made = [filled]
    for k, drawn in enumerate((1.0, 0.0)):
        noise, product = at(9), at(11 + k)
        made += [*([filled] if lost else []),
                 Op("aten::bernoulli_", {"self": noise, "p": 0.5}, noise, ("self",), "", "forward",
                    (np.full(3, drawn, np.float32),)),
                 Op("aten::mul", {"self": ones, "other": noise}, product, (), f"train.py:{k}", "forward")]
    made.append(Op("aten::add_", {"self": at(11), "other": at(12), "alpha": 2.0}, at(11), ("self",), "", "forward"))

    def drops(ops: list[Op]) -> list[Op]:
        return [o for op in ops for o in ([*made, replace(op, given={**op.given, "other": at(11)})]
                                          if op.name == "aten::mul_" else [op])]
    told = judge([step(r, ROWS[r], drops) for r in range(RANKS)], step(-1, (*ROWS[0], *ROWS[1]), drops), around=(0,))
    assert told.verdict == verdict


@pytest.mark.parametrize(("name", "verdict"), [("aten::add_", UNSEEN), ("aten::mul_", CONFORMS)])
def test_noise_that_is_added_to_zeros_is_noise(name: str, verdict: str) -> None:
    """Elements that all are zero get other noise each; of what they are multiplied by nothing is left."""
    zeros, noise = at(7), at(9)
    made = [Op("aten::zeros", {}, zeros, (), "", "forward"),
            Op("aten::randn", {}, noise, (), "", "forward", (np.array([0.1, 0.2, 0.3], np.float32),)),
            Op(name, {"self": zeros, "other": noise, **({"alpha": 1} if "add" in name else {})}, zeros, ("self",), "",
               "forward"),
            Op("aten::add_", {"self": at(WEIGHTED), "other": zeros, "alpha": 1}, at(WEIGHTED), ("self",), "",
               "forward")]

    def draws(ops: list[Op]) -> list[Op]:
        return [o for op in ops for o in ([*made, op] if op.name == "aten::add_" and op.phase == "backward" else [op])]
    told = judge([step(r, ROWS[r], draws) for r in range(RANKS)], step(-1, (*ROWS[0], *ROWS[1]), draws), around=(0,))
    assert told.verdict == verdict


@pytest.mark.parametrize(("met", "verdict"), [("aten::where", UNSEEN), ("aten::relu_", CONFORMS)])
def test_truth_values_that_hang_on_what_was_drawn_are_this_run_s_alone(met: str, verdict: str) -> None:
    """Whether an element behind a dropout is positive is known of no other run; a function of it is a function."""
    def drops(rank: int) -> Callable[[list[Op]], list[Op]]:
        noise, mask = at(9), Place(13, 0, (SIZE,), (1,), "bool", 1, held=np.array([True, rank < 0, True]))
        made = [Op("aten::bernoulli_", {"self": noise, "p": 0.5}, noise, ("self",), "", "forward",
                   (np.ones(SIZE, np.float32),)),
                Op("aten::mul_", {"self": at(WEIGHTED), "other": noise}, at(WEIGHTED), ("self",), "", "forward"),
                Op("aten::gt", {"self": at(WEIGHTED), "other": 0.0}, mask._replace(held=None), (), "", "forward")]
        last = {"aten::where": Op(met, {"condition": mask, "self": at(WEIGHTED), "other": at(WEIGHTED)}, at(WEIGHTED),
                                  ("self",), "", "forward"),
                "aten::relu_": Op(met, {"self": at(WEIGHTED)}, at(WEIGHTED), ("self",), "", "forward")}[met]
        return lambda ops: [o for op in ops for o in ([*made, last, op] if op.name == "aten::add_" and
                                                      op.phase == "backward" else [op])]
    told = judge([step(r, ROWS[r], drops(r)) for r in range(RANKS)], step(-1, (*ROWS[0], *ROWS[1]), drops(-1)))
    assert told.verdict == verdict


WRONG: dict[str, Callable[[list[Op]], list[Op]]] = {
    "a row is left out": lambda ops: [*ops[:3], *ops[4:]],
    "another number": changed("aten::div_", other=3.0),
    "another operand": changed("aten::mul_", other=at(G)),
    "a number in the update": changed("aten::add_", alpha=2),
    "not updated": lambda ops: ops[:-1],
    "negated": lambda ops: [*ops[:-1], Op("aten::neg_", {"self": at(G)}, at(G), ("self",), "train.py:9"), ops[-1]],
    "elements turned around": lambda ops: [*ops[:-1], Op(
        "aten::flip", {"self": at(G), "dims": (0,)}, at(9), (), "train.py:9"), replace(
            ops[-1], given={**ops[-1].given, "other": at(9)})],
}


@pytest.mark.parametrize("name", list(WRONG))
def test_a_change_on_one_rank_differs(name: str) -> None:
    told = of_ranks(WRONG[name])
    assert told.verdict == DIFFERS and summary(told, told)


def test_where_it_differs_is_said() -> None:
    told = of_ranks(changed("aten::div_", other=1.0), rank=0)
    assert "w on rank 0 and 1 more: the optimizer reads another gradient" in summary(told, told)
    told = of_ranks(changed("aten::mul_", other=at(WEIGHTED)))
    assert ("the first value that the single device has not is of aten::mul_ in forward, train.py:2, on rank 1"
            in summary(told, told))


@pytest.mark.parametrize("operator", ["sum", "max", "unknown"])
def test_another_operator_is_no_mean(operator: str) -> None:
    change = changed("c10d::allreduce_", reduce_op=Word(operator))
    ranks = [step(r, ROWS[r], change) for r in range(RANKS)]
    assert judge(ranks, step(-1, (17.0, 7.0, 13.0, 11.0))).verdict == (UNSEEN if operator == "unknown" else DIFFERS)


def test_an_op_without_a_rule_is_unseen_by_its_line() -> None:
    told = of_ranks(lambda ops: [*ops[:-1], Op("own::kernel", {"self": at(G)}, at(G), ("self",), "own.py:7"), ops[-1]])
    assert told.verdict == UNSEEN and any("own::kernel has no rule (own.py:7)" in f.what for f in told.unseen)


def test_what_an_op_without_a_rule_makes_and_nobody_reads_does_no_harm() -> None:
    told = of_ranks(lambda ops: [*ops, Op("own::kernel", {"self": at(G)}, at(11), (), "own.py:7")])
    assert told.verdict == CONFORMS


def test_memory_that_nobody_wrote_is_unseen() -> None:
    assert of_ranks(lambda ops: [replace(ops[0], name="aten::empty"), *ops[1:]]).verdict == UNSEEN
    assert of_ranks(lambda ops: [*ops[:-1], replace(ops[-1], lost=(G,))]).verdict == UNSEEN


def test_a_collective_that_one_rank_does_not_call_never_ends() -> None:
    told = of_ranks(lambda ops: [op for op in ops if op.name != "c10d::allreduce_"])
    assert told.verdict != CONFORMS


def test_a_reference_that_is_not_updated_says_nothing() -> None:
    ranks = [step(r, (2.0,), lambda ops: ops[:-2]) for r in range(RANKS)]
    told = judge(ranks, step(-1, (2.0,), lambda ops: ops[:-1]))
    assert told.verdict == UNSEEN and "does not update" in told.unseen[0].what


def test_a_number_that_was_read_is_unseen_where_it_may_be_in_what_follows() -> None:
    def read(by: float) -> Callable[[list[Op]], list[Op]]:
        def change(ops: list[Op]) -> list[Op]:
            one = Place(G, 0, (), (), "float32", 4)
            return [*ops[:-1], Op("aten::_local_scalar_dense", {"self": one}, None, (), "train.py:8", number=0.3718281),
                    Op("aten::mul_", {"self": at(G), "other": by}, at(G), ("self",), "train.py:9"), ops[-1]]
        return change
    assert of_ranks(read(0.37182812345)).verdict == UNSEEN
    assert of_ranks(read(0.5)).verdict == DIFFERS and of_ranks(read(1.0)).verdict == CONFORMS


@pytest.mark.parametrize(("number", "at_first", "verdict"), [
    (0.37182799123, False, CONFORMS), (0.37190012345, False, UNSEEN), (0.37182812345, False, CONFORMS),
    (0.37182799123, True, UNSEEN)])
def test_a_number_that_python_made_of_the_same_elements_is_the_single_device_s(number: float, at_first: bool,
                                                                               verdict: str) -> None:
    """A gradient's element is read, and all of it is multiplied by a number: the same, but for rounding, on all."""
    def read(by: float, early: bool) -> Callable[[list[Op]], list[Op]]:
        def change(ops: list[Op]) -> list[Op]:
            one = Place(G, 0, (), (), "float32", 4)
            reads = Op("aten::_local_scalar_dense", {"self": one}, None, (), "train.py:8", number=0.5718281)
            k = index(ops, "c10d::allreduce_") if early else len(ops) - 1  # before ranks have summed up what they have
            ops = [*ops[:k], reads, *ops[k:]]
            return [*ops[:-1], Op("aten::mul_", {"self": at(G), "other": by}, at(G), ("self",), "train.py:9"), ops[-1]]
        return change
    ranks = [step(r, ROWS[r], read((0.37182812345, number)[r], at_first and r == 1)) for r in range(RANKS)]
    told = judge(ranks, step(-1, (*ROWS[0], *ROWS[1]), read(0.37182812345, False)))
    assert told.verdict == verdict


def test_numbers_that_are_read_from_what_nobody_can_follow_are_not_the_single_device_s() -> None:
    """All read what an op without a rule has made, and multiply by numbers that are near."""
    def read(by: float) -> Callable[[list[Op]], list[Op]]:
        def change(ops: list[Op]) -> list[Op]:
            other = at(7)
            return [*ops[:-1], Op("aten::nothing_like_it", {"self": at(G)}, other, (), "train.py:7"),
                    Op("aten::_local_scalar_dense", {"self": Place(7, 0, (), (), "float32", 4)}, None, (), "train.py:8",
                       number=0.5718281),
                    Op("aten::mul_", {"self": at(G), "other": by}, at(G), ("self",), "train.py:9"), ops[-1]]
        return change
    ranks = [step(r, ROWS[r], read((0.37182812345, 0.37182799123)[r])) for r in range(RANKS)]
    assert judge(ranks, step(-1, (*ROWS[0], *ROWS[1]), read(0.37182812345))).verdict == UNSEEN


def test_sums_of_which_nothing_is_known_are_not_alike() -> None:
    """Two ranks that give what nobody can follow, or whole numbers, give nothing that says which tokens they read."""
    def lost(ops: list[Op]) -> list[Op]:
        k = next((k for k, op in enumerate(ops) if op.name == "c10d::allreduce_"), len(ops) - 1)
        return [*ops[:k], Op("aten::nothing_like_it_", {"self": at(G)}, at(G), ("self",), "train.py:7"), *ops[k:]]
    told = judge([step(r, ROWS[0], lost) for r in range(RANKS)], step(-1, ROWS[0], lost))
    assert not told.alike and told.verdict == UNSEEN


def python_reads(ops: list[Op]) -> list[Op]:
    """Python reads a gradient's memory, and a number follows that may be made of it."""
    return [*ops[:-1], Op(READ, {"self": at(G)}, None, (), "train.py:8", number=np.array([0.1, 0.2, 0.3], np.float32)),
            Op("aten::mul_", {"self": at(G), "other": 0.37182812345}, at(G), ("self",), "train.py:9"), ops[-1]]


def test_memory_that_python_reads_is_a_number_that_was_read() -> None:
    assert of_ranks(python_reads).verdict == UNSEEN


@pytest.mark.parametrize(("phase", "verdict"), [("between", CONFORMS), ("forward", DIFFERS)])
def test_random_numbers_are_data_outside_of_modules_alone(phase: str, verdict: str) -> None:
    """A row that is drawn is as good as one that was there; what modules draw is an unknown of what it meets."""
    def drawn(ops: list[Op]) -> list[Op]:
        row = Place(X, 0, (SIZE,), (1,), "float32", 4)
        values = np.full(SIZE, ROWS[1][0], np.float32)
        return [Op("aten::normal_", {"self": row}, row, ("self",), "train.py:0", phase=phase, drawn=(values, values)),
                *ops]
    assert of_ranks(drawn).verdict == verdict


def test_truth_values_that_random_numbers_made_steer_by_chance() -> None:
    def masked(ops: list[Op]) -> list[Op]:
        held = np.array([True, False, True])
        chance, mask = at(12), Place(13, 0, (SIZE,), (1,), "bool", 1)
        drawn = (np.ones(SIZE, np.float32),)
        return [Op("aten::rand", {"size": (SIZE,)}, chance, (), "", phase="forward", drawn=drawn),
                Op("aten::gt", {"self": chance, "other": 0.5}, mask, (), "", phase="forward"), *ops[:-1],
                Op("aten::where", {"condition": mask._replace(held=held), "self": at(G), "other": at(G)}, at(G),
                   ("self",), ""), ops[-1]]
    assert of_ranks(masked).verdict == UNSEEN


@pytest.mark.parametrize(("says", "verdict"), [
    ((CONFORMS, CONFORMS), CONFORMS), ((DIFFERS, CONFORMS, CONFORMS), CONFORMS), ((DIFFERS, DIFFERS), DIFFERS),
    ((CONFORMS, DIFFERS, DIFFERS), DIFFERS), ((UNSEEN, CONFORMS), UNSEEN), ((DIFFERS, UNSEEN, CONFORMS), UNSEEN)])
def test_what_differs_does_so_in_two_fields(says: tuple[str, ...], verdict: str,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """In one field an element may by chance be one of which something is remembered."""
    left = list(says)
    monkeypatch.setattr("placealg.watch.lift.judge._judge", lambda *args: Judgement(left.pop(0)))
    assert judge([], Trace(-1)).verdict == verdict and not left


@pytest.mark.parametrize("prime", PRIMES)
def test_roots_of_written_numbers_are_roots(prime: int) -> None:
    """A norm divided by the root of a number and squared is divided by the number: torch takes norms of replicas so."""
    field = Field(prime)
    for n in (2, 3, 8, 12, 24, 96, 128):
        assert field.number(sqrt(n)) ** 2 % prime == n
        assert field.number(1 / sqrt(n)) * field.number(sqrt(n)) % prime == 1
    one, other = (field.leaf(name, np.arange(8)) for name in ("one", "other"))
    norm = field.div(field.root(one), np.array(field.number(sqrt(2))))
    assert (field.square(norm) * 2 % prime == one).all()
    assert not (field.root(one) == field.root(field.neg(one))).any()
    assert not (field.square(field.root(other)) == one).any()


@pytest.mark.parametrize(("number", "begun", "verdict"), [(0.73218934, 0, UNSEEN), (0.73218934, 20, DIFFERS),
                                                          (0.5, 0, DIFFERS), (float("nan"), 0, UNSEEN),
                                                          (float("nan"), 20, UNSEEN)])
def test_numbers_that_no_op_made_inside_the_step_are_unknown(number: float, begun: int, verdict: str) -> None:
    """A storage that is first met inside the step, of which the single device has no number, may come from anywhere."""
    ranks = [step(r, ROWS[r]) for r in range(RANKS)]
    for trace in ranks:
        trace.begun = begun
        trace.leaf[15] = 4, np.full(SIZE, number, np.float32)
    ranks[1].ops.insert(-1, Op("aten::mul_", {"self": at(G), "other": at(15)}, at(G), ("self",), "train.py:9"))
    assert judge(ranks, step(-1, (17.0, 7.0, 13.0, 11.0))).verdict == verdict


def test_what_has_no_place_on_the_single_device_is_unknown() -> None:
    ranks = [step(r, ROWS[r]) for r in range(RANKS)]
    for trace in ranks:
        trace.named["b"] = replace(held(), place=at(16))
        trace.ops.insert(-1, Op("aten::add_", {"self": at(G), "other": at(16)}, at(G), ("self",), "train.py:9"))
    told = judge(ranks, step(-1, (17.0, 7.0, 13.0, 11.0)))
    assert told.verdict == UNSEEN and not told.differs


def test_ranks_that_start_apart_differ() -> None:
    ranks = [step(r, (2.0,)) for r in range(RANKS)]
    ranks[1].named["w"] = held((0.25, 0.5, 0.7))
    told = judge(ranks, step(-1, (2.0,)))
    assert told.verdict == DIFFERS and any("another rank" in f.what for f in told.differs)


def test_tokens_of_all_ranks_are_those_of_the_single_device() -> None:
    def reads(*rows: list[int]) -> Trace:
        place = Place(7, 0, (len(rows), len(rows[0])), (len(rows[0]), 1), "int64", 8, np.array(rows))
        return Trace(0, [Op("aten::embedding", {"indices": place}, at(8), (), "", phase="forward")])
    assert same_tokens([reads([1, 2]), reads([3, 4])], reads([3, 4], [1, 2]), ("forward", "between"))
    assert not same_tokens([reads([1, 2]), reads([3, 4])], reads([1, 2]), ("forward", "between"))
    assert not same_tokens([reads([1, 2]), reads([3, 5])], reads([3, 4], [1, 2]), ("forward", "between"))
    turned = reads([1, 3, 5, 7], [2, 4, 6, 8])  # two sequences of four, as Megatron's loss has them
    assert same_tokens([reads([1, 2], [3, 4]), reads([5, 6], [7, 8])], turned, ("forward", "between"))
    assert not same_tokens([reads([1, 2], [3, 4]), reads([5, 6], [7, 9])], turned, ("forward", "between"))
