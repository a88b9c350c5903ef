"""FSDP of the HF Trainer: what its list `fsdp` and its fsdp_config say, and how adapters are sharded beside a base.

Frozen parameters are gathered in forward and in backward, which differentiates through them; what trains alone is
reduced and updated. FSDP1 flattens what a unit holds: by PEFT's policy of wrapping (huggingface/peft:
fsdp_auto_wrap_policy), which the Trainer takes whatever the file says, each module of which a weight trains is a unit
of its own, and accelerate raises these to fp32 (accelerator.py: prepare_model). FSDP2 shards each parameter by itself,
as a part of its layer's unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placealg.errors import InputError
from placealg.importers.composed_strategy import TYPE_NAMES
from placealg.importers.document import written
from placealg.importers.draft import Draft
from placealg.importers.key_log import Said
from placealg.models.adapters import HIGH, LOW

STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
"""FSDP1's strategies, as a file names or numbers them."""

FSDP = {"full_shard": "zero3", "shard_grad_op": "fsdp_no_reshard", "no_shard": "dp", "hybrid_shard": "hsdp",
        "hybrid_shard_zero2": "hsdp"}
"""Word of the Trainer's list `fsdp` -> the factor that it is."""

BESIDE = ("auto_wrap", "offload")
"""Words of that list beside those, one of which the Trainer wants."""


FSDP_KEYS = ("version", "sharding_strategy", "reshard_after_forward", "offload_params", "activation_checkpointing",
             "auto_wrap_policy", "sync_module_states", "cpu_ram_efficient_loading", "cpu_offload_pin_memory",
             "use_orig_params", "state_dict_type", "final_state_dict_type", "transformer_layer_cls_to_wrap",
             "min_num_params", "activation_checkpointing_offload", "backward_prefetch", "forward_prefetch",
             "limit_all_gathers")
"""Keys of fsdp_config, without fsdp_."""


@dataclass(frozen=True, slots=True)
class Sharded:
    """What was read: the version, the axes over which states are sharded, and whether a copy lives for one use."""

    version: int
    axes: tuple[str, ...]
    each_use: bool


def fsdp_words(said: Said, key: str) -> tuple[str, tuple[str, ...]]:
    """(the strategy, the words beside it) of the Trainer's list `fsdp`; a word that it does not know is refused."""
    listed = said.raw(key)
    words = [str(w).lower() for w in listed] if isinstance(listed, list) else str(listed).lower().split()
    chosen = [said.choice(key, word, (*FSDP, *BESIDE)) for word in words]
    strategies = [word for word in chosen if word in FSDP]
    if len(strategies) != 1:
        raise said.refuse(key, f"{key} {' '.join(words)}: one of {', '.join(FSDP)} is expected")
    return strategies[0], tuple(word for word in chosen if word in BESIDE)


def sharding_word(said: Said, version: int, strategy: tuple[str, Any], reshard: tuple[str, Any]) -> str:
    """The strategy in version 1's words, by (key, value) of the strategy, or of reshard_after_forward in version 2."""
    key, found = strategy if version == 1 else reshard
    if version == 2 and not (isinstance(found, str) and found.upper() in STRATEGIES):
        return "FULL_SHARD" if said.truth(key, found) else "SHARD_GRAD_OP"
    if 1 <= (number := written(found, 2) or 0) <= len(STRATEGIES):
        return STRATEGIES[number - 1]
    return said.choice(key, str(found).upper(), STRATEGIES)


@dataclass(frozen=True, slots=True)
class _Config:
    """fsdp_config: key without fsdp_ -> (the key as it is written, the value); and the file in which it stands."""

    own: Said
    fields: Mapping[str, tuple[str, Any]]

    @staticmethod
    def of(own: Said) -> _Config:
        config: Any = own.raw("fsdp_config") or {}
        if not isinstance(config, Mapping):
            raise own.refuse("fsdp_config", f"{config} decides, another file", "give accelerate's")
        return _Config(own, {str(k).removeprefix("fsdp_"): (f"fsdp_config.{k}", v) for k, v in config.items()})

    def field(self, name: str, default: Any) -> tuple[str, Any]:
        key, value = self.fields.get(name, ("fsdp_config", None))
        return key, default if value is None else value

    def truth(self, name: str, default: bool = False) -> bool:
        return self.own.truth(*self.field(name, default))


