"""Which backward an op runs in: of one that runs inside another, as reentrant checkpoints have it, the outer one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Nested:
    """Hears which backward begins inside another; `outer` is torch's number of that one, -1 if there is none."""

    def __init__(self) -> None:
        self.outer = -1

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hear it while the block runs."""
        backward = torch.autograd.backward

        def begun(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            before = self.outer
            if before == -1 and grad_tensors is not None:  # one that starts by itself is another microbatch's
                self.outer = torch._C._current_graph_task_id()
            try:
                return backward(tensors, grad_tensors, *args, **kwargs)
            finally:
                self.outer = before

        torch.autograd.backward = begun
        try:
            yield
        finally:
            torch.autograd.backward = backward
