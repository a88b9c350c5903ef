"""What the kernel checks: the table of docs/proofs.md, catalogue x models, and the lines of what has to be trusted.

python tests/coq/kernel_table.py            prints it
python tests/coq/kernel_table.py --write    writes it into docs/proofs.md, between its marks
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import placealg as pa
from placealg.check.kernel import kernel
from placealg.errors import InputError
from placealg.models.config import resolve_model
from placealg.strategy.file import parse_strategy_file

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "proofs.md"
BEGIN, END = "<!-- kernel: begin -->\n", "<!-- kernel: end -->\n"
"""The marks between which the table stands."""

STRATEGIES = (
    "dp", "zero1", "zero2", "zero3", "fsdp_no_reshard", "hsdp", "mics", "zeropp", "dp*offload_optimizer",
    "zero1*offload_optimizer", "zero3*offload_optimizer", "zero3*offload_parameters", "zero3*offload_activations",
    "zero1*dp[more]",
    "zero3*zero1[more]", "dp*recompute_full", "dp*recompute_selective",
    "zero3*recompute_full", "hsdp*recompute_selective", "tp", "tp_sp", "tp_sp_keep", "cp", "cp_ring",
    "cp_ulysses", "ep", "pp_gpipe", "pp_1f1b", "pp_interleaved", "pp_zb_h1", "pp_zb_h2", "pp_interleaved_zb", "pp_zb_v",
    "pp_dualpipe_v", "zero1*tp_sp*pp", "zero3*tp_sp*pp_interleaved", "hsdp*tp_sp*cp_ring*pp*ep")
BASES = ("dp", "zero1", "zero3", "hsdp")
ON = ("abstract", "gpt", "moe")
"""The models on which a strategy that says more is asked about."""
BESIDE = ("statistics", "amax", "two_losses")
"""Models with more than parameters that a gradient of one loss moves."""

TABLES = {
    "a token mean": '[loss]\npreset = "token_mean"', "a sum": '[loss]\npreset = "sum"',
    "a mean over microbatches": '[loss]\nreference = "microbatch_mean"', "no clip": '[optimizer]\nclip = "none"',
    "skip on overflow": '[optimizer]\nskip = "overflow"',
    "a loss scale": '[optimizer]\nskip = "overflow"\n[loss]\nscale = "dynamic"',
    "an average at the optimizer": '[optimizer]\naverage = "optimizer"',
    "an average at the parameters": '[optimizer]\naverage = "parameters"', "muon": '[optimizer]\nname = "muon"',
    "adafactor": '[optimizer]\nname = "adafactor"', "lamb": '[optimizer]\nname = "lamb"',
    "padded rows": '[shards]\npad = "rows"', "padded elements": '[shards]\npad = "elements"',
    "a checkpoint by one rank": '[checkpoint]\nby = "one"', "by one replica": '[checkpoint]\nby = "replica"',
    "of parameters alone": '[checkpoint]\nholds = "parameters"',
    "frozen norms": '[groups.norms]\nmatch = "*norm*"\nfrozen = true', "adapters": '[adapters]\nmatch = "*"',
    "a router's losses": '[loss]\nterms = ["balance", "z"]', "a router's bias": '[optimizer]\nrouter_bias = true',
    "scales of 8 bits": '[optimizer]\nfp8_scales = ["*"]'}
"""What a strategy may say besides its placement: a name, and the tables of a file."""

MODELS = ("abstract", "gpt", "moe", "llama-3-70b", "mixtral-8x7b", "deepseek-v3")
TRUSTED = ("proofs/coq/kernel/Prelude.v", "proofs/coq/kernel/Machine.v", "proofs/coq/kernel/Meaning.v",
           *(f"placealg/prover/kernel/{name}.py" for name in (
               "program", "symbols", "network", "single", "fields", "loop_ends", "stages", "instructions", "tensors",
               "parameters", "printer", "terms", "checker")), "tests/coq/in_python.py")

NO_PROGRAM = "—"


def answer(strategy: str, model: str, tables: str = "") -> str:
    """What the kernel says of a strategy, with tables of its own, on a model: in a word or in why not."""
    chosen, on = parse_strategy_file(f'base = "{strategy}"\n{tables}').strategy, resolve_model(model)
    try:
        found = kernel(pa.derive(chosen, on))
    except InputError:
        return NO_PROGRAM
    return {True: "accepted", False: "not accepted", None: found.reason}[found.accepted]


def table() -> Iterator[str]:
    """The lines."""
    yield "| strategy | " + " | ".join(MODELS) + " |"
    yield "|---" * (len(MODELS) + 1) + "|"
    notes: list[str] = []
    for strategy in STRATEGIES:
        cells = []
        for model in MODELS:
            said = answer(strategy, model)
            if said in ("accepted", "not accepted", NO_PROGRAM):
                cells.append(said)
            else:
                if said not in notes:
                    notes.append(said)
                cells.append(f"({notes.index(said) + 1})")
        yield f"| `{strategy}` | " + " | ".join(cells) + " |"
    yield ""
    yield f"{NO_PROGRAM} the strategy has no program on this model  "
    for k, note in enumerate(notes):
        yield f"({k + 1}) {note}  "
    yield ""
    yield f"The same on {', '.join(ON[:-1])} and {ON[-1]}, where the strategy says more than its placement:"
    yield ""
    yield "| with | " + " | ".join(f"`{base}`" for base in BASES) + " |"
    yield "|---" * (len(BASES) + 1) + "|"
    for name, tables in TABLES.items():
        cells = ["; ".join(sorted({answer(base, model, tables) for model in ON} - {NO_PROGRAM}))
                 for base in BASES]
        yield f"| {name} | " + " | ".join(cells) + " |"
    yield ""
    yield "And on models in which a gradient of one loss is not all that moves parameters:"
    yield ""
    yield "| model | " + " | ".join(f"`{base}`" for base in BASES) + " |"
    yield "|---" * (len(BASES) + 1) + "|"
    for model in BESIDE:
        yield f"| {model} | " + " | ".join(answer(base, model) for base in BASES) + " |"
    yield ""
    yield "| to be trusted | lines |"
    yield "|---|---|"
    yield from trusted()


def trusted() -> Iterator[str]:
    """The lines about what has to be trusted."""
    for path in TRUSTED:
        yield f"| `{path}` | {len((ROOT / path).read_text(encoding='utf-8').splitlines())} |"


def page(text: str) -> str:
    """docs/proofs.md with the table as it is."""
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: BEGIN + "\n".join(table()) + "\n" + END, text,
                  flags=re.DOTALL)


def main() -> int:
    """Print or write it."""
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print("\n".join(table()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
