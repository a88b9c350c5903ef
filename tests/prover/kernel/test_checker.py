"""The extracted checker: it is that of its sources, accepts the data-parallel family, and refuses what is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import extracted
import pytest
from conftest import run_placealg

import placealg as pa
from placealg.arith import ONE
from placealg.check.kernel import Kernel, kernel
from placealg.errors import InputError
from placealg.models.abstract import amax, statistics, two_losses
from placealg.models.model import Model
from placealg.prover.examine import examine
from placealg.prover.kernel.checker import shipped, sources
from placealg.prover.kernel.coq import (
    World,
    by_coqc,
    check_unedited,
    coq_file,
    refutation_file,
    refuted_by_coqc,
    worlds,
)
from placealg.prover.kernel.printer import printed as program_of
from placealg.prover.kernel.program import term
from placealg.prover.kernel.theory import coq_version
from placealg.prover.verdict import PROVED, overall
from placealg.step.edit import edit
from placealg.step.event import Clause, Event
from placealg.strategy.file import parse_strategy_file

FAMILY = ("dp", "zero1", "zero2", "zero3", "fsdp_no_reshard", "hsdp", "mics", "zeropp", "dp*offload_optimizer",
          "zero1*offload_optimizer", "zero3*offload_optimizer", "zero3*offload_parameters", "zero1*dp[more]",
          "zero3*zero1[more]")
MODELS = {"abstract": pa.abstract(), "gpt": pa.gpt(), "moe": pa.moe()}
PAIRS = [*((s, "abstract") for s in FAMILY), ("zero3", "gpt"), ("hsdp", "gpt"), ("zero3*offload_optimizer", "moe"),
         *(pytest.param(s, m, marks=pytest.mark.slow) for s in FAMILY for m in ("gpt", "moe"))]


def test_the_checker_is_that_of_its_sources() -> None:
    assert shipped().sources == extracted.CHECKER.digest(), "run: make coq"


@pytest.mark.parametrize(("strategy", "model"), PAIRS)
def test_the_family_is_accepted(strategy: str, model: str) -> None:
    on: Model = MODELS[model]
    chosen = pa.parse_strategy(strategy)
    assert kernel(pa.derive(chosen, on)).accepted is True


WRONG = {
    "zero1": "publish.layer.weight.publish[dp]", "zero3": "backward.layer.weight.grad.reduce[dp]",
    "dp": "reduce.layer.weight.grad_sum.reduce[dp]", "hsdp": "update.norm.all_reduce[dp_replicate,dp_shard]",
    "zero2": "prepare.layer.weight.grad_sum.zero", "fsdp_no_reshard": "forward.layer.weight.gather[dp]",
    "mics": "publish.layer.weight.publish", "zeropp": "resume.step.load",
}


@pytest.mark.parametrize("strategy", WRONG)
def test_without_an_event_it_is_not_accepted(strategy: str) -> None:
    chosen, on = pa.parse_strategy(strategy), pa.abstract()
    step = pa.derive(chosen, on)
    assert step.event(WRONG[strategy])
    found = kernel(replace(step, events=tuple(e for e in step.events if e.path != WRONG[strategy])))
    assert not found.accepted


def asked(base: str, text: str, on: Model) -> Kernel:
    """The kernel's answer on a strategy of the catalogue with tables of its own."""
    chosen = parse_strategy_file(f'base = "{base}"\n{text}').strategy
    return kernel(pa.derive(chosen, on))


