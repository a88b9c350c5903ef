"""Training scripts of frameworks, unchanged, held against the strategies that they are asked to run: `make watch`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Outcome
from framework_table import DEEPSPEED, MEGATRON, TITAN

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
FOLDER = Path(__file__).parent / "frameworks"
MODEL = str(FOLDER / "llama.json")
Run = Callable[..., Outcome]


def watched(placealg: Run, strategy: str, mesh: str, script: str, *words: str, shims: tuple[str, ...] = (),
            model: str = "llama.json", single: str = "") -> tuple[int, dict[str, Any]]:
    """(exit code, the verdict as JSON) of a script of frameworks/; `single` are the words of its single device."""
    if strategy.endswith(".toml"):
        strategy = str(FOLDER / strategy)
    got = placealg("watch", strategy, "--mesh", mesh, "--model", str(FOLDER / model), "--format", "json", "--no-timing",
                   "--limit", "500", *(w for s in shims for w in ("--shim", s)),
                   *(("--single", f"{FOLDER / script} {single}") if single else ()), "--", str(FOLDER / script), *words)
    assert not got.err, got.err
    return got.code, json.loads(got.out)


def test_the_trainer_of_transformers_is_data_parallel(placealg: Run) -> None:
    code, told = watched(placealg, "dp", "dp=2", "hf_trainer.py")
    assert code == 0 and told["verdict"] == "CONFORMS", told["differences"]
    assert "the loss divides by the tokens of all ranks" in told["read_off"]


def test_fsdp_that_is_asked_for_on_a_cpu_is_data_parallel(placealg: Run) -> None:
    """accelerate runs DDP where FSDP2 was asked for and there is no accelerator; it says nothing of it."""
    code, told = watched(placealg, "zero3", "dp=2", "hf_trainer.py", "--fsdp")
    assert code == 1 and told["verdict"] == "DIFFERS"
    kinds = {d["kind"] for d in told["differences"]}
    assert {"whole or scattered", "gathers"} <= kinds
    code, told = watched(placealg, "dp", "dp=2", "hf_trainer.py", "--fsdp")
    assert code == 0 and told["verdict"] == "CONFORMS"


def ratio(told: dict[str, Any]) -> str:
    """The ratio that the proof prints of the program that ran."""
    assert told["edited"]["verdict"] == "REFUTED", told["gap"]
    return str(told["edited"]["counterexample"]["mass"])


@pytest.mark.parametrize("model", ["llama.json", "qwen3.json"])
def test_a_plan_of_transformers_is_tensor_parallel(model: str, placealg: Run) -> None:
    code, told = watched(placealg, "hf_tp.toml", "tp=2", "hf_tp.py", model, model=model)
    assert code == 0 and told["verdict"] == "CONFORMS", told["differences"]
    code, told = watched(placealg, "hf_tp.toml", "tp=2", "hf_tp.py", model, "--norms", model=model)
    assert code == 1 and ratio(told) == "tp"


def test_norms_of_heads_that_the_plan_leaves_out(placealg: Run) -> None:
    """Each rank sees its own heads: without its entries in the plan a norm's gradient is a part of it."""
    code, told = watched(placealg, "hf_tp.toml", "tp=2", "hf_tp.py", "qwen3.json", "--heads", model="qwen3.json")
    assert code == 1 and ratio(told) == "1/tp"


def test_norms_of_heads_are_reduced_again_in_every_microbatch(placealg: Run) -> None:
    """What `replicated_with_grad_allreduce` reduces in every backward is the sum so far, which was reduced before."""
    code, told = watched(placealg, "hf_tp.toml", "tp=2", "hf_tp.py", "qwen3.json", "--twice", model="qwen3.json")
    assert code == 1 and told["edited"]["verdict"] == "REFUTED", told["gap"]
    assert {d["kind"] for d in told["differences"]} == {"axes"} and all("_norm" in n for d in told["differences"]
                                                                       for n in d["parameters"])
    assert "tensor_parallel.py" in told["differences"][0]["line"]


@pytest.mark.parametrize(("strategy", "dp", "tp"), [("titan.toml", 2, 1), ("tp_sp_keep", 1, 2),
                                                    ("titan_tp.toml", 2, 2)])
