"""The names of parameters in a checkpoint, or in the module that it is loaded into, and which ones they are here.

A projection may be one matrix there and several here (queries, keys and values of one product); one parameter here is
several there where these are kept head by head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from placealg.arith import Monomial
from placealg.frozen import FrozenMap
from placealg.models.family import families, family
from placealg.models.rule import evaluate

if TYPE_CHECKING:
    from placealg.models.family import Family
    from placealg.models.model import Model, Parameter

CORRECTION = "router.correction"
"""The entry of a family whose router's bias, which the load moves, is among the parameters of a checkpoint."""

UNMOVED = "{} numbers correct the scores of experts, moved by their load and by no gradient"
"""What of a checkpoint is therefore no parameter of a program, in words."""

PREDICTED = "mtp.layer"
"""The entry of a family's names that those of the block begin with which predicts tokens after the next, where it does
not stand behind the layers; its other parameters are named in full then."""

LAYER, NUMBER, HEAD = "layer", "{}", "{head}"
"""The entry of a family's names that every name of a layer begins with, and what stands for a layer's and a head's
number."""


@dataclass(frozen=True, slots=True)
class FoundName:
    """What a name of a checkpoint is here: parameters of one unit, and of which of its instances.

    It is one of `parts` equal parts of them.
    """

    parameters: tuple[str, ...]
    unit: str
    instance: int = 0
    parts: int = 1


def checkpoint_names(model: Model, of: Family, fields: Mapping[str, Any]) -> FrozenMap[str, str]:
    """Parameter -> its name in a checkpoint, with {} for the number of the layer."""
    found = {}
    for p in model.parameters:
        layered = model.unit(p.unit).repeated or p.unit in model.where
        own = p.name.removeprefix(f"{p.unit}.")
        inner = own.removeprefix(f"{LAYER}.") if layered else p.name
        before = of.names[LAYER] if layered else ""
        if PREDICTED in of.names and layered and not model.unit(p.unit).repeated:
            before = of.names[PREDICTED] if own != inner else ""
        stem, _, last = inner.rpartition(".")
        said = of.names.get(inner) or of.names.get(stem, "")
        name = str(evaluate(said.removeprefix("="), fields)) if said.startswith("=") else said
        if name:
            found[p.name] = before + name + ("" if inner in of.names else f".{last}")
    return FrozenMap(found)


def parameters_of(model: Model) -> FrozenMap[str, FoundName]:
    """Name in a checkpoint -> the parameters of the model that it holds, for every layer.

    >>> from placealg.models.config import from_config
    >>> parameters_of(from_config("llama-3-8b"))["model.layers.31.self_attn.q_proj.weight"]
    FoundName(parameters=('layer.attn.q.weight',), unit='layer', instance=31, parts=1)
    """
    found: dict[str, FoundName] = {}
    for p in model.parameters:
        pattern = model.names.get(p.name, "")
        if not pattern:
            continue
        for k, number in enumerate(model.where.get(p.unit, (0,))):
            names = _of_heads(model, p, pattern.replace(NUMBER, str(number)))
            for name in names:
                before = found[name].parameters if name in found else ()
                found[name] = FoundName((*before, p.name), p.unit, k, len(names))
    for p in model.untrained:
        for k, number in enumerate(model.where[p.unit]):
            found[p.name.replace(NUMBER, str(number))] = FoundName((), p.unit, k)
    return FrozenMap(found)


_DIMS: Mapping[str, str] = {"attn": "heads", "scan": "heads", "conv": "heads", "mlp": "ffn", "expert": "ffn",
                            "shared_expert": "ffn", "embedding": "vocab", "head": "vocab"}
"""The first word of a part here -> the dim along which its matrices are split."""


@cache
def _modules() -> Mapping[str, str]:
    """The end of a module's name in any family's checkpoints -> the dim that splits it, "norm" of a norm."""
    found: dict[str, str] = {}
    for name in families():
        for part, said in family(name).names.items():
            if part in (LAYER, PREDICTED, CORRECTION) or said.startswith("="):
                continue
            words = part.removesuffix(".weight").removesuffix(".bias").split(".")
            norm = any("norm" in word for word in words) or part == "norm"
            dim = "norm" if norm else _DIMS.get(words[0], "") if len(words) < 3 or words[0] == "expert" else ""
            if dim and not (dim == "vocab" and len(words) > 1):
                found.setdefault(said.replace(f".{HEAD}", ""), dim)
    return found


def split_of_name(name: str) -> str:
    """The dim along which tensor parallelism splits a parameter of this name in a checkpoint: heads, ffn or vocab.

    "norm" of a norm, "" where no family has such a name. The names are those of all families.

    >>> split_of_name("model.layers.3.self_attn.q_proj.weight"), split_of_name("transformer.h.0.mlp.c_fc.weight")
    ('heads', 'ffn')
    >>> split_of_name("model.layers.3.input_layernorm.weight"), split_of_name("fc.weight")
    ('norm', '')
    """
    words = name.removesuffix(".weight").removesuffix(".bias").split(".")
    ends = (".".join(words[k:]) for k in range(len(words)))
    return next((_modules()[end] for end in ends if end in _modules()), "")


def _of_heads(model: Model, p: Parameter, name: str) -> tuple[str, ...]:
    """The name, or, where a checkpoint keeps a parameter head by head, the names of its parts."""
    if HEAD not in name:
        return (name,)
    heads = Monomial.product(n for d, n in p.dims.items() if d != "head_dim").evaluate(model.sizes)
    return tuple(name.replace(HEAD, str(j)) for j in range(int(heads)))
