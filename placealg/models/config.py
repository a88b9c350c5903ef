"""Models from HuggingFace `config.json` files: by path, or by the name of a configuration shipped here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from placealg.arith import ONE, Monomial
from placealg.errors import InputError, begun, kind, nearest, need
from placealg.frozen import FrozenMap
from placealg.mesh import SYMBOLS
from placealg.models.abstract import abstract, amax, statistics, two_losses
from placealg.models.config_file import OUTSIDE, Config, shown
from placealg.models.family import Family, lacking
from placealg.models.kinds import LayerKind, evaluated, kinds, left_out, predicted, restyled
from placealg.models.model import Model, Parameter
from placealg.models.names import CORRECTION, LAYER, checkpoint_names
from placealg.models.router_losses import balanced
from placealg.models.rule import names as named_in
from placealg.models.style import Style
from placealg.models.transformer import GPT, LATENT, MLA, gpt, mla, mlp, moe, transformer

SHIPPED = Path(__file__).parent / "configs"

PUBLISHED = Path(__file__).parent / "published.json"
"""Published configurations by their ids on huggingface.co, each held against a second source."""

_H, _A = Monomial.of("h"), Monomial.of("a")

_CHOICES = ("flash", "dropout", "parallel", "fused", "mtp")

_MAY_BE_NONE = ("shared", "f_shared", "f_dense", "q_rank", "mtp", "d_nope")
"""Sizes that may be 0: the part is not there."""

_MEANING = {"groups": "groups of experts", "chosen_groups": "groups of experts per token",
            "mtp": "layers that predict tokens after the next"}

SYMBOLIC: Mapping[str, Callable[[], Model]] = {"abstract": abstract, "amax": amax, "balanced": balanced, "gpt": gpt,
                                               "lora": partial(moe, adapters=True),
                                               "mla": mla, "mlp": mlp, "moe": moe, "statistics": statistics,
                                               "two_losses": two_losses}
"""Name -> a model whose sizes are all symbols."""


def shipped() -> tuple[str, ...]:
    """The names of the configurations inside the package, sorted.

    >>> "llama-3-70b" in shipped()
    True
    """
    return tuple(sorted(p.stem for p in SHIPPED.glob("*.json")))


@cache
def published() -> tuple[str, ...]:
    """The ids of the published configurations inside the package, sorted.

    >>> "Qwen/Qwen3-8B" in published()
    True
    """
    return tuple(sorted(k for k in Config.read(PUBLISHED).data if not k.startswith("_")))


def published_id(text: str) -> str:
    """The id of a published configuration inside the package, however its letters are; "" where there is none.

    >>> published_id("qwen/qwen3-8b"), published_id("qwen3-8b")
    ('Qwen/Qwen3-8B', '')
    """
    return next((name for name in published() if name.lower() == text.lower()), "") if "/" in text else ""


def read_model(name: str | Path, **style: Any) -> Model:
    """A model by its name, or of the config.json at a path."""
    if not isinstance(name, str | Path):
        raise InputError(f"{kind(name)} is no name of a model: 'llama-3-8b' or the path of a config.json is")
    if unknown := [option for option in style if option not in _CHOICES]:
        raise InputError(f"unknown option '{unknown[0]}'", name=unknown[0], valid=_CHOICES)
    return resolve_model(str(name), **style)


def resolve_model(text: str, *, flash: bool | None = None, dropout: bool | None = None,
                  parallel: bool = False, fused: bool = True, mtp: bool = False, upcast: bool = False) -> Model:
    """The model that a user names: one of SYMBOLIC, a shipped or published configuration, or a config.json's path.

    A published configuration is named by its id, "Qwen/Qwen3-8B". The options are those of `from_config`; a model
    without attention takes none of them.

    >>> resolve_model("abstract").name, resolve_model("gpt2").total()
    ('abstract', 124439808)
    >>> resolve_model("gpt", flash=True).graph.producer("layer.attn.core.mixed").kind
    'flash'
    """
    if text in ("gpt", "mla") and not mtp:
        model, style = (gpt, GPT) if text == "gpt" else (mla, MLA)
        return model(_restyled(style, flash, dropout, parallel, fused, upcast))
    if text not in SYMBOLIC:
        return from_config(text, flash=flash, dropout=dropout, parallel=parallel, fused=fused, mtp=mtp,
                           upcast=upcast)
    said = [name for name, value in (("flash", flash), ("dropout", dropout), ("parallel", parallel or None),
                                  ("fused", None if fused else False), ("mtp", mtp or None),
                                  ("upcast", upcast or None))
            if value is not None]
    if said:
        raise InputError(f"{' and '.join(said)}: only a transformer has that choice, and {text} is none; "
                         "say --model gpt" if "mtp" not in said else
                         f"mtp: {text} has no layers that predict tokens after the next")
    return SYMBOLIC[text]()


def has_style(text: str) -> bool:
    """Whether the model of a name has the choices of `resolve_model`: any but symbolic ones that are no transformer.

    >>> has_style("gpt"), has_style("llama-3-8b"), has_style("abstract")
    (True, True, False)
    """
    return text in ("gpt", "mla") or text not in SYMBOLIC


def _restyled(style: Style, flash: bool | None, dropout: bool | None, parallel: bool,
              fused: bool, upcast: bool) -> Style:
    """The style with the choices that were made."""
    return replace(style, parallel=parallel, fused=fused and not upcast, upcast=upcast,
                   flash=style.flash if flash is None else flash, dropout=style.dropout if dropout is None else dropout)


def from_config(path_or_name: str | Path, *, flash: bool | None = None, dropout: bool | None = None,
                parallel: bool = False, fused: bool = True, mtp: bool = False, upcast: bool = False) -> Model:
    """The model of a HuggingFace config.json, given its path, its folder, a shipped name or a published id.

    Its `model_type` names a family (`placealg.models.family`), which says which fields are read and what transformers
    fills in for those that are not there. `PATH#text_config` reads a table inside the file. `flash` says whether
    attention is one op, `dropout` whether there is dropout; None is the family's own: GPT-2 has dropout and an unfused
    attention, Llama neither. `parallel` puts attention and MLP side by side, as GPT-J does. Where norms are not
    `fused`, they and a gelu of a tanh are written out, and keep what eager code keeps; with `upcast` they and the
    softmax of attention are so computed on copies of 32 bits, as where the rest has 16. `mtp` adds the layers
    that predict tokens after the next, and their losses. Every fault of name, file
    or field is an InputError with the file and the line.

    >>> model = from_config("llama-3.1-405b")
    >>> model.total()
    405853388800
    >>> [p.elements for p in model.of_unit("layer") if p.name == "layer.attn.k.weight"]
    [h**2*kv/a]
    """
    path, part = _locate(path_or_name)
    config = Config.read(path, part)
    family = config.family()
    fields, filled = config.fields(family, fills=config.data["model_type"] not in lacking())
    sizes = _sizes(config, family, fields)
    for rule, what in family.refused.items():
        if evaluated(config, rule, fields, family):
            given = next((n for n in named_in(rule) if config.has(n)), named_in(rule)[0])
            raise InputError(f"{given} = {shown(fields.get(given))}: {family.name} then has {what}, which is not read "
                             "here", where=config.place(given))
    found = tuple(restyled(kind, flash=flash, dropout=dropout, parallel=parallel or None, fused=fused and not upcast,
                           upcast=upcast)
                  for kind in kinds(config, family, fields, sizes["L"]))
    further = _further(config, family, fields, found, sizes) if mtp else ()
    found, further, sizes = _counted(config, family, found, further, sizes)
    _check(config, family, found, sizes)
    style = next(kind.layers.style for kind in found if kind.layers.unit in ("layer", found[0].layers.unit))
    dims, sizes, predicting = _dims(style, sizes)
    layers, more = (tuple(kind.layers for kind in kinds) for kinds in (found, further))
    model = Model.of_graph(_name(path, part), transformer(style, dims, layers, more), sizes, source=_source(path, part),
                           left_out=left_out(config, found, 0 if mtp else predicting))
    model = replace(model, family=family.name, filled=_filled(filled, fields),
                    where=FrozenMap({kind.layers.unit: kind.where for kind in (*found, *further)}))
    if CORRECTION in family.names:
        name = family.names[LAYER] + family.names[CORRECTION]
        scores = FrozenMap({"expert": Monomial.of("experts")})
        model = replace(model, untrained=tuple(Parameter(name, kind.unit, scores, (kind.unit,))
                                               for kind in layers if kind.style.experts))
    return replace(model, names=checkpoint_names(model, family, fields))


def _filled(filled: tuple[str, ...], fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields that a file leaves out, each with what is filled in."""
    return tuple(dict.fromkeys(f"{f.removeprefix(OUTSIDE)} = {shown(fields[f])}" for f in filled))


