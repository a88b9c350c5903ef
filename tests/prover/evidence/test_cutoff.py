"""The second engine agrees with the first: one axis written out at enough sizes, against sums in closed form."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import z3

from placealg.arith import ONE, Monomial
from placealg.check.prove import judge
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.mesh import Mesh
from placealg.models.config import resolve_model
from placealg.models.transformer import mlp
from placealg.prover import examine as prover
from placealg.prover.calculus.contribution import Term, merged, sum_over
from placealg.prover.calculus.microbatches import Case
from placealg.prover.calculus.positions import UNIT
from placealg.prover.evidence import cutoff
from placealg.prover.evidence.certificate import Query, certificate
from placealg.prover.evidence.cutoff import (
    LEMMA,
    Unrolled,
    certificate_by_cutoff,
    degree,
    examine_by_cutoff,
    in_closed_form,
    least_size,
    primes,
    proofs_of_groups,
    roots,
    unroll,
    written_out,
)
from placealg.prover.evidence.symbols import names
from placealg.prover.examine import Findings, examine
from placealg.prover.obligations import Obligations
from placealg.prover.verdict import BOUNDED, CUTOFF, OBLIGATIONS, PROVED, REFUTED, UNDECIDED, Hypothesis, Report
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Event, Group, Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import strategy_on

SLOW = pytest.mark.slow
PROVED_BOTH_WAYS = [("dp", "abstract"), ("zero1", "abstract"), ("zero3", "abstract"), ("tp_sp", "llama-3-70b"),
                    pytest.param("hsdp", "abstract", marks=SLOW), pytest.param("zero1*tp", "llama-3-70b", marks=SLOW)]


def step_of(strategy: str, model: str) -> Step:
    return derive(parse_strategy(strategy), resolve_model(model))


@pytest.mark.parametrize("strategy, model", PROVED_BOTH_WAYS)
def test_both_engines_prove_it(strategy: str, model: str) -> None:
    step = step_of(strategy, model)
    report, _ = judge(step, engine="cutoff")
    assert report.verdict == PROVED == judge(step)[0].verdict
    assert report.cls == CUTOFF and report.lemmas[0] == LEMMA
    axes = step.reference.mesh.names
    assert [line.split(":")[0] for line in report.lemmas[1:]] == [*axes, "sum_of_owner", "sum_of_constant"]


@pytest.mark.parametrize("strategy, model, change", [
    ("dp", "abstract", {"drop": "reduce.*.reduce[dp]"}),
    ("dp", "abstract", {"set": "reduce.*.reduce[dp]", "op": "sum"}),
    pytest.param("hsdp", "abstract", {"drop": "reduce.*.reduce[dp_replicate]"}, marks=SLOW),
    ("hsdp", "abstract", {"set": "update.*.norm", "where": "owner(dp_shard)"}),
    pytest.param("zero1*tp", "llama-3-70b", {"drop": "forward.layer.attn.out.all_reduce[tp]"}, marks=SLOW),
    pytest.param("zero1*tp", "llama-3-70b", {"double": "forward.layer.mlp.down.all_reduce[tp]"}, marks=SLOW),
    pytest.param("tp_sp", "llama-3-70b", {"drop": "reduce.layer.norm1.weight.grad_sum.reduce[tp]"}, marks=SLOW),
])
def test_both_engines_refute_it(strategy: str, model: str, change: dict[str, Any]) -> None:
    step = edit(step_of(strategy, model), **change)
    mine = {v.id for v in examine_by_cutoff(step)[0].verdicts if v.verdict != PROVED}
    assert mine == {v.id for v in examine(step).verdicts if v.verdict != PROVED} != set()


def test_sizes_are_one_more_than_the_degree_and_distinct_primes() -> None:
    """Below the first of them, where positions must coincide, every size is tried."""
    step = step_of("zero3", "abstract")
    run = unroll(step, "dp")
    assert len(set(run.roots)) == len(run.roots) == run.degree + 1 == degree(step, "dp") + 1
    assert run.roots == (7, 11, 13, 17, 19, 23, 29, 31, 37) and run.sizes == (2, 3, 4, 5, 6, *run.roots, 1)
    assert run.least == least_size(step, "dp") == 7


@pytest.mark.parametrize("strategy, model", [
    ("dp", "abstract"), pytest.param("hsdp", "abstract", marks=SLOW)])
def test_the_proofs_of_groups_are_counted_before_they_are_made(
        strategy: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step, made, examined = step_of(strategy, model), list[str](), prover._examine_group

    def examining(step: Step, group: Group, *more: Any) -> Any:
        made.append(group.name)
        return examined(step, group, *more)
    monkeypatch.setattr(prover, "_examine_group", examining)
    examine_by_cutoff(step)
    assert len(made) == proofs_of_groups(step)


@pytest.mark.some(3)
@pytest.mark.parametrize("strategy, model", [*PROVED_BOTH_WAYS, ("zero3*tp_sp*pp*cp_ring*ep", "mixtral-8x7b"),
                                             ("hsdp*pp", "gpt2"), ("zero1*pp_interleaved", "gpt2")])
def test_no_question_has_more_positions_than_the_least_size(strategy: str, model: str) -> None:
    """At the least size, all positions that a question speaks of along an axis can differ."""
    step, asked, decide = step_of(strategy, model), set[str](), prover._decide

    def deciding(step: Step, group: Group, identifier: str, generated: Obligations, *more: Any) -> Any:
        asked.update(name for f in generated.failures.values() for name in names(f.formula))
        return decide(step, group, identifier, generated, *more)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prover, "_decide", deciding)
        examine(step)
    for axis in step.reference.mesh.names:
        named = {n for n in asked if n.endswith(f"@{axis}") and not n.startswith("N[")}
        assert 1 <= len(named) < least_size(step, axis), named


def changed(step: Step, path: str, **fields: Any) -> Step:
    """The step with these fields of one event changed."""
    return replace(step, events=tuple(replace(e, **fields) if e.path == path else e for e in step.events))


def test_a_degree_counts_reductions_means_divisors_and_the_data() -> None:
    """Along dp alone: the gradient's reduction, that it is a mean, that of the norm, and the data: four."""
    step, scale = step_of("dp", "abstract"), "backward.loss.scale"
    reduction = "reduce.layer.weight.grad_sum.reduce[dp]"
    twice, inverse = Monomial.of("dp", "dp"), ONE / Monomial.of("dp")
    assert degree(step, "dp") == 4
    assert degree(changed(step, reduction, op="sum"), "dp") == 3
    assert degree(changed(step, scale, divisor=twice), "dp") == 6
    assert degree(changed(step, scale, divisor=inverse), "dp") == 5
    assert degree(changed(step, reduction, divisor=twice), "dp") == 6
    assert degree(changed(step, reduction, divisor=inverse), "dp") == 5
    assert degree(changed(step, reduction, divisor=Monomial.of("tp", "m")), "dp") == 4
    for source in ("", "S(embed)"):
        with pytest.raises(InputError, match="shift does not apply to grad_sum"):
            degree(changed(step, reduction, verb="shift", op="sum", source=source), "dp")
    assert degree(changed(step, reduction, phase="backward"), "dp") == 8, "what a microbatch may find as it left it"
    assert degree(changed(step, reduction, phase="backward", value="grad"), "dp") == 8
    assert degree(changed(step, reduction, phase="backward", divisor=twice), "dp") == 14, "so it does a divisor"
    assert degree(changed(step, reduction, phase="backward", value="weight"), "dp") == 4
    assert degree(replace(step, reference=replace(step.reference, data_axes=())), "dp") == 3
    assert degree(Step(replace(step.reference, groups=()), ()), "dp") == 1
    assert degree(Step(replace(step.reference, groups=(), data_axes=()), ()), "dp") == 0
    group, = step.reference.groups
    event = next(e for e in step.events if e.path == reduction)
    both = replace(step.reference, groups=(group, replace(group, name="other")))
    at = step.events.index(event)
    more = (*step.events[:at], *[replace(event, group="other", op="sum")] * 2, *step.events[at:])
    assert degree(Step(both, more), "dp") == 5, "the most of any group, not of all"
    most = tuple(replace(e, divisor=twice) if e.group == "other" else e for e in more)
    assert degree(Step(both, most), "dp") == 9


