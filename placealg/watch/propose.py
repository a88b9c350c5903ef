"""A strategy read off a recording: how parameters are split, what is gathered, what the gradients pass through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from placealg.errors import InputError
from placealg.models.model import Model
from placealg.watch.names import Named, names_of
from placealg.watch.rest import sizes_of
from placealg.watch.seen import Message, RankSeen, Seen

SPLIT = ("expert", "heads", "ffn", "vocab")
"""The dims by which parameters are split, in the order in which a strategy lists them."""

Tables = Mapping[str, Any]


@dataclass(frozen=True)
class Proposal:
    """Tables of a strategy, the name that the catalogue may have for it, and what each axis's entry rests on."""

    tables: Tables
    expression: str
    rests: tuple[str, ...]


_REPLAYED = {"whole": "to their end", "by_dependency": "as far as backward needs it",
             "early_stop": "until the last tensor is there that backward needs"}
"""How much of a layer runs again in backward -> in words."""

_ONCE, _AGAIN = ("",), tuple(_REPLAYED)


@dataclass(frozen=True)
class _Kind:
    """One way in which an axis may be used: its entries, what the proposal rests on, a name, states, a schedule."""

    dims: tuple[str, ...]
    says: str
    name: str = ""
    states: Mapping[str, str] | None = None
    schedule: Tables | None = None


def proposals(seen: Seen, model: Model, said: Mapping[str, str] | None = None) -> Iterator[Proposal]:
    """The strategies that a recording may be of, the likeliest first: they differ in what no trace tells apart.

    A run on one device is of none.
    """
    if not any(n > 1 for n in seen.mesh.values()):
        raise InputError("the run has one rank: there is no strategy to propose")
    names = names_of(dict.fromkeys(c.parameter for r in seen.ranks for c in r.chains), model, said)
    split = _split(seen, model, names)
    ways = [list(_kinds(axis, size, seen, names, model, split.get(axis, {}))) for axis, size in seen.mesh.items()]
    again = _AGAIN if any(m.again for r in seen.ranks for m in r.messages) else _ONCE
    for chosen, how in product(product(*ways), again):
        states: dict[str, dict[str, str]] = {}
        schedule: dict[str, Any] = {}
        for axis, kind in zip(seen.mesh, chosen, strict=True):
            for state, mode in (kind.states or {}).items():
                states.setdefault(state, {})[axis] = mode
            for key, value in (kind.schedule or {}).items():
                schedule[key] = {**schedule.get(key, {}), axis: value} if key in ("lifetime", "gather") else value
        tables: dict[str, Any] = {"mesh": dict.fromkeys(seen.mesh, "symbolic"),
                                  "dims": {a: list(k.dims) for a, k in zip(seen.mesh, chosen, strict=True)},
                                  "states": states}
        if how:
            states.setdefault("activations", {})["region:layer"] = "M"
            schedule |= {"replay": how} if how != "whole" else {}
        if schedule:
            tables["schedule"] = schedule
        names_told = [k.name or "?" for k in chosen] + (["recompute_full" if how == "whole" else "?"] if how else [])
        says = [f"layers send again in backward: they run again, {_REPLAYED[how]}"] if how else []
        yield Proposal(tables, "*".join(names_told), (*(k.says for k in chosen), *says))


def _split(seen: Seen, model: Model, names: Mapping[str, Named]) -> dict[str, dict[str, Named]]:
    """Axis -> the parameters that rest split along it: placements tell it of a DTensor, sizes of a plain tensor."""
    whole = sizes_of(model)
    found: dict[str, dict[str, Named]] = {}
    for rank in seen.ranks:
        for chain in rank.chains:
            named = names[chain.parameter]
            axes: Sequence[str] = chain.shard
            every = [named.parameter, *named.also]
            if not axes and chain.elements and all(p in whole for p in every):
                reduced = {a for t in chain.terms for h in t.hops if h.verb != "scale" for a in h.axes}
                left = [a for a, n in seen.mesh.items() if n > 1 and a not in reduced]
                part = sum(whole[p] for p in every) / chain.elements
                axes = left if part > 1 and part == prod(seen.mesh[a] for a in left) else ()
            for axis in axes:
                found.setdefault(axis, {})[chain.parameter] = named
    return found


