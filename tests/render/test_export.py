"""Exported costs: the Python module gives the formulas' values exactly, alone; the LaTeX is what KaTeX reads."""

from __future__ import annotations

import csv
import io
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy
from conftest import run_placealg
from hypothesis import example, given, settings
from hypothesis import strategies as st

import placealg as pa
from placealg.cost.costs import Costs
from placealg.cost.notation import LATEX_LINE, latex_of, text_of
from placealg.mesh import SYMBOLS
from placealg.models.config import resolve_model
from placealg.render.export import escaped, function_name, sections

CASES = [("zero3", "abstract"), ("zero3*tp_sp*recompute_selective", "gpt"), ("hsdp*cp_ring", "gpt"), ("dp*ep", "moe"),
         ("zero1*offload_optimizer", "gpt"), ("zero1*pp", "gpt"), ("zero3*tp_sp", "llama-3-70b"), ("tp_sp", "mla")]


def exported(strategy: str, model: str) -> tuple[dict[str, list[tuple[str, pa.Formula]]], dict[str, Any]]:
    """The formulas by section, and the names of the module."""
    step = pa.derive(pa.parse_strategy(strategy), resolve_model(model))
    text = run_placealg("cost", strategy, "--model", model, "--format", "python").out
    names: dict[str, Any] = {}
    exec(compile(text, "costs", "exec"), names)
    return sections(Costs(step)), names


def size(name: str, rng: random.Random) -> Fraction:
    """A size of any order; of bytes a fraction, as 1/3, that no double is."""
    if name in SYMBOLS and SYMBOLS[name].assumption == "positive rational":
        return Fraction(rng.randint(1, 40), rng.choice((1, 2, 3, 7)))
    return Fraction(rng.choice((rng.randint(2, 9), rng.randint(2, 5000), rng.randint(2, 2**70))))


@pytest.mark.some(3)
@pytest.mark.parametrize(("strategy", "model"), CASES)
def test_the_module_gives_the_formulas_values_exactly(strategy: str, model: str) -> None:
    parts, names = exported(strategy, model)
    rng, compared = random.Random(strategy), 0
    for section, rows in parts.items():
        for quantity, formula in rows:
            function = names[function_name(section, quantity)]
            if formula.expr is None:
                assert function() is None
                continue
            assert set(function.__annotations__) == {*formula.names, "return"}
            for _ in range(3):
                sizes = {n: size(n, rng) for n in formula.names}
                assert function(**sizes) == formula.value(**sizes)
                compared += 1
    assert compared > 30


def test_the_module_needs_nothing_and_is_typed(tmp_path: Path) -> None:
    path = tmp_path / "costs.py"
    path.write_text(run_placealg("cost", "zero3*tp_sp", "--model", "gpt", "--format", "python").out, encoding="utf-8")
    alone = "import costs, sys; print(costs.memory_states(Psi=8, s=1, h=1, L=1, dp=2, tp=1), 'sympy' in sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {alone}"],
                          capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["64.0", "False"]
    checked = subprocess.run([sys.executable, "-m", "mypy", "--strict", str(path)], cwd=tmp_path, capture_output=True,
                             text=True, check=False)
    assert checked.returncode == 0, checked.stdout


_ALONE = r"\bigl \bigr \quad \left \right \Psi \cdot \max \min \lceil \rceil \lfloor \rfloor "
_SIGNS = r"\textbackslash \textasciitilde \textasciicircum \\ \_ \# \% \& \$ \{ \}"
COMMANDS = {r"\frac": 2, r"\text": 1, r"\mathrm": 1, **dict.fromkeys(f"{_ALONE} {_SIGNS}".split(), 0)}
"""Command -> how many groups it takes: the part of KaTeX's functions that exports use, https://katex.org/docs/supported."""


TOKEN = re.compile(r"\\(?:[A-Za-z]+|.)|[{}]|\s+|[^\\{}\s]", re.DOTALL)
DELIMITERS = ("(", ")", "[", "]", "|", r"\lceil", r"\rceil", r"\lfloor", r"\rfloor", ".", r"\{", r"\}")


def complaints(text: str) -> Iterator[str]:
    """What KaTeX would not read in an expression: a checker of the subset above, and no typesetter."""
    tokens = [t for t in TOKEN.findall(text) if not t.isspace()]
    open_groups: list[str] = []
    lefts = 0
    for k, token in enumerate(tokens):
        after = tokens[k + 1:]
        if token.startswith("\\"):
            if token not in COMMANDS:
                yield f"unknown command {token}"
            elif token in (r"\left", r"\right") and after[:1] and after[0] not in DELIMITERS:
                yield f"{token} before {after[0]}"
            elif COMMANDS[token] and after[:1] != ["{"]:
                yield f"{token} takes {COMMANDS[token]} groups"
            elif COMMANDS[token] == 2 and not followed_by_two(after):
                yield f"{token} takes 2 groups"
            lefts += (token == r"\left") - (token == r"\right")
        elif token == "{":
            open_groups.append(token)
        elif token == "}" and (not open_groups or open_groups.pop() != "{"):
            yield "a group closes that is not open"
        elif token in "#%&$~" and token != "&":
            yield f"bare {token}"
        elif not token.isascii():
            yield f"{token} is not in mathematics"
        if lefts < 0:
            yield r"\right without \left"
    if open_groups or lefts:
        yield "something stays open"


