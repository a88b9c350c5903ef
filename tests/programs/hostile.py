"""Hostile inputs for the command line: words, expressions, sizes and files, mutated at random from what is valid.

The commands and their options are those of the parser; a command that is not known here raises a KeyError.

`make fuzz INPUTS=20000 SEED=1` runs them, on one core, prints what is wrong with any, and writes down what came out.
"""

from __future__ import annotations

import argparse
import io
import itertools
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType

from assurance import commit, write_row

ROOT = Path(__file__).resolve().parents[2]
SECONDS, BYTES = 20, 2**30
"""What one input may take: of processor time, and of memory."""

ENDING = 2
"""The seconds in which a search that is interrupted ends."""

MAY_FAIL = ("prove", "fit", "diff", "compare", "simulate", "reshard", "museum", "explain", "recheck", "search", "watch",
            "conform", "check-torch", "report")
"""The commands for which 1 is an exit code; of the others it would be a wrong one."""

NOTES = (": warning: ", " read as ")
"""What marks a line of stderr that is beside an answer: a warning, and what a framework's file was read as."""

EXPRESSIONS = ("zero3", "dp", "zero1*tp", "zero3*tp_sp", "hsdp", "zero2*offload_optimizer", "zero1*pp", "cp_ring*dp",
               "dp*ep", "zero3[fsdp]", "hsdp[dp_replicate=2,dp_shard=4]", "zero3*tp_sp[tp=8]*recompute_selective",
               "torch.fsdp2", "megatron_1446", "proofs/proved/token_mean.toml")
SIZES = ("dp=8", "tp=2", "dp=4 tp=2", "m=4", "b=1 s=128", "devices=16", "w=1/2", "wire_w=1", "h=64 a=8 L=2", "pp=2 m=8")
MODELS = ("abstract", "abstract", "gpt", "gpt", "gpt2", "moe", "lora", "llama-3-8b", "mixtral-8x7b", "statistics",
          "two_losses")
PIECES = ("", "=", "*", "**", "[", "]", "[[", "]]", "--", "-", "--set", "0", "-1", "1e9", "9" * 400, "NaN", "1/0", "∞",
          "'", '"', "\n", "\t", "\x00", "\x1b[31m", "é", "Ψ", "%s", "{}", "..", "/", "/dev/null", "a" * 300, "dp", "tp",
          "S*", "#", "true", "false", "null", "inf", "2**99", "edit", "mesh", "states", "=S", "dp=2", "zero3")
SEEDS = ("proofs/proved", "proofs/refuted", "proofs/torch", "tests/importers/miniatures", "placealg/models/configs")
RECORDINGS, SPACES = "tests/watch/recordings", "placealg/configurations/spaces.toml"

TAKES: Mapping[str, str] = {
    "list": "", "models": "", "show": "S", "cost": "S", "prove": "S", "recheck": "D", "compare": "SE", "diff": "SE",
    "reshard": "SE", "report": "S", "fit": "S", "search": "M", "simulate": "S", "museum": "N", "check-torch": "N",
    "watch": "S", "conform": "RE", "model": "M", "import": "S", "explain": "S", "completion": "B"}
"""What a command takes: a strategy, an expression, a model, a certificate's folder, a recording, a name, a shell."""

OFTEN = ("prove", "cost", "fit", "show", "compare", "import", "search", "conform", "watch", "reshard")
"""The commands that are drawn twice as often."""

VALUES: Mapping[str, tuple[str, ...]] = {
    "FILE|NAME": MODELS, "NAME|FILE": ("dense", "wide", "moe"), "NAME=VALUE": SIZES, "AXIS=N": ("tp=2", "pp=2", "b=1"),
    "AXES=RATE": ("dp=50GB/s", "dp,tp=450GB/s"), "AXIS=N,...": ("dp=2", "dp=2,tp=2"), "NAME=X": ("efficiency=0.5",),
    "NAME=PARAMETER": ("blocks.{}.o.weight=layer.attn.out.weight",), "NAME=VERSION": ("deepspeed=0.16",),
    "KEY=VALUE": ("zero_optimization.stage=3", "a=1"), "KEY": ("comms_logger", "a.b"), "RATE": ("50GB/s", "400TFLOPS"),
    "AMOUNT": ("80GB", "64GiB", "6GB"), "N": ("1", "2", "8", "64"), "K": ("1", "2"), "X": ("1.5", "1/2"),
    "WORD": ("8", "--lr"), "FORMAT": ("deepspeed", "torchtitan"), "PATTERN": ("zero*", "dp", "*"), "RANK": ("0", "3"),
    "stage=WHICH": ("stage=first", "stage=last", "stage=0", "stage=i"), "SIZE": ("L", "s", "dp", "b"),
    "CLAIM": ("memory.total <=", "memory.peak <", "communication.total == communication.total iff m == 1"),
    "CONDITION": ("tp >= 2", "m == 1 and dp > 2"), "HEX": ("0" * 64,), "SECONDS": ("1", "0.5"),
    "TEXT": ("zero3*tp_sp dp=4 tp=2 b=1", "zero1*tp dp=64 tp=8 b=1: 16.4 s 61GB"), "NAME": (
        "fsdp2", "megatron", "h100", "a100", "main", "hf", "offload", "recompute_full")}
