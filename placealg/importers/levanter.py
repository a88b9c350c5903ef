"""Levanter YAML: named axes of arrays over a mesh of replicas, data and model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placealg.importers.document import Document
from placealg.importers.draft import Draft
from placealg.importers.kernels import read_words
from placealg.importers.megatron_model import shipped_alike
from placealg.importers.names import shipped_name
from placealg.importers.reading import Options, Reading
from placealg.importers.token_attributes import DOCUMENTS, read_tokens
from placealg.models.config import resolve_model

DIMS = {"mlp": "ffn", "heads": "heads", "kv_head": "heads", "kv_heads": "heads", "vocab": "vocab",
        "experts": "expert.expert"}
BYTES = {"f32": 4, "float32": 4, "full": 4, "bf16": 2, "bfloat16": 2, "f16": 2, "float16": 2, "half": 2}
OPTIMIZERS = {"adam": "adam", "adamw": "adamw", "muon": "muon", "sgd": "sgd"}


def read_levanter(document: Document, options: Options) -> Reading:
    """The reading of a training configuration."""
    draft = Draft("levanter", document, options)
    said, parts = draft.said, draft.parts
    if said.raw("trainer.mesh"):
        raise said.refuse("trainer.mesh", "trainer.mesh: axes of its own, which are not read")
    said.leave("trainer.mesh", "empty")
    split, over = _resources(draft, "axis_resources", "model"), _resources(draft, "parameter_axis_resources", "data")
    tp = said.whole("trainer.model_axis_size", said.value("trainer.model_axis_size")) or 1
    replicas = 1
    for key in ("trainer.replica_dcn_axis_size", "trainer.replica_ici_axis_size"):
        size = said.whole(key, said.value(key), -1)
        if size == -1:
            raise said.refuse(key, f"{key} -1: the slices decide", "--key sets it")
        replicas *= size or 1
        said.read(key, f"{size} replicas") if size and size > 1 else said.leave(key, "1: no replicas")
    data = draft.divided(options.world_size, tp * replicas, "the axes")
    sharded = bool(over) if split is not None else said.value("trainer.fsdp_axis") not in (None, "", [])
    if ("trainer", "fsdp_axis") in document.lines and said.raw("trainer.fsdp_axis") is None:
        sharded = False
    if replicas > 1:
        parts.axis("hsdp" if sharded else "dp", **({"dp_replicate": replicas, "dp_shard": data} if sharded else {
            "dp": None if data is None else data * replicas}))
    else:
        parts.axis("zero3" if sharded else "dp", data)
    said.read("trainer.parameter_axis_resources" if over else "trainer.fsdp_axis",
              "parameters, gradients and optimizer sharded over data" if sharded else "replicated")
    _tensor(draft, tp, split)
    _bytes(draft)
    _batch(draft, data, replicas)
    _recompute(draft)
    clip = said.raw("optimizer.max_grad_norm")
    silent = ("optimizer", "max_grad_norm") not in document.lines
    draft.clip("optimizer.max_grad_norm", said.value("optimizer.max_grad_norm") if silent else clip)
    draft.optimizer("optimizer.type", str(said.value("optimizer.type")), OPTIMIZERS)
    draft.token_mean()
    said.follows("loss", "[loss] preset = \"token_mean\": means over all tokens of the step")
    if elsewhere := said.included("data"):
        said.unsaid("data", f"stands in {said.document.get(elsewhere)}, which says whether a query sees other "
                            "documents, and whose tokenizer decides the vocabulary", "its keys in this file")
    else:
        read_tokens(draft, "data.block_cross_document_attention", DOCUMENTS, off="off: a query sees what is before it")
    _model(draft)
    read_words(draft)
    return draft.reading()


def _resources(draft: Draft, name: str, axis: str) -> list[str] | None:
    """The axes of arrays that lie over `axis` of the mesh, as the files of 2022 say it; None where they do not."""
    said, key = draft.said, f"trainer.{name}"
    found = said.raw(key)
    if not found:
        said.leave(key, "empty")
        return None
    other = [k for k, v in found.items() if v != axis and (k, v) != ("batch", "data")] if isinstance(
        found, Mapping) else ["a value that is no table"]
    if other:
        raise said.refuse(key, f"{key}: {', '.join(map(str, other))} over another axis of the mesh than {axis}")
    chosen = [str(k) for k, v in found.items() if v == axis]
    said.read(key, f"{', '.join(chosen)} over {axis}", found)
    return chosen


def _tensor(draft: Draft, tp: int, split: list[str] | None) -> None:
    said = draft.said
    key = "trainer.tensor_parallel_axes" if split is None else "trainer.axis_resources"
    listed = (said.raw(key) or []) if split is None else split
    named = [str(a) for a in listed] if isinstance(listed, list) else [str(listed)]
    if tp == 1:
        said.leave(key, "model_axis_size is 1: no tensor parallelism")
        said.leave("trainer.model_axis_size", "1: no tensor parallelism")
        return
    unknown = named if not isinstance(listed, list) else [a for a in named if a not in DIMS]
    if unknown or not named:
        raise said.refuse(key, f"tensor_parallel_axes {', '.join(unknown) or 'none'}: axes of arrays that no dim "
                               "here is")
    draft.parts.axis("tp", tp)
    draft.parts.say("dims", "tp", list(dict.fromkeys(DIMS[a] for a in named)))
    said.read(key, "the dims of tp")
    said.read("trainer.model_axis_size", f"tp over {tp} ranks")


def _bytes(draft: Draft) -> None:
    said = draft.said
    policy = str(said.value("trainer.mp"))
    words: dict[str, str] = {}
    for part in policy.split(","):
        name, equals, kind = part.strip().partition("=")
        for letter in (name[:1],) if equals else ("p", "c", "o"):
            words[letter] = kind if equals else name
    try:
        w = BYTES[words.get("p", "f32")]
        c = BYTES[words.get("c", words.get("compute", "f32"))]
    except KeyError:
        raise said.refuse("trainer.mp", f"mp {policy}: types that are not read") from None
    draft.parts.types(w=w, wire_w=c, g=w, wire=w, o=2 * w, act=c)
    said.read("trainer.mp", f"[types] w = {w}, wire_w = act = {c}; what XLA gathers in is its own choice")


def _batch(draft: Draft, data: int | None, replicas: int) -> None:
    said = draft.said
    total = said.value("trainer.train_batch_size")
    each = said.whole("trainer.per_device_parallelism", said.value("trainer.per_device_parallelism"), -1)
    if each in (-1, None):
        draft.accumulation(1, "trainer.per_device_parallelism")
        said.leave("trainer.train_batch_size", "one microbatch holds a rank's share")
        return
    said.read("trainer.per_device_parallelism", f"b = {each}")
    draft.sizes["b"] = int(each or 1)
    if not isinstance(total, int) or data is None:
        draft.accumulation(None, "trainer.train_batch_size", f"m = {total}/({each} x ranks), and they are open")
        return
    ranks = data * replicas
    if total % (int(each or 1) * ranks):
        raise said.refuse("trainer.train_batch_size", f"train_batch_size {total} is not a multiple of {each} x "
                                                      f"{ranks}")
    draft.accumulation(total // (int(each or 1) * ranks), "trainer.train_batch_size")


def _recompute(draft: Draft) -> None:
    said, key = draft.said, "model.gradient_checkpointing"
    value = said.raw(key)
    if value is None:
        said.unsaid(key, "the model's class decides (true in most): no recompute is read", f"--key {key}=true")
    elif value is True or value == "recompute":
        draft.parts.modifier("recompute_full")
        said.read(key, "recompute_full")
    elif value is False:
        said.read(key, "nothing is computed again")
    elif value == "offload":
        draft.parts.modifier("recompute_full")
        draft.parts.modifier("offload_activations")
        said.read(key, "recompute_full*offload_activations: inputs of layers rest on the host")
    else:
        said.approximated(key, f"{value}: some carries are kept; here nothing is computed again: activations are "
                               "overstated, and the verdict does not cover what is computed again")


FAMILIES = {"llama": "llama", "mistral": "mistral", "qwen": "qwen2", "qwen2": "qwen2", "qwen3": "qwen3"}
"""Type of Levanter's models of the same fields -> the family whose blocks they have."""

