"""The certificate of a search: what it says is replayed alike, and what was changed in it is found."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from conftest import Outcome
from hypothesis import given, settings
from hypothesis import strategies as st

from placealg.check.prove import prove
from placealg.configurations.certificate import certified, digest, text_of
from placealg.configurations.layouts import Devices
from placealg.configurations.question import Question
from placealg.configurations.recheck import RecheckedSearch, is_certificate, question_of, recheck_search
from placealg.configurations.replay import Asked, Sum, replayed
from placealg.configurations.run import search
from placealg.configurations.space import Space
from placealg.cost.machines import machine
from placealg.cost.sizing import Margin
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.config import resolve_model
from placealg.step.derive import derive

Made = dict[str, Any]
SPACE = Space("two", FrozenMap({"data": ("zero1",), "tp": ("", "tp_sp")}))
SEQUENCES = Space("sequences", FrozenMap({"data": ("zero1",), "cp": ("cp",)}))
PIPELINES = Space("pipelines", FrozenMap({"data": ("zero3",), "pp": ("", "pp", "pp_interleaved")}))


def asked(space: Space = SPACE, **more: Any) -> Question:
    return replace(Question(resolve_model("gpt2"), Devices(8, 4, 16), machine("h100"), Fraction(4 * 10**9), space,
                            FrozenMap({"s": Fraction(1024)})), **more)


def made(question: Question, folder: Path) -> Made:
    found = search(question, folder)
    report = prove(derive(found.best.programs.strategy, question.model)) if found.counts.fit else None
    read: Made = json.loads(text_of(certified(found, {"name": "gpt2", "options": {}}, report)))
    return read


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificate")


@pytest.fixture(scope="module")
def small(folder: Path) -> Made:
    return made(asked(), folder)


def checked(said: Made, folder: Path, regenerate: bool = False, seal: bool = True) -> RecheckedSearch:
    path = folder / "certificate.json"
    path.write_text(text_of({**said, "digest": digest(said)} if seal else said))
    return recheck_search(str(path), regenerate=regenerate)


def test_what_was_written_is_replayed_alike(small: Made, folder: Path) -> None:
    found = checked(small, folder, regenerate=True)
    assert not found.wrong and found.regenerated
    assert (found.layouts, found.places) == (small["counts"]["layouts"], small["counts"]["places"]) != (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"objective": "memory"}, {"objective": "bound"}, {"objective": "card"}, {
    "margin": Margin(Fraction(10**8), Fraction(3, 2))}, {"devices": Devices(8, 4, 24, (16,))}])
def test_pipelines_objectives_and_margins_are_replayed_alike(more: Any, folder: Path) -> None:
    assert not checked(made(asked(PIPELINES, **more), folder), folder, regenerate=True).wrong


def test_states_that_are_sharded_over_context_parallelism_are_replayed_alike(folder: Path) -> None:
    """Layouts with one rank of data beside context parallelism are among them."""
    said = made(asked(SEQUENCES), folder)
    found = checked(said, folder)
    assert not found.wrong and found.layouts == said["counts"]["layouts"]


def test_where_nothing_fits_that_is_certified(folder: Path) -> None:
    said = made(replace(asked(), memory=Fraction(10**8)), folder)
    assert said["winner"] is None and not checked(said, folder).wrong
    assert checked({**said, "winner": "zero1"}, folder).wrong


Path_ = tuple[Any, ...]


def leaves(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Every place in a document, but the digest's and the version's, at which a reader says what is wrong."""
    if isinstance(value, dict):
        for key in value:
            if path or key not in ("digest", "placealg", "placealg_search"):
                yield from leaves(value[key], (*path, key))
    elif isinstance(value, list) and value:
        for k in range(len(value)):
            yield from leaves(value[k], (*path, k))
    yield path


def changed(said: Made, path: Path_, how: int) -> Made:
    """The document with one place changed: a number by one or by a part, a word lengthened, an entry dropped."""
    copy = deepcopy(said)
    inner: Any = copy
    for key in path[:-1]:
        inner = inner[key]
    value = inner[path[-1]]
    if isinstance(value, (dict, list)) or value is None or how == 2:
        if isinstance(inner, list) and how == 1:
            inner.insert(path[-1], value)
        else:
            del inner[path[-1]]
    elif isinstance(value, bool):
        inner[path[-1]] = not value
    elif isinstance(value, int):
        inner[path[-1]] = value + (1 if how else -1)
    else:
        try:
            number = Fraction(value)
            inner[path[-1]] = str(number * (1 + Fraction(1, 10**9)) if how and number else number + 1)
        except ValueError:
            inner[path[-1]] = f"{value}*tp" if how else f"{value} "
    return copy


def still_true(said: Made, folder: Path) -> None:
    """What was accepted is what a search for it finds."""
    again = search(question_of(said["question"], resolve_model("gpt2", **said["model"]["options"])), folder)
    assert {n: int(v) for n, v in again.best.sizes.items()} == said["winner"]["sizes"]
    assert (str(again.best.need), str(again.best.estimate), str(again.least_bound)) == (
        said["winner"]["need"], said["winner"]["estimate"], said["least_bound"])
    assert (again.counts.layouts, again.counts.fit) == (said["counts"]["layouts"], said["counts"]["fit"])


