"""Packed documents under context parallelism: ranks share each row, and keys and values are gathered.

--restart: documents begin again on each rank; --local: positions are counted from a rank's own start; --unmasked: no
mask keeps documents apart; --length: the mean of a row is taken over a rank's own part; --turned: ranks have two parts
of the row each, one from the front and one from the back.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_gather_tensor_autograd
from torch.nn.functional import cross_entropy, gelu

WIDTH, LONG, ROWS = 8, 12, 2


class Layer(nn.Module):
    """Attention of one head, and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        keys, values = whole(self.k(x)), whole(self.v(x))
        scores = self.q(x) @ keys.transpose(1, 2) * WIDTH ** -0.5
        x = x + self.out(scores.masked_fill(~seen, float("-inf")).softmax(-1) @ values)
        made: Tensor = x + self.down(gelu(self.up(x)))
        return made


class Model(nn.Module):
    """Two layers between tables of tokens and positions, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place, self.head = nn.Embedding(32, WIDTH), nn.Embedding(LONG, WIDTH), nn.Linear(WIDTH, 32)
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, ids: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
        x = self.token(ids) + self.place(positions)
        for layer in self.layers:
            x = layer(x, seen)
        made: Tensor = self.head(x)
        return made


def whole(part: Tensor) -> Tensor:
    """The row of which each rank has a part, in the order of ranks."""
    if size == 1:
        return part
    gathered = all_gather_tensor_autograd(part.transpose(0, 1).contiguous(), 0, group)
    made: Tensor = gathered.transpose(0, 1)
    return made


def places(documents: Tensor) -> Tensor:
    """The place of each token in its document."""
    same = documents[:, :, None] == documents[:, None, :]
    return same.tril().sum(-1) - 1


dist.init_process_group("gloo")
size, rank, group = dist.get_world_size(), dist.get_rank(), dist.group.WORLD
torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
ids, targets = torch.randint(0, 32, (ROWS, LONG)), torch.randint(0, 32, (ROWS, LONG))
documents = torch.tensor([[0] * 5 + [1] * 7, [0] * 8 + [1] * 4])
weights = torch.tensor([[0.0, 0, 1, 2, 1, 0, 1, 1, 2, 1, 1, 0], [1.0, 1, 0, 0, 0, 0, 1, 2, 1, 0, 1, 1]])
order = torch.arange(LONG)
if "--turned" in sys.argv and size > 1:
    blocks = order.chunk(2 * size)
    order = torch.cat([torch.cat([blocks[k], blocks[2 * size - 1 - k]]) for k in range(size)])
mine = order.chunk(size)[rank]
for _ in range(2):
    asked = documents[:, :len(mine)] if "--restart" in sys.argv else documents[:, mine]
    counted = places(documents[:, mine]) if "--local" in sys.argv else places(documents)[:, mine]
    seen = mine[:, None] >= order
    if "--unmasked" not in sys.argv or size == 1:
        seen = seen & (asked[:, :, None] == documents[:, order][:, None, :])
    seen = seen | (mine[:, None] == order)
    logits = model(ids[:, mine], counted, seen)
    each = cross_entropy(logits.transpose(1, 2), targets[:, mine], reduction="none") * weights[:, mine]
    length = (weights[:, mine] if "--length" in sys.argv else weights).sum(1)
    optimizer.zero_grad()
    (each.sum(1) / length).mean().backward()
    for parameter in model.parameters():
        if size > 1:
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
    optimizer.step()
