"""Faults of what lies beside the way of a gradient: tokens inside a step, what optimizers keep, terms of the loss."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from hand_written import Hand, Megatron
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.utils._python_dispatch import _disable_current_modes

from placealg.measure.systems import Fsdp, System, TpSp, Zero1

RATE = 0.1


class MovedInside(TpSp):
    """A rank of tp moves the tokens that it has read."""

    axis = "tp"

    def loss(self, x: Tensor, positions: Tensor, y: Tensor) -> Tensor:
        return super().loss(x.roll(self.at(self.axis), 1), positions, y)


class MovedByHand(Hand):
    def loss(self, x: Tensor, positions: Tensor, y: Tensor) -> Tensor:
        return super().loss(x.roll(self.at("dp"), 1), positions, y)


class ChangedInside(Megatron):
    """A rank of tp adds one to the ids of all tokens."""

    def loss(self, x: Tensor, positions: Tensor, y: Tensor) -> Tensor:
        return super().loss((x + self.at("tp")) % self.trial.sizes["V"], positions, y)


class TargetsMoved(Megatron):
    def loss(self, x: Tensor, positions: Tensor, y: Tensor) -> Tensor:
        return super().loss(x, positions, y.roll(self.at("tp"), 1))


class OtherMicrobatches(Megatron):
    """A rank of tp takes the microbatches in another order."""

    def step(self, sent: Any, batches: Any) -> None:
        super().step(sent, batches[::-1] if self.at("tp") else batches)


class OneForAll(Hand):
    """All sequences of a microbatch are its first."""

    def loss(self, x: Tensor, positions: Tensor, y: Tensor) -> Tensor:
        return super().loss(x[:1].repeat(len(x), 1), positions, y[:1].repeat(len(y), 1))


class Adam(Hand):
    """Adam's moments are kept from step to step."""

    def make_optimizer(self, optimizers: Any) -> Any:
        return torch.optim.Adam(self.model.parameters(), RATE)


class Zeroed(Adam):
    def step(self, sent: Any, batches: Any) -> None:
        for kept in self.optimizer.state.values():
            kept["exp_avg"].zero_()
        super().step(sent, batches)


class ZeroedBetween(Adam):
    """Nobody watches when moments are lost."""

    def step(self, sent: Any, batches: Any) -> None:
        super().step(sent, batches)
        with _disable_current_modes():
            for kept in self.optimizer.state.values():
                kept["exp_avg"].zero_()


class ChangedAfter(Adam):
    def step(self, sent: Any, batches: Any) -> None:
        super().step(sent, batches)
        self.optimizer.state[self.model.head.norm.weight]["exp_avg_sq"].mul_(0.5)


class Cleared(Adam):
    def step(self, sent: Any, batches: Any) -> None:
        self.optimizer.state.clear()
        super().step(sent, batches)


class Anew(Adam):
    """Every step has an optimizer of its own."""

    def step(self, sent: Any, batches: Any) -> None:
        self.optimizer = self.make_optimizer(None)
        super().step(sent, batches)


class FsdpAdam(Fsdp):
    def make_optimizer(self, optimizers: Any) -> Any:
        return torch.optim.AdamW(self.model.parameters(), RATE, fused=True)


class FsdpZeroed(FsdpAdam):
    """One rank loses its part of the moments, of which there is no other."""

    def step(self, sent: Any, batches: Any) -> None:
        if self.at("dp"):
            for kept in self.optimizer.state.values():
                kept["exp_avg"].zero_()
        super().step(sent, batches)


class ZeroAdam(Zero1):
    def make_optimizer(self, optimizers: Any) -> Any:
        return ZeroRedundancyOptimizer(self.model.parameters(), torch.optim.Adam, lr=RATE,
                                       process_group=self.along("dp").get_group())


class ZeroZeroed(ZeroAdam):
    def step(self, sent: Any, batches: Any) -> None:
        for kept in self.optimizer.optim.state.values():
            kept["exp_avg"].zero_()
        super().step(sent, batches)


class MomentumLost(Hand):
    def make_optimizer(self, optimizers: Any) -> Any:
        return torch.optim.SGD(self.model.parameters(), RATE, momentum=0.9)

    def step(self, sent: Any, batches: Any) -> None:
        for kept in self.optimizer.state.values():
            kept["momentum_buffer"] = None
        super().step(sent, batches)


class ScaledInside(Adam):
    """A fused optimizer divides gradients by a number that it is given."""

    def make_optimizer(self, optimizers: Any) -> Any:
        made: Any = torch.optim.AdamW(self.model.parameters(), RATE, fused=True)
        made.grad_scale, made.found_inf = (torch.tensor(k, dtype=torch.float32) for k in (2.0, 0.0))
        return made


