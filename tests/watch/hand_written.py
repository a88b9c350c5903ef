"""Tensor and sequence parallelism written out as Megatron-LM does it, beside data parallelism and a clip by hand."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from placealg.measure.systems import CLIP, Context, System


def gathered(part: Tensor, group: Any) -> Tensor:
    """Of (batch, a share of seq, ...) the whole seq."""
    mine = part.transpose(0, 1).contiguous()
    whole = mine.new_empty((group.size() * mine.shape[0], *mine.shape[1:]))
    dist.all_gather_into_tensor(whole, mine, group=group)
    return whole.transpose(0, 1)


def scattered(whole: Tensor, group: Any) -> Tensor:
    """The sum over ranks of (batch, seq, ...), of which a share of seq stays."""
    every = whole.transpose(0, 1).contiguous()
    mine = every.new_empty((every.shape[0] // group.size(), *every.shape[1:]))
    dist.reduce_scatter_tensor(mine, every, group=group)
    return mine.transpose(0, 1)


class Columns(torch.autograd.Function):
    """Products of what is gathered along seq, which is gathered again for backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.group = group
        ctx.save_for_backward(x, *weights)
        whole = gathered(x, group)
        return tuple(whole @ w.t() for w in weights)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, *weights = ctx.saved_tensors
        whole = gathered(x, ctx.group).flatten(0, 1)
        made = [g.flatten(0, 1).t() @ whole for g in grads]
        back = sum(g @ w for g, w in zip(grads, weights, strict=True))
        return scattered(back, ctx.group), None, *made


class Rows(torch.autograd.Function):
    """Partial sums that are added up and scattered along seq."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return scattered(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return gathered(grads[0], ctx.group), None


class Summed(torch.autograd.Function):
    """A sum over ranks, each of which has its own part's gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        made = x.clone()
        dist.all_reduce(made, group=group)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0], None


SPLIT = {"tokens.weight": 0, "q.weight": 0, "k.weight": 0, "v.weight": 0, "q.bias": 0, "k.bias": 0, "v.bias": 0,
         "out.product.weight": 1, "up.weight": 0, "up.bias": 0, "down.product.weight": 1, "logits.weight": 0}
"""End of a parameter's name -> the dim that tp splits; the others are whole on every rank."""


def split_dim(name: str) -> int | None:
    return next((d for end, d in SPLIT.items() if name.endswith(end)), None)


class Hand(System):
    """Data parallel written out: gradients are summed over dp and divided, after the last microbatch."""

    data = ("dp",)

    def reduce(self) -> None:
        for p in self.model.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad, group=self.group("dp"))
                p.grad.div_(self.size("dp"))

    def group(self, axis: str) -> Any:
        assert self.mesh is not None
        return self.mesh.get_group(axis)


