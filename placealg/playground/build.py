"""The playground's folder: a page, a Python for the browser, a solver, libraries, placealg; any web server will do."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from placealg.errors import InputError
from placealg.playground.downloads import Download, downloads, fetched
from placealg.playground.words import words
from placealg.progress import say
from placealg.strategy.file import proofs_folder

PYODIDE = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
"""What a browser loads of Pyodide."""

PAGE = ("playground.css", "playground.js", "editor.js", "worker.js")

LEFT_OUT = re.compile(r"(^|/)(tests?|benchmarks|__pycache__)/|\.(pyi|so)$|\.dist-info/|\.data/"
                      r"|^sympy/(parsing/(latex|autolev|c|fortran)|physics/(?!__init__|units/)|galgebra|sandbox|diffgeom"
                      r"|holonomic|crypto|stats/sampling)/")
"""What no page needs of a library: tests, what is compiled for another machine, parts that nothing imports."""

ROOMS_LEFT_OUT = ("measure", "watch", "playground")
"""The rooms of placealg that run PyTorch or build this folder; the modules of `playground` that pages run stay."""

RUN_IN_THE_PAGE = ("__init__.py", "page.py", "plain_arrays.py")

READ_AS_TEXT = ("extraction.py",)
"""Modules whose text something reads: of the checker it is what its digest is of."""


def build(out: Path, cache: Path, numpy: tuple[Path, str] | None = None) -> dict[str, int]:
    """Write the folder, and return name -> bytes of what a page loads.

    `numpy` is a wheel of numpy for the browser's Python, and its SHA-256; without it the page computes with arrays in
    Python alone. Raises InputError where a file cannot be had, Node is missing, or the wheel is another.
    """
    wanted = downloads()
    got = fetched(wanted, cache)
    wheels = [got[one.name] for one in wanted if one.pypi]
    if numpy is not None:
        wheels.append(_checked(*numpy))
    with tempfile.TemporaryDirectory(prefix="placealg") as folder:
        made = Path(folder) / "playground"
        (made / "python").mkdir(parents=True)
        for name in PYODIDE:
            pyodide = next(got[one.name] for one in wanted if one.npm.startswith("pyodide@"))
            (made / "python" / name).write_bytes(_member(pyodide, name))
        say("packing libraries")
        solver = [w for w in wheels if "pyemscripten" in w.name]
        for wheel in solver:
            shutil.copy(wheel, made / "python" / wheel.name)
        _pack(made, "libraries.zip", _of_wheels(w for w in wheels if w not in solver), cache, b"library")
        _pack(made, "placealg.zip", _of_placealg(), cache)
        editor = _editor([one for one in wanted if one.module], got, made)
        for name in PAGE:
            shutil.copy(Path(__file__).with_name(name), made / name)
        (made / "words.json").write_text(json.dumps(words(), ensure_ascii=False), encoding="utf-8")
        loaded = {str(p.relative_to(made)): p.stat().st_size for p in sorted((made / "python").iterdir())}
        _page(made / "index.html", editor, loaded)
        if out.exists():
            shutil.rmtree(out)
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(made, out)
    return {str(p.relative_to(out)): p.stat().st_size for p in sorted(out.rglob("*")) if p.is_file()}


def _checked(wheel: Path, sha256: str) -> Path:
    if not wheel.is_file():
        raise InputError("there is no such file", where=str(wheel))
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != sha256:
        raise InputError(f"has another SHA-256 than '{sha256}', which was said", where=str(wheel))
    return wheel


def _member(archive: Path, name: str) -> bytes:
    with tarfile.open(archive) as held:
        file = held.extractfile(f"package/{name}")
        assert file is not None
        return file.read()


def _of_wheels(wheels: Iterable[Path]) -> Mapping[str, bytes]:
    found: dict[str, bytes] = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as held:
            found |= {n: held.read(n) for n in held.namelist() if not n.endswith("/") and not LEFT_OUT.search(n)}
    return found


def _of_placealg() -> Mapping[str, bytes]:
    package = Path(__file__).parents[1]
    found = {}
    for path in sorted(package.rglob("*")):
        name = path.relative_to(package)
        kept = name.parts[0] not in ROOMS_LEFT_OUT or (name.parts[0] == "playground" and path.name in RUN_IN_THE_PAGE)
        if path.is_file() and kept and "__pycache__" not in name.parts and name.parts[0] != "_proofs":
            found[f"placealg/{name.as_posix()}"] = path.read_bytes()
    proofs = proofs_folder("")
    for path in sorted(path for kind in ("toml", "json") for path in proofs.rglob(f"*.{kind}")):
        found[f"placealg/_proofs/{path.relative_to(proofs).as_posix()}"] = path.read_bytes()
    return found


def _pack(out: Path, name: str, held: Mapping[str, bytes], cache: Path, comment: bytes = b"") -> None:
    """An archive of byte code; the last one of each name is kept, to be taken again where it holds the same."""
    archive, program = out / "python" / name, Path(__file__).with_name("compile.mjs")
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.comment = comment
        for member, data in held.items():
            entry = zipfile.ZipInfo(member, (2020, 1, 1, 0, 0, 0))
            entry.comment = b"text" if Path(member).name in READ_AS_TEXT else b""
            zipped.writestr(entry, data, zipfile.ZIP_DEFLATED)
    key, kept = hashlib.sha256(archive.read_bytes() + program.read_bytes()).hexdigest(), cache / f"compiled-{name}"
    if _comment(kept) == key.encode():
        shutil.copy(kept, archive)
        return
    say(f"compiling {name} to byte code")
    try:
        done = subprocess.run(["node", str(program), str(out / "python"), str(archive), key], capture_output=True,
                              text=True, check=False)
    except OSError as error:
        raise InputError(f"the playground's byte code is made under Node: {error.strerror}", where="node") from None
    if done.returncode:
        raise InputError(f"the byte code could not be made: {' '.join(done.stderr.split())[-300:]}", where="node")
    shutil.copy(archive, kept)


def _comment(archive: Path) -> bytes:
    """The comment of an archive; of what is none, nothing."""
    try:
        with zipfile.ZipFile(archive) as held:
            return held.comment
    except (OSError, zipfile.BadZipFile):
        return b""


def _editor(parts: Iterable[Download], got: Mapping[str, Path], out: Path) -> dict[str, str]:
    """Copy the editor's modules; the name by which each is imported -> its address."""
    (out / "editor").mkdir()
    found = {}
    for one in parts:
        name = one.name.removesuffix(".tgz") + ".js"
        (out / "editor" / name).write_bytes(_member(got[one.name], one.module))
        found[one.imported or one.npm.rpartition("@")[0]] = f"./editor/{name}"
    return found


def _page(path: Path, editor: Mapping[str, str], loaded: Mapping[str, int]) -> None:
    text = Path(__file__).with_name("index.html").read_text(encoding="utf-8")
    held = {"EDITOR": {"imports": editor}, "LOADED": loaded}
    for name, value in held.items():
        text = text.replace(f"/*{name}*/", json.dumps(value))
    path.write_text(text, encoding="utf-8")
