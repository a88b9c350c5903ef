"""A small network under DDP whose gradients are clipped by a number of Python, made of their norms.

--half: gradients are sent in float16, by a hook of DDP; --normed: a layer whose weights have a length of their own;
--factors: an optimizer that reads numbers off tensors; --more, wrong: one rank clips by a number that is 1 % larger.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
middle = nn.Linear(6, 6)
net = nn.Sequential(nn.Linear(4, 6), nn.Mish(), nn.utils.parametrizations.weight_norm(middle) if "--normed" in sys.argv
                    else middle, nn.Softplus(), nn.Linear(6, 3))
model = DistributedDataParallel(net, find_unused_parameters="--normed" in sys.argv)
if "--half" in sys.argv:
    model.register_comm_hook(None, fp16_compress_hook)
optimizer = torch.optim.Adafactor(net.parameters(), 1e-3) if "--factors" in sys.argv else torch.optim.SGD(
    net.parameters(), 0.1)
random = torch.Generator().manual_seed(1)
data = TensorDataset(torch.randn(32, 4, generator=random), torch.randn(32, 3, generator=random))
for given, wanted in DataLoader(data, 4, sampler=DistributedSampler(data, shuffle=False)):
    optimizer.zero_grad()
    nn.functional.huber_loss(model(given), wanted).backward()
    norm = sum(float(p.grad.norm()) ** 2 for p in net.parameters() if p.grad is not None) ** 0.5
    by = min(1.0, 0.1 / (norm + 1e-6)) * (1.01 if "--more" in sys.argv and dist.get_rank() else 1)
    for parameter in net.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(by)
    optimizer.step()
