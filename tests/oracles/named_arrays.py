"""Small arrays with named dims in plain floats: runs an op graph forward, and its backward ops as declared."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from placealg.models.backward import BackwardOp, backward, kept
from placealg.models.graph import Graph, Op

FACTOR = 0.6
"""What the attention factor and every `scale` stand for here."""

Point = dict[str, int]


@dataclass
class Array:
    """A function of a point; reading ignores the dims it lacks."""

    dims: tuple[str, ...]
    cells: dict[tuple[int, ...], float]

    def at(self, point: Point) -> float:
        return self.cells[tuple(point[d] for d in self.dims)]


class Run:
    """One instance of each unit of `graph`, with every dim of size `sizes`."""

    def __init__(self, graph: Graph, sizes: Mapping[str, int], seed: int = 0):
        self.graph, self.sizes = graph, sizes
        draw = random.Random(seed)
        self.values: dict[str, Array] = {}
        self.masks: dict[str, Array] = {}
        rows = {op.inputs[1]: (op.inputs[0], op.over[0]) for op in graph.ops if op.kind in ("lookup", "cross_entropy")}
        for t in graph.tensors.values():
            if t.name == "data.blocks":
                self.values[t.name] = self.fill(t.dims, lambda p: p["block"])
            elif t.element == "ids":
                most = sizes[rows[t.name][1]] if t.name in rows else 2
                self.values[t.name] = self.fill(t.dims, lambda _, n=most: draw.randrange(n))
            elif t.kind != "activation":
                self.values[t.name] = self.fill(t.dims, lambda _: draw.uniform(-1, 1))
        for op in graph.ops:
            if op.kind == "dropout":
                self.masks[op.output] = self.fill(graph.tensors[op.output].dims, lambda _: draw.choice((0.5, 1.5)))

    def points(self, dims: tuple[str, ...]) -> list[Point]:
        return [dict(zip(dims, at, strict=True)) for at in product(*(range(self.sizes[d]) for d in dims))]

    def fill(self, dims: Mapping[str, object] | tuple[str, ...], value: Callable[[Point], float]) -> Array:
        names = tuple(dims)
        return Array(names, {tuple(p.values()): value(p) for p in self.points(names)})

    def contract(self, dims: tuple[str, ...], operands: list[Array]) -> Array:
        everywhere = tuple(dict.fromkeys([*dims, *(d for a in operands for d in a.dims)]))
        cells = dict.fromkeys((tuple(p.values()) for p in self.points(dims)), 0.0)
        for p in self.points(everywhere):
            cells[tuple(p[d] for d in dims)] += math.prod(a.at(p) for a in operands)
        return Array(dims, cells)

    def loss(self) -> float:
        for op in self.graph.ops:
            loop = self.graph.loop(op.unit)
            if loop and loop.slot in op.inputs:
                self.values[loop.slot] = self.values[loop.first]
            self.values[op.output] = self._forward(op, [self.values[n] for n in op.inputs])
        return self.values[self.graph.ops[-1].output].cells[()]

    def gradients(self) -> dict[str, Array]:
        """The gradient of every tensor that needs one, by the backward ops alone."""
        found = {self.graph.ops[-1].output: Array((), {(): 1.0})}
        for b in backward(self.graph):
            loop = next((x for x in self.graph.loops if x.first == b.forward), None)
            if loop:
                found.setdefault(loop.first, found[loop.slot])
            part = self._backward(b, found[b.forward])
            old = found.get(b.of)
            found[b.of] = part if old is None else self.fill(part.dims, lambda p, o=old, n=part: o.at(p) + n.at(p))
        return found

    def _forward(self, op: Op, xs: list[Array]) -> Array:
        dims, x = tuple(self.graph.tensors[op.output].dims), xs[0]
        if op.kind in ("einsum", "sum"):
            return self.contract(dims, xs)
        if op.kind == "add":
            return self.fill(dims, lambda p: sum(a.at(p) for a in xs))
        if op.kind == "mul":
            return self.fill(dims, lambda p: math.prod(a.at(p) for a in xs))
        if op.kind in ("cast", "copy"):
            return x
        if op.kind == "scale":
            return self.fill(dims, lambda p: FACTOR * x.at(p))
        if op.kind == "rename":
            return Array(tuple(op.rename.get(d, d) for d in x.dims), x.cells)
        if op.kind == "dropout":
            self.values[f"{op.output}.mask"] = self.masks[op.output]
            return self.contract(dims, [x, self.masks[op.output]])
        if op.kind in FORWARD:
            return self.fill(dims, lambda p: FORWARD[op.kind](x.at(p)))
        if op.kind == "rope":
            return self._rotated(x, op.over[0], 1, xs[1:])
        if op.kind == "lookup":
            return self.fill(dims, lambda p: x.at({**p, op.over[0]: int(xs[1].at(p))}))
        if op.row.family == "flash":
            return self._flash(op, xs, dims)
        if op.kind in ("fold", "unfold"):
            return self._folded(x, dims, op.kind == "fold")
        if op.row.family == "scan":
            return self._along(op, xs, dims)
        if op.kind == "tail":
            place, halo = op.over
            return self.fill(dims, lambda p: x.at({**p, place: p[halo] + self.sizes[place] - self.sizes[halo]}))
        if op.row.family == "conv":
            return self.contract(dims, [self._windows(op, x, xs[1].dims, *xs[2:]), xs[1]])
        if op.kind in ("softmax", "softmax_within"):
            return self._softmax(x, op.over[0], xs[1:])
        if op.kind == "logsumexp":
            return self.fill(dims, lambda p: math.log(sum(
                math.exp(x.at({**p, op.over[0]: k})) for k in range(self.sizes[op.over[0]]))))
        if op.kind == "cross_entropy":
            probs = self.values[f"{op.output}.softmax"] = self._softmax(x, op.over[0])
            return self.fill(dims, lambda p: -math.log(probs.at({**p, op.over[0]: int(xs[1].at(p))})))
        return self._norm(op, xs, dims)

    def _norm(self, op: Op, xs: list[Array], dims: tuple[str, ...]) -> Array:
        x, size = xs[0], self.sizes[op.over[0]]
        row = tuple(d for d in dims if d not in op.over)

        def mean(p: Point, power: int, shift: float) -> float:
            return sum((x.at({**p, op.over[0]: k}) - shift) ** power for k in range(size)) / size
        means = self.fill(row, lambda p: mean(p, 1, 0.0) if op.kind == "layer_norm" else 0.0)
        rstd = self.fill(row, lambda p: mean(p, 2, means.at(p)) ** -0.5)
        self.values |= {f"{op.output}.mean": means, f"{op.output}.rstd": rstd}
        bias = xs[2] if len(xs) > 2 else Array((), {(): 0.0})
        return self.fill(dims, lambda p: (x.at(p) - means.at(p)) * rstd.at(p) * xs[1].at(p) + bias.at(p))

    def _softmax(self, x: Array, over: str, documents: list[Array] | None = None) -> Array:
        weights = self.fill(x.dims, lambda p: _weight(x.at(p), p, documents or ()))
        total = self.contract(tuple(d for d in x.dims if d != over), [weights])
        return self.fill(x.dims, lambda p: weights.at(p) / total.at(p))

    def _flash(self, op: Op, xs: list[Array], dims: tuple[str, ...]) -> Array:
        q, k, v, *more = xs
        documents, rotary = (more[-2:], more[:-2]) if op.kind.endswith("_within") else ([], more)
        grid = tuple(dict.fromkeys(d for d in (*q.dims, *k.dims) if d not in op.over or d not in q.dims))
        products = [self.contract(grid, pair) for pair in ([q, k], rotary) if pair]
        scores = self.fill(grid, lambda p: FACTOR * sum(x.at(p) for x in products))
        weights = self.fill(grid, lambda p: _weight(scores.at(p), p, documents))
        total = self.contract(tuple(d for d in dims if d not in op.over), [weights])
        self.values[f"{op.output}.lse"] = self.fill(total.dims, lambda p: math.log(total.at(p)))
        return self.contract(dims, [self.fill(grid, lambda p: weights.at(p) / total.at(p)), v])

    def _folded(self, x: Array, dims: tuple[str, ...], fold: bool) -> Array:
        """A sequence as blocks and the places in them, or back."""
        size = self.sizes["place"]
        if fold:
            return self.fill(dims, lambda p: x.at({**p, "seq": p["block"] * size + p["place"]}))
        return self.fill(dims, lambda p: x.at({**p, "block": p["seq"] // size, "place": p["seq"] % size}))

    def _along(self, op: Op, xs: list[Array], dims: tuple[str, ...]) -> Array:
        played, along = dict(zip(op.row.operands, xs, strict=True)), op.over[0]
        if "q" in played:
            return self.contract(dims, [self._states(op, played)[2], played["q"]])
        if op.kind == "passed":
            return self.fill(dims, lambda p: math.prod(xs[0].at({**p, along: t}) for t in range(self.sizes[along])))
        if "block" not in played:
            last = self._states(op, played)[2]
            return self.fill(dims, lambda p: last.at({**p, along: self.sizes[along] - 1}))
        after = self._after_blocks(op, played) if "passed" in played else played["left"]
        return self.fill(dims, lambda p: after.at({**p, along: p["block"] - 1}) if p["block"] else 0.0)

    def _after_blocks(self, op: Op, played: Mapping[str, Array]) -> Array:
        """The state after each block, from what the blocks leave and pass on."""
        left, passed, along = played["left"], played["passed"], op.over[0]
        found: dict[tuple[int, ...], float] = {}
        for p in sorted(self.points(left.dims), key=lambda p: p[along]):
            found[tuple(p.values())] = left.at(p) + sum(
                passed.at({**p, **q}) * found[tuple({**p, **r, along: p[along] - 1}.values())]
                for q, r in self._entries(op)) if p[along] else left.at(p)
        return Array(left.dims, found)

    def _entries(self, op: Op) -> list[tuple[Point, Point]]:
        """What a state's entry reads of the one before: itself, or, through a matrix, those of all keys."""
        if "delta" not in op.kind:
            return [({}, {})]
        key, entered = op.over[1:]
        return [({entered: n}, {key: n}) for n in range(self.sizes[key])]

    def _states(self, op: Op, played: Mapping[str, Array]) -> tuple[Array, Array, Array]:
        """Of each place the state before it, that under its decay, and that after it, written out place by place."""
        k, decay, beta, v = (played.get(name) for name in ("k", "decay", "beta", "v"))
        assert k is not None and decay is not None and beta is not None
        along, key = op.over[:2]
        passing = op.kind == "delta_passed"
        dims = tuple(dict.fromkeys((*k.dims, *(v.dims if v else decay.dims), *op.over[2:])))
        before: dict[tuple[int, ...], float] = {}
        held, after = dict(before), dict(before)
        for p in sorted(self.points(dims), key=lambda p: p[along]):
            at = tuple(p.values())
            first = float(p[key] == p[op.over[2]]) if passing else played["state"].at(p) if "state" in played else 0.0
            last = after[tuple({**p, along: p[along] - 1}.values())] if p[along] else first
            before[at], held[at] = last, decay.at(p) * last
            if p[key] == self.sizes[key] - 1:
                row = [tuple({**p, key: n}.values()) for n in range(self.sizes[key])]
                keys = [k.at({**p, key: n}) for n in range(self.sizes[key])]
                seen = sum(held[r] * n for r, n in zip(row, keys, strict=True)) if "delta" in op.kind else 0.0
                for r, n in zip(row, keys, strict=True):
                    after[r] = held[r] + n * beta.at(p) * ((v.at(p) if v else 0.0) - seen)
        return Array(dims, before), Array(dims, held), Array(dims, after)

    def _adjoint(self, op: Op, arriving: Array, decay: Array, writing: list[Array], dims: tuple[str, ...],
                 last: bool) -> Array:
        """The gradient of the states after each place, from what arrives at all, or at the last: the last first."""
        along, key = op.over[:2]
        found: dict[tuple[int, ...], float] = {}
        for p in sorted(self.points(dims), key=lambda p: -p[along]):
            total, next_ = 0.0 if last else arriving.at(p), {**p, along: p[along] + 1}
            if next_[along] < self.sizes[along]:
                total += self._back(Array(dims, found), next_, key, decay, writing)
            elif last:
                total = arriving.at(p)
            found[tuple(p[d] for d in dims)] = total
        return Array(dims, found)

    def _back(self, adjoint: Array, p: Point, key: str, decay: Array, writing: list[Array]) -> float:
        """The gradient of the state before a place, from that of the state after it."""
        later = adjoint.at(p)
        if writing:
            k, beta = writing
            later -= k.at(p) * beta.at(p) * sum(k.at({**p, key: n}) * adjoint.at({**p, key: n})
                                                for n in range(self.sizes[key]))
        return decay.at(p) * later

    def _windows(self, op: Op, x: Array, weight: tuple[str, ...], *before: Array) -> Array:
        """What each tap reads at each place."""
        along, tap = op.over
        dims = tuple(dict.fromkeys((*x.dims, *weight)))

        def read(p: Point) -> float:
            place = p[along] + p[tap] - (self.sizes[tap] - 1)
            earlier = before[0].at({**p, "halo": place + self.sizes["halo"]}) if place < 0 and before else 0.0
            return x.at({**p, along: place}) if place >= 0 else earlier
        return self.fill(dims, read)

    def _from_windows(self, op: Op, spread: Array, dims: tuple[str, ...], before: bool) -> Array:
        along, tap = op.over
        cells = dict.fromkeys((tuple(p.values()) for p in self.points(dims)), 0.0)
        for p in self.points(spread.dims):
            place = p[along] + p[tap] - (self.sizes[tap] - 1)
            at = {**p, along: place, "halo": place + self.sizes.get("halo", 0)}
            if (place < 0) == before:
                cells[tuple(at[d] for d in dims)] += spread.at(p)
        return Array(dims, cells)

    def _carried(self, op: Op, note: str, inputs: tuple[str, ...], xs: list[Array], dims: tuple[str, ...]) -> Array:
        played, along = dict(zip(inputs, xs, strict=True)), op.over[0]
        if note in ("before", "held"):
            return self._states(op, played)[("before", "held").index(note)]
        if note in ("adjoint", "adjoint_of_last"):
            return self._adjoint(op, xs[0], xs[1], xs[2:], dims, note != "adjoint")
        if note == "entry":
            full = self._adjoint(op, xs[0], xs[1], xs[2:], xs[0].dims, False)
            return self.fill(dims, lambda p: self._back(full, {**p, along: 0}, op.over[1], xs[1], xs[2:]))
        if note == "others":
            return self.fill(dims, lambda p: math.prod(
                xs[0].at({**p, along: t}) for t in range(self.sizes[along]) if t != p[along]))
        if note == "tail":
            place, halo = op.over
            least = self.sizes[place] - self.sizes[halo]
            return self.fill(dims, lambda p: xs[0].at({**p, halo: p[place] - least}) if p[place] >= least else 0.0)
        if note == "preceding":
            return self.fill(dims, lambda p: self._later(xs[0], p, along))
        if note == "before_block":
            after = self._after_blocks(op, played)
            return self.fill(dims, lambda p: after.at({**p, along: p[along] - 1}) if p[along] else 0.0)
        if note == "adjoint_of_entering":
            return self._adjoint_of_blocks(op, played["dy"], played["passed"], dims)
        if note == "product":
            key, entered = op.over[1:]
            renamed = Array(tuple(entered if d == key else d for d in xs[1].dims), xs[1].cells)
            return self.contract(dims, [xs[0], renamed])
        return self._windows(op, xs[0], dims, *xs[1:]) if note == "windows" else self._from_windows(
            op, xs[0], dims, note == "from_windows_before")

    def _later(self, dy: Array, p: Point, along: str) -> float:
        """What arrives at the block behind one."""
        return dy.at({**p, "block": p[along] + 1}) if p[along] + 1 < self.sizes["block"] else 0.0

    def _adjoint_of_blocks(self, op: Op, dy: Array, passed: Array, dims: tuple[str, ...]) -> Array:
        along = op.over[0]
        found: dict[tuple[int, ...], float] = {}
        for p in sorted(self.points(dims), key=lambda p: -p[along]):
            next_ = {**p, along: p[along] + 1}
            through = 0.0
            if next_[along] < self.sizes[along]:
                entries = [({op.over[2]: p[op.over[1]], op.over[1]: n}, {op.over[1]: n})
                           for n in range(self.sizes[op.over[1]])] if len(op.over) > 1 else [({}, {})]
                through = sum(passed.at({**next_, **q}) * found[tuple({**next_, **r}[d] for d in dims)]
                              for q, r in entries)
            found[tuple(p[d] for d in dims)] = self._later(dy, p, along) + through
        return Array(dims, found)

    def _rotated(self, x: Array, dim: str, sign: int, positions: list[Array]) -> Array:
        """Element e of a head dim mixes with its partner: an angle per position, or place."""
        def turned(p: Point) -> float:
            e, angle = p[dim], sign * 0.3 * (positions[0].at(p) if positions else p["seq"])
            other = x.at({**p, dim: e ^ 1})
            return math.cos(angle) * x.at(p) + (other if e & 1 else -other) * math.sin(angle)
        return self.fill(x.dims, turned)

    def _backward(self, b: BackwardOp, dy: Array) -> Array:
        dims = tuple(self.graph.tensors[b.of].dims)
        reads = [self.values[n] for n in b.reads]
        if b.kind in ("einsum", "sum"):
            return self.contract(dims, [dy, *reads])
        if b.kind in ("cast", "copy"):
            return dy
        if b.kind == "broadcast":
            return self.fill(dims, dy.at)
        if b.kind == "scale":
            return self.fill(dims, lambda p: FACTOR * dy.at(p))
        if b.kind == "rename" and len(dims) != len(dy.dims):
            return self._folded(dy, dims, len(dims) > len(dy.dims))
        if b.kind == "rename":
            return Array(tuple(b.rename.get(d, d) for d in dy.dims), dy.cells)
        if b.kind == "rope":
            return self._rotated(dy, b.over[0], -1, reads)
        if b.kind == "scatter":
            cells = dict.fromkeys((tuple(p.values()) for p in self.points(dims)), 0.0)
            for p in self.points(dy.dims):
                at = {**p, b.over[0]: int(reads[0].at(p))}
                cells[tuple(at[d] for d in dims)] += dy.at(p)
            return Array(dims, cells)
        return self._vjp(b, dy)

    def _vjp(self, b: BackwardOp, dy: Array) -> Array:
        op = self.graph.producer(b.forward)
        assert op is not None
        roles = {"y": b.forward, **dict(zip(op.row.operands, op.inputs, strict=False))}
        roles |= {k.name: t.name for t, k in kept(self.graph, op)}
        allowed = {role for role, name in roles.items() if name in b.reads}
        dims = {role: tuple(self.graph.tensors[n].dims) for role, n in roles.items() if n in self.graph.tensors}
        dims["row"] = tuple(d for d in dims["y"] if d not in op.over)
        dims["grid"] = tuple(dict.fromkeys(d for n in op.inputs[:2] for d in self.graph.tensors[n].dims
                                           if d not in op.over or d not in self.graph.tensors[op.inputs[0]].dims))
        dims["outer"] = tuple(dict.fromkeys(d for n in (*op.inputs[:2], op.output) for d in self.graph.tensors[n].dims))
        dims["inner"] = tuple(d for d in dims["outer"] if d not in op.over[1:2])
        made = {"dy": dy} | {r: self.values[roles[r]] for r in allowed}
        for step in b.steps:
            xs, to = [made[r] for r in step.inputs], dims[step.dims]
            if step.kind == "einsum":
                made[step.output] = self.contract(to, xs)
            elif step.kind == "carry":
                made[step.output] = self._carried(op, step.note, step.inputs, xs, to)
            elif step.kind == "add":
                made[step.output] = self.fill(to, lambda p, xs=xs: sum(x.at(p) for x in xs))
            elif step.kind == "scale":
                by = {"-1": -1.0, "factor": FACTOR, "-1/over": -1 / self.sizes[op.over[0]]}[step.note]
                made[step.output] = self.fill(to, lambda p, x=xs[0], by=by: by * x.at(p))
            else:
                made[step.output] = self.fill(to, lambda p, f=step.note, xs=xs, op=op: _unary(f, xs, p, op.over))
        return made[b.steps[-1].output]


