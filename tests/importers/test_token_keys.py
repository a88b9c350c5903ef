"""What files of frameworks say of tokens reaches the strategy: weights, packed documents, positions."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

import placealg as pa
from placealg.importers.read import read, read_words
from placealg.importers.reading import Options, Reading
from placealg.importers.token_attributes import OWNERS
from placealg.models.transformer import gpt
from placealg.prover.examine import examine
from placealg.prover.verdict import PROVED, overall

MEGATRON = ["--num-layers", "4", "--hidden-size", "64", "--num-attention-heads", "4", "--seq-length", "128",
            "--context-parallel-size", "2", "--micro-batch-size", "1", "--position-embedding-type", "rope"]
BOTH = {"documents": True, "positions": "data"}
AXOLOTL = "base_model: meta-llama/Llama-3.1-8B\ndatasets:\n  - path: mine\nmicro_batch_size: 1\n"
TRL = "model_name_or_path: Qwen/Qwen3-8B\ndataset_name: mine\nmax_length: 128\nassistant_only_loss: true\n"
LLAMAFACTORY = "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\ndo_train: true\nfinetuning_type: full\ntemplate: qwen\n"
FILES = {
    ("axolotl", "sample_packing: true\n"): BOTH, ("axolotl", "sample_packing: false\n"): {}, ("axolotl", ""): {},
    ("trl", "packing: true\n"): BOTH, ("trl", "packing: true\npacking_strategy: wrapped\n"): {},
    ("trl", "padding_free: true\n"): BOTH, ("trl", "packing: false\n"): {},
    ("llamafactory", "packing: true\nneat_packing: true\n"): {"documents": True},
    ("llamafactory", "packing: true\n"): {},
}


NEMO = """trainer: {devices: 8, num_nodes: 1, precision: bf16}
model:
  mcore_gpt: true
  tensor_model_parallel_size: 2
  micro_batch_size: 1
  num_layers: 4
  hidden_size: 64
  num_attention_heads: 4
  encoder_seq_length: 128
  max_position_embeddings: 128
