"""A case: strategy, model, program and sizes, read from words and files, and checked against each other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from placealg.annexes import annex
from placealg.cases.sizes import DEVICES, read_sizes, said_sizes
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.mesh import PREDICTION
from placealg.models.config import has_style, resolve_model
from placealg.models.losses import with_loss
from placealg.models.model import Model
from placealg.progress import remark, say
from placealg.step.compatibility import fit_problems
from placealg.step.derive import derive
from placealg.step.edit import Edited, apply_edits, read_edits
from placealg.step.lint import unread
from placealg.step.program import Step
from placealg.step.text import read_program
from placealg.strategy import sharing
from placealg.strategy.catalogue import names
from placealg.strategy.file import (
    Expect,
    Masked,
    StrategyFile,
    factor_files,
    packaged,
    proofs_folder,
    read_expression,
    read_strategy_file,
)
from placealg.strategy.options import TYPES
from placealg.strategy.spec import DEFAULTS, Strategy, overlay
from placealg.strategy.vocabulary import NORMALISING

if TYPE_CHECKING:
    from placealg.check.repair import Mended


class StyleOptions(TypedDict, total=False):
    """What a command line says of the model's transformer."""

    flash: bool | None
    dropout: bool | None
    parallel: bool
    fused: bool
    mtp: bool
    upcast: bool


class CommandOptions(StyleOptions, total=False):
    """What a command line says of the model's transformer, of bytes, of the loss, and beside a framework's file."""

    precision: str
    loss: str
    foreign: object


def style_of(said: CommandOptions) -> StyleOptions:
    """The options of the model's transformer among those of a case."""
    return StyleOptions(flash=said.get("flash"), dropout=said.get("dropout"), parallel=said.get("parallel", False),
                 fused=said.get("fused", True), mtp=said.get("mtp", False), upcast=said.get("upcast", False))


def default_model(*strategies: Strategy) -> str:
    """The model on which strategies stand when none is named: op by op if one of them needs it, the first that fits.

    >>> from placealg.strategy.expression import parse_strategy
    >>> default_model(parse_strategy("zero3")), default_model(parse_strategy("zero3*tp_sp"))
    ('abstract', 'gpt')
    >>> default_model(parse_strategy("zero1*ep"))
    'moe'
    """
    if not any(s.detailed for s in strategies):
        return "abstract"
    fitting = (name for name in ("gpt", "moe") if not any(
        problem for s in strategies for problem in fit_problems(s, resolve_model(name))))
    return next(fitting, "gpt")


@dataclass(frozen=True)
class CommandCase:
    """One strategy on one model at some sizes.

    `base` is the program as derived, before a file's edits or events; `expect` is what the file promises, `source`
    where it comes from, `masked` where its bug does not show. `edited` is what a file's edits made into `step`.
    `once` reads a framework's configuration for a step with one microbatch, where it leaves open how many there are.
    """

    strategy: Strategy
    model: Model
    step: Step
    sizes: Mapping[str, Fraction]
    base: Step
    expect: Expect | None = None
    source: str = ""
    masked: tuple[Masked, ...] = ()
    edited: Edited | None = None
    once: Callable[[], CommandCase] | None = None

    @property
    def lead(self) -> Step | None:
        """The derived program that a repair may lead back to: None where the step is that program."""
        return self.base if self.step != self.base else None

    def token_mean(self) -> Mended | None:
        """The program of the same loss, divided by all that it sums; None where a file edits the program."""
        from placealg.check.repair import Mended  # of what refutes: it loads a solver

        if self.step != self.base:
            return None
        said = self.strategy.tables.get("loss", FrozenMap())
        loss = {"preset": "token_mean", **{key: value for key, value in said.items() if key not in NORMALISING}}
        plain = replace(self.strategy, tables=FrozenMap({k: t for k, t in self.strategy.tables.items() if k != "loss"}))
        return Mended(derive(overlay(plain, {"loss": loss}), self.model), FrozenMap(loss))


_FILES = (".toml", ".json", ".yaml", ".yml", ".sh", ".py")
"""How files of strategies and of frameworks end: a word that ends so is no expression, whether it is there or not."""


def is_file(word: str) -> bool:
    """Whether a strategy word names a file, or a folder, rather than an expression."""
    path = Path(word)
    one = "*" not in word or path.exists()
    return (path.suffix in _FILES and one) or path.is_file() or (path.is_dir() and word not in names())


def files() -> Any:
    """The room that reads frameworks' configurations."""
    found = annex("files")
    if found is None:
        raise InputError("this copy of placealg reads no framework's configuration")
    return found