SIZES = {"hidden_dim": "hidden_size", "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads",
         "num_kv_heads": "num_key_value_heads", "intermediate_dim": "intermediate_size"}
OTHER = ("use_bias", "hybrid_norm", "input_embedding_norm", "use_qk_norm", "qk_norm", "use_attention_sink")
"""Fields of Levanter that make other blocks than the family's."""


def _model(draft: Draft) -> None:
    """The model of huggingface.co that the file starts from, or one of its sizes and its tokenizer's vocabulary."""
    said = draft.said
    model: Any = said.raw("model")
    draft.size("s", "model.seq_len", "tokens of a sequence")
    named = str(said.raw("initialize_from_hf") or "").partition("@")[0]
    if said.raw("use_hf_model_config") is True and (found := shipped_name("huggingface", named)):
        draft.model = found
        said.read("initialize_from_hf", f"model {found}")
        said.read("use_hf_model_config", "its sizes are those of that model")
        for name in ("type", *SIZES):
            said.leave(f"model.{name}", "the model's own")
        return
    kind = str(model.get("type", "") if isinstance(model, dict) else model or "")
    why = f"{kind or 'none'}: no type of model that is read"
    if isinstance(model, dict) and kind in FAMILIES and not any(model.get(name) for name in OTHER):
        why = _sized(draft, model, FAMILIES[kind])
        if not why:
            return
    draft.unread_model(why)
    for name in ("type", *SIZES):
        said.leave(f"model.{name}", "of a model that is not read")


