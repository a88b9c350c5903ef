"""Tries the mutants of the prover and the derivation (`make mutate`), and prints how many the tests kill.

`mutmut` makes the mutants; they run in forks of one process that has everything loaded. A mutant is run against those
cases of test_mutation.py that reach its statement, the ones that killed its neighbours first, and counts as killed by
the first that fails. What came out is kept, by mutant and the text of its function: a second run goes on where the
first ended.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import json
import os
import pickle
import re
import resource
import select
import signal
import sys
import time
import tomllib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from itertools import accumulate, product
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from mutation_score import score

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "build" / "mutants"
FOUND = KEPT / "found.json"
REASONS = ROOT / "tests" / "equivalent_mutants.toml"
CASES = ("test_calculus", "test_correct", "test_transfer", "test_transfer_rules", "test_flow", "test_split",
         "test_operations", "test_derived", "test_mutation")
AGAIN = ("survived", "no tests", "unfinished")
SECONDS = 60
"""Processor time of one mutant beyond which it is as good as failed."""


@dataclass
class Mutant:
    """One changed function: `lines` are those of the changed statement in the module as it is loaded."""

    name: str
    function: Callable[..., Any]
    changed: Callable[..., Any]
    lines: range
    text: str

    def activate(self) -> None:
        """Put the changed code in the place of the function's own, for whoever refers to the function."""
        self.function.__code__ = self.changed.__code__
        self.function.__defaults__ = self.changed.__defaults__
        self.function.__kwdefaults__ = self.changed.__kwdefaults__


@dataclass
class Case:
    """One case of a test: the test's name with its number, and the call."""

    name: str
    file: str
    run: Callable[[], Any]
    seconds: float = 0.0
    lines: set[tuple[str, int]] = field(default_factory=set)


def modules() -> dict[str, Path]:
    """The modules that are mutated, by name."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutmut"]
    return {path.removesuffix(".py").replace("/", "."): ROOT / path for path in table["only_mutate"]}


def mutated(name: str, path: Path) -> str:
    """A module's text with all its mutants in it, made once for each state of the module."""
    source = path.read_text(encoding="utf-8")
    kept = KEPT / f"{name}.{hashlib.sha256(source.encode()).hexdigest()[:12]}.py"
    if not kept.exists():
        from mutmut.mutation.file_mutation import mutate_file_contents

        KEPT.mkdir(parents=True, exist_ok=True)
        kept.write_text(mutate_file_contents(str(path.relative_to(ROOT)), source).code, encoding="utf-8")
    return kept.read_text(encoding="utf-8")


class Loader(SourceFileLoader):
    """Loads a module from a text that is not its file's."""

    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self.text = text

    def get_code(self, fullname: str) -> Any:
        """The code of the text."""
        return compile(self.text, f"<{fullname}>", "exec", dont_inherit=True)


class Finder(MetaPathFinder):
    """Finds the mutated modules."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of a mutated module; None for any other."""
        if fullname not in self.texts:
            return None
        spec = PathFinder.find_spec(fullname, path)
        assert spec and spec.origin
        spec.loader = Loader(fullname, spec.origin, self.texts[fullname])
        return spec


def load(texts: Mapping[str, str]) -> list[tuple[Callable[..., Any], dict[str, Callable[..., Any]]]]:
    """Import every mutated module: its functions with their mutants. Nothing stands between a function and its call."""
    from mutmut.mutation import trampoline

    found: list[tuple[Callable[..., Any], dict[str, Callable[..., Any]]]] = []

    def wrap(mutants: dict[str, Any], is_classmethod: bool = False) -> Callable[[Any], Any]:
        def keep(function: Any) -> Any:
            found.append((function, mutants))
            return function
        return keep

    trampoline.wrap_in_trampoline = wrap
    sys.meta_path.insert(0, Finder(texts))
    for name in texts:
        importlib.import_module(name)
    return found


