"""`placealg watch` and `placealg conform`: a recorded training step held against a strategy."""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from placealg.cases.case import model_of, read_case
from placealg.cli.glosses import SAYS
from placealg.cli.inputs import options
from placealg.cli.output import print_json, print_lines, width, write_file
from placealg.cli.verdicts import DONE, FAILED, OPEN
from placealg.errors import InputError
from placealg.prover.verdict import UNDECIDED
from placealg.render.conformance import document, document_beside, page, page_beside
from placealg.watch.conformance import conformance
from placealg.watch.names import USUAL
from placealg.watch.opaque import NAMELESS
from placealg.watch.seen import UNFOLLOWED, Seen, joined
from placealg.watch.verdict import CONFORMS, DIFFERS, UNSEEN, Conformance


def conform(chosen: Namespace) -> int:
    """Hold a recording against a strategy, or the one that is read off it; needs no torch."""
    *words, last = chosen.recordings
    chosen.strategy = "" if not words or _recorded(last) else last
    recordings = words if chosen.strategy else chosen.recordings
    seen = joined([Seen.read(_text(word), word) for word in recordings])
    return _judge(chosen, seen, Path(recordings[0]).name)


def watch(chosen: Namespace) -> int:
    """Run a script on every rank of a mesh, record one of its training steps, and hold it against a strategy."""
    from placealg.watch.ranks import RunError, record
    from placealg.watch.requirement import need_torch

    mesh = mesh_of(chosen.mesh)
    if not chosen.limit > 0:
        raise InputError(f"{chosen.limit:g} is no time", where="--limit")
    if not chosen.argv:
        raise InputError("what is run stands behind --: placealg watch zero3 --mesh dp=2 -- train.py", where="watch")
    if chosen.strategy:  # what is wrong with it is told before the run
        read_case(chosen.strategy, chosen.model, (), **options(chosen))
    else:
        model_of(chosen.model or USUAL, **options(chosen))
    need_torch()
    script, *arguments = chosen.argv
    single = None if chosen.single is None else [] if chosen.single == "none" else shlex.split(chosen.single)
    if single and not Path(single[0]).is_file():
        raise InputError(f"there is no script '{single[0]}'", where="--single")
    try:
        seen = record(mesh, script, arguments, chosen.limit, single)
        seen = replace(seen, shims=(*seen.shims, *chosen.shims))
    except RunError as error:
        print(f"placealg: {script}: {error}", file=sys.stderr)
        return OPEN
    if chosen.output:
        write_file(chosen.output, seen.text())
    return _judge(chosen, seen, Path(script).name)


def _judge(chosen: Namespace, seen: Seen, command: str) -> int:
    names = names_said(chosen.names)
    model_of(chosen.model or USUAL, **options(chosen))
    try:
        told = _told(chosen, seen, names)
    except InputError as problem:
        if chosen.strategy or chosen.program or not (seen.lifted or seen.alone):
            raise
        return _beside(chosen, seen, command, str(problem))
    if chosen.program:
        write_file(chosen.program, told.program)
    if chosen.format == "json":
        print_json(document(told, not chosen.no_timing))
    else:
        print_lines(page(told, width(), SAYS, command))
    return exit_of(told)


def _told(chosen: Namespace, seen: Seen, names: Mapping[str, str]) -> Conformance:
    """The verdict on a recording beside the program of a strategy, or of the one that is read off it."""
    if not chosen.strategy and not any(rank.chains for rank in seen.ranks):
        raise InputError(f"not followed is {UNFOLLOWED}")
    told = conformance(seen, chosen.strategy, chosen.model, names, **options(chosen))
    if chosen.strategy:
        return told
    wrong = seen.lifted is not None and seen.lifted.verdict == DIFFERS
    guessed = told.verdict == DIFFERS and told.report.model == NAMELESS and not wrong
    if guessed or (seen.settled and told.verdict != CONFORMS):
        raise InputError(f"no strategy was found that is this run: {told.strategy} is not, since {_first(told)}")
    return told


def _first(told: Conformance) -> str:
    """The first thing that is not the program's, or could not be followed."""
    if told.comparison.differences:
        return told.comparison.differences[0].says
    unseen = [u.what for u in told.comparison.unseen] or list(told.comparison.seen.lifted.unseen
                                                              if told.comparison.seen.lifted else ())
    return f"{unseen[0] if unseen else 'what ops compute'} could not be followed"


def _beside(chosen: Namespace, seen: Seen, command: str, problem: str) -> int:
    """Say what came of running the ranks again beside a single device, where no program can be compared."""
    if chosen.format == "json":
        print_json(document_beside(seen, problem))
    else:
        print_lines(page_beside(seen, problem, width(), command))
    return {CONFORMS: DONE, DIFFERS: FAILED}.get(seen.lifted.verdict if seen.lifted else UNSEEN, OPEN)


def exit_of(told: Conformance) -> int:
    """0 conforms and proved, 1 differs or refuted, 3 part of the run was not seen, or the program is undecided."""
    if told.good:
        return DONE
    return OPEN if told.verdict == UNSEEN or told.report.verdict == UNDECIDED else FAILED


def mesh_of(text: str) -> dict[str, int]:
    """The axes and sizes of `dp=2,tp=2`.

    >>> mesh_of("dp=2,tp=4")
    {'dp': 2, 'tp': 4}
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = (p.strip() for p in part.partition("="))
        if not name or not (size.isascii() and size.isdecimal()) or int(size) < 1:
            raise InputError(f"'{part}' is no axis and its size, such as dp=2", where="--mesh")
        if name in found:
            raise InputError(f"the axis '{name}' stands twice", where="--mesh")
        found[name] = int(size)
    return found


def names_said(words: Iterable[str]) -> dict[str, str]:
    """What NAME=PARAMETER words say."""
    found = {}
    for word in words:
        name, equals, parameter = word.partition("=")
        if not equals or not name.strip() or not parameter.strip():
            raise InputError(f"'{word}' is no name of the run, = and a parameter of the model", where="--name")
        found[name.strip()] = parameter.strip()
    return found


def _recorded(word: str) -> bool:
    """Whether a word names a recording, not a strategy."""
    return Path(word).is_file() and word.endswith(".json") and '"seen"' in _text(word)[:40]


def _text(word: str) -> str:
    try:
        return Path(word).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read it: {error.strerror}", where=word) from None
    except UnicodeDecodeError:
        raise InputError("it is no text", where=word) from None
