"""The obligation `precision` beside the others: it is asked only where types are named, or a user says `sums`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from placealg.errors import InputError
from placealg.number_formats import FORMATS
from placealg.prover.sums import precision
from placealg.prover.verdict import OBLIGATIONS, PRECISION_LEFT_OUT, Report, overall
from placealg.step.edit import Edited
from placealg.step.program import Step

ROUNDED = ("floating-point order, how far rounding goes, and the types inside an op: precision says in which types "
           "gradients are summed over ranks and microbatches")
"""What a verdict does not cover of floating-point numbers where `precision` is asked."""


def check_type(sums: str) -> None:
    """Raise InputError unless `sums` is "" or the name of a type."""
    if sums and sums not in FORMATS:
        raise InputError(f"sums is '{sums}'", name=sums, valid=tuple(FORMATS))


def left_out(lines: Iterable[str]) -> tuple[str, ...]:
    """What a verdict does not cover, where `precision` is asked.

    >>> left_out(["floating-point order and precision"]) == (ROUNDED,)
    True
    """
    return tuple(ROUNDED if line == PRECISION_LEFT_OUT else line for line in lines)


def with_precision(step: Step, report: Report, sums: str = "", base: Step | None = None,
                   file: Edited | None = None) -> Report:
    """The report with the verdict on the types of the sums, and the first that is too narrow if nothing else is wrong.

    `sums`, `base` and `file` as in `judge`: a repair is looked for where there is a `base`.

    >>> import placealg as pa
    >>> step = pa.derive(pa.zero1(), pa.abstract())
    >>> told = with_precision(step, pa.prove(step), "fp32")
    >>> told.verdict, told.of("precision")[0].reason.partition(": ")[2]
    ('UNDECIDED', 'it adds in 2 bytes, and bytes name no type: say one, such as "bf16"')
    """
    check_type(sums)
    found = precision(step, sums)
    if found is None:
        return report
    verdict, narrow = found
    if narrow is not None and base is not None and report.counterexample is None:
        from placealg.check.repair import by_types

        narrow = replace(narrow, repair=by_types(step, sums, file))
    verdicts = (*report.obligations, verdict)
    whole, cls = overall(verdicts)
    assert {v.id for v in verdicts} >= set(OBLIGATIONS)
    return replace(report, verdict=whole, cls=cls, obligations=verdicts, not_covered=left_out(report.not_covered),
                   counterexample=report.counterexample or narrow)
