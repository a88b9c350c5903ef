"""The simulator's own rules: by hand, and against those of derivation and prover, which are written in other words."""

from __future__ import annotations

import itertools

import pytest
from random_dims import MODELS

from placealg.errors import InputError
from placealg.simulator.rules import split_dim, stage_order
from placealg.step.folded import FOLDED
from placealg.step.pipeline import ORDERS, TURNS, Pipeline, work
from placealg.step.split import split_of

ENTRIES = ("batch", "seq", "heads", "ffn", "vocab", "embed", "expert", "head_dim", "attn.seq", "core.heads",
           "loss.none", "experts.expert", "norm1.none", "layer.attn.q.none", "layer.attn.q.heads", "block.mlp.up.seq")


@pytest.mark.parametrize("name", MODELS)
def test_an_axis_splits_an_op_along_the_first_dim_that_fits(name: str) -> None:
    graph, found = MODELS[name].graph, set()
    for entries in itertools.permutations(ENTRIES, 2):
        for op in graph.ops:
            found.add(split_dim(entries, op, graph))
            assert split_dim(entries, op, graph) == split_of(entries, op, graph), (entries, op.output)
    assert len(found) > 3


def test_rows_are_split_where_they_can_be() -> None:
    graph = MODELS["gpt"].graph
    found = {op.kind: split_dim(("embed", "vocab"), op, graph) for op in graph.ops}
    assert (found["layer_norm"], found["lookup"], found["cross_entropy"]) == ("", "embed", "vocab")
    assert split_dim(("vocab",), next(op for op in graph.ops if op.kind == "lookup"), graph) == "vocab"


def test_stages_alternate_behind_their_first_forwards() -> None:
    assert str(stage_order(Pipeline("pp", "gpipe"), 1, 2, 2)) == "(F0, F1, B0, B1)"
    assert str(stage_order(Pipeline("pp"), 1, 2, 2)) == "(F0, B0, F1, B1)"
    assert str(stage_order(Pipeline("pp", "interleaved", 2), 1, 2, 2)) == "(F0, F1, F0.1, B0.1, F1.1, B1.1, B0, B1)"
    assert str(stage_order(Pipeline("pp", "zb_h1"), 1, 2, 3)) == "(F0, B0, F1, B1, W0, F2, B2, W1, W2)"
    assert str(stage_order(Pipeline("pp", "zb_h2"), 0, 2, 3)) == "(F0, F1, F2, B0, W0, B1, W1, B2, W2)"


@pytest.mark.parametrize(("order", "chunks"), [(o, 1) for o in ORDERS if o not in FOLDED] + [
    (o, v) for o in TURNS for v in (2, 3)] + [(o, 2) for o in FOLDED])
def test_a_stage_runs_its_microbatches_as_the_closed_form_says(order: str, chunks: int) -> None:
    at = Pipeline("pp", order, chunks)
    for ranks, m in itertools.product(range(1, 5), range(1, 9)):
        for stage in range(ranks):
            if order in TURNS and m % ranks:
                with pytest.raises(InputError, match="does not divide m"):
                    stage_order(at, stage, ranks, m)
            else:
                assert stage_order(at, stage, ranks, m) == work(at, stage, ranks, m), (ranks, m, stage)
