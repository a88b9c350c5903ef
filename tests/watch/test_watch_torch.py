"""Real steps of PyTorch under the recorder: right ones conform, wrong ones do not, a blind recorder claims nothing."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any
from zlib import crc32

import pytest
from assurance import ASSURED

from placealg.cases.case import read_case
from placealg.models.config import resolve_model
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import parse_strategy_file
from placealg.watch.conformance import judge, judge_proposed, nearest
from placealg.watch.requirement import VERSIONS
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
def recordings(request: pytest.FixtureRequest) -> dict[str, str]:
    """The recordings of all set-ups that this run asks for."""
    from set_ups import INSIDE, RIGHT, WRONG, named

    from placealg.measure import ranks

    asked = {i.callspec.params["name"] for i in request.session.items
             if isinstance(i, pytest.Function) and "recordings" in i.fixturenames}
    every = {n: s for n, s in {**RIGHT, **WRONG, **INSIDE}.items() if n in asked}
    found: dict[str, str] = {}
    for world in (2, 4):
        names = [n for n, s in every.items() if s.world == world]
        for name, answers in zip(names, ranks.run(world, named, names, 120.0), strict=True):
            assert len(set(answers)) == 1
            found[name] = answers[0]
    return found


def names(table: str) -> Iterator[str]:
    """The names of a table of set-ups, read without torch."""
    import ast
    from pathlib import Path

    for file, before, of in (("set_ups", "", table), ("quiet_faults", "", table), ("state_faults", "", table),
                             ("local_faults", "", table), ("loss_faults", "", table),
                             ("hand_written", "megatron: ", table),
                             ("hand_written", "flat copies: ", {"WRONG": "FLAT"}.get(table, "")),
                             ("hand_written", "", {"WRONG": "REPLICAS"}.get(table, ""))):
        for node in ast.parse((Path(__file__).parent / f"{file}.py").read_text()).body:
            if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == of:
                assert isinstance(node.value, ast.Dict)
                yield from (f"{before}{k.value}" for k in node.value.keys if isinstance(k, ast.Constant))


FIRST = ("ddp as dp, clipped", "fsdp2 clipped", "tp + sp", "tp", "hsdp", "1f1b, tied", "ring", "experts",
         "flat copies, clipped", "fsdp2: adamw, fused", "ddp: autocast and a scaled loss", "tp + sp: recomputed",
         "fsdp2 x tp + sp", "megatron", "by hand, token mean")
"""Right set-ups that `make torch` runs; the slow tier runs all."""


@pytest.mark.parametrize("name", [n if n in FIRST else pytest.param(n, marks=pytest.mark.slow)
                                  for n in names("RIGHT")])
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


RACES = ("by hand: not waited for",)
"""What is UNSEEN, and differs where it was read before it was there: on a busy machine."""

SAME: Mapping[str, str] = {
    "by hand: mean taken twice": "a mean of equal numbers is what they are",
    "fsdp2: weights gathered in other bytes": "precision is not compared here",
    "fsdp2 layers, tied: gathered again": "what is gathered again is the same",
    "1f1b: another order": "no value depends on the order of a pipeline's items",
}
"""Set-ups that are no instance of their strategy, and whose step ends as the single device's."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if crc32(n.encode()) % 8 else n
                                  for n in names("WRONG")])
def test_wrong_set_ups_do_not(name: str, recordings: dict[str, str]) -> None:
    from set_ups import WRONG

    chosen, seen = WRONG[name], Seen.read(recordings[name])
    assert seen.lifted is not None, seen.alone
    assert (seen.lifted.verdict == CONFORMS) is (name in SAME)
    told = judged(recordings[name], chosen)
    assert told.verdict == DIFFERS or (told.verdict == UNSEEN and name in RACES)
    strategy, edits = asked(chosen)
    found = nearest(strategy, chosen.model, seen, edits, chosen.names)[0]
    assert not chosen.differs or chosen.differs in {d.kind for d in found.differences}, found.differences
    assert told.edited is not None or not (chosen.proof or chosen.ratio), told.gap
    if chosen.proof:
        assert told.edited is not None and str(told.edited.verdict) == chosen.proof
    if chosen.ratio is not None:
        assert told.edited is not None and told.edited.counterexample is not None
        assert told.edited.counterexample.mass == chosen.ratio


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if crc32(n.encode()) % 4 else n
                                  for n in names("INSIDE")])
