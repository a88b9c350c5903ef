"""A checkpoint of one strategy that another one resumes, on another mesh: for the command line, and for Python."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from placealg.cases.case import CommandCase, one_model
from placealg.cases.given import Given, case_of
from placealg.check.reshard import check_batches, judge_reshard, with_phase
from placealg.cost.resharding import Volumes, volumes
from placealg.cost.resharding_stages import OLD
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.model import Model
from placealg.prover.resharding import Resharding
from placealg.prover.verdict import Conclusion
from placealg.step.checkpoint import Sizes, checkpoint
from placealg.step.reshard import Read, Reshard, Totals, check_alike, totals
from placealg.step.trainable import taught
from placealg.strategy.spec import Strategy


@dataclass(frozen=True)
class Resumed:
    """What a run reads that resumes on another mesh, and whether it goes on as the single device does.

    `proof` is the verdict with its parts; `volumes` are formulas, bytes, in the sizes of both meshes, those of the old
    one with `_old` behind their names; `meshes` are the sizes of both with the model's, None where one is missing.
    """

    reshard: Reshard
    proof: Resharding
    volumes: Volumes
    meshes: tuple[Sizes, Sizes] | None

    @property
    def verdict(self) -> Conclusion:
        """PROVED, REFUTED or UNDECIDED."""
        return self.proof.verdict

    @cached_property
    def totals(self) -> Totals | None:
        """The volumes, counted read by read; None where a size is missing."""
        return totals(self.reshard, *self.meshes) if self.meshes else None

    def reads(self, reader: int) -> tuple[Read, ...]:
        """What a rank of the new mesh reads from whom; an InputError where there is no such rank, or a size is missing.

        >>> [read.source for read in reshard("zero3", "zero1", Psi=12, dp_old=2, dp=3).reads(0)]
        [0, 1, 0]
        """
        rank, (old, new) = reading(reader, self.meshes)
        return tuple(self.reshard.reads(old, new, (rank,)))


def reading(reader: int | str, meshes: tuple[Sizes, Sizes] | None) -> tuple[int, tuple[Sizes, Sizes]]:
    """A rank of the new mesh, and both meshes; an InputError where there is no such rank, or a size is missing."""
    if meshes is None:
        raise InputError("what a rank reads needs all sizes of both meshes and of the model")
    word, ranks = str(reader), meshes[1].ranks
    if not (word.isascii() and word.isdecimal()) or int(word) >= ranks:
        raise InputError(f"'{reader}' is no rank of the new mesh, which has 0 to {ranks - 1}")
    return int(word), meshes


def resumed(old: CommandCase, new: CommandCase) -> Resumed:
    """The resumption of a checkpoint of one case by another one."""
    with_saves = with_phase(new.step, new.base, "save")
    found = Reshard(checkpoint(old.step, old.strategy, old.model), checkpoint(with_saves, new.strategy, new.model))
    check_alike(found, (old.model, new.model), (taught(old.strategy, old.model), taught(new.strategy, new.model)))
    check_batches(old.step, new.step)
    return Resumed(found, judge_reshard(found, (old.base, new.base)), volumes(found), known_sizes(old, new))


def reshard(old: Given, new: Given, model: Model | str | None = None, **sizes: Any) -> Resumed:
    """A checkpoint of `old` resumed by `new`: the verdict, the volumes as formulas, and who reads what at `sizes`.

    >>> found = reshard("zero3", "zero1", Psi=12, dp_old=2, dp=3)
    >>> found.verdict, found.volumes.stored
    ('PROVED', Ψ·(w + o − 4) bytes)
    >>> found.totals.stays
    Fraction(72, 1)
    """
    cases = [case_of(what, _on(old, new, model)) for what in (old, new)]
    words = [f"{name}={size}" for name, size in sizes.items()]
    of_old, of_new, of_both = split_sizes(words, cases[0].strategy, cases[1].strategy)
    try:
        first = case_of(cases[0], None, _said(*of_old, *of_both))
    except InputError as error:
        raise of_old_mesh(error, of_old) from None
    return resumed(first, case_of(cases[1], None, _said(*of_new, *of_both)))


def _said(*words: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words)


def _on(old: Given, new: Given, model: Model | str | None) -> Model | str | None:
    """The model on which both stand: the one that is said, or of words the one that a file names, or that both fit."""
    words = [str(what) for what in (old, new) if isinstance(what, str | Path)]
    return one_model(words, [case_of(word).strategy for word in words], {}) if model is None and len(words) == 2 \
        else model


def own_sizes(strategy: Strategy) -> tuple[str, ...]:
    """The sizes that either mesh has of its own: those of axes, and chunks of a stage whose number is open."""
    return (*strategy.mesh.names, *(("v",) if strategy.option("schedule", "chunks") == "v" else ()))


def split_sizes(words: Iterable[str], old: Strategy, new: Strategy) -> tuple[list[str], list[str], list[str]]:
    """Words NAME=VALUE: those of the old mesh without `_old`, those of the new one, and those of the model."""
    axes, own = own_sizes(old), own_sizes(new)
    of_old: list[str] = []
    of_both: list[str] = []
    of_new: list[str] = []
    for word in words:
        name = word.partition("=")[0].strip()
        before, _, axis = name.replace("_", ".").partition(".")
        if before in ("old", "new") and axis in (*axes, *own):
            meant = axis + OLD if before == "old" else axis
            raise InputError(f"unknown axis '{name}'; did you mean '{meant}'?", where=f"--set {word}")
        if name.endswith(OLD):
            short = name.removesuffix(OLD)
            if short not in axes:
                raise InputError(f"{old.name} has no {'chunks' if short == 'v' else 'axis'} '{short}'",
                                 where=f"--set {word}", name=short, valid=axes)
            of_old.append(word.replace(OLD, "", 1))
        elif name in own:
            of_new.append(word)
        elif name in axes:
            what = "chunks" if name == "v" else "axis"
            raise InputError(f"{new.name} has no {what} '{name}'; did you mean '{name}{OLD}', the old "
                             "mesh's?", where=f"--set {word}")
        else:
            of_both.append(word)
    return of_old, of_new, of_both


def of_old_mesh(error: InputError, words: Iterable[str]) -> InputError:
    """The error with the name that a size of the old mesh has beside the new one's, if it is about one of `words`."""
    word = next((w for w in words if error.where == f"--set {w}"), "")
    if not word:
        return error
    axis, _, size = word.partition("=")
    named = axis.strip() + OLD
    what = re.sub(rf"\b{re.escape(axis.strip())}\b(?= = |')", named, error.what, count=1)
    return InputError(what, where=f"--set {named}={size}")


def known_sizes(old: CommandCase, new: CommandCase) -> tuple[Sizes, Sizes] | None:
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