TABLES = {"padded rows": '[shards]\npad = "rows"', "padded elements": '[shards]\npad = "elements"',
          "no clip": '[optimizer]\nclip = "none"', "token mean": '[loss]\npreset = "token_mean"',
          "sum": '[loss]\npreset = "sum"', "mean of microbatches": '[loss]\nreference = "microbatch_mean"',
          "muon": '[optimizer]\nname = "muon"', "adafactor": '[optimizer]\nname = "adafactor"',
          "lamb": '[optimizer]\nname = "lamb"', "skip": '[optimizer]\nskip = "overflow"',
          "average at the optimizer": '[optimizer]\naverage = "optimizer"',
          "average at the parameters": '[optimizer]\naverage = "parameters"',
          "loss scale": '[optimizer]\nskip = "overflow"\n[loss]\nscale = "dynamic"'}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("strategy", [pytest.param(s, marks=[] if s in ("zero1", "hsdp") else pytest.mark.slow)
                                      for s in FAMILY])
def test_the_family_is_accepted_with(strategy: str, table: str) -> None:
    assert asked(strategy, TABLES[table], pa.abstract()).accepted is True


def test_a_token_mean_is_no_mean_of_microbatches() -> None:
    found = asked("zero1", '[loss]\npreset = "token_mean"\nreference = "microbatch_mean"', pa.abstract())
    assert not found.accepted


def test_a_mean_of_means_without_equal_counts_is_not_accepted() -> None:
    assert not asked("zero1", "[loss]\nassume = []", pa.abstract()).accepted


OPS = {"frozen norms": '[groups.norms]\nmatch = "*norm*"\nfrozen = true',
       "frozen embedding": '[groups.first]\nmatch = "embedding*"\nfrozen = true', "adapters": '[adapters]\nmatch = "*"',
       "muon": '[groups.mlp]\nmatch = "*mlp*"\noptimizer = "muon"'}


@pytest.mark.parametrize(("strategy", "table"), [("zero1", "frozen norms"), *(
    pytest.param(s, t, marks=pytest.mark.slow) for s in FAMILY for t in OPS)])
def test_the_family_is_accepted_on_ops_with(strategy: str, table: str) -> None:
    assert asked(strategy, OPS[table], pa.gpt()).accepted is True


BESIDE = {"a router's losses": '[loss]\nterms = ["balance", "z"]', "a router's bias": '[optimizer]\nrouter_bias = true',
          "losses of a router, scaled": '[optimizer]\nskip = "overflow"\n[loss]\nscale = "dynamic"\nterms = ["z"]',
          "losses of a router by a count": '[loss]\npreset = "token_mean"\nterms = ["balance"]'}


@pytest.mark.parametrize(("strategy", "table"), [("zero1", "a router's bias"), ("zero3", "a router's losses"), *(
    pytest.param(s, t, marks=pytest.mark.slow) for s in FAMILY for t in BESIDE)])
def test_the_family_is_accepted_with_what_routers_have(strategy: str, table: str) -> None:
    assert asked(strategy, BESIDE[table], pa.moe()).accepted is True


@pytest.mark.parametrize(("divisor", "accepted"), [
    ("m*tokens", True), ("tokens", False), ("m", False), ("m*tokens*dp", False), ("1", False)])
def test_terms_of_a_router_start_as_the_loss_does(divisor: str, accepted: bool) -> None:
    chosen, on = parse_strategy_file('base = "dp"\n[loss]\nterms = ["z"]').strategy, pa.moe()
    step = edit(pa.derive(chosen, on), set="backward.layer.router.z_loss.grad.compute", divisor=divisor)
    assert bool(kernel(step).accepted) is accepted


@pytest.mark.parametrize(("strategy", "axis"), [("dp", "dp"), ("zero3", "dp"), ("hsdp", "dp_shard")])
def test_a_count_for_the_terms_alone_is_that_of_tokens(strategy: str, axis: str) -> None:
    """Where all counts are equal, a count over some axes is a product; of other axes it is another one."""
    terms = '[loss]\nterms = ["z"]\nterm_divisor = "count"'
    assert asked(strategy, terms, pa.moe()).accepted is True
    assert asked(strategy, f'{terms}\nterm_axes = ["{axis}"]', pa.moe()).accepted is True
    assert not asked(strategy, f"{terms}\nassume = []", pa.moe()).accepted


