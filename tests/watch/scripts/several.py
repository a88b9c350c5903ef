"""Two models: of a pair that is trained against each other by two optimizers, or whose outputs all ranks compare.

--halved: the gradients of one are halved on every rank; --contrast: rows of one are held against those of the other,
of all ranks; --cut: they are gathered without a gradient.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_gather
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, normalize
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.scale = nn.Linear(12, 8), nn.Linear(12, 8), nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return normalize(self.one(x), dim=-1) * self.scale.exp(), normalize(self.other(x), dim=-1)


def gathered(x: Tensor) -> Tensor:
    if world == 1:
        return x
    if "--cut" not in sys.argv:
        return torch.cat(all_gather(x))
    every = [torch.zeros_like(x) for _ in range(world)]
    dist.all_gather(every, x.detach().contiguous())
    return torch.cat(every)


def judged(x: Tensor, real: float) -> Tensor:
    return binary_cross_entropy_with_logits(judges(x), torch.full((len(x), 1), real))


dist.init_process_group("gloo")
torch.manual_seed(0)
rank, world = dist.get_rank(), dist.get_world_size()
wrapped = nn.parallel.DistributedDataParallel
rows = TensorDataset(torch.randn(64, 12))
loader = DataLoader(rows, 4, sampler=DistributedSampler(rows))
pair = wrapped(Pair())
makes = wrapped(nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 12)))
judges = wrapped(nn.Sequential(nn.Linear(12, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)))
torch.manual_seed(9 + rank)
if "--contrast" in sys.argv:
    optimizer = torch.optim.AdamW(pair.parameters(), 1e-2)
    for (x,) in loader:
        a, b = pair(x)
        own = torch.arange(len(x)) + rank * len(x)
        optimizer.zero_grad()
        (cross_entropy(a @ gathered(b).T, own) + cross_entropy(b @ gathered(a).T, own)).backward()
        optimizer.step()
else:
    maker, judge = torch.optim.Adam(makes.parameters(), 1e-3), torch.optim.Adam(judges.parameters(), 1e-3)
    for (x,) in loader:
        made = makes(torch.randn(len(x), 8))
        judge.zero_grad()
        (judged(x, 1.0) + judged(made.detach(), 0.0)).backward()
        if "--halved" in sys.argv and world > 1:
            for parameter in judges.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(0.5)
        judge.step()
        maker.zero_grad()
        judged(made, 1.0).backward()
        maker.step()
