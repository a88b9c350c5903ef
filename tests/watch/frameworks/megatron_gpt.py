"""Megatron-Core's GPTModel with its data parallel wrapper, its finalize_model_grads and its optimizer: DP TP."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

torch.cuda.current_device = lambda: "cpu"  # shims: what is said to a GPU is said to the CPU
torch.Tensor.cuda = lambda self, *args, **kwargs: self


def on_cpu(maker: Any) -> Any:
    """A function that makes tensors, whatever device it is told."""
    return lambda *args, device=None, **kwargs: maker(*args, **kwargs)


torch.tensor, torch.zeros = on_cpu(torch.tensor), on_cpu(torch.zeros)

from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.tensor_parallel import random
from megatron.core.transformer import TransformerConfig, transformer_block

TP = int(sys.argv[2])
together = next((int(w.partition("=")[2]) for w in sys.argv if w.startswith("--together=")), 0)


class Norm(nn.RMSNorm):
    """A shim: without Apex and TransformerEngine Megatron has no norm for sequence parallelism."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-6):
        super().__init__(hidden_size, eps=eps)
        self.weight.sequence_parallel = config.sequence_parallel and "--norms" not in sys.argv


random.CudaRNGStatesTracker.fork = lambda self, *args: nullcontext()  # a shim: there is no dropout
dist.init_process_group("gloo")
parallel_state.initialize_model_parallel(tensor_model_parallel_size=TP)
torch.manual_seed(parallel_state.get_tensor_model_parallel_rank())
config = TransformerConfig(
    num_layers=2, hidden_size=32, num_attention_heads=4, ffn_hidden_size=64, tensor_model_parallel_size=TP,
    sequence_parallel=TP > 1, gated_linear_unit=True, activation_func=nn.functional.silu, add_bias_linear=False,
    normalization="RMSNorm", hidden_dropout=0.0, attention_dropout=0.0, use_cpu_initialization=True,
    gradient_accumulation_fusion=False, bias_activation_fusion=False, masked_softmax_fusion=False,
    params_dtype=torch.float32)
spec = get_gpt_layer_local_spec(normalization="RMSNorm")
spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = Norm
transformer_block.LayerNormImpl = Norm
gpt = GPTModel(config, spec, vocab_size=64, max_sequence_length=8, position_embedding_type="rope",
               share_embeddings_and_output_weights=False)
torch.manual_seed(0)
with torch.no_grad():
    for parameter in gpt.parameters():  # replicas are equal
        if not getattr(parameter, "tensor_model_parallel", False) and parameter.dim() > 1:
            parameter.normal_(0, 0.02)
sharded = "--distributed" in sys.argv
model = DistributedDataParallel(config, DistributedDataParallelConfig(
    use_distributed_optimizer=sharded, overlap_grad_reduce=False, grad_reduce_in_fp32=False), gpt)
model.broadcast_params()
optimizer = get_megatron_optimizer(OptimizerConfig(
    optimizer="adam", lr=1e-3, clip_grad=0.0, use_distributed_optimizer=sharded, params_dtype=torch.float32), [model])
for step in range(3):
    model.zero_grad_buffer()
    optimizer.zero_grad()
    for microbatch in range(2):
        rows = range(together) if together else (parallel_state.get_data_parallel_rank(),)
        ids = torch.cat([torch.randint(64, (2, 9), generator=torch.Generator().manual_seed(
            8 * step + 4 * microbatch + row)) for row in rows])
        positions = torch.arange(8).expand(len(ids), 8)
        mask = torch.ones(8, 8).triu(1).bool()[None, None]
        losses = model(ids[:, :-1], positions, mask, labels=ids[:, 1:])
        (losses.mean() / 2).backward()
    finalize_model_grads([model])
    optimizer.step()
