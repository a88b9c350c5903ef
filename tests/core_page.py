"""docs/core.md: the modules of the core in the order in which they are read, and which of them every day's work runs.

`python tests/core_page.py --write` writes the page. The order is that of imports: a module stands behind those that it
imports, room by room. What runs is measured: functions that are called while eight strategies are derived, priced,
proved and simulated.
"""

from __future__ import annotations

import ast
import cProfile
import pstats
import sys
import textwrap
from pathlib import Path

from test_house import ANNEXES, FLOORS, imports, room

import placealg as pa

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "placealg"
PAGE = ROOT / "docs" / "core.md"
STRATEGIES = ("dp", "zero1", "zero2", "zero3", "hsdp", "zero1*tp", "zero3*tp_sp", "zero2*offload_optimizer")
"""The everyday strategies: ZeRO 0 to 3, HSDP, TP, TP with sequence parallelism, an offloaded optimizer."""

HEAD = """# The core

Everything that makes a placement a program, formulas, a proof and a run: the rooms that `derive`, `cost`, `prove` and
`simulate` need. The annexes stand around it (`importers`; `watch` with `measure`; `configurations`; `render` and
`cli`), import it, and are imported by nothing in it: where it asks one for something, the name stands in
`placealg/annexes.py`. `make test-core` runs the core's tests on a copy without the annexes' folders.

Below are its modules, in an order in which each stands behind those that it imports. **{everyday}** of {all} are
everyday: functions of theirs run while {strategies} are derived on `gpt`, priced, proved and simulated (`runs`: how
many of how many, for what a module needs when it is imported is not counted). A newcomer reads these, and leaves
the others until a pipeline, an expert or a checkpoint is at hand. `python tests/core_page.py --write` measures it anew.
"""


def core_modules() -> list[Path]:
    """The modules of the core, in the order of reading."""
    annexed = {name for rooms in ANNEXES.values() for name in rooms} | {"placealg", "__main__"}
    paths = {dotted(path): path for path in sorted(PACKAGE.rglob("*.py")) if room(dotted(path)) not in annexed
             and path.name != "extraction.py" and path != PACKAGE / "__init__.py"}
    below = {name: imports(path.read_text(encoding="utf-8")) & paths.keys() for name, path in paths.items()}
    floor = {name: level for level, names in enumerate(FLOORS) for name in names}
    order: list[str] = []

    def visit(name: str) -> None:
        if name in seen:
            return
        seen.add(name)
        for other in sorted(below[name]):
            if room(other) == room(name):
                visit(other)
        order.append(name)

    seen: set[str] = set()
    rooms = sorted({room(name) for name in paths}, key=lambda r: (floor.get(r, 0), r))
    for one in rooms:
        for name in sorted(paths):
            if room(name) == one:
                visit(name)
    return [paths[name] for name in order]


def dotted(path: Path) -> str:
    """The name of a module."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def called() -> set[tuple[str, int]]:
    """(file, line) of every function that runs in a day's work."""
    profile = cProfile.Profile()
    profile.enable()
    for text in STRATEGIES:
        step = pa.derive(pa.parse_strategy(text), pa.gpt())
        figures = pa.costs(step).figures
        assert all(figures[path].text() for path in ("memory.total", "communication.total"))
        assert pa.prove(step).verdict == "PROVED"
        sizes = dict.fromkeys(step.reference.mesh.names, 2)
        assert pa.simulate(step, setting=pa.Setting.equal(step.reference, sizes, microbatches=2)).equal
    profile.disable()
    return {(file, line) for file, line, _ in pstats.Stats(profile).stats}  # type: ignore[attr-defined]


def functions(path: Path) -> set[tuple[str, int]]:
    """(file, line) of every function of a module, as the interpreter has them."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            found.add((str(path), min([node.lineno, *(d.lineno for d in node.decorator_list)])))
    return found


def rows() -> list[tuple[Path, int, int]]:
    """Each module with the functions of it that run, and all that it has."""
    run = called()
    every = [(path, functions(path)) for path in core_modules()]
    return [(path, len(own & run), len(own)) for path, own in every if own or path.name != "__init__.py"]


def page() -> str:
    """The text of docs/core.md."""
    measured = rows()
    lines, here = [], ""
    for path, ran, own in measured:
        if room(dotted(path)) != here and path.parent != PACKAGE:
            here = room(dotted(path))
            lines += ["", f"## {here}", "", "| module | runs | what it holds |", "|---|---|---|"]
        elif not lines:
            lines += ["", "## ground floor", "", "| module | runs | what it holds |", "|---|---|---|"]
        name = path.relative_to(PACKAGE / here if path.parent != PACKAGE else PACKAGE)
        runs = f"**{ran} of {own}**" if ran else f"{own}: special" if own else "data"
        lines.append(f"| `{name}` | {runs} | {_first(path)} |")
    head = _wrapped(HEAD.format(everyday=sum(ran > 0 for _, ran, _ in measured), all=len(measured),
                       strategies=", ".join(f"`{s}`" for s in STRATEGIES[:-1]) + f" and `{STRATEGIES[-1]}`"))
    return head + "\n".join(lines) + "\n"


def _wrapped(text: str) -> str:
    return "\n\n".join(textwrap.fill(part, 120, break_on_hyphens=False) for part in text.strip().split("\n\n")) + "\n"


def _first(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    made = page()
    if "--write" in sys.argv:
        PAGE.write_text(made, encoding="utf-8")
    else:
        print(made)
