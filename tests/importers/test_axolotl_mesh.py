"""Axolotl's sizes of parallelism beside its own rule for them, and experts over ranks of their own."""

from __future__ import annotations

from random import Random

import pytest

from placealg.errors import InputError
from placealg.importers.read import reading_of
from placealg.importers.reading import Options, Reading

BASE = "base_model: Qwen/Qwen3-30B-A3B\ndatasets:\n  - path: mine\nmicro_batch_size: 1\nsequence_len: 64\nbf16: true\n"
FSDP = "fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: true\n"
PLUGIN = "plugins:\n  - axolotl.integrations.expert_parallel.ExpertParallelPlugin\n"


def of(text: str, world: int | None = None, **sizes: int | None) -> Reading:
    """The reading of a file with some sizes."""
    said = "".join(f"{key}: {size}\n" for key, size in sizes.items() if size is not None)
    return reading_of(BASE + text + said, "a.yaml", Options(world_size=world))


def axes(reading: Reading) -> dict[str, int | None]:
    """The sizes of a reading's axes."""
    return {axis.name: axis.size for axis in reading.strategy.mesh}


def degrees(world: int, tp: int, cp: int, shard: int | None, replicate: int | None) -> tuple[int, int] | None:
    """(replicas, shards) of FSDP as utils/distributed.py of axolotl counts them down; None where it raises."""
    rest, shards, replicas = world // tp // cp, 1, 1
    if shard is None and replicate in (None, 1):
        shards, rest = rest, 1
    if replicate and replicate > 1:
        replicas, rest = replicate, rest // replicate
    if rest > 1 and shard and shard > 1:
        shards, rest = shard, rest // shard
        if rest > 1 and replicas == 1:
            replicas, rest = rest, 1
    elif rest > 1:
        shards, rest = rest, 1
    whole = replicas * shards * tp * cp
    used = shard in (None, 1, shards)  # utils/trainer.py hands the size to accelerate, whether or not it was used
    return (replicas, shards) if rest <= 1 and whole == world and used else None


@pytest.mark.parametrize("seed", range(60))
def test_ranks_of_data_are_as_axolotl_counts_them(seed: int) -> None:
    """Sizes are drawn; a shard size that stands alone on twice as many devices is the first draw."""
    random = Random(seed)
    tp, cp = random.choice([(1, 1), (2, 1), (1, 2), (2, 2)])
    shard, replicate = random.choice([None, 1, 2, 3, 4]), random.choice([None, 1, 2, 4])
    world = tp * cp * random.choice([2, 4, 8, 12])
    if seed == 0:
        tp, cp, shard, replicate, world = 1, 1, 4, None, 8
    expected = degrees(world, tp, cp, shard, replicate)
    sizes = {"tensor_parallel_size": tp, "context_parallel_size": cp, "dp_shard_size": shard,
             "dp_replicate_size": replicate}
    if expected is None:
        with pytest.raises(InputError, match=r"a\.yaml"):
            of(FSDP, world, **sizes)
        return
    found = axes(of(FSDP, world, **sizes))
    assert (found.get("dp_replicate", 1), found.get("dp_shard", found.get("dp"))) == expected
    assert (found.get("tp", 1), found.get("cp", 1)) == (tp, cp)


@pytest.mark.parametrize("seed", range(6))
def test_experts_have_ranks_of_their_own(seed: int) -> None:
    """Under FSDP everything but experts is sharded over dp and ep; under DDP all devices are ranks of experts."""
    random = Random(seed)
    ep, shard = random.choice([2, 4, 8]), random.choice([2, 3, 4])
    under = of(PLUGIN + FSDP, expert_parallel_size=ep, dp_shard_size=shard)
    assert axes(under) == {"dp": shard, "ep": ep} and under.expression == "zero3*ep"
    assert set(under.strategy.state("optimizer").modes) == {"dp", "ep"}
    assert axes(of(PLUGIN, expert_parallel_size=ep)) == {"dp": 1, "ep": ep}
    more = of(PLUGIN + FSDP, expert_parallel_size=ep, dp_shard_size=shard, gradient_accumulation_steps=2)
    assert {mode.name for mode in more.strategy.state("gradients").modes.values()} <= {"R"}
    with pytest.raises(InputError, match=f"{ep * shard} devices"):
        of(PLUGIN + FSDP, ep * shard * 2, expert_parallel_size=ep, dp_shard_size=shard)


@pytest.mark.parametrize("key", ["tensor_parallel_size", "context_parallel_size", "dp_replicate_size"])
def test_experts_beside_other_sizes_are_refused(key: str) -> None:
    for text in (PLUGIN, PLUGIN + FSDP):
        with pytest.raises(InputError, match=f"expert_parallel_size 2 beside {key} 2"):
            of(text, expert_parallel_size=2, **{key: 2})
    with pytest.raises(InputError, match="without dp_shard_size"):
        of(PLUGIN + FSDP, expert_parallel_size=2)
    with pytest.raises(InputError, match="under DeepSpeed"):
        of(f"{PLUGIN}deepspeed: deepspeed_configs/zero3_bf16.json\n", expert_parallel_size=2)


def test_experts_without_their_plugin_are_not_split() -> None:
    reading = of("", 8, expert_parallel_size=2)
    assert axes(reading) == {"dp": 8} and "expert_parallel_size" in {i.key for i in reading.ignored}


def test_an_expert_that_drops_tokens_is_refused() -> None:
    """Below the tokens of all its ranks, of which each may choose it."""
    with pytest.raises(InputError, match="takes 127 tokens of 128"):
        of(PLUGIN, expert_parallel_size=2, expert_parallel_token_capacity=127)
    assert of(PLUGIN, expert_parallel_size=2, expert_parallel_token_capacity=128).expression == "dp*ep"


def test_clipping_beside_experts_under_ddp_is_told() -> None:
    """Norms of ranks differ where they hold other experts that train, and only there."""
    key = "max_grad_norm of experts"
    adapters = "adapter: lora\nlora_target_modules: [q_proj]\n"
    told = [key in {i.key for i in of(PLUGIN + text, expert_parallel_size=2, **sizes).approximated}
            for text, sizes in (("", {}), ("", {"max_grad_norm": 0}), (adapters, {}), (FSDP, {"dp_shard_size": 2}))]
    assert told == [True, False, False, False]


def test_sizes_of_data_without_fsdp() -> None:
    assert axes(of("", dp_replicate_size=4)) == {"dp": 4}
    assert axes(of("", dp_replicate_size=4, context_parallel_size=2)) == {"dp": 4, "cp": 2}
    for size, world, message in (("dp_shard_size", None, "without fsdp_config"),
                                 ("dp_replicate_size", 8, "make 4 devices, --world-size 8")):
        with pytest.raises(InputError, match=message):
            of("", world, **{size: 4})


def test_adapters_beside_context_parallelism_have_their_own_bytes() -> None:
    text = "adapter: lora\nlora_target_modules: [q_proj]\n"
    alone, beside = of(text, 8), of(text, 8, context_parallel_size=2)
    assert beside.strategy.tables["types"] == alone.strategy.tables["types"]
    assert axes(beside) == {"dp": 4, "cp": 2}
