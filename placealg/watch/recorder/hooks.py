"""What a script does to gradients of activations between two ops of the model's graph, in hooks and functions.

An op of the graph that runs backward is called by autograd's engine itself. What a hook of the script computes stands
below a frame of the script, and what the backward of an `autograd.Function` computes below that class's. A hook that
changes what the next op of backward reads, or a function that moves elements forward and multiplies them backward,
makes gradients that the model's forward does not say: it is told, by line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from placealg.watch.recorder import tables
from placealg.watch.recorder.numbers import alone
from placealg.watch.recorder.ops import TORCH_FOLDER, of_script, user_line
from placealg.watch.recorder.shadows import Shadows

_ENGINE, _FUNCTION, _HOOKS = (os.path.join(TORCH_FOLDER, *path) for path in (
    ("autograd", "graph.py"), ("autograd", "function.py"), ("utils", "hooks.py")))


class Hooks:
    """Follows what hooks and functions of the script make of gradients, until an op of the graph reads it."""

    def __init__(self, shadows: Shadows):
        self.shadows = shadows
        self.outer = -1
        """Torch's number of the backward inside which another one runs, as reentrant checkpoints do; -1 if none."""
        self.running: list[type] = []
        """The functions whose forward runs, the innermost last."""
        self.computing: set[type] = set()
        """The functions whose forward does more than to move elements."""

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hear which function's forward runs, and which backward begins inside another."""
        function: Any = torch.autograd.Function
        apply, backward = function.__dict__["apply"], torch.autograd.backward

        def begun(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            before = self.outer
            if before == -1 and grad_tensors is not None:  # one that starts by itself is another microbatch's
                self.outer = torch._C._current_graph_task_id()
            try:
                return backward(tensors, grad_tensors, *args, **kwargs)
            finally:
                self.outer = before

        def heard(cls: type, *args: Any, **kwargs: Any) -> Any:
            self.running.append(cls)
            try:
                return apply.__func__(cls, *args, **kwargs)
            finally:
                self.running.pop()

        function.apply, torch.autograd.backward = classmethod(heard), begun
        try:
            yield
        finally:
            function.apply, torch.autograd.backward = apply, backward

    def forward(self, name: str) -> None:
        """An op runs outside backward."""
        if self.running and _computes(name):
            self.computing.update(self.running)

    def backward(self, name: str, by: Any, reads: Sequence[Tensor], writes: Sequence[Tensor]) -> tuple[str, str]:
        """An op runs in backward: (what it reads that a hook or a function has changed, its line); "" if nothing.

        `by` is its second operand, by which it multiplies or divides if it is an op that does.
        """
        if self.running:  # a forward that runs again
            return "", ""
        scaled = name in tables.SCALES and not ((alone(by) or isinstance(by, int | float)) and float(by) == 1)
        before = self._told(reads)
        who, maker = _caller()
        changed = before
        if who == "hook" and (_computes(name) or name in tables.CONSTANTS or name in _REORDERS) and (
                scaled or name not in tables.SCALES):
            changed = f"what a hook makes of an activation's gradient ({name})", user_line()
        elif who == "function" and maker not in self.computing and (scaled or name in tables.NEGATES):
            changed = f"what {maker.__name__} multiplies an activation's gradient by ({name})", user_line()
        elif who == "op" and before[0] and name not in tables.SCALES and name not in tables.SUMS and _computes(name):
            return before
        for tensor in writes:
            self.shadows.shadow(tensor).changed = changed if tensor.numel() > 1 else ("", "")
        return "", ""

    def passed_on(self, reads: Sequence[Tensor], writes: Sequence[Tensor]) -> None:
        """A collective makes of its inputs what they were."""
        if (told := self._told(reads))[0]:
            for tensor in writes:
                self.shadows.shadow(tensor).changed = told

    def _told(self, reads: Sequence[Tensor]) -> tuple[str, str]:
        """What the first was changed by that was."""
        found = (self.shadows.table.get(t.untyped_storage()._cdata) for t in reads)
        return next((shadow.changed for shadow in found if shadow is not None and shadow.changed[0]), ("", ""))


_REORDERS = frozenset(("aten::flip", "aten::roll"))
"""Ops that move elements within a tensor alone."""


def _computes(name: str) -> bool:
    """Whether an op makes other numbers of what it reads."""
    return not (name in tables.MOVES or name in tables.VIEWS_ONLY or name in tables.EMPTIES or name in tables.CONSTANTS)


def _caller() -> tuple[str, Any]:
    """Who calls an op in backward: "hook" a hook of the script, "function" its class, "op" the engine or torch."""
    frame: Any = sys._getframe(1)
    frames = []
    while frame is not None and not (frame.f_code.co_name == "_engine_run_backward"
                                     and frame.f_code.co_filename == _ENGINE):
        frames.append(frame)
        frame = frame.f_back
    first = frames[-1].f_code
    if frame is None or first.co_name in ("__torch_dispatch__", "__torch_function__"):
        return "op", None
    if first.co_filename == _FUNCTION:
        maker = getattr(type(frames[-1].f_locals.get("self")), "_forward_cls", None)
        return ("op", None) if maker is None or maker.__module__.startswith("torch.") else ("function", maker)
    if first.co_filename.startswith(TORCH_FOLDER) and first.co_filename not in (_HOOKS, _ENGINE):
        return "op", None
    return ("hook" if any(of_script(f.f_code.co_filename) for f in frames) else "op"), None
