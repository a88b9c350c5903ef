"""A reading: the strategy that a configuration decides, and four lists of what became of each of its keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from placealg.cases.source import Source
from placealg.errors import InputError
from placealg.importers.document import Document
from placealg.step.actions import faults, read_table
from placealg.strategy.spec import Strategy


@dataclass(frozen=True, slots=True)
class ReadingItem:
    """One line of a reading: a key where it stands, its value, and what that became.

    `line` is 0 where the key stands in no file: then a default of the framework speaks, or nobody. `option` is what on
    the command line supplies the key.
    """

    file: str
    line: int
    key: str
    value: str
    text: str
    option: str = ""

    @property
    def place(self) -> str:
        """`FILE:LINE`, the file's name alone and at most 28 signs of it; "" where the key stands in none."""
        name = Path(self.file).name
        name = name if len(name) <= 28 else f"{name[:12]}...{name[-13:]}"
        return f"{name}:{self.line}" if self.line else ""

    def to_json(self) -> dict[str, Any]:
        """The item as JSON has it."""
        return {"file": self.file, "line": self.line or None, "key": self.key, "value": self.value, "text": self.text,
                **({"option": self.option} if self.option else {})}


LISTS: Mapping[str, str] = {
    "read": "what a key became in the strategy",
    "unsaid": "what the file does not decide: who does, and which option supplies it",
    "approximated": "what is understood and cannot be said: what stands instead, and which figures are off",
    "ignored": "what has no bearing on the placement",
}
"""The four lists of a reading, and what each holds."""


@dataclass(frozen=True)
class Reading(Source):
    """What a configuration says of a strategy.

    `expression` is the catalogue's word for it, without what stands in tables of its own. `model` is the name of a
    shipped configuration, the fields of a config.json, or None; `sizes` are b, s and the like; `runs` are the options
    of the model that the file decides, `flash` and `dropout`, and how its `loss` is run. `unread` says why a model of
    which the file speaks is not read, and `alike` names one of the same ops that stands in its place. `tables` are the
    keys that the strategy has beside the expression.
    """

    format: str
    title: str
    defaults: str
    file: str
    strategy: Strategy
    expression: str
    model: str | Mapping[str, Any] | None
    sizes: Mapping[str, int]
    read: tuple[ReadingItem, ...]
    unsaid: tuple[ReadingItem, ...]
    approximated: tuple[ReadingItem, ...]
    ignored: tuple[ReadingItem, ...]
    texts: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    options: Options | None = field(default=None, compare=False, repr=False)
    runs: Mapping[str, Any] = field(default_factory=dict)
    unread: str = ""
    alike: str = ""
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def accumulates(self) -> bool:
        """Whether neither the file nor the user says how many microbatches a step has, so that it may be one."""
        return (self.options is not None and self.options.microbatches is None and self.strategy.microbatches is None
                and not self.strategy.pipeline_axis)

    @property
    def faults(self) -> tuple[str, ...]:
        """What keeps an order of a pipeline that is written down from running, in words; () where it can run."""
        rows = tuple(self.strategy.option("schedule", "actions"))
        return tuple(fault.says for fault in faults(read_table(rows))) if rows else ()

    @property
    def headline(self) -> str:
        """What was read as what, in one line."""
        sizes = ", ".join(f"{a.name} = {a.size}" for a in self.strategy.mesh if a.size is not None)
        free = [a.name for a in self.strategy.mesh if a.size is None]
        open_ = f"{' and '.join(free)} open" if free else ""
        return f"read as {self.title} ({self.defaults}): {self.expression}" + "".join(
            f", {part}" for part in (sizes, open_) if part)

    @property
    def stand_in(self) -> str:
        """The model on which a reading stands that names none: one that has what its groups and dims speak of.

        A model of which the file speaks, and that is not read, is an InputError.
        """
        if self.model is not None:
            return ""
        if self.unread:
            raise InputError(self.unread, where=Path(self.file).name)
        if any("dense_ffn" in dims for dims in self.strategy.dims.values()):
            return "deepseek-v3"
        if self.alike:
            return self.alike
        return "gpt" if self.strategy.groups else ""

    @property
    def run_with(self) -> str:
        """The options of a command line that run the model as the file does; "" where it says nothing of that."""
        words = [f"--{'' if self.runs[name] else 'no-'}{name}" for name in ("flash", "dropout") if name in self.runs]
        return " ".join([*words, *([f"--loss {self.runs['loss']}"] if "loss" in self.runs else [])])

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What a verdict on the reading does not speak of: everything that is approximated."""
        return tuple(f"{item.key} of {Path(self.file).name}: {item.text}" for item in self.approximated)

    def to_json(self) -> dict[str, Any]:
        """The reading as JSON has it; its strategy is TOML text."""
        from placealg.strategy.write import write_strategy

        return {"version": 2, "file": self.file, "format": self.format, "defaults": self.defaults,
                "expression": self.expression, "axes": {a.name: a.size for a in self.strategy.mesh},
                "strategy": write_strategy(self.strategy),
                "model": dict(self.model) if isinstance(self.model, Mapping) else self.model,
                "sizes": dict(self.sizes), "runs": dict(self.runs), "faults": list(self.faults),
                **{name: [item.to_json() for item in getattr(self, name)] for name in LISTS}}

    def __str__(self) -> str:
        lines = [self.headline]
        for name in LISTS:
            for item in getattr(self, name):
                said = f"{item.key} = {item.value}" if item.value else item.key
                lines.append(f"  {name if name != 'read' else item.place:<14} {said}: {item.text}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Options:
    """What a user says beside the file.

    `files` are further files (--with), `env` and `settings` the values of --env and --set, `arguments` what stands
    for a script's $1, $2, `versions` a framework's version by its name. A launch that is followed adds `launcher`, what
    `accelerate launch` sets up, and `written`, the texts of files that its script writes.
    """

    world_size: int | None = None
    files: tuple[str, ...] = ()
    format: str = ""
    model: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    function: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    trainer: str = ""
    microbatches: int | None = None
    ignore: tuple[str, ...] = ()
    launch: int = 0
    strict: bool = False
    launcher: Document | None = None
    written: Mapping[str, str] = field(default_factory=dict)


def refusal(what: str, where: str, remedy: str = "") -> InputError:
    """A reading that cannot be given: what stands in its way, where, and what would help."""
    text = f"{what}{f'; {remedy}' if remedy else ''}"
    return InputError(re.sub("\x01+", "$", text).replace("\x02", ""), where=where)
