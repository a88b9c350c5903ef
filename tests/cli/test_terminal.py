"""What a terminal sees while a command works, and what an interrupt leaves behind: one line, 130, and nothing else."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT

from placealg import progress
from placealg.atomic_files import uninterrupted
from placealg.cli import terminal as attend
from placealg.cli.worker_pool import together

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the line is drawn by a POSIX timer")

LONG = ("prove", "zero3*tp_sp*pp", "--model", "mixtral-8x7b", "--no-timing")
ERASE = "\r\x1b[2K"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", "TERM": "xterm", "NO_COLOR": "1",
               "PYTHONDONTWRITEBYTECODE": "1"}


@contextlib.contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a pseudo-terminal."""
    ends = os.openpty()
    try:
        yield ends
    finally:
        for end in ends:
            with contextlib.suppress(OSError):
                os.close(end)


def seen(master: int) -> str:
    """Everything that was written to the terminal, once its other end is closed."""
    parts = []
    with contextlib.suppress(OSError):
        while part := os.read(master, 1 << 16):
            parts.append(part)
    return b"".join(parts).decode()


SOONER = ("-c", "import sys; from placealg.cli import main, terminal; terminal.FIRST = terminal.EVERY = 0.1; "
          "sys.exit(main(sys.argv[1:]))")
"""How Python runs a command whose line is drawn soon, however fast the machine is."""


def shown_on_a_terminal(*words: str, out_too: bool = False) -> tuple[int, str, str]:
    """(exit code, what a terminal saw, stdout) of a command whose stderr is that terminal."""
    run = SOONER if words == LONG else ("-m", "placealg")
    with terminal() as (master, slave):
        process = subprocess.Popen([sys.executable, *run, *words], cwd=ROOT, env=ENVIRONMENT, text=True,
                                   stderr=slave, stdout=slave if out_too else subprocess.PIPE)
        os.close(slave)
        out = "" if out_too else process.communicate()[0]
        told = seen(master)
        return process.wait(), told, out


def test_a_terminal_sees_one_line_and_then_none() -> None:
    code, told, out = shown_on_a_terminal(*LONG)
    assert code == 0 and "PROVED, PARAMETRIC" in out and ERASE not in out
    drawn = told.split(ERASE)
    assert drawn[0] == drawn[-1] == "" and "\n" not in told
    assert all(re.fullmatch(r"[^\n]{1,79}", text) for text in drawn[1:-1])
    assert any("proving" in text for text in drawn)


def test_the_line_changes_with_what_is_done() -> None:
    with terminal() as (master, slave):
        line = attend.Attended(slave)
        for text in ("proving the lemmas", "proving forward"):
            line.hear(text)
            line.tick()
        line.hear("")
        os.close(slave)
        drawn = seen(master).split(ERASE)
    assert [re.sub(r" … \d+ s$", "", text) for text in drawn] == ["", "proving the lemmas", "proving forward", ""]


def test_output_on_the_same_terminal_stands_on_clean_lines() -> None:
    code, told, _ = shown_on_a_terminal(*LONG, out_too=True)
    assert code == 0
    lines = told.replace("\r\n", "\n").split("\n")
    assert ERASE in lines[0] and lines[0].rpartition(ERASE)[2].startswith("zero3*tp_sp*pp on mixtral-8x7b: PROVED")
    assert not [line for line in lines[1:] if ERASE in line]


