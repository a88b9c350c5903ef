"""What `pip install .` brings: the wheel holds all that commands read, and they run from it, far from the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from conftest import ROOT
from hatchling.builders.wheel import WheelBuilder

HELD = [path for folder, to in (("placealg", "placealg"), ("proofs", "placealg/_proofs")) for path in (
    (p, f"{to}/{p.relative_to(ROOT / folder).as_posix()}") for p in sorted((ROOT / folder).rglob("*"))
    if p.is_file() and "__pycache__" not in p.parts)]
"""(file of the checkout, its name in the wheel) of each file that the wheel should hold."""


def missing(names: Iterable[str]) -> list[str]:
    """What a wheel of these names lacks."""
    there = set(names)
    ignored = subprocess.run(["git", "check-ignore", "--stdin"], cwd=ROOT, capture_output=True, text=True, check=False,
                             input="\n".join(str(path) for path, _ in HELD)).stdout.splitlines()
    return [name for path, name in HELD if str(path) not in ignored and name not in there]


def named() -> list[str]:
    """The names that the builder of wheels gives to the files that it would take."""
    return [f.distribution_path for f in WheelBuilder(str(ROOT)).recurse_included_files()]


def test_a_wheel_takes_the_package_its_data_and_the_proofs() -> None:
    names = named()
    assert not missing(names)
    assert "placealg/_proofs/refuted/zero1_publish_dropped.toml" in names, "what the README proves"
    without = [n for n in names if "_proofs/refuted" not in n and n != "placealg/strategy/catalogue.toml"]
    assert {"placealg/_proofs/refuted/zero1_publish_dropped.toml", "placealg/strategy/catalogue.toml"} <= set(
        missing(without)), "a wheel without them is seen"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a wheel of the checkout holds."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel, = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    with zipfile.ZipFile(wheel) as held:
        assert not missing(held.namelist())
        held.extractall(folder / "site")
    return folder / "site"


@pytest.mark.slow
@pytest.mark.parametrize("words, code, says", [
    (["prove", "proofs/refuted/zero1_publish_dropped.toml"], 0, "✓ as the file expects: refuted"),
    (["prove", "proofs/proved/token_mean.toml"], 0, "PROVED, PARAMETRIC"),
    (["prove", "megatron_1446"], 0, "✓ as the file expects: refuted"),
    (["museum", "megatron_1446"], 0, "1 of 1 bugs as their files expect"),
    (["models"], 0, "llama-3-8b"),
    (["fit", "zero3", "--model", "llama-3-8b", "--set", "dp=8", "b=1", "s=8192", "--device-memory", "80GB"], 0, "FITS"),
    (["report", "zero3", "zero1", "-o", "report.html"], 0, ""),
    (["explain", "zero1_publish_dropped"], 0, ""),
])
def test_commands_run_from_a_wheel(words: list[str], code: int, says: str, installed: Path, tmp_path: Path) -> None:
    """The first run says from where it was imported: not from the checkout."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "XDG_CACHE_HOME": str(tmp_path)}
    where = subprocess.run([sys.executable, "-c", "import placealg; print(placealg.__file__)"], cwd=tmp_path,
                           env=environment, capture_output=True, text=True, check=True).stdout
    assert where.startswith(str(installed))
    got = subprocess.run([sys.executable, "-m", "placealg", *words], cwd=tmp_path, env=environment, capture_output=True,
                         text=True, check=False)
    assert (got.returncode, got.stderr) == (code, "") and says in got.stdout
    assert words[0] != "report" or (tmp_path / "report.html").stat().st_size > 10_000