def test_what_only_a_single_device_tells(name: str, recordings: dict[str, str]) -> None:
    from set_ups import INSIDE

    told = judged(recordings[name], INSIDE[name])
    assert told.verdict == INSIDE[name].verdict and not told.comparison.differences


FAKED = {4: (2, 2, 3), 6: (3, 2, 5), 20: (10, 2, 7), 128: (16, 8, 2), 1024: (128, 8, 5), 8192: (1024, 8, 3)}
"""Ranks -> dp, tp, and the rank that one process stands for."""


@pytest.mark.parametrize("ranks", [n if n == 4 else pytest.param(n, marks=pytest.mark.slow) for n in FAKED])
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
    assert told.verdict == UNSEEN and not told.comparison.differences  # nothing was computed
    assert ["what ops compute" in u.what for u in told.comparison.unseen] == [True]


class Remembering:
    """A table that remembers which of its entries were looked up."""

    met: set[str]

    def __contains__(self, op: object) -> bool:
        found = super().__contains__(op)  # type: ignore[misc]  # of the table that stands behind this class
        if found:
            self.met.add(str(op))
        return bool(found)


class Met(Remembering, frozenset[str]):
    """A table of names alone."""


class MetBy(Remembering, dict[str, Any]):
    """A table with values."""


def blinded(name: str, rank: int) -> list[tuple[tuple[str, ...], str]]:
    """(ops, the recording without any one of them) of the entries of the recorder's tables that a set-up looks up.

    The first is of the recorder as it is, with those without which the same is recorded.
    """
    import torch.distributed as dist
    from set_ups import RIGHT, WRONG, seen_of

    from placealg.watch.recorder import collectives, tables

    def recording() -> str:
        seen = seen_of(chosen)
        return "" if rank else str(replace(seen, ranks=tuple(replace(r, seconds=0.0) for r in seen.ranks)).text())

    chosen = {**RIGHT, **WRONG}[name]
    kept = {(m, t): getattr(m, t) for m, t in [*((tables, t) for t in TABLES), (collectives, "VERBS")]}
    met: dict[Any, Any] = {k: (MetBy if isinstance(v, dict) else Met)(v) for k, v in kept.items()}
    for (module, table), told in met.items():
        told.met = set()
        setattr(module, table, told)
    found: dict[str, tuple[str, ...]] = {recording(): ()}
    for (module, table), whole in kept.items():
        setattr(module, table, whole)
    told_by: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told_by, [met[k].met for k in kept])  # stages look up other ops, and none may run alone
    for k, ((module, table), whole) in enumerate(kept.items()):
        for op in sorted(set().union(*(told[k] for told in told_by))):
            if table != "MOVES" and name not in BLIND and crc32(f"{name} {op}".encode()) % SHARE:
                continue
            less: Any = {k: v for k, v in whole.items() if k != op} if isinstance(whole, dict) else whole - {op}
            setattr(module, table, less)
            text = recording()
            found[text] = (*found.get(text, ()), op)
        setattr(module, table, whole)
    return [(ops, text) for text, ops in found.items()] if not rank else []


TABLES = ("MOVES", "SCALES", "SUMS", "CONSTANTS", "NEGATES", "GRADIENTS", "LOSSES", "NORMS", "EMPTIES", "VIEWS_ONLY")
"""The tables of the recorder of which one entry is left out at a time."""

SHARE = int(os.environ.get("PLACEALG_SHARE", "1"))
"""Of how many pairs of a set-up and an op the slow tier drops one; what moves elements is dropped from every set-up."""

BLIND = ("flat copies: sum for mean",)
"""Set-ups by a blind recorder in `make torch`; the slow tier does all of them."""


class Sweep:
    """What a blind recorder makes of set-ups: one is recorded while the one before is judged."""

    def __init__(self, chosen: Mapping[str, Any]):
        self.left = dict(chosen)
        self.running: dict[int, Generator[list[Any]]] = {}

    def of(self, name: str) -> list[tuple[tuple[str, ...], str]]:
        """The recordings of the next set-up, which this must be; of those behind one that failed ranks begin anew."""
        from placealg.measure import ranks

        world = self.left[name].world
        names = [n for n, s in self.left.items() if s.world == world]
        assert names[0] == name
        del self.left[name]
        if world not in self.running:
            self.running[world] = ranks.run(world, blinded, names, 900.0)
        try:
            return list(next(self.running[world])[0])
        except ranks.RankError:
            del self.running[world]
            raise


