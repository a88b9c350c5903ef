"""Experts in PyTorch: a router, pairs of a token and an expert, and their exchange where experts are split."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from placealg.measure.network import Gpt
from placealg.measure.systems import System

TERMS = "router_losses"
"""The option with which routers have terms of the loss."""

BALANCE_COEFFICIENT, Z_COEFFICIENT = 0.01, 0.001


class Routed(nn.Module):
    """Experts in place of an MLP: each token goes to `topk` of them, dropless, weighted by its probabilities.

    Without a group all experts are here; with one, each of its ranks has an equal part of them. With `terms` the router
    has terms of the loss, `further`: the load of the experts of each sequence, and the size of its logits.
    """

    def __init__(self, embed: int, ffn: int, experts: int, topk: int, terms: bool = False):
        super().__init__()
        self.terms = terms
        self.topk, self.experts = topk, experts
        self.group: Any = None
        self.further: Tensor | None = None
        self.router = nn.Linear(embed, experts, bias=False)
        self.gate, self.up = (nn.Parameter(torch.empty(experts, embed, ffn)) for _ in range(2))
        self.down = nn.Parameter(torch.empty(experts, ffn, embed))

    def forward(self, x: Tensor) -> Tensor:
        """Of (batch, seq, embed) the same."""
        logits = self.router(x)
        scores = logits.softmax(-1)
        chosen, route = scores.topk(self.topk, -1)
        if self.terms:
            self.further = self.balance(scores, route) + self.size(logits)
        order = route.flatten().argsort(stable=True)
        pairs = x.flatten(0, 1)[order // self.topk]
        counts = torch.bincount(route.flatten(), minlength=self.experts)
        results = self.local(pairs, counts[None]) if self.group is None else self.exchanged(pairs, counts)
        back = results[order.argsort()].unflatten(0, (-1, self.topk))
        return (back * chosen.flatten(0, 1).unsqueeze(-1)).sum(1).view_as(x)

    def balance(self, scores: Tensor, route: Tensor) -> Tensor:
        """The sum over tokens of how loaded the experts are that each scores, by how often its sequence chose each."""
        load = torch.zeros(len(route), self.experts, dtype=scores.dtype)
        load.scatter_add_(1, route.flatten(1), torch.ones_like(route.flatten(1), dtype=scores.dtype))
        return ((scores * load.unsqueeze(1)).sum(-1) * BALANCE_COEFFICIENT).sum()

    def size(self, logits: Tensor) -> Tensor:
        """The sum over tokens of the square of the logarithm of the sum of exponentials."""
        return (torch.logsumexp(logits, -1).square() * Z_COEFFICIENT).sum()

    def exchanged(self, pairs: Tensor, counts: Tensor) -> Tensor:
        """Each pair's result, computed by the rank that has its expert; pairs are sorted by expert."""
        n = self.group.size()
        sent = counts.view(n, -1)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self.group)
        there, here = received.sum(1).tolist(), sent.sum(1).tolist()
        rows = _Exchanged.apply(pairs, there, here, self.group)
        return _Exchanged.apply(self.local(rows, received), here, there, self.group)

    def local(self, rows: Tensor, counts: Tensor) -> Tensor:
        """The results of rows that come from each rank sorted by expert; `counts` has a line per rank."""
        pieces = rows.split(counts.flatten().tolist())
        lines, experts = counts.shape
        made: list[tuple[Tensor, ...]] = []
        for e in range(experts):
            mine = [pieces[line * experts + e] for line in range(lines)]
            x = torch.cat(mine) if lines > 1 else mine[0]
            y = functional.silu(x @ self.gate[e]) * (x @ self.up[e]) @ self.down[e]
            made.append(y.split([len(piece) for piece in mine]))
        return torch.cat([made[e][line] for line in range(lines) for e in range(experts)])


class _Exchanged(torch.autograd.Function):
    """Rows that go to other ranks, and come from them, in parts of unequal sizes; backward goes the other way."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, there: list[int], here: list[int], group: Any) -> Tensor:
        """Of `here` rows for each rank, `there` rows from each."""
        ctx.sizes = here, there, group
        return _all_to_all(rows, there, here, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        """The gradients of the rows that went away."""
        here, there, group = ctx.sizes
        return _all_to_all(grads[0].contiguous(), here, there, group), None, None, None


def _all_to_all(rows: Tensor, there: list[int], here: list[int], group: Any) -> Tensor:
    made = rows.new_empty((sum(there), *rows.shape[1:]))
    dist.all_to_all_single(made, rows, there, here, group=group)
    return made


class Single(System):
    """The single device with all experts."""

    def build(self) -> Gpt:
        """The model whose layers have experts."""
        sizes, model = self.trial.sizes, Gpt(self.trial.sizes)
        for layer in model.layers.values():
            layer.mlp = Routed(sizes["h"], sizes["f"], sizes["experts"], sizes["topk"], TERMS in self.trial.options)
        return model

    def loss(self, x: Tensor, positions: Tensor, y: Tensor) -> Tensor:
        """The sum over the rank's tokens, of further terms of its routers too."""
        found = super().loss(x, positions, y)
        for layer in self.model.layers.values() if TERMS in self.trial.options else ():
            found = found + layer.mlp.further
        return found


class Experts(Single):
    """Expert parallel: each rank has some experts, everything else sees other sequences."""

    data = ("ep",)

    def apply(self) -> None:
        """Keep this rank's experts."""
        super().apply()
        assert self.mesh is not None
        for layer in self.model.layers.values():
            layer.mlp.group = self.mesh.get_group("ep")
            for name in ("gate", "up", "down"):
                whole = getattr(layer.mlp, name).detach()
                setattr(layer.mlp, name, nn.Parameter(self.share(f"mlp.{name}", whole).clone()))

    def share(self, name: str, whole: Tensor) -> Tensor:
        """Of an expert's parameter this rank's experts."""
        split = name.endswith(("mlp.gate", "mlp.up", "mlp.down"))
        return whole.chunk(self.size("ep"))[self.at("ep")] if split else whole

    def reduce(self) -> None:
        """Average what every rank has; what is split has seen the tokens of all ranks."""
        assert self.mesh is not None
        for name, parameter in self.model.named_parameters():
            if not name.endswith(("mlp.gate", "mlp.up", "mlp.down")):
                dist.all_reduce(parameter.grad, group=self.mesh.get_group("ep"))
            parameter.grad.div_(self.size("ep"))
