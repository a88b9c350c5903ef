"""Bad input is one line that says what, where, and the nearest valid name; nothing but InputError escapes."""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
import text_steps
from conftest import ROOT, Outcome, run_placealg
from hypothesis import given, settings
from hypothesis import strategies as st

from placealg.arith import Monomial, parse
from placealg.cli import main
from placealg.errors import InputError, brief
from placealg.frozen import FrozenMap
from placealg.models.abstract import abstract
from placealg.models.build import graph
from placealg.models.config import from_config
from placealg.models.model import Model
from placealg.models.transformer import gpt, mlp
from placealg.placement import Mode, StatePlacement
from placealg.step.compatibility import check_fit, check_sizes, fit_problems
from placealg.step.edit import apply_edits, read_edits
from placealg.step.split import place
from placealg.step.text import read_program, write_program
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import parse_strategy_file, read_strategy_file
from placealg.strategy.spec import Strategy, strategy_on
from placealg.strategy.validation import check

Run = Callable[..., Outcome]

MESH = '[mesh]\ndp = 2\n[dims]\ndp = ["batch"]\n'
TP = '[mesh]\ntp = 2\n[dims]\ntp = ["heads", "seq"]\n'
HEADS = '[mesh]\ntp = "symbolic"\n[dims]\ntp = ['


def products() -> Model:
    """Two products, all of whose parameters have the dim embed."""
    g = graph(batch="b", embed="h", ffn="f")
    x = g.data("data.input", "batch embed")
    up = g.einsum("net.up", x, g.parameter("net.up.weight", "embed ffn"), to="batch ffn")
    g.sum("loss.sum", g.einsum("net.down", up, g.parameter("net.down.weight", "ffn embed"), to="batch embed"))
    return Model.of_graph("products", g.build())


PRODUCTS = products()
STEP = text_steps.zero1()


def one_line(error: InputError) -> str:
    text = str(error)
    assert text
    assert text.isprintable()
    assert len(text) < 2000
    return text


