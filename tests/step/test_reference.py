"""The reference of a derived step says what strategy and model say, and in which phases a group's copies live."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from random_programs import two_units

from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.mesh import Axis, Mesh
from placealg.models.abstract import abstract, statistics, two_losses
from placealg.models.build import graph
from placealg.models.graph import Graph
from placealg.models.model import Model, Statistic
from placealg.models.ops import OPS, OpFamily, OpName
from placealg.models.transformer import mlp, moe
from placealg.step.derive import averaging_of, derive, operations_of, reference_of, strategy_types
from placealg.step.event import PHASES, Phase
from placealg.step.groups import group_parameters
from placealg.step.order import ORDERING
from placealg.step.pipeline import ONE_STAGE, Pipeline
from placealg.step.program import LoopUnit, Reference, Step
from placealg.step.verbs import VERBS, VerbName
from placealg.strategy.spec import Strategy, strategy_on
from placealg.strategy.streams import Stream

SILENT_TYPES = {"w": "2", "g": "2", "wire": "2", "o": "12", "act": "2"}


def mine(dims: dict[str, list[str]], **tables: Any) -> Strategy:
    return strategy_on("mine", dict.fromkeys(dims), dims=dims, **tables)


def on(model: Model, dims: dict[str, list[str]], **tables: Any) -> Step:
    return derive(mine(dims, **tables), model)


def test_what_a_silent_strategy_means_for_units_that_run_whole() -> None:
    strategy, model = mine({"dp": ["batch"], "idle": []}), abstract()
    step = derive(strategy, model)
    assert step.reference == Reference(
        strategy="mine", model="abstract", mesh=Mesh((Axis("dp"), Axis("idle"))), data_axes=("dp",),
        units=(LoopUnit("layer", model.unit("layer").count),),
        groups=tuple(p.group for p in group_parameters(strategy, model)), weighting="token_mean", clip=True,
        skip=False, microbatches=None, hypotheses=("equal_counts",), random_keys=(), types=FrozenMap(SILENT_TYPES),
        sizes=FrozenMap(), prefetch=0, abstract=True, graph=Graph(), split_dims=FrozenMap(),
        dims=FrozenMap({"dp": ("batch",), "idle": ()}), pipeline=ONE_STAGE, left_out=(), pad="none", losses=("loss",))


def test_what_a_strategy_says_and_its_model_has_stands_in_the_reference() -> None:
    dims = {"dp": ["batch"], "tp": ["loss.none", "ffn", "embed"], "pp": ["layer"]}
    model = Model.of_graph("small", mlp().graph, {"h": 8, "f": 16, "L": 4}, left_out=("a bias",))
    step = on(model, dims, loss={"preset": "token_mean", "reference": "microbatch_mean", "assume": ["equal_counts"]},
              optimizer={"clip": "none", "skip": "overflow"}, types={"w": 1, "wire_w": "1/2"},
              random={"dropout": ["rank(dp)"]}, shards={"pad": "rows"},
              schedule={"microbatches": 4, "prefetch": 2, "pipeline": "interleaved", "chunks": 2})
    reference = step.reference
    assert (reference.strategy, reference.model, reference.mesh.names) == ("mine", "small", ("dp", "tp", "pp"))
    assert (reference.weighting, reference.hypotheses) == ("microbatch_mean", ("equal_counts",))
    assert (reference.clip, reference.skip, reference.microbatches, reference.prefetch) == (False, True, 4, 2)
    assert reference.types == {**SILENT_TYPES, "w": "1", "wire_w": "1/2"}
    assert (reference.random_keys, reference.pad) == ((Stream("dp"),), "rows")
    assert (reference.sizes, reference.left_out) == ({"h": 8, "f": 16, "L": 4}, ("a bias",))
    assert reference.pipeline == Pipeline("pp", "interleaved", 2)
    assert not reference.abstract and reference.graph == model.graph
    assert reference.dims == {axis: tuple(entries) for axis, entries in dims.items()}
    assert reference.units == tuple(LoopUnit(u.name, u.count) for u in model.units)
    up, head = "layer.mlp.up.weight", "head.weight"
    assert reference.split_dims[up] == {"tp": "ffn", "pp": "layer"}
    assert reference.split_dims[head] == {"tp": "embed", "pp": "layer"}
    assert reference.group("layer.weight").split == ("tp", "pp")


def test_only_the_axes_that_split_the_loss_s_tokens_hold_data() -> None:
    assert on(mlp(), {"dp": ["batch"], "tp": ["ffn"]}).reference.data_axes == ("dp",)
    dims = {"x": ["loss.none", "batch"], "y": ["batch"]}
    assert on(mlp(), dims).reference.data_axes == ("y",)


def test_whatever_dim_of_the_loss_is_split_its_axis_holds_data() -> None:
    """Tokens of this model are pixels, of which strategies know nothing."""
    step = on(pixels(), {"x": ["pixel"], "y": ["embed"]})
    assert step.reference.data_axes == ("x",)
    assert step.event("reduce.net.weight.grad_sum.reduce[x]").op == "mean"


def pixels() -> Model:
    g = graph(batch="b", pixel="n", embed="h")
    x = g.mul("net.in", g.data("data.x", "batch pixel embed"), g.parameter("net.weight", "embed"))
    g.sum("loss.sum", g.sum("net.rows", g.mul("net.square", x, x), to="batch pixel"))
    return Model.of_graph("pixels", g.build())


def test_what_the_loss_alone_splits_is_sliced_before_it_and_gathered_back() -> None:
    step = on(mlp(), {"x": ["loss.batch"]})
    assert step.reference.data_axes == ("x",)
    paths = [e.path for e in step.phase("forward", "backward")]
    at = paths.index("forward.loss.compute")
    assert paths[at - 2:at + 5] == [
        "forward.head.loss.compute", "forward.head.loss.slice[x]", "forward.loss.compute", "backward.loss.scale",
        "backward.loss.sum.grad.compute", "backward.head.loss.grad.all_gather[x]", "backward.head.loss.grad.compute"]
    assert step.event("forward.loss.compute").reads == ("head.loss@x",)


def test_what_enters_a_loop_in_another_layout_is_moved_before_it_and_its_gradient_after_it() -> None:
    g = graph(batch="b", embed="h")
    x = g.mul("first.out", g.data("data.x", "batch embed"), g.parameter("first.weight", "embed"))
    x = g.repeat("layer", "L", x)
    g.unary("layer.out", g.mul("layer.scaled", x, g.parameter("layer.weight", "embed")), "tanh")
    g.sum("loss.sum", g.sum("head.rows", g.mul("head.square", "layer.out", "layer.out"), to="batch"))
    step = on(Model.of_graph("entered", g.build()), {"x": ["layer.embed"]})
    paths = [e.path for e in step.phase("forward", "backward")]
    at = paths.index("forward.first.out.slice[x]")
    assert paths[at - 1:at + 2] == ["forward.first.out.compute", "forward.first.out.slice[x]",
                                    "forward.layer.in.assign"]
    at = paths.index("backward.first.out.grad.all_gather[x]")
    assert paths.index("backward.layer.in.grad.assign") < at < paths.index("backward.first.out.grad.compute")


def test_a_model_s_losses_and_an_unknown_number_of_microbatches_stand_in_the_reference() -> None:
    reference = on(two_losses(), {"dp": ["batch"]}).reference
    assert (reference.losses, reference.microbatches) == (("loss", "ahead"), None)


def test_an_op_graph_is_placed_axis_by_axis_and_units_without_one_are_not() -> None:
    assert operations_of(mine({"dp": ["batch"]}), abstract()) is None
    strategy = mine({"tp": ["loss.none", "ffn", "embed"], "dp": ["batch"]},
                    states={"activations": {"tp": "S*", "region:layer": "M"}},
                    schedule={"gather": {"tp": "ring"}, "replay": "early_stop"})
    operations = operations_of(strategy, mlp())
    assert operations is not None
    assert (operations.sharded, operations.recomputed) == (("tp",), ("layer",))
    assert (operations.replay, operations.ring) == ("early_stop", ("tp",))
    product = next(p for p in operations.placed.ops if p.op.output == "layer.mlp.up")
    assert product.split == {"tp": "ffn", "dp": "batch"}


def test_an_axis_that_says_nothing_splits_nothing() -> None:
    operations = operations_of(strategy_on("mine", {"tp": None, "dp": None}, dims={"tp": ["ffn"]}), mlp())
    assert operations is not None and operations.placed.axes == ("tp", "dp")
    assert {p.split["dp"] for p in operations.placed.ops} == {""}


def test_uses_share_a_redistribution_unless_the_schedule_says_per_use() -> None:
    """Two products read one sharded value: gathered once for both, or once for each."""
    dims = {"tp": ["loss.none", "ffn", "embed"]}
    shared, apart = (operations_of(mine(dims, schedule={"sharing": how}), moe()) for how in ("shared", "per_use"))
    silent = operations_of(mine(dims), moe())
    assert shared and apart and silent and silent.placed == shared.placed != apart.placed


def test_two_losses_and_statistics_do_not_go_together() -> None:
    model = replace(statistics(), losses=("loss", "ahead"))
    with pytest.raises(InputError) as error:
        derive(mine({"dp": ["batch"]}), model)
    assert str(error.value) == ("model 'statistics' has several losses and running statistics: it is not said of "
                                "whose tokens")
    assert reference_of(mine({"dp": ["batch"]}), statistics(), ()).losses == ("loss",)


def test_a_statistic_belongs_to_one_unit() -> None:
    """Of what enters two units there are two statistics: the single device's step would not be said."""
    model = replace(two_units(tied=True), statistics=FrozenMap({"embedding.weight": Statistic()}))
    with pytest.raises(InputError) as error:
        on(model, {"dp": ["batch"]})
    assert str(error.value) == ("statistic 'embedding.weight' of model 'two units' is used by embedding, head: it is "
                                "not said of what enters which")
    other = replace(model, statistics=FrozenMap({"layer.weight": Statistic()}))
    assert on(other, {"dp": ["batch"]}).reference.group("layer.weight").statistic


