"""Certificates as folders: written whole or not at all, read back with every hash verified, and replayed.

A certificate is a folder of SMT-LIB 2 files, one per obligation and parameter group, with the program that was proved
and a manifest: what was claimed, the SHA-256 of every file, and a digest of the manifest itself.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from placealg.atomic_files import beside, uninterrupted
from placealg.check.certificate_audit import (
    claims_amiss,
    class_amiss,
    contradictions,
    groups_amiss,
    lemmas_amiss,
    misfits,
)
from placealg.errors import InputError
from placealg.prover.evidence.certificate import Query
from placealg.prover.evidence.replay import Rechecked, Replay, asked, replays, require_cvc5, solver_versions
from placealg.prover.evidence.solver import SAT, UNSAT
from placealg.prover.verdict import ASKED_FOR, OBLIGATIONS, PROVED, REFUTED, UNDECIDED, Certified, Report
from placealg.version import VERSION

MANIFEST, PROGRAM = "manifest.json", "program.toml"
FORMAT = 2
ASK = "(check-sat)"
NO_FILE = "was replaced by a link, or by what is no file"
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_KEYS = ("placealg_certificate", "strategy", "model", "verdict", "files")


def files_of(queries: Iterable[Query], report: Report, proved: Mapping[str, str], strategy: str,
             made: Mapping[str, Any] | None = None) -> dict[str, str]:
    """The files of a certificate by name, the manifest last; the same run gives the same bytes.

    `proved` are the files that hold what was proved: the step program, and its model's configuration. `strategy` is
    the text of the strategy, `made` what else decides the bytes: the engine, and the options of the model.
    """
    listed = list(queries)
    files = {**proved, **{q.name: q.text for q in listed}}
    manifest = {
        "placealg_certificate": FORMAT, "placealg": VERSION, "solver": report.versions,
        "strategy": report.strategy, "model": report.model, "verdict": report.verdict, "class": report.cls,
        "hypotheses": list(report.assuming), "not_covered": list(report.not_covered), "lemmas": list(report.lemmas),
        **({"asked_for": more} if (more := asked_of(report)) else {}),
        "strategy_text": strategy, "made": dict(made or {}),
        "queries": [{
            "file": q.name, "id": q.obligation, "group": q.group, "verdict": q.verdict, "expected": q.expected,
            "asks": q.asks, "instances": q.instances, "formulas": q.formulas, "facts": dict(q.facts),
            "pinned": dict(q.pinned),
        } for q in listed],
        "files": {name: _sha256(text.encode()) for name, text in files.items()},
    }
    return {**files, MANIFEST: _sealed(manifest)}


def asked_of(report: Report) -> list[str]:
    """The obligations of a report that are asked only where types are named, or by a user."""
    return [name for name in ASKED_FOR if report.of(name)]


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _sealed(manifest: Mapping[str, Any]) -> str:
    """The text of a manifest, with the digest of the text without it."""
    def text(digest: str) -> str:
        return json.dumps({**manifest, "digest": digest}, indent=1, ensure_ascii=False) + "\n"
    return text(_sha256(text("").encode()))


def check_target(path: str) -> None:
    """Raise InputError unless a certificate can stand at `path`: nothing is there, no file, or an older certificate."""
    target = Path(path)
    if not target.resolve().parent.is_dir():
        raise InputError("its parent is no folder", where=path)
    if not target.exists() and not target.is_symlink():
        return
    if target.is_dir() and not target.is_symlink() and not any(target.iterdir()):
        return
    manifest = _manifest(target)[0] if target.is_dir() else {}
    if not manifest:
        raise InputError("exists and is not a certificate; it is left alone", where=path)
    others = sorted({p.name for p in target.iterdir()} - {MANIFEST, *manifest["files"]})
    if others:
        raise InputError(f"holds '{others[0]}', which is not the certificate's; it is left alone", where=path)


def write_certificate(path: str, files: Mapping[str, str]) -> Certified:
    """Write the folder in one move: a reader finds the old certificate, the new one, or none, never a part."""
    check_target(path)
    target = Path(path).resolve()
    try:
        with beside(target) as folder:
            fresh, old = folder / "new", folder / "old"
            fresh.mkdir()
            for name, text in files.items():
                (fresh / name).write_bytes(text.encode())
            with uninterrupted():
                try:
                    if target.exists():
                        target.rename(old)
                    fresh.rename(target)
                except BaseException:
                    if old.exists() and not target.exists():
                        old.rename(target)
                    raise
    except OSError as error:
        raise InputError(f"cannot write there: {error.strerror}", where=path) from None
    return Certified(path, len(files), _sha256(files[MANIFEST].encode()))


def _manifest(folder: Path) -> tuple[dict[str, Any], str]:
    """(the manifest of a folder, {} where there is none; what is wrong with it)."""
    if _no_file(folder / MANIFEST):
        return {}, NO_FILE
    try:
        text = (folder / MANIFEST).read_bytes().decode()
    except OSError:
        return {}, ""
    except UnicodeDecodeError:
        return {}, "was edited: it is not text"
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}, "was edited: it is not JSON"
    if not isinstance(found, dict) or not all(k in found for k in _KEYS) or not isinstance(found["files"], dict):
        return {}, "is not a certificate's"
    if found["placealg_certificate"] != FORMAT:
        return found, f"is of format {found['placealg_certificate']}; this version reads format {FORMAT}"
    return found, "" if _sealed({k: v for k, v in found.items() if k != "digest"}) == text else "was edited"


Regenerate = Callable[[str, Mapping[str, Any]], Mapping[str, str]]
"""The folder of a certificate and its manifest -> the files of a certificate of its program, proved again."""


Claims = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
"""The folder of a certificate and its manifest -> what the program there has of a manifest: names, hypotheses."""


def recheck(path: str, sha256: str | None = None, regenerate: Regenerate | None = None,
            claims: Claims | None = None) -> Rechecked:
    """Verify every hash of a certificate, then ask both solvers every query anew; an edited one is not replayed.

    `sha256` is what the manifest's is held against; `claims` reads the program, whose names and hypotheses must be the
    manifest's; `regenerate` makes the files again, which are compared byte for byte. Raises InputError where `path` is
    no certificate or `sha256` no hash, NoSolver where cvc5 cannot be loaded.
    """
    if sha256 is not None and not _SHA256.fullmatch(sha256):
        raise InputError(f"'{sha256}' is not 64 hexadecimal digits", where="--sha256")
    folder = Path(path)
    if not (folder / MANIFEST).is_file():
        raise InputError(f"is not a certificate: it has no {MANIFEST}" if folder.is_dir() else "is no folder",
                         where=path)
    require_cvc5()
    content = (folder / MANIFEST).read_bytes()
    manifest, wrong = _manifest(folder)
    texts, edited = _texts(folder, manifest.get("files", {}))
    seal = _sha256(content)
    if sha256 is not None and seal != sha256.lower():
        wrong = wrong or f"was edited: its SHA-256 is {seal}"
    edited = {**({MANIFEST: wrong} if wrong else {}), **edited} or _resealed(manifest, texts)
    if not edited and claims:
        edited = _claimed(path, manifest, claims)
    asks: list[tuple[str, str, str]] = []
    unknown: tuple[Replay, ...] = ()
    if not edited:
        asks = [(q["file"], q["expected"], texts[q["file"]]) for q in manifest["queries"] if q["asks"]]
        edited, unknown = contradictions(asks)
    if not edited and regenerate:
        edited = _compared({**texts, MANIFEST: content.decode()}, regenerate(path, manifest))
    if edited:
        return Rechecked((), 0, 0, solver_versions(), manifest, edited, seal, regenerate is not None)
    silent = [q["verdict"] == PROVED for q in manifest["queries"] if not q["asks"]]
    return Rechecked((*unknown, *replays(asks)), sum(silent), len(silent) - sum(silent), solver_versions(), manifest,
                     {}, seal, regenerate is not None)


def _resealed(manifest: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, str]:
    """What shows that a certificate was sealed anew after an edit, as `edited` is."""
    try:
        if not _sound(manifest, texts):
            return {MANIFEST: f"claims {manifest['verdict']}, which its queries do not show"}
        amiss = (lemmas_amiss(manifest) or class_amiss(manifest, texts)
                 or groups_amiss(manifest, texts.get(PROGRAM, "")))
        return {**misfits(manifest, texts), **({MANIFEST: f"was edited: it {amiss}"} if amiss else {})}
    except (KeyError, TypeError, AttributeError, ValueError):
        return {MANIFEST: "was edited: it does not say what a manifest says"}


def _claimed(path: str, manifest: Mapping[str, Any], claims: Claims) -> dict[str, str]:
    """What a manifest says otherwise than the program beside it, as `edited` is.

    A program whose model is not in the folder, or is not known here, says nothing.
    """
    try:
        amiss = claims_amiss(manifest, claims(path, manifest))
    except InputError:
        return {}
    return {MANIFEST: f"was edited: it {amiss}"} if amiss else {}


def _compared(texts: Mapping[str, str], again: Mapping[str, str]) -> dict[str, str]:
    """The files that are other than those which proving the program again gives."""
    different = {name: "is not what proving the program again gives" for name in texts
                 if name != MANIFEST and again.get(name) != texts[name]}
    missing = {name: "is missing: proving the program again gives it" for name in again if name not in texts}
    found = {**different, **missing}
    return found if found or again[MANIFEST] == texts[MANIFEST] else {
        MANIFEST: "is not what proving the program again gives"}


def _texts(folder: Path, hashes: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """(the texts of the files, what is wrong with those that are not as they were written)."""
    texts, wrong = dict[str, str](), dict[str, str]()
    for name, digest in hashes.items():
        path = folder / Path(name).name
        if _no_file(path):
            wrong[name] = NO_FILE
            continue
        try:
            content = path.read_bytes()
        except OSError:
            wrong[name] = "is missing"
            continue
        if _sha256(content) != digest or name != Path(name).name:
            wrong[name] = "was edited"
        else:
            texts[name] = content.decode(errors="replace")
    if hashes:
        wrong |= {p.name: "was added" for p in sorted(folder.iterdir()) if p.name not in (MANIFEST, *hashes)}
    return texts, wrong


def _no_file(path: Path) -> bool:
    """Whether something stands there that is no file of the folder's own: a link, a folder, a device."""
    return path.is_symlink() or (path.exists() and not path.is_file())


