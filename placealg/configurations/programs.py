"""The programs of a strategy, derived once for all layouts and compiled to arrays; and a cache of them on disk.

A pipeline has one for each kind of stage. What is cached is keyed by the sources of the package, the model and the
strategy.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from placealg.arith import Monomial
from placealg.configurations.stages import ALONE, Kind
from placealg.cost.arrays import Arrays
from placealg.cost.bounds import at_most
from placealg.cost.figure import ONE, Figure, inside
from placealg.cost.stage import on_stage
from placealg.cost.sums import bytes_of, sums
from placealg.cost.times import times
from placealg.cost.walk import Walk
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.model import Model
from placealg.polynomial import Polynomial
from placealg.step.compatibility import quotients
from placealg.step.derive import derive
from placealg.step.pipeline import counted, flying, starting
from placealg.step.place import ANY
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import Strategy

HELD = ("memory.peak", "memory.states", "memory.host")
"""The figures that are held against memories."""

TIMED = ("time.bound", "time.estimate", "time.bound.card")
"""The figures by which configurations are ranked, in seconds."""


@dataclass(frozen=True, slots=True)
class Program:
    """The program of a kind of stage: arrays of what it holds and of its times, and all figures, pickled, exact.

    `grows` says whether what it holds never gets less where a stage runs more instances or has more of them in flight:
    then the `heaviest` stages decide. Times never do: every product and every collective is counted per instance, and
    of the work at least half is never hidden.
    """

    kind: Kind
    held: Arrays
    timed: Arrays
    values: FrozenMap[str, Fraction]
    exact: bytes
    grows: bool = True

    @property
    def figures(self) -> Mapping[str, Figure]:
        """Path -> figure."""
        found: Mapping[str, Figure] = _figures(self.exact)
        return found


@dataclass(frozen=True, slots=True)
class Programs:
    """A strategy and the programs of its kinds of stages; `refused` says why it has none, `whole` what divides."""

    expression: str
    strategy: Strategy
    stages: tuple[Program, ...] = ()
    refused: str = ""
    whole: tuple[Monomial, ...] = ()

    def of(self, kind: Kind) -> Program:
        """The program of a kind of stage."""
        return next(program for program in self.stages if program.kind == kind)

    def lacks(self, wanted: Iterable[Kind]) -> tuple[Kind, ...]:
        """The kinds of stages that have no program yet."""
        return () if self.refused else tuple(k for k in wanted if all(p.kind != k for p in self.stages))


@cache
def _figures(exact: bytes) -> Mapping[str, Figure]:
    found: Mapping[str, Figure] = pickle.loads(exact)
    return found


def outlined(expression: str, model: Model) -> Programs:
    """A strategy without programs: whether it stands on the model, and what has to be whole."""
    strategy = parse_strategy(expression)
    try:
        return Programs(expression, strategy, whole=quotients(strategy, model))
    except InputError as error:
        return Programs(expression, strategy, refused=str(error))


def compiled(expression: str, model: Model, wanted: Iterable[Kind] | None = None, peak: bool = True) -> Programs:
    """The programs of a strategy on a model: of the kinds of stages wanted, or of ends and middle with all units.

    Without `peak` the states at rest stand in its place, which it never falls below.

    >>> from placealg.models.config import resolve_model
    >>> [str(program.kind) for program in compiled("zero1*pp", resolve_model("gpt2")).stages]
    ['first stage, layer', 'i stage, layer', 'last stage, layer']
    """
    outline = outlined(expression, model)
    if outline.refused:
        return outline
    units = tuple(loop.unit for loop in model.graph.loops)
    if wanted is None:
        wanted = [Kind(p, units) for p in ("first", "i", "last")] if outline.strategy.pipeline_axis else [ALONE]
    try:
        return replace(outline, stages=tuple(staged(outline.strategy, model, wanted, peak)))
    except InputError as error:
        return replace(outline, refused=str(error))


def staged(strategy: Strategy, model: Model, wanted: Iterable[Kind], peak: bool = True) -> Iterator[Program]:
    """The programs of some kinds of stages, each when it is asked for; `peak` is as in `compiled`."""
    step = derive(strategy, model)
    for kind in wanted:
        yield _compiled(kind, Walk(stage_program(step, kind)), peak)


def stage_program(step: Step, kind: Kind) -> Step:
    """The program of a kind of stage, in the symbols of its instances."""
    if not kind.place:
        return step
    units = [loop.unit for loop in step.reference.graph.loops]
    return on_stage(step, kind.place, {counted(unit): int(unit in kind.units) for unit in units})


def _compiled(kind: Kind, walk: Walk, peak: bool) -> Program:
    states = Figure((bytes_of(walk.amounts, walk.rest),))
    figures = {**(sums(walk) if peak else dict.fromkeys(HELD[:2], states)), **times(walk)}
    if "time.bound" not in figures:
        raise InputError("units run whole, so that neither activations nor flop are known")
    held, timed = ({path: figures.get(path, NOTHING) for path in paths} for paths in (HELD, TIMED))
    return Program(kind, Arrays.of(held), Arrays.of(timed), walk.amounts.values,
                   pickle.dumps({path: f for path, f in figures.items() if not path.startswith(("sent.", "runs."))}),
                   _grows(held, kind))


def _grows(figures: Mapping[str, Figure], kind: Kind) -> bool:
    """Whether no figure gets less where a symbol of the stage grows, or what is in flight.

    Each is a factor of some terms, which together are at least 0 (`at_most`). What is in flight is at least 1.
    """
    own = {name(unit) for unit in kind.units for name in (counted, flying, starting)}
    for piece in (piece for figure in figures.values() for piece in figure.pieces):
        flown = {n: f"flown{k}" for k, n in enumerate(piece.names()) if not n.isidentifier() and "m" in inside(n)}
        named = Polynomial.of(Monomial(c, tuple(sorted((flown.get(n, n), p) for n, p in m.powers)))
                              for m, c in piece.terms.items())
        for name in own & set(named.names()) | set(flown.values()):
            each = named.coefficient(name)
            above = Polynomial.collected({m: c for m, c in each.terms.items() if c > 0})
            if named.powers(name) != {1} or not at_most(above - each, above):
                return False
        if ANY in named.names():
            return False
    return all(figure.over == ONE for figure in figures.values())


NOTHING = Figure((Polynomial(),))
"""The figure of what a program has nothing of."""


KEPT = 2
"""Of so many versions of the package, those that wrote last, the programs are kept."""


class Cache:
    """Programs on disk, one file each, in a folder for each version of the package; a folder of None keeps nothing."""

    def __init__(self, folder: Path | None, model: Model):
        self.folder = folder
        self.version = sources()[:16]
        self.key = sha256((sources() + repr(replace(model, source=""))).encode()).hexdigest()

    def path(self, expression: str) -> Path | None:
        """The file of a strategy."""
        if self.folder is None:
            return None
        return self.folder / self.version / f"{sha256((self.key + expression).encode()).hexdigest()[:24]}.pickle"

    def read(self, expression: str) -> Programs | None:
        """The programs of a strategy, if they are there and whole."""
        path = self.path(expression)
        try:
            data = path.read_bytes() if path else b""
        except OSError:
            return None
        mark, rest = data[:32], data[32:]
        if not rest or sha256(rest).digest() != mark:
            return None
        found: Any = pickle.loads(rest)
        return found if isinstance(found, Programs) and found.expression == expression else None

    def write(self, programs: Programs) -> None:
        """Keep the programs; a folder that cannot be written keeps nothing."""
        path = self.path(programs.expression)
        if path is None:
            return
        data = pickle.dumps(programs)
        try:
            first = not path.parent.exists()
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(f".{os.getpid()}")
            part.write_bytes(sha256(data).digest() + data)
            part.replace(path)
            if first:
                _clear(path.parents[1])
        except OSError:
            self.folder = None


def _clear(folder: Path) -> None:
    """Remove the programs of all versions of the package but the last ones, and no file of another name."""
    versions = (d for d in folder.iterdir() if re.fullmatch("[0-9a-f]{16}", d.name) and any(d.glob("*.pickle")))
    for old in sorted(versions, key=lambda d: -d.stat().st_mtime_ns)[KEPT:]:
        for file in old.iterdir():
            if re.fullmatch(r"[0-9a-f]{24}\.(pickle|\d+)", file.name):
                file.unlink(missing_ok=True)
        with suppress(OSError):
            old.rmdir()


@cache
def sources() -> str:
    """A hash of the package's sources: what another version found is found again."""
    found = sha256()
    package = Path(__file__).parents[1]
    rooms = (package / name for name in ("cost", "models", "step", "strategy"))
    for file in sorted((*package.glob("*.py"), *(f for room in rooms for f in room.rglob("*")))):
        if file.suffix in (".py", ".toml"):
            found.update(file.read_bytes())
    return found.hexdigest()

