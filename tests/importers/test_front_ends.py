"""Front ends that make Megatron-LM's arguments of tables, and adapters beside its joint products."""

from __future__ import annotations

from pathlib import Path

import pytest

from placealg.errors import InputError
from placealg.importers.read import read, read_words
from placealg.importers.reading import Options, Reading

MINIATURES = Path(__file__).parent / "miniatures"
TRAIN = (MINIATURES / "flagscale" / "train" / "small.yaml").read_text(encoding="utf-8")
PRIMUS = (MINIATURES / "primus" / "experiment.yaml").read_text(encoding="utf-8")
BRIDGE = (MINIATURES / "bridge" / "run_config.yaml").read_text(encoding="utf-8")
SWIFT = "megatron sft --model Qwen/Qwen3-8B --train_type lora --tensor_model_parallel_size 2"


def of(tmp_path: Path, text: str, **said: object) -> Reading:
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return read(path, **said)


def test_primus_takes_what_a_file_extends_and_says_where(tmp_path: Path) -> None:
    found = read(MINIATURES / "primus" / "experiment.yaml", env={"PRIMUS_TP": "4"})
    assert {a.name: a.size for a in found.strategy.mesh} == {"dp": None, "tp": 4, "ep": 4}
    places = {item.key: Path(item.file).name for item in found.read}
    assert (places["bf16"], places["clip-grad"], places["num-layers"]) == ("module.yaml", "base.yaml", "model.yaml")
    assert places["tensor-model-parallel-size"] == "experiment.yaml"


def test_a_module_that_extends_itself(tmp_path: Path) -> None:
    (tmp_path / "module.yaml").write_text("extends: [again.yaml]\n")
    (tmp_path / "again.yaml").write_text("extends:\n  - module.yaml\nbf16: true\n")
    (tmp_path / "model.yaml").write_text("num_layers: 4\n")
    assert str(of(tmp_path, PRIMUS).strategy.option("types", "w")) == "2"
    (tmp_path / "again.yaml").write_text("extends:\n  - gone.yaml\n")
    with pytest.raises(InputError, match=r"again\.yaml:1: extends gone\.yaml, which is not here"):
        of(tmp_path, PRIMUS)


def test_a_multiple_rounds_the_size_of_mlps(tmp_path: Path) -> None:
    model = of(tmp_path, TRAIN).model
    assert isinstance(model, dict) and model["intermediate_size"] == 5632


def test_what_a_run_prints_is_named_as_its_flags(tmp_path: Path) -> None:
    dotted = "\n".join(f"  {name} ............ {value}" for name, value in {
        "num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "ffn_hidden_size": 192, "swiglu": True,
        "add_bias_linear": False, "normalization": "RMSNorm", "position_embedding_type": "rope", "bf16": True,
        "tensor_model_parallel_size": 1, "padded_vocab_size": 128, "untie_embeddings_and_output_weights": True,
        "fp8": "hybrid", "add_position_embedding": True}.items())
    found = of(tmp_path, dotted)
    assert isinstance(found.model, dict) and found.model["model_type"] == "llama"
    assert any(item.key == "fp8-format" for item in found.approximated)


@pytest.mark.parametrize(("text", "message"), [
    (TRAIN.replace("  sequence_parallel: true", "  schedules_method: dualpipev"), ":4: dualpipev: another schedule"),
    (TRAIN.replace("  sequence_parallel: true", "  enable_hetero: true"), ":4: enable-hetero: stages or a schedule"),
    (TRAIN.replace("tensor_model_parallel_size: 2", "tensor_model_parallel_size: ${TP}"), "TP, which nothing sets"),
    (TRAIN.replace("tensor_model_parallel_size", "tensor_model_paralel_size"), "did you mean"),
    ("experiment:\n  task:\n    type: serve\n  runner: {}\n", ":3: a FlagScale experiment of the task serve"),
    ("experiment:\n  task:\n    type: train\n", "names no train file"),
    ("defaults:\n  - train: gone\nexperiment:\n  task: {type: train}\n", "train/gone.yaml decides, which is not here"),
    ("experiment:\n  task: 3\n  runner: {}\n", ":2: experiment.task is 3: expected a table"),
    ("experiment: {runner: {}}\ndefaults: 3\n", "names no train file"),
    ("modules:\n  a: {framework: megatron, overrides: 5}\n", ":2: a Primus module without config"),
    ("_target_: x.config.ConfigContainer\nmodel: 3\n", ":2: model is 3: expected a table"),
    ("_target_: x.config.ConfigContainer\nmodel: {}\n", "without the table train"),
    (PRIMUS, ":6: a Primus module: config module.yaml decides what it leaves open"),
    (PRIMUS.replace("megatron", "torchtitan"), ":5: a Primus module of torchtitan: those of megatron are read"),
    (BRIDGE.replace("peft: null", "peft:\n  dim: 8"), "adapters of Megatron-Bridge"),
    (BRIDGE.replace("Llama3ModelProvider8B", "FluxProvider"), "is a diffusion transformer"),
])
def test_what_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        of(tmp_path, text)


def test_overrides_are_a_table(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("bf16: true\n")
    with pytest.raises(InputError, match=r":2: modules\.a\.overrides is 5: expected a table"):
        of(tmp_path, "modules:\n  a: {framework: megatron, config: c.yaml, overrides: 5}\n")


def test_a_command_inside_a_script_is_one_word(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/bash\nTP=$(touch made; echo 2)\ntorchrun pretrain_gpt.py --num-layers 4 "
                      "--hidden-size 64 --tensor-model-parallel-size $TP\n")
    with pytest.raises(InputError, match=r"run\.sh:3: .*is \$\(touch.made;.echo.2\), which nothing sets; put its"):
        read(script)
    assert not (tmp_path / "made").exists()


def test_autocast_keeps_weights_in_32_bits(tmp_path: Path) -> None:
    nemo = (MINIATURES / "nemo" / "gpt.yaml").read_text(encoding="utf-8")
    for o2, wanted in (("true", "2 2 12 2"), ("false", "4 4 8 2")):
        types = of(tmp_path, nemo.replace("O2: true", f"O2: {o2}")).strategy.tables["types"]
        assert " ".join(str(types[name]) for name in ("w", "g", "o", "act")) == wanted


def test_adapters_of_swift() -> None:
    found = read_words(SWIFT.split(), Options())
    assert found.strategy.option("adapters", "rank") == 8
    assert found.strategy.option("adapters", "match")[:3] == ("attn.q", "attn.k", "attn.v")
    some = read_words([*SWIFT.split(), "--target_modules", "linear_proj"], Options())
    assert some.strategy.option("adapters", "match") == ("attn.out",)


@pytest.mark.parametrize(("words", "message"), [
    ("--target_modules linear_qvk", "names linear_qvk, which is no linear module of Qwen3-8B"),
    ("--modules_to_save embed_tokens", "modules-to-save embed_tokens beside adapters"),
    ("--lora_rank 0", "lora-rank is 0"),
])
def test_adapters_that_are_refused(words: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_words([*SWIFT.split(), *words.split()], Options())


def test_adapters_beside_experts() -> None:
    with pytest.raises(InputError, match="grouped products of experts"):
        read_words(SWIFT.replace("Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B").split(), Options())
