"""`make demo`: two strategies costed and proved for Llama-3-70B, and a broken one refuted, in one process."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable

from placealg.cli import main

DEMO = (
    "cost zero3 --model llama-3-70b",
    "cost zero3 --model llama-3-70b --set dp=512",
    "cost hsdp --model llama-3-70b --set devices=512 dp_shard=8",
    "prove zero3 hsdp --model llama-3-70b",
    "prove proofs/refuted/zero1_publish_dropped.toml --model llama-3-70b",
)
"""The commands of the demonstration, in order."""


def demonstrate(commands: Iterable[str] = DEMO) -> int:
    """Print and run each command; the exit code of the first that does not end with 0, else 0."""
    for command in commands:
        print(f"\n$ placealg {command}\n", flush=True)
        code = main(shlex.split(command))
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(demonstrate())
