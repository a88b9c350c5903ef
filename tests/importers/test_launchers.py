"""What sets up the engine: a trainer's own key, accelerate's section, its file or its flags; one program of all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from shlex import join
from typing import Any

import pytest
import yaml

from placealg.errors import InputError
from placealg.importers.read import read, read_words, reading_of
from placealg.importers.reading import Options, Reading

TRAINERS: dict[str, dict[str, Any]] = {
    "llamafactory": {"model_name_or_path": "meta-llama/Llama-3.1-8B", "stage": "sft", "finetuning_type": "full",
                     "per_device_train_batch_size": 2},
    "axolotl": {"base_model": "meta-llama/Llama-3.1-8B", "datasets": [{"path": "mine"}], "micro_batch_size": 2,
                "gradient_checkpointing": True},
    "trl": {"model_name_or_path": "meta-llama/Llama-3.1-8B", "dataset_name": "mine", "per_device_train_batch_size": 2},
    "trainer": {"model_name_or_path": "meta-llama/Llama-3.1-8B", "per_device_train_batch_size": 2, "output_dir": "out"},
}


def drawn(seed: int) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """(trainer, its keys, accelerate's section of DeepSpeed); the first draw offloads under LLaMA-Factory."""
    random = Random(seed)
    name = random.choice([*TRAINERS]) if seed else "llamafactory"
    stage = random.choice([1, 2, 3]) if seed else 3
    section: dict[str, Any] = {"zero_stage": stage}
    if random.random() < 0.5 or not seed:
        section["offload_optimizer_device"] = random.choice(["cpu", "nvme"])
    if stage == 3 and random.random() < 0.5:
        section["offload_param_device"] = "cpu"
    half = random.choice(["bf16", "fp16"])
    steps = random.choice([1, 2, 8])
    return name, {**TRAINERS[name], half: True, "gradient_accumulation_steps": steps}, section


def as_json(section: dict[str, Any]) -> dict[str, Any]:
    """The section as a file of DeepSpeed says it."""
    offload = {f"offload_{what}": {"device": section[f"offload_{what}_device"]} for what in ("optimizer", "param")
               if f"offload_{what}_device" in section}
    return {"zero_optimization": {"stage": section["zero_stage"], **offload}, "bf16": {"enabled": "auto"},
            "fp16": {"enabled": "auto"}, "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
            "train_micro_batch_size_per_gpu": "auto"}


def program(reading: Reading) -> Any:
    """What must not depend on who sets up the engine."""
    return replace(reading.strategy, name=""), reading.sizes, reading.model


@pytest.mark.parametrize("seed", range(16))
def test_deepspeed_is_the_same_by_whoever_sets_it_up(tmp_path: Path, seed: int) -> None:
    name, keys, section = drawn(seed)
    run, engine, own, config = (tmp_path / n for n in ("run.yaml", "engine.yaml", "own.yaml", "ds.json"))
    config.write_text(json.dumps(as_json(section)))
    own.write_text(yaml.safe_dump({**keys, "deepspeed": "ds.json"}))
    meant = program(read(own, world_size=8))
    run.write_text(yaml.safe_dump(keys))
    for said in (section, {"deepspeed_config_file": "ds.json"}):
        engine.write_text(yaml.safe_dump({"distributed_type": "DEEPSPEED", "num_processes": 8, "mixed_precision": "no",
                                          "deepspeed_config": said}))
        assert program(read(run, files=(str(engine),))) == meant, said
        assert program(read(engine, files=(str(run),))) == meant, said
    if name in ("llamafactory", "axolotl"):
        flags = [w for key, value in section.items() for w in (f"--{key}", str(value))]
        words = ["accelerate", "launch", "--use_deepspeed", *flags, "--num_processes", "8", *(
            ["-m", "axolotl.cli.train"] if name == "axolotl" else ["src/train.py"]), str(run)]
        assert program(read_words(words, Options())) == meant


def words_of(keys: dict[str, Any]) -> list[str]:
    return [word for key, value in keys.items() for word in (f"--{key}", *([] if value is True else [str(value)]))]


@pytest.mark.parametrize("seed", range(12))
def test_a_script_is_read_by_its_flags(tmp_path: Path, seed: int) -> None:
    """A launch by flags alone, in a shell script or as words, is the file of the same keys."""
    random = Random(seed)
    keys: dict[str, Any] = {**TRAINERS["trainer"], "gradient_accumulation_steps": random.choice([1, 8]),
                            "max_seq_length": 512}
    keys.update({key: True for key in ("bf16", "gradient_checkpointing") if random.random() < 0.7 or not seed})
    if random.random() < 0.4:
        keys.update(use_peft=True, lora_r=4, lora_target_modules="q_proj")
    elif random.random() < 0.3:
        keys["optim"] = "adafactor"
    launcher = ["accelerate", "launch", "--num_processes", "8"]
    other: dict[str, Any] = {}
    if not seed or random.random() < 0.4:
        (tmp_path / "ds.json").write_text(json.dumps(as_json({"zero_stage": 3})))
        other = {"deepspeed": "ds.json"}
    elif random.random() < 0.6 and "use_peft" not in keys:
        other = {"fsdp": "full_shard auto_wrap"}
    file = tmp_path / "arguments.yaml"
    file.write_text(yaml.safe_dump({**{k: v for k, v in keys.items() if k != "use_peft"}, **other} if "use_peft" not in
                                   keys else {**keys, **other}))
    meant = program(read(file, world_size=8, format="trainer"))
    script = tmp_path / "run.sh"
    script.write_text(f"#!/bin/bash\n{join([*launcher, 'train.py', *words_of({**keys, **other})])}\n")
    found = read(script)
    assert program(found) == meant and found.format == "trainer"
    assert {item.line for item in found.read if item.key == "per_device_train_batch_size"} == {2}


@pytest.mark.parametrize(("flags", "message"), [
    ("--use_lora True", "use_lora: of which rank adapters are, the script decides"),
    ("--use_lora True --lora_r 8", "use_lora: beside which modules adapters stand, the script decides"),
    ("--lora_r 8", "lora_r: whether adapters train, a switch of the script says"),
    ("--adapter_type lora", "'adapter_type' speaks of adapters"),
    ("--freeze_backbone True", "'freeze_backbone' speaks of parameters that do not train"),
    ("--tune_mm_mlp_adapter True", "'tune_mm_mlp_adapter' speaks of parameters that do not train"),
    ("--optim galore_adamw", "an optimizer of projections"),
    ("--load_in_4bit True", "the base rests in fewer bits, and trains"),
    ("--tensor_parallel_size 2", "'tensor_parallel_size' is no known key .* speaks of placement"),
    ("--deepspeed gone.json", "names another file, gone.json, which is not here"),
    ("--gradient_accumulation_steps $STEPS", "--gradient_accumulation_steps is open: nothing sets STEPS"),
])
def test_flags_that_would_be_another_program_are_refused(tmp_path: Path, flags: str, message: str) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"#!/bin/bash\ntorchrun --nproc_per_node 8 train.py --per_device_train_batch_size 1 {flags}\n")
    with pytest.raises(InputError, match=message):
        read(script)


