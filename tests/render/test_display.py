"""Pictures and pages: well-formed, complete, escaped, and true to what they draw."""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from conftest import ROOT, Outcome

import placealg as pa
from placealg.render.mesh_drawing import HELD, drawn_sizes, held
from placealg.render.mesh_exchanges import draw_moves, moved
from placealg.render.notebook import html
from placealg.render.step_lanes import MESSAGES, beside, lane
from placealg.render.svg import PALETTE, clipped, written
from placealg.step.program import STEP_PHASES, Step
from placealg.step.verbs import VERBS

SVG = "{http://www.w3.org/2000/svg}"
GOLDEN = ROOT / "tests" / "golden"
PROGRAMS = [("zero3", "abstract"), ("zero1*offload_optimizer", "abstract"), ("zero3*tp_sp*recompute_selective", "gpt"),
            ("dp*ep*pp", "moe"), ("hsdp*cp_ring", "gpt"), ("zero2*cp_ulysses", "gpt")]


def program(strategy: str, model: str) -> Step:
    return pa.derive(pa.parse_strategy(strategy), getattr(pa, model)())


def titles(svg: str) -> list[str]:
    return [title.text or "" for title in ET.fromstring(svg).iter(f"{SVG}title")]


@pytest.mark.parametrize(("strategy", "model"), PROGRAMS)
def test_a_drawn_program_tells_every_event_and_reason_once(strategy: str, model: str) -> None:
    step = program(strategy, model)
    told = [line for title in titles(str(pa.draw(step))) for line in title.splitlines()]
    assert sorted(line for line in told if line in {e.path for e in step.events}) == sorted(e.path for e in step.events)
    assert {step.why(e) for e in step.events} <= set(told)


@pytest.mark.parametrize(("strategy", "model"), PROGRAMS)
def test_a_drawn_program_stays_inside_its_page(strategy: str, model: str) -> None:
    root = ET.fromstring(str(pa.draw(program(strategy, model))))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for shape in root.iter(f"{SVG}rect"):
        assert float(shape.get("x", 0)) + float(shape.attrib["width"]) <= width
        assert float(shape.get("y", 0)) + float(shape.attrib["height"]) <= height
    for text in root.iter(f"{SVG}text"):
        assert 0 <= float(text.attrib["x"]) < width
        assert 0 <= float(text.attrib["y"]) < height


def test_rows_of_a_lane_never_share_a_line_and_keep_their_order() -> None:
    step = program("zero3*tp_sp", "gpt")
    down, up = beside(lane(step, "forward"), lane(step, "backward"))
    for rows in (down, up):
        assert [row.y for row in rows] == sorted({row.y for row in rows})
    assert [e.path for row in down for e in row.events] == [e.path for e in step.phase("forward")]
    drawn = [e.path for row in reversed(up) for e in row.events]
    assert sorted(drawn) == sorted(e.path for e in step.phase("backward"))
    assert drawn[0] == step.phase("backward")[0].path


def test_a_redistribution_stands_beside_its_dual() -> None:
    """The backward of an all_gather to [R] is a reduce_scatter, of a reduce_scatter an all_gather."""
    step = program("zero3*tp_sp", "gpt")
    down, up = beside(lane(step, "forward"), lane(step, "backward"))
    at = {row.y: row.events[0] for row in up if row.events}
    duals = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}
    pairs = [(row.events[0], at[row.y]) for row in down if row.events and row.events[0].verb in duals]
    assert len(pairs) == 6
    assert all(back.verb == duals[there.verb] and back.tensor == there.tensor for there, back in pairs)


def test_what_crosses_over_other_axes_has_another_colour() -> None:
    root = ET.fromstring(str(pa.draw(program("zero3*tp_sp", "gpt"))))
    colours = {}
    for row in root.iter(f"{SVG}g"):
        path = (row.findtext(f"{SVG}title") or "").splitlines()[0]
        axes = re.search(r"\[(.*)\]", path)
        fills = {p.attrib["fill"] for p in row.iter(f"{SVG}polygon")}
        if fills and axes:
            assert colours.setdefault(axes[1], fills) == fills
    assert len({fill for fills in colours.values() for fill in fills}) == len(colours) == 3
    assert len(set(PALETTE)) == len(PALETTE)


