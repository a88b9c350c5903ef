"""The kernel over strategies of data parallelism, each feature and pairs of features: what is proved is accepted.

A derived program that it does not accept is a fault.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from random import Random

import pytest
from test_every_feature import FEATURES, merged

from placealg.check.kernel import Kernel, kernel
from placealg.errors import InputError
from placealg.models.config import resolve_model
from placealg.step.derive import derive
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy

STRATEGIES = ("dp", "zero1", "zero2", "zero3", "fsdp_no_reshard", "hsdp", "mics", "zeropp", "dp*offload_optimizer",
              "zero1*offload_optimizer", "zero2*offload_optimizer", "zero3*offload_parameters", "zero1*dp[more]",
              "zero3*zero1[more]")
MODELS = ("abstract", "gpt", "moe", "two_losses", "statistics", "amax")
Ask = Callable[[Step], Kernel]


def said(strategy: str, model: str, features: tuple[str, ...], ask: Ask = kernel) -> str:
    """What is wrong with the kernel's answer on a program that is proved; "" where nothing is, or there is none."""
    chosen, on = parse_strategy(strategy), resolve_model(model)
    tables = [FEATURES[f](chosen) for f in features]
    if not all(tables):
        return ""
    try:
        chosen = merged(chosen, *tables)
        step = derive(chosen, on)
    except InputError:
        return ""
    found = ask(step)
    return "" if found.accepted else f"{strategy} on {model}: {found.reason or 'not accepted'}"


def wrong(features: tuple[str, ...], strategies: tuple[str, ...], models: tuple[str, ...],
          ask: Ask = kernel) -> list[str]:
    """What is wrong with the kernel's answers on these programs."""
    return [text for s in strategies for m in models if (text := said(s, m, features, ask))]


def pairs() -> Iterator[tuple[tuple[str, str], tuple[str, ...], str]]:
    """Each pair of features, two of the strategies, and one of the models."""
    for pair in itertools.combinations(FEATURES, 2):
        draw = Random(repr(pair))
        yield pair, tuple(draw.sample(STRATEGIES, 2)), draw.choice(MODELS)


@pytest.mark.parametrize("feature", ["token mean", "average", "one saves", "sum", "skip", "muon"])
def test_a_feature_is_accepted(feature: str) -> None:
    assert wrong((feature,), ("zero2", "mics"), ("abstract", "two_losses", "amax")) == []


@pytest.mark.slow
@pytest.mark.parametrize("feature", FEATURES)
def test_each_feature_is_accepted_with_every_strategy(feature: str) -> None:
    assert wrong((feature,), STRATEGIES, MODELS) == []


@pytest.mark.slow
@pytest.mark.parametrize("first", FEATURES)
def test_pairs_of_features_are_accepted(first: str) -> None:
    assert [w for pair, strategies, model in pairs() if pair[0] == first
            for w in wrong(pair, strategies, (model,))] == []


def test_a_kernel_that_rejects_something_or_cannot_read_it_is_found() -> None:
    def narrow(step: Step) -> Kernel:
        return Kernel(None, "forward.layer.compute: divisor = m") if step.reference.skip else Kernel(accepted=False)

    assert len(wrong(("average",), ("zero1", "hsdp"), ("abstract",), narrow)) == 2
    assert wrong(("skip",), ("dp",), ("abstract",), narrow) == [
        "dp on abstract: forward.layer.compute: divisor = m"]
    assert wrong(("checkpoint",), ("dp",), ("gpt",)) == []
