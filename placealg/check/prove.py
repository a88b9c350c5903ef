"""The verdict that a user sees: prove, replay every refutation on the simulator, look for a repair.

A candidate of the prover becomes REFUTED only when the independent simulator, given its sizes, owners and
counts, differs from the single device. One that does not replay is UNDECIDED.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from placealg.check.precision import check_type, with_precision
from placealg.prover.examine import Candidate, examine
from placealg.prover.verdict import REFUTED, UNDECIDED, Report, not_covered, overall
from placealg.solver_presence import why_not
from placealg.step.edit import Edited
from placealg.step.messages import sends_wait
from placealg.step.program import Step

if TYPE_CHECKING:
    from placealg.check.repair import Mended

ENGINES = ("closed_form", "cutoff")
"""How sums over an axis are taken."""


def prove(step: Step, base: Step | None = None, file: Edited | None = None, sums: str = "") -> Report:
    """The report on one step; `base` is the derived program that a repair may lead back to.

    `file`: the program and the edits that made the step, in whose terms a repair is told, too. `sums` as in `judge`.
    """
    return judge(step, base, file=file, sums=sums)[0]


def judge(step: Step, base: Step | None = None, engine: str = ENGINES[0], file: Edited | None = None,
          token_mean: Callable[[], Mended | None] = lambda: None, sums: str = ""
          ) -> tuple[Report, tuple[Candidate, ...]]:
    """The report, and what the prover found satisfiable, from which a certificate takes its sizes.

    `engine` is closed_form (sums over an axis by lemmas) or cutoff (written out, one axis at a time). `token_mean`
    makes the program of the same strategy with the mean over tokens: the repair of weights that depend on counts.
    `sums` is the type than which no sum of a gradient may be narrower, "" for what the strategy says. Raises
    InputError where no type is called so.
    """
    check_type(sums)
    if engine == "cutoff":
        from placealg.prover.evidence.cutoff import examine_by_cutoff

        findings = examine_by_cutoff(step)[0]
    else:
        findings = examine(step)
    verdicts, refuted = findings.verdicts, None
    if findings.candidates and (missing := why_not("numpy")):
        verdicts = tuple(replace(v, verdict=UNDECIDED, cls=None,
                                 reason=f"the counterexample cannot be replayed, numpy {missing}: {v.reason}")
                         if v.verdict == REFUTED else v for v in verdicts)
    elif findings.candidates:  # the simulator is loaded where there is something to run: most programs are proved
        from placealg.check.refutation import refutations

        refuted = refutations(step, findings)
        findings, verdicts = refuted.findings, refuted.verdicts
    verdict, cls = overall(verdicts)
    report = Report(
        strategy=step.reference.strategy, model=step.reference.model, verdict=verdict, cls=cls,
        hypotheses=findings.hypotheses, not_covered=not_covered(step.reference, step.events), obligations=verdicts,
        counterexample=refuted.counterexample(step, base, file, token_mean)
        if refuted and verdict == REFUTED else None,
        lemmas=findings.lemmas, versions=findings.versions)
    if sends_wait(step.reference.pipeline):
        from placealg.check.messages import with_messages

        report = with_messages(step, report)
    report = with_precision(step, report, sums, base, file)
    if step.order or step.reference.buffers:  # the simulator of streams is loaded where there are some
        from placealg.check.order import with_order

        report = with_order(step, report, base, file)
    return report, findings.candidates
