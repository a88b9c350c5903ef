"""What `prove` does beyond a verdict: it writes a certificate, and asks a second solver."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from dataclasses import replace

from placealg.announce import say
from placealg.check.recheck import check_target, cross_check, files_of, write_certificate
from placealg.cli.inputs import Case
from placealg.errors import InputError
from placealg.prove.certificate import certificate
from placealg.prove.cutoff import certificate_by_cutoff
from placealg.prove.prover import Candidate
from placealg.prove.replay import Rechecked, require_cvc5
from placealg.prove.verdict import Report
from placealg.render.page import Line, indent, prose
from placealg.render.recheck import not_agreed, totals
from placealg.step.text import write_program
from placealg.strategy.write import write_strategy


def check_words(chosen: Namespace) -> None:
    """Raise InputError before anything is proved, where the certificate or the second solver could not be had."""
    if chosen.certificate is not None and len(chosen.strategies) > 1:
        raise InputError("--certificate takes one strategy, a folder of its own for each")
    if chosen.certificate is not None:
        check_target(chosen.certificate)
    if chosen.cross_check:
        require_cvc5()


def evidence(chosen: Namespace, case: Case, report: Report,
             candidates: Iterable[Candidate]) -> tuple[Report, Rechecked | None]:
    """The report with the certificate that was written, and what the second solver said, where either is asked for."""
    if chosen.certificate is None and not chosen.cross_check:
        return report, None
    say("writing the queries of the certificate")
    unrolled = chosen.engine == "cutoff"
    queries = certificate_by_cutoff(case.step, report) if unrolled else certificate(case.step, report, candidates)
    checked = cross_check(queries, report) if chosen.cross_check else None
    if chosen.certificate is not None:
        program = write_program(case.step, case.strategy)
        files = files_of(queries, report, program, write_strategy(case.strategy))
        report = replace(report, certificate=write_certificate(chosen.certificate, files))
    return report, checked


def evidence_lines(report: Report, checked: Rechecked | None, width: int) -> list[Line]:
    """Both, as text."""
    lines: list[Line] = []
    if checked:
        lines += [(), *not_agreed(checked, width), *totals(checked, width)]
    if written := report.certificate:
        told = f"certificate: {written.path}, {written.files} files, manifest SHA-256 {written.sha256}"
        lines += [(), *indent(prose(told, width - 2, "dim"))]
    return lines
