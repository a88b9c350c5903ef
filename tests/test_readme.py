"""The README's lists are those of the tables that the code reads, and its strategy file does what it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT, run_placealg

from placealg.errors import shown
from placealg.mesh import SYMBOLS
from placealg.model.config import FIELDS as CONFIG
from placealg.render.cost import QUANTITIES
from placealg.render.values import readable
from placealg.step.edit import ACTIONS, CHANGES
from placealg.step.fields import FIELDS
from placealg.strategy.file import EXPECT, TOP
from placealg.strategy.options import DEFAULTS, SCHEMA, accepted, keys_of

README = (ROOT / "README.md").read_text(encoding="utf-8")


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def code(words: Iterator[str] | list[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def symbols() -> Iterator[str]:
    for symbol in SYMBOLS.values():
        if symbol.assumption == "positive rational" or symbol.default is not None or symbol.name.startswith("Psi"):
            yield row(f"`{symbol.name}`", symbol.meaning, "" if symbol.default is None else str(symbol.default))


def quantities() -> Iterator[str]:
    yield from (row(name, meaning) for name, meaning in QUANTITIES.items())


def tables() -> Iterator[str]:
    for table in SCHEMA:
        header = "[groups.NAME]" if table == "groups" else f"[{table}]"
        for k, (values, keys) in enumerate(keys_of(table).items()):
            said = [shown(DEFAULTS[table][key]).replace("'", '"') for key in keys if key in DEFAULTS.get(table, {})]
            yield row(f"`{header}`" if k == 0 else "", code(keys), values, ", ".join(said))


def config() -> Iterator[str]:
    for family, fields in CONFIG.items():
        required = [" or ".join(f"`{n}`" for n in f.names) for f in fields if f.default is None]
        defaulted = [" or ".join(f"`{n}`" for n in f.names) + " = " + readable(str(f.default)).lower()
                     for f in fields if f.default is not None]
        yield row(family, ", ".join(required), ", ".join(defaulted))


LISTS = {"symbols": symbols, "quantities": quantities, "tables": tables, "config": config,
         "fields": lambda: iter([code(list(FIELDS))])}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_is_the_code_s(name: str) -> None:
    want = "\n".join(LISTS[name]())
    assert want in README.replace("\n", " ") if name == "fields" else want in README, f"the README needs\n{want}"


def test_every_action_and_key_is_told() -> None:
    assert [a for a in ACTIONS if f"| `{a} = " not in README] == []
    assert [k for k in (*TOP, *EXPECT) if f"`{k}`" not in README and f"[[{k}]]" not in README and k != "loops"] == []
    assert set(FIELDS) - set(CHANGES) == {"group", "unit"}


def test_accepted_values_are_known_for_every_key() -> None:
    assert all(accepted(key) for keys in SCHEMA.values() for key in keys.values())


FILES = re.findall(r"^```toml\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("file", FILES, ids=["strategy", "bug"])
def test_a_strategy_file_is_as_it_expects(file: str, tmp_path: Path) -> None:
    path = tmp_path / "strategy.toml"
    path.write_text(file)
    got = run_placealg("prove", str(path), "--no-timing")
    assert (got.code, got.err) == (0, "")
    assert "✓ as the file expects: refuted" in got.out
