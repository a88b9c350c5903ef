"""An ordinary script on images: convolutions, a loader, momentum; or a model that takes noise out of them.

--batch: normed over the rows of a rank; --noise: noise and times are drawn in the loop; --workers: the loader has
processes; --divided: each rank sums up its part of the batches; --rate: the rate grows with the ranks; --same: all
ranks read the same.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def said(word: str) -> bool:
    return word in sys.argv


def normed(width: int) -> nn.Module:
    return nn.BatchNorm2d(width) if said("--batch") else nn.GroupNorm(2, width)


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
body = [nn.Conv2d(3, 8, 3, padding=1, bias=False), normed(8), nn.ReLU()]
model = nn.Sequential(*body, nn.Conv2d(8, 3, 3, padding=1)) if said("--noise") else nn.Sequential(
    *body, nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, stride=2), nn.LeakyReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    nn.Linear(8, 10))
wrapped = nn.parallel.DistributedDataParallel(model)
images = TensorDataset(torch.randn(64, 3, 8, 8), torch.randint(0, 10, (64,)))
loader = DataLoader(images, 4, sampler=None if said("--same") else DistributedSampler(images),
                    num_workers=2 if said("--workers") else 0)
optimizer = torch.optim.SGD(model.parameters(), 0.1 * (world if said("--rate") else 1), momentum=0.9)
if said("--noise"):
    torch.manual_seed(100 + rank)
count = 4 // world if said("--divided") else 1


def loss_of(pixels: Tensor, kind: Tensor) -> Tensor:
    if not said("--noise"):
        return cross_entropy(wrapped(pixels), kind)
    noise, time = torch.randn_like(pixels), torch.randint(0, 1000, (len(pixels), 1, 1, 1)) / 1000
    return mse_loss(wrapped((1 - time) * pixels + time * noise), noise)


batches = iter(loader)
for _ in range(3):
    optimizer.zero_grad()
    for _ in range(count):
        (loss_of(*next(batches)) / count).backward()
    optimizer.step()
