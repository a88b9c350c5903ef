"""What a script hands to its model and to its loss, kept on every rank, and handed over together to a single device.

A script that takes each rank's batch from a table by itself, without a loader, reads one rank's share at a world of
one. There each model is called with what all ranks called it with, their rows behind each other, and so is whatever
meets what the model made: targets, masks. Nothing else of the script changes. A number that it divides by may be a
count of rows that are now others: then nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_unflatten

from placealg.watch.ranks import FED, READ_ON, TURNS
from placealg.watch.recorder.batches import same
from placealg.watch.recorder.ops import user_line

Given = list[list[Tensor]]
"""What one call of a model, and what meets the result, is given: for each call the tensors that are data."""


class Unfed(RuntimeError):
    """A single device cannot be handed what the ranks were."""


class Feed(TorchFunctionMode):
    """Keeps what is handed over while `on()` says so; a single device it hands what `ranks` were handed, in a `way`."""

    def __init__(self, on: Callable[[], bool], ranks: Sequence[Sequence[Given]] = (), way: str = ""):
        super().__init__()
        self.on, self.turns, self.told = on, way.endswith(TURNS), ""
        apart = [r for k, r in enumerate(ranks) if not any(same(list(r), list(q)) for q in ranks[:k])]
        self.ranks: list[list[Given]] = [list(r) for r in apart]
        self.hands = way.startswith(FED)
        self.hear: Callable[[Sequence[Tensor]], None] | None = None
        """What is told of the tensors that are handed over."""
        self.given: list[Given] = []
        self.counts = {n for r in ranks for group in r for call in group for v in call for n in (v.numel(), len(v))
                       if n > 1}
        self.counted: list[tuple[int, int, str]] = []
        """(call of a model, number that may be a count of its rows, line)."""
        self.first = 0
        """The call of a model with which the step that is recorded begins."""

    def begin(self) -> None:
        """The step that is recorded begins."""
        self.first = len(self.given)

    @property
    def doubt(self) -> str:
        """Where a number may be a count of one rank's rows, "" if none may; one a microbatch may be that of these."""
        microbatches, line, met = len(self.given) - self.first, self.told, set()
        for group, number, here in self.counted:
            if number != microbatches or group in met:
                line = line or here
            else:
                met.add(group)
        return line and f"what it multiplies by may be a count of one rank's rows ({line})"

    def call(self, args: Any, kwargs: Any, model: bool) -> tuple[Any, Any]:
        """The arguments of a module of the script's: of a model, or of a loss."""
        if model:
            self.given.append([])
        with torch._C.DisableTorchFunction():
            return self.handed(args, kwargs, model)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What the script calls on tensors."""
        if self.given and torch.is_grad_enabled() and self.on():
            args, kwargs = self.handed(args, kwargs or {}, False, getattr(func, "__name__", "").strip("_"))
        return func(*args, **(kwargs or {}))

    def handed(self, args: Any, kwargs: Any, model: bool, name: str = "") -> tuple[Any, Any]:
        """Arguments with the ranks' data in place of the script's own, if a model takes or has made any of them."""
        flat, form = tree_flatten((args, kwargs))
        met = [v for v in flat if isinstance(v, Tensor)]
        if not self.given or not (model or any(v.grad_fn is not None for v in met)):
            return args, kwargs
        if any(torch._C._functorch.is_functorch_wrapped_tensor(v) for v in met):
            if self.hands:
                raise Unfed("a transform of torch.func runs the model there")
            return args, kwargs
        at = [k for k, v in enumerate(flat) if type(v) is Tensor and not v.requires_grad and v.dim() and v.numel() > 1]
        with _disable_current_modes():
            if self.ranks:
                self.tell(flat, [v for v in met if self.hands and not v.requires_grad and not v.dim()], name)
            if at or model:
                own = [flat[k].detach().clone() for k in at]
                self.given[-1].append(own)
                for k, v in zip(at, self.together(own) if self.hands else (), strict=self.hands):
                    flat[k] = flat[k] if v is None else v
                if self.hear is not None:
                    self.hear([flat[k] for k in at])
        made: tuple[Any, Any] = tree_unflatten(flat, form)
        return made

    def together(self, own: list[Tensor]) -> list[Tensor | None]:
        """What the ranks were given where the single device has its own; None where it has made that of theirs."""
        group, call = len(self.given) - 1, len(self.given[-1]) - 1
        count = len(self.ranks)
        of = [self.ranks[group % count]] if self.turns else self.ranks
        group = group // count if self.turns else group
        if any(group >= len(r) for r in of):
            raise RuntimeError(READ_ON)
        every = [r[group][call] if call < len(r[group]) else [] for r in of]
        if any(len(e) != len(own) for e in every):
            raise Unfed("the script hands other tensors to its model there than on the ranks")
        count = next((len(v) for g in reversed(of[0][:group + 1]) for v in g[0]), 1)
        return [self.one(list(parts), mine, count) for *parts, mine in zip(*every, own, strict=True)]

    def one(self, parts: list[Tensor], own: Tensor, count: int) -> Tensor | None:
        """The rows of some parts; None for what the single device has made of such rows.

        What is the same on all ranks is rows if there are `count` of them, as of what the model is given; else it is a
        mask, say, or numbers that count on, such as positions.
        """
        every = parts[:1] if self.turns else parts
        if own.dtype == parts[0].dtype and own.shape == parts[0].shape:
            counts = not own.is_floating_point() and own.dtype != torch.bool and bool((own.diff() == 1).all())
            alike = all(same(p, parts[0]) for p in every) and len(own) != count and (
                own.dim() > 1 or len(own) % count or counts)
            return parts[0] if alike else torch.cat(every)
        if own.dtype != parts[0].dtype or own.shape != (sum(map(len, every)), *parts[0].shape[1:]):
            raise Unfed("the script hands other tensors to its model there than on the ranks")
        return None

    def tell(self, flat: Sequence[Any], loose: Sequence[Tensor], name: str) -> None:
        """Numbers that may be counts of one rank's rows."""
        here = {n for call in self.given[-1] for v in call for n in (v.numel(), len(v))} if not self.hands else set()
        if loose:
            self.told = self.told or user_line()
        numbers = [v for v in flat if isinstance(v, int | float) and v] if name in PRODUCTS else []
        self.counted += [(len(self.given), c, user_line()) for c in self.counts - here for n in numbers
                         if n == c or abs(n * c - 1) < 1e-9]


PRODUCTS = frozenset(("mul", "div", "truediv", "rtruediv", "rmul", "imul", "itruediv", "true_divide", "divide",
                      "multiply"))
"""Functions whose numbers may be counts."""
