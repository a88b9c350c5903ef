"""Every decoder of transformers on the meta device, held against the families here: counts and names of parameters.

Run by `make models` (compare) and `make models-write` (keep the table and the page). A line per type goes to stdout.
Needs transformers and torch, which models.lock has; the table that it writes is what the default tests read.
"""

from __future__ import annotations

import argparse
import collections
import json
import logging
import os
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from models_page import PAGE, TABLE, published, written
from random_configs import REQUIRED

from placealg.errors import InputError
from placealg.models.config import from_config
from placealg.models.family import aliases, families, family, refusals
from placealg.models.model import Model
from placealg.models.names import parameters_of

SAMPLE = 3
"""How many of the random configurations of a type are kept in the table."""

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.filterwarnings("ignore")


@cache
def transformers_package() -> Any:
    """The package, without its warnings."""
    import transformers

    transformers.logging.set_verbosity(logging.CRITICAL)
    return transformers


def causal() -> Mapping[str, str]:
    """`model_type` -> the class with a language model's head, of all that transformers calls causal, or names so."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return {**MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "mistral4": "Mistral4ForCausalLM"}


LANGUAGE: Mapping[str, tuple[str, str]] = {
    "qwen2_vl_text": ("Qwen2VLForConditionalGeneration", "Qwen2VLTextModel"),
    "qwen2_5_vl_text": ("Qwen2_5_VLForConditionalGeneration", "Qwen2_5_VLTextModel"),
    "qwen2_5_omni_text": ("Qwen2_5OmniThinkerForConditionalGeneration", "Qwen2_5OmniThinkerTextModel"),
    "qwen3_vl_text": ("Qwen3VLForConditionalGeneration", "Qwen3VLTextModel"),
    "qwen3_vl_moe_text": ("Qwen3VLMoeForConditionalGeneration", "Qwen3VLMoeTextModel"),
    "qwen3_omni_moe_text": ("Qwen3OmniMoeThinkerForConditionalGeneration", "Qwen3OmniMoeThinkerTextModel"),
    "glm4v_text": ("Glm4vForConditionalGeneration", "Glm4vTextModel"),
    "glm_ocr_text": ("GlmOcrForConditionalGeneration", "GlmOcrTextModel"),
    "glm4v_moe_text": ("Glm4vMoeForConditionalGeneration", "Glm4vMoeTextModel"),
    "hunyuan_vl_text": ("HunYuanVLForConditionalGeneration", "HunYuanVLTextModel"),
    "paddleocr_vl_text": ("PaddleOCRVLForConditionalGeneration", "PaddleOCRTextModel"),
    "granite_docling_text": ("GraniteDoclingForConditionalGeneration", "GraniteDoclingTextModel"),
    "cosmos3_edge_text": ("Cosmos3EdgeForConditionalGeneration", "Cosmos3EdgeTextModel"),
    "deepseek_ocr2_text": ("DeepseekOcr2ForConditionalGeneration", "DeepseekOcr2TextModel"),
}
"""Type of a language model inside a larger one -> the larger one's class, and its own."""

INSIDE = "text_config"
"""The table of a larger model's configuration that its language model is built of."""


def asked() -> list[str]:
    """The types that are read here: what transformers calls causal, and language models inside larger ones."""
    return sorted(n for n in {*causal(), *LANGUAGE} if n in families() or n in aliases())


