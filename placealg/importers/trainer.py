"""Arguments of the Trainer of transformers, as a script takes them from a command line or a file of JSON or YAML.

What the script does beside its arguments is not read. Names of its own flags are judged by what they speak of; whether
adapters train, and beside which modules, has to be said by names that are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from placealg.importers.document import Document
from placealg.importers.draft import Draft
from placealg.importers.fsdp import read_fsdp, shard_adapters
from placealg.importers.hf import (
    read_adapter_ddp,
    read_ddp,
    read_deepspeed_path,
    read_model_name,
    read_optimizer,
    read_trainer_arguments,
    recomputes,
)
from placealg.importers.kernels import read_words
from placealg.importers.key_log import Said
from placealg.importers.kinds import kind_of, says_nothing
from placealg.importers.launcher import launched_precision, launcher_of, read_launched_deepspeed, sets_up
from placealg.importers.lora import ALL, AdapterKeys, read_adapters
from placealg.importers.reading import Options, Reading

BATCH = "per_device_train_batch_size"
MODELS = ("model_name_or_path", "model_name", "base_model")
LENGTHS = ("max_seq_length", "block_size", "max_seq_len", "max_length", "model_max_length", "seq_length", "cutoff_len")
SWITCHES = ("use_peft", "use_peft_lora", "use_lora", "lora_enable")
"""How scripts call the switch of adapters."""

RANKS = ("lora_r", "lora_rank")
WHOLE = ("lora_modules_to_save", "modules_to_save")
BITS = {"load_in_4bit": 4, "use_4bit_quantization": 4, "q_lora": 4, "load_in_8bit": 8, "use_8bit_quantization": 8}
DETAILS = (*RANKS, "lora_target_modules", "lora_dropout")
"""Keys that speak of adapters, and are nothing where these are off."""

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 2}
PROJECTED = ("galore", "apollo", "lomo")
"""In the names of optimizers of projections of the gradients, or of updates inside backward."""


def is_trainer(data: Mapping[str, Any]) -> bool:
    """Whether a table holds arguments of the Trainer, and no trainer's own beside them."""
    return BATCH in data and not {"stage", "finetuning_type", "dataset_name", "datasets", "dataset_mixture", "use_peft",
                                  "reward_funcs"} & set(data)


def read_trainer(document: Document, options: Options) -> Reading:
    """The reading of a script's arguments."""
    draft = Draft("trainer", document, options)
    said = draft.said
    idle = next((key for key in ("do_predict", "do_eval") if said.truth(key, said.raw(key) or False)), "")
    if said.has("do_train") and not said.truth("do_train", said.raw("do_train")) and idle:
        raise said.refuse(idle, f"{idle} without do_train: nothing is trained")
    said.leave("do_train", "a file is read as it trains")
    lora = _adapters(draft)
    if model := next((key for key in MODELS if said.has(key)), ""):
        read_model_name(draft, model)
    launcher = launcher_of(draft, ("deepspeed", "fsdp"))
    precision = launched_precision(launcher, "bf16" if said.flag("bf16") else "fp16" if said.flag("fp16") else "")
    steps = said.whole("gradient_accumulation_steps", said.value("gradient_accumulation_steps")) or 1
    whole = _engine(draft, precision, steps, lora, launcher)
    if draft.microbatches is None:
        draft.accumulation(steps, "gradient_accumulation_steps")
    draft.size("b", BATCH, "sequences of a microbatch", said.whole(BATCH, said.value(BATCH)))
    length = next((key for key in LENGTHS if said.has(key)), "")
    if length:
        draft.size("s", length, "longest sequence")
    else:
        said.missing("s", "the script decides how long sequences are", "--set s=...")
    for key in LENGTHS:
        said.leave(key, f"{length} is read")
    if not recomputes(draft, "gradient_checkpointing"):
        said.leave("gradient_checkpointing", "nothing is computed again")
    draft.clip("max_grad_norm", said.value("max_grad_norm"))
    word = str(said.value("optim")).lower()
    if any(name in word for name in PROJECTED):
        raise said.refuse("optim", f"optim {word}: an optimizer of projections of the gradients, or of updates inside "
                                   "backward")
    read_optimizer(draft, "optim")
    read_trainer_arguments(draft)
    read_words(draft)
    if said.truth("packing", said.raw("packing") or False):
        said.approximated("packing", "rows of several documents, which attention and positions may keep apart, as the "
                                     "script has it: a row is one document here")
    said.leave("packing", "off")
    if lora:
        read_adapters(draft, replace(lora, whole_types=whole))
    for key in ("bf16", "fp16", "torch_dtype", "dtype", "deepspeed", "fsdp", *MODELS, *SWITCHES, *BITS,
                "bits", "use_dora"):
        said.leave(key, "told with the rest, or off")
    said.missing("script", "what it does beside its arguments: other modules, another loss, parameters that it freezes")
    if launcher:
        draft.include(launcher)
    return draft.reading()


