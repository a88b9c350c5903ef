"""A run that goes on with another mesh: trained on the old one, saved, read by the ranks of the new one, compared.

The single device trains on throughout: both runs take the same sequences of every step, however they deal them out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.split_layers import apart
from placealg.simulator import device
from placealg.simulator.field import Array, Number
from placealg.simulator.machine import Machine, Table
from placealg.simulator.run import Checkpoint, Comparison, Differs, Outcome, Trees, go_through, switch_on, train
from placealg.simulator.setting import Setting, few_microbatches, fewest_layers, fitting_microbatches
from placealg.simulator.space import of as space_of
from placealg.step.lower import lowered
from placealg.step.program import Step

Known = dict[tuple[str, str, int], dict[int, Number]]
"""(value, parameter, instance) -> the elements that some rank stored."""


@dataclass(frozen=True, slots=True)
class Meshes:
    """The settings of both runs: of one model, one depth, and one number of sequences in a step."""

    old: Setting
    new: Setting


def meshes(old: Step, new: Step, sizes: tuple[Mapping[str, int], Mapping[str, int]], seed: int = 0) -> Meshes:
    """Small settings for two steps at these sizes of their meshes, with equally many sequences everywhere.

    >>> import placealg as pa
    >>> found = meshes(*(pa.derive(s, pa.abstract()) for s in (pa.zero3(), pa.dp())), ({"dp": 2}, {"dp": 3}))
    >>> sum(found.old.counts.values()), sum(found.new.counts.values())
    (12, 12)
    """
    steps = lowered(old), lowered(new)
    units = [2 if apart(s.reference.graph) else 1 for s in steps]
    layers = max(-(-fewest_layers(s.reference, n) * each // max(units))
                 for s, n, each in zip(steps, sizes, units, strict=True)) * max(units)
    most = max(few_microbatches(s.reference, n) for s, n in zip(steps, sizes, strict=True))
    many = [fitting_microbatches(s.reference, n, min(s.reference.microbatches or 2, most))
            for s, n in zip(steps, sizes, strict=True)]
    plain = [replace(Setting.equal(s.reference, n, m, 1, layers=layers // each, seed=seed), padding=False)
             for s, n, m, each in zip(steps, sizes, many, units, strict=True)]
    spaces = [space_of(s.reference, p) for s, p in zip(steps, plain, strict=True)]
    each = [sum(len(space.sequences(k)) for k in range(space.setting.microbatches)) for space in spaces]
    every = math.lcm(*each)
    ranks = [space.multiples() for space in spaces]
    multiples = FrozenMap({d: math.lcm(*(r.get(d, 1) for r in ranks)) for d in {**ranks[0], **ranks[1]}})
    return Meshes(*(replace(p, counts=dict.fromkeys(p.counts, every // n), multiples=multiples, padding=False)
                    for p, n in zip(plain, each, strict=True)))


def resharded(old: Step, new: Step, settings: Meshes, steps: int = 1) -> Outcome:
    """Train `steps` steps of `old`, save, go on with `new` for a step, and compare all that is observed.

    What a rank of the new mesh reads is what it would have stored itself; of several ranks that stored an element the
    first one's counts. Raises InputError where both runs are not held against the same single device.
    """
    old, new = lowered(old), lowered(new)
    states = [device.trajectory(s.reference, setting, steps + 1)
              for s, setting in ((old, settings.old), (new, settings.new))]
    comparison = Comparison(states[0])
    try:
        machine = Machine(old, settings.old, comparison)
        switch_on(machine, {s: states[0][0].weight[s] for s in machine.slots})
        go_through(machine, old.tree("init"))
        files = _last(train(machine, Trees.of(old), steps))
        comparison.end()
        following = Comparison(states[1])
        reader = Machine(new, settings.new, following, resumed=True)
        known, scalars = _known(machine, files)
        _same(reader, states[1][steps].weight, known)
        reader.checkpoint, reader.number = _read(new, settings.new, reader, known, scalars), steps
        switch_on(reader, {})
        go_through(reader, new.tree("resume"))
        train(reader, Trees.of(new), steps + 1)
        following.end()
    except Differs as found:
        return Outcome(False, found.difference, comparison.observed)
    return Outcome(True, None, comparison.observed + following.observed)


def _place(machine: Machine, parameter: str, instance: int) -> tuple[str, int]:
    """A parameter and its instance by what both are called where no layers are apart."""
    return machine.space.setting.named(machine.space.graph, parameter, instance)


def _last(checkpoints: list[tuple[int, Checkpoint]]) -> Checkpoint:
    """Of the checkpoints of a run, by steps finished, the first of those behind its last step."""
    return next(found for number, found in checkpoints if number == checkpoints[-1][0])


def _known(machine: Machine, files: Checkpoint) -> tuple[Known, dict[str, Number]]:
    """What the ranks stored of every parameter, element by element; and of global values."""
    found: Known = {}
    scalars: dict[str, Number] = {}
    for (value, group, instance), tables in files.items():
        for table in tables:
            for entry, number in table.items():
                if not group:
                    scalars.setdefault(value, number)
                    continue
                part = machine.space.parts(machine.reference.group(group))[entry]
                here = found.setdefault((value, *_place(machine, part.parameter, instance)), {})
                for place, one in zip(part.numbers, machine.space.numbers(number), strict=True):
                    here.setdefault(int(place), one)
    return found, scalars


def _read(step: Step, setting: Setting, reader: Machine, known: Known,
          scalars: Mapping[str, Number]) -> Checkpoint:
    """The checkpoint that the new ranks read: where they would have stored something, what the old ones stored."""
    blank = Machine(step, setting, _Unobserved())
    switch_on(blank, {})
    go_through(blank, step.tree("init"))
    own = _last(train(blank, Trees.of(step), 1))
    found: Checkpoint = {}
    for (value, group, instance), tables in own.items():
        filled: list[Table] = []
        for table in tables:
            mine: Table = {}
            for entry in table:
                if not group:
                    number: Number | None = scalars.get(value)
                else:
                    part = reader.space.parts(reader.reference.group(group))[entry]
                    there = known.get((value, *_place(reader, part.parameter, instance)), {})
                    number = reader.space.number(_array([there[int(k)] for k in part.numbers])) if all(
                        int(k) in there for k in part.numbers) else None
                if number is not None:
                    mine[entry] = number
            filled.append(mine)
        found[value, group, instance] = filled
    return found


def _array(numbers: list[Number]) -> Array:
    import numpy as np

    return np.array(numbers, dtype=object if isinstance(numbers[0], Fraction) else np.int64)


def _same(reader: Machine, weights: Mapping[tuple[str, int], tuple[Number, ...]], known: Known) -> None:
    """Raise InputError where the new run's single device has other parameters than the old one's.

    What a rank stored was held against the old one's already.
    """
    for (group, instance), numbers in weights.items():
        for part, number in zip(reader.space.parts(reader.reference.group(group)), numbers, strict=True):
            there = known.get(("weight", *_place(reader, part.parameter, instance)), {})
            for place, one in zip(part.numbers, reader.space.numbers(number), strict=True):
                if there.get(int(place), one) != one:
                    raise InputError(f"the two runs are not held against one single device: {part.parameter} differs")


class _Unobserved(Comparison):
    """A Watch that looks at nothing: only where a run would store something is asked."""

    def __init__(self) -> None:
        super().__init__(())

    def parameter(self, *_: object) -> None:
        """Nothing is compared."""

    def mask(self, *_: object) -> None:
        """Nothing is compared."""

    def losses(self, *_: object) -> None:
        """Nothing is compared."""

    def stream(self, *_: object) -> None:
        """Nothing is compared."""

    def scale(self, *_: object) -> None:
        """Nothing is compared."""

    def stored(self, *_: object) -> None:
        """Nothing is compared."""

    def result(self, *_: object) -> None:
        """Nothing is compared."""
