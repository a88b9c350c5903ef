"""Run the notebooks: `run.py` executes each and holds its outputs against the committed ones, `run.py --write` commits.

A notebook is a pair: NAME.py, which people edit, and NAME.ipynb, which has its outputs. Texts, tables and drawings must
come out as they are committed; of a figure only that it is there, since its pixels depend on the fonts of the machine.
Words after the options name notebooks: `run.py 3 5`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient

from placealg.atomic_files import write_whole

HERE = Path(__file__).resolve().parent
LONGEST = 300
"""Seconds after which a cell is given up. A notebook takes less than a minute where nothing else runs."""
_ENVIRONMENT = {"PYTHONPATH": str(HERE.parent), "COLUMNS": "110", "NO_COLOR": "1", "PYTHONHASHSEED": "0"}


def number(path: Path) -> int:
    """The number with which the name of a notebook begins."""
    return int(path.name.partition("_")[0])


def executed(path: Path) -> Any:
    """The notebook of a py:percent file, with outputs, and nothing in it that differs from run to run."""
    notebook = jupytext.read(path)
    # The kernel listens on this machine alone; that it says so at each start is no news of a notebook.
    NotebookClient(notebook, timeout=LONGEST, record_timing=False, coalesce_streams=True,
                   extra_arguments=["--IPKernelApp.log_level=ERROR"],
                   resources={"metadata": {"path": str(HERE)}}).execute()
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"], "jupytext": notebook.metadata["jupytext"],
                         "language_info": {"name": "python"}}
    for k, cell in enumerate(notebook.cells):
        cell["id"], cell["metadata"] = f"cell-{k}", {n: v for n, v in cell["metadata"].items() if n == "jupyter"}
    return notebook


def told(notebook: Any) -> list[Any]:
    """What a reader of a notebook sees, cell by cell, without the pixels of figures."""
    return [(cell.cell_type, cell.source, [_told(output) for output in cell.get("outputs", ())])
            for cell in notebook.cells]


def _told(output: Any) -> Any:
    if output.output_type == "stream":
        return output.name, output.text
    return sorted((kind, "" if kind == "image/png" else "".join(text)) for kind, text in output.get("data", {}).items())


def difference(path: Path, notebook: Any) -> str:
    """How a run differs from what is committed; "" where it does not."""
    paired = path.with_suffix(".ipynb")
    if not paired.exists():
        return "is not committed"
    before, after = told(nbformat.read(paired, as_version=4)), told(notebook)
    if len(before) != len(after):
        return f"has {len(after)} cells, and {len(before)} are committed"
    for k, (was, now) in enumerate(zip(before, after, strict=True)):
        if was != now:
            return f"differs in cell {k}:\n{now}\nis committed as\n{was}"
    return ""


def main(words: list[str]) -> int:
    """Run the notebooks that `words` name, or all."""
    os.environ.update(_ENVIRONMENT)
    numbers = [word for word in words if not word.startswith("-")]
    failed = 0
    paths = sorted(HERE.glob("[0-9]*_*.py"), key=number)
    for path in (p for p in paths if not numbers or str(number(p)) in numbers):
        start = time.monotonic()
        notebook = executed(path)
        if "--write" in words:
            write_whole(path.with_suffix(".ipynb"), nbformat.writes(notebook) + "\n")
        found = difference(path, notebook)
        failed += bool(found)
        print(f"{path.stem}: {found or 'as committed'}, {time.monotonic() - start:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("interrupted: the notebook that ran is as it was")
