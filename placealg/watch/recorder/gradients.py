"""Gradients: whose gradient each element is that an op of backward makes, and where it goes on its way to an optimizer.

Autograd hands a gradient to the tensor that stands for a parameter while its module runs: the parameter itself, or the
whole one that a wrapper has gathered. Hooks on these keep which op of backward made which element of which parameter.
What an optimizer reads as the gradient of an element must have begun as that of the same element, and what a rank gives
of elements that other ranks own must go the way that its own elements go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Replicate
from torch.utils._python_dispatch import _disable_current_modes

from placealg.watch.given import way
from placealg.watch.recorder.chains import begin_of, terms_of, walk
from placealg.watch.recorder.mode import Recorder
from placealg.watch.recorder.parameters import first_place, local, plain_name, whole_shape
from placealg.watch.recorder.places import held, part_of
from placealg.watch.recorder.shadows import Region
from placealg.watch.seen import BACKWARD, Hop, Term

Made = tuple[str, Tensor, Tensor]
"""(parameter, places in what an op of backward made, places in the parameter)."""


@dataclass
class Given:
    """What a rank gives of one parameter's gradient to a reduction: of elements that others own, and of its own.

    `wrong` is what could not be followed of it.
    """

    others: tuple[Term, ...] = ()
    own: tuple[Term, ...] = ()
    wrong: str = ""


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
        self.needed: list[tuple[str, Tensor]] = []
        self.lost = False
        self.stands: dict[str, Tensor | None] = {}
        """Parameter -> the places in the whole of the gradient that an optimizer reads, where they are known."""
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
                        self.heard.append((name, (origin.flatten().clone(), factor.flatten().clone()), places))
                        self.needed.append((name, places[needed(tensor, grad, places)]))
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

    def misplaced(self, recorder: Recorder, name: str, gradient: Tensor, region: Region) -> str:
        """What is wrong with the places of what an optimizer reads; "" where each element is its own gradient."""
        own = self.stands[name] = places_in(gradient) if isinstance(gradient, DTensor) else owned_by(
            self.parameters[name])
        index = self.index(recorder)
        if own is None or own.numel() != region[0].numel():
            return "which of its elements a rank holds"
        for number, where, _, places, _ in walk(recorder, region):
            if begin_of(recorder.nodes[number])[0] != BACKWARD:
                continue
            every = index.get(number, [])
            right = torch.zeros(where.numel()) > 0
            for of, made, at in every:
                if of == name:
                    right |= _table(made, at, where)[where] == own[places]
            if not every:
                return f"what {recorder.nodes[number].name} makes, which is handed to no parameter"
            if not bool(right.all()):
                others = [of for of, made, _ in every if of != name and bool(torch.isin(where, made).any())]
                return f"the gradient of {others[0]} in its place" if others else "elements that change places"
        return ""

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

    def owned(self) -> dict[str, Tensor]:
        """Parameter -> the places of the elements of it that rest on this rank, where they are known."""
        every = {name: owned_by(p) for name, p in self.parameters.items()}
        return {name: own for name, own in every.items() if own is not None}

    def given(self, recorder: Recorder, owned: Mapping[str, Tensor], through: set[int] | None = None
              ) -> tuple[dict[str, Given], dict[int, tuple[tuple[str, str], ...]]]:
        """(parameter -> what it gives to reductions, message -> a digest of which elements stand where in it).

        Elements are followed as far as the last reduction that takes them. `owned` are the places of those whose
        gradients this rank reads, `through` the messages that are looked at; None are all.
        """
        sides: tuple[dict[str, dict[tuple[int, int], tuple[Term, ...]]], ...] = {}, {}
        gone: dict[str, Tensor] = {}
        wrong: dict[str, str] = {}
        layouts: dict[int, list[tuple[str, str]]] = {}
        taken: set[str] = set()
        for number, node in enumerate(recorder.nodes):
            if node.kind != "message" or not node.sources or (through is not None and node.message not in through):
                continue
            message, source = recorder.messages[node.message], node.sources[0]
            if message.verb not in ("all_reduce", "reduce_scatter"):
                continue
            every = self.places(recorder, source)
            masks = {name: torch.zeros(whole_shape(self.parameters[name]).numel()) > 0 for name in every}
            for name, mine in masks.items():
                mine[owned.get(name, mine[:0].long())] = True
            takes = any(bool(((there >= 0) & ~masks[name][there.clamp(min=0)]).any()) for name, there in every.items())
            for name, there in every.items():
                layouts.setdefault(message.index, []).append((name, sha256(there.numpy().tobytes()).hexdigest()[:16]))
                mask = gone.setdefault(name, torch.zeros_like(masks[name]))
                other = (there >= 0) & ~masks[name][there.clamp(min=0)]
                alone = name in taken and not bool(other.any())  # of its own elements what others' have gone through
                taken |= {name} if takes else set()
                for side, chosen in enumerate((other, (there >= 0) & ~other & (not alone))):
                    if not bool(chosen.any()):
                        continue
                    found, bad = terms_of(recorder, (source[0].flatten()[chosen], source[1].flatten()[chosen]))
                    hop = Hop(message.verb, message.axes, message.op, message.index, line=message.line)
                    passed = {h.message for t in found for h in t.hops if h.verb != "scale"}
                    kept = {k: v for k, v in sides[side].get(name, {}).items() if k[0] not in passed}
                    sides[side][name] = {**kept, (message.index, number): tuple(
                        replace(t, hops=(*t.hops, hop)) for t in found)}
                    if side == 0:
                        mask[there[chosen]] = True
                        wrong[name] = wrong.get(name) or bad
        told: dict[str, Given] = {}
        for name, parameter in self.parameters.items():
            mask = gone.get(name, torch.zeros(whole_shape(parameter).numel()) > 0)
            if name in owned:
                mask[owned[name]] = True
            lost = any(of == name and not bool(mask[at].all()) for of, at in self.needed)
            others, own = (_once(side.get(name, {})) for side in sides)
            told[name] = Given(others, own, wrong.get(name) or ("where a part of its gradient goes" if lost else ""))
        return told, {k: tuple(sorted(v)) for k, v in layouts.items()}


def _once(terms: Mapping[tuple[int, int], tuple[Term, ...]]) -> tuple[Term, ...]:
    """The terms of all reductions; of several outputs of one, those that are alike once."""
    found: dict[int, list[tuple[Term, ...]]] = {}
    for (message, _), each in terms.items():
        alike = found.setdefault(message, [])
        if all(way(each) != way(other) for other in alike):
            alike.append(each)
    return tuple(t for every in found.values() for each in every for t in each)


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


def needed(tensor: Tensor, gradient: Tensor, places: Tensor) -> Tensor:
    """Which elements of a gradient this rank has to pass on: of replicas those that it holds of the tensor."""
    own = owned_by(tensor)
    split = isinstance(gradient, DTensor) and isinstance(tensor, DTensor) and own is not None and not any(
        g.is_partial() for g in gradient.placements)
    return torch.isin(places, own) if split and own is not None else torch.ones_like(places) > 0


def owned_by(parameter: Tensor) -> Tensor | None:
    """The places in the whole of what this rank holds of a parameter, flat; of a plain tensor those in it."""
    if not isinstance(parameter, DTensor):
        return torch.arange(local(parameter).numel()) + first_place(parameter)
    part = held(parameter, torch.arange(parameter.numel()).view(parameter.shape))
    return None if part is None else part.flatten()
