"""Memory per device, in bytes: what rests, what is held beyond that while the step runs, and the host's part.

Conventions. A gathered unit is a buffer of its own beside the shard. Backward accumulates in place unless something
else touches `grad` between the computation and its accumulation; then a full-size `grad` of one unit exists, in the
element size `g` of gradients. Collectives and casts work in place: `publish` writes into the weights. A value that
crosses the host link only to be published or accumulated is consumed as it arrives, without a buffer. Element sizes are
those of verbs.BYTES. A share is 1/n of a group: sizes are taken to divide, unless the strategy pads shares (shards.py).
Tensors of an op graph are those of activations.py; an op makes a new buffer, an all_reduce works in place.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from placealg.cost.amounts import Tally
from placealg.cost.formula import Formula
from placealg.cost.peak import peak
from placealg.cost.stage import NO_SIZES, Sizes, StageStep, candidates, on_stage
from placealg.cost.walk import Walk, walked
from placealg.notebook_display import Shown
from placealg.placement import MEMORY_TIERS
from placealg.step.program import Step


@dataclass(frozen=True, slots=True)
class Memory(Shown):
    """Bytes per device. `total` = states + transient (+ activations if they have a formula), without host.

    `parameters`, `optimizer`, `gradients` and their sum `states` rest on the device at a step boundary. `activations`
    is what forward keeps for backward. `transient` is the most that is held of states at once beyond those at rest;
    `peak` the most that is held at once, with all tensors at that moment; `host` and `nvme` the most that those tiers
    hold at once for this device.
    """

    parameters: Formula
    optimizer: Formula
    gradients: Formula
    states: Formula
    activations: Formula
    transient: Formula
    host: Formula
    nvme: Formula
    total: Formula
    peak: Formula

    def items(self) -> tuple[tuple[str, Formula], ...]:
        """(name, formula) of every part, in order."""
        return tuple((f.name, getattr(self, f.name)) for f in fields(self))


def memory(step: Step | Walk, statistics: bool = False) -> Memory:
    """The memory of a step program on its most loaded device (memory has one convention: exact).

    `statistics` counts the row statistics that norms keep for backward. With a pipeline, it is the memory of a device
    of the first stage, or of the stage whose program the step is.
    """
    walk = walked(step, statistics)
    amounts, rest = walk.amounts, walk.rest
    tensors = walk.tensors
    states = amounts.formula(amounts.linear(rest), "bytes")
    transient = peak(amounts, walk.transient)
    activations = Formula.none("bytes", walk.unknown) if walk.unknown else tensors.total()
    total = states.expr + transient.expr + tensors.waited()
    notes = (activations.note or "states and transient only", transient.note)
    return Memory(
        **{state: amounts.formula(amounts.linear(tally), "bytes") for state, tally in walk.resting.items()},
        states=states,
        activations=activations,
        transient=transient,
        **{tier: peak(amounts, walk.on_tier(tier), (Tally(), tensors.between(tier)), tensors.waited(tier))
           for tier in MEMORY_TIERS[1:]},
        total=amounts.made(total, "bytes", note="; ".join(n for n in notes if n)),
        peak=peak(amounts, walk.peak, (rest, tensors.between()), tensors.waited()),
    )


def chosen(step: Step, stage: int | str | None = None, sizes: Sizes = NO_SIZES) -> Step:
    """The program of the device whose costs are reported: with a pipeline that of a stage, else the step itself.

    `stage` is a number from 0, `first` or `last`. Without one it is the stage whose `memory(...).total` is the largest
    at `sizes` and bound sizes; the first if that is not a number.
    """
    if stage is not None or not step.reference.pipeline.axis or isinstance(step, StageStep):
        return step if stage is None else on_stage(step, stage, sizes)
    every = [on_stage(step, number, sizes) for number in candidates(step.reference, sizes)]
    if len(every) == 1:
        return every[0]
    loads = []
    for one in every:
        total = _total(one)
        value = total.if_known(**{n: size for n, size in sizes.items() if n in total.inputs})
        if value is None:
            return every[0]
        loads.append(value)
    return replace(every[loads.index(max(loads))], most_loaded=True)


def _total(step: StageStep) -> Formula:
    """The `total` of `memory`, computed by itself."""
    walk = Walk(step)
    states = walk.amounts.formula(walk.amounts.linear(walk.rest), "bytes")
    transient = peak(walk.amounts, walk.transient)
    return walk.amounts.made(states.expr + transient.expr + walk.tensors.waited(), "bytes")
