"""What practitioners type: common words are explained, spellings found, the commonest bug repaired."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Outcome

from placealg.cli.common_words import COMMON, spelled
from placealg.cli.explanations import explanations
from placealg.errors import nearest

Run = Callable[..., Outcome]


def test_every_common_word_leads_somewhere() -> None:
    wanted = {name for meant in COMMON.values() for name in meant}
    assert wanted <= {e.name for e in explanations(lambda _: False)}
    assert [word for word in COMMON if word != spelled(word)] == ["ZeRO"]  # zero is a verb


def test_what_is_a_verb_in_lower_case_is_a_family_as_it_is_written(placealg: Run) -> None:
    assert "zero1  strategy" in placealg("explain", "ZeRO").out
    assert placealg("explain", "zero").out.startswith("zero  verb")


@pytest.mark.parametrize("word", [
    "FSDP2", "tensor-parallelism", "gradient_accumulation", "keys", "global batch", "LoRA", "unequal counts",
    "hierarchical", "micro-batch", "batch", "ZeRO-3", "OOM", "MFU", "GQA", "fp8", "flash attention",
    "num_items_in_batch", "gradient_accumulation_steps", "dp_shard_cp"])
def test_a_common_word_is_explained(word: str, placealg: Run) -> None:
    got = placealg("explain", word)
    assert (got.code, got.err) == (0, "")


@pytest.mark.parametrize(("name", "valid", "found"), [
    ("AdamW", ["adam", "adamw"], "adamw"), ("zero-3", ["zero1", "zero3"], "zero3"),
    ("TP_SP", ["tp", "tp_sp"], "tp_sp")])
def test_a_spelling_is_found_before_a_likeness(name: str, valid: list[str], found: str) -> None:
    assert nearest(name, valid) == found


def test_no_words_print_the_help(placealg: Run) -> None:
    got = placealg()
    assert (got.code, got.err) == (0, "")
    assert got.out == placealg("--help").out


def test_a_mean_of_local_means_under_unequal_counts_is_repaired_by_the_token_mean(tmp_path: Path,
                                                                                   placealg: Run) -> None:
    path = tmp_path / "means.toml"
    path.write_text('base = "dp"\n[loss]\nassume = []\n', encoding="utf-8")
    got = placealg("prove", str(path))
    assert got.code == 1
    text = " ".join(got.out.split())
    assert 'repair loss = { preset = "token_mean" } in the file in place of what [loss] says' in text
    assert "ratio 1 (the weights sum to the reference's; how they are spread is wrong)" in text
    path.write_text('base = "dp"\nloss = { preset = "token_mean" }\n', encoding="utf-8")
    assert placealg("prove", str(path)).code == 0


@pytest.mark.parametrize(("words", "says"), [
    (["cost", "torch.fsdp2*recompute_full"], "compose the base of a copy of proofs/torch/fsdp2.toml"),
    (["cost", "zero3*tp[dp=16,tp=4]"], "every name has brackets of its own: zero3[16]*tp[4]"),
    (["reshard", "zero3", "zero1", "--set", "old.dp=16"], "did you mean 'dp_old'"),
    (["reshard", "pp_interleaved", "pp", "--set", "v=2"], "pp has no chunks 'v'; did you mean 'v_old'"),
    (["reshard", "pp", "pp_interleaved", "--set", "v_old=2"], "pp has no chunks 'v'"),
    (["reshard", "zero3", "zero1", "--set", "dp_old=0"], "--set dp_old=0: dp_old = 0 is not a whole number"),
])
def test_what_is_meant_is_told(words: list[str], says: str, placealg: Run) -> None:
    got = placealg(*words)
    assert (got.code, got.out, got.err.count("\n")) == (2, "", 1)
    assert says in got.err


def test_a_file_does_not_stand_on_a_file_of_a_real_system(tmp_path: Path, placealg: Run) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "torch.fsdp2"\n', encoding="utf-8")
    got = placealg("prove", str(path))
    assert got.code == 2 and "start from a copy of proofs/torch/fsdp2.toml" in got.err


def test_a_summed_loss_can_be_asked_about(tmp_path: Path, placealg: Run) -> None:
    path = tmp_path / "sum.toml"
    path.write_text('base = "dp"\nloss = { preset = "sum" }\n', encoding="utf-8")
    assert placealg("prove", str(path)).code == 0
    averaged = 'base = "dp"\nloss = { preset = "sum" }\n[[edit]]\nset = "reduce.*.reduce[dp]"\nop = "mean"\n'
    path.write_text(averaged, encoding="utf-8")
    assert placealg("prove", str(path)).code == 1


def test_the_bytes_of_a_gathered_copy_can_be_set(placealg: Run) -> None:
    got = placealg("cost", "zero3", "--set", "wire_w=1", "dp=8")
    assert (got.code, got.err) == (0, "") and "wire_w = 1" in got.out


def test_a_model_type_is_mistaken_for_its_own_spelling_alone(tmp_path: Path, placealg: Run) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "qwen2x"}', encoding="utf-8")
    assert "did you mean 'qwen2'?" in placealg("model", str(path)).err


def test_a_precision_may_be_written_with_hyphens(placealg: Run) -> None:
    one, two = (placealg("cost", "zero3", "--precision", name) for name in ("fsdp2-bf16", "fsdp2_bf16"))
    assert one.code == 0 and one == two != placealg("cost", "zero3", "--precision", "fsdp2")
    wrong = placealg("cost", "zero3", "--precision", "fsdp-2-bf16")
    assert wrong.code == 2 and "did you mean 'fsdp2_bf16'?" in wrong.err


def test_a_common_word_that_is_no_strategy_is_told_where_it_is_explained(placealg: Run) -> None:
    got = placealg("prove", "zero3*lora", "--model", "llama-3-8b")
    assert got.code == 2 and got.err == ("placealg: strategy 'zero3*lora', column 7: unknown strategy 'lora'; "
                                         "'placealg explain lora' tells what it is here\n")
    assert placealg("explain", "lora").code == 0
    assert "; valid: dp, " in placealg("prove", "zero3*qqqqq").err, "no common word"


@pytest.mark.parametrize("model", [["--model", "gpt2"], ["--model=gpt2"], ["gpt2"]])
def test_a_search_takes_its_model_as_every_command_does(model: list[str], placealg: Run) -> None:
    once = placealg("search", *model, "--devices", "8")
    assert (once.code, once.err) == (2, "placealg: search: missing --batch\n")
    twice = placealg("search", *model, "gpt2", "--devices", "8", "--batch", "8")
    assert twice.err == "placealg: search: unexpected argument 'gpt2'\n"


@pytest.mark.parametrize(("words", "says"), [
    (("model", "gpt3"), "no file and no shipped model 'gpt3'; did you mean 'gpt3-175b'?"),
    (("model", "llama-3"), "no file and no shipped model 'llama-3'; valid: llama-3-70b, llama-3-8b, llama-3.1-405b"),
    (("prove", "ds_config.json"), "ds_config.json: no such file"), (("fit", "a.yaml"), "a.yaml: no such file")])
def test_a_beginning_and_a_file_that_is_not_there_are_told(words: tuple[str, ...], says: str, placealg: Run) -> None:
    more = ("--device-memory", "80GB") if words[0] == "fit" else ()
    found = placealg(*words, *more)
    assert (found.code, found.out, found.err) == (2, "", f"placealg: {says}\n")
