"""The ops at work on what every rank holds, one op at a time: what each demands, makes, keeps and passes back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from placealg.arith import ONE, Monomial
from placealg.check.prove import prove
from placealg.frozen import FrozenMap
from placealg.mesh import Axis, Mesh
from placealg.models.build import Builder, graph
from placealg.models.graph import Graph
from placealg.models.model import Model
from placealg.prover.calculus.positions import at
from placealg.prover.ops import paths
from placealg.prover.ops.findings import SEED, Flow
from placealg.prover.ops.operators import Operators
from placealg.prover.ops.paths import Sum, exact, mask_of, scaled
from placealg.prover.ops.stages import Stages
from placealg.prover.ops.tensors import Tensors
from placealg.prover.verdict import PROVED, REFUTED
from placealg.step.derive import derive
from placealg.step.event import Event, Reference
from placealg.step.program import Step
from placealg.strategy.spec import strategy_on

FORWARD = Event("forward", "compute", "net.y")
BACKWARD = Event("backward", "compute", "net.y.grad")
DP, TP = ("dp", at("batch")), ("tp", at("embed"))
HALF = scaled(exact([DP]), ONE / Monomial.of("tp"))
INCOMPLETE = "where a sum in it is not complete, or counts too much"


def start(g: Builder) -> Builder:
    """A model that begins with an activation `net.x` that needs a gradient."""
    g.einsum("net.x", g.data("data.input", "batch embed"), g.parameter("net.weight", "embed"), to="batch embed")
    return g


def sized() -> Builder:
    return start(graph(batch="b", embed="h", ffn="f"))


def at_work(built: Graph, *, split: dict[str, FrozenMap[str, str]] | None = None, **held: Sum) -> Operators:
    """The ops of a model with nothing computed yet but activations `net.NAME`; parameters are split as told."""
    mesh = Mesh((Axis("dp"), Axis("tp")))
    reference = Reference("none", "by hand", mesh, ("dp",), (), (), graph=built, split_dims=FrozenMap(split))
    tensors = Tensors(Step(reference, ()))
    tensors.made |= {(f"net.{name}", ""): found for name, found in held.items()}
    return Operators(reference, tensors, Flow(), Stages(reference, tensors))


def result(ops: Operators, *reads: str) -> Sum:
    """What `net.y` is after its forward."""
    ops.compute(replace(FORWARD, reads=reads))
    return ops.tensors.made["net.y", ""]


def returned(ops: Operators, gradient: Sum, *reads: str) -> dict[tuple[str, str], dict[str, Sum]]:
    """The gradients that the backward of `net.y` makes of that of its result."""
    ops.tensors.gradients["net.y", ""] = {use: gradient for use in ops.tensors.uses("net.y")}
    ops.compute(replace(BACKWARD, reads=reads))
    del ops.tensors.gradients["net.y", ""]
    return ops.tensors.gradients


def faults(ops: Operators) -> list[tuple[str, str]]:
    return [(d.event, d.says) for d in ops.flow.faults]


def counted(held: Sum) -> list[tuple[str, str, str]]:
    """(axis, op, dim) of each index that an op contracted, and each rank counts its own part of."""
    return sorted((a, *p.rpartition("/")[::2]) for v in held for t in v.terms for a, p in t.at.items())


def with_loss(g: Builder) -> Graph:
    """The model, with a loss that reads `net.y`."""
    g.sum("loss.sum", "net.y")
    return g.build()


def test_what_an_op_holds_in_any_instance_of_its_unit_is_remembered() -> None:
    ops = at_work(product(sized()), x=exact([DP]))
    result(ops)
    ops.tensors.made["net.x", ""] = exact([("dp", at("embed"))])
    ops.compute(replace(FORWARD, phase="backward"))
    assert ops.flow.masks == {FORWARD.path: {DP}, replace(FORWARD, phase="backward").path: frozenset()}
    ops.tensors.made["net.x", ""] = exact([("tp", at("batch"))])
    result(ops)
    assert ops.flow.masks[FORWARD.path] == {DP, ("tp", at("batch"))}


# what is summed over a split dim

def product(g: Builder) -> Graph:
    g.einsum("net.y", "net.x", g.parameter("net.up", "embed ffn"), to="batch ffn")
    return with_loss(g)


def row_sum(g: Builder) -> Graph:
    g.sum("net.y", "net.x", to="batch")
    return with_loss(g)


@pytest.mark.parametrize("built", [product(sized()), row_sum(sized())])
def test_a_sum_over_a_split_dim_is_a_part_on_each_rank(built: Graph) -> None:
    """A rank counts what it has the indices of, and holds that part whatever its place along the axis."""
    made = result(at_work(built, x=exact([DP, TP])))
    assert mask_of(made) == {DP} and not paths.is_exact(made)
    assert counted(made) == [("tp", "net.y", "embed")]
    assert paths.is_exact(result(at_work(built, x=exact([DP]))))


def test_the_gradient_of_an_operand_is_a_part_on_each_rank_where_the_result_is_split() -> None:
    ops = at_work(product(sized()), split={"net.up": FrozenMap({"tp": "ffn"})}, x=exact([DP]))
    assert mask_of(result(ops)) == {DP, ("tp", at("ffn"))}
    gradient = returned(ops, exact([DP, ("tp", at("ffn"))]))["net.x", ""]["net.y/0"]
    (place,) = counted(gradient)
    assert mask_of(gradient) == {DP} and (place[0], place[2]) == ("tp", "ffn") and place[1].startswith("net.y")
    assert place[1] != "net.y", "backward sums over other indices than forward"


def test_sums_of_different_instances_are_over_different_indices() -> None:
    ops = at_work(product(sized()), x=exact([TP]))
    places = []
    for number in (None, 1, 2, 3):
        ops.passes = number or ops.passes
        places += counted(result(ops))
    assert places[0] == places[1], "the first instance is number 1"
    assert len(set(places)) == 3


def test_what_a_sum_loses_is_split_in_its_gradient_as_it_was() -> None:
    """The gradient of a sum is the same for all that was summed: a rank passes it to what it holds."""
    ops = at_work(row_sum(sized()), x=exact([DP, TP]))
    result(ops)
    assert returned(ops, exact([DP]))["net.x", ""] == {"net.y/0": exact([DP, TP])}


def test_only_what_the_loss_counted_has_a_gradient() -> None:
    ops = at_work(row_sum(sized()), y=exact())
    last = replace(BACKWARD, value="loss.sum.grad")
    ops.split = frozenset({DP})
    ops.compute(last)
    assert mask_of(ops.tensors.gradient("net.y")) == {DP}
    ops = at_work(row_sum(sized()), y=exact())
    ops.split = frozenset()
    ops.compute(last)
    assert ops.tensors.gradient("net.y") == scaled(exact(), Monomial.of(SEED))


# what must be exact

def test_a_nonlinear_op_demands_whole_sums_and_goes_on_as_if_it_had_them() -> None:
    g = sized()
    g.unary("net.y", "net.x", "gelu")
    built = with_loss(g)
    for held, says, made in ((HALF, f"reads net.x {INCOMPLETE}", exact([DP])),
                             ((), "reads net.x, which is not there", ()), (exact([DP]), None, exact([DP]))):
        ops = at_work(built, x=held)
        assert result(ops) == made
        assert faults(ops) == ([(FORWARD.path, says)] if says else [])
        assert [d.mask for d in ops.flow.demands] == [mask_of(held)]


def test_the_gradients_of_a_sum_read_no_operand() -> None:
    """Also of one that is summed over the dims that it lacks, whatever became of the other."""
    g = sized()
    g.add("net.y", "net.x", g.parameter("net.bias", "embed"))
    ops = at_work(with_loss(g), x=HALF)
    returned(ops, exact([DP]))
    assert ops.flow.demands == [] and {p.parameter for parts in ops.flow.parts.values() for p in parts.values()} == {
        "net.bias"}


def test_a_backward_demands_the_result_and_what_was_kept_by_name() -> None:
    g = sized()
    g.unary("net.z", g.softmax("net.y", "net.x", "embed"), "tanh")
    g.sum("loss.sum", g.norm("net", "net.z", "embed", bias=False))
    ops = at_work(g.build(), z=exact([DP]), y=HALF)
    for name, reader in (("net.out", "loss.sum/0"), ("net.y", "net.z/0")):
        ops.tensors.gradients[name, ""] = {reader: exact([DP])}
        ops.compute(replace(BACKWARD, value=f"{name}.grad"))
    missing = "reads net.out.rstd, which is not there"
    assert [says for _, says in faults(ops)] == [missing, missing, f"reads net.y {INCOMPLETE}"]


def rotated() -> Graph:
    g = sized()
    g.rope("net.y", "net.x", over="embed")
    return with_loss(g)


def test_a_rotation_works_on_whole_rows_of_any_sum() -> None:
    ops = at_work(rotated(), x=exact([DP, TP]))
    assert result(ops) == exact([DP])
    assert faults(ops) == [(FORWARD.path, "works on a part of the rows of net.x")]
    ops = at_work(rotated(), x=HALF)
    assert result(ops) == HALF, "it is linear: a part of a sum stays a part"
    assert faults(ops) == []


def test_a_rotation_turns_whole_rows_back() -> None:
    ops = at_work(rotated())
    assert returned(ops, exact([DP, TP]))["net.x", ""] == {"net.y/0": exact([DP])}
    assert faults(ops) == [(BACKWARD.path, "works on a part of the rows of net.y.grad")]
    assert [(d.held, d.mask) for d in ops.flow.demands] == [((), frozenset())]
    ops = at_work(rotated())
    assert returned(ops, HALF)["net.x", ""] == {"net.y/0": HALF}
    assert ops.flow.demands == []


def test_a_rotation_sums_over_its_row() -> None:
    """What was zero-padded is a part of each element of the row, by an index that belongs to this rotation alone."""
    padded = paths.padded(exact([DP, TP]), ["tp"], "embed")
    assert counted(result(at_work(rotated(), x=padded))) == [("tp", "net.y", "embed")]
    assert counted(returned(at_work(rotated()), padded)["net.x", ""]["net.y/0"]) == [("tp", "net.y.grad.0", "embed")]


@pytest.mark.parametrize("kind", ["scale", "cast", "copy"])
def test_a_linear_op_passes_its_gradient_on(kind: str) -> None:
    g = sized()
    {"scale": lambda: g.scale("net.y", "net.x", "2"), "cast": lambda: g.cast("net.y", "net.x"),
     "copy": lambda: g.copy("net.y", "net.x")}[kind]()
    built = with_loss(g)
    for gradient in (exact([DP, TP]), HALF, (*HALF, *exact([DP])), paths.padded(exact([DP, TP]), ["tp"], "embed"),
                     paths.undefined(frozenset({DP})), ()):
        ops = at_work(built, x=exact([DP, TP]))
        result(ops)
        assert returned(ops, gradient)["net.x", ""] == {"net.y/0": gradient}
        assert ops.flow.demands == []


# what ops keep

def test_a_norm_keeps_the_statistics_of_whole_rows() -> None:
    g = sized()
    g.norm("net.y", "net.x", "embed")
    g.sum("loss.sum", "net.y.out")
    ops = at_work(g.build(), x=exact([DP, TP]))
    ops.compute(replace(FORWARD, value="net.y.out"))
    assert faults(ops) == [(FORWARD.path.replace("net.y", "net.y.out"), "works on a part of the rows of net.x")]
    assert ops.tensors.beside == {f"net.y.out.{name}": exact([DP]) for name in ("mean", "rstd")}


def test_a_cross_entropy_keeps_the_part_of_the_softmax_that_a_rank_has() -> None:
    g = sized()
    g.cross_entropy("net.y", "net.x", g.ids("data.targets", "batch"), over="embed")
    ops = at_work(with_loss(g), x=exact([DP, TP]))
    ops.compute(replace(FORWARD, axes=("tp",)))
    assert (ops.tensors.made["net.y", ""], faults(ops)) == (exact([DP]), [])
    assert ops.tensors.beside == {"net.y.softmax": exact([DP, TP])}


def test_a_dropout_keeps_its_mask_where_its_operand_is() -> None:
    g = sized()
    g.dropout("net.y", "net.x")
    ops = at_work(with_loss(g), x=HALF)
    assert result(ops) == HALF
    assert ops.tensors.beside == {"net.y.mask": exact([DP])}


# backward of a nonlinear op

def test_a_gradient_that_mixes_rows_is_a_part_where_they_are_split() -> None:
    """x.grad = (g - xhat * sum(g * xhat)) * rstd: the sum over a part of the row is counted in part, g itself once."""
    g = sized()
    g.norm("net", "net.x", "embed", bias=False)
    g.sum("loss.sum", "net.out")
    for split, classes in (([DP], [[]]), ([DP, TP], [[], [("tp", "embed")]])):
        ops = at_work(g.build(), x=exact([DP]))
        ops.compute(replace(FORWARD, value="net.out"))
        ops.tensors.gradients["net.out", ""] = {"loss.sum/0": exact(split)}
        ops.compute(replace(BACKWARD, value="net.out.grad"))
        gradient = ops.tensors.gradients["net.x", ""]["net.out/0"]
        assert mask_of(gradient) == set(split) and not ops.flow.faults
        assert sorted([(a, dim) for a, op, dim in counted((v,)) if op.startswith("net.out")]
                      for v in gradient) == classes


def test_scores_have_a_number_for_each_query_and_key() -> None:
    """What q and k contract, and the head dims of values and rotary parts, are no dims of the scores."""
    g = start(graph(batch="b", seq="s", keys="s", heads="a", nope="n", turned="r", value="v", embed="h"))
    q, k, v = (g.einsum(f"net.{n}", "net.x", g.parameter(f"net.{n}.weight", f"embed {d}"), to=f"batch {d}")
               for n, d in (("q", "seq heads nope"), ("k", "keys heads nope"), ("v", "keys heads value")))
    rotary = [g.einsum(f"net.{n}", "net.x", g.parameter(f"net.{n}.weight", f"embed {d}"), to=f"batch {d}")
              for n, d in (("turned_q", "seq heads turned"), ("turned_k", "keys turned"))]
    g.flash("net.y", q, k, v, over="keys nope turned value", rotary=rotary)
    built = with_loss(g)
    op = built.producer("net.y")
    assert op is not None
    roles = at_work(built).roles(op)
    assert set(roles["grid"]) == {"batch", "seq", "heads", "keys"}
    assert roles["row"] == ("batch", "seq", "heads") and roles["v"] == ("batch", "keys", "heads", "value")


# versions of operands

def test_an_op_that_names_no_versions_reads_its_operands_as_they_were_made() -> None:
    g = sized()
    g.unary("net.y", "net.x", "gelu")
    ops = at_work(with_loss(g), x=exact([DP]))
    ops.tensors.made["net.x", "tp"] = exact([DP, TP])
    assert result(ops) == exact([DP])
    assert returned(ops, exact([DP])) == {("net.x", ""): {"net.y/0": exact([DP])}}


def test_an_op_remembers_where_its_operands_were_when_all_were_there() -> None:
    """Run again without one of them, it makes nothing, and its backward is narrowed to where they were before."""
    g = sized()
    g.mul("net.y", "net.x", "net.x")
    ops = at_work(with_loss(g), x=exact([DP]))
    result(ops)
    before = dict(ops.extents)
    assert before == {("net.y", 0): frozenset([DP]), ("net.y", 1): frozenset([DP])}
    ops.tensors.made["net.x", "one"], ops.tensors.made["net.x", "two"] = HALF, ()
    forward = Event("forward", "compute", "net.y", unit="net", reads=("net.x@one", "net.x@two"))
    ops.compute(forward)
    assert ops.extents == before and ops.tensors.made["net.y", ""] == ()
    ops.tensors.made["net.x", "two"] = exact([DP])
    ops.compute(forward)
    assert ops.extents == {("net.y", 0): paths.mask_of(HALF), ("net.y", 1): frozenset([DP])}


def test_one_tensor_as_two_operands_is_read_in_two_versions() -> None:
    """The square of x: each of its two gradients reads the other operand, in the version that is named."""
    g = sized()
    g.mul("net.y", "net.x", "net.x")
    ops = at_work(with_loss(g))
    ops.tensors.made |= {("net.x", "one"): HALF, ("net.x", "two"): exact([DP])}
    found = returned(ops, exact([DP]), "net.x@one", "net.x@two")
    assert [d.held for d in ops.flow.demands] == [exact([DP]), HALF]
    assert faults(ops) == [(BACKWARD.path, f"reads net.x {INCOMPLETE}")]
    assert found == {("net.x", "one"): {"net.y/0": exact([DP])}, ("net.x", "two"): {"net.y/1": exact([DP])}}


def tied() -> Model:
    """Attention whose keys are its values."""
    g = graph(batch="b", seq="s", keys="s", embed="h", heads="a", head_dim="h/a", vocab="V")
    x, dims = g.data("data.input", "batch seq embed"), "heads head_dim"
    q, kv = (g.linear(f"net.{n}", x, f"batch seq {dims}", f"embed {dims}") for n in ("q", "kv"))
    both = g.rename("net.both", kv, {"seq": "keys"})
    mixed = g.flash("net.mixed", q, both, both, over="keys head_dim", mask="causal", factor="1")
    logits = g.einsum("head.logits", mixed, g.parameter("head.weight", f"{dims} vocab"), to="batch seq vocab")
    g.sum("loss.sum", g.cross_entropy("head.loss", logits, g.ids("data.targets", "batch seq"), over="vocab"))
    return Model.of_graph("tied", g.build())


def test_keys_and_values_may_be_two_versions_of_one_tensor() -> None:
    ops = at_work(tied().graph)
    ops.tensors.made |= {("net.both", "one"): HALF, ("net.both", "two"): exact([DP]), ("net.q", ""): exact([DP])}
    ops.tensors.gradients["net.mixed", ""] = {"head.logits/0": exact([DP])}
    ops.compute(replace(BACKWARD, value="net.mixed.grad", reads=("net.q", "net.both@one", "net.both@two")))
    of_q = ops.flow.demands[:5]
    assert [d.held for d in of_q] == [exact([DP]), HALF, (), exact([DP]), ()], "q, keys, statistics, values, result"


def two_versions(spoilt: str = "") -> Step:
    """The keys are gathered twice, once as keys and once as values; one of the two is cut off before the backward."""
    step = derive(strategy_on("cp", {"cp": None}, dims={"cp": ["seq"]}), tied())
    events: list[Event] = []
    for event in step.events:
        if event.tensor == "net.mixed" and event.verb == "compute":
            if event.on_gradient and spoilt:
                events.append(Event("backward", "slice", "net.both", axes=("cp",), to="S(keys)", version=spoilt))
            event = replace(event, reads=(event.reads[0], "net.both@cp", "net.both@again"))
        events.append(event)
        if event.tensor == "net.both" and event.axes:
            events.append(replace(event, version="again", copy=2))
    return replace(step, events=tuple(events))


@pytest.mark.parametrize(("spoilt", "verdict"), [("", PROVED), ("cp", REFUTED), ("again", REFUTED)])
def test_a_backward_reads_each_operand_in_its_own_version(spoilt: str, verdict: str) -> None:
    assert prove(two_versions(spoilt)).verdict == verdict


# what was lost, and ids

def test_what_was_lost_is_blamed_on_who_lost_it_until_it_is_there_again() -> None:
    g = sized()
    g.unary("net.y", "net.x", "gelu")
    ops = at_work(with_loss(g), x=())
    result(ops)
    assert ops.lost == {"net.y": (FORWARD.path, "net.x")}
    later = Event("forward", "compute", "net.z")
    ops.demand(later, "net.y", ())
    ops.demand(later, "net.y", HALF)
    assert faults(ops)[1:] == [(FORWARD.path, "reads net.x, which is not there"),
                               (later.path, f"reads net.y {INCOMPLETE}")]
    ops.tensors.made["net.x", ""] = exact([DP])
    result(ops)
    assert ops.lost == {}


def test_a_lookup_demands_its_ids_and_goes_on_as_if_it_had_them() -> None:
    g = graph(batch="b", embed="h", vocab="V")
    g.lookup("net.y", g.parameter("net.table", "vocab embed"), g.ids("data.ids", "batch"), over="vocab")
    built = with_loss(g)
    made = {}
    for ids in (exact([DP]), HALF):
        ops = at_work(built)
        ops.tensors.made["data.ids", ""] = ids
        made[ids] = result(ops)
        assert faults(ops) == ([] if ids == exact([DP]) else [(FORWARD.path, f"reads data.ids {INCOMPLETE}")])
    assert made[HALF] == made[exact([DP])] == exact([DP])
