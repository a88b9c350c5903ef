"""Scans and short convolutions: mixers are derived, proved, run and counted, their heads split or their sequences."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from mutants import deletions
from random_dims import settings

from placealg.check.kernel import kernel
from placealg.check.prove import prove
from placealg.cost.flop import products as products_of
from placealg.errors import InputError
from placealg.models.build import graph
from placealg.models.model import Model
from placealg.models.style import LLAMA
from placealg.models.transformer import transformer
from placealg.placement import SENT
from placealg.prover.verdict import PROVED, REFUTED
from placealg.simulator import simulate
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import overlay

SIZES = {"vocab": "V", "embed": "h", "heads": "a", "kv": "kv", "group": "a/kv", "head_dim": "h/a", "ffn": "f",
         "channel": "h", "tap": "4", "state_kv": "a", "state_group": "2", "state_key": "d", "state_value": "d_v",
         "state_low": "d"}

STYLES: Mapping[str, Mapping[str, Any]] = {
    "delta": {"mixer": "delta"},
    "decay of each key": {"mixer": "delta", "key_decay": True},
    "state space": {"mixer": "state", "mixer_norm": "after", "conv_bias": True, "mixer_bias": True},
    "one group": {"mixer": "state", "mixer_norm": "before"},
    "beside attention": {"mixer": "state", "both": True},
    "short convolution": {"mixer": "conv", "mixer_bias": True, "conv_bias": True},
}


def mixing(name: str) -> Model:
    """Layers of a mixer and an MLP; of one group of heads, keys have no dim of heads."""
    style = replace(LLAMA, **STYLES[name])
    sizes = {dim: size for dim, size in SIZES.items() if (name, dim) != ("one group", "state_kv")}
    return Model.of_graph(name, transformer(style, sizes))


STRATEGIES = ("dp", "zero3", "tp", "tp_sp", "cp", "zero3*cp_ulysses*tp", "zero3*cp_ring", "tp*cp", "cp*recompute_full")
BY_DEFAULT = (("delta", "cp"), ("one group", "tp"), ("short convolution", "dp"))
CASES = [pytest.param(name, text, marks=() if (name, text) in BY_DEFAULT else pytest.mark.slow)
         for name in STYLES for text in dict.fromkeys((*STRATEGIES, *(t for n, t in BY_DEFAULT if n == name)))]


@pytest.mark.parametrize(("name", "text"), CASES)
def test_it_is_proved_for_all_sizes_and_runs_as_on_one_device(name: str, text: str) -> None:
    step = derive(parse_strategy(text), mixing(name))
    assert prove(step).verdict == PROVED
    for setting in itertools.islice(settings(step), 1 if (name, text) in BY_DEFAULT else 2):
        assert simulate(step, setting).difference is None


@pytest.mark.parametrize("text", ["zero3*tp_sp", "zero1*pp", "cp_ulysses"])
@pytest.mark.parametrize("name", ["delta", "state space", "short convolution"])
def test_the_checker_accepts_it_along_whole_sequences(name: str, text: str) -> None:
    step = derive(parse_strategy(text), mixing(name))
    assert kernel(step).accepted
    lost = next(e.path for e in step.events if e.verb == "compute" and e.on_gradient and ".conv." in e.path)
    assert not kernel(edit(step, drop=lost)).accepted


@pytest.mark.slow
@pytest.mark.parametrize(("name", "text"), [("decay of each key", "cp_ulysses"), ("state space", "tp_sp"),
                                            ("one group", "tp_sp"), ("short convolution", "tp_sp"), ("delta", "cp"),
                                            ("state space", "cp")])
def test_of_what_a_mixer_runs_nothing_may_be_left_out(name: str, text: str) -> None:
    """Each event of a mixer is deleted: the prover refutes what the simulator sees, and nothing else."""
    step = derive(parse_strategy(text), mixing(name))
    found = [mutant for mutant in deletions(step) if mutant.events[0].phase in ("forward", "backward", "reduce")
             and {".scan.", ".conv."} & {f".{part}." for part in mutant.events[0].path.split(".")}]
    assert len(found) > 12
    for mutant in found:
        seen = any(simulate(mutant.step, setting).difference for setting in settings(mutant.step))
        assert (prove(mutant.step).verdict != PROVED) == seen, mutant.story


MIXED = "layer.scan.core.mixed"


def reading(name: str, other: str) -> dict[str, Any]:
    """The state that enters a block made from another version of what it reads."""
    read = {what: f"{MIXED}.{what}.of_all@cp" for what in ("left", "passed")} | {name: other}
    return {"set": f"forward.{MIXED}.state.compute", "reads": [read["left"], read["passed"], "data.blocks@cp"]}


REFUTED_EDITS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("keys of other heads", "delta", "dp*cp_ulysses", {"drop": "forward.layer.scan.k.all_to_all[cp]"}),
    ("gradients of other heads", "delta", "dp*cp_ulysses", {"drop": "backward.layer.scan.v.grad.all_to_all[cp]"}),
    ("keys of one group", "one group", "tp", {"drop": "backward.layer.scan.core.k.silu.grad.all_reduce[tp]"}),
    ("heads inside a group", "one group", "tp", {"drop": "backward.layer.scan.core.q.silu.grad.all_reduce[tp]"}),
    *((f"state not handed on: {name}", name, "cp", {"drop": f"forward.{MIXED}.left.of_all.all_gather[cp]"})
      for name in ("delta", "state space")),
    *((f"adjoint missing: {name}", name, "cp", {"drop": f"backward.{MIXED}.left.of_all.grad.reduce_scatter[cp]"})
      for name in ("delta", "state space")),
    *((f"its own decay alone: {name}", name, "cp", reading("passed", f"{MIXED}.passed.of_all"))
      for name in ("delta", "state space")),
    *((f"its own state alone: {name}", name, "cp", reading("left", f"{MIXED}.left.of_all"))
      for name in ("delta", "state space")),
    *((f"adjoint of decays missing: {name}", name, "cp",
       {"drop": f"backward.{MIXED}.passed.of_all.grad.reduce_scatter[cp]"}) for name in ("delta", "state space")),
    ("convolution without halo", "short convolution", "cp",
     {"drop": "forward.layer.conv.core.mixed.conv.tail.of_all.all_gather[cp]"}),
    ("halo without adjoint", "short convolution", "cp",
     {"drop": "backward.layer.conv.core.mixed.conv.tail.of_all.grad.reduce_scatter[cp]"}),
    ("states of a scan twice", "state space", "cp",
     {"double": f"backward.{MIXED}.left.of_all.grad.reduce_scatter[cp]"}),
]


REFUTED_BY_DEFAULT = ("state not handed on: delta", "convolution without halo")


@pytest.mark.parametrize(("name", "text", "change"), [
    pytest.param(*case, id=said, marks=() if said in REFUTED_BY_DEFAULT else pytest.mark.slow)
    for said, *case in REFUTED_EDITS])
def test_what_heads_and_blocks_need_is_not_left_out(name: str, text: str, change: dict[str, Any]) -> None:
    step = edit(derive(parse_strategy(text), mixing(name)), change)
    assert prove(step).verdict == REFUTED


def test_a_sequence_in_blocks_sends_states_and_the_places_before() -> None:
    """One state for each head and what it is multiplied by, and the last taps - 1 places: no keys, no values."""
    step = derive(parse_strategy("cp"), mixing("state space"))
    sent = [e for e in step.events if e.verb in SENT and e.phase == "forward" and e.on_tensor]
    assert {e.tensor.rpartition(".of_all")[0].rpartition(".")[2] for e in sent} == {"left", "passed", "tail"}
    graph = step.reference.graph
    assert str(graph.tensors[f"{MIXED}.left"].elements) == "2*a*b*cp*d*d_v"
    assert str(graph.tensors["layer.scan.core.k.conv.tail"].elements) == "3*a*b*cp*d"


@pytest.mark.parametrize(("name", "products"), [("state space", 2), ("delta", 3)])
def test_a_scan_costs_a_write_and_a_read_of_its_states(name: str, products: int) -> None:
    """2 flop for each number of a state and product at each place; a delta rule reads once more, by the key."""
    model = mixing(name)
    built, op = model.graph, model.graph.producer("layer.scan.core.mixed")
    assert op is not None and Counter(products_of(built, op)) == {
        frozenset(("batch", "seq", "state_kv", "state_group", "state_key", "state_value")): products}


def test_documents_end_no_scan() -> None:
    said = overlay(parse_strategy("dp"), {"tokens": {"documents": True}})
    with pytest.raises(InputError, match=r"'layer\.scan\.core\.q\.conv' of delta goes along whole sequences, from one"):
        derive(said, mixing("delta"))


@pytest.mark.parametrize(("change", "message"), [
    ({"v": "batch seq state_kv state_key"}, "over is the dim that it goes along and the dim of the keys; given"),
    ({"q": "batch seq state_kv"}, "a query is like a key, and v has all their dims but the last"),
    ({"beta": "batch seq state_key"}, "'one.beta' has dims .batch, seq, state_key.; it goes along seq"),
    ({"decay": "batch state_kv"}, "'one.decay' has dims .batch, state_kv.; it goes along seq"),
])
def test_the_dims_of_a_scan_fit(change: Mapping[str, str], message: str) -> None:
    g = graph(batch="b", seq="s", state_kv="a", state_key="d", state_value="d_value")
    fitting = {"k": "batch seq state_kv state_key", "v": "batch seq state_kv state_value",
               "q": "batch seq state_kv state_key", "decay": "batch seq state_kv", "beta": "batch seq state_kv"}
    made = [g.data(f"one.{name}", dims) for name, dims in {**fitting, **change}.items()]
    with pytest.raises(InputError, match=message):
        g.scan("one.read", *made, over="seq state_key")
