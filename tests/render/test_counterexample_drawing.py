"""The drawing of a counterexample: a box per rank, the wrong ones marked, both sides' words and numbers."""

from __future__ import annotations

import re
from itertools import product
from math import prod
from xml.etree import ElementTree

from conftest import run_placealg
from hypothesis import example, given
from hypothesis import strategies as st

from placealg.cli.report import told
from placealg.prover.verdict import Counterexample
from placealg.render.counterexample_drawing import MOST, WRONG, draw_counterexample
from placealg.render.report import report

AXES = ("dp", "tp", "pp")


@st.composite
def counterexamples(draw: st.DrawFn) -> Counterexample:
    sizes = {axis: draw(st.integers(1, 6)) for axis in AXES[:draw(st.integers(0, 3))]}
    device = {axis: draw(st.integers(0, n - 1)) for axis, n in sizes.items() if draw(st.booleans())}
    return Counterexample("gradient", draw(st.sampled_from(("update.w.update", "<b>&" * 60))), "w",
                          (*sizes.items(), ("m", 1)), tuple(device.items()), "a token", "2 <", "1 &", None, "",
                          "about 1", "about 2")


@given(counterexamples())
@example(Counterexample("view", "e", "", (("m", 1),), (), "u", "g", "w", None, ""))
def test_every_rank_is_drawn_and_the_wrong_ones_are_marked(found: Counterexample) -> None:
    svg = ElementTree.fromstring(str(draw_counterexample(found)))
    boxes = [part for part in svg.iter("{http://www.w3.org/2000/svg}rect") if part.get("rx")]
    sizes = {axis: n for axis, n in found.sizes if axis != "m"}
    device = dict(found.device)
    ranks = [dict(zip(sizes, at, strict=True)) for at in product(*map(range, sizes.values()))]
    if prod(sizes.values()) > MOST:
        last = list(sizes)[-1]
        ranks = [r for r in ranks if all(r[a] == device.get(a, 0) for a in sizes if a != last)]
    wrong = [all(rank[axis] == at for axis, at in device.items()) for rank in ranks]
    assert [box.get("stroke") == WRONG for box in boxes] == wrong
    assert any(wrong)
    texts = " ".join(part.text or "" for part in svg.iter("{http://www.w3.org/2000/svg}text"))
    assert f"this rank: {found.got}" in texts and f"the single device: {found.want}" in texts
    width, height = float(svg.get("width", 0)), float(svg.get("height", 0))
    for box in boxes:
        assert float(box.get("x", 0)) + float(box.get("width", 0)) <= width
        assert float(box.get("y", 0)) + float(box.get("height", 0)) <= height


def test_a_page_without_a_verdict_has_all_but_it() -> None:
    from placealg.cases.case import read_case
    page = report([told(read_case("zero3", "gpt", ()))], {})
    parts = re.findall('data-part="([^"]*)"', page)
    assert parts == ["sizes", "charts", "placements", "what moves", "closed forms", "the step program",
                     "what the figures take for granted"]
    assert not re.search("PROVED|REFUTED|UNDECIDED|badge proved", page)


def test_a_refuted_strategy_has_its_counterexample_drawn(tmp_path) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "page.html"
    assert run_placealg("report", "zero1_publish_dropped", "-o", str(out)).code == 0
    assert "counterexample: invariant at dp = 2, m = 1" in out.read_text(encoding="utf-8")
