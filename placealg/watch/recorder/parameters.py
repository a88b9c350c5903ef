"""What a rank holds of a parameter, and where that stands in the whole, as wrappers say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Size, Tensor, nn
from torch.distributed.tensor import DTensor

from placealg.errors import InputError


def local(tensor: Any) -> Tensor:
    """What this rank holds of a tensor: of a DTensor, or of a parameter that DeepSpeed's ZeRO-3 splits, its part."""
    if isinstance(tensor, DTensor):
        return tensor._local_tensor
    whole: Tensor = tensor
    part: Tensor | None = getattr(tensor, "ds_tensor", None)
    if part is None:
        return whole
    return part.detach().flatten()[:max(int(tensor.ds_numel) - first_place(tensor), 0)]  # the last part is padded


def first_place(parameter: Any) -> int:
    """The place in the whole parameter, flat, of the first element of a part that ZeRO-3 of DeepSpeed split off."""
    part = getattr(parameter, "ds_tensor", None)
    return 0 if part is None else int(part.ds_numel) * dist.get_rank(parameter.ds_process_group)


def whole_shape(parameter: Any) -> Size:
    """The shape of the whole parameter, wherever it rests."""
    shape: Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape


def split_over(parameter: Any) -> list[tuple[int, ...]]:
    """The groups of ranks over which a parameter is split: of each placement of a DTensor, whatever its mesh calls its
    dims, and of a parameter that DeepSpeed's ZeRO-3 splits.
    """
    if not isinstance(parameter, DTensor):
        part = getattr(parameter, "ds_tensor", None)
        return [] if part is None else [tuple(dist.get_process_group_ranks(parameter.ds_process_group))]
    mesh = parameter.device_mesh
    at = mesh.get_coordinate()
    if at is None:
        return []
    return [tuple(mesh.mesh[tuple(slice(None) if k == d else c for d, c in enumerate(at))].tolist())
            for k, p in enumerate(parameter.placements) if not p.is_replicate()]


class Part(NamedTuple):
    """What a rank holds of a tensor that is cut without a wrapper that says so: elements from a flat place on."""

    first: int
    length: int
    whole: tuple[int, ...]


def parts_of(models: Sequence[nn.Module]) -> dict[int, Part]:
    """The parameters, by what `id` says of them, that DeepSpeed's ZeRO-3 or FullyShardedDataParallel cut."""
    found: dict[int, Part] = {}
    for part in models:
        for parameter in part.parameters():
            if getattr(parameter, "ds_tensor", None) is not None:
                found[id(parameter)] = Part(first_place(parameter), local(parameter).numel(),
                                            tuple(whole_shape(parameter)))
        for flat in (m._handle.flat_param for m in part.modules() if getattr(m, "_handle", None) is not None):
            infos, at, first, count = flat._shard_param_infos, 0, None, 0
            for info, numel in zip(infos, flat._numels, strict=True):
                if info.in_shard and first is None:
                    first = at + info.intra_param_start_idx
                count, at = count + (info.numel_in_shard or 0), at + numel
            found[id(flat)] = Part(first or 0, count, (at,))
            for parameter, info, shape in zip(flat._params or (), infos, flat._shapes, strict=False):
                found[id(parameter)] = Part(info.intra_param_start_idx or 0, info.numel_in_shard or 0, tuple(shape))
    return found


def plain_name(name: str) -> str:
    """A parameter's name without what wrappers add: "module.layers.0._fsdp_wrapped_module.norm.weight" is that of
    "layers.0.norm.weight".
    """
    parts = [p for p in name.split(".") if p not in ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")]
    return ".".join(parts[1:] if parts[:1] == ["module"] else parts)


def trained_by(models: Sequence[nn.Module]) -> tuple[dict[str, Tensor], dict[str, tuple[str, ...]]]:
    """(the parameters of models that train, by name, name -> the other names of the same one)."""
    found: dict[str, Tensor] = {}
    tied: dict[str, tuple[str, ...]] = {}
    known: dict[int, str] = {}
    for part in models:
        if any(type(m).__name__ == "FullyShardedDataParallel" for m in part.modules()):
            raise InputError("parameters of FullyShardedDataParallel (FSDP1) are parts of flat ones, which are not "
                             "followed: wrap modules by fully_shard (FSDP2)")
        for name, parameter in part.named_parameters(remove_duplicate=False):
            name = plain_name(name)
            if id(parameter) in known:
                first = known[id(parameter)]
                tied[first] = (*tied.get(first, ()), name)
            elif parameter.requires_grad:
                known[id(parameter)] = name
                found[name] = parameter
    if not found:
        raise InputError("the model has no parameter that trains")
    return found, tied


def settings_of(optimizer: Any, group: Mapping[str, Any]) -> str:
    """The numbers by which an optimizer updates a group of parameters, as text."""
    said = {k: float(v) if isinstance(v, Tensor) and v.numel() == 1 else v for k, v in sorted(group.items())
            if k not in ("params", "initial_lr", "param_names", "params_rank")}
    return "; ".join((type(optimizer).__name__, *(f"{k}={v}" for k, v in said.items()
                                                  if isinstance(v, bool | int | float | str | tuple | None))))
