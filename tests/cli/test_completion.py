"""`placealg completion`: what a shell offers is what the parser takes, and bash itself says so."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Outcome

from placealg.cli.completion import words_of
from placealg.cli.parser import COMMANDS, COMPLETED_SHELLS

Run = Callable[..., Outcome]


def completed(script: Path, *words: str) -> list[str]:
    """What bash offers for the last of some words."""
    said = " ".join(f"'{word}'" for word in words)
    code = (f"source {script}; COMP_WORDS=({said}); COMP_CWORD={len(words) - 1}; _placealg; "
            "printf '%s\\n' \"${COMPREPLY[@]}\"")
    return subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash")
def test_bash_offers_commands_options_and_names(placealg: Run, tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_text(placealg("completion", "bash").out, encoding="utf-8")
    for words, offered in ((("placealg", "pro"), ["prove"]),
                           (("placealg", "prove", "zero3", "--cert"), ["--certificate"]),
                           (("placealg", "cost", "zero3", "--format", "l"), ["latex"]),
                           (("placealg", "model", "llama-3-8"), ["llama-3-8b"]),
                           (("placealg", "museum", "megatron_144"), ["megatron_1446"]),
                           (("placealg", "cost", "zero3", "--precision", "nano"), ["nanotron"])):
        assert completed(script, *words) == offered


@pytest.mark.parametrize("shell", COMPLETED_SHELLS)
def test_every_option_of_every_command_is_offered(shell: str, placealg: Run) -> None:
    text = placealg("completion", shell).out
    for command in COMMANDS:
        for option in words_of(command).options:
            assert (f"-l {option[2:]}" if shell == "fish" else option) in text
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=text, text=True, check=False).returncode == 0


def test_another_shell_is_refused(placealg: Run) -> None:
    found = placealg("completion", "powershell")
    assert (found.code, found.out, found.err.count("\n")) == (2, "", 1)
