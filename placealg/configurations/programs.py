"""The programs of a strategy, derived once for all layouts and compiled to arrays; and a cache of them on disk.

A pipeline has two: its first and its last stage, of which one holds the most and one takes the longest where stages are
alike. What is cached is keyed by the sources of the package, the model and the strategy.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from placealg.arith import Monomial
from placealg.cost.arrays import Arrays
from placealg.cost.stage import on_stage
from placealg.cost.sums import Figure, sums
from placealg.cost.times import times
from placealg.cost.walk import Walk
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.model.model import Model
from placealg.polynomial import Polynomial
from placealg.step.compatibility import quotients
from placealg.step.derive import derive
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import Strategy

HELD = ("memory.peak", "memory.states", "memory.host")
"""The figures that are held against memories."""

TIMED = ("time.bound", "time.estimate", "time.bound.card")
"""The figures by which configurations are ranked, in seconds."""


@dataclass(frozen=True, slots=True)
class Program:
    """One stage's program: arrays of what it holds and of its times, and all its figures, pickled, for exact values."""

    stage: str
    held: Arrays
    timed: Arrays
    values: FrozenMap[str, Fraction]
    exact: bytes

    @property
    def figures(self) -> Mapping[str, Figure]:
        """Path -> figure."""
        found: Mapping[str, Figure] = _figures(self.exact)
        return found


@dataclass(frozen=True, slots=True)
class Programs:
    """A strategy and the programs of its stages; `refused` says why it has none, `whole` what has to be whole."""

    expression: str
    strategy: Strategy
    stages: tuple[Program, ...] = ()
    refused: str = ""
    whole: tuple[Monomial, ...] = ()


@cache
def _figures(exact: bytes) -> Mapping[str, Figure]:
    found: Mapping[str, Figure] = pickle.loads(exact)
    return found


def compiled(expression: str, model: Model) -> Programs:
    """The programs of a strategy on a model.

    >>> from placealg.model.config import resolve_model
    >>> [program.stage for program in compiled("zero1*pp", resolve_model("gpt2")).stages]
    ['first', 'last']
    """
    strategy = parse_strategy(expression)
    try:
        step = derive(strategy, model)
        stages = {name: on_stage(step, name) for name in ("first", "last")} if step.reference.pipeline else {"": step}
        return Programs(expression, strategy, tuple(_compiled(name, Walk(each)) for name, each in stages.items()),
                        whole=quotients(strategy, model))
    except InputError as error:
        return Programs(expression, strategy, refused=str(error))


def _compiled(stage: str, walk: Walk) -> Program:
    figures = {**sums(walk), **times(walk)}
    if "time.bound" not in figures:
        raise InputError("units run whole, so that neither activations nor flop are known")
    if any(name.startswith("n_") for name in figures["memory.peak"].names()):
        raise InputError("its stages run several kinds of layers, which takes numbers for each number of stages")
    held, timed = ({path: figures.get(path, NOTHING) for path in paths} for paths in (HELD, TIMED))
    return Program(stage, Arrays.of(held), Arrays.of(timed), walk.amounts.values,
                   pickle.dumps({path: f for path, f in figures.items() if not path.startswith(("sent.", "runs."))}))


NOTHING = Figure((Polynomial(),))
"""The figure of what a program has nothing of."""


class Cache:
    """Programs on disk, one file each; a folder of None keeps nothing."""

    def __init__(self, folder: Path | None, model: Model):
        self.folder = folder
        self.key = sha256((sources() + repr(model)).encode()).hexdigest()

    def path(self, expression: str) -> Path | None:
        """The file of a strategy."""
        if self.folder is None:
            return None
        return self.folder / self.key[:16] / f"{sha256((self.key + expression).encode()).hexdigest()[:24]}.pickle"

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
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(f".{os.getpid()}")
            part.write_bytes(sha256(data).digest() + data)
            part.replace(path)
        except OSError:
            self.folder = None


def default_folder() -> Path:
    """The user's folder for what can be made again."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "placealg" / "search"


@cache
def sources() -> str:
    """A hash of the package's sources: what another version found is found again."""
    found = sha256()
    for name in ("cost", "model", "step", "strategy"):
        for file in sorted(files("placealg").joinpath(name).iterdir(), key=lambda f: f.name):
            if file.is_file() and file.name.endswith((".py", ".toml")):
                found.update(file.read_bytes())
    for file in sorted(files("placealg").iterdir(), key=lambda f: f.name):
        if file.is_file() and file.name.endswith(".py"):
            found.update(file.read_bytes())
    return found.hexdigest()

