"""The report: a page that asks for nothing, escapes what users name, and computes in a browser what Python does."""

from __future__ import annotations

import json
import random
import re
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from html.parser import HTMLParser
from math import prod
from pathlib import Path

import browser
import pytest
from conftest import Outcome, run_placealg

import placealg as pa
from placealg.cli.readers import read_cases
from placealg.cli.report import told
from placealg.cost.formula import Formula
from placealg.cost.mathml import mathml
from placealg.mesh import SYMBOLS
from placealg.prover.evidence import certificate
from placealg.render.cost import value_of
from placealg.render.sliders import EXAMPLES, Told, sliders, spread

Run = Callable[..., Outcome]
SIDES = 2**60
"""Beyond what a double tells apart."""


def tell(*strategies: str, model: str | None = None, sizes: tuple[str, ...] = ()) -> list[Told]:
    words = Namespace(strategies=strategies, model=model, sizes=list(sizes), flash=None, dropout=None,
                      parallel=False, fused=True, mtp=False, upcast=False)
    return [told(case) for case in read_cases(words, on_one=True)]


class Page(HTMLParser):
    """The tags of a page with their attributes, the text outside scripts, and the scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        (self.scripts if self.inside == "script" else self.text).append(data)


HOSTILE = """</script><script>alert(1)</script><img src=x onerror=alert(2)>'"`&"""


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    path = tmp_path / "hostile.toml"
    path.write_text(f'name = {json.dumps(HOSTILE)}\nsource = {json.dumps(HOSTILE)}\nbase = "zero3"\n', encoding="utf-8")
    return path


