"""Published numbers: what papers, manuals and estimators print, each derived from a placement where one decides it.

The claims stand in `claims/*.toml`, in groups of one source: what stands beside a group's `claims` holds for each of
them, and their `sizes` are added to the group's.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import lru_cache
from importlib.resources import files
from typing import Any

from placealg.arith import parse
from placealg.check.quantities import Subject, quantity, reads_a_program
from placealg.cost.formula import Formula
from placealg.errors import InputError
from placealg.frozen import FrozenMap

FILES = ("zero", "zeropp", "offload", "fsdp", "megatron", "pipeline", "sequences", "deepseek", "estimators",
         "collectives", "counts")
"""The files of claims, in the order in which they are told."""

KINDS: Mapping[str, str] = {
    "placement": "a placement decides it: derived from the strategy's program",
    "schedule": "the order of microbatches decides it: derived from the strategy's program",
    "collective model": "what one collective costs: read from the table of redistributions where it has a row",
    "arithmetic": "follows from its inputs alone; counts of parameters from the model's op graph",
    "heuristic": "an estimate, or a model of time, that no program here decides: its own formula, evaluated",
}
"""Kind of claim -> what it rests on."""

DERIVED = ("placement", "schedule")
"""The kinds whose numbers are derived, never evaluated from a printed formula."""

ROUNDINGS: Mapping[str, str] = {
    "nearest": "within half a unit of the last printed digit",
    "down": "cut off after the last printed digit",
    "below": "less than what is printed",
}
"""How a figure was printed -> when it is reproduced; one marked exact, or printed as a formula, must be equal."""

UNITS: Mapping[str, Fraction] = {
    "": Fraction(1), "time": Fraction(1), "bytes": Fraction(1), "elements": Fraction(1), "parameters": Fraction(1),
    "devices": Fraction(1), "tokens": Fraction(1), "bytes per parameter": Fraction(1), "%": Fraction(1, 100),
    "GB": Fraction(10**9), "GiB": Fraction(2**30), "MiB": Fraction(2**20), "2²⁰ tokens": Fraction(2**20),
    "10⁶ tokens": Fraction(10**6), "10⁹ parameters": Fraction(10**9), "10¹² parameters": Fraction(10**12),
}
"""Printed unit -> how much it is."""

REPRODUCED, DIFFERS, EVALUATED = "reproduced", "differs", "evaluated"

_LITERAL = re.compile(r"\d+(?:\.(\d+))?")


@dataclass(frozen=True, slots=True)
class PublishedClaim:
    """One published number: `printed`, a figure or a formula in the symbols used here, in `unit`.

    It has either a `quantity`, read of `strategy` on `model` (and of the strategy `beside`), or a printed `formula`.
    With a pipeline the quantity is that of `stage`: a number, `first` or `last`; the first where nothing is said.
    `terms`, `leading` and `limit` say which part of the quantity is claimed, `convention` how volumes are counted.
    `exact` asks for the printed figure itself. `why` says, of a number that does not follow from its own inputs, why;
    `instead` is a quantity or formula that does give what is printed, and so shows that the reason is the whole reason.
    """

    id: str
    claim: str
    source: str
    kind: str
    printed: str
    unit: str = ""
    strategy: str = ""
    beside: str = ""
    model: str = "abstract"
    stage: str = ""
    loss: str = ""
    quantity: str = ""
    formula: str = ""
    convention: str = "exact"
    terms: str = ""
    leading: str = ""
    limit: str = ""
    sizes: FrozenMap[str, Fraction] = FrozenMap()
    rounding: str = "nearest"
    exact: bool = False
    why: str = ""
    instead: str = ""

    def __post_init__(self) -> None:
        tables: tuple[tuple[str, Collection[str], str], ...] = (
            (self.kind, KINDS, "kind"), (self.unit, UNITS, "unit"), (self.rounding, ROUNDINGS, "rounding"))
        for value, known, what in tables:
            if value not in known:
                raise InputError(f"unknown {what} '{value}'", where=self.id, name=value, valid=known)
        if bool(self.quantity) == bool(self.formula):
            raise InputError("a claim has either a quantity or a formula", where=self.id)
        if self.kind in DERIVED and not (self.strategy and reads_a_program(self.quantity)):
            raise InputError(f"a claim of kind {self.kind} names a strategy and a quantity that is read of its program",
                             where=self.id)


@dataclass(frozen=True, slots=True)
class ClaimFinding:
    """A claim beside what is found: `ours` in all symbols, and in its unit at the claim's sizes; the same of the print.

    `verdict` is `reproduced` for what is derived and agrees, `evaluated` for a printed formula that gives its own
    figure, `differs` for what does not agree.
    """

    claim: PublishedClaim
    ours: Formula
    at_sizes: Formula
    printed: Formula
    verdict: str

    @property
    def ratio(self) -> Formula:
        """Ours over what is printed."""
        return self.at_sizes.ratio(self.printed)


@lru_cache(maxsize=1)
def claims() -> Mapping[str, PublishedClaim]:
    """Every claim by its identifier, in the order of the files.

    >>> claims()["zero-fig1-os"].printed, claims()["zero-fig1-os"].sizes
    ('31.4', {Psi: 7500000000, o: 12, dp: 64})
    """
    found: dict[str, PublishedClaim] = {}
    for name in FILES:
        text = files("placealg.check").joinpath("claims", f"{name}.toml").read_text(encoding="utf-8")
        for claim in read_claims(text):
            if claim.id in found:
                raise InputError(f"two claims are called '{claim.id}'", where=f"{name}.toml")
            found[claim.id] = claim
    return FrozenMap(found)


def read_claims(text: str) -> tuple[PublishedClaim, ...]:
    """The claims of a file's text; a key that no claim has is an InputError."""
    found = []
    for group in tomllib.loads(text)["group"]:
        shared = {key: value for key, value in group.items() if key != "claims"}
        for own in group["claims"]:
            said: dict[str, Any] = {**shared, **own}
            sizes = {**shared.get("sizes", {}), **own.get("sizes", {})}
            known = [f.name for f in fields(PublishedClaim)]
            for key in said:
                if key not in known:
                    raise InputError(f"unknown key '{key}'", where=said.get("id", ""), name=key, valid=known)
            said["sizes"] = FrozenMap({n: Fraction(v) for n, v in sizes.items()})
            found.append(PublishedClaim(**said))
    return tuple(found)


