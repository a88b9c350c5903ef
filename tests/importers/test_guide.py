"""docs/import.md is the code's tables; what it says beside the frameworks' estimators is derived."""

from __future__ import annotations

from fractions import Fraction

import pytest
from conftest import ROOT

import placealg as pa
from placealg.importers.guide import guide
from placealg.importers.read import READERS, read, read_words, reader_of, reading_of
from placealg.importers.reading import Options, Reading
from placealg.importers.tables import formats, table
from placealg.models.config import resolve_model
from placealg.render.reading import reading_page
from placealg.render.text_layout import plain
from placealg.strategy.precision import precisions

MINIATURES = ROOT / "tests" / "importers" / "miniatures"


def test_the_page_is_the_code_s() -> None:
    """`python -m placealg.importers.guide > docs/import.md` writes it."""
    assert (ROOT / "docs" / "import.md").read_text(encoding="utf-8") == guide()


def test_every_format_has_a_reader_and_sources() -> None:
    assert set(formats()) <= set(READERS)
    for name in READERS:
        assert callable(reader_of(name))
    for name in formats():
        form = table(name)
        assert form.source and form.detect and form.newest
        assert [k for k, row in form.keys.items() if not row.effect or not row.source] == []
        assert [k for k, row in form.keys.items() for m in row.moved if not m.source or not m.until] == []
    assert all(row.source and row.types for row in precisions().values())


def accelerate() -> Reading:
    return reading_of("distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\nfsdp_config:\n"
                      "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n", "a.yaml", Options())


def deepspeed(stage: int) -> Reading:
    return reading_of(f'{{"zero_optimization": {{"stage": {stage}}}, "bf16": {{"enabled": true}}}}', "d.json",
                      Options(world_size=8))


def megatron(*flags: str) -> Reading:
    return read_words(["torchrun", "--nproc_per_node", "8", "pretrain_gpt.py", "--num-layers", "2", "--hidden-size",
                       "8", "--micro-batch-size", "1", "--bf16", *flags], Options())


def nanotron() -> Reading:
    return reading_of("parallelism: {dp: 8, tp: 1, pp: 1}\ntokens: {micro_batch_size: 1}\noptimizer: {zero_stage: 1}\n",
                      "n.yaml", Options())


def llamafactory(more: str) -> Reading:
    return reading_of(f"model_name_or_path: meta-llama/Llama-3.1-8B\nstage: sft\n{more}\n", "l.yaml",
                      Options(world_size=8))


def torchtitan() -> Reading:
    return reading_of("[model]\nname = 'llama3'\nflavor = '8B'\n[parallelism]\ndata_parallel_shard_degree = 8\n",
                      "t.toml", Options())


@pytest.mark.parametrize(("reading", "here"), [
    (lambda: deepspeed(2), 2 + Fraction(14, 8)), (lambda: deepspeed(3), Fraction(16, 8)),
    (accelerate, Fraction(4, 8) + 2 + Fraction(8, 8)),
    (lambda: megatron("--use-distributed-optimizer"), 6 + Fraction(12, 8)), (lambda: megatron(), Fraction(18)),
    (lambda: llamafactory("finetuning_type: full\nbf16: true\ndisable_gradient_checkpointing: true"), Fraction(16)),
    (lambda: llamafactory("finetuning_type: full\npure_bf16: true\ndisable_gradient_checkpointing: true"), Fraction(8)),
    (nanotron, 6 + Fraction(12, 8)), (torchtitan, Fraction(16, 8)),
])
def test_bytes_beside_the_estimators_are_derived(reading: object, here: Fraction) -> None:
    found = reading()  # type: ignore[operator]
    memory = pa.memory(found.strategy, pa.abstract())
    types = {k: Fraction(v) for k, v in found.strategy.tables["types"].items()}
    value = memory.states.value(Psi=10**6, Psi_unit=10**5, dp=8, **types)
    assert Fraction(value) / 10**6 == here


@pytest.mark.parametrize(("more", "here"), [("", "2.04"), ("quantization_bit: 4\n", "0.74")])
def test_bytes_of_adapters_are_derived(more: str, here: str) -> None:
    found = llamafactory(f"finetuning_type: lora\nbf16: true\n{more}")
    model = resolve_model(str(found.model))
    per = pa.memory(found.strategy, model).states.value(dp=8) / model.total()
    assert f"{float(per):.2f}" == here and f"| {here} |" in guide().replace("2 + 16·0.0026 = ", "")


@pytest.mark.parametrize("width", [40, 60, 79, 80, 120])
def test_a_page_is_as_wide_as_its_terminal(width: int) -> None:
    for name in ("deepspeed/zero3_offload.json", "primus/experiment.yaml"):
        page = [plain(text) for text in reading_page(read(MINIATURES / name), width, long=True)]
        assert max(map(len, page)) <= width
