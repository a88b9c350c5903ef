"""Layouts of torchtitan's modules: what each ShardingConfig declares, held against what a strategy derives for its op.

A layout is declared for a parameter, or for a tensor that enters or leaves a module, along each axis of the mesh. Its
words are those of value types here: R, I, P, and S of a dim; V with a partition spec is S of the dims of that spec.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from placealg.importers.python_text import Record, Unknown
from placealg.importers.reading import refusal
from placealg.models.graph import Graph
from placealg.placement import Kind
from placealg.step.split import Layout, Placed, PlacedOp

TOKENS = ("batch", "seq", "seq_kv")
"""The dims that torchtitan folds into one, the first of every activation."""

AXES: Mapping[str, str] = {"dp": "dp", "cp": "cp", "tp": "tp", "ep": "ep", "efsdp": "dp", "dp_replicate": "",
                           "fsdp": "dp", "dp_shard": "dp"}
"""MeshAxisName -> the axis of a strategy here; "" where it has none of its own."""

LETTERS: Mapping[str, tuple[str, ...]] = {"E": ("expert",), "F": ("ffn",), "D": ("embed",), "G": ("ffn", "gate")}
"""Letter at the end of the name of an expert's parameter -> the dim that it stands for."""

BUFFERS = ("cache", "expert_bias_E", "tokens_per_expert_E", "num_local_tokens_per_expert_E", "mtp_input_valid_mask")
"""States and inputs that are no parameters and no activations: tables of angles, counts and masks."""


@dataclass(frozen=True, slots=True)
class Declared:
    """One layout as a file declares it.

    `module` is the path of the module, `tensor` the name of the parameter, or `in NAME`, `use NAME` and `out`, `handed`
    for what enters, in which layout it is used, what leaves and as what it is handed on. An input that is not moved is
    used as it enters. `places` maps torchtitan's
    axes to R, I, P, or the number of the split dim; `file` and `line` are where the module's layouts are set.
    """

    module: str
    tensor: str
    places: Mapping[str, str | int]
    file: str
    line: int

    @property
    def said(self) -> str:
        """The module and the tensor in words."""
        part, _, name = self.tensor.partition(" ")
        return f"{self.module}: " + {"in": f"its input {name}", "use": f"its input {name} as used", "out": "its output",
                                     "handed": "its output as handed on"}.get(part, f"its {self.tensor}")


def declared(root: Record, file: str) -> tuple[Declared, ...]:
    """Every layout that a function set on the modules below a root, in the order of the file's lines."""
    return tuple(sorted(_declared(root, "", file), key=lambda d: (d.file, d.line, d.module, d.tensor)))


def _declared(node: Record, path: str, file: str) -> Iterator[Declared]:
    for name, value in node.fields.items():
        if name == "sharding_config":
            if value is not None:
                yield from _of_config(value, path, node.lines.get(name, node.line), node.files.get(name, file))
        elif isinstance(value, Record) and value.grows:
            yield from _declared(value, f"{path}.{name}".lstrip("."), file)


def _of_config(config: Any, module: str, line: int, file: str) -> Iterator[Declared]:
    """The layouts of one ShardingConfig."""
    where = f"{file}:{line}"
    if not isinstance(config, Record) or not config.name.endswith("ShardingConfig"):
        raise refusal(f"the layouts of {module or 'the model'} are {_text(config)}, which is not followed", where)
    for name, layout in _table(config, "state_shardings", module, where).items():
        yield Declared(module, name, _places(layout, f"{module}: {name}", where), file, line)
    entering = _table(config, "in_src_shardings", module, where)
    for part, table in (("in", entering), ("use", {**entering, **_table(config, "in_dst_shardings", module, where)})):
        for name, layout in table.items():
            yield Declared(module, f"{part} {name}", _places(layout, f"{module}: {name}", where), file, line)
    for part, field in (("out", "out_src_shardings"), ("handed", "out_dst_shardings")):
        layout = config.fields.get(field)
        if layout is not None:
            yield Declared(module, part, _places(layout, f"{module}: {field}", where), file, line)


def _table(config: Record, field: str, module: str, where: str) -> Mapping[str, Any]:
    found = config.fields.get(field)
    if found is not None and not isinstance(found, dict):
        raise refusal(f"{field} of {module} is {_text(found)}, which is not followed", where)
    return found or {}


