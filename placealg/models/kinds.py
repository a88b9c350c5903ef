"""The kinds of layers that a configuration has: equal layers are one unit, wherever they stand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from placealg.errors import InputError
from placealg.models.config_file import Config, shown
from placealg.models.experts import BALANCING
from placealg.models.family import KINDS, Family
from placealg.models.graph import DEPTH
from placealg.models.rule import LAYER, evaluate, names
from placealg.models.style import Style
from placealg.models.transformer import Layers

MOST_LAYERS = 100_000
"""Of how many layers each is asked for its kind."""

_FUNCTIONS = {"gelu": "gelu", "gelu_new": "gelu_new", "gelu_fast": "gelu", "gelu_pytorch_tanh": "gelu",
              "gelu_python": "gelu", "quick_gelu": "gelu", "silu": "silu", "swish": "silu", "relu": "relu",
              "relu2": "relu2", "tanh": "tanh", "sigmoid": "sigmoid", "": ""}
"""Activation in a configuration -> in a graph: forms of gelu have one op, but for one that may be written out."""


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Equal layers: their unit, the symbol that counts them, their style, and which layers they are."""

    layers: Layers
    where: tuple[int, ...]


def kinds(config: Config, family: Family, fields: Mapping[str, Any], depth: int) -> tuple[LayerKind, ...]:
    """The kinds of the `depth` layers, in the order in which they come first."""
    told = {k: v for k, v in family.style.items() if isinstance(v, str)}
    patterns = {k for k, v in family.pattern.items() if LAYER in _all_names(v, family)}
    varying = {k: v for k, v in told.items() if {LAYER, *patterns} & set(_all_names(v, family))}
    plain: dict[str, Any] = {k: v for k, v in family.style.items() if not isinstance(v, str)}
    plain |= {k: _said(config, v, fields, family) for k, v in told.items() if k not in varying}
    if varying and depth > MOST_LAYERS:
        raise InputError(f"{depth} layers, of which each is of one of several kinds: at most {MOST_LAYERS} are told "
                         "apart", where=config.place(names(family.sizes["L"])[0]))
    _check_lists(config, family, fields, depth)
    _check_layers(config, family, varying.get("experts", ""), fields, depth)
    found: dict[Style, list[int]] = {}
    for i in range(depth if varying else 1):
        here = {**fields, LAYER: i}
        _check_kind(config, family, here)
        each = {k: _said(config, v, here, family) for k, v in varying.items()}
        found.setdefault(_style(config, {**plain, **each}), []).append(i)
    if not varying:
        found = {style: list(range(min(depth, MOST_LAYERS))) for style in found}
    return _named(config, found)


def predicted(config: Config, family: Family, fields: Mapping[str, Any], last: LayerKind, depth: int,
              count: int) -> tuple[LayerKind, ...]:
    """The `count` layers that predict tokens after the next: units of their own, which are like the last layer."""
    here = {**fields, LAYER: depth - 1}
    options = {k: _said(config, v, here, family) if isinstance(v, str) else v for k, v in family.predicting.items()}
    told: dict[str, Any] = {k: int(v or 0) if k in ("window", "chunk") else v for k, v in options.items()}
    style = replace(last.layers.style, **told)
    return tuple(LayerKind(Layers(f"mtp{k + 1}", "1", style), (depth + k,)) for k in range(count))


def _check_lists(config: Config, family: Family, fields: Mapping[str, Any], depth: int) -> None:
    """An InputError where a list with a kind for each layer has none for some, or kinds of attention for no layer."""
    for name in (n for n in family.read if n.endswith("layer_types") and not n.startswith("mtp")):
        value = fields.get(name)
        if isinstance(value, list) and (len(value) < depth or (name == "layer_types" and len(value) > depth)):
            raise InputError(f"{name} has {len(value)} entries, and {names(family.sizes['L'])[0]} is {depth}",
                             where=config.place(config.key(family, name) or name))


def _check_layers(config: Config, family: Family, rule: str, fields: Mapping[str, Any], depth: int) -> None:
    """An InputError where what a file gives for the layers that have experts speaks of layers that are not there."""
    count = names(family.sizes["L"])[0]
    for name in (n for n in (names(rule) if rule else ()) if n in config.data):
        value = fields.get(name)
        listed = re.search(rf"\b{LAYER} (?:not )?in \(?{name}\b", rule) is not None
        if listed and isinstance(value, list) and not all(isinstance(i, int) and 0 <= i < depth for i in value):
            raise InputError(f"{name} = {shown(value)}: a list of layers, of 0 to {depth - 1}",
                             where=config.place(name))
        if isinstance(value, int) and name != LAYER and value < 0 and value != family.fields.get(name):
            raise InputError(f"{name} = {value}: a whole number of at least 0", where=config.place(name))
        if isinstance(value, int) and re.search(rf"\b{LAYER} (?:>=|<) {name}\b", rule) and value > depth:
            raise InputError(f"{name} = {value} is more than {count} = {depth}", where=config.place(name))


