"""Bad input is one line that says what, where, and the nearest valid name; nothing but InputError escapes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import text_steps
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from placealg.arith import Monomial, parse
from placealg.errors import InputError
from placealg.step.edit import apply_edits, read_edits
from placealg.step.text import read_program, write_program
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import parse_strategy_file, read_strategy_file
from placealg.strategy.spec import Strategy, check, strategy_on

MESH = '[mesh]\ndp = 2\n[dims]\ndp = ["batch"]\n'
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
    ("[mesh]\ndp = 2\n[dims]\ndp = [\n 'batch',\n 'bach']\n",
     "s.toml:6: [dims] dp names unknown dim 'bach'; did you mean 'batch'"),
    ("[mesh]\ndp = 2\n[dims]\ndp = ['batch', 'batch']\n", "s.toml:4: [dims] dp names 'batch' twice"),
    # states
    (MESH + "[states]\nparameters = { pd = 'R' }",
     "s.toml:6: [states] parameters names axis 'pd', which the mesh lacks"),
    (MESH + "[states.parameters]\n\ndp = 'Q'", "s.toml:7: unknown mode 'Q' for axis dp"),
    (MESH + "[states]\nparameters = { dp = 3 }", "s.toml:6: [states] parameters on dp is 3: a mode is a string"),
    (MESH + "[states]\nparameters = 'S*'", "s.toml:6: [states] parameters is 'S*': expected a table"),
    (MESH + "[states]\nparameters = { dp = 'S' }", "s.toml:6: [states] parameters on dp: S says that"),
    (MESH + "[states]\nparameters = { dp = 'M' }", "s.toml:6: [states] parameters on dp: M holds nothing"),
    (MESH + "[states]\nparameters = { dp = 'S*+O' }", "s.toml:6: [states] parameters: only the optimizer state"),
    (MESH + "[states]\noptimizer = { dp = 'S*' }", "s.toml:6: [states] optimizer on dp: S* is for values"),
    (MESH + "[states]\ngradients = { dp = 'M' }", "s.toml:6: [states] gradients on dp: M, a full gradient"),
    (MESH + "[states]\nactivations = { dp = 'S*' }",
     "s.toml:6: [states] activations on dp: the batch is split over dp"),
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
    (MESH + "[groups.norms]\nmatch = 'x'\nparameters = { dq = 'R' }",
     "s.toml:7: [groups.norms] parameters names axis 'dq'"),
    (MESH + "[groups.norms]\nmatch = 'x'\ntypes = { q = 2 }", "s.toml:7: [groups.norms] types names 'q'; valid: w, g"),
    (MESH + "[groups.norms]\nmatch = 'x'\ntypes = { w = 0 }", "s.toml:7: [groups.norms] types.w is 0"),
    # options
    (MESH + "[schedule]\nmicrobatches = 0", "s.toml:6: [schedule] microbatches is 0"),
    (MESH + "[schedule]\nmicrobatches = 'n'", "s.toml:6: [schedule] microbatches is 'n': expected \"m\" or"),
    (MESH + "[schedule]\nprefetch = -1", "s.toml:6: [schedule] prefetch is -1"),
    (MESH + "[schedule]\nlifetime = 'use'", "s.toml:6: [schedule] lifetime is 'use': expected a table"),
    (MESH + "[schedule]\nlifetime = { pd = 'use' }", "s.toml:6: [schedule] lifetime names axis 'pd'"),
    (MESH + "[schedule]\nlifetime = { dp = 'uses' }",
     "s.toml:6: [schedule] lifetime of dp is 'uses'; did you mean 'use'?"),
    (MESH + "[optimizer]\nname = 'adam w'", "s.toml:6: [optimizer] name is 'adam w'; did you mean 'adamw'?"),
    (MESH + "[optimizer]\nname = ['adamw']", "s.toml:6: [optimizer] name is ['adamw']"),
    (MESH + "[optimizer]\nclip = 'norm'", "s.toml:6: [optimizer] clip is 'norm'"),
    (MESH + "[optimizer]\ntier = 'cpu'", "s.toml:6: [optimizer] tier is 'cpu'; valid: device, host"),
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
    (MESH + "[random]\ndropout = ['local(sq)']", "s.toml:6: [random] dropout names dim 'sq'"),
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
    from placealg.frozen import FrozenMap

    made = strategy_on("s", {"dp": None}, dims={"dp": ["batch"]})
    check(made)
    for tables, message in (({"schedul": {}}, "unknown table"), ({"schedule": {"x": 1}}, "unknown key 'x'"),
                            ({"loss": {"preset": "x"}}, "preset is 'x'"), ({"types": {"w": "-1"}}, "w is '-1'")):
        said = FrozenMap({t: FrozenMap(v) if v else FrozenMap({"k": 1}) for t, v in tables.items()})
        with pytest.raises(InputError, match=message.replace("[", r"\[")):
            check(Strategy("s", made.mesh, made.dims, tables=said))
    with pytest.raises(InputError, match="has no axis"):
        check(Strategy("s"))
    with pytest.raises(InputError, match="unknown dim 'batch'"):
        check(made, dims=("seq",))


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
""" + MESH + """
[states]
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
