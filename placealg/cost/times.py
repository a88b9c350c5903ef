"""The time of a step: a bound that no run at the given rates beats, and an estimate with named parameters, as sums.

Bound. A step takes at least each of its parts, since a program may overlap them all. `compute` is the arithmetic of the
stage, of attention only what a causal mask leaves, behind what other stages must do before its first op and after its
last: a microbatch passes the earlier stages' first chunks forward, and the last microbatch passes them backward. `card`
is what must cross the node's boundary (links.py), summed over all axes since they share the card; with a pipeline only
what every stage sends. `links` is all that is sent, over both the node's link and the card. `memory` is the optimizer
state, read once and written once.

Estimate. (work + latency + exposed traffic of activations) with the pipeline's bubble, and beside it what stages hand
on, the exposed traffic of parameters and gradients, what of the rest does not fit behind half the work, the update and
the transfers of other tiers. It is what the parameters make of it, and no bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from placealg.arith import Monomial
from placealg.cost.communication import LINKS, SENT_ON, Carried, executions, rows
from placealg.cost.expressions import expression
from placealg.cost.figure import Figure
from placealg.cost.flop import products_run
from placealg.cost.formula import Formula
from placealg.cost.irreducible import factored
from placealg.cost.links import crossing, in_node
from placealg.cost.stage import Stage, stage_of
from placealg.cost.sums import bytes_of, row_sum
from placealg.cost.walk import Walk, walked
from placealg.frozen import FrozenMap
from placealg.models.graph import Graph, Op
from placealg.polynomial import SUMS, Polynomial
from placealg.step.pipeline import IDLE, TIMES, starting
from placealg.step.program import Step

PART, TERM = "time.bound.", "time.estimate."
"""What the paths of the bound's parts, and of the estimate's terms, begin with."""

HYPOTHESES: Mapping[str, str] = FrozenMap({
    "peak_rates": "no device computes, and no link or memory carries, more a second than its rate",
    "as_derived": "the step runs the products and collectives that follow from the placement, in its element sizes",
    "no_in_network_reduction": "switches neither add what passes them nor copy it",
    "one_card_per_device": "what leaves a node goes through the cards of its devices, one each",
    "even_places": "every node holds equally many ranks of an axis, and stages in their order",
    "whole_backward": "a backward hands on what it is asked for only after all of its work",
    "balanced_experts": "the devices of an axis that splits experts receive equally many pairs of a token and an "
                        "expert",
})
"""Hypothesis -> its statement: a run that violates it may take less than the bound."""

PARAMETERS: FrozenMap[str, Fraction] = FrozenMap({
    "efficiency": Fraction(3, 5), "link_efficiency": Fraction(3, 4), "exposed_states": Fraction(1, 10),
    "exposed_tensors": Fraction(1), "latency": Fraction(20, 10**6),
})
"""Parameter of the estimate -> its default: a choice in the range of published steps, fitted to none of them."""

PARTS: Mapping[str, str] = FrozenMap({
    "compute": "the stage's arithmetic and the pipeline's fill, at peak_flops",
    "card": "what must cross the node's boundary, through the card",
    "links": "all that is sent, over the node's link and the card together",
    "memory": "the optimizer state read and written once",
    "host": "what moves between device and host",
    "nvme": "what moves between host and drives",
})
"""Part of the bound -> what it is."""

TERMS: Mapping[str, str] = FrozenMap({
    "work": "flop of the stage over efficiency and peak_flops",
    "tensors": "the exposed share of collectives on activations, over link_efficiency",
    "latency": "collectives on activations, each latency long before it sends",
    "bubble": "what the stage waits for others",
    "stages": "what stages hand on, over link_efficiency",
    "states": "the exposed share of collectives on parameters and gradients, over link_efficiency",
    "unhidden": "what of the rest of these does not fit behind half the work",
    "update": "the optimizer state read and written once",
    "host": "what moves between device and host",
    "nvme": "what moves between host and drives",
})
"""Term of the estimate -> what it is."""

_total = Polynomial.total
_TWICE = Polynomial.number(2)
_HALF = Polynomial.number(Fraction(1, 2))


def times(program: Step | Walk, chunks: int = 1) -> FrozenMap[str, Figure]:
    """Path -> figure, in seconds: `time.bound`, its parts, `time.estimate` and its terms; none if units run whole.

    With a pipeline they are those of one stage, each a bound of the step. `chunks` is the most chunks of layers per
    rank that a bound allows where the strategy has fewer.

    >>> import placealg as pa
    >>> found = times(pa.derive(pa.parse_strategy("zero3"), pa.gpt()))
    >>> [path.removeprefix(PART) for path in found if path.startswith(PART)]
    ['compute', 'card', 'links', 'memory']
    >>> found["time.bound.card"].names()[-1]
    'wire'
    """
    walk = walked(program)
    if walk.unknown:
        return FrozenMap()
    sent, work = [Sent.of(walk, row) for row in rows(walk) if not row.left_out], _work(walk)
    bound = {f"{PART}{name}": Figure((total,)) for name, total in _bound(walk, sent, work, chunks).items()
             if total.terms}
    terms = {name: total for name, total in _estimate(walk, sent, work).items() if total.terms}
    base = _total(terms.values())
    hidden = _unhidden(sent, terms["work"])
    return FrozenMap({
        "time.bound": Figure(tuple(piece for figure in bound.values() for piece in figure.pieces)), **bound,
        "time.estimate": Figure(tuple(base + piece for piece in hidden)),
        **{f"{TERM}{name}": Figure((total,)) for name, total in terms.items()},
        **({f"{TERM}unhidden": Figure(hidden)} if len(hidden) > 1 else {})})


class Written(Mapping[str, Formula]):
    """Path -> the figures of `times` as formulas, in rates, sizes and parameters, each written when it is asked for.

    >>> import placealg as pa
    >>> Written(pa.derive(pa.parse_strategy("zero1"), pa.gpt()))["time.bound.memory"].names
    ('o', 's', 'h', 'L', 'V', 'hbm_bw', 'dp')
    """

    def __init__(self, program: Step | Walk):
        self.walk = walked(program)
        self.figures = times(self.walk)

    def __getitem__(self, path: str) -> Formula:
        return written(self.walk, self.figures[path])

    def __iter__(self) -> Iterator[str]:
        return iter(self.figures)

    def __len__(self) -> int:
        return len(self.figures)


def least(program: Step | Walk, known: Mapping[str, Fraction]) -> dict[str, Fraction]:
    """Part of the bound -> its seconds, of those whose rates and sizes are all known.

    >>> import placealg as pa
    >>> step = pa.derive(pa.parse_strategy("zero1"), pa.gpt())
    >>> sizes = dict.fromkeys(("h", "L", "V", "s", "b", "o"), Fraction(2)) | {"dp": Fraction(4), "hbm_bw": Fraction(9)}
    >>> least(step, sizes)
    {'memory': Fraction(160, 9)}
    """
    walk = walked(program)
    at = {**walk.amounts.values, **known}
    return {path.removeprefix(PART): figure.value(at) for path, figure in times(walk).items()
            if path.startswith(PART) and set(figure.names()) <= set(at)}


def written(walk: Walk, figure: Figure) -> Formula:
    """A figure in seconds as a formula; a parameter of the estimate has its default."""
    import sympy

    pieces = [factored(expression(repr(piece))) if len(piece.terms) < _FACTORED else expression(repr(piece))
              for piece in figure.pieces]
    made = walk.amounts.made(sympy.Max(*pieces) if len(pieces) > 1 else pieces[0] if pieces else sympy.S.Zero, "s")
    names = set(figure.names())
    told = {name: value for name, value in PARAMETERS.items() if name in names}
    places = tuple(in_node(a) for a in walk.step.reference.mesh.names if in_node(a) in names)
    return Formula(made.expr, "s", values=made.values.plus(told), axes=(*made.axes, *places))


_FACTORED = 40
"""The number of terms from which a sum is left as it is."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A row of what is sent: all of it, and what of it crosses the boundary of a node."""

    row: Carried
    whole: Polynomial
    across: Polynomial

    @staticmethod
    def of(walk: Walk, row: Carried) -> Sent:
        """The volumes of a row."""
        axes = () if row.ranks is not None else row.event.axes
        crosses = crossing(row.collective, axes)
        return Sent(row, row_sum(walk, row), row_sum(walk, row, crosses) if crosses.terms else Polynomial())

    @property
    def linked(self) -> bool:
        """Whether it goes over the link of a tier of memory."""
        return self.row.event.verb in LINKS

    @property
    def handed(self) -> bool:
        """Whether a stage hands it on."""
        return self.row.event.verb == SENT_ON


