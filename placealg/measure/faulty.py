"""Systems that do one thing wrong, and how wrong a real run of each is."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.nn import functional

from placealg.measure.cells import TOKENS
from placealg.measure.count import TrafficCounter, local
from placealg.measure.faults import Fault
from placealg.measure.network import token_loss
from placealg.measure.pipeline import PipelineSystem
from placealg.measure.run import OPTIMIZERS, STEPS, batches, mesh_of, whole_rows
from placealg.measure.systems import CLIP, Ddp, Fsdp, System, Tp, TpSp, Trial, Zero1


class Faulty:
    """What a system with a fault adds: how wrong its first step was."""

    def ratio(self, single: System) -> float | None:
        """Against the single device after one step; None on a rank that has nothing to measure."""
        assert isinstance(self, System)
        want = torch.cat([p.grad.flatten() for p in single.model.parameters() if p.grad is not None])
        return _along(torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None]), want)


def _along(got: Tensor, want: Tensor) -> float:
    """The part of `got` along `want`, as a multiple of it."""
    return float((got.flatten() @ want.flatten()) / (want.flatten() @ want.flatten()))


class Unreduced(Faulty, Ddp):
    """No gradient is averaged."""

    def last(self, last: bool) -> AbstractContextManager[Any]:
        """No microbatch is synchronised."""
        return super().last(False)


class Summed(Faulty, Ddp):
    """Gradients are added where they should be averaged."""

    def reduce(self) -> None:
        """Undo the division."""
        for parameter in self.model.parameters():
            parameter.grad.mul_(self.size("dp"))


class Unpublished(Faulty, Zero1):
    """Updated parameters stay with their owners."""

    def make_optimizer(self, optimizers: Any) -> Any:
        """The sharded optimizer, whose broadcasts are left out."""
        made = super().make_optimizer(optimizers)
        made._sync_params = lambda: None
        self.start = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        return made

    def ratio(self, single: System) -> float | None:
        """How far parameters of other owners moved, along how far the single device's did."""
        mine = {id(p) for group in self.optimizer.optim.param_groups for p in group["params"]}
        stale = [name for name, p in self.model.named_parameters() if id(p) not in mine]
        now, want = dict(self.model.named_parameters()), dict(single.model.named_parameters())
        moved, should = (torch.cat([(there[n].detach() - self.start[n]).flatten() for n in stale])
                         for there in (now, want))
        return _along(moved, should)


class NormApart(Faulty, TpSp):
    """The final norm's gradient is not reduced over the shares of the sequence."""

    def reduce(self) -> None:
        """Take what each rank has of it for the whole."""
        for parameter in self.model.head.norm.parameters():
            grad = parameter.grad
            assert isinstance(grad, DTensor)
            parameter.grad = DTensor.from_local(grad.to_local(), grad.device_mesh, [Replicate()], run_check=False)
        super().reduce()

    def ratio(self, single: System) -> float | None:
        """The norm's gradient along the single device's."""
        got, want = self.model.head.norm.weight.grad, single.model.head.norm.weight.grad
        return _along(got.to_local(), want)


class ClippedAlone(Faulty, Fsdp):
    """Every rank clips by the norm of what it holds."""

    def clip(self) -> None:
        """Scale by the local norm."""
        grads = [local(p.grad) for p in self.model.parameters() if p.grad is not None]
        self.norm = nn.utils.get_total_norm(grads)
        for grad in grads:
            grad.mul_(min(1.0, CLIP / (float(self.norm) + 1e-6)))

    def ratio(self, single: System) -> float | None:
        """Its squared norm over the whole one."""
        return float(self.norm**2 / single.norm**2)


class TiedApart(Faulty, PipelineSystem):
    """The two ends of the pipeline keep their own gradient of the tied embedding."""

    def reduce(self) -> None:
        """Leave the gradients as they are."""

    def ratio(self, single: System) -> float | None:
        """On the last stage, how much of the lookups' gradient there is beside the head's."""
        if not self.ends[1]:
            return None
        trial = single.trial
        apart = System(Trial({}, trial.sizes, trial.b, trial.s, trial.m), None, OPTIMIZERS["sgd"])
        with torch.no_grad():
            apart.model.head.logits.weight.copy_(apart.model.embedding.tokens.weight)
        apart.step(TrafficCounter(), single.seen)
        assert self.copy is not None and self.copy.grad is not None
        return _along(self.copy.grad - apart.model.head.logits.weight.grad, apart.model.embedding.tokens.weight.grad)