@pytest.mark.parametrize(("text", "message"), [
    # the file as a whole
    ("", "s.toml: is empty"),
    (" \n\n", "s.toml: is empty"),
    ("name = 'x'", "s.toml: has no [mesh] and no base"),
    ("[mesh]\ndp = 2", "s.toml: has no [dims] and no base"),
    ("[mesh]\n[dims]", "s.toml:1: strategy s has no axis"),
    ("x = ", "s.toml:1: not TOML: Invalid value"),
    ("a = 1\nb = [1,\n", "s.toml:2: not TOML: Invalid value, at the end of the file"),
    ("a = 1\na = 2", "s.toml:2: not TOML: Cannot overwrite a value"),
    ("[mesh]\n[mesh]", "s.toml:2: not TOML: Cannot declare"),
    ("a = 'x\x01'", "s.toml:1: not TOML: Found invalid character '\\x01'"),
    ("a = " + "[" * 5000, "s.toml: is nested too deeply"),
    ("a = " + "9" * 5000, "s.toml:1: not TOML: Exceeds the limit"),
    (".".join("a" * 300) + " = 1", "s.toml:1: has more than 200 dots in one line"),
    # keys and tables
    ("bse = 'zero3'", "s.toml:1: unknown key 'bse'; did you mean 'base'?"),
    (MESH + "[stats]\n", "s.toml:5: unknown table [stats]; did you mean 'states'?"),
    (MESH + "[sizes]\ndp = 8\nseq_len = 4096\n", "s.toml:5: 'sizes': sizes are not said in a strategy file, "
     "but with --set dp=8 s=4096; degrees also by [mesh]"),
    ("s = 8", "s.toml:1: 's': sizes are not said in a strategy file, but with --set s=8"),
    (MESH + "[sizes]\ndp = 8\nspeed = 4\n", "s.toml:5: unknown table [sizes]"),
    (MESH + "[states]\nparams = {}", "s.toml:6: unknown key 'params' in [states]"),
    (MESH + "[states]\ngradient = {}", "s.toml:6: unknown key 'gradient' in [states]; did you mean 'gradients'?"),
    (MESH + "[schedule]\nmicrobatch = 2",
     "s.toml:6: unknown key 'microbatch' in [schedule]; did you mean 'microbatches'"),
    (MESH + "[types]\nwires = 2", "s.toml:6: unknown key 'wires' in [types]; did you mean 'wire'?"),
    ("mesh = 3\n[dims]", "s.toml:1: mesh is 3: expected a table, [mesh]"),
    ("[[mesh]]\ndp = 2", "s.toml:1: mesh is [{ dp = 2 }]: expected a table, [mesh]"),
    (MESH + "[edit]\ndrop = 'x'", "s.toml:5: edit is { drop = 'x' }: expected tables, each under [[edit]]"),
    ("name = 3\n" + MESH, "s.toml:1: name is 3: expected a non-empty string"),
    ("name = ''\n" + MESH, "s.toml:1: name is ''"),
    ('name = "dp\\u0000"\n' + MESH, "s.toml:1: name is 'dp\\x00': expected a non-empty string of characters that "
     "print"),
    ('name = "dp\\nPROVED"\n' + MESH, "s.toml:1: name is 'dp\\nPROVED': expected a non-empty string of characters"),
    ('name = "\\u001b[31mdp"\n' + MESH, "s.toml:1: name is '\\x1b[31mdp': expected a non-empty string of characters"),
    ('source = "a\\u0007b"\n' + MESH, "s.toml:1: source is 'a\\x07b': expected a non-empty string of characters"),
    # base and expectation
    ("base = 'zero33'", "s.toml:1: strategy 'zero33', column 1: unknown strategy 'zero33'; did you mean 'zero3'?"),
    ("base = 'zero3'\n\n[mesh]\nfsdp = 2", "s.toml:4: unknown axis 'fsdp' (a new one also needs [dims])"),
    ("base = 'zero3'\n[states]\nparameters = { dp = 'R' }\n[schedule]\nlifetime = { dp = 'step' }",
     "s.toml:5: [schedule] lifetime of dp: parameters are not S* on dp"),
    ("\nbase = 'fsdp_no_reshard'\n[states]\nparameters = { dp = 'R' }", "s.toml:2: [schedule] lifetime of dp"),
    ("expect = 'prooved'\n" + MESH, "s.toml:1: expect verdict is 'prooved'; did you mean 'proved'?"),
    ("expect = 3\n" + MESH, "s.toml:1: expect is 3"),
    ("expect = {}\n" + MESH, "s.toml:1: expect is {}"),
    ("expect = { verdict = 'refuted', obligation = 'gradients' }\n" + MESH,
     "s.toml:1: expect obligation is 'gradients'; did you mean 'gradient'?"),
    (MESH + "[expect]\nverdict = 'refuted'\nratio = '1/tp'", "s.toml:7: unknown symbol 'tp'; did you mean"),
    (MESH + "[expect]\nverdict = 'refuted'\nratio = 'eval(1)'", "s.toml:7: 'eval' is not a function here"),
    (MESH + "[expect]\nverdict = 'refuted'\nclas = 'BOUNDED'",
     "s.toml:7: unknown key 'clas' in expect; did you mean 'class'"),
    (MESH + "[expect]\nverdict = 'proved'\nratio = 'dp'", "s.toml:5: expect names an obligation, ratio or group"),
    ("masked = { dp = 1 }\n" + MESH, "s.toml:1: masked says where a bug does not show"),
    ("expect = 'proved'\nmasked = { dp = 1 }\n" + MESH, "s.toml:2: masked says where a bug does not show"),
    ("expect = 'refuted'\nmasked = 1\n" + MESH, "s.toml:2: masked is 1: expected a table such as { tp = 1 }"),
    ("expect = 'refuted'\nmasked = []\n" + MESH, "s.toml:2: masked is []: expected a table such as { tp = 1 }"),
    ("expect = 'refuted'\nmasked = [{ dp = 1 }, {}]\n" + MESH, "s.toml:2: masked is [{ dp = 1 }, {}]: expected"),
    ("expect = 'refuted'\nmasked = { pd = 1 }\n" + MESH,
     "s.toml:2: masked names 'pd', which is no axis; did you mean 'dp'"),
    ("expect = 'refuted'\nmasked = { dp = true }\n" + MESH, "s.toml:2: masked dp is true: a size is a whole number"),
    ("expect = 'refuted'\nmasked = { counts = 'even' }\n" + MESH, "s.toml:2: masked counts is 'even'"),
    (MESH + "[loops]\nmicrobatch = 'm'", "s.toml:5: [loops] belongs to a whole program"),
    # mesh and dims
    ("[mesh]\ndp = 0\n[dims]", "s.toml:2: [mesh] dp is 0: a size is a whole number of at least 1, or \"symbolic\""),
    ("[mesh]\ndp = -4\n[dims]", "s.toml:2: [mesh] dp is -4"),
    ("[mesh]\ndp = 2.5\n[dims]", "s.toml:2: [mesh] dp is 2.5"),
    ("[mesh]\ndp = true\n[dims]", "s.toml:2: [mesh] dp is true"),
    ("[mesh]\ndp = \"symbol\"\n[dims]", "s.toml:2: [mesh] dp is 'symbol'"),
    ("[mesh]\ndp = 2000-01-01\n[dims]", "s.toml:2: [mesh] dp is 2000-01-01"),
    ("[mesh]\n\"d p\" = 2\n[dims]", "s.toml:2: 'd p' is not an axis name"),
    ("[mesh]\n\"d\\u001b[1m\" = 2\n[dims]", "s.toml:2: 'd\\x1b[1m' is not an axis name"),
    ("[mesh]\nPsi = 2\n[dims]", "s.toml:2: axis name 'Psi' is taken"),
    ("[mesh]\ndp = 2\n[dims]\n", "s.toml:2: axis 'dp' has no entry in [dims]"),
    ("[mesh]\ndp = 2\n[dims]\npd = []\n", "s.toml:4: [dims] names axis 'pd', which the mesh lacks; did you mean 'dp'?"),
    ("[mesh]\ndp = 2\n[dims]\ndp = 'batch'\n", "s.toml:4: [dims] dp is 'batch': expected a list of strings"),
    ("[mesh]\ndp = 2\n[dims]\ndp = [1]\n", "s.toml:4: [dims] dp is [1]"),
    ("[mesh]\ndp = 2\n[dims]\ndp = [\n 'batch',\n 'he ads']\n",
     "s.toml:6: [dims] dp names 'he ads': an entry is DIM, REGION.DIM, REGION.none or REGION.each"),
    ("[mesh]\ndp = 2\n[dims]\ndp = ['batch', '.seq']\n", "s.toml:4: [dims] dp names '.seq': an entry is"),
    ("[mesh]\ndp = 2\n[dims]\ndp = ['none']\n", "s.toml:4: [dims] dp names 'none' alone: say REGION.none, or []"),
    ("[mesh]\ndp = 2\n[dims]\ndp = ['batch', 'batch']\n", "s.toml:4: [dims] dp names 'batch' twice"),
    # states
    (MESH + "[states]\nparameters = { pd = 'R' }",
     "s.toml:6: [states] parameters names axis 'pd', which the mesh lacks"),
    (MESH + "[states.parameters]\n\ndp = 'Q'", "s.toml:7: unknown mode 'Q' for axis dp"),
    (MESH + "[states]\nparameters = { dp = 3 }", "s.toml:6: [states] parameters on dp is 3: a mode is a string"),
    (MESH + "[states]\nparameters = 'S*'", "s.toml:6: [states] parameters is 'S*': expected a table"),
    (MESH + "[states]\nparameters = { dp = 'M' }", "s.toml:6: [states] parameters on dp: M holds nothing"),
    (MESH + "[states]\ngradients = { dp = 'S+O' }",
     "s.toml:6: [states] gradients: only parameters and the optimizer state"),
    (MESH + "[states]\noptimizer = { dp = 'S*' }", "s.toml:6: [states] optimizer on dp: S* is for values"),
    (MESH + "[states]\ngradients = { dp = 'M' }", "s.toml:6: [states] gradients on dp: M, a full gradient"),
    (MESH + "[states]\nactivations = { dp = 'S*' }",
     "s.toml:6: [states] activations on dp: the batch is split over dp"),
    ("[mesh]\ntp = 2\n[dims]\ntp = []\n[states]\nactivations = { tp = 'S*' }",
     "s.toml:6: [states] activations on tp: nothing is split over tp, so only R holds there"),
    (TP + "[states]\nactivations = { tp = 'S' }", "s.toml:6: [states] activations on tp: say R (what was gathered"),
    (TP + "[states]\nactivations = { tp = 'M' }",
     "s.toml:6: [states] activations on tp: M is for regions: say \"region"),
    (TP + "[states]\nactivations = { tq = 'R' }", "s.toml:6: [states] activations names axis 'tq'"),
    (TP + "[states.activations]\ntp = 'R'\n'region:core' = 'S*'",
     "s.toml:7: [states] activations on region:core is S*: only activations have regions, with M or R"),
    (TP + "[states]\nactivations = { 'region:core' = 'Q' }", "s.toml:6: unknown mode 'Q' for axis region:core"),
    (TP + "[states]\nactivations = { 'region:core' = 'O+M' }",
     "s.toml:6: unknown mode 'O+M' for axis region:core; did you mean 'M+O'"),
    (TP + "[states]\nactivations = { 'region:layer.attn' = 'M' }",
     "s.toml:6: [states] activations names region 'layer.attn': a region is named by one word, such as 'attn'"),
    (TP + "[states]\nactivations = { 'region:' = 'M' }", "s.toml:6: [states] activations names axis 'region:'"),
    (TP + "[states]\nparameters = { 'region:core' = 'R' }", "s.toml:6: [states] parameters names axis 'region:core'"),
    ("[mesh]\nouter = 2\ninner = 2\n[dims]\nouter = []\ninner = []\n[states]\n"
     "optimizer = { outer = 'S+O', inner = 'S' }",
     "s.toml:8: a state rests on one tier"),
    # groups
    (MESH + "[groups]\nnorms = 3", "s.toml:6: [groups.norms] is not a table"),
    (MESH + "[groups.norms]\n", "s.toml:5: [groups.norms] needs match"),
    (MESH + "[groups.norms]\nmatsh = 'x'", "s.toml:6: unknown key 'matsh' in [groups.norms]; did you mean 'match'?"),
    (MESH + "[groups.norms]\nmatch = 'x'\noptimizer = 'adamx'",
     "s.toml:7: [groups.norms] optimizer is 'adamx'; did you mean"),
    (MESH + "[groups.norms]\nmatch = 'x'\noptimizer = { dp = 'S*' }",
     "s.toml:7: [groups.norms] optimizer on dp: S* is"),
    (MESH + "[groups.norms]\nmatch = 'x'\nactivations = { dp = 'S' }",
     "s.toml:7: unknown key 'activations' in [groups.norms]"),
    (MESH + "[groups.norms]\nmatch = 'x'\nparameters = { dq = 'R' }",
     "s.toml:7: [groups.norms] parameters names axis 'dq'"),
    (MESH + "[groups.norms]\nmatch = 'x'\ntypes = { q = 2 }",
     "s.toml:7: [groups.norms] types names 'q'; valid: preset, w, g"),
    (MESH + "[groups.norms]\nmatch = 'x'\ntypes = { w = 0 }", "s.toml:7: [groups.norms] types.w is 0"),
    # options
    ("base = 'pp'\n[schedule]\npipeline = 'zb_v'", "s.toml:3: [schedule] chunks = 1: pipeline = \"zb_v\" is folded "
     "into a V, which has chunks = 2 on each stage"),
    ("base = 'pp'\n[schedule]\npipeline = 'dualpipe_v'\nchunks = 3", "s.toml:4: [schedule] chunks = 3: pipeline = "),
    ("base = 'pp'\n[schedule]\npipeline = 'zb_w'", "s.toml:3: [schedule] pipeline is 'zb_w'; did you mean 'zb_v'?"),
    (MESH + "[schedule]\nmicrobatches = 0", "s.toml:6: [schedule] microbatches is 0"),
    (MESH + "[schedule]\nmicrobatches = 'n'", "s.toml:6: [schedule] microbatches is 'n': expected \"m\" (symbolic),"),
    (MESH + "[schedule]\nprefetch = -1", "s.toml:6: [schedule] prefetch is -1"),
    (MESH + "[schedule]\nlifetime = 'use'", "s.toml:6: [schedule] lifetime is 'use': expected a table"),
    (MESH + "[schedule]\nlifetime = { pd = 'use' }", "s.toml:6: [schedule] lifetime names axis 'pd'"),
    (MESH + "[schedule]\nlifetime = { dp = 'uses' }",
     "s.toml:6: [schedule] lifetime of dp is 'uses'; did you mean 'use'?"),
    (MESH + "[schedule]\nreplay = 'half'", "s.toml:6: [schedule] replay is 'half'; valid: whole, by_dependency, early"),
    (MESH + "[schedule]\nsharing = 'share'", "s.toml:6: [schedule] sharing is 'share'; did you mean 'shared'?"),
    (MESH + "[optimizer]\nname = 'adam w'", "s.toml:6: [optimizer] name is 'adam w'; did you mean 'adamw'?"),
    (MESH + "[optimizer]\nname = 'muon'\nlocality = 'elementwise'",
     "s.toml:7: [optimizer] locality is 'elementwise', but muon updates a matrix at a time"),
    (MESH + "[optimizer]\nname = ['adamw']", "s.toml:6: [optimizer] name is ['adamw']"),
    (MESH + "[optimizer]\nclip = 'norm'", "s.toml:6: [optimizer] clip is 'norm'"),
    (MESH + "[optimizer]\ntier = 'cpu'", "s.toml:6: [optimizer] tier is 'cpu'; valid: device, host, nvme"),
    (MESH + "[loss]\npreset = 'mean'", "s.toml:6: [loss] preset is 'mean'"),
    (MESH + "[loss]\nassume = ['equal_count']",
     "s.toml:6: [loss] assume names 'equal_count'; did you mean 'equal_counts'?"),
    (MESH + "[loss]\nassume = 'equal_counts'", "s.toml:6: [loss] assume is 'equal_counts': expected a list of strings"),
    (MESH + "[loss]\ncount_axes = ['pd']", "s.toml:6: [loss] count_axes names axis 'pd'"),
    (MESH + "[loss]\ncount_axes = 'dp'", "s.toml:6: [loss] count_axes is 'dp': expected \"data\" or a list of axes"),
    (MESH + "[types]\nw = 0", "s.toml:6: [types] w is 0: bytes per element are a positive number"),
    (MESH + "[types]\nw = 'two'", "s.toml:6: [types] w is 'two'"),
    (MESH + "[types]\nw = '1/0'", "s.toml:6: [types] w is '1/0'"),
    (MESH + "[types]\nw = inf", "s.toml:6: [types] w is inf"),
    (MESH + "[types]\nw = nan", "s.toml:6: [types] w is nan"),
    (MESH + "[types]\nw = [2]", "s.toml:6: [types] w is [2]"),
    (MESH + "[random]\ndropout = ['rank(pd)']", "s.toml:6: [random] dropout names axis 'pd'"),
    (MESH + "[random]\ndropout = ['dp']", "s.toml:6: [random] dropout names 'dp'; valid: rank(AXIS), local(DIM)"),
])
def test_every_mistake_of_a_strategy_file_is_one_line_at_its_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_strategy_file(text, "s.toml")
    assert one_line(caught.value).startswith(message)


