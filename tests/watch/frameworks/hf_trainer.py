"""The Trainer of transformers with accelerate: `--fsdp` asks for FSDP2."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

HERE = Path(__file__).parent


class Words(Dataset[Any]):
    """Sequences of random tokens."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = torch.randint(64, (8,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig.from_json_file(str(HERE / "llama.json")))
fsdp: dict[str, Any] = {"fsdp": "full_shard auto_wrap", "fsdp_config": {
    "version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}} if "--fsdp" in sys.argv else {}
arguments = TrainingArguments(
    output_dir=mkdtemp(), per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=3, learning_rate=1e-3,
    max_grad_norm=0.1, use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, **fsdp)
Trainer(model=model, args=arguments, train_dataset=Words()).train()
