"""A router and gated experts as ops: the choice is a one-hot tensor, a factor of what is dispatched and combined."""

from __future__ import annotations

from placealg.models.build import Builder
from placealg.models.graph import Tensor
from placealg.models.style import Style

PAIRS = "batch seq choice expert"
"""The dims of pairs of a token and an expert that is chosen for it."""

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
    gates, route = routed(g, f"{at}.router", x, style)
    entering, leaving = ((gates,), ()) if style.scaled_input else ((), (gates,))
    y = g.einsum(f"{at}.dispatch.pairs", x, *entering, route, to=f"{PAIRS} embed")
    y = _gated(g, f"{at}.expert", y, route, style) if style.expert_gated else _plain(g, f"{at}.expert", y, route, style)
    down = _product(g, f"{at}.expert", "down", y, "ffn", "embed", route, style)
    y = _adapted(g, f"{at}.expert", y, down) if style.adapters else down
    y = g.einsum(f"{at}.combine.sum", y, *leaving, route, to="batch seq embed")
    return g.biased(f"{at}.combine", y, "embed") if style.combine_bias else y


def _gated(g: Builder, at: str, x: Tensor, route: Tensor, style: Style) -> Tensor:
    """What enters the last product of an expert with two first products, one of which is the other's gate."""
    gate, up = (_product(g, at, n, x, "embed", "ffn", route, style) for n in ("gate", "up"))
    if style.clip_experts:
        gate, up = (g.unary(f"{at}.{n}.clipped", z, "clamp", region=at) for n, z in (("gate", gate), ("up", up)))
    function = style.activation.replace("gelu_new", "gelu") or "silu"
    return g.mul(f"{at}.product", g.unary(f"{at}.{function}", gate, function), up)


def _plain(g: Builder, at: str, x: Tensor, route: Tensor, style: Style) -> Tensor:
    """What enters the last product of an expert with one first product; relu2 is a relu, squared."""
    function = style.activation.removesuffix("2")
    y = g.unary(f"{at}.{function}", _product(g, at, "up", x, "embed", "ffn", route, style), function)
    return g.mul(f"{at}.square", y, y) if style.activation == "relu2" else y


def _product(g: Builder, at: str, name: str, x: Tensor, of: str, to: str, route: Tensor, style: Style) -> Tensor:
    """A projection of every chosen expert, with the bias of that expert where there is one."""
    y = g.linear(f"{at}.{name}", x, f"{PAIRS} {to}", f"expert {of} {to}", region=at)
    if not style.expert_bias:
        return y
    chosen = g.einsum(f"{at}.{name}.chosen_bias", g.parameter(f"{at}.{name}.bias", f"expert {to}"), route,
                      to=f"{PAIRS} {to}", region=at)
    return g.add(f"{at}.{name}.biased", y, chosen, region=at)


def _adapted(g: Builder, at: str, x: Tensor, y: Tensor) -> Tensor:
    """`y`, which comes from `x` by the experts' last product, and what comes from `x` through a low rank."""
    low = g.linear(f"{at}.low", x, f"{PAIRS} adapter", "expert ffn adapter", region=at)
    high = g.linear(f"{at}.high", low, f"{PAIRS} embed", "expert adapter embed", region=at)
    return g.add(f"{at}.adapted", y, high, region=at)


def routed(g: Builder, at: str, x: Tensor, style: Style) -> tuple[Tensor, Tensor]:
    """The gates of a token's experts by the router `at`, and the one-hot choice."""
    scores = g.einsum(f"{at}.logits", x, g.parameter(f"{at}.weight", "embed expert"), to="batch seq expert")
    if style.router_bias:
        scores = g.add(f"{at}.biased", scores, g.parameter(f"{at}.bias", "expert"))
    if style.sigmoid:
        scores = g.unary(f"{at}.scores", scores, "sigmoid")
    elif not style.normalized:
        scores = g.softmax(f"{at}.probs", scores, over="expert")
    route = g.route(f"{at}.route", scores, over="expert", choice="choice")
    return _gates(g, at, g.einsum(f"{at}.chosen", scores, route, to="batch seq choice"), style), route


def _gates(g: Builder, at: str, chosen: Tensor, style: Style) -> Tensor:
    """The weights by which the results of a token's experts are added, from their scores."""
    if not style.sigmoid:
        return g.softmax(f"{at}.gates", chosen, over="choice") if style.normalized else chosen
    if style.normalized:
        total = g.sum(f"{at}.total", chosen, to="batch seq")
        chosen = g.mul(f"{at}.gates", chosen, g.unary(f"{at}.share", total, "reciprocal"))
    return g.scale(f"{at}.scaled", chosen, "routed_scaling_factor")
