"""`compare A B --prove CLAIM`: one figure of two programs, compared for all sizes."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from placealg.cases.case import CommandCase
from placealg.check.claims import Side, figures, shared_sizes
from placealg.check.formulas import compare
from placealg.cli.output import print_json, print_lines, width
from placealg.cli.verdicts import DONE, FAILED, OPEN
from placealg.cost.break_even import crossings
from placealg.cost.comparison import read_claim
from placealg.cost.document import assumed
from placealg.errors import InputError
from placealg.progress import say
from placealg.prover.verdict import PROVED, REFUTED
from placealg.render.decision import decided, document


def prove_claim(chosen: Namespace, cases: Sequence[CommandCase]) -> int:
    """Decide `--prove` for two cases on one model, print the answer, and return the exit code."""
    if len(cases) != 2:
        raise InputError(f"--prove compares two strategies, not {len(cases)}", where="compare")
    if chosen.format == "markdown":
        raise InputError("--prove prints text or json", where="compare")
    one, two = cases
    if one.model != two.model:
        raise InputError(f"--prove compares on one model, not on {one.model.name} and {two.model.name}: say --model",
                         where="compare")
    first, second = (Side(c.strategy, c.step, c.sizes, c.model) for c in cases)
    over = shared_sizes(first, second)
    try:
        claim = read_claim(chosen.prove)
        left, right = figures(first, second, claim, chosen.convention, chosen.unit)
    except InputError as error:
        raise error.at("--prove") from None
    say(f"deciding {chosen.prove.strip()}")
    try:
        answer = compare(left, claim.relation, right, chosen.where or "", claim.iff, over)
    except InputError as error:
        raise error.at("--where" if chosen.where else "--prove") from None
    crossing = None
    if chosen.solve:
        try:
            crossing = chosen.solve, crossings(left, right, chosen.solve, over.fixed)
        except InputError as error:
            raise error.at(f"--solve {chosen.solve}") from None
    names = one.strategy.name, two.strategy.name
    if chosen.format == "json":
        hypotheses = dict.fromkeys((*assumed(one.step), *assumed(two.step)))
        print_json(document(answer, claim, names, one.model.name, hypotheses, crossing))
    else:
        print_lines(decided(answer, claim, names, one.model.name, width(), crossing))
    return DONE if answer.verdict == PROVED else FAILED if answer.verdict == REFUTED else OPEN
