"""Each rule of the lift in real numbers, held against the op of PyTorch that it stands for, all arguments varied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from placealg.watch.lift.memory import Memory
from placealg.watch.lift.ranks import COUNTED, Run, World
from placealg.watch.lift.rules import RULES
from placealg.watch.lift.trace import Trace

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

Case = Callable[[Any], Iterator[Any]]
"""Draws arguments for an op: what runs it."""


def cases() -> dict[str, list[Any]]:
    """Op -> functions of a generator that call it in some way."""
    import torch
    from torch import Tensor

    def r(g: Any, *shape: int) -> Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64)

    def up(g: Any, *shape: int) -> Tensor:
        return r(g, *shape).abs() + 0.1

    def whole(g: Any, high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, generator=g)

    a = torch.ops.aten
    causal = (torch.arange(5)[:, None] >= torch.arange(5))

    def attends(**more: Any) -> Any:
        def run(g: Any) -> None:
            q, k, v = (r(g, 2, n, 5, 4).requires_grad_() for n in (4, 2, 2))
            made, lse = a._scaled_dot_product_flash_attention_for_cpu(q.detach(), k.detach().repeat_interleave(2, 1),
                                                                      v.detach().repeat_interleave(2, 1), **more)
            a._scaled_dot_product_flash_attention_for_cpu_backward(
                r(g, 2, 4, 5, 4), q.detach(), k.detach().repeat_interleave(2, 1), v.detach().repeat_interleave(2, 1),
                made, lse, 0.0, more.get("is_causal", False), attn_mask=more.get("attn_mask"), scale=more.get("scale"))
        return run

    def targets(g: Any, *shape: int) -> Tensor:
        made = whole(g, 6, *shape)
        made[made == 5] = -100
        made.view(-1)[0] = 1
        return made

    def nll(**more: Any) -> Any:
        def run(g: Any) -> None:
            x, y = r(g, 7, 6), targets(g, 7)
            w = up(g, 6) if more.get("weighed") else None
            for kind in (0, 1, 2):
                made, total = a.nll_loss_forward(x, y, w, kind, -100)
                a.nll_loss_backward(torch.ones_like(made) * 3, x, y, w, kind, -100, total)
        return run

    def nll2d(g: Any) -> None:
        x, y, w = r(g, 2, 6, 3, 2), targets(g, 2, 3, 2), up(g, 6)
        for kind in (0, 1, 2):
            made, total = a.nll_loss2d_forward(x, y, w, kind, -100)
            a.nll_loss2d_backward(torch.ones_like(made) * 3, x, y, w, kind, -100, total)

    def normed(weighed: bool) -> Any:
        def run(g: Any) -> None:
            x, w, b = r(g, 3, 4, 6), r(g, 6) if weighed else None, r(g, 6) if weighed else None
            _, m, s = a.native_layer_norm(x, [6], w, b, 1e-3)
            a.native_layer_norm_backward(r(g, 3, 4, 6), x, [6], m, s, w, b, [True, weighed, weighed])
        return run

    def convolved(x: tuple[int, ...], w: tuple[int, ...], biased: bool, stride: Any, padding: Any, dilation: Any,
                  groups: int, more: Any = None) -> Any:
        def run(g: Any) -> None:
            y, v, turned = r(g, *x), r(g, *w), more is not None
            count, last = w[1] * groups if turned else w[0], more or [0] * (len(w) - 2)
            made = a.convolution(y, v, r(g, count) if biased else None, stride, padding, dilation, turned, last, groups)
            a.convolution_backward(r(g, *made.shape), y, v, [count], stride, padding, dilation, turned, last, groups,
                                   [True, True, biased])
        return run

    def batch_normed(op: Any, training: bool, weighed: bool = True) -> Any:
        def run(g: Any) -> None:
            x, w, b = r(g, 3, 4, 2, 5), r(g, 4) if weighed else None, r(g, 4) if weighed else None
            middle, spread = r(g, 4), up(g, 4)
            _, m, s = op(x, w, b, middle, spread, training, 0.25, 1e-2)
            a.native_batch_norm_backward(r(g, 3, 4, 2, 5), x, w, middle, spread, m, s, training, 1e-2,
                                         [True, weighed, weighed])
        return run

    def group_normed(g: Any) -> None:
        x, w, b = r(g, 3, 4, 2, 5), r(g, 4), r(g, 4)
        _, m, s = a.native_group_norm(x, w, b, 3, 4, 10, 2, 1e-2)
        a.native_group_norm_backward(r(g, 3, 4, 2, 5), x, m, s, w, 3, 4, 10, 2, [True, True, True])

    def pooled(g: Any) -> None:
        made, at = a.max_pool2d_with_indices(x := r(g, 2, 3, 6, 5), [3, 2], [2, 1], [1, 0])
        a.max_pool2d_with_indices_backward(r(g, *made.shape), x, [3, 2], [2, 1], [1, 0], [1, 1], False, at)

    def averaged(g: Any) -> None:
        made = a.avg_pool2d(x := r(g, 2, 3, 6, 5), [3, 2], [2, 1], [1, 0])
        a.avg_pool2d_backward(r(g, *made.shape), x, [3, 2], [2, 1], [1, 0], False, True, None)
        a._adaptive_avg_pool2d_backward(r(g, *a._adaptive_avg_pool2d(x, [4, 2]).shape), x)

    def adam(kind: Any, **more: Any) -> Any:
        def run(g: Any) -> None:
            shapes = ((3, 2), (5,))
            lists = [[r(g, *s) for s in shapes] for _ in range(3)] + [[up(g, *s) for s in shapes]]
            kind(*lists, [], [torch.tensor(3.0), torch.tensor(3.0)], lr=0.1, beta1=0.8, beta2=0.9, weight_decay=0.05,
                 eps=1e-2, amsgrad=False, **{"maximize": False, **more})
        return run

    def sgd(**more: Any) -> Any:
        def run(g: Any) -> None:
            every = [[r(g, 3, 2), r(g, 4)] for _ in range(3)]
            a._fused_sgd_(*every, weight_decay=0.1, momentum=0.7, lr=0.2, dampening=0.3, **{
                "nesterov": False, "maximize": False, "is_first_step": False, **more})
        return run

    return {
        "add": [lambda g: a.add(r(g, 3, 4), r(g, 4), alpha=3), lambda g: r(g, 3).add_(2.5)],
        "sub": [lambda g: a.sub(r(g, 3, 4), r(g, 4), alpha=3), lambda g: r(g, 3).sub_(2.5)],
        "rsub": [lambda g: a.rsub(r(g, 3), 2.0, 3.0)],
        "mul": [lambda g: a.mul(r(g, 3, 4), r(g, 4)), lambda g: a.mul(r(g, 3), 2.5),
                lambda g: a.mul(torch.view_as_complex(r(g, 3, 2)), torch.view_as_complex(r(g, 3, 2)))],
        "div": [lambda g: a.div(r(g, 3, 4), r(g, 4)), lambda g: a.div(r(g, 3), 2.5)],
        "neg": [lambda g: a.neg(r(g, 3))], "reciprocal": [lambda g: a.reciprocal(r(g, 3))],
        "sqrt": [lambda g: a.sqrt(up(g, 3))], "rsqrt": [lambda g: a.rsqrt(up(g, 3))],
        "exp": [lambda g: a.exp(r(g, 3))], "log": [lambda g: a.log(up(g, 3))], "log1p": [lambda g: a.log1p(up(g, 3))],
        "pow": [lambda g: a.pow(r(g, 3), 3), lambda g: a.pow(up(g, 3), 0.5), lambda g: a.pow(up(g, 3), -0.5),
                lambda g: a.pow(up(g, 3), 1.7), lambda g: a.pow(2.0, r(g, 3)), lambda g: a.pow(r(g, 3), 2),
                lambda g: a.pow(up(g, 3), -2)],
        "sigmoid": [lambda g: a.sigmoid(r(g, 3))], "silu": [lambda g: a.silu(r(g, 3))],
        "sigmoid_backward": [lambda g: a.sigmoid_backward(r(g, 3), r(g, 3).sigmoid())],
        "silu_backward": [lambda g: a.silu_backward(r(g, 3), r(g, 3))],
        "log_sigmoid_forward": [lambda g: a.log_sigmoid_forward(r(g, 3))],
        "log_sigmoid_backward": [lambda g: a.log_sigmoid_backward(r(g, 3), x := r(g, 3),
                                                                  a.log_sigmoid_forward(x)[1])],
        "tanh": [lambda g: a.tanh(r(g, 3))],
        "tanh_backward": [lambda g: a.tanh_backward(r(g, 3), r(g, 3).tanh())],
        "gelu": [lambda g: a.gelu(r(g, 3)), lambda g: a.gelu(r(g, 3), approximate="tanh")],
        "gelu_backward": [lambda g: a.gelu_backward(r(g, 3), r(g, 3)),
                          lambda g: a.gelu_backward(r(g, 3), r(g, 3), approximate="tanh")],
        "threshold_backward": [lambda g: a.threshold_backward(r(g, 5), r(g, 5), 0.25)],
        **{n: [lambda g, n=n: getattr(a, n)(r(g, 5))] for n in (
            "abs", "cos", "sin", "erf", "relu", "sgn", "sign", "expm1", "floor", "ceil", "round", "tan", "trunc",
            "frac")},
        "clamp": [lambda g: a.clamp(r(g, 6), -0.5, 0.4), lambda g: a.clamp(r(g, 6), None, 0.4),
                  lambda g: a.clamp(r(g, 6), r(g, 6), None)],
        "clamp_max": [lambda g: a.clamp_max(r(g, 6), 0.1)], "clamp_min": [lambda g: a.clamp_min(r(g, 6), 0.1)],
        "maximum": [lambda g: a.maximum(r(g, 6), r(g, 6))], "minimum": [lambda g: a.minimum(r(g, 6), r(g, 6))],
        "lerp": [lambda g: a.lerp(r(g, 6), r(g, 6), 0.3), lambda g: a.lerp(r(g, 6), r(g, 6), r(g, 6))],
        "addcmul": [lambda g: a.addcmul(r(g, 6), r(g, 6), r(g, 6), value=0.3),
                    lambda g: a.addcmul(r(g, 6), x := r(g, 6), x, value=0.3)],
        "addcdiv": [lambda g: a.addcdiv(r(g, 6), r(g, 6), r(g, 6), value=0.3)],
        "where": [lambda g: a.where(r(g, 6) > 0, r(g, 6), r(g, 1))],
        "masked_fill": [lambda g: a.masked_fill(r(g, 6), r(g, 6) > 0, 2.5)],
        "cat": [lambda g: a.cat([r(g, 2, 3), r(g, 2, 1)], 1)], "stack": [lambda g: a.stack([r(g, 2), r(g, 2)], 1)],
        "flip": [lambda g: a.flip(r(g, 2, 3), [1])],
        "roll": [lambda g: a.roll(r(g, 2, 3), [1], [1]), lambda g: a.roll(r(g, 2, 3), [2])],
        "repeat": [lambda g: a.repeat(r(g, 2, 3), [2, 1, 2])],
        "triu": [lambda g: a.triu(r(g, 3, 4), 1)], "tril": [lambda g: a.tril(r(g, 3, 4), -1)],
        "constant_pad_nd": [lambda g: a.constant_pad_nd(r(g, 2, 3), [1, 2, 0, 1], 1.5)],
        "slice_backward": [lambda g: a.slice_backward(r(g, 2, 2), [2, 5], 1, 1, 5, 2)],
        "slice_scatter": [lambda g: a.slice_scatter(r(g, 2, 5), r(g, 2, 2), 1, 1, 5, 2)],
        "select_backward": [lambda g: a.select_backward(r(g, 2), [2, 5], 1, 3)],
        "select_scatter": [lambda g: a.select_scatter(r(g, 2, 5), r(g, 2), 1, 3)],
        "split_with_sizes_copy": [lambda g: a.split_with_sizes_copy(r(g, 2, 5), [2, 3], 1)],
        "unbind_copy": [lambda g: a.unbind_copy(r(g, 2, 3), 1)],
        "_chunk_cat": [lambda g: a._chunk_cat([r(g, 5, 2), r(g, 3)], 0, 2)],
        "embedding": [lambda g: a.embedding(r(g, 6, 3), whole(g, 6, 2, 4))],
        "embedding_dense_backward": [lambda g: a.embedding_dense_backward(r(g, 2, 4, 3), whole(g, 6, 2, 4), 6, 2,
                                                                         False)],
        "index_select": [lambda g: a.index_select(r(g, 3, 4), 1, whole(g, 4, 5))],
        "index": [lambda g: a.index(r(g, 3, 4), [None, whole(g, 4, 5)]),
                  lambda g: a.index(r(g, 3, 4), [whole(g, 3, 5), whole(g, 4, 5)]),
                  lambda g: a.index(r(g, 3, 4), [r(g, 3, 4) > 0])],
        "index_put": [lambda g: a.index_put(r(g, 3, 4), [whole(g, 3, 5)], r(g, 5, 4), True),
                      lambda g: a.index_put(r(g, 3, 4), [torch.tensor([0, 2])], r(g, 2, 4))],
        "gather": [lambda g: a.gather(r(g, 3, 4), 1, whole(g, 4, 3, 2))],
        "scatter": [lambda g: a.scatter(r(g, 3, 4), 1, torch.tensor([[0], [2], [1]]), r(g, 3, 1)),
                    lambda g: a.scatter(r(g, 3, 4), 1, torch.tensor([[0], [2], [1]]), 2.5)],
        "scatter_add": [lambda g: a.scatter_add(r(g, 3, 4), 1, whole(g, 4, 3, 6)[:, :4], r(g, 3, 5))],
        "index_add": [lambda g: a.index_add(r(g, 3, 4), 1, whole(g, 4, 6), r(g, 3, 6), alpha=2)],
        "topk": [lambda g: a.topk(r(g, 3, 6), 2, 1)], "sort": [lambda g: a.sort(r(g, 3, 6), 0)],
        "masked_select": [lambda g: a.masked_select(r(g, 3, 6), r(g, 3, 6) > 0)],
        "masked_scatter": [lambda g: a.masked_scatter(r(g, 3, 4), r(g, 3, 4) > 0, r(g, 3, 4))],
        "cumsum": [lambda g: a.cumsum(r(g, 3, 4), 1)],
        "sum": [lambda g: a.sum(r(g, 3, 4), [1], True), lambda g: a.sum(r(g, 3, 4))],
        "mean": [lambda g: a.mean(r(g, 3, 4), [-1], True), lambda g: a.mean(r(g, 3, 4))],
        "amax": [lambda g: a.amax(r(g, 3, 4), [1], True), lambda g: a.amax(r(g, 3, 4), [0, 1])],
        "max": [lambda g: a.max(r(g, 3, 4))], "logsumexp": [lambda g: a.logsumexp(r(g, 3, 4), [1], True)],
        "var": [lambda g: a.var(r(g, 3, 4), [1], correction=1), lambda g: a.var(r(g, 3, 4), [1], correction=0)],
        "var_mean": [lambda g: a.var_mean(r(g, 3, 4), [1], correction=0, keepdim=True)],
        "std": [lambda g: a.std(r(g, 3, 4), [1], correction=1)],
        "linalg_vector_norm": [lambda g, n=n: a.linalg_vector_norm(r(g, 3, 4), n, [1], True)
                               for n in (2, 1, float("inf"))],
        "norm": [lambda g: a.norm(r(g, 3, 4), 2, [0, 1])],
        "mm": [lambda g: a.mm(r(g, 3, 4), r(g, 4, 2))], "bmm": [lambda g: a.bmm(r(g, 2, 3, 4), r(g, 2, 4, 2))],
        "mv": [lambda g: a.mv(r(g, 3, 4), r(g, 4))], "dot": [lambda g: a.dot(r(g, 4), r(g, 4))],
        "addmm": [lambda g: a.addmm(r(g, 2), r(g, 3, 4), r(g, 4, 2), beta=2, alpha=3),
                  lambda g: a.addmm(r(g, 2), r(g, 3, 4), r(g, 4, 2))],
        "baddbmm": [lambda g: a.baddbmm(r(g, 2, 3, 2), r(g, 2, 3, 4), r(g, 2, 4, 2), beta=0.5, alpha=3)],
        "native_layer_norm": [normed(True), normed(False)], "native_layer_norm_backward": [],
        "_weight_norm_interface": [lambda g: a._weight_norm_interface(r(g, 3, 4), r(g, 3, 1), 0),
                                   lambda g: a._weight_norm_interface(r(g, 3, 4), r(g, 1, 4), 1)],
        "_weight_norm_interface_backward": [lambda g: a._weight_norm_interface_backward(
            r(g, 3, 4), v := r(g, 3, 4), r(g, 3, 1), v.norm(dim=1, keepdim=True), 0)],
        "_softmax": [lambda g: a._softmax(r(g, 3, 4), 1, False), lambda g: a._softmax(r(g, 3, 4), 0, False)],
        "_safe_softmax": [lambda g: a._safe_softmax(r(g, 3, 4), 1)],
        "_log_softmax": [lambda g: a._log_softmax(r(g, 3, 4), 0, False)],
        "_softmax_backward_data": [lambda g: a._softmax_backward_data(r(g, 3, 4), r(g, 3, 4).softmax(0), 0,
                                                                     torch.float64)],
        "_log_softmax_backward_data": [lambda g: a._log_softmax_backward_data(
            r(g, 3, 4), r(g, 3, 4).log_softmax(1), 1, torch.float64)],
        "nll_loss_forward": [nll(), nll(weighed=True)], "nll_loss_backward": [],
        "mse_loss": [lambda g, n=n: a.mse_loss(r(g, 3, 4), r(g, 3, 4), n) for n in (0, 1, 2)],
        "mse_loss_backward": [lambda g, n=n: a.mse_loss_backward(r(g), r(g, 3, 4), r(g, 3, 4), n) for n in (1, 2)],
        "convolution": [convolved((2, 4, 6, 5), (6, 2, 3, 2), True, [2, 1], [1, 0], [1, 2], 2),
                        convolved((2, 3, 7), (4, 3, 3), False, [2], [2], [1], 1),
                        convolved((1, 4, 3, 4, 5), (4, 1, 2, 2, 3), True, [1, 1, 1], [0, 1, 1], [1, 1, 1], 4),
                        convolved((2, 4, 3, 2), (4, 3, 3, 2), True, [2, 1], [1, 0], [1, 2], 2, [1, 0]),
                        convolved((2, 3, 4), (3, 2, 3), False, [2], [1], [1], 1, [1])],
        "upsample_nearest1d_backward": [lambda g: a.upsample_nearest1d_backward(r(g, 2, 3, 7), [7], [2, 3, 3])],
        "upsample_nearest2d_backward": [
            lambda g: a.upsample_nearest2d_backward(r(g, 2, 3, 4, 6), [4, 6], [2, 3, 2, 3], 2.0, 2.0),
            lambda g: a.upsample_nearest2d_backward(r(g, 2, 3, 5, 4), [5, 4], [2, 3, 2, 3])],
        "upsample_nearest3d_backward": [
            lambda g: a.upsample_nearest3d_backward(r(g, 1, 2, 4, 2, 3), [4, 2, 3], [1, 2, 2, 2, 2])],
        "native_batch_norm": [batch_normed(a.native_batch_norm, True), batch_normed(a.native_batch_norm, False),
                              batch_normed(a.native_batch_norm, True, False)],
        "_native_batch_norm_legit": [batch_normed(a._native_batch_norm_legit, True)],
        "native_group_norm": [group_normed], "max_pool2d_with_indices": [pooled], "avg_pool2d": [averaged],
        **{n: [lambda g, n=n: getattr(a, n)(r(g, 5)), lambda g, n=n: getattr(a, f"{n}_backward")(r(g, 5), r(g, 5))]
           for n in ("hardswish", "hardsigmoid", "mish")},
        "leaky_relu": [lambda g: a.leaky_relu(r(g, 5), 0.2), lambda g: a.leaky_relu_backward(r(g, 5), r(g, 5), 0.2,
                                                                                           False)],
        "elu": [lambda g: a.elu(r(g, 5), 0.7, 1.1, 0.9), lambda g: a.elu_backward(r(g, 5), 0.7, 1.1, 0.9, False,
                                                                                r(g, 5))],
        "softplus": [lambda g: a.softplus(r(g, 5), 2, 0.5), lambda g: a.softplus_backward(r(g, 5), r(g, 5), 2, 0.5)],
        "hardtanh": [lambda g: a.hardtanh(r(g, 5), -0.5, 0.4), lambda g: a.hardtanh_backward(r(g, 5), r(g, 5), -0.5,
                                                                                           0.4)],
        **{n: [lambda g, n=n, k=k: getattr(a, n)(r(g, 3, 4), r(g, 3, 4), k, 0.3) for k in (0, 1, 2)] + [
            lambda g, n=n, k=k: getattr(a, f"{n}_backward")(r(g), r(g, 3, 4), r(g, 3, 4), k, 0.3) for k in (1, 2)]
           for n in ("smooth_l1_loss", "huber_loss")},
        "binary_cross_entropy": [lambda g, k=k: a.binary_cross_entropy(r(g, 5).sigmoid(), r(g, 5).sigmoid(), None, k)
                                 for k in (0, 1, 2)] + [lambda g: a.binary_cross_entropy_backward(
                                     r(g), r(g, 5).sigmoid(), r(g, 5).sigmoid(), None, 1)],
        "binary_cross_entropy_with_logits": [lambda g, k=k: a.binary_cross_entropy_with_logits(
            r(g, 5), r(g, 5).sigmoid(), None, None, k) for k in (0, 1, 2)],
        **{n: [lambda g, n=n: getattr(a, n)(r(g, 5))] for n in ("atan", "exp2", "nan_to_num", "softshrink",
                                                                "hardshrink", "erfc", "asinh")},
        **{n: [lambda g, n=n: getattr(a, n)(up(g, 5))] for n in ("log2",)},
        **{n: [lambda g, n=n: getattr(a, n)(up(g, 5), up(g, 5))] for n in ("atan2", "xlogy", "logaddexp")},
        "logit": [lambda g: a.logit(r(g, 5).sigmoid())],
        "_scaled_dot_product_flash_attention_for_cpu": [
            attends(), attends(is_causal=True), attends(scale=0.3),
            attends(attn_mask=torch.where(causal, 0.0, float("-inf")).double())],
        "_scaled_dot_product_flash_attention_for_cpu_backward": [],
        "_fused_adam": [adam(a._fused_adam_), adam(a._fused_adam_, maximize=True),
                        adam(a._fused_adam_, grad_scale=torch.tensor(2.0), found_inf=torch.tensor(0.0))],
        "_fused_adamw": [adam(a._fused_adamw_), adam(a._fused_adamw_, maximize=True)],
        "_fused_sgd": [sgd(), sgd(nesterov=True), sgd(maximize=True), sgd(is_first_step=True)],
        "_amp_foreach_non_finite_check_and_unscale": [lambda g: a._amp_foreach_non_finite_check_and_unscale_(
            [r(g, 3), r(g, 2)], torch.tensor(0.0), torch.tensor(0.25))],
        "copy": [lambda g: r(g, 3, 4).copy_(r(g, 4))], "clone": [lambda g: a.clone(r(g, 3, 4).t())],
        "zeros": [lambda g: a.zeros([2])], "ones": [lambda g: a.ones([2])], "full": [lambda g: a.full([2], 1.5)],
        "eye": [lambda g: a.eye(3)], "arange": [lambda g: a.arange(3, dtype=torch.float64)],
        "_amp_update_scale": [lambda g: a._amp_update_scale_(
            torch.tensor(8.0), torch.tensor(1, dtype=torch.int32), torch.tensor(0.0), 2.0, 0.5, 100)],
        "_conj_physical": [lambda g: a._conj_physical(torch.view_as_complex(r(g, 3, 2)))],
        "polar": [lambda g: a.polar(up(g, 3), r(g, 3))],
        "_index_put_impl": [lambda g: a._index_put_impl_(r(g, 3, 4), [whole(g, 3, 5)], r(g, 5, 4), True)],
        "_to_copy": [lambda g: a._to_copy(r(g, 3), dtype=torch.float32), lambda g: r(g, 3).to(torch.bfloat16)],
        "addmv": [lambda g: a.addmv(r(g, 3), r(g, 3, 4), r(g, 4), beta=2, alpha=3)],
        "index_copy": [lambda g: a.index_copy(r(g, 3, 4), 1, torch.tensor([2, 0]), r(g, 3, 2))],
        "min": [lambda g: a.min(r(g, 3, 4)), lambda g: a.min(r(g, 3, 4), 1)],
        "amin": [lambda g: a.amin(r(g, 3, 4), [1], True)], "max.dim": [lambda g: a.max(r(g, 3, 4), 1)],
        "nll_loss2d_forward": [nll2d], "linspace": [lambda g: a.linspace(0.0, 2.0, 5, dtype=torch.float64)],
        "fill": [lambda g: r(g, 3).fill_(1.5)], "zero": [lambda g: r(g, 3).zero_()],
        **{n: [lambda g, n=n: getattr(a, n)(r(g, 3))] for n in ("zeros_like", "ones_like")},
        **{n: [lambda g, n=n: getattr(a, n)(r(g, 3), [2])] for n in ("new_zeros", "new_ones")},
        "full_like": [lambda g: a.full_like(r(g, 3), 1.5)], "new_full": [lambda g: a.new_full(r(g, 3), [2], 1.5)],
        "scalar_tensor": [lambda g: a.scalar_tensor(1.5, dtype=torch.float64)],
        "_foreach_mul": [lambda g: torch._foreach_mul([r(g, 2), r(g, 3)], 1.5),
                         lambda g: torch._foreach_mul_([r(g, 2), r(g, 3)], [1.5, 2.5]),
                         lambda g: torch._foreach_mul_([r(g, 2), r(g, 3)], r(g))],
        "_foreach_add": [lambda g: torch._foreach_add([r(g, 2), r(g, 3)], [r(g, 2), r(g, 3)], alpha=2)],
        "_foreach_addcdiv": [lambda g: torch._foreach_addcdiv_(
            [r(g, 2), r(g, 3)], [r(g, 2), r(g, 3)], [up(g, 2), up(g, 3)], value=0.5)],
        "_foreach_addcmul": [lambda g: torch._foreach_addcmul_(
            [r(g, 2), r(g, 3)], [r(g, 2), r(g, 3)], [r(g, 2), r(g, 3)], [0.5, 0.25])],
        "_foreach_lerp": [lambda g: torch._foreach_lerp_([r(g, 2), r(g, 3)], [r(g, 2), r(g, 3)], 0.25)],
        "_foreach_norm": [lambda g: torch._foreach_norm([r(g, 2), r(g, 3)], 2)],
        "_foreach_div": [lambda g: torch._foreach_div([r(g, 2), r(g, 3)], [2.0, 3.0])],
        "_foreach_sqrt": [lambda g: torch._foreach_sqrt([up(g, 2), up(g, 3)])],
        "_foreach_neg": [lambda g: torch._foreach_neg([r(g, 2), r(g, 3)])],
        "_foreach_copy": [lambda g: torch._foreach_copy_([r(g, 2), r(g, 3)], [r(g, 2), r(g, 3)])],
        "_foreach_zero": [lambda g: torch._foreach_zero_([r(g, 2), r(g, 3)])],
        "_foreach_pow": [lambda g: torch._foreach_pow([r(g, 2), r(g, 3)], 2)],
        "_foreach_clamp_max": [lambda g: torch._foreach_clamp_max_([r(g, 2), r(g, 3)], 0.1)],
        "_foreach_reciprocal": [lambda g: torch._foreach_reciprocal([up(g, 2), up(g, 3)])],
    }


CAST = 1e-8
"""What a number that is written in fewer bits may be away counts as much less."""


def run_again(trace: Trace, real: list[Any]) -> list[tuple[str, float]]:
    """(op, how far what it wrote is from the real numbers) of every op of a trace, each from real operands."""
    from reals import Reals

    numbers = Reals()
    one = Run(trace, Memory(numbers, trace, np.zeros(1)))
    world = World({0: one}, numbers, False)
    found = []
    for op, after in zip(trace.ops, real, strict=True):
        world.apply(one, op)
        found += [(f"{op.name}: {what}", float("inf")) for what in one.unseen]
        one.unseen.clear()
        for place, want in zip([p for p in op.written if p.floating], after, strict=True):
            got = np.array(one.memory.view(place))
            away = float(np.abs(got - want).max(initial=0.0))
            found.append((op.name, away if place.dtype == "float64" else away * CAST))
            one.memory.view(place)[...] = want
    return found


def test_rules_are_the_ops_in_real_numbers() -> None:
    """Every op runs under the recorder in float64; its rule gives the same numbers."""
    import torch

    from placealg.watch.recorder.ops import numbers as numbers_of
    from placealg.watch.recorder.trace import Tracer

    class Checked(Tracer):
        """Keeps what every op wrote, too."""

        def __init__(self) -> None:
            super().__init__(0)
            self.real: list[Any] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = super().__torch_dispatch__(func, types, args, kwargs)
            if len(self.trace.ops) > len(self.real):  # of one that consists of others these have told
                self.real.append([self.values(p) for p in self.trace.ops[-1].written if p.floating])
            return made

        def values(self, place: Any) -> Any:
            storage = next(s for s in self.alive if self.stores[s._cdata] == place.store)
            kind = getattr(torch, place.dtype)
            flat = torch.empty(0, dtype=kind).set_(storage, place.offset, place.shape, place.stride)
            return numbers_of(flat)

    seen: set[str] = set()
    wrong: list[Any] = []
    for name, ways in cases().items():
        for k, way in enumerate(ways):
            checked = Checked()
            checked.trace.begun = 1000  # operands were there before
            draw = torch.Generator().manual_seed(7 + k)
            with checked:
                way(draw)
            told = run_again(*drawn_apart(checked.trace, checked.real))
            for op, away in told:
                wrong += [(name, k, op, away)] if not away < 1e-9 else []
                seen.add(op.removeprefix("aten::").removesuffix("_"))
    assert not wrong
    missing = {n for n in RULES if n not in seen} - UNTRIED
    assert not missing, ' '.join(sorted(missing))


def drawn_apart(trace: Trace, real: list[Any]) -> tuple[Trace, list[Any]]:
    """A trace without the ops that only made its operands: what they drew are the numbers that stand there."""
    def draws(op: Any) -> bool:
        return (bool(op.drawn) and op.name not in COUNTED) or op.name == "aten::empty"

    kept = [(o, v) for o, v in zip(trace.ops, real, strict=True) if not draws(o)]
    for op, values in zip(trace.ops, real, strict=True):
        if draws(op):
            for place, value in zip([p for p in op.written if p.floating], values, strict=True):
                trace.leaf[place.store] = place.item, value.ravel()
    trace.ops[:] = [o for o, _ in kept]
    return trace, [v for _, v in kept]


UNTRIED = frozenset(("fsdp::copy", "fsdp::all_gather_copy_in", "fsdp::chunk_cat", "fsdp::split_with_sizes_copy",
                     "fsdp::chunk_cat_mixed_dtype", "empty", "empty_like", "empty_permuted", "empty_strided",
                     "new_empty", "new_empty_strided"))
"""Rules of ops that FSDP2 has, which are tried where it runs, and of such as make nothing."""
