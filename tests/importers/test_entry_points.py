"""Entry points: scripts that train by Megatron-LM's flags are read, all others are refused by name."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from placealg.errors import InputError
from placealg.importers.read import read, read_words
from placealg.importers.reading import Options, Reading

FLAGS = ["--tensor-model-parallel-size", "2", "--num-layers", "4", "--hidden-size", "64", "--num-attention-heads", "4",
         "--micro-batch-size", "1", "--max-position-embeddings", "32", "--bf16"]


def of_script(script: str, *more: str, form: str = "") -> Reading:
    return read_words(["torchrun", "--nproc-per-node", "4", script, *FLAGS, *more], Options(format=form))


@pytest.mark.parametrize("script", [
    "pretrain_gpt.py", "finetune.py", "examples/mixtral/pretrain_mixtral.py", "posttrain_gpt.py", "train_gpt.py",
    "/code/Megatron-DeepSpeed/pretrain_gpt.py", "megatron/training/pretrain_mcore_qwen.py"])
def test_a_script_that_trains_is_read(script: str) -> None:
    assert of_script(script).expression == "dp*tp"


@pytest.mark.parametrize(("script", "why"), [
    ("tasks/main.py", "no entry point of Megatron-LM that is known; --as megatron reads its flags"),
    ("examples/multimodal/train.py", "a network of text beside images or sound"),
    ("scripts/performance/setup_experiment.py", "a recipe of Megatron-Bridge"),
    ("tools/run_text_generation_server.py", "no entry point"), ("train.py", "no entry point"),
    ("tasks/eval_harness/evaluate.py", "no entry point"), ("pretrain_prefix_lm.py", "a whole prefix"),
    ("tools/checkpoint/convert.py", "no entry point")])
def test_a_script_of_another_kind_is_refused_by_name(script: str, why: str) -> None:
    with pytest.raises(InputError, match=f"{script} .*{why}"):
        of_script(script)


def test_an_invented_script_is_no_entry_point() -> None:
    """A drawn name is refused, and --as megatron reads its flags as the entry point's."""
    random = Random("scripts")
    known = of_script("pretrain_gpt.py")
    for _ in range(30):
        words = ["".join(random.choice("abdegiklmnorstuz") for _ in range(random.randint(3, 8))) for _ in range(2)]
        script = f"{random.choice(['', 'tools/', 'my/'])}{'_'.join(words)}.py"
        with pytest.raises(InputError, match=f"{script} is no entry point"):
            of_script(script)
        assert of_script(script, form="megatron").strategy.mesh == known.strategy.mesh


@pytest.mark.parametrize("flag", ["--model_recipe_name", "--compute_dtype", "--model-family-name"])
def test_recipes_are_refused_by_their_flags(flag: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a recipe of Megatron-Bridge in Python"):
        of_script("run.py", flag, "mine")
    path = tmp_path / "launch.sh"
    path.write_text(f"#!/bin/bash\npython run.py {flag} mine --gpu h100 --num_gpus 64\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"launch.sh:2: run.py is a recipe of Megatron-Bridge in Python"):
        read(path)


def test_a_launch_of_primus_names_its_file(tmp_path: Path) -> None:
    path = tmp_path / "launch.sh"
    path.write_text("#!/bin/bash\nexport EXP=examples/megatron/configs/llama.yaml\nbash examples/run_pretrain.sh\n",
                    encoding="utf-8")
    with pytest.raises(InputError, match="a launch of Primus, whose file decides; give examples/megatron/configs/llam"):
        read(path)


def test_what_ms_swift_runs() -> None:
    """Preferences by Megatron-LM are approximated by name; swift without Megatron-LM trains by another Trainer."""
    words = ["--tensor_model_parallel_size", "2", "--micro_batch_size", "1", "--rlhf_type", "dpo"]
    told = read_words(["megatron", "rlhf", *words], Options()).approximated
    assert any(i.key == "rlhf-type" and "another loss, and a second model" in i.text for i in told)
    with pytest.raises(InputError, match="swift sft trains by the Trainer of transformers"):
        read_words(["swift", "sft", *words], Options())
