"""Orders that are written down: those that can run have no fault, and each other one is named by its actions and rank.

What can run is decided by a run: ranks take their rows from the left, one after the other, each action as soon as what
it needs is there.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from itertools import product

import pytest

import placealg as pa
from placealg.errors import InputError
from placealg.simulator.played import played
from placealg.simulator.rules import stage_order
from placealg.step.actions import faults, read_table
from placealg.step.pipeline import ORDERS, Pipeline, both_in_flight, in_flight, work
from placealg.strategy.spec import overlay

Rows = list[list[str]]
SHAPES = {"1f1b": (1,), "gpipe": (1,), "zb_h1": (1,), "zb_h2": (1,), "interleaved": (2, 3), "interleaved_zb": (2, 3),
          "zb_v": (2,), "dualpipe_v": (2,)}


def home(chunk: int, ranks: int, folded: bool) -> int:
    return 2 * ranks - 1 - chunk if folded and chunk >= ranks else chunk % ranks


def rows_of(order: str, ranks: int, chunks: int, microbatches: int) -> Rows:
    """The rows of an order here; a backward and at once the part for the weights is one of both, now and then."""
    pipeline = Pipeline("pp", order, chunks)
    kinds = {"forward": "F", "backward": "I" if pipeline.splits else "B", "weights": "W"}
    return [[f"{pipeline.own(rank, ranks)[i.chunk]}{kinds[i.phase]}{i.microbatch}"
             for i in work(pipeline, rank, ranks, microbatches)] for rank in range(ranks)]


def runs(rows: Rows, folded: bool, ranks: int, chunks: int, microbatches: int, messages: bool) -> bool:
    """Whether the rows do each piece of work once, and come to their ends."""
    last = ranks * chunks - 1
    done: set[str] = set()
    queues: dict[tuple[int, int], list[tuple[str, int, int]]] = defaultdict(list)
    arrived: set[tuple[str, int, int]] = set()
    at = [0] * ranks
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while at[rank] < len(row):
                found = re.fullmatch(r"(\d+)(SEND_F|RECV_F|SEND_B|RECV_B|[FIWB])(\d+)", row[at[rank]])
                assert found
                chunk, kind, microbatch = int(found[1]), found[2], int(found[3])
                if home(chunk, ranks, folded) != rank or row[at[rank]] in done or chunk > last:
                    return False

                def has(which: str, where: int, microbatch: int = microbatch) -> bool:
                    return any(f"{where}{k}{microbatch}" in done for k in which)

                before = chunk - 1 if kind == "F" else chunk + 1
                far = 0 <= before <= last and home(before, ranks, folded) != rank
                if kind in "FIB":
                    way = "F" if kind == "F" else "B"
                    ready = (kind == "F" or has("F", chunk)) and (
                        not 0 <= before <= last or ((way, chunk, microbatch) in arrived if messages and far else
                                                    has("F" if kind == "F" else "IB", before)))
                    if kind in "IB" and has("IB", chunk):
                        return False
                elif kind == "W":
                    ready = has("I", chunk)
                elif kind.startswith("SEND"):
                    there = chunk + (1 if kind == "SEND_F" else -1)
                    if not 0 <= there <= last or home(there, ranks, folded) == rank:
                        return False
                    ready = has("F" if kind == "SEND_F" else "IB", chunk)
                    if ready:
                        queues[rank, home(there, ranks, folded)].append((kind[-1], there, microbatch))
                else:
                    if not 0 <= (sender := chunk + (-1 if kind == "RECV_F" else 1)) <= last:
                        return False
                    queue = queues[home(sender, ranks, folded), rank]
                    ready = bool(queue)
                    if ready and queue.pop(0) != (kind[-1], chunk, microbatch):
                        return False
                    arrived |= {(kind[-1], chunk, microbatch)} if ready else set()
                if not ready:
                    break
                done.add(row[at[rank]])
                at[rank] += 1
                moved = True
    whole = all(f"{c}F{k}" in done and (f"{c}B{k}" in done or {f"{c}I{k}", f"{c}W{k}"} <= done)
                for c, k in product(range(last + 1), range(microbatches)))
    return whole and all(at[rank] == len(row) for rank, row in enumerate(rows)) and not any(queues.values())


def with_messages(rows: Rows, folded: bool, ranks: int, chunks: int) -> Rows:
    """The rows with a message sent behind what makes it, and received where it is sent, as the rows run."""
    last = ranks * chunks - 1
    found: Rows = [[] for _ in rows]
    at, there, moved = [0] * ranks, set[str](), True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            if at[rank] == len(row):
                continue
            one = re.fullmatch(r"(\d+)([FIWB])(\d+)", row[at[rank]])
            assert one
            chunk, way, microbatch = int(one[1]), "F" if one[2] == "F" else "B", one[3]
            before = chunk - 1 if way == "F" else chunk + 1
            if one[2] != "W" and 0 <= before <= last and f"{before}{way}{microbatch}" not in there:
                continue
            found[rank].append(row[at[rank]])
            to = chunk + 1 if way == "F" else chunk - 1
            if one[2] != "W":
                there.add(f"{chunk}{way}{microbatch}")
                if 0 <= to <= last and home(to, ranks, folded) != rank:
                    found[rank].append(f"{chunk}SEND_{way}{microbatch}")
                    found[home(to, ranks, folded)].append(f"{to}RECV_{way}{microbatch}")
            at[rank] += 1
            moved = True
    return found


def drawn(seed: int) -> tuple[Rows, bool, int, int, int, bool]:
    """(rows, in a V, ranks, chunks, microbatches, with messages) of an order that runs."""
    rng = random.Random(seed)
    order = rng.choice(ORDERS)
    ranks, chunks = rng.randint(2, 4), rng.choice(SHAPES[order])
    microbatches = ranks * rng.randint(1, 2) * (2 if order == "dualpipe_v" else 1)
    folded = Pipeline("pp", order, chunks).folded
    rows = rows_of(order, ranks, chunks, microbatches)
    messages = rng.random() < 0.5
    rows = with_messages(rows, folded, ranks, chunks) if messages else rows
    return rows, folded, ranks, chunks, microbatches, messages


def spoilt(rows: Rows, how: str, rng: random.Random) -> Rows:
    new = [list(row) for row in rows]
    row = rng.choice(new)
    at, to = rng.randrange(len(row)), rng.randrange(len(row))
    if how == "left out":
        del row[at]
    elif how == "twice":
        row.insert(to, row[at])
    elif how == "two swapped":
        row[at], row[to] = row[to], row[at]
    else:
        rng.shuffle(row)
    return new


def told(rows: Rows) -> list[str]:
    return [fault.says for fault in faults(read_table(tuple(",".join(row) for row in rows)))]


@pytest.mark.parametrize("seed", range(24))
def test_orders_that_run_have_no_fault(seed: int) -> None:
    rows, folded, ranks, chunks, microbatches, messages = drawn(seed)
    table = read_table(tuple(",".join(row) for row in rows))
    assert (table.ranks, table.chunks, table.microbatches, table.folded) == (ranks, chunks, microbatches, folded)
    assert runs(rows, folded, ranks, chunks, microbatches, messages) and told(rows) == []


@pytest.mark.parametrize("seed", [seed if seed < 60 else pytest.param(seed, marks=pytest.mark.slow)
                                  for seed in range(400)])
def test_a_fault_is_named_where_a_run_does_not_end(seed: int) -> None:
    rows, folded, ranks, chunks, microbatches, messages = drawn(seed)
    rng = random.Random(-seed)
    for how in ("left out", "twice", "two swapped", "shuffled"):
        new = spoilt(rows, how, rng)
        found = told(new)
        assert bool(found) is not runs(new, folded, ranks, chunks, microbatches, messages), (how, found[:2], new)
        pipeline = Pipeline("pp", "zb_v" if folded else "interleaved", chunks, actions=tuple(map(",".join, new)))
        assert bool(played(pipeline)) is bool(found), (how, found[:2], played(pipeline))
        if how in ("left out", "twice"):
            assert found and re.search(r"rank \d+|message \d+ from rank \d+", found[0]), found


@pytest.mark.parametrize(("rows", "says"), [
    (("0F0,0F1,0B0,0B1", "1B0,1F0,1F1,1B1"), "rank 1: 1B0 (action 1) needs 1F0 (action 2), which stands behind it"),
    (("0F0,0F1,0B1,0B0", "1F0,1B0,1F1"), "rank 1: 1F1 (action 3) has no backward 1B1"),
    (("0F0,0F0,0B0", "1F0,1B0"), "rank 0: 0F0 (action 1) is done again as 0F0 (action 2)"),
    (("0F0,0B0,0F1,0B1", "1F1,1B1,1F0,1B0"), "rank 0: 0B0 (action 2) waits for 1B0 (action 4) of rank 1; rank 1: 1F1 "
                                             "(action 1) waits for 0F1 (action 3) of rank 0: these ranks wait for one "
                                             "another"),
    (("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B1,0B1,0RECV_B0,0B0", "1RECV_F1,1RECV_F0,1F0,1F1,1B1,1SEND_B1,1B0,1SEND_B0"),
     "message 1 from rank 0 is 0SEND_F0 (action 2), and rank 1 receives 1RECV_F1 (action 1) then"),
    (("0UNSHARD,0F0,0RESHARD,0B0", "1F0,1B0"), "rank 0: 0B0 (action 4) needs 0UNSHARD before it, and parameters are "
                                               "sharded then"),
    (("0F0,0REDUCE_GRAD,0B0", "1F0,1B0,1REDUCE_GRAD"), "rank 0: 0B0 (action 3) adds to gradients that 0REDUCE_GRAD "
                                                       "(action 2) reduced"),
    (("0F0,0I0", "1F0,1I0,1W0"), "rank 0: 0I0 (action 2) has no 0W0, the part for the weights"),
])
def test_faults_in_words(rows: tuple[str, ...], says: str) -> None:
    assert says in [fault.says for fault in faults(read_table(rows))]


@pytest.mark.parametrize(("rows", "message"), [
    (("0F0,0X0",), "row 1, column 2: '0X0' is no action"), (("0F0", "1F0,1B"), "row 2, column 2: '1B' is no action"),
    (("0F0,0UNSHARD1",), "row 1, column 2: '0UNSHARD1'"), (("0F0", "2F0"), "3 stages on 2 ranks"),
    (("0F0,1F0", "1B0,0B0"), r"stage 1 is on rank 0, 1F0 \(action 2\), and on rank 1, 1B0 \(action 1\)"),
    (("1F0,1B0", "0F0,0B0", "2F0,2B0"), "neither from rank to rank in turns nor in a V"),
])
def test_rows_that_are_none(rows: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_table(rows)


@pytest.mark.parametrize("order", ORDERS)
def test_what_is_held_and_run_is_the_order_s_own(order: str) -> None:
    """The simulator reads the rows itself; in flight is what the order's formulas say of the fullest rank."""
    for ranks, chunks in product((2, 3), SHAPES[order]):
        m = 2 * ranks
        plain = Pipeline("pp", order, chunks)
        written = Pipeline("pp", order, chunks, actions=tuple(map(",".join, rows_of(order, ranks, chunks, m))))
        for rank in range(ranks):
            assert work(written, rank, ranks, m) == work(plain, rank, ranks, m) == stage_order(written, rank, ranks, m)
        for formula in (in_flight, both_in_flight):
            if formula is both_in_flight and plain.folded:
                continue
            most = max(int(pa.arith.parse(formula(plain)).evaluate({"p": ranks, "i": i, "m": m, "v": chunks}))
                       for i in range(ranks))
            assert int(formula(written)) == most, (formula.__name__, ranks, chunks)


