"""LLaMA-Factory's YAML of version 1: its own trainer shards by FSDP2, and reduces in every microbatch."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from placealg.errors import InputError
from placealg.importers.read import reading_of
from placealg.importers.reading import Options, Reading

PLAIN: dict[str, Any] = {"model": "meta-llama/Llama-3.1-8B", "train_dataset": "mine.yaml"}


def of(world: int | None = 8, **keys: Any) -> Reading:
    lines = [f"{key}: {json.dumps(value)}" for key, value in {**PLAIN, **keys}.items()]
    return reading_of("\n".join(lines) + "\n", "t.yaml", Options(world_size=world))


QUOTED = {"model_class": "llm", "kernel_config": {"name": "auto"}, "dist_config": {"name": "fsdp2", "dcp_path": None},
          "micro_batch_size": 1, "cutoff_len": 2048, "learning_rate": 1e-4, "max_steps": 10, "sample_backend": "hf"}
"""The keys of its own example of full fine-tuning."""


def test_the_example_of_full_fine_tuning() -> None:
    found = of(**QUOTED)
    assert found.expression == "zero3*recompute_full" and found.sizes == {"b": 1, "s": 2048}
    types = {name: int(value) for name, value in found.strategy.tables["types"].items()}
    assert types == {"w": 2, "wire_w": 2, "use": 2, "wire": 4, "g": 2, "o": 4, "act": 2}
    assert found.model is not None and not found.approximated


@pytest.mark.parametrize("seed", range(30))
def test_draws(seed: int) -> None:
    """Degrees, batches, bytes and adapters, each by what the trainer's code makes of it."""
    rng = Random(seed)
    cp, replicas, each = rng.choice((1, 2)), rng.choice((1, 2)), rng.choice((1, 2, 4))
    world = cp * replicas * rng.choice((2, 4))
    steps, bf16, reshard = rng.choice((None, 1, 3)), rng.random() < 0.7, rng.random() < 0.7
    lora, offload, again = (rng.random() < 0.5 for _ in range(3))
    data = world // cp
    keys: dict[str, Any] = {
        "dist_config": {"name": "fsdp2", "reshard_after_forward": reshard, "offload_params": offload}, "cp_size": cp,
        "mp_replicate_size": replicas, "micro_batch_size": each, "bf16": bf16, "enable_activation_checkpointing": again}
    if steps:
        keys["global_batch_size"] = each * data * steps
    if lora:
        keys["peft_config"] = {"name": "lora", "r": 16, "lora_alpha": 32, "target_modules": "all",
                               "modules_to_save": ["lm_head"]}
    found = of(world, **keys)
    strategy = found.strategy
    factor = "hsdp" if replicas > 1 else "zero3" if reshard else "fsdp_no_reshard"
    words = found.expression.split("*")
    assert words[0] == factor and ("cp_ulysses" in words) is (cp > 1) and ("recompute_full" in words) is again
    assert ("offload_parameters" in words) is offload
    assert int(strategy.option("schedule", "microbatches")) == (steps or 1)
    axis = "dp_shard" if replicas > 1 else "dp"
    assert strategy.mesh[axis].size == data // replicas
    assert str(strategy.state("gradients").modes[axis]) == "S", "each microbatch reduces"
    types = {name: int(value) for name, value in strategy.tables["types"].items()}
    assert (types["w"], types["wire"]) == (2, 4) and types["wire_w"] == types["use"] == (2 if bf16 else 4)
    whole = {rule.match: rule.types for rule in strategy.groups}.get("head.weight", {})
    if lora:
        assert (types["g"], types["o"]) == (4, 8) and (int(whole["g"]), int(whole["o"])) == (2, 4)
        assert strategy.tables["adapters"]["rank"] == 16
    else:
        assert (types["g"], types["o"]) == (2, 4)


@pytest.mark.parametrize(("keys", "message"), [
    ({"peft_config": {"name": "freeze"}}, "peft_config freeze"), ({"model_class": "vlm"}, "model_class vlm"),
    ({"dist_config": {"name": "fsdpturbo", "ep_size": 4}}, "dist_config fsdpturbo"),
    ({"dist_config": {"name": "deepspeed", "config_file": "gone.json"}}, "names another file, gone.json"),
    ({"cp_size": 2}, "goes with dist_config.name fsdp2 alone"), ({"dist_config": "fsdp2"}, "dist_config has no name"),
    ({"quant_config": {"name": "bnb", "quantization_bit": 4}, "dist_config": {"name": "fsdp2"}}, "and trains"),
    ({"dist_config": {"name": "fsdp2"}, "global_batch_size": 9}, "global_batch_size 9 is not a multiple of 1 on 8"),
])
def test_what_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        of(**keys)