@pytest.fixture(scope="module")
def sweep(request: pytest.FixtureRequest) -> Iterator[Sweep]:
    from set_ups import RIGHT, WRONG

    asked = [i.callspec.params["name"] for i in request.session.items
             if isinstance(i, pytest.Function) and "sweep" in i.fixturenames]
    made = Sweep({n: {**RIGHT, **WRONG}[n] for n in asked})
    yield made
    for running in made.running.values():
        running.close()


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are derived once in a test."""
    from placealg.watch import conformance

    kept: dict[str, Any] = {}
    derived = conformance.program

    def program(strategy: Any, model: Any, edits: Any) -> Any:
        key = repr((strategy, edits))
        if key not in kept:
            kept[key] = derived(strategy, model, edits)
        return kept[key]

    monkeypatch.setattr(conformance, "program", program)


@pytest.mark.parametrize("name", [n if n in BLIND else pytest.param(n, marks=pytest.mark.slow)
                                  for table in ("RIGHT", "WRONG") for n in names(table)])
def test_a_blind_recorder_claims_nothing(name: str, sweep: Sweep, programs: None, request: pytest.FixtureRequest
                                         ) -> None:
    """Without one op a right set-up conforms only where all that is claimed was seen without it; a wrong one never."""
    from set_ups import RIGHT, WRONG

    from placealg.watch.recorder import tables

    chosen = {**RIGHT, **WRONG}[name]
    strategy, edits = asked(chosen)
    whole, lost = None, set()
    recordings = sweep.of(name)
    for ops, text in recordings:
        seen = Seen.read(text)
        whole = whole or seen
        matched = nearest(strategy, chosen.model, seen, edits, chosen.names)[0].matched
        assert not matched or (name in RIGHT and same_ways(seen, whole)), f"it conforms without {', '.join(ops)}"
        lost |= set() if matched else set(ops)
    assured = request.config.pluginmanager.get_plugin(ASSURED)
    if assured:
        dropped = [op for ops, _ in recordings for op in ops]
        moves = sum(op in tables.MOVES for op in dropped)
        assured.count("pairs of a set-up and a movement op that is dropped", moves, whole=True)
        assured.count("pairs of a set-up and another op", len(dropped) - moves)
    assert len(lost) >= 4 or (SHARE > 1 and name not in BLIND), lost


def same_ways(one: Seen, two: Seen) -> bool:
    """Whether all gradients of two recordings have gone the same way, numbers of nodes left out."""
    def ways(seen: Seen) -> list[Any]:
        return [[(t.begin, t.what, t.microbatch, t.factor, [(h.verb, h.axes, h.op, h.share, h.norm and h.norm[0][1])
                                                            for h in t.hops]) for t in (*c.terms, *c.given)]
                for r in seen.ranks for c in r.chains]
    return ways(one) == ways(two)


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
"""Namespace -> its ops in the oldest torch that the recorder follows."""

ADDED = {
    "2.13.0": {},
    "2.15.0": {"fsdp": "chunk_cat_mixed_dtype record_grad_output_stream", "c10d": "gather_into_tensor_",
               "_c10d_functional": "wait_tensors"},
}
"""Version of torch -> what its namespaces have besides: a release that is not here fails, and so do ops of no table."""


@pytest.mark.parametrize("namespace", OPS)
def test_the_ops_that_communicate_are_those_that_are_known(namespace: str) -> None:
    import torch
    import torch.distributed.fsdp
    import torch.distributed.tensor

    from placealg.watch.recorder import collectives, tables

    there = {s.name.partition("::")[2] for s in torch._C._jit_get_all_schemas() if s.name.startswith(f"{namespace}::")}
    assert tuple(ADDED) == VERSIONS
    added = ADDED[torch.__version__.partition("+")[0]]
    assert there == {*OPS[namespace].split(), *added.get(namespace, "").split()}
    if namespace == "fsdp":
        assert {f"fsdp::{op}" for op in there} <= tables.MOVES | tables.VIEWS_ONLY
    else:
        assert there <= {*collectives.VERBS, *collectives.SILENT}


SCRIPT = """
import os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from placealg.measure.network import Gpt, fill

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
    loss = cross_entropy(model(ids[:, :-1], torch.arange(8)).flatten(0, 1), ids[:, 1:].flatten())
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
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (
        (1, "pass", "the optimizer stepped once; the step after the first one is what is recorded"),
        (0, "pass", "no optimizer stepped"),
        (3, "init_device_mesh('cpu', (4,))", "RuntimeError: Mesh should not be bigger than default world size 2"),
        (3, "import time; time.sleep(60 * (step == 1))", "no step was recorded within 25 s by rank 0, 1")))])