def test_a_degree_counts_what_counts_were_summed_over() -> None:
    """A count over all ranks is the size times the tokens of one: a divisor by it can raise the degree, or lower it."""
    step = stated("dp", "abstract", loss={"preset": "token_mean", "assume": ["equal_counts"]})
    summed = "prepare.loss.count.all_reduce[dp]"
    divides = next(e for e in step.events if "count" in e.divisor.names())
    without = degree(changed(step, divides.path, divisor=ONE), "dp")
    assert degree(step, "dp") == without + 1
    for power, more in ((2, 2), (-3, 3)):
        assert degree(changed(step, divides.path, divisor=Monomial.of("count") ** power), "dp") == without + more
    tokens = Monomial.of("count") / Monomial.of("tokens")
    assert degree(changed(step, divides.path, divisor=tokens), "dp") == without + 1
    own = tuple(e for e in step.events if e.path != summed)
    assert degree(replace(step, events=own), "dp") == without - 1, "a rank's own count is none of the size"
    twice = tuple(e for event in step.events for e in [event] * (2 if event.path == summed else 1))
    assert degree(replace(step, events=twice), "dp") == without + 3, "one more reduction, and it sums it once more"


def test_counts_that_ranks_have_of_their_own_have_no_degree() -> None:
    """A divisor by a count that is not summed yet is one by the rank's tokens."""
    step = stated("dp", "abstract", loss={"preset": "token_mean"})
    summed = next(e for e in step.events if e.value == "count" and e.verb == "all_reduce")
    right = examine(step)

    def none(*events: Event) -> bool:
        found = told(replace(step, events=events), right)
        return any("no degree" in v.reason for v in found.verdicts)

    without = [e for e in step.events if e != summed]
    assert not none(*step.events) and none(*without)
    at = {e.path: k for k, e in enumerate(without)}
    reader = next(e for e in without if "count" in e.divisor.names())
    made = next(k for k, e in enumerate(without) if e.value == "count")
    late, here = replace(summed, phase=reader.phase), at[reader.path]
    assert none(*without[:here + 1], late, *without[here + 1:])
    assert not none(*without[:here], late, *without[here:])
    here = step.events.index(reader) + 1
    # the next microbatch finds it
    assert none(*step.events[:here], replace(without[made], phase=reader.phase), *step.events[here:])
    assert none(*without[:made + 1], replace(summed, axes=("tp",)), *without[made + 1:])
    assert none(*(e for e in without if e.value != "count")), "of no count at all"
    last = next(k for k, e in enumerate(step.events) if e.phase == "reduce")
    behind = replace(step.events[last], divisor=Monomial.of("count"))
    again = replace(without[made], phase="reduce")
    assert not none(*step.events[:last], behind, again, *step.events[last + 1:]), "what stands outside runs once"
    assert none(*step.events[:last], again, behind, *step.events[last + 1:])


