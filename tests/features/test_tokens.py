"""Attributes of tokens as data: weights, documents, positions; means of tokens, sequences and documents."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from random import Random

import numpy as np
import pytest

import placealg as pa
from placealg.cases.case import read_case
from placealg.check.prove import judge
from placealg.cli.glosses import SAYS
from placealg.cost.flop import flop
from placealg.cost.storages import local
from placealg.cost.walk import walked
from placealg.errors import InputError
from placealg.models.config import resolve_model
from placealg.models.losses import RUNS, with_loss
from placealg.models.transformer import Style, gpt, mla
from placealg.prover.examine import examine, hypotheses
from placealg.prover.kernel.checker import accepts
from placealg.prover.kernel.outside import Outside
from placealg.prover.kernel.printer import printed
from placealg.prover.verdict import PARAMETRIC, PROVED, REFUTED
from placealg.render.proof import assumption
from placealg.simulator import Setting, simulate, tokens
from placealg.step.program import Step
from placealg.strategy.file import parse_strategy_file

ALL = '[tokens]\nweights = true\ndocuments = true\npositions = "data"\n'
MEAN = '[loss]\npreset = "token_mean"\nper = "{}"\n'
MODELS = {"gpt": gpt, "flash": lambda: gpt(Style(flash=True)), "llama": lambda: resolve_model("llama-3-8b"),
          "sinks": lambda: gpt(Style(grouped=True, rotary=True, sinks=True, window="w", flash=True)), "mla": mla,
          "rotary": lambda: gpt(Style(rotary=True, positions="none"))}


def derived(text: str, model: str = "gpt") -> Step:
    return pa.derive(parse_strategy_file(text).strategy, MODELS[model]())


def small(step: Step, seed: int = 0, m: int = 2) -> Setting:
    """A run whose counts differ where they may."""
    drawn = Setting.equal if "equal_counts" in step.reference.hypotheses else Setting.unequal
    return drawn(step.reference, dict.fromkeys(step.reference.mesh.names, 2), m, seed=seed)


CASES = [("cp_ring", "gpt", "document"), pytest.param("dp*cp_ulysses", "llama", "sequence", marks=pytest.mark.slow), *(
    pytest.param(base, model, per, marks=pytest.mark.slow)
    for base in ("dp", "cp", "cp_ring", "cp_ulysses", "tp_sp", "zero3", "zero3*cp", "dp*cp*tp_sp", "zero1*tp_sp")
    for model, per in (("gpt", "token"), ("flash", "sequence"), ("llama", "document"), ("sinks", "token")))]


@pytest.mark.parametrize(("base", "model", "per"), CASES)
def test_attributes_are_proved_and_run(base: str, model: str, per: str) -> None:
    step = derived(f'base = "{base}"\n{ALL}{MEAN.format(per)}', model)
    assert {(v.verdict, v.cls) for v in examine(step).verdicts} == {(PROVED, PARAMETRIC)}
    assert simulate(step, small(step, seed=len(base) % 2), steps=1).difference is None


DOCUMENTS = '[tokens]\ndocuments = true\npositions = "data"\n'
WEIGHTS = "[tokens]\nweights = true\n"
CORE = "forward.layer.attn.core.probs.compute"
UNMASKED = ["layer.attn.core.scaled", "data.documents@none", "layer.attn.core.documents@none"]
FAULTS = {
    "documents restart on each rank": ("cp", "gpt", DOCUMENTS, {"set": "forward.data.documents.slice[cp]",
                                                                "layout": "local(cp)"}, "forward", CORE),
    "no mask of documents": ("dp", "gpt", DOCUMENTS, {"set": CORE, "reads": UNMASKED}, "forward", CORE),
    "positions counted on each rank": ("cp", "gpt", DOCUMENTS, {
        "set": "forward.data.positions.slice[cp]", "layout": "local(cp)"}, "forward",
        "forward.embedding.positions.compute"),
    "rotated by places counted on each rank": ("cp", "llama", DOCUMENTS, {
        "set": "forward.data.positions.slice[cp]", "layout": "local(cp)"}, "forward",
        "forward.layer.attn.q.rotated.compute"),
    "keys rotated by their place": ("cp", "llama", DOCUMENTS, {
        "set": "forward.layer.attn.k.rotated.compute", "reads": ["layer.attn.k", "data.positions@none"]}, "forward",
        "forward.layer.attn.k.rotated.compute"),
    "weights left out": ("cp_ring", "gpt", WEIGHTS, {
        "set": "forward.loss.weighted.compute", "reads": ["head.loss", "data.weights@none"]}, "forward",
        "forward.loss.weighted.compute"),
    "lengths of a rank's own part": ("cp", "gpt", WEIGHTS + MEAN.format("sequence"), {
        "drop": "forward.loss.length.all_reduce[cp]"}, "forward", "forward.loss.share.compute"),
    "a count of all tokens": ("dp", "gpt", WEIGHTS + MEAN.format("token"), {
        "set": "*loss.count.compute", "reads": ["data.weights@none"]}, "gradient", ""),
    "a count of tokens with a weight": ("cp", "gpt", WEIGHTS + MEAN.format("token"), {
        "set": "*loss.count.compute", "reads": ["data.weights@once"]}, "gradient", ""),
}


@pytest.mark.some(3)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_refuted_where_it_is(name: str) -> None:
    base, model, tables, edit, obligation, event = FAULTS[name]
    found = pa.prove(pa.edit(derived(f'base = "{base}"\n{tables}', model), edit))
    assert found.verdict == REFUTED
    told = found.counterexample
    assert told is not None
    assert told.obligation == obligation
    assert told.event == (event or told.event)


@pytest.mark.parametrize(("how", "held"), [("none", "padding"), ("once", "weights of 2")])
def test_padding_and_weights_of_2_each_show_a_wrong_count(how: str, held: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a row of padding a rank's tokens are as many as they weigh; without weights of 2 those that have one."""
    step = derived(f'base = "dp"\n{WEIGHTS}{MEAN.format("token")}')
    wrong = pa.edit(step, {"set": "*loss.count.compute", "reads": [f"data.weights@{how}"]})
    run = small(step, m=1)
    assert simulate(step, run, steps=1).equal
    assert not simulate(wrong, run, steps=1).equal
    if held == "padding":
        run = replace(run, padding=False)
    else:
        monkeypatch.setattr(tokens, "_PAIRS", np.ones((3, 2), np.int64))
        run = replace(run, seed=97713)
    assert simulate(wrong, run, steps=1).equal