def _kinds(axis: str, size: int, seen: Seen, names: Mapping[str, Named], model: Model,
           split: Mapping[str, Named]) -> Iterator[_Kind]:
    """The ways in which an axis may be used, the likeliest first."""
    if size == 1:
        yield _Kind(("batch",), f"{axis}: of size 1, so that nothing tells; taken to split the batch", "dp")
        return
    rank = seen.ranks[0]
    verbs = _hops(rank, axis)
    gathered = _gathered(rank, axis, "forward")
    sent = _others(rank, axis)
    if _apart(seen, axis):
        yield from _stages(axis, rank)
    elif len(gathered) * 2 > len(rank.chains):
        yield _sharded(axis, rank, gathered, verbs)
    elif any(axis in h.axes for c in rank.chains for h in c.new):
        yield _published(axis, rank, verbs)
    elif split and any(m.verb == "all_to_all" for m in sent) and _by_expert(split, model):
        yield _Kind(("expert.expert", "batch"), f"{axis}: {_listed(split)} split by expert, tokens are exchanged", "ep")
    elif split:
        yield from _tensor(axis, split, model, sent)
    elif sent:
        yield from _sequence(axis, sent)
    else:
        how = f"their gradients are reduced over it by {' and '.join(sorted(verbs))}" if verbs else "nothing is sent"
        yield _Kind(("batch",), f"{axis}: parameters are whole along it, and {how}", "dp")


def _hops(rank: RankSeen, axis: str) -> set[str]:
    """The verbs by which gradients are reduced over an axis."""
    return {h.verb for c in rank.chains for t in c.terms for h in t.hops if h.verb != "scale" and axis in h.axes}


def _gathered(rank: RankSeen, axis: str, phase: str) -> set[str]:
    """The parameters whose weights are gathered over an axis in a phase."""
    return {name for m in rank.messages if m.verb == "all_gather" and m.phase == phase and axis in m.axes
            for name in m.carries}


def _others(rank: RankSeen, axis: str) -> list[Message]:
    """The messages of forward and backward over an axis that carry no weight and no gradient."""
    passed = {h.message for c in rank.chains for t in c.terms for h in t.hops if h.verb != "scale"}
    passed |= {k for s in rank.seeds for h in s.hops for k in h.through}
    return [m for m in rank.messages if m.live and axis in m.axes and not m.carries and m.index not in passed
            and m.module]


def _apart(seen: Seen, axis: str) -> bool:
    """Whether ranks that differ along an axis alone have other parameters: stages of a pipeline."""
    have: dict[tuple[int, ...], set[frozenset[str]]] = {}
    for rank in seen.ranks:
        place = tuple(k for a, k in rank.coordinates.items() if a != axis)
        have.setdefault(place, set()).add(frozenset(c.parameter for c in rank.chains))
    return any(len(found) > 1 for found in have.values())


def _stages(axis: str, rank: RankSeen) -> Iterator[_Kind]:
    says = f"{axis}: its ranks have other layers"
    for order in ("1f1b", "gpipe"):
        yield _Kind(("layer",), says, f"pp_{order}", None, {"pipeline": order})


def _sharded(axis: str, rank: RankSeen, gathered: set[str], verbs: set[str]) -> _Kind:
    again = _gathered(rank, axis, "backward")
    how = f"and gradients are reduced over it by {' and '.join(sorted(verbs))}" if verbs else "no gradient is reduced"
    says = (f"{axis}: the weights of {len(gathered)} parameters are gathered over it in forward"
            f"{', and again in backward' if again else ', and kept for backward'}, {how}")
    scattered = "S" if "reduce_scatter" in verbs or not verbs else "R"
    states = {"parameters": "S*", "optimizer": "S", "gradients": scattered}
    schedule = None if again else {"lifetime": "microbatch"}
    return _Kind(("batch",), says, "zero3" if again else "fsdp_no_reshard", states, schedule)


