"""Arrays in Python alone against numpy: the same shapes, kinds and elements, for indices and operations at random."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, run_placealg
from hypothesis import given, settings
from hypothesis import strategies as st

from placealg.playground import plain_arrays as plain
from placealg.simulator.field import PRIME

SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)
NUMBERS = {"i": st.integers(-50, 50), "f": st.integers(-50, 50).map(lambda n: n / 8), "b": st.booleans()}


def agree(ours: Any, theirs: Any) -> None:
    """The same elements in the same shape, of the same kind."""
    theirs = np.asarray(theirs)
    ours = plain.asarray(ours)
    assert ours.shape == theirs.shape
    assert ours.dtype.kind == theirs.dtype.kind
    assert ours.tolist() == theirs.tolist() or np.allclose(ours.tolist(), theirs, equal_nan=True)


@st.composite
def pairs(draw: st.DrawFn, shape: tuple[int, ...] | None = None, kinds: str = "ifb") -> tuple[plain.Array, Any]:
    """An array of ours and the same of numpy."""
    sizes = draw(SHAPES) if shape is None else shape
    kind = draw(st.sampled_from(kinds))
    flat = [draw(NUMBERS[kind]) for _ in range(int(np.prod(sizes)))]
    of = {"i": int, "f": float, "b": bool}[kind]
    return plain.array(flat, of).reshape(sizes), np.array(flat, of).reshape(sizes)


@st.composite
def indices(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """An index of an array of a shape, for ours and for numpy: all that the simulator writes, and combinations."""
    words: list[tuple[Any, Any]] = []
    picked = False
    for n in shape:
        kind = draw(st.sampled_from(("slice", "place", "none", *(() if picked else ("list", "array")))))
        places = st.integers(-n, n - 1)
        if kind == "slice":
            word: Any = slice(draw(st.none() | places), draw(st.none() | places))
        elif kind == "none":
            words.append((None, None))
            word = slice(None)
        else:
            word = draw(places) if kind == "place" else draw(st.lists(places, min_size=1, max_size=3))
        picked = picked or kind in ("list", "array", "place")
        words.append((plain.array(word, int), np.array(word, int)) if kind == "array" else (word, word))
    if draw(st.booleans()):
        cut = draw(st.integers(0, len(words)))
        words[cut:] = [(..., ...)]
    return tuple(one for one, _ in words), tuple(other for _, other in words)


@settings(max_examples=40)
@given(st.data())
def test_what_an_index_names_is_read_and_written(data: st.DataObject) -> None:
    ours, theirs = data.draw(pairs())
    index, same = data.draw(indices(theirs.shape))
    try:
        agree(ours[index], theirs[same])
    except NotImplementedError:
        chosen = [not isinstance(word, slice | type(None) | type(...)) for word in same]
        assert False in chosen[chosen.index(True):len(chosen) - chosen[::-1].index(True)]
        return
    ours[index], theirs[same] = 7, 7
    agree(ours, theirs)


@settings(max_examples=60)
@given(st.data(), st.sampled_from(("+", "-", "*", "%", "//", "/", "==", "!=", "<", ">=")))
def test_operations_repeat_and_choose_kinds_as_numpy_does(data: st.DataObject, sign: str) -> None:
    ours, theirs = data.draw(pairs(kinds="if"))
    shape = tuple(n if data.draw(st.booleans()) else 1 for n in theirs.shape)[data.draw(st.integers(0, 2)):]
    more, same = data.draw(pairs(shape, "if") | NUMBERS["i"].map(lambda n: (n, n)))
    if sign in ("%", "//"):
        more, same = abs(more) + 1 if isinstance(more, int) else more * more + 1, same * same + 1 if not isinstance(
            same, int) else abs(same) + 1
    with np.errstate(all="ignore"):
        agree(eval(f"a {sign} b", {"a": ours, "b": more}), eval(f"a {sign} b", {"a": theirs, "b": same}))
        agree(eval(f"b {sign} a", {"a": ours * ours + 1, "b": more}), eval(f"b {sign} a", {"a": theirs * theirs + 1,
                                                                                          "b": same}))


@settings(max_examples=40)
@given(st.data())
def test_what_goes_along_dims(data: st.DataObject) -> None:
    ours, theirs = data.draw(pairs(kinds="if"))
    axes = tuple(a for a in range(theirs.ndim) if data.draw(st.booleans())) if theirs.ndim else None
    keep = data.draw(st.booleans())
    agree(ours.sum(axes, keepdims=keep), theirs.sum(axes, keepdims=keep))
    agree(plain.max_of(ours, axes, 0), np.max(theirs, axes, initial=0))
    for name in ("any", "all"):
        agree(getattr(ours == 7, name)(axes), getattr(theirs == 7, name)(axes))
    agree(plain.unique(ours), np.unique(theirs))
    known = np.unique(theirs)
    agree(plain.searchsorted(plain.unique(ours), ours), np.searchsorted(known, theirs))
    agree(plain.argmax(ours), np.argmax(theirs))
    agree(plain.where(ours > 0, ours, 1), np.where(theirs > 0, theirs, 1))
    if theirs.ndim:
        agree(plain.argwhere(ours > 0), np.argwhere(theirs > 0).reshape(-1, theirs.ndim))
        agree(plain.argsort(ours, -1, "stable"), np.argsort(theirs, -1, kind="stable"))
        axis = data.draw(st.integers(-theirs.ndim, theirs.ndim - 1))
        agree(plain.concatenate([ours, ours * 2], axis), np.concatenate([theirs, theirs * 2], axis))
        agree(plain.stack([ours, ours + 1], axis), np.stack([theirs, theirs + 1], axis))
        agree(plain.moveaxis(ours, axis, 0), np.moveaxis(theirs, axis, 0))
        agree(ours.take([0, -1], axis), theirs.take([0, -1], axis))
        agree(ours.take(0, axis), theirs.take(0, axis))
        order = data.draw(st.permutations(range(theirs.ndim)))
        agree(ours.transpose(list(order)), theirs.transpose(list(order)))


@settings(max_examples=40)
@given(st.data())
def test_products_of_named_dims(data: st.DataObject) -> None:
    sizes = [data.draw(st.integers(1, 3)) for _ in range(4)]
    one, other = ([d for d in range(4) if data.draw(st.booleans())] for _ in range(2))
    kept = data.draw(st.permutations([d for d in range(4) if d in one or d in other]))
    kept = kept[:data.draw(st.integers(0, len(kept)))]
    (a, x), (b, y) = (data.draw(pairs(tuple(sizes[d] for d in dims), "i")) for dims in (one, other))
    agree(plain.einsum(a, one, b, other, kept), np.einsum(x, one, y, other, kept))


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4), st.integers(0, 2**64 - 1), st.integers(1, 40))
def test_numbers_of_64_bits_wrap_around(values: list[int], factor: int, by: int) -> None:
    results = []
    for of in (plain, np):
        state: Any = of.array(values, of.uint64)  # type: ignore[attr-defined]
        state = (state ^ (state >> of.uint64(by))) * of.uint64(factor) + of.uint64(by)  # type: ignore[attr-defined]
        results.append((state % of.uint64(PRIME)).astype(of.int64).tolist())  # type: ignore[attr-defined]
    assert results[0] == results[1]


def test_fractions_and_tuples_stay_what_they_are() -> None:
    third = Fraction(1, 3)
    made = plain.full((2, 2), third, object)
    made[0, 1] = (third, 2)
    made.reshape(-1)[plain.array([2, 3])] = plain.array([Fraction(5), Fraction(6)], object)
    assert made.tolist() == [[third, (third, 2)], [5, 6]]
    assert (made[1] * third).tolist() == [Fraction(5, 3), 2]
    assert made[1].sum() == 11
    out, where = plain.zeros((2,)), plain.array([False, True])
    assert plain.divide(1.0, plain.array([0.0, 4.0]), out, where).tolist() == [0, 0.25]
    assert (plain.array([1.0, 0.0, -1.0]) / plain.array([0.0])).tolist()[::2] == [float("inf"), float("-inf")]


def test_what_is_no_index_or_shape_is_refused() -> None:
    made = plain.zeros((2, 3), int)
    for index in ((2,), (0, 3), ([0, -3],)):
        with pytest.raises(IndexError):
            made[index]
    with pytest.raises(ValueError, match="no shape"):
        made.reshape(4)
    with pytest.raises(ValueError, match="do not agree"):
        made + plain.zeros((2,), int)
    with pytest.raises(NotImplementedError):
        plain.zeros((2, 2, 2), int)[[0], :, [1]]


WITHOUT = """import sys
from placealg.playground.plain_arrays import install
install()
from placealg.cli import main
sys.exit(main(sys.argv[1:]))"""


@pytest.mark.slow
@pytest.mark.parametrize("bug", [p.stem for p in sorted((ROOT / "proofs/refuted").glob("*.toml"))])
def test_a_refutation_is_the_same_to_the_byte(bug: str) -> None:
    words = ("prove", bug, "--format", "json", "--no-timing")
    done = subprocess.run([sys.executable, "-c", WITHOUT, *words], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (run_placealg(*words).out, 0), done.stderr
