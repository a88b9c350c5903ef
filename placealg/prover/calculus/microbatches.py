"""The loop over microbatches, for every m at once: the possible positions of the unit's microbatch.

The unit's microbatch is the only one, the first, in the middle, or the last. A run of middle microbatches without the
unit is replaced by its fixed point, which is sound where the loop's body is idempotent on the state.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Iteration:
    """One microbatch, or a run of at least one passive middle microbatch (`many`)."""

    position: str
    active: bool
    many: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """One position of the unit's microbatch: the loop's iterations, and the least m; `exact` if m is that number."""

    iterations: tuple[Iteration, ...]
    least: int
    exact: bool

    @property
    def name(self) -> str:
        """The position of the unit's microbatch."""
        return next(i.position for i in self.iterations if i.active)

    @property
    def shape(self) -> str:
        """The class of m: 1, 2, or more. States that no unit influences depend on it alone."""
        return str(self.least) if self.least < 3 else "3+"


def _case(least: int, exact: bool, *steps: str) -> Case:
    names = {"f": "first", "l": "last", "o": "only", "c": "middle"}
    return Case(tuple(Iteration(names[s[0].lower()], s[0].isupper(), s.endswith("*")) for s in steps), least, exact)


CASES: tuple[Case, ...] = (
    _case(1, True, "O"),
    _case(2, True, "F", "l"),
    _case(2, True, "f", "L"),
    _case(3, False, "F", "c*", "l"),
    _case(3, False, "f", "c*", "L"),
    _case(3, True, "f", "C", "l"),
    _case(4, False, "f", "c*", "C", "l"),
    _case(4, False, "f", "C", "c*", "l"),
    _case(5, False, "f", "c*", "C", "c*", "l"),
)
"""All cases: an upper-case letter is the unit's microbatch, a star a run of one or more."""
