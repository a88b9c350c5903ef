"""From obligations to verdicts: what can happen, at which sizes it is shown, and what is said of a whole step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import pytest
import z3
from test_mutation import step_of

from placealg.arith import ONE, Monomial
from placealg.frozen import FrozenMap
from placealg.mesh import Axis, Mesh
from placealg.progress import listening
from placealg.prover import examine as prover
from placealg.prover.calculus.contribution import Term, Value
from placealg.prover.calculus.machine import Site, Updated
from placealg.prover.calculus.microbatches import CASES, Case
from placealg.prover.calculus.places import NoRule
from placealg.prover.evidence import lemmas
from placealg.prover.evidence.parts import Part, parts
from placealg.prover.evidence.premises import premises
from placealg.prover.evidence.solver import RESOURCE_LIMIT, SAT, UNKNOWN, Reply, text_of, versions, z3_answer
from placealg.prover.examine import (
    PER_GROUP,
    Candidate,
    Findings,
    examine,
    hypotheses,
    in_case,
    layouts,
    of_ops,
)
from placealg.prover.obligations import Failure, Obligations
from placealg.prover.ops.findings import Demand, FailureKind
from placealg.prover.ops.flow import Flows
from placealg.prover.ops.op_obligations import WHOLE
from placealg.prover.schedule import Fact
from placealg.prover.verdict import (
    BOUNDED,
    OBLIGATIONS,
    PARAMETRIC,
    PROVED,
    REFUTED,
    UNDECIDED,
    Conclusion,
    Decided,
    Verdict,
)
from placealg.step.edit import edit
from placealg.step.event import Clause, Event
from placealg.step.lower import lowered
from placealg.step.program import Group, Step

DP, ZERO1, HSDP = step_of("dp", "abstract"), step_of("zero1", "abstract"), step_of("hsdp", "abstract")
STAGED, FFN = step_of("zero1*pp", "mlp"), step_of("ffn", "mlp")
LAYER = DP.reference.group("layer.weight")
NO_REDUCE = edit(DP, drop="reduce.*.grad_sum.reduce[dp]")
ON_HOST = Step(DP.reference, tuple(replace(e, tier="host") if e.path == "forward.layer.compute" else e
                                   for e in DP.events))
RANKS, M = z3.Int("dp"), z3.Int("m")
YES, NO = z3.BoolVal(True), z3.BoolVal(False)


def solved(step: Step, assertions: Iterable[Any]) -> Reply:
    """The solver's answer, without the process around it."""
    listed = list(assertions)
    return z3_answer(text_of([*premises(step, listed), *listed]), RESOURCE_LIMIT)


@contextmanager
def clock(*ticks: float) -> Iterator[None]:
    """Time as it is given."""
    with patch.object(prover, "time", SimpleNamespace(perf_counter=iter(ticks).__next__)):
        yield


def verdict(identifier: str, group: str = "", ended: Conclusion = PROVED, cls: str | None = PARAMETRIC,
            instances: int = 1, seconds: float | None = None, reason: str = "", event: str = "",
            **decided: int) -> Verdict:
    return Verdict(identifier, group, OBLIGATIONS[identifier], ended, cls, instances, seconds, reason, event,
                   Decided(**decided))


def candidate(group: Group = LAYER, event: str = "update.layer.weight.update", identifier: str = "gradient",
              seconds: float | None = 0.5) -> Candidate:
    failure = Failure(identifier, event, YES, "is wrong")
    shown = verdict(identifier, group.name, REFUTED, BOUNDED, 3, seconds, "is wrong", event)
    return Candidate(shown, group, failure, {"dp": 2, "m": 1})


# whole steps

def checked(groups: Sequence[str], staged: bool = False) -> list[tuple[str, str]]:
    """(identifier, group) of all verdicts, in the order of a report."""
    whole = ["partition", "vacuity", "forward", "random", *(["schedule"] if staged else [])]
    each = [i for i in OBLIGATIONS if i not in ("partition", "vacuity", "forward")]
    return [(i, group) for i in OBLIGATIONS for group in ("", *groups) if i in (each if group else whole)]


@pytest.mark.parametrize("step", [DP, step_of("zero3", "units"), STAGED, FFN], ids=repr)
def test_a_derived_step_is_proved_whole_and_group_by_group(step: Step) -> None:
    found = examine(step)
    staged = bool(step.reference.pipeline.axis)
    assert [(v.id, v.group) for v in found.verdicts] == checked([g.name for g in step.reference.groups], staged)
    assert {(v.verdict, v.cls, v.event) for v in found.verdicts} == {(PROVED, PARAMETRIC, "")}
    assert all(v.statement == OBLIGATIONS[v.id] and v.seconds is not None for v in found.verdicts)
    assert found.candidates == () and found.hypotheses == hypotheses(step)
    assert found.lemmas == lemmas.proved_lemmas(lemmas.used(step)) and found.versions == versions()
    for v in found.verdicts:
        assert v.reason == ("owner functions are total" if v.id == "partition" else
                            f"no event of {v.group or 'the ops'} has anything to check"
                            if v.id in ("random", "schedule") and not v.instances else "")


def test_a_wrong_gradient_is_a_candidate_with_its_verdict() -> None:
    found = examine(NO_REDUCE)
    refuted = [v for v in found.verdicts if v.verdict != PROVED]
    assert [c.verdict for c in found.candidates] == refuted and [v.id for v in refuted] == ["gradient", "normalizer"]
    for c in found.candidates:
        assert (c.verdict.cls, c.verdict.event, c.verdict.reason) == (BOUNDED, c.failure.event, c.failure.says)
        assert c.group == LAYER and c.failure.event == "update.layer.weight.update"
        assert c.verdict.instances > 1 and c.verdict.seconds is not None and c.verdict.seconds > 0
        assert c.model["dp"] == 2 and c.model["m"] <= 3 and all({*CASES} == {*part.updates} for part in c.parts)


