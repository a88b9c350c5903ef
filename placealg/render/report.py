"""A report: strategies as one page of HTML, with sliders by which a browser evaluates the closed forms exactly.

The page asks nothing of a network: its policy forbids it, and lets no script run but its own. Every text of a user is
escaped; the script holds numbers, formulas, and names of sizes, which are identifiers.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from hashlib import sha256
from itertools import product
from math import prod
from pathlib import Path

from placealg.arith import Monomial
from placealg.cost.document import assumed
from placealg.cost.formula import Formula
from placealg.cost.javascript import SIZES, definitions, javascript
from placealg.cost.mathml import mathml
from placealg.cost.stage import StageStep, stage_of
from placealg.mesh import Axis, Mesh
from placealg.prover.verdict import Counterexample, Report
from placealg.render.cost import CONVENTIONS, QUANTITIES, value_of
from placealg.render.counterexample_drawing import draw_counterexample
from placealg.render.mesh_drawing import HELD, draw_strategy, drawn_sizes
from placealg.render.mesh_exchanges import draw_moves
from placealg.render.proof import MARKS, SAYS, assumption, counterexample_rows, joined
from placealg.render.sliders import Slider, Told, sliders, spread
from placealg.render.step_drawing import Colours, axis_colours, draw_step
from placealg.render.svg import PALETTE, element, written
from placealg.render.text_layout import plain
from placealg.render.values import number, plain_number, readable, scale_for, scaled
from placealg.step.program import Step
from placealg.strategy.spec import Strategy

PARTS: Mapping[str, str] = {**HELD, "activations": PALETTE[3], "transient": PALETTE[4]}
"""Part of a device's memory -> its colour; together they are its total."""

LONGEST = 400
"""A formula longer than this, in characters, stands behind a click."""

MOST_DRAWN = 16
"""A mesh of more devices than this is drawn smaller."""

CERTIFIED = ("the proof as files, which another solver replays: `placealg prove --certificate DIR` and "
             "`placealg recheck DIR`")
"""How a reader of the page comes to the proof itself."""

FOLLOWED, MOST_FOLLOWED = (2, 4, 8, 16), 8
"""Sizes of an axis at which placements are drawn, for sliders to come to, and how many of these drawings there are."""

_ROOM = Path(__file__).parent


def report(every: Sequence[Told], says: Mapping[str, str]) -> str:
    """The whole page; `says` maps the name of a hypothesis to what it says. Without verdicts it speaks of none."""
    colours = axis_colours(*(told.program for told in every))
    free = sliders(every)
    names = ", ".join(told.strategy.name for told in every)
    title = f"{names} on {every[0].program.reference.model}"
    script = f"{_read('report.js')}\nstart({_strategies(every)}, {_limits(free)});\n"
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = element("head", '<meta charset="utf-8">',
                   element("meta", name="viewport", content="width=device-width, initial-scale=1"),
                   element("meta", http_equiv="Content-Security-Policy", content=policy),
                   element("title", written(title)), element("style", _read("report.css")))
    body = [_head(every, title), _sizes(free, every), _charts(every, colours),
            *_each(every, "placements", _placement, named=False),
            *_each(every, "what moves", lambda told: _moves(told, colours), named=False),
            *_each(every, "closed forms", _formulas), _verdicts(every, says),
            *_each(every, "the step program", lambda told: _program(told, colours)), _granted(every)]
    page = element("body", element("main", *body), f"<script>{script}</script>")
    return f"<!DOCTYPE html>\n{element('html', head, page, lang='en')}\n"


def _read(name: str) -> str:
    return (_ROOM / name).read_text(encoding="utf-8")


def _strategies(every: Sequence[Told]) -> str:
    """What the script evaluates: sizes that a strategy fixes, its figures, and the conditions under which they hold."""
    return "[" + ",\n".join(_script(told, more) for told, more in zip(every, spread(every), strict=True)) + "]"


def _script(told: Told, more: Mapping[str, Sequence[str]]) -> str:
    figures = told.figures()
    defined = {name: code for f in figures.values() for name, code in definitions(f).items()}
    fixed = {name: f"num({v.numerator}n, {v.denominator}n)" for name, v in told.fixed().items()}
    conditions = [f"[{json.dumps(f'{readable(str(whole))} is not whole')}, "
                  f"{SIZES} => {_of(whole)}[1] === 1n]" for whole in told.wholes()]
    conditions += [f"[{json.dumps(f'{readable(str(less))} exceeds {readable(str(more))}')}, "
                   f"{SIZES} => !less({_of(more)}, {_of(less)})]" for less, more in told.ordered
                   if {*less.names(), *more.names()} <= {*told.free(), *fixed, *defined}]
    return (f"{{axes: {json.dumps(told.strategy.mesh.names)}, fixed: {_object(fixed)}, spread: {json.dumps(more)},\n"
            f"defined: {_object(defined)},\n"
            f"figures: {_object({name: javascript(f) for name, f in figures.items()})},\n"
            f"conditions: [{', '.join(conditions)}]}}")


