"""Axes of any table held against counting by hand, and what is found without a name against its file and its proof."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import factorial
from pathlib import Path

import pytest
from conftest import Outcome

from placealg.check.prove import prove
from placealg.configurations.modes import by_rule, expanded, of_program, ordered, rule
from placealg.configurations.space import Space, read_spaces, spaces
from placealg.cost.sums import sums
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.transformer import gpt
from placealg.step.derive import derive
from placealg.strategy.expression import on_one_axis, parse_strategy, words
from placealg.strategy.file import read_strategy_file
from placealg.strategy.spec import Strategy
from placealg.strategy.write import write_strategy

AXIS = FrozenMap({"dims": ("batch", "vocab"), "parameters": ("R", "S*"), "optimizer": ("R", "S", "M"),
                  "lifetime": ("use", "step")})
FILE = '[mine.axes.dp]\ndims = ["vocab", "batch"]\noptimizer = ["S"]\ngradients = ["R", "S"]\n'


def test_every_list_and_every_table_is_counted_once(tmp_path: Path) -> None:
    space = expanded(Space("mine", FrozenMap(), axes=FrozenMap({"dp": AXIS})), gpt(), tmp_path)
    (found,) = space.enumerated
    assert found.lists == 4 and len(list(ordered("abcd"))) == sum(factorial(4) // factorial(k) for k in range(4))
    assert found.distinct == 3, "batch comes first in every op that has it, so that [batch, vocab] is [batch]"
    assert found.tables == found.distinct * 3 * 3
    assert found.tables == sum(found.refused.values()) + found.alike + len(found.words)
    assert list(found.refused) == ["[states] optimizer: M holds nothing at rest, so nothing could be updated"]
    assert found.refused.values() and sum(found.refused.values()) == found.distinct * 3
    assert {"dp", "zero1"} <= set(found.words) and found.named == 2
    assert expanded(Space("mine", FrozenMap(), axes=FrozenMap({"dp": AXIS})), gpt(), tmp_path) == space


def test_tables_that_give_one_program_have_the_same_figures() -> None:
    one, other = (derive(on_one_axis("dp", text), gpt()) for text in (
        "heads,ffn,parameters=S", "heads,ffn,parameters=S*"))
    assert of_program(one) == of_program(other) and sums(one) == sums(other)
    for text in ("heads,ffn", "heads,ffn,parameters=S,optimizer=S", "ffn,parameters=S"):
        assert of_program(derive(on_one_axis("dp", text), gpt())) != of_program(one)


def test_a_catalogue_entry_and_its_table_are_one_program() -> None:
    for name, text in (("zero1", "dp{batch,optimizer=S}"), ("cp_ulysses", "cp{core.heads,seq}"),
                       ("zero3", "dp{batch,parameters=S*,optimizer=S,gradients=S}"),
                       ("tp_sp", "tp{loss.none,heads,ffn,vocab,seq,activations=S*}")):
        assert of_program(derive(parse_strategy(name), gpt())) == of_program(derive(parse_strategy(text), gpt()))


def read(text: str, path: Path) -> Strategy:
    path.write_text(text)
    return read_strategy_file(path).strategy


def test_what_has_no_name_reads_back_from_its_file_and_is_proved(tmp_path: Path) -> None:
    strategy = parse_strategy("dp{vocab,batch,optimizer=S}*recompute_full")
    assert read(write_strategy(strategy), tmp_path / "x.toml") == strategy
    assert prove(derive(strategy, gpt())).verdict == "PROVED"


def test_words_are_factors() -> None:
    for text in ("zero3*tp", "dp{batch,parameters=S*}*cp[x]*recompute_full", "tp"):
        assert "*".join(words(text)) == text and parse_strategy(text).name == text


@pytest.mark.parametrize(("text", "says"), [
    ("dp{}", "has no dims"), ("dp{batch,optimiser=S}", "did you mean 'optimizer'"), ("dp{batch", "missing '}'"),
    ("dp{batch,optimizer=S,optimizer=R}", "says optimizer twice"), ("dp{batch,optimizer=Q}", "unknown mode 'Q'"),
    ("dp{batch}{x}", "unexpected '{'"), ("dp{batch,lifetime=long}", "lifetime of dp is 'long'")])
def test_a_wrong_table_is_one_line(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        parse_strategy(text)
    assert "\n" not in str(caught.value)


def test_spaces_of_tables_are_read_and_refused() -> None:
    assert set(spaces()["modes"].axes) == {"dp"} and set(spaces()["modes2"].axes) == {"dp", "tp"}
    assert read_spaces(FILE)["mine"].axes["dp"]["optimizer"] == ("S",)
    for text, says in (("[x.axes.dp]\noptimizer = ['S']\n", "says no dims"), ("[x.axes]\ndp = 1\n", "says no dims"),
                       ("[x.axes.dp]\ndims = ['batch']\noptimiser = ['S']\n", "did you mean 'optimizer'"),
                       ("[x.axes.dp]\ndims = ['batch']\noptimizer = 'S'\n", "not a list"),
                       (f"[x.axes.dp]\ndims = {[str(k) for k in range(9)]}\n", "at most 8")):
        with pytest.raises(InputError, match=says):
            read_spaces(text)


def test_refusals_are_counted_by_their_rule() -> None:
    assert rule("dp{seq} on gpt: [dims] dp splits no op of gpt: name a dim; valid: a, b", "dp") == (
        "[dims] the axis splits no op of gpt: name a dim")
    assert by_rule(["a on m: it says 'x'", "b on m: it says 'y'", "no"]) == [("it says ", 2), ("no", 1)]


@pytest.mark.slow
def test_a_search_tells_what_nobody_has_named(placealg: Callable[..., Outcome], tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(FILE)
    told = placealg("search", "gpt2", "--devices", "2", "--batch", "4", "--set", "s=1024", "--machine", "h100",
                    "--space", str(file), "--no-cache", "--only", "dp{vocab,batch,optimizer=S}", "--front")
    assert told.code == 0, told.err
    assert "dp  4 lists of dims, 3 of which split the ops" in told.out and "nobody has named it" in told.out
    *_, toml = told.out.partition("as files:\n")
    toml = "\n".join(row[2:] for row in toml.splitlines())
    assert read(toml, file) == parse_strategy("dp{vocab,batch,optimizer=S}")


def test_on_one_axis_every_mode_is_said_or_refused() -> None:
    for mode, state in product(("R", "S", "S*", "M"), ("optimizer", "gradients")):
        text = f"batch,{state}={mode}"
        if mode in ("R", "S"):
            assert derive(on_one_axis("dp", text), gpt()).events
        else:
            with pytest.raises(InputError, match=state):
                derive(parse_strategy(f"dp{{{text}}}"), gpt())