def test_the_same_text_without_the_mistake_is_read() -> None:
    for table in ("", "[schedule]\nmicrobatches = 2", "[optimizer]\nname = 'adamw'", "[types]\nw = '1/2'",
                  "[random]\ndropout = ['rank(dp)']",
                  "[states]\ngradients = { dp = 'M' }\n[schedule]\nmicrobatches = 1"):
        assert parse_strategy_file(MESH + table).strategy.mesh.sizes() == {"dp": 2}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    def message(path: Path) -> str:
        with pytest.raises(InputError) as caught:
            read_strategy_file(path)
        return one_line(caught.value).replace(str(tmp_path), "")

    assert message(tmp_path / "none.toml") == "/none.toml: no such file"
    assert message(tmp_path) == ": is a directory; expected a TOML file"
    for name, data, said in (
        ("latin.toml", 'name = "a"\n# é'.encode("latin-1"), "/latin.toml:2: is not UTF-8 text (byte 13)"),
        ("binary.toml", bytes(range(256)), "/binary.toml:2: is not UTF-8 text (byte 128)"),
        ("nul.toml", b"a\0b", "/nul.toml:1: not TOML: Expected '=' after a key in a key/value pair"),
        ("empty.toml", b"", "/empty.toml: is empty"),
        ("giant.toml", b"# x\n" * 600_000, "/giant.toml: is larger than 2000000 bytes"),
    ):
        (tmp_path / name).write_bytes(data)
        assert message(tmp_path / name) == said
    assert "cannot be read" in message(Path("a\0b"))
    (tmp_path / "under").write_text("x", encoding="utf-8")
    assert "cannot be read: Not a directory" in message(tmp_path / "under" / "s.toml")


