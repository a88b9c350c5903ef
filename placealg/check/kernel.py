"""What the verified checker says of a step, beside the prover: accepted, not accepted, or outside of its language."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from placealg.errors import InputError
from placealg.prover.kernel.checker import shipped
from placealg.prover.kernel.coq import (
    by_coqc,
    check_unedited,
    coq_file,
    refuted_by_coqc,
    sha256,
    worlds,
)
from placealg.prover.kernel.outside import Outside
from placealg.prover.kernel.printer import printed
from placealg.prover.kernel.program import Program, term
from placealg.prover.kernel.terms import Term
from placealg.prover.kernel.theory import coq_version
from placealg.prover.verdict import ASKED_FOR, PROVED, REFUTED, Report
from placealg.step.program import Step
from placealg.strategy.file import proofs_folder

_RESUME = 1 + list(Program.__annotations__).index("resume")
"""The place of a program, as a term, that has what resumes it."""

THEOREM = ("gradient", "normalizer", "view", "update", "invariant", "init")
"""The obligations of which the kernel's theorem speaks; not of schedule and random."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """The answer on one program: `accepted` is None outside of the language, and `reason` says why.

    `sha256` is the digest of the program as it is printed. `coq` says what coqc made of it, "" where it was not asked;
    `proved` is whether it has proved the program, or that it is wrong.
    """

    accepted: bool | None
    reason: str = ""
    sha256: str = ""
    program: Term = field(default=(), repr=False)
    coq: str = ""
    proved: bool = False

    @property
    def resumes(self) -> bool:
        """Whether the program has a resume phase; the theorem speaks of no resume of one that has none."""
        return isinstance(self.program, tuple) and bool(self.program and self.program[_RESUME])

    @property
    def staged(self) -> bool:
        """Whether the program is a pipeline's: the theorem takes its items in one order, and `schedule` in its own."""
        mesh = self.program[1] if isinstance(self.program, tuple) and self.program else ()
        return isinstance(mesh, tuple) and bool(mesh and mesh[-1])

    def contradicts(self, report: Report) -> bool:
        """Whether it accepts what the prover refutes, so that one of the two is wrong.

        Of a schedule, or of the types of sums, that are refuted alone the theorem says nothing.
        """
        refuted = {v.id for v in report.obligations if v.verdict == REFUTED} if report.verdict == REFUTED else set()
        return self.accepted is True and bool(refuted - {"schedule", *ASKED_FOR})

    def narrower(self, report: Report) -> bool:
        """Whether it does not accept what the prover proves: it is sound, and not complete."""
        return self.accepted is False and report.of_values == PROVED

    def text(self, report: Report) -> str:
        """The answer in words, beside the prover's."""
        if self.accepted is None:
            return f"not checked: {self.reason}"
        named = f"this program (sha256 {self.sha256[:16]})"
        if self.accepted:
            steps = "steps and resumes" if self.resumes else "steps, never resumed"
            orders = ", whichever stage an instance is on, one microbatch after the other" if self.staged else ""
            told = f"accepted: {named}, for all sizes, microbatches, {steps}{orders}; {', '.join(THEOREM)}"
        else:
            told = f"not accepted{' either' if report.of_values == REFUTED else ''}: {named}"
        if self.contradicts(report):
            told += "; the prover says REFUTED: one of the two engines is wrong; please report it"
        elif self.narrower(report):
            told += "; the checker is too narrow here, which refutes nothing"
        return f"{told}; {self.coq}" if self.coq else told

    def to_json(self) -> dict[str, Any]:
        """The answer for `--format json`."""
        return {"accepted": self.accepted, "reason": self.reason, "sha256": self.sha256,
                "obligations": list(THEOREM) if self.accepted else [], "coq": self.coq}


def kernel(step: Step) -> Kernel:
    """The verified checker's answer on a program, derived or edited.

    >>> import placealg as pa
    >>> kernel(pa.derive("zero3*tp", "gpt")).accepted
    True
    """
    try:
        program = term(printed(step))
    except Outside as outside:
        return Kernel(None, str(outside))
    return Kernel(shipped().check(program), "", sha256(program), program)


def in_coq(found: Kernel, about: str, path: Path | None, refuted: Mapping[str, int] | None = None,
           keep: Path | None = None) -> Kernel:
    """The answer, and what coqc makes of the program's file, which is written to `path` where there is one.

    The file proves that the program is correct; with `refuted`, the sizes of a counterexample, that it is not. In
    the folder `keep` the theory is found again, compiled.
    """
    if found.accepted:
        text = coq_file(found.program, about)
        _keep(text, path)
        refused = by_coqc(text, proofs_folder("coq"), keep)
        told = f"not checked by Coq: {refused}" if refused else f"checked by Coq {coq_version()}, no axioms"
        return replace(found, coq=told, proved=not refused)
    if found.accepted is None or refuted is None:
        return replace(found, coq="no Coq proof is printed")
    sizes = [n for name, n in refuted.items() if name != "m"]
    tried = worlds(sizes, refuted.get("m", 1))
    text, refused = refuted_by_coqc(found.program, about, tried, proofs_folder("coq"), keep)
    if not text:
        return replace(found, coq=f"not checked by Coq: {refused}" if refused else
                       f"not refuted by Coq: its theorem says nothing of what is wrong here ({', '.join(THEOREM)})")
    _keep(text, path)
    told = f"not refuted by Coq: {refused}" if refused else f"refuted by Coq {coq_version()}, no axioms: ~ correct"
    return replace(found, coq=told, proved=not refused)


def _keep(text: str, path: Path | None) -> None:
    if path is None:
        return
    if path.parent.exists() and not path.parent.is_dir():
        raise InputError("is no folder", where=str(path.parent))
    if path.exists():
        check_unedited(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
