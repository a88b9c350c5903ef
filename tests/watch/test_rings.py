"""Hops of a ring, held against the turns that the program says, without torch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from placealg.cases.case import read_case
from placealg.watch.differences import Tally
from placealg.watch.expected import Expected
from placealg.watch.rings import turns
from placealg.watch.seen import Message, RankSeen, Seen

RANKS = 4


def held(sends: int, recvs: int, phase: str = "backward", root: int = 1, more: tuple[Message, ...] = ()
         ) -> tuple[list[str], Tally]:
    """What is said of so many hops of rank 0, which sends to `root`; its turns of one layer."""
    step = read_case("cp_ring", "proofs/torch/gpt.json", ()).step
    want = [Expected("layer", 0, "shift", ("cp",), e) for e in step.events if e.verb == "shift" and e.phase == phase]
    ranks = tuple(RankSeen(k, {"cp": k}, (), (), ()) for k in range(RANKS))
    one = Message(0, phase, "send", "", ("cp",), 4, "float32", root=root)
    got = [one] * sends + [replace(one, verb="recv", root=RANKS - 1)] * recvs + list(more)
    tally = Tally()
    said = [d.says for d in turns(Seen({"cp": RANKS}, ranks, "gloo", ""), ranks[0], got, want, "layer 0", tally)]
    return said, tally


@pytest.mark.parametrize(("phase", "hops"), [("forward", 6), ("backward", 12)])
def test_each_turn_sends_and_gets_once(phase: str, hops: int) -> None:
    said, tally = held(hops, hops, phase)
    assert not said and tally.messages == 2 * hops and not tally.legal


def test_a_sum_may_go_home_in_one_turn_more() -> None:
    said, tally = held(14, 14)
    assert not said and "one turn more" in next(iter(tally.legal.values()))


@pytest.mark.parametrize(("sends", "recvs", "phase"), [(11, 12, "backward"), (12, 0, "backward"), (16, 16, "backward"),
                                                       (7, 7, "forward"), (0, 0, "forward")])
def test_other_counts_are_found(sends: int, recvs: int, phase: str) -> None:
    assert held(sends, recvs, phase)[0]


def test_hops_past_the_neighbour_are_found() -> None:
    assert "a ring goes one way" in held(12, 12, root=2)[0][0]


def test_a_message_along_another_axis_is_found() -> None:
    other = Message(0, "backward", "send", "", ("tp",), 4, "float32")
    assert held(12, 12, more=(other,))[0] == ["layer 0: send[tp], which the program lacks"]
