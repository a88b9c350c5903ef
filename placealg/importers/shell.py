"""Shell scripts followed without running them: what each command would be given, where that can be told.

A variable that nothing sets is open; so is one that is set where it cannot be told whether it is. Open text stands
between OPEN and CLOSE, with the variable's name. No command is run, no file is opened.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from placealg.errors import InputError
from placealg.importers.shell_arithmetic import test as holds
from placealg.importers.shell_text import (
    If,
    ShellCase,
    ShellFunction,
    ShellLoop,
    ShellToken,
    Simple,
    parse_script,
    tokens,
)
from placealg.importers.shell_words import CLOSE, OPEN, Command, Script, Value, Words

__all__ = ["CLOSE", "OPEN", "Command", "Script", "follow"]

MAX_COMMANDS = 4000
_ASSIGN = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)\Z", re.DOTALL)
_STATEMENTS = ("export", "declare", "local", "readonly", "typeset", "set", "unset", "shift", "source", ".", "eval", ":")
SHELLS = ("bash", "sh", "/bin/bash", "/bin/sh", "/usr/bin/bash", "zsh")


def follow(text: str, file: str, environment: dict[str, str], arguments: tuple[str, ...] = ()) -> Script:
    """Follow a script, given variables of its environment and its own arguments."""
    script = Script(file, dict(environment))
    run = _ScriptRun(script, arguments)
    for name, value in sbatch(text).items():
        script.variables.setdefault(name, value)
    run.block(parse_script(text, file), True)
    return script


def sbatch(text: str) -> dict[str, str]:
    """The variables that Slurm sets from the #SBATCH lines of a script."""
    return slurm_variables("\n".join(re.findall(r"^#SBATCH\s+(.*)", text, re.MULTILINE)))


def slurm_variables(options: str) -> dict[str, str]:
    """The variables that Slurm sets from options of sbatch or srun.

    >>> slurm_variables("--nodes=4 --gpus-per-node 8")["SLURM_NNODES"]
    '4'
    """
    found = dict(re.findall(r"--([\w-]+)[ =]([\w:.]+)", options))
    for name, value in re.findall(r"(?:\A|\s)-([Nn])[ =]*([0-9]+)", options):
        found["nodes" if name == "N" else "ntasks"] = value
    names = {"nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
             "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
             "gpus-per-node": ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"),
             "gres": ("SLURM_GPUS_ON_NODE",), "cpus-per-task": ("SLURM_CPUS_PER_TASK",)}
    made: dict[str, str] = {}
    for key, variables in names.items():
        digits = re.search(r"(?<!\d)(\d{1,9})\Z", found.get(key, ""))
        if digits and (key == "nodes" or key not in ("gres",) or found[key].startswith("gpu")):
            for name in variables:
                made.setdefault(name, digits[1])
    if "SLURM_NNODES" in made and "SLURM_NTASKS_PER_NODE" in made:
        made.setdefault("SLURM_NTASKS", str(int(made["SLURM_NNODES"]) * int(made["SLURM_NTASKS_PER_NODE"])))
        made.setdefault("SLURM_NPROCS", made["SLURM_NTASKS"])
    return made


