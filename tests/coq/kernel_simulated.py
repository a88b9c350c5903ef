"""The kernel's semantics against the simulator: the same programs on the same small meshes differ at the same places.

python tests/coq/kernel_simulated.py [N]      every N-th change of every covered program; exit code 1 where they differ

Both run a program rank by rank beside a single device, with owners, tokens and functions of their own: where a run of
one is that of its single device, so has to be that of the other.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

from kernel_mutants import KINDS, STRATEGIES, program
from kernel_run import Run, World
from mutants import Mutant

from placealg.prover.kernel.outside import Outside
from placealg.prover.kernel.printer import printed
from placealg.simulator.run import simulate
from placealg.simulator.setting import Setting


@dataclass(slots=True)
class Agreement:
    """Of some programs: how many ran as the single device in both, how many in neither, and what differs."""

    right: int = 0
    wrong: int = 0
    differ: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.right} run as the single device in both, {self.wrong} in neither"


def compared(strategy: str, mutants: Iterable[Mutant], steps: int = 1, microbatches: int = 1) -> Agreement:
    """The two on the mutants of a strategy's program, at two ranks an axis."""
    found = Agreement()
    for mutant in mutants:
        try:
            asked = printed(mutant.step)
        except Outside:
            continue
        reference = mutant.step.reference
        names = reference.mesh.names
        counts = Setting.equal if "equal_counts" in reference.hypotheses else Setting.unequal
        simulated = simulate(mutant.step, counts(reference, dict.fromkeys(names, 2), microbatches), steps)
        said = Run(asked, World((2,) * len(names), microbatches), steps + 1).wrong()
        if simulated.equal == (not said):
            found.right += simulated.equal
            found.wrong += not simulated.equal
        else:
            found.differ.append(f"{strategy}: {mutant.story}: the simulator finds "
                                f"{simulated.difference or 'no fault'}, the semantics {said or 'none'}")
    return found


def main() -> int:
    """Print what was compared, and what differs."""
    every, differ = int(sys.argv[1]) if sys.argv[1:] else 1, 0
    for strategy in STRATEGIES:
        step = program(strategy)
        mutants = [m for kind in KINDS.values() for m in kind(step)]
        found = compared(strategy, mutants[::every], microbatches=2)
        print(f"{strategy!r}: {found}", *found.differ, sep="\n", flush=True)
        differ += len(found.differ)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
