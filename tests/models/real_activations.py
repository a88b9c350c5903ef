"""What a real step of transformers' own code keeps and computes, held against the model here: byte for byte.

A small model of each family trains one step on the CPU in float32, some in bfloat16, too, with attention and norms
written out (`eager`); in 16 bits norms and softmax are computed on copies of 32 (`upcast`). Every
tensor that autograd saves is caught with its storage; parameters, gradients and the moments of AdamW are counted; and
`torch.utils.flop_counter` counts the products. Run by `make models`; needs transformers and torch.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from real_models import causal, config_class, read, transformers_package

from placealg.cost.flop import flop
from placealg.models.backward import saved
from placealg.models.rule import evaluate
from placealg.step.derive import derive
from placealg.strategy.expression import parse_strategy

BATCH, SEQUENCE = 2, 6
BYTES: Mapping[str, int] = {"act": 4, "w": 4, "ids": 8, "mask": 1, "stat": 4}


@dataclass(frozen=True)
class Residue:
    """What one op of transformers keeps in other bytes than the op here: a formula in the sizes, and why."""

    op: str
    formula: str
    why: str


RESIDUES: Mapping[str, Residue] = {
    "loss": Residue("head.loss", "4", "the cross entropy keeps the number of its tokens"),
    "keys": Residue("attn.core.scores, attn.core.mixed", "2*act*b*s*(a - kv)*d*L",
                    "keys and values are repeated for every head that shares them"),
    "cosines": Residue("attn.q.rotated", "2*act*s*r",
                       "cosines and sines of r rotated elements, one row for all layers"),
    "two cosines": Residue("attn.q.rotated", "16*s*r", "cosines and sines, one row for each of two kinds of layers"),
    "cosines of pairs": Residue("attn.q.rotated", "2*act*s*r*L", "cosines and sines repeated for pairs in every layer"),
    "cosines twice": Residue("attn.q.rotated, attn.k.rotated", "16*s*r*L",
                             "queries and keys each make their cosines and sines, in every layer"),
    "masks": Residue("attn.core.dropped, dropped", "3*masks", "on the CPU a dropout's mask has the activations' bytes"),
    "positions": Residue("embedding.positions", "-8*(b - 1)*s", "the positions are one row for the whole batch"),
    "one plus": Residue("norm1.out, norm2.out", "4*h*norms", "the weight is kept as one plus it, for every norm"),
    "one plus heads": Residue("attn.q.norm.out, attn.k.norm.out", "8*d*L", "the same of the norms of queries and keys"),
    "embedding scale": Residue("embedding.scaled", "4", "the constant is a tensor"),
    "split": Residue("attn.k, attn.v", "16*L", "two indices that split one product into queries, keys and values"),
    "causal": Residue("attn.core.scaled", "16*16*L", "each layer's causal mask, a truth value per pair of positions"),
    "rotary key": Residue("attn.core.rotary_scores", "4*b*s*(a - 1)*d_rope*L",
                          "one rotary key, repeated for every head"),
    "joint": Residue("attn.kv_norm.out", "4*b*s*d_rope*L", "the latent is a view of it and the rotary key"),
    "scores of experts": Residue("router.route", "4*b*s*(experts + 1)*L",
                                 "a softmax over all experts, and the sum of the chosen"),
    "indices": Residue("dispatch.pairs", "16*b*s*topk*routers*L", "the indices of the tokens of each expert"),
    "gates": Residue("combine.sum", "4*b*s*topk*routers*L", "the gates of each expert's tokens"),
    "added": Residue("combine.sum", "4*b*s*topk*h*routers*L", "what is added to the tokens, after its gate"),
    "queries": Residue("attn.combine.q", "4*b*s*topk*kv*d*L", "what is added to the queries of a token's experts"),
}

GATING = "(6*b*s*topk*h + 4*b*s*topk)*routers*L"
"""Flop of choosing and weighting experts here, which transformers does without a product of matrices."""

QUERIES = "4*b*s*topk*kv*d*L"
"""The same of experts of attention: of their queries, and of what their heads make."""


@dataclass(frozen=True)
class Case:
    """A small configuration, its residues, and sizes that their formulas need beside the model's."""

    config: Mapping[str, Any]
    residues: tuple[str, ...]
    sizes: Mapping[str, int]