def test_torchtitan_sums_what_its_loss_has_divided(strategy: str, dp: int, tp: int, placealg: Run) -> None:
    """Its loss divides by the tokens of all ranks; a loss of its own around it would be wrong by dp."""
    mesh = ",".join(f"{a}={n}" for a, n in (("dp", dp), ("tp", tp)) if n > 1)
    code, told = watched(placealg, strategy, mesh, "titan.py", str(dp), str(tp), shims=TITAN, single=one(dp))
    assert code == 0 and told["verdict"] == "CONFORMS", (told["differences"], told["single_device"])
    assert set(TITAN) < set(told["shims"])  # and that what is compiled ran as it was written


def one(dp: int) -> str:
    """The words of torchtitan's and Megatron-Core's scripts on one device, which reads what `dp` ranks read."""
    return "1 1" + (f" --together={dp}" if dp > 1 else "")


def test_torchtitan_that_averages_as_well(placealg: Run) -> None:
    code, told = watched(placealg, "titan.toml", "dp=2", "titan.py", "2", "1", "--mean", shims=TITAN, single=one(2))
    assert code == 1 and ratio(told) == "1/dp" and told["single_device"]["verdict"] == "DIFFERS"


@pytest.mark.parametrize(("strategy", "dp", "tp"), [("dp", 2, 1), ("tp_sp", 1, 2), ("dp*tp_sp", 2, 2)])
def test_megatron_core_is_what_its_program_says(strategy: str, dp: int, tp: int, placealg: Run) -> None:
    """GPTModel, DistributedDataParallel, finalize_model_grads, and the optimizer, without clipping.

    Of tensor parallel weights it draws others on each rank than on one device: attributes locate them.
    """
    mesh = ",".join(f"{a}={n}" for a, n in (("dp", dp), ("tp", tp)) if n > 1)
    code, told = watched(placealg, strategy, mesh, "megatron_gpt.py", str(dp), str(tp), shims=MEGATRON, single=one(dp))
    assert code == 0 and told["verdict"] == "CONFORMS", (told["differences"], told["single_device"])


def test_megatron_core_with_norms_that_are_not_marked(placealg: Run) -> None:
    """finalize_model_grads reduces over tp what is marked `sequence_parallel`, and nothing else."""
    code, told = watched(placealg, "dp*tp_sp", "dp=2,tp=2", "megatron_gpt.py", "2", "2", "--norms", shims=MEGATRON,
                         single=one(2))
    assert code == 1 and ratio(told) == "1/tp" and told["single_device"]["verdict"] == "DIFFERS"


def test_megatron_core_has_no_distributed_optimizer_on_a_cpu(placealg: Run) -> None:
    got = placealg("watch", "zero1", "--mesh", "dp=2", "--model", MODEL, "--", str(FOLDER / "megatron_gpt.py"), "2",
                   "1", "--distributed")
    assert got.code == 3 and got.err.count("\n") == 1
    assert "Wrapped parameters must be one of torch.cuda.FloatTensor" in got.err


@pytest.mark.parametrize(("strategy", "stage"), [("deepspeed_1.toml", "1"), ("zero3", "3")])
def test_deepspeed_trains_flat_copies_of_its_own(strategy: str, stage: str, placealg: Run) -> None:
    """What its optimizer updates are copies of what each rank owns: parts and copies are known by their elements."""
    code, told = watched(placealg, strategy, "dp=2", "deepspeed_zero.py", stage, shims=DEEPSPEED,
                         single=f"{stage} --together=2")
    assert code == 0 and told["verdict"] == "CONFORMS", (told["differences"], told["unseen"], told["single_device"])
    assert set(DEEPSPEED) <= set(told["shims"]) and told["gradient_paths"] == {"matched": 42, "of": 42}


@pytest.mark.parametrize(("strategy", "stage", "fault", "mass"), [
    ("deepspeed_1.toml", "1", "--twice", "m"), ("deepspeed_1.toml", "1", "--unpublished", None),
    ("zero3", "3", "--twice", "m"), ("zero3", "3", "--norm", "1/dp")])
def test_deepspeed_with_a_fault(strategy: str, stage: str, fault: str, mass: str | None, placealg: Run) -> None:
    code, told = watched(placealg, strategy, "dp=2", "deepspeed_zero.py", stage, fault, shims=DEEPSPEED,
                         single=f"{stage} --together=2")
    assert code == 1 and told["edited"]["verdict"] == "REFUTED", (told["gap"], told["unseen"])
    assert told["single_device"]["verdict"] == "DIFFERS"
    assert mass is None or told["edited"]["counterexample"]["mass"] == mass