class Megatron(System):
    """TP and SP by autograd functions of its own, gradients summed and averaged over dp, one norm over tp."""

    data = ("dp",)

    def apply(self) -> None:
        """Keep this rank's part of what is split, and write the ops out."""
        super().apply()
        for name, parameter in self.model.named_parameters():
            dim = split_dim(name)
            if dim is not None:
                parameter.data = parameter.data.chunk(self.size("tp"), dim)[self.at("tp")].clone()
        self.tp, self.dp = (self.mesh.get_group(a) for a in ("tp", "dp"))
        self.model.embedding.forward = partial(self.embed, self.model.embedding)
        self.model.head.forward = partial(self.logits, self.model.head)
        for layer in self.model.layers.values():
            layer.attn.forward = partial(self.attend, layer.attn)
            layer.mlp.forward = partial(self.expand, layer.mlp)

    def embed(self, own: nn.Module, ids: Tensor, positions: Tensor) -> Tensor:
        rows = own.tokens.weight.shape[0]
        at = ids - rows * self.at("tp")
        there = (at >= 0) & (at < rows)
        found = functional.embedding(at.clamp(0, rows - 1), own.tokens.weight) * there.unsqueeze(-1)
        return Rows.apply(found, self.tp) + own.positions(positions)

    def attend(self, own: Any, x: Tensor) -> Tensor:
        made = Columns.apply(x, self.tp, own.q.weight, own.k.weight, own.v.weight)
        q, k, v = (own.heads(t + linear.bias) for t, linear in zip(made, (own.q, own.k, own.v), strict=True))
        mixed = own.mix(q, k, v).transpose(1, 2).flatten(2)
        return Rows.apply(mixed @ own.out.product.weight.t(), self.tp) + own.out.bias

    def expand(self, own: Any, x: Tensor) -> Tensor:
        up, = Columns.apply(x, self.tp, own.up.weight)
        return Rows.apply(functional.gelu(up + own.up.bias) @ own.down.product.weight.t(), self.tp) + own.down.bias

    def logits(self, own: Any, x: Tensor) -> Tensor:
        made, = Columns.apply(own.norm(x), self.tp, own.logits.weight)
        return made

    def positions(self) -> Tensor:
        return super().positions().chunk(self.size("tp"))[self.at("tp")].clone()

    def loss(self, x: Tensor, positions: Tensor, y: Tensor) -> Tensor:
        """The cross entropy of logits that are split along the vocabulary."""
        logits = self.runs(x, positions)
        rows = logits.shape[-1]
        with torch.no_grad():
            highest = logits.max(-1).values
            dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=self.tp)
        logits = logits - highest.unsqueeze(-1)
        at = y - rows * self.at("tp")
        there = (at >= 0) & (at < rows)
        chosen = Summed.apply(logits.gather(-1, at.clamp(0, rows - 1).unsqueeze(-1)).squeeze(-1) * there, self.tp)
        return (Summed.apply(logits.exp().sum(-1), self.tp).log() - chosen).sum()

    def whole(self) -> list[nn.Parameter]:
        """What every rank of tp has, of which each has seen its share of seq."""
        return [p for name, p in self.model.named_parameters() if split_dim(name) is None]

    def reduce(self) -> None:
        for p in self.whole():
            dist.all_reduce(p.grad, group=self.tp)
        for p in self.model.parameters():
            dist.all_reduce(p.grad, group=self.dp)
            p.grad.div_(self.size("dp"))

    def squares(self) -> Tensor:
        """The rank's part of the square of the norm: what is whole counts on the first rank of tp."""
        counted = list(self.model.parameters())
        if self.at("tp"):
            whole = {id(p) for p in self.whole()}
            counted = [p for p in counted if id(p) not in whole]
        return torch.stack([p.grad.norm() ** 2 for p in counted]).sum()

    def clip(self) -> None:
        total = self.squares()
        dist.all_reduce(total, group=self.tp)
        self.scale(total)

    def scale(self, total: Tensor) -> None:
        factor = (CLIP / (total.sqrt() + 1e-6)).clamp(max=1.0)
        for p in self.model.parameters():
            p.grad.mul_(factor)


class NormsApart(Megatron):
    """The gradients of norms are not reduced over tp."""

    def whole(self) -> list[nn.Parameter]:
        return [p for name, p in self.model.named_parameters() if split_dim(name) is None and "norm" not in name]

    def squares(self) -> Tensor:
        return torch.stack([p.grad.norm() ** 2 for p in self.model.parameters()]).sum()


class BiasesApart(Megatron):
    """The gradients of biases that stand behind a sum over ranks are not reduced over tp."""

    def reduce(self) -> None:
        kept = {n: p.grad.clone() for n, p in self.model.named_parameters() if n.endswith(("out.bias", "down.bias"))}
        super().reduce()
        for name, p in self.model.named_parameters():
            if name in kept:
                dist.all_reduce(kept[name], group=self.dp)
                p.grad.copy_(kept[name] / self.size("dp"))


class OtherGroup(Megatron):
    """What tp splits the tokens of is reduced over dp, a group of the same size."""

    def reduce(self) -> None:
        for p in self.whole():
            dist.all_reduce(p.grad, group=self.dp)
        for p in self.model.parameters():
            dist.all_reduce(p.grad, group=self.dp)
            p.grad.div_(self.size("dp"))


class NotAveraged(Megatron):
    """Gradients are summed over dp, and not divided."""

    def reduce(self) -> None:
        super().reduce()
        for p in self.model.parameters():
            p.grad.mul_(self.size("dp"))


class MeanOverTp(Megatron):
    """What every rank of tp has is averaged over tp, as if ranks had seen other sequences."""

    def reduce(self) -> None:
        super().reduce()
        for p in self.whole():
            p.grad.div_(self.size("tp"))


class Again(Megatron):
    """What is accumulated so far is summed over tp after every microbatch, as if it were that one's gradient."""

    def microbatch(self, sent: Any, batch: Any, last: bool) -> None:
        super().microbatch(sent, batch, last)
        for p in self.whole():
            dist.all_reduce(p.grad, group=self.tp)

    def reduce(self) -> None:
        for p in self.model.parameters():
            dist.all_reduce(p.grad, group=self.dp)
            p.grad.div_(self.size("dp"))


