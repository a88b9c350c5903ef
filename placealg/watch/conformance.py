"""Whether a recorded training step is an instance of a proved program; if not, what is true of the one that it is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Unpack

from placealg.cases.case import CommandOptions, model_of, read_case
from placealg.check.edit_folding import folded
from placealg.check.kernel import kernel
from placealg.check.prove import prove
from placealg.errors import InputError
from placealg.models.model import Model
from placealg.prover.verdict import PROVED
from placealg.step.derive import derive
from placealg.step.edit import Edit, Edited, apply_edits, read_edits
from placealg.step.program import Step
from placealg.step.text import write_program
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import Strategy, overlay
from placealg.strategy.vocabulary import OPTIMIZERS
from placealg.strategy.write import toml_table, write_strategy
from placealg.watch.conform import Comparison, compare
from placealg.watch.differences import Difference, Unseen
from placealg.watch.names import USUAL, model_by_names, names_of
from placealg.watch.opaque import NAMELESS, opaque
from placealg.watch.propose import Proposal, proposals
from placealg.watch.seen import Seen
from placealg.watch.verdict import CONFORMS, DIFFERS, UNSEEN, Conformance

_Reading = tuple[Comparison, tuple[str, ...], Strategy]
"""A comparison, what was read off the run in words, and the strategy with it."""

_MOST = 24
"""How many proposals are held against a recording."""

NO_SINGLE_DEVICE = ("no single device stood beside the run, which alone tells; `placealg watch` starts one, and a test "
                    "gives `reference=`")
"""What lacks where nothing is said of it."""


def judge(strategy: Strategy, model: Model, seen: Seen, edits: Sequence[Edit] = (), names: Mapping[str, str] | None
          = None) -> Conformance:
    """Hold a recording against a strategy on a model; `edits` are those of the strategy's file."""
    return _judged(strategy, model, seen, edits, names, *nearest(strategy, model, seen, edits, names))


def conformance(seen: Seen, strategy: str | None, config: Model | str | None, names: Mapping[str, str] | None = None,
                **said: Unpack[CommandOptions]) -> Conformance:
    """A recording held against the strategy of a word, or without one against that which is read off it.

    Without `config`, and where the strategy's file says none, the model is one of those here whose parameters have the
    names of the run's, or one of which nothing is known but these.
    """
    model: Model | str = config or USUAL
    trained = list(dict.fromkeys(c.parameter for rank in seen.ranks for c in rank.chains))
    if not config and not names and trained:
        model = model_by_names(trained) or opaque(trained)
    if strategy:
        case = read_case(strategy, config, (), default=model, **said)
        told = judge(case.strategy, case.model, seen, case.edited.edits if case.edited else (), names)
    else:
        try:
            told = judge_proposed(model_of(model, **said) if isinstance(model, str) else model, seen, names)
        except InputError as error:
            if not isinstance(model, Model) or model.name != NAMELESS:
                raise
            raise InputError("no strategy of whole layers is this run, and of what is inside of them nothing is known "
                             f"but names, such as '{trained[0]}'") from error
    return told


def judge_proposed(model: Model, seen: Seen, names: Mapping[str, str] | None = None) -> Conformance:
    """Hold a recording against the strategy that it is likeliest to be of, read off placements and chains."""
    best: tuple[_Reading, Strategy, Proposal] | None = None
    problem: InputError | None = None
    for proposal in islice(proposals(seen, model, names), _MOST):
        strategy = _named(proposal)
        try:
            found = nearest(strategy, model, seen, (), names)
        except InputError as error:
            problem = problem or error
            continue
        if best is None or _weight(found[0]) < _weight(best[0][0]):
            best = found, strategy, proposal
        if found[0].matched:
            break
    if best is None:
        assert problem is not None
        raise problem
    reading, strategy, proposal = best
    told = _judged(strategy, model, seen, (), names, *reading)
    text, rests = write_strategy(strategy), proposal.rests
    if told.edited is not None and told.edited.verdict == PROVED:  # it is read off the run as well
        strategy, tables = replace(strategy, name="proposed"), told.edits
        told = judge(strategy, model, seen, read_edits(tables, told.comparison.step.reference), names)
        text = "\n".join([write_strategy(strategy), *(toml_table("[[edit]]", e) for e in tables)])
        rests = (*rests, "what differs from the strategy of these entries is proved, and stands as edits")
    return replace(told, proposed=text, rests=rests)


