"""What optimizers keep from step to step, such as moments: it must be as the last update left it, and stay so."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from placealg.watch.recorder.parameters import local
from placealg.watch.recorder.shadows import digest

Held = dict[tuple[int, str], str]
"""(parameter, what is kept of it) -> a digest."""


class States:
    """The states of all optimizers; `wrong` says of which parameter what is wrong, of "" of all that are copied."""

    def __init__(self, parameters: Mapping[str, Tensor]):
        self.names = {id(p): name for name, p in parameters.items()}
        self.wrong: dict[str, str] = {}
        self.start: Held = {}
        self.met: dict[int, Held] = {}
        self.left: dict[int, tuple[Any, Held]] = {}
        self.own: dict[int, set[int]] = {}

    def begin(self) -> None:
        """Look for what optimizers keep as the step begins."""
        for one in gc.get_objects():
            if issubclass(type(one), Optimizer):
                self.start.update(_held(one))

    def before(self, optimizer: Any) -> None:
        """An optimizer begins its step: look at what it keeps."""
        self.met[id(optimizer)] = _held(optimizer)
        own = {id(p): p for group in optimizer.param_groups for p in group["params"]}
        self.own[id(optimizer)] = set(own)
        zero: dict[bool, list[tuple[int, str]]] = {True: [], False: []}
        for number, parameter in own.items():
            kept = _state(optimizer, parameter)
            if float(kept.get("step", 0)) > 0 or "momentum_buffer" in kept:
                for what, value in kept.items():
                    if isinstance(value, Tensor) and value.is_floating_point() and local(value).numel() > 1:
                        zero[not bool(local(value).any())].append((number, what))
        some = {number for number, _ in zero[False]}
        for number, what in zero[True]:
            if number in some or not some:  # of a parameter that never had a gradient all is zero
                self._tell(number, f"what its optimizer keeps: {what} is zero, though it has updated before")

    def after(self, optimizer: Any) -> None:
        """An optimizer ends its step: what it keeps was, as it began, what was kept as the step began.

        One that updates a part of its parameters at a time, as DeepSpeed's ZeRO-3 has it, is asked about that part.
        """
        held = {key: told for key, told in _held(optimizer).items() if key[0] in self.own.get(id(optimizer), ())}
        self.left[id(optimizer)] = optimizer, {**self.left.get(id(optimizer), (optimizer, {}))[1], **held}
        keeps = {number for number, _ in held}  # of nested ones the inner one keeps it
        for (number, what), told in self.start.items():
            if number in keeps and (now := self.met.get(id(optimizer), {}).get((number, what))) != told:
                how = "is gone" if now is None else "has changed since the last update"
                self._tell(number, f"what its optimizer keeps: {what} {how}")

    def end(self) -> None:
        """What optimizers keep must be as their steps left it."""
        for optimizer, held in self.left.values():
            now = _held(optimizer)
            for (number, what), told in held.items():
                if now.get((number, what)) != told:
                    self._tell(number, f"what its optimizer keeps: {what} is changed after the update")

    def _tell(self, number: int, what: str) -> None:
        self.wrong.setdefault(self.names.get(number, ""), what)


def _state(optimizer: Any, parameter: Tensor) -> Mapping[str, Any]:
    kept = optimizer.state.get(parameter)
    return kept if isinstance(kept, Mapping) else {}


def _held(optimizer: Any) -> Held:
    """The digests of all tensors that an optimizer keeps of parameters, in its groups now or not."""
    return {(id(p), what): digest(mine) for p in tuple(optimizer.state) if isinstance(p, Tensor)
            for what, mine in _tensors(_state(optimizer, p))}


def _tensors(kept: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    for what, value in kept.items():
        if isinstance(value, Tensor) and (mine := local(value)).device.type != "meta" and mine.layout == torch.strided:
            yield str(what), mine
