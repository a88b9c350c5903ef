"""Kernel against prover: every deletion, doubling, swap, axis, operator and counter change of the covered programs.

python tests/coq/kernel_mutants.py            prints the table, and what is wrong between the two (exit code 1)
python tests/coq/kernel_mutants.py --write    writes it into docs/proofs.md, between its marks

The kernel may accept nothing that the prover does not prove. What it rejects of what the prover proves is counted by
cause; a mutant for which no cause is known is wrong. A mutant outside of the kernel's language is counted, and no pass.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from counter_changes import counter_changes
from kernel_table import PAGE
from mutants import Kind, Mutant, axis_changes, deletions, doublings, of_every_sort, swaps
from operator_changes import operator_changes
from test_own_layouts import each_its_own, summed_first

import placealg as pa
from placealg.check.kernel import Kernel, kernel
from placealg.models.config import resolve_model
from placealg.models.model import Model
from placealg.prover.examine import examine
from placealg.prover.verdict import PROVED, REFUTED, overall
from placealg.step.edit import edit
from placealg.step.program import LOOPED, Step
from placealg.strategy.file import parse_strategy_file
from placealg.strategy.spec import Strategy

BEGIN, END = "<!-- kernel mutants: begin -->\n", "<!-- kernel mutants: end -->\n"
"""The marks between which the table stands."""

KINDS: dict[str, Kind] = {
    "deletions": deletions, "doublings": doublings, "axis_changes": axis_changes, "swaps": swaps,
    "operator_changes": operator_changes, "counter_changes": counter_changes}

STRATEGIES = (
    "dp", "zero1", "zero2", "zero3", "fsdp_no_reshard", "hsdp", "mics", "zeropp", "dp*offload_optimizer",
    "zero1*offload_optimizer", "zero3*offload_optimizer", "zero3*offload_parameters", "zero1*dp[more]",
    "zero3*zero1[more]", 'hsdp|[loss]\npreset = "token_mean"', 'zero1|[loss]\npreset = "sum"',
    'hsdp|[optimizer]\nskip = "overflow"', 'zero1|[optimizer]\nname = "muon"', 'hsdp|[optimizer]\nname = "lamb"',
    'hsdp|[checkpoint]\nby = "one"', 'zero1|[optimizer]\naverage = "optimizer"',
    'zero3|[optimizer]\naverage = "parameters"', 'hsdp|[optimizer]\nskip = "overflow"\n[loss]\nscale = "dynamic"',
    "zero1@statistics", 'zero3@statistics|[loss]\npreset = "token_mean"', "zero1@two_losses",
    'dp@two_losses|[loss]\npreset = "token_mean"', "zero1@amax",
    'hsdp|[loss]\ndivisor = "count"\ncount_axes = ["dp_shard"]',
    'zero2|[loss]\ndivisor = "count"\ncount_axes = ["dp"]\nassume = []\nreference = "microbatch_mean"',
    "dp, reduced in the last microbatch", "zero1*dp[q], with shards of each replica's own",
    "zero3*recompute_full@mlp", 'dp*recompute_full@mlp|[schedule]\nreplay = "early_stop"', "dp@gpt --flash",
    "dp*recompute_full@gpt", "zero1*pp@mlp", "zero3*pp_interleaved@gpt", 'pp_zb_h1@gpt|[optimizer]\nskip = "overflow"')
"""Names, some edited as behind a comma, some with another model behind an @, or tables of their own behind a bar."""

LAST = {"move": "reduce.layer.weight.grad_sum.reduce[dp]", "after": "backward.layer.weight.grad_sum.accumulate",
        "at": ["last"]}
EDITS: dict[str, Callable[[Step], Step]] = {
    "reduced in the last microbatch": lambda step: edit(step, **LAST),  # type: ignore[arg-type]
    "with shards of each replica's own": lambda step: each_its_own(summed_first(step))}
"""What a program is edited to be."""

TWICE = "a largest value, or a flag, is taken twice"
UNREAD = "an op reads what is not there, and nobody reads what it makes"
WHOLE = "what a rank has whole is gathered again, or updated everywhere"
NORM = "a norm is taken anew in each microbatch"
AGAIN = "a sum of gradients is reduced again in every microbatch, which leaves a mean as it is"


def strategy_of(text: str) -> Strategy:
    """A strategy of the catalogue, with its tables behind a bar."""
    named, _, tables = text.partition("|")
    return parse_strategy_file(f'base = "{named.partition("@")[0].partition(", ")[0]}"\n{tables}').strategy


def model_of(text: str) -> Model:
    """The model behind an @; else the abstract one."""
    named, flash, _ = (text.partition("|")[0].partition("@")[2] or "abstract").partition(" --flash")
    return resolve_model(named, flash=True if flash else None)


def program(text: str) -> Step:
    """Its program on its model."""
    step, edits = pa.derive(strategy_of(text), model_of(text)), text.partition("|")[0].partition(", ")[2]
    return EDITS[edits](step) if edits else step


def cause(mutant: Mutant) -> str:
    """Why the kernel may reject what the prover proves; "" where nothing is known that would excuse it."""
    events, reference = (*mutant.events, *mutant.instead), mutant.step.reference
    if any(e.value == "skip" or (e.group and reference.group(e.group).merge == "max") for e in events):
        return TWICE
    if any(e.verb == "norm" and e.phase in LOOPED for e in events):
        return NORM
    if all(e.on_tensor and e.verb == "compute" for e in events):
        return UNREAD
    if any(e.verb == "reduce" and e.value == "grad_sum" and e.phase in LOOPED for e in events):
        return AGAIN
    return WHOLE if any(e.verb in ("gather", "update") for e in mutant.instead) else ""


@dataclass(slots=True)
class Count:
    """What became of the mutants of one program."""

    outside: Counter[str] = field(default_factory=Counter)
    accepted: int = 0
    rejected: int = 0
    narrow: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def judged(self) -> int:
        """How many of them both have judged."""
        return self.accepted + self.rejected + self.narrow.total() + len(self.wrong)


def counted(strategy: str, mutants: Iterable[Mutant],
            ask: Callable[[Step], Kernel] = kernel) -> Count:
    """What the two say of the mutants of a strategy's program."""
    count = Count()
    for mutant in mutants:
        found = ask(mutant.step)
        if found.accepted is None:
            count.outside[re.sub(r"^[\w.]+(\[[\w,]+\])?(#\d+)?: ", "", found.reason)] += 1
            continue
        verdict, _ = overall(examine(mutant.step).verdicts)
        if found.accepted and verdict == PROVED:
            count.accepted += 1
        elif not found.accepted and verdict == REFUTED:
            count.rejected += 1
        elif not found.accepted and cause(mutant):
            count.narrow[cause(mutant)] += 1
        else:
            count.wrong.append(f"{strategy}: {mutant.story}: {'' if found.accepted else 'not '}accepted, but {verdict}")
    return count


