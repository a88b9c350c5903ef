"""`prove --masked`: a file's program, run where its `masked` says that what it gets wrong does not show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from placealg.cases.case import CommandCase
from placealg.errors import InputError
from placealg.render.text_layout import Line, Span, indent, line, prose
from placealg.strategy.file import Masked

if TYPE_CHECKING:
    from placealg.simulator import Outcome

    Runs = Sequence[tuple[Masked, Outcome]]
    """Masked sets, each with the run at its sizes."""


def check_masked(case: CommandCase) -> None:
    """Raise InputError where the case's file says no masked set."""
    if not case.masked:
        raise InputError(f"{case.strategy.name} has no 'masked' to check: a file says it", where="--masked")


def runs_of(case: CommandCase) -> Runs:
    """A run for each masked set of the case's file."""
    from placealg.check.masked_sizes import hidden

    return tuple((masked, hidden(case.step, masked)) for masked in case.masked)


def masked_json(runs: Runs) -> list[dict[str, Any]]:
    """The runs as JSON: sizes, counts, whether all numbers equal the single device's, and how many were compared."""
    return [{"sizes": dict(m.sizes), "counts": m.counts or None, "equal": o.equal, "observed": o.observed}
            for m, o in runs]


def masked_lines(runs: Runs, width: int) -> list[Line]:
    """One line for each run: hidden as the file says, or where it shows."""
    found: list[Line] = [()] if runs else []
    for masked, outcome in runs:
        if outcome.equal:
            text = f"does not show at {masked}: {outcome.observed} numbers equal the single device's"
            found += indent([line(Span("✓ ", "green"), text)])
        else:
            found += indent(prose(f"✗ shows at {masked}: {outcome.difference}", width - 2, "bold red", hang=2))
    return found