"""Values of the options, by what the parser calls them."""

WRITTEN = ("out.svg", "out.toml", "out.html", "out", "", ".", "a" * 300, "missing/out.svg", "out.png")
"""Where an option may write: in the folder of the run, or not at all."""

LEFT_OUT = ("--help", "--coq", "--cache", "--jobs", "--limit")
"""Options that run other programs, other processes, or write elsewhere."""


@dataclass(frozen=True)
class Hostile:
    """A command line, and the files that it names, by name."""

    words: tuple[str, ...]
    files: tuple[tuple[str, bytes], ...] = ()


def mutated(text: str, rng: random.Random) -> str:
    """A text with one to four small changes."""
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(text))
        to = min(len(text), at + rng.choice((1, 2, 5, 20)))
        lines = text.split("\n")
        choice = rng.randrange(8)
        if choice == 0:
            text = text[:at] + text[to:]
        elif choice == 1:
            text = text[:at] + rng.choice(PIECES) + text[at:]
        elif choice == 2:
            text = text[:at] + rng.choice(PIECES) + text[to:]
        elif choice == 3:
            text = text[:to] + text[at:]
        elif choice == 4:
            rng.shuffle(lines)
            text = "\n".join(lines)
        elif choice == 5:
            del lines[rng.randrange(len(lines))]
            text = "\n".join(lines)
        elif choice == 6:
            text = text[:at] + (chr(ord(text[at]) ^ (1 << rng.randrange(7))) if at < len(text) else "") + text[at + 1:]
        else:  # a value of a file: a quoted word, a number
            found = [k for k, letter in enumerate(text) if letter in "\"'0123456789"]
            if found:
                k = rng.choice(found)
                text = text[:k + 1] + rng.choice(PIECES) + text[k + 1 + rng.randrange(3):]
    return text


def _seeds() -> list[Path]:
    every = (p for folder in SEEDS for p in sorted((ROOT / folder).rglob("*")))
    return [p for p in every if p.is_file() and p.stat().st_size < 8000]


@cache
def _certificate() -> Mapping[str, str]:
    """The files of a certificate, by name."""
    from placealg.cli import main

    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        main(["prove", "dp", "--certificate", f"{folder}/dp"])
        return {p.name: p.read_text(encoding="utf-8") for p in sorted(Path(folder, "dp").iterdir())}


@cache
def _options() -> Mapping[str, list[argparse.Action]]:
    """The options of every command."""
    from placealg.cli.parser import parsers

    return {name: [a for a in parser._actions if a.option_strings and not set(LEFT_OUT) & set(a.option_strings)]
            for name, parser in parsers().items()}


