"""Ops as the dispatcher hands them over: which tensors they read, write, and only look at."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, is_traceable_wrapper_subclass_type

from placealg.measure.count import tensors
from placealg.watch.lift.rules import RULES
from placealg.watch.recorder import tables
from placealg.watch.recorder.nodes import Node, below
from placealg.watch.recorder.shadows import PLACES, Region, Shadows

TORCH_FOLDER, OWN_FOLDER, LIBRARY = (os.path.dirname(f) + os.sep for f in (torch.__file__, __file__, os.__file__))


def reads_below(nodes: list[Node], number: int) -> set[str]:
    """The parameters whose gradients, as the optimizer read them, a node depends on."""
    return {node.name for _, node in below(nodes, [number], lambda n: n.kind == "read" or n.phase not in (
        "update", "between")) if node.kind == "read"}


def fresh(node: int, tensor: Tensor) -> Region:
    """The region of a tensor whose elements come from a node, each at its own place."""
    count = tensor.numel()
    return (torch.arange(node << PLACES, (node << PLACES) + count).view(tensor.shape),
            torch.ones(tensor.shape, dtype=torch.float64))


def faking(types: Iterable[type]) -> bool:
    """Whether tensors have no numbers, by their types or by a mode that is on: what runs then is no part of a step."""
    return any(issubclass(t, FakeTensor) for t in types) or any(
        isinstance(m, FakeTensorMode) for m in _get_current_dispatch_mode_stack())


def distinct(tensors: list[Tensor], seen: set[tuple[int, int, tuple[int, ...]]]) -> Iterator[Tensor]:
    """The tensors, each place in memory once; `seen` keeps which were met."""
    for tensor in tensors:
        key = tensor.untyped_storage()._cdata, tensor.storage_offset(), tuple(tensor.shape)
        if key not in seen:
            seen.add(key)
            yield tensor


@lru_cache(maxsize=256)
def wrapper(kind: type) -> bool:
    """Whether a tensor of a type stands for other ones: its ops come back as ops on those."""
    return kind is not FakeTensor and bool(is_traceable_wrapper_subclass_type(kind))


@lru_cache(maxsize=4096)
def only_views(func: Any) -> bool:
    """Whether an op makes nothing but views."""
    schema = func._schema
    return schema.name in tables.TURNED or (bool(schema.returns) and not mutates(func) and all(
        r.alias_info is not None and not r.alias_info.is_write for r in schema.returns))


@lru_cache(maxsize=4096)
def mutates(func: Any) -> bool:
    """Whether an op writes an argument in place."""
    return any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments)


def may_move(func: Any, inputs: list[Tensor], written: list[Tensor]) -> bool:
    """Whether an op that is in no table may put elements of one tensor in another order: it makes as many, in one."""
    name = func._schema.name
    if torch.Tag.pointwise in func.tags or name.startswith(("aten::_foreach_", "aten::_fused_", "aten::_amp_")) or (
            name in tables.GRADIENTS or name in tables.NORMS):
        return False
    return any(t.numel() > 1 and t.numel() == w.numel() for t in inputs for w in written)


UNSAID = {"fsdp::all_gather_copy_in": ("all_gather_output",),
          "aten::native_batch_norm": ("running_mean", "running_var")}
"""Ops that write arguments of which their schemas do not say it."""


@lru_cache(maxsize=4096)
def arguments_written(func: Any) -> tuple[tuple[int, str], ...]:
    """(place, name) of the arguments that an op writes."""
    unsaid = UNSAID.get(func._schema.name, ())
    return tuple((k, a.name) for k, a in enumerate(func._schema.arguments)
                 if a.name in unsaid or (a.alias_info is not None and a.alias_info.is_write))


def written_by(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """The tensors that an op writes in place."""
    for k, name in arguments_written(func):
        yield from tensors(kwargs.get(name, args[k] if k < len(args) else None))


def only_written(func: Any, args: Any, kwargs: Any) -> set[int]:
    """The tensors of which an op reads nothing."""
    return {id(t) for k, name in _outputs(func) for t in tensors(kwargs.get(name, args[k] if k < len(args) else None))}


@lru_cache(maxsize=4096)
def _outputs(func: Any) -> tuple[tuple[int, str], ...]:
    """(place, name) of the arguments of which an op reads nothing."""
    written = {"fsdp::copy_": "tensor", "fsdp::all_gather_copy_in": "all_gather_output"} | dict.fromkeys(
        ("aten::copy_", "aten::zero_", "aten::fill_", "aten::_foreach_copy_", "aten::_foreach_zero_"), "self")
    names = "out", written.get(func._schema.name)
    return tuple((k, a.name) for k, a in enumerate(func._schema.arguments) if a.name in names)


def instead(value: Any, shadows: Shadows, side: int) -> Any:
    """An argument with origins (or factors) in place of elements."""
    if isinstance(value, Tensor):
        return shadows.region(value)[side]
    if isinstance(value, list | tuple):
        return [instead(v, shadows, side) for v in value]
    return value


def draws(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an op draws random numbers: one that drops with probability 0 draws none."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    given = {a.name: v for v, a in zip(args, func._schema.arguments, strict=False)} | dict(kwargs)
    defaults = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
    return all((defaults | given).get(name) != 0 for name in ("dropout_p", "p"))


def phase(modules: Sequence[str], updating: int) -> str:
    """Where a step is, by the modules that run and the optimizers whose step does."""
    if torch._C._current_graph_task_id() != -1:
        return "backward"
    return "update" if updating else "forward" if modules else "between"


def user_line() -> str:
    """FILE:LINE of the nearest frame that is neither torch's, nor the recorder's, nor the standard library's."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.endswith("typing_extensions.py"):  # it wraps what torch calls deprecated
            frame = frame.f_back
            continue
        if of_script(file):
            return f"{os.path.basename(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def of_script(file: str) -> bool:
    """Whether a file is neither torch's, nor the recorder's, nor the standard library's."""
    if file.startswith((TORCH_FOLDER, OWN_FOLDER)):
        return False
    return "site-packages" in file or not file.startswith((LIBRARY, "<"))


@lru_cache(maxsize=4096)
def decomposed(func: Any) -> Any:
    """The ops of which one consists that no rule covers, as torch writes it by others; None if it does not."""
    name = func._schema.name.removeprefix("aten::").removesuffix("_")
    covered = name in RULES or name.startswith("_foreach_") or torch.Tag.nondeterministic_seeded in func.tags
    return None if func.namespace != "aten" or covered or mutates(func) else decomposition_table.get(func)


def numbers(tensor: Tensor) -> Any:
    """The numbers of a tensor; such as numpy has no type for, in float32."""
    flat = tensor.detach().cpu().clone()  # numpy would pin the storage to its size
    if flat.dtype in (torch.bfloat16, torch.float16) or "float8" in str(flat.dtype):
        flat = flat.float()
    return flat.resolve_conj().numpy()


def unwrapped(tensor: Any) -> Tensor:
    """A tensor without what the transforms of `torch.func` put around it."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor
