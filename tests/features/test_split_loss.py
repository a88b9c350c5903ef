"""An axis that splits the token sum of the loss alone, by whichever name its region has, splits the tokens."""

from __future__ import annotations

import pytest
from agreement import compare

from placealg.models.transformer import gpt
from placealg.prover.verdict import PROVED
from placealg.step.derive import derive
from placealg.strategy.spec import strategy_on

ONE_OP, REGION, BOTH = ("loss.sum.seq",), ("loss.seq",), ("loss.sum.seq", "vocab")


@pytest.mark.some(5)
@pytest.mark.parametrize("preset", ["mean_of_means", "sum", "token_mean"])
@pytest.mark.parametrize("dims", [ONE_OP, REGION, BOTH, ("loss.sum.batch",)])
def test_the_loss_is_divided_by_the_tokens_of_all_ranks(dims: tuple[str, ...], preset: str) -> None:
    """Of a region that is one op the strategy alone cannot tell: the op graph says along what the loss is split."""
    step = derive(strategy_on("mine", {"dp": None, "x": None}, dims={"dp": ["batch"], "x": list(dims)},
                              loss={"preset": preset}), gpt())
    found = compare(step)
    assert (found.report.verdict, found.complaint) == (PROVED, "")
    assert step.reference.data_axes == ("dp", "x")
