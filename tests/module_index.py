"""A line for every module of the package, from its docstring: `make modules` prints it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "placealg"


def lines() -> Iterator[str]:
    """Markdown: a heading per package, a line per module, each with the first sentence of its docstring."""
    for folder in (PACKAGE, *sorted(p for p in PACKAGE.rglob("*") if (p / "__init__.py").exists())):
        yield f"## {folder.relative_to(PACKAGE.parent)}\n\n{says(folder / '__init__.py')}\n"
        yield from (f"- `{path.name}`: {says(path)}" for path in sorted(folder.glob("*.py")) if path.stem[0] != "_")
        yield ""


def says(path: Path) -> str:
    """The first paragraph of a module's docstring on one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())


if __name__ == "__main__":
    print("\n".join(lines()))
