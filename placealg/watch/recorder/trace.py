"""The mode under which a step runs so that it can be run again: every op is kept, with the geometry of its tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from placealg.measure.count import NAMESPACES, tensors
from placealg.watch.lift.trace import HANDED, READ, Group, Op, Place, Trace, Word
from placealg.watch.recorder.collectives import OPERATORS, SILENT, call_of, work_of
from placealg.watch.recorder.named import Names
from placealg.watch.recorder.observe import listening
from placealg.watch.recorder.ops import (
    arguments_written,
    decomposed,
    draws,
    faking,
    numbers,
    only_views,
    phase,
    user_line,
    wrapper,
    written_by,
)
from placealg.watch.recorder.parameters import local
from placealg.watch.recorder.shadows import storage_sum

LARGEST = 4_000_000
"""Of how many integers at most the numbers are kept."""


class Tracer(TorchDispatchMode):
    """Keeps every op that runs."""

    def __init__(self, rank: int):
        super().__init__()
        self.trace = Trace(rank)
        self.stores: dict[int, int] = {}
        self.alive: list[Any] = []
        self.homes: dict[int, tuple[int, int]] = {}
        self.freed: list[int] = []
        self.sums: dict[int, int] = {}
        self.open: dict[int, Any] = {}
        self.works: dict[int, tuple[Any, list[Tensor]]] = {}
        self.waiting = 0
        self.updating = 0
        self.modules: list[str] = []
        self.lines: dict[int, str] = {}
        self._sequence = -1
        self.kinds: dict[Any, bool] = {}

    def begin_again(self) -> None:
        """The step begins here: what ran so far has brought new weights, or made a batch."""
        trace = self.trace
        trace.mark = len(trace.ops)
        for told in (trace.named, trace.gradients, trace.unseen, trace.tied):
            told.clear()

    # ------------------------------------------------------------------ memory

    def store(self, tensor: Tensor) -> int:
        """The number of a tensor's storage, which stays alive."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.stores:
            self.stores[key] = len(self.stores)
            self.alive.append(storage)
        return self.stores[key]

    def leaf(self, tensor: Tensor) -> None:
        """Keep the numbers of a storage that is met for the first time."""
        storage = tensor.untyped_storage()
        if storage._cdata in self.stores:
            return
        number = self.store(tensor)
        if (tensor.is_floating_point() or tensor.is_complex()) and storage.nbytes():
            flat: Any = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage)
            flat = torch.view_as_real(flat).flatten() if tensor.is_complex() else flat
            self.trace.leaf[number] = flat.element_size(), numbers(flat)
            self.keep([tensor])

    def place(self, tensor: Tensor, held: bool) -> Place:
        """A tensor as memory."""
        complex_, conjugate = tensor.is_complex(), tensor.is_conj()
        if complex_:
            tensor = torch.view_as_real(tensor.conj() if conjugate else tensor)
        keeps = held and not tensor.dtype.is_floating_point and tensor.numel() <= LARGEST
        return Place(self.store(tensor), tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()),
                     str(tensor.dtype).removeprefix("torch."), tensor.element_size(),
                     tensor.detach().cpu().clone().numpy() if keeps else None, complex_, conjugate)

    def argument(self, value: Any, held: bool = True) -> Any:
        """An argument, or a result, as plain data."""
        if isinstance(value, Tensor):
            return self.place(value, held)
        if isinstance(value, list | tuple):
            return tuple(self.argument(v, held) for v in value)
        if isinstance(value, bool | int | float | str) or value is None:
            return value
        if isinstance(value, torch.ScriptObject):
            return script(value)
        return Word(str(value))

    def moved(self, found: Sequence[Tensor]) -> tuple[int, ...]:
        """The storages among some tensors whose memory has been given back and taken again since an op touched it."""
        lost = []
        for tensor in found:
            storage = tensor.untyped_storage()
            number, now = self.store(tensor), (storage.data_ptr(), storage.nbytes())
            before = self.homes.get(number)
            if before is not None and now != before and before[1] and now[1]:
                lost.append(number)
            self.homes[number] = now
        lost += self.freed
        self.freed.clear()
        for number in lost:
            self.sums.pop(number, None)
        return tuple(dict.fromkeys(lost))

    def resized(self, storage: Any) -> None:
        """A storage's memory is given back, or taken again: what it held is lost."""
        if storage._cdata in self.stores:
            self.freed.append(self.stores[storage._cdata])
            self.sums.pop(self.stores[storage._cdata], None)

    def check(self, found: Sequence[Tensor]) -> list[int]:
        """Tell storages that a collective may still write, and such as were written behind the dispatcher."""
        lost: list[int] = []
        for tensor in found:
            number = self.store(tensor)
            if not tensor.dtype.is_floating_point:  # the numbers of others are recorded wherever they are read
                continue
            if number in self.open:
                self.unseen("what a collective may still be writing: nobody has waited for it")
                lost.append(number)
            elif number in self.sums and self.sums[number] != storage_sum(tensor):
                self.unseen("memory written behind PyTorch's dispatcher")
                self.sums[number] = storage_sum(tensor)
                lost.append(number)
        return lost

    def unseen(self, what: str) -> None:
        """Something happened that no op tells."""
        self.trace.unseen.setdefault(what, user_line())

    def keep(self, found: Sequence[Tensor]) -> None:
        """Note the bytes of storages as an op left them."""
        for tensor in found:
            self.sums[self.store(tensor)] = storage_sum(tensor)

    # ------------------------------------------------------------------ ops

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the op, and keep it."""
        if any(wrapper(t) for t in types):
            return NotImplemented
        kwargs = kwargs or {}
        if faking(types):
            return func(*args, **kwargs)
        self._tag()
        inputs = list(tensors((args, list(kwargs.values()))))
        if only_views(func) or any(t.device.type == "meta" for t in inputs):
            return func(*args, **kwargs)
        name = func._schema.name
        if name == "aten::set_":  # from here on the tensor stands in other memory, which nothing has written
            made = func(*args, **kwargs)
            self.told(lambda _, there: self.leaf(there), func, made)
            return made
        if func.namespace in NAMESPACES and name.partition("::")[2] in SILENT:
            made = func(*args, **kwargs)
            if name.partition("::")[2].startswith("wait_tensor"):
                self.arrived(list(tensors(args)))
            return made
        if (inside := decomposed(func)) is not None and self.makes_numbers(func, args, kwargs):
            with self:
                made = inside(*args, **kwargs)
            if made is not NotImplemented:
                return made
        if self.waiting and name == "aten::copy_" and args[1].untyped_storage()._cdata not in self.stores:
            self.sums.pop(self.store(args[0]), None)
            return func(*args, **kwargs)  # a backend's own copy onto what a collective made, while it is waited for
        told = self.told(self.before, func, args, kwargs, inputs)
        made = func(*args, **kwargs)
        if told is not None:
            self.told(self.after, func, args, kwargs, made, *told)
        return made

    def makes_numbers(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Whether an op that writes none of its arguments makes numbers, and not whole ones or truth values alone."""
        if func not in self.kinds:
            with _disable_current_modes():
                self.kinds[func] = any(t.is_floating_point() for t in tensors(func(*args, **kwargs)))
        return self.kinds[func]

    def told(self, part: Any, func: Any, *args: Any) -> Any:
        """What a part of the recorder says of an op: where it fails the run goes on, and nothing is claimed of it."""
        try:
            return part(func, *args)
        except Exception as error:
            self.trace.unseen.setdefault(f"{func._schema.name}, at which the recorder failed: {type(error).__name__} "
                                         f"{' '.join(str(error).split())[:120]}", user_line())
            return None

    def before(self, func: Any, args: Any, kwargs: Any, inputs: list[Tensor]) -> tuple[dict[str, Any], tuple[int, ...]]:
        """(the arguments of an op, the storages whose memory was given back since an op touched them)."""
        for tensor in inputs:
            self.leaf(tensor)
        lost = (*self.moved(inputs), *self.check(inputs))
        given = {a.name: self.argument(kwargs[a.name] if a.name in kwargs else args[k])
                 for k, a in enumerate(func._schema.arguments) if k < len(args) or a.name in kwargs}
        for a in func._schema.arguments:
            if a.name not in given and a.has_default_value() and isinstance(a.default_value, bool | int | float | str):
                given[a.name] = a.default_value
        if func.namespace in NAMESPACES and "process_group" not in given and (group := group_of(given)):
            given["group"] = group
        return given, lost

    def after(self, func: Any, args: Any, kwargs: Any, made: Any, given: dict[str, Any], lost: tuple[int, ...]) -> None:
        """Keep an op that has run."""
        name, sends = func._schema.name, func.namespace in NAMESPACES
        written = [*written_by(func, args, kwargs), *tensors(made)]
        if any(t.device.type == "meta" for t in written):
            return
        drawn: tuple[Any, ...] = ()
        if draws(func, args, kwargs) or name in ("aten::arange", "aten::linspace"):
            drawn = tuple(numbers(t) for t in written)
        kinds = {t.dtype.is_floating_point for t in tensors(made)}
        writes = tuple(n for _, n in arguments_written(func) if n in given)
        self.trace.ops.append(Op(name, given, self.argument(made, len(kinds) == 2), writes, self.line(), self.phase,
                                 drawn, lost, made if isinstance(made, bool | int | float) else None))
        if not sends:
            self.keep(written)
            return
        work = work_of(func, made)
        call = call_of(name.partition("::")[2], func, args, kwargs, made)
        written = [t for _, outs in call.pairs for t in outs] if call is not None else [*written, *tensors(
            (args, list(kwargs.values())))]
        for tensor in written:
            self.sums.pop(self.store(tensor), None)
        if work is not None or func.namespace == "_c10d_functional":
            self.open.update((self.store(t), t) for t in written)
        if work is not None:
            self.works[id(work)] = work, written

    @property
    def phase(self) -> str:
        """Where the step is."""
        return phase(self.modules, self.updating)

    def line(self) -> str:
        """The line of the script: in backward that of the op's forward."""
        if torch._C._current_graph_task_id() != -1 and not self.modules:
            node = torch._C._current_autograd_node()
            found = self.lines.get(node._sequence_nr()) if node is not None else None
            if found is not None:
                return found
        return user_line()

    def _tag(self) -> None:
        """Remember which line an op of the graph was made in."""
        now = torch._C._autograd._get_sequence_nr() - 1
        if now != self._sequence and torch._C._current_graph_task_id() == -1:
            here = user_line()
            for k in range(max(self._sequence + 1, now - 8), now + 1):
                self.lines[k] = here
            self._sequence = now

    def waited(self, work: Any) -> None:
        """A collective is waited for."""
        self.arrived(self.works.pop(id(work), (None, []))[1])

    def read(self, tensor: Tensor) -> None:
        """Python reads the memory of a tensor, which no op tells."""
        kind: Any = type(tensor)
        if tensor.is_floating_point() and not wrapper(kind) and tensor.untyped_storage()._cdata in self.stores:
            with _disable_current_modes():
                self.trace.ops.append(Op(READ, {"self": self.place(tensor, False)}, None, (), user_line(), self.phase,
                                         number=numbers(tensor)))

    def hand(self, found: Sequence[Tensor]) -> None:
        """The script hands tensors to its model, or to its loss."""
        with _disable_current_modes():
            for tensor in found:
                if tensor.is_floating_point():
                    self.leaf(tensor)
                    self.trace.ops.append(Op(HANDED, {"self": self.place(tensor, False)}, None, (), user_line(),
                                             "between", (numbers(tensor),)))

    def arrived(self, found: Sequence[Tensor]) -> None:
        """What a collective made is there."""
        for tensor in found:
            self.open.pop(self.store(local(tensor)), None)