class Drawn:
    """The words and files of one input, drawn at random."""

    def __init__(self, rng: random.Random, seeds: list[Path]):
        self.rng, self.seeds = rng, seeds
        self.files: list[tuple[str, bytes]] = []

    def some(self, text: str, share: float) -> str:
        """A text, mutated with a chance."""
        return mutated(text, self.rng) if self.rng.random() < share else text

    def file(self, path: Path) -> str:
        """A mutated copy of a file."""
        text = path.read_text(encoding="utf-8", errors="replace")
        for _ in range(self.rng.randint(1, 2)):
            text = mutated(text, self.rng)
        self.files.append((path.name, text.encode("utf-8", "replace")))
        return path.name

    def strategy(self) -> str:
        """An expression, or a file of a strategy or a framework."""
        if self.rng.random() < 0.5:
            return self.file(self.rng.choice(self.seeds))
        return self.some(self.rng.choice(EXPRESSIONS), 0.5)

    def model(self) -> str:
        """A model's name, or a file that may be one."""
        if self.rng.random() < 0.3:
            return self.file(self.rng.choice([p for p in self.seeds if p.suffix == ".json"] or self.seeds))
        return self.some(self.rng.choice(MODELS), 0.3)

    def folder(self) -> str:
        """A certificate, one of its files mutated, missing or one too many."""
        files, name = dict(_certificate()), self.rng.choice(sorted(_certificate()))
        if self.rng.random() < 0.2:
            del files[name]
        else:
            files[self.some(name, 0.1).replace("/", "") or name] = mutated(files[name], self.rng)
        self.files += [(f"dp/{n}", text.encode("utf-8", "replace")) for n, text in files.items()
                       if len(n) < 200 and "\x00" not in n and n not in (".", "..")]
        return "dp"

    def taken(self, command: str) -> list[str]:
        """What a command takes."""
        drawn: Mapping[str, Callable[[], str]] = {
            "S": self.strategy, "M": self.model, "D": self.folder,
            "E": lambda: self.some(self.rng.choice(EXPRESSIONS), 0.2),
            "R": lambda: self.file(self.rng.choice(sorted((ROOT / RECORDINGS).iterdir()))),
            "N": lambda: self.some(self.rng.choice(("megatron_6500", "megatron_1446", "dp", "zero1*tp")), 0.5),
            "B": lambda: self.some(self.rng.choice(("bash", "zsh", "fish")), 0.3)}
        found = [drawn[letter]() for letter in TAKES[command]]
        if command == "fit":
            found += ["--device-memory", self.some("80GB", 0.4)]
        if command == "search":
            found += ["--devices", self.some("8", 0.2), "--batch", self.some("32", 0.2), "--set",
                      *self.some("s=128", 0.3).split(), "--only", self.some("zero1*tp", 0.3)]
            if self.rng.random() < 0.7:
                found += ["--machine", self.some("h100", 0.1)]
        if command == "report":
            found += ["-o", self.rng.choice(WRITTEN)]
        if command == "watch":
            found += ["--mesh", self.some("dp=2", 0.4), "--", self.some("missing.py", 0.3)]
        return found

    def option(self, action: argparse.Action) -> list[str]:
        """An option with a value, of its kind or not."""
        name = self.some(self.rng.choice(action.option_strings), 0.05)
        if action.nargs == 0:
            return [name]
        kind = str(action.metavar or "")
        if action.dest in ("output", "graph", "write_program", "certificate", "plot"):
            return [name, self.rng.choice(WRITTEN)]
        if action.dest == "space" and self.rng.random() < 0.7:
            return [name, self.file(ROOT / SPACES)]
        if action.dest == "files":
            return [name, self.file(self.rng.choice(self.seeds))]
        values = tuple(map(str, action.choices or ())) or VALUES.get(kind, ()) or ("0", "7")
        chosen = self.some(self.rng.choice(values), 0.4)
        return [name, *(chosen.split() if kind == "NAME=VALUE" else [chosen])]

    def words(self) -> list[str]:
        """A command line."""
        rng = self.rng
        command = rng.choice((*TAKES, *OFTEN))
        words = [command, *self.taken(command)]
        kinds = _options()[command]
        for _ in range(rng.choice((0, 0, 1, 1, 2, 3)) if kinds else 0):
            at = len(words) if "--" not in words else 1
            words[at:at] = self.option(rng.choice(kinds))
        if rng.random() < 0.3 and any("--set" in a.option_strings for a in kinds) and "--" not in words:
            words += ["--set", *self.some(rng.choice(SIZES), 0.5).split()]
        if rng.random() < 0.15:
            words.insert(rng.randint(0, len(words)), rng.choice(PIECES))
        if rng.random() < 0.1:
            words[rng.randrange(len(words))] = mutated(rng.choice(words), rng)
        return words


def inputs(seed: int, seeds: list[Path] | None = None) -> Iterator[Hostile]:
    """Hostile inputs without end, the same ones for the same seed."""
    rng, known = random.Random(seed), seeds if seeds is not None else _seeds()
    while True:
        drawn = Drawn(rng, known)
        words = drawn.words()
        if words[0] in ("museum", "check-torch") and len(words) == 1:
            continue  # all of them: minutes
        yield Hostile(tuple(words), tuple(drawn.files))


class Ended(BaseException):
    """The run was told to end."""


class OverTime(BaseException):
    """An input has taken its seconds; no handler of errors below may stop it."""


class Clock:
    """What happens when an input has taken its seconds: a search is interrupted, and has to end; others are ended.

    A search of a whole space is asked for minutes of work, and its user ends it with Ctrl-C.
    """

    def __init__(self, searching: bool) -> None:
        self.searching, self.interrupted = searching, False

    def ring(self, number: int, frame: FrameType | None) -> None:
        """The seconds are over."""
        if not self.searching or self.interrupted:
            raise OverTime
        self.interrupted = True
        signal.setitimer(signal.ITIMER_VIRTUAL, ENDING)
        raise KeyboardInterrupt


