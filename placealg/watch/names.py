"""Which parameter of placealg's model each parameter of the user's model is, by its name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cache
from itertools import takewhile

from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.config import published, resolve_model, shipped
from placealg.models.model import Model
from placealg.models.names import NUMBER, parameters_of

COMMON: tuple[tuple[str, str], ...] = (
    ("embedding.weight", r"embedding\.tokens|tok_embeddings|embed_tokens|wte|embedding\.word_embeddings"),
    ("embedding.position.weight", r"embedding\.positions|pos_embeddings|embed_positions|wpe"
                                  r"|embedding\.position_embeddings"),
    ("layer.norm1", r"{}norm1|{}ln_1|{}input_layernorm|{}attention_norm"),
    ("layer.norm2", r"{}norm2|{}ln_2|{}post_attention_layernorm|{}ffn_norm|{}pre_mlp_layernorm"),
    ("layer.attn.q", r"{}(?:attn|self_attn|attention|self_attention)\.(?:qkv_linear\.)?(?:q|wq|q_proj)"),
    ("layer.attn.k", r"{}(?:attn|self_attn|attention|self_attention)\.(?:qkv_linear\.)?(?:k|wk|k_proj)"),
    ("layer.attn.v", r"{}(?:attn|self_attn|attention|self_attention)\.(?:qkv_linear\.)?(?:v|wv|v_proj)"),
    ("layer.attn.q layer.attn.k layer.attn.v",
     r"{}(?:attn|self_attn|attention|self_attention)\.(?:qkv|c_attn|qkv_proj|linear_qkv)"),
    ("layer.attn.out", r"{}(?:attn|self_attn|attention|self_attention)\.(?:out|wo|o|o_proj|c_proj|out_proj|linear_proj"
                       r"|out\.product)"),
    ("layer.mlp.gate", r"{}(?:mlp|feed_forward)\.(?:gate|w1|gate_proj)"),
    ("layer.mlp.gate layer.mlp.up", r"{}mlp\.(?:linear_fc1|gate_up_proj)"),
    ("layer.mlp.up", r"{}(?:mlp|feed_forward)\.(?:up|w3|up_proj|c_fc|fc1|linear_fc1)"),
    ("layer.mlp.down", r"{}(?:mlp|feed_forward)\.(?:down|w2|down_proj|c_proj|fc2|linear_fc2|down\.product)"),
    ("head.norm", r"head\.norm|norm|ln_f|final_layernorm|decoder\.final_layernorm"),
    ("head", r"head\.logits|lm_head|output|output_layer"),
)
"""Parameter, or what a weight and a bias are of -> the common names of its module; {} is a layer with its number."""

USUAL = "gpt"
"""The model that is meant where nothing says another one."""

TIED = "(tied)"
"""Stands for the weight of logits in a model that ties it to the embedding: another stage of a pipeline has a copy."""

_LAYER = r"(?:layers|h|blocks|layer|decoder\.layers)\.(\d+)\."


@dataclass(frozen=True, slots=True)
class Named:
    """The parameter of placealg's model that a name means, the unit that has it, and which of its instances.

    `also` are others that are part of the same tensor, such as those of keys and values beside that of queries.
    """

    parameter: str
    unit: str
    instance: int = 0
    also: tuple[str, ...] = ()


def names_of(names: Iterable[str], model: Model, said: Mapping[str, str] | None = None) -> dict[str, Named]:
    """Name -> what it means: by the table `said` (pattern -> parameter), the model's family, or common names.

    In a pattern of `said`, {} stands for the number of a layer. A name that nothing knows is an error.

    >>> from placealg.models.config import resolve_model
    >>> names_of(["model.layers.1.self_attn.q_proj.weight"], resolve_model("llama-3-8b")).popitem()[1]
    Named(parameter='layer.attn.q.weight', unit='layer', instance=1, also=())
    """
    family = parameters_of(model)
    units = {p.name: p.unit for p in model.parameters}
    for pattern, parameter in (said or {}).items():
        if parameter not in units:
            raise InputError(f"'{pattern}' is said to be '{parameter}', which {model.name} lacks", name=parameter,
                             valid=units)
    found, unknown = {}, []
    for name in names:
        meant = _said(name, said or {}) or (
            (*family[name].parameters, family[name].instance) if name in family and family[name].parameters
            else _common(name, units))
        if meant == (TIED, 0):
            found[name] = Named("embedding.weight", "head")
        elif meant is None:
            unknown.append(name)
        else:
            first, *also, instance = meant
            found[name] = Named(str(first), units[str(first)], int(instance), tuple(map(str, also)))
    if unknown:
        raise InputError(_unknown(unknown, model, {p for n in found.values() for p in (n.parameter, *n.also)}))
    return found


def lacking(names: Iterable[str], model: Model, said: Mapping[str, str] | None = None) -> list[str]:
    """The parameters of a model that no name means.

    >>> from placealg.models.transformer import gpt
    >>> lacking(["wte.weight", "h.0.ln_1.weight", "lm_head.weight"], gpt())[:2]
    ['embedding.position.weight', 'layer.norm1.bias']
    """
    found = names_of(names, model, said).values()
    met = {p for n in found for p in (n.parameter, *n.also)}
    return [p.name for p in model.parameters if p.name not in met]


def model_by_names(names: Sequence[str], said: Mapping[str, str] | None = None) -> Model | None:
    """The first of the models here of which names mean all parameters and nothing else, without its sizes.

    >>> model_by_names(["wte.weight", "nothing.weight"]) is None
    True
    """
    for word in dict.fromkeys((USUAL, *shipped(), *published())) if names else ():
        with suppress(InputError):
            model = resolve_model(word)
            if not lacking(names, model, said):
                return replace(model, name=model.family or model.name, sizes=FrozenMap())
    return None


def _unknown(names: Sequence[str], model: Model, met: set[str]) -> str:
    """What to say of parameters that no table knows, with the parameters of the model that have no name yet."""
    first, *others = dict.fromkeys(re.sub(r"[.]([0-9]+)(?=[.]|$)", ".{}", n) for n in names)
    left = [p.name for p in model.parameters if p.name not in met]
    more = f" (nor {', '.join(repr(n) for n in others)})" if others else ""
    close = max(left, key=lambda name: _alike(first, name), default="PARAMETER")
    rest = f"{', '.join(left)} are without a name" if left else "every parameter has a name already"
    return (f"no table knows the parameter {names[0]!r}{more}: name it, as in --name '{first}={close}'; of the model "
            f"{model.name} {rest}; --model says another model")


def _alike(one: str, other: str) -> tuple[int, float]:
    """How many words two names end with alike, and how alike they are."""
    pairs = zip(reversed(one.split(".")), reversed(other.split(".")), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)), SequenceMatcher(None, one, other).ratio()


def _said(name: str, said: Mapping[str, str]) -> tuple[str | int, ...] | None:
    for pattern, parameter in said.items():
        match = re.fullmatch(re.escape(pattern).replace(re.escape(NUMBER), r"(\d+)"), name)
        if match:
            return parameter, int(match[1]) if match.groups() else 0
    return None


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((parameter, re.compile(rf"(?:.*\.)?(?:{pattern.replace('{}', _LAYER)})(?:\.(weight|bias))?\Z"))
                 for parameter, pattern in COMMON)


def _common(name: str, units: Mapping[str, str]) -> tuple[str | int, ...] | None:
    for parameter, pattern in _patterns():
        match = pattern.match(name)
        if not match:
            continue
        *numbers, last = match.groups()
        number = next((int(n) for n in numbers if n is not None), 0)
        whole = [p if p.endswith(".weight") else f"{p}.{last or 'weight'}" for p in parameter.split()]
        if all(p in units for p in whole):
            return (*whole, number)
        if parameter == "head" and whole == ["head.weight"] and "embedding.weight" in units:
            return TIED, 0
    return None


def units_of(named: Mapping[str, Named]) -> dict[str, tuple[str, int]]:
    """Module -> (unit, instance) of every module whose parameters are all of one of them."""
    found: dict[str, set[tuple[str, int]]] = {}
    for name, what in named.items():
        parts = name.split(".")
        for k in range(len(parts)):
            found.setdefault(".".join(parts[:k]), set()).add((what.unit, what.instance))
    return {module: next(iter(units)) for module, units in found.items() if len(units) == 1}


def unit_of(module: str, units: Mapping[str, tuple[str, int]]) -> tuple[str, int]:
    """The unit that a module belongs to; ("", 0) where it is none's."""
    while module and module not in units:
        module = module.rpartition(".")[0]
    return units.get(module, ("", 0))
