"""What torchtitan makes of its degrees: the mesh, the states over it, stages, and the bytes of FSDP2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from placealg.importers.draft import Draft
from placealg.importers.pipeline_csv import place_order, rows_beside
from placealg.importers.reading import refusal
from placealg.importers.token_attributes import read_owners
from placealg.models.config import resolve_model
from placealg.strategy.vocabulary import EACH, NONE

SCHEDULES = {"1f1b": "pp", "gpipe": "pp_gpipe", "interleaved1f1b": "pp_interleaved", "loopedbfs": "pp_interleaved",
             "interleaved_1f1b": "pp_interleaved", "interleaved-1f1b": "pp_interleaved",
             "interleavedzerobubble": "pp_interleaved_zb", "zbvzerobubble": "pp_zb_v", "dualpipev": "pp_dualpipe_v"}
"""The schedules of torch.distributed.pipelining -> their catalogue names."""

IN_TURNS, IN_A_V = ("pp_interleaved", "pp_interleaved_zb"), ("pp_zb_v", "pp_dualpipe_v")
"""Those with several stages per rank: as many as are said, or two."""

BALANCED = ("parallelism.context_parallel_load_balancer", "parallelism.context_parallel_load_balance")
"""Keys that say in which parts ranks share a sequence, the second of them in forks and in 2025."""

WHOLE = {"norms": "*norm*", "embedding": "embedding.*", "logits": "head.weight"}
"""[groups] of what a conversion of linears to fp8 leaves alone."""


@dataclass
class Degrees:
    """Degrees as torchtitan has them.

    `shard` is None where it follows from the world, `first_less` and `last_less` where layers are split evenly; with
    `ddp` the ranks of `shard` hold everything; `actions` is the file of an order that is written down. `low_rank` is
    the word under which tensor parallelism runs the low-rank products of latent attention whole, "" without these;
    `routed` says whether the model has experts.
    """

    replicate: int = 1
    shard: int | None = None
    tensor: int = 1
    context: int = 1
    pipeline: int = 1
    expert: int = 1
    expert_tensor: int = 1
    reshard: str = "default"
    sequence_parallel: bool = True
    rotate: str = "allgather"
    schedule: str = "1F1B"
    layers_per_stage: int | None = None
    first_less: int | None = 1
    last_less: int | None = 1
    ddp: bool = False
    actions: str = ""
    low_rank: str = ""
    routed: bool = False


def place(draft: Draft, degrees: Degrees, keys: Mapping[str, str]) -> int | None:
    """Put the axes in, and answer the number of ranks of data, None where it is open."""
    shard = _shard(draft, degrees, keys)
    _data(draft, degrees, shard, keys)
    _context(draft, degrees, keys)
    _tensor(draft, degrees, keys)
    _expert(draft, degrees, shard, keys)
    if degrees.pipeline == 1:
        for name in ("schedule", "layers_per_stage", "first_less", "last_less"):
            draft.said.inactive(keys[name], "no pipeline")
    return None if shard is None else shard * degrees.replicate


def _shard(draft: Draft, degrees: Degrees, keys: Mapping[str, str]) -> int | None:
    """The shard degree, from the world where the file leaves it open."""
    other = degrees.replicate * degrees.tensor * degrees.context * degrees.pipeline
    if degrees.shard is not None:
        world = draft.options.world_size
        if world is not None and world != degrees.shard * other:
            raise refusal(f"the degrees make {degrees.shard * other} devices, --world-size {world}",
                          draft.said.where(keys["shard"]))
        return degrees.shard
    return draft.divided(draft.options.world_size, other, "the degrees")


def _data(draft: Draft, degrees: Degrees, shard: int | None, keys: Mapping[str, str]) -> None:
    """Replicas and shards."""
    said, parts = draft.said, draft.parts
    axis = "dp"
    if degrees.ddp:
        parts.axis("dp", shard)
        said.read(keys["shard"], "dp over the ranks of data (DDP)")
        said.inactive(keys["reshard"], "nothing is gathered")
        return
    if degrees.replicate > 1 and degrees.shard == 1:
        parts.axis("dp", degrees.replicate)
        said.read(keys["replicate"], f"dp over {degrees.replicate} replicas (DDP)")
        said.inactive(keys["shard"], "1: nothing is sharded")
        said.inactive(keys["reshard"], "nothing is gathered")
        return
    if degrees.replicate > 1:
        parts.axis("hsdp", dp_replicate=degrees.replicate, dp_shard=_dense(degrees, shard))
        said.read(keys["replicate"], f"hsdp with {degrees.replicate} replicas")
        axis = "dp_shard"
    else:
        said.leave(keys["replicate"], "1: no replicas")
        plain = degrees.reshard != "never" or degrees.pipeline > 1
        parts.axis("zero3" if plain else "fsdp_no_reshard", _dense(degrees, shard))
    said.read(keys["shard"], "parameters, optimizer and gradients sharded over the ranks of data")
    if degrees.pipeline > 1:
        parts.say("schedule", "lifetime", {axis: "step"})
        parts.accumulate_whole(axis)
        said.read(keys["reshard"], f"[schedule] lifetime of {axis} = \"step\", [states] gradients = R: under a "
                                   "pipeline "
                                   "parameters are gathered once and gradients reduced once a step")
    elif degrees.reshard == "never":
        if degrees.replicate > 1:
            parts.say("schedule", "lifetime", {axis: "microbatch"})
        said.read(keys["reshard"], "gathered once per microbatch")
    else:
        said.read(keys["reshard"], "gathered for each use")
        if degrees.reshard != "always":
            said.approximated("norm and output", "they stay gathered after forward (fsdp.py:258-264), and before "
                                                 "2025-10 "
                                                 "the last layer, too; here each unit is gathered for each use")


def _dense(degrees: Degrees, shard: int | None) -> int | None:
    """The ranks of the data axis that expert parallelism leaves."""
    return None if shard is None else max(1, shard // _ep(degrees))


def _ep(degrees: Degrees) -> int:
    """The ranks of data that expert parallelism takes."""
    if degrees.expert == 1:
        return 1
    return degrees.expert // degrees.tensor if _split_over_tensor(degrees) else degrees.expert


def _split_over_tensor(degrees: Degrees) -> bool:
    return degrees.tensor > 1 and degrees.expert_tensor == 1 and degrees.expert % degrees.tensor == 0


def _context(draft: Draft, degrees: Degrees, keys: Mapping[str, str]) -> None:
    """Context parallelism, over which FSDP shards, too."""
    said, parts = draft.said, draft.parts
    if degrees.context == 1:
        said.leave(keys["context"], "1: no context parallelism")
        said.inactive(keys["rotate"], "no context parallelism")
        read_owners(draft, BALANCED, False)
        return
    ring = degrees.rotate == "alltoall"
    parts.axis("cp_ring" if ring else "cp", degrees.context)
    said.read(keys["context"], f"{'cp_ring' if ring else 'cp'} over {degrees.context} ranks; states over dp and cp")
    said.read(keys["rotate"], "how keys and values travel")
    read_owners(draft, BALANCED, True)
    axes = [a for _, sizes in parts.factors for a in sizes if a in ("dp", "dp_shard", "cp")]
    if len(axes) > 1:
        if degrees.pipeline > 1:
            parts.say("schedule", "lifetime", dict.fromkeys(axes, "step"))
            parts.say("states", "gradients", dict.fromkeys(axes, "R"))
        elif degrees.reshard == "never":
            parts.say("schedule", "lifetime", dict.fromkeys(axes, "microbatch"))


def _tensor(draft: Draft, degrees: Degrees, keys: Mapping[str, str]) -> None:
    """Tensor parallelism."""
    said, parts = draft.said, draft.parts
    if degrees.tensor == 1:
        said.leave(keys["tensor"], "1: no tensor parallelism")
        said.leave(keys["sequence_parallel"], "no tensor parallelism")
        return
    name = "tp_sp_keep" if degrees.sequence_parallel else "tp"
    parts.axis(name, degrees.tensor)
    said.read(keys["tensor"], f"{name} over {degrees.tensor} ranks")
    if degrees.low_rank or degrees.routed:
        parts.say("dims", "tp", tensor_dims(degrees.low_rank, GATHERED if degrees.routed else (),
                                            degrees.sequence_parallel))
    if degrees.routed and not _split_over_tensor(degrees):
        said.follows("routed tokens", f"[dims] tp: {', '.join(GATHERED)}: router and dispatch run on gathered tokens, "
                                      "and what experts make is summed where tokens are combined")
    if degrees.low_rank:
        said.follows("low-rank products", f"[dims] tp: attn.{degrees.low_rank}, the low-rank products of latent "
                                          "attention run on gathered tokens, and their gradients are summed "
                                          + ("where these were gathered" if degrees.low_rank == EACH else
                                             "where heads read them"))
    said.leave(keys["sequence_parallel"], "as read")


GATHERED = (f"router.{EACH}", f"dispatch.{EACH}", f"combine.{NONE}")
"""The entries of an axis that splits every expert's ffn, under which tokens are gathered before their router."""