def _text(value: Any) -> str:
    if isinstance(value, Record):
        return f"{value.name}(...)"
    return value.text if isinstance(value, Unknown) else str(value)


def _places(layout: Any, what: str, where: str) -> dict[str, str | int]:
    """Axis -> R, I, P or the number of the split dim, of an SpmdLayout."""
    table = layout.arguments[0] if isinstance(layout, Record) and layout.arguments else None
    if isinstance(layout, Record) and table is None:
        table = layout.fields.get("axis_types")
    if not isinstance(table, dict) or not isinstance(layout, Record):
        raise refusal(f"the layout of {what} is {_text(layout)}, which is not followed", where)
    spec = layout.fields.get("partition_spec", layout.arguments[1] if len(layout.arguments) > 1 else None)
    if spec is not None and not isinstance(spec, list):
        raise refusal(f"the partition spec of {what} is {_text(spec)}, which is not followed", where)
    split = {_axis(axis, where): dim for dim, entry in enumerate(spec or ())
             for axis in (entry if isinstance(entry, list) else [entry]) if axis is not None}
    found: dict[str, str | int] = {}
    for key, kind in table.items():
        axis = _axis(key, where)
        word = _text(kind).rpartition(".")[2]
        if isinstance(kind, Record) and kind.name.rpartition(".")[2] in ("S", "Shard") and len(kind.arguments) == 1:
            found[axis] = kind.arguments[0]
        elif word in ("R", "I", "P"):
            found[axis] = word
        elif word == "V" and axis in split:
            found[axis] = split[axis]
        else:
            raise refusal(f"the layout of {what} is {_text(kind)} on {axis}" + (
                ", and its partition spec does not split it" if word == "V" else ""), where)
    return found


def _axis(value: Any, where: str) -> str:
    name = (_text(value) if not isinstance(value, str) else value).rpartition(".")[2].lower()
    if name not in AXES:
        raise refusal(f"'{name}' is no axis of torchtitan's mesh: {', '.join(AXES)}", where)
    return name


def names_of(module: str) -> str:
    """A module's path without its layer, as the table of modules has it.

    >>> names_of("layers.*.attention.qkv_linear.wq")
    'attention.qkv_linear.wq'
    """
    return re.sub(r"^(?:model\.)?layers\.\*\.", "", module)


MODULES: Mapping[str, tuple[str, ...]] = {
    "tok_embeddings": ("embedding.tokens",), "norm": ("head.norm.out",), "lm_head": ("head.logits",),
    "output": ("head.logits",), "attention_norm": ("layer.norm1.out",), "ffn_norm": ("layer.norm2.out",),
    "attention.qkv_linear.wqkv": ("layer.attn.q", "layer.attn.k", "layer.attn.v"),
    "attention.qkv_linear.wq": ("layer.attn.q",), "attention.qkv_linear.wkv": ("layer.attn.k", "layer.attn.v"),
    "attention.wq": ("layer.attn.q",), "attention.wk": ("layer.attn.k",), "attention.wv": ("layer.attn.v",),
    "attention.qk_norm": ("layer.attn.q.norm.out", "layer.attn.k.norm.out"),
    "attention.q_norm": ("layer.attn.q.norm.out", "layer.attn.q_norm.out"),
    "attention.k_norm": ("layer.attn.k.norm.out",), "attention.kv_norm": ("layer.attn.kv_norm.out",),
    "attention.wq_a": ("layer.attn.q_down",), "attention.wkv_a": ("layer.attn.kv_down", "layer.attn.k_rope"),
    "attention.wq_b": ("layer.attn.q", "layer.attn.q_rope"), "attention.wkv_b": ("layer.attn.k", "layer.attn.v"),
    "attention.inner_attention": ("layer.attn.core.mixed",), "attention.wo": ("layer.attn.out",),
    "feed_forward.w1": ("layer.mlp.gate",), "feed_forward.w3": ("layer.mlp.up",),
    "feed_forward.w2": ("layer.mlp.down",),
    "moe.router.gate": ("layer.router.logits",),
    "moe.shared_experts.w1": ("layer.shared.gate",), "moe.shared_experts.w3": ("layer.shared.up",),
    "moe.shared_experts.w2": ("layer.shared.down",),
}
"""Module of torchtitan -> the ops of a graph that it is."""

