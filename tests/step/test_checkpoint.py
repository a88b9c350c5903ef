"""A checkpoint on another mesh: counts by hand, and every read held against arrays that are cut."""

from __future__ import annotations

from fractions import Fraction

import pytest
from chunked_arrays import Held, bytes_read
from hypothesis import given, settings
from hypothesis import strategies as st

import placealg as pa
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.config import resolve_model
from placealg.step.checkpoint import Checkpoint, Sizes, block, checkpoint
from placealg.step.reshard import Reshard, check_alike, totals, width
from placealg.step.trainable import taught
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import parse_strategy_file

GPT = {"h": 6, "a": 2, "L": 4, "V": 7, "s": 5}
"""Sizes of which few divide by the meshes below."""


def strategy(text: str) -> pa.Strategy:
    return parse_strategy_file(text).strategy if "=" in text else parse_strategy(text)


def of(text: str, model: str = "gpt") -> Checkpoint:
    said, found = strategy(text), resolve_model(model)
    return checkpoint(pa.derive(said, found), said, found)


def sizes(mesh: dict[str, int], model: dict[str, int]) -> Sizes:
    return Sizes(FrozenMap(mesh), FrozenMap({n: Fraction(v) for n, v in model.items()}))


@pytest.mark.parametrize(("old", "new", "read", "stays", "reads"), [
    (("zero3", 2), ("zero3", 3), 12, 6, 4),
    (("zero3", 3), ("zero3", 2), 12, 6, 4),
    (("zero3", 2), ("zero3", 5), 12, 3, 4),
    (("zero3", 5), ("zero3", 7), 12, 3, 8),
    (("dp", 2), ("zero3", 3), 12, 8, 3),
    (("zero3", 3), ("dp", 2), 24, 8, 6),
    (("dp", 4), ("dp", 2), 24, 24, 2),
])
def test_counts_by_hand(old: tuple[str, int], new: tuple[str, int], read: int, stays: int, reads: int) -> None:
    """Of 12 elements in one row. 5 ranks have 3, 3, 3, 3 and none of them, 7 have 2 each but for the last.

    Of 5 ranks read by 7: rank 0 has 0:2 and had 0:3, so 2 stay; rank 1 has 2:4 and had 3:6, so 1 stays; rank 2 has 4:6
    and had 6:9, and so on: none. 2:4 and 8:10 are read in two pieces, 0:2, 4:6, 6:8 and 10:12 in one: 8 reads.
    """
    found = Reshard(of(old[0], "abstract"), of(new[0], "abstract"))
    counted = totals(found, sizes({"dp": old[1]}, {"Psi": 12}), sizes({"dp": new[1]}, {"Psi": 12}))
    element = 2 + 8
    assert (counted.stored, counted.read) == (12 * element, read * element)
    assert (counted.stays / element, counted.reads / 2) == (stays, reads)


NODE_LOCAL = """
[mesh]
node = "symbolic"
gpu = "symbolic"
[dims]
node = ["batch"]
gpu = ["batch"]
[states]
parameters = { gpu = "S*" }
optimizer = { node = "S", gpu = "S" }
gradients = { gpu = "S" }
"""


def test_states_over_other_axes_have_the_same_owners() -> None:
    """Of 8 elements on 2 nodes of 2 gpus, ranks 0 to 3 have 0:4, 4:8, 0:4, 4:8 of weights, which gpus alone cut.

    Nodes cut inside: of moments they have 0:2, 4:6, 2:4, 6:8. Read by 4 ranks, which need 0:2, 2:4, 4:6 and 6:8, what
    ranks 0 and 3 read stays, of both states: 4 elements of each.
    """
    found = Reshard(of(NODE_LOCAL, "abstract"), of("zero3", "abstract"))
    counted = totals(found, sizes({"node": 2, "gpu": 2}, {"Psi": 8}), sizes({"dp": 4}, {"Psi": 8}))
    assert (counted.read, counted.stays, counted.moved) == (8 * (2 + 8), 4 * (2 + 8), 4 * (2 + 8))


PAIRS = [
    ("zero3*tp_sp", {"dp": 2, "tp": 2}, "zero1*tp", {"dp": 3, "tp": 2}),
    ("zero3", {"dp": 4}, "zero3", {"dp": 3}),
    ("hsdp", {"dp_replicate": 2, "dp_shard": 3}, "zero2", {"dp": 5}),
    ("zero3*tp_sp*pp", {"dp": 2, "tp": 2, "pp": 2}, "zero3", {"dp": 4}),
    ("dp*pp", {"dp": 2, "pp": 3}, "zero1*pp", {"dp": 3, "pp": 2}),
    ('base = "zero3"\n[shards]\npad = "elements"', {"dp": 3}, "zero3*tp", {"dp": 2, "tp": 2}),
    ("zero3*tp", {"dp": 2, "tp": 2}, 'base = "zero1*tp"\n[shards]\npad = "elements"', {"dp": 3, "tp": 2}),
]


