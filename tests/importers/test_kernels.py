"""How files run attention, dropout and the loss: the model of a reading is run so, unless the command line says it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from random import Random

import pytest

from placealg.cases.case import read_case
from placealg.cost.sizing import fit
from placealg.errors import InputError
from placealg.importers.model import model_of
from placealg.importers.read import read, read_words
from placealg.importers.reading import Options, Reading
from placealg.importers.write import written
from placealg.models.model import Model

HERE = Path(__file__).parent
SIZES = ["--num-layers", "4", "--hidden-size", "64", "--num-attention-heads", "4", "--seq-length", "32",
         "--max-position-embeddings", "32", "--vocab-size", "512", "--micro-batch-size", "1",
         "--tensor-model-parallel-size", "2", "--swiglu", "--normalization", "RMSNorm", "--position-embedding-type",
         "rope", "--disable-bias-linear", "--untie-embeddings-and-output-weights"]


def of_flags(*flags: str) -> Reading:
    """The reading of a command line of a small model with these flags, in an order of no meaning."""
    return read_words(["torchrun", "--nproc-per-node", "4", "pretrain_gpt.py", *SIZES, *flags], Options())


def seen(model: Model | None) -> tuple[bool, bool, str]:
    """(attention is one op, something is dropped, how the loss is run), off the ops of a model."""
    assert model is not None
    kinds = {op.kind for op in model.graph.ops}
    dropped = "dropout" in kinds or any("dropout" in op.attrs for op in model.graph.ops)
    (loss,) = {op.attrs.get("run_as", "") for op in model.graph.ops if op.kind == "cross_entropy"}
    return "flash" in kinds, dropped, loss


def drawn(random: Random) -> tuple[list[str], tuple[bool, bool, str]]:
    """Flags of kernels, and what Megatron-LM's code does under them."""
    impl, backend = random.choice(["", "local", "transformer_engine"]), random.choice(
        ["", "auto", "flash", "fused", "unfused", "local"])
    flash, of_2021 = random.random() < 0.3, random.random() < 0.2
    fusion, te = random.random() < 0.5, random.random() < 0.5
    rate = random.choice(["", "0", "0.0", "0.1"])
    words = [["--transformer-impl", impl] * bool(impl), ["--attention-backend", backend] * bool(backend),
             ["--use-flash-attn"] * flash, ["--DDP-impl", "local"] * of_2021,
             ["--cross-entropy-loss-fusion"] * fusion, ["--cross-entropy-fusion-impl", "te"] * te,
             ["--attention-dropout", rate, "--hidden-dropout", rate] * bool(rate)]
    random.shuffle(words)
    engine = impl == "transformer_engine" or (not impl and not of_2021)
    one_op = flash or (engine and backend not in ("unfused", "local"))
    return [w for group in words for w in group], (one_op, rate not in ("0", "0.0"), "fused" if fusion and te else
                                                   "vocab_parallel")


@pytest.mark.parametrize("seed", range(40))
def test_flags_of_kernels_reach_the_model(seed: int) -> None:
    """Attention, dropout and loss of the model are those of the flags, and the page says with which options."""
    flags, want = drawn(Random(seed))
    reading = of_flags(*flags)
    assert seen(model_of(reading)) == want, flags
    words = reading.run_with.split()
    assert ("--flash" in words, "--dropout" in words, words[-1]) == want


def test_a_default_that_moved_is_that_of_the_version() -> None:
    """Layers were local up to core 0.6, and attention in them is written out."""
    words = ["torchrun", "--nproc-per-node", "4", "pretrain_gpt.py", *SIZES]
    assert read_words(words, Options(versions={"megatron": "0.6"})).runs["flash"] is False
    assert read_words(words, Options(versions={"megatron": "0.12"})).runs["flash"] is True


def test_one_rate_of_two_is_told() -> None:
    """A model has dropout everywhere here, or nowhere: a file that has it in one place is approximated by name."""
    reading = of_flags("--attention-dropout", "0")
    assert reading.runs["dropout"] is True
    assert [i.key for i in reading.approximated] == ["attention-dropout"]


BASE: Mapping[str, str] = {
    "axolotl": "base_model: meta-llama/Llama-3.1-8B\ndatasets: [{path: mine}]\nmicro_batch_size: 1\n",
    "llamafactory": "model_name_or_path: meta-llama/Llama-3.1-8B\nfinetuning_type: full\nstage: sft\n",
    "automodel": "recipe: TrainFinetuneRecipeForNextTokenPrediction\nmodel:\n  pretrained_model_name_or_path: "
                 "meta-llama/Llama-3.1-8B\nstep_scheduler: {global_batch_size: 8, local_batch_size: 1}\n"
                 "distributed: {_target_: nemo_automodel.components.distributed.fsdp2.FSDP2Manager, dp_size: 8}\n",
}
CUT = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"
WORDS = [
    ("axolotl", "flash_attention: true", "--flash"), ("axolotl", "sdp_attention: true", "--flash"),
    ("axolotl", "eager_attention: true", "--no-flash"), ("axolotl", "attn_implementation: eager", "--no-flash"),
    ("axolotl", "flash_attention: false", ""), ("axolotl", "flex_attention: true", "--flash"),
    ("axolotl", "plugins: [axolotl.integrations.liger.LigerPlugin]\nliger_fused_linear_cross_entropy: true",
     "--loss chunked"),
    ("axolotl", "plugins: [axolotl.integrations.liger.LigerPlugin]\nliger_cross_entropy: true", "--loss fused"),
    ("axolotl", "liger_rms_norm: true", ""), ("axolotl", "cut_cross_entropy: true", ""),
    ("axolotl", "liger_cross_entropy: true", ""),
    ("axolotl", f"plugins: [{CUT}]", "--loss chunked"), ("axolotl", f"plugins: [{CUT}]\ncut_cross_entropy: false", ""),
    ("axolotl", "overrides_of_model_config:\n  attention_dropout: 0.1", "--dropout"),
    ("llamafactory", "flash_attn: fa2", "--flash"), ("llamafactory", "flash_attn: disabled", "--no-flash"),
    ("llamafactory", "flash_attn: sdpa", "--flash"), ("llamafactory", "enable_liger_kernel: true", "--loss chunked"),
    ("automodel", "loss_fn: {_target_: nemo_automodel.components.loss.linear_ce.FusedLinearCrossEntropy}",
     "--loss chunked"),
    ("automodel", "loss_fn: {_target_: nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy}", ""),
]


