"""The abstract model: Psi parameters in L units, with nothing said about the network inside."""

from __future__ import annotations

from dataclasses import replace

from placealg.frozen import FrozenMap
from placealg.models.build import graph
from placealg.models.model import Model, Statistic


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


def amax() -> Model:
    """L units whose tensors are cast to 8 bits by scales, from histories of the largest magnitudes in them.

    A unit reads its histories as it reads its parameters. What a step adds to them is the largest over the tokens of
    the whole batch, taken in forward; their update, which moves a history on, is any function of the two.

    >>> amax().statistics
    {layer.amax: Statistic(of='', merge='max')}
    """
    return _with_statistics("amax", "layer.amax", Statistic(merge="max"))


def _with_statistics(name: str, parameter: str, statistic: Statistic) -> Model:
    g = graph(batch="b", element="Psi_unit", channel="h")
    x = g.repeat("layer", "L", g.data("data.input", "batch"))
    g.opaque("layer.out", x, g.parameter("layer.weight", "element"), g.parameter(parameter, "channel"), to="batch")
    g.sum("loss.sum", "layer.out")
    return replace(Model.of_graph(name, g.build()), statistics=FrozenMap({parameter: statistic}))


def statistics() -> Model:
    """L units with running statistics of what enters them, as of a batch normalisation in use or a router's bias.

    A unit reads its `running` statistics as it reads its parameters. What a step adds to them is a mean over the tokens
    of the whole batch, taken in forward; their update is any function of the two. What the same forward would read
    of its own batch is not in the model: a loss in which tokens meet is no sum over tokens.

    >>> str(statistics().of_unit("layer")[1].elements), statistics().statistics
    ('h', {layer.running: Statistic(of='', merge='mean')})
    """
    return _with_statistics("statistics", "layer.running", Statistic())
