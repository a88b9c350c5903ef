"""Models by the names that frameworks give them, and kinds of network that have no op graph."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib.resources import files
from typing import Any

from placealg.models.config import published_id


@lru_cache(maxsize=1)
def _names() -> dict[str, Any]:
    return tomllib.loads(files("placealg.importers").joinpath("formats", "models.toml").read_text(encoding="utf-8"))


def shipped_name(framework: str, name: str) -> str:
    """The shipped or published configuration that a framework calls by a name; "" where there is none.

    >>> shipped_name("torchtitan", "llama3 8B"), shipped_name("huggingface", "meta-llama/Llama-3.1-8B")
    ('llama-3-8b', 'llama-3-8b')
    """
    table = _names()[framework]
    known = str(table.get(name) or table.get(name.lower()) or "")
    return known or (published_id(name) if framework == "huggingface" else "")


def alike_name(name: str) -> str:
    """A shipped or published model of the same ops as one of huggingface.co, by its name; "" where that tells none.

    One of the same size goes before the others.

    >>> alike_name("Qwen/Qwen2.5-Coder-7B-Instruct"), alike_name("mine/llama")
    ('Qwen/Qwen2.5-7B', '')
    """
    word = name.rpartition("/")[2].lower()
    found: list[str] = next((models for pattern, models in _names()["alike"].items() if fnmatchcase(word, pattern)), [])
    size = re.search(r"(?<![\w.])\d+(?:\.\d+)?[bm](?![a-z])", word)
    same = [model for model in found if size and re.search(rf"(?<![\w.]){re.escape(size[0])}(?![a-z])", model.lower())]
    return [*same, *found][0] if found else ""


def kind_without_graph(name: str) -> str:
    """What kind of network a name is of that has no op graph; "" for a decoder of text.

    >>> kind_without_graph("flux-dev")
    'a diffusion transformer'
    """
    word = name.lower()
    kinds = _names()["kinds"].items()
    return next((kind for kind, patterns in kinds if any(fnmatchcase(word, p) for p in patterns)), "")