def test_names_are_escaped_and_never_reach_the_script(hostile: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    got = run_placealg("report", str(hostile), "zero1", "-o", str(out))
    assert (got.code, got.out, got.err) == (0, "", "")
    page = Page(out.read_text(encoding="utf-8"))
    assert len(page.scripts) == 1 and "alert" not in page.scripts[0]
    assert not [tag for tag, _ in page.tags if tag in ("img", "iframe", "link", "object", "embed", "base", "form")]
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    assert HOSTILE in "".join(page.text)


def test_the_page_names_no_address_but_those_of_vocabularies(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert run_placealg("report", "zero3*tp_sp", "-o", str(out)).code == 0
    text = out.read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\b(src|href)=|@import|url\((?!#)", text)
    policy = next(attrs["content"] for tag, attrs in Page(text).tags if "http-equiv" in attrs)
    assert policy is not None and policy.startswith("default-src 'none'; ")


def test_the_exit_code_is_that_of_prove_and_the_page_is_written_all_the_same(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    wrong = "proofs/refuted/zero1_publish_dropped.toml"
    assert run_placealg("report", wrong, "-o", str(out)).code == run_placealg("prove", wrong).code == 0
    text = "".join(Page(out.read_text(encoding="utf-8")).text)
    assert "REFUTED" in text and "reads a stale or undefined copy in step 2" in text


def test_no_certificate_is_made_for_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(*_: object) -> None:
        raise AssertionError("the report makes a certificate")

    monkeypatch.setattr(certificate, "Query", made)
    assert run_placealg("report", "zero1", "-o", str(tmp_path / "report.html")).code == 0


@pytest.mark.parametrize(("words", "says"), [
    (["zero3"], "missing -o/--output"),
    (["-o", "x.html"], "missing STRATEGY"),
    (["zero3", "-o", "."], "is a folder"),
    (["zero3", "-o", "nowhere/x.html"], "its parent is no folder"),
    (["zero3", "-o", "x.html", "--rank", "stage=1"], "no pipeline axis"),
])
def test_bad_words_are_one_line(words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    got = run_placealg("report", *words)
    assert (got.code, got.out, got.err.count("\n")) == (2, "", 1)
    assert says in got.err
    assert not list(tmp_path.iterdir())


def test_sliders_start_where_the_command_line_says_and_say_where_else() -> None:
    free = {s.name: s for s in sliders(tell("zero3*tp_sp", model="llama-3-70b", sizes=("dp=48", "s=1000")))}
    assert {n: s.value for n, s in free.items() if not s.source} == {"dp": 48, "s": 1000}
    assert free["w"].source == free["m"].source == ", by default"
    assert free["b"].source == free["tp"].source == ", for example"
    assert not {"h", "Psi", "L"} & set(free)
    assert all(s.value in s.stops and list(s.stops) == sorted(set(s.stops)) for s in free.values())


def test_a_slider_starts_at_the_size_that_was_said() -> None:
    assert {s.name: (s.value, s.source) for s in sliders(tell("dp", sizes=("dp=8",)))}["dp"] == (8, "")


def test_every_size_has_an_example_to_start_from() -> None:
    assert [n for n, s in SYMBOLS.items() if s.assumption != "positive rational" and n not in EXAMPLES] == []


def test_a_pipeline_keeps_the_sizes_by_which_its_stage_was_chosen() -> None:
    one, = tell("pp*dp", model="gpt")
    free = {s.name: s for s in sliders([one])}
    assert free["pp"].least == 2 and "L/pp" in map(str, one.wholes())
    one, = tell("pp*dp", model="gpt", sizes=("pp=4",))
    assert "pp" not in {s.name for s in sliders([one])} and one.fixed()["pp"] == 4
    one, = tell("pp_interleaved*dp", model="llama-3.1-405b", sizes=("pp=4", "v=4", "m=8"))
    assert {"pp", "v", "m"} & {s.name for s in sliders([one])} == set()


@pytest.mark.parametrize(("strategy", "sizes", "drawn"), [
    ("zero3", ("dp=4",), "dp = 4"), ("zero3[512]", (), "dp = 8"),
    ("hsdp", ("dp_shard=16",), "dp_replicate = 2, dp_shard = 4"),
])
def test_a_large_mesh_is_drawn_small_and_says_so(strategy: str, sizes: tuple[str, ...], drawn: str,
                                                 tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert run_placealg("report", strategy, *(("--set", *sizes) if sizes else ()), "-o", str(out)).code == 0
    assert f"drawn for {drawn}<" in out.read_text(encoding="utf-8")


def test_a_formula_is_typeset_in_the_order_in_which_it_is_written() -> None:
    one, = tell("zero3*tp_sp*recompute_selective", model="moe")
    for formula in (f for f in one.figures().values() if f.expr is not None):
        typeset = "".join(re.sub(r"<[^>]*>", "", part) for part in mathml(formula))
        letters = re.compile(r"[^\w]|_")
        want = letters.sub("", formula.text().translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")))
        assert sorted(letters.sub("", typeset)) == sorted(want)


PAGES = {
    "abstract": (("dp", "zero1", "zero3", "hsdp"), None, ()),
    "llama": (("zero3*tp_sp", "zero1*tp_sp", "tp_sp[8]"), "llama-3-70b", ("dp=64", "tp=8", "b=1", "s=8192")),
    "gpt": (("zero3*tp_sp*recompute_selective", "tp_sp*dp", "hsdp*cp_ring"), "gpt", ()),
    "moe": (("dp*ep", "zero1*offload_optimizer"), "moe", ()),
    "pipeline": (("zero1*pp", "pp_interleaved*dp"), "gpt", ()),
}


@pytest.fixture(scope="module")
def chromium() -> Iterator[browser.Browser]:
    """The browser; where there is none nothing was checked, and that is no pass."""
    assert browser.found(), "there is no Chromium: apt-get install chromium"
    page = browser.Browser()
    yield page
    page.close()


def random_sizes(free: list[str], rng: random.Random) -> dict[str, Fraction]:
    """Sizes of every order, beyond what a double holds; bytes are fractions."""
    found = {}
    for name in free:
        if name in SYMBOLS and SYMBOLS[name].assumption == "positive rational":
            found[name] = Fraction(rng.randint(1, 40), rng.choice((1, 2, 3, 8)))
        else:
            found[name] = Fraction(rng.choice((rng.randint(2, 9), rng.randint(2, 5000), rng.randint(2, SIDES))))
    return found


def want(one: Told, sizes: Mapping[str, Fraction], more: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Every figure as Python has it, as the page writes exact values; `more` are axes whose devices another takes."""
    taken = {axis: sizes[axis] * prod(sizes[other] for other in others) for axis, others in more.items()}

    def text(formula: Formula) -> str:
        value = value_of(formula, {**sizes, **one.fixed(), **taken})
        return "" if value is None else str(value)
    return {name: text(formula) for name, formula in one.figures().items()}


MOVE = """(sizes => {
  for (const [name, text] of Object.entries(sizes)) {
    const field = document.querySelector(`[data-size="${name}"] [type=text]`);
    field.value = text;
    field.dispatchEvent(new Event("input"));
  }
})(%s)"""

READ = """Object.fromEntries([...document.querySelectorAll("[data-figure]")].map(place =>
  [`${place.closest("[data-strategy]").dataset.strategy} ${place.dataset.figure}`, place.dataset.exact]))"""


@pytest.mark.browser
@pytest.mark.parametrize("name", PAGES)
def test_sliders_give_exactly_what_the_formulas_give(name: str, chromium: browser.Browser, tmp_path: Path) -> None:
    strategies, model, sizes = PAGES[name]
    every = tell(*strategies, model=model, sizes=sizes)
    out = tmp_path / "report.html"
    words = [*strategies, *(("--model", model) if model else ()), *(("--set", *sizes) if sizes else ())]
    assert run_placealg("report", *words, "-o", str(out)).code == 0
    chromium.open(out)
    compared, wrong = held(chromium, every, random.Random(name))
    assert (compared > 12 * 8 * len(every), wrong) == (True, [])
    assert chromium.complaints() == []
    assert chromium.requests() == [out.resolve().as_uri()]


def held(chromium: browser.Browser, every: list[Told], rng: random.Random) -> tuple[int, list[str]]:
    """How many values were compared at the start and at random sizes, and the figures that differ."""
    free, compared, wrong = sliders(every), 0, set()
    for moved in ({s.name: s.value for s in free}, *(random_sizes([s.name for s in free], rng) for _ in range(12))):
        chromium.run(MOVE % json.dumps({n: str(v) for n, v in moved.items()}))
        shown = chromium.run(READ)
        for k, one in enumerate(every):
            for figure, exact in want(one, moved, spread(every)[k]).items():
                if f"{k} {figure}" in shown:
                    compared += 1
                    wrong |= {figure} if shown[f"{k} {figure}"] != exact else set()
    return compared, sorted(wrong)


ROUNDED = ("const add = (...terms) => "
           "[BigInt(Math.round(terms.reduce((sum, t) => sum + Number(t[0]) / Number(t[1]), 0))), 1n] ||")
"""A sum by doubles, of the same shape."""


@pytest.mark.browser
@pytest.mark.parametrize(("found", "instead", "figures"), [
    ('"memory.gradients": x => mul(', '"memory.gradients": x => mul(num(2n, 1n), ', ["memory.gradients"]),
    ("const add = (...terms) =>", ROUNDED, []),
], ids=["a factor", "doubles for fractions"])
def test_a_wrong_page_is_seen(found: str, instead: str, figures: list[str], chromium: browser.Browser,
                              tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert run_placealg("report", "zero1", "-o", str(out)).code == 0
    page = re.sub(r"<meta http-equiv[^>]*>", "", out.read_text(encoding="utf-8"))
    assert page.count(found) == 1
    out.write_text(page.replace(found, instead), encoding="utf-8")
    chromium.open(out)
    _, wrong = held(chromium, tell("zero1"), random.Random(1))
    assert wrong and figures in (wrong, [])


@pytest.mark.browser
def test_a_slider_moves_its_field_the_bars_and_the_numbers(chromium: browser.Browser, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert run_placealg("report", "dp", "zero3", "--set", "dp=8", "Psi=1000000000", "-o", str(out)).code == 0
    chromium.open(out)
    text = 'document.querySelector("[data-strategy=\'1\'] .name [data-figure]").textContent'
    width = 'document.querySelector("[data-strategy=\'1\'] [data-figure=\'memory.parameters\']").style.width'
    before = chromium.run(text), chromium.run(width)
    dp, = (s for s in sliders(tell("dp", "zero3", sizes=("dp=8",))) if s.name == "dp")
    at = dp.stops.index(Fraction(64))
    chromium.run(f"""(slider => {{ slider.value = {at}; slider.dispatchEvent(new Event("input")); }})(
        document.querySelector("[data-size=dp] [type=range]"))""")
    assert chromium.run('document.querySelector("[data-size=dp] [type=text]").value') == "64"
    assert before != (chromium.run(text), chromium.run(width))
    chromium.run(MOVE % '{"dp": "nonsense"}')
    assert chromium.run('document.querySelector("[data-size=dp] [type=text]").ariaInvalid') == "true"
    chromium.run(MOVE % '{"dp": "1/2"}')
    assert chromium.run('document.querySelector("[data-size=dp] [type=text]").ariaInvalid') == "true"
    chromium.run(MOVE % '{"dp": "3"}')
    assert chromium.run('document.querySelector("[data-size=dp] [type=text]").ariaInvalid') == "false"
    assert chromium.complaints() == []


@pytest.mark.browser
def test_devices_are_counted_and_meshes_that_differ_are_said(chromium: browser.Browser, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    words = ("report", "zero3", "hsdp", "--set", "dp=8", "dp_replicate=2", "dp_shard=4")
    assert run_placealg(*words, "-o", str(out)).code == 0
    chromium.open(out)
    counts = '[...document.querySelectorAll("[data-strategy] [data-devices]")].map(place => place.textContent)'
    differ = '!document.querySelector("[data-meshes]").hidden'
    assert (set(chromium.run(counts)), chromium.run(differ)) == ({"8 devices"}, False)
    chromium.run(MOVE % '{"dp": "16"}')
    assert (set(chromium.run(counts)), chromium.run(differ)) == ({"16 devices", "8 devices"}, True)
    assert chromium.complaints() == []


@pytest.mark.browser
def test_a_device_s_memory_is_a_line_and_sizes_stay_in_the_address(chromium: browser.Browser, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert run_placealg("report", "zero1", "-o", str(out)).code == 0
    chromium.open(out)
    over = 'document.querySelectorAll(".row.over").length'
    typed = """(text => { const field = document.getElementById("device-memory");
        field.value = text; field.dispatchEvent(new Event("input")); })('%s')"""
    for text, rows in (("1", 1), ("1000000", 0), ("nonsense", 0), ("", 0)):
        chromium.run(typed % text)
        assert chromium.run(over) == rows, text
    chromium.run(typed % "80")
    chromium.run(MOVE % '{"dp": "64"}')
    told = chromium.run("""new Promise(told => { const look = () => location.hash ? told(location.hash)
        : setTimeout(look, 50); look(); })""")
    assert {"dp=64", "memory=80"} <= set(told.lstrip("#").split("&"))
    valuetext = 'document.querySelector("[data-size=dp] [type=range]").ariaValueText'
    assert chromium.run(valuetext) == "dp = 64"
    chromium.open(out, "#dp=32&memory=1&Psi=nonsense")
    assert chromium.run('document.querySelector("[data-size=dp] [type=text]").value') == "32"
    assert (chromium.run(valuetext), chromium.run(over)) == ("dp = 32", 1)
    assert chromium.complaints() == []


@pytest.mark.browser
def test_placements_follow_the_sliders_where_they_are_small(chromium: browser.Browser, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert run_placealg("report", "zero3", "-o", str(out)).code == 0
    chromium.open(out)
    drawn = """[...document.querySelectorAll("[data-drawn]")].filter(place => !place.hidden)
        .map(place => place.dataset.drawn)"""
    note = '!document.querySelector("[data-elsewhere]").hidden'
    for size, there, elsewhere in ((4, 4, False), (16, 16, False), (512, 8, True)):
        chromium.run(MOVE % json.dumps({"dp": str(size)}))
        assert (chromium.run(drawn), chromium.run(note)) == ([json.dumps({"dp": there})], elsewhere)


WIDER = """[...document.querySelectorAll("main *")].filter(place => !place.closest(".scroll") &&
  place.getClientRects().length && place.getBoundingClientRect().right >
  place.parentElement.getBoundingClientRect().right + 1).map(place => place.outerHTML.slice(0, 80))"""
"""What reaches beyond its parent, but for what scrolls."""

SMALL = """[...document.querySelectorAll("main *")].filter(place => place.getClientRects().length &&
  [...place.childNodes].some(child => child.nodeType === 3 && child.data.trim())).map(place =>
  [parseFloat(getComputedStyle(place).fontSize) * (place.closest(".scroll > svg") ?
   parseFloat(getComputedStyle(place.closest(".scroll > svg")).zoom) : 1), place.outerHTML.slice(0, 80)])
  .filter(([size]) => size < 12 - 1e-6)"""
"""Text of fewer than 12 pixels."""


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 768, 1280])
def test_nothing_is_wider_than_its_parent_nor_too_small_to_read(width: int, chromium: browser.Browser,
                                                                tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert run_placealg("report", "zero3", "hsdp", "zero1", "-o", str(out)).code == 0
    chromium.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
    chromium.open(out)
    assert chromium.run("innerWidth") == width
    assert chromium.run("document.documentElement.scrollWidth") <= width
    assert (chromium.run(WIDER), chromium.run(SMALL)) == ([], [])
    chromium.ask("Emulation.clearDeviceMetricsOverride")


OUTSIDE = """(() => {
  const page = document.querySelector("svg"), whole = page.getBoundingClientRect();
  return [...page.querySelectorAll("*")].filter(part => part.getClientRects && part.getClientRects().length &&
    !part.closest("defs")).filter(part => { const box = part.getBoundingClientRect();
    return box.left < whole.left - 1 || box.top < whole.top - 1 || box.right > whole.right + 1 ||
      box.bottom > whole.bottom + 1; })
    .map(part => part.outerHTML.slice(0, 80));
})()"""
"""The parts of a drawing that reach beyond it."""


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 768, 1280])
@pytest.mark.parametrize("drawn", [("zero3*tp_sp", {"dp": 2, "tp": 4}), ("hsdp*offload_optimizer", {}), ("step", {})])
def test_a_drawing_stays_inside_itself_and_its_page(drawn: tuple[str, dict[str, int]], width: int,
                                                    chromium: browser.Browser, tmp_path: Path) -> None:
    """On its own, and shrunk to a page as wide as the screen."""
    name, sizes = drawn
    picture = pa.draw(pa.derive(pa.zero3(), pa.gpt())) if name == "step" else pa.draw(name, **sizes)
    picture.save(tmp_path / "drawing.svg")
    page = tmp_path / "page.html"
    page.write_text("<!doctype html><meta name=viewport content='width=device-width'><body style='margin:0'>"
                    f"<style>svg {{ max-width: 100%; height: auto }}</style>{picture}", encoding="utf-8")
    chromium.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
    for place in (tmp_path / "drawing.svg", page):
        chromium.open(place)
        assert chromium.run(OUTSIDE) == []
    assert chromium.run("document.documentElement.scrollWidth") <= width
    chromium.ask("Emulation.clearDeviceMetricsOverride")


@pytest.mark.browser
def test_sizes_that_do_not_divide_are_said(chromium: browser.Browser, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert run_placealg("report", "tp_sp", "--model", "gpt", "--set", "tp=4", "-o", str(out)).code == 0
    chromium.open(out)
    said = 'document.querySelector("[data-broken]").hidden'
    assert chromium.run(said) is True
    chromium.run(MOVE % '{"tp": "3"}')
    assert chromium.run(said) is False
    assert "a/tp is not whole" in chromium.run('document.querySelector("[data-broken]").textContent')


@pytest.mark.browser
def test_a_hostile_name_runs_nothing(hostile: Path, chromium: browser.Browser, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert run_placealg("report", str(hostile), "-o", str(out)).code == 0
    chromium.open(out)
    assert chromium.run("document.images.length + document.scripts.length") == 1
    assert "alert(1)" in chromium.run("document.querySelector('h1').textContent")
    assert chromium.complaints() == []
    assert not [e for e in chromium.events if e["method"] == "Page.javascriptDialogOpening"]


@pytest.mark.browser
def test_the_watch_sees_a_request_a_complaint_and_a_foreign_script(chromium: browser.Browser, tmp_path: Path) -> None:
    """What the other tests find absent is seen where it is present; and the page's policy stops it."""
    out = tmp_path / "report.html"
    assert run_placealg("report", "dp", "-o", str(out)).code == 0
    page = out.read_text(encoding="utf-8")
    bad = page.replace("</main>", '<script>window.ran = 1</script><img src="elsewhere.png"></main>')
    out.write_text(bad, encoding="utf-8")
    chromium.open(out)
    assert chromium.run("window.ran") is None
    assert len(chromium.complaints()) >= 2
    free = re.sub(r"<meta http-equiv[^>]*>", "", bad)
    out.write_text(free, encoding="utf-8")
    chromium.open(out)
    assert chromium.run("window.ran") == 1
    assert any("elsewhere.png" in url for url in chromium.requests())
