"""What a rank holds of a parameter, and where that stands in the whole, as wrappers say it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
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
    if not getattr(parameter, "tensor_model_parallel", False):
        return shape
    return Size(n * (dist.get_world_size(_tensor_parallel()) if k == parameter.partition_dim else 1)
                for k, n in enumerate(shape))


def _tensor_parallel() -> Any:
    """Megatron-Core's group of ranks over which tensors are cut."""
    return sys.modules["megatron.core.parallel_state"].get_tensor_model_parallel_group()


def split_over(parameter: Any) -> list[tuple[int, ...]]:
    """The groups of ranks over which a parameter is split: of each placement of a DTensor, whatever its mesh calls its
    dims, and of a parameter that DeepSpeed's ZeRO-3 or Megatron-Core splits.
    """
    if not isinstance(parameter, DTensor):
        part = getattr(parameter, "ds_tensor", None)
        if getattr(parameter, "tensor_model_parallel", False):
            return [tuple(dist.get_process_group_ranks(_tensor_parallel()))]
        return [] if part is None else [tuple(dist.get_process_group_ranks(parameter.ds_process_group))]
    mesh = parameter.device_mesh
    at = mesh.get_coordinate()
    if at is None:
        return []
    return [tuple(mesh.mesh[tuple(slice(None) if k == d else c for d, c in enumerate(at))].tolist())
            for k, p in enumerate(parameter.placements) if not p.is_replicate()]


class Part(NamedTuple):
    """Which elements of a whole a rank holds, by flat place, where a tensor is cut and no wrapper says it."""

    elements: Any
    whole: tuple[int, ...]


def parts_of(models: Sequence[nn.Module]) -> dict[int, Part]:
    """The parameters, by what `id` says of them, that DeepSpeed's ZeRO-3, FSDP1 or Megatron-Core cut."""
    found: dict[int, Part] = {}
    for module in (m for part in models for m in part.modules()):
        for parameter in module.parameters(recurse=False):
            if getattr(parameter, "ds_tensor", None) is not None:
                found[id(parameter)] = _run(first_place(parameter), local(parameter).numel(), whole_shape(parameter))
            elif getattr(parameter, "tensor_model_parallel", False):
                found[id(parameter)] = _sharded(module, parameter)
        if getattr(module, "_handle", None) is not None:
            found.update(_flat(module._handle.flat_param))
    return found


def _run(first: int, count: int, whole: Iterable[int]) -> Part:
    return Part(np.arange(first, first + count), tuple(whole))


def _flat(flat: Any) -> Iterator[tuple[int, Part]]:
    """FSDP1's flat parameter, and the parameters that lie in it."""
    infos, at, first, count = flat._shard_param_infos, 0, None, 0
    for info, numel in zip(infos, flat._numels, strict=True):
        if info.in_shard and first is None:
            first = at + info.intra_param_start_idx
        count, at = count + (info.numel_in_shard or 0), at + numel
    yield id(flat), _run(first or 0, count, (at,))
    for parameter, info, shape in zip(flat._params or (), infos, flat._shapes, strict=False):
        yield id(parameter), _run(info.intra_param_start_idx or 0, info.numel_in_shard or 0, shape)


def _sharded(module: nn.Module, parameter: Any) -> Part:
    """A part of Megatron-Core's: a block along a dim; of gates beside what they multiply, a block of each."""
    group, shape, dim = _tensor_parallel(), tuple(whole_shape(parameter)), int(parameter.partition_dim)
    ranks = dist.get_world_size(group)
    gated = bool(getattr(getattr(module, "config", None), "gated_linear_unit", False))
    blocks = 2 if gated and shape[dim] == 2 * module.config.ffn_hidden_size and dim == 0 else 1
    places = np.arange(prod(shape)).reshape(shape)
    mine = [np.array_split(block, ranks, dim)[dist.get_rank(group)] for block in np.array_split(places, blocks, dim)]
    return Part(np.concatenate(mine, dim), shape)


def plain_name(name: str) -> str:
    """A parameter's name without what wrappers add: "module.layers.0._fsdp_wrapped_module.norm.weight" is that of
    "layers.0.norm.weight".
    """
    parts = [p for p in name.split(".") if p not in ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")]
    return ".".join(parts[1:] if parts[:1] == ["module"] else parts)


def is_flat(model: nn.Module) -> bool:
    """Whether parameters are parts of flat ones, as FullyShardedDataParallel (FSDP1) makes them."""
    return any(type(m).__name__ == "FullyShardedDataParallel" for m in model.modules())


def trained_by(models: Sequence[nn.Module]) -> tuple[dict[str, Tensor], dict[str, tuple[str, ...]]]:
    """(the parameters of models that train, by name, name -> the other names of the same one)."""
    found: dict[str, Tensor] = {}
    tied: dict[str, tuple[str, ...]] = {}
    known: dict[int, str] = {}
    for part in models:
        if is_flat(part):
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
