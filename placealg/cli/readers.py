"""The commands that read a program, or a proof of one: cost, prove, recheck, compare, fit, simulate."""

from __future__ import annotations

from argparse import Namespace
from math import prod
from typing import TYPE_CHECKING, Any

from placealg.cases.case import CommandCase, is_foreign, one_model, read_case, read_strategy, shared_model
from placealg.cases.sizes import said_sizes
from placealg.cli.inputs import foreign, options, read_stage
from placealg.cli.output import print_json, print_lines, print_text, width
from placealg.cli.verdicts import DONE, FAILED, disagreements, exit_code, of_several
from placealg.errors import InputError
from placealg.progress import each, say
from placealg.render.text_layout import Line, Span, indent, line, prose
from placealg.step.program import Reference, Step

if TYPE_CHECKING:
    from placealg.check.kernel import Kernel
    from placealg.prover.verdict import Report

LARGEST_RUN = 512
"""Ranks times microbatches beyond which `simulate` refuses."""

QUICK_RUN = 64
"""So many, or fewer, are run where a strategy says more than that: some seconds."""


def prove(chosen: Namespace) -> int:
    """`placealg prove STRATEGY...`."""
    from placealg.check.prove import judge
    from placealg.cli.glosses import SAYS
    from placealg.cli.kernel_line import kernel_codes, kernel_of
    from placealg.cli.masked import masked_json, masked_lines, runs_of
    from placealg.cli.resemblance import resembled
    from placealg.render.proof import decided, proof

    codes: list[int] = []
    documents: list[dict[str, Any]] = []
    suites: list[tuple[Report, str, list[str]]] = []
    further = chosen.certificate is not None or chosen.cross_check
    if further:
        from placealg.cli.certificates import check_words, evidence, evidence_lines

        check_words(chosen)
    for case in each(read_cases(chosen), lambda case: case.strategy.name):
        _before_proving(chosen, case)
        report, candidates = judge(case.step, case.lead, chosen.engine, case.edited, case.token_mean,
                                   chosen.sums or "")
        report, checked = evidence(chosen, case, report, candidates) if further else (report, None)
        verified = kernel_of(chosen, case, report)
        hidden = runs_of(case) if chosen.masked else ()
        codes += [exit_code(report, case.expect), *([checked.code] if checked else []),
                  *kernel_codes(chosen, report, verified),
                  *(FAILED for _, outcome in hidden if not outcome.equal)]
        alike = resembled(case, report)
        documents.append({**proof_document(report, verified, alike, timing=not chosen.no_timing),
                          **({"cross_check": checked.to_json()} if checked else {}),
                          **({"masked": masked_json(hidden)} if chosen.masked else {})})
        wrong = disagreements(report, case.expect) if case.expect else []
        suites.append((report, case.expect.verdict if case.expect else "", wrong))
        if chosen.format != "text":
            continue
        lines = proof(report, width(), not chosen.no_timing, SAYS, verified.text(report))
        if alike:
            lines += [(), *prose(f"resembles {alike[0]}: {alike[1]}", width(), hang=2)]
        if case.source:
            lines += indent(prose(f"source: {case.source}", width() - 2, "dim"))
        lines += [(), *indent(decided(report, width() - 2))] if chosen.verbose else []
        lines += evidence_lines(report, checked, width()) if further else []
        lines += masked_lines(hidden, width())
        if case.expect:
            lines += _expected(wrong, case.expect.verdict)
        print_lines([*([()] if len(documents) > 1 else []), *lines])
    if chosen.format == "junit":
        from placealg.render.junit import junit

        print_text(junit(suites, timing=not chosen.no_timing))
    if chosen.format == "json":
        print_json(documents[0] if len(chosen.strategies) == 1 else {"version": 1, "reports": documents})
    return of_several(codes)


def proof_document(report: Report, verified: Kernel, alike: tuple[str, str] | None, timing: bool) -> dict[str, Any]:
    """What `prove --format json` prints of a case: the report, the verified checker's answer, the bug it resembles."""
    return {**report.to_json(timing=timing), "kernel": verified.to_json(), **({"resembles": alike[0]} if alike else {})}


def _before_proving(chosen: Namespace, case: CommandCase) -> None:
    """Raise InputError, before minutes of a proof, for what could not be said after it or would take more of them."""
    if chosen.masked:
        from placealg.cli.masked import check_masked

        check_masked(case)
    if chosen.engine != "cutoff":
        return
    from placealg.prover.evidence.cutoff import proofs_of_groups

    say("counting what is to be proved")
    proofs = proofs_of_groups(case.step)
    if proofs > chosen.most_proofs:
        raise InputError(f"{case.strategy.name} on {case.model.name} takes {proofs:,} proofs of a group, more than the "
                         f"{chosen.most_proofs:,} of --most-proofs, each up to half a second; the engine closed_form "
                         "takes each group once, for all sizes", where="--engine cutoff")