def _named(proposal: Proposal) -> Strategy:
    """The strategy of a proposal, by the catalogue's name where it is one of it."""
    own = overlay(Strategy("proposed"), proposal.tables)
    try:
        listed = parse_strategy(proposal.expression)
    except InputError:
        return own
    same = listed.mesh.names == own.mesh.names and (listed.dims, listed.states, listed.tables) == (
        own.dims, own.states, own.tables)
    return listed if same else own


def nearest(strategy: Strategy, model: Model, seen: Seen, edits: Sequence[Edit],
             names: Mapping[str, str] | None) -> _Reading:
    """The reading of a strategy that fits a recording best."""
    chosen: _Reading | None = None
    for tables, settings in readings(strategy, seen):
        meant = overlay(strategy, tables) if tables else strategy
        comparison = compare(program(meant, model, edits), model, seen, names, types_of(meant))
        if "loss" in tables and not (comparison.loss_seen or seen.settled):
            continue  # another divisor of the loss is read off what was seen of it, never off what was not
        if chosen is None or _weight(comparison) < _weight(chosen[0]):
            chosen = comparison, settings, meant
        if comparison.matched:
            break
    assert chosen is not None
    return chosen


def _judged(strategy: Strategy, model: Model, seen: Seen, edits: Sequence[Edit], names: Mapping[str, str] | None,
            comparison: Comparison, settings: tuple[str, ...], meant: Strategy) -> Conformance:
    """The verdict on a recording beside the program of one reading."""
    step = comparison.step
    report = prove(step)
    text, verified = write_program(step, meant), kernel(step)
    said: dict[str, Any] = {"strategy": strategy.name, "seen": seen, "comparison": comparison, "settings": settings,
                            "report": report, "program": text, "digest": hashlib.sha256(text.encode()).hexdigest(),
                            "kernel": verified.text(report)}
    if not comparison.differences:
        if seen.lifted is not None and seen.lifted.verdict == DIFFERS:
            return Conformance(verdict=DIFFERS, gap="what differs is in no collective, factor or sum that was "
                               "recorded: it is in what ops compute", **said)
        if seen.lifted is None:
            beside = Unseen("", "what ops compute" + ("" if seen.alone else f": {NO_SINGLE_DEVICE}"))
            said["comparison"] = replace(comparison, unseen=(*comparison.unseen, beside))
        conforms = seen.settled and not comparison.unseen
        return Conformance(verdict=CONFORMS if conforms else UNSEEN, **said)
    lone = groups_of(comparison, names, model)
    if lone:  # of a group some parameters alone differ: these are groups of their own
        meant = overlay(meant, {"groups": lone})
        comparison = compare(program(meant, model, edits), model, seen, names, types_of(meant))
        said["comparison"] = comparison
    tables = {**({"groups": lone} if lone else {}), **_tables(comparison.differences)}
    if tables:
        meant = overlay(meant, tables)
        step, said["tables"] = program(meant, model, edits), tables
    found, gap = edits_of(comparison.differences, step)
    if gap or not (found or tables):
        return Conformance(verdict=DIFFERS, gap=gap, **said)
    try:
        read = read_edits(found, step.reference)
        edited = apply_edits(step, read)
    except InputError as error:
        return Conformance(verdict=DIFFERS, edits=tuple(found), gap=str(error), **said)
    wrong = {d.group for d in comparison.differences}  # replicas of these differ because of an earlier step
    by_axes = any(d.kind in ("norm", "order") and d.group for d in comparison.differences)  # the norm has another value
    left = [d.says for d in compare(edited, model, seen, names, types_of(meant)).differences
            if (d.kind not in ("replicas differ", "placement") or d.group not in wrong)
            and not (by_axes and d.kind == "norm" and not d.group)]
    if left:
        return Conformance(verdict=DIFFERS, edits=tuple(found),
                           gap=f"with these edits the run is still not the program: {left[0]}", **said)
    said["edits"] = tuple(folded(found, step, lambda tables: _same(tables, step, edited)))
    return Conformance(verdict=DIFFERS, edited=prove(edited, step, Edited(step, read)), **said)


