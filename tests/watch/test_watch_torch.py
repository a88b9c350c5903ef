"""Real steps of PyTorch under the recorder: right ones conform, wrong ones do not, a blind recorder claims nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from placealg.check.conformance import judge, judge_proposed, nearest
from placealg.cli.inputs import read_case
from placealg.models.config import resolve_model
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import parse_strategy_file
from placealg.watch.seen import Seen
from placealg.watch.verdict import CONFORMS, DIFFERS, UNSEEN, Conformance

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
GPT = "proofs/torch/gpt.json"


def judged(text: str, chosen: Any) -> Conformance:
    """The verdict on a recording as of a set-up."""
    strategy, edits = asked(chosen)
    return judge(strategy, chosen.model, Seen.read(text), edits, chosen.names)


def asked(chosen: Any) -> tuple[Any, Any]:
    """The strategy of a set-up, and the edits of its file."""
    if not chosen.strategy.endswith(".toml"):
        return parse_strategy(chosen.strategy), ()
    case = read_case(chosen.strategy, chosen.model, ())
    return case.strategy, case.edited.edits if case.edited else ()


@pytest.fixture(scope="module")
def recordings() -> dict[str, str]:
    from set_ups import RIGHT, WRONG, named

    from placealg.measure import ranks

    every = {**RIGHT, **WRONG}
    found: dict[str, str] = {}
    for world in (2, 4):
        names = [n for n, s in every.items() if s.world == world]
        for name, answers in zip(names, ranks.run(world, named, names, 90.0), strict=True):
            assert len(set(answers)) == 1
            found[name] = answers[0]
    return found


def names(table: str) -> Iterator[str]:
    """The names of a table of set-ups, read without torch."""
    import ast
    from pathlib import Path

    for file, before, of in (("set_ups", "", table), ("hand_written", "megatron: ", table),
                             ("hand_written", "flat copies: ", {"WRONG": "FLAT"}.get(table, ""))):
        for node in ast.parse((Path(__file__).parent / f"{file}.py").read_text()).body:
            if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == of:
                assert isinstance(node.value, ast.Dict)
                yield from (f"{before}{k.value}" for k in node.value.keys if isinstance(k, ast.Constant))


@pytest.mark.parametrize("name", list(names("RIGHT")))
def test_right_set_ups_conform(name: str, recordings: dict[str, str]) -> None:
    from set_ups import RIGHT

    told = judged(recordings[name], RIGHT[name])
    assert told.verdict == CONFORMS, [d.says for d in told.comparison.differences] + list(told.comparison.unseen)
    assert told.good and told.comparison.loss_seen
    tally = told.comparison.tally
    assert tally.paths == tally.of_paths and tally.messages == tally.of_messages - tally.apart


PROPOSED = ("fsdp2 x tp + sp", "hsdp", "tp")
"""Right set-ups whose strategy is read off the run by `make torch`; the slow tier does all of them."""


@pytest.mark.parametrize("name", [n if n in PROPOSED else pytest.param(n, marks=pytest.mark.slow)
                                  for n in names("RIGHT") if n != "gpipe x fsdp2"])
def test_the_strategy_of_a_right_set_up_is_read_off_it(name: str, recordings: dict[str, str]) -> None:
    from set_ups import RIGHT

    told = judge_proposed(RIGHT[name].model, Seen.read(recordings[name]), RIGHT[name].names)
    assert told.verdict == CONFORMS and told.good, (told.rests, [d.says for d in told.comparison.differences])


def laid_out(name: str, rank: int) -> tuple[str, str]:
    """(the recording of a set-up, the entries and states that the placements of its live model tell)."""
    from set_ups import RIGHT, made, recorded

    import placealg as pa

    system, mesh, _ = made(RIGHT[name])
    told = pa.from_torch(system.model, mesh)
    return recorded(RIGHT[name], rank), repr((dict(told.dims), dict(told.states)))


@pytest.mark.parametrize("name", ["fsdp2", "tp + sp"])
def test_placements_and_chains_tell_the_same(name: str) -> None:
    from placealg.measure import ranks

    (text, layout), _ = next(ranks.run(2, laid_out, [name], 90.0))
    told = judge_proposed(resolve_model(GPT), Seen.read(text))
    proposed = parse_strategy_file(told.proposed).strategy
    assert repr((dict(proposed.dims), dict(proposed.states))) == layout


@pytest.mark.parametrize("name", list(names("WRONG")))
def test_wrong_set_ups_do_not(name: str, recordings: dict[str, str]) -> None:
    from set_ups import WRONG

    chosen = WRONG[name]
    strategy, edits = asked(chosen)
    found = nearest(strategy, chosen.model, Seen.read(recordings[name]), edits, chosen.names)[0]
    assert found.matched is False and (DIFFERS if found.differences else UNSEEN) == chosen.verdict
    assert not chosen.differs or chosen.differs in {d.kind for d in found.differences}, found.differences
    if not chosen.proof and chosen.ratio is None:
        return
    told = judged(recordings[name], chosen)
    assert told.verdict == chosen.verdict, [d.says for d in told.comparison.differences]
    assert told.edited is not None or not chosen.proof, told.gap
    if chosen.proof:
        assert told.edited is not None, told.gap
        assert str(told.edited.verdict) == chosen.proof
    if chosen.ratio is not None:
        assert told.edited is not None and told.edited.counterexample is not None
        assert told.edited.counterexample.mass == chosen.ratio


WEIGHED = ("1f1b", "fsdp2 clipped", "tp + sp", "by hand: clipped by a number", "by hand: loss in a kernel",
           "by hand: kernel divides by 2 as well", "by hand: kernel divides by local counts", "by hand: other scores",
           "tp + sp: norm not reduced", "ddp: sum for mean")
"""Set-ups whose weights are measured by `make torch`; the slow tier measures all of them."""

SILENT = ("by hand: mean taken twice", "by hand: written through ctypes", "by hand: not trained")
"""Faults that change no gradient on the way to the optimizer, or that are none: weights say nothing of them."""


@pytest.fixture(scope="module")
def weighed(request: pytest.FixtureRequest) -> dict[str, str]:
    from set_ups import INSIDE, RIGHT, WRONG, named

    from placealg.measure import ranks

    every = {**RIGHT, **WRONG, **INSIDE}
    slow = any(i.get_closest_marker("slow") for i in request.session.items if "weights" in i.name)
    found: dict[str, str] = {}
    for world in (2, 4):
        chosen = [n for n, s in every.items() if s.world == world and (slow or n in WEIGHED)]
        for name, answers in zip(chosen, ranks.run(world, named, [f"*{n}" for n in chosen], 180.0), strict=True):
            assert len(set(answers)) == 1
            found[name] = answers[0]
    return found


@pytest.mark.parametrize("name", [n if n in WEIGHED else pytest.param(n, marks=pytest.mark.slow)
                                  for table in ("RIGHT", "WRONG", "INSIDE") for n in names(table)])
def test_weights_tell_right_from_wrong(name: str, weighed: dict[str, str]) -> None:
    from set_ups import INSIDE, RIGHT, WRONG

    chosen = {**RIGHT, **WRONG, **INSIDE}[name]
    told = judged(weighed[name], chosen)
    found = told.comparison.measured
    assert found.probes == 3 and found.known >= 34
    if chosen.verdict == CONFORMS:
        assert told.verdict == CONFORMS and found.good and found.off < 1e-6
    else:
        assert told.verdict != CONFORMS and (name in SILENT) == found.good
    if name in INSIDE:
        assert not told.comparison.differences
    if name == "by hand: kernel divides by local counts":
        assert dict(found.spread)["layer.weight"] == (pytest.approx(2 / 3), pytest.approx(1))


FAKED = {4: (2, 2, 3), 6: (3, 2, 5), 20: (10, 2, 7), 128: (16, 8, 2), 1024: (128, 8, 5), 8192: (1024, 8, 3)}
"""Ranks -> dp, tp, and the rank that one process stands for."""


@pytest.mark.parametrize("ranks", [n if n == 8192 else pytest.param(n, marks=pytest.mark.slow) for n in FAKED])
def test_a_step_is_the_same_at_every_size(ranks: int) -> None:
    from multiprocessing import get_context

    from set_ups import RIGHT, faked

    def way(seen: Seen) -> list[tuple[Any, ...]]:
        return [(m.phase, m.verb, m.op, m.axes, m.module) for m in seen.ranks[0].messages]

    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:  # a process each: groups are known by their names
        one, two = pool.map(faked, [FAKED[ranks], (2, 2, 0)], chunksize=1)
    seen = Seen.read(one)
    assert seen.world == ranks and seen.backend == "fake" and seen.ranks[0].rank == FAKED[ranks][2]
    assert way(seen) == way(Seen.read(two))
    told = judged(one, RIGHT["fsdp2 x tp + sp"])
    assert told.good, [d.says for d in told.comparison.differences]


def blinded(job: tuple[str, str, str], rank: int) -> str:
    """The recording of a set-up by a recorder that lacks one op of a table; of none, without the op."""
    from set_ups import RIGHT, recorded

    from placealg.watch.recorder import tables

    name, table, op = job
    kept: Any = getattr(tables, table)
    if op:
        less: Any = {k: v for k, v in kept.items() if k != op} if isinstance(kept, dict) else kept - {op}
        setattr(tables, table, less)
    try:
        return recorded(RIGHT[name], rank)
    finally:
        setattr(tables, table, kept)


def test_a_blind_recorder_claims_nothing() -> None:
    from set_ups import RIGHT

    from placealg.measure import ranks
    from placealg.watch.recorder import tables

    ops = [(t, op) for t in ("MOVES", "SCALES", "SUMS", "CONSTANTS", "NEGATES", "GRADIENTS")
           for op in sorted(getattr(tables, t))
           if op in USED]
    jobs = [(name, table, op) for name in ("fsdp2 clipped", "ddp no_sync") for table, op in [("MOVES", ""), *ops]]
    seen: dict[str, Seen] = {}
    lost = set()
    for (name, _, op), answers in zip(jobs, ranks.run(2, blinded, jobs, 90.0), strict=True):
        found = Seen.read(answers[0])
        whole = seen.setdefault(name, found)
        told = judged(answers[0], RIGHT[name])
        alike = [(c.terms, c.new, c.updated) for r in found.ranks for c in r.chains] == [
            (c.terms, c.new, c.updated) for r in whole.ranks for c in r.chains]
        assert told.verdict != CONFORMS or same_ways(found, whole), f"{name} conforms without {op}"
        if told.verdict != CONFORMS:
            lost.add(op)
        assert alike or told.verdict != CONFORMS or same_ways(found, whole)
    assert len(lost) >= 8, lost


def same_ways(one: Seen, two: Seen) -> bool:
    """Whether all gradients of two recordings have gone the same way, numbers of nodes left out."""
    def ways(seen: Seen) -> list[Any]:
        return [[(t.begin, t.what, t.microbatch, t.factor, [(h.verb, h.axes, h.op, h.norm and h.norm[0][1])
                                                            for h in t.hops]) for t in c.terms]
                for r in seen.ranks for c in r.chains]
    return ways(one) == ways(two)


USED = frozenset((
    "aten::clone", "aten::copy_", "aten::_to_copy", "aten::cat", "aten::cat.out", "aten::stack", "aten::expand",
    "aten::_foreach_copy_", "fsdp::all_gather_copy_in", "fsdp::chunk_cat", "fsdp::split_with_sizes_copy", "aten::mul",
    "aten::mul_", "aten::mul.out", "aten::_foreach_mul_", "aten::div", "aten::div_", "aten::div.out", "aten::neg",
    "aten::add", "aten::add_", "aten::_foreach_add_", "aten::zeros", "aten::ones_like", "aten::zero_", "aten::mm",
    "aten::sum", "aten::embedding_dense_backward", "aten::native_layer_norm_backward",
))
"""Ops of the tables that these runs may use."""

OPS = {
    "fsdp": "all_gather_copy_in chunk_cat copy_ split_with_sizes_copy",
    "_c10d_functional_autograd": "all_gather_into_tensor all_to_all_single reduce_scatter_tensor",
    "_dtensor": "mesh_get_process_group shard_dim_alltoall",
    "c10d": "_allgather_base_ _reduce_scatter_base_ allgather_ allgather_coalesced_ allgather_into_tensor_coalesced_ "
            "allreduce_ allreduce_coalesced_ alltoall_ alltoall_base_ barrier broadcast_ check_for_nan gather_ "
            "monitored_barrier_ recv_ recv_any_source_ reduce_ reduce_scatter_ reduce_scatter_tensor_coalesced_ "
            "scatter_ send",
    "_c10d_functional": "_wrap_tensor_autograd all_gather_into_tensor all_gather_into_tensor_coalesced "
                        "all_gather_into_tensor_out all_reduce all_reduce_ all_reduce_coalesced all_reduce_coalesced_ "
                        "all_to_all_single batch_p2p_ops broadcast broadcast_ irecv isend reduce_scatter_tensor "
                        "reduce_scatter_tensor_coalesced reduce_scatter_tensor_out wait_tensor",
}
"""Namespace -> its ops in the torch that is pinned: another release that has others fails here, by name."""


@pytest.mark.parametrize("namespace", OPS)
def test_the_ops_that_communicate_are_those_that_are_known(namespace: str) -> None:
    import torch
    import torch.distributed.fsdp
    import torch.distributed.tensor

    from placealg.watch.recorder import collectives, tables

    there = {s.name.partition("::")[2] for s in torch._C._jit_get_all_schemas() if s.name.startswith(f"{namespace}::")}
    assert there == set(OPS[namespace].split())
    if namespace == "fsdp":
        assert {f"fsdp::{op}" for op in there} <= tables.MOVES
    else:
        assert there <= {*collectives.VERBS, *collectives.SILENT}


SCRIPT = """
import os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from placealg.measure.network import Gpt, fill, token_loss

