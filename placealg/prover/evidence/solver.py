"""The one module that runs Z3: a query in, an answer out, in a process that can be killed.

A query is SMT-LIB 2 text, as the queries of a certificate are. Bounds: a resource limit, which is deterministic,
a limit on memory, and a wall-clock limit after which the process is killed, because the solver's own timeout is
not a bound. Seeds are fixed. `unknown`, a kill and a crash are all answers. Where a system starts no processes, as in a
browser, the solver runs in this one, under the resource limit alone.
"""

from __future__ import annotations

import atexit
import errno
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import z3

from placealg.atomic_files import uninterrupted

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

SAT, UNSAT, UNKNOWN = "sat", "unsat", "unknown"
RESOURCE_LIMIT = 20_000_000
_FIRST_TRY = 100_000
WALL_SECONDS = 20.0
SEED = 0
MEMORY_BYTES = 4 * 2**30
OLDEST_Z3 = (4, 13)
_RLIMIT = "rlimit count"
_ENDING_SECONDS = 2.0
_OF_MEMORY = ("SIGKILL", "SIGABRT")
_SHORT = (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE)
"""The errors of a system that starts processes, and is short of something."""
WITHOUT_PROCESSES = ("emscripten", "wasi")
"""The platforms of a browser's Python, where to ask for a process, or for a pipe to one, ends the whole program."""


@dataclass(frozen=True, slots=True)
class Proof:
    """The size of a proof that a solver gave for unsat: its steps, and of them those taken on trust (its holes)."""

    steps: int
    holes: int


@dataclass(frozen=True, slots=True)
class Reply:
    """What the solver said: sat with a model, unsat, or unknown with the reason; `rlimit` is the work done."""

    status: str
    model: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""
    rlimit: int = 0
    proof: Proof | None = None


Solve = Callable[..., Reply]
"""SMT-LIB 2 text and a resource limit -> the answer."""


def versions() -> str:
    """The solver and its version."""
    return f"z3 {z3.get_version_string()}"


def text_of(assertions: Iterable[Any]) -> str:
    """A query as SMT-LIB 2 text: what `z3.Solver.to_smt2` writes, without a solver, in a tenth of its time.

    >>> text_of([z3.Int("m") >= 2]).splitlines()[2:]
    ['(declare-fun m () Int)', '(assert', ' (>= m 2))', '(check-sat)']
    """
    *others, last = [a.as_ast() for a in assertions] or [z3.BoolVal(True).as_ast()]
    return str(z3.Z3_benchmark_to_smtlib_string(z3.main_ctx().ref(), "benchmark generated from python API", "",
                                                "unknown", "", len(others), (z3.Ast * len(others))(*others), last))


def z3_answer(text: str, limit: int, model: bool = True) -> Reply:
    """Z3's answer, in this process; raises Z3Exception on text that it cannot read. Without `model`, sat has none.

    Most queries of a proof are small and have no model. Z3's core alone says so in a tenth of the time that a context
    with all of Z3's tactics takes to begin. Where a model is asked for, or the core does not know, the query is asked
    again in a context of its own: that keeps a model, and `unknown`, from depending on what was asked before.
    """
    if z3.get_version()[:2] < OLDEST_Z3:
        return Reply(UNKNOWN, {}, f"{versions()} is too old: {'.'.join(map(str, OLDEST_Z3))} or later is needed")
    first = z3.SimpleSolver(ctx=_core())
    first.set("rlimit", min(limit, _FIRST_TRY))
    first.from_string(text)
    if (said := first.check()) == z3.unsat or (said == z3.sat and not model):
        return Reply(UNSAT if said == z3.unsat else SAT, rlimit=_used(first))
    solver = z3.Solver(ctx=z3.Context())
    solver.set("rlimit", limit)
    solver.set("random_seed", SEED)
    solver.from_string(text)
    status = solver.check()
    used = _used(solver)
    if status == z3.sat:
        found = solver.model()
        ints = {d.name(): found[d].as_long() for d in found.decls() if z3.is_int_value(found[d])}
        return Reply(SAT, ints, "", used)
    return Reply(UNSAT if status == z3.unsat else UNKNOWN, {}, solver.reason_unknown(), used)


@cache
def _core() -> Any:
    """The context in which queries are tried first; a process has one."""
    return z3.Context()


def _used(solver: Any) -> int:
    """The resources that a solver has used."""
    statistics = solver.statistics()
    return int(statistics.get_key_value(_RLIMIT)) if _RLIMIT in statistics.keys() else 0  # noqa: SIM118  not a mapping


