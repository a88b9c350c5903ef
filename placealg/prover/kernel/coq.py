"""A program of the kernel as a Coq file, proved correct or proved not to be; and coqc's answer to it."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from placealg.errors import InputError
from placealg.prover.kernel.terms import Term, coq_text
from placealg.prover.kernel.theory import Refused, compiled

_WIDTH = 118
_KERNEL = "From Coq Require Import PArith ZArith.\nFrom Placealg Require Import Sums.\n" \
    "From Placealg.kernel Require Import Machine Meaning Check"
_PRIME = 10007
"""The prime of `World.v`."""

_ATOMS = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53)
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
    return _file(program, says, "Sound", "strategy_correct : correct strategy", _ACCEPTED)


@dataclass(frozen=True, slots=True)
class World:
    """A run of `proofs/coq/kernel/World.v`: sizes of axes in the program's order, microbatches, steps, stops or none.

    Every unit that is repeated has so many instances, every dim two positions. With `stops` the run is resumed from
    the checkpoint of each step.
    """

    sizes: tuple[int, ...]
    microbatches: int
    steps: int
    stops: bool
    layers: int = 1

    def term(self, program: Term) -> str:
        """The arguments of `tells_wrong` behind the program. A size is written as the one before it."""
        sizes = "; ".join(str(n - 1) for n in (self.microbatches, *self.sizes))
        found = atoms_of(program, (self.microbatches, *self.sizes), _PRIME)
        atoms = "; ".join(f"({x}, {pow(x, -1, _PRIME)})" for x in found)
        at = "; ".join(f"[{'; '.join(str(k >> d & 1) for d in range(_DIMS))}]" for k in _POSITIONS)
        return f"[{sizes}] 2 {self.layers} [{atoms}]%Z {str(self.stops).lower()} {self.steps} [{at}]"

    def __str__(self) -> str:
        ranks = " x ".join(map(str, self.sizes)) or "1"
        after = f"{self.steps} step" + "s" * (self.steps != 1)
        return f"{ranks} ranks, m = {self.microbatches}, after {after}" + " and a resume" * self.stops


_DIMS = 12
_POSITIONS = (0, 2**_DIMS - 1, 0b010101010101, 0b101010101010)
"""The dims, and of each bit by bit the positions, at which a run is looked at."""


def atoms_of(program: Any, sizes: Sequence[int], prime: int) -> list[int]:
    """Residues for the atoms of a program: those that are sizes, and by which the products that it takes for 1 are 1.

    >>> one = [("pair", 1, 0), ("pair", 0, 1), ("pair", 0, 1)]
    >>> atoms_of(("Program", ("Mesh", 2, [], [], [("pair", 1, 2)], []), [one]), (1, 4), 10007)[:3]
    [12, 3, 4]
    """
    found = list(_ATOMS)
    _, (*_, sized, _), ones, *_ = program
    for _, axis, atom in sized:
        found[atom] = sizes[axis]
    for one in ones:
        powers = [above - below for _, above, below in one]
        solved = next((k for k, power in enumerate(powers) if power == 1), None)
        if solved is not None:
            others = (pow(found[k], power, prime) for k, power in enumerate(powers) if k != solved)
            found[solved] = pow(math.prod(others), -1, prime)
    return found


def worlds(sizes: Sequence[int], microbatches: int) -> tuple[World, ...]:
    """The worlds in which a refuted program is run: one step or none, with a stop and without; then two steps.

    >>> [str(w) for w in worlds((2, 2), 1)][:2]
    ['2 x 2 ranks, m = 1, after 1 step', '2 x 2 ranks, m = 1, after 0 steps']
    """
    short = tuple(World(tuple(sizes), microbatches, steps, stops) for stops, steps in product((False, True), (1, 0)))
    return (*short, World(tuple(sizes), microbatches, 2, False))


def refutation_file(program: Term, about: str, world: World) -> str:
    """The file: the program as data, and the theorem that it is not correct, by a run in a world over residues."""
    return _file(program, f"{about}: the program that `placealg prove --coq` printed, and the proof that it is not "
                          f"correct: in a world of {world}, a rank holds another number than the single device.",
                 "World", "strategy_wrong : ~ correct strategy",
                 f"apply (tells_wrong strategy {world.term(program)});\n  vm_compute; reflexivity.")


def telling(program: Term, tried: Sequence[World]) -> str:
    """A file that prints the number of the first of the worlds in which a run of the program differs; else theirs."""
    rows = "".join(f"  if tells strategy {world.term(program)} then {k} else\n" for k, world in enumerate(tried))
    return f"{_head(program, 'the first world that tells', 'World')}Eval vm_compute in\n{rows}  {len(tried)}.\n"


def _head(program: Term, says: str, modules: str) -> str:
    return (f"(** {says} *)\n\n(* program: sha256 {sha256(program)} *)\n\n"
            f"{_KERNEL} {modules}.\nOpen Scope nat_scope.\n\n"
            f"Definition strategy : program :=\n{_wrapped(coq_text(program)[1:-1])}.\n\n")


def _file(program: Term, says: str, modules: str, theorem: str, proof: str) -> str:
    name = theorem.partition(" ")[0]
    head = _head(program, says, modules)
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


def by_coqc(text: str, sources: Path, keep: Path | None = None) -> str:
    """coqc's answer to a file: "" if it is proved without axioms, else why not, in one line.

    `sources` is the folder of the Coq theory, and `keep` one where they are found again, compiled.
    """
    try:
        with compiled(sources, keep) as folder:
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