REFUTED = [("0F0,0F1,0B0,0B1", "1B0,1F0,1F1,1B1"), ("0F0,0B0,0F1,0B1", "1F1,1B1,1F0,1B0"),
           ("0F0,0F1,0B0", "1F0,1F1,1B0"),
           ("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B1,0B1,0RECV_B0,0B0",
            "1RECV_F1,1RECV_F0,1F0,1F1,1B1,1SEND_B1,1B0,1SEND_B0"),
           ("0UNSHARD,0F0,0RESHARD,0B0", "1F0,1B0")]


@pytest.mark.parametrize("rows", [rows if n in (1, 3) else pytest.param(rows, marks=pytest.mark.slow)
                                  for n, rows in enumerate(REFUTED)])
def test_an_order_that_cannot_run_is_refuted_by_the_schedule(rows: tuple[str, ...]) -> None:
    """The run that confirms it plays the rows; the same rows in an order that runs are proved."""
    table = read_table(rows)
    made = pa.parse_strategy("pp[2]")
    text = {"schedule": {"microbatches": table.microbatches, "actions": list(rows)}}
    report = pa.prove(overlay(made, text), "mlp")
    assert str(report.verdict) == "REFUTED" and report.counterexample is not None
    assert report.counterexample.obligation == "schedule"
    assert any(fault.says in str(v.reason) for v in report.obligations for fault in faults(table) if v.id == "schedule")
    m = table.microbatches
    good = {"microbatches": m, "actions": [*map(",".join, rows_of("gpipe", 2, 1, m))]}
    assert str(pa.prove(overlay(made, {"schedule": good}), "mlp").verdict) == "PROVED"


@pytest.mark.parametrize(("schedule", "message"), [
    ({"microbatches": 3}, "actions are of 1 microbatches, and the strategy has 3"),
    ({"microbatches": 1, "pipeline": "interleaved", "chunks": 2}, "actions are of 1 chunks, and the strategy has 2"),
    ({"microbatches": 1, "actions": ["0F0,0B0", "1F0,1B0", "2F0,2B0"]},
     "actions are of 3 ranks, and the strategy has 2"),
    ({"microbatches": 1, "actions": ["0F0,0I0,0W0", "1F0,1B0"]}, "no order of the kind of 1f1b"),
    ({"microbatches": 1, "actions": []}, "expected a list of rows of actions"),
    ({"microbatches": 1, "actions": ["0F0,0Z0", "1F0"]}, "row 1, column 2: '0Z0' is no action"),
])
def test_actions_of_another_strategy(schedule: dict[str, object], message: str) -> None:
    said = {"actions": ["0F0,0B0", "1F0,1B0"], **schedule}
    with pytest.raises(InputError, match=message):
        pa.derive(overlay(pa.parse_strategy("pp[2]"), {"schedule": said}), pa.gpt())
