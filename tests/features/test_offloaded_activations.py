"""Activations on another tier between forward and backward: of regions, of chosen layers, of checkpoints."""

from __future__ import annotations

from typing import Any

import pytest
from agreement import compare
from random_dims import judged

from placealg.cost.communication import communication
from placealg.cost.costs import Costs
from placealg.cost.memory import memory
from placealg.cost.regions import kept_for_backward
from placealg.cost.sums import sums
from placealg.errors import InputError
from placealg.importers.read import read_words, reading_of
from placealg.importers.reading import Options
from placealg.models.build import graph
from placealg.models.config import resolve_model
from placealg.models.model import Model
from placealg.placement import MEMORY_TIERS
from placealg.prover.verdict import PROVED, REFUTED
from placealg.step import operations
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.offload import away
from placealg.step.program import Step
from placealg.step.text import read_program, write_program
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import parse_strategy_file
from placealg.strategy.spec import overlay

LAYER = {"region:layer": "O"}
FETCHED = "backward.layer.mlp.gelu.fetch"
SIZES = {"b": 1, "s": 8, "h": 16, "a": 2, "f": 32, "V": 64, "L": 4, "dp": 2, "m": 3, "tp": 2, "pp": 2, "s_max": 8}


def step_of(text: str, model: str | Model = "mlp", modes: dict[str, str] | None = None, **tables: Any) -> Step:
    said = {"states": {"activations": LAYER if modes is None else modes}, **tables}
    return derive(overlay(parse_strategy(text), said), resolve_model(model) if isinstance(model, str) else model)


