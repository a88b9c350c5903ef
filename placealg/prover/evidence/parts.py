"""The parts of a gradient: what a failing update reads along each path of a parameter, and the ratio of the whole.

A parameter's gradient is the sum over its uses, and over the classes of contributions that ranks count differently
within a use. An obligation is about one of these paths alone; what is told of a gradient is about all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from placealg.arith import Monomial
from placealg.models.graph import unit_of
from placealg.polynomial import Polynomial
from placealg.prover import correct
from placealg.prover.calculus.contribution import STALE, Term
from placealg.prover.calculus.machine import Site, Updated
from placealg.prover.calculus.microbatches import CASES, Case
from placealg.prover.evidence.counterexample_words import ModelPlaces, got, mass
from placealg.prover.obligations import Failure, Obligations
from placealg.step.program import Reference

Terms = tuple[Term, ...]
Look = Callable[[Updated], Terms | None]
"""What is looked at in an update: the weights of its gradient, or of the one that a norm or a flag was taken of."""


@dataclass(frozen=True, slots=True)
class Part:
    """An update as it reads the contributions along one path, in each case of a unit's microbatch that is known."""

    site: Site
    updates: Mapping[Case, Updated]


def parts(failure: Failure, generated: Obligations, paths: Mapping[Site, Site]) -> tuple[Part, ...]:
    """The parts of the gradient that a failing update reads, that of the failure first; none if nothing is updated.

    `paths` maps every path of a parameter to one that counts alike, and for which obligations were generated.
    """
    update, own = failure.update, failure.site
    if update is None or own is None:
        return ()
    others = [path for path in paths if path.parameter == own.parameter and path != own]
    return tuple(Part(path, {case: found for case in CASES if (found := generated.updates.get(
        (update.event, update.flag, paths.get(path, path), case)))}) for path in (own, *others))


def gradient_of(update: Updated) -> Terms | None:
    """The weights of the gradient."""
    return update.gradient.terms


def flag_of(update: Updated) -> Terms | None:
    """The weights of the gradient that the flag checks; None where there is no flag of this step."""
    return update.skip.counted.terms if update.skip and update.skip != STALE else None


def norm_of(number: int, update: Updated) -> Terms | None:
    """The weights of the gradient whose norm a transform has used, by its number; None where there is none."""
    tags = update.gradient.tags
    return slot.counted.terms if number < len(tags) and (slot := tags[number].slot) else None


_BEFORE_THREE = (({"only": 1}, 1), ({"first": 1, "last": 1}, 2))
"""The positions of a unit's microbatch, and how many microbatches have each, where m is 1 and where it is 2."""


def ratio_of(part: Part, look: Look, want: Monomial, reference: Reference, place: ModelPlaces,
             microbatches: int) -> Polynomial | None:
    """sum of got / sum of want over the units of a path, under equal counts; None if it has no closed form.

    It is a formula in m where one holds for the number of microbatches and for all from three on, else the ratio there.
    """
    def at(least: int, number: Mapping[str, Polynomial], m: Polynomial) -> Polynomial | None:
        total = Polynomial()
        for name, times in number.items():
            cases = [c for c in CASES if c.name == name and (c.least == least if least < 3 else c.least >= 3)]
            terms = [look(part.updates[c]) if c in part.updates else None for c in cases]
            shares = [None if t is None else mass(t, want, reference, place) for t in terms]
            if shares[0] is None or any(s != shares[0] for s in shares):
                return None
            total = total + shares[0] * times
        return total / m

    m, one = Polynomial.name("m"), Polynomial.number(1)
    if microbatches < 3:
        numbers, least = _BEFORE_THREE[microbatches - 1]
        exact = at(least, {name: Polynomial.number(n) for name, n in numbers.items()}, Polynomial.number(least))
        exact = exact and exact.put("m", Polynomial.number(least))
    if reference.microbatches == 1:
        return exact
    every = at(3, {"first": one, "middle": m - Polynomial.number(2), "last": one}, m)
    if microbatches >= 3:
        return every
    return every if every is not None and exact == every.put("m", Polynomial.number(microbatches)) else exact


@dataclass(frozen=True, slots=True)
class ToldParts:
    """The weights of a gradient in words, path by path where they differ; `paths` are the names of all."""

    says: str
    paths: tuple[str, ...]

    def among(self, wrong: Sequence[bool]) -> str:
        """The paths, in words, of which contributions are wrong; "" if all are, or if there is only one."""
        named = list(dict.fromkeys(p for p, is_wrong in zip(self.paths, wrong, strict=True) if is_wrong))
        return f" through {' and '.join(named)}" if named and not all(wrong) else ""


def told_parts(of: Sequence[Part], failure: Failure, look: Look, case: Case | None,
               weighting: correct.Weighting, reference: Reference) -> ToldParts:
    """The weights that the parts have in the case of a failure, in words."""
    weights = [failure.update if not k else part.updates.get(case) if case else None for k, part in enumerate(of)]
    said = [got(terms, weighting) if u and (terms := look(u)) is not None else "not known" for u in weights]
    names = [named(part.site, of, reference) for part in of]
    told = dict.fromkeys(zip(names, said, strict=True))
    if len({*said}) == 1:
        return ToldParts(said[0], tuple(names))
    return ToldParts("; ".join(f"through {name}: {text}" for name, text in told), tuple(names))


def named(site: Site, among: Sequence[Part], reference: Reference) -> str:
    """A path in words: the op, or whole unit, that uses the parameter; its operand, and the loss, if there are more."""
    op, _, operand = site.use.rpartition("/")
    several = len({part.site.use for part in among if part.site.use.rpartition("/")[0] == op}) > 1
    as_operand = f" as operand {int(operand) + 1}" if several and not reference.whole else ""
    of = f" from the loss {site.loss}" if len({part.site.loss for part in among}) > 1 else ""
    return (unit_of(site.use) if reference.whole else op) + as_operand + of
