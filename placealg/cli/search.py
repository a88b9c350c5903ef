"""`placealg search MODEL`: the best correct configuration of a space, with its proof and the reasons."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any

from placealg.arith import parse
from placealg.check.prove import prove
from placealg.cli.cache_folder import cache_folder
from placealg.cli.fit import read_margin, whole
from placealg.cli.inputs import style
from placealg.cli.output import check_file, print_json, print_lines, print_text, width, write_file
from placealg.cli.quantities import BANDWIDTHS, BYTES, RATES, amount, device_memory
from placealg.cli.search_regions import Ranges, Varied, read_ranges
from placealg.cli.search_words import MANY
from placealg.cli.terminal import INTERRUPTED, told_in_lines, work_for_another
from placealg.cli.verdicts import DONE, FAILED, OPEN
from placealg.configurations.calibrate import Calibration, calibrate
from placealg.configurations.certificate import certified, text_of
from placealg.configurations.explain import compared, meant, need_formula, neighbours, told
from placealg.configurations.found import Found
from placealg.configurations.layouts import PASSES, Devices
from placealg.configurations.left_out import Decided, decided
from placealg.configurations.modes import expanded
from placealg.configurations.programs import Programs
from placealg.configurations.question import Question, check_sizes
from placealg.configurations.run import search
from placealg.configurations.space import Space, read_spaces, spaces
from placealg.cost.layouts import MOST_SEQUENCES
from placealg.cost.machines import Machine, machine
from placealg.cost.sizing import MOST_DEVICES
from placealg.cost.times import PARAMETERS, PART
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.config import resolve_model
from placealg.models.model import Model
from placealg.progress import each, say
from placealg.prover.verdict import PROVED, Report
from placealg.render.search import Answer, Preferred, as_csv, document, misfit, page, why
from placealg.render.search_front import front_as_csv, front_document, front_page
from placealg.render.text_layout import Line
from placealg.step.derive import derive
from placealg.strategy.expression import parse_strategy

_RATES = {"flops": ("peak_flops", RATES), "node_bandwidth": ("node_bw", BANDWIDTHS),
          "card_bandwidth": ("card_bw", BANDWIDTHS), "hbm": ("hbm_bw", BANDWIDTHS), "host": ("host_bw", BANDWIDTHS)}
"""Option -> the rate that it says, and its units."""

_MEASURED = re.compile(r"(.+?):\s*([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*s(?:\s+(\S+))?\s*\Z")


_OUTSIDE = re.compile(r",(?![^{}]*\})")
"""A comma outside of braces."""


def search_command(chosen: Namespace) -> int:
    """Read the words, search, prove the winner, and print; 1 where nothing fits, 130 where it was interrupted."""
    with told_in_lines("search"):
        return _searched(chosen)


def _searched(chosen: Namespace) -> int:
    question = read_question(chosen)
    for path in filter(None, (chosen.plot, chosen.certificate)):
        check_file(path)
    for option in ("front", "front_alone", "plot", "robust", "regions", "prefer"):
        if chosen.best_alone and getattr(chosen, option):
            raise InputError(f"--{option.replace('_', '-')} takes a search of all strategies: leave out --best-alone",
                             where="search")
    if chosen.best_alone and chosen.format == "csv":
        raise InputError("csv lists every configuration that fits: leave out --best-alone", where="search")
    calibration = _calibrated(chosen.measured, question) if chosen.measured else None
    if calibration is not None:
        question = replace(question, parameters=question.parameters.plus({"efficiency": calibration.efficiency}))
    whole(chosen.top, 10_000, "--top")
    jobs = whole(chosen.jobs, 1024, "-j") if chosen.jobs else None
    most = whole(chosen.at_most, 10**9, "--at-most") if chosen.at_most else None
    within = _number(chosen.within, f"--within {chosen.within}")
    if chosen.why:
        _meant(chosen.why, question)
    ranges = read_ranges(chosen, question)
    space, outside = decided(question.space, question.model, _folder(chosen))
    question = replace(question, space=space)
    with _pool(jobs or _processors(len(space.expressions()))) as executor, stopping() as stopped:
        found = search(question, _folder(chosen), executor, stopped, chosen.best_alone, most)
        halted = stopped()
    if not found.counts.fit:
        if chosen.certificate and not halted:
            _certify(chosen, found, None, outside)
        if chosen.format == "json":
            print_json({"version": 1, "question": question.to_json(), "complete": found.complete, "best": None,
                        "smallest_excess_bytes": _excess(found), "undivided": found.undivided})
        else:
            print_lines(misfit(found, width()))
        return INTERRUPTED if halted else FAILED if found.complete else OPEN
    if chosen.front_alone:
        return _front_alone(chosen, found, halted)
    if chosen.format == "csv":
        print_text(as_csv(found))
        return INTERRUPTED if halted else DONE if found.complete else OPEN
    return _tell(chosen, found, calibration, outside, halted, ranges, within)


def _tell(chosen: Namespace, found: Found, calibration: Calibration | None, outside: tuple[Decided, ...],
          halted: bool, ranges: Ranges, within: Fraction) -> int:
    question, best = found.question, found.best
    patterns = [pattern for text in chosen.prefer for pattern in re.split(_OUTSIDE, text)]
    preferred = found.preferred(patterns) if patterns else None
    front = found.front() if chosen.front or chosen.plot else None
    wanted = dict.fromkeys([best.expression, *(one.expression for one in (*(front or ()), *filter(None, [preferred])))])
    reports = {e: _proof(e, question.model) for e in each(list(wanted), str)}
    say("why others lost")
    answer = Answer(found, best, told(best, question, PART), told(best, question), need_formula(best, question),
                    reports, neighbours(found, best), found.top(whole(chosen.top, 10_000, "--top")), front, calibration,
                    _thought(chosen.why, found) if chosen.why else (), outside,
                    Preferred(tuple(patterns), preferred, within) if patterns else None)
    varied = Varied(found, chosen.robust, ranges)
    if chosen.plot:
        from placealg.render.search_drawing import draw_front

        write_file(chosen.plot, str(draw_front(answer)))
    if chosen.format == "json":
        print_json({"version": 1, **document(answer), **varied.to_json()})
    else:
        print_lines([*page(answer, width()), *varied.lines(width())])
    if halted:
        return INTERRUPTED
    if chosen.certificate:
        _certify(chosen, found, reports[best.expression], outside)
    return DONE if found.complete and all(r.verdict == PROVED for r in reports.values()) else OPEN


def _front_alone(chosen: Namespace, found: Found, halted: bool) -> int:
    """The front and nothing else, each of it proved."""
    front = found.front()
    reports = {e: _proof(e, found.question.model) for e in each(list(dict.fromkeys(o.expression for o in front)), str)}
    if chosen.format == "json":
        print_json({"version": 1, "question": found.question.to_json(), "complete": found.complete,
                    "front": front_document(front, reports)})
    elif chosen.format == "csv":
        print_text(front_as_csv(front, reports))
    else:
        print_lines(front_page(front, reports, width()))
    if halted:
        return INTERRUPTED
    return DONE if found.complete and all(r.verdict == PROVED for r in reports.values()) else OPEN


def _certify(chosen: Namespace, found: Found, report: Report | None, outside: tuple[Decided, ...]) -> None:
    """Write the certificate, and tell on standard error which it is."""
    made = text_of(certified(found, {"name": chosen.name, "options": dict(style(chosen))}, report, outside))
    write_file(chosen.certificate, made)
    seal = sha256(made.encode()).hexdigest()
    print(f"certificate: {chosen.certificate}, {len(made):,} bytes, SHA-256 {seal}", file=sys.stderr)


def _folder(chosen: Namespace) -> Path | None:
    return None if chosen.no_cache else Path(chosen.cache) if chosen.cache else cache_folder("search")


def _meant(text: str, question: Question) -> tuple[Programs, FrozenMap[str, Fraction]]:
    try:
        return meant(text, question)
    except InputError as error:
        raise error.at("--why") from None


def _thought(text: str, found: Found) -> list[Line]:
    """Why not the configuration that a user had in mind."""
    programs, sizes = _meant(text, found.question)
    return why(found, compared(found, found.best, programs, sizes), text, width())


def _proof(expression: str, model: Model) -> Report:
    return prove(derive(parse_strategy(expression), model))


def _excess(found: Found) -> int | float | None:
    missed = found.missed
    return None if missed is None else float(missed[2] - found.question.memory)


def read_question(chosen: Namespace) -> Question:
    """What the words ask."""
    model = resolve_model(chosen.name, **style(chosen))
    if not model.graph.ops or model.opaque:
        raise InputError(f"{model.name} has no op graph, so that neither activations nor flop are known: name a "
                         "configuration", where="search")
    sizes = dict(read_size(word) for word in chosen.sizes)
    try:
        check_sizes(model, sizes)
    except InputError as error:
        raise error.at("--set") from None
    on = read_machine(chosen)
    memory = device_memory(chosen.device_memory, on, "search")
    per_node = whole(chosen.per_node, MOST_DEVICES, "--per-node") if chosen.per_node else on.per_node
    batch, *more = (whole(text, MOST_SEQUENCES, "--batch") for text in chosen.batch.split(","))
    devices = Devices(whole(chosen.devices, MOST_DEVICES, "--devices"), per_node, batch, tuple(more))
    parameters = {}
    for word in chosen.assume:
        name, equals, text = (part.strip() for part in word.partition("="))
        if not equals or name not in PARAMETERS:
            raise InputError(f"'{word}' is not PARAMETER=NUMBER", where="--assume", name=name, valid=PARAMETERS)
        parameters[name] = _number(text, f"--assume {word}")
    return Question(model, devices, on, memory, read_space(chosen, model), FrozenMap(sizes),
                    read_margin(chosen.reserve, chosen.activation_factor), chosen.objective,
                    FrozenMap({**PARAMETERS, **parameters}))


def read_size(word: str) -> tuple[str, Fraction]:
    """One size of --set: a name and its number."""
    name, equals, text = (part.strip() for part in word.partition("="))
    if not equals or not name:
        raise InputError(f"'{word}' is not NAME=VALUE", where="--set")
    return name, _number(text, f"--set {word}")


def _number(text: str, where: str) -> Fraction:
    try:
        value = parse(text, ()).evaluate({})
    except InputError as error:
        raise error.at(where) from None
    if value <= 0:
        raise InputError(f"'{text}' is not a positive number", where=where)
    return value


def read_machine(chosen: Namespace) -> Machine:
    """The machine of --machine, with the rates that options say; without one all rates are said."""
    said = {rate: amount(text, units, f"--{option.replace('_', '-')}") for option, (rate, units) in _RATES.items()
            if (text := getattr(chosen, option))}
    if chosen.machine:
        try:
            return machine(chosen.machine).with_rates(**said)
        except InputError as error:
            raise error.at("--machine") from None
    needed = [o for o in ("flops", "node_bandwidth", "card_bandwidth", "hbm") if _RATES[o][0] not in said]
    if needed:
        raise InputError("says no machine: --machine h100, or --flops, --node-bandwidth, --card-bandwidth and --hbm; "
                         f"missing --{needed[0].replace('_', '-')}", where="search")
    if not chosen.per_node:
        raise InputError("says no machine, and so takes --per-node", where="search")
    return Machine("as said", FrozenMap({"host_bw": Fraction(64 * 10**9), **said}), 1)


def read_space(chosen: Namespace, model: Model) -> Space:
    """The space of --space, a name or a file with one, on a model, narrowed by --only, --fix and --without."""
    name = chosen.space or "dense"
    if name in spaces():
        found = spaces()[name]
    elif Path(name).exists():
        try:
            every = read_spaces(Path(name).read_text(encoding="utf-8"), name)
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot be read: {error}", where=name) from None
        if len(every) != 1:
            raise InputError(f"has {len(every)} spaces: one is searched", where=name)
        found = next(iter(every.values()))
    else:
        raise InputError(f"no space or file '{name}'", where="--space", name=name, valid=spaces())
    found = expanded(found, model, _folder(chosen))
    try:
        found = found.precisely((chosen.precision or "").replace("-", "_"))
    except InputError as error:
        raise error.at("--precision") from None
    fixed = dict(found.fixed)
    axes = {a for e in found.choices() for a in parse_strategy(e).mesh.names}
    for word in chosen.fix:
        size, equals, text = (part.strip() for part in word.partition("="))
        if not equals or size not in (*axes, *PASSES[1:], "v"):
            raise InputError(f"'{word}' is not AXIS=NUMBER", where="--fix", name=size,
                             valid=(*sorted(axes), *PASSES[1:], "v"))
        fixed[size] = whole(text, MOST_DEVICES, f"--fix {word}")
    out = [name for text in chosen.without for name in re.split(_OUTSIDE, text)]
    try:
        found = found.without(out)
    except InputError as error:
        raise error.at("--without") from None
    only = tuple(pattern for text in chosen.only for pattern in re.split(_OUTSIDE, text)) or found.only
    found = replace(found, fixed=FrozenMap(fixed), only=only)
    if not found.choices():
        raise InputError(f"no strategy of the space {found.name} matches", where="--only")
    return found


def _calibrated(text: str, question: Question) -> Calibration:
    told_ = _MEASURED.match(text)
    if not told_:
        raise InputError(f"'{text}' is not 'STRATEGY SIZES: SECONDS s [PEAK]', such as 'zero1*tp dp=64 tp=8 b=1: "
                         "16.4 s 61GB'", where="--measured")
    which, seconds, peak = told_.groups()
    try:
        return calibrate(which, question, Fraction(seconds),
                         amount(peak, BYTES, "--measured") if peak else None)
    except InputError as error:
        raise error.at("--measured") from None


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Whether an interrupt came: the first one ends the search and keeps what it found, the second the process."""
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.getsignal(signal.SIGINT)

    def stop(number: int, frame: Any) -> None:
        seen.append(number)
        signal.signal(signal.SIGINT, before)
        say("interrupted: telling what was found")

    signal.signal(signal.SIGINT, stop)
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(signal.SIGINT, before)


def _processors(strategies: int) -> int:
    """How many processes derive so many strategies: one, or one for each processor where the platform has processes."""
    return os.cpu_count() or 1 if strategies >= MANY and sys.platform != "emscripten" else 1


def _pool(jobs: int) -> Any:
    if jobs > 1:
        try:
            return ProcessPoolExecutor(jobs, initializer=work_for_another)
        except (OSError, ImportError, NotImplementedError):
            say("no process can be started here: this one derives all")
    return nullcontext()
