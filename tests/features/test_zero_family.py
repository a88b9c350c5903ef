"""MiCS, ZeRO++, parameters on the host and on nvme, Megatron's distributed optimizer: derived, costed, proved."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

import pytest
from agreement import compare
from conftest import run_placealg
from mutants import deletions
from random_dims import MODELS, judged

from placealg.cases.case import default_model
from placealg.check.prove import prove
from placealg.cost.communication import communication
from placealg.cost.document import ROUNDED, assumed
from placealg.cost.formula import Formula
from placealg.cost.memory import memory
from placealg.errors import InputError
from placealg.models.abstract import abstract
from placealg.models.config import resolve_model
from placealg.models.model import Model
from placealg.prover.verdict import NOT_COVERED, PROVED, REFUTED
from placealg.step.derive import derive
from placealg.step.program import Event, Step
from placealg.step.text import read_program, write_program
from placealg.strategy import catalogue as cat
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import parse_strategy_file
from placealg.strategy.spec import Strategy, strategy_on
from placealg.strategy.validation import check

NEW = ("mics", "zeropp", "offload_parameters")
NVME = '[parameters]\ntier = "nvme"\n[optimizer]\ntier = "nvme"\n'
BOTH = {"dp_replicate": ["batch"], "dp_shard": ["batch"]}
WHOLE_ZERO3 = {state: dict.fromkeys(BOTH, mode) for state, mode in
               (("parameters", "S*"), ("optimizer", "S"), ("gradients", "S"))}


def step_of(text: str, tables: str = "", model: Model | None = None) -> Step:
    return derive(parse_strategy_file(f'base = "{text}"\n{tables}').strategy, model or abstract())


def weights(step: Step, *phases: str) -> list[str]:
    """What happens to weights in these phases, without the group's name."""
    return [e.path.replace("layer.weight.", "") for e in step.phase(*phases) if e.value == "weight" and e.group]


def bytes_of(text: str) -> Formula:
    return Formula.parse(text, "bytes")


# MiCS

def test_mics_reduces_in_two_hops() -> None:
    """Within the partition group every microbatch, across groups once per step: hsdp's placement, so its program."""
    step = step_of("mics")
    reductions = [(e.phase, e.axes, e.to) for e in step.events if e.verb == "reduce"]
    assert reductions == [("backward", ("dp_shard",), "S"), ("reduce", ("dp_replicate",), "I")]
    assert step.events == step_of("hsdp").events
    over = communication(step).by_axes
    assert over["dp_shard"] == bytes_of("m*(2*w + wire)*Psi*(dp_shard - 1)/dp_shard")
    assert over["dp_replicate"] == bytes_of("2*wire*Psi/dp_shard*(dp_replicate - 1)/dp_replicate")


# ZeRO++

SIZES = {"dp_replicate": 16, "dp_shard": 8, "Psi": 10**9, "m": 1}


def across_nodes(step: Step, phase: str, verb: str, convention: str = "asymptotic") -> Fraction:
    """What one node of dp_shard devices sends to others, in sixteen-bit models.

    A ring over both axes crosses the node's border once; one over dp_replicate alone runs once per device of the node.
    """
    sent = communication(step, convention)
    found = Fraction(0)
    for event in sent.events:
        if event.path.startswith(f"{phase}.") and f".{verb}[" in event.path and "dp_replicate" in event.axes:
            value = event.formula.value(**SIZES)
            assert value is not None
            found += Fraction(value) * (1 if "dp_shard" in event.axes else SIZES["dp_shard"])
    return found / (2 * SIZES["Psi"])


def crossing(step: Step) -> list[Fraction]:
    return [across_nodes(step, *what) for what in (("forward", "gather"), ("backward", "gather"),
                                                   ("backward", "reduce"))]


def test_zeropp_sends_a_quarter_across_nodes() -> None:
    """Published: 3M -> 0.5M forward + 0 backward + 0.25M of gradients (ZeRO++, arXiv 2306.10209, table of volumes)."""
    plain = strategy_on("zero3 over both", {"dp_replicate": None, "dp_shard": None}, dims=BOTH, states=WHOLE_ZERO3)
    assert crossing(derive(plain, abstract())) == [1, 1, 1]
    assert crossing(step_of("zeropp")) == [Fraction(1, 2), 0, Fraction(1, 4)]