COUNTS = {
    "of some axes": ("hsdp", 'divisor = "count"\ncount_axes = ["dp_shard"]', True),
    "of microbatches": ("dp", 'divisor = "count"\ncount_axes = ["microbatch"]', True),
    "of one microbatch": ("zero1", 'divisor = "count"\ncount_axes = ["dp"]', True),
    "of one microbatch, in means of microbatches": (
        "zero1", 'divisor = "count"\ncount_axes = ["dp"]\nreference = "microbatch_mean"\nassume = []', True),
    "of one microbatch, in a mean of tokens": ("zero1", 'divisor = "count"\ncount_axes = ["dp"]\nassume = []', False),
    "of some axes, unequal": ("hsdp", 'divisor = "count"\ncount_axes = ["dp_shard"]\nassume = []', False),
}


@pytest.mark.parametrize("case", COUNTS)
def test_counts_of_some_axes_or_of_one_microbatch(case: str) -> None:
    base, table, accepted = COUNTS[case]
    assert bool(asked(base, f"[loss]\n{table}", pa.abstract()).accepted) is accepted


@pytest.mark.parametrize(("divisor", "assumed", "accepted"), [
    ("m*count", '["equal_counts"]', True), ("count", '["equal_counts"]', False), ("m*count", "[]", False)])
def test_a_count_of_one_microbatch_beside_one_of_the_step(divisor: str, assumed: str, accepted: bool) -> None:
    """One loss is divided by what prepare has counted, the other by what each microbatch counts."""
    table = f'base = "dp"\n[loss]\npreset = "token_mean"\nassume = {assumed}'
    chosen, on = parse_strategy_file(table).strategy, two_losses()
    step = edit(pa.derive(chosen, on), set="forward.ahead.compute", divisor=divisor)
    counts = [replace(e, phase="forward") for e in step.events if e.value == "count" and e.unit == "ahead"]
    left = [e for e in step.events if not (e.value == "count" and e.unit == "ahead")]
    at = next(k for k, e in enumerate(left) if e.phase == "forward")
    mixed = replace(step, events=(*left[:at], *counts, *left[at:]))
    assert len(counts) == 2
    assert bool(kernel(mixed).accepted) is accepted
    assert (overall(examine(mixed).verdicts)[0] == PROVED) is accepted


def test_a_count_of_the_step_that_each_microbatch_counts_anew() -> None:
    table = '[loss]\ndivisor = "count"\ncount_axes = ["dp"]\nreference = "microbatch_mean"\nassume = []'
    chosen, on = parse_strategy_file(f'base = "dp"\n{table}').strategy, pa.abstract()
    step = pa.derive(chosen, on)
    early = [replace(e, phase="prepare") for e in step.events if e.value == "count"]
    at = next(k for k, e in enumerate(step.events) if e.phase == "forward")
    both = replace(step, events=(*step.events[:at], *early, *step.events[at:]))
    late = replace(both, events=tuple(e for e in both.events if not (e.value == "count" and e.phase == "forward")))
    assert kernel(step).accepted and not kernel(late).accepted
    assert overall(examine(late).verdicts)[0] != PROVED


@pytest.mark.parametrize("path", ["update.rng.load", "backward.step.load", "forward.layer.weight.moments.load"])
def test_a_step_finds_nothing_of_its_own_in_the_checkpoint(path: str) -> None:
    """Not every step is saved: what one loads in its course may be of any step before."""
    chosen, on = pa.parse_strategy("zero1"), pa.abstract()
    step = pa.derive(chosen, on)
    loaded = replace(next(e for e in step.events if e.verb == "load" and path.endswith(f"{e.subject}.{e.verb}")),
                     phase=path.partition(".")[0])
    at = next(k for k, e in enumerate(step.events) if e.phase == loaded.phase)
    early = replace(step, events=(*step.events[:at], loaded, *step.events[at:]))
    assert early.event(path)
    assert not kernel(early).accepted
    assert overall(examine(early).verdicts)[0] != PROVED


