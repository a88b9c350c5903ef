"""Write the recordings that the default tests judge without torch, or those of some: `write_recordings.py FILE...`."""

from __future__ import annotations

import sys
from pathlib import Path

from set_ups import INSIDE, RIGHT, WRONG, named

from placealg.measure import ranks

CHOSEN = {"by_hand": "by hand", "fsdp2": "fsdp2 clipped", "tp_sp": "tp + sp", "norm_apart": "tp + sp: norm not reduced",
          "zero1": "zero1", "flat": "flat copies", "fsdp2_mixed": "fsdp2 mixed",
          "tied": "1f1b, tied", "weighed_apart": "*tp + sp: norm not reduced",
          "weighed_clipped": "*fsdp2 clipped", "weighed_kernel": "*by hand: kernel divides by 2 as well"}
"""File -> set-up."""

if __name__ == "__main__":
    every = {**RIGHT, **WRONG, **INSIDE}
    chosen = {f: name for f, name in CHOSEN.items() if f in sys.argv[1:] or len(sys.argv) == 1}
    for (file, name), answers in zip(chosen.items(), ranks.run(2, named, list(chosen.values()), 90.0), strict=True):
        assert every[name.removeprefix("*")].world == 2
        (Path(__file__).parent / "recordings" / f"{file}.json").write_text(answers[0])