def test_what_no_rule_covers_is_open_and_supposed_wrong() -> None:
    found = examine(ON_HOST)
    why = "forward.layer.compute: no transfer rule for compute of activation on tier host"
    one, = found.candidates
    assert one.group == WHOLE and one.verdict == verdict(
        "invariant", "", REFUTED, BOUNDED, 1, 0.0,
        f"cannot be followed, only run: {why.partition(': ')[2]}", "forward.layer.compute", solver=1)
    assert one.model == {"dp": 2, "m": 2} and one.parts == () and z3.is_true(one.failure.formula)
    open_ones = [v for v in found.verdicts if v.group]
    assert open_ones == [verdict(i, "layer.weight", UNDECIDED, None, 0, 0.0, why, "forward.layer.compute")
                         for i in OBLIGATIONS if i in PER_GROUP]
    assert [v.id for v in found.verdicts if v.verdict == PROVED] == ["partition", "vacuity"]
    assert one.verdict in found.verdicts


def test_layouts_that_disagree_are_named_beside_what_they_break() -> None:
    found = examine(edit(ZERO1, set="publish.*", layout="other"))
    broken, clash = found.candidates
    assert (broken.verdict.id, clash.verdict.id) == ("invariant", "partition")
    assert [v for v in found.verdicts if v.verdict == REFUTED] == [clash.verdict, broken.verdict]
    assert clash.verdict == verdict("partition", "layer.weight", REFUTED, BOUNDED, 2, None,
                                    "layouts other and own disagree where they meet", broken.failure.event, solver=2)
    assert replace(clash, verdict=broken.verdict) == broken


# how the parts make a whole

A, B, C = (Group(name, "layer", ("layer",), (name,), (ONE,)) for name in "abc")
VACUOUS, LEMMA = verdict("vacuity"), ("a lemma: what it says",)


class Parts:
    """Stand-ins for the parts of a proof: each group has a kind, and a kind has its verdicts and candidates."""

    def __init__(self, step: Step, kinds: Mapping[str, str], found: Mapping[str, Sequence[Verdict]],
                 maybe: Mapping[str, Sequence[Candidate]] | None = None) -> None:
        self.step = replace(step, reference=replace(step.reference, groups=(A, B, C)))
        self.kinds, self.found, self.maybe = kinds, found, maybe or {}
        self.examined: list[str] = []
        self.suppose, self.disagreement = Mock(return_value=[]), Mock(return_value=None)
        self.lemmas = Mock(return_value=(LEMMA, ""))

    def paths(self, step: Step, group: Group, flows: Flows) -> dict[Site, Site]:
        self.same(step, flows)
        return {Site(group.name): Site(group.name), Site(f"more of {group.name}"): Site(group.name)}

    def same(self, step: Step, flows: Flows) -> None:
        assert step == lowered(self.step) and flows.step is step

    def kind(self, step: Step, group: Group, sites: tuple[Site, ...], flows: Flows) -> str:
        self.same(step, flows)
        assert sites == (Site(group.name),)
        if self.kinds[group.name] == "gap":
            raise NoRule("forward.layer.compute", f"no rule for {group.name}")
        return self.kinds[group.name]

    def examine_group(self, step: Step, group: Group, paths: Mapping[Site, Site],
                      flows: Flows) -> tuple[list[Verdict], list[Candidate]]:
        self.kind(step, group, tuple(dict.fromkeys(paths.values())), flows)
        self.examined.append(group.name)
        found = [replace(v, group=group.name) for v in self.found.get(self.kinds[group.name], ())]
        return found, list(self.maybe.get(group.name, ()))

    def network(self, step: Step, flows: Flows, before: list[Verdict]) -> tuple[list[Verdict], list[Candidate]]:
        self.same(step, flows)
        return [*before, verdict("forward")], list(self.maybe.get("", ()))

    def findings(self) -> Findings:
        with patch.multiple(prover, paths_of=self.paths, signature=self.kind, _examine_group=self.examine_group,
                            _examine_network=self.network, _suppose=self.suppose, _disagreement=self.disagreement,
                            _lemmas=self.lemmas, vacuity=Mock(return_value=VACUOUS)):
            return examine(self.step)


RIGHT = (verdict("gradient", seconds=1.5), verdict("view", seconds=2.5, reason="nothing to see"))


def of(found: Findings, group: str) -> list[Verdict]:
    return [v for v in found.verdicts if v.group == group]


@pytest.mark.parametrize("step", [DP, FFN], ids=repr)
def test_groups_treated_alike_are_proved_once(step: Step) -> None:
    parts = Parts(step, {"a": "one", "b": "other", "c": "one"}, {"one": RIGHT, "other": RIGHT[:1]})
    found = parts.findings()
    assert parts.examined == ["a", "b"]
    assert of(found, "a") == [replace(v, group="a") for v in RIGHT]
    assert of(found, "b") == [replace(RIGHT[0], group="b")]
    assert of(found, "c") == [replace(RIGHT[0], group="c", seconds=0.0, reason="as a"),
                              replace(RIGHT[1], group="c", seconds=0.0)]
    assert [v.id for v in of(found, "")] == ["partition", "forward", "vacuity"]
    assert [v.id for v in found.verdicts] == sorted((v.id for v in found.verdicts), key=list(OBLIGATIONS).index)
    assert (found.lemmas, found.candidates) == (LEMMA, ())


def test_several_groups_in_a_row_are_as_the_first() -> None:
    parts = Parts(DP, {"a": "one", "b": "one", "c": "one"}, {"one": RIGHT})
    found = parts.findings()
    assert parts.examined == ["a"]
    assert {v.reason for v in of(found, "c")} == {"as a", "nothing to see"} and len(of(found, "b")) == 2


def test_what_is_being_proved_is_announced() -> None:
    for step in (DP, FFN):
        heard: list[str] = []
        with listening(heard.append):
            Parts(step, {"a": "one", "b": "gap", "c": "other"}, {}).findings()
        assert heard == ["proving the lemmas", "proving forward, op by op", "proving what concerns a",
                         "proving what concerns c"]


def test_a_group_that_may_be_wrong_speaks_for_no_other() -> None:
    wrong, other = candidate(A), candidate(B)
    parts = Parts(FFN, {"a": "one", "b": "one", "c": "one"}, {"one": RIGHT},
                  {"a": [wrong], "b": [other], "": [candidate(WHOLE)]})
    found = parts.findings()
    assert parts.examined == ["a", "b", "c"] and found.candidates == (candidate(WHOLE), wrong, other)
    parts.suppose.assert_not_called()


