"""Models: exact counts against published ones, the dims, the faults of a configuration with their lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from placealg.arith import Monomial
from placealg.errors import InputError
from placealg.models.abstract import abstract
from placealg.models.config import from_config, resolve_model, shipped
from placealg.models.family import aliases, families, family, refusals
from placealg.models.names import parameters_of

COUNTS = {
    # The sizes of the checkpoints' tensors on huggingface.co; 405B: the Llama 3.1 model card's checkpoint.
    "gpt2": 124_439_808,
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-30b-a3b": 30_532_122_624,
}

LLAMA = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 96, "vocab_size": 100}
GPT2 = {"model_type": "gpt2", "n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 32, "vocab_size": 100}


def write(folder: Path, *tables: dict[str, Any], drop: str = "") -> Path:
    config = {k: v for table in tables for k, v in table.items() if k != drop}
    path = folder / "config.json"
    path.write_text(json.dumps(config, indent=1))
    return path


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_counts_are_the_published_ones(name: str, count: int) -> None:
    assert from_config(name).total() == count


def test_gpt3_has_175_billion() -> None:
    assert round(from_config("gpt3-175b").total() / 1e9) == 175


def test_gpt2_xl(tmp_path: Path) -> None:
    sizes = {"n_embd": 1600, "n_layer": 48, "n_head": 25, "n_positions": 1024, "vocab_size": 50257}
    assert from_config(write(tmp_path, GPT2, sizes)).total() == 1_557_611_200


def test_shipped_configurations_name_their_source() -> None:
    from placealg.models.config import SHIPPED

    for name in shipped():
        assert len(json.loads((SHIPPED / f"{name}.json").read_text())["_source"]) > 20


@pytest.mark.parametrize("name", shipped())
def test_units_dims_and_sites(name: str) -> None:
    model = from_config(name)
    first = ["dense"] if name.startswith("deepseek") else []
    assert [u.name for u in model.units] == ["embedding", *first, "layer", "head"]
    assert model.unit("layer").count == Monomial.of("L_moe" if first else "L") and model.unit("layer").repeated
    assert [u.name for u in model.units if u.repeated] == [*first, "layer"]
    order = [model.units.index(model.unit(p.unit)) for p in model.parameters]
    assert order == sorted(order) and len({p.name for p in model.parameters}) == len(model.parameters)
    for p in model.parameters:
        assert p.name.startswith(p.unit + ".") and p.sites[0] == p.unit
        assert not {"batch", "seq"} & set(p.dims)
        assert set(p.elements.names()) <= set(model.sizes)
    tied = "head.weight" not in [p.name for p in model.parameters]
    assert [p.sites for p in model.parameters if p.name == "embedding.weight"] == [
        ("embedding", "head") if tied else ("embedding",)]
    assert tied == name.startswith("gpt")


def test_attention_of_grouped_heads() -> None:
    sizes = {p.name: {d: str(n) for d, n in p.dims.items()} for p in from_config("llama-3-70b").parameters}
    assert sizes["layer.attn.q.weight"] == {"embed": "h", "kv": "kv", "group": "a/kv", "head_dim": "h/a"}
    assert sizes["layer.attn.k.weight"] == {"embed": "h", "kv": "kv", "head_dim": "h/a"}
    assert sizes["embedding.weight"] == {"vocab": "V", "embed": "h"}


def test_a_size_equal_to_its_default_is_written_as_the_default(tmp_path: Path) -> None:
    plain = from_config(write(tmp_path, LLAMA))
    told = from_config(write(tmp_path, LLAMA, {"num_key_value_heads": 4, "head_dim": 16}))
    assert plain.parameters == told.parameters and plain.sizes == told.sizes
    wide = from_config(write(tmp_path, LLAMA, {"head_dim": 32}))
    assert wide.parameters != plain.parameters
    assert wide.total() - plain.total() == 2 * (4 * 64 * 4 * 16)


def test_flags_add_parameters(tmp_path: Path) -> None:
    base = from_config(write(tmp_path, LLAMA)).total()
    assert from_config(write(tmp_path, LLAMA, {"attention_bias": True})).total() - base == 2 * 4 * 64
    assert from_config(write(tmp_path, LLAMA, {"mlp_bias": True})).total() - base == 2 * (2 * 96 + 64)
    assert base - from_config(write(tmp_path, LLAMA, {"tie_word_embeddings": True})).total() == 6400
    gpt2 = from_config(write(tmp_path, GPT2)).total()
    assert from_config(write(tmp_path, GPT2, {"tie_word_embeddings": False})).total() - gpt2 == 4800
    assert from_config(write(tmp_path, GPT2, {"n_inner": 100})).total() - gpt2 == 3 * (100 - 192) * 97
    assert from_config(write(tmp_path, GPT2, {"n_inner": None})).total() == gpt2


def test_another_name_of_a_field(tmp_path: Path) -> None:
    want = from_config(write(tmp_path, GPT2)).total()
    for other, field in family("gpt2").spelled.items():
        if field in GPT2:
            value = {other: GPT2[field]}
            assert from_config(write(tmp_path, GPT2, value, drop=field)).total() == want
            with pytest.raises(InputError, match="disagree"):
                from_config(write(tmp_path, GPT2, {other: 7 * value[other]}))


@pytest.mark.parametrize(("name", "total"), [
    # transformers 5.23.0: the sizes of the parameters of the default configuration, made on the meta device.
    ("llama", 6_738_415_616), ("mistral", 7_241_732_096), ("mixtral", 46_702_792_704), ("qwen2", 12_049_846_272),
    ("qwen3", 12_049_461_248), ("qwen3_moe", 15_350_731_776), ("deepseek_v3", 671_026_404_352),
    ("gemma", 8_537_680_896), ("gemma2", 2_614_341_888), ("gemma3_text", 2_628_658_432), ("phi", 1_418_270_720),
    ("phi3", 3_821_079_552), ("gpt_neox", 20_554_567_680), ("gptj", 6_050_882_784), ("opt", 125_239_296),
    ("bloom", 16_156_544), ("falcon", 6_921_720_704), ("mpt", 1_311_213_568), ("gpt_bigcode", 111_446_784),
    ("olmo2", 6_888_624_128), ("olmoe", 13_361_612_800), ("cohere", 34_980_831_232), ("glm4", 9_400_279_040),
    ("glm4_moe", 103_481_200_640), ("gpt_oss", 116_829_156_672), ("llama4_text", 107_769_861_120),
    ("ernie4_5_moe", 21_825_437_888), ("minimax_m2", 228_689_748_992), ("qwen2_moe", 14_315_784_192),
    ("phimoe", 41_872_793_600), ("starcoder2", 3_030_371_328), ("smollm3", 3_075_098_624), ("afmoe", 19_232_600_000),
])
def test_defaults_are_the_family_s_own(tmp_path: Path, name: str, total: int) -> None:
    model = from_config(write(tmp_path, {"model_type": name}))
    assert model.total() == total and model.filled
    named = parameters_of(model)
    assert {p for found in named.values() for p in found.parameters} == {p.name for p in model.parameters}


def test_a_null_is_no_absence(tmp_path: Path) -> None:
    mixtral = {"model_type": "mixtral"}
    kv = from_config(write(tmp_path, mixtral)).sizes["kv"]
    assert kv == 8
    with pytest.raises(InputError, match=r"num_key_value_heads is null.*left out it would be 8"):
        from_config(write(tmp_path, mixtral, {"num_key_value_heads": None}))
    assert from_config(write(tmp_path, {"model_type": "qwen2"}, {"num_key_value_heads": None})).sizes["kv"] == 32


def test_an_alias_of_which_nothing_is_filled_in(tmp_path: Path) -> None:
    assert aliases()["kimi_k2"] == "deepseek_v3"
    with pytest.raises(InputError, match="missing field 'hidden_size'"):
        from_config(write(tmp_path, {"model_type": "kimi_k2"}))


@pytest.mark.parametrize(("name", "part"), [("mamba", "state-space layers"), ("t5", "attention to an encoder"),
                                            ("bert", "an encoder"), ("minimax", "linear attention"),
                                            ("llama4", "a tower for images")])
def test_a_type_is_refused_by_its_part(tmp_path: Path, name: str, part: str) -> None:
    with pytest.raises(InputError, match=f"config.json:2: model_type .{name}. is not read: it has {part}"):
        from_config(write(tmp_path, {"model_type": name}))


def test_no_type_is_both_read_and_refused() -> None:
    assert not set(refusals()) & {*families(), *aliases()}


def test_a_table_inside_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}, "vision_config": {}})
    with pytest.raises(InputError, match="#text_config"):
        from_config(path)
    assert from_config(f"{path}#text_config").total() == 2_628_658_432


def test_experts_of_attention(tmp_path: Path) -> None:
    model = from_config(write(tmp_path, {"model_type": "jetmoe"}))
    q, out = (next(p for p in model.parameters if p.name == f"layer.attn.expert.{n}.weight") for n in ("q", "out"))
    assert set(q.dims) == set(out.dims) == {"expert", "embed", "kv", "head_dim"}
    assert {op.kind for op in model.graph.ops if op.region == "layer.attn.router"} >= {"route", "softmax"}
    assert parameters_of(model)["model.layers.3.self_attention.experts.input_linear.weight"].parameters == (q.name,)


@pytest.mark.parametrize(("outside", "inside", "tied"), [
    ({}, {}, False), ({"tie_word_embeddings": True}, {}, True), ({}, {"tie_word_embeddings": True}, False),
    ({"tie_word_embeddings": True}, {"tie_word_embeddings": False}, True),
])
def test_a_larger_model_says_whether_the_head_is_the_embedding(
        tmp_path: Path, outside: dict[str, Any], inside: dict[str, Any], tied: bool) -> None:
    text = {"model_type": "qwen3_vl_text", **inside}
    path = write(tmp_path, {"model_type": "qwen3_vl", **outside, "text_config": text})
    model = from_config(f"{path}#text_config")
    assert tied == ("head.weight" not in [p.name for p in model.parameters])
    assert "model.language_model.layers.0.self_attn.q_norm.weight" in parameters_of(model)


def test_fields_of_a_language_model_at_the_top_of_a_larger_one(tmp_path: Path) -> None:
    path = write(tmp_path, {"model_type": "qwen2_5_vl", "hidden_size": 2048, "num_attention_heads": 16,
                            "num_key_value_heads": 2, "vision_config": {}, "tie_word_embeddings": True})
    with pytest.raises(InputError, match=r"tower for images; its language model alone is read as .*#text_config"):
        from_config(path)
    model = from_config(f"{path}#text_config")
    assert (model.family, model.sizes["h"], "head.weight" in [p.name for p in model.parameters]) == (
        "qwen2_vl_text", 2048, False)
    thinker = write(tmp_path, {"model_type": "qwen2_5_omni", "thinker_config": {"text_config": {
        "model_type": "qwen2_5_omni_text"}}})
    assert from_config(f"{thinker}#thinker_config.text_config").sizes["L"] == 28


def test_names_of_the_layer_that_predicts_later_tokens(tmp_path: Path) -> None:
    named = parameters_of(from_config(write(tmp_path, {"model_type": "mellum", "num_mtp_layers": 1}), mtp=True))
    assert named["mtp.fc.weight"].parameters == ("mtp1.token.weight", "mtp1.hidden.weight")
    assert "mtp.layers.0.self_attn.q_proj.weight" in named and "mtp.norm.weight" in named


def test_kinds_of_layers_are_units(tmp_path: Path) -> None:
    model = from_config(write(tmp_path, {"model_type": "gpt_oss"}))
    assert {u.name: model.sizes[str(u.count)] for u in model.units if u.repeated} == {"window": 18, "layer": 18}
    assert model.where["window"][:3] == (0, 2, 4) and "order of layers" in model.left_out[-1]


@pytest.mark.parametrize(("base", "table", "line", "message"), [
    (LLAMA, {"hidden_size": 0}, 3, "hidden_size = 0: the hidden size is a whole number of at least 1"),
    (LLAMA, {"hidden_size": -8}, 3, "hidden_size = -8"),
    (LLAMA, {"hidden_size": 64.0}, 3, "hidden_size = 64.0"),
    (LLAMA, {"hidden_size": "64"}, 3, 'hidden_size = "64"'),
    (LLAMA, {"hidden_size": True}, 3, "hidden_size = true"),
    (LLAMA, {"hidden_size": [64]}, 3, r"hidden_size = \[64\]"),
    (LLAMA, {"hidden_size": 10**13}, 3, "at most 1000000000000"),
    (LLAMA, {"vocab_size": float("nan")}, 7, "vocab_size = NaN"),
    (LLAMA, {"num_attention_heads": 5}, 5, "hidden_size = 64 is not divisible by num_attention_heads = 5"),
    (LLAMA, {"num_key_value_heads": 3}, 8, "num_attention_heads = 4 is not divisible by num_key_value_heads = 3"),
    (LLAMA, {"num_key_value_heads": 8}, 8, "num_attention_heads = 4 is not divisible by num_key_value_heads = 8"),
    (LLAMA, {"mlp_bias": 1}, 8, "mlp_bias = 1 is not true or false"),
    (LLAMA, {"model_type": "lama"}, 2, r'model_type "lama" is not read, and no model of transformers has it; did you'),
    (LLAMA, {"model_type": "deepseek_v9"}, 2, "no model of transformers has it$"),
    (LLAMA, {"model_type": "own", "auto_map": {}}, 2, "its layers are code of its own"),
    (LLAMA, {"model_type": 7}, 2, "model_type 7 is not read"),
    (LLAMA, {"model_type": None}, 2, "missing field 'model_type'"),
    (GPT2, {"n_head": 5}, 5, "n_embd = 48 is not divisible by n_head = 5"),
    (GPT2, {"add_cross_attention": True}, 8, "add_cross_attention = true: gpt2 then has attention to an encoder"),
])
def test_bad_fields(tmp_path: Path, base: dict[str, Any], table: dict[str, Any], line: int, message: str) -> None:
    path = write(tmp_path, base, table)
    with pytest.raises(InputError, match=message) as caught:
        from_config(path)
    assert str(caught.value).startswith(f"{path}:{line}: " if line else f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_misspelled_field_is_shown(tmp_path: Path) -> None:
    path = write(tmp_path, LLAMA, {"hiden_size": 64}, drop="hidden_size")
    with pytest.raises(InputError, match=f"{path}:7: missing field 'hidden_size'.*'hiden_size'"):
        from_config(path)


@pytest.mark.parametrize(("text", "message"), [
    ("{\n \"a\": ,\n}", "config.json:2: not JSON"),
    ("", "config.json:1: not JSON"),
    ("[1]", "config.json:1: not a configuration: the file holds a list"),
    ("3", "holds a number"),
    ("[" * 100_000, "nested too deeply"),
    ('{"model_type": "llama", "hidden_size": ' + "9" * 5000 + "}", "a number too long"),
])
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        from_config(path)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(InputError, match="cannot be read: not UTF-8 text"):
        from_config(path)


@pytest.mark.parametrize(("name", "hint"), [
    ("llama-3-7b", "did you mean 'llama-2-7b'"), ("llama-3-90b", "valid: abstract"),
    ("meta-llama/Llama-3.1-405B", "did you mean 'llama-3.1-405b'"),
    ("meta-llama/Llama-3.1-8B", "give the path of its config.json"), ("qwen3-8b", "did you mean 'Qwen/Qwen3-8B'"),
    ("lama-3-8b", "did you mean 'llama-3-8b'"),
    ("GPT2", "did you mean 'gpt2'"), ("llama-3-70b.json", "did you mean 'llama-3-70b'"),
    ("zzz", "valid: abstract, deepseek-v3, gpt2"),
    ("abstrct", "did you mean 'abstract'"),
])
def test_unknown_names(name: str, hint: str) -> None:
    with pytest.raises(InputError, match=f"no file and no shipped model '{name}'.*{hint}"):
        resolve_model(name)


def test_a_folder_is_its_config(tmp_path: Path) -> None:
    write(tmp_path, LLAMA)
    model = resolve_model(str(tmp_path))
    assert model.name == tmp_path.name and model.total() == from_config(tmp_path / "config.json").total()


def test_abstract() -> None:
    model = abstract()
    assert model.abstract and resolve_model("abstract") == model
    assert [p.name for p in model.parameters] == ["layer.weight"]
    assert model.parameters[0].elements == Monomial.of("Psi_unit")
    with pytest.raises(InputError, match="no value for symbol 'Psi'"):
        model.total()


def test_models_do_not_import_sympy() -> None:
    code = "import sys; import placealg.models.config; sys.exit('sympy' in sys.modules or 'z3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