def _bound(walk: Walk, sent: list[Sent], work: Polynomial, chunks: int) -> dict[str, Polynomial]:
    stage = stage_of(walk.step)
    shared = sent if not stage.several else [one for one in sent if one.handed or _repeated(walk, one.row)]
    found = {
        "compute": _over(work + _fill(walk, stage, chunks), "peak_flops"),
        "card": _over(_total(one.across for one in shared if not one.linked), "card_bw"),
        "links": Polynomial(),
        "memory": _over(_TWICE * bytes_of(walk.amounts, walk.resting["optimizer"]), "hbm_bw"),
        **_tiers(sent),
    }
    everything = _total(one.whole for one in sent if not one.linked)
    if everything.terms:
        return {**found, "links": everything.times(Monomial.of("out_bw") ** -1)}
    return found


def _estimate(walk: Walk, sent: list[Sent], work: Polynomial) -> dict[str, Polynomial]:
    """Term -> its seconds."""
    tensors = [one for one in sent if one.row.event.on_tensor and not one.linked and not one.handed]
    runs = walk.amounts.known_sum(_total(executions(walk.step, one.row.event, SUMS) for one in tensors))
    inside = {
        "work": _over(work, "peak_flops", "efficiency"),
        "tensors": _carried(tensors).times(Monomial.of("exposed_tensors")),
        "latency": runs.times(Monomial.of("latency")),
    }
    return {**inside, "bubble": _waits(stage_of(walk.step)) * _total(inside.values()),
            "stages": _carried(one for one in sent if one.handed),
            "states": _carried(_of_states(sent)).times(Monomial.of("exposed_states")),
            "update": _over(_TWICE * bytes_of(walk.amounts, walk.resting["optimizer"]), "hbm_bw"),
            **_tiers(sent)}