def _adapters(draft: Draft) -> AdapterKeys | None:
    """What adapters the arguments set up; None where they set up none."""
    said = draft.said
    switch = next((key for key in SWITCHES if said.has(key)), "")
    bits_key = next((key for key in BITS if said.truth(key, said.raw(key) or False)), "")
    bits = BITS.get(bits_key, 0)
    if (said.number("bits") or 16) < 16:
        bits_key, bits = "bits", said.number("bits") or 0
    detail = next((key for key in DETAILS if said.has(key)), "")
    on = bool(switch) and said.truth(switch, said.raw(switch))
    if not on:
        if bits_key and (switch or not detail):
            raise said.refuse(bits_key, f"{bits_key}: the base rests in fewer bits, and trains")
        if not switch and detail:
            raise said.refuse(detail, f"{detail}: whether adapters train, a switch of the script says",
                              "--key use_peft=true, or false")
        for key in (*DETAILS, *WHOLE):
            said.leave(key, "no adapters")
        for path, value in said.document.leaves() if not switch else ():
            kind = kind_of(str(path[0]))
            if kind and kind.name == "adapters" and not said.table.decides(str(path[0]), kind) and (
                    not says_nothing(value) and not said.ignores(str(path[0]))):
                raise said.refuse(str(path[0]), f"'{path[0]}' {kind.says.split(',')[0]}, whose names here are "
                                  "use_peft, lora_r and lora_target_modules", f"--ignore {path[0]} reads on")
        return None
    if said.flag("use_dora"):
        raise said.refuse("use_dora", "use_dora: adapters also scale the columns of the base")
    rank = next((key for key in RANKS if said.has(key)), "")
    targets = said.raw("lora_target_modules")
    if not rank or targets is None:
        what = "of which rank adapters are" if not rank else "beside which modules adapters stand"
        raise said.refuse(switch, f"{switch}: {what}, the script decides",
                          f"--key {RANKS[0] if not rank else 'lora_target_modules'}=... says it")
    said.read(switch, "[adapters]: the base is frozen, without gradients and optimizer state")
    whole = next((key for key in WHOLE if said.has(key)), WHOLE[0])
    return AdapterKeys(rank, said.number(rank) or 8, "lora_target_modules", ALL if targets in (ALL, [ALL]) else targets,
                       whole, said.raw(whole), bits_key, bits, "lora_dropout")


def _engine(draft: Draft, precision: str, steps: int, lora: AdapterKeys | None, launcher: Said | None
            ) -> Mapping[str, Any]:
    """DeepSpeed, FSDP or DDP; the bytes of modules that train whole beside adapters."""
    said = draft.said
    key = "torch_dtype" if said.has("torch_dtype") else "dtype"
    word = said.choice(key, str(said.raw(key)).removeprefix("torch."), BYTES) if said.has(key) else ""
    loaded = BYTES[word] if word else 2 if lora and lora.bits else 4
    half = "bf16" if precision == "bf16" else "fp16"
    whole: Mapping[str, Any] = {}
    if said.raw("deepspeed") or sets_up(launcher, "DEEPSPEED"):
        if lora and lora.bits:
            raise said.refuse(lora.bits_key, f"{lora.bits_key} under DeepSpeed is not read")
        if said.raw("deepspeed"):
            read_deepspeed_path(draft, "deepspeed", "", precision, steps)
        elif launcher:
            read_launched_deepspeed(draft, launcher, precision, steps)
        if said.has(half):
            said.read(half, "the precision of DeepSpeed's \"auto\"")
        if lora:
            said.follows("adapters", "DeepSpeed's types are those of adapters, too")
    elif said.raw("fsdp") or sets_up(launcher, "FSDP"):
        if lora and loaded == 4 and precision:
            raise said.refuse(key, "adapters under FSDP beside a base that loads in fp32, or in a type that is not "
                                   "said, are not read", "--key torch_dtype=bfloat16")
        sharded = read_fsdp(draft, draft.divided(draft.options.world_size, 1, "FSDP"), 1, steps, half if precision else
                            "", lora is not None, launcher if sets_up(launcher, "FSDP") else None)
        if lora:
            whole = shard_adapters(draft, sharded, sharded.axes, half if precision else "", True, sharded.version == 1)
    else:
        if not word:
            said.missing("torch_dtype", f"the script decides in which type weights load: {loaded} bytes are read",
                         "--key torch_dtype=bfloat16")
        act = 2 if precision or loaded == 2 else 4
        if lora:
            whole = read_adapter_ddp(draft, half, loaded, 4, act)
        else:
            read_ddp(draft, loaded, half, act, weights=word, autocast=precision)
    if word == "auto":
        said.unsaid(key, "the checkpoint's own type: 16 bits are read")
    if precision == "fp16":
        draft.overflow()
        said.read("fp16", "[optimizer] skip = \"overflow\"")
    return whole
