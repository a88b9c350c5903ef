"""Configurations that say types: element sizes by name, so that `precision` and `tolerance` need no word more."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Outcome

import placealg as pa
from placealg.importers.read import read
from placealg.number_formats import told
from placealg.prover.verdict import PROVED, REFUTED
from placealg.step.sums import names_types

Run = Callable[..., Outcome]
DEEPSPEED: dict[str, Any] = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1,
                             "gradient_accumulation_steps": 4}
MEGATRON = ("torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 "
            "--seq-length 64 --max-position-embeddings 64 --micro-batch-size 1 --global-batch-size 64 ")
TITAN = "[model]\nname = \"llama3\"\nflavor = \"8B\"\n[training]\nlocal_batch_size = 1\nseq_len = 64\n"


def named(folder: Path, file: str, text: str) -> dict[str, str]:
    path = folder / file
    path.write_text(text, encoding="utf-8")
    return {k: told(v) for k, v in read(path).strategy.tables.get("types", {}).items()}


@pytest.mark.parametrize(("said", "types"), [
    ({"bf16": {"enabled": True}}, {"w": "bf16", "g": "bf16", "wire": "bf16", "o": "12", "act": "bf16"}),
    ({"fp16": {"enabled": True}}, {"w": "fp16", "g": "fp16", "wire": "fp16", "o": "12", "act": "fp16"}),
    ({"bf16": {"enabled": True}, "communication_data_type": "fp16"},
     {"w": "bf16", "g": "bf16", "wire": "fp16", "o": "12", "act": "bf16"}),
    ({"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp32"},
     {"w": "bf16", "g": "fp32", "wire": "fp32", "o": "12", "act": "bf16"}),
    ({"fp16": {"enabled": False}, "bf16": {"enabled": False}},
     {"w": "fp32", "g": "fp32", "wire": "fp32", "o": "12", "act": "fp32"}),
    ({}, {"w": "4", "g": "4", "wire": "4", "o": "12", "act": "4"}),  # a trainer may add the section
])
def test_deepspeed(said: dict[str, Any], types: dict[str, str], tmp_path: Path) -> None:
    assert named(tmp_path, "ds.json", json.dumps({**DEEPSPEED, **said})) == types


@pytest.mark.parametrize(("flags", "g", "wire"), [
    ("--bf16", "fp32", "fp32"), ("--bf16 --grad-reduce-in-bf16", "bf16", "bf16"), ("--fp16", "fp16", "fp16"),
    ("--fp16 --accumulate-allreduce-grads-in-fp32", "fp32", "fp32"), ("", "fp32", "fp32")])
def test_megatron(flags: str, g: str, wire: str, tmp_path: Path) -> None:
    types = named(tmp_path, "run.sh", f"{MEGATRON}{flags}\n")
    assert (types["g"], types["wire"]) == (g, wire) and types["w"] == (
        "bf16" if "bf16" in flags else "fp16" if "fp16" in flags else "fp32")


@pytest.mark.parametrize(("reduce", "param"), [("float32", "bfloat16"), ("float32", "float32")])
def test_torchtitan(reduce: str, param: str, tmp_path: Path) -> None:
    types = named(tmp_path, "run.toml", f"{TITAN}mixed_precision_param = \"{param}\"\n"
                                        f"mixed_precision_reduce = \"{reduce}\"\n")
    short = {"float32": "fp32", "bfloat16": "bf16"}
    assert (types["w"], types["g"], types["wire"], types["wire_w"], types["use"]) == (
        "fp32", "fp32", short[reduce], short[param], short[param])


@pytest.mark.parametrize(("precision", "version"), [("bf16", 2), ("fp16", 2), ("bf16", 1)])
def test_accelerate(precision: str, version: int, tmp_path: Path) -> None:
    """Under no_sync gradients add up as they are made, in the type of what is gathered."""
    text = f"distributed_type: FSDP\nmixed_precision: {precision}\nfsdp_config:\n  fsdp_version: {version}\n"
    found = named(tmp_path, "accelerate.yaml", text)
    assert (found["w"], {found[k] for k in ("g", "wire", "wire_w")}) == ("fp32", {precision})


TRL = "model_name_or_path: m\ndataset_name: d\ngradient_accumulation_steps: 4\nbf16: false\n"


@pytest.mark.parametrize(("says", "w", "act"), [
    ("dtype: float16\n", "fp16", "fp16"), ("dtype: bfloat16\n", "bf16", "bf16"), ("dtype: auto\n", "2", "2"),
    ("dtype: bfloat16\nfp16: true\n", "bf16", "fp16"), ("dtype: float32\nfp16: true\n", "fp32", "fp16"),
    ("dtype: float32\n", "fp32", "fp32")])
def test_weights_have_the_type_in_which_they_load(says: str, w: str, act: str, tmp_path: Path) -> None:
    """Autocast has its own; of a checkpoint's type, which no file says, bytes alone are known."""
    types = named(tmp_path, "trl.yaml", TRL + says)
    assert ({types[k] for k in ("w", "g", "wire")}, types["act"]) == ({w}, act)


def test_what_is_asked_of_a_configuration_is_decided(tmp_path: Path, placealg: Run) -> None:
    """The default of DeepSpeed in bf16 sums in bf16; with two keys it does not."""
    low, whole = tmp_path / "low.json", tmp_path / "whole.json"
    low.write_text(json.dumps({**DEEPSPEED, "bf16": {"enabled": True}}), encoding="utf-8")
    whole.write_text(json.dumps({**DEEPSPEED, "bf16": {"enabled": True}, "communication_data_type": "fp32",
                                 "data_types": {"grad_accum_dtype": "fp32"}}), encoding="utf-8")
    steps = [pa.derive(str(path)) for path in (low, whole)]
    assert all(names_types(step) for step in steps)
    assert [pa.prove(step, sums="fp32").verdict for step in steps] == [REFUTED, PROVED]
    assert pa.prove(steps[0]).verdict == PROVED, "nothing but bf16 was asked"
    assert placealg("tolerance", str(low), "--set", "dp=8", "m=4").code == 0