def read_fsdp(draft: Draft, data: int | None, replicas: int, steps: int, precision: str, lora: bool,
              launcher: Said | None = None, raised: Sequence[int] = (1, 2)) -> Sharded:
    """FSDP over `data` ranks, `replicas` among them, by `fsdp` and by fsdp_config, whose keys may begin with fsdp_.

    `precision` is the key of 16 bits, "" without; `lora`: adapters alone train, beside a frozen base. fsdp_config is
    that of the `launcher`, if there is one. `raised` are the versions under which what trains is raised to fp32.
    """
    said, parts = draft.said, draft.parts
    config = _Config.of(launcher or said)
    version = _version(said, config)
    listed, words = fsdp_words(said, "fsdp") if said.raw("fsdp") else ("", ())
    word = _word(said, config, version, listed)
    keep = word in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2")
    axes = _axes(draft, word, keep, data, replicas)
    if listed:
        said.read("fsdp", f"{parts.factors[-1][0]}{', and offload' if 'offload' in words else ''}")
    _types(draft, version in raised, steps, precision, lora)
    if steps > 1 and axes:
        parts.accumulate_whole(*axes)
    said.follows("no_sync", f"FSDP{version}; [states] gradients = {'R' if steps > 1 else 'S'}: accumulation runs under "
                            "no_sync")
    if config.truth("offload_params", "offload" in words):
        parts.modifier("offload_optimizer")
        parts.modifier("offload_parameters")
    if config.truth("activation_checkpointing_offload"):
        raise config.own.refuse(config.field("activation_checkpointing_offload", False)[0],
                                "the inputs of checkpointed layers rest on the host")
    if config.truth("activation_checkpointing"):
        parts.modifier("recompute_full")
    _units(config, lora and version == 1)
    return Sharded(version, axes, not keep)


def _version(said: Said, config: _Config) -> int:
    """FSDP1 or FSDP2: by a key of the Trainer, or by fsdp_config."""
    key, found = config.field("version", None)
    if "fsdp_version" in said.table.keys and said.has("fsdp_version"):
        key, found = "fsdp_version", said.raw("fsdp_version")
    version = config.own.whole(key, found)
    if version not in (None, 1, 2):
        raise config.own.refuse(key, f"fsdp_version {version}: 1 or 2 are read")
    if version:
        config.own.read(key, f"FSDP{version}")
    return version or 1


def _word(said: Said, config: _Config, version: int, listed: str) -> str:
    """The strategy in version 1's words, which the Trainer's list `fsdp` must not contradict."""
    word = sharding_word(config.own, version, config.field("sharding_strategy", listed or "FULL_SHARD"),
                         config.field("reshard_after_forward", listed != "shard_grad_op"))
    if listed and version == 1 and word != listed.upper():
        raise said.refuse("fsdp", f"fsdp says {listed}, fsdp_config {word}")
    if version == 2 and listed not in ("", "full_shard", "shard_grad_op"):
        raise said.refuse("fsdp", f"fsdp {listed} goes with FSDP1 alone")
    return word


