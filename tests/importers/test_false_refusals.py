"""What may be read: words that look like placement and are none, scripts without functions, files without degrees."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from random import Random

import pytest

from placealg.errors import InputError
from placealg.importers.key_log import SUSPICIOUS
from placealg.importers.read import read, read_words, reading_of
from placealg.importers.reading import Options, Reading

HERE = Path(__file__).parent / "miniatures"
IDLE = ("layernorm_zero_centered_gamma", "layernorm-zero-centered-gamma", "zero_grad_set_to_none", "parallel_attention",
        "use_parallel_residual", "parallel_block", "zero_shot_eval", "zero_padding", "zero_init_head", "zero_point")
PLACING = ("zero_stage", "use_zero", "zero3_save", "zero_optimization", "tensor_parallel", "parallelism", "num_shards",
           "pipeline_depth", "expert_count", "moe_layers", "offload_states", "tp_size", "model_parallel_attn_size",
           "parallel_groups", "remat", "recompute_all")


@pytest.mark.parametrize("seed", range(4))
def test_words_of_norms_and_blocks_place_nothing(seed: int) -> None:
    """Words of norms, blocks and gradients are no placement, whatever stands around them; words of placement are."""
    random = Random(seed)
    for idle, placing in itertools.zip_longest(IDLE, PLACING, fillvalue="tensor_parallel"):
        around = random.choice(["my_{}", "{}_v2", "{}", "cfg.{}"])
        if idle in IDLE:
            assert not SUSPICIOUS.search(around.format(idle)), idle
        assert SUSPICIOUS.search(around.format(placing)), placing


FLAGS = ["--tensor-model-parallel-size", "2", "--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4",
         "--micro-batch-size", "1", "--max-position-embeddings", "64"]


def of_flags(*more: str) -> Reading:
    return read_words(["torchrun", "--nproc-per-node", "4", "pretrain_gpt.py", *FLAGS, *more], Options())


def test_norms_centered_at_zero_are_read() -> None:
    """A gamma that is stored less one is the same norm: in flags, in Megatron-Bridge's file and in MaxText's."""
    assert of_flags("--layernorm-zero-centered-gamma").strategy == of_flags().strategy
    text = (HERE / "bridge" / "run_config.yaml").read_text(encoding="utf-8")
    with_gamma = text.replace("model:\n", "model:\n  layernorm_zero_centered_gamma: true\n", 1)
    assert with_gamma != text
    assert reading_of(with_gamma, "r.yaml", Options()).expression == reading_of(text, "r.yaml", Options()).expression
    table = (HERE / "maxtext" / "no_degrees.yaml").read_text(encoding="utf-8")
    assert reading_of(f"{table}normalization_zero_centered: true\n", "m.yaml", Options()).expression


def test_blocks_side_by_side_are_told() -> None:
    """Attention beside the MLP makes another network: told by name, and no model of flags stands for it."""
    reading = of_flags("--parallel-attention")
    assert any(item.key == "parallel-attention" and "side by side" in item.text for item in reading.approximated)
    assert "parallel-attention makes blocks of no family" in reading.unread


def test_experts_in_one_weight_each_are_read() -> None:
    text = "base_model: meta-llama/Llama-3.1-8B\ndatasets: [{path: mine}]\nllama4_linearized_experts: true\n"
    assert any(item.key == "llama4_linearized_experts" for item in reading_of(text, "a.yaml", Options()).ignored)


def test_a_script_without_functions_is_a_plan() -> None:
    """The plan of a script is that of the same lines in a function."""
    path = HERE / "dtensor" / "whole_script.py.txt"
    whole = read(path)
    text = path.read_text(encoding="utf-8")
    head, body = text[:text.index("model =")], text[text.index("model ="):]
    inside = f"{head}\ndef apply():\n" + "".join(f"    {line}\n" for line in body.splitlines())
    assert whole.strategy.dims == reading_of(inside, "f.py", Options()).strategy.dims
    assert whole.expression == "zero3*tp_sp_keep"


def test_maxtext_without_degrees_is_base_yml() -> None:
    """A file on base.yml that says no degree has those of base.yml: fsdp over what the slice has."""
    reading = read(HERE / "maxtext" / "no_degrees.yaml")
    assert reading.format == "maxtext" and reading.model == "llama-2-7b"
    assert all(axis.size is None for axis in reading.strategy.mesh)


def test_a_name_that_deepspeed_does_not_read_is_told() -> None:
    text = '{"zero_optimization": {"stage": 2}, "micro_batch_size_per_gpu": 4}'
    reading = reading_of(text, "ds.json", Options())
    assert "b" not in reading.sizes and any(i.key == "micro_batch_size_per_gpu" for i in reading.ignored)


@pytest.mark.parametrize("seed", range(8))
def test_every_word_of_axolotl_s_fsdp_is_read(seed: int) -> None:
    """Strategy and offload of the list are those of the strategy; a word that the Trainer does not know is refused."""
    random = Random(seed)
    factors = {"full_shard": "zero3", "shard_grad_op": "fsdp_no_reshard", "hybrid_shard": "hsdp", "no_shard": "dp"}
    word = random.choice(list(factors))
    more = random.sample(["auto_wrap", "offload"], random.randint(0, 2))
    words = [word, *more]
    random.shuffle(words)
    text = f"base_model: meta-llama/Llama-3.1-8B\ndatasets: [{{path: x}}]\nfsdp: [{', '.join(words)}]\n"
    reading = reading_of(text, "a.yaml", Options())
    assert reading.expression.split("*")[0].partition("[")[0] == factors[word]
    assert ("offload_parameters" in reading.expression) is ("offload" in more)
    with pytest.raises(InputError, match=re.escape("fsdp is 'auto_wrapp'; did you mean 'auto_wrap'?")):
        reading_of(text.replace(word, f"{word}, auto_wrapp"), "a.yaml", Options())


@pytest.mark.parametrize(("words", "s"), [
    (["megatron", "sft", "--model", "Qwen/Qwen3-8B", "--max_length", "4096"], 4096),
    (["megatron", "sft", "--model", "Qwen/Qwen3-8B"], None),
    (["pretrain_gpt.py", *FLAGS, "--seq-length", "32"], 32)])
def test_the_length_of_sequences_is_read_or_unsaid(words: list[str], s: int | None) -> None:
    reading = read_words(words, Options())
    assert reading.sizes.get("s") == s
    assert any(item.key == "seq-length" for item in reading.unsaid) is (s is None)


@pytest.mark.parametrize("key", ["encoder_seq_length", "seq_length"])
def test_nemo_s_sequences_have_two_names(key: str) -> None:
    text = (HERE / "nemo" / "gpt.yaml").read_text(encoding="utf-8").replace("encoder_seq_length: 2048", f"{key}: 512")
    assert reading_of(text, "gpt.yaml", Options()).sizes["s"] == 512


@pytest.mark.parametrize("form", ["fsdp1_hybrid", "fsdp2_mesh"])
def test_one_microbatch_of_accelerate_leaves_no_whole_gradients(form: str) -> None:
    """Gradients rest whole while microbatches are added up; with one they are reduced where they are made."""
    path = HERE / "accelerate" / f"{form}.yaml"
    many, one = (dict(read(path, microbatches=m).strategy.states["gradients"].modes) for m in (4, 1))
    assert {str(mode) for mode in many.values()} == {"R"} and {str(mode) for mode in one.values()} == {"S"}
