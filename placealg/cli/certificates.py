"""What `prove` does beyond a verdict: it writes a certificate, and asks a second solver; a certificate made again."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from placealg.cases.case import CommandCase, StyleOptions, read_case
from placealg.check.order import left_by_order
from placealg.check.precision import left_out
from placealg.check.prove import ENGINES, judge
from placealg.check.recheck import MANIFEST, PROGRAM, check_target, cross_check, files_of, write_certificate
from placealg.cli.inputs import style
from placealg.errors import InputError
from placealg.number_formats import FORMATS
from placealg.progress import say
from placealg.prover.evidence.certificate import Query, certificate
from placealg.prover.evidence.cutoff import certificate_by_cutoff
from placealg.prover.evidence.replay import Rechecked, require_cvc5
from placealg.prover.evidence.solver import versions
from placealg.prover.examine import Candidate, hypotheses
from placealg.prover.races import ORDER
from placealg.prover.sums import PRECISION, precision
from placealg.prover.verdict import Report, not_covered
from placealg.render.recheck import not_agreed, totals
from placealg.render.text_layout import Line, indent, prose
from placealg.step.text import write_program
from placealg.strategy.write import write_strategy
from placealg.version import VERSION


def check_words(chosen: Namespace) -> None:
    """Raise InputError or NoSolver before anything is proved, where certificate or second solver could not be had."""
    if chosen.certificate is not None and len(chosen.strategies) > 1:
        raise InputError("--certificate takes one strategy, a folder of its own for each")
    if chosen.certificate is not None:
        check_target(chosen.certificate)
    if chosen.cross_check:
        require_cvc5()


def evidence(chosen: Namespace, case: CommandCase, report: Report,
             candidates: Iterable[Candidate]) -> tuple[Report, Rechecked | None]:
    """The report with the certificate that was written, and what the second solver said, where either is asked for."""
    if chosen.certificate is None and not chosen.cross_check:
        return report, None
    queries = _queries(case, report, candidates, chosen.engine, chosen.sums or "")
    checked = cross_check(queries, report) if chosen.cross_check else None
    if chosen.certificate is not None:
        files = certificate_files(case, report, queries, chosen.engine, style(chosen), chosen.sums or "")
        report = replace(report, certificate=write_certificate(chosen.certificate, files))
    return report, checked


def certificate_files(case: CommandCase, report: Report, queries: Iterable[Query], engine: str = ENGINES[0],
                      said: StyleOptions | None = None, sums: str = "") -> dict[str, str]:
    """The files of a certificate: the program and its model, so that it can be proved again, the queries, the manifest.

    `said` are the options of the model's transformer, `sums` the type that is asked of sums; what else a command line
    says stands in the program.
    """
    config = f"{case.model.name}.json"
    held = {config: Path(case.model.source).read_bytes().decode()} \
        if case.model.source and config.casefold() != MANIFEST else {}
    program = write_program(case.step, case.strategy, next(iter(held), ""))
    return files_of(queries, report, {PROGRAM: program, **held}, write_strategy(case.strategy),
                    {"engine": engine, "options": dict(said or {}), **({"sums": sums} if sums else {})})


def claims_of(folder: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What the program in `folder` has of what a manifest says: names, what is assumed, not covered, asked."""
    _, said, sums = _made(folder, manifest)
    case = read_case(str(Path(folder) / PROGRAM), None, [], **said)
    reference, asked = case.step.reference, precision(case.step, sums) is not None
    lines = not_covered(reference, case.step.events)
    lines = left_out(lines) if asked else lines
    more = [*([PRECISION] if asked else []), *(ORDER if case.step.order else [])]
    return {"strategy": reference.strategy, "model": reference.model,
            "hypotheses": [h.text for h in hypotheses(case.step)],
            "not_covered": list(left_by_order(lines) if case.step.order else lines), "asked_for": more or None}


def proved_again(folder: str, manifest: Mapping[str, Any]) -> dict[str, str]:
    """The files of a certificate of the program and the model in `folder`, proved as its manifest says.

    Raises InputError where these are other versions, which give other bytes, or the folder does not hold what it takes.
    """
    for name, was, now in (("placealg", manifest.get("placealg"), VERSION), ("", manifest.get("solver"), versions())):
        if was != now:
            raise InputError(f"was made by {f'{name} {was}'.strip()}, and this is {f'{name} {now}'.strip()}: the bytes "
                             "are the same only of the same versions", where=folder)
    engine, said, sums = _made(folder, manifest)
    case = read_case(str(Path(folder) / PROGRAM), None, [], **said)
    report, candidates = judge(case.step, None, engine, sums=sums)
    return certificate_files(case, report, _queries(case, report, candidates, engine, sums), engine, said,
                             sums)


def _made(folder: str, manifest: Mapping[str, Any]) -> tuple[str, StyleOptions, str]:
    """The engine, the options of the model, and the type asked of sums that a manifest names."""
    made = manifest.get("made")
    made = made if isinstance(made, dict) else {}
    engine, said, sums = made.get("engine"), made.get("options"), made.get("sums", "")
    if engine not in ENGINES or not isinstance(said, dict) or not set(said) <= set(StyleOptions.__annotations__) \
            or not all(value is None or isinstance(value, bool) for value in said.values()) \
            or sums not in ("", *FORMATS):
        raise InputError("does not say with which engine and options it was made", where=f"{folder}/{MANIFEST}")
    return str(engine), cast(StyleOptions, said), str(sums)


def _queries(case: CommandCase, report: Report, candidates: Iterable[Candidate], engine: str,
             sums: str) -> tuple[Query, ...]:
    say("writing the queries of the certificate")
    return certificate_by_cutoff(case.step, report, sums) if engine == "cutoff" else \
        certificate(case.step, report, candidates, asked=sums)


def evidence_lines(report: Report, checked: Rechecked | None, width: int) -> list[Line]:
    """Both, as text."""
    lines: list[Line] = []
    if checked:
        lines += [(), *not_agreed(checked, width), *totals(checked, width)]
    if written := report.certificate:
        told = f"certificate: {written.path}, {written.files} files, manifest SHA-256 {written.sha256}"
        lines += [(), *indent(prose(told, width - 2, "dim"))]
    return lines
