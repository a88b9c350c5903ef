"""What the page knows before any Python runs: names to choose from, bugs to load, the keys of a strategy file."""

from __future__ import annotations

from typing import Any

from placealg.cli.bug_files import folder
from placealg.models.config import SYMBOLIC, shipped
from placealg.step.edit import ACTIONS
from placealg.strategy.catalogue import catalogue
from placealg.strategy.file import read_strategy_file
from placealg.strategy.json_schema import json_schema


def words() -> dict[str, Any]:
    """Strategies and modifiers, models, bugs with their files, and the schema, as plain data.

    >>> found = words()
    >>> found["strategies"][0]["name"], "gpt" in found["models"], found["schema"]["title"]
    ('dp', True, 'a placealg strategy')
    """
    bugs = [(path, read_strategy_file(str(path))) for path in sorted(folder().glob("*.toml"))]
    return {
        "strategies": [{"name": e.name, "title": e.title, "kind": e.kind} for e in catalogue().values()],
        "models": [*SYMBOLIC, *shipped()],
        "bugs": [{"name": path.stem, "title": file.strategy.name, "source": file.source,
                  "text": path.read_text(encoding="utf-8")} for path, file in bugs],
        "schema": json_schema(),
        "edits": list(dict.fromkeys((*ACTIONS, *(key for keys in ACTIONS.values() for key in keys)))),
    }
