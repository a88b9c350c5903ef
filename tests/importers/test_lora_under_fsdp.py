"""Adapters under FSDP: files of two trainers, drawn at random, are read with their bytes and proved, or refused by key.

By hand, for Llama-3-8B (h = 4096, 8 of 32 heads of keys and values: 1024, L = 32) with rank 16 on attention, FSDP2 over
8 ranks, one microbatch: an adapter beside a product of i inputs and o outputs has 16 (i + o) elements, of a layer
16 (8192 + 5120 + 5120 + 8192) = 425984, of all 13631488. On a rank rest 1/8 of the base's 8030261248 elements in 2
bytes, 2007565312, and of the adapters' in 4, 6815744; of gradients (fp32) 4/8, 6815744; of two moments 8/8, 13631488.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
import yaml

import placealg as pa
from placealg.errors import InputError
from placealg.importers.read import read
from placealg.importers.reading import Reading
from placealg.models.config import resolve_model

H, KV, F, L, VOCAB = 4096, 1024, 14336, 32, 128256
LINEAR = {"q_proj": (H, H), "k_proj": (H, KV), "v_proj": (H, KV), "o_proj": (H, H), "gate_proj": (H, F),
          "up_proj": (H, F), "down_proj": (F, H)}
"""Module of a layer of Llama-3-8B -> (inputs, outputs)."""

WORLD = 8


@dataclass(frozen=True)
class Drawn:
    """One file, as what it means."""

    axolotl: bool = True
    version: int = 2
    strategy: str = "FULL_SHARD"
    bits: int = 0
    rank: int = 16
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    whole: bool = False
    steps: int = 1
    precision: str = "bf16"
    orig_params: bool | None = None
    checkpointing: bool = False

    @property
    def text(self) -> str:
        reshard = {"reshard_after_forward": self.strategy == "FULL_SHARD"} if self.version == 2 else {
            "fsdp_sharding_strategy": self.strategy}
        config = {**reshard, **({} if self.orig_params is None else {"use_orig_params": self.orig_params})}
        shared = {"bf16": self.precision == "bf16", "fp16": self.precision == "fp16", "lora_dropout": 0,
                  "gradient_accumulation_steps": self.steps}
        if self.axolotl:
            return yaml.safe_dump({
                "base_model": "meta-llama/Llama-3.1-8B", "adapter": "qlora" if self.bits == 4 else "lora",
                "load_in_4bit": self.bits == 4, "load_in_8bit": self.bits == 8, "lora_r": self.rank,
                "lora_target_modules": list(self.targets), "datasets": [{"path": "mine"}], "micro_batch_size": 1,
                "gradient_checkpointing": self.checkpointing, "fsdp_version": self.version, "fsdp_config": config,
                **({"lora_modules_to_save": ["embed_tokens"]} if self.whole else {}), **shared})
        return yaml.safe_dump({
            "model_name_or_path": "meta-llama/Llama-3.1-8B", "stage": "sft", "finetuning_type": "lora",
            "lora_rank": self.rank, "lora_target": ",".join(self.targets),
            "disable_gradient_checkpointing": not self.checkpointing, "per_device_train_batch_size": 1,
            "fsdp": f"{'full_shard' if self.version == 2 else self.strategy.lower()} auto_wrap",
            "fsdp_config": {"version": self.version, **config},
            **({"quantization_bit": self.bits} if self.bits else {}),
            **({"additional_target": "embed_tokens"} if self.whole else {}), **shared})

    @property
    def refused(self) -> str:
        """The key of which the refusal speaks; "" where the file is read."""
        if self.bits == 8 and not self.axolotl:
            return "quantization_bit"
        return "load_in_8bit" if self.bits == 8 and self.version == 1 else ""

    @property
    def adapters(self) -> int:
        return L * self.rank * sum(sum(LINEAR[name]) for name in self.targets)

    def held(self) -> tuple[float, float, float]:
        """Bytes on one of 8 ranks of parameters, gradients and moments, in 16-bit precision."""
        linear = L * sum(i * o for i, o in LINEAR.values())
        rest = 2 * VOCAB * H + (2 * L + 1) * H
        frozen = linear * (self.bits / 8 if self.bits else 2) + 2 * rest
        table = VOCAB * H if self.whole else 0
        narrow = self.axolotl and self.version == 2
        parameters = frozen + 4 * self.adapters + (0 if narrow else 2) * table
        shares = 1 if self.strategy == "NO_SHARD" else WORLD
        each = 4 if self.steps == 1 else 2
        gradients = each * self.adapters + (2 if narrow else each) * table
        moments = 8 * self.adapters + (4 if narrow else 8) * table
        return parameters / shares, gradients / (shares if self.steps == 1 else 1), moments / shares

    def sent(self) -> tuple[float, float]:
        """Bytes that a rank sends in 16-bit precision: to gather what a forward uses, and to reduce what trains."""
        table = VOCAB * H if self.whole else 0
        linear = L * sum(i * o for i, o in LINEAR.values()) * (self.bits / 8 if self.bits else 2)
        gathered = linear + 2 * (2 * VOCAB * H + (2 * L + 1) * H) + 2 * self.adapters
        ring = (WORLD - 1) / WORLD
        whole = self.strategy == "NO_SHARD"
        return (0 if whole else self.steps * ring * gathered), (1 + whole) * ring * 2 * (self.adapters + table)


QUOTED = Drawn()
EXAMPLES = Drawn(version=1, bits=4, rank=8, targets=tuple(LINEAR), steps=4, orig_params=False, checkpointing=True)


def drawn(seed: int) -> Drawn:
    luck = Random(seed)
    version = luck.choice((1, 2))
    return Drawn(
        luck.random() < 0.5, version,
        luck.choice(("FULL_SHARD", "SHARD_GRAD_OP", *(("NO_SHARD",) if version == 1 else ()))),
        luck.choice((0, 0, 4, 8)), luck.choice((1, 8, 64)),
        tuple(luck.sample(tuple(LINEAR), luck.randint(1, len(LINEAR)))), luck.random() < 0.3, luck.choice((1, 4)),
        luck.choice(("bf16", "bf16", "fp16", "")), luck.choice((None, True, False)), luck.random() < 0.5)


def reading(folder: Path, case: Drawn, more: str = "") -> Reading:
    path = folder / "run.yaml"
    path.write_text(case.text + more, encoding="utf-8")
    return read(str(path), world_size=WORLD)


def holds(folder: Path, case: Drawn) -> Reading | None:
    if case.refused:
        with pytest.raises(InputError, match=rf"run\.yaml:\d+: {case.refused}"):
            reading(folder, case)
        return None
    found = reading(folder, case)
    assert found.strategy.option("adapters", "rank") == case.rank
    assert len(found.strategy.option("adapters", "match")) == len(case.targets)
    memory = pa.memory(found.strategy, resolve_model(str(found.model)))
    sizes = {"b": 1, "s": 128}
    if case.precision:
        held = tuple(term.value(**sizes) for term in (memory.parameters, memory.gradients, memory.optimizer))
        assert held == case.held()
        sent = pa.communication(found.strategy, resolve_model(str(found.model)))
        forward = sent.by_phase["forward"].value(**sizes) if "forward" in sent.by_phase else 0
        reduced = sum(e.formula.value(**sizes) for e in sent.events if ".reduce[" in e.path and not e.left_out)
        assert (forward, reduced) == case.sent()
    keys = {item.key for part in (found.read, found.unsaid, found.approximated, found.ignored) for item in part}
    assert {f"fsdp_config.{name}" for name in yaml.safe_load(case.text)["fsdp_config"]} <= keys
    return found


@pytest.mark.parametrize("seed", [seed if seed < 1 else pytest.param(seed, marks=pytest.mark.slow)
                                  for seed in range(-2, 40)])
def test_files_are_read_with_their_bytes_or_refused_by_key(tmp_path: Path, seed: int) -> None:
    holds(tmp_path, {-1: QUOTED, -2: EXAMPLES}.get(seed) or drawn(seed))


def test_the_case_by_hand(tmp_path: Path) -> None:
    assert QUOTED.held() == (2007565312 + 6815744, 6815744, 13631488)
    memory = pa.memory(reading(tmp_path, QUOTED).strategy, resolve_model("llama-3-8b"))
    assert memory.optimizer.value() == 13631488


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(-2, 12))
def test_what_is_read_is_proved(tmp_path: Path, seed: int) -> None:
    if found := holds(tmp_path, {-1: QUOTED, -2: EXAMPLES}.get(seed) or drawn(seed)):
        assert str(pa.prove(found.strategy, resolve_model(str(found.model))).verdict) == "PROVED"


@pytest.mark.parametrize(("case", "more", "key"), [
    (QUOTED, "tensor_parallel_size: 2\n", "tensor_parallel_size 2 beside adapters"),
    (QUOTED, "fp8: true\nfp8_enable_fsdp_float8_all_gather: true\n", "fp8_enable_fsdp_float8_all_gather beside"),
    (QUOTED, "peft_autocast_adapter_dtype: false\n", "peft_autocast_adapter_dtype false"),
    (QUOTED, "fsdp: [hybrid_shard]\n", "fsdp hybrid_shard goes with FSDP1 alone"),
    (EXAMPLES, "bnb_config_kwargs:\n  bnb_4bit_quant_storage: uint8\n", "bnb_4bit_quant_storage uint8"),
    (Drawn(axolotl=False), "pure_bf16: true\n", "pure_bf16 beside adapters"),
])
def test_what_is_refused(tmp_path: Path, case: Drawn, more: str, key: str) -> None:
    with pytest.raises(InputError, match=rf"run\.yaml:\d+: {key}"):
        reading(tmp_path, case, more)
