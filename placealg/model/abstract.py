"""The abstract model: Psi parameters in L units, with nothing said about the network inside."""

from __future__ import annotations

from dataclasses import replace

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


def two_losses() -> Model:
    """The abstract model with a second term of its loss, such as one of predicting further tokens ahead.

    Its tokens are others than those of the first, and counted apart: of some tokens only one of the two is known. All
    run through the same units.

    >>> two_losses().losses
    ('loss', 'ahead')
    """
    return replace(abstract(), name="two_losses", losses=("loss", "ahead"))
