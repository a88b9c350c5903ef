"""The playground in a headless Chromium: it loads, prices, proves, refutes, repairs, stops, links, asks for no more.

It is built from the cache of downloads, or from the registries; where neither has them all, the tests are skipped.
"""

from __future__ import annotations

import functools
import json
import random
import re
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import browser
import pytest
from conftest import ROOT, run_placealg
from test_report import MOVE, WIDER

from placealg.cases.case import read_case
from placealg.cli.cache_folder import cache_folder
from placealg.cli.report import told
from placealg.errors import InputError
from placealg.playground.build import build

pytestmark = pytest.mark.browser

MISTAKES = sorted(p.stem for p in (ROOT / "proofs/refuted").glob("*.toml"))
OF_ONES_OWN = """# a file of one's own: a name with signs, an edit, a size
name = "zero2 of “mine” <b>"
base = "zero2"
[mesh]
dp = 4
[[edit]]
drop = "*.layer.weight.grad.reduce[dp]"
"""


class Served:
    """The folder behind an address of this machine; `asked` is every request, in order."""

    def __init__(self, folder: Path) -> None:
        asked = self.asked = list[str]()

        class Handler(SimpleHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                asked.append(self.path)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
        self.address = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    if not browser.found():
        pytest.skip("there is no Chromium")
    folder = tmp_path_factory.mktemp("site") / "playground"
    try:
        build(folder, cache_folder("playground"))
    except InputError as error:
        pytest.skip(f"the playground could not be built, and was not tested: {error}")
    found = Served(folder)
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture(scope="module")
def page(served: Served) -> Iterator[browser.Browser]:
    """The page, loaded, with the formulas of what it begins with."""
    made = browser.Browser()
    made.open(served.address)
    made.wait(PRICED)
    yield made
    made.close()


PRICED = "playground.settled()"
VERDICT = "document.querySelector('#verdict .big')?.textContent"
ERROR = "document.getElementById('error').textContent"
FRAME = "document.getElementById('page').contentDocument"


def put(page: browser.Browser, text: str) -> None:
    """Write a strategy, and wait until it is priced or complained of."""
    page.run(f"playground.put({json.dumps(text)})")
    page.wait(PRICED)


def prove(page: browser.Browser, text: str) -> str:
    """The verdict of a strategy."""
    put(page, text)
    page.run("document.getElementById('verdict').replaceChildren(); document.getElementById('prove').click()")
    page.wait("!playground.state.proving", 120)
    assert page.run(ERROR) == ""
    return str(page.run(VERDICT))


def move(page: browser.Browser, sizes: dict[str, str]) -> None:
    """Type sizes beside the sliders."""
    page.run((MOVE % json.dumps(sizes)).replace("document.", f"{FRAME}."))


def press(page: browser.Browser, words: str) -> None:
    page.run(f"""[...document.querySelectorAll('button')].find(one => one.textContent.startsWith('{words}')).click()""")


def test_it_proves_says_who_checked_it_and_asks_for_nothing_more(page: browser.Browser, served: Served) -> None:
    before = list(served.asked)
    assert not [path for path in before if not re.fullmatch(r"/[\w./-]*", path)]
    assert prove(page, "zero3") == "PROVED, PARAMETRIC"
    text = page.run("document.getElementById('verdict').textContent")
    assert "accepted: this program (sha256" in page.run("document.getElementById('kernel').textContent")
    assert "equal_counts over {dp, microbatch}" in text
    put(page, "zero3*tp_sp")
    assert page.run("document.getElementById('verdict').className") == "old"
    assert served.asked == before
    assert not [url for url in page.requests() if not url.startswith((served.address, "blob:", "data:", "about:"))]
    assert page.complaints() == []


@pytest.mark.parametrize("bug", ["zero1_publish_dropped", *random.Random(51).sample(MISTAKES, 1)])
def test_a_verdict_is_that_of_the_command_to_the_byte(bug: str, page: browser.Browser, tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    same(page, (ROOT / f"proofs/refuted/{bug}.toml").read_text(encoding="utf-8"), tmp_path, monkeypatch)


def test_a_verdict_on_a_file_of_ones_own_is_that_of_the_command(page: browser.Browser, tmp_path: Path,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    same(page, OF_ONES_OWN, tmp_path, monkeypatch)


def same(page: browser.Browser, text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the page says is what the command prints, to the byte."""
    prove(page, text)
    monkeypatch.chdir(folder)
    Path("strategy.toml").write_text(text, encoding="utf-8")
    printed = run_placealg("prove", "strategy.toml", "--format", "json", "--no-timing").out
    assert page.run("document.getElementById('document').textContent") == printed


def test_a_mistake_is_refuted_drawn_and_repaired(page: browser.Browser) -> None:
    page.run("""(menu => { menu.value = "bug:zero1_publish_dropped"; menu.dispatchEvent(new Event("change")); })(
        document.getElementById("example"))""")
    given = page.run("playground.text()")
    assert prove(page, given) == "REFUTED, BOUNDED"
    assert page.run("document.querySelector('#verdict .counterexample svg title').textContent") \
        == "counterexample: invariant at dp = 2, m = 1"
    assert "insert" not in page.run("document.querySelector('#verdict .counterexample').textContent")
    press(page, "Show a repair")
    page.run("document.getElementById('verdict').querySelector('.big').remove()")
    press(page, "Put it in")
    assert page.wait(VERDICT, 60) == "PROVED, PARAMETRIC"
    assert "Repaired" in page.run("document.getElementById('verdict').textContent")
    assert page.run("playground.text()").startswith(given)


def test_sliders_evaluate_the_formulas(page: browser.Browser) -> None:
    put(page, "zero3")
    move(page, {"dp": "64", "m": "3"})
    shown = {name: page.run(f"{FRAME}.querySelector('td[data-figure=\"{name}\"]').dataset.exact")
             for name in ("memory.total", "sent.total")}
    one = told(read_case("zero3", None, ("dp=64", "m=3", "Psi=7000000000", "Psi_unit=250000000")))
    sizes = {**one.sizes, **one.fixed()}
    for name, exact in shown.items():
        assert exact == str(one.figures()[name].value(**sizes)), name


@pytest.mark.parametrize(("text", "line", "says"), [
    ('base = "zero3"\nfoo = 3\n', 2, "unknown key 'foo'; did you mean"),
    ("zero4", 0, "unknown strategy 'zero4'; did you mean"),
    ('base = "zero3"\n[[edit]]\ndrop = "nothing.at.all"\n', 3, "nothing.at.all"), ("base = [", 1, ""),
    ("", 0, "nothing is written"),
])
def test_bad_input_is_one_line_at_its_place(page: browser.Browser, text: str, line: int, says: str) -> None:
    put(page, text)
    told = page.run(ERROR)
    assert says in told and "\n" not in told and "Traceback" not in told
    assert told.startswith(f"line {line}: ") == bool(line)
    assert page.run("document.querySelectorAll('.cm-lintRange-error').length") or not text
    put(page, "zero3")
    assert page.run("document.getElementById('error').hidden") is True


def test_names_keys_values_and_events_are_completed(page: browser.Browser) -> None:
    put(page, "zero3")
    for text, found in (("zer", "zero3"), ("[sch", "schedule"), ('base = "zero3"\n[schedule]\nsha', "sharing"),
                        ('base = "zero3"\n[schedule]\nsharing = "', "per_use"), ('base = "zero3*t', "tp_sp"),
                        ('model = "', "gpt"), ('base = "zero3"\n[[edit]]\ndr', "drop"),
                        ('base = "zero3"\n[[edit]]\ndrop = "', "update.rng.update")):
        labels = page.run(f"""import("./editor.js").then(({{ completions }}) => (completions({json.dumps(text)},
            {len(text)}, playground.state.words, playground.state.events)?.options || []).map(one => one.label))""")
        assert found in labels, text


def test_a_long_proof_leaves_the_page_free_and_is_stopped(page: browser.Browser, served: Served) -> None:
    before = list(served.asked)
    put(page, "zero3*tp_sp*pp_1f1b*cp_ring")
    page.run("document.getElementById('prove').click()")
    assert page.run("playground.state.proving")
    page.run("document.querySelector('[data-tab=placement]').click()")
    assert page.run(f"{FRAME}.querySelector('[data-part=placements]').hidden") is False
    press(page, "Stop")
    assert page.wait("playground.state.ready") and page.run(ERROR).startswith("stopped")
    page.run("document.querySelector('[data-tab=costs]').click()")
    assert prove(page, "dp") == "PROVED, PARAMETRIC"
    assert served.asked == before


def test_a_link_carries_text_model_and_sizes(page: browser.Browser) -> None:
    put(page, "# ü and “quotes”\nbase = \"zero3\"\n")
    page.run("""(menu => { menu.value = "gpt2"; menu.dispatchEvent(new Event("change")); })(
        document.getElementById("model"))""")
    page.wait(PRICED)
    move(page, {"dp": "32"})
    press(page, "Copy a link")
    address = page.wait("location.hash.includes('set=') && location.href")
    page.open(address)
    page.wait(PRICED)
    assert page.run("[playground.text(), document.getElementById('model').value]") \
        == ['# ü and “quotes”\nbase = "zero3"\n', "gpt2"]
    assert page.run(f"{FRAME}.querySelector('[data-size=dp] [type=text]').value") == "32"
    page.run("location.hash = '#text=nonsense'")
    assert page.wait("document.getElementById('verdict').textContent.includes('link is not whole')")


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen(page: browser.Browser, width: int) -> None:
    page.ask("Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=width < 600)
    if width < 600:
        assert prove(page, OF_ONES_OWN).startswith("REFUTED")
    for tab in ("costs", "placement", "program"):
        page.run(f"document.querySelector('[data-tab={tab}]').click(); new Promise(done => setTimeout(done, 200))")
        assert page.run("document.documentElement.scrollWidth") <= width
        assert page.run(f"{FRAME}.documentElement.scrollWidth") <= width
        assert page.run(WIDER.replace("main *", "header, section, nav, .buttons, .controls, #verdict p")) == []
    page.ask("Emulation.clearDeviceMetricsOverride")
