"""Stages of a pipeline that were recorded, held against its program, without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from placealg.cases.case import read_case
from placealg.errors import InputError
from placealg.watch.conform import Comparison
from placealg.watch.conformance import judge_proposed, nearest
from placealg.watch.seen import Message, Seen
from placealg.watch.verdict import CONFORMS

HERE = Path(__file__).parent
MODEL = str(HERE / "gpt_tied.json")


@cache
def tied() -> Seen:
    return Seen.read((HERE / "recordings" / "tied.json").read_text())


@cache
def case_of(strategy: str) -> Any:
    return read_case(strategy, MODEL, ())


def held(seen: Seen, strategy: str = "pp_1f1b") -> Comparison:
    case = case_of(strategy)
    return nearest(case.strategy, case.model, seen, (), None)[0]


def on(rank: int, change: Callable[[Message], Message | None]) -> Seen:
    """The recording with the messages of a rank changed, or left out."""
    seen = tied()
    own = tuple(new for m in seen.ranks[rank].messages if (new := change(m)) is not None)
    changed = replace(seen.ranks[rank], messages=own)
    return replace(seen, ranks=tuple(changed if r.rank == rank else r for r in seen.ranks))


def test_stages_with_a_tied_embedding_conform() -> None:
    found = held(tied())
    assert found.matched and found.loss_seen and found.tally.paths == 37 and found.tally.messages == 18


def test_what_they_are_of_is_read_off_them() -> None:
    told = judge_proposed(case_of("pp_1f1b").model, tied())
    assert told.verdict == CONFORMS and told.strategy == "pp_1f1b"
    assert told.rests == ("pp: its ranks have other layers",)


def test_the_order_is_compared() -> None:
    says = [d.says for d in held(tied(), "pp_gpipe").differences]
    assert says == ["stage 0 runs 2 forwards before its first backward; in the order gpipe it runs 4"]


@pytest.mark.parametrize(("rank", "verb"), [(0, "send"), (0, "recv"), (1, "send"), (1, "recv")])
def test_a_message_that_is_missing_is_found(rank: int, verb: str) -> None:
    last = max(m.index for m in tied().ranks[rank].messages if m.verb == verb)
    found = held(on(rank, lambda m: None if m.index == last else m))
    assert any(f"stage {rank} has 3 messages" in d.says for d in found.differences)


def test_a_message_to_another_rank_is_found() -> None:
    found = held(on(0, lambda m: replace(m, root=0) if m.verb == "send" else m))
    assert any("no neighbour" in d.says for d in found.differences)


def test_of_a_stage_that_was_not_recorded_nothing_is_claimed() -> None:
    found = held(replace(tied(), ranks=tied().ranks[:1]))
    assert "the stages that were not recorded" in {u.what for u in found.unseen} and not found.matched


def test_a_tied_weight_that_is_not_reduced_is_found() -> None:
    seen = tied()
    ranks = tuple(replace(r, chains=tuple(
        replace(c, terms=tuple(replace(t, hops=()) for t in c.terms)) for c in r.chains)) for r in seen.ranks)
    found = [d for d in held(replace(seen, ranks=ranks)).differences if d.kind == "axes"]
    assert found[0].says.endswith("its gradient is not reduced; the program reduces it over [pp]")
    assert found[0].edits == ({"drop": "reduce.embedding.weight.grad_sum.reduce[pp]"},)


def test_copies_of_a_tied_weight_that_start_apart_are_found() -> None:
    seen = tied()
    changed = replace(seen.ranks[1], chains=tuple(replace(c, start="other") for c in seen.ranks[1].chains))
    found = held(replace(seen, ranks=(seen.ranks[0], changed), lifted=None))
    assert [d.kind for d in found.differences] == ["replicas differ"]


def test_orders_whose_messages_tell_no_direction_are_refused() -> None:
    with pytest.raises(InputError, match="stages in the order 'interleaved' are not held"):
        held(tied(), "pp_interleaved")
