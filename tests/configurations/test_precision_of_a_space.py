"""A search with the bytes per element of an engine: every strategy says them, and its figures are those of `cost`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Outcome

import placealg as pa
from placealg.configurations import left_out
from placealg.configurations.space import LeftOut, Space, spaces
from placealg.cost.memory import memory
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.step.derive import derive
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import overlay

ONE = Space("one", FrozenMap({"data": ("zero3",)}))


def test_a_preset_is_a_modifier_with_the_bytes_of_the_option() -> None:
    for text in ("zero1*tp_sp", "zeropp", "zero3*recompute_full"):
        said, option = parse_strategy(f"{text}*fsdp2"), overlay(parse_strategy(text), {"types": {"preset": "fsdp2"}})
        assert said.tables == option.tables and said.name == f"{text}*fsdp2" and "fsdp2" in said.modifiers
    assert parse_strategy("megatron").tables["types"]["o"] == "12"
    assert parse_strategy("zero1*megatron*tp_sp").mesh.names == ("dp", "tp")


@pytest.mark.parametrize(("text", "told"), [
    ("zero1*megatron*fsdp2", "says two precisions"), ("megatron*zero1", "applies to what stands to its left"),
    ("zero1*megatron[2]", "unknown strategy"),
])
def test_what_is_no_precision_of_a_strategy_is_refused(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        parse_strategy(text)


def test_a_search_has_the_figures_of_the_precision() -> None:
    found = pa.search("gpt2", devices=4, batch=8, machine="h100", space=ONE, precision="fsdp2-fp8", s=64)
    best, plain = found.best, pa.search("gpt2", devices=4, batch=8, machine="h100", space=ONE, s=64).best
    step = derive(overlay(parse_strategy("zero3"), {"types": {"preset": "fsdp2_fp8"}}), found.question.model)
    sizes = {n: v for n, v in {**best.sizes, "s": 64}.items() if not n.endswith("_in_node")}
    assert best.need == memory(step).peak.value(**sizes)
    assert best.expression == "zero3*fsdp2_fp8" and best.need != plain.need and best.bound <= best.estimate


def test_patterns_need_not_say_the_precision() -> None:
    space = spaces()["dense"].precisely("megatron")
    assert len(space.expressions()) == 966 and all(e.endswith("*megatron") for e in space.expressions())
    assert space.said("zero1*tp") == "zero1*tp*megatron" and space.said("zero1*fsdp2") == "zero1*fsdp2"
    with pytest.raises(InputError, match="did you mean 'megatron'"):
        space.precisely("megatro")
    with pytest.raises(InputError, match="says precisions itself"):
        space.precisely("fsdp2")


def test_what_is_left_out_is_decided_at_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(left_out, "_all", lambda pair, model: seen.append(pair) or ["PROVED", "PROVED"])
    space = Space("some", FrozenMap({"data": ("zero2",)}), left_out=(LeftOut("fsdp_no_reshard", "zero2"),))
    for name in ("", "megatron"):
        assert left_out.decided(space.precisely(name), pa.gpt())[1][0].proved
    assert seen == [*space.left_out, LeftOut("fsdp_no_reshard*megatron", "zero2*megatron")]


def test_the_page_and_the_certificate_say_it(placealg: Callable[..., Outcome], tmp_path: Path) -> None:
    file = tmp_path / "best.json"
    words = ("search", "gpt2", "--batch", "8", "--set", "s=64", "--no-cache", "--devices", "4", "--machine", "h100",
             "--precision", "megatron", "--only", "zero1,zero3")
    told = placealg(*words, "--certificate", str(file), "--why", "zero3 dp=4 b=2")
    assert told.code == 0 and "o = 12, act = 2, by megatron" in told.out and "best  zero1*megatron" in told.out
    assert placealg("recheck", str(file)).code == 0
    told = placealg(*words[:-4], "--precision", "megatro")
    error = "placealg: --precision: unknown precision 'megatro'; did you mean 'megatron'?\n"
    assert (told.code, told.out, told.err) == (2, "", error)
