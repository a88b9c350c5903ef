"""`placealg explain NAME`: of a bug its story, of a published number whether it follows, of all else what it means."""

from __future__ import annotations

from argparse import Namespace

from placealg.cli.bug_files import is_bug
from placealg.cli.explanations import explain as find
from placealg.cli.museum import explain as tell_bug
from placealg.cli.output import print_json, print_lines, width
from placealg.cli.published import explain_published, names
from placealg.render.listing import explanation


def explain(chosen: Namespace) -> int:
    """`placealg explain NAME`, the name in one word or several."""
    chosen.name = " ".join(chosen.name)
    if chosen.name in names():
        explain_published(chosen.name, chosen.format == "json")
        return 0
    if is_bug(chosen.name):
        return tell_bug(chosen)
    found = find(chosen.name)
    if chosen.format == "json":
        print_json({"version": 1, "name": chosen.name, "found": [
            {"name": e.name, "kind": e.kind, "sentences": list(e.sentences), **dict(e.rows())} for e in found]})
    else:
        for k, e in enumerate(found):
            print_lines([*([()] if k else []), *explanation(e.name, e.kind, e.sentences, e.rows(), width())])
    return 0
