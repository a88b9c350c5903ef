"""`--robust` and `--regions` of a search: what is varied, over which range."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from placealg.arith import parse
from placealg.cli.quantities import BANDWIDTHS, BYTES, amount
from placealg.cli.quantities import RATES as FLOPS
from placealg.configurations.found import Found
from placealg.configurations.question import Question
from placealg.configurations.regions import MEMORY, Region, around, ends, names, regions
from placealg.cost.machines import RATES
from placealg.errors import InputError
from placealg.render.search_regions import document
from placealg.render.search_regions import regions as regions_page
from placealg.render.search_regions import robust as robust_page
from placealg.render.text_layout import Line

Ranges = Mapping[str, tuple[Fraction | None, Fraction | None]]


def read_ranges(chosen: Namespace, question: Question) -> Ranges:
    """What --regions says: NAME, or NAME=LOW..HIGH."""
    found: dict[str, tuple[Fraction | None, Fraction | None]] = {}
    for word in chosen.regions:
        name, equals, said = (part.strip() for part in word.partition("="))
        low, dots, high = (part.strip() for part in said.partition(".."))
        if bool(equals) != bool(dots):
            raise InputError(f"'{word}' is not NAME or NAME=LOW..HIGH, such as efficiency=0.4..0.8", where="--regions")
        try:
            found[name] = ends(question, name, *((_value(name, low), _value(name, high)) if equals else ()))
        except InputError as error:
            raise error.at("--regions") from None
    if chosen.robust:
        try:
            ends(question, MEMORY)
        except InputError as error:
            raise error.at("--robust") from None
    return found


def _value(name: str, text: str) -> Fraction:
    if name == MEMORY:
        return amount(text, BYTES, name)
    if name in RATES:
        return amount(text, FLOPS if RATES[name] == "flop/s" else BANDWIDTHS, name)
    return parse(text, ()).evaluate({})


class Varied:
    """What was asked of parameters, found: pages and data."""

    def __init__(self, found: Found, robust: bool, ranges: Ranges):
        self.question = found.question
        self.robust = {name: around(found, name) for name in names(found.question)} if robust else {}
        self.regions: dict[str, tuple[Region, ...]] = {n: regions(found, n, *ends) for n, ends in ranges.items()}

    def lines(self, width: int) -> list[Line]:
        """As text."""
        return [*(robust_page(self.robust, self.question, width) if self.robust else ()),
                *regions_page(self.regions, width)]

    def to_json(self) -> dict[str, Any]:
        """As data."""
        sides = ("below", "here", "above")
        return {"robust": {name: {side: None if one is None else document(one)
                                  for side, one in zip(sides, three, strict=True)}
                           for name, three in self.robust.items()} if self.robust else None,
                "regions": {name: [document(one) for one in every] for name, every in self.regions.items()}}
