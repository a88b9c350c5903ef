"""Attributes of tokens as data: weights in the loss, the documents of packed sequences, positions; means of what.

They come with the batch, along batch and sequence, as tokens do, so that whatever cuts or gathers sequences cuts and
gathers them. Documents bound what a query sees: of the keys that it would see those of its document. A mean per
sequence, or per document, is one of means: of each the weighted sum over its tokens, over the sum of their weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from placealg.arith import Monomial
from placealg.frozen import FrozenMap
from placealg.models.build import Builder
from placealg.models.graph import SAMPLES, Graph, Op
from placealg.models.model import Model
from placealg.models.ops import ATTENDING, within
from placealg.models.stage_parts import predicting

WEIGHTS, DOCUMENTS, POSITIONS = "data.weights", "data.documents", "data.positions"
"""The weight of each token in the loss, the document that it is of, and its position in that."""

DOCUMENT = "document"
"""The dim of the documents of a sequence."""

BATCH, SEQUENCE = "batch", "seq"

LOSS = "loss"
"""The first loss of a model; others of an op graph are called after the units of later tokens."""


@dataclass(frozen=True, slots=True)
class Attributes:
    """Which attributes of tokens are data, and what the loss is a mean over, one of `loss_terms.PER`.

    `apart` says that the losses of layers that predict later tokens are terms of their own, not added to each token's.
    In either case a later token counts by its own weight (`weights_of`). `counted`: each of these terms is a mean over
    tokens of its own, a loss of the model. `samples` says that rows have numbers of samples, which are counted.
    """

    weights: bool = False
    documents: bool = False
    positions: bool = False
    per: str = "token"
    apart: bool = False
    counted: bool = False
    samples: bool = False

    def __bool__(self) -> bool:
        return self != Attributes()

    @property
    def weighs(self) -> bool:
        """Whether the loss of a token is multiplied by its weight: so are those of means."""
        return self.weights or self.counted or self.per != "token"


def attributes_problem(model: Model, said: Attributes) -> str:
    """Why a model cannot have these attributes; "" if it can.

    >>> from placealg.models.transformer import gpt, mlp
    >>> attributes_problem(gpt(), Attributes(documents=True)), attributes_problem(mlp(), Attributes(documents=True))
    ('', 'mlp has no attention, which alone asks for documents')
    """
    if model.opaque:
        return f"{model.name} says nothing about the ops inside its units: say --model gpt"
    graph = model.graph
    if {WEIGHTS, DOCUMENTS} & set(graph.tensors):
        return f"{model.name} has attributes of tokens of its own"
    along = next((op.output for op in graph.ops if op.row.family in ("scan", "conv")), "")
    if said.documents and along:
        return f"'{along}' of {model.name} goes along whole sequences, from one document into the next"
    if said.documents and not any(map(attends, graph.ops)):
        return f"{model.name} has no attention, which alone asks for documents"
    placed = POSITIONS in graph.tensors or any(turns(graph, op) for op in graph.ops)
    if said.positions and not (placed or said.documents):
        return f"{model.name} has neither learned nor rotary positions"
    if said.apart and not predicting(graph):
        return f"{model.name} has no layers that predict later tokens: say --mtp"
    dims = graph.tensors[graph.ops[-1].inputs[0]].dims
    if (said.per != "token" or said.samples) and not {BATCH, SEQUENCE} <= set(dims):
        return f"the loss of {model.name} has no sequences"
    if said.per == "document" and not said.documents:
        return "no documents are told: say documents = true in [tokens]"
    return ""


def attends(op: Op) -> bool:
    """Whether a query of the op sees the keys up to its own place."""
    return op.kind in ATTENDING and op.attrs.get("mask") == "causal"


def turns(graph: Graph, op: Op) -> bool:
    """Whether the op turns each token by its place."""
    return op.kind == "rope" and {BATCH, SEQUENCE} <= set(graph.tensors[op.inputs[0]].dims)


def with_attributes(model: Model, said: Attributes) -> Model:
    """The model with these attributes of tokens as data; it can have them (`attributes_problem`).

    >>> from placealg.models.transformer import gpt
    >>> made = with_attributes(gpt(), Attributes(weights=True, documents=True)).graph
    >>> [op.output for op in made.ops if "loss" in op.output], made.producer("layer.attn.core.probs").kind
    (['head.loss', 'loss.weighted', 'loss.sum'], 'softmax_within')
    """
    if not said:
        return model
    graph = model.graph
    sizes = {DOCUMENT: Monomial.of("docs")} if said.per == "document" else {}
    g = Builder.beside(graph, sizes)
    if said.documents:
        g.ids(DOCUMENTS, f"{BATCH} {SEQUENCE}")
    if said.positions and POSITIONS not in graph.tensors and any(turns(graph, op) for op in graph.ops):
        g.ids(POSITIONS, f"{BATCH} {SEQUENCE}")
    if said.samples:
        g.data(SAMPLES, BATCH)
    ops: list[Op] = []
    losses, left = {"": graph.ops[-1].inputs[0]}, set[str]()
    for op in graph.ops[:-1]:
        known = len(g.ops)
        made = [_bounded(g, graph, op) if said.documents and attends(op) else op]
        if said.positions and turns(graph, op):
            made = [replace(op, inputs=(*op.inputs, POSITIONS))]
        if op.output in _added(graph) and (said.apart or said.weighs):
            before, later = op.inputs
            losses[""] = before if before not in left else losses[""]
            left.add(op.output)
            if said.apart:
                g.sum(f"{op.unit}.sum", _counted(g, f"{op.unit}.term", {op.unit: later}, said))
            else:
                losses[op.unit] = later
            made = []
        ops += [*g.ops[known:], *made]
    known = len(g.ops)
    total = _counted(g, "loss", losses, said)
    ops += [*g.ops[known:], replace(graph.ops[-1], inputs=(total,))]
    tensors = FrozenMap({name: tensor for name, tensor in g.tensors.items() if name not in left})
    further = predicting(graph) if said.counted else ()
    return replace(model, graph=Graph(tensors, tuple(ops), graph.loops), losses=(*model.losses, *further))


def _added(graph: Graph) -> set[str]:
    """What adds the losses of layers that predict later tokens to those of tokens."""
    return {f"{unit}.losses" for unit in predicting(graph)}


def _bounded(g: Builder, graph: Graph, op: Op) -> Op:
    """The op within documents."""
    theirs = g.rename(f"{op.output.rpartition('.')[0]}.documents", DOCUMENTS, _keys(graph), region=op.region)
    return replace(op, kind=within(op.kind), inputs=(*op.inputs, DOCUMENTS, theirs.name))


def _keys(graph: Graph) -> dict[str, str]:
    """The dim of the sequence -> what it is called where it is that of keys."""
    return next({SEQUENCE: op.rename[SEQUENCE]} for op in graph.ops if SEQUENCE in op.rename)


def weights_of(unit: str) -> str:
    """The weights of the tokens that a unit predicts, each where its loss is; "" is the head, of the next token.

    >>> weights_of(""), weights_of("mtp1"), ahead(weights_of("mtp1"))
    ('data.weights', 'data.weights_mtp1', 1)
    """
    return f"{WEIGHTS}_{unit}" if unit else WEIGHTS


def weights_of_loss(loss: str) -> str:
    """The weights of the tokens of a loss: of the first of a graph, or of one called after the unit that predicts.

    >>> weights_of_loss("loss"), weights_of_loss("mtp1")
    ('data.weights', 'data.weights_mtp1')
    """
    return weights_of("" if loss == LOSS else loss)


def ahead(name: str) -> int:
    """How many tokens further than the head predicts those are of which data of this name are the weights."""
    found = re.fullmatch(rf"{re.escape(WEIGHTS)}_mtp(\d+)", name)
    return int(found[1]) if found else 0


def _counted(g: Builder, at: str, losses: Mapping[str, str], said: Attributes) -> str:
    """What a loss sums, of the losses of each token, by the unit that predicts it.

    It is each times its token's weight, or the means of these over sequences or documents, whose length is the weight
    of the tokens that the first unit predicts. Without weights there is one unit alone.
    """
    (unit, loss), *further = losses.items()
    if not said.weighs:
        return loss
    dims = tuple(g.tensors[loss].dims)
    weights = g.data(weights_of(unit), dims)
    weighted = g.mul(f"{at}.weighted", loss, weights)
    if further:
        others = [g.mul(f"{at}.weighted_{later}", each, g.data(weights_of(later), dims)) for later, each in further]
        weighted = g.add(f"{at}.together", weighted, *others)
    if said.per == "token":
        return weighted.name
    if said.per == "sequence":
        to = [d for d in dims if d != SEQUENCE]
        total, length = g.sum(f"{at}.total", weighted, to=to), g.sum(f"{at}.length", weights, to=to)
    else:
        of = g.one_hot(f"{at}.of", DOCUMENTS, DOCUMENT)
        to = [*(d for d in dims if d != SEQUENCE), DOCUMENT]
        total, length = g.einsum(f"{at}.total", weighted, of, to=to), g.einsum(f"{at}.length", weights, of, to=to)
    return g.mul(f"{at}.means", total, g.unary(f"{at}.share", length, "reciprocal")).name


def summed(graph: Graph) -> str:
    """What the loss of a graph sums, one of `loss_terms.PER`: tokens, or means of sequences or documents.

    >>> from placealg.models.transformer import gpt
    >>> summed(gpt().graph), summed(with_attributes(gpt(), Attributes(per="sequence")).graph)
    ('token', 'sequence')
    """
    dims = graph.tensors[graph.ops[-1].inputs[0]].dims if WEIGHTS in graph.tensors else (SEQUENCE,)
    return "document" if DOCUMENT in dims else "token" if SEQUENCE in dims else "sequence"


def attributes(graph: Graph) -> Iterator[str]:
    """The attributes of tokens that are data of a graph.

    >>> from placealg.models.transformer import gpt
    >>> list(attributes(with_attributes(gpt(), Attributes(weights=True)).graph))
    ['data.positions', 'data.weights']
    """
    return (name for name in graph.tensors if name in (DOCUMENTS, POSITIONS) or name.startswith(WEIGHTS))