@pytest.mark.parametrize(("flags", "key"), [
    ("--label_smoothing_factor 0.1", "label_smoothing_factor"), ("--neftune_noise_alpha 5", "neftune_noise_alpha"),
    ("--use_focal_loss True", "use_focal_loss"), ("--distill_from big", "distill_from"), ("--packing", "packing"),
])
def test_flags_about_the_loss_are_approximated_by_name(flags: str, key: str) -> None:
    words = f"torchrun --nproc_per_node 8 train.py --per_device_train_batch_size 1 {flags}".split()
    assert key in {item.key for item in read_words(words, Options()).approximated}


def test_launches_of_other_trainers_by_flags() -> None:
    """The command that a launch says is known: trl dpo has another loss, also where no key of its own stands."""
    model = "--model_name_or_path meta-llama/Llama-3.1-8B"
    dpo = read_words(f"trl dpo {model} --dataset_name mine".split(), Options())
    assert dpo.format == "trl" and "command" in {item.key for item in dpo.approximated} and "loss" not in dpo.runs
    sft = read_words(f"trl sft {model} --dataset_name mine --no_gradient_checkpointing".split(), Options())
    assert sft.expression == "dp" and "command" not in {item.key for item in (*sft.approximated, *sft.unsaid)}
    for folder in ("trl/scripts", "examples/scripts", "elsewhere/trl/examples/scripts"):
        ran = read_words(f"accelerate launch {folder}/sft.py {model} --packing --no_gradient_checkpointing".split(),
                         Options())
        assert (ran.format, ran.expression) == ("trl", "dp") and ran.strategy.option("tokens", "documents")
    factory = read_words(f"llamafactory-cli train --stage sft --finetuning_type full {model}".split(), Options())
    assert factory.format == "llamafactory"


