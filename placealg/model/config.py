"""Models from HuggingFace `config.json` files: by path, or by the name of a configuration shipped here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from placealg.arith import Monomial
from placealg.errors import InputError, nearest
from placealg.model.abstract import abstract
from placealg.model.model import Model
from placealg.model.transformer import GPT, STYLES, Style, gpt, mlp, moe, transformer

SHIPPED = Path(__file__).parent / "configs"
_LARGEST = 10**12


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a configuration: its spellings, the symbol of its size, and its default.

    `default` is None where the field is required, a monomial in other sizes, or a truth value for a
    flag, whose `symbol` is then the flag's name.
    """

    names: tuple[str, ...]
    symbol: str
    meaning: str
    default: Monomial | bool | None = None


_H, _A = Monomial.of("h"), Monomial.of("a")

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
    ),
}
"""model_type -> its fields: the one table of what is read, what is required and what it defaults to.

A field that is null is absent. A size equal to its default is written as the default.
"""

REFUSED: Mapping[str, Mapping[str, Any]] = {
    "gpt2": {"add_cross_attention": False},
    "qwen3_moe": {"decoder_sparse_step": 1, "mlp_only_layers": []},
}
"""model_type -> fields that would add parameters this reader does not know, with the value that it accepts."""


SYMBOLIC: Mapping[str, Callable[[], Model]] = {"abstract": abstract, "gpt": gpt, "mlp": mlp, "moe": moe}
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
    if text == "gpt":
        return gpt(_restyled(GPT, flash, dropout, parallel))
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
    config = _Config.read(path)
    family = config.family()
    for name, accepted in REFUSED.get(family, {}).items():
        if config.data.get(name) not in (None, accepted):
            raise InputError(f"{name} = {json.dumps(config.data[name])} adds parameters that are not read here",
                             where=config.place(name))
    fields = {f.symbol: f for f in FIELDS[family]}
    flags = {s: config.flag(f) for s, f in fields.items() if isinstance(f.default, bool)}
    given = {s: config.size(f) for s, f in fields.items() if s not in flags}
    style = _restyled(replace(STYLES[family], **flags), flash, dropout, parallel)
    return _build(config, style, fields, given, _name(path))


def _build(config: _Config, style: Style, fields: Mapping[str, Field], given: Mapping[str, int | None],
           name: str) -> Model:
    sizes = {s: n for s, n in given.items() if n is not None}
    if sizes.get("d") is None:
        config.divides("a", "h", fields, sizes)
    if style.grouped and "kv" in sizes:
        config.divides("kv", "a", fields, sizes)
    if style.experts:
        config.at_most("topk", "experts", fields, sizes)
    written = {s: Monomial.of(s) for s in given}
    for symbol, default in (("f", fields["f"].default), ("kv", _A), ("d", _H / _A)):
        if isinstance(default, Monomial):
            value = default.evaluate(sizes)
            if sizes.get(symbol, value) == value:
                written[symbol] = default
                sizes[symbol] = int(value)
    dims = {"vocab": written["V"], "embed": _H, "heads": _A, "kv": written["kv"], "group": _A / written["kv"],
            "head_dim": written["d"], "ffn": written["f"], "position": written.get("s_max", Monomial()),
            **({"expert": written["experts"], "choice": written["topk"]} if style.experts else {})}
    return Model.of_graph(name, transformer(style, dims), sizes, source=str(config.path))


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