def _of_states(sent: list[Sent]) -> list[Sent]:
    return [one for one in sent if not one.row.event.on_tensor and not one.linked]


def _waits(stage: Stage) -> Polynomial:
    """What the stage waits over what it works; where a backward has two parts, they and a forward take equally long."""
    if stage.pipeline.actions:
        waits, works = stage.bubble
        return stage.value(f"{waits}/{works}", SUMS)
    if not stage.pipeline.splits:
        return stage.value(f"({IDLE})/(m*v)", SUMS)
    third = Polynomial.read("1/3/m")
    return Polynomial.read(repr(stage.value(stage.waiting, SUMS)), dict.fromkeys(TIMES, third))


def _unhidden(sent: list[Sent], work: Polynomial) -> tuple[Polynomial, ...]:
    """What of the traffic of parameters and gradients, but for the exposed share, does not fit behind half the work."""
    states = _carried(_of_states(sent))
    if not states.terms:
        return (Polynomial(),)
    rest = states - states.times(Monomial.of("exposed_states"))
    return Polynomial(), rest - work * _HALF


def _tiers(sent: list[Sent]) -> dict[str, Polynomial]:
    """Tier -> the seconds of its link."""
    return {tier: _over(_total(one.whole for one in sent if one.row.collective == f"{tier} link"), f"{tier}_bw")
            for tier in ("host", "nvme")}


