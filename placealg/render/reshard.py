"""A resumption on another mesh as text: its verdict, its volumes, where states rest in both, and who reads what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from placealg.cost.formula import Formula
from placealg.cost.resharding import Volumes
from placealg.cost.resharding_names import Names
from placealg.cost.resharding_stages import OLD, RANK
from placealg.prover.resharding import Resharding
from placealg.prover.verdict import PROVED, REFUTED
from placealg.render.cost import value_of
from placealg.render.proof import COLOURS, MARKS, assumption, counterexample
from placealg.render.text_layout import Cell, Line, Span, bold, dim, indent, line, prose, table
from placealg.render.values import scale_for, scaled
from placealg.step.checkpoint import Checkpoint, Item, Spans
from placealg.step.reshard import INSTANCES, Read, Totals, width

SAYS: Mapping[str, str] = {
    "saved": "{old} stores the reference's states, every element of all that a rank loads",
    "loaded": "ranks that load what they would have stored go on as the single device does",
    "ran": "a small run on {sizes}, saved, read on the other mesh and gone on with: {observed} numbers compared",
}
VOLUMES: Mapping[str, tuple[str, str]] = {
    "stored": ("stored", "every element of what is read, once"),
    "read": ("read", "by all ranks of the new mesh"),
    "stays": ("stays", "of that on the reader's own device"),
    "moved": ("must move", "read from another device: the least, rank k staying where it is"),
    "rank_reads": ("a rank reads", "at most"),
    "rank_has": ("rank has", f"what the device of number {RANK} had of what it reads"),
}
_LONGEST = 1600
"""The most signs of a formula on the page."""


@dataclass(frozen=True, slots=True)
class Page:
    """What is told of a resumption: `counted` and `reads` are there where all sizes are known."""

    found: Resharding
    volumes: Volumes
    sizes: Mapping[str, Fraction]
    counted: Totals | None
    reader: int | None
    reads: tuple[Read, ...]
    gib: bool = False

    @property
    def names(self) -> tuple[str, str]:
        """The names of both strategies."""
        return (self.found.saved.strategy, self.found.loaded.strategy)


def page(told: Page, at: int, says: Mapping[str, str]) -> list[Line]:
    """The whole page, `at` columns wide."""
    found = told.found
    old, new = told.names
    head = line(bold(f"{old} → {new} on {found.saved.model}"), ": ", Span(str(found.verdict), COLOURS[found.verdict]))
    lines = [line(*head, dim(f", {found.cls}" if found.cls else ""))]
    lines += indent(prose(_meaning(found), at - 2))
    lines += [(), *indent(_parts(told, at - 2)), (), *indent(_conditions(found, at - 2, says))]
    for report in (found.saved, found.loaded):
        if report.counterexample:
            lines += [(), line(bold("counterexample"), dim(f"  {report.strategy} on its own mesh")),
                      *indent(counterexample(report.counterexample, at - 2))]
    lines += [(), *_volumes(told, at), (), *_layouts(told, at)]
    return [*lines, *_reads(told, at)]


def _meaning(found: Resharding) -> str:
    if found.verdict == PROVED:
        return "the run that is resumed on the other mesh equals the single-device run, for all sizes of both"
    if found.verdict == REFUTED:
        return "the run that is resumed on the other mesh does not equal the single-device run"
    return found.reason


def _parts(told: Page, at: int) -> list[Line]:
    found, (old, new) = told.found, told.names
    rows: list[list[Cell]] = []

    def row(name: str, verdict: str, text: str) -> None:
        rows.append([line(MARKS[verdict], " ", name), Span(str(verdict), COLOURS[verdict]), dim(text)])

    row("saved", found.saved.verdict, SAYS["saved"].format(old=old))
    for lemma in found.blocks:
        row(lemma.name, lemma.verdict, lemma.statement)
    row("loaded", found.loaded.verdict, f"{new}: {SAYS['loaded']}")
    if found.ran is not None:
        sizes = " and ".join(_shown(s) for s in found.sizes)
        rows.append([line(MARKS[PROVED if found.ran.equal else REFUTED], " ran"),
                     Span(*(("EQUAL", "green") if found.ran.equal else ("DIFFERS", "bold red"))),
                     dim(SAYS["ran"].format(sizes=sizes, observed=found.ran.observed))])
    return table(rows, "lll", at, wrap={2: 20})


def _shown(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{a} = {n}" for a, n in sizes.items()) or "one device"


def _conditions(found: Resharding, at: int, says: Mapping[str, str]) -> list[Line]:
    rows: list[list[Cell]] = [[dim("assuming" if not k else ""), assumption(h, says)]
                              for k, h in enumerate(found.hypotheses)]
    rows += [[dim("not covered" if not k else ""), text] for k, text in enumerate(found.not_covered)]
    return table(rows, "ll", at, wrap={1: 30})


def _volumes(told: Page, at: int) -> list[Line]:
    values: dict[str, int | Fraction | None] = {n: None for n, _ in told.volumes.items()}
    if told.counted is None:
        values = {n: value_of(f, told.sizes) for n, f in told.volumes.items()}
    else:
        values |= {"stored": told.counted.stored, "read": told.counted.read, "stays": told.counted.stays,
                   "moved": told.counted.moved, "rank_reads": told.counted.largest}
    scale = scale_for("bytes", values.values(), told.gib)
    head = "volumes, bytes" + (f"; values in {scale.head}" if any(v is not None for v in values.values()) else "")
    rows: list[list[Cell]] = []
    names = Names(formula for _, formula in told.volumes.items())
    for name, formula in told.volumes.items():
        if name == "rank_has" and told.volumes.stays.expr is not None:
            continue
        label, what = VOLUMES[name]
        rows.append([label, _formula(name, formula, names), scaled(values[name], scale.divisor), dim(what)])
    lines = [line(bold(head)), *indent(table(rows, "llrl", at - 2, wrap={1: 30, 3: 20}))]
    if meanings := list(names.told()):
        lines += indent([line(dim("where")), *(part for text in meanings
                                               for part in indent(prose(text, at - 4, "dim", hang=4)))])
    if told.volumes.stays.note:
        lines += indent(prose(told.volumes.stays.note, at - 2, "dim"))
    if told.counted is not None:
        text = (f"values are counted read by read, {told.counted.reads:,} reads in all; blocks are of "
                "⌈length/n⌉, as torch.chunk cuts")
    else:
        text = "sizes that are missing are set with --set; those of the old mesh are called dp_old and the like"
    return [*lines, *indent(prose(text, at - 2, "dim"))]


def _formula(name: str, formula: Formula, names: Names) -> str:
    """A formula as text, with names for its longer parts."""
    if formula.expr is None:
        return f"— {formula.reason}"
    if name == "moved" and len(formula.text()) > _LONGEST:
        return "what is read, less what stays"
    text = names.shortened(formula, _LONGEST)
    return text if len(text) <= _LONGEST else f"{len(text)} signs: --format json has it"


def _layouts(told: Page, at: int) -> list[Line]:
    """How every state rests in both, states that rest alike in one line."""
    reshard = told.found.reshard
    seen: dict[tuple[str, str, str], list[str]] = {}
    for one, two in reshard.pairs:
        key = two.value, layout(reshard.old, one, OLD), layout(reshard.new, two, "")
        seen.setdefault(key, []).append(two.parameter)
    rows: list[list[Cell]] = [[dim(h) for h in ("state", "of", told.names[0], told.names[1])]]
    rows += [[value, _named(parameters), had, has] for (value, had, has), parameters in seen.items()]
    scalars = ", ".join(reshard.new.scalars)
    rows += [[scalars, "", "on every rank", "on every rank"]] if scalars else []
    return [line(bold("where states rest")), *indent(table(rows, "llll", at - 2, wrap={1: 16, 2: 16, 3: 16}))]


def _named(parameters: Sequence[str]) -> str:
    if len(parameters) == 1:
        return parameters[0]
    return f"{parameters[0]} and {len(parameters) - 1} more"


def layout(found: Checkpoint, item: Item, suffix: str) -> str:
    """How a state rests: which axes cut what, in the names of a mesh."""
    told: dict[str, list[str]] = {}
    for axis, dim_ in item.splits.items():
        told.setdefault(dim_, []).append(axis + suffix)
    levels = [axis for level in item.levels for axis in level]
    if item.cut:
        told["elements" if item.flat else "rows"] = [a + suffix for a in levels if a in item.cut]
    if found.pipeline.axis:
        told["layers"] = [found.pipeline.axis + suffix]
    cut = ", ".join(f"{what} / {'·'.join(axes)}" for what, axes in told.items()) or "whole"
    if outside := [a + suffix for a in levels if a not in item.cut]:
        cut += f", of each block of {'·'.join(outside)}"
    only = ", ".join(f"{a}{suffix} = {k}" for a, k in item.at.items())
    return f"{cut}, at {only}" if only else cut


def _reads(told: Page, at: int) -> list[Line]:
    """What one rank reads, and of whose file."""
    if told.reader is None:
        return []
    folded: dict[tuple[int, str], list[Read]] = {}
    for read in told.reads:
        folded.setdefault((read.source, places(read)), []).append(read)
    amounts = {key: sum((_bytes(told, r) for r in reads), Fraction(0)) for key, reads in folded.items()}
    scale = scale_for("bytes", amounts.values(), told.gib)
    rows: list[list[Cell]] = [[dim(h) for h in ("from rank", "of", "states", "places", scale.head)]]
    for (source, where), reads in sorted(folded.items(), key=lambda pair: pair[0][0]):
        parameters = list(dict.fromkeys(r.item.parameter for r in reads))
        states = ", ".join(dict.fromkeys(r.item.value for r in reads))
        own = ", its own" if source == told.reader else ""
        amount = scaled(amounts[source, where], scale.divisor)
        rows.append([f"{source}{own}", _named(parameters), states, where, amount])
    lines = table(rows, "llllr", at - 2, wrap={1: 16, 3: 20})
    return [(), line(bold(f"what rank {told.reader} reads")), *indent(lines)]


def _bytes(told: Page, read: Read) -> Fraction:
    old = told.found.reshard.old
    item = old.item(*read.item.key)
    assert item is not None
    return read.elements * width(old, item)


def places(read: Read) -> str:
    """The places of a read, line by line, half open."""
    return ", ".join(f"{name} {_spans(spans)}" for name, spans in read.box.items()
                     if name != INSTANCES or spans != ((0, 1),))


def _spans(spans: Spans) -> str:
    shown = [f"{a}:{b}" for a, b in spans[:2]]
    return " ".join(shown) + (f" … {spans[-1][0]}:{spans[-1][1]}" if len(spans) > 2 else "")


def document(told: Page, timing: bool) -> dict[str, Any]:
    """The page as a JSON object."""
    found = told.found
    counted = told.counted
    return {
        "version": 1, "strategies": list(told.names), "model": found.saved.model, "verdict": str(found.verdict),
        "class": found.cls, "reason": found.reason, "hypotheses": [h.text for h in found.hypotheses],
        "not_covered": list(found.not_covered),
        "parts": {"saved": found.saved.to_json(timing), "loaded": found.loaded.to_json(timing),
                  "blocks": [{"name": b.name, "statement": b.statement, "verdict": str(b.verdict)}
                             for b in found.blocks]},
        "ran": None if found.ran is None else {"equal": found.ran.equal, "observed": found.ran.observed,
                                               "sizes": [dict(s) for s in found.sizes]},
        "volumes": {name: _leaf(name, f, told) for name, f in told.volumes.items()},
        "counted": None if counted is None else {
            name: _plain(getattr(counted, name)) for name in ("stored", "read", "stays", "moved", "largest", "reads")},
        "reads": [{"parameter": r.item.parameter, "state": r.item.value, "reader": r.reader, "source": r.source,
                   "places": {n: [list(s) for s in spans] for n, spans in r.box.items()},
                   "elements": r.elements, "bytes": _plain(_bytes(told, r))} for r in told.reads],
    }


def _leaf(name: str, formula: Formula, told: Page) -> dict[str, Any]:
    """A volume as JSON: its value is what is counted, where all sizes are known, as on the page."""
    counted = told.counted
    known = {} if counted is None else {"stored": counted.stored, "read": counted.read, "stays": counted.stays,
                                        "moved": counted.moved, "rank_reads": counted.largest}
    if name in known:
        return {**formula.to_json(), "value": _plain(known[name])}
    return formula.to_json(**{n: v for n, v in told.sizes.items() if n in formula.inputs})


def _plain(value: Fraction | int) -> int | float:
    exact = Fraction(value)
    return int(exact) if exact.denominator == 1 else float(exact)

