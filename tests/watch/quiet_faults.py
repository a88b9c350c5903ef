"""Faults that leave every collective, group and operator of a gradient's way as they are in the right set-up."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from hand_written import Hand, Megatron
from torch import Tensor, nn

from placealg.measure.systems import CLIP, Fsdp, System, TpSp

RATE = 0.1


class Ascent(Hand):
    """Gradients are negated."""

    def reduce(self) -> None:
        super().reduce()
        for p in self.model.parameters():
            p.grad.neg_()


class OneSubtracted(Hand):
    """The loss of every other microbatch is subtracted."""

    sign = -1

    def loss(self, x: Tensor, positions: Tensor, y: Tensor) -> Tensor:
        self.sign = -self.sign
        return super().loss(x, positions, y) * self.sign


class Maximized(Hand):
    def make_optimizer(self, optimizers: Any) -> Any:
        return torch.optim.SGD(self.model.parameters(), RATE, maximize=True)


class NoneFromOne(Hand):
    """The tokens of the first rank count twice, those of the second never."""

    def loss(self, x: Tensor, positions: Tensor, y: Tensor) -> Tensor:
        return super().loss(x, positions, y) * (0.0 if self.at("dp") else 2.0)


class _OtherNorm(Fsdp):
    """The norm is reduced over dp, and another number comes of it."""

    def clip(self) -> None:
        grads = [p.grad.to_local() for p in self.model.parameters()]
        group = self.along("dp").get_group()
        factor = (CLIP / (self.total(nn.utils.get_total_norm(grads), group) + 1e-6)).clamp(max=1.0)
        for grad in grads:
            grad.mul_(factor)

    def total(self, own: Tensor, group: Any) -> Tensor:
        raise NotImplementedError


class LargestNorm(_OtherNorm):
    def total(self, own: Tensor, group: Any) -> Tensor:
        dist.all_reduce(own, op=dist.ReduceOp.MAX, group=group)
        return own


class MeanOfSquares(_OtherNorm):
    def total(self, own: Tensor, group: Any) -> Tensor:
        squares = own ** 2 / group.size()
        dist.all_reduce(squares, group=group)
        return squares.sqrt()


class SumOfNorms(_OtherNorm):
    def total(self, own: Tensor, group: Any) -> Tensor:
        dist.all_reduce(own, group=group)
        return own


class SomeTwice(Hand):
    """Some gradients count twice in the norm, as a tied weight that has two names."""

    def clip(self) -> None:
        every = list(self.model.parameters())
        nn.utils.clip_grads_with_norm_(every, CLIP, nn.utils.get_total_norm([p.grad for p in every + every[:3]]))


class LargestElement(Hand):
    def clip(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP, norm_type=float("inf"))


class OtherLimit(_OtherNorm):
    """Each rank clips to a norm of its own."""

    def total(self, own: Tensor, group: Any) -> Tensor:
        squares = own ** 2
        dist.all_reduce(squares, group=group)
        return squares.sqrt() * (1 + self.at("dp"))


class Enlarged(_OtherNorm):
    """What is shorter than the norm to which others are clipped is made as long."""

    def clip(self) -> None:
        grads = [p.grad.to_local() for p in self.model.parameters()]
        squares = nn.utils.get_total_norm(grads) ** 2
        dist.all_reduce(squares, group=self.along("dp").get_group())
        for grad in grads:
            grad.mul_(100 / squares.sqrt())


class HalfReduced(Hand):
    """Half of each gradient is reduced."""

    def reduce(self) -> None:
        for p in self.model.parameters():
            half = p.grad.view(-1)[:p.numel() // 2]
            dist.all_reduce(half, group=self.group("dp"))
            half.div_(self.size("dp"))


class ClippedThenDivided(Hand):
    """What is clipped is the sum over ranks; it is divided when it has been clipped."""

    def reduce(self) -> None:
        for p in self.model.parameters():
            dist.all_reduce(p.grad, group=self.group("dp"))

    def clip(self) -> None:
        super().clip()
        for p in self.model.parameters():
            p.grad.div_(self.size("dp"))


class _Afterwards(Hand):
    """New weights are changed when the optimizer has made them."""

    def step(self, sent: Any, batches: Any) -> None:
        super().step(sent, batches)
        with torch.no_grad():
            self.change(self.model.layers["0"].mlp.up.weight)

    def change(self, weight: Tensor) -> None:
        weight.mul_(0.5)


class AfterwardsFlipped(_Afterwards):
    def change(self, weight: Tensor) -> None:
        weight.copy_(weight.flip(0))


class AfterwardsHalf(_Afterwards):
    """One half of the rows is copied over the other."""

    def change(self, weight: Tensor) -> None:
        half = weight.shape[0] // 2
        weight[:half].copy_(weight[half:])


class InPostHook(Hand):
    """A hook of the optimizer changes new weights."""

    def make_optimizer(self, optimizers: Any) -> Any:
        made = super().make_optimizer(optimizers)
        made.register_step_post_hook(self.halved)
        return made

    def halved(self, *_: Any) -> None:
        with torch.no_grad():
            self.model.head.norm.weight.mul_(0.5)


class InPreHook(Hand):
    """A hook of the optimizer changes gradients, after all that is done to them before its step."""

    def make_optimizer(self, optimizers: Any) -> Any:
        made = super().make_optimizer(optimizers)
        made.register_step_pre_hook(self.doubled)
        return made

    def doubled(self, *_: Any) -> None:
        for p in self.model.parameters():
            p.grad.mul_(2)


class Before(Fsdp):
    """Weights are multiplied by a number before forward."""

    def step(self, sent: Any, batches: Any) -> None:
        with torch.no_grad():
            for p in self.model.parameters():
                p.to_local().mul_(0.5)
        super().step(sent, batches)


class FewerMicrobatches(Hand):
    """The second rank has a microbatch less, and divides by as many as it has."""

    def step(self, sent: Any, batches: Any) -> None:
        whole = self.trial
        own = batches[:-1] if self.at("dp") else batches
        self.trial = replace(whole, m=len(own))
        super().step(sent, own)
        self.trial = whole


class UnequalCounts(Hand):
    """Half of the second rank's targets are padding, and each rank takes the mean over its own."""

    def loss(self, x: Tensor, positions: Tensor, y: Tensor) -> Tensor:
        targets = y.clone()
        if self.at("dp"):
            targets[:, :y.shape[1] // 2] = -100
        logits = self.runs(x, positions).flatten(0, 1)
        return nn.functional.cross_entropy(logits, targets.flatten()) * y.numel()


def _read(system: Any, batches: Any, change: Callable[[int, Tensor], Tensor]) -> Any:
    """Batches as a loader that knows a rank's number gives them, once for all steps."""
    if not hasattr(system, "own_batches"):
        system.own_batches = [tuple(change(k, t) for k, t in enumerate(batch)) for batch in batches]
    return system.own_batches


class OtherTokens(TpSp):
    """Ranks of tp read different tokens."""

    def step(self, sent: Any, batches: Any) -> None:
        super().step(sent, _read(self, batches, lambda k, t: t.roll(self.at("tp"), 1)))


class OtherTargets(TpSp):
    """Ranks of tp read different targets."""

    def step(self, sent: Any, batches: Any) -> None:
        super().step(sent, _read(self, batches, lambda k, t: t.roll(k * self.at("tp"), 1)))


class OtherTokensByHand(Megatron):
    def step(self, sent: Any, batches: Any) -> None:
        super().step(sent, _read(self, batches, lambda k, t: t.roll(self.at("tp"), 1)))


class OtherRate(Fsdp):
    """Each rank has a rate of its own: what is split has no replica that tells."""

    def make_optimizer(self, optimizers: Any) -> Any:
        return torch.optim.SGD(self.model.parameters(), RATE * (1 + self.at("dp")))


class OtherMoments(Hand):
    """The second rank's moments are lost, as where one rank alone resumes."""

    def make_optimizer(self, optimizers: Any) -> Any:
        return torch.optim.Adam(self.model.parameters(), RATE)

    def step(self, sent: Any, batches: Any) -> None:
        if self.at("dp"):
            for state in self.optimizer.state.values():
                state["exp_avg"].zero_()
        super().step(sent, batches)


class _ClippedInside(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        grads = [p.grad.to_local() for group in self.param_groups for p in group["params"]]
        factor = (CLIP / (nn.utils.get_total_norm(grads) + 1e-6)).clamp(max=1.0)
        for grad in grads:
            grad.mul_(factor)
        super().step()


class ClippedInside(Fsdp):
    """The optimizer itself clips by the norm of a rank's own shards."""

    def make_optimizer(self, optimizers: Any) -> Any:
        return _ClippedInside(self.model.parameters(), RATE)


class NotWaited(Hand):
    """Gradients are read when they have been summed, as it happens: nobody waits for the collectives."""

    def reduce(self) -> None:
        group = self.group("dp")
        self.works = [dist.all_reduce(p.grad, group=group, async_op=True) for p in self.model.parameters()]
        time.sleep(0.3)
        for p in self.model.parameters():
            p.grad.div_(self.size("dp"))


class Waited(Hand):
    """The same where they are waited for."""

    def reduce(self) -> None:
        group = self.group("dp")
        for work in [dist.all_reduce(p.grad, group=group, async_op=True) for p in self.model.parameters()]:
            work.wait()
        for p in self.model.parameters():
            p.grad.div_(self.size("dp"))


class ReducedInHook(Hand):
    """A hook of the optimizer reduces."""

    def make_optimizer(self, optimizers: Any) -> Any:
        made = super().make_optimizer(optimizers)
        made.register_step_pre_hook(lambda *_: Hand.reduce(self))
        return made

    def reduce(self) -> None:
        pass


class TwoOptimizers(Hand):
    """Each of two optimizers updates some parameters."""

    def make_optimizer(self, optimizers: Any) -> Any:
        every = list(self.model.parameters())
        return _Both(optimizers(every[:5]), optimizers(every[5:]))


class _Both:
    def __init__(self, *every: Any):
        self.every = every

    def zero_grad(self) -> None:
        for each in self.every:
            each.zero_grad()

    def step(self) -> None:
        for each in self.every:
            each.step()


RIGHT: Mapping[str, type[System]] = {
    "by hand: reduced in the optimizer's hook": ReducedInHook, "by hand: two optimizers": TwoOptimizers,
    "by hand: waited for": Waited,
}
"""Right set-ups near to these, as dp."""

CLIPS = "clips"
"""What a fault is told as in a step that clips, where only a single device tells it."""

WRONG: Mapping[str, tuple[type[System], str, str]] = {
    "by hand: against the gradient": (Ascent, "dp", "scale"),
    "by hand: one microbatch subtracted": (OneSubtracted, "dp", "scale"),
    "by hand: maximized": (Maximized, "dp", ""),
    "by hand: none of one rank's tokens": (NoneFromOne, "dp", "scale"),
    "fsdp2: largest norm of a shard": (LargestNorm, "zero3", CLIPS),
    "fsdp2: mean of the squares": (MeanOfSquares, "zero3", CLIPS),
    "fsdp2: sum of norms": (SumOfNorms, "zero3", CLIPS),
    "by hand: some twice in the norm": (SomeTwice, "dp", CLIPS),
    "by hand: the largest element for the norm": (LargestElement, "dp", CLIPS),
    "fsdp2: each rank to its own norm": (OtherLimit, "zero3", CLIPS),
    "fsdp2: made longer": (Enlarged, "zero3", CLIPS),
    "by hand: half of each gradient": (HalfReduced, "dp", "replicas differ"),
    "by hand: clipped before divided": (ClippedThenDivided, "dp", CLIPS),
    "by hand: new weights multiplied": (_Afterwards, "dp", ""),
    "by hand: new weights the other way round": (AfterwardsFlipped, "dp", ""),
    "by hand: half of new weights copied": (AfterwardsHalf, "dp", ""),
    "by hand: new weights changed in a hook": (InPostHook, "dp", ""),
    "by hand: gradients doubled in a hook": (InPreHook, "dp", "scale"),
    "fsdp2: weights multiplied before forward": (Before, "zero3", ""),
    "by hand: a microbatch less": (FewerMicrobatches, "dp", "accumulation"),
    "by hand: mean over unequal counts": (UnequalCounts, "dp", "counts"),
    "tp + sp: other tokens": (OtherTokens, "tp_sp_keep", ""),
    "tp + sp: other targets": (OtherTargets, "tp_sp_keep", ""),
    "megatron: other tokens": (OtherTokensByHand, "dp*tp_sp", ""),
    "fsdp2: another rate": (OtherRate, "zero3", ""),
    "by hand: other moments": (OtherMoments, "dp", ""),
    "fsdp2: clipped in the optimizer": (ClippedInside, "zero3", ""),
    "by hand: not waited for": (NotWaited, "dp", ""),
}
"""What is wrong -> the class that does it, the strategy, and the kind of difference; without a kind it is UNSEEN."""
