"""Models that no table knows: the units that the names of parameters make, their programs, and faults in them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from placealg.errors import InputError
from placealg.prover.verdict import PROVED, REFUTED
from placealg.watch.conformance import conformance, judge_proposed
from placealg.watch.names import lacking, model_by_names, names_of
from placealg.watch.opaque import NAMELESS, opaque
from placealg.watch.seen import Seen
from placealg.watch.verdict import CONFORMS, DIFFERS, UNSEEN

FOLDER = Path(__file__).parent / "recordings"


def seen_in(file: str) -> Seen:
    return Seen.read((FOLDER / f"{file}.json").read_text())


def trained(seen: Seen) -> list[str]:
    return list(dict.fromkeys(c.parameter for rank in seen.ranks for c in rank.chains))


@pytest.mark.parametrize(("file", "name"), [("by_hand", "dp"), ("fsdp2", "zero3"), ("zero1", "proposed"),
                                            ("flat", "zero2")])
def test_data_parallel_runs_have_their_program_whatever_the_model_computes(file: str, name: str) -> None:
    seen = seen_in(file)
    model = opaque(trained(seen))
    assert not lacking(trained(seen), model)
    told = judge_proposed(model, seen)
    assert (told.verdict, told.strategy, told.report.verdict) == (CONFORMS, name, PROVED)
    assert told.kernel.startswith("accepted")


def test_what_splits_inside_a_layer_needs_a_model() -> None:
    seen = seen_in("tp_sp")
    with pytest.raises(InputError, match="says nothing about the network inside"):
        judge_proposed(opaque(trained(seen)), seen)


def test_of_such_a_model_a_single_device_alone_tells_what_ops_compute() -> None:
    """Names that no table knows; the run as it is, beside a single device that it equals, and beside none."""
    text = (FOLDER / "by_hand.json").read_text().replace("embedding.tokens", "wordbook").replace("attn.", "mixing.")
    seen = Seen.read(text)
    assert model_by_names(trained(seen)) is None
    told = conformance(replace(seen, lifted=None), None, None)
    assert told.report.model == NAMELESS and told.verdict == UNSEEN and told.report.verdict == PROVED
    assert "what ops compute" in told.comparison.unseen[-1].what
    assert conformance(seen, None, None).verdict == CONFORMS
    assert conformance(seen, "dp", None).verdict == CONFORMS
    assert conformance(seen, "zero1", None).verdict == DIFFERS


def test_parameters_of_a_group_that_alone_differ_are_groups_of_their_own() -> None:
    """ways.py summed --wrong: gradients of vectors are not summed over the ranks."""
    told = conformance(seen_in("lone"), None, None)
    assert told.verdict == DIFFERS and told.edited is not None and told.edited.verdict == REFUTED
    vectors = {f"model_{k}.{n}" for k in (1, 2) for n in ("norm.weight", "norm.bias", "up.bias", "down.bias")}
    assert {g["match"] for g in told.tables["groups"].values()} <= vectors
    assert told.edited.counterexample is not None


def test_lists_whose_elements_have_other_parameters_are_units_of_their_own() -> None:
    names = [f"layers.{k}.{n}" for k in range(4) for n in (("gate", "up") if k % 2 else ("up",))]
    model = opaque(["scale", *names])
    assert [(u.name, model.where[u.name]) for u in model.units] == [
        ("scale", (0,)), ("layers", (0, 2)), ("layers_2", (1, 3))]
    assert {n.unit for n in names_of(names, model).values()} == {"layers", "layers_2"}