def mutants(texts: Mapping[str, str]) -> list[Mutant]:
    """All mutants, in the order of the modules; none that only changes the `strict` of a zip, which is an assertion."""
    made: list[Mutant] = []
    nodes = {name: {node.lineno: node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
             for name, text in texts.items()}
    for function, changes in load(texts):
        module = nodes[function.__module__]
        own = changes["_mutmut_orig"]
        node = _node(module, own)
        shift = _node(module, function).lineno - node.lineno
        text = hashlib.sha256(ast.dump(node).encode()).hexdigest()[:12]
        for name, changed in changes.items():
            other = _node(module, changed)
            if name != "_mutmut_orig" and _said(other) != _said(node):
                lines = _changed(node, other)
                made.append(Mutant(f"{function.__module__}.{name}", function, changed,
                                   range(lines.start + shift, lines.stop + shift), text))
    order = list(texts)
    return sorted(made, key=lambda m: order.index(m.function.__module__))


def _node(module: Mapping[int, ast.FunctionDef], function: Callable[..., Any]) -> ast.FunctionDef:
    line = function.__code__.co_firstlineno
    return next(module[n] for n in range(line, line + 5) if n in module)


def _said(function: ast.FunctionDef) -> str:
    """What a function says, apart from its name and the `strict` of its zips."""
    return _STRICT.sub("", "".join(ast.dump(part) for part in (function.args, *function.body)))


_STRICT = re.compile(r"(, )?keyword\(arg='strict', value=Constant\(value=\w+\)\)")


def _changed(one: Any, other: Any) -> range:
    """The lines of the innermost statement in which two functions differ; of a compound one, its head."""
    body = [child for name in ("body", "orelse", "handlers", "finalbody") for child in getattr(one, name, ())
            if isinstance(child, (ast.stmt, ast.ExceptHandler))]
    theirs = [child for name in ("body", "orelse", "handlers", "finalbody") for child in getattr(other, name, ())
              if isinstance(child, (ast.stmt, ast.ExceptHandler))]
    differ = [pair for pair in zip(body, theirs, strict=False) if ast.dump(pair[0]) != ast.dump(pair[1])]
    if len(body) == len(theirs) and len(differ) == 1 and not isinstance(one, ast.Lambda):
        return _changed(*differ[0])
    first = [b.lineno for b in body]
    return range(one.lineno, min(first) if first and isinstance(one, (ast.If, ast.For, ast.While)) else
                 one.end_lineno + 1)


def cases() -> list[Case]:
    """The cases of the tests, each with its parameters."""
    made = []
    for file, name, test in ((f, *pair) for f in CASES for pair in vars(importlib.import_module(f)).items()):
        marks = getattr(test, "pytestmark", ())
        if name.startswith("test_") and not any(mark.name == "slow" for mark in marks):
            rows = [mark.args for mark in marks if mark.name == "parametrize"]
            lists = [[v if isinstance(names, (tuple, list)) and len(names) > 1 else (v,) for v in values]
                     for names, values in rows]
            for number, values in enumerate(product(*lists)):
                flat = [v for row in values for v in row]
                made.append(Case(f"{file}::{name}[{number}]", file, lambda t=test, f=flat: t(*f)))
    return made


def in_fork(work: Callable[[], Any]) -> tuple[int, int]:
    """Run in a fork: its process and the pipe by which the pickled result comes."""
    read, write = os.pipe()
    process = os.fork()
    if process:
        os.close(write)
        os.setpgid(process, process)
        return process, read
    os.close(read)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    with os.fdopen(write, "wb") as pipe:
        pickle.dump(work(), pipe)
    os._exit(0)


def ended(process: int, pipe: int) -> Any:
    """The result of a fork; None where it gave none. Whatever it left running is ended."""
    with os.fdopen(pipe, "rb") as stream:
        try:
            result = pickle.load(stream)
        except EOFError:
            result = None
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return result


def traced(case: Case) -> tuple[float, set[tuple[str, int]]]:
    """How long a case takes, and the lines of mutated modules that it reaches; 0 for one that fails as it is."""
    files = {f"<{name}>" for name in modules()}
    reached: set[tuple[str, int]] = set()

    def inside(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            reached.add((frame.f_code.co_filename, frame.f_lineno))
        return inside

    def entered(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        reached.add((frame.f_code.co_filename, frame.f_lineno))
        return inside

    sys.settrace(entered)
    try:
        case.run()
    except Exception:
        return 0.0, set()
    finally:
        sys.settrace(None)
    start = time.process_time()
    case.run()
    return time.process_time() - start + 1e-4, reached


def reach(tests: Iterable[Case], texts: Mapping[str, str]) -> None:
    """Trace every case, unless that was done with the same texts of the modules and of its test."""
    path = KEPT / "reached.pickle"
    known: dict[str, Any] = pickle.loads(path.read_bytes()) if path.exists() else {}
    files = {name: (ROOT / "tests" / f"{name}.py").read_text(encoding="utf-8") for name in CASES}
    keys = {case.name: hashlib.sha256(repr((case.name, files[case.file], *texts.values())).encode()).hexdigest()
            for case in tests}
    for case in tests:
        key = keys[case.name]
        if key not in known:
            known[key] = ended(*in_fork(lambda c=case: traced(c)))
        case.seconds, case.lines = known[key]
    path.write_bytes(pickle.dumps({key: known[key] for key in keys.values()}))


def tried(mutant: Mutant, order: Sequence[Case]) -> str:
    """The first case that fails with the mutant; "" when none does."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    mutant.activate()
    for case in order:
        try:
            case.run()
        except BaseException:
            return case.name
    return ""


def outcomes(todo: Sequence[Mutant], tests: Sequence[Case], children: int,
             most: float) -> Iterator[tuple[Mutant, str, str]]:
    """(mutant, how it ended, the case that killed it), as they end."""
    kills: defaultdict[Any, Counter[str]] = defaultdict(Counter)
    running: dict[int, tuple[Mutant, int, bool]] = {}
    waiting = list(reversed(todo))
    while waiting or running:
        while waiting and len(running) < children:
            mutant = waiting.pop()
            own = kills[mutant.function]
            module = kills[mutant.function.__module__]
            lines = {(f"<{mutant.function.__module__}>", line) for line in mutant.lines}
            order = sorted((c for c in tests if not c.lines.isdisjoint(lines)),
                           key=lambda c: -(own[c.name] + 0.05 * module[c.name]) / (c.seconds + 0.02))
            if not order:
                yield mutant, "no tests", ""
                continue
            spent = list(accumulate(c.seconds for c in order))
            affordable = order[:max(1, bisect_right(spent, most))]
            process, pipe = in_fork(lambda m=mutant, o=affordable: tried(m, o))
            running[pipe] = mutant, process, len(affordable) < len(order)
        ready, _, _ = select.select(list(running), [], [], SECONDS) if running else ([], [], [])
        for pipe in ready:
            mutant, process, cut = running.pop(pipe)
            killer = ended(process, pipe)
            status = "timeout" if killer is None else "killed" if killer else "unfinished" if cut else "survived"
            if killer:
                kills[mutant.function][killer] += 1
                kills[mutant.function.__module__][killer] += 1
            yield mutant, status, killer or ""


def main() -> None:
    """Try what is asked for and print the score so far."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("modules", nargs="*", help="names, or beginnings of names, of mutants; default all")
    words.add_argument("--every", type=int, default=1, help="try every k-th mutant only")
    words.add_argument("--again", action="store_true", help="try survivors again")
    words.add_argument("--most", type=float, default=1e9, help="seconds of cases that one mutant is tried against")
    words.add_argument("--children", type=int, default=2)
    asked = words.parse_args()
    texts = {name: mutated(name, path) for name, path in modules().items()}
    all_mutants = mutants(texts)
    found: dict[str, Any] = json.loads(FOUND.read_text(encoding="utf-8")) if FOUND.exists() else {}
    known = {m.name: m for m in all_mutants}
    found = {n: f for n, f in found.items() if n in known and f["text"] == known[n].text}
    wanted = [m for m in all_mutants if not asked.modules or m.name.startswith(tuple(asked.modules))]
    todo = [m for m in wanted[::asked.every]
            if m.name not in found or (asked.again and found[m.name]["status"] in AGAIN)]
    tests = cases()
    if todo:
        reach(tests, texts)
        for case in [c for c in tests if not c.seconds]:
            print(f"left out, for it fails without a mutant: {case.name}", file=sys.stderr)
            tests.remove(case)
        print(f"{len(tests)} cases, {sum(c.seconds for c in tests):.1f} s; {len(todo)} of {len(all_mutants)} mutants",
              flush=True)
        if all(m.name.startswith("placealg.prove") for m in todo):
            importlib.import_module(CASES[-1]).derive_all()
    start = time.monotonic()
    for number, (mutant, status, by) in enumerate(outcomes(todo, tests, asked.children, asked.most), 1):
        found[mutant.name] = {"status": status, "by": by, "text": mutant.text}
        if number % 25 == 0 or number == len(todo):
            FOUND.write_text(json.dumps(found, indent=0), encoding="utf-8")
            spent = time.monotonic() - start
            print(f"{number}/{len(todo)}, {number / spent * 60:.0f} a minute", file=sys.stderr, flush=True)
    reasons = tomllib.loads(REASONS.read_text(encoding="utf-8"))
    print("\n".join(score({n: f["status"] for n, f in found.items()}, reasons)))


if __name__ == "__main__":
    main()
