"""Certificates: every obligation written out as an SMT-LIB 2 query that any solver can check.

A query asserts the premises and the disjunction of all ways in which the obligation of one parameter group can fail,
including those that the prover rules out without a solver; nothing is simplified. `unsat` proves the obligation. For a
refuted obligation the sizes are pinned to the counterexample's, and the query is satisfiable.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from placealg.prover import races
from placealg.prover.calculus.places import NoRule
from placealg.prover.evidence import lemmas, symbols
from placealg.prover.evidence.premises import premises
from placealg.prover.evidence.smtlib import Writer, comment, declarations, header
from placealg.prover.evidence.solver import RESOURCE_LIMIT, SAT, SEED, UNSAT
from placealg.prover.evidence.types import formulas
from placealg.prover.evidence.vacuity import questions
from placealg.prover.examine import PER_GROUP, Candidate, in_case, of_ops
from placealg.prover.joined import prepared
from placealg.prover.messages import posts_end
from placealg.prover.obligations import Failure, Obligations, obligations
from placealg.prover.ops.flow import Flows
from placealg.prover.ops.op_obligations import network_obligations, sites_of
from placealg.prover.races import ORDER
from placealg.prover.schedule import Fact, acyclic
from placealg.prover.sums import PRECISION
from placealg.prover.verdict import ASKED_FOR, OBLIGATIONS, PROVED, REFUTED, Report, Verdict
from placealg.step.instances import Ordered, ordered
from placealg.step.messages import sends_wait, unlike
from placealg.step.program import Step
from placealg.step.sums import sums

LEMMA = "lemma"
WHOLE_STEP = "the whole step"
POSTS = "posts"
"""The part of `schedule` on sends that wait for their receiver."""

_LONGEST_NAME = 120

_LEGEND = (
    "dp, tp, ...: the size of an axis; m: the number of microbatches",
    "c@dp: where the device under scrutiny stands along dp; own:L@dp: where the owner of its element does, in layout L",
    "other:L@dp, any:L@dp: the owner of another element of the matrix, of any element; peer@dp, counter@dp: any rank",
    "unit@dp, path/d@dp, at:d@dp: the rank that computes the unit, that owns an index of dim d",
    "N[dp@c,microbatch@unit]: the tokens there, summed over axes that are not named; #cell: of each cell, equal counts",
    "N(samples)[microbatch@unit]: the samples there; N(LOSS)[...]: the tokens of another loss than the one followed",
)

_OF_ORDER = (
    "p, i: the number of stages, one of them; n, k: an item's number among its stage's forwards, or backwards",
    "m, total: how many forwards a stage runs, and as many backwards",
    "ahead: of a stage with chunks, how many forwards more than the last stage of one chunk it runs first",
)

_OF_POSTS = (
    "p, i: the number of stages, one of them; n, k, j: an item's number among those of its phase on its stage",
    "total: how many forwards a stage runs, and as many backwards; more: how many of them chunks add to those ahead",
    "a post's time is a number; stage.k, post.k: in a circle of posts that wait for each other, the k-th one's stage, "
    "and its number there",
)

_OF_STREAMS = (
    "size.X: how often a loop runs whose count is X; size.K: the number of slots of a ring",
    "first.step, second.step: the steps of the two accesses; first.k, second.k: the turns of the loops around them, "
    "outermost first",
)

_OF_TYPES = ("digits of a type: those of its significand, the leading 1 among them",
             "most, least of a type: the exponents of 2 of its largest and of its smallest normal number")


@dataclass(frozen=True, slots=True)
class Query:
    """One file of a certificate: its subject, its text, and the answer on which the verdict depends.

    `expected` is sat, unsat, or "" if the prover left the obligation open. The `formulas` are the distinct ways to
    fail; together with the `facts`, which hold by how the program is built, they stand for `instances` instances of the
    obligation. A query without formulas has nothing to ask a solver.
    """

    name: str
    obligation: str
    group: str
    verdict: str
    expected: str
    text: str
    instances: int
    formulas: int
    facts: Mapping[str, int] = field(default_factory=dict)
    pinned: Mapping[str, int] = field(default_factory=dict)

    @property
    def asks(self) -> bool:
        """Whether there is a query for a solver."""
        return self.formulas > 0


def certificate(step: Step, report: Report, candidates: Iterable[Candidate] = (), part: str = "",
                asked: str = "") -> tuple[Query, ...]:
    """The queries behind a report: the lemmas, and each obligation of each group. The same run gives the same text.

    Groups that share a proof have queries of their own, each from its own events. `part` is the prefix of every file's
    name, `asked` the type that a user asks of sums.
    """
    files = _Files(prepared(step), report, {(c.verdict.id, c.verdict.group): c for c in candidates}, part)
    files.streams = ordered(step) if step.order else None
    found = (*files.lemmas(), *files.vacuity(), *files.partition(), *files.of_ops(), *files.of_groups(),
             *files.precision(asked), *files.order())
    by_run_alone = files.candidates.keys() - {(q.obligation, q.group) for q in found}
    return (*found, *(files.query(*key, Obligations()) for key in sorted(by_run_alone)))


def of_types(step: Step, report: Report, asked: str = "") -> tuple[Query, ...]:
    """The query on the types of sums, where they are asked for; else none."""
    return tuple(_Files(prepared(step), report, {}, "").precision(asked))


class _Files:
    """The files of one certificate."""

    def __init__(self, step: Step, report: Report, candidates: Mapping[tuple[str, str], Candidate], part: str):
        self.step, self.report, self.candidates, self.part = step, report, candidates, part
        self.flows = Flows(step)
        self.verdicts = {(v.id, v.group): v for v in report.obligations}
        self.names: set[str] = set()
        self.streams: Ordered | None = None

    def lemmas(self) -> Iterator[Query]:
        """The base and the step of the induction for every lemma that a rule uses."""
        for lemma in lemmas.used(self.step):
            for part, assertions in zip(("base", "step"), lemmas.obligations(lemma), strict=True):
                yield lemma_query(self.name(LEMMA, lemma.name, part), lemma.name, lemma.statement,
                                  f"the {part} of the induction over ranks does not fail", self.report, assertions)

    def vacuity(self) -> Iterator[Query]:
        """The queries that the premises have models."""
        verdict = self.verdicts["vacuity", ""]
        expected = SAT if verdict.verdict == PROVED else ""
        for question in questions(self.step):
            checked, pinned, together = len(question.occurrences), question.pinned, question.together
            sizes = {str(p.arg(0)): n for p, n in zip(pinned, question.sizes.values(), strict=True)}
            head = self.head(f"vacuity: {OBLIGATIONS['vacuity']}", "",
                             "at the pinned sizes the premises have a model in which every `where` holds on some rank",
                             expected, _ended(verdict), ("instances", f"{checked}, all in one formula"),
                             *_pins(sizes))
            lines = [*head, *_asked("QF_NIA", [*premises(self.step, [*pinned, together]), *pinned],
                                    [("every premise and every `where` at once", together)])]
            numbers = "-".join(map(str, dict.fromkeys(sizes.values())))
            yield Query(self.name("vacuity", f"sizes-{numbers}"), "vacuity", "", str(verdict.verdict), expected,
                        _joined(lines), checked, 1, {}, sizes)

    def partition(self) -> Iterator[Query]:
        """The query on layouts, which only layouts that disagree need: owner functions are total by construction."""
        key = next(k for k in self.verdicts if k[0] == "partition")
        verdict, clash = self.verdicts[key], self.candidates.get(key)
        generated = Obligations(full=True)
        if clash is None:
            for _ in range(verdict.instances):
                generated.hold("partition")
        else:
            generated.add("partition", "layouts", None, lambda: replace(clash.failure, obligation="partition"))
        yield self.query(*key, generated)

    def of_ops(self) -> Iterator[Query]:
        """The obligations on the ops of the step."""
        generated = _generated(lambda: network_obligations(self.step, self.flows, full=True))
        for identifier in of_ops(self.step):
            if identifier == "schedule":
                yield from self.schedule(generated)
            else:
                yield self.query(identifier, "", generated)

    def schedule(self, messages: Obligations) -> Iterator[Query]:
        """The query that the order in which stages run has no cycle; the obligations on messages, if there are any.

        Where sends wait for their receiver there is one, too, that no stage waits forever.
        """
        pipeline, verdict = self.step.reference.pipeline, self.verdicts["schedule", ""]
        facts = [acyclic(pipeline)]
        yield self._of_sizes(facts[0], verdict, "each item with a start time that the formulas spell out")
        if sends_wait(pipeline) and not unlike(self.step):
            facts.append(posts_end(self.step))
            if facts[1].failures:
                by = "with a time that the formulas spell out" if facts[1].verdict != REFUTED else \
                    "by its stage, and its number there"
                yield self._of_sizes(facts[1], verdict, f"each post {by}", POSTS)
        if messages.instances["schedule"] or (verdict.verdict != PROVED and all(f.verdict == PROVED for f in facts)):
            yield self.query("schedule", "", messages, "messages")

    def _of_sizes(self, fact: Fact, verdict: Verdict, times: str, *part: str) -> Query:
        """The query that no sizes break a fact on an order of stages."""
        expected = {PROVED: UNSAT, REFUTED: SAT}.get(fact.verdict, "")
        happens = "at some sizes one of the failures below happens" if expected == SAT else \
            f"no sizes, stage and items let one of the failures below happen, so that {fact.statement}"
        lines = [*self.head(f"schedule: {OBLIGATIONS['schedule']}", "", happens, expected,
                            ("order", f"{fact.order}, {times}"),
                            _ended(verdict), ("instances", f"1 behind the {len(fact.failures)} formulas below"),
                            legend=_OF_POSTS if part else _OF_ORDER),
                 *_asked("QF_LIA", list(fact.known), fact.failures)]
        return Query(self.name("schedule", *part), "schedule", "", str(verdict.verdict), expected, _joined(lines), 1,
                     len(fact.failures))

    def of_groups(self) -> Iterator[Query]:
        """The obligations of every parameter group."""
        for group in self.step.reference.groups:
            generated = _generated(lambda g=group: obligations(
                self.step, g, sites_of(self.step, g, self.flows), self.flows, full=True))
            for identifier in PER_GROUP:
                yield self.query(identifier, group.name, generated)

    def precision(self, asked: str) -> Iterator[Query]:
        """The query that no sum of a gradient adds with fewer digits than is asked of it, where that is asked."""
        verdict = self.verdicts.get((PRECISION, ""))
        if verdict is None:
            return
        listed = [s for s in sums(self.step, asked) if s.least]
        known, failures = formulas(listed)
        expected = {PROVED: UNSAT, REFUTED: SAT}.get(verdict.verdict, "") if failures else ""
        counted = f"{len(listed)}: {len(listed)} behind the {len(failures)} formulas below, " \
                  "0 by how the program is built"
        lines = self.head(f"{PRECISION}: {ASKED_FOR[PRECISION]}", "",
                          "a sum has fewer digits, or a smaller range, than is asked of it" if expected == SAT else
                          "no sum has fewer digits, or a smaller range, than is asked of it" if failures else
                          "no formula: there is nothing to ask a solver", expected, _ended(verdict),
                          ("instances", counted), legend=_OF_TYPES)
        yield Query(self.name(PRECISION), PRECISION, "", str(verdict.verdict), expected,
                    _joined([*lines, *(_asked("QF_LIA", known, failures) if failures else ())]), len(listed),
                    len(failures))

    def order(self) -> Iterator[Query]:
        """The queries on races and on values that share a slot, where a program says on which streams it runs."""
        for identifier in ORDER if self.streams else ():
            assert self.streams is not None
            verdict = self.verdicts[identifier, ""]
            known, failures = races.formulas(self.streams, identifier)
            expected = {PROVED: UNSAT, REFUTED: SAT}.get(verdict.verdict, "") if failures else ""
            happens = "one of the failures below happens" if expected == SAT else \
                "no sizes and turns let one of the failures below happen" if failures else \
                "no formula: there is nothing to ask a solver"
            lines = self.head(f"{identifier}: {ASKED_FOR[identifier]}", "", happens, expected, _ended(verdict), (
                "instances", f"{len(failures)}: {len(failures)} behind the {len(failures)} formulas below, "
                "0 by how the program is built"), legend=_OF_STREAMS)
            asked = _asked("QF_LIA", known, failures) if failures else ()
            yield Query(self.name(identifier), identifier, "", str(verdict.verdict), expected,
                        _joined([*lines, *asked]), len(failures), len(failures))

    def query(self, identifier: str, group: str, generated: Obligations, part: str = "") -> Query:
        """The query of one obligation of one group, or of a part of it."""
        verdict = self.verdicts[identifier, group]
        failures = _distinct(f for f in generated.failures.values() if f.obligation == identifier)
        facts = dict(generated.facts.get(identifier, Counter[str]()))
        instances = generated.instances[identifier]
        candidate = self.candidates.get((identifier, group))
        expected = "" if not failures else SAT if candidate else UNSAT if verdict.verdict == PROVED else ""
        formulas = [in_case(f) for f in failures]
        assumed = premises(self.step, formulas) if failures else []
        sizes = _sizes(self.step, candidate) if candidate else {}
        assumed += [symbols.symbol(name) == value for name, value in sizes.items()]
        out = ", ".join(f"{axis} = {size}" for axis, size in self.step.reference.unrolled.items())
        none = f"at {out} no other" if out else "no"
        statement = "at the pinned sizes one of the failures below happens" if candidate else \
            f"{none} sizes, device, element and unit let one of the failures below happen"
        told = f"{instances}: {sum(f.instances for f in failures)} behind the {len(failures)} formulas below, " \
               f"{sum(facts.values())} by how the program is built"
        lines = self.head(f"{identifier}: {OBLIGATIONS[identifier]}", group,
                          statement if failures else "no formula: there is nothing to ask a solver", expected,
                          _ended(verdict), ("instances", told),
                          *(("fact", f"{count} times: {fact}") for fact, count in facts.items()), *_pins(sizes))
        if failures:
            lines += _asked("QF_NIA", assumed, [(_told(f), w) for f, w in zip(failures, formulas, strict=True)])
        return Query(self.name(identifier, group, part), identifier, group, str(verdict.verdict), expected,
                     _joined(lines), instances, len(failures), facts, sizes)

    def head(self, about: str, group: str, statement: str, expected: str, *more: tuple[str, str],
             legend: Iterable[str] = _LEGEND) -> list[str]:
        """The header: comments that say what the query is."""
        return header([
            ("obligation", about),
            ("group", group or WHOLE_STEP),
            ("strategy", f"{self.report.strategy} on {self.report.model}"),
            *(("assuming", text) for text in self.report.assuming or ("nothing",)),
            ("statement", statement),
            ("expected", expected or "no answer is expected"),
            *more,
            _limits(self.report),
            *(("symbols", text) for text in legend),
        ])

    def name(self, *parts: str) -> str:
        """A unique file name, valid on every file system."""
        stem = ".".join(quote(p, safe="") for p in (self.part, *parts) if p)[:_LONGEST_NAME]
        further = (f"{stem}.{k}" for k in itertools.count(2))
        name = next(n for n in itertools.chain([stem], further) if n.casefold() not in self.names)
        self.names.add(name.casefold())
        return f"{name}.smt2"


def lemma_query(file: str, name: str, says: str, statement: str, report: Report, assertions: Iterable[Any]) -> Query:
    """The query of a lemma, or of a part of one: its premises, and as the last assertion that it fails."""
    *before, failing = assertions
    head = header([(LEMMA, f"{name}: {says}"), ("strategy", "none: the lemma is about sums, not about a program"),
                   ("assuming", "nothing but what is asserted before the last assertion"), ("statement", statement),
                   ("expected", UNSAT), _limits(report)])
    lines = [*head, *_asked("QF_UFNIA", before, [("it fails", failing)])]
    return Query(file, LEMMA, name, str(PROVED), UNSAT, _joined(lines), 1, 1)


def _limits(report: Report) -> tuple[str, str]:
    """The header's row on the solver, its resource limit and its seed."""
    return "answered by", f"{report.versions}, resource limit {RESOURCE_LIMIT}, seed {SEED}"


