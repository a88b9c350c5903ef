"""Which changes make a case fit that does not, one at a time or two together, and what each costs.

A change is another way to run the loss, recomputation, offload, more sharding of the states, another split of the
devices, or more of them. Its price is the device time of a sequence by the estimate of `cost/times.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from math import prod

from placealg.cost.figure import Figure
from placealg.cost.layouts import sequences, ways
from placealg.cost.links import places
from placealg.cost.machines import Machine
from placealg.cost.sizing import MOST_DEVICES, NO_MARGIN, Margin, Sizes, alike
from placealg.cost.sums import sums
from placealg.cost.times import PARAMETERS, times
from placealg.cost.walk import Walk
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.mesh import Axis, Mesh
from placealg.models.losses import ATTR, with_loss
from placealg.models.model import Model
from placealg.step.derive import derive
from placealg.step.program import Event, Step
from placealg.strategy.catalogue import catalogue, instantiate
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import Strategy

MOST = 6
"""So many changes are told, the cheapest."""

MORE = 16
"""No more than so many times the devices are tried."""

LOSSES = ("chunked", "fused")
"""Ways to run the loss that hold fewer logits than those where nothing is said."""

LADDER = ("dp", "zero1", "zero2", "zero3")
"""Factors of which each shards one more state over the same axis than the one before."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a case has to fit into, and how it is counted: the memory of a device in bytes, of which `kind`, with which
    margin, and the rates by which changes are priced. `batch` are the sequences of a step where they are fixed.
    """

    memory: Fraction
    machine: Machine
    kind: str = "peak"
    margin: Margin = NO_MARGIN
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What is changed, as a person types it, and what comes of it.

    `need` are bytes of the fullest device, `devices` how many there are, `price` the device time of a sequence over
    that of the case as it is; None where units run whole.
    """

    words: tuple[str, ...]
    need: Fraction
    devices: int
    price: Fraction | None


@dataclass(frozen=True)
class _Variant:
    """A case with some of what it says changed, and its program."""

    words: tuple[str, ...]
    strategy: Strategy
    model: Model
    step: Step

    def figures(self, sizes: Sizes, kind: str) -> Iterator[tuple[Mapping[str, Fraction], Figure, Figure, Walk]]:
        """Known sizes, what is held, the states at rest, and the walk of every stage that may be the fullest."""
        axis = self.strategy.pipeline_axis
        yield from _figures(self.step, sizes.get(axis, Fraction(0)) if axis else Fraction(0), axis, kind)

    def need(self, sizes: Sizes, limits: Limits) -> Fraction:
        """The bytes of the fullest device, with what is set aside."""
        found = []
        for known, held, states, _ in self.figures(sizes, limits.kind):
            at = {**known, **sizes}
            rest = states.value(at)
            found.append(rest + (held.value(at) - rest) * limits.margin.factor + limits.margin.reserve)
        return max(found)

    def device_time(self, sizes: Sizes, limits: Limits) -> Fraction | None:
        """Devices times seconds for each sequence, by the estimate; None where it is not known."""
        names, found = self.strategy.mesh.names, []
        rates = {**PARAMETERS, **limits.machine.values, **places(sizes, names, limits.machine.per_node)}
        count = sequences(self.strategy, sizes)
        for known, _, _, walk in self.figures(sizes, limits.kind):
            if (figure := _times(walk).get("time.estimate")) is None:
                return None
            found.append(figure.value({**known, **rates, **sizes}))
        return max(found) * prod(int(sizes[a]) for a in names) / count if count else None


@lru_cache(maxsize=64)
def _events(strategy: Strategy, model: Model) -> tuple[Event, ...]:
    return derive(strategy, model).events


@lru_cache(maxsize=64)
def _times(walk: Walk) -> Mapping[str, Figure]:
    return times(walk)


@lru_cache(maxsize=64)
def _figures(step: Step, ranks: Fraction, axis: str, kind: str
             ) -> tuple[tuple[Mapping[str, Fraction], Figure, Figure, Walk], ...]:
    found = []
    for _, program, _ in alike(step, {axis: ranks} if axis else {}):
        walk = Walk(program)
        figures = sums(walk)
        found.append((walk.amounts.values, figures[f"memory.{kind}"], figures["memory.states"], walk))
    return tuple(found)


