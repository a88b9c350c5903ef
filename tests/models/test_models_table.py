"""What is read of configurations, held against the counts of transformers that `make models-write` keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import run_placealg
from models_page import PAGE, PUBLISHED, ROOT, TABLE, published, written

from placealg.errors import InputError
from placealg.models.config import from_config, resolve_model
from placealg.models.config import published as published_ids
from placealg.models.family import aliases, families, family, inside, refusals
from placealg.models.names import CORRECTION, parameters_of, split_of_name
from placealg.render.listing import model_page
from placealg.render.text_layout import plain
from placealg.step.derive import derive, groups_by_name
from placealg.strategy.expression import parse_strategy

COUNTED: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
MODELS = published()


def total(folder: Path, fields: dict[str, Any]) -> int:
    path = folder / "config.json"
    path.write_text(json.dumps(fields, indent=1), encoding="utf-8")
    return from_config(path).total()


def test_the_default_of_every_type(tmp_path: Path) -> None:
    for name, entry in COUNTED["types"].items():
        found = total(tmp_path, {"model_type": name, **entry.get("given", {})})
        assert found == entry["parameters"], name


def test_published_configurations(tmp_path: Path) -> None:
    assert len(COUNTED["published"]) >= 100 and set(COUNTED["published"]) == set(MODELS)
    for model_id, parameters in COUNTED["published"].items():
        assert total(tmp_path, MODELS[model_id]) == parameters, model_id


@pytest.mark.parametrize("which", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_random_configurations(which: int, tmp_path: Path) -> None:
    assert {name for name, _, _ in COUNTED["sample"]} == set(COUNTED["types"])
    for name, fields, parameters in COUNTED["sample"][which::3]:
        assert total(tmp_path, {**fields, "model_type": name}) == parameters, (name, fields)


def test_every_type_is_counted_and_none_is_wrong() -> None:
    read = {*families(), *aliases()}
    assert set(COUNTED["causal"]) <= {*read, *refusals()} and not read & set(refusals())
    asked = {name for name in COUNTED["causal"] if name in read} | set(COUNTED["larger"])
    assert asked == set(COUNTED["types"]) == set(COUNTED["random"])
    assert set(COUNTED["larger"].values()) == {9}
    assert set(families()) <= set(COUNTED["types"])
    assert not any(run.get("wrong") for run in COUNTED["random"].values())


def test_a_changed_field_is_seen(tmp_path: Path) -> None:
    fields = {**MODELS["Qwen/Qwen3-8B"], "head_dim": 64}
    assert total(tmp_path, fields) != COUNTED["published"]["Qwen/Qwen3-8B"]


def test_the_page_is_made_of_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == written(COUNTED)


def test_a_family_takes_under_thirty_lines() -> None:
    assert max(family(name).lines for name in families()) < 30


@pytest.mark.parametrize("model_id", ["Qwen/Qwen3-30B-A3B", "openai/gpt-oss-20b", "deepseek-ai/DeepSeek-V2-Lite"])
def test_every_parameter_has_its_name_in_a_checkpoint(tmp_path: Path, model_id: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(MODELS[model_id]), encoding="utf-8")
    model = from_config(path)
    named = parameters_of(model)
    assert {p for found in named.values() for p in found.parameters} == {p.name for p in model.parameters}


@pytest.mark.parametrize(("fields", "message"), [
    ({"first_k_dense_replace": None}, "config.json:3: first_k_dense_replace is null, which has no meaning here"),
    ({"num_experts_per_tok": None}, "config.json:3: num_experts_per_tok is null: deepseek_v3 needs it"),
    ({"hidden_size": None}, "config.json:3: hidden_size is null, which deepseek_v3 has no meaning for; left out"),
])
def test_a_null_is_told_from_an_absence(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        total(tmp_path, {"model_type": "deepseek_v3", **fields})


def test_a_list_with_an_entry_for_each_layer(tmp_path: Path) -> None:
    fields = {"model_type": "hunyuan_v1_moe", "num_experts": 4, "moe_topk": [2] * 32}
    assert total(tmp_path, fields) == total(tmp_path, {**fields, "moe_topk": 2})
    with pytest.raises(InputError, match="moe_topk: its entries differ, and all layers have one here"):
        total(tmp_path, {**fields, "moe_topk": [1] + [2] * 31})


def test_kinds_of_layers_by_their_names(tmp_path: Path) -> None:
    fields = {"model_type": "glm4_moe_lite", "num_hidden_layers": 3, "mlp_layer_types": ["dense", "sparse", "dense"]}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields), encoding="utf-8")
    assert from_config(path).where["dense"] == (0, 2)


@pytest.mark.parametrize("name", ["vit", "sam", "roberta", "whisper", "timesfm", "qwen2_5_vl", "decision_transformer"])
def test_a_type_of_another_kind_is_refused_by_its_part(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=f'config.json:2: model_type "{name}" is not read: it has {refusals()[name]}'):
        total(tmp_path, {"model_type": name})


def test_the_family_that_docs_show_is_the_real_one() -> None:
    page = (ROOT / "docs" / "strategies.md").read_text(encoding="utf-8")
    shown = page.partition("+++ b/placealg/models/families/arcee.toml\n")[2].partition("```")[0].splitlines()[1:]
    file = (ROOT / "placealg" / "models" / "families" / "arcee.toml").read_text(encoding="utf-8")
    assert [line.removeprefix("+") for line in shown] == file.splitlines()


def test_layers_that_predict_later_tokens(tmp_path: Path) -> None:
    assert {"deepseek_v3", "glm4_moe", "deepseek-ai/DeepSeek-V3", "zai-org/GLM-4.5"} <= set(COUNTED["predicting"])
    path = tmp_path / "config.json"
    for name, parameters in COUNTED["predicting"].items():
        path.write_text(json.dumps(MODELS.get(name, {"model_type": name})), encoding="utf-8")
        model = from_config(path, mtp=True)
        assert model.total() - from_config(path).total() == parameters, name
        assert not any("predict" in part for part in model.left_out) and model.unit("mtp1")


@pytest.mark.parametrize(("fields", "message"), [
    ({"model_type": "llama"}, "config.json: mtp: llama has no layers that predict tokens after the next"),
    ({"model_type": "glm4_moe_lite"}, "mtp: glm4_moe_lite has no layers that predict"),
    ({"model_type": "deepseek_v3", "num_nextn_predict_layers": 0}, "config.json:3: mtp: num_nextn_predict_layers says"),
])
def test_a_model_without_layers_that_predict_later_tokens(tmp_path: Path, fields: dict[str, Any],
                                                          message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields, indent=1), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        from_config(path, mtp=True)


@pytest.mark.parametrize("model_id", ["moonshotai/Kimi-K2-Instruct", "openai/gpt-oss-120b", "zai-org/GLM-4.5",
                                      "meta-llama/Llama-4-Maverick-17B-128E#text_config"])
def test_a_program_does_not_grow_with_layers(tmp_path: Path, model_id: str) -> None:
    """Twelve layers and eight times so many have as many events: what is derived is one body for each kind of layer."""
    events = set()
    for depth in (12, 96):
        path = tmp_path / "config.json"
        fields = {k: v for k, v in MODELS[model_id].items() if k != "layer_types"}
        path.write_text(json.dumps({**fields, "num_hidden_layers": depth}), encoding="utf-8")
        events.add(len(derive(parse_strategy("zero1*tp_sp*ep"), from_config(path)).events))
    assert len(events) == 1


def test_names_of_a_checkpoint_have_groups(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(MODELS["Qwen/Qwen3-30B-A3B"]), encoding="utf-8")
    model = from_config(path)
    found = groups_by_name(parse_strategy("zero1*ep"), model)
    assert set(found) == set(parameters_of(model))
    assert found["model.layers.47.mlp.experts.down_proj"] != found["model.layers.47.self_attn.q_proj.weight"]


@pytest.mark.parametrize(("name", "dim"), [
    ("model.layers.0.self_attn.k_proj.weight", "heads"), ("transformer.h.0.attn.c_attn.weight", "heads"),
    ("gpt_neox.layers.1.attention.query_key_value.bias", "heads"), ("model.decoder.layers.2.fc1.weight", "ffn"),
    ("model.layers.0.mlp.experts.gate_up_proj", "ffn"), ("lm_head.weight", "vocab"),
    ("transformer.wte.weight", "vocab"),
    ("model.layers.0.self_attn.q_norm.weight", "norm"), ("model.layers.0.mlp.gate.weight", ""), ("net.0.weight", ""),
])
def test_what_a_name_of_any_family_is_split_by(name: str, dim: str) -> None:
    assert split_of_name(name) == dim


def test_the_model_page_says_what_was_filled_in(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "mixtral", "num_hidden_layers": 2}', encoding="utf-8")
    page = "\n".join(plain(line) for line in model_page(from_config(path), 200))
    assert "filled in  hidden_size = 4096" in page and "num_hidden_layers = 2" not in page


def test_a_default_that_is_negative_may_be_given(tmp_path: Path) -> None:
    fields = {"model_type": "ernie4_5_moe"}
    assert total(tmp_path, {**fields, "moe_layer_end_index": -1}) == total(tmp_path, fields)
    with pytest.raises(InputError, match="moe_layer_end_index = -2 is not a whole number such as -1"):
        total(tmp_path, {**fields, "moe_layer_end_index": -2})


@pytest.mark.parametrize("name", sorted(families()))
def test_every_default_may_be_given(name: str, tmp_path: Path) -> None:
    fields = {"model_type": name, **COUNTED["types"][name].get("given", {})}
    plain = {k: v for k, v in family(name).fields.items() if k in family(name).read and "." not in k}
    assert total(tmp_path, {**plain, **fields}) == total(tmp_path, fields)


def test_a_published_configuration_by_its_id() -> None:
    model = resolve_model("qwen/qwen3-8B")
    assert (model.name, model.total()) == ("Qwen3-8B", COUNTED["published"]["Qwen/Qwen3-8B"])
    assert model.source == "https://huggingface.co/Qwen/Qwen3-8B/blob/main/config.json"
    assert len(published_ids()) >= 40 and set(published_ids()) <= set(MODELS)
    with pytest.raises(InputError, match="no file and no shipped model 'Qwen/Qwen3_8Bs'; did you mean 'Qwen/Qwen3-8B'"):
        resolve_model("Qwen/Qwen3_8Bs")


@pytest.mark.parametrize(("fields", "message"), [
    ({"layer_types": ["full_attention"] * 3, "num_hidden_layers": 4}, r"json:3: layer_types has 3 entries, and"),
    ({"layer_types": ["full_attention"] * 5, "num_hidden_layers": 4}, r"json:3: layer_types has 5 entries, and"),
    ({"per_layer_config": {"0": {"intermediate_size": 64}}}, r"json:3: per_layer_config gives layers sizes of"),
])
def test_lists_of_layers_that_do_not_fit(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        total(tmp_path, {"model_type": "qwen3", **fields})


def test_a_key_that_stands_twice(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama",\n "hidden_size": 64,\n "hidden_size": 128}', encoding="utf-8")
    with pytest.raises(InputError, match=r"config\.json:3: hidden_size stands twice in one table: 64 and 128"):
        from_config(path)


def test_an_older_word_for_full_attention(tmp_path: Path) -> None:
    words = [{"model_type": "qwen3", "num_hidden_layers": 2, "layer_types": [word] * 2}
             for word in ("attention", "full_attention")]
    assert total(tmp_path, words[0]) == total(tmp_path, words[1])


def test_a_default_that_is_held_against_is_of_all_sizes(tmp_path: Path) -> None:
    held = json.loads(PUBLISHED.read_text(encoding="utf-8"))["held"]
    for model_id in held:
        name = MODELS[model_id]["model_type"]
        own = tmp_path / "own.json"
        own.write_text(json.dumps({"model_type": name, **COUNTED["types"][name].get("given", {})}), encoding="utf-8")
        theirs = tmp_path / "theirs.json"
        theirs.write_text(json.dumps(MODELS[model_id]), encoding="utf-8")
        assert from_config(own).sizes == from_config(theirs).sizes, model_id


@pytest.mark.parametrize("name", [name for name in families() if CORRECTION in family(name).names])
def test_both_pages_tell_parameters_from_what_no_gradient_moves(name: str, tmp_path: Path) -> None:
    """`model` and `cost` print what a checkpoint has, and what of it a program has."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": name}), encoding="utf-8")
    model = from_config(path)
    unmoved = sum(int((p.elements * model.unit(p.unit).count).evaluate(model.sizes)) for p in model.untrained)
    assert unmoved > 0 and model.total() == COUNTED["types"][name]["parameters"]
    both = [f"{n:,}" for n in (model.total(), model.total() - unmoved, unmoved)]
    for page in (" ".join(map(plain, model_page(model, 120))), run_placealg("cost", "dp", "--model", str(path)).out):
        assert [number for number in both if number not in page] == []


@pytest.mark.parametrize("larger", sorted(inside()))
def test_a_larger_model_leads_to_its_language_model(larger: str, tmp_path: Path) -> None:
    """Its refusal names the table inside, which is read as the type that transformers builds of it."""
    path, sizes = tmp_path / "config.json", COUNTED["types"][inside()[larger]].get("given", {"num_hidden_layers": 2})
    path.write_text(json.dumps({"model_type": larger, "text_config": sizes}), encoding="utf-8")
    with pytest.raises(InputError, match=r"its language model alone is read as .*config.json#text_config"):
        from_config(path)
    found = from_config(f"{path}#text_config").total()
    assert found == total(tmp_path, {**sizes, "model_type": inside()[larger]})
