"""How frameworks run the cross entropy of the logits: the buffers of the logits' shape that each way holds.

The op and its derivative are the same in all of them; what differs is how much memory stands beside the logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from placealg.arith import Monomial
from placealg.errors import InputError
from placealg.models.graph import Graph, Op
from placealg.models.model import Model

ATTR = "run_as"
"""The attribute of a cross-entropy op that names how it is run."""


@dataclass(frozen=True, slots=True)
class LossRun:
    """One way to run the cross entropy: the elements of its buffers, each as large as the logits of a microbatch.

    `forward` and `backward` are all that are held while the loss and the gradient of the logits are computed, `kept` is
    what stays between; with `logits` the logits stay beside it. With `chunks` the logits are made a few rows at a time,
    so that a chunk of them is as large as the hidden states.
    """

    name: str
    forward: tuple[str, ...]
    kept: str
    backward: tuple[str, ...]
    says: str
    source: str
    logits: bool = False
    chunks: bool = False

    @property
    def most(self) -> str:
        """What it holds at most, in bytes, of each logit.

        >>> RUNS["eager"].most, RUNS["chunked"].most
        ('act + 12 bytes a logit', '2·act bytes an element of the hidden states')
        """
        acts, fixed = max(((r.count("act"), 4 * r.count("stat")) for r in (self.forward, self.backward)),
                          key=lambda found: (found[1], found[0]))
        parts = ["act" if acts == 1 else f"{acts}·act", *([str(fixed)] if fixed else [])]
        return f"{' + '.join(parts)} bytes {'an element of the hidden states' if self.chunks else 'a logit'}"


RUNS: Mapping[str, LossRun] = {run.name: run for run in (
    LossRun("eager", ("act", "stat", "stat"), "stat", ("act", "stat", "stat", "stat"),
        "the logits, their fp32 copy and the log-softmax in forward; in backward the logits, which the caller still "
        "names, the log-softmax, its gradient and that of the copy",
        "PyTorch 2.13, functional.cross_entropy of logits.float(), as its memory tracker counts it: 14 bytes a logit "
        "of bf16, 12 where the caller deletes the logits before backward", logits=True),
    LossRun("fused", ("act",), "act", ("act",),
        "the gradient overwrites the logits in one kernel",
        "Liger-Kernel, ops/cross_entropy.py; Dao-AILab/flash-attention, csrc/xentropy with inplace_backward"),
    LossRun("chunked", ("act", "act"), "act", ("act",),
        "a few rows of the logits at a time, their gradient taken at once: a chunk is as large as the hidden states",
        "Liger-Kernel, ops/fused_linear_cross_entropy.py; PyTorch 2.13, LinearCrossEntropyOptions, aspect_ratio; both "
        "round the rows up to a power of two, so that a chunk may be twice as large", chunks=True),
    LossRun("vocab_parallel", ("act", "stat"), "stat", ("stat", "act"),
        "the logits and their fp32 copy, which becomes the softmax and then the gradient in place",
        "Megatron-LM, core/tensor_parallel/cross_entropy.py"),
)}
"""Name -> how the loss is run; `eager` where nothing is said, `vocab_parallel` where the vocabulary is split."""


def run_of(op: Op, vocabulary_split: bool) -> LossRun:
    """How a cross-entropy op is run: as its attribute says, else by whether its vocabulary is split."""
    return RUNS[op.attrs.get(ATTR, "vocab_parallel" if vocabulary_split else "eager")]


def with_loss(model: Model, name: str) -> Model:
    """The model whose cross entropies are run as `name` says.

    >>> from placealg.models.transformer import gpt
    >>> with_loss(gpt(), "fused").graph.producer("head.loss").attrs["run_as"]
    'fused'
    """
    if name not in RUNS:
        raise InputError(f"unknown way to run the loss '{name}'", name=name, valid=RUNS)
    if not any(op.kind == "cross_entropy" for op in model.graph.ops):
        raise InputError(f"{model.name} has no cross entropy whose run could be chosen; say --model gpt")
    ops = tuple(replace(op, attrs=op.attrs.plus({ATTR: name})) if op.kind == "cross_entropy" else op
                for op in model.graph.ops)
    return replace(model, graph=replace(model.graph, ops=ops))


def chunk_parts(graph: Graph) -> dict[str, Monomial]:
    """Logits, and what is kept of them, of which a chunk is made at a time -> the part of them that a chunk is."""
    found: dict[str, Monomial] = {}
    for op in graph.ops:
        if op.kind == "cross_entropy" and op.attrs.get(ATTR) and RUNS[op.attrs[ATTR]].chunks:
            made = graph.producer(op.inputs[0])
            dims = {d: n for name in made.inputs for d, n in graph.tensors[name].dims.items()} if made else {}
            hidden = Monomial.product(n for d, n in dims.items() if d not in graph.tensors[op.inputs[0]].dims)
            part = hidden / Monomial.product(graph.dims[d] for d in op.over)
            found |= {op.inputs[0]: part, f"{op.output}.softmax": part}
    return found
