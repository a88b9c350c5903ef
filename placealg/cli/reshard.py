"""`placealg reshard OLD NEW`: a checkpoint of one strategy resumed by another one, on another mesh."""

from __future__ import annotations

import re
from argparse import Namespace
from fractions import Fraction

from placealg.check.reshard import check_batches, judge_reshard, with_phase
from placealg.cli.glosses import SAYS
from placealg.cli.inputs import CommandCase, foreign, one_model, options, read_case, read_strategy
from placealg.cli.output import print_json, print_lines, width
from placealg.cli.verdicts import DONE, FAILED, OPEN
from placealg.cost.resharding import volumes
from placealg.cost.resharding_stages import OLD
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.prover.verdict import PROVED, UNDECIDED
from placealg.render.reshard import Page, document, page
from placealg.step.checkpoint import Sizes, checkpoint
from placealg.step.reshard import Reshard, check_alike, totals
from placealg.step.trained import taught
from placealg.strategy.spec import Strategy


def reshard(chosen: Namespace) -> int:
    """Print the verdict, the volumes, and what a rank reads; the exit code is that of the verdict."""
    old, new = _cases(chosen)
    with_saves = with_phase(new.step, new.base, "save")
    found = Reshard(checkpoint(old.step, old.strategy, old.model), checkpoint(with_saves, new.strategy, new.model))
    check_alike(found, (old.model, new.model), (taught(old.strategy, old.model), taught(new.strategy, new.model)))
    check_batches(old.step, new.step)
    own = _own_sizes(old.strategy)
    sizes = {**_old_sizes(old), **new.sizes, **{n: v for n, v in old.sizes.items() if n not in own}}
    meshes = _known(old, new)
    reader = _reader(chosen, meshes)
    counted = totals(found, *meshes) if meshes else None
    reads = tuple(found.reads(*meshes, (reader,))) if meshes and reader is not None else ()
    verdict = judge_reshard(found, (old.base, new.base))
    told = Page(verdict, volumes(found), sizes, counted, reader, reads, chosen.gib)
    if chosen.format == "json":
        print_json(document(told, not chosen.no_timing))
    else:
        print_lines(page(told, width(), SAYS))
    return DONE if verdict.verdict == PROVED else OPEN if verdict.verdict == UNDECIDED else FAILED


def _cases(chosen: Namespace) -> tuple[CommandCase, CommandCase]:
    """Both cases, on one model; a size of the old mesh has `_old` behind its name."""
    strategies = [read_strategy(word, foreign(chosen)) for word in (chosen.a, chosen.b)]
    axes, own = map(_own_sizes, strategies)
    of_old: list[str] = []
    of_both: list[str] = []
    of_new: list[str] = []
    for word in chosen.sizes:
        name = word.partition("=")[0].strip()
        before, _, axis = name.replace("_", ".").partition(".")
        if before in ("old", "new") and axis in (*axes, *own):
            meant = axis + OLD if before == "old" else axis
            raise InputError(f"unknown axis '{name}'; did you mean '{meant}'?", where=f"--set {word}")
        if name.endswith(OLD):
            short = name.removesuffix(OLD)
            if short not in axes:
                raise InputError(f"{strategies[0].name} has no {'chunks' if short == 'v' else 'axis'} '{short}'",
                                 where=f"--set {word}", name=short, valid=axes)
            of_old.append(word.replace(OLD, "", 1))
        elif name in own:
            of_new.append(word)
        elif name in axes:
            what = "chunks" if name == "v" else "axis"
            raise InputError(f"{strategies[1].name} has no {what} '{name}'; did you mean '{name}{OLD}', the old "
                             "mesh's?", where=f"--set {word}")
        else:
            of_both.append(word)
    said, beside = options(chosen), [a + OLD for a in axes]  # a typing error may have meant one of these
    default = "" if chosen.model else one_model((chosen.a, chosen.b), strategies, said)
    try:
        old = read_case(chosen.a, chosen.model, [*of_old, *of_both], beside, default=default, **said)
    except InputError as error:
        raise _of_old_mesh(error, of_old) from None
    return (old,
            read_case(chosen.b, chosen.model, [*of_new, *of_both], beside, default=default, **said))


def _of_old_mesh(error: InputError, words: list[str]) -> InputError:
    """The error with the name that an axis of the old mesh has on the command line, if it is about its size."""
    word = next((w for w in words if error.where == f"--set {w}"), "")
    if not word:
        return error
    axis, _, size = word.partition("=")
    named = axis.strip() + OLD
    what = re.sub(rf"\b{re.escape(axis.strip())}\b(?= = |')", named, error.what, count=1)
    return InputError(what, where=f"--set {named}={size}")


def _own_sizes(strategy: Strategy) -> tuple[str, ...]:
    """The sizes that either mesh has of its own: those of axes, and chunks of a stage whose number is open."""
    return (*strategy.mesh.names, *(("v",) if strategy.option("schedule", "chunks") == "v" else ()))


def _old_sizes(old: CommandCase) -> dict[str, Fraction]:
    return {a + OLD: n for a, n in old.sizes.items() if a in _own_sizes(old.strategy)}


def _known(old: CommandCase, new: CommandCase) -> tuple[Sizes, Sizes] | None:
    """The sizes of both meshes and of the model; None where one is missing."""
    found = []
    for case in (old, new):
        axes = {a.name: case.sizes.get(a.name, a.size) for a in case.strategy.mesh}
        model = {**{n: Fraction(v) for n, v in case.model.sizes.items()},
                 **{n: v for n, v in case.sizes.items() if n not in axes}}
        needed = {n for p in case.model.parameters for size in p.dims.values() for n in size.names()}
        needed = {"Psi"} if case.model.abstract else needed | {
            n for u in case.model.units for n in u.count.names()}
        if case.strategy.pipeline_axis and case.strategy.option("schedule", "chunks") == "v":
            needed = {*needed, "v"}
        if None in axes.values() or needed - set(model):
            return None
        found.append(Sizes(FrozenMap({a: int(n) for a, n in axes.items() if n is not None}), FrozenMap(model)))
    return found[0], found[1]


def _reader(chosen: Namespace, meshes: tuple[Sizes, Sizes] | None) -> int | None:
    """The rank of the new mesh whose reads are told."""
    if chosen.reader is None:
        return None
    if meshes is None:
        raise InputError("what a rank reads needs all sizes of both meshes and of the model: --set", where="--reader")
    if not chosen.reader.isascii() or not chosen.reader.isdecimal() or int(chosen.reader) >= meshes[1].ranks:
        raise InputError(f"'{chosen.reader}' is no rank of the new mesh, which has 0 to {meshes[1].ranks - 1}",
                         where="--reader")
    return int(chosen.reader)
