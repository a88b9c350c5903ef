"""Training steps of PyTorch, right ones and ones with one thing done wrong, each with what is to be said of it."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import hand_written as hand
import local_faults as local
import loss_faults as loss
import quiet_faults as quiet
import state_faults as kept
import torch
import torch.distributed as dist
from hand_written import Hand
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter
from torch.distributed.tensor import DTensor, Replicate

from placealg.measure import systems
from placealg.measure.cells import ROWS, SEQUENCES, SIZES, TOKENS
from placealg.measure.count import TrafficCounter
from placealg.measure.experts import Experts
from placealg.measure.network import mix
from placealg.measure.pipeline import PipelineFsdp, PipelineSystem
from placealg.measure.predict import model_of
from placealg.measure.run import OPTIMIZERS, batches, mesh_of
from placealg.measure.systems import CLIP, Context, Ddp, Fsdp, FsdpTpSp, Hsdp, System, Tp, TpSp, Trial, Zero1
from placealg.models.config import resolve_model
from placealg.models.model import Model
from placealg.watch.lift.trace import Trace

FILES = "proofs/torch"


class Bucketed(Hand):
    """The same with all gradients in one buffer."""

    def reduce(self) -> None:
        flat = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        dist.all_reduce(flat, op=dist.ReduceOp.SUM, group=self.group("dp"))
        flat /= self.size("dp")
        for p, part in zip(self.model.parameters(), flat.split([p.numel() for p in self.model.parameters()]),
                           strict=True):
            p.grad.copy_(part.view_as(p))


class GradientScaled(Hand):
    """The mean over microbatches is taken of the gradients."""

    def loss(self, x: Any, positions: Any, y: Any) -> Any:
        return super().loss(x, positions, y) * self.trial.m

    def reduce(self) -> None:
        super().reduce()
        for p in self.model.parameters():
            p.grad.div_(self.trial.m)


class TokenMean(Hand):
    """The loss divides by the tokens of all ranks, and gradients are summed."""

    def loss(self, x: Any, positions: Any, y: Any) -> Any:
        count = torch.tensor(float(y.numel()))
        dist.all_reduce(count, group=self.group("dp"))
        return super().loss(x, positions, y) / count * y.numel()

    def reduce(self) -> None:
        for p in self.model.parameters():
            dist.all_reduce(p.grad, group=self.group("dp"))


class _Kernel(torch.autograd.Function):
    """A cross entropy whose backward divides inside, as a fused kernel does, where no factor is seen."""

    @staticmethod
    def forward(ctx: Any, logits: Any, y: Any, divisor: float) -> Any:
        ctx.save_for_backward(logits.softmax(-1), y)
        ctx.divisor = divisor
        return nn.functional.cross_entropy(logits, y, reduction="sum") / divisor

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        share, y = ctx.saved_tensors
        return (share - nn.functional.one_hot(y, share.shape[1])).pow(1) * grads[0].expand(1) / ctx.divisor, None, None


class InKernel(Hand):
    """The loss divides inside a kernel."""

    by = 1

    def loss(self, x: Any, positions: Any, y: Any) -> Any:
        logits = self.runs(x, positions).flatten(0, 1)
        return _Kernel.apply(logits, y.flatten(), y.numel() * self.by) * y.numel()


class InKernelTwice(InKernel):
    by = 2


class LocalCounts(InKernel):
    """The loss divides by this rank's own count, where the ranks' counts differ."""

    def loss(self, x: Any, positions: Any, y: Any) -> Any:
        logits = self.runs(x, positions).flatten(0, 1)
        return _Kernel.apply(logits, y.flatten(), y.numel() * (1.0 + 0.5 * self.at("dp"))) * y.numel()


class OtherScores(Hand):
    """The attention of one layer divides by twice what it should."""

    def apply(self) -> None:
        super().apply()
        self.model.layers["1"].attn.mix = lambda q, k, v: mix(q / 2, k, v)


class Unreduced(Ddp):
    def last(self, last: bool) -> AbstractContextManager[Any]:
        return super().last(False)


class Summed(Ddp):
    def reduce(self) -> None:
        for p in self.model.parameters():
            p.grad.mul_(self.size("dp"))


class Halved(Ddp):
    def reduce(self) -> None:
        for p in self.model.parameters():
            p.grad.mul_(0.5)


class Stale(Ddp):
    def make_optimizer(self, optimizers: Any) -> Any:
        made = super().make_optimizer(optimizers)
        made.zero_grad = lambda *a, **k: None
        return made


class NotOverMicrobatches(Ddp):
    def loss(self, x: Any, positions: Any, y: Any) -> Any:
        return super().loss(x, positions, y) * self.trial.m


class Largest(Hand):
    def reduce(self) -> None:
        for p in self.model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.MAX, group=self.group("dp"))


class OneLeftOut(Hand):
    def reduce(self) -> None:
        for name, p in self.model.named_parameters():
            if name != "head.norm.weight":
                dist.all_reduce(p.grad, group=self.group("dp"))
                p.grad.div_(self.size("dp"))


class OneOfLayers(Hand):
    def reduce(self) -> None:
        for name, p in self.model.named_parameters():
            if name != "layers.1.mlp.up.weight":
                dist.all_reduce(p.grad, group=self.group("dp"))
                p.grad.div_(self.size("dp"))


class LastOnly(Hand):
    def last(self, last: bool) -> AbstractContextManager[Any]:
        if last:
            self.optimizer.zero_grad()
        return nullcontext()


class ClippedFirst(Hand):
    def reduce(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        super().reduce()

    def clip(self) -> None:
        pass


class Twice(Hand):
    def reduce(self) -> None:
        super().reduce()
        super().reduce()


class SummedTwice(Hand):
    def reduce(self) -> None:
        for p in self.model.parameters():
            dist.all_reduce(p.grad, group=self.group("dp"))
        super().reduce()


class Forgotten(Hand):
    def make_optimizer(self, optimizers: Any) -> Any:
        return optimizers(p for n, p in self.model.named_parameters() if n != "head.norm.weight")


class Noise(Hand):
    def reduce(self) -> None:
        super().reduce()
        torch.manual_seed(0)  # the same on every rank, whatever ran before: replicas stay equal
        self.model.head.norm.weight.grad = torch.randn_like(self.model.head.norm.weight)


class BehindNumpy(Hand):
    def reduce(self) -> None:
        super().reduce()
        self.model.head.norm.weight.grad.numpy()[:] *= 2


class BehindCtypes(Hand):
    def step(self, sent: Any, batches: Any) -> None:
        super().step(sent, batches)
        p = self.model.head.norm.weight
        ctypes.memset(p.data_ptr(), 0, 8)


class WeightsAveraged(Hand):
    def reduce(self) -> None:
        pass

    def step(self, sent: Any, batches: Any) -> None:
        super().step(sent, batches)
        with torch.no_grad():
            for p in self.model.parameters():
                dist.all_reduce(p, group=self.group("dp"))
                p.div_(self.size("dp"))


class Untrained(Hand):
    def apply(self) -> None:
        super().apply()
        self.model.head.norm.weight.requires_grad_(False)


class OwnStart(Hand):
    def apply(self) -> None:
        super().apply()
        with torch.no_grad():
            self.model.head.logits.weight.mul_(1 + self.at("dp"))


class NormInPart(Hand):
    def clip(self) -> None:
        every = list(self.model.parameters())
        norm = nn.utils.get_total_norm([p.grad for p in every[:-1]])
        nn.utils.clip_grads_with_norm_(every, CLIP, norm)


class TwoFactors(Hand):
    def clip(self) -> None:
        every = list(self.model.parameters())
        nn.utils.clip_grad_norm_(every[:-1], CLIP)
        nn.utils.clip_grad_norm_(every[-1:], CLIP)


class NormOfReplicas(Hand):
    def clip(self) -> None:
        every = list(self.model.parameters())
        norm = nn.utils.get_total_norm([p.grad for p in every])**2
        dist.all_reduce(norm, group=self.group("dp"))
        nn.utils.clip_grads_with_norm_(every, CLIP, norm**0.5)


class FsdpLayers(Fsdp):
    """Layers are wrapped, and the root with all that is left: a tied weight is in one message, gathered in both."""

    def apply(self) -> None:
        System.apply(self)
        mesh = self.along(*self.shards)
        for unit in (*self.model.layers.values(), self.model):
            fully_shard(unit, mesh=mesh, reshard_after_forward=True)


class FsdpSummed(Fsdp):
    def apply(self) -> None:
        super().apply()
        for module in self.model.modules():
            if hasattr(module, "set_gradient_divide_factor"):
                module.set_force_sum_reduction_for_comms(True)
                module.set_gradient_divide_factor(1.0)


class FsdpStale(Fsdp):
    def make_optimizer(self, optimizers: Any) -> Any:
        made = super().make_optimizer(optimizers)
        made.zero_grad = lambda *a, **k: None
        return made


class FsdpUnreduced(Fsdp):
    def last(self, last: bool) -> AbstractContextManager[Any]:
        self.model.set_requires_gradient_sync(False)
        return nullcontext()


class FsdpOwnNorm(Fsdp):
    def clip(self) -> None:
        grads = [p.grad.to_local() for p in self.model.parameters()]
        coefficient = (CLIP / (nn.utils.get_total_norm(grads) + 1e-6)).clamp(max=1.0)
        for grad in grads:
            grad.mul_(coefficient)


class FsdpOwnNumber(Fsdp):
    def clip(self) -> None:
        grads = [p.grad.to_local() for p in self.model.parameters()]
        factor = min(1.0, CLIP / (float(nn.utils.get_total_norm(grads)) + 1e-6))
        for grad in grads:
            grad.mul_(factor)


class ClippedByNumber(Hand):
    """Clipped by the global norm, which a number of Python carries."""

    def clip(self) -> None:
        grads = [p.grad for p in self.model.parameters()]
        factor = min(1.0, CLIP / (float(nn.utils.get_total_norm(grads)) + 1e-6))
        for grad in grads:
            grad.mul_(factor)


class FsdpBehind(Fsdp):
    def step(self, sent: Any, batches: Any) -> None:
        super().step(sent, batches)
        self.model.head.norm.weight.to_local().detach().numpy()[:] *= 2


class HsdpOtherNorm(Hsdp):
    """The norm is summed over the axis along which gradients are whole, not over the one that shards them."""

    def clip(self) -> None:
        grads = [p.grad.to_local() for p in self.model.parameters()]
        total = nn.utils.get_total_norm(grads) ** 2
        dist.all_reduce(total, group=self.mesh.get_group("dp_replicate"))
        factor = (CLIP / (total.sqrt() + 1e-6)).clamp(max=1.0)
        for grad in grads:
            grad.mul_(factor)


class FsdpNotOverMicrobatches(Fsdp):
    def loss(self, x: Any, positions: Any, y: Any) -> Any:
        return super().loss(x, positions, y) * self.trial.m


class Unpublished(Zero1):
    def make_optimizer(self, optimizers: Any) -> Any:
        made = super().make_optimizer(optimizers)
        made._sync_params = lambda: None
        return made


class PublishedFirst(Zero1):
    def make_optimizer(self, optimizers: Any) -> Any:
        made = super().make_optimizer(optimizers)
        sync, step = made._sync_params, made.step
        made._sync_params = lambda: None

        def early(*args: Any, **kwargs: Any) -> Any:
            sync()
            return step(*args, **kwargs)

        made.step = early
        return made


class NormApart(TpSp):
    def reduce(self) -> None:
        for p in self.model.head.norm.parameters():
            assert isinstance(p.grad, DTensor)
            p.grad = DTensor.from_local(p.grad.to_local(), p.grad.device_mesh, [Replicate()], run_check=False)
        super().reduce()


class PositionsApart(TpSp):
    def reduce(self) -> None:
        kept = self.model.embedding.positions.weight.grad.clone()
        super().reduce()
        self.model.embedding.positions.weight.grad.copy_(kept)


class WrongGroup(FsdpTpSp):
    """What tp splits is reduced over dp: groups of the same size."""

    def reduce(self) -> None:
        assert self.mesh is not None
        for name, p in self.model.named_parameters():
            if name.endswith(("out.bias", "down.bias", "positions.weight")):
                dist.all_reduce(p.grad.to_local(), group=self.mesh.get_group("dp"))


class ReplicasApart(Hsdp):
    def last(self, last: bool) -> AbstractContextManager[Any]:
        self.model.set_requires_all_reduce(False)
        return nullcontext()


class TiedApart(PipelineSystem):
    def reduce(self) -> None:
        pass


class TiedAveraged(PipelineSystem):
    def reduce(self) -> None:
        super().reduce()
        if self.copy is not None:
            self.copy.grad.div_(self.size("pp"))


class TiedOtherStart(PipelineSystem):
    def apply(self) -> None:
        super().apply()
        if self.copy is not None:
            with torch.no_grad():
                self.copy.mul_(1 + self.at("pp"))


class StagesSummed(PipelineSystem):
    """The schedule does not average over microbatches."""

    def apply(self) -> None:
        super().apply()
        self.schedule.scale_grads = False


class StageStale(PipelineSystem):
    def make_optimizer(self, optimizers: Any) -> Any:
        made = super().make_optimizer(optimizers)
        if self.at("pp"):
            made.zero_grad = lambda *a, **k: None
        return made


class OtherTargets(PipelineSystem):
    """The last stage takes the targets of other microbatches."""

    def step(self, sent: Any, batches: Any) -> None:
        ids, targets = zip(*batches, strict=True)
        super().step(sent, list(zip(ids, targets[::-1] if self.at("pp") else targets, strict=True)))


class StageUntrained(PipelineSystem):
    def make_optimizer(self, optimizers: Any) -> Any:
        return optimizers(p for n, p in self.model.named_parameters() if "layers.1.mlp.up" not in n)


class ExpertsSummed(Experts):
    """Gradients of experts are not divided, though each has seen the tokens of all ranks."""

    def reduce(self) -> None:
        super().reduce()
        for name, p in self.model.named_parameters():
            if name.endswith(("mlp.gate", "mlp.up", "mlp.down")):
                p.grad.mul_(self.size("ep"))


class ExpertsReduced(Experts):
    """Gradients of experts are averaged like those of all others: experts of other ranks are other experts."""

    def reduce(self) -> None:
        for p in self.model.parameters():
            dist.all_reduce(p.grad, group=self.mesh.get_group("ep"))
            p.grad.div_(self.size("ep"))


class RouterApart(Experts):
    def reduce(self) -> None:
        kept = {n: p.grad / self.size("ep") for n, p in self.model.named_parameters() if n.endswith("router.weight")}
        super().reduce()
        for name, p in self.model.named_parameters():
            if name in kept:
                p.grad.copy_(kept[name])


class Flipped(Hand):
    """The rows of one gradient stand the other way round."""

    def reduce(self) -> None:
        super().reduce()
        weight = self.model.layers["0"].mlp.up.weight
        weight.grad.copy_(weight.grad.flip(0))


class Exchanged(Hand):
    """Two layers' weights of one shape have each other's gradients."""

    def reduce(self) -> None:
        super().reduce()
        one, two = (self.model.layers[k].mlp.up.weight for k in ("0", "1"))
        kept = one.grad.clone()
        one.grad.copy_(two.grad)
        two.grad.copy_(kept)


class _OfOthers(Fsdp):
    """What a rank gives of elements that the other rank owns is wrong; of its own elements its part is right."""

    def last(self, last: bool) -> AbstractContextManager[Any]:
        sent = DefaultReduceScatter.__call__

        def changed(call: Any, output_tensor: Any, input_tensor: Any, *args: Any, **kwargs: Any) -> Any:
            self.change(input_tensor.view(2, -1)[1 - self.at("dp")])
            return sent(call, output_tensor, input_tensor, *args, **kwargs)

        return mock.patch.object(DefaultReduceScatter, "__call__", changed)

    def change(self, other: Any) -> None:
        other.mul_(2.0)


class OfOthersDropped(_OfOthers):
    def change(self, other: Any) -> None:
        other.zero_()


class OfOthersFlipped(_OfOthers):
    def change(self, other: Any) -> None:
        other.copy_(other.flip(0))


class OtherNames(Hsdp):
    """HSDP on a mesh of its own, which calls its dims by each other's names: the ranks of a dim say what it is."""

    def along(self, *axes: str) -> Any:
        return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_shard", "dp_replicate"))


