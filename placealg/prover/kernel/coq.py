"""A program of the kernel as a Coq file, proved correct or proved not to be; and coqc's answer to it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from placealg.errors import InputError
from placealg.prover.kernel.terms import Term, coq_text
from placealg.prover.kernel.theory import MODULES, Refused, compiled

_WIDTH = 118
_KERNEL = "From Placealg.kernel Require Import Syntax Semantics"
_OPS = "From Coq Require Import PArith.\nFrom Placealg Require Import Sums.\n" \
    "From Placealg.ops Require Import Machine Meaning Check"
_ACCEPTED = "apply check_sound; vm_compute; reflexivity."
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
    says = f"{about}: the program that `placealg prove --coq` printed, and the proof that it is correct."
    return _file(program, says, "Decide Sound", "strategy_correct : correct strategy", _ACCEPTED)


def ops_file(program: Term, about: str) -> str:
    """The file of a program of ops: the program as data, and the theorem that it is correct.

    >>> ops_file(("Program", []), "none").splitlines()[6]
    'From Placealg.ops Require Import Machine Meaning Check Sound.'
    """
    says = f"{about}: the program of ops that `placealg prove --coq` printed, and the proof that it is correct."
    return _file(program, says, "Sound", "strategy_correct : correct strategy", _ACCEPTED, _OPS)


@dataclass(frozen=True, slots=True)
class World:
    """A run of `proofs/coq/kernel/World.v`: axis sizes in the program's order, microbatches, steps, stops or none.

    Every unit in the loop over layers has two instances, every group two elements in each, every rank one token; if it
    is `small`, one instance and one element. With `stops` the run is resumed from the checkpoint of each step.
    """

    sizes: tuple[int, ...]
    microbatches: int
    steps: int
    stops: bool
    small: bool = False

    @property
    def term(self) -> str:
        """The arguments of `tells_wrong` behind the program. A size is written as the one before it."""
        sizes, many = "; ".join(str(n - 1) for n in self.sizes), 1 if self.small else 2
        return (f"(fun a => nth a [{sizes}] 0) {self.microbatches - 1} (fun _ => {many}) {many} "
                f"(fun _ => {str(self.stops).lower()}) {self.steps}")

    def __str__(self) -> str:
        ranks = " x ".join(map(str, self.sizes)) or "1"
        after = f"{self.steps} step" + "s" * (self.steps != 1)
        return (f"{ranks} ranks, m = {self.microbatches}, after {after}" + " and a resume" * self.stops
                + ", with one element a group" * self.small)


def worlds(sizes: Sequence[int], microbatches: int, groups: int = 1) -> tuple[World, ...]:
    """The worlds in which a refuted program is run: one step or none, with a stop and without; then two steps.

    What the step after it reads is looked at, too. A run of two steps has one element, and is tried of programs of one
    group: `vm_compute` computes a number anew wherever it is read.

    >>> [str(w) for w in worlds((2, 2), 1)][:2]
    ['2 x 2 ranks, m = 1, after 1 step', '2 x 2 ranks, m = 1, after 0 steps']
    >>> str(worlds((2,), 1)[-1]), len(worlds((2,), 1)), len(worlds((2,), 1, groups=4))
    ('2 ranks, m = 1, after 2 steps, with one element a group', 5, 4)
    """
    short = tuple(World(tuple(sizes), microbatches, steps, stops) for stops, steps in product((False, True), (1, 0)))
    return short if groups > 1 else (*short, World(tuple(sizes), microbatches, 2, False, small=True))


def refutation_file(program: Term, about: str, world: World) -> str:
    """The file: the program as data, and the theorem that it is not correct, by a run in a world over the rationals."""
    return _file(program, f"{about}: the program that `placealg prove --coq` printed, and the proof that it is not "
                          f"correct: in a world of {world}, a rank holds another number than the single device.",
                 "Decide World", "strategy_wrong : ~ correct strategy",
                 f"apply (tells_wrong strategy {world.term});\n  vm_compute; reflexivity.")


def telling(program: Term, tried: Sequence[World]) -> str:
    """A file that prints the number of the first of the worlds in which a run of the program differs; else theirs."""
    rows = "".join(f"  if tells strategy {world.term} then {k} else\n" for k, world in enumerate(tried))
    return f"{_head(program, 'the first world that tells', 'Decide World')}Eval vm_compute in\n{rows}  {len(tried)}.\n"


def _head(program: Term, says: str, modules: str, language: str = _KERNEL) -> str:
    return (f"(** {says} *)\n\n(* program: sha256 {sha256(program)} *)\n\n"
            f"{language} {modules}.\nOpen Scope nat_scope.\n\n"
            f"Definition strategy : program :=\n{_wrapped(coq_text(program)[1:-1])}.\n\n")


def _file(program: Term, says: str, modules: str, theorem: str, proof: str, language: str = _KERNEL) -> str:
    name = theorem.partition(" ")[0]
    head = _head(program, says, modules, language)
    return f"{head}Theorem {theorem}.\nProof. {proof} Qed.\n\nPrint Assumptions {name}.\n"


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


def by_coqc(text: str, sources: Path, keep: Path | None = None, modules: Sequence[str] = MODULES) -> str:
    """coqc's answer to a file: "" if it is proved without axioms, else why not, in one line.

    `sources` is the folder of the Coq theory, and `keep` one where they are found again, compiled.
    """
    try:
        with compiled(sources, keep, modules) as folder:
            return folder.proves(text)
    except Refused as refused:
        return str(refused)


def refuted_by_coqc(program: Term, about: str, tried: Sequence[World], sources: Path,
                    keep: Path | None = None) -> tuple[str, str]:
    """The file that proves a program not correct, in the first world that tells, and why coqc does not prove it.

    Both are "" where none of the worlds tells: the file since there is nothing to prove, the reason by itself.
    """
    try:
        with compiled(sources, keep) as folder:
            said = re.search(r"= (\d+)", folder.answer("telling", telling(program, tried)))
            if said is None or int(said[1]) >= len(tried):
                return "", ""
            text = refutation_file(program, about, tried[int(said[1])])
            return text, folder.proves(text)
    except Refused as refused:
        return "", str(refused)
