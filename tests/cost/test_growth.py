"""How figures grow with one size: the leading term, and what one more takes."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from conftest import Outcome

from placealg.cost.formula import Formula
from placealg.errors import InputError

Run = Callable[..., Outcome]


@pytest.mark.parametrize(("text", "name", "leading", "per"), [
    ("L*(w + g)*h**2 + V*h*w", "L", "L*(w + g)*h**2", "(w + g)*h**2"),
    ("b*s*h*34 + 5*a*b*s**2", "s", "5*a*b*s**2", "34*b*h + 10*a*b*s + 5*a*b"),
    ("Max(s*h, s**2*b) + h", "s", "b*s**2", None),
    ("h/dp", "dp", "0", None),
])
def test_what_grows_fastest_and_what_one_more_takes(text: str, name: str, leading: str, per: str | None) -> None:
    formula = Formula.parse(text, "bytes")
    assert formula.leading(name) == Formula.parse(leading, "bytes")
    assert per is None or formula.per(name) == Formula.parse(per, "bytes")


def test_a_size_that_stands_for_nothing_is_refused() -> None:
    for grow in (Formula.leading, Formula.per):
        with pytest.raises(InputError, match="unknown symbol 'nope'"):
            grow(Formula.parse("h*L", "bytes"), "nope")


def test_a_command_tells_every_figure(placealg: Run) -> None:
    got = json.loads(placealg("cost", "tp_sp", "--per", "L", "--format", "json").out)
    found = Formula.parse(got["figures"]["memory.activations"]["expr"], "bytes")
    assert found == Formula.parse("b*s*(16*act*h + 2*act*s*a + s*a + 2*h)/tp", "bytes")
    assert "what grows fastest with s" in placealg("cost", "tp_sp", "--leading", "s").out
    for words, says in ((("--per", "Q"), "no figure depends on 'Q'"), (("--per", "L", "--leading", "s"), "not allowed"),
                        (("--per", "L", "--format", "latex"), "growth is printed as text or json")):
        bad = placealg("cost", "tp_sp", *words)
        assert bad.code == 2 and says in bad.err and bad.err.count("\n") == 1
