"""A step as the data that the verified checker reads: a program of `proofs/coq/kernel/Syntax.v`, or why there is none.

Axes, groups and units are numbers, in the order in which the reference lists them; layouts are, and padded shards, in
the order in which the program first names them, the layout without a name being 0. Nothing is guessed and nothing left
out: an event, a field or a part of the reference that the language lacks is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from placealg.arith import ONE
from placealg.frozen import FrozenMap
from placealg.models.backward import terms
from placealg.prover.kernel.fields import Outside, check_fields
from placealg.prover.kernel.reference import WEIGHTINGS, around_loop, check_reference, mover
from placealg.prover.kernel.terms import Term
from placealg.prover.kernel.whole_units import whole_units
from placealg.step.event import LOOPED, PADDING, POSITIONS, takes_part
from placealg.step.program import Event, EventLoop, Node, Step

Rests = Mapping[str, tuple[tuple[str, ...], str]]
"""Group -> (the axes over which its parameters rest sharded, the tier), as the strategy says."""

NONE: Rests = FrozenMap()
"""No group has an average of its weights."""

_STATES = {"weight": "Weight", "master": "Master", "moments": "Moments"}
_VALUES = {**_STATES, "grad": "Grad", "grad_sum": "GradSum", "average": "Average"}
_COUNTERS = {"step": "Step", "rng": "Stream", "loss_scale": "LossScale"}
_TICKS = {"assign": "Start", "update": "Advance", "store": "Store", "load": "Load"}
_OPERATORS = {"": "Plain", "sum": "Plain", "mean": "Mean", "premultiplied": "Premultiplied", "max": "Largest"}
_SYMBOLS = {"m": "Micro", "loss_scale": "Scaling"}
_COUNTS = {"tokens": "Tokens", "count": "Count"}
_LAYOUT = "own"
_SHARED: Term = ("Shared", 0)
"""The layout without a name."""
_PHASES = ("init", "prepare", "inside", "at_ends", "outside", "save", "resume")
FIELDS = ("axes", "data", "weighs", "equal", "clips", "skips", "scales", "further", "repeated", "groups", *_PHASES)
"""The fields of a program, in order."""


def program_of(step: Step, rests: Rests, averages: Rests = NONE) -> tuple[Term, ...]:
    """The program of a step as a term; its ops folded to units. Raises Outside if the language lacks something.

    `averages` says of each group with an average of its weights where that rests.

    >>> import placealg as pa
    >>> program_of(pa.derive(pa.dp("dp"), pa.abstract()), {"layer.weight": ((), "device")})[1:6]
    ([0], [0], 'TokenMean', True, True)
    """
    check_reference(step)
    folded = whole_units(step)
    split = next((g for g in step.reference.groups if g.split), None)
    if split:
        raise Outside("", f"axis {split.split[0]} splits parameters ({split.name}): not in the kernel")
    writer = _Writer(folded, frozenset(op.unit for op in terms(step.reference.graph)))
    reference = folded.reference
    groups: list[Term] = []
    for group in reference.groups:
        axes, tier = rests[group.name]
        groups.append(("Group", [writer.units[s] for s in group.sites], writer.rest(group.name, "weight", axes),
                       tier.capitalize(), [_VALUES[v] for v in group.whole_reads], mover(group),
                       writer.average(group.name, averages) if group.averaged else "NoAverage"))
    before, loop, behind = around_loop(folded)
    inside, ends = writer.bodies(loop)
    init, prepare, outside, save, resume = (list(writer.blocks(part, False)) for part in (
        folded.tree("init"), before, behind, folded.tree("save"), folded.tree("resume")))
    blocks: list[Term] = [init, prepare, inside, ends, outside, save, resume]
    return ("Program", [*writer.axes.values()], [writer.axes[a] for a in reference.data_axes],
            WEIGHTINGS[reference.weighting], "equal_counts" in reference.hypotheses, reference.clip, reference.skip,
            reference.scaled, len(reference.losses) - 1, [u.repeated for u in reference.units], groups, *blocks)


@dataclass(frozen=True, slots=True, init=False)
class _Writer:
    step: Step
    terms: frozenset[str]
    axes: Mapping[str, int]
    units: Mapping[str, int]
    groups: Mapping[str, int]
    layouts: Mapping[str, int]
    shards: dict[tuple[str, str, tuple[str, ...]], int]

    def __init__(self, step: Step, terms: frozenset[str]) -> None:
        """`terms` are the units that have further terms of the loss."""
        object.__setattr__(self, "step", step)
        object.__setattr__(self, "terms", terms)
        for name, names in (("axes", step.reference.mesh.names), ("units", [u.name for u in step.reference.units]),
                            ("groups", [g.name for g in step.reference.groups]),
                            ("layouts", dict.fromkeys((_LAYOUT, *(e.layout for e in step.events))))):
            object.__setattr__(self, name, {n: k for k, n in enumerate(names)})
        object.__setattr__(self, "shards", {})

    def rest(self, group: str, value: str, axes: Iterable[str]) -> list[Term]:
        """Where a group's values rest: split along axes, under the layout of which the program's last event on them is.

        The strategy says along which axes; that there is one owner along each is what every layout says.
        """
        last = next((self.layout(e) for e in reversed(self.step.events)
                     if e.group == group and e.value == value and set(axes) & set(e.owning)), _SHARED)
        return [("Owner", last, self.axes[a]) for a in axes]

    def bodies(self, loop: EventLoop) -> tuple[Term, Term]:
        """The blocks of a microbatch in the middle, and those of the ends, where positions of the loop differ."""
        self.once()
        if not any(e.at for e in self.step.events):
            return list(self.blocks(loop.body, True)), "Alike"
        alone, first, middle, last = (self.body(position) for position in ("only", "first", "middle", "last"))
        return middle, ("Apart", alone, first, last)

    def once(self) -> None:
        """Raise Outside if a unit computes twice in a phase of a microbatch.

        The kernel's machine carries what one unit hands to the next in one place, where the second computation would
        find the result of the first and not, as `verbs.py` has it, what that has read.
        """
        for position in POSITIONS:
            seen: set[tuple[str, str]] = set()
            for e in (e for e in self.step.events if e.value == "activation" and takes_part(e.at, position)):
                if (e.phase, e.unit) in seen:
                    raise Outside(e.path, f"unit {e.unit} computes in more than one place, or again")
                seen.add((e.phase, e.unit))

    def body(self, position: str) -> Term:
        """The blocks of a microbatch at a position of the loop."""
        part = replace(self.step, events=tuple(
            replace(e, at=()) if e.phase in LOOPED else e for e in self.step.events
            if e.phase not in LOOPED or takes_part(e.at, position)))
        return list(self.blocks(around_loop(part)[1].body, True))

    def blocks(self, nodes: Iterable[Node], inside: bool) -> Iterator[Term]:
        """The blocks of one phase."""
        for node in nodes:
            events = node.body if isinstance(node, EventLoop) else (node,)
            plain = [e for e in events if isinstance(e, Event)]
            self.fields(plain, inside)
            if all(e.verb == "norm" for e in plain):
                yield from map(self.norm, plain)
            elif all(e.group and e.value == "skip" for e in plain):
                yield from map(self.flag, plain)
            elif plain[0].group or plain[0].value == "activation":
                unit = self.step.unit_of(plain[0])
                reverse = node.reverse if isinstance(node, EventLoop) else node.phase == "backward"
                yield ("Each", self.units[unit], reverse, [self.instr(e) for e in plain])
            else:
                yield from (self.whole(e) for e in plain)

    def average(self, group: str, averages: Rests) -> Term:
        """Where the average of a group's weights rests, as a term."""
        if group not in averages:
            raise Outside("", f"the strategy has no average of {group}")
        axes, tier = averages[group]
        return ("AverageAt", self.rest(group, "average", axes), tier.capitalize())

    def fields(self, events: Iterable[Event], inside: bool) -> None:
        """Raise Outside if an event has a field that the language lacks."""
        for e in events:
            if e.version or e.reads or e.on_tensor:
                raise Outside(e.path, "an op")
            check_fields(e)
            if "tokens" in e.divisor.names() and not inside:
                raise Outside(e.path, "a divisor that counts tokens outside of a microbatch")

    def instr(self, e: Event) -> Term:
        """An event on one instance of a unit, as a term."""
        if not e.group:
            if e.verb != "compute" or e.phase not in ("forward", "backward"):
                raise Outside(e.path, f"{e.verb} of {e.value}")
            own = e.phase == "backward" and e.unit in self.terms
            if e.divisor != ONE and not own:
                raise Outside(e.path, f"divisor = {e.divisor}")
            return ("Backward", [self.ratio(e)] if own else []) if e.phase == "backward" else "Forward"
        if e.verb == "compute" and e.value == "grad" and self.step.reference.group(e.group).statistic:
            return ("Take", self.groups[e.group], self.ratio(e))
        make = _EVENTS.get(e.verb)
        if make is None or e.value not in _VALUES:
            raise Outside(e.path, f"{e.verb} of {e.value}")
        return ("On", self.groups[e.group], make(self, e))

    def whole(self, e: Event) -> Term:
        """An event on a value that belongs to no group, as a term."""
        if e.where and e.value not in _COUNTERS:
            raise Outside(e.path, f"where = {', '.join(map(repr, e.where))}")
        if e.tier != "device":
            raise Outside(e.path, f"tier = {e.tier}")
        if e.value == "loss" and e.verb in ("compute", "scale") and e.phase in LOOPED:
            return ("Loss" if e.verb == "compute" else "ScaleLoss", self.loss(e), self.ratio(e))
        if e.value == "norm" and e.verb == "all_reduce" and e.op in ("", "sum") and e.to in ("", "I"):
            return ("NormSum", self.along(e))
        if e.value == "count":
            return self.counted(e)
        if e.value == "skip" and e.verb == "all_reduce" and e.op == "max" and e.to in ("", "I"):
            return ("LookMax", self.along(e))
        if e.value in _COUNTERS and e.verb in _TICKS and not e.axes:
            if any(c.rank != 0 or c.but for c in e.where):
                raise Outside(e.path, f"where = {', '.join(map(repr, e.where))}")
            return ("Tick", _COUNTERS[e.value], _TICKS[e.verb], [self.axes[c.axis] for c in e.where])
        if e.value in _COUNTERS and e.verb == "broadcast" and not e.where and not e.root:
            return ("ShareTick", _COUNTERS[e.value], self.along(e))
        raise Outside(e.path, f"{e.verb} of {e.value}")

    def counted(self, e: Event) -> Term:
        """An event on the count of a loss's tokens, as a term."""
        if e.phase not in ("prepare", *LOOPED) or e.divisor != ONE:
            raise Outside(e.path, f"{e.verb} of {e.value} in {e.phase}")
        if e.verb == "compute":
            return ("CountTokens", self.loss(e), e.phase in LOOPED)
        if e.verb == "all_reduce" and e.op in ("", "sum") and e.to in ("", "I"):
            return ("CountSum", self.loss(e), self.along(e))
        raise Outside(e.path, f"{e.verb} of {e.value}")

    def loss(self, e: Event) -> int:
        """The loss of which an event is, or whose tokens its divisor counts: the first, where it says none."""
        losses = self.step.reference.losses
        return losses.index(e.unit) if e.unit in losses else 0

    def norm(self, e: Event) -> Term:
        """The partial norm of a group, as a term."""
        if e.value != "norm" or e.tiers[0] != e.tiers[1]:
            raise Outside(e.path, f"{e.verb} of {e.value} on {e.tier}")
        return ("Norm", self.groups[e.group], _slot("grad_sum", e.tiers[0]), self.place(e))

    def flag(self, e: Event) -> Term:
        """A group's flag, as a term; only what a gradient moves has one, where the reference leaves out steps."""
        if e.verb != "compute" or e.tiers[0] != e.tiers[1]:
            raise Outside(e.path, f"{e.verb} of {e.value} on {e.tier}")
        group = self.step.reference.group(e.group)
        if not self.step.reference.skip or group.frozen or group.statistic:
            raise Outside(e.path, "a flag that the reference lacks")
        return ("Look", self.groups[e.group], _slot("grad_sum", e.tiers[0]), self.place(e))

    def along(self, e: Event) -> list[Term]:
        """The axes of a collective."""
        return [self.axes[a] for a in e.axes]

    def place(self, e: Event) -> list[Term]:
        """The `where` of an event as terms; the only fixed rank in the language is the first."""
        for clause in e.where:
            if clause.rank or clause.but:
                raise Outside(e.path, f"where = {clause}")
        return [("Owner", self.layout(e), self.axes[c.axis]) if c.rank is None else ("First", self.axes[c.axis])
                for c in e.where]

    def layout(self, e: Event) -> Term:
        """The layout of an event: the same on all ranks, or one that every rank along an axis has for itself."""
        if e.drawn in e.owning:
            raise Outside(e.path, f"layout = {e.layout}, along {e.drawn} itself")
        number = self.layouts[e.layout]
        return ("Drawn", number, self.axes[e.drawn]) if e.drawn else ("Shared", number)

    def ratio(self, e: Event) -> Term:
        """One over the divisor, as a term."""
        over: list[Term] = []
        under: list[Term] = []
        if e.divisor.coefficient != Fraction(1):
            raise Outside(e.path, f"divisor = {e.divisor}")
        for name, power in e.divisor.powers:
            if name == PADDING and (e.drawn or not e.group):
                shards = " of shards that differ from rank to rank" if e.drawn else ""
                raise Outside(e.path, f"divisor = {e.divisor}{shards}")
            if name == PADDING and not e.owning:
                continue
            symbol: Term = self._symbol(e, name)
            (under if power > 0 else over).extend([symbol] * abs(power))
        return ("Ratio", over, under)

    def _symbol(self, e: Event, name: str) -> Term:
        if name == PADDING:
            shards = (e.group, e.layout, tuple(sorted(set(e.owning))))
            return ("Padding", self.shards.setdefault(shards, len(self.shards)))
        if name in _COUNTS:
            return (_COUNTS[name], self.loss(e))
        if name not in self.axes and name not in _SYMBOLS:
            raise Outside(e.path, f"divisor = {e.divisor}")
        return _SYMBOLS[name] if name in _SYMBOLS else ("Size", self.axes[name])


