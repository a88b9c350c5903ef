"""The table "Measures" of docs/architecture.md: modules, lines, long functions and comparisons with a text, by package.

python tests/measures.py [COMMIT]     prints it, from a commit (7313aef) to the files as they are
"""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GROUND = "ground floor"
Measures = dict[str, Counter[str]]
"""What is counted -> package -> how many."""


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(node.value)


def with_a_text(left: ast.expr, op: ast.cmpop, right: ast.expr) -> bool:
    """Whether a comparison is one with a text that is not empty, or with several texts.

    >>> [with_a_text(c.left, c.ops[0], c.comparators[0]) for c in (
    ...     ast.parse(text, mode="eval").body for text in ('a == "b"', 'a != ""', 'a in ("b", "")', 'a in ("b", c)'))]
    [True, False, True, False]
    """
    if isinstance(op, (ast.Eq, ast.NotEq)):
        return is_text(left) or is_text(right)
    several = isinstance(op, (ast.In, ast.NotIn)) and isinstance(right, (ast.Tuple, ast.List, ast.Set)) and right.elts
    return bool(several) and all(isinstance(e, ast.Constant) and isinstance(e.value, str) for e in right.elts)


def comparisons(tree: ast.AST) -> Iterator[bool]:
    for node in (n for n in ast.walk(tree) if isinstance(n, ast.Compare)):
        sides = (node.left, *node.comparators)
        yield from map(with_a_text, sides, node.ops, sides[1:])


def measures(root: Path) -> Measures:
    """What the package of a tree comes to; the extracted checker is left out."""
    found: Measures = {what: Counter() for what in (
        "modules", "lines", "functions above 20", "comparisons with a text")}

    def package(path: Path) -> str:
        parts = path.relative_to(root / "placealg").parts
        return parts[0] if len(parts) > 1 else GROUND

    for path in sorted((root / "placealg").rglob("*.py")):
        if path.name != "extraction.py":
            text = path.read_text(encoding="utf-8")
            counts = 1, len(text.splitlines()), 0, sum(comparisons(ast.parse(text)))
            for counter, count in zip(found.values(), counts, strict=True):
                counter[package(path)] += count
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "C901", "--exclude", "extraction.py",
            "--config", "lint.mccabe.max-complexity=20", "--output-format", "json", str(root / "placealg")]
    told = subprocess.run(ruff, capture_output=True, text=True, check=False).stdout
    found["functions above 20"].update(package(Path(one["filename"])) for one in json.loads(told))
    return found


def table(old: Measures, new: Measures) -> Iterator[str]:
    yield f"| package | {' | '.join(new)} | of 100 lines |"
    yield "|" + "---|" * 6
    packages = sorted({*old["modules"], *new["modules"]})
    for name in (*packages, "all"):
        pairs = [tuple(c.total() if name == "all" else c[name] for c in (old[what], new[what])) for what in new]
        cells = [f"{a:,} → {b:,}" if a or b else "–" for a, b in pairs]
        shares = " → ".join(f"{100 * few / (many or 1):.1f}" for few, many in zip(pairs[3], pairs[1], strict=True))
        yield f"| {name if name in (GROUND, 'all') else f'`{name}`'} | {' | '.join(cells)} | {shares} |"


def main() -> int:
    commit = sys.argv[1] if len(sys.argv) > 1 else "7313aef"
    packed = subprocess.run(["git", "archive", commit, "placealg"], cwd=ROOT, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(packed)) as files:
            files.extractall(folder, filter="data")
        old = measures(Path(folder).resolve())
    print("\n".join(table(old, measures(ROOT))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