def test_windows_line_ends_and_byte_order_marks_are_read() -> None:
    file = parse_strategy_file("\ufeff" + MESH.replace("\n", "\r\n"))
    assert file.strategy.mesh.sizes() == {"dp": 2}
    assert file.positions.line("dims", "dp") == 4


@pytest.mark.parametrize(("tables", "message"), [
    ({"state": {}}, "unknown table [state]; did you mean 'states'?"),
    ({"dims": {"pd": []}}, "[dims] names axis 'pd', which the mesh lacks; did you mean 'dp'?"),
    ({"states": {"grads": {}}}, "unknown key 'grads' in [states]"),
    ({"schedule": {"lifetime": {"dp": "for ever"}}}, "[schedule] lifetime of dp is 'for ever'"),
])
def test_python_tables_are_read_alike(tables: dict[str, dict[str, object]], message: str) -> None:
    with pytest.raises(InputError) as caught:
        strategy_on("s", {"dp": None}, **tables)
    assert str(caught.value).startswith(message)


def test_check_finds_what_a_hand_made_strategy_gets_wrong() -> None:
    made = strategy_on("s", {"dp": None}, dims={"dp": ["batch"]})
    check(made)
    for tables, message in (({"schedul": {}}, "unknown table"), ({"schedule": {"x": 1}}, "unknown key 'x'"),
                            ({"loss": {"preset": "x"}}, "preset is 'x'"), ({"types": {"w": "-1"}}, "w is '-1'")):
        said = FrozenMap({t: FrozenMap(v) if v else FrozenMap({"k": 1}) for t, v in tables.items()})
        with pytest.raises(InputError, match=message.replace("[", r"\[")):
            check(Strategy("s", made.mesh, made.dims, tables=said))
    with pytest.raises(InputError, match="has no axis"):
        check(Strategy("s"))
    for entry in ("none", "a b", "seq."):
        with pytest.raises(InputError, match=f"dp names '{entry}'"):
            check(Strategy("s", made.mesh, FrozenMap({"dp": (entry,)})))
    for state, mode in (("optimizer", Mode.R), ("activations", Mode.GATHERED)):
        placed = FrozenMap({state: StatePlacement(FrozenMap({"region:core": mode}))})
        with pytest.raises(InputError, match="only activations have regions"):
            check(Strategy("s", made.mesh, made.dims, placed))


