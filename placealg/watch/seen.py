"""What a recording holds: plain data, written as JSON and read again without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from math import prod
from typing import Any

from placealg.errors import InputError

VERSION = 4
"""The version of the document: what was recorded by an earlier one lacks what is compared now."""

BUFFER = "buffer:"
"""What stands before the name of a buffer among what a message carries."""

UNFOLLOWED = "what reaches each parameter: no optimizer of torch updates them, or they are parts of flat ones"

FOREIGN = "the tensors that the optimizer updates, which are no parameters of the model"
"""What stands among what a rank has not seen where a wrapper trains copies or parts of the parameters."""

TERM = "a term of the loss beside its cross entropy"
"""What stands among what a rank has not seen where the loss has one, with the op that starts its backward."""

BACKWARD, EARLIER, UNSEEN = "backward", "earlier", "unseen"
"""Where a chain begins: an op of a microbatch's backward; a gradient that was there before the step; something that the
recorder could not follow."""


@dataclass(frozen=True, slots=True)
class Message:
    """One collective, as one rank took part in it.

    `phase` is forward, backward, update, or between (outside modules, backward and optimizer). `axes` are the axes of
    the mesh that its group spans, or "ranks ..." where they span none. `microbatch` counts backwards from 0. `module`
    is the module whose op it serves, `carries` the parameters of which it moves weights, `line` the user's frame. One
    that is not `live` reaches no parameter and no gradient: a number that is printed, say. One that is sent `again` is
    of a forward that runs again in backward.
    """

    index: int
    phase: str
    verb: str
    op: str
    axes: tuple[str, ...]
    bytes: int
    dtype: str
    microbatch: int = 0
    module: str = ""
    carries: tuple[str, ...] = ()
    line: str = ""
    root: int = -1
    live: bool = True
    again: bool = False


@dataclass(frozen=True, slots=True)
class Hop:
    """One thing that happens to a contribution on its way: a collective, or a factor that is a tensor.

    `verb` is a collective's, with its `message`, and `factor` the number that multiplies behind it; or it is "scale": a
    0-dim tensor multiplies, whose value is `factor`. Of a scale, `norm` are the parameters whose gradients the tensor
    depends on, each with the axes over which what was made of it had been reduced, and `share` how often its square
    counts on this rank; `counts` are the axes over which other things that it depends on were reduced; `through` the
    messages among which these are.
    """

    verb: str
    axes: tuple[str, ...] = ()
    op: str = ""
    message: int = -1
    factor: float = 1.0
    norm: tuple[tuple[str, tuple[str, ...]], ...] = ()
    counts: tuple[str, ...] = ()
    through: tuple[int, ...] = ()
    line: str = ""
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Term:
    """One summand of what a parameter's elements are: where it comes from, what happened to it since, in order.

    `begin` is backward, earlier or unseen, `what` the op, by name; `factor` the product of the numbers by which it was
    multiplied. `count` of the tensor's elements have it, each as often as another. `through` are the messages behind
    which something is unseen.
    """

    begin: str
    what: str
    microbatch: int
    factor: float
    hops: tuple[Hop, ...]
    count: int
    module: str = ""
    line: str = ""
    through: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Chain:
    """What the optimizer reads as the gradient of a parameter, and what the parameter is afterwards.

    `elements` of it are on this rank. `shard` are the axes along which it holds part of it, as placements say it where
    it is `placed`. `new` are the collectives
    through which the updated value came, none if this rank made it; `updated` says whether it was updated at all.
    `start` is a sum of the values at the step's start. Where the optimizer updates copies of parameters, `owned` of the
    elements have theirs on this rank, and the terms are of them alone. It is -1 where the optimizer updates the
    parameter itself. `settings` are the numbers by which it updates, as text.
    """

    parameter: str
    elements: int
    shape: tuple[int, ...]
    shard: tuple[str, ...]
    terms: tuple[Term, ...]
    new: tuple[Hop, ...] = ()
    updated: bool = True
    start: str = ""
    tied: tuple[str, ...] = ()
    unseen: str = ""
    owned: int = -1
    placed: bool = False
    settings: str = ""


@dataclass(frozen=True, slots=True)
class Seed:
    """The factor with which a microbatch's backward begins, seen where it first meets an op that is not linear.

    `factor` is that of each token, on average; `least` and `most` are the ends of them, as multiples of it. `tokens` is
    the number of tokens that count. `guessed` says that no loss is known whose backward is `op`, or that it multiplies
    tokens by numbers of its own: they are as many as it made numbers. Where it is `signed` a loss is known, so that the
    factor's sign is the loss's.
    """

    microbatch: int
    factor: float | None
    tokens: float
    hops: tuple[Hop, ...] = ()
    op: str = ""
    guessed: bool = False
    signed: bool = False
    least: float = 1.0
    most: float = 1.0


@dataclass(frozen=True, slots=True)
class RankSeen:
    """What one rank did in one step; `coordinates` are its place on the mesh, by axis.

    `seconds` are the processor's, from the step's beginning until all of it was read. `random` are the ops of modules
    that draw random numbers. `uncleared` says that the step left gradients, and had found none: whether the next one
    clears them was not seen.
    """

    rank: int
    coordinates: Mapping[str, int]
    messages: tuple[Message, ...]
    chains: tuple[Chain, ...]
    seeds: tuple[Seed, ...]
    unseen: tuple[str, ...] = ()
    seconds: float = 0.0
    random: tuple[str, ...] = ()
    uncleared: bool = False


@dataclass(frozen=True, slots=True)
class Lifted:
    """What came of running the step again, in exact numbers, on all ranks beside a single device.

    `beside` says how the single device came about. `differs` are sentences on what is not the single device's,
    `unseen` on what could not be followed; `elements` of parameters and of what optimizers keep were compared.
    """

    verdict: str
    beside: str
    differs: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    elements: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """One recorded step: the mesh, and what each rank that was recorded did.

    `backend` is the process group's; on `fake` no number was sent, so values say nothing. `shims` are changes to the
    code that were made so that it runs, as the user names them. `lifted` is what running it again beside a single
    device showed; None if there was none, and then `alone` says why.
    """

    mesh: Mapping[str, int]
    ranks: tuple[RankSeen, ...]
    backend: str
    torch: str
    optimizer: str = ""
    dtype: str = ""
    shims: tuple[str, ...] = ()
    lifted: Lifted | None = None
    alone: str = ""

    @property
    def settled(self) -> bool:
        """Whether every element is known to end as on a single device."""
        return self.lifted is not None and not self.lifted.differs and not self.lifted.unseen

    @property
    def world(self) -> int:
        """How many ranks the mesh has."""
        return prod(self.mesh.values())

    @property
    def microbatches(self) -> int:
        """How many backwards the step had, of the rank that had most."""
        return max((len(r.seeds) for r in self.ranks), default=0)

    def text(self) -> str:
        """The document, as JSON."""
        return json.dumps({"version": VERSION, "seen": _said(self)}, indent=None, separators=(",", ":")) + "\n"

    @classmethod
    def read(cls, text: str, where: str = "") -> Seen:
        """The recording that a document holds."""
        try:
            whole = json.loads(text)
        except ValueError as error:
            raise InputError(f"no JSON: {error}", where=where) from None
        if not isinstance(whole, dict) or "seen" not in whole:
            raise InputError("no recording: a document of `placealg watch` has version and seen", where=where)
        if whole.get("version") != VERSION:
            raise InputError(f"version {whole.get('version')!r} of a recording; this placealg reads {VERSION}",
                             where=where)
        try:
            return _seen(whole["seen"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"the recording is damaged: {type(error).__name__} {error}", where=where) from None


def _said(value: Any) -> Any:
    """A value as JSON: of a record the fields that are not as they are by default."""
    if isinstance(value, list | tuple):
        return [_said(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): _said(v) for k, v in value.items()}
    if not is_dataclass(value):
        return value
    return {f.name: _said(getattr(value, f.name)) for f in fields(value)
            if getattr(value, f.name) != (f.default if f.default_factory is MISSING else f.default_factory())}


def _seen(said: Mapping[str, Any]) -> Seen:
    ranks = tuple(RankSeen(**{
        **r, "messages": tuple(_message(m) for m in r["messages"]), "chains": tuple(_chain(c) for c in r["chains"]),
        "seeds": tuple(Seed(**{**s, "hops": _hops(s.get("hops", ()))}) for s in r["seeds"]),
        "unseen": tuple(r.get("unseen", ())), "random": tuple(r.get("random", ()))})
        for r in said["ranks"])
    lifted = said.get("lifted")
    return Seen(**{**said, "ranks": ranks, "shims": tuple(said.get("shims", ())), "lifted": None if lifted is None else
                   Lifted(**{**lifted, "differs": tuple(lifted.get("differs", ())),
                             "unseen": tuple(lifted.get("unseen", ()))})})


def _message(said: Mapping[str, Any]) -> Message:
    return Message(**{**said, "axes": tuple(said["axes"]), "carries": tuple(said.get("carries", ()))})


def _hops(said: Any) -> tuple[Hop, ...]:
    return tuple(Hop(**{**h, "axes": tuple(h.get("axes", ())), "counts": tuple(h.get("counts", ())),
                        "through": tuple(h.get("through", ())),
                        "norm": tuple((name, tuple(axes)) for name, axes in h.get("norm", ()))}) for h in said)


def _chain(said: Mapping[str, Any]) -> Chain:
    terms = tuple(Term(**{**t, "hops": _hops(t["hops"]), "through": tuple(t.get("through", ()))})
                  for t in said["terms"])
    return Chain(**{**said, "shape": tuple(said["shape"]), "shard": tuple(said["shard"]), "terms": terms,
                    "new": _hops(said.get("new", ())), "tied": tuple(said.get("tied", ()))})


def joined(parts: Sequence[Seen]) -> Seen:
    """One recording of what several ranks recorded apart, all of one step on one mesh."""
    first = parts[0]
    if any(p.mesh != first.mesh or p.torch != first.torch for p in parts):
        raise InputError("recordings of different meshes or versions of torch are no recording of one step")
    ranks = sorted((r for p in parts for r in p.ranks), key=lambda r: r.rank)
    if len({r.rank for r in ranks}) < len(ranks):
        raise InputError("two of the recordings are of the same rank")
    return replace(first, ranks=tuple(ranks))