def _sizes(config: Config, family: Family, fields: Mapping[str, Any]) -> dict[str, int]:
    """Symbol -> its size; what the file gives for it is a whole number in bounds."""
    def owner(text: str) -> str:
        return named_in(text)[0] if named_in(text) else ""

    for symbol, text in family.sizes.items():
        key = config.key(family, owner(text))
        if key and type(config.value(key)) is not bool and config.value(key) is not None and isinstance(
                config.value(key), (int, float, str)):
            config.whole(key, _meaning(symbol), 0 if symbol in _MAY_BE_NONE else 1)
    found: dict[str, int] = {}
    for symbol, text in family.sizes.items():
        value = evaluated(config, text, fields, family)
        if value is None and symbol not in _MAY_BE_NONE:
            if symbol in ("groups", "chosen_groups"):
                continue
            key = config.key(family, owner(text))
            what = f"{key} is null: {family.name} needs it" if key else f"missing field '{owner(text)}'"
            raise InputError(f"{what} ({_meaning(symbol)})", where=config.place(key or owner(text)))
        key = next((k for n in named_in(text) if (k := config.key(family, n))), owner(text))
        found[symbol] = config.number(key, value or 0, _meaning(symbol), 0 if symbol in _MAY_BE_NONE else 1)
    return found


