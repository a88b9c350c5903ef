"""How PyTorch runs a strategy: each class builds the model on a mesh and runs one step of it, phase by phase."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from placealg.measure.count import SavedBytes, TrafficCounter
from placealg.measure.network import Gpt, fill, mix, token_loss

Optimizers = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
"""Parameters -> their optimizer."""

Batch = tuple[Tensor, Tensor]
"""Token ids and targets, (batch, seq) each."""

CLIP = 0.5
"""The norm above which gradients are clipped, small enough that every step is."""


@dataclass(frozen=True)
class Trial:
    """What runs: the sizes of mesh and model, the sequences and tokens of a microbatch, how often, what else."""

    mesh: Mapping[str, int]
    sizes: Mapping[str, int]
    b: int
    s: int
    m: int
    clip: bool = False
    options: frozenset[str] = frozenset()


class System:
    """One rank of one strategy: the single device, where no subclass says otherwise."""

    data: tuple[str, ...] = ()
    """The axes along which ranks see other sequences."""

    norm: Tensor
    """The norm by which gradients were clipped in the last step."""

    seen: Sequence[Batch] = ()
    """The microbatches of the last step, those of all ranks."""

    def __init__(self, trial: Trial, mesh: DeviceMesh | None, optimizers: Optimizers):
        self.trial, self.mesh = trial, mesh
        self.saved: list[SavedBytes] = []
        self.tagged: dict[int, str] = {}
        self.model = self.build()
        if not isinstance(next(self.model.parameters()), FakeTensor):
            fill(self.model, self.tied)
        if "frozen" in self.trial.options:
            self.model.embedding.requires_grad_(False)
        self.runs: Callable[..., Tensor] = self.model
        self.apply()
        self.optimizer = self.make_optimizer(optimizers)

    def build(self) -> Gpt:
        """The model, or this rank's part of it."""
        return Gpt(self.trial.sizes, tied=self.tied)

    @property
    def tied(self) -> bool:
        """Whether logits are by the embedding's weight."""
        return "tied" in self.trial.options

    def apply(self) -> None:
        """Make the model distributed."""
        if "recompute" in self.trial.options:
            for layer in self.model.layers.values():
                layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)

    def make_optimizer(self, optimizers: Optimizers) -> Any:
        """The optimizer of this rank's parameters."""
        return optimizers(self.model.parameters())

    def at(self, axis: str) -> int:
        """The coordinate of this rank."""
        return 0 if self.mesh is None else int(self.mesh.get_local_rank(axis))

    def along(self, *axes: str) -> DeviceMesh:
        """The mesh of some axes; its ranks are numbers even where tensors have none."""
        assert self.mesh is not None
        with unset_fake_temporarily():
            return self.mesh[axes]

    def size(self, axis: str) -> int:
        """The size of an axis; 1 where the mesh lacks it."""
        return self.trial.mesh.get(axis, 1)

    def part(self, whole: Batch) -> Batch:
        """What this rank reads of a microbatch of all ranks: its sequences."""
        row = 0
        for axis in self.data:
            row = row * self.size(axis) + self.at(axis)
        return tuple(t[row * self.trial.b:(row + 1) * self.trial.b] for t in whole)

    def positions(self) -> Tensor:
        """The positions of the tokens that the embedding sees on this rank."""
        return torch.arange(self.trial.s)

    def loss(self, x: Tensor, positions: Tensor, y: Tensor) -> Tensor:
        """The sum over the rank's tokens."""
        return token_loss(self.runs(x, positions), y)

    def last(self, last: bool) -> AbstractContextManager[Any]:
        """What surrounds a microbatch, which is the last of its step or not."""
        return nullcontext()

    def reduce(self) -> None:
        """Reduce the gradients that backward left partial."""

    def clip(self) -> None:
        """Scale the gradients by their global norm."""
        self.norm = nn.utils.clip_grad_norm_(self.model.parameters(), CLIP, foreach=False)

    def step(self, sent: TrafficCounter, batches: Sequence[Batch]) -> None:
        """One training step; gradients stay, until the next one clears them."""
        self.optimizer.zero_grad()
        self.saved.clear()
        self.seen = batches
        for k, batch in enumerate(batches):
            self.microbatch(sent, batch, k == len(batches) - 1)
        with sent.during("reduce"):
            self.reduce()
        with sent.during("step"):
            if self.trial.clip:
                self.clip()
            self.optimizer.step()

    def microbatch(self, sent: TrafficCounter, batch: Batch, last: bool) -> None:
        """Forward and backward of one microbatch."""
        (x, y), positions = self.part(batch), self.positions()
        saved = SavedBytes(self.model, (x, y, positions))
        self.saved.append(saved)
        with self.last(last):
            with sent.during("forward"), saved.hooks() if sent.counting else nullcontext():
                loss = self.loss(x, positions, y) / (y.numel() * self.trial.m)
            with sent.during("backward"):
                loss.backward()

    def share(self, name: str, whole: Tensor) -> Tensor:
        """What `parameters` tells of a parameter of the single device."""
        return whole

    def kept(self) -> int:
        """The most bytes that were kept for backward at once in the last step."""
        return max(saved.most for saved in self.saved)

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter of which this rank can tell all, by its name on the single device."""
        for name, parameter in self.model.named_parameters():
            whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
            yield name, whole.detach()


class Ddp(System):
    """DistributedDataParallel: gradients are averaged in the backward of the last microbatch."""

    data = ("dp",)

    def apply(self) -> None:
        """Wrap the model; gradients are views of the buckets."""
        super().apply()
        self.wrapped = DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        self.runs = self.wrapped

    def last(self, last: bool) -> AbstractContextManager[Any]:
        """Only the last microbatch is synchronised."""
        return nullcontext() if last else self.wrapped.no_sync()


class Zero1(Ddp):
    """DistributedDataParallel with ZeroRedundancyOptimizer: each rank updates some parameters, and broadcasts them."""

    def make_optimizer(self, optimizers: Optimizers) -> Any:
        """The sharded optimizer around the plain one."""
        plain = optimizers(self.model.parameters())
        return ZeroRedundancyOptimizer(self.model.parameters(), type(plain), **plain.defaults)


class Fsdp(System):
    """FSDP2, every unit wrapped by itself: embedding, each layer, head."""

    data: tuple[str, ...] = ("dp",)
    shards: tuple[str, ...] = ("dp",)

    def apply(self) -> None:
        """Shard each unit, then the root, which has no parameters of its own left."""
        super().apply()
        mesh = self.along(*self.shards)
        reshard = "no_reshard" not in self.trial.options
        policy = self.policy()
        units = [*self.model.layers.values()]
        if "root" not in self.trial.options:
            units = [u for u in (self.model.embedding, *units, self.model.head) if u is not None]
        for unit in units:
            fully_shard(unit, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
        if "root" in self.trial.options:
            fully_shard(self.model, mesh=mesh, mp_policy=policy)
        else:
            fully_shard(self.model, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)

    def policy(self) -> MixedPrecisionPolicy:
        """In which types units are gathered and gradients reduced; numbers are compared in one type."""
        if "mixed" not in self.trial.options or torch.get_default_dtype() != torch.float32:
            return MixedPrecisionPolicy()
        return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

    def last(self, last: bool) -> AbstractContextManager[Any]:
        """Gradients are reduced every microbatch, unless the trial says once."""
        if "reduce_once" in self.trial.options:
            self.model.set_requires_gradient_sync(last)
        return nullcontext()


class Hsdp(Fsdp):
    """FSDP2 on two axes: sharded along one, replicated along the other."""

    data = ("dp_replicate", "dp_shard")
    shards = ("dp_replicate", "dp_shard")

    def last(self, last: bool) -> AbstractContextManager[Any]:
        """Replicas are averaged once per step; shards are reduced every microbatch."""
        self.model.set_requires_all_reduce(last)
        return nullcontext()


class Tp(System):
    """Tensor parallel as `parallelize_module` makes it: heads, ffn and vocab are split."""

    def plan(self) -> dict[str, Any]:
        """Module -> how it is split."""
        once = {} if "per_use" in self.trial.options else {
            "layers.*.attn": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())}
        return {"embedding.tokens": RowwiseParallel(input_layouts=Replicate()), **once, **self.products(),
                "head.logits": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}

    def products(self) -> dict[str, Any]:
        """The products inside layers."""
        return {**{f"layers.*.attn.{n}": ColwiseParallel() for n in "qkv"},
                "layers.*.attn.out.product": RowwiseParallel(), "layers.*.mlp.up": ColwiseParallel(),
                "layers.*.mlp.down.product": RowwiseParallel()}

    def apply(self) -> None:
        """Split the parameters."""
        parallelize_module(self.model, self.along("tp"), self.plan())
        super().apply()

    def reduce(self) -> None:
        """Keep of a gradient that is whole the rows of this rank."""
        if "rows" in self.trial.options:
            for parameter in self.model.parameters():
                if isinstance(parameter, DTensor) and isinstance(parameter.grad, DTensor):
                    rows = parameter.grad.redistribute(placements=parameter.placements)
                    parameter.grad = DTensor.from_local(rows.to_local().clone(), rows.device_mesh, rows.placements)

    def loss(self, x: Tensor, positions: Tensor, y: Tensor) -> Tensor:
        """The cross entropy of logits that are split along the vocabulary."""
        logits = self.runs(x, positions)
        return functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum").to_local()

    def step(self, sent: TrafficCounter, batches: Sequence[Batch]) -> None:
        """One step, where the cross entropy is that of split logits."""
        with loss_parallel():
            super().step(sent, batches)


class TpSp(Tp):
    """Tensor and sequence parallel: between the products activations are split along seq."""

    def plan(self) -> dict[str, Any]:
        """Module -> how it is split."""
        gathered = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
        return {"embedding.tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
                "layers.*.norm1": SequenceParallel(), "layers.*.norm2": SequenceParallel(),
                "layers.*.attn": gathered, "layers.*.mlp": gathered, "head.norm": SequenceParallel(),
                **self.products(),
                "head.logits": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1),
                                               use_local_output=False)}

    def products(self) -> dict[str, Any]:
        """The products inside layers; those that end a part hand on a share of seq."""
        return {**super().products(), "layers.*.attn.out.product": RowwiseParallel(output_layouts=Shard(1)),
                "layers.*.mlp.down.product": RowwiseParallel(output_layouts=Shard(1))}

    def positions(self) -> Tensor:
        """The positions of this rank's share of seq."""
        share = self.trial.s // self.size("tp")
        return torch.arange(self.at("tp") * share, (self.at("tp") + 1) * share)

    def reduce(self) -> None:
        """Parameters that are whole on every rank have seen its share of seq only."""
        assert self.mesh is not None
        for name, parameter in self.model.named_parameters():
            grad = parameter.grad
            if isinstance(grad, DTensor) and "tp" in (grad.device_mesh.mesh_dim_names or ()):
                assert isinstance(parameter, DTensor)
                parameter.grad = grad.redistribute(placements=parameter.placements)
            elif name.endswith(("out.bias", "down.bias", "positions.weight")):
                dist.all_reduce(grad.to_local() if isinstance(grad, DTensor) else grad, group=self.mesh.get_group("tp"))


