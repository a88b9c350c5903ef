"""What is asked of the ops of a step, which uses of parameters are followed, and which groups are treated alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import z3
from test_derived import MODELS
from test_flow import step_of
from test_parameter_uses import Known

from placealg.arith import ONE, Monomial
from placealg.frozen import FrozenMap
from placealg.models.abstract import abstract, statistics, two_losses
from placealg.models.model import Model, Parameter, Statistic, Unit
from placealg.prover.calculus.contribution import Term, Value, equality
from placealg.prover.calculus.machine import Site
from placealg.prover.calculus.microbatches import CASES
from placealg.prover.calculus.places import NoRule
from placealg.prover.calculus.positions import DEVICE, at
from placealg.prover.evidence import symbols
from placealg.prover.obligations import Failure
from placealg.prover.ops import paths
from placealg.prover.ops.findings import SEED, Demand, Flow, GradientPart
from placealg.prover.ops.flow import Flows
from placealg.prover.ops.op_obligations import (
    WHOLE,
    network_obligations,
    site_signature,
    sites_of,
    supposed,
    unfollowed,
)
from placealg.prover.ops.paths import Sum, exact
from placealg.prover.symmetry import signature
from placealg.step.derive import derive
from placealg.step.event import POSITIONS, Clause, Event
from placealg.step.lower import lowered
from placealg.step.program import Group, Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import parse_strategy_file
from placealg.strategy.spec import strategy_on
from placealg.strategy.streams import Stream

GPT, MLP, TIED = step_of("zero1*tp", "gpt"), step_of("mlp", "mlp"), step_of("zero1*pp", "gpt")
HERE = exact({("dp", at("batch"))})
HALF = paths.scaled(HERE, ONE / Monomial.of("tp"))


class Given(Flows):
    """What following a microbatch found at each position, as it is given."""

    def __init__(self, step: Step, flows: Callable[[str], Flow]):
        super().__init__(step)
        self.given = {position: flows(position) for position in POSITIONS}

    def at(self, position: str) -> Flow:
        return self.given[position]


def demand(held: Sum, event: str = "forward.layer.mlp.up.compute", says: str = "reads x",
           obligation: str = "forward") -> Demand:
    return Demand(event, says, held, paths.mask_of(held), obligation)


def happens(formula: Any, *premises: Any) -> bool:
    solver = z3.Solver()
    solver.add(formula, *premises)
    return bool(solver.check() == z3.sat)


AT, TP = symbols.coordinate("dp", at("batch")), symbols.size("tp")
ON, OFF = symbols.device("dp") == AT, symbols.device("dp") != AT


# demands

def asked(*demands: Demand, full: bool = True, step: Step = MLP) -> tuple[Failure, ...]:
    found = network_obligations(step, Given(step, lambda _: Flow(demands=list(demands))), full)
    return tuple(found.failures.values())


def test_a_demand_fails_where_a_rank_holds_what_does_not_count_once() -> None:
    (right,) = asked(demand(HERE))
    assert not happens(right.formula) and right.says == "reads x" and right.held == HERE
    (miscounted,) = asked(demand(HALF))
    assert happens(miscounted.formula, TP == 2, ON) and not happens(miscounted.formula, TP == 1)
    assert not happens(miscounted.formula, OFF), "ranks that hold nothing read nothing"
    (nothing,) = asked(demand(()))
    assert happens(nothing.formula, ON) and happens(nothing.formula, OFF)
    (garbage,) = asked(demand(paths.undefined(paths.mask_of(HERE))))
    assert happens(garbage.formula, ON) and not happens(garbage.formula, OFF)
    (spoilt,) = asked(demand((replace(HERE[0], garbage=True),)))
    assert happens(spoilt.formula, ON), "garbage that counts once is garbage"
    sides = tuple(replace(v, sides=equality("tp", DEVICE, "0")) for v in HERE)
    (somewhere,) = asked(demand(sides))
    assert happens(somewhere.formula, ON) and not happens(somewhere.formula, symbols.device("tp") == 0)
    (either,) = asked(demand((*HERE, *HALF)))
    assert happens(either.formula, TP == 2, ON), "every class must count once"


def test_a_demand_is_an_instance_of_its_own_obligation_in_every_case() -> None:
    lost = demand((), obligation="schedule", says="waits")
    found = asked(demand(HALF), lost)
    assert [(f.obligation, f.event, f.says) for f in found] == [
        ("forward", "forward.layer.mlp.up.compute", "reads x"), ("schedule", "forward.layer.mlp.up.compute", "waits")]
    for failure in found:
        assert set(failure.cases) == set(CASES)
        assert failure.instances == sum(len({i.position for i in c.iterations}) for c in CASES)


def test_what_is_wrong_at_one_position_is_wrong_in_the_cases_that_have_it() -> None:
    wrong = demand(HALF)
    flows = Given(MLP, lambda position: Flow(demands=[wrong] if position == "middle" else []))
    (failure,) = network_obligations(MLP, flows).failures.values()
    assert set(failure.cases) == {c for c in CASES if any(i.position == "middle" for i in c.iterations)}
    single = replace(MLP, reference=replace(MLP.reference, microbatches=1))
    assert network_obligations(single, flows).failures == {}
    flows = Given(single, lambda _: Flow(demands=[wrong]))
    (failure,) = network_obligations(single, flows).failures.values()
    assert failure.cases == (CASES[0],) and failure.instances == 1


def test_what_the_data_decide_is_counted_and_needs_no_formula() -> None:
    flows = Given(MLP, lambda _: Flow(demands=[demand(HERE), demand(HALF)]))
    short, full = network_obligations(MLP, flows), network_obligations(MLP, flows, full=True)
    assert short.instances == full.instances and short.instances["forward"] == 2 * 23
    assert len(short.failures) == 1 and len(full.failures) == 2 and (short.full, full.full) == (False, True)
    assert [f.held for f in short.failures.values()] == [HALF]


@pytest.mark.parametrize("step", [MLP, TIED], ids=["mlp", "tied"])
def test_nothing_can_fail_in_a_derived_program(step: Step) -> None:
    found = network_obligations(step, Flows(step))
    assert found.failures == {} and found.open == [] and found.instances["forward"] > 100


def test_an_event_that_no_rule_covers_is_named() -> None:
    step = Step(MLP.reference, tuple(replace(e, tier="host") if e.value == "layer.mlp.gelu" else e for e in MLP.events))
    with pytest.raises(NoRule) as found:
        network_obligations(step, Flows(MLP))
    assert str(found.value) == ("forward.layer.mlp.gelu.compute: no transfer rule for compute of a tensor on tier "
                                "host in layout own") and found.value.event == "forward.layer.mlp.gelu.compute"
    with pytest.raises(NoRule, match="among stages of pp inside the loop"):
        inside = Event("forward", "all_reduce", "layer.mlp.down", unit="layer", axes=("pp",), source="P", to="I")
        network_obligations(Step(TIED.reference, (inside,)), Flows(TIED))


def test_what_cannot_be_followed_is_told_once_in_program_order() -> None:
    early, late = (Demand(e, "cannot be followed", (), frozenset())
                   for e in ("forward.layer.mlp.up.compute", "backward.layer.mlp.up.grad.compute"))
    flows = Given(MLP, lambda position: Flow(open=[late, early] if position == "only" else
                                             [early] if position == "first" else []))
    assert unfollowed(MLP, flows) == (early, late)
    assert network_obligations(MLP, flows).open == [f"{d.event} {d.says}" for d in (early, late)]
    for position in POSITIONS:
        here = Given(MLP, lambda p, q=position: Flow(open=[late] if p == q else []))  # type: ignore[misc]
        assert unfollowed(MLP, here) == (late,)
    for one, obligation in ((early, "forward"), (late, "gradient")):
        failure = supposed(one, MLP)
        assert (failure.obligation, failure.event, failure.says) == (obligation, one.event, one.says)
        assert z3.is_true(failure.formula)


# random streams

def keyed(step: Step, *keys: str) -> Step:
    return replace(step, reference=replace(step.reference, random_keys=tuple(map(Stream.parse, keys))))


DROPS = tuple(f"forward.{n}.compute" for n in ("embedding.dropped", "layer.attn.core.dropped", "layer.attn.dropped",
                                              "layer.mlp.dropped"))


def drawn(step: Step, *keys: str) -> dict[str, Any]:
    """Event -> when it draws other numbers than the reference."""
    found = network_obligations(keyed(step, *keys), Flows(step))
    assert found.instances["random"] == len(DROPS) * max(1, len(keys)) or found.facts
    return {f.event: f.formula for f in found.failures.values() if f.obligation == "random"}


def test_a_stream_keyed_by_logical_coordinates_holds_for_each_op_that_draws() -> None:
    found = network_obligations(GPT, Flows(GPT))
    assert found.facts == {"random": {"an op draws from a stream keyed by logical coordinates": len(DROPS)}}
    assert "random" not in network_obligations(MLP, Flows(MLP)).instances, "nothing draws"


def test_a_stream_keyed_by_rank_is_another_on_every_rank_but_the_first() -> None:
    found = drawn(GPT, "rank(tp)")
    assert tuple(found) == DROPS
    for wrong in found.values():
        assert happens(wrong, symbols.device("tp") == 1) and not happens(wrong, symbols.device("tp") == 0)
    failure = next(iter(network_obligations(keyed(GPT, "rank(tp)"), Flows(GPT)).failures.values()))
    assert failure.says == "draws from a stream keyed by rank(tp): equal to the reference in distribution only"
    assert failure.cases == () and failure.instances == 1


def test_a_stream_keyed_by_a_local_index_is_another_where_the_dim_is_split() -> None:
    found = drawn(GPT, "local(heads)")
    assert tuple(found) == ("forward.layer.attn.core.dropped.compute",), "only the core's result has heads"
    heads = symbols.coordinate("tp", at("heads"))
    assert all(happens(w, heads == 1) and not happens(w, heads == 0) for w in found.values())
    facts = network_obligations(keyed(GPT, "local(heads)"), Flows(GPT)).facts["random"]
    assert sum(facts.values()) == len(DROPS) - 1, "the others draw by logical coordinates"
    assert drawn(GPT, "local(seq)") == {}
    batch, m = symbols.coordinate("dp", at("batch")), symbols.size("microbatch")
    for wrong in drawn(GPT, "local(batch)").values():
        assert happens(wrong, batch == 1, m == 1) and happens(wrong, batch == 0, m == 2)
        assert not happens(wrong, batch == 0, m == 1)


def sliced(step: Step, **fields: Any) -> Step:
    """A forward whose dropout behind the attention runs on a slice of the sequence, and is gathered behind it."""
    dropped, operand = "layer.attn.dropped", "layer.attn.out.biased"
    cut = Event("forward", "slice", operand, unit="layer", axes=("tp",), source="I", to="S(seq)", version="x", **fields)
    back = Event("forward", "all_gather", dropped, unit="layer", axes=("tp",), source="S(seq)", to="I", version="y")

    def change(e: Event) -> list[Event]:
        if e.path == f"forward.{operand}.compute":
            return [e, cut]
        if e.path == f"forward.{dropped}.compute":
            return [replace(e, reads=(f"{operand}@x",)), back]
        return [replace(e, reads=("layer.in", f"{dropped}@y"))] if e.path == "forward.layer.residual1.compute" else [e]
    return with_events(step, change)


def test_each_draw_is_asked_where_its_own_result_is_held() -> None:
    """Recomputed whole, it draws by logical coordinates, and the same draw in forward by an index of the slice."""
    drops = [f"{phase}.layer.attn.dropped.compute" for phase in ("forward", "backward")]
    step = sliced(step_of("zero1*tp*recompute_full", "gpt"))
    flow = Flows(step).at("only")
    assert (flow.faults, flow.open) == ([], [])
    assert [("tp", at("seq")) in flow.masks[path] for path in drops] == [True, False]
    assert list(drawn(step, "local(seq)")) == drops[:1]


def test_a_draw_is_asked_at_every_position() -> None:
    for position in ("first", "middle", "last"):
        found = drawn(sliced(GPT, at=(position,)), "local(seq)")
        assert list(found) == ["forward.layer.attn.dropped.compute"], position
    found = drawn(changed(GPT, DROPS[3], at=("middle",)), "local(batch)")
    batch, m = symbols.coordinate("dp", at("batch")), symbols.size("microbatch")
    assert happens(found[DROPS[3]], batch == 1, m == 1)


def test_an_axis_has_any_name_in_a_key() -> None:
    step = derive(strategy_on("odd", {"dpX": None}, dims={"dpX": ["batch"]}), MODELS["gpt"])
    for wrong in drawn(step, "rank(dpX)").values():
        assert happens(wrong, symbols.device("dpX") == 1) and not happens(wrong, symbols.device("dpX") == 0)
    assert len(drawn(step, "rank(dpX)")) == len(DROPS)


def test_every_key_is_asked_of_every_op_that_draws() -> None:
    found = network_obligations(keyed(GPT, "rank(tp)", "local(batch)"), Flows(GPT))
    assert found.instances["random"] == len(found.failures) == 2 * len(DROPS)


def test_what_recomputation_draws_again_is_asked_again() -> None:
    step = step_of("zero1*tp*recompute_full", "gpt")
    found = network_obligations(keyed(step, "rank(tp)"), Flows(step))
    events = {f.event for f in found.failures.values()}
    assert events == {*DROPS, *(e.replace("forward", "backward") for e in DROPS if ".layer." in e)} - {
        "backward.layer.mlp.dropped.compute"} | (events & {"backward.layer.mlp.dropped.compute"})


# sites

def group_of(step: Step, parameter: str) -> Group:
    return next(g for g in step.reference.groups if parameter in g.parameters)


def test_where_units_run_whole_a_site_is_a_use_by_a_unit_and_a_loss() -> None:
    for model, losses in ((abstract(), ("loss",)), (two_losses(), ("loss", "ahead")), (statistics(), ("loss",))):
        step = lowered(derive(parse_strategy("zero1"), model))
        for group in step.reference.groups:
            uses = [f"layer.out/{k}" for k, name in enumerate(("", *(g.name for g in step.reference.groups)))
                    if name == group.name]
            assert sites_of(step, group, Flows(step)) == tuple(
                Site(use, group.name, loss=loss) for loss in losses for use in uses)


def test_every_use_of_a_parameter_is_a_site_and_those_alike_are_one() -> None:
    table = group_of(GPT, "embedding.weight")
    flows = Flows(GPT)
    assert sites_of(GPT, table, flows) == (Site("embedding.tokens/0", "embedding.weight"),
                                           Site("head.logits/1", "embedding.weight"))
    layer = group_of(GPT, "layer.mlp.up.weight")
    assert sites_of(GPT, layer, flows) == (Site("layer.attn.q/1", "layer.attn.q.weight"),
                                           Site("layer.attn.q.biased/1", "layer.attn.q.bias")), "read again, or not"
    assert sites_of(GPT, WHOLE, flows) == ()


WEIGHT, BACKWARD, USE = "layer.mlp.up.weight", "backward.layer.mlp.up.grad.compute", "layer.mlp.up/1"
LAYER = group_of(MLP, WEIGHT)
GATHERED = Value((Term(Monomial.of(SEED), FrozenMap({"dp": "path/batch"})),), frozenset({("tp", "own:own")}))
HALVED = GATHERED.scaled(ONE / Monomial.of("tp"))
DOWN = "layer.mlp.down.weight"


def adding(*parts: tuple[str, str, str, Sum]) -> Known:
    return Known(MLP, *(GradientPart(*part) for part in parts))


def test_every_class_of_contributions_that_ranks_count_differently_is_a_site() -> None:
    flows = adding((BACKWARD, WEIGHT, USE, (GATHERED, HALVED)))
    own = [s for s in sites_of(MLP, LAYER, flows) if s.parameter == WEIGHT]
    assert own == [Site(USE, WEIGHT, 0), Site(USE, WEIGHT, 1)]
    other = adding((BACKWARD, WEIGHT, "layer.mlp.up/0", (GATHERED, HALVED)), (BACKWARD, WEIGHT, USE, (GATHERED,)))
    assert [s for s in sites_of(MLP, LAYER, other) if s.parameter == WEIGHT] == [Site(USE, WEIGHT)]


# what a group's machine sees: equal signatures, equal obligations

def of_site(step: Step = MLP, flows: Flows | None = None, site: Site | None = None, group: Group = LAYER) -> object:
    given = flows or adding((BACKWARD, WEIGHT, USE, (GATHERED,)))
    return site_signature(step, group, site or Site(USE, WEIGHT), given)


def with_events(step: Step, change: Callable[[Event], Iterable[Event]]) -> Step:
    return Step(step.reference, tuple(new for e in step.events for new in change(e)))


def changed(step: Step, path: str, **fields: Any) -> Step:
    assert any(e.path == path for e in step.events)
    return with_events(step, lambda e: [replace(e, **fields)] if e.path == path else [e])


def doubled(step: Step, path: str) -> Step:
    return with_events(step, lambda e: [e, e] if e.path == path else [e])


FORWARD = "forward.layer.mlp.up.compute"


def test_the_signature_of_a_site_tells_what_its_machine_reads() -> None:
    plain = of_site()
    alike = {
        "another parameter's op": doubled(MLP, "forward.layer.mlp.gelu.compute"),
        "a redistribution": changed(MLP, "forward.layer.mlp.down.all_reduce[tp]", at=("first",)),
        "bytes on the wire": changed(MLP, "reduce.layer.weight.grad_sum.reduce[dp]", bytes="4", line=7),
        "another group's reduction": changed(MLP, "reduce.head.weight.grad_sum.reduce[dp]", axes=()),
        "another group's clip": changed(MLP, "update.head.weight.clip", at=("last",)),
        "a read just before the same read": doubled(MLP, FORWARD),
    }
    assert {why for why, step in alike.items() if of_site(step) != plain} == set()
    different = {
        "at a position only": changed(MLP, FORWARD, at=("first",)),
        "in another phase": changed(MLP, FORWARD, phase="backward"),
        "the backward at a position only": changed(MLP, BACKWARD, at=("last",)),
        "the backward twice": doubled(MLP, BACKWARD),
        "the start of the backward": changed(MLP, "backward.loss.sum.grad.compute", at=("first",)),
        "no start": with_events(MLP, lambda e: [] if e.path == "backward.loss.sum.grad.compute" else [e]),
        "its own reduction": changed(MLP, "reduce.layer.weight.grad_sum.reduce[dp]", op="sum"),
        "its own accumulation twice": doubled(MLP, "backward.layer.weight.grad_sum.accumulate"),
        "the loss": changed(MLP, "backward.loss.scale", divisor=ONE),
        "the loss twice": doubled(MLP, "backward.loss.scale"),
        "the norm of all": changed(MLP, "update.norm.all_reduce[dp,tp]", axes=("dp",)),
        "what is stored": changed(MLP, "save.layer.weight.store", where=(Clause("dp", 0),)),
        "the initial weights": changed(MLP, "init.layer.weight.broadcast[dp]", root=1),
        "what is loaded": changed(MLP, "resume.layer.weight.load", where=(Clause("dp", 0),)),
    }
    assert {why for why, step in different.items() if of_site(step) == plain} == set()


def test_the_signature_of_a_site_tells_what_arrives_at_it_and_at_which_position() -> None:
    plain = of_site()
    part = (BACKWARD, WEIGHT, USE)
    assert of_site(flows=adding((*part, (HALVED,)))) != plain
    assert of_site(flows=adding((BACKWARD, WEIGHT, "layer.mlp.up/0", (GATHERED,)))) != plain, "of another use"
    assert of_site(flows=adding()) != plain
    assert of_site(flows=adding((BACKWARD, DOWN, USE, (GATHERED,)))) == of_site(flows=adding())
    assert of_site(flows=adding((*part, (GATHERED,)), (FORWARD, WEIGHT, USE, (HALVED,)))) == plain
    always = of_site(flows=Given(MLP, lambda _: adding((*part, (GATHERED,))).at("middle")))
    assert always != plain
    here, there = (adding((*part, (held,))).at("middle") for held in (GATHERED, HALVED))
    others = {of_site(flows=Given(MLP, lambda p, q=q: here if p == q else there)) for q in POSITIONS}  # type: ignore[misc]
    assert len(others) == len(POSITIONS)
    both = adding((*part, (GATHERED, HALVED)))
    one, two = (of_site(flows=both, site=Site(USE, WEIGHT, k)) for k in (0, 1))
    assert one != two
    assert of_site(site=Site(USE, WEIGHT, 1)) == plain, "an event that counts all alike"


def test_a_use_that_adds_several_classes_is_told_from_one_that_adds_one() -> None:
    """One that adds several classes twice is not covered, and one that adds a class twice is."""
    one, several = (adding((BACKWARD, WEIGHT, USE, held)) for held in ((GATHERED,), (GATHERED, HALVED)))
    assert of_site(flows=one) != of_site(flows=several)
    second, third = ((BACKWARD, WEIGHT, f"layer.mlp.up/{k}", (GATHERED, HALVED)) for k in (2, 3))
    assert of_site(flows=adding((BACKWARD, WEIGHT, USE, (GATHERED,)), second)) != of_site(
        flows=adding((BACKWARD, WEIGHT, USE, (GATHERED,)), third))


def test_a_parameter_that_its_backward_reads_differs_from_one_that_it_does_not() -> None:
    bias = "layer.mlp.up.bias"
    same = adding((BACKWARD, WEIGHT, USE, (GATHERED,)),
                  ("backward.layer.mlp.up.biased.grad.compute", bias, "layer.mlp.up.biased/1", (GATHERED,)),
                  ("backward.layer.mlp.down.grad.compute", DOWN, "layer.mlp.down/1", (GATHERED,)))
    weight = of_site(flows=same)
    assert of_site(flows=same, site=Site("layer.mlp.down/1", DOWN)) == weight, "names do not count"
    assert of_site(flows=same, site=Site("layer.mlp.up.biased/1", bias)) != weight
    down = "layer.mlp.down.bias"
    assert of_site(flows=same, site=Site("layer.mlp.down.biased/1", down), group=group_of(MLP, down)) != weight


def exchanged(step: Step, one: str, other: str) -> Step:
    events = {one: step.event(other), other: step.event(one)}
    return with_events(step, lambda e: [events.get(e.path, e)])


def test_the_order_of_the_backward_is_in_the_signature() -> None:
    """Of ops that add nothing to the site: the one that reads the parameter, and the start."""
    lookup, head = "backward.embedding.tokens.grad.compute", "backward.head.logits.grad.compute"
    start, bias = "backward.loss.sum.grad.compute", "backward.layer.mlp.down.biased.grad.compute"
    table, down = Site("head.logits/1", "embedding.weight"), Site("layer.mlp.down.biased/1", "layer.mlp.down.bias")
    for step, site, one, other in ((GPT, table, lookup, head), (MLP, down, start, bias)):
        group = group_of(step, site.parameter)
        assert site_signature(exchanged(step, one, other), group, site, Known(step)) != site_signature(
            step, group, site, Known(step))


def test_where_random_numbers_are_drawn_is_in_the_signature() -> None:
    flows, site, layer = Flows(GPT), Site("layer.attn.q/1", "layer.attn.q.weight"), group_of(GPT, "layer.attn.q.weight")
    plain = site_signature(GPT, layer, site, flows)
    for path in DROPS:
        other = site_signature(changed(GPT, path, at=("first",)), layer, site, flows)
        assert other != plain
    drawn_before = with_events(GPT, lambda e: [] if e.path == DROPS[0] else [e])
    assert site_signature(drawn_before, layer, site, flows) != plain


# groups

def alike(group: Group, step: Step = MLP, flows: Flows | None = None) -> object:
    flows = flows or adding((BACKWARD, WEIGHT, USE, (GATHERED,)))
    return signature(step, group, (Site(USE, WEIGHT),), flows)


def test_the_signature_of_a_group_is_that_of_its_sites_and_of_how_its_elements_depend_on_each_other() -> None:
    plain = alike(LAYER)
    assert alike(replace(LAYER, unit="other", elements=(), count=ONE, sites=("x",))) == plain, "sizes do not count"
    for fields in ({"locality": "matrix"}, {"whole_reads": ("moments",)}, {"split": ()}, {"split": ("dp",)}):
        assert alike(replace(LAYER, **fields)) != plain, fields  # type: ignore[arg-type]
    flows = adding((BACKWARD, WEIGHT, USE, (GATHERED, HALVED)))
    one, two = Site(USE, WEIGHT), Site(USE, WEIGHT, 1)
    assert signature(MLP, LAYER, (one, two), flows) == signature(MLP, LAYER, (two, one), flows)
    assert signature(MLP, LAYER, (one,), flows) != signature(MLP, LAYER, (one, two), flows)


def test_clips_and_updates_of_other_groups_that_read_this_ones_norm_and_flag_are_in_the_signature() -> None:
    plain = alike(LAYER)
    assert alike(LAYER, moved_to_publish("update.head.weight.update")) != plain
    clip, update = "update.head.weight.clip", "update.head.weight.update"
    for path in (clip, update):
        for fields in ({"at": ("last",)}, {"where": (Clause("dp", 0),)}, {"layout": "other"}):
            assert alike(LAYER, changed(MLP, path, **fields)) != plain, (path, fields)  # type: ignore[arg-type]
        assert alike(LAYER, doubled(MLP, path)) == plain, "once or twice"
    for dropped in ("update.head.weight.clip", "update.layer.mlp.down.bias.clip"):
        assert alike(LAYER, with_events(MLP, lambda e, d=dropped: [] if e.path == d else [e])) == plain  # type: ignore[misc]

    def clipped_first(e: Event) -> list[Event]:
        early = MLP.event(clip)
        return [] if e.path == clip else [early, e] if e.path == "update.layer.weight.norm" else [e]
    assert alike(LAYER, with_events(MLP, clipped_first)) != plain, "before this group's part of the norm is made"

    def between(e: Event) -> list[Event]:
        return [] if e.path == clip else [MLP.event(clip), e] if e.path == "update.norm.all_reduce[dp,tp]" else [e]
    assert alike(LAYER, with_events(MLP, between)) != plain, "before the norm is summed over ranks"


def moved_to_publish(path: str) -> Step:
    """The step with one event as the first of the next phase."""
    moved = replace(MLP.event(path), phase="publish")
    first = next(e.path for e in MLP.events if e.phase == "publish")
    return with_events(MLP, lambda e: [] if e.path == path else [moved, e] if e.path == first else [e])


# groups where units run whole

SIZE = {"embed": Monomial.of("h"), "ffn": Monomial.of("f")}
THREE, FOUR = (Model(f"{len(names)} units", tuple(Unit(n) for n in names), tuple(
    Parameter(f"{n}.weight", n, FrozenMap(SIZE), (n,)) for n in names)) for names in ("abc", "abcd"))
UNITS = derive(parse_strategy("zero2"), THREE)
A, B, C = (f"{n}.weight" for n in "abc")


def of_group(step: Step, name: str, **fields: Any) -> object:
    step = lowered(step)
    group, flows = replace(step.reference.group(name), **fields), Flows(step)
    return signature(step, group, sites_of(step, group, flows), flows)


def told(change: Callable[[Event], Iterable[Event]], name: str = B) -> bool:
    """Whether a change of the step shows in the signature of a group."""
    return of_group(with_events(UNITS, change), name) != of_group(UNITS, name)


def at_path(path: str, *events: Event, **fields: Any) -> Callable[[Event], list[Event]]:
    """The event at a path changed, or events in its place."""
    assert any(e.path == path for e in UNITS.events), path
    return lambda e: [e] if e.path != path else list(events) if events or not fields else [replace(e, **fields)]


def test_groups_of_units_between_others_are_alike() -> None:
    """A group sees its own units, whether others stand before and behind them, and when the backward starts."""
    four = derive(parse_strategy("zero2"), FOUR)
    assert of_group(four, B) == of_group(four, C) and of_group(four, A) != of_group(four, B)
    late = swapped("backward.loss.scale", "backward.c.compute")
    assert all(of_group(late, name) != of_group(UNITS, name) for name in (A, B, C))
    for fields in ({"locality": "matrix"}, {"whole_reads": ("moments",)}, {"statistic": True}):
        assert of_group(UNITS, B, **fields) != of_group(UNITS, B), fields


def test_other_groups_and_what_only_people_read_are_no_part_of_the_signature() -> None:
    events = [e for e in UNITS.events if e.group == A and e.verb not in ("clip", "update")]
    assert events and not any(told(at_path(e.path, at=("last",), bytes="7")) for e in events)
    own = [e for e in UNITS.events if e.group in ("", B) and not (e.verb == "compute" and e.unit in "ac")]
    for event in own:
        assert told(at_path(event.path, at=("middle",))), event.path
        if event.verb != "compute" or event.phase != "forward":
            assert told(at_path(event.path, event, event)), event.path
        assert not told(at_path(event.path, bytes="7", line=3)), event.path
    reduction = next(e for e in own if e.verb == "reduce")
    renamed = replace(reduction, layout="other")
    assert told(at_path(reduction.path, renamed))


def test_what_another_unit_leaves_undone_is_seen_by_the_groups_that_it_concerns() -> None:
    """A forward that some ranks alone run says where every later gradient is defined; a backward, of those behind."""
    first, middle = UNITS.event("forward.a.compute"), UNITS.event("backward.b.compute")
    for name in (A, B, C):
        assert told(at_path(first.path, at=("first",)), name)
        assert told(at_path(first.path, where=(Clause("dp", 0),)), name)
        assert told(lambda e: [] if e == first else [e], name)
    assert [told(lambda e: [] if e == middle else [e], name) for name in (A, B, C)] == [True, True, False]


def swapped(one: str, other: str) -> Step:
    return exchanged(UNITS, one, other)


def test_counting_flags_and_statistics_disturb_no_order() -> None:
    counted = derive(parse_strategy_file(
        'base = "zero2"\n[optimizer]\nskip = "overflow"\n[loss]\npreset = "token_mean"\n').strategy, FOUR)
    assert {e.value for e in counted.events if e.verb == "compute"} >= {"count", "skip", "loss"}
    assert of_group(counted, B) == of_group(counted, C)
    running = derive(parse_strategy("zero1"), replace(FOUR, parameters=(*FOUR.parameters, Parameter(
        "a.running", "a", FrozenMap({"embed": Monomial.of("h")}), ("a",))),
        statistics=FrozenMap({"a.running": Statistic()})))
    assert any(e.verb == "compute" and e.value == "grad" for e in running.events)
    assert of_group(running, B) == of_group(running, C), "other units say nothing"
    running = derive(parse_strategy("zero1"), statistics())
    disordered = changed(running, "forward.layer.compute", at=("first",))
    name = next(g.name for g in running.reference.groups if not g.statistic)
    assert any(e.verb == "compute" and e.value == "grad" for e in running.events)
    assert of_group(running, name) != of_group(disordered, name)


def test_where_the_flag_is_made_counts_for_updates_of_other_groups() -> None:
    """An update of another group that comes before this group's part of the flag reads one that lacks it."""
    step = derive(parse_strategy_file('base = "zero2"\n[optimizer]\nskip = "overflow"\n').strategy, Model(
        "two units", (Unit("a"), Unit("b")), tuple(Parameter(f"{n}.weight", n, FrozenMap(SIZE), (n,)) for n in "ab")))
    made, update = step.event("update.b.weight.skip.compute"), step.event("update.a.weight.update")
    early = with_events(step, lambda e: [] if e == update else [update, e] if e == made else [e])
    assert of_group(early, B) != of_group(step, B)
    made_a = step.event("update.a.weight.skip.compute")
    before = with_events(early, lambda e: [] if e == update else [update, e] if e == made_a else [e])
    assert of_group(before, B) == of_group(early, B), "what this group has made by then is the same"
