"""What `prove` does beyond a verdict: it writes a certificate, and asks a second solver; a certificate made again."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from placealg.cases.case import CommandCase, StyleOptions, read_case
from placealg.check.prove import ENGINES, judge
from placealg.check.recheck import MANIFEST, PROGRAM, check_target, cross_check, files_of, write_certificate
from placealg.cli.inputs import style
from placealg.errors import InputError
from placealg.progress import say
from placealg.prover.evidence.certificate import Query, certificate
from placealg.prover.evidence.cutoff import certificate_by_cutoff
from placealg.prover.evidence.replay import Rechecked, require_cvc5
from placealg.prover.evidence.solver import versions
from placealg.prover.examine import Candidate, hypotheses
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
    queries = _queries(case, report, candidates, chosen.engine)
    checked = cross_check(queries, report) if chosen.cross_check else None
    if chosen.certificate is not None:
        files = certificate_files(case, report, queries, chosen.engine, style(chosen))
        report = replace(report, certificate=write_certificate(chosen.certificate, files))
    return report, checked


def certificate_files(case: CommandCase, report: Report, queries: Iterable[Query], engine: str = ENGINES[0],
                      said: StyleOptions | None = None) -> dict[str, str]:
    """The files of a certificate: the program and its model, so that it can be proved again, the queries, the manifest.

    `said` are the options of the model's transformer; what else a command line says stands in the program.
    """
    config = f"{case.model.name}.json"
    held = {config: Path(case.model.source).read_bytes().decode()} \
        if case.model.source and config.casefold() != MANIFEST else {}
    program = write_program(case.step, case.strategy, next(iter(held), ""))
    return files_of(queries, report, {PROGRAM: program, **held}, write_strategy(case.strategy),
                    {"engine": engine, "options": dict(said or {})})


def claims_of(folder: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What the program in `folder` has of what a manifest says: names, hypotheses, what no verdict covers."""
    _, said = _made(folder, manifest)
    case = read_case(str(Path(folder) / PROGRAM), None, [], **said)
    reference = case.step.reference
    return {"strategy": reference.strategy, "model": reference.model,
            "hypotheses": [h.text for h in hypotheses(case.step)],
            "not_covered": list(not_covered(reference, case.step.events))}


def proved_again(folder: str, manifest: Mapping[str, Any]) -> dict[str, str]:
    """The files of a certificate of the program and the model in `folder`, proved as its manifest says.

    Raises InputError where these are other versions, which give other bytes, or the folder does not hold what it takes.
    """
    for name, was, now in (("placealg", manifest.get("placealg"), VERSION), ("", manifest.get("solver"), versions())):
        if was != now:
            raise InputError(f"was made by {f'{name} {was}'.strip()}, and this is {f'{name} {now}'.strip()}: the bytes "
                             "are the same only of the same versions", where=folder)
    engine, said = _made(folder, manifest)
    case = read_case(str(Path(folder) / PROGRAM), None, [], **said)
    report, candidates = judge(case.step, None, engine)
    return certificate_files(case, report, _queries(case, report, candidates, engine), engine, said)


def _made(folder: str, manifest: Mapping[str, Any]) -> tuple[str, StyleOptions]:
    """The engine and the options of the model that a manifest names."""
    made = manifest.get("made")
    engine, said = (made.get("engine"), made.get("options")) if isinstance(made, dict) else (None, None)
    if engine not in ENGINES or not isinstance(said, dict) or not set(said) <= set(StyleOptions.__annotations__) \
            or not all(value is None or isinstance(value, bool) for value in said.values()):
        raise InputError("does not say with which engine and options it was made", where=f"{folder}/{MANIFEST}")
    return str(engine), cast(StyleOptions, said)


def _queries(case: CommandCase, report: Report, candidates: Iterable[Candidate], engine: str) -> tuple[Query, ...]:
    say("writing the queries of the certificate")
    return certificate_by_cutoff(case.step, report) if engine == "cutoff" else \
        certificate(case.step, report, candidates)


def evidence_lines(report: Report, checked: Rechecked | None, width: int) -> list[Line]:
    """Both, as text."""
    lines: list[Line] = []
    if checked:
        lines += [(), *not_agreed(checked, width), *totals(checked, width)]
    if written := report.certificate:
        told = f"certificate: {written.path}, {written.files} files, manifest SHA-256 {written.sha256}"
        lines += [(), *indent(prose(told, width - 2, "dim"))]
    return lines
