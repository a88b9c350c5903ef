"""What a Python file of a DTensor plan says beside the plan: its mesh, how states are sharded, in which types.

Only what stands there as a literal is read: torch.distributed.fsdp (`fully_shard`, `MixedPrecisionPolicy`; FSDP1's
`FullyShardedDataParallel`, `MixedPrecision`) and torch.distributed.device_mesh (`init_device_mesh`). What is computed
where the file runs is unsaid, by the name of the call.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from typing import Any

from placealg.importers.draft import Draft
from placealg.importers.fsdp import FSDP

ROLES = {"tp": "tp tensor tensor_parallel", "dp": "dp fsdp data data_parallel dp_shard shard",
         "dp_replicate": "dp_replicate replicate ddp"}
"""Axis -> what meshes call it."""

MESH, WRAPPERS, POLICIES = "init_device_mesh", ("fully_shard", "FSDP", "FullyShardedDataParallel", "apply_fsdp"), (
    "MixedPrecisionPolicy", "MixedPrecision")
RESHARD = {"true": "zero3", "none": "zero3", "false": "fsdp_no_reshard"}
CHECKPOINTS = ("apply_activation_checkpointing", "checkpoint_wrapper", "checkpoint", "gradient_checkpointing_enable")
BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2, "None": 0}

Calls = Mapping[str, list[ast.Call]]


def calls_of(tree: ast.AST) -> Calls:
    """The calls of a file by the last name of what is called."""
    found: dict[str, list[ast.Call]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            found.setdefault(ast.unparse(node.func).rpartition(".")[2], []).append(node)
    return found


def said_in(calls: Calls) -> dict[str, tuple[int, str]]:
    """The line of the first call of each of the names that are read, and its arguments as they stand there."""
    first = {name: calls[name][0] for name in (MESH, *WRAPPERS, *POLICIES, *CHECKPOINTS) if name in calls}
    return {name: (call.lineno, ", ".join(map(ast.unparse, [*call.args[1:], *call.keywords])) or "()")
            for name, call in first.items()}


def read_mesh(draft: Draft, calls: Calls) -> dict[str, int]:
    """Axis -> its ranks, where the one mesh of the file is a literal whose names are known; {} where it is not."""
    said, made = draft.said, calls.get(MESH, [])
    known = {word: axis for axis, words in ROLES.items() for word in words.split()}
    shape, names = (_listed(made[0], at, key) if len(made) == 1 else [] for at, key in (
        (1, "mesh_shape"), (2, "mesh_dim_names")))
    sizes = {known[name]: n for name, n in zip(names, shape, strict=False) if name in known and isinstance(n, int)}
    if sizes and len(sizes) == len(names) == len(shape) and min(sizes.values()) > 0:
        said.read(MESH, ", ".join(f"{axis} = {n}" for axis, n in sizes.items()))
        return sizes
    said.unsaid(MESH if made else "degrees", "dp and tp stay symbolic: it does not say them by numbers, and names of "
                "data and tensor parallelism" if made else "the job that calls it decides: dp and tp stay symbolic")
    return {}


def read_sharding(draft: Draft, calls: Calls, sizes: Mapping[str, int]) -> None:
    """The factor of data parallelism: by which call states are sharded, and how long what is gathered lives."""
    said, parts = draft.said, draft.parts
    wrapper = next((name for name in WRAPPERS if name in calls), "")
    dp, replicas = sizes.get("dp"), sizes.get("dp_replicate")
    if not wrapper:
        for name in [n for n, size in (("dp", dp), ("dp_replicate", replicas)) if size] or ["dp"]:
            parts.axis("dp", **{name: sizes.get(name)})
        said.follows("data", "dp: nothing in the file shards")
        return
    factor = _factor(draft, wrapper, calls[wrapper])
    meshes = [ast.unparse(word.value) for call in calls[wrapper] if (word := _keyword(call, "mesh"))]
    if replicas is None and factor != "hsdp" and not any("," in mesh for mesh in meshes):
        parts.axis(factor, dp)
        said.read(wrapper, f"{factor} over dp")
        return
    parts.axis("hsdp", dp_replicate=replicas, dp_shard=dp)
    if factor == "fsdp_no_reshard":
        parts.say("schedule", "lifetime", {"dp_shard": "microbatch"})
    said.read(wrapper, "hsdp: shards over dp_shard, replicas over dp_replicate")


def _factor(draft: Draft, wrapper: str, calls: list[ast.Call]) -> str:
    """zero3, or what the arguments of the calls say instead."""
    said = draft.said
    key, words = ("reshard_after_forward", RESHARD) if wrapper == "fully_shard" else ("sharding_strategy", FSDP)
    told = {ast.unparse(word.value).rpartition(".")[2].lower() for call in calls if (word := _keyword(call, key))}
    silent = any(_keyword(call, key) is None for call in calls)
    found = {words.get(word, "") for word in told} | ({"zero3"} if silent else set())
    if len(found) == 1 and "" not in found:
        return found.pop()
    said.unsaid(key, f"{', '.join(sorted(told))}: it is said at some calls, or computed; zero3 is read")
    return "zero3"


def read_types(draft: Draft, calls: Calls) -> None:
    """The bytes of a policy of mixed precision, where one is said: torch.distributed.fsdp, MixedPrecisionPolicy."""
    said, parts = draft.said, draft.parts
    name = next((name for name in POLICIES if name in calls), "")
    if not name:
        said.unsaid("[types]", "the job that calls it decides")
        return
    fields = ("param_dtype", "reduce_dtype")
    said_types = {tuple(ast.unparse(word.value).rpartition(".")[2] if (word := _keyword(call, key, at)) else "None"
                        for at, key in enumerate(fields)) for call in calls[name]}
    gathered, reduced = said_types.pop() if len(said_types) == 1 else ("", "")
    if gathered not in BYTES or reduced not in BYTES:
        said.unsaid(name, "its types differ from call to call, or are computed where the file runs")
        return
    wire_w = BYTES[gathered] or 4
    wire = BYTES[reduced] or wire_w
    parts.types("fsdp2", wire_w=wire_w, wire=wire, **({"act": 4, "use": 4} if wire_w == 4 else {}))
    said.read(name, f"[types] wire_w = {wire_w}, wire = {wire}")
    said.unsaid("w", "shards have the type in which the model was made: fp32 is read")


def read_recompute(draft: Draft, calls: Calls) -> None:
    """Whether something is computed again; of what, arguments decide."""
    name = next((name for name in CHECKPOINTS if name in calls), "")
    draft.said.unsaid(name or "recompute", "its arguments decide what is computed again: no recompute is read" if name
                      else "the job that calls it decides")


def _keyword(call: ast.Call, name: str, at: int | None = None) -> ast.keyword | None:
    """A named argument of a call, or the one in a place."""
    found: Iterable[ast.keyword] = (word for word in call.keywords if word.arg == name)
    placed = ast.keyword(name, call.args[at]) if at is not None and at < len(call.args) else None
    return next(iter(found), placed)


def _listed(call: ast.Call, at: int, name: str) -> list[Any]:
    """The values of an argument that is a literal tuple or list, else none."""
    word = _keyword(call, name, at)
    try:
        return list(ast.literal_eval(word.value)) if word else []
    except (ValueError, TypeError):
        return []