class _ScriptRun(Words):
    """Follows a tree of commands over a table of variables."""

    def __init__(self, script: Script, arguments: tuple[str, ...]):
        super().__init__(script, arguments)
        self.functions: dict[str, list[object]] = {}
        self.count, self.depth = 0, 0

    def block(self, nodes: list[object], certain: bool) -> None:
        """Follow commands in order; after `&&` or `||` of what cannot be decided, a command is not certain."""
        sure, skip = certain, False
        for node in nodes:
            self.count += 1
            if self.count > MAX_COMMANDS:
                raise InputError(f"more than {MAX_COMMANDS} commands to follow", where=self.script.file)
            if isinstance(node, Simple):
                status = None if skip else self.simple(node, sure)
                if node.after in ("&&", "||"):
                    skip = status is (node.after == "||")
                    sure = certain and status is not None
                else:
                    sure, skip = certain, False
            elif isinstance(node, If):
                self.branch(node, certain)
            elif isinstance(node, ShellLoop):
                self.loop(node, certain)
            elif isinstance(node, ShellCase):
                self.case(node, certain)
            elif isinstance(node, ShellFunction):
                self.functions[node.name] = node.body

    def apart(self, bodies: list[list[object]], may_be_none: bool) -> None:
        """Follow branches of which one runs: what they set differently is open."""
        before = dict(self.script.variables)
        results = [before] if may_be_none else []
        for body in bodies:
            self.script.variables = dict(before)
            self.block(body, False)
            results.append(self.script.variables)
        merged: dict[str, Value] = {}
        for name in {n for result in results for n in result}:
            values = [result.get(name) for result in results]
            if all(v == values[0] for v in values) and values[0] is not None:
                merged[name] = values[0]
            else:
                merged[name] = self.opened(name, 0)
                self.script.candidates[name] = [v if isinstance(v, str) else " ".join(v) for v in values if v]
        self.script.variables = merged

    def branch(self, node: If, certain: bool) -> None:
        undecided: list[list[object]] = []
        for condition, body in node.arms:
            verdict = True if not condition else self.condition(condition)
            if verdict is False:
                continue
            if verdict is True and not undecided:
                self.block(body, certain)
                return
            undecided.append(body)
            if verdict is True:
                self.apart(undecided, False)
                return
        if undecided:
            self.apart(undecided, True)

    def condition(self, nodes: list[object]) -> bool | None:
        verdict: bool | None = True
        joiner = "&&"
        for node in nodes:
            if not isinstance(node, Simple):
                return None
            one = self.status(node)
            if joiner == "&&":
                verdict = False if verdict is False or one is False else None if None in (verdict, one) else True
            else:
                verdict = True if verdict is True or one is True else None if None in (verdict, one) else False
            joiner = node.after if node.after in ("&&", "||") else "&&"
        return verdict

    def status(self, node: Simple) -> bool | None:
        """Whether a command of a condition would succeed, where that can be told."""
        words = [t.text for t in node.words]
        if words and words[0] in ("[", "[[", "test"):
            return holds(node.words, self)
        return {"true": True, ":": True, "false": False}.get(words[0]) if words else None

    def loop(self, node: ShellLoop, certain: bool) -> None:
        if not node.name:
            self.apart([node.body], True)
            return
        words = [f for token in node.words for f in self.expand(token)]
        if any(OPEN in w for w in words) or len(words) > 64:
            self.script.variables[node.name] = self.opened(node.name, 0)
            self.apart([node.body], True)
            return
        for word in words:
            self.script.variables[node.name] = word
            self.block(node.body, certain)

    def case(self, node: ShellCase, certain: bool) -> None:
        word = "".join(self.expand(node.word))
        if OPEN in word:
            self.apart([body for _, body in node.arms], True)
            return
        for patterns, body in node.arms:
            if any(fnmatchcase(word, p.strip("'\"")) for p in patterns):
                self.block(body, certain)
                return

    def simple(self, node: Simple, certain: bool) -> bool | None:
        """Follow a simple command; the answer is whether it succeeds, where that can be told."""
        words = list(node.words)
        while words and (found := _ASSIGN.match(words[0].text)):
            self.assign(found[1], found[3], bool(found[2]), words[0].line)
            words.pop(0)
        if not words:
            return True
        first = words[0].text
        if first.startswith("--"):
            raise InputError(f"{first.partition('=')[0]} begins a command here, and is no flag of the one before",
                             where=f"{self.script.file}:{words[0].line}")
        if first in ("[", "[[", "test", "true", "false", ":"):
            return self.status(node)
        if first in _STATEMENTS:
            self.statement(first, words[1:], certain)
            return True
        self.empty = []
        fields = [f for token in words for f in self.expand(token)]
        empty = tuple(dict.fromkeys(self.empty))
        if not fields:
            return None
        if fields[0] in self.functions and self.depth < 20:
            self.depth += 1
            saved, self.arguments = self.arguments, fields[1:]
            self.block(self.functions[fields[0]], certain)
            self.arguments = saved
            self.depth -= 1
            return None
        if node.body and node.target:
            self.script.files["".join(self.expand(ShellToken(node.target, 0)))] = self.text(node.body, words[0].line)
        if fields[0] in ("echo", "printf", "cat", "tee", "mkdir", "cd", "exit"):
            return True
        self.launch(fields, words[0].line, certain, node.body, empty)
        return None

    def launch(self, fields: list[str], line: int, certain: bool, body: str, empty: tuple[str, ...]) -> None:
        """Keep a command; one that hands a text to another shell is followed into it."""
        for at, word in enumerate(fields):
            inner = fields[at + 1] if at + 1 < len(fields) else ""
            if word in ("-c", "-lc", "-ec", "-xc") and at and fields[at - 1] in SHELLS and self.depth < 20:
                if fields[0].rpartition("/")[2] == "srun":
                    self.script.variables.update(slurm_variables(" ".join(fields[1:at - 1])))
                self.inner(inner, certain)
                return
        if body and fields[0] in (*SHELLS, "sbatch", "srun") and self.depth < 20:
            self.inner(body, certain)
            return
        told = {name: value for name, value in self.script.variables.items() if isinstance(value, str)}
        self.script.commands.append(Command(tuple(fields), line, certain, empty, told))

    def inner(self, text: str, certain: bool) -> None:
        """Follow a text that a shell is given; one with open parts that is no script so is open as a whole."""
        try:
            nodes = parse_script(text, self.script.file)
        except InputError:
            if OPEN in text:
                return
            raise
        self.depth += 1
        self.block(nodes, certain)
        self.depth -= 1

    def statement(self, name: str, words: list[ShellToken], certain: bool) -> None:
        if name in ("source", "."):
            self.script.sourced += self.expand(words[0]) if words else []
        elif name == "eval":
            inner = " ".join(f for token in words for f in self.expand(token))
            if self.depth < 20:
                self.inner(inner, certain)
        elif name == "shift":
            del self.arguments[:1]
        elif name == "unset":
            for token in words:
                self.script.variables.pop(token.text, None)
        elif name not in ("set", ":"):
            for token in words:
                if found := _ASSIGN.match(token.text):
                    self.assign(found[1], found[3], bool(found[2]), token.line)

    def assign(self, name: str, raw: str, more: bool, line: int) -> None:
        """NAME=VALUE, NAME=(...) and their += forms."""
        old = self.script.variables.get(name)
        if raw.startswith("(") and raw.endswith(")"):
            made = [f for token in tokens(raw[1:-1].replace("\x00", "\n"), self.script.file) if not token.operator
                    for f in self.expand(token)]
            before = old if isinstance(old, list) else [old] if old else []
            self.script.variables[name] = [*before, *made] if more else made
            return
        value = " ".join(self.expand(ShellToken(raw, line))) if raw else ""
        value = value if _quoted(raw) is None else self.quoted_value(raw, line)
        if more:
            value = (" ".join(old) if isinstance(old, list) else old or "") + value
        self.script.variables[name] = value

    def quoted_value(self, raw: str, line: int) -> str:
        """The value of a text in one pair of double quotes, its blanks kept."""
        return " ".join(self.double(raw, 1, line)[0]) if raw[0] == '"' else raw[1:-1].replace("\x00", " ")


def _quoted(raw: str) -> str | None:
    """The quote that surrounds a whole raw word; None where there is none."""
    if len(raw) > 1 and raw[0] == raw[-1] and raw[0] in "'\"" and raw[0] not in raw[1:-1].replace('\\"', ""):
        return raw[0]
    return None
