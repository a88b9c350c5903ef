"""Processes, one per rank: started together, given work in turn, ended within a time limit whatever they do."""

from __future__ import annotations

import gc
import os
import signal
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from multiprocessing import connection, get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from placealg.measure.failure import RankError

Work = Callable[[Any, int], Any]
"""(job, rank) -> what the rank found; it can be pickled."""

NEEDED = 160 * 2**20
"""Bytes of memory that a rank is taken to need."""


def run(world: int, work: Work, jobs: Sequence[Any], limit: float) -> Generator[list[Any]]:
    """What every rank found of each job, job after job; all ranks have one process group on loopback.

    A rank that dies, raises or takes longer than `limit` seconds for a job ends them all, with a RankError.
    """
    _check_memory(world)
    context = get_context("fork")
    with TemporaryDirectory(prefix="placealg-") as folder:
        pipes, processes = [], []
        try:
            for rank in range(world):
                here, there = context.Pipe()
                process = context.Process(target=_serve, args=(rank, world, folder, there, work, jobs), daemon=True)
                process.start()
                there.close()
                pipes.append(here)
                processes.append(process)
            for job in jobs:
                yield _collect(str(job), pipes, limit)
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.join()


def _collect(job: str, pipes: list[Any], limit: float) -> list[Any]:
    """The answers of all ranks to one job, in order."""
    deadline = time.monotonic() + limit
    found: dict[Any, Any] = {}
    while len(found) < len(pipes):
        waiting = [p for p in pipes if p not in found]
        ready: list[Any] = connection.wait(waiting, max(0.0, deadline - time.monotonic()))
        if not ready:
            late = ", ".join(str(k) for k, p in enumerate(pipes) if p not in found)
            raise RankError(f"{job}: no answer within {limit:g} s from rank {late}")
        for pipe in ready:
            rank = pipes.index(pipe)
            try:
                good, answer = pipe.recv()
            except (EOFError, ConnectionResetError):
                raise RankError(f"{job}: rank {rank} died") from None
            if not good:
                raise RankError(f"{job}: rank {rank}: {answer}")
            found[pipe] = answer
    return [found[p] for p in pipes]


def _serve(rank: int, world: int, folder: str, pipe: Any, work: Work, jobs: Sequence[Any]) -> None:
    """A rank's process: join the group, do every job, send what it found or the error in one line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.dup2(devnull, 2)
    try:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        gc.freeze()  # what the parent has loaded stays: to look at it again and again costs as much as the work
        dist.init_process_group("gloo", init_method=(Path(folder) / "group").as_uri(), rank=rank, world_size=world)
        for job in jobs:
            pipe.send((True, work(job, rank)))
        dist.barrier()
    except Exception as error:
        line = " ".join(traceback.format_exception_only(error)[-1].split())
        pipe.send((False, line))
    os._exit(0)


def _check_memory(world: int) -> None:
    """Raise a RankError where so many ranks would need more memory than is free."""
    table = Path("/proc/meminfo")
    if not table.is_file():
        return
    free = next((int(text.split()[1]) * 1024 for text in table.read_text().splitlines()
                 if text.startswith("MemAvailable")), None)
    if free is not None and world * NEEDED > free:
        raise RankError(f"{world} ranks need about {world * NEEDED / 1e9:.1f} GB of memory; free are {free / 1e9:.1f}")