BLOCKS: Mapping[str, tuple[str, ...]] = {
    "attention": ("layer.attn.q_down", "layer.attn.q"), "feed_forward": ("layer.mlp.gate",),
    "moe.shared_experts": ("layer.shared.gate",)}
"""Block -> the op that reads its input, the first that a model has."""

LAYERS = ("", "dense.")
"""How the names of ops begin in layers, and in the first dense ones."""

CORE: Mapping[str, str] = {"k": ".keys", "v": ".values"}
"""How the names of a core's inputs begin in torchtitan -> how they end here; the queries are the first."""

EXPERTS: Mapping[str, str] = {"w1": "layer.expert.gate", "w3": "layer.expert.up", "w2": "layer.expert.down"}
"""Parameter of grouped experts, up to its letters -> the op that reads it."""


@dataclass(frozen=True, slots=True)
class Other:
    """A layout that a strategy does not derive: what is declared, the axis, what stands there, what is derived."""

    declared: Declared
    axis: str
    theirs: str
    ours: str


def other_layouts(layouts: tuple[Declared, ...], placed: Placed) -> tuple[list[Declared], list[Other]]:
    """(layouts that are derived so, those that are derived otherwise); what the model lacks is in neither."""
    same: list[Declared] = []
    others: list[Other] = []
    handed = {tensor: one.places for one in layouts if one.tensor == "handed"
              for tensor, _, _ in _derived(one, placed)}
    used = [(f"{one.module}.", one.places) for one in layouts if one.tensor.startswith("use ")]
    for one in layouts:
        brought = [places for block, places in used if one.module.startswith(block)]
        found = [(tensor, layout, weight) for tensor, layout, weight in _derived(one, placed)
                 if not (one.tensor.startswith("in ") and one.places in (handed.get(tensor), *brought))]
        wrong = [other for tensor, layout, weight in found
                 for other in _differences(one, tensor, layout, weight, placed)]
        others += wrong
        if not wrong and any(_derived(one, placed)):
            same.append(one)
    return same, others + list(_left(layouts, placed))


def _left(layouts: tuple[Declared, ...], placed: Placed) -> Iterator[Other]:
    """Outputs that a module leaves as it made them, and that neither it nor a module that reads them moves."""
    moved = {one.module for one in layouts if one.tensor == "handed"}
    used = {tensor for one in layouts if one.tensor.startswith("use ") for tensor, _, _ in _derived(one, placed)}
    for one in layouts:
        if one.tensor == "out" and one.module not in moved:
            for tensor, _, _ in _derived(replace(one, tensor="handed"), placed):
                if tensor not in used:
                    yield from _differences(replace(one, tensor="handed"), tensor, handed_on(tensor, placed), False,
                                            placed)


def split_on(axis: str, one: Declared, placed: Placed) -> list[str]:
    """The ops that read a weight and that an axis splits along a dim of it."""
    return [at.op.output for at in _ops(MODULES.get(names_of(one.module), ()), placed)
            if any(use[axis].kind is Kind.S for _, use in _operands(at, placed, True)[:1])]


def without_layout(layouts: tuple[Declared, ...], placed: Placed) -> str:
    """A module of the table that a model has and whose weight has no layout; "" if all have one."""
    said = {tensor for one in layouts for tensor, _, weight in _derived(one, placed) if weight}
    for module, outputs in MODULES.items():
        for at in _ops(outputs, placed):
            weights = [name for name, _ in _operands(at, placed, True)[:1]]
            if any(name not in said for name in weights):
                return module
    return ""


def is_known(one: Declared) -> bool:
    """Whether the module and the tensor of a layout are of the table, or no tensor that trains."""
    name, (part, _, inner) = names_of(one.module), one.tensor.partition(" ")
    if one.tensor in BUFFERS or inner in BUFFERS or one.module.startswith("mtp_layers"):
        return True
    return name in MODULES or name in BLOCKS or name in ("moe", "moe.routed_experts") or (
        name == "moe.routed_experts.inner_experts" and part.partition("_")[0] in EXPERTS)


