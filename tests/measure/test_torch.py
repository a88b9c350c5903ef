"""Real runs of PyTorch: what agrees, what is seen when it does not, and how runs end that go wrong."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from conftest import Outcome

from placealg.measure import ranks
from placealg.measure.cells import matrix
from placealg.measure.check import check
from placealg.measure.compare import Result
from placealg.measure.failure import RankError
from placealg.strategy.expression import parse_strategy

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
Run = Callable[..., Outcome]


def test_a_strategy_agrees(placealg: Run) -> None:
    got = placealg("check-torch", "zero3", "--world", "2", "--format", "json")
    assert got.code == 0 and got.err.startswith("running zero3 on dp = 2")
    result, = json.loads(got.out)["results"]
    assert result["agrees"] and {row["ranks"] for row in result["bytes"]} == {"all"}
    assert all(row["predicted"] == row["measured"] for row in result["bytes"])


def run(name: str, **changed: Any) -> Result:
    cell, = matrix([name], [2])
    result, = check([replace(cell, **changed)], 60.0, lambda _: None)
    return result


def test_formulas_of_another_strategy_do_not_agree() -> None:
    result = run("torch.fsdp2", strategy="zero3")
    assert [row.figure for row in result.rows if not row.agrees] == ["backward all_gather[dp]"]
    assert not result.agrees and all(d.agrees for d in result.differences)


def test_without_its_residue_a_figure_does_not_agree() -> None:
    result = run("torch.tp", residues=())
    assert {row.figure for row in result.rows if not row.agrees} == {"gradients", "activations"}


def test_router_losses_keep_what_the_formula_says_and_more_than_none_would() -> None:
    assert run("torch.ep_losses").agrees
    without = run("torch.ep_losses", strategy="ep")
    assert [row.figure for row in without.rows if not row.agrees] == ["activations"]


def test_a_difference_that_figures_do_not_show(placealg: Run) -> None:
    got = placealg("check-torch", "--faults", "sum for mean", "--format", "json")
    fault, = json.loads(got.out)["faults"]
    assert got.code == 0 and fault["agrees"] and fault["difference"] > 1e-4 and fault["ratio"] == pytest.approx(4)


def raises(_job: Any, rank: int) -> None:
    if rank == 1:
        raise ValueError("two\nlines")


def dies(_job: Any, rank: int) -> None:
    if rank == 0:
        os._exit(7)
    time.sleep(60)


def hangs(_job: Any, rank: int) -> int:
    if rank == 1:
        time.sleep(60)
    return rank


@pytest.mark.parametrize(("work", "says"), [
    (raises, r"the job: rank 1: ValueError: two lines"), (dies, r"the job: rank 0 died"),
    (hangs, r"the job: no answer within 5 s from rank 1"),
])
def test_a_run_that_goes_wrong_ends_in_time(work: Any, says: str) -> None:
    start, others = time.monotonic(), set(multiprocessing.active_children())
    with pytest.raises(RankError, match=says):
        list(ranks.run(2, work, ["the job"], 5.0))
    assert time.monotonic() - start < 20
    assert set(multiprocessing.active_children()) <= others


def test_jobs_are_answered_in_order_by_every_rank() -> None:
    assert list(ranks.run(2, lambda job, rank: (job, rank), ["a", "b"], 30.0)) == [
        [("a", 0), ("a", 1)], [("b", 0), ("b", 1)]]


def test_an_error_of_a_rank_is_one_line_and_exit_3(placealg: Run) -> None:
    got = placealg("check-torch", "zero3", "--world", "2", "--limit", "0.01")
    assert got.code == 3 and got.err.count("\n") == 2
    assert got.err.splitlines()[1].startswith("placealg: zero3 on dp = 2: no answer within 0.01 s")


def counted(_job: Any, _rank: int) -> dict[tuple[str, str, tuple[int, ...]], int]:
    import torch
    import torch.distributed as dist

    from placealg.measure.count import TrafficCounter

    sent = TrafficCounter()
    with sent, sent.during("there"):
        dist.all_reduce(torch.ones(10))
        dist.all_reduce(torch.ones(1))
        dist.all_gather_into_tensor(torch.empty(6), torch.ones(3))
        dist.reduce_scatter_tensor(torch.empty(3), torch.ones(6))
        dist.all_to_all_single(torch.empty(4), torch.ones(4))
        dist.broadcast(torch.ones(5), 0)
    assert sent.scalars == {("there", "all_reduce"): 1}
    return dict(sent.bytes)


def test_messages_are_counted_once_and_by_kind() -> None:
    (first, second), = ranks.run(2, counted, [None], 30.0)
    kinds = {"all_reduce": 40, "all_gather": 24, "reduce_scatter": 24, "all_to_all": 16, "broadcast": 20}
    assert first == second == {("there", kind, (0, 1)): size for kind, size in kinds.items()}


def kept(_job: Any, _rank: int) -> tuple[int, int]:
    import torch

    from placealg.measure.count import SavedBytes

    layer, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
    saved = SavedBytes(layer, [x])
    with saved.hooks():
        y = torch.relu(layer(x))
        z = torch.relu(y.view(8))
        most = saved.most
    z.sum().backward()
    del y, z
    return most, saved.now


def test_what_is_kept_is_counted_by_storage_without_parameters_and_data() -> None:
    assert next(ranks.run(1, kept, [None], 30.0)) == [(2 * 32, 0)]


LAYOUTS = {
    "zero3": "zero3[4]", "fsdp_no_reshard": "fsdp_no_reshard[4]", "torch.ddp": "dp[4]", "tp": "tp[4]",
    "torch.hsdp": "hsdp[dp_replicate=2,dp_shard=2]", "tp_sp_keep": "tp_sp_keep[4]", "zero3*tp": "zero3[2]*tp[2]",
    "torch.fsdp2_tp_sp": "zero3[2]*tp_sp_keep[2]",
}
"""Row of the matrix -> the catalogue strategy that its live layout is on four ranks."""


def read(name: str, _rank: int) -> tuple[Any, Any, str]:
    import placealg as pa
    from placealg.errors import InputError
    from placealg.measure.run import make, mesh_of

    cell, = matrix([name], [4])
    mesh = mesh_of(tuple(cell.mesh.items()))
    model = make(cell, mesh, "sgd").model
    bare = type(mesh)("cpu", mesh.mesh)
    try:
        pa.from_torch(model, bare)
    except InputError as error:
        return pa.from_torch(model, mesh), pa.from_torch(model.state_dict(), mesh), str(error)
    return None, None, ""


def test_a_live_layout_is_read_back() -> None:
    for name, answers in zip(LAYOUTS, ranks.run(4, read, list(LAYOUTS), 60.0), strict=True):
        want = parse_strategy(LAYOUTS[name])
        for whole, state, error in answers:
            assert (whole.mesh, whole.dims, whole.states) == (want.mesh, want.dims, want.states)
            assert whole.tables == want.tables
            assert (state.mesh, state.dims, state.states) == (want.mesh, want.dims, want.states)
            assert "has no names" in error
