"""What stands in place of attention, or beside it: scans with a state for each head, and short convolutions.

Keys of states have `state_kv` heads, where there are several, of size `state_key`; each is shared by `state_group`
values of size `state_value`. What has to see the whole sequence, convolutions and scans, stands in the region `core`.
"""

from __future__ import annotations

from placealg.models.build import Builder
from placealg.models.graph import Tensor
from placealg.models.style import Style


def mixer(g: Builder, at: str, x: Tensor, style: Style) -> Tensor:
    """The mixer of the layer `at`, its last bias included."""
    if style.mixer == "conv":
        return _short_convolution(g, f"{at}.conv", x, style)
    made = _delta if style.mixer == "delta" else _state_space
    return made(g, f"{at}.scan", x, style)


def _heads(g: Builder) -> tuple[str, str, str]:
    """The dims of keys, of values and of what each head has one number of."""
    several = "state_kv " if "state_kv" in g.dims else ""
    return f"{several}state_key", f"{several}state_group state_value", f"{several}state_group"


def _read(g: Builder, at: str, name: str, x: Tensor, dims: str, style: Style) -> Tensor:
    """What enters a scan: a projection, a convolution along the sequence, and its activation."""
    y = g.linear(f"{at}.{name}", x, f"batch seq {dims}", f"embed {dims}", dims if style.mixer_bias else None)
    function = (style.mixer_activation or style.activation or "silu").replace("gelu_new", "gelu")
    return g.unary(f"{at}.core.{name}.{function}", _convolved(g, at, name, y, dims, style), function)


def _convolved(g: Builder, at: str, name: str, x: Tensor, dims: str, style: Style) -> Tensor:
    path = f"{at}.core.{name}"
    y = g.conv(f"{path}.conv", x, g.parameter(f"{at}.{name}.conv.weight", f"{dims} tap"), over="seq tap")
    if not style.conv_bias:
        return y
    return g.add(f"{path}.conv.biased", y, g.parameter(f"{at}.{name}.conv.bias", dims), region=path)


def _step(g: Builder, at: str, x: Tensor, heads: str) -> Tensor:
    """The width of each place's step: a softplus of what comes from the hidden state, shifted by a bias."""
    shifted = g.add(f"{at}.core.step.shifted", x, g.parameter(f"{at}.step.bias", heads))
    return g.unary(f"{at}.core.step", shifted, "softplus")


def _decay(g: Builder, at: str, step: Tensor, heads: str) -> Tensor:
    """The exponential of a step times a rate; the rate is a negative function of the parameter, number by number."""
    return g.unary(f"{at}.core.decay", g.mul(f"{at}.core.decay.log", step, g.parameter(f"{at}.rate", heads)), "exp")


def _delta(g: Builder, at: str, x: Tensor, style: Style) -> Tensor:
    """A gated delta rule (Yang et al., arXiv 2412.06464), whose decay is one number for each head or for each key.

    Decays of keys come through a low rank, and so does the gate of the result (Kimi Team, arXiv 2510.26692).
    """
    keys, values, heads = _heads(g)
    q, k = (g.norm(f"{at}.core.{name}.norm", _read(g, at, name, x, keys, style), "state_key", bias=False, weight=False)
            for name in ("q", "k"))
    v = _read(g, at, "v", x, values, style)
    beta = g.unary(f"{at}.core.beta", g.linear(f"{at}.beta", x, f"batch seq {heads}", f"embed {heads}"), "sigmoid")
    by_key = f"{heads} state_key"
    if style.key_decay:
        step = _low(g, at, "step", x, by_key)
    else:
        step = g.linear(f"{at}.step", x, f"batch seq {heads}", f"embed {heads}")
    with g.wide():
        step = _step(g, at, g.cast(f"{at}.core.step.wide", step), by_key if style.key_decay else heads)
        decay = _decay(g, at, step, heads)
    y = g.scan(f"{at}.core.mixed", k, v, q, decay, beta, over="seq state_key", delta=True)
    gate = _low(g, at, "gate", x, values) if style.key_decay else g.linear(
        f"{at}.gate", x, f"batch seq {values}", f"embed {values}")
    y = g.norm(f"{at}.norm", y, "state_value", bias=False, **style.written)
    y = g.mul(f"{at}.gated", y, g.unary(f"{at}.gate.open", gate, "sigmoid" if style.key_decay else "silu"))
    return _out(g, at, y, values, style)


def _low(g: Builder, at: str, name: str, x: Tensor, dims: str) -> Tensor:
    """A projection through a rank as small as a head."""
    low = g.linear(f"{at}.{name}_down", x, "batch seq state_low", "embed state_low")
    return g.linear(f"{at}.{name}", low, f"batch seq {dims}", f"state_low {dims}")


def _state_space(g: Builder, at: str, x: Tensor, style: Style) -> Tensor:
    """A state space of Mamba-2 (Dao and Gu, arXiv 2405.21060): what is read goes past the state, too."""
    keys, values, heads = _heads(g)
    k, q = (_read(g, at, name, x, keys, style) for name in ("k", "q"))
    v = _read(g, at, "v", x, values, style)
    step = g.linear(f"{at}.step_in", x, f"batch seq {heads}", f"embed {heads}", heads if style.mixer_bias else None)
    with g.wide():
        step = _step(g, at, g.cast(f"{at}.core.step.wide", step), heads)
        decay = _decay(g, at, step, heads)
    y = g.scan(f"{at}.core.mixed", k, v, q, decay, step, over="seq state_key")
    y = g.add(f"{at}.core.sum", y, g.mul(f"{at}.core.past", v, g.parameter(f"{at}.past", heads)))
    gate = g.linear(f"{at}.gate", x, f"batch seq {values}", f"embed {values}", values if style.mixer_bias else None)
    opened = g.unary(f"{at}.gate.open", gate, "silu")
    if style.mixer_norm != "before":
        y = g.mul(f"{at}.gated", y, opened)
    if style.mixer_norm:
        y = g.norm(f"{at}.norm", y, "state_group state_value", bias=False, weight=False, **style.written)
        y = g.mul(f"{at}.norm.scaled", y, g.parameter(f"{at}.norm.weight", values))
    if style.mixer_norm == "before":
        y = g.mul(f"{at}.gated", y, opened)
    return _out(g, at, y, values, style)


def _short_convolution(g: Builder, at: str, x: Tensor, style: Style) -> Tensor:
    """A convolution between two gates that come from the hidden state, as it does."""
    bias = "channel" if style.mixer_bias else None
    enter, leave, y = (g.linear(f"{at}.{name}", x, "batch seq channel", "embed channel", bias)
                       for name in ("enter", "leave", "x"))
    y = _convolved(g, at, "mixed", g.mul(f"{at}.entering", enter, y), "channel", style)
    y = g.mul(f"{at}.leaving", leave, y)
    return _out(g, at, y, "channel", style)


def _out(g: Builder, at: str, y: Tensor, dims: str, style: Style) -> Tensor:
    """The last projection of a mixer."""
    biased = style.mixer_bias if style.mixer_out_bias is None else style.mixer_out_bias
    return g.linear(f"{at}.out", y, "batch seq embed", f"{dims} embed", "embed" if biased else None)
