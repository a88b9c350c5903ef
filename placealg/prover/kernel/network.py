"""What each op of an op graph is in the language: einsums, functions of rows, sums, factors and other names.

Forward and backward are written once, for whoever makes values of them: the single device, whose values are those of
whole tensors, and a program, whose values are slots. What a function of rows computes is not known, so that the
backward of a norm, a softmax or a loss is what the op table says it is; that it is the derivative is not proved here.
Of einsums, sums, factors and names it is the transposed op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

from placealg.models.backward import kept, transposed
from placealg.models.graph import Graph, Op
from placealg.models.ops import Backprop, within
from placealg.prover.kernel.outside import Outside

V = TypeVar("V")

ROTATED = "'"
"""The name of a rotated dim ends so: it is summed over under one name, and stands in the result under the other."""


WIDTH, VALUE = "width", "value"
"""The dim along which tokens hold numbers, where nothing is known of units; and that of the values of elements."""


class Maker(Protocol[V]):
    """What makes values: each method is an op of the language; dims and factors are given by name."""

    def einsum(self, args: list[V], over: Iterable[str]) -> V:
        """The product of the operands, summed over dims."""

    def row(self, function: str, over: Iterable[str], args: list[V]) -> V:
        """A function of rows along dims."""

    def add(self, args: list[V]) -> V:
        """A sum."""

    def scale(self, by: Mapping[str, int], arg: V) -> V:
        """A multiple, the same on every rank as on the single device."""

    def rename(self, names: Mapping[str, str], arg: V) -> V:
        """Other names of dims."""

    def whole(self, dim: str, arg: V) -> V:
        """The operand on all ranks that compute the op together, where it is split along a dim among them."""

    def total(self, arg: V) -> V:
        """The sum over the ranks that compute the op together."""

    def stream(self) -> V:
        """The random stream."""


def _dims(graph: Graph, name: str) -> tuple[str, ...]:
    return tuple(graph.tensors[name].dims)


def _beside(out: Iterable[str], *have: Iterable[str]) -> list[str]:
    """The dims that operands have and the result lacks."""
    return [d for d in dict.fromkeys(d for dims in have for d in dims) if d not in set(out)]


def forward(make: Maker[V], graph: Graph, op: Op, read: Callable[[int], V]) -> dict[str, V]:
    """The value of an op, under "", and of what it keeps for its backward, by name; raises Outside."""
    family, out = op.row.family, _dims(graph, op.output)
    dims = [_dims(graph, n) for n in op.inputs]
    args = [read(k) for k in range(len(op.inputs))]
    if op.kind in ("einsum", "sum", "mul"):
        return {"": make.einsum(args, _beside(out, *dims))}
    if op.kind == "add":
        return {"": make.add(args)}
    if op.kind == "scale":
        return {"": make.scale({f"factor {op.output}": 1}, args[0])}
    if op.kind in ("rename", "cast", "copy"):
        return {"": make.rename(op.rename, args[0])}
    if op.kind == "dropout":
        mask = make.row(f"mask of {op.output}", (), [make.stream()])
        return {"": make.einsum([args[0], mask], ()), "mask": mask}
    if family == "lookup":
        chosen = make.row(f"one-hot {op.over}", (), args[1:])
        return {"": make.einsum([args[0], chosen], op.over)}
    if family == "one_hot":
        return {"": make.row(f"one-hot {op.over}", (), args)}
    if family == "unary":
        return {"": make.row(op.kind, (), args)}
    if family == "route":
        return {"": make.row(f"route {op.over}", op.over[:1], args)}
    if family in ("norm", "softmax", "logsumexp"):
        found = {k.name: make.row(f"{op.kind}.{k.name}", op.over, args[:1]) for _, k in kept(graph, op)}
        return {"": make.row(op.kind, op.over, args), **found}
    if op.kind == "rope":
        return {"": _rotated(make, op.over[0], "", args[0], args[1:])}
    if family == "flash" and op.kind in PRINTED:
        return _flash(make, graph, op, args, dims, out)
    if family == "cross_entropy":
        return _cross_entropy(make, op, args)
    if op.kind == "largest":
        return {"": histogram(make, args[0], _beside(out, *dims))}
    if op.kind in ALONG:  # whatever it does along its first dim, and with dims that the result lacks
        return {"": make.row(op.kind, [op.over[0], *_beside(out, *dims)], args)}
    if op.kind == "unit":
        drawn = make.row(f"drawn in {op.output}", (), [make.stream()])
        return {"": make.row(f"unit {op.output}", _read_whole(out, dims), [*args, drawn]), "drawn": drawn}
    raise Outside("", f"{op.output} is a {op.kind}")


PRINTED = ("flash", "flash_rope", within("flash"), within("flash_rope"))
"""The kinds of attention in one op that are printed."""


ALONG = ("scan", "delta", "conv")
"""The kinds of scans and convolutions that are printed: along whole sequences."""


def histogram(make: Maker[V], arg: V, over: Iterable[str]) -> V:
    """How many elements have each value: these numbers add up, and the largest element is a function of them."""
    return make.einsum([make.row("one for its value", (), [arg])], over)


def statistic(make: Maker[V], graph: Graph, op: Op, name: str, entering: V, merge: str) -> V:
    """What a statistic of a unit of which nothing is known is made of: a function of each token that enters."""
    each = make.row(f"statistic of {name}", [WIDTH], [entering])
    over = [d for d in _dims(graph, op.output) if d not in _dims(graph, name)]
    return histogram(make, each, over) if merge == "max" else make.einsum([each], over)


def _read_whole(out: tuple[str, ...], dims: list[tuple[str, ...]]) -> list[str]:
    """What a unit of which nothing is known reads whole: its parameters, and of each token whatever it holds."""
    return [WIDTH, *_beside(out, *dims)]


def _of_unit(make: Maker[V], op: Op, operand: int, args: list[V], arriving: V, dims: list[tuple[str, ...]],
             out: tuple[str, ...]) -> V:
    """What an operand of a unit gets: its Jacobian, a function of whatever the unit reads, times what arrives."""
    jacobian = make.row(f"jacobian {operand} of {op.output}", _read_whole(out, dims), args)
    if operand:
        return make.einsum([jacobian, arriving], [WIDTH, *_beside(dims[operand], out)])
    return make.rename({WIDTH + ROTATED: WIDTH}, make.einsum([jacobian, arriving], [WIDTH]))


def _rotated(make: Maker[V], dim: str, inverse: str, arg: V, positions: list[V]) -> V:
    """The operand turned by a function of the place, or of positions."""
    turn = make.row(f"rotation {inverse}", (), positions)
    return make.rename({dim + ROTATED: dim}, make.einsum([arg, turn], [dim]))


def _grid(op: Op, dims: list[tuple[str, ...]]) -> tuple[str, ...]:
    """The dims of an attention's scores."""
    first, *others = dims
    return tuple(dict.fromkeys(d for ds in (first, *others[:1]) for d in ds if d not in op.over or d not in first))


