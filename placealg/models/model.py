"""What is trained: parameters with named dims, the units in which they are gathered, exact counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

from placealg.arith import Monomial
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.graph import Graph


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter tensor of one unit.

    `dims` maps each logical dim to its size as a monomial in model symbols; the element count is
    their product. `sites` are the units that use it, in forward order: two for a tied embedding.
    `rows` are the dims that make the first one of its layout in memory, as PyTorch stores it: what a product puts
    out, what a lookup chooses from, the experts of a stack of matrices; all of them where nobody says.
    `numbered` are the dims that number the matrices of a stack, such as experts: those that what a product reads and
    what it makes have both. The others are the dims of one matrix, for optimizers that act on such. None where the
    parameter is no matrix: a bias, or the weight of a norm, whatever dims it has.
    """

    name: str
    unit: str
    dims: FrozenMap[str, Monomial]
    sites: tuple[str, ...]
    rows: tuple[str, ...] = ()
    numbered: tuple[str, ...] | None = ()

    @property
    def matrix(self) -> tuple[str, ...]:
        """The dims of one matrix; () where the parameter is none."""
        if self.numbered is None or len(self.dims) < 2:
            return ()
        return tuple(d for d in self.dims if d not in self.numbered)

    @property
    def elements(self) -> Monomial:
        """Elements of one instance (one layer's, for a parameter of a layer)."""
        return Monomial.product(self.dims.values())