class RouterLeftOut(Experts):
    """Experts are combined by weights that carry no gradient."""

    def apply(self) -> None:
        super().apply()
        for layer in self.model.layers.values():
            layer.mlp.router.register_forward_hook(self.handed)

    @staticmethod
    def handed(module: Any, given: Any, made: Any) -> Any:
        return made.detach()

    def reduce(self) -> None:
        for name, p in self.model.named_parameters():
            if p.grad is not None:
                if not name.endswith(("mlp.gate", "mlp.up", "mlp.down")):
                    dist.all_reduce(p.grad, group=self.mesh.get_group("ep"))
                p.grad.div_(self.size("ep"))


class RouterTimesZero(RouterLeftOut):
    """The same where the gradient is there, and is zero: no collective and no factor tells."""

    @staticmethod
    def handed(module: Any, given: Any, made: Any) -> Any:
        return made.detach() + 0 * made


@dataclass(frozen=True)
class SetUp:
    """How to run it, as what, and what is to be said: the verdict, the first difference's kind, the proof's ratio.

    `proof` is the verdict on the edited program, "" where no edit says the difference.
    """

    kind: type[System]
    mesh: Mapping[str, int]
    strategy: str
    m: int = 2
    clip: bool = False
    options: frozenset[str] = frozenset()
    verdict: str = "CONFORMS"
    differs: str = ""
    proof: str = ""
    ratio: str | None = None
    sizes: Mapping[str, int] = field(default_factory=lambda: dict(SIZES))

    @property
    def model(self) -> Model:
        """Its model; of experts no config.json says it."""
        if issubclass(self.kind, Experts):
            return model_of(next(c for c in ROWS if c.strategy == "ep"))
        return resolve_model("tests/watch/gpt_tied.json" if "tied" in self.options else f"{FILES}/gpt.json")

    @property
    def names(self) -> Mapping[str, str]:
        """What parameters are called that no table knows."""
        return EXPERT_NAMES if issubclass(self.kind, Experts) else {}

    @property
    def world(self) -> int:
        """How many ranks."""
        return int(torch.tensor(list(self.mesh.values())).prod())