def _serve(connection: Connection, theirs: Connection | None, solve: Solve) -> None:
    """Answer queries until the other end of the connection is closed; interrupts are left to the other end.

    `theirs` is this process's copy of the other end, if it was forked with one: while that is open, this process cannot
    notice that the process which asks was killed.
    """
    if theirs is not None:
        theirs.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _limit_memory()
    while True:
        try:
            query = connection.recv()
        except EOFError:
            return
        connection.send(_answer(solve, query))


def _answer(solve: Solve, query: tuple[Any, ...]) -> Reply:
    try:
        return solve(*query)
    except MemoryError:
        return Reply(UNKNOWN, {}, "the solver ran out of memory")
    except Exception as error:
        return Reply(UNKNOWN, {}, f"solver error: {error}")


def _limit_memory() -> None:
    """Bound the address space of this process, where the system can."""
    if sys.platform == "linux":
        import resource

        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        soft = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextmanager
def allowed_children() -> Iterator[None]:
    """Let a daemonic process, such as a worker of multiprocessing.Pool, start the solver.

    It is forbidden since children would go on after their parent was killed; the solver ends when its connection does.
    """
    config: dict[str, Any] = getattr(multiprocessing.current_process(), "_config", {})
    daemon = config.pop("daemon", None)
    try:
        yield
    finally:
        if daemon is not None:
            config["daemon"] = daemon


class SolverProcess:
    """A solver in a process of its own, started when first asked and replaced when it had to be killed."""

    def __init__(self, solve: Solve = z3_answer) -> None:
        self._solve = solve
        self._process: Any = None
        self._connection: Connection | None = None
        self._here = False

    def ask(self, assertions: Iterable[Any], *, limit: int = RESOURCE_LIMIT, seconds: float = WALL_SECONDS,
            model: bool = True) -> Reply:
        """Whether the assertions have a model, and which; Z3 alone can be asked without `model`, and is faster then."""
        return self.ask_text(text_of(assertions), limit=limit, seconds=seconds, model=model)

    def ask_text(self, text: str, *, limit: int = RESOURCE_LIMIT, seconds: float = WALL_SECONDS,
                 model: bool = True) -> Reply:
        """The same as `ask`, for SMT-LIB 2 text."""
        query = (text, limit) if model else (text, limit, False)
        if self._here:
            return _answer(self._solve, query)
        try:
            connection = self._start()
        except (OSError, ImportError, NotImplementedError) as error:
            if isinstance(error, OSError) and error.errno in _SHORT:
                return Reply(UNKNOWN, {}, f"the solver's process cannot be started: {error.strerror}")
            self._here = True
            return _answer(self._solve, query)
        try:
            connection.send(query)
            if not connection.poll(seconds):
                self.stop()
                return Reply(UNKNOWN, {}, f"the solver was stopped after {seconds:g} s")
            answer = connection.recv()
        except (EOFError, OSError):
            ended = self._ended()
            self.stop()
            return Reply(UNKNOWN, {}, ended)
        except BaseException:
            self.stop()
            raise
        assert isinstance(answer, Reply)
        return answer

    def _ended(self) -> str:
        """How the process ended, after its end of the connection was closed."""
        self._process.join(_ENDING_SECONDS)
        code = self._process.exitcode
        if code is None:
            return "the solver's process closed its connection"
        if code >= 0:
            return f"the solver's process ended with exit code {code}"
        name = next((s.name for s in signal.Signals if s == -code), f"signal {-code}")
        return f"the solver's process was killed by {name}{' (out of memory?)' if name in _OF_MEMORY else ''}"

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None

    def forget(self) -> None:
        """Leave the solver's process to the process that started it: a fork of that can neither ask nor end it.

        Without this, `multiprocessing` would try to end it when the fork ends, although it is not a child of the fork.
        """
        getattr(multiprocessing.process, "_children", set()).discard(self._process)
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None

    def _start(self) -> Connection:
        if self._connection is None:
            if sys.platform in WITHOUT_PROCESSES:
                raise NotImplementedError(f"{sys.platform} starts no process")
            forks = "fork" in multiprocessing.get_all_start_methods()
            context: Any = multiprocessing.get_context("fork" if forks else "spawn")
            ours, theirs = context.Pipe()
            copied = ours if forks else None
            process = context.Process(target=_serve, args=(theirs, copied, self._solve), daemon=True)
            try:
                with uninterrupted(), allowed_children():
                    process.start()
            except BaseException:
                ours.close()
                raise
            finally:
                theirs.close()
            self._process, self._connection = process, ours
        return self._connection


PROCESS = SolverProcess()
"""The solver process that proofs use."""

atexit.register(PROCESS.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=PROCESS.forget)