def _sound(manifest: Mapping[str, Any], texts: Mapping[str, str]) -> bool:
    """Whether the manifest speaks of files that it lists, asks what they ask, and shows what it claims.

    PROVED is shown where every obligation is there and expects it, REFUTED where one is refuted.
    """
    try:
        queries = [(str(q["id"]), q["expected"], bool(q["asks"]), q["verdict"], texts[q["file"]])
                   for q in manifest["queries"]]
    except (KeyError, TypeError):
        return False
    named = [q["file"] for q in manifest["queries"]]
    if len(named) != len(set(named)) or {name for name in texts if name.endswith(".smt2")} - set(named):
        return False
    if any(asks != (ASK in text.splitlines()) for _, _, asks, _, text in queries):
        return False
    if manifest["verdict"] == REFUTED:
        return any(verdict == REFUTED for _, _, _, verdict, _ in queries)
    right = all(expected == (SAT if i == "vacuity" else UNSAT) if asks else verdict == PROVED
                for i, expected, asks, verdict, _ in queries)
    wanted = {*OBLIGATIONS, *manifest.get("asked_for", ())}
    return manifest["verdict"] == UNDECIDED or (
        manifest["verdict"] == PROVED and right and {i for i, *_ in queries} >= wanted)


def cross_check(queries: Iterable[Query], report: Report) -> Rechecked:
    """Ask both solvers the queries of a report, without a folder. Raises NoSolver where cvc5 cannot be loaded."""
    require_cvc5()
    listed = list(queries)
    claimed = {"strategy": report.strategy, "model": report.model, "verdict": report.verdict, "class": report.cls}
    silent = [q.verdict == PROVED for q in listed if not q.asks]
    return Rechecked(tuple(replays(asked(listed))), sum(silent), len(silent) - sum(silent), solver_versions(), claimed,
                     {})
