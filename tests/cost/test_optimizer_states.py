"""What an optimizer keeps of each parameter, counted one by one from the model's own parameters."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import placealg as pa
from placealg.cost.arrays import at
from placealg.cost.document import cost_json
from placealg.cost.memory import memory
from placealg.cost.sums import sums
from placealg.importers.read import read
from placealg.models.config import resolve_model
from placealg.models.model import Model
from placealg.step.derive import derive
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import Strategy, overlay

MINIATURES = Path(__file__).parents[1] / "importers" / "miniatures"
MODELS = ("gpt2", "llama-3-8b", "mixtral-8x7b", "deepseek-v3")
LEFT = ("embedding.weight", "embedding.position.weight", "head.weight")
"""What those who run Muon leave to AdamW, beside what is no matrix."""


def by_hand(model: Model, muon: bool, o: Fraction) -> Fraction:
    """Bytes of the state of one device that has all: the master copy, and one or two moments of each element."""
    total = Fraction(0)
    moment = min(o, Fraction(8)) / 2
    counts = {unit.name: unit.count.evaluate(model.sizes) for unit in model.units}
    for p in model.parameters:
        if model.statistics.get(p.name):
            continue
        last = p.name.split(".")[-2]
        vector = "norm" in last or p.name.endswith("bias") or len(p.dims) < 2
        one = muon and not vector and p.name not in LEFT
        size = Fraction(1)
        for each in p.dims.values():
            size *= each.evaluate(model.sizes)
        total += size * counts[p.unit] * (o - (moment if one else 0))
    return total


@given(st.sampled_from(MODELS), st.sampled_from(["zero1", "zero2", "zero3", "hsdp", "zero1*tp", "zero2*pp"]))
@example("gpt2", "zero1")
@settings(max_examples=6, deadline=None)
def test_what_is_left_to_adamw_is_updated_element_by_element(name: str, text: str) -> None:
    """Bytes and program have one rule: nothing is gathered for the update of what keeps two moments."""
    step = derive(of(text, "muon"), resolve_model(name))
    for group in step.reference.trained:
        gathered = [e for e in step.events if e.group == group.name and e.verb == "all_gather"
                    and e.value in ("grad_sum", "moments")]
        adam = group.optimizer == "adamw"
        assert adam or not any(p in LEFT for p in group.parameters), group.name
        assert (group.bytes_of("moments") == "o - 4") == adam == (group.locality == "elementwise")
        assert not (adam and gathered), group.name


def of(text: str, optimizer: str) -> Strategy:
    return overlay(parse_strategy(text), {"optimizer": {"name": optimizer}})


@given(st.sampled_from(MODELS), st.sampled_from(["muon", "adamw", "lamb"]), st.sampled_from([4, 8, 10, 12, 16]))
@example("llama-3-8b", "muon", 12)
@settings(max_examples=8, deadline=None)
def test_the_state_is_what_each_parameter_has(name: str, optimizer: str, o: int) -> None:
    model = resolve_model(name)
    step = derive(of("dp", optimizer), model)
    formula = memory(step).optimizer
    wanted = by_hand(model, optimizer == "muon", Fraction(o))
    assert formula.value(o=o) == wanted
    figure = sums(step)["memory.optimizer"]
    known = {**dict.fromkeys(figure.names(), Fraction(2)), **model.sizes, "o": Fraction(o)}
    assert figure.value(known) == wanted
    assert at(formula, {"o": np.array([o, 12])})[0] == pytest.approx(float(wanted), rel=1e-12)


def test_a_search_counts_them_alike() -> None:
    model = resolve_model("gpt2")
    adam, muon = (memory(derive(of("zero1", name), model)).optimizer.value(dp=8) for name in ("adamw", "muon"))
    assert muon == by_hand(model, True, Fraction(12)) / 8 < adam == by_hand(model, False, Fraction(12)) / 8


@pytest.mark.parametrize(("optimizer", "says"), [("muon", "Muon keeps one moment"), ("adafactor", "Adafactor keeps"),
                                                 ("sgd", "SGD keeps one momentum or none")])
def test_what_is_in_doubt_is_told(optimizer: str, says: str) -> None:
    told = cost_json(derive(of("zero1", optimizer), resolve_model("gpt2")))["hypotheses"]
    assert any(says in one for one in told), told
    assert not any("keeps" in one for one in cost_json(pa.derive(pa.zero1(), resolve_model("gpt2")))["hypotheses"])


@pytest.mark.parametrize(("name", "text"), [
    ("full.yaml", (MINIATURES / "llamafactory" / "full.yaml").read_text(encoding="utf-8") + "use_muon: true\n"),
    ("ds.json", '{"train_batch_size": 8, "zero_optimization": {"stage": 2}, "bf16": {"enabled": true}, '
                '"optimizer": {"type": "Muon"}}')])
def test_muon_is_counted_as_it_is_read(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    formula = memory(derive(read(path).strategy, resolve_model("gpt2"))).optimizer
    assert formula.value(dp=8, o=12) * 8 == by_hand(resolve_model("gpt2"), True, Fraction(12))
