"""What distinguishes one transformer from another, beyond its sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Style:
    """What distinguishes one transformer from another, beyond its sizes.

    `grouped` heads are kv x group. `attention_bias` and `mlp_bias` put biases on the projections. `gated` is SwiGLU,
    else gelu. `rotary` positions, else learned ones. `layer_norm`, else the root-mean-square norm. `dropout` follows
    attention probabilities, both outputs and the embedding. `flash` attention is one op. `tied` logits use the
    embedding. In a `parallel` block attention and MLP read one norm, and their outputs are added before the biases.
    `experts` takes the place of the MLP by a router and experts; the gates of a token's experts are their probabilities
    among all, or, `normalized`, among the chosen. `qk_norm` normalises queries and keys per head.

    `latent` attention has queries, keys and values from low-rank projections, which are normalised, and a rotary part
    of its own in every query and in one key for all heads (DeepSeek-V2, arXiv 2405.04434, section 2.1); no biases.
    `sigmoid` scores the experts one by one; the gates are the scores of the chosen, `normalized` by their sum, times a
    constant. `shared` experts see every token. `adapters` stand beside the experts' last product: a second way from its
    input to its output, through a low rank (Hu et al., arXiv 2106.09685); the weights beside them train, too. In a
    `first_dense` model L_dense layers with an MLP, the unit `dense`, come before L_moe layers of experts.
    """

    grouped: bool = False
    attention_bias: bool = True
    mlp_bias: bool = True
    gated: bool = False
    rotary: bool = False
    layer_norm: bool = True
    dropout: bool = True
    flash: bool = False
    tied: bool = True
    parallel: bool = False
    experts: bool = False
    normalized: bool = False
    qk_norm: bool = False
    latent: bool = False
    sigmoid: bool = False
    shared: bool = False
    first_dense: bool = False
    adapters: bool = False


GPT = Style()
LLAMA = Style(grouped=True, attention_bias=False, mlp_bias=False, gated=True, rotary=True, layer_norm=False,
              dropout=False, flash=True, tied=False)
MOE = replace(LLAMA, experts=True)
MLA = replace(LLAMA, grouped=False, latent=True)
STYLES: Mapping[str, Style] = {"gpt2": GPT, "llama": LLAMA, "mixtral": replace(MOE, normalized=True),
                               "qwen3_moe": replace(MOE, qk_norm=True),
                               "deepseek_v3": replace(MLA, experts=True, normalized=True, sigmoid=True)}
"""Family, the `model_type` of a configuration -> its style; flags of the configuration override fields."""
