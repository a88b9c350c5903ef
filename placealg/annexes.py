"""The rooms around the core of which it asks something: it imports none, and finds them here by what they do."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType

from placealg.frozen import FrozenMap

PLACES: Mapping[str, str] = FrozenMap({
    "pages": "placealg.render.notebook",
    "files": "placealg.importers.cases",
    "commands": "placealg.cli.parser",
})
"""What is asked for -> the module: the page of a value, what a file of a framework says, the names of commands."""


def annex(does: str) -> ModuleType | None:
    """The module that does something for the core; None where this copy has no such room.

    >>> annex("pages").__name__
    'placealg.render.notebook'
    """
    name = PLACES[does]
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.rpartition(".")[0]:
            raise
        return None
