"""What files of frameworks say of tokens reaches the strategy: weights, packed documents, positions."""

from __future__ import annotations

from pathlib import Path

import pytest

import placealg as pa
from placealg.importers.read import read, read_words
from placealg.importers.reading import Options, Reading
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
