"""A table of what is read from a folder of configurations, held against its expected.json where one lies there.

    python tests/importers/import_table.py DIR [--prove] [--only WORD] [--long]

DIR holds configurations at any depth, or in `files/`; expected.json maps each, or FILE::function, to what should be
read: axes, expression, tables, types, microbatches, recompute, clip, skip, or `"read": false` and why.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from placealg.cases.case import default_model
from placealg.errors import InputError
from placealg.importers.composed_strategy import GATHERED_LOGITS
from placealg.importers.model import model_of
from placealg.importers.read import read
from placealg.importers.reading import Reading
from placealg.mesh import Mesh
from placealg.models.config import resolve_model
from placealg.placement import STATES
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import Strategy, overlay

OPTIONS = ("microbatches", "pipeline", "chunks", "stages")


def expected_strategy(said: Mapping[str, Any]) -> Strategy | None:
    """The strategy that an entry writes; None where its expression is none of the catalogue's."""
    expression = str(said["expression"])
    tables = {name: dict(table) for name, table in (said.get("tables") or {}).items()}
    dims = said.get("dims")
    expression = expression.replace("tp with dims", "tp").replace(" with tp", "*tp")
    if dims:
        tables["dims"] = {**tables.get("dims", {}), **dims}
    if isinstance(said.get("types"), Mapping):
        tables["types"] = {**tables.get("types", {}), **{k: v for k, v in said["types"].items() if v is not None}}
    if said.get("skip") == "overflow":
        tables.setdefault("optimizer", {}).setdefault("skip", "overflow")
    if said.get("clip") == "none":
        tables.setdefault("optimizer", {}).setdefault("clip", "none")
    try:
        return overlay(parse_strategy(expression), tables)
    except InputError:
        return None


def sizes_of(said: Mapping[str, Any]) -> dict[str, int | None]:
    """The axes of an entry that are larger than one, or open."""
    return {a: n if isinstance(n, int) else None for a, n in (said.get("axes") or {}).items() if n != 1}


def without_ones(strategy: Strategy, sizes: Mapping[str, int | None]) -> Strategy:
    """A strategy with these sizes, and without the axes that have none of them."""
    axes = tuple(replace(a, size=sizes[a.name]) for a in strategy.mesh if a.name in sizes)
    return replace(strategy, mesh=Mesh(axes))


EXPRESSIBLE = re.compile(r"lora|frozen|does not train|base|no region for the whole of a MoE layer", re.IGNORECASE)
"""Refusals of what the language can say: frozen parameters, adapters, a region for a whole layer of experts."""


# Logits that are gathered before the loss stand in the notes of an entry as what cannot be said; they are said here.

LEAVES = ("leaf", "use")
"""The lifetime under DeepSpeed's stage 3, whose unit is a leaf module, and the layer of an entry that says no unit."""


def differences(reading: Reading, said: Mapping[str, Any]) -> Iterator[str]:
    """What a reading has otherwise than an entry of expected.json."""
    got, want = reading.strategy, expected_strategy(said)
    mine = {a.name: a.size for a in got.mesh if a.size != 1}
    if mine != sizes_of(said):
        yield f"axes {mine}, expected {sizes_of(said)}"
    if want is None:
        yield f"the entry's expression {said['expression']} is none of the catalogue's"
        return
    want = without_ones(want, sizes_of(said)) if said.get("axes") else want
    for axis in sorted(set(mine) & set(want.mesh.names)):
        mine_dims = tuple(d for d in got.dims.get(axis, ()) if d != GATHERED_LOGITS)
        if mine_dims != want.dims.get(axis, ()):
            yield f"dims of {axis} {got.dims.get(axis)}, expected {want.dims.get(axis)}"
    names = [a for a in mine if a in want.mesh.names]
    for state in STATES:
        for axis in names:
            if got.state(state).mode(axis) != want.state(state).mode(axis):
                yield (f"{state} on {axis} {got.state(state).text(axis)}, expected {want.state(state).text(axis)}")
        if got.tier(state) != want.tier(state):
            yield f"{state} on {got.tier(state)}, expected {want.tier(state)}"
    if set(got.recomputed) != set(want.recomputed):
        yield f"recomputes {got.recomputed}, expected {want.recomputed}"
    for axis in names:
        if got.lifetime(axis) != want.lifetime(axis) and (got.lifetime(axis), want.lifetime(axis)) != LEAVES:
            yield f"lifetime of {axis} {got.lifetime(axis)}, expected {want.lifetime(axis)}"
        if (axis in got.rings) != (axis in want.rings):
            yield f"ring on {axis}"
    if isinstance(said.get("types"), Mapping):
        for symbol, value in said["types"].items():
            mine_ = got.tables.get("types", {}).get(symbol)
            wants = want.tables.get("types", {}).get(symbol)
            if symbol == "wire_w":
                mine_ = mine_ or got.option("types", "w")
            if str(mine_) != str(wants):  # a type by name is its bytes here
                yield f"{symbol} = {mine_}, expected {value}"
    if isinstance(said.get("microbatches"), int) and got.option("schedule", "microbatches") != said["microbatches"]:
        yield f"m = {got.option('schedule', 'microbatches')}, expected {said['microbatches']}"
    for key in ("pipeline", "chunks", "stages"):
        if got.option("schedule", key) != want.option("schedule", key) and got.pipeline_axis:
            yield f"{key} {got.option('schedule', key)}, expected {want.option('schedule', key)}"
    for key in ("clip", "skip"):
        word = said.get(key)
        if word in ("global_norm", "none", "overflow") and got.option("optimizer", key) != word:
            yield f"{key} {got.option('optimizer', key)}, expected {word}"
    loss = said.get("loss")
    if loss in ("token_mean", "mean_of_means") and got.loss()["preset"] != loss:
        yield f"loss {got.loss()['preset']}, expected {loss}"


