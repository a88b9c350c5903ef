"""Adapters of three trainers: which products have one, what else trains, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import placealg as pa
from placealg.cases.case import read_case
from placealg.errors import InputError
from placealg.importers.read import read
from placealg.importers.reading import Reading
from placealg.models.config import resolve_model
from placealg.step.trainable import trained

LLAMAFACTORY = "model_name_or_path: {model}\nstage: sft\nfinetuning_type: lora\nbf16: true\n"
AXOLOTL = "base_model: {model}\nadapter: lora\nmicro_batch_size: 1\nbf16: true\ndatasets:\n  - path: mine\n"


def reading(folder: Path, text: str, model: str = "meta-llama/Llama-3.1-8B", config: str = "") -> Reading:
    path = folder / "run.yaml"
    path.write_text(text.format(model=model), encoding="utf-8")
    if config:
        (folder / "config.json").write_text(config, encoding="utf-8")
    return read(str(path))


def of(found: Reading) -> tuple[str, ...]:
    return tuple(found.strategy.option("adapters", "match"))


def test_all_linear_modules_but_the_head(tmp_path: Path) -> None:
    found = reading(tmp_path, LLAMAFACTORY)
    assert of(found) == ("attn.q", "attn.k", "attn.v", "attn.out", "mlp.gate", "mlp.up", "mlp.down")
    model = trained(found.strategy, resolve_model(str(found.model)))
    h, kv, f, rank = 4096, 1024, 14336, 8
    ours = sum(p.elements.evaluate(model.sizes) for p in model.parameters if not model.graph.tensors[p.name].frozen)
    assert ours == rank * (2 * (h + h) + 2 * (h + kv) + 3 * (h + f))


def test_the_base_keeps_no_gradient_and_no_optimizer_state(tmp_path: Path) -> None:
    found = reading(tmp_path, LLAMAFACTORY + "quantization_bit: 4\n")
    memory = pa.memory(found.strategy, resolve_model(str(found.model)))
    sizes = {"dp": 8, "b": 1, "s": 128}
    adapters = 20_971_520
    assert memory.optimizer.value(**sizes) == 8 * adapters and memory.gradients.value(**sizes) == 4 * adapters
    ends = 2 * 128_256 * 4096 + 65 * 4096
    assert memory.parameters.value(**sizes) == (8_030_261_248 - ends) / 2 + 2 * ends + 4 * adapters


def test_an_expression_matches_whole_names(tmp_path: Path) -> None:
    text = LLAMAFACTORY + "lora_target: '.*(mlp|self_attn)[.](q|gate)_proj'\n"
    assert of(reading(tmp_path, text)) == ("attn.q", "mlp.gate")


def test_names_are_those_of_the_model_s_own_family(tmp_path: Path) -> None:
    config = '{"model_type": "gpt_neox"}'
    found = reading(tmp_path, AXOLOTL + "lora_target_modules: [query_key_value]\n", "mine", config)
    assert of(found) == ("attn.q", "attn.k", "attn.v")
    assert any("one product with one adapter there" in item.text for item in found.approximated)
    with pytest.raises(InputError, match=r"run\.yaml:7: lora_target_modules names no linear module of"):
        reading(tmp_path, AXOLOTL + "lora_target_modules: [q_proj]\n", "mine", config)


def test_experts_and_routers_are_no_linear_modules(tmp_path: Path) -> None:
    found = reading(tmp_path, AXOLOTL + "lora_target_linear: true\n", "mine", '{"model_type": "qwen3_moe"}')
    assert of(found) == ("attn.q", "attn.k", "attn.v", "attn.out")
    assert any(item.key == "experts" for item in found.read)


def test_a_model_that_is_not_read_leaves_the_file_s_own_names(tmp_path: Path) -> None:
    """Targets are as the file says them; --model makes them products of that model, and proofs want it."""
    text = AXOLOTL + "lora_target_modules: [gate_proj, W_pack]\n"
    found = reading(tmp_path, text, "mine")
    assert (found.model, of(found)) == (None, ("gate_proj", "W_pack"))
    with pytest.raises(InputError, match=r"run.yaml: mine: its config.json is not here; --model config.json gives"):
        read_case(str(tmp_path / "run.yaml"), None, ())
    case = read_case(str(tmp_path / "run.yaml"), "llama-3-8b", ())
    assert case.strategy.option("adapters", "match") == ("mlp.gate",)
    assert any("W_pack: no linear module of llama-3-8b" in text for text in case.model.left_out)


@pytest.mark.parametrize(("text", "message"), [
    (LLAMAFACTORY.replace("lora\n", "freeze\n"), "run.yaml:3: finetuning_type freeze: some layers of the base alone"),
    (LLAMAFACTORY.replace("lora\n", "lorra\n"), "run.yaml:3: finetuning_type is 'lorra'; did you mean 'lora'"),
    (LLAMAFACTORY + "use_dora: true\n", "run.yaml:5: use_dora: adapters also scale"),
    (LLAMAFACTORY + "quantization_bit: 3\n", "run.yaml:5: quantization_bit 3: 4 and 8 bits are read"),
    (LLAMAFACTORY + "lora_rank: 0\n", "run.yaml:5: lora_rank is 0"),
    (LLAMAFACTORY + "additional_target: embed\n", "run.yaml:5: additional_target embed: no module of llama-3-8b"),
    (AXOLOTL, "run.yaml:2: adapter lora: neither lora_target_modules nor lora_target_linear"),
    (AXOLOTL.replace("adapter: lora\n", "load_in_4bit: true\n"), "load_in_4bit: the base rests in fewer bits, and"),
    (AXOLOTL + "lora_target_linear: true\nrelora: true\n", "run.yaml:8: relora: adapters join the base"),
])
def test_what_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        reading(tmp_path, text)
