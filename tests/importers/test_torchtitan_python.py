"""Configurations of torchtitan in Python: however a function says a field, it means the same, or is refused."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import split

import pytest

from placealg.errors import InputError
from placealg.importers.read import read, read_words
from placealg.importers.reading import Options, Reading

HEAD = ("from torchtitan.config import ParallelismConfig, TrainingConfig\nfrom torchtitan.trainer import Trainer\n"
        "from . import model_registry\n\n")

FIELDS = {
    "training.num_tokens_per_microbatch_per_dp_rank": (8192, 16384, 32768),
    "training.max_context_length": (2048, 4096, 8192),
    "training.max_norm": (0.0, 1.0),
    "training.dtype": ("float32", "bfloat16"),
    "parallelism.tensor_parallel_degree": (1, 2, 8),
    "parallelism.enable_sequence_parallel": (True, False),
    "parallelism.data_parallel_shard_degree": (-1, 4, 8),
    "parallelism.data_parallel_replicate_degree": (1, 2),
    "parallelism.context_parallel_degree": (1, 2),
    "parallelism.pipeline_parallel_degree": (1, 2, 4),
    "parallelism.num_pp_microbatches": (1, 4, 8),
    "parallelism.pipeline_parallel_schedule": ("1F1B", "GPipe"),
    "parallelism.fsdp_reshard_after_forward": ("default", "always", "never"),
}


@dataclass(frozen=True)
class Drawn:
    """Fields with their values, and how each is said: "call", "set", "helper", "other" file, or "words" of a launch."""

    values: dict[str, object]
    ways: dict[str, str]

    def said(self, way: str) -> dict[str, object]:
        return {key: value for key, value in self.values.items() if self.ways[key] == way}


def drawn(seed: int) -> Drawn:
    rng = random.Random(seed)
    keys = rng.sample(list(FIELDS), rng.randint(3, len(FIELDS)))
    return Drawn({key: rng.choice(FIELDS[key]) for key in keys},
                 {key: rng.choice(("call", "set", "helper", "other", "words", "added")) for key in keys})


QUOTED = Drawn({"parallelism.tensor_parallel_degree": 4, "training.max_context_length": 8192},
               {"parallelism.tensor_parallel_degree": "words", "training.max_context_length": "call"})


def made(values: dict[str, object], name: str) -> str:
    """A function that gives the values to the classes' calls."""
    tables = {table: ", ".join(f"{key.partition('.')[2]}={value!r}" for key, value in values.items()
                               if key.startswith(table)) for table in ("training", "parallelism")}
    return (f"def {name}() -> Trainer.Config:\n    return Trainer.Config(model_spec=model_registry('8B'),\n        "
            f"training=TrainingConfig({tables['training']}),"
            + (f"\n        parallelism=ParallelismConfig({tables['parallelism']}),"
               if tables["parallelism"] else "") + "\n    )\n")


def put(values: dict[str, object], indent: str = "    ") -> str:
    return "".join(f"{indent}config.{key} = {value!r}\n" for key, value in values.items())


def files(folder: Path, case: Drawn) -> Path:
    """The configuration over two files: what is added is a number that grows from 0."""
    package = folder / "titan" / "llama3"
    package.mkdir(parents=True, exist_ok=True)
    added = {key: value for key, value in case.said("added").items() if type(value) is int}
    (package / "config_registry.py").write_text(HEAD + made(case.said("call"), "llama3_8b"), encoding="utf-8")
    rest = {key: value for key, value in case.said("added").items() if key not in added}
    (package / "other.py").write_text(
        HEAD + "from .config_registry import llama3_8b\n\ndef llama3_8b_other() -> Trainer.Config:\n"
        "    config = llama3_8b()\n" + put(case.said("other")) + "    return config\n", encoding="utf-8")
    mine = package / "recipes.py"
    mine.write_text(
        HEAD + "from titan.llama3.other import llama3_8b_other\n\n"
        "def _more(config: Trainer.Config, *, on: bool = True) -> None:\n    if on:\n        pass\n"
        + put(case.said("helper"), "    ") + "\ndef llama3_8b_mine() -> Trainer.Config:\n"
        "    config = llama3_8b_other()\n"
        + put({**case.said("set"), **rest}) + "    _more(config)\n"
        + "".join(f"    config.{key} = 1\n    config.{key} += {value - 1}\n" for key, value in added.items()
                  if isinstance(value, int))
        + "    return config\n", encoding="utf-8")
    return mine


def outcome(reading: object) -> object:
    if not isinstance(reading, Reading):
        return reading
    return (replace(reading.strategy, name=""), reading.model, dict(reading.sizes), dict(reading.runs),
            sorted((i.key, i.text) for i in reading.approximated))


def tried(run: object) -> object:
    try:
        return outcome(run())  # type: ignore[operator]
    except InputError as error:
        return error.what


@pytest.mark.parametrize("case", [QUOTED, *map(drawn, range(60))], ids=lambda c: str(len(c.values)))
def test_however_a_field_is_said(tmp_path: Path, case: Drawn) -> None:
    whole = tmp_path / "whole.py"
    whole.write_text(HEAD + made(case.values, "llama3_8b"), encoding="utf-8")
    mine = files(tmp_path, case)
    words = "".join(f" --{key}={value}" for key, value in case.said("words").items())
    launch = ("torchrun --nproc_per_node 64 -m torchtitan.train --module titan.llama3.recipes "
              f"--config llama3_8b_mine{words}")
    meant = tried(lambda: read(whole, world_size=64))
    assert tried(lambda: read_words(split(launch), Options(files=(str(mine),)))) == meant
    script = tmp_path / "run.sh"
    script.write_text(f"#!/bin/bash\nNGPU=64 MODULE=titan.llama3.recipes CONFIG=llama3_8b_mine ./run_train.sh{words}\n",
                      encoding="utf-8")
    assert tried(lambda: read(script)) == meant
    settings = {key: str(value) for key, value in case.said("words").items()}
    assert tried(lambda: read(mine, function="llama3_8b_mine", world_size=64, settings=settings)) == meant


