"""The prover held against the simulator on one program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import random_dims
from mutants import Kind, Mutant

from placealg.check.prove import prove
from placealg.errors import InputError
from placealg.prover.verdict import PROVED, REFUTED, UNDECIDED, Report
from placealg.simulator import Setting, simulate
from placealg.step.program import Reference, Step

OPEN = ("no transfer rule", "no fixpoint", "microbatches overlap in a pipeline")
"""Reasons for which the prover leaves a program open, and says so: no claim, and no disagreement."""


@dataclass(frozen=True)
class Agreement:
    """What the prover says, and where the simulator differs from the single device ("" when it never does)."""

    report: Report
    differs: str

    @property
    def complaint(self) -> str:
        """Why the two engines disagree; "" when they agree."""
        verdict = self.report.verdict
        if verdict == PROVED:
            return f"PROVED, but the simulator differs: {self.differs}" if self.differs else ""
        if verdict == REFUTED:
            return ""
        reasons = [f"{v.id}: {v.reason}" for v in self.report.obligations if v.verdict != PROVED]
        if any(why in reason for reason in reasons for why in OPEN):
            return ""
        return f"UNDECIDED {reasons}; the simulator {'differs: ' + self.differs if self.differs else 'agrees'}"

    @property
    def holds(self) -> bool:
        """Whether the verdict and the runs say the same, or the prover leaves it open and says so."""
        same = (self.report.verdict == PROVED) == (not self.differs) or self.report.verdict == UNDECIDED
        return same and not self.complaint


def settings(reference: Reference) -> Iterator[Setting]:
    """Concrete runs: sizes 2 and 3 (unequal on two axes), one to three microbatches, unequal counts where allowed.

    A third axis has one rank beside two, and two beside three.
    """
    axes = reference.mesh.names
    for sizes in ((2, 3, 1), (3, 2, 2)):
        bound = dict(zip(axes, sizes, strict=False))
        for microbatches in (1, 2, 3):
            if sizes == (3, 2, 2) and microbatches == 3:
                continue
            yield Setting.equal(reference, bound, microbatches, 1, seed=microbatches)
            if "equal_counts" not in reference.hypotheses and microbatches < 3:
                yield Setting.unequal(reference, bound, microbatches, seed=microbatches)


def compare(step: Step) -> Agreement:
    """Prove; and run the simulator wherever a replay has not already shown a difference.

    What one update leaves beside a rank's own elements may enter the next one's matrices, which the step after reads.
    """
    report = prove(step)
    if report.verdict == REFUTED:
        return Agreement(report, "replayed")
    runs = random_dims.settings(step) if not step.reference.whole else settings(step.reference)
    for setting in (*runs, *random_dims.of_empty_cells(step, report)):
        outcome = simulate(step, setting, 3 if any(g.locality != "elementwise" for g in step.reference.groups) else 2)
        if not outcome.equal:
            return Agreement(report, f"{outcome.difference} at {dict(setting.sizes)}, m = {setting.microbatches}")
    return Agreement(report, "")


def changes(step: Step, about: Callable[[Mutant], bool], *kinds: Kind) -> dict[str, Agreement]:
    """What both engines say of every single change of these kinds that is `about` something; no program, no entry."""
    found = {}
    for mutant in (m for kind in kinds for m in kind(step) if about(m)):
        try:
            found[mutant.story] = compare(mutant.step)
        except InputError:
            continue
    return found
