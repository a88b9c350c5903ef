"""The kernel's checker, extracted from its Coq sources as data: what the wheel runs, without Coq.

    python tests/coq/extracted.py BUILD [FILE]     writes it to FILE (default: where the wheel has it), from the files
                                                   that `proofs/coq/check.sh BUILD` has compiled

Coq extracts `check` as JSON; types are left out, and each expression is a short list. The sources' digest stands beside
it, by which a test without Coq sees that they have changed.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCES = tuple(ROOT / "proofs" / "coq" / "kernel" / f"{name}.v" for name in ("Syntax", "Check", "Decide"))
CHECKER = ROOT / "placealg" / "prover" / "kernel" / "checker.json"
_EXTRACT = """From Placealg.kernel Require Import Decide.
From Coq Require Import Extraction.
Extraction Language JSON.
Extraction "checker.json" Decide.check.
"""


def digest() -> str:
    """The digest of the sources that are extracted."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in SOURCES)).hexdigest()


def short(e: Any) -> list[Any]:
    """An expression of Coq's JSON as a short list."""
    what = e["what"].removeprefix("expr:")
    if what == "rel":
        return ["v", e["name"]]
    if what == "global":
        return ["g", e["name"]]
    if what == "constructor":
        return ["c", e["name"], [short(a) for a in e["args"]]]
    if what == "apply":
        return ["a", short(e["func"]), [short(a) for a in e["args"]]]
    if what == "lambda":
        return ["f", e["argnames"], short(e["body"])] if e["argnames"] else short(e["body"])
    if what == "let":
        return ["l", e["name"], short(e["nameval"]), short(e["body"])]
    if what == "case":
        return ["m", short(e["expr"]), [_case(c) for c in e["cases"]]]
    raise ValueError(f"an expression of kind {what}")


def _case(case: Any) -> list[Any]:
    pattern = case["pat"]
    kind = pattern["what"].removeprefix("pat:")
    if kind == "constructor":
        return [pattern["name"], pattern["argnames"], short(case["body"])]
    return ["", [pattern["name"]] if kind == "rel" else [], short(case["body"])]


def extracted(build: Path) -> str:
    """The text of the extracted checker; `build` holds the compiled files."""
    (build / "Extract.v").write_text(_EXTRACT, encoding="utf-8")
    subprocess.run(["coqc", "-q", "-R", ".", "Placealg", "Extract.v"], cwd=build, check=True, capture_output=True)
    found = json.loads((build / "checker.json").read_text(encoding="utf-8"))
    terms: list[list[Any]] = []
    for one in found["declarations"]:
        if one["what"] == "decl:term":
            terms.append([one["name"], short(one["value"])])
        elif one["what"] == "decl:fixgroup":
            terms += [[item["name"], short(item["value"])] for item in one["fixlist"]]
    lines = ",\n".join(json.dumps(term, separators=(",", ":")) for term in terms)
    return f'{{"sources":"{digest()}","terms":[\n{lines}\n]}}\n'


def main() -> int:
    """Write the extracted checker."""
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    target = Path(sys.argv[2]) if len(sys.argv) == 3 else CHECKER
    text = extracted(Path(sys.argv[1]).resolve())
    if not target.exists() or target.read_text(encoding="utf-8") != text:
        target.write_text(text, encoding="utf-8")
        print(f"coq: the extracted checker has changed, and is written to {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