def _slot(value: str, tier: str) -> Term:
    return ("At", _VALUES[value], tier.capitalize())


def _read(e: Event) -> Term:
    return _slot(e.origin, e.tiers[0])


def _written(e: Event) -> Term:
    return _slot(e.value, e.tiers[1])


def _in_place(e: Event) -> Term:
    if e.tiers[0] != e.tiers[1] or e.origin != e.value:
        raise Outside(e.path, f"{e.verb} from one place to another")
    return _written(e)


def _larger(e: Event) -> bool:
    if e.op not in ("", "sum", "max"):
        raise Outside(e.path, f"op = {e.op}")
    return e.op == "max"


def _everywhere(e: Event) -> None:
    if e.where:
        raise Outside(e.path, f"where = {', '.join(map(repr, e.where))}")


def _broadcast(w: _Writer, e: Event) -> Term:
    _everywhere(e)
    if e.root:
        raise Outside(e.path, f"root = {e.root}")
    return ("Broadcast", _in_place(e), w.along(e))


def _gather(w: _Writer, e: Event) -> Term:
    split = [c for c in e.where if c.axis in e.axes]
    if split:
        raise Outside(e.path, f"where = {', '.join(map(repr, split))}, along which it gathers")
    return ("Gather", _read(e), _written(e), w.layout(e), w.along(e), w.place(e))


