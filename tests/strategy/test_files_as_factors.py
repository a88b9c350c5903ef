"""Strategy files as factors of expressions and of bases: what a file says is a name like any other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from conftest import Outcome

import placealg as pa
from placealg.errors import InputError
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import read_expression, read_strategy_file

LEFT, AXES, LAST = ("zero1", "zero2", "zero3", "dp"), ("tp", "tp_sp", "cp"), ("recompute_full", "offload_optimizer")


@pytest.mark.parametrize("seed", range(12))
def test_a_file_is_a_factor_like_the_expression_that_it_has(tmp_path: Path, seed: int) -> None:
    """Drawn products, cut into files at drawn places, in folders of their own; relative to the file that names them."""
    random = Random(seed)
    words = [random.choice(LEFT), random.choice(AXES), *random.sample(LAST, random.randrange(1, 3))]
    whole = parse_strategy("*".join(words))
    cut = random.randrange(1, len(words))
    (tmp_path / "below").mkdir()
    inner = tmp_path / "below" / "part.toml"
    inner.write_text(f'base = "{"*".join(words[:cut])}"\n', encoding="utf-8")
    rest = "*".join(words[cut:])
    assert read_expression(f"{inner}*{rest}") == read_expression(f"below/part.toml * {rest}", tmp_path)
    found = read_expression(f"{inner}*{rest}")
    assert (found.states, found.dims, found.tables, found.mesh) == (whole.states, whole.dims, whole.tables, whole.mesh)
    outer = tmp_path / "outer.toml"
    outer.write_text(f'base = "below/part.toml*{rest}"\n', encoding="utf-8")
    assert read_strategy_file(outer).strategy.states == whole.states


@pytest.mark.parametrize(("texts", "word", "message"), [
    ({"a": "a.toml"}, "a.toml", r"a\.toml:1: .*a\.toml stands on itself: a\.toml -> a\.toml"),
    ({"a": "b.toml*tp", "b": "c.toml", "c": "a.toml"}, "a.toml",
     r"a\.toml stands on itself: a\.toml -> b\.toml -> c\.toml -> a\.toml"),
    ({"a": "zero1"}, "gone.toml*tp", r"gone\.toml: no such file"),
    ({"a": "zero4"}, "a.toml*tp", r"a\.toml:1: .*unknown strategy 'zero4'"),
    ({"a": "zero1"}, "a.toml*dp", r"cannot compose|a\.toml\*dp"),
    ({"a": 'zero1"\n[[edit]]\ndrop = "publish.*'}, "a.toml*tp", r"a\.toml has edits of its own"),
])
def test_what_no_expression_composes_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                 placealg: Callable[..., Outcome], texts: dict[str, str], word: str,
                                                 message: str) -> None:
    monkeypatch.chdir(tmp_path)
    for name, base in texts.items():
        (tmp_path / f"{name}.toml").write_text(f'base = "{base}"\n', encoding="utf-8")
    told = placealg("cost", word, "--model", "abstract")
    assert told.code == 2 and len(told.err.strip().splitlines()) == 1
    with pytest.raises(InputError, match=message):
        pa.memory(word, "abstract")


def test_the_model_and_what_is_left_out_come_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('base = "zero1"\nmodel = "gpt2"\nleft_out = ["a second model"]\nruns = { flash = true }\n')
    case = pa.prove(f"{file}*recompute_full")
    assert case.verdict == "PROVED" and any("a second model" in text for text in case.not_covered)
    assert pa.memory(f"{file}*tp", "gpt").states != pa.memory(f"{file}*tp").states
    with pytest.raises(InputError, match="is a file, and no file is read here"):
        parse_strategy(f"{file}*tp")
