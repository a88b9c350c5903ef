"""What YAML files of HuggingFace trainers share: DeepSpeed by a path, DDP, names of models, 8-bit optimizers."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from placealg.errors import InputError
from placealg.importers.composed_strategy import TYPE_NAMES
from placealg.importers.deepspeed import Engine
from placealg.importers.document import json_document, read_text
from placealg.importers.draft import Draft
from placealg.importers.further_files import is_there, text_beside
from placealg.importers.key_log import Said
from placealg.importers.kinds import kind_of
from placealg.importers.names import alike_name, kind_without_graph, shipped_name
from placealg.importers.tables import table
from placealg.importers.torchtitan_degrees import float8_compute, float8_gather
from placealg.models.adapters import HIGH, LOW
from placealg.models.config import resolve_model

OPTIMIZERS = {"adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw", "adamw_apex_fused": "adamw",
              "adamw_bnb_8bit": "adamw", "adamw_8bit": "adamw", "paged_adamw_8bit": "adamw",
              "paged_adamw_32bit": "adamw",
              "adamw_torch_8bit": "adamw", "adamw_torch_xla": "adamw", "adamw": "adamw", "sgd": "sgd", "muon": "muon",
              "adafactor": "adafactor"}

OF_8_BITS = ("two moments of 8 bits (Dettmers et al. 2022), without the scales of blocks and without what stays in 32 "
             "bits: small tensors, embeddings")
"""What is counted of an optimizer's state of 8 bits, and what is not."""


@lru_cache(maxsize=1)
def _packaged() -> dict[str, Any]:
    return tomllib.loads(files("placealg.importers").joinpath("formats", "packaged.toml").read_text(encoding="utf-8"))


def packaged(trainer: str, name: str) -> str:
    """The DeepSpeed JSON that comes with a trainer under a name; "" where none does."""
    row = _packaged().get(trainer, {}).get(name)
    if row is None:
        return ""
    zero = {"stage": row["stage"], **{key: {"device": "cpu"} for key in ("offload_optimizer", "offload_param")
                                      if row.get(key)}}
    bf16 = row.get("bf16", "auto")
    fp16 = {} if bf16 is True else {"fp16": {"enabled": row.get("fp16", "auto")}}
    return json.dumps({"zero_optimization": zero, "bf16": {"enabled": bf16}, **fp16, "gradient_clipping": "auto"},
                      indent=1)


def read_deepspeed_path(draft: Draft, key: str, trainer: str, precision: str, steps: int, outer: int = 1,
                        agree: bool = True) -> None:
    """DeepSpeed by the file that a key names, beside axes of the trainer of `outer` ranks; `agree`: as run_engine."""
    said = draft.said
    value = said.raw(key)
    if isinstance(value, Mapping):
        inner = Said(table("deepspeed"), said.document, draft.options, said.path(key))
        run_engine(draft, inner, precision, steps, outer, agree)
        said.take(inner)
        return
    named = str(value)
    text, file = text_beside(named, said.document.file, draft.options) or (
        packaged(trainer, Path(named).name), Path(named).name)
    if not text:
        raise said.refuse(key, f"{key} names another file, {named}, which is not here", "give it with --with")
    inner = Said(table("deepspeed"), json_document(text, file), draft.options)
    said.read(key, f"{Path(named).name} decides the states")
    run_engine(draft, inner, precision, steps, outer, agree)
    draft.include(inner)


def run_engine(draft: Draft, said: Said, precision: str, steps: int, outer: int = 1, agree: bool = True) -> None:
    """DeepSpeed's engine beside a trainer's accumulation, with which the file has to `agree`: the Trainer of
    transformers does not start otherwise (integrations/deepspeed.py: trainer_config_finalize).
    """
    key = "gradient_accumulation_steps"
    own = said.number(key)
    if agree and own not in (None, steps):
        raise said.refuse(key, f"{key} is {own} here and {steps} of the trainer, which does not start so",
                          "\"auto\" takes the trainer's")
    engine = Engine(draft, said, draft.options.world_size, precision)
    engine.trainer_steps, engine.outer = steps, outer
    engine.read()


