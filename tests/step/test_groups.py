"""Which parameters form a group, what a group knows of them, and the plan of each: where its states are placed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from random_programs import two_units

from placealg.arith import Monomial
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.abstract import abstract, statistics
from placealg.models.model import Model, Parameter, Statistic, Unit
from placealg.step.event import Clause, Group
from placealg.step.groups import Plan, group_parameters, owners
from placealg.strategy.spec import Strategy, overlay, strategy_on

L, H, F, V = (Monomial.of(name) for name in "LhfV")
MATRIX, WIDE, VECTOR = {"embed": H, "ffn": F}, {"vocab": V, "embed": H}, {"embed": H}


def parameter(name: str, dims: dict[str, Monomial], *sites: str, rows: tuple[str, ...] = ()) -> Parameter:
    return Parameter(name, name.split(".")[0], FrozenMap(dims), sites or (name.split(".")[0],), rows)


def model(*parameters: Parameter, **rest: Any) -> Model:
    """A model of units that run whole, in the order of their parameters; `layer` is repeated."""
    units = dict.fromkeys(p.unit for p in parameters)
    return Model("small", tuple(Unit(u, L if u == "layer" else Monomial()) for u in units), parameters, **rest)


def mine(*axes: str, **tables: Any) -> Strategy:
    return strategy_on("mine", dict.fromkeys(axes or ("x", "y")), dims={a: ["batch"] for a in axes or ("x", "y")},
                       **tables)


SMALL = model(parameter("first.table", WIDE, rows=("vocab",)), parameter("layer.norm", VECTOR),
              parameter("layer.up", MATRIX), parameter("layer.down", MATRIX, rows=("ffn",)))


def names(plans: tuple[Plan, ...]) -> dict[str, tuple[str, ...]]:
    return {p.group.name: p.group.parameters for p in plans}


def test_parameters_of_a_unit_that_are_treated_alike_are_one_group_in_forward_order() -> None:
    plans = group_parameters(mine(), SMALL)
    assert names(plans) == {"first.weight": ("first.table",), "layer.weight": ("layer.norm", "layer.up", "layer.down")}
    assert replace(plans[1].group, shares=()) == Group(
        "layer.weight", "layer", ("layer",), ("layer.norm", "layer.up", "layer.down"), (H, H * F, H * F), L, "adamw",
        "elementwise", (), FrozenMap(), (),
        (FrozenMap({"embed": H}), FrozenMap({"embed": H, "ffn": F}), FrozenMap({"ffn": F})), False)
    assert plans[0].group.rows == (FrozenMap({"vocab": V}),) and plans[0].group.count == Monomial()


def test_the_largest_class_of_a_unit_is_its_weight_and_others_keep_their_names() -> None:
    norms = {"norms": {"match": "norm", "parameters": {"x": "S*"}}}
    plans = group_parameters(mine(groups=norms), SMALL)
    assert names(plans) == {"first.weight": ("first.table",), "layer.norm": ("layer.norm",),
                            "layer.weight": ("layer.up", "layer.down")}
    two = model(parameter("layer.a", VECTOR), parameter("layer.b", VECTOR), parameter("layer.c", MATRIX))
    rule = {"v": {"match": "layer.[ab]", "optimizer": {"x": "S"}}}
    assert names(group_parameters(mine(groups=rule), two)) == {
        "layer.a": ("layer.a",), "layer.b": ("layer.b",), "layer.weight": ("layer.c",)}
    rule["v"]["match"] = "layer.[bc]"
    assert [*names(group_parameters(mine(groups=rule), two))] == ["layer.a", "layer.weight"]


def test_the_largest_class_keeps_a_name_that_another_has() -> None:
    """As of a table of more positions than there are tokens, beside the table of tokens."""
    unit = model(parameter("layer.weight", VECTOR), parameter("layer.up", MATRIX), parameter("layer.down", MATRIX))
    rule = {"v": {"match": "layer.weight", "optimizer": {"x": "S"}}}
    assert names(group_parameters(mine(groups=rule), unit)) == {
        "layer.weight": ("layer.weight",), "layer.up": ("layer.up", "layer.down")}
    rule["v"]["match"] = "layer.up"
    assert names(group_parameters(mine(groups=rule), unit)) == {
        "layer.weight": ("layer.weight", "layer.down"), "layer.up": ("layer.up",)}


def test_sizes_that_are_known_count_in_what_is_largest_and_others_as_a_thousand() -> None:
    """A class is as large as all its parameters together; of equal classes the first one is the weight."""
    rule = {"v": {"match": "layer.b*", "optimizer": {"x": "S"}}}

    def largest(*parameters: Parameter, **sizes: int) -> str:
        plans = group_parameters(mine(groups=rule), model(*parameters, sizes=FrozenMap(sizes)))
        return next(p.group.parameters[0] for p in plans if p.group.name == "layer.weight")

    a, b = parameter("layer.a", {"embed": H}), parameter("layer.b", {"ffn": F})
    assert largest(a, b) == "layer.a" and largest(b, a) == "layer.b"
    assert largest(a, b, h=2, f=3) == "layer.b" and largest(b, a, h=3, f=2) == "layer.a"
    assert largest(a, b, f=1001) == "layer.b" and largest(a, b, f=1000) == "layer.a"
    assert largest(b, a, f=999) == "layer.a"
    assert largest(a, b, parameter("layer.b2", {"ffn": F}), h=3, f=2) == "layer.b"
    assert largest(a, b, parameter("layer.b2", {"ffn": F}), h=5, f=2) == "layer.a"


@pytest.mark.parametrize("apart", ["sites", "optimizer", "split", "summed", "statistic", "rule"])
def test_what_sets_parameters_apart(apart: str) -> None:
    """The units that use them, the rule, the optimizer, the axes that split or sum them, and being statistics."""
    two = model(parameter("layer.a", MATRIX), parameter("layer.b", MATRIX, *(("layer", "head") if apart == "sites" else
                                                                            ("layer",))))
    strategy, summed, split = mine(), {}, {}
    match apart:
        case "optimizer":
            two = model(parameter("layer.a", MATRIX), parameter("layer.b", VECTOR))
            strategy = mine(optimizer={"name": "muon"})
        case "split":
            split = {"layer.a": {"x": "ffn"}}
        case "summed":
            summed = {"layer.a": ("x",), "layer.b": ("x", "y")}
        case "statistic":
            two = replace(two, statistics=FrozenMap({"layer.b": Statistic()}))
        case "rule":
            strategy = mine(groups={"b": {"match": "layer.b", "types": {"w": 4}}})
    assert names(group_parameters(strategy, two, summed, split)) == {"layer.weight": ("layer.a",),
                                                                     "layer.b": ("layer.b",)}


def test_a_rule_that_matches_nothing_is_refused() -> None:
    groups = {"norms": {"match": "layer.norn", "parameters": {"x": "S*"}}}
    with pytest.raises(InputError) as error:
        group_parameters(mine(groups=groups), SMALL)
    assert str(error.value) == ("[groups.norms] match = 'layer.norn' matches no parameter of small; did you mean "
                                "'layer.norm'?")


def test_a_parameter_that_no_unit_uses_is_refused() -> None:
    lonely = model(replace(parameter("layer.a", MATRIX), sites=()))
    with pytest.raises(InputError) as error:
        group_parameters(mine(), lonely)
    assert str(error.value) == "parameter 'layer.a' of small is used by no unit"


def test_a_unit_without_parameters_has_no_group() -> None:
    assert [p.group.unit for p in group_parameters(mine(), two_units(tied=True))] == ["embedding", "layer"]


def test_the_first_rule_that_matches_says_optimizer_types_and_modes() -> None:
    groups = {"up": {"match": "up", "optimizer": "lamb", "types": {"w": 4, "wire_w": 1}, "parameters": {"x": "S*"}},
              "layer": {"match": "layer.*", "optimizer": "sgd"}}
    plans = {p.group.name: p for p in group_parameters(mine(groups=groups, optimizer={"name": "muon"}), SMALL)}
    lamb = plans["layer.up"]
    assert (lamb.group.optimizer, lamb.group.locality) == ("lamb", "matrix")
    assert lamb.group.whole_reads == ("grad_sum", "master", "moments")
    assert lamb.group.types == {"w": "4", "wire_w": "1"} and lamb.gather_bytes == "wire_w" and lamb.gathered == ("x",)
    rest = plans["layer.weight"]
    assert (rest.group.optimizer, rest.group.locality, rest.group.whole_reads) == ("sgd", "elementwise", ())
    assert rest.group.parameters == ("layer.norm", "layer.down")
    assert rest.group.types == {} and rest.gather_bytes == "" and rest.gathered == ()
    assert plans["first.weight"].group.optimizer == "adamw", "a table of tokens"
    named = group_parameters(mine(groups={"table": {"match": "table", "optimizer": "muon"}}), SMALL)
    assert named[0].group.optimizer == "muon" and named[0].group.one_moment


def test_what_reads_whole_matrices_is_never_said_to_read_elements() -> None:
    """Two strategies compose into what one file may not say; the locality that asks for more holds."""
    for name, said, whole in (("adamw", "matrix", ("grad_sum", "master", "moments")), ("adamw", "elementwise", ()),
                              ("muon", "matrix", ("grad_sum", "moments"))):
        assert mine(optimizer={"name": name, "locality": said}).optimizer() == (name, said, whole)
    elements = mine(optimizer={"locality": "elementwise"})
    muon = overlay(elements, {"optimizer": {"name": "muon"}})
    assert muon.optimizer() == ("muon", "matrix", ("grad_sum", "moments"))
    with pytest.raises(InputError, match="lamb updates a matrix at a time"):
        overlay(muon, {"optimizer": {"name": "lamb", "locality": "elementwise"}})


def test_an_optimizer_of_matrices_alone_has_adamw_beside_it_for_vectors() -> None:
    """Of an abstract model nobody knows the shapes: its parameters are taken for matrices."""
    muon = mine(optimizer={"name": "muon"})
    groups = {p.group.name: p.group for p in group_parameters(muon, SMALL)}
    assert (groups["layer.norm"].optimizer, groups["layer.norm"].whole_reads) == ("adamw", ())
    assert groups["layer.norm"].locality == "elementwise"
    assert (groups["layer.weight"].optimizer, groups["layer.weight"].locality) == ("muon", "matrix")
    assert groups["layer.weight"].whole_reads == ("grad_sum", "moments")
    alike = group_parameters(muon, replace(SMALL, abstract=True))
    assert [len(p.group.parameters) for p in alike] == [1, 3]
    whole, = group_parameters(muon, abstract())
    assert (whole.group.optimizer, whole.group.locality) == ("muon", "matrix")


@pytest.mark.parametrize("name", ["adafactor", "lamb"])
def test_a_norm_of_the_parameter_reads_vectors_whole_too(name: str) -> None:
    plans = group_parameters(mine(optimizer={"name": name}), SMALL)
    assert {p.group.optimizer for p in plans} == {name} and len(plans) == 2
    assert {p.group.whole_reads for p in plans} == {("grad_sum", "master", "moments")}


def test_statistics_run_whatever_the_optimizer_is() -> None:
    groups = {p.group.name: p.group for p in group_parameters(mine(optimizer={"name": "lamb"}), statistics())}
    running = groups["layer.running"]
    assert (running.optimizer, running.locality, running.whole_reads) == ("running", "elementwise", ())
    assert running.statistic and not groups["layer.weight"].statistic and groups["layer.weight"].optimizer == "lamb"


def test_a_plan_says_along_which_axes_each_state_is_placed() -> None:
    states = {"parameters": {"x": "S*", "y": "R"}, "optimizer": {"x": "S", "z": "S"}, "gradients": {"y": "S"}}
    plan = group_parameters(mine("z", "y", "x", states=states), SMALL)[1]
    assert plan.axes == ("z", "y", "x"), "in the order of the mesh"
    assert (plan.gathered, plan.owned, plan.scattered) == (("x",), ("z", "x"), ("y",))
    assert plan.summed == ("z", "y", "x"), "every axis that splits the batch"
    assert plan.reduced_each_microbatch == ("y",) and plan.reduced_once == ("z", "x")
    assert plan.grad_sum_axes == ("z", "y", "x")
    assert not plan.materialized and plan.gather_bytes == ""


def test_what_is_split_by_a_dim_is_settled_along_that_axis() -> None:
    """The sums are those that are said, else over the axes of the data."""
    states = {"parameters": {"x": "S*", "y": "S*"}, "optimizer": {"x": "S", "y": "S"}}
    split, summed = {"layer.up": {"x": "ffn"}, "layer.norm": {}}, {"layer.up": ("y",)}
    plans = {p.group.name: p for p in group_parameters(mine(states=states), SMALL, summed, split)}
    up, rest = plans["layer.up"], plans["layer.weight"]
    assert up.group.split == ("x",) and rest.group.parameters == ("layer.norm", "layer.down")
    assert (up.axes, up.gathered, up.owned, up.summed) == (("y",), ("y",), ("y",), ("y",))
    assert rest.group.split == () and rest.axes == rest.gathered == rest.owned == rest.summed == ("x", "y")
    assert up.cut == ("x",) and rest.cut == ()


def test_along_an_axis_of_layers_a_matrix_is_whole_on_its_stage() -> None:
    plan, = group_parameters(mine(), abstract(), {}, {"layer.weight": {"x": "layer", "y": "ffn"}})
    assert plan.group.split == ("x", "y") and plan.cut == ("y",)


def test_gradients_that_rest_nowhere_end_with_the_update() -> None:
    plan, = group_parameters(mine(states={"gradients": {"x": "M"}}), abstract())
    assert plan.materialized and plan.scattered == ()
    split, = group_parameters(mine(states={"gradients": {"x": "M"}}), abstract(), {}, {"layer.weight": {"x": "d"}})
    assert not split.materialized, "along an axis that splits the parameter nothing is placed"


def test_a_group_s_modes_come_beside_those_of_the_strategy() -> None:
    states = {"parameters": {"x": "S*"}, "optimizer": {"x": "S"}}
    groups = {"up": {"match": "up", "parameters": {"y": "S*"}, "gradients": {"x": "S"}},
              "down": {"match": "down", "parameters": {"x": "R+O"}}}
    plans = {p.group.parameters[0]: p for p in group_parameters(mine(states=states, groups=groups), SMALL)}
    assert (plans["layer.up"].gathered, plans["layer.up"].scattered) == (("x", "y"), ("x",))
    assert plans["layer.up"].owned == ("x",) and plans["layer.up"].weight_tier == "device"
    assert (plans["layer.down"].gathered, plans["layer.down"].weight_tier) == ((), "host")
    assert plans["layer.norm"].gathered == ("x",) and plans["layer.norm"].weight_tier == "device"
    offloaded = mine(states=states, groups=groups, parameters={"tier": "nvme"})
    assert {p.weight_tier for p in group_parameters(offloaded, SMALL)} == {"nvme"}


def plan_on(parameters: str, optimizer: str, states: dict[str, dict[str, str]] | None = None) -> Plan:
    plan, = group_parameters(mine(states=states or {}, parameters={"tier": parameters}, optimizer={"tier": optimizer}),
                             abstract())
    return plan


@pytest.mark.parametrize(("tier", "updated"), [("device", "device"), ("host", "host"), ("nvme", "host")])
def test_the_optimizer_runs_on_the_device_or_on_the_host(tier: str, updated: str) -> None:
    plan = plan_on("device", tier)
    assert (plan.weight_tier, plan.state_tier, plan.update_tier) == ("device", tier, updated)
    assert plan.updates_on_host == (updated == "host")
    assert plan_on(tier, "device").weight_tier == tier and plan_on(tier, "device").update_tier == "device"


@pytest.mark.parametrize(("gradients", "accumulated"), [({}, "device"), ({"x": "S"}, "device"),
                                                       ({"x": "S", "y": "S"}, "host")])
def test_gradients_accumulate_on_the_host_where_each_is_reduced_at_once(gradients: dict[str, str],
                                                                      accumulated: str) -> None:
    plan = plan_on("device", "host", {"gradients": gradients})
    assert plan.grad_sum_tier == accumulated and plan.accumulates_on_host == (accumulated == "host")
    assert plan_on("device", "device", {"gradients": gradients}).grad_sum_tier == "device"


def test_gradients_that_nobody_sums_accumulate_on_the_device() -> None:
    plan, = group_parameters(strategy_on("mine", {"x": None}, dims={"x": []}, optimizer={"tier": "host"}), abstract())
    assert (plan.summed, plan.updates_on_host, plan.accumulates_on_host) == ((), True, False)


@pytest.mark.parametrize(("optimizer", "gradients", "axes"), [
    ({}, {}, ()), ({"x": "S"}, {}, ("x",)), ({}, {"y": "S"}, ("y",)), ({"y": "S"}, {"x": "S"}, ("x", "y"))])
def test_where_the_optimizer_reads_a_gradient_that_is_sharded(optimizer: dict[str, str], gradients: dict[str, str],
                                                              axes: tuple[str, ...]) -> None:
    """Along the axes where it rests sharded, and where it is reduced to its owners."""
    assert plan_on("device", "device", {"optimizer": optimizer, "gradients": gradients}).grad_sum_axes == axes


def test_an_optimizer_that_is_sharded_where_nothing_is_summed_reads_a_whole_gradient() -> None:
    strategy = strategy_on("mine", {"x": None}, dims={"x": []}, states={"optimizer": {"x": "S"}})
    plan, = group_parameters(strategy, abstract())
    assert (plan.owned, plan.summed, plan.grad_sum_axes) == (("x",), (), ())


@pytest.mark.parametrize(("gradients", "optimizer", "axes"), [
    ({}, {"x": "S"}, ("x",)), ({}, {"idle": "S"}, ("idle",)), ({}, {"x": "S", "idle": "S"}, ("x", "idle")),
    ({"x": "S"}, {"idle": "S"}, ("x",)), ({"idle": "S"}, {"x": "S"}, ("x", "idle"))])
def test_what_follows_to_the_host_is_what_a_rank_owns(gradients: dict[str, str], optimizer: dict[str, str],
                                                      axes: tuple[str, ...]) -> None:
    """Along an axis without data nothing is summed, and yet only the owner's part goes to the host.

    Where each microbatch's gradient follows, it is as the gradients rest.
    """
    strategy = strategy_on("mine", {"x": None, "idle": None}, dims={"x": ["batch"], "idle": []},
                           states={"gradients": gradients, "optimizer": optimizer}, optimizer={"tier": "host"})
    plan, = group_parameters(strategy, abstract())
    assert plan.summed == ("x",) and plan.grad_sum_axes == axes


def test_owners_are_one_condition_for_each_axis() -> None:
    assert owners(("x", "y")) == (Clause("x"), Clause("y")) and owners(()) == ()
