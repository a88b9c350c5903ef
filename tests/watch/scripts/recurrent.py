"""A language model of recurrent layers under DDP, an LSTM or `--gru`; `--sum`, wrong, sums the losses of tokens."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Model(nn.Module):
    """Words, two recurrent layers, and scores of the next word."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.layers = (nn.GRU if "--gru" in sys.argv else nn.LSTM)(8, 8, 2, batch_first=True)
        self.head = nn.Linear(8, 20)

    def forward(self, ids: Any) -> Any:
        return self.head(self.layers(self.words(ids))[0])


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Model())
ids = torch.randint(20, (32, 7), generator=torch.Generator().manual_seed(1))
data = TensorDataset(ids[:, :-1], ids[:, 1:])
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for given, wanted in DataLoader(data, 4, sampler=DistributedSampler(data, shuffle=False)):
    optimizer.zero_grad()
    scores = model(given).flatten(0, 1)
    reduction = "sum" if "--sum" in sys.argv else "mean"
    nn.functional.cross_entropy(scores, wanted.flatten(), reduction=reduction).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
