"""`placealg fit STRATEGY`: what a device holds against its memory, which sizes fit, and how fast the wires must be."""

from __future__ import annotations

import re
from argparse import Namespace
from fractions import Fraction

from placealg.cli.inputs import Case, foreign, options, read_case, read_strategy
from placealg.cli.output import print_json, print_lines, width
from placealg.cli.quantities import BYTES, RATES, amount, bandwidths
from placealg.cli.verdicts import DONE, FAILED
from placealg.cost.compute import compute
from placealg.cost.sizing import MOST_DEVICES, Layout, degree, fit, held_against, layouts, stages
from placealg.errors import InputError
from placealg.progress import say
from placealg.render.fit import Sized, document, page


def fit_command(chosen: Namespace) -> int:
    """Read the words, settle the sizes, print, and return 0 where it fits, 1 where it does not."""
    limit = amount(chosen.device_memory, BYTES, "--device-memory")
    rate = amount(chosen.flops, RATES, "--flops") if chosen.flops else None
    speeds = bandwidths(chosen.bandwidth)
    case = _case(chosen)
    known = {n: Fraction(v) for n, v in case.strategy.mesh.sizes().items()} | dict(case.sizes)
    if any("b" in held_against(stage, chosen.by).inputs for stage in stages(case.step, known)):
        known.setdefault("b", Fraction(1))
    say("trying the sizes that divide")
    free = [a for a in case.strategy.mesh.names if a not in known]
    found: tuple[Layout, ...] | None = None
    if free and chosen.devices:
        found = layouts(case.step, case.strategy, case.model, int(chosen.devices), known, limit, chosen.by)
        known |= {a: Fraction(n) for a, n in _first(found, free, case, int(chosen.devices), known).items()}
    elif free:
        known |= _alone(free, case, limit, known, chosen.by)
    every = fit(case.step, case.strategy, case.model, limit, known, chosen.by)
    work = compute(every[0].step)
    seconds = work.bound(rate, speeds, known)
    title = " ".join(f"{case.strategy.name} on {case.model.name}".split())
    sized = Sized(title, every, known, case.strategy.mesh.names, found, work, rate, speeds, seconds)
    if chosen.format == "json":
        print_json({"version": 1, "strategy": case.strategy.name, "model": case.model.name, **document(sized)})
    else:
        print_lines(page(sized, width(), chosen.gib))
    return DONE if all(f.fits for f in every) else FAILED


def _case(chosen: Namespace) -> Case:
    """The case; `--devices` completes or checks the mesh where at most one axis is without a size."""
    words = list(chosen.sizes)
    if chosen.devices is None:
        return read_case(chosen.strategy, chosen.model, words, **options(chosen))
    if not re.fullmatch(r"[0-9]{1,7}", chosen.devices) or not 1 <= int(chosen.devices) <= MOST_DEVICES:
        raise InputError(f"'{chosen.devices}' is not a whole number from 1 to {MOST_DEVICES}", where="--devices")
    mesh = read_strategy(chosen.strategy, foreign(chosen)).mesh
    said = {word.partition("=")[0].strip() for word in words}
    if sum(a not in said and a not in mesh.sizes() for a in mesh.names) <= 1:
        words.append(f"devices={chosen.devices}")
    return read_case(chosen.strategy, chosen.model, words, **options(chosen))


def _alone(free: list[str], case: Case, limit: Fraction, known: dict[str, Fraction], kind: str) -> dict[str, Fraction]:
    """The smallest size of the only axis without one that fits; where none does, the largest divisor, or 1."""
    if len(free) > 1:
        raise InputError(f"{' and '.join(free)} have no sizes: --set all but one, or say how many --devices there are",
                         where=case.strategy.name)
    (axis,) = free
    each = [degree(held_against(stage, kind), axis, case.strategy, case.model, limit, known)
            for stage in stages(case.step, known)]
    sizes = [d.smallest or (d.tried[-1] if d.tried else 1) for d in each]
    return {axis: Fraction(max(sizes))}


def _first(found: tuple[Layout, ...], free: list[str], case: Case, devices: int,
           known: dict[str, Fraction]) -> dict[str, int]:
    """The layout that is told in full: the first that fits, else of all that divide the one that holds least."""
    if found:
        return {a: found[0].axes[a] for a in free}
    every = layouts(case.step, case.strategy, case.model, devices, known, None)
    if not every:
        raise InputError(f"no way to give {devices} devices to {' and '.join(free)} divides {case.model.name}",
                         where="--devices")
    return {a: min(every, key=lambda layout: layout.value).axes[a] for a in free}


