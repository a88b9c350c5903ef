"""The bytes of Megatron-LM: its precisions, main gradients, precision-aware optimizer, and fp8."""

from __future__ import annotations

from placealg.importers.draft import Draft
from placealg.importers.key_log import Said
from placealg.importers.lora import model_beside
from placealg.models.adapters import linear_ops
from placealg.number_formats import FORMATS
from placealg.strategy.spec import matches

RECIPE, HISTORY, ONLY_TP = "fp8-recipe", "fp8-amax-history-len", "tp-only-amax-red"
RECIPES = ("delayed", "tensorwise", "mxfp8", "blockwise", "custom")
"""The ways to scale; by the first, a scale is made of the largest magnitudes of steps before."""

LINEARS = ("attn.*", "mlp.*", "expert.*", "shared_expert.*")
"""The linear ops of a layer that compute in fp8: neither those of routers, nor the logits."""

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "float32": 4, "bfloat16": 2, "float16": 2}
PARTS = ("main-params-dtype", "exp-avg-dtype", "exp-avg-sq-dtype")
FP8 = ("fp8-format", "fp8", "fp8-hybrid", "fp8-e4m3", "fp4-format")
WHOLE = {"norms": "*norm*", "embedding": "embedding.*", "logits": "head.weight"}
OFF = (None, "", "null", "none", "None", "false", "False", False, "0")


def read_bytes(draft: Draft, said: Said, stage: int, fsdp: bool) -> None:
    """[types], by every flag that bears on them."""
    bf16, fp16 = said.flag("bf16"), said.flag("fp16")
    deepspeed = said.flag("deepspeed") or said.has("zero-stage")
    if bf16 and fp16:
        raise said.refuse("bf16", "bf16 and fp16 are both on")
    if said.flag("use-torch-fsdp2"):
        draft.parts.types("fsdp2" if bf16 or fp16 else "megatron_fp32")
        if bf16 or fp16:
            draft.parts.types(w=2, wire_w=2, o=12)
        said.read("bf16" if bf16 else "fp16", "[types]: 16-bit weights, gathered so; a master in fp32")
    elif deepspeed:
        draft.parts.types("deepspeed" if bf16 or fp16 else "deepspeed_fp32")
        said.read("bf16" if bf16 else "fp16", "[types] of precision deepspeed" if bf16 or fp16 else "fp32 throughout")
    else:
        _megatron(draft, said, bf16, fp16)
    said.leave("bf16", "off")
    said.leave("fp16", "off")
    if fp16:
        draft.overflow()
        said.read("fp16", "[optimizer] skip = \"overflow\"")
    if fsdp:
        _fsdp(draft, said)
    _aware(draft, said)
    for key in ("megatron-fsdp-main-grads-dtype", "megatron-fsdp-grad-comm-dtype", "megatron-fsdp-main-params-dtype"):
        said.leave(key, "of Megatron-FSDP alone" if not fsdp else "as read")
    _fp8(draft, said)


def _megatron(draft: Draft, said: Said, bf16: bool, fp16: bool) -> None:
    preset = "megatron" if bf16 else "megatron_fp16" if fp16 else "megatron_fp32"
    draft.parts.types(preset)
    draft.parts.half = "bf16" if bf16 else "fp16" if fp16 else ""
    said.read("bf16" if bf16 or not fp16 else "fp16", f"[types] of precision {preset}")
    whole = "accumulate-allreduce-grads-in-fp32"
    if fp16 and said.flag(whole):
        draft.parts.types(g=4, wire=4)
        said.read(whole, "[types] g = wire = 4")
    else:
        said.leave(whole, "so anyway" if bf16 else "off")
    if bf16 and said.flag("grad-reduce-in-bf16"):
        draft.parts.types(g=2, wire=2)
        said.read("grad-reduce-in-bf16", "[types] g = wire = 2")
    said.leave("grad-reduce-in-bf16", "off")


def _byte_count(said: Said, key: str) -> int:
    return BYTES[said.choice(key, str(said.value(key)), BYTES)]


def _exactly(draft: Draft, said: Said, key: str, symbol: str) -> None:
    """The type of an element size by the name that a flag gives it."""
    named = {"float": "fp", "bfloat": "bf"}
    word = str(said.value(key))
    for long, short in named.items():
        word = word.replace(long, short) if word.startswith(long) else word
    if word in FORMATS:
        draft.parts.exact[symbol] = word


