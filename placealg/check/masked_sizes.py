"""Where a bug does not show: runs at the sizes of a masked set, which equal the single device's."""

from __future__ import annotations

from placealg.simulator import Outcome, Setting, simulate
from placealg.step.program import Reference, Step
from placealg.strategy.file import Masked

FREE = 2
"""The size of every axis that a masked set leaves free, and of m."""


def setting(reference: Reference, masked: Masked) -> Setting:
    """One run of a masked set: what it leaves free is larger than 1, and token counts differ where they may.

    >>> from placealg.frozen import FrozenMap
    >>> from placealg.models.abstract import abstract
    >>> from placealg.step.derive import derive
    >>> from placealg.strategy.catalogue import hsdp
    >>> dict(setting(derive(hsdp(), abstract()).reference, Masked(FrozenMap({"dp_shard": 1}))).sizes)
    {'dp_replicate': 2, 'dp_shard': 1}
    """
    sizes = {axis: masked.sizes.get(axis, FREE) for axis in reference.mesh.names}
    microbatches = masked.sizes.get("m", reference.microbatches or FREE)
    equal = masked.counts == "equal" or (not masked.counts and "equal_counts" in reference.hypotheses)
    return (Setting.equal if equal else Setting.unequal)(reference, sizes, microbatches)


def hidden(step: Step, masked: Masked) -> Outcome:
    """The run of a masked set, which is equal iff the bug does not show there."""
    return simulate(step, setting(step.reference, masked))