def test_a_group_that_no_rule_covers_is_open_and_the_next_is_not() -> None:
    for step in (DP, FFN):
        parts = Parts(step, {"a": "one", "b": "gap", "c": "other"}, {"one": RIGHT, "other": RIGHT})
        found = parts.findings()
        assert parts.examined == ["a", "c"] and len(of(found, "a")) == len(of(found, "c")) == 2
        assert of(found, "b") == [verdict(i, "b", UNDECIDED, None, 0, 0.0, "forward.layer.compute: no rule for b",
                                          "forward.layer.compute")
                                  for i in OBLIGATIONS if i in PER_GROUP]


def test_what_is_supposed_stands_among_the_rest() -> None:
    parts = Parts(FFN, {"a": "one", "b": "other", "c": "one"}, {"one": RIGHT})
    parts.suppose.side_effect = lambda step, flows, verdicts: parts.same(step, flows) or [
        candidate(WHOLE, "forward.layer.compute", "init")] * ([v.id for v in verdicts] == [
            "vacuity", "forward", "gradient", "view", "gradient", "view"])
    found = parts.findings()
    one, = found.candidates
    assert one.verdict.id == "init" and found.verdicts[-2:] == (one.verdict, VACUOUS)
    parts.disagreement.assert_called_once_with(parts.step, [one])


def test_a_clash_of_layouts_takes_the_place_of_the_partition() -> None:
    parts = Parts(DP, {"a": "one", "b": "one", "c": "one"}, {"one": RIGHT}, {"a": [candidate(A)]})
    clash = candidate(A, identifier="partition")
    parts.disagreement.return_value = clash
    found = parts.findings()
    assert found.candidates == (candidate(A), clash)
    assert [v for v in found.verdicts if v.id == "partition"] == [clash.verdict]


def test_nothing_is_proved_on_a_lemma_that_is_not() -> None:
    ended = (verdict("gradient", "", REFUTED, BOUNDED, reason="wrong"),
             verdict("view", "", UNDECIDED, None, reason="?"), verdict("init", seconds=1.0))
    parts = Parts(DP, {"a": "one", "b": "one", "c": "one"}, {"one": ended})
    parts.lemmas.return_value = (), "lemma ring is not proved: gave up"
    found = parts.findings()
    parts.lemmas.assert_called_once_with(lowered(parts.step))
    assert of(found, "a") == [*(replace(v, group="a") for v in ended[:2]),
                              verdict("init", "a", UNDECIDED, None, 1, 1.0, "lemma ring is not proved: gave up")]
    assert {(v.verdict, v.reason) for v in of(found, "")} == {(UNDECIDED, "lemma ring is not proved: gave up")}
    assert found.lemmas == ()


def test_the_lemmas_are_those_that_a_program_uses() -> None:
    ring = step_of("ffn, ring", "mlp")
    for step, said in ((DP, 2), (ring, 3)):
        names, gap = prover._lemmas(step)
        assert names == lemmas.proved_lemmas(lemmas.used(step)) and len(names) == said and gap == ""
    with patch.object(lemmas, "proved_lemmas", Mock(side_effect=lemmas.Unproved("lemma ring is not proved: unknown"))):
        assert prover._lemmas(ring) == ((), "lemma ring is not proved: unknown")


# the hypotheses, in words

EQUAL = "equal_counts over {dp, microbatch}"
INDEPENDENT = "units_independent: the model outside the parameters is computed alike on every device"
NONZERO = "nonzero_divisors: a token count by which something is divided is not zero there"
MEANS = "microbatch_mean: the loss of the single device is the mean of its microbatches' means"
NEVER = "never_resumed: the program has no resume phase, so a resumed run is not covered"


def program(step: Step, *events: Event, **fields: Any) -> Step:
    """A step of which the reference and the program are given, and that can be resumed."""
    return Step(replace(step.reference, **fields), (*events, Event("resume", "load", "step")))


SUMMED = Event("prepare", "all_reduce", "count", axes=("dp",))


def divided(by: str, phase: str = "update") -> Event:
    return Event(phase, "scale", "loss", divisor=Monomial.parse(by))


def counting(phase: str, loss: str = "") -> Event:
    return Event(phase, "compute", "count", unit=loss)


@pytest.mark.parametrize(("step", "said"), [
    (DP, (EQUAL, INDEPENDENT)),
    (STAGED, (EQUAL,)),
    (program(FFN), ("equal_counts over {microbatch}",)),
    (program(FFN, microbatches=1), ("microbatches = 1",)),
    (program(HSDP), ("equal_counts over {dp_replicate, dp_shard, microbatch}", INDEPENDENT)),
    (program(STAGED, hypotheses=()), ()),
    (program(STAGED, weighting="microbatch_mean"), (EQUAL,)),
    (program(STAGED, weighting="microbatch_mean", hypotheses=()), (MEANS,)),
    (program(STAGED, weighting="microbatch_mean", hypotheses=(), microbatches=1), ("microbatches = 1",)),
    (program(STAGED, hypotheses=("another",)), ()),
    (program(STAGED, divided("tokens")), (EQUAL,)),
    (program(STAGED, counting("forward"), divided("count")), (EQUAL,)),
    (program(STAGED, divided("tokens"), hypotheses=()), (NONZERO,)),
    (program(STAGED, counting("forward"), divided("m*tokens"), hypotheses=()), (NONZERO,)),
    (program(STAGED, divided("m", "forward"), divided("m*count"), hypotheses=()), ()),
    (program(STAGED, divided("m"), hypotheses=()), ()),
    (program(STAGED, counting("forward"), hypotheses=()), ()),
    (program(STAGED, counting("forward"), divided("m"), hypotheses=()), ()),
    (program(STAGED, counting("forward"), divided("m*count"), hypotheses=()), (NONZERO,)),
    (program(STAGED, counting("backward"), divided("count"), hypotheses=()), (NONZERO,)),
    (program(STAGED, counting("prepare"), divided("count"), hypotheses=()), (NONZERO,)),
    (program(STAGED, counting("prepare"), SUMMED, divided("count"), hypotheses=()), ()),
    (program(STAGED, counting("forward"), replace(SUMMED, phase="reduce"), divided("count"), hypotheses=()),
     (NONZERO,)),
    (program(STAGED, counting("prepare", "one"), replace(SUMMED, unit="one"), counting("prepare", "two"),
             replace(divided("count"), unit="one"), hypotheses=()), ()),
    (program(STAGED, counting("prepare", "one"), replace(SUMMED, unit="one"), counting("prepare", "two"),
             replace(divided("count"), unit="two"), hypotheses=()), (NONZERO,)),
    (program(STAGED, counting("prepare"), divided("count", "prepare"), SUMMED, hypotheses=()), (NONZERO,)),
    (program(STAGED, divided("count", "forward"), counting("forward"), hypotheses=()), (NONZERO,)),
    (program(STAGED, divided("m", "prepare"), divided("count", "forward"), counting("forward"), hypotheses=()),
     (NONZERO,)),
    (program(STAGED, divided("count", "prepare"), counting("prepare"), hypotheses=()), ()),
    (program(STAGED, counting("prepare"), replace(SUMMED, axes=("pp",)), divided("count"), hypotheses=()), (NONZERO,)),
    (program(STAGED, counting("prepare"), replace(SUMMED, at="last"), divided("count"), hypotheses=()), (NONZERO,)),
    (program(STAGED, counting("prepare"), replace(SUMMED, where=(Clause("dp", 0),)), divided("count"), hypotheses=()),
     (NONZERO,)),
    (program(STAGED, divided("count", "forward"), hypotheses=()), ()),
    (program(STAGED, microbatches=1), ("equal_counts over {dp}", "microbatches = 1")),
    (program(STAGED, microbatches=2), (EQUAL,)),
    (Step(STAGED.reference, (Event("save", "store", "step"),)), (EQUAL, NEVER)),
    (replace(DP, events=DP.phase("update")), (EQUAL, INDEPENDENT, NEVER)),
])
def test_the_hypotheses_in_words(step: Step, said: tuple[str, ...]) -> None:
    assert tuple(h.text for h in hypotheses(step)) == said


