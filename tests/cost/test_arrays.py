"""Figures at many sizes at once, against exact values: within the bound, and decided where it leaves them open."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import placealg as pa
from placealg.arith import parse
from placealg.cost.arrays import CHUNK, Arrays
from placealg.cost.figure import Figure
from placealg.cost.products import Products, opaque
from placealg.cost.stage import on_stage
from placealg.cost.sums import sums
from placealg.models.config import resolve_model
from placealg.polynomial import Polynomial
from placealg.strategy.expression import parse_strategy

STEP = on_stage(pa.derive(parse_strategy("zero1*tp_sp*pp_interleaved*cp_ring"), resolve_model("llama-3-70b")), "first")
FIGURES = sums(STEP)
FIXED = {"w": 2, "g": 4, "o": 12, "act": 2, "wire": 4, "s": 8192}
MADE = Arrays.of(FIGURES, FIXED)


@settings(deadline=None, max_examples=15)
@given(st.lists(st.fixed_dictionaries({n: st.integers(1, 2**20) for n in MADE.names}), min_size=1, max_size=4))
def test_the_exact_value_lies_within_the_bound(points: list[dict[str, int]]) -> None:
    columns = {n: np.array([float(p[n]) for p in points]) for n in MADE.names}
    values, around = MADE.values(columns), MADE.bounded(columns)
    for path, figure in FIGURES.items():
        low, high = around[path]
        for k, point in enumerate(points):
            exact = figure.value({**FIXED, **{n: Fraction(v) for n, v in point.items()}})
            assert Fraction(low[k]) <= exact <= Fraction(high[k]), path
            assert low[k] <= values[path][k] <= high[k]
            assert not path.startswith("memory.states") or high[k] - low[k] <= 1e-13 * high[k]


def test_a_changed_coefficient_leaves_the_bound() -> None:
    columns = {n: np.array([8.0]) for n in MADE.names}
    wrong = MADE.coefficients.copy()
    wrong[0, np.nonzero(wrong[0])[0][0]] *= 1 + 1e-12
    changed = Arrays(MADE.paths, MADE.names, MADE.monomials, wrong, MADE.slices, MADE.roundings)
    low, high = changed.bounded(columns)[MADE.paths[0]]
    exact = FIGURES[MADE.paths[0]].value({**FIXED, **{n: Fraction(8) for n in MADE.names}})
    assert not Fraction(low[0]) <= exact <= Fraction(high[0])


@pytest.mark.parametrize("name", ["Min(m, pp)", "Max(0, 2 - m)", "ceiling((V)/(dp))", "Min(m*v, 2*pp + v - 1)"])
def test_functions_are_exact(name: str) -> None:
    names = Polynomial.read(name)
    columns = {n: np.array([1.0, 3.0, 7.0, 128256.0]) for n in Figure((names,)).names()}
    found = opaque(name, columns)
    for k, value in enumerate(found):
        assert Fraction(value) == Figure((names,)).value({n: Fraction(c[k]) for n, c in columns.items()})


def test_scalars_columns_and_grids_are_taken() -> None:
    made = Arrays.of({"held": Figure((Polynomial.read("w*h/dp"),))}, {"w": 2})
    grid = made.values({"h": np.array([[1.0], [2.0]]), "dp": np.array([1.0, 2.0, 4.0])})["held"]
    assert grid.shape == (2, 3) and grid[1, 2] == 1
    with pytest.raises(pa.InputError, match="depends on dp"):
        made.values({"h": np.array([1.0])})


@pytest.mark.parametrize("text", ["w*h/dp + Max(h, 20*dp)", "h/(h + dp - 1)", "ceiling(h/dp)*w", "Min(h, dp)*w"])
def test_a_formula_takes_arrays(text: str) -> None:
    formula = pa.Formula.parse(text, "bytes", values={"w": 2})
    h, dp = np.array([[4], [7]]), np.array([1, 2, 5])
    found = formula.value(h=h, dp=dp)
    want = [[float(formula.value(h=int(a), dp=int(b)) or 0) for b in dp] for a in h[:, 0]]
    assert np.allclose(found, want, rtol=1e-14, atol=0)
    with pytest.raises(pa.InputError, match="unknown symbol 'hh'"):
        formula.value(hh=h)


def test_more_configurations_than_a_chunk() -> None:
    many = np.arange(1, 20_001, dtype=np.float64)
    made = Arrays.of({"held": Figure((Polynomial.read("12*h"), Polynomial.read("h*h")))})
    assert (made.values({"h": many})["held"] == np.maximum(12 * many, many**2)).all()


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(["Min(m*v, 2*pp + v - 1)", "m*v/pp", "(m*v - pp)/v", "m**2*v - pp", "Max(m*v*pp, m)"]),
       st.lists(st.tuples(*[st.one_of(st.integers(1, 40), st.integers(2**26, 2**27), st.just(2**53 - 1))] * 3),
                min_size=1, max_size=3))
def test_arithmetic_is_rounded_at_most_once(name: str, rows: list[tuple[int, int, int]]) -> None:
    columns = {n: np.array([float(row[k]) for row in rows]) for k, n in enumerate(("m", "pp", "v"))}
    figure = Figure((Polynomial.read(name),)) if name.startswith("M") else None
    for k, value in enumerate(opaque(name, columns)):
        sizes = {n: Fraction(c[k]) for n, c in columns.items()}
        exact = figure.value(sizes) if figure else parse(name).evaluate(sizes)
        assert value == float(exact)


def test_products_are_those_of_their_powers_and_share_what_they_can() -> None:
    every = [(("dp", -2), ("h", 1)), (("h", 1),), (), (("dp", -2),), (("dp", -2), ("h", 1), ("tp", -1)), (("tp", 3),)]
    made = Products(every)
    columns = {"dp": np.array([2.0, 3.0]), "h": np.array([5.0, 7.0]), "tp": np.array([4.0, 8.0])}
    rows = np.empty((made.rows, 2))
    made.run(columns, list(rows))
    for powers, row in zip(every, rows, strict=False):
        assert np.allclose(row, np.prod([columns[n] ** p for n, p in powers], axis=0))
    assert made.rows == len(every) + 3, "dp**2, 1/tp and tp**2 are made once"


def test_many_chunks_are_those_of_each_alone() -> None:
    draw = np.random.default_rng(0)
    columns = {n: 2.0 ** draw.integers(0, 5, CHUNK + 7) for n in MADE.names}
    for path, both in MADE.bounded(columns).items():
        for part in (slice(0, 5), slice(CHUNK - 3, CHUNK + 7)):
            again = MADE.bounded({n: c[part] for n, c in columns.items()})[path]
            assert all(np.allclose(one[part], other, rtol=1e-12) for one, other in zip(both, again, strict=True))


def test_what_is_not_claimed_is_no_number() -> None:
    """A pipeline's wait is claimed where it is proved: elsewhere a number is None, and an array has nan."""
    waiting = pa.costs("pp_zb_h1", "gpt").figures["schedule.waiting"]
    at = {"pp": 4, "T_F": 1, "T_B": 1}
    assert waiting.value(**at, m=8, T_W=1) == 3 and waiting.value(**at, m=8, T_W=3) is None
    found = waiting.value(**at, m=np.array([8, 8, 2]), T_W=np.array([1, 3, 1]))
    assert found[0] == 3 and np.isnan(found[1:]).all()
    assert "claimed only where pp <= m and T_W <= T_F" in waiting.python("waiting")
    assert not np.isnan(pa.costs("pp_1f1b", "gpt").figures["schedule.bubble"].value(pp=4, m=np.array([2, 8]))).any()