def _assign(w: _Writer, e: Event) -> Term:
    if not e.origin:
        if e.value != "moments":
            raise Outside(e.path, f"{e.value} from its initial value")
        return ("Initial", _in_place(replace(e, source="moments")), w.place(e))
    return ("Copy", _read(e), _written(e), w.place(e))


def _copy(w: _Writer, e: Event) -> Term:
    return ("Copy", _read(e), _written(e), w.place(e))


def _slice(w: _Writer, e: Event) -> Term:
    _everywhere(e)
    return ("Keep", _in_place(e), w.layout(e), w.along(e))


def _free(w: _Writer, e: Event) -> Term:
    return _slice(w, e) if e.axes else ("Free", _in_place(e), w.place(e))


def _reduce(w: _Writer, e: Event) -> Term:
    _everywhere(e)
    if e.op not in _OPERATORS:
        raise Outside(e.path, f"op = {e.op}")
    return ("Reduce", _in_place(e), w.along(e), _OPERATORS[e.op],
            ("Some", w.layout(e)) if e.to == "S" else "None", w.ratio(e))


def _publish(w: _Writer, e: Event) -> Term:
    return _gather(w, e) if e.axes else ("Publish", _read(e), _written(e), w.place(e))


def _store(w: _Writer, e: Event) -> Term:
    return ("Publish", _in_place(e), _slot(e.value, "disk"), w.place(e))