NASTY = "<script>alert(\"1\")</script>&'\x07"


def test_names_are_escaped_wherever_they_are_shown() -> None:
    strategy = replace(pa.zero3(), name=NASTY)
    step = pa.derive(strategy, pa.abstract())
    report = replace(pa.prove(pa.zero3(), pa.abstract()), strategy=NASTY, model=NASTY)
    pages = [strategy._repr_html_(), step._repr_html_(), report._repr_html_()]
    for drawn in (pa.draw(strategy), pa.draw(step)):
        assert NASTY.replace("\x07", "\ufffd") in "".join(ET.fromstring(str(drawn)).itertext())
    for page in pages:
        assert "<script" not in page
        assert "\x07" not in page
        assert "&lt;script&gt;" in page
        ET.fromstring(f"<page>{page}</page>")


def test_the_writer_leaves_no_bare_sign() -> None:
    assert written("a<b>&\"'\x00") == "a&lt;b&gt;&amp;&quot;&#x27;\ufffd"
    assert clipped("abcdefghij", 30) == "abc…"


@pytest.mark.parametrize("name", ["dp", "zero1", "zero3", "hsdp", "zero3*tp_sp", "pp*dp", "zero1*offload_optimizer"])
def test_what_is_drawn_at_rest_is_what_memory_counts(name: str) -> None:
    """The area that a device's square has filled is the part of the state that rests on the device."""
    strategy = pa.parse_strategy(name)
    sizes = drawn_sizes(strategy, {})
    for rank in strategy.mesh.ranks(sizes):
        for state in HELD:
            (rest,), (use,), tier = held(strategy, state, rank, sizes)
            area = (rest.bottom - rest.top) * (rest.right - rest.left)
            sharded = [sizes[a] for a in strategy.mesh.names if "S" in strategy.mode_text(state, a)]
            want = Fraction(1)
            for size in sharded:
                want /= size
            assert area == pytest.approx(float(want))
            assert use.top <= rest.top <= rest.bottom <= use.bottom
            assert tier == ("host" if "O" in strategy.mode_text(state, strategy.mesh.names[0]) else "device")


def test_together_the_devices_hold_every_part_once() -> None:
    strategy, sizes = pa.zero3() * pa.tp_sp(), {"dp": 4, "tp": 2}
    parts = [part for rank in strategy.mesh.ranks(sizes)
             for part in held(strategy, "parameters", rank, sizes)[0]]
    assert len(set(parts)) == 8
    assert sum((p.bottom - p.top) * (p.right - p.left) for p in parts) == pytest.approx(1)


@pytest.mark.parametrize(("strategy", "model"), PROGRAMS)
def test_what_moves_tells_every_collective_once_and_stays_inside_its_page(strategy: str, model: str) -> None:
    step = program(strategy, model)
    root = ET.fromstring(str(draw_moves(step)))
    told = moved(step)
    crossing = [e for e in step.phase(*STEP_PHASES) if e.axes and (VERBS[e.verb].collective or e.verb in MESSAGES)]
    assert {(axes, phase, verb) for axes, rows in told.items() for phase, verb, *_ in rows} == {
        (e.axes, e.phase, e.verb) for e in crossing}
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert [w for w in words if w and w.startswith("over ")] == [f"over {', '.join(axes)}" for axes in told]
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for shape in (*root.iter(f"{SVG}rect"), *root.iter(f"{SVG}text")):
        assert 0 <= float(shape.get("x", 0)) < width
        assert 0 <= float(shape.get("y", 0)) < height


def test_the_filled_devices_are_one_group() -> None:
    """Along tp of a mesh of 2 by 3 they are the three devices of the first row, numbered."""
    root = ET.fromstring(str(draw_moves(program("dp*tp", "gpt"), dp=2, tp=3)))
    tp, = (t for t in root.iter(f"{SVG}text") if t.text == "over tp")
    colour = tp.attrib["fill"]
    filled = [r for r in root.iter(f"{SVG}rect") if r.attrib["fill"] == colour]
    assert len(filled) == 3 and len({r.attrib["y"] for r in filled}) == 1 and len({r.attrib["x"] for r in filled}) == 3


