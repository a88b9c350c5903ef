"""What each command does: read its words, ask the rooms below, print, and say how it ended."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from importlib import import_module
from typing import Any

from placealg.cases.case import CommandCase, read_case
from placealg.cli.inputs import options, style
from placealg.cli.output import print_json, print_lines, width, write_file
from placealg.errors import InputError
from placealg.solver_presence import NoSolver, why_not

Command = Callable[[Namespace], int]

NEEDED = ("the solver, z3", "the library of arrays, numpy")
"""The libraries without which some commands do nothing: what each is, and its name."""


def list_strategies(chosen: Namespace) -> int:
    """`placealg list`."""
    from placealg.placement import STATES
    from placealg.render.listing import catalogue_rows
    from placealg.strategy.catalogue import catalogue
    from placealg.strategy.expression import parse_strategy

    entries = [(entry, parse_strategy(entry.name)) for entry in catalogue().values()]
    if chosen.format == "json":
        print_json({"version": 1, "strategies": [{
            "name": e.name, "aliases": list(e.aliases), "kind": e.kind, "title": e.title, "source": e.source,
            "axes": list(e.axes),
            "placements": {state: {a: s.mode_text(state, a) for a in s.mesh.names} for state in STATES},
            "regions": dict(s.region_modes),
        } for e, s in entries]})
    else:
        print_lines(catalogue_rows(entries, width()))
    return 0


def show(chosen: Namespace) -> int:
    """`placealg show STRATEGY`."""
    from placealg.render.show import show as page
    from placealg.step.text import write_program

    for option, drawing in (("--graph", chosen.graph), ("--order", chosen.order)):
        if drawing and not drawing.lower().endswith(".svg"):
            raise InputError(f"'{drawing}' is no name of a drawing: it is an SVG, which a browser shows and "
                             "rsvg-convert or Inkscape makes a PNG of; say FILE.svg", where=option)
    case = _case(chosen, chosen.strategy)
    if chosen.write_program:
        write_file(chosen.write_program, write_program(case.step, case.strategy))
    if chosen.graph:
        from placealg.render.step_drawing import draw_step

        write_file(chosen.graph, str(draw_step(case.step)))
    if chosen.order:
        from placealg.render.order_drawing import draw_order, order_of

        sizes = {name: int(size) for name, size in case.sizes.items()}
        write_file(chosen.order, str(draw_order(order_of(case.step, sizes, case.strategy.microbatches),
                                                case.strategy.name)))
    if chosen.write_program or chosen.graph or chosen.order:
        return 0
    if chosen.format == "json":
        print_json({"version": 1, "strategy": case.strategy.name, "model": case.model.name, "events": [{
            "path": e.path, "rule": e.rule.name, "why": e.rule.why} for e in case.step.listing]})
    else:
        print_lines(page(case.strategy, case.step, width(), chosen.why))
    return 0


def model(chosen: Namespace) -> int:
    """`placealg model NAME`."""
    from placealg.models.backward import saved
    from placealg.models.config import resolve_model
    from placealg.render.listing import model_page

    found = resolve_model(chosen.name, **style(chosen))
    if chosen.format == "json":
        print_json({"version": 1, "model": found.name, "parameters": found.total() if found.sizes else None,
                    "activated": found.activated() if found.sizes else None, "left_out": list(found.left_out),
                    "sizes": dict(found.sizes), "dims": {d: str(n) for d, n in found.graph.dims.items()},
                    "regions": list(found.graph.regions), "units": [{
                        "name": u.name, "count": str(u.count), "parameters": [{
                            "name": p.name, "dims": {d: str(n) for d, n in p.dims.items()},
                            "elements": str(p.elements), "sites": list(p.sites),
                        } for p in found.of_unit(u.name)]} for u in found.units],
                    "ops": [{"name": op.output, "kind": op.kind, "region": op.region, "operands": list(op.inputs),
                             "dims": list(found.graph.tensors[op.output].dims)} for op in found.graph.ops],
                    "saved": [{"name": s.tensor.name, "unit": s.unit, "count": str(s.count),
                               "elements": str(s.tensor.elements), "element": s.tensor.element,
                               "readers": list(s.readers)} for s in saved(found.graph)]})
    else:
        print_lines(model_page(found, width()))
    return 0


def _case(chosen: Namespace, word: str) -> CommandCase:
    return read_case(word, chosen.model, chosen.sizes, **options(chosen))


def _lazy(room: str, name: str) -> Command:
    def run(chosen: Namespace) -> int:
        try:
            command: Any = getattr(import_module(f"placealg.cli.{room}"), name)
            return int(command(chosen))
        except InputError:
            raise
        except NoSolver as error:
            gap = str(error)
        except Exception:
            found = {role: why for role, why in ((role, why_not(role.rpartition(" ")[2])) for role in NEEDED) if why}
            if not found:
                raise
            gap = "; ".join(f"{role}, {why}" for role, why in found.items())
        from placealg.cli.verdicts import OPEN

        print(f"placealg: UNDECIDED: {gap}", file=sys.stderr)
        return OPEN
    return run


COMMANDS: dict[str, Command] = {
    "list": list_strategies, "show": show, "model": model, "explain": _lazy("explain_command", "explain"),
    **{name: _lazy("readers", name) for name in ("cost", "prove", "recheck", "compare", "fit", "simulate")},
    "museum": _lazy("museum", "museum"),
    "tolerance": _lazy("tolerance", "tolerance"),
    "diff": _lazy("diff", "diff"),
    "reshard": _lazy("reshard", "reshard"),
    "import": _lazy("foreign", "import_command"),
    "report": _lazy("report", "report"),
    "models": _lazy("models", "models"),
    "completion": _lazy("completion", "completion"),
    "search": _lazy("search", "search_command"),
    "check-torch": _lazy("torch", "check_torch"),
    "watch": _lazy("watch", "watch"), "conform": _lazy("watch", "conform"),
}
"""Command -> the function that runs it and returns its exit code."""