def _flash(make: Maker[V], graph: Graph, op: Op, args: list[V], dims: list[tuple[str, ...]],
           out: tuple[str, ...]) -> dict[str, V]:
    grid = _grid(op, dims)
    pairs = [(0, 1), *([(3, 4)] if "q_rope" in op.row.operands else [])]
    seen = [arg for k, arg in enumerate(args) if op.role(k) in op.row.attributes]
    products = [make.einsum([args[a], args[b]], _beside(grid, dims[a], dims[b])) for a, b in pairs]
    scores = make.scale({f"factor {op.kind}": 1}, products[0] if len(products) == 1 else make.add(products))
    lse = make.row("lse", [d for d in op.over if d in grid], [scores, *seen])
    probs = make.row(f"exp_minus {op.kind}", (), [scores, lse, *seen])
    return {"": make.einsum([probs, *_masks(make, op), args[2]], _beside(out, grid, dims[2])), "lse": lse}


def _masks(make: Maker[V], op: Op) -> list[V]:
    """By what an attention multiplies its probabilities, if it draws: the same in its backward, drawn again."""
    return [make.row(f"mask of {op.output}", (), [make.stream()])] if op.draws else []


def _cross_entropy(make: Maker[V], op: Op, args: list[V]) -> dict[str, V]:
    largest = make.row("max", op.over, [make.whole(op.over[0], args[0])])
    powers = make.row("exp", (), [args[0], largest])
    total = make.total(make.einsum([powers], op.over))
    softmax = make.row("div", (), [powers, total])
    chosen = make.row(f"one-hot {op.over}", (), args[1:])
    picked = make.total(make.einsum([args[0], chosen], op.over))
    return {"": make.row("nll", (), [largest, total, picked]), "softmax": softmax}


