"""A reading in the making: what the reader has put together, and the questions that every format shares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from placealg.errors import InputError
from placealg.importers.composed_strategy import Parts
from placealg.importers.document import Document
from placealg.importers.key_log import Said
from placealg.importers.reading import LISTS, Options, Reading, ReadingItem, refusal
from placealg.importers.tables import table
from placealg.strategy.vocabulary import DOUBTED


class Draft:
    """The parts of a strategy, the model and the sizes, beside what the reader said of each key."""

    def __init__(self, format_name: str, document: Document, options: Options):
        self.said = Said(table(format_name), document, options)
        self.options = options
        self.parts = Parts()
        self.model: str | Mapping[str, Any] | None = None
        self.sizes: dict[str, int] = {}
        self.more: list[Mapping[str, list[ReadingItem]]] = []
        self.texts: dict[str, str] = {document.file: document.text}
        self.microbatches: int | None = None
        self.runs: dict[str, Any] = {}
        self.unread = ""
        self.alike = ""

    @contextmanager
    def of(self, said: Said) -> Iterator[None]:
        """While a part of another document, or one by other names, is read: its keys are told as `said` has them."""
        outer, self.said = self.said, said
        try:
            yield
        finally:
            self.said = outer

    def world(self, said: int | None, key: str = "") -> int | None:
        """The number of devices: the file's, which --world-size must not contradict, else that option's."""
        asked = self.options.world_size
        if said is not None and asked is not None and said != asked:
            raise refusal(f"{key or 'the file'} says {said} devices, --world-size {asked}", self.said.where(key))
        return said if said is not None else asked

    def divided(self, world: int | None, by: int, key: str) -> int | None:
        """The ranks that are left when `by` of them form one replica; None where the world is open."""
        if world is None:
            self.said.unsaid("world_size", "the launcher decides: the data-parallel axis stays symbolic",
                             "--world-size")
            return None
        if world % by or world < by:
            raise refusal(f"{world} devices are not a multiple of the {by} that {key} takes", self.said.where(key))
        return world // by

    def accumulation(self, steps: int | None, key: str, why: str = "") -> int | None:
        """The microbatches of a step: those of `key`, or of --microbatches; None leaves them symbolic.

        A number that the file gives goes before the option's, which must not contradict it.
        """
        asked = self.options.microbatches
        if steps is not None and asked is not None and steps != asked:
            raise refusal(f"{key} says {steps} microbatches, --microbatches {asked}", self.said.where(key))
        self.microbatches = steps if steps is not None else asked
        if steps is None and asked is None:
            self.said.unsaid(key, f"{why or 'the trainer decides'}: microbatches stay m", "--microbatches")
        if self.microbatches is not None:
            self.parts.say("schedule", "microbatches", self.microbatches)
        if steps is not None:
            self.said.read(key, f"[schedule] microbatches = {steps}")
        return self.microbatches

    def unread_model(self, why: str, option: str = "--model", key: str = "") -> None:
        """The file speaks of a model that is not read, by its `key`: nothing stands in its place."""
        self.unread = f"{why}; {option} gives the model"
        tell = self.said.unsaid if key else self.said.missing
        tell(key or "model", f"{why}: proofs and figures want the model", option)

    def size(self, symbol: str, key: str, meaning: str, value: int | None = None) -> None:
        """A size of the model's symbols, such as b or s."""
        number = self.said.number(key) if value is None else value
        if number is not None:
            self.sizes[symbol] = number
            self.said.read(key, f"{symbol}, the {meaning}")

    def clip(self, key: str, value: Any, none: str = "") -> None:
        """Clipping by the global norm at `value`; 0, None and "none" clip nothing."""
        if value in (None, 0, 0.0, False, "0", "0.0", none or 0):
            self.parts.say("optimizer", "clip", "none")
            self.said.read(key, "[optimizer] clip = \"none\"", value)
        else:
            self.said.read(key, "[optimizer] clip = \"global_norm\"", value)

    def token_mean(self) -> None:
        """The loss is the mean over all tokens of a step."""
        self.parts.say("loss", "preset", "token_mean")

    def overflow(self) -> None:
        """A step with an overflow is skipped."""
        self.parts.say("optimizer", "skip", "overflow")

    def optimizer(self, key: str, name: str, known: Mapping[str, str]) -> None:
        """The optimizer's name in the catalogue's spelling; one that is not known is unsaid."""
        found = known.get(name.lower().replace("-", "_"))
        if not found:
            self.said.approximated(key, "no optimizer of that name is known: proved as an elementwise one, bytes as "
                                        "Adam's; a verdict does not cover what its update reads")
            return
        if found != "adamw":
            self.parts.say("optimizer", "name", found)
        doubt = f"; {DOUBTED[found]}" if found in DOUBTED else ""
        self.said.read(key, f"[optimizer] name = \"{found}\"{doubt}")

    def include(self, other: Said) -> None:
        """What another document of the same launch said."""
        other.finish()
        self.more.append(other.lists)
        self.texts.setdefault(other.document.file, other.document.text)

    def reading(self) -> Reading:
        """The finished reading: every key accounted for, the strategy checked."""
        said, form = self.said, self.said.table
        if self.options.model:
            self.model = self.options.model
            said.lists["unsaid"] = [item for item in said.lists["unsaid"] if item.key != "model"]
        if self.model is None and not self.unread and not any(item.key == "model" for item in said.lists["unsaid"]):
            said.unsaid("model", "the file names none: figures and proof stand on an abstract network or a stand-in",
                        "--model")
        said.finish()
        lists = {name: tuple(item for part in (said.lists, *self.more) for item in part[name]) for name in LISTS}
        file = said.document.file
        self.parts.name_types()
        try:
            strategy = self.parts.strategy(Path(file).name or file)
        except InputError as error:
            raise refusal(f"its strategy is none: {error.what}", file) from None
        if self.options.strict and lists["approximated"]:
            first = lists["approximated"][0]
            raise refusal(f"{first.key}: {first.text}", f"{first.file}:{first.line}" if first.line else file,
                          "--strict refuses what is approximated")
        asked = self.options.versions.get(form.framework, "")
        defaults = f"defaults of {form.framework} {asked or form.newest}"
        return Reading(form.name, form.title, defaults, file, strategy, self.parts.expression, self.model,
                       self.sizes, lists["read"], lists["unsaid"], lists["approximated"], lists["ignored"],
                       self.texts, runs=self.runs, alike=self.alike,
                       unread="" if self.model is not None else self.unread, tables=self.parts.tables)
