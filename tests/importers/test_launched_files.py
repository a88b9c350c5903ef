"""Files that a launch names: accelerate's section of FSDP says what fsdp_config says in the trainer's own file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shlex import split

import pytest
import yaml
from test_lora_under_fsdp import EXAMPLES, Drawn, drawn

from placealg.errors import InputError
from placealg.importers.read import read, read_words
from placealg.importers.reading import Options
from placealg.strategy.spec import Strategy

CASES = [replace(EXAMPLES, axolotl=False), *(replace(drawn(seed), axolotl=False) for seed in range(100, 112))]


def written(folder: Path, case: Drawn) -> tuple[Path, Path, Path]:
    """The trainer's own file, the same without its FSDP, and accelerate's, of another precision that does not count."""
    whole = yaml.safe_load(case.text)
    config = whole.pop("fsdp_config")
    section = {f"fsdp_{name.removeprefix('fsdp_')}": value for name, value in config.items()}
    launcher = {"distributed_type": "FSDP", "mixed_precision": "no", "num_processes": 8, "num_machines": 1,
                "fsdp_config": section}
    whole.pop("fsdp")
    paths = folder / "own.yaml", folder / "run.yaml", folder / "launcher.yaml"
    for path, data in zip(paths, (yaml.safe_load(case.text), whole, launcher), strict=True):
        path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return paths


def unnamed(strategy: Strategy) -> Strategy:
    return replace(strategy, name="")


@pytest.mark.parametrize("case", [case for case in CASES if not case.refused])
def test_accelerate_s_file_sets_up_the_engine(tmp_path: Path, case: Drawn) -> None:
    own, run, launcher = written(tmp_path, case)
    meant = read(own, world_size=8)
    beside = read(run, files=(str(launcher),))
    assert unnamed(beside.strategy) == unnamed(meant.strategy)
    section = yaml.safe_load(launcher.read_text())["fsdp_config"]
    assert {f"fsdp_config.{name}" for name in section} <= {item.key for item in beside.read}

    flags = [w for name, value in section.items() for w in (f"--{name}", str(value))]
    words = ["accelerate", "launch", "--use_fsdp", *flags, "--num_processes", "8", "src/train.py", str(run)]
    assert unnamed(read_words(words, Options()).strategy) == unnamed(meant.strategy)
    fewer = ["accelerate", "launch", "--config_file", str(launcher), "--num_processes", "4", "src/train.py", str(run)]
    assert unnamed(read_words(fewer, Options()).strategy) == unnamed(read(own, world_size=4).strategy)

    script = tmp_path / "run.sh"
    script.write_text("#!/bin/bash\naccelerate launch --config_file conf/launcher.yaml \\\n  src/train.py run.yaml "
                      "lora_rank=3 --cutoff_len 512\n", encoding="utf-8")
    launched = read(script)
    assert launched.strategy.option("adapters", "rank") == 3 and launched.sizes["s"] == 512
    assert unnamed(launched.strategy) == unnamed(read(own, world_size=8, settings={"lora_rank": "3"}).strategy)


@pytest.mark.parametrize(("words", "dp"), [
    ("llamafactory-cli train {run}", None), ("torchrun --nproc_per_node 4 src/train.py {run}", 4),
    ("accelerate launch --num_processes 16 src/train.py {run}", 16),
    ("deepspeed --num_gpus 2 src/train.py {run}", 2),
])
def test_the_launcher_says_how_many_devices(tmp_path: Path, words: str, dp: int | None) -> None:
    _, run, _ = written(tmp_path, CASES[0])
    found = read_words(words.format(run=run).split(), Options())
    assert (found.expression, found.strategy.mesh["dp"].size) == ("dp*recompute_full", dp)


@pytest.mark.parametrize(("words", "message"), [
    ("src/train.py gone.yaml", "the launch names another file, gone.yaml, which is not here; give it with --with"),
    ("--use_megatron_lm src/train.py {run}", "distributed_type is 'MEGATRON_LM'"),
    ("--config_file {run} src/train.py {run}", "--config_file names run.yaml, which is not accelerate's"),
    ("src/train.py {run} more.yaml", "'more.yaml' behind run.yaml: a launch names one file"),
    ("src/train.py {launcher}", "launcher.yaml, which is neither LLaMA-Factory's nor Axolotl's"),
    ("--config_file {launcher} src/train.py {own}", "own.yaml:\\d+: fsdp beside launcher.yaml, which sets up an"),
])
def test_launches_that_are_refused(tmp_path: Path, words: str, message: str) -> None:
    own, run, launcher = written(tmp_path, CASES[0])
    with pytest.raises(InputError, match=message):
        read_words(split("accelerate launch " + words.format(own=own, run=run, launcher=launcher)), Options())


def test_an_axolotl_file_is_launched(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(EXAMPLES.text, encoding="utf-8")
    words = f"accelerate launch --num_processes 8 -m axolotl.cli.train {path} --micro-batch-size 3"
    found = read_words(words.split(), Options())
    assert found.strategy == read(path, world_size=8).strategy and found.sizes["b"] == 3
    with pytest.raises(InputError, match=r"the launch names another file, x\.yaml, which is not here"):
        read_words(["accelerate", "launch", "--config_file", "x.yaml", "-m", "axolotl.cli.train", str(path)], Options())


@pytest.mark.parametrize(("said", "message"), [
    ({"distributed_type": "MEGATRON_LM"}, "distributed_type is 'MEGATRON_LM'"),
    ({"parallelism_config": {"parallelism_config_tp_size": 2}}, "parallelism_config beside a file of LLaMA-Factory"),
])
def test_engines_of_accelerate_that_are_refused(tmp_path: Path, said: dict[str, object], message: str) -> None:
    _, run, launcher = written(tmp_path, CASES[0])
    launcher.write_text(yaml.safe_dump({**yaml.safe_load(launcher.read_text()), **said}), encoding="utf-8")
    with pytest.raises(InputError, match=rf"launcher\.yaml:\d+: {message}"):
        read(run, files=(str(launcher),))
