"""What `prove` asks of the verified checker: its answer beside the verdict, and a Coq file where one is asked for."""

from __future__ import annotations

import re
from argparse import Namespace
from pathlib import Path

from placealg.cases.case import CommandCase
from placealg.check.kernel import Kernel, in_coq, kernel
from placealg.cli.cache_folder import cache_folder
from placealg.cli.verdicts import FAILED, OPEN
from placealg.prover.verdict import ASKED_FOR, Report


def kernel_of(chosen: Namespace, case: CommandCase, report: Report) -> Kernel:
    """The kernel's answer on a case, with coqc's where --coq asks for it."""
    found = kernel(case.step)
    if chosen.coq is None:
        return found
    about = f"{report.strategy} on {report.model}"
    path = Path(chosen.coq) / f"{re.sub('[^A-Za-z0-9]+', '_', about).strip('_')}.v" if chosen.coq else None
    return in_coq(found, about, path, refuting(case, report), cache_folder("coq"))


def refuting(case: CommandCase, report: Report) -> dict[str, int] | None:
    """The sizes of a counterexample, axes in the order of the mesh and then m; None without one in exact numbers."""
    at = report.counterexample
    if at is None or at.obligation in ASKED_FOR:
        return None
    sizes = dict(at.sizes)
    return {name: sizes.get(name, 2) for name in (*case.step.reference.mesh.names, "m")}


def kernel_codes(chosen: Namespace, report: Report, found: Kernel) -> list[int]:
    """The exit codes that it adds: 1 where it accepts what is refuted, 3 where coqc was asked and has not proved it."""
    return [*([FAILED] if found.contradicts(report) else []),
            *([OPEN] if chosen.coq is not None and not found.proved else [])]
