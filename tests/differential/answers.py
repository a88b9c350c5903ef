"""What prover, costs and simulator answer about a fixed list of programs whose units run whole, as lines of JSON.

`write FILE [PART]` writes one line per program, and goes on where an interrupted run ended; `compare FILE OTHER` prints
what differs. PART is `small` (the catalogue and the files of proofs/ on the abstract model), or I/N (every N-th program
from the I-th on). It imports its neighbours: PYTHONPATH names tests/programs and tests/differential.
"""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mutants
import random_programs
from agreement import settings
from hypothesis import HealthCheck, Phase, given, seed
from hypothesis import settings as budget

from placealg.cases.case import read_case
from placealg.check.prove import prove
from placealg.cost.document import cost_json
from placealg.errors import InputError
from placealg.models.abstract import abstract, statistics, two_losses
from placealg.models.model import Model
from placealg.simulator import simulate
from placealg.step.derive import derive
from placealg.step.program import Step
from placealg.strategy.catalogue import names
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import read_strategy_file

ROOT = Path(__file__).resolve().parents[2]
MODELS = (abstract(), statistics(), two_losses(), random_programs.two_units(False), random_programs.two_units(True))
EXPRESSIONS = (*names(), "hsdp*offload_optimizer", "zero2*offload_optimizer", "zero3*offload_parameters")
RANDOM = 500


def derived(model: Model) -> Iterator[tuple[str, Step]]:
    """Every strategy of the catalogue that runs units whole, on one model."""
    tied = ", tied" if len(model.parameters) > 1 and len(model.parameters[0].sites) > 1 else ""
    for name in EXPRESSIONS:
        try:
            yield f"{name} on {model.name}{tied}", derive(parse_strategy(name), model)
        except InputError:
            continue


def files() -> Iterator[tuple[str, Step]]:
    """Every file of proofs/ whose program runs units whole."""
    for path in sorted((ROOT / "proofs").glob("*/*.toml")):
        file = read_strategy_file(path)
        case = read_case(str(path), None if file.strategy.detailed or file.model else "abstract", [])
        if case.step.reference.whole:
            yield f"proofs/{path.parent.name}/{path.stem}", case.step


def drawn() -> Iterator[tuple[str, Step]]:
    """Random programs, the same in every run."""
    found: list[Step] = []

    @seed(23)
    @budget(max_examples=2 * RANDOM, database=None, deadline=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck))
    @given(random_programs.programs())
    def collect(sample: random_programs.Sample) -> None:
        if sample.step.reference.whole:
            found.append(sample.step)

    collect()
    for k, step in enumerate(found[:RANDOM]):
        yield f"random {k}", step


def small() -> Iterator[tuple[str, Step]]:
    """The programs that people meet first."""
    yield from derived(abstract())
    yield from files()


def programs() -> Iterator[tuple[str, Step]]:
    """Every program, by name."""
    whole = [*itertools.chain.from_iterable(derived(m) for m in MODELS), *files()]
    yield from whole
    yield from drawn()
    for name, step in whole:
        for mutant in mutants.deletions(step):
            yield f"{name} without {mutant.events[0].path}", mutant.step


def proof(step: Step) -> dict[str, Any]:
    """Verdict, obligations, counterexample and hypotheses."""
    report = prove(step)
    found = report.counterexample
    return {
        "verdict": str(report.verdict), "class": report.cls, "hypotheses": list(map(str, report.hypotheses)),
        "lemmas": list(report.lemmas),
        "obligations": [[v.id, v.group, str(v.verdict), v.cls, v.instances, v.event] for v in report.obligations],
        "reasons": [v.reason for v in report.obligations],
        "counterexample": found and [found.obligation, found.event, found.group, found.mass, dict(found.sizes),
                                     dict(found.device), found.unit, found.got, found.want, found.explanation,
                                     found.repair and found.repair.edit],
    }


def runs(step: Step) -> list[Any]:
    """Of some settings: whether the run equals the single device's, and where it first differs."""
    found: list[Any] = []
    for setting in itertools.islice(settings(step.reference), 1, 4):
        outcome = simulate(step, setting)
        at = outcome.difference
        found.append([outcome.equal, at and [at.step, at.event, dict(at.rank), at.subject, at.instance, at.microbatch,
                                             at.resumed]])
    return found


def costs(step: Step) -> Any:
    """Every figure, as its formula."""
    def told(node: Any) -> Any:
        if isinstance(node, dict):
            return {k: told(v) for k, v in node.items()}
        return [told(v) for v in node] if isinstance(node, list) else node

    return told(cost_json(step))


def answers(name: str, step: Step) -> dict[str, Any]:
    """What the three engines say of one program; an error is an answer."""
    found: dict[str, Any] = {"name": name}
    for what, ask in (("proof", proof), ("runs", runs), *([] if " without " in name else [("costs", costs)])):
        try:
            found[what] = ask(step)
        except InputError as error:
            found[what] = f"error: {error}"
    return found


def write(path: Path, part: str) -> None:
    """One line per program, appended."""
    done = {json.loads(line)["name"] for line in path.read_text().splitlines()} if path.exists() else set()
    first, _, every = part.partition("/")
    chosen = small() if part == "small" else itertools.islice(programs(), int(first or 0), None, int(every or 1))
    with path.open("a") as out:
        for name, step in chosen:
            if name not in done:
                out.write(json.dumps(answers(name, step), default=str) + "\n")
                out.flush()


def compare(one: Path, other: Path) -> int:
    """Print what differs; the number of programs that do."""
    before, after = ({a["name"]: a for a in map(json.loads, path.read_text().splitlines())} for path in (one, other))
    shared, kinds, different = [n for n in before if n in after], Counter[str](), 0
    for name in shared:
        found = list(differences(before[name], after[name]))
        different += bool(found)
        for what, old, new in found:
            kinds[what] += 1
            print(f"{name}: {what}\n  - {old}\n  + {new}")
    print(f"{len(shared)} programs in both, {different} differ: {dict(kinds)}")
    return different


def differences(old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(what, before, after) of one program."""
    for what in ("proof", "runs", "costs"):
        one, two = old.get(what), new.get(what)
        if isinstance(one, dict) and isinstance(two, dict) and what == "proof":
            for key in one:
                if one[key] != two.get(key):
                    yield f"proof.{key}", one[key], two.get(key)
        elif one != two and (one is not None and two is not None):
            yield what, one, two


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    command, *words = sys.argv[1:]
    if command == "write":
        write(Path(words[0]), words[1] if len(words) > 1 else "")
    else:
        sys.exit(1 if compare(Path(words[0]), Path(words[1])) else 0)
