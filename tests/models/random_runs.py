"""Random small configurations of a type, built by transformers once, held against the families as often as wanted.

What transformers builds of a configuration depends on neither the families nor the code here: it is kept in
build/models, one file for each type, version and seed, so that a run goes on where the last one ended.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from random_configs import REQUIRED, draw
from real_models import built, config_class, counted, difference, read, refusal, transformers_package

from placealg.errors import InputError
from placealg.models.model import Model
from placealg.models.names import parameters_of

KEPT = Path(__file__).resolve().parents[2] / "build" / "models"


def random_runs(name: str, wanted: int, seed: int) -> Iterator[tuple[dict[str, Any], str, str, int]]:
    """Random configurations with their outcomes, until as many are equal as wanted or six times so many were drawn."""
    equal = 0
    for table, real in _built(name, seed, 6 * wanted):
        what, why, total = _outcome(name, table, real)
        equal += what == "equal"
        yield table, what, why, total
        if equal == wanted:
            return


def _built(name: str, seed: int, most: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Configurations and what transformers builds of each; what was not built before is kept."""
    KEPT.mkdir(parents=True, exist_ok=True)
    path = KEPT / f"{name}-{transformers_package().__version__}-{seed}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rng = random.Random(f"{name} {seed}")
    with path.open("a", encoding="utf-8") as file:
        for k in range(most):
            table = {**REQUIRED.get(name, {}), **draw(name, config_class(name), rng, whole=k % 5 == 0)}
            before = json.loads(lines[k]) if k < len(lines) else None
            if before and before["config"] == json.loads(json.dumps(table)):
                yield table, before
                continue
            if before:
                raise SystemExit(f"{path}: line {k + 1} is another configuration; remove the file to draw anew")
            real = {"config": table, **_facts(name, table)}
            file.write(json.dumps(real) + "\n")
            file.flush()
            yield table, real


def _facts(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """The total, a digest of names and sizes, and what no gradient changes; or what transformers raises."""
    try:
        real, fixed = counted(built(name, table))
    except Exception as error:
        return {"raises": f"{type(error).__name__}: {error}".replace("\n", " ")[:100]}
    return {"total": sum(real.values()), "digest": _digest(real, fixed), "fixed": sorted(n for n in fixed if real[n])}


def _digest(sizes: Mapping[str, int], fixed: Set[str]) -> str:
    told = sorted(f"{n} {k}" for n, k in sizes.items() if k and n not in fixed)
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


def _outcome(name: str, table: Mapping[str, Any], real: Mapping[str, Any]) -> tuple[str, str, int]:
    """As `real_models.outcome`, of a configuration that was built before."""
    if "raises" in real:
        return "unbuildable", real["raises"], 0
    try:
        model = read(name, table)
    except InputError as error:
        return "refused", refusal(error), 0
    here = _sizes(model)
    same = model.total() == real["total"] and _digest(here, set(real["fixed"])) == real["digest"]
    if same and set(real["fixed"]) <= set(here):
        return "equal", "", model.total()
    return "wrong", difference(model, *counted(built(name, table))) or "digests differ", 0


def _sizes(model: Model) -> dict[str, int]:
    """Name in a checkpoint -> its elements."""
    sizes = {p.name: int(p.elements.evaluate(model.sizes)) for p in model.parameters}
    return {n: sum(sizes[p] for p in f.parameters) // f.parts for n, f in parameters_of(model).items()}
