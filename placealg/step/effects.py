"""The effect of every verb on its subject: one table, keyed by verb and by the kind of the event's subject.

Programs, their graph and the prover read it. The simulator does not: it is written from the meaning of the verbs alone,
and a test compares what it touches with this table. A verb whose computation differs from value to value has a row for
the value in addition to, or in place of, the row for the kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from placealg.step.verbs import VerbName


class SubjectKind(Enum):
    """The kinds of subjects on which events act."""

    GROUP = "a value of a parameter group"
    GLOBAL = "a value that the whole step has"
    TENSOR = "a tensor of the op graph, or what a region made"
    GRADIENT = "a tensor's gradient"


class Access(Enum):
    """What an event reads or writes, as a function of the event; `graph.py` turns it into storages."""

    ORIGIN = "the value that it copies, sends or sums, on the tier that it reads"
    OWN = "the value itself, on the tier that it writes"
    PART = "the group's part of a norm or a flag"
    PARTS = "the parts that all groups have of the value"
    NORMS = "the norm, whole and of each group"
    FLAGS = "the flag, whole and of each group"
    OPTIMIZED = "master copy, moments and accumulated gradient of the group"
    STATES = "master copy and moments of the group"
    SUMMED = "the group's accumulated gradient"
    STEP = "the step counter"
    ENTERED = "what entered the group's unit, or the tensor that is taken of it"
    RUN = "what a whole unit reads: weights, the stream, what entered it; in backward what it kept, and gradients"
    RAN = "what a whole unit makes: its output; in backward the gradient of what entered it, and of its weights"
    FINAL = "what the loss sums"
    OPERANDS = "the tensors and parameters that the op reads, and what its forward draws or its backward receives"
    RESULTS = "the version that it makes; in backward the gradients of its operands"
    VERSIONS = "the version on which it acts, and those from which that would come"
    VERSION = "the version that it makes or changes"


class Holding(Enum):
    """What becomes of the share of a group's value that a device holds; `cost/held.py` has a function for each."""

    SAME = "as before"
    MADE = "it is made anew on those that `where` selects"
    COPIED = "that of the value of which it is a copy"
    PUBLISHED = "what was updated, on every rank along the axes"
    GATHERED = "one more copy, gathered from it"
    SENT_WHOLE = "whole along the axes"
    CUT = "a part along the axes"
    SUMMED = "its content is the owner's part, in the storage that it has"
    FREED = "gone, or of its copies what the axes leave"


@dataclass(frozen=True, slots=True)
class Effect:
    """What an event does, and which of its fields have a meaning.

    `fresh`: what it writes and does not read is made anew, whatever was held and wherever. `sums`: it sums over ranks,
    and so has an operator. `divides`: it divides by its divisor. `dims`: the fields that name a dim of the tensor, as
    S(dim). `rows`: the events of the redistribution table that it is. `axes`: it is local, and has axes all the same.
    `labelled`: it may act on a labelled version. `sourced`: `from` may name another value to read. `copies`: it copies
    from one value or tier to another. `at_home`: it runs in the unit of its tensor. `owners`: it uses the owner
    function along its axes. `of_parts`: its effect if it starts from partial sums. `holds`: what becomes of the share
    that a device holds, said of every effect on a value of a group.
    """

    reads: tuple[Access, ...] = (Access.ORIGIN,)
    writes: tuple[Access, ...] = (Access.OWN,)
    fresh: bool = True
    sums: bool = False
    divides: bool = False
    dims: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    axes: bool = False
    labelled: bool = True
    sourced: bool = True
    copies: bool = False
    at_home: bool = False
    owners: bool = True
    of_parts: Effect | None = None
    holds: Holding | None = None

    @property
    def of_op(self) -> bool:
        """Whether it runs an op of the graph, or makes what enters a repeated unit."""
        return Access.OPERANDS in self.reads


def _moved(**said: object) -> Effect:
    """The effect of making one version of a tensor, or of a gradient, from another."""
    return replace(_MOVED, **said)  # type: ignore[arg-type]


def _both(verb: VerbName, effect: Effect) -> dict[tuple[VerbName, Subject], Effect]:
    """The row of a verb for tensors and for gradients."""
    return {(verb, SubjectKind.TENSOR): effect, (verb, SubjectKind.GRADIENT): effect}


Subject = SubjectKind | str
"""The kind of a subject, or one value."""

_S, _H, _GROUP, _GLOBAL = Access, Holding, SubjectKind.GROUP, SubjectKind.GLOBAL
_TENSOR, _GRADIENT = SubjectKind.TENSOR, SubjectKind.GRADIENT
_MOVED = Effect((_S.VERSIONS,), (_S.VERSION,))
_OP = Effect((_S.OPERANDS,), (_S.RESULTS,), labelled=False, sourced=False, at_home=True)
_REDUCTION = Effect(sums=True, divides=True, rows=("all_reduce", "reduce_scatter"), holds=_H.SUMMED)
_ADDED = Effect(sums=True, divides=True, rows=("all_reduce",), owners=False, holds=_H.SAME)
_GATHERED = Effect(rows=("all_gather",), holds=_H.GATHERED)
_COPIED = Effect(copies=True, holds=_H.COPIED)

