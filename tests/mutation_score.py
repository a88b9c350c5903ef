"""The score of `make mutate`: per module how many mutants were tried, and how many of them the tests kill.

A survivor that equivalent_mutants.toml names has a reason there; the others are listed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

KILLED = ("killed", "timeout")
"""A test failed, or the mutant never ended."""

OPEN = "unfinished"
"""Not killed by the cases that there was time for."""


def score(found: Mapping[str, str], reasons: Mapping[str, str], made: Mapping[str, int]) -> list[str]:
    """The lines to print: a row per module, the sum, survivors without a reason, reasons without a survivor.

    `made` is how many mutants of each module there are.

    >>> score({"a.b.x_f__mutmut_1": "killed", "a.b.x_f__mutmut_2": "survived"}, {}, {"a.b": 3})[-1]
    'survivor without a reason: a.b.x_f__mutmut_2'
    """
    rows: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, status in found.items():
        kind = ("killed" if status in KILLED else "equivalent" if name in reasons else
                "open" if status == OPEN else "unexplained")
        rows[name.rpartition(".x")[0]][kind] += 1
    total = sum(rows.values(), Counter[str]())
    columns = ("killed", "equivalent", "open", "unexplained")
    lines = [f"{'module':<32}{'mutants':>8}{'tried':>8}" + "".join(f"{c:>13}" for c in columns) + f"{'score':>8}"]
    for module, row in (*rows.items(), ("in all", total)):
        tried = sum(row.values())
        against = tried - row["equivalent"]
        of = sum(made.values()) if module == "in all" else made.get(module, tried)
        lines.append(f"{module:<32}{of:>8}{tried:>8}" + "".join(f"{row[c]:>13}" for c in columns)
                     + (f"{row['killed'] / against:>8.1%}" if against else ""))
    lines += [f"survivor without a reason: {n}" for n, s in found.items() if s not in KILLED and n not in reasons]
    return lines + [f"named as equivalent, but killed: {n}" for n in reasons if found.get(n) in KILLED]
