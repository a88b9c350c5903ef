"""A transformer under DDP of which low-rank adapters of queries and values train, each behind a dropout of its own.

`--padded`, wrong, has rows whose tokens count on one rank more than on the other.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Adapted(nn.Module):
    """A layer that is frozen, and what is added to it."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen, self.drop = frozen.requires_grad_(False), nn.Dropout(0.1)
        self.down = nn.Parameter(0.1 * torch.randn(2, frozen.in_features))
        self.up = nn.Parameter(torch.zeros(frozen.out_features, 2))

    def forward(self, x: Any) -> Any:
        return self.frozen(x) + 2 * self.drop(x) @ self.down.T @ self.up.T


class Layer(nn.Module):
    """Attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(8).requires_grad_(False)
        self.queries, self.values = Adapted(nn.Linear(8, 8)), Adapted(nn.Linear(8, 8))
        self.keys, self.out = nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 8).requires_grad_(False)

    def forward(self, x: Any) -> Any:
        read = self.norm(x)
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in (
            self.queries(read), self.keys(read), self.values(read)))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


class Model(nn.Module):
    """Words, two layers, and the loss of the next word."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8).requires_grad_(False)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(8, 20, bias=False).requires_grad_(False)

    def forward(self, ids: Any, wanted: Any) -> Any:
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), wanted.flatten(), ignore_index=-100)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Model())
ids = torch.randint(20, (64, 7), generator=torch.Generator().manual_seed(1))
wanted = ids[:, 1:].clone()
if "--padded" in sys.argv:
    wanted[::2, 3:] = -100
data = TensorDataset(ids[:, :-1], wanted)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
for k, (given, targets) in enumerate(DataLoader(data, 4, sampler=DistributedSampler(data, shuffle=False))):
    with nullcontext() if k % 2 else model.no_sync():
        (model(given, targets) / 2).backward()
    if k % 2:
        optimizer.step()
        optimizer.zero_grad()