def _axes(draft: Draft, word: str, keep: bool, data: int | None, replicas: int) -> tuple[str, ...]:
    """The axes over which states are sharded, by the factor that the strategy is."""
    said, parts = draft.said, draft.parts
    if replicas > 1:
        said.read("dp_replicate_size", f"{replicas} replicas of the shards")
    if replicas <= 1 and not word.startswith("HYBRID"):
        none = word == "NO_SHARD"
        parts.axis("dp" if none else "fsdp_no_reshard" if keep else "zero3", data)
        return () if none else ("dp",)
    parts.axis("hsdp", dp_replicate=replicas if replicas > 1 else None,
               dp_shard=None if data is None or replicas == 1 else data // replicas)
    if keep:
        parts.say("schedule", "lifetime", {"dp_shard": "microbatch"})
    return ("dp_shard",)


def _types(draft: Draft, raised: bool, steps: int, precision: str, lora: bool) -> None:
    """The bytes of states, by whether what trains is raised to fp32."""
    said, parts = draft.said, draft.parts
    parts.half = TYPE_NAMES[precision.removeprefix("pure_")] if precision else None if lora else ""
    if precision and not raised and not lora:
        parts.types(w=2, g=2, wire=2, o=4, act=2)
        said.read(precision, "[types] w = g = wire = 2, o = 4: what was loaded is trained")
    elif precision:
        parts.types("accelerate_fsdp", **({} if steps > 1 else {"g": 4}), **({"w": 2} if lora else {}))
        said.read(precision, "[types] of precision accelerate_fsdp" + (
            " for what trains; w = 2 of the frozen base, as it was loaded" if lora else ""))
    elif not lora:
        parts.types(w=4, g=4, wire=4, o=8, act=4)
    else:
        said.unsaid("[types]", "bytes are those of the model that was loaded: they stay the defaults", "--precision")


def _units(config: _Config, by_peft: bool) -> None:
    """What is gathered at once, by the policy of wrapping; and all keys of fsdp_config are accounted for."""
    own, fields = config.own, config.fields
    policy, wrap = config.field("auto_wrap_policy", "TRANSFORMER_BASED_WRAP")
    for name in ("auto_wrap_policy", "min_num_params", "use_orig_params") if by_peft else ():
        if name in fields:
            own.read(fields[name][0], "PEFT's policy goes before it: no unit holds both what trains and what is frozen")
    for name, (key, _) in fields.items():
        if name not in FSDP_KEYS:
            if not own.ignores(key):
                raise InputError(f"'{key}' is no known key of fsdp_config", where=own.where(key), name=name,
                                 valid=FSDP_KEYS)
        elif not own.accounted(own.path(key)):
            own.read(key, "of FSDP")
    if str(wrap).upper() != "TRANSFORMER_BASED_WRAP" and not by_peft:
        own.approximated(policy, "units of another size than layers: transient and peak are off")


def shard_adapters(draft: Draft, sharded: Sharded, axes: tuple[str, ...], precision: str, raised: bool,
                   alone: bool) -> Mapping[str, Any]:
    """Adapters of fp32 beside a frozen base, sharded over `axes`; the bytes of modules that train whole.

    `raised`: the trainer raises these to fp32, too. `alone`: each factor of an adapter is a unit of its own.
    """
    said, parts = draft.said, draft.parts
    leaf = {"lifetime": dict.fromkeys(axes, "leaf")} if alone and axes and sharded.each_use else {}
    for part in (LOW, HIGH):
        group = {**({"types": {"w": 4}} if precision else {}), **leaf}
        if group:
            parts.say("groups", f"adapters_{part}", {"match": f"*.{part}.weight", **group})
    if precision:
        said.follows("adapters", "[groups] adapters_low, adapters_high: w = 4 (PEFT: autocast_adapter_dtype)")
    if leaf:
        said.follows("units", "[groups] lifetime = \"leaf\": each factor of an adapter is gathered by itself")
    elif sharded.axes and not alone:
        said.follows("units", "adapters are gathered with the frozen parameters of their layer")
    if sharded.version == 2 and raised and precision:
        said.missing("accelerate", "1.13 or later, which raises what trains to fp32; earlier ones raise the frozen "
                                   "base, too")
    if sharded.version == 2 and sharded.axes:
        said.approximated("padding", "FSDP2 cuts dim 0, which is the rank in an adapter's first factor: over more "
                                     "ranks than that some hold a row of it, others none; a share is the mean here, "
                                     "each by itself with [shards] pad = \"rows\"")
    if not precision:
        return {}
    return {"w": 4} if raised else {"w": 2, "g": 2, "wire": 2, "o": 4}
