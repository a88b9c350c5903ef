"""The mesh of an accelerate configuration: the axes of FSDP, and of what parallelism_config names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placealg.importers.draft import Draft
from placealg.importers.key_log import Said


def mesh_key(said: Said, name: str) -> str:
    """The key of parallelism_config, with or without its prefix."""
    short = f"parallelism_config.{name}"
    return short if said.has(short) else f"parallelism_config.parallelism_config_{name}"


def mesh_of(draft: Draft, world: int | None) -> dict[str, int]:
    """The degrees of parallelism_config that are larger than one."""
    said, degrees = draft.said, {}
    for name in ("dp_replicate", "dp_shard", "cp", "sp", "tp"):
        key = mesh_key(said, f"{name}_size")
        size = said.number(key)
        if size and size > 1:
            degrees[name] = size
        elif size:
            said.inactive(key, "1: no axis")
    return degrees


def unused_mesh(draft: Draft, mesh: Mapping[str, int], others: str = "FSDP") -> None:
    """Refuse the degrees that no engine here takes."""
    for name, size in mesh.items():
        key = mesh_key(draft.said, f"{name}_size")
        raise draft.said.refuse(key, f"{key} = {size} goes with {others} alone (launch.py:1205)")


def sequence_of(draft: Draft, world: int | None) -> tuple[str, int] | None:
    """Sequence parallelism of DeepSpeed by parallelism_config: the key and its degree."""
    said, mesh = draft.said, mesh_of(draft, world)
    old = said.raw(mesh_key(said, "cp_backend")) == "deepspeed"
    name = "cp" if old and "cp" in mesh else "sp"
    found = (mesh_key(said, f"{name}_size"), mesh.pop(name)) if name in mesh else None
    shard = mesh.pop("dp_shard", None)
    unused_mesh(draft, mesh)
    if shard is not None:
        key, degree = mesh_key(said, "dp_shard_size"), found[1] if found else 1
        if world is not None and world != shard * degree:
            raise said.refuse(key, f"dp_shard_size {shard} x {degree} of sequence parallelism is not {world} devices")
        said.read(key, f"{shard} ranks of data, over which ZeRO shards anyway")
    if found:
        said.read(found[0], f"cp_ulysses over sp = {found[1]}; the states over dp and sp together")
    for key in ("cp_backend", "sp_backend"):
        said.leave(mesh_key(said, key), "DeepSpeed's")
    return found


def place_axes(draft: Draft, sharding: str, mesh: Mapping[str, int], world: int | None, key: Any) -> tuple[str, ...]:
    """Put the axes in; the answer is those over which gradients are sharded."""
    said, parts = draft.said, draft.parts
    two = str(said.raw(key("version"))) == "2"
    chosen = key("reshard_after_forward") if two else key("sharding_strategy")
    split = 1
    for name in ("cp", "sp", "tp"):
        split *= mesh.get(name, 1)
    data = draft.divided(world, split, "parallelism_config")
    replicas = mesh.get("dp_replicate")
    if sharding.startswith("HYBRID") and replicas is None:
        machines = said.whole("num_machines", said.value("num_machines")) or 1
        if data is not None and data % machines:
            raise said.refuse("num_machines", f"{data} devices are not a multiple of {machines} machines")
        replicas = machines
        said.read("num_machines", f"dp_replicate = {machines}")
    if replicas is None and (shard := mesh.get("dp_shard")) and data is not None and data != shard:
        raise said.refuse(mesh_key(said, "dp_shard_size"), f"dp_shard_size {shard}, and {data} devices remain for it")
    life = "microbatch" if sharding in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2") else "use"
    axes: tuple[str, ...] = ()
    if sharding == "NO_SHARD":
        parts.axis("dp", data)
        name = "dp"
    elif replicas is not None:
        if data is not None and data % replicas:
            raise said.refuse("num_processes", f"{data} ranks of data are not a multiple of {replicas} replicas")
        parts.axis("hsdp", dp_replicate=replicas, dp_shard=None if data is None else data // replicas)
        name, axes = "hsdp", ("dp_shard",)
    else:
        name, axes = ("zero3" if life == "use" else "fsdp_no_reshard"), ("dp",)
        parts.axis(name, data)
    if life == "microbatch" and name == "hsdp":
        parts.say("schedule", "lifetime", {"dp_shard": "microbatch"})
    said.read(chosen, f"{name} over the devices", None if said.has(chosen) else sharding)
    for axis in ("dp_replicate", "dp_shard"):
        if axis in mesh:
            said.read(mesh_key(said, f"{axis}_size"), f"{axis} = {mesh[axis]}")
    return _more_axes(draft, mesh, axes)


def _more_axes(draft: Draft, mesh: Mapping[str, int], axes: tuple[str, ...]) -> tuple[str, ...]:
    """Context, sequence and tensor parallelism."""
    said, parts = draft.said, draft.parts
    if "cp" in mesh:
        how = said.raw(mesh_key(said, "cp_comm_strategy")) or "allgather"
        ring = said.choice(mesh_key(said, "cp_comm_strategy"), str(how), ("allgather", "alltoall")) == "alltoall"
        parts.axis("cp_ring" if ring else "cp", mesh["cp"])
        said.read(mesh_key(said, "cp_size"), f"{'cp_ring' if ring else 'cp'} over {mesh['cp']} ranks")
        said.read(mesh_key(said, "cp_comm_strategy"), "how keys and values travel", how)
        axes = (*axes, "cp") if axes else axes
    if "sp" in mesh:
        parts.axis("cp_ulysses", sp=mesh["sp"])
        said.read(mesh_key(said, "sp_size"), f"cp_ulysses over sp = {mesh['sp']}")
    if "tp" in mesh:
        parts.axis("tp", mesh["tp"])
        parts.say("dims", "tp", ["embedding.none", "heads", "ffn", "vocab"])
        parts.gather_logits()
        said.read(mesh_key(said, "tp_size"), "tp by the usual tp_plan: heads, ffn, the logits' vocab, gathered before "
                                              "the loss; embedding whole")
    return axes
