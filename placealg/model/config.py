"""Models from HuggingFace `config.json` files: by path, or by the name of a configuration shipped here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from placealg.arith import Monomial
from placealg.errors import InputError, nearest
from placealg.mesh import SYMBOLS
from placealg.model.abstract import abstract, statistics, two_losses
from placealg.model.config_file import Config, Field, shown
from placealg.model.layers import first_dense, left_out
from placealg.model.model import Model
from placealg.model.transformer import GPT, LATENT, MLA, STYLES, Style, gpt, mla, mlp, moe, transformer

SHIPPED = Path(__file__).parent / "configs"

_H, _A, _NONE = Monomial.of("h"), Monomial.of("a"), Monomial.number(0)

_SHARED = (
    Field(("hidden_size",), "h", "hidden size"),
    Field(("num_hidden_layers",), "L", "layers"),
    Field(("num_attention_heads",), "a", "attention heads"),
    Field(("vocab_size",), "V", "vocabulary"),
    Field(("num_key_value_heads",), "kv", "key and value heads", _A),
    Field(("head_dim",), "d", "size of one attention head", _H / _A),
    Field(("tie_word_embeddings",), "tied", "logits use the embedding's weight", False),
)

FIELDS: Mapping[str, tuple[Field, ...]] = {
    "gpt2": (
        Field(("n_embd", "hidden_size"), "h", "hidden size"),
        Field(("n_layer", "num_hidden_layers"), "L", "layers"),
        Field(("n_head", "num_attention_heads"), "a", "attention heads"),
        Field(("n_positions", "max_position_embeddings"), "s_max", "learned positions"),
        Field(("vocab_size",), "V", "vocabulary"),
        Field(("n_inner", "intermediate_size"), "f", "feed-forward size", Monomial.number(4) * _H),
        Field(("tie_word_embeddings",), "tied", "logits use the embedding's weight", True),
    ),
    "llama": (
        Field(("hidden_size", "n_embd"), "h", "hidden size"),
        Field(("num_hidden_layers", "n_layer"), "L", "layers"),
        Field(("num_attention_heads", "n_head"), "a", "attention heads"),
        Field(("intermediate_size", "n_inner"), "f", "feed-forward size"),
        Field(("vocab_size",), "V", "vocabulary"),
        Field(("num_key_value_heads",), "kv", "key and value heads", _A),
        Field(("head_dim",), "d", "size of one attention head", _H / _A),
        Field(("attention_bias",), "attention_bias", "biases on q, k, v and out", False),
        Field(("mlp_bias",), "mlp_bias", "biases on gate, up and down", False),
        Field(("tie_word_embeddings",), "tied", "logits use the embedding's weight", False),
    ),
    "mixtral": (
        *_SHARED,
        Field(("intermediate_size",), "f", "feed-forward size of an expert"),
        Field(("num_local_experts", "num_experts"), "experts", "routed experts"),
        Field(("num_experts_per_tok",), "topk", "experts per token"),
    ),
    "qwen3_moe": (
        *_SHARED,
        Field(("moe_intermediate_size",), "f", "feed-forward size of an expert"),
        Field(("num_experts", "num_local_experts"), "experts", "routed experts"),
        Field(("num_experts_per_tok",), "topk", "experts per token"),
        Field(("attention_bias",), "attention_bias", "biases on q, k, v and out", False),
        Field(("norm_topk_prob",), "normalized", "gates are probabilities among the chosen experts", False),
        Field(("intermediate_size",), "f_dense", "feed-forward size of a dense layer", _NONE, 0),
        Field(("decoder_sparse_step",), "sparse_step", "distance between layers of experts", Monomial()),
    ),
    "deepseek_v3": (
        Field(("hidden_size",), "h", "hidden size"),
        Field(("num_hidden_layers",), "L", "layers"),
        Field(("num_attention_heads",), "a", "attention heads"),
        Field(("vocab_size",), "V", "vocabulary"),
        Field(("intermediate_size",), "f_dense", "feed-forward size of a dense layer"),
        Field(("moe_intermediate_size",), "f", "feed-forward size of an expert"),
        Field(("n_routed_experts",), "experts", "routed experts"),
        Field(("n_shared_experts",), "shared", "shared experts", least=0),
        Field(("num_experts_per_tok",), "topk", "experts per token"),
        Field(("first_k_dense_replace",), "L_dense", "first dense layers", least=0),
        Field(("kv_lora_rank",), "kv_rank", "rank of keys and values"),
        Field(("qk_nope_head_dim",), "d_nope", "size of the part of a head without positions"),
        Field(("qk_rope_head_dim",), "d_rope", "size of the rotary part of a head"),
        Field(("v_head_dim",), "d_v", "size of the values of a head"),
        Field(("q_lora_rank",), "q_rank", "rank of queries", _NONE, 0),
        Field(("num_key_value_heads",), "kv", "key and value heads", _A),
        Field(("moe_layer_freq",), "sparse_step", "distance between layers of experts", Monomial()),
        Field(("n_group",), "groups", "groups of experts", Monomial()),
        Field(("topk_group",), "chosen_groups", "groups of experts per token", Monomial.of("n_group")),
        Field(("num_nextn_predict_layers",), "mtp", "layers that predict tokens after the next", _NONE, 0),
        Field(("norm_topk_prob",), "normalized", "gates are divided by their sum", True),
        Field(("tie_word_embeddings",), "tied", "logits use the embedding's weight", False),
    ),
}
"""model_type -> its fields: the one table of what is read, what is required and what it defaults to.

