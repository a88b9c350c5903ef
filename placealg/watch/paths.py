"""The way of every gradient of one rank, beside the route that the program says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from placealg.errors import InputError
from placealg.step.event import COUNTS_OF_SAMPLES, LOOPED, Event, takes_part
from placealg.step.program import Step
from placealg.watch.differences import Difference, Table, Tally, Unseen
from placealg.watch.expected import Route, norm_axes, positions
from placealg.watch.names import Named
from placealg.watch.new_values import listed, updates
from placealg.watch.opaque import NAMELESS
from placealg.watch.seen import BACKWARD, EARLIER, UNSEEN, Chain, Hop, RankSeen, Seed, Seen, Term

CLOSE = 1e-6
"""Relative difference below which two factors are one: they are products of a few float32 numbers."""


class Paths:
    """The gradient paths of one rank, beside the routes of the program."""

    def __init__(self, step: Step, seen: Seen, rank: RankSeen, names: Mapping[str, Named], tally: Tally):
        self.step, self.seen, self.rank, self.names, self.tally = step, seen, rank, names, tally
        self.sizes = {a: seen.mesh.get(a, 1) for a in step.reference.mesh.names}
        self.m = max(len(rank.seeds), 1)
        self.norm = tuple(a for a in norm_axes(step) if self.sizes[a] > 1)
        clips = {(h.message, f"{h.factor:.9g}") for c in rank.chains for t in c.terms for h in t.hops
                 if h.verb == "scale" and h.norm}
        alike = {factor for _, factor in clips}  # the same number may be made once for each parameter
        self.scalars = {message for message, _ in clips} if len(alike) == 1 else set()
        self.summed = {a for c in rank.chains for t in c.terms for h in t.hops if h.verb == "scale"
                       for _, axes in h.norm for a in axes}
        self.where = positions(self.m)
        first = next((s for r in seen.ranks for s in r.seeds if s.factor is not None), None)
        self._sign = -1.0 if first is not None and not first.signed and (first.factor or 0) < 0 else 1.0
        self.counts = {**self.sizes, "m": self.m}
        self.values = {name: float(n) for name, n in self.counts.items()}
        self.some_right = False
        """Whether some parameter's tokens count as the program says: then no loss explains another's that do not."""

    def counts_right(self, chain: Chain, route: Route) -> bool:
        """Whether every token counts in a parameter's gradient as often as the program says."""
        ratios = [self._ratio(t, route) for t in chain.terms if t.begin == BACKWARD]
        return bool(ratios) and all(abs(ratio - 1) <= CLOSE for ratio in ratios)

    def compare(self, chain: Chain, route: Route) -> tuple[list[Difference], list[Unseen]]:
        """How a chain differs from the route of its group, and what of it could not be followed."""
        name, group = chain.parameter, route.group.name
        lost = [Unseen(name, t.what) for t in chain.terms if t.begin == UNSEEN]
        lost += [Unseen(name, f"a {h.op} {h.verb}") for t in chain.terms for h in t.hops
                 if h.op not in ("", "sum", "mean")]
        if chain.unseen:
            lost.append(Unseen(name, chain.unseen))
        if lost:
            return [], lost[:1]
        if route.group.frozen:
            return ([Difference("frozen", group, f"{name} is trained, and the program says it is frozen", "", (),
                                (name,))] if chain.updated else []), []
        found = [*self.begins(chain, route), *self.reductions(chain, route)] if chain.owned else []
        if not chain.owned:
            return [*found, *updates(chain, route, self.sizes)], []
        scaled = list(self.weights(chain, route)) if not found else []
        seed = next((s for s in self.rank.seeds if s.guessed), None)
        if scaled and seed is not None and not self.some_right:
            if self.seen.settled:  # it divides as the single device does
                return [*found, *self.clips(chain, route), *updates(chain, route, self.sizes)], []
            return [], [Unseen("", f"by how many tokens the loss divides inside {seed.op}")]
        found += scaled if seed is None or self.some_right else []
        found += [*self.clips(chain, route), *updates(chain, route, self.sizes)]
        return found, []

    def begins(self, chain: Chain, route: Route) -> Iterator[Difference]:
        """Contributions of other steps, and microbatches that are missing or counted twice."""
        group, name = route.group.name, chain.parameter
        if route.zero and any(t.begin == EARLIER for t in chain.terms):
            cleared: tuple[Table, ...] = ({"drop": route.zero.path},)
            yield Difference("stale", group, f"{name}: the optimizer reads the gradient of an earlier step as well; "
                             "the program clears it once per step", "", cleared, (name,))
        counted = [sum(1 for t in chain.terms if t.begin == BACKWARD and t.microbatch == k) for k in range(self.m)]
        alone = chain.tied or self.step.reference.pipeline.axis  # of a stage, the uses that it has
        uses = 1 + len(chain.tied) if alone else len(route.group.sites)
        opaque = self.step.reference.model == NAMELESS  # what a unit does with a parameter, and how often, is its own
        if not any(counted):
            yield Difference("no gradient", group, f"{name}: the optimizer reads no gradient; the program sums "
                             f"{self.m} microbatches", "", (), (name,))
        elif counted != [0 if route.assigned and k < self.m - 1 else uses for k in range(self.m)] and not (
                len({*counted}) == 1 and counted[0] > uses and (self.seen.settled or opaque)):
            missing = [k for k, n in enumerate(counted) if n < uses]
            says = (f"{name}: the gradients of microbatches {', '.join(map(str, missing))} of {self.m} are missing"
                    if missing else f"{name}: microbatches count {counted} times; the program has {uses} use"
                                    f"{'s' if uses > 1 else ''}")
            edits: tuple[Table, ...] = ()
            if route.accumulate and missing == list(range(self.m - 1)) and counted[-1] == uses:
                edits = ({"set": route.accumulate.path, "verb": "assign"},)
            yield Difference("accumulation", group, says, "", edits, (name,))

    def reductions(self, chain: Chain, route: Route) -> Iterator[Difference]:
        """Axes over which contributions are summed, against those of the program."""
        name, group = chain.parameter, route.group.name
        for term in chain.terms:
            if term.begin != BACKWARD:
                continue
            hops = _reducing(term)
            want = self._axes(route, term)
            got = [a for h in hops for a in h.axes]
            if sorted(got) == sorted(want):
                continue
            missing = [a for a in want if got.count(a) < want.count(a)]
            extra = [a for a in got if got.count(a) > want.count(a)]
            edits = self._again(chain, route) or self._axes_edits(route, missing, extra, self._ratio(term, route))
            over = f"reduced over {listed(got)}" if got else "not reduced"
            line = hops[-1].line if hops else ""
            yield Difference("axes", group, f"{name}: its gradient is {over}; the program reduces it over "
                             f"{listed(want) if want else 'no axis'}", line, edits, (name,))
            return
        for every in dict.fromkeys(tuple(_reducing(t)) for t in chain.terms if t.begin == BACKWARD):
            found = list(self._kinds(chain, route, every))
            yield from found
            if found:
                return

    def _axes(self, route: Route, term: Term) -> list[str]:
        """The axes over which the program reduces a term, those of size 1 left out."""
        return [a for e in route.reductions for a in e.axes * self._times(e, term.microbatch) if self.sizes[a] > 1]

    def _kinds(self, chain: Chain, route: Route, hops: Sequence[Hop]) -> Iterator[Difference]:
        """Whether what is reduced stays whole or is scattered, and before or after it is accumulated."""
        name, group = chain.parameter, route.group.name
        kinds: dict[str, set[str]] = {}
        for hop in hops:
            for axis in hop.axes:
                kinds.setdefault(axis, set()).add(hop.verb)
        for event in route.reductions:
            for axis in event.axes:
                verb = min(kinds.get(axis, ()), default="")
                want = "reduce_scatter" if event.to == "S" else "all_reduce"
                if verb and want not in kinds[axis]:
                    edits = ({"set": event.path, "to": "I" if verb == "all_reduce" else "S"},)
                    yield Difference("whole or scattered", group, f"{name}: its gradient is reduced over {axis} by "
                                     f"{verb}; the program says {want}", hops[-1].line, edits, (name,))
        if self.m == 1:
            return
        messages: dict[str, set[int]] = {}
        for term in chain.terms:
            for hop in _reducing(term):
                for axis in hop.axes:
                    messages.setdefault(axis, set()).add(hop.message)
        for event, each in [*((e, True) for e in route.early), *((e, False) for e in route.late)]:
            for axis in event.axes:
                if axis in messages and (len(messages[axis]) >= self.m) != each and (
                        len(messages[axis]) in (1, self.m) or len(messages[axis]) > self.m):
                    often = "every microbatch" if not each else "once per step"
                    self.tally.legal.setdefault(
                        f"reduction over {axis}, {often}", f"gradients are reduced over {axis} {often}, "
                        f"where the program says {'every microbatch' if each else 'once per step'}: a sum of sums")

    def _times(self, event: Event, microbatch: int) -> int:
        """How often an event happens to what a microbatch gives: what acts on the sum meets all that was added before.

        Sums that a microbatch's backward reduces were those of the microbatches before it, too.
        """
        if event.phase not in LOOPED or not 0 <= microbatch < self.m:
            return 1
        after = range(microbatch, self.m) if event.value == "grad_sum" else (microbatch,)
        return sum(takes_part(event.at, self.where[k]) for k in after)

    def _again(self, chain: Chain, route: Route) -> tuple[Table, ...]:
        """The edits by which every microbatch reduces what is accumulated so far, if that is what a chain shows."""
        found: list[Table] = []
        if self.m == 1 or route.accumulate is None:
            return ()
        for event in route.late:
            often = {a: {(t.microbatch, sum(a in h.axes for h in _reducing(t))) for t in chain.terms
                         if t.begin == BACKWARD} for a in event.axes}
            again = [a for a in event.axes if often[a] == {(k, self.m - k) for k in range(self.m)}]
            rest = [a for a in event.axes if a not in again]
            if again and not rest:
                found.append({"move": event.path, "after": route.accumulate.path, "to": "I"})
            elif again:
                path = f"{route.accumulate.path.removesuffix('accumulate')}reduce[{','.join(again)}]"
                found += [{"set": event.path, "axes": rest},
                          {"insert": {"path": path, "op": "sum", "to": "I"}, "after": route.accumulate.path}]
        return tuple(found)

    def _axes_edits(self, route: Route, missing: list[str], extra: list[str], ratio: float) -> tuple[Table, ...]:
        """Edits that drop axes, or reduce over them once more: as a mean where tokens count a size less for it."""
        found: list[Table] = []
        for event in route.reductions:
            kept = [a for a in event.axes if a not in missing]
            if len(kept) < len(event.axes):
                found.append({"set": event.path, "axes": kept} if kept else {"drop": event.path})
                if not kept and event.to == "S":
                    return ()
        for axis in dict.fromkeys(extra):
            path = f"reduce.{route.group.name}.grad_sum.reduce[{axis}]"
            mean = not missing and abs(ratio * self.sizes.get(axis, 1) - 1) < CLOSE
            found.append({"insert": {"path": path, "op": "mean" if mean else "sum", "to": "I"}, "after": self._last()})
        return tuple(found)

    def _last(self) -> str:
        """The event after which something that is inserted into the phase `reduce` stands."""
        return [e.path for e in self.step.events if e.phase in ("backward", "reduce")][-1]

    def weights(self, chain: Chain, route: Route) -> Iterator[Difference]:
        """How often every token counts."""
        name, group = chain.parameter, route.group.name
        for term in chain.terms:
            if term.begin != BACKWARD or not 0 <= term.microbatch < len(self.rank.seeds):
                continue
            ratio = self._ratio(term, route)
            if abs(ratio - 1) > CLOSE:
                word = self._word(ratio)
                edits = self._scale_edits(route, ratio, self.rank.seeds[term.microbatch])
                yield Difference("scale", group, f"{name}: every token counts {word} times what the program says",
                                 next((h.line for h in reversed(term.hops)), ""), edits, (name,), ratio)
                return

    def _ratio(self, term: Term, route: Route) -> float:
        """How often a term's tokens count, as a multiple of the program's, sums over ranks left out."""
        if not 0 <= term.microbatch < len(self.rank.seeds):
            return 1.0
        seed = self.rank.seeds[term.microbatch]
        got = term.factor * prod(1 / self._size(h.axes) for h in _reducing(term) if h.op == "mean")
        got *= prod(h.factor for h in term.hops if h.verb == "scale" and not _clip(h))
        got *= -1.0 if any(h.verb == "scale" and _clip(h) and h.factor < 0 for h in term.hops) else 1.0
        if seed.factor is not None:
            got *= seed.factor * seed.tokens * self._sign
        return got / self._wanted(route, seed)

    def _wanted(self, route: Route, seed: Seed) -> float:
        """The product of the program's means and divisors, as a multiple of the mean over the rank's own tokens."""
        events = self.step.events
        found = 1.0
        for event in (*route.reductions, *route.scales):
            found /= self._size(event.axes) ** self._times(event, seed.microbatch) if event.op == "mean" else 1.0
            found /= float(event.divisor.evaluate(self.counts))
        if seed.factor is None:
            return found
        for event in events:
            if event.value == "loss" and event.verb == "scale" and not event.group:
                if any(name in COUNTS_OF_SAMPLES for name in event.divisor.names()):
                    raise InputError(f"{event.path} divides by samples, and a run does not tell how many its rows have")
                found /= float(event.divisor.evaluate(self.counts))
            if event.value == "loss" and event.verb == "compute" and event.phase == "forward":
                said = str(event.divisor)
                counted = next((e.axes for e in events if e.value == "count" and e.verb == "all_reduce"
                                and e.unit == event.unit), ())
                found *= {"tokens": 1.0, "1": float(seed.tokens)}.get(said) or self._share(seed, counted)
        return found

    def _share(self, seed: Seed, counted: Sequence[str]) -> float:
        """A microbatch's tokens as a part of those that a loss counts, over microbatches too if it does."""
        over = [r for r in self.seen.ranks if all(k == self.rank.coordinates.get(a) for a, k in r.coordinates.items()
                                                  if a not in counted)]
        every = [s for r in over for s in r.seeds if s.microbatch == seed.microbatch or self._counted_microbatches()]
        if len(over) == self._size(counted) and all(s.factor is not None and s.tokens for s in every):
            return seed.tokens / sum(s.tokens for s in every)
        return 1.0 / (self._size(counted) * (self.m if self._counted_microbatches() else 1))

    def _counted_microbatches(self) -> bool:
        return any(e.value == "count" and e.phase == "prepare" for e in self.step.events)

    def _size(self, axes: Sequence[str]) -> int:
        return prod(self.sizes.get(a, 1) for a in axes)

    def _word(self, ratio: float) -> str:
        """A ratio as a size, or one over it, where it is one; as all of them where several are equal."""
        over = [name for name, value in self.values.items() if value > 1 and abs(ratio - value) < CLOSE * value]
        under = [f"1/{name}" for name, value in self.values.items() if value > 1 and abs(ratio * value - 1) < CLOSE]
        return " = ".join([*over, *under]) or f"{ratio:.4g}"

    def _scale_edits(self, route: Route, ratio: float, seed: Seed) -> tuple[Table, ...]:
        """The edits that make the program count so: of its loss, if that alone explains it, else of a reduction."""
        if self.m > 1 and seed.factor is not None:
            scale = next((e for e in self.step.events if e.value == "loss" and e.verb == "scale"), None)
            if scale and abs(ratio - self.m) < CLOSE * self.m and abs(abs(seed.factor) * seed.tokens - 1) < CLOSE:
                return ({"drop": scale.path},)
        for event in route.reductions:
            size = self._size(event.axes)
            if size > 1 and event.op == "mean" and abs(ratio - size) < CLOSE * size:
                return ({"set": event.path, "op": "sum"},)
            if size > 1 and event.op == "sum" and abs(ratio * size - 1) < CLOSE:
                return ({"set": event.path, "op": "mean"},)
        if not ratio:
            return ()
        word = self._word(1 / ratio).partition(" = ")[0]
        if word.replace("1/", "") not in self.values:
            return ()
        path = f"reduce.{route.group.name}.grad_sum.scale"
        return ({"insert": {"path": path, "divisor": word}, "after": self._last()},)

    def clips(self, chain: Chain, route: Route) -> Iterator[Difference]:
        """Whether gradients are clipped, by which norm."""
        name, group = chain.parameter, route.group.name
        scales = {h for t in chain.terms for h in t.hops if h.verb == "scale" and _clip(h)}
        if not scales:
            if route.clip and chain.terms:
                yield Difference("clip", group, f"{name}: its gradient is not clipped; the program clips it by the "
                                 "global norm", "", ({"drop": route.clip.path},), (name,))
            return
        hop = next(iter(scales))
        times = {sum(1 for h in t.hops if h.verb == "scale" and _clip(h)) for t in chain.terms}
        if times != {1}:
            how = "only a part of its gradient is clipped" if 0 in times else "its gradient is clipped more than once"
            yield Difference("clip", group, f"{name}: {how}", hop.line, (), (name,))
            return
        late = [h for t in chain.terms for k, h in enumerate(t.hops) if h.verb != "scale"
                and any(_clip(before) for before in t.hops[:k] if before.verb == "scale")]
        if late and route.clip is not None and not route.clipped:
            moves = tuple({"move": e.path, "after": route.clip.path} for e in route.late)
            yield Difference("order", group, f"{name}: its gradient is clipped before it is reduced over "
                             f"{listed(late[0].axes)}; the program clips what is reduced", late[0].line, moves,
                             (name,))
            return
        if len({h.factor for h in scales}) > 1 or any(h.message not in self.scalars for h in scales):
            yield Difference("clip", group, f"{name}: its gradient is multiplied by a tensor that is not the clip "
                             "factor of the others", hop.line, (), (name,))
            return
        if route.clip is None:
            yield Difference("clip", group, f"{name}: its gradient is clipped; the program does not clip", hop.line, (),
                             (name,))
            return
        if route.norm is None:
            if hop.norm:
                yield Difference("norm", group, f"{name}: the norm by which it is clipped counts it; the program "
                                 "leaves it out", hop.line, (), (name,))
            return
        whole = {a for a in self.sizes if all(any(h.verb == "all_reduce" and a in h.axes for h in t.hops)
                                              for t in chain.terms)}  # every rank has all of it, whoever updates it
        owned = tuple(sorted(c.axis for c in route.norm.where if c.rank is None and self.sizes[c.axis] > 1
                             and c.axis not in whole))
        first = all(self.rank.coordinates.get(c.axis, 0) == c.rank for c in route.norm.where if c.rank is not None)
        got = tuple(sorted({a for _, axes in hop.norm for a in axes}))
        inside = bool(hop.norm)
        program = tuple(sorted(self.norm))
        if inside == first and abs(hop.share - 1) < CLOSE and (
                got == program if inside else self.summed == set(program)):
            return
        twice = sorted(a for a in got if a not in owned)
        if inside and set(owned) <= set(got) and hop.share != 1 and abs(hop.share * self._size(twice) - 1) < CLOSE:
            self.tally.legal.setdefault("norm in parts", "of a gradient that replicas hold, each counts its part of "
                                        "the square, where the program counts replicas once")
            return
        replicas = (set(got) if inside else self.summed) - set(owned)
        rank0 = all(self.rank.coordinates.get(a, 0) == 0 for a in replicas)
        alone = inside and rank0 and hop.share == 1 and len({axes for _, axes in hop.norm}) == 1
        if (alone and set(owned) <= set(got)) or (not inside and not rank0):
            if set(got) != set(program) or inside != first:
                self.tally.legal.setdefault("norm of replicas", "each gradient's norm is summed over the axes that "
                                            "shard it, and over others counted on their first rank alone, where the "
                                            "program sums over all and counts replicas once")
            return
        if not inside:
            yield Difference("norm", group, f"{name}: the norm by which it is clipped leaves it out", hop.line,
                             ({"drop": route.norm.path},), (name,))
            return
        over = f"summed over {listed(got)}" if got else "the rank's own"
        reduce = next((e for e in self.step.events if e.value == "norm" and e.verb == "all_reduce"), None)
        kept = [a for a in self.norm if a in got]
        edits: tuple[Table, ...] = ()
        if reduce is not None and set(got) <= set(self.norm) and not twice:
            edits = ({"set": reduce.path, "axes": kept} if kept else {"drop": reduce.path},)
        elif twice:
            where = ", ".join(f"owner({a})" for a in owned) or "all"
            edits = ({"set": route.norm.path, "where": where},)
        yield Difference("norm", group, f"{name}: the norm by which it is clipped is {over}; the program sums it over "
                         f"{listed(self.norm)}" + (", counting replicas once" if twice else ""), hop.line, edits,
                         (name,))


def _reducing(term: Term) -> list[Hop]:
    return [h for h in term.hops if h.verb != "scale"]


def _clip(hop: Hop) -> bool:
    """Whether a factor depends on the gradients themselves, and on no count."""
    return bool(hop.norm) or not hop.counts
