"""Faults planted on purpose, one per obligation, verb and derivation rule, and the default case that catches each.

    python tests/mutation/planted_faults.py [FAULT...]     finds the case that catches each, writes planted_faults.txt

A fault is a name: `obligation:gradient` (what that obligation finds is lost), `prover:reduce` and `simulator:reduce`
(the engine does not see events of that verb), `types:reduce` (the list of sums lacks those of that verb),
`types:judged` (what the obligation precision finds is lost), `rule:publish_parameters` (the derivation leaves out what
that rule makes). As a pytest plugin (`-p planted_faults`) this module plants the fault that PLACEALG_FAULT names before
anything is imported.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("planted_faults.txt")

NEAR = {
    "obligation": ("tests/mutation/test_mutation.py", "tests/check/test_prove.py", "tests/prover/test_prove_network.py",
                   "tests/prover", "tests/features", "tests/proofs", "tests/step"),
    "prover": ("tests/mutation/test_mutation.py", "tests/check/test_prove.py", "tests/prover/test_prove_network.py",
               "tests/features/test_zero_family.py", "tests/step/test_pipeline.py", "tests/prover", "tests/features"),
    "simulator": ("tests/simulator", "tests/features"),
    "rule": ("tests/step/test_derived.py", "tests/step", "tests/prover/test_races.py"),
    "types": ("tests/prover/test_types_of_sums.py", "tests/cost/test_rounding.py"),
}
"""Kind of fault -> the files in which a case is looked for, in turn."""


def faults() -> Iterator[str]:
    """Every fault by name, read off the tables that the code itself reads."""
    from placealg.prover.verdict import OBLIGATIONS
    from placealg.step.verbs import VERBS

    yield from (f"obligation:{name}" for name in OBLIGATIONS)
    yield from (f"{engine}:{verb}" for engine in ("prover", "simulator") for verb in VERBS)
    yield from (f"rule:{name}" for name in rules())
    yield from (f"types:{name}" for name in ("judged", "reduce", "accumulate"))


def rules() -> list[str]:
    """The names of the derivation rules that make events, as `step/` writes them down."""
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "placealg" / "step").glob("*.py"))
    found = {name for text in texts for name in re.findall(r'\bRule\("(\w+)"', text)}
    return sorted(found - {"edit", "written"})


def _without(step: Any, dropped: Callable[[Any], bool]) -> Any:
    return replace(step, events=tuple(event for event in step.events if not dropped(event)))


def _unordered(step: Any, name: str) -> Any:
    return step.listed(event for event in step.listing if event.rule.name != name)


def plant(fault: str) -> None:
    """Put a fault in the place of what is right; nothing that uses it may have been imported."""
    prover, simulator, derivation = map(import_module, (
        "placealg.prover.examine", "placealg.simulator.run", "placealg.step.derive"))
    kind, _, name = fault.partition(":")
    examine, simulate, derive = prover.examine, simulator.simulate, derivation._events
    if kind == "obligation":
        from placealg.prover.verdict import PROVED

        def lost(step: Any) -> Any:
            found = examine(step)
            return replace(found, candidates=tuple(c for c in found.candidates if c.verdict.id != name), verdicts=tuple(
                replace(v, verdict=PROVED) if v.id == name else v for v in found.verdicts))

        prover.examine = lost
    elif kind == "prover":
        prover.examine = lambda step: examine(_without(step, lambda event: event.verb == name))
    elif kind == "simulator":
        simulator.simulate = import_module("placealg.simulator").simulate = lambda step, *rest, **more: simulate(
            _without(step, lambda event: event.verb == name), *rest, **more)
    elif kind == "rule":
        ordered = derivation.overlapped
        derivation.overlapped = lambda *given: _unordered(ordered(*given), name)
        derivation._events = lambda *given: (e for e in derive(*given) if e.rule is None or e.rule.name != name)
    elif kind == "types":
        _plant_types(name)
    else:
        raise ValueError(f"no fault is called {fault}")


def _plant_types(name: str) -> None:
    """What `precision` finds is lost, or the sums that events of a verb take are not listed."""
    listed = import_module("placealg.step.sums")
    if name == "judged":
        obligation = import_module("placealg.prover.sums")
        found, proved = obligation.precision, import_module("placealg.prover.verdict").PROVED

        def lost(*given: Any) -> Any:
            one = found(*given)
            return one and (replace(one[0], verdict=proved), None)

        obligation.precision = lost
        return
    every = listed.sums
    listed.sums = lambda *given: (s for s in every(*given) if f".{name}" not in s.event)


def pytest_configure() -> None:
    """Plant the fault that the environment names."""
    if fault := os.environ.get("PLACEALG_FAULT"):
        plant(fault)


def failed(place: str, fault: str = "") -> str:
    """The first default case of a file, or that case, that fails with the fault, or with none; "" if all pass."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", "-p", "no:benchmark", "-p", "no:cacheprovider",
         "-p", "planted_faults", place],
        cwd=ROOT, text=True, capture_output=True, check=False,
        env={**os.environ, "PLACEALG_FAULT": fault, "PYTHONPATH": str(Path(__file__).parent)})
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return found[1] if found else ""


def caught(fault: str, where: Iterable[str]) -> str:
    """The first default case in `where` that fails with the fault, and passes without it; "" if there is none."""
    return next((case for place in where if (case := failed(place, fault)) and not failed(case)), "")


def table() -> dict[str, str]:
    """Fault -> the case that catches it, as it is written down."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    return dict(line.split(None, 1) for line in lines if line and not line.startswith("#"))


def main() -> None:
    """Look for a case for every fault (or for those that are named) and write the table."""
    rows = table() if TABLE.exists() else {}
    for fault in sys.argv[1:] or list(faults()):
        rows[fault] = caught(fault, NEAR[fault.partition(":")[0]]) or "-"
        print(fault, rows[fault], flush=True)
        order = [name for name in faults() if name in rows]
        TABLE.write_text("# Planted fault, and the default case that catches it. Written by planted_faults.py.\n"
                         + "".join(f"{name} {rows[name]}\n" for name in order), encoding="utf-8")


if __name__ == "__main__":
    main()