# a strategy that does not fit its model

GPT, LLAMA = gpt(), from_config("llama-3-70b")


@pytest.mark.parametrize(("text", "model", "message"), [
    # dims and regions
    (HEADS + '"heds"]', GPT, "s.toml:4: [dims] tp names dim 'heds', which gpt lacks; did you mean 'heads'?"),
    (HEADS + '"heads",\n "fnn"]', GPT, "s.toml:5: [dims] tp names dim 'fnn', which gpt lacks; did you mean 'ffn'?"),
    (HEADS + '"kv"]', GPT, "s.toml:4: [dims] tp names dim 'kv', which gpt lacks"),
    (HEADS + '"heads"]', mlp(), "s.toml:4: [dims] tp names dim 'heads', which mlp lacks"),
    (HEADS + '"los.none", "heads"]', GPT,
     "s.toml:4: [dims] tp names region 'los', which gpt lacks; did you mean 'loss'"),
    (HEADS + '"layer.attn.heads"]', GPT,
     "s.toml:4: [dims] tp names region 'layer.attn', which gpt lacks; did you mean 'attn'?"),
    (HEADS + '"core.ffn"]', GPT, "s.toml:4: [dims] tp names 'core.ffn', but no op of core can be split along ffn; "
     "valid: core.batch, core.heads, core.seq, core.seq_kv, core.head_dim"),
    (HEADS + '"norm1.embed"]', GPT, "s.toml:4: [dims] tp names 'norm1.embed', but no op of norm1 can be split along"),
    (HEADS + '"loss.none"]', GPT, "s.toml:4: [dims] tp splits no op of gpt: name a dim, or say []"),
    (HEADS + '"loss.none", "heads"]', abstract(),
     "s.toml:4: [dims] tp names 'loss.none', but abstract says nothing about the network "
     "inside, and has batch alone: say --model gpt"),
    (HEADS + '"element"]', abstract(), "s.toml:4: [dims] tp names 'element', but abstract says nothing"),
    ('base = "tp"', abstract(), "s.toml:1: [dims] tp names 'heads', but abstract says nothing"),
    ('\nbase = "tp"\n[mesh]\ndp = 2\n[dims]\ndp = ["batch"]', abstract(), "s.toml:2: [dims] tp names 'heads'"),
    # an op that no rule can place
    (HEADS + '"head.none", "vocab"]', GPT, "s.toml:4: [dims] tp: op 'head.logits' uses it whole, op 'embedding.tokens' "
     "splits it along vocab, and parameter 'embedding.weight' rests in one layout; what fits: 'vocab' for both, or "
     "'embedding.none' and 'head.none'"),
    # sizes
    (HEADS.replace('"symbolic"', "8") + '"heads"]', from_config("gpt2"),
     "s.toml:2: tp = 8 does not divide heads = 12 of gpt2; 4 would divide it"),
    (HEADS.replace('"symbolic"', "5") + '"ffn"]', from_config("gpt2"),
     "s.toml:2: tp = 5 does not divide ffn = 3072 of"),
    ("[mesh]\nx = 4\ny = 6\n[dims]\nx = ['heads']\ny = ['ffn', 'heads']", from_config("gpt2"),
     "s.toml:3: x = 4 x y = 6 does not divide heads = 12 of gpt2; 12 would divide it"),
    ('base = "tp[16]"', LLAMA, "s.toml:1: tp = 16 does not divide kv = 8 of llama-3-70b; heads are split along kv "
     'first, so tp is refined into two axes: tp1 = 8 splits "heads", tp2 = 2 "group" in its place'),
    ('base = "tp[128]"', LLAMA, "s.toml:1: tp = 128 does not divide kv = 8 of llama-3-70b; 8 would divide it"),
    ('base = "tp[3]"', LLAMA, "s.toml:1: tp = 3 does not divide kv = 8 of llama-3-70b"),
    # modes
    (MESH + "[states]\nparameters = { dp = 'S' }", abstract(), "s.toml:6: [states] parameters on dp: S says that"),
    (HEADS + '"seq"]\n[states]\nparameters = { tp = "S" }', GPT, "s.toml:6: [states] parameters on tp: S says that the "
     "computation is sharded the same way, but no dim of tp splits a parameter; say S* to gather them for use"),
    (HEADS + '"heads"]\n[groups.norms]\nmatch = "norm*"\nparameters = { tp = "S" }', GPT,
     "s.toml:7: [groups.norms] parameters on tp: S says that the computation is sharded the same way, but no dim of tp "
     "splits a parameter that norm* matches"),
    (HEADS + '"embed"]\n[states]\nparameters = { tp = "S*" }', PRODUCTS,
     "s.toml:6: [states] parameters on tp is S*, but embed of every parameter is split over tp, so S holds there"),
    (HEADS + '"heads"]\n[groups.q]\nmatch = "attn.q.weight"\noptimizer = { tp = "S" }', GPT,
     "s.toml:7: [groups.q] optimizer on tp is S, but heads of every parameter that attn.q.weight matches is split over "
     "tp, so S holds there; leave it out"),
    # recomputed regions, random streams
    ('base = "tp"\n[states.activations]\ntp = "S*"\n"region:cor" = "M"', GPT,
     "s.toml:4: [states] activations names region 'cor', which gpt lacks; did you mean 'core'?"),
    ('base = "dp*recompute_full*recompute_selective"', GPT,
     "s.toml:1: [states] activations: regions 'layer' and 'core' have ops in common, and both are M"),
    ('base = "dp"\n[states]\nactivations = { "region:layer" = "M" }', abstract(),
     "s.toml:3: [states] activations on region:layer: abstract says nothing about the network inside"),
    (MESH + "[random]\ndropout = ['local(sq)']", GPT, "s.toml:6: [random] dropout names dim 'sq', which gpt lacks"),
    (MESH + "[random]\ndropout = ['local(seq)']", abstract(),
     "s.toml:6: [random] dropout names dim 'seq', but abstract"),
])
def test_what_does_not_fit_the_model_is_one_line_at_its_line(text: str, model: Model, message: str) -> None:
    file = parse_strategy_file(text, "s.toml")
    path, error = next(fit_problems(file.strategy, model))
    assert one_line(error.at(file.place(path))).startswith(message)
    with pytest.raises(InputError) as caught:
        check_fit(file.strategy, model)
    assert one_line(caught.value).startswith(f"{file.strategy.name} on {model.name}: {error.what}")


