"""Steps of frameworks, recorded and plain, as a table: `make watch` prints it, `make watch-write` keeps it in the page.

`framework_table.py [--write] [WORDS...]` runs the rows whose name has one of the words; all of them without words.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from placealg.cli.watch import mesh_of
from placealg.watch.seen import Seen

FOLDER = Path(__file__).parent / "frameworks"
PAGE = Path(__file__).parents[2] / "docs" / "watch.md"
HEAD = "| what runs | as | ranks | verdict | gradient paths | collectives | shims | plain | recorded | times |"
TITAN = ("scaled dot product attention for flex attention, which is compiled", "sums are forced: gloo has no sum that "
         "multiplies first", "the device type is cpu", "kernels of triton are absent")
MEGATRON = ("what is said to a GPU is said to the CPU (current_device, Tensor.cuda, device='cuda')",
            "PyTorch's RMSNorm, marked for sequence parallelism, for Apex's", "no fork of CUDA's random numbers")
DEEPSPEED = ("no all_reduce in shared memory, which is compiled",)


@dataclass(frozen=True)
class Row:
    """What runs, as which strategy, on which mesh: a script of frameworks/ with its words, what was changed for it."""

    name: str
    strategy: str
    mesh: str
    words: tuple[str, ...]
    shims: tuple[str, ...] = ()
    model: str = "llama.json"
    single: str = ""
    """The words of the script as a single device, where it does not run as one by itself."""

    @property
    def said(self) -> str:
        """The strategy as a word of the command."""
        return str(FOLDER / self.strategy) if self.strategy.endswith(".toml") else self.strategy


ROWS = (
    Row("transformers' Trainer with accelerate", "dp", "dp=2", ("hf_trainer.py",)),
    Row("transformers' Trainer, asked for FSDP2", "zero3", "dp=2", ("hf_trainer.py", "--fsdp")),
    Row("transformers' plan of Llama", "hf_tp.toml", "tp=2", ("hf_tp.py", "llama.json")),
    Row("transformers' plan of Qwen3", "hf_tp.toml", "tp=2", ("hf_tp.py", "qwen3.json"), model="qwen3.json"),
    Row("torchtitan's FSDP2", "titan.toml", "dp=2", ("titan.py", "2", "1"), TITAN, single="1 1 --together=2"),
    Row("torchtitan's TP and SP", "tp_sp_keep", "tp=2", ("titan.py", "1", "2"), TITAN, single="1 1"),
    Row("torchtitan's FSDP2 x TP and SP", "titan_tp.toml", "dp=2,tp=2", ("titan.py", "2", "2"), TITAN,
        single="1 1 --together=2"),
    Row("Megatron-Core's DDP", "dp", "dp=2", ("megatron_gpt.py", "2", "1"), MEGATRON, single="1 1 --together=2"),
    Row("Megatron-Core's DDP x TP and SP", "dp*tp_sp", "dp=2,tp=2", ("megatron_gpt.py", "2", "2"), MEGATRON,
        single="1 1 --together=2"),
    Row("DeepSpeed's ZeRO-1", "deepspeed_1.toml", "dp=2", ("deepspeed_zero.py", "1"), DEEPSPEED,
        single="1 --together=2"),
    Row("DeepSpeed's ZeRO-3", "zero3", "dp=2", ("deepspeed_zero.py", "3"), DEEPSPEED, single="3 --together=2"),
)


def watched(row: Row, folder: Path) -> tuple[dict[str, Any], Seen]:
    """The verdict on a row as JSON, and what was recorded."""
    kept = folder / "seen.json"
    script, *words = row.words
    done = subprocess.run(
        [sys.executable, "-m", "placealg", "watch", row.said, "--mesh", row.mesh, "--model", str(FOLDER / row.model),
         "--format", "json", "--no-timing", "--limit", "500", "--output", str(kept),
         *(w for s in row.shims for w in ("--shim", s)),
         *(("--single", f"{FOLDER / script} {row.single}") if row.single else ()), "--", str(FOLDER / script), *words],
        capture_output=True, text=True, check=False)
    if not kept.exists():
        raise RuntimeError(f"{row.name}: {done.stderr.strip()}")
    return json.loads(done.stdout), Seen.read(kept.read_text())


def plain(row: Row, folder: Path) -> float:
    """The processor's seconds per rank of a step that nobody watches, the one after the first."""
    mesh = mesh_of(row.mesh)
    world, port = prod(mesh.values()), 20000 + os.getpid() % 20000
    processes = []
    for rank in range(world):
        said = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world,
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1, "GLOO_SOCKET_IFNAME": "lo"}
        processes.append(subprocess.Popen(
            [sys.executable, __file__, "--step", str(folder / f"{rank}"), str(FOLDER / row.words[0]), *row.words[1:]],
            env={**os.environ, **{k: str(v) for k, v in said.items()}}, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL))
    try:
        deadline = time.monotonic() + 500
        for process in processes:
            process.wait(max(deadline - time.monotonic(), 1))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return statistics.mean(float((folder / f"{rank}").read_text()) for rank in range(world))