def right(kind: type[System], mesh: Mapping[str, int], strategy: str, *options: str, **more: Any) -> SetUp:
    return SetUp(kind, mesh, strategy, options=frozenset(options), **more)


def wrong(kind: type[System], mesh: Mapping[str, int], strategy: str, differs: str, proof: str = "REFUTED",
          ratio: str | None = None, **more: Any) -> SetUp:
    return SetUp(kind, mesh, strategy, verdict="DIFFERS", differs=differs, proof=proof, ratio=ratio, **more)


DP, TP, BOTH, PP = {"dp": 2}, {"tp": 2}, {"dp": 2, "tp": 2}, {"pp": 2}
HSDP = {"dp_replicate": 2, "dp_shard": 2}

EXPERTS = {**SIZES, "experts": 8, "topk": 2, "f": 32}
EXPERT_NAMES = {"layers.{}.mlp.router.weight": "layer.router.weight",
                **{f"layers.{{}}.mlp.{n}": f"layer.expert.{n}.weight" for n in ("gate", "up", "down")}}
"""What the parameters of experts are called in the model."""

RIGHT: Mapping[str, SetUp] = {
    "ddp no_sync": right(Ddp, DP, f"{FILES}/ddp.toml"),
    "ddp as dp, clipped": right(Ddp, DP, "dp", clip=True),
    "by hand": right(Hand, DP, "dp", clip=True),
    "by hand, one buffer": right(Bucketed, DP, "dp"),
    "by hand, m on gradients": right(GradientScaled, DP, "dp"),
    "by hand, token mean": right(TokenMean, DP, "dp", m=1),
    "fsdp2": right(Fsdp, DP, "zero3"),
    "fsdp2 clipped": right(Fsdp, DP, "zero3", clip=True),
    "fsdp2 kept": right(Fsdp, DP, "fsdp_no_reshard", "no_reshard", m=1),
    "fsdp2 root": right(Fsdp, DP, f"{FILES}/fsdp2.toml", "root", m=1),
    "fsdp2 mixed": right(Fsdp, DP, f"{FILES}/fsdp2_mixed.toml", "mixed", m=1),
    "fsdp2 layers, tied": right(FsdpLayers, DP, "tests/watch/fsdp2_tied.toml", "tied"),
    "zero1": right(Zero1, DP, f"{FILES}/zero1.toml"),
    "tp": right(Tp, TP, f"{FILES}/tp.toml", "per_use", m=1),
    "tp + sp": right(TpSp, TP, "tp_sp_keep", m=1),
    "context parallel": right(Context, {"cp": 2}, "cp", m=1),
    "hsdp": right(Hsdp, HSDP, f"{FILES}/hsdp.toml"),
    "hsdp, other names": right(OtherNames, HSDP, f"{FILES}/hsdp.toml", m=1),
    "fsdp2 x tp + sp": right(FsdpTpSp, BOTH, f"{FILES}/fsdp2_tp_sp.toml", m=1),
    "1f1b": right(PipelineSystem, PP, "pp_1f1b", m=4),
    "gpipe, tied": right(PipelineSystem, PP, "pp_gpipe", "gpipe", "tied", m=4),
    "1f1b, tied": right(PipelineSystem, PP, "pp_1f1b", "tied", m=4),
    "1f1b on four stages, tied": right(PipelineSystem, {"pp": 4}, "pp_1f1b", "tied", m=6, sizes={**SIZES, "L": 4}),
    "ring": right(hand.Ring, {"cp": 2}, "cp_ring"),
    "ring of four": right(hand.Ring, {"cp": 4}, "cp_ring", m=1),
    "ring of four, own part first": right(hand.OwnFirst, {"cp": 4}, "cp_ring", m=1),
    "experts": right(Experts, {"ep": 2}, "ep", sizes=EXPERTS),
    "gpipe x fsdp2": right(PipelineFsdp, {"pp": 2, "dp": 2}, f"{FILES}/pp_fsdp2.toml", "gpipe", m=4),
    "flat copies": right(hand.Flat, DP, "zero1"),
    "flat copies, clipped": right(hand.Flat, DP, "zero1", clip=True, m=1),
    "flat copies on two axes": right(hand.FlatReplicas, HSDP, "tests/watch/zero1_replicas.toml", clip=True),
    "megatron": right(hand.Megatron, BOTH, "dp*tp_sp", clip=True),
    **{name: right(kind, DP, "dp", clip="hook" not in name) for name, kind in quiet.RIGHT.items()},
    **{name: right(kind, DP, strategy) for name, (kind, strategy) in kept.RIGHT.items()},
    **{name: right(kind, TP if "tp" in strategy else DP, strategy, clip=clip)
       for name, (kind, strategy, clip) in local.RIGHT.items()},
    **{name: right(kind, DP, "dp") for name, kind in loss.RIGHT.items()},
}

