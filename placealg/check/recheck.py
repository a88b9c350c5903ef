"""Certificates as folders: written whole or not at all, read back with every hash verified, and replayed.

A certificate is a folder of SMT-LIB 2 files, one per obligation and parameter group, with the program that was proved
and a manifest: what was claimed, the SHA-256 of every file, and a digest of the manifest itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from placealg.errors import InputError
from placealg.prove.certificate import Query
from placealg.prove.replay import Rechecked, asked, replays, require_cvc5, solver_versions
from placealg.prove.solver import SAT, UNSAT
from placealg.prove.verdict import OBLIGATIONS, PROVED, REFUTED, UNDECIDED, Certified, Report
from placealg.unfinished import beside, uninterrupted
from placealg.version import VERSION

MANIFEST, PROGRAM = "manifest.json", "program.toml"
FORMAT = 1
ASK = "(check-sat)"
_KEYS = ("placealg_certificate", "strategy", "model", "verdict", "files")


def files_of(queries: Iterable[Query], report: Report, program: str, strategy: str) -> dict[str, str]:
    """The files of a certificate by name, the manifest last; the same run gives the same bytes.

    `program` is the step program as TOML, `strategy` the text of the strategy.
    """
    listed = list(queries)
    files = {PROGRAM: program, **{q.name: q.text for q in listed}}
    manifest = {
        "placealg_certificate": FORMAT, "placealg": VERSION, "solver": report.versions,
        "strategy": report.strategy, "model": report.model, "verdict": report.verdict, "class": report.cls,
        "hypotheses": list(report.hypotheses), "not_covered": list(report.not_covered), "lemmas": list(report.lemmas),
        "strategy_text": strategy,
        "queries": [{
            "file": q.name, "id": q.obligation, "group": q.group, "verdict": q.verdict, "expected": q.expected,
            "asks": q.asks, "instances": q.instances, "formulas": q.formulas, "facts": dict(q.facts),
            "pinned": dict(q.pinned),
        } for q in listed],
        "files": {name: _sha256(text.encode()) for name, text in files.items()},
    }
    return {**files, MANIFEST: _sealed(manifest)}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _sealed(manifest: Mapping[str, Any]) -> str:
    """The text of a manifest, with the digest of the text without it."""
    def text(digest: str) -> str:
        return json.dumps({**manifest, "digest": digest}, indent=1, ensure_ascii=False) + "\n"
    return text(_sha256(text("").encode()))


def check_target(path: str) -> None:
    """Raise InputError unless a certificate can stand at `path`: nothing is there, or an older certificate."""
    target = Path(path)
    if not target.resolve().parent.is_dir():
        raise InputError("its parent is no folder", where=path)
    if not target.exists() and not target.is_symlink():
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
    return found, "" if _sealed({k: v for k, v in found.items() if k != "digest"}) == text else "was edited"


def recheck(path: str) -> Rechecked:
    """Verify every hash of a certificate, then ask both solvers every query anew; an edited one is not replayed.

    Raises InputError where `path` is no certificate or cvc5 is not installed.
    """
    folder = Path(path)
    if not (folder / MANIFEST).is_file():
        raise InputError(f"is not a certificate: it has no {MANIFEST}" if folder.is_dir() else "is no folder",
                         where=path)
    require_cvc5()
    manifest, wrong = _manifest(folder)
    texts, edited = _texts(folder, manifest.get("files", {}))
    edited = {**({MANIFEST: wrong} if wrong else {}), **edited}
    if not edited and not _sound(manifest, texts):
        edited = {MANIFEST: f"claims {manifest['verdict']}, which its queries do not show"}
    seal = _sha256((folder / MANIFEST).read_bytes())
    if edited:
        return Rechecked((), 0, 0, solver_versions(), manifest, edited, seal)
    queries = manifest["queries"]
    asks = [(q["file"], q["expected"], texts[q["file"]]) for q in queries if q["asks"]]
    silent = [q["verdict"] == PROVED for q in queries if not q["asks"]]
    return Rechecked(tuple(replays(asks)), sum(silent), len(silent) - sum(silent), solver_versions(), manifest, {},
                     seal)


def _texts(folder: Path, hashes: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """(the texts of the files, what is wrong with those that are not as they were written)."""
    texts, wrong = dict[str, str](), dict[str, str]()
    for name, digest in hashes.items():
        try:
            content = (folder / Path(name).name).read_bytes()
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


def _sound(manifest: Mapping[str, Any], texts: Mapping[str, str]) -> bool:
    """Whether the manifest speaks of files that it lists, asks what they ask, and shows what it claims.

    PROVED is shown where every obligation is there and expects it, REFUTED where one is refuted.
    """
    try:
        queries = [(str(q["id"]), q["expected"], bool(q["asks"]), q["verdict"], texts[q["file"]])
                   for q in manifest["queries"]]
    except (KeyError, TypeError):
        return False
    if any(asks != (ASK in text.splitlines()) for _, _, asks, _, text in queries):
        return False
    if manifest["verdict"] == REFUTED:
        return any(verdict == REFUTED for _, _, _, verdict, _ in queries)
    right = all(expected == (SAT if i == "vacuity" else UNSAT) if asks else verdict == PROVED
                for i, expected, asks, verdict, _ in queries)
    return manifest["verdict"] == UNDECIDED or (
        manifest["verdict"] == PROVED and right and {i for i, *_ in queries} >= set(OBLIGATIONS))


def cross_check(queries: Iterable[Query], report: Report) -> Rechecked:
    """Ask both solvers the queries of a report, without a folder. Raises InputError where cvc5 is not installed."""
    require_cvc5()
    listed = list(queries)
    claimed = {"strategy": report.strategy, "model": report.model, "verdict": report.verdict, "class": report.cls}
    silent = [q.verdict == PROVED for q in listed if not q.asks]
    return Rechecked(tuple(replays(asked(listed))), sum(silent), len(silent) - sum(silent), solver_versions(), claimed,
                     {})
