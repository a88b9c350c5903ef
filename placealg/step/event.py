"""Events, and the reference against which they are checked: the vocabulary of the step program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

from placealg.arith import ONE, Monomial
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.mesh import Mesh
from placealg.models.backward import GRAD
from placealg.models.graph import SAMPLES, Graph
from placealg.models.stage_parts import on_last_stage
from placealg.placement import MEMORY_TIERS, Kind
from placealg.step.effects import Effect, SubjectKind, effect_of
from placealg.step.order import ORDERING, Wait
from placealg.step.pipeline import ONE_STAGE, Pipeline
from placealg.step.verbs import BYTES, CARRIED, LOSS_SCALE, MOMENT, SOURCES, VERBS, VerbName
from placealg.step.versions import Version
from placealg.step.where import Clause as Clause
from placealg.strategy.buffers import Buffer
from placealg.strategy.streams import Stream
from placealg.strategy.vocabulary import ONE_MOMENT

Phase = Literal["init", "prepare", "forward", "backward", "weights", "reduce", "update", "publish", "save", "resume"]
"""A phase of a program."""

Operator = Literal["", "sum", "mean", "max", "premultiplied"]
"""The operator of what sums over ranks; "" where it is the sum, or there is none."""

STEP_PHASES: tuple[Phase, ...] = ("prepare", "forward", "backward", "weights", "reduce", "update", "publish")
"""The phases of one training step; `weights` is the part of a backward that a pipeline's order runs later."""

PHASES: tuple[Phase, ...] = ("init", *STEP_PHASES, "save", "resume")
LOOPED: tuple[Phase, ...] = ("forward", "backward", "weights")
"""The phases inside the loop over microbatches."""

MICROBATCH = "microbatch"
"""The name of the loop over microbatches."""

GROUP_SAYS: Mapping[str, str] = {
    "weight": "a parameter, as the ops read it",
    "master": "the parameter that the optimizer updates",
    "moments": "what the optimizer keeps of earlier gradients",
    "average": "an average of the parameter over steps",
    "grad": "the gradient of one microbatch",
    "grad_sum": "the sum of the gradients of a step",
    "norm": "the part of the gradients' global norm of one group, or the whole of it",
    "skip": "whether a gradient of one group overflowed, or any",
}
"""Value of a parameter group in a program -> what it is."""

GLOBAL_SAYS: Mapping[str, str] = {
    "step": "the step counter",
    "rng": "the random stream",
    LOSS_SCALE: "the number by which the loss is multiplied, and of gradients the divisor",
    "norm": GROUP_SAYS["norm"],
    "skip": GROUP_SAYS["skip"],
    "count": "the number of tokens that divides a loss, or of samples: those of the rank itself in a microbatch, added "
             "up over the axes that [loss] count_axes names",
    "loss": "the loss of one microbatch",
    "activation": "what a unit makes of its tokens, and a stage of a pipeline sends to the next",
}
"""Value that is of no group -> what it is."""

GROUP_VALUES, GLOBAL_VALUES = tuple(GROUP_SAYS), tuple(GLOBAL_SAYS)

SAMPLES_HERE, SAMPLES_IN_ALL = "samples", "all_samples"
COUNT, COUNTS_OF_SAMPLES = "count", (SAMPLES_HERE, SAMPLES_IN_ALL)
"""Counts by which events divide: of the tokens of their loss; of the samples of a microbatch, and of a step."""

PARTIALS: Mapping[str, str] = {"norm": "norm", "skip": "compute"}
"""Value of which every group makes a part, and a reduction the whole -> the verb that makes the part."""

READERS: Mapping[str, str] = {"clip": "norm", "update": "skip"}
"""Verb -> the value of which it reads every group's part."""

POSITIONS = ("only", "first", "middle", "last")
LINKED = tuple(pairwise(MEMORY_TIERS))
"""(tier, the next one outwards): the links over which copies go."""

TIERS = (*MEMORY_TIERS, *(f"{a}->{b}" for near, far in LINKED for a, b in ((near, far), (far, near))))

