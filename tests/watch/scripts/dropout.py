"""Dropout under DistributedDataParallel; --again: layers are computed again, --lost: by other random numbers."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, relu
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def inside(self, x: Tensor) -> Tensor:
        return x + dropout(self.down(relu(self.up(self.norm(x)))), 0.25)

    def forward(self, x: Tensor) -> Tensor:
        if "--again" not in sys.argv:
            return self.inside(x)
        made: Tensor = checkpoint(self.inside, x, use_reentrant=False, preserve_rng_state="--lost" not in sys.argv)
        return made


dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(96, 16), Block(16), Block(16), nn.Linear(16, 96))
wrapped = nn.parallel.DistributedDataParallel(model)
ids, targets = torch.randperm(96)[:64].view(8, 8), torch.randint(0, 96, (8, 8))
world, rank = dist.get_world_size(), dist.get_rank()
torch.manual_seed(10 + rank)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for _ in range(3):
    mine = slice(rank * 8 // world, (rank + 1) * 8 // world)
    loss = cross_entropy(wrapped(ids[mine]).flatten(0, 1), targets[mine].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