@pytest.mark.parametrize(("text", "model"), [
    (HEADS + '"loss.none", "heads", "ffn", "vocab", "seq"]', GPT),
    (HEADS + '"core.heads", "seq"]', GPT),
    (HEADS + '"heads", "ffn"]\n[states]\nparameters = { tp = "S" }\noptimizer = { tp = "S" }', GPT),
    (HEADS.replace('"symbolic"', "4") + '"heads"]', from_config("gpt2")),
    (HEADS.replace('"symbolic"', "8") + '"vocab"]', from_config("gpt2")),
    ("[mesh]\ntp1 = 8\ntp2 = 2\n[dims]\ntp1 = ['heads', 'ffn']\ntp2 = ['group', 'ffn']", LLAMA),
    ('base = "zero3*tp_sp[8]*recompute_selective"', LLAMA),
    ("[mesh]\ndp = 2\n[dims]\ndp = ['batch']\n[random]\ndropout = ['local(heads)']", LLAMA),
    (MESH, abstract()),
])
def test_what_fits_is_not_refused(text: str, model: Model) -> None:
    assert list(fit_problems(parse_strategy_file(text).strategy, model)) == []


def test_the_refinement_that_is_offered_is_one_that_the_split_rule_can_place() -> None:
    placed = place(LLAMA.graph, {"tp1": ("heads", "ffn", "vocab"), "tp2": ("group", "ffn", "vocab")})
    assert placed.op("layer.attn.q").split == {"tp1": "kv", "tp2": "group"}
    assert placed.op("layer.attn.k").split == {"tp1": "kv", "tp2": ""}


def test_sizes_of_the_command_line_must_divide() -> None:
    strategy = parse_strategy("dp*tp_sp")
    good = {"dp": Fraction(3), "tp": Fraction(8), "a": Fraction(16), "h": Fraction(64), "s": Fraction(32),
            "b": Fraction(2)}
    check_sizes(strategy, GPT, good)
    for name, value, message in (("a", 12, "tp = 8 does not divide heads = 12"),
                                 ("s", 30, "tp = 8 does not divide seq = 30"),
                                 ("h", 65, "tp = 8 does not divide ffn = 260")):
        with pytest.raises(InputError, match=message):
            check_sizes(strategy, GPT, {**good, name: Fraction(value)})
    whole = graph(batch=6, embed=2)
    data, weight = whole.data("data.input", "batch embed"), whole.parameter("net.w", "embed")
    whole.sum("loss.sum", whole.mul("net.out", data, weight))
    model = Model.of_graph("six", whole.build())
    with pytest.raises(InputError, match="dp = 4 does not divide batch = 6 of six; 2 would divide it"):
        check_fit(parse_strategy("dp[4]"), model)
    check_fit(parse_strategy("dp[3]"), model)


# arithmetic from files

@pytest.mark.parametrize("text", [
    "__import__('os')", "().__class__", "dp if dp else dp", "[dp]", "dp**dp", "9**99999", "((9**64)**64)**64",
    "1e999999999", "1e-999999999", "lambda: 1", "dp.real", "f'{dp}'", "1" * 200, "(" * 500, "dp;dp", "dp\n= 1",
    "\0", "0or 1", "'\\d'",
    "dp//2", "dp % 2", "True", "dp == 1", "1j", "...", "-" * 30_000 + "1", "+".join(["1"] * 9000), "x" * 30_000,
])
def test_arithmetic_takes_nothing_else(text: str) -> None:
    with pytest.raises(InputError) as caught:
        Monomial.parse(text, ("dp",))
    one_line(caught.value)


@given(st.text(max_size=30))
def test_arithmetic_raises_nothing_else(text: str) -> None:
    try:
        parse(text).evaluate({})
    except InputError as error:
        one_line(error)


