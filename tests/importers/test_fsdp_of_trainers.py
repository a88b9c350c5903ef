"""FSDP and DDP of the HF Trainer under three front ends: states, lifetimes and bytes, from what accelerate does."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest

from placealg.importers.key_log import _off
from placealg.importers.read import reading_of
from placealg.importers.reading import Options, Reading

PLAIN = {
    "trl": {"model_name_or_path": "meta-llama/Llama-3.1-8B", "dataset_name": "mine"},
    "llamafactory": {"model_name_or_path": "meta-llama/Llama-3.1-8B", "stage": "sft", "finetuning_type": "full"},
    "axolotl": {"base_model": "meta-llama/Llama-3.1-8B", "datasets": [{"path": "mine"}], "micro_batch_size": 1},
}

MEANT = {"full_shard": ("zero3", "dp", None), "shard_grad_op": ("fsdp_no_reshard", "dp", "microbatch"),
         "hybrid_shard": ("hsdp", "dp_shard", None), "hybrid_shard_zero2": ("hsdp", "dp_shard", "microbatch"),
         "no_shard": ("dp", "", None)}
"""Word of FSDP1 -> its factor, the axis that shards, and how long a gathered copy lives."""


def of(trainer: str, **keys: Any) -> Reading:
    lines = [f"{key}: {json.dumps(value)}" for key, value in {**PLAIN[trainer], **keys}.items()]
    return reading_of("\n".join(lines) + "\n", "t.yaml", Options(world_size=8))


def bytes_of(reading: Reading, *names: str) -> tuple[int, ...]:
    return tuple(int(reading.strategy.tables["types"][name]) for name in names)


@pytest.mark.parametrize(("trainer", "word", "steps"), [*product(("trl", "llamafactory"), MEANT, (1, 4))])
def test_words_of_fsdp(trainer: str, word: str, steps: int) -> None:
    """Under accumulation gradients rest whole over the axis that shards, a hybrid's too (no_sync)."""
    factor, axis, lives = MEANT[word]
    found = of(trainer, fsdp=f"{word} auto_wrap", gradient_accumulation_steps=steps, bf16=True)
    assert found.expression.split("*")[0] == factor
    if axis:
        mode = str(found.strategy.state("gradients").modes[axis])
        assert mode == ("R" if steps > 1 else "S")
        life = found.strategy.option("schedule", "lifetime").get(axis)
        assert life == lives, life


@pytest.mark.parametrize("version", [1, 2])
def test_versions_of_fsdp(version: int) -> None:
    """accelerate raises what trains to fp32 under both; axolotl prepares FSDP2 itself, and raises nothing."""
    config = {"fsdp_version": version, "reshard_after_forward": True} if version == 2 else {"fsdp_version": 1}
    named = of("trl", accelerate_config=f"fsdp{version}", gradient_accumulation_steps=4, bf16=True)
    own = of("trl", fsdp="full_shard", fsdp_config=config, gradient_accumulation_steps=4, bf16=True)
    assert named.strategy.tables == own.strategy.tables and named.expression == own.expression == "zero3*recompute_full"
    assert bytes_of(named, "w", "o") == (4, 8)
    assert any(f"FSDP{version}" in item.text for item in named.read)
    for word, steps in product(("bf16", "fp16"), (1, 4)):
        axolotl = of("axolotl", fsdp_config=config, gradient_accumulation_steps=steps, **{word: True})
        assert bytes_of(axolotl, "w", "g", "o") == ((2, 2, 4) if version == 2 else (4, 2 if steps > 1 else 4, 8))
    assert bytes_of(of("axolotl", fsdp_config=config, bf16=False, fp16=False), "w", "g", "o") == (4, 4, 8)


@pytest.mark.parametrize(("trainer", "keys", "bytes_"), [
    ("llamafactory", {"finetuning_type": "lora", "additional_target": "lm_head", "bf16": True}, (4, 4, 8)),
    ("axolotl", {"adapter": "lora", "lora_r": 8, "lora_target_linear": True, "lora_modules_to_save": ["lm_head"],
                 "bf16": True}, (2, 2, 4)),
    ("trl", {"use_peft": True, "lora_modules_to_save": ["lm_head"], "dtype": "bfloat16"}, (2, 2, 4)),
    ("trl", {"use_peft": True, "lora_modules_to_save": ["lm_head"], "dtype": "float32"}, (4, 4, 8)),
])
def test_modules_that_train_whole_under_ddp(trainer: str, keys: dict[str, Any], bytes_: tuple[int, ...]) -> None:
    """PEFT casts adapters alone to fp32: a module that trains whole has the base's type, if nothing raises it."""
    found = of(trainer, **keys)
    groups = {rule.match: rule.types for rule in found.strategy.groups}
    types = {**found.strategy.tables["types"], **groups.get("head.weight", {})}
    assert tuple(int(types[name]) for name in ("w", "g", "o")) == bytes_


@pytest.mark.parametrize("word", [
    "0.0", "0.00", "no", "off", "None", "[]", "-0", "1", "1.0", 1, 0.0, False, None, [], {}])
def test_what_turns_nothing_on(word: Any) -> None:
    """The quoted "0.0" among them: a key of placement that no table knows is no reason to refuse where it is off."""
    assert _off(word)
    found = of("llamafactory", some_parallel_size=word)
    assert "some_parallel_size" in {item.key for item in found.ignored} or word in (None, [], {})


@pytest.mark.parametrize("word", [True, "true", 2, "2", "0.5", "gpu", [0], "10", "1.5"])
def test_what_turns_something_on(word: Any) -> None:
    assert not _off(word)