EFFECTS: Mapping[tuple[VerbName, Subject], Effect] = {
    ("broadcast", _GROUP): Effect(owners=False, holds=_H.SENT_WHOLE),
    ("broadcast", _GLOBAL): Effect(owners=False),
    ("slice", _GROUP): Effect(rows=("slice",), axes=True, holds=_H.CUT),
    **_both("slice", _moved(dims=("to",), rows=("slice",), axes=True)),
    ("free", _GROUP): Effect(fresh=False, axes=True, holds=_H.FREED),
    ("free", _TENSOR): Effect((), (), fresh=False),
    ("gather", _GROUP): _GATHERED,
    ("all_gather", _GROUP): _GATHERED,
    **_both("all_gather", _moved(dims=("from",), rows=("all_gather",))),
    ("assign", _GROUP): _COPIED, ("assign", _GLOBAL): Effect((), copies=True),
    ("assign", _TENSOR): replace(_OP, sourced=True, copies=True),
    ("assign", _GRADIENT): replace(_OP, sourced=True, copies=True),
    ("zero", _GROUP): Effect((), fresh=False, sourced=False, holds=_H.MADE),
    ("compute", "activation"): Effect((_S.RUN,), (_S.RAN,), sourced=False),
    ("compute", "loss"): Effect((_S.FINAL,), sourced=False, divides=True),
    ("compute", "count"): Effect((), sourced=False),
    ("compute", "skip"): Effect((_S.SUMMED,), (_S.PART,), sourced=False, holds=_H.SAME),
    ("compute", "grad"): Effect((_S.ENTERED,), sourced=False, divides=True, holds=_H.SAME),
    ("compute", _TENSOR): _OP, ("compute", _GRADIENT): replace(_OP, divides=True),
    ("scale", _GROUP): Effect(divides=True, holds=_H.SAME), ("scale", "loss"): Effect(divides=True),
    **_both("scale", _moved(divides=True, rows=("scale 1/n",), axes=True)),
    ("accumulate", _GROUP): Effect((_S.ORIGIN, _S.OWN), holds=_H.SAME),
    ("reduce", _GROUP): _REDUCTION,
    ("all_reduce", "norm"): replace(_ADDED, reads=(_S.ORIGIN, _S.PARTS)),
    ("all_reduce", "skip"): replace(_ADDED, reads=(_S.ORIGIN, _S.PARTS)),
    ("all_reduce", "count"): _ADDED,
    **_both("all_reduce", _moved(sums=True, divides=True, rows=("all_reduce",), owners=False)),
    **_both("reduce_scatter", _moved(sums=True, divides=True, dims=("to",), rows=("reduce_scatter",))),
    **_both("all_to_all", _moved(dims=("from", "to"), rows=("all_to_all",))),
    **_both("shift", _moved(dims=("from",), rows=("all_gather", "reduce_scatter"), of_parts=_moved(
        sums=True, dims=("to",), rows=("all_gather", "reduce_scatter")))),
    **_both("send", Effect((_S.VERSIONS,), (), axes=True, at_home=True)),
    **_both("recv", Effect((), (_S.VERSION,), axes=True, labelled=False, at_home=True)),
    **_both("pad", _moved(dims=("from",), rows=("zero-pad",), axes=True)),
    ("norm", _GROUP): Effect(writes=(_S.PART,), holds=_H.SAME),
    ("clip", _GROUP): Effect((_S.ORIGIN, _S.NORMS), holds=_H.SAME),
    ("update", _GROUP): Effect((_S.FLAGS, _S.OPTIMIZED, _S.STEP), (_S.STATES,), divides=True, sourced=False,
                               holds=_H.SAME),
    ("update", "average"): Effect((_S.ORIGIN, _S.OWN), holds=_H.SAME),
    ("update", "step"): Effect((_S.FLAGS, _S.OWN), sourced=False),
    ("update", "loss_scale"): Effect((_S.FLAGS, _S.OWN), sourced=False),
    ("update", "rng"): Effect((_S.OWN,), sourced=False),
    ("publish", _GROUP): Effect(fresh=False, rows=("all_gather",), holds=_H.PUBLISHED),
    ("offload", _GROUP): _COPIED, ("fetch", _GROUP): _COPIED,
    ("offload", _TENSOR): _moved(copies=True, sourced=False), ("fetch", _TENSOR): _moved(copies=True, sourced=False),
    ("store", _GROUP): Effect(writes=(), holds=_H.SAME), ("store", _GLOBAL): Effect(writes=()),
    ("load", _GROUP): Effect((), sourced=False, holds=_H.SAME), ("load", _GLOBAL): Effect((), sourced=False),
}
"""(verb, kind of subject or value) -> its effect. An event whose divisor names `count`, or the loss scale, reads
that, too."""


def effects(verb: VerbName) -> Iterator[Effect]:
    """Every effect of a verb, for all of its subjects."""
    return (effect for (name, _), effect in EFFECTS.items() if name == verb)


def effect_of(verb: VerbName, value: str, kind: SubjectKind, from_parts: bool = False) -> Effect | None:
    """The effect of a verb on a value of this kind; None if the verb does not apply to it.

    >>> [effect_of("shift", "layer.out", SubjectKind.TENSOR, from_parts).dims for from_parts in (False, True)]
    [('from',), ('to',)]
    >>> effect_of("shift", "weight", SubjectKind.GROUP) is None
    True
    """
    found = EFFECTS.get((verb, value) if kind in (_GROUP, _GLOBAL) else (verb, kind)) or EFFECTS.get((verb, kind))
    return found.of_parts if found and found.of_parts and from_parts else found
