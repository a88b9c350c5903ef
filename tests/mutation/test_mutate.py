"""What `make mutate` runs mutants in: forks that end, whatever they did."""

from __future__ import annotations

import os
import select
import signal
import sys
import time

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="mutants are run on Linux")


def leaves_a_process_and_is_ended() -> None:
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGXCPU)


def test_a_fork_gives_its_result() -> None:
    from mutate import ended, in_fork
    assert ended(*in_fork(lambda: "killer")) == "killer"


def test_a_fork_that_ran_out_of_time_ends_though_it_left_a_process() -> None:
    from mutate import end_what_is_left, ended, in_fork
    process, pipe = in_fork(leaves_a_process_and_is_ended)
    os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    assert not select.select([pipe], [], [], 0)[0], "what it left holds the pipe open"
    end_what_is_left(process)
    assert select.select([pipe], [], [], 10)[0]
    assert ended(process, pipe) is None
