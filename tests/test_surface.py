"""The Python surface: lazy, complete, and the same functions as the rooms'."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

import placealg as pa


def test_importing_costs_nothing() -> None:
    code = "import sys, placealg\nprint([m for m in sys.modules if m.split('.')[0] in ('placealg', 'sympy', 'z3')])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['placealg']"


@pytest.mark.parametrize("name", pa.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(pa, name) is not None
    assert name in dir(pa)


def test_a_model_by_its_name() -> None:
    assert pa.model("gpt2").name == pa.Model.from_config("gpt2").name == "gpt2"


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="zero4"):
        pa.zero4  # noqa: B018


def test_rooms_that_are_functions_stay_rooms() -> None:
    import placealg.prover.verdict as verdict
    import placealg.simulator.run as run

    model = pa.Model.from_config("gpt2")
    strategy = pa.zero1(dp=2)
    assert isinstance(pa.prove(strategy, model), verdict.Report)
    step = pa.derive(strategy, model)
    assert isinstance(pa.simulate(strategy, model, pa.Setting.equal(step.reference, {"dp": 2}, 1)), run.Outcome)


def test_costs_are_those_of_the_derived_step() -> None:
    strategy, model = pa.hsdp() * pa.offload_optimizer(), pa.abstract()
    assert pa.memory(strategy, model).states.names
    assert pa.communication(strategy, model).total.unit == "bytes"
    with pytest.raises(pa.InputError):
        pa.dp() * pa.dp()


def test_a_strategy_shows_itself_in_a_notebook() -> None:
    shown = (pa.zero3() * pa.offload_optimizer())._repr_html_()
    assert ">S+O</td>" in shown
    assert ">S(batch)</td>" in shown
    assert "<svg" in shown


def test_every_function_takes_a_program_an_expression_and_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('base = "zero3"\n', encoding="utf-8")
    step = pa.derive(pa.zero3(), pa.abstract())
    for what in (step, "zero3", str(file), file):
        assert str(pa.memory(what).states) == "Ψ·(w + g + o)/dp bytes"
        assert pa.communication(what).total == pa.communication(step).total
        assert pa.compare(what, step).ratio("states").value() == 1
        assert pa.decide(what, step, "memory.peak ==").verdict == "PROVED"
        assert pa.prove(what).verdict == "PROVED"
        assert pa.simulate(what, setting=pa.Setting.equal(step.reference, {"dp": 2}, 1)).equal
    assert "over zero3" in repr(pa.compare("zero3", "dp")) and "<pre>" in pa.compare("zero3", "dp")._repr_html_()


def test_an_edited_program_has_costs() -> None:
    step = pa.derive(pa.zero3(), pa.abstract())
    freed = next(e.path for e in step.events if e.verb == "free")
    assert pa.memory(pa.edit(step, drop=freed)).states == pa.memory(step).states


@pytest.mark.parametrize(("run", "says"), [
    (lambda: pa.memory(pa.derive(pa.dp(), pa.abstract()), pa.abstract()), "of its own model"),
    (lambda: pa.memory(pa.dp()), "stands on a model"),
    (lambda: pa.memory(3), "an int is no strategy"),
    (lambda: pa.memory("zero4", "abstract"), "did you mean 'zero1'|zero4"),
    (lambda: pa.simulate("zero3"), "say setting="),
    (lambda: pa.compare(), "there is none"),
    (lambda: pa.memory("tp", "llama-3-8b").states.value(tp=3), "tp = 3 does not divide kv = 8"),
    (lambda: pa.memory("tp", "llama-3-8b").states.subs(tp=3), "tp = 3 does not divide kv = 8"),
    (lambda: pa.communication("tp", "llama-3-8b").total.value(tp=np.array([2, 3]), b=1, s=8), "tp = 3 does not divide"),
    (lambda: (pa.memory("tp", "llama-3-8b").states + pa.memory("dp", "llama-3-8b").states).value(tp=3, dp=2), "tp = 3"),
    (lambda: pa.compare("dp", "tp", model="llama-3-8b").ratio("states").value(tp=3), "tp = 3 does not divide"),
    (lambda: pa.memory("dp").states + 3, "no formula"),
    (lambda: pa.memory("dp").states.ratio("x"), "no formula"),
    (lambda: pa.memory("dp").states * "x", "no factor"),
    (lambda: pa.memory("dp").states.limit(3), "no name of a size"),
    (lambda: pa.memory("dp").states.per(3), "no name of a size"),
    (lambda: pa.memory("dp").states.value(dp="x"), "is not a number"),
    (lambda: pa.memory("dp").states.python("x y"), "no name of a function"),
    (lambda: pa.draw("dp", dp=2).save(3), "no path of a file"),
    (lambda: pa.model("gpt3"), "did you mean|valid"),
    *((lambda wrong=wrong: pa.search(**{"model": "gpt2", "devices": 4, "batch": 8, "machine": "h100", "s": 64,
                                        **wrong}), says) for wrong, says in (
        ({"devices": "x"}, "devices = 'x' is not a whole number"), ({"batch": "x"}, "a str is no number of sequences"),
        ({"batch": ()}, "no number of sequences"), ({"machine": 3}, "no name of a machine"),
        ({"model": 3}, "no name of a model"), ({"memory": 3}, "no amount of memory"), ({"only": 3}, "no list"),
        ({"space": 3}, "no name of a space"), ({"tp": 2}, "'tp' is no size of the model"),
        ({"top": 3}, "'top' is no size of the model"), ({"h": 5}, "h = 5 contradicts gpt2's h = 768"),
        ({"seq": 8}, "did you mean 's'"))),
    (lambda: pa.search("gpt2", 4, 8, "h100", only="zero1"), "gpt2 leaves s open: give s a number"),
    (lambda: pa.search("gpt2", 4, 8, "h100", only="zero1", s=64).front("memory"), "is one objective"),
    (lambda: pa.search("gpt2", 4, 8, "h100", only="zero1", s=64).front(("memory", "tme")), "unknown objective 'tme'"),
    (lambda: pa.fit("zero3", "llama-3-8b"), "device_memory='80GB'"),
    (lambda: pa.reshard("zero3", "zero1", tp_old=2), "zero3 has no axis 'tp'"),
    (lambda: pa.reshard("zero3", "zero1", dp_old=0, dp=3), "--set dp_old=0: dp_old = 0 is not a whole number"),
    (lambda: pa.reshard("zero3", pa.zero1()), "stands on a model"),
    (lambda: pa.reshard("zero3", "zero1", "gpt").reads(0), "needs all sizes of both meshes"),
    (lambda: pa.fit("zero3", "llama-3-8b", device_memory=None, dp=8), "None is not text such as"),
    (lambda: pa.memory("zero3", "gpt2").peak.value(dp=np.array(["a"]), s=8, b=1, m=1), "no array of sizes"),
    (lambda: pa.memory("zero3", "gpt2").peak.value(dp=np.array([1, 2]), s=np.array([1, 2, 3]), b=1), "not broadcast"),
    (lambda: pa.memory("zero3", "gpt2").peak.value(seq_len=3), "did you mean 's'"),
    (lambda: pa.gpt(3), "no Style"), (lambda: pa.graph(3), "no table of the sizes"),
    (lambda: pa.Setting.equal(3, {"dp": 2}, 2), "no reference"),
    (lambda: pa.Setting.unequal(pa.derive(pa.dp(), pa.abstract()).reference, {"dp": "x"}, 2), "'x' is not a whole"),
    (lambda: pa.compare("zero3", "dp").ratio(3), "no name of a quantity"),
    (lambda: pa.decide("zero3", "dp", "memory.total <=", where=3), "no condition"),
    (lambda: pa.Formula.parse(3, "bytes"), "no expression"),
    (lambda: pa.compare("tp", model="llama-3-8b", tp=3), "tp = 3 does not divide kv = 8"),
    (lambda: pa.fit("tp", "llama-3-8b", device_memory="80GB", tp=3, s=8), "tp = 3 does not divide kv = 8"),
    (lambda: pa.fit("zero3", "gpt2", device_memory=80, dp=8, s=8), "is not text such as '80GB'"),
    (lambda: pa.fit(pa.zero3(), device_memory="80GB"), "stands on a model"),
    (lambda: pa.fit("zero3", "gpt2", device_memory="80GB", by="all", dp=8), "unknown convention"),
    (lambda: pa.fit("zero3", "gpt2", device_memory="80GB", precision="fsdp3", dp=8, s=8), "did you mean 'fsdp2'"),
    (lambda: pa.fit("zero3", "gpt2", device_memory="80GB", precision=2, dp=8, s=8), "no precision"),
    (lambda: pa.fit("dp", "abstract", device_memory="80GB", loss="eager", dp=8, Psi=8, Psi_unit=8), "no cross entropy"),
    (lambda: pa.read(3), "no path of a file"),
    (lambda: pa.read("mine.toml"), "no such file"),
    (lambda: pa.read("proofs/proved/token_mean.toml", world_size=8), "belongs to a framework's configuration"),
    (lambda: pa.model(None), "no name of a model"),
    (lambda: pa.model("gpt2", flsh=True), "did you mean 'flash'"),
    (lambda: pa.memory("zero3", 3), "no name of a model"),
    (lambda: pa.draw(3), "no strategy"),
    (lambda: pa.draw("zero3", dp="x"), "a size is a whole number"),
    (lambda: pa.draw("zero3", dp=2).save("step.png"), "it is an SVG"),
    (lambda: pa.derive(3, "gpt2"), "no strategy"),
    (lambda: pa.derive(pa.zero3()), "a strategy stands on a model"),
    (lambda: pa.edit(3, drop="x"), "no strategy"),
    (lambda: pa.zero3() * "tp", "no strategy to compose with"),
    (lambda: pa.parse_strategy(3), "no strategy expression"),
    (lambda: pa.decide("zero3", "dp", 3), "no claim"),
    (lambda: pa.simulate("zero3", setting=3), "no setting"),
    (lambda: pa.compare("zero3", "dp").ratio("statse"), "did you mean 'states'"),
    (lambda: pa.decide(pa.dp(), "tp", "memory.peak ==", pa.abstract()), "model"),
])
def test_what_is_no_program_is_told_in_a_line(run: Callable[[], object], says: str) -> None:
    with pytest.raises(pa.InputError, match=says) as error:
        run()
    assert "\n" not in str(error.value)


def test_what_is_a_command_alone_is_told() -> None:
    with pytest.raises(AttributeError, match="it is a command, `placealg museum`"):
        pa.museum  # noqa: B018
    with pytest.raises(AttributeError, match=r"has no attribute 'no_such'$"):
        pa.no_such  # noqa: B018


def test_what_was_read_is_taken_by_everything(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('base = "zero1"\n[[edit]]\ndrop = "publish.*.publish[dp]"\n', encoding="utf-8")
    mine = pa.read(tmp_path / "mine.toml")
    assert pa.prove(mine).verdict == "REFUTED" and pa.memory(mine).states == pa.memory("zero1").states
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}')
    read = pa.read(str(tmp_path / "ds.json"), world_size=8)
    assert pa.memory(read, "gpt2").states.value() == pa.memory(read.strategy, "gpt2").states.value()
    pa.draw(mine.strategy, dp=2).save(tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_text(encoding="utf-8").startswith("<svg")


@pytest.mark.parametrize("name", [n for e in pa.catalogue().values() for n in (e.name, *e.aliases) if hasattr(pa, n)])
def test_a_strategy_says_what_it_is(name: str) -> None:
    made = getattr(pa, name)
    assert inspect.isfunction(made)
    assert f">>> {name}(" in inspect.getdoc(made) and "Source: " in inspect.getdoc(made)


def test_every_figure_of_the_document_can_be_claimed() -> None:
    """`compare --prove` takes every path of `cost --format json`: also the links of tiers and the schedule (D1)."""
    figures = pa.costs("zero3*offload_optimizer").figures
    assert pa.decide("zero3*offload_optimizer", "zero3", "communication.nvme_link <=").verdict == "PROVED"
    assert pa.decide("pp", "pp_interleaved", "schedule.bubble >=", "gpt", "v >= 2").verdict == "PROVED"
    assert figures["schedule.bubble"].expr is None
    with pytest.raises(pa.InputError, match="no axis of the mesh splits the layers"):
        pa.decide("zero3", "dp", "schedule.bubble <=")


def test_fit_has_the_precision_and_the_loss_of_the_command_line() -> None:
    sizes = {"device_memory": "80GB", "dp": 8, "b": 1, "s": 1024}
    plain, wide = (pa.fit("zero3", "gpt2", **sizes, **more).stages[0] for more in ({}, {"precision": "fsdp2"}))
    named = {t.name: t.value for t in wide.terms}
    assert named["parameters"] == 2 * next(t.value for t in plain.terms if t.name == "parameters")
    less = pa.fit("zero3", "gpt2", **sizes, loss="chunked").stages[0]
    assert less.counted < plain.counted
    told = pa.fit("zero3", "gpt2", **sizes, w=4, wire_w=2, use=2).stages[0]
    assert {t.name: t.value for t in told.terms}["parameters"] == named["parameters"]


@pytest.mark.slow
def test_a_type_checker_refuses_a_name_that_there_is_not(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import placealg as pa\npa.prov(3)\nprint(pa.__version__, pa.zero3())\n", encoding="utf-8")
    said = subprocess.run([sys.executable, "-m", "mypy", "--strict", str(file)], capture_output=True, text=True,
                          cwd=ROOT, check=False).stdout
    assert 'mine.py:2: error: Module has no attribute "prov"' in said and "Found 1 error" in said


def test_a_strategy_in_any_form_is_derived_edited_and_drawn(tmp_path: Path) -> None:
    file, ds = tmp_path / "mine.toml", tmp_path / "ds.json"
    file.write_text('base = "zero3"\n', encoding="utf-8")
    ds.write_text('{"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 1}', encoding="utf-8")
    for form in ("zero3", pa.zero3(), str(file), file, pa.read(file), pa.read(ds)):
        step = pa.derive(form, "gpt")
        edited = pa.edit(form, model="gpt", drop="forward.layer.*.gather*")
        assert {e.path for e in step.events} > {e.path for e in edited.events}
        assert str(pa.draw(form, dp=4)).startswith("<svg")


@pytest.mark.parametrize(("formula", "sizes", "open_"), [
    (lambda: pa.memory("zero3", "gpt").states, {"dp": 8}, ("s", "h", "L", "V")),
    (lambda: pa.memory("zero3", "gpt2").states, {}, ("dp",)),
    (lambda: pa.communication("zero1*tp", "gpt2").total, {"dp": 2, "m": 1, "b": 1}, ("s", "tp")),
])
def test_a_value_with_open_sizes_names_them(formula: Callable[[], pa.Formula], sizes: dict[str, int],
                                            open_: tuple[str, ...]) -> None:
    """Each by its name; with all of them there is a number, and `if_known` has none before."""
    found = formula()
    with pytest.raises(pa.InputError) as caught:
        found.value(**sizes)
    assert "value(" + ", ".join(f"{name}=..." for name in open_) + ")" in str(caught.value)
    assert found.if_known(**sizes) is None and found.value(**sizes, **dict.fromkeys(open_, 4)) is not None


def test_names_that_the_expression_language_says_are_told() -> None:
    with pytest.raises(AttributeError, match=r"it is a strategy, placealg\.parse_strategy\('pp_zb_v'\)"):
        pa.pp_zb_v  # noqa: B018
    assert pa.parse_strategy("pp_zb_v").name == "pp_zb_v" and len(pa.__all__) < 70