def test_text_from_files_never_reaches_eval_or_sympify() -> None:
    for room in ("strategy", "step"):
        for path in (ROOT / "placealg" / room).glob("*.py"):
            called = {node.func.id for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                      if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
            assert not called & {"eval", "exec", "sympify", "compile", "__import__"}, path


# noise

PROGRAM = write_program(text_steps.zero1())
EDITS = 'base = "zero1"\n' + MESH + """
[[edit]]
move = "publish.*"
before = "backward.*.grad_sum.accumulate"
at = ["last"]
[[edit]]
insert = { verb = "scale", value = "grad_sum", divisor = "dp*m", where = "owner(dp)" }
after = "reduce.*"
[[edit]]
set = "update.*.norm"
where = "rank(dp)=0"
"""
FULL = """
name = "noise"
expect = { verdict = "refuted", obligation = "gradient", ratio = "1/dp" }
[mesh]
dp = 2
tp = 4
[dims]
dp = ["batch"]
tp = ["loss.none", "heads", "seq"]
[states]
activations = { tp = "S*", "region:core" = "M" }
parameters = { dp = "S*" }
optimizer = { dp = "S+O" }
[groups.norms]
match = "*norm*"
types = { o = "16/3" }
[schedule]
lifetime = { dp = "use" }
[loss]
count_axes = ["dp"]
[types]
wire = 0.5
[random]
dropout = ["rank(dp)"]
"""


def read_all(text: str) -> None:
    """Everything that is read from a strategy file, to the last event."""
    try:
        file = parse_strategy_file(text, "s.toml")
        read_program(file.events, STEP.reference, file.positions, file.loops)
        apply_edits(STEP, read_edits(file.edits, STEP.reference, file.positions))
        for model in (GPT, abstract()):
            for path, error in fit_problems(file.strategy, model):
                assert one_line(error.at(file.place(path))).startswith("s.toml:")
    except InputError as error:
        assert one_line(error).startswith("s.toml")


def test_the_noise_starts_from_texts_that_are_read() -> None:
    for text in (PROGRAM, EDITS, FULL):
        file = parse_strategy_file(text)
        read_program(file.events, STEP.reference, file.positions, file.loops)
        apply_edits(STEP, read_edits(file.edits, STEP.reference, file.positions))


@settings(max_examples=100, deadline=None)
@given(st.one_of(st.text(max_size=60), st.binary(max_size=60).map(lambda b: b.decode("latin-1"))))
def test_random_text(text: str) -> None:
    read_all(text)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=80))
def test_random_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "noise.toml"
    path.write_bytes(data)
    try:
        read_strategy_file(path)
    except InputError as error:
        one_line(error)


TOKENS = st.one_of(st.sampled_from(("=", "[", "]", "[[edit]]", "{", "}", '"', "'", "\n", ",", ".", "#", "\\", "-1", "0",
                                    "dp", '"""', "S*", "*", "true", "1e9", "nan", "2000-01-01",
                                    '"\\u0000"', "[]", "{}")),
                   st.text(max_size=4))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from((PROGRAM[:1500], EDITS, FULL)), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 8), TOKENS),
                                                               min_size=1, max_size=4))
def test_mutated_files(text: str, mutations: list[tuple[float, int, str]]) -> None:
    for where, length, token in mutations:
        at = int(where * len(text))
        text = text[:at] + token + text[at + length:]
    read_all(text)


VALUES = st.recursive(st.one_of(st.integers(-2, 9), st.booleans(), st.floats(), st.sampled_from(
    ("dp", "S*", "", "m", "x.y", "*", "update.step.update", "last", "owner(dp)", "host")), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(
        ("dp", "verb", "value", "path", "name", "w", "x")), inner, max_size=2)), max_leaves=4)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from((PROGRAM[:1500], EDITS, FULL)), st.integers(0, 40), VALUES)
def test_values_of_any_type(text: str, number: int, value: object) -> None:
    from placealg.strategy.write import toml_value

    lines = text.splitlines()
    at = [i for i, line in enumerate(lines) if " = " in line]
    chosen = at[number % len(at)]
    key = lines[chosen].partition(" = ")[0]
    lines[chosen] = f"{key} = {toml_value(value).replace('True', 'true').replace('False', 'false')}"
    read_all("\n".join(lines))


@settings(max_examples=200)
@given(st.one_of(st.text(max_size=20), st.lists(st.sampled_from(
    ("zero3", "dp", "hsdp", "offload_optimizer", "[", "]", "*", "=", ",", "8", "x", " ", "-1")), max_size=8)
    .map("".join)))
def test_random_expressions(text: str) -> None:
    try:
        strategy = parse_strategy(text)
    except InputError as error:
        one_line(error)
    else:
        assert parse_strategy(strategy.name) == strategy


@pytest.mark.parametrize(("words", "message"), [
    (["ep[6]", "--model", "mixtral-8x7b"], "ep = 6 does not divide expert = 8 of mixtral-8x7b; 2 would divide it"),
    (["tp[7]", "--model", "gpt2"], "tp = 7 does not divide heads = 12 of gpt2"),
    (["cp[3]", "--model", "gpt2", "--set", "s=1024"], "cp = 3 does not divide seq = 1024 of gpt2"),
    (["pp[64]", "--model", "llama-3-8b"], "pp = 64 makes 64 stages of 32 layers; at most 32 fit"),
    (["pp", "--model", "llama-3-8b", "--set", "pp=64"], "pp = 64 makes 64 stages of 32 layers; at most 32 fit"),
    (["cp_ulysses[16]", "--model", "llama-3-8b"], 'cp is refined into two axes: cp1 = 8 splits "heads", cp2 = 2'),
])
def test_what_does_not_divide_is_one_line_with_the_numbers(words: list[str], message: str) -> None:
    for command in (["cost"], ["fit", "--device-memory", "80GB"]):
        got = run_placealg(command[0], *words, *command[1:])
        assert (got.code, got.out, got.err.count("\n")) == (2, "", 1)
        assert message in got.err


# ---------------------------------------------------------------------------------------- words no one means to type

