"""The verdict on a recorded step: the words, what joins a run to a proof, and what both together are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from placealg.prover.verdict import PROVED, Report
from placealg.watch.conform import Comparison
from placealg.watch.seen import Seen

CONFORMS, DIFFERS, UNSEEN = "CONFORMS", "DIFFERS", "UNSEEN"

HYPOTHESES: Mapping[str, str] = {
    "same_code": "at sizes that were not run, the code runs the same program",
    "same_path": "other batches and steps take the path that was recorded",
    "meant": "the single device is what is meant: what it does wrong itself, or shares with the run, is not seen",
    "dispatched": "memory is written through PyTorch's dispatcher, and the recorder's rules of ops are right",
    "kept_state": "between steps, and where training resumes, weights and what optimizers keep stay as they were",
    "cleared": "the gradients that the step leaves are cleared before the next one: it had none of an earlier step",
    "paired": "the stage that computes the loss reads the targets of the ids that the first stage reads",
    "random": "ranks draw the random numbers that one device would: which of them draw the same was not compared",
}
"""What joins a recorded run to a proof for all sizes: name -> what it says."""


@dataclass(frozen=True)
class Conformance:
    """A recording, held against a strategy: the verdict, what was compared, and what is proved of which program.

    `settings` were read off the run, because the strategy says nothing of them. `program` is the text of the program,
    a strategy file, `digest` its SHA-256, `report` its proof, and `kernel` what the verified checker says of it.
    `edits` are the differences as [[edit]]s, `tables` those that entries of the strategy say, `edited` the report on
    the program that they make; None where they do not make one, and then `gap` says why. Where no strategy was given,
    `proposed` is the text of the one that was read off the run, and `rests` says on what.
    """

    strategy: str
    verdict: str
    seen: Seen
    comparison: Comparison
    settings: tuple[str, ...]
    report: Report
    edits: tuple[Mapping[str, Any], ...] = ()
    edited: Report | None = None
    gap: str = ""
    program: str = ""
    digest: str = ""
    kernel: str = ""
    proposed: str = ""
    rests: tuple[str, ...] = ()
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def hypotheses(self) -> tuple[str, ...]:
        """The names of what joins the run to the proof."""
        left = set() if self.seen.mesh.get(self.comparison.step.reference.pipeline.axis, 1) > 1 else {"paired"}
        left |= set() if any(r.uncleared for r in self.seen.ranks) else {"cleared"}
        left |= set() if any(r.random for r in self.seen.ranks) else {"random"}
        return tuple(name for name in HYPOTHESES if name not in left)

    @property
    def good(self) -> bool:
        """Whether the run conforms, and its program is proved."""
        return self.verdict == CONFORMS and self.report.verdict == PROVED

    def __bool__(self) -> bool:
        raise TypeError("a verdict is no truth value: ask for .verdict, or .good")
