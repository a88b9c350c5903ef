"""`placealg diff`: every event, formula and verdict that differs is told, and nothing that does not."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Outcome

import placealg as pa
from placealg.cases.case import CommandCase
from placealg.cli import diff as command
from placealg.prover.verdict import Report
from placealg.render.diff import folded
from placealg.step.difference import CHANGED, LEFT, MOVED, RIGHT, difference

Run = Callable[..., Outcome]


def told(one: pa.Step, two: pa.Step) -> set[tuple[str, str]]:
    return {(d.kind, d.event.path) for d in difference(one, two)}


@pytest.fixture(scope="module")
def step() -> pa.Step:
    return pa.derive(pa.zero1(), pa.abstract())


def test_every_action_of_an_edit_is_seen(step: pa.Step) -> None:
    publish, reduce = "publish.layer.weight.publish[dp]", "reduce.layer.weight.grad_sum.reduce[dp]"
    assert told(step, step) == set()
    assert told(step, pa.edit(step, drop=publish)) == {(LEFT, publish)}
    assert told(pa.edit(step, drop=publish), step) == {(RIGHT, publish)}
    assert told(step, pa.edit(step, double=reduce)) == {(RIGHT, f"{reduce}#2")}
    changed = pa.edit(step, set=reduce, op="sum")
    assert told(step, changed) == {(CHANGED, reduce)}
    assert difference(step, changed)[0].fields == (("op", "mean", "sum"),)


def test_of_events_in_another_order_the_fewest_are_said_to_have_moved() -> None:
    step = pa.derive(pa.zero3(), pa.abstract())
    free, = (e.path for e in step.events if e.phase == "forward" and e.verb == "free")
    gather, = (e.path for e in step.events if e.phase == "forward" and e.verb == "gather")
    assert told(step, pa.edit(step, move=free, after=gather)) <= {(MOVED, free), (MOVED, "forward.layer.compute")}
    assert len(told(step, pa.edit(step, move=free, after=gather))) == 1


def test_a_reason_is_no_difference(step: pa.Step) -> None:
    assert told(step, pa.edit(step, set="publish.*", why="because")) == set()


def test_folding_loses_no_event() -> None:
    every = difference(pa.derive(pa.zero3() * pa.tp_sp(), pa.gpt()), pa.derive(pa.zero1() * pa.tp_sp(), pa.gpt()))
    counts = [int(head.rpartition(" … ")[2].split()[0]) if " … " in head else 1 for _, head, _ in folded(every)]
    assert sum(counts) == len(every) > len(counts)


def test_the_document_tells_the_same_both_ways(placealg: Run) -> None:
    there, back = (json.loads(placealg("diff", *pair, "--format", "json").out) for pair in (
        ("zero2", "hsdp"), ("hsdp", "zero2")))
    assert [(c["quantity"], c["before"]) for c in there["costs"]] != []
    for key, inner in (("costs", "quantity"), ("placements", "subject"), ("verdicts", "subject")):
        assert {(e[inner], str(e["before"]), str(e["after"])) for e in there[key]} == {
            (e[inner], str(e["after"]), str(e["before"])) for e in back[key]}
    swapped = {LEFT: RIGHT, RIGHT: LEFT, MOVED: MOVED, CHANGED: CHANGED}
    assert {(e["kind"], e["path"]) for e in there["events"] if e["kind"] != MOVED} == {
        (swapped[e["kind"]], e["path"]) for e in back["events"] if e["kind"] != MOVED}


@pytest.mark.parametrize(("one", "two", "code"), [
    ("zero3", "fsdp", 0), ("zero3", "zero3[8]", 1), ("dp[8]", "dp[4]", 1), ("zero1", "zero2", 1)])
def test_exit_codes_are_those_of_diff(one: str, two: str, code: int, placealg: Run) -> None:
    got = placealg("diff", one, two)
    assert (got.code, got.err) == (code, "")
    assert ("no difference in placements" in got.out) == (code == 0)


@pytest.mark.parametrize(("words", "says"), [
    (["zero1"], "missing B"), (["zero1", "zero4"], "did you mean"),
    (["zero1", "zero2", "zero3"], "unexpected argument"),
    (["zero1", "zero2", "--format", "latex"], "unknown --format value"),
])
def test_bad_words_are_one_line(words: list[str], says: str, placealg: Run) -> None:
    got = placealg("diff", *words)
    assert (got.code, got.out, got.err.count("\n")) == (2, "", 1)
    assert says in got.err


def test_two_models_are_not_compared(tmp_path: Path, placealg: Run) -> None:
    for name in ("gpt", "moe"):
        (tmp_path / f"{name}.toml").write_text(f'name = "{name}"\nmodel = "{name}"\nbase = "tp"\n')
    for verb in ("diff", "compare", "reshard"):
        got = placealg(verb, str(tmp_path / "gpt.toml"), str(tmp_path / "moe.toml"))
        assert (got.code, got.out, got.err.count("\n")) == (2, "", 1)
        assert "gpt.toml names gpt, " in got.err and got.err.endswith("moe: name one model with --model\n")


@pytest.mark.parametrize("turned", [False, True])
def test_what_stands_beside_a_file_that_names_a_model_stands_on_it(turned: bool, tmp_path: Path, placealg: Run) -> None:
    (tmp_path / "own.toml").write_text('base = "zero1"\nmodel = "mlp"\n')
    words = [str(tmp_path / "own.toml"), "dp"][::-1 if turned else 1]
    assert " on mlp" in placealg("compare", *words).out.splitlines()[0]
    assert " on mlp" in placealg("diff", *words).out.splitlines()[0]


def test_markdown_escapes_what_users_name(tmp_path: Path, placealg: Run) -> None:
    path = tmp_path / "a.toml"
    path.write_text('name = "a|b <b> *c*"\nbase = "zero1"\n[[edit]]\ndrop = "publish.*"\n')
    out = placealg("diff", "zero1", str(path), "--format", "markdown").out
    assert r"a\|b \<b\> \*c\*" in out and "a|b" not in out


PROVED = command._proved


def killed_elsewhere(case: CommandCase) -> Report:
    """The proof, and in a process that works for the command its end, as out of memory."""
    if multiprocessing.parent_process() is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    return PROVED(case)


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="both sides are worked out here")
def test_without_the_process_that_worked_out_a_side_there_is_no_verdict(placealg: Run,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_proved", killed_elsewhere)
    found = placealg("diff", "dp", "zero1")
    assert (found.code, found.out) == (3, "")
    assert found.err == "placealg: UNDECIDED: a process that worked for the command was ended (out of memory?)\n"