def test_the_events_of_a_unit_are_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward, backward and the backward for weights are asked for one by one, and share what was found of the unit."""
    built: list[str] = []
    monkeypatch.setattr(operations, "away", lambda graph, events, *rest: [
        built.append(next((e.unit for e in events), "")), away(graph, events, *rest)][1])
    step = step_of("zero3*pp_zb_h1", "mlp")
    assert sorted(built) == sorted({*built}) and any(e.verb == "fetch" for e in step.phase("backward"))


def carried(step: Step, verb: str) -> list[tuple[str, str]]:
    return [(e.acted_on.text, e.tier) for e in step.events if e.verb == verb and e.on_tensor]


def value(formula: Any, **more: int) -> Any:
    sizes = {**SIZES, **more}
    return formula.value(**{n: v for n, v in sizes.items() if n in formula.inputs})


def test_what_backward_reads_leaves_behind_its_last_use_and_comes_back_before_it_is_read() -> None:
    step = step_of("dp", "gpt", {"region:mlp": "O"})
    paths = [e.path for e in step.events]
    out, gone, back, read = (paths.index(p) for p in (
        "forward.layer.mlp.gelu.offload", "forward.layer.mlp.gelu.free", "backward.layer.mlp.gelu.fetch",
        "backward.layer.mlp.down.grad.compute"))
    assert paths[out - 1] == "forward.layer.mlp.down.compute" and out + 1 == gone < back == read - 1
    assert sorted(carried(step, "offload")) == sorted((name, "device->host") for name in (
        "layer.norm2.out", "layer.mlp.up.biased", "layer.mlp.gelu", "layer.mlp.dropped.mask"))
    assert sorted(name for name, _ in carried(step, "fetch")) == sorted(name for name, _ in carried(step, "offload"))


def test_what_other_regions_read_stays() -> None:
    names = [name for name, _ in carried(step_of("dp", "gpt", {"region:core": "O"}), "offload")]
    assert "layer.attn.core.probs" in names and "layer.in" not in names and "layer.out" not in names


def test_a_gathered_value_goes_as_its_shard_or_whole_as_it_is_kept() -> None:
    shard = carried(step_of("tp_sp", "gpt", {"tp": "S*", **LAYER}), "offload")
    whole = carried(step_of("tp_sp", "gpt", {"tp": "R", **LAYER}), "offload")
    assert ("layer.norm1.out", "device->host") in shard and ("layer.norm1.out@tp", "device->host") in whole


def test_a_view_goes_once_with_what_it_shows() -> None:
    g = graph(batch="b", embed="h", heads="a", heads2="a", head_dim="h/a")
    x = g.repeat("layer", "L", g.data("data.x", "batch embed"))
    y = g.linear("layer.up", x, "batch heads head_dim", "embed heads head_dim")
    view = g.rename("layer.view", y, {"heads": "heads2"})
    z = g.mul("layer.both", g.unary("layer.one", y, "silu"), g.rename("layer.back", g.unary(
        "layer.two", view, "silu"), {"heads2": "heads"}))
    g.linear("layer.out", z, "batch embed", "heads head_dim embed")
    g.sum("loss.sum", g.linear("head.out", "layer.out", "batch", "embed"))
    model = Model.of_graph("viewed", g.build())
    step = step_of("dp", model)
    names = [name for name, _ in carried(step, "offload")]
    assert "layer.up" in names and "layer.view" not in names
    assert "backward.layer.view.compute" in [e.path for e in step.events]
    assert [k.tensor for k in kept_for_backward(step)].count("layer.up on host") == 1
    assert judged(step) == (PROVED, "")


@pytest.mark.some(4)
@pytest.mark.parametrize(("text", "model", "modes", "tables"), [
    ("dp", "mlp", LAYER, {}),
    ("dp", "gpt", {"region:mlp": "O"}, {}),
    ("tp_sp", "gpt", {"tp": "S*", **LAYER}, {}),
    ("zero3", "gpt", {"region:layer": "M+O"}, {"activations": {"tier": "nvme"}}),
    ("cp_ring", "gpt", {"region:core": "M", **LAYER}, {}),
    ("dp*pp_zb_h1", "gpt", LAYER, {}),
    ("dp*ep", "moe", LAYER, {}),
    ("dp", "gpt", {"region:head": "O", "region:embedding": "O"}, {}),
    ("dp*pp", "gpt", LAYER, {"schedule": {"offload_layers": {"every": 2}}})])
def test_a_derived_program_is_proved_and_right(text: str, model: str, modes: dict[str, str],
                                               tables: dict[str, Any]) -> None:
    assert judged(step_of(text, model, modes, **tables)) == (PROVED, "")


@pytest.mark.parametrize(("change", "verdict"), [
    ({"drop": "backward.layer.mlp.gelu.fetch"}, REFUTED),
    ({"drop": "forward.layer.mlp.gelu.offload"}, REFUTED),
    ({"drop": "forward.layer.mlp.gelu.free"}, PROVED),
    ({"double": "backward.layer.mlp.gelu.fetch"}, PROVED),
    ({"insert": {"path": "backward.layer.mlp.gelu.free", "tier": "host"}, "before": FETCHED}, REFUTED),
    ({"insert": {"path": "backward.layer.mlp.gelu.free", "tier": "host"}, "after": FETCHED}, PROVED)])
def test_single_changes(change: dict[str, Any], verdict: str) -> None:
    found = compare(edit(step_of("dp"), change))
    assert (found.report.verdict, found.complaint) == (verdict, "")


def test_what_was_kept_on_the_device_is_kept_on_the_host() -> None:
    here, away = step_of("dp*pp", "gpt", {"region:layer": "R"}), step_of("dp*pp", "gpt")
    there = memory(here)
    found = memory(away)
    rest = value(found.activations)
    assert value(found.host) == value(there.activations) - rest and rest < value(there.activations) / 10
    assert value(found.peak) < value(there.peak)
    link = value(communication(away).host_link)
    assert link == 2 * value(found.host) * SIZES["m"] / 2       # each of two microbatches in flight is kept at once


def test_half_of_the_layers() -> None:
    none, half, every = (value(memory(step_of("dp", "gpt", **tables)).host) for tables in (
        {"modes": {"region:layer": "R"}}, {"schedule": {"offload_layers": {"first": 2}}}, {}))
    sizes = dict(step_of("dp", "llama-3-8b", schedule={"offload_layers": {"every": 2}}).reference.sizes)
    assert none == 0 and (sizes["L_away"], sizes["L_rest"]) == (16, 16) and every > 0 and half == every * 2 / 4


def test_checkpoints_on_the_host_keep_one_input_a_layer_there() -> None:
    step = step_of("dp", "llama-3-8b", {"region:layer": "M+O"})
    (kept,) = [k for k in kept_for_backward(step) if k.mode == "O"]
    assert (kept.tensor, kept.region, kept.why.startswith("fetched for")) == ("layer.in on host", "layer", True)
    assert str(memory(step).host.expr) == str(kept.bytes.expr)


def test_the_nvme_is_reached_by_way_of_the_host() -> None:
    step = step_of("dp", modes=LAYER, activations={"tier": "nvme"})
    assert {tier for _, tier in carried(step, "offload")} == {"device->host", "host->nvme"}
    found = Costs(step)
    assert value(found.memory.nvme) == value(memory(step_of("dp")).host) > value(found.memory.host) > 0
    assert value(found.communication.nvme_link) == value(found.communication.host_link)


@pytest.mark.parametrize(("text", "model"), [("dp", "gpt"), ("tp_sp*pp", "gpt"), ("zero3*offload_optimizer", "mlp")])
def test_sums_and_formulas_agree(text: str, model: str) -> None:
    step = step_of(text, model)
    found, figures = memory(step), sums(step)
    for tier in MEMORY_TIERS[1:]:
        assert value(getattr(found, tier)) == figures[f"memory.{tier}"].value({**SIZES, **{
            n: 2 for n in ("w", "g", "act", "wire")}, "o": 12, "Psi": value(found.parameters) // 2})


def test_what_norms_keep_of_rows_is_counted_where_it_is_asked_for() -> None:
    step = step_of("dp", "gpt")
    rows = {e.path: e.left_out for e in communication(step).events if e.collective == "host link"}
    assert rows["forward.layer.norm1.out.mean.offload"] == "row statistics of norms are left out"
    assert value(memory(step, statistics=True).host) > value(memory(step).host)


def test_a_program_in_a_file_is_the_same() -> None:
    strategy = overlay(parse_strategy("dp"), {"states": {"activations": LAYER}, "activations": {"tier": "nvme"}})
    step = derive(strategy, resolve_model("mlp"))
    file = parse_strategy_file(write_program(step, strategy))
    assert read_program(file.events, step.reference, file.positions, file.loops) == step.events


def test_a_modifier_beside_recomputation_is_both() -> None:
    strategy = parse_strategy("zero1*recompute_full*offload_activations")
    assert dict(strategy.region_modes) == {"layer": "M+O"}
    assert dict(parse_strategy("zero1*offload_activations*recompute_full").region_modes) == {"layer": "M+O"}


@pytest.mark.parametrize(("tables", "said"), [
    ({"schedule": {"offload_layers": {"first": 2}}}, "offload_layers: no region's activations rest on another tier"),
    ({"activations": {"tier": "nvme"}}, "tier: no region's activations rest on another tier"),
    ({"activations": {"tier": "device"}}, "tier is 'device'; valid: host, nvme"),
    ({"states": {"activations": {"region:layer": "S+O"}}}, "region:layer is S: only activations have regions"),
    ({"states": {"activations": {"region:lyaer": "O"}}}, "did you mean 'layer'"),
    ({"states": {"activations": {"dp": "S+O"}}}, "only parameters and the optimizer state can be offloaded"),
    ({"states": {"activations": {"region:layer": "M+O"}}, "schedule": {
        "offload_layers": {"first": 2}, "recompute_layers": {"every": 2}}}, "choose different layers")])
def test_bad_input(tables: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        derive(overlay(parse_strategy("dp"), tables), resolve_model("gpt"))


@pytest.mark.parametrize(("change", "said"), [
    ({"set": "forward.layer.mlp.gelu.compute", "tier": "host"}, "a tensor that is offloaded, fetched or freed"),
    ({"insert": {"path": "forward.layer.mlp.gelu.grad.offload"}, "after": "forward.layer.mlp.gelu.compute"}, "offload"),
    ({"set": "backward.layer.mlp.gelu.fetch", "from": "master"}, "what is moved of a tensor is the tensor itself"),
    ({"set": "backward.layer.mlp.gelu.fetch", "axes": ["dp"]}, "is local and takes no axes")])
def test_bad_edits(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        edit(step_of("dp"), change)


def test_megatron_names_the_layers() -> None:
    words = ("torchrun pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 "
             "--micro-batch-size 2 --global-batch-size 64 --seq-length 2048 --bf16 --cpu-offloading-num-layers 4")
    strategy = read_words(words.split(), Options()).strategy
    assert strategy.offloaded == ("layer",) and dict(strategy.option("schedule", "offload_layers")) == {"first": 4}


@pytest.mark.parametrize(("said", "modes", "tier"), [
    ("gradient_checkpointing: offload", {"layer": "M+O"}, "host"),
    ("activation_offloading: true", {"layer": "O"}, "host"),
    ("activation_offloading: legacy\ngradient_checkpointing: true", {"layer": "M+O"}, "host"),
    ("activation_offloading: disk", {"layer": "O"}, "nvme")])
def test_axolotl_says_what_goes_and_where(said: str, modes: dict[str, str], tier: str) -> None:
    strategy = reading_of(f"base_model: x\ndatasets: []\n{said}\n", "t.yaml", Options()).strategy
    assert (dict(strategy.region_modes), strategy.option("activations", "tier")) == (modes, tier)