class _Step(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self.update(p)

    def update(self, p: Tensor) -> None:
        raise NotImplementedError


class _Others(_Step):
    def update(self, p: Tensor) -> None:
        assert p.grad is not None
        p.add_(p.grad.flip(0), alpha=-RATE)


class _Along(_Step):
    def update(self, p: Tensor) -> None:
        assert p.grad is not None
        p.add_(p.grad, alpha=RATE)


class UpdatedByOthers(Hand):
    """Each row is updated by the gradient of another."""

    def make_optimizer(self, optimizers: Any) -> Any:
        return _Others(self.model.parameters(), RATE)


class UpdatedAlong(Hand):
    def make_optimizer(self, optimizers: Any) -> Any:
        return _Along(self.model.parameters(), RATE)


class Besides(Hand):
    """The loss has a term that bounds the logits, beside the cross entropy."""

    def loss(self, x: Tensor, positions: Tensor, y: Tensor) -> Tensor:
        logits = self.runs(x, positions).flatten(0, 1)
        bound = logits.logsumexp(-1).square().sum()
        return bound + nn.functional.cross_entropy(logits, y.flatten(), reduction="sum")


class Regularized(Hand):
    """The loss has the sum of squares of all weights."""

    def loss(self, x: Tensor, positions: Tensor, y: Tensor) -> Tensor:
        squares = torch.stack([p.square().sum() for p in self.model.parameters()]).sum()
        return super().loss(x, positions, y) + squares * self.share()

    def share(self) -> float:
        return 0.1


class RegularizedOne(Regularized):
    def share(self) -> float:
        return 0.2 * self.at("dp")


class OneMicrobatch(Hand):
    """The last microbatch meets weights that are half as large again."""

    def last(self, last: bool) -> AbstractContextManager[Any]:
        self.scale(1.5 if last else 1.0)
        return nullcontext()

    def reduce(self) -> None:
        self.scale(1 / 1.5)
        super().reduce()

    def scale(self, by: float) -> None:
        for p in self.model.parameters():
            p.data.mul_(by)


class Aside(Hand):
    """An average of all weights is kept beside them."""

    def apply(self) -> None:
        super().apply()
        self.average = [p.detach().clone() for p in self.model.parameters()]

    def step(self, sent: Any, batches: Any) -> None:
        super().step(sent, batches)
        with torch.no_grad():
            for kept, p in zip(self.average, self.model.parameters(), strict=True):
                kept.lerp_(p, 0.1)


RIGHT: Mapping[str, tuple[type[System], str]] = {
    "by hand: adam": (Adam, "dp"), "fsdp2: adamw, fused": (FsdpAdam, "zero3"),
    "zero1: adam": (ZeroAdam, "proofs/torch/zero1.toml"), "by hand: an average aside": (Aside, "dp"),
}
"""Right set-ups near to these, and their strategies."""

WRONG: Mapping[str, tuple[type[System], str, str]] = {
    "tp + sp: tokens moved inside": (MovedInside, "tp_sp_keep", ""),
    "by hand: tokens moved inside": (MovedByHand, "dp", ""),
    "megatron: tokens changed inside": (ChangedInside, "dp*tp_sp", ""),
    "megatron: targets moved inside": (TargetsMoved, "dp*tp_sp", ""),
    "megatron: microbatches in another order": (OtherMicrobatches, "dp*tp_sp", ""),
    "by hand: one sequence for all": (OneForAll, "dp", ""),
    "by hand: moments zeroed": (Zeroed, "dp", ""),
    "by hand: moments zeroed between steps": (ZeroedBetween, "dp", ""),
    "by hand: moments changed after the update": (ChangedAfter, "dp", ""),
    "by hand: moments cleared": (Cleared, "dp", ""),
    "by hand: an optimizer for each step": (Anew, "dp", ""),
    "by hand: momentum lost": (MomentumLost, "dp", ""),
    "fsdp2: moments of one rank zeroed": (FsdpZeroed, "zero3", ""),
    "zero1: moments zeroed": (ZeroZeroed, "proofs/torch/zero1.toml", ""),
    "by hand: scaled inside a fused optimizer": (ScaledInside, "dp", "scale"),
    "by hand: updated by others": (UpdatedByOthers, "dp", ""),
    "by hand: updated along the gradient": (UpdatedAlong, "dp", ""),
    "by hand: another term of the loss": (Besides, "dp", ""),
    "by hand: a regularizer": (Regularized, "dp", ""),
    "by hand: a regularizer on one rank": (RegularizedOne, "dp", ""),
    "by hand: other weights in one microbatch": (OneMicrobatch, "dp", ""),
}
"""What is wrong -> the class that does it, the strategy, and the kind of difference; without a kind it is UNSEEN."""
