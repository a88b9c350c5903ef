"""What ranks must have alike, whatever each does by itself: microbatches, inputs, the optimizer's settings, new values.

The norm by which they clip must be that of what they clip.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import sqrt
from typing import Any

from placealg.step.program import Step
from placealg.watch.differences import Difference, Tally
from placealg.watch.expected import Route
from placealg.watch.names import Named
from placealg.watch.new_values import listed
from placealg.watch.rest import split_over
from placealg.watch.seen import Chain, Hop, RankSeen, Seen

CLOSE = {"float64": 1e-4, "float32": 1e-3}
"""Type of the parameters -> relative difference below which two norms are one; 0.03 for shorter types."""


def counts(step: Step, seen: Seen) -> Iterator[Difference]:
    """Ranks that run another number of microbatches, and losses that divide by other numbers of tokens."""
    first = seen.ranks[0]
    for rank in seen.ranks[1:]:
        if len(rank.seeds) != len(first.seeds):
            yield Difference("accumulation", "", f"rank {rank.rank} runs {len(rank.seeds)} backwards in a step, and "
                             f"rank {first.rank} {len(first.seeds)}; the program's ranks all run m")
            return
    if "equal_counts" not in step.reference.hypotheses:
        return
    told = [(s.tokens, r.rank, s.microbatch) for r in seen.ranks for s in r.seeds if s.signed and s.factor is not None]
    for tokens, number, microbatch in told[1:]:
        if tokens != told[0][0]:
            yield Difference("counts", "", f"the loss of microbatch {microbatch} on rank {number} is a mean over "
                             f"{tokens:g} tokens, and that of microbatch {told[0][2]} on rank {told[0][1]} over "
                             f"{told[0][0]:g}: tokens count unequally; the program's proof assumes equal counts", "",
                             (), (), None, (), {"loss": {"assume": []}})
            return


def afterwards(seen: Seen) -> Iterator[Difference]:
    """Scale factors applied after a reduction must be equal on all ranks of the group."""
    first: dict[str, tuple[int, list[_Numbers]]] = {}
    for rank in seen.ranks:
        for chain in rank.chains:
            mine = sorted({(t.microbatch, h.axes, float(f"{h.factor:.6g}")) for t in chain.terms for h in t.hops
                           if h.verb != "scale"})
            one, told = first.setdefault(chain.parameter, (rank.rank, mine))
            if mine != told and [n[:2] for n in mine] == [n[:2] for n in told]:
                here, there = next((a, b) for a, b in zip(mine, told, strict=True) if a != b)
                says = (f"{chain.parameter}: what is reduced over {listed(here[1])} is multiplied by {here[2]:g} "
                        f"afterwards on rank {rank.rank}, and by {there[2]:g} on rank {one}")
                yield Difference("scale", "", says, "", (), (chain.parameter,))
                return


_Numbers = tuple[int, tuple[str, ...], float]
"""(microbatch, axes of a reduction, the number that multiplies behind it)."""


def inputs(step: Step, seen: Seen, tally: Tally) -> Iterator[Difference]:
    """Ranks that see the same tokens in the program, and have read others; ranks that alone change what they read."""
    if seen.backend == "fake":
        return
    data = set(step.reference.data_axes)
    pipeline = step.reference.pipeline
    held = data | {pipeline.axis}
    alike: dict[tuple[int, ...], RankSeen] = {}
    changes: dict[int, tuple[RankSeen, list[str]]] = {}
    for rank in seen.ranks:
        first = alike.setdefault(tuple(k for a, k in rank.coordinates.items() if a in held), rank)
        if sorted(first.inputs) != sorted(rank.inputs):
            axes = ", ".join(a for a in seen.mesh if rank.coordinates.get(a) != first.coordinates.get(a))
            same = sorted(_digests(first)) == sorted(_digests(rank))
            yield Difference("inputs", "", f"rank {rank.rank} reads {'in other microbatches' if same else 'other'} "
                             f"whole numbers, such as ids of tokens, {'' if same else 'than '}"
                             f"{'that ' if same else ''}rank {first.rank}{' reads' if same else ''}; along {axes} the "
                             "program's ranks see the same tokens")
            return
        made = sorted(f"{microbatch}:{how}" for microbatch, how, digest in map(_parts, rank.inputs) if how)
        one, told = changes.setdefault(rank.coordinates.get(pipeline.axis, 0), (rank, made))
        if made != told:
            yield Difference("inputs", "", f"rank {rank.rank} puts whole numbers, such as ids of tokens, in another "
                             f"order, or changes them, otherwise than rank {one.rank}")
            return
    over = [a for a in seen.mesh if a in data and seen.mesh[a] > 1]
    read = seen.ranks[0].inputs
    if over and not pipeline.axis and read and all(r.inputs == read for r in seen.ranks):
        tally.not_compared.append(f"what ranks read along {', '.join(over)}: in this run all have read the same "
                                  "tokens, which in training is a fault")


def _parts(told: str) -> tuple[str, str, str]:
    """(microbatch, what was done with them, digest) of whole numbers that were read."""
    microbatch, _, rest = told.partition(":")
    how, _, digest = rest.rpartition(":")
    return microbatch, how, digest


def _digests(rank: RankSeen) -> list[str]:
    return [digest for _, _, digest in map(_parts, rank.inputs)]


def settings(seen: Seen, names: Mapping[str, Named], group_of: Mapping[str, Any], tally: Tally
             ) -> Iterator[Difference]:
    """Parameters that are updated by other numbers on other ranks, or along their gradient."""
    every: dict[str, list[str]] = {}
    for chain in seen.ranks[0].chains:
        every.setdefault(chain.settings, []).append(chain.parameter)
    if len(every) > 1:
        shared = set.intersection(*(set(s.split("; ")) for s in every))
        said = "; ".join(f"{', '.join(v for v in s.split('; ') if v not in shared) or 'less'} for {len(of)} of them, "
                         f"{of[0]} first" for s, of in every.items())
        tally.not_compared.append(f"by which numbers each parameter is updated: they differ ({said}), and a strategy "
                                  "says none")
    first: dict[tuple[str, int], tuple[int, str]] = {}
    for rank in seen.ranks:
        for chain in rank.chains:
            named = names[chain.parameter]
            if not chain.settings:
                continue
            group = group_of[named.parameter].name
            number, told = first.setdefault((named.parameter, named.instance), (rank.rank, chain.settings))
            if told != chain.settings:
                here = ", ".join(v for v in chain.settings.split("; ") if v not in told.split("; "))
                there = ", ".join(v for v in told.split("; ") if v not in chain.settings.split("; "))
                yield Difference("update", group, f"{chain.parameter}: its optimizer has {here or 'less said'} on rank "
                                 f"{rank.rank}, and {there or 'less said'} on rank {number}", "", (),
                                 (chain.parameter,))
            elif "maximize=True" in chain.settings.split("; "):
                yield Difference("update", group, f"{chain.parameter}: its optimizer goes along the gradient "
                                 "(maximize); the program's goes against it", "", (), (chain.parameter,))


def copies(step: Step, seen: Seen, names: Mapping[str, Named], group_of: Mapping[str, Any]
           ) -> Iterator[tuple[str, str, list[list[tuple[RankSeen, Chain]]]]]:
    """(group, name, of every place in the parameter its replicas) of every parameter of every layer."""
    parts = {g.name: split_over(step, g) for g in step.reference.groups}
    alike: dict[tuple[str, int], dict[str, None]] = {}
    for name, named in names.items():
        alike.setdefault((named.parameter, named.instance), {})[name] = None
    for (parameter, _), every in alike.items():
        group = group_of[parameter]
        found: dict[tuple[int, ...], list[tuple[RankSeen, Chain]]] = {}
        for rank in seen.ranks:
            for chain in (c for c in rank.chains if c.parameter in every):
                shards = set(chain.shard) | parts[group.name]
                place = tuple(rank.coordinates.get(a, 0) for a in seen.mesh if a in shards)
                found.setdefault(place, []).append((rank, chain))
        yield group.name, next(iter(every)), list(found.values())


def _owners(replicas: list[tuple[RankSeen, Chain]]) -> Iterator[Chain]:
    """One replica of each element: of copies that an optimizer updates those of ranks that publish to each other."""
    first, chain = replicas[0]
    if chain.owned < 0:
        yield chain
        return
    over = {a for _, c in replicas for h in c.new for a in h.axes}
    yield from (c for r, c in replicas if all(k == first.coordinates.get(a) or a in over
                                              for a, k in r.coordinates.items()))


def ends(step: Step, seen: Seen, names: Mapping[str, Named], group_of: Mapping[str, Any]) -> Iterator[Difference]:
    """Replicas that are equal when the step starts, and not when it ends."""
    if seen.backend == "fake":
        return
    for group, name, places in copies(step, seen, names, group_of):
        for replicas in places:
            told = [c for _, c in replicas if c.end]
            if len({c.start for c in told}) == 1 and len({(c.end, c.elements) for c in told}) > 1:
                yield Difference("replicas differ", group, f"{name}: its replicas differ when the step ends, and did "
                                 "not when it began; those of the program stay equal", "", (), (name,))
                break


def _lost(chain: Chain, route: Route, sizes: Mapping[str, int]) -> bool:
    """Whether a parameter that the program updates keeps its old value, or has not what other ranks made of it."""
    if route.update is None:
        return False
    published = route.publish.axes if route.publish else ()
    return not chain.updated or bool({a for a in published if sizes[a] > 1} - {a for h in chain.new for a in h.axes})


def _clips(chain: Chain) -> Iterator[Hop]:
    """Where a parameter's gradient is multiplied by what a norm has made."""
    return (h for t in chain.terms for h in t.hops if h.verb == "scale" and h.norm)


