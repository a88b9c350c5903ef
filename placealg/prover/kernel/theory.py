"""The Coq theory, compiled by coqc: once for each of its states where there is a folder to keep it in."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from placealg.atomic_files import beside
from placealg.progress import say

VERSION = "8.16"
"""The version of Coq with which the theory is checked."""

SECONDS = 300
"""The processor time that coqc has for a file: a run of many groups in `vm_compute` can take very long."""

MODULES = ("kernel/Sound", "kernel/World")
"""What printed programs import: the proof of the checker, and the world in which a wrong program is run."""

CLOSED = "Closed under the global context"
_SUMS = "sums"
_KEPT = 2
_IMPORTS = re.compile(r"^From Placealg(?:\.(kernel))? Require (?:Import|Export) ([^.]+)\.", re.MULTILINE)


class Refused(Exception):
    """coqc refuses a file, or there is no coqc: why, in one line."""


def coq_version() -> str:
    """The version of coqc; "" if there is none."""
    if shutil.which("coqc") is None:
        return ""
    said = subprocess.run(["coqc", "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"version (\d+\.\d+(?:\.\d+)?)", said)
    return found[1] if found else "unknown"


@dataclass(frozen=True, slots=True)
class Compiled:
    """The folder with the compiled theory, and another one for files that import it."""

    theory: Path
    scratch: Path

    def answer(self, name: str, text: str) -> str:
        """What coqc prints for a file that imports the theory; raises Refused if it refuses it."""
        return _coqc(name, text, self.scratch, self.theory)

    def proves(self, text: str) -> str:
        """"" if a file is proved without axioms, else what it assumes."""
        said = self.answer("strategy", text)
        return "" if said == CLOSED else f"the proof assumes something: {' '.join(said.split())[:300]}"


@contextmanager
def compiled(sources: Path, keep: Path | None = None, modules: Sequence[str] = MODULES) -> Iterator[Compiled]:
    """The theory of a folder of sources, compiled; raises Refused without the right coqc.

    In the folder `keep` it is found again for as long as sources and coqc are the same: compiling takes a minute.
    """
    version = coq_version()
    if not version:
        raise Refused("there is no coqc on PATH")
    if not version.startswith(f"{VERSION}."):
        raise Refused(f"coqc is {version}, and the theory is checked with {VERSION}")
    texts: dict[str, str] = {}
    for module in modules:
        imported(sources, module, texts)
    with beside(Path(tempfile.gettempdir()) / "placealg") as directory:
        scratch = directory / "scratch"
        scratch.mkdir()
        yield Compiled(_kept(texts, version, keep) or _built(texts, directory / "theory"), scratch)


def imported(sources: Path, module: str, found: dict[str, str]) -> dict[str, str]:
    """Module -> its source, of a Coq module and of all that it imports, in the order in which they compile."""
    if module not in found:
        text = (sources / f"{module}.v").read_text(encoding="utf-8")
        for folder, names in _IMPORTS.findall(text):
            for name in names.split():
                imported(sources, f"{folder}/{name}" if folder else name, found)
        found[module] = text
    return found


def _built(texts: Mapping[str, str], folder: Path) -> Path:
    for name in ("kernel", "ops"):
        (folder / name).mkdir(parents=True)
    for k, (name, text) in enumerate(texts.items(), 1):
        say(f"compiling the theory of the kernel, once: file {k} of {len(texts)}")
        _coqc(name, text, folder, folder)
    say("")
    return folder


def _kept(texts: Mapping[str, str], version: str, keep: Path | None) -> Path | None:
    """The compiled theory that is kept, made where it lacks or is not what was kept; None where nothing can be."""
    if keep is None:
        return None
    whole = keep / sha256(repr((version, sorted(texts.items()))).encode()).hexdigest()[:24]
    try:
        if _is_whole(whole):
            return whole
        keep.mkdir(parents=True, exist_ok=True)
        with beside(whole) as part:
            made = _built(texts, part / "theory")
            (made / _SUMS).write_text(_sums(made), encoding="utf-8")
            shutil.rmtree(whole, ignore_errors=True)
            with suppress(OSError):  # another process was faster
                made.rename(whole)
        _clear(keep)
    except OSError:
        return None
    return whole if _is_whole(whole) else None


def _sums(folder: Path) -> str:
    return "".join(f"{sha256(file.read_bytes()).hexdigest()} {file.relative_to(folder)}\n"
                   for file in sorted(folder.rglob("*.vo")))


def _is_whole(folder: Path) -> bool:
    sums = folder / _SUMS
    return sums.is_file() and sums.read_text(encoding="utf-8") == _sums(folder)


def _clear(keep: Path) -> None:
    """Remove all theories but the last ones, and no folder of another name."""
    theories = (d for d in keep.iterdir() if re.fullmatch("[0-9a-f]{24}", d.name))
    for old in sorted(theories, key=lambda d: -d.stat().st_mtime_ns)[_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)


def _limited() -> None:
    import resource  # not every system has it, and whoever reads programs needs none of it

    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))


def _coqc(name: str, text: str, folder: Path, theory: Path) -> str:
    """What coqc prints for a file, which is written to a folder; raises Refused if it refuses it."""
    (folder / f"{name}.v").write_text(text, encoding="utf-8")
    done = subprocess.run(["coqc", "-q", "-R", str(theory), "Placealg", f"{name}.v"], cwd=folder, capture_output=True,
                          text=True, check=False, preexec_fn=_limited)
    if done.returncode < 0:
        raise Refused(f"coqc took more than {SECONDS} s of processor time for {name}.v")
    if done.returncode:
        raise Refused(f"coqc refuses {name}.v: {' '.join(done.stderr.split())[:300]}")
    return done.stdout.strip()
