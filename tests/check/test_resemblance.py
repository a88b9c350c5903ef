"""Which known bug a refuted program resembles: found under other names, never where there is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Outcome

from placealg.cases.case import read_case
from placealg.check.resemblance import Likeness, likeness
from placealg.cli.bug_files import path_of
from placealg.cli.resemblance import bugs

Run = Callable[..., Outcome]


def of(tmp_path: Path, obligation: str, text: str) -> Likeness:
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    case = read_case(str(tmp_path / "mine.toml"), None, [])
    return likeness(obligation, case.strategy, case.step, case.base)


def bug(name: str) -> Likeness:
    case = read_case(str(path_of(name)), None, [])
    assert case.expect
    return likeness(case.expect.obligation, case.strategy, case.step, case.base)


NORM = 'base = "zero2[fsdp]*tp_sp[model]"\nedit = [{ drop = "reduce.head.weight.grad_sum.reduce[model]" }]\n'
ALIKE = [
    ("gradient", NORM, "megatron_1446"),
    ("gradient", 'base = "dp[fsdp]"\nedit = [{ double = "reduce.*.reduce[fsdp]" }]\nloss = { preset = "token_mean" }',
     "megatron_775"),
    ("update", 'base = "zero1"\nedit = [{ drop = "update.norm.all_reduce[dp]" }]', "areal_312"),
    ("random", 'base = "dp*tp_sp[t]"\nrandom = { dropout = ["local(seq)"] }', "pytorch_168058"),
    ("partition", 'base = "zero1*pp[rows]"\n[[edit]]\nset = "*.embedding.weight.*"\nlayout = "cut(rows)"',
     "megatron_844"),
]
UNLIKE = [
    ("gradient", 'base = "dp"', "megatron_1446"),
    ("update", NORM, "megatron_1446"),
    ("gradient", 'base = "tp_sp"\nedit = [{ set = "reduce.head.*.reduce[tp]", op = "mean" }]', "megatron_1446"),
    ("gradient", 'base = "dp"\nedit = [{ drop = "reduce.layer.weight.grad_sum.reduce[dp]" }]', "megatron_1446"),
    ("gradient", 'base = "dp"\nedit = [{ move = "reduce.*.reduce[dp]", before = "backward.*.grad_sum.accumulate" }]',
     "funasr_3472"),
    ("gradient", 'base = "hsdp"\nedit = [{ drop = "reduce.layer.weight.grad_sum.reduce[dp_replicate]" }]',
     "mmdetection_2539"),
]


@pytest.mark.parametrize(("obligation", "text", "name"), ALIKE, ids=lambda x: x if "_" in x else "")
def test_alike_under_other_names(obligation: str, text: str, name: str, tmp_path: Path) -> None:
    assert of(tmp_path, obligation, text).resembles(bug(name))


@pytest.mark.parametrize(("obligation", "text", "name"), UNLIKE)
def test_other_obligations_operators_axes_and_times_are_unlike(obligation: str, text: str, name: str,
                                                               tmp_path: Path) -> None:
    assert not of(tmp_path, obligation, text).resembles(bug(name))


def test_of_equal_marks_the_closest_placement_and_group_count(tmp_path: Path) -> None:
    mine, head, layer = of(tmp_path, "gradient", NORM), bug("megatron_1446"), bug("gpt_neox_1257")
    assert mine.resembles(head) and mine.resembles(layer)
    assert mine.closeness(head) > mine.closeness(layer)


def test_bugs_of_one_obligation_are_read(tmp_path: Path) -> None:
    found = [name for _, name, _ in bugs("random")]
    assert found == ["megatron_deepspeed_276", "pytorch_168058"]


@pytest.mark.some(3)
@pytest.mark.parametrize(("text", "name", "what"), [
    ('base = "zero1[fsdp]"\n[[edit]]\ndrop = "update.norm.all_reduce[fsdp]"\n', "areal_312",
     "clipped by the norm of the local shard"),
    (NORM, "megatron_1446", "the final norm not summed over tp"),
    ('base = "dp[rows]"\nmodel = "statistics"\n[[edit]]\ndrop = "reduce.layer.running.grad_sum.reduce[rows]"\n',
     "mmdetection_2539", "each rank keeps statistics of its own tokens"),
])
def test_prove_names_the_bug(text: str, name: str, what: str, tmp_path: Path, placealg: Run) -> None:
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    got = placealg("prove", str(tmp_path / "mine.toml"))
    assert (got.code, got.err) == (1, "")
    assert f"resembles {name}: {what}" in " ".join(got.out.split())
    document = json.loads(placealg("prove", str(tmp_path / "mine.toml"), "--format", "json").out)
    assert document["resembles"] == name


@pytest.mark.parametrize("text", [
    'base = "zero1"\n[[edit]]\ndrop = "publish.layer.weight.publish[dp]"\n',
    'base = "zero1"\nsource = "the report itself"\n[[edit]]\ndrop = "update.norm.all_reduce[dp]"\n',
    'base = "zero1"\n',
], ids=["like none", "a report of its own", "proved"])
def test_no_bug_is_named_where_there_is_none(text: str, tmp_path: Path, placealg: Run) -> None:
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    got = placealg("prove", str(tmp_path / "mine.toml"), "--format", "json")
    assert "resembles" not in json.loads(got.out)
