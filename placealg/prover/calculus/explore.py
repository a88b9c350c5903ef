"""Every state that a run can reach, abstractly: initialise, then steps until no state is new, then resume.

After a step a checkpoint may or may not be saved: the next step is followed from both states. The steps from an initial
state are closed when every state after a step has been seen before: from then on all steps are alike, which is the
induction over steps. Every saved checkpoint is resumed from, also one that a resumed run saved, until no state is new.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from placealg.prover.calculus import versions
from placealg.prover.calculus.machine import Machine, Read, Site
from placealg.prover.calculus.microbatches import CASES, Case
from placealg.prover.calculus.one_step import Program, Run, execute, run_step
from placealg.prover.calculus.positions import of_another, rank
from placealg.prover.calculus.versions import CURRENT, GARBAGE, UNHELD, Version
from placealg.prover.ops.flow import Flows
from placealg.step.program import Group, Reference

_LONGEST_CHAIN = 4
_MOST_RESUMES = 4


@dataclass(frozen=True, slots=True)
class Chain:
    """The steps from an initial state, one for each state; `closed` if every state after a step is among them.

    `lasting` are the steps after which no state is new, or the last step if there are none. `resumes` is the number of
    times that the run was resumed.
    """

    runs: tuple[Run, ...]
    lasting: tuple[Run, ...]
    closed: bool
    resumes: int = 0


def initial(reference: Reference, group: Group, site: Site, flows: Flows | None) -> Machine:
    """The state before `init`: rank 0 of the mesh holds the initial weights, every other copy is garbage.

    Along the axes that split the parameter itself each owner holds its elements, and no other rank holds any.
    """
    machine = Machine(reference, group, site, flows)
    first = [(a, rank(0)) for a in reference.mesh.names if a not in group.split]
    held = versions.where(first, CURRENT, GARBAGE)
    machine.versions["weight", "device"] = versions.where(machine.owners, held, UNHELD)
    return machine


def initialised(reference: Reference, group: Group, site: Site, program: Program, flows: Flows | None) -> Machine:
    """The state after `init`."""
    return execute(initial(reference, group, site, flows), program.init)


def checkpoint(machine: Machine) -> dict[str, Version]:
    """The states that `machine` stored, CURRENT where they are held: the store has its own obligation on them."""
    return {k: versions.each(v, lambda leaf: UNHELD if versions.trusted(leaf) == UNHELD else CURRENT)
            for k, v in machine.stored.items()}


def resumed(machine: Machine, program: Program) -> Machine:
    """A machine that has run `resume` from what `machine` stored."""
    fresh = Machine(machine.reference, machine.group, machine.site, machine.flows, stored=checkpoint(machine))
    fresh.versions["weight", "device"] = versions.where(machine.owners, GARBAGE, UNHELD)
    execute(fresh, program.resume).stored.clear()
    return fresh


def settled(machine: Machine) -> Machine:
    """The state if every update in it was right."""
    state = machine.copy()
    state.versions = {k: versions.every(v, versions.trusted) for k, v in machine.versions.items()}
    state.stored = {k: versions.every(v, versions.trusted) for k, v in machine.stored.items()}
    return state


def shapes(reference: Reference) -> tuple[tuple[Case, ...], ...]:
    """The cases, grouped by class of m; only m = 1 if the strategy fixes a single microbatch."""
    chosen = [c for c in CASES if reference.microbatches != 1 or c.least == 1]
    return tuple(tuple(g) for _, g in itertools.groupby(chosen, key=lambda c: c.shape))


def chain(start: Machine, program: Program, case: Case) -> Chain:
    """The steps from `start`, with and without a save after each, until no state is new."""
    return _follow((start,), program, case, settled)


def _follow(states: Sequence[Machine], program: Program, case: Case, trusted: Callable[[Machine], Machine]) -> Chain:
    """The steps from each of `states` until no state is new once `trusted` has been applied to it."""
    seen, runs, lasting = list[object](), list[Run](), list[Run]()
    for index in range(_LONGEST_CHAIN):
        later = list[Machine]()
        for state in states:
            if state.snapshot() in seen:
                continue
            seen.append(state.snapshot())
            run = run_step(state, program, case, index)
            runs.append(run)
            found = [trusted(after) for after in run.later]
            later += found
            if all(after.snapshot() in seen for after in found):
                lasting.append(run)
        states = later
    closed = all(state.snapshot() in seen for state in states)
    return Chain(tuple(runs), tuple(lasting or runs[-1:]), closed)


def again(steps: Chain, program: Program, case: Case) -> tuple[tuple[Chain, ...], bool]:
    """The chains of runs resumed from every checkpoint that `steps` and resumed runs saved; whether these are all."""
    found, new = list[Chain](), steps.runs if program.resume else ()
    saved, seen = list[dict[str, Version]](), [r.start.snapshot() for r in steps.runs]
    for resumes in range(1, _MOST_RESUMES + 1):
        chains = list[Chain]()
        for end in (r.end for r in new):
            if checkpoint(end) in saved:
                continue
            saved.append(checkpoint(end))
            state = resumed(end, program)
            if state.snapshot() not in seen:
                chains.append(replace(chain(state, program, case), resumes=resumes))
                seen += [r.start.snapshot() for r in chains[-1].runs]
        found += chains
        new = tuple(r for c in chains for r in c.runs)
    return tuple(found), not new


def top(steps: Chain) -> Machine:
    """The top state of the lattice: every copy that occurs in `steps` is held everywhere and right."""
    like = steps.runs[0].end
    state = Machine(like.reference, like.group, like.site, like.flows)
    state.versions = {key: CURRENT for run in steps.runs for key in run.end.versions}
    return state


def observed(run: Run, program: Program) -> tuple[tuple[Read, ...], bool]:
    """The reads that show whether the updates of `run` were right, and whether these are all.

    They are the step's result, what it stores, what later steps read as weights and store, and what updates that read
    whole matrices read of other elements. Later steps are followed, trusting their own updates, until no state is new.
    """
    flag = f"right{run.end.steps}:"

    def trusted(machine: Machine) -> Machine:
        return trusting(machine, flag)

    following = _follow([trusted(state) for state in run.later], program, run.case, trusted)
    reads = [r for r in run.end.reads if r.kind in ("result", "store")]
    reads += [r for later in following.runs for r in trusted(later.end).reads if r.kind in ("weight", "store")]
    reads += [r for end in (run.end, *(trusted(later.end) for later in following.runs)) for r in matrices(end)]
    distinct = {(r.version, r.want): r for r in reads if r.version != r.want}
    return tuple(distinct.values()), following.closed


def matrices(machine: Machine) -> Iterator[Read]:
    """The reads of this element by updates of another element of its matrix, if updates read whole matrices."""
    if machine.group.locality != "elementwise":
        for update in machine.updates:
            others = [(axis, p if axis in machine.group.stacked else of_another(p))
                      for axis, p in update.where]
            for value, version in update.others:
                if value in machine.group.whole_reads:
                    yield Read(update.event, "matrix", "", versions.where(others, version, CURRENT), CURRENT)


def trusting(machine: Machine, flag: str) -> Machine:
    """The state and its log if every update was right except those whose name begins with `flag`."""
    change, state = _guarded_by(flag), machine.copy()
    state.versions = {k: versions.every(v, change) for k, v in machine.versions.items()}
    state.reads = [replace(r, version=versions.every(r.version, change)) for r in machine.reads]
    state.updates = [replace(u, others=tuple((value, versions.every(version, change)) for value, version in u.others))
                     for u in machine.updates]
    return state


@cache
def _guarded_by(flag: str) -> Callable[[versions.Leaf], versions.Leaf]:
    """What is left of a leaf's guards: the updates whose name begins with `flag`."""
    def change(leaf: versions.Leaf) -> versions.Leaf:
        if not isinstance(leaf, versions.Guarded):
            return leaf
        kept = frozenset((name, rank) for name, rank in leaf.updates if name.startswith(flag))
        return versions.Guarded(kept, leaf.version) if kept else leaf.version

    return change
