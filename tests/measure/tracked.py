"""Whole steps of a small GPT under the memory tracker of PyTorch: what the tracker counts where most is held."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

KINDS = {"PARAM": "parameters", "SHARDED_PARAM": "parameters", "UNSHARDED_PARAM": "gathered", "GRAD": "gradients",
         "SHARDED_GRAD": "gradients", "UNSHARDED_GRAD": "gathered", "OPT": "optimizer", "ACT": "activations",
         "TEMP": "working", "OTH": "inputs", "INP": "inputs", "ALL_GATHER": "gathered", "REDUCE_SCATTER": "gathered",
         "Total": "total"}
"""What the trackers count -> its name here."""


def tracked(row: Mapping[str, Any]) -> dict[str, int]:
    """Bytes by kind at the largest moment of two steps, without zeros; `row` is a table of measured_peaks.toml."""
    import torch.distributed as dist
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    sizes, world = {n: int(v) for n, v in row["sizes"].items()}, int(row["sizes"].get("dp", 1))
    mesh = None
    if world > 1:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            peak = _run(sizes, mesh, row)
    finally:
        if world > 1:
            dist.destroy_process_group()
    found: dict[str, int] = {}
    for kind, size in peak.items():
        name = KINDS.get(str(kind).rpartition(".")[2])
        if name and size:
            found[name] = found.get(name, 0) + int(size)
    return found


def _run(sizes: Mapping[str, int], mesh: Any, row: Mapping[str, Any]) -> Mapping[Any, int]:
    import torch
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn import functional
    from torch.utils.checkpoint import checkpoint

    from placealg.measure.network import Gpt

    types = row["types"]
    torch.set_default_dtype(torch.bfloat16 if types["w"] == 2 else torch.float32)
    model = Gpt(sizes)
    torch.set_default_dtype(torch.float32)
    if "recompute_full" in row["strategy"]:
        for layer in model.layers.values():
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    if mesh:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        mixed = {"mp_policy": policy} if types["act"] < types["w"] else {}
        for part in (model.embedding, *model.layers.values(), model.head, model):
            fully_shard(part, mesh=mesh, **mixed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    shape, positions = (sizes["b"], sizes["s"]), torch.arange(sizes["s"])
    data = [tuple(torch.randint(0, sizes["V"], shape) for _ in range(2)) for _ in range(sizes["m"])]
    inputs = [positions, *(t for pair in data for t in pair)]
    tracker = FSDPMemTracker(model, optimizer) if mesh else MemTracker()
    if mesh:
        tracker.track_inputs(tuple(inputs))
    else:
        tracker.track_external(model, optimizer, *inputs)
    with tracker:
        for _ in range(2):
            for ids, targets in data:
                logits = model(ids, positions)
                loss = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
                loss.backward()
                del logits, loss
                tracker.reset_mod_stats()
            optimizer.step()
            optimizer.zero_grad()
        (peak,) = tracker.get_tracker_snapshot("peak").values()
    return dict(peak)