def tampered(small: Made, folder: Path, pick: int, how: int) -> None:
    places = [p for p in leaves(small) if p]
    path = places[pick % len(places)]
    said = changed(small, path, how)
    assert checked(said, folder, seal=False).wrong["file"].startswith("was edited")
    if not checked(said, folder).wrong and not checked(said, folder, regenerate=True).wrong:
        assert path[0] in ("question", "model"), path
        still_true(said, folder)


@given(st.integers(0, 10**6), st.integers(0, 2))
@settings(max_examples=2)
def test_a_change_in_any_field_is_found_or_leaves_it_true(small: Made, folder: Path, pick: int, how: int) -> None:
    tampered(small, folder, pick, how)


@pytest.mark.slow
@given(st.integers(0, 10**6), st.integers(0, 2))
@settings(max_examples=4 * int(os.environ.get("PLACEALG_RANDOM_RUNS", "100")))
def test_many_changes_are_found(small: Made, folder: Path, pick: int, how: int) -> None:
    tampered(small, folder, pick, how)


def test_each_kind_of_change_is_told(small: Made, folder: Path) -> None:
    def wrong(change: Callable[[Made], Any]) -> str:
        said = deepcopy(small)
        change(said)
        return "; ".join(f"{k} {v}" for k, v in checked(said, folder).wrong.items())

    other = next(e for e in small["strategies"] if e != small["winner"]["strategy"])
    assert "has it" in wrong(lambda said: said["strategies"].pop(other))
    assert "no strategy of the space" in wrong(lambda said: said["strategies"].update({"zero3": {}}))
    assert "winner sizes" in wrong(lambda said: said["winner"]["sizes"].update(b=2))
    assert "winner strategy" in wrong(lambda said: said["winner"].update(strategy=other))
    assert "least_bound" in wrong(lambda said: said.update(least_bound="1/1000"))
    assert "claim" in wrong(lambda said: said.update(claim="nothing at all"))
    assert "by formula" in wrong(lambda said: said["question"]["parameters"].update(efficiency="1/2"))
    assert "winner verdict" in wrong(lambda said: said["winner"].update(verdict="REFUTED"))
    assert "sums of one stage twice" in wrong(lambda said: said["strategies"][other]["stages"].append(
        said["strategies"][other]["stages"][0]))
    coefficient = small["strategies"][small["winner"]["strategy"]]["stages"][0]["estimate"][0][0]
    assert wrong(lambda said: said["strategies"][said["winner"]["strategy"]]["stages"][0]["estimate"][0].__setitem__(
        0, [str(Fraction(coefficient[0]) * 2), coefficient[1]]))


@pytest.mark.slow
def test_one_coefficient_of_another_strategy_is_found_by_derivation(small: Made, folder: Path) -> None:
    said = deepcopy(small)
    other = next(e for e in small["strategies"] if e != small["winner"]["strategy"])
    term = said["strategies"][other]["stages"][0]["peak"][0][0]
    term[0] = str(Fraction(term[0]) * (1 - Fraction(1, 10**9)))
    assert not checked(said, folder).wrong
    found = checked(said, folder, regenerate=True)
    assert list(found.wrong) == [f"strategies {other} every device"] and not found.regenerated


def test_a_sum_is_read_and_evaluated_in_whole_numbers() -> None:
    import numpy as np

    read = Sum.read([["1/3", {"h": 1, "dp": -2}], ["2", {"Min(m, pp - i)": 1}]])
    top, below = read.value({"h": np.array([5], dtype=object), "dp": np.array([2], dtype=object),
                             "Min(m, pp - i)": np.array([3], dtype=object)}, 1)
    assert Fraction(int(top[0]), int(below[0])) == Fraction(5, 12) + 6


def test_a_stage_without_sums_is_said(small: Made) -> None:
    with pytest.raises(InputError, match="without sums"):
        replayed("zero1", [], resolve_model("gpt2"), Asked.read(small["question"]))


def test_the_command(placealg: Callable[..., Outcome], tmp_path: Path) -> None:
    file = tmp_path / "best.json"
    words = ("search", "gpt2", "--batch", "16", "--set", "s=1024", "--no-cache", "--only", "zero1", "--devices", "8",
             "--machine", "h100", "--certificate", str(file))
    told = placealg(*words)
    assert told.code == 0 and is_certificate(str(file)) and "SHA-256 " in told.err, told.err
    seal = told.err.split("SHA-256 ")[1].split()[0]
    told = placealg("recheck", str(file), "--sha256", seal)
    assert told.code == 0 and "--regenerate alone tells" in " ".join(told.out.split("\n\n")[0].split())
    assert placealg("recheck", str(file), "--sha256", "0" * 64).code == 1
    file.write_text(file.read_text().replace("zero1", "zero2"))
    told = placealg("recheck", str(file))
    assert told.code == 1 and "was edited" in told.out
    file.write_text('{"placealg_search":7}')
    told = placealg("recheck", str(file))
    assert (told.code, told.out) == (2, "") and "is of format 7" in told.err
    told = placealg(*words[:-1], str(tmp_path / "none" / "best.json"))
    assert told.code == 2 and "its parent is no folder" in told.err
