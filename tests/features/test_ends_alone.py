"""Stages of a pipeline with the embedding, the head or the layers that predict later tokens alone: no layer on them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from placealg.check.prove import prove
from placealg.check.reshard import small_sizes
from placealg.cost.communication import communication
from placealg.cost.flop import flop
from placealg.cost.formula import Formula
from placealg.cost.memory import chosen, memory
from placealg.cost.sizing import stages
from placealg.cost.stage import on_stage
from placealg.errors import InputError
from placealg.importers.read import Options, read_words
from placealg.models.config import resolve_model
from placealg.models.transformer import LLAMA, gpt, mlp
from placealg.prover.examine import examine
from placealg.prover.verdict import PROVED, REFUTED
from placealg.simulator import Setting, simulate
from placealg.simulator.setting import fitting_microbatches
from placealg.simulator.stages import of
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.pipeline import Pipeline
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import overlay, strategy_on

BOTH = ("first", "last")
SIZES = {"b": 3, "s": 64, "h": 48, "a": 12, "kv": 4, "f": 96, "L": 12, "V": 96, "m": 8, "dp": 2, "tp": 2}
TYPES = {"w": 2, "g": 2, "wire": 2, "o": 12, "act": 2, "T_F": 3, "T_B": 4, "T_W": 2}


@cache
def step_of(text: str, model: str = "gpt", alone: tuple[str, ...] = BOTH, **said: Any) -> Step:
    made = {"gpt": gpt, "llama": lambda: gpt(LLAMA), "mlp": mlp}.get(model, lambda: resolve_model(model))()
    tables = {"schedule": {**({"alone": alone} if alone else {}), **said}}
    return derive(overlay(parse_strategy(text), tables), made)


def value(formula: Formula, **sizes: int) -> Any:
    every = {**SIZES, **TYPES, **sizes}
    return formula.value(**{n: v for n, v in every.items() if n in formula.inputs})


def ran(step: Step, pp: int, m: int) -> bool:
    sizes = {**dict.fromkeys(step.reference.mesh.names, 2), "pp": pp}
    fitting = fitting_microbatches(step.reference, sizes, m)
    return simulate(step, Setting.equal(step.reference, sizes, fitting, 1)).equal


@pytest.mark.slow
@pytest.mark.parametrize("alone", [("first",), ("last",), BOTH])
@pytest.mark.parametrize("order", ["pp_gpipe", "pp_1f1b", "pp_interleaved", "pp_zb_h1", "pp_zb_h2", "pp_zb_v",
                                   "pp_interleaved_zb", "pp_dualpipe_v"])
def test_every_order_equals_the_single_device(order: str, alone: tuple[str, ...]) -> None:
    step = step_of(order, "llama", alone)
    assert ran(step, 3, 3) and ran(step, 4, 2)
    assert prove(step).verdict == PROVED


@pytest.mark.parametrize(("alone", "m"), [(("first",), 1), (BOTH, 2)])
def test_a_small_run_equals_the_single_device(alone: tuple[str, ...], m: int) -> None:
    assert ran(step_of("pp_zb_h1", alone=alone), 3, m)


def test_a_run_has_no_layer_on_such_a_stage() -> None:
    for alone in (("first",), ("last",), BOTH):
        step = step_of("pp_1f1b", alone=alone)
        found = of(step.reference, Setting.equal(step.reference, {"pp": 4}, 1, 1))
        assert found is not None
        homes = {unit: {found.home(found.chunk(unit, k)) for k in range(found.run.instances(unit, found.graph))}
                 for unit in ("layer", "head")}
        layers = homes["layer"]
        assert layers == set(range("first" in alone, 4 - ("last" in alone))) and homes["head"] == {3}
        assert found.home(found.chunk("embedding", 0)) == 0


@pytest.mark.parametrize(("text", "model", "alone"), [("pp_1f1b", "mlp", ("last",)), *(
    pytest.param(text, "gpt", BOTH, marks=pytest.mark.slow) for text in ("zero1*pp", "zero3*tp_sp*pp_zb_h1"))])
def test_it_is_proved_for_any_number_of_stages(text: str, model: str, alone: tuple[str, ...]) -> None:
    report = prove(step_of(text, model, alone))
    assert report.verdict == PROVED
    but = " and the ".join(alone)
    assert f"fewer layers than stages: each has one at least, but for the {but}" in report.not_covered


def test_a_head_that_splits_what_it_is_handed_is_followed() -> None:
    """Its gradient comes back under the label of the copy that the head made: of the one instance that hands on."""
    strategy = strategy_on("split", {"tp": None, "pp": None}, dims={"tp": ["layer.none", "embed"], "pp": ["layer"]},
                           schedule={"alone": ["last"]})
    step = derive(strategy, mlp())
    assert [e.path for e in step.events if e.value == "exit.out.grad"][:1] == ["backward.exit.out.grad.all_gather[tp]"]
    assert {v.verdict for v in examine(step).verdicts} == {PROVED} and ran(step, 3, 1)


@pytest.mark.slow
@pytest.mark.parametrize("mtp", [False, True])
def test_deepseek_v3_is_proved_so_with_the_layer_that_predicts_later_tokens_beside_the_head(mtp: bool) -> None:
    model = resolve_model("deepseek-v3", mtp=mtp)
    step = derive(overlay(parse_strategy("zero1*tp_sp*pp*ep"), {"schedule": {"alone": BOTH}}), model)
    assert prove(step).verdict == PROVED
    last = on_stage(step, "last")
    assert ("mtp1" in {u.name for u in last.reference.units}) == mtp
    assert not {"dense", "layer"} & {u.name for u in last.reference.units}


MESSAGES = [e.path for e in step_of("pp_1f1b").events if e.verb in ("send", "recv")]


@pytest.mark.some(8)
@pytest.mark.parametrize("path", MESSAGES)
def test_no_message_may_be_left_out(path: str) -> None:
    """Those of the units that hand on are waited for as those of layers are."""
    broken = edit(step_of("pp_1f1b"), {"drop": path})
    assert not ran(broken, 3, 1)
    assert REFUTED in {v.verdict for v in examine(broken).verdicts}


def test_an_end_has_no_neighbour_outside() -> None:
    assert len(MESSAGES) == 8 and [m for m in MESSAGES if "entry" in m or "exit" in m] == [
        "forward.entry.out.send[pp]", "forward.exit.in.recv[pp]", "backward.exit.in.grad.send[pp]",
        "backward.entry.out.grad.recv[pp]"]


@pytest.mark.slow
def test_the_shared_weights_of_both_ends_are_summed() -> None:
    broken = edit(step_of("zero1*pp"), {"drop": "reduce.embedding.weight.grad_sum.reduce[pp]"})
    report = prove(broken)
    assert report.verdict == REFUTED and report.counterexample is not None
    assert dict(report.counterexample.sizes)["pp"] == 3, "with fewer stages there is no such pipeline"


def test_the_layers_are_derived_as_without() -> None:
    """Under sequence parallelism, too: what is handed on keeps the layout in which layers pass it to each other."""
    mine, plain = step_of("zero1*tp_sp*pp"), step_of("zero1*tp_sp*pp", alone=())
    inside = {e.path for e in mine.events if e.unit in ("entry", "exit")}
    assert [e.path for e in mine.events if e.path not in inside] == [e.path for e in plain.events]


@pytest.mark.parametrize(("text", "listed"), [("zero3*tp_sp*pp", (0, 5, 7, 0)), ("dp*pp_gpipe", (0, 5, 7)),
                                              ("dp*pp", (5, 7, 0)), ("zero1*tp*pp_zb_h2", (0, 4, 4, 4, 0))])
def test_the_stages_add_up_to_the_model(text: str, listed: tuple[int, ...]) -> None:
    """States, flop and messages of all stages; those that stand alone have no layer's share."""
    pp = len(listed)
    step, whole = step_of(text, "llama", (), stages=listed), derive(parse_strategy(text.rpartition("*")[0]), gpt(LLAMA))
    every = [on_stage(step, k, {**SIZES, "pp": pp}) for k in range(pp)]
    for figure in (lambda s: memory(s).states, flop):
        assert sum(value(figure(one), pp=pp) for one in every) == value(figure(whole))
    sent = [value(communication(one).by_axes["pp"], pp=pp) for one in every]
    split = SIZES["tp"] if "tp_sp" in text else 1
    message = SIZES["m"] * SIZES["b"] * SIZES["s"] * SIZES["h"] * TYPES["act"] // split
    assert sent == [message, *[2 * message] * (pp - 2), message]
    layers = [sum(int(n.coefficient) for u, n in one.stage.instances.items() if u == "layer") for one in every]
    assert layers == list(listed)


