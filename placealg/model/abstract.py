"""The abstract model: Psi parameters in L units, with nothing said about the network inside."""

from __future__ import annotations

from placealg.model.build import graph
from placealg.model.model import Model


def abstract() -> Model:
    """A model of Psi parameters whose largest unit has Psi_unit; its units need not be equal.

    Each unit is one opaque op from `layer.in` to `layer.out`.

    >>> abstract().total({"Psi": 70_000_000_000})
    70000000000
    """
    g = graph(batch="b", element="Psi_unit")
    x = g.repeat("layer", "L", g.data("data.input", "batch"))
    g.opaque("layer.out", x, g.parameter("layer.weight", "element"), to="batch")
    g.sum("loss.sum", "layer.out")
    return Model.of_graph("abstract", g.build(), abstract=True)