def _load(w: _Writer, e: Event) -> Term:
    return ("Copy", _slot(e.value, "disk"), _in_place(e), w.place(e))


def _update(w: _Writer, e: Event) -> Term:
    if e.value == "average" and e.tiers[0] == e.tiers[1]:
        return ("TakeIn", _read(e), _written(e), w.place(e))
    if e.tiers[0] != e.tiers[1] or e.value != "master":
        raise Outside(e.path, "an update from one tier to another")
    return ("Update", e.tiers[0].capitalize(), w.ratio(e), w.place(e))


_EVENTS: Mapping[str, Callable[[_Writer, Event], Term]] = {
    "broadcast": _broadcast, "gather": _gather, "all_gather": _gather, "assign": _assign, "offload": _copy,
    "fetch": _copy, "slice": _slice, "free": _free, "publish": _publish, "store": _store, "load": _load,
    "zero": lambda w, e: ("Zero", _in_place(e), w.place(e)),
    "accumulate": lambda w, e: ("Accumulate", _read(e), _written(e), _larger(e), w.place(e)),
    "scale": lambda w, e: ("Scale", _in_place(e), w.ratio(e), w.place(e)),
    "reduce": _reduce,
    "clip": lambda w, e: ("Clip", _in_place(e), w.place(e)),
    "update": _update,
}