@pytest.mark.parametrize(("changes", "told"), [
    ({"losses": ("loss", "ahead")}, "several losses"),
    ({"statistics": FrozenMap({"head.weight": Statistic()})}, "running statistics")])
def test_an_op_graph_knows_one_loss_and_no_statistics(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as error:
        on(replace(mlp(), **changes), {"dp": ["batch"]})
    assert str(error.value) == f"model 'mlp' has {told} and runs op by op: of these its op graph says nothing"


def test_a_strategy_is_checked_before_anything_is_derived() -> None:
    with pytest.raises(InputError):
        on(abstract(), {"dp": ["ffn"]})
    with pytest.raises(InputError):
        on(abstract(), {"dp": ["batch"]}, states={"parameters": {"dp": "M"}})


def test_element_sizes_are_the_strategy_s_or_the_defaults() -> None:
    assert strategy_types(mine({"dp": ["batch"]})) == SILENT_TYPES
    said = mine({"dp": ["batch"]}, types={"wire_w": 1, "act": 4})
    assert strategy_types(said) == {**SILENT_TYPES, "act": "4", "wire_w": "1"}
    assert strategy_types(mine({"dp": ["batch"]}, types={"act": 4})) == {**SILENT_TYPES, "act": "4"}


def test_an_axis_that_is_counted_is_one_of_the_mesh_or_microbatch() -> None:
    def counting(*axes: str) -> Strategy:
        return mine({"dp": ["batch"], "cp": ["batch"]}, loss={"preset": "token_mean", "count_axes": list(axes)})

    averaging = averaging_of(counting("cp", "microbatch"), ("dp", "cp"))
    assert (averaging.divisor, averaging.counted, averaging.data) == ("count", ("cp", "microbatch"), ("dp", "cp"))
    assert averaging_of(mine({"dp": ["batch"]}), ("dp",)).counted == ()
    strategy = counting("cp")
    wrong = strategy.__class__(strategy.name, Mesh((Axis("dp"), Axis("rows"))), strategy.dims, strategy.states,
                               strategy.tables)
    with pytest.raises(InputError) as error:
        averaging_of(wrong, ("dp",))
    assert str(error.value).startswith("[loss] count_axes names axis 'cp', which the mesh lacks; did you mean 'dp'")
    near = wrong.__class__(wrong.name, Mesh((Axis("dp"),)), wrong.dims, wrong.states, FrozenMap(
        {"loss": FrozenMap({"preset": "token_mean", "count_axes": ("microbatches",)})}))
    with pytest.raises(InputError, match="did you mean 'microbatch'"):
        averaging_of(near, ("dp",))


GATHERED = {"parameters": {"x": "S*", "y": "S*"}, "optimizer": {"x": "S", "y": "S"}}


def lives(step: Step, group: str) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Axes -> the phases in which a group's copy over them is gathered and ends."""
    found: dict[tuple[str, ...], list[str]] = {}
    for event in step.phase("prepare", "forward", "backward", "reduce"):
        if event.group == group and event.value == "weight" and event.verb in ("gather", "free"):
            found.setdefault(event.axes, []).append(f"{event.phase} {event.verb}")
    return {axes: tuple(told) for axes, told in found.items()}


USE = ("forward gather", "forward free", "backward gather", "backward free")
MICROBATCH = ("forward gather", "backward free")
STEP = ("prepare gather", "reduce free")


@pytest.mark.parametrize(("life", "own", "tied", "staged"), [
    ("use", USE, MICROBATCH, USE), ("microbatch", MICROBATCH, MICROBATCH, STEP), ("step", STEP, STEP, STEP)])
def test_a_copy_lives_as_long_as_is_said_and_as_its_uses_need(life: str, own: tuple[str, ...], tied: tuple[str, ...],
                                                             staged: tuple[str, ...]) -> None:
    """A tied copy lives from its first use to its last, and in a pipeline microbatches overlap."""
    how = {"schedule": {"lifetime": {"x": life, "y": life}}, "states": GATHERED}
    step = on(two_units(tied=True), {"x": ["batch"], "y": ["batch"]}, **how)
    assert lives(step, "layer.weight") == {("x", "y"): own}
    assert lives(step, "embedding.weight") == {("x", "y"): tied}
    states = {"parameters": {"x": "S*"}, "optimizer": {"x": "S"}}
    step = on(mlp(), {"x": ["batch"], "pp": ["layer"]}, states=states, schedule={"lifetime": {"x": life}})
    assert lives(step, "layer.weight") == {("x",): staged}


@pytest.mark.parametrize(("x", "y"), [("use", "step"), ("microbatch", "use"), ("step", "microbatch")])
def test_axes_may_differ_in_how_long_their_copies_live(x: str, y: str) -> None:
    phases = {"use": USE, "microbatch": MICROBATCH, "step": STEP}
    step = on(abstract(), {"x": ["batch"], "y": ["batch"]}, states=GATHERED, schedule={"lifetime": {"x": x, "y": y}})
    assert lives(step, "layer.weight") == {("x",): phases[x], ("y",): phases[y]}


@pytest.mark.parametrize("life", ["use", "microbatch", "step"])
def test_what_is_fetched_is_there_as_long_as_what_is_gathered_from_it(life: str) -> None:
    """It ends whole, and with it what was gathered."""
    phases = {"use": USE, "microbatch": MICROBATCH, "step": STEP}
    step = on(abstract(), {"x": ["batch"]}, states={"parameters": {"x": "S*"}, "optimizer": {"x": "S"}},
              parameters={"tier": "host"}, schedule={"lifetime": {"x": life}})
    told = [e for e in step.phase("prepare", "forward", "backward", "reduce")
            if e.value == "weight" and e.verb in ("fetch", "free")]
    assert all(e.axes == () for e in told)
    assert tuple(f"{e.phase} {e.verb}".replace("fetch", "gather") for e in told) == phases[life]


def test_a_model_that_is_not_gathered_lives_for_its_use_on_the_device() -> None:
    step = on(abstract(), {"x": ["batch"]}, parameters={"tier": "host"})
    told = [f"{e.phase} {e.verb}" for e in step.phase("prepare", "forward", "backward", "reduce")
            if e.value == "weight"]
    assert told == ["forward fetch", "forward free", "backward fetch", "backward free"]


def test_events_of_equal_paths_are_told_apart() -> None:
    step = on(moe(), {"tp": ["loss.none", "ffn", "embed"]}, schedule={"sharing": "per_use"})
    assert len({e.path for e in step.events}) == len(step.events)
    copies: dict[str, list[int]] = {}
    for event in step.events:
        copies.setdefault(event.path.partition("#")[0], []).append(event.copy)
    assert max(map(len, copies.values())) > 1
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in copies.values())


def test_names_that_code_asks_for_are_those_of_the_tables() -> None:
    """The type checker knows them, and refuses to compare a verb, a phase or an op with any other text."""
    assert get_args(VerbName) == (*VERBS, *ORDERING) and get_args(Phase) == PHASES
    assert get_args(OpName) == tuple(OPS) and {row.family for row in OPS.values()} == {*get_args(OpFamily)}