def recheck(chosen: Namespace) -> int:
    """`placealg recheck DIR`, or the file of a search's certificate."""
    from placealg.configurations.recheck import is_certificate

    if is_certificate(chosen.folder):
        return _recheck_search(chosen)
    from placealg.check.recheck import recheck as replay
    from placealg.cli.certificates import claims_of, proved_again
    from placealg.render.recheck import rechecked

    found = replay(chosen.folder, chosen.sha256, proved_again if chosen.regenerate else None, claims_of)
    if chosen.format == "json":
        print_json(found.to_json())
    else:
        print_lines(rechecked(found, chosen.folder, width()))
    return found.code


def _recheck_search(chosen: Namespace) -> int:
    from placealg.configurations.recheck import recheck_search
    from placealg.render.search_recheck import rechecked_search

    found = recheck_search(chosen.folder, chosen.sha256, chosen.regenerate)
    if chosen.format == "json":
        print_json(found.to_json())
    else:
        print_lines(rechecked_search(found, chosen.folder, width()))
    return FAILED if found.wrong else DONE


def _expected(wrong: list[str], verdict: str) -> list[Line]:
    if wrong:
        return [(), *(line(Span("✗ ", "bold red"), text) for text in wrong)]
    return [(), line(Span("✓ ", "green"), f"as the file expects: {verdict}")]


def _fewer(reference: Reference, sizes: dict[str, int], microbatches: int, given: set[str]
           ) -> tuple[dict[str, int], int]:
    """Fewer microbatches, then ranks, than a strategy says: so few that they can be run. What is given stays."""
    from placealg.simulator.setting import few_microbatches, fitting_microbatches

    stages = reference.pipeline
    small = {**sizes, **{a: 2 for a in sizes if a not in given and sizes[a] > 1}}
    if stages.axis and stages.axis not in given:
        small[stages.axis] = max(small[stages.axis], stages.least)
    for tried in (sizes, small):
        many = microbatches if "m" in given else min(microbatches, fitting_microbatches(
            reference, tried, few_microbatches(reference, tried)))
        if prod(tried.values()) * many <= QUICK_RUN:
            break
    return tried, many


def simulate(chosen: Namespace) -> int:
    """`placealg simulate STRATEGY`: a small instance of the model, trained rank by rank.

    An axis without a size has 2 ranks, a step without a count 2 microbatches, or as many more as a pipeline needs; the
    ranks hold unequally many tokens unless the strategy's loss assumes equal counts.
    """
    from placealg.simulator import Setting
    from placealg.simulator import simulate as run
    from placealg.simulator.setting import fitting_microbatches

    case = read_case(chosen.strategy, chosen.model, chosen.sizes, **options(chosen))
    reference = case.step.reference
    sizes = {a: int(case.sizes.get(a, reference.mesh[a].size or 2)) for a in reference.mesh.names}
    if (stages := reference.pipeline).axis:
        if stages.axis in case.sizes:
            stages.check_ends(sizes[stages.axis])
        sizes[stages.axis] = max(sizes[stages.axis], stages.least)
    microbatches = reference.microbatches or int(case.sizes.get("m") or fitting_microbatches(reference, sizes, 2))
    said: dict[str, int] = {}
    if prod(sizes.values()) * microbatches > LARGEST_RUN:
        many = {**sizes, "m": microbatches}
        sizes, microbatches = _fewer(reference, sizes, microbatches, said_sizes(chosen.sizes))
        said = {n: size for n, size in many.items() if size != {**sizes, "m": microbatches}[n]}
    cells = prod(sizes.values()) * microbatches
    if cells > LARGEST_RUN:
        raise InputError(f"{cells} ranks times microbatches are too large a run to simulate (at most {LARGEST_RUN})")
    say(f"training on {prod(sizes.values())} ranks and on one device")
    equal = "equal_counts" in reference.hypotheses
    make = Setting.equal if equal else Setting.unequal
    outcome = run(case.step, make(reference, sizes, microbatches, seed=chosen.seed))
    found = outcome.difference
    if chosen.format == "json":
        print_json({"version": 1, "strategy": case.strategy.name, "model": case.model.name, "sizes": sizes,
                    "microbatches": microbatches, "equal_counts": equal, "seed": chosen.seed,
                    "equal": outcome.equal, "observed": outcome.observed,
                    "difference": None if found is None else {
                        "step": found.step, "event": found.where, "rank": dict(found.rank), "subject": found.subject,
                        "instance": found.instance, "element": found.element, "got": found.got, "want": found.want,
                        "microbatch": found.microbatch, "resumed": found.resumed}})
        return DONE if outcome.equal else FAILED
    shown = ", ".join(f"{n} = {v}" for n, v in {**sizes, "m": microbatches}.items())
    if said:
        shown += " in place of " + ", ".join(f"{n} = {v}" for n, v in said.items()) + ", too many to run"
    counts = "equal counts" if equal else "unequal counts"
    verdict = Span("EQUAL", "green") if outcome.equal else Span("DIFFERS", "bold red")
    told = "all equal the single device's" if outcome.equal else "the first difference:"
    lines: list[Line] = [*prose(f"{case.strategy.name} on {case.model.name} at {shown}, {counts}, seed {chosen.seed}:",
                                width() - 8)]
    lines[-1] = line(*lines[-1], " ", verdict)
    small = "a small network with the parameter groups of" if case.model.opaque else "the ops, at small sizes, of"
    lines += indent(prose(f"{small} {case.model.name}", width() - 2, "dim"))
    lines += indent(prose(f"{outcome.observed} numbers observed on every rank, over a run and resumed ones; {told}",
                          width() - 2))
    if found:
        lines += indent(prose(str(found), width() - 4), 4)
    print_lines(lines)
    return DONE if outcome.equal else FAILED


