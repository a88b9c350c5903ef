"""Runs that go on with another mesh, rank by rank: every pair equals the single device, and a wrong one does not."""

from __future__ import annotations

from random import Random

import pytest

import placealg as pa
from placealg.check.reshard import small_sizes
from placealg.errors import InputError
from placealg.models.config import resolve_model
from placealg.simulator.resharded import meshes, resharded
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import parse_strategy_file
from placealg.strategy.spec import overlay

PLAIN = ("dp", "zero1", "zero2", "zero3", "hsdp", "zero2*offload_optimizer", "zero3*offload_parameters")
DETAILED = ("tp", "zero3*tp_sp", "zero1*tp_sp*pp", "zero3*pp", "dp*cp", "zero1*ep", "zero3*tp*ep", "pp_interleaved",
            "zero1*tp*recompute_full")


def step(text: str, model: str) -> Step:
    return pa.derive(parse_strategy(text), resolve_model(model))


def sizes(text: str, least: int) -> dict[str, int]:
    names = parse_strategy(text).mesh.names
    return {a: least if k == 0 and len(names) < 3 else 2 for k, a in enumerate(names)}


def goes_on(old: Step, new: Step, at: tuple[dict[str, int], dict[str, int]]) -> bool:
    return resharded(old, new, meshes(old, new, at)).equal


@pytest.mark.parametrize("old", PLAIN)
def test_plain_strategies_go_on(old: str) -> None:
    for new in PLAIN[PLAIN.index(old) % 2::2]:
        assert goes_on(step(old, "abstract"), step(new, "abstract"), (sizes(old, 2), sizes(new, 3)))


PAIRS = [(a, b) for a in DETAILED for b in (*DETAILED, "zero3") if a != b]
DRAWN = [("tp", "zero1*tp*recompute_full"), ("zero1*tp_sp*pp", "zero3"), ("dp*cp", "zero3*pp")]


@pytest.mark.parametrize(("old", "new"), [
    *DRAWN, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in PAIRS if pair not in DRAWN)])
def test_detailed_strategies_go_on(old: str, new: str) -> None:
    model = "moe" if "ep" in f"{old}*{new}".replace("pp_interleaved", "").split("*") else "gpt"
    assert goes_on(step(old, model), step(new, model), (sizes(old, 2), sizes(new, 3)))


ORDERS = ("pp_1f1b", "pp_gpipe", "pp_interleaved", "pp_zb_h1", "pp_zb_h2", "pp_interleaved_zb", "pp_zb_v",
          "pp_dualpipe_v")


def saved_by(draw: Random) -> Step:
    """A pipeline of a random order, beside data axes or not, and who stores its checkpoint."""
    text = draw.choice(("", "dp*", "zero1*", "zero2*", "zero3*")) + draw.choice(ORDERS)
    by = draw.choice(("owners", "replica", "one"))
    return pa.derive(overlay(parse_strategy(text), {"checkpoint": {"by": by}}), resolve_model("mlp"))


@pytest.mark.parametrize("number", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, 13))])
def test_whoever_saves_any_order_goes_on_with_any_other(number: int) -> None:
    """Saved by one rank, by the first of its replicas or by all owners; loaded by stages in another order."""
    draw = Random(number)
    for _ in range(1 if not number else 6):
        old, new = saved_by(draw), saved_by(draw)
        at = small_sizes(old, 0), small_sizes(new, 1)
        assert goes_on(old, new, at), (old.reference.strategy, new.reference.strategy)
        lost = [e.path for e in old.phase("save") if e.verb == "store" and e.value == "moments"]
        assert not goes_on(pa.edit(old, drop=draw.choice(lost)), new, at)


@pytest.mark.parametrize("drop", ["save.layer.weight.store", "save.layer.weight.moments.store", "save.step.store",
                                  "save.rng.store"])
def test_what_is_not_stored_is_missed(drop: str) -> None:
    old, new = step("zero3", "abstract"), step("zero1", "abstract")
    assert not goes_on(pa.edit(old, drop=drop), new, ({"dp": 2}, {"dp": 3}))