def tensor_dims(low_rank: str, experts: tuple[str, ...], sequence: bool) -> list[str]:
    """The dims of tp; with `low_rank` what of attention has no heads runs whole under that word.

    >>> tensor_dims("each", (), True)
    ['loss.none', 'attn.heads', 'attn.each', 'heads', 'ffn', 'vocab', 'seq']
    """
    return ["loss.none", *(["attn.heads", f"attn.{low_rank}"] if low_rank else []),
            *experts, "heads", "ffn", "vocab", *(["seq"] if sequence else [])]


def is_routed(model: str) -> bool:
    """Whether a model has experts."""
    return any(op.output.endswith("router.logits") for op in resolve_model(model).graph.ops)


def low_rank(model: str, typed: bool) -> str:
    """How tensor parallelism runs the low-rank products of a model: with spmd_types (`typed`) or DTensor; "" without.

    spmd_types has them on tokens that each rank uses for its own heads, so that gradients are partial down to where
    tokens were gathered; under DTensor the norm behind a product wants whole gradients (models/deepseek_v3/sharding.py;
    infra/parallelize.py of 2026-02: NoParallel).
    """
    latent = any(op.output.endswith(".kv_down") for op in resolve_model(model).graph.ops)
    return (EACH if typed else NONE) if latent else ""


