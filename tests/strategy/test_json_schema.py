"""The JSON Schema of strategy files accepts what the reader accepts, and refuses what it can see is wrong."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import ROOT

from placealg.strategy.catalogue import names
from placealg.strategy.expression import parse_strategy
from placealg.strategy.json_schema import json_schema
from placealg.strategy.write import write_strategy

SCHEMA_OF_FILES = json_schema()
FILES = sorted((ROOT / "proofs").glob("*/*.toml"))
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool}


def faults(schema: dict[str, Any], value: Any, at: str = "file") -> Iterator[str]:
    """Where a value breaks a schema, for the keywords that `json_schema` uses; an unknown keyword is an error."""
    for word, said in schema.items():
        if word in ("$schema", "title", "description"):
            continue
        elif word == "type":
            kind = TYPES[said]
            if not isinstance(value, kind) or (isinstance(value, bool) and said in ("integer", "number")):
                yield f"{at} is no {said}"
        elif word == "enum":
            yield from () if value in said else (f"{at} is none of {said}",)
        elif word == "const":
            yield from () if value == said else (f"{at} is not {said}",)
        elif word == "anyOf":
            yield from () if any(not list(faults(one, value, at)) for one in said) else (f"{at} fits nothing",)
        elif word == "pattern":
            yield from (f"{at} does not match {said}",) if isinstance(value, str) and not re.search(said, value) else ()
        elif word in ("minimum", "exclusiveMinimum"):
            if isinstance(value, int | float) and (value < said or (word != "minimum" and value == said)):
                yield f"{at} is below {said}"
        elif word == "exclusiveMaximum":
            if isinstance(value, int | float) and value >= said:
                yield f"{at} is not below {said}"
        elif word in ("minItems", "minProperties"):
            yield from (f"{at} is empty",) if isinstance(value, list | dict) and len(value) < said else ()
        elif word == "uniqueItems":
            yield from (f"{at} repeats",) if isinstance(value, list) and len(set(map(str, value))) < len(value) else ()
        elif word == "items":
            for k, part in enumerate(value if isinstance(value, list) else ()):
                yield from faults(said, part, f"{at}[{k}]")
        elif word == "required":
            yield from (f"{at} lacks {key}" for key in said if isinstance(value, dict) and key not in value)
        elif word in ("properties", "patternProperties", "additionalProperties"):
            if word == "additionalProperties" and isinstance(value, dict):
                yield from _keys(schema, value, at)
        else:
            raise AssertionError(f"unknown keyword {word}")


def _keys(schema: dict[str, Any], value: dict[str, Any], at: str) -> Iterator[str]:
    assert schema["additionalProperties"] is False
    for key, part in value.items():
        rows = [row for name, row in schema.get("properties", {}).items() if name == key]
        rows += [row for name, row in schema.get("patternProperties", {}).items() if re.search(name, key)]
        yield from (f"{at} has no {key}",) if not rows else ()
        for row in rows:
            yield from faults(row, part, f"{at}.{key}")


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_it_accepts_every_file_of_the_repository(path: Any) -> None:
    assert list(faults(SCHEMA_OF_FILES, tomllib.loads(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize("name", sorted(names()))
def test_it_accepts_every_strategy_of_the_catalogue(name: str) -> None:
    strategy = parse_strategy(name)
    if strategy.mesh.axes:
        assert list(faults(SCHEMA_OF_FILES, tomllib.loads(write_strategy(strategy)))) == []
    assert list(faults(SCHEMA_OF_FILES, {"base": name})) == []


@pytest.mark.parametrize("text", [
    "", 'mesh = { dp = 8 }', 'base = "zero3"\nmesh = { dp = 0 }', 'base = "zero3"\nmesh = { dp = "8" }',
    'base = "zero3"\nmesh = { dp = true }', 'base = "zero3"\nschedul = {}',
    'base = "zero3"\nstates = { parameter = {} }',
    'base = "zero3"\nstates = { parameters = { dp = "Z" } }',
    'base = "zero3"\nstates = { parameters = { dp = "O+O" } }',
    'base = "zero3"\nstates = { parameters = { "region:core" = "M" } }', 'base = "zero3"\ndims = { dp = "batch" }',
    'base = "zero3"\ndims = { dp = ["none"] }', 'base = "zero3"\ndims = { dp = ["batch", "batch"] }',
    'base = "zero3"\nschedule = { prefetch = -1 }', 'base = "zero3"\nschedule = { sharing = "none" }',
    'base = "zero3"\nschedule = { lifetime = { dp = "forever" } }', 'base = "zero3"\nschedule = { stages = [-1] }',
    'base = "zero3"\ntypes = { w = 0 }', 'base = "zero3"\ntypes = { q = 2 }', 'base = "zero3"\nexpect = "right"',
    'base = "zero3"\nexpect = { ratio = "dp" }', 'base = "zero3"\nmasked = {}', 'base = "zero3"\nmasked = { tp = 0 }',
    'base = "zero3"\nloss = { assume = ["luck"] }', 'base = "zero3"\nrandom = { dropout = ["dp"] }',
    'base = "zero3"\ngroups = { norms = { optimizer = { name = "S" } } }', 'base = " "', 'base = "zero3"\nedit = []',
])
def test_it_refuses(text: str) -> None:
    assert list(faults(SCHEMA_OF_FILES, tomllib.loads(text)))


def test_the_committed_schema_is_the_one_that_the_tables_make() -> None:
    """`python -m placealg.strategy.json_schema > strategy.schema.json` writes it."""
    assert json.loads((ROOT / "strategy.schema.json").read_text(encoding="utf-8")) == SCHEMA_OF_FILES