def test_a_run_packs_two_documents_and_counts_positions_in_each() -> None:
    from placealg.simulator.space import of

    at = of((step := derived(f'base = "cp"\n{ALL}')).reference, small(step))
    some = at.sequences(0)
    documents, positions = (at.data(f"data.{name}", 0, some).numbers for name in ("documents", "positions"))
    for mine, counted in zip(documents.tolist(), positions.tolist(), strict=True):
        assert mine == sorted(mine)
        assert set(mine) == {0, 1}
        assert counted == [*range(mine.count(0)), *range(mine.count(1))]
    weights = at.data("data.weights", 0, some).numbers
    assert not weights[-1].any()
    assert weights[:-1].any(axis=1).all()


@pytest.mark.parametrize(("text", "model", "says"), [
    ("[tokens]\ndocuments = true", "mlp", "[tokens] documents: mlp has no attention, which alone asks for documents"),
    ("[tokens]\nweights = true", "abstract", "[tokens] weights: abstract says nothing about the ops inside its units"),
    ('[tokens]\npositions = "data"', "mlp", "[tokens] positions: mlp has neither learned nor rotary positions"),
    ('[loss]\nper = "document"', "gpt", "[loss] per: no documents are told: say documents = true in [tokens]"),
    ('[loss]\nper = "sequence"', "mlp", "[loss] per: the loss of mlp has no sequences"),
    ('[loss]\nterms = ["z"]\nterm_tokens = "weighted"', "moe", "[loss] term_tokens: no weights of tokens are told"),
    ('[loss]\nterm_tokens = "weighted"', "moe", "[loss] term_tokens: nothing says which terms; say terms"),
])
def test_attributes_that_a_model_cannot_have_are_told(text: str, model: str, says: str) -> None:
    with pytest.raises(InputError) as found:
        pa.derive(parse_strategy_file(f'base = "dp"\n{text}').strategy, resolve_model(model))
    assert says in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(("edit", "says"), [
    ({"set": "forward.layer.norm1.out.compute", "reads": ["layer.in@none", "layer.norm1.weight", "layer.norm1.bias"]},
     "can be left out, and not all"),
    ({"set": CORE, "layout": "local(cp)"}, "what each rank counts from its own start, is for slices of data"),
    ({"set": "forward.loss.weighted.compute", "reads": ["head.loss", "data.weights@once"]},
     "a count of tokens takes weights once"),
])
def test_what_cannot_be_left_out_is_refused(edit: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        pa.edit(derived(f'base = "cp"\n{ALL}'), edit)


def test_terms_of_routers_are_of_all_tokens_or_of_each_by_its_weight() -> None:
    """The weighted terms have one product more in each layer, and run as on one device."""
    text = f'base = "dp*cp"\n{WEIGHTS}[loss]\npreset = "token_mean"\nterms = ["z"]\nterm_tokens = "{{}}"\n'
    steps = [pa.derive(parse_strategy_file(text.format(of)).strategy, pa.moe()) for of in ("all", "weighted")]
    made = [{e.value for e in step.events if e.verb == "compute"} for step in steps]
    assert made[1] - made[0] >= {"layer.router.z_weighted"}
    assert simulate(steps[1], small(steps[1], m=1), steps=1).difference is None


@pytest.mark.slow
@pytest.mark.parametrize(("edit", "refuted"), [
    ({"set": "forward.layer.router.z_weighted.compute", "reads": ["layer.router.z_scaled", "data.weights@none"]},
     {"forward"}),
    ({"set": "backward.layer.router.z_loss.grad.compute", "divisor": "tokens"}, {"gradient", "normalizer"})])
def test_a_term_of_other_tokens_is_refuted(edit: dict[str, object], refuted: set[str]) -> None:
    text = f'base = "cp"\n{WEIGHTS}[loss]\npreset = "token_mean"\nterms = ["z"]\nterm_tokens = "weighted"\n'
    wrong = pa.edit(pa.derive(parse_strategy_file(text).strategy, pa.moe()), edit)
    assert {v.id for v in examine(wrong).verdicts if v.verdict == REFUTED} == refuted
    assert simulate(wrong, small(wrong, m=1), steps=1).difference is not None


def test_a_strategy_without_attributes_is_the_same_program() -> None:
    plain, said = (derived(text) for text in ('base = "cp"', 'base = "cp"\n[tokens]\nweights = false\n'))
    assert plain.events == said.events
    assert read_case("cp", None, []).step.reference.graph == plain.reference.graph


@pytest.mark.parametrize("text", [f'base = "cp_ulysses"\n{ALL}[loss]\nper = "sequence"\n',
                                  f'base = "dp"\n{ALL}[loss]\nper = "document"\n',
                                  pytest.param(f'base = "zero3*tp_sp"\n{ALL}[loss]\nper = "document"\n',
                                               marks=pytest.mark.slow)])
def test_the_kernel_of_ops_accepts_attributes_as_tensors(text: str) -> None:
    assert accepts(printed(derived(text, "rotary")))


@pytest.mark.parametrize("edit", [
    {"set": CORE, "reads": UNMASKED},
    {"set": "forward.layer.attn.k.rotated.compute", "reads": ["layer.attn.k.biased", "data.positions@none"]},
    {"set": "forward.loss.weighted.compute", "reads": ["head.loss", "data.weights@none"]},
    {"set": "forward.data.documents.slice[cp]", "layout": "local(cp)"}])
def test_the_kernel_refuses_what_it_does_not_print(edit: dict[str, object]) -> None:
    step = pa.edit(derived(f'base = "cp"\n{ALL}', "rotary"), edit)
    with pytest.raises(Outside, match=r"counts|weights|reads|layout"):
        printed(step)


@pytest.mark.parametrize("edit", [
    {"move": "forward.data.documents.slice[dp]", "after": CORE},
    {"insert": {"verb": "free", "value": "data.documents", "version": "dp", "unit": "layer"}, "after": CORE}])
def test_a_slice_that_layers_read_too_early_or_the_loss_too_late_is_not_accepted(edit: dict[str, object]) -> None:
    """What each layer slices alike stands before their loop, for the loss to read: unless a layer reads it before."""
    step = derived(f'base = "dp"\n{DOCUMENTS}[loss]\nper = "document"\n')
    assert accepts(printed(step))
    assert not accepts(printed(pa.edit(step, edit)))


@pytest.mark.parametrize("seed", range(2))
def test_attention_as_one_op_runs_over_pairs_of_one_document(seed: int) -> None:
    """Of documents of any lengths it costs what it does of as many sequences of these lengths."""
    draw = Random(seed)
    lengths = [draw.randrange(8, 64) for _ in range(draw.randrange(1, 5))]
    whole, packed = (flop(derived(f'base = "zero3*tp"\n{text}', "flash")) for text in ("", DOCUMENTS))
    sizes = {"dp": 2, "tp": 2, "h": 16, "a": 4, "L": 3, "V": 20, "b": 1, "m": 2}
    s = sum(lengths)
    share = Fraction(sum(n * n for n in lengths), s * s)
    assert packed.value(**sizes, s=s, packed=share) == sum(whole.value(**sizes, s=n) for n in lengths)
    assert packed.value(**sizes, s=s) == whole.value(**sizes, s=s)


def counted_alone(seed: int) -> tuple[str, dict[str, object]]:
    """A strategy file whose loss is divided by each rank's own count, and what else its table says."""
    draw = Random(seed)
    per = draw.choice(("sequence", "document", "token"))
    kept: dict[str, object] = {"per": per} if per != "token" or draw.random() < 0.5 else {}
    kept |= {"scale": "dynamic"} if draw.random() < 0.4 else {}
    kept |= {"reference": "token_mean"} if draw.random() < 0.3 else {}
    loss = {"preset": "token_mean", "count_axes": ["microbatch"], **kept}
    tokens = "[tokens]\nweights = true\ndocuments = true\n" if per == "document" or draw.random() < 0.5 else ""
    said = "".join(f"{key} = {json.dumps(value)}\n" for key, value in loss.items())
    tokens = '[optimizer]\nskip = "overflow"\n' * ("scale" in kept) + tokens
    return f'base = "{draw.choice(("dp", "zero1", "zero3"))}"\nmodel = "gpt"\n{tokens}[loss]\n{said}', kept


@pytest.mark.parametrize("seed", [14, *(pytest.param(s, marks=pytest.mark.slow) for s in range(12))])
def test_a_repair_divides_the_same_loss_by_all_that_it_sums(seed: int, tmp_path: Path) -> None:
    """What a repair says of [loss] is, but for divisors, what the file said, and is the program that was proved."""
    text, kept = counted_alone(seed)
    path = tmp_path / "own.toml"
    path.write_text(text, encoding="utf-8")
    case = read_case(str(path), None, [])
    told = judge(case.step, case.lead, file=case.edited, token_mean=case.token_mean)[0].counterexample
    assert told is not None
    assert told.repair is not None
    assert (told.obligation, told.counted) == ("normalizer", kept.get("per", "token"))
    assert told.unit.startswith(f"a {told.counted} on dp = ")
    said = tomllib.loads(told.repair.edit)["loss"]
    assert said == {"preset": "token_mean", **kept}
    path.write_text(f"{told.repair.edit}\n{text.partition('[loss]')[0]}", encoding="utf-8")
    mended = case.token_mean()
    assert mended is not None
    assert read_case(str(path), None, []).step.events == mended.step.events


@pytest.mark.parametrize(("per", "says"), [
    ("token", "every rank of the data axes holds equally many valid tokens in every microbatch"),
    ("sequence", "every rank of the data axes holds equally many sequences with a valid token in every microbatch"),
    ("document", "every rank of the data axes holds equally many documents with a valid token in every microbatch")])
def test_equal_counts_are_of_what_the_loss_sums(per: str, says: str) -> None:
    step = derived(f'base = "dp"\n[tokens]\ndocuments = true\n[loss]\nper = "{per}"\n')
    (held,) = [h for h in hypotheses(step) if h.name == "equal_counts"]
    assert assumption(held, SAYS) == f"equal_counts over {{dp, microbatch}}: {says}"


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in range(1, 8))])
def test_attention_that_is_written_out_makes_a_mask_of_documents(seed: int) -> None:
    """A number for each query and each key of a sequence, of 1 byte, of the queries that a rank has; fused none."""
    draw = Random(seed)
    base, parts = draw.choice((("dp", 1), ("cp", "cp"), ("cp_ring", "cp"), ("tp_sp", 1), ("zero3*cp", "cp")))
    again = draw.random() < 0.5
    text = f'base = "{base}{"*recompute_selective" * again}"\n'
    masks = []
    for model in ("gpt", "flash"):
        walk = walked(derived(f"{text}{DOCUMENTS}", model))
        made = {(t.event.path, s) for t in walk.tensors.walk() for s in t.during if s.version[0].endswith(".seen")}
        masks.append([(path, local(s.tensor, s.box, walk.tensors.split_batch), s.tensor.element) for path, s in made])
    written, fused = masks
    assert not fused
    assert {path.partition(".")[0] for path, _, _ in written} == ({"forward", "backward"} if again else {"forward"})
    assert {(str(n), element) for _, n, element in written} == {("b*s**2/cp" if parts == "cp" else "b*s**2", "mask")}


