"""Tries the mutants of the prover and the derivation (`make mutate`), and prints how many the tests kill.

`mutmut` makes the mutants; they run in forks of one process that has everything loaded. A mutant is run against those
cases of CASES that reach its statement, the ones that killed its neighbours first, and counts as killed by the first
that fails. What came out is kept in build/mutants, by mutant and the key of its function (`syntax_key`: neither prose
nor names of locals count): a second run goes on where the first ended. A function whose mutants are all killed, or
named as equivalent, is written down with its key in settled_mutants.json, and is tried again when that changes, or
with --anew.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import json
import math
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
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from itertools import accumulate, product
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from assurance import commit, write_row
from mutation_score import KILLED, OPEN, difference, score, summary
from syntax_key import syntax_key

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "mutants"
REASONS = ROOT / "tests" / "mutation" / "equivalent_mutants.toml"
SETTLED = ROOT / "tests" / "mutation" / "settled_mutants.json"
CASES = {
    "placealg.prover": ("test_versions", "test_tensors", "test_parameter_uses", "test_op_obligations", "test_examine",
                        "test_following", "test_explore", "test_one_step", "test_premises", "test_obligations",
                        "test_calculus",
                        "test_correct", "test_transfer", "test_transfer_rules", "test_stages", "test_operators",
                        "test_order", "test_flow"),
    "placealg.prover.evidence.cutoff": ("test_cutoff",),
    "placealg.prover.schedule": ("test_schedule",),
    "placealg.prover.messages": ("test_messages",),
    "placealg.step.messages": ("test_messages",),
    "placealg.step.pipeline": ("test_pipeline", "test_schedule"),
    "placealg.step": ("test_reference", "test_step_graph", "test_groups", "test_recompute", "test_saved_tensors",
                      "test_derived", "test_split", "test_operations"),
    "placealg": ("test_mutation", "test_disagreements"),
}
"""Where a mutant is -> the files with cases for it, the small ones first."""

AGAIN = ("survived", "no tests", "unfinished")
TRACED = 2
"""How much longer a case takes while it is traced, roughly."""

SECONDS, TIMES, BYTES = 10, 10, 4 * 2**30
"""Where one case takes so many seconds of processor time more than so many times its own, the mutant does not end; as
where it takes so much address space: that is as good as failed."""


@dataclass
class Mutant:
    """One changed function: `lines` are those of the changed statement in the module as it is loaded.

    `says` is the function and the statement as `difference` writes it: a number changes with every line before it.
    """

    name: str
    function: Callable[..., Any]
    changed: Callable[..., Any]
    lines: range
    text: str
    says: str

    @property
    def module(self) -> str:
        """The module in which the function is."""
        return self.function.__module__

    @property
    def place(self) -> str:
        """The name of the function."""
        return self.says.partition(":")[0]

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


class Found:
    """What came out for the mutants of one module, kept in a file."""

    def __init__(self, module: str) -> None:
        self.module, self.path = module, KEPT / f"{module}.json"
        kept = json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}
        self.ended: dict[str, dict[str, str]] = kept.get("ended", {})

    def select(self, made: Sequence[Mutant]) -> None:
        """Forget what came out for functions that have changed."""
        texts = {m.name: m.text for m in made}
        self.ended = {n: e for n, e in self.ended.items() if texts.get(n) == e["text"]}

    def write(self) -> None:
        """Keep it."""
        self.path.write_text(json.dumps({"ended": self.ended}, indent=0), encoding="utf-8")


def modules() -> dict[str, Path]:
    """The modules that are mutated, by name."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutmut"]
    return {path.removesuffix(".py").replace("/", "."): ROOT / path for path in table["only_mutate"]}


def mutated(name: str, path: Path) -> str:
    """A module's text with all its mutants in it, made once for each state of the module."""
    source = path.read_text(encoding="utf-8")
    kept = KEPT / f"{name}.{_digest(source)}.py"
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
        text = syntax_key(node)
        for name, changed in changes.items():
            other = _node(module, changed)
            if name != "_mutmut_orig" and _said(other) != _said(node):
                was, now = _changed(node, other)
                lines = _head(was)
                says = f"{function.__module__}.{function.__qualname__}: {difference(_text(was), _text(now))}"
                made.append(Mutant(f"{function.__module__}.{name}", function, changed,
                                   range(lines.start + shift, lines.stop + shift), text, says))
    order = list(texts)
    return sorted(made, key=lambda m: order.index(m.module))


