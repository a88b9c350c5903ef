"""Gradients: whose gradient each element is that an op of backward makes.

Autograd hands a gradient to the tensor that stands for a parameter while its module runs: the parameter itself, or the
whole one that a wrapper has gathered. Hooks on these keep which op of backward made which element of which parameter.
So it is known whose gradient each element of a copy reads, which an optimizer updates in place of parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Replicate
from torch.utils._python_dispatch import _disable_current_modes

from placealg.watch.recorder.chains import walk
from placealg.watch.recorder.mode import Recorder
from placealg.watch.recorder.parameters import local, plain_name
from placealg.watch.recorder.places import part_of
from placealg.watch.recorder.shadows import Region

Made = tuple[str, Tensor, Tensor]
"""(parameter, places in what an op of backward made, places in the parameter)."""


class Gradients:
    """The gradients that parameters were handed, and what is known of their elements."""

    def __init__(self, parameters: Mapping[str, Tensor], tied: Mapping[str, Sequence[str]]):
        self.parameters = parameters
        self.first = {also: name for name, every in tied.items() for also in every}
        self.hooked: dict[int, Tensor] = {}
        self.clear()

    def clear(self) -> None:
        """Forget what was seen."""
        self.heard: list[tuple[str, Region, Tensor]] = []
        self.lost = False
        self._index: tuple[int, dict[int, list[Made]]] = 0, {}

    @contextmanager
    def listening(self, recorder: Recorder, models: Sequence[nn.Module]) -> Iterator[None]:
        """Hear of every gradient of a parameter before it is accumulated."""
        handles: list[Any] = []

        def keep_of(name: str, tensor: Tensor) -> Any:
            def keep(grad: Tensor) -> None:
                with _disable_current_modes():
                    mine, places = local(grad), places_in(grad)
                    mine = mine.elem if isinstance(mine, AsyncCollectiveTensor) else mine
                    if places is not None and places.numel() == mine.numel():
                        origin, factor = recorder.shadows.region(mine)
                        region = origin.flatten().clone(), factor.flatten().clone()
                        self.heard.append((name, region, places))
                        recorder.handed.update(number for number, *_ in walk(recorder, region))
            return keep

        def hear(name: str, tensor: Tensor) -> None:
            name = self.first.get(name, name)
            if name in self.parameters and tensor.requires_grad and id(tensor) not in self.hooked:
                self.hooked[id(tensor)] = tensor
                handles.append(tensor.register_hook(keep_of(name, tensor)))

        def before(prefix: str) -> Any:
            def used(module: nn.Module, args: Any) -> None:
                for name, parameter in module.named_parameters(prefix):
                    hear(plain_name(name), parameter)
            return used

        for name, parameter in self.parameters.items():
            hear(name, parameter)
        for part in models:
            handles += [m.register_forward_pre_hook(before(n)) for n, m in part.named_modules()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self.hooked.clear()

    def index(self, recorder: Recorder) -> dict[int, list[Made]]:
        """Op of backward, as a node -> the elements of gradients that it made."""
        count, found = self._index
        for name, region, whole in self.heard[count:]:
            for number, where, _, places, _ in walk(recorder, region):
                found.setdefault(number, []).append((name, where, whole[places]))
        self._index = len(self.heard), found
        return found

    def places(self, recorder: Recorder, region: Region) -> dict[str, Tensor]:
        """Parameter -> of each element of a region the place in it of the element whose gradient that is; -1 if none.

        An element that is the gradient of several places makes everything lost.
        """
        found: dict[str, Tensor] = {}
        index = self.index(recorder)
        for number, where, _, places, _ in walk(recorder, region):
            for name, made, at in index.get(number, ()):
                got = _table(made, at, where)[where]
                mine = found.setdefault(name, torch.full((region[0].numel(),), -1, dtype=torch.int64))
                here, there = places[got >= 0], got[got >= 0]
                self.lost = self.lost or bool(((mine[here] >= 0) & (mine[here] != there)).any())
                mine[here] = there
        return found


def _table(made: Tensor, at: Tensor, where: Tensor) -> Tensor:
    """Place in what an op made -> place in the parameter, -1 of those that are not its gradient."""
    table = torch.full((int(max(made.max(), where.max())) + 1,), -1, dtype=torch.int64)
    table[made] = at
    return table


def places_in(gradient: Tensor) -> Tensor | None:
    """The places in the whole tensor of what this rank has of a gradient, flat; None where they are not known."""
    if not isinstance(gradient, DTensor):
        return torch.arange(gradient.numel())
    every = torch.arange(gradient.numel()).view(gradient.shape)
    whole = [Replicate() if p.is_partial() else p for p in gradient.placements]
    part = part_of(gradient.device_mesh, whole, every)
    return None if part is None else part.flatten()
