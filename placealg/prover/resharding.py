"""The verdict on a resumption on another mesh: verdicts on both runs, lemmas on blocks, and a small run of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from placealg.prover.interval_cover import Lemma
from placealg.prover.verdict import PROVED, REFUTED, UNDECIDED, Conclusion, Hypothesis, Report
from placealg.step.reshard import Reshard

ON_ANOTHER_MESH = "a checkpoint that is resumed on another mesh"
"""The entry of NOT_COVERED that this verdict does cover."""

SAME_BATCHES = Hypothesis("same_batches", "both runs take the same sequences of every step, however they deal them out "
                          "to ranks and microbatches; a strategy does not say the order of the data")


@dataclass(frozen=True, slots=True)
class Ran:
    """The outcome of a run that resumes on another mesh: whether it equals the single device's, and how many numbers.

    `difference` names the first number that differs.
    """

    equal: bool
    observed: int
    difference: str = ""


@dataclass(frozen=True, slots=True)
class Resharding:
    """The verdict on a resumption on another mesh: those on both runs, the lemmas on blocks, and a small run of both.

    `ran` is the outcome of the run on small meshes, None unless both runs are proved; `sizes` are those of the meshes.
    """

    reshard: Reshard
    saved: Report
    loaded: Report
    blocks: tuple[Lemma, ...]
    ran: Ran | None
    sizes: tuple[Mapping[str, int], Mapping[str, int]]

    @property
    def verdict(self) -> Conclusion:
        """REFUTED if one of the two runs is; PROVED if all parts are, and the small run agrees."""
        if REFUTED in (self.saved.verdict, self.loaded.verdict):
            return REFUTED
        parts = {str(self.saved.verdict), str(self.loaded.verdict), *(str(b.verdict) for b in self.blocks)}
        return PROVED if parts == {str(PROVED)} and self.ran is not None and self.ran.equal else UNDECIDED

    @property
    def cls(self) -> str | None:
        """The weaker class of both runs' verdicts."""
        order = ("PARAMETRIC", "CUTOFF", "BOUNDED")
        found = [r.cls for r in (self.saved, self.loaded) if r.cls]
        return max(found, key=order.index) if found and self.verdict != UNDECIDED else None

    @property
    def reason(self) -> str:
        """Why the verdict is UNDECIDED; "" if it is not."""
        if self.verdict != UNDECIDED:
            return ""
        for report in (self.saved, self.loaded):
            if report.verdict == UNDECIDED:
                return f"{report.strategy}: {report.why_undecided}"
        found = next((b.reason for b in self.blocks if b.verdict != PROVED), "")
        return found or f"a small run differs: {self.ran.difference if self.ran else ''}"

    @property
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The hypotheses of both verdicts, and that the runs take the same data."""
        return tuple(dict.fromkeys((*self.saved.hypotheses, *self.loaded.hypotheses, SAME_BATCHES)))

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What neither verdict covers."""
        both = dict.fromkeys((*self.saved.not_covered, *self.loaded.not_covered))
        return tuple(n for n in both if n != ON_ANOTHER_MESH)
