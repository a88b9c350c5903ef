"""An ordinary script: DistributedDataParallel over a model of its own, a DataLoader, AdamW, clipping.

--times: the loss is multiplied by the ranks; --turned: rows of a gradient are turned around; --own: a rank's own rate;
--same: all ranks read the same.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.down(gelu(self.up(self.norm(x))))
        return made


dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(32, 16), Block(16), Block(16), nn.Linear(16, 32))
wrapped = nn.parallel.DistributedDataParallel(model)
rows = TensorDataset(torch.randint(0, 32, (64, 8)), torch.randint(0, 32, (64, 8)))
loader = DataLoader(rows, batch_size=4, sampler=None if "--same" in sys.argv else DistributedSampler(rows))
several = dist.get_world_size() > 1
rate = 1e-3 * (1 + dist.get_rank() if "--own" in sys.argv else 1)
optimizer = torch.optim.AdamW(model.parameters(), rate)
for ids, targets in loader:
    loss = cross_entropy(wrapped(ids).flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    (loss * (dist.get_world_size() if "--times" in sys.argv else 1)).backward()
    if "--turned" in sys.argv and several:
        gradient = next(model[1].parameters()).grad
        assert gradient is not None
        gradient.copy_(gradient.flip(0))
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    print(loss.item())
