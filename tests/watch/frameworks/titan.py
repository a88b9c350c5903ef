"""torchtitan's Llama under its parallelize_llama, with its own loss, clipping and step: --mesh dp=..,tp=..

With --together=N one rank reads what N ranks read.
"""

from __future__ import annotations

import sys
from unittest import mock

import torch
import torch.distributed as dist
sys.modules["torchtitan.distributed.minimal_async_ep.kernels"] = mock.MagicMock()  # a shim: kernels of triton

import torchtitan.tools.utils

torchtitan.tools.utils.device_type = "cpu"  # a shim: without an accelerator torchtitan takes cuda

from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed import utils as titan
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import _EMBEDDING_INIT, _NORM_INIT, _build_llama3_layers, _output_linear_init
from torchtitan.models.llama3.model import Llama3Model
from torchtitan.models.llama3.parallelize import parallelize_llama
from torchtitan.models.llama3.sharding import set_llama3_sharding_config

H, VOCAB = 32, 64
shards, tp = int(sys.argv[1]), int(sys.argv[2])
together = next((int(w.partition("=")[2]) for w in sys.argv if w.startswith("--together=")), 0)

dist.init_process_group("gloo")
dims = ParallelDims(dp_replicate=1, dp_shard=shards, cp=1, tp=tp, pp=1, ep=1, world_size=dist.get_world_size(),
                    spmd_backend="partial_dtensor")
dims.build_mesh()
titan.set_spmd_backend("partial_dtensor")
torch.manual_seed(0)
layers = _build_llama3_layers(n_layers=2, dim=H, n_heads=4, hidden_dim=64, fuse_qkv=False, attn_backend="flex",
                              rope=ComplexRoPE.Config(dim=H // 4, max_seq_len=32, theta=10000.0))
for layer in layers:  # a shim: flex attention is a kernel that is compiled
    layer.attention.inner_attention = ScaledDotProductAttention.Config()
config = Llama3Model.Config(
    dim=H, vocab_size=VOCAB, norm=RMSNorm.Config(normalized_shape=H, param_init=_NORM_INIT), layers=layers,
    tok_embeddings=Embedding.Config(num_embeddings=VOCAB, embedding_dim=H, param_init=_EMBEDDING_INIT),
    lm_head=Linear.Config(in_features=H, out_features=VOCAB, param_init=_output_linear_init(H)))
set_llama3_sharding_config(config, enable_sp=True)
with torch.device("meta"):
    model = config.build()
parallelize_llama(model, parallel_dims=dims, training=TrainingConfig(mixed_precision_param="float32"),
                  parallelism=ParallelismConfig(spmd_backend="partial_dtensor"), compile_config=CompileConfig(),
                  ac_config=None, dump_folder="")
model.to_empty(device="cpu")
with torch.no_grad():
    model.init_weights(buffer_device=None)
for module in model.modules():  # a shim: gloo has no sum that multiplies first
    if hasattr(module, "set_force_sum_reduction_for_comms"):
        module.set_force_sum_reduction_for_comms(True)
        if "--mean" in sys.argv:  # a fault: the loss divides by the tokens of all ranks already
            module.set_gradient_divide_factor(float(shards))
loss_fn = CrossEntropyLoss.Config().build(compile_config=CompileConfig())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
batch = dims.get_mesh("batch") if dims.dp_enabled else None
for step in range(3):
    optimizer.zero_grad()
    at = batch.get_local_rank() if batch is not None else 0
    ids = torch.cat([torch.randint(VOCAB, (2, 9), generator=torch.Generator().manual_seed(2 * step + row))
                     for row in (range(together) if together else (at,))])
    inputs, labels = ids[:, :-1], ids[:, 1:]
    tokens = torch.tensor(labels.numel(), dtype=torch.int64)
    if batch is not None:
        tokens = titan.dist_sum_tensor(tokens, batch)
    positions = torch.arange(inputs.shape[1]).expand(inputs.shape)
    with titan.get_spmd_context(parallel_dims=dims)():
        loss, _ = loss_fn(model(inputs, attention_masks=None, positions=positions), labels, tokens)
        loss.backward()
    titan.clip_grad_norm_(list(model.parameters()), 0.1, foreach=True)
    optimizer.step()
