"""Models of Megatron's flags: the family of the blocks that they describe, with exactly these sizes."""

from __future__ import annotations

import pytest

from placealg.errors import InputError
from placealg.importers.model import model_of
from placealg.importers.read import read_words, reading_of
from placealg.importers.reading import Options
from placealg.models.stage_parts import predicting

SIZES = "--num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 64 --micro-batch-size 1"
LLAMA = "--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear"
LATENT = (f"{LLAMA} --multi-latent-attention --qk-layernorm --q-lora-rank 48 --kv-lora-rank 32 --qk-head-dim 16 "
          "--qk-pos-emb-head-dim 8 --v-head-dim 16 --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 64 "
          "--moe-shared-expert-intermediate-size 64")
OPEN = "--untie-embeddings-and-output-weights"


def read(flags: str, vocabulary: str = "512") -> tuple[str, int]:
    words = f"pretrain_gpt.py {SIZES} {flags} --bf16".split()
    found = read_words(words, Options(settings={"vocab-size": vocabulary} if vocabulary else {}))
    model = model_of(found)
    return (model.family, model.total()) if model else ("", 0)


H, V, L = 256, 512, 4


@pytest.mark.parametrize(("flags", "family", "total"), [
    (f"{LLAMA} --ffn-hidden-size 640 {OPEN}", "llama", 2 * V * H + H + L * (4 * H * H + 3 * H * 640 + 2 * H)),
    (f"{LLAMA} --ffn-hidden-size 640 --add-qkv-bias", "qwen2",
     V * H + H + L * (4 * H * H + 3 * H * 640 + 2 * H + 3 * H)),
    (f"{LLAMA} --ffn-hidden-size 640 --qk-layernorm --kv-channels 32", "qwen3",
     V * H + H + L * (4 * H * H + 3 * H * 640 + 2 * H + 2 * 32)),
    (f"{LLAMA.replace('--swiglu', '--squared-relu')} {OPEN}", "arcee",
     2 * V * H + H + L * (4 * H * H + 8 * H * H + 2 * H)),
    (f"--squared-relu --position-embedding-type rope --disable-bias-linear {OPEN}", "nemotron",
     2 * V * H + 2 * H + L * (12 * H * H + 4 * H)),
    (f"--swiglu --position-embedding-type rope --disable-bias-linear {OPEN}", "stablelm",
     2 * V * H + 2 * H + L * (4 * H * H + 3 * H * 640 + 4 * H)),
    ("--position-embedding-type rope", "starcoder2", V * H + 2 * H + L * (12 * H * H + 4 * H + 9 * H)),
    ("--max-position-embeddings 64", "gpt2", (V + 64) * H + 2 * H + L * (12 * H * H + 4 * H + 9 * H)),
    (f"{LLAMA} --num-experts 8 --moe-router-topk 2 --ffn-hidden-size 64 {OPEN}", "mixtral",
     2 * V * H + H + L * (4 * H * H + 8 * 3 * H * 64 + 8 * H + 2 * H)),
    (f"{LLAMA} --num-experts 8 --moe-ffn-hidden-size 64 --ffn-hidden-size 640 --qk-layernorm {OPEN} "
     "--moe-layer-freq [0]*1+[1]*3", "qwen3_moe",
     2 * V * H + H + L * (4 * H * H + 2 * H + 2 * 32) + 3 * (8 * 3 * H * 64 + 8 * H) + 3 * H * 640),
    (f"{LLAMA} --num-experts 8 --moe-ffn-hidden-size 64 --add-qkv-bias --moe-shared-expert-intermediate-size 96 "
     f"--moe-shared-expert-gate {OPEN}", "qwen2_moe",
     2 * V * H + H + L * (4 * H * H + 3 * H + 2 * H + 8 * 3 * H * 64 + 8 * H + 3 * H * 96 + H)),
    (f"{LLAMA} --num-experts 8 --moe-ffn-hidden-size 64 --ffn-hidden-size 640 --moe-router-score-function sigmoid "
     f"--moe-shared-expert-intermediate-size 128 --moe-layer-freq ([0]*1+[1]*3) {OPEN}", "glm4_moe",
     2 * V * H + H + L * (4 * H * H + 2 * H) + 3 * (8 * 3 * H * 64 + 8 * H + 2 * 3 * H * 64) + 3 * H * 640),
    (f"{LATENT} --moe-router-score-function sigmoid {OPEN} --ffn-hidden-size 640 --moe-layer-freq ([0]*1+[1]*3)",
     "deepseek_v3", 2 * V * H + H + L * (H * 48 + 48 + 48 * 8 * 24 + H * 40 + 32 + 32 * 8 * 32 + 8 * 16 * H + 2 * H)
     + 3 * (8 * 3 * H * 64 + 8 * H + 3 * H * 64) + 3 * H * 640),
])
def test_a_network_of_flags(flags: str, family: str, total: int) -> None:
    assert read(flags) == (family, total)


@pytest.mark.parametrize("flags", [
    f"{LLAMA} --add-qkv-bias --qk-layernorm", "--swiglu", f"{LLAMA.replace('rope', 'none')}",
    f"{LLAMA} --attention-head-type multiquery", "--position-embedding-type alibi", "--num-experts 8",
    LATENT.replace("--qk-layernorm", ""), f"{LLAMA} --num-experts 8 --moe-layer-freq [0]*9",
    f"{LLAMA} --num-experts 8 --moe-layer-freq __import__('os')", f"{LLAMA} --window-size 64,0",
])
def test_a_network_of_no_family_is_not_read(flags: str) -> None:
    """Nothing stands in its place: proofs and figures want a model."""
    assert read(flags) == ("", 0)
    with pytest.raises(InputError, match="--model gives the model"):
        _ = read_words(f"pretrain_gpt.py {SIZES} {flags} --bf16".split(), Options()).stand_in


