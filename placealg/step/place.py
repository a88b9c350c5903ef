"""Which stage of a pipeline is meant: one by its number, or one of unknown many by where it stands.

A reader of a stage's program has one of these, whatever is known of the pipeline; a step without one is at the stage 0
of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from placealg.mesh import PREDICTION

ANY = "i"
"""The number of a stage between the first and the last, whichever it is, as formulas and users write it."""


@dataclass(frozen=True, slots=True)
class At:
    """The stage with a number, from 0."""

    number: int

    @property
    def text(self) -> str:
        """The number, as users write it."""
        return str(self.number)

    @property
    def from_start(self) -> str:
        """Its number, as arithmetic over p, the number of stages."""
        return str(self.number)


class Unnumbered(Enum):
    """A stage of a pipeline of unknown length: a name as users write it, and its number as arithmetic over p and i."""

    MIDDLE = (ANY, "i")
    PREDICTING = (PREDICTION, "p - 2")
    LAST = ("last", "p - 1")

    @property
    def text(self) -> str:
        """The name, as users write it."""
        return self.value[0]

    @property
    def from_start(self) -> str:
        """Its number, as arithmetic over p, the number of stages, and i."""
        return self.value[1]


MIDDLE, PREDICTING, LAST_STAGE = Unnumbered
"""Any stage between the first and the last; that of the layers which predict alone; the last of unknown many."""

Place = At | Unnumbered
"""A stage of a pipeline."""

FIRST_STAGE = At(0)
"""The stage that runs what comes before the repeated units; the only one of a step without a pipeline."""
