"""Strategy files: the TOML text of a strategy, what it is expected to prove, and its edits or its whole program."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from placealg.arith import parse
from placealg.errors import InputError, shown
from placealg.frozen import FrozenMap
from placealg.mesh import AXES, SYMBOLS, called
from placealg.strategy.expression import file_factors, parse_strategy
from placealg.strategy.kinds import FLAG, TEXT, Kind, Schema, by_name, choice, placed, whole
from placealg.strategy.kinds import Path as KeyPath
from placealg.strategy.options import SCHEMA
from placealg.strategy.spec import Strategy, overlay
from placealg.strategy.toml_lines import Positions, parse_toml, read_toml
from placealg.strategy.validation import problems

COUNTS = ("equal", "unequal")
"""How many tokens the ranks hold in the runs that `masked` speaks of."""


def _printed(label: str, value: Any, *_: Any) -> str:
    if not (isinstance(value, str) and value.strip() and value.isprintable()):
        raise InputError(f"{label} is {shown(value)}: expected a non-empty string of characters that print")
    return value


def _texts(label: str, value: Any, *_: Any) -> list[str]:
    if not (isinstance(value, list) and value and all(
            isinstance(v, str) and v.strip() and v.isprintable() for v in value)):
        raise InputError(f"{label} is {shown(value)}: expected a list of non-empty strings")
    return value


def _one_table(label: str, value: Any, *_: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{label} is {shown(value)}: expected a table, [{label}]")
    return value


def _tables(label: str, value: Any, *_: Any) -> list[Mapping[str, Any]]:
    if not (isinstance(value, list) and value and all(isinstance(v, dict) for v in value)):
        raise InputError(f"{label} is {shown(value)}: expected tables, each under [[{label}]]")
    return value


def _runs(label: str, value: Any, *_: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{label} is {shown(value)}: expected a table such as {{ flash = true, loss = \"chunked\" }}")
    for name, one in value.items():
        if name not in RUNS:
            raise InputError(f"{label} has no '{name}'", name=name, valid=RUNS)
        if not isinstance(one, str if RUNS[name] is TEXT else bool):
            expected = "a word" if RUNS[name] is TEXT else FLAG.words
            raise InputError(f"{label} says {name} = {shown(one)}: expected {expected}")
    return value


def _as_said(_label: str, value: Any, *_: Any) -> Any:
    return value


def _class(label: str, value: Any, *rest: Any) -> str:
    return str(_CLASS.read(label, value.upper() if isinstance(value, str) else value, *rest))


RUNS: Mapping[str, Kind] = {"flash": FLAG, "dropout": FLAG, "loss": TEXT}
"""The keys of `runs`: how the model is run, as --flash, --dropout and --loss say, which go before."""

_CLASS = choice("PARAMETRIC", "CUTOFF", "BOUNDED")
_RUNS: Schema = {**by_name(whole(1).schema, r"^(?!counts$)[A-Za-z_]\w*$"),
                 "properties": {"counts": {"enum": list(COUNTS)}}, "minProperties": 1}
_LISTED: Schema = {"type": "array", "items": {"type": "object"}, "minItems": 1}

EXPECT: Mapping[str, Kind] = {
    "verdict": choice("proved", "refuted", "undecided"),
    "obligation": choice("partition", "forward", "gradient", "normalizer", "view", "update", "invariant", "init",
                         "random", "schedule", "vacuity", "precision", "race", "alias"),
    "ratio": Kind("a quotient of sizes", lambda label, value, *_: TEXT.read(
        label, str(value) if type(value) is int else value), {"anyOf": [{"type": "integer"}, TEXT.schema]}),
    "group": TEXT,
    "class": Kind(_CLASS.words, _class, {"enum": [name for each in (str.upper, str.lower)
                                                  for name in map(each, _CLASS.schema["enum"])]}),
}
"""The keys of `expect`, which may also be a verdict alone."""

_PRINTED = Kind("a non-empty string of characters that print", _printed, TEXT.schema)

TOP: Mapping[str, tuple[Kind, str]] = {
    "name": (_PRINTED, "what the strategy is called"),
    "source": (_PRINTED, "where it comes from"),
    "model": (_PRINTED, "a shipped name, or the path of a config.json"),
    "runs": (Kind("a table of flash, dropout and loss", _runs, {
        "type": "object", "properties": {name: kind.schema for name, kind in RUNS.items()},
        "additionalProperties": False}), "how the model is run: attention as one op, dropout, the cross entropy"),
    "left_out": (Kind("a list of non-empty strings", _texts, {"type": "array", "items": TEXT.schema, "minItems": 1}),
                 "what the run has and the strategy lacks, which a verdict then does not cover"),
    "base": (_PRINTED, "the strategy that the tables change, an expression over the catalogue and strategy files"),
    "expect": (Kind("a verdict, or a table with a verdict", _as_said, {"anyOf": [EXPECT["verdict"].schema, {
        "type": "object", "properties": {name: kind.schema for name, kind in EXPECT.items()}, "required": ["verdict"],
        "additionalProperties": False}]}), "the verdict that it must get"),
    "masked": (Kind("a table of sizes, or a list of tables", _as_said, {
        "anyOf": [_RUNS, {"type": "array", "items": _RUNS, "minItems": 1}]}), "where what is refuted does not show"),
    "edit": (Kind("tables", _tables, _LISTED), "changes of the derived program"),
    "loops": (Kind("a table", _one_table, {"type": "object"}), "the loops of a whole program"),
    "event": (Kind("tables", _tables, _LISTED), "the events of a whole program"),
}
"""The keys of a strategy file beside its tables: what is accepted, and what it says."""


@dataclass(frozen=True, slots=True)
class Expect:
    """The verdict that a file expects; what is empty is not asked for.

    `ratio` is arithmetic over axis sizes and symbols: the mass that the counterexample reports.
    """

    verdict: str
    obligation: str = ""
    ratio: str = ""
    group: str = ""
    cls: str = ""


@dataclass(frozen=True, slots=True)
class Masked:
    """Runs in which what a file gets wrong does not show: those of these sizes, and of such token counts.

    `sizes` maps axes, and `m`, to numbers; every other size is free. `counts` is equal, unequal, or "" for any.
    """

    sizes: FrozenMap[str, int]
    counts: str = ""

    def __str__(self) -> str:
        said = [f"{name} = {size}" for name, size in self.sizes.items()]
        return ", ".join([*said, f"{self.counts} counts"] if self.counts else said)


@dataclass(frozen=True, slots=True)
class StrategyFile:
    """What a strategy file says: a strategy, its expectation, and the raw [[edit]] and [[event]] tables.

    `base` is the expression that the tables override, "" without one; `model` a model's name or path.
    `positions` gives each key of the raw tables its line: `positions.where("edit", 0, "drop")`. `left_out` says in
    words what the run has that is described here and the strategy lacks, `runs` how the model is run.
    """

    strategy: Strategy
    expect: Expect | None
    source: str
    edits: tuple[Mapping[str, Any], ...]
    events: tuple[Mapping[str, Any], ...]
    path: str
    loops: Mapping[str, Any]
    base: str
    model: str
    positions: Positions
    masked: tuple[Masked, ...] = ()
    left_out: tuple[str, ...] = ()
    runs: FrozenMap[str, Any] = FrozenMap()

    def place(self, path: KeyPath) -> str:
        """`FILE:LINE` of what says the key of a strategy's table: the key, or the base where the file is silent."""
        return _place(path, self.positions)