def test_a_run_that_goes_wrong_is_one_line(steps: int, before: str, says: str, placealg: Any, tmp_path: Any) -> None:
    import subprocess

    got = placealg("watch", "zero3", "--mesh", "dp=2", "--model", GPT, "--limit", "25", "--",
                   script(tmp_path, steps, before), "--fast")
    assert got.code == 3 and got.err.count("\n") == 1, got.err
    assert says in got.err
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in left


def test_a_script_of_another_model_is_one_line(placealg: Any, tmp_path: Any) -> None:
    got = placealg("watch", "zero3", "--mesh", "dp=2", "--model", "llama-3-8b", "--single", "none", "--",
                   script(tmp_path), "--fast")
    assert got.code == 2 and got.err.count("\n") == 1 and "no table knows the parameter" in got.err


def test_what_pads_is_a_number_of_no_place() -> None:
    import torch
    from torch.nn import functional

    from placealg.watch.recorder.mode import Recorder
    from placealg.watch.recorder.shadows import PLACES

    with Recorder({}, 0) as recorder:
        padded = [functional.pad(torch.arange(8.0), (0, 2), value=by) for by in (-3.0, 0.0)]
    (origin, factor), (zeros, _) = map(recorder.shadows.region, padded)
    assert {recorder.nodes[int(k) >> PLACES].kind for k in origin[8:]} == {"constant"}
    assert factor[8:].tolist() == [-3, -3]
    assert recorder.nodes[int(origin[7]) >> PLACES].kind == "compute" and not zeros[8:].any()


def test_what_cannot_be_observed_leaves_no_recorder() -> None:
    """A mesh of another size, a step that raises, one without an optimizer's step or with two."""
    import torch
    from torch import nn
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    import placealg as pa
    from placealg.errors import InputError

    call, model = nn.Module._call_impl, nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def trained(times: int) -> None:
        model(torch.ones(1, 2)).sum().backward()
        for _ in range(times):
            optimizer.step()

    def raises() -> None:
        raise ValueError("of the step")

    for step, mesh, error, says in (
            (lambda: None, {"dp": 3}, InputError, "the mesh has 3 ranks, and the run 1"),
            (raises, {"dp": 1}, ValueError, "of the step"),
            (lambda: trained(0), {"dp": 1}, InputError, "never called an optimizer"),
            (lambda: trained(2), {"dp": 1}, InputError, "calls the optimizer twice")):
        with pytest.raises(error, match=says), pa.observe(model, mesh):
            step()
        assert nn.Module._call_impl is call and not _get_current_dispatch_mode_stack()
        assert all(not p._backward_hooks for p in model.parameters())
    with pytest.raises(InputError, match="no parameter that trains"), pa.observe(nn.ReLU()):
        pass
    flat = type("FullyShardedDataParallel", (nn.Sequential,), {})
    with pytest.raises(InputError, match="wrap modules by fully_shard"), pa.observe(flat(nn.Linear(2, 2))):
        pass


def test_names_without_what_wrappers_add() -> None:
    from placealg.watch.recorder.parameters import plain_name

    assert [plain_name(n) for n in ("_orig_mod", "module._orig_mod.a.b", "layers.0._fsdp_wrapped_module.norm.weight")
            ] == ["", "a.b", "layers.0.norm.weight"]


def trained_as(job: str, _rank: int) -> str:
    import multiprocessing

    from set_ups import RIGHT, WRONG, made, reference_of

    from placealg.testing import assert_trains_as

    own: Any = multiprocessing.current_process()
    own._config["daemon"] = False  # the proof has a process of its own, which a daemon may not start
    chosen = {**RIGHT, **WRONG}[job]
    system, mesh, data = made(chosen)
    from placealg.measure.count import TrafficCounter

    try:
        told = assert_trains_as(chosen.strategy, lambda: system.step(TrafficCounter(), data), model=system.model,
                                mesh=mesh, config=GPT, **reference_of(chosen, data))
    except AssertionError as error:
        return str(error)
    return told.verdict


def test_the_assertion_of_other_tests() -> None:
    from placealg.measure import ranks

    jobs = ["fsdp2 clipped", "by hand: one left out"]
    (good, _), (bad, other) = ranks.run(2, trained_as, jobs, 120.0)
    assert good == CONFORMS and "head.norm.weight: its gradient is not reduced" in bad and bad == other