def norms(step: Step, seen: Seen, names: Mapping[str, Named], routes: Mapping[str, Route], group_of: Mapping[str, Any]
          ) -> Iterator[Difference]:
    """Whether what gradients are clipped by is made of their norm: its number must stand on the way to the factor."""
    clips = [(r.rank, abs(h.factor), h) for r in seen.ranks for c in r.chains for h in _clips(c)]
    if seen.backend == "fake" or not clips or not any(e.verb == "norm" for e in step.events):
        return
    close = CLOSE.get(seen.dtype, 0.03)
    least, most = (choose(clips, key=lambda c: c[1]) for choose in (min, max))
    if most[1] > 1 + close:
        yield Difference("norm", "", f"gradients are multiplied by {most[1]:.4g}: a clip makes none larger",
                         most[2].line)
    elif most[1] - least[1] > close * most[1]:
        yield Difference("norm", "", f"gradients are clipped by {least[1]:.4g} on rank {least[0]}, by {most[1]:.4g} "
                         f"on rank {most[0]}; the program has one factor", least[2].line)
    if len(seen.ranks) < seen.world:
        return
    total = 0.0
    for group, _, places in copies(step, seen, names, group_of):
        if any(_lost(c, routes[group], seen.mesh) for replicas in places for _, c in replicas):
            return  # told as another difference: of what was lost, the gradient is not seen
        if routes[group].norm is None:
            continue
        for replicas in places:
            for chain in _owners(replicas):
                if chain.square < 0 or (not chain.terms and chain.owned):
                    return
                scale = {abs(h.factor) for h in _clips(chain)}
                if chain.terms and len(scale) != 1:
                    return  # told as another difference
                factor = next(iter(scale), 1.0)
                total += chain.square / (factor ** 2 or 1.0)
    norm = sqrt(total)
    for rank in seen.ranks:
        mine = {h.message: h for c in rank.chains for h in _clips(c)}
        for number, hop in mine.items():
            told = rank.totals.get(number, ())
            if not norm or any(abs(abs(v) / want - 1) < close for v in told for want in (norm, norm ** 2)):
                continue
            said = ", ".join(f"{v:.4g}" for v in told[:6])
            yield Difference("norm", "", f"the gradients have the norm {norm:.4g} together, and what they are clipped "
                             f"by is made of other numbers ({said or 'none'})", hop.line)
            return