def step(file: str, script: str, words: Sequence[str]) -> None:
    """Run a script, and write down the seconds from the forward after its first step to that after its second."""
    import runpy

    import torch
    from torch import nn
    from torch.optim.optimizer import register_optimizer_step_post_hook

    torch.set_num_threads(1)
    call, begun, stepped = nn.Module._call_impl, [], [False]

    def heard(module: Any, *args: Any, **kwargs: Any) -> Any:
        if stepped[0]:
            stepped[0] = False
            begun.append(time.process_time())
            if len(begun) == 2:
                Path(file).write_text(str(begun[1] - begun[0]))
        return call(module, *args, **kwargs)

    def ended(*_: Any) -> None:
        stepped[0] = True

    nn.Module._call_impl = heard
    register_optimizer_step_post_hook(ended)
    sys.argv = [script, *words]
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")


def told(row: Row) -> str:
    """A row of the table."""
    with TemporaryDirectory(prefix="placealg-") as folder:
        verdict, seen = watched(row, Path(folder))
        once = plain(row, Path(folder))
    recorded = statistics.mean(r.seconds for r in seen.ranks)
    paths, sent = verdict["gradient_paths"], verdict["collectives"]
    return cells(row, verdict["verdict"], f"{paths['matched']} of {paths['of']}",
                 f"{sent['matched']} of {sent['of']}", f"{once:.2f}", f"{recorded:.1f}", f"{recorded / once:.0f}")


def cells(row: Row, verdict: str, paths: str, sent: str, *figures: str) -> str:
    """A row of the table, of what its cells say."""
    world = prod(mesh_of(row.mesh).values())
    every = (row.name, row.strategy, str(world), verdict, paths, sent, str(len(row.shims)), *figures)
    return f"| {' | '.join(every)} |"


def rows_in(page: str) -> Mapping[str, list[str]]:
    """Name -> cells of the table that a page has."""
    lines = page.partition(f"{HEAD}\n")[2].partition("\n\n")[0].splitlines()[1:]
    return {row[0]: row for row in ([c.strip() for c in text.split("|")[1:-1]] for text in lines)}


def main(words: Sequence[str]) -> None:
    write = "--write" in words
    chosen = [w for w in words if w != "--write"]
    table = [HEAD, "|---|---|---|---|---|---|---|---|---|---|"]
    print("\n".join(table), flush=True)
    for row in ROWS:
        if not chosen or any(w in row.name for w in chosen):
            table.append(told(row))
            print(table[-1], flush=True)
    if write:
        before, _, rest = PAGE.read_text().partition(f"{HEAD}\n")
        if not rest or chosen:
            sys.exit(f"the whole table stands in {PAGE.name}, under its head")
        PAGE.write_text("\n".join((before + table[0], *table[1:], "")) + "\n" + rest.partition("\n\n")[2])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--step"]:
        step(sys.argv[2], sys.argv[3], sys.argv[4:])
    else:
        main(sys.argv[1:])
