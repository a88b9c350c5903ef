"""Nanotron YAML: degrees of parallelism with their modes, ZeRO-1, and a model inside the file."""

from __future__ import annotations

import re
from collections.abc import Mapping

from placealg.importers.document import Document
from placealg.importers.draft import Draft
from placealg.importers.kernels import read_words
from placealg.importers.names import kind_without_graph
from placealg.importers.reading import Options, Reading, refusal

OPTIMIZERS = {"adamw": "adamw", "adam": "adam", "sgd": "sgd"}
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size",
         "vocab_size", "head_dim", "tie_word_embeddings", "max_position_embeddings")


ALIEN = re.compile(r"layer_?norm|moe|expert|activation_function|pdrop|sinusoidal")
"""What keys of a model_config speak of that no llama has."""


def read_nanotron(document: Document, options: Options) -> Reading:
    """The reading of a Nanotron configuration."""
    draft = Draft("nanotron", document, options)
    said, parts = draft.said, draft.parts

    def degree(name: str) -> int:
        key = f"parallelism.{name}"
        return said.whole(key, said.value(key)) or 1

    dp, tp, pp = degree("dp"), degree("tp"), degree("pp")
    cp, ep = degree("context_parallel_size"), degree("expert_parallel_size")
    world = dp * tp * pp * cp * ep
    if options.world_size not in (None, world):
        raise refusal(f"the degrees make {world} devices, --world-size {options.world_size}",
                      said.where("parallelism.dp"))
    stage = said.whole("optimizer.zero_stage", said.value("optimizer.zero_stage"), 0) or 0
    parts.axis("zero1" if stage else "dp", dp)
    said.read("parallelism.dp", f"{'zero1' if stage else 'dp'} over {dp} ranks")
    apart = stage and cp * ep > 1
    said.read("optimizer.zero_stage", "[states] optimizer sharded over dp alone" if apart else
              "the optimizer sharded over dp" if stage else "nothing sharded over dp")
    _context(draft, cp)
    _tensor(draft, tp)
    if ep > 1:
        parts.axis("ep", ep)
        said.read("parallelism.expert_parallel_size", f"experts over {ep} ranks")
    else:
        said.inactive("parallelism.expert_parallel_size", "1: no expert parallelism")
    if apart:
        parts.say("states", "optimizer", {"dp": "S"})
    _pipeline(draft, pp)
    if said.has("doremi"):
        said.approximated("doremi", "the loss weighs domains by what a reference model says, which is held beside: "
                                    "neither is here, and the verdict does not cover them", said.raw("doremi"))
    if said.flag("parallelism.recompute_layer"):
        parts.modifier("recompute_full")
    said.read("parallelism.recompute_layer", "recompute_full" if "recompute_full" in parts.modifiers else
              "nothing is computed again")
    draft.size("b", "tokens.micro_batch_size", "sequences of a microbatch")
    draft.size("s", "tokens.sequence_length", "tokens of a sequence")
    draft.accumulation(said.whole("tokens.batch_accumulation_per_replica", said.value(
        "tokens.batch_accumulation_per_replica")), "tokens.batch_accumulation_per_replica")
    _bytes(draft)
    draft.clip("optimizer.clip_grad", said.raw("optimizer.clip_grad"))
    draft.optimizer("optimizer.optimizer_factory.name", str(said.value("optimizer.optimizer_factory.name")), OPTIMIZERS)
    _model(draft)
    read_words(draft)
    return draft.reading()


def _context(draft: Draft, cp: int) -> None:
    said, key = draft.said, "parallelism.context_parallel_size"
    if cp == 1:
        said.inactive(key, "1: no context parallelism")
        return
    how = str(said.value("model.model_config._attn_implementation"))
    ring = "ring_flash" in how
    draft.parts.axis("cp_ring" if ring else "cp", cp)
    said.read(key, f"{'cp_ring' if ring else 'cp'} over {cp} ranks")
    said.read("model.model_config._attn_implementation", "how keys and values travel, and --flash: attention is one op")
    draft.runs["flash"] = True