@pytest.mark.parametrize(("microbatches", "failing"), [(None, {"normalizer"}), (1, set())])
def test_without_data_axes_microbatches_hold_equally_many_tokens(microbatches: int | None, failing: set[str]) -> None:
    """The mean of the microbatches' means is the mean over all tokens only then: so the proof names it."""
    step = FFN if microbatches is None else program(FFN, *FFN.events, microbatches=microbatches)
    alone = Step(replace(step.reference, hypotheses=()), FFN.events)
    assert not step.reference.data_axes and not examine(step).candidates
    assert {c.verdict.id for c in examine(alone).candidates} == failing


# what is checked, and what an event without a rule leaves open

def test_what_is_checked_on_ops_and_on_groups() -> None:
    assert of_ops(FFN) == ("forward", "random") and of_ops(STAGED) == ("forward", "random", "schedule")
    alone = ("gradient", "normalizer", "view", "update", "invariant", "init", "random", "schedule")
    assert alone == PER_GROUP


GAP = NoRule("forward.layer.compute", "no transfer rule for it")


def left_open(group: str, identifiers: Iterable[str]) -> list[Verdict]:
    return [verdict(i, group, UNDECIDED, None, 0, 0.0, "forward.layer.compute: no transfer rule for it",
                    "forward.layer.compute") for i in identifiers]


@pytest.mark.parametrize("step", [FFN, STAGED], ids=repr)
def test_ops_that_no_rule_covers_leave_all_of_them_open(step: Step) -> None:
    with patch.object(prover, "network_obligations", Mock(side_effect=GAP)):
        assert prover._examine_network(step, Flows(step), [VACUOUS]) == (
            [VACUOUS, *left_open("", of_ops(step))], [])


@pytest.mark.parametrize("step", [DP, FFN], ids=repr)
def test_a_group_whose_obligations_cannot_be_made_is_open(step: Step) -> None:
    flows = Flows(lowered(step))
    with patch.object(prover, "obligations", Mock(side_effect=GAP)):
        assert prover._examine_group(step, A, {}, flows) == (left_open("a", PER_GROUP), [])


def decided(step: Step, group: Group, identifier: str, generated: Obligations,
            paths: Mapping[Site, Site] = FrozenMap()) -> tuple[Verdict, Candidate | None]:
    """Finds `view` and `random` wrong."""
    assert isinstance(step, Step)
    wrong = candidate(group, identifier=identifier)
    found = identifier in ("view", "random")
    return (wrong.verdict, wrong) if found else (verdict(identifier, group.name, instances=generated.instances["x"]),
                                                 None)


@pytest.mark.parametrize("step", [FFN, STAGED], ids=repr)
def test_each_obligation_of_the_ops_has_its_verdict(step: Step) -> None:
    flows, made = Flows(step), Obligations(instances=Counter(x=7))
    network = Mock(return_value=made)
    with patch.multiple(prover, network_obligations=network, _decide=decided,
                        _ordered=lambda step, v, c: (replace(v, reason=f"ordered on {step}"), c)):
        verdicts, candidates = prover._examine_network(step, flows, [VACUOUS])
    network.assert_called_once_with(step, flows)
    wrong = candidate(WHOLE, identifier="random")
    staged = [verdict("schedule", instances=7, reason=f"ordered on {step}")] if step is STAGED else []
    assert verdicts == [VACUOUS, verdict("forward", instances=7), wrong.verdict, *staged] and candidates == [wrong]


@pytest.mark.parametrize("step", [DP, FFN], ids=repr)
def test_each_obligation_of_a_group_has_its_verdict(step: Step) -> None:
    flows, made = Flows(lowered(step)), Obligations(instances=Counter(x=7))
    own = Mock(return_value=made)
    with patch.multiple(prover, obligations=own, _decide=decided):
        verdicts, candidates = prover._examine_group(step, A, {Site("layer"): Site("layer")}, flows)
    own.assert_called_once_with(step, A, (Site("layer"),), flows)
    found = {"view": candidate(A, identifier="view"), "random": candidate(A, identifier="random")}
    assert verdicts == [found[i].verdict if i in found else verdict(i, "a", instances=7) for i in PER_GROUP]
    assert candidates == list(found.values())


