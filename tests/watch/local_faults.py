"""What a script does to gradients of activations: hooks and functions of its own, right ones and wrong ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from hand_written import Hand, Megatron
from torch import Tensor

from placealg.measure.systems import Fsdp, System, TpSp


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


RIGHT: Mapping[str, type[System]] = {
    "by hand: hooks that look on": Looks, "by hand: functions of its own": Functions,
}
"""Right set-ups, as dp."""

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
}
"""What is wrong -> the class that does it, the strategy, and the kind of difference; without a kind it is UNSEEN."""