@pytest.mark.parametrize(("tables", "parts"), [
    ("[types]\nwire_w = 2", [1, 0, Fraction(1, 4)]),
    ("[types]\nwire = 2", [Fraction(1, 2), 0, 1]),
    ('[schedule]\nlifetime = { dp_replicate = "use", dp_shard = "use" }', [Fraction(1, 2)] * 2 + [Fraction(1, 4)]),
], ids=["no qwZ", "no qgZ", "no hpZ"])
def test_every_part_of_zeropp_counts(tables: str, parts: list[Fraction]) -> None:
    assert crossing(step_of("zeropp", tables)) == parts


def test_a_gather_in_two_hops_crosses_nodes_less() -> None:
    """MiCS, arXiv 2205.00119, section 3.3: (p - 1)M/p -> (p - k)M/p, p devices of which k are in a node."""
    p, k = SIZES["dp_replicate"] * SIZES["dp_shard"], SIZES["dp_shard"]
    at_once = step_of("zeropp", '[types]\nwire_w = 2\n[schedule]\nlifetime = {}')
    assert across_nodes(at_once, "forward", "gather", "exact") == Fraction(p - 1, p)
    in_hops = step_of("zeropp", "[types]\nwire_w = 2")
    assert across_nodes(in_hops, "forward", "gather", "exact") == Fraction(p - k, p)


def test_the_secondary_shard_lives_until_backward() -> None:
    step = step_of("zeropp")
    assert weights(step, "forward", "backward") == [
        "forward.gather[dp_replicate]", "forward.gather[dp_shard]", "forward.free[dp_shard]",
        "backward.gather[dp_shard]", "backward.free[dp_shard]", "backward.free[dp_replicate]"]
    held = memory(step)
    assert held.parameters == bytes_of("w*Psi/(dp_replicate*dp_shard)")
    assert held.transient == bytes_of("w*Psi/dp_shard + (w + g)*Psi_unit")
    plain = memory(step_of("zeropp", "[schedule]\nlifetime = {}"))
    assert plain.transient == bytes_of("(w + g)*Psi_unit")
    ahead = memory(step_of("zeropp", "[schedule]\nprefetch = 2"))
    assert ahead.transient == bytes_of("w*Psi/dp_shard + (3*w + g)*Psi_unit")


def test_a_wire_type_is_w_where_nothing_is_said() -> None:
    quiet, said = step_of("zero3"), step_of("zero3", "[types]\nwire_w = 1")
    assert all("wire_w" not in f.names for _, f in memory(said).items())
    assert communication(quiet).total == bytes_of("m*(2*w + wire)*Psi*(dp - 1)/dp")
    assert communication(said).total == bytes_of("m*(2*wire_w + wire)*Psi*(dp - 1)/dp")
    assert communication(said).total.value(Psi=8, dp=8) == 7 * (2 + 2)
    assert communication(said).total.value(Psi=8, dp=8, w=4) == 7 * (2 + 2)
    assert "wire_w = 1" in run_placealg("cost", "zeropp").out
    assert ROUNDED in assumed(step_of("zeropp")) and ROUNDED not in assumed(quiet)
    given = run_placealg("cost", "zero3", "--set", "wire_w=1")
    assert given.code == 0 and "wire_w = 1" in given.out and "2·wire_w" in given.out
    refused = run_placealg("cost", "zero3", "--set", "wire_w=none")
    assert refused.code == 2 and "[types] wire_w is 'none': bytes per element are a positive number" in refused.err


def test_what_a_wire_type_rounds_is_not_covered() -> None:
    assert prove(step_of("zero3")).not_covered == NOT_COVERED
    more = prove(step_of("zeropp")).not_covered[len(NOT_COVERED):]
    assert more == ("rounding of weights while they are gathered (bytes per element: 1 on the wire, 2 at rest)",
                    "rounding of gradients while they are reduced (bytes per element: 1/2 on the wire, 2 at rest)")
    group = step_of("zero3", '[groups.all]\nmatch = "*"\ntypes = { g = 4 }')
    assert prove(group).not_covered[len(NOT_COVERED):] == (
        "rounding of gradients while they are reduced (bytes per element: 2 on the wire, 4 at rest)",)


# parameters on the host

