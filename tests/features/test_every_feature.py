"""Each feature of the language under the whole catalogue, on two models, and pairs of features at random.

What is derived is proved, or refuted for the reason that stands here by name; nothing is left undecided.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

import pytest

from placealg.check.prove import prove
from placealg.errors import InputError
from placealg.models.config import resolve_model
from placealg.prover.examine import examine
from placealg.prover.verdict import PROVED, REFUTED, Report
from placealg.simulator import Setting, simulate
from placealg.simulator.setting import fitting_microbatches
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.strategy import catalogue as cat
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import Strategy, overlay

Tables = Mapping[str, Any]
MODELS = ("gpt", "moe")
BESIDE = ("dp", "zero1", "zero3")
"""What stands beside a modifier of the catalogue, or in place of it for an axis of data."""


def _first(strategy: Strategy, mode: str) -> str:
    """The first axis along which a state has a mode, "" if none has it."""
    said = [axis for placement in strategy.states.values() for axis, found in placement.modes.items()
            if str(found) == mode and axis in strategy.mesh.names]
    return next((a for a in strategy.data_axes if a in said), "")


def _by_axis(table: str, key: str, mode: str, value: Any) -> Callable[[Strategy], Tables]:
    def said(strategy: Strategy) -> Tables:
        axis = _first(strategy, mode)
        return {table: {key: {axis: value}}} if axis else {}
    return said


def _wires(strategy: Strategy) -> Tables:
    return {"schedule": {"wire": {strategy.data_axes[0]: 4}}} if strategy.data_axes else {}


def _lifetime(strategy: Strategy) -> Tables:
    axis = _first(strategy, "S*")
    return {"groups": {"living": {"match": "*", "lifetime": {axis: "step"}}}} if axis else {}


def _always(tables: Tables) -> Callable[[Strategy], Tables]:
    return lambda strategy: tables


CHECKPOINT = {"states": {"activations": {"region:layer": "M"}}}
FEATURES: Mapping[str, Callable[[Strategy], Tables]] = {
    "frozen": _always({"groups": {"frozen": {"match": "*norm*", "frozen": True}}}),
    "adapters": _always({"adapters": {"match": ["attn.q", "attn.v"]}}),
    "sum": _always({"loss": {"preset": "sum"}}),
    "token mean": _always({"loss": {"preset": "token_mean"}}),
    "router losses": _always({"loss": {"terms": ["balance", "z"]}}),
    "router losses by count": _always({"loss": {"terms": ["z"], "term_divisor": "count"}}),
    "checkpoint": _always(CHECKPOINT),
    "kept": _always({**CHECKPOINT, "schedule": {"keep": ["attn.q", "mixed", "*.up"], "replay": "by_dependency"}}),
    "recomputed": _always({**CHECKPOINT, "schedule": {"recompute": ["*norm*", "*silu", "*gelu"]}}),
    "some layers": _always({**CHECKPOINT, "schedule": {"recompute_layers": {"every": 2}}}),
    "offloaded": _always({"states": {"activations": {"region:layer": "O"}}}),
    "checkpoint on nvme": _always({"states": {"activations": {"region:layer": "M+O"}},
                                   "activations": {"tier": "nvme"}}),
    "some offloaded": _always({"states": {"activations": {"region:mlp": "O"}},
                               "schedule": {"offload_layers": {"every": 2}}}),
    "muon": _always({"optimizer": {"name": "muon"}}),
    "muon on heads": _always({"optimizer": {"name": "muon"},
                              "groups": {"heads": {"match": "attn.[qkv].weight", "matrix": ["embed", "head_dim"]}}}),
    "skip": _always({"optimizer": {"skip": "overflow"}}),
    "average": _always({"optimizer": {"average": "optimizer"}}),
    "average as weights": _always({"optimizer": {"average": "parameters"}, "checkpoint": {"by": "replica"}}),
    "loss scale": _always({"loss": {"scale": "dynamic"}, "optimizer": {"skip": "overflow"}}),
    "router bias": _always({"optimizer": {"router_bias": True}}),
    "fp8 scales": _always({"optimizer": {"fp8_scales": "attn.*"}, "types": {"act_linear": 1}}),
    "share on the host": _always({"optimizer": {"offload_share": "1/4"}}),
    "split norm": _always({"optimizer": {"norm": "split_axes"}}),
    "mean of gradients": _always({"schedule": {"microbatch_mean": "gradients"}}),
    "whole sums": _by_axis("schedule", "reduction", "S", "all_reduce"),
    "wires": _wires,
    "lifetime": _lifetime,
    "types": _always({"types": {"w": 4, "wire_w": 2, "use": 2, "acc": 4, "act_linear": 1}}),
    "one saves": _always({"checkpoint": {"by": "one"}}),
}
"""Feature -> what a strategy says that has it; nothing where it means nothing."""

NAMED: Mapping[str, str] = {}
"""Feature, strategy and model of a program that is refuted, and the obligation that fails."""


def merged(strategy: Strategy, *tables: Tables) -> Strategy:
    """The strategy with what the tables say, one after the other; of tables in tables all keys."""
    for said in tables:
        activations = said.get("states", {}).get("activations")
        if activations:
            placed = strategy.state("activations")
            before = {axis: placed.text(axis) for axis in placed.modes}
            said = {**said, "states": {"activations": {**before, **activations}}}
        strategy = overlay(strategy, said)
    return strategy


def strategies() -> Iterator[str]:
    """Every strategy of the catalogue, a modifier beside data parallelism."""
    for name in cat.catalogue():
        try:
            alone = parse_strategy(name)
        except InputError:
            continue
        yield name if alone.mesh.names and alone.data_axes else f"zero1*{name}"


def with_features(text: str, model: str, *features: str) -> Step | None:
    """The program of a strategy with some features; None where one of them means nothing for it."""
    strategy = parse_strategy(text)
    tables = [FEATURES[f](strategy) for f in features]
    return derive(merged(strategy, *tables), resolve_model(model)) if all(tables) else None


def judged(text: str, model: str, *features: str) -> Report | None:
    """The verdict on a strategy with some features; None where they do not fit it."""
    try:
        step = with_features(text, model, *features)
    except InputError:
        return None
    return prove(step) if step else None


def told(report: Report) -> list[str]:
    return [f"{v.id} of {v.group}: {v.verdict} {v.reason}" for v in report.obligations if v.verdict != PROVED][:3]


@pytest.mark.some(97)
@pytest.mark.parametrize("text", list(strategies()))
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_under_a_strategy_is_proved(feature: str, model: str, text: str) -> None:
    report = judged(text, model, feature)
    case = f"{feature}, {text}, {model}"
    if report is not None:
        wanted = REFUTED if case in NAMED else PROVED
        assert report.verdict == wanted, told(report)
        assert wanted == PROVED or (report.counterexample and report.counterexample.obligation == NAMED[case])


def test_every_feature_means_something_somewhere() -> None:
    strategies = [parse_strategy(text) for text in ("zero3", "zero1*tp")]
    assert all(any(FEATURES[f](s) for s in strategies) for f in FEATURES)


BEHIND = ("tp_sp", "pp", "pp_zb_h1", "pp_interleaved", "cp_ring", "ep", "recompute_full", "offload_optimizer")
"""What is composed with a strategy of the catalogue, at random."""

Pair = tuple[str, str, str, str, Step]


def pairs(seed: int, count: int) -> Iterator[Pair]:
    """Random strategies of the catalogue, composed or not, with two features each, that fit; refusals are one line."""
    draw, known = Random(seed), list(strategies())
    while count:
        text, model = draw.choice(known), draw.choice(MODELS)
        if draw.random() < 0.4:
            text = f"{text}*{draw.choice(BEHIND)}"
        one, two = draw.sample(list(FEATURES), 2)
        try:
            step = with_features(text, model, one, two)
        except InputError as error:
            assert str(error) and "\n" not in str(error)
            continue
        if step is not None:
            count -= 1
            yield text, model, one, two, step


def ran(step: Step) -> bool:
    """Whether a run with two ranks on every axis, and stages enough, equals the single device's."""
    sizes, pipeline = dict.fromkeys(step.reference.mesh.names, 2), step.reference.pipeline
    if pipeline:
        sizes[pipeline.axis] = max(2, pipeline.least)
    return simulate(step, Setting.equal(step.reference, sizes, fitting_microbatches(step.reference, sizes, 2), 1)).equal


@pytest.mark.parametrize("number", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(
    1, 1 + int(os.environ.get("PLACEALG_RANDOM_RUNS", "200")) // 5))])
def test_pairs_of_features_are_proved(number: int) -> None:
    """Proved, and with few axes also run."""
    for text, model, one, two, step in pairs(number, 2 if not number else 8):
        case, report = f"{text} on {model}: {one}, {two}", prove(step)
        assert report.verdict == PROVED, f"{case}: {told(report)}"
        assert len(step.reference.mesh.names) > 1 or ran(step), case


def test_a_pair_that_is_wrong_is_seen() -> None:
    """A program that lacks a reduction is neither proved nor run."""
    step = with_features("dp", "mlp", "average", "skip")
    assert step is not None and ran(step)
    broken = edit(step, {"drop": "reduce.layer.weight.grad_sum.reduce[dp]"})
    assert REFUTED in {v.verdict for v in examine(broken).verdicts} and not ran(broken)
