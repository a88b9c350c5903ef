"""Data parallelism as people write it: ways.py WAY [--wrong].

summed: gradients are averaged by hand (wrong: those of vectors are not); hand: no optimizer, weights less the
gradients' mean (wrong: their sum); functional: torch.func (wrong: not divided); flat, flat_names:
FullyShardedDataParallel (wrong: every rank clips by its own norm); owned: ZeroRedundancyOptimizer (wrong: a rank's own
rate); swapped: two ranks exchange gradients by messages of their own (wrong: their sum); balanced: a buffer is moved by
the load of all ranks (wrong: of its own); experts: tokens go to the ranks that have their expert, and back (wrong:
gradients of experts are not divided).
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.nn.functional import all_to_all_single
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.func import functional_call, grad_and_value
from torch.nn.functional import cross_entropy, gelu
from torch.nn.parallel import DistributedDataParallel

EXPERTS, WIDTH = 4, 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 30), nn.Linear(30, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.down(gelu(self.up(self.norm(x))))
        return made


class Balanced(nn.Module):
    """A layer beside a buffer that a script moves by what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.load = nn.Linear(WIDTH, WIDTH), torch.zeros(WIDTH)
        self.register_buffer("bias", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.inner(x)
        self.load = torch.bincount((made + self.bias).argmax(-1).flatten(), minlength=WIDTH).float()
        return x + made


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.own = nn.Linear(WIDTH, EXPERTS, bias=False), EXPERTS // world
        every = torch.randn(EXPERTS, WIDTH, WIDTH) / 4
        self.weight = nn.Parameter(every[rank * self.own:(rank + 1) * self.own].clone())

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, WIDTH)
        most, chosen = self.router(rows).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=EXPERTS)
        come = torch.empty_like(counts)
        dist.all_to_all_single(come, counts)
        gone, got = (c.view(world, -1).sum(1).tolist() for c in (counts, come))
        here = all_to_all_single(rows.new_empty(sum(got), WIDTH), rows[order], got, gone)
        mine = torch.cat([torch.arange(self.own).repeat_interleave(c) for c in come.view(world, -1)])
        made = torch.zeros_like(here)
        for k in range(self.own):
            at = (mine == k).nonzero().flatten()
            made = made.index_add(0, at, gelu(here[at] @ self.weight[k]))
        back = all_to_all_single(torch.empty_like(rows), made, gone, got)
        return x + (torch.zeros_like(rows).index_add(0, order, back) * most[:, None]).view(x.shape)


way, wrong = sys.argv[1], "--wrong" in sys.argv
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(32, WIDTH), Block(), Experts() if way == "experts" else Balanced() if (
    way == "balanced") else Block(),
                      nn.Linear(WIDTH, 32, bias=False))
rows = torch.randint(0, 32, (32, 9))


def loss_of(made: Tensor, part: Tensor) -> Tensor:
    return cross_entropy(made.flatten(0, 1), part[:, 1:].flatten())


parts = [rows[k:k + 8].chunk(world)[rank] for k in range(0, 32, 8)]
if way == "hand":
    for part in parts:
        for few in part.chunk(2):
            (loss_of(model(few[:, :-1]), few) / 2).backward()
        with torch.no_grad():
            for p in model.parameters():
                assert p.grad is not None
                dist.all_reduce(p.grad)
                p -= 0.1 * p.grad / (1 if wrong else world)
                p.grad = None
elif way == "functional":
    held = {k: v.detach().clone() for k, v in model.named_parameters()}
    for part in parts:
        gradients, _ = grad_and_value(lambda p, b: loss_of(functional_call(model, p, (b[:, :-1],)), b))(held, part)
        for value in gradients.values():
            dist.all_reduce(value)
        held = {k: v - 0.1 * gradients[k] / (1 if wrong else world) for k, v in held.items()}
else:
    run: nn.Module = model
    if way.startswith("flat"):
        run = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=way == "flat_names")
    elif way in ("owned", "balanced"):
        run = DistributedDataParallel(model)
    rate = 1e-3 * (1 + (rank if wrong and way == "owned" else 0))
    optimizer = ZeroRedundancyOptimizer(run.parameters(), torch.optim.AdamW, lr=rate) if way == "owned" else (
        torch.optim.AdamW(run.parameters(), rate))
    for part in parts:
        optimizer.zero_grad()
        loss_of(run(part[:, :-1]), part).backward()
        if way == "summed":
            for p in model.parameters():
                assert p.grad is not None
                if p.dim() > 1 or not wrong:
                    dist.all_reduce(p.grad)
                    p.grad /= world
        elif way == "swapped" and world > 1:
            flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            other = torch.empty_like(flat)
            both = [dist.P2POp(dist.isend, flat, 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)]
            for work in dist.batch_isend_irecv(both):
                work.wait()
            torch.nn.utils.vector_to_parameters((flat + other) / (1 if wrong else 2), [
                p.grad for p in model.parameters() if p.grad is not None])
        elif way == "experts":
            for name, p in model.named_parameters():
                assert p.grad is not None
                if name != "2.weight":
                    dist.all_reduce(p.grad)
                p.grad /= 1 if wrong and name == "2.weight" else world
        elif isinstance(run, FullyShardedDataParallel):
            nn.utils.clip_grad_norm_(run.parameters(), 0.5) if wrong else run.clip_grad_norm_(0.5)
        optimizer.step()
        if isinstance(moved := model[2], Balanced):
            if not wrong:
                dist.all_reduce(moved.load)
            moved.bias += 1e-3 * (moved.load.mean() - moved.load).sign()
