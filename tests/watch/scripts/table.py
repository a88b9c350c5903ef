"""An ordinary script without a loader: each rank takes its rows from a table of tokens, or draws them.

--draws: each rank draws its rows by itself; --drop: layers drop elements, among them equal ones; --mask: some targets
are left out, as many on each rank; --uneven: more on the last rank; --counted: the loss is a sum over a number of rows;
--divided: each rank sums up its part of the microbatches; --kept: gradients of the last microbatch stay on their rank;
--same: all ranks take the same rows; --skipped: a layer is not trained every other step.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


def said(word: str) -> bool:
    return word in sys.argv


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.pos = nn.Embedding(32, 16), nn.Embedding(8, 16)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(
            16, 2, 32, 0.1 if said("--drop") else 0.0, batch_first=True) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 32, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.emb(ids) + self.pos(torch.arange(ids.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        made: Tensor = self.head(self.norm(x))
        return made


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = Model()
wrapped = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
tokens = torch.randint(0, 32, (4096,), generator=torch.Generator().manual_seed(3))
if said("--draws"):
    torch.manual_seed(100 + rank)
ROWS, LENGTH, at = 2, 8, 0
count = 4 // world if said("--divided") else 2
for step in range(3):
    for k in range(count):
        first = at + (0 if said("--same") else rank * ROWS * (LENGTH + 1))
        batch = tokens[first:first + ROWS * (LENGTH + 1)].view(ROWS, LENGTH + 1)
        at += world * ROWS * (LENGTH + 1)
        if said("--draws"):
            batch = torch.randint(0, 32, (ROWS, LENGTH + 1))
        ids, targets = batch[:, :-1], batch[:, 1:].clone()
        if said("--mask") or said("--uneven"):
            targets[:, :2 + (rank if said("--uneven") else 0)] = -100
        last = k == (0 if said("--kept") else count - 1)
        with nullcontext() if last else wrapped.no_sync():
            loss = cross_entropy(wrapped(ids).flatten(0, 1), targets.flatten(),
                                 reduction="sum" if said("--counted") else "mean")
            (loss / (ROWS * LENGTH if said("--counted") else 1) / count).backward()
    if said("--skipped") and step % 2:
        for parameter in model.layers[0].parameters():
            parameter.grad = None
    optimizer.step()
    optimizer.zero_grad()
