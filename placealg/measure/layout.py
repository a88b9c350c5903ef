"""A live layout read back: the device mesh and the placements of a model's parameters, as a strategy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import _StridedShard

from placealg.errors import InputError
from placealg.models.names import split_of_name
from placealg.strategy.spec import Strategy, strategy_on

DIMS: Mapping[str, str] = {
    "heads": r"\b(q|k|v|o|wq|wk|wv|wo|qkv|out|(q|k|v|o|qkv|out)_proj|c_attn|to_[qkv])\b",
    "ffn": r"\b(up|gate|down|w[123]|fc[12]|(up|gate|down)_proj|c_fc|linear_fc[12])\b",
    "vocab": r"\b(tokens|embed_tokens|tok_embeddings|wte|lm_head|logits|output|embedding)\b",
}
"""Dim -> what modules are called whose parameters it splits, where no family has the name; the first row holds."""

NORM = re.compile(r"norm|\bln_|layernorm", re.IGNORECASE)
"""What the modules are called that stand between the products."""


def from_torch(model: nn.Module | Mapping[str, Any], mesh: DeviceMesh) -> Strategy:
    """The strategy of a live model, or of its state dict, on a mesh whose dims have names.

    An axis along which every parameter is sharded that has it gathers them for use, as FSDP2 does (S*). One along which
    some are split by heads, ffn or vocab is tensor parallel; with sequence parallelism where norms are placed on it as
    well. An axis along which nothing is split is taken to split the batch, since parameters do not tell. A pipeline
    does not show either: each of its stages is read alone.
    """
    names = tuple(mesh.mesh_dim_names or ())
    if not names:
        raise InputError("the device mesh has no names: make it with mesh_dim_names=(\"dp\", ...)")
    parameters = list(_parameters(model))
    if not parameters:
        raise InputError("there is no parameter whose placement could be read")
    sizes = dict(zip(names, mesh.shape, strict=True))
    split: dict[str, set[str]] = {axis: set() for axis in names}
    present: dict[str, set[str]] = {axis: set() for axis in names}
    for name, tensor in parameters:
        for axis, placement in _placements(name, tensor, names):
            present[axis].add(name)
            if placement.is_shard() or isinstance(placement, _StridedShard):
                split[axis].add(name)
    gathered = [a for a in names if split[a] and len(split[a]) == len(parameters)]
    tensor_axes = [a for a in names if split[a] and a not in gathered]
    dims = {a: _dims(split[a], present[a]) if a in tensor_axes else ["batch"] for a in names}
    states: dict[str, dict[str, str]] = {}
    if gathered:
        states = {"parameters": dict.fromkeys(gathered, "S*"), "optimizer": dict.fromkeys(gathered, "S"),
                  "gradients": dict.fromkeys(gathered, "S")}
    sequence = [a for a in tensor_axes if "seq" in dims[a]]
    if sequence:
        states["activations"] = dict.fromkeys(sequence, "R")
    tables: dict[str, Any] = {"dims": dims, "states": states}
    if gathered and isinstance(model, nn.Module) and _kept(model):
        tables["schedule"] = {"lifetime": dict.fromkeys(gathered, "microbatch")}
    return strategy_on("from_torch", sizes, **tables)


def _parameters(model: nn.Module | Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    found = model.named_parameters() if isinstance(model, nn.Module) else model.items()
    return ((name, tensor) for name, tensor in found if isinstance(tensor, Tensor) and tensor.is_floating_point())


def _placements(name: str, tensor: Tensor, names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """(axis, placement) of a parameter along the axes of its own mesh; a plain tensor has none."""
    if not isinstance(tensor, DTensor):
        return
    for axis, placement in zip(tensor.device_mesh.mesh_dim_names or (), tensor.placements, strict=True):
        if axis not in names:
            raise InputError(f"parameter '{name}' is placed along '{axis}', which the mesh lacks", name=axis,
                             valid=names)
        if placement.is_partial():
            raise InputError(f"parameter '{name}' is a partial sum along '{axis}': no state rests so")
        yield axis, placement


def _dims(split: set[str], present: set[str]) -> list[str]:
    """The entries of an axis along which these parameters are split, and others are placed."""
    found: set[str] = set()
    for name in sorted(split):
        words, known = name.replace(".", " "), split_of_name(name)
        dim = known if known in DIMS else next((d for d, pattern in DIMS.items() if re.search(pattern, words)), "")
        if not dim:
            raise InputError(f"parameter '{name}' is split, and its name does not tell by which dim", valid=DIMS)
        found.add(dim)
    entries = [dim for dim in DIMS if dim in found]
    return ["loss.none", *entries, "seq"] if any(_is_norm(name) for name in present - split) else entries


def _is_norm(name: str) -> bool:
    return split_of_name(name) == "norm" or NORM.search(name) is not None


def _kept(model: nn.Module) -> bool:
    """Whether every unit that FSDP2 wraps, and that has parameters, stays gathered from forward to backward."""
    groups = [group for module in model.modules() if isinstance(module, FSDPModule)
              for group in module._get_fsdp_state()._fsdp_param_groups]
    return bool(groups) and not any(group._reshard_after_forward for group in groups)
