"""The README's lists are those of the tables that the code reads, and its strategy file does what it says."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT, run_placealg

from placealg.cli.glosses import HYPOTHESES
from placealg.cli.parser import COMMANDS
from placealg.errors import shown
from placealg.mesh import SYMBOLS
from placealg.models.family import families, family
from placealg.placement import MODES
from placealg.prover.verdict import NOT_COVERED
from placealg.render.cost import QUANTITIES
from placealg.step.edit import ACTIONS, CHANGES
from placealg.step.event_fields import FIELDS
from placealg.strategy.file import EXPECT, TOP
from placealg.strategy.options import DEFAULTS, SCHEMA, keys_of

FRONT = (ROOT / "README.md").read_text(encoding="utf-8")
README = "\n".join((FRONT, *(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md")))))
"""The front page, and the pages to which its tables have moved."""


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
    for name in families():
        of = family(name)
        told = [f"`{field}`" + (f" = {shown(of.fields[field])}" if field in of.fields and not isinstance(
            of.fields[field], list) else "") for field in of.read]
        yield row(name, of.like, ", ".join(told).replace("|", "or"))


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
    assert all(key.kind.words for keys in SCHEMA.values() for key in keys.values())


FILES = re.findall(r"^```toml\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("file", FILES, ids=["bug", "strategy"])
def test_a_strategy_file_is_as_it_expects(file: str, tmp_path: Path) -> None:
    path = tmp_path / "strategy.toml"
    path.write_text(file)
    got = run_placealg("prove", str(path), "--no-timing")
    assert (got.code, got.err) == (0, "")
    assert "✓ as the file expects: refuted" in got.out


def commands() -> Iterator[list[str]]:
    """The commands that stand in running text and in tables, up to what is left to the reader: words in capitals."""
    for text in re.findall(r"`placealg ([^`\n]+)`", README):
        words = shlex.split(text)
        yield words[:next((k for k, word in enumerate(words) if word == "..." or re.fullmatch(r"[A-Z]+", word)), None)]


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_every_command_that_is_named_is_one(words: list[str]) -> None:
    name, *rest = words
    assert name in COMMANDS
    said = run_placealg(name, "--help").out
    assert [word for word in rest if word.startswith("--") and word not in said] == []


def test_what_is_not_covered_and_assumed_stands_on_the_front_page() -> None:
    plain = " ".join(FRONT.casefold().split())
    assert [text for text in NOT_COVERED if text.casefold() not in plain] == []
    assert [name for name in HYPOTHESES if f"`{name}`" not in FRONT] == []
    assert [row.mode for row in MODES if f"| `{row.mode}` | {row.name} | " not in README] == []


def test_every_link_inside_the_repository_leads_somewhere() -> None:
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\((?!https?://)([^)]+)\)", text):
            path, _, anchor = target.partition("#")
            there = (page.parent / path).resolve() if path else page
            assert there.exists(), f"{page.name}: {target}"
            titles = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
            anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            assert not anchor or anchor in anchors, target


def test_every_tool_beside_ours_has_a_source() -> None:
    section = (ROOT / "docs" / "other_tools.md").read_text(encoding="utf-8")
    rows = [line for line in section.splitlines() if line.startswith("| [")]
    others = [line for line in section.splitlines() if line.startswith("| ") and line not in rows]
    assert [line.split()[1] for line in others] == ["tool", "placealg"]
    assert len(rows) >= 5 and all(re.match(r"\| \[[^]]+\]\(https://[^)]+\)", line) for line in rows)


def test_the_front_page_is_short() -> None:
    assert len(FRONT.splitlines()) < 300 and len(FRONT.encode()) < 14 * 1024


def test_every_package_and_module_of_the_ground_floor_stands_on_the_map() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    there = [p for p in (ROOT / "placealg").iterdir() if p.name[0] not in "_." and p.suffix in ("", ".py")]
    assert [p.name for p in there if f"{p.stem}{'/' * p.is_dir()}`" not in text] == []


def test_a_path_on_the_map_is_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = "strategy|model|importers|step|cost|prover|simulator|check|cli"
    named = [*re.findall(r"`(tests/[\w/.]+)`", text),
             *(f"placealg/{path}" for path in re.findall(rf"`((?:{rooms})/[\w/.]*)`", text))]
    assert len(named) > 20 and [name for name in named if not (ROOT / name).exists()] == []
