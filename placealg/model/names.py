"""The names of parameters in a checkpoint, or in the module that it is loaded into, and which ones they are here.

A projection may be one matrix there and several here (queries, keys and values of one product); one parameter here is
several there where these are kept head by head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from placealg.arith import Monomial
from placealg.frozen import FrozenMap
from placealg.model.rule import evaluate

if TYPE_CHECKING:
    from placealg.model.family import Family
    from placealg.model.model import Model, Parameter

CORRECTION = "router.correction"
"""The entry of a family whose router's bias, which the load moves, is among the parameters of a checkpoint."""

LAYER, NUMBER, HEAD = "layer", "{}", "{head}"
"""The entry of a family's names that every name of a layer begins with, and what stands for a layer's and a head's
number."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a name of a checkpoint is here: parameters of one unit, and of which of its instances.

    It is one of `parts` equal parts of them.
    """

    parameters: tuple[str, ...]
    unit: str
    instance: int = 0
    parts: int = 1


def checkpoint_names(model: Model, family: Family, fields: Mapping[str, Any]) -> FrozenMap[str, str]:
    """Parameter -> its name in a checkpoint, with {} for the number of the layer."""
    found = {}
    for p in model.parameters:
        layered = model.unit(p.unit).repeated or p.unit in model.where
        inner = p.name.removeprefix(f"{p.unit}.").removeprefix(f"{LAYER}.") if layered else p.name
        before = family.names[LAYER] if layered else ""
        stem, _, last = inner.rpartition(".")
        said = family.names.get(inner) or family.names.get(stem, "")
        name = str(evaluate(said.removeprefix("="), fields)) if said.startswith("=") else said
        if name:
            found[p.name] = before + name + ("" if inner in family.names else f".{last}")
    return FrozenMap(found)


def parameters_of(model: Model) -> FrozenMap[str, Found]:
    """Name in a checkpoint -> the parameters of the model that it holds, for every layer.

    >>> from placealg.model.config import from_config
    >>> parameters_of(from_config("llama-3-8b"))["model.layers.31.self_attn.q_proj.weight"]
    Found(parameters=('layer.attn.q.weight',), unit='layer', instance=31, parts=1)
    """
    found: dict[str, Found] = {}
    for p in model.parameters:
        pattern = model.names.get(p.name, "")
        if not pattern:
            continue
        for k, number in enumerate(model.where.get(p.unit, (0,))):
            names = _of_heads(model, p, pattern.replace(NUMBER, str(number)))
            for name in names:
                before = found[name].parameters if name in found else ()
                found[name] = Found((*before, p.name), p.unit, k, len(names))
    for p in model.untrained:
        for k, number in enumerate(model.where[p.unit]):
            found[p.name.replace(NUMBER, str(number))] = Found((), p.unit, k)
    return FrozenMap(found)


def _of_heads(model: Model, p: Parameter, name: str) -> tuple[str, ...]:
    """The name, or, where a checkpoint keeps a parameter head by head, the names of its parts."""
    if HEAD not in name:
        return (name,)
    heads = Monomial.product(n for d, n in p.dims.items() if d != "head_dim").evaluate(model.sizes)
    return tuple(name.replace(HEAD, str(j)) for j in range(int(heads)))
