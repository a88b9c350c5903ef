"""What distinguishes one transformer from another, beyond its sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Style:
    """What distinguishes one transformer from another, or one kind of its layers from another, beyond sizes.

    `grouped` heads are kv x group. `attention_bias` and `mlp_bias` put biases on the projections; `out_bias` says it
    of attention's last one where that differs. `gated` is SwiGLU, else gelu; another `activation` is named. `rotary`
    positions, else the `positions` are learned, `alibi` (one slope per head, Press et al., arXiv 2108.12409), or
    none. `layer_norm`, else the root-mean-square norm; `norm_weight` and `norm_bias` say what it has. `dropout`
    follows attention probabilities, both outputs and the embedding. `flash` attention is one op. `tied` logits use
    the embedding. In a `parallel` block attention and MLP read one norm, or with `two_norms` each its own, and their
    outputs are added before the biases. Norms stand before attention and MLP (`pre_norm`), on what these make
    (`post_norm`), or behind the residual sum (`residual_norm`). Where it is not `fused`, root-mean-square norms are
    written out, and a gelu of a tanh (`activation` gelu_new), as eager code keeps them; with `upcast` these norms and
    attention's softmax are computed on copies of 32 bits.

    `qk_norm` normalises queries and keys: per head, or, if it is "all", all heads at once, or "each" head with a weight
    of its own; `qk_layer_norm` says that it takes the mean away, `qk_norm_weight` and `qk_norm_bias` what it has,
    `qk_norm_last` that it stands behind the rotation. `clip` bounds queries, keys and values. A `window` of positions,
    or a `chunk` of them, is what a query sees; 0 is all before it. `sinks` are one more score per head; `softcap`
    bounds scores by a tanh, `logit_softcap` logits. An attention `gate`, "full" or per "head", is a sigmoid by which
    the heads' results are multiplied; `gate_bias` says that its projection has one. `sub_norm` normalises what the last
    products of attention and MLP read.

    `experts` takes the place of the MLP by a router and experts; the gates of a token's experts are their
    probabilities among all, or, `normalized`, among the chosen. `latent` attention has queries, keys and values from
    low-rank projections, which are normalised, and a rotary part of its own in every query and in one key for all
    heads (DeepSeek-V2, arXiv 2405.04434, section 2.1). `sigmoid` scores the experts one by one; the gates are the
    scores of the chosen, `normalized` by their sum, times a constant. `shared` experts see every token, as wide as
    the others together or, `shared_own`, of a width of their own; a `shared_gate` multiplies what they make.
    `router_bias` and `expert_bias` add biases; `clip_experts` bounds what their first products make; with
    `scaled_input` the gates multiply what enters the experts; `expert_norm` normalises what experts and shared ones
    make. `adapters` stand beside the experts' last product: a second way from its input to its output, through a low
    rank (Hu et al., arXiv 2106.09685); the weights beside them train, too. A `combine_bias` is added to what the
    experts make together. `query_experts` are experts of attention, with a router of their own: each projects queries,
    and what its heads make of the keys and values of all (JetMoE, arXiv 2404.07413, section 2.3).

    A `mixer` stands in place of attention, or, with `both`, beside it, their results added: a gated "delta" rule, a
    "state" space or a short "conv". `mixer_bias` puts biases on its projections, `mixer_out_bias` says it of the last
    where that differs; `conv_bias` puts them on its convolution, which is under the layer's activation, or under
    `mixer_activation`. `key_decay` decays the state of each key by itself. A state space's result is normalised "after"
    its gate, "before" it, or not. `part`, "mixer" or "mlp", says that a layer is that half alone. Experts that are not
    `expert_gated` have one first product.

    In a `first_dense` model L_dense layers with an MLP, the unit `dense`, come before L_moe layers of experts.
    `embedding_norm`, `final_norm`, `head_bias` and `embedding_projection` say it of the two ends; `embedding_scale`,
    `residual_scale` and `logit_scale` are multiplications by constants.
    """

    grouped: bool = False
    attention_bias: bool = True
    out_bias: bool | None = None
    mlp_bias: bool = True
    gated: bool = False
    activation: str = ""
    rotary: bool = False
    positions: str = "learned"
    layer_norm: bool = True
    norm_weight: bool = True
    norm_bias: bool = True
    dropout: bool = True
    flash: bool = False
    fused: bool = True
    upcast: bool = False
    tied: bool = True
    parallel: bool = False
    two_norms: bool = False
    pre_norm: bool = True
    post_norm: bool = False
    residual_norm: bool = False
    experts: bool = False
    normalized: bool = False
    qk_norm: bool | str = False
    qk_layer_norm: bool = False
    qk_norm_weight: bool = True
    qk_norm_bias: bool = False
    qk_norm_last: bool = False
    clip: bool = False
    window: int = 0
    chunk: int = 0
    sinks: bool = False
    softcap: bool = False
    gate: str = ""
    gate_bias: bool = False
    sub_norm: bool = False
    latent: bool = False
    sigmoid: bool = False
    shared: bool = False
    shared_own: bool = False
    shared_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    clip_experts: bool = False
    scaled_input: bool = False
    expert_norm: bool = False
    combine_bias: bool = False
    query_experts: bool = False
    expert_gated: bool = True
    mixer: str = ""
    both: bool = False
    mixer_bias: bool = False
    mixer_out_bias: bool | None = None
    conv_bias: bool = False
    mixer_activation: str = ""
    key_decay: bool = False
    mixer_norm: str = ""
    part: str = ""
    first_dense: bool = False
    adapters: bool = False
    embedding_norm: bool = False
    embedding_scale: bool = False
    embedding_projection: bool = False
    residual_scale: bool = False
    final_norm: bool = True
    head_bias: bool = False
    logit_scale: bool = False
    logit_softcap: bool = False

    @property
    def written(self) -> Mapping[str, bool]:
        """How norms are written: as one op or out, and on copies of 32 bits or not."""
        return {"fused": self.fused, "upcast": self.upcast}


GPT = Style()
LLAMA = Style(grouped=True, attention_bias=False, mlp_bias=False, gated=True, rotary=True, layer_norm=False,
              dropout=False, flash=True, tied=False)
MOE = replace(LLAMA, experts=True)
MLA = replace(LLAMA, grouped=False, latent=True)
DEEPSEEK = replace(MLA, experts=True, normalized=True, sigmoid=True)