@pytest.mark.parametrize("drop", ["resume.layer.weight.load", "resume.layer.weight.master.assign",
                                  "resume.layer.weight.moments.load", "resume.step.load", "resume.rng.load"])
def test_what_is_not_loaded_is_missed(drop: str) -> None:
    old, new = step("zero3", "abstract"), step("zero1", "abstract")
    paths = [e.path for e in new.events if e.phase == "resume"]
    assert drop in paths
    assert not goes_on(old, pa.edit(new, drop=drop), ({"dp": 2}, {"dp": 3}))


def test_other_references_are_no_run() -> None:
    """A clipped run and one that is not have different single devices."""

    plain = parse_strategy_file('base = "zero3"\n[optimizer]\nclip = "none"').strategy
    old, new = pa.derive(plain, pa.abstract()), step("zero3", "abstract")
    with pytest.raises(InputError, match="not held against one single device"):
        goes_on(old, new, ({"dp": 2}, {"dp": 3}))


APART = {"again": 'base = "zero3*recompute_full"\n[schedule]\nrecompute_layers = { first = 2 }',
         "away": 'base = "zero1*offload_activations"\n[schedule]\noffload_layers = { every = 2 }',
         "share": 'base = "zero3"\n[optimizer]\ntier = "host"\noffload_share = 0.5',
         "staged": 'base = "zero1*recompute_full*pp"\n[schedule]\nrecompute_layers = { every = 2 }',
         "": 'base = "zero3"'}
"""Layers of which some run otherwise than the others, and a run where none do."""


@pytest.mark.parametrize(("old", "new"), [
    ("again", ""), *(pytest.param(a, b, marks=pytest.mark.slow) for a in APART for b in APART if a + b != "again")])
def test_layers_that_run_otherwise_are_read_as_all_layers(old: str, new: str) -> None:
    """Layers that are computed again, or have something elsewhere, are the first ones of a run that knows no such."""
    model = resolve_model("mlp")
    steps = [pa.derive(parse_strategy_file(APART[n]).strategy, model) for n in (old, new)]
    at = small_sizes(steps[0], 0), small_sizes(steps[1], 1)
    assert goes_on(steps[0], steps[1], at)
    lost = next(e.path for e in steps[0].phase("save") if e.verb == "store" and e.value == "moments")
    assert not goes_on(pa.edit(steps[0], drop=lost), steps[1], at)


def test_of_many_microbatches_few_are_run() -> None:
    old, new = (pa.derive(overlay(parse_strategy(text), {"schedule": {"microbatches": 512}}), resolve_model("gpt"))
                for text in ("zero1*pp_interleaved", "zero3"))
    found = meshes(old, new, ({"dp": 2, "pp": 2}, {"dp": 2}))
    assert (found.old.microbatches, found.new.microbatches) == (8, 8)
    assert sum(found.old.counts.values()) == sum(found.new.counts.values())


@pytest.mark.parametrize(("old", "new", "model", "optimizer"), [
    ("zero1", "zero1*tp", "gpt", "muon"), ("zero1*tp", "zero1", "gpt", "muon"), ("zero1", "dp*ep", "moe", "muon"),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (
        ("zero1*ep", "zero1*tp_sp", "moe", "muon"), ("zero1*tp_sp", "zero3*tp_sp*ep", "moe", "muon"),
        ("zero1", "zero1*ep", "moe", "lamb"), ("zero3*ep", "zero1", "moe", "adafactor")))])
def test_what_is_read_whole_does_not_depend_on_who_owns_it(old: str, new: str, model: str, optimizer: str) -> None:
    """A step of Muon reads whole matrices, each expert's by itself, of which the owners differ between both meshes."""
    steps = [pa.derive(overlay(parse_strategy(text), {"optimizer": {"name": optimizer}}), resolve_model(model))
             for text in (old, new)]
    assert goes_on(steps[0], steps[1], (sizes(old, 2), sizes(new, 3)))
