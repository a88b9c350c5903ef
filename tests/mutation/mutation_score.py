"""The score of `make mutate`: per module how many mutants were tried, and how many of them the tests kill.

A survivor that equivalent_mutants.toml names has a reason there; the others are listed. Mutants are named by what they
change, for their numbers change with every line before them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

KILLED = ("killed", "timeout")
"""A test failed, or the mutant never ended."""

OPEN = "unfinished"
"""Not killed by the cases that there was time for."""

_WORDS = re.compile(r"'[^']*'|\"[^\"]*\"|\w+|\s+|.")


def score(found: Iterable[tuple[str, str, str]], reasons: Mapping[str, str], made: Mapping[str, int]) -> list[str]:
    """The lines to print: a row per module, the sum, survivors without a reason, reasons without a survivor.

    `found` gives module, mutant and how it ended; `made` is how many mutants of each module there are.

    >>> score([("a.b", "a.b.f: {1 => 2}", "killed"), ("a.b", "a.b.f: {0 => 1}", "survived")], {}, {"a.b": 3})[-1]
    'survivor without a reason: a.b.f: {0 => 1}'
    """
    found = list(found)
    rows: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for module, says, status in found:
        kind = ("killed" if status in KILLED else "equivalent" if says in reasons else
                "open" if status == OPEN else "unexplained")
        rows[module][kind] += 1
    total = sum(rows.values(), Counter[str]())
    columns = ("killed", "equivalent", "open", "unexplained")
    lines = [f"{'module':<32}{'mutants':>8}{'tried':>8}" + "".join(f"{c:>13}" for c in columns) + f"{'score':>8}"]
    for module, row in (*rows.items(), ("in all", total)):
        tried = sum(row.values())
        against = tried - row["equivalent"]
        of = sum(made.values()) if module == "in all" else made.get(module, tried)
        lines.append(f"{module:<32}{of:>8}{tried:>8}" + "".join(f"{row[c]:>13}" for c in columns)
                     + (f"{row['killed'] / against:>8.1%}" if against else ""))
    lines += [f"survivor without a reason: {says}" for _, says, status in found
              if status not in KILLED and says not in reasons]
    return lines + [f"named as equivalent, but killed: {says}" for _, says, status in found
                    if status in KILLED and says in reasons]


def summary(found: Iterable[tuple[str, str, str]], reasons: Mapping[str, str], made: Mapping[str, int]) -> str:
    """What came out of all mutants, in a line; those that no run has tried yet are open, too.

    >>> summary([("a.b", "a.b.f: {1 => 2}", "killed"), ("a.b", "a.b.f: {0 => 1}", "survived")], {}, {"a.b": 3})
    '3 mutants: 1 killed, 0 equivalent with a reason, 1 survived without one, 1 not tried on this code'
    """
    found = list(found)
    killed = sum(status in KILLED for _, _, status in found)
    equivalent = sum(status not in KILLED and says in reasons for _, says, status in found)
    unfinished = sum(status == OPEN and says not in reasons for _, says, status in found)
    every = sum(made.values())
    return (f"{every} mutants: {killed} killed, {equivalent} equivalent with a reason, "
            f"{len(found) - killed - equivalent - unfinished} survived without one, "
            f"{every - len(found) + unfinished} not tried on this code")


def difference(was: str, now: str) -> str:
    """Two texts as one, whole words in braces where they differ.

    >>> difference("self.inside = ''", "self.inside = None")
    "self.inside = {'' => None}"
    """
    one, two = _WORDS.findall(was), _WORDS.findall(now)
    least = min(len(one), len(two))
    start = next((i for i in range(least) if one[i] != two[i]), least)
    end = next((i for i in range(least - start) if one[-1 - i] != two[-1 - i]), least - start)
    changed = ("".join(words[start:len(words) - end]) for words in (one, two))
    return "".join(one[:start]) + "{" + " => ".join(changed) + "}" + "".join(one[len(one) - end:])

