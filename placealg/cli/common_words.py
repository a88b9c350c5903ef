"""What practitioners call things -> what they are called here, for `explain`."""

from __future__ import annotations

from collections.abc import Mapping

from placealg.step.edit import ACTIONS

COMMON: Mapping[str, tuple[str, ...]] = {
    "ddp": ("dp",), "data parallel": ("dp",), "distributed data parallel": ("dp",),
    "fsdp1": ("fsdp",), "fsdp2": ("fsdp",), "fully shard": ("fsdp",), "fully sharded data parallel": ("fsdp",),
    "hybrid sharding": ("hsdp",), "hybrid shard": ("hsdp",), "distributed optimizer": ("zero1",),
    "optimizer state sharding": ("zero1",), "ZeRO": ("zero1", "zero2", "zero3"),
    "tensor parallel": ("tp",), "sequence parallel": ("tp_sp",), "pipeline parallel": ("pp",),
    "context parallel": ("cp_ring",), "ring attention": ("cp_ring",), "expert parallel": ("ep",),
    "activation checkpointing": ("recompute_full",), "gradient checkpointing": ("recompute_full",),
    "activation recomputation": ("recompute_full",), "selective recomputation": ("recompute_selective",),
    "gradient accumulation": ("m", "accumulate"), "global batch": ("b", "m"), "batch size": ("b",),
    "batch": ("b", "m"),
    "microbatch": ("b", "m"), "micro batch": ("b", "m"), "micro batch size": ("b",), "seq len": ("s",),
    "master weights": ("o",), "sequence length": ("s",),
    "resume": ("init", "resume_state"), "checkpoint": ("resume_state",), "frozen parameters": ("frozen",),
    "freeze": ("frozen",), "edit fields": ("edit", *ACTIONS), "keys": ("mesh", "states", "dims"),
    "offload": ("offload_optimizer",), "cpu offload": ("offload_optimizer",), "world size": ("mesh",),
    "lora": ("adapters", "adapter_rank"), "peft": ("adapters",), "qlora": ("adapters", "w"),
    "frozen embedding": ("frozen",), "hierarchical": ("hsdp",), "hierarchical sharding": ("hsdp",),
    "unequal counts": ("equal_counts", "token_mean"), "padding": ("equal_counts", "pad"),
    "packing": ("equal_counts",), "packed sequences": ("equal_counts",), "token mean": ("token_mean",),
    "oom": ("peak", "transient"), "out of memory": ("peak", "transient"), "mfu": ("efficiency", "peak_flops"),
    "model flops utilization": ("efficiency", "peak_flops"), "gqa": ("kv",), "grouped query attention": ("kv",),
    "fp8": ("fp8_scales", "fp8_history", "act_linear"), "flash attention": ("flash",),
    "num items in batch": ("count", "token_mean"), "gradient accumulation steps": ("m", "accumulate"),
    "zero 1": ("zero1",), "zero 2": ("zero2",), "zero 3": ("zero3",),
    "zero stage 1": ("zero1",), "zero stage 2": ("zero2",), "zero stage 3": ("zero3",),
    "counterexample": ("gradient",), "gradient clipping": ("clip",),
    "precision": ("w", "wire_w", "g", "o"), "mixed precision": ("w", "wire_w", "g", "o"), "bf16": ("w", "wire_w", "o"),
}
"""Common word, lower case and with spaces -> the names that explain it; as it is written, where that tells it apart."""


def spelled(name: str) -> str:
    """A name as COMMON spells it.

    >>> spelled("Tensor-Parallelism"), spelled("FSDP2")
    ('tensor parallel', 'fsdp2')
    """
    words = name.strip().lower().replace("-", " ").replace("_", " ").split()
    return " ".join(words).removesuffix("ism")


def common(name: str) -> tuple[str, ...]:
    """The names that explain a common word; none where it is none.

    >>> common("gradient_accumulation")
    ('m', 'accumulate')
    """
    return COMMON.get(name) or COMMON.get(spelled(name), ())
