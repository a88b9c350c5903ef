"""Which commands train by Megatron-LM's flags, and what those are that look alike: told by their scripts and words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from placealg.importers.command_line import Launch
from placealg.importers.names import kind_without_graph
from placealg.importers.reading import Options, refusal

SWIFT = ("sft", "pt", "rlhf", "dpo", "kto", "grpo")
"""What the command `megatron` of ms-swift runs."""

BRIDGE = ("megatron_bridge", "megatron-bridge", "nemo_run", "setup_experiment", "run_recipe", "run_script.py")
"""What is in the names of the scripts that run recipes of Megatron-Bridge and NeMo."""

RECIPE = ("model-recipe-name", "model-family-name", "recipe", "compute-dtype")
"""Flags of those scripts."""

ENTRY = re.compile(r"(?:pre|post)train(?:_\w+)?|finetune(?:_\w+)?|train_(?:gpt|mcore|llm|llama|qwen|mixtral)\w*")
"""The stem of a script that trains by Megatron-LM's flags, here and in its forks."""

OF_RUN = re.compile(r"^(?:pretrain|posttrain|finetune|train|test|run)_|_(?:train|pretrain)$")


def trains(script: str, flags: Mapping[str, Any]) -> bool:
    """Whether a script is an entry point that trains by these flags; none at all is a variable that holds flags.

    >>> trains("pretrain_gpt.py", {}), trains("tasks/main.py", {}), trains("train.py", {"actor-num-nodes": "1"})
    (True, False, True)
    """
    stem = Path(script).stem
    return script in ("", *SWIFT) or bool(ENTRY.fullmatch(stem)) or (
        stem in ("train", "train_async") and "actor-num-nodes" in flags)


def check_entry(launch: Launch, options: Options) -> None:
    """A refusal where a launch is of another kind of network, of a recipe, or of no entry point that is known."""
    flags, file = launch.flags, launch.flags.file
    parts = [OF_RUN.sub("", part.removesuffix(".py")) for part in re.split("/", launch.script)[-3:]]
    if kind := next((kind for word in (*parts, Path(launch.script).stem) if (kind := kind_without_graph(word))), ""):
        raise refusal(f"{launch.script} trains {kind}, of which there is no op graph", file)
    check_recipe(launch, file)
    if launch.script in SWIFT and launch.launcher[-1:] == ("swift",):
        raise refusal(f"swift {launch.script} trains by the Trainer of transformers, not by Megatron-LM", file,
                      "give the file of DeepSpeed or accelerate that it names")
    if options.format != "megatron" and not trains(launch.script, flags.data):
        raise refusal(f"{launch.script} is no entry point of Megatron-LM that is known", file,
                      "--as megatron reads its flags")


def check_recipe(launch: Launch, where: str) -> None:
    """A refusal where a launch runs a recipe in Python."""
    words = (launch.script, *launch.launcher)
    flag = next((name for name in RECIPE if name in launch.flags.data), "")
    if flag or any(mark in word for mark in BRIDGE for word in words):
        raise refusal(f"{launch.script or ' '.join(words[:2])} is a recipe of Megatron-Bridge in Python, which decides "
                      "what the flags leave open", where, "give the arguments that it prints at its start")
