"""The results of a proof run: one Verdict per obligation, one Report overall, at most one Counterexample."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from placealg.notebook_display import Shown
from placealg.step.messages import sends_wait
from placealg.step.pipeline import Pipeline
from placealg.step.program import Event, Reference


class Undecidable(TypeError):
    """A verdict has no truth value: compare it with PROVED, REFUTED or UNDECIDED by name."""


class Conclusion(str):
    """How an obligation ended: a word that refuses to be taken for true or false.

    >>> PROVED == "PROVED"
    True
    >>> bool(REFUTED)
    Traceback (most recent call last):
    placealg.prover.verdict.Undecidable: REFUTED is not a truth value: compare it with PROVED, REFUTED or UNDECIDED
    """

    __slots__ = ()

    def __bool__(self) -> bool:
        raise Undecidable(f"{self} is not a truth value: compare it with PROVED, REFUTED or UNDECIDED")


PROVED, REFUTED, UNDECIDED, NOT_CHECKED = map(Conclusion, ("PROVED", "REFUTED", "UNDECIDED", "NOT_CHECKED"))
PARAMETRIC, CUTOFF, BOUNDED = "PARAMETRIC", "CUTOFF", "BOUNDED"

OBLIGATIONS: Mapping[str, str] = {
    "partition": "data and elements have owners; layouts agree where they meet",
    "forward": "each op instance under its placement equals the op",
    "gradient": "w = w_ref at every live update, equal counts assumed",
    "normalizer": "w = w_ref at every live update under only the named hypotheses",
    "view": "every observed read sees the reference version, defined",
    "update": "update locality, the list of transforms, each element counted once in the norm and in the flag that "
              "skips a step, uniform hyper-scalars",
    "invariant": "after the step every live copy equals the reference, and there is one",
    "init": "initialisation and resume establish the invariant",
    "random": "random streams equal the reference's, keyed by logical coordinates",
    "schedule": "no cycle, no deadlock, one order of collectives per group",
    "vacuity": "the premises are satisfiable, and every `where` selects some rank",
}
"""Obligation identifier -> its statement; reports list obligations in this order."""

ASKED_FOR: Mapping[str, str] = {
    "precision": "no sum of a gradient is taken in fewer bits, or in a smaller range, than was said",
    "race": "of two accesses to one slot, one of which writes, that printed first has ended before the other begins",
    "alias": "no read finds what was written for another value in the same slot",
}
"""The obligations that are asked only where somebody says what they are about: identifier -> statement."""


PRECISION_LEFT_OUT = "floating-point order and precision"
"""What no verdict covers of floating-point numbers, unless `precision` is asked."""


RACES_LEFT_OUT = "races inside one collective, or of events that overlap (a prefetch and an update)"
"""What no verdict covers of order, unless `race` is asked."""


def _uncovered(scaled: bool = False, averaged: bool = False) -> tuple[str, ...]:
    """What no verdict covers; a step that carries a loss scale, or averages of the weights, has these inside."""
    state = ("the place in the data", *["a loss scale"] * (not scaled), *["averages of the weights"] * (not averaged))
    return (
        PRECISION_LEFT_OUT,
        RACES_LEFT_OUT,
        f"state outside the step: {', '.join(state)}",
        "a checkpoint that is resumed on another mesh",
        "whether running code does what the strategy says",
    )


NOT_COVERED = _uncovered()
"""What no verdict on a step without a loss scale and averages covers."""

BLOCKING = "a send that waits for its receiver: stages go on once a message is on its way"
"""What no verdict on a pipeline covers, in addition to NOT_COVERED, unless it is said how messages are posted."""

_WIRES = {"wire_w": ("w", "weights while they are gathered"), "wire": ("g", "gradients while they are reduced")}
"""Key of an element size on the wire -> the key of the size at rest, and what is sent."""


def _of_pipelines(reference: Reference) -> Iterator[str]:
    """What no verdict on a pipeline covers."""
    if reference.pipeline.axis:
        if not sends_wait(reference.pipeline):
            yield BLOCKING
        yield _depths(reference.pipeline)
        if reference.pipeline.grouped:
            yield (f"numbers of microbatches that are no multiple of {reference.pipeline.axis}: the "
                   f"{reference.pipeline.order} order does not take them")


def _depths(pipeline: Pipeline) -> str:
    """The numbers of layers to which no verdict on the pipeline applies."""
    parts = "stages" if pipeline.chunks == 1 else "chunks"
    if pipeline.stages:
        return f"other than {sum(pipeline.stages)} layers on {len(pipeline.stages)} {parts}: so they are spread"
    but = f", but for the {' and the '.join(pipeline.alone)}" if pipeline.alone else ""
    return f"fewer layers than {parts}: each has one at least{but}"


def not_covered(reference: Reference, events: Iterable[Event] = ()) -> tuple[str, ...]:
    """What no verdict on a step of this reference covers, quantisation on the wire among it, where `events` say it."""
    found: dict[str, None] = {}
    for types in (reference.types.plus(g.types) for g in reference.groups):
        for wire, (rest, what) in _WIRES.items():
            sent, kept = types.get(wire, types[rest]), types[rest]
            if str(sent) != str(kept):
                found[f"rounding of {what} (bytes per element: {sent} on the wire, {kept} at rest)"] = None
    for event in events:
        if event.verb == "reduce" and event.bytes.isdigit():
            kept = reference.types.plus(reference.group(event.group).types)["g"]
            if str(event.bytes) != str(kept):
                found[f"rounding of gradients while they are reduced over {', '.join(event.axes)} (bytes per element: "
                      f"{event.bytes} on the wire, {kept} at rest)"] = None
    always = _uncovered(reference.scaled, any(g.averaged for g in reference.groups))
    return (*always, *_of_pipelines(reference), *reference.left_out, *found)


@dataclass(frozen=True, slots=True)
class Decided:
    """How many instances of an obligation each means decided; the sum is the number of instances.

    `data`: the values that the calculus found are right as they are, on every rank, so that no formula is made.
    `construction`: the instance holds by how every program is built. `simplification`: a formula is made, and rewriting
    alone shows that it has no model. `solver`: the rest.

    >>> Decided(data=3, solver=1).shares()
    {'data': 0.75, 'construction': 0.0, 'simplification': 0.0, 'solver': 0.25}
    """

    data: int = 0
    construction: int = 0
    simplification: int = 0
    solver: int = 0

    def __add__(self, other: Decided) -> Decided:
        return Decided(*(getattr(self, name) + getattr(other, name) for name in DECIDERS))

    @property
    def instances(self) -> int:
        """The number of instances."""
        return sum(self.counts().values())

    def counts(self) -> dict[str, int]:
        """Means -> the number of instances that it decided."""
        return {name: getattr(self, name) for name in DECIDERS}

    def shares(self) -> dict[str, float]:
        """Means -> the share of the instances that it decided, between 0 and 1; 0 if there are no instances."""
        return {name: count / self.instances if self.instances else 0.0 for name, count in self.counts().items()}


DECIDERS = ("data", "construction", "simplification", "solver")
"""The means by which an instance of an obligation is decided: the fields of Decided."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One obligation of one parameter group (or of the whole step, group ""), and how it ended."""

    id: str
    group: str
    statement: str
    verdict: Conclusion
    cls: str | None
    instances: int
    seconds: float | None = None
    reason: str = ""
    event: str = ""
    decided: Decided = Decided()

    def __bool__(self) -> bool:
        raise Undecidable("a verdict is not a truth value: compare .verdict with PROVED, REFUTED, UNDECIDED")


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A named assumption of a verdict: its statement, the axes over which it is made, or the number that it fixes.

    >>> Hypothesis("equal_counts", over=("dp", "microbatch")), Hypothesis("microbatches", is_=1)
    (equal_counts over {dp, microbatch}, microbatches = 1)
    """

    name: str
    says: str = ""
    over: tuple[str, ...] = ()
    is_: int | None = None

    @property
    def text(self) -> str:
        """The hypothesis as reports and certificates print it."""
        if self.is_ is not None:
            return f"{self.name} = {self.is_}"
        over = f" over {{{', '.join(self.over)}}}" if self.over else ""
        return f"{self.name}{over}" + (f": {self.says}" if self.says else "")

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Repair:
    """One edit of the program that makes it provable, its cost per step, and its text in a program's file."""

    edit: str
    cost: str
    file: str = ""