def _of(amount: Monomial) -> str:
    return javascript(Formula.parse(str(amount), "1")).removeprefix(f"{SIZES} => ")


def _object(entries: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(name)}: {code}" for name, code in entries.items()) + "}"


def _limits(free: Iterable[Slider]) -> str:
    return json.dumps({s.name: {"stops": list(map(plain_number, s.stops)), "least": plain_number(s.least),
                                "whole": s.whole} for s in free})


def _head(every: Sequence[Told], title: str) -> str:
    told = []
    for one in every:
        if (found := one.report) is None:
            continue
        word = element("span", written(str(found.verdict)), class_=f"badge {str(found.verdict).lower()}")
        says = SAYS.get((found.verdict, found.cls or ""), "")
        more = (f", {found.cls}" if found.cls else "") + (f": {says}" if says else "")
        told.append(element("p", written(f"{one.strategy.name}: "), word, written(more)))
    return element("header", element("h1", written(title)), element("div", *told, class_="lede"))


def _sizes(free: Sequence[Slider], every: Sequence[Told]) -> str:
    counts, elements = ([_slider(s) for s in free if s.whole == whole] for whole in (True, False))
    note = element("p", "Every number below is computed in this page from the closed forms, in exact fractions of "
                   "integers; pointing at a value tells it unrounded.", class_="soft")
    told = [element("p", written(text), class_="soft") for text in _fixed(every)]
    more = element("details", element("summary", "bytes per element"), element("div", *elements, class_="sizes"))
    memory = element("div", element("label", element("b", "memory"), "  of a device, in GB: a line in the bars below",
                                    for_="device-memory"),
                     element("span", ""), element("input", type="text", id="device-memory", value="",
                                                  inputmode="decimal", autocomplete="off"), class_="size")
    return element("section", element("h2", "sizes"), element("div", *counts, memory, class_="sizes"),
                   more if elements else "", note, *told,
                   data_part="sizes")


def _slider(s: Slider) -> str:
    label = element("label", element("b", written(_sign(s.name))), written(f"  {s.meaning}{s.source}"),
                    for_=f"size-{s.name}")
    ranged = element("input", type="range", min=0, max=len(s.stops) - 1, step=1, value=s.at,
                     aria_label=f"{s.name}, slider", aria_valuetext=f"{s.name} = {plain_number(s.value)}")
    field = element("input", type="text", id=f"size-{s.name}", value=plain_number(s.value), inputmode="decimal",
                    spellcheck="false", autocomplete="off")
    return element("div", label, ranged, field, class_="size", data_size=s.name)


def _fixed(every: Sequence[Told]) -> Iterable[str]:
    """The sizes that no slider changes: those of all strategies, then those in which they differ."""
    for told, more in zip(every, spread(every), strict=True):
        for axis, others in more.items():
            yield (f"{told.strategy.name} has {axis} = {' · '.join((axis, *others))} of the sliders: it stands on as "
                   "many devices as the others.")
    of_each = [{n: v for n, v in told.fixed().items() if any(n in f.inputs for f in told.figures().values())}
               for told in every]
    values = {n: {sizes.get(n) for sizes in of_each if n in sizes} for sizes in of_each for n in sizes}
    free = {n for told in every for n in told.free()}
    shared = {n: v for sizes in of_each for n, v in sizes.items() if len(values[n]) == 1 and n not in free}
    if shared:
        yield f"Fixed: {_listed(shared)}."
    for told, sizes in zip(every, of_each, strict=True):
        if own := {n: v for n, v in sizes.items() if n not in shared}:
            yield f"Fixed by {told.strategy.name}, whatever the slider says: {_listed(own)}."


def _listed(sizes: Mapping[str, Fraction]) -> str:
    return ", ".join(f"{_sign(n)} = {number(int(v)) if v >= 10**4 else plain_number(v)}" for n, v in sizes.items())


def _sign(name: str) -> str:
    return name.replace("Psi", "Ψ")