def proofs_folder(name: str) -> Path:
    """Where strategy files lie that come with placealg: in an installed package, or beside it in its repository."""
    package = Path(__file__).parents[1]
    installed = package / "_proofs"
    return (installed if installed.is_dir() else package.parent / "proofs") / name


SYSTEM = "torch."
"""What begins the name of what a real system does, a file of its own: torch.fsdp2 is proofs/torch/fsdp2.toml."""


def system_path(name: str) -> Path:
    """The file of what a real system does, by its name.

    >>> system_path("torch.fsdp3")
    Traceback (most recent call last):
    placealg.errors.InputError: unknown strategy 'torch.fsdp3'; did you mean 'torch.fsdp2'?
    """
    files = {SYSTEM + path.stem: path for path in sorted(proofs_folder("torch").glob("*.toml"))}
    first = name.partition("*")[0].strip()
    if first != name and first in files:
        raise InputError(f"{first} is a file with edits of its own, which no expression composes; compose the base of "
                         f"a copy of proofs/torch/{files[first].name}")
    if name not in files:
        raise InputError(f"unknown strategy '{name}'", name=name, valid=files)
    return files[name]


def packaged(word: str) -> Path | None:
    """The strategy file that comes with placealg and is called so: torch.fsdp2, proofs/..., a bug of the museum.

    None where the word names none; a file of one's own at that path goes before.

    >>> packaged("megatron_1446").name, packaged("zero3")
    ('megatron_1446.toml', None)
    """
    if Path(word).exists():
        return None
    if word.startswith(SYSTEM):
        return system_path(word)
    within = re.fullmatch(r"(?:\./)?proofs/((?:\w+/)*\w+\.toml)", word, re.ASCII)
    if within and (path := proofs_folder(within[1])).is_file():
        return path
    if re.fullmatch(r"\w{1,80}", word, re.ASCII):
        known = (proofs_folder(folder) / f"{word}.toml" for folder in ("refuted", "outside"))
        return next((path for path in known if path.is_file()), None)
    return None