class OtherStart(Megatron):
    """What is whole on every rank of tp starts from other numbers on each."""

    def apply(self) -> None:
        super().apply()
        with torch.no_grad():
            for p in self.whole():
                p.mul_(1 + self.at("tp"))


class OwnPart(Megatron):
    """Each rank clips by the norm of its own part."""

    def clip(self) -> None:
        self.scale(self.squares())


class OtherAxis(Megatron):
    """The norm is summed over dp in place of tp."""

    def clip(self) -> None:
        total = self.squares()
        dist.all_reduce(total, group=self.dp)
        self.scale(total)


class CountedTwice(Megatron):
    """What is whole on every rank of tp counts on each of them in the norm."""

    def squares(self) -> Tensor:
        return torch.stack([p.grad.norm() ** 2 for p in self.model.parameters()]).sum()


class OnFirstAlone(Megatron):
    """What is whole counts on the first rank of dp alone, where the norm is summed over tp."""

    def squares(self) -> Tensor:
        if not self.at("dp"):
            return super().squares()
        whole = {id(p) for p in self.whole()}
        return torch.stack([p.grad.norm() ** 2 for p in self.model.parameters() if id(p) not in whole]).sum()


class NotSummed(Megatron):
    """The partial sums of one product are not added up: each rank keeps its own share of seq."""

    def expand(self, own: Any, x: Tensor) -> Tensor:
        up, = Columns.apply(x, self.tp, own.up.weight)
        made = functional.gelu(up + own.up.bias) @ own.down.product.weight.t()
        return made.chunk(self.size("tp"), 1)[self.at("tp")] + own.down.bias


class InputNotReduced(Megatron):
    """The gradient of what a product reads is this rank's part alone."""

    def expand(self, own: Any, x: Tensor) -> Tensor:
        up, = _Unreduced.apply(x, self.tp, own.up.weight)
        return Rows.apply(functional.gelu(up + own.up.bias) @ own.down.product.weight.t(), self.tp) + own.down.bias


class _Unreduced(Columns):
    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        whole = gathered(x, ctx.group).flatten(0, 1)
        back = (grads[0] @ weight).chunk(ctx.group.size(), 1)[ctx.group.rank()]
        return back, None, grads[0].flatten(0, 1).t() @ whole


