"""The command line: one command, its exit code, and every bad input as one line."""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from placealg.cli.terminal import INTERRUPTED, SAYS, attended, dropped_unread
from placealg.errors import InputError
from placealg.progress import remarking
from placealg.version import VERSION

DONE, BAD_INPUT, OPEN = 0, 2, 3
NEEDED_BYTES = 2**28
"""The address space below which libraries end the process in their own ways, with exit codes of their own."""


SELDOM = (2_000_000, 5, 5)
"""When a command looks for cycles of garbage: it makes few, and keeps most of what it makes until it ends."""


def main(words: Sequence[str] | None = None) -> int:
    """Run `placealg WORDS` (default: the process's arguments) and return the exit code.

    On the process's own arguments an interrupt ends that at once, with one line; else it is a KeyboardInterrupt here.
    """
    if words is None:
        gc.set_threshold(*SELDOM)
    return attend_to(lambda: _run(sys.argv[1:] if words is None else words), alone=words is None)


def attend_to(work: Callable[[], int], alone: bool) -> int:
    """The exit code of some work, and one line for what ends it; `alone` says whether the process does nothing else."""
    _open_streams()
    if alone and (lacking := _lacking()):
        print(f"placealg: {lacking}", file=sys.stderr)
        return OPEN
    try:
        with attended(alone), remarking():
            code = work()
            with dropped_unread():
                sys.stdout.flush()
    except InputError as error:
        print(f"placealg: {error}", file=sys.stderr)
        return BAD_INPUT
    except MemoryError:
        print("placealg: UNDECIDED: out of memory", file=sys.stderr)
        return OPEN
    except RuntimeError as error:
        broken = getattr(sys.modules.get("concurrent.futures"), "BrokenExecutor", ())
        if not isinstance(error, broken):
            raise
        print("placealg: UNDECIDED: a process that worked for the command was ended (out of memory?)", file=sys.stderr)
        return OPEN
    except KeyboardInterrupt:
        sys.stderr.write(SAYS)
        return INTERRUPTED
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG and error.filename is not None:
            name = os.path.basename(os.fsdecode(error.filename))
            too_long = f"'{name}' is too long for the name of a file"
            print(f"placealg: {InputError(too_long)}", file=sys.stderr)
            return BAD_INPUT
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"placealg: cannot write the result: {error.strerror}", file=sys.stderr)
        return BAD_INPUT
    return code


def _open_streams() -> None:
    """Where stdout or stderr was closed when the process began: writing to stdout fails, what stderr gets is lost."""
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")


def _lacking() -> str:
    """What this process may not have and needs; "" where nothing is lacking.

    A library that multiplies no matrices here starts no threads for that: each would take memory.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if sys.platform != "linux":
        return ""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit in (-1, resource.RLIM_INFINITY) or limit >= NEEDED_BYTES:
        return ""
    mebibytes = [f"{n / 2**20:.0f} MiB" for n in (limit, NEEDED_BYTES)]
    return f"UNDECIDED: out of memory: the address space is limited to {mebibytes[0]}, and {mebibytes[1]} are needed"


def _run(words: Sequence[str]) -> int:
    from placealg.cli.parser import parse_arguments

    if broken := next((word for word in words if "\0" in word), None):
        raise InputError(f"'{broken}' has a null character, which no name and no value has")
    try:
        chosen = parse_arguments(words)
    except SystemExit as stop:
        return int(stop.code or 0)
    if chosen.version:
        print(VERSION)
        return DONE
    if hasattr(sys.stdout, "reconfigure") and (sys.stdout.encoding or "").lower() not in ("utf-8", "utf8"):
        sys.stdout.reconfigure(encoding="utf-8")
    from placealg.cli.commands import COMMANDS

    try:
        return COMMANDS[chosen.command](chosen)
    except InputError as error:
        from placealg.cli.common_words import common

        if common(error.unlike):
            error.hint = f"; 'placealg explain {error.unlike}' tells what it is here"
        raise
