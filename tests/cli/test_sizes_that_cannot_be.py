"""Sequences beyond learned positions, bits for bytes, and more devices than there are: said in one line."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from conftest import Outcome
from hypothesis import example, given, settings
from hypothesis import strategies as st

import placealg as pa
from placealg.configurations.layouts import Devices
from placealg.configurations.question import Question
from placealg.configurations.space import spaces
from placealg.cost.machines import machine
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.mesh import check_size
from placealg.models.config import resolve_model, shipped
from placealg.step.compatibility import check_length

LEARNED = {"gpt2": 1024, "gpt3-175b": 2048}
COMMANDS = [("cost", "zero1"), ("prove", "zero1"), ("fit", "zero1", "--device-memory", "80GB")]


@given(st.sampled_from(shipped()), st.integers(1, 10**6))
@example("gpt2", 4096)
@settings(max_examples=40, deadline=None)
def test_learned_positions_limit_a_sequence_and_nothing_else_does(name: str, length: int) -> None:
    try:
        check_length(resolve_model(name), {"s": Fraction(length)})
        refused = False
    except InputError as error:
        assert str(error) == f"s = {length} exceeds s_max = {LEARNED[name]}, the learned positions of {name}"
        refused = True
    assert refused == (length > LEARNED.get(name, 10**7))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_every_command_refuses_a_longer_sequence(placealg: Callable[..., Outcome], command: tuple[str, ...]) -> None:
    told = placealg(*command, "--model", "gpt2", "--set", "s=4096")
    assert (told.code, told.out) == (2, "")
    assert told.err == "placealg: --set: s = 4096 exceeds s_max = 1024, the learned positions of gpt2\n"


def test_a_search_refuses_a_longer_sequence(placealg: Callable[..., Outcome]) -> None:
    told = placealg("search", "gpt2", "--devices", "8", "--batch", "8", "--machine", "h100", "--set", "s=4096")
    assert told.code == 2 and "s = 4096 exceeds s_max = 1024" in told.err
    with pytest.raises(InputError, match="exceeds s_max"):
        Question(resolve_model("gpt2"), Devices(8, 8, 64), machine("h100"), Fraction(10**10), spaces()["dense"],
                 FrozenMap({"s": Fraction(1025)}))


@given(st.sampled_from(["w", "g", "wire", "act", "o", "acc"]), st.fractions(Fraction(1, 4), 64, max_denominator=4))
@example("w", Fraction(16))
@settings(max_examples=60)
def test_an_element_has_at_most_eight_bytes(name: str, size: Fraction) -> None:
    most = 32 if name == "o" else 8
    if size <= most:
        check_size(name, size)
        return
    with pytest.raises(InputError, match="sizes are in bytes") as error:
        check_size(name, size)
    assert (f"{size} bits are {name} = {size / 8}" in str(error.value)) == (size / 8 <= most)


def test_bits_are_no_bytes_wherever_sizes_are_said(placealg: Callable[..., Outcome], tmp_path: Path) -> None:
    told = placealg("cost", "zero1", "--model", "gpt2", "--set", "w=16")
    assert (told.code, told.out) == (2, "") and "16 bits are w = 2" in told.err, told.err
    with pytest.raises(InputError, match="16 bits are g = 2"):
        pa.search("gpt2", devices=8, batch=8, machine="h100", s=64, g=16)
    assert pa.memory(pa.derive(pa.zero1(), pa.abstract())).states.value(dp=8, g=16, Psi=8), "a formula takes any number"
    path = tmp_path / "mine.toml"
    for key, size in (("[types]\nw", "1e9"), ("[types]\nact", "16"), ("[groups.all]\nmatch = '*'\ntypes.g", "16")):
        path.write_text(f"name = 'mine'\n[mesh]\ndp = 8\n[dims]\ndp = ['batch']\n{key} = {size}\n", encoding="utf-8")
        told = placealg("cost", str(path), "--model", "gpt2")
        assert told.code == 2 and "an element has at most 8 bytes" in told.err, told.err


def test_more_devices_than_there_are_is_a_warning(placealg: Callable[..., Outcome]) -> None:
    told = placealg("cost", "zero1", "--model", "gpt2", "--set", "dp=10000001")
    assert told.code == 0 and told.err == "placealg: warning: 10,000,001 devices are more than any cluster has\n"
    wrong = placealg("cost", "dp", "--model", "gpt2", "--set", f"dp={10**7 + 1}", "s=4096")
    assert wrong.code == 2 and wrong.err.count("\n") == 1 and "learned positions" in wrong.err
    assert not placealg("cost", "zero1", "--model", "gpt2", "--set", "dp=10000000").err