def _charts(every: Sequence[Told], colours: Colours) -> str:
    """A memory bar and a communication bar per strategy, of one scale each."""
    crossed = dict.fromkeys(axes for told in every for axes in told.costs.communication.by_axes)
    over = {f"over {axes}": colours.get(tuple(axes.split(",")), PALETTE[k % len(PALETTE)])
            for k, axes in enumerate(crossed)}
    used = {part: colour for part, colour in PARTS.items()
            if any(told.figures()[f"memory.{part}"].expr not in (None, 0) for told in every)}
    memory = [_bar(k, told, "memory", used, "peak") for k, told in enumerate(every)]
    sent = [_bar(k, told, "sent", {n: c for n, c in over.items() if f"sent.{n}" in told.figures()}, "")
            for k, told in enumerate(every)]
    warned = [element("p", "", class_="warning", data_broken=k, hidden="hidden") for k in range(len(every))]
    meshes = element("p", "The strategies stand on different numbers of devices.", class_="warning", data_meshes="all",
                     hidden="hidden")
    left = element("div", element("h2", "memory of a device"), *memory, _legend(used, "peak: the largest moment"))
    right = element("div", element("h2", "sent by a device in a step"), *sent, _legend(over, ""))
    return element("section", element("div", left, right, class_="charts"), meshes, *warned, data_part="charts")


def _bar(k: int, told: Told, room: str, parts: Mapping[str, str], mark: str) -> str:
    count = element("span", " ", data_devices="mesh", class_="soft")
    head = element("div", element("span", written(f"{told.strategy.name}  "), count), element(
        "span", _figure("span", told, f"{room}.{mark or 'total'}"), written(f" {mark}".rstrip())), class_="name")
    drawn = [_figure("span", told, f"{room}.{name}", "part", name, style=f"background:{colour}", class_="part")
             for name, colour in parts.items()]
    if mark:
        drawn.append(_figure("span", told, f"{room}.{mark}", "mark", mark, class_="mark"))
        drawn.append(element("span", "", class_="limit", data_limit="device", hidden="hidden",
                             title="memory of a device"))
    return element("div", head, element("div", *drawn, class_="track"), class_="row", data_strategy=k)


def _figure(tag: str, told: Told, name: str, kind: str = "", says: str = "", **attributes: object) -> str:
    """A place that the script fills with a figure; what it shows before is the value at the sizes that are known."""
    value = value_of(told.figures()[name], told.sizes)
    known = "" if kind or value is None else written(scaled(value, scale_for("bytes", [value]).divisor))
    return element(tag, known or " ", data_figure=name, data_as=kind, data_told=says, **attributes)


def _legend(colours: Mapping[str, str], mark: str) -> str:
    rows = [element("span", element("span", "", class_="swatch", style=f"background:{colour}"), written(name))
            for name, colour in colours.items()]
    if mark:
        rows.append(element("span", element("span", "", class_="swatch line"), written(mark)))
    return element("div", *rows, class_="legend")


def _each(every: Sequence[Told], title: str, draw: Callable[[Told], str], named: bool = True) -> list[str]:
    """One section with a part per strategy, named where what is drawn is not."""
    parts = [element("div", element("h3", written(told.strategy.name)) if named else "", draw(told), data_strategy=k)
             for k, told in enumerate(every)]
    return [element("section", element("h2", written(title)), *parts, data_part=title)]


def _placement(told: Told) -> str:
    """The placement at the sizes that start the page, and at other small ones that sliders may come to."""
    strategy = replace(told.strategy, mesh=_few(told))
    free = [axis for axis in strategy.mesh.names if axis not in told.fixed() and strategy.mesh[axis].size is None]
    start = drawn_sizes(strategy, {})
    others = ({**start, **dict(zip(free, sizes, strict=True))} for sizes in product(FOLLOWED, repeat=len(free)))
    few = [at for at in others if prod(at.values()) <= MOST_DRAWN][:MOST_FOLLOWED]
    return element("div", *(_drawn_at(strategy, at, k > 0) for k, at in enumerate([start, *(
        at for at in few if at != start)])), element(
            "p", "larger meshes are not drawn: the sliders say other sizes", class_="soft", data_elsewhere="sizes",
            hidden="hidden"), data_drawings="mesh")


def _drawn_at(strategy: Strategy, at: Mapping[str, int], hidden: bool) -> str:
    note = "drawn for " + ", ".join(f"{axis} = {n}" for axis, n in at.items())
    return element("div", element("div", str(draw_strategy(strategy, **at)), class_="scroll"),
                   element("p", written(note), class_="soft"), data_drawn=json.dumps(dict(at)),
                   **({"hidden": "hidden"} if hidden else {}))


def _moves(told: Told, colours: Colours) -> str:
    drawn = replace(told.program, reference=replace(told.program.reference, mesh=_few(told)))
    return element("div", str(draw_moves(drawn, colours)), class_="scroll")


def _few(told: Told) -> Mesh:
    """The mesh with the sizes that are known where they make few devices, else with none, to be drawn small."""
    known = {**told.strategy.mesh.sizes(), **{a: int(told.sizes[a]) for a in told.strategy.mesh.names
                                             if a in told.sizes}}
    open_axes = len(told.strategy.mesh.names) - len(known)
    few = prod(known.values()) * 2 ** open_axes <= MOST_DRAWN
    return Mesh(tuple(Axis(a, known.get(a) if few else None) for a in told.strategy.mesh.names))