A field that is null is absent. A size equal to its default is written as the default.
"""

REFUSED: Mapping[str, Mapping[str, tuple[Any, str]]] = {
    "gpt2": {"add_cross_attention": (False, "adds parameters that are not read here")},
    "deepseek_v3": {"attention_bias": (False, "adds parameters that are not read here"),
                    "scoring_func": ("sigmoid", "is not read here; what is read: \"sigmoid\"")},
}
"""model_type -> fields of which one value alone is read: that value, and what is said of any other."""

SYMBOLIC: Mapping[str, Callable[[], Model]] = {"abstract": abstract, "gpt": gpt, "lora": partial(moe, adapters=True),
                                               "mla": mla, "mlp": mlp, "moe": moe, "statistics": statistics,
                                               "two_losses": two_losses}
"""Name -> a model whose sizes are all symbols."""


def shipped() -> tuple[str, ...]:
    """The names of the configurations inside the package, sorted.

    >>> "llama-3-70b" in shipped()
    True
    """
    return tuple(sorted(p.stem for p in SHIPPED.glob("*.json")))


def resolve_model(text: str, *, flash: bool | None = None, dropout: bool | None = None,
                  parallel: bool = False) -> Model:
    """The model that a user names: one of SYMBOLIC, a shipped configuration, or the path of a config.json.

    The options are those of `from_config`; a model without attention takes none of them.

    >>> resolve_model("abstract").name, resolve_model("gpt2").total()
    ('abstract', 124439808)
    >>> resolve_model("gpt", flash=True).graph.producer("layer.attn.core.mixed").kind
    'flash'
    """
    if text in ("gpt", "mla"):
        model, style = (gpt, GPT) if text == "gpt" else (mla, MLA)
        return model(_restyled(style, flash, dropout, parallel))
    if text not in SYMBOLIC:
        return from_config(text, flash=flash, dropout=dropout, parallel=parallel)
    said = [name for name, value in (("flash", flash), ("dropout", dropout), ("parallel", parallel or None))
            if value is not None]
    if said:
        raise InputError(f"{' and '.join(said)}: only a transformer has that choice, and {text} is none; "
                         "say --model gpt")
    return SYMBOLIC[text]()


def _restyled(style: Style, flash: bool | None, dropout: bool | None, parallel: bool) -> Style:
    """The style with the choices that were made."""
    return replace(style, parallel=parallel, flash=style.flash if flash is None else flash,
                   dropout=style.dropout if dropout is None else dropout)


def from_config(path_or_name: str | Path, *, flash: bool | None = None, dropout: bool | None = None,
                parallel: bool = False) -> Model:
    """The model of a HuggingFace config.json, given its path, its folder, or a shipped name.

    `flash` says whether attention is one op, `dropout` whether there is dropout; None is the family's own: GPT-2
    has dropout and an unfused attention, Llama neither. `parallel` puts attention and MLP side by side, as GPT-J
    does. Required fields and defaults stand in FIELDS. Every fault of name, file or field is an InputError with the
    file and the line.

    >>> model = from_config("llama-3.1-405b")
    >>> model.total()
    405853388800
    >>> [p.elements for p in model.of_unit("layer") if p.name == "layer.attn.k.weight"]
    [h**2*kv/a]
    """
    path = _locate(path_or_name)
    config = Config.read(path, FIELDS)
    family = config.family()
    for name, (accepted, why) in REFUSED.get(family, {}).items():
        if config.data.get(name) not in (None, accepted):
            raise InputError(f"{name} = {shown(config.data[name])} {why}", where=config.place(name))
    fields = {f.symbol: f for f in FIELDS[family]}
    flags = {s: config.flag(f) for s, f in fields.items() if isinstance(f.default, bool)}
    given = {s: config.size(f) for s, f in fields.items() if s not in flags}
    style = _restyled(replace(STYLES[family], **flags), flash, dropout, parallel)
    return _build(config, style, fields, given, _name(path))


def _build(config: Config, style: Style, fields: Mapping[str, Field], given: Mapping[str, int | None],
           name: str) -> Model:
    sizes = {s: n for s, n in given.items() if n is not None}
    _check(config, style, fields, sizes)
    written = {s: Monomial.of(s) for s in given}
    heads = () if style.latent else (("kv", _A), ("d", _H / _A))
    for symbol, default in (("f", fields["f"].default), *heads):
        if isinstance(default, Monomial):
            value = default.evaluate(sizes)
            if sizes.get(symbol, value) == value:
                written[symbol] = default
                sizes[symbol] = int(value)
    predicting = sizes.get("mtp", 0)
    if style.experts:
        style, sizes = _layered(style, sizes, first_dense(config, fields, sizes))
    dims = {"vocab": written["V"], "embed": _H, "heads": _A, "ffn": written["f"],
            **{dim: written[s] for dim, s in _DIMS.items() if s in written and sizes.get(s)}}
    if style.latent:
        sizes.pop("kv", None)
    else:
        dims |= {"kv": written["kv"], "group": _A / written["kv"], "head_dim": written["d"]}
    sizes = {s: n for s, n in sizes.items() if s in SYMBOLS and n}
    return Model.of_graph(name, transformer(style, dims), sizes, source=str(config.path),
                          left_out=left_out(config.data, style.experts, predicting))


_DIMS = {**LATENT, "position": "s_max", "expert": "experts", "choice": "topk", "shared": "shared",
         "dense_ffn": "f_dense"}
"""Dim -> the symbol of its size, for the dims that some families have."""


def _layered(style: Style, sizes: Mapping[str, int], dense: int) -> tuple[Style, dict[str, int]]:
    """The style and the sizes of a model of experts whose first `dense` layers have an MLP; it may be all of them."""
    found = {s: n for s, n in sizes.items() if s not in ("L_dense", "f_dense")}
    style = replace(style, shared="shared" in found and found["shared"] > 0)
    if not dense:
        return style, found
    if dense == sizes["L"]:
        plain = {s: n for s, n in found.items() if s not in ("experts", "topk", "shared")}
        return replace(style, experts=False), {**plain, "f": sizes["f_dense"]}
    del found["L"]
    counts = {"L_dense": dense, "L_moe": sizes["L"] - dense}
    return replace(style, first_dense=True), {**found, "f_dense": sizes["f_dense"], **counts}


def _check(config: Config, style: Style, fields: Mapping[str, Field], sizes: Mapping[str, int]) -> None:
    """An InputError where sizes contradict each other."""
    def name(symbol: str) -> str:
        return config.name(fields[symbol])

    if style.latent:
        if sizes.get("kv", sizes["a"]) != sizes["a"]:
            raise InputError(f"{name('kv')} = {sizes['kv']} is not {name('a')} = {sizes['a']}: latent attention has "
                             "keys and values for every head", where=config.place(name("kv")))
        if sizes["d_rope"] % 2:
            raise InputError(f"{name('d_rope')} = {sizes['d_rope']} is odd: positions rotate pairs; "
                             f"{sizes['d_rope'] + 1} would fit", where=config.place(name("d_rope")))
    elif sizes.get("d") is None:
        config.divides("a", "h", fields, sizes)
    if style.grouped and "kv" in sizes:
        config.divides("kv", "a", fields, sizes)
    if style.experts:
        config.at_most("topk", "experts", fields, sizes)
    if "groups" in sizes:
        config.divides("groups", "experts", fields, sizes)
    if "chosen_groups" in sizes:
        config.at_most("chosen_groups", "groups", fields, {"groups": 1, **sizes})
        most = sizes["experts"] // sizes.get("groups", 1) * sizes["chosen_groups"]
        if sizes["topk"] > most:
            raise InputError(f"{name('topk')} = {sizes['topk']} is more than the {most} experts of "
                             f"{name('chosen_groups')} = {sizes['chosen_groups']} of {name('groups')} = "
                             f"{sizes.get('groups', 1)} groups", where=config.place(name("topk")))


def _locate(path_or_name: str | Path) -> Path:
    text = str(path_or_name)
    if isinstance(path_or_name, str) and text in shipped():
        return SHIPPED / f"{text}.json"
    path = Path(path_or_name)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return path
    stem = path.stem if path.suffix == ".json" else text
    names = tuple(dict.fromkeys(("abstract", *shipped(), *SYMBOLIC)))
    if nearest(stem, names):
        raise InputError(f"no file and no shipped model '{text}'", name=stem, valid=names)
    raise InputError(f"no file and no shipped model '{text}'", valid=names)


def _name(path: Path) -> str:
    return (path.resolve().parent.name or path.stem) if path.name == "config.json" else path.stem
