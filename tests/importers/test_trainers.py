"""Trainers that run HF's: which precision their keys make, which of their keys and plugins are known."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from placealg.errors import InputError
from placealg.importers.read import reading_of
from placealg.importers.reading import Options, Reading

AXOLOTL = "base_model: meta-llama/Llama-3.1-8B\ndatasets:\n  - path: mine\nmicro_batch_size: 1\n"
FACTORY = "model_name_or_path: meta-llama/Llama-3.1-8B\nstage: sft\nfinetuning_type: full\n"


def of(text: str, **keys: Any) -> Reading:
    """The reading of a text with keys more."""
    said = "".join(f"{key}: {str(value).lower() if isinstance(value, bool) else value}\n" for key, value in keys.items()
                   if value is not None)
    return reading_of(text + said, "run.yaml", Options(world_size=8))


def loaded(bf16: Any, fp16: Any, bfloat16: Any, float16: Any) -> tuple[int, bool]:
    """(bytes in which Axolotl loads, whether fp16 scales its loss) on a device that has bf16, step by step."""
    if bf16 is None or bf16 == "auto":
        bf16 = not fp16
    if bf16:
        fp16 = False
    half = bf16 or bfloat16 or fp16 or float16
    return (2 if half else 4), bool(fp16)


@pytest.mark.parametrize("seed", range(12))
def test_the_precision_of_axolotl_is_that_of_four_keys(seed: int) -> None:
    """Whatever of the four keys stands; float16 without autocast (openllama-3b/config.yml) is the first draw."""
    random = Random(seed)
    drawn = {"bf16": random.choice([None, True, False, "auto", "full"]),
             **{key: random.choice([None, True, False]) for key in ("fp16", "bfloat16", "float16")}}
    if seed == 0:
        drawn = {"bf16": False, "fp16": False, "bfloat16": None, "float16": True}
    if drawn["fp16"] and drawn["bfloat16"]:
        drawn["bfloat16"] = None
    reading = of(AXOLOTL, **drawn)
    types = reading.strategy.tables["types"]
    skips = reading.strategy.option("optimizer", "skip") == "overflow"
    assert (int(types["w"]), skips) == loaded(*drawn.values()), drawn


def test_weights_of_float16_under_fsdp_are_refused() -> None:
    with pytest.raises(InputError, match="without autocast under"):
        of(f"{AXOLOTL}fsdp_config:\n  offload_params: false\n", bf16=False, float16=True)


@pytest.mark.parametrize("seed", range(6))
def test_a_mistyped_key_of_fsdp_is_named(seed: int) -> None:
    """A letter that is missing anywhere in a key of fsdp_config is told, with the key that is meant."""
    random = Random(seed)
    key = random.choice(["offload_params", "reshard_after_forward", "activation_checkpointing", "sharding_strategy"])
    at = random.randrange(3, len(key) - 1)
    with pytest.raises(InputError, match=key) as raised:
        of(f"{AXOLOTL}fsdp_config:\n  {random.choice(['', 'fsdp_'])}{key[:at]}{key[at + 1:]}: true\n")
    assert "run.yaml:6" in str(raised.value)


@pytest.mark.parametrize("engine", ["", "fsdp: full_shard\n"])
@pytest.mark.parametrize("keys", [{}, {"bf16": True}, {"fp16": True}, {"bf16": False, "fp16": False}])
def test_without_autocast_everything_has_4_bytes(engine: str, keys: dict[str, bool]) -> None:
    types = of(FACTORY + engine, **keys).strategy.tables["types"]
    assert int(types["act"]) == (2 if any(keys.values()) else 4)
    assert int(types["w"]) == 4 and int(types["wire"]) == (2 if engine and any(keys.values()) else 4)


@pytest.mark.parametrize("seed", range(4))
def test_plugins_are_known_or_told(seed: int) -> None:
    random = Random(seed)
    name = "".join(random.choices("abcdefgh", k=6))
    listed = ["axolotl.integrations.liger.LigerPlugin", f"axolotl.integrations.{name}.Plugin"]
    random.shuffle(listed)
    told = [i.text for i in of(AXOLOTL, plugins=listed).approximated if i.key == "plugins"]
    assert len(told) == 1 and name in told[0] and "liger" not in told[0]
    with pytest.raises(InputError, match="only some parameters"):
        of(AXOLOTL, plugins=["axolotl.integrations.spectrum.SpectrumPlugin"])


def test_modules_that_run_otherwise_are_told() -> None:
    adapters = f"{AXOLOTL}adapter: lora\nlora_target_linear: true\n"
    for key in ("tiled_mlp", "llama4_linearized_experts"):
        assert key in {i.key for i in of(adapters, **{key: True}).approximated}
        assert key in {i.key for i in of(adapters, **{key: False}).ignored}


@pytest.mark.parametrize("seed", range(4))
def test_checkpoints_in_fewer_bits_are_told_by_their_names(seed: int) -> None:
    """By whichever word of the name, before or behind others; names without such a word say nothing of bits."""
    random = Random(seed)
    word = random.choice(["AWQ", "GPTQ", "AQLM-2Bit-1x16", "bnb-4bit", "NVFP4", "mxfp4", "Int8", "HQQ"])
    name = f"mine/Llama-{random.randrange(2, 90)}B-{random.choice(['', 'Instruct-'])}{word}"
    for text, key in ((AXOLOTL, "base_model"), (FACTORY, "model_name_or_path")):
        lines = "".join(f"{key}: {name}\n" if line.startswith(key) else f"{line}\n" for line in text.splitlines())
        assert f"weights of {key}" in {i.key for i in of(lines).approximated}, name
        assert f"weights of {key}" not in {i.key for i in of(text).approximated}


@pytest.mark.parametrize("key", ["do_predict", "do_eval"])
def test_a_file_that_trains_nothing_is_refused(key: str) -> None:
    with pytest.raises(InputError, match=f"{key} without do_train"):
        of(FACTORY, **{key: True})
    assert of(FACTORY, **{key: True, "do_train": True}).expression == of(FACTORY).expression


def test_the_head_of_a_tied_model_that_trains_whole_is_refused_by_name() -> None:
    lora = FACTORY.replace("full", "lora").replace("Llama-3.1-8B", "Llama-3.2-1B")
    with pytest.raises(InputError, match=r"head of Llama-3\.2-1B is its embedding"):
        of(lora, additional_target="embed_tokens,lm_head")


def test_the_engine_of_fp8_that_comes_with_llamafactory() -> None:
    reading = of(FACTORY, deepspeed="examples/deepspeed/ds_z3_fp8_config.json", bf16=True)
    assert reading.expression.startswith("zero3*offload_optimizer")