def test_a_least_size_counts_what_can_differ() -> None:
    """Four positions; three for each layout of one group; the ends and the stages of a pipeline; named ranks."""
    assert least_size(step_of("hsdp", "abstract"), "dp_replicate") == 5
    assert least_size(step_of("zero1*ep*pp", "deepseek-v3"), "pp") == 13
    named = edit(step_of("dp", "abstract"), {"insert": {
        "path": "publish.layer.weight.moments.assign", "where": "rank(dp)=12"},
        "after": "publish.layer.weight.publish"})
    assert least_size(named, "dp") == 13
    shared = step_of("zero1*tp", "gpt2")
    assert least_size(shared, "dp") == 7
    name = next(e.group for e in shared.events if "dp" in e.owning)
    other = tuple(replace(e, layout="even") if e.group == name and e.owning else e for e in shared.events)
    assert least_size(replace(shared, events=other), "dp") == 7, "layouts of two groups meet in no question"
    assert least_size(Step(replace(shared.reference, groups=()), ()), "dp") == 4


def test_primes_are_those_from_a_size_on() -> None:
    assert list(islice(primes(), 6)) == list(islice(primes(1), 6)) == [2, 3, 5, 7, 11, 13]
    assert [next(primes(n)) for n in (4, 8, 24, 121)] == [5, 11, 29, 127]