def followed_by_two(tokens: list[str]) -> bool:
    """Whether two groups stand at the head of tokens."""
    depth = groups = 0
    for token in tokens:
        depth += (token == "{") - (token == "}")
        if depth == 0:
            groups += 1
            if token != "}":
                return False
            if groups == 2:
                return True
    return False


@pytest.mark.parametrize(("strategy", "model"), CASES)
def test_every_formula_is_latex_that_katex_reads(strategy: str, model: str) -> None:
    text = run_placealg("cost", strategy, "--model", model, "--format", "latex").out
    lines = [line for line in text.splitlines() if line and not line.startswith("%")]
    environments = re.findall(r"\\(begin|end)\{align\*\}", text)
    assert environments == ["begin", "end"] * (len(environments) // 2) and environments
    rows = [line for line in lines if not line.startswith((r"\begin", r"\end", r"\paragraph"))]
    assert len(rows) > 10
    for row in rows:
        assert row.endswith(r" \\") and row.count("&=") + row.lstrip().startswith(r"&\quad ") == 1
        assert list(complaints(row)) == []
        assert not re.search(r"(?<!\\)_(?![{A-Za-z0-9])", row)


@pytest.mark.parametrize("text", [
    r"\frac{a}", r"\frac{a}b", r"\frac ab", r"{a", "a}", r"\left(a", r"a\right)", r"\undefined{a}", r"\begin{x}", "a%b",
    "Ψ", r"\left a", "a$b"])
def test_what_katex_would_not_read_is_seen(text: str) -> None:
    assert list(complaints(text))


def test_names_of_users_are_escaped_in_latex() -> None:
    assert list(complaints(rf"\text{{{escaped('a_b#c%d&e$f{g}h~i^j' + chr(92))}}}")) == []


def test_arrays_go_in_and_come_out() -> None:
    _, names = exported("zero3*tp_sp*recompute_selective", "gpt")
    function = names["memory_peak"]
    sizes = {n: 64.0 for n in function.__annotations__ if n != "return"}
    tp = np.array([1.0, 2.0, 4.0, 8.0])
    assert function(**sizes | {"tp": tp}).tolist() == [function(**sizes | {"tp": float(n)}) for n in tp]


def test_long_formulas_are_broken_into_lines_that_fit() -> None:
    text = run_placealg("cost", "zero3*tp_sp", "--model", "gpt", "--format", "latex").out
    rows = [row for row in text.splitlines() if row.endswith(r" \\")]
    assert any(row.lstrip().startswith(r"&\quad") for row in rows)
    plain = [re.sub(r"\\[A-Za-z]+|[{}\s]", "", row.partition("&")[2]) for row in rows]
    assert max(map(len, plain)) < 3 * LATEX_LINE
    for name in ("act", "wire", "kv"):
        assert not re.search(rf"(?<![A-Za-z{{]){name}(?![A-Za-z])", text)


def test_rows_for_a_spreadsheet_have_the_values_of_the_page() -> None:
    text = run_placealg("cost", "zero3", "--model", "llama-3-8b", "--set", "dp=8", "--format", "csv").out
    rows = {row["quantity"]: row for row in csv.DictReader(io.StringIO(text))}
    assert rows["states"]["value"] == str(8030261248 * 16 // 8) and rows["states"]["unit"] == "bytes"
    assert rows["total"]["formula"] and {row["section"] for row in rows.values()} >= {"memory", "communication"}


TERMS = st.lists(st.tuples(st.integers(-9, 9).filter(bool), st.lists(st.sampled_from(
    ["w", "g", "o", "act", "b", "s", "h", "f", "L", "V", "m", "dp", "tp"]), min_size=1, max_size=3)),
    min_size=2, max_size=6)


@given(TERMS)
@example([(1, ["g"]), (1, ["w"]), (1, ["o"])])
@settings(max_examples=25, deadline=None)
def test_terms_in_latex_stand_as_in_the_text(terms: list[tuple[int, list[str]]]) -> None:
    total = sum(n * prod(map(sympy.Symbol, names)) for n, names in terms)
    text, latex = ([{*re.findall(r"[A-Za-z]+", term)} for term in re.split(r" [+−-] ", one)]
                   for one in (text_of(total), latex_of(total, {s: s.name for s in total.free_symbols})))
    assert text == latex, (text_of(total), latex_of(total, {}))