def test_where_nobody_watches_nothing_is_shown() -> None:
    done = subprocess.run([sys.executable, "-m", "placealg", *LONG], cwd=ROOT, env=ENVIRONMENT, capture_output=True,
                          text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_where_nobody_watches_a_long_search_tells_lines_now_and_then(monkeypatch: pytest.MonkeyPatch,
                                                                      capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([0.0, 1.0, 16.0, 17.0, 40.0])
    monkeypatch.setattr(attend, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    with attend.told_in_lines("search"):
        for text in ("1 of 4 strategies", "2 of 4 strategies", "3 of 4 strategies", "4 of 4 strategies"):
            progress.say(text)
    assert capsys.readouterr() == ("", "placealg search: 2 of 4 strategies, 16 s\nplacealg search: 4 of 4 strategies, "
                                   "40 s\n")


def test_on_a_terminal_a_long_search_tells_no_lines(monkeypatch: pytest.MonkeyPatch,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(attend, "_terminal", lambda: 2)
    monkeypatch.setattr(attend, "LINES", 0.0)
    with attend.told_in_lines("search"):
        progress.say("1 of 4 strategies")
    assert capsys.readouterr() == ("", "")


def test_what_is_quick_shows_nothing() -> None:
    assert shown_on_a_terminal("--version")[:2] == (0, "")


def session_members(session: int) -> list[int]:
    """The processes of a session that are alive."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] not in "ZX":
                found.append(int(entry.name))
    return found


def spent(session: int) -> float:
    """The seconds of processor time that the processes of a session have had: on a busy machine they come later."""
    found = 0
    for process in session_members(session):
        with contextlib.suppress(OSError):
            found += sum(map(int, Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return found / os.sysconf("SC_CLK_TCK")


def survivors(session: int, seconds: float = 10) -> list[int]:
    """The processes of a session that are alive after a while; a process closes its files before it is gone."""
    deadline = time.monotonic() + seconds
    while (found := session_members(session)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


WRITERS = {
    "report": ("report", "zero3*tp_sp", "--model", "gpt", "-o", "out.html"),
    "certificate": ("prove", "zero3*tp_sp", "--model", "gpt", "--certificate", "out"),
    "museum": ("museum",),
}


@pytest.mark.some(4)
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are listed in /proc")
@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("seconds", [0.7, 1.5, 2.3, 3.1])
def test_an_interrupt_leaves_one_line_and_nothing_else(name: str, seconds: float, tmp_path: Path) -> None:
    """As a terminal sends it: to the command and all its children, twice."""
    process = subprocess.Popen([sys.executable, "-m", "placealg", *WRITERS[name]], cwd=tmp_path, env=ENVIRONMENT,
                               text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    while process.poll() is None and spent(process.pid) < seconds:
        time.sleep(0.01)
    for _ in range(2):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.05)
    out, err = process.communicate(timeout=60)
    if process.returncode:
        assert (process.returncode, err, out) == (130, "placealg: interrupted\n", "")
        assert list(tmp_path.iterdir()) == []
    assert survivors(process.pid) == []


def test_the_state_before_is_the_state_after() -> None:
    def handlers() -> list[object]:
        return [signal.getsignal(s) for s in (signal.SIGALRM, signal.SIGINT)]

    before = handlers()
    with attend.attended(alone=False):
        assert handlers() != before
    assert handlers() == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_an_interrupt_while_processes_are_still_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes in the midst of an import: then there are no children."""
    monkeypatch.setitem(sys.modules, "multiprocessing", types.ModuleType("multiprocessing"))
    attend._end_children()
    monkeypatch.delitem(sys.modules, "multiprocessing")
    attend._end_children()


def test_a_loop_that_is_left_by_an_error_listens_to_nobody() -> None:
    heard: list[str] = []
    with pytest.raises(ZeroDivisionError), progress.listening(heard.append):
        for k in progress.each([0, 1], str):
            progress.say(f"at {1 // k}")
    gc.collect()
    progress.say("nobody hears this")
    assert heard == ["1 of 2, 0"]


def fails(number: int) -> int:
    """Work that fails on one item."""
    return 1 // number


def test_what_work_raises_elsewhere_is_raised_here() -> None:
    assert together(fails, [1, 2, 3], "numbers") == [1, 0, 0]
    with pytest.raises(ZeroDivisionError):
        together(fails, [1, 0, 2], "numbers")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Interrupts as Python handles them, even where the process was started in the background and ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_that_another_thread_takes_waits_too(interruptible: None) -> None:
    """The signal goes to a thread that does not mask it, as those of numeric libraries do not."""
    asked, done = threading.Event(), threading.Event()

    def take() -> None:
        asked.wait()
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        done.set()

    thread = threading.Thread(target=take)
    thread.start()
    passed = False
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        asked.set()
        done.wait()
        for _ in range(1000):
            passed = not passed
        passed = True
    thread.join()
    assert passed


MASKED = """
import signal
from test_terminal import masked
from placealg.cli.worker_pool import together
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print(together(masked, [1, 2], "numbers"))
"""


def masked(_number: int) -> bool:
    """Whether this process lets interrupts wait, as it was started to do."""
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_every_process_of_a_command_is_started_deaf_to_interrupts(tmp_path: Path) -> None:
    """From its first instruction: while it still imports, an interrupt would be a traceback of its own."""
    program = tmp_path / "program.py"
    program.write_text(MASKED)
    done = subprocess.run([sys.executable, str(program)], cwd=ROOT, capture_output=True, text=True, timeout=60,
                          check=False,
                          env={**ENVIRONMENT, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:{ROOT / 'tests' / 'cli'}"})
    assert (done.stdout, done.stderr) == ("[True, True]\n", "")


ASKS = """
import time
from placealg.prover.evidence.solver import SolverProcess, z3_answer
first, second = SolverProcess(z3_answer), SolverProcess(z3_answer)
for solver in (first, second):
    print(solver.ask_text("(check-sat)").status)
print("asked", flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are listed in /proc")
def test_solvers_end_with_the_process_that_asks_them_however_it_ends() -> None:
    """Killed, it cannot end them: they notice that nobody can ask any more."""
    process = subprocess.Popen([sys.executable, "-c", ASKS], cwd=ROOT, env=ENVIRONMENT, text=True,
                               stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(3)] == ["sat\n", "sat\n", "asked\n"]
    assert len(session_members(process.pid)) == 3
    process.kill()
    try:
        assert process.communicate(timeout=20)[0] == ""
        assert survivors(process.pid) == []
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