@pytest.mark.parametrize("ended", [PROVED, REFUTED, UNDECIDED])
def test_an_order_of_stages_is_one_more_fact(ended: Conclusion) -> None:
    before = verdict("schedule", "", ended, BOUNDED, 4, 1.0, "said", "an event")
    acyclic = Mock(return_value=Fact("1f1b", "no cycle", PROVED, PARAMETRIC, "for all sizes"))
    with patch.object(prover, "acyclic", acyclic):
        words = "" if ended == PROVED else "said"
        told = replace(before, instances=5, reason=words, decided=Decided(solver=1))
        assert prover._ordered(STAGED, before, None) == (told, None)
        acyclic.assert_called_once_with(STAGED.reference.pipeline)
        for other in (UNDECIDED, REFUTED):
            acyclic.return_value = Fact("1f1b", "no cycle", other, PARAMETRIC, "gave up")
            after = replace(before, instances=5, decided=Decided(solver=1))
            assert prover._ordered(STAGED, before, None) == (after if ended != PROVED else replace(
                after, verdict=UNDECIDED, cls=None, reason="the order 1f1b: gave up"), None)


# what is supposed to be wrong where nothing else is

SAYS = "no transfer rule for x: it is y"


def gap(event: str, ended: Conclusion = UNDECIDED) -> Verdict:
    return verdict("view", "layer.weight", ended, None, 0, 0.0, f"{event}: {SAYS}", event)


@pytest.mark.parametrize(("event", "identifier"), [
    ("init.step.assign", "init"), ("save.step.store", "init"), ("resume.step.load", "init"),
    ("prepare.layer.weight.grad_sum.zero", "invariant"), ("forward.layer.compute", "invariant"),
    ("update.step.update", "invariant"),
])
def test_what_has_no_rule_is_supposed_wrong(event: str, identifier: str) -> None:
    said = f"cannot be followed, only run: {SAYS}"
    step = lowered(HSDP)
    one, = prover._suppose(step, Flows(step), [verdict("view"), gap(event), gap("forward.loss.compute")])
    assert one == Candidate(verdict(identifier, "", REFUTED, BOUNDED, 1, 0.0, said, event, solver=1), WHOLE,
                            one.failure, {"dp_replicate": 2, "dp_shard": 2, "m": 2})
    assert z3.is_true(one.failure.formula)
    assert replace(one.failure, formula=None) == Failure(identifier, event, None, said, kind=FailureKind.SUPPOSED)


def test_a_failure_that_a_run_shows_alone() -> None:
    said = "cannot be followed, only run: a run differs"
    one = prover.by_run("init", "save.step.store", "a run differs", {"dp": 2})
    assert z3.is_true(one.failure.formula)
    told = verdict("init", "", REFUTED, BOUNDED, 1, 0.0, said, "save.step.store", solver=1)
    assert one == Candidate(told, WHOLE, one.failure, {"dp": 2})
    supposed = Failure("init", "save.step.store", None, said, kind=FailureKind.SUPPOSED)
    assert replace(one.failure, formula=None) == supposed


def test_nothing_is_supposed_where_all_has_been_followed() -> None:
    silent = verdict("view", "", UNDECIDED, None, reason="the solver gave up")
    for step, flows in ((lowered(DP), Flows(lowered(DP))), (FFN, Flows(FFN))):
        assert prover._suppose(step, flows, [verdict("view"), silent, gap("forward.loss.compute", REFUTED)]) == []


def test_what_could_not_be_followed_is_supposed_wrong_first() -> None:
    flows = Flows(FFN)
    demands = [Demand(event, "is a sum of sums", (), frozenset())
               for event in ("backward.layer.mlp.up.grad.compute", "forward.layer.mlp.up.compute")]
    with patch.object(prover, "unfollowed", Mock(return_value=tuple(demands))) as unfollowed:
        one, = prover._suppose(FFN, flows, [gap("forward.loss.compute")])
    unfollowed.assert_called_once_with(FFN, flows)
    assert (one.verdict, one.group, one.model) == (
        verdict("gradient", "", REFUTED, BOUNDED, 1, 0.0, "is a sum of sums", demands[0].event, solver=1), WHOLE,
        {"tp": 2, "m": 2})


# one obligation

CELL = next(c for c in CASES if c.least == 2)


def made(*failures: Failure, instances: int = 5, unclear: Sequence[str] = ()) -> Obligations:
    found = Obligations(instances=Counter(gradient=instances, view=9), open=list(unclear))
    found.failures.update(enumerate(failures))
    return found


def wrong(formula: Any, event: str = "update.layer.weight.update", identifier: str = "gradient", says: str = "is wrong",
          **fields: Any) -> Failure:
    return Failure(identifier, event, formula, says, **fields)


def decide(generated: Obligations, ask: Callable[..., Reply] = solved, group: Group = LAYER,
           step: Step = DP) -> tuple[Verdict, Candidate | None]:
    with patch.object(prover, "ask", ask), clock(10.0, 12.5):
        return prover._decide(step, group, "gradient", generated)


def never(*_: Any) -> Reply:
    raise AssertionError("the solver is asked")


@pytest.mark.parametrize("failures", [
    (), (wrong(NO),), (wrong(z3.And(RANKS > 1, NO)),), (wrong(YES, identifier="view"),)])
def test_what_cannot_fail_is_proved_without_a_question(failures: Sequence[Failure]) -> None:
    assert decide(made(*failures), never) == (verdict("gradient", "layer.weight", instances=5, seconds=2.5), None)


@pytest.mark.parametrize("failures", [
    (wrong(RANKS < 1),), (wrong(z3.And(RANKS == 2, RANKS == 3)), wrong(NO)),
    (wrong(M == 1, cases=(CELL,)),), (wrong(RANKS < 1), wrong(YES, identifier="view"))])
def test_what_the_solver_finds_impossible_is_proved(failures: Sequence[Failure]) -> None:
    assert decide(made(*failures)) == (verdict("gradient", "layer.weight", instances=5, seconds=2.5), None)


def test_nothing_to_check_is_said() -> None:
    for group, name in ((LAYER, "layer.weight"), (WHOLE, "the ops")):
        assert decide(made(instances=0), never, group) == (
            verdict("gradient", group.name, instances=0, seconds=2.5,
                    reason=f"no event of {name} has anything to check"), None)


def test_what_can_happen_is_a_candidate() -> None:
    failures = (wrong(RANKS < 1, says="never"), wrong(M == 3, cases=(CELL,), says="neither"),
                wrong(z3.And(RANKS == 3, M == 2), cases=(CELL,)), wrong(YES, identifier="view"))
    ended, found = decide(made(*failures, unclear=["not closed"]))
    assert ended == verdict("gradient", "layer.weight", REFUTED, BOUNDED, 5, 2.5, "is wrong", failures[2].event)
    assert found == Candidate(ended, LAYER, failures[2], {"dp": 3, "m": 2})


