"""What orders wait and hold is read off their runs: the published forms come out, and another order has another one."""

from __future__ import annotations

import pytest

from placealg.errors import InputError
from placealg.step import folded, waits
from placealg.step.closed_forms import SAMPLES, affine, waiting_form
from placealg.step.folded import HELD
from placealg.step.pipeline import AHEAD, ENOUGH, LATER, TIMES, Pipeline, work
from placealg.step.waits import WAITING, ends


@pytest.mark.parametrize(("order", "waited", "holds"), [
    ("1f1b", "(p - 1 - i)*(T_F + T_B + T_W)", ""), ("zb_h1", "(p - 1 - i)*(T_F + T_B - T_W)", "p"),
    ("zb_h2", "(p - 1 - i)*(T_F + T_B - 2*T_W)", "2*p - 1")])
def test_the_forms_of_zero_bubble_orders_are_the_published_ones(order: str, waited: str, holds: str) -> None:
    """Qi et al., arXiv 2401.10241, table 2: what the first stage waits and holds."""
    assert (WAITING[order], ENOUGH.get(order, "")) == (waited, holds)


@pytest.fixture
def underived(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Nothing is derived yet, and what is derived here is forgotten."""
    for known in (WAITING, HELD):
        for order in tuple(known):
            monkeypatch.delitem(known, order)  # type: ignore[arg-type]
    yield monkeypatch  # type: ignore[misc]
    for known in (WAITING, HELD):
        known.clear()  # type: ignore[attr-defined]


def test_another_order_waits_otherwise(underived: pytest.MonkeyPatch) -> None:
    underived.setitem(AHEAD, "zb_h1", "2*(p - 1 - i)")
    underived.setitem(LATER, "zb_h1", "2*i")
    assert WAITING["zb_h1"] == "(p - 1 - i)*(T_F + T_B - 2*T_W)"


def test_another_fold_holds_otherwise(underived: pytest.MonkeyPatch) -> None:
    runs = folded.FOLDED["zb_v"]
    underived.setitem(folded.FOLDED, "zb_v", (folded.Run("2*(p - i)", runs[0].items), *runs[1:]))  # type: ignore[arg-type]
    assert HELD["zb_v"] == "Min(m, 2*p - i) + Min(m, i + 1)"


def test_what_has_no_such_form_is_told(underived: pytest.MonkeyPatch) -> None:
    underived.setitem(AHEAD, "1f1b", "0")
    with pytest.raises(InputError, match=r"^what small runs show is not linear in p and i$"):
        WAITING["1f1b"]
    with pytest.raises(InputError, match="not linear"):
        affine({(p, i): p * i for p, i in SAMPLES})
    with pytest.raises(InputError, match="the only stage of a pipeline of one waits"):
        waiting_form({at: (1,) for at in SAMPLES}, TIMES[:1])


def test_an_order_that_waits_for_itself_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "work", lambda *said: work(*said)[::-1])
    with pytest.raises(InputError, match=r"^the 1f1b order waits for itself at pp = 2$"):
        ends(Pipeline("pp"), 2, 2, (1, 1, 1))