@dataclass(frozen=True, slots=True)
class _Config:
    """A configuration's data, with its text so that an error can point at a line."""

    path: Path
    text: str
    data: Mapping[str, Any]

    @staticmethod
    def read(path: Path) -> _Config:
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise InputError(f"cannot be read: {reason}", where=str(path)) from None
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"not JSON: {error.msg}", where=f"{path}:{error.lineno}") from None
        except (RecursionError, ValueError):
            raise InputError("not a configuration: nested too deeply, or a number too long",
                             where=str(path)) from None
        if not isinstance(data, dict):
            raise InputError(f"not a configuration: the file holds {_kind(data)}, not an object", where=f"{path}:1")
        return _Config(path, text, data)

    def place(self, key: str) -> str:
        """file:line of `key`, or the file alone when the key is absent."""
        found = re.search(rf'"{re.escape(key)}"\s*:', self.text)
        return f"{self.path}:{self.text.count(chr(10), 0, found.start()) + 1}" if found else str(self.path)

    def family(self) -> str:
        families = tuple(FIELDS)
        if self.data.get("model_type") is None:
            raise InputError(f"missing field 'model_type' (one of {', '.join(families)})", where=str(self.path))
        family = self.data["model_type"]
        if not isinstance(family, str) or family not in families:
            raise InputError(f"model_type {_short(family)} is not read (families read: {', '.join(families)})",
                             where=self.place("model_type"), name=str(family),
                             valid=families if nearest(str(family), families) else ())
        return family

    def key(self, field: Field) -> str | None:
        """The spelling under which the file gives `field`; two that disagree are an InputError."""
        given = [n for n in field.names if self.data.get(n) is not None]
        if len({json.dumps(self.data[n]) for n in given}) > 1:
            raise InputError(f"'{given[0]}' and '{given[1]}' both give the {field.meaning}, and disagree: "
                             f"{_short(self.data[given[0]])} and {_short(self.data[given[1]])}",
                             where=self.place(given[1]))
        return given[0] if given else None

    def flag(self, field: Field) -> bool:
        key = self.key(field)
        if key is None:
            return bool(field.default)
        if not isinstance(self.data[key], bool):
            raise InputError(f"{key} = {_short(self.data[key])} is not true or false", where=self.place(key))
        return bool(self.data[key])

    def size(self, field: Field) -> int | None:
        key = self.key(field)
        if key is None:
            if field.default is not None:
                return None
            spellings = " or ".join(f"'{n}'" for n in field.names)
            near = next((k for n in field.names if (k := nearest(n, self.data)) and k not in _known(self.data)), "")
            hint = f"; did you mean it by '{near}'?" if near else ""
            raise InputError(f"missing field {spellings} ({field.meaning}){hint}",
                             where=self.place(near) if near else str(self.path))
        value = self.data[key]
        if type(value) is not int or not 1 <= value <= _LARGEST:
            raise InputError(f"{key} = {_short(value)}: the {field.meaning} is a whole number of at least 1"
                             + (f" and at most {_LARGEST}" if type(value) is int and value > 1 else ""),
                             where=self.place(key))
        return value

    def divides(self, part: str, whole: str, fields: Mapping[str, Field], sizes: Mapping[str, int]) -> None:
        """An InputError unless the size `part` divides the size `whole`."""
        if sizes[whole] % sizes[part]:
            names = {s: self.key(fields[s]) or fields[s].names[0] for s in (part, whole)}
            raise InputError(f"{names[whole]} = {sizes[whole]} is not divisible by {names[part]} = {sizes[part]}",
                             where=self.place(names[part]))

    def at_most(self, part: str, whole: str, fields: Mapping[str, Field], sizes: Mapping[str, int]) -> None:
        """An InputError unless the size `part` is at most the size `whole`."""
        if sizes[part] > sizes[whole]:
            names = {s: self.key(fields[s]) for s in (part, whole)}
            raise InputError(f"{names[part]} = {sizes[part]} is more than {names[whole]} = {sizes[whole]}",
                             where=self.place(str(names[part])))


def _known(data: Mapping[str, Any]) -> set[str]:
    return {n for fields in FIELDS.values() for f in fields for n in f.names if data.get(n) is not None}


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _kind(value: Any) -> str:
    return {list: "a list", str: "a string", type(None): "null", bool: "a truth value"}.get(type(value), "a number")