def _case(residues: str, config: Mapping[str, Any] | None = None, base: str = "plain", **sizes: int) -> Case:
    return Case({**_BASES[base], **(config or {})}, ("loss", *residues.split("; ")) if residues else ("loss",), sizes)


_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_PLAIN = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48,
          "vocab_size": 50, "num_hidden_layers": 3, **_TOKENS}
_BASES: Mapping[str, Mapping[str, Any]] = {
    "plain": _PLAIN,
    "heads": {k: v for k, v in _PLAIN.items() if k != "num_key_value_heads"},
    "n_embd": {"n_embd": 32, "n_head": 4, "vocab_size": 50, "n_layer": 3, "n_positions": 16, **_TOKENS},
}
_MLA = {"num_key_value_heads": 4, "moe_intermediate_size": 16, "first_k_dense_replace": 3, "q_lora_rank": 12,
        "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 8,
        "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "num_nextn_predict_layers": 0}

CASES: Mapping[str, Case] = {
    "llama": _case("keys; cosines", r=8),
    "mistral": _case("keys; cosines", r=8),
    "qwen2": _case("keys; cosines", r=8),
    "qwen3": _case("keys; cosines", {"head_dim": 8}, r=8),
    "phi3": _case("keys; cosines", r=8),
    "granite": _case("keys; cosines", r=8),
    "olmo": _case("keys; cosines", r=8),
    "olmo2": _case("keys; cosines", r=8),
    "starcoder2": _case("keys; cosines", {"residual_dropout": 0.0, "embedding_dropout": 0.0}, r=8),
    "smollm3": _case("keys; cosines", r=8),
    "stablelm": _case("keys; cosines", r=2),
    "gemma": _case("keys; cosines; one plus; embedding scale", {"head_dim": 8}, r=8, norms=7),
    "gemma2": _case("keys; cosines; one plus; embedding scale", {"head_dim": 8}, r=8, norms=13),
    "gemma3_text": _case("keys; two cosines; one plus; one plus heads; embedding scale",
                         {"head_dim": 8, "num_hidden_layers": 6}, r=8, norms=25),
    "nemotron": _case("keys; cosines; one plus", {"head_dim": 8}, r=4, norms=7),
    "glm4": _case("keys; cosines of pairs", {"head_dim": 8}, r=4),
    "gpt_neox": _case("cosines", base="heads", r=2),
    "phi": _case("cosines", base="heads", r=4),
    "bloom": _case("", {"hidden_size": 32, "n_head": 4, "n_layer": 3, "vocab_size": 50}, "n_embd"),
    "falcon": _case("keys; cosines; split", {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3,
                                             "vocab_size": 50}, "n_embd", r=8),
    "gpt2": _case("masks; positions", base="n_embd"),
    "gptj": _case("cosines twice", {"rotary_dim": 8}, "n_embd", r=8),
    "gpt_neo": _case("positions; causal", {"hidden_size": 32, "num_heads": 4, "num_layers": 2, "vocab_size": 50,
                                           "attention_types": [[["global", "local"], 1]], "window_size": 4,
                                           "max_position_embeddings": 16}, "n_embd"),
    "deepseek_v3": _case("cosines; rotary key; joint", _MLA, r=4),
    "mixtral": _case("keys; cosines; scores of experts; indices; gates; added", {"num_local_experts": 4}, r=8),
    "jetmoe": _case("keys; cosines; indices; gates; added; queries", {"num_local_experts": 4, "kv_channels": 8,
                                                                      "num_experts_per_tok": 2}, r=8, routers=2),
}


WIDE = ("llama", "mistral", "qwen2", "qwen3", "phi3", "granite", "smollm3", "glm4")
"""The families that are run in 16 bits, too."""


@dataclass(frozen=True)
class Measured:
    """Bytes and flop of one real step."""

    parameters: int
    gradients: int
    moments: int
    activations: int
    flop: int


def measured(name: str, config: Mapping[str, Any], wide: bool) -> Measured:
    """One step of the real model: what autograd saves, and what is there after it; in 16 bits where that is `wide`."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    made = config_class(name).from_dict(dict(config))
    made._attn_implementation, made._experts_implementation = "eager", "eager"
    torch.manual_seed(0)
    model = getattr(transformers_package(), causal()[name])(made).train()
    model = model.to(torch.bfloat16) if wide else model
    tokens = torch.randint(3, 50, (BATCH, SEQUENCE))
    targets = torch.randint(3, 50, (BATCH * SEQUENCE,))
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    optimizer = torch.optim.AdamW(model.parameters())
    with FlopCounterMode(display=False) as counter, torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        logits = model(input_ids=tokens, use_cache=False).logits
        rows = logits.float().reshape(-1, logits.shape[-1])
        loss = torch.nn.functional.cross_entropy(rows, targets, reduction="sum")
        activations = sum(t.untyped_storage().nbytes() for at, t in kept.items() if at not in own)
        loss.backward()
    optimizer.step()
    states = [t for state in optimizer.state.values() for key, t in state.items() if key != "step"]
    return Measured(_bytes(model.parameters()), _bytes(p.grad for p in model.parameters() if p.grad is not None),
                    _bytes(states), activations, counter.get_total_flops())


def _bytes(tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def predicted(name: str, case: Case, wide: bool = False) -> tuple[Measured, dict[str, int]]:
    """The same by the model here, without residues; and residue -> its bytes."""
    dropout = None if name in ("gpt2",) else False
    model = read(name, case.config, flash=False, fused=False, dropout=dropout, upcast=wide)
    width = {**BYTES, "act": 2, "w": 2} if wide else BYTES
    sizes = {**model.sizes, "b": BATCH, "s": SEQUENCE}
    kept = [(s, int((s.tensor.elements * s.count).evaluate(sizes))) for s in saved(model.graph, statistics=True)]
    activations = sum(n * width[s.tensor.element] for s, n in kept)
    work = flop(derive(parse_strategy("tp_sp"), model)).value(**sizes, tp=1, m=1)
    layers = sum(n for symbol, n in sizes.items() if re.match("L(_|$)", symbol))
    known = {"routers": 1, **sizes, "L": layers, **case.sizes,
             "masks": sum(n for s, n in kept if s.tensor.element == "mask"), "kv": sizes.get("kv", sizes["a"]),
             "act": width["act"]}
    found = {residue: int(evaluate(RESIDUES[residue].formula, known)) for residue in case.residues}
    gating = int(evaluate(GATING, known)) if "experts" in sizes else 0
    gating += int(evaluate(QUERIES, known)) if "queries" in case.residues else 0
    states = width["w"] * model.total()
    return Measured(states, states, 2 * states, activations, int(work) - gating), found


def compared(name: str, wide: bool = False) -> tuple[bool, dict[str, Any]]:
    """Whether all is equal after residues, and the row of the table."""
    case = CASES[name]
    real, (here, residues) = measured(name, case.config, wide), predicted(name, case, wide)
    row = {"parameters": [here.parameters, real.parameters], "gradients": [here.gradients, real.gradients],
           "moments": [here.moments, real.moments], "flop": [here.flop, real.flop],
           "activations": [here.activations, real.activations], "residues": residues}
    equal = all(a == b for key, (a, b) in ((k, v) for k, v in row.items() if isinstance(v, list))
                if key != "activations") and here.activations + sum(residues.values()) == real.activations
    return equal, row


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        print(name, *compared(name), *(compared(name, wide=True) if name in WIDE else ()), flush=True)