def test_a_loss_outside_of_the_loop_is_refused() -> None:
    chosen, on = pa.parse_strategy("dp"), pa.abstract()
    step = pa.derive(chosen, on)
    late = replace(step, events=(*step.events, replace(step.event("forward.loss.compute"), phase="resume",
                                                       divisor=ONE)))
    assert not kernel(late).accepted


STORED = "save.layer.weight.moments.store"
MORE: dict[str, tuple[str, list[Any]]] = {
    "a save that gathers what the next one stores": ("", [STORED, {
        "insert": {"path": "save.layer.weight.moments.all_gather[dp]", "from": "S", "to": "I"}, "after": STORED}]),
    "a matrix that stays": ('[optimizer]\nname = "muon"', [{"drop": "update.layer.weight.moments.free[dp]"}, STORED]),
    "a state that begins whole": ("", ["init.layer.weight.moments.assign", STORED]),
    "a count, and what it is added up to": (
        '[loss]\ndivisor = "count"\ncount_axes = ["dp"]\nassume = []\nreference = "microbatch_mean"', [
            {"move": "forward.loss.count.all_reduce[dp]", "after": "forward.loss.compute"},
            {"set": "forward.loss.compute", "divisor": "count*count"},
            {"set": "backward.loss.scale", "divisor": "m/count"}]),
    "a sum that is freed before it grows": ("", [{
        "insert": {"path": "forward.layer.weight.grad_sum.free"}, "before": "forward.loss.compute"}]),
}
"""Tables of a strategy, and edits; a path alone is an event that acts everywhere."""


@pytest.mark.parametrize("case", MORE)
def test_what_a_rank_has_besides_its_own_is_not_taken_for_it(case: str) -> None:
    tables, edits = MORE[case]
    step = pa.derive(parse_strategy_file(f'base = "zero1"\n{tables}').strategy, pa.abstract())
    assert kernel(step).accepted
    for one in edits:
        step = edit(step, one) if isinstance(one, dict) else replace(step, events=tuple(
            replace(e, where=()) if e.path == one else e for e in step.events))
    assert not kernel(step).accepted and overall(examine(step).verdicts)[0] != PROVED


REPLICAS = [("weight", {"op": "mean"}, True), ("weight", {"op": "sum", "divisor": "dp"}, True),
            ("weight", {"op": "premultiplied", "divisor": "dp"}, True), ("weight", {"op": "sum"}, False),
            ("weight", {"op": "mean", "divisor": "dp"}, False), ("amax", {"op": "sum"}, False)]


@pytest.mark.parametrize(("value", "fields", "accepted"), REPLICAS)
def test_what_all_ranks_have_is_reduced_again(value: str, fields: dict[str, str], accepted: bool) -> None:
    chosen, on = pa.parse_strategy("dp"), amax()
    step, path = pa.derive(chosen, on), f"reduce.layer.{value}.grad_sum.reduce[dp]"
    again = edit(step, double=path)
    again = edit(again, set=f"{path}#2", **{"op": "sum", "divisor": "1", **fields})
    assert bool(kernel(again).accepted) is accepted
    assert (overall(examine(again).verdicts)[0] == PROVED) is accepted


@pytest.mark.parametrize("strategy", FAMILY)
@pytest.mark.parametrize("table", ["", '[loss]\npreset = "token_mean"'])
def test_losses_of_tokens_of_their_own(strategy: str, table: str) -> None:
    assert asked(strategy, table, two_losses()).accepted is True


@pytest.mark.parametrize("changes", [
    {"drop": "forward.ahead.compute"}, {"drop": "backward.ahead.scale"},
    {"set": "forward.ahead.compute", "divisor": "m"}, {"set": "backward.ahead.scale", "divisor": "m*dp"},
    {"move": "forward.ahead.compute", "before": "forward.layer.compute"},
    {"move": "forward.ahead.compute", "after": "backward.layer.compute"}])
