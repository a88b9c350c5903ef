"""Measured weights held against the program: every token counts once, but for the factor by which all is clipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from placealg.step.program import Step
from placealg.watch.differences import Difference, merged
from placealg.watch.names import Named
from placealg.watch.seen import CLIPPED, SECOND, Probe, Seen, Weight

CLOSE = 1e-6
"""Distance from what is expected, relative to it, below which a weight is what is expected, and a rest is none."""


EPSILON = 2e-6
"""What frameworks add to a norm before they divide by it, at most, twice over."""


@dataclass(frozen=True)
class Measured:
    """What was measured: how many gradients of how many in each probe, how far the weights are from what is expected.

    `clip` is the norm to which everything is clipped; 0 if nothing is. `skipped` counts why gradients were not
    measured. `mean` is the mean weight of each group in the first probe, `spread` its least and its most.
    """

    known: int = 0
    of: int = 0
    probes: int = 0
    off: float = 0.0
    clip: float = 0.0
    differences: tuple[Difference, ...] = ()
    skipped: tuple[tuple[str, int], ...] = ()
    mean: tuple[tuple[str, float], ...] = ()
    spread: tuple[tuple[str, tuple[float, float]], ...] = ()

    @property
    def good(self) -> bool:
        """Whether something was measured, and all of it is what is expected."""
        return self.known > 0 and not self.differences


def measured(step: Step, seen: Seen, names: Mapping[str, Named], group_of: Mapping[str, Any]) -> Measured:
    """Hold the probes of every rank against a program that clips or does not."""
    probes = [(r.rank, p) for r in seen.ranks for p in r.probes]
    if not probes:
        return Measured()
    clips = any(e.verb == "clip" for e in step.events)
    groups = {n: group_of[named.parameter].name for n, named in names.items() if named.parameter in group_of}
    weights = [(rank, p, w) for rank, p in probes for w in p.weights if w.cells and w.parameter in groups]
    first = probes[0][1].name
    raw: list[tuple[int, Difference]] = []
    norm = _clip(clips, [p for _, p in probes], raw)
    off = 0.0
    told: dict[tuple[str, str], Difference] = {}
    for rank, probe, weight in weights:
        want = _wanted(probe, norm)
        off = max(off, abs(weight.least / want - 1), abs(weight.most / want - 1), weight.rest)
        found = _difference(probe, weight, want, groups[weight.parameter])
        if found is not None:  # of a group once, as it showed first
            first_told = told.setdefault((found.group, found.kind), found)
            raw.append((rank, replace(first_told, parameters=found.parameters)))
    for rank, probe in probes:
        for name in probe.apart:
            if name in groups:
                found = _apart(probe, name, groups[name])
                raw.append((rank, replace(told.setdefault((found.group, found.kind), found), parameters=(name,))))
    means: dict[str, list[Weight]] = {}
    for _, probe, weight in weights:
        if probe.name == first:
            means.setdefault(groups[weight.parameter], []).append(weight)
    notes = Counter(w.note for _, p in probes if p.name == first for w in p.weights if w.note)
    return Measured(sum(1 for _, p, _ in weights if p.name == first),
                    sum(len(p.weights) for _, p in probes if p.name == first), len({p.name for _, p in probes}), off,
                    norm, merged(raw), tuple(notes.items()),
                    tuple((g, sum(w.mean for w in ws) / len(ws)) for g, ws in means.items()),
                    tuple((g, (min(w.least for w in ws), max(w.most for w in ws))) for g, ws in means.items()))


def _clip(clips: bool, probes: list[Probe], raw: list[tuple[int, Difference]]) -> float:
    """The norm to which the run clips: the reference's, else what its weights say; 0 for a program without clipping."""
    if not clips:
        return 0.0
    told = [(w.mean, p) for p in probes if p.name == CLIPPED for w in p.weights if w.cells]
    if not told:
        return 0.0
    said = next((p.clip for _, p in told if p.clip), 0.0)
    found = median(mean * p.norm for mean, p in told)
    if all(abs(mean - 1) <= CLOSE for mean, _ in told):
        raw.append((-1, Difference("weights", "", f"gradients with a norm of {told[0][1].norm:.3g} are not clipped; "
                                   "the program clips them by the global norm")))
        return 0.0
    return said or float(found)


def _wanted(probe: Probe, norm: float) -> float:
    """The weight of every token in a probe: 1, or what clipping to a norm leaves of it."""
    return min(1.0, norm / probe.norm) if norm and probe.norm else 1.0


def _difference(probe: Probe, weight: Weight, want: float, group: str) -> Difference | None:
    least, most = weight.least / want, weight.most / want
    if weight.rest > CLOSE:
        return Difference("weights", group, f"{weight.parameter}: what the optimizer reads is no sum of what tokens "
                          f"give on the single device{_when(probe)}: {weight.rest:.2g} of it is left", "", (),
                          (weight.parameter,))
    if max(abs(least - 1), abs(most - 1)) <= CLOSE + (EPSILON / probe.norm if want < 1 else 0.0):
        return None
    if abs(most - least) <= CLOSE * max(abs(most), 1.0):
        says = f"{weight.parameter}: measured, every token counts {number(least)} times{_when(probe)}"
    else:
        says = (f"{weight.parameter}: measured, tokens count {number(least)} ({weight.low}) to {number(most)} "
                f"({weight.high}) times, {number(weight.mean / want)} on average{_when(probe)}")
    return Difference("weights", group, says, "", (), (weight.parameter,), weight.mean / want)


def _apart(probe: Probe, name: str, group: str) -> Difference:
    return Difference("replicas differ", group, f"{name}: measured, its replicas differ before the step"
                      f"{_when(probe)}", "", (), (name,))


def _when(probe: Probe) -> str:
    return {CLIPPED: ", where everything is clipped", SECOND: ", in the step after"}.get(probe.name, "")


def number(value: float) -> str:
    """A weight in few digits.

    >>> number(0.49999999999), number(1.3333333), number(-2e-15)
    ('0.5', '1.333', '0')
    """
    return f"{round(value, 9):.4g}".replace("-0", "0") if abs(value) < 1e-9 else f"{round(value, 9):.4g}"


def outline(found: Measured) -> Iterator[str]:
    """What was measured, in a few words each."""
    if not found.known:
        yield "not measured"
        return
    if found.differences:
        low = min((s[0] for _, s in found.spread), default=1.0)
        high = max((s[1] for _, s in found.spread), default=1.0)
        yield number(low) if number(low) == number(high) else f"{number(low)} to {number(high)}"
    else:
        yield f"1 to {found.off:.0e}"
    yield f"{found.known} of {found.of}, {found.probes} probe{'s' if found.probes > 1 else ''}"
