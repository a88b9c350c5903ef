"""Updates that take another step than the optimizer's: refuted unless nothing is divided, and so they run."""

from __future__ import annotations

from fractions import Fraction

import pytest
from agreement import compare

from placealg.check.masked_sizes import hidden
from placealg.check.prove import prove
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.abstract import abstract
from placealg.prover.verdict import PROVED, REFUTED
from placealg.simulator import Setting, simulate
from placealg.simulator.divisors import divided
from placealg.simulator.machine import Machine
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.lower import lowered
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import Masked

UPDATE = "update.layer.weight.update"


def with_divisor(strategy: str, divisor: str) -> Step:
    return edit(derive(parse_strategy(strategy), abstract()), set=UPDATE, divisor=divisor)


@pytest.mark.parametrize(("strategy", "divisor", "verdict"), [
    ("zero1", "dp", REFUTED), ("dp", "m", REFUTED), ("dp", "2", REFUTED), ("zero1", "padding", REFUTED),
    ("zero3", "1/padding", REFUTED), ("hsdp", "padding", REFUTED), ("dp", "padding", PROVED),
    ("zero1", "dp/dp", PROVED), ("zero1", "count", REFUTED),
])
def test_prover_and_runs_agree(strategy: str, divisor: str, verdict: str) -> None:
    found = compare(with_divisor(strategy, divisor))
    assert (found.report.verdict, found.complaint) == (verdict, "")
    assert verdict == PROVED or found.report.refuted() == ("update",)


def test_what_is_told() -> None:
    found = prove(with_divisor("zero1", "padding")).counterexample
    assert found and (found.got, found.want) == ("a step divided by padded/elements", "the optimizer's step")


@pytest.mark.parametrize(("sizes", "equal"), [({"dp": 1}, True), ({"dp": 2}, False)])
def test_one_shard_needs_no_padding(sizes: dict[str, int], equal: bool) -> None:
    assert hidden(with_divisor("zero1", "padding"), Masked(FrozenMap(sizes))).equal == equal


def test_even_shards_need_no_padding() -> None:
    step = with_divisor("zero1", "padding")
    even = Setting({"dp": 2}, 1, {((0,), 0): 1, ((1,), 0): 1},
                   owners={("own", "dp", element): element % 2 for element in range(4)})
    assert simulate(step, even).equal
    uneven = Setting({"dp": 2}, 1, even.counts, owners={("own", "dp", element): element // 3 for element in range(4)})
    assert not simulate(step, uneven).equal
    event = next(e for e in step.events if e.path == UPDATE)
    machine = Machine(lowered(step), uneven, None)  # type: ignore[arg-type]
    assert divided(machine, event, 0, Fraction(1)) == 1 / Fraction(2 * 3, 4)


@pytest.mark.parametrize("path", ["update.layer.weight.norm", "update.layer.weight.clip", "update.step.update",
                                  "publish.layer.weight.publish[dp]", "forward.layer.compute"])
def test_what_divides_nothing_takes_no_divisor(path: str) -> None:
    with pytest.raises(InputError, match="divides nothing, and takes no divisor"):
        edit(derive(parse_strategy("zero1"), abstract()), set=path, divisor="dp")


def test_only_shards_have_padding() -> None:
    with pytest.raises(InputError, match="only shards of parameters have padding"):
        edit(derive(parse_strategy("zero1"), abstract()), set="backward.loss.scale", divisor="padding")