def test_one_axis_is_written_out_and_nothing_else_changed() -> None:
    step = step_of("hsdp", "abstract")
    there = written_out(step, "dp_shard", 3)
    assert there.reference.unrolled == {"dp_shard": 3} and there != step
    assert replace(there, reference=replace(there.reference, unrolled=step.reference.unrolled)) == step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutoff, "examine", lambda asked: dict(asked.reference.unrolled))
        run: Any = unroll(step, "dp_shard")
    assert run.axis == "dp_shard" and run.findings == tuple({"dp_shard": n} for n in run.sizes)


def test_positions_of_stages_and_of_drawn_layouts_are_counted() -> None:
    assert least_size(step_of("hsdp*pp", "gpt2"), "pp") == 12
    drawn = edit(step_of("hsdp", "abstract"), {"insert": {
        "path": "update.layer.weight.skip.compute", "where": "owner(dp_shard)", "layout": "x(dp_replicate)"},
        "before": "update.layer.weight.norm"})
    assert least_size(drawn, "dp_shard") == least_size(step_of("hsdp", "abstract"), "dp_shard") + 12 == 19


@pytest.mark.slow
@pytest.mark.parametrize("rank, least", [(4, 6), pytest.param(12, 13, marks=SLOW)])
def test_a_fault_on_one_named_rank_is_found(rank: int, least: int) -> None:
    """Moments set to 0 on one rank alone: sizes that have no such rank say nothing about it."""
    step = edit(step_of("dp", "abstract"), {"insert": {
        "path": "publish.layer.weight.moments.assign", "where": f"rank(dp)={rank}"},
        "after": "publish.layer.weight.publish"})
    report, _ = judge(step, engine="cutoff")
    assert least_size(step, "dp") == least
    ended = {v.id: v.verdict for v in report.obligations}
    assert {i for i, verdict in ended.items() if verdict != PROVED} == {"invariant"}
    assert ended["invariant"] == REFUTED == judge(step)[0].verdict


UNEQUAL = {"loss": FrozenMap({"assume": ()})}
EVERY_MICROBATCH_ITS_MEAN = {"loss": FrozenMap({"reference": "microbatch_mean", "assume": ()})}


def stated(strategy: str, model: str, **tables: FrozenMap[str, Any]) -> Step:
    return derive(replace(parse_strategy(strategy), tables=FrozenMap(tables)), resolve_model(model))


@pytest.mark.slow
def test_weights_that_follow_the_tokens_of_ranks_are_refuted() -> None:
    step = stated("dp", "abstract", **UNEQUAL)
    assert {v.id for v in examine_by_cutoff(step)[0].verdicts if v.verdict == REFUTED} == {"normalizer"}


