"""How Megatron-LM runs attention, dropout and loss, by its flags."""

from __future__ import annotations

from placealg.importers.draft import Draft
from placealg.importers.kernels import run_attention, run_dropout, run_loss
from placealg.importers.key_log import Said

BEFORE = ("model-parallel-size", "batch-size", "checkpoint-activations", "checkpoint-num-layers", "DDP-impl",
          "distribute-checkpointed-activations", "activations-checkpoint-method", "fp8-hybrid", "fp8-e4m3",
          "deepspeed", "zero-stage", "deepspeed-config", "ds-sequence-parallel-size",
          "use-contiguous-buffers-in-ddp", "scatter-gather-tensors-in-pipeline",
          "no-scatter-gather-tensors-in-pipeline")
"""Flags of releases and forks before the default of transformer-impl moved: with one of them it is local."""

BACKENDS = {"flash": True, "fused": True, "auto": True, "unfused": False, "local": False}
"""attention-backend -> whether attention is one op, in layers of Transformer Engine."""

FLASH = ("use-flash-attn", "use-flash-attn-v1", "use-flash-attn-v2", "use-flash-attn-v3", "use-flash-attn-triton",
         "use-flash-attn-builder")
"""Flags that run attention as one op, some of Megatron-DeepSpeed."""


def read_kernels(draft: Draft, said: Said) -> None:
    """Attention, dropout and loss."""
    _attention(draft, said)
    run_dropout(draft, ("attention-dropout", "hidden-dropout"))
    if said.has("ffn-dropout") and said.raw("ffn-dropout") not in (0, 0.0, "0", "0.0"):
        said.approximated("ffn-dropout", "dropout inside of MLPs is left out")
    impl = said.choice("cross-entropy-fusion-impl", said.value("cross-entropy-fusion-impl"), ("native", "te"))
    fused = said.flag("cross-entropy-loss-fusion") and impl == "te"
    run_loss(draft, "cross-entropy-loss-fusion", "fused" if fused else "vocab_parallel")
    said.leave("cross-entropy-fusion-impl", "told with cross-entropy-loss-fusion")
    if said.has("fp16-lm-cross-entropy") and said.truth("fp16-lm-cross-entropy", said.raw("fp16-lm-cross-entropy")):
        said.approximated("fp16-lm-cross-entropy", "the loss is computed in 16 bits, and counted in 32")


def _attention(draft: Draft, said: Said) -> None:
    """Whether attention is one op: by its flag, or by the layers that run it and their backend."""
    flash = next((key for key in FLASH if said.has(key) and said.truth(key, said.raw(key))), "")
    old = next((key for key in BEFORE if said.raw(key) not in (None, False)), "")
    key = "transformer-impl"
    if flash:
        run_attention(draft, flash, True)
    elif old and not said.has(key):
        draft.runs["flash"] = False
        said.follows(key, f"--no-flash: local, as where {old} is a flag")
    else:
        impl = said.choice(key, said.value(key), ("local", "transformer_engine", "inference_optimized"))
        word = str(said.value("attention-backend")).rpartition(".")[2]
        one_op = impl != "local" and BACKENDS[said.choice("attention-backend", word, BACKENDS)]
        run_attention(draft, "attention-backend" if impl != "local" and said.has("attention-backend") else key, one_op)
    for name in (key, "attention-backend", *FLASH):
        said.leave(name, "told with the rest, or off")
