"""`placealg tolerance STRATEGY`: every sum of its gradients with its type, and how far rounding can move the result."""

from __future__ import annotations

from argparse import Namespace
from math import prod

from placealg.cases.case import read_case
from placealg.cli.inputs import options
from placealg.cli.output import print_json, print_lines, width
from placealg.cli.verdicts import DONE, FAILED
from placealg.cost.rounding import Tolerances
from placealg.cost.rounding import tolerance as of
from placealg.errors import InputError
from placealg.measure.rounding import Measured, measure
from placealg.progress import each
from placealg.render.tolerance import document, page
from placealg.step.program import Step

LARGEST = 4096
"""Ranks times microbatches beyond which sums are not run."""


def tolerance(chosen: Namespace) -> int:
    """Print the sums and the tolerances; 1 where a difference that was given is not explained."""
    case = read_case(chosen.strategy, chosen.model, chosen.sizes, **options(chosen))
    found = of(case.step, chosen.half, chosen.order, chosen.adds)
    sizes = {n: int(case.sizes[n]) for n in found.contributions if n in case.sizes}
    lacking = [n for n in found.contributions if n not in sizes]
    for word, given in (("--measure", chosen.measure), ("--difference", chosen.difference is not None)):
        if given and lacking:
            raise InputError(f"takes all sizes: say --set {' '.join(f'{n}=...' for n in lacking)}", where=word)
    if chosen.difference is not None and not chosen.difference >= 0:
        raise InputError(f"{chosen.difference} is no relative difference", where="--difference")
    at = {} if lacking else sizes
    ran = _measured(chosen, case.step, found, at) if chosen.measure else {}
    explained = None if chosen.difference is None else found.explains(chosen.difference, "", 0.0, 0.0, 2, **at)
    if chosen.format == "json":
        print_json(document(case.strategy.name, case.model.name, found, at, ran, chosen.difference, explained))
    else:
        print_lines(page(case.strategy.name, case.model.name, found, at, ran, chosen.difference, explained, width()))
    return FAILED if explained is False else DONE


def _measured(chosen: Namespace, step: Step, found: Tolerances, sizes: dict[str, int]) -> dict[str, Measured]:
    """First group of each row -> what a run of its sums does."""
    if prod(sizes.values()) > LARGEST:
        raise InputError(f"{prod(sizes.values()):,} ranks times microbatches are too large a run (at most {LARGEST:,})",
                         where="--measure")
    every = {**dict.fromkeys(step.reference.mesh.names, 1), **sizes}
    return {row.groups[0]: measure(step, row.groups[0], every, chosen.half, chosen.order, chosen.adds)
            for row in each(found.rows, lambda row: f"the sums of {row.groups[0]}")}