def read_cases(chosen: Namespace, on_one: bool = False) -> list[CommandCase]:
    """Every case, read before anything is printed; a size may name an axis of any of the strategies.

    `on_one`: all of them stand on one model, where no other is said on one that a file names.
    """
    strategies = [read_strategy(word, foreign(chosen)) for word in chosen.strategies]
    axes, said = {a for s in strategies for a in s.mesh.names}, options(chosen)
    read = any(is_foreign(word) for word in chosen.strategies)
    model = chosen.model if read else shared_model(chosen.model, strategies, said)
    default = one_model(chosen.strategies, strategies, said) if on_one and model is None else ""
    return [read_case(word, model, chosen.sizes, axes, default, **said) for word in each(chosen.strategies, str)]


def of_device(case: CommandCase, rank: str | None) -> Step:
    """The program of the device whose costs are printed: of a pipeline, that of one stage."""
    say(f"reading the costs off the program of {case.strategy.name}")
    from placealg.cost.memory import chosen

    try:
        return chosen(case.step, read_stage(rank), case.sizes)
    except InputError as error:
        raise error.at("--rank" if rank and not error.where else "") from None


def cost(chosen: Namespace) -> int:
    """`placealg cost STRATEGY`."""
    from placealg.cost.costs import Costs
    from placealg.cost.document import assumed, cost_json
    from placealg.cost.stage import stage_of
    from placealg.render import export
    from placealg.render.cost import by_region, saved
    from placealg.render.cost import cost as page

    case = read_case(chosen.strategy, chosen.model, chosen.sizes, **options(chosen))
    step = of_device(case, chosen.rank)
    stage = stage_of(step)
    title = " ".join(f"{case.strategy.name} on {case.model.name}".split()) + (f", {stage}" if stage.several else "")
    if chosen.per or chosen.leading:
        from placealg.cli.growth import growth

        return growth(chosen, title, step, case.sizes)
    if chosen.format == "json":
        print_json(cost_json(step, case.sizes, chosen.convention, chosen.unit))
        return DONE
    costs = Costs(step, chosen.convention, chosen.unit)
    if chosen.format == "text":
        detail = None
        if chosen.by == "region":
            detail = "by region", by_region(costs.regions, case.sizes, width() - 2, chosen.gib)
        elif chosen.by == "tensor":
            detail = "kept for backward", saved(costs.kept, case.sizes, width() - 2, chosen.gib)
        unmoved = case.model.unmoved() if case.model.sizes else 0
        print_lines(page(title, costs, case.sizes, assumed(costs.walk, of_tensors=False), width(), chosen.gib, detail,
                         unmoved))
        return DONE
    parts = export.sections(costs)
    text = {"markdown": lambda: export.markdown(title, parts, case.sizes, chosen.gib),
            "latex": lambda: export.latex(title, parts), "python": lambda: export.python(title, parts),
            "csv": lambda: export.comma_separated(parts, case.sizes)}
    print_text(text[chosen.format]())
    return DONE


def compare(chosen: Namespace) -> int:
    """`placealg compare STRATEGY...`."""
    from placealg.cost.costs import Costs
    from placealg.render.compare import Compared, document
    from placealg.render.compare import compare as page

    cases = read_cases(chosen, on_one=True)
    if chosen.prove:
        from placealg.cli.claims import prove_claim

        return prove_claim(chosen, cases)
    if chosen.where or chosen.solve:
        raise InputError(f"--{'where' if chosen.where else 'solve'} goes with --prove", where="compare")
    staged = any(c.strategy.pipeline_axis for c in cases)
    every = []
    for c in cases:
        step = of_device(c, chosen.rank if c.strategy.pipeline_axis or not staged else None)
        every.append(Compared(c.strategy.name, Costs(step, chosen.convention, chosen.unit), c.sizes))
    if chosen.format == "json":
        print_json(document(every, cases[0].model.name))
    else:
        print_lines(page(every, cases[0].model.name, width(), chosen.gib))
    return DONE


def fit(chosen: Namespace) -> int:
    """`placealg fit STRATEGY`."""
    from placealg.cli.fit import fit_command

    return fit_command(chosen)


__all__ = ["compare", "cost", "fit", "prove", "recheck", "simulate"]