class FsdpTp(Fsdp, Tp):
    """FSDP2 of what `parallelize_module` split."""


class FsdpTpSp(Fsdp, TpSp):
    """FSDP2 of what `parallelize_module` split, with sequence parallelism."""


class Context(System):
    """Context parallel: sequences are split; keys and values are gathered by hand, gradients reduced by hand."""

    def apply(self) -> None:
        """Gather keys and values inside every attention core."""
        super().apply()
        assert self.mesh is not None
        group, first = self.mesh.get_group("cp"), self.at("cp") * self.trial.s // self.size("cp")
        for layer in self.model.layers.values():
            layer.attn.mix = lambda q, k, v: mix(q, _Gathered.apply(k, group), _Gathered.apply(v, group), first)

    def part(self, whole: Batch) -> Batch:
        """The share of every sequence that this rank has."""
        at, n = self.at("cp"), self.size("cp")
        return tuple(t.chunk(n, 1)[at].contiguous() for t in super().part(whole))

    def positions(self) -> Tensor:
        """The positions of this rank's share."""
        return super().positions().chunk(self.size("cp"))[self.at("cp")].clone()

    def reduce(self) -> None:
        """Average over the shares."""
        assert self.mesh is not None
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad, group=self.mesh.get_group("cp"))
            parameter.grad.div_(self.size("cp"))


class _Gathered(torch.autograd.Function):
    """Of (batch, heads, seq, head_dim) with a share of seq: the whole of it; backward scatters the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        """The shares of all ranks, one behind the other."""
        ctx.group, n = group, group.size()
        mine = x.permute(2, 0, 1, 3).contiguous()
        whole = mine.new_empty((n * mine.shape[0], *mine.shape[1:]))
        dist.all_gather_into_tensor(whole, mine, group=group)
        return whole.permute(1, 2, 0, 3)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """The sum over ranks of their gradients, this rank's share of it."""
        whole = grads[0].permute(2, 0, 1, 3).contiguous()
        mine = whole.new_empty((whole.shape[0] // ctx.group.size(), *whole.shape[1:]))
        dist.reduce_scatter_tensor(mine, whole, group=ctx.group)
        return mine.permute(1, 2, 0, 3), None