def _tensor(draft: Draft, tp: int) -> None:
    said = draft.said
    if tp == 1:
        for key in ("tp", "tp_mode", "tp_recompute_allgather"):
            said.inactive(f"parallelism.{key}", "no tensor parallelism")
        return
    mode = said.choice("parallelism.tp_mode", str(said.value("parallelism.tp_mode")).upper(),
                       ("ALL_REDUCE", "REDUCE_SCATTER"))
    again = said.flag("parallelism.tp_recompute_allgather")
    name = "tp" if mode == "ALL_REDUCE" else "tp_sp" if again else "tp_sp_keep"
    draft.parts.axis(name, tp)
    said.read("parallelism.tp", f"{name} over {tp} ranks")
    said.read("parallelism.tp_mode", name)
    if mode == "ALL_REDUCE":
        said.inactive("parallelism.tp_recompute_allgather", "of REDUCE_SCATTER alone")
    else:
        said.read("parallelism.tp_recompute_allgather", "what was gathered is gathered again" if again else
                  "what was gathered is kept")


def _pipeline(draft: Draft, pp: int) -> None:
    said = draft.said
    if pp == 1:
        for key in ("pp", "pp_engine", "pp_layer_partition"):
            said.inactive(f"parallelism.{key}", "no pipeline")
        return
    engine = said.choice("parallelism.pp_engine", str(said.value("parallelism.pp_engine")).lower(), ("1f1b", "afab"))
    name = "pp" if engine == "1f1b" else "pp_gpipe"
    draft.parts.axis(name, pp)
    said.read("parallelism.pp", f"{name} over {pp} ranks")
    said.read("parallelism.pp_engine", name)
    key = "parallelism.pp_layer_partition"
    layers = said.raw(key)
    if layers is None:
        said.approximated("stages", "Nanotron cuts stages where the costs of blocks, the head among them, are even "
                                    "(models/base.py: block_cumulative_costs): here layers are")
        return
    if not isinstance(layers, list) or len(layers) != pp:
        raise said.refuse(key, f"{key} is {layers!r}: expected the layers of each of {pp} stages")
    sizes = [said.whole(key, n) for n in layers]
    draft.parts.say("schedule", "stages", sizes)
    said.read(key, f"[schedule] stages = {sizes}")


def _bytes(draft: Draft) -> None:
    said = draft.said
    kind = said.choice("model.dtype", str(said.value("model.dtype")), ("bfloat16", "float16", "float32"))
    fp32 = said.flag("optimizer.accumulate_grad_in_fp32")
    if kind == "float32":
        draft.parts.types("megatron_fp32")
        said.read("model.dtype", "[types]: everything in 32 bits")
        said.leave("optimizer.accumulate_grad_in_fp32", "gradients are in 32 bits")
        return
    draft.parts.types("nanotron", **({} if fp32 else {"g": 2, "wire": 2, "o": 4}))
    said.read("model.dtype", "[types] w and act = 2")
    said.read("optimizer.accumulate_grad_in_fp32", "[types] of precision nanotron" if fp32 else
              "[types] g = wire = 2, o = 4: no master")


def _model(draft: Draft) -> None:
    """The model of model_config."""
    said, key = draft.said, "model.model_config"
    config = said.raw(key)
    if not isinstance(config, Mapping):
        said.missing("model", "the file holds no model_config", "--model")
        return
    kinds = [k for k in config if k.startswith("is_") and k.endswith("_config") and config[k] is True]
    kind = kinds[0].removeprefix("is_").removesuffix("_config") if kinds else "llama"
    if not kinds and "rms_norm_eps" not in config and (alien := next((k for k in config if ALIEN.search(k)), "")):
        draft.unread_model(f"a family that is not named and has {alien}, which no llama has")
        return
    if found := kind_without_graph(kind):
        raise said.refuse(f"{key}.{kinds[0]}", f"model {kind} is {found}, of which there is no op graph")
    if config.get("moe_config"):
        draft.unread_model("experts of Nanotron are no configuration that is read")
        return
    if kind not in ("llama", "qwen2"):
        draft.unread_model(f"{kind} is no family that is read from here")
        return
    if kind == "qwen2" and (config.get("attention_bias") or config.get("_use_qk_norm")):
        said.approximated(f"{key}.{kinds[0]}", "read as llama: without biases of q, k and v, and without norms of "
                                               "them")
    fields = {"model_type": "llama", **{name: config[name] for name in SIZES if config.get(name) is not None}}
    for name in (*SIZES, *kinds):
        if said.has(f"{key}.{name}"):
            said.read(f"{key}.{name}", "of the model")
    draft.model = fields