def _further(config: Config, family: Family, fields: Mapping[str, Any], found: tuple[LayerKind, ...],
             sizes: Mapping[str, int]) -> tuple[LayerKind, ...]:
    """The layers that predict tokens after the next; an InputError where the configuration has none."""
    named = named_in(family.sizes["mtp"]) if family.predicting else ()
    if not named:
        raise InputError(f"mtp: {family.name} has no layers that predict tokens after the next", where=str(config.path))
    if not sizes.get("mtp"):
        name = named[0]
        raise InputError(f"mtp: {config.key(family, name) or name} says that no layer predicts tokens after the next",
                         where=config.place(config.key(family, name) or name))
    last = next(kind for kind in found if sizes["L"] - 1 in kind.where)
    return predicted(config, family, fields, last, sizes["L"], sizes["mtp"])


def _meaning(symbol: str) -> str:
    return SYMBOLS[symbol].meaning if symbol in SYMBOLS else _MEANING[symbol]


def _counted(config: Config, family: Family, found: tuple[LayerKind, ...], further: tuple[LayerKind, ...],
             sizes: dict[str, int]) -> tuple[tuple[LayerKind, ...], tuple[LayerKind, ...], dict[str, int]]:
    """The kinds and the sizes with how many layers there are of each; with no experts anywhere their sizes go."""
    experts = any(kind.layers.style.experts for kind in (*found, *further))
    if not experts and "f_dense" in sizes:
        sizes = {s: n for s, n in sizes.items() if s not in ("experts", "topk", "shared", "f_shared", "groups",
                                                              "chosen_groups")} | {"f": sizes["f_dense"]}
    if not found[0].layers.style.embedding_projection:
        sizes = {s: n for s, n in sizes.items() if s != "h_low"}
    shared = experts and bool(sizes.get("f_shared" if found[0].layers.style.shared_own else "shared"))
    if not shared:
        sizes = {s: n for s, n in sizes.items() if s not in ("shared", "f_shared")}
    found, further = (tuple(restyled(kind, shared=shared and kind.layers.style.experts) for kind in kinds)
                      for kinds in (found, further))
    dense = experts and any(not kind.layers.style.experts for kind in (*found, *further))
    if dense and not sizes.get("f_dense"):
        raise InputError(f"missing field '{named_in(family.sizes['f_dense'])[0]}' ({_meaning('f_dense')})",
                         where=str(config.path))
    sizes = {s: n for s, n in sizes.items() if s != "f_dense" or dense}
    if not any(kind.layers.style.mixer for kind in found):
        sizes = {s: n for s, n in sizes.items() if s not in _OF_MIXERS}
    if len(found) > 1:
        del sizes["L"]
        sizes |= {kind.layers.count: len(kind.where) for kind in found}
    return found, further, sizes


