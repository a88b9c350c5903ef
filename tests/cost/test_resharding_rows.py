"""Shares of rows of elements: what two layouts have in common is what is found element by element, by other code."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import prod
from types import SimpleNamespace
from typing import Any

import pytest
import sympy
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_resharding import agree, kept

from placealg.arith import Monomial
from placealg.cost.bindings import Bindings
from placealg.cost.formula import Formula
from placealg.cost.indices import valued
from placealg.cost.resharding_rows import bundles, shared_of_rows
from placealg.cost.resharding_stages import OLD, Side
from placealg.frozen import FrozenMap
from placealg.step.checkpoint import Item
from placealg.step.pipeline import ONE_STAGE

AXES = ("dp", "tp", "ep")
Dims = dict[str, int]
Layout = tuple[str, dict[str, str]]
"""How states of one mesh rest: "row", "rows" or "whole", and axis -> the dim that it splits, wherever there is one."""


def chunk(places: list[Any], ranks: int, rank: int) -> list[Any]:
    """The chunk of a rank, as torch.chunk cuts: all as long as the first, but for the last ones."""
    each = -(-len(places) // ranks)
    return places[rank * each:(rank + 1) * each]


def elements(parameter: int, dims: Dims, splits: dict[str, str], sizes: dict[str, int],
             at: dict[str, int]) -> list[tuple[int, ...]]:
    """The elements of one parameter that splits leave to a rank, in the order of memory."""
    own = {d: list(range(n)) for d, n in dims.items()}
    for axis in AXES:
        if splits.get(axis) in own:
            own[splits[axis]] = chunk(own[splits[axis]], sizes[axis], at[axis])
    return [(parameter, *place) for place in product(*own.values())]


def owned(parameters: list[Dims], layout: Layout, sizes: dict[str, int], at: dict[str, int]) -> set[tuple[int, ...]]:
    """The elements that a rank has."""
    kind, splits = layout
    parts = [elements(k, dims, splits, sizes, at) for k, dims in enumerate(parameters)]
    if kind == "row":
        return set(chunk([e for part in parts for e in part], sizes["dp"], at["dp"]))
    if kind == "rows":
        firsts = [list(dict.fromkeys(e[1] for e in part)) for part in parts]
        kept_rows = [chunk(rows, sizes["dp"], at["dp"]) for rows in firsts]
        return {e for part, rows in zip(parts, kept_rows, strict=True) for e in part if e[1] in rows}
    return {e for part in parts for e in part}


def items(parameters: list[Dims], layout: Layout) -> list[Item]:
    kind, splits = layout
    told = [(FrozenMap({d: Monomial(Fraction(n)) for d, n in dims.items()}),
             FrozenMap({a: splits[a] for a in AXES if splits.get(a) in dims})) for dims in parameters]
    return [Item(f"p{k}", "moments", "g", ("u",), dims, 1, own, () if kind == "whole" else ("dp",), FrozenMap(),
                 Monomial(), "4", kind == "row", tuple(told) if kind == "row" else (), k,
                 () if kind == "whole" else (("dp",),))
            for k, (dims, own) in enumerate(told)]


def side(suffix: str) -> Any:
    return Side(SimpleNamespace(axes=AXES, pipeline=ONE_STAGE,  # type: ignore[arg-type]
                                step=SimpleNamespace(reference=SimpleNamespace(pad="elements"))), suffix)


def agree_by_element(parameters: list[Dims], layouts: tuple[Layout, Layout], meshes: tuple[Dims, Dims]) -> None:
    """The closed form, at every rank of both meshes, is the number of elements that both layouts give it."""
    sides, known = (side(OLD), side("")), Bindings(("rank",))
    at = tuple({a: known.named(f"k_{a}{s.suffix}", s.coordinate(a)) for a in AXES} for s in sides)
    pairs = [(a, b, sympy.S.One) for a, b in zip(*(items(parameters, lay) for lay in layouts), strict=True)]
    told = known.around(sympy.Add(*(shared_of_rows(sides, b.pairs, at, known) for b in bundles(pairs))))
    sizes = {a + s.suffix: Fraction(n) for s, mesh in zip(sides, meshes, strict=True) for a, n in mesh.items()}
    coordinates = [list(product(*(range(mesh[a]) for a in AXES))) for mesh in meshes]
    for rank, both in enumerate(zip(*coordinates, strict=False)):
        has = [owned(parameters, lay, mesh, dict(zip(AXES, place, strict=True)))
               for lay, mesh, place in zip(layouts, meshes, both, strict=True)]
        found = valued(told, {**sizes, "rank": Fraction(rank)})
        assert found == len(has[0] & has[1]), (parameters, layouts, meshes, rank)


def layouts_of(kinds: st.SearchStrategy[str]) -> st.SearchStrategy[Layout]:
    return st.tuples(kinds, st.fixed_dictionaries({}, optional={"tp": st.sampled_from("abc"),
                                                                "ep": st.sampled_from("abc")}))


MESHES = st.fixed_dictionaries({a: st.integers(1, 3) for a in AXES})
PARAMETERS = st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True).flatmap(
    lambda dims: st.fixed_dictionaries({d: st.integers(1, 5) for d in dims})), min_size=1, max_size=3)
ANY = st.sampled_from(("row", "rows", "whole"))


ALONE = {"dp": 1, "tp": 1, "ep": 2}


@settings(max_examples=6)
@example(parameters=[{"a": 1, "b": 1, "c": 1}], old=("whole", {"tp": "b", "ep": "a"}), new=("row", {}),
         meshes=(ALONE, ALONE))  # a dim of one place, which some ranks do not have
@given(parameters=PARAMETERS, old=layouts_of(ANY), new=layouts_of(st.just("row")), meshes=st.tuples(MESHES, MESHES))
def test_what_two_layouts_share_is_found_element_by_element(parameters: list[Dims], old: Layout, new: Layout,
                                                            meshes: tuple[Dims, Dims]) -> None:
    """For parts of any dim, shares that do not divide, ranks that have nothing, and a row in either mesh."""
    agree_by_element(parameters, (old, new), meshes)
    agree_by_element(parameters, (new, old), meshes[::-1])


@pytest.mark.slow
@settings(max_examples=400)
@given(parameters=PARAMETERS, old=layouts_of(ANY), new=layouts_of(ANY), meshes=st.tuples(MESHES, MESHES))
def test_what_any_two_layouts_share_is_found_element_by_element(parameters: list[Dims], old: Layout, new: Layout,
                                                                meshes: tuple[Dims, Dims]) -> None:
    if "row" in (old[0], new[0]):
        agree_by_element(parameters, (old, new), meshes)


COLUMNS = ([{"a": 3, "b": 5}, {"b": 4}], (("row", {"tp": "b"}), ("row", {})), ({"dp": 2, "tp": 2, "ep": 1},
                                                                               {"dp": 3, "tp": 1, "ep": 1}))


def test_a_dim_that_is_split_inside_rows_is_counted_place_by_place() -> None:
    agree_by_element(*COLUMNS)


def test_places_that_are_off_by_one_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    import placealg.cost.resharding_rows as rows

    right = rows._common_before
    monkeypatch.setattr(rows, "_common_before", lambda levels, place, known: right(levels, place + 1, known))
    with pytest.raises(AssertionError):
        agree_by_element(*COLUMNS)


EVERY = ("stored", "read", "stays", "moved", "rank_reads")


def padded(base: str, pad: str = "elements") -> str:
    return f'base = "{base}"\n[shards]\npad = "{pad}"'


SMALL = {"h": 6, "a": 2, "L": 3, "V": 7, "s": 5}


@pytest.mark.parametrize(("one", "two", "old", "new"), [
    ("zero1*tp", "zero1", {"dp": 2, "tp": 3}, {"dp": 3}),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (
        ("zero1*tp", "zero3*tp", {"dp": 2, "tp": 3}, {"dp": 3, "tp": 2}),
        ("zero1*tp_sp", "zero1", {"dp": 2, "tp": 2}, {"dp": 3}),
        ("hsdp", "zero3*tp", {"dp_replicate": 2, "dp_shard": 3}, {"dp": 3, "tp": 2}),
        ("tp", "zero1*tp", {"tp": 4}, {"dp": 2, "tp": 3}),
        ("zero1*tp*pp", "zero3*tp", {"dp": 2, "tp": 2, "pp": 2}, {"dp": 3, "tp": 3})))])
def test_of_rows_of_a_transformer(one: str, two: str, old: dict[str, int], new: dict[str, int]) -> None:
    """Parts of tensor parallelism in rows that data parallelism shares, onto other sizes of both."""
    agree((padded(one), padded(two), "gpt"), old, new, SMALL, *EVERY)


@pytest.mark.slow
@pytest.mark.parametrize(("one", "two"), [(padded("zero1*tp"), padded("zero3*tp", "rows")),
                                          (padded("zero3*tp", "rows"), padded("zero1*tp"))])
def test_of_rows_of_elements_onto_rows_of_parameters(one: str, two: str) -> None:
    agree((one, two, "gpt"), {"dp": 3, "tp": 2}, {"dp": 2, "tp": 4}, SMALL, *EVERY)


def test_a_row_that_both_meshes_share_is_one_line() -> None:
    """Whatever parameters are in it: what stays is a function of its length, with no sum over ranks."""
    _, formulas = kept(padded("zero1"), padded("zero1"), "gpt")
    assert "stay(12·h² + 13·h)·L·(o − 4)" in formulas.stays.text() and "Σ" not in formulas.stays.text()


@pytest.mark.parametrize(("one", "two"), [("zero1", "zero3"), pytest.param("zero1*tp", "zero3*tp",
                                                                           marks=pytest.mark.slow)])
def test_formulas_of_rows_are_short_and_read_back(one: str, two: str) -> None:
    _, formulas = kept(padded(one), padded(two), "gpt")
    at = {"dp_old": 2, "tp_old": 3, "dp": 3, "tp": 2, **SMALL}
    for name, formula in formulas.items():
        assert formula.expr is not None and len(formula.text()) < 6000
        if name != "rank_has":
            back = Formula.from_json(formula.to_json())
            sizes = {n: v for n, v in {**formula.values, **at}.items() if n in formula.inputs}
            assert back.value(**sizes) == formula.value(**sizes)
            made: dict[str, Any] = {}
            exec(formula.python("told"), made)
            assert made["told"](**{n: int(v) for n, v in sizes.items()}) == formula.value(**sizes)


def test_the_row_of_this_test_is_shared_by_all_ranks() -> None:
    """The oracle's own shares are a partition, so that it is no check of nothing."""
    sizes = {"dp": 3, "tp": 2, "ep": 1}
    parameters, layout = [{"a": 3, "b": 5}, {"b": 4}], ("row", {"tp": "b"})
    has = [owned(parameters, layout, sizes, {"dp": k, "tp": t, "ep": 0}) for k in range(3) for t in range(2)]
    assert sum(map(len, has)) == len(set().union(*has)) == sum(prod(dims.values()) for dims in parameters)
