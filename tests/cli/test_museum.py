"""The museum: every bug is refuted as its file says, hides where it says, and starts from a correct program."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path

import pytest
from conftest import ROOT, Outcome

from placealg.cases.case import CommandCase, read_case
from placealg.check.masked_sizes import hidden, setting
from placealg.check.prove import prove
from placealg.cli.bug_files import comment, folder, names, path_of
from placealg.cli.museum import FEW, examined, exhibit
from placealg.frozen import FrozenMap
from placealg.prover.verdict import BLOCKING, PARAMETRIC, PROVED
from placealg.render.museum import SHOWN, Exhibit, markdown_row
from placealg.render.museum import museum as page
from placealg.render.text_layout import plain
from placealg.step.derive import derive
from placealg.strategy.file import Expect, Masked

Run = Callable[..., Outcome]
TABLE = (ROOT / "proofs" / "README.md").read_text(encoding="utf-8").splitlines()


@cache
def found_of(name: str) -> Exhibit:
    return exhibit(path_of(name))


@pytest.mark.some(5)
@pytest.mark.parametrize("name", names())
def test_a_bug_is_as_its_file_says(name: str) -> None:
    found = found_of(name)
    assert found.wrong == ()
    assert all(outcome.equal and outcome.observed for _, outcome in found.hidden)
    assert found.report.cls == "BOUNDED"
    counterexample = found.report.counterexample
    assert counterexample and (counterexample.single_device or name in (*OF_TYPES, *OF_ORDER))
    assert counterexample.got != counterexample.want
    assert markdown_row(found) in TABLE


@pytest.mark.slow
def test_the_verdicts_are_the_golden_ones() -> None:
    """`tests/data/museum.txt` is what `placealg museum --no-timing` prints, 100 signs wide."""
    lines = [plain(text).rstrip() for text in page([found_of(name) for name in names()], 100, timing=False)]
    assert "\n".join(lines) + "\n" == (ROOT / "tests" / "data" / "museum.txt").read_text(encoding="utf-8")


def test_many_bugs_are_examined_at_once() -> None:
    some = [path_of(name) for name in names()[:FEW + 1]]
    assert [e.name for e in examined(some)] == [path.stem for path in some]


def test_the_table_has_no_other_rows() -> None:
    rows = [row for row in TABLE if row.startswith("| ") and row != f"| {' | '.join(SHOWN)} |"]
    assert [row.split()[1] for row in rows] == list(names())


def demonstrations() -> Iterator[str]:
    """The rows of the README that show how bugs hide, from the museum itself."""
    for name, k in (("megatron_1446", 0), ("pytorch_160285", 0), ("veomni_184", 0), ("transformers_34191", 0),
                    ("transformers_34191", 1), ("megatron_844", 0)):
        found = found_of(name)
        masked, outcome = found.hidden[k]
        assert outcome.equal
        ratio = f", {found.expect.ratio}" if found.expect.ratio else ""
        yield f"| {name} | {masked} | {outcome.observed} | {found.report.verdict}{ratio} |"


def test_the_readme_shows_where_bugs_hide() -> None:
    readme = (ROOT / "docs" / "museum.md").read_text(encoding="utf-8")
    assert "|---|---|---|---|\n" + "\n".join(demonstrations()) + "\n\n" in readme


OF_TYPES = ("deepspeed_1800", "llamafactory_9769", "megatron_6624", "pytorch_106395", "pytorch_190626",
            "pytorch_194628")
"""The bugs that only rounding shows: numbers that are exact are right, and the types of sums are not those asked."""


@pytest.mark.parametrize("name", OF_TYPES)
def test_what_only_rounding_shows_is_refuted_by_its_types(name: str, placealg: Run) -> None:
    found = found_of(name)
    assert (found.wrong, found.report.refuted(), found.report.of_values) == ((), ("precision",), PROVED)
    twin = read_case(str(folder().parent / "proved" / f"{name}.toml"), None, [])
    assert prove(twin.step).verdict == PROVED and [e.path for e in twin.step.events] == [
        e.path for e in found.step.events], "the twin differs in types alone"
    got = placealg("explain", name)
    told = " ".join(got.out.split())
    assert got.code == 0 and "in exact numbers nothing differs, at any size" in told
    assert "1 + 0.00390625 is 1 in bf16, and 1.00390625 in fp32" in told


OF_ORDER = ("deepspeed_5545", "deepspeed_7965", "deepspeed_8061", "fairscale_496", "megatron_4609", "megatron_5222",
            "megatron_5788", "megatron_663", "pytorch_180665", "rocm_pytorch_3500")
"""The bugs that some order of the streams shows: as they are printed, numbers are right."""


@pytest.mark.parametrize("name", OF_ORDER)
def test_what_only_some_order_shows_is_refuted_by_it(name: str) -> None:
    found = found_of(name)
    of = {"race", "alias"}
    assert found.wrong == () and {*found.report.refuted()} <= of and found.report.of_values == PROVED
    twin = read_case(str(folder().parent / "proved" / f"{name}.toml"), None, [])
    verdicts = prove(twin.step)
    assert verdicts.verdict == PROVED and {v.id for v in verdicts.obligations} > of


def test_what_waits_for_its_receiver_is_refuted_by_a_run_of_the_messages() -> None:
    found = found_of("pytorch_172668")
    assert (found.wrong, found.report.refuted()) == ((), ("schedule",)) and BLOCKING not in found.report.not_covered
    twin = read_case(str(folder().parent / "proved" / "pytorch_172668.toml"), None, [])
    assert prove(twin.step).verdict == PROVED and twin.step.events == found.step.events
    example = found.report.counterexample
    assert example is not None and "with stages 0, 1 left" in example.explanation


def test_only_those_are_of_types() -> None:
    assert {n for n in names() if read_case(str(path_of(n)), None, []).expect == Expect(
        "refuted", obligation="precision")} == set(OF_TYPES)


@pytest.mark.parametrize("name", names())
def test_a_file_is_short_and_tells_what_happened(name: str) -> None:
    lines = path_of(name).read_text(encoding="utf-8").splitlines()
    assert len(comment(path_of(name))) > 100
    assert len(lines) < (35 if name in OF_ORDER else 15)
    assert name.rstrip("abc").rpartition("_")[2] in next(line for line in lines if line.startswith("source"))


NO_EDIT_REPAIRS = {
    # the strategy itself declares it so
    "transformers_34191", "transformers_34373", "megatron_deepspeed_276", "pytorch_168058", "megatron_7513",
    "verl_7321", "pytorch_172668", "deepspeed_1800", "llamafactory_9769", "pytorch_106395", "pytorch_190626",
    # a buffer is to be recorded on a stream, or cleared: no wait mends it
    "deepspeed_7965", "megatron_4609", "megatron_5788",
    # events of several kinds are missing, moved or changed
    "megatron_7452b", "megatron_bridge_5634", "skyrl_794",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_a_bug_has_a_repair(name: str) -> None:
    found = exhibit(path_of(name), repair=True).report.counterexample
    assert found and (name in NO_EDIT_REPAIRS) == (found.repair is None)


def correct() -> Iterator[CommandCase]:
    """A case for each distinct program from which bugs start: those whose own tables are right."""
    seen = set()
    for name in names():
        case = read_case(str(path_of(name)), None, [])
        key = case.base.events, case.model.name
        if case.step != case.base and key not in seen:
            seen.add(key)
            yield case


@pytest.mark.parametrize("few", [3, pytest.param(None, marks=pytest.mark.slow)])
def test_without_its_edits_a_bug_is_proved(few: int | None) -> None:
    for case in islice(correct(), few):
        report = prove(case.base)
        assert (report.verdict, report.cls) == (PROVED, PARAMETRIC), case.strategy.name


DECLARED = ("transformers_34191", "transformers_34373", "megatron_deepspeed_276", "megatron_7513", "pytorch_168058",
            "verl_7321")
"""The bugs of which the strategy itself says it: of its loss, which counts, or of its random streams, the keys."""

TYPED = ("deepspeed_1800", "llamafactory_9769", "pytorch_106395", "pytorch_190626")
"""The bugs of which the strategy itself says in which types it adds."""


def test_all_other_bugs_are_edits() -> None:
    cases = {name: read_case(str(path_of(name)), None, []) for name in names()}
    assert {name for name, case in cases.items() if case.step == case.base} == {*DECLARED, *TYPED}


@pytest.mark.parametrize("name", DECLARED)
def test_without_its_declaration_a_bug_is_proved(name: str) -> None:
    case = read_case(str(path_of(name)), None, [])
    tables = {table: FrozenMap({k: v for k, v in keys.items() if k != "count_axes"})
              for table, keys in case.strategy.tables.items() if table != "random"}
    assert tables != dict(case.strategy.tables)
    report = prove(derive(replace(case.strategy, tables=FrozenMap(tables)), case.model))
    assert (report.verdict, report.cls) == (PROVED, PARAMETRIC)


def test_every_report_is_there() -> None:
    """`tests/data/reports.txt` has one line per report of the collection: its number there, and its files here."""
    lines = (ROOT / "tests" / "data" / "reports.txt").read_text(encoding="utf-8").splitlines()
    reports = {number: files.split() for number, _, files in (line.partition(" ") for line in lines)}
    found = [name for files in reports.values() for name in files]
    assert len(reports) == 62 and all(reports.values())
    assert sorted(found) == sorted({*names()} - BESIDE - {*OF_ORDER})


BESIDE = {"automodel_3530", "megatron_deepspeed_442", "pytorch_134052", "pytorch_144530", "pytorch_172668",
          "pytorch_180952",
          "torchtitan_1732", "fairscale_180", "pytorch_115710", "automodel_763",
          "deepspeed_8152", "detectron2_1732", "kempnerforge_115",
          "megatron_7186", "megatron_7513", "ms_swift_9935", "onevision_encoder_65", "picotron_5", "strix_halo_6",
          "torchtitan_596", "automodel_1482", "megatron_7498", "nanovlm_204", "prime_rl_2392", "skyrl_794",
          "slime_2090",
          "deepspeed_1800", "llamafactory_9769", "megatron_6624", "pytorch_106395", "pytorch_194628",
          "transformer_engine_1930", "transformers_46634", "trl_6478", "trl_6843", "verl_7321"}
"""Bugs that are not of the collection."""


def test_masked_sizes_are_met_and_others_are_larger() -> None:
    reference = read_case("hsdp", None, []).step.reference
    run = setting(reference, Masked(FrozenMap({"dp_shard": 3, "m": 1})))
    assert (dict(run.sizes), run.microbatches) == ({"dp_replicate": 2, "dp_shard": 3}, 1)
    assert len(set(run.counts.values())) == 1
    unequal = setting(reference, Masked(FrozenMap({}), "unequal"))
    assert unequal.microbatches == 2
    assert len(set(unequal.counts.values())) > 1


@pytest.mark.parametrize("masked", [{"dp": 2}, {"m": 2}])
def test_a_bug_shows_beside_its_masked_set(masked: dict[str, int]) -> None:
    step = read_case(str(path_of("ramtorch_13")), None, []).step
    assert not hidden(step, Masked(FrozenMap(masked))).equal


def wrong_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """A museum of one bug, in whose file `old` is `new`."""
    text = path_of("megatron_775").read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "megatron_775.toml").write_text(text.replace(old, new), encoding="utf-8")
    monkeypatch.setattr("placealg.cli.bug_files.folder", lambda: tmp_path)


@pytest.mark.parametrize(("old", "new", "says"), [
    ("masked = { dp = 1 }", "masked = { dp = 2 }", "shows at dp = 2: step 1"),
    ('ratio = "dp"', 'ratio = "1/dp"', "expected ratio 1/dp, got dp"),
    ('obligation = "gradient"', 'obligation = "view"', "expected obligation view, got gradient"),
    ("double", "drop", "expected ratio dp, got 1"),
    ('"gradient", ', '"gradient", group = "layer.bias", ', "expected group layer.bias, got layer.weight"),
    ('"token_mean"', '"mean_of_means"', "expected verdict refuted, got proved"),
])
def test_what_does_not_come_true_is_told(old: str, new: str, says: str, tmp_path: Path, placealg: Run,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_bug(tmp_path, monkeypatch, old, new)
    for words in (["museum"], ["explain", "megatron_775"]):
        got = placealg(*words)
        assert (got.code, got.err) == (1, "")
        assert says in " ".join(got.out.split())


def test_the_museum_is_listed(placealg: Run) -> None:
    got = placealg("museum", "megatron_775", "transformers_34191", "--no-timing")
    assert (got.code, got.err) == (0, "")
    assert "✓ megatron_775" in got.out and "m = 1 or equal counts" in got.out
    assert "2 of 2 bugs as their files expect; 3 runs where they hide, 3 of them equal" in got.out
    assert " s\n" not in got.out
    assert " s\n" in placealg("museum", "megatron_775").out


def test_the_museum_as_json_and_markdown(placealg: Run) -> None:
    bug, = json.loads(placealg("museum", "ramtorch_13", "--format", "json", "--no-timing").out)["bugs"]
    assert (bug["name"], bug["verdict"], bug["obligation"]) == ("ramtorch_13", "REFUTED", ["gradient"])
    assert [(m["sizes"], m["equal"]) for m in bug["masked"]] == [({"m": 1}, True), ({"dp": 1}, True)]
    assert bug["seconds"] is None and bug["as_expected"]
    lines = placealg("museum", "ramtorch_13", "--format", "markdown").out.splitlines()
    assert lines[0] == f"| {' | '.join(SHOWN)} |" and lines[2] in TABLE


STORY = ["bug: gradients summed over dp twice", "The synchronisation of gradients runs twice", "issue 775",
         "extra reduce.layer.weight.grad_sum.reduce[dp]#2", "got 1/(m*tokens_per_cell)", "ratio dp",
         'repair [[edit]] drop = "reduce.layer.weight.grad_sum.reduce[dp]#2"', "its cost communication",
         "at dp = 1 all 290 numbers of a run equal the single device's"]


def test_a_bug_is_told(placealg: Run) -> None:
    got = placealg("explain", "Megatron_775")
    assert (got.code, got.err) == (0, "")
    assert [text for text in STORY if text not in " ".join(got.out.split())] == []
    assert json.loads(placealg("explain", "megatron_775", "--format", "json").out)["ratio"] == "dp"


@pytest.mark.parametrize(("name", "says"), [
    ("megatron_950", "missing publish.layer.weight.publish[dp]"),
    ("gpt_neox_1259", "changed reduce.layer.norm1.weight.grad_sum.reduce[tp] [P]→[I] sum, now [P]→[I] mean"),
    ("transformers_34373", "loss token mean, tokens counted over microbatch only"),
    ("pytorch_168058", "dropout keyed by local(seq)"),
    ("megatron_5071", "no size hides it"),
])
def test_a_story_says_what_differs(name: str, says: str, placealg: Run) -> None:
    assert says in " ".join(placealg("explain", name).out.split())


@pytest.mark.parametrize("words", [["museum", "megatron_776"], ["explain", "megatron_776"]])
def test_an_unknown_bug_has_a_nearest_one(words: list[str], placealg: Run) -> None:
    got = placealg(*words)
    assert (got.code, got.out) == (2, "")
    assert "'megatron_776'" in got.err and "did you mean 'megatron_7" in got.err


@pytest.mark.parametrize(("old", "new", "says"), [
    ('base   = "dp"', 'base   = "zerro1"', "'zerro1'; did you mean 'zero1'"),
    ("grad_sum.reduce", "grad_sum.redoce", "did you mean 'reduce.layer.weight.grad_sum.reduce[dp]'"),
])
def test_what_does_not_exist_has_a_nearest_one(old: str, new: str, says: str, tmp_path: Path, placealg: Run,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_bug(tmp_path, monkeypatch, old, new)
    for words in (["museum"], ["explain", "megatron_775"], ["prove", str(tmp_path / "megatron_775.toml")]):
        got = placealg(*words)
        assert (got.code, got.out) == (2, "")
        assert says in got.err and got.err.count("\n") == 1


def test_names_do_not_leave_the_folder() -> None:
    assert (folder() / "../proved/token_mean.toml").is_file()
    with pytest.raises(Exception, match="no bug is called"):
        path_of("../proved/token_mean")


def test_a_file_of_ones_own_is_an_exhibit(placealg: Run, tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('base = "dp"\nexpect = "refuted"\nmasked = { dp = 1 }\n[[edit]]\ndrop = "reduce.*.reduce[dp]"\n')
    got = placealg("museum", str(own), "--no-timing")
    assert got.code == 0 and "1 of 1 bugs as their files expect; 1 runs where they hide" in got.out
    missing = placealg("museum", str(tmp_path / "none.toml"))
    assert (missing.code, missing.err.count("\n")) == (2, 1) and "there is no such file" in missing.err


def test_masked_is_checked_on_request(placealg: Run, tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('base = "dp"\nexpect = "refuted"\nmasked = [{ dp = 1 }, { m = 1 }]\n'
                   '[[edit]]\ndrop = "reduce.*.reduce[dp]"\n')
    got = placealg("prove", str(own), "--masked", "--no-timing")
    assert "does not show at dp = 1" in got.out and "shows at m = 1" in got.out and got.code == 1
    none = placealg("prove", "dp", "--masked")
    assert (none.code, none.err.count("\n")) == (2, 1) and "has no 'masked' to check" in none.err


def test_an_expectation_is_of_what_is_refuted_first(placealg: Run, tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('base = "dp"\nexpect = { verdict = "refuted", obligation = "normalizer" }\n'
                   '[[edit]]\ndrop = "reduce.*.reduce[dp]"\n')
    got = placealg("prove", str(own), "--no-timing")
    assert got.code == 1 and "expected obligation normalizer, got gradient" in got.out


def test_what_nobody_reads_is_warned_of(placealg: Run, tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('base = "tp"\n[[edit]]\ninsert = { path = "forward.layer.mlp.down.all_reduce[tp]", op = "sum", '
                   'from = "P", to = "I", version = "tp/tp" }\nafter = "forward.layer.mlp.down.compute"\n')
    got = placealg("show", str(own))
    assert "own.toml:3: warning: nothing reads what forward.layer.mlp.down.all_reduce[tp]" in got.err and got.code == 0


def test_a_verdict_says_by_what_its_instances_were_decided(placealg: Run) -> None:
    got = placealg("prove", "dp", "--verbose", "--no-timing")
    assert "decided by" in got.out and "simplification" in got.out
    found = json.loads(placealg("prove", "dp*tp", "--format", "json", "--no-timing").out)
    for row in found["obligations"]:
        assert sum(row["decided"].values()) == row["instances"]
    assert found["decided"]["data"] > 0 and abs(sum(found["decided"]["shares"].values()) - 1) < 1e-9