_OF_MIXERS = ("a_state", "kv_state", "d_key", "d_value", "taps")
"""The symbols of the sizes of mixers."""

_DIM_OF = {**LATENT, "position": "s_max", "expert": "experts", "choice": "topk", "shared": "shared",
           "shared_ffn": "f_shared", "dense_ffn": "f_dense", "embed_low": "h_low", "tap": "taps", "state_key": "d_key",
           "state_value": "d_value"}
"""Dim -> the symbol of its size, for the dims that some families have."""


def _dims(style: Style, sizes: dict[str, int]) -> tuple[dict[str, Monomial], dict[str, int], int]:
    """The dims with their sizes as written, and the sizes that are left: one equal to its default is written so."""
    written = {s: Monomial.of(s) for s in sizes}
    usual = {"kv": _A, "d": _H / _A} if not style.latent else {}
    usual |= {} if style.gated else {"f": Monomial.number(4) * _H}
    for symbol, default in usual.items():
        if symbol in sizes and default.evaluate(sizes) == sizes[symbol]:
            written[symbol] = default
    dims = {"vocab": written["V"], "embed": _H, "heads": _A, "ffn": written["f"],
            **{dim: written[s] for dim, s in _DIM_OF.items() if s in written and sizes.get(s)}}
    if "a_state" in sizes:
        heads, keys = written["a_state"], written.get("kv_state", ONE)
        several = {"state_kv": keys} if sizes.get("kv_state", 1) > 1 else {}
        dims |= {**several, "state_group": heads / keys if several else heads, "state_low": written["d_key"]}
        sizes = sizes if several else {s: n for s, n in sizes.items() if s != "kv_state"}
    dims |= {"channel": _H} if "taps" in sizes else {}
    if style.latent:
        sizes = {s: n for s, n in sizes.items() if s not in ("kv", "d")}
    else:
        dims |= {"kv": written["kv"], "group": _A / written["kv"], "head_dim": written["d"]}
    return dims, {s: n for s, n in sizes.items() if s in SYMBOLS and n}, sizes.get("mtp", 0)