@pytest.mark.parametrize(("formula", "model"), [
    (z3.And(RANKS == 3, M >= 1), {"dp": 3, "m": 1}),
    (z3.And(RANKS == 3, M >= 2), {"dp": 3, "m": 2}),
    (z3.And(RANKS == 3, M >= 3), {"dp": 3, "m": 3}),
    (z3.And(RANKS == 2, z3.Or(M == 1, M >= 3)), {"dp": 2, "m": 1}),
    (z3.And(RANKS >= 2, M * RANKS >= 6), {"dp": 2, "m": 3}),
])
def test_a_candidate_has_as_few_microbatches_as_show_it(formula: Any, model: dict[str, int]) -> None:
    """At the sizes that were found first: more ranks would need fewer."""
    found = decide(made(wrong(formula)))[1]
    assert found and {k: found.model[k] for k in model} == model


@pytest.mark.parametrize(("formula", "model", "fewest"), [
    (z3.And(RANKS == 3, M >= 1), {"dp": 3, "m": 3}, {"dp": 3, "m": 1}),
    (z3.And(RANKS >= 1, M >= 2), {"dp": 3, "m": 3}, {"dp": 3, "m": 2}),
    (z3.And(RANKS >= 1, M * RANKS >= 6), {"dp": 2, "m": 4}, {"dp": 2, "m": 3}),
    (z3.And(RANKS >= 1, M * RANKS >= 6), {"dp": 2, "m": 3}, {"dp": 2, "m": 3}),
    (z3.And(RANKS == 1, M >= 1), {"m": 3}, {"dp": 1, "m": 1}),
    (z3.And(RANKS == 2, M == 1), {"dp": 2, "m": 1}, {"dp": 2, "m": 1}),
    (z3.And(RANKS == 2, M == 1), {"dp": 2}, {"dp": 2}),
])
def test_microbatches_are_left_out_at_the_same_sizes(
        formula: Any, model: dict[str, int], fewest: dict[str, int]) -> None:
    found = prover._fewest(DP, wrong(formula), model)
    assert {k: n for k, n in found.items() if k in ("dp", "m")} == fewest


def test_a_candidate_that_is_not_found_with_fewer_microbatches_keeps_its_own() -> None:
    failure, asked = wrong(z3.And(RANKS == 2, M >= 1)), list[int]()

    def ask(step: Step, assertions: Iterable[Any]) -> Reply:
        asked.append(len(list(assertions)))
        return Reply(SAT, {"dp": 2, "m": 3}) if len(asked) < 3 else Reply(UNKNOWN, {}, "timeout")
    found = decide(made(failure), ask)[1]
    assert found and found.model == {"dp": 2, "m": 3} and len(asked) == 4


def test_a_candidate_knows_the_same_update_of_other_microbatches() -> None:
    update, site = updated(), Site("layer")
    failure = wrong(RANKS == 2, update=update, site=site)
    generated = made(failure)
    generated.updates.update({(update.event, update.flag, site, case): update for case in CASES})
    found = decide(generated)[1]
    assert found and found.parts == (Part(site, dict.fromkeys(CASES, update)),)


def test_a_candidate_that_is_not_found_again_keeps_its_sizes() -> None:
    answers = iter([Reply(SAT, {"dp": 7, "m": 9})])
    failure = wrong(RANKS == 7)
    ended, found = decide(made(failure), lambda *_: next(answers, Reply(UNKNOWN, {}, "timeout")))
    assert found == Candidate(ended, LAYER, failure, {"dp": 7, "m": 9})
    assert (ended.verdict, ended.reason) == (REFUTED, "is wrong")


@pytest.mark.parametrize(("said", "reason"), [("timeout", "timeout"), ("", "the solver gave up")])
def test_unknown_is_open(said: str, reason: str) -> None:
    def unknown(step: Step, assertions: Iterable[Any]) -> Reply:
        assert step is DP and list(assertions)
        return Reply(UNKNOWN, {}, said)
    for unclear in ((), ("not closed",)):
        assert decide(made(wrong(RANKS == 2), unclear=unclear), unknown) == (
            verdict("gradient", "layer.weight", UNDECIDED, None, 5, 2.5, reason), None)


def test_what_could_not_be_closed_is_not_proved() -> None:
    for failures in ((), (wrong(RANKS < 1),)):
        assert decide(made(*failures, unclear=["no fixpoint", "no cycle", "no fixpoint"])) == (
            verdict("gradient", "layer.weight", UNDECIDED, None, 5, 2.5, "no fixpoint; no cycle"), None)


# in which microbatches, and at which sizes

@pytest.mark.parametrize(("cases", "exact", "happens"), [
    ((), True, {1, 2, 3, 4, 5, 6}),
    ([(2, True)], True, {2}), ([(2, True)], False, {2}),
    ([(3, False)], True, {3, 4, 5, 6}), ([(3, False)], False, {3}),
    ([(1, True), (4, False)], True, {1, 4, 5, 6}), ([(1, True), (4, False)], False, {1, 4}),
])
def test_a_failure_happens_in_its_cases(cases: Sequence[tuple[int, bool]], exact: bool, happens: set[int]) -> None:
    failure = wrong(RANKS == 2, cases=tuple(Case((), least, known) for least, known in cases), exact=exact)
    for ranks in (2, 3):
        found = {m for m in range(1, 7) if _holds(in_case(failure), (RANKS, z3.IntVal(ranks)), (M, z3.IntVal(m)))}
        assert found == (happens if ranks == 2 else set())
    assert bool(cases) or in_case(failure) is failure.formula


def _holds(formula: Any, *values: tuple[Any, Any]) -> bool:
    return z3.is_true(z3.simplify(z3.substitute(formula, *values)))


NORM, CLIP, UPDATE = ("update.layer.weight.norm", "update.layer.weight.clip", "update.layer.weight.update")
REPLICAS, SHARDS = z3.Int("dp_replicate"), z3.Int("dp_shard")