def test_accumulation_of_two_numbers_does_not_start(tmp_path: Path) -> None:
    """A file of DeepSpeed that says another accumulation than the Trainer is refused, by both numbers."""
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "gradient_accumulation_steps": 4}')
    run = tmp_path / "run.yaml"
    run.write_text(yaml.safe_dump({**TRAINERS["trl"], "deepspeed": "ds.json", "gradient_accumulation_steps": 8}))
    with pytest.raises(InputError, match="gradient_accumulation_steps is 4 here and 8 of the trainer"):
        read(run)


def test_the_launcher_s_precision_holds_where_the_trainer_says_none(tmp_path: Path) -> None:
    run, engine = tmp_path / "run.yaml", tmp_path / "engine.yaml"
    run.write_text(yaml.safe_dump(TRAINERS["llamafactory"]))
    for word, act in (("bf16", 2), ("fp16", 2), ("no", 4)):
        engine.write_text(yaml.safe_dump({"distributed_type": "MULTI_GPU", "mixed_precision": word}))
        found = read(run, files=(str(engine),))
        assert int(found.strategy.tables["types"]["act"]) == act, word
        assert (found.strategy.option("optimizer", "skip") == "overflow") == (word == "fp16")


@pytest.mark.parametrize("seed", range(12))
def test_arguments_of_the_trainer_mean_the_same_in_every_trainer_s_file(tmp_path: Path, seed: int) -> None:
    """Of the loss, of noise and of batches: read, approximated or refused, whether the trainer's table has them."""
    random = Random(seed)
    name = [*TRAINERS][seed % 4]
    path = tmp_path / "run.yaml"
    plain = {**TRAINERS[name], "gradient_accumulation_steps": 2}

    def of(**more: Any) -> Reading:
        path.write_text(yaml.safe_dump({**plain, **more}))
        return read(path, world_size=4, format=name)

    assert of(average_tokens_across_devices=False).strategy.option("loss", "count_axes") == ("microbatch",)
    assert of(average_tokens_across_devices=True).strategy == of().strategy
    key, value = random.choice([("label_smoothing_factor", 0.1), ("neftune_noise_alpha", 5), ("use_cpu", True)])
    assert key in {item.key for item in of(**{key: value}).approximated}
    assert key not in {item.key for item in of(**{key: 0 if key != "use_cpu" else False}).approximated}
    assert "b" in of().sizes and "b" not in of(auto_find_batch_size=True).sizes
    with pytest.raises(InputError, match="an optimizer of projections"):
        of(optim_target_modules="all")


def test_an_unknown_key_of_the_section_that_holds_is_told(tmp_path: Path) -> None:
    """Of accelerate's section of the engine that runs; one of another engine's section is ignored."""
    path = tmp_path / "engine.yaml"
    said = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2, "fsdp_new_policy": "x"},
            "deepspeed_config": {"zero_new": 3}}
    path.write_text(yaml.safe_dump(said))
    found = read(path)
    assert "fsdp_config.fsdp_new_policy" in {item.key for item in found.approximated}
    assert not any("zero_new" in item.key for item in found.approximated)


MEGATRON = ("--tensor-model-parallel-size 2 --num-layers 24 --hidden-size 1024 --num-attention-heads 16 "
            "--seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 2 --global-batch-size 64 --bf16 "
            "--vocab-size 50257")
SLURM = (("srun --nodes {n} --ntasks-per-node {k} python", True),
         ("srun -N {n} --ntasks-per-node={k} python3 -u", True),
         ("srun -N{n} -n{all} python", True), ("srun --ntasks={all} --gpus-per-node={k} python", True),
         ("srun -n {all} python -u", True), ("srun --nodes {n} --gpus-per-node {k} bash -c 'python", True),
         ("srun -N{n} --gpus-per-node={k} sh -c 'torchrun --nnodes {n} --nproc_per_node $SLURM_GPUS_ON_NODE", True),
         ("srun -N {n} torchrun --nnodes {n} --nproc_per_node {k}", True), ("srun python", False))


@pytest.mark.parametrize(("launcher", "known"), SLURM)
def test_srun_says_how_many_ranks_there_are(launcher: str, known: bool) -> None:
    draw = Random(launcher)
    nodes, each = draw.choice([2, 4]), draw.choice([4, 8])
    line = launcher.format(n=nodes, k=each, all=nodes * each)
    text = f"#!/bin/bash\n{line} pretrain_gpt.py {MEGATRON}{chr(39) if chr(39) in line else ''}\n"
    sizes = reading_of(text, "job.sh", Options()).strategy.mesh.sizes()
    assert sizes == ({"dp": nodes * each // 2, "tp": 2} if known else {"tp": 2})
