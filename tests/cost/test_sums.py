"""Figures as sums against the formulas of the same programs, integer for integer."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

import placealg as pa
from placealg.cost.costs import Costs
from placealg.cost.figure import Figure
from placealg.cost.stage import on_stage
from placealg.cost.sums import sums
from placealg.mesh import SYMBOLS
from placealg.models.config import resolve_model
from placealg.polynomial import Polynomial
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy

SIZES = (1, 2, 3, 4, 5, 7, 8, 16)
BYTES = tuple(map(Fraction, ("1/2", "1", "2", "4")))
CASES = [("zero3", "abstract", ""), ("zeropp*offload_optimizer", "abstract", ""), ("zero3*tp_sp*cp_ring", "gpt", ""),
         ("zero1*tp_sp*pp_interleaved*recompute_selective", "llama-3-70b", "last"),
         ("zero3*tp_sp*pp_zb_h1", "gpt", "first"), ("zero3*ep*tp", "moe", "")]
DATA = ("dp", "zero1", "zero2", "zero3", "hsdp", "mics", "zeropp")
MORE = ("tp", "tp_sp*cp", "tp_sp_keep*cp_ring*recompute_full", "tp_sp*pp_interleaved")
SLOW = [("dp*cp_ulysses*pp_gpipe", "gpt", "last"), ("zero3*offload_parameters*recompute_full", "mla", ""),
        *((f"{data}*{more}", model, "first" if "pp" in more else "") for data in DATA for more in MORE
          for model in ("gpt", "llama-3-8b", "mla"))]


def program(strategy: str, model: str, stage: str) -> Step:
    step = pa.derive(parse_strategy(strategy), resolve_model(model))
    return on_stage(step, stage) if stage else step


def drawn(step: Step, rng: random.Random) -> dict[str, Fraction]:
    """Sizes of any order; the model's as they are, times at which it is proved how long a stage waits."""
    names = {*SYMBOLS, *step.reference.mesh.names, "v"}
    sizes = {n: rng.choice(BYTES) if n in SYMBOLS and SYMBOLS[n].assumption == "positive rational" else
             Fraction(rng.choice(SIZES)) for n in sorted(names)}
    times = {"T_F": Fraction(2), "T_B": Fraction(2), "T_W": Fraction(1), "m": Fraction(16)}
    return {**sizes, **times, "o": Fraction(12), "pp": Fraction(4),
            **{n: Fraction(v) for n, v in step.reference.sizes.items()}}


def check(strategy: str, model: str, stage: str) -> None:
    step = program(strategy, model, stage)
    formulas, found, rng = Costs(step).figures, sums(step), random.Random(strategy)
    shared = [path for path in found if path in formulas and formulas[path].expr is not None]
    assert {"memory.peak", "memory.total", "communication.total", "memory.host"} <= set(shared)
    sizes = drawn(step, rng)
    for path in shared:
        formula = formulas[path]
        at = {n: v for n, v in sizes.items() if n in formula.inputs and n not in formula.defined}
        assert found[path].value(sizes) == formula.value(**at), (path, sizes)


@pytest.mark.parametrize(("strategy", "model", "stage"), CASES)
def test_sums_are_the_formulas(strategy: str, model: str, stage: str) -> None:
    check(strategy, model, stage)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "model", "stage"), SLOW)
def test_sums_are_the_formulas_over_more_compositions(strategy: str, model: str, stage: str) -> None:
    check(strategy, model, stage)


def test_numbers_put_in_leave_the_value() -> None:
    step = program("zero1*tp_sp*pp", "gpt", "first")
    sizes, some = drawn(step, random.Random(0)), {"dp": 3, "m": 2}
    for path, figure in sums(step).items():
        assert figure.put(some).value({**sizes, **some}) == figure.value({**sizes, **some}), path
        assert not set(some) & set(figure.put(some).names())


def test_what_is_sent_by_kind_sums_to_what_is_sent_over_the_axes() -> None:
    found = sums(program("zero3*tp_sp*cp_ring", "gpt", ""))
    for path, figure in found.items():
        if path.startswith("communication.by_axes."):
            kinds = [f.pieces[0] for p, f in found.items()
                     if p.startswith(f"sent.{path.removeprefix('communication.by_axes.')}.")]
            assert sum(kinds, Polynomial()) == figure.pieces[0] and kinds


def test_a_wrong_coefficient_is_seen() -> None:
    step = program("zero3", "abstract", "")
    right = sums(step)["communication.total"]
    wrong = Figure((right.pieces[0] + Polynomial.read("Psi*w/dp"),))
    sizes = drawn(step, random.Random(0))
    assert wrong.value(sizes) != right.value(sizes)
