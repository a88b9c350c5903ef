"""Keys that no table names: of every format and every kind, those that bear on the program are never passed over."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

from placealg.errors import InputError
from placealg.importers.detect import parsed
from placealg.importers.document import Document
from placealg.importers.read import read_words, reader_of
from placealg.importers.reading import Options, Reading

HERE = Path(__file__).parent / "miniatures"
PLACES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "deepspeed/zero3_offload.json": ("deepspeed", ()), "accelerate/fsdp2_mesh.yaml": ("accelerate", ()),
    "axolotl/fsdp_cp.yaml": ("axolotl", ()), "llamafactory/full.yaml": ("llamafactory", ()),
    "trl/sft.yaml": ("trl", ()),
    "torchtitan/four_axes.toml": ("torchtitan", ("training",)), "nanotron/all_axes.yaml": ("nanotron", ("model",)),
    "nemo/gpt.yaml": ("nemo", ("model",)), "automodel/fsdp2.yaml": ("automodel", ("model",)),
    "levanter/qwen3.yaml": ("levanter", ("trainer",)),
    "maxtext/two_levels.sh": ("maxtext", ()),
    "primus/experiment.yaml": ("primus", ("modules", "pre_trainer", "overrides")),
    "megatron/flags.yaml": ("megatron", ("MODEL_ARGS",)), "bridge/run_config.yaml": ("megatron_bridge", ("model",)),
    "flagscale/train/small.yaml": ("flagscale", ("model",)),
}
"""A small configuration of each format that has keys -> the format, and a section in which they stand."""

BEARING = ("asft_loss", "label_smoothing_rate", "kl_weight", "freeze_first_layers", "frozen_embedding", "lisa_blocks",
           "qat_bits", "quantise_base", "int8_base", "ref_model_path", "reward_model_name", "teacher_checkpoint_path",
           "vision_tower", "audio_encoder_path", "video_frames", "lora_plus_branch", "dora_scale", "ia3_vectors",
           "mcore_backend", "colossalai_plugin", "diffusion_steps", "ebft_step", "num_labels", "useRewardModel",
           "eaft_k", "output_router_logits", "onebitllms", "nvfp4_merge", "kt_weights")
"""What a key may be called that changes network, loss, program or bytes; words before and behind are drawn."""

IDLE = ("fused_bias_kernel", "triton_autotune", "cudnn_benchmark", "log_every", "wandb_entity", "report_names",
        "plot_curves", "swanlab_mode", "eval_pause", "save_best", "log_loss_details", "check_loss")
"""What a key of kernels, logs and evaluation may be called."""


def holding(document: Document, place: tuple[str, ...], key: str, value: Any) -> Document:
    """The document with one key more."""
    def within(data: Any, path: tuple[str, ...]) -> Any:
        inner = data if isinstance(data, Mapping) else {}
        if not path:
            return {**inner, key: value}
        return {**inner, path[0]: within(inner.get(path[0]), path[1:])}

    return replace(document, data=within(document.data, place))


@cache
def small(path: str) -> Document:
    """A small configuration; of a script of MaxText its words KEY=VALUE."""
    text = (HERE / path).read_text(encoding="utf-8")
    if path.startswith("maxtext"):
        words = dict(found.split("=") for found in re.findall(r"(?<=\s)[a-z_]+=\w[\w.-]*", text))
        return Document(path, words, {}, text)
    return parsed(text, str(HERE / path))[1]


def read_with(path: str, *more: tuple[str, Any]) -> Reading:
    """The reading of a small configuration, with a key more where one is given."""
    form, place = PLACES[path]
    document = small(path)
    for key, value in more:
        document = holding(document, place, key, value)
    return reader_of(form)(document, Options())


def told(reading: Reading, key: str) -> bool:
    """Whether a key is approximated by name."""
    plain = key.replace("_", "-")
    return any(i.key.rpartition(".")[2].replace("_", "-") == plain for i in reading.approximated)


def invented(random: Random, stem: str) -> str:
    """A key around a stem, as people call them."""
    front = random.choice(["", "use_", "my_", "enable_", "extra_"])
    behind = random.choice(["", "_name", "_v2", "_mode"])
    return f"{front}{stem}{behind}"


@pytest.mark.parametrize("path", PLACES)
@pytest.mark.parametrize("seed", range(2))
def test_what_bears_on_the_program_is_told_or_refused(path: str, seed: int) -> None:
    """Each kind, under a drawn name, with a value that turns it on, is approximated by name or refused."""
    random = Random(f"{path} {seed}")
    for stem in random.sample(BEARING, 6):
        key = invented(random, stem)
        try:
            reading = read_with(path, (key, random.choice([True, "mine", 4])))
        except InputError as error:
            assert key.replace("_", "-") in str(error).replace("_", "-")
            continue
        assert told(reading, key), key


@pytest.mark.parametrize("path", PLACES)
def test_what_is_off_or_idle_changes_nothing(path: str) -> None:
    """A key of kernels or logs, and one that is off, leaves the reading as it is, and is ignored by name."""
    random = Random(path)
    bare = read_with(path)
    cases = [(invented(random, stem), random.choice([True, "mine", 4])) for stem in IDLE]
    cases += [(invented(random, stem), random.choice([False, "0.0", 0, "none"])) for stem in BEARING]
    reading = read_with(path, *cases)
    assert (reading.strategy, reading.runs) == (bare.strategy, bare.runs)
    assert [i.text for i in reading.approximated] == [i.text for i in bare.approximated]
    ignored = {i.key.rpartition(".")[2].replace("_", "-") for i in reading.ignored}
    assert ignored >= {key.replace("_", "-") for key, _ in cases}


QUOTED = [
    ("axolotl/fsdp_cp.yaml", "reward_model", True), ("axolotl/fsdp_cp.yaml", "diffusion", {"steps": 4}),
    ("axolotl/fsdp_cp.yaml", "qat", {"weight_dtype": "int8"}), ("axolotl/fsdp_cp.yaml", "gptq", True),
    ("axolotl/fsdp_cp.yaml", "overrides_of_model_config", {"num_hidden_layers": 4}),
    ("axolotl/fsdp_cp.yaml", "resize_token_embeddings_to_32x", True), ("llamafactory/full.yaml", "resize_vocab", True),
    ("axolotl/fsdp_cp.yaml", "lisa_n_layers", 4), ("axolotl/fsdp_cp.yaml", "ebft", {"strength": 2}),
    *(("llamafactory/full.yaml", key, True) for key in (
        "use_asft_loss", "use_eaft_loss", "use_dft_loss", "use_distributed_optimizer")),
    ("axolotl/fsdp_cp.yaml", "quantize_moe_experts", True), ("axolotl/fsdp_cp.yaml", "use_eaft", True),
    ("axolotl/fsdp_cp.yaml", "use_onebitllms", True), ("llamafactory/full.yaml", "use_kt", True),
    ("llamafactory/full.yaml", "moe_aux_loss_coef", 0.01),
    ("axolotl/fsdp_cp.yaml", "model_config", {"output_router_logits": True}),
    ("llamafactory/full.yaml", "ref_model", "mine"), ("llamafactory/full.yaml", "reward_model_adapters", "mine"),
    ("llamafactory/full.yaml", "label_smoothing_factor", 0.1), ("levanter/qwen3.yaml", "z_loss_weight", 1e-4),
]


@pytest.mark.parametrize(("path", "key", "value"), QUOTED)
def test_keys_that_were_passed_over(path: str, key: str, value: Any) -> None:
    try:
        reading = read_with(path, (key, value))
        assert told(reading, key) or any(told(reading, inner) for inner in (value if isinstance(value, dict) else ()))
    except InputError as error:
        assert key in str(error)


def test_the_reference_model_of_slime_is_told() -> None:
    """A reference model, its divergence in the loss, and the loss of a policy are named; what is 0 is not."""
    words = ["python3", "train.py", "--actor-num-nodes", "1", "--actor-num-gpus-per-node", "8", "--num-layers", "2",
             "--hidden-size", "64", "--num-attention-heads", "4", "--micro-batch-size", "1",
             "--tensor-model-parallel-size", "2", "--ref-load", "mine"]
    on = read_words([*words, "--use-kl-loss", "--kl-coef", "0.00"], Options())
    assert [i.key for i in on.approximated if i.key.endswith(("load", "loss", "coef", "type"))] == [
        "loss-type", "ref-load", "use-kl-loss"]
    sft = read_words([*words[:-2], "--loss-type", "sft_loss"], Options())
    assert not [i.key for i in sft.approximated if "loss" in i.key]


@pytest.mark.parametrize(("path", "key", "value"), [("llamafactory/full.yaml", "use_unsloth_gc", True),
                                                    ("axolotl/fsdp_cp.yaml", "gradient_checkpointing", "unsloth")])
def test_checkpoints_of_unsloth_rest_on_the_host(path: str, key: str, value: Any) -> None:
    assert read_with(path, (key, value)).expression.endswith("recompute_full*offload_activations")