def _derived(one: Declared, placed: Placed) -> Iterator[tuple[str, Layout, bool]]:
    """(tensor, layout, whether it is a parameter) as derived for a declared layout, of every op that it speaks of."""
    name, (part, _, inner) = names_of(one.module), one.tensor.partition(" ")
    if name == "moe.routed_experts.inner_experts":
        for at in _ops((EXPERTS.get(one.tensor.partition("_")[0], ""),), placed):
            yield from ((n, use, True) for n, use in _operands(at, placed, True))
    elif name in BLOCKS and part in ("in", "use"):
        for at in (at for prefix in LAYERS for at in _ops(BLOCKS[name], placed, (prefix,))[:1]):
            yield at.op.inputs[0], at.uses[0] if part == "use" else placed.native[at.op.inputs[0]], False
    for at in _ops(MODULES.get(name, ()), placed):
        if part in ("out", "handed"):
            yield at.op.output, at.result if part == "out" else handed_on(at.op.output, placed), False
        elif part in ("in", "use"):
            data = _operands(at, placed, False)
            tensor, use = next((pair for pair in data if pair[0].endswith(CORE.get(inner[:1], "?"))), data[0])
            given = part == "use" or placed.graph.tensors[tensor].kind == "data"
            yield tensor, use if given else placed.native[tensor], False
        else:
            at_ = 1 if one.tensor == "bias" else 0
            yield from ((n, use, True) for n, use in _operands(at, placed, True)[at_:at_ + 1])


def _ops(names: tuple[str, ...], placed: Placed, layers: tuple[str, ...] = LAYERS) -> list[PlacedOp]:
    """The ops of these names that a model has, in its layers of every kind or in those of some."""
    found = {at.op.output: at for at in placed.ops}
    return [found[f"{layer}{name}"] for name in names for layer in layers if f"{layer}{name}" in found]


def _operands(at: PlacedOp, placed: Placed, parameters: bool) -> list[tuple[str, Layout]]:
    """The parameters that an op reads, or what else it reads, each in the layout in which it is used."""
    return [(name, use) for name, use in zip(at.op.inputs, at.uses, strict=True)
            if (placed.graph.tensors[name].kind == "parameter") is parameters]


def handed_on(tensor: str, placed: Placed) -> Layout:
    """The layout in which a tensor is used by what comes after it; that in which it is made where nothing moves it."""
    return next((move.target for _, move in placed.moves if move.tensor == tensor), placed.native[tensor])


def _differences(one: Declared, tensor: str, layout: Layout, weight: bool, placed: Placed) -> Iterator[Other]:
    for axis, theirs in one.places.items():
        mine = AXES[axis]
        ours = layout.get(mine)
        if ours is None:
            continue
        dims = dims_of(theirs, one.tensor, tensor, weight, placed.graph) if isinstance(theirs, int) else ()
        fits = ours.dim in dims if isinstance(theirs, int) and ours.kind is Kind.S else ours.text == theirs
        if not fits:
            word = f"S({theirs})" if isinstance(theirs, int) else theirs
            yield Other(one, axis, word, ours.text)


def dims_of(number: int, name: str, tensor: str, weight: bool, graph: Graph) -> tuple[str, ...]:
    """The dims of a graph's tensor that torchtitan counts as one dim of its own.

    A weight of a product has its outputs first, one of experts names its dims by letters; of an activation the first
    dim are tokens, and with three the second are heads.
    """
    dims = tuple(graph.tensors[tensor].dims)
    if not weight:
        rest = tuple(d for d in dims if d not in TOKENS)
        heads = tuple(d for d in rest if d in ("kv", "group", "heads"))
        if number == 0:
            return tuple(d for d in dims if d in TOKENS)
        return heads if heads and number == 1 else rest
    letters = name.rpartition("_")[2]
    if re.fullmatch(r"[A-Z]+", letters):
        return LETTERS.get(letters[number], ()) if -len(letters) <= number < len(letters) else ()
    op = next((op for op in graph.ops if tensor in op.inputs), None)
    if op is None or len(dims) == 1 or op.kind == "lookup":
        return dims[number:number + 1] if number >= 0 else dims[number:]
    made = graph.tensors[op.output].dims
    outputs = tuple(d for d in dims if d in made and d not in graph.tensors[op.inputs[0]].dims)
    return outputs if number in (0, -2) else tuple(d for d in dims if d not in outputs)