def types() -> frozenset[str]:
    """Every `model_type` of which transformers has a configuration."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return frozenset(CONFIG_MAPPING_NAMES)


def config_class(name: str) -> Any:
    """The class that reads a configuration of this type."""
    transformers_package()
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[name]


def built(name: str, table: Mapping[str, Any]) -> Any:
    """The real model on the meta device."""
    import torch

    if name in LANGUAGE:
        return _language(name, table)
    config = config_class(name).from_dict({**REQUIRED.get(name, {}), **table})
    with torch.device("meta"):
        return getattr(transformers_package(), causal()[name])(config)


def _language(name: str, table: Mapping[str, Any]) -> Any:
    """A language model and the head that its larger model has for it, without the rest, under the names there."""
    import torch

    larger = getattr(transformers_package(), LANGUAGE[name][0])
    told = {k: v for k, v in table.items() if k == "tie_word_embeddings"}
    config = larger.config_class.from_dict({INSIDE: {**REQUIRED.get(name, {}), **table, "model_type": name}, **told})
    inside = getattr(config, INSIDE)
    whole, model = torch.nn.Module(), torch.nn.Module()
    with torch.device("meta"):
        part = getattr(sys.modules[larger.__module__], LANGUAGE[name][1])(inside)
        head = torch.nn.Linear(inside.hidden_size, inside.vocab_size, bias=False)
    setattr(model, "text_model" if name.startswith("granite") else "language_model", part)
    whole.model, whole.lm_head = model, head
    if config.tie_word_embeddings and larger._tied_weights_keys:
        whole.lm_head.weight = part.embed_tokens.weight
    return whole


def larger(name: str, table: Mapping[str, Any]) -> dict[str, int]:
    """Parameter -> elements of the head and of what of a larger model is called as its language model is."""
    import torch

    made = getattr(transformers_package(), LANGUAGE[name][0])
    inside = {**REQUIRED.get(name, {}), **table[INSIDE], "model_type": name}
    with torch.device("meta"):
        real, _ = counted(made(made.config_class.from_dict({**table, INSIDE: inside})))
    names = ("lm_head.", "model.language_model.", "model.text_model.")
    return {n: k for n, k in real.items() if n.startswith(names)}


def tied(name: str) -> int:
    """In how many of nine ways to say whether the head is the embedding a file of the larger model is read as built."""
    said: tuple[dict[str, Any], ...] = ({}, {"tie_word_embeddings": True}, {"tie_word_embeddings": False})
    made = getattr(transformers_package(), LANGUAGE[name][0]).config_class.model_type
    given = {**REQUIRED.get(name, {}), "num_hidden_layers": 2}
    given |= {k: v[:2] for k, v in given.items() if isinstance(v, list)}
    equal = 0
    for outer, inner in ((o, i) for o in said for i in said):
        table = {**outer, INSIDE: {**given, **inner, "model_type": name}}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.json"
            path.write_text(json.dumps({**table, "model_type": made}), encoding="utf-8")
            equal += not difference(from_config(f"{path}#{INSIDE}"), larger(name, table), set())
    return equal


def predicting(name: str, table: Mapping[str, Any]) -> int:
    """The parameters of the layers that predict tokens after the next, which transformers builds apart."""
    import torch
    from transformers.modeling_layers import MtpModel

    main = built(name, table)
    shared = {id(p) for p in main.parameters()}
    with torch.device("meta"):
        made = MtpModel(main, main.config.num_mtp_layers)
    return sum(p.numel() for p in made.parameters() if id(p) not in shared)


def counted(model: Any) -> tuple[dict[str, int], set[str]]:
    """Parameter -> elements, and which of them no gradient changes."""
    return ({n: p.numel() for n, p in model.named_parameters()},
            {n for n, p in model.named_parameters() if not p.requires_grad})


def read(name: str, table: Mapping[str, Any], **options: Any) -> Model:
    """The model here of the same configuration, written to a file as a user has it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps({**table, "model_type": name}), encoding="utf-8")
        return from_config(path, **options)


