"""The orders of pipelines are PyTorch's own: action by action, what torch.distributed.pipelining schedules.

A schedule's table is asked of its class without a process group. A whole backward is that for the inputs and, at once,
that for the weights; a forward and a backward that overlap stand one behind the other; what is no work is left out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from placealg.step.actions import faults, read_table
from placealg.step.pipeline import Item, Pipeline, work

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

PARTS = {"FORWARD": ("forward",), "BACKWARD_INPUT": ("backward",), "BACKWARD_WEIGHT": ("weights",),
         "FULL_BACKWARD": ("backward", "weights")}


def table(name: str, ranks: int, microbatches: int, chunks: int) -> dict[int, list[Any]]:
    """Rank -> its actions, as the schedule of that name has them before it adds messages."""
    from torch.distributed.pipelining import schedules

    found: Any = object.__new__(getattr(schedules, name))
    found.pp_group_size, found._num_stages = ranks, ranks * chunks
    found.num_stages, found._n_microbatches, found.n_local_stages = ranks * chunks, microbatches, chunks
    found._stages = [None] * chunks
    found.number_of_rounds = max(1, microbatches // ranks)
    found.microbatches_per_round = microbatches // found.number_of_rounds
    if hasattr(found, "_get_pipeline_order") and chunks == 1 and name in ("ScheduleGPipe", "Schedule1F1B"):
        return dict(found._get_pipeline_order())
    return {rank: found._calculate_single_rank_operations(rank) for rank in range(ranks)}


def items(actions: list[Any], pipeline: Pipeline, rank: int, ranks: int) -> Iterator[Item]:
    """The work among actions, as `work` says it; chunks by their number on the rank."""
    own = pipeline.own(rank, ranks)
    for action in actions:
        for one in (action.sub_actions or (action,)) if action is not None else ():
            for phase in PARTS.get(one.computation_type.name, ()):
                if phase != "weights" or pipeline.splits:
                    yield Item(phase, one.microbatch_index, own.index(one.stage_index))


def unlike(name: str, pipeline: Pipeline, ranks: int, microbatches: int) -> list[int]:
    """The ranks on which both orders differ."""
    theirs = table(name, ranks, microbatches, pipeline.chunks or 1)
    return [r for r in range(ranks) if tuple(items(theirs[r], pipeline, r, ranks)) != work(
        pipeline, r, ranks, microbatches)]


def test_gpipe() -> None:
    for p, m in product(range(1, 9), range(1, 18)):
        assert unlike("ScheduleGPipe", Pipeline("pp", "gpipe"), p, m) == [], (p, m)


def test_1f1b() -> None:
    """But for the last rank, with no forward ahead: the table numbers its forwards from 1, and runs do not read it."""
    for p, m in product(range(1, 9), range(1, 18)):
        if m >= p:  # fewer microbatches than stages are refused by Schedule1F1B
            assert unlike("Schedule1F1B", Pipeline("pp"), p, m) == [p - 1], (p, m)
            last = items(table("Schedule1F1B", p, m, 1)[p - 1], Pipeline("pp"), p - 1, p)
            assert tuple(Item(i.phase, i.microbatch - (i.phase == "forward"), i.chunk) for i in last) == work(
                Pipeline("pp"), p - 1, p, m)


@pytest.mark.parametrize(("name", "order"), [("ScheduleZBVZeroBubble", "zb_v"), ("ScheduleDualPipeV", "dualpipe_v")])
def test_a_v(name: str, order: str) -> None:
    for p, m in product(range(1, 9), range(1, 25)):
        if order == "zb_v" or m >= 2 * p:  # fewer microbatches than stages are refused by ScheduleDualPipeV
            assert unlike(name, Pipeline("pp", order, 2), p, m) == [], (p, m)


def test_interleaved_where_microbatches_are_groups_of_ranks() -> None:
    """Of other numbers PyTorch makes larger groups, and here they are refused."""
    for p, v, groups in product(range(1, 7), range(1, 5), range(1, 5)):
        assert unlike("ScheduleInterleaved1F1B", Pipeline("pp", "interleaved", v), p, groups * p) == [], (p, v, groups)


def test_interleaved_zero_bubble() -> None:
    """With one stage per rank it is ZB-H1."""
    for p, groups in product(range(1, 7), range(1, 5)):
        assert unlike("ScheduleInterleavedZeroBubble", Pipeline("pp", "zb_h1"), p, groups * p) == [], (p, groups)
        for v in range(1, 5):
            order = Pipeline("pp", "interleaved_zb", v)
            assert unlike("ScheduleInterleavedZeroBubble", order, p, groups * p) == [], (p, v, groups)


def test_another_order_is_seen() -> None:
    assert unlike("ScheduleZBVZeroBubble", Pipeline("pp", "dualpipe_v", 2), 3, 6) == [0, 1, 2]
    assert unlike("ScheduleInterleavedZeroBubble", Pipeline("pp", "zb_h2"), 3, 6) == [0, 1, 2]


def csv_of(name: str, ranks: int, microbatches: int, chunks: int) -> dict[str, tuple[str, ...]]:
    """Both forms of a schedule's file: its actions, and these with the messages that PyTorch adds, as `_dump_csv`."""
    from torch.distributed.pipelining import schedules as torch_schedules

    order = table(name, ranks, microbatches, chunks)
    if name == "Schedule1F1B":
        order[ranks - 1] = [a._replace(microbatch_index=a.microbatch_index - 1) if a and a.computation_type.value == "F"
                            else a for a in order[ranks - 1]]
    folded = name in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
    whole = {rank: torch_schedules._add_unshard_reshard([a for a in row if a is not None])
             for rank, row in order.items()}
    reduced = {rank: row if any(a.computation_type.value == "REDUCE_GRAD" for a in row) else
               torch_schedules._add_reduce_grad(row, microbatches) for rank, row in whole.items()}
    sent = torch_schedules._add_send_recv({rank: list(row) for rank, row in reduced.items()}, lambda chunk: (
        2 * ranks - 1 - chunk if folded and chunk >= ranks else chunk % ranks), ranks * chunks)
    return {form: tuple(",".join("" if a is None else str(a) for a in rows[rank]) for rank in range(ranks))
            for form, rows in (("compute_only", order), ("compute_comms", sent))}


