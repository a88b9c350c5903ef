"""A search from end to end: strategies, from the cache or derived, are evaluated one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from heapq import heapify, heappop, heappush, nsmallest
from itertools import islice
from pathlib import Path
from typing import Any

from placealg.configurations.evaluate import Evaluated, asked, evaluate
from placealg.configurations.found import Found
from placealg.configurations.programs import Cache, Programs, compiled, outlined, staged
from placealg.configurations.pruning import Pruned, Work, relaxed
from placealg.configurations.question import Question
from placealg.configurations.stages import Kind, kinds, most_first
from placealg.errors import InputError
from placealg.progress import each, say
from placealg.strategy.expression import parse_strategy


def search(question: Question, folder: Path | None = None, executor: Any = None,
           interrupted: Callable[[], bool] = lambda: False, best_alone: bool = False,
           most: int | None = None) -> Found:
    """Search the space: `folder` is the cache's, `executor` derives what it lacks, `interrupted` says to stop.

    An `executor` has the `map` of concurrent.futures. For the `best_alone` strategies are left out whose layouts all
    are worse by a bound (`pruning`), where there is a cache the executor derives the next ones ahead, and where nothing
    fits all are searched. At `most` so many are evaluated, of which the first are those that work least for the
    `best_alone`; the rest is told as not searched.

    >>> import placealg.configurations.space as space
    >>> from fractions import Fraction
    >>> from placealg.cost.machines import machine
    >>> from placealg.frozen import FrozenMap
    >>> from placealg.models.config import resolve_model
    >>> from placealg.configurations.layouts import Devices
    >>> parts = space.Space("small", FrozenMap({"data": ("", "zero1", "zero3"), "tp": ("", "tp_sp")}))
    >>> found = search(Question(resolve_model("gpt2"), Devices(8, 8, 32), machine("h100"), Fraction(8 * 10**9), parts,
    ...                         FrozenMap({"s": Fraction(1024)})))
    >>> found.counts.layouts, found.counts.fit, found.best.text
    (24, 24, 'zero1 dp=8 b=1 m=4')
    """
    wanted = strategies(question)
    if best_alone:
        found = _pruned(question, wanted, Cache(folder, question.model), executor, interrupted, most)
        if found.counts.fit or not found.complete:
            return found
    every: list[Evaluated] = []
    refused: dict[str, str] = {}
    best = float("inf")
    for k, programs in enumerate(_programs(wanted[:most], question, Cache(folder, question.model), executor), 1):
        if interrupted():
            break
        if programs.refused:
            refused[programs.expression] = programs.refused
            continue
        every.append(evaluate(programs, question))
        if every[-1].near:
            best = min(best, float(every[-1].near[1][1].min()))
        say(f"{k} of {len(wanted)} strategies" + (f", the best so far {best:.4g}" if best < float("inf") else ""))
    return Found(question, every, refused, len(wanted))


EARLY = 16
"""Once so many strategies are bounded by their states, and not left out, the best of them is evaluated."""

AHEAD = 8
"""How many strategies an executor derives ahead: what it finds of those that are left out then is not used."""


def _pruned(question: Question, wanted: list[str], cache: Cache, executor: Any, interrupted: Callable[[], bool],
            most: int | None) -> Found:
    """The best of strategies: the one with the least bound is next, and derived as far as its bound leaves it a chance.

    Whenever some more are bounded by their states, the one of them with the least bound is evaluated: the sooner the
    best is good, the less of the others has to be derived.
    """
    work = Work.of(question)
    bounds = {e: work.least(e) for e in each(wanted, str)}
    every, refused, pruned, best = list[Evaluated](), dict[str, str](), dict[str, Pruned](), float("inf")
    known = {e: bound for e, (_, bound) in bounds.items() if bound is not None}
    waiting = [(known[e].least if e in known else 0.0, k, e) for k, e in enumerate(wanted)]
    heapify(waiting)
    derived, begun, bounded = set[str](), set[tuple[str, bool]](), 0
    while waiting and not interrupted():
        if executor is not None and cache.folder and (waiting[0][2], waiting[0][2] in derived) not in begun:
            ahead = {(e, e in derived): least for least, _, e in nsmallest(AHEAD, waiting) if least <= best}
            new = [key for key in ahead if key not in begun]
            each_of = [(e, whole, question, cache.folder, best, bounds[e][0]) for e, whole in new]
            list(executor.map(_made_ahead, each_of, chunksize=1))
            begun.update(new)
        least, k, expression = _next(waiting, derived if bounded == EARLY else set())
        bounded %= EARLY
        if least > best:
            pruned[expression] = known[expression]
            continue
        if expression not in derived and len(derived) == most:
            continue
        known_by_states = len(derived) - len(every) - len(derived & (pruned.keys() | refused.keys()))
        say(f"{len(every)} of {len(wanted)} strategies evaluated, {len(pruned)} left out, {known_by_states} bounded by "
            "their states"
            + (f", the best so far {best:.4g}, the least bound {least:.4g}" if best < float("inf") else ""))
        outline, _ = bounds[expression]
        kept = cache.read(expression)
        if expression not in derived and not outline.refused and (kept is None or _lacking(kept, question)):
            derived.add(expression)
            lower = _by_states(outline, question, cache, best)
            if isinstance(lower, str):
                refused[expression] = lower
                continue
            if lower.layouts and lower.least > least:
                bound = known.get(expression, lower)
                known[expression] = replace(lower, seconds=max(lower.seconds, bound.seconds))
                heappush(waiting, (lower.least, k, expression))
                bounded += lower.least < float("inf") and lower.least <= best
                continue
        derived.add(expression)
        programs = programs_for(expression, question, cache)
        if programs.refused:
            refused[expression] = programs.refused
            continue
        every.append(evaluate(programs, question))
        if every[-1].near:
            best = min(best, float(every[-1].near[1][1].min()))
    return Found(question, every, refused, len(wanted), pruned)


def _next(waiting: list[tuple[float, int, str]], of: set[str]) -> tuple[float, int, str]:
    """Take the strategy with the least bound out of a heap: one of some, if any of them is there."""
    found = min((w for w in waiting if w[2] in of), default=None)
    if found is None:
        return heappop(waiting)
    waiting.remove(found)
    heapify(waiting)
    return found


def _made_ahead(asked_of: tuple[str, bool, Question, Path, float, Programs]) -> None:
    """Derive into the cache what a strategy takes next: all of its programs if `whole`, else those of a bound."""
    expression, whole, question, folder, best, outline = asked_of
    cache = Cache(folder, question.model)
    kept = cache.read(expression)
    if whole:
        programs_for(expression, question, cache)
    elif not outline.refused and (kept is None or _lacking(kept, question)):
        _by_states(outline, question, cache, best)


def _by_states(outline: Programs, question: Question, cache: Cache, best: float) -> Pruned | str:
    """A lower bound from states alone; it stops at the first kind of stage where that alone exceeds the incumbent.

    A step takes as long as any of its stages. The kind of stage that most layouts have is the first.
    """
    name = f"{outline.expression} by states"
    kept = cache.read(name)
    found = replace(kept or outline, expression=outline.expression)
    lacking = found.lacks(most_first(found.strategy, question.units, asked(found, question)))
    made = staged(found.strategy, question.model, lacking, peak=False)
    try:
        for part in (lacking[:1], lacking[1:]) if len(lacking) > 1 and best < float("inf") else (lacking,):
            found = replace(found, stages=(*found.stages, *islice(made, len(part))))
            if (lower := relaxed(evaluate(found, question, part=True))).least > best:
                break
    except InputError as error:
        found = replace(found, refused=str(error))
    if lacking:
        cache.write(replace(found, expression=name))
    return found.refused or lower


def strategies(question: Question) -> list[str]:
    """The strategies of the space that have what is fixed."""
    expressions = question.space.expressions()
    if not expressions:
        raise InputError(f"the space {question.space.name} has no strategy")
    return [e for e in expressions if _may(e, question)]


def _may(expression: str, question: Question) -> bool:
    """Whether a strategy has the axes that are fixed at more than one device, and none that is fixed at one."""
    if not question.space.fixed:
        return True
    names = parse_strategy(expression).mesh.names
    chunks = "v" if "interleaved" in expression else ""
    alone = question.devices.count == 1
    return all((n in names) == (size > 1 or alone) or (n == "v" and (bool(chunks) == (size > 1))) or n in ("b", "m")
               for n, size in question.space.fixed.items())


def programs_for(expression: str, question: Question, cache: Cache) -> Programs:
    """The programs of a strategy that its layouts take, from the cache or derived."""
    kept = cache.read(expression)
    found = kept or outlined(expression, question.model)
    lacking = _lacking(found, question)
    if lacking:
        made = compiled(expression, question.model, lacking)
        found = replace(made, stages=(*found.stages, *made.stages))
    if found is not kept:
        cache.write(found)
    return found


def _lacking(programs: Programs, question: Question) -> tuple[Kind, ...]:
    """The kinds of stages that layouts have and that have no program yet."""
    if programs.refused:
        return ()
    columns = asked(programs, question)
    return programs.lacks(kinds(programs.strategy, question.units, columns)) if len(columns["b"]) else ()


def _programs(expressions: list[str], question: Question, cache: Cache, executor: Any) -> Iterator[Programs]:
    """The programs of every strategy, in order."""
    if executor is None:
        yield from (programs_for(expression, question, cache) for expression in expressions)
        return
    kept = {e: cache.read(e) or outlined(e, question.model) for e in expressions}
    lacking = {e: found for e, one in kept.items() if (found := _lacking(one, question))}
    derived = executor.map(compiled, lacking, [question.model] * len(lacking), lacking.values(), chunksize=1)
    waiting = iter(derived)
    for expression, one in kept.items():
        if expression in lacking:
            made = next(waiting)
            cache.write(one := replace(made, stages=(*one.stages, *made.stages)))
        yield one
