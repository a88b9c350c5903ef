"""`observe`: run a training step under the recorder, and keep what was seen of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes

from placealg.errors import InputError
from placealg.watch.recorder.chains import (
    ancestors,
    forget,
    live_messages,
    moved,
    terms_of,
    update_hops,
)
from placealg.watch.recorder.copies import Copies, Update
from placealg.watch.recorder.gradients import Gradients
from placealg.watch.recorder.meshes import axes_of_mesh, backend
from placealg.watch.recorder.mode import Recorder
from placealg.watch.recorder.nodes import Node
from placealg.watch.recorder.parameters import local, plain_name, settings_of, split_over, trained_by, whole_shape
from placealg.watch.recorder.shadows import digest, nodes_of
from placealg.watch.seen import BUFFER, FOREIGN, TERM, Chain, Hop, RankSeen, Seen, Term


class Observation:
    """What `observe` gives: `seen` is there once the block has ended."""

    def __init__(self) -> None:
        self._seen: Seen | None = None
        self._again: Callable[[], None] | None = None

    @property
    def seen(self) -> Seen:
        """The recording."""
        if self._seen is None:
            raise InputError("nothing is recorded before the block of observe(...) has ended")
        return self._seen

    def begin_again(self) -> None:
        """What has brought new weights since the block began belongs to the step before."""
        if self._again is not None:
            self._again()


@contextmanager
def observe(model: nn.Module | Sequence[nn.Module], mesh: DeviceMesh | Mapping[str, int] | None = None, *,
            gather: bool = True, shims: Iterable[str] = ()) -> Iterator[Observation]:
    """Record the training step that runs inside: forward, backward, and the optimizer's step.

    `mesh` is a DeviceMesh over all ranks whose dims have names, or the sizes of its axes if ranks are numbered with the
    last axis fastest; None is one device. Unless `gather` is false, or the
    process group is the fake one, every rank ends with what all of them saw.
    """
    sizes, axes_of, place = axes_of_mesh(mesh)
    rank = dist.get_rank() if dist.is_initialized() else 0
    recorder, watched = Recorder(axes_of, rank), Watched(model)
    observation, began = Observation(), time.process_time()
    watched.begin(recorder)
    observation._again = lambda: watched.begin_again(recorder)
    with listening(recorder, watched.models), recorder.nested.listening(), watched.hooks(recorder), recorder:
        yield observation
    watched.end(recorder)
    own = watched.rank_seen(recorder, rank, place)
    own = replace(own, seconds=round(time.process_time() - began, 3))
    kind = backend()
    ranks: list[RankSeen] = [own]
    if gather and dist.is_initialized() and kind != "fake" and dist.get_world_size() > 1:
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, own)
        ranks = every
    dtype = str(next(iter(watched.parameters.values())).dtype).removeprefix("torch.")
    observation._seen = Seen(sizes, tuple(ranks), kind, torch.__version__, watched.optimizer, dtype, tuple(shims))


class Watched:
    """The parameters of the watched model, and what is kept of them before, at and after the optimizer's step."""

    def __init__(self, model: nn.Module | Sequence[nn.Module]):
        self.models = [model] if isinstance(model, nn.Module) else list(model)
        self.parameters, self.tied = trained_by(self.models)
        self.read: dict[str, tuple[tuple[Term, ...], str]] = {}
        self.gradients = Gradients(self.parameters, self.tied)
        self.copies = Copies(self.parameters, self.gradients)
        self.start: dict[str, str] = {}
        self.settings: dict[str, str] = {}
        self.trained: set[str] = set()
        self.optimizer = ""

    def begin(self, recorder: Recorder) -> None:
        """Name the parameters, the buffers, and the gradients that are there already."""
        self.earlier = self.with_gradients()
        for name, buffer in ((n, b) for part in self.models for n, b in part.named_buffers() if b.numel()):
            recorder.shadows.made_by(recorder.add(Node("buffer", f"{BUFFER}{plain_name(name)}")), local(buffer))
        for name, parameter in self.parameters.items():
            mine = local(parameter).detach()
            recorder.shadows.made_by(recorder.add(Node("param", name)), mine)
            recorder.shadows.keep_sum(mine)
            self.start[name] = digest(mine)
            grad = parameter.grad
            if grad is not None:
                recorder.shadows.made_by(recorder.add(Node("earlier", "the gradient of an earlier step")), local(grad))
                recorder.shadows.keep_sum(local(grad))

    def with_gradients(self) -> set[str]:
        """The parameters that have a gradient, which is not zero."""
        return {n for n, p in self.parameters.items() if p.grad is not None and bool(local(p.grad).count_nonzero())}

    def begin_again(self, recorder: Recorder) -> None:
        """Take parameters as they stand now for what the step begins with, and forget what brought them here."""
        with _disable_current_modes():
            every = {n: local(p).detach() for n, p in self.parameters.items()}
            self.earlier = self.with_gradients()
            forget(recorder, live_messages(recorder, [recorder.shadows.region(mine) for mine in every.values()]))
            for told in (self.read, self.settings, self.trained):
                told.clear()
            self.gradients.clear()
            self.copies.clear()
            recorder.updated = False
            for name, mine in every.items():
                recorder._check([mine], None)
                kinds = {recorder.nodes[n].kind for n in nodes_of(recorder.shadows.region(mine)[0])}
                if kinds != {"param"} and "unknown" not in kinds:
                    recorder.shadows.made_by(recorder.add(Node("param", name)), mine)
                    self.start[name] = digest(mine)

    @contextmanager
    def hooks(self, recorder: Recorder) -> Iterator[None]:
        """Hear when an optimizer begins and ends its step."""
        handles: list[Any] = []

        def before(optimizer: Any, args: Any, kwargs: Any) -> None:
            handles.append(optimizer.register_step_pre_hook(begun))  # behind hooks of one's own, which change gradients

        def begun(optimizer: Any, args: Any, kwargs: Any) -> None:
            recorder.in_optimizer += 1
            self.optimizer = type(optimizer).__name__.lower()  # of nested ones the innermost: it is what updates
            own = {id(p) for p in self.parameters.values()}
            trained = [p for group in optimizer.param_groups for p in group["params"]]
            with _disable_current_modes():
                by = getattr(optimizer, "grad_scale", None)  # of a fused one, whose op divides by it
                if not own & {id(p) for p in trained}:
                    self.copies.read(recorder, trained)
                    if by is not None:
                        recorder.unknown.setdefault("the number by which aten::_fused divides gradients", "")
                elif recorder.in_optimizer == 1:
                    self.reads(recorder, {id(p) for p in trained}, 1.0 if by is None else float(by))
                self.keep_settings(optimizer)

        def after(optimizer: Any, args: Any, kwargs: Any) -> None:
            recorder.in_optimizer = max(recorder.in_optimizer - 1, 0)  # of a step that had begun before, none
            recorder.updated = True
            if handles:
                handles.pop().remove()

        watching = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
        try:
            with self.gradients.listening(recorder, self.models):
                yield
        finally:
            for handle in (*watching, *handles):
                handle.remove()

    def keep_settings(self, optimizer: Any) -> None:
        """Keep the numbers by which each parameter is updated; of copies, which stand for several, if all are alike."""
        told = {id(p): settings_of(optimizer, group) for group in optimizer.param_groups for p in group["params"]}
        for name, parameter in self.parameters.items():
            if id(parameter) in told:
                self.settings.setdefault(name, told[id(parameter)])
        if self.copies.tensors and len(set(told.values())) == 1:
            self.settings.update(dict.fromkeys(self.parameters, next(iter(told.values()))))

    def reads(self, recorder: Recorder, trained: set[int], by: float) -> None:
        """Keep the chain of what an optimizer is about to read, divided `by` a number, and of what none has read."""
        own = {name for name, p in self.parameters.items() if id(p) in trained}
        if own & self.trained:
            raise InputError("the step calls the optimizer twice: record one step at a time")
        for name, parameter in self.parameters.items():
            grad = parameter.grad
            if name in self.trained or (name in self.read and name not in own):
                continue
            if grad is None:
                self.read[name] = (), ""
                continue
            mine = local(grad)
            recorder._check([mine], None)
            region = tuple(t.clone() for t in recorder.shadows.region(mine))
            self.read[name] = terms_of(recorder, (region[0], region[1] / by))
            node = Node("read", name, "update", sources=((region[0], region[1]),))
            recorder.shadows.made_by(recorder.add(node), mine)
        self.trained |= own

    def end(self, recorder: Recorder) -> None:
        """Look whether there was a step, and whether memory was written behind the dispatcher."""
        if not self.read and not self.copies.tensors:
            raise InputError("the step never called an optimizer: a training step ends with optimizer.step()")
        if self.copies.lost or (self.read and self.copies.tensors):
            recorder.unknown.setdefault(FOREIGN, "")
        self.copies.check(recorder)
        for name in recorder.seeds.beside():
            recorder.unknown.setdefault(f"{TERM}, by {name}", "")
        for parameter in self.parameters.values():
            recorder._check([local(parameter).detach()], None)

    def rank_seen(self, recorder: Recorder, rank: int, place: Mapping[str, int]) -> RankSeen:
        """What this rank did."""
        chains = [self.chain(recorder, name, p) for name, p in self.parameters.items()]
        messages = list(recorder.messages)
        for chain in chains:
            for index in sorted(moved(chain.terms) | {h.message for h in chain.new}):
                if chain.parameter not in messages[index].carries:
                    messages[index] = replace(messages[index], carries=(*messages[index].carries, chain.parameter))
        regions = [recorder.shadows.region(local(p).detach()) for p in self.parameters.values()]
        live = live_messages(recorder, regions)
        messages = [replace(m, live=m.index in live or m.again or (m.verb in ("send", "recv") and bool(m.module)))
                    for m in messages]  # what a module passes on may reach nothing here, and a gradient elsewhere
        seeds = tuple(recorder.seeds.seed(k, lambda s: self.scale(recorder, s)) for k in range(len(recorder.tasks)))
        unseen = tuple(f"{name} ({line})" if line else name for name, line in recorder.unknown.items())
        return RankSeen(rank, dict(place), tuple(messages), tuple(chains), seeds, unseen, random=tuple(recorder.random))

    def copied(self, recorder: Recorder, name: str) -> tuple[int, tuple[Term, ...], str, Update]:
        """(elements whose copies this rank updates, what they read, what is wrong, their update) of one parameter."""
        claim, update = self.copies.claims.get(name), self.copies.update(recorder, name)
        if claim is None:
            return 0, (), "", update
        return claim.here.numel(), claim.terms, claim.wrong, update

    @staticmethod
    def scale(recorder: Recorder, number: int) -> Hop:
        """The product with a 0-dim tensor that a node is, with what the tensor depends on."""
        node = recorder.nodes[number]
        _, counts, through, _ = ancestors(recorder, node.scalar, set())
        return Hop("scale", message=node.scalar, factor=node.value, counts=counts, through=through, line=node.line)

    def chain(self, recorder: Recorder, name: str, parameter: Tensor) -> Chain:
        """The chain of one parameter."""
        mine = local(parameter).detach()
        terms, wrong = self.read.get(name, ((), ""))
        owned = -1
        if self.copies.tensors and FOREIGN not in recorder.unknown:
            owned, terms, wrong, (inside, new, updated, unseen) = self.copied(recorder, name)
        else:
            inside, new, updated, unseen = update_hops(recorder, recorder.shadows.region(mine), name)
        if inside:
            terms = tuple(replace(t, hops=(*t.hops, *inside)) for t in terms)
        terms = tuple(replace(t, hops=tuple(replace(h, norm=tuple((name, a) for _, a in h.norm)) for h in t.hops))
                      for t in terms)
        shard = tuple(dict.fromkeys(a for ranks in split_over(parameter) for a in recorder.axes(ranks)))
        return Chain(name, mine.numel(), tuple(whole_shape(parameter)), shard, terms, new, updated, self.start[name],
                     self.tied.get(name, ()), wrong or unseen, owned,
                     placed=isinstance(parameter, DTensor) or bool(shard), settings=self.settings.get(name, ""))


