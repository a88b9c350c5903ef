"""Pipeline parallelism: which stage runs which instance of a unit, and in which order a stage runs its microbatches.

A pipeline axis splits the model along its depth. The instances of repeated units are numbered through the model; each
runs on one rank of the axis, its *stage*. What comes before the repeated units runs with the first instance, what comes
after them with the last. A step whose depth no axis splits has a pipeline too, of one stage: `ONE_STAGE`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from placealg.arith import parse
from placealg.errors import InputError
from placealg.mesh import ALONE, PREDICTION, SAID, STAGE_ENDS
from placealg.models.graph import Graph
from placealg.polynomial import Polynomial
from placealg.step.actions import Table, read_table
from placealg.step.folded import FOLDED, HELD, LEAST, folded_work
from placealg.strategy.vocabulary import BUFFERED

FIRST, LAST = STAGE_ENDS
"""The parts of a model before and after its repeated units."""

ORDERS = ("1f1b", "gpipe", "interleaved", "zb_h1", "zb_h2", "interleaved_zb", *FOLDED)
"""The orders in which a stage may run its microbatches."""

AHEAD = {"gpipe": "m*v", "1f1b": "p - 1 - i", "interleaved": "2*(p - 1 - i) + (v - 1)*p", "zb_h1": "p - 1 - i",
         "zb_h2": "2*(p - 1 - i)", "interleaved_zb": "p - 1 - i + (v - 1)*p"}
"""Order -> the number of forwards that stage i of p runs before it alternates them with backwards.

There are m*v in all, for m microbatches through v chunks. It is arithmetic that `work` evaluates, costs print and the
prover asserts.
"""

LATER = {"zb_h1": "i", "zb_h2": "2*i", "interleaved_zb": "i"}
"""Order that runs the backward for the weights apart -> by how many items stage i runs it later.

That is behind the backward for the inputs of a later microbatch; what is left runs at the end (Qi et al., arXiv
2401.10241, section 2).
"""

ENOUGH = {order: str(Polynomial.read(f"{AHEAD[order]} + {later} + 1")) for order, later in LATER.items()}
"""Order that runs the backward for the weights apart -> the most chunks of microbatches that a stage holds.

It is the sum of the forwards ahead, those put off and one. For one chunk it is the least m from which on the bubble is
as stated.
"""

TURNS = ("interleaved", "interleaved_zb")
"""The orders in which a stage takes any number of chunks in turns, and microbatches in groups of as many as stages."""

FILLED = {"zb_h1": "p", "zb_h2": "2*p - 1", **LEAST}
"""Order -> the least m from which on the bubble is as stated, where that is more than the order takes at all."""

IDLE = "p - 1"
"""The time that a stage waits in a step, in units of a forward and a backward of a chunk; its work takes m*v."""

TIMES = ("T_F", "T_B", "T_W")
"""The times of a stage's forward, and of its backward for the inputs and for the weights of its ops."""

FAST: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "zb_h1": (("m", ">=", "p"), ("T_W", "<=", "T_F")),
    "interleaved_zb": (("T_W", "<=", "T_F"),),
    "zb_h2": (("m", ">=", "2*p - 1"), ("T_W", "<=", "T_F"), ("2*T_W", "<=", "T_F + T_B")),
    "zb_v": (("m", ">=", LEAST["zb_v"]), ("T_W", "<=", "T_F"), ("T_F", "<=", "T_B")),
    "dualpipe_v": (("m", ">=", LEAST["dualpipe_v"]), ("T_W", "<=", "T_B"), ("T_B", "<=", "T_F"),
                   ("T_F", "<=", "T_B + T_W"))}
"""Order -> the conditions under which it waits as long as `waits.WAITING` says, and not longer."""

FAST_WHERE = {order: " and ".join(map(" ".join, conditions)) for order, conditions in FAST.items()}
"""The same in words."""

