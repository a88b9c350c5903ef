"""The closed forms of a reshard are what is counted read by read, at every size, those that do not divide too."""

from __future__ import annotations

from fractions import Fraction
from math import prod

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

import placealg as pa
from placealg.cost.resharding import OLD, RANK, Volumes, volumes
from placealg.frozen import FrozenMap
from placealg.models.config import resolve_model
from placealg.step.checkpoint import Sizes, checkpoint
from placealg.step.reshard import Reshard, totals
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import parse_strategy_file

ROWS = '[shards]\npad = "rows"'
UNEVEN = f'base = "zero3"\n{ROWS}'


def reshard(old: str, new: str, model: str = "gpt") -> tuple[Reshard, Volumes]:
    found = resolve_model(model)
    said = [parse_strategy_file(t).strategy if "=" in t else parse_strategy(t) for t in (old, new)]
    made = Reshard(*(checkpoint(pa.derive(s, found), s, found) for s in said))
    return made, volumes(made)


MADE: dict[tuple[str, str, str], tuple[Reshard, Volumes]] = {}


def kept(*key: str) -> tuple[Reshard, Volumes]:
    if key not in MADE:
        MADE[key] = reshard(*key)
    return MADE[key]


def sizes(mesh: dict[str, int], model: dict[str, int]) -> Sizes:
    return Sizes(FrozenMap(mesh), FrozenMap({n: Fraction(v) for n, v in model.items()}))


def agree(key: tuple[str, str, str], old: dict[str, int], new: dict[str, int], model: dict[str, int],
          *names: str) -> None:
    found, formulas = kept(*key)
    counted = totals(found, sizes(old, model), sizes(new, model))
    at = {**{a + OLD: n for a, n in old.items()}, **new, **model}
    for name, formula in formulas.items():
        if name in names:
            value = formula.value(**{n: v for n, v in at.items() if n in formula.inputs})
            assert value == {"rank_reads": counted.largest}.get(name, getattr(counted, name, None)), name


EVERY = ("stored", "read", "stays", "moved", "rank_reads")
SMALL = {"h": 6, "a": 2, "L": 3, "V": 7, "s": 5}


UNEVEN_PAIRS = [(UNEVEN, UNEVEN), ("dp", UNEVEN), (UNEVEN, "dp"), (f'base = "zero1"\n{ROWS}', UNEVEN)]


@settings(max_examples=5)
@given(old=st.integers(1, 9), new=st.integers(1, 9), rows=st.integers(1, 20))
@pytest.mark.parametrize(("one", "two"), UNEVEN_PAIRS[:3])
def test_of_shares_that_do_not_divide(one: str, two: str, old: int, new: int, rows: int) -> None:
    agree((one, two, "mlp"), {"dp": old}, {"dp": new}, {"h": 5, "f": rows, "L": 2, "V": 7}, *EVERY)


@pytest.mark.slow
@pytest.mark.parametrize("old", range(1, 10))
@pytest.mark.parametrize("new", range(1, 10))
@pytest.mark.parametrize(("one", "two"), UNEVEN_PAIRS)
def test_of_shares_of_a_transformer_that_do_not_divide(one: str, two: str, old: int, new: int) -> None:
    agree((one, two, "gpt"), {"dp": old}, {"dp": new}, {"h": 6, "a": 2, "L": 3, "V": 7, "s": 5}, *EVERY)


@settings(max_examples=8)
@given(old=st.integers(1, 9), new=st.integers(1, 9), times=st.integers(1, 3))
@pytest.mark.parametrize(("one", "two"), [("zero3", "zero3"), ("zero1", "zero3"), ("zero3", "dp")])
def test_of_shares_that_divide(one: str, two: str, old: int, new: int, times: int) -> None:
    agree((one, two, "abstract"), {"dp": old}, {"dp": new}, {"Psi": old * new * times}, *EVERY)


@pytest.mark.parametrize(("one", "old", "two", "new"), [
    pytest.param("zero3*tp_sp", {"dp": 2, "tp": 2}, "zero1*tp", {"dp": 4, "tp": 2}, marks=pytest.mark.slow),
    ("hsdp", {"dp_replicate": 2, "dp_shard": 4}, "tp", {"tp": 2}),
    ("tp", {"tp": 4}, "zero3", {"dp": 2}),
])
def test_of_several_axes(one: str, old: dict[str, int], two: str, new: dict[str, int]) -> None:
    model = {"h": 8, "a": 4, "L": 2, "V": 8, "s": 8}
    found, formulas = kept(one, two, "gpt")
    agree((one, two, "gpt"), old, new, model, "stored", "read", "rank_reads")
    counted = totals(found, sizes(old, model), sizes(new, model))
    at = {**{a + OLD: n for a, n in old.items()}, **new, **model}
    has = [had(formulas, {**at, RANK: rank}) for rank in range(min(prod(old.values()), prod(new.values())))]
    assert sum(has) == counted.stays


CHUNKED = {"pp": "", "pp_interleaved": "chunks = 2", "pp_interleaved_zb": "chunks = 3", "pp_zb_v": "", "dp": "",
           "pp_zb_h1": 'alone = ["last"]', "pp_dualpipe_v": 'alone = ["last"]', "pp_1f1b": 'alone = ["first", "last"]'}
"""Pipelines by name -> what [schedule] says of them besides."""


@pytest.mark.parametrize(("one", "two", "model"), [
    ("pp_interleaved", "pp", "mlp"), ("pp_zb_h1", "pp_zb_v", "mlp"), ("pp_1f1b", "pp_interleaved", "gpt"),
    *(pytest.param(a, b, "mlp", marks=pytest.mark.slow) for a in CHUNKED for b in CHUNKED if "1f1b" not in a + b)])
def test_of_stages_that_have_chunks(one: str, two: str, model: str) -> None:
    """What the device of a rank had is a closed form in its number, for layers that do not divide, too."""
    texts = [f'base = "{name}"\n' + f"[schedule]\n{CHUNKED[name]}" * bool(CHUNKED[name]) for name in (one, two)]
    found, formulas = reshard(*texts, model=model)
    for old, new, layers in ((3, 4, 13), (4, 3, 17), (3, 3, 12)):
        known = {**SMALL, "f": 7, "L": layers}
        axes = [made.axes[0] for made in (found.old, found.new)]
        counted = totals(found, sizes({axes[0]: old}, known), sizes({axes[1]: new}, known))
        at = {axes[0] + OLD: old, axes[1]: new, **known}
        assert sum(had(formulas, {**at, RANK: rank}) for rank in range(min(old, new))) == counted.stays, (old, new)


def had(formulas: Volumes, at: dict[str, int]) -> Fraction:
    """What the device of one rank had; the number of a rank may be 0, as no size of a formula may."""
    known = {**formulas.rank_has.values, **at}
    return Fraction(str(sympy.Rational(formulas.rank_has.expr.xreplace(
        {s: sympy.Rational(known[s.name]) for s in formulas.rank_has.expr.free_symbols}))))


def test_a_tied_embedding_lives_on_both_ends_of_a_pipeline() -> None:
    model = {"h": 8, "a": 4, "L": 4, "V": 8, "s": 8}
    for stages in (1, 2, 4):
        agree(("zero3", "zero3*pp", "gpt"), {"dp": 2}, {"dp": 2, "pp": stages}, model, "stored", "read")


def test_what_has_no_closed_form_says_why() -> None:
    _, formulas = kept("hsdp", "tp", "gpt")
    assert formulas.stays.expr is None and "several axes" in formulas.stays.reason
    assert formulas.moved.reason == formulas.stays.reason