def read_ddp(draft: Draft, loaded: int, key: str, act: int = 2, split: int = 1, weights: str = "",
             autocast: str = "") -> None:
    """DDP on weights of `loaded` bytes, beside axes of `split` ranks; ops keep what autocast makes, of `act` bytes.

    `weights` and `autocast` are the types of both, where the file says them.
    """
    draft.parts.axis("dp", draft.divided(draft.options.world_size, split, "other parallelism"))
    draft.parts.types(w=loaded, g=loaded, wire=loaded, o=2 * loaded, act=act)
    draft.parts.half = "" if loaded == 4 else TYPE_NAMES.get(weights)
    if autocast:
        draft.parts.exact["act"] = TYPE_NAMES[autocast]
    draft.said.follows("launcher", "dp: neither DeepSpeed nor FSDP")
    draft.said.read(key, f"[types] w = g = wire = {loaded}, o = {2 * loaded}: what was loaded is trained, without a "
                         "master")


def read_adapter_ddp(draft: Draft, key: str, base: int = 2, adapter: int = 4, act: int = 2, split: int = 1,
                     raised: bool = False) -> Mapping[str, Any]:
    """DDP on a frozen base of `base` bytes, with adapters of `adapter` (PEFT's autocast_adapter_dtype makes them 4).

    The answer are the bytes of modules that train whole. PEFT leaves them in the base's type (its cast_adapter_dtype
    goes through layers of adapters alone), unless the trainer has everything that trains `raised` to fp32.
    """
    draft.parts.axis("dp", draft.divided(draft.options.world_size, split, "other parallelism"))
    draft.parts.types(w=base, g=adapter, wire=adapter, o=2 * adapter, act=act)
    for part in (LOW, HIGH):
        draft.parts.say("groups", f"adapters_{part}", {"match": f"*.{part}.weight", "types": {"w": adapter}})
    draft.said.follows("launcher", "dp: neither DeepSpeed nor FSDP")
    draft.said.read(key, f"[types] w = {base} of the base; w = g = wire = {adapter}, o = {2 * adapter} of adapters, "
                         "without a master")
    return {"w": 4, "g": 4, "wire": 4, "o": 8} if raised else {"w": base, "g": base, "wire": base, "o": 2 * base}


def config_beside(draft: Draft, name: str) -> str:
    """The path of a model's config.json: one of --with, that in the folder `name`, or one beside the file; or ""."""
    folder = Path(draft.said.document.file).parent
    given = [Path(file) for file in draft.options.files if Path(file).name == "config.json"]
    inside = [folder / name / "config.json"] if name and ".." not in Path(name).parts else []
    for path in (*given, *inside, folder / "config.json"):
        if is_there(path) and "model_type" in read_text(path):
            return str(path)
    return ""


def read_model_name(draft: Draft, key: str) -> None:
    """The model by its name on the hub, or by the config.json that lies there."""
    said = draft.said
    name = str(said.raw(key) or "")
    if network := kind_without_graph(Path(name).name):
        raise said.refuse(key, f"{name} is {network}, of which there is no op graph")
    kind = kind_of(Path(name).name)
    if kind and kind.name == "quantisation":
        said.approximated(f"weights of {key}", f"{Path(name).name} rests in fewer bits by its name: bytes and products "
                                               "are of all of them here")
    shipped = shipped_name("huggingface", name)
    if draft.options.model:
        draft.model = draft.options.model
        said.leave(key, "--model goes before it")
    elif shipped:
        draft.model = shipped
        said.read(key, f"model {shipped}")
    elif name and (config := config_beside(draft, name)):
        try:
            family = resolve_model(config).family
        except InputError as error:
            raise said.refuse(key, f"{name}: {error.what}", "--model gives another") from None
        draft.model = config
        said.read(key, f"the model of {Path(config).parent.name}/config.json, of the family {family}")
    elif name and (alike := alike_name(name)):
        draft.alike = alike
        said.unsaid("model", f"{name}: its config.json is not here", "--model config.json")
        said.approximated(key, f"{alike} stands in, by its name of the same ops; sizes are of that")
    elif name:
        draft.unread_model(f"{name}: its config.json is not here", "--model config.json", key)


