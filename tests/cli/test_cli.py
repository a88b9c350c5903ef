"""The command line: golden output, exit codes, one-line errors, files written whole, JSON of a fixed shape."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, Outcome

from placealg.cli.demo import DEMO
from placealg.cli.output import write_file
from placealg.cli.verdicts import disagreements, exit_code, of_several, same_ratio
from placealg.errors import InputError
from placealg.prover.verdict import OBLIGATIONS, Counterexample, Report, Verdict
from placealg.strategy.file import Expect

Run = Callable[..., Outcome]
GOLDEN = ROOT / "tests" / "golden"
REFUTED = "proofs/refuted/zero1_publish_dropped.toml"


def golden_files() -> list[Path]:
    return sorted(GOLDEN.glob("*.txt"))


@pytest.mark.parametrize("path", golden_files(), ids=lambda p: p.stem)
def test_golden(path: Path, placealg: Run) -> None:
    """The first line of a golden file is its command; the rest is what it prints, then its exit code."""
    command, _, rest = path.read_text(encoding="utf-8").partition("\n")
    got = placealg(*command.removeprefix("$ placealg ").split())
    printed = f"{got.out}{got.err}[exit {got.code}]\n"
    if os.environ.get("PLACEALG_WRITE_GOLDEN"):
        path.write_text(f"{command}\n{printed}", encoding="utf-8")
        rest = printed
    assert printed == rest


def test_golden_covers_what_people_read() -> None:
    commands = {p.read_text(encoding="utf-8").split()[2] for p in golden_files()}
    assert commands >= {"--help", "list", "show", "cost", "prove", "compare", "simulate", "model", "explain", "diff"}


BAD = [
    (["cost", "zero3", "--dp", "8"], "unknown option '--dp'; did you mean '--set dp=8'?"),
    (["cost", "zero3", "--gpus", "8"], "did you mean '--set devices=8'?"),
    (["import", "proofs/zero3.toml", "--devices", "8"], "did you mean '--world-size 8'?"),
    (["fit", "zero3", "--device-memory", "80GB", "--gpus", "8"], "did you mean '--devices 8'?"),
    (["cost", "zero3", "--tp", "8"], "did you mean 'zero3*tp --set tp=8'?"),
    (["cost", "zero3", "--seq-len", "8"], "did you mean '--set s=8'?"),
    (["cost", "zero3", "--set", "tp=8"], "did you mean 'zero3*tp'?"),
    (["cost", "zero3", "--model", "gpt2", "--set", "batch=8"], "did you mean 'b'?"),
    (["cost", "zero3", "--model", "gpt2", "--set", "gaz=8"], "unknown symbol or axis 'gaz'; valid: dp, devices"),
    (["cost", "zero3", "dp=8"], "did you mean '--set dp=8'?"),
    (["cost", "dp=8"], "'dp=8' is a size, and no strategy; did you mean '--set dp=8'?"),
    (["cost", "zero3", "tp"], "did you mean 'zero3*tp'?"),
    (["cost", "zero3", "--gpsu", "8"], "unknown option '--gpsu'; valid:"),
    (["prov"], "did you mean 'prove'"),
    (["cost"], "missing STRATEGY"),
    (["cost", "zero3", "extra"], "unexpected argument 'extra'"),
    (["cost", "llama-3-8b", "zero3"], "is a model, and no strategy; did you mean 'zero3 --model llama-3-8b'?"),
    (["cost", "zero3", "llama-3-8b"], "is a model, and no strategy; did you mean 'zero3 --model llama-3-8b'?"),
    (["prove", "nowhere/config.json"], "did you mean 'zero3 --model nowhere/config.json'?"),
    (["cost", "hsdp", "--set", "dp=8"], "unknown symbol or axis 'dp': its axes are dp_replicate and dp_shard"),
    (["cost", "zero3", "--model", "gpt2", "--set", "s=8k"], "'8k' is not arithmetic; did you mean 's=8192'?"),
    (["fit", "zero3", "--device-memory", "-80GB"], "--device-memory: '-80GB' is not a number with a unit"),
    (["cost", "zero3", "--mdel", "gpt2"], "did you mean '--model'"),
    (["cost", "zero3", "--format", "jsn"], "did you mean 'json'"),
    (["cost", "zero3", "--convention", "exakt"], "did you mean 'exact'"),
    (["cost", "zero33"], "did you mean 'zero3'"),
    (["cost", "dp*dp"], "'dp'"),
    (["cost", "zero3", "--model", "lama-3-70b"], "did you mean 'llama-3-70b'"),
    (["cost", "zero3", "--model", "nowhere/config.json"], "nowhere/config.json"),
    (["cost", "nowhere.toml"], "nowhere.toml"),
    (["cost", "zero3", "--set"], "--set"),
    (["cost", "zero3", "--set", "dp"], "NAME=VALUE"),
    (["cost", "hsdp", "--set", "dp_sharded=8"], "did you mean 'dp_shard'"),
    (["cost", "zero3", "--set", "dp=0"], "whole number of at least 1"),
    (["cost", "zero3", "--set", "dp=-2"], "whole number of at least 1"),
    (["cost", "zero3", "--set", "dp=2.5"], "whole number of at least 1"),
    (["cost", "zero3", "--set", "dp=8", "dp=4"], "already 8"),
    (["cost", "zero3", "--set", "dp=8,dp=4"], "already 8"),
    (["cost", "zero3", "--set", "dp=8,4"], "--set dp=8,4: '8,4' is not arithmetic"),
    (["cost", "zero3", "--set", "w=0"], "positive number of bytes"),
    (["cost", "zero3", "--set", "dp=__import__('os')"], "not a function"),
    (["cost", "zero3[8]", "--set", "dp=4"], "contradicts"),
    (["cost", "zero3", "--model", "gpt2", "--set", "h=5"], "contradicts"),
    (["cost", "zero3[8]", "--set", "devices=9"], "the mesh has 8 devices"),
    (["cost", "hsdp", "--set", "devices=512"], "set all but one"),
    (["cost", "hsdp[dp_shard=3]", "--set", "devices=512"], "not a multiple"),
    (["model", "gpt22"], "did you mean 'gpt2'"),
    (["explain", "gathr"], "did you mean 'gather'"),
    (["cost", "zero3", "--set", "pd=8"], "unknown symbol or axis 'pd'; did you mean 'dp'"),
    (["cost", "zero3", "--set", "b=4"], "zero3 on abstract has no 'b' (sequences per device and microbatch)"),
    (["cost", "zero3", "--set", "Psi=10", "Psi_unit=20"], "Psi_unit = 20 exceeds Psi = 10"),
    (["cost", "zero3", "--set", "Psi_unit=20", "Psi=10"], "Psi_unit = 20 exceeds Psi = 10"),
    (["cost", "zero3", "--model", "gpt2", "--set", "Psi=10"], "contradicts gpt2's Psi = 124439808"),
    (["cost", "zero3", "--model", "gpt2", "--set", "Psi_unit=10"], "contradicts gpt2's Psi_unit"),
    (["cost", "zero3[devices]"], "axis name 'devices' is taken: it means the number of devices"),
    (["cost", "zero3[dq"], "column 9: missing ']'"),
    (["cost", "dp*offload_optimizer*offload_optimizer"], "offload_optimizer is applied twice"),
    (["cost", "placealg"], "is a directory"),
    (["prove", "zero3", "zero9"], "zero9"),
    (["compare", "zero3", "zero9"], "zero9"),
    (["simulate", "zero3", "--seed", "x"], "invalid int value"),
    (["simulate", "zero3", "--set", "dp=4096"], "too large"),
    (["show", "zero3", "--write-program", "nowhere/program.toml"], "nowhere/program.toml"),
]


@pytest.mark.parametrize(("words", "says"), BAD, ids=lambda x: " ".join(x) if isinstance(x, list) else "")
def test_bad_input_is_one_line(words: list[str], says: str, placealg: Run) -> None:
    got = placealg(*words)
    assert got.code == 2
    assert got.err.startswith("placealg: ")
    assert got.err.count("\n") == 1
    assert says in got.err
    assert "Traceback" not in got.err


FILES = [
    ('base = "zero3"\n[mesh]\ndp = 0\n', ":3"),
    ('base = "zero9"\n', ":1"),
    ('base = "zero3"\n[[edit]]\ndrop = "grad_sum.reduse[dp]"\n', ":3"),
    ('base = "zero3"\n[schedul]\nprefetch = 1\n', "schedule"),
    ("base = ", "1"),
]


@pytest.mark.parametrize(("text", "says"), FILES)
def test_a_file_error_points_at_its_line(text: str, says: str, placealg: Run, tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(text)
    for command in ("show", "cost", "prove", "simulate"):
        got = placealg(command, str(path))
        assert (got.code, got.err.count("\n"), got.out) == (2, 1, "")
        assert str(path) in got.err
        assert says in got.err


@pytest.mark.parametrize("command", ["prove", "compare"])
def test_every_strategy_is_read_before_anything_is_printed(command: str, placealg: Run) -> None:
    for words in (["zero9", "zero3"], ["zero3", "zero9"], ["zero3", "zero9", "--format", "json"]):
        got = placealg(command, *words)
        assert (got.code, got.out, got.err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(("table", "said"), [("[schedule]\nmicrobatches = 4", "m=8"), ("[types]\nw = 4", "w=2")])
def test_sizes_do_not_contradict_the_strategy(table: str, said: str, placealg: Run, tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(f'name = "mine"\nbase = "zero3"\n{table}\n')
    got = placealg("cost", str(path), "--set", said)
    assert (got.code, got.out) == (2, "")
    assert f"contradicts the strategy's {said[0]} = 4" in got.err
    assert placealg("cost", str(path), "--set", f"{said[0]}=4").code == 0


WIDE = ["--help", "list", "show zero3", "show zero3 --why", "show hsdp*offload_optimizer --model llama-3-70b",
        "compare dp zero3*offload_optimizer hsdp[dp_replicate=4,dp_shard=8]*offload_optimizer",
        "compare dp zero2 zero3 --model gpt2 --set dp=8", f"prove {REFUTED}", "prove zero1",
        "simulate proofs/refuted/deepspeed_8437.toml", "simulate hsdp*offload_optimizer --model llama-3-70b",
        "cost hsdp*offload_optimizer --model gpt2 --set dp_shard=8 devices=64", "explain schedule",
        "explain pytorch_125484", "museum pytorch_125484 transformers_34191", "diff zero1 zero3", "model gpt",
        "reshard zero3[4] zero1[2]", "explain LoRA", "import tests/importers/miniatures/torchtitan/experts.toml"]


@pytest.mark.parametrize("words", WIDE)
def test_nothing_is_wider_than_the_page(words: str, placealg: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in (80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        out = placealg(*words.split()).out
        assert out
        assert [text for text in out.splitlines() if len(text) > columns] == []


def test_a_narrow_page_says_how_to_see_the_reasons(placealg: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert "--why" in placealg("show", "dp").out
    assert "--why" not in placealg("show", "dp", "--why").out
    monkeypatch.setenv("COLUMNS", "120")
    assert "--why" not in placealg("show", "dp").out


@pytest.mark.parametrize(("name", "kind"), [
    ("Psi", "symbol"), ("Ψ_unit", "symbol"), ("transient", "quantity"), ("host link", "quantity"),
    ("[P]", "value type"), ("P", "value type"), ("S", "value type"), ("S", "mode"), ("schedule", "table"),
    ("token_mean", "loss preset"), ("muon", "optimizer"), ("sum_of_owner", "lemma"),
])
def test_every_kind_of_name_is_explained(name: str, kind: str, placealg: Run) -> None:
    found = json.loads(placealg("explain", name, "--format", "json").out)["found"]
    assert kind in {f["kind"] for f in found}
    assert all(1 <= len(f["sentences"]) <= 3 for f in found)


def test_one_scale_in_a_table(placealg: Run) -> None:
    out = placealg("cost", "zero3", "--model", "gpt2", "--set", "dp=8").out
    assert not re.search(r"\de-\d", out)
    assert "values in MB" in out
    rows = placealg("compare", "dp", "zero3", "--model", "gpt2", "--set", "dp=8").out
    assert set(re.findall(r" ([kMG]?B) ", rows)) == {"GB"}
    assert re.search(r"value +over dp +ratio", rows)


def test_a_ratio_without_sizes_is_a_formula(placealg: Run) -> None:
    out = placealg("compare", "dp", "zero3").out
    total = out[out.index("total"):out.index("sent")]
    assert "(Ψ·w + Ψ·g + Ψ·o + " in total


def test_more_ranks_and_microbatches_than_can_be_run_are_fewer_and_said(tmp_path: Path, placealg: Run) -> None:
    path = tmp_path / "large.toml"
    path.write_text('base = "zero1[8]*pp_interleaved[4]"\n[schedule]\nmicrobatches = 512\n')
    found = placealg("simulate", str(path))
    told = " ".join(found.out.split())
    assert "at dp = 2, pp = 2, m = 8 in place of dp = 8, pp = 4, m = 512, too many to run" in told
    assert (found.code, "EQUAL" in found.out) == (0, True)
    kept = placealg("simulate", str(path), "--set", "dp=8", "--format", "json")
    assert json.loads(kept.out)["sizes"] == {"dp": 8, "pp": 2}


def test_simulate_names_its_network(placealg: Run) -> None:
    assert "the ops, at small sizes, of gpt2" in placealg("simulate", "dp", "--model", "gpt2").out
    assert "a small network with the parameter groups of abstract" in placealg("simulate", "dp").out


def test_exit_codes(placealg: Run, tmp_path: Path) -> None:
    assert placealg("prove", "zero1").code == 0
    assert placealg("prove", REFUTED).code == 0
    bare = tmp_path / "bare.toml"
    bare.write_text('base = "zero1"\n[[edit]]\ndrop = "publish.*.publish[dp]"\n')
    assert placealg("prove", str(bare)).code == 1
    assert placealg("simulate", str(bare)).code == 1
    assert placealg("prove", "zero1", str(bare)).code == 1
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('base = "zero1"\nexpect = "refuted"\n')
    got = placealg("prove", str(wrong))
    assert got.code == 1
    assert "expected verdict refuted, got proved" in got.out


def a_report(verdict: str, cls: str | None = None, mass: str | None = None) -> Report:
    found = Counterexample("gradient", "e", "layer", (("dp", 2),), (("dp", 0),), "u", "1", "2", mass, "")
    verdicts = tuple(Verdict(i, "layer", s, verdict if i == "gradient" else "PROVED", cls, 1)
                     for i, s in OBLIGATIONS.items())
    return Report("s", "m", verdict, cls, (), (), verdicts, found if verdict == "REFUTED" else None)


@pytest.mark.parametrize(("verdict", "expect", "code"), [
    ("PROVED", None, 0), ("REFUTED", None, 1), ("UNDECIDED", None, 3),
    ("PROVED", Expect("proved"), 0), ("PROVED", Expect("refuted"), 1), ("PROVED", Expect("undecided"), 1),
    ("REFUTED", Expect("refuted"), 0), ("REFUTED", Expect("proved"), 1),
    ("REFUTED", Expect("refuted", obligation="gradient"), 0), ("REFUTED", Expect("refuted", obligation="view"), 1),
    ("REFUTED", Expect("refuted", ratio="1/dp"), 0), ("REFUTED", Expect("refuted", ratio="dp"), 1),
    ("REFUTED", Expect("refuted", group="layer"), 0), ("REFUTED", Expect("refuted", group="head"), 1),
    ("UNDECIDED", Expect("undecided"), 0), ("UNDECIDED", Expect("proved"), 3), ("UNDECIDED", Expect("refuted"), 3),
])
def test_what_is_expected_decides(verdict: str, expect: Expect | None, code: int) -> None:
    assert exit_code(a_report(verdict, mass="2/(2*dp)"), expect) == code


def test_disagreements_name_both_sides() -> None:
    report = dataclasses.replace(a_report("PROVED"), cls="CUTOFF")
    assert disagreements(report, Expect("proved", cls="PARAMETRIC")) == ["expected class PARAMETRIC, got CUTOFF"]
    assert not same_ratio("1/dp", "dp")


@pytest.mark.parametrize(("codes", "code"), [([0, 0], 0), ([0, 3], 3), ([3, 1, 0], 1), ([1, 2, 3], 2), ([], 0)])
def test_the_first_of_2_1_3_0(codes: list[int], code: int) -> None:
    assert of_several(codes) == code


COST_KEYS = ["version", "strategy", "model", "sizes", "convention", "unit", "hypotheses", "symbols", "parameters",
             "memory", "communication", "saved", "regions", "compute", "schedule"]
PROVE_KEYS = ["version", "strategy", "model", "verdict", "class", "hypotheses", "not_covered", "decided",
              "obligations",
              "counterexample", "certificate", "kernel"]


def test_json_shapes(placealg: Run) -> None:
    cost = json.loads(placealg("cost", "zero3", "--set", "dp=8", "Psi=70000000000", "--format", "json").out)
    assert list(cost) == COST_KEYS
    assert cost["memory"]["states"]["value"] == 140_000_000_000
    assert {"expr", "unit", "value"} <= set(cost["communication"]["total"])
    prove = json.loads(placealg("prove", "zero3", "--format", "json", "--no-timing").out)
    assert (list(prove), prove["version"]) == (PROVE_KEYS, 2)
    assert {o["seconds"] for o in prove["obligations"]} == {None}
    both = json.loads(placealg("prove", "dp", REFUTED, "--format", "json", "--no-timing").out)
    assert [r["verdict"] for r in both["reports"]] == ["PROVED", "REFUTED"]
    assert both["reports"][1]["counterexample"]["sizes"]["dp"] == 2
    for words in (["list"], ["model", "gpt2"], ["explain", "S*"], ["simulate", "dp"], ["compare", "dp", "zero3"],
                  ["show", "dp"]):
        assert json.loads(placealg(*words, "--format", "json").out)["version"] == 1


def test_timing_is_left_out_on_request(placealg: Run) -> None:
    assert " ms" in placealg("prove", "dp").out
    assert " ms" not in placealg("prove", "dp", "--no-timing").out


@pytest.mark.parametrize("form", ["latex", "markdown", "python"])
def test_other_formats(form: str, placealg: Run) -> None:
    text = placealg("cost", "hsdp", "--format", form, "--set", "dp_shard=8").out
    if form == "python":
        names: dict[str, object] = {}
        exec(compile(text, "costs", "exec"), names)
        assert names["memory_states"](Psi=8, dp_shard=4) == 32  # type: ignore[operator]
    assert {"latex": r"\begin{align*}", "markdown": "| quantity |", "python": "def memory_states("}[form] in text


def test_a_written_program_reads_back_equal(placealg: Run, tmp_path: Path) -> None:
    path = tmp_path / "program.toml"
    assert placealg("show", "hsdp", "--write-program", str(path)).code == 0
    assert tomllib.loads(path.read_text())["event"]
    assert [p.name for p in tmp_path.iterdir()] == ["program.toml"]
    direct, again = placealg("show", "hsdp", "--why"), placealg("show", str(path), "--why")
    assert direct.out == again.out
    assert placealg("prove", str(path), "--no-timing").code == 0


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    with pytest.raises(InputError):
        write_file(str(folder), "text")
    with pytest.raises(InputError):
        write_file(str(tmp_path / "no" / "file"), "text")
    assert [p.name for p in tmp_path.iterdir()] == ["there"]
    assert list(folder.iterdir()) == []


def test_sizes_of_other_strategies_are_not_an_error(placealg: Run) -> None:
    got = placealg("compare", "dp", "hsdp", "--set", "dp=8", "dp_shard=4", "dp_replicate=2")
    assert (got.code, got.err) == (0, "")


def test_values_and_options_reach_the_numbers(placealg: Run) -> None:
    gb = placealg("cost", "dp", "--set", "Psi=70000000000", "dp=8").out
    assert "1,120.000" in gb
    assert "1,043.081" in placealg("cost", "dp", "--set", "Psi=70000000000", "dp=8", "--gib").out
    assert "122.500" in placealg("cost", "dp", "--set", "Psi=70000000000", "dp=8", "--unit", "elements").out
    asymptotic = placealg("cost", "dp", "--set", "Psi=70000000000", "dp=8", "--convention", "asymptotic").out
    assert "280.000" in asymptotic
    assert "280.000" not in gb


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "placealg", *words]


def test_a_closed_pipe_is_quiet() -> None:
    shell = f"{' '.join(command('show', 'hsdp'))} | head -n 1"
    done = subprocess.run(["sh", "-c", shell], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.startswith("hsdp on abstract")


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_reader_that_has_gone_changes_no_verdict(tmp_path: Path, form: str) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text('base = "zero1"\n[[edit]]\ndrop = "publish.*.publish[dp]"\n')
    with subprocess.Popen(command("prove", str(file), "--format", form), cwd=ROOT, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as run:
        assert run.stdout
        assert run.stderr
        run.stdout.close()
        assert (run.stderr.read(), run.wait()) == (b"", 1)


@pytest.mark.parametrize(("closed", "strategy", "code", "says"), [
    (">&-", "zero1", 2, "placealg: cannot write the result: Bad file descriptor\n"), ("2>&-", "zero1", 0, ""),
    ("2>&-", "zero9", 2, ""), (">&- 2>&-", "zero1", 2, ""), ("<&- >&-", "zero9", 2, "placealg: strategy 'zero9'")])
def test_a_stream_that_was_closed_before(closed: str, strategy: str, code: int, says: str) -> None:
    shell = f"{' '.join(command('show', strategy))} {closed}"
    done = subprocess.run(["sh", "-c", shell], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stderr.startswith(says) and done.stderr.count("\n") == bool(says)
    assert done.stdout.startswith("zero1 on abstract") if not code else done.stdout == ""


def test_the_demonstration_says_where_it_cannot_be_printed() -> None:
    done = subprocess.run(["sh", "-c", f"{sys.executable} -m placealg.cli.demo >&-"], cwd=ROOT, capture_output=True,
                          text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "placealg: cannot write the result: Bad file descriptor\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(command("show", "hsdp"), cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True,
                              check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_help_loads_nothing_heavy() -> None:
    code = ("import sys\nfrom placealg.cli import main\nmain(['--help'])\n"
            "print(sorted({'sympy', 'z3', 'rich', 'networkx'} & set(sys.modules)))")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_plain_text_without_a_terminal() -> None:
    done = subprocess.run(command("prove", "dp"), cwd=ROOT, capture_output=True, text=True, check=True,
                          env={**os.environ, "NO_COLOR": ""})
    assert "\x1b[" not in done.stdout
    assert all(text == text.rstrip() for text in done.stdout.splitlines())


def test_an_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch, placealg: Run) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(__import__("placealg.cli.commands", fromlist=["COMMANDS"]).COMMANDS, "list", interrupted)
    got = placealg("list")
    assert (got.code, got.out) == (130, "")
    assert "Traceback" not in got.err


def test_the_demo_shows_proofs_and_a_refutation(placealg: Run) -> None:
    outcomes = [placealg(*words.split()) for words in DEMO if words.startswith("prove")]
    assert [o.code for o in outcomes] == [0, 0]
    assert outcomes[0].out.count(": PROVED, PARAMETRIC") == 1
    assert ": REFUTED" in outcomes[1].out
    assert "counterexample" in outcomes[1].out
