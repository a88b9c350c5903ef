"""The page of a search: the best configuration with its terms and proof, what is close, why others lost, the front."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from placealg.configurations.calibrate import Calibration
from placealg.configurations.explain import Neighbour, TermValue, terms
from placealg.configurations.found import Configuration, Found
from placealg.configurations.left_out import CLAIMS, Decided
from placealg.configurations.modes import by_rule
from placealg.configurations.pruning import MEANING
from placealg.configurations.question import OBJECTIVES, Question
from placealg.configurations.space import PRECISION
from placealg.configurations.stages import told
from placealg.cost.formula import Formula
from placealg.cost.times import HYPOTHESES, PARAMETERS, PARTS, TERMS
from placealg.frozen import FrozenMap
from placealg.mesh import SYMBOLS
from placealg.prover.verdict import Report
from placealg.render.proof import coloured
from placealg.render.search_front import decimal, front_document, front_page, laid
from placealg.render.search_modes import enumerated, is_unnamed, toml_of
from placealg.render.text_layout import Cell, Line, bold, dim, indent, line, prose, table
from placealg.render.values import number
from placealg.strategy.options import DEFAULTS, TYPES
from placealg.strategy.precision import precision
from placealg.strategy.write import write_strategy

GB = 10**9
_FORMULA = 96
"""The most characters of a formula that stands beside its value; a longer one is told in words."""

_LISTED = 12
"""The neighbours that a page lists."""


@dataclass(frozen=True, slots=True)
class Preferred:
    """The best `one` of the strategies that match patterns; whether it loses no more than `within` per cent is told."""

    patterns: tuple[str, ...]
    one: Configuration | None
    within: Fraction


@dataclass(frozen=True, slots=True)
class Answer:
    """What a page tells: `reports` by expression, `parts` of the bound and `terms` of the estimate of the best."""

    found: Found
    best: Configuration
    parts: Sequence[TermValue]
    terms: Sequence[TermValue]
    need: Formula
    reports: dict[str, Report]
    near: Sequence[Neighbour]
    top: Sequence[Configuration]
    front: Sequence[Configuration] | None = None
    calibration: Calibration | None = None
    thought: Sequence[Line] = ()
    left_out: Sequence[Decided] = ()
    preferred: Preferred | None = None


def seconds(value: Fraction | float) -> str:
    """Seconds to four digits.

    >>> seconds(Fraction(1, 3)), seconds(14)
    ('0.3333 s', '14 s')
    """
    return f"{float(value):.4g} s"


def gigabytes(value: Fraction | float) -> str:
    """Bytes as GB to three decimals."""
    return f"{float(value) / GB:,.3f} GB"


def page(answer: Answer, width: int) -> list[Line]:
    """The whole page."""
    found, best, question = answer.found, answer.best, answer.found.question
    lines = [*_head(question, width), *_space(found, width), *_proved(answer, width), ()]
    lines += [line(bold("best"), f"  {best.expression}"), *indent(prose(laid(best), width - 2, hang=2))]
    if best.stages:
        lines += indent(prose(told(best.stages), width - 2, "dim", hang=2))
    more = "" if question.margin.factor == 1 and not question.margin.reserve else " with the margin"
    rows: list[list[Cell]] = [
        ["needs at least", gigabytes(best.need) + more, _text(answer.need, "the peak of the fullest stage")],
        ["takes at least", seconds(best.bound), _words(answer.parts[0], PARTS) if answer.parts else ""],
        ["takes about", seconds(best.estimate), f"{float(_tokens(best, question)):,.0f} tokens a second and device"],
    ]
    lines += indent(table(rows, "lll", width - 2, wrap={2: 24}))
    lines += [(), line(bold("terms"), dim(" of about: what they sum to, largest first"))]
    lines += indent(table([[dim(t.name), seconds(t.value), _words(t, TERMS)] for t in answer.terms], "lrl", width - 2,
                          wrap={2: 24}))
    report = answer.reports[best.expression]
    assumed = f", assuming {', '.join(h.name for h in report.hypotheses)}" if report.hypotheses else ""
    lines += [(), line(bold("proof"), "  ", coloured(report.verdict), f" {report.cls or ''}".rstrip(),
                       dim(f": equals the single device{assumed}"))]
    if answer.preferred is not None:
        lines += _preferred(answer, width)
    lines += _near(answer, width)
    low, _ = found.least
    where = "in this space" if found.complete else "of these"
    lines += [(), *prose(f"bound  nothing {where} takes less than {seconds(low)}"
                         f"{' a sequence' if question.devices.more else ''} at these rates, under "
                         f"{', '.join(HYPOTHESES)}: placealg explain NAME", width, hang=7)]
    lines += _top(answer, width)
    if answer.front is not None:
        lines += [(), *front_page(answer.front, answer.reports, width)]
    if question.space.enumerated:
        lines += toml_of(best, answer.front, width)
    if answer.thought:
        lines += [(), *answer.thought]
    return lines


def _head(question: Question, width: int) -> list[Line]:
    devices, machine = question.devices, question.machine
    sizes = ", ".join(f"{n} = {number(int(v)) if v.denominator == 1 else v}" for n, v in question.sizes.items()
                      if n not in TYPES)
    said = question.space.parts.get(PRECISION, ())
    preset = precision(said[0]).types if len(said) == 1 and said[0] else FrozenMap[str, Any]()
    types = {n: question.sizes.get(n, preset.get(n, SYMBOLS[n].default)) for n in TYPES
             if n in DEFAULTS["types"] or n in preset}
    told = (f"{question.model.name} on {number(devices.count)} device{'' if devices.count == 1 else 's'} of "
            f"{float(question.memory) / GB:g} GB, "
            f"{devices.per_node} to a node; {' or '.join(map(number, devices.batches))} "
            f"sequence{'' if devices.batches == (1,) else 's'} a step"
            + (f", {sizes}" if sizes else ""))
    lines = prose(told, width, "bold", hang=2)
    lines += prose("bytes  " + ", ".join(f"{n} = {v}" for n, v in types.items())
                   + (f", by {said[0]}" if preset else "") + "; --set g=4 wire=4 says others",
                   width, "dim", hang=7)
    rates = "; ".join(f"{n} {float(v):.4g}" for n, v in machine.rates.items())
    lines += prose(f"rates  {machine.name}: {rates}", width, "dim", hang=7)
    named = {**PARAMETERS, **question.parameters}
    lines += prose("about  rests on " + ", ".join(f"{n} {float(v):g}" for n, v in named.items())
                   + ": choices, fitted to nothing; --measured fits efficiency to a step of yours", width, "dim",
                   hang=7)
    return lines


def _space(found: Found, width: int) -> list[Line]:
    counts, question = found.counts, found.question
    margin = question.margin
    aside = (f", with {gigabytes(margin.reserve)} set aside" if margin.reserve else "") + (
        f" and activations counted {float(margin.factor):g} times" if margin.factor != 1 else "")
    told = (f"space  {question.space.name}: {number(counts.strategies)} strategies, {number(counts.layouts)} "
            f"configurations; {number(counts.fit)} need at most {float(question.memory) / GB:g} GB{aside}; "
            f"{number(counts.places)} with their place in the nodes")
    lines = [*prose(told, width, hang=7), *enumerated(question.space.enumerated, width)]
    if counts.open:
        lines += prose(f"       {number(counts.open)} of them were decided by fractions", width, "dim", hang=7)
    if found.refused:
        rules = by_rule(found.refused.values(), 3)
        rest = len(found.refused) - sum(count for _, count in rules)
        lines += prose(f"refused  {number(len(found.refused))} strategies do not stand on the model: " + "; ".join(
            f"{number(count)}: {rule}" for rule, count in rules) + (f"; {number(rest)} by others" if rest else ""),
            width, "dim", hang=9)
    lines += _pruned(found, width)
    if not found.complete:
        seen = counts.strategies + counts.refused + len(found.pruned)
        lines += prose(f"stopped after {number(seen)} of {number(found.total)} strategies: what follows holds for "
                       "those alone", width, "red", hang=2)
    return lines


def _pruned(found: Found, width: int) -> list[Line]:
    """What was left out by a bound, and what that saved."""
    lines: list[Line] = []
    for by, rests in MEANING.items():
        those = [one for one in found.pruned.values() if one.by == by]
        if those:
            lines += prose(f"left out  {number(len(those))} strategies with {number(sum(o.layouts for o in those))} "
                           f"configurations {rests}: none of them is better", width, "dim", hang=10)
    return lines


def _proved(answer: Answer, width: int) -> list[Line]:
    """What the space leaves out, with the verdicts on which that rests."""
    lines: list[Line] = []
    for one in answer.left_out:
        head = "left out" if one.proved else "kept"
        claims = zip(("needs no more memory", "sends no more"), one.verdicts, strict=True)
        told = ", ".join(f"{what}: {verdict}" for what, verdict in claims)
        lines += prose(f"{head}  {one.pair.worse}, for {one.pair.better}, which for all sizes {told}", width, "dim",
                       hang=len(head) + 2)
    return lines


def _near(answer: Answer, width: int) -> list[Line]:
    fitting = [n for n in answer.near if n.other is not None]
    over = [n for n in answer.near if n.other is None]
    least = answer.best.value(answer.found.question.objective)
    others = [number(answer.found.count(least * (100 + share) / 100) - 1) for share in (1, 5)]
    lines = [(), line(bold("close"), dim(f"  {others[0]} others within 1 %, {others[1]} within 5 %"))]
    rows: list[list[Cell]] = []
    for one in fitting[:_LISTED]:
        rows.append([one.what, _percent(one.ratio), dim(f"{one.term} {_signed(one.by)} s" if one.by else "the same")])
    lines += indent(table(rows, "lrl", width - 2)) if rows else []
    if over:
        rows = [[one.what, f"{float(one.over) / GB:,.3f} GB", dim(f"{one.term} {_signed(one.by / GB)} GB" if one.by else
                                                               "no even place in the nodes")]
                for one in over[:_LISTED]]
        lines += [line(bold("does not fit"), dim("  by how much, and what grew")),
                  *indent(table(rows, "lrl", width - 2))]
    return lines


def _top(answer: Answer, width: int) -> list[Line]:
    if len(answer.top) < 2:
        return []
    rows: list[list[Cell]] = [[bold("needs, GB"), bold("at least, s"), bold("about, s"), bold("strategy and sizes")]]
    rows += [_row(one) for one in answer.top]
    return [(), line(bold("first"), dim(f"  by {OBJECTIVES[answer.found.question.objective]}")),
            *indent(table(rows, "rrrl", width - 2, wrap={3: 30}))]


def _row(one: Configuration) -> list[Cell]:
    return [f"{float(one.need) / GB:,.3f}", f"{float(one.bound):.4g}", f"{float(one.estimate):.4g}",
            f"{one.expression}  {laid(one)}"]


def _preferred(answer: Answer, width: int) -> list[Line]:
    """The best of what is preferred, and by how much it loses."""
    asked, objective = answer.preferred, answer.found.question.objective
    assert asked is not None
    told = ", ".join(asked.patterns)
    if asked.one is None:
        return [(), *prose(f"prefer  nothing that matches {told} fits", width, "red", hang=8)]
    one = asked.one
    mine, least = one.value(objective), answer.best.value(objective)
    ratio = mine / least - 1 if least else Fraction(0)
    head = [line(bold("prefer"), f"  {one.expression}", dim(f"  {_percent(ratio)}, " + (
        "within" if ratio * 100 <= asked.within else "beyond") + f" {float(asked.within):g} %"))]
    rest = (f"needs at least {gigabytes(one.need)}, takes at least {seconds(one.bound)}, about "
            f"{seconds(one.estimate)}; ")
    return [(), *head, *indent(prose(laid(one), width - 2, hang=2)),
            line("  ", rest, coloured(answer.reports[one.expression].verdict))]


def why(found: Found, one: Neighbour, text: str, width: int) -> list[Line]:
    """Why a configuration that a user had in mind is not the best."""
    if one.other is None and not one.over:
        return prose(f"why not  {text}: it has no even place in nodes of {found.question.devices.per_node}", width,
                     hang=9)
    if one.other is None:
        return prose(f"why not  {text}: it does not fit, by {gigabytes(one.over)}; against the best {one.term} grew by "
                     f"{gigabytes(one.by)}", width, hang=9)
    rank = found.count(one.other.value(found.question.objective), less=True) + 1
    mine, best = terms(one.other, found.question), terms(found.best, found.question)
    lines = prose(f"why not  {text}: needs {gigabytes(one.other.need)}, takes at least {seconds(one.other.bound)}, "
                  f"about {seconds(one.other.estimate)}: {_percent(one.ratio)}, place {number(rank)} of "
                  f"{number(found.counts.fit)}", width, hang=9)
    grown = {name: mine.get(name, 0) - best.get(name, 0) for name in {**best, **mine}}
    rows: list[list[Cell]] = [[dim(name), seconds(mine.get(name, 0)), f"{_signed(grown[name])} s"]
                              for name in sorted(grown, key=lambda n: -grown[n])]
    return [*lines, *indent(table(rows, "lrr", width - 2), 9)]


def misfit(found: Found, width: int) -> list[Line]:
    """The page where nothing fits: the smallest excess, and what would do."""
    lines = [*_head(found.question, width), *_space(found, width), ()]
    missed = found.missed
    if missed is None:
        reasons = Counter(found.undivided.values()).most_common()
        for reason, count in reasons[:_LISTED]:
            those = [e for e, why_not in found.undivided.items() if why_not == reason]
            told = ", ".join(those[:3]) + (f" and {number(count - 3)} more" if count > 3 else "")
            lines += prose(f"none  {told}: {reason}", width, hang=6)
        return lines if reasons else [*lines, *prose("none  no strategy stands on the model", width, hang=6)]
    programs, sizes, need = missed
    told = " ".join(f"{n}={v}" for n, v in sizes.items())
    lines += prose(f"none fits  the nearest misses by {gigabytes(need - found.question.memory)}: "
                   f"{programs.expression} {told} needs at least {gigabytes(need)}, which a device of that memory "
                   "would have", width, hang=2)
    return lines


def _percent(ratio: Fraction) -> str:
    return f"{float(ratio) * 100:+.2f} %"


def _signed(value: Fraction | int) -> str:
    return f"{float(value):+.3g}"


def _tokens(one: Configuration, question: Question) -> Fraction:
    length = question.sizes.get("s", Fraction(question.model.sizes.get("s", 1)))
    batch = int(one.sizes.get("batch", question.devices.batch))
    return batch * length / one.estimate / question.devices.count if one.estimate else Fraction(0)


def _text(formula: Formula | None, words: str) -> str:
    text = "" if formula is None else formula.text()
    return text if text and len(text) <= _FORMULA else words


def _words(term: TermValue, words: Any) -> str:
    return _text(term.formula, words.get(term.name, ""))


def document(answer: Answer) -> dict[str, Any]:
    """The same as JSON."""
    found, best = answer.found, answer.best
    counts = found.counts
    return {
        "question": found.question.to_json(), "complete": found.complete,
        "counts": {"strategies": counts.strategies, "refused": counts.refused, "configurations": counts.layouts,
                   "fit": counts.fit, "places": counts.places, "decided_by_fractions": counts.open},
        "pruned": {by: {"strategies": len(those), "configurations": sum(one.layouts for one in those)}
                   for by in MEANING if (those := [one for one in found.pruned.values() if one.by == by])},
        "best": {**best.to_json(), "bound": _terms(answer.parts), "estimate": _terms(answer.terms),
                 "need": answer.need.to_json(), "verdict": str(answer.reports[best.expression].verdict),
                 "class": answer.reports[best.expression].cls,
                 "hypotheses": [h.name for h in answer.reports[best.expression].hypotheses]},
        "space_bound_seconds": {"low": found.least[0], "high": found.least[1]},
        "hypotheses": dict(HYPOTHESES),
        "toml": {one.expression: write_strategy(one.programs.strategy)
                 for one in (best, *(answer.front or ())) if is_unnamed(one.expression)},
        "left_out": [{"worse": one.pair.worse, "better": one.pair.better,
                      "verdicts": dict(zip(CLAIMS, one.verdicts, strict=True))} for one in answer.left_out],
        "neighbours": [{"what": n.what, "fits": n.other is not None, "ratio": float(n.ratio), "term": n.term,
                        "by": float(n.by), "over_bytes": float(n.over),
                        "configuration": n.other.to_json() if n.other else None} for n in answer.near],
        "top": [one.to_json() for one in answer.top],
        "front": None if answer.front is None else front_document(answer.front, answer.reports),
        **({"preferred": None if answer.preferred.one is None else
            front_document([answer.preferred.one], answer.reports)[0]} if answer.preferred else {}),
    }


def _terms(values: Sequence[TermValue]) -> list[dict[str, Any]]:
    return [{"name": t.name, "seconds": float(t.value), "exact": str(t.value),
             "expr": None if t.formula is None else str(t.formula.expr)} for t in values]


def as_csv(found: Found) -> str:
    """Every configuration that fits, best first, a row each; bytes that are whole are whole numbers."""
    written = io.StringIO()
    rows = csv.writer(written, lineterminator="\n")
    rows.writerow(["strategy", *found.sizes, *(_CSV[n] for n in found.figures)])
    columns = [found.table["strategy"], *(c.tolist() for c in found.sizes.values()),
               *(map(decimal, c) for c in found.figures.values())]
    rows.writerows(zip(*columns, strict=True))
    return written.getvalue()


_CSV = {"needs": "needs_bytes", "bound": "at_least_seconds", "estimate": "about_seconds", "card": "card_bytes"}
"""Column of a search's table -> its name in CSV."""
