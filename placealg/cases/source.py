"""What was read elsewhere and stands for a strategy; what else the core asks of it, the room that read it answers."""

from __future__ import annotations

from abc import ABC, abstractmethod

from placealg.strategy.spec import Strategy


class Source(ABC):
    """Something with a strategy that was read from a file that is none of placealg's."""

    strategy: Strategy

    @property
    @abstractmethod
    def accumulates(self) -> bool:
        """Whether neither the file nor the user says how many microbatches a step has, so that it may be one."""