@dataclass(frozen=True, slots=True)
class Pipeline:
    """How a pipeline axis runs: its order, the chunks of layers per rank, and the layers of each chunk if given.

    `axis` is "" where no axis splits the depth: there is one stage then, which runs all that comes in program order.
    `chunks` is None if their number is a symbol. `stages` counts the layers of every chunk in the order of the model,
    so that chunk k runs on rank k mod ranks, or in a folded pipeline one of the second half on rank 2*ranks - 1 - k; it
    is empty if layers are spread evenly (each chunk then holds the floor or the ceiling of the quotient). `alone` are
    the parts, "first", "prediction" and "last", whose chunk has no layer, but one instance of a unit that stands there
    (`models.stage_parts`), or of `predicting` of them where those predict. `actions` are the rows of an order that is
    written down for its own number of ranks and microbatches; `order` is then the one by which its chunks are dealt.
    `messages` says how stages post what they send and receive (`step.messages`).
    """

    axis: str
    order: str = "1f1b"
    chunks: int | None = 1
    stages: tuple[int, ...] = ()
    alone: tuple[str, ...] = ()
    predicting: int = 1
    actions: tuple[str, ...] = ()
    messages: str = BUFFERED

    def ranks(self, sizes: Mapping[str, int]) -> int:
        """The number of stages at these sizes of the axes.

        >>> Pipeline("pp").ranks({"pp": 4}), ONE_STAGE.ranks({"pp": 4})
        (4, 1)
        """
        return sizes[self.axis] if self.axis else 1

    def among(self, axes: Iterable[str]) -> bool:
        """Whether stages take part in what runs along some axes."""
        return bool(self.axis) and self.axis in axes

    @property
    def splits(self) -> bool:
        """Whether the backward of an op is two events: for its inputs, and later for its weights."""
        return self.order in LATER or self.folded

    @property
    def table(self) -> Table:
        """The order that is written down."""
        return read_table(self.actions)

    @property
    def grouped(self) -> bool:
        """Whether it takes microbatches in groups of as many as there are ranks."""
        return self.order in TURNS and not self.actions

    def dealt(self, ranks: int | None, chunks: int | None = None) -> Pipeline:
        """The pipeline on so many ranks with so many chunks: a list says how many each rank has, where it is not said.

        >>> Pipeline("pp", "interleaved", None, (3, 3, 3, 3)).dealt(2).chunks
        2
        """
        if self.chunks is None and chunks is None and ranks and self.stages:
            chunks = max(1, len(self.stages) // ranks)
        return self if chunks is None or self.chunks is not None else replace(self, chunks=chunks)

    def check_groups(self, ranks: int, microbatches: int) -> None:
        """Raise an InputError if the order takes microbatches in groups that these are not."""
        if self.grouped and microbatches % ranks:
            raise InputError(f"the {self.order} order takes microbatches in groups of {self.axis} = {ranks}, which "
                             f"does not divide m = {microbatches}")

    @property
    def folded(self) -> bool:
        """Whether it is folded into a V, so that the model begins and ends on one rank."""
        return self.order in FOLDED

    def check_ends(self, ranks: int) -> None:
        """Raise an InputError if parts that stand alone leave no chunk to layers, or if two of them share a rank."""
        parts = ranks * (self.chunks or 2)
        if parts <= len(self.alone):
            raise InputError(f"{self.axis} = {ranks} makes {parts} stage{'s' * (parts > 1)}{self._without('no layer')};"
                             f" at least {1 + len(self.alone)} are needed")
        if ranks < self.least:
            raise InputError(f"{self.axis} = {ranks} puts the layers that predict on the rank of the embedding, whose "
                             f"weights they share, in another chunk; at least {self.axis} = {self.least} is needed")

    def _without(self, what: str) -> str:
        """The parts that run no layer, in words; "" if there are none."""
        ends = " and the ".join(SAID.get(end, end) for end in self.alone)
        return f", and the {ends} run{'s' * (len(self.alone) == 1)} {what}" if ends else ""

    @property
    def least(self) -> int:
        """The fewest ranks with which parts that stand alone leave a chunk to layers; 2 chunks if v is a symbol.

        The layers that predict are on another rank than the embedding, the weights of which they use, too.
        """
        apart = 3 if PREDICTION in self.alone and self.chunks != 1 and not self.folded else 1
        return max(apart, -(-(1 + len(self.alone)) // (self.chunks or 2)))

    def predicting_rank(self, ranks: int) -> int:
        """The rank that runs the layers that predict, where these stand alone: with the last chunk but one.

        >>> Pipeline("pp").predicting_rank(4), Pipeline("pp", "zb_v", 2).predicting_rank(4)
        (2, 1)
        """
        return self.rank(ranks * (self.chunks or 2) - 2, ranks)

    def rank(self, chunk: int, ranks: int) -> int:
        """The rank that runs a chunk of the model.

        >>> [Pipeline("pp", order, 2).rank(k, 3) for order in ("interleaved", "zb_v") for k in range(6)]
        [0, 1, 2, 0, 1, 2, 0, 1, 2, 2, 1, 0]
        """
        return 2 * ranks - 1 - chunk if self.folded and chunk >= ranks else chunk % ranks

    def own(self, rank: int, ranks: int) -> tuple[int, ...]:
        """The chunks of the model that a rank runs, in their order.

        >>> Pipeline("pp", "interleaved", 2).own(1, 3), Pipeline("pp", "zb_v", 2).own(1, 3)
        ((1, 4), (1, 4))
        >>> Pipeline("pp", "interleaved", 2).own(0, 3), Pipeline("pp", "zb_v", 2).own(0, 3)
        ((0, 3), (0, 5))
        """
        return (rank, 2 * ranks - 1 - rank) if self.folded else tuple(range(rank, ranks * (self.chunks or 1), ranks))

    def layers(self, layers: int, ranks: int) -> tuple[int, ...]:
        """The instances of each chunk, in the order of the model, where there are `layers` of all repeated units.

        A part that stands alone has the one of the unit that hands on there, or those of the units that predict.

        >>> Pipeline("pp").layers(126, 16)[:4], Pipeline("pp", "interleaved", 2).layers(8, 2)
        ((7, 8, 8, 8), (2, 2, 2, 2))
        >>> Pipeline("pp", alone=("first", "last")).layers(8, 4)
        (1, 3, 3, 1)
        >>> Pipeline("pp", stages=(2, 4, 0), alone=("last",)).layers(7, 3)
        (2, 4, 1)
        >>> Pipeline("pp", alone=("prediction", "last")).layers(9, 4)
        (3, 4, 1, 1)
        """
        chunks, own = self.chunks or 1, {end: self.predicting if end == PREDICTION else 1 for end in self.alone}
        before, behind = [own[end] for end in ALONE[:1] if end in own], [own[end] for end in ALONE[1:] if end in own]
        parts, within = ranks * chunks - len(own), layers - sum(own.values())
        told = f"{self.axis} = {ranks}" + (f" with {chunks} chunks" if chunks > 1 else "")
        self.check_ends(ranks)
        if self.stages:
            if len(self.stages) == ranks * chunks and sum(self.stages) != within:
                raise InputError(f"[schedule] stages lists {sum(self.stages)} layers; the model has {within}")
            if len(self.stages) != ranks * chunks:
                raise InputError(f"[schedule] stages has {len(self.stages)} entries; "
                                 f"{told} needs {ranks * chunks}")
            inside = self.stages[len(before):len(self.stages) - len(behind)]
        else:
            if parts > within:
                raise InputError(f"{told} makes {ranks * chunks} stages of {within} layers{self._without('none')}; "
                                 f"at most {within + len(own)} fit")
            inside = tuple(within * (k + 1) // parts - within * k // parts for k in range(parts))
        return (*before, *inside, *behind)

    def chunk(self, place: int, layers: int, ranks: int) -> int:
        """The chunk, in the order of the model, that holds the instance at `place`.

        >>> [Pipeline("pp", "interleaved", 2).chunk(k, 8, 2) for k in range(8)]
        [0, 0, 1, 1, 2, 2, 3, 3]
        """
        ends = accumulate(self.layers(layers, ranks))
        return next(k for k, end in enumerate(ends) if place < end)

    def stage(self, place: int, layers: int, ranks: int) -> int:
        """The rank that runs the layer at `place` of `layers`.

        >>> [Pipeline("pp", "interleaved", 2).stage(k, 8, 2) for k in range(8)]
        [0, 0, 1, 1, 0, 0, 1, 1]
        """
        return self.rank(self.chunk(place, layers, ranks), ranks)


ONE_STAGE = Pipeline("")
"""The pipeline of a step whose depth no axis splits."""


def counted(unit: str) -> str:
    """The symbol of the instances of a repeated unit on a stage."""
    return f"n_{unit}"


def flying(unit: str) -> str:
    """The symbol of the most instances of a repeated unit that have a forward and no backward, on a stage."""
    return f"in_flight_{unit}"


def starting(unit: str) -> str:
    """The symbol of the place, from 1, of the first instance of a repeated unit that a stage runs."""
    return f"first_{unit}"


def part_of(unit: str, graph: Graph) -> str:
    """The part of the model to which a unit belongs: FIRST, LAST, or for a repeated unit its own name."""
    if graph.loop(unit):
        return unit
    units = graph.units
    repeated = [units.index(loop.unit) for loop in graph.loops]
    return FIRST if unit in units and repeated and units.index(unit) < min(repeated) else LAST


def spread(unit_sites: tuple[str, ...], graph: Graph) -> bool:
    """Whether a parameter used at these units is held on more than one stage, as a tied embedding is."""
    return len({part_of(unit, graph) for unit in unit_sites}) > 1


@dataclass(frozen=True, slots=True, order=True)
class Item:
    """One unit of a stage's work: the forward or the backward of one microbatch through one chunk of its layers.

    If the order splits the backward, `backward` is the part for the inputs and `weights` the one for the weights.
    """

    phase: str
    microbatch: int
    chunk: int = 0

    def __repr__(self) -> str:
        return f"{self.phase[0].upper()}{self.microbatch}" + (f".{self.chunk}" if self.chunk else "")


_PHASES: Mapping[str, tuple[str, ...]] = {"F": ("forward",), "I": ("backward",), "W": ("weights",),
                                          "B": ("backward", "weights")}
"""Kind of action -> the phases of the items that it is; the weights' alone where the order has the backward apart."""


def work(pipeline: Pipeline, stage: int, ranks: int, microbatches: int) -> tuple[Item, ...]:
    """The items of a stage's work, in order.

    gpipe: every forward, then every backward. 1f1b: as many forwards as stages follow, then one forward and one
    backward in turn. interleaved: the same over chunks, microbatches taken in groups of as many as there are ranks
    (Narayanan et al., arXiv 2104.04473, section 2.2). zb_h1, zb_h2 and interleaved_zb: forwards and backwards for the
    inputs in turn, and behind these, by some items later, the backwards for the weights. zb_v and dualpipe_v: run by
    run.

    >>> work(Pipeline("pp"), 0, 2, 3)
    (F0, F1, B0, F2, B1, B2)
    >>> work(Pipeline("pp", "zb_h1"), 1, 2, 3)
    (F0, B0, F1, B1, W0, F2, B2, W1, W2)
    """
    chunks = pipeline.chunks or 1
    if pipeline.actions:
        own = pipeline.own(stage, ranks)
        return tuple(Item(phase, action.microbatch, own.index(action.chunk)) for action in pipeline.table.rows[stage]
                     for phase in _PHASES.get(action.kind, ()) if phase != "weights" or pipeline.splits)
    if pipeline.folded:
        return tuple(Item(*item) for item in folded_work(pipeline.order, stage, ranks, microbatches))
    pipeline.check_groups(ranks, microbatches)
    total = microbatches * chunks
    ahead, later = (int(parse(of[pipeline.order]).evaluate({"p": ranks, "i": stage, "m": microbatches, "v": chunks}))
                    if pipeline.order in of else None for of in (AHEAD, LATER))
    assert ahead is not None
    places = {place(phase, n, min(total, ahead), total, later=later): (n, phase)
              for phase in phases(pipeline) for n in range(total)}
    return tuple(_nth(n, ranks, chunks, phase) for _, (n, phase) in sorted(places.items()))


def _either(test: Any, one: Any, other: Any) -> Any:
    return one if test else other


def phases(pipeline: Pipeline) -> tuple[str, ...]:
    """The phases of the items of a pipeline."""
    return ("forward", "backward", *(("weights",) if pipeline.splits else ()))


def place(phase: str, n: Any, ahead: Any, total: Any, choose: Callable[..., Any] = _either, later: Any = None) -> Any:
    """The place in a stage's work of its n-th forward or backward, of which there are `total` each.

    `ahead` forwards run first; then one forward and one backward in turn, while there are forwards. If `later` is a
    number, these are backwards for the inputs, and from the one of this number on each is followed by one for the
    weights; the rest of these come last. `choose` chooses between two terms, if the arguments are terms of a solver.

    >>> [place("forward", n, 1, 3) for n in range(3)], [place("backward", n, 1, 3) for n in range(3)]
    ([0, 1, 3], [2, 4, 5])
    >>> [[place(phase, n, 1, 3, later=1) for n in range(3)] for phase in ("forward", "backward", "weights")]
    [[0, 1, 3], [2, 4, 6], [5, 7, 8]]
    """
    def among(k: Any) -> Any:
        """The weights' backwards before the k-th backward."""
        return 0 if later is None else choose(k < later, 0, k - later)

    if phase == "weights":
        behind = place("backward", n + later, ahead, total, choose, later) + 1
        return choose(n < total - later, behind, 2 * total + n)
    return {"forward": choose(n < ahead, n, 2 * n - ahead + among(n - ahead)),
            "backward": choose(n < total - ahead, 2 * n + ahead + 1, n + total) + among(n)}[phase]


def in_flight(pipeline: Pipeline, part: str = "") -> str:
    """The most forwards of a chunk that stage i has run without their backwards, as arithmetic over p, i, m and v.

    After the n-th forward the stage has run n + 1 of them, and n - min(m*v, ahead) backwards. For the parts FIRST and
    LAST, which run with the first and the last chunk of the model, it is the number of microbatches that they hold; v
    is then at least 2 if it is a symbol. A folded pipeline has both on its first stage. PREDICTION is the part that
    runs alone with the last chunk but one, of a rank on which its forwards are the last of so many as go ahead.

    >>> in_flight(Pipeline("pp")), in_flight(Pipeline("pp", "interleaved", 2), LAST)
    ('Min(m*v, p - 1 - i + 1)', '1')
    """
    if not pipeline.axis:
        return "1"
    if pipeline.actions:
        return str(_most(pipeline, part, ("I", "B")))
    if part in (FIRST, LAST) and pipeline.chunks != 1:
        return {FIRST: "Min(m, 2*p)", LAST: "1"}[part]
    if part == PREDICTION and pipeline.chunks != 1:
        return "Min(m, 3)" if pipeline.order == "interleaved" else "Min(m, 2)"
    if pipeline.folded:
        return HELD[pipeline.order]
    return f"Min(m*v, {AHEAD[pipeline.order]} + 1)"


def _most(pipeline: Pipeline, part: str, kinds: tuple[str, ...]) -> int:
    """The most forwards without their backwards of an order that is written down, on the rank that has most.

    For FIRST and LAST, and where a part runs alone, it is that of the chunk with which they run.
    """
    table = pipeline.table
    end = table.ranks * table.chunks - 1
    chunk = {FIRST: 0, LAST: end, PREDICTION: end - 1}.get(part)
    ranks = range(table.ranks) if chunk is None else [table.rank(chunk)]
    return max(table.held(rank, kinds, chunk) for rank in ranks)


def both_in_flight(pipeline: Pipeline) -> str:
    """The most forwards that stage i has run without all of their backwards, as arithmetic over p, i, m and v.

    If the order splits the backward that is without the one for the weights, else as in `in_flight`.

    >>> both_in_flight(Pipeline("pp", "zb_h1")), both_in_flight(Pipeline("pp"))
    ('Min(m*v, p)', 'Min(m*v, p - 1 - i + 1)')
    """
    if pipeline.actions:
        return str(_most(pipeline, "", ("W", "B")))
    return f"Min(m*v, {ENOUGH[pipeline.order]})" if pipeline.order in ENOUGH else in_flight(pipeline)


def instances_in_flight(pipeline: Pipeline, stage: int, ranks: int, microbatches: int, held: tuple[int, ...]) -> int:
    """The most instances of a unit with a forward and no backward at once; `held` are those in each of the chunks.

    >>> instances_in_flight(Pipeline("pp", "interleaved", 2), 0, 2, 4, (3, 2))
    14
    """
    most = now = 0
    for item in work(pipeline, stage, ranks, microbatches):
        now += {"forward": held[item.chunk], "backward": -held[item.chunk]}.get(item.phase, 0)
        most = max(most, now)
    return most


def _nth(n: int, ranks: int, chunks: int, phase: str) -> Item:
    """The n-th forward or backward of a stage: chunk by chunk in groups of as many microbatches as ranks."""
    if chunks == 1:
        return Item(phase, n)
    group, inside = divmod(n, ranks * chunks)
    chunk, microbatch = divmod(inside, ranks)
    return Item(phase, group * ranks + microbatch, chunk if phase == "forward" else chunks - 1 - chunk)
