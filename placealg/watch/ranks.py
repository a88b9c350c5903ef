"""Processes of a user's script, one per rank: started with what torchrun sets, ended within a time limit."""

from __future__ import annotations

import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from placealg.errors import InputError
from placealg.watch.lift.trace import Group, Trace, drawn_apart
from placealg.watch.seen import Seen, joined
from placealg.watch.verdict import DIFFERS

ENDED = 77
"""The exit code of a rank that has written what it saw."""

ALONE = "alone"
"""The suffix of the files of what the single device did, one of each stage."""

TURNS, FED = "turns", "fed"
"""Ways in which a single device reads what the ranks have read: one rank's batch after the other's; by calls."""

READ_ON = "the script reads more batches than the ranks have read"
"""What ends a single device that wants more than there is."""

_ERROR = re.compile(r"placealg: |[\w.]*(Error|Exception|Interrupt|Exit)\b")


class RunError(Exception):
    """A run that ended without a recording, in one line."""


def record(mesh: Mapping[str, int], script: str, arguments: Sequence[str], limit: float,
           single: Sequence[str] | None = None) -> Seen:
    """Run a script on every rank of a mesh, and join what its ranks recorded of one training step.

    `single` are the words of the single device beside them; None takes those of the run, and without a word none is
    run.
    """
    if not Path(script).is_file():
        raise InputError(f"there is no script '{script}'")
    world = prod(mesh.values())
    sizes = ",".join(f"{a}={n}" for a, n in mesh.items())
    with TemporaryDirectory(prefix="placealg-") as folder:
        processes: list[subprocess.Popen[bytes]] = []
        with _ended(processes) as starting:
            port = _free_port()
            for rank in range(world):
                with starting():
                    processes.append(_started(Path(folder), sizes, rank, world, port, script, arguments))
            _wait(processes, Path(folder), limit)
            seen = joined([Seen.read((Path(folder) / f"{k}.json").read_text()) for k in range(world)])
            return _lifted(seen, Path(folder), [script, *arguments] if single is None else single, limit)


def _started(folder: Path, sizes: str, rank: int, world: int, port: int, script: str, arguments: Sequence[str]
             ) -> subprocess.Popen[bytes]:
    """A rank's process, with what torchrun sets."""
    said = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world,
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    env = {**os.environ, **{k: str(v) for k, v in said.items()}}
    env.setdefault("GLOO_SOCKET_IFNAME", "lo")
    command = [sys.executable, "-m", "placealg.watch.recorder.launch", str(folder), sizes, script, *arguments]
    alone = "alone" if sizes.startswith("--alone") else ""
    with (folder / f"{alone}{rank}.log").open("wb") as log:
        return subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)


def _lifted(seen: Seen, folder: Path, words: Sequence[str], limit: float) -> Seen:
    """The same with what comes of running all ranks again beside the script at a world of one.

    A pipeline that does not run so runs one process for each of its stages, on whole batches.
    """
    if not words:
        return replace(seen, alone="none was asked for")
    if seen.world == 1:
        return replace(seen, alone="one device is no other one")
    lost = next(iter(folder.glob("*.lost")), None)
    if lost is not None:
        return replace(seen, alone=f"the ranks' ops were not kept: {lost.read_text()}")
    traces = [pickle.loads((folder / f"{k}.trace").read_bytes()) for k in range(seen.world)]
    axis, own, beside, why = stages_along(seen, traces), [], "", ""
    given = all((folder / f"{k}.batches").is_file() for k in range(seen.world))
    try:
        try:
            own, beside = _alone(folder, ["--alone"], words, limit), "the script at a world of one"
        except RunError as error:
            if READ_ON not in str(error):
                raise
            own, beside = _alone(folder, [f"--alone/{TURNS}"], words, limit), (
                "the script at a world of one, which reads the ranks' batches one after the other")
            given = False
        if axis and not _named_as(own[0], traces):
            own, why = [], "the script at a world of one has parameters of other names"
    except RunError as error:
        why = f"the script does not run at a world of one: {error}"
    if not own and not axis:
        return replace(seen, alone=why)
    if not own:
        ranks = [[r.rank for r in seen.ranks if r.coordinates[axis] == k] for k in range(seen.mesh[axis])]
        modes = [f"--alone={axis},{','.join(map(str, each))}" for each in ranks]
        try:
            own, beside = _alone(folder, modes, words, limit), (
                f"the stages of {axis}, one after the other, each once on the whole batch")
        except RunError as error:
            return replace(seen, alone=f"{why}; nor does each of its stages on the whole batch: {error}")
    lost = next(iter(folder.glob("*.lost")), None)
    if lost is not None:
        return replace(seen, alone=f"the single device's ops were not kept: {lost.read_text()}")
    from placealg.watch.lift.link import Unlinked, linked, named_apart
    from placealg.watch.lift.told import lifted

    single = own[0]
    if len(own) > 1:
        apart = [dict(trace.named) for trace in own]
        named_apart(traces, [r.coordinates[axis] for r in seen.ranks], apart)
        named_apart(own, range(len(own)), apart)
        try:
            single = linked(own)
        except Unlinked as error:
            return replace(seen, alone=f"its stages are not one device: {error}")
    beside += ", which reads what the ranks read" if given else ""
    told = lifted(seen, traces, single, beside, given)
    drawn = drawn_apart(traces) and told.lifted is not None and told.lifted.verdict == DIFFERS
    if len(own) > 1 or (told.lifted is not None and not drawn):
        return told
    if drawn:
        told = replace(seen, alone=f"{beside}, draws other random numbers than the ranks do")
    return _handed(told, folder, words, limit, traces) or told


