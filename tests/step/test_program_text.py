"""Whole programs as text, which read back equal; edits, by what they do to the list of paths."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import text_steps
from hypothesis import given, settings
from hypothesis import strategies as st

from placealg.arith import Monomial
from placealg.check.prove import prove
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.abstract import abstract
from placealg.models.config import from_config
from placealg.models.model import Model
from placealg.models.transformer import Style, gpt
from placealg.step.derive import derive
from placealg.step.edit import Edit, apply_edits, edit, matches, read_edits
from placealg.step.event_fields import FIELDS
from placealg.step.program import Clause, Event, Rule, Step
from placealg.step.text import event_keys, read_path, read_program, subjects, write_program
from placealg.step.verbs import VERBS
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import parse_strategy_file

STEPS = {"zero1": text_steps.zero1(), "zero3": text_steps.zero3()}
ZERO1, ZERO3 = STEPS.values()


def read_back(step: Step, text: str) -> tuple[Event, ...]:
    file = parse_strategy_file(text, "p.toml")
    return read_program(file.events, step.reference, file.positions, file.loops)


def paths(step: Step) -> list[str]:
    return [e.path for e in step.events]


# whole programs

@pytest.mark.parametrize("name", STEPS)
def test_a_written_program_reads_back_equal(name: str) -> None:
    step = STEPS[name]
    text = write_program(step)
    assert read_back(step, text) == step.events
    assert parse_strategy_file(text).strategy == parse_strategy(step.reference.strategy)
    line = read_back(step, text)[3].line
    assert text.splitlines()[line - 1:line + 1] == ["[[event]]", f'path = "{step.events[3].path}"']


def test_a_written_program_names_model_and_loops() -> None:
    file = parse_strategy_file(write_program(ZERO1, model="llama"))
    assert (file.model, file.loops) == ("llama", {"microbatch": "m", "layer": "L"})
    bound = replace(ZERO1, reference=replace(ZERO1.reference, microbatches=4))
    assert parse_strategy_file(write_program(bound)).loops["microbatch"] == 4


OTHER: dict[str, Any] = {
    "op": "sum", "divisor": Monomial.parse("dp/3"), "at": ("only", "middle"), "where": (Clause("dp", 2),),
    "source": "P", "to": "I", "root": 2, "tier": "host", "layout": "other", "bytes": "4*w",
    "rule": Rule("mine", "because \\ \"\n"),
}


def test_every_field_is_written_and_read() -> None:
    told_otherwise = {"phase", "copy", "line", "said"}
    assert {g.field for g in FIELDS.values()} | told_otherwise == {f.name for f in fields(Event)} | {"why"}
    for name, value in OTHER.items():
        base, path = (ZERO1, "init.layer.weight.broadcast[dp]") if name == "root" else (
            ZERO3, "backward.layer.weight.grad.reduce[fsdp]")
        step = replace(base, events=tuple(replace(e, **{name: value}) if e.path == path else e for e in base.events))
        back = read_back(step, write_program(step))
        assert back == step.events
        assert back != base.events


def test_path_is_the_inverse_of_event_path() -> None:
    for step in STEPS.values():
        known = subjects(step.reference)
        for verb, table in known.items():
            for subject, event in table.items():
                axes = ("dp",) if verb in VERBS and VERBS[verb].needs_axes else ()
                event = replace(event, phase="forward", axes=axes, copy=3)
                assert event.subject == subject
                assert read_path(event.path, step.reference, known) == event


HEAD = 'base = "zero3[fsdp]*dp[4]"\n[loops]\nmicrobatch = "m"\n'


@pytest.mark.parametrize("case", [
    ('path = "forwrd.layer.compute"', "5: unknown phase 'forwrd' in forwrd.layer.compute; did you mean 'forward'?"),
    ('path = "forward.layer.comptue"', "5: unknown verb 'comptue' in forward.layer.comptue; did you mean 'compute'?"),
    ('path = "forward.leyer.compute"', "5: compute does not apply to 'leyer'", "did you mean 'layer'?"),
    ('path = "forward.layer.weight.zero"', "5: zero does not apply to 'layer.weight'", "'layer.weight.grad_sum'?"),
    ('path = "forward.layer.weight.gather[fsdb]"', "5: path forward.layer.weight.gather[fsdb] names axis 'fsdb'",
     "did you mean 'fsdp'?"),
    ('path = "forward.layer.weight.gather[fsdp,fsdp]"', "names axis 'fsdp' twice"),
    ('path = "forward.layer.weight.gather[ fsdp]"', "is written 'forward.layer.weight.gather[fsdp]'"),
    ('path = "forward.layer.weight.gather"', "5: forward.layer.weight.gather: gather needs axes; valid: fsdp, dp"),
    ('path = "forward.layer.compute[dp]"', "compute is local and takes no axes"),
    ('path = "forward"', "5: path is 'forward': expected PHASE.SUBJECT.VERB[AXES]"),
    ('path = 3', "5: path is 3"),
    ('verb = "gather"', "4: an event needs a path"),
    ('path = "update.step.update"\nat = "last"', "6: update.step.update: at = 'last'", "update stands outside it"),
    ('path = "forward.layer.compute"\nat = "lst"', "6: at names position 'lst'; did you mean 'last'?"),
    ('path = "forward.layer.compute"\nat = ["last", "last"]', "6: at names position 'last' twice"),
    ('path = "forward.layer.compute"\nat = 1', "6: at is 1"),
    ('path = "update.layer.weight.norm"\nwhere = "owner(pd)"', "6: where names axis 'pd'", "did you mean 'dp'?"),
    ('path = "update.layer.weight.norm"\nwhere = "owns(dp)"', "6: where = 'owns(dp)' is not a condition"),
    ('path = "update.layer.weight.norm"\nwhere = "rank(dp)=4"', "names a rank that does not exist: dp has 4"),
    ('path = "update.layer.weight.norm"\nwhere = "rank(dp)=' + "9" * 450 + '"', "5: update.layer.weight.norm: where"),
    ('path = "update.layer.weight.norm"\nwhere = 3', "6: where is 3"),
    ('path = "update.layer.weight.norm"\nrot = 3', "6: unknown key 'rot' in event; did you mean 'root'?"),
    ('path = "update.layer.weight.norm"\nverb = "clip"', "6: unknown key 'verb' in event"),
    ('path = "update.layer.weight.norm"\nvalue = "weight"', "norm does not apply to weight; valid: norm"),
    ('path = "update.layer.weight.norm"\nvalue = "gradd"', "6: value is 'gradd'; did you mean 'grad'?"),
    ('path = "update.layer.weight.norm"\ngroup = "layer.wait"', "6: unknown parameter group 'layer.wait'"),
    ('path = "update.layer.weight.norm"\ngroup = "embedding.weight"', "5: path 'update.layer.weight.norm' and"),
    ('path = "update.layer.weight.norm"\nunit = "layer"', "5: update.layer.weight.norm: norm of norm names"),
    ('path = "update.layer.weight.norm"\ndivisor = "__import__(1)"', "6: '__import__' is not a function"),
    ('path = "update.layer.weight.norm"\ndivisor = "dp + 1"', "6: 'dp + 1' is not a quotient"),
    ('path = "update.layer.weight.norm"\ndivisor = "dq"', "6: unknown symbol 'dq'; did you mean 'dp'?"),
    ('path = "update.layer.weight.norm"\ndivisor = 0', "6: divisor is 0: a divisor is positive"),
    ('path = "update.layer.weight.norm"\ndivisor = 0.5', "6: divisor is 0.5"),
    ('path = "update.layer.weight.norm"\ndivisor = "dp/67108865"',
     "6: divisor is 'dp/67108865': a number in a divisor is at most 2**26"),
    ('path = "update.layer.weight.norm"\ndivisor = 67108865', "6: divisor is 67108865: a number in a divisor is"),
    ('path = "update.layer.weight.norm"\ndivisor = "(10**64)**64*(10**64)**64"', "a number in a divisor is at most"),
    ('path = "update.layer.weight.norm"\nroot = -1', "6: root is -1"),
    ('path = "update.layer.weight.norm"\nop = "som"', "6: op is 'som'; did you mean 'sum'?"),
    ('path = "update.layer.weight.norm"\nop = ["sum"]', "6: op is ['sum']"),
    ('path = "update.layer.weight.norm"\ntier = "hosts"', "6: tier is 'hosts'; did you mean 'host'?"),
    ('path = "update.layer.weight.norm"\nfrom = "grads"', "6: from is 'grads'; did you mean 'grad'?"),
    ('path = "update.layer.weight.norm"\nto = "Q"', "6: to is 'Q'"),
    ('path = "update.layer.weight.norm"\nlayout = "my layout"', "6: layout is 'my layout'"),
    ('path = "update.layer.weight.norm"\nbytes = "x"', "6: unknown symbol 'x'"),
    ('path = "update.layer.weight.norm"\nbytes = "w - g"', "6: bytes is 'w - g': expected an element size"),
    ('path = "update.layer.weight.norm"\nbytes = "w/(w - g)"', "6: division by zero"),
    ('path = "update.layer.weight.norm"\nwhy = 1', "6: why is 1: expected a string"),
    ('path = "reduce.layer.weight.grad_sum.reduce[dp]"\nto = "R"', "a gradient is reduced to I or S, not to R"),
    ('path = "update.step.update"\n[[event]]\npath = "update.step.update"',
     "7: path 'update.step.update' stands on line 4"),
    ('path = "update.step.update"\n[[event]]\npath = "forward.layer.compute"', "7: forward.layer.compute stands after"),
])
def test_every_mistake_of_a_program_is_one_line_at_its_line(case: tuple[str, ...]) -> None:
    event, *messages = case
    file = parse_strategy_file(f"{HEAD}[[event]]\n{event}\n", "p.toml")
    with pytest.raises(InputError) as caught:
        read_program(file.events, ZERO3.reference, file.positions, file.loops)
    messages[0] = messages[0] if not messages[0][0].isdigit() else f"p.toml:{messages[0]}"
    assert str(caught.value).startswith("p.toml:")
    for message in messages:
        assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("loops", "message"), [
    ('microbatches = "m"', "p.toml:3: unknown loop 'microbatches'; did you mean 'microbatch'?"),
    ('microbatch = 4', "p.toml:3: loop microbatch runs 4 times; strategy and model say m"),
    ('layer = "V"', "p.toml:3: loop layer runs V times; strategy and model say L"),
    ('layer = ["V"]', "p.toml:3: loop layer runs ['V'] times: expected a size"),
    ('layer = "L+1"', "p.toml:3: 'L+1' is not a quotient"),
])
def test_loops_agree_with_strategy_and_model(loops: str, message: str) -> None:
    file = parse_strategy_file(f'base = "zero1"\n[loops]\n{loops}\n[[event]]\npath = "update.step.update"\n', "p.toml")
    with pytest.raises(InputError) as caught:
        read_program(file.events, ZERO1.reference, file.positions, file.loops)
    assert message in str(caught.value)


EXPRESSIONS = ("dp", "zero1", "zero2", "zero3", "fsdp_no_reshard", "hsdp", "zero3*offload_optimizer",
               "hsdp[dp_shard=8]*offload_optimizer", "zero1[x]*dp[2]")


@pytest.mark.parametrize("model", [abstract(), from_config("gpt2"), from_config("llama-3-8b")], ids=lambda m: m.name)
@pytest.mark.parametrize("text", EXPRESSIONS)
def test_a_derived_program_reads_back_equal(text: str, model: Model) -> None:
    step = derive(parse_strategy(text), model)
    file = parse_strategy_file(write_program(step))
    again = derive(file.strategy, model)
    assert again.reference == step.reference
    assert read_program(file.events, again.reference, file.positions, file.loops) == step.events


def wild(text: str, **table: Any) -> tuple[list[str], list[str]]:
    """The paths that an edit of a derived program takes away, and those that it brings."""
    step = derive(parse_strategy(text), from_config("gpt2"))
    edited = edit(step, **table)
    before, after = paths(step), paths(edited)
    return [p for p in before if p not in after], [p for p in after if p not in before]


def test_edits_of_derived_programs() -> None:
    groups = [g.name for g in derive(parse_strategy("dp"), from_config("gpt2")).reference.groups]
    assert len(groups) > 2
    gone, new = wild("dp", set="grad_sum.accumulate", verb="assign")
    assert sorted(gone) == sorted(f"backward.{g}.grad_sum.accumulate" for g in groups)
    assert sorted(new) == sorted(f"backward.{g}.grad_sum.assign" for g in groups)
    gone, new = wild("dp", move="reduce.*.grad_sum.reduce[dp]", before="backward.*.grad_sum.accumulate", at="last")
    assert sorted(new) == sorted(f"backward.{g}.grad_sum.reduce[dp]" for g in groups)
    for drop, count in (("resume.*.master.*", len(groups)), ("*.grad_sum.reduce[dp]", len(groups)),
                        ("update.norm.all_reduce*", 1), ("publish.*", len(groups)),
                        ("prepare.*.grad_sum.zero", len(groups))):
        gone, new = wild("zero1", drop=drop)
        assert (len(gone), new) == (count, [])
    gone, new = wild("hsdp", set="init.*.broadcast*", axes=["dp_shard"])
    assert sorted(new) == sorted(f"init.{g}.broadcast[dp_shard]" for g in groups)
    assert wild("hsdp", set="update.*.norm", where="owner(dp_shard)") == ([], [])
    assert len(wild("dp", double="*.grad_sum.reduce[dp]")[1]) == len(groups)


# patterns

@pytest.mark.parametrize(("pattern", "path", "expected"), [
    ("a.b.c", "a.b.c", True),
    ("a.b", "a.b.c", False),
    ("b.c", "a.b.c", True),
    ("c", "a.b.c", True),
    ("c", "a.bc", False),
    ("a.*.c", "a.b.b.c", True),
    ("a.*.c", "a.c", False),
    ("a*", "a.b.c", True),
    ("*", "a", True),
    ("**", "a", True),
    ("a*a", "a", False),
    ("*b*b*", "xbxbx", True),
    ("*b*b*", "xbx", False),
    ("r[dp]", "a.r[dp]", True),
    ("r[dp]", "a.rd", False),
    ("r[*]", "a.r[dp,tp]", True),
    ("?", "a", False),
    ("r", "a.r#2", False),
])
def test_patterns(pattern: str, path: str, expected: bool) -> None:
    assert matches(pattern, path) is expected


# edits

def test_drop() -> None:
    gone = edit(ZERO1, drop="*.grad_sum.reduce[dp]")
    assert [p for p in paths(ZERO1) if p not in paths(gone)] == [
        "reduce.layer.weight.grad_sum.reduce[dp]", "reduce.embedding.weight.grad_sum.reduce[dp]"]
    assert len(gone.events) == len(ZERO1.events) - 2
    assert gone.reference is ZERO1.reference
    for pattern, count in (("resume.*.master.*", 2), ("publish.*", 2), ("prepare.*.grad_sum.zero", 2),
                           ("update.norm.all_reduce*", 1), ("*", len(ZERO1.events)), ("save.layer.weight.store", 1)):
        assert len(edit(ZERO1, drop=pattern).events) == len(ZERO1.events) - count


def test_set() -> None:
    assigned = edit(ZERO1, set="grad_sum.accumulate", verb="assign")
    at = [i for i, e in enumerate(ZERO1.events) if e.verb == "accumulate"]
    assert [assigned.events[i].path for i in at] == [
        "backward.layer.weight.grad_sum.assign", "backward.embedding.weight.grad_sum.assign"]
    assert [e for i, e in enumerate(assigned.events) if i not in at] == [
        e for i, e in enumerate(ZERO1.events) if i not in at]
    everywhere = edit(ZERO1, set="update.*.norm", where="all")
    assert {e.where for e in everywhere.events if e.verb == "norm"} == {()}
    assert edit(ZERO3, set="init.*.slice*", axes=["dp"]).events[0].path == "init.embedding.weight.slice[dp]"
    changed = edit(ZERO1, {"set": "*.master.assign", "from": "grad", "rule": "mine", "tier": "host"})
    assert changed.events[2] == replace(ZERO1.events[2], source="grad", tier="host",
                                        rule=Rule("mine", ZERO1.events[2].rule.why))


def test_replace_starts_from_an_event_that_says_nothing() -> None:
    replaced = edit(ZERO1, replace="reduce.layer.*.reduce[dp]", op="sum")
    event = replaced.event("reduce.layer.weight.grad_sum.reduce[dp]")
    assert (event.op, event.to, event.source, event.rule.name) == ("sum", "", "", "edit")
    other = edit(ZERO1, replace="update.layer.weight.clip", verb="scale", divisor="dp")
    assert other.event("update.layer.weight.grad_sum.scale").divisor == Monomial.of("dp")


def test_move_takes_each_event_to_the_anchor_of_its_group() -> None:
    moved = edit(ZERO1, move="reduce.*.grad_sum.reduce[dp]", before="backward.*.grad_sum.accumulate", at="last")
    order = paths(moved)
    for group in ("layer", "embedding"):
        at = order.index(f"backward.{group}.weight.grad_sum.accumulate")
        assert order[at - 1] == f"backward.{group}.weight.grad_sum.reduce[dp]"
        assert moved.events[at - 1].at == ("last",)
    assert not moved.phase("reduce")
    assert len(moved.events) == len(ZERO1.events)
    several = edit(ZERO1, move="publish.*", after="backward.loss.scale", at=["first", "last"])
    at = paths(several).index("backward.loss.scale")
    assert paths(several)[at + 1:at + 3] == [
        "backward.embedding.weight.publish[dp]", "backward.layer.weight.publish[dp]"]
    assert several.events[at + 1].at == ("first", "last")


def test_an_event_that_leaves_the_loop_loses_its_position() -> None:
    moved = edit(ZERO3, move="layer.weight.grad_sum.accumulate", before="update.layer.weight.update")
    event = moved.event("update.layer.weight.grad_sum.accumulate")
    assert (event.at, event.layout) == ((), "rows")


def test_double() -> None:
    doubled = edit(ZERO1, double="*.grad_sum.reduce[dp]")
    at = paths(doubled).index("reduce.layer.weight.grad_sum.reduce[dp]")
    assert paths(doubled)[at + 1] == "reduce.layer.weight.grad_sum.reduce[dp]#2"
    assert doubled.events[at + 1] == replace(doubled.events[at], copy=2)
    third = edit(ZERO3, double="reduce.layer.weight.grad_sum.reduce[dp]")
    assert [p for p in paths(third) if p.startswith("reduce.layer")] == [
        "reduce.layer.weight.grad_sum.reduce[dp]", "reduce.layer.weight.grad_sum.reduce[dp]#3",
        "reduce.layer.weight.grad_sum.reduce[dp]#2"]


def test_insert() -> None:
    one = edit(ZERO1, insert={"verb": "scale", "value": "grad_sum", "divisor": "dp*m"},
               after="reduce.*.grad_sum.reduce[dp]")
    position = paths(one).index("reduce.layer.weight.grad_sum.reduce[dp]")
    assert paths(one)[position + 1] == "reduce.layer.weight.grad_sum.scale"
    by_path = edit(ZERO1, insert={"path": "reduce.layer.weight.grad_sum.reduce[dp]", "op": "sum"},
                   before="reduce.layer.weight.grad_sum.reduce[dp]")
    assert paths(by_path)[position] == "reduce.layer.weight.grad_sum.reduce[dp]#2"
    assert by_path.events[position].op == "sum"
    rank = edit(ZERO1, insert={"verb": "update", "value": "rng"}, after="update.step.update")
    assert "update.rng.update" in paths(rank)
    own = edit(ZERO1, insert={"verb": "zero", "value": "grad_sum", "group": "layer.weight"},
               before="backward.*.accumulate")
    assert paths(own)[paths(own).index("backward.layer.weight.grad_sum.accumulate") - 1] == (
        "backward.layer.weight.grad_sum.zero")
    between = edit(ZERO1, insert={"path": "prepare.layer.weight.grad_sum.zero"}, before="forward.embedding.compute")
    assert between.event("prepare.layer.weight.grad_sum.zero#2").phase == "prepare"
    inside = edit(ZERO1, insert={"path": "backward.layer.weight.grad_sum.zero"}, before="forward.loss.compute")
    assert inside.event("backward.layer.weight.grad_sum.zero").phase == "backward", "forward and backward are one loop"
    count = edit(ZERO1, insert={"path": "prepare.loss.count.compute"}, after="prepare.layer.weight.grad_sum.zero")
    assert count.event("prepare.loss.count.compute").unit == "loss"


def test_an_inserted_path_may_say_its_unit() -> None:
    """As an [[event]] may: a piece of the data is redistributed in the unit that uses it."""
    step = derive(parse_strategy("dp*tp"), gpt())
    piece = step.event("forward.data.tokens.slice[dp]")
    keys = {k: v for k, v in event_keys(piece, subjects(step.reference)) if k not in ("why", "rule")}
    assert keys["unit"] == "embedding"
    at = step.events.index(piece)
    after = step.events[at - 1].path
    back = edit(edit(step, drop=piece.path), insert=keys, after=after)
    assert [e.plain for e in back.events] == [e.plain for e in step.events]
    with pytest.raises(InputError, match=r"and the fields beside it disagree: they say 'forward\.layer\.compute'"):
        edit(ZERO1, insert={"path": "forward.embedding.compute", "unit": "layer"}, before="forward.loss.compute")


def test_phases_stand_in_order() -> None:
    with pytest.raises(InputError, match=r"stands after publish.* phases stand in the order init, prepare"):
        Step(ZERO1.reference, ZERO1.phase("publish") + ZERO1.phase("update"))
    assert Step(ZERO1.reference, ZERO1.phase("backward") + ZERO1.phase("forward")).events


def test_patterns_address_the_unedited_program() -> None:
    both = edit(ZERO1, {"set": "grad_sum.accumulate", "verb": "assign"}, {"set": "grad_sum.accumulate", "at": "first"})
    assert both.event("backward.layer.weight.grad_sum.assign").at == ("first",)
    with pytest.raises(InputError, match="no event"):
        edit(ZERO1, {"set": "grad_sum.accumulate", "verb": "assign"}, {"drop": "grad_sum.assign"})
    anchored = edit(ZERO1, {"drop": "update.step.update"},
                    {"move": "update.norm.all_reduce*", "before": "update.step.update"})
    assert paths(anchored)[paths(anchored).index("publish.embedding.weight.publish[dp]") - 1] == (
        "update.norm.all_reduce[dp]")
    swapped = edit(ZERO1, {"move": "forward.loss.compute", "before": "forward.layer.compute"},
                   {"move": "forward.layer.compute", "before": "forward.embedding.compute"})
    assert paths(Step(ZERO1.reference, swapped.phase("forward"))) == [
        "forward.layer.compute", "forward.embedding.compute", "forward.loss.compute"]


@pytest.mark.parametrize(("table", "message"), [
    ('drop = "*.grad_sum.redoce[dp]"', "e.toml:3: no event '*.grad_sum.redoce[dp]' in the unedited program; "
     "did you mean 'reduce.layer.weight.grad_sum.reduce[dp]'?"),
    ('drop = "publish.*.publish"', "e.toml:3: no event"),
    ('drop = ""', "e.toml:3: drop is ''"),
    ('drop = 3', "e.toml:3: drop is 3"),
    ('drp = "x"', "e.toml:2: an edit needs one action, and 'drp' is none; did you mean 'drop'?"),
    ('drop = "publish.*"\ndouble = "*"', "e.toml:2: an edit is one action; this one says drop and double"),
    ('drop = "publish.*"\nverb = "zero"', "e.toml:4: unknown key 'verb' in edit"),
    ('set = "publish.*"', "e.toml:2: set changes nothing"),
    ('replace = "publish.*"', "e.toml:2: replace changes nothing: name a field beside it"),
    ('set = "publish.*"\nphase = "init"', "e.toml:4: unknown key 'phase' in edit"),
    ('set = "publish.*"\naxis = ["dp"]', "e.toml:4: unknown key 'axis' in edit; did you mean 'axes'?"),
    ('set = "publish.*"\naxes = ["pd"]', "e.toml:4: axes names axis 'pd', which the mesh lacks; did you mean 'dp'?"),
    ('set = "publish.*"\nverb = "publsh"', "e.toml:4: verb is 'publsh'; did you mean 'publish'?"),
    ('set = "publish.*"\nverb = "zero"',
     "e.toml:3: publish.embedding.weight.weight.zero[dp]: zero does not apply to weight"),
    ('set = "publish.*"\nat = "last"', "e.toml:3: publish.embedding.weight.publish[dp]: at = 'last' means a position"),
    ('set = "grad_sum.reduce*"\naxes = []', "reduce needs axes"),
    ('set = "grad_sum.reduce*"\nverb = "zero"', "zero is local and takes no axes"),
    ('set = "grad_sum.reduce*"\nvalue = "norm"', "reduce does not apply to norm"),
    ('set = "update.*.norm"\nwhere = "owner(dp), rank(q)=0"', "e.toml:4: where names axis 'q'"),
    ('set = "forward.layer.compute"\ntier = "host"', "e.toml:3: forward.layer.compute: tier = host: only what a "
     "parameter group has lies on a tier"),
    ('set = "grad_sum.reduce*"\ntier = "device->host"', "tier = device->host: reduce copies nothing from tier to tier"),
    ('move = "publish.*"', "e.toml:3: move needs before or after, one of them"),
    ('move = "publish.*"\nbefore = "*"\nafter = "*"', "e.toml:3: move needs before or after, one of them"),
    ('move = "publish.*"\nbefore = 1', "e.toml:4: before is 1"),
    ('move = "publish.*"\nbefore = "nowhere"', "e.toml:3: no event 'nowhere'"),
    ('move = "publish.*"\nbefore = "update.*"', "e.toml:3: 'update.*' matches 8 events, and 3 of them of the group of "
     "publish.embedding.weight.publish[dp]"),
    ('move = "update.norm.all_reduce*"\nbefore = "publish.*"', "matches 2 events, and none of them of the group"),
    ('move = "update.norm.all_reduce*"\nbefore = "update.norm.all_reduce*"', "cannot be moved before itself"),
    ('move = "publish.*"\nbefore = "reduce.*"\nat = "last"', "means a position of the microbatch loop"),
    ('move = "publish.*"\nbefore = "reduce.*"\n[[edit]]\nmove = "publish.*"\nafter = "reduce.*"', "e.toml:6: publish."
     "embedding.weight.publish[dp] is moved twice"),
    ('insert = "x"\nbefore = "*"', "e.toml:3: insert is 'x': expected a table"),
    ('insert = { value = "weight" }\nbefore = "*"', "e.toml:3: insert needs verb, or a path"),
    ('insert = { verb = "zero", value = "grad_sum" }', "e.toml:3: insert needs before or after"),
    ('insert = { verb = "zero", value = "grad_sum", grp = "x" }\nbefore = "*"', "e.toml:3: unknown key 'grp'"),
    ('insert = { verb = "zero", value = "grad_sum", group = "x" }\nbefore = "*"',
     "e.toml:3: unknown parameter group 'x'"),
    ('insert = { verb = "zero", value = "grad_sum" }\nbefore = "forward.loss.compute"',
     "zero of grad_sum names nothing"),
    ('insert = { path = "init.layer.weight.grad_sum.zero" }\nbefore = "publish.*"', "e.toml:3: the inserted event says "
     "phase init, its anchor"),
    ('insert = { path = "init.layer.weight.grad_sum.zeroo" }\nbefore = "publish.*"', "e.toml:3: unknown verb 'zeroo'"),
    ('set = "reduce.*.reduce[dp]"\nverb = "slice"', "not from P to S; set keeps the other fields of the reduce: say "
     "them too, or drop it and insert a slice"),
    ('insert = { path = "init.step.assign", group = "x" }\nbefore = "publish.*"', "e.toml:3: unknown key 'group'"),
])
def test_every_mistake_of_an_edit_is_one_line_at_its_line(table: str, message: str) -> None:
    file = parse_strategy_file(f'base = "zero1"\n[[edit]]\n{table}\n', "e.toml")
    with pytest.raises(InputError) as caught:
        apply_edits(ZERO1, read_edits(file.edits, ZERO1.reference, file.positions))
    assert message in str(caught.value)
    assert str(caught.value).startswith("e.toml:")
    assert "\n" not in str(caught.value)


def test_the_operator_of_a_verb_that_sums_nothing_goes_with_it() -> None:
    """Of every event that sums: as another verb with places of its own it has no operator, and as it was it has."""
    step = derive(parse_strategy("zero1*tp_sp"), gpt())
    for event in [e for e in step.events if e.op and e.verb in ("reduce_scatter", "reduce")][:6]:
        sliced = edit(step, set=event.path, verb="slice", **{"from": "R"})
        made = next(e for e in sliced.events if e not in step.events and (e.verb, e.subject, e.phase) == (
            "slice", event.subject, event.phase))
        assert made.op == "" and edit(step, set=event.path, bytes="w").events != step.events


def test_an_edit_is_data() -> None:
    file = parse_strategy_file(
        'base = "zero1"\n[[edit]]\nmove = "publish.*"\nafter = "forward.loss.compute"\nat = "last"\n')
    assert read_edits(file.edits, ZERO1.reference, file.positions) == (
        Edit("move", "publish.*", FrozenMap({"at": ("last",)}), "forward.loss.compute", False, 3, "strategy.toml"),)


TABLES = st.one_of(
    st.builds(lambda path: {"drop": path}, st.sampled_from(paths(ZERO1))),
    st.builds(lambda path: {"double": path}, st.sampled_from(paths(ZERO1))),
    st.builds(lambda path, anchor, side: {"move": path, side: anchor}, st.sampled_from(paths(ZERO1)),
              st.sampled_from(paths(ZERO1)), st.sampled_from(("before", "after"))),
    st.builds(lambda path, key, value: {"set": path, key: value}, st.sampled_from(paths(ZERO1)),
              st.sampled_from(("op", "from", "to", "tier", "verb", "value", "at")),
              st.sampled_from(("sum", "mean", "grad", "S", "host", "zero", "assign", "scale", "last", "all"))),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(TABLES, min_size=1, max_size=4))
def test_an_edited_program_reads_back_equal(tables: list[dict[str, str]]) -> None:
    try:
        step = edit(ZERO1, *tables)
    except InputError:
        return
    assert len(set(paths(step))) == len(step.events)
    if step.events:
        assert read_back(step, write_program(step)) == step.events


OF_DIMS = derive(parse_strategy("dp*tp_sp*cp_ring"), gpt(Style(flash=True)))


@pytest.mark.parametrize(("table", "message"), [
    ('set = "forward.layer.attn.out.reduce_scatter[tp]"\nto = "S(ffn)"',
     "e.toml:3: forward.layer.attn.out.reduce_scatter[tp]: reduce_scatter needs to = \"S(dim)\" with a dim of "
     "layer.attn.out; 'ffn' is none; valid: batch, seq, embed"),
    ('set = "forward.layer.attn.out.reduce_scatter[tp]"\nto = "I"', 'reduce_scatter needs to = "S(dim)" with a dim of'),
    ('set = "forward.layer.norm1.out.all_gather[tp]"\nfrom = "S(sq)"', "from is 'S(sq)'; did you mean 'S(seq)'?"),
    ('set = "forward.layer.attn.*.shift[cp]"\nfrom = "I"', 'shift needs from = "S(dim)" with a dim of'),
    ('replace = "forward.layer.attn.out.reduce_scatter[tp]"\nverb = "all_to_all"\nfrom = "S(seq)"',
     'all_to_all needs to = "S(dim)"'),
    ('replace = "forward.layer.attn.out.reduce_scatter[tp]"\nverb = "slice"', 'slice needs to = "S(dim)"'),
])
def test_a_dim_that_a_tensor_lacks_is_refused_at_its_line(table: str, message: str) -> None:
    file = parse_strategy_file(f'base = "zero1"\n[[edit]]\n{table}\n', "e.toml")
    with pytest.raises(InputError) as caught:
        apply_edits(OF_DIMS, read_edits(file.edits, OF_DIMS.reference, file.positions))
    assert message in str(caught.value) and str(caught.value).startswith("e.toml:")


def test_a_counterexample_names_the_line_of_its_event() -> None:
    text = ('base = "zero1"\n[[edit]]\nset = "reduce.*.reduce[dp]"\nop = "sum"\n\n[[edit]]\n'
            'move = "update.layer.weight.update"\nbefore = "update.layer.weight.clip"\n')
    file = parse_strategy_file(text, "e.toml")
    base = derive(file.strategy, abstract())
    found = prove(apply_edits(base, read_edits(file.edits, base.reference, file.positions)))
    assert found.counterexample and found.counterexample.event == "update.layer.weight.update"
    assert found.counterexample.line == 7 == found.to_json()["counterexample"]["line"]
    untouched = prove(edit(base, drop="reduce.*.reduce[dp]"))
    assert untouched.counterexample and untouched.counterexample.line == 0
    assert untouched.to_json()["counterexample"]["line"] is None