@pytest.mark.parametrize(("flags", "family"), [(LLAMA, "llama"), ("--max-position-embeddings 64", "gpt2"),
                                               (f"{LLAMA} --num-experts 8 --moe-router-topk 2", "mixtral")])
def test_the_tokenizer_decides_the_vocabulary(flags: str, family: str) -> None:
    """The model is that of the flags, with a vocabulary that stays a symbol; with its size it is that model."""
    found = read_words(f"pretrain_gpt.py {SIZES} {flags} --bf16".split(), Options())
    model, known = model_of(found), read(flags)
    assert model is not None and (model.family, "V" in model.sizes) == (family, False)
    assert sum(p.elements.evaluate({**model.sizes, "V": 512}) * {u.name: u.count for u in model.units}[p.unit].evaluate(
        model.sizes) for p in model.parameters) == known[1]
    assert any(item.key == "vocab-size" and item.option == "--set V=N" for item in found.unsaid)


NEMO = """trainer: {{devices: 8, precision: bf16}}
model:
  megatron_amp_O2: true
  micro_batch_size: 1
  tensor_model_parallel_size: 2
  num_layers: 4
  hidden_size: 256
  num_attention_heads: 8
  activation: {activation}
  normalization: rmsnorm
  position_embedding_type: rope
  bias: false
  vocab_size: 1024
  {more}
"""


@pytest.mark.parametrize(("activation", "more", "family"), [
    ("fast-swiglu", "", "llama"), ("fast-swiglu", "qk_layernorm: true", "qwen3"), ("squared-relu", "", "arcee"),
    ("fast-geglu", "", ""), ("fast-swiglu", "add_qkv_bias: true", "qwen2"),
])
def test_a_network_of_nemo_s_keys(activation: str, more: str, family: str) -> None:
    found = reading_of(NEMO.format(activation=activation, more=more), "gpt.yaml", Options())
    model = model_of(found)
    assert (model.family if model else "") == family


@pytest.mark.parametrize(("flags", "nearest"), [
    (LLAMA.replace("--disable-bias-linear", ""), "llama, has --disable-bias-linear"),
    (f"{LLAMA} --qk-layernorm --add-qkv-bias", "qwen2, has no --qk-layernorm"),
    ("--swiglu", "gpt2, has no --swiglu or --squared-relu"),
    (f"{LLAMA} --squared-relu", "llama, has --swiglu alone")])
def test_a_refusal_names_the_nearest_family(flags: str, nearest: str) -> None:
    words = f"pretrain_gpt.py {SIZES} {flags} --bf16".split()
    with pytest.raises(InputError, match=f"the nearest, {nearest}"):
        _ = read_words(words, Options(settings={"vocab-size": "512"})).stand_in


def test_bloom_is_the_network_of_its_own_flags() -> None:
    """The flags of bigscience's tr11-176B-ml.slurm make the 176,247,271,424 parameters of bigscience/bloom's card."""
    flags = ("--num-layers 70 --hidden-size 14336 --num-attention-heads 112 --seq-length 2048 --micro-batch-size 2 "
             "--embed-layernorm --position-embedding-type alibi --bf16 --pad-vocab-size-to 250880")
    model = model_of(read_words(["pretrain_gpt.py", *flags.split()], Options()))
    assert model is not None and (model.family, model.total()) == ("bloom", 176_247_271_424)
    for other in ("--swiglu", "--normalization RMSNorm", "--disable-bias-linear", "--position-embedding-type rope"):
        assert model_of(read_words(["pretrain_gpt.py", *flags.split(), *other.split()], Options())) is None


PREDICTING = f"{LATENT} --moe-router-score-function sigmoid {OPEN} --ffn-hidden-size 640 --moe-layer-freq ([0]*1+[1]*3)"
COUNTED = {"predictions": "counted"}


@pytest.mark.parametrize(("flags", "said"), [
    (f"{PREDICTING} --mtp-num-layers 1", {**COUNTED, "term_divisor": "count", "term_axes": ()}),
    (f"{PREDICTING} --mtp-num-layers 1 --calculate-per-token-loss", {**COUNTED, "preset": "token_mean"}),
    (f"{PREDICTING} --mtp-num-layers 0", {}), (PREDICTING, {}), (f"{LLAMA} --mtp-num-layers 1", {})])
def test_what_divides_the_losses_of_later_tokens(flags: str, said: dict[str, object]) -> None:
    """Each rank and microbatch has a mean over its own; of a model that cannot have such layers nothing is said."""
    found = read_words(f"pretrain_gpt.py {SIZES} {flags} --bf16".split(), Options())
    loss = found.strategy.tables.get("loss", {})
    assert {key: tuple(v) if isinstance(v, (list, tuple)) else v for key, v in loss.items()} == said
    assert ("predictions" in loss) is bool((model := model_of(found)) and predicting(model.graph))


def test_a_number_of_later_tokens_is_a_number() -> None:
    with pytest.raises(InputError, match="mtp-num-layers is 'one': expected a whole number of at least 0"):
        read_words(f"pretrain_gpt.py {SIZES} {PREDICTING} --mtp-num-layers one".split(), Options())