def _expert(draft: Draft, degrees: Degrees, shard: int | None, keys: Mapping[str, str]) -> None:
    """Expert parallelism, which borrows ranks of data, and of tensor parallelism where experts are not split by it."""
    said, parts = draft.said, draft.parts
    if degrees.expert == 1:
        said.leave(keys["expert"], "1: no expert parallelism")
        said.inactive(keys["expert_tensor"], "not read without expert parallelism")
        return
    if degrees.context > 1:
        raise said.refuse(keys["expert"], "expert parallelism borrows ranks of context parallelism, which is not read")
    ep = _ep(degrees)
    if shard is not None and shard % ep:
        raise said.refuse(keys["expert"], f"{shard} ranks of data are not a multiple of the {ep} of expert "
                                          "parallelism")
    if degrees.tensor > 1 and degrees.expert_tensor not in (1, degrees.tensor):
        raise said.refuse(keys["expert_tensor"], f"expert_tensor_parallel_degree {degrees.expert_tensor} is neither 1 "
                          f"nor {degrees.tensor}")
    if degrees.tensor > 1 and degrees.expert_tensor == 1 and degrees.expert % degrees.tensor:
        raise said.refuse(keys["expert"], f"experts over {degrees.expert} ranks, not a multiple of tp = "
                                          f"{degrees.tensor}")
    if ep > 1:
        parts.axis("ep", ep)
    if _split_over_tensor(degrees):
        parts.say("dims", "tp", tensor_dims(degrees.low_rank, ("expert.expert",),
                                            degrees.sequence_parallel))
    said.read(keys["expert"], f"experts over {degrees.expert} ranks: ep = {ep}"
              + (" times tp" if _split_over_tensor(degrees) else ""))
    said.leave(keys["expert_tensor"], "as read")