PADDING = "padding"
"""A name in divisors: the size of an instance's shards, each as large as the largest, over its number of elements."""

ACROSS = {"offload": ("device", "host"), "fetch": ("host", "device")}
"""Verb that copies between tiers -> (tier read, tier written) of an event that names one tier only."""

_DRAWN = re.compile(r"\w+\((\w+)\)\Z")
_LOCAL = re.compile(r"local\((\w+)\)\Z")


def takes_part(at: tuple[str, ...], position: str) -> bool:
    """Whether an event restricted to `at` runs at `position` of the microbatch loop (first and last include only).

    >>> takes_part(("last",), "only"), takes_part((), "middle"), takes_part(("first",), "last")
    (True, True, False)
    """
    if not at or position in at:
        return True
    return position == "only" and ("first" in at or "last" in at)


def dim_of(place: str) -> str:
    """The dim of a place S(dim); "" for any other place.

    >>> dim_of("S(seq)"), dim_of("P")
    ('seq', '')
    """
    return place[2:-1] if place.startswith("S(") else ""


def phase_order(phase: str) -> int:
    """The position of a phase in a program; those whose events run in the loop over microbatches share theirs."""
    return PHASES.index(LOOPED[0] if phase in LOOPED else phase)


@dataclass(frozen=True, slots=True)
class Rule:
    """The named derivation rule that put an event there, and why, in one sentence."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Event:
    """One event: a claim that every reader checks or executes, and none believes.

    `group` names a parameter group, `unit` a unit of the model, or a loss; both are empty for global values. `axes` are
    the mesh axes of a collective. `at` restricts it to positions of the microbatch loop (`first` and `last` include
    `only`; empty means all). `where` restricts it to ranks. `source` names what the event reads: a value (see
    `origin`), or the kind that it is claimed to have. `to` is the kind that a reduction aims at, I or S. `layout` names
    the owner function; NAME(AXIS) is a family, one for each rank along the axis (`drawn`).

    An event on a tensor of the op graph has the tensor's name as `value` (NAME.grad: its gradient), and as `unit` the
    unit whose loop runs it, "" between two loops. `version` labels the redistributed copy that it makes or acts on,
    `reads` are the operands of a compute as NAME@LABEL, in order; `source` and `to` are places: I, R, P, S(dim). In a
    lowered program (`lower.py`), `said` is the path of the event of the user's program for which it stands. The fields
    from `stream` on speak of order (`order.py`), and only a program's listing has them.
    """

    phase: Phase
    verb: VerbName
    value: str
    group: str = ""
    unit: str = ""
    axes: tuple[str, ...] = ()
    op: Operator = ""
    divisor: Monomial = ONE
    at: tuple[str, ...] = ()
    where: tuple[Clause, ...] = ()
    source: str = ""
    to: str = ""
    root: int = 0
    tier: str = "device"
    layout: str = "own"
    bytes: str = ""
    version: str = ""
    reads: tuple[str, ...] = ()
    copy: int = 1
    rule: Rule = Rule("written", "written in the program file")
    line: int = field(default=0, compare=False)
    said: str = ""
    stream: str = ""
    ahead: int = 0
    behind: str = ""
    waits: tuple[Wait, ...] = ()
    into: str = ""
    out_of: str = ""
    of: str = ""

    @property
    def subject(self) -> str:
        """The middle of the path: what the event acts on."""
        if self.on_tensor:
            return self.value
        if not self.group:
            own = "" if self.verb in ("compute", "scale") and self.value in ("loss", "activation") else self.value
            return ".".join(p for p in (self.unit, own) if p)
        if self.verb in ("norm", "clip") or (self.verb == "update" and self.value not in CARRIED) or (
                self.value == "weight" and (self.verb in ORDERING or "weight" in VERBS[self.verb].values)):
            return self.group
        return f"{self.group}.{self.value}"

    @property
    def path(self) -> str:
        """The unique, stable, readable name of the event."""
        if self.said:
            return self.said
        axes = f"[{','.join(self.axes)}]" if self.axes else ""
        copy = f"#{self.copy}" if self.copy > 1 else ""
        return f"{self.phase}.{self.subject}.{self.verb}{axes}{copy}"

    @property
    def origin(self) -> str:
        """The value that the event copies, sends or sums: the one that `source` names, else the verb's, else its own.

        "" if `assign` starts from the initial value.

        >>> Event("init", "assign", "master").origin, Event("init", "assign", "moments").origin
        ('weight', '')
        >>> Event("forward", "gather", "weight", source="S").origin, Event("publish", "fetch", "master").origin
        ('weight', 'master')
        """
        if self.source in GROUP_VALUES:
            return self.source
        if self.verb == "update" and self.value in CARRIED:
            return CARRIED[self.value]
        if self.verb == "assign":
            return SOURCES.get(self.value, "")
        return VERBS[self.verb].origin or self.value

    @property
    def acted_on(self) -> Version:
        """The version of the tensor, or of its gradient, that it makes or acts on."""
        return Version(self.value, self.version)

    @property
    def operands(self) -> tuple[Version, ...]:
        """The versions that `reads` names, in order."""
        return tuple(map(Version.parse, self.reads))

    @property
    def plain(self) -> Event:
        """What the event does: without its group's name, and without what only people and costs read."""
        return replace(self, group="*" if self.group else "", line=0, bytes="", rule=Rule("", ""))

    @property
    def kind(self) -> SubjectKind:
        """The kind of its subject.

        >>> Event("update", "clip", "grad_sum", "layer.weight").kind.name, Event("update", "update", "rng").kind.name
        ('GROUP', 'GLOBAL')
        """
        if self.group or (self.value in GROUP_VALUES and self.value not in GLOBAL_VALUES):
            return SubjectKind.GROUP
        if self.value in GLOBAL_VALUES:
            return SubjectKind.GLOBAL
        return SubjectKind.GRADIENT if self.value.endswith(GRAD) else SubjectKind.TENSOR

    @property
    def effect(self) -> Effect:
        """Its effect on its subject, by the table."""
        found = effect_of(self.verb, self.value, self.kind, self.source == Kind.P.value)
        if found is None:
            raise InputError(f"{self.path}: {self.verb} does not apply to {self.value}")
        return found

    @property
    def on_tensor(self) -> bool:
        """Whether it acts on a tensor of the op graph, on a tensor's gradient, or on what a region made."""
        return not self.group and self.value not in GLOBAL_VALUES

    @property
    def tensor(self) -> str:
        """The tensor on which, or on whose gradient, it acts; "" for other events."""
        return self.value.removesuffix(GRAD) if self.on_tensor else ""

    @property
    def on_gradient(self) -> bool:
        """Whether it acts on a tensor's gradient."""
        return self.on_tensor and self.value.endswith(GRAD)

    @property
    def drawn(self) -> str:
        """The axis along which every rank has an owner function of its own; "" if all have the same.

        >>> Event("forward", "slice", "data.tokens", axes=("dp",), layout="shuffled(dp)").drawn
        'dp'
        """
        found = _DRAWN.match(self.layout)
        return found[1] if found and not self.renumbered else ""

    @property
    def renumbered(self) -> str:
        """The axis along which every rank counts what it takes of a tensor from its own start; "" if none does.

        >>> Event("forward", "slice", "data.positions", axes=("cp",), layout="local(cp)").renumbered
        'cp'
        """
        found = _LOCAL.match(self.layout)
        return found[1] if found and self.on_tensor else ""

    @property
    def owning(self) -> tuple[str, ...]:
        """The axes along which the event uses the owner function.

        >>> Event("reduce", "reduce", "grad_sum", "layer.weight", axes=("dp",), to="S").owning
        ('dp',)
        """
        whole = self.to == "I" or not self.effect.owners
        return (*(() if whole else self.axes), *(c.axis for c in self.where if c.rank is None))

    @property
    def tiers(self) -> tuple[str, str]:
        """(tier read, tier written); an offload or a fetch that names one tier has the tiers of ACROSS.

        >>> Event("publish", "fetch", "master", tier="device").tiers, Event("init", "assign", "moments").tiers
        (('host', 'device'), ('device', 'device'))
        """
        source, _, target = self.tier.partition("->")
        if not target and self.verb in ACROSS:
            return ACROSS[self.verb]
        return source, target or source

    def __repr__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters of one unit that are placed, reduced and updated alike: one entry for all of them.

    `elements` are the element counts of its parameters in one instance of the unit, as monomials; `count` the number of
    instances; `sites` the units that use it, in forward order. `locality` says what one element's update reads of the
    values in `whole_reads`: the element (elementwise) or its matrix. `types` are element sizes in bytes that differ
    from the strategy's. `split` are the axes along which its parameters are split by their own dims: there a rank
    holds, uses and updates only its own elements. `rows` are the dims, and their sizes, that make up the first one of
    each parameter in memory. No gradient reaches a `statistic`: its `grad` is what forward takes of the rank's tokens,
    the tensor `taken` or ("") a function of what entered the unit, and is neither clipped nor counted; `merge` says
    what it is over all tokens: their mean, the sum, the max. A `frozen` group has weights only: no gradient, no
    optimizer state, and the same values after a step as before. The axes `stacked` split a stack of matrices, such as
    those of experts, and no matrix; `numbered` are the dims that number each parameter's matrices in such a stack, ()
    where all of them are one. Of an `averaged` group an average of the weights is carried from step to step. `shares`
    are the axes over which its parameters, its optimizer state and its gradients are sharded, each in mesh order.
    """

    name: str
    unit: str
    sites: tuple[str, ...]
    parameters: tuple[str, ...]
    elements: tuple[Monomial, ...]
    count: Monomial = ONE
    optimizer: str = "adamw"
    locality: str = "elementwise"
    whole_reads: tuple[str, ...] = ()
    types: FrozenMap[str, str] = FrozenMap()
    split: tuple[str, ...] = ()
    rows: tuple[FrozenMap[str, Monomial], ...] = ()
    statistic: bool = False
    frozen: bool = False
    stacked: tuple[str, ...] = ()
    averaged: bool = False
    taken: str = ""
    merge: str = "mean"
    numbered: tuple[tuple[str, ...], ...] = ()
    shares: tuple[tuple[str, ...], ...] = ()

    @property
    def one_moment(self) -> bool:
        """Whether its optimizer keeps one moment of each element, as Muon does."""
        return self.optimizer in ONE_MOMENT

    def bytes_of(self, value: str) -> str:
        """Bytes per element where a value of the group is held, in the symbols of element sizes."""
        return MOMENT if value == "moments" and self.one_moment else BYTES[value]


@dataclass(frozen=True, slots=True)
class LoopUnit:
    """A unit of the model in forward order; `count` instances of it run one after the other."""

    name: str
    count: Monomial = ONE

    @property
    def repeated(self) -> bool:
        """Whether it runs in a loop over its instances."""
        return self.count != ONE


@dataclass(frozen=True, slots=True)
class Reference:
    """What the single device does, and the facts of mesh, data and model that give it meaning.

    `data_axes` split the tokens. `weighting` is the reference weight of a token: token_mean, 1/|B|, microbatch_mean, or
    sum, 1. `clip` says whether the gradient is clipped by its global norm, `skip` whether a step is skipped whose
    gradient overflows, `scaled` whether the loss is multiplied by a scale that overflow moves. `hypotheses` are the
    names that a verdict may assume. `random_keys` are deviations from logical keys of random streams. `types` are the
    default bytes per element, `sizes` the model's symbols that are known as numbers. `graph` is the op graph, without
    ops if units run whole; `split_dims` the dim by which each parameter is split along an axis, `dims` the ordered
    entries by which each axis splits ops. `unrolled` are axes whose sums the prover writes out rank by rank, with their
    sizes. `pipeline` is the schedule of the axis that splits the model along its depth, or of one stage. `left_out`
    says in words what the network has and the model lacks. `pad` says what is padded if a share is not a whole number:
    none, rows, elements. `losses` are the terms of the loss: each is weighted by counts of its own tokens.
    `sums` names the type in which gradients are to be summed at least, "" where types say it; `adds` that in which
    collectives add them, "" for that of the wire, and `algorithm` how: in a ring or a tree. `buffers`
    are the slots of values, by name, where a program says on which streams events run.
    """

    strategy: str
    model: str
    mesh: Mesh
    data_axes: tuple[str, ...]
    units: tuple[LoopUnit, ...]
    groups: tuple[Group, ...]
    weighting: str = "token_mean"
    clip: bool = True
    skip: bool = False
    scaled: bool = False
    microbatches: int | None = None
    hypotheses: tuple[str, ...] = ()
    random_keys: tuple[Stream, ...] = ()
    types: FrozenMap[str, str] = FrozenMap()
    sizes: FrozenMap[str, int] = FrozenMap()
    prefetch: int = 0
    abstract: bool = False
    graph: Graph = Graph()
    split_dims: FrozenMap[str, FrozenMap[str, str]] = FrozenMap()
    dims: FrozenMap[str, tuple[str, ...]] = FrozenMap()
    unrolled: FrozenMap[str, int] = FrozenMap()
    pipeline: Pipeline = ONE_STAGE
    left_out: tuple[str, ...] = ()
    pad: str = "none"
    losses: tuple[str, ...] = ("loss",)
    sums: str = ""
    adds: str = ""
    algorithm: str = "ring"
    buffers: FrozenMap[str, Buffer] = FrozenMap()

    def __post_init__(self) -> None:
        names = [group.name for group in self.groups]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"two groups of {self.model} are called {name}")

    @property
    def whole(self) -> bool:
        """Whether units run whole, so that nothing inside them is known."""
        return self.graph.whole

    @property
    def separate(self) -> tuple[str, ...]:
        """The losses with an event, and rows of the batch, of their own: all of whole units; of an op graph the first.

        The others of an op graph are terms of the loss, in the units after which they are called.
        """
        return self.losses if self.whole else self.losses[:1]

    @property
    def counters(self) -> tuple[str, ...]:
        """What is counted: the tokens of each loss; where rows have samples, those of a microbatch and of a step."""
        return (*self.losses, *(COUNTS_OF_SAMPLES if SAMPLES in self.graph.tensors else ()))

    def counter(self, event: Event, name: str = "count") -> str:
        """The counter that an event reads as it divides by `name`: the count of its loss, or of samples."""
        return name if name in COUNTS_OF_SAMPLES else self.loss_of(event.unit)

    def loss_of(self, unit: str) -> str:
        """The loss that is called after a unit, perhaps one whose part on the last stage it is; or the first."""
        return next((loss for loss in self.losses if unit in (loss, on_last_stage(loss))), self.losses[0])

    def counters_of(self, event: Event) -> tuple[str, ...]:
        """The counters by which an event divides."""
        return tuple(self.counter(event, n) for n in event.divisor.names() if n in (COUNT, *COUNTS_OF_SAMPLES))

    @property
    def trained(self) -> tuple[Group, ...]:
        """The groups that gradients reach."""
        return tuple(g for g in self.groups if not g.statistic and not g.frozen)

    def group(self, name: str) -> Group:
        """The parameter group called `name`."""
        for group in self.groups:
            if group.name == name:
                return group
        raise InputError(f"unknown parameter group '{name}'", name=name, valid=[g.name for g in self.groups])

    def unit_of(self, event: Event) -> str:
        """The unit whose loop runs an event: its group's, else its own; "" for global values."""
        return self.group(event.group).unit if event.group else event.unit

    def unit(self, name: str) -> LoopUnit:
        """The unit called `name`."""
        return next(u for u in self.units if u.name == name)
