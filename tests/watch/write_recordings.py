"""Write the recordings that the default tests judge without torch: `python tests/watch/write_recordings.py`."""

from __future__ import annotations

from pathlib import Path

from set_ups import INSIDE, RIGHT, WRONG, named

from placealg.measure import ranks

CHOSEN = {"by_hand": "by hand", "fsdp2": "fsdp2 clipped", "tp_sp": "tp + sp", "norm_apart": "tp + sp: norm not reduced",
          "zero1": "zero1", "tied": "1f1b, tied", "weighed_apart": "*tp + sp: norm not reduced",
          "weighed_clipped": "*fsdp2 clipped", "weighed_kernel": "*by hand: kernel divides by 2 as well"}
"""File -> set-up."""

if __name__ == "__main__":
    every = {**RIGHT, **WRONG, **INSIDE}
    for (file, name), answers in zip(CHOSEN.items(), ranks.run(2, named, list(CHOSEN.values()), 90.0), strict=True):
        assert every[name.removeprefix("*")].world == 2
        (Path(__file__).parent / "recordings" / f"{file}.json").write_text(answers[0])