@contextmanager
def listening(listener: Any, models: Sequence[nn.Module]) -> Iterator[None]:
    """Tell a listener which modules run, by names in `modules`, and when a collective is waited for.

    What is to be done once a collective has ended is done at once, where ops are seen.

    `waiting` counts the waits that run, `waited` ends one.
    """
    call, names = nn.Module._call_impl, {}
    for part in models:
        names.update({id(m): plain_name(n) for n, m in part.named_modules()})

    def named_call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        name = names.get(id(self))
        listener.modules.append(name if name is not None else (listener.modules[-1] if listener.modules else ""))
        try:
            return call(self, *args, **kwargs)
        finally:
            listener.modules.pop()

    def marked(method: Any, waits: bool) -> Any:
        def waited(self: Any, *args: Any, **kwargs: Any) -> Any:
            listener.waiting += waits
            try:
                return method(self, *args, **kwargs)
            finally:
                listener.waiting -= waits
                listener.waited(self)
        return waited

    def then(self: Any, callback: Any) -> Any:
        made: Any = torch.futures.Future()
        try:
            self.wait()
            made.set_result(callback(self))
        except Exception as error:
            made.set_exception(error)
        return made

    methods = [(kind, name, getattr(kind, name)) for kind in _kinds(dist.Work) for name in _WAITS if name in vars(kind)]
    nn.Module._call_impl = named_call
    for kind, name, method in methods:
        setattr(kind, name, marked(method, name == "wait"))
    future: Any = torch._C.Future
    methods.append((future, "then", future.then))
    future.then = then  # a hook of DDP does with what a collective made what else runs on a thread of its own
    try:
        yield
    finally:
        nn.Module._call_impl = call
        for kind, name, method in methods:
            setattr(kind, name, method)


_WAITS = ("wait", "get_future", "getFuture")
"""What a collective's work is waited for by; the fake group's work has methods of its own."""


def _kinds(kind: type) -> Iterator[type]:
    """A class and all that are made from it."""
    below: list[type] = kind.__subclasses__()
    yield kind
    for one in below:
        yield from _kinds(one)