def script(value: Any) -> Any:
    """A process group by its ranks, an operator of a reduction by its name."""
    try:
        return Group(tuple(dist.get_process_group_ranks(dist.ProcessGroup.unbox(value))))
    except (RuntimeError, TypeError, ValueError, KeyError):
        pass
    try:
        return Word(OPERATORS.get(int(value.op()), "unknown"))
    except (RuntimeError, AttributeError):
        return Word(str(type(value)))


def group_of(given: Mapping[str, Any]) -> Group | None:
    """The ranks of the group that a functional collective names."""
    for name in ("group_name", "group"):
        if isinstance(given.get(name), str):
            found = dist.distributed_c10d._resolve_process_group(given[name])
            return Group(tuple(dist.get_process_group_ranks(found)))
    return None


class Followed:
    """What `tracing` gives: the trace, the optimizer that made its step last, and what its parameters are called."""

    def __init__(self, tracer: Tracer, names: Names):
        self.tracer, self._names = tracer, names

    @property
    def trace(self) -> Trace:
        """What was kept so far."""
        return self.tracer.trace

    def begin_again(self) -> None:
        """Weights are from here on what they are now."""
        self.tracer.begin_again()
        self._names.begin()

    def hand(self, found: Sequence[Tensor]) -> None:
        """The script hands tensors to its model, or to its loss."""
        self.tracer.hand(found)

    @property
    def optimizer(self) -> Any:
        """The optimizer of the step; of nested ones the innermost; None before its step."""
        return self._names.optimizer

    @property
    def labels(self) -> dict[int, str]:
        """The names of parameters, by what `id` says of them."""
        return {id(p): name for name, p in self._names.parameters.items()}