def smallest(*failures: Failure, step: Step = HSDP, ask: Callable[..., Reply] = solved,
             model: Mapping[str, int] | None = None) -> tuple[Failure, dict[str, int]]:
    with patch.object(prover, "ask", ask):
        return prover._smallest(step, list(failures), Reply(SAT, model or {}))


def test_the_first_failure_in_program_order_is_shown() -> None:
    late, early, strange = wrong(YES, UPDATE), wrong(YES, NORM), wrong(YES, "forward.head.compute")
    foreign = wrong(YES, NORM, slot=(None,))
    for failures in ((late, early), (early, late), (strange, early, late), (foreign, early), (early, foreign)):
        assert smallest(*failures)[0] is early
    for failures in ((late, foreign), (foreign, late), (late, strange), (strange, late)):
        assert smallest(*failures)[0] is late
    assert smallest(foreign, strange)[0] is strange


@pytest.mark.parametrize(("formula", "sizes"), [
    (z3.And(REPLICAS >= 1, SHARDS >= 1, M >= 1), [(2, 2, {1, 2, 3})]),
    (z3.And(REPLICAS >= 1, SHARDS >= 1, M >= 3), [(2, 2, {3})]),
    (z3.And(REPLICAS >= 1, SHARDS >= 3, M >= 1), [(2, 3, {1, 2, 3}), (3, 3, {1, 2, 3})]),
    (z3.And(REPLICAS == 1, SHARDS >= 1, M >= 1), [(1, n, {1, 2, 3}) for n in (1, 2, 3)]),
    (z3.And(REPLICAS >= 1, SHARDS == 1, M >= 1), [(n, 1, {1, 2, 3}) for n in (1, 2, 3)]),
    (z3.And(REPLICAS >= 6, SHARDS >= 6, M >= 6), [(6, 6, {6})]),
    (z3.And(REPLICAS == 7, SHARDS >= 8, M == 9), [(7, n, {9}) for n in range(8, 99)]),
])
def test_a_failure_is_shown_at_small_sizes(formula: Any, sizes: list[tuple[int, int, set[int]]]) -> None:
    failure, model = smallest(wrong(formula))
    assert failure.formula is formula
    assert any((model["dp_replicate"], model["dp_shard"]) == (p, q) and model["m"] in m for p, q, m in sizes)


def test_only_the_axis_of_which_a_rank_is_named_may_be_larger() -> None:
    """What needs five replicas is shown before what needs five shards where the program names a replica."""
    free = next(e for e in HSDP.events if e.path == NORM)
    named = replace(HSDP, events=tuple(replace(e, where=(Clause("dp_replicate", 4),)) if e is free else e
                                       for e in HSDP.events))
    shards, replicas = wrong(z3.And(REPLICAS == 2, SHARDS == 5, M == 1), NORM), wrong(
        z3.And(REPLICAS == 5, SHARDS == 2, M == 1), UPDATE)
    assert smallest(shards, replicas, step=named)[0] is replicas
    assert smallest(shards, replicas)[0] is shards


FIVE = Step(replace(DP.reference, mesh=Mesh(tuple(Axis(f"x{k}") for k in range(5))), data_axes=()), ())


def test_a_failure_on_five_axes_is_shown_where_it_can_be_replayed() -> None:
    """Two ranks along each of five axes, and three microbatches, are too many; four such axes are not."""
    sizes = [z3.Int(a) for a in FIVE.reference.mesh.names]

    def shown(*conditions: Any) -> list[int]:
        _, model = smallest(wrong(z3.And(*conditions)), step=FIVE)
        return [*(model[a] for a in FIVE.reference.mesh.names), model["m"]]
    assert shown(z3.And([n >= 2 for n in sizes]), M <= 2)[:5] == [2] * 5
    assert shown(z3.And([n >= 2 for n in sizes]), M == 3) == [2] * 5 + [3], "nowhere else: too large to replay"
    assert shown(M == 2) == [2] * 6, "just small enough"
    for several in range(5):
        found = shown(z3.And([n >= 2 for n in sizes[:several]]), M == 3)
        assert found[:several] == [2] * several and prod(found) <= prover.LARGEST_REPLAY


def test_at_most_four_axes_have_two_ranks_where_more_are_too_many() -> None:
    asked: list[list[Any]] = []

    def ask(step: Step, assertions: Iterable[Any]) -> Reply:
        asked.append(list(assertions))
        everywhere = {**dict.fromkeys(FIVE.reference.mesh.names, 2), "m": 3}
        return Reply(SAT, everywhere) if len(asked) == 1 else Reply(UNKNOWN, {})
    smallest(wrong(YES), step=FIVE, ask=ask)

    def allowed(m: int, *ranks: int) -> bool:
        values = [z3.Int(a) == n for a, n in zip(FIVE.reference.mesh.names, ranks, strict=True)]
        solver = z3.Solver()
        solver.add(*asked[1], m == M, *values)
        return solver.check() == z3.sat
    assert len(asked) == 2
    assert allowed(3, 2, 2, 2, 2, 1) and allowed(1, 1, 2, 1, 1, 2)
    assert not allowed(3, 2, 2, 2, 2, 2) and not allowed(4, 1, 1, 1, 1, 1) and not allowed(1, 3, 1, 1, 1, 1)


def test_a_later_failure_at_smaller_sizes_is_shown() -> None:
    large, small = wrong(SHARDS == 6, NORM), wrong(SHARDS == 2, UPDATE)
    assert smallest(large, small)[0] is small
    huge, larger = wrong(SHARDS == 70, NORM), wrong(SHARDS == 70, UPDATE)
    assert smallest(larger, huge)[0] is huge
    assert smallest(wrong(SHARDS < 1, NORM), larger)[0] is larger
    assert smallest(wrong(M == 1, NORM, cases=(CELL,)), larger)[0] is larger


def test_what_cannot_be_asked_again_is_shown_as_it_was_found() -> None:
    asked = []

    def ask(step: Step, assertions: Iterable[Any]) -> Reply:
        asked.append((step, len(list(assertions))))
        return Reply(UNKNOWN, {"dp": 1}, "timeout")
    first, second = wrong(YES, NORM), wrong(YES, UPDATE)
    assert smallest(second, first, ask=ask, step=DP, model={"dp": 5}) == (first, {"dp": 5})
    assert len(asked) == 2 * (len(prover._SIZES) + 1) and {n for _, n in asked} == {1, 3}
    assert all(step is DP for step, _ in asked)
    assert smallest(first, ask=ask, step=DP, model={"dp": 5}) == (first, {"dp": 5})