def told(step: Step, *found: Findings) -> Findings:
    """What the engine says of a step, had this been found at the sizes of its axis."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutoff, "unroll", lambda _, axis: Unrolled(axis, 1, 2, tuple(range(2, 2 + len(found))), found))
        return examine_by_cutoff(step)[0]


def test_weights_that_follow_the_tokens_of_ranks_have_no_degree() -> None:
    """That no size shows a fault would prove nothing."""
    right = examine(step_of("dp", "abstract"))
    ended = {v.id: (v.verdict, v.cls, "no degree" in v.reason)
             for v in told(stated("dp", "abstract", **UNEQUAL), right).verdicts}
    assert {i for i, end in ended.items() if end == (UNDECIDED, None, True)} == {"gradient", "normalizer"}
    assert "weights depend on how many tokens each rank holds: they have no degree in the size of an axis" in {
        v.reason for v in told(stated("dp", "abstract", **UNEQUAL), right).verdicts}
    assert {end for i, end in ended.items() if i not in ("gradient", "normalizer")} == {(PROVED, CUTOFF, False)}
    assert {v.verdict for v in told(step_of("dp", "abstract"), right).verdicts} == {PROVED}


def test_an_obligation_ends_as_where_it_first_went_worst() -> None:
    """Refuted before open before proved; with the candidate and the place of the first, and all its seconds."""
    step, wrong = step_of("dp", "abstract"), edit(step_of("dp", "abstract"), {"drop": "publish.*.publish"})
    right, refuted = examine(step), examine(wrong)
    again = replace(refuted, verdicts=tuple(replace(v, reason="again") for v in refuted.verdicts))
    left = replace(right, verdicts=tuple(replace(v, verdict=UNDECIDED, seconds=1.0) for v in right.verdicts),
                   hypotheses=(Hypothesis("of", "the last"),), lemmas=("a lemma",))
    found = told(step, right, left, refuted, again, left)
    bad = {(v.id, v.group) for v in refuted.verdicts if v.verdict == REFUTED}
    assert {(c.verdict.id, c.verdict.group) for c in refuted.candidates} == bad != set()
    assert [c.model for c in found.candidates] == [c.model for c in refuted.candidates]
    assert {(v.id, v.group) for v in found.verdicts if v.verdict == REFUTED} == bad
    assert {v.cls for v in found.verdicts if v.verdict == REFUTED} == {BOUNDED}
    assert {v.verdict for v in found.verdicts} == {REFUTED, UNDECIDED} and "again" not in {
        v.reason for v in found.verdicts}
    assert all(v.seconds is not None and v.seconds >= 2.0 for v in found.verdicts)
    assert list(dict.fromkeys(v.id for v in found.verdicts)) == [
        i for i in OBLIGATIONS if i in {v.id for v in right.verdicts}]
    assert [v.id for v in found.verdicts] == sorted((v.id for v in found.verdicts), key=list(OBLIGATIONS).index)
    assert found.hypotheses == (Hypothesis("of", "the last"),) and found.versions == left.versions
    assert found.lemmas == (LEMMA, "dp: of degree 1 at most, written out at 2, 3, 4, 5, 6, and at all below 2, where "
                            "positions must coincide", *right.lemmas, "a lemma")
    mine = next(v for v in right.verdicts if v.id == "partition")
    assert [v.seconds for v in told(step, replace(right, verdicts=(replace(mine, seconds=None),))).verdicts] == [0.0]
    two = [replace(right, verdicts=(replace(mine, group=name), replace(mine, id="gradient", group=name)))
           for name in ("one", "other")]
    assert [(v.id, v.group) for v in told(step, *two).verdicts] == [
        ("partition", "one"), ("gradient", "one"), ("gradient", "other")]


@pytest.mark.slow
def test_weights_that_follow_the_tokens_of_microbatches_have_one() -> None:
    assert judge(stated("tp", "gpt", **EVERY_MICROBATCH_ITS_MEAN), engine="cutoff")[0].verdict == PROVED
    token_mean = stated("dp", "abstract", loss=FrozenMap({"preset": "token_mean"}))
    assert judge(token_mean, engine="cutoff")[0].verdict == PROVED


def right_at(size: int) -> Step:
    """Two faults: a dropped publish, and a sum of gradients divided by a number instead of the size of the axis."""
    return edit(step_of("zero1", "abstract"), {"drop": "publish.layer.weight.publish[dp]"},
                {"set": "*.grad*.reduce[dp]", "op": "sum", "divisor": str(size)})


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, *(pytest.param(n, marks=SLOW) for n in (3, 5))])
def test_what_is_right_at_one_size_is_refuted_at_another(size: int) -> None:
    """No obligation is proved at a size where another one fails: each is seen at every size of every axis."""
    report, candidates = judge(right_at(size), engine="cutoff")
    ended = {v.id: (v.verdict, v.cls) for v in report.obligations}
    assert ended == {v.id: (v.verdict, CUTOFF if v.verdict == PROVED else v.cls)
                     for v in judge(right_at(size))[0].obligations}
    assert report.refuted() == ("gradient", "normalizer", "invariant")
    assert report.counterexample and report.counterexample.obligation == "gradient"
    wrong_at = {c.verdict.id: c.model["dp"] for c in candidates}
    assert wrong_at == {"gradient": 3 if size == 2 else 2, "normalizer": 3 if size == 2 else 2, "invariant": 2}
    assert ("dp: of degree 3 at most, written out at 7, 11, 13, 17, and at all below 7, where positions must coincide"
            in report.lemmas)


@pytest.mark.parametrize("size, wrong", [(4, "sat"), (5, "unsat")])
def test_the_lemma_holds_of_no_smaller_number_of_sizes(size: int, wrong: str) -> None:
    """A polynomial of degree four with four roots need not be 0; with five it is."""
    run = unroll(step_of("zero1", "abstract"), "dp")
    fewer = replace(run, sizes=run.roots[:size])
    solver = z3.Solver()
    solver.add(roots(fewer))
    assert (run.degree, str(solver.check())) == (4, wrong)


def test_the_lemma_is_about_so_many_coefficients() -> None:
    run = Unrolled("dp", 2, 2, (2, 3, 5, 1), ())
    known = [name for assertion in roots(run) for name in names(assertion)]
    assert set(known) == {"coefficient-0", "coefficient-1", "coefficient-2"}
    solver = z3.Solver()
    solver.add(roots(run)[:-1])
    at = [z3.Int(f"coefficient-{k}") for k in range(3)]
    assert solver.check(z3.Or(*(at[0] + n * at[1] + n * n * at[2] != 0 for n in (2, 3, 5)))) == z3.unsat
    assert solver.check(*(a == 0 for a in at)) == z3.sat


def test_a_certificate_holds_every_question_at_every_size_and_a_lemma_once() -> None:
    step = step_of("hsdp", "abstract")
    findings = examine(step)
    report, asked = judge(step)[0], list[tuple[Any, ...]]()

    def unrolled(_: Step, axis: str) -> Unrolled:
        return Unrolled(axis, 1, 2, (2, 3, 1), tuple(replace(findings, candidates=(axis, n)) for n in (2, 3, 1)))

    def certified(there: Step, said: Report, candidates: Any, part: str) -> tuple[Query, ...]:
        asked.append((dict(there.reference.unrolled), {v.cls for v in said.obligations}, candidates, part))
        assert replace(said, obligations=report.obligations) == report
        assert [v.id for v in said.obligations] == [v.id for v in findings.verdicts]
        lemma = Query(f"lemma.{part}", "lemma", "", PROVED, "unsat", "of all sizes", 1, 1)
        return lemma, Query(f"gradient.{part}", "gradient", "", PROVED, "unsat", "of all sizes, too", 1, 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutoff, "unroll", unrolled)
        patch.setattr(cutoff, "certificate", certified)
        queries = certificate_by_cutoff(step, report)
    places = [(axis, n) for axis in ("dp_replicate", "dp_shard") for n in (2, 3, 1)]
    assert asked == [({axis: n}, {BOUNDED}, (axis, n), f"{axis}-{n}") for axis, n in places]
    assert [q.name for q in queries] == [
        "lemma.cutoff.dp_replicate.smt2", "lemma.dp_replicate-2", *(f"gradient.dp_replicate-{n}" for n in (2, 3, 1)),
        "lemma.cutoff.dp_shard.smt2", *(f"gradient.dp_shard-{n}" for n in (2, 3, 1))]
    lemma = queries[0]
    assert (lemma.obligation, lemma.group) == ("lemma", "cutoff.dp_replicate")
    assert (lemma.verdict, lemma.expected) == (PROVED, "unsat")
    assert "a polynomial of degree 1 with 2 roots is 0" in lemma.text and LEMMA.partition(": ")[2] in lemma.text
    assert report.versions in lemma.text and "coefficient-1" in lemma.text


def test_a_certificate_of_a_step_without_axes_is_that_of_the_first_engine() -> None:
    plain = Step(replace(step_of("dp", "abstract").reference, mesh=Mesh(()), data_axes=()), ())
    report = judge(plain)[0]
    assert certificate_by_cutoff(plain, report) == certificate(plain, report, examine(plain).candidates)


def test_a_fault_of_an_op_is_told_in_closed_form() -> None:
    """What is held is that of all sizes; the verdict's formula and its model stay."""
    split = derive(strategy_on("split", {"tp": None}, dims={"tp": ["ffn"]}), mlp())
    step = edit(split, {"double": "forward.layer.mlp.down.all_reduce[tp]"})
    there, whole = examine(written_out(step, "tp", 3)).candidates, examine(step).candidates
    found = next(c for c in there if c.failure.held)
    same = next(c for c in whole if c.failure.held and c.verdict.id == found.verdict.id)
    told = in_closed_form(step, found)
    assert found.failure.held != same.failure.held == told.failure.held
    assert replace(told, failure=replace(told.failure, held=found.failure.held)) == found
    other = replace(found, failure=replace(found.failure, says="something else"))
    assert in_closed_form(step, other) == other
    nothing = replace(found, failure=replace(found.failure, held=()))
    assert in_closed_form(step, nothing) == nothing


