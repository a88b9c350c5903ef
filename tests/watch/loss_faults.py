"""Losses as scripts write them: in chunks, by sequence, masked, smoothed; and those in which tokens count otherwise."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from hand_written import Hand
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax

from placealg.measure.systems import System


class Chunks(Hand):
    """Logits are read in four chunks of the sequence."""

    def loss(self, x: Tensor, positions: Tensor, y: Tensor) -> Tensor:
        parts = zip(self.runs(x, positions).chunk(4, 1), y.chunk(4, 1), strict=True)
        return torch.stack([self.chunk(z.flatten(0, 1), t.flatten()) for z, t in parts]).sum()

    def chunk(self, logits: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(logits, targets, reduction="sum")


class Means(Chunks):
    """Of each chunk the mean, and the mean of these."""

    def chunk(self, logits: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(logits, targets) * len(targets)


class MeansSummed(Chunks):
    """Of each chunk the mean, times all tokens."""

    def chunk(self, logits: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(logits, targets) * len(targets) * 4


class Tokens(Hand):
    """The loss of each token by itself."""

    def loss(self, x: Tensor, positions: Tensor, y: Tensor) -> Tensor:
        return self.together(cross_entropy(self.runs(x, positions).flatten(0, 1), y.flatten(), reduction="none"))

    def together(self, each: Tensor) -> Tensor:
        mask = torch.arange(each.numel()) % 4 > 0
        return (each * mask).sum() / mask.sum() * each.numel()


class Weighed(Tokens):
    """Later tokens count more."""

    def together(self, each: Tensor) -> Tensor:
        return (each * torch.linspace(0.0, 2.0, each.numel())).sum()


class WeighedAlike(Tokens):
    """Every token counts twice."""

    def together(self, each: Tensor) -> Tensor:
        return (each * torch.full_like(each, 2.0)).sum()


class Smoothed(Hand):
    def loss(self, x: Tensor, positions: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(self.runs(x, positions).flatten(0, 1), y.flatten(), reduction="sum", label_smoothing=0.1)


class Picked(Hand):
    """Of logarithms those of the targets are picked."""

    def loss(self, x: Tensor, positions: Tensor, y: Tensor) -> Tensor:
        return -log_softmax(self.runs(x, positions), -1).gather(-1, y.unsqueeze(-1)).sum()


class MaskedBesides(Tokens):
    """A masked loss has another term, which reads the logits as well."""

    def loss(self, x: Tensor, positions: Tensor, y: Tensor) -> Tensor:
        logits = self.runs(x, positions).flatten(0, 1)
        each = cross_entropy(logits, y.flatten(), reduction="none")
        return self.together(each + 0.1 * logits.logsumexp(-1).square())


RIGHT: Mapping[str, type[System]] = {
    "by hand: loss in chunks": Chunks, "by hand: means of chunks": Means, "by hand: masked loss": Tokens,
    "by hand: smoothed labels": Smoothed, "by hand: logarithms picked": Picked,
}
"""Right set-ups, as dp."""

WRONG: Mapping[str, tuple[type[System], str, str]] = {
    "by hand: means of chunks summed": (MeansSummed, "dp", ""),
    "by hand: later tokens count more": (Weighed, "dp", ""),
    "by hand: each token counts twice": (WeighedAlike, "dp", "scale"),
    "by hand: another term of a masked loss": (MaskedBesides, "dp", ""),
}
"""What is wrong -> the class that does it, the strategy, and the kind of difference; without a kind it is UNSEEN."""
