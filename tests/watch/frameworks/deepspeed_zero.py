"""DeepSpeed's engine on CPUs: ZeRO of the stage that the words say, clipping, two microbatches; FAULT, if any.

--twice: the loss is multiplied by the microbatches; --norm: the norm is a rank's own; --unpublished: new weights stay.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
from transformers import LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).parent
stage = int(sys.argv[1])
together = next((int(w.partition("=")[2]) for w in sys.argv if w.startswith("--together=")), 0)
BUCKETS = {"reduce_bucket_size": 20000, "allgather_bucket_size": 20000}
SMALL = {"stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0}
"""By default parameters of under 1e5 elements stay whole, and what is used again within 1e9 elements stays gathered."""

backend = sys.modules["deepspeed.comm.torch"]  # as an attribute of deepspeed.comm this is torch itself
backend.build_shm_op = lambda: None  # a shim: it compiles an all_reduce for the processes of one machine
deepspeed.init_distributed("gloo")
assert deepspeed.comm.comm.cdb.shm_comm_op is None
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig.from_json_file(str(HERE / "llama.json")))
engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3), config={
    "train_micro_batch_size_per_gpu": 2 * max(together, 1), "gradient_accumulation_steps": 2, "gradient_clipping": 0.1,
    "zero_optimization": {"stage": stage, **BUCKETS, **SMALL}, "zero_force_ds_cpu_optimizer": False,
    "zero_allow_untested_optimizer": True})
if "--unpublished" in sys.argv:
    deepspeed.runtime.zero.stage_1_and_2.all_gather_dp_groups = lambda *args, **kwargs: None
all_reduce = deepspeed.comm.all_reduce
if "--norm" in sys.argv:  # the norm, or its square, is a number or two
    deepspeed.comm.all_reduce = lambda t, *args, **kwargs: None if t.numel() < 3 else all_reduce(t, *args, **kwargs)
for step in range(3):
    for microbatch in range(2):
        ids = torch.cat([torch.randint(64, (2, 8), generator=torch.Generator().manual_seed(
            4 * step + 2 * microbatch + row)) for row in (range(together) if together else (engine.global_rank,))])
        engine.backward(engine(input_ids=ids, labels=ids).loss * (2 if "--twice" in sys.argv else 1))
        engine.step()