def test_a_loss_that_is_not_the_reference_s(changes: dict[str, Any]) -> None:
    chosen, on = pa.parse_strategy("zero1"), two_losses()
    assert not kernel(edit(pa.derive(chosen, on), **changes)).accepted


def test_losses_in_either_order() -> None:
    chosen, on = pa.parse_strategy("zero1"), two_losses()
    step = edit(pa.derive(chosen, on), move="forward.ahead.compute", before="forward.loss.compute")
    assert kernel(step).accepted is True


@pytest.mark.parametrize("strategy", FAMILY)
def test_the_largest_over_tokens(strategy: str) -> None:
    assert asked(strategy, "", amax()).accepted is True


LARGEST, OVER = "backward.layer.amax.grad_sum.accumulate", "reduce.layer.amax.grad_sum.reduce[dp]"


@pytest.mark.parametrize(("changes", "accepted"), [
    ({"set": LARGEST, "op": "sum"}, False), ({"set": OVER, "op": "sum"}, False), ({"set": OVER, "op": "mean"}, False),
    ({"drop": OVER}, False), ({"drop": LARGEST}, False), ({"set": OVER, "divisor": "dp"}, False),
    ({"set": "forward.layer.amax.grad.compute", "divisor": "m"}, False)])
def test_a_largest_is_taken_and_not_summed(changes: dict[str, Any], accepted: bool) -> None:
    chosen, on = pa.parse_strategy("dp"), amax()
    step = edit(pa.derive(chosen, on), **changes)
    assert bool(kernel(step).accepted) is accepted
    assert (overall(examine(step).verdicts)[0] == PROVED) is accepted


@pytest.mark.parametrize("strategy", FAMILY)
def test_a_mean_over_tokens_that_no_gradient_reaches(strategy: str) -> None:
    assert asked(strategy, "", statistics()).accepted is True


TAKEN = "forward.layer.running.grad.compute"


@pytest.mark.parametrize("changes", [
    {"set": TAKEN, "divisor": "tokens"}, {"set": TAKEN, "divisor": "m"}, {"drop": TAKEN},
    {"move": TAKEN, "before": "forward.layer.compute"}, {"drop": "reduce.layer.running.grad_sum.reduce[dp]"},
    {"set": "reduce.layer.running.grad_sum.reduce[dp]", "op": "sum"},
    {"drop": "backward.layer.running.grad_sum.accumulate"}, {"drop": "publish.layer.running.publish[dp]"}])
def test_a_statistic_that_is_not_the_mean_of_the_batch(changes: dict[str, Any]) -> None:
    chosen, on = pa.parse_strategy("zero1"), statistics()
    assert not kernel(edit(pa.derive(chosen, on), **changes)).accepted


SUMMED, REDUCED = "backward.layer.weight.grad_sum.accumulate", "reduce.layer.weight.grad_sum.reduce[dp]"
AT = [({"move": REDUCED, "after": SUMMED, "at": ["last"]}, True),
      ({"move": REDUCED, "after": SUMMED, "at": ["first"]}, False),
      ({"move": REDUCED, "after": SUMMED, "at": ["middle"]}, False),
      ({"set": SUMMED, "at": ["first", "middle", "last"]}, True),
      ({"set": SUMMED, "at": ["last"]}, False), ({"set": SUMMED, "at": ["first", "middle"]}, False),
      ({"set": "forward.layer.compute", "at": ["first", "last"]}, False)]


@pytest.mark.parametrize(("changes", "accepted"), AT)
def test_what_happens_at_some_positions_of_the_loop(changes: dict[str, Any], accepted: bool) -> None:
    chosen, on = pa.parse_strategy("dp"), pa.abstract()
    step = edit(pa.derive(chosen, on), **changes)
    assert bool(kernel(step).accepted) is accepted
    assert (overall(examine(step).verdicts)[0] == PROVED) is accepted