@pytest.mark.parametrize(("name", "host", "transient", "link"), [
    ("dp", "w*Psi", "w*Psi_unit", "(2*m + 1)*w*Psi"),
    ("zero1", "w*Psi", "w*Psi_unit", "(2*m + 1)*w*Psi"),
    ("zero3", "w*Psi/dp", "(w + g)*Psi_unit", "(2*m + 1)*w*Psi/dp"),
    ("fsdp_no_reshard", "w*Psi/dp", "w*Psi + g*Psi_unit", "(m + 1)*w*Psi/dp"),
    ("mics", "w*Psi/dp_shard", "(w + g)*Psi_unit", "(2*m + 1)*w*Psi/dp_shard"),
    ("zeropp", "w*Psi/(dp_replicate*dp_shard)",
     "w*Psi/dp_shard + (w + g)*Psi_unit", "(m + 1)*w*Psi/(dp_replicate*dp_shard)"),
])
def test_offloaded_parameters(name: str, host: str, transient: str, link: str) -> None:
    """Down for every use, up once per step; nothing else changes, and nothing rests on the device."""
    plain, step = step_of(name), step_of(f"{name}*offload_parameters")
    held, sent = memory(step), communication(step)
    assert held.parameters == bytes_of("0")
    assert (held.optimizer, held.gradients) == (memory(plain).optimizer, memory(plain).gradients)
    assert (held.host, held.nvme, held.transient) == (bytes_of(host), bytes_of("0"), bytes_of(transient))
    assert sent.total == communication(plain).total
    assert (sent.host_link, sent.nvme_link) == (bytes_of(link), bytes_of("0"))


def test_with_the_optimizer_on_the_host_updated_weights_stay_there() -> None:
    step = step_of("zero3*offload_parameters*offload_optimizer")
    held, sent = memory(step), communication(step)
    assert (held.states, held.host) == (bytes_of("0"), bytes_of("(w + g + o)*Psi/dp"))
    assert sent.host_link == bytes_of("m*(2*w + g)*Psi/dp")
    assert [e.path for e in step.phase("publish")] == ["publish.layer.weight.assign"]


def test_weights_are_fetched_before_they_are_gathered() -> None:
    step = step_of("zero3*offload_parameters")
    assert weights(step, *("forward", "backward", "publish")) == [
        "forward.fetch", "forward.gather[dp]", "forward.free",
        "backward.fetch", "backward.gather[dp]", "backward.free", "publish.offload"]
    assert memory(step_of("zero3*offload_parameters", "[schedule]\nprefetch = 1")).transient == bytes_of(
        "(2*w + g)*Psi_unit"), "a fetched shard arrives in its place in the gathered unit"


def test_a_tied_parameter_is_fetched_once_per_microbatch() -> None:
    step = step_of("zero3*offload_parameters", model=resolve_model("gpt2"))
    several = [e for e in step.reference.groups if len(e.sites) > 1]
    assert len(several) == 1
    fetched = [e.phase for e in step.events if e.verb == "fetch" and e.value == "weight"
               and e.group == several[0].name]
    assert fetched == ["forward"]


def test_a_group_may_rest_elsewhere_than_the_others() -> None:
    strategy = strategy_on("one group", {"dp": None}, dims={"dp": ["batch"]},
                           groups={"table": {"match": "embedding*", "parameters": {"dp": "O"}}})
    step = derive(strategy, resolve_model("gpt2"))
    assert {e.group.partition(".")[0] for e in step.events if e.verb in ("fetch", "offload")} == {"embedding"}
    assert prove(step).verdict == PROVED


# nvme, the tier beyond the host

def test_nvme_is_a_tier_of_its_own() -> None:
    step = step_of("zero3", NVME)
    held, sent = memory(step), communication(step)
    assert (held.states, held.nvme) == (bytes_of("0"), bytes_of("(w + o)*Psi/dp"))
    assert sent.host_link == bytes_of("m*(2*w + g)*Psi/dp")
    assert sent.nvme_link == bytes_of("(2*m + 1)*w*Psi/dp + 2*o*Psi/dp")
    assert held.host.value(Psi=800, Psi_unit=80, dp=8) == 2 * 100 + 12 * 10
    told = run_placealg("show", "zero3").out + run_placealg("cost", "zero3").out
    assert "nvme" not in told


