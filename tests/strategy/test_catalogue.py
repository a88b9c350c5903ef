"""The catalogue's op-level entries: what their lists of dims and modes say, derived and by the split rule."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Outcome, run_placealg

import placealg as pa
from placealg.cases.case import default_model, read_case
from placealg.errors import InputError
from placealg.models.config import from_config, resolve_model, shipped
from placealg.placement import Kind, Mode
from placealg.step.compatibility import fit_problems
from placealg.step.pipeline import spread
from placealg.step.split import place
from placealg.strategy import catalogue as cat
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import strategy_on

DETAILED = ("tp", "tp_sp", "tp_sp_keep", "cp", "cp_ulysses", "cp_ring", "pp_gpipe", "pp_1f1b", "pp_interleaved",
            "pp_zb_h1", "pp_zb_h2", "pp_interleaved_zb", "pp_zb_v", "pp_dualpipe_v", "ep",
            "offload_activations", "recompute_full", "recompute_selective")


@pytest.mark.parametrize("name", [*cat.catalogue(), "zero3*tp_sp*recompute_selective"])
@pytest.mark.parametrize("model", [None, "gpt", *shipped()])
def test_every_entry_fits_its_models(name: str, model: str | None) -> None:
    strategy = parse_strategy(name)
    found = resolve_model(model or default_model(strategy))
    problems = [str(error) for _, error in fit_problems(strategy, found)]
    if name in ("pp_zb_v", "pp_dualpipe_v"):
        tied = any(spread(found.graph.sites(p.name), found.graph) for p in found.graph.parameters)
        assert ["is used in both" in p for p in problems] == [True] * tied
        return
    without = name == "ep" and "expert" not in found.graph.dims
    assert problems == [f"[dims] ep names region 'expert', which {found.name} lacks" + problems[0].partition("lacks")[2]
                        ] if without else not problems


def test_which_entries_are_derived_op_by_op() -> None:
    assert tuple(n for n in cat.catalogue() if parse_strategy(n).detailed) == DETAILED


def test_modes_of_activations() -> None:
    assert (cat.tp_sp().sharded_activations, cat.tp_sp_keep().sharded_activations) == (("tp",), ())
    assert cat.tp_sp("inner").sharded_activations == ("inner",)
    both = cat.zero3() * cat.tp_sp() * cat.recompute_selective()
    assert (both.recomputed, both.sharded_activations) == (("core",), ("tp",))
    assert both.regions == {"core": Mode.M}
    assert both.state("parameters").mode("dp") is Mode.GATHERED
    assert cat.recompute_full().recomputed == ("layer",)
    assert (cat.dp().recomputed, cat.dp().regions) == ((), {})


def test_a_file_replaces_the_modes_of_activations(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('base = "tp_sp*recompute_full"\n[states]\nactivations = { tp = "R", "region:layer" = "R" }\n')
    strategy = read_case(str(path), None, []).strategy
    assert (strategy.recomputed, strategy.sharded_activations, strategy.detailed) == ((), (), True)


def test_sequence_parallel_is_tensor_parallel_and_seq_with_a_whole_loss() -> None:
    tp, sp = cat.tp().dims["tp"], cat.tp_sp().dims["tp"]
    assert sp == ("loss.none", *tp, "seq")
    assert cat.tp_sp_keep().dims == cat.tp_sp().dims


@pytest.mark.parametrize(("name", "collectives"), [
    ("tp", {"all_reduce"}), ("tp_sp", {"all_gather", "reduce_scatter"})])
def test_the_split_rule_gives_the_collectives_of_a_layer(name: str, collectives: set[str]) -> None:
    lists = dict(parse_strategy(name).dims)
    placed = place(resolve_model("gpt").graph, lists)
    rows = {row.row.event for at, move in placed.moves if at.startswith("layer.") for row in move.rows()}
    assert rows - {"none", "slice"} == collectives


@pytest.mark.parametrize(("dims", "data"), [
    (["batch"], True), (["seq"], True), (["heads", "seq"], True), (["loss.none", "seq"], False),
    (["core.seq"], False), (["loss.seq"], True), (["core.heads", "seq"], True), (["heads", "ffn"], False),
    (["batch", "loss.none"], True), ([], False),
])
def test_an_axis_is_a_data_axis_where_the_split_rule_makes_the_loss_partial(dims: list[str], data: bool) -> None:
    strategy = strategy_on("one", {"x": None}, dims={"x": dims})
    assert strategy.data_axes == (("x",) if data else ())
    result = place(resolve_model("gpt").graph, dict(strategy.dims)).op("loss.sum").result
    assert (result["x"].kind is Kind.P) is data


def test_modes_as_text() -> None:
    strategy = cat.zero3() * cat.tp_sp() * cat.offload_optimizer()
    assert [strategy.mode_text(s, "tp") for s in ("parameters", "optimizer", "gradients", "activations")] == [
        "S(heads, ffn, vocab)", "S+O", "S", "S*(heads, ffn, vocab, seq)"]
    assert cat.tp_sp_keep().mode_text("activations", "tp") == "S(heads, ffn, vocab, seq)"
    assert strategy.mode_text("activations", "dp") == "S(batch)"
    context = strategy_on("cp", {"cp": None}, dims={"cp": ["seq"]}, states={"optimizer": {"cp": "S"}})
    assert [context.mode_text(s, "cp") for s in ("parameters", "optimizer")] == ["R", "S"]
    both = strategy_on("two", {"x": None}, dims={"x": ["heads"]}, states={"parameters": {"x": "S*"}})
    assert both.mode_text("parameters", "x") == "S(heads), else S*"


def test_python_callables_are_the_entries() -> None:
    for name in set(DETAILED) & set(pa.__all__):
        assert getattr(pa, name)() == cat.instantiate(name)
    assert pa.tp(tp=8) * pa.recompute_full() == parse_strategy("tp[8]*recompute_full")


# the command line

BAD = [
    (["show", "tp_spp"], "unknown strategy 'tp_spp'; did you mean 'tp_sp'?"),
    (["cost", "tp*recompute_ful"], "did you mean 'recompute_full'?"),
    (["show", "tp", "--model", "abstract"], "[dims] tp names 'heads', but abstract says nothing about the network"),
    (["prove", "dp*recompute_full", "--model", "abstract"], "activations on region:layer: abstract says nothing"),
    (["show", "tp", "--model", "mlp"], "[dims] tp names dim 'heads', which mlp lacks"),
    (["cost", "zero3", "--flash"], "flash: only a transformer has that choice, and abstract is none; say --model gpt"),
    (["cost", "zero3", "--model", "abstract", "--no-dropout", "--parallel"],
     "dropout and parallel: only a transformer"),
    (["model", "mlp", "--parallel"], "parallel: only a transformer has that choice, and mlp is none"),
    (["cost", "tp", "--falsh"], "unknown option '--falsh'; did you mean '--flash'?"),
    (["cost", "tp[16]", "--model", "llama-3-70b"], "tp = 16 does not divide kv = 8 of llama-3-70b; heads are split"),
    (["cost", "tp", "--model", "gpt2", "--set", "tp=8"], "--set: tp = 8 does not divide heads = 12 of gpt2"),
    (["cost", "tp_sp", "--set", "s=1000", "tp=16"], "--set: tp = 16 does not divide seq = 1000 of gpt"),
]


@pytest.mark.parametrize(("words", "says"), BAD, ids=lambda x: " ".join(x) if isinstance(x, list) else "")
def test_bad_input_is_one_line_and_exit_2(words: list[str], says: str) -> None:
    got = run_placealg(*words)
    assert (got.code, got.out, got.err.count("\n")) == (2, "", 1)
    assert says in got.err


@pytest.mark.parametrize("command", ["show", "cost", "prove", "simulate"])
def test_a_file_that_does_not_fit_points_at_its_line(command: str, tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('base = "zero3"\n[mesh]\ntp = 2\n[dims]\ntp = ["heads",\n  "fnn"]\n')
    got = run_placealg(command, str(path))
    assert (got.code, got.out, got.err.count("\n")) == (2, "", 1)
    assert got.err == f"placealg: {path}:6: [dims] tp names dim 'fnn', which gpt lacks; did you mean 'ffn'?\n"


def shown(*words: str) -> Outcome:
    got = run_placealg("show", *words)
    assert (got.code, got.err) == (0, "")
    return got


def test_the_loss_that_a_step_is_held_against_is_shown_and_named(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('base = "dp"\n[loss]\npreset = "token_mean"\ncount_axes = ["dp"]\n'
                    'reference = "microbatch_mean"\n[optimizer]\nclip = "none"\n')
    assert "held against the mean of every microbatch's mean" in " ".join(shown(str(path)).out.split())
    assert "held against" not in shown("dp").out
    proved = run_placealg("prove", str(path))
    assert proved.code == 0
    says = "microbatch_mean: the loss of the single device is the mean of its microbatches' means"
    assert says in " ".join(proved.out.split())


def test_the_default_model_has_the_ops_that_a_strategy_needs(tmp_path: Path) -> None:
    assert shown("zero3").out.startswith("zero3 on abstract")
    assert shown("zero3*tp_sp").out.startswith("zero3*tp_sp on gpt")
    assert shown("tp", "--model", "llama-3-8b").out.startswith("tp on llama-3-8b")
    path = tmp_path / "s.toml"
    path.write_text('base = "tp"\nmodel = "gpt2"\n')
    assert shown(str(path)).out.startswith("tp on gpt2")
    mixed = run_placealg("compare", "dp", "tp", "--format", "json")
    assert json.loads(mixed.out)["model"] == "gpt"


def test_options_of_the_transformer_reach_the_model() -> None:
    def kinds(*words: str) -> set[str]:
        found = json.loads(run_placealg("model", *words, "--format", "json").out)
        return {op["kind"] for op in found["ops"]} | {op["name"] for op in found["ops"]}

    assert {"flash"} <= kinds("gpt", "--flash") - kinds("gpt")
    assert "dropout" in kinds("gpt") - kinds("gpt", "--no-dropout")
    assert "layer.sum" in kinds("gpt2", "--parallel") - kinds("gpt2")
    assert "softmax" in kinds("llama-3-8b", "--no-flash") - kinds("llama-3-8b")
    assert read_case("tp", None, [], flash=True).model == resolve_model("gpt", flash=True) != resolve_model("gpt")
    assert from_config("gpt2", parallel=True) == resolve_model("gpt2", parallel=True)


def test_the_list_says_what_a_modifier_recomputes() -> None:
    listed = {s["name"]: s for s in json.loads(run_placealg("list", "--format", "json").out)["strategies"]}
    assert listed["recompute_selective"]["regions"] == {"core": "M"}
    assert listed["tp_sp"]["placements"]["activations"] == {"tp": "S*(heads, ffn, vocab, seq)"}
    assert "with mode M for the activations of layer." in " ".join(
        run_placealg("explain", "recompute_full").out.split())


def test_a_hand_made_strategy_is_checked_against_its_model() -> None:
    made = strategy_on("mine", {"tp": None}, dims={"tp": ["heads", "fnn"]})
    with pytest.raises(InputError, match=r"mine on gpt: .*'fnn'.*did you mean 'ffn'"):
        pa.derive(made, pa.gpt())
