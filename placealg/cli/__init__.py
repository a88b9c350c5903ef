"""The command line: one command, its exit code, and every bad input as one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from placealg.cli.attend import INTERRUPTED, SAYS, attended
from placealg.errors import InputError
from placealg.version import VERSION

DONE, BAD_INPUT = 0, 2


def main(words: Sequence[str] | None = None) -> int:
    """Run `placealg WORDS` (default: the process's arguments) and return the exit code.

    On the process's own arguments an interrupt ends that at once, with one line; else it is a KeyboardInterrupt here.
    """
    try:
        with attended(alone=words is None):
            code = _run(sys.argv[1:] if words is None else words)
            sys.stdout.flush()
    except InputError as error:
        print(f"placealg: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        sys.stderr.write(SAYS)
        return INTERRUPTED
    except OSError as error:
        quiet = isinstance(error, BrokenPipeError)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not quiet:
            print(f"placealg: cannot write the result: {error.strerror}", file=sys.stderr)
        return DONE if quiet else BAD_INPUT
    return code


def _run(words: Sequence[str]) -> int:
    from placealg.cli.parser import parse_arguments

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

    return COMMANDS[chosen.command](chosen)