def test_the_optimizer_state_comes_by_one_unit_at_a_time() -> None:
    step = step_of("zero1", '[optimizer]\ntier = "nvme"')
    held, sent = memory(step), communication(step)
    assert held.states == bytes_of("(w + g)*Psi") and held.nvme == bytes_of("o*Psi/dp")
    assert held.host == bytes_of("g*Psi/dp + o*Psi_unit/dp")
    assert sent.nvme_link == bytes_of("2*o*Psi/dp")
    assert sent.host_link == communication(step_of("zero1*offload_optimizer")).host_link == bytes_of("(w + g)*Psi/dp")
    (loop,) = [n for n in step.tree("update") if not isinstance(n, Event) and len(n.body) > 3]
    assert [e.verb for e in loop.body if isinstance(e, Event)] == [
        "clip", "fetch", "fetch", "update", "offload", "offload", "free", "fetch", "publish", "free", "free"]


@pytest.mark.parametrize("tables", [NVME, '[parameters]\ntier = "nvme"\n', '[optimizer]\ntier = "nvme"\n'])
@pytest.mark.parametrize("name", ["zero1", "hsdp", "zeropp"])
def test_tiers_are_proved_and_run(name: str, tables: str) -> None:
    found = compare(step_of(name, tables))
    assert (found.report.verdict, found.complaint) == (PROVED, "")


def copies(step: Step) -> Iterable[tuple[str, Step]]:
    """Each fetch and each offload deleted, one at a time."""
    for mutant in deletions(step):
        if mutant.events[0].verb in ("fetch", "offload"):
            yield mutant.story, mutant.step


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zero3", "zero1"])
def test_every_copy_between_tiers_is_needed(name: str) -> None:
    step = step_of(name, NVME)
    found = {story: compare(mutant) for story, mutant in copies(step)}
    assert {story for story, f in found.items() if f.report.verdict != REFUTED or f.complaint} == set()
    assert all(f.report.counterexample and f.report.counterexample.distributed for f in found.values())
    assert len(found) == sum(e.verb in ("fetch", "offload") for e in step.events) > 12


def test_a_program_over_three_tiers_reads_back_equal() -> None:
    strategy = parse_strategy_file(f'base = "zeropp"\n{NVME}').strategy
    step = derive(strategy, abstract())
    file = parse_strategy_file(write_program(step, strategy))
    again = derive(file.strategy, abstract())
    assert again.reference == step.reference
    assert read_program(file.events, again.reference, file.positions, file.loops) == step.events


def test_what_can_not_rest_elsewhere_is_refused() -> None:
    strategy = strategy_on("mine", {"dp": None}, dims={"dp": ["batch"]}, states={"gradients": {"dp": "S+O"}})
    with pytest.raises(InputError, match="gradients: only parameters and the optimizer state can be offloaded"):
        check(strategy)
    far = strategy_on("far", {"x": None}, dims={"x": ["batch"]}, parameters={"tier": "nvme"})
    with pytest.raises(InputError, match=r"\[parameters\] tier is 'nvme' on one side and 'host' on the other"):
        far * cat.offload_parameters()
    wide = strategy_on("wide", {"x": None}, dims={"x": ["batch"]}, types={"wire": 4})
    with pytest.raises(InputError, match=r"\[types\] wire is '1/2' on one side and '4' on the other"):
        cat.zeropp() * wide


# Megatron's distributed optimizer

ADAM = 4 + 4
MEGATRON = [  # Megatron Core, developer guide, Distributed Optimizer: bytes of a parameter and of a gradient; published
    (2, 2, 20, "4 + 16/dp"),
    (2, 4, 18, "6 + 12/dp"),
    (4, 4, 16, "8 + 8/dp"),
]


@pytest.mark.parametrize(("parameter", "gradient", "plain", "distributed"), MEGATRON)
def test_megatron_s_distributed_optimizer(parameter: int, gradient: int, plain: int, distributed: str) -> None:
    """The optimizer keeps fp32 copies of parameters and of gradients that are not fp32 themselves, and two moments."""
    optimizer = ADAM + 4 * (parameter != 4) + 4 * (gradient != 4)
    types = f"[types]\nw = {parameter}\ng = {gradient}\no = {optimizer}"
    whole, split = (memory(step_of(name, types)).states for name in ("dp", "zero1"))
    per = Formula.parse(f"({distributed})*Psi", "bytes")
    for dp in (1, 2, 64):
        assert split.value(Psi=192, dp=dp) == per.value(Psi=192, dp=dp)
    assert whole.value(Psi=192, dp=8) == plain * 192
    assert split.value(Psi=192, dp=8) != memory(step_of("zero1")).states.value(Psi=192, dp=8)