QUIET_PROOFS = {"by hand: gradients doubled in a hook": "REFUTED", "by hand: mean over unequal counts": "REFUTED"}

FLAT_RATIOS = {"sum for mean": "dp", "norm of a part": "1/dp"}

WRONG: Mapping[str, SetUp] = {
    "ddp: not reduced": wrong(Unreduced, DP, "dp", "axes"),
    "ddp: sum for mean": wrong(Summed, DP, "dp", "scale", ratio="dp"),
    "ddp: halved": wrong(Halved, DP, "dp", "scale"),
    "ddp: gradients not cleared": wrong(Stale, DP, "dp", "stale"),
    "ddp: not divided by m": wrong(NotOverMicrobatches, DP, "dp", "scale", ratio="m"),
    "by hand: largest for mean": wrong(Largest, DP, "dp", "", ""),
    "by hand: one left out": wrong(OneLeftOut, DP, "dp", "axes", ""),
    "by hand: one layer's left out": wrong(OneOfLayers, DP, "dp", "axes", ""),
    "by hand: last microbatch only": wrong(LastOnly, DP, "dp", "accumulation", ratio="1/m"),
    "by hand: clipped before reduced": wrong(ClippedFirst, DP, "dp", "order"),
    "by hand: mean taken twice": wrong(Twice, DP, "dp", "axes", "PROVED"),
    "by hand: summed twice": wrong(SummedTwice, DP, "dp", "axes", ratio="dp"),
    "by hand: rows the other way round": wrong(Flipped, DP, "dp", "", ""),
    "by hand: of another layer": wrong(Exchanged, DP, "dp", "", ""),
    "fsdp2: of others' elements twice": wrong(_OfOthers, DP, "zero3", "", ""),
    "fsdp2: of others' elements none": wrong(OfOthersDropped, DP, "zero3", "", ""),
    "fsdp2: of others' elements in another order": wrong(OfOthersFlipped, DP, "zero3", "", ""),
    "by hand: not in the optimizer": wrong(Forgotten, DP, "dp", "update", ""),
    "by hand: noise for a gradient": wrong(Noise, DP, "dp", "", ""),
    "by hand: written through numpy": wrong(BehindNumpy, DP, "dp", "", ""),
    "by hand: written through ctypes": wrong(BehindCtypes, DP, "dp", "", ""),
    "by hand: weights averaged": wrong(WeightsAveraged, DP, "dp", "axes", ""),
    "by hand: not trained": wrong(Untrained, DP, "dp", "untrained", ""),
    "by hand: other start": wrong(OwnStart, DP, "dp", "replicas differ"),
    "by hand: norm of a part": wrong(NormInPart, DP, "dp", "norm", "", clip=True),
    "by hand: two clip factors": wrong(TwoFactors, DP, "dp", "clip", "", clip=True),
    "by hand: replicas counted in the norm": wrong(NormOfReplicas, DP, "dp", "norm", ratio="dp", clip=True),
    "fsdp2: sum for mean": wrong(FsdpSummed, DP, "zero3", "scale", ratio="dp"),
    "fsdp2: gradients not cleared": wrong(FsdpStale, DP, "zero3", "stale"),
    "fsdp2: not reduced": wrong(FsdpUnreduced, DP, "zero3", "no gradient", ""),
    "fsdp2: norm per shard": wrong(FsdpOwnNorm, DP, "zero3", "norm", ratio="1/dp", clip=True),
    "fsdp2: norm per shard, as a number": wrong(FsdpOwnNumber, DP, "zero3", "", "", clip=True),
    "fsdp2: not divided by m": wrong(FsdpNotOverMicrobatches, DP, "zero3", "scale", ratio="m"),
    "zero1: not published": wrong(Unpublished, DP, f"{FILES}/zero1.toml", "update", m=1),
    "zero1: published before the update": wrong(PublishedFirst, DP, f"{FILES}/zero1.toml", "publish", "", m=1),
    "tp + sp: norm not reduced": wrong(NormApart, TP, "tp_sp_keep", "axes", ratio="1/tp", m=1),
    "tp + sp: positions not reduced": wrong(PositionsApart, TP, "tp_sp_keep", "axes", ratio="1/tp", m=1),
    "fsdp2 x tp + sp: wrong group": wrong(WrongGroup, BOTH, f"{FILES}/fsdp2_tp_sp.toml", "axes", "", m=1),
    "megatron: norms not reduced": wrong(hand.NormsApart, BOTH, "dp*tp_sp", "axes", ratio="1/tp", m=1),
    **{f"megatron: {what}": wrong(kind, BOTH, "dp*tp_sp", differs, "", m=1, clip=differs == "norm")
       for what, (kind, differs) in hand.WRONG.items()},
    "megatron: summed again in every microbatch": wrong(hand.Again, BOTH, "dp*tp_sp", "axes", ""),
    "hsdp: norm over the replicas": wrong(HsdpOtherNorm, HSDP, f"{FILES}/hsdp.toml",
                                          "norm", "", m=1, clip=True),
    "fsdp2: written through numpy": wrong(FsdpBehind, DP, "zero3", "", "", m=1),
    "fsdp2: weights gathered in other bytes": wrong(Fsdp, DP, f"{FILES}/fsdp2_mixed.toml", "types", "PROVED", m=1),
    **{f"flat copies: {what}": wrong(kind, DP, "zero1", differs, "" if differs in ("", "places") or "before" in what
                                     else "REFUTED", FLAT_RATIOS.get(what), m=1,
                                     clip=differs == "norm")
       for what, (kind, differs) in hand.FLAT.items()},
    "fsdp2 layers, tied: gathered again": wrong(FsdpLayers, DP, "zero3", "gathers", "PROVED",
                                                options=frozenset(("tied",))),
    "1f1b, tied: not reduced": wrong(TiedApart, PP, "pp_1f1b", "axes", options=frozenset(("tied",))),
    "1f1b, tied: averaged": wrong(TiedAveraged, PP, "pp_1f1b", "scale", "", options=frozenset(("tied",))),
    "1f1b, tied: other start": wrong(TiedOtherStart, PP, "pp_1f1b", "replicas differ", "",
                                     options=frozenset(("tied",))),
    "gpipe: summed over microbatches": wrong(StagesSummed, PP, "pp_gpipe", "scale", ratio="m",
                                             options=frozenset(("gpipe",))),
    "gpipe: gradients of one stage not cleared": wrong(StageStale, PP, "pp_gpipe", "stale", "",
                                                       options=frozenset(("gpipe",))),
    "1f1b: another order": wrong(PipelineSystem, PP, "pp_1f1b", "order", "", m=4, options=frozenset(("gpipe",))),
    "1f1b: not in the optimizer": wrong(StageUntrained, PP, "pp_1f1b", "update", ""),
    "ring: gradients not brought home": wrong(hand.NotBroughtHome, {"cp": 2}, "cp_ring", "message", "", m=1),
    "ring: one turn less": wrong(hand.OneTurnLess, {"cp": 4}, "cp_ring", "message", "", m=1),
    "experts: not divided": wrong(ExpertsSummed, {"ep": 2}, "ep", "scale", ratio="ep", sizes=EXPERTS),
    "experts: reduced": wrong(ExpertsReduced, {"ep": 2}, "ep", "axes", "", sizes=EXPERTS),
    "experts: router not reduced": wrong(RouterApart, {"ep": 2}, "ep", "axes", "", sizes=EXPERTS),
    "experts: router missing": wrong(RouterLeftOut, {"ep": 2}, "ep", "no gradient", "", sizes=EXPERTS),
    "hsdp: replicas not reduced": wrong(ReplicasApart, HSDP, f"{FILES}/hsdp.toml",
                                        "no gradient", ""),
    **{name: wrong(kind, HSDP, "tests/watch/zero1_replicas.toml", differs, "")
       for name, (kind, differs) in hand.REPLICAS.items()},
    **{name: wrong(kind, {"tp_sp_keep": TP, "dp*tp_sp": BOTH}.get(strategy, DP), strategy,
                   "" if differs == quiet.CLIPS else differs, QUIET_PROOFS.get(name, ""),
                   m=1 if "tp" in strategy else 2, clip=differs in ("norm", quiet.CLIPS))
       for name, (kind, strategy, differs) in quiet.WRONG.items()},
    **{name: wrong(kind, {"tp_sp_keep": TP, "dp*tp_sp": BOTH}.get(strategy, DP), strategy, differs, "",
                   m=1 if strategy == "tp_sp_keep" else 2)
       for name, (kind, strategy, differs) in (*kept.WRONG.items(), *local.WRONG.items(), *loss.WRONG.items())},
}


