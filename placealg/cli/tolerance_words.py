"""The words of `placealg tolerance`, beside those that all commands have."""

from __future__ import annotations

from argparse import ArgumentParser


def tolerance_words(parser: ArgumentParser) -> None:
    """What bytes are, how collectives add, and whether sums are run beside the formulas."""
    parser.add_argument("--half", metavar="bf16|fp16", default="", help="what 2 bytes are, where a strategy names no "
                        "types; 4 are fp32 then")
    parser.add_argument("--order", metavar="ring|tree", default="", help="how a collective adds: one value after "
                        "the other, or in pairs; by default as the strategy says")
    parser.add_argument("--adds", metavar="TYPE", default="", help="the type in which what a rank receives is added, "
                        "wider than the wire: by a network, or behind an all_to_all")
    parser.add_argument("--difference", metavar="NUMBER", type=float, help="a relative difference of two gradients, "
                        "which is explained by rounding or not: exit code 0 or 1")
    parser.add_argument("--measure", action="store_true", help="also sum numbers in these types, rank by rank, at the "
                        "sizes that are set")