NAMED = {"ScheduleGPipe": (1,), "Schedule1F1B": (1,), "ScheduleLoopedBFS": (1, 2, 3),
         "ScheduleInterleaved1F1B": (1, 2, 3), "ScheduleInterleavedZeroBubble": (1, 2, 3),
         "ScheduleZBVZeroBubble": (2,), "ScheduleDualPipeV": (2,)}


@pytest.mark.parametrize("name", NAMED)
def test_files_of_every_schedule_are_read_and_can_run(name: str) -> None:
    for p, m, v in product(range(1, 5), (1, 2, 3, 4, 6, 8), NAMED[name]):
        refused = {"Schedule1F1B": m < p, "ScheduleDualPipeV": m < 2 * p}.get(name, False)
        grouped = name.startswith("ScheduleInterleaved") and m % max(1, m // p)
        if refused or grouped:
            continue
        for form, rows in csv_of(name, p, m, v).items():
            found = read_table(rows)
            assert (found.ranks, found.chunks, found.microbatches) == (p, v, m), (form, rows)
            assert faults(found) == (), (form, p, m, v)


@pytest.mark.parametrize("name", NAMED)
def test_what_pytorch_refuses_is_a_fault(name: str) -> None:
    """Actions left out, done twice or swapped: PyTorch's own check and its lowering to messages are the judges."""
    from torch.distributed.pipelining import schedules as torch_schedules

    rng, p, m, v = random.Random(name), 3, 6, NAMED[name][-1]
    rows = [row.split(",") for row in csv_of(name, p, m, v)["compute_only"]]
    rows = [[cell for cell in row if cell and "REDUCE" not in cell] for row in rows]
    for how in ("out", "twice", "swap") * 20:
        new = [list(row) for row in rows]
        row = rng.choice(new)
        at, to = rng.randrange(len(row)), rng.randrange(len(row))
        if how == "out":
            del row[at]
        elif how == "twice":
            row.insert(to, row[at])
        else:
            row[at], row[to] = row[to], row[at]
        actions = {rank: [torch_schedules._Action.from_str(cell) for cell in row] for rank, row in enumerate(new)}
        try:
            home = torch_schedules._validate_schedule(actions, p, p * v, m)
            torch_schedules._add_send_recv({rank: list(row) for rank, row in actions.items()}, home.__getitem__, p * v)
            refused = False
        except (AssertionError, KeyError):
            refused = True
        found = faults(read_table(tuple(map(",".join, new))))
        assert found if refused or how == "twice" else not found, (how, found[:2], new)
