"""What an event says without meaning is refused in one line at its line; whatever may be said, somebody reads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import pytest

from placealg.cases.case import default_model
from placealg.check.prove import prove
from placealg.errors import InputError
from placealg.models.backward import GRAD
from placealg.models.config import resolve_model
from placealg.prover.verdict import REFUTED
from placealg.simulator import Setting, simulate
from placealg.step.derive import derive
from placealg.step.edit import apply_edits, edit, read_edits
from placealg.step.event_fields import values_of
from placealg.step.program import Step
from placealg.step.well_formed import check_event
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import parse_strategy_file


@lru_cache
def program(strategy: str, model: str = "") -> Step:
    return derive(parse_strategy(strategy), resolve_model(model or default_model(parse_strategy(strategy))))


def refusal(strategy: str, table: str, model: str = "") -> str:
    """The one line with which an edit of the derived program is refused."""
    step = program(strategy, model)
    file = parse_strategy_file(f'base = "{strategy}"\n[[edit]]\n{table}\n', "e.toml")
    with pytest.raises(InputError) as caught:
        apply_edits(step, read_edits(file.edits, step.reference, file.positions))
    text = str(caught.value)
    assert "\n" not in text and len(text) < 1000
    assert text.startswith("e.toml:3: ")
    return text.removeprefix("e.toml:3: ")


NORM = 'before = "forward.layer.norm1.out.compute"'
SUM = 'before = "backward.layer.norm1.weight.grad_sum.accumulate"'


@pytest.mark.parametrize(("strategy", "table", "message"), [
    ("zero1", 'move = "save.layer.weight.store"\nafter = "publish.layer.weight.publish[dp]"',
     "publish.layer.weight.store: a checkpoint is of one step: it is stored in phase save, all of it or none; valid: "
     "save"),
    ("tp", f'insert = {{ path = "forward.layer.norm1.weight.all_reduce[tp]" }}\n{NORM}',
     "forward.layer.norm1.weight.all_reduce[tp]: all_reduce does not apply to layer.norm1.weight: a parameter is moved "
     "and reduced with its group; valid: forward.layer.norm1.weight.gather[tp]"),
    ("tp", f'insert = {{ path = "backward.layer.norm1.weight.grad.all_reduce[tp]" }}\n{SUM}',
     "a parameter is moved and reduced with its group; valid: reduce.layer.norm1.weight.grad_sum.reduce[tp]"),
    ("tp", 'insert = { verb = "all_reduce", value = "layer.norm1.weight.grad", unit = "layer", axes = ["tp"] }\n' + SUM,
     "backward.layer.norm1.weight.grad.all_reduce[tp]: all_reduce does not apply to layer.norm1.weight.grad: a "
     "parameter is moved and reduced with its group; valid: reduce.layer.norm1.weight.grad_sum.reduce[tp]"),
    ("zero3", 'insert = { verb = "slice", value = "layer.norm1.weight", unit = "layer", axes = ["dp"], '
     f'to = "S(embed)" }}\n{NORM}', "with its group; valid: forward.layer.weight.slice[dp]"),
    ("tp", f'insert = {{ verb = "free", value = "layer.norm1.weight", unit = "layer" }}\n{NORM}',
     "free does not apply to layer.norm1.weight: a parameter is moved and reduced with its group; "
     "valid: forward.layer.norm1.weight.free"),
    ("tp", 'insert = { verb = "scale", value = "layer.norm1.weight.grad", unit = "layer", axes = ["tp"], '
     f'divisor = "tp" }}\n{SUM}', "valid: reduce.layer.norm1.weight.grad_sum.scale"),
    ("tp", f'insert = {{ path = "backward.layer.norm1.weight.grad.compute" }}\n{SUM}',
     "backward.layer.norm1.weight.grad.compute: compute does not apply to layer.norm1.weight.grad: the backward of the "
     "ops that read a parameter adds to its gradient; valid: backward.layer.norm1.out.grad.compute"),
    ("tp", 'insert = { verb = "all_reduce", value = "loss.sum", unit = "loss", axes = ["tp"] }\n'
     'after = "forward.loss.compute"', "all_reduce does not apply to loss.sum: nothing reads the sum of "
     "the loss; valid: forward.loss.compute"),
    ("tp", 'insert = { path = "backward.loss.sum.grad.scale[tp]", divisor = "tp" }\n'
     'before = "backward.loss.sum.grad.compute"', "backward.loss.sum.grad.scale[tp]: scale does not apply to "
     "loss.sum.grad: backward starts from one over the divisors of the loss; valid: backward.loss.scale"),
    ("tp", 'insert = { verb = "all_reduce", value = "data.tokens.grad", unit = "embedding", axes = ["tp"] }\n'
     'before = "backward.embedding.tokens.grad.compute"', "no gradient reaches data.tokens"),
    ("tp", 'insert = { verb = "free", value = "data.tokens", unit = "embedding" }\n'
     'before = "forward.embedding.tokens.compute"', "forward.data.tokens.free: data are held whole on every rank: a "
     "copy ends, which version names"),
    # units of a model that runs op by op
    ("tp", f'insert = {{ path = "forward.layer.compute" }}\n{NORM}', "forward.layer.compute: compute does not apply to "
     "layer: the unit runs op by op; valid: layer.norm1.out, "),
    ("tp", 'insert = { path = "backward.layer.compute" }\nbefore = "backward.head.logits.grad.compute"',
     "backward.layer.compute: compute does not apply to layer: the unit runs op by op; valid: layer.norm1.out, "),
    ("tp", f'insert = {{ verb = "compute", value = "activation", unit = "layer" }}\n{NORM}',
     "forward.layer.compute: compute does not apply to layer: the unit runs op by op; valid: layer.norm1.out, "),
])
def test_what_nobody_reads_is_acted_on_by_nothing(strategy: str, table: str, message: str) -> None:
    assert message in refusal(strategy, table, "gpt")


def scaled(step: Step) -> Iterator[tuple[str, Step]]:
    """(value, program): a tensor divided by the size of an axis once it is there, a gradient before it is read."""
    for value in values_of("scale", step.reference):
        name = value.removesuffix(GRAD)
        if name not in step.reference.graph.tensors:
            continue
        makers = [e for e in step.events if e.verb in ("compute", "assign") and e.value == value]
        readers = [e for e in step.phase("forward") if name in [r.partition("@")[0] for r in e.reads]]
        at = (makers or readers)[0]
        place = "after" if makers and value == name else "before"
        event = {"verb": "scale", "value": value, "unit": at.unit, "axes": ["tp"], "divisor": "tp"}
        yield value, edit(step, {"insert": event, place: at.path})


OUT, SLOT = "forward.layer.attn.out.all_reduce[tp]", "forward.layer.in.assign"


@pytest.mark.parametrize(("strategy", "table", "message"), [
    # op
    ("dp", 'set = "backward.*.accumulate"\nop = "mean"', "backward.layer.weight.grad_sum.accumulate: op = 'mean': what "
     "accumulates is a sum, or the largest"),
    ("zero1", 'set = "publish.*"\nop = "mean"', "publish of weight does not"),
    ("dp", 'set = "init.*.broadcast*"\nop = "sum"', "broadcast of weight does not"),
    ("dp", 'set = "update.*.norm"\nop = "mean"', "norm of norm does not"),
    ("dp", 'set = "forward.layer.compute"\nop = "mean"', "compute of activation does not"),
    ("dp", 'set = "forward.loss.compute"\nop = "mean"', "compute of loss does not"),
    ("dp", 'set = "*grad_sum.reduce*"\nverb = "recv"',
     "recv does not apply to grad_sum: it is for tensors of ops, and no unit of this model has ops"),
    ("cp_ring", 'set = "backward.*.grad.shift[cp]"\nop = "mean"',
     "op = 'mean': a ring adds, and divides nothing; valid: sum"),
    ("cp_ring", 'set = "backward.*.grad.shift[cp]"\ndivisor = "cp"', "divides nothing, and takes no divisor"),
    ("tp", f'set = "{SLOT}"\nop = "sum"', "assign of layer.in does not"),
    ("tp", 'set = "forward.layer.mlp.gelu.compute"\nop = "sum"', "compute of layer.mlp.gelu does not"),
    ("tp", 'set = "backward.layer.mlp.gelu.grad.compute"\nop = "sum"', "compute of layer.mlp.gelu.grad does not"),
    ("cp_ring", 'set = "forward.*.shift[cp]"\nop = "sum"', "does not; valid: none"),
    # root
    ("zero1", 'set = "publish.*"\nroot = 1', "root = 1 is for broadcasts, and publish has none"),
    ("zero1", 'set = "update.layer.weight.update"\nroot = 1', "root = 1 is for broadcasts, and update has none"),
    # layout
    ("dp", 'set = "backward.*.accumulate"\nlayout = "alt"', "layout = alt says who owns what, and accumulate of "
     "grad_sum asks for no owner"),
    ("zero3", 'set = "update.layer.weight.clip"\nlayout = "alt"', "clip of grad_sum asks for no owner"),
    ("dp", 'set = "update.layer.weight.update"\nlayout = "alt"', "update of master asks for no owner"),
    ("dp", 'set = "init.*.broadcast*"\nlayout = "alt"', "broadcast of weight asks for no owner"),
    ("dp", 'set = "reduce.*.reduce*"\nlayout = "alt"', "reduce of grad_sum asks for no owner"),
    ("tp", f'set = "{OUT}"\nlayout = "alt"', "all_reduce of layer.attn.out asks for no owner"),
    ("dp", 'set = "save.step.store"\nwhere = "owner(dp)"\nlayout = "alt"', "store of step asks for no owner"),
    # version
    ("tp", 'set = "forward.layer.norm1.out.compute"\nversion = "tp"', "version = tp labels a copy that is moved, and "
     "compute makes and moves none"),
    ("tp", 'set = "backward.layer.norm1.out.grad.compute"\nversion = "tp"', "compute makes and moves none"),
    ("dp*pp", 'set = "forward.layer.in.recv[pp]"\nversion = "pp"', "recv makes and moves none"),
    ("tp", f'set = "{SLOT}"\nversion = "tp"', "assign makes and moves none"),
    ("tp", 'set = "forward.loss.compute"\nversion = "tp"', "version and reads are for tensors of the op graph"),
    ("tp", f'insert = {{ path = "forward.layer.attn.core.free", version = "tp" }}\n{NORM}',
     "free makes and moves none"),
    # axes
    ("tp", 'set = "backward.layer.mlp.up.grad.compute"\naxes = ["tp"]', "backward.layer.mlp.up.grad.compute[tp]: "
     "compute of layer.mlp.up.grad is local and takes no axes"),
    ("tp", 'set = "forward.layer.mlp.up.compute"\naxes = ["tp"]', "compute of layer.mlp.up is local and takes no axes"),
    ("tp", f'set = "{SLOT}"\naxes = ["tp"]', "assign of layer.in is local and takes no axes"),
    ("tp", f'insert = {{ path = "forward.layer.in.free[tp]" }}\n{NORM}', "free of layer.in is local and takes no axes"),
    # from and to
    ("zero3", 'set = "forward.*.gather*"\nfrom = "P"\nto = "S"', "forward.layer.weight.gather[dp]: gather goes from S "
     "to I, or from S to R; not from P to S"),
    ("zero3", 'set = "forward.*.gather*"\nto = "P"', "not from S to P"),
    ("dp", 'set = "reduce.*.reduce*"\nfrom = "I"', "reduce goes from P to I, from P to R, or from P to S; "
     "not from I to I"),
    ("tp", f'set = "{OUT}"\nfrom = "S(seq)"\nto = "S(seq)"', "all_reduce goes from P to I, or from P to R; not from "
     "S(seq) to S(seq)"),
    ("tp", f'set = "{OUT}"\nfrom = "weight"', "from = weight: what is moved of a tensor is the tensor"),
    ("dp", 'set = "update.norm.*"\nto = "S"', "not from P to S"),
    ("dp", 'set = "update.layer.weight.update"\nto = "P"', "to = P: update changes no kind"),
    ("dp", 'set = "backward.*.accumulate"\nfrom = "P"', "from = P: accumulate changes no kind"),
    ("tp", 'set = "forward.layer.mlp.up.compute"\nto = "P"', "to = P: compute changes no kind"),
    ("cp_ring", 'set = "reduce.*.reduce*"\nfrom = "S(seq)"', "from = S(seq): a dim is one of a tensor"),
    ("zero1", 'set = "resume.layer.weight.load"\nfrom = "moments"', "from = moments: load reads no other value"),
    ("zero1", 'set = "update.layer.weight.update"\nfrom = "weight"', "from = weight: update reads no other value"),
    ("dp", 'set = "update.norm.*"\nfrom = "grad"', "from = grad: all_reduce reads no other value"),
])
def test_what_nobody_reads_is_said_of_nothing(strategy: str, table: str, message: str) -> None:
    model = "gpt" if strategy in ("tp", "cp_ring", "dp*pp") else "abstract"
    assert message in refusal(strategy, table, model)


@pytest.mark.parametrize(("strategy", "table"), [
    ("tp", f'set = "{OUT}"\nop = "mean"'), ("zero1", 'set = "publish.*"\nlayout = "alt"'),
    ("zero1", 'set = "init.*.moments.assign"\nlayout = "alt"'), ("dp", 'set = "init.*.broadcast*"\nroot = 1'),
    ("tp", f'set = "{OUT}"\nop = "none"\nroot = 0\nlayout = "own"'), ("zero1", 'set = "reduce.*"\nfrom = "grad_sum"'),
    ("tp", 'set = "forward.head.loss.compute*"\naxes = []'), ("zero1", 'set = "*.accumulate"\nfrom = "grad"'),
    ("tp", f'set = "{OUT}"\nversion = "tp"'), ("tp", f'set = "{OUT}"\nto = "R"'),
])
def test_what_is_read_may_be_said(strategy: str, table: str) -> None:
    step = program(strategy, "gpt" if strategy == "tp" else "abstract")
    file = parse_strategy_file(f'base = "{strategy}"\n[[edit]]\n{table}\n', "e.toml")
    assert apply_edits(step, read_edits(file.edits, step.reference, file.positions)).events


@lru_cache
def all_scaled(model: str) -> dict[str, Step]:
    strategy = parse_strategy_file('base = "tp"\n[dims]\ntp = ["ffn", "vocab"]\n').strategy
    return dict(scaled(derive(strategy, resolve_model(model))))


@pytest.mark.some(2)
@pytest.mark.parametrize("model", ["mlp", "gpt"])
def test_what_may_be_acted_on_is_read(model: str) -> None:
    changed = all_scaled(model)
    assert len(changed) > 10
    runs = [Setting.equal(step.reference, {"tp": 2}, 1, 1, seed=seed) for seed in (1, 2) for step in changed.values()]
    assert set(changed) == {
        value for (value, step), run in zip([*changed.items()] * 2, runs, strict=True)
        if not simulate(step, run, steps=1).equal}


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "gpt"])
def test_what_may_be_acted_on_is_read_by_proofs(model: str) -> None:
    assert {prove(step).verdict for step in all_scaled(model).values()} == {REFUTED}


def test_parameters_are_named_as_groups_only() -> None:
    step = program("zero3*tp*pp", "gpt")
    graph = step.reference.graph
    for verb in {e.verb for e in step.events}:
        acted = set(values_of(verb, step.reference))
        for name, tensor in graph.tensors.items():
            if tensor.kind == "parameter":
                assert not acted & {name, name + GRAD}


@pytest.mark.parametrize("name", ["zero3*tp*pp", "dp*cp_ring*recompute_full"])
def test_a_derived_event_has_a_meaning(name: str) -> None:
    step = program(name, "gpt")
    assert all(e.value in values_of(e.verb, step.reference) for e in step.events)




def test_what_the_loss_reads_is_redistributed_in_its_unit() -> None:
    tables = 'base = "dp"\n[mesh]\ntp = 2\n[dims]\ntp = ["loss.none", "seq"]\n'
    step = derive(parse_strategy_file(tables).strategy, resolve_model("gpt"))
    moved = [e for e in step.phase("forward") if e.on_tensor and (e.verb, e.unit) == ("all_gather", "loss")]
    assert moved
    for event in step.events:
        check_event(event, step.reference)


def test_what_an_op_reads_is_a_tensor() -> None:
    file = parse_strategy_file('base = "dp"\n[[edit]]\nset = "*.reduce*"\nreads = ["nonsense"]\n', "e.toml")
    with pytest.raises(InputError, match=r"e\.toml:4: reads names 'nonsense', which is no tensor of an op"):
        read_edits(file.edits, program("dp").reference, file.positions)