def _ended(verdict: Verdict) -> tuple[str, str]:
    return "verdict", verdict.verdict + "".join(f", {text}" for text in (verdict.cls, verdict.reason) if text)


def _pins(sizes: Mapping[str, int]) -> list[tuple[str, str]]:
    return [("pinned", ", ".join(f"{name} = {value}" for name, value in sizes.items()))] if sizes else []


def _generated(make: Any) -> Obligations:
    """The generated obligations; none if an event has no transfer rule, which the verdict reports."""
    try:
        found: Obligations = make()
    except NoRule:
        return Obligations(full=True)
    return found


def _sizes(step: Step, candidate: Candidate) -> dict[str, int]:
    """The sizes of a counterexample."""
    return {name: candidate.model[name] for name in (*step.reference.mesh.names, "m") if name in candidate.model}


def _distinct(failures: Iterable[Failure]) -> list[Failure]:
    """The failures, those of one event with the same formula, wording and cases merged into one."""
    found: dict[object, Failure] = {}
    for failure in failures:
        key = failure.event, failure.says, failure.cases, failure.exact, failure.formula.get_id()
        known = found.get(key)
        found[key] = replace(known, instances=known.instances + failure.instances) if known else failure
    return list(found.values())


def _told(failure: Failure) -> str:
    """A failure in words: what goes wrong, in how many instances, and for which positions of the unit's microbatch."""
    cases = dict.fromkeys(f"m {'=' if c.exact or not failure.exact else '>='} {c.least}, {c.name}"
                          for c in failure.cases)
    where = f"; the unit's microbatch among m: {'; '.join(cases)}" if cases else ""
    times = f"{failure.instances} instance{'s' * (failure.instances > 1)}"
    return f"{times}: {failure.event} {failure.says}{where}"


