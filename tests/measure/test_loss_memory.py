"""What an eager cross entropy, and six whole steps, hold, counted by the memory tracker of PyTorch, byte by byte."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

import pytest
from conftest import ROOT

from placealg.models.losses import RUNS

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
BYTES = {"act": 2, "stat": 4}


def peak(tokens: int, hidden: int, vocabulary: int, keeps: bool) -> int:
    """The most that forward and backward of a bf16 head and its loss hold; `keeps`: the logits stay named between."""
    import torch
    from torch.distributed._tools.mem_tracker import MemTracker

    head = torch.nn.Linear(hidden, vocabulary, bias=False, dtype=torch.bfloat16)
    x = torch.randn(tokens, hidden, dtype=torch.bfloat16, requires_grad=True)
    y = torch.randint(0, vocabulary, (tokens,))
    tracker = MemTracker()
    tracker.track_external(head, x, y)
    with tracker:
        logits = head(x)
        loss = torch.nn.functional.cross_entropy(logits.float(), y)
        if not keeps:
            del logits
        loss.backward()
    (snapshot,) = tracker.get_tracker_snapshot("peak").values()
    return int(next(size for kind, size in snapshot.items() if str(kind) == "Total"))


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize(("tokens", "hidden", "vocabulary"), [(256, 16, 4096), (64, 32, 8192), (512, 8, 1024)])
def test_an_eager_loss_holds_what_the_table_says(tokens: int, hidden: int, vocabulary: int, keeps: bool) -> None:
    """14 bytes a logit, 12 where the caller deletes the logits; beside them weight, input, targets, the loss."""
    elements = [e for e in RUNS["eager"].backward if keeps or e != "act"]
    rest = 2 * hidden * vocabulary + 2 * tokens * hidden + 8 * tokens
    beyond = peak(tokens, hidden, vocabulary, keeps) - rest - tokens * vocabulary * sum(BYTES[e] for e in elements)
    assert 0 < beyond <= 16


STEPS = tomllib.loads((ROOT / "tests" / "data" / "measured_peaks.toml").read_text(encoding="utf-8"))["tracked"]


@pytest.mark.parametrize("row", STEPS, ids=lambda row: f"{row['strategy']}-m{row['sizes']['m']}-w{row['types']['w']}")
def test_a_step_holds_what_the_table_says(row: Mapping[str, Any]) -> None:
    from tracked import tracked

    assert tracked(row) == row["bytes"]
