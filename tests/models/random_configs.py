"""Small configurations of a `model_type` of transformers, drawn at random, each field left out or given.

A field is told by its name and by the type that transformers declares for it; where heads or keys are left out, what
transformers fills in is what the sizes that are given fit. Needs transformers (`make models`).
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Mapping
from typing import Any

SKIPPED = re.compile(r"^_|rope|dtype|architectures|transformers_version|chunk_size_feed_forward|is_encoder_decoder|"
                     r"id2label|label2id|problem_type|return_dict|output_|is_decoder|use_cache|token_id|finetuning|"
                     r"summary|attention_types|initializer|_alpha|per_layer_config|^sub|vision|audio")
"""Fields that change no parameter, or that no random value fits."""

DEPTHS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
HEADS = ("num_attention_heads", "n_head", "num_heads", "attention_heads", "n_heads")
KEYS = ("num_key_value_heads", "num_kv_heads")
WIDTHS = ("hidden_size", "n_embd", "d_model")
ACTIVATIONS = ("hidden_act", "activation_function", "hidden_activation", "afn", "activation", "ffn_act_fn")

UNREAD = ("mlp_bias", "add_cross_attention", "use_bidirectional_attention", "apply_residual_connection_post_layernorm")
"""Flags that are true in few configurations, and often refused."""

OLDER: Mapping[str, tuple[str, ...]] = {
    "bloom": ("n_embed",), "falcon": ("n_embed",), "gemma3_text": ("sliding_window_pattern",),
    "cohere2": ("sliding_window_pattern",), "axk1": ("first_k_dense_replace", "moe_layer_freq"),
}
"""Fields that a configuration's class takes without declaring them."""

BESIDE: Mapping[str, Any] = {
    "architectures": ["ForCausalLM"], "_name_or_path": "", "torch_dtype": "bfloat16", "transformers_version": "4.50.0",
    "auto_map": {"AutoConfig": "configuration.Config"}, "pretraining_tp": 1, "quantization_config": {"bits": 8},
    "rope_theta": 10000.0, "rope_scaling": None, "use_cache": True, "attention_dropout": 0.0, "rms_norm_eps": 1e-6,
    "initializer_range": 0.02, "output_router_logits": False,
}
"""Fields of published files that change no parameter, whether a class declares them or not."""

LATENT = ("axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_linear", "minicpm3", "mistral4", "youtu")
"""Types of latent attention, which has keys and values for every head."""

KINDS: Mapping[str, tuple[str, str]] = {
    "lfm2": ("full_attention", "conv"), "lfm2_moe": ("full_attention", "conv"), **dict.fromkeys(
        ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "granitemoehybrid", "olmo_hybrid", "kimi_linear"),
        ("full_attention", "linear_attention"))}
"""Types whose layers are of other kinds than those of attention."""