sys.argv[1:] == ["--fast"] or sys.exit("no arguments")
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
model = Gpt({"h": 16, "a": 8, "L": 2, "V": 32, "s_max": 8})
fill(model)
for part in (model.embedding, *model.layers.values(), model.head, model):
    fully_shard(part, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(STEPS):
    ids = torch.randint(32, (2, 9), generator=torch.Generator().manual_seed(step + dist.get_rank()))
    loss = token_loss(model(ids[:, :-1], torch.arange(8)), ids[:, 1:]) / 16
    BEFORE
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def script(folder: Any, steps: int = 3, before: str = "pass") -> str:
    file = folder / "train.py"
    file.write_text(SCRIPT.replace("STEPS", str(steps)).replace("BEFORE", before))
    return str(file)


def test_a_script_is_watched_unchanged(placealg: Any, tmp_path: Any) -> None:
    got = placealg("watch", "zero3", "--mesh", "dp=2", "--model", GPT, "--output", str(tmp_path / "seen.json"), "--",
                   script(tmp_path), "--fast")
    assert got.code == 0, got.out + got.err
    assert "train.py RUNS AS zero3 on gpt  CONFORMS" in got.out and "adamw" in got.out
    again = placealg("conform", str(tmp_path / "seen.json"), "zero3", "--model", GPT)
    assert again.code == 0


@pytest.mark.parametrize(("steps", "before", "says"), [
    (3, "raise ValueError('of two ranks')", "ValueError: of two ranks"),
    (1, "pass", "the optimizer stepped once; the step after the first one is what is recorded"),
    (0, "pass", "no optimizer stepped"),
    (3, "import time; time.sleep(60 * (step == 1))", "no step was recorded within 25 s by rank 0, 1"),
])
def test_a_run_that_goes_wrong_is_one_line(steps: int, before: str, says: str, placealg: Any, tmp_path: Any) -> None:
    import subprocess

    got = placealg("watch", "zero3", "--mesh", "dp=2", "--model", GPT, "--limit", "25", "--",
                   script(tmp_path, steps, before), "--fast")
    assert got.code == 3 and got.err.count("\n") == 1, got.err
    assert says in got.err
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in left


def trained_as(job: str, _rank: int) -> str:
    import multiprocessing

    from set_ups import RIGHT, WRONG, made

    from placealg.testing import assert_trains_as

    own: Any = multiprocessing.current_process()
    own._config["daemon"] = False  # the proof has a process of its own, which a daemon may not start
    chosen = {**RIGHT, **WRONG}[job]
    system, mesh, data = made(chosen)
    from placealg.measure.count import TrafficCounter

    try:
        told = assert_trains_as(chosen.strategy, lambda: system.step(TrafficCounter(), data), model=system.model,
                                mesh=mesh, config=GPT)
    except AssertionError as error:
        return str(error)
    return told.verdict


def test_the_assertion_of_other_tests() -> None:
    from placealg.measure import ranks

    jobs = ["fsdp2 clipped", "by hand: one left out"]
    (good, _), (bad, other) = ranks.run(2, trained_as, jobs, 120.0)
    assert good == CONFORMS and "head.norm.weight: its gradient is not reduced" in bad and bad == other