def _formulas(told: Told) -> str:
    rows = [element("tr", element("th", ""), element("th", "closed form"), element("th", "value", class_="value"))]
    stage = stage_of(told.costs.step)
    for name, formula in told.figures().items():
        room, _, quantity = name.partition(".")
        if formula.expr == 0 and quantity in ("host", "nvme", "host link", "nvme link"):
            continue
        label = {"memory": quantity, "sent": f"sent {quantity}", "schedule": quantity.replace("_", " ")}[room]
        meaning = QUANTITIES.get(quantity if room == "memory" else {"total": "sent"}.get(quantity, quantity), "")
        rows.append(element("tr", element("td", written(label), title=meaning), element("td", _typeset(formula)),
                            _figure("td", told, name, class_="value")))
    of = element("p", written(f"of a device of {stage}"), class_="soft") if stage.several else ""
    return of + element("div", element("table", *rows), class_="scroll")


def _typeset(formula: Formula) -> str:
    if formula.expr is None:
        return element("span", written(f"none: {formula.reason}"), class_="soft")
    text, typeset = formula.text(), " ".join(mathml(formula))
    if len(text) <= LONGEST:
        return typeset
    return element("details", element("summary", f"{len(text):,} signs"), typeset)


def _verdicts(every: Sequence[Told], says: Mapping[str, str]) -> str:
    """A section with a part per strategy; the page of costs alone has none."""
    parts = []
    for k, one in enumerate(every):
        if one.report is not None:
            shown = one.report.counterexample
            against = element("h3", "counterexample") + refutation(shown) if shown else ""
            parts.append(element("div", element("h3", written(one.strategy.name)), verdict(one.report, says), against,
                                 element("p", written(CERTIFIED), class_="soft"), data_strategy=k))
    return element("section", element("h2", "what is proved"), *parts, data_part="what is proved") if parts else ""


def verdict(found: Report, says: Mapping[str, str]) -> str:
    """A verdict as HTML: its obligations, and what it assumes; `says` maps the name of a hypothesis to what it says."""
    rows = [[("", "obligation", "verdict", "class", "groups", "instances", "it holds iff")]]
    for identifier, statement in found.statements.items():
        verdicts = found.of(identifier)
        word, cls = joined(verdicts)
        groups = len({v.group for v in verdicts if v.group})
        rows.append([(plain((MARKS[word],)), identifier, str(word), cls or "", str(groups or ""),
                      f"{sum(v.instances for v in verdicts):,}", statement)])
    lists = [("assuming", [assumption(h, says) for h in found.hypotheses] or ["nothing"]),
             ("not covered", list(found.not_covered)), ("lemmas", list(found.lemmas)),
             ("checked by", [found.versions] if found.versions else [])]
    return _table([row[0] for row in rows]) + _table(
        [(name if k == 0 else "", text) for name, texts in lists for k, text in enumerate(texts)], head=False)


def refutation(found: Counterexample) -> str:
    """A counterexample as HTML: explained, drawn, and told row by row."""
    rows = [(name, text) for name, text in counterexample_rows(found) if text]
    drawn = element("div", str(draw_counterexample(found)), class_="scroll")
    return element("p", written(found.explanation)) + drawn + _table(rows, head=False)


def _table(rows: Sequence[Sequence[str]], head: bool = True) -> str:
    drawn = [element("tr", *(element("th" if head and k == 0 else "td", written(cell) or " ") for cell in row))
             for k, row in enumerate(rows)]
    return element("div", element("table", *drawn), class_="scroll")


def _program(told: Told, colours: Colours) -> str:
    drawn = element("div", str(draw_step(told.program, colours)), class_="scroll")
    return element("details", element("summary", f"{len(told.program.events)} events, each with its reason"), drawn)


def _granted(every: Sequence[Told]) -> str:
    """What the figures take for granted, each once."""
    conventions = dict.fromkeys(CONVENTIONS[told.costs.communication.total.convention] for told in every)
    notes = dict.fromkeys(_sign(n) for told in every for _, f in told.costs.memory.items()
                          for n in f.note.split("; ") if n)
    taken = dict.fromkeys(text for told in every for text in assumed(_anywhere(told.costs.step)))
    rows = [(name if k == 0 else "", text) for name, texts in (
        ("convention", conventions), ("note", notes), ("assuming", taken)) for k, text in enumerate(texts)]
    title = "what the figures take for granted"
    return element("section", element("h2", title), _table(rows, head=False), data_part=title)


def _anywhere(step: Step) -> Step:
    """A stage's step without the claim that it is the most loaded one, which holds at the sizes of its choice alone."""
    return replace(step, most_loaded=False) if isinstance(step, StageStep) else step


