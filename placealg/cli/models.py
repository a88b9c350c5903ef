"""`placealg models`: which models have a name here, and of which types a config.json is read."""

from __future__ import annotations

from argparse import Namespace

from placealg.cli.output import print_json, print_lines, width
from placealg.models.config import SYMBOLIC, resolve_model, shipped
from placealg.models.family import aliases, families, family
from placealg.render.listing import models_page


def models(chosen: Namespace) -> int:
    """`placealg models`."""
    sized = [resolve_model(name) for name in shipped()]
    symbolic = [make() for make in SYMBOLIC.values()]
    also = {name: sorted(alias for alias, of in aliases().items() if of == name) for name in families()}
    read = [(name, family(name).like, also[name], [m.name for m in sized if m.family == name]) for name in families()]
    if chosen.format == "json":
        print_json({"version": 1, "models": [
            {"name": m.name, "family": m.family, "parameters": m.total(), "activated": m.activated(),
             "sizes": dict(m.sizes)} for m in sized],
            "symbolic": [m.name for m in symbolic], "families": [
            {"model_type": name, "like": like, "also": others, "shipped": named}
                for name, like, others, named in read]})
    else:
        print_lines(models_page(sized, symbolic, [(n, like, others) for n, like, others, _ in read], width()))
    return 0