@pytest.mark.parametrize(("base", "axes"), [
    ("cp", ()), *(pytest.param(base, axes, marks=pytest.mark.slow) for base, axes in (
        ("cp_ring", ()), ("cp_ulysses", ()), ("dp*cp", ("dp",)), ("zero3*cp", ("dp",)), ("dp*cp*tp_sp", ("dp",)),
        ("zero1*cp_ring", ("dp",)), ("zero3*cp_ulysses", ("dp",))))])
@pytest.mark.parametrize("tokens", ["", pytest.param(WEIGHTS, marks=pytest.mark.slow)])
def test_a_count_of_each_rank_of_a_sequence_is_refuted(base: str, axes: tuple[str, ...], tokens: str) -> None:
    """As in Megatron-LM 7513: of ranks with 1 and 3 tokens a token of either weighs half of what its rank has."""
    axes = (*axes, "microbatch")
    step = derived(f'base = "{base}"\n{tokens}[loss]\npreset = "token_mean"\ncount_axes = {json.dumps(axes)}\n')
    told = judge(step)[0].counterexample
    assert told is not None
    assert (told.obligation, told.got, told.want) == ("normalizer", "1/(cp*tokens[cp])", "1/tokens_total")
    assert {1, 3} <= {count for _, count in told.tokens}
    assert dict(told.sizes)["cp"] == 2


@pytest.mark.parametrize("run", RUNS)
def test_each_way_to_run_the_loss_keeps_its_own_beside_what_means_keep(run: str) -> None:
    """By hand at b = 3, s = 5, act = 2, docs = 4: weights; an inverse for each row, or document, and 4 bytes an id."""
    values = {"b": 3, "s": 5, "h": 7, "V": 11, "L": 1, "a": 1, "act": 2, "docs": 4}

    def kept(text: str) -> float:
        step = pa.derive(parse_strategy_file(f'base = "dp"\n{text}').strategy, with_loss(gpt(), run))
        return float(pa.costs(step).memory.activations.value(**values))

    said = "[tokens]\nweights = true\ndocuments = true\n" + MEAN
    plain = kept("")
    assert [kept(said.format(per)) - plain for per in ("sequence", "document")] == [
        2 * 3 * 5 + 2 * 3, 2 * 3 * 5 + 2 * 3 * 4 + 4 * 3 * 5]
