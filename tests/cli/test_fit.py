"""What fits in a device's memory: hand-checked numbers, and every answer held against all sizes around it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from fractions import Fraction
from math import prod
from pathlib import Path

import pytest
from conftest import Outcome
from hypothesis import given, settings
from hypothesis import strategies as st

import placealg as pa
from placealg.cli.quantities import BANDWIDTHS, BYTES, RATES, amount, bandwidths
from placealg.cost.compute import compute, value_of
from placealg.cost.curve import curve
from placealg.cost.formula import Formula
from placealg.cost.layouts import factorizations, layouts, with_batch
from placealg.cost.machines import machine
from placealg.cost.memory import memory
from placealg.cost.peak_parts import MOMENT, attained, moment
from placealg.cost.sizing import Fit, Margin, degree, dividing, fit, stages
from placealg.cost.stage import on_stage
from placealg.errors import InputError
from placealg.models.config import resolve_model
from placealg.models.model import Model
from placealg.step.compatibility import check_sizes
from placealg.step.derive import derive
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import Strategy

Run = Callable[..., Outcome]


def case(text: str, model: str) -> tuple[Step, Strategy, Model]:
    strategy, chosen = parse_strategy(text), resolve_model(model)
    return derive(strategy, chosen), strategy, chosen


def exact(**sizes: int) -> dict[str, Fraction]:
    return {n: Fraction(v) for n, v in sizes.items()}


def one(text: str, model: str, limit: int, kind: str = "peak", **sizes: int) -> Fit:
    (found,) = fit(*case(text, model), Fraction(limit), exact(**sizes), kind)
    return found


# ------------------------------------------------------------------------------------------------------------- by hand

def test_zero3_by_hand() -> None:
    """16 bytes for each of 100 parameters over 4 devices, and a unit of 10 gathered with its gradient: 400 + 40."""
    found = one("zero3", "abstract", 440, Psi=100, Psi_unit=10, dp=4)
    assert (found.value, found.fits, found.left) == (440, True, 0)
    assert [(t.name, t.value) for t in found.terms] == [("parameters", 50), ("optimizer", 300), ("gradients", 50),
                                                        (MOMENT, 40)]
    assert found.largest.name == "optimizer"
    assert found.microbatch is None
    tight = one("zero3", "abstract", 239, Psi=100, Psi_unit=10, dp=4)
    assert not tight.fits
    (dp,) = tight.degrees
    assert (dp.smallest, dp.power, dp.left, dp.tried) == (9, 16, 40, ())     # 1600/9 + 40 = 217.8, 1600/8 + 40 = 240
    assert one("zero3", "abstract", 40, Psi=100, Psi_unit=10, dp=4).degrees[0].smallest is None


def test_an_axis_that_takes_nothing_away() -> None:
    found = one("dp", "abstract", 100, Psi=100, dp=4)
    assert found.degrees[0].smallest is None
    assert found.degrees[0].left == 1600


def test_microbatches_by_hand() -> None:
    """A plain MLP, of which each sequence keeps a known number of bytes."""
    step, _, _ = case("dp", "mlp")
    sizes = exact(h=4, f=8, L=2, V=10, dp=2, b=1)
    held = memory(step)
    rest, each = (held.peak.value(**{n: v for n, v in {**sizes, "b": b}.items() if n in held.peak.inputs})
                  for b in (1, 2))
    assert rest is not None
    assert each is not None
    slope = each - rest
    for many in (1, 2, 7):
        limit = rest + (many - 1) * slope
        assert one("dp", "mlp", int(limit), h=4, f=8, L=2, V=10, dp=2, b=1).microbatch == many
        assert one("dp", "mlp", int(limit) - 1, h=4, f=8, L=2, V=10, dp=2, b=1).microbatch == many - 1


def test_total_and_peak_are_two_conventions() -> None:
    sizes = {"dp": 8, "tp": 8, "b": 1, "s": 8192}
    peak, total = (one("zero3*tp_sp", "llama-3-70b", 10**12, kind, **sizes) for kind in ("peak", "total"))
    assert (peak.formula, total.formula) == (peak.held.peak, peak.held.total)
    for found in (peak, total):
        assert sum(t.value for t in found.terms) == found.value
    with pytest.raises(InputError, match="unknown convention 'peek'; did you mean 'peak'"):
        one("dp", "abstract", 1, "peek", Psi=1, dp=1)


# ------------------------------------------------------------------------------------------------------ held to account

CASES = {"zero3*tp_sp": ("gpt", {"h": 16, "a": 4, "L": 3, "V": 50, "s": 8, "dp": 2, "tp": 2}),
         "zero3": ("abstract", {"Psi": 1000, "Psi_unit": 100, "dp": 2}),
         "zero2*ep": ("moe", {"h": 16, "a": 4, "kv": 2, "f": 12, "L": 3, "V": 50, "s": 8, "experts": 12, "topk": 2,
                              "dp": 2, "ep": 3}),
         "tp": ("gpt", {"h": 48, "a": 12, "L": 2, "V": 30, "s": 12, "tp": 3})}
MADE = {text: case(text, model) for text, (model, _) in CASES.items()}
HELD = {text: stages(step)[0].held.peak for text, (step, _, _) in MADE.items()}


def held_at(formula: Formula, sizes: Mapping[str, Fraction]) -> Fraction:
    value = value_of(formula, sizes)
    assert value is not None
    return Fraction(value)


@pytest.mark.some(2)
@pytest.mark.parametrize("text", CASES)
@given(limit=st.integers(100, 2_000_000))
@settings(max_examples=6, deadline=None)
def test_the_largest_microbatch_fits_and_the_next_does_not(text: str, limit: int) -> None:
    formula = HELD[text]
    best = curve(formula, "b", exact(**CASES[text][1])).largest(Fraction(limit))
    if best is None:
        assert "b" not in formula.inputs
        return
    if best:
        assert held_at(formula, exact(**CASES[text][1], b=best)) <= limit
    assert held_at(formula, exact(**CASES[text][1], b=best + 1)) > limit


@pytest.mark.some(2)
@pytest.mark.parametrize("text", CASES)
def test_the_smallest_degree_is_that_of_all_sizes_tried(text: str) -> None:
    _, strategy, model = MADE[text]
    sizes, formula = exact(**CASES[text][1], b=1), HELD[text]
    for axis in strategy.mesh.names:
        values = {n: held_at(formula, {**sizes, axis: Fraction(n)}) for n in range(1, 30)
                  if _divides(strategy, model, {**sizes, axis: Fraction(n)})}
        for limit in (*sorted(values.values())[:4], max(values.values()) - 1, min(values.values()) - 1):
            at = degree(formula, axis, strategy, model, limit, sizes)
            fitting = [n for n, value in values.items() if value <= limit]
            powers = [n for n in fitting if n & (n - 1) == 0]
            assert at.smallest == fitting[0] if fitting else at.smallest is None or at.smallest >= 30
            assert at.power == powers[0] if powers else at.power is None or at.power >= 30
            if at.left is not None and at.smallest is None:
                assert at.tried or at.left >= limit


def _divides(strategy: Strategy, model: Model, sizes: Mapping[str, Fraction]) -> bool:
    try:
        check_sizes(strategy, model, sizes)
    except InputError:
        return False
    return True


@pytest.mark.parametrize(("text", "axis"), [("zero3*tp_sp", "tp"), ("zero3*tp_sp", "dp"), ("zero2*ep", "ep"),
                                            ("tp", "tp")])
def test_sizes_that_divide_are_those_of_the_strategy_s_check(text: str, axis: str) -> None:
    _, strategy, model = MADE[text]
    sizes = exact(**CASES[text][1])
    listed = dividing(axis, strategy, model, sizes)
    every = [n for n in range(1, 60) if _divides(strategy, model, {**sizes, axis: Fraction(n)})]
    assert list(listed or range(1, 60)) == every


@pytest.mark.parametrize(("devices", "limit"), [(12, 60_000), (8, 100_000), (6, 1000)])
def test_layouts_are_all_that_fit(devices: int, limit: int) -> None:
    step, strategy, model = MADE["zero2*ep"]
    sizes = exact(**{n: v for n, v in CASES["zero2*ep"][1].items() if n not in ("dp", "ep")}, b=1)
    found = layouts(step, strategy, model, devices, sizes, Fraction(limit))
    formula = stages(step)[0].held.peak
    want = {n for n in range(1, devices + 1) if devices % n == 0 and _divides(strategy, model, {
        **sizes, "dp": Fraction(devices // n), "ep": Fraction(n)}) and held_at(formula, {
            **sizes, "dp": Fraction(devices // n), "ep": Fraction(n)}) <= limit}
    assert {o.axes["ep"] for o in found} == want
    assert all(prod(o.axes.values()) == devices for o in found)
    assert list(found) == sorted(found, key=lambda o: (-(o.per_byte or 0), o.value))
    for o in found:
        at = {**sizes, **exact(**o.axes)}
        assert o.value == held_at(formula, at)
        assert o.microbatch is not None
        assert held_at(formula, {**at, "b": Fraction(o.microbatch + 1)}) > limit


def test_factorizations() -> None:
    for devices, axes in ((12, ("a", "b")), (8, ("a", "b", "c")), (7, ("a",))):
        every = list(factorizations(devices, axes))
        assert all(prod(f.values()) == devices for f in every)
        assert len({tuple(f.items()) for f in every}) == len(every)
    assert len(list(factorizations(8, "abc"))) == 10
    assert list(factorizations(1, ())) == [{}]
    assert list(factorizations(2, ())) == []
    with pytest.raises(InputError, match="too many layouts"):
        list(factorizations(2**12, "abcdef"))


@given(st.integers(1, 40), st.integers(1, 40))
def test_a_curve_is_its_formula(n: int, other: int) -> None:
    formula = Formula.parse("Psi/dp + b*Max(s*b, 6, Max(3*b, s)/dp) + dp", "bytes")
    sizes = exact(Psi=other, b=2, s=3)
    assert curve(formula, "dp", sizes)(n) == formula.value(Psi=other, b=2, s=3, dp=n)
    assert curve(formula, "b", {**sizes, "dp": Fraction(n)})(other) == formula.value(Psi=other, b=other, s=3, dp=n)


@pytest.mark.parametrize(("text", "name", "limit", "largest", "smallest"), [
    ("Psi + 3*b", "b", 20, 3, 1), ("Psi + b**2 + b", "b", 30, 4, 1), ("Psi + Max(3*b, b**2)", "b", 35, 5, 1),
    ("Psi", "b", 9, 0, None), ("Psi", "b", 10, None, 1), ("Psi + 3*b", "b", 10, 0, None),
    ("Max(2*b, Psi - b)", "b", 8, 4, 2), ("Min(b, Psi)", "b", 9, "no maximum", 1),
    ("ceiling(Psi/b)", "b", 3, "no maximum", 4), ("Psi - b", "b", 5, "falls with b", 5),
    ("Psi/b + b", "b", 7, "no maximum", 2), ("2*Psi - Max(b, 6)", "b", 12, "no maximum", 8),
])
def test_curves(text: str, name: str, limit: int, largest: int | str | None, smallest: int | None) -> None:
    found = curve(Formula.parse(text, "bytes"), name, exact(Psi=10))
    assert found.smallest(Fraction(limit), ()) == smallest
    if isinstance(largest, str):
        with pytest.raises(InputError, match=largest):
            found.largest(Fraction(limit))
    else:
        assert found.largest(Fraction(limit)) == largest


def test_what_no_size_takes_away() -> None:
    at = exact(Psi=10)
    assert curve(Formula.parse("Max(Psi/dp + 5, 2*Psi/dp + 3)", "bytes"), "dp", at).floor == 5
    assert curve(Formula.parse("Psi/dp + dp", "bytes"), "dp", at).floor is None
    assert curve(Formula.parse("Max(Psi - dp, 3)", "bytes"), "dp", at).floor is None


def test_the_largest_argument_stands_for_a_maximum() -> None:
    formula = Formula.parse("h + Max(2*b, s)", "bytes")
    assert attained(formula, exact(b=3, s=7, h=1)).text() == "s + h"
    assert attained(formula, exact(b=4, s=7, h=1)).text() == "2·b + h"


@pytest.mark.some(2)
@pytest.mark.parametrize("text", CASES)
def test_terms_sum_to_what_is_held(text: str) -> None:
    held = stages(MADE[text][0])[0].held
    sizes = exact(**CASES[text][1], b=2)
    for kind, formula in (("peak", held.peak), ("total", held.total)):
        assert sum(held_at(f, sizes) for _, f in moment(held, kind, sizes)) == held_at(formula, sizes)


def test_one_stage_without_a_pipeline() -> None:
    assert [s.name for s in stages(MADE["tp"][0])] == ["every device"]


PIPED = {"zero1*tp_sp*pp": {"h": 16, "a": 4, "L": 12, "V": 50, "s": 8, "dp": 2, "tp": 2, "m": 6, "b": 1},
         "zero2*pp_interleaved": {"h": 16, "a": 4, "L": 12, "V": 50, "s": 8, "dp": 2, "m": 12, "v": 2, "b": 1}}


@pytest.mark.parametrize("text", PIPED)
@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_no_stage_holds_more_than_those_that_are_told(text: str, ranks: int) -> None:
    """Against every single stage at its numbers; a formula of any number of stages gives the same."""
    step, strategy, model = case(text, "gpt")
    sizes = exact(**PIPED[text], pp=ranks)
    told = fit(step, strategy, model, Fraction(10**9), sizes)
    assert [f.value for f in told] == sorted((f.value for f in told), reverse=True)
    every = {k: held_at(memory(on_stage(step, k, sizes)).peak, sizes) for k in range(ranks)}
    assert told[0].value == max(every.values())
    assert all(f.value == every[int(f.stage.split()[1])] for f in told)
    for stage, at in zip(stages(step), ("first", "last"), strict=True):
        assert stage.of_any
        assert held_at(stage.held.peak, sizes) == every[0 if at == "first" else ranks - 1]


def test_the_smallest_number_of_stages_is_that_of_all_tried() -> None:
    text = "zero1*tp_sp*pp"
    step, strategy, model = case(text, "gpt")
    sizes = exact(**PIPED[text])
    assert dividing("pp", strategy, model, sizes) == (2, 3, 4, 6, 12)
    values = {n: {k: held_at(memory(on_stage(step, k, {**sizes, "pp": Fraction(n)})).peak, {**sizes, "pp": Fraction(n)})
                  for k in (0, n - 1)} for n in (2, 3, 4, 6, 12)}
    for limit in (values[4][0], values[4][0] - 1, values[12][0] - 1):
        for found in fit(step, strategy, model, limit, {**sizes, "pp": Fraction(3)}):
            (at,) = (d for d in found.degrees if d.axis == "pp")
            first = found.stage.startswith("stage 0")
            fitting = [n for n, held in values.items() if held[0 if first else n - 1] <= limit]
            assert at.smallest == next(iter(fitting), None)


def test_uneven_stages_stand_in_numbers() -> None:
    """126 layers over 16 stages: the first of those that run 8 leads, and no size of pp is offered."""
    step, strategy, model = case("zero1*tp_sp*pp*cp_ring", "llama-3.1-405b")
    sizes = exact(dp=8, tp=8, pp=16, cp=16, b=1, m=16, s=131072)
    found = fit(step, strategy, model, Fraction(80 * 10**9), sizes)
    assert found[0].stage == "stage 1 of pp = 16"
    assert all("pp" not in {d.axis for d in f.degrees} for f in found)
    assert not {"L", "pp"} & set(found[0].held.parameters.names)


def test_stages_are_laid_out(placealg: Run) -> None:
    words = ("fit", "zero1*tp_sp*pp", "--model", "llama-3-8b", "--device-memory", "80GB", "--devices", "16", "--set",
             "s=4096", "m=8", "tp=2", "--format", "json")
    found = json.loads(placealg(*words).out)
    assert {layout["axes"]["pp"] for layout in found["layouts"]} <= {2, 4, 8}
    assert found["layouts"]
    assert [stage["stage"].split()[0] for stage in found["stages"]] == ["stage", "stage"]


def test_an_axis_of_one_device_sends_nothing(placealg: Run) -> None:
    got = placealg("fit", "zero3*tp_sp", "--model", "llama-3-8b", "--device-memory", "800GB", "--set", "dp=1", "tp=2",
                   "s=128", "--format", "json")
    (dp, _) = json.loads(got.out)["compute"]["traffic"]
    assert (dp["axes"], dp["sent"]["value"], dp["flop_per_byte"]["value"]) == ("dp", 0, None)


def test_a_size_that_is_missing_is_named() -> None:
    with pytest.raises(InputError, match="what is held depends on b, s:"):
        one("zero3", "gpt2", 1, dp=8)
    with pytest.raises(InputError, match="depends on V:"):
        degree(MADE["tp"][0] and stages(MADE["tp"][0])[0].held.peak, "tp", *MADE["tp"][1:], Fraction(1),
               exact(h=1, a=1, L=1, s=1, b=1))


def test_stages_that_do_not_divide_are_laid_out() -> None:
    """Seven layers on eight devices: every number of stages up to seven, each against its own fullest stage."""
    step, strategy, model = case("zero1*pp", "gpt")
    sizes = exact(h=16, a=4, L=7, V=50, s=8, b=1)
    found = layouts(step, strategy, model, 8, sizes, Fraction(10**9), batch=16)
    assert {o.axes["pp"]: o.even for o in found} == {2: False, 4: False}
    for o in found:
        at = {**sizes, **exact(**o.axes, m=o.microbatches)}
        every = (held_at(memory(on_stage(step, k, at)).peak, at) for k in range(o.axes["pp"]))
        assert (o.value, o.sequences, o.microbatches) == (max(every), 16, 16 // o.axes["dp"])
    assert not layouts(step, strategy, model, 16, {**sizes, "dp": Fraction(1)}, Fraction(10**9))


def test_a_batch_gives_every_layout_the_same_work() -> None:
    step, strategy, model = case("zero3*tp", "gpt")
    sizes = exact(h=16, a=4, L=3, V=48, s=8)
    found = layouts(step, strategy, model, 4, {**sizes, "b": Fraction(2)}, Fraction(10**9), batch=8)
    assert {tuple(o.axes.values()): o.microbatches for o in found} == {(4, 1): 1, (2, 2): 2, (1, 4): 4}
    assert [o.sent for o in found] == sorted(o.sent for o in found)
    assert with_batch(strategy, exact(dp=4, m=2), 16) == exact(dp=4, m=2, b=2)
    assert with_batch(strategy, exact(dp=4, m=2, b=1), 16) is None
    assert with_batch(strategy, exact(dp=3), 16) is None


def test_a_margin_by_hand() -> None:
    """400 bytes of states and 40 beyond: 400 + 40·3/2 + 7."""
    held = case("zero3", "abstract")
    sizes = exact(Psi=100, Psi_unit=10, dp=4)
    (found,) = fit(*held, Fraction(467), sizes, margin=Margin(Fraction(7), Fraction(3, 2)))
    assert (found.value, found.counted, found.states, found.fits) == (467, 440, 400, True)
    assert sum(t.value for t in found.terms) == 467
    assert {t.name: t.value for t in found.terms}["reserve"] == 7
    assert not fit(*held, Fraction(466), sizes, margin=Margin(Fraction(7), Fraction(3, 2)))[0].fits
    reserve, factor = Margin().to_hold(Fraction(460), found.counted, found.states)
    for margin in (Margin(reserve), Margin(factor=factor or Fraction(0))):
        assert fit(*held, Fraction(500), sizes, margin=margin)[0].value == 460


@pytest.mark.parametrize(("words", "says"), [
    ((), "what frameworks hold besides must fit in the other 60 B"),
    (("--reserve", "20B"), "20 B are set aside (--reserve 20B)"),
    (("--activation-factor", "1.5"), "20 B are set aside (--activation-factor 1.5)"),
    (("--measured", "484B"), "484 B are 1.100 of what is counted; --reserve 44B, or --activation-factor 2.100"),
    (("--measured", "44B"), "44 B are 0.100 of what is counted: at other sizes, or of another placement"),
])
def test_what_fits_is_said_to_need_that_at_least(words: tuple[str, ...], says: str, placealg: Run) -> None:
    got = placealg("fit", "zero3", "--device-memory", "500B", "--set", "Psi=100", "Psi_unit=10", "dp=4", *words)
    assert got.code == 0
    text = " ".join(got.out.split())
    assert says in text
    assert "needs at least 440 of 500 B, and activations, which are not counted" in text


# -------------------------------------------------------------------------------------------------------------- compute

def test_bandwidth_that_hides_traffic_by_hand() -> None:
    """Traffic takes as long as the arithmetic at the bandwidth needed, and longer at half of it."""
    step = MADE["zero3*tp_sp"][0]
    work, sizes = compute(step), exact(**CASES["zero3*tp_sp"][1], b=1)
    assert [t.axes for t in work.traffic] == ["dp", "tp"]
    flop = held_at(work.flop, sizes)
    for traffic in work.traffic:
        sent = held_at(traffic.bytes, sizes)
        assert held_at(traffic.intensity, sizes) == flop / sent
        needed = traffic.needed(Fraction(1000), sizes)
        assert needed == sent / (flop / 1000)
        even = work.bound(Fraction(1000), {traffic.axes: needed}, sizes)
        assert even == {"compute": flop / 1000, traffic.axes: flop / 1000}
        slow = work.bound(Fraction(1000), {traffic.axes: needed / 2}, sizes)
        assert max(slow.values()) == 2 * flop / 1000
    assert work.bound(None, {}, sizes) == {}
    with pytest.raises(InputError, match="nothing is sent over 'pp'"):
        work.bound(None, {"pp": Fraction(1)}, sizes)


def test_no_flop_no_intensity() -> None:
    work = compute(MADE["zero3"][0])
    assert work.flop.expr is None
    assert work.traffic[0].intensity.expr is None
    assert work.traffic[0].needed(Fraction(1), exact(Psi=1, dp=2)) is None


# --------------------------------------------------------------------------------------------------------- command line

@pytest.mark.parametrize(("text", "units", "want"), [
    ("80GB", BYTES, 80 * 10**9), ("80 GiB", BYTES, 80 * 2**30), ("512MB", BYTES, 512 * 10**6), ("1.5kB", BYTES, 1500),
    ("50GB/s", BANDWIDTHS, 50 * 10**9), ("400TFLOPS", RATES, 400 * 10**12), ("1.25PFLOPS", RATES, 1250 * 10**12),
])
def test_amounts(text: str, units: Mapping[str, int], want: int) -> None:
    assert amount(text, units, "") == want


@pytest.mark.parametrize(("text", "says"), [
    ("80", "'80' has no unit, such as 80GB"), ("80gb", "unknown unit 'gb'; did you mean 'GB'"), ("0GB", "not positive"),
    ("9" * 5000 + "GB", "is not a number"),
    ("-1GB", "is not a number with a unit"), ("GB", "is not a number"), ("1e3GB", "unknown unit 'e3GB'"),
])
def test_bad_amounts(text: str, says: str) -> None:
    with pytest.raises(InputError) as error:
        amount(text, BYTES, "--device-memory")
    assert says in str(error.value)
    assert str(error.value).startswith("--device-memory: ")


def test_bandwidths() -> None:
    assert bandwidths(["dp=1GB/s", "dp,ep=2GB/s"]) == {"dp": 10**9, "dp,ep": 2 * 10**9}
    for words, says in ((["dp"], "is not AXES=BANDWIDTH"), (["dp=1GB/s", "dp=2GB/s"], "two bandwidths"),
                        (["dp=1GB"], "unknown unit 'GB'")):
        with pytest.raises(InputError, match=says):
            bandwidths(words)


ABSTRACT = ("fit", "zero3", "--set", "Psi=100", "Psi_unit=10")


@pytest.mark.parametrize(("memory", "code"), [("440B", 0), ("439B", 1)])
def test_the_exit_code_says_whether_it_fits(memory: str, code: int, placealg: Run) -> None:
    got = placealg(*ABSTRACT, "dp=4", "--device-memory", memory)
    assert (got.code, got.err) == (code, "")
    assert ("DOES NOT FIT" in got.out) == bool(code)


def test_an_axis_without_a_size_is_solved_for(placealg: Run) -> None:
    got = json.loads(placealg(*ABSTRACT, "--device-memory", "239B", "--format", "json").out)
    assert (got["sizes"]["dp"], got["fits"]) == (9, True)
    none = json.loads(placealg(*ABSTRACT, "--device-memory", "39B", "--format", "json").out)
    assert (none["fits"], none["stages"][0]["smallest"]["dp"]["degree"]) == (False, None)


def test_devices_are_laid_out(placealg: Run) -> None:
    words = ("fit", "hsdp", "--set", "Psi=100", "Psi_unit=10", "--devices", "8", "--format", "json")
    found = json.loads(placealg(*words, "--device-memory", "440B").out)
    assert [o["axes"] for o in found["layouts"]] == [{"dp_replicate": 2, "dp_shard": 4},
                                                     {"dp_replicate": 1, "dp_shard": 8}]
    assert found["devices"] == 8
    assert found["sizes"]["dp_shard"] == 4
    full = placealg(*words, "--device-memory", "100B")
    assert full.code == 1
    assert json.loads(full.out)["layouts"] == []
    assert json.loads(full.out)["sizes"]["dp_shard"] == 8


def test_json_has_a_fixed_shape(placealg: Run) -> None:
    got = placealg("fit", "zero3*tp_sp", "--model", "llama-3-70b", "--device-memory", "80GB", "--set", "s=8192",
                   "dp=64", "tp=8", "--flops", "400TFLOPS", "--bandwidth", "dp=50GB/s", "tp=450GB/s",
                   "--format", "json")
    found = json.loads(got.out)
    assert list(found) == ["version", "strategy", "model", "fits", "meaning", "sequences", "sizes", "devices", "stages",
                           "layouts", "compute"]
    assert found["version"] == 2
    (stage,) = found["stages"]
    assert list(stage) == ["stage", "convention", "fits", "memory", "held", "left", "needs_at_least", "reserve",
                           "activation_factor", "terms", "in_the_way", "largest_b", "left_out", "certain_if",
                           "inequality", "smallest"]
    assert stage["inequality"].endswith(" <= 80000000000")
    assert abs(sum(t["share"] for t in stage["terms"]) - 1) < 1e-9
    bound = found["compute"]["lower_bound"]
    assert bound["seconds"] == max(bound["of"].values())
    assert set(bound["of"]) == {"compute"}
    assert set(found["compute"]["seconds_alone"]) == {"dp", "tp"}


def test_no_time_without_rates(placealg: Run) -> None:
    words = ("fit", "zero3", "--model", "gpt2", "--device-memory", "80GB", "--set", "s=1024", "dp=8")
    assert json.loads(placealg(*words, "--format", "json").out)["compute"]["lower_bound"] is None
    text = placealg(*words).out
    assert "a step takes at least" not in text
    assert "a step takes at least" in placealg(*words, "--flops", "1TFLOPS").out


def test_a_machine_bounds_every_part(placealg: Run) -> None:
    words = ("fit", "zero3*tp_sp", "--model", "llama-3-70b", "--device-memory", "80GB", "--set", "s=8192", "dp=64",
             "tp=8", "--machine")
    parts = json.loads(placealg(*words, "h100", "--format", "json").out)["compute"]["lower_bound"]["of"]
    assert set(parts) == {"compute", "card", "links", "memory"}
    one_node = placealg(*words[:-3], "dp=1", "tp=8", "--machine", "h100", "--format", "json")
    assert json.loads(one_node.out)["compute"]["lower_bound"]["of"]["card"] == 0
    own = json.loads(placealg(*words[:4], *words[6:], "h100", "--format", "json").out)
    assert own["stages"][0]["memory"] == int(machine("h100").memory or 0)
    wrong = placealg(*words, "h10")
    assert wrong.code == 2 and "--machine: no machine is called 'h10'" in wrong.err


@pytest.mark.parametrize(("words", "says"), [
    (["zero3"], "fit: says no memory of a device: --device-memory 80GB, or --machine h100"),
    (["zero3", "--device-memory", "80"], "--device-memory: '80' has no unit"),
    (["zero3", "--device-memory", "80GB"], "what is held depends on Psi, Psi_unit"),
    (["hsdp", "--device-memory", "80GB", "--set", "Psi=100", "Psi_unit=1"], "say how many --devices"),
    (["zero3[8]", "--device-memory", "80GB", "--reserve", "6"], "--reserve: '6' has no unit"),
    (["zero3[8]", "--device-memory", "80GB", "--activation-factor", "0.5"], "'0.5' is not a number of at least 1"),
    (["zero3[8]", "--device-memory", "80GB", "--batch", "0"], "--batch: '0' is not a whole number"),
    (["zero3[8]", "--device-memory", "80GB", "--loss", "eager"], "--loss: abstract has no cross entropy"),
    (["zero3[8]", "--device-memory", "80GB", "--loss", "eagr"], "did you mean 'eager'"),
    (["zero3[8]", "--model", "gpt2", "--device-memory", "80GB", "--batch", "12", "--set", "s=8"],
     "12 sequences are not a whole number of microbatches over dp = 8 with b = 1"),
    (["hsdp", "--device-memory", "80GB", "--devices", "x"], "--devices: 'x' is not a whole number"),
    (["hsdp", "--device-memory", "80GB", "--devices", "9999999"], "from 1 to 1048576"),
    (["zero3[8]", "--device-memory", "80GB", "--devices", "9"], "the mesh has 8 devices"),
    (["hsdp*tp[3]", "--model", "gpt", "--device-memory", "80GB", "--devices", "8", "--set", "h=12", "a=3", "L=1", "V=3",
      "s=3"], "8 devices are not a multiple of 3"),
    (["zero3[8]", "--model", "gpt2", "--device-memory", "80GB", "--set", "s=8", "--bandwidth", "tp=1GB/s"],
     "nothing is sent over 'tp'; did you mean 'dp'"),
    (["zero3[8]", "--model", "gpt2", "--device-memory", "80GB", "--set", "s=8", "--flops", "1TB"], "unknown unit 'TB'"),
    (["zero3", "--device-memory", "80GB", "--by", "peek"], "did you mean 'peak'"),
])
def test_bad_words_are_one_line(words: list[str], says: str, placealg: Run) -> None:
    got = placealg("fit", *words)
    assert (got.code, got.out, got.err.count("\n")) == (2, "", 1)
    assert says in got.err


@pytest.mark.parametrize("columns", ["80", "120"])
def test_nothing_is_wider_than_the_page(columns: str, placealg: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    out = placealg("fit", "zero3*tp_sp", "--model", "llama-3-70b", "--device-memory", "80GB", "--set", "s=8192",
                   "--devices", "256", "--flops", "400TFLOPS", "--bandwidth", "dp=50GB/s").out
    assert [text for text in out.splitlines() if len(text) > int(columns)] == []


@pytest.mark.parametrize(("strategy", "model", "under"), [
    ("zero3", "abstract", ["even_shares", "copies_apart", "gradients_rest"]),
    ("zero3*offload_parameters", "abstract", ["even_shares", "gradients_rest"]),
    ("tp", "gpt2", ["even_shares", "gradients_rest", "fresh_results", "saved_as_listed", "loss_as_run"]),
])
def test_it_says_under_what_less_does_not_do(placealg: Callable[..., Outcome], strategy: str, model: str,
                                             under: list[str]) -> None:
    sizes = ("--set", "Psi=1000000", "Psi_unit=1000", "dp=2") if model == "abstract" else ("--set", "tp=2", "s=128")
    got = placealg("fit", strategy, "--model", model, "--device-memory", "1MB", *sizes, "--format", "json")
    assert got.code == 1
    (stage,) = json.loads(got.out)["stages"]
    assert list(stage["certain_if"]) == under
    assert all(placealg("explain", name).code == 0 for name in under)


ACCELERATE = """\
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
mixed_precision: bf16
num_processes: 8
"""


@pytest.mark.parametrize(("words", "held"), [
    (["--set", "b=1", "s=256"], "g/dp"), (["--set", "b=1", "s=256", "m=1"], "g/dp"),
    (["--set", "b=2", "s=256", "--batch", "16"], "g/dp"), (["--set", "b=1", "s=256", "--batch", "16"], "g"),
    (["--set", "b=1", "s=256", "m=2"], "g"), (["--set", "b=1", "s=256", "--microbatches", "2"], "g")])
def test_gradients_rest_whole_only_where_a_step_accumulates(words: list[str], held: str, tmp_path: Path,
                                                            placealg: Callable[..., Outcome]) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(ACCELERATE)
    found = placealg("fit", str(path), "--model", "gpt2", "--device-memory", "80GB", "--format", "json", *words)
    terms = json.loads(found.out)["stages"][0]["terms"]
    assert next(t["expr"] for t in terms if t["name"] == "gradients") == f"Psi*{held}"


@pytest.mark.parametrize(("sizes", "held"), [({}, "g/dp"), ({"m": 1}, "g/dp"), ({"m": 2}, "g"), ({"batch": 16}, "g"),
                                             ({"batch": 8}, "g/dp")])
def test_in_python_gradients_rest_whole_only_where_a_step_accumulates(sizes: dict[str, int], held: str,
                                                                      tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(ACCELERATE)
    for what in (str(path), pa.read(path)):
        found = pa.fit(what, "gpt2", device_memory="80GB", b=1, s=256, **sizes)
        assert str(next(t for t in found.stages[0].terms if t.name == "gradients").formula.expr) == f"Psi*{held}"


@pytest.mark.parametrize(("reserve", "told"), [("76GB", False), ("79500MB", True), ("84GB", True), ("85GB", False)])
def test_a_memory_as_it_is_sold_is_less_than_what_programs_find(placealg: Callable[..., Outcome], reserve: str,
                                                               told: bool) -> None:
    found = placealg("fit", "zero1", "--model", "gpt2", "--set", "s=256", "b=1", "dp=8", "--device-memory", "80GB",
                     "--reserve", reserve)
    said = " ".join(found.out.split())
    assert ("as drivers report of the 80 GB of a100: --device-memory 81152MiB" in said) == told, said
    assert found.code == (0 if reserve == "76GB" else 1)
    if told:
        assert placealg("fit", "zero1", "--model", "gpt2", "--set", "s=256", "b=1", "dp=8", "--device-memory",
                        "81152MiB", "--reserve", reserve).code == 0
