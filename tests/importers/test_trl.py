"""TRL's YAML: bytes, loss, adapters, the command that launches, and configurations of accelerate by their names."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from placealg.errors import InputError
from placealg.importers.detect import parsed
from placealg.importers.read import reading_of
from placealg.importers.reading import Options, Reading

HERE = Path(__file__).parent / "miniatures"
PLAIN = {"model_name_or_path": "meta-llama/Llama-3.1-8B", "dataset_name": "mine"}


def of(world: int | None = None, **keys: Any) -> Reading:
    """The reading of a file with some keys."""
    lines = [f"{key}: {json.dumps(value)}" for key, value in {**PLAIN, **keys}.items()]
    return reading_of("\n".join(lines) + "\n", "t.yaml", Options(world_size=world))


def told(reading: Reading, kind: str = "approximated") -> set[str]:
    """The keys in a list of a reading."""
    return {item.key for item in getattr(reading, kind)}


def bytes_of(reading: Reading) -> dict[str, int]:
    """[types] of a reading."""
    return {name: int(value) for name, value in reading.strategy.tables["types"].items()}


@pytest.mark.parametrize("seed", range(10))
def test_bytes_are_those_in_which_weights_load(seed: int) -> None:
    """Whatever of dtype, bf16 and fp16 stands; nothing of them (TRL's own example) is the first draw."""
    random = Random(seed)
    dtype = random.choice([None, "float32", "bfloat16", "float16", "auto"]) if seed else None
    bf16, fp16 = random.choice([(None, None), (None, True), (True, None), (False, False), (False, True)]) if seed else (
        None, None)
    said = {k: v for k, v in (("dtype", dtype), ("bf16", bf16), ("fp16", fp16)) if v is not None}
    types = bytes_of(of(**said))
    loaded = 4 if dtype in (None, "float32") else 2
    autocast = bool(fp16) or bf16 is not False
    assert (types["w"], types["g"], types["o"]) == (loaded, loaded, 2 * loaded), said
    assert types["act"] == (2 if autocast or loaded == 2 else 4), said
    skips = of(**said).strategy.option("optimizer", "skip") == "overflow"
    assert skips == (bool(fp16) and not bf16), said


@pytest.mark.parametrize(("keys", "loss"), [({}, "chunked"), ({"loss_type": "chunked_nll"}, "chunked"),
                                            ({"loss_type": "nll"}, None), ({"use_liger_kernel": True}, "chunked"),
                                            ({"loss_type": "nll", "use_liger_kernel": False}, None)])
def test_the_loss_is_chunked_unless_the_file_says_otherwise(keys: dict[str, Any], loss: str | None) -> None:
    assert of(**keys).runs.get("loss") == loss
    assert not told(of(**keys))


@pytest.mark.parametrize("seed", range(14))
def test_keys_of_other_commands_tell_another_loss(seed: int) -> None:
    """One drawn key of a command that is not sft, or a loss of none of its names, is approximated by name."""
    random = Random(seed)
    key, value = random.choice([("reward_funcs", ["accuracy_reward"]), ("num_generations", 8), ("beta", 0.1),
                                ("precompute_ref_log_probs", True), ("desirable_weight", 1.0), ("loss_type", "grpo"),
                                ("center_rewards_coefficient", 0.01), ("sync_ref_model", True),
                                ("loss_type", ["sigmoid", "bco_pair"]), ("max_completion_length", 256),
                                ("f_alpha_divergence_coef", 0.5), ("vespo_k_pos", 2.0), ("normalize_advantages", True),
                                ("cast_lm_head_to_fp32", True)])
    reading = of(**{key: value})
    assert key in told(reading) and "loss" not in reading.runs
    assert "command" not in told(reading, "unsaid") and "command" in told(of(), "unsaid")


@pytest.mark.parametrize("seed", range(6))
def test_answers_that_are_generated_have_no_length_of_rows(seed: int) -> None:
    """A prompt and its answer are a sequence; where one of them is not bounded, s stays open."""
    random = Random(seed)
    prompt, answer = random.randrange(1, 5000), random.randrange(1, 5000)
    mark = random.choice([{"reward_funcs": ["accuracy_reward"]}, {"num_generations": 8}, {"scale_rewards": "group"}])
    assert of(**mark, max_prompt_length=prompt, max_completion_length=answer).sizes["s"] == prompt + answer
    for keys in ({}, {"max_length": 77}, {"max_prompt_length": prompt}, {"max_completion_length": answer}):
        assert "s" not in of(**mark, **keys).sizes
    assert of(max_length=answer).sizes["s"] == answer


def test_adapters_have_defaults() -> None:
    """Rank 16 beside queries and values, and a dropout that no key says; quantised bases have adapters of 16 bits."""
    reading = of(use_peft=True)
    assert reading.strategy.tables["adapters"] == {"match": ("attn.q", "attn.v"), "rank": 16}
    assert told(reading) == {"lora_dropout"} and not told(of(use_peft=True, lora_dropout=0.0))
    assert bytes_of(reading)["g"] == 4
    assert bytes_of(of(use_peft=True, load_in_4bit=True, dtype="bfloat16"))["g"] == 2
    assert of(lora_r=4).strategy == of().strategy
    for keys in ({"load_in_8bit": True}, {"use_peft": True, "use_dora": True},
                 {"use_peft": True, "fsdp": "full_shard"}):
        with pytest.raises(InputError, match=next(key for key in reversed(keys) if key != "use_peft")):
            of(**keys)


@pytest.mark.parametrize("seed", range(7))
def test_configurations_of_accelerate_that_come_with_trl(seed: int) -> None:
    """Their names decide states and devices; another file is refused, and devices that contradict each other are."""
    name, factor, devices = [("multi_gpu", "dp", 8), ("single_gpu", "dp", 1), ("fsdp1", "zero3", 8),
                             ("fsdp2", "zero3", 8), ("zero1", "zero1", 8), ("zero2", "zero2", 8),
                             ("zero3", "zero3", 8)][seed]
    reading = of(accelerate_config=name)
    assert reading.expression.split("*")[0] == factor
    assert reading.strategy.mesh.axes == of(world=devices, accelerate_config=name).strategy.mesh.axes
    own = 2 ** Random(seed).randrange(1, 7)
    assert f"dp = {own}" in of(accelerate_config=name, num_processes=own).headline
    with pytest.raises(InputError, match=f"says {own} devices, --world-size {own + 1}"):
        of(world=own + 1, accelerate_config=name, num_processes=own)
    with pytest.raises(InputError, match="accelerate_config names"):
        of(accelerate_config=f"configs/{name}.yaml")


def test_the_length_is_open_where_nothing_is_cut_off() -> None:
    assert of().sizes["s"] == 1024 and of(max_length=None).sizes.get("s") is None
    assert "max_length" in told(of(max_length=None), "unsaid") and of(max_seq_length=64).sizes["s"] == 64


@pytest.mark.parametrize("path", [p for name in ("trl", "llamafactory", "axolotl", "accelerate")
                                  for p in sorted((HERE / name).glob("*.yaml"))], ids=lambda p: p.parent.name)
def test_files_of_trainers_are_told_apart(path: Path) -> None:
    found = parsed(path.read_text(encoding="utf-8"), str(path))[0]
    assert (found == "trl") == (path.parent.name == "trl"), found
