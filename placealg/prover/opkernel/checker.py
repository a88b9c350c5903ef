"""The checker of programs of ops as it runs without Coq: `check` of proofs/coq/ops/Check.v, extracted."""

from __future__ import annotations

import functools

from placealg.prover.kernel.checker import Checker, of_package
from placealg.prover.opkernel.program import Program, term


@functools.cache
def shipped() -> Checker:
    """The checker that the package ships."""
    return of_package("placealg.prover.opkernel")


def accepts(program: Program) -> bool:
    """Whether the checker accepts a program, which is then correct, as `check_sound` in Sound.v proves."""
    return shipped().check(term(program))
