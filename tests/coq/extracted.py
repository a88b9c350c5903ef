"""The checker, extracted from its Coq sources as Python: what the wheel runs, without Coq; and the semantics.

    python tests/coq/extracted.py BUILD     writes both, from the files that `proofs/coq/check.sh BUILD` has compiled

Coq extracts `check` as JSON, which `in_python.py` writes as Python. The sources' digest stands beside it, by which a
test without Coq sees that they have changed. The kernel's semantics, which tests run, is extracted likewise and kept
as JSON: types are left out, and each expression is a short list.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from in_python import Native

from placealg.prover.kernel.checker import MODULE, digest

ROOT = Path(__file__).resolve().parents[2]
COQ = ROOT / "proofs" / "coq"


@dataclass(frozen=True, slots=True)
class Extract:
    """What is extracted from one file: its folder, names in it, the files of the digest, the target."""

    folder: str
    file: str
    names: tuple[str, ...]
    sources: tuple[str, ...]
    target: Path

    def digest(self) -> str:
        """The digest of the sources that are extracted."""
        files = (COQ / self.folder / f"{name}.v" for name in self.sources)
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()

    def text(self, build: Path) -> str:
        """The extracted programs; `build` holds the compiled files."""
        names = " ".join(self.names)
        (build / "Extract.v").write_text(
            f"From Placealg.{self.folder} Require Import {self.file}.\nFrom Coq Require Import Extraction.\n"
            f'Extraction Language JSON.\nExtraction "extracted.json" {names}.\n', encoding="utf-8")
        subprocess.run(["coqc", "-q", "-R", ".", "Placealg", "Extract.v"], cwd=build, check=True, capture_output=True)
        found = json.loads((build / "extracted.json").read_text(encoding="utf-8"))
        terms: list[list[Any]] = []
        for one in found["declarations"]:
            if one["what"] == "decl:term":
                terms.append([one["name"], short(one["value"])])
            elif one["what"] == "decl:fixgroup":
                terms += [[item["name"], short(item["value"])] for item in one["fixlist"]]
        return module(self.digest(), dict(terms)) if self.target.suffix == ".py" else written(self.digest(), terms)


CHECKER = Extract("kernel", "Check", ("check",), ("Prelude", "Machine", "Meaning", "Trie", "Kinds", "Sends", "Check"),
                  ROOT / "placealg/prover/kernel" / MODULE)
SEMANTICS = Extract("kernel", "Meaning", ("run", "truth", "val", "agree"), ("Prelude", "Machine", "Meaning"),
                    ROOT / "tests/coq/semantics.json")


def module(sources: str, terms: Mapping[str, Any]) -> str:
    """The extracted checker as a module of Python."""
    translation = Native(terms)
    programs = f"{translation.text()}check = {translation.named('check')}\n"
    return ('"""The verified checker, extracted from Coq: written by `make coq`, as `checker.py` says."""\n'
            f'# ruff: noqa\n# mypy: ignore-errors\nSOURCES = "{sources}"\nDIGEST = "{digest(programs)}"\n{programs}')


def written(sources: str, terms: Sequence[Any]) -> str:
    """Extracted programs as JSON: the digest of their sources, and a line each."""
    lines = ",\n".join(json.dumps(term, separators=(",", ":")) for term in terms)
    return f'{{"sources":"{sources}","terms":[\n{lines}\n]}}\n'


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


def main() -> int:
    """Write the extracted checker and semantics."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    for one in (CHECKER, SEMANTICS):
        text = one.text(Path(sys.argv[1]).resolve())
        if not one.target.exists() or one.target.read_text(encoding="utf-8") != text:
            one.target.write_text(text, encoding="utf-8")
            print(f"coq: what is extracted has changed, and is written to {one.target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
