"""`placealg report STRATEGY... -o FILE`: placements, costs with sliders, programs and verdicts as one page of HTML."""

from __future__ import annotations

from argparse import Namespace

from placealg.cases.case import CommandCase
from placealg.check.prove import judge
from placealg.cli.glosses import SAYS
from placealg.cli.output import check_file, write_file
from placealg.cli.readers import of_device, read_cases
from placealg.cli.verdicts import exit_code, of_several
from placealg.cost.costs import Costs
from placealg.progress import each, say
from placealg.prover.verdict import Report
from placealg.render.report import report as page
from placealg.render.sliders import Told
from placealg.step.compatibility import bound_sizes, orders, quotients


def report(chosen: Namespace) -> int:
    """Write the page; the exit code is that of `prove`."""
    check_file(chosen.output)
    cases = read_cases(chosen, on_one=True)
    staged = any(case.strategy.pipeline_axis for case in cases)
    every, codes = [], []
    for case in each(cases, lambda case: case.strategy.name):
        found, _ = judge(case.step, case.lead, file=case.edited, token_mean=case.token_mean)
        every.append(told(case, chosen.rank if case.strategy.pipeline_axis or not staged else None, found))
        codes.append(exit_code(found, case.expect))
    say("drawing the page")
    write_file(chosen.output, page(every, SAYS))
    return of_several(codes)


def told(case: CommandCase, rank: str | None = None, found: Report | None = None) -> Told:
    """What the page says of one case, with its verdict where there is one."""
    step = of_device(case, rank)
    bound = {name: value for name, (_, value) in bound_sizes(case.strategy, case.model).items()}
    return Told(case.strategy, case.step, Costs(step), found, case.sizes, bound,
                quotients(case.strategy, case.model), orders(case.model))
