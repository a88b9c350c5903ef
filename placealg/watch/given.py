"""What ranks give to reductions of elements that others own: it goes the way of their own, each to its own element."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from placealg.watch.differences import Difference, Unseen
from placealg.watch.expected import Route
from placealg.watch.names import Named
from placealg.watch.seen import Chain, RankSeen, Seen, Term

Way = list[tuple[Any, ...]]
"""Of every term where it begins, its microbatch and factor, and what happened to it, in order."""


def way(terms: Sequence[Term]) -> Way:
    """The way that elements go, whichever they are."""
    return sorted((t.begin, t.microbatch, float(f"{t.factor:.6g}"),
                   tuple((h.verb, h.axes, h.op, float(f"{h.factor:.6g}")) for h in t.hops)) for t in terms)


def gifts(seen: Seen, names: Mapping[str, Named], group_of: Mapping[str, Any],
          unseen: list[tuple[int, Unseen]]) -> Iterator[tuple[int, Difference]]:
    """How what ranks give of elements that others own differs from what they give of their own."""
    kept: dict[str, tuple[Term, ...]] = {}
    for rank in seen.ranks:
        for chain in rank.chains:
            if chain.kept:
                kept.setdefault(chain.parameter, chain.kept)
    for rank in seen.ranks:
        for chain in rank.chains:
            if not chain.given or chain.unseen:
                continue
            own = chain.kept or kept.get(chain.parameter, ())
            if not own:
                unseen.append((rank.rank, Unseen(chain.parameter, "how often what a rank gives of elements that others "
                                                                  "own counts")))
            elif way(chain.given) != way(own):
                yield rank.rank, _apart(chain, own, group_of[names[chain.parameter].parameter].name)


def _apart(chain: Chain, own: Sequence[Term], group: str) -> Difference:
    """The difference in words: how often it counts, where that is all."""
    one, two = way(chain.given), way(own)
    ratios = {f"{abs(a[2] / b[2]):.4g}" for a, b in zip(one, two, strict=False) if b[2]}
    scaled = len(one) == len(two) and len(ratios) == 1 and [w[:2] + w[3:] for w in one] == [w[:2] + w[3:] for w in two]
    says = f"counts {ratios.pop()} times as often as that of its own" if scaled else "goes another way than its own"
    line = next((h.line for t in chain.given for h in reversed(t.hops)), "")
    return Difference("of others", group, f"{chain.parameter}: what a rank gives of elements that other ranks own "
                      f"{says}", line, (), (chain.parameter,))


def layouts(seen: Seen, names: Mapping[str, Named], group_of: Mapping[str, Any],
            routes: Mapping[str, Route]) -> Iterator[Difference]:
    """Reductions to which ranks give other elements in the same place.

    One over axes over which the program does not reduce is told as that.
    """
    groups: dict[tuple[Any, ...], list[tuple[RankSeen, list[tuple[tuple[str, str], ...]]]]] = {}
    for rank in seen.ranks:
        sent: dict[tuple[str, ...], list[tuple[tuple[str, str], ...]]] = {}
        for message in rank.messages:
            over = {a for n, _ in message.layout for e in routes[group_of[names[n].parameter].name].reductions
                    for a in e.axes}
            if message.layout and set(message.axes) <= over:
                sent.setdefault(message.axes, []).append(message.layout)
        for axes, every in sent.items():
            rest = tuple((a, k) for a, k in rank.coordinates.items() if a not in axes)
            groups.setdefault((axes, rest), []).append((rank, every))
    for (axes, _), ranks in groups.items():
        first, told = ranks[0]
        for other, also in ranks[1:]:
            apart = [(a, b) for a, b in zip(told, also, strict=False) if _places(a, names) != _places(b, names)]
            if apart:
                name = next((n for n, d in apart[0][0] if (n, d) not in apart[0][1]), apart[0][0][0][0])
                yield Difference("places", group_of[names[name].parameter].name, f"{name}: what is reduced over "
                                 f"[{', '.join(axes)}] has other elements on rank {other.rank} than in the same places "
                                 f"on rank {first.rank}", "", (), (name,))
                return


def _places(layout: Sequence[tuple[str, str]], names: Mapping[str, Named]) -> list[tuple[Any, ...]]:
    """Which elements stand where, of parameters as the model calls them: stages may call a tied one otherwise."""
    return sorted((min((names[n].parameter, *names[n].also)), names[n].instance, digest) for n, digest in layout)