@pytest.mark.parametrize(("form", "text", "want"), WORDS)
def test_words_of_trainers_reach_the_model(form: str, text: str, want: str, tmp_path: Path) -> None:
    """A word of a trainer is an option of the model, and is in one of the lists that say so."""
    path = tmp_path / "train.yaml"
    path.write_text(BASE[form] + text + "\n", encoding="utf-8")
    reading = read(path)
    assert reading.run_with == want
    told = [i for i in (*reading.read, *reading.approximated) if want and want in i.text]
    assert bool(told) == bool(want)
    model = model_of(reading)
    if want and model is not None:
        one_op, dropped, loss = seen(model)
        assert {"--flash": one_op, "--no-flash": not one_op, "--dropout": dropped}.get(want, want == f"--loss {loss}")


def test_the_command_line_goes_before_the_file(tmp_path: Path) -> None:
    """What a user says of attention, dropout and loss holds; what she does not say is the file's, on any model."""
    path = tmp_path / "train.sh"
    path.write_text("torchrun --nproc-per-node 4 pretrain_gpt.py " + " ".join(
        [*SIZES, "--attention-backend unfused"]) + "\n", encoding="utf-8")
    assert seen(read_case(str(path), None, ()).model) == (False, True, "vocab_parallel")
    said = read_case(str(path), None, (), flash=True, dropout=False, loss="fused").model
    assert seen(said) == (True, False, "fused")
    assert seen(read_case(str(path), "llama-3-8b", (), dropout=False).model) == (False, False, "vocab_parallel")


def test_gpt3_of_nemo_fits_as_its_file_runs_it() -> None:
    """GPT-3 175B on 128 devices of 80 GB, which NVIDIA ran so: it fits with the file's kernels, and not without."""
    path = str(HERE / "miniatures" / "nemo" / "gpt3_175b.yaml")
    for options, want in (({}, True), ({"flash": False, "dropout": True}, False)):
        case = read_case(path, None, (), **options)  # type: ignore[arg-type]
        found = fit(case.step, case.strategy, case.model, Fraction(80 * 10**9), case.sizes)
        assert all(one.fits for one in found) is want


ROUND = {"run.yaml": ("model_name_or_path: meta-llama/Llama-3.1-8B\ndataset_name: mine\n"
                      "attn_implementation: {0}\nloss_type: {1}\n", ("eager", "sdpa"), ("chunked_nll", "nll")),
         "run.sh": ("torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 64 --bf16 "
                    "--num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 --micro-batch-size 1 {0} "
                    "--cross-entropy-loss-fusion {1}\n",
                    ("--use-flash-attn", "--transformer-impl local --attention-dropout 0.1"),
                    ("--cross-entropy-fusion-impl native", "--cross-entropy-fusion-impl te"))}


@pytest.mark.parametrize(("file", "attention", "loss"), [
    (file, a, b) for file, (_, attentions, losses) in ROUND.items() for a in attentions for b in losses])
def test_a_written_file_means_the_same(tmp_path: Path, file: str, attention: str, loss: str) -> None:
    """Attention, dropout and the loss stand in what `import -o` writes; the command line goes before it."""
    source, target = tmp_path / file, tmp_path / "written.toml"
    source.write_text(ROUND[file][0].format(attention, loss), encoding="utf-8")
    target.write_text(written(read(source)), encoding="utf-8")
    for said in ({}, {"flash": False, "loss": "eager"}, {"dropout": True}):
        for model in ("llama-3-8b", "gpt2"):
            one, two = (read_case(str(path), model, (), **said).model for path in (source, target))
            assert one.graph == two.graph, (said, model)


@pytest.mark.parametrize(("runs", "message"), [
    ("{ flsh = true }", "runs has no 'flsh'; did you mean 'flash'?"), ("{ flash = 1 }", "expected true or false"),
    ("{ loss = true }", "expected a word"), ('"flash"', "expected a table"), ('{ loss = "chunk" }', "chunk"),
])
def test_runs_of_a_file_are_checked(tmp_path: Path, runs: str, message: str) -> None:
    file = tmp_path / "s.toml"
    file.write_text(f'base = "zero3"\nruns = {runs}\n', encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(message)):
        read_case(str(file), "gpt", ())
