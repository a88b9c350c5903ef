"""What the three engines answer about a few programs whose units run whole stays what it was: `golden/answers.jsonl`.

The full list, some thousand programs, is `answers.py`'s: written before a change of an engine, and compared after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from answers import ROOT, derived, proof, runs
from mutants import deletions

from placealg.cost.sums import sums
from placealg.models.abstract import abstract, statistics, two_losses
from placealg.step.program import Step

GOLDEN = ROOT / "tests/golden/answers.jsonl"
WHOLE = ("zero3 on abstract", "hsdp on abstract", "zero2*offload_optimizer on abstract", "zero1 on statistics",
         "dp on two_losses")
LESS = {"zero1 on abstract": (
    "init.layer.weight.broadcast[dp]", "forward.layer.compute", "forward.loss.compute", "backward.loss.scale",
    "backward.layer.compute", "reduce.layer.weight.grad_sum.reduce[dp]", "update.norm.all_reduce[dp]",
    "publish.layer.weight.publish[dp]", "resume.layer.weight.moments.load")}
"""Program -> the events without which it is asked about, too."""


def programs() -> Iterator[tuple[str, Step]]:
    """The programs, by name."""
    known = dict(step for model in (abstract(), statistics(), two_losses()) for step in derived(model))
    for name in WHOLE:
        yield name, known[name]
    for name, dropped in LESS.items():
        without = {mutant.events[0].path: mutant.step for mutant in deletions(known[name])}
        yield from ((f"{name} without {path}", without[path]) for path in dropped)


def answer(name: str, step: Step) -> dict[str, Any]:
    """Verdict, class, what is refuted and where first, how far off, the hypotheses; what runs do; two figures."""
    found = proof(step)
    shown = found["counterexample"] or [None] * 11
    figures = sums(step)
    return {
        "name": name, "verdict": found["verdict"], "class": found["class"],
        "hypotheses": [text.partition(" over ")[0].partition(":")[0] for text in found["hypotheses"]],
        "refuted": sorted({row[0] for row in found["obligations"] if row[2] == "REFUTED"}),
        "first": shown[1], "ratio": shown[3] and str(shown[3]), "says": shown[9],
        "runs": [[equal, at and at[:2]] for equal, at in json.loads(json.dumps(runs(step), default=str))],
        "figures": {path: [str(piece) for piece in figures[path].pieces] for path in (
            "memory.states", "communication.total")},
    }


def written() -> list[dict[str, Any]]:
    return [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]


def test_the_answers_are_those_that_were_written_down() -> None:
    found = [answer(name, step) for name, step in programs()]
    assert [told["name"] for told in found] == [told["name"] for told in written()]
    for told, before in zip(found, written(), strict=True):
        assert told == before


def test_what_is_asked_shows_each_engine_right_and_wrong() -> None:
    assert {told["verdict"] for told in written()} == {"PROVED", "REFUTED"}
    assert {equal for told in written() for equal, _ in told["runs"]} == {True, False}
    assert len({tuple(told["refuted"]) for told in written()}) >= 5
