"""The strategy of a reading, put together: factors of the catalogue, and tables over their axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from placealg.number_formats import FORMATS
from placealg.strategy.catalogue import entry
from placealg.strategy.expression import parse_strategy
from placealg.strategy.precision import precision
from placealg.strategy.spec import Strategy, overlay
from placealg.strategy.validation import check

STAGES = ("dp", "zero1", "zero2", "zero3")
"""ZeRO stage -> the catalogue's name."""


TYPE_NAMES = {"float32": "fp32", "float": "fp32", "fp32": "fp32", "bfloat16": "bf16", "bf16": "bf16", "float16": "fp16",
         "half": "fp16", "fp16": "fp16"}
"""A type as a framework calls it -> its name here."""

GATHERED_LOGITS = "head.loss.none"
"""The entry of an axis that splits the logits along vocab, and gathers them before the cross entropy."""


@dataclass
class Parts:
    """What a reader has found so far.

    `half` is the type that 2 bytes are, bf16 or fp16, "" where all is in fp32, None where no type is known. `exact` are
    the types of element sizes that a file names one by one.
    """

    factors: list[tuple[str, dict[str, int | None]]] = field(default_factory=list)
    modifiers: list[str] = field(default_factory=list)
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    half: str | None = None
    exact: dict[str, str] = field(default_factory=dict)

    def axis(self, name: str, size: int | None = None, **sizes: int | None) -> None:
        """A factor on its catalogue axis, of `size` ranks, or on the axes of `sizes`; None is symbolic."""
        self.factors.append((name, sizes or {entry(name).axes[0]: size}))

    def replicated(self, stage: int, replicas: int | None, shards: int | None, optimizer_over_both: bool) -> None:
        """The factors of a ZeRO stage over dp_shard, replicated over dp_replicate, or with its optimizer over both."""
        if stage == 3 and not optimizer_over_both:
            self.axis("hsdp", dp_replicate=replicas, dp_shard=shards)
            return
        self.axis("zero1" if optimizer_over_both else "dp", dp_replicate=replicas)
        self.axis(STAGES[stage], dp_shard=shards)

    def modifier(self, name: str) -> None:
        """A modifier, once."""
        if name not in self.modifiers:
            self.modifiers.append(name)

    def say(self, table: str, key: str, value: Any) -> None:
        """A key of a table over what the factors say; a table inside it is merged."""
        said = self.tables.setdefault(table, {})
        if isinstance(value, Mapping) and isinstance(said.get(key), Mapping):
            value = {**said[key], **value}
        said[key] = value

    def types(self, preset: str = "", **bytes_: Any) -> None:
        """The bytes of a preset, then those that are given."""
        for name, value in {**(precision(preset).types if preset else {}), **bytes_}.items():
            self.say("types", name, value)

    def name_types(self) -> None:
        """Element sizes by the names of their types, where the file says what gradients rest and travel in.

        >>> parts = Parts(half="bf16", exact={"wire": "fp16"})
        >>> parts.types(w=2, g=4, wire=2, o=12)
        >>> parts.name_types()
        >>> parts.tables["types"]
        {'w': 'bf16', 'g': 'fp32', 'wire': 'fp16', 'o': 12}
        """
        said = self.tables.get("types", {})
        named = self._named(said)
        if self.half is None or not {"g", "wire"} <= {k for k, v in named.items() if v in FORMATS}:
            return
        said.update(named)
        for group in self.tables.get("groups", {}).values():
            if isinstance(group, dict) and "types" in group:
                group["types"] = self._named(group["types"])

    def _named(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Sizes with names: 4 bytes are fp32, 2 are `half`; those of an optimizer's state, and others, stay numbers."""
        known = {"4": "fp32", **({"2": self.half} if self.half else {})}
        exact = {k: name for k, name in self.exact.items() if k in said and str(FORMATS[name].bytes) == str(said[k])}
        return {k: v if k in ("o", "avg") else exact.get(k) or known.get(str(v), v) for k, v in said.items()}

    def all_reduce(self, *axes: str) -> None:
        """Gradients are summed whole over `axes`, and over those that shard the states with them, and then sliced."""
        sharing = parse_strategy(self.expression).state("optimizer").modes
        self.say("schedule", "reduction", dict.fromkeys((*axes, *(a for a in sharing if a not in axes)), "all_reduce"))

    def gather_logits(self) -> None:
        """Logits are split along vocab over tp, and gathered before the cross entropy."""
        named = self.tables.get("dims", {}).get("tp") or next(
            entry(name).tables["dims"]["tp"] for name, sizes in self.factors if "tp" in sizes)
        self.say("dims", "tp", [GATHERED_LOGITS, "loss.none", *(d for d in named if d != "loss.none")])

    def accumulate_whole(self, *axes: str) -> None:
        """Gradients rest whole over `axes` between microbatches, and are reduced once."""
        self.say("states", "gradients", dict.fromkeys(axes, "R"))

    @property
    def expression(self) -> str:
        """The product of the factors, without sizes and with the modifiers."""
        words = []
        for name, sizes in self.factors:
            renamed = tuple(sizes) != entry(name).axes
            words.append(f"{name}[{','.join(sizes)}]" if renamed else name)
        return "*".join([*words, *self.modifiers])

    def strategy(self, name: str) -> Strategy:
        """The strategy, checked."""
        words = []
        for factor, sizes in self.factors:
            items = [axis if size is None else f"{axis}={size}" for axis, size in sizes.items()]
            words.append(f"{factor}[{','.join(items)}]")
        base = parse_strategy("*".join([*words, *self.modifiers]))
        made = replace(overlay(base, self.tables), name=name)
        check(made)
        return made
