"""Strategies side by side: each quantity's formulas, values, and ratios to the first strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from placealg.cost.costs import Costs
from placealg.cost.formula import Formula
from placealg.errors import InputError, need
from placealg.notebook_display import Shown
from placealg.render.cost import QUANTITIES, Sizes, known_sizes, value_of
from placealg.render.text_layout import Cell, Line, bold, dim, indent, plain, prose, table
from placealg.render.values import scale_for, scaled

_READABLE = 36
_NONE = "—"


class Compared(NamedTuple):
    """One strategy's costs, with the sizes at which its values are taken."""

    name: str
    costs: Costs
    sizes: Sizes

    def quantities(self) -> dict[str, Formula]:
        """What is compared, by name."""
        found = {n: f for n, f in self.costs.memory.items() if n in QUANTITIES}
        sent = self.costs.communication
        return {**found, "sent": sent.total, "host link": sent.host_link, "nvme link": sent.nvme_link}


def _of_pipelines(every: Sequence[Compared]) -> list[dict[str, Formula]]:
    """What is compared of each, with the bubble where one of them has a pipeline."""
    if not any(c.costs.schedule for c in every):
        return [c.quantities() for c in every]
    return [{**c.quantities(), "bubble": c.costs.bubble} for c in every]


@dataclass(frozen=True, slots=True)
class Comparison(Shown):
    """Programs side by side, as text, by name, or as the JSON object of `placealg compare --format json`."""

    sides: tuple[Compared, ...]
    model: str

    def ratio(self, quantity: str, of: int = 1) -> Formula:
        """A quantity of one of the programs, counted from 0, over the first one's."""
        found = _of_pipelines(self.sides)
        need(quantity, str, "name of a quantity")
        need(of, int, "number of a program")
        if quantity not in found[0] or not 0 <= of < len(found):
            raise InputError(f"no quantity '{quantity}' of program {of}", name=quantity, valid=found[0])
        return ratio(found[of][quantity], found[0][quantity], self.sides[of].sizes, self.sides[0].sizes).formula

    def to_json(self) -> dict[str, Any]:
        """The comparison as a JSON object."""
        return document(self.sides, self.model)

    def __repr__(self) -> str:
        return "\n".join(plain(text) for text in compare(self.sides, self.model, 100, gib=False))


class Ratio(NamedTuple):
    """One quantity of a strategy over the same of another: the formula, and its value where sizes are known."""

    formula: Formula
    value: Fraction | None


def ratio(mine: Formula, theirs: Formula, my_sizes: Sizes, their_sizes: Sizes) -> Ratio:
    """`mine` over `theirs`; a formula only where one symbol has one size on both sides."""
    one, two = {**mine.values, **my_sizes}, {**theirs.values, **their_sizes}
    top, bottom = value_of(mine, my_sizes), value_of(theirs, their_sizes)
    clash = [n for n in one if one[n] != two.get(n, one[n]) and n in (*mine.names, *theirs.names)]
    formula = mine.ratio(theirs) if not clash else Formula.none("1", f"{', '.join(clash)} differ")
    if top is not None and bottom:
        return Ratio(formula, Fraction(top) / Fraction(bottom))
    value = value_of(formula, {**their_sizes, **my_sizes})
    return Ratio(formula, None if value is None else Fraction(value))


def compare(every: Sequence[Compared], model: str, width: int, gib: bool) -> list[Line]:
    """A block per quantity, a row per strategy."""
    first = every[0]
    title = prose(f"{', '.join(c.name for c in every)} on {model}", width, "bold")
    sizes: Mapping[str, Fraction] = {n: v for c in every for n, v in c.sizes.items()}
    compared = _of_pipelines(every)
    known = known_sizes((f for c in every for f in c.quantities().values()), sizes, _clashing(every))
    known += [("of", f"{c.name}: {c.costs.stage}") for c in every if c.costs.stage]
    lines = [*title, *indent(table([[dim(k), dim(t)] for k, t in known], "ll", width - 2, wrap={1: 30})), ()]
    values = [(f.unit, value_of(f, c.sizes)) for c, found in zip(every, compared, strict=True) for f in found.values()]
    scales = {unit: scale_for(unit, (v for u, v in values if u == unit), gib) for unit, _ in values}
    numbers = any(v for _, v in values)
    head: list[Cell] = [bold("of a device"), bold("strategy"), bold("formula"), bold("value" if numbers else ""),
                        bold(f"over {first.name}"), bold("ratio")]
    rows = [head]
    for name, base in compared[0].items():
        if all(found[name].expr in (0, None) for found in compared):
            continue
        if name == "peak" and all(c.costs.memory.peak == c.costs.memory.total for c in every):
            continue
        unit, divisor = scales[base.unit]
        rows.append([])
        for k, c in enumerate(every):
            mine = compared[k][name]
            value = scaled(value_of(mine, c.sizes), divisor)
            told = ratio(mine, base, c.sizes, first.sizes) if k else None
            rows.append([bold(name) if k == 0 else "", c.name, mine.text() or dim(mine.reason),
                         f"{value} {unit}".removesuffix(" number") if value and numbers else "", *_ratio_cells(told)])
    return lines + table(rows, "lllrlr", width, wrap={2: 24, 4: 20})


def document(every: Sequence[Compared], model: str) -> dict[str, Any]:
    """The comparison as a JSON object: a leaf per quantity and strategy, and its ratio to the first."""
    first, *_ = compared = _of_pipelines(every)
    rows = []
    for c, found in zip(every, compared, strict=True):
        told = {n: ratio(f, first[n], c.sizes, every[0].sizes) for n, f in found.items()}
        rows.append({
            "strategy": c.name, **({"stage": c.costs.stage} if c.costs.stage else {}),
            "quantities": {n: _leaf(f, c.sizes) for n, f in found.items()},
            "ratios": {n: {**r.formula.to_json(), "value": None if r.value is None else float(r.value)}
                       for n, r in told.items()}})
    return {"version": 1, "model": model, "base": every[0].name, "strategies": rows}


def _leaf(formula: Formula, sizes: Sizes) -> dict[str, Any]:
    return formula.to_json(**{n: v for n, v in sizes.items() if n in formula.inputs})


def _ratio_cells(told: Ratio | None) -> tuple[Cell, Cell]:
    """The ratio's formula, left out beside a value where it is too long to be read, and its value."""
    if told is None:
        return "", ""
    value = "" if told.value is None else str(told.value) if told.value.denominator == 1 else f"{float(told.value):.4g}"
    text = told.formula.text()
    if len(text) > _READABLE and value:
        return "", value
    return (text or dim(_NONE)), ("" if value == text else value)


def _clashing(every: Sequence[Compared]) -> set[str]:
    """The symbols that have different values in different strategies."""
    seen: dict[str, set[Fraction]] = {}
    for c in every:
        for formula in c.quantities().values():
            for name, value in {**formula.values, **c.sizes}.items():
                seen.setdefault(name, set()).add(value)
    return {name for name, values in seen.items() if len(values) > 1}
