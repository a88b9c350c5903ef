"""A program of the kernel as a Coq file, with a one-line proof of its theorem; and coqc's answer to it."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from placealg.errors import InputError
from placealg.prover.kernel.program import Term, coq_text

VERSION = "8.16"
"""The version of Coq with which the theory is checked."""

CLOSED = "Closed under the global context"
_KERNEL = ("Syntax", "Semantics", "Check", "Decide", "Algebra", "Facts", "Events", "Units", "Loops", "Steps", "Sound")
_THEORY = ("Sums", *(f"kernel/{name}" for name in _KERNEL))
_WIDTH = 118
_DIGEST = re.compile(r"^\(\* program: sha256 ([0-9a-f]{64}) \*\)$", re.MULTILINE)
_PROGRAM = re.compile(r"^Definition strategy : program :=\n(.*?)\.\n\n", re.MULTILINE | re.DOTALL)


def sha256(program: Term) -> str:
    """The digest of a program's text as Coq reads it."""
    return _digest(coq_text(program))


def _digest(text: str) -> str:
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()


def coq_file(program: Term, about: str) -> str:
    """The file: the program as data, and the theorem that it is correct.

    >>> print(coq_file(("Program", []), "none").splitlines()[-1])
    Print Assumptions strategy_correct.
    """
    text = coq_text(program)[1:-1]
    return (f"(** {about}: the program that `placealg prove --coq` printed, and the proof that it is correct. *)\n\n"
            f"(* program: sha256 {sha256(program)} *)\n\n"
            "From Placealg.kernel Require Import Syntax Semantics Decide Sound.\nOpen Scope nat_scope.\n\n"
            f"Definition strategy : program :=\n{_wrapped(text)}.\n\n"
            "Theorem strategy_correct : correct strategy.\n"
            "Proof. apply check_sound; vm_compute; reflexivity. Qed.\n\n"
            "Print Assumptions strategy_correct.\n")


def _wrapped(text: str) -> str:
    lines, left = [], text
    while len(left) > _WIDTH - 2:
        cut = left.rfind(" ", 0, _WIDTH - 2)
        lines.append(left[:cut])
        left = left[cut + 1:]
    return "\n".join(f"  {part}" for part in (*lines, left))


def check_unedited(path: Path) -> None:
    """Raise InputError unless the program of a printed file has the digest that the file names."""
    text = path.read_text(encoding="utf-8")
    said, program = _DIGEST.search(text), _PROGRAM.search(text)
    if said is None or program is None:
        raise InputError("is no file that prove --coq printed; give another folder", where=str(path))
    if _digest(f"({program[1].strip()})") != said[1]:
        raise InputError("was edited by hand: its program is not the one whose digest it names", where=str(path))


def coq_version() -> str:
    """The version of coqc; "" if there is none."""
    if shutil.which("coqc") is None:
        return ""
    said = subprocess.run(["coqc", "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"version (\d+\.\d+(?:\.\d+)?)", said)
    return found[1] if found else "unknown"


def by_coqc(text: str, theory: Path) -> str:
    """coqc's answer to a file: "" if it is proved without axioms, else why not, in one line.

    `theory` is the folder of the Coq sources; they are compiled in a folder of their own.
    """
    version = coq_version()
    if not version:
        return "there is no coqc on PATH"
    if not version.startswith(f"{VERSION}."):
        return f"coqc is {version}, and the theory is checked with {VERSION}"
    with tempfile.TemporaryDirectory() as directory:
        build = Path(directory)
        (build / "kernel").mkdir()
        for name in _THEORY:
            shutil.copy(theory / f"{name}.v", build / f"{name}.v")
        (build / "strategy.v").write_text(text, encoding="utf-8")
        said = ""
        for name in (*_THEORY, "strategy"):
            done = subprocess.run(["coqc", "-q", "-R", ".", "Placealg", f"{name}.v"], cwd=build, capture_output=True,
                                  text=True, check=False)
            if done.returncode:
                return f"coqc refuses {name}.v: {' '.join(done.stderr.split())[:300]}"
            said = done.stdout.strip()
    return "" if said == CLOSED else f"the proof assumes something: {' '.join(said.split())[:300]}"
