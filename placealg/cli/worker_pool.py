"""Work on all processors at once, in processes that end with the command, however it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from placealg.atomic_files import uninterrupted
from placealg.cli.terminal import work_for_another
from placealg.progress import say

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

T = TypeVar("T")
Made = TypeVar("Made")


def together(work: Callable[[T], Made], items: Sequence[T], what: str) -> list[Made]:
    """`work` of every item, in order; what one raises is raised here. `what` names the items in what is announced.

    >>> together(abs, [-1, 2, -3], "numbers")
    [1, 2, 3]
    """
    from multiprocessing import get_context
    from multiprocessing.connection import Connection, wait

    context, count = get_context("spawn"), min(os.cpu_count() or 1, len(items))
    links: list[Connection] = []
    processes: list[Any] = []
    made: dict[int, Made] = {}
    say(f"{len(items)} {what} on {count} processors")
    _start_tracker()
    try:
        with uninterrupted():
            for k in range(count):
                ours, theirs = context.Pipe(duplex=False)
                own = [(n, items[n]) for n in range(k, len(items), count)]
                processes.append(context.Process(target=_serve, args=(theirs, work, own)))
                processes[-1].start()
                theirs.close()
                links.append(ours)
        while len(made) < len(items):
            for link in wait(links):
                assert isinstance(link, Connection)
                try:
                    number, one = link.recv()
                except EOFError:
                    raise RuntimeError("a process ended before its work was done") from None
                if isinstance(one, BaseException):
                    raise one
                made[number] = one
                if number + count >= len(items):
                    links.remove(link)
                say(f"{len(made)} of {len(items)} {what}")
    finally:
        for process in processes:
            process.terminate()
            process.join()
    return [made[n] for n in range(len(items))]


def _start_tracker() -> None:
    """Start the process that multiprocessing keeps beside those it spawns.

    Its start lets interrupts through again: here, and not between others that are started with interrupts held back.
    """
    if hasattr(signal, "pthread_sigmask"):
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()


def _serve(connection: Connection, work: Callable[[Any], Any], items: Sequence[tuple[int, Any]]) -> None:
    work_for_another()
    for number, item in items:
        try:
            made = work(item)
        except Exception as error:
            made = error
        connection.send((number, made))