# the same update of another microbatch

def updated(*terms: Term, event: str = UPDATE) -> Updated:
    return Updated(event, "right", Value(terms), None, None, ())


SITE = Site("layer")


def test_parts_are_those_of_the_paths_of_one_parameter() -> None:
    failing, tied, other = updated(), updated(Term(Monomial.of("m"))), updated(Term(ONE))
    head, alike, foreign = Site("head", SITE.parameter), Site("tail", SITE.parameter), Site("head", "another")
    paths = {SITE: SITE, head: head, alike: head, foreign: foreign}
    found = Obligations()
    found.updates = {(UPDATE, failing.flag, site, CASES[0]): u for site, u in ((SITE, failing), (head, tied))}
    found.updates |= {(UPDATE, failing.flag, SITE, CASES[1]): other, (UPDATE, "another step", SITE, CASES[2]): other,
                      (NORM, failing.flag, SITE, CASES[3]): other}
    one = wrong(YES, update=failing, site=SITE)
    assert parts(one, found, paths) == (Part(SITE, {CASES[0]: failing, CASES[1]: other}),
                                        Part(head, {CASES[0]: tied}), Part(alike, {CASES[0]: tied}))
    assert parts(replace(one, site=None), found, paths) == parts(replace(one, update=None), found, paths) == ()
    assert parts(one, Obligations(), {}) == (Part(SITE, {}),)


# partition

def event_of(layout: str, group: str = "layer.weight", verb: str = "publish", **fields: Any) -> Event:
    return Event("forward", verb, "weight" if group else "data.input", group, axes=("dp",), layout=layout, **fields)


@pytest.mark.parametrize(("step", "found"), [
    (DP, set()), (ZERO1, {("layer.weight", "dp", "own")}),
    (program(STAGED, event_of("rows"), event_of("shuffled(dp)", "", "slice"), event_of("rows", "", "slice")),
     {("layer.weight", "dp", "rows"), ("data.input", "dp", "shuffled(dp)")}),
    (program(DP, event_of("own", where=(Clause("tp"),))),
     {("layer.weight", "dp", "own"), ("layer.weight", "tp", "own")}),
    (program(DP, event_of("mine(dp)", verb="broadcast")), set()),
])
def test_where_owners_are_spoken_of(step: Step, found: set[tuple[str, str, str]]) -> None:
    assert layouts(step) == found
    with clock(10.0, 12.5):
        places = len(step.reference.data_axes) + len(found)
        assert prover._partition(step) == verdict("partition", instances=places, seconds=2.5, construction=places,
                                                  reason="owner functions are total")


def test_nothing_is_split() -> None:
    step = replace(DP, reference=replace(DP.reference, data_axes=()))
    with clock(10.0, 12.5):
        assert prover._partition(step) == verdict("partition", instances=0, seconds=2.5, reason="nothing is split")


SHUFFLED, SAMPLED = event_of("shuffled(dp)", "", "slice"), event_of("sampled(dp)", "", "slice")
MINE, YOURS = event_of("mine(dp)"), event_of("yours(dp)")
OWN, OTHER, THIRD = event_of("own"), event_of("other"), event_of("third")
COPIED = event_of("mine(dp)", verb="broadcast")
def test_a_router_drops_no_tokens_by_hypothesis() -> None:
    said = "dropless: every token reaches the experts that its router chose"
    routed, plain = ([h.text for h in hypotheses(step_of(*of))] for of in (("dp*ep", "moe"), ("dp", "mlp")))
    assert routed == ["equal_counts over {dp, ep, microbatch}", said]
    assert plain == ["equal_counts over {dp, microbatch}"]


TAKEN = "is no partition: each rank takes data for itself"
MEETS = "is one layout here and another there, and they meet"


def clash(events: Sequence[Event], explained: bool = True, candidates: Sequence[Candidate] | None = None,
          ) -> tuple[Candidate | None, list[Step]]:
    """What is said of the layouts of a program, and the programs that were examined for it."""
    tried: list[Step] = []

    def other(step: Step) -> Findings:
        tried.append(step)
        return Findings((), () if explained else (candidate(),), (), (), "")
    with patch.object(prover, "examine", other):
        return prover._disagreement(program(DP, *events), list((candidate(A), candidate(B)) if candidates is None
                                                              else candidates)), tried


@pytest.mark.parametrize(("events", "layout", "places", "said"), [
    ((OWN, OTHER), "other", 2, "layouts other and own disagree where they meet"),
    ((OWN, OTHER, THIRD), "other", 3, "layouts other and own and third disagree where they meet"),
    ((OWN, SHUFFLED), "own", 2, f"shuffled(dp) {TAKEN}"),
    ((SHUFFLED,), "own", 1, f"shuffled(dp) {TAKEN}"),
    ((SHUFFLED, OTHER, SAMPLED), "other", 3, f"sampled(dp) and shuffled(dp) {TAKEN}"),
    ((SHUFFLED, MINE), "own", 2, f"shuffled(dp) {TAKEN}"),
    ((MINE,), "own", 1, f"mine(dp) {MEETS}"),
    ((MINE, OTHER, YOURS), "other", 3, f"mine(dp) and yours(dp) {MEETS}"),
    ((OTHER, COPIED, OWN), "other", 2, "layouts other and own disagree where they meet"),
])
def test_layouts_explain_what_is_wrong(events: Sequence[Event], layout: str, places: int, said: str) -> None:
    found, (one,) = clash(events)
    assert found == replace(candidate(A), verdict=verdict(
        "partition", "a", REFUTED, BOUNDED, places, None, said, "update.layer.weight.update", solver=places))
    step = program(DP, *events)
    assert one == replace(step, events=tuple(replace(e, layout=layout if e.group else "own") for e in step.events))
    assert clash(events, explained=False) == (None, [one])
    assert clash(events, candidates=[]) == (None, [])


@pytest.mark.parametrize("events", [(), (OWN,), (OTHER,), (OTHER, COPIED), (OTHER, event_of("own", "", "slice"))])
def test_one_layout_explains_nothing(events: Sequence[Event]) -> None:
    assert clash(events) == (None, [])