def claim(name: str) -> PublishedClaim:
    """The claim called `name`."""
    if name not in claims():
        raise InputError(f"no published number is called '{name}'", name=name, valid=claims())
    return claims()[name]


def find(claim: PublishedClaim) -> ClaimFinding:
    """What is found of a claim.

    >>> finding = find(claim("zero-fig1-os"))
    >>> finding.ours, finding.at_sizes, finding.verdict
    (Ψ·(w + g + o/dp), 1005/32, 'reproduced')
    """
    ours = _read(claim, claim.quantity or claim.formula)
    printed = Formula.parse(claim.printed, "1", symbols=parse(claim.printed).names())
    at_sizes = _at_sizes(claim, ours, ours, printed)
    verdict = DIFFERS if not agrees(claim, at_sizes, printed) else REPRODUCED if claim.quantity else EVALUATED
    return ClaimFinding(claim, ours, at_sizes, printed, verdict)


def explained(finding: ClaimFinding) -> bool:
    """Whether what the claim says `instead` gives what is printed.

    >>> explained(find(claim("ds-z2-gpu-none")))
    True
    """
    claim = finding.claim
    return bool(claim.instead) and agrees(
        claim, _at_sizes(claim, _read(claim, claim.instead), finding.ours, finding.printed), finding.printed)


def agrees(claim: PublishedClaim, ours: Formula, printed: Formula) -> bool:
    """Whether ours, in the claim's unit, is what is printed, by the claim's rounding.

    >>> figure = claim("zero-fig1-os")
    >>> [agrees(figure, Formula.parse(t, "1"), Formula.parse("31.4", "1")) for t in ("31.44", "31.46")]
    [True, False]
    """
    digits = _LITERAL.fullmatch(claim.printed)
    value, figure = ours.if_known(), printed.if_known()
    if value is None or figure is None or digits is None or claim.exact:
        return ours == printed
    unit = Fraction(1, 10 ** len(digits[1] or ""))
    if claim.rounding == "below":
        return value < figure
    if claim.rounding == "down":
        return figure <= value < figure + unit
    return abs(Fraction(value) - Fraction(figure)) <= unit / 2


def _read(claim: PublishedClaim, text: str) -> Formula:
    """A quantity read of the claim's program, or a printed formula."""
    if claim.formula:
        made = Formula.parse(text, "1", symbols=parse(text).names())
    else:
        unit = "elements" if claim.unit == "elements" else "bytes"
        subject = Subject(claim.strategy or "dp", claim.model, claim.convention, unit, claim.stage, claim.loss)
        beside = replace(subject, strategy=claim.beside) if claim.beside else None
        made = quantity(text, subject, beside, claim.terms, claim.leading)
    return made.limit(claim.limit) if claim.limit else made


def _at_sizes(claim: PublishedClaim, made: Formula, ours: Formula, printed: Formula) -> Formula:
    """In the claim's unit at its sizes and the defaults, but for symbols in which the print is written."""
    sizes = {**ours.values, **claim.sizes}
    bound = {n: v for n, v in sizes.items() if n in made.names and n not in printed.names}
    return (made.subs(**bound) * (1 / UNITS[claim.unit])).tidied()
