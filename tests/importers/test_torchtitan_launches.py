"""Launches of torchtitan that name a TOML file: they read as that file does, with the fields that the words set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from shlex import split
from typing import Any

import pytest

from placealg.errors import InputError
from placealg.importers.read import read, read_words
from placealg.importers.reading import Options, Reading

FIELDS: dict[str, tuple[Any, ...]] = {
    "parallelism.tensor_parallel_degree": (1, 2, 4), "parallelism.context_parallel_degree": (1, 2),
    "parallelism.pipeline_parallel_degree": (1, 2, 4), "parallelism.data_parallel_replicate_degree": (1, 2),
    "training.local_batch_size": (4, 8), "training.seq_len": (2048, 8192), "training.max_norm": (0.5, 1.0),
    "activation_checkpoint.mode": ("none", "full"), "training.dtype": ("float32", "bfloat16")}


def text(fields: dict[str, Any]) -> str:
    lines = ["[model]", 'name = "llama3"', 'flavor = "8B"']
    for table in dict.fromkeys(key.partition(".")[0] for key in fields):
        lines.append(f"[{table}]")
        lines += [f"{key.partition('.')[2]} = {value!r}" for key, value in fields.items()
                  if key.startswith(f"{table}.")]
    return "\n".join(lines).replace("'", '"') + "\n"


def told(reading: Reading) -> Any:
    return reading.expression, replace(reading.strategy, name=""), reading.sizes, reading.model, reading.runs


@pytest.mark.parametrize("seed", range(10))
def test_a_launch_reads_as_its_file(tmp_path: Path, seed: int) -> None:
    draw = Random(seed)
    fields = {key: draw.choice(values) for key, values in FIELDS.items() if draw.random() < 0.7}
    said = {key: draw.choice(FIELDS[key]) for key in draw.sample(sorted(FIELDS), 3)}
    whole, part = tmp_path / "whole.toml", tmp_path / "part.toml"
    whole.write_text(text({**fields, **said}), encoding="utf-8")
    part.write_text(text(fields), encoding="utf-8")
    meant = told(read(whole, world_size=64))
    flag, between = draw.choice([("--job.config_file", " "), ("--job.config-file", " "), ("--job.config_file", "=")])
    words = "".join(f" --{key}{draw.choice([' ', '='])}{value}" for key, value in said.items())
    launch = f"torchrun --nproc_per_node 8 --nnodes 8 -m torchtitan.train {flag}{between}{part}{words}"
    script = tmp_path / "run.sh"
    for body in (launch, f"CONFIG={part}\nsrun {launch.replace(str(part), '${CONFIG}')}",
                 f"NGPU=64 CONFIG_FILE={part} ./run_train.sh{words}"):
        script.write_text(f"#!/bin/bash\n{body}\n", encoding="utf-8")
        assert told(read(script)) == meant, body
    assert told(read_words(split(launch), Options())) == meant


def test_a_file_that_is_not_here_is_told() -> None:
    words = ["torchrun", "--nproc_per_node=8", "-m", "torchtitan.train", "--job.config_file", "nowhere.toml"]
    with pytest.raises(InputError, match=r"nowhere\.toml, which is not here"):
        read_words(words, Options())