def _fsdp(draft: Draft, said: Said) -> None:
    """Megatron-FSDP: gradients rest in the model's dtype, travel as they rest."""
    w = draft.parts.tables["types"]["w"]
    key = "megatron-fsdp-main-grads-dtype"
    g = w if said.value(key) == "auto" else _byte_count(said, key)
    said.read(key, f"[types] g = {g}")
    key = "megatron-fsdp-grad-comm-dtype"
    wire = g if said.value(key) == "auto" else _byte_count(said, key)
    said.read(key, f"[types] wire = {wire}")
    key = "megatron-fsdp-main-params-dtype"
    for symbol, said_by in (("g", "megatron-fsdp-main-grads-dtype"), ("wire", "megatron-fsdp-grad-comm-dtype")):
        _exactly(draft, said, said_by, symbol)
    draft.parts.types(g=g, wire=wire)
    if said.has(key) and said.value(key) != "fp32":
        draft.parts.types(o=8 if said.value(key) == "auto" else 8 + _byte_count(said, key))
        said.read(key, "part of [types] o")


def _aware(draft: Draft, said: Said) -> None:
    """The precision-aware optimizer's own bytes."""
    key = "use-precision-aware-optimizer"
    if not said.flag(key):
        if said.has("main-grads-dtype") and said.value("main-grads-dtype") != "fp32":
            said.inactive("main-grads-dtype", "of the precision-aware optimizer alone")
        for name in (key, "main-grads-dtype", *PARTS):
            said.leave(name, "of the precision-aware optimizer alone")
        return
    g = _byte_count(said, "main-grads-dtype")
    o = sum(_byte_count(said, name) for name in PARTS)
    for symbol in ("g", "wire"):
        _exactly(draft, said, "main-grads-dtype", symbol)
    draft.parts.types(g=g, wire=g, o=o)
    said.read(key, f"[types] g = wire = {g}, o = {o}")
    for name in ("main-grads-dtype", *PARTS):
        if said.has(name):
            said.read(name, "part of [types]")


def _fp8(draft: Draft, said: Said) -> None:
    """Gathers of linears that compute in fp8 or fp4."""
    on = [key for key in FP8 if said.raw(key) not in OFF]
    gather = "fp8-param-gather"
    if said.flag(gather) and on:
        w = draft.parts.tables["types"]["w"]
        draft.parts.types(w=1, wire_w=1)
        groups = {**WHOLE, **({"router": "*router*"} if said.raw("num-experts") not in OFF else {})}
        for name, match in groups.items():
            draft.parts.say("groups", name, {"match": match, "types": {"w": w, "wire_w": w}})
        said.read(gather, "[types] w = wire_w = 1 of linears; [groups] of the others keep theirs")
    said.leave(gather, "no fp8" if not on else "off")
    for key in (k for k in FP8 if k not in on):
        said.leave(key, "off")


def read_scales(draft: Draft, said: Said) -> None:
    """What linears in fewer bits scale their inputs by: called when the model and its adapters are known."""
    on = [key for key in FP8 if said.raw(key) not in OFF]
    ops, why = _scaled(draft, said, on)
    for key in on:
        said.approximated(key, "linears compute in fewer bits: rounding, and the scales of weights and gradients, are "
                               "left out" if ops else "linears compute in fewer bits: their saved inputs are costed at "
                               f"act; the verdict does not cover scales{why}")
    if ops:
        length = said.whole(HISTORY, said.value(HISTORY)) or 1
        draft.parts.say("optimizer", "fp8_scales", list(ops))
        draft.parts.say("optimizer", "fp8_history", length)
        said.read(HISTORY, f"[optimizer] fp8_history = {length}")
        said.read(RECIPE, f"[optimizer] fp8_scales = {list(ops)}")
        if said.flag("no-fp8-wgrad"):
            said.read("no-fp8-wgrad", "inputs are kept in 16 bits for the gradients of weights")
        else:
            draft.parts.types(act_linear=1)
    for key in (RECIPE, HISTORY, ONLY_TP, "no-fp8-wgrad"):
        said.leave(key, "scales are left out" if on and not ops else "off" if on else "no fp8")


def _scaled(draft: Draft, said: Said, on: list[str]) -> tuple[tuple[str, ...], str]:
    """(patterns of the linear ops whose inputs have a scale from a history, "") or ((), why there are none)."""
    recipe = said.choice(RECIPE, str(said.value(RECIPE)), RECIPES) if on else ""
    if not on or "fp4-format" in on:
        return (), ""
    if recipe != RECIPES[0]:
        return (), f", which {recipe} makes of what a tensor holds now"
    if said.flag(ONLY_TP):
        return (), ": ranks of data have scales of their own, which no strategy says"
    model = model_beside(draft)
    if model is None:
        return (), ": no sizes say which linears there are"
    if "adapters" in draft.parts.tables:
        return (), ": those of adapters are not read"
    ops = linear_ops(model.graph)
    return tuple(p for p in LINEARS if any(matches(p, name) for name in ops)), ""