def read_strategy_file(path: str | Path) -> StrategyFile:
    """Read a strategy file; every mistake is an InputError at `FILE:LINE`."""
    return _read(*read_toml(path), (_resolved(path),))


def read_expression(text: str, folder: Path = Path(), chain: tuple[Path, ...] = ()) -> Strategy:
    """The strategy of an expression whose factors may be strategy files, in `folder` where their paths are relative.

    Files of `chain` are being read, so that none of them can be a factor.
    """
    return parse_strategy(text, lambda name: _factor_file(name, folder, chain).strategy)


def factor_files(text: str) -> tuple[StrategyFile, ...]:
    """The strategy files that are factors of an expression, each as it is read."""
    return tuple(_factor_file(name, Path(), ()) for name in file_factors(text))


def _factor_file(name: str, folder: Path, chain: tuple[Path, ...]) -> StrategyFile:
    path = _resolved(folder / name)
    if path in chain:
        raise InputError(f"{name} stands on itself: {' -> '.join(one.name for one in (*chain, path))}")
    file = _read(*read_toml(folder / name), (*chain, path))
    if file.edits or file.events:
        raise InputError(f"{name} has edits of its own, which no expression composes: start from a copy")
    return file


def _resolved(path: str | Path) -> Path:
    try:
        return Path(path).resolve()
    except (OSError, ValueError, RuntimeError):
        raise InputError("is no path of a file", where=str(path)) from None


def parse_strategy_file(text: str, file: str = "strategy.toml") -> StrategyFile:
    r"""Read the text of a strategy file, which errors call `file`.

    >>> parse_strategy_file('base = "zero3"\n[mesh]\ndp = 8').strategy.mesh.axes
    (dp=8,)
    """
    return _read(*parse_toml(text, file), (_resolved(file),))


def _read(said: Mapping[str, Any], positions: Positions, chain: tuple[Path, ...]) -> StrategyFile:
    for key, value in said.items():
        with placed(positions.place, key):
            _check_top(key, value)
    texts = {key: str(said.get(key, "")) for key in ("name", "source", "model", "base")}
    if not texts["base"]:
        for table in ("mesh", "dims"):
            if table not in said:
                raise InputError(f"has no [{table}] and no base: a strategy names its axes and what they split",
                                 where=positions.file)
    base = _base(texts["base"], positions, chain) if texts["base"] else Strategy("")
    tables = {key: value for key, value in said.items() if key in SCHEMA}
    altered = bool(tables) or "edit" in said or "event" in said
    name = texts["name"] or (base.name if not altered else Path(positions.file).stem)
    strategy = replace(overlay(base, tables, positions.place), name=name)

    for path, error in problems(strategy):
        raise error.at(_place(path, positions))
    if "loops" in said and "event" not in said:
        raise InputError("[loops] belongs to a whole program, and the file has no [[event]]",
                         where=positions.where("loops"))
    expect = _expect(said.get("expect"), strategy, positions)
    with placed(positions.place, "masked"):
        masked = tuple(_masked(said["masked"], strategy)) if "masked" in said else ()
        if masked and (expect is None or expect.verdict != "refuted"):
            raise InputError("masked says where a bug does not show, and the file expects no refuted verdict")
    return StrategyFile(strategy, expect, texts["source"], tuple(said.get("edit", ())), tuple(said.get("event", ())),
                        positions.file, said.get("loops", {}), texts["base"], texts["model"], positions, masked,
                        tuple(said.get("left_out", ())), FrozenMap(said.get("runs", {})))


