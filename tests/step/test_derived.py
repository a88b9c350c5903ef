"""Derived programs and the reasons they give, as a person reads them: any change shows in a file.

That the programs are right is proved and run elsewhere; here stands what no proof looks at, the bytes on the wire and
the words. `python tests/step/test_derived.py` writes the files anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path

import pytest
from random_dims import MODELS as DECODERS
from random_programs import two_units

from placealg.models.abstract import abstract, statistics, two_losses
from placealg.models.model import Model
from placealg.models.transformer import mlp, moe
from placealg.step.derive import derive
from placealg.step.event import Event
from placealg.step.program import Step
from placealg.strategy.file import parse_strategy_file

FOLDER = Path(__file__).resolve().parents[1] / "golden" / "derived"
MODELS: Mapping[str, Model] = {"abstract": abstract(), "moe": moe(), **DECODERS, "mlp": mlp(),
                              "statistics": statistics(), "losses": two_losses(), "units": two_units(tied=True)}
NVME = '[parameters]\ntier = "nvme"\n[optimizer]\ntier = "nvme"\n'
FFN = '[dims]\ntp = ["ffn", "vocab"]\n'
COUNTED = ('mesh = { cp = "symbolic" }\ndims = { cp = ["batch"] }\nstates = { gradients = { dp = "S", cp = "S" } }\n'
           'loss = { preset = "token_mean", count_axes = ["cp"], assume = ["equal_counts"] }\n')
LIVES = ('mesh = { cp = "symbolic" }\ndims = { cp = ["batch"] }\n'
         'states = { parameters = { dp = "S*", cp = "S*" }, optimizer = { dp = "S", cp = "S" } }\n')
PROGRAMS: Mapping[str, tuple[str, str]] = {
    "dp": ("dp", ""), "zero1": ("zero1", ""), "zero2": ("zero2", ""), "zero3": ("zero3", ""), "hsdp": ("hsdp", ""),
    "fsdp_no_reshard": ("fsdp_no_reshard", ""), "zeropp": ("zeropp", ""),
    "host": ("zero2*offload_optimizer", ""), "host_replicated": ("dp*offload_optimizer", ""),
    "parameters_on_host": ("zero3*offload_parameters", ""), "zero1_nvme": ("zero1", NVME), "hsdp_nvme": ("hsdp", NVME),
    "optimizer_on_nvme": ("zero1", '[optimizer]\ntier = "nvme"\n'), "muon": ("zero2", '[optimizer]\nname = "muon"\n'),
    "lamb": ("zero1", '[optimizer]\nname = "lamb"\n'), "tokens": ("zero3", '[loss]\npreset = "token_mean"\n'),
    "skip": ("zero2", '[optimizer]\nskip = "overflow"\nclip = "none"\n[schedule]\nmicrobatches = 1\n'),
    "gradients_not_kept": ("dp", '[states]\ngradients = { dp = "M" }\n[schedule]\nmicrobatches = 1\n'),
    "all_on_host": ("zero3*offload_parameters*offload_optimizer", ""),
    "skip_on_host": ("zero2*offload_optimizer", '[optimizer]\nskip = "overflow"\nname = "lamb"\n'),
    "only_gradients": ("dp", '[states]\ngradients = { dp = "S" }\n'),
    "only_gradients_muon": ("dp", '[states]\ngradients = { dp = "S" }\n[optimizer]\nname = "muon"\n'),
    "only_parameters": ("dp", '[states]\nparameters = { dp = "S*" }\n'),
    "only_parameters_on_host": ("dp*offload_parameters", '[states]\nparameters = { dp = "S*" }\n'),
    "idle_axis": ("zero1", '[mesh]\ntp = "symbolic"\n[dims]\ntp = []\n[states]\ngradients = { dp = "S", tp = "S" }\n'
                           'optimizer = { tp = "S" }\n'),
    "idle_axis_on_host": ("zero1*offload_optimizer", '[mesh]\ntp = "symbolic"\n[dims]\ntp = []\n'
                          '[states]\noptimizer = { tp = "S" }\n[optimizer]\nskip = "overflow"\nname = "lamb"\n'),
    "sharded_sequence_gpt": ("zero3*cp", '[states]\ngradients = { cp = "S" }\noptimizer = { cp = "S" }\n'),
    "shares_on_host_moe": ("zero2*ep*offload_optimizer", ""),
    "tp_mlp": ("tp", FFN), "ep_moe": ("ep", ""), "pipeline_mlp": ("hsdp*pp", ""),
    "tp_gpt": ("zero3*tp", ""), "sequence_gpt": ("tp_sp*recompute_selective", ""), "ring_gpt": ("cp_ring", ""),
    "again_gpt": ("tp_sp*recompute_full", ""), "ulysses_llama": ("cp_ulysses", ""),
    "partly_counted": ("zero2", COUNTED),
    "dp_statistics": ("dp", ""), "tokens_statistics": ("zero3", '[loss]\npreset = "token_mean"\n'),
    "all_tokens_statistics": ("dp", '[loss]\npreset = "token_mean"\ncount_axes = ["dp", "microbatch"]\n'),
    "dp_losses": ("dp", ""), "tokens_losses": ("zero3", '[loss]\npreset = "token_mean"\n'),
    "partly_counted_losses": ("zero2", COUNTED),
    "lives_on_host_units": ("zero1*offload_parameters",
                            LIVES + 'schedule = { lifetime = { dp = "use", cp = "step" } }\n'),
    "lives_units": ("zero1", LIVES + 'schedule = { lifetime = { dp = "use", cp = "microbatch" } }\n'),
    "stages_gpt": ("zero3*pp", '[schedule]\nlifetime = { dp = "microbatch" }\n'),
    "each_use_gpt": ("dp*tp_sp_keep", '[schedule]\nsharing = "per_use"\n'),
}
"""Name -> (strategy, tables); a name ends in its model where that is not the abstract one."""

PLAIN = {f.name: f.default for f in fields(Event)} | {"value": ""}


def step_of(name: str) -> Step:
    text, tables = PROGRAMS[name]
    model = name.rpartition("_")[2]
    return derive(parse_strategy_file(f'base = "{text}"\n{tables}').strategy, MODELS.get(model, MODELS["abstract"]))


def told(step: Step) -> Iterator[str]:
    """A line for each event, with the rule's name; then every reason, once."""
    for event in step.events:
        shown = {"group": event.group, "unit": event.unit} | {n: getattr(event, n) for n in PLAIN if n not in (
            "phase", "verb", "value", "axes", "copy", "rule", "line", "group", "unit")}
        shown |= {"value": event.value} if event.verb in ("norm", "update", "clip") else {}
        said = ", ".join(f"{n} {v}" for n, v in shown.items() if v != PLAIN[n])
        yield " ; ".join(part for part in (event.path, said, event.rule.name) if part)
    yield from dict.fromkeys(f"{e.rule.name}: {e.rule.why}" for e in step.events)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_derived_program_reads_as_it_did(name: str) -> None:
    assert [*told(step_of(name))] == (FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for program in PROGRAMS:
        (FOLDER / f"{program}.txt").write_text("\n".join(told(step_of(program))) + "\n", encoding="utf-8")