def changes(strategy: Strategy, model: Model, step: Step, sizes: Sizes, given: Sizes, limits: Limits
            ) -> tuple[Change, ...]:
    """The cheapest changes of a case that fit, cheapest first; each of two steps where no single one does.

    `sizes` are those of the case, `given` those that a split of the devices has to keep. Of a program with edits, which
    no strategy derives, only changes are tried that leave the derived events as they are: the loss, other splits.

    >>> from placealg.cost.machines import machine
    >>> from placealg.models.config import resolve_model
    >>> strategy, model = parse_strategy("zero1"), resolve_model("gpt2")
    >>> sizes = {"dp": Fraction(8), "b": Fraction(4), "s": Fraction(1024), "m": Fraction(1)}
    >>> found = changes(strategy, model, derive(strategy, model), sizes, {"b": Fraction(4), "s": Fraction(1024)},
    ...                 Limits(Fraction(5 * 10**9), machine("h100")))
    >>> [" and ".join(change.words) for change in found]
    ['*recompute_selective', '*recompute_full', '*offload_activations']
    """
    now = _Variant((), strategy, model, step)
    own = now.device_time(sizes, limits)

    def told(variant: _Variant, at: Sizes, *words: str) -> Iterator[Change]:
        with suppress(InputError):
            need = variant.need(at, limits)
            if need <= limits.memory:
                time = variant.device_time(at, limits)
                yield Change((*variant.words, *words), need, _devices(variant, at), time and own and time / own)

    def split(variant: _Variant, devices: int) -> Iterator[Change]:
        every: list[Change] = []
        free = _unbound(variant.strategy)
        kept = {name: size for name, size in given.items() if name not in free.mesh.names or free.mesh[name].size}
        with suppress(InputError):
            for at in ways(free, variant.model, devices, kept, limits.batch):
                if at != sizes:
                    every += told(variant, at, _split(variant, at, devices != _devices(now, sizes)))
        yield from sorted(every, key=_order)[:1]

    def more(variant: _Variant) -> list[Change]:
        return next(filter(None, (list(split(variant, several * k)) for k in _times_more(several))), [])

    several = _devices(now, sizes)
    variants = tuple(_variants(now))
    found = [*(c for v in variants for c in told(v, sizes)), *split(now, several)]
    found += more(now)
    if not found:
        pairs = (_both(one, other) for one, other in combinations(variants, 2))
        found = [*(c for v in variants for c in (*split(v, several), *more(v))),
                 *(c for v in pairs if v for c in told(v, sizes))]
    return tuple(sorted(found, key=_order)[:MOST])


def _times_more(devices: int) -> Iterator[int]:
    times = 2
    while times <= MORE and devices * times <= MOST_DEVICES:
        yield times
        times *= 2


def _order(change: Change) -> tuple[bool, Fraction, int, int, Fraction]:
    return change.price is None, change.price or Fraction(0), len(change.words), change.devices, change.need


def _devices(variant: _Variant, sizes: Sizes) -> int:
    return prod(int(sizes[a]) for a in variant.strategy.mesh.names)


def _unbound(strategy: Strategy) -> Strategy:
    """A strategy without the sizes of its axes, but for one whose stages or actions are written down for theirs."""
    if any(strategy.option("schedule", key) for key in ("actions", "stages")):
        return strategy
    return replace(strategy, mesh=Mesh(tuple(Axis(axis.name) for axis in strategy.mesh)))


def _split(variant: _Variant, at: Sizes, more: bool) -> str:
    """The sizes of the axes as --set has them, or [mesh] of a file, with the number of devices where there are more."""
    where = "[mesh]" if variant.strategy.mesh.sizes() else "--set"
    said = f"{where} " + " ".join(f"{a}={at[a]}" for a in variant.strategy.mesh.names)
    return f"{_devices(variant, at)} devices: {said}" if more else said


def _variants(now: _Variant) -> Iterator[_Variant]:
    """The case with one thing changed: a further state sharded, how the loss runs, a modifier of the catalogue."""
    yield from _sharded(now)
    run = next((op.attrs[ATTR] for op in now.model.graph.ops if ATTR in op.attrs), None)
    for name in LOSSES:
        if name != run:
            yield from _made(now, f"--loss {name}", now.strategy, name)
    for entry in catalogue().values():
        if entry.kind == "modifier":
            with suppress(InputError):
                yield from _made(now, f"*{entry.name}", now.strategy * instantiate(entry.name))


def _sharded(now: _Variant) -> Iterator[_Variant]:
    """The case with more of its states sharded over the axis of data, where its name is its expression."""
    factors = now.strategy.name.split("*")
    with suppress(InputError):
        if parse_strategy(now.strategy.name).states != now.strategy.states:
            return
        for k, factor in enumerate(factors):
            for further in LADDER[LADDER.index(factor) + 1:] if factor in LADDER else ():
                other = parse_strategy("*".join((*factors[:k], further, *factors[k + 1:])))
                kept = {t: v for t, v in now.strategy.tables.items() if t not in other.tables}
                yield from _made(now, f"{further} for {factor}",
                                 replace(other, tables=FrozenMap({**other.tables, **kept})))


def _made(now: _Variant, word: str, strategy: Strategy, loss: str = "") -> Iterator[_Variant]:
    """The case on another strategy, or with another loss; of a program with edits only where these stay as they are."""
    with suppress(InputError):
        model = with_loss(now.model, loss) if loss else now.model
        base, step = _events(now.strategy, now.model), derive(strategy, model)
        if base == now.step.events or base == step.events:
            yield _Variant((*now.words, word), strategy, model,
                           step if base == now.step.events else replace(step, events=now.step.events))


def _both(one: _Variant, other: _Variant) -> _Variant | None:
    """Both changes at once, where they go together."""
    (word,), names = other.words, ("*", "--loss ")
    if word.startswith(names[0]):
        with suppress(InputError):
            return next(_made(one, word, one.strategy * instantiate(word[1:])), None)
    if word.startswith(names[1]) and not one.words[0].startswith(names[1]):
        return next(_made(one, word, one.strategy, word.removeprefix(names[1])), None)
    return None