def is_foreign(word: str) -> bool:
    """Whether a strategy word names a training framework's configuration: a file that is no strategy of ours."""
    path = Path(word)
    reader = annex("files") if path.is_file() else None
    return reader is not None and bool(reader.is_configuration(path))


def read_strategy(word: str, foreign: object = None) -> Strategy:
    """The strategy alone of a TOML file, a framework's configuration or an expression."""
    if is_foreign(word):
        found: Strategy = files().reading_of_file(word, foreign).strategy
        return found
    path = str(packaged(word) or word)
    return read_strategy_file(path).strategy if is_file(path) else read_expression(word)


def named_model(word: str, said: CommandOptions) -> Model | None:
    """The model that a strategy's file or a framework's configuration names; None where it names none."""
    if is_foreign(word):
        model: Model | None = files().model_named(word, said)
        return model
    path = str(packaged(word) or word)
    filed = ((path, read_strategy_file(path)),) if is_file(path) else tuple((f.path, f) for f in factor_files(path))
    named = next(filter(None, (_named(*one) for one in filed)), "")
    return resolve_model(named, **style_of(said)) if named else None


def one_model(words: Iterable[str], strategies: Iterable[Strategy], said: CommandOptions) -> Model | str:
    """The model of strategies that stand on one where none is said: the one that files name, or `default_model`."""
    found = [(word, model) for word in words if (model := named_model(word, said)) is not None]
    for word, model in found[1:]:
        first, other = found[0]
        if model.name != other.name:
            raise InputError(f"{first} names {other.name}, {word} {model.name}: name one model with --model")
    return found[0][1] if found else default_model(*strategies)


def read_case(word: str, model: Model | str | None, sizes: Iterable[str], axes: Iterable[str] = (),
              default: Model | str = "", **said: Unpack[CommandOptions]) -> CommandCase:
    """The case that the words of a command line describe; `axes` are those of strategies beside this one.

    `default` is the model where neither the command line nor a file names one; "" leaves it to `default_model`.
    """
    say(f"deriving the program of {word}")
    if shipped := packaged(word):
        return _read_file(str(shipped), model, sizes, axes, default, said)
    if is_foreign(word):
        found: CommandCase = files().case_of_file(word, model, tuple(sizes), tuple(axes), default, said)
        return found
    if is_file(word):
        return _read_file(word, model, sizes, axes, default, said)
    sizes = tuple(sizes)
    strategy = precise(read_expression(word), said, sizes)
    _remark(strategy)
    named: Model | str = default or default_model(strategy)
    filed = factor_files(word)
    for file in filed:
        named = _as_filed(file, model, _named(file.path, file) or named, said, strategy)
    chosen = run_as(named if isinstance(named, Model) and filed else model_on(model, named, said, strategy), said)
    if left_out := tuple(text for file in filed for text in file.left_out):
        chosen = replace(chosen, left_out=(*chosen.left_out, *left_out))
    step = derive(strategy, chosen)
    return CommandCase(strategy, chosen, step, read_sizes(sizes, strategy, chosen, axes), step)


def _remark(strategy: Strategy) -> None:
    """Say over which axes states are sharded together, where a factor joins those that another one shards."""
    if told := sharing.told(strategy.states, strategy.joins):
        remark(f"{strategy.name}: {told}")


def of_strategy(strategy: Strategy, model: Model, sizes: Iterable[str] = (), devices: int | None = None,
                step: Step | None = None, **said: Unpack[CommandOptions]) -> CommandCase:
    """The case of a strategy on a model, with its program where that is not the derived one.

    `devices` complete or check the mesh where at most one axis is without a size; of `said`, precision and loss count.
    """
    words = list(sizes)
    exact, run = precise(strategy, said, words), run_as(model, said)
    if exact != strategy or run is not model:
        if step is not None and step.events != derive(strategy, model).events:
            raise InputError("the program of a file that edits it has the bytes and the loss that the file says")
        strategy, model, step = exact, run, None
    sized = said_sizes(words)
    if devices is not None and sum(a not in sized and a not in strategy.mesh.sizes() for a in strategy.mesh.names) <= 1:
        words.append(f"{DEVICES}={devices}")
    base = derive(strategy, model)
    return CommandCase(strategy, model, step or base, read_sizes(words, strategy, model), base)


def model_of(word: str, **said: Unpack[CommandOptions]) -> Model:
    """The model of a name or a config.json, as the command line's options say it runs."""
    return run_as(model_on(word, "", said), said)


