"""`REGION.each`: ops that every rank runs whole, each with a part of the gradient, which is summed where it left."""

from __future__ import annotations

from random import Random

import pytest
from random_dims import MODELS, judged

import placealg as pa
from placealg.check.prove import prove
from placealg.errors import InputError
from placealg.prover.verdict import PROVED, REFUTED
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import overlay, strategy_on

LATENT = ["loss.none", "attn.heads", "attn.each", "heads", "ffn", "vocab", "seq"]
"""Latent attention's low-rank products on gathered tokens, their gradients summed where these were gathered."""


def drawn(seed: int) -> tuple[str, list[str]]:
    """(model, entries of an axis), among which one keeps a region whole on each rank."""
    if not seed:
        return "deepseek", LATENT
    random = Random(seed)
    name = random.choice([*MODELS])
    graph = MODELS[name].graph
    regions = [r for r in graph.regions if not graph.ops[-1].within(r) and r not in ("", "loss")]
    inner = random.choice(regions)
    words = inner.split(".")
    region = ".".join(words[random.randrange(len(words)):])
    dims = random.sample(["heads", "ffn", "vocab", "seq"], random.randrange(2, 5))
    dims = [d for d in dims if any(d in graph.iteration_dims(op) or (d == "heads" and "kv" in graph.iteration_dims(op))
                                   for op in graph.ops)]
    ahead = [f"{region}.{d}" for d in dims[:1]] if random.random() < 0.4 else []
    return name, ["loss.none", *ahead, f"{region}.each", *dims]


def test_the_head_runs_on_each_rank_beside_a_split_layer() -> None:
    axis = strategy_on("each", {"tp": None}, dims={"tp": ["loss.none", "head.each", "ffn"]})
    assert judged(derive(axis, MODELS["mlp"])) == (PROVED, "")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_what_is_proved_runs_as_on_one_device(seed: int) -> None:
    """Derived programs are proved, and run; a tied weight that one of two ops would split otherwise is refused."""
    name, entries = drawn(seed)
    try:
        axes = strategy_on("each", {"dp": None, "tp": None}, dims={"dp": ["batch"], "tp": entries})
        step = derive(axes, MODELS[name])
    except InputError as error:
        assert seed, error
        return
    assert judged(step) == (PROVED, ""), entries


@pytest.mark.slow
def test_what_the_region_read_gets_the_sum_of_the_parts() -> None:
    """The products' weights have a partial gradient, and the gathered tokens a reduce_scatter in place of a slice."""
    model = MODELS["deepseek"]
    step = pa.derive(overlay(parse_strategy("tp_sp"), {"dims": {"tp": LATENT}}), model)
    paths = [event.path for event in step.events]
    assert "backward.layer.norm1.out.grad.reduce_scatter[tp]" in paths
    summed = [p for p in paths if p.endswith("layer.attn.kv_down.weight.grad_sum.reduce[tp]")]
    assert summed
    assert prove(edit(step, {"drop": summed[0]})).verdict == REFUTED


def test_the_loss_is_one() -> None:
    with pytest.raises(InputError, match=r"names 'loss\.each', but the loss of the step is one: say loss\.none"):
        pa.derive(overlay(parse_strategy("tp"), {"dims": {"tp": ["loss.each", "heads"]}}), "gpt")
    with pytest.raises(InputError, match="but what leaves unit 'layer' is one"):
        pa.derive(overlay(parse_strategy("tp"), {"dims": {"tp": ["layer.each", "heads"]}}), "gpt")
    with pytest.raises(InputError, match="names 'each' alone"):
        overlay(parse_strategy("tp"), {"dims": {"tp": ["each", "heads"]}})
