"""Low-rank adapters beside experts: right under every placement, and counted once."""

from __future__ import annotations

import pytest
from agreement import compare
from conftest import ROOT

from placealg.cases.case import read_case
from placealg.check.prove import prove
from placealg.models.config import resolve_model
from placealg.models.transformer import moe
from placealg.prover.verdict import PROVED, REFUTED
from placealg.simulator import Setting, simulate
from placealg.step.derive import derive
from placealg.step.trainable import trained
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import overlay

SIZES = {"h": 8, "a": 2, "kv": 1, "f": 16, "L": 2, "V": 10, "experts": 4, "adapter_rank": 3}


def test_an_adapter_has_two_matrices_per_expert() -> None:
    plain, adapted = moe().total(SIZES), resolve_model("lora").total(SIZES)
    assert adapted - plain == 2 * 4 * (16 * 3 + 3 * 8)


@pytest.mark.parametrize("strategy", ["zero1*ep*tp", "dp*tp_sp"])
def test_a_derived_program_is_right(strategy: str) -> None:
    step = derive(parse_strategy(strategy), moe(adapters=True))
    assert prove(step).verdict == PROVED
    sizes = {axis: k + 2 for k, axis in enumerate(step.reference.mesh.names[-2:])}
    sizes |= {axis: 1 for axis in step.reference.mesh.names if axis not in sizes}
    assert simulate(step, Setting.equal(step.reference, sizes, 1)).equal


@pytest.mark.parametrize(("folder", "verdict"), [("proved", PROVED), ("refuted", REFUTED)])
def test_partial_sums_and_whole_ones_meet(folder: str, verdict: str) -> None:
    step = read_case(str(ROOT / "proofs" / folder / "megatron_bridge_5634.toml"), None, []).step
    found = compare(step)
    assert (found.report.verdict, found.complaint) == (verdict, "")


def test_adapters_leave_a_model_what_else_it_has() -> None:
    """Names of its checkpoint, numbers of its layers, tensors that nothing trains: only the graph is another."""
    strategy = overlay(parse_strategy("dp"), {"adapters": {"match": ["attn.q"]}})
    model = resolve_model("llama-3-8b")
    made = trained(strategy, model)
    assert made.graph != model.graph and len(made.parameters) == len(model.parameters) + 2
    assert (made.names, made.where, made.family, made.untrained) == (
        model.names, model.where, model.family, model.untrained) and model.names and model.family