@pytest.mark.slow
def test_the_symbols_of_a_stage_are_the_numbers_of_each() -> None:
    step = step_of("zero1*pp", "llama")
    symbols = {which: memory(on_stage(step, which)) for which in ("first", "i", "last")}
    for pp in (3, 4, 7):
        for k in range(pp):
            stage = on_stage(step, k, {"pp": pp, "L": 12, "m": 8})
            which = "first" if k == 0 else "last" if k == pp - 1 else "i"
            for (name, there), (_, here) in zip(symbols[which].items(), memory(stage).items(), strict=True):
                assert value(there, pp=pp, i=k, n_layer=stage.stage.symbols.get("n_layer", 1)) == value(
                    here, pp=pp), (name, pp, k)


def test_where_nobody_chose_a_stage_it_is_one_with_layers() -> None:
    step = step_of("zero1*pp", "llama")
    assert str(chosen(step)) == str(on_stage(step, 1)) and on_stage(step, 1).stage.name == "1"
    assert [str(one.name) for one in stages(step, {})] == ["stage 0 along pp", "stage 1 along pp",
                                                           "the last stage along pp"]
    assert step_of("zero1*pp", "llama", ("last",)).reference.pipeline == Pipeline("pp", alone=("last",))
    assert small_sizes(step, 1)["pp"] == 3


