"""A model of which nothing is known but what its parameters are called: units that compute anything."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from placealg.arith import Monomial
from placealg.frozen import FrozenMap
from placealg.models.build import graph
from placealg.models.graph import TAKEN
from placealg.models.model import Model
from placealg.models.names import NUMBER

NAMELESS = "this model"
"""What such a model is called."""

_LAYER = re.compile(r"(?:^|(?<=\.))\d+\.")


def opaque(names: Iterable[str]) -> Model:
    """The model whose parameters have these names: a unit for each numbered list of modules, and for each other one.

    Elements of a list that have other parameters than those before are a unit of their own. What a unit computes is any
    function of what enters it and of its parameters.

    >>> model = opaque(["emb.weight", "blocks.0.up.weight", "blocks.1.up.weight", "head.weight"])
    >>> [(u.name, str(u.count)) for u in model.units], model.where["blocks"], model.names["blocks.up.weight"]
    ([('emb', '1'), ('blocks', 'L_blocks'), ('head', '1')], (0, 1), 'blocks.{}.up.weight')
    """
    lists: dict[tuple[str, int], list[str]] = {}
    for name in names:
        found = _LAYER.search(name)
        at = (name[:found.start()], int(found[0][:-1])) if found else (name.partition(".")[0], -1)
        lists.setdefault(at, []).append(name[found.end():] if found else name.partition(".")[2])
    units: dict[str, tuple[list[str], list[int], str]] = {}
    for (prefix, number), rests in lists.items():
        base = re.sub(r"\W", "_", prefix.rstrip(".")) or "model"
        base = f"{base}_layers" if base in (*TAKEN, "data") else base
        alike = (u for u, (held, numbers, _) in units.items() if u.rstrip("0123456789").rstrip("_") == base
                 and held == rests and number >= 0 <= numbers[0])
        unit = next(alike, base if base not in units else f"{base}_{len(units)}")
        units.setdefault(unit, (rests, [], prefix))[1].append(number)
    return _model(units)


def _model(units: dict[str, tuple[list[str], list[int], str]]) -> Model:
    """The model of units, each with the rests of its parameters' names, its numbers, and what stands before them."""
    count = sum(len(rests) for rests, _, _ in units.values())
    sizes: dict[str, str | int | Monomial] = {f"e{k}": f"Psi_{k}" for k in range(count)}
    g, dims = graph({"batch": "b", **sizes}), iter(sizes)
    called: dict[str, str] = {}
    x = g.data("data.input", "batch")
    for unit, (rests, numbers, prefix) in units.items():
        if numbers[0] >= 0:
            x = g.repeat(unit, f"L_{unit}", x)
        own = []
        for rest in rests:
            own.append(g.parameter(f"{unit}.{rest}" if rest else f"{unit}.itself", next(dims)))
            called[own[-1].name] = f"{prefix}{NUMBER}.{rest}" if numbers[0] >= 0 else f"{prefix}.{rest}".rstrip(".")
        x = g.opaque(f"{unit}.out", x, *own, to="batch")
    g.sum("loss.sum", x)
    where = {unit: tuple(max(k, 0) for k in numbers) for unit, (_, numbers, _) in units.items()}
    return replace(Model.of_graph(NAMELESS, g.build(), source="the names of a run's parameters"),
                   names=FrozenMap(called), where=FrozenMap(where))