def proved(reading: Reading) -> str:
    """The verdict on a reading, on its model, on the stand-in of the command line, or on Llama where it wants one."""
    from placealg.check.prove import prove
    from placealg.step.derive import derive

    try:
        reading = read(reading.file, model="llama-3-8b") if reading.unread else reading
        stand_in = reading.stand_in or default_model(reading.strategy)
        model = model_of(reading) or resolve_model(stand_in)
        return str(prove(derive(reading.strategy, model)).verdict)
    except InputError as error:
        return f"refused: {error}"


def rows(folder: Path, only: str) -> Iterator[tuple[str, str, Mapping[str, Any] | None]]:
    """(name, file, entry) of everything in a folder."""
    files = folder / "files" if (folder / "files").is_dir() else folder
    beside = folder / "expected.json"
    entries = json.loads(beside.read_text()) if beside.is_file() else {}
    names = list(entries) or [str(p.relative_to(files)) for p in sorted(files.rglob("*")) if p.is_file()]
    for name in names:
        if only in name:
            yield name, str(files / name.partition("::")[0]), entries.get(name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prove", action="store_true", help="prove every reading, too")
    parser.add_argument("--only", default="", help="entries whose name holds this")
    parser.add_argument("--list", type=Path, help="a JSON list of the entries to take")
    chosen = parser.parse_args()
    wanted = set(json.loads(chosen.list.read_text())) if chosen.list else None
    right = count = 0
    for name, file, entry in rows(chosen.folder, chosen.only):
        if wanted is not None and name not in wanted:
            continue
        start = time.perf_counter()
        try:
            reading = read(file, function=name.partition("::")[2])
            seconds = time.perf_counter() - start
            text = f"{reading.expression} {', '.join(map(repr, reading.strategy.mesh))}"
            expressible = entry is not None and not entry["read"] and EXPRESSIBLE.search(entry["refusal"])
            wrong = [] if entry is None else list(differences(reading, entry)) if entry["read"] else [
                f"read, expected a refusal: {entry['refusal']}"]
            if expressible and proved(reading) == "PROVED":
                wrong = []
        except InputError as error:
            text = f"refused: {error.what}"
            wrong = [f"expected {entry['expression']}"] if entry and entry["read"] else []
            reading, seconds = None, time.perf_counter() - start
        verdict = proved(reading) if reading and chosen.prove else ""
        count += 1
        right += not wrong
        mark = "" if entry is None else "WRONG" if wrong else "right" if entry["read"] or reading is None else \
            "right: read and proved, expected a refusal"
        print(f"| {name} | {text} | {mark} | {verdict} | {seconds * 1000:.0f} ms |", flush=True)
        for line in wrong:
            print(f"    {line}")
        if wrong and entry and not entry["read"] and reading is None:
            print(f"    {entry['refusal']}")
    print(f"{right} of {count} right" if count else "nothing to read")
    return 0


if __name__ == "__main__":
    sys.exit(main())
