"""Every pair and every triple of the catalogue on fresh axes: composed and proved, or refused by a named rule."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from itertools import combinations_with_replacement, islice

import pytest

from placealg.errors import InputError
from placealg.models.config import resolve_model
from placealg.prover.examine import examine
from placealg.prover.verdict import PROVED
from placealg.step.derive import derive
from placealg.step.program import Step
from placealg.strategy.catalogue import Entry, catalogue, standalone
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import overlay
from placealg.strategy.vocabulary import LOSSES, OPTIMIZERS

Combination = tuple[Entry, ...]

ENTRIES = tuple(catalogue().values())
PAIRS = tuple(combinations_with_replacement(ENTRIES, 2))
TRIPLES = tuple(combinations_with_replacement(ENTRIES, 3))

RULES = {
    "one pipeline": r"strategy '.+': \[dims\] \w+ and \w+ both name 'layer': a model has one pipeline; make it "
                    r"one axis",
    "one schedule": r"strategy '.+', column \d+: cannot compose .+ with .+: \[schedule\] \w+ is '\w+' on one side and "
                    r"'\w+' on the other",
    "a modifier once": r"strategy '.+', column \d+: cannot compose .+ with .+: \w+ is applied twice",
    "regions apart": r".+ on \w+: \[states\] activations: regions '\w+' and '\w+' have ops in common, and both are M; "
                     r"recompute one of them",
    "left of a modifier": r"strategy '.+', column \d+: modifier \w+ applies to what stands to its left, and "
                          r"nothing does",
}
"""Rule -> the line by which a composition is refused."""


def written(entries: Combination) -> str:
    """The composition, each entry on axes of its own."""
    return "*".join(f"{e.name}[{','.join(f'{axis}{k}' for axis in e.axes)}]" if e.axes else e.name
                    for k, e in enumerate(entries, 1))


def composed(entries: Combination) -> Step:
    strategy = standalone(parse_strategy(written(entries)))
    untied = any(e.name in ("ep", "pp_zb_v", "pp_dualpipe_v") for e in entries)
    return derive(strategy, resolve_model("moe" if untied else "gpt"))


def settle(combinations: Iterable[Combination]) -> tuple[set[str], dict[str, list[str]]]:
    """The compositions that have a program; and rule -> those that it forbids."""
    accepted: set[str] = set()
    refused: dict[str, list[str]] = {rule: [] for rule in RULES}
    for entries in combinations:
        text = written(entries)
        try:
            assert composed(entries).events
            accepted.add(text)
        except InputError as error:
            rules = [rule for rule, says in RULES.items() if re.fullmatch(says, str(error))]
            assert len(rules) == 1, (text, str(error))
            refused[rules[0]].append(text)
    return accepted, refused


def forbidden(entries: Sequence[Entry]) -> bool:
    """Whether the rules forbid a composition, said of the entries rather than of a strategy."""
    names = [e.name for e in entries]
    modifiers = [e.name for e in entries if e.kind == "modifier"]
    return (sum("layer" in dims for e in entries for dims in e.tables.get("dims", {}).values()) > 1
            or len(set(modifiers)) < len(modifiers) or {"recompute_full", "recompute_selective"} <= set(names)
            or entries[0].kind == "modifier")


def test_every_pair_composes_or_is_refused_by_a_rule() -> None:
    accepted, refused = settle(PAIRS)
    assert accepted == {written(pair) for pair in PAIRS if not forbidden(pair)}
    assert {rule for rule, found in refused.items() if found} == {"one pipeline", "one schedule", "left of a modifier"}


@pytest.mark.parametrize("part", [pytest.param(k, marks=[pytest.mark.slow] if k else []) for k in range(20)])
def test_every_triple_composes_or_is_refused_by_a_rule(part: int) -> None:
    mine = TRIPLES[part::20]
    accepted, refused = settle(mine)
    assert accepted == {written(triple) for triple in mine if not forbidden(triple)}
    assert sum(map(len, refused.values())) + len(accepted) == len(mine)


SAMPLE = ("zero3[dp1]*tp_sp[tp2]", "hsdp[dp_replicate1,dp_shard1]*ep[ep2]", "cp_ring[cp1]*pp_interleaved[pp2]",
          "tp_sp[tp1]*tp_sp[tp2]", "zero1[dp1]*recompute_full", "cp_ulysses[cp1]*ep[ep2]")
"""The pairs that are proved by default; the slow tier proves all."""

ACCEPTED = {written(pair): pair for pair in PAIRS if not forbidden(pair)}


@pytest.mark.parametrize("text", [pytest.param(t, marks=[] if t in SAMPLE else [pytest.mark.slow]) for t in ACCEPTED])
def test_every_accepted_pair_is_proved(text: str) -> None:
    found = examine(composed(ACCEPTED[text]))
    assert found.candidates == ()
    assert {v.verdict for v in found.verdicts} == {PROVED}


def test_the_sample_is_of_pairs() -> None:
    assert set(SAMPLE) <= set(ACCEPTED)


@pytest.mark.parametrize("number", [pytest.param(k, marks=[pytest.mark.slow] if k > 1 else []) for k in range(12)])
def test_compositions_with_random_options_are_proved(number: int) -> None:
    """Twenty of up to four entries, each optimizer, clip, skip and weighting, on models with and without ops."""
    draw, proved = random.Random(number), 0
    while proved < 20:
        text = "*".join(e.name for e in draw.sample(ENTRIES, draw.choice((1, 2, 3, 4))))
        tables = {"optimizer": {"name": draw.choice(tuple(OPTIMIZERS)), "clip": draw.choice(("global_norm", "none")),
                                "skip": draw.choice(("none", "none", "overflow"))},
                  "loss": {"preset": draw.choice(tuple(LOSSES))}}
        model = draw.choice(("abstract", "mlp", "gpt", "moe", "mla", "deepseek-v3"))
        try:
            step = derive(overlay(parse_strategy(text), tables), resolve_model(model))
        except InputError:
            continue
        assert {v.verdict for v in examine(step).verdicts} == {PROVED}, (text, model, tables)
        proved += 1


def test_an_axis_that_is_not_fresh_is_refused() -> None:
    for first, second in islice(((a, b) for a in ENTRIES for b in ENTRIES if set(a.axes) & set(b.axes)), 20):
        with pytest.raises(InputError, match=r"(axis|axes) .*"):
            parse_strategy(f"{first.name}*{second.name}")
