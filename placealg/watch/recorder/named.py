"""What a step trains: the parameters of its models, and what optimizers keep of them, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._python_dispatch import _disable_current_modes

from placealg.watch.lift.trace import Held
from placealg.watch.recorder.ops import numbers, unwrapped
from placealg.watch.recorder.parameters import local, parts_of, plain_name

if TYPE_CHECKING:
    from placealg.watch.recorder.trace import Tracer


def _sizes(grad: Any) -> Any:
    """The sizes of the numbers that a rank holds of a gradient."""
    return np.zeros(0) if grad is None else np.abs(numbers(local(grad)))


def elements_of(tensor: Any) -> tuple[Any, tuple[int, ...]]:
    """(which elements of the whole a rank holds, by flat place; the whole's shape), as its wrapper says."""
    if isinstance(tensor, DTensor):
        whole = torch.arange(tensor.numel()).view(tensor.shape)
        mine = distribute_tensor(whole, tensor.device_mesh, tensor.placements, src_data_rank=None).to_local()
        return mine.numpy().copy(), tuple(tensor.shape)
    return np.arange(tensor.numel()).reshape(tuple(tensor.shape)), tuple(tensor.shape)


class Names:
    """The parameters of the models, and what optimizers keep of them."""

    def __init__(self, tracer: Tracer, models: Sequence[nn.Module]):
        self.tracer, self.models = tracer, models
        self.parameters: dict[str, Tensor] = {}

    def begin(self) -> None:
        """Name the parameters."""
        self.states: dict[str, Tensor] = {}
        self.copied: set[int] = set()
        self.pieces: dict[str, tuple[Any, int, int]] = {}
        self.optimizer: Any = None
        self.buffers = {plain_name(name): buffer for part in self.models for name, buffer in part.named_buffers()
                        if buffer.is_floating_point() and buffer.numel()}
        called = self.called()
        self.parts = parts_of(self.models)
        self.parameters = {name: p for name, (p, _) in called.items()}
        with _disable_current_modes():
            for name, (parameter, trained) in called.items():
                self.tracer.trace.named[name] = self.held(parameter, trained)
                if parameter.grad is not None:
                    self.tracer.leaf(local(parameter.grad))
            for name, buffer in self.buffers.items():
                self.tracer.trace.named[name] = self.held(buffer)
        self.tracer.trace.begun = self.tracer.trace.begun or len(self.tracer.stores)

    def called(self) -> dict[str, tuple[Tensor, bool]]:
        """Name -> (parameter, whether it trains); of what a functional call puts in its place, the tensor inside."""
        known: dict[int, str] = {}
        found: dict[str, tuple[Tensor, bool]] = {}
        for k, part in enumerate(self.models):
            for own, parameter in part.named_parameters(remove_duplicate=False):
                name, inside = plain_name(own), unwrapped(parameter)
                if name in found and found[name][0] is not inside and id(parameter) not in known:
                    name, self.tracer.trace.clash = f"model {k}: {name}", True
                first = known.setdefault(id(parameter), name)
                if first == name:
                    found[first] = inside, bool(parameter.requires_grad)
                else:
                    self.tracer.trace.tied[name] = first
        return found

    def held(self, tensor: Any, trained: bool = True, like: Any = None) -> Held:
        """What this rank holds of a named tensor."""
        mine = local(tensor).detach()
        self.tracer.leaf(mine)
        self.tracer.moved([mine])
        part = self.parts.get(id(tensor if like is None else like))
        if part is not None:
            elements, whole = part
            mine = mine if mine.numel() == elements.size else mine[:elements.size]  # what is behind it is padding
            elements = elements.reshape(tuple(mine.shape))
        else:
            elements, whole = elements_of(tensor if like is None else like)
        if elements.shape != tuple(mine.shape):
            elements, whole = np.arange(mine.numel()).reshape(tuple(mine.shape)), tuple(mine.shape)
        return Held(self.tracer.place(mine, False), elements, whole, numbers(mine), trained)

    def before(self, optimizer: Any, args: Any = None, kwargs: Any = None) -> None:
        """An optimizer begins its step: keep where gradients and moments stand."""
        self.tracer.updating += 1
        self.optimizer = optimizer
        labels = {id(p): name for name, p in self.parameters.items()}
        trace = self.tracer.trace
        with _disable_current_modes():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    name = labels.get(id(parameter))
                    if name is None:
                        self.copy(parameter, optimizer.state.get(parameter, {}))
                        continue
                    grad = parameter.grad
                    if grad is not None:
                        self.tracer.leaf(local(grad))
                        self.tracer.check([local(grad)])
                    trace.gradients.setdefault(name, (len(trace.ops), None if grad is None else self.tracer.place(
                        local(grad), False), _sizes(grad)))
                    self.keep_states(name, parameter, optimizer.state.get(parameter, {}))

    def copy(self, tensor: Any, state: Mapping[str, Any]) -> None:
        """Name a tensor that an optimizer updates in place of parameters, by what it holds of which."""
        mine = local(tensor).detach()
        if not mine.is_contiguous() or mine.untyped_storage()._cdata in self.copied:
            return
        self.copied.add(mine.untyped_storage()._cdata)
        flat = numbers(mine).ravel()
        kept = {"": tensor} | {f".{k}": v for k, v in state.items()
                               if isinstance(v, Tensor) and local(v).shape == mine.shape and local(v).is_contiguous()}
        counts = {f".{k}": v for k, v in state.items() if isinstance(v, Tensor) and v.numel() == 1}
        for label, first, count, elements in pieces(flat, {n: (numbers(local(p)).ravel(), self.tracer.trace.named[n])
                                                           for n, p in self.parameters.items()}):
            for suffix, value in (kept | counts).items():
                whole, one = self.held(value), value.numel() == 1 and suffix in counts
                place = whole.place if one else whole.place._replace(
                    offset=whole.place.offset + first, shape=(count,), stride=(1,))
                start = _as_it_began(self.tracer, whole).start.ravel()
                name = f"{label}{suffix}@copy{len(self.copied)}"
                self.tracer.trace.named[name] = Held(place, whole.elements if one else elements,
                                                     whole.whole if one else self.tracer.trace.named[label].whole,
                                                     start if one else start[first:first + count])
                self.pieces[name] = value, first, 0 if one else count

    def keep_states(self, name: str, parameter: Any, state: Mapping[str, Any]) -> None:
        """Name what an optimizer keeps of a parameter."""
        for key, value in state.items():
            label = f"{name}.{key}"
            if isinstance(value, Tensor) and local(value).is_floating_point() and label not in self.tracer.trace.named:
                like = parameter if local(value).shape == local(parameter).shape else None
                first = local(value).untyped_storage()._cdata in self.tracer.stores
                held = self.held(value, True, like)
                if first:  # what it held when an op first met it
                    held = _as_it_began(self.tracer, held)
                self.tracer.trace.named[label] = held
                self.states[label] = value

    def after(self, optimizer: Any, args: Any = None, kwargs: Any = None) -> None:
        """An optimizer has ended its step."""
        self.tracer.updating = max(self.tracer.updating - 1, 0)

    def end(self) -> None:
        """Where everything stands at the end; of parameters that no optimizer has updated, where the models' are."""
        with _disable_current_modes():
            if self.optimizer is None:
                self.parameters = {name: p for name, (p, _) in self.called().items()}
            for name, buffer in list(self.buffers.items()):
                if np.array_equal(self.tracer.trace.named[name].start, numbers(local(buffer).detach()), equal_nan=True):
                    del self.tracer.trace.named[name], self.buffers[name]  # what no step changes is data
            for name, tensor in {**self.parameters, **self.states, **self.buffers}.items():
                started = self.tracer.trace.named[name]
                mine = local(tensor).detach()
                self.tracer.check([mine])
                if mine.numel() > started.elements.size:
                    mine = mine[:started.elements.size]
                self.tracer.trace.final[name] = Held(self.tracer.place(mine, False), started.elements, started.whole,
                                                     numbers(mine), started.trained)
            for name, (value, first, count) in self.pieces.items():
                started, mine = self.tracer.trace.named[name], local(value).detach()
                self.tracer.check([mine])
                place = self.tracer.place(mine, False)
                if count:
                    place = place._replace(offset=place.offset + first, shape=(count,), stride=(1,))
                self.tracer.trace.final[name] = Held(place, started.elements, started.whole, started.start)


def pieces(flat: Any, parameters: Mapping[str, tuple[Any, Held]]) -> Iterator[tuple[str, int, int, Any]]:
    """(parameter, first place in a flat copy, how many elements, which of the whole), as far as numbers tell.

    A copy is taken for runs of parameters' elements; what is no such run, as padding, is no parameter's.
    """
    names = list(parameters)
    every = np.concatenate([parameters[n][0] for n in names]).astype(np.float32)
    owner = np.concatenate([np.full(parameters[n][0].size, k) for k, n in enumerate(names)])
    within = np.concatenate([np.arange(parameters[n][0].size) for n in names])
    ends = np.cumsum([parameters[n][0].size for n in names])
    flat = flat.astype(np.float32)
    at = 0
    while at < flat.size:
        found = np.flatnonzero(every == flat[at])
        best, length = -1, 0
        for k in found.tolist():
            same = min(flat.size - at, int(ends[owner[k]]) - k)
            away = np.flatnonzero(every[k:k + same] != flat[at:at + same])
            run = int(away[0]) if away.size else same
            best, length = (k, run) if run > length else (best, length)
        if best < 0 or (flat[at:at + length] == 0).all():
            at += 1
            continue
        label = names[int(owner[best])]
        inside = within[best:best + length]
        yield label, at, length, parameters[label][1].elements.ravel()[inside]
        at += length


def _as_it_began(tracer: Tracer, held: Held) -> Held:
    """A named tensor with the numbers that its storage held when it was first met."""
    found = tracer.trace.leaf.get(held.place.store)
    if found is None:
        return held
    flat = np.lib.stride_tricks.as_strided(found[1][held.place.offset:], held.place.shape,
                                           [found[1].itemsize * s for s in held.place.stride])
    return Held(held.place, held.elements, held.whole, np.array(flat), held.trained)