@dataclass(frozen=True, slots=True)
class Statistic:
    """What moves a parameter that no gradient reaches: how the batch's own statistic is taken, and merged over ranks.

    `of` is the tensor of the op graph that holds it, for the tokens of a rank: "" is any function of what enters the
    unit. `merge` is a `mean` over tokens, the `sum` over them, or the `max`: the largest.
    """

    of: str = ""
    merge: str = "mean"


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of the model that is gathered, used and freed together; `count` instances of it."""

    name: str
    count: Monomial = Monomial()

    @property
    def repeated(self) -> bool:
        """Whether there is more than one instance (the layers)."""
        return self.count != Monomial()


@dataclass(frozen=True, slots=True)
class Model:
    """A model: units in forward order, parameters, the op graph they follow from, and the sizes known as numbers.

    In an `abstract` model the units need not be equal: all of them together hold Psi parameters, the largest holds
    Psi_unit. `losses` are the terms of the loss, each a sum over tokens of its own with a normaliser of its own; the
    graph knows the first. `statistics` are those of the parameters that no gradient reaches, such as running
    statistics, with what moves each. `left_out` says in words what the network has and the model lacks.
    `untrained` are tensors among the parameters of a checkpoint that no gradient changes, with their names there. Of a
    model from a configuration, `family` is its `model_type`, `filled` what it was given for fields that the file
    leaves out, `where` the numbers of the layers of each repeated unit, `names` what parameters are called in a
    checkpoint, with {} for a layer's number.
    """

    name: str
    units: tuple[Unit, ...]
    parameters: tuple[Parameter, ...]
    sizes: FrozenMap[str, int] = FrozenMap()
    abstract: bool = False
    source: str = field(default="", compare=False)
    graph: Graph = Graph()
    left_out: tuple[str, ...] = ()
    losses: tuple[str, ...] = ("loss",)
    statistics: FrozenMap[str, Statistic] = FrozenMap()
    untrained: tuple[Parameter, ...] = ()
    family: str = field(default="", compare=False)
    filled: tuple[str, ...] = field(default=(), compare=False)
    where: FrozenMap[str, tuple[int, ...]] = field(default=FrozenMap(), compare=False)
    names: FrozenMap[str, str] = field(default=FrozenMap(), compare=False)

    @staticmethod
    def of_graph(name: str, graph: Graph, sizes: Mapping[str, int] | None = None, *, abstract: bool = False,
                 source: str = "", left_out: tuple[str, ...] = ()) -> Model:
        """The model that an op graph describes: its units, but for the loss, and its parameters with their sites.

        >>> from placealg.models.transformer import mlp
        >>> [p.name for p in mlp().of_unit("head")]
        ['head.weight']
        """
        if not graph.ops or graph.tensors[graph.ops[-1].output].dims:
            last = graph.ops[-1].output if graph.ops else ""
            raise InputError(f"model '{name}' ends in '{last}', which is not a number: the last op is the loss, "
                             "summed over every dim")
        if graph.ops[-1].kind != "sum" or graph.ops[-1].unit != "loss":
            raise InputError(f"model '{name}' ends in '{graph.ops[-1].output}' ({graph.ops[-1].kind}); the loss is the "
                             "sum of one number per token: end in a sum called loss.NAME")
        units = tuple(Unit(u, graph.count(u)) for u in graph.units if u != "loss")
        order = [u.name for u in units]
        parameters = [Parameter(t.name, t.unit, t.dims, graph.sites(t.name), _rows(graph, t.name),
                                _numbered(graph, t.name))
                      for t in graph.parameters]
        parameters.sort(key=lambda p: order.index(p.unit))
        return Model(name, units, tuple(parameters), FrozenMap(sizes), abstract, source, graph, left_out)

    def over(self, graph: Graph, sizes: Mapping[str, int] | None = None) -> Model:
        """The model with another op graph, from which units and parameters follow; `sizes` are its own unless told.

        >>> from placealg.models.transformer import gpt, mlp
        >>> [unit.name for unit in gpt().over(mlp().graph).units]
        ['layer', 'head']
        """
        made = Model.of_graph(self.name, graph, self.sizes if sizes is None else sizes)
        return replace(self, units=made.units, parameters=made.parameters, sizes=made.sizes, graph=graph)

    @staticmethod
    def from_config(path_or_name: str | Path) -> Model:
        """The model of a HuggingFace config.json, given its path, its folder, or a shipped name.

        >>> Model.from_config("gpt2").total()
        124439808
        """
        from placealg.models.config import from_config

        return from_config(path_or_name)

    @property
    def opaque(self) -> bool:
        """Whether the network inside is unknown, in part at least: then its units run whole."""
        return self.graph.whole

    def unit(self, name: str) -> Unit:
        """The unit called `name`."""
        return next(u for u in self.units if u.name == name)

    def of_unit(self, name: str) -> tuple[Parameter, ...]:
        """The parameters of one unit, in order."""
        return tuple(p for p in self.parameters if p.unit == name)

    def total(self, sizes: Mapping[str, int] | None = None) -> int:
        """The exact number of parameters, all instances and what is untrained included."""
        bound = {**self.sizes, **(sizes or {})}
        if self.abstract:
            return int(Monomial.of("Psi").evaluate(bound))
        return self._number(self.parameters, bound) + self._number(self.untrained, bound)

    def unmoved(self) -> int:
        """How many numbers of a checkpoint no gradient moves: they are of `total`, and no parameters of a program."""
        return self._number(self.untrained, self.sizes)

    def _number(self, parameters: Iterable[Parameter], bound: Mapping[str, int]) -> int:
        """The elements of all instances."""
        return int(sum(((p.elements * self.unit(p.unit).count).evaluate(bound) for p in parameters), Fraction(0)))

    def activated(self, sizes: Mapping[str, int] | None = None) -> int:
        """How many parameters one token meets: of a looked-up table one row, of experts those that are chosen.

        >>> Model.from_config("mixtral-8x7b").activated()
        12748857344
        """
        bound = {**self.sizes, **(sizes or {})}
        return int(sum(max((elements * self.unit(p.unit).count).evaluate(bound) for elements in self._met(p))
                       for p in self.parameters))

    def _met(self, p: Parameter) -> Iterator[Monomial]:
        """The elements of one instance of a parameter that one token meets in each of the ops that read it."""
        for op in self.graph.consumers(p.name):
            met = {d: Monomial() for d in op.over if op.kind == "lookup"}
            for dim, route in self.graph.tensors[op.output].sparse.items():
                if made := self.graph.producer(route):
                    met[dim] = self.graph.dims[made.over[1]]
            yield Monomial.product(met.get(d, n) for d, n in p.dims.items())


def _numbered(graph: Graph, parameter: str) -> tuple[str, ...] | None:
    """The dims of a parameter that number a stack of matrices, by the op that reads it first; None of no matrix."""
    dims, op = tuple(graph.tensors[parameter].dims), next(iter(graph.consumers(parameter)), None)
    if op is None or op.kind in ("unit", "lookup"):
        return ()
    if op.kind != "einsum":
        return None
    others = [graph.tensors[name].dims for name in op.inputs if name != parameter]
    result = graph.tensors[op.output].dims
    return tuple(d for d in dims if d in result and others and all(d in other for other in others))


def _rows(graph: Graph, parameter: str) -> tuple[str, ...]:
    """The dims of a parameter that make its first one in memory, by the op that reads it first."""
    dims = tuple(graph.tensors[parameter].dims)
    op = graph.consumers(parameter)[0] if graph.consumers(parameter) else None
    if op is None or len(dims) == 1:
        return dims
    out = graph.tensors[op.output].dims
    if op.kind == "lookup":
        return tuple(d for d in dims if d not in out)
    others = [graph.tensors[name].dims for name in op.inputs if name != parameter and name in graph.tensors]
    stacked = tuple(d for d in dims if d in out and all(d in other for other in others))
    return stacked or tuple(d for d in dims if d in out)