def _asked(logic: str, assumed: list[Any], failures: Sequence[tuple[str, Any]]) -> list[str]:
    """Declarations, premises, a definition for every way to fail, and the question whether one of them can happen."""
    assumed = list({p.get_id(): p for p in assumed}.values())
    formulas = [*assumed, *(formula for _, formula in failures)]
    writer = Writer(formulas)
    lines = [f"(set-logic {logic})", *declarations(formulas)]
    for premise in assumed:
        definitions, written = writer.write(premise)
        lines += [*definitions, f"(assert {written})"]
    for k, (told, formula) in enumerate(failures):
        definitions, written = writer.write(formula)
        lines += [comment(told), *definitions, f"(define-fun {_failure(k)} () Bool {written})"]
    return [*lines, *question(len(failures))]


def question(failures: int) -> tuple[str, str]:
    """The last lines of a file, which ask whether one of its failures can happen.

    >>> question(1), question(2)
    (('(assert |failure 1|)', '(check-sat)'), ('(assert (or |failure 1| |failure 2|))', '(check-sat)'))
    """
    names = [_failure(k) for k in range(failures)]
    return f"(assert (or {' '.join(names)}))" if len(names) > 1 else f"(assert {names[0]})", "(check-sat)"


def _failure(number: int) -> str:
    return f"|failure {number + 1}|"


def _joined(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"
