"""Amounts of memory, bandwidths and flop rates as users write them: `80GB`, `dp=50GB/s`, `400TFLOPS`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction

from placealg.cost.machines import Machine
from placealg.errors import InputError

_PREFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
BYTES: Mapping[str, int] = {f"{p}B": n for p, n in {**_PREFIXES, **_BINARY}.items()}
"""Unit of memory -> bytes."""
BANDWIDTHS: Mapping[str, int] = {f"{unit}/s": n for unit, n in BYTES.items()}
"""Unit of bandwidth -> bytes per second."""
RATES: Mapping[str, int] = {f"{p}FLOPS": n for p, n in _PREFIXES.items()}
"""Unit of arithmetic -> flop per second."""

_NUMBER = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*((?:[^0-9.\s]\S{0,15})?)\s*\Z")


def amount(text: str, units: Mapping[str, int], where: str) -> Fraction:
    """A positive number with a unit; an InputError names the nearest unit.

    >>> amount("80GB", BYTES, "--device-memory"), amount("1.5 GiB", BYTES, "")
    (Fraction(80000000000, 1), Fraction(1610612736, 1))
    """
    found = _NUMBER.match(text)
    example = f"80{next(u for u in units if u.startswith('G'))}"
    if not found:
        raise InputError(f"'{text[:40]}' is not a number with a unit, such as {example}", where=where)
    number, unit = found.groups()
    if unit not in units:
        what = f"unknown unit '{unit}'" if unit else f"'{text}' has no unit, such as {example}"
        raise InputError(what, where=where, name=unit, valid=units)
    if not Fraction(number):
        raise InputError(f"'{text}' is not positive", where=where)
    return Fraction(number) * units[unit]


def device_memory(said: str | None, on: Machine | None, where: str) -> Fraction:
    """The bytes of a device: what --device-memory says, or else the machine has."""
    if said is not None:
        return amount(said, BYTES, "--device-memory")
    if on is None or on.memory is None:
        raise InputError("says no memory of a device: --device-memory 80GB, or --machine h100", where=where)
    return on.memory


def bandwidths(words: Iterable[str]) -> dict[str, Fraction]:
    """Set of axes -> bytes per second.

    >>> bandwidths(["dp,ep=50GB/s"])
    {'dp,ep': Fraction(50000000000, 1)}
    """
    found: dict[str, Fraction] = {}
    for word in words:
        axes, equals, text = word.partition("=")
        if not equals or not axes:
            raise InputError(f"'{word}' is not AXES=BANDWIDTH, such as dp=50GB/s", where="--bandwidth")
        if axes in found:
            raise InputError(f"'{axes}' has two bandwidths", where="--bandwidth")
        found[axes] = amount(text, BANDWIDTHS, f"--bandwidth {word}")
    return found
