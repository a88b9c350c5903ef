"""What a script does inside a backward: hooks and functions of its own, checkpoints, numbers that come and go."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from hand_written import Hand, Megatron
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from placealg.measure.systems import Ddp, Fsdp, System, TpSp


class Same(torch.autograd.Function):
    """What it is given, both ways."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0].clone()


class Halved(Same):
    """What it is given forward, and half of the gradient."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] / 2


class Scaled(torch.autograd.Function):
    """A product with a number, and its derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, by: float) -> Tensor:
        ctx.by = by
        return x * by

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] * ctx.by, None


def doubled(gradient: Tensor) -> Tensor:
    return gradient * 2


def doubles(gradient: Tensor) -> None:
    gradient.mul_(2)


class Looks(Hand):
    """Hooks look at gradients, copy them, and multiply them by 1."""

    def apply(self) -> None:
        super().apply()
        self.norms: list[Tensor] = []
        layer = self.model.layers["0"]
        layer.attn.register_full_backward_hook(self.looks)
        layer.mlp.register_forward_hook(self.listens)

    def looks(self, module: Any, given: Any, made: Any) -> None:
        self.norms.append(made[0].norm() * 2)

    def listens(self, module: Any, given: Any, made: Tensor) -> None:
        made.register_hook(lambda gradient: self.norms.append(gradient.double().pow(2).mean()))
        made.register_hook(lambda gradient: gradient.clone() * 1)


class Functions(Hand):
    """Functions of its own: one that changes nothing, one that multiplies and whose derivative does."""

    def apply(self) -> None:
        super().apply()
        self.model.layers["0"].register_forward_hook(lambda m, given, made: Scaled.apply(Same.apply(made), 1.0))


class InHook(Hand):
    """A hook doubles the gradient of an activation."""

    def apply(self) -> None:
        super().apply()
        self.hook(self.model.layers["0"])

    def hook(self, layer: Any) -> None:
        layer.register_forward_hook(self.listens)

    @staticmethod
    def listens(module: Any, given: Any, made: Tensor) -> None:
        made.register_hook(doubled)


class InPlace(InHook):
    """It does so where the gradient stands, and gives back nothing."""

    @staticmethod
    def listens(module: Any, given: Any, made: Tensor) -> None:
        made.register_hook(doubles)


class InModuleHook(InHook):
    """A hook of the module does so."""

    def hook(self, layer: Any) -> None:
        layer.mlp.register_full_backward_hook(lambda m, given, made: (given[0] * 2,))


class Dropped(InHook):
    """A hook makes the gradient zeros."""

    @staticmethod
    def listens(module: Any, given: Any, made: Tensor) -> None:
        made.register_hook(lambda gradient: torch.zeros_like(gradient))


class TurnedAround(InHook):
    """A hook gives each sequence the gradient of another."""

    @staticmethod
    def listens(module: Any, given: Any, made: Tensor) -> None:
        made.register_hook(lambda gradient: gradient.flip(1))


class InFunction(InHook):
    """A function halves it that passes on what it is given."""

    @staticmethod
    def listens(module: Any, given: Any, made: Tensor) -> Tensor:
        return Halved.apply(made)


class FsdpInHook(Fsdp):
    def apply(self) -> None:
        super().apply()
        InHook.hook(self, self.model.layers["0"])  # type: ignore[arg-type]

    listens = staticmethod(InHook.listens)


class TpSpInHook(TpSp):
    def apply(self) -> None:
        super().apply()
        InHook.hook(self, self.model.layers["0"].mlp)  # type: ignore[arg-type]

    listens = staticmethod(InHook.listens)


class MegatronInFunction(Megatron):
    def expand(self, own: Any, x: Tensor) -> Tensor:
        return super().expand(own, Halved.apply(x))


class Recomputed(System):
    """Layers are computed again in backward."""

    reentrant = False

    def apply(self) -> None:
        for layer in self.model.layers.values():
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=self.reentrant)
        super().apply()


class DdpReentrant(Recomputed, Ddp):
    """Each layer's backward runs inside that of the whole."""

    reentrant = True


class FsdpRecomputed(Recomputed, Fsdp):
    pass


class TpSpRecomputed(Recomputed, TpSp):
    """The forward stops where backward has all it needs."""


class TpSpReentrant(Recomputed, TpSp):
    """The whole forward runs again."""

    reentrant = True