INSIDE: Mapping[str, SetUp] = {
    "by hand: loss in a kernel": right(InKernel, DP, "dp", m=1),
    "by hand: clipped by a number": right(ClippedByNumber, DP, "dp", m=1, clip=True),
    "by hand: kernel divides by 2 as well": wrong(InKernelTwice, DP, "dp", "", "", m=1),
    "by hand: kernel divides by local counts": wrong(LocalCounts, DP, "dp", "", "", m=1),
    "experts: router's gradient is zero": wrong(RouterTimesZero, {"ep": 2}, "ep", "", "", sizes=EXPERTS),
    "by hand: other scores": wrong(OtherScores, DP, "dp", "", "", m=1),
    "1f1b: targets of other microbatches": wrong(OtherTargets, PP, "pp_1f1b", "", "", m=4),
}
"""Set-ups of which no collective, factor or sum tells what is right or wrong: only a single device does."""


def made(chosen: SetUp, dtype: torch.dtype = torch.float32) -> tuple[System, Any, list[Any]]:
    """(the system, its mesh, the microbatches of a step)."""
    torch.set_default_dtype(dtype)
    mesh = mesh_of(tuple(chosen.mesh.items()))
    trial = Trial(chosen.mesh, chosen.sizes, SEQUENCES, TOKENS, chosen.m, chosen.clip, chosen.options)
    system = chosen.kind(trial, mesh, OPTIMIZERS["sgd"])
    rows = SEQUENCES
    for axis in system.data:
        rows *= chosen.mesh[axis]
    cell: Any = type("Sizes", (), {"m": chosen.m, "sizes": chosen.sizes})
    return system, mesh, batches(cell, 0, rows)


