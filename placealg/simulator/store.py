"""What one rank holds of the tensors of an op graph in one microbatch: versions, gradients, what ops keep.

A version is a tensor under a label: "" as its op made it, "tp" a redistributed copy, "tp/cp" a copy of that one.
Reading a gradient sums the gradients of that version and of every version derived from it.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from placealg.simulator.box import Box, Extent
from placealg.simulator.field import Number
from placealg.simulator.functions import Kept

Name = tuple[str, int]
"""(tensor, instance of its unit)."""


@dataclass(slots=True)
class Store:
    """One rank's tensors.

    `away` are the copies on other tiers, by tier, name and label. `extents` are the indices of the operands that an
    op's forward found, `shapes` those of the tensors that were held in the microbatch. `finals` is what each loss has
    read, `seeds` the number from which its backward starts, `touched` the parameters whose gradient this microbatch has
    set. A contribution to a gradient that could not be computed is None.
    """

    versions: dict[Name, dict[str, Box]] = field(default_factory=dict)
    away: dict[tuple[str, Name, str], Box] = field(default_factory=dict)
    gradients: dict[Name, dict[str, list[Box | None]]] = field(default_factory=dict)
    kept: dict[Name, Kept] = field(default_factory=dict)
    extents: dict[Name, tuple[Extent, ...]] = field(default_factory=dict)
    shapes: dict[Name, Extent] = field(default_factory=dict)
    touched: set[tuple[str, int, str]] = field(default_factory=set)
    finals: dict[str, Box | None] = field(default_factory=dict)
    seeds: dict[str, Number | None] = field(default_factory=dict)

    def read(self, name: Name, label: str) -> Box | None:
        """A version; one that is not held is the version from which it would have come.

        >>> import numpy as np
        >>> store = Store(versions={("x", 0): {"": Box({}, np.array(5))}})
        >>> store.read(("x", 0), "tp/cp"), store.read(("y", 0), "")
        (Box({}, 5), None)
        """
        held = self.versions.get(name, {})
        return held.get(nearest(label, held))

    def write(self, name: Name, label: str, box: Box | None) -> None:
        """A version becomes the box; None ends it."""
        if box is None:
            self.versions.get(name, {}).pop(label, None)
        else:
            self.versions.setdefault(name, {})[label] = box
            if not label:
                self.shapes[name] = box.extent

    def contributions(self, name: Name, label: str) -> list[Box | None]:
        """All contributions to the gradient of a version and of those that derive from it."""
        return [c for below, found in self.gradients.get(name, {}).items() if _derives(below, label) for c in found]

    def contribute(self, name: Name, label: str, contribution: Box | None) -> None:
        """Add to the gradient of a version."""
        self.gradients.setdefault(name, {}).setdefault(label, []).append(contribution)

    def replace(self, name: Name, label: str, gradient: Box | None) -> None:
        """The gradient of a version and of those that derive from it becomes this one; None: not held."""
        kept = {below: c for below, c in self.gradients.get(name, {}).items() if not _derives(below, label)}
        self.gradients[name] = kept if gradient is None else {**kept, label: [gradient]}


def nearest(label: str, held: Container[str]) -> str:
    """The label if it is held, else that of the nearest version from which it would have come, "" at last.

    >>> nearest("tp/cp", {"tp"}), nearest("tp/cp", {"dp"})
    ('tp', '')
    """
    while label and label not in held:
        label = label.rpartition("/")[0]
    return label


def _derives(label: str, source: str) -> bool:
    return not source or label == source or label.startswith(f"{source}/")
