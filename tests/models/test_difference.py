"""What two models differ in is told by the first parameter, number of layers or op, with its sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from placealg.models.config import from_config, resolve_model
from placealg.models.difference import first_difference
from placealg.models.model import Model

SMALL = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 100}


def small(folder: Path, **said: Any) -> Model:
    file = folder / "config.json"
    file.write_text(json.dumps({**SMALL, **said}), encoding="utf-8")
    return from_config(file)


@pytest.mark.parametrize(("said", "told"), [
    ({"hidden_size": 128}, "embedding.weight is vocab 100 × embed 64 in the old one, vocab 100 × embed 128 in the new"),
    ({"vocab_size": 101}, "embedding.weight is vocab 100 × embed 64 in the old one, vocab 101 × embed 64 in the new"),
    ({"num_hidden_layers": 5}, "layer.norm1.weight is there 4 times in the old one, 5 times in the new one"),
    ({"num_key_value_heads": 4}, "layer.attn.q.weight is embed 64 × kv 2 × group 2 × head_dim 16 in the old one, embed "
                                 "64 × kv 4 × group 1 × head_dim 16 in the new one"),
    ({"intermediate_size": 80}, "layer.mlp.gate.weight is embed 64 × ffn 96 in the old one, embed 64 × ffn 80 in the"),
    ({"model_type": "qwen2"}, "the new one has layer.attn.q.bias of kv 2 × group 2 × head_dim 16, which the old one"),
    ({"tie_word_embeddings": True}, "the old one has head.weight of embed 64 × vocab 100, which the new one lacks"),
    ({"hidden_act": "gelu"}, "layer.mlp.silu is a silu of layer.mlp.gate in the old one, layer.mlp.gelu is a gelu of"),
    ({}, "")])
def test_the_first_difference_is_told(said: dict[str, Any], told: str, tmp_path: Path) -> None:
    """Both ways: what the old one has is what the new one lacks, the other way round."""
    one, two = small(tmp_path), small(tmp_path, **said)
    assert first_difference(one, two).startswith(told) and bool(first_difference(one, two)) == bool(told)
    assert bool(first_difference(two, one)) == bool(told)


def test_what_is_a_symbol_is_told_as_one() -> None:
    assert first_difference(resolve_model("gpt"), resolve_model("mlp")) == (
        "layer.mlp.up.weight is embed h × ffn 4*h in the old one, embed h × ffn f in the new one")
    assert first_difference(resolve_model("mlp"), resolve_model("gpt")) == (
        "the new one has embedding.weight of vocab V × embed h, which the old one lacks")


def test_a_model_under_another_name_is_the_same(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    one, two = map(small, folders)
    assert (one.name, two.name, first_difference(one, two)) == ("one", "two", "")