def _check(config: Config, family: Family, found: tuple[LayerKind, ...], sizes: Mapping[str, int]) -> None:
    """An InputError where sizes contradict each other."""
    def said(symbol: str) -> str:
        names = named_in(family.sizes[symbol])
        return f"{next((k for n in names[:1] if (k := config.key(family, n))), names[0])} = {sizes[symbol]}"

    def wrong(what: str, symbol: str) -> InputError:
        key = config.key(family, named_in(family.sizes[symbol])[0])
        return InputError(what, where=config.place(key) if key else str(config.path))

    style = found[0].layers.style
    if style.latent:
        if config.key(family, "num_key_value_heads") and sizes.get("kv", sizes["a"]) != sizes["a"]:
            raise wrong(f"{said('kv')} is not {said('a')}: latent attention has keys and values for every head", "kv")
        if sizes["d_rope"] % 2:
            raise wrong(f"{said('d_rope')} is odd: positions rotate pairs; {sizes['d_rope'] + 1} would fit", "d_rope")
    elif sizes["h"] % sizes["a"] and sizes["d"] == sizes["h"] // sizes["a"] and not family.floors:
        raise wrong(f"{said('h')} is not divisible by {said('a')}", "a")
    for part, whole in (("kv", "a"), ("groups", "experts"), ("kv_state", "a_state")):
        if sizes.get(part) and whole in sizes and sizes[whole] % sizes[part] and not (part == "kv" and style.latent):
            raise wrong(f"{said(whole)} is not divisible by {said(part)}", part)
    for part, whole in (("topk", "experts"), ("chosen_groups", "groups")):
        if part in sizes and sizes[part] > sizes.get(whole, 1):
            raise wrong(f"{said(part)} is more than {said(whole) if whole in sizes else 1}", part)
    if "chosen_groups" in sizes and "topk" in sizes:
        most = sizes["experts"] // sizes.get("groups", 1) * sizes["chosen_groups"]
        if sizes["topk"] > most:
            raise wrong(f"{said('topk')} is more than the {most} experts of {said('chosen_groups')} of "
                        f"{said('groups')} groups", "topk")


def _locate(path_or_name: str | Path) -> tuple[Path, str]:
    need(path_or_name, (str, Path), "name of a model, nor the path of a config.json")
    text = str(path_or_name)
    if isinstance(path_or_name, str) and text in shipped():
        return SHIPPED / f"{text}.json", ""
    file, _, part = text.partition("#") if not Path(path_or_name).exists() else (text, "", "")
    path = Path(file)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return path, part
    if known := published_id(text):
        return PUBLISHED, known
    stem = path.stem if path.suffix == ".json" else text
    names = tuple(dict.fromkeys(("abstract", *shipped(), *SYMBOLIC, *(published() if "/" in text else ()))))
    alike = [n for n in names if _sizes_told(n) == _sizes_told(stem)]
    if some := begun(stem, names):
        raise InputError(f"no file and no shipped model '{text}'", name=some[0] if len(some) == 1 else "", valid=some)
    for meant in (stem, stem.rpartition("/")[2]):
        if nearest(meant, alike):
            raise InputError(f"no file and no shipped model '{text}'", name=meant, valid=alike)
    if known := next((name for name in published() if name.rpartition("/")[2].lower() == stem.lower()), ""):
        raise InputError(f"no file and no shipped model '{text}'", name=known, valid=(known,))
    if re.fullmatch(r"[\w.-]+/[\w.-]+", text) and path.suffix != ".json":
        raise InputError(f"no file and no shipped model '{text}': give the path of its config.json, which its page on "
                         "huggingface.co has")
    raise InputError(f"no file and no shipped model '{text}'", valid=names)


def _sizes_told(name: str) -> list[str]:
    """The sizes and versions in a model's name: one with others is another model.

    >>> _sizes_told("Qwen3-30B-A3B"), _sizes_told("meta-llama/Llama-3.1-405B"), _sizes_told("gpt2")
    (['30b', '3b'], ['3.1', '405b'], [])
    """
    return re.findall(r"[0-9]+(?:[.][0-9]+)?[bmk]|[0-9]+[.][0-9]+", name.lower())


def _name(path: Path, part: str) -> str:
    if path == PUBLISHED:
        return part.rpartition("/")[2]
    return (path.resolve().parent.name or path.stem) if path.name == "config.json" else path.stem


def _source(path: Path, part: str) -> str:
    return f"https://huggingface.co/{part}/blob/main/config.json" if path == PUBLISHED else str(path)
