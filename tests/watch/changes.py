"""Faults that nobody listed: a random op of a random rank of each right set-up makes something else.

`changes.py [EACH] [WORDS...]`: EACH changes of every set-up, 20 if it does not say, of those whose name has one of the
words. A table: of how many the step run again differs, is unseen (with the causes), and conforms; in how many of those
the updates are not the right ones, as the real numbers of both steps say.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from zlib import crc32

import lifted
from set_ups import RIGHT

from placealg.measure import ranks
from placealg.watch.lift.judge import CONFORMS, DIFFERS, UNSEEN, judge

SAME_NUMBERS = 1e-6
VERDICTS = (DIFFERS, UNSEEN, CONFORMS, "WRONG", "failed")


def changed(name: str, each: int) -> tuple[Counter[str], Counter[str]]:
    """(how many changes of a set-up got which verdict, why those that are unseen are)."""
    found: Counter[str] = Counter()
    causes: Counter[str] = Counter()
    single, first = lifted.alone(name), crc32(name.encode()) % 100_000
    jobs = [(name, first + k, lifted.MORE) for k in range(each)]
    rest = jobs
    while rest:
        try:
            for job, got in zip(rest, ranks.run(lifted.EVERY[name].world, lifted.spoiled, rest, 60.0), strict=False):
                rest = rest[rest.index(job) + 1:]
                wrong = [g for g in got if isinstance(g, str)]
                if wrong:  # the step itself fails
                    found["failed"] += 1
                    continue
                told = judge([g[0] for g in got], single)
                same = all(g[1] < SAME_NUMBERS for g in got)
                found[told.verdict if told.verdict != CONFORMS or same else "WRONG"] += 1
                if told.verdict == UNSEEN:
                    causes[told.unseen[0].what[:90]] += 1
                if told.verdict == CONFORMS and not same:
                    print("WRONG:", job[:2], next(g[2] for g in got if g[2]), [g[1] for g in got], flush=True)
        except ranks.RankError as error:
            found["failed"] += 1
            rest = rest[1:]
            print(f"{name}: {error}", file=sys.stderr)
    return found, causes


def main() -> None:
    """Print the table."""
    each = int(sys.argv[1]) if sys.argv[1:] else 20
    words = sys.argv[2:]
    total: Counter[str] = Counter()
    causes: Counter[str] = Counter()
    began = time.monotonic()
    print("| set-up | differ | unseen | conform, the same | conform, another update | fail |")
    print("|---|---|---|---|---|---|")
    for name in RIGHT:
        if words and not any(w in name for w in words):
            continue
        found, why = changed(name, each)
        print("|", " | ".join((name, *(str(found[k]) for k in VERDICTS))), "|", flush=True)
        total += found
        causes += why
    print("| all |", " | ".join(str(total[k]) for k in VERDICTS), "|")
    print(f"{time.monotonic() - began:.0f} s; unseen: {causes.most_common(8)}")


if __name__ == "__main__":
    main()
