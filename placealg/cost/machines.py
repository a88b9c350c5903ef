"""Machines as data: the rates of a device, its memory and the devices of a node, each with its source."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from importlib.resources import files
from typing import Any

from placealg.errors import InputError
from placealg.frozen import FrozenMap

RATES: Mapping[str, str] = FrozenMap({
    "peak_flops": "flop/s", "node_bw": "bytes/s", "card_bw": "bytes/s", "hbm_bw": "bytes/s", "host_bw": "bytes/s",
    "nvme_bw": "bytes/s",
})
"""Rate of a device -> its unit."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Devices in nodes of `per_node`: `rates` of RATES, in flop or bytes a second, and a device's `memory` in bytes.

    The memory is what programs find there; a device is `sold_as` so many bytes, by its name.
    `source` is where its numbers stand, `checked` where they were found again, and which were not.
    """

    name: str
    rates: FrozenMap[str, Fraction]
    per_node: int
    memory: Fraction | None = None
    title: str = ""
    source: str = ""
    checked: str = ""
    sold_as: Fraction | None = None

    @property
    def values(self) -> dict[str, Fraction]:
        """Symbol -> its number: the rates, and what node and card take together.

        >>> float(machine("h100").values["out_bw"])
        500000000000.0
        """
        both = [self.rates[n] for n in ("node_bw", "card_bw") if n in self.rates]
        return {**self.rates, **({"out_bw": sum(both, Fraction(0))} if len(both) == 2 else {})}

    def with_rates(self, **said: Fraction) -> Machine:
        """The machine with other rates."""
        for name in said:
            if name not in RATES:
                raise InputError(f"a machine has no rate '{name}'", name=name, valid=RATES)
        return replace(self, rates=self.rates.plus(said))


@lru_cache(maxsize=1)
def machines() -> Mapping[str, Machine]:
    """Every machine by its name.

    >>> list(machines())[:2], machines()["h100"].per_node
    (['a100', 'h100'], 8)
    """
    text = files("placealg.cost").joinpath("machines.toml").read_text(encoding="utf-8")
    return FrozenMap({name: _read(name, said) for name, said in tomllib.loads(text, parse_float=Fraction).items()})


def machine(name: str) -> Machine:
    """The machine called `name`."""
    if name not in machines():
        raise InputError(f"no machine is called '{name}'", name=name, valid=machines())
    return machines()[name]


def found_in(sold_as: Fraction, need: Fraction) -> Machine | None:
    """A machine whose memory is sold as so much, where programs find at least what they need; None if there is none.

    >>> found_in(Fraction(80 * 10**9), Fraction(84 * 10**9)).name, found_in(Fraction(80 * 10**9), Fraction(90 * 10**9))
    ('a100', None)
    """
    return next((one for one in machines().values() if one.sold_as == sold_as and one.memory and one.memory >= need),
                None)


def _read(name: str, said: Mapping[str, Any]) -> Machine:
    return Machine(name, FrozenMap({n: Fraction(said[n]) for n in RATES if n in said}), int(said["per_node"]),
                   Fraction(said["memory"]), said["title"], said["source"], said["checked"], Fraction(said["sold_as"]))