@pytest.mark.parametrize(("old", "at", "new", "there"), PAIRS, ids=str)
def test_every_read_is_that_of_cut_arrays(old: str, at: dict[str, int], new: str, there: dict[str, int]) -> None:
    one, two, model = strategy(old), strategy(new), resolve_model("gpt")
    held = Held(one, model, at, GPT), Held(two, model, there, GPT)
    wanted = bytes_read(*held, {"weight": 2, "moments": 8}, [p.name for p in model.parameters])
    found = Reshard(of(old), of(new))
    mine: dict[tuple[int, int], Fraction] = {}
    for read in found.reads(sizes(at, GPT), sizes(there, GPT)):
        item = found.old.item(*read.item.key)
        assert item
        key = read.reader, read.source
        mine[key] = mine.get(key, Fraction(0)) + read.elements * width(found.old, item)
    assert mine == wanted
    counted = totals(found, sizes(at, GPT), sizes(there, GPT))
    assert counted.read == sum(wanted.values())
    assert counted.stays == sum(n for (reader, source), n in wanted.items() if reader == source)
    assert counted.reads == sum(1 for _ in found.reads(sizes(at, GPT), sizes(there, GPT)))


@given(length=st.integers(1, 60), ranks=st.integers(1, 9))
def test_blocks_are_a_partition(length: int, ranks: int) -> None:
    places = [k for rank in range(ranks) for k in range(*block(0, length, rank, ranks))]
    assert places == list(range(length))


@settings(max_examples=20)
@given(old=st.integers(1, 9), new=st.integers(1, 9), length=st.integers(1, 40))
def test_there_and_back_again(old: int, new: int, length: int) -> None:
    """What stays on its device going there stays coming back; as much is read as there is, both ways."""
    found = of("zero3", "abstract")
    one, two = sizes({"dp": old}, {"Psi": length}), sizes({"dp": new}, {"Psi": length})
    there, back = totals(Reshard(found, found), one, two), totals(Reshard(found, found), two, one)
    assert (there.read, there.stays, there.reads) == (back.read, back.stays, back.reads)
    assert there.moved >= 0 and (there.moved == 0 or -(-length // old) != -(-length // new))


SCALED = 'base = "zero3"\n[optimizer]\nfp8_scales = "attn.*"'


def test_a_number_without_dims_is_read_by_every_rank() -> None:
    said, model = strategy(SCALED), resolve_model("gpt")
    kept = checkpoint(pa.derive(said, model), said, model)
    counted = [r for r in Reshard(kept, kept).reads(*[sizes({"dp": n}, GPT) for n in (2, 3)])
               if r.item.key == ("layer.attn.q.scale", "weight")]
    assert [(r.reader, r.source, r.elements) for r in counted] == [(0, 0, 4), (1, 1, 4), (2, 0, 4)]


@pytest.mark.parametrize(("old", "new", "models", "says"), [
    ("zero3", "zero3", ("gpt", "mlp"), "zero3 trains gpt, zero3 mlp: a checkpoint holds the states of one model; "
     "layer.mlp.up.weight is embed h × ffn 4*h in the old one, embed h × ffn f in the new one"),
    ("zero3", 'base = "zero3"\n[optimizer]\nclip = "none"', ("gpt", "gpt"), "zero3 clips True"),
    ("zero3", 'base = "zero3"\n[optimizer]\nname = "muon"', ("gpt", "gpt"), "is updated by adamw in zero3, by muon"),
    ("zero3", 'base = "zero3"\n[adapters]\nmatch = ["attn.q"]', ("gpt", "gpt"),
     "the checkpoint of zero3 has no parameter 'layer.attn.q.low.weight'"),
    ('base = "zero3"\n[groups.still]\nmatch = "embedding.weight"\nfrozen = true', "zero3", ("gpt", "gpt"),
     "has no moments of embedding.weight, which zero3 loads"),
    ('base = "zero3"\n[optimizer]\nrouter_bias = true', "zero3", ("moe", "moe"),
     "held against one reference: the old one has layer.router.choice_bias of expert experts, which the new one lacks"),
    ("zero3", 'base = "zero3"\n[loss]\nterms = ["balance"]', ("moe", "moe"), "layer.router.load is a sum of"),
    ("zero3", 'base = "zero3"\n[checkpoint]\nholds = "parameters"', ("gpt", "gpt"),
     "resumes from no checkpoint: its program loads nothing, as with [checkpoint] holds = \"parameters\""),
    ('base = "zero3"\n[checkpoint]\nholds = "parameters"', "zero3", ("gpt", "gpt"),
     "the checkpoint of strategy has no moments of embedding.weight, which zero3 loads"),
    (SCALED, SCALED + "\nfp8_history = 16", ("gpt", "gpt"),
     "the state that moves layer.attn.q.scale takes 4096 bytes in the checkpoint of strategy, 64 in strategy"),
])
def test_what_is_not_one_run_is_refused(old: str, new: str, models: tuple[str, str], says: str) -> None:
    found = [strategy(old), strategy(new)]
    known = [resolve_model(m) for m in models]
    kept = [checkpoint(pa.derive(s, m), s, m) for s, m in zip(found, known, strict=True)]
    with pytest.raises(InputError) as error:
        trained = tuple(taught(s, m) for s, m in zip(found, known, strict=True))
        check_alike(Reshard(*kept), (known[0], known[1]), (trained[0], trained[1]))
    assert says in str(error.value)
