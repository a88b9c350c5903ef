"""The abstract model: Psi parameters in L units, with nothing said about the network inside."""

from __future__ import annotations

from placealg.arith import Monomial
from placealg.frozen import FrozenMap
from placealg.model.model import Model, Parameter, Unit


def abstract() -> Model:
    """A model of Psi parameters whose largest unit has Psi_unit; its units need not be equal.

    >>> abstract().total({"Psi": 70_000_000_000})
    70000000000
    """
    layer = Unit("layer", Monomial.of("L"))
    weight = Parameter("layer.weight", layer.name, FrozenMap({"element": Monomial.of("Psi_unit")}), (layer.name,))
    return Model("abstract", (layer,), (weight,), abstract=True)
