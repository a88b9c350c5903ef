"""MaxText's mesh against its sharding rules: over which axes weights are sharded, and which split what enters them."""

from __future__ import annotations

from math import prod
from random import Random

import pytest

from placealg.errors import InputError
from placealg.importers.read import read_words
from placealg.importers.reading import Options, Reading

EMBED = ("fsdp", "fsdp_transpose", "context", "expert")
"""Axes of ['embed', ...] in logical_axis_rules of base.yml (AI-Hypercomputer/maxtext e591f30cb) that are read."""

OURS = {"context": "cp", "expert": "ep"}


def of_degrees(**degrees: int) -> Reading:
    words = [f"ici_{axis}_parallelism={size}" for axis, size in degrees.items()]
    return read_words(["python3", "-m", "MaxText.train", "base.yml", "per_device_batch_size=1",
                       "dcn_data_parallelism=1", *words], Options())


@pytest.mark.parametrize("seed", range(24))
def test_weights_are_sharded_over_the_axes_of_the_rule(seed: int) -> None:
    """Dense weights rest in as many shards as the axes of embed make, whatever fsdp is; replicas are those of data."""
    random = Random(seed)
    sizes = {axis: random.choice([1, 1, 2, 4]) for axis in ("data", "fsdp", "context", "expert")}
    strategy = of_degrees(**sizes).strategy
    known = strategy.mesh.sizes()
    modes = dict(strategy.states["parameters"].modes) if "parameters" in strategy.states else {}
    sharded = {axis for axis, mode in modes.items() if str(mode).startswith("S") and known[axis] != 1}
    assert prod(known[axis] or 1 for axis in sharded) == prod(sizes[axis] for axis in EMBED if axis in sizes)
    assert {OURS[axis] for axis in OURS if sizes[axis] != 1} == sharded & set(OURS.values())


@pytest.mark.parametrize(("words", "says"), [
    (["ici_context_parallelism=2", "ici_sequence_parallelism=2"], "sequence_parallelism beside context_parallelism"),
    (["ici_context_parallelism=2", "context_parallel_strategy=usp"], "usp: heads over one axis"),
    (["ici_context_usp_ulysses_parallelism=2"], "context_usp_ulysses_parallelism")])
def test_axes_that_are_not_read_are_refused_by_name(words: list[str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_words(["python3", "-m", "MaxText.train", "base.yml", "per_device_batch_size=1", *words], Options())