def read_optimizer(draft: Draft, key: str) -> None:
    """The optimizer, and its bytes where it keeps 8."""
    word = str(draft.said.value(key)).lower()
    draft.optimizer(key, word, OPTIMIZERS)
    if "8bit" in word and word in OPTIMIZERS:
        types = draft.parts.tables.get("types", {})
        master = 4 if types.get("o") == 12 else 0
        draft.parts.types(o=2 + master)
        draft.said.read(key, f"[types] o = {2 + master}: {OF_8_BITS}")
    if word.startswith("paged"):
        draft.said.approximated(key, "pages of its state may move to the host, which depends on what is free: counted "
                                     "on the device")


OF_TRAINER = ("average_tokens_across_devices", "label_smoothing_factor", "neftune_noise_alpha", "auto_find_batch_size",
              "optim_target_modules", "use_cpu")
"""Arguments of the Trainer that every file of one of its trainers may have (transformers, training_args.py)."""


def recomputes(draft: Draft, key: str) -> bool:
    """Whether a switch is on by which every layer is computed again in backward; it is then read."""
    if not draft.said.flag(key):
        return False
    draft.parts.modifier("recompute_full")
    draft.said.read(key, "recompute_full")
    return True


def read_trainer_arguments(draft: Draft) -> None:
    """What the Trainer's arguments say of the loss, of noise and of batches, whichever trainer's file has them."""
    said = draft.said
    draft.token_mean()
    key = OF_TRAINER[0]
    if said.has(key) and not said.truth(key, said.raw(key)):
        draft.parts.say("loss", "count_axes", ["microbatch"])
        said.read(key, "[loss] count_axes = [\"microbatch\"]: each rank divides by the tokens of its own step")
    else:
        said.follows("loss", "[loss] preset = \"token_mean\": HF Trainer averages over all tokens of the step")
    if said.has("label_smoothing_factor") and said.rate("label_smoothing_factor", said.raw("label_smoothing_factor")):
        said.approximated("label_smoothing_factor", "a share of the loss is of all tokens of the vocabulary: here it "
                                                    "is the plain cross entropy")
    if said.raw("neftune_noise_alpha"):
        said.approximated("neftune_noise_alpha", "noise on what the embedding gives: it is left out")
    if said.raw("optim_target_modules"):
        raise said.refuse("optim_target_modules", "an optimizer of projections of the gradients")
    if said.has("auto_find_batch_size") and said.truth("auto_find_batch_size", said.raw("auto_find_batch_size")):
        draft.sizes.pop("b", None)
        said.unsaid("auto_find_batch_size", "b is what fits by trial", "--set b=1")
    if said.has("use_cpu") and said.truth("use_cpu", said.raw("use_cpu")):
        said.approximated("use_cpu", "the run is on CPUs: placement and proof are the same")
    for key in OF_TRAINER:
        said.leave(key, "as it is anyway")


def read_float8(draft: Draft, gather: str, lora: bool) -> None:
    """`fp8: true` of a trainer; `gather` is its key of all_gathers in 8 bits, which go without adapters (`lora`)."""
    said = draft.said
    if said.flag("fp8"):
        float8_compute(draft, "fp8")
        if said.flag(gather) and any(name in ("zero3", "hsdp", "fsdp_no_reshard") for name, _ in draft.parts.factors):
            if lora:
                raise said.refuse(gather, f"{gather} beside adapters: which parameters are gathered in 8 bits is not "
                                          "read")
            float8_gather(draft, gather)
    said.leave("fp8", "off")
    said.leave(gather, "off, or nothing is gathered")
