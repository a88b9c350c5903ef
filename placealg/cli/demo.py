"""`make demo`: ZeRO-3 with tensor and sequence parallelism costed and proved for Llama-3-70B, and a bug refuted."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable

from placealg.cli import attend_to, main
from placealg.cli.output import flush, print_text

DEMO = (
    "show zero3*tp_sp --model llama-3-70b",
    "cost zero3*tp_sp --model llama-3-70b --set dp=64 tp=8 b=1 s=8192 --by region",
    "prove zero3*tp_sp --model llama-3-70b",
    "prove proofs/refuted/gpt_neox_1257.toml --model llama-3-70b",
)
"""The commands of the demonstration, in order."""


def demonstrate(commands: Iterable[str] = DEMO) -> int:
    """Print and run each command; the exit code of the first that does not end with 0, else 0."""
    for command in commands:
        print_text(f"\n$ placealg {command}\n\n")
        flush()
        code = main(shlex.split(command))
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(attend_to(demonstrate, alone=True))