def _handed(seen: Seen, folder: Path, words: Sequence[str], limit: float, traces: Sequence[Trace]) -> Seen | None:
    """The same beside a single device that is handed what the ranks were, by calls; None where it cannot be."""
    from placealg.watch.lift.told import lifted

    for way in (FED, FED + TURNS):
        try:
            single = _alone(folder, [f"--alone/{way}"], words, limit)[0]
        except RunError as error:
            if READ_ON in str(error):
                continue
            return None
        turns = ", in turn" if way != FED else ""
        beside = (f"the script at a world of one, whose model and loss are given what the ranks' are{turns} (how a "
                  "rank makes these is not compared)")
        told = lifted(seen, traces, single, beside, given=False, handed=True)
        return told if told.lifted is not None or single.lost else None
    return None


def _named_as(single: Trace, traces: Sequence[Trace]) -> bool:
    """Whether ranks call what they hold as the single device does."""
    every = {*single.named, *single.tied}
    return not single.clash and all(every >= {n.partition("@")[0] for n in t.named} and not t.clash for t in traces)


def _alone(folder: Path, modes: Sequence[str], words: Sequence[str], limit: float) -> list[Trace]:
    """Run the script as the single device: once, or once for each stage; what each did."""
    processes: list[subprocess.Popen[bytes]] = []
    with _ended(processes) as starting:
        port = _free_port()
        for rank, mode in enumerate(modes):
            with starting():
                processes.append(_started(folder, mode, rank, len(modes), port, words[0], words[1:]))
        _wait(processes, folder, limit, "alone")
    return [pickle.loads((folder / f"{k}.{ALONE}").read_bytes()) for k in range(len(modes))]


def stages_along(seen: Seen, traces: Sequence[Trace]) -> str:
    """The axis along which ranks send to each other, one to one; "" if there is none, or several."""
    places = {r.rank: r.coordinates for r in seen.ranks}
    found = set()
    for trace in traces:
        for op in trace.ops:
            if op.name.partition("::")[2] in ("send", "recv_"):
                ranks = next(v.ranks for v in op.given.values() if isinstance(v, Group))
                peer = ranks[int(op.given.get("dst", op.given.get("src", 0)))]
                found |= {a for a in seen.mesh if places[peer][a] != places[trace.rank][a]}
    return found.pop() if len(found) == 1 else ""


@contextmanager
def _ended(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Afterwards the processes have ended, with all that they have started, also where a signal ends this one.

    A process is started inside of what this gives: a signal that comes then waits until the process is in the list.
    """
    late: list[int] = []
    held = False

    def end(number: int, _frame: Any) -> None:
        if not held:
            raise SystemExit(128 + number)
        late.append(number)

    @contextmanager
    def starting() -> Iterator[None]:
        nonlocal held
        held = True
        yield
        held = False
        if late:
            raise SystemExit(128 + late[0])

    own = threading.current_thread() is threading.main_thread()
    kept = {s: signal.signal(s, end) for s in (signal.SIGTERM, signal.SIGHUP)} if own else {}
    try:
        yield starting
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # of one that has ended, what it has left behind
            process.wait()
        for number, handler in kept.items():
            signal.signal(number, handler)


def _wait(processes: Sequence[subprocess.Popen[bytes]], folder: Path, limit: float, name: str = "") -> None:
    """Wait for all ranks; report the first that raised, not those that its failure aborted."""
    deadline, aborted = time.monotonic() + limit, False
    while True:
        codes = [p.poll() for p in processes]
        wrong = [(code < 0, rank, code) for rank, code in enumerate(codes) if code is not None and code != ENDED]
        if wrong and not aborted:  # the one that raised may end a little later
            aborted, deadline = True, min(deadline, time.monotonic() + 5)
        if wrong and (not min(wrong)[0] or None not in codes or time.monotonic() > deadline):
            _, rank, code = min(wrong)
            told = _last(folder / f"{name}{rank}.log", code)
            raise RunError(told if name else f"rank {rank}: {told}")
        if all(code == ENDED for code in codes):
            return
        if time.monotonic() > deadline:
            late = ", ".join(str(k) for k, code in enumerate(codes) if code is None)
            raise RunError(f"no step was recorded within {limit:g} s" + ("" if name else f" by rank {late}"))
        time.sleep(0.05)


def _last(log: Path, code: int) -> str:
    """The last line of a log that tells an error, else its last one, without placealg's name before it."""
    text = log.read_text(errors="replace") if log.is_file() else ""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    told = [line for line in lines if _ERROR.match(line)]
    if told:
        return told[-1].removeprefix("placealg: ")
    end = f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"{end} after: {lines[-1]}" if lines else end


def _free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])