def stages(draft: Draft, degrees: Degrees, layers: int | None, keys: Mapping[str, str]) -> str:
    """Put the pipeline in; the answer is its catalogue name, "" without one."""
    said, parts = draft.said, draft.parts
    if degrees.pipeline == 1:
        return ""
    if degrees.actions:
        return _written_down(draft, degrees, layers, keys)
    name = SCHEDULES.get(degrees.schedule.lower())
    if not name:
        raise said.refuse(keys["schedule"], f"{degrees.schedule}: a schedule that no pipeline here runs")
    parts.axis(name, degrees.pipeline)
    said.read(keys["pipeline"], f"{name} over {degrees.pipeline} ranks")
    said.read(keys["schedule"], f"{name}")
    chunks = 1
    if name in (*IN_TURNS, *IN_A_V):
        chunks = 2
        if degrees.layers_per_stage and layers:
            count = -(-(layers + (degrees.first_less or 0) + (degrees.last_less or 0)) // degrees.layers_per_stage)
            if count % degrees.pipeline:
                raise said.refuse(keys["layers_per_stage"], f"{count} stages are not a multiple of "
                                                            f"{degrees.pipeline} ranks")
            chunks = count // degrees.pipeline
        elif degrees.layers_per_stage:
            said.unsaid(keys["layers_per_stage"], "chunks follow from the layers of a model that is not read: 2 "
                                                  "stages "
                                                  "per rank", "--model")
        if name in IN_TURNS:
            parts.say("schedule", "chunks", chunks)
        elif chunks != 2:
            raise said.refuse(keys["layers_per_stage"], f"{chunks} stages per rank: {degrees.schedule} has 2")
        said.read(keys["layers_per_stage"], f"[schedule] chunks = {chunks}", None if said.has(
            keys["layers_per_stage"]) else "2 stages per rank")
    elif degrees.layers_per_stage:
        said.leave(keys["layers_per_stage"], "one stage per rank")
    _uneven(draft, degrees, layers, chunks, keys)
    return name


def _written_down(draft: Draft, degrees: Degrees, layers: int | None, keys: Mapping[str, str]) -> str:
    """Put the pipeline of a CSV of actions in; the answer is its catalogue name."""
    said, key = draft.said, keys["actions"]
    rows, file = rows_beside(degrees.actions, said, draft.options, key)
    table = place_order(draft.parts, said, rows, file, key)
    if table.ranks != degrees.pipeline:
        raise said.refuse(key, f"{degrees.actions} is of {table.ranks} ranks, and the degree is {degrees.pipeline}")
    said.read(keys["pipeline"], f"pp = {table.ranks}")
    said.inactive(keys["schedule"], "the class that runs the actions")
    said.inactive(keys["layers_per_stage"], "the actions say how many stages a rank has")
    _uneven(draft, degrees, layers, table.chunks, keys)
    return draft.parts.factors[-1][0]


def _uneven(draft: Draft, degrees: Degrees, layers: int | None, chunks: int, keys: Mapping[str, str]) -> None:
    """The layers of each stage, where the first and the last have fewer."""
    said, first, last = draft.said, degrees.first_less, degrees.last_less
    if first is None or last is None:
        return
    if layers is None:
        for key in (keys["first_less"], keys["last_less"]):
            if not said.accounted(said.path(key)):
                said.approximated(key, "the layers of stages follow from those of a model that is not read: even here")
        return
    count = degrees.pipeline * chunks
    each, more = divmod(layers + first + last, count)
    sizes = [each + (k < more) for k in range(count)]
    sizes[0] -= first
    sizes[-1] -= last
    if min(sizes) < 0 or 0 in sizes[1:-1]:
        raise said.refuse(keys["pipeline"], f"{layers} layers on {count} stages leave one without a layer")
    if len(set(sizes)) > 1:
        draft.parts.say("schedule", "stages", sizes)
    for key in (keys["first_less"], keys["last_less"]):
        said.read(key, f"[schedule] stages = {sizes}")


def float8_gather(draft: Draft, key: str) -> None:
    """Linears are gathered in 8 bits; what is no linear, in 16."""
    draft.parts.types(wire_w=1, use=1)
    for name, match in WHOLE.items():
        draft.parts.say("groups", name, {"match": match, "types": {"wire_w": 2, "use": 2}})
    draft.said.read(key, "[types] wire_w = use = 1; [groups] of norms, embedding and logits keep 2")


def float8_compute(draft: Draft, key: str) -> None:
    """Linears compute in fp8."""
    draft.said.approximated(key, "linears compute in fp8: their saved inputs are costed at act; the verdict does not "
                                 "cover scales")
