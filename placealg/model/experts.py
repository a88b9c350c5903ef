"""A router and gated experts as ops: the choice is a one-hot tensor, a factor of what is dispatched and combined."""

from __future__ import annotations

from placealg.model.build import Builder
from placealg.model.graph import Tensor
from placealg.model.style import Style

_PAIRS = "batch seq choice expert"

BALANCING = "losses beside that of the tokens, such as one that balances the load of experts"
"""What no model of experts has here, in words."""


PARTS = ("router", "dispatch", "expert", "combine", "shared_expert")
"""The regions of a layer's mixture of experts, which stand together in the region `moe`."""


def experts(g: Builder, at: str, x: Tensor, style: Style) -> Tensor:
    """Every token goes to the experts chosen for it in the layer `at`, whose results are added by gates.

    Which experts are chosen is data: a bias that corrects the scores for the choice alone, and a choice limited to
    groups of experts, change that and nothing else. The bias is moved by the load and takes no gradient, so it is no
    parameter here. What BALANCING says is left out too.
    """
    g.enclose(f"{at}.moe", [f"{at}.{part}" for part in PARTS])
    scores, route = _routed(g, f"{at}.router", x, style)
    gates = _gates(g, f"{at}.router", g.einsum(f"{at}.router.chosen", scores, route, to="batch seq choice"), style)
    y = g.einsum(f"{at}.dispatch.pairs", x, route, to=f"{_PAIRS} embed")
    gate, up = (g.linear(f"{at}.expert.{n}", y, f"{_PAIRS} ffn", "expert embed ffn", region=f"{at}.expert")
                for n in ("gate", "up"))
    y = g.mul(f"{at}.expert.product", g.unary(f"{at}.expert.silu", gate, "silu"), up)
    down = g.linear(f"{at}.expert.down", y, f"{_PAIRS} embed", "expert ffn embed", region=f"{at}.expert")
    y = _adapted(g, f"{at}.expert", y, down) if style.adapters else down
    return g.einsum(f"{at}.combine.sum", y, gates, route, to="batch seq embed")


def _adapted(g: Builder, at: str, x: Tensor, y: Tensor) -> Tensor:
    """`y`, which comes from `x` by the experts' last product, and what comes from `x` through a low rank."""
    low = g.linear(f"{at}.low", x, f"{_PAIRS} adapter", "expert ffn adapter", region=at)
    high = g.linear(f"{at}.high", low, f"{_PAIRS} embed", "expert adapter embed", region=at)
    return g.add(f"{at}.adapted", y, high, region=at)


def _routed(g: Builder, at: str, x: Tensor, style: Style) -> tuple[Tensor, Tensor]:
    """The scores of all experts, and the one-hot choice."""
    scores = g.einsum(f"{at}.logits", x, g.parameter(f"{at}.weight", "embed expert"), to="batch seq expert")
    if style.sigmoid:
        scores = g.unary(f"{at}.scores", scores, "sigmoid")
    elif not style.normalized:
        scores = g.softmax(f"{at}.probs", scores, over="expert")
    return scores, g.route(f"{at}.route", scores, over="expert", choice="choice")


def _gates(g: Builder, at: str, chosen: Tensor, style: Style) -> Tensor:
    """The weights by which the results of a token's experts are added, from their scores."""
    if not style.sigmoid:
        return g.softmax(f"{at}.gates", chosen, over="choice") if style.normalized else chosen
    if style.normalized:
        total = g.sum(f"{at}.total", chosen, to="batch seq")
        chosen = g.mul(f"{at}.gates", chosen, g.unary(f"{at}.share", total, "reciprocal"))
    return g.scale(f"{at}.scaled", chosen, "routed_scaling_factor")
