"""The score of `make mutate`: reads `mutmut results --all true`, prints per module how many mutants the tests kill.

A survivor that equivalent_mutants.toml names has a reason there; the others are listed.
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

REASONS = Path(__file__).parent / "equivalent_mutants.toml"
KILLED = ("killed", "timeout", "segfault", "suspicious")
"""What mutmut calls a mutant that a test noticed: it failed, never ended, or crashed."""

SURVIVED = ("survived", "no tests")


def outcomes(lines: Iterable[str]) -> dict[str, str]:
    """Mutant -> how it ended; those that were not tried are left out.

    >>> outcomes(["    a.b.x_f__mutmut_1: killed", "    a.b.x_f__mutmut_2: not checked"])
    {'a.b.x_f__mutmut_1': 'killed'}
    """
    pairs = (line.strip().rpartition(": ") for line in lines)
    return {name: status for name, _, status in pairs if name and status in (*KILLED, *SURVIVED)}


def score(found: Mapping[str, str], reasons: Mapping[str, str]) -> list[str]:
    """The lines to print: a row per module, the sum, survivors without a reason, reasons without a survivor.

    >>> score({"a.b.x_f__mutmut_1": "killed", "a.b.x_f__mutmut_2": "survived"}, {})[-1]
    'survivor without a reason: a.b.x_f__mutmut_2'
    """
    rows: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, status in found.items():
        for module in (name.rpartition(".x")[0], "in all"):
            rows[module]["mutants"] += 1
            rows[module]["killed" if status in KILLED else "equivalent" if name in reasons else "unexplained"] += 1
    rows["in all"] = rows.pop("in all", Counter())
    lines = [f"{'module':<32}{'mutants':>9}{'killed':>9}{'equivalent':>12}{'unexplained':>13}{'score':>8}"]
    for module, row in rows.items():
        against = row["mutants"] - row["equivalent"]
        lines.append(f"{module:<32}{row['mutants']:>9}{row['killed']:>9}{row['equivalent']:>12}{row['unexplained']:>13}"
                     + (f"{row['killed'] / against:>8.1%}" if against else f"{'':>8}"))
    lines += [f"survivor without a reason: {n}" for n, s in found.items() if s in SURVIVED and n not in reasons]
    return lines + [f"named as equivalent, but killed: {n}" for n in reasons if found.get(n) in KILLED]


if __name__ == "__main__":
    print("\n".join(score(outcomes(sys.stdin), tomllib.loads(REASONS.read_text(encoding="utf-8")))))