LACKING = {
    "gradient of the matrix": ("zero1", '[optimizer]\nname = "muon"', "update.layer.weight.grad_sum.all_gather[dp]"),
    "moments of the matrix": ("zero1", '[optimizer]\nname = "muon"', "update.layer.weight.moments.all_gather[dp]"),
    "counter of one rank": ("hsdp", '[checkpoint]\nby = "one"', "resume.step.broadcast[dp_replicate,dp_shard]"),
    "moments of one rank": ("hsdp", '[checkpoint]\nby = "one"',
                            "resume.layer.weight.moments.broadcast[dp_replicate,dp_shard]"),
    "flag": ("zero1", '[optimizer]\nskip = "overflow"', "update.layer.weight.skip.compute"),
    "flag of all ranks": ("hsdp", '[optimizer]\nskip = "overflow"', "update.skip.all_reduce[dp_shard]"),
    "average": ("zero1", TABLES["average at the optimizer"], "update.layer.weight.average.update"),
    "average of new weights": ("zero1", TABLES["average at the parameters"], "publish.layer.weight.average.update"),
    "average in the checkpoint": ("zero3", TABLES["average at the optimizer"], "save.layer.weight.average.store"),
    "average that goes on": ("zero3", TABLES["average at the optimizer"], "resume.layer.weight.average.load"),
    "scale of the loss": ("hsdp", TABLES["loss scale"], "backward.loss.scale#2"),
    "division by the loss scale": ("hsdp", TABLES["loss scale"], "update.layer.weight.grad_sum.scale"),
    "loss scale that goes on": ("hsdp", TABLES["loss scale"], "update.loss_scale.update"),
    "loss scale in the checkpoint": ("hsdp", TABLES["loss scale"], "save.loss_scale.store"),
    "loss scale of all ranks": ("hsdp", TABLES["loss scale"], "update.skip.all_reduce[dp_shard]"),
    "count of all ranks": ("zero3", '[loss]\npreset = "token_mean"', "prepare.loss.count.all_reduce[dp]"),
}


@pytest.mark.parametrize("case", LACKING)
def test_what_lacks_an_event_of_these_is_not_accepted(case: str) -> None:
    base, table, path = LACKING[case]
    chosen, on = parse_strategy_file(f'base = "{base}"\n{table}').strategy, pa.abstract()
    step = pa.derive(chosen, on)
    assert step.event(path)
    assert not kernel(replace(step, events=tuple(e for e in step.events if e.path != path))).accepted


def test_what_is_gathered_where_its_shard_rests() -> None:
    text = ('[mesh]\nleft = "symbolic"\nright = "symbolic"\n[dims]\nleft = ["batch"]\nright = ["batch"]\n[states]\n'
            'parameters = { left = "R", right = "S*" }\noptimizer = { left = "S", right = "R" }\n'
            'gradients = { left = "R", right = "S" }')
    chosen, on = parse_strategy_file(text).strategy, pa.abstract()
    step = pa.derive(chosen, on)
    path = "publish.layer.weight.publish[left]"
    assert kernel(step).accepted is True
    split = tuple(replace(e, where=(Clause("left"),)) if e.path == path else e for e in step.events)
    found = kernel(replace(step, events=split))
    assert "a collective of some ranks" in found.reason


@pytest.mark.parametrize(("op", "by", "accepted"), [
    ("premultiplied", "dp", True), ("sum", "dp", True), ("premultiplied", "1", False), ("premultiplied", "m", False)])
def test_parts_that_are_divided_before_they_are_summed(op: str, by: str, accepted: bool) -> None:
    chosen, on = pa.parse_strategy("zero3"), pa.abstract()
    step = edit(pa.derive(chosen, on), set="backward.*.grad.reduce[dp]", op=op, divisor=by)
    assert bool(kernel(step).accepted) is accepted


