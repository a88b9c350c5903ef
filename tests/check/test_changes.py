"""Changes that make a case fit: each is typed back, and the formulas of `fit` say the same bytes and that it fits."""

from __future__ import annotations

from fractions import Fraction
from math import prod
from random import Random

import pytest

from placealg.cases.case import read_case
from placealg.check.changes import Limits, changes
from placealg.cli.fit import settled
from placealg.cost.compute import value_of
from placealg.cost.machines import machine
from placealg.cost.sizing import number_of, stages
from placealg.cost.times import PARAMETERS, Written
from placealg.render.fit import Sized

BRIEF, SLOW = 1, 30
CASES = (("zero1", ("dp",)), ("zero1*tp", ("dp", "tp")), ("zero3*tp_sp", ("dp", "tp")),
         ("hsdp", ("dp_replicate", "dp_shard")), ("zero2*cp_ring*tp", ("dp", "cp", "tp")),
         ("zero1*tp*pp", ("dp", "tp", "pp")), ("dp*recompute_selective", ("dp",)))


def drawn(seed: int) -> tuple[str, dict[str, int], Sized]:
    """A strategy, the sizes that are given, and what `fit` says of it against somewhat less than it needs."""
    draw = Random(seed)
    text, axes = draw.choice(CASES)
    sizes = {axis: draw.choice((1, 2, 4) if axis != "pp" else (2, 3)) for axis in axes}
    given = {"b": draw.choice((1, 2, 4)), "s": draw.choice((512, 1024))}
    need = fitted(text, {**sizes, **given}, Fraction(10**15)).stages[0].value
    limit = Fraction(int(need * draw.choice((55, 75, 90, 98)) / 100))
    return text, given, fitted(text, {**sizes, **given}, limit)


def fitted(text: str, sizes: dict[str, int], limit: Fraction) -> Sized:
    """What `fit` says of a strategy on gpt2 at sizes."""
    return settled(read_case(text, "gpt2", [f"{n}={v}" for n, v in sizes.items()]), limit)


def typed(text: str, words: tuple[str, ...], sized: Sized, given: dict[str, int]) -> tuple[Fraction, int]:
    """The bytes by the formulas, and the devices, where a person types the words of a change."""
    sizes, loss = {a: int(sized.sizes[a]) for a in sized.axes}, ""
    for word in words:
        _, found, layout = word.rpartition("--set ")
        if found:
            sizes = {n: int(v) for n, _, v in (part.partition("=") for part in layout.split())}
        elif word.startswith("--loss "):
            loss = word.removeprefix("--loss ")
        elif " for " in word:
            further, _, factor = word.partition(" for ")
            text = "*".join(further if f == factor else f for f in text.split("*"))
        else:
            text += word
    step = read_case(text, "gpt2", (), **({"loss": loss} if loss else {})).step
    at = {n: Fraction(v) for n, v in {**sizes, **given, "m": 1}.items()}
    return max(number_of(stage.held.peak, at) for stage in stages(step, at)), prod(sizes.values())


@pytest.mark.parametrize("seed", [*range(BRIEF), *(pytest.param(s, marks=pytest.mark.slow)
                                                   for s in range(BRIEF, BRIEF + SLOW))])
def test_what_is_told_fits_with_these_bytes_where_it_is_typed(seed: int) -> None:
    text, given, sized = drawn(seed)
    assert not sized.fits and sized.changes is not None
    for change in sized.changes:
        assert typed(text, change.words, sized, given) == (change.need, change.devices), (text, change)
        assert change.need <= sized.stages[0].memory
    prices = [c.price for c in sized.changes if c.price is not None]
    assert prices == sorted(prices) and len(prices) == len(sized.changes)


def test_a_single_change_is_told_if_and_only_if_it_fits() -> None:
    given = {"b": 8, "s": 1024}
    sized = fitted("zero1*tp", {"dp": 2, "tp": 2, **given}, Fraction(55 * 10**8))
    told = [" and ".join(c.words) for c in sized.changes or ()]
    singles = ("--loss chunked", "--loss fused", "*recompute_full", "*recompute_selective", "*offload_optimizer",
               "zero3 for zero1", "zero2 for zero1", "--set dp=1 tp=4", "--set dp=4 tp=1")
    fits = {w for w in singles if typed("zero1*tp", (w,), sized, given)[0] <= sized.stages[0].memory}
    assert fits == set(told) & set(singles) and fits and fits < set(singles), (told, fits)


@pytest.mark.slow
def test_two_at_once_only_where_no_single_one_does() -> None:
    given = {"b": 64, "s": 1024}
    sized = fitted("dp", {"dp": 8, **given}, Fraction(20 * 10**9))
    assert sized.changes and {len(c.words) for c in sized.changes} == {2}
    assert not [c for c in sized.changes for word in c.words
                if typed("dp", (word,), sized, given)[0] <= sized.stages[0].memory]


def test_where_nothing_does_that_is_told_and_where_it_fits_nothing_is_tried() -> None:
    assert fitted("zero3*recompute_full", {"dp": 2, "b": 1, "s": 1024}, Fraction(10**6)).changes == ()
    assert fitted("zero1", {"dp": 2, "b": 1, "s": 1024}, Fraction(10**12)).changes is None


def test_a_price_is_the_device_time_of_a_sequence_by_the_formula_of_the_estimate() -> None:
    sizes = {"dp": Fraction(2), "tp": Fraction(2), "b": Fraction(4), "s": Fraction(1024), "m": Fraction(1)}
    cases = [read_case(text, "gpt2", ()) for text in ("zero1*tp", "zero1*tp*recompute_full")]
    given = {n: sizes[n] for n in ("b", "s")}
    found = changes(cases[0].strategy, cases[0].model, cases[0].step, sizes, given,
                    Limits(Fraction(30 * 10**8), machine("h100")))
    (price,) = (c.price for c in found if c.words == ("*recompute_full",))
    rates = {**PARAMETERS, **machine("h100").values, "dp_in_node": Fraction(2), "tp_in_node": Fraction(2)}
    first, second = (value_of(Written(c.step)["time.estimate"], {**rates, **sizes}) for c in cases)
    assert price and first and second and abs(float(price) - float(second) / float(first)) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_file_that_says_its_mesh_has_other_splits_too(seed: int) -> None:
    """The changes are those of the same sizes given beside; a split of the devices is then one of [mesh]."""
    draw = Random(seed)
    dp, tp = draw.choice((2, 4)), draw.choice((2, 4))
    sizes = {"b": 1, "s": 512}
    beside = fitted("zero1*tp", {"dp": dp, "tp": tp, **sizes}, Fraction(10**15))
    limit = Fraction(int(beside.stages[0].value * draw.choice((60, 80, 95)) / 100))
    one, two = (fitted(text, {**given, **sizes}, limit) for text, given in (
        ("zero1*tp", {"dp": dp, "tp": tp}), (f"zero1[{dp}]*tp[{tp}]", {})))
    assert one.changes and two.changes
    splits = {(tuple(w.replace("[mesh]", "--set") for w in c.words), c.need, c.devices) for c in two.changes
              if "[mesh]" in " ".join(c.words)}
    assert splits == {(c.words, c.need, c.devices) for c in one.changes if "--set" in " ".join(c.words)}