def _solvers() -> tuple[float, int]:
    """(seconds, most bytes) of the processes that a run has started and that live, on Linux."""
    seconds, most = 0.0, 0
    for process in multiprocessing.active_children():
        try:
            stat = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        except OSError:
            continue
        seconds += (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
        most = max([most, *(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))])
    return seconds, most


def _emptied(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def wrong_with(hostile: Hostile, folder: Path) -> str:
    """What is wrong with how placealg takes an input; "" where nothing is. It runs in this process, in `folder`, which
    is emptied.
    """
    from placealg.cli import main
    from placealg.cli.terminal import INTERRUPTED

    for name, text in hostile.files:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(text)
    out, err = io.StringIO(), io.StringIO()
    before, solver_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, _solvers()
    clock = Clock(hostile.words[:1] == ("search",))
    old = signal.signal(signal.SIGVTALRM, clock.ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main(list(hostile.words))
    except OverTime:
        return f"takes {ENDING} s to end" if clock.interrupted else f"takes more than {SECONDS} s"
    except Ended:
        raise
    except BaseException:
        return traceback.format_exc(limit=-4)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, old)
        _emptied(folder)
    grown, solver = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, _solvers()
    said = [line for line in err.getvalue().splitlines() if not any(note in line for note in NOTES)]
    if code not in ((INTERRUPTED,) if clock.interrupted else (0, 1, 2, 3)):
        return f"exit code {code}"
    if "Traceback" in out.getvalue() + err.getvalue():
        return f"prints a traceback: {err.getvalue()[-400:]}"
    if code == 1 and not any(word in MAY_FAIL for word in hostile.words):
        return "exit code 1, where nothing can be refuted"
    if code == 2 and (len(said) != 1 or not said[0].startswith("placealg: ") or len(said[0]) > 2000):
        return f"bad input is not one line: {said[:4]}"
    if code == 2 and out.getvalue() and hostile.words[0] != "prove":
        return "bad input, and something was printed"
    if grown * 1024 > BYTES and grown > before:
        return f"takes {grown // 1024} MB"
    if solver[1] > BYTES and solver[1] > solver_before[1]:
        return f"its solver takes {solver[1] // 2**20} MB"
    if solver[0] - solver_before[0] > SECONDS:
        return f"its solver takes {solver[0] - solver_before[0]:.0f} s"
    return ""


def _end(number: int, frame: FrameType | None) -> None:
    raise Ended


def result(first: int, ran: int, wrong: int, seed: int, minutes: float) -> str:
    """The words for a run of the inputs from `first` on.

    >>> result(0, 1200, 0, 7, 5.2)
    'inputs 1 to 1,200 of seed 7: all taken well, in 5 min'
    >>> result(200, 1200, 2, 7, 5.2)
    'inputs 201 to 1,400 of seed 7: 2 of 1,200 not taken well, in 5 min'
    """
    taken = f"{wrong} of {ran:,} not taken well" if wrong else "all taken well"
    return f"inputs {first + 1:,} to {first + ran:,} of seed {seed}: {taken}, in {minutes:.0f} min"


def main() -> int:
    """Run many inputs, print what is wrong, and how many ended with which code; `--row` writes down what came out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="how many inputs of the seed are drawn and not run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--row", action="store_true", help="write the row of `make fuzz` in docs/assurance.md")
    chosen = parser.parse_args()
    at, start = commit(), time.monotonic()
    stream, found = itertools.islice(inputs(chosen.seed), chosen.first, None), Counter[str]()
    signal.signal(signal.SIGTERM, _end)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as kept, suppress(Ended):
        os.environ["XDG_CACHE_HOME"] = kept
        os.chdir(folder)
        for k in range(chosen.first, chosen.first + chosen.inputs):
            hostile = next(stream)
            wrong = wrong_with(hostile, Path(folder))
            found["wrong" if wrong else "right"] += 1
            if wrong:
                print(f"--- input {k} of seed {chosen.seed}: {list(hostile.words)}\n{wrong}", flush=True)
                for name, text in hostile.files:
                    print(f"    {name}: {text[:3000]!r}", flush=True)
            if found.total() % 200 == 0:
                print(f"{found.total()}: {dict(found)}", flush=True)
    said = result(chosen.first, found.total(), found["wrong"], chosen.seed, (time.monotonic() - start) / 60)
    print(said)
    if chosen.row:
        write_row("fuzz", said, at)
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
