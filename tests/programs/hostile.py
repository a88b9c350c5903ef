"""Hostile inputs for the command line: words, expressions, sizes and files, mutated at random from what is valid.

`python tests/programs/hostile.py --inputs 20000 --seed 1` runs them, on one core, and prints what is wrong with any.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import resource
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[2]
SECONDS, BYTES = 20, 2**30
"""What one input may take: of processor time, and of memory."""

MAY_FAIL = ("prove", "fit", "diff", "compare", "simulate", "reshard", "museum", "explain", "recheck")
"""The commands for which 1 is an exit code; of the others it would be a wrong one."""

NOTES = (": warning: ", " read as ")
"""What marks a line of stderr that is beside an answer: a warning, and what a framework's file was read as."""

EXPRESSIONS = ("zero3", "dp", "zero1*tp", "zero3*tp_sp", "hsdp", "zero2*offload_optimizer", "zero1*pp", "cp_ring*dp",
               "dp*ep", "zero3[fsdp]", "hsdp[dp_replicate=2,dp_shard=4]", "zero3*tp_sp[tp=8]*recompute_selective",
               "torch.fsdp2", "megatron_1446", "proofs/proved/token_mean.toml")
SIZES = ("dp=8", "tp=2", "dp=4 tp=2", "m=4", "b=1 s=128", "devices=16", "w=1/2", "wire_w=1", "h=64 a=8 L=2", "pp=2 m=8")
MODELS = ("abstract", "gpt", "gpt2", "moe", "lora", "llama-3-8b", "mixtral-8x7b", "statistics", "two_losses")
PIECES = ("", "=", "*", "**", "[", "]", "[[", "]]", "--", "-", "--set", "0", "-1", "1e9", "9" * 400, "NaN", "1/0", "∞",
          "'", '"', "\n", "\t", "\x00", "\x1b[31m", "é", "Ψ", "%s", "{}", "..", "/", "/dev/null", "a" * 300, "dp", "tp",
          "S*", "#", "true", "false", "null", "inf", "2**99", "edit", "mesh", "states", "=S", "dp=2", "zero3")
SEEDS = ("proofs/proved", "proofs/refuted", "proofs/torch", "tests/importers/miniatures", "placealg/model/configs")


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
        choice = rng.randrange(7)
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
        else:
            text = text[:at] + (chr(ord(text[at]) ^ (1 << rng.randrange(7))) if at < len(text) else "") + text[at + 1:]
    return text


def _seeds() -> list[Path]:
    every = (p for folder in SEEDS for p in sorted((ROOT / folder).rglob("*")))
    return [p for p in every if p.is_file() and p.stat().st_size < 8000]


def inputs(seed: int, seeds: list[Path] | None = None) -> Iterator[Hostile]:
    """Hostile inputs without end, the same ones for the same seed."""
    rng, known = random.Random(seed), seeds if seeds is not None else _seeds()
    while True:
        files: list[tuple[str, bytes]] = []
        if rng.random() < 0.5:
            path = rng.choice(known)
            text = path.read_text(encoding="utf-8", errors="replace")
            for _ in range(rng.randint(1, 2)):
                text = mutated(text, rng)
            files.append((path.name, text.encode("utf-8", "replace")))
            word = path.name
        else:
            word = rng.choice(EXPRESSIONS) if rng.random() < 0.5 else mutated(rng.choice(EXPRESSIONS), rng)
        command = rng.choice(("show", "cost", "prove", "fit", "import", "model", "compare", "diff", "reshard",
                              "explain", "simulate", "list", "models", "completion"))
        words = [command]
        if command not in ("list", "models", "completion"):
            words.append(word)
        if command in ("compare", "diff", "reshard"):
            words.append(rng.choice(EXPRESSIONS))
        if command == "fit":
            words += ["--device-memory", mutated("80GB", rng) if rng.random() < 0.4 else "80GB"]
        if rng.random() < 0.5 and command not in ("import", "model", "explain", "list", "models", "completion"):
            words += ["--model", rng.choice(MODELS)]
        if rng.random() < 0.4:
            sizes = rng.choice(SIZES)
            words += ["--set", *(mutated(sizes, rng) if rng.random() < 0.5 else sizes).split()]
        if rng.random() < 0.2:
            words.insert(rng.randint(0, len(words)), rng.choice(PIECES))
        if rng.random() < 0.1:
            words[rng.randrange(len(words))] = mutated(rng.choice(words), rng)
        yield Hostile(tuple(words), tuple(files))


class OverTime(BaseException):
    """An input has taken its seconds; no handler of errors below may stop it."""


def _ring(number: int, frame: FrameType | None) -> None:
    raise OverTime


def wrong_with(hostile: Hostile, folder: Path) -> str:
    """What is wrong with how placealg takes an input; "" where nothing is. It runs in this process, in `folder`."""
    from placealg.cli import main

    for name, text in hostile.files:
        (folder / name).write_bytes(text)
    out, err = io.StringIO(), io.StringIO()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    old = signal.signal(signal.SIGVTALRM, _ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main(list(hostile.words))
    except OverTime:
        return f"takes more than {SECONDS} s"
    except BaseException:
        return traceback.format_exc(limit=-4)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, old)
        for name, _ in hostile.files:
            (folder / name).unlink(missing_ok=True)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = [line for line in err.getvalue().splitlines() if not any(note in line for note in NOTES)]
    if code not in (0, 1, 2, 3):
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
    return ""


def main() -> int:
    """Run many inputs, print what is wrong, and how many ended with which code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    stream, found = inputs(chosen.seed), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for k in range(chosen.inputs):
            hostile = next(stream)
            wrong = wrong_with(hostile, Path(folder))
            found["wrong" if wrong else "right"] += 1
            if wrong:
                print(f"--- input {k} of seed {chosen.seed}: {list(hostile.words)}\n{wrong}", flush=True)
                for name, text in hostile.files:
                    print(f"    {name}: {text[:3000]!r}", flush=True)
            if k % 200 == 199:
                print(f"{k + 1}: {dict(found)}", flush=True)
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