def _carried(chosen: Iterable[Sent]) -> Polynomial:
    """The seconds of collectives: what crosses the boundary by the card, the rest in the node."""
    listed = list(chosen)
    across = _total(one.across for one in listed)
    rest = _total(one.whole for one in listed) - across
    return _over(across, "link_efficiency", "card_bw") + _over(rest, "link_efficiency", "node_bw")


def _repeated(walk: Walk, row: Carried) -> bool:
    """Whether every stage sends it: the collective belongs to a unit of which every stage has instances."""
    unit = walk.step.unit_of(row.event)
    return row.ranks is None and bool(unit) and walk.step.reference.unit(unit).repeated


def _work(walk: Walk) -> Polynomial:
    """The flop of the stage in a step, attention without what its mask leaves out."""
    return _total(_products(walk))


def _products(walk: Walk, units: Iterable[str] | None = None) -> Iterator[Polynomial]:
    graph = walk.step.reference.graph
    for event, op, dims, each in products_run(walk):
        if units is None or walk.step.unit_of(event) in units:
            kept = unmasked(graph, op) if {"seq", "seq_kv"} <= dims else Polynomial.number(1)
            yield walk.amounts.known_sum(
                (executions(walk.step, event, SUMS) * kept).times(each))


def unmasked(graph: Graph, op: Op) -> Polynomial:
    """The share of the pairs of a query and a key that a causal mask leaves, at least, within a window or a chunk.

    A window of n keys leaves query i the smaller of i and n; a chunk of n, which need not divide the sequence, at least
    half of what whole chunks would.

    >>> from placealg.models.transformer import gpt
    >>> graph = gpt().graph
    >>> unmasked(graph, graph.producer("layer.attn.core.scores"))
    1/(2*s) + 1/2
    """
    near = next((o.attrs for o in graph.ops if "mask" in o.attrs and o.region == op.region), FrozenMap[str, str]())
    length = str(graph.dims["seq"])
    if "window" in near:
        most = f"Min({length}, {near['window']})"
        return Polynomial.read(f"{most}/({length}) - {most}*({most} - 1)/2/({length})**2")
    if "chunk" in near:
        return Polynomial.read(f"(Min({length}, {near['chunk']}) + 1)/4/({length})")
    return Polynomial.read(f"1/2 + 1/2/({length})")


def _fill(walk: Walk, stage: Stage, chunks: int) -> Polynomial:
    """The flop of the chunks before the stage's first one, for one microbatch: nothing else of it can run meanwhile.

    Of a backward that has two parts nothing is known of it. Of a stage of any map of layers they are those whose places
    are less than its first one's, of the units that it runs itself.
    """
    if not stage.several or stage.pipeline.splits or (stage.any_map and (stage.first or chunks > 1)):
        return Polynomial()
    reference = walk.step.reference
    repeated = [u.name for u in reference.units if u.repeated]
    own = {u: _total(_products(walk, [u])).times(Monomial.of("m") ** -1) for u in repeated}
    if stage.any_map:
        return _total((Polynomial.name(starting(u)) - Polynomial.number(1)) * flop.times(stage.instances[u] ** -1)
                      for u, flop in own.items())
    if len(set(stage.chunks)) > 1 and not any(stage.instances[u].names() for u in own):
        before = sum(stage.chunks[:stage.number], ())
        return _total(flop * Polynomial.number(max(Fraction(before.count(u), chunks) - (chunks > 1), Fraction(0))
                                               / stage.instances[u].evaluate({}))
                      for u, flop in own.items())
    return stage.value("i/v" if chunks == 1 else f"i/Max(v, {chunks})", SUMS) * _total(own.values())


def _over(total: Polynomial, *rates: str) -> Polynomial:
    return total.times(Monomial.of(*rates) ** -1) if total.terms else total
