"""The bytes of DeepSpeed: what its 16-bit sections, data types and ZeRO++ make of each element."""

from __future__ import annotations

from typing import Any

from placealg.importers.composed_strategy import TYPE_NAMES
from placealg.importers.draft import Draft
from placealg.importers.key_log import Said

BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "float32": 4, "float16": 2, "bfloat16": 2, "float": 4, "half": 2}
ZERO = "zero_optimization"
HF = "--trainer hf"


class DeepSpeedBytes:
    """What the sections of precision say; `precision` is the launcher's, "" where it leaves that to the file."""

    def __init__(self, draft: Draft, said: Said, precision: str):
        self.draft, self.said, self.parts, self.precision = draft, said, draft.parts, precision

    def read(self, stage: int) -> None:
        """Read everything that bears on bytes."""
        self.bytes(stage)
        self.wires(stage)

    def enabled(self, section: str) -> bool | None:
        """Whether a 16-bit section is on; None where it says "auto"."""
        key = f"{section}.enabled"
        value = self.said.raw(key)
        if value == "auto":
            return None
        return self.said.truth(key, self.said.default(key) if value is None else value)

    def bytes(self, stage: int) -> None:
        """The precision, and the bytes that follow."""
        said = self.said
        name = "bfloat16" if said.has("bfloat16.enabled") and not said.has("bf16.enabled") else "bf16"
        fp16, bf16 = self.enabled("fp16"), self.enabled(name)
        if fp16 and bf16:
            raise said.refuse(f"{name}.enabled", "fp16 and bf16 are both enabled, which DeepSpeed refuses")
        if self.precision and not fp16 and not bf16:
            fp16, bf16 = self.precision == "fp16", self.precision == "bf16"
            for key in ("fp16.enabled", f"{name}.enabled"):
                if said.has(key):
                    said.read(key, f"mixed_precision of the launcher decides: {self.precision}")
        if fp16 is None or bf16 is None:
            if not fp16 and not bf16:
                self.open_precision(name)
                return
            said.inactive("fp16.enabled" if fp16 is None else f"{name}.enabled", "the other is on")
        if fp16 or bf16:
            self.sixteen(stage, "fp16" if fp16 else name)
        else:
            self.thirty_two(stage, name)

    def open_precision(self, name: str) -> None:
        """Say that the launcher decides the precision."""
        for key in ("fp16.enabled", f"{name}.enabled"):
            if self.said.has(key):
                self.said.unsaid(key, "the launcher or trainer decides: bytes stay the defaults (2, 2, 2, 12, as "
                                      "16-bit "
                                 "training has them)", "--key bf16.enabled=true")

    def sixteen(self, stage: int, section: str) -> None:
        """Weights in 16 bits, with or without a master in 32."""
        said, parts = self.said, self.parts
        parts.types("deepspeed")
        parts.half = "fp16" if section == "fp16" else "bf16"
        key = f"{section}.enabled"
        said.read(key, "[types] of precision deepspeed", None if said.has(key) else True)
        said.inactive("fp16.enabled", "off: bf16 is on")
        said.inactive("bf16.enabled", "off: fp16 is on")
        full = f"{section}.bf16_master_weights_and_grads" if section != "fp16" else "fp16.fp16_master_weights_and_grads"
        if full in said.table.keys and said.flag(full):
            states = section != "fp16" and said.flag(f"{section}.bf16_optimizer_states")
            o = (4 if states else 8) + (0 if stage == 3 else 2)
            parts.types(o=o)
            said.read(full, f"[types] o = {o}: no master in 32 bits")
            if states:
                said.read(f"{section}.bf16_optimizer_states", "moments in 16 bits")
        for key in ("fp16.auto_cast",):
            if section == "fp16" and said.flag(key):
                said.approximated(key, "inputs are cast to fp16: no figure here changes")
        if section == "fp16":
            self.draft.overflow()
            said.read("fp16.loss_scale", "[optimizer] skip = \"overflow\": a step with an overflow is skipped")
        elif said.flag("bf16.check_grad_overflow"):
            self.draft.overflow()
            said.read("bf16.check_grad_overflow", "[optimizer] skip = \"overflow\"")
        else:
            said.read("bf16.check_grad_overflow", "no step is skipped")

    def thirty_two(self, stage: int, name: str) -> None:
        """No 16-bit section: fp32, unless a trainer adds one."""
        said, draft = self.said, self.draft
        present = [key for key in ("fp16.enabled", f"{name}.enabled") if said.has(key)]
        if draft.options.trainer == "hf" and not present:
            said.unsaid("bf16.enabled", "accelerate and the HF Trainer add the missing section: bytes stay the "
                                        "defaults",
                        "--key bf16.enabled=true")
            return
        shared = stage in (0, 3) and "offload_optimizer" not in self.parts.modifiers
        self.parts.types("deepspeed_fp32_shared" if shared else "deepspeed_fp32")
        self.parts.half = "" if present else None
        if not present:
            said.unsaid("bf16.enabled", "neither fp16 nor bf16: read as fp32, as DeepSpeed alone runs it; accelerate "
                                        "and "
                        "the HF Trainer add the missing section", HF)
        for key in present:
            said.read(key, "off: weights in 32 bits")

    def wires(self, stage: int) -> None:
        """What data_types, the communication type and ZeRO++ change of the bytes."""
        said, parts = self.said, self.parts
        grad = said.raw("data_types.grad_accum_dtype")
        if grad is not None:
            g = self.byte_count("data_types.grad_accum_dtype", grad, "g")
            parts.types(g=g)
            if stage == 1 and g == 4 and parts.tables["types"].get("w") == 2:
                parts.all_reduce("dp")
                said.read("data_types.grad_accum_dtype", f"[types] g = {g}; stage 1 with fp32 accumulation all_reduces "
                          "whole gradients over dp")
            else:
                said.read("data_types.grad_accum_dtype", f"[types] g = {g}")
        wire = said.raw("communication_data_type")
        if wire is not None:
            parts.types(wire=self.byte_count("communication_data_type", wire, "wire"))
            said.read("communication_data_type", "[types] wire")
        said.read("data_types", "its keys") if said.raw("data_types") == {} else None
        if stage < 3:
            return
        zeropp = any(name == "zeropp" for name, _ in parts.factors)
        types = parts.tables.get("types", {})
        for key, symbol, on, off in ((f"{ZERO}.zero_quantized_weights", "wire_w", 1, types.get("w", 2)),
                                     (f"{ZERO}.zero_quantized_gradients", "wire", "1/2", types.get("wire", 2))):
            if said.flag(key):
                parts.say("types", symbol, on)
                said.read(key, f"[types] {symbol} = {on}")
            elif zeropp:
                parts.say("types", symbol, off)
                said.read(key, f"[types] {symbol} = {off}")
            else:
                said.inactive(key, "not quantised")

    def byte_count(self, key: str, value: Any, symbol: str) -> int:
        """The bytes of a type by its name, which is that of an element size."""
        name = self.said.choice(key, str(value).lower().removeprefix("torch."), BYTES)
        self.parts.exact[symbol] = TYPE_NAMES[name]
        return BYTES[name]