class BiasEverywhere(Faulty, Tp):
    """The bias of attention's output is added to every rank's partial sum, before the reduction."""

    def apply(self) -> None:
        """Run that product by hand."""
        super().apply()
        assert self.mesh is not None
        for layer in self.model.layers.values():
            layer.attn.out.forward = _Biased(layer.attn.out, self.mesh["tp"])

    def ratio(self, single: System) -> float | None:
        """How often the bias is in the result."""
        out = self.model.layers["0"].attn.out
        x = torch.ones(1, 1, out.product.weight.to_local().shape[1])
        with torch.no_grad():
            whole = out(x)
            bias = out.bias.clone()
            out.bias.zero_()
            return _along(whole - out(x), bias)


class _Biased:
    """A row parallel product that adds its bias before the sum over ranks."""

    def __init__(self, module: Any, mesh: Any):
        self.module, self.mesh = module, mesh

    def __call__(self, x: Tensor) -> Tensor:
        part = functional.linear(x, self.module.product.weight.to_local()) + self.module.bias
        return DTensor.from_local(part, self.mesh, [Partial()], run_check=False).redistribute(
            placements=[Replicate()]).to_local()


class _Counted:
    """The first rank's sequences count whole, the second's by their first quarter."""

    @staticmethod
    def counted(y: Tensor, first: int, b: int) -> Tensor:
        """Which tokens of the rows from `first` on count."""
        rows = (torch.arange(len(y)) + first) // b
        return torch.arange(TOKENS) < torch.where(rows == 0, TOKENS, TOKENS // 4).unsqueeze(1)


class UnequalSingle(System):
    """The single device: the mean over all tokens that count."""

    def loss(self, x: Tensor, positions: Tensor, y: Tensor) -> Tensor:
        """The sum over those tokens, over their number, as a multiple of what the base class divides by."""
        mask = _Counted.counted(y, 0, self.trial.b // 2)
        return token_loss(self.runs(x, positions)[mask], y[mask]) * (y.numel() / mask.sum())


class Unequal(Faulty, Ddp):
    """Ranks have unequal numbers of tokens, each divides by its own."""

    def loss(self, x: Tensor, positions: Tensor, y: Tensor) -> Tensor:
        """The sum over the rank's tokens, over their number."""
        mask = _Counted.counted(y, self.at("dp") * self.trial.b, self.trial.b)
        return token_loss(self.runs(x, positions)[mask], y[mask]) * (y.numel() / mask.sum())

    def ratio(self, single: System) -> float | None:
        """The sum of the tokens' weights: those of each rank's tokens are found from the gradients of both."""
        trial, parts = single.trial, []
        for rank in range(2):
            alone = System(Trial({}, trial.sizes, self.trial.b, trial.s, 1), None, OPTIMIZERS["sgd"])
            rows = slice(rank * self.trial.b, (rank + 1) * self.trial.b)
            x, y = (column[rows] for column in single.seen[0])
            mask = _Counted.counted(y, rank * self.trial.b, self.trial.b)
            token_loss(alone.model(x, alone.positions())[mask], y[mask]).backward()
            gradient = torch.cat([p.grad.flatten() for p in alone.model.parameters() if p.grad is not None])
            parts.append((int(mask.sum()), gradient))
        got = torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None])
        weights = torch.linalg.lstsq(torch.stack([g for _, g in parts], 1), got.unsqueeze(1)).solution.flatten()
        return float(sum(count * weight for (count, _), weight in zip(parts, weights, strict=True)))


def measure(fault: Fault, _rank: int) -> tuple[float | None, float]:
    """(ratio of the first step, difference of parameters after STEPS steps of SGD) on this rank."""
    torch.set_default_dtype(torch.float64)
    cell = fault.cell
    mesh = mesh_of(tuple(cell.mesh.items()))
    kind = globals()[cell.system]
    trial = Trial(cell.mesh, cell.sizes, 2, TOKENS, cell.m, cell.clip, cell.options)
    system = kind(trial, mesh, OPTIMIZERS["sgd"])
    rows = whole_rows(cell, kind)
    alone = UnequalSingle if kind is Unequal else System
    single = alone(Trial({}, cell.sizes, rows, TOKENS, cell.m, cell.clip, cell.options), None, OPTIMIZERS["sgd"])
    ratio = None
    for step in range(STEPS):
        seen = batches(cell, step, rows)
        for one in (single, system):
            one.step(TrafficCounter(), seen)
        if step == 0:
            ratio = system.ratio(single)
    want = dict(single.parameters())
    return ratio, max((got - want[name]).abs().max().item() for name, got in system.parameters())