@pytest.mark.parametrize(("words", "says"), [
    (("zero3", "zero4"), "unknown strategy 'zero4'"),
    (("zero3",), "missing NEW"),
    (("zero3", "dp", "--set", "tp_old=2"), "zero3 has no axis 'tp'"),
    (("zero3", "dp", "--set", "dp_old=0"), "--set dp_old=0: dp_old = 0 is not a whole number of at least 1"),
    (("zero3[dp=4]", "dp", "--set", "dp_old=2"), "--set dp_old=2: dp_old = 2 contradicts"),
    (("zero3", "dp", "--set", "dp=0", "dp_old=2"), "--set dp=0: dp = 0 is not a whole number"),
    (("zero3", "dp", "--set", "dp_oldd=2"), "did you mean 'dp_old'?"),
    (("zero3*tp", "dp", "--model", "gpt", "--set", "tp=2"), "did you mean 'tp_old', the old mesh's?"),
    (("zero3", "dp", "--reader", "0"), "needs all sizes of both meshes and of the model"),
    (("zero3", "dp", "--reader", "3", "--set", "dp=3", "dp_old=2", "Psi=12"), "has 0 to 2"),
    (("zero3", "dp", "--reader", "x", "--set", "dp=3", "dp_old=2", "Psi=12"), "'x' is no rank of the new mesh"),
    (("zero3", "proofs/proved/lora_zero3_tp_sp.toml"), "has no parameter 'layer.attn.q.low.weight'"),
])
def test_reshards_that_are_none(words: tuple[str, ...], says: str, placealg: Run) -> None:
    got = placealg("reshard", *words)
    assert (got.code, got.out) == (2, "")
    assert says in got.err.splitlines()[-1]
    assert got.err.count("placealg: ") == 1


LONG = "x" * 300


@pytest.mark.parametrize(("words", "says"), [
    (("cost", "dp", "--set", "--"), "--set: '--' is no value"),
    (("fit", "dp", "--device-memory", "1GB", "--bandwidth", "--"), "--bandwidth: '--' is no value"),
    (("cost", "dp", "--model=--"), "--model: '--' is no value"),
    *(((command, LONG), "is too long for the name of a file")
      for command in ("cost", "model", "prove", "explain", "museum", "recheck", "import", "simulate")),
    (("show", "dp", "--graph", f"{LONG}.svg"), "is too long for the name of a file"),
    *(((*words, "\0"), "has a null character") for words in (
        ("cost",), ("conform",), ("recheck",), ("report", "dp", "-o"), ("show", "dp", "--graph"),
        ("prove", "dp", "--certificate"), ("model",))),
    (("cost", "dp", "--set", f"dp={LONG}"), "unknown symbol"),
    (("cost", "dp", "--set", f"w={'9' * 5000}"), "is not arithmetic"),
    (("cost", "dp", "--convention", LONG), "unknown --convention value"),
])
def test_what_no_one_means_is_one_short_line(words: tuple[str, ...], says: str, placealg: Run) -> None:
    got = placealg(*words)
    assert (got.code, got.out) == (2, "")
    assert says in got.err
    assert got.err.count("\n") == 1
    assert "x" * 81 not in got.err
    assert "9" * 81 not in got.err
    assert "/" not in got.err


def test_a_message_repeats_at_most_80_characters_of_what_was_wrong() -> None:
    assert brief("unknown strategy 'a b'; valid: dp") == "unknown strategy 'a b'; valid: dp"
    assert brief(f"'{'a b' * 100}' is wrong") == f"'{('a b' * 100)[:77]}...' is wrong"
    assert len(str(InputError(LONG, where=f"--set {LONG}", name=LONG, valid=["dp"]))) < 250


def test_a_stdout_that_is_only_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    class Least:
        said = ""

        def write(self, text: str) -> int:
            self.said += text
            return len(text)

        def flush(self) -> None:
            pass

    least = Least()
    monkeypatch.setattr("sys.stdout", least)
    assert main(["cost", "dp"]) == 0 and least.said.startswith("dp on abstract")


def test_a_command_in_a_process_without_a_real_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is no file, and cannot be written: one line, no traceback."""
    class Full(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError(28, "No space left on device")

    said = io.StringIO()
    monkeypatch.setattr("sys.stdout", Full())
    monkeypatch.setattr("sys.stderr", said)
    assert main(["list"]) == 2
    assert said.getvalue() == "placealg: cannot write the result: No space left on device\n"


def test_what_cannot_be_had_is_told_before_it_is_proved(monkeypatch: pytest.MonkeyPatch, placealg: Run) -> None:
    def proves(*_: object) -> None:
        raise AssertionError("it was proved")
    monkeypatch.setattr("placealg.check.prove.judge", proves)
    got = placealg("prove", "dp", "--masked")
    assert (got.code, got.err) == (2, "placealg: --masked: dp has no 'masked' to check: a file says it\n")
    got = placealg("prove", "dp", "--engine", "cutoff", "--most-proofs", "11")
    assert got.code == 2 and got.err == (
        "placealg: --engine cutoff: dp on abstract takes 12 proofs of a group, more than the 11 of --most-proofs, each "
        "up to half a second; the engine closed_form takes each group once, for all sizes\n")
    with pytest.raises(AssertionError, match="it was proved"):
        placealg("prove", "dp", "--engine", "cutoff", "--most-proofs", "12")


@pytest.mark.parametrize("columns", ["²", "9" * 5000, "-1", "x"])
def test_any_width_can_be_asked_for(columns: str, monkeypatch: pytest.MonkeyPatch, placealg: Run) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert placealg("list").code == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_leaves_the_solver_alone() -> None:
    """The child ends without a word, and the parent's solver answers on."""
    program = ("import os, placealg as pa\n"
               "from placealg.prover.evidence.solver import PROCESS\n"
               "assert pa.prove(pa.dp(), pa.abstract()).verdict == 'PROVED'\n"
               "PROCESS.ask_text('(check-sat)')\n"
               "child = os.fork()\n"
               "if child: assert os.waitpid(child, 0)[1] == 0; assert PROCESS.ask_text('(check-sat)').status\n")
    got = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (got.returncode, got.stderr) == (0, "")
