"""The matrix and all faults, run for real: held against the tables of proofs/torch/README.md, or written there.

`make torch` runs it without the world of 8 processes, which take two thirds of the time; `--every`, in `make
torch-slow` and with `--write` in `make torch-write`, runs all worlds. It needs torch. A line per run goes to stdout,
the last one tells the time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path

from placealg.cli.torch import shown_faults
from placealg.measure.cells import FAKE_WORLDS, WORLDS, matrix
from placealg.measure.check import check
from placealg.measure.faults import FAULTS
from placealg.render.measured import faults_markdown, markdown

PAGE = Path(__file__).resolve().parents[2] / "proofs" / "torch" / "README.md"
LIMIT = 300.0
WRITTEN = (4, FAKE_WORLDS[-1])
"""The worlds whose rows are in the table; the others are run, and hold or not."""


def filled(page: str, tables: dict[str, Iterable[str]]) -> str:
    """The page with each table in its place, between `<!-- NAME -->` and `<!-- end -->`."""
    for name, lines in tables.items():
        start, text, end = f"<!-- {name} -->\n", "\n".join(lines), "<!-- end -->"
        before, _, rest = page.partition(start)
        assert end in rest, name
        page = f"{before}{start}\n{text}\n\n{end}{rest.partition(end)[2]}"
    return page


def main(write: bool, every: bool) -> int:
    start, results, wrong = time.perf_counter(), [], 0
    for result in check(matrix(worlds=(*(WORLDS if every else WORLDS[:-1]), *FAKE_WORLDS)), LIMIT, lambda _: None):
        print(f"{'agrees ' if result.agrees else 'DIFFERS'} {result.cell}", flush=True)
        results.append(result)
        wrong += not result.agrees
    took = time.perf_counter() - start
    faults = list(shown_faults(FAULTS, LIMIT, lambda _: None))
    for fault in faults:
        print(f"{'shows  ' if fault.agrees else 'HIDES  '} {fault.fault}", flush=True)
        wrong += not fault.agrees
    page = PAGE.read_text(encoding="utf-8")
    made = filled(page, {"matrix": markdown([r for r in results if r.cell.world in WRITTEN]),
                         "faults": faults_markdown(faults)})
    if write:
        PAGE.write_text(made, encoding="utf-8")
    elif made != page:
        wrong += 1
        print("the tables of proofs/torch/README.md are not those of this run: make torch-write", file=sys.stderr)
    rows = [row for r in results for row in r.rows]
    print(f"torch: {len(results)} runs and {len(faults)} faults, {sum(row.agrees for row in rows)} of {len(rows)} "
          f"figures byte for byte, {wrong} wrong, {took:.0f} s for the matrix")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main("--write" in sys.argv[1:], "--every" in sys.argv[1:]))
