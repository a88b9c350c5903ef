"""Where ranks and the single device part: the first value that it has not, and what the optimizer reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import prod

import numpy as np

from placealg.watch.lift.field import Array, Field
from placealg.watch.lift.judge import BEGAN, CONFORMS, Judgement
from placealg.watch.lift.ranks import Run
from placealg.watch.lift.trace import Group, Trace


def gradients(told: Judgement) -> Iterator[tuple[str, int, str]]:
    """(parameter, rank, how what the optimizer reads differs from what it reads on the single device)."""
    single, starts = told.single, told.starts
    assert single is not None and starts is not None
    for one in told.runs:
        for name, got in one.gradients.items():
            want = single.gradients.get(starts.label(name))
            where = starts.where(one.trace, name) if name in one.trace.named else None
            if where is None or (got is None and want is None):
                continue
            if got is None or want is None:
                yield name, one.rank, "the optimizer reads none" if got is None else "the single device reads none"
                continue
            if got.size != where.size:
                continue
            mine, other = got.ravel(), want.ravel()[where]
            if (mine == other).all():
                continue
            yield name, one.rank, f"the optimizer reads {_read(told, one, name, mine, other)}"


def _read(told: Judgement, one: Run, name: str, mine: Array, other: Array) -> str:
    """What a gradient is of the single device's: a multiple, a part that ranks have to add up, or another one."""
    assert told.starts is not None
    field = told.starts.field
    ratio = times(mine, other, field, told.sizes)
    if ratio:
        return f"{ratio} times the single device's gradient"
    groups = {tuple(r.rank for r in told.runs), *(g for r in told.runs for g in groups_of(r.trace) if one.rank in g)}
    for group in sorted(groups, key=len):
        parts = [r.gradients.get(name) for r in told.runs if r.rank in group]
        if len(parts) < 2 or any(p is None or p.size != mine.size for p in parts):
            continue
        made = np.zeros(mine.size, np.int64)
        for part in parts:
            assert part is not None
            made = field.add(made, part.ravel())
        ratio = "1" if (made == other).all() else times(made, other, field, told.sizes)
        if ratio:
            return (f"a part of the gradient: those of ranks {', '.join(map(str, group))} together are "
                    + ("the single device's" if ratio == "1" else f"{ratio} times the single device's"))
    return "another gradient"


def times(mine: Array, other: Array, field: Field, sizes: Sequence[int]) -> str:
    """The number by which one array is a multiple of another, among products and quotients of some sizes; or ""."""
    for q in sorted(coefficients(sizes), key=lambda q: (q < 0, q.numerator + q.denominator)):
        if (field.mul(other, np.array(field.fraction(q))) == mine).all():
            return str(q)
    return ""


def coefficients(sizes: Sequence[int]) -> set[Fraction]:
    """Products and quotients of sizes, of both signs."""
    each = {1, 2, *sizes, *(a * b for a in sizes for b in sizes), prod(sizes)}
    return {Fraction(a, b) * sign for a in each for b in each for sign in (1, -1)} - {Fraction(1)}


def first_foreign(told: Judgement, phases: Sequence[str] = ("forward", "backward")) -> tuple[str, str, int, str] | None:
    """(op, line, rank, phase) of the first value, in order, that is neither the single device's nor a part of it.

    A value is explained if each of its elements is one of the single device's, times one number, or if it is when
    ranks' values of the same op are added. Gradients of parameters are parts over microbatches, too, and left out.
    """
    single, starts = told.single, told.starts
    assert single is not None and starts is not None
    field = starts.field
    known = np.unique(np.concatenate([np.zeros(1, np.int64), *(v.array.ravel() for v in single.values),
                                      *(starts.start(k, h) for k, h in single.trace.named.items())]))
    by = [np.array(field.fraction(q)) for q in (Fraction(1), *sorted(
        coefficients(told.sizes), key=lambda q: (q < 0, q.numerator + q.denominator)))]
    shapes = {h.place.size for r in told.runs for h in r.trace.named.values()}
    groups = {group for r in told.runs for group in groups_of(r.trace)}
    for phase in phases:
        for one in told.runs:
            for k, value in enumerate(one.values):
                op = one.trace.ops[value.op]
                if op.phase != phase or not value.array.size or (value.array < 0).any() or (
                        phase == "backward" and value.array.size in shapes):
                    continue
                if not any(explained(z, known, by, field) for z in sums(told.runs, one, k, groups, field)):
                    return op.name, op.line, one.rank, phase
    return None


