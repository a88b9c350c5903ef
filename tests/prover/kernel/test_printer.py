"""Step programs as programs of ops: what is accepted, and that nothing wrong is."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from extracted import CHECKER
from mutants import deletions, doublings, swaps
from operator_changes import operator_changes
from random_fields import edited

import placealg as pa
from placealg.check.kernel import kernel
from placealg.errors import InputError
from placealg.models.config import resolve_model
from placealg.prover.examine import examine
from placealg.prover.kernel.checker import accepts, shipped
from placealg.prover.kernel.coq import by_coqc, coq_file
from placealg.prover.kernel.outside import Outside
from placealg.prover.kernel.printer import printed
from placealg.prover.kernel.program import (
    Do,
    Layers,
    Microbatches,
    Pair,
    Program,
    Run,
    SEinsum,
    SRename,
    SRow,
    SScale,
    term,
)
from placealg.prover.kernel.single import alone
from placealg.prover.kernel.symbols import Symbols
from placealg.prover.verdict import PROVED, REFUTED, overall
from placealg.step.event import Event
from placealg.step.program import Step
from placealg.strategy.file import parse_strategy_file, proofs_folder


def step_of(strategy: str, model: str) -> Step:
    return pa.derive(pa.parse_strategy(strategy), resolve_model(model))


def test_the_extracted_checker_is_that_of_its_sources() -> None:
    assert shipped().sources == CHECKER.digest(), "run make coq"


ACCEPTED = [("dp", "mlp"), ("zero1", "gpt"), ("zero3", "mlp"), ("hsdp", "mlp"), ("mics", "mlp"), ("tp", "gpt"),
            ("tp_sp_keep", "gpt"), ("zero3*tp_sp", "gpt"), ("cp", "gpt"), ("cp_ulysses", "gpt"),
            ("tp_sp*recompute_full", "gpt"), ("ep", "moe"), ("zero1*cp_ring", "gpt"), ("zeropp", "mlp"),
            ("zero1*tp*offload_optimizer", "gpt"), ("zero3*offload_parameters", "mlp"),
            ("zero1*pp", "gpt"), ("zero3*pp_interleaved", "mlp"), ("pp_zb_v", "moe"),
            ("zero3*offload_activations", "gpt")]
MORE = [*((strategy, "llama-3-70b") for strategy in ("tp", "tp_sp", "zero3*tp_sp*cp_ulysses", "zero3*tp_sp*cp_ring")),
        *((strategy, "mixtral-8x7b") for strategy in ("dp", "ep", "zero3*ep", "tp_sp")),
        *((strategy, "deepseek-v3") for strategy in ("tp", "tp_sp", "zero1*tp*cp_ring*ep", "hsdp*tp_sp*cp_ring*pp*ep")),
        *((strategy, "gpt") for strategy in ("zero1*pp_zb_h1", "pp_gpipe*recompute_full", "zero2*tp*pp"))]


@pytest.mark.parametrize(("strategy", "model"), [
    *ACCEPTED, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)])
def test_whole_steps_are_accepted(strategy: str, model: str) -> None:
    assert accepts(printed(step_of(strategy, model)))


SCALED = '[optimizer]\nskip = "overflow"\n[loss]\nscale = "dynamic"'
SAYS = {
    ("zero1*tp*cp", "gpt"): '[loss]\npreset = "token_mean"', ("dp", "mlp"): '[loss]\npreset = "sum"',
    ("zero3", "mlp"): '[optimizer]\nname = "muon"', ("zero1", "mlp"): '[optimizer]\naverage = "optimizer"',
    ("hsdp", "mlp"): '[optimizer]\naverage = "parameters"', ("zero1*tp", "gpt"): '[checkpoint]\nby = "one"',
    ("zero2", "mlp"): '[checkpoint]\nholds = "parameters"', ("tp", "gpt"): '[adapters]\nmatch = "*"',
    ("zero3*tp_sp", "gpt"): '[groups.norms]\nmatch = "*norm*"\nfrozen = true',
    ("zero1*ep", "moe"): '[loss]\nterms = ["balance", "z"]', ("zero1*dp[more]", "abstract"): "",
    ("hsdp", "abstract"): '[loss]\npreset = "token_mean"', ("zero3", "abstract"): SCALED, ("zero2*tp", "gpt"): SCALED,
    ("zero1", "two_losses"): '[loss]\npreset = "token_mean"', ("zero3", "two_losses"): "", ("zero3", "statistics"): "",
    ("hsdp", "amax"): "", ("zero1*cp", "gpt"): '[optimizer]\nfp8_scales = ["*"]',
    ("zero3", "moe"): '[optimizer]\nrouter_bias = true',
    ("zero3*cp", "gpt"): '[loss]\npreset = "token_mean"\n[tokens]\nweights = true\ndocuments = true',
    ("zero1*cp_ulysses", "gpt"): '[loss]\npreset = "token_mean"\nper = "sequence"',
    ("zero1*pp", "gpt"): SCALED, ("hsdp*pp_interleaved", "mlp"): '[loss]\npreset = "token_mean"'}
"""A strategy and a model -> tables that say more than a placement."""


@pytest.mark.parametrize(("strategy", "model"), SAYS)
def test_whole_steps_that_say_more_are_accepted(strategy: str, model: str) -> None:
    assert accepts(printed(saying(strategy, model, SAYS[strategy, model])))


def saying(strategy: str, model: str, tables: str) -> Step:
    return pa.derive(parse_strategy_file(f'base = "{strategy}"\n{tables}').strategy, resolve_model(model))


@pytest.mark.parametrize("axes", [["microbatch"], ["microbatch", "dp"], ["microbatch", "cp"], ["dp", "cp"]])
def test_counts_of_fewer_tokens_than_all_are_not_accepted(axes: list[str]) -> None:
    step = saying("dp*cp", "gpt", f'[loss]\npreset = "token_mean"\ncount_axes = {axes}')
    assert not accepted(step)


@pytest.mark.parametrize(("number", "tables"), [
    ("count", ""), ("tokens", '[loss]\npreset = "token_mean"'), ("tokens", '[loss]\npreset = "sum"')])
def test_a_number_of_a_rank_s_own_that_cancels_in_words_is_not_accepted(number: str, tables: str) -> None:
    step, path = saying("dp", "mlp", tables), "reduce.layer.weight.grad_sum"
    for where, divisor in (("before", number), ("after", f"1/{number}")):
        step = pa.edit(step, {"insert": {"path": f"{path}.scale", "divisor": divisor}, where: f"{path}.reduce[dp]"})
    assert not accepted(step) and overall(examine(step).verdicts)[0] != PROVED


@pytest.mark.parametrize("words", [
    {"set": "forward.loss.compute", "divisor": "1/count"},
    {"move": "prepare.loss.count.all_reduce[dp]", "before": "forward.loss.compute"}])
def test_a_count_that_does_not_divide_the_loss_is_not_accepted(words: dict[str, str]) -> None:
    step = pa.edit(saying("dp", "mlp", '[loss]\npreset = "token_mean"'), words)
    assert not accepted(step)


def test_an_average_that_does_not_begin_as_the_weights_is_not_accepted() -> None:
    program = printed(saying("dp", "mlp", '[optimizer]\naverage = "optimizer"'))
    assert program.begins and accepts(program) and not accepts(program.but(begins=()))


def test_an_average_that_moves_on_one_rank_alone_is_not_accepted() -> None:
    step = saying("zero3", "mlp", '[optimizer]\naverage = "optimizer"')
    assert not accepted(pa.edit(step, {"set": "update.layer.weight.average.update", "where": "rank(dp)=0"}))


def test_the_single_device_is_the_model_s() -> None:
    programs = []
    for strategy in ("dp", "zero3*tp_sp", "cp"):
        reference = step_of(strategy, "gpt").reference
        programs.append(alone(reference, Symbols(reference.graph, {})).stretches)
    assert programs[0] == programs[1] == programs[2]


def changed(made: object) -> object:
    """Another thing than a line makes."""
    if isinstance(made, SEinsum):
        return SEinsum(made.over[1:] if made.over else (0,))
    if isinstance(made, SRow):
        return SRow(made.function + 1, made.over)
    if isinstance(made, SScale):
        return SScale((*made.by, Pair(1, 0)))
    return SRename((Pair(0, 1),)) if isinstance(made, SRename) else None


def changed_lines(program: Program) -> Iterator[tuple[Pair, Program]]:
    """A value, and the program beside a single device whose line of that value makes or reads something else."""
    for k, stretch in enumerate(program.alone):
        for j, numbered in enumerate(stretch.lines):
            line = numbered.second
            others = [line.but(reads=line.reads[1:])] if line.reads else []
            made = changed(line.made)
            for other in [*others, *([line.but(made=made)] if made else [])]:
                lines = tuple(Pair(n.first, other) if i == j else n for i, n in enumerate(stretch.lines))
                put = stretch.but(lines=lines)
                yield line.target, program.but(
                    alone=tuple(put if i == k else s for i, s in enumerate(program.alone)))


def needed(program: Program) -> set[Pair]:
    """The values on which depends what the single device keeps; no other is looked at."""
    lines = [n.second for s in program.alone for n in s.lines]
    found = {int(state.second) for state in program.states}
    while True:
        more = {int(r.first) for line in lines if int(line.target.first) in found for r in line.reads} - found
        if not more:
            return {line.target for line in lines if int(line.target.first) in found}
        found |= more


@pytest.mark.parametrize("seed", range(2))
def test_beside_another_single_device_it_is_rejected(seed: int) -> None:
    program = printed(step_of("zero3", "mlp"))
    wanted = needed(program)
    cases = [other for target, other in changed_lines(program) if target in wanted]
    assert len(cases) > 50
    for case in random.Random(seed).sample(cases, 12):
        assert not accepts(case)


def without(program: Program) -> Iterator[tuple[Do, Program]]:
    """The program without one op of its step."""
    for k, part in enumerate(program.step):
        for j, block in enumerate(part.blocks):
            for i, one in enumerate(block.instructions):
                if isinstance(one, Do):
                    left = block.instructions[:i] + block.instructions[i + 1:]
                    blocks = (*part.blocks[:j], block.but(instructions=left), *part.blocks[j + 1:])
                    step = (*program.step[:k], part.but(blocks=blocks), *program.step[k + 1:])
                    yield one, program.but(step=step)


def read(program: Program) -> set[object]:
    """The slots that something reads."""
    blocks: list[Run | Layers] = [b for part in program.step for b in part.blocks]
    blocks += [*program.init, *program.save, *program.resume]
    found: set[object] = {a for b in blocks for i in b.instructions if isinstance(i, Do) for a in i.args}
    sums = {q.first for part in program.step if isinstance(part, Microbatches) for q in part.sums}
    return found | sums | {q.first for q in program.rest}


def test_without_an_op_that_is_read_it_is_rejected() -> None:
    program = printed(step_of("tp_sp", "gpt"))
    used = read(program)
    cases = [p for one, p in without(program) if one.out in used and one.out not in one.args]
    for case in random.Random(3).sample(cases, 10):
        assert not accepts(case)


WRONG = [("zero3", "doublings", "double backward.layer.in.grad.assign"),
         ("zero3", "swaps", "swap backward.layer.mlp.up.grad.compute / backward.layer.in.grad.assign"),
         ("zero3", "doublings", "double update.norm.all_reduce[dp]"),
         ("hsdp", "operator_changes", "another operator, target or place of save.head.weight.store"),
         ("dp", "deletions", "drop update.step.update"), ("dp", "deletions", "drop update.rng.update"),
         ("zero1", "deletions", "drop update.norm.all_reduce[dp]"), ("zero1", "deletions", "drop publish.head.weight")]
KINDS = {kind.__name__: kind for kind in (deletions, doublings, swaps, operator_changes)}


def accepted(step: Step) -> bool:
    try:
        return accepts(printed(step))
    except Outside:
        return False


@pytest.mark.parametrize(("strategy", "kind", "story"), WRONG)
def test_what_the_prover_refutes_is_not_accepted(strategy: str, kind: str, story: str) -> None:
    found = [m for m in KINDS[kind](step_of(strategy, "mlp")) if m.story.startswith(story)]
    assert found
    for mutant in found:
        assert not accepted(mutant.step) or overall(examine(mutant.step).verdicts)[0] == PROVED


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("coqc") is None, reason="there is no coqc on PATH")
def test_coq_proves_what_is_accepted_and_nothing_else(tmp_path: Path) -> None:
    program = printed(step_of("tp_sp", "gpt"))
    other = program.but(ones=())
    said = [by_coqc(coq_file(term(p), "tp_sp"), proofs_folder("coq"), tmp_path) for p in (program, other)]
    assert said[0] == "" and said[1].startswith("coqc refuses strategy.v")


@pytest.mark.slow
def test_no_refuted_file_is_accepted() -> None:
    files = sorted(proofs_folder("refuted").glob("*.toml"))
    assert len(files) > 100
    found = [file for file in files if accepted(pa.read(file).step)]
    assert len(found) < 20  # what is wrong there is a schedule, a race or a type, of which the theorem does not speak
    for file in found:
        step = pa.read(file).step
        assert not kernel(step).contradicts(pa.prove(step)), file.name


@pytest.mark.parametrize(("strategy", "draws"), [
    ("zero3", 3), *(pytest.param(s, 40, marks=pytest.mark.slow) for s in ("dp", "zero1", "zero2", "hsdp", "mics"))])
def test_whatever_is_accepted_is_proved(strategy: str, draws: int) -> None:
    mutants = [m for kind in KINDS.values() for m in kind(step_of(strategy, "mlp"))]
    random.Random(strategy).shuffle(mutants)
    found = [m for m in mutants[:4 * draws] if accepted(m.step)][:draws]
    assert found
    for mutant in found:
        assert overall(examine(mutant.step).verdicts)[0] == PROVED, mutant.story


@pytest.mark.parametrize("field", ["divisor", "op"])
def test_a_reduction_that_takes_a_mean_divides_by_its_divisor_too(field: str) -> None:
    step = step_of("zero3*tp_sp", "gpt")
    means = [e for e in step.events if e.verb == "reduce" and e.op == "mean"]
    for event in random.Random(field).sample(means, 2):
        words = {"divisor": "m"} if field == "divisor" else {"op": "sum"}
        wrong = pa.edit(step, set=event.path, **words)
        assert not accepted(wrong)


@pytest.mark.parametrize(("strategy", "model", "draws"), [
    ("zero3*tp_sp", "gpt", 4), *(pytest.param(*case, 150, marks=pytest.mark.slow) for case in (
        ("tp", "gpt"), ("zero3*tp_sp", "gpt"), ("zero3*cp", "gpt"), ("zero1*tp*cp_ulysses", "gpt"),
        ("zero1*ep*tp_sp", "moe"), ("hsdp*tp_sp*recompute_full", "gpt"), ("zero2*tp*recompute_selective", "gpt"),
        ("zero1*cp_ring", "gpt"), ("zeropp", "mlp"), ("zero1*tp*offload_optimizer", "gpt"), ("zero1*pp", "gpt"),
        ("zero3*tp_sp*pp_zb_h1", "gpt")))])
def test_with_any_field_changed_what_is_accepted_is_proved(strategy: str, model: str, draws: int) -> None:
    """Every field of every event, in the words of files, so that none is left out by the printer."""
    draw, step, judged = random.Random(f"{strategy} {model}"), step_of(strategy, model), 0
    for _ in range(8 * draws):
        try:
            story, changed = edited(draw, step)
        except InputError:
            continue
        if changed.events == step.events or not accepted(changed):
            continue
        assert overall(examine(changed).verdicts)[0] == PROVED, story
        judged += 1
        if judged == draws:
            return
    assert judged


@pytest.mark.parametrize(("strategy", "model", "words"), [
    ("zero2", "mlp", {"set": "update.norm.all_reduce[dp]", "op": "mean"}),
    ("zero1", "two_losses", {"set": "forward.ahead.compute", "verb": "scale"}),
    ("zero1*ep*tp_sp", "moe", {"set": "backward.head.norm.out.free", "value": "layer.expert.down"}),
    ("zero2", "mlp", {"set": "update.layer.weight.update", "where": "not owner(dp)"}),
    ("zero3*cp", "gpt", {"set": "update.step.update", "where": "owner(dp)"}),
    ("zero1*tp_sp", "gpt", {"set": "reduce.layer.weight.grad_sum.reduce[dp]", "divisor": "2"}),
    ("zero2", "mlp", {"move": "forward.loss.compute", "after": "init.step.assign"}),
    ("dp*offload_optimizer", "mlp", {"drop": "publish.layer.weight.master.fetch"}),
    ("zero3*offload_optimizer", "mlp", {"drop": "backward.layer.weight.grad.offload"}),
    ("zero3*offload_parameters", "mlp", {"set": "publish.layer.weight.offload", "from": "weight"}),
    ("zeropp", "mlp", {"drop": "backward.layer.weight.gather[dp_shard]"}),
    ("zero1", "mlp", {"insert": {"path": "save.layer.weight.free[dp]"}, "after": "save.layer.weight.store"}),
    ("zero1", "mlp", {"insert": {"path": "save.layer.weight.free"}, "after": "save.layer.weight.store"}),
    ("cp_ring", "gpt", {"drop": "backward.layer.attn.core.keys.grad.shift[cp]"}),
    ("tp", "gpt", {"set": "update.layer.weight.norm", "layout": "alt"}),
    *(("zero1*pp", "gpt", words) for words in (
        {"drop": "forward.layer.in.recv[pp]"}, {"drop": "forward.layer.out.send[pp]"},
        {"drop": "backward.layer.out.grad.recv[pp]"}, {"drop": "backward.layer.in.grad.send[pp]"},
        {"double": "forward.layer.in.recv[pp]"},
        {"move": "forward.layer.out.send[pp]", "before": "forward.layer.mlp.down.compute"},
        {"move": "backward.layer.in.grad.assign", "before": "backward.layer.norm1.out.grad.compute"},
        {"drop": "reduce.embedding.weight.grad_sum.reduce[pp]"},
        {"set": "update.norm.all_reduce[dp,pp]", "axes": ["dp"]},
        {"set": "update.embedding.weight.norm", "where": "owner(dp)"},
        {"set": "init.embedding.weight.broadcast[dp,pp]", "axes": ["dp"]})),
    *(("zero3*offload_activations", "mlp", {"drop": path}) for path in (
        "forward.layer.mlp.gelu.offload", "backward.layer.mlp.gelu.fetch")),
    *(("fsdp_no_reshard*pp", "mlp", words) for words in (
        {"move": "prepare.layer.weight.gather[dp]", "before": "forward.layer.in.assign"},
        {"move": "reduce.layer.weight.free[dp]", "after": "backward.layer.weight.grad_sum.accumulate"})),
])
def test_what_random_edits_found_stays_outside(strategy: str, model: str, words: dict[str, Any]) -> None:
    assert not accepted(pa.edit(step_of(strategy, model), words))


WEIGHED = '[loss]\npreset = "token_mean"\n[tokens]\nweights = true'
FLAG, LOAD = "update.layer.weight.skip.compute", "reduce.layer.amax.grad_sum.reduce[dp_replicate,dp_shard]"


@pytest.mark.parametrize(("strategy", "model", "tables", "words"), [
    ("zero1", "mlp", SCALED, {"drop": "update.skip.all_reduce[dp]"}), ("zero1", "mlp", SCALED, {"drop": FLAG}),
    ("zero1", "mlp", SCALED, {"drop": "update.layer.weight.grad_sum.scale"}),
    ("zero1", "mlp", SCALED, {"drop": "backward.loss.scale#2"}),
    ("zero1", "mlp", SCALED, {"move": FLAG, "after": "update.layer.weight.clip"}),
    ("zero1", "mlp", SCALED, {"move": "update.step.update", "before": "update.layer.weight.grad_sum.scale"}),
    ("zero1", "mlp", SCALED, {"double": "update.loss_scale.update"}),
    ("zero1", "mlp", "", {"insert": {"path": FLAG}, "before": "update.layer.weight.norm"}),
    ("zero1", "statistics", "", {"set": "forward.layer.running.grad.compute", "divisor": "m"}),
    ("zero3", "statistics", "", {"set": "forward.layer.running.grad.compute", "tier": "host"}),
    ("zero1", "statistics", "", {"double": "backward.layer.running.grad_sum.accumulate"}),
    ("hsdp", "amax", "", {"set": "backward.layer.amax.grad_sum.accumulate", "op": "sum"}),
    ("hsdp", "amax", "", {"set": LOAD, "op": "sum"}),
    ("hsdp", "amax", "", {"drop": "forward.layer.amax.grad.compute"}),
    ("dp", "two_losses", "", {"drop": "backward.ahead.scale"}),
    ("dp", "abstract", "", {"drop": "forward.loss.compute"}),
    ("dp", "two_losses", "", {"set": "forward.ahead.compute", "verb": "scale"}),
    ("dp*cp", "gpt", WEIGHED, {"set": "prepare.loss.count.all_reduce[dp,cp]", "axes": ["dp"]}),
    ("zero1*cp_ulysses", "gpt", '[loss]\npreset = "token_mean"\nper = "sequence"', {
        "move": "forward.loss.total.all_reduce[cp]", "before": "backward.head.logits.grad.compute"}),
    ("dp*cp", "gpt", WEIGHED, {"drop": "prepare.loss.count.all_reduce[dp,cp]"}),
    ("zero1", "two_losses", '[loss]\npreset = "token_mean"', {"drop": "prepare.ahead.count.all_reduce[dp]"}),
    ("zero3", "abstract", "", {"drop": "backward.layer.compute"})])
def test_what_is_refuted_of_flags_statistics_and_losses_is_not_accepted(
        strategy: str, model: str, tables: str, words: dict[str, Any]) -> None:
    wrong = pa.edit(saying(strategy, model, tables), words)
    assert overall(examine(wrong).verdicts)[0] == REFUTED and not accepted(wrong)


def test_a_program_with_edits_is_asked_as_any_other() -> None:
    step = pa.derive("tp", "gpt")
    assert kernel(step).accepted is True
    assert kernel(pa.edit(step, double="publish.layer.weight.publish")).accepted is True
    assert kernel(pa.edit(step, double="update.norm.all_reduce*")).accepted is False


def other_words(event: Event, axes: Sequence[str]) -> Iterator[dict[str, object]]:
    """An event that says something else in one field."""
    yield from ({"where": text.format(a)} for a in axes for text in ("rank({})=0", "rank({})=last", "owner({})"))
    yield from ({"tier": tier} for tier in ("host", "device", "device->host", "host->device"))
    yield from ({"op": op} for op in ("sum", "mean"))
    yield from ({"divisor": divisor} for divisor in ("m", "tokens", axes[0]))
    yield from ({"axes": list(some)} for some in (*((a,) for a in axes), axes))
    yield from ({"from": value} for value in ("weight", "master", "moments", "grad", "grad_sum"))
    yield from ({"to": place} for place in ("I", "S", "R", "P"))
    yield from ({"at": [place]} for place in ("first", "last"))


PRINTED_ALIKE = [("zero3", "mlp", '[optimizer]\naverage = "optimizer"\nname = "muon"'), ("zeropp", "mlp", ""),
                 ("zero1*tp*offload_optimizer", "gpt", '[loss]\npreset = "token_mean"'), ("zero1*cp_ring", "gpt", ""),
                 ("zero3*offload_parameters", "mlp", ""), ("hsdp", "mlp", '[checkpoint]\nby = "one"'),
                 ("zero1*ep*tp_sp", "moe", '[loss]\nterms = ["balance", "z"]')]


@pytest.mark.parametrize(("strategy", "model", "tables"), [
    pytest.param(*case, marks=pytest.mark.slow) if k else case for k, case in enumerate(PRINTED_ALIKE)])
def test_what_is_printed_alike_is_proved_alike(strategy: str, model: str, tables: str) -> None:
    """A field of an event that the printer forgot would leave a program as it is; then the prover says what it does."""
    step, seen, alike = saying(strategy, model, tables), set(), 0
    program = printed(step)
    for event in step.events:
        kind = (event.phase, event.verb, event.value if event.group else event.on_gradient, event.axes, event.tier)
        if kind in seen:
            continue
        seen.add(kind)
        for words in other_words(event, step.reference.mesh.names):
            try:
                changed = pa.edit(step, {"set": event.path, **words})
                if changed.events == step.events or printed(changed) != program:
                    continue
            except (InputError, Outside):
                continue
            assert overall(examine(changed).verdicts)[0] != REFUTED, (event.path, words)
            alike += 1
    assert alike