@dataclass(frozen=True, slots=True)
class Counterexample(Shown):
    """A concrete failure: the smallest sizes found, where it shows, and both runs' numbers.

    `got` and `want` are weights (or versions) at the named unit, `mass` is sum of got over sum of want over the unit
    class under equal counts, as a formula in the axis sizes where one exists: the printed `ratio`. `single_device` and
    `distributed` are the numbers of the replay on the simulator. `line` is the event's line in a program's file, 0 if
    the event is derived. `tokens` are the numbers of tokens of the run, cell by cell, if they differ; of a mean over
    sequences or documents those of these, which `counted` says.
    """

    obligation: str
    event: str
    group: str
    sizes: tuple[tuple[str, int], ...]
    device: tuple[tuple[str, int], ...]
    unit: str
    got: str
    want: str
    mass: str | None
    explanation: str
    single_device: str = ""
    distributed: str = ""
    repair: Repair | None = None
    line: int = 0
    tokens: tuple[tuple[str, int], ...] = ()
    counted: str = "token"


@dataclass(frozen=True, slots=True)
class Certified:
    """A certificate on disk: its folder, the number of its files, the SHA-256 of its manifest."""

    path: str
    files: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Report(Shown):
    """The verdicts of all obligations of one program, and the overall one."""

    strategy: str
    model: str
    verdict: Conclusion
    cls: str | None
    hypotheses: tuple[Hypothesis, ...]
    not_covered: tuple[str, ...]
    obligations: tuple[Verdict, ...]
    counterexample: Counterexample | None = None
    lemmas: tuple[str, ...] = ()
    versions: str = ""
    certificate: Certified | None = None

    def __repr__(self) -> str:
        return f"{self.strategy} on {self.model}: {self.verdict}" + (f", {self.cls}" if self.cls else "")

    def __bool__(self) -> bool:
        raise Undecidable("a report is not a truth value: compare .verdict with PROVED, REFUTED, UNDECIDED")

    def of(self, identifier: str) -> tuple[Verdict, ...]:
        """The verdicts of one obligation identifier."""
        return tuple(v for v in self.obligations if v.id == identifier)

    @property
    def statements(self) -> dict[str, str]:
        """Identifier -> statement of every obligation, in order; one of ASKED_FOR only where it was asked."""
        return {**OBLIGATIONS, **{i: says for i, says in ASKED_FOR.items() if self.of(i)}}

    @property
    def assuming(self) -> tuple[str, ...]:
        """The hypotheses in words."""
        return tuple(h.text for h in self.hypotheses)

    @property
    def decided(self) -> Decided:
        """How many instances of all obligations each means decided; groups that share a proof count one by one."""
        return sum((v.decided for v in self.obligations), Decided())

    @property
    def why_undecided(self) -> str:
        """The first reason for which an obligation is UNDECIDED."""
        return next((v.reason for v in self.obligations if v.verdict == UNDECIDED and v.reason), "")

    @property
    def of_values(self) -> Conclusion:
        """The verdict in exact numbers: without the obligations that are asked only where types are named."""
        return overall(v for v in self.obligations if v.id not in ASKED_FOR)[0]

    def refuted(self) -> tuple[str, ...]:
        """The identifiers of refuted obligations, in table order."""
        return tuple(i for i in self.statements if any(v.verdict == REFUTED for v in self.of(i)))

    def to_json(self, timing: bool = True) -> dict[str, Any]:
        """The report as the JSON object of `placealg prove --format json`."""
        found, written = self.counterexample, self.certificate
        return {
            "version": 2, "strategy": self.strategy, "model": self.model,
            "verdict": self.verdict, "class": self.cls,
            "hypotheses": list(self.assuming), "not_covered": list(self.not_covered),
            "decided": {**self.decided.counts(), "shares": self.decided.shares()},
            "obligations": [{
                "id": v.id, "group": v.group, "statement": v.statement, "verdict": v.verdict, "class": v.cls,
                "instances": v.instances, "decided": v.decided.counts(),
                "seconds": v.seconds if timing else None, "reason": v.reason,
            } for v in self.obligations],
            "counterexample": None if found is None else {
                "obligation": found.obligation, "event": found.event, "line": found.line or None,
                "group": found.group,
                "sizes": dict(found.sizes), "device": dict(found.device), "unit": found.unit,
                "got": found.got, "want": found.want, "mass": found.mass, "ratio": found.mass,
                "explanation": found.explanation,
                "tokens": dict(found.tokens) or None,
                "single_device": found.single_device, "distributed": found.distributed,
                "repair": None if found.repair is None else {
                    "edit": found.repair.edit, "cost": found.repair.cost, "file": found.repair.file or None},
            },
            "certificate": None if written is None else {
                "path": written.path, "files": written.files, "sha256": written.sha256},
        }


def overall(verdicts: Iterable[Verdict]) -> tuple[Conclusion, str | None]:
    """The verdict of the whole and its class: REFUTED, else UNDECIDED, else PROVED with the weakest class.

    Every identifier of OBLIGATIONS must occur; one that is absent or NOT_CHECKED makes the whole UNDECIDED, unless
    another is refuted.
    """
    seen = list(verdicts)
    if any(v.verdict == REFUTED for v in seen):
        return REFUTED, BOUNDED
    if set(OBLIGATIONS) - {v.id for v in seen} or any(v.verdict != PROVED for v in seen):
        return UNDECIDED, None
    strength = (PARAMETRIC, CUTOFF, BOUNDED)
    return PROVED, strength[max((strength.index(v.cls) for v in seen if v.cls), default=0)]
