"""A tensor parallel plan of transformers, as the model ships it: every rank trains on the same tokens."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).parent

torch.manual_seed(0)
with TemporaryDirectory() as folder:  # every rank's own: once there are groups, the first rank alone would write
    LlamaForCausalLM(LlamaConfig.from_json_file(str(HERE / "llama.json"))).save_pretrained(folder)
    dist.init_process_group("gloo")
    model = LlamaForCausalLM.from_pretrained(folder, tp_plan="auto", dtype=torch.float32)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(3):
    ids = torch.randint(64, (2, 8), generator=torch.Generator().manual_seed(step))
    model(input_ids=ids, labels=ids).loss.backward()
    if "--norms" in sys.argv:  # a fault: their gradients are whole on every rank
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
