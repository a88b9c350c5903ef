"""What was read elsewhere and stands for a strategy: the core asks it for its model, and for one microbatch a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from placealg.models.model import Model
from placealg.strategy.spec import Strategy


class Source(ABC):
    """Something with a strategy that was read from a file that is none of placealg's."""

    strategy: Strategy

    @property
    @abstractmethod
    def accumulates(self) -> bool:
        """Whether neither the file nor the user says how many microbatches a step has, so that it may be one."""

    @abstractmethod
    def on(self, name: str = "") -> Model:
        """The model of a name, as the file runs it; without a name the one that it names, or on which it stands."""

    @abstractmethod
    def once(self) -> Self:
        """The same, of a step with one microbatch, where nothing says how many."""
