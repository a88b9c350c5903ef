"""The command line: one command, its exit code, and every bad input as one line."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from placealg.cli.attend import attended
from placealg.cli.parser import parse_arguments
from placealg.errors import InputError

DONE, BAD_INPUT, INTERRUPTED = 0, 2, 130


def main(words: Sequence[str] | None = None) -> int:
    """Run `placealg WORDS` (default: the process's arguments) and return the exit code.

    An interrupt that ends the process is heard once: what follows it is ignored.
    """
    try:
        with attended():
            code = _run(sys.argv[1:] if words is None else words)
        sys.stdout.flush()
    except InputError as error:
        print(f"placealg: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        if words is None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("placealg: interrupted", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        quiet = isinstance(error, BrokenPipeError)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not quiet:
            print(f"placealg: cannot write the result: {error.strerror}", file=sys.stderr)
        return DONE if quiet else BAD_INPUT
    return code


def _run(words: Sequence[str]) -> int:
    try:
        chosen = parse_arguments(words)
    except SystemExit as stop:
        return int(stop.code or 0)
    if chosen.version:
        from importlib.metadata import version

        print(version("placealg"))
        return DONE
    if hasattr(sys.stdout, "reconfigure") and (sys.stdout.encoding or "").lower() not in ("utf-8", "utf8"):
        sys.stdout.reconfigure(encoding="utf-8")
    from placealg.cli.commands import COMMANDS

    return COMMANDS[chosen.command](chosen)