@pytest.mark.parametrize(("said", "model", "why"), [
    ({"alone": ["frist"]}, "gpt", "alone names 'frist'; did you mean 'first'"),
    ({"alone": ["first"]}, "mlp", "alone: nothing of mlp stands before its layers"),
    ({"stages": [2, 3, 0], "alone": ["first"]}, "gpt",
     r"alone says that the first stage has no layer, and stages = \[2, 3, 0\] gives it 2"),
    ({"stages": [0, 3, 0, 9]}, "gpt", "a stage between the first and the last has at least 1 layer"),
    ({"stages": [0, 3, -1]}, "gpt", "expected a list of whole numbers of at least 1"),
])
def test_what_makes_no_such_pipeline_is_refused(said: dict[str, Any], model: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        derive(overlay(parse_strategy("pp"), {"schedule": said}), gpt() if model == "gpt" else mlp())


@pytest.mark.parametrize(("pp", "said", "why"), [
    (2, {"alone": BOTH}, "^pp = 2 makes 2 stages, and the first and the last run no layer; at least 3 are needed$"),
    (1, {"stages": (0,)}, ": pp = 1 makes 1 stage, and the first and the last run no layer; at least 3 are needed$"),
    (15, {"alone": BOTH}, "^pp = 15 makes 15 stages of 12 layers, and the first and the last run none; at most 14 fit"),
    (4, {"stages": (0, 5, 6, 0)}, "stages lists 11 layers; the model has 12$"),
])
def test_stages_that_do_not_add_up_are_refused(pp: int, said: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        on_stage(derive(overlay(parse_strategy("pp"), {"schedule": said}), resolve_model("gpt2")), "first", {"pp": pp})


def test_too_few_stages_are_refused_where_layers_are_no_number() -> None:
    """A size of --set, and one of the mesh, at which a strategy cannot be."""
    alone = {"schedule": {"alone": BOTH}}
    with pytest.raises(InputError, match=r"^pp = 2 makes 2 stages.* at least 3 are needed$"):
        on_stage(derive(overlay(parse_strategy("pp"), alone), gpt()), "first", {"pp": 2})
    with pytest.raises(InputError, match=r": pp = 2 makes 2 stages.* at least 3 are needed$"):
        derive(overlay(parse_strategy("pp[pp=2]"), alone), gpt())
    assert derive(overlay(parse_strategy("pp[pp=3]"), alone), gpt()).reference.pipeline


def test_a_pipeline_without_an_axis_has_no_ends() -> None:
    with pytest.raises(InputError, match=r"\[schedule\] alone: no axis is a pipeline"):
        derive(overlay(parse_strategy("dp"), {"schedule": {"alone": ["first"]}}), gpt())


MEGATRON = ("pretrain_gpt.py --num-layers 6 --hidden-size 64 --num-attention-heads 4 --seq-length 32 "
            "--max-position-embeddings 32 --micro-batch-size 1 --global-batch-size 8 --vocab-size 128 "
            "--tokenizer-type NullTokenizer --pipeline-model-parallel-size {pp} "
            "--pipeline-model-parallel-layout {layout}")


def layout(pp: int, text: str) -> tuple[int, ...]:
    words = ["torchrun", "--nproc_per_node", str(2 * pp), *MEGATRON.format(pp=pp, layout=text).split()]
    return tuple(read_words(words, Options()).strategy.option("schedule", "stages"))


def test_megatron_says_such_stages_by_letters() -> None:
    assert layout(4, "E|ttt|ttt|L") == (0, 3, 3, 0)
    assert layout(2, "Ett|tt|tt|L") == (2, 2, 2, 0)
    with pytest.raises(InputError, match="a stage without layers between the first and the last"):
        layout(4, "Ettt||ttt|L")
    with pytest.raises(InputError, match="the first stage begins with E, and the last one ends in L"):
        layout(4, "tE|tt|tt|tL")


def test_megatron_says_that_the_embedding_stands_alone() -> None:
    words = ["torchrun", "--nproc_per_node", "4", *MEGATRON.format(pp=4, layout="").split()[:-1],
             "--standalone-embedding-stage"]
    found = read_words(words, Options()).strategy
    assert found.stages_alone == ("first",) and found.mesh.sizes()["pp"] == 4


def test_a_stage_that_stands_alone_hands_on_what_it_made() -> None:
    """The unit that hands on has no parameter, no flop, and nothing to keep."""
    first = on_stage(replace(step_of("pp", "llama")), "first", {"pp": 4, "L": 12})
    assert [u.name for u in first.reference.units] == ["embedding", "entry"]
    assert not any(g.unit == "entry" for g in first.reference.groups)
    assert value(flop(first), pp=4) == 0 and value(memory(first).activations, pp=4) == 0