def _check_kind(config: Config, family: Family, fields: Mapping[str, Any]) -> None:
    """An InputError where a layer is of another kind of attention than those that are read."""
    if "kind" in family.pattern:
        kind = evaluated(config, family.pattern["kind"], fields, family)
        valid = family.kinds or KINDS
        if kind not in valid:
            raise InputError(f"layer {fields[LAYER]} is {shown(kind)}, which is not read",
                             where=config.place(names(family.pattern["kind"])[0]), name=str(kind), valid=valid[:3])


def _all_names(text: str, family: Family) -> tuple[str, ...]:
    """The names that an expression reads, those of patterns that it reads included."""
    found = names(text)
    return (*found, *(n for name in found if name in family.pattern for n in _all_names(family.pattern[name], family)))


def evaluated(config: Config, text: str, fields: Mapping[str, Any], family: Family) -> Any:
    """The value of an expression that may read patterns; a fault is placed at the first field that the file gives."""
    known = dict(fields)
    try:
        for name in _all_names(text, family):
            if name in family.pattern and name not in known:
                if LAYER in _all_names(family.pattern[name], family) and LAYER not in fields:
                    return None
                known[name] = evaluated(config, family.pattern[name], fields, family)
        return evaluate(text, known)
    except InputError as error:
        given = next((n for n in _all_names(text, family) if config.has(n)), "")
        raise error.at(config.place(given) if given else str(config.path)) from None


_said = evaluated


def _style(config: Config, options: Mapping[str, Any]) -> Style:
    functions = {name: options.get(name) or "" for name in ("activation", "mixer_activation")}
    for function in functions.values():
        if function not in _FUNCTIONS:
            key = next((k for k, v in config.data.items() if v == function), "")
            raise InputError(f"the activation {shown(function)} is not read", where=config.place(key),
                             name=str(function), valid=[f for f in _FUNCTIONS if f])
    sizes = {k: int(options.get(k) or 0) for k in ("window", "chunk")}
    return Style(**{**options, **sizes, **{name: _FUNCTIONS[function] for name, function in functions.items()}})


def _named(config: Config, found: Mapping[Style, list[int]]) -> tuple[LayerKind, ...]:
    """The kinds with their names: by what tells each from the layers that most of the model's blocks are in."""
    styles = list(found)
    if len(styles) == 1:
        return (LayerKind(Layers(DEPTH, "L", styles[0]), tuple(found[styles[0]])),)
    names = [_traits(style, styles) for style in styles]
    if "" not in names:
        names[max(range(len(styles)), key=lambda k: len(found[styles[k]]))] = ""
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        first = [str(found[s][0]) for s, n in zip(styles, names, strict=True) if n == twice]
        raise InputError(f"layers {' and '.join(first)} are of kinds that are not told apart here",
                         where=str(config.path))
    parts = {part for name in names for part in name.split("_") if part}
    rest = "L_moe" if parts == {"dense"} else "L_rotary" if parts <= {"dense", "nope"} else "L_full"
    return tuple(LayerKind(Layers(name or DEPTH, f"L_{name}" if name else rest, style), tuple(found[style]))
                 for name, style in zip(names, styles, strict=True))


def _traits(style: Style, styles: list[Style]) -> str:
    if style.part == "mlp":
        return "moe" if style.experts else "mlp"
    parts = []
    if not (style.experts or style.part) and any(s.experts for s in styles):
        parts.append("dense")
    if style.mixer and any(s.mixer != style.mixer and s.part != "mlp" for s in styles):
        return "_".join((*parts, style.mixer))
    near = {(s.window, s.chunk) for s in styles}
    if len(near) > 1 and (style.window or style.chunk):
        parts.append("window" if style.window else "chunk")
    elif len(near) == 1 and not style.rotary and any(s.rotary for s in styles):
        parts.append("nope")
    return "_".join(parts)


def restyled(kind: LayerKind, **choices: bool | None) -> LayerKind:
    """The kind with the choices that were made; None leaves one to the family."""
    told: dict[str, Any] = {k: v for k, v in choices.items() if v is not None}
    style = replace(kind.layers.style, **told)
    return LayerKind(replace(kind.layers, style=style), kind.where)


def left_out(config: Config, found: tuple[LayerKind, ...], predicting: int) -> tuple[str, ...]:
    """What a configuration has and its model lacks, each in words.

    `predicting` are the layers that predict tokens after the next one (DeepSeek-V3, arXiv 2412.19437, section 2.2).
    """
    said = [BALANCING] if any(kind.layers.style.experts for kind in found) else []
    if said and config.data.get("topk_method") == "noaux_tc":
        said.append("the bias of the experts' scores, which the load moves and no gradient: one number per expert")
    if predicting:
        said.append(f"the layers that predict tokens after the next (num_nextn_predict_layers = {predicting}), with "
                    "their parameters and their loss")
    if [i for kind in found for i in kind.where] != sorted(i for kind in found for i in kind.where):
        order = "; ".join(f"{kind.layers.unit} {_ranges(kind.where)}" for kind in found)
        said.append(f"the order of layers of different kinds, which stand together here: {order}")
    return tuple(said)


def _ranges(numbers: tuple[int, ...]) -> str:
    """Layers in few words: 0 to 3, or 1, 3, 5 and so on."""
    if len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers[:4])) + (" ..." if len(numbers) > 4 else "")