HIDDEN = {
    "a branch": "    if os.environ.get('TP'):\n        config.parallelism.tensor_parallel_degree = {n}\n",
    "a loop": "    for n in range({n}):\n        config.parallelism.tensor_parallel_degree = n\n",
    "a sum": "    config.parallelism.tensor_parallel_degree += NGPU + {n}\n",
    "setattr": "    setattr(config.parallelism, 'tensor_parallel_degree', {n})\n",
    "a call elsewhere": "    elsewhere(config, {n})\n",
    "a method": "    config.parallelism.update(tensor_parallel_degree={n})\n",
    "a call in a branch": "    if DEBUG:\n        elsewhere(config)\n",
    "try": "    try:\n        config.parallelism.tensor_parallel_degree = {n}\n    except ValueError:\n        pass\n",
    "a deletion": "    del config.parallelism\n",
    "another's copy": "    config = converted(config, {n})\n",
    "named arguments": "    config = Trainer.Config(**sizes({n}))\n",
    "a model": "    config.model_spec.model.n_layers = {n}\n",
}
"""What may change a configuration and cannot be followed."""


@pytest.mark.parametrize("what", HIDDEN)
def test_what_cannot_be_followed_is_refused(tmp_path: Path, what: str) -> None:
    for n in (2, 8):
        base = made({"training.max_context_length": 4096, "parallelism.tensor_parallel_degree": n}, "llama3_8b")
        file = tmp_path / "config.py"
        file.write_text(HEAD + base + "\ndef mine() -> Trainer.Config:\n    config = llama3_8b()\n"
                        + HIDDEN[what].format(n=n) + "    return config\n", encoding="utf-8")
        with pytest.raises(InputError, match=r"config\.py:\d+"):
            read(file, function="mine")


@pytest.mark.parametrize(("words", "message"), [
    ("--module gone --config f", "the launch names f of the module gone, which is not here; --with gives its file"),
    ("--module whole --config llama3_9b", "no function 'llama3_9b'"),
    ("--module whole", "--config is not given, and torchtitan wants it"),
    ("--module whole --config llama3_8b activation-checkpoint:full-ac", "chooses a class of the configuration"),
    ("--module whole --config llama3_8b --parallelism.tensor_parallel_degre 2", "did you mean 'parallelism.tensor_par"),
    ("--module whole --config llama3_8b --activation_checkpoint.mode full", "its class is the mode"),
    ("--module whole --config llama3_8b --training.steps.more 2", "'steps' holds no fields"),
])
def test_launches_that_are_refused(tmp_path: Path, words: str, message: str) -> None:
    whole = tmp_path / "whole.py"
    whole.write_text(HEAD + made({"training.steps": 3}, "llama3_8b"), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_words(["torchrun", "-m", "torchtitan.train", *split(words)], Options(files=(str(whole),)))


def test_a_loss_that_makes_logits_in_chunks(tmp_path: Path) -> None:
    for loss, way in (("ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config())", "chunked"),
                      ("CrossEntropyLoss.Config()", None), ("MTPLoss.Config()", None)):
        file = tmp_path / "config.py"
        text = HEAD + made({}, "llama3_8b").replace("Trainer.Config(model", f"Trainer.Config(loss={loss}, model")
        file.write_text(text, encoding="utf-8")
        found = read(file)
        assert found.runs.get("loss") == way and found.runs["flash"] is True
        assert ("loss" in {item.key for item in found.approximated}) is loss.startswith("MTP")


@pytest.mark.parametrize("said", ["ParallelismConfig()", "ParallelismConfig(**sizes)", "degrees", "None"])
def test_sections_without_fields(tmp_path: Path, said: str) -> None:
    """One without arguments holds defaults; one that is not followed is refused."""
    file = tmp_path / "config.py"
    text = made({"parallelism.tensor_parallel_degree": 1}, "llama3_8b")
    file.write_text(HEAD + text.replace("ParallelismConfig(tensor_parallel_degree=1)", said), encoding="utf-8")
    if said == "ParallelismConfig()":
        assert read(file).expression == "zero3"
    else:
        with pytest.raises(InputError, match=r"config\.py:\d+: parallelism is "):
            read(file)


@pytest.mark.parametrize("seed", range(12))
def test_tokens_of_a_step(tmp_path: Path, seed: int) -> None:
    """A rank of data runs, of each microbatch of a pipeline, as many tokens as are said; a step has them all."""
    rng = random.Random(seed)
    length, each, count, more = (rng.choice(pool) for pool in ((1024, 2048), (1, 2, 4), (1, 2, 6), (1, 3)))
    stages, ranks = rng.choice((1, 2)), rng.choice((1, 4))
    tokens = length * each
    of_rank = tokens * (count if stages > 1 else 1)
    values = {"training.num_tokens_per_microbatch_per_dp_rank": tokens, "training.max_context_length": length,
              "parallelism.num_pp_microbatches": count, "parallelism.pipeline_parallel_degree": stages,
              "parallelism.data_parallel_shard_degree": ranks, "training.num_tokens_per_train_step":
                  of_rank * ranks * more}
    whole = tmp_path / "whole.py"
    whole.write_text(HEAD + made(values, "llama3_8b"), encoding="utf-8")
    found = read(whole)
    steps = found.strategy.option("schedule", "microbatches")
    assert (found.sizes["b"], found.sizes["s"]) == (each, length)
    assert found.sizes["b"] * length * int(steps) * ranks == of_rank * ranks * more