def _node(module: Mapping[int, ast.FunctionDef], function: Callable[..., Any]) -> ast.FunctionDef:
    line = function.__code__.co_firstlineno
    return next(module[n] for n in range(line, line + 5) if n in module)


def _said(function: ast.FunctionDef) -> str:
    """What a function says, apart from its name and the `strict` of its zips."""
    return _STRICT.sub("", "".join(ast.dump(part) for part in (function.args, *function.body)))


_STRICT = re.compile(r"(, )?keyword\(arg='strict', value=Constant\(value=\w+\)\)")


def _changed(one: Any, other: Any) -> tuple[Any, Any]:
    """The innermost statement in which two functions differ, as it is in each."""
    body, theirs = _inner(one), _inner(other)
    differ = [pair for pair in zip(body, theirs, strict=False) if ast.dump(pair[0]) != ast.dump(pair[1])]
    if len(body) == len(theirs) and len(differ) == 1 and not isinstance(one, ast.Lambda):
        return _changed(*differ[0])
    return one, other


def _inner(statement: Any) -> list[Any]:
    return [child for name in ("body", "orelse", "handlers", "finalbody") for child in getattr(statement, name, ())
            if isinstance(child, (ast.stmt, ast.ExceptHandler))]


def _head(statement: Any) -> range:
    """The lines of a statement; of a compound one, its head."""
    first = [b.lineno for b in _inner(statement)]
    return range(statement.lineno, min(first) if first and isinstance(statement, (ast.If, ast.For, ast.While)) else
                 statement.end_lineno + 1)


def _text(statement: Any) -> str:
    """A statement on one line; of a compound one, its head."""
    if isinstance(statement, (ast.If, ast.For, ast.While)):
        statement = copy(statement)
        statement.body, statement.orelse = [ast.Expr(ast.Constant(...))], []
    if isinstance(statement, ast.FunctionDef):
        statement = copy(statement)
        statement.name, statement.body = "", [ast.Expr(ast.Constant(...))]
    return " ".join(ast.unparse(statement).split())


def files_for(chosen: Iterable[str]) -> tuple[str, ...]:
    """The files with cases for these modules."""
    return tuple(f for room, files in CASES.items() if any(m.startswith(room) for m in chosen) for f in files)


def cases(files: Iterable[str]) -> list[Case]:
    """The cases of these files, each with its parameters; those of the slow tier are left out."""
    made = []
    for file, name, test in ((f, *pair) for f in files for pair in vars(importlib.import_module(f)).items()):
        marks = getattr(test, "pytestmark", ())
        if name.startswith("test_") and not any(mark.name == "slow" for mark in marks):
            rows = [mark.args for mark in marks if mark.name == "parametrize"]
            lists = [[_given(names, v) for v in values if not any(m.name == "slow" for m in getattr(v, "marks", ()))]
                     for names, values in rows]
            for number, choice in enumerate(product(*lists)):
                given = {name: value for row in choice for name, value in row.items()}
                made.append(Case(f"{file}::{name}[{number}]", file, lambda t=test, g=given: t(**g)))
    return made


def _given(names: str | Sequence[str], value: Any) -> dict[str, Any]:
    """The arguments that one set of parameters gives, as pytest reads it."""
    several = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    plain = value.values if hasattr(value, "marks") else (value,) if len(several) == 1 else value
    return dict(zip(several, plain, strict=True))


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


def end_what_is_left(process: int) -> None:
    """Where a fork ended by its time limit, end what it started: that would hold the pipe open for good."""
    if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)


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

    start = time.process_time()
    sys.settrace(entered)
    try:
        case.run()
    except Exception:
        return 0.0, set()
    finally:
        sys.settrace(None)
    return (time.process_time() - start) / TRACED + 1e-4, reached


def reached(tests: Sequence[Case], texts: Mapping[str, str], children: int) -> list[Case]:
    """The cases with what they reach, traced once for each state of the modules and of their file; none that fails."""
    path = KEPT / f"reached.{_digest(*texts)}.pickle"
    known: dict[str, Any] = pickle.loads(path.read_bytes()) if path.exists() else {}
    files = {c.file: next((ROOT / "tests").rglob(f"{c.file}.py")).read_text(encoding="utf-8") for c in tests}
    loaded = _digest(*texts.values())
    keys = {case.name: _digest(case.name, files[case.file], loaded) for case in tests}
    missing = [case for case in tests if keys[case.name] not in known]
    running: list[tuple[str, tuple[int, int]]] = []
    while missing or running:
        while missing and len(running) < children:
            case = missing.pop()
            running.append((keys[case.name], in_fork(lambda c=case: traced(c))))
        key, fork = running.pop(0)
        known[key] = ended(*fork)
    for case in tests:
        case.seconds, case.lines = known[keys[case.name]]
    path.write_bytes(pickle.dumps({key: (seconds, lines) for key, (seconds, lines) in known.items() if seconds}))
    for case in (c for c in tests if not c.seconds):
        print(f"left out, for it fails without a mutant: {case.name}", file=sys.stderr)
    return [c for c in tests if c.seconds]