"""
TITAN = """[model]
name = "llama3"
flavor = "8B"
%s[training]
local_batch_size = 1
seq_len = 128
[parallelism]
context_parallel_degree = 2
"""
MAXTEXT = "model_name: llama3-8b\nper_device_batch_size: 1\nici_context_parallelism: 2\nici_fsdp_parallelism: 4\n"
LEVANTER = ("model: {type: llama, num_layers: 32}\ninitialize_from_hf: meta-llama/Meta-Llama-3-8B\n"
            "trainer: {train_batch_size: 8}\n")
DRAWN = {
    "nemo": [("reset_position_ids", {"positions": "data"}), ("reset_attention_mask", {"documents": True}),
             ("eod_mask_loss", {"weights": True})],
    "torchtitan": [("block_causal", {"documents": True})], "maxtext": [("packing", BOTH)],
    "levanter": [("block_cross_document_attention", {"documents": True})],
}
"""Format -> its keys, each with what it says where it is on."""


def written(form: str, on: dict[str, bool]) -> tuple[str, str]:
    """The name and the text of a file in which these keys are on or off."""
    values = {key: str(value).lower() for key, value in on.items()}
    if form == "torchtitan":
        masks = {"block_causal": True, "causal": False}
        word = next((w for w, is_on in masks.items() if on.get("block_causal") is is_on), "")
        return "run.toml", TITAN % (f'attn_mask_type = "{word}"\n' * bool(word))
    data = "data: {" + ", ".join(f"{k}: {v}" for k, v in values.items()) + "}\n"
    if form == "nemo":
        return "run.yaml", f"{NEMO}  {data}"
    return "run.yaml", LEVANTER + data if form == "levanter" else MAXTEXT + "".join(
        f"{k}: {v}\n" for k, v in values.items())


def said(reading: Reading) -> dict[str, object]:
    return dict(reading.strategy.tables.get("tokens", {}))


@pytest.mark.parametrize(("flags", "want"), [
    ([], {}), (["--reset-position-ids"], {"positions": "data"}), (["--reset-attention-mask"], {"documents": True}),
    (["--eod-mask-loss"], {"weights": True}),
    (["--eod-mask-loss", "--reset-attention-mask", "--reset-position-ids"], {"weights": True, **BOTH})])
def test_flags_of_megatron(flags: list[str], want: dict[str, object]) -> None:
    assert said(read_words([*MEGATRON, *flags], Options())) == want


@pytest.mark.parametrize(("form", "text"), FILES)
def test_keys_of_trainers(form: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text({"axolotl": AXOLOTL, "trl": TRL, "llamafactory": LLAMAFACTORY}[form] + text, encoding="utf-8")
    assert said(read(path)) == FILES[form, text]


def test_what_is_read_is_proved() -> None:
    flags = ["--eod-mask-loss", "--reset-attention-mask", "--reset-position-ids"]
    found = read_words([*MEGATRON, *flags], Options())
    assert overall(examine(pa.derive(found.strategy, gpt())).verdicts)[0] == PROVED


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(s, marks=pytest.mark.slow) for s in range(6, 40))])
def test_drawn_keys_reach_the_strategy(seed: int, tmp_path: Path) -> None:
    """Of any keys, on, off, or left to the framework's default, which is on for MaxText's alone."""
    draw = Random(seed)
    form = draw.choice(tuple(DRAWN))
    on = {key: draw.random() < 0.5 for key, _ in DRAWN[form] if draw.random() < 0.8}
    name, text = written(form, on)
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    want = {k: v for key, told in DRAWN[form] if on.get(key, form == "maxtext") for k, v in told.items()}
    assert said(read(path)) == want, text


@pytest.mark.parametrize(("form", "key", "value"), [
    ("torchtitan", "context_parallel_load_balancer", '"ptrr"'), ("torchtitan", "context_parallel_load_balancer",
                                                                 '"headtail"'),
    ("maxtext", "context_parallel_load_balance", "true"), ("maxtext", "context_parallel_load_balance", "false")])
@pytest.mark.parametrize("degree", [1, 2])
def test_owners_of_parts_of_a_sequence_are_told(form: str, key: str, value: str, degree: int, tmp_path: Path) -> None:
    """Balanced work is another owner of each part, of which a proof says nothing; without such ranks it is off."""
    text = TITAN % "" + f"{key} = {value}\n" if form == "torchtitan" else f"{MAXTEXT}{key}: {value}\n"
    path = tmp_path / ("run.toml" if form == "torchtitan" else "run.yaml")
    path.write_text(text.replace("context_parallel_degree = 2", f"context_parallel_degree = {degree}").replace(
        "ici_context_parallelism: 2", f"ici_context_parallelism: {degree}"), encoding="utf-8")
    reading = read(path)
    (told,) = [item for items in (reading.read, reading.ignored) for item in items if item.key.endswith(key)]
    assert (told in reading.read) is (degree > 1)
    assert told.text == (OWNERS if degree > 1 else "no ranks share sequences")


@pytest.mark.parametrize("balanced", [False, True])
def test_balanced_parts_are_the_same_program(balanced: bool) -> None:
    words = [*MEGATRON, *(["--context-parallel-load-balance"] if balanced else [])]
    reading = read_words(words, Options())
    assert reading.expression == read_words(MEGATRON, Options()).expression
    told = [item.text for item in reading.ignored if item.key.startswith("context-parallel-load")]
    assert told == ["who owns which part of a sequence: what is proved is of any owners"] * balanced


def test_packed_rows_of_nemo(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"{NEMO}  data: {{train_ds: {{packed_sequence: true}}}}\n", encoding="utf-8")
    assert said(read(path)) == BOTH


@pytest.mark.parametrize(("backend", "want"), [("flex", {"documents": True}), ("varlen", {"documents": True}),
                                               ("sdpa", {}), ("", {})])
def test_the_backend_of_a_registry_says_the_mask(backend: str, want: dict[str, object], tmp_path: Path) -> None:
    """The 2026 registries of torchtitan: flex and varlen keep the documents of a row apart."""
    argument = f', attn_backend="{backend}"' if backend else ""
    path = tmp_path / "config_registry.py"
    path.write_text(f"""from torchtitan.trainer import Trainer
from . import model_registry


def llama3_8b() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B"{argument}),
        training=TrainingConfig(local_batch_size=1, seq_len=128),
    )
""", encoding="utf-8")
    assert said(read(path)) == want
