"""`placealg check-torch`: real PyTorch runs held against the formulas."""

from __future__ import annotations

import sys
from argparse import Namespace

from placealg.cli.output import print_json, print_lines, width
from placealg.cli.verdicts import DONE, FAILED, OPEN
from placealg.errors import InputError
from placealg.measure.cells import WORLDS, matrix
from placealg.measure.check import check
from placealg.measure.failure import RankError
from placealg.render.measured import closing, markdown, page, to_json


def check_torch(chosen: Namespace) -> int:
    """`placealg check-torch [STRATEGY...]`."""
    cells = matrix(chosen.strategies, _worlds(chosen.world))
    results = []
    try:
        for result in check(cells, _limit(chosen.limit), _progress):
            results.append(result)
            if chosen.format == "text":
                print_lines(page(result, width()))
                sys.stdout.flush()
    except RankError as error:
        print(f"placealg: {error}", file=sys.stderr)
        return OPEN
    if chosen.format == "json":
        print_json({"version": 1, "results": [to_json(r) for r in results]})
    elif chosen.format == "markdown":
        print("\n".join(markdown(results)))
    else:
        print_lines(closing(results, width()))
    return DONE if all(r.agrees for r in results) else FAILED


def _progress(text: str) -> None:
    print(f"running {text}", file=sys.stderr, flush=True)


def _worlds(said: list[int]) -> tuple[int, ...]:
    for world in said:
        if world not in WORLDS:
            raise InputError(f"{world} is no world", where="--world", valid=map(str, WORLDS))
    return tuple(w for w in WORLDS if w in said) or WORLDS


def _limit(seconds: float) -> float:
    if not seconds > 0:
        raise InputError(f"{seconds:g} is no time", where="--limit")
    return seconds
