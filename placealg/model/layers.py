"""Which layers of a configuration have an MLP in place of experts, and what of it no model here has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placealg.errors import InputError
from placealg.model.config_file import Config, Field, shown
from placealg.model.experts import BALANCING

ONLY_DENSE = "mlp_only_layers"
"""The field that lists layers with an MLP."""


def first_dense(config: Config, fields: Mapping[str, Field], sizes: Mapping[str, int]) -> int:
    """How many layers with an MLP come before those of experts; an InputError where they come anywhere else."""
    layers, step = sizes["L"], sizes.get("sparse_step", 1)
    if "f_dense" not in fields:
        return 0
    if step > 1:
        key = config.name(fields["sparse_step"])
        raise InputError(f"{key} = {step} puts layers with an MLP between layers of experts, which is not read; what "
                         f"fits: {key} = 1, and dense layers first", where=config.place(key))
    if "L_dense" in fields:
        config.at_most("L_dense", "L", fields, sizes)
        return sizes["L_dense"]
    listed = config.data.get(ONLY_DENSE) or []
    if not isinstance(listed, list) or any(type(k) is not int or not 0 <= k < layers for k in listed):
        raise InputError(f"{ONLY_DENSE} = {shown(listed)}: a list of layers, of 0 to {layers - 1}",
                         where=config.place(ONLY_DENSE))
    dense = len(set(listed))
    if listed and max(listed) >= dense:
        raise InputError(f"{ONLY_DENSE} = {shown(listed)} puts layers with an MLP behind layers of experts, which is "
                         f"not read; what fits: the first layers, {shown(list(range(dense)))}",
                         where=config.place(ONLY_DENSE))
    if dense and not sizes.get("f_dense"):
        raise config.missing(fields["f_dense"])
    return dense


def left_out(data: Mapping[str, Any], routed: bool, predicting: int) -> tuple[str, ...]:
    """What a configuration has and its model lacks, each in words; `routed` says whether the model has experts.

    `predicting` are the layers that predict tokens after the next one (DeepSeek-V3, arXiv 2412.19437, section 2.2).
    """
    found = [BALANCING] if routed else []
    if routed and data.get("topk_method") == "noaux_tc":
        found.append("the bias of the experts' scores, which the load moves and no gradient: one number per expert")
    if predicting:
        found.append(f"the layers that predict tokens after the next (num_nextn_predict_layers = {predicting}), with "
                     "their parameters and their loss")
    return tuple(found)