class Autocast(System):
    """Products are computed in 2 bytes, of weights that rest in 4."""

    def loss(self, x: Tensor, positions: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().loss(x, positions, y)


class Scaler(System):
    """The loss is multiplied by a power of two, gradients are divided by it before they are clipped."""

    def make_optimizer(self, optimizers: Any) -> Any:
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0 * self.apart())
        return super().make_optimizer(optimizers)

    def apart(self) -> int:
        """By what the number differs on this rank."""
        return 1

    def microbatch(self, sent: Any, batch: Any, last: bool) -> None:
        (x, y), positions = self.part(batch), self.positions()
        with self.last(last):
            self.scaler.scale(self.loss(x, positions, y) / (y.numel() * self.trial.m)).backward()

    def step(self, sent: Any, batches: Any) -> None:
        self.optimizer.zero_grad()
        for k, batch in enumerate(batches):
            self.microbatch(sent, batch, k == len(batches) - 1)
        self.reduce()
        if self.trial.clip:
            self.scaler.unscale_(self.optimizer)
            self.clip()
        self.update()

    def update(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()


class DdpScaler(Autocast, Scaler, Ddp):
    pass


class FsdpScaler(Scaler, Fsdp):
    pass


class FusedScaler(Scaler, Ddp):
    """The fused optimizer divides."""

    def make_optimizer(self, optimizers: Any) -> Any:
        super().make_optimizer(optimizers)
        return torch.optim.AdamW(self.model.parameters(), 0.1, fused=True)


class OtherScales(FsdpScaler):
    """Each rank has a number of its own, and divides the sum by it."""

    def apart(self) -> int:
        return 1 + self.at("dp")


class NotUnscaled(DdpScaler):
    """Nobody divides."""

    def update(self) -> None:
        self.optimizer.step()


class HalvedAfterwards(Fsdp):
    """One rank doubles its loss, and halves what all have given."""

    def step(self, sent: Any, batches: Any) -> None:
        self.optimizer.zero_grad()
        for k, batch in enumerate(batches):
            self.microbatch(sent, batch, k == len(batches) - 1)
        if self.at("dp") == 0:
            for p in self.model.parameters():
                p.grad.div_(2)
        self.optimizer.step()

    def loss(self, x: Tensor, positions: Tensor, y: Tensor) -> Tensor:
        return super().loss(x, positions, y) * (1 if self.at("dp") else 2)


class BackwardInside(Hand):
    """A hook begins a backward of its own, of squares of weights."""

    def apply(self) -> None:
        super().apply()
        self.model.layers["0"].register_forward_hook(self.listens)

    def listens(self, module: Any, given: Any, made: Tensor) -> None:
        made.register_hook(self.begins)

    def begins(self, gradient: Tensor) -> None:
        with torch.enable_grad():
            torch.stack([p.square().sum() for p in self.model.parameters()]).sum().backward()


RIGHT: Mapping[str, tuple[type[System], str, bool]] = {
    "by hand: hooks that look on": (Looks, "dp", False), "by hand: functions of its own": (Functions, "dp", False),
    "ddp: recomputed, reentrant": (DdpReentrant, "dp*recompute_full", False),
    "fsdp2: recomputed": (FsdpRecomputed, "zero3*recompute_full", False),
    "tp + sp: recomputed": (TpSpRecomputed, "tests/watch/tp_sp_again.toml", False),
    "tp + sp: recomputed, reentrant": (TpSpReentrant, "tp_sp_keep*recompute_full", False),
    "ddp: autocast and a scaled loss": (DdpScaler, "dp", True), "fsdp2: a scaled loss": (FsdpScaler, "zero3", False),
    "ddp: a scaled loss, fused": (FusedScaler, "dp", False),
}
"""Right set-ups, their strategies, and whether they clip."""

WRONG: Mapping[str, tuple[type[System], str, str]] = {
    "by hand: an activation's gradient doubled in a hook": (InHook, "dp", ""),
    "by hand: an activation's gradient doubled in place": (InPlace, "dp", ""),
    "by hand: an activation's gradient doubled in a module's hook": (InModuleHook, "dp", ""),
    "by hand: an activation's gradient dropped in a hook": (Dropped, "dp", ""),
    "by hand: an activation's gradient turned around in a hook": (TurnedAround, "dp", ""),
    "by hand: an activation's gradient halved in a function": (InFunction, "dp", ""),
    "fsdp2: an activation's gradient doubled in a hook": (FsdpInHook, "zero3", ""),
    "tp + sp: an activation's gradient doubled in a hook": (TpSpInHook, "tp_sp_keep", ""),
    "megatron: an activation's gradient halved in a function": (MegatronInFunction, "dp*tp_sp", ""),
    "fsdp2: another scale on each rank": (OtherScales, "zero3", ""),
    "fsdp2: doubled by one rank, halved afterwards": (HalvedAfterwards, "zero3", ""),
    "by hand: a backward of its own inside": (BackwardInside, "dp", ""),
    "ddp: a scaled loss, not divided": (NotUnscaled, "dp", ""),
}
"""What is wrong -> the class that does it, the strategy, and the kind of difference; without a kind it is UNSEEN."""
