"""What Megatron computes again in backward, by the flags of several years."""

from __future__ import annotations

from placealg.importers.draft import Draft
from placealg.importers.key_log import Said

REGIONS = {"core_attn": ("core",), "layernorm": ("norm1", "norm2"), "mlp": ("mlp",),
           "shared_experts": ("shared_expert",), "moe": ("moe",)}
"""Module of recompute-modules -> the regions of activations that are M."""

LAYER = "moe-layer-recompute"

KEYS = ("recompute-activations", "recompute-granularity", "recompute-method", "recompute-num-layers",
        "recompute-modules", "checkpoint-activations", "checkpoint-num-layers", "activations-checkpoint-method",
        "activations-checkpoint-num-layers", "distribute-saved-activations",
        "distribute-checkpointed-activations", LAYER)
OFF = (None, "", "none", "null", False)


def read_recompute(draft: Draft, said: Said, layers: int | None, pp: int) -> None:
    """Read the flags of recomputation, of which each year had its own."""
    granularity = said.raw("recompute-granularity")
    if said.flag("checkpoint-activations"):
        _every(draft, said, "checkpoint-activations", "checkpoint-num-layers")
    elif said.raw("activations-checkpoint-method") not in OFF:
        method = said.raw("activations-checkpoint-method")
        if method == "block":
            _block(draft, said, "activations-checkpoint-num-layers", layers, pp)
        else:
            _every(draft, said, "activations-checkpoint-method", "activations-checkpoint-num-layers")
        said.leave("activations-checkpoint-method", "as read")
    elif granularity == "full":
        _full(draft, said, layers, pp)
    elif granularity == "selective" or (granularity in OFF and (said.flag("recompute-activations") or _sparse(said))):
        _selective(draft, said)
    elif granularity in OFF:
        said.leave("recompute-granularity", "nothing is computed again")
    else:
        raise said.refuse("recompute-granularity", f"recompute-granularity {granularity}: full or selective are read")
    if said.flag(LAYER) and (granularity == "full" or said.raw("num-experts") in (*OFF, "1", 1)):
        said.leave(LAYER, "within the layers that are computed again" if granularity == "full" else "no experts")
    split = "distribute-saved-activations"
    split = "distribute-checkpointed-activations" if said.flag("distribute-checkpointed-activations") else split
    if said.flag(split):
        said.approximated(split, "what a layer keeps is split over tp, and gathered again: "
                                                          "activations are overstated, traffic understated")
    for key in KEYS:
        said.leave(key, "off, or told with the rest")


def _sparse(said: Said) -> bool:
    """Whether the mixtures of experts are computed again by the flag of their own."""
    return said.flag(LAYER) and said.raw("num-experts") not in (*OFF, "1", 1)


def read_offload(draft: Draft, said: Said) -> None:
    """The layers whose activations rest on the host, which Megatron has without stages and recomputation alone."""
    key = "cpu-offloading-num-layers"
    layers = said.number(key, 0) or 0
    if layers > 0:
        for other in ("pipeline-model-parallel-size", "recompute-granularity"):
            if said.raw(other) not in (*OFF, 1, "1"):
                raise said.refuse(key, f"{key} {layers} beside {other} {said.raw(other)}, which Megatron does not take")
        draft.parts.modifier("offload_activations")
        draft.parts.say("schedule", "offload_layers", {"first": layers})
        said.read(key, f"offload_activations, in the first {layers} layers")
    else:
        said.leave(key, "nothing is offloaded")
    said.leave("cpu-offloading", "cpu-offloading-num-layers says in how many layers")


def _every(draft: Draft, said: Said, key: str, count_key: str) -> None:
    """Every layer is computed again; of k > 1 only every k-th input is kept."""
    count = said.whole(count_key, said.value(count_key)) or 1
    draft.parts.modifier("recompute_full")
    said.read(key, "recompute_full")
    if count > 1:
        said.approximated(count_key, f"the input of every {count}. layer alone is kept: activations are overstated")
    else:
        said.leave(count_key, "every layer's input is kept")


def _block(draft: Draft, said: Said, key: str, layers: int | None, pp: int) -> None:
    """N layers of each stage."""
    count = said.number(key) or 1
    if layers is not None and count >= layers // pp:
        draft.parts.modifier("recompute_full")
        said.read(key, "recompute_full: every layer of a stage")
        return
    said.approximated(key, f"{count} layers of each stage are computed again; here none is: activations are "
                           "overstated, and the verdict does not cover what is computed again")


def _full(draft: Draft, said: Said, layers: int | None, pp: int) -> None:
    """Granularity full, by its method."""
    method = said.raw("recompute-method")
    if method == "block":
        _block(draft, said, "recompute-num-layers", layers, pp)
        said.leave("recompute-granularity", "full, of blocks")
        return
    count = said.whole("recompute-num-layers", said.raw("recompute-num-layers")) or 1
    draft.parts.modifier("recompute_full")
    said.read("recompute-granularity", "recompute_full")
    if count > 1:
        said.approximated("recompute-num-layers", f"the input of every {count}. layer alone is kept: activations are "
                                                  "overstated")


def _selective(draft: Draft, said: Said) -> None:
    """Granularity selective, by its modules."""
    value = said.value("recompute-modules")
    modules = value if isinstance(value, list) else str(value).replace(",", " ").split()
    key = next((k for k in ("recompute-granularity", "recompute-activations") if said.has(k)), LAYER)
    if _sparse(said):
        modules = [*modules, *(["moe"] if "moe" not in modules else [])]
        said.read(LAYER, "region moe, beside the modules of recompute-granularity selective, core_attn by default "
                         "(before Megatron-Core 0.12 without it)")
    regions: list[str] = []
    unknown = []
    for module in modules:
        regions += REGIONS.get(str(module), ())
        if str(module) not in REGIONS:
            unknown.append(str(module))
    if regions == ["core"]:
        draft.parts.modifier("recompute_selective")
        said.read(key, "recompute_selective: the attention core (with flash attention nothing is kept there)")
    elif regions:
        draft.parts.say("states", "activations", {f"region:{r}": "M" for r in regions})
        said.read(key, f"[states] activations: {', '.join(regions)} are M")
    else:
        said.leave(key, "its modules are listed one by one")
    if unknown:
        raise said.refuse("recompute-modules", f"recompute-modules {' '.join(unknown)}: of no region here, so that "
                          "what is computed again in backward cannot be said",
                          "--key recompute-modules=core_attn leaves it out")
    if said.has("recompute-modules"):
        said.read("recompute-modules", f"regions {', '.join(regions)}")