def shared_model(model: str | None, strategies: Iterable[Strategy], said: CommandOptions) -> Model | str | None:
    """The named model, resolved once for all strategies; its name where what it is depends on the strategy."""
    if model is None or any(PREDICTION in s.stages_alone or "predictions" in s.attributes for s in strategies):
        return model
    return resolve_model(model, **style_of(said))


def model_on(model: Model | str | None, default: Model | str, said: CommandOptions,
           strategy: Strategy | None = None) -> Model:
    """The model that is given, or of a name; one with layers that predict, if it can, where a stage has those alone."""
    model = model or default
    if isinstance(model, Model):
        return model
    if strategy is not None and (PREDICTION in strategy.stages_alone or "predictions" in strategy.attributes):
        with suppress(InputError):
            return model_on(model, "", {**said, "mtp": True})
    return resolve_model(model, **style_of(said))


def precise(strategy: Strategy, said: CommandOptions, sizes: Iterable[str] = ()) -> Strategy:
    """The strategy with the bytes of --precision, and those of --set of which it says nothing, such as wire_w.

    A preset may be written with hyphens, as options are: fsdp2-bf16.
    """
    name = said.get("precision", "").replace("-", "_")
    try:
        strategy = overlay(strategy, {"types": {"preset": name}}) if name else strategy
    except InputError as error:
        raise error.at("--precision") from None
    known = strategy.tables.get("types", FrozenMap())
    words = (tuple(part.strip() for part in word.partition("=")) for word in sizes)
    new = {n: text for n, _, text in words if text and n in TYPES and n not in (*DEFAULTS["types"], *known)}
    try:
        return overlay(strategy, {"types": new}) if new else strategy
    except InputError as error:
        raise error.at("--set") from None


def run_as(model: Model, said: CommandOptions) -> Model:
    """The model, with its cross entropy run as --loss says."""
    try:
        return with_loss(model, said["loss"]) if said.get("loss") else model
    except InputError as error:
        raise error.at("--loss") from None


def _named(word: str, file: StrategyFile) -> str:
    """The name of the model that a strategy's file names, or the path of its config.json, which may lie beside it."""
    beside = Path(word).parent / file.model
    return str(beside) if file.model and beside.exists() else file.model


def _as_filed(file: StrategyFile, model: Model | str | None, named: Model | str, said: CommandOptions,
              strategy: Strategy) -> Model:
    """The model of a case, run as the strategy's file says where the command line is silent."""
    name = model or named
    runs = {key: value for key, value in file.runs.items() if said.get(key) is None}
    styled = isinstance(name, str) and has_style(name)
    chosen = model_on(model, named, CommandOptions(**{**said, **{  # type: ignore[typeddict-item]
        key: runs[key] for key in ("flash", "dropout") if key in runs and styled}}), strategy)
    if "loss" in runs and not said.get("loss") and any(op.kind == "cross_entropy" for op in chosen.graph.ops):
        return with_loss(chosen, runs["loss"])
    return chosen


def _read_file(word: str, model: Model | str | None, sizes: Iterable[str], axes: Iterable[str], default: Model | str,
               said: CommandOptions) -> CommandCase:
    file = read_strategy_file(word)
    named, sizes = _named(word, file), tuple(sizes)
    strategy = precise(file.strategy, said, sizes)
    if not Path(word).resolve().is_relative_to(proofs_folder("").resolve()):
        _remark(strategy)
    try:
        chosen = run_as(_as_filed(file, model, named or default or default_model(strategy), said, strategy), said)
        chosen = replace(chosen, left_out=(*chosen.left_out, *file.left_out)) if file.left_out else chosen
        step = base = derive(strategy, chosen)
    except InputError as error:
        raise (error.moved(file.place(error.key)) if error.key else error.at(word)) from None
    if file.events:
        step = step.listed(read_program(file.events, step.reference, file.positions, file.loops))
    edited = Edited(step, read_edits(file.edits, step.reference, file.positions))
    step = apply_edits(step, edited.edits) if edited.edits else step
    lines = {edit.line for edit in edited.edits if edit.action == "insert"}
    for event in unread(step, [e for e in step.events if e.line in lines]):
        print(f"placealg: {word}:{event.line}: warning: nothing reads what {event.path} makes", file=sys.stderr)
    return CommandCase(strategy, chosen, step, read_sizes(sizes, strategy, chosen, axes), base,
                file.expect, file.source, file.masked, edited)