def watched(system: System) -> Any:
    """The modules whose parameters have the single device's names."""
    return [part.gpt for part in system.model] if isinstance(system, PipelineSystem) else system.model


def seen_of(chosen: SetUp, alone: Callable[[], Trace] | None = None) -> Any:
    """The recording of a step after a first one, run again beside a single device where there is one."""
    from placealg.watch.recorder.observe import observe
    from placealg.watch.recorder.single import beside
    from placealg.watch.recorder.trace import tracing

    system, mesh, data = made(chosen)
    system.step(TrafficCounter(), data)
    if alone is None:
        with observe(watched(system), mesh) as observation:
            system.step(TrafficCounter(), data)
        return observation.seen
    with observe(watched(system), mesh) as observation, tracing(watched(system)) as followed:
        system.step(TrafficCounter(), data)
    return beside(observation.seen, followed.trace, alone)


def recorded(chosen: SetUp, _rank: int = 0) -> str:
    """The same without a single device, as text."""
    return str(seen_of(chosen).text())


def faked(job: tuple[int, int, int]) -> str:
    """The recording of rank `rank` of dp x tp ranks, FSDP2 on top of TP and SP, on a group that sends nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dp, tp, rank = job
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=dp * tp)
    return recorded(replace(RIGHT["fsdp2 x tp + sp"], mesh={"dp": dp, "tp": tp}))


def losses(model: Any, batch: Any) -> torch.Tensor:
    """The loss of every token of all microbatches on the single device; their sum is the mean over tokens."""
    x, y = batch
    logits = model(x, torch.arange(x.shape[1]))
    each = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
    return each.view(y.shape) / y.numel()


def reference_of(chosen: SetUp, data: Any) -> dict[str, Any]:
    """The single device of a set-up, as `record` and `assert_trains_as` take it."""
    trial = Trial({}, chosen.sizes, len(data[0][0]), TOKENS, 1, options=chosen.options & {"tied"})
    single = System(trial, None, OPTIMIZERS["sgd"])
    return {"reference": (single.model, losses), "batch": tuple(torch.cat([d[k] for d in data]) for k in (0, 1)),
            "clip": CLIP if chosen.clip else 0.0}


def timed(name: str, _rank: int = 0) -> tuple[float, float]:
    """(a plain step, one that is recorded) of a right set-up, in seconds of this rank's processor."""
    from placealg.watch.recorder.observe import observe

    system, mesh, data = made(RIGHT[name])
    system.step(TrafficCounter(), data)
    began = time.process_time()
    for _ in range(PLAIN):
        system.step(TrafficCounter(), data)
    between = time.process_time()
    with observe(watched(system), mesh):
        system.step(TrafficCounter(), data)
    return (between - began) / PLAIN, time.process_time() - between


PLAIN = 5
"""How many plain steps are timed."""


def named(name: str, _rank: int) -> str:
    """The recording of a set-up by its name, beside its single device; what went wrong, if it is alike."""
    import lifted

    try:
        return str(seen_of({**RIGHT, **WRONG, **INSIDE}[name], lambda: lifted.alone(name)).text())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


__all__ = ["INSIDE", "RIGHT", "WRONG", "SetUp", "named", "recorded", "systems"]
