"""How PyTorch runs a pipeline: stages of `torch.distributed.pipelining`, in the order of its schedules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor

from placealg.measure.count import SavedBytes, TrafficCounter
from placealg.measure.network import TIED, Gpt, fill, token_loss
from placealg.measure.systems import Batch, Optimizers, System, Trial
from placealg.step.pipeline import Pipeline as Order


class _Part(nn.Module):
    """A chunk of the model's layers, with what stands before the first and behind the last; positions are its own."""

    def __init__(self, gpt: Gpt, positions: Tensor):
        super().__init__()
        self.gpt, self.positions = gpt, positions

    def forward(self, x: Tensor) -> Tensor:
        """Of ids, or of what the chunk before hands on, what this one hands on, or logits."""
        return self.gpt(x, self.positions)


class _Stage(PipelineStage):
    """A stage that says in which phase it sends and gathers."""

    def __init__(self, system: PipelineSystem, part: nn.Module, number: int, stages: int, group: Any):
        super().__init__(part, number, stages, torch.device("cpu"), group=group)
        self.system = system

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[Any]:
        """What the base class sends, told to belong to forward."""
        return self._tell("forward", super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[Any]:
        """What the base class sends, told to belong to backward."""
        return self._tell("backward", super().get_bwd_send_ops(bwd_chunk_id))

    def _tell(self, phase: str, sends: list[Any]) -> list[Any]:
        self.system.tagged.update({send.tensor.data_ptr(): phase for send in sends})
        return sends

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """The forward of the base class."""
        with self.system.sent.during("forward"):
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """The backward of the base class."""
        with self.system.sent.during("backward"):
            return super().backward_one_chunk(*args, **kwargs)

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """The reduction of the base class, after the last backward."""
        with self.system.sent.during("reduce"):
            super().perform_reduce_grad(grad_scale_factor)


class PipelineSystem(System):
    """A pipeline: layers are split over stages, each rank runs one or two chunks of them."""

    def __init__(self, trial: Trial, mesh: Any, optimizers: Optimizers):
        self.sent = TrafficCounter()
        super().__init__(trial, mesh, optimizers)

    def build(self) -> Any:
        """The chunks of this rank."""
        chunks = 2 if "interleaved" in self.trial.options else 1
        ranks, at, layers = self.size("pp"), self.at("pp"), self.trial.sizes["L"]
        sizes = Order("pp", chunks=chunks).layers(layers, ranks)
        self.numbers = range(at, ranks * chunks, ranks)
        parts = [_Part(Gpt(self.trial.sizes, range(sum(sizes[:k]), sum(sizes[:k + 1])), self.tied), self.positions())
                 for k in self.numbers]
        return nn.ModuleList(parts)

    def apply(self) -> None:
        """Number the parameters as the single device does, and make the stages."""
        assert self.mesh is not None
        for part in self.model:
            fill(part.gpt, self.tied)
        self.shard()
        group, stages = self.mesh.get_group("pp"), self.size("pp") * len(self.numbers)
        made = [_Stage(self, part, k, stages, group) for k, part in zip(self.numbers, self.model, strict=True)]
        several = {"loss_fn": self.microbatch_loss}
        if "interleaved" in self.trial.options:
            self.schedule: Any = ScheduleInterleaved1F1B(made, self.trial.m, **several)
        else:
            kind = ScheduleGPipe if "gpipe" in self.trial.options else Schedule1F1B
            self.schedule = kind(made[0], self.trial.m, **several)
        self.ends = (made[0].is_first, made[-1].is_last)
        if self.tied:
            first, *_, last = dist.get_process_group_ranks(group)
            self.both = dist.new_group([first, last])
            own = dict(self.model.named_parameters())
            found = [p for name, p in own.items() if name.endswith(("embedding.tokens.weight", "head.logits.weight"))]
            self.copy = found[0] if found else None

    def shard(self) -> None:
        """Nothing is sharded on a pipeline alone."""

    def prepare(self) -> None:
        """Nothing is to be done before the schedule begins."""

    def microbatch_loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """The mean over the tokens of a microbatch; the schedule averages over microbatches."""
        return token_loss(logits, y) / y.numel()

    def step(self, sent: TrafficCounter, batches: Sequence[Batch]) -> None:
        """One training step, in the schedule's order."""
        self.sent = sent
        self.optimizer.zero_grad()
        self.saved.clear()
        parts = [self.part(batch) for batch in batches]
        x, y = (torch.cat(column) for column in zip(*parts, strict=True))
        saved = SavedBytes(self.model, (x, y, *(part.positions for part in self.model)))
        self.saved.append(saved)
        first, last = self.ends
        with sent.during("prepare"):
            self.prepare()
        with saved.hooks() if sent.counting else nullcontext():
            self.schedule.step(*((x,) if first else ()), target=y if last else None, return_outputs=False)
        with sent.during("reduce"):
            self.reduce()
        with sent.during("step"):
            self.optimizer.step()

    def reduce(self) -> None:
        """Add what the two ends of the pipeline have of a tied embedding's gradient."""
        if self.tied and self.copy is not None:
            dist.all_reduce(self.copy.grad, group=self.both)

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The parameters of this rank's chunks, by their names on the single device."""
        for part in self.model:
            for name, parameter in part.gpt.named_parameters():
                whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
                yield TIED.get(name, name) if self.tied else name, whole.detach()


class PipelineFsdp(PipelineSystem):
    """A pipeline of stages that FSDP2 shards, every unit by itself."""

    data = ("dp",)

    def shard(self) -> None:
        """Shard the units of every chunk, then the chunk."""
        assert self.mesh is not None
        mesh = self.mesh["dp"]
        for part in self.model:
            gpt = part.gpt
            for unit in _units(gpt):
                fully_shard(unit, mesh=mesh, reshard_after_forward="gather_once" not in self.trial.options)
            fully_shard(part, mesh=mesh)

    def prepare(self) -> None:
        """Gather the units before the schedule begins, where they are gathered once."""
        if "gather_once" in self.trial.options:
            for part in self.model:
                for unit in _units(part.gpt):
                    unit.unshard()


def _units(gpt: Gpt) -> Iterable[nn.Module]:
    return (unit for unit in (gpt.embedding, *gpt.layers.values(), gpt.head) if unit is not None)
