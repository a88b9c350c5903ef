"""A strategy read off a recording: what is proposed, what it rests on, and that it is held against the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Outcome

from placealg.errors import InputError
from placealg.models.config import resolve_model
from placealg.step.edit import read_edits
from placealg.strategy.file import parse_strategy_file
from placealg.watch.conformance import judge, judge_proposed
from placealg.watch.names import names_of
from placealg.watch.propose import _tensor, proposals
from placealg.watch.seen import Message, RankSeen, Seen
from placealg.watch.verdict import CONFORMS, DIFFERS

FOLDER = Path(__file__).parent / "recordings"
GPT = "proofs/torch/gpt.json"
Run = Callable[..., Outcome]


def seen_in(file: str) -> Seen:
    return Seen.read((FOLDER / f"{file}.json").read_text())


@pytest.mark.parametrize(("file", "name", "rests"), [
    ("by_hand", "dp", "dp: parameters are whole along it, and their gradients are reduced over it by all_reduce"),
    ("fsdp2", "zero3", "dp: the weights of 37 parameters are gathered over it in forward, and again in backward, and "
                       "gradients are reduced over it by reduce_scatter"),
    ("tp_sp", "tp_sp_keep", "tp: embedding.weight and 21 more are split by heads, ffn, vocab; activations between them "
                            "are scattered along seq, and what is gathered is kept for backward"),
    pytest.param("zero1", "proposed", "dp: the new values of 37 parameters come over it, and gradients are whole",
                 marks=pytest.mark.slow),
])
def test_what_a_run_is_of_is_read_off_it(file: str, name: str, rests: str) -> None:
    told = judge_proposed(resolve_model(GPT), seen_in(file))
    assert told.verdict == CONFORMS and told.good
    assert told.strategy == name and told.rests[0] == rests


@pytest.mark.slow
def test_what_is_proposed_reads_back_and_conforms() -> None:
    model, seen = resolve_model(GPT), seen_in("zero1")
    told = judge_proposed(model, seen)
    read = parse_strategy_file(told.proposed)
    step = told.comparison.step
    again = judge(read.strategy, model, seen, read_edits(read.edits, step.reference))
    assert again.verdict == CONFORMS and again.digest == told.digest


@pytest.mark.slow
def test_a_fault_does_not_become_a_strategy() -> None:
    """Norms whose gradients are not reduced: what is proposed is right, and the run is held against it."""
    told = judge_proposed(resolve_model(GPT), seen_in("norm_apart"))
    assert told.verdict == DIFFERS and told.strategy == "tp_sp_keep"
    assert told.edited is not None and told.edited.counterexample is not None
    assert told.edited.counterexample.mass == "1/tp"


def with_messages(seen: Seen, change: Callable[[Message], Message | None]) -> Seen:
    def of(rank: RankSeen) -> RankSeen:
        return replace(rank, messages=tuple(new for m in rank.messages if (new := change(m)) is not None))
    return replace(seen, ranks=tuple(map(of, seen.ranks)))


def entries(seen: Seen) -> list[Any]:
    every = [p.tables for p in proposals(seen, resolve_model(GPT))]
    return [(t["dims"], t["states"], t.get("schedule")) for t in every]


def test_what_is_gathered_once_is_kept() -> None:
    once = with_messages(seen_in("fsdp2"), lambda m: m if m.phase != "backward" or m.verb != "all_gather" else None)
    (_, states, schedule), = entries(once)
    assert schedule == {"lifetime": {"dp": "microbatch"}} and states["parameters"] == {"dp": "S*"}


def test_sequence_parallelism_is_told_by_what_is_scattered() -> None:
    plain = with_messages(seen_in("tp_sp"), lambda m: m if m.carries else replace(m, verb="all_reduce"))
    assert [d["tp"] for d, _, _ in entries(plain)] == [["heads", "ffn", "vocab"]] * 2
    kept, anew = entries(seen_in("tp_sp"))
    assert kept[1] == {"activations": {"tp": "R"}} and anew[1] == {"activations": {"tp": "S*"}}


def test_one_rank_has_no_strategy() -> None:
    seen = seen_in("by_hand")
    with pytest.raises(InputError, match="one rank"):
        next(proposals(replace(seen, mesh={"dp": 1}), resolve_model(GPT)))


def test_the_command_proposes_where_no_strategy_is_named(placealg: Run) -> None:
    got = placealg("conform", str(FOLDER / "zero1.json"), "--model", GPT)
    assert got.code == 0 and "RUNS AS proposed on gpt  CONFORMS" in got.out and "[[edit]]" in got.out
    assert "no strategy was given; this one was read off the run" in got.out


@pytest.mark.parametrize(("words", "says"), [
    (("watch", "zero3", "--mesh", "dp=2"), "what is run stands behind --"),
    (("watch", "--mesh", "dp=2", "zero9", "--", "train.py"), "unknown strategy 'zero9'"),
    (("watch", "--mesh", "dp=2", "--model", "nomodel", "--", "train.py"), "no shipped model 'nomodel'"),
    (("conform", "none.json"), "cannot read it"),
])
def test_bad_words_are_one_line(words: tuple[str, ...], says: str, placealg: Run) -> None:
    got = placealg(*words)
    assert got.code == 2 and says in got.err and got.err.count("\n") == 1


def test_groups_of_heads_are_heads_and_gathered_logits_are_proposed() -> None:
    model = resolve_model("llama-3-8b")
    split = names_of(["model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.up_proj.weight"], model)
    gathered = Message(0, "forward", "all_gather", "", ("tp",), 64, "float32", module="lm_head")
    assert [k.dims for k in _tensor("tp", split, model, [gathered])] == 2 * [("head.loss.none", "heads", "ffn")] + 2 * [
        ("heads", "ffn")]
    assert next(_tensor("tp", split, model, [])).dims == ("heads", "ffn")