class RingCore(torch.autograd.Function):
    """The attention core, where keys and values go round a ring of ranks, and again for backward."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, ring: Any) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.ring = ring
        keys, values = ring.passed(k), ring.passed(v)
        return RingCore.shares(q, keys, ring) @ values

    @staticmethod
    def shares(q: Tensor, keys: Tensor, ring: Any) -> Tensor:
        """The softmax of scores of this rank's queries, each of which sees itself and what comes before it."""
        first = ring.at("cp") * q.shape[2]
        future = torch.full((q.shape[2], keys.shape[2]), float("-inf"), dtype=q.dtype).triu(first + 1)
        return (q @ keys.transpose(2, 3) * q.shape[3] ** -0.5 + future).softmax(-1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        q, k, v = ctx.saved_tensors
        keys, values = ctx.ring.passed(k), ctx.ring.passed(v)
        shares = RingCore.shares(q, keys, ctx.ring)
        back = grads[0] @ values.transpose(2, 3)
        scores = shares * (back - (back * shares).sum(-1, keepdim=True)) * q.shape[3] ** -0.5
        return (scores @ keys, ctx.ring.home(scores.transpose(2, 3) @ q),
                ctx.ring.home(shares.transpose(2, 3) @ grads[0]), None)


class Ring(Context):
    """Context parallel, where keys and values are passed on block by block, and their gradients summed on the way."""

    def apply(self) -> None:
        super().apply()
        for layer in self.model.layers.values():
            layer.attn.mix = lambda q, k, v: RingCore.apply(q, k, v, self)

    def hop(self, block: Tensor) -> Tensor:
        """Pass a block to the next rank, and take that of the rank before."""
        group, n = self.mesh.get_group("cp"), self.size("cp")
        ranks = dist.get_process_group_ranks(group)
        sent = block.contiguous()
        made = torch.empty_like(sent)
        works = dist.batch_isend_irecv([
            dist.P2POp(dist.isend, sent, ranks[(self.at("cp") + 1) % n], group),
            dist.P2POp(dist.irecv, made, ranks[(self.at("cp") - 1) % n], group)])
        for work in works:
            work.wait()
        return made

    def passed(self, block: Tensor) -> Tensor:
        """Of (batch, heads, a share of seq, head_dim) the whole seq."""
        n, blocks = self.size("cp"), {self.at("cp"): block}
        for turn in range(1, n):
            block = self.hop(block)
            blocks[(self.at("cp") - turn) % n] = block
        return torch.cat([blocks[k] for k in range(n)], 2)

    def home(self, whole: Tensor) -> Tensor:
        """Of each rank's part of all shares the sum of this rank's share."""
        n, parts = self.size("cp"), whole.chunk(self.size("cp"), 2)
        found = parts[(self.at("cp") - 1) % n]
        for turn in range(1, n):
            found = self.hop(found) + parts[(self.at("cp") - 1 - turn) % n]
        return found


class OwnFirst(Ring):
    """Each rank adds its own part first, so that one more hop brings the sum home."""

    def home(self, whole: Tensor) -> Tensor:
        n, parts = self.size("cp"), whole.chunk(self.size("cp"), 2)
        found = parts[self.at("cp")]
        for turn in range(1, n):
            found = self.hop(found) + parts[(self.at("cp") - turn) % n]
        return self.hop(found)


class NotBroughtHome(Ring):
    """Each rank keeps its own part of its own share's gradient."""

    def home(self, whole: Tensor) -> Tensor:
        return whole.chunk(self.size("cp"), 2)[self.at("cp")].contiguous()


class OneTurnLess(Ring):
    """Values of forward are passed on once less, and the own ones stand for what is missing."""

    def passed(self, block: Tensor) -> Tensor:
        n, blocks = self.size("cp"), dict.fromkeys(range(self.size("cp")), block)
        for turn in range(1, n - 1):
            block = self.hop(block)
            blocks[(self.at("cp") - turn) % n] = block
        return torch.cat([blocks[k] for k in range(n)], 2)


class Flat(System):
    """Each rank updates a flat copy of its part of all parameters, and new values are gathered: ZeRO-1 by hand."""

    data = ("dp",)

    def make_optimizer(self, optimizers: Any) -> Any:
        """Make parameters views of one buffer, and the copy of this rank's part of it what trains."""
        self.every = list(self.model.parameters())
        self.pad = torch.zeros(-sum(p.numel() for p in self.every) % self.size("dp"))
        self.flat = self.flattened([p.detach() for p in self.every])
        sizes = [*(p.numel() for p in self.every), len(self.pad)]
        for p, part in zip(self.every, self.flat.split(sizes), strict=False):
            p.data = part.view_as(p)
        self.copy = nn.Parameter(self.own(self.flat).clone())
        return optimizers([self.copy])

    def flattened(self, every: list[Tensor]) -> Tensor:
        return torch.cat([*(t.flatten() for t in every), self.pad])

    def own(self, flat: Tensor) -> Tensor:
        return flat.chunk(self.size("dp"))[self.at("dp")]

    def group(self) -> Any:
        assert self.mesh is not None
        return self.mesh.get_group("dp")

    def reduce(self) -> None:
        whole = self.flattened([p.grad for p in self.every])
        mine = torch.empty_like(self.copy)
        dist.reduce_scatter_tensor(mine, self.given(whole), group=self.group())
        self.copy.grad = mine / self.size("dp")
        self.model.zero_grad()

    def given(self, whole: Tensor) -> Tensor:
        return whole

    def clip(self) -> None:
        total = self.copy.grad.norm() ** 2
        dist.all_reduce(total, group=self.group())
        self.copy.grad.mul_((CLIP / (total.sqrt() + 1e-6)).clamp(max=1.0))

    def step(self, sent: Any, batches: Any) -> None:
        super().step(sent, batches)
        self.publish()

    def publish(self) -> None:
        dist.all_gather_into_tensor(self.flat, self.copy.detach(), group=self.group())


class FlatReplicas(Flat):
    """The parts are those of dp_shard, and each replica of them sums with the others what it has got."""

    data = ("dp_replicate", "dp_shard")

    def size(self, axis: str) -> int:
        return super().size("dp_shard" if axis == "dp" else axis)

    def at(self, axis: str) -> int:
        return super().at("dp_shard" if axis == "dp" else axis)

    def group(self) -> Any:
        assert self.mesh is not None
        return self.mesh.get_group("dp_shard")

    def reduce(self) -> None:
        super().reduce()
        self.across(self.copy.grad)

    def across(self, mine: Tensor) -> None:
        assert self.mesh is not None
        dist.all_reduce(mine, group=self.mesh.get_group("dp_replicate"))
        mine.div_(self.size("dp_replicate"))


class FlatReplicasApart(FlatReplicas):
    """Replicas do not sum."""

    def across(self, mine: Tensor) -> None:
        pass


class FlatReplicasTwice(FlatReplicas):
    """What others update counts twice as often as a rank's own part."""

    def given(self, whole: Tensor) -> Tensor:
        given = 2 * whole
        self.own(given).copy_(self.own(whole))
        return given


class FlatUnpublished(Flat):
    """Each rank writes its own part alone."""

    def publish(self) -> None:
        self.own(self.flat).copy_(self.copy.detach())


class FlatOwnNorm(Flat):
    def clip(self) -> None:
        self.copy.grad.mul_((CLIP / (self.copy.grad.norm() + 1e-6)).clamp(max=1.0))


class FlatSummed(Flat):
    def reduce(self) -> None:
        super().reduce()
        self.copy.grad.mul_(self.size("dp"))


class FlatShifted(Flat):
    """Gradients stand one element further in the copy than what they are of."""

    def reduce(self) -> None:
        super().reduce()
        self.copy.grad = self.copy.grad.roll(1)


class FlatSwapped(Flat):
    """Two halves of a rank's part change places on the way to the copy's gradient."""

    def reduce(self) -> None:
        super().reduce()
        half = self.copy.numel() // 2
        self.copy.grad = torch.cat([self.copy.grad[half:], self.copy.grad[:half]])


class FlatOther(Flat):
    """The copy starts from other numbers than the parameters."""

    def make_optimizer(self, optimizers: Any) -> Any:
        made = super().make_optimizer(optimizers)
        with torch.no_grad():
            self.copy.mul_(2)
        return made

    def publish(self) -> None:
        super().publish()
        with torch.no_grad():
            self.copy.mul_(2)


class FlatEarly(Flat):
    """New values are gathered before they are made."""

    def step(self, sent: Any, batches: Any) -> None:
        self.optimizer.step = self.early(self.optimizer.step)
        System.step(self, sent, batches)
        del self.optimizer.step

    def early(self, step: Any) -> Any:
        def late() -> None:
            self.publish()
            step()
        return late


class FlatBehind(Flat):
    """The copy is written through ctypes when it has been updated."""

    def publish(self) -> None:
        ctypes.memset(self.copy.data_ptr(), 0, 8)
        super().publish()


class FlatStale(Flat):
    """Parameters keep the gradients of earlier steps."""

    def reduce(self) -> None:
        kept = [p.grad.clone() for p in self.every]
        super().reduce()
        for p, grad in zip(self.every, kept, strict=True):
            p.grad = grad


class FlatKept(Flat):
    """What other ranks update, this one gives them no gradient of."""

    def given(self, whole: Tensor) -> Tensor:
        mine = torch.zeros_like(whole)
        self.own(mine).copy_(self.own(whole))
        return mine


FLAT: Mapping[str, tuple[type[Flat], str]] = {
    "not published": (FlatUnpublished, "update"), "norm of a part": (FlatOwnNorm, "norm"),
    "sum for mean": (FlatSummed, "scale"), "published before the update": (FlatEarly, "update"),
    "gradients not cleared": (FlatStale, "stale"), "shifted": (FlatShifted, ""), "halves swapped": (FlatSwapped, ""),
    "other numbers": (FlatOther, ""), "gradients kept back": (FlatKept, ""),
    "written through ctypes": (FlatBehind, ""),
}
"""The same of flat copies; without a kind of difference what is wrong is UNSEEN."""

REPLICAS: Mapping[str, tuple[type[Flat], str]] = {
    "flat copies on two axes: replicas not reduced": (FlatReplicasApart, "axes"),
    "flat copies on two axes: others' twice": (FlatReplicasTwice, ""),
}
"""The same where every part has replicas."""


WRONG: Mapping[str, tuple[type[Megatron], str]] = {
    "biases not reduced": (BiasesApart, "axes"), "wrong group": (OtherGroup, "axes"),
    "sum for mean": (NotAveraged, "scale"), "mean over tp": (MeanOverTp, "scale"), "norm of a part": (OwnPart, "norm"),
    "norm over the other axis": (OtherAxis, "norm"), "replicas counted in the norm": (CountedTwice, "norm"),
    "counted on the first of dp": (OnFirstAlone, "norm"), "parts not summed": (NotSummed, "message"),
    "input's gradient not reduced": (InputNotReduced, "message"), "other start": (OtherStart, "replicas differ"),
}
"""What is wrong -> the class that does it, and the kind of difference that is found."""
