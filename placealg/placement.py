"""Modes, value types, and the redistribution table with its backward column: all of it data.

A *mode* says how a state is held along one mesh axis. A *value type* says what a tensor means along
one axis. Code, documentation and proofs read these tables; nothing restates them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from placealg.errors import InputError
from placealg.frozen import FrozenMap


class Mode(Enum):
    """How one state is held along one mesh axis of size n."""

    R = "R"
    S = "S"
    GATHERED = "S*"
    M = "M"

    def __repr__(self) -> str:
        return self.value

    __str__ = __repr__


@dataclass(frozen=True, slots=True)
class ModeRow:
    """One row of the mode table: what rests on a device, what exists while in use, who uses it."""

    mode: str
    name: str
    at_rest: str
    in_use: str
    tier: str
    used_by: str


MODES: tuple[ModeRow, ...] = (
    ModeRow("R", "replicated", "all of it", "all of it", "device", "data parallel parameters, optimizer, gradients"),
    ModeRow("S", "sharded", "1/n", "1/n: the computation is sharded the same way", "device",
            "tensor, pipeline, expert parallel; ZeRO optimizer and gradients"),
    ModeRow("S*", "sharded with gather", "1/n", "all of it, one unit at a time, freed after use", "device",
            "ZeRO-3 and FSDP parameters"),
    ModeRow("M", "materialized", "nothing", "all of it, one unit at a time, produced when needed", "device",
            "recomputed activations; full gradients between backward and their reduction"),
    ModeRow("O", "offloaded", "nothing on the device; the host or its nvme holds it, itself R or S", "streamed",
            "host or nvme", "ZeRO-Offload, ZeRO-Infinity"),
)
"""The five modes. O is a tier beside a mode: written O alone, S+O when combined."""

MEMORY_TIERS = ("device", "host", "nvme")
"""The tiers of memory on which a state can rest, from the ops outwards: each is linked to the next."""

STATES = ("parameters", "optimizer", "gradients", "activations")

REGION = "region:"
"""What begins a key of activations that names a region of the model rather than an axis."""


@dataclass(frozen=True, slots=True)
class StatePlacement:
    """One state's mode along each axis, and the tier on which it rests.

    Of activations, each region has a mode, and a tier: those in `away` rest on another tier between the passes.

    >>> StatePlacement.parse({"dp": "S+O"}), StatePlacement.parse({"tp": "S*", "region:layer": "M+O"})
    ({dp: S+O}, {tp: S*, region:layer: M+O})
    """

    modes: FrozenMap[str, Mode] = FrozenMap()
    offloaded: bool = False
    away: tuple[str, ...] = ()

    @staticmethod
    def parse(table: Mapping[str, str]) -> StatePlacement:
        """Read `{axis = mode}`; a mode is R, S, S*, M, or one of them with +O, or O for R+O."""
        modes: dict[str, Mode] = {}
        tiers: set[bool] = set()
        away: list[str] = []
        for axis, text in table.items():
            mode, _, tier = text.replace(" ", "").partition("+")
            if mode == "O" and not tier:
                mode, tier = "R", "O"
            if mode not in {m.value for m in Mode} or tier not in ("", "O"):
                valid = (*(row.mode for row in MODES), *(f"{m}+O" for m in Mode))
                turned = f"{tier}+{mode}"
                raise InputError(f"unknown mode '{text}' for axis {axis}", name=text, valid=valid,
                                 near=turned if turned in valid else None)
            modes[axis] = Mode(mode)
            if not axis.startswith(REGION):
                tiers.add(tier == "O")
            elif tier:
                away.append(axis)
        if len(tiers) > 1:
            raise InputError("a state rests on one tier: +O on every axis or on none")
        return StatePlacement(FrozenMap(modes), True in tiers, tuple(away))

    def mode(self, axis: str) -> Mode:
        """The mode along `axis`; an axis on which nothing is said is R."""
        return self.modes.get(axis, Mode.R)

    def sharded(self, axis: str) -> bool:
        """Whether 1/n rests on each rank along `axis`."""
        return self.mode(axis) in (Mode.S, Mode.GATHERED)

    def text(self, axis: str) -> str:
        """The mode along `axis` as users write it."""
        mode = str(self.mode(axis))
        if not self.offloaded and axis not in self.away:
            return mode
        return "O" if mode == "R" else f"{mode}+O"

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{a}: {self.text(a)}" for a in self.modes) + "}"


Levels = tuple[tuple[str, ...], ...]
"""Axes that cut the elements of a parameter, major to minor; those of one level cut together, major to minor."""


def nested(axes: Iterable[str], state: Collection[str], states: Iterable[Collection[str]]) -> Levels:
    """How axes cut the elements of a state of a parameter, from the axes over which it and `states` are sharded.

    Along an axis an element has one owner, whichever of `states`, all those of the parameter, is asked for. So axes
    over which some state is sharded at once cut one inside the other for all states; other ones do not know of each
    other. Axes of the same states are one level, which cuts into contiguous blocks; those of the first state cut
    outside all others, and so on. Of a level over which the state itself is not sharded it has the blocks of all ranks.

    >>> nested(("node", "gpu"), {"node", "gpu"}, ({"gpu"}, {"node", "gpu"})), nested(("a", "b"), {"b"}, ({"a"}, {"b"}))
    ((('gpu',), ('node',)), (('b',),))
    >>> nested(("a", "b"), {"b"}, ({"a"}, {"b"}, {"a", "b"}))
    (('a',), ('b',))
    """
    known = [set(s) for s in states]
    levels: dict[tuple[bool, ...], tuple[str, ...]] = {}
    for axis in axes:
        of = tuple(axis in s for s in (*known, state))
        levels[of] = (*levels.get(of, ()), axis)
    found: list[tuple[str, ...]] = []
    inside: list[tuple[bool, ...]] = []
    for of in sorted(levels):  # the innermost first: what one of them is cut inside of, it needs, too
        if levels[of][0] in state or any(one and other for held in inside for one, other in zip(of, held, strict=True)):
            found.insert(0, levels[of])
            inside.append(of)
    return tuple(found)


class Kind(Enum):
    """What a value means along one axis: KINDS says it for each."""

    I = "I"  # noqa: E741  the field's letter
    R = "R"
    S = "S"
    P = "P"

    def __repr__(self) -> str:
        return f"[{self.value}]"

    __str__ = __repr__


KINDS: Mapping[Kind, str] = {
    Kind.I: "one logical computation, the same on every rank",
    Kind.R: "independent uses of one value, one on every rank",
    Kind.S: "each rank owns part",
    Kind.P: "the true value is the sum over the axis",
}
"""Kind -> what a value of that kind means along one axis."""

DUAL: Mapping[Kind, Kind] = {Kind.I: Kind.I, Kind.R: Kind.P, Kind.P: Kind.R, Kind.S: Kind.S}
"""A value's kind -> its gradient's kind."""


@dataclass(frozen=True, slots=True)
class Redistribution:
    """One row of the redistribution table.

    `sent` is what one device sends, as a factor of the tensor's bytes S (local to all other axes)
    in the axis size n. `backward` is the event by which the gradient returns.
    """

    source: Kind
    target: Kind
    event: str
    sent: str
    backward: str


I, R, S, P = Kind.I, Kind.R, Kind.S, Kind.P  # noqa: E741
REDISTRIBUTIONS: tuple[Redistribution, ...] = (
    Redistribution(I, R, "none", "0", "all_reduce"),
    Redistribution(R, I, "none", "0", "scale 1/n"),
    Redistribution(I, S, "slice", "0", "all_gather"),
    Redistribution(I, P, "scale 1/n", "0", "none"),
    Redistribution(R, S, "slice", "0", "zero-pad"),
    Redistribution(R, P, "scale 1/n", "0", "scale 1/n"),
    Redistribution(S, I, "all_gather", "(n - 1)/n", "slice"),
    Redistribution(S, R, "all_gather", "(n - 1)/n", "reduce_scatter"),
    Redistribution(S, P, "zero-pad", "0", "slice"),
    Redistribution(P, I, "all_reduce", "2*((n - 1)/n)", "none"),
    Redistribution(P, R, "all_reduce", "2*((n - 1)/n)", "all_reduce"),
    Redistribution(P, S, "reduce_scatter", "(n - 1)/n", "all_gather"),
    Redistribution(S, S, "all_to_all", "(n - 1)/n**2", "all_to_all"),
)
"""Every redistribution there is along one axis (all_to_all changes the owner function)."""


def redistribution(source: Kind, target: Kind) -> Redistribution:
    """The row from `source` to `target`.

    >>> redistribution(Kind.P, Kind.S).event
    'reduce_scatter'
    """
    for row in REDISTRIBUTIONS:
        if (row.source, row.target) == (source, target):
            return row
    raise InputError(f"no redistribution from {source} to {target}")


def backward(row: Redistribution) -> Redistribution:
    """The row that the gradient takes: dual(target) -> dual(source)."""
    return redistribution(DUAL[row.target], DUAL[row.source])


SENT: Mapping[str, str] = {
    **{row.event: row.sent for row in REDISTRIBUTIONS if row.sent != "0"},
    "broadcast": "1", "send": "1", "shift": "(n - 1)/n",
}
"""Event -> what one device sends, as a factor of the full tensor S (nccl's bus convention)."""