def explained(x: Array, known: Array, by: Sequence[Array], field: Field) -> bool:
    """Whether all elements, times one number, are among those known, which are in order."""
    def among(z: Array) -> bool:
        return bool((known[np.minimum(np.searchsorted(known, z), known.size - 1)] == z).all())

    flat = x.ravel()
    few = flat[:: max(flat.size // 8, 1)]
    return any(among(field.mul(few, number)) and among(field.mul(flat, number)) for number in by)


def sums(runs: Sequence[Run], one: Run, k: int, groups: set[tuple[int, ...]], field: Field) -> Iterator[Array]:
    """The k-th value of a rank, and its sums with those of the same op on the ranks of each of its groups."""
    value = one.values[k]
    yield value.array
    ranks = {r.rank: r for r in runs}
    for group in groups:
        if one.rank not in group or len(group) < 2:
            continue
        mates = [ranks[q] for q in group]
        if all(len(m.values) > k and m.values[k].array.shape == value.array.shape
               and m.trace.ops[m.values[k].op].name == one.trace.ops[value.op].name for m in mates):
            made = np.zeros(value.array.shape, np.int64)
            for mate in mates:
                made = field.add(made, mate.values[k].array)
            yield made


def groups_of(trace: Trace) -> set[tuple[int, ...]]:
    """The groups of ranks that a rank sends in."""
    return {v.ranks for op in trace.ops for v in op.given.values() if isinstance(v, Group)}


def summary(told: Judgement, again: Judgement | None) -> list[str]:
    """What differs, in sentences: where elements end, where a first value differs, what the optimizer reads."""
    found: list[str] = []
    by_what: dict[str, dict[str, set[int]]] = {}
    for finding in sorted(told.differs, key=lambda f: f.what.startswith(BEGAN)):
        by_what.setdefault(finding.what, {}).setdefault(finding.label, set()).add(finding.rank)
    for what, labels in by_what.items():
        ranks = sorted(set().union(*labels.values()) - {-1})
        on = f" on rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}" if ranks else ""
        found.append(f"{several([n for n in labels if n], ' tensors')}{what}{on}")
    if again is None:
        return found
    if again.verdict == CONFORMS:
        return [*found, "from equal numbers this step ends as the single device's: what differs began before it"]
    foreign = first_foreign(again)
    if foreign is not None:
        op, line, rank, phase = foreign
        found.append(f"the first value that the single device has not is of {op} in {phase}"
                     f"{f', {line}' if line else ''}, on rank {rank}")
    read: dict[str, list[str]] = {}
    for name, rank, how in gradients(again):
        read.setdefault(how, []).append(f"{name} on rank {rank}")
    found += [f"{several(names)}{how}" for how, names in read.items()]
    updated = any(not f.what.startswith(BEGAN) for f in told.differs)
    if updated and not read and not foreign and again.single is not None and again.single.gradients:
        found.append("gradients are the single device's as the optimizer reads them: the update is not"
                     + by_what_numbers(again.runs[0].trace, again.single.trace))
    return found


def by_what_numbers(trace: Trace, single: Trace) -> str:
    """The numbers that a rank's update is given and the single device's is not, such as rates; "" if there are none."""
    mine, own = (dict.fromkeys(abs(v) for op in one.ops if op.phase == "update" for given in op.given.values()
                               for v in (given if isinstance(given, tuple) else (given,)) if isinstance(v, float))
                 for one in (trace, single))
    here, there = ([f"{v:.6g}" for v in one if v not in other] for one, other in ((mine, own), (own, mine)))
    return (f", which is given {', '.join(here[:3])} in place of {', '.join(there[:3])}: a rate that goes with the "
            "number of ranks, say") if here and there else ""


def several(names: Sequence[str], kind: str = "") -> str:
    """What a sentence is of: its first name, and how many more there are; "" of none.

    >>> several(["a", "b", "c"], " tensors"), several(["a"]), several([])
    ('a and 2 more tensors: ', 'a: ', '')
    """
    return f"{names[0]}{f' and {len(names) - 1} more{kind}' if len(names) > 1 else ''}: " if names else ""
