"""What a playground is built from beside placealg: files of npm and PyPI, each held to its SHA-256, kept in a cache."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from placealg.errors import InputError
from placealg.progress import say

PLATFORM = ("--only-binary=:all:", "--python-version", "3.14", "--implementation", "cp", "--abi", "cp314", "--abi",
            "none", "--platform", "pyemscripten_2026_0_wasm32", "--platform", "manylinux2014_x86_64", "--platform",
            "any")
"""The Python of the browser; wheels of another platform are read for what they hold in Python alone."""


@dataclass(frozen=True, slots=True)
class Download:
    """One file: its name, what its registry calls it, its SHA-256.

    Of an editor's package `module` is the file that a browser imports, `imported` the name by which others import it.
    """

    name: str
    sha256: str
    npm: str = ""
    pypi: str = ""
    module: str = ""
    imported: str = ""


def downloads() -> tuple[Download, ...]:
    """All files, as downloads.toml lists them."""
    text = Path(__file__).with_name("downloads.toml").read_text(encoding="utf-8")
    return tuple(Download(**row) for row in tomllib.loads(text)["file"])


def fetched(files: Iterable[Download], cache: Path) -> Mapping[str, Path]:
    """Name -> path in the cache of every file; raises InputError where one is not there and cannot be had."""
    wanted = tuple(files)
    for k, one in enumerate(wanted, 1):
        if not is_whole(cache / one.name, one.sha256):
            say(f"fetching {one.name}: {k} of {len(wanted)}")
            _fetch(one, cache)
    return {one.name: cache / one.name for one in wanted}


def is_whole(path: Path, sha256: str) -> bool:
    """Whether a file is there and is what it should be."""
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256


def _fetch(one: Download, cache: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="placealg") as folder:
        npm = ["npm", "pack", "--loglevel=error", "--fetch-retries=0", "--pack-destination", folder, one.npm]
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--retries=0", *PLATFORM, "--dest", folder, one.pypi]
        why = _ran(npm if one.npm else pip, folder)
        found = Path(folder) / one.name
        if not found.is_file():
            raise InputError(f"the playground needs {one.npm or one.pypi}, which is not in {cache} and could not be "
                             f"fetched: {why}", where=one.name)
        if not is_whole(found, one.sha256):
            raise InputError("has another SHA-256 than placealg/playground/downloads.toml says", where=one.name)
        cache.mkdir(parents=True, exist_ok=True)
        shutil.move(found, cache / one.name)


def _ran(command: list[str], folder: str) -> str:
    """Run a registry's client; the first line of what it complains of."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{Path(command[0]).name}: {error.strerror}"
    wrong = (line.strip() for line in done.stderr.splitlines() if "error" in line.lower())
    return next(wrong, f"{Path(command[0]).name} ended with {done.returncode}")