def types_of(strategy: Strategy) -> dict[str, str]:
    """The bytes per element that a strategy says."""
    return {symbol: strategy.option("types", symbol) for symbol in strategy.tables.get("types") or ()}


def groups_of(comparison: Comparison, names: Mapping[str, str] | None, model: Model) -> dict[str, Any]:
    """Tables of groups, one for each parameter, of those that differ where others of their group do not."""
    met = {c.parameter for rank in comparison.seen.ranks for c in rank.chains}
    meant = {name: named.parameter for name, named in names_of(met, model, names).items()}
    found: dict[str, Any] = {}
    for group in comparison.step.reference.groups:
        for difference in comparison.differences:
            own = {meant[p] for p in difference.parameters if p in meant} & set(group.parameters)
            if difference.edits and difference.group == group.name and own and own != set(group.parameters):
                found |= {p.replace(".", "_"): {"match": p} for p in sorted(own)}
    return found


def _tables(differences: Iterable[Difference]) -> dict[str, dict[str, Any]]:
    """The entries of the strategy's tables that say what differs."""
    found: dict[str, dict[str, Any]] = {}
    for difference in differences:
        for table, entries in difference.tables.items():
            found.setdefault(table, {}).update(entries)
    return found


def program(strategy: Strategy, model: Model, edits: Sequence[Edit]) -> Step:
    """The program of a strategy under the edits of its file."""
    step = derive(strategy, model)
    return apply_edits(step, edits) if edits else step


def readings(strategy: Strategy, seen: Seen) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """(tables, in words) that a run says where the strategy is silent: the likeliest first."""
    said: Mapping[str, Any] = strategy.tables.get("optimizer") or {}
    tables: dict[str, Any] = {"optimizer": {}}
    words: list[str] = []
    clipped = any(h.verb == "scale" for r in seen.ranks for c in r.chains for t in c.terms for h in t.hops)
    if "clip" not in said and not clipped:
        tables["optimizer"]["clip"] = "none"
        words.append("no clipping")
    if "name" not in said and seen.optimizer in OPTIMIZERS:
        tables["optimizer"]["name"] = seen.optimizer
        words.append(seen.optimizer)
    tables = {k: v for k, v in tables.items() if v}
    count = max(seen.microbatches, 1)
    words.append(f"{count} microbatch{'es' if count > 1 else ''}")
    yield tables, tuple(words)
    averaged = "microbatch" not in (strategy.loss()["count_axes"] or ())  # a mean over microbatches is taken somewhere
    if averaged and "microbatch_mean" not in (strategy.tables.get("schedule") or {}) and count > 1:
        yield ({**tables, "schedule": {"microbatch_mean": "gradients"}},
               (*words, "the mean over microbatches is taken of the gradients"))
    if "preset" not in (strategy.tables.get("loss") or {}):
        yield {**tables, "loss": {"preset": "token_mean"}}, (*words, "the loss divides by the tokens of all ranks")
    if "clip" not in said and not clipped:
        rest = {k: v for k, v in (tables.get("optimizer") or {}).items() if k != "clip"}
        yield ({"optimizer": rest} if rest else {}), tuple(w for w in words if w != "no clipping")


def _weight(comparison: Comparison) -> int:
    return len(comparison.differences) + len(comparison.unseen)


def edits_of(differences: Iterable[Difference], step: Step) -> tuple[list[Mapping[str, Any]], str]:
    """The differences as [[edit]] tables, each once; and why not, where one has no words in the language."""
    found: list[Mapping[str, Any]] = []
    every = [d for d in differences if not d.tables]
    said = {d.group for d in every if d.edits}
    for difference in every:
        if difference.kind == "placement" and difference.group in said:  # what is done with it says how it rests
            continue
        if not difference.edits:
            return [], f"no edit says it: {difference.says}"
        found += [e for e in difference.edits if e not in found]
    return found, ""


def _same(tables: Sequence[Mapping[str, Any]], step: Step, edited: Step) -> bool:
    try:
        return apply_edits(step, read_edits(tables, step.reference)) == edited
    except InputError:
        return False