def _published(axis: str, rank: RankSeen, verbs: set[str]) -> _Kind:
    scattered = "reduce_scatter" in verbs
    states = {"optimizer": "S", **({"gradients": "S"} if scattered else {})}
    count = sum(1 for c in rank.chains if any(axis in h.axes for h in c.new))
    says = (f"{axis}: the new values of {count} parameters come over it, and gradients are "
            f"{'scattered' if scattered else 'whole'}")
    return _Kind(("batch",), says, "zero2" if scattered else "zero1", states)


def _tensor(axis: str, split: Mapping[str, Named], model: Model, sent: Sequence[Message]) -> Iterator[_Kind]:
    dims = _dims(split, model)
    layers = [m for m in sent if m.phase == "forward" and m.verb in ("reduce_scatter", "all_gather")]
    sequence = any(m.verb == "reduce_scatter" for m in layers)
    says = f"{axis}: {_listed(split)} split by {', '.join(dims)}"
    if not sequence:
        gathered = [(("head.loss.none",), ", logits are gathered")] if layers else []
        for loss, logits in (*gathered, ((), "")):
            yield _Kind((*loss, *dims), f"{says}; activations between them are whole{logits}", "" if loss else "tp")
            yield _Kind((*loss, *dims), f"{says}; every use of an activation reduces its gradient{logits}", "", None,
                        {"sharing": "per_use"})
        return
    says += "; activations between them are scattered along seq"
    again = sum(1 for m in sent if m.phase == "backward" and m.verb == "all_gather")
    scattered = sum(1 for m in layers if m.verb == "reduce_scatter")
    kept = ("R", "tp_sp_keep", ", and what is gathered is kept for backward")
    anew = ("S*", "tp_sp", ", and gathered again for backward")
    for mode, name, how in ((anew, kept) if again > scattered else (kept, anew)):
        yield _Kind(("loss.none", *dims, "seq"), says + how, name, {"activations": mode})


def _sequence(axis: str, sent: Sequence[Message]) -> Iterator[_Kind]:
    """Context parallel: whole parameters, and something is sent inside layers."""
    verbs = {m.verb for m in sent}
    says = f"{axis}: parameters are whole along it, and {', '.join(sorted(verbs))} inside layers"
    ring = _Kind(("seq",), says, "cp_ring", {"activations": "S*"}, {"gather": "ring"})
    if "all_to_all" in verbs:
        yield _Kind(("core.heads", "seq"), says, "cp_ulysses")
    elif verbs & {"send", "recv", "batch_p2p"}:
        yield ring
    else:
        yield _Kind(("seq",), says, "cp")
        yield _Kind(("seq",), f"{says}, again in backward", "", {"activations": "S*"})


def _dims(split: Mapping[str, Named], model: Model) -> tuple[str, ...]:
    """The dims by which parameters are split, as the model has them."""
    of = {p.name: p.dims for p in model.parameters}
    names = {d: ("heads", "kv") if d == "heads" else (d,) for d in SPLIT}  # of heads in groups the groups are split
    return tuple(d for d in SPLIT if any(n in of[named.parameter] for n in names[d] for named in split.values()))


def _by_expert(split: Mapping[str, Named], model: Model) -> bool:
    of = {p.name: p.dims for p in model.parameters}
    return all("expert" in of[named.parameter] for named in split.values())


def _listed(split: Mapping[str, Named]) -> str:
    first, more = next(iter(split.values())).parameter, len(split) - 1
    return f"{first} and {more} more are" if more else f"{first} is"