def title(strategy: str) -> str:
    """A strategy's name in the table."""
    named, _, tables = strategy.partition("|")
    base, _, edits = named.partition(", ")
    with_ = f"{base}{f' with {tables}' * bool(tables)}".replace("\n", " ").replace("@", " on ")
    return f"`{with_}`{f', {edits}' * bool(edits)}"


def table(counts: dict[str, Count]) -> Iterator[str]:
    """The lines: a row a program, then the causes, then what is outside of the language."""
    yield "| program | changed programs | both accept | both reject | rejected, though proved | outside |"
    yield "|---|---|---|---|---|---|"
    for strategy, c in counts.items():
        yield (f"| {title(strategy)} | {c.judged + c.outside.total()} | "
               f"{c.accepted} | {c.rejected} | {c.narrow.total()} | {c.outside.total()} |")
    every = list(counts.values())
    yield (f"| all | {sum(c.judged + c.outside.total() for c in every)} | {sum(c.accepted for c in every)} | "
           f"{sum(c.rejected for c in every)} | {sum(c.narrow.total() for c in every)} | "
           f"{sum(c.outside.total() for c in every)} |")
    for heading, named in (("rejected, though proved, because", [c.narrow for c in every]),
                           ("outside of the language", [c.outside for c in every])):
        if not any(named):
            continue
        yield ""
        yield f"| {heading} | changed programs |"
        yield "|---|---|"
        for told, n in sum(named, Counter[str]()).most_common():
            yield f"| {told} | {n} |"
    wrong = sum(len(c.wrong) for c in every)
    yield ""
    yield f"Accepted, though not proved, or rejected for no known cause: {wrong or 'none'}."


def judged(strategy: str) -> Count:
    """What the two say of every mutant of a strategy's program."""
    step = program(strategy)
    return counted(strategy, (m for kind in KINDS.values() for m in changes(strategy, kind, step)))


def changes(strategy: str, kind: Kind, step: Step) -> Iterator[Mutant]:
    """The mutants of a kind; on gpt, which has some hundred ops, one of every sort."""
    return of_every_sort(kind, step) if "@gpt" in strategy else kind(step)


def main() -> int:
    """Print or write the table; 1 if the two differ where they may not."""
    counts = {}
    with ProcessPoolExecutor() as pool:
        for strategy, count in zip(STRATEGIES, pool.map(judged, STRATEGIES), strict=True):
            counts[strategy] = count
            print(f"{strategy!r}: {count.judged} judged", file=sys.stderr, flush=True)
    text = "\n".join(table(counts))
    if sys.argv[1:] == ["--write"]:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: f"{BEGIN}{text}\n{END}", page,
                               flags=re.DOTALL), encoding="utf-8")
    else:
        print(text)
    wrong = [w for c in counts.values() for w in c.wrong]
    print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
