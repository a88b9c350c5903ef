"""Ops as transfer rules on what every rank holds: forward on exact operands, backward linear in the gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from placealg.arith import Monomial
from placealg.frozen import FrozenMap
from placealg.models.backward import GRAD, BackwardOp, kept, named, terms, transposed
from placealg.models.graph import Graph, Op
from placealg.prover.calculus.contribution import Term, Value
from placealg.prover.calculus.event_ranks import among
from placealg.prover.calculus.positions import Pairs, dim_of
from placealg.prover.ops import paths
from placealg.prover.ops.findings import SEED, Demand, Flow, GradientPart, seed_of
from placealg.prover.ops.paths import Sum
from placealg.prover.ops.stages import Stages, at_the_ends, tied
from placealg.prover.ops.tensors import Tensors, on_some
from placealg.step.event import Event
from placealg.step.gradient_targets import WEIGHTS, receivers
from placealg.step.program import Reference
from placealg.step.versions import LEFT_OUT


class Operators:
    """The ops of one microbatch, executed on its tensors; their demands and contributions go into `flow`.

    `passes` counts the instances of a repeated unit, `split` is the split of the loss when it was summed, and `lost`
    maps a result that no rank holds to the event that read a missing operand and to that operand. `summed` are results
    as they were made, whatever ended them since: a further term of the loss starts its backward where it was summed.
    """

    def __init__(self, reference: Reference, tensors: Tensors, flow: Flow, stages: Stages):
        self.reference, self.tensors, self.flow, self.stages = reference, tensors, flow, stages
        self.graph: Graph = tensors.graph
        self.extents: dict[tuple[str, int], Pairs] = tensors.extents
        self.lost: dict[str, tuple[str, str]] = {}
        self.passes = 1
        self.split: Pairs | None = None
        self.began = False
        self.summed: dict[str, Sum] = {}

    def demand(self, event: Event, name: str, held: Sum, says: str = "") -> Sum:
        """Demand that a value is exact; if it is not, that is a fault, and the execution goes on as if it were."""
        mask = paths.mask_of(held)
        path = event.path
        if not held and not says:
            path, name = self.lost.get(name, (path, name))
        why = says or (f"reads {name}, which is not there" if not held else
                       f"reads {name}, which is undefined" if _undefined(held) else
                       f"reads {name} where a sum in it is not complete, or counts too much")
        self.flow.demands.append(Demand(path, why, held, mask | among(event)))
        return paths.exact(mask) if held else ()

    def compute(self, event: Event) -> None:
        """Execute an op, or an op's backward."""
        op = self.graph.producer(event.tensor)
        assert op is not None
        labels = [v.label for v in event.operands] or [""] * len(op.inputs)
        if event.on_gradient:
            self.transpose(event, op, labels)
        else:
            result = on_some(event, self.apply(event, op, labels), self.tensors.made.get((op.output, ""), ()))
            self.tensors.made[op.output, ""] = self.summed[op.output] = result
            self.tensors.shape(op.output, result)
            self.flow.masks[event.path] = self.flow.masks.get(event.path, frozenset()) | paths.mask_of(result)

    def take(self, event: Event) -> None:
        """Take a statistic for the group that it moves: its tensor, a sum that need not be complete."""
        group = self.reference.group(event.group)
        op = self.graph.producer(group.taken)
        assert op is not None
        split: Mapping[str, str] = self.reference.split_dims.get(group.parameters[0], FrozenMap())
        stage, held = self.stages.at(op.unit), self.stages.here(op.unit, self.tensors.read(group.taken))
        mine = paths.each(held, lambda v: paths.owned(v, split, stage))
        self.flow.taken[event.path] = paths.distinct((*self.flow.taken.get(event.path, ()), *mine)) if mine else ()

    def apply(self, event: Event, op: Op, labels: list[str]) -> Sum:
        """The result of an op, by its family."""
        operands = [self.read(event, op, n, label) for n, label in zip(op.inputs, labels, strict=True)]
        dims = tuple(self.graph.tensors[op.output].dims)
        if missing := next((n for n, held in zip(op.inputs, operands, strict=True) if not held), ""):
            self.lost[op.output] = self.lost.get(missing, (event.path, missing))
        else:
            self.lost.pop(op.output, None)
        if op.row.view:
            return paths.renamed(operands[0], op.rename)
        if not missing:
            self.extents.update({(op.output, k): paths.mask_of(held) for k, held in enumerate(operands)})
        if op.row.random and (op.output, 0) in self.extents:
            self.keep(event, f"{op.output}.mask", paths.exact(self.extents[op.output, 0]))
        if op.row.linear == "table":
            operands[1:] = [self.demand(event, n, held) for n, held in zip(op.inputs[1:], operands[1:], strict=True)]
        if op.row.linear in ("each", "table") or op.kind == "sum":
            return paths.contracted(operands, dims, self.tag(op.output))
        if op.row.linear == "all":
            whole = [self.complete(event, op, n, held) for n, held in zip(op.inputs, operands, strict=True)]
            turned = [self.demand(event, n, held) for n, held in self.attributes(op, whole)]
            made = paths.mixed(paths.added(whole[:len(whole) - len(turned)]), op.over, self.tag(op.output))
            return paths.contracted([made, *turned], dims, self.tag(op.output)) if turned else made
        right = [self.demand(event, n, held) for n, held in zip(op.inputs, operands, strict=True)]
        others = {a for held in right for a, p in paths.mask_of(held) if dim_of(p) not in op.over}
        for axis in others.intersection(event.axes):
            self.demand(event, op.output, (), f"merges over {axis} statistics of rows that {axis} splits")
        whole = [self.complete(event, op, n, held) for n, held in zip(op.inputs, right, strict=True)]
        for tensor, _ in kept(self.graph, op):
            rows = whole if not set(op.over) & set(tensor.dims) else right
            self.keep(event, tensor.name, paths.contracted(rows, tuple(tensor.dims), self.tag(op.output)))
        return paths.contracted(whole, dims, self.tag(op.output))

    def read(self, event: Event, op: Op, name: str, label: str) -> Sum:
        """A version of an operand; that one is left out is a fault, and the execution goes on as if it were not."""
        if label == LEFT_OUT:
            self.demand(event, name, (), f"leaves out {name}, which the reference's op reads")
            label = ""
        return self.stages.here(op.unit, self.tensors.read(name, label))

    def keep(self, event: Event, name: str, held: Sum) -> None:
        """Keep a value beside a result, on the ranks on which the op runs."""
        self.tensors.beside[name] = on_some(event, held, self.tensors.beside.get(name, ()))

    def complete(self, event: Event, op: Op, name: str, held: Sum) -> Sum:
        """An operand of whose rows the op takes statistics, or which it mixes.

        Whole rows must be held, or their statistics merged over the axes that split them.
        """
        bounds = any(name == n for n, _ in self.attributes(op, [()] * len(op.inputs)))
        if name != op.inputs[0] and not op.row.mixes and not bounds:
            return held
        split = {(a, p) for a, p in paths.mask_of(held) if dim_of(p) in op.over}
        if op.row.over == "statistics" and {a for a, _ in split} != set(event.axes):
            self.demand(event, name, (), f"takes or merges statistics of {name} over other axes than split its rows")
        if op.row.over == "whole" and split:
            self.demand(event, name, (), f"works on a part of the rows of {name}")
        return paths.exact(paths.mask_of(held) - split) if split and op.row.over else held

    def attributes(self, op: Op, held: list[Sum]) -> list[tuple[str, Sum]]:
        """The operands that are attributes of tokens, each with what is held of it."""
        named = zip(op.row.operands, op.inputs, held, strict=False)
        return [(name, value) for role, name, value in named if role in op.row.attributes]

    def tag(self, name: str) -> str:
        """The name of a contraction, different in every instance of a repeated unit."""
        return name + "'" * (self.passes - 1)

    def transpose(self, event: Event, op: Op, labels: list[str]) -> None:
        """Execute the backward of an op: add its gradient's contribution to every operand that needs a gradient."""
        last = op == self.graph.ops[-1] and event.phase != WEIGHTS
        if last and self.began:
            self.flow.open.append(Demand(event.path, "starts the backward once more", (), frozenset()))
        self.began = self.began or last
        term = op in terms(self.graph)
        arriving = self.stages.here(op.unit, self.seeded() if last else self.seeded_by(event, op) if term else
                                    self.tensors.gradient(op.output))
        for k in receivers(event, self.reference):
            held = self.contribution(event, op, transposed(self.graph, op, k), labels, arriving)
            if last and held:
                held = paths.narrowed(held, self.split or ())
            self.deposit(event, op, k, op.inputs[k], labels[k], held)

    def seeded(self) -> Sum:
        """The gradient of the loss: one symbol for the value from which backward starts."""
        return (Value((Term(Monomial.of(SEED)),)),) if self.split is not None else ()

    def seeded_by(self, event: Event, op: Op) -> Sum:
        """The gradient of a further term of the loss where it was summed: a symbol for one over the event's divisor."""
        seed = Term(Monomial.of(seed_of(event)))
        return paths.each(self.summed.get(op.output, ()), lambda v: replace(v, terms=(seed,)))

    def deposit(self, event: Event, op: Op, k: int, name: str, label: str, held: Sum) -> None:
        """Add what operand `k` received to its gradient; for a parameter, to the flow's contributions."""
        use, held = f"{op.output}/{k}", on_some(event, held)
        if self.graph.tensors[name].kind != "parameter":
            if not self.tensors.add(name, label, use, held):
                self.flow.open.append(Demand(event.path, f"adds to the gradient of {name} once more", (), frozenset()))
            return
        split: Mapping[str, str] = self.reference.split_dims.get(name, FrozenMap())
        if tied(self.reference, name):
            held = at_the_ends(held, self.reference, name)
        stage = self.stages.at(op.unit)
        self.flow.add(GradientPart(event.path, name, use, paths.each(held, lambda v: paths.owned(v, split, stage))))

    def contribution(self, event: Event, op: Op, step: BackwardOp, labels: list[str], arriving: Sum) -> Sum:
        """The contribution to one operand's gradient: linear in what arrives; all else that is read must be exact.

        The backward of a product is linear in the other factors, too: of a sum that is not complete it makes one.
        """
        of, tag = tuple(self.graph.tensors[step.of].dims), self.tag(f"{step.forward}.grad.{step.operand}")
        if step.kind == "vjp":
            return self.product(event, op, step, labels, arriving)
        if step.kind == "rename":
            return paths.renamed(arriving, step.rename)
        if step.kind == "rope":
            turned = paths.mixed(self.complete_rows(event, op, arriving), op.over, tag)
            places = [self.factor(event, op, k, labels) for k in range(1, len(op.inputs))]
            return paths.contracted([turned, *places], of, tag) if places else turned
        partners = [k for k in range(len(op.inputs)) if k != step.operand] if step.reads else []
        read = [self.factor(event, op, k, labels) for k in partners]
        known = {d for n in (op.output, *step.reads) for d in self.graph.tensors[n].dims}
        extent = self.extents.get((op.output, step.operand), frozenset())
        alone = {(a, p) for a, p in extent if dim_of(p) not in known}
        return paths.narrowed(paths.contracted([arriving, *read], of, tag), alone)

    def complete_rows(self, event: Event, op: Op, held: Sum) -> Sum:
        """A gradient whose rows the op's backward mixes: whole rows must be held."""
        split = {(a, p) for a, p in paths.mask_of(held) if dim_of(p) in op.over}
        if split:
            self.demand(event, op.output + GRAD, (), f"works on a part of the rows of {op.output}{GRAD}")
        return paths.each(held, lambda v: replace(v, mask=v.mask - split))

    def operand(self, event: Event, op: Op, k: int, labels: list[str]) -> Sum:
        """Operand `k` as the backward reads it, in its own version: a tensor may be two operands in two versions."""
        return self.demand(event, op.inputs[k], self.read(event, op, op.inputs[k], labels[k]))

    def factor(self, event: Event, op: Op, k: int, labels: list[str]) -> Sum:
        """Operand `k`, in which the backward is linear: a defined sum that need not be complete.

        It must be where a message differs from what is handed on locally: instances that were not followed find other
        messages, of which the gradients of the followed ones say nothing.
        """
        held = self.read(event, op, op.inputs[k], labels[k])
        partial = held and op.row.linear == "each" and not (paths.is_exact(held) or _undefined(held))
        return held if partial and not self.stages.unlike else self.demand(event, op.inputs[k], held)

    def saved(self, event: Event, op: Op, name: str, held: Sum) -> Sum:
        """A value that the backward reads besides the gradient: it must be exact."""
        return self.demand(event, name, self.stages.here(op.unit, held))

    def played(self, event: Event, op: Op, role: str, labels: list[str]) -> Sum:
        """The value of a role in the backward: an operand, the result, or what the op kept."""
        if role in op.row.operands:
            return self.operand(event, op, op.row.operands.index(role), labels)
        name = named(op, role)
        held = self.tensors.made.get((name, ""), ()) if role == "y" else self.tensors.beside.get(name, ())
        return self.saved(event, op, name, held)

    def product(self, event: Event, op: Op, step: BackwardOp, labels: list[str], arriving: Sum) -> Sum:
        """A vector-Jacobian product, step by step: at most one input of each step is linear in the gradient."""
        dims = self.roles(op)
        values: dict[str, Sum] = {"dy": arriving}
        for line in step.steps:
            for role in line.inputs:
                if role not in values:
                    values[role] = self.played(event, op, role, labels)
            inputs = [values[role] for role in line.inputs]
            tag = self.tag(f"{op.output}.grad.{line.output}")
            if line.kind == "carry":
                inputs = [paths.mixed(held, op.over[:1], f"{tag}.{k}") for k, held in enumerate(inputs)]
            added = line.kind == "add"
            values[line.output] = paths.added(inputs) if added else paths.contracted(inputs, dims[line.dims], tag)
        return values[step.steps[-1].output]

    def roles(self, op: Op) -> dict[str, tuple[str, ...]]:
        """The dims of every role of the op table."""
        result = tuple(self.graph.tensors[op.output].dims)
        operands = dict(zip(op.row.operands, self.graph.operand_dims(op), strict=False))
        first, *others = self.graph.operand_dims(op)
        row = tuple(d for d in result if d not in op.over)
        grid = tuple(dict.fromkeys(d for dims in (first, *others[:1]) for d in dims
                                   if d not in op.over or d not in first))
        outer = tuple(dict.fromkeys(d for dims in (first, *others[:1], result) for d in dims))
        inner = tuple(d for d in outer if d not in op.over[1:2])
        return {**operands, "row": row, "grid": grid, "outer": outer, "inner": inner}


def _undefined(held: Sum) -> bool:
    """Whether a value is garbage, or has the right weights but is whole on some ranks only."""
    return any(v.garbage for v in held) or all(v.terms == paths.exact()[0].terms for v in held)