class Settled:
    """The functions of which every mutant is killed or named as equivalent, in a file, with a hash of their texts."""

    def __init__(self, reasons: Container[str], anew: tuple[str, ...]) -> None:
        self.reasons = reasons
        self.known: dict[str, str] = json.loads(SETTLED.read_text(encoding="utf-8")) if SETTLED.exists() else {}
        self.anew = anew

    def how(self, made: Sequence[Mutant], found: Mapping[str, Found]) -> dict[str, str]:
        """Mutant -> how it ended, now or before."""
        before = {m.name: "survived" if m.says in self.reasons else "killed" for m in made
                  if self.known.get(m.place) == m.text and not m.name.startswith(self.anew)}
        return before | {n: e["status"] for kept in found.values() for n, e in kept.ended.items()}

    def write(self, made: Sequence[Mutant], found: Mapping[str, Found]) -> None:
        """Keep what is settled now, and of modules that were not asked for what was."""
        how = self.how(made, found)
        alive = {m.place for m in made if how.get(m.name, OPEN) == OPEN
                 or (how[m.name] not in KILLED and m.says not in self.reasons)}
        asked = tuple(f"{module}." for module in found)
        kept = {place: text for place, text in self.known.items() if not place.startswith(asked)}
        kept |= {m.place: m.text for m in made if m.place not in alive}
        SETTLED.write_text(json.dumps(kept, indent=0, sort_keys=True) + "\n", encoding="utf-8")


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def tried(mutant: Mutant, order: Sequence[Case]) -> str:
    """The first case that fails with the mutant; "" when none does."""
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    mutant.activate()
    for case in order:
        most = math.ceil(time.process_time() + SECONDS + TIMES * case.seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))
        try:
            case.run()
        except BaseException:
            return case.name
    return ""


class Killers:
    """Which cases kill, by where the mutant is: what kills its neighbours is tried first, then what is unlike the rest.

    Cases that reach the same lines of the module mostly kill the same mutants: each such kind has equally much time.
    """

    def __init__(self, tests: Sequence[Case], before: Iterable[tuple[Mutant, str]]) -> None:
        self.tests = tests
        self.kills: defaultdict[Any, Counter[str]] = defaultdict(Counter)
        self.kinds: dict[str, dict[str, frozenset[int]]] = {}
        for mutant, case in before:
            self.count(mutant, case)

    def count(self, mutant: Mutant, case: str) -> None:
        """A case killed a mutant."""
        for place in (mutant.module, mutant.function, (mutant.function, mutant.lines)):
            self.kills[place][case] += 1

    def order(self, mutant: Mutant) -> list[Case]:
        """The cases that reach a mutant, the likely and the cheap ones first."""
        kinds, lines = self.kinds_of(mutant.module), set(mutant.lines)
        near = [(self.kills[place], weight) for place, weight in
                (((mutant.function, mutant.lines), 10), (mutant.function, 1), (mutant.module, 0.05))]
        likely = {c.name: sum(weight * kills[c.name] for kills, weight in near) / (c.seconds + 0.02)
                  for c in self.tests if not kinds[c.name].isdisjoint(lines)}
        order = sorted((c for c in self.tests if c.name in likely), key=lambda c: (-likely[c.name], c.seconds))
        spent: defaultdict[frozenset[int], float] = defaultdict(float)
        turn: dict[str, float] = {}
        for case in order:
            spent[kinds[case.name]] += case.seconds
            turn[case.name] = 0 if near[1][0][case.name] else spent[kinds[case.name]]
        return sorted(order, key=lambda c: turn[c.name])

    def kinds_of(self, module: str) -> dict[str, frozenset[int]]:
        """Case -> the lines of a module that it reaches."""
        if module not in self.kinds:
            self.kinds[module] = {c.name: frozenset(line for file, line in c.lines if file == f"<{module}>")
                                  for c in self.tests}
        return self.kinds[module]


