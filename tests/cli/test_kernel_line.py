"""What `prove` says, and its exit code, where the verified checker and the prover do not say the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from placealg.check.kernel import Kernel
from placealg.cli import kernel_line

Run = Callable[..., Any]

NARROW = {
    "a checkpoint's step that one rank loads": ("""base = "dp"
[[edit]]
set = "resume.step.load"
where = "rank(dp)=0"
[[edit]]
insert = { path = "resume.step.broadcast[dp]" }
after = "resume.step.load"
""", "abstract"),
    "a sum that begins with the first gradient": ("""base = "zero1"
[[edit]]
drop = "prepare.*.grad_sum.zero"
[[edit]]
insert = { path = "backward.layer.weight.grad_sum.assign", from = "grad", at = "first" }
after = "backward.layer.weight.grad_sum.accumulate"
""", "abstract"),
    "a sum that is cleared behind each step": ("""base = "zero1"
[[edit]]
drop = "prepare.*.grad_sum.zero"
[[edit]]
insert = { path = "init.layer.weight.grad_sum.zero" }
after = "init.layer.weight.moments.assign"
[[edit]]
insert = { path = "publish.layer.weight.grad_sum.zero" }
after = "publish.layer.weight.publish[dp]"
[[edit]]
insert = { path = "resume.layer.weight.grad_sum.zero" }
after = "resume.layer.weight.moments.load"
""", "abstract"),
    "a reduction of what has accumulated": ("""base = "dp"
[[edit]]
move = "reduce.head.weight.grad_sum.reduce[dp]"
after = "backward.head.weight.grad_sum.accumulate"
""", "gpt"),
}
"""Right programs that the checker does not accept."""


def prove(placealg: Run, folder: Path, text: str, model: str = "abstract") -> tuple[int, str]:
    file = folder / "s.toml"
    file.write_text(text, encoding="utf-8")
    got = placealg("prove", str(file), "--model", model)
    return got.code, " ".join(got.out.split())


@pytest.mark.parametrize("case", NARROW)
def test_what_is_proved_and_not_accepted_is_proved(case: str, placealg: Run, tmp_path: Path) -> None:
    text, model = NARROW[case]
    for expect in ("", '[expect]\nverdict = "proved"\n'):
        base, _, edits = text.partition("\n")
        code, out = prove(placealg, tmp_path, f"{base}\n{expect}{edits}", model)
        assert code == 0 and "PROVED" in out
        assert "not accepted: this program" in out and "the checker is too narrow here, which refutes nothing" in out


REFUTED = 'base = "dp"\n{}[[edit]]\ndrop = "publish.layer.weight.publish"\n'


@pytest.mark.parametrize("expect", ["", '[expect]\nverdict = "refuted"\n'])
def test_what_is_refuted_and_accepted_is_an_engine_that_is_wrong(
        expect: str, placealg: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = REFUTED.format(expect)
    code, out = prove(placealg, tmp_path, text)
    assert code == int(not expect) and "not accepted either" in out and "engines" not in out
    monkeypatch.setattr(kernel_line, "kernel", lambda *_: Kernel(True, sha256="0" * 64))
    code, out = prove(placealg, tmp_path, text)
    assert code == 1 and "the prover says REFUTED: one of the two engines is wrong; please report it" in out