def test_groups_have_types_of_their_own() -> None:
    """fp32 norms in a 16-bit model: states and volumes, group by group, against a sum over the model's parameters."""
    model, dp = resolve_model("llama-3-8b"), 8
    types = '[groups.norms]\nmatch = "*norm*"\ntypes = { w = 4, g = 4, wire = 4, o = 8, wire_w = 3 }\n'
    step = step_of("zero1", types, model)
    units = {u.name: u.count.evaluate(model.sizes) for u in model.units}
    norms, rest = (sum(p.elements.evaluate(model.sizes) * units[p.unit] for p in model.parameters
                       if ("norm" in p.name) == wanted) for wanted in (True, False))
    assert norms and rest and norms + rest == model.total()
    assert memory(step).states.value(dp=dp) == norms * (4 + 4 + Fraction(8, dp)) + rest * (2 + 2 + Fraction(12, dp))
    assert communication(step).total.value(dp=dp) == Fraction(dp - 1, dp) * (norms * (4 + 4) + rest * (2 + 2))
    gathered = communication(step_of("zero3", types, model)).by_phase["forward"].value(dp=dp)
    assert gathered == Fraction(dp - 1, dp) * (norms * 3 + rest * 2)


# composition

def fresh(name: str, number: int) -> Strategy:
    """A catalogue entry on axes that no other entry has."""
    return cat.instantiate(name, *(f"{axis}_{number}" for axis in cat.entry(name).axes))


def product(new: str, other: str) -> Strategy:
    """Both on axes of their own; a modifier stands to the right."""
    left, right = (other, new) if cat.entry(new).kind == "modifier" else (new, other)
    return cat.standalone(fresh(left, 1) * fresh(right, 2))


PAIRS = [(new, other) for new in NEW for other in cat.catalogue() if (new, other) != ("offload_parameters",) * 2]
DETAILED = {name for name in cat.catalogue() if cat.standalone(cat.instantiate(name)).detailed}


@pytest.mark.parametrize(("new", "other"), PAIRS)
def test_every_pair_composes(new: str, other: str) -> None:
    strategy = product(new, other)
    check(strategy)
    assert len(strategy.mesh.axes) == (len(cat.entry(new).axes) + len(cat.entry(other).axes) or 1)


def test_what_does_not_compose_is_refused_by_a_rule() -> None:
    with pytest.raises(InputError, match="offload_parameters is applied twice"):
        product("offload_parameters", "offload_parameters")
    for new in ("mics", "zeropp"):
        with pytest.raises(InputError, match="both use axis 'dp_replicate'; strategies compose over disjoint axes"):
            cat.instantiate(new) * cat.hsdp()
    with pytest.raises(InputError, match="modifier offload_parameters applies to what stands to its left"):
        parse_strategy("offload_parameters*zero3")


@pytest.mark.parametrize(("new", "other"), [(n, o) for n, o in PAIRS if o not in DETAILED])
def test_pairs_of_whole_units_are_proved(new: str, other: str) -> None:
    assert prove(derive(product(new, other), abstract())).verdict == PROVED


@pytest.mark.slow
@pytest.mark.parametrize(("new", "other"), [(n, o) for n, o in PAIRS if o in DETAILED])
def test_pairs_of_ops_are_proved(new: str, other: str) -> None:
    strategy = product(new, other)
    assert prove(derive(strategy, resolve_model(default_model(strategy)))).verdict == PROVED


@pytest.mark.parametrize("text", ["zeropp*ep*offload_parameters", "mics*pp*offload_parameters"])
def test_composites_of_ops_are_proved(text: str) -> None:
    strategy = parse_strategy(text)
    assert prove(derive(strategy, resolve_model(default_model(strategy)))).verdict == PROVED


@pytest.mark.slow
@pytest.mark.parametrize("text", ["zeropp*tp_sp*offload_parameters", "zero1*tp*offload_parameters*offload_optimizer"])
def test_composites_of_ops_are_proved_and_run(text: str) -> None:
    assert judged(derive(parse_strategy(text), MODELS["gpt"])) == (PROVED, "")