def difference(model: Model, real: Mapping[str, int], fixed: set[str]) -> str:
    """What differs in the total or in any parameter's name or size, in words; "" where nothing does."""
    total = sum(real.values())
    if model.total() != total:
        return f"{model.total()} parameters, {total} in transformers"
    sizes = {p.name: int(p.elements.evaluate(model.sizes)) for p in model.parameters}
    here = {n: sum(sizes[p] for p in f.parameters) // f.parts for n, f in parameters_of(model).items()}
    there = {n: k for n, k in real.items() if k}
    wrong = [n for n in {**here, **there} if here.get(n) != there.get(n) and not (n in fixed and n in here)]
    return f"{len(wrong)} names differ: {wrong[0]} has {here.get(wrong[0])} here, {there.get(wrong[0])} there" \
        if wrong else ""


def outcome(name: str, table: Mapping[str, Any], real_name: str = "") -> tuple[str, str, int]:
    """("equal" | "refused" | "unbuildable" | "wrong", why, parameters) of one configuration."""
    try:
        real, fixed = counted(built(real_name or name, table))
    except Exception as error:
        return "unbuildable", f"{type(error).__name__}: {error}".replace("\n", " ")[:100], 0
    try:
        model = read(name, table)
    except InputError as error:
        return "refused", refusal(error), 0
    found = difference(model, real, fixed)
    return ("wrong", found, 0) if found else ("equal", "", model.total())


def refusal(error: InputError) -> str:
    """What an error says, without the place."""
    return re.sub(r"^.*config\.json(:\d+)?: ", "", str(error))


def further(name: str, table: Mapping[str, Any], real_name: str = "") -> tuple[int, int] | None:
    """The parameters of the layers that predict later tokens, here and there; None where a model has none."""
    if not family(aliases().get(name, name)).predicting:
        return None
    try:
        here = read(name, table, mtp=True).total() - read(name, table).total()
    except InputError:
        return None
    return here, predicting(real_name or name, table)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help="keep the table and docs/models.md")
    parser.add_argument("--random", type=int, default=300, metavar="N", help="so many of each type that are built")
    parser.add_argument("--no-steps", dest="steps", action="store_false", help="without real steps of small models")
    parser.add_argument("--keep", action="store_true", help="keep the random runs and the proofs that the table has")
    parser.add_argument("--no-proofs", dest="proofs", action="store_false", help="without a proof of every family")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("names", nargs="*", help="types; all by default")
    args = parser.parse_args(argv)
    start, wrong = time.perf_counter(), 0
    parts: dict[str, Any] = {"types": {}, "published": {}, "predicting": {}, "steps": {}, "wide": {}, "random": {},
                             "larger": {}, "sample": [], "passed": {}}
    table: dict[str, Any] = {"transformers": transformers_package().__version__, "types_in_all": len(types()),
                             "seed": args.seed, "causal": sorted(causal()), **parts}
    names = args.names or asked()
    for name in names:
        given = REQUIRED.get(name, {})
        what, why, total = outcome(name, given)
        wrong += what == "wrong"
        table["types"][name] = {"parameters": total} | ({"given": given} if given else {})
        if what != "equal":
            table["types"][name] = {"outcome": what, "why": why}
        print(f"{name}: default {what} {why}", flush=True)
        wrong += _told_further(table, name, further(name, given))
        if name in LANGUAGE:
            table["larger"][name] = tied(name)
            wrong += table["larger"][name] < 9
            print(f"{name}: {table['larger'][name]} of 9 files of the larger model equal", flush=True)
    if not args.names:
        for model_id, config in published().items():
            fields = {k: v for k, v in config.items() if k != "model_type"}
            name = config["model_type"]
            lacks = name not in {*causal(), *LANGUAGE}
            what, why, total = outcome(name, fields, aliases().get(name, name) if lacks else name)
            wrong += what == "wrong"
            table["published"][model_id] = total if what == "equal" else f"{what}: {why}"
            print(f"{model_id}: {what} {why}", flush=True)
            if name in causal():
                wrong += _told_further(table, model_id, further(name, fields))
    if args.steps:
        from real_activations import CASES, WIDE, compared

        for name in (n for n in CASES if n in names):
            equal_here, table["steps"][name] = compared(name)
            wrong += not equal_here
            print(f"{name}: one real step {'equal' if equal_here else 'DIFFERS'}", flush=True)
        for name in (n for n in WIDE if n in names):
            equal_here, table["wide"][name] = compared(name, wide=True)
            wrong += not equal_here
            print(f"{name}: one real step in 16 bits {'equal' if equal_here else 'DIFFERS'}", flush=True)
    from random_runs import random_runs

    for name in names if args.random else ():
        counts: collections.Counter[str] = collections.Counter()
        for config, what, why, total in random_runs(name, args.random, args.seed):
            counts[what] += 1
            if what == "equal" and counts["equal"] <= SAMPLE:
                table["sample"].append([name, config, total])
            if what == "wrong":
                print(f"WRONG {name} {json.dumps(config)}: {why}", flush=True)
        wrong += counts["wrong"]
        table["random"][name] = dict(sorted(counts.items()))
        print(f"{name}: random {dict(counts)}", flush=True)
    before = json.loads(TABLE.read_text(encoding="utf-8"))
    if args.proofs and not args.names and not args.keep:
        from proved_families import passed

        if args.write:
            TABLE.write_text(_compact({**table, "passed": before["passed"]}), encoding="utf-8")
        table["passed"] = passed()
        wrong += sum(what != "passed" and not what.startswith("as ") for row in table["passed"].values()
                     for what in row.values())
    if args.keep:
        table |= {key: before[key] for key in ("random", "sample", "seed", "passed")}
    if args.write:
        TABLE.write_text(_compact(table), encoding="utf-8")
        PAGE.write_text(written(table), encoding="utf-8")
    runs = sum(sum(c.values()) for c in table["random"].values())
    equal = sum(c.get("equal", 0) for c in table["random"].values())
    print(f"models: {len(names)} types, {len(table['published'])} published, {runs} random ({equal} equal), "
          f"{wrong} wrong, {time.perf_counter() - start:.0f} s")
    unknown = sorted(types() - {*families(), *aliases(), *refusals()})
    if unknown:
        print(f"neither read nor refused: {', '.join(unknown)}")
    return 1 if wrong or unknown else 0


def _told_further(table: dict[str, Any], name: str, found: tuple[int, int] | None) -> bool:
    """Whether the layers that predict later tokens differ; what is equal is kept in the table."""
    if found is None:
        return False
    here, there = found
    print(f"{name}: mtp {'equal' if here == there else f'WRONG {here} {there}'}", flush=True)
    if here == there:
        table["predicting"][name] = here
    return here != there


def _compact(table: Mapping[str, Any]) -> str:
    """JSON with a line for each entry of each table."""
    parts = []
    for key, value in table.items():
        if isinstance(value, dict) and value:
            rows = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
            parts.append(f" {json.dumps(key)}: {{\n{rows}\n }}")
        elif isinstance(value, list) and value:
            rows = ",\n".join(f"  {json.dumps(v)}" for v in value)
            parts.append(f" {json.dumps(key)}: [\n{rows}\n ]")
        else:
            parts.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