def test_sizes_of_a_drawing() -> None:
    assert drawn_sizes(pa.parse_strategy("hsdp*tp_sp"), {}) == {"dp_replicate": 2, "dp_shard": 2, "tp": 2}
    assert drawn_sizes(pa.parse_strategy("dp[3]*tp_sp"), {"tp": 5}) == {"dp": 3, "tp": 5}
    with pytest.raises(pa.InputError, match="no axis 'dq'"):
        pa.draw(pa.zero3(), dq=8)
    with pytest.raises(pa.InputError, match="too many to draw"):
        pa.draw(pa.zero3(), dp=512)
    with pytest.raises(pa.InputError, match="for all sizes"):
        pa.draw(pa.derive(pa.zero3(), pa.abstract()), dp=8)
    assert "too many to draw" in pa.zero3(dp=512)._repr_html_()


def test_every_value_of_a_notebook_shows_itself() -> None:
    strategy, model = pa.zero1(), pa.abstract()
    step = pa.edit(pa.derive(strategy, model), drop="publish.*")
    report = pa.prove(step)
    for page in (strategy, step, report, report.counterexample, pa.memory(strategy, model),
                 pa.communication(strategy, model)):
        ET.fromstring(f"<page>{page._repr_html_()}</page>")
    assert "REFUTED" in report._repr_html_()
    assert report.counterexample.explanation in report._repr_html_()
    assert all(formula.text() in pa.memory(strategy, model)._repr_html_() for formula in (
        pa.memory(strategy, model).states, pa.memory(strategy, model).total))
    assert pa.draw(step)._repr_svg_().startswith("<svg")
    with pytest.raises(TypeError):
        html("a text")


def test_a_program_is_proved_and_run_as_a_strategy_is() -> None:
    model = pa.abstract()
    step = pa.derive(pa.zero1(), model)
    wrong = pa.edit(step, drop="publish.*")
    assert pa.prove(step).to_json(timing=False) == pa.prove(pa.zero1(), model).to_json(timing=False)
    assert pa.prove(wrong, base=step).counterexample.repair is not None
    setting = pa.Setting.equal(step.reference, {"dp": 2}, 1)
    assert pa.simulate(step, setting=setting).equal
    assert not pa.simulate(wrong, setting=setting).equal
    for call in (lambda: pa.prove(step, model), lambda: pa.prove(pa.zero1())):
        with pytest.raises(pa.InputError, match="model"):
            call()


def test_show_writes_a_drawing(placealg: Callable[..., Outcome], tmp_path: Path) -> None:
    path = tmp_path / "out.svg"
    got = placealg("show", "zero1", "--graph", str(path), "--write-program", str(tmp_path / "out.toml"))
    assert (got.code, got.out, got.err) == (0, "", "")
    assert path.read_text(encoding="utf-8") == str(pa.draw(pa.derive(pa.zero1(), pa.abstract())))
    assert (tmp_path / "out.toml").exists()
    assert placealg("show", "zero1", "--graph", str(tmp_path / "nowhere" / "out.svg")).code == 2


def test_the_picture_of_the_front_page_is_drawn_from_the_strategy() -> None:
    same_or_written(ROOT / "pictures" / "zero3_tp_sp.svg", str(pa.draw(pa.zero3() * pa.tp_sp(), dp=2, tp=4)))


def test_golden_drawings() -> None:
    same_or_written(GOLDEN / "placement_zero3.svg", str(pa.draw(pa.zero3(), dp=2)))
    same_or_written(GOLDEN / "program_dp.svg", str(pa.draw(pa.derive(pa.dp(), pa.abstract()))))


def same_or_written(path: Path, drawn: str) -> None:
    if os.environ.get("PLACEALG_WRITE_GOLDEN"):
        path.write_text(drawn, encoding="utf-8")
    assert drawn == path.read_text(encoding="utf-8")
