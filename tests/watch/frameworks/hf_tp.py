"""A tensor parallel plan of transformers, as the model of CONFIG ships it: every rank trains on the same tokens.

--norms, a fault: gradients of norms of whole activations, which are whole on every rank, are summed over the ranks.
--twice: two microbatches.
--heads, a fault: gradients of norms of heads, of which each rank has its own, stay as they are.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM

HERE = Path(__file__).parent

torch.manual_seed(0)
with TemporaryDirectory() as folder:  # every rank's own: once there are groups, the first rank alone would write
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(str(HERE / sys.argv[1]))).save_pretrained(folder)
    dist.init_process_group("gloo")
    config = AutoConfig.from_pretrained(folder)
    if "--heads" in sys.argv:
        config.base_model_tp_plan = {k: v for k, v in config.base_model_tp_plan.items() if "_norm" not in k}
    model = AutoModelForCausalLM.from_pretrained(folder, config=config, tp_plan="auto", dtype=torch.float32)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
count = 2 if "--twice" in sys.argv else 1
for step in range(3):
    for microbatch in range(count):
        ids = torch.randint(64, (2, 8), generator=torch.Generator().manual_seed(count * step + microbatch))
        (model(input_ids=ids, labels=ids).loss / count).backward()
    if "--norms" in sys.argv:
        for name, parameter in model.named_parameters():
            if name.endswith(("layernorm.weight", "model.norm.weight")):
                dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
