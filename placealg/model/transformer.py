"""The parameters of dense decoder transformers: which there are, with which dims, in which unit.

A table per family; the sizes are monomials, so that counts hold for every size at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from placealg.arith import ONE, Monomial
from placealg.frozen import FrozenMap
from placealg.model.model import Model, Parameter, Unit

UNITS = ("embedding", "layer", "head")
"""The units in forward order; `head` is the final norm with the logits."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One parameter of a family: its name, its dims, and the config flag that must hold for it to exist.

    `flag` "" is always; "tied" is left out, and the embedding used twice, when the embeddings are tied.
    """

    name: str
    dims: tuple[str, ...]
    flag: str = ""


_HEADS, _KV, _GROUPED = ("heads", "head_dim"), ("kv", "head_dim"), ("kv", "group", "head_dim")

TENSORS: Mapping[str, tuple[Tensor, ...]] = {
    "gpt2": (
        Tensor("embedding.weight", ("vocab", "embed")),
        Tensor("embedding.position.weight", ("position", "embed")),
        Tensor("layer.norm1.weight", ("embed",)),
        Tensor("layer.norm1.bias", ("embed",)),
        Tensor("layer.attn.q.weight", ("embed", *_HEADS)),
        Tensor("layer.attn.q.bias", _HEADS),
        Tensor("layer.attn.k.weight", ("embed", *_HEADS)),
        Tensor("layer.attn.k.bias", _HEADS),
        Tensor("layer.attn.v.weight", ("embed", *_HEADS)),
        Tensor("layer.attn.v.bias", _HEADS),
        Tensor("layer.attn.out.weight", (*_HEADS, "embed")),
        Tensor("layer.attn.out.bias", ("embed",)),
        Tensor("layer.norm2.weight", ("embed",)),
        Tensor("layer.norm2.bias", ("embed",)),
        Tensor("layer.mlp.up.weight", ("embed", "ffn")),
        Tensor("layer.mlp.up.bias", ("ffn",)),
        Tensor("layer.mlp.down.weight", ("ffn", "embed")),
        Tensor("layer.mlp.down.bias", ("embed",)),
        Tensor("head.norm.weight", ("embed",)),
        Tensor("head.norm.bias", ("embed",)),
        Tensor("head.weight", ("embed", "vocab"), "tied"),
    ),
    "llama": (
        Tensor("embedding.weight", ("vocab", "embed")),
        Tensor("layer.norm1.weight", ("embed",)),
        Tensor("layer.attn.q.weight", ("embed", *_GROUPED)),
        Tensor("layer.attn.q.bias", _GROUPED, "attention_bias"),
        Tensor("layer.attn.k.weight", ("embed", *_KV)),
        Tensor("layer.attn.k.bias", _KV, "attention_bias"),
        Tensor("layer.attn.v.weight", ("embed", *_KV)),
        Tensor("layer.attn.v.bias", _KV, "attention_bias"),
        Tensor("layer.attn.out.weight", (*_GROUPED, "embed")),
        Tensor("layer.attn.out.bias", ("embed",), "attention_bias"),
        Tensor("layer.norm2.weight", ("embed",)),
        Tensor("layer.mlp.gate.weight", ("embed", "ffn")),
        Tensor("layer.mlp.gate.bias", ("ffn",), "mlp_bias"),
        Tensor("layer.mlp.up.weight", ("embed", "ffn")),
        Tensor("layer.mlp.up.bias", ("ffn",), "mlp_bias"),
        Tensor("layer.mlp.down.weight", ("ffn", "embed")),
        Tensor("layer.mlp.down.bias", ("embed",), "mlp_bias"),
        Tensor("head.norm.weight", ("embed",)),
        Tensor("head.weight", ("embed", "vocab"), "tied"),
    ),
}
"""Family -> its parameters in forward order. Norm placement, rotary positions and dropout hold none."""


def transformer(name: str, family: str, dims: Mapping[str, Monomial], flags: Mapping[str, bool],
                sizes: Mapping[str, int], source: str = "") -> Model:
    """The model of `family` whose dims have the given sizes; `flags` say which optional tensors exist."""
    units = tuple(Unit(u, Monomial.of("L") if u == "layer" else ONE) for u in UNITS)
    return Model(name, units, tuple(_parameters(family, dims, flags)), FrozenMap(sizes), source=source)


def _parameters(family: str, dims: Mapping[str, Monomial], flags: Mapping[str, bool]) -> Iterator[Parameter]:
    for tensor in TENSORS[family]:
        if tensor.flag and flags[tensor.flag] == (tensor.flag == "tied"):
            continue
        unit = tensor.name.partition(".")[0]
        shared = tensor.name == "embedding.weight" and flags["tied"]
        yield Parameter(tensor.name, unit, FrozenMap({d: dims[d] for d in tensor.dims}),
                        (unit, "head") if shared else (unit,))
