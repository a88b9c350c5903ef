"""The mode under which a step runs: every op is run, and what it does with elements is done to their origins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from placealg.measure.count import NAMESPACES, tensors
from placealg.watch.recorder import tables
from placealg.watch.recorder.collectives import IN_PLACE, SILENT, Call, call_of, source_of, work_of
from placealg.watch.recorder.nested import Nested
from placealg.watch.recorder.nodes import Node, parents_of, shares_of
from placealg.watch.recorder.numbers import alone, factor_of, given
from placealg.watch.recorder.ops import (
    distinct,
    draws,
    faking,
    fresh,
    instead,
    may_move,
    mutates,
    only_views,
    only_written,
    phase,
    reads_below,
    user_line,
    wrapper,
    written_by,
)
from placealg.watch.recorder.seeds import ROWS, Seeds
from placealg.watch.recorder.shadows import PLACES, Region, Shadows
from placealg.watch.seen import Message


class Recorder(TorchDispatchMode):
    """Keeps the origin of every element; `nodes` and `messages` are what it found, in order."""

    def __init__(self, axes_of: Mapping[tuple[int, ...], tuple[str, ...]], rank: int):
        super().__init__()
        self.axes_of, self.rank = axes_of, rank
        self.nodes: list[Node] = [Node("zero", "zero"), Node("torn", "bytes of several origins")]
        self.messages: list[Message] = []
        self.shadows = Shadows(self._stranger)
        self.nested = Nested()
        self.modules: list[str] = []
        self.module_of: dict[int, str] = {}
        self.tasks: dict[int, int] = {}
        self.seeds = Seeds(self.nodes)
        self.in_optimizer = 0
        self.waiting = 0
        self.works: dict[int, tuple[Any, list[Tensor]]] = {}
        self.unknown: dict[str, str] = {}
        self.random: dict[str, None] = {}
        self.handed: set[int] = set()
        """The nodes whose numbers autograd has handed to a parameter as its gradient."""
        self.updated = False
        self._sequence = -1

    def add(self, node: Node) -> int:
        """The number of a new node."""
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _stranger(self, tensor: Tensor) -> int:
        return self.add(Node("outside", f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}", self.phase))

    @property
    def task(self) -> int:
        """The number of the backward that runs, from 0; -1 outside."""
        raw = torch._C._current_graph_task_id()
        if raw == -1:
            return -1
        return self.tasks.setdefault(raw if self.nested.outer == -1 else self.nested.outer, len(self.tasks))

    @property
    def phase(self) -> str:
        """Where the step is."""
        return phase(self.modules, self.in_optimizer)

    def module(self) -> str:
        """The module whose op runs, or whose op's backward."""
        if self.modules:  # in backward, a forward that runs again
            return self.modules[-1]
        if torch._C._current_graph_task_id() == -1:
            return ""
        node = torch._C._current_autograd_node()
        return self.module_of.get(node._sequence_nr(), "") if node is not None else ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the op, then do to the origins what it does to elements."""
        if any(wrapper(t) for t in types):
            return NotImplemented
        kwargs = kwargs or {}
        if faking(types):
            return func(*args, **kwargs)
        self._tag()
        if func.namespace in NAMESPACES:
            return self._communicate(func, args, kwargs)
        if only_views(func):
            return func(*args, **kwargs)
        inputs = list(tensors((args, list(kwargs.values()))))
        if any(t.device.type == "meta" for t in inputs):
            return func(*args, **kwargs)
        if self.waiting and func._schema.name == "aten::copy_" and not self.shadows.known(args[1]):
            made = func(*args, **kwargs)  # a backend's own copy onto what a collective made, while it is waited for
            self.shadows.forget_sum(args[0])
            return made
        self._check([t for t in inputs if id(t) not in only_written(func, args, kwargs)], func)
        before = self._before(func, args, kwargs)
        if (self.modules or "dropout" in func._schema.name) and draws(func, args, kwargs):
            self.random[func._schema.name] = None
        made = func(*args, **kwargs)
        written = [*written_by(func, args, kwargs), *tensors(made)]
        if all(t.device.type != "meta" for t in written):
            self._follow(func, args, kwargs, made, inputs, written, before)
            for tensor in written:
                self.shadows.keep_sum(tensor)
        return made

    def _tag(self) -> None:
        """Remember which module an op of the graph was made in."""
        if self.modules:
            now = torch._C._autograd._get_sequence_nr() - 1
            if now != self._sequence:
                for k in range(max(self._sequence + 1, now - 8), now + 1):
                    self.module_of[k] = self.modules[-1]
                self._sequence = now

    def _check(self, tensors: list[Tensor], func: Any) -> None:
        """Tell memory that was written without the dispatcher: from here on its origin is unknown."""
        for tensor in tensors:
            if self.shadows.unwaited(tensor):
                self.behind(tensor, "what a collective may still be writing: nobody has waited for it")
            elif not self.shadows.check_sum(tensor):
                self.behind(tensor)

    def behind(self, tensor: Tensor, what: str = "memory written behind PyTorch's dispatcher") -> None:
        """A storage was written without the dispatcher, or may be."""
        shadow = self.shadows.shadow(tensor)
        node = self.add(Node("unknown", what, self.phase, self.task, line=user_line()))
        shadow.origin.fill_(node << PLACES)
        shadow.sum, shadow.pending = None, False

    def waited(self, work: Any) -> None:
        """A collective is waited for, or what waits for it has been handed on."""
        for tensor in self.works.pop(id(work), (None, []))[1]:
            self.shadows.forget_sum(tensor)

    def _before(self, func: Any, args: Any, kwargs: Any) -> list[Region]:
        """Copies of the origins of what the op reads, where it may overwrite them."""
        name = func._schema.name
        if name in tables.SCALES or name in tables.SUMS or name in tables.NEGATES or mutates(func):
            return [tuple(t.clone() for t in self.shadows.region(x)) for x in tensors((args, list(kwargs.values())))]
        return [self.shadows.region(x) for x in tensors((args, list(kwargs.values())))]

    def _follow(self, func: Any, args: Any, kwargs: Any, made: Any, inputs: list[Tensor], written: list[Tensor],
                before: list[Region]) -> None:
        name = func._schema.name
        if name in tables.EMPTIES or name in tables.VIEWS_ONLY:
            if name in tables.EMPTIES:
                for tensor in written:
                    self.shadows.made_by(0, tensor)
            return
        if name in tables.MOVES or f"{name}.{func._schema.overload_name}" in tables.MOVES:
            self._move(func, args, kwargs, made, inputs)
        elif name in tables.CONSTANTS:
            self._constant(name, func, args, kwargs, written)
        elif name in tables.NEGATES:
            self._each(written, lambda k, t: (before[k][0], -before[k][1]))
        elif not (name in tables.SCALES and self._scale(name, args, kwargs, written, inputs, before)) and not (
                name in tables.SUMS and not (self.modules and self.task == -1)
                and self._sum(name, args, kwargs, written, inputs, before)):
            self._compute(func, args, kwargs, inputs, written, before)

    def _each(self, written: list[Tensor], region: Any) -> None:
        seen: set[tuple[int, int, tuple[int, ...]]] = set()
        for k, tensor in enumerate(distinct(written, seen)):
            self.shadows.write(tensor, region(k, tensor))

    def _move(self, func: Any, args: Any, kwargs: Any, made: Any, inputs: list[Tensor]) -> None:
        """Run the op on the origins of what it moves."""
        results = []
        by = float(kwargs.get("value", args[2] if len(args) > 2 else 0.0)
                   ) if func._schema.name == "aten::constant_pad_nd" else 0.0
        filled = (self.add(Node("constant", func._schema.name, self.phase, self.task)) << PLACES if by else 0), by
        for side in (0, 1):
            shaped = tuple(instead(a, self.shadows, side) for a in args)
            named = {k: instead(v, self.shadows, side) for k, v in kwargs.items()
                     if k not in ("dtype", "device", "layout", "pin_memory", "non_blocking")}
            if func._schema.name == "aten::_to_copy":
                results.append(shaped[0].clone())
                continue
            if func._schema.name == "aten::constant_pad_nd":  # what pads is a number, of no place
                shaped = (*shaped[:2], filled[side])
                named = {}
            results.append(func(*shaped, **named))
        for out, origin, factor in zip(tensors(made), tensors(results[0]), tensors(results[1]), strict=True):
            if not any(self.shadows.same_storage(out, t) for t in inputs):
                self.shadows.write(out, (origin.to(torch.int64), factor.to(torch.float64)))

    def _constant(self, name: str, func: Any, args: Any, kwargs: Any, written: list[Tensor]) -> None:
        value = tables.CONSTANTS[name]
        if value is None:
            given = {a.name: v for v, a in zip(args, func._schema.arguments, strict=False)} | dict(kwargs)
            value = next((given[n] for n in ("fill_value", "value", "s") if n in given), 0.0)
            value = float(value) if isinstance(value, bool | int | float) else float("nan")
        node = self.add(Node("constant", name, self.phase, self.task)) if value else 0
        for tensor in written:
            origin, factor = self.shadows.region(tensor)
            origin.fill_(node << PLACES)
            factor.fill_(value)

    def _scale(self, name: str, args: Any, kwargs: Any, written: list[Tensor], inputs: list[Tensor],
               before: list[Region]) -> bool:
        """A product with a number, or with a 0-dim tensor; False if it is neither."""
        power = tables.SCALES[name]
        first, second = args[0], factor_of(name, args, kwargs)
        if "rounding_mode" in kwargs:
            return False
        count = len(first) if isinstance(first, list | tuple) else 1
        if isinstance(second, int | float) or (isinstance(second, list | tuple) and second
                                               and all(isinstance(v, int | float) for v in second)):
            numbers = [second] * count if isinstance(second, int | float) else list(second)
            self._each(written[:count], lambda k, t: (before[k][0], before[k][1] * float(numbers[k]) ** power))
            return True
        if alone(second) and not (alone(first) and self.phase == "forward"):
            scalar = before[count + (name == tables.UNSCALES)]
            parents = parents_of([scalar])
            constant = len(parents) == 1 and self.nodes[parents[0][0]].kind == "constant"
            if constant or (self.phase in ("between", "update") and given(self.nodes, parents)):
                number = float(scalar[1]) if constant else float(second)
                self._each(written[:count], lambda k, t: (before[k][0], before[k][1] * number ** power))
                return True
            value, line = float(second) ** power, user_line()
            key = parents[0][0] if len(parents) == 1 else -1

            def scaled(k: int, tensor: Tensor) -> Region:
                source = tuple(t.clone() for t in before[k])
                node = self.add(Node("scaled", name, self.phase, self.task, self.module(), line,
                                     (*parents, *parents_of([before[k]])), (source,), value=value, scalar=key))
                return fresh(node, tensor)

            self._each(written[:count], scaled)
            return True
        return False

    def _sum(self, name: str, args: Any, kwargs: Any, written: list[Tensor], inputs: list[Tensor],
             before: list[Region]) -> bool:
        """A sum of two tensors, or of two lists of them; False if it adds a number."""
        alpha = kwargs.get("alpha", args[2] if len(args) > 2 else 1)
        first, second = args[0], args[1]
        lists = isinstance(first, list | tuple)
        if not (isinstance(second, Tensor) or (lists and isinstance(second, list | tuple)
                                               and all(isinstance(t, Tensor) for t in second))):
            return False
        if not isinstance(alpha, int | float) or not (isinstance(first, Tensor) or lists):
            return False
        sign, count = float(alpha) * tables.SUMS[name], len(first) if lists else 1

        def summed(k: int, tensor: Tensor) -> Region:
            one = tuple(t.expand(tensor.shape).clone() for t in before[k])
            other = before[count + (k if isinstance(second, list | tuple) else 0)]
            two = other[0].expand(tensor.shape).clone(), (other[1] * sign).expand(tensor.shape).clone()
            for here, there in ((one, two), (two, one)):
                if not int(torch.count_nonzero(here[0])):
                    return there
            node = self.add(Node("sum", name, self.phase, self.task, self.module(), "", parents_of([one, two]),
                                 (one, two)))
            return fresh(node, tensor)

        self._each(written[:count], summed)
        return True

    def _compute(self, func: Any, args: Any, kwargs: Any, inputs: list[Tensor], written: list[Tensor],
                 before: list[Region]) -> None:
        """An op that is followed no further: a node for everything that it makes."""
        name, task = func._schema.name, self.task
        known = torch.Tag.pointwise in func.tags or func.namespace in ("aten", "prims", "profiler")
        known = known and not (self.in_optimizer and may_move(func, inputs, written))
        if task != -1:
            self.seeds.meet(task, name, inputs, written, before, args[2] if name == ROWS else 0)
        kind, tokens, value = "compute" if known else "unknown", 0.0, 1.0
        sources: tuple[Region, ...] = ()
        if name in tables.LOSSES and before and before[0][0].numel() == 1:
            given = {a.name: v for v, a in zip(args, func._schema.arguments, strict=False)} | dict(kwargs)
            total, sources = float(given["total_weight"]), (tuple(t.clone() for t in before[0]),)
            kind, tokens = "loss", total or float(given["target"].numel())
            value = 1 / total if given["reduction"] == 1 and total else 1.0
        lists = [a for a in args if isinstance(a, list | tuple) and a and all(isinstance(t, Tensor) for t in a)]
        listed = name.startswith(("aten::_foreach_", "aten::_fused_"))
        apart = listed and lists and {len(a) for a in lists} == {len(lists[0])}
        if kind == "unknown":
            self.unknown.setdefault(name, user_line())
        if apart:
            size = len(lists[0])
            alone = [r for k, r in enumerate(before) if k >= size * len(lists)]
            for k in range(size):
                regions = [before[j * size + k] for j in range(len(lists))] + alone
                self._made(Node(kind, name, self.phase, task, self.module(), parents=parents_of(regions),
                                shares=shares_of(name, args, regions)), written[k::size])
            return
        self._made(Node(kind, name, self.phase, task, self.module(), parents=parents_of(before), sources=sources,
                        tokens=tokens, value=value, shares=shares_of(name, args, before)), written)

    def _made(self, node: Node, written: list[Tensor]) -> None:
        number = self.add(node)
        for k, tensor in enumerate(distinct(written, set())):
            self.shadows.made_by(number if k == 0 else self.add(node), tensor)

    def _communicate(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A collective: what goes in, what comes out."""
        name = func._schema.name.partition("::")[2]
        if name in SILENT:
            made = func(*args, **kwargs)
            if name.startswith("wait_tensor"):
                for tensor in tensors(args):
                    self.shadows.keep_sum(tensor)
            return made
        early = call_of(name, func, args, kwargs, None) if name in IN_PLACE or func.namespace == "c10d" else None
        inputs = [t for r, _ in early.pairs for t in r] if early else list(tensors((args, kwargs)))
        self._check(inputs, func)
        regions = {id(t): tuple(x.clone() for x in self.shadows.region(t)) for t in inputs}
        made = func(*args, **kwargs)
        work = work_of(func, made)
        call = early or call_of(name, func, args, kwargs, made)
        if call is None or not any(reads or writes for reads, writes in call.pairs):
            self.unknown.setdefault(f"{func.namespace}::{name}", user_line())
            node = Node("unknown", f"{func.namespace}::{name}", self.phase, self.task, line=user_line())
            self._made(node, [*inputs, *tensors((args, kwargs)), *tensors(made)])
            return made
        self._message(call, regions, work is not None or func.namespace == "_c10d_functional")
        if work is not None:
            self.works[id(work)] = work, [t for _, w in call.pairs for t in w]
        return made

    def _message(self, call: Call, regions: dict[int, Region], pending: bool) -> None:
        index = len(self.messages)
        ins = [t for r, _ in call.pairs for t in r]
        outs = [t for _, w in call.pairs for t in w]
        sent = outs if call.verb in ("all_gather", "recv") else ins
        kind = str((sent or ins or outs)[0].dtype).removeprefix("torch.")
        self.messages.append(Message(index, self.phase, call.verb, call.op, self.axes(call.ranks),
                                     sum(t.numel() * t.element_size() for t in sent), kind, self.microbatch(),
                                     self.module(), self._moved(regions, ins), user_line(), call.root,
                                     again=bool(self.modules) and self.task != -1))
        for reads, writes in call.pairs:
            given = [regions[id(t)] for t in reads]
            parents = parents_of(given)
            for k, out in enumerate(writes):
                node = Node("message", call.verb, self.phase, self.task, self.module(), parents=parents, message=index,
                            value=call.factor)
                node.start, node.chunk, node.sources = source_of(call, self.rank, k, given, reads, writes)
                self.shadows.made_by(self.add(node), out)
                self.shadows.written_by_peers(out, pending)

    def _moved(self, regions: dict[int, Region], ins: list[Tensor]) -> tuple[str, ...]:
        """The parameters whose weights, as they stand or updated, are what is sent."""
        found: list[str] = []
        for tensor in ins:
            for number, _, _ in parents_of([regions[id(tensor)]]):
                node = self.nodes[number]
                found += [node.name] if node.kind in ("param", "buffer") else sorted(
                    reads_below(self.nodes, number)) if self.updated and node.phase == "update" else []
        return tuple(dict.fromkeys(found))

    def microbatch(self) -> int:
        """The microbatch to which what happens now belongs: that of the backward that runs, or of the next one."""
        return self.task if self.task != -1 else len(self.tasks)

    def axes(self, ranks: tuple[int, ...]) -> tuple[str, ...]:
        """The axes that a group of ranks spans."""
        found = self.axes_of.get(tuple(sorted(ranks)))
        return found if found is not None else (f"ranks {','.join(map(str, ranks))}",) if len(ranks) > 1 else ()