def _place(path: KeyPath, positions: Positions) -> str:
    if path[:2] in positions.lines or ("base",) not in positions.lines:
        return positions.where(*(path if path[:1] in positions.lines else ("mesh",)))
    return positions.where("base")


def _base(text: str, positions: Positions, chain: tuple[Path, ...]) -> Strategy:
    try:
        if text.startswith(SYSTEM):
            raise InputError(f"{text} is a file with a base and edits of its own: start from a copy of "
                             f"proofs/torch/{system_path(text).name}")
        return read_expression(text, Path(positions.file).parent, chain)
    except InputError as error:
        column, error.where = error.where, ""
        raise error.at(f"{positions.where('base')}: {column}".removesuffix(": ")) from None


def _check_top(key: str, value: Any) -> None:
    if key not in TOP and key not in SCHEMA:
        said = value if isinstance(value, dict) else {key: value}
        sizes = {called(name) or name: size for name, size in said.items() if isinstance(size, int)}
        if sizes and len(sizes) == len(said) and set(sizes) <= {*SYMBOLS, *AXES}:
            raise InputError(f"'{key}': sizes are not said in a strategy file, but with --set "
                             f"{' '.join(f'{name}={size}' for name, size in sizes.items())}; degrees also by [mesh]")
        valid = (*SCHEMA, *TOP)
        raise InputError(f"unknown table [{key}]" if isinstance(value, dict) else f"unknown key '{key}'", name=key,
                         valid=valid)
    kind = TOP[key][0] if key in TOP else TOP["loops"][0]
    kind.read(key, value)


def _expect(value: Any, strategy: Strategy, positions: Positions) -> Expect | None:
    if value is None:
        return None
    said = {"verdict": value} if isinstance(value, str) else value
    if not isinstance(said, dict) or "verdict" not in said:
        raise InputError(f"expect is {shown(value)}: expected a verdict, or a table with a verdict",
                         where=positions.where("expect"))
    read: dict[str, str] = {}
    for key, text in said.items():
        with placed(positions.place, "expect", key):
            if key not in EXPECT:
                raise InputError(f"unknown key '{key}' in expect", name=key, valid=EXPECT)
            text = EXPECT[key].read(f"expect {key}", text)
            if key == "ratio":
                parse(text, (*strategy.mesh.names, *SYMBOLS))
            read["cls" if key == "class" else key] = text
    if read["verdict"] == "proved" and {"obligation", "ratio", "group"} & set(read):
        raise InputError("expect names an obligation, ratio or group, which only a refuted verdict has",
                         where=positions.where("expect"))
    return Expect(**read)


def _masked(value: Any, strategy: Strategy) -> Iterator[Masked]:
    tables = value if isinstance(value, list) else [value]
    if not tables or not all(isinstance(table, dict) and table for table in tables):
        raise InputError(f"masked is {shown(value)}: expected a table such as {{ tp = 1 }}, or a list of tables")
    names = (*strategy.mesh.names, "m")
    for table in tables:
        said = dict(table)
        counts = said.pop("counts", "")
        if counts and counts not in COUNTS:
            raise InputError(f"masked counts is {shown(counts)}", name=str(counts), valid=COUNTS)
        for name, size in said.items():
            if name not in names:
                raise InputError(f"masked names '{name}', which is no axis", name=name, valid=(*names, "counts"))
            if type(size) is not int or size < 1:
                raise InputError(f"masked {name} is {shown(size)}: a size is a whole number of at least 1")
        yield Masked(FrozenMap(said), str(counts))
