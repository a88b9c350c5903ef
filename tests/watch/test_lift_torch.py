"""Ordinary scripts by the first command, and steps of which one op is changed, run again beside a single device."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from conftest import Outcome
from test_watch_torch import FIRST

from placealg.watch.lift.judge import CONFORMS, DIFFERS, UNSEEN, judge

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

FOLDER = Path(__file__).parent / "scripts"

@pytest.mark.parametrize("when", ["first", "last"])
def test_memory_that_is_written_behind_the_dispatcher_is_told(when: str) -> None:
    """Also where no op has touched it yet, and where it is as it was when the step ends."""
    import torch

    from placealg.watch.recorder.trace import tracing

    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with tracing(model) as followed:
        if when == "first":
            model.weight.detach().numpy()[:] *= 2
        model(torch.ones(1, 3)).sum().backward()
        if when == "first":
            model.weight.detach().numpy()[:] /= 2
        optimizer.step()
        if when == "last":
            model.weight.detach().numpy()[:] *= 2
    assert any("behind" in what for what in followed.trace.unseen)
    with tracing(model) as followed:
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    assert not followed.trace.unseen


SCRIPTS: Mapping[str, tuple[str, int]] = {
    "loader.py": (CONFORMS, 0), "loader.py --times": (DIFFERS, 1), "loader.py --turned": (DIFFERS, 1),
    "loader.py --own": (DIFFERS, 1), "loader.py --same": (DIFFERS, 1),
    "dropout.py": (CONFORMS, 0), "dropout.py --again": (CONFORMS, 0),
    "dropout.py --again --lost": (DIFFERS, 1),
    **{f"table.py{words}": (CONFORMS, 0) for words in ("", " --draws", " --mask", " --divided", " --skipped",
                                                          " --drop")},
    **{f"table.py {words}": (DIFFERS, 1) for words in ("--kept", "--same", "--uneven", "--draws --kept",
                                                         "--drop --kept")},
    "table.py --counted": (UNSEEN, 3), "several.py": (CONFORMS, 0), "several.py --contrast": (CONFORMS, 0),
    "several.py --halved": (DIFFERS, 1), "several.py --contrast --cut": (DIFFERS, 1),
    **{f"images.py{words}": (CONFORMS, 0) for words in ("", " --noise", " --workers", " --divided")},
    **{f"images.py {words}": (DIFFERS, 1) for words in ("--batch", "--rate", "--same", "--noise --rate")},
    "recurrent.py": (CONFORMS, 0), "recurrent.py --gru": (CONFORMS, 0), "recurrent.py --sum": (DIFFERS, 1),
    **{f"clipped.py{words}": (CONFORMS, 0) for words in ("", " --normed", " --factors")},
    "clipped.py --half": (UNSEEN, 3), "clipped.py --more": (DIFFERS, 1), "clipped.py --normed --more": (DIFFERS, 1),
    "drawn.py": (CONFORMS, 0), "drawn.py --more": (DIFFERS, 1),
    "adapters.py": (CONFORMS, 0), "adapters.py --padded": (DIFFERS, 1),
    "packed.py": (CONFORMS, 0), "packed.py --turned": (CONFORMS, 0), "packed.py --restart": (DIFFERS, 1),
    "packed.py --local": (DIFFERS, 1), "packed.py --unmasked": (DIFFERS, 1), "packed.py --length": (DIFFERS, 1),
    "packed.py --turned --length": (DIFFERS, 1),
    **{f"ways.py {way}{wrong}": told for wrong, told in (("", (CONFORMS, 0)), (" --wrong", (DIFFERS, 1)))
       for way in ("summed", "hand", "functional", "flat", "flat_names", "owned", "swapped", "balanced",
                    "experts")},
    **{f"stages.py {words}": (CONFORMS, 0) for words in ("GPipe", "1F1B", "Interleaved1F1B")},
    **{f"stages.py {words}": (DIFFERS, 1) for words in ("1F1B --unscaled", "1F1B --kept", "1F1B --turned",
                                                        "GPipe --unscaled", "Interleaved1F1B --kept")},
}
"""Scripts as people write them, of models that no table knows, and what the first command says of them."""


FIRST_OF = ("dropout.py --again", "stages.py 1F1B", "table.py --draws")
MESHES = {"packed.py": "cp=2", "stages.py": "pp=2"}


@pytest.mark.parametrize("words", [w if w in FIRST_OF else pytest.param(w, marks=pytest.mark.slow) for w in SCRIPTS])
def test_the_first_command_on_an_ordinary_script(words: str, placealg: Callable[..., Outcome]) -> None:
    script, *more = words.split()
    got = placealg("watch", "--mesh", MESHES.get(script, "dp=2"), "--format", "json", "--", str(FOLDER / script), *more)
    told = json.loads(got.out)
    assert (told["verdict"], got.code) == SCRIPTS[words], told["single_device"]
    assert bool((told["single_device"] or {"differs": ()})["differs"]) is (told["verdict"] == DIFFERS)


@pytest.mark.parametrize(("numbers", "doubt"), [((), False), ((2.0,), False), ((0.5,), False), ((2.0, 0.5), True),
                                                ((3.0,), True), ((6.0,), True), ((5.0,), False)])
def test_a_number_that_may_be_a_count_of_rows_is_doubted(numbers: tuple[float, ...], doubt: bool) -> None:
    """Three rows of two elements on each rank, in two microbatches: one number of these is theirs."""
    import torch

    from placealg.watch.recorder.feed import Feed

    rows = torch.ones(3, 2)
    feed = Feed(lambda: True, [[[[rows * k]]] * 2 for k in (1, 2)], "fed")
    feed.counts.add(2)
    weight = torch.ones(2, requires_grad=True)
    with feed:
        feed.begin()
        for _ in range(2):
            ((x,), _) = feed.call((rows.clone(),), {}, True)
            made = x * weight
            for number in numbers:
                made = made * number
            assert x.shape == (6, 2) and made.shape == (6, 2)
    assert bool(feed.doubt) is doubt


@pytest.mark.slow
@pytest.mark.parametrize("how", ["--own", "--norm", "--mixed"])
def test_what_stages_make_of_gradients_is_not_one_device_s(how: str, placealg: Callable[..., Outcome]) -> None:
    """The stages alone would do the same: nothing is claimed of it, right or wrong."""
    got = placealg("watch", "--mesh", "pp=2", "--", str(FOLDER / "stages.py"), "1F1B", how)
    told = " ".join(got.out.split())
    assert got.code == 3 and "its stages are not one device" in told and "compute together" in told


def test_a_script_that_reads_other_tokens_alone_has_no_single_device(placealg: Callable[..., Outcome]) -> None:
    got = placealg("watch", "--mesh", "dp=2", "--single", f"{FOLDER / 'loader.py'}", "--", str(FOLDER / "dropout.py"))
    assert got.code == 3 and "reads other tokens than the ranks do together" in " ".join(got.out.split())
    got = placealg("watch", "--mesh", "dp=2", "--single", "no.py", "--", str(FOLDER / "dropout.py"))
    assert got.code == 2 and "there is no script 'no.py'" in got.err


@pytest.mark.parametrize("seed", [pytest.param(k, marks=pytest.mark.slow) if k >= 3 else k for k in range(120)])
def test_a_change_of_any_op_is_told(seed: int) -> None:
    """One op of one rank makes something else: no step conforms that does not end with the same numbers."""
    import lifted

    from placealg.measure import ranks

    name = FIRST[seed % len(FIRST)]
    world = lifted.EVERY[name].world
    found = next(ranks.run(world, lifted.spoiled, [(name, seed, lifted.WAYS)], 120.0))
    assert all(isinstance(f, tuple) for f in found), found
    what = next((f[2] for f in found if f[2]), "nothing, as fewer ops ran")
    told = judge([f[0] for f in found], lifted.alone(name))
    assert told.verdict != CONFORMS or all(f[1] < SAME_NUMBERS for f in found), (what, [f[1] for f in found])


SAME_NUMBERS = 1e-6
"""By how much of the largest number a step may end apart where nothing is changed, in four bytes."""