def test_an_average_takes_in_the_master_copy_where_that_is_held() -> None:
    chosen, on = parse_strategy_file(f'base = "zero1"\n{TABLES["average at the parameters"]}').strategy, pa.abstract()
    path = "publish.layer.weight.average.update"
    early = edit(pa.derive(chosen, on), set=path, **{"from": "master"})
    assert not kernel(early).accepted
    gathered = Event("publish", "all_gather", "average", "layer.weight", axes=("dp",), source="S", to="I")
    owned = [replace(e, where=(Clause("dp"),)) if e.path == path else e for e in early.events]
    at = next(k for k, e in enumerate(owned) if e.path == path)
    assert kernel(replace(early, events=(*owned[:at + 1], gathered, *owned[at + 1:]))).accepted is True


def test_a_flag_that_the_reference_lacks_is_refused() -> None:
    chosen, on = parse_strategy_file('base = "dp"\n[optimizer]\nskip = "overflow"').strategy, pa.abstract()
    step = pa.derive(chosen, on)
    found = kernel(replace(step, reference=replace(step.reference, skip=False)))
    assert found.reason.startswith("update.layer.weight.skip.compute: the single device's skip has no part of it")


def test_what_is_frozen_is_not_updated() -> None:
    chosen = parse_strategy_file(f'base = "dp"\n{OPS["frozen norms"]}').strategy
    step = pa.derive(chosen, pa.gpt())
    groups = [replace(g, frozen=True) for g in step.reference.groups]
    frozen = replace(step, reference=replace(step.reference, groups=tuple(groups)))
    assert not kernel(frozen).accepted


@pytest.mark.parametrize("by", ["one", "replica"])
@pytest.mark.parametrize("strategy", [s for s in FAMILY if "offload" not in s])
def test_a_checkpoint_stored_by_some_ranks(strategy: str, by: str) -> None:
    found = asked(strategy, f'[checkpoint]\nby = "{by}"', pa.abstract())
    assert (found.accepted, found.resumes) == (True, True)


@pytest.mark.parametrize("strategy", FAMILY)
def test_a_checkpoint_of_parameters_alone_is_never_resumed(strategy: str) -> None:
    found = asked(strategy, '[checkpoint]\nholds = "parameters"', pa.abstract())
    assert (found.accepted, found.resumes) == (True, False)
    assert "all sizes, microbatches, steps, never resumed;" in found.text(pa.prove("dp"))


@pytest.mark.parametrize("text", ["", "check = print", 'SOURCES = ""\n', 'DIGEST = "0"\n'])
def test_what_is_no_checker_is_said_in_one_line(text: str) -> None:
    with pytest.raises(InputError, match=r"extraction\.py is not an extracted checker: run make coq"):
        sources(text)


def test_a_checker_that_was_edited_by_hand() -> None:
    text = extracted.CHECKER.target.read_text(encoding="utf-8")
    assert sources(text) == shipped().sources
    edited = text.replace("return (False if", "return (True if", 1)
    assert edited != text
    with pytest.raises(InputError, match=r"extraction.py was edited by hand: .*; run make coq"):
        sources(edited)


def test_a_term_that_is_no_program_is_not_accepted() -> None:
    with pytest.raises((AssertionError, IndexError)):
        shipped().check(("Programme",))


def printed() -> str:
    return coq_file(term(program_of(pa.derive("dp", "abstract"))), "dp on abstract")


def test_a_printed_file_that_was_edited(tmp_path: Path) -> None:
    path = tmp_path / "dp.v"
    path.write_text(printed(), encoding="utf-8")
    check_unedited(path)
    path.write_text(printed().replace("AllReduce", "(Slice 0)", 1), encoding="utf-8")
    with pytest.raises(InputError, match="was edited by hand"):
        check_unedited(path)
    path.write_text("Theorem strategy_correct : True.", encoding="utf-8")
    with pytest.raises(InputError, match="is no file that prove --coq printed"):
        check_unedited(path)