def test_a_wrong_update_is_told_in_closed_form_with_its_parts() -> None:
    step = edit(derive(parse_strategy("dp"), mlp()), {"set": "reduce.*.reduce[dp]", "op": "sum"})
    found = next(c for c in examine(written_out(step, "dp", 3)).candidates if c.failure.update)
    same = next(c for c in examine(step).candidates
                if (c.verdict.id, c.verdict.group) == (found.verdict.id, found.verdict.group))
    told = in_closed_form(step, found)
    assert found.failure.update != same.failure.update == told.failure.update
    assert found.parts != same.parts == told.parts and told.parts
    assert replace(told, parts=found.parts, failure=replace(
        told.failure, update=found.failure.update)) == found, "the formula and its model stay"
    nowhere = replace(found, failure=replace(found.failure, site=None))
    assert in_closed_form(step, nowhere) == nowhere
    unknown = replace(found, failure=replace(found.failure, cases=(Case((), 9, exact=True),)))
    assert in_closed_form(step, unknown).failure.update == found.failure.update


def test_a_step_without_axes_has_no_sums() -> None:
    plain = Step(replace(step_of("dp", "abstract").reference, mesh=Mesh(()), data_axes=()), ())
    found, runs = examine_by_cutoff(plain)
    assert [(v.id, v.verdict, v.cls) for v in found.verdicts] == [
        (v.id, v.verdict, v.cls) for v in examine(plain).verdicts] and runs == ()


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_a_written_out_sum_is_the_closed_form_at_that_size(ranks: int) -> None:
    once = Term(ONE, FrozenMap({"dp": UNIT}))
    assert sum_over([once], "dp", ranks) == merged([once.summed("dp")])
    assert sum_over([once, once], "dp", ranks)[0].coefficient.coefficient == 2


def test_a_rank_that_is_left_out_shows() -> None:
    some = [Term(ONE, FrozenMap({"dp": "0"}), frozenset({("dp", "0", "unit")}))]
    assert sum_over(some, "dp", 3) != (Term(ONE),)
