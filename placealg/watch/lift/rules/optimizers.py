"""Rules of fused optimizers, and of what scales a loss."""

from __future__ import annotations

import numpy as np

from placealg.watch.lift.field import Array
from placealg.watch.lift.rules.call import Call, Values, rule


@rule("_fused_adam", "_fused_adamw")
def _adam(c: Call) -> Values:
    if c.raw("amsgrad", False):
        return None
    f, decoupled = c.f, "adamw" in c.op.name
    rate, decay, eps = c.array("lr"), c.array("weight_decay"), c.array("eps")
    first, second = c.array("beta1"), c.array("beta2")
    one = np.array(1)
    made: list[list[Array]] = [[], [], [], []]
    for w, g, m, v, steps in zip(*(c.arrays(n) for n in ("self", "grads", "exp_avgs", "exp_avg_sqs", "state_steps")),
                                 strict=True):
        if c.raw("grad_scale") is not None:
            g = f.div(g, c.array("grad_scale"))
        kept = g
        if c.raw("maximize", False):
            g = f.neg(g)
        if decoupled:
            w = f.mul(w, f.add(one, f.neg(f.mul(rate, decay))))
        else:
            g = f.add(g, f.mul(w, decay))
        m = f.add(m, f.mul(f.add(one, f.neg(first)), f.add(g, f.neg(m))))
        v = f.add(f.mul(v, second), f.mul(f.add(one, f.neg(second)), f.mul(g, g)))
        taken = int(steps.ravel()[0])
        if not 0 < taken < 2**20:
            return None
        bias = [f.add(one, f.neg(f.power(b, taken))) for b in (first, second)]
        below = f.add(f.div(f.root(v), f.root(bias[1])), eps)
        w = f.add(w, f.neg(f.mul(f.div(rate, bias[0]), f.div(m, below))))
        for into, value in zip(made, (w, kept, m, v), strict=True):
            into.append(value)
    return [v for part in made for v in part]


@rule("_fused_sgd")
def _sgd(c: Call) -> Values:
    f, rate = c.f, c.array("lr")
    momentum, decay, damping = c.raw("momentum", 0.0), c.raw("weight_decay", 0.0), c.raw("dampening", 0.0)
    buffers = c.raw("momentum_buffer_list", [])
    made: list[list[Array]] = [[], [], []]
    for k, (w, g) in enumerate(zip(c.arrays("self"), c.arrays("grads"), strict=True)):
        if c.raw("grad_scale") is not None:
            g = f.div(g, c.array("grad_scale"))
        made[1].append(g)
        if c.raw("maximize", False):
            g = f.neg(g)
        if decay:
            g = f.add(g, f.mul(w, c.of(decay)))
        if momentum:
            kept = g if c.raw("is_first_step", False) else f.add(
                f.mul(c.of(buffers[k]), c.of(momentum)), f.mul(g, f.add(np.array(1), f.neg(c.of(damping)))))
            g = f.add(g, f.mul(kept, c.of(momentum))) if c.raw("nesterov", False) else kept
            made[2].append(kept)
        made[0].append(f.add(w, f.neg(f.mul(rate, g))))
    return [v for part in made for v in part]


@rule("_amp_foreach_non_finite_check_and_unscale")
def _unscale(c: Call) -> Values:
    by = c.array("inv_scale")
    return [*(c.f.mul(x, by) for x in c.arrays("self")), c.array("found_inf")]


@rule("_amp_update_scale")
def _update_scale(c: Call) -> Values:
    """What was found finite, as it was recorded: the scale stays as it is until it has been so for long."""
    return [c.array("self"), *(c.f.zeros(p.shape) for p in c.outs[1:])]