def test_a_file_is_no_folder_for_proofs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    told = run_placealg("prove", "dp", "--coq", str(tmp_path / "file"))
    assert (told.code, told.err) == (2, f"placealg: {tmp_path / 'file'}: is no folder\n")


def test_without_coqc_nothing_is_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert by_coqc(printed(), tmp_path) == "there is no coqc on PATH"
    (tmp_path / "coqc").write_text("#!/bin/sh\necho 'The Coq Proof Assistant, version 8.20.0'\n", encoding="utf-8")
    (tmp_path / "coqc").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert by_coqc(printed(), tmp_path) == "coqc is 8.20.0, and the theory is checked with 8.16"


THEORY = extracted.ROOT / "proofs" / "coq", extracted.ROOT / "build" / "coq"
"""The sources, and where they are kept compiled between tests; `make coq` compiles them each time."""


@pytest.mark.slow
@pytest.mark.skipif(not coq_version(), reason="there is no coqc on PATH")
def test_coq_proves_what_is_accepted_and_refuses_what_is_not() -> None:
    assert by_coqc(printed(), *THEORY) == ""
    assert "coqc refuses strategy.v" in by_coqc(printed().replace("AllReduce", "(Slice 0)", 1), *THEORY)
    assert "assumes something" in by_coqc(printed().replace(
        "Theorem strategy_correct : correct strategy.\nProof. apply check_sound; vm_compute; reflexivity. Qed.",
        "Axiom strategy_correct : correct strategy."), *THEORY)


@pytest.mark.slow
@pytest.mark.skipif(not coq_version(), reason="there is no coqc on PATH")
def test_the_checker_is_what_coq_extracts(tmp_path: Path) -> None:
    import coq_mutants

    coq_mutants.compiled(tmp_path)
    for one in (extracted.CHECKER, extracted.SEMANTICS):
        assert one.text(tmp_path) == one.target.read_text(encoding="utf-8")


def lacking(strategy: str, path: str) -> Any:
    """The program of a strategy on the abstract model without one event, and how many axes it has."""
    chosen, on = pa.parse_strategy(strategy), pa.abstract()
    step = pa.derive(chosen, on)
    left = replace(step, events=tuple(e for e in step.events if e.path != path))
    return kernel(left).program, len(step.reference.mesh.names)


def test_a_refutation_names_its_world(tmp_path: Path) -> None:
    program, _ = lacking("dp", WRONG["dp"])
    text = refutation_file(program, "dp", World((2,), 3, 1, False))
    assert "Theorem strategy_wrong : ~ correct strategy." in text
    assert "tells_wrong strategy [2; 1] 2 1 [" in text
    (tmp_path / "dp.v").write_text(text, encoding="utf-8")
    check_unedited(tmp_path / "dp.v")


@pytest.mark.slow
@pytest.mark.skipif(not coq_version(), reason="there is no coqc on PATH")
@pytest.mark.parametrize("strategy", WRONG)
def test_coq_refutes_what_lacks_an_event(strategy: str) -> None:
    program, axes = lacking(strategy, WRONG[strategy])
    text, refused = refuted_by_coqc(program, strategy, worlds([2] * axes, 1), *THEORY)
    assert text
    assert refused == ""


def test_a_fault_of_the_second_step_is_not_accepted() -> None:
    """zero1 that drops its moments behind the update: the update of the second step finds none."""
    step = edit(pa.derive("zero1", "abstract"), insert={"verb": "free", "value": "moments", "group": "layer.weight"},
                after="publish.layer.weight.publish[dp]")
    assert not kernel(step).accepted


@pytest.mark.slow
@pytest.mark.skipif(not coq_version(), reason="there is no coqc on PATH")
def test_coq_refutes_no_right_program() -> None:
    program, _ = lacking("dp", "")
    assert refuted_by_coqc(program, "dp", worlds([2], 1), *THEORY) == ("", "")