def _sized(draft: Draft, model: dict[str, Any], family: str) -> str:
    """Why the sizes of a file make no model; "" where they do, and it is the reading's."""
    said = draft.said
    missing = [name for name in SIZES if said.number(f"model.{name}") is None]
    if missing:
        return f"{model['type']} of Levanter's own {missing[0]}, which the file leaves out"
    fields = {"model_type": family, **{theirs: said.number(f"model.{ours}") for ours, theirs in SIZES.items()}}
    fields |= {"tie_word_embeddings": model["tie_word_embeddings"]} if "tie_word_embeddings" in model else {}
    shipped = shipped_alike(fields)
    keys = [k for k in ("data.tokenizer", "tokenizer") if not said.included(k)]
    tokenizer = next((k for k in keys if isinstance(said.raw(k), str)), "")
    of = shipped_name("huggingface", str(said.raw(tokenizer))) if tokenizer else ""
    if shipped:
        draft.model = shipped
        text = f"of the model: all sizes agree with {shipped}"
        if tokenizer and (not of or resolve_model(of).sizes["V"] != resolve_model(shipped).sizes["V"]):
            said.approximated(tokenizer, f"its vocabulary is the model's, which has that of {shipped} here")
    elif of:
        head = {"head_dim": model["head_dim"]} if model.get("head_dim") else {}
        if family == "qwen3" and not head:
            head = {"head_dim": model["hidden_dim"] // model["num_heads"]}
        vocabulary = resolve_model(of).sizes["V"]
        draft.model = {**fields, **head, "vocab_size": vocabulary}
        text = "of the model"
        said.read(tokenizer, f"a vocabulary of {vocabulary}, that of {of}")
    else:
        return f"{family}, but the tokenizer decides the vocabulary"
    for name in ("type", *SIZES):
        said.read(f"model.{name}", text)
    for name in ("head_dim", "tie_word_embeddings"):
        if said.has(f"model.{name}"):
            said.read(f"model.{name}", text)
    return ""
