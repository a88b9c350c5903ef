"""Stages with the layers that predict later tokens alone: several tensors cross to the stage of the head together."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from predicting import predicting, small

from placealg.check.prove import prove
from placealg.cli import main
from placealg.cost.communication import communication
from placealg.cost.document import PREDICTS, assumed
from placealg.cost.flop import flop
from placealg.cost.formula import Formula
from placealg.cost.memory import memory
from placealg.cost.sizing import stages
from placealg.cost.stage import on_stage
from placealg.errors import InputError
from placealg.importers.read import Options, read_words
from placealg.models.config import resolve_model
from placealg.models.model import Model
from placealg.models.stage_parts import standing_alone
from placealg.models.transformer import gpt
from placealg.prover.examine import examine, hypotheses
from placealg.prover.ops.findings import FailureKind
from placealg.prover.ops.flow import Flows
from placealg.prover.verdict import PROVED, REFUTED
from placealg.simulator import Setting, simulate
from placealg.simulator.setting import fitting_microbatches
from placealg.simulator.stages import of
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.pipeline import LAST, Item, Pipeline, in_flight, part_of, work
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import overlay

PREDICTING = ("prediction", "last")
SIZES = {"b": 3, "s": 64, "h": 48, "a": 12, "kv": 4, "f": 96, "L": 12, "V": 96, "m": 8, "dp": 2, "tp": 2}
TYPES = {"w": 2, "g": 2, "wire": 2, "o": 12, "act": 2, "T_F": 3, "T_B": 4, "T_W": 2}


@cache
def step_of(text: str, count: int = 1, tied: bool = False, alone: tuple[str, ...] = PREDICTING, **said: Any) -> Step:
    tables = {"schedule": {**({"alone": alone} if alone else {}), **said}}
    return derive(overlay(parse_strategy(text), tables), predicting(count, tied))


def value(formula: Formula, **sizes: int) -> Any:
    every = {**SIZES, **TYPES, **sizes}
    return formula.value(**{n: v for n, v in every.items() if n in formula.inputs})


def ran(step: Step, pp: int, m: int = 1) -> bool:
    sizes = {**dict.fromkeys(step.reference.mesh.names, 2), "pp": pp}
    fitting = fitting_microbatches(step.reference, sizes, m)
    return simulate(step, Setting.equal(step.reference, sizes, fitting, 1)).equal


def test_what_crosses_is_what_the_head_reads_and_what_each_layer_made() -> None:
    graph = standing_alone(predicting(2), PREDICTING).graph
    assert [loop.unit for loop in graph.loops] == ["layer", "mtp1", "mtp2", "exit"]
    assert [graph.leaving(u) for u in ("layer", "mtp1", "mtp2", "exit")] == [
        ("layer.out",), ("mtp1.passed", "mtp1.norm.out"), ("mtp2.passed", "mtp2.mtp1.norm.out", "mtp2.norm.out"),
        ("exit.out", "exit.mtp2.mtp1.norm.out", "exit.mtp2.norm.out")]
    assert [loop.first for loop in graph.entering("exit")] == ["mtp2.passed", "mtp2.mtp1.norm.out", "mtp2.norm.out"]
    assert [graph.consumers(name)[0].output for name in ("exit.out", "exit.mtp2.norm.out")] == [
        "head.logits", "mtp2_head.logits"]
    assert {part_of(u, graph) for u in ("head", "mtp1_head", "mtp2_head")} == {LAST}


def test_no_parameter_is_lost_and_a_checkpoint_calls_them_as_before() -> None:
    model = resolve_model("deepseek-v3", mtp=True)
    apart = standing_alone(model, ["prediction"])
    assert apart.total() == model.total() and {*apart.names.values()} == {*model.names.values()}
    assert {p.name for p in apart.parameters} ^ {p.name for p in model.parameters} == {
        "head.norm.weight", "mtp1.head.norm.weight"}
    assert apart.names["mtp1.head.norm.weight"] == "model.norm.weight"


def test_a_page_says_that_the_model_has_these_layers() -> None:
    assert [PREDICTS in assumed(step_of("pp_1f1b", alone=alone)) for alone in (PREDICTING, ("last",))] == [True, False]


@pytest.mark.parametrize(("model", "alone", "units"), [
    (predicting(), (), "mtp1 reads and predicts"), (predicting(2), (), "mtp1 and mtp2 read and predict"),
    (predicting(2), PREDICTING, "mtp1 and mtp2 read and predict"), (gpt(), (), "")])
def test_a_verdict_says_what_it_assumes_of_these_layers(model: Model, alone: tuple[str, ...], units: str) -> None:
    """One hypothesis, with the layers by name, wherever they run; none on a model without them."""
    tables = {"schedule": {"alone": alone}} if alone else {}
    found = {h.name: h.says for h in hypotheses(derive(overlay(parse_strategy("pp"), tables), model))}
    assert ("predictions" in found) == bool(units) and units in found.get("predictions", "")


@pytest.mark.slow
def test_the_page_of_a_proof_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", "dp", "--model", "deepseek-v3", "--mtp", "--no-timing"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "predictions: what mtp1 reads and predicts, later tokens, is data that each rank has" in said
    assert "num_nextn_predict_layers" not in said


MESSAGES = [e.path for e in step_of("pp_1f1b").events if e.verb in ("send", "recv")]


def test_both_tensors_are_sent_and_received_each_way() -> None:
    assert [path for path in MESSAGES if "layer." not in path] == [
        "forward.mtp1.in.recv[pp]", "forward.mtp1.passed.send[pp]", "forward.mtp1.norm.out.send[pp]",
        "forward.exit.in.recv[pp]", "forward.exit.mtp1.norm.out.in.recv[pp]", "backward.exit.in.grad.send[pp]",
        "backward.exit.mtp1.norm.out.in.grad.send[pp]", "backward.mtp1.passed.grad.recv[pp]",
        "backward.mtp1.norm.out.grad.recv[pp]", "backward.mtp1.in.grad.send[pp]"]


def small_step(order: str = "pp_1f1b") -> Step:
    return derive(overlay(parse_strategy(order), {"schedule": {"alone": PREDICTING}}), small())


def test_a_small_model_is_proved_and_its_run_equals_the_single_device() -> None:
    step = small_step()
    assert {v.verdict for v in examine(step).verdicts} == {PROVED} and ran(step, 3)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "tied"), [(1, False), (2, True)])
@pytest.mark.parametrize("text", ["zero1*pp", "pp_gpipe", "pp_1f1b", "pp_interleaved", "pp_zb_h1", "pp_zb_h2",
                                  "pp_zb_v", "pp_interleaved_zb", "pp_dualpipe_v", "zero3*tp_sp*pp_zb_h1"])
def test_every_order_is_proved_and_runs(text: str, count: int, tied: bool) -> None:
    """Of shared weights a third stage holds a copy, where embedding and head are one parameter."""
    if tied and text in ("pp_zb_v", "pp_dualpipe_v"):
        with pytest.raises(InputError, match=r"begins and ends the model on one stage, in two chunks: parameter 'emb"):
            step_of(text, count, tied)
        return
    step = step_of(text, count, tied)
    assert prove(step).verdict == PROVED
    assert ran(step, 3, 2) and (len(step.reference.mesh.names) > 2 or ran(step, 4, 3))


@pytest.mark.slow
def test_deepseek_v3_is_proved_as_megatron_lays_it_out() -> None:
    step = derive(overlay(parse_strategy("zero1*tp_sp*pp*ep"), {"schedule": {"alone": ("first", *PREDICTING)}}),
                  resolve_model("deepseek-v3", mtp=True))
    assert prove(step).verdict == PROVED


@pytest.mark.some(3)
@pytest.mark.parametrize("path", [path for path in MESSAGES if "layer." not in path])
def test_no_message_may_be_left_out(path: str) -> None:
    broken = edit(small_step(), {"drop": path.replace("norm.", "")})
    assert REFUTED in {v.verdict for v in examine(broken).verdicts} and not ran(broken, 3)


def test_what_no_later_stage_receives_is_told_of_its_sender() -> None:
    """Nobody sends behind the layer that predicts, so that no later send finds what is left over."""
    told = Flows(edit(small_step(), {"double": "forward.mtp1.out.send[pp]"})).at("only")
    assert [d.event for d in told.demands if d.kind == FailureKind.UNRECEIVED] == ["forward.mtp1.out.send[pp]#2"]
    assert not [d for d in Flows(small_step()).at("only").demands if d.kind == FailureKind.UNRECEIVED]


@pytest.mark.some(2)
@pytest.mark.parametrize("path", ["forward.mtp1.out.send[pp]", *(p for p in MESSAGES if "mtp1.passed" in p)])
def test_no_message_may_be_sent_twice(path: str) -> None:
    """The stage of the head receives what it needs; what the layer that predicts sent besides waits for ever."""
    broken = edit(small_step(), {"double": path.replace("norm.", "")})
    assert REFUTED in {v.verdict for v in examine(broken).verdicts} and not ran(broken, 3)


@pytest.mark.slow
def test_a_message_between_layers_is_replayed_where_layers_have_two_stages() -> None:
    """With three stages only one has layers, and none of them receives anything."""
    report = prove(edit(small_step("zero1*pp"), {"double": "forward.layer.in.recv[pp]"}))
    assert report.verdict == REFUTED and report.counterexample is not None
    assert dict(report.counterexample.sizes)["pp"] == 4


@pytest.mark.parametrize(("one", "other"), [
    ("forward.mtp1.passed.send[pp]", "forward.mtp1.out.send[pp]"),
    ("forward.exit.in.recv[pp]", "forward.exit.mtp1.out.in.recv[pp]"),
    ("backward.exit.in.grad.send[pp]", "backward.exit.mtp1.out.in.grad.send[pp]"),
    ("backward.mtp1.passed.grad.recv[pp]", "backward.mtp1.out.grad.recv[pp]")])
def test_messages_are_received_as_they_are_sent(one: str, other: str) -> None:
    broken = edit(small_step(), {"move": one, "after": other})
    refuted = [v for v in examine(broken).verdicts if v.verdict == REFUTED]
    assert "schedule" in {v.id for v in refuted} and not ran(broken, 3)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "tied"), [(1, False), (1, True)])
def test_the_weights_of_the_embedding_are_summed_over_all_stages_that_hold_them(count: int, tied: bool) -> None:
    broken = edit(step_of("zero1*pp", count, tied), {"drop": "reduce.embedding.weight.grad_sum.reduce[pp]"})
    report = prove(broken)
    assert report.verdict == REFUTED and report.counterexample is not None
    assert report.counterexample.obligation == "gradient"


def test_a_run_has_neither_layer_nor_head_on_that_stage() -> None:
    for text, home in (("pp_1f1b", 2), ("pp_zb_v", 1), ("pp_interleaved", 2)):
        step = step_of(text)
        found = of(step.reference, Setting.equal(step.reference, {"pp": 4}, 4, 1))
        assert found is not None and found.home(found.chunk("mtp1", 0)) == home
        chunks = {unit: {found.chunk(unit, k) for k in range(found.run.instances(unit, found.graph))}
                  for unit in ("layer", "mtp1", "head")}
        assert not (chunks["layer"] & chunks["mtp1"] or chunks["mtp1"] & chunks["head"])


@pytest.mark.parametrize(("text", "listed"), [("zero1*pp", (5, 7, 0, 0)), ("zero3*tp_sp*pp_zb_h1", (0, 5, 7, 0, 0)),
                                              ("dp*pp_gpipe", (12, 0, 0))])
def test_the_stages_add_up_to_the_model(text: str, listed: tuple[int, ...]) -> None:
    """States but for copies of the embedding, flop, and messages: two from the stage of the layer that predicts."""
    pp = len(listed)
    step = step_of(text, alone=(), stages=listed)
    whole = derive(parse_strategy(text.rpartition("*")[0]), predicting())
    every = [on_stage(step, k, {**SIZES, "pp": pp}) for k in range(pp)]
    assert sum(value(flop(one), pp=pp) for one in every) == value(flop(whole))
    sent = [sum(value(e.formula, pp=pp) for e in communication(one).events if e.collective == "send") for one in every]
    split = SIZES["tp"] if "tp_sp" in text else 1
    message = SIZES["m"] * SIZES["b"] * SIZES["s"] * SIZES["h"] * TYPES["act"] // split
    assert sent == [n * message for n in (1, *[2] * (pp - 3), 3, 2)]
    summed = [any(e.group == "embedding.weight" and e.verb == "reduce" and "pp" in e.axes for e in one.events)
              for one in every]
    assert summed == [k in (0, pp - 2) for k in range(pp)]
    layers = [sum(int(n.coefficient) for u, n in one.stage.instances.items() if u == "layer") for one in every]
    assert layers == list(listed)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["zero1*pp", "zero1*pp_zb_h1"])
def test_the_symbols_of_a_stage_are_the_numbers_of_each(text: str) -> None:
    step = step_of(text)
    symbols = {which: memory(on_stage(step, which)) for which in ("first", "i", "prediction", "last")}
    for pp in (4, 5, 7):
        for k in range(pp):
            stage = on_stage(step, k, {"pp": pp, "L": 12, "m": 8})
            which = {0: "first", pp - 2: "prediction", pp - 1: "last"}.get(k, "i")
            for (name, there), (_, here) in zip(symbols[which].items(), memory(stage).items(), strict=True):
                assert value(there, pp=pp, i=k, n_layer=stage.stage.symbols.get("n_layer", 1)) == value(
                    here, pp=pp), (name, pp, k)


@pytest.mark.parametrize("order", ["1f1b", "gpipe", "zb_h1", "zb_h2", "interleaved", "interleaved_zb", "zb_v",
                                   "dualpipe_v"])
def test_in_flight_on_that_stage_is_counted_on_its_order(order: str) -> None:
    """The most microbatches with a forward and no backward of its chunk, counted on what its rank does."""
    from placealg.arith import parse

    pipeline = Pipeline("pp", order, 2 if order.startswith("inter") or order.endswith("_v") else 1, alone=PREDICTING)
    text = in_flight(pipeline, "prediction")
    for ranks in (3, 4, 6):
        rank = pipeline.predicting_rank(ranks)
        chunk = pipeline.own(rank, ranks).index(ranks * (pipeline.chunks or 1) - 2)
        for m in (ranks, 2 * ranks, 4 * ranks):
            most = now = 0
            for item in work(pipeline, rank, ranks, m):
                assert isinstance(item, Item)
                now += {"forward": 1, "backward": -1}.get(item.phase, 0) if item.chunk == chunk else 0
                most = max(most, now)
            known = {"p": ranks, "i": rank, "m": m, "v": pipeline.chunks or 1}
            told = text.replace("Min(m*v,", "Min(m,") if pipeline.chunks == 1 else text
            assert most == parse(told).evaluate(known), (ranks, m)


def test_where_nobody_knows_the_number_of_stages_it_has_a_name() -> None:
    step = step_of("zero1*pp")
    assert [str(one.name) for one in stages(step, {})] == [
        "stage 0 along pp", "the stage of the layers that predict along pp", "the last stage along pp"]
    assert on_stage(step, "prediction", {"pp": 5}).stage.number == 3
    with pytest.raises(InputError, match="is not a stage: say first, prediction, last, a number from 0, or i"):
        on_stage(step, "predicting")
    with pytest.raises(InputError, match="is not a stage: say first, last, a number from 0, or i"):
        on_stage(step_of("zero1*pp", alone=("last",)), "prediction")


@pytest.mark.parametrize(("said", "model", "why"), [
    ({"alone": ["prediction"]}, gpt(), "alone: gpt has no layer that predicts a later token: say --mtp"),
    ({"stages": [2, 3, 0, 0]}, gpt(), "stages: gpt has no layer that predicts a later token: say --mtp"),
    ({"stages": [2, 3, 1, 0], "alone": ["prediction"]}, predicting(),
     r"alone says that the last but one stage has no layer, and stages = \[2, 3, 1, 0\] gives it 1"),
    ({"stages": [2, 3, 1], "alone": ["prediction"]}, predicting(), "the last but one stage has no layer"),
    ({"stages": [2, 0, 0, 0]}, predicting(), "a stage between the first and the last has at least 1 layer"),
    ({"alone": ["predictions"]}, predicting(), "alone names 'predictions'; did you mean 'prediction'"),
])
def test_what_makes_no_such_pipeline_is_refused(said: dict[str, Any], model: Model, why: str) -> None:
    with pytest.raises(InputError, match=why):
        derive(overlay(parse_strategy("pp"), {"schedule": said}), model)


def test_too_few_stages_are_refused() -> None:
    with pytest.raises(InputError, match="pp = 2 makes 2 stages, and the last but one and the last run no layer; at "
                                         "least 3 are needed"):
        on_stage(step_of("pp"), "first", {"pp": 2})
    with pytest.raises(InputError, match="pp = 2 puts the layers that predict on the rank of the embedding, whose "
                                         "weights they share, in another chunk; at least pp = 3 is needed"):
        on_stage(step_of("pp_interleaved"), "first", {"pp": 2})
    assert on_stage(step_of("pp_zb_v"), "first", {"pp": 2, "L": 4}).stage.ranks == 2


MEGATRON = ("pretrain_gpt.py --num-layers 6 --hidden-size 64 --num-attention-heads 4 --seq-length 32 "
            "--max-position-embeddings 32 --micro-batch-size 1 --global-batch-size 8 --vocab-size 128 "
            "--tokenizer-type NullTokenizer --pipeline-model-parallel-size {pp} --mtp-num-layers {count} "
            "--pipeline-model-parallel-layout {layout}")


def layout(pp: int, text: str, count: int = 1) -> tuple[int, ...]:
    words = ["torchrun", "--nproc_per_node", str(2 * pp), *MEGATRON.format(pp=pp, layout=text, count=count).split()]
    return tuple(read_words(words, Options()).strategy.option("schedule", "stages"))


def test_megatron_says_such_stages_by_letters() -> None:
    assert layout(4, "Ettt|ttt|m|L") == (3, 3, 0, 0)
    assert layout(2, "Ett|tttt|mm|L", 2) == (2, 4, 0, 0)
    assert layout(2, "Ettt|tttmL") == ()
    assert layout(3, "Ettt|ttt|mL") == (3, 3, 0)
    for text in ("Ettt|tttm|L", "Ettt|ttt|m|m|L", "Em|tttttt|L"):
        with pytest.raises(InputError, match=r"\(m\) stand with the loss, or alone on the one stage before .*: write "
                                             r"\.\.t\|tmL or \.\.t\|m\|L"):
            layout(text.count("|") + 1, text, text.count("m"))
    for ranks, told in ((2, "2 or 4"), (4, "4")):
        with pytest.raises(InputError, match=f"{ranks} ranks, each of which runs as many: make them {told}"):
            layout(ranks, "Ettt|ttt|mL")
    with pytest.raises(InputError, match=r"1 layers that predict later tokens \(m\), and mtp-num-layers is 2"):
        layout(4, "Ettt|ttt|m|L", 2)
