"""The sizes that a page of costs lets its reader choose: which are free, where each starts, where its slider stops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from placealg.arith import Monomial
from placealg.cost.costs import Costs
from placealg.cost.formula import Formula
from placealg.cost.javascript import definitions
from placealg.cost.stage import stage_of
from placealg.errors import InputError
from placealg.mesh import SYMBOLS, axis_symbol
from placealg.prover.verdict import Report
from placealg.render.mesh_drawing import FEW, drawn_sizes
from placealg.step.place import LAST_STAGE, At
from placealg.step.program import Step
from placealg.strategy.spec import Strategy

EXAMPLES: Mapping[str, int] = {
    "Psi": 7 * 10**9, "Psi_unit": 25 * 10**7, "b": 1, "m": 1, "s": 4096, "h": 4096, "a": 32, "kv": 8, "f": 14336,
    "L": 32, "V": 128256, "d": 128, "s_max": 4096, "experts": 8, "topk": 2, "docs": 4, "shared": 1, "f_dense": 14336,
    "L_dense": 4, "L_moe": 28, "q_rank": 1536, "kv_rank": 512, "d_nope": 128, "d_rope": 64, "d_v": 128, "v": 2,
    "adapter_rank": 16, "L_full": 8, "L_again": 16, "L_away": 16, "L_rest": 16, "L_window": 24, "L_chunk": 24,
    "L_nope": 8, "L_rotary": 24, "L_dense_window": 4, "L_dense_chunk": 4, "L_dense_nope": 4, "f_shared": 14336,
    "L_delta": 24, "L_state": 24, "L_conv": 16, "L_dense_delta": 4, "L_dense_state": 4, "L_dense_conv": 4, "L_mlp": 16,
    "a_state": 32, "kv_state": 8, "d_key": 128, "d_value": 128, "taps": 4, "halo": 3,
    "h_low": 1024, "i": 1, "L_entry": 1, "L_exit": 1, "L_predicted": 1, "T_F": 1, "T_B": 1, "T_W": 1,
    **{n: 4 for n in SYMBOLS if n.startswith("n_")}, **{n: 8 for n in SYMBOLS if n.startswith("in_flight_")},
    **{n: 5 for n in SYMBOLS if n.startswith("first_")},
}
"""Size -> where its slider starts if nothing is said of it: an example, of a small model."""

BYTES = ("1/2", "1", "2", "3", "4", "6", "8", "10", "12", "14", "16", "18")
"""The stops of bytes per element."""

EXAMPLE, DEFAULT = ", for example", ", by default"
"""How a slider says that its start was not asked for."""

_SPAN = 1024


@dataclass(frozen=True, slots=True)
class Told:
    """One strategy of a page: its program, its costs (of a pipeline one stage's), its verdict where it has one.

    `sizes` are those that the command line says,
    `bound` those that strategy or model fix. `whole` are quotients that must be integers, `ordered` pairs of a size and
    another that it never exceeds.
    """

    strategy: Strategy
    program: Step
    costs: Costs
    report: Report | None = None
    sizes: Mapping[str, Fraction] = field(default_factory=dict)
    bound: Mapping[str, Fraction] = field(default_factory=dict)
    whole: tuple[Monomial, ...] = ()
    ordered: tuple[tuple[Monomial, Monomial], ...] = ()

    def figures(self) -> dict[str, Formula]:
        """Every formula of the page by name: memory.*, sent.*, schedule.*."""
        order = self.costs.schedule.items() if self.costs.schedule else ()
        return {**{f"memory.{name}": f for name, f in self.costs.named("memory").items()},
                **{f"sent.{name}": f for name, f in self.costs.named("communication").items()},
                **{f"schedule.{name}": f for name, f in order}}

    def fixed(self) -> dict[str, Fraction]:
        """The sizes that no slider changes: those bound, and those by which a pipeline's stage was chosen."""
        found = dict(self.bound)
        stage = stage_of(self.costs.step)
        if stage.several and stage.ranks is not None:
            loops = self.costs.step.reference.graph.loops
            chosen = {stage.pipeline.axis, "v", *(n for loop in loops for n in loop.count.names())}
            chosen |= set() if stage.even else {"m"}
            found |= {name: self.sizes[name] for name in chosen if name in self.sizes}
        return found

    def wholes(self) -> tuple[Monomial, ...]:
        """What must be an integer: `whole`, and a pipeline's layers per stage."""
        stage = stage_of(self.costs.step)
        more = (n for n in stage.instances.values() if any(p < 0 for _, p in n.powers))
        return tuple(dict.fromkeys((*self.whole, *more)))

    def free(self) -> tuple[str, ...]:
        """The sizes on which its figures depend and that are not fixed."""
        figures, fixed = self.figures().values(), self.fixed()
        defined = {n for f in figures for n in definitions(f) if n not in self.sizes}
        depends = {n for f in figures for n in f.inputs if n not in defined}
        return tuple(n for n in depends if n not in fixed)


@dataclass(frozen=True, slots=True)
class Slider:
    """A size with its meaning, its start and where that comes from, its least value, and its stops."""

    name: str
    meaning: str
    value: Fraction
    least: Fraction
    whole: bool
    stops: tuple[Fraction, ...]
    source: str

    @property
    def at(self) -> int:
        """The stop at which the slider stands."""
        return self.stops.index(self.value)


def spread(every: Sequence[Told]) -> tuple[Mapping[str, tuple[str, ...]], ...]:
    """Of each strategy the axis of data that takes the devices of axes that it lacks, and those: all have as many.

    Where the command line says the size of an axis, or none of a strategy's is free, it stands as it is.
    """
    free = [[a for a in told.strategy.mesh.names if a in told.free() and a not in told.fixed()] for told in every]
    names = dict.fromkeys(a for axes in free for a in axes)
    if any(a in told.sizes for told in every for a in told.strategy.mesh.names):
        return tuple({} for _ in every)
    found = []
    for told, own in zip(every, free, strict=True):
        taking = next((a for a in told.strategy.batch_axes if a in own), "")
        more = tuple(a for a in names if a not in told.strategy.mesh.names)
        found.append({taking: more} if taking and more else {})
    return tuple(found)


def sliders(every: Sequence[Told]) -> tuple[Slider, ...]:
    """A slider per size that some strategy leaves free: axes first, then the symbols in the order of their table."""
    free = dict.fromkeys(name for told in every for name in told.free())
    axes = dict.fromkeys(a for told in every for a in told.strategy.mesh.names if a in free)
    return tuple(_slider(name, every) for name in (*axes, *(n for n in SYMBOLS if n in free)))


def _slider(name: str, every: Sequence[Told]) -> Slider:
    rational = name in SYMBOLS and SYMBOLS[name].assumption == "positive rational"
    said = next((t.sizes[name] for t in every if name in t.sizes), None)
    value, source = _start(name, every) if said is None else (said, "")
    least = Fraction(max(_least(name, told) for told in every))
    if rational:
        stops = {Fraction(n) for n in BYTES}
    else:
        low, high = max(least, value / _SPAN), max(value, Fraction(4)) * _SPAN
        stops = {Fraction(n) for n in _rising(high) if n >= low}
    meaning = (SYMBOLS.get(name) or axis_symbol(name)).meaning
    return Slider(name, meaning, value, Fraction(0) if rational else least, not rational,
                  tuple(sorted({*stops, value})), source)


def _rising(high: Fraction) -> Iterable[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, ... up to `high`."""
    yield 1
    power = 2
    while power <= high:
        yield from (power, power * 3 // 2)
        power *= 2


def _start(name: str, every: Sequence[Told]) -> tuple[Fraction, str]:
    """Where a slider starts if nothing is said: at a default, else at an example, and it says so."""
    for told in every:
        if name in told.strategy.mesh.names:
            return Fraction(_drawn(told.strategy).get(name, FEW)), EXAMPLE
        values = next((f.values for f in told.figures().values() if name in f.values), None)
        if values is not None:
            return values[name], DEFAULT
    return Fraction(EXAMPLES[name]), EXAMPLE


def _drawn(strategy: Strategy) -> dict[str, int]:
    """The sizes at which a strategy is drawn; none where its own are too large for a drawing."""
    try:
        return drawn_sizes(strategy, {})
    except InputError:
        return {}


def _least(name: str, told: Told) -> int:
    """A pipeline whose number of stages is not known has at least two, and stages of unknown chunks at least two."""
    stage = stage_of(told.costs.step)
    if not stage.several or name not in (stage.pipeline.axis, "v"):
        return 1
    if name == "v":
        return 2
    if isinstance(stage.place, At):
        return max(2, stage.place.number + 1)
    return 2 if stage.place is LAST_STAGE else 3