REQUIRED: Mapping[str, Mapping[str, Any]] = {
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "hunyuan_v1_dense": {"head_dim": 128, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "hunyuan_v1_moe": {"head_dim": 128, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "ministral": {"head_dim": 128, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6, "n_group": 1, "topk_group": 1,
              "first_k_dense_replace": 1},
    "nemotron": {"num_key_value_heads": 8},
    "hunyuan_vl_text": {"head_dim": 128, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "deepseek_ocr2_text": {"num_experts_per_tok": 6, "mlp_layer_types": ["sparse"] * 32},
    "cohere_compass_text": {"rope_parameters": {kind: {"rope_type": "default", "rope_theta": 10000.0}
                                                for kind in ("full_attention", "sliding_attention")}},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dbrx": {"attn_config": {"rope_theta": 10000.0}},
}
"""What transformers needs to build a type that its defaults alone do not build, and what no default is known of."""


def fields(config: type) -> dict[str, tuple[Any, str]]:
    """Field of a configuration's class -> (what is filled in, its declared type)."""
    found = {}
    for f in dataclasses.fields(config):
        default = f.default if f.default is not dataclasses.MISSING else None
        found[f.name] = (default, str(f.type))
    return found


def draw(name: str, config: type, rng: random.Random, whole: bool = False) -> dict[str, Any]:
    """A configuration of the type `name`; `whole` gives every field."""
    known = fields(config)
    left = 0.0 if whole else rng.choice((0.1, 0.3, 0.6))
    omitted = {f for f in known if rng.random() < left}
    sizes = _Sizes(known, omitted, rng, KINDS.get(name, ("full_attention", "sliding_attention")))
    out: dict[str, Any] = {}
    for field, (default, declared) in known.items():
        if field in omitted or SKIPPED.search(field):
            continue
        if "None" in declared and rng.random() < 0.12:
            out[field] = None
            continue
        value = sizes.value(field, default, declared)
        if value is not None:
            out[field] = value
    causal = ("llama4_text", "gemma3_text", "aria_text", "cohere_compass_text")
    if name.endswith("_text") and name not in causal and rng.random() < 0.5:
        out["tie_word_embeddings"] = rng.random() < 0.5
    for field in OLDER.get(name, ()):
        if rng.random() < 0.3:
            out[field] = sizes.hidden if field == "n_embed" else rng.randint(1, 3)
    if rng.random() < 0.2:
        out["head_dim"] = rng.choice([None, 4, 8, 16])
    if name == "gpt_neo":
        out["attention_types"] = _patterns(sizes.layers, rng)
    if name in LATENT and "num_key_value_heads" in out and rng.random() < 0.9:
        out["num_key_value_heads"] = sizes.heads
    out = _renamed(out, {} if name == "dbrx" else getattr(config, "attribute_map", {}), rng)
    out |= {field: value for field, value in BESIDE.items() if field not in known and rng.random() < 0.2}
    for field, value in {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}.items():
        if field in known:
            out[field] = value
    if name == "dbrx":
        out |= _dbrx(rng)
    return {k: v for k, v in {**out, **_of_states(name, known, out, sizes, rng)}.items() if v != LEAVE}


LEAVE = "left out"


def _of_states(name: str, known: Mapping[str, Any], out: Mapping[str, Any], sizes: _Sizes,
               rng: random.Random) -> dict[str, Any]:
    """Sizes of states that fit each other, of layers that have them; where heads are left out, the others fit them."""
    found: dict[str, Any] = {}
    if "mamba_n_heads" in known:
        inner, heads = 2 * sizes.hidden, rng.choice([n for n in (1, 2, 4) if sizes.hidden * 2 % n == 0])
        found = {"mamba_n_heads": heads, "mamba_n_groups": rng.choice([n for n in (1, 2, 4) if heads % n == 0]),
                 "mamba_d_state": rng.choice([4, 6, 8]), "mamba_d_conv": rng.choice([2, 3, 4]), "mamba_expand": 2,
                 "mamba_d_head": rng.choice(["auto", inner // heads, LEAVE])}
        if "mamba_d_ssm" in known:
            found["mamba_d_ssm"] = rng.choice([inner, None])
        if "attn_layer_indices" in known:
            some = sorted(rng.sample(range(sizes.layers), rng.randint(0, sizes.layers)))
            found["attn_layer_indices"] = rng.choice([some, None, LEAVE])
    elif "mamba_num_heads" in known:
        heads = rng.choice([2, 4])
        kinds = [rng.choice(("linear_attention", "moe", "full_attention", "mlp")) for _ in range(sizes.layers)]
        found = {"mamba_num_heads": heads, "n_groups": rng.choice([1, 2]), "ssm_state_size": rng.choice([4, 6]),
                 "mamba_head_dim": rng.choice([4, 5]), "conv_kernel": rng.choice([2, 4]), "num_hidden_layers": LEAVE,
                 "layers_block_type": rng.choice([kinds, kinds, LEAVE]),
                 "hybrid_override_pattern": rng.choice([LEAVE, "".join(rng.choice("M*E-") for _ in kinds)]),
                 "moe_latent_size": rng.choice([None, LEAVE]),
                 "mlp_hidden_act": rng.choice(["relu2", "silu", LEAVE]), "mtp_layers_block_type": LEAVE}
    elif "linear_num_key_heads" in known:
        keys = rng.choice([1, 2, 4])
        found = {"linear_num_key_heads": keys, "linear_num_value_heads": keys * rng.choice([1, 2]),
                 "linear_key_head_dim": rng.choice([4, 6]), "linear_value_head_dim": rng.choice([4, 8]),
                 "linear_conv_kernel_dim": rng.choice([2, 4, LEAVE])}
        if name == "olmo_hybrid":
            found |= {k: rng.choice([v, None, LEAVE]) for k, v in found.items() if "conv" not in k}
        elif rng.random() < 0.3:
            found = {"linear_conv_kernel_dim": rng.choice([2, 4, LEAVE]), "full_attention_interval": rng.randint(1, 5)}
    elif "linear_num_heads" in known:
        found = {"linear_num_heads": rng.choice([1, 2, 4]), "linear_head_dim": rng.choice([4, 6]),
                 "linear_conv_kernel_dim": rng.choice([2, 3, LEAVE])}
    elif name in ("lfm2", "lfm2_moe"):
        found = {"conv_L_cache": rng.choice([2, 3, LEAVE]), "num_dense_layers": rng.randint(0, sizes.layers)}
        if name == "lfm2":
            found = {"conv_L_cache": found["conv_L_cache"], "block_multiple_of": rng.choice([1, 8, LEAVE]),
                     "block_ffn_dim_multiplier": rng.choice([1.0, 1.5, 2, None, LEAVE]),
                     "full_attn_idxs": rng.choice([[0], [], None, LEAVE])}
    return {k: v for k, v in found.items() if v == LEAVE or k in out or rng.random() < 0.8}


class _Sizes:
    """The sizes of one draw, which fit each other."""

    def __init__(self, known: Mapping[str, tuple[Any, str]], omitted: set[str], rng: random.Random,
                 kinds: tuple[str, str]):
        def left_out(names: tuple[str, ...]) -> int | None:
            return next((known[n][0] for n in names if n in omitted and known[n][0]), None)

        self.rng, self.kinds = rng, kinds
        keys = left_out(KEYS)
        self.heads = left_out(HEADS) or (keys or 1) * rng.choice([1, 2, 4]) * (1 if keys else 2)
        self.head_dim = rng.choice([4, 8, 16])
        self.hidden = left_out(WIDTHS) or self.heads * self.head_dim
        self.layers = left_out(DEPTHS) or rng.randint(1, 9)
        experts = left_out(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"))
        groups = left_out(("n_group",)) or 1
        self.experts = experts or groups * rng.choice([2, 4, 8, 16])

    def value(self, field: str, default: Any, declared: str) -> Any:
        """A value of the field, or None where it is left out."""
        rng = self.rng
        if "bool" in declared and "int" not in declared.replace("bool", ""):
            return rng.random() < (0.1 if field in UNREAD else 0.5)
        if field in ("layer_types", "mlp_layer_types", "no_rope_layers"):
            kinds = {"layer_types": self.kinds, "mlp_layer_types": ["dense", "sparse"],
                     "no_rope_layers": [0, 1]}[field]
            return [rng.choice(kinds) for _ in range(self.layers)] if rng.random() < 0.4 else None
        if field in ("moe_layers", "mlp_only_layers"):
            some = sorted(rng.sample(range(self.layers), rng.randint(0, self.layers)))
            return some if rng.random() < 0.4 else None
        if field in ACTIVATIONS:
            return {"name": "silu"} if field == "ffn_act_fn" else rng.choice(["silu", "gelu", "relu", "gelu_new"])
        if "clip" in field or "softcap" in field:
            return rng.choice([8.0, 30.0])
        return self._number(field) if "int" in declared else None

    def _number(self, field: str) -> int | None:
        rng = self.rng
        for names, value in ((DEPTHS, self.layers), (HEADS, self.heads), (WIDTHS, self.hidden)):
            if field in names:
                return value
        if field in KEYS:
            return rng.choice([n for n in (1, 2, 4, 8, self.heads) if self.heads % n == 0])
        if "layers" in field:
            if "mtp" in field or "nextn" in field:
                return rng.randint(0, 1)
            return rng.randint(0, self.layers + 1) if field in ("max_window_layers", "num_dense_layers") else None
        for pattern, values in (
                ("head_dim", (4, 8, 16)), ("intermediate|^ffn_dim|n_inner|ffn_hidden|^dff$", range(5, 40)),
                ("vocab", range(40, 90)), ("per_tok|moe_topk|moe_k$|moe_top_k", (1, 2)), ("shared_expert", (0, 1, 2)),
                ("experts", (self.experts,)), ("position|max_seq_len|n_ctx", range(16, 64)), ("rank", (4, 6, 8)),
                ("pattern|interval|step|replace|every|freq", (1, 2, 3, 4)), ("window|chunk", range(3, 20)),
                ("start_index", (0, 1, 2)), ("^n_group$", (1, 2)), ("^topk_group$", (1,)),
                ("word_embed_proj_dim", (self.hidden, max(self.hidden // 2, 1))), ("num_ln_in_parallel", (1, 2))):
            if re.search(pattern, field):
                return rng.choice(list(values))
        return None


def _renamed(table: Mapping[str, Any], names: Mapping[str, str], rng: random.Random) -> dict[str, Any]:
    """The table with some fields under the other name that the class takes for them."""
    other = {field: alias for alias, field in names.items() if alias not in table}
    return {other[f] if f in other and rng.random() < 0.15 else f: v for f, v in table.items()}


def _patterns(layers: int, rng: random.Random) -> list[Any] | None:
    """The kinds of attention of GPT-Neo: lists of kinds, each so many times."""
    if layers == 24 and rng.random() < 0.3:
        return None
    first = rng.randint(0, layers)
    kinds = [[["global", "local"], first // 2], [["local"], layers - first // 2 * 2]]
    return [[names, times] for names, times in kinds if times]


def _dbrx(rng: random.Random) -> dict[str, Any]:
    """The two tables inside a configuration of dbrx."""
    experts = {"ffn_hidden_size": rng.randint(5, 30), "moe_num_experts": rng.choice([2, 4]),
               "moe_top_k": rng.choice([1, 2])}
    attention = {"kv_n_heads": rng.choice([1, 2]), "clip_qkv": rng.choice([None, 8]), "rope_theta": 10000.0}
    return {"attn_config": attention, "ffn_config": {k: v for k, v in experts.items() if rng.random() < 0.7}}
