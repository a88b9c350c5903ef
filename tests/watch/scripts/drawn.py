"""An autoencoder under DDP that draws inside: what it codes, which channels and which paths it drops.

--more, wrong: the loss of one rank has a term of its own.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Path(nn.Module):
    """Drops whole rows."""

    def forward(self, x: Any) -> Any:
        return x * x.new_empty(len(x), 1).bernoulli_(0.8).div_(0.8)


class Coder(nn.Module):
    """Images to two numbers for each of four, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.GroupNorm(2, 4), nn.SiLU(), nn.Dropout2d(0.2),
                                  nn.Flatten(), nn.Linear(16, 8))
        self.wide, self.path = nn.Linear(4, 16), Path()
        self.up = nn.Sequential(nn.ConvTranspose2d(4, 4, 4, 2, 1), nn.SiLU(), nn.Upsample(scale_factor=2),
                                nn.Conv2d(4, 1, 3, 2, 1))

    def forward(self, images: Any) -> tuple[Any, Any, Any]:
        middle, spread = self.down(images).chunk(2, -1)
        code = middle + torch.randn_like(middle) * (0.5 * spread).exp()
        return self.up(self.path(self.wide(code)).view(-1, 4, 2, 2)), middle, spread


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Coder())
torch.manual_seed(100 + dist.get_rank())
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
data = TensorDataset(torch.randn(32, 1, 4, 4, generator=torch.Generator().manual_seed(1)))
for images, in DataLoader(data, 4, sampler=DistributedSampler(data, shuffle=False)):
    made, middle, spread = model(images)
    loss = nn.functional.mse_loss(made, images) - 0.5 * (1 + spread - middle ** 2 - spread.exp()).mean()
    if "--more" in sys.argv and dist.get_rank():
        loss = loss + 0.1 * middle.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
