"""Every single-event mutant of every strategy, through both engines: REFUTED iff the simulator differs."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from agreement import compare
from mutants import KINDS, Kind, Mutant, axis_changes, deletions, doublings, of_every_sort, swaps
from predicting import small
from random_dims import judged

from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.abstract import abstract
from placealg.models.backward import backward
from placealg.models.model import Model
from placealg.models.transformer import GPT, Style, gpt, mla, mlp, moe
from placealg.prover.verdict import PROVED, REFUTED
from placealg.step.derive import derive
from placealg.step.program import Event, Step
from placealg.strategy import catalogue as cat
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import parse_strategy_file

STRATEGIES = {name: f'base = "{name}"\n' for name in (
    "dp", "zero1", "zero2", "zero3", "fsdp_no_reshard", "hsdp", "zero2*offload_optimizer", "zero1*offload_optimizer",
    "mics", "zeropp", "zero3*offload_parameters")}
STRATEGIES["zero3, token mean"] = 'base = "zero3"\n[loss]\npreset = "token_mean"\n'
STRATEGIES["zero2, declared otherwise"] = (
    'base = "zero2"\n[schedule]\nreduction = { dp = "all_reduce" }\nmicrobatch_mean = "gradients"\n'
    '[optimizer]\nnorm = "split_axes"\n')
STRATEGIES["hsdp, summed"] = 'base = "hsdp"\n[loss]\npreset = "sum"\n[optimizer]\nnorm = "split_axes"\n'
STRATEGIES["zero3, muon"] = 'base = "zero3"\n[optimizer]\nname = "muon"\n'

HARMLESS_DELETIONS = ("free", "slice")
"""The only verbs of a derived program that may go without changing a number: they give memory back, or keep a rank
from working for others too."""

OP_LEVEL: Mapping[str, Callable[[], Model]] = {
    **dict.fromkeys(("tp", "tp_sp", "tp_sp_keep", "cp", "cp_ulysses", "cp_ring", "tp*recompute_full"),
                    lambda: gpt(Style(flash=True))),
    "tp_sp*recompute_selective": gpt,
    **dict.fromkeys(("pp_gpipe", "pp_1f1b", "pp_interleaved", "pp_zb_h1", "pp_zb_h2",
                    "pp_interleaved_zb", "pp_zb_v", "pp_dualpipe_v"), mlp),
    "ep": moe, "dp*offload_activations": mlp, "tp_sp*recompute_selective*offload_activations": gpt,
    "zero1*pp": mlp, "zero3*pp": mlp, "hsdp*pp_interleaved": mlp,
    "zero1*tp": mla, "zero1*ep": moe, "dp*cp_ring": lambda: gpt(Style(flash=True)),
    "zero3*tp_sp": lambda: gpt(Style(flash=True)), "cp_ring*pp": lambda: gpt(Style(flash=True)),
    "zero2*tp_sp*pp_zb_h1": lambda: gpt(Style(flash=True)), "zero3*tp*pp_zb_h2*recompute_full": gpt,
    "zero3*tp*pp_zb_v": lambda: gpt(replace(GPT, tied=False)), "zero2*pp_dualpipe_v*recompute_full": mlp,
    "zero1*pp, ends alone": gpt, "tp_sp*pp_zb_v, ends alone": lambda: gpt(replace(GPT, tied=False)),
    **dict.fromkeys(("zero1*pp, prediction alone", "zero3*pp_zb_h1, prediction alone",
                     "pp_interleaved, prediction alone"), small),
    "zero3*tp_sp*pp": mla, "zero3*tp_sp*pp*cp_ring*ep": moe,
}
"""Strategies whose programs run op by op: those of the catalogue, and compositions -> the model they run on."""

LEFT_OPEN: Mapping[str, str] = {
    "microbatches overlap in a pipeline, and each changes":
        "without a free every microbatch leaves a copy behind that was not there when it began: the same copy, which"
        " the prover, who follows one microbatch at a time, does not see",
    "the weights runs behind later backwards for inputs, and each of these changes weight":
        "a gather over one axis more than its free gives back: backwards for inputs leave a copy of the same values"
        " behind, which the rule for split backwards, unlike that for whole ones, does not compare with what was there",
    "the counterexample does not replay: reads a":
        "an axis of the pipeline beside the event's own: parameters live on one stage alone, so that the simulator has"
        " nobody else to send to, but the prover lets any rank be asked",
    "among stages of":
        "a collective along the axis of the pipeline inside the loop over microbatches: stages run it at different"
        " times, and no rule says what it does there, not even where it does nothing",
    "makes layer.mlp.down after it was redistributed":
        "what a layer computes again last, and no backward reads: redistributed before it is made it would be wrong if"
        " anybody read it",
    **dict.fromkeys(("passes nothing from one instance of entry", "passes nothing from one instance of exit",
                     "passes nothing from one instance of mtp1"),
        "what crosses to a part that has a stage alone comes by message: what hands it over on one stage does nothing,"
        " and is followed as if it might"),
    "is not followed where layer has few instances, the first unlike others":
        "a first layer that works on more rows than the others, along a pipeline, where two layers are followed at"
        " least: the only layer of a model would be handed something else, and is not followed, though it is right",
}
"""False alarms: why a mutant that no run tells from the single device stays UNDECIDED -> what lies behind it."""

MUTANTS = os.environ.get("PLACEALG_MUTANTS", "all")
"""In the slow tier: `all` mutants, one of each of the `sorts`, or a `few` of these."""

PARTS = 4
"""The mutants of one kind of one program are tried in so many tests, so that a run that was ended goes on nearby."""

FEW = 8
"""Of so many sorts one is tried where a few are asked for, another one for each strategy."""


ALONE: Mapping[str, tuple[str, ...]] = {"ends alone": ("first", "last"), "prediction alone": ("prediction", "last")}
"""What may stand behind a strategy -> the parts of the model whose stages have no layer then."""


def step_of(name: str) -> Step:
    """The derived program, on stages of which some have no layer where the name says so."""
    expression, _, alone = name.partition(", ")
    strategy = parse_strategy(expression)
    if alone:
        schedule = strategy.tables.get("schedule", FrozenMap[str, Any]()).plus({"alone": ALONE[alone]})
        strategy = replace(strategy, tables=strategy.tables.plus({"schedule": schedule}))
    return derive(strategy, OP_LEVEL[name]())


def wrong(mutants: Iterable[Mutant]) -> Iterator[str]:
    """Where the engines disagree: a miss, or a false alarm that LEFT_OPEN does not explain.

    A mutant that is no program, and is turned away as such, is neither.
    """
    for mutant in mutants:
        try:
            verdict, complaint = judged(mutant.step)
        except InputError:
            continue
        explained = verdict != PROVED and "; no run differs" in complaint and any(why in complaint for why in LEFT_OPEN)
        if complaint and not explained:
            yield f"{mutant.story}: {complaint}"
        if verdict == PROVED and mutant.instead == () and not harmless(mutant):
            yield f"{mutant.story}: PROVED, though it is not harmless"


def harmless(mutant: Mutant) -> bool:
    """Whether a deletion may go unnoticed.

    Of what gives memory back, or computes again what is still there, or keeps a random stream that nobody draws from,
    or gathers for the backward of a unit those of its parameters that no backward reads.
    """
    graph = mutant.step.reference.graph
    drawn = mutant.step.reference.whole or any(op.draws for op in graph.ops)
    return all(e.verb in HARMLESS_DELETIONS or e.rule.name == "recompute" or (e.value == "rng" and not drawn)
               or unread(mutant.step, e) for e in mutant.events)


def unread(step: Step, event: Event) -> bool:
    """Whether an event gathers parameters for backward that no backward reads, such as a bias."""
    graph, group = step.reference.graph, event.group
    if step.reference.whole or event.verb != "gather" or event.phase != "backward":
        return False
    read = {name for op in backward(graph) for name in op.reads}
    return read.isdisjoint(step.reference.group(group).parameters)


@pytest.mark.some(5)
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_deletion_is_refuted_iff_the_simulator_differs(name: str) -> None:
    step = derive(parse_strategy_file(STRATEGIES[name]).strategy, abstract())
    for mutant in deletions(step):
        found = compare(mutant.step)
        assert not found.complaint, f"{mutant.story}: {found.complaint}"
        assert (found.report.verdict == REFUTED) != harmless(mutant), mutant.story


@pytest.mark.slow
@pytest.mark.parametrize("kind", [doublings, axis_changes, swaps])
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_other_mutant_is_refuted_iff_the_simulator_differs(name: str, kind: Kind) -> None:
    step = derive(parse_strategy_file(STRATEGIES[name]).strategy, abstract())
    mutants = itertools.islice(kind(step), 0, None, FEW if MUTANTS == "few" else 1)
    complaints = [f"{x.story}: {c}" for x in mutants if (c := compare(x.step).complaint)]
    assert not complaints, "\n".join(complaints)


def test_a_few_of_every_kind_of_mutant() -> None:
    step = derive(parse_strategy("hsdp"), abstract())
    for kind in (doublings, axis_changes, swaps):
        for mutant in itertools.islice(kind(step), 3, None, 9):
            assert not (complaint := compare(mutant.step).complaint), f"{mutant.story}: {complaint}"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OP_LEVEL)
def test_every_mutant_of_ops_is_refuted_iff_a_run_differs(name: str, kind: str, part: int) -> None:
    step = step_of(name)
    mutants = list(KINDS[kind](step) if MUTANTS == "all" else of_every_sort(KINDS[kind], step))
    chosen = mutants[list(OP_LEVEL).index(name) % FEW::FEW] if MUTANTS == "few" else mutants
    assert not list(wrong(chosen[part::PARTS]))


@pytest.mark.some(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "each"), [("zero1*pp", 6), ("dp*cp_ring", 30), ("ep", 25), ("zero1*tp", 45)])
def test_a_few_sorts_of_mutants_of_ops(name: str, each: int, kind: str) -> None:
    mutants = of_every_sort(KINDS[kind], step_of(name))
    assert not list(wrong(itertools.islice(mutants, 1, None, each)))


def test_every_strategy_of_the_catalogue_has_its_mutants() -> None:
    tried = [*STRATEGIES, *OP_LEVEL]
    assert [n for n in cat.catalogue() if not any(
        n in name.partition(", ")[0].split("*") for name in tried)] == []
    assert sum("*" in name for name in tried) >= 10


def test_a_disagreement_is_seen() -> None:
    """A deletion that deletes nothing is proved, as no deletion of a reduction may be."""
    step = step_of("zero1*pp")
    event = next(e for e in step.events if e.verb == "reduce")
    assert list(wrong([Mutant("nothing at all", step, (event,), ())]))
    assert not list(wrong([Mutant("nothing at all", step, (event,), (event,))]))


def test_a_bias_is_gathered_for_backward_and_not_read_there() -> None:
    step = step_of("zero3*tp_sp")
    gathers = [e for e in step.events if e.verb == "gather" and e.phase == "backward"]
    idle = {name: unread(step, e) for e in gathers for name in step.reference.group(e.group).parameters}
    assert {name for name, unneeded in idle.items() if unneeded} == {
        "layer.norm1.bias", "layer.attn.out.bias", "layer.norm2.bias", "layer.mlp.down.bias",
        "embedding.position.weight"}
    assert {"layer.norm1.weight", "layer.mlp.down.weight"} < idle.keys()
    assert not any(unread(step, e) for e in step.events if e not in gathers)
    dropped = [m for m in deletions(step) if any(unread(step, e) for e in m.events)]
    assert len(dropped) == 5 and not list(wrong(dropped[:1]))
