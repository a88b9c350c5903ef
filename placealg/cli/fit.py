"""`placealg fit STRATEGY`: what a device holds against its memory, which sizes fit, and how fast the wires must be."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import partial

from placealg.cases.case import CommandCase, read_case, read_strategy
from placealg.cases.sizes import said_sizes
from placealg.check.changes import Limits, changes
from placealg.cli.inputs import foreign, options
from placealg.cli.output import print_json, print_lines, width
from placealg.cli.quantities import BYTES, RATES, amount, bandwidths, device_memory
from placealg.cli.verdicts import DONE, FAILED
from placealg.cost.compute import compute
from placealg.cost.layouts import MOST_SEQUENCES, Layout, layouts, sequences, with_batch
from placealg.cost.links import places
from placealg.cost.machines import Machine, machine
from placealg.cost.sizing import KINDS, MOST_DEVICES, NO_MARGIN, Margin, degree, fit, held_against, stages
from placealg.cost.times import least
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.progress import say
from placealg.render.fit import Sized, document, page
from placealg.step.program import Step

PRICED = "h100"
"""At whose rates changes are priced where no machine is said."""


def fit_command(chosen: Namespace) -> int:
    """Read the words, settle the sizes, print, and return 0 where it fits, 1 where it does not."""
    rate = amount(chosen.flops, RATES, "--flops") if chosen.flops else None
    speeds = bandwidths(chosen.bandwidth)
    on = _machine(chosen.machine) if chosen.machine else None
    limit = device_memory(chosen.device_memory, on, "fit")
    rate = on.rates["peak_flops"] if on is not None and rate is None else rate
    margin = read_margin(chosen.reserve, chosen.activation_factor)
    measured = amount(chosen.measured, BYTES, "--measured") if chosen.measured else None
    batch = whole(chosen.batch, MOST_SEQUENCES, "--batch") if chosen.batch else None
    case = _case(chosen)
    sized = settled(case, limit, devices=whole(chosen.devices, MOST_DEVICES, "--devices")
                    if chosen.devices is not None else None, batch=batch, margin=margin, kind=chosen.by, rate=rate,
                    speeds=speeds, measured=measured, on=on)
    if chosen.format == "json":
        print_json({"version": 2, "strategy": case.strategy.name, "model": case.model.name, **document(sized)})
    else:
        print_lines(page(sized, width(), chosen.gib))
    return DONE if sized.fits else FAILED


def settled(case: CommandCase, limit: Fraction, *, devices: int | None = None, batch: int | None = None,
            margin: Margin = NO_MARGIN, kind: str = KINDS[0], rate: Fraction | None = None,
            speeds: Mapping[str, Fraction] = FrozenMap(), measured: Fraction | None = None,
            on: Machine | None = None) -> Sized:
    """A case at its sizes against the memory `limit`, in bytes; what is left open is settled so that it fits.

    Without a batch a step has one microbatch where nothing says another number. Gradients that rest whole while others
    are accumulated do not in such a step.
    """
    known = {n: Fraction(v) for n, v in case.strategy.mesh.sizes().items()} | dict(case.sizes)
    told = case.strategy.microbatches or known.get("m")
    if case.once and not batch and told in (None, 1):
        case = case.once()
    if (batch and told is None) or (not batch and any(
            "b" in held_against(stage, kind).inputs for stage in stages(case.step, known))):
        known.setdefault("b", Fraction(1))
    say("trying the sizes that divide")
    free = [a for a in case.strategy.mesh.names if a not in known]
    found: tuple[Layout, ...] | None = None
    if free and devices:
        ways = partial(layouts, case.step, case.strategy, case.model, devices, known, kind=kind,
                       margin=margin, batch=batch)
        found = ways(limit=limit)
        known |= {a: Fraction(n) for a, n in _first(found, free, case, devices, ways).items()}
    elif free:
        known |= _alone(free, case, limit, known, kind, margin)
    given = {n: v for n, v in known.items() if n not in case.strategy.mesh.names or n in case.strategy.mesh.sizes()}
    if batch:
        known = _filled(case, known, batch)
        if case.once and found is None and known["m"] == 1:
            case = case.once()
    every = fit(case.step, case.strategy, case.model, limit, known, kind, margin)
    work = compute(every[0].step)
    seconds = work.bound(None, speeds, known)
    rates = ({} if on is None else on.values) | ({} if rate is None else {"peak_flops": rate})
    inside = {} if on is None else places(known, case.strategy.mesh.names, on.per_node)
    bound = slowest({**known, **rates, **inside}, [each.step for each in every]) if rates else {}
    priced = (machine(PRICED) if on is None else on).with_rates(**({} if rate is None else {"peak_flops": rate}))
    changed = None
    if not all(f.fits for f in every):
        say("trying changes that would fit")
        changed = changes(case.strategy, case.model, case.step, known, given,
                          Limits(limit, priced, kind, margin, batch))
    title = " ".join(f"{case.strategy.name} on {case.model.name}".split())
    return Sized(title, every, known, case.strategy.mesh.names, found, work, rate, speeds, seconds,
                 sequences(case.strategy, known), batch, measured, bound, changed, priced.name)


def fitted(case: CommandCase, memory: str, devices: int | None, batch: int | None, reserve: str | None,
           factor: str | float | None, kind: str) -> Sized:
    """A case at its sizes against the memory of a device, all as the command line has it: "80GB", "6GB", 1.5."""
    if kind not in KINDS:
        raise InputError(f"unknown convention '{kind}'", name=str(kind), valid=KINDS)
    if memory == "":
        raise InputError("fit needs the memory of a device: device_memory='80GB' say")
    for name, text in (("device_memory", memory), ("reserve", reserve or "0GB")):
        if not isinstance(text, str):
            raise InputError(f"{name} = {text!r} is not text such as '80GB'")
    return settled(
        case, amount(memory, BYTES, "device_memory"), kind=kind,
        devices=None if devices is None else whole(str(devices), MOST_DEVICES, "devices"),
        batch=None if batch is None else whole(str(batch), MOST_SEQUENCES, "batch"),
        margin=read_margin(reserve, None if factor is None else str(factor)))


def _machine(name: str) -> Machine:
    try:
        return machine(name)
    except InputError as error:
        raise error.at("--machine") from None


def slowest(known: Mapping[str, Fraction], steps: Iterable[Step]) -> dict[str, Fraction]:
    """Part of the bound of a step -> its seconds, on the stage where that part takes longest."""
    found: dict[str, Fraction] = {}
    for step in steps:
        for part, value in least(step, known).items():
            found[part] = max(value, found.get(part, value))
    return found


def read_margin(reserve: str | None, factor: str | None) -> Margin:
    """What `--reserve` and `--activation-factor` set aside.

    >>> read_margin("6GB", "1.5")
    Margin(reserve=Fraction(6000000000, 1), factor=Fraction(3, 2))
    """
    aside = Fraction(0) if reserve is None or re.fullmatch(r"0+", reserve) else amount(reserve, BYTES, "--reserve")
    if factor is None:
        return Margin(aside)
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", factor) or Fraction(factor) < 1:
        raise InputError(f"'{factor}' is not a number of at least 1, such as 1.5", where="--activation-factor")
    return Margin(aside, Fraction(factor))


def whole(text: str, most: int, where: str) -> int:
    """A whole number from 1 to `most`."""
    if not re.fullmatch(r"[0-9]{1,12}", text) or not 1 <= int(text) <= most:
        raise InputError(f"'{text}' is not a whole number from 1 to {most}", where=where)
    return int(text)


def _case(chosen: Namespace) -> CommandCase:
    """The case; `--devices` completes or checks the mesh where at most one axis is without a size."""
    words = list(chosen.sizes)
    if chosen.devices is not None:
        devices = whole(chosen.devices, MOST_DEVICES, "--devices")
        mesh = read_strategy(chosen.strategy, foreign(chosen)).mesh
        said = said_sizes(words)
        if sum(a not in said and a not in mesh.sizes() for a in mesh.names) <= 1:
            words.append(f"devices={devices}")
    return read_case(chosen.strategy, chosen.model, words, **options(chosen))


def _filled(case: CommandCase, known: dict[str, Fraction], batch: int) -> dict[str, Fraction]:
    """The sizes with m, or b, such that a step has `batch` sequences."""
    filled = with_batch(case.strategy, known, batch)
    if filled is None:
        ranks = " x ".join(f"{a} = {known[a]}" for a in case.strategy.batch_axes)
        rest = ", ".join(f"{n} = {known[n]}" for n in ("b", "m") if n in known)
        raise InputError(f"{batch} sequences are not a whole number of microbatches over {ranks or 'one rank'} with "
                         f"{rest or 'b = 1'}", where="--batch")
    return filled


def _alone(free: list[str], case: CommandCase, limit: Fraction, known: dict[str, Fraction], kind: str,
           margin: Margin) -> dict[str, Fraction]:
    """The smallest size of the only axis without one that fits; where none does, the largest divisor, or 1."""
    if len(free) > 1:
        raise InputError(f"{' and '.join(free)} have no sizes: --set all but one, or say how many --devices there are",
                         where=case.strategy.name)
    (axis,) = free
    each = [degree(held_against(stage, kind, margin), axis, case.strategy, case.model, limit, known)
            for stage in stages(case.step, known)]
    sizes = [d.smallest or (d.tried[-1] if d.tried else 1) for d in each]
    return {axis: Fraction(max(sizes))}


def _first(found: tuple[Layout, ...], free: list[str], case: CommandCase, devices: int,
           ways: Callable[..., tuple[Layout, ...]]) -> dict[str, int]:
    """The layout that is told in full: the first that fits, else of all that divide the one that holds least."""
    every = found or ways(limit=None)
    if not every:
        raise InputError(f"no way to give {devices} devices to {' and '.join(free)} divides {case.model.name}",
                         where="--devices")
    first = found[0] if found else min(every, key=lambda layout: layout.value)
    return {a: first.axes[a] for a in free}