def backward(make: Maker[V], graph: Graph, op: Op, operand: int, arriving: V, read: Callable[[int], V],
             of: Callable[[str], V]) -> V:
    """What the operand at a position gets of the gradient of an op's result; raises Outside.

    `read` is the value of an operand, `of` that of the result, "", or of what the op keeps, by name.
    """
    step, out = transposed(graph, op, operand), _dims(graph, op.output)
    target = _dims(graph, step.of)
    dims = [_dims(graph, n) for n in op.inputs]
    others = [k for k in range(len(op.inputs)) if k != operand]
    if step.kind == "einsum":
        return make.einsum([arriving, *(read(k) for k in others)], _beside(target, out, *(dims[k] for k in others)))
    if step.kind == "sum":
        return make.einsum([arriving], _beside(target, out))
    if step.kind in ("rename", "broadcast", "cast", "copy"):
        return make.rename(step.rename, arriving)
    if step.kind == "scale":
        return make.scale({f"factor {op.output}": 1}, arriving)
    if step.kind == "scatter":
        chosen = make.row(f"one-hot {op.over}", (), [read(k) for k in others])
        return make.einsum([arriving, chosen], _beside(target, out))
    if step.kind == "rope":
        return _rotated(make, op.over[0], "back", arriving, [read(k) for k in others])
    if op.kind == "unit":
        return _of_unit(make, op, operand, [*map(read, range(len(op.inputs))), of("drawn")], arriving, dims, out)
    if step.kind == "vjp":
        return _steps(make, op, step.steps, arriving, dims, out, read, of)
    raise Outside("", f"the backward of {op.output} is a {step.kind}")


def _steps(make: Maker[V], op: Op, steps: tuple[Backprop, ...], arriving: V, dims: list[tuple[str, ...]],
           out: tuple[str, ...], read: Callable[[int], V], of: Callable[[str], V]) -> V:
    """The steps of the op table, one after the other."""
    by_role = dict(zip(op.row.operands, range(len(op.inputs)), strict=False))
    known = {**{role: dims[k] for role, k in by_role.items()}, "row": tuple(d for d in out if d not in op.over),
             "grid": _grid(op, dims), "y": out}
    if op.kind in ALONG:
        outer = tuple(dict.fromkeys(d for held in (*dims[:2], out) for d in held))
        known |= {"outer": outer, "inner": tuple(d for d in outer if d not in op.over[1:2])}
    made: dict[str, tuple[V, tuple[str, ...]]] = {"dy": (arriving, out)}
    linear = {"dy"}  # of the inputs of a step one at most is a multiple of what arrives

    def value(role: str) -> tuple[V, tuple[str, ...]]:
        if role in made:
            return made[role]
        if role in by_role:
            return read(by_role[role]), known[role]
        if role == "y":
            return of(""), out
        row = next(k for k in op.row.kept if k.name == role)
        return of(role), known[row.dims]

    for step in steps:
        got = [value(role) for role in step.inputs]
        args, target = [v for v, _ in got], known[step.dims]
        if step.kind == "einsum":
            masks = _masks(make, op) if step.output in ("dprobs", "v.grad") and op.row.family == "flash" else []
            result = make.einsum([*args, *masks], _beside(target, *(d for _, d in got)))
        elif step.kind == "add":
            result = make.add(args)
        elif step.kind == "scale":
            rows = {f"|{d}|": -1 for d in op.over} if step.note == "-1/over" else {}
            result = make.scale({"minus": 1, **rows} if step.note.startswith("-1") else {f"{step.note} {op.kind}": 1},
                                args[0])
        else:
            over = [op.over[0], *_beside(target, *(d for _, d in got))] if step.kind == "carry" else []
            moved = [k for k, role in enumerate(step.inputs) if over and role in linear]
            if moved:  # the product with a matrix along the dim, which is a function of the others
                matrix = make.row(f"{step.note} {op.kind}", over, [v for k, v in enumerate(args) if k not in moved])
                summed = [op.over[0], *_beside(target, got[moved[0]][1])]
                result = make.rename({op.over[0] + ROTATED: op.over[0]}, make.einsum(
                    [args[moved[0]], matrix], summed))
            else:
                result = make.row(f"{step.note} {op.kind}", over, args)
        if linear.intersection(step.inputs):
            linear.add(step.output)
        made[step.output] = result, target
    return made[steps[-1].output][0]