def outcomes(todo: Sequence[Mutant], killers: Killers, children: int, most: float,
             only: str) -> Iterator[tuple[Mutant, str, str]]:
    """(mutant, how it ended, the case that killed it), as they end; `most` and `only` as in `main`."""
    running: dict[int, tuple[Mutant, int, bool]] = {}
    waiting = list(reversed(todo))
    while waiting or running:
        while waiting and len(running) < children:
            mutant = waiting.pop()
            order = killers.order(mutant)
            if not order:
                yield mutant, "no tests", ""
                continue
            named = [c for c in order if only in c.name]
            spent = list(accumulate(c.seconds for c in named))
            affordable = named[:max(1, bisect_right(spent, most))]
            process, pipe = in_fork(lambda m=mutant, o=affordable: tried(m, o))
            running[pipe] = mutant, process, len(affordable) < len(order)
        ready, _, _ = select.select(list(running), [], [], 1) if running else ([], [], [])
        for _, process, _ in running.values():
            end_what_is_left(process)
        for pipe in ready:
            mutant, process, cut = running.pop(pipe)
            killer = ended(process, pipe)
            status = "timeout" if killer is None else "killed" if killer else "unfinished" if cut else "survived"
            if killer:
                killers.count(mutant, killer)
            yield mutant, status, killer or ""


def main() -> None:
    """Try what is asked for and print the score so far."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("names", nargs="*", help="beginnings of the names of modules or mutants; default all")
    words.add_argument("--every", type=int, default=1, help="try every k-th mutant only")
    words.add_argument("--again", action="store_true", help="try survivors without a reason again")
    words.add_argument("--anew", action="store_true", help="try those of settled functions, too")
    words.add_argument("--most", type=float, default=math.inf, help="seconds of cases that a mutant is tried against")
    words.add_argument("--cases", default="", help="try mutants against cases only that have this in their names")
    words.add_argument("--children", type=int, default=2)
    asked = words.parse_args()
    at = commit()  # before the ledger changes, which is in the tree
    names = tuple(asked.names) or ("",)
    chosen = {m: path for m, path in modules().items() if m.startswith(names) or any(n.startswith(m) for n in names)}
    tables = tomllib.loads(REASONS.read_text(encoding="utf-8"))
    reasons = {f"{module}.{mutant}": why for module, table in tables.items() for mutant, why in table.items()}
    texts = {name: mutated(name, path) for name, path in chosen.items()}
    made = mutants(texts)
    found = {name: Found(name) for name in chosen}
    for name, kept in found.items():
        kept.select([m for m in made if m.module == name])
    record = Settled(reasons, names if asked.anew else ())
    how = record.how(made, found)
    todo = [m for m in [m for m in made if m.name.startswith(names)][::asked.every]
            if m.name not in how or (asked.again and how[m.name] in AGAIN and m.says not in reasons)]
    if todo:
        tests = reached(cases(files_for(chosen)), texts, asked.children)
        print(f"{len(tests)} cases, {sum(c.seconds for c in tests):.1f} s; {len(todo)} of {len(made)} mutants to try",
              flush=True)
        start, number = time.monotonic(), 0
        before = [(m, by) for m in made if (by := found[m.module].ended.get(m.name, {}).get("by"))]
        tries = outcomes(todo, Killers(tests, before), asked.children, asked.most, asked.cases)
        try:
            for number, (mutant, status, by) in enumerate(tries, 1):
                found[mutant.module].ended[mutant.name] = {"status": status, "by": by, "text": mutant.text,
                                                           "says": mutant.says}
                if number % 25 == 0 or number == len(todo):
                    for kept in found.values():
                        kept.write()
                    record.write(made, found)
                    rate = number / (time.monotonic() - start) * 60
                    print(f"{number}/{len(todo)}, {rate:.0f} a minute", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            print("interrupted: what was tried is kept", file=sys.stderr)
    record.write(made, found)
    how = record.how(made, found)
    ends = [(m.module, m.says, how[m.name]) for m in made if m.name in how]
    told = score(ends, reasons, Counter(m.module for m in made))
    print("\n".join(told))
    if names == ("",):
        write_row("mutate", summary(ends, reasons, Counter(m.module for m in made)), at)
    there = {m.says for m in made}
    print("".join(f"a reason for no mutant: {n}\n" for m, table in tables.items() if m in chosen
                  for n in (f"{m}.{mutant}" for mutant in table) if n not in there), end="")


if __name__ == "__main__":
    main()