FORWARD: Mapping[str, Callable[[float], float]] = {
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "silu": lambda x: x / (1 + math.exp(-x)),
    "tanh": math.tanh,
    "relu": lambda x: max(x, 0.0),
    "clamp": lambda x: max(-0.5, min(x, 0.5)),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "reciprocal": lambda x: 1 / x,
    "rsqrt": lambda x: x ** -0.5,
    "one_plus": lambda x: 1 + x,
    "cube": lambda x: x ** 3,
    "exp": math.exp,
    "softplus": lambda x: math.log(1 + math.exp(x)),
}


def _weight(score: float, p: Point, documents: Sequence[Array] = ()) -> float:
    """The exponential of a score; 0 for a key behind a causal mask, or in another document."""
    apart = len({a.at(p) for a in documents}) > 1
    return 0.0 if p.get("seq_kv", 0) > p.get("seq", 0) or apart else math.exp(score)


def _unary(function: str, xs: list[Array], p: Point, over: tuple[str, ...]) -> float:
    x = [a.at(p) for a in xs]
    if function == "standardize":
        return (x[0] - x[1]) * x[2] if len(x) == 3 else x[0] * x[1]
    if function == "exp_minus":
        return _weight(x[0] - x[1], p, xs[2:])
    if function == "minus_one_hot":
        return -1.0 if p[over[0]] == int(x[0]) else 0.0
    if function in ("slope_of_gelu", "slope_of_silu", "slope_of_clamp", "slope_of_cube", "slope_of_softplus"):
        f, h = FORWARD[function.removeprefix("slope_of_")], 1e-5
        return (f(x[0] + h) - f(x[0] - h)) / (2 * h)
    return {"tanh": 1 - x[0] ** 2, "relu": float(x[0] > 0), "sigmoid": x[0] * (1 - x[0]),
            "reciprocal": -x[0] ** 2, "rsqrt": -x[0] ** 3 / 2, "one_plus": 1.0,
            "exp": x[0]}[function.removeprefix("slope_of_")]
