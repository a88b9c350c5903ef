"""A recording held against the derived program: what is matched, the first difference, and all of them as edits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placealg.errors import InputError
from placealg.models.model import Model
from placealg.step.program import Step
from placealg.watch.differences import Difference, Tally, Unseen, merged
from placealg.watch.expected import Route, routes_of
from placealg.watch.messages import other_messages
from placealg.watch.names import Named, names_of
from placealg.watch.paths import Paths
from placealg.watch.rest import resting, split_over
from placealg.watch.seen import FOREIGN, TERM, UNFOLLOWED, RankSeen, Seen
from placealg.watch.stages import stage_axes, stage_of, with_seeds
from placealg.watch.wires import Wires


@dataclass(frozen=True)
class Comparison:
    """A recording beside a program."""

    step: Step
    seen: Seen
    differences: tuple[Difference, ...]
    unseen: tuple[Unseen, ...]
    tally: Tally
    loss_seen: bool

    @property
    def matched(self) -> bool:
        """Whether nothing differs, and everything was seen."""
        return not self.differences and not self.unseen


def compare(step: Step, model: Model, seen: Seen, said: Mapping[str, str] | None = None,
            types: Mapping[str, str] | None = None) -> Comparison:
    """Hold every rank of a recording against a program; `said` names parameters that no table knows.

    `types` are the bytes per element that the strategy says; those that it leaves open are not compared.
    """
    axes = step.reference.mesh.names
    if set(axes) - set(seen.mesh) or {a for a, n in seen.mesh.items() if n > 1} - set(axes):
        raise InputError(f"the run's mesh has the axes {', '.join(seen.mesh) or 'none'}, the strategy's "
                         f"{', '.join(axes)}: they must be called the same")
    names = names_of(dict.fromkeys(c.parameter for r in seen.ranks for c in r.chains), model, said)
    layers = _layers(names, seen, model)
    pipeline = step.reference.pipeline
    if pipeline.axis:
        seen = stage_axes(with_seeds(step, seen), pipeline.axis, names)
    routes = routes_of(step)
    group_of = {p: g for g in step.reference.groups for p in g.parameters}
    tally = Tally()
    raw: list[tuple[int, Difference]] = []
    unseen: list[tuple[int, Unseen]] = []
    wires = Wires(step, seen, types or {})
    for rank in seen.ranks:
        loose = [what for what in (FOREIGN, UNFOLLOWED) if what in rank.unseen]
        if loose:  # what its parameters and messages are is not known either
            unseen.append((rank.rank, Unseen("", loose[0])))
            continue
        stage = stage_of(step, seen, rank, names)
        paths = Paths(step, seen, rank, names, tally)
        bare = [c.parameter for c in rank.chains if not c.elements]
        if bare and not seen.settled:  # of more ranks than rows: what moves nothing leaves no trace of what it is
            unseen += [(rank.rank, Unseen(name, "what a rank does that holds none of its elements")) for name in bare]
            continue
        paths.some_right = any(paths.counts_right(c, routes[group_of[names[c.parameter].parameter].name])
                               for c in rank.chains)
        for chain in (c for c in rank.chains if c.elements):
            group = group_of[names[chain.parameter].parameter]
            found, lost = paths.compare(chain, routes[group.name])
            raw += [(rank.rank, d) for d in (*found, *wires.of_chain(rank, chain, routes[group.name]))]
            unseen += [(rank.rank, u) for u in lost]
            tally.of_paths += 1
            tally.paths += not found and not lost
        if not pipeline.axis:
            raw += [(rank.rank, d) for d in _absent((rank,), names, model, routes, group_of, layers)]
        raw += [(rank.rank, d) for d in other_messages(step, seen, rank, names, layers, routes, group_of, tally, stage,
                                                       wires)]
        raw += [(rank.rank, d) for d in wires.of_gathers(rank, names, routes, group_of)]
        raw += [(rank.rank, d) for d in resting(step, seen, rank, names, model, group_of)]
        unseen += [(rank.rank, Unseen("", what)) for what in rank.unseen if "::" in what
                   and not (what.startswith(TERM) and any(e.value.endswith(("balance_loss", "z_loss"))
                                                          for e in step.events))]
    weighted = [s for rank in seen.ranks for s in rank.seeds if s.most - s.least > 1e-4]
    if weighted and not seen.settled:
        unseen.append((-1, Unseen("", "numbers by which the loss multiplies tokens: they count "
                                  f"{min(s.least for s in weighted):.4g} to {max(s.most for s in weighted):.4g} times "
                                  "their mean")))
    if pipeline.axis:
        places: dict[tuple[int, ...], list[RankSeen]] = {}
        for rank in seen.ranks:
            places.setdefault(tuple(k for a, k in rank.coordinates.items() if a != pipeline.axis), []).append(rank)
        for stages in places.values():
            if len(stages) < seen.mesh[pipeline.axis]:
                unseen.append((stages[0].rank, Unseen("", "the stages that were not recorded")))
            else:
                raw += [(-1, d) for d in _absent(stages, names, model, routes, group_of, layers)]
    drawn = dict.fromkeys(op for rank in seen.ranks for op in rank.random)
    if drawn:
        tally.not_compared.append(f"random numbers, which {', '.join(drawn)} draws: which ranks draw the same ones")
    raw += [(-1, d) for d in wires.at_rest()]
    raw += [(-1, d) for d in counts(step, seen)]
    rates(seen, tally)
    raw = _one_number(raw, step, seen, tally, unseen)
    if not seen.settled:
        wrong = {d.group for _, d in raw if d.kind != "clip"}  # replicas of these differ because of what a step did
        raw += [(-1, d) for d in _starts(step, seen, names, routes, group_of) if d.group not in wrong]
    loss = all(s.factor is not None for r in seen.ranks for s in r.seeds)
    if not loss and not seen.settled:
        unseen.append((-1, Unseen("", "by what the loss multiplies tokens")))
    return Comparison(step, seen, merged(raw), tuple(_merged_unseen(unseen)), tally, loss)


def _one_number(raw: list[tuple[int, Difference]], step: Step, seen: Seen, tally: Tally,
                unseen: list[tuple[int, Unseen]]) -> list[tuple[int, Difference]]:
    """The differences without those that say that all gradients are multiplied by one number of no known origin.

    A norm that is turned into a number of Python leaves no trace: a program that clips may do so. A single device tells
    whether it did; without one that is not seen.
    """
    scaled = [d.factor for _, d in raw if d.kind == "scale" and d.factor is not None]
    alike = {f"{f:.6g}" for f in scaled}
    trained = sum(1 for r in seen.ranks for c in r.chains if c.terms)
    sizes = {1.0 * n ** k for n in (*seen.mesh.values(), max(seen.microbatches, 1)) for k in (1, -1)}
    clips = [d for _, d in raw if d.kind == "clip" and not d.line and any(e.get("drop") for e in d.edits)]
    if len(alike) != 1 or len(scaled) != trained or scaled[0] <= 0 or len(clips) != trained or any(
            abs(scaled[0] / n - 1) < 1e-3 for n in sizes) or not any(e.verb == "clip" for e in step.events):
        return raw
    if not seen.settled:
        unseen.append((-1, Unseen("", f"the number {float(alike.pop()):.4g}, by which all gradients are multiplied")))
    else:
        tally.paths += trained
        tally.legal["number"] = (f"all gradients are multiplied by a number, {float(alike.pop()):.4g}, which is the "
                                 "single device's clip factor")
    return [(rank, d) for rank, d in raw if d.kind != "scale" and d not in clips]


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


def rates(seen: Seen, tally: Tally) -> None:
    """Say by which numbers each parameter is updated, where these are not one for all: a strategy says none."""
    every: dict[str, list[str]] = {}
    for chain in seen.ranks[0].chains:
        every.setdefault(chain.settings, []).append(chain.parameter)
    if len(every) > 1:
        shared = set.intersection(*(set(s.split("; ")) for s in every))
        said = "; ".join(f"{', '.join(v for v in s.split('; ') if v not in shared) or 'less'} for {len(of)} of them, "
                         f"{of[0]} first" for s, of in every.items())
        tally.not_compared.append(f"by which numbers each parameter is updated: they differ ({said}), and a strategy "
                                  "says none")


def _layers(names: Mapping[str, Named], seen: Seen, model: Model) -> dict[str, int]:
    """Unit -> how many instances of it the run has; every one must have every parameter."""
    found: dict[str, set[int]] = {}
    have: dict[tuple[str, int], set[str]] = {}
    for named in names.values():
        found.setdefault(named.unit, set()).add(named.instance)
        have.setdefault((named.unit, named.instance), set()).add(named.parameter)
    for unit, instances in found.items():
        if instances != set(range(len(instances))):
            raise InputError(f"the run has the instances {sorted(instances)} of {unit}: some are missing")
    return {unit: len(instances) for unit, instances in found.items()}


def _absent(ranks: Sequence[RankSeen], names: Mapping[str, Named], model: Model, routes: Mapping[str, Route],
            group_of: Mapping[str, Any], layers: Mapping[str, int]) -> Iterator[Difference]:
    """Parameters of the model that do not train on some ranks, which are one rank or all stages of a pipeline."""
    have = {(p, named.instance) for rank in ranks for c in rank.chains for named in (names[c.parameter],)
            for p in (named.parameter, *named.also)}
    for parameter in model.parameters:
        group = group_of.get(parameter.name)
        if group is None or group.frozen or routes[group.name].update is None:
            continue
        gone = [k for k in range(layers.get(parameter.unit, 1)) if (parameter.name, k) not in have]
        if gone:
            route = routes[group.name]
            which = f" of {parameter.unit} {', '.join(map(str, gone))}" if layers.get(parameter.unit, 1) > 1 else ""
            edits = ({"drop": route.update.path},) if route.update and len(group.parameters) == 1 else ()
            yield Difference("untrained", group.name, f"{parameter.name}{which} does not train in the run", "", edits,
                             (parameter.name,))


def _starts(step: Step, seen: Seen, names: Mapping[str, Named], routes: Mapping[str, Route],
            group_of: Mapping[str, Any]) -> Iterator[Difference]:
    """Replicas that are not equal when the step starts, of each place in every parameter of every layer."""
    if seen.backend == "fake":
        return
    alike: dict[tuple[str, int], dict[str, None]] = {}
    for name, named in names.items():
        alike.setdefault((named.parameter, named.instance), {})[name] = None
    for (parameter, _), every in alike.items():
        group, name = group_of[parameter], next(iter(every))
        found: dict[tuple[int, ...], set[tuple[str, int]]] = {}
        for rank, chain in ((r, c) for r in seen.ranks for c in r.chains if c.parameter in every):
            shards = set(chain.shard) | split_over(step, group)
            place = tuple(rank.coordinates.get(a, 0) for a in seen.mesh if a in shards)
            found.setdefault(place, set()).add((chain.start, chain.elements))
        event = routes[group.name].broadcast
        if event is not None and any(len(replicas) > 1 for replicas in found.values()):
            yield Difference("replicas differ", group.name, f"{name}: its replicas differ when the step starts; the "
                             "program starts from equal ones", "", ({"drop": event.path},), (name,))


def _merged_unseen(raw: Sequence[tuple[int, Unseen]]) -> Iterator[Unseen]:
    found: dict[tuple[str, str], list[int]] = {}
    for rank, u in raw:
        found.setdefault((u.parameter, u.what), []).append(rank)
    for (parameter, what), ranks in found.items():
        yield Unseen(parameter, what, tuple(sorted(set(ranks))))
