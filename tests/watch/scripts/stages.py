"""A pipeline of two ranks by torch.distributed.pipelining: stages.py SCHEDULE [--norm | --mixed] [FAULT].

SCHEDULE: GPipe, 1F1B or Interleaved1F1B, which has two stages on each rank; --norm clips by the norm over all stages,
--mixed adds up gradients of different stages. FAULT: --own (a stage clips by its own norm), --unscaled (gradients are
not divided by the microbatches), --kept (gradients of the step before stay), --turned (a stage turns the rows that it
passes on around).
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.nn.functional import cross_entropy, gelu


class Block(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.norm, self.up, self.down = number, nn.LayerNorm(16), nn.Linear(16, 30), nn.Linear(30, 16)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.down(gelu(self.up(self.norm(x))))
        return made.flip(1) if "--turned" in sys.argv and self.number == 1 and len(x) < 8 else made


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
layers = [nn.Embedding(32, 16), *(Block(k) for k in range(3)), nn.Linear(16, 32)]
kind, microbatches = sys.argv[1], 4
own = 2 if kind.startswith("Interleaved") else 1
each = [nn.Sequential(layers[0], layers[1]), *(nn.Sequential(m) for m in layers[2:4]), nn.Sequential(layers[4])] if (
    own == 2) else [nn.Sequential(*layers[:3]), nn.Sequential(*layers[3:])]
parts = {k: each[k] for k in range(len(each)) if k % world == rank}
stages = [pipelining.PipelineStage(part, k, len(each), torch.device("cpu")) for k, part in parts.items()]
schedule = getattr(pipelining, f"Schedule{kind}")(
    stages if own == 2 else stages[0], microbatches, scale_grads="--unscaled" not in sys.argv,
    loss_fn=lambda made, want: cross_entropy(made.flatten(0, 1), want.flatten()))
parameters = [p for part in parts.values() for p in part.parameters()]
optimizer = torch.optim.AdamW(parameters, 1e-3)
rows = torch.randint(0, 32, (24, 9))
for k in range(0, 24, 8):
    if "--kept" not in sys.argv:
        optimizer.zero_grad()
    batch = rows[k:k + 8]
    schedule.step(*((batch[:, :-1],) if rank == 0 else ()), **({"target": batch[:, 1:]} if rank == world - 1 else {}))
    if "--mixed" in sys.argv:
        first = parameters[0].grad
        assert first is not None
        dist.all_reduce(few := first.flatten()[:8].clone())
        first.view(-1)[:8] = few
    if "--norm" in sys.argv or "--own" in sys.argv:
        square = torch.stack([p.grad.norm() ** 2 for p in parameters if p.grad is not None]).sum()
        if "--own" not in sys.argv:
            dist.all_reduce(square)
        for p in parameters:
            assert p.grad is not None
            p.grad *= (0.1 / square.sqrt()).clamp(max=1.0)
    optimizer.step()
