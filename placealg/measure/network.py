"""The GPT of the op graph in PyTorch: the same parameters, the same ops, each of which keeps what the graph says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Attention written out: scores, softmax, the product with the values. It works on the heads that it is given."""

    def __init__(self, embed: int, heads: int):
        super().__init__()
        self.head_dim = embed // heads
        self.q, self.k, self.v = (nn.Linear(embed, embed) for _ in range(3))
        self.out = Projection(embed, embed)
        self.mix = mix

    def forward(self, x: Tensor) -> Tensor:
        """Of (batch, seq, embed) the same; every token sees itself and what comes before it."""
        q, k, v = (self.heads(linear(x)) for linear in (self.q, self.k, self.v))
        return self.out(self.mix(q, k, v).transpose(1, 2).flatten(2))

    def heads(self, x: Tensor) -> Tensor:
        """Of (batch, seq, heads * head_dim): (batch, heads, seq, head_dim)."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class Projection(nn.Module):
    """A product whose bias is added by itself, so that a sum over ranks may stand between them."""

    def __init__(self, inner: int, outer: int):
        super().__init__()
        self.product, self.bias = nn.Linear(inner, outer, bias=False), nn.Parameter(torch.empty(outer))

    def forward(self, x: Tensor) -> Tensor:
        """Of (..., inner): (..., outer)."""
        return self.product(x) + self.bias


def mix(q: Tensor, k: Tensor, v: Tensor, first: int = 0) -> Tensor:
    """Scores, softmax and the product with the values, where the first query is that of position `first`."""
    future = torch.full((q.shape[2], k.shape[2]), float("-inf"), dtype=q.dtype, device=q.device).triu(first + 1)
    scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5 + future
    return scores.softmax(-1) @ v


class Mlp(nn.Module):
    """Up, gelu, down."""

    def __init__(self, embed: int):
        super().__init__()
        self.up, self.down = nn.Linear(embed, 4 * embed), Projection(4 * embed, embed)

    def forward(self, x: Tensor) -> Tensor:
        """Of (batch, seq, embed) the same."""
        return self.down(functional.gelu(self.up(x)))


class Layer(nn.Module):
    """One transformer block, norms first."""

    def __init__(self, embed: int, heads: int):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(embed), Attention(embed, heads)
        self.norm2, self.mlp = nn.LayerNorm(embed), Mlp(embed)

    def forward(self, x: Tensor) -> Tensor:
        """Of (batch, seq, embed) the same."""
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Embedding(nn.Module):
    """Tokens and learned positions."""

    def __init__(self, vocab: int, positions: int, embed: int):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, embed), nn.Embedding(positions, embed)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Of ids (batch, seq) at `positions` (seq): (batch, seq, embed)."""
        return self.tokens(ids) + self.positions(positions)


class Head(nn.Module):
    """The final norm and the logits."""

    def __init__(self, vocab: int, embed: int):
        super().__init__()
        self.norm, self.logits = nn.LayerNorm(embed), nn.Linear(embed, vocab, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Of (batch, seq, embed): (batch, seq, vocab)."""
        return self.logits(self.norm(x))


class Gpt(nn.Module):
    """A decoder with the sizes h, a, L, V, s_max; of a pipeline's stage only its `layers`, and its end of the model.

    `tied` logits are by the embedding's weight.
    """

    def __init__(self, sizes: Mapping[str, int], layers: Sequence[int] | None = None, tied: bool = False):
        super().__init__()
        every = range(sizes["L"])
        chosen = list(every if layers is None else layers)
        first, last = every[0] in chosen, every[-1] in chosen
        self.embedding: Any = Embedding(sizes["V"], sizes["s_max"], sizes["h"]) if first else None
        self.layers = nn.ModuleDict({str(k): Layer(sizes["h"], sizes["a"]) for k in chosen})
        self.head: Any = Head(sizes["V"], sizes["h"]) if last else None
        if tied and self.head is not None and self.embedding is not None:
            self.head.logits.weight = self.embedding.tokens.weight

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Of ids (batch, seq) at `positions` the logits; a stage takes and hands on hidden states."""
        if self.embedding is not None:
            x = self.embedding(x, positions)
        for layer in self.layers.values():
            x = layer(x)
        return x if self.head is None else self.head(x)


TIED = {"head.logits.weight": "embedding.tokens.weight"}
"""Parameter -> the one whose numbers it has, where logits are tied."""


def fill(model: nn.Module, tied: bool = False) -> None:
    """Give every parameter numbers that depend on its name and shape alone, so that every rank has the same."""
    for own, parameter in model.named_parameters():
        name = TIED.get(own, own) if tied else own
        draw = torch.Generator().manual_seed(sum(ord(c) * (k + 1) for k, c in enumerate(name)))
        wide = 0.02 if name.endswith("bias") else 0.3
        values = torch.randn(parameter.shape, generator=draw, dtype=torch.float64) * wide
        with torch.no_grad():
            parameter.copy_(values + (1.0 if "norm" in name and name.endswith("weight") else 0.0))


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The sum over tokens of the cross entropy; of it only the log-probabilities are kept for backward."""
    chosen = functional.log_softmax(logits, -1).gather(-1, targets.unsqueeze(-1))
    return -chosen.sum()
