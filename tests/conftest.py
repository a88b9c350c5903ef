"""What every test shares: the repository's root and a command line that runs in this process."""

from __future__ import annotations

import io
import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from assurance import ASSURED, RESUMED, Assured
from resumed import Resumed, chosen
from tiers import MEASURED, Clock, listed

ROOT = Path(__file__).resolve().parent.parent

collect_ignore = ["watch/set_ups.py", "watch/hand_written.py", "watch/quiet_faults.py", "watch/state_faults.py",
                  "watch/local_faults.py", "watch/loss_faults.py", "watch/write_recordings.py",
                  "watch/framework_table.py", "watch/frameworks", "watch/lifted.py", "watch/reals.py",
                  "watch/scripts", "watch/changes.py"]
"""Modules that import torch, which the default environment lacks; the tests that need it import them."""

with suppress(ModuleNotFoundError):  # the environment of torch does without
    from hypothesis import settings

    settings.register_profile("any machine", deadline=None)
    settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    """With PLACEALG_RESUME set, what has passed on this state of the code is not run again.

    What `--ignore` names is left out even where a word of the command names it.
    """
    left = {Path(p).resolve() for p in config.getoption("ignore") or ()}
    config.args[:] = [a for a in config.args if Path(a.partition("::")[0]).resolve() not in left]
    if os.environ.get("PLACEALG_RESUME"):
        config.pluginmanager.register(Resumed(ROOT), RESUMED)
    if (command := os.environ.get("PLACEALG_ASSURE")) and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Assured(command), ASSURED)
    if os.environ.get("PLACEALG_MEASURE"):
        MEASURED.parent.mkdir(exist_ok=True)
        config.pluginmanager.register(Clock())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of the cases of a test that is marked `some(k)` every k-th runs by default; the others are slow.

    So are those that slow_cases.txt names, which measurement moved there, unless they are being measured. Of the slow
    cases of each test a share runs where PLACEALG_SHARE asks for one.
    """
    seen: Counter[tuple[str, str]] = Counter()
    moved = frozenset() if os.environ.get("PLACEALG_MEASURE") == "all" else listed()
    for item in items:
        if item.nodeid in moved:
            item.add_marker(pytest.mark.slow)
        mark = item.get_closest_marker("some")
        test = item.location[0], item.name.partition("[")[0]
        if mark and seen[test] % mark.args[0]:
            item.add_marker(pytest.mark.slow)
        seen[test] += 1
    resumed = config.pluginmanager.get_plugin(RESUMED)
    if resumed:
        slow = [item for item in items if item.get_closest_marker("slow")]
        turn = chosen([(item.location[0], item.name.partition("[")[0]) for item in slow],
                      int(os.environ.get("PLACEALG_SHARE", "1")), int(resumed.state[:8], 16))
        left = {id(item): item for item, runs in zip(slow, turn, strict=True) if not runs}
        config.hook.pytest_deselected(items=list(left.values()))
        items[:] = [item for item in items if id(item) not in left]


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str


needs_commands = pytest.mark.skipif(find_spec("placealg.cli") is None, reason="there is no command line")
"""For a test that runs commands in a process of their own."""


def run_placealg(*words: str) -> Outcome:
    """Run `placealg WORDS` in this process; where there is no command line, the test is skipped."""
    main = pytest.importorskip("placealg.cli").main
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(list(words))
    return Outcome(code, out.getvalue(), err.getvalue())


@pytest.fixture
def placealg(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """The command line, run at the root with a fixed width and no colour."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    assert sys.version_info >= (3, 11)
    return run_placealg
