"""Whether a run that is resumed on another mesh goes on as the single device does, for all sizes of both meshes.

Proved in three parts. `saved`: the old run, resumed on its own mesh as its strategy says, is the reference's; so every
element of every state that ranks load is stored, and is right. `blocks`: every element that a new rank loads stands in
exactly one block of the old layout, wherever both layouts cut. `loaded`: a new run whose ranks load what they would
have stored themselves is the reference's; that is what they read of the old files.
"""

from __future__ import annotations

from dataclasses import replace

from placealg.check.prove import prove
from placealg.errors import InputError
from placealg.progress import say
from placealg.prover.interval_cover import lemmas
from placealg.prover.resharding import Ran, Resharding
from placealg.prover.verdict import PROVED
from placealg.simulator.resharded import meshes, resharded
from placealg.simulator.setting import Setting
from placealg.step.program import Step
from placealg.step.reshard import Reshard


def with_phase(step: Step, base: Step, phase: str) -> Step:
    """The step with the events of one phase as they are derived."""
    before = tuple(e for e in step.events if e.phase != phase)
    order = [*before, *base.phase(phase)]
    phases = list(dict.fromkeys(e.phase for e in base.events))
    return replace(step, events=tuple(sorted(order, key=lambda e: phases.index(e.phase) if e.phase in phases else -1)))


def judge_reshard(reshard: Reshard, bases: tuple[Step, Step]) -> Resharding:
    """The verdict on a resumption; `bases` are the derived programs of both strategies."""
    old, new = reshard.old.step, reshard.new.step
    say(f"proving what {old.reference.strategy} saves")
    saved = prove(with_phase(old, bases[0], "resume"))
    say(f"proving what {new.reference.strategy} makes of it")
    loaded = prove(with_phase(new, bases[1], "save"))
    found = lemmas()
    sizes = small_sizes(old, 0), small_sizes(new, 1)
    ran = None
    if saved.verdict == PROVED and loaded.verdict == PROVED:
        say("going on with another mesh, rank by rank")
        settings = meshes(old, new, sizes)
        outcome = resharded(old, with_phase(new, bases[1], "save"), settings)
        sizes = _run_at(old, settings.old), _run_at(new, settings.new)
        ran = Ran(outcome.equal, outcome.observed, str(outcome.difference or ""))
    return Resharding(reshard, saved, loaded, found, ran, sizes)


def _run_at(step: Step, setting: Setting) -> dict[str, int]:
    """The sizes of a small run; the microbatches, too, where a strategy says another number of them."""
    told = step.reference.microbatches not in (None, setting.microbatches)
    return {**setting.sizes, **({"m": setting.microbatches} if told else {})}


def small_sizes(step: Step, turn: int) -> dict[str, int]:
    """Sizes of a small mesh: 2 and 3 in turn on two axes, so that both meshes differ; 2 on the others.

    Of stages there are enough for ends that stand alone.
    """
    free = step.reference.mesh.names
    sizes = {a: 2 for a in free}
    if free and len(free) < 3:
        sizes[free[0]] = 2 + turn
    if (pipeline := step.reference.pipeline).axis:
        sizes[pipeline.axis] = max(sizes[pipeline.axis], pipeline.least)
    return sizes


def check_batches(old: Step, new: Step) -> None:
    """Raise InputError where the reference of one run averages microbatches, and they are not said to be as many."""
    weighed = {s.reference.weighting for s in (old, new)}
    if "microbatch_mean" in weighed and old.reference.microbatches != new.reference.microbatches:
        raise InputError("the loss is a mean over microbatches, of which both runs must have equally many: say "
                         "[schedule] microbatches in both")
