"""Training scripts of frameworks, unchanged, held against the strategies that they are asked to run: `make watch`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
            model: str = "llama.json") -> tuple[int, dict[str, Any]]:
    """(exit code, the verdict as JSON) of a script of frameworks/."""
    if strategy.endswith(".toml"):
        strategy = str(FOLDER / strategy)
    got = placealg("watch", strategy, "--mesh", mesh, "--model", str(FOLDER / model), "--format", "json", "--no-timing",
                   "--limit", "500", *(w for s in shims for w in ("--shim", s)), "--", str(FOLDER / script), *words)
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


@pytest.mark.parametrize(("strategy", "code"), [("dp", 0), ("zero3", 1)])
def test_a_callback_records_a_step_of_a_trainer(strategy: str, code: int) -> None:
    """With `strict` a run that is not the strategy's ends in an AssertionError that has the page."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                           str(FOLDER / "hf_trainer.py"), "--callback", strategy], env=env, capture_output=True,
                          text=True, timeout=300, check=False)
    assert done.returncode == code, done.stderr[-2000:]
    assert f"the Trainer RUNS AS {strategy} on llama  {'DIFFERS' if code else 'CONFORMS'}" in done.stdout
    assert ("AssertionError: the Trainer RUNS AS" in done.stderr) == bool(code)


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
    code, told = watched(placealg, strategy, mesh, "titan.py", str(dp), str(tp), shims=TITAN)
    assert code == 0 and told["verdict"] == "CONFORMS", told["differences"]
    assert told["shims"] == list(TITAN)


def test_torchtitan_that_averages_as_well(placealg: Run) -> None:
    code, told = watched(placealg, "titan.toml", "dp=2", "titan.py", "2", "1", "--mean", shims=TITAN)
    assert code == 1 and ratio(told) == "1/dp"


@pytest.mark.parametrize(("strategy", "dp", "tp"), [("dp", 2, 1), ("dp*tp_sp", 2, 2)])
def test_megatron_core_is_what_its_program_says(strategy: str, dp: int, tp: int, placealg: Run) -> None:
    """GPTModel, DistributedDataParallel, finalize_model_grads, and the optimizer, without clipping."""
    mesh = ",".join(f"{a}={n}" for a, n in (("dp", dp), ("tp", tp)) if n > 1)
    code, told = watched(placealg, strategy, mesh, "megatron_gpt.py", str(dp), str(tp), shims=MEGATRON)
    assert code == 0 and told["verdict"] == "CONFORMS", told["differences"]


def test_megatron_core_with_norms_that_are_not_marked(placealg: Run) -> None:
    """finalize_model_grads reduces over tp what is marked `sequence_parallel`, and nothing else."""
    code, told = watched(placealg, "dp*tp_sp", "dp=2,tp=2", "megatron_gpt.py", "2", "2", "--norms", shims=MEGATRON)
    assert code == 1 and ratio(told) == "1/tp"


def test_megatron_core_has_no_distributed_optimizer_on_a_cpu(placealg: Run) -> None:
    got = placealg("watch", "zero1", "--mesh", "dp=2", "--model", MODEL, "--", str(FOLDER / "megatron_gpt.py"), "2",
                   "1", "--distributed")
    assert got.code == 3 and got.err.count("\n") == 1
    assert "Wrapped parameters must be one of torch.cuda.FloatTensor" in got.err


@pytest.mark.parametrize(("strategy", "stage"), [("deepspeed_1.toml", "1"), ("zero3", "3")])
def test_deepspeed_trains_flat_copies_of_its_own(strategy: str, stage: str, placealg: Run) -> None:
    """What its optimizer updates are copies of what each rank owns: they are followed element by element."""
    code, told = watched(placealg, strategy, "dp=2", "deepspeed_zero.py", stage, shims=DEEPSPEED)
    assert code == 0 and told["verdict"] == "CONFORMS", (told["differences"], told["unseen"])
    assert told["shims"] == list(DEEPSPEED) and told["gradient_paths"] == {"matched": 42, "of": 42}


@pytest.mark.parametrize(("strategy", "stage", "fault", "mass"), [
    ("deepspeed_1.toml", "1", "--twice", "m"), ("deepspeed_1.toml", "1", "--unpublished", None),
    ("zero3", "3", "--twice", "m"), ("zero3", "3", "--norm", "1/dp")])
def test_deepspeed_with_a_fault(strategy: str, stage: str, fault: str, mass: str | None, placealg: Run) -> None:
    code, told = watched(placealg, strategy, "dp=2", "deepspeed_zero.py", stage, fault, shims=DEEPSPEED)
    assert code == 1 and told["edited"]["verdict"] == "REFUTED", (told["gap"], told["unseen"])
    assert mass is None or told["edited"]["counterexample"]["mass"] == mass


@pytest.mark.parametrize(("stage", "fault", "verdict"), [
    ("1", "", "CONFORMS"), ("3", "", "CONFORMS"), ("1", "--unpublished", "DIFFERS"), ("3", "--twice", "DIFFERS"),
    ("3", "--norm", "DIFFERS")])
def test_deepspeed_beside_its_own_script_on_one_device(stage: str, fault: str, verdict: str, placealg: Run) -> None:
    """Parts that ZeRO-3 splits, and copies that both update, are known by which elements they are."""
    script = str(FOLDER / "deepspeed_zero.py")
    got = placealg("watch", "--mesh", "dp=2", "--single", f"{script} {stage} --together=2", "--model", MODEL,
                   "--format", "json", "--limit", "500", "--", script, stage, *filter(None, [fault]))
    assert json.loads(got.out)["single_device"]["verdict"] == verdict


@pytest.mark.parametrize(("mesh", "script", "words", "verdict"), [
    ("dp=2", "titan.py", ("2", "1"), "CONFORMS"), ("tp=2", "titan.py", ("1", "2"), "CONFORMS"),
    ("dp=2,tp=2", "titan.py", ("2", "2"), "CONFORMS"), ("dp=2", "titan.py", ("2", "1", "--mean"), "DIFFERS"),
    ("dp=2", "megatron_gpt.py", ("2", "1"), "CONFORMS"), ("tp=2", "megatron_gpt.py", ("1", "2"), "CONFORMS"),
    ("dp=2,tp=2", "megatron_gpt.py", ("2", "2"), "CONFORMS"),
    ("dp=2,tp=2", "megatron_gpt.py", ("2", "2", "--norms"), "DIFFERS")])
def test_a_framework_beside_its_own_script_on_one_device(mesh: str, script: str, words: tuple[str, ...], verdict: str,
                                                         placealg: Run) -> None:
    """Of tensor parallel weights Megatron-Core draws others on each rank than on one device: attributes locate them."""
    together = f" --together={words[0]}" if words[0] != "1" else ""
    got = placealg("watch", "--mesh", mesh, "--single", f"{FOLDER / script} 1 1{together}", "--format", "json",
                   "--limit", "500", "--", str(FOLDER / script), *words)
    told = json.loads(got.out)
    assert told["verdict"] == verdict, told
    assert told["single_device"]["beside"] and (got.code == 0) is (verdict == "CONFORMS")
