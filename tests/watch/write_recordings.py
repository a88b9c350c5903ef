"""Write the recordings that the default tests judge without torch, or those of some: `write_recordings.py FILE...`.

`write_recordings.py --seconds` measures what recording costs, and writes the table of docs/watch.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

from set_ups import INSIDE, RIGHT, WRONG, named, timed

from placealg.measure import ranks

CHOSEN = {"by_hand": "by hand", "fsdp2": "fsdp2 clipped", "tp_sp": "tp + sp", "norm_apart": "tp + sp: norm not reduced",
          "zero1": "zero1", "flat": "flat copies", "fsdp2_mixed": "fsdp2 mixed", "tp_sp_again": "tp + sp: recomputed",
          "tied": "1f1b, tied", "tied_layers": "fsdp2 layers, tied: gathered again",
          "kernel": "by hand: kernel divides by 2 as well"}
"""File -> set-up."""

PAGE = Path(__file__).resolve().parents[2] / "docs" / "watch.md"
HEAD = "| set-up | ranks | plain | recorded | times |"


def seconds() -> None:
    """Write the processor's seconds per rank of a plain step and of one that is recorded, of every right set-up."""
    table = [HEAD, "|---|---|---|---|---|"]
    for world in (2, 4):
        chosen = [n for n, s in RIGHT.items() if s.world == world]
        for name, answers in zip(chosen, ranks.run(world, timed, chosen, 300.0), strict=True):
            plain, told = (sum(a[k] for a in answers) / world for k in (0, 1))
            table.append(f"| {name} | {world} | {plain:.3f} | {told:.2f} | {told / plain:.0f} |")
            print(table[-1], flush=True)
    before, found, rest = PAGE.read_text(encoding="utf-8").partition(f"{HEAD}\n")
    if not found:
        sys.exit(f"the table stands in {PAGE.name}, under its head")
    PAGE.write_text("\n".join((before + table[0], *table[1:], "")) + "\n" + rest.partition("\n\n")[2], encoding="utf-8")


if __name__ == "__main__":
    if "--seconds" in sys.argv:
        seconds()
        sys.exit()
    every = {**RIGHT, **WRONG, **INSIDE}
    chosen = {f: name for f, name in CHOSEN.items() if f in sys.argv[1:] or len(sys.argv) == 1}
    for (file, name), answers in zip(chosen.items(), ranks.run(2, named, list(chosen.values()), 90.0), strict=True):
        assert every[name].world == 2
        (Path(__file__).parent / "recordings" / f"{file}.json").write_text(answers[0])