@contextmanager
def touching(tracer: Tracer) -> Iterator[None]:
    """Tell what is done to memory beside ops: a storage is resized, Python reads numbers."""
    resize = torch.UntypedStorage.resize_

    def resized(self: Any, size: int) -> Any:
        made = resize(self, size)
        tracer.resized(self)
        return made

    def heard(method: Any) -> Any:
        def reads(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            tracer.read(self)
            return method(self, *args, **kwargs)
        return reads

    kind: Any = torch.Tensor
    own = {name: vars(kind).get(name) for name in ("tolist", "numpy", "__array__")}
    torch.UntypedStorage.resize_ = resized
    for name in own:
        setattr(kind, name, heard(getattr(kind, name)))
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = resize
        for name, method in own.items():
            delattr(kind, name) if method is None else setattr(kind, name, method)


@contextmanager
def tracing(models: nn.Module | Sequence[nn.Module]) -> Iterator[Followed]:
    """Keep every op of the step that runs inside."""
    parts = [models] if isinstance(models, nn.Module) else list(models)
    tracer = Tracer(dist.get_rank() if dist.is_initialized() else 0)
    names = Names(tracer, parts)
    names.begin()
    handles = [register_optimizer_step_pre_hook(names.before), register_optimizer_step_post_hook(names.after)]
    try:
        with listening(tracer, parts), touching(tracer), tracer:
            yield Followed(tracer, names)
    finally:
        for handle in handles:
            handle.remove()
    names.end()
