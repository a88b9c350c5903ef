"""Queries asked again: of a fresh Z3, and of a second solver, cvc5, which shares no code with it.

Each solver runs in a process of its own under a limit on its work. The limit is deterministic: on a busy machine the
answer comes later, and is the same. The wall-clock limit, after which the process is killed, is far beyond that. If
cvc5 gives a proof, its steps are counted, and among them the holes: steps that are taken on trust.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from placealg.progress import each
from placealg.prover.evidence.certificate import Query
from placealg.prover.evidence.solver import (
    SAT,
    SEED,
    UNKNOWN,
    UNSAT,
    Proof,
    Reply,
    Solve,
    SolverProcess,
    z3_answer,
)
from placealg.solver_presence import require

AGREE, DISAGREE, NO_ANSWER = "agree", "disagree", "no answer"
OLDEST_CVC5 = (1, 2)
CVC5_LIMIT = 4_000_000
"""The work of cvc5 on one query, in its own units: 10 to 30 seconds of a core."""

REPLAY_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Replay:
    """The solvers' answers to one query, and the expected answer ("" if the prover left it open)."""

    name: str
    expected: str
    answers: Mapping[str, Reply]

    @property
    def outcome(self) -> str:
        """AGREE: all solvers give the expected answer. DISAGREE: one gives the opposite of it, or of another's."""
        said = {a.status for a in self.answers.values()} | ({self.expected} if self.expected else set())
        if {SAT, UNSAT} <= said:
            return DISAGREE
        return NO_ANSWER if UNKNOWN in said or not self.expected else AGREE

    @property
    def reason(self) -> str:
        """Why there is no answer, solver by solver."""
        silent = [f"{solver}: {a.reason or 'it gave up'}" for solver, a in self.answers.items() if a.status == UNKNOWN]
        return "; ".join(silent) or ("" if self.expected else "the prover left it open")

    @property
    def proof(self) -> Proof | None:
        """The size of the second solver's proof, if it gave one."""
        return next((a.proof for a in self.answers.values() if a.proof), None)


@dataclass(frozen=True, slots=True)
class Rechecked:
    """The outcome of replaying a certificate; `edited` maps each changed file to what is wrong with it.

    The `settled` obligations hold by how the program is built and have no query; the `undecided` ones were left open
    without one. `sha256` is the manifest's, to compare with the hash that `prove` printed: whoever edits a folder can
    seal it anew. `regenerated` says that the program was proved again and all files equal the result.
    """

    replays: tuple[Replay, ...]
    settled: int
    undecided: int
    solvers: Mapping[str, str]
    manifest: Mapping[str, Any]
    edited: Mapping[str, str]
    sha256: str = ""
    regenerated: bool = False

    def count(self, outcome: str) -> int:
        """How many queries ended as AGREE, DISAGREE or NO_ANSWER."""
        return sum(r.outcome == outcome for r in self.replays)

    @property
    def code(self) -> int:
        """The exit code: 1 edited or a disagreement, 3 an obligation without an answer, else 0."""
        if self.edited or self.count(DISAGREE):
            return 1
        return 3 if self.count(NO_ANSWER) or self.undecided else 0

    def to_json(self) -> dict[str, Any]:
        """The JSON object of `placealg recheck --format json`."""
        return {
            "version": 1, **{k: self.manifest.get(k) for k in ("strategy", "model", "verdict", "class")},
            "manifest_sha256": self.sha256 or None, "regenerated": self.regenerated,
            "edited": dict(self.edited), "solvers": dict(self.solvers),
            "totals": {"asked": len(self.replays), "agree": self.count(AGREE), "disagree": self.count(DISAGREE),
                       "no_answer": self.count(NO_ANSWER), "settled": self.settled, "undecided": self.undecided},
            "files": [{
                "file": r.name, "expected": r.expected, "outcome": r.outcome, "reason": r.reason,
                **{solver: a.status for solver, a in r.answers.items()},
                "proof": None if r.proof is None else {"steps": r.proof.steps, "holes": r.proof.holes},
            } for r in self.replays],
        }


def require_cvc5() -> None:
    """Raise NoSolver unless cvc5 is installed and can be loaded."""
    require("cvc5", "the second solver")


def solver_versions() -> dict[str, str]:
    """Solver -> its version."""
    import cvc5
    import z3

    return {"z3": z3.get_version_string(), "cvc5": str(getattr(cvc5, "__version__", "of an unknown version"))}


def cvc5_answer(text: str, limit: int) -> Reply:
    """The answer of cvc5, run in this process, with the size of its proof if it gives one.

    `limit` is in the units of Z3; CVC5_LIMIT is the most that cvc5 is given.
    """
    import cvc5

    version = tuple(int(part) for part in cvc5.__version__.split(".")[:2])
    if version < OLDEST_CVC5:
        wanted = ".".join(map(str, OLDEST_CVC5))
        return Reply(UNKNOWN, {}, f"cvc5 {cvc5.__version__} is too old: {wanted} or later is needed")
    try:
        return _asked(cvc5, text, limit, proofs=True)
    except RuntimeError:
        return _asked(cvc5, text, limit, proofs=False)


def _asked(cvc5: Any, text: str, limit: int, proofs: bool) -> Reply:
    solver = cvc5.Solver()
    options: dict[str, int | str] = {"seed": SEED, "sat-random-seed": SEED, "rlimit-per": min(limit, CVC5_LIMIT)}
    if proofs:
        options |= {"produce-proofs": "true", "proof-granularity": "dsl-rewrite"}
    for name, value in options.items():
        solver.setOption(name, str(value))
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, text, "query")
    said = ""
    while not (command := parser.nextCommand()).isNull():
        said = str(command.invoke(solver, parser.getSymbolManager())).strip() or said
    if said == UNSAT:
        return Reply(UNSAT, proof=_size(cvc5, solver.getProof()) if proofs else None)
    return Reply(SAT) if said == SAT else Reply(UNKNOWN, {}, said if said.startswith("(error") else "it gave up")


def _size(cvc5: Any, roots: Iterable[Any]) -> Proof:
    """The number of distinct steps of a proof, and of those taken on trust."""
    trusted = {cvc5.ProofRule.TRUST, cvc5.ProofRule.TRUST_THEORY_REWRITE}
    todo, seen, holes = list(roots), set[Any](), 0
    while todo:
        step = todo.pop()
        if step not in seen:
            seen.add(step)
            holes += step.getRule() in trusted
            todo.extend(step.getChildren())
    return Proof(len(seen), holes)


SOLVERS: Mapping[str, Solve] = {"z3": z3_answer, "cvc5": cvc5_answer}
"""The solvers that replay a query."""


def replays(queries: Iterable[tuple[str, str, str]], solvers: Mapping[str, Solve] = SOLVERS,
            seconds: float = REPLAY_SECONDS) -> Iterator[Replay]:
    """Every solver's answers to each query, which is given as its name, the expected answer, and its text."""
    running = {name: SolverProcess(solve) for name, solve in solvers.items()}
    try:
        for name, expected, text in each(list(queries), lambda query: query[0]):
            yield Replay(name, expected, {solver: at.ask_text(text, seconds=seconds) for solver, at in running.items()})
    finally:
        for at in running.values():
            at.stop()


def asked(queries: Iterable[Query]) -> Iterator[tuple[str, str, str]]:
    """(name, expected answer, text) of the queries that have something to ask a solver."""
    return ((q.name, q.expected, q.text) for q in queries if q.asks)
