"""The site's pages as they are laid out: every public name, and links into the playground that mean what was asked.

That Sphinx finds nothing to warn of is `make site`.
"""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from types import ModuleType
from urllib.parse import parse_qs

from conftest import ROOT
from hypothesis import example, given
from hypothesis import strategies as st

import placealg as pa


@cache
def site() -> ModuleType:
    """docs/make_site.py, which is no module of a package."""
    found = importlib.util.spec_from_file_location("site_of_docs", ROOT / "docs" / "make_site.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_reference_has_every_public_name() -> None:
    named = re.findall(r"^\.\. auto(?:class|function|data):: placealg\.(\w+)$", site().reference(), re.MULTILINE)
    assert sorted(named) == sorted(pa.__all__)


WORDS = ("zero3", "zero3*tp_sp", "hsdp*pp_1f1b", "mine.toml", "proofs/refuted/x.toml")


@given(st.lists(st.sampled_from(WORDS), max_size=4),
       st.sampled_from(("", " --model gpt2", " --set dp=8 --model llama-3.1-405b")))
@example(["zero3*tp_sp", "mine.toml", "zero3*tp_sp"], " --model gpt2")
def test_sessions_about_expressions_lead_to_the_playground(words: list[str], rest: str) -> None:
    commands = "".join(f"$ placealg prove {word}{rest}\nPROVED\n" for word in words)
    text = f"Before.\n\n```console\n{commands}```\n\nBehind.\n"
    made = site().tried(text, "../")
    links = re.findall(r'<a href="\.\./playground/index\.html#([^"]*)">', made)
    asked = list(dict.fromkeys(word for word in words if "." not in word))
    model = rest.rpartition("--model ")[2]
    assert [parse_qs(link) for link in links] == [
        {"strategy": [word], **({"model": [model]} if model else {})} for word in asked]
    assert re.sub(r'\n\n<a [^\n]*</a>', "", made) == text
