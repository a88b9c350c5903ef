"""The words of the commands that run PyTorch, or judge what ran, beside those that all commands have."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from typing import Any


def watch_words(parser: ArgumentParser, strategy: str) -> None:
    """What is run, on which mesh, for how long; `strategy` says what a strategy may be."""
    parser.add_argument("strategy", nargs="?", metavar="STRATEGY", help=f"{strategy}; without one it is read off the "
                        "run")
    parser.epilog = ("Behind -- stand the training script and its arguments; it runs once per rank, with what torchrun "
                     "sets.")
    parser.add_argument("--mesh", required=True, metavar="AXIS=N,...", help="the mesh that the script makes, the last "
                        "axis fastest: dp=2,tp=2")
    parser.add_argument("--limit", type=float, default=300.0, metavar="SECONDS",
                        help="how long the run may take before its processes are ended; 300 by default")
    parser.add_argument("--single", metavar="'SCRIPT ARGS'", help="the command of the single device beside the ranks, "
                        "where a world of one needs other words than the run; it must read what the ranks read "
                        "together. 'none' runs none")
    parser.add_argument("--shim", action="append", default=[], metavar="WORDS", dest="shims", help="a change to the "
                        "code that was made so that it runs, in words: the verdict names it")
    parser.add_argument("-o", "--output", metavar="SEEN.json", help="keep the recording, for `placealg conform`")
    _names(parser)


def conform_words(parser: ArgumentParser, strategy: str) -> None:
    """What was recorded, and what it is held against."""
    parser.add_argument("recordings", nargs="+", metavar="SEEN.json ... [STRATEGY]", help="what `watch` or "
                        f"`pa.observe` wrote: of all ranks, or a file per rank; then {strategy}; without one it is "
                        "read off the run")
    _names(parser)


def _names(parser: ArgumentParser) -> None:
    parser.add_argument("--program", metavar="P.toml", help="write the program that the run was held against, whose "
                        "text has the hash that is printed: a strategy file, which `prove` reads with the same --model")
    parser.add_argument("--name", action="append", default=[], metavar="NAME=PARAMETER", dest="names", help="a name of "
                        "the run that no table knows, {} for the layer: 'blocks.{}.o.weight=layer.attn.out.weight'")


def check_torch_words(formats: Callable[[Any, Sequence[str]], None], parser: ArgumentParser) -> None:
    """What is run for real, and how; `formats` adds how to print."""
    parser.add_argument("strategies", nargs="*", metavar="NAME", help="rows of the matrix; all of them by default")
    parser.add_argument("--faults", action="store_true",
                        help="put faults into real runs instead, and hold them against the refutations of their files")
    parser.add_argument("--world", action="append", default=[], type=int, metavar="N",
                        help="on so many processes: 2, 4 or 8; on all three by default")
    parser.add_argument("--limit", type=float, default=60.0, metavar="SECONDS",
                        help="how long one run may take before its processes are ended; 60 by default")
    formats(parser, ("text", "markdown", "json"))
