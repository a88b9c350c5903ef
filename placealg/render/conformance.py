"""A recorded run beside its strategy as text and as JSON: the verdict, what was run, what it rests on, what differs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placealg.prover.verdict import PROVED, REFUTED, Report
from placealg.render.proof import COLOURS, assumption, counterexample
from placealg.render.text_layout import Cell, Line, Span, bold, dim, indent, line, prose, table
from placealg.watch.seen import Seen
from placealg.watch.verdict import CONFORMS, DIFFERS, HYPOTHESES, UNSEEN, Conformance
from placealg.watch.wires import sent

COLOUR = {CONFORMS: "green", DIFFERS: "bold red", UNSEEN: "yellow"}

MEANS = {
    CONFORMS: "every event that was recorded is an event of the program, and the other way round; run again in exact "
              "numbers, all ends as on a single device",
    DIFFERS: "the run does something else than the program",
    UNSEEN: "part of the run could not be followed, so nothing is claimed of it",
}

NOT_SEEN = "other devices' kernels, other backends' collectives, precision and order, data loading, resume"
NOT_COMPARED = ("how many elements a message has beside those that it carries; what the messages of a ring or between "
                "stages carry; the order of those that serve different units")
CHANGED = "the code was changed so that it runs"
_MOST = 12


def page(told: Conformance, width: int, says: Mapping[str, str], command: str = "the run") -> list[Line]:
    """The whole page."""
    head = line(bold(f"{command} RUNS AS {told.strategy} on {told.report.model}"), "  ",
                Span(told.verdict, COLOUR[told.verdict]))
    lines = [head, *indent(prose(MEANS[told.verdict], width - 2))]
    lines += [(), *indent(_proof(told, width - 2)), (), *indent(_run(told, width - 2))]
    if told.proposed:
        lines += [(), *_proposed(told, width)]
    if told.comparison.differences:
        lines += [(), *_differences(told, width)]
    if told.comparison.unseen:
        lines += [(), *_unseen(told, width)]
    return [*lines, (), *indent(_conditions(told, width - 2, says))]


def page_beside(seen: Seen, problem: str, width: int, command: str = "the run") -> list[Line]:
    """The page where no program could be compared: what came of running the ranks again beside a single device."""
    verdict = seen.lifted.verdict if seen.lifted else UNSEEN
    mesh = ", ".join(f"{a} = {n}" for a, n in seen.mesh.items())
    head = line(bold(f"{command} at {mesh} BESIDE A SINGLE DEVICE"), "  ", Span(verdict, COLOUR[verdict]))
    shims = prose(f"{CHANGED}: {'; '.join(seen.shims)}", width - 2) if seen.shims else []
    return [head, *indent(_lifted(seen, width - 2)), *indent(shims), (),
            *indent(prose(f"no program was compared: {problem.partition(' (nor ')[0]}; --model and --name say of which "
                          "model it is, and a strategy what else is asked", width - 2, "dim"))]


def document_beside(seen: Seen, problem: str) -> dict[str, Any]:
    """The same as JSON."""
    return {"version": 3, "verdict": seen.lifted.verdict if seen.lifted else UNSEEN, "mesh": dict(seen.mesh),
            "ranks": [r.rank for r in seen.ranks], "torch": seen.torch, "single_device": _beside(seen),
            "no_program": problem}


def _beside(seen: Seen) -> dict[str, Any] | None:
    found = seen.lifted
    return None if found is None else {
        "verdict": found.verdict, "beside": found.beside, "elements": found.elements,
        "differs": list(found.differs), "unseen": list(found.unseen)}


def _proof(told: Conformance, width: int) -> list[Line]:
    """What was recorded, as a definition; the program P of which it is an instance or not; and what is proved of P."""
    report = told.report
    meaning = ("the distributed step equals the single-device step, for all sizes" if report.verdict == PROVED else
               "see `placealg prove`")
    kind = f", {report.cls}" if report.cls else ""
    mesh = ", ".join(f"{a} = {n}" for a, n in told.seen.mesh.items()) or "one device"
    joined = {CONFORMS: f"this recording is the instance of P at {mesh}",
              DIFFERS: f"this recording is no instance of P at {mesh}",
              UNSEEN: f"whether this recording is the instance of P at {mesh} is not known"}[told.verdict]
    rows: list[list[Cell]] = [
        [dim("recorded"), joined],
        [dim("P"), f"{len(told.comparison.step.events)} events, sha256 {told.digest[:16]}; read off the run: "
                   f"{', '.join(told.settings)}"],
        [dim("proof"), f"{report.verdict}{kind}: {meaning}"],
        [dim("kernel"), told.kernel]]
    return table(rows, "ll", width, wrap={1: 30})


def _proposed(told: Conformance, width: int) -> list[Line]:
    """The strategy that was read off the run: what it rests on, and its text where the catalogue has no name for it."""
    lines: list[Line] = [line(bold("no strategy was given; this one was read off the run"))]
    for text in told.rests:
        lines += indent(prose(text, width - 2, hang=2))
    if told.strategy == "proposed":
        lines += [(), *indent([line(dim(text)) for text in told.proposed.splitlines() if text])]
    return lines


def _run(told: Conformance, width: int) -> list[Line]:
    seen, tally = told.seen, told.comparison.tally
    mesh = ", ".join(f"{a} = {n}" for a, n in seen.mesh.items()) or "one device"
    ranks = "all" if len(seen.ranks) == seen.world else ", ".join(str(r.rank) for r in seen.ranks)
    rows: list[list[Cell]] = [[dim(h) for h in ("run", "ranks", "group", "gradient paths", "collectives")],
                              [mesh, ranks, seen.backend, f"{tally.paths} of {tally.of_paths}",
                               f"{tally.messages} of {tally.of_messages - tally.apart}"]]
    lines = table(rows, "lllll", width)
    lines += _lifted(told.seen, width)
    lines += prose(_sent(told), width, "dim") if seen.ranks and _sent(told) else []
    if tally.apart:
        lines += prose(f"{tally.apart} more collectives reach no parameter here, or no other rank: numbers that are "
                       "printed, or gradients that another rank reads, say", width, "dim")
    for text in tally.legal.values():
        lines += prose(f"the same in another form: {text}", width, "dim")
    for text in tally.not_compared:
        lines += prose(f"not compared: {text}", width)
    if seen.shims:
        lines += prose(f"{CHANGED}: {'; '.join(seen.shims)}", width)
    return lines


def _sent(told: Conformance) -> str:
    """What the first rank sends, or gets of what is gathered, by what it is."""
    first = told.seen.ranks[0]
    parts = [f"{what} {size} bytes in {count} message{'s' if count > 1 else ''}, {kind}"
             for (what, kind), (size, count) in sent(first).items()]
    return f"messages of rank {first.rank}: {'; '.join(parts)}" if parts else ""


def _lifted(seen: Seen, width: int) -> list[Line]:
    """What came of running all ranks again beside a single device."""
    found = seen.lifted
    if found is None:
        return prose(f"not run again beside a single device: {seen.alone}", width) if seen.alone else []
    if found.verdict == CONFORMS:
        return prose(f"run again in exact numbers: all {found.elements} elements of parameters and of what the "
                     f"optimizer keeps end as on a single device, {found.beside}", width)
    lines = prose(f"run again in exact numbers beside a single device, {found.beside}:", width)
    for text in (*found.differs[:_MOST], *(f"not followed: {text}" for text in found.unseen[:_MOST])):
        lines += indent(prose(text, width - 2, hang=2))
    return lines


def _differences(told: Conformance, width: int) -> list[Line]:
    every = told.comparison.differences
    lines: list[Line] = [line(bold("differs"))]
    for k, difference in enumerate(every[:_MOST]):
        more = len(difference.parameters) - 1
        where = f" ({difference.line})" if difference.line else ""
        others = f", and so for {more} more parameter{'s' if more > 1 else ''}" if more > 0 else ""
        lines += indent(prose(f"{'first: ' if not k and len(every) > 1 else ''}{difference.says}{others}{where}",
                              width - 4, hang=2))
    if len(every) > _MOST:
        lines += indent(prose(f"and {len(every) - _MOST} more", width - 2, "dim"))
    if told.edits or told.tables:
        lines += [(), line(bold("as edits of the program" if told.edits else "as entries of the strategy"))]
        for text in (*table_lines(told.tables), *edit_lines(told.edits)):
            lines += indent(prose(text, width - 2, hang=2))
    if told.gap:
        lines += [(), *prose(f"there is no program to judge: {told.gap}", width, hang=2)]
    if told.edited is not None:
        lines += [(), *_edited(told.edited, width)]
    return lines


def _edited(report: Report, width: int) -> list[Line]:
    head = line(bold("the edited program"), ": ", Span(str(report.verdict), COLOURS[report.verdict]))
    if report.verdict == PROVED:
        return [line(*head, dim(f", {report.cls}")), *indent(prose(
            "a legal variation: what runs equals the single device as well. Put this into a strategy file to hold the "
            "run against it", width - 2))]
    lines: list[Line] = [head]
    if report.verdict == REFUTED and report.counterexample:
        lines += indent(counterexample(report.counterexample, width - 2))
    return lines


def _unseen(told: Conformance, width: int) -> list[Line]:
    lines: list[Line] = [line(bold("not seen"))]
    by: dict[str, list[str]] = {}
    for unseen in told.comparison.unseen:
        by.setdefault(unseen.what, []).append(unseen.parameter)
    for what, names in list(by.items())[:_MOST]:
        first = names[0] or "the run"
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines += indent(prose(f"{first}{more}: the recorder does not follow {what}", width - 2, hang=2))
    return lines


def _conditions(told: Conformance, width: int, says: Mapping[str, str]) -> list[Line]:
    rows: list[list[Cell]] = [[dim("assuming" if not k else ""), name, HYPOTHESES[name]]
                              for k, name in enumerate(told.hypotheses)]
    rows += [["", h.name, assumption(h, says)] for h in told.report.hypotheses]
    rows.append([dim("not seen"), "", NOT_SEEN])
    rows.append([dim("not compared"), "", NOT_COMPARED])
    return table(rows, "lll", width, wrap={2: 30})


def edit_lines(edits: tuple[Mapping[str, Any], ...]) -> list[str]:
    """The edits as a strategy file has them."""
    lines = []
    for edit in edits:
        lines.append("[[edit]]")
        lines += [f"{key} = {_toml(value)}" for key, value in edit.items()]
    return lines


def table_lines(tables: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Entries of a strategy's tables, as its file has them."""
    return [text for table, entries in tables.items()
            for text in (f"[{table}]", *(f"{key} = {_toml(value)}" for key, value in entries.items()))]


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


def document(told: Conformance, timing: bool = True) -> dict[str, Any]:
    """The verdict as JSON."""
    tally, seen = told.comparison.tally, told.seen
    return {
        "version": 4, "strategy": told.strategy, "model": told.report.model, "verdict": told.verdict,
        "mesh": dict(seen.mesh), "ranks": [r.rank for r in seen.ranks], "backend": seen.backend, "torch": seen.torch,
        "shims": list(seen.shims), "read_off": list(told.settings),
        "program": {"sha256": told.digest, "text": told.program}, "kernel": told.kernel,
        "gradient_paths": {"matched": tally.paths, "of": tally.of_paths},
        "collectives": {"matched": tally.messages, "of": tally.of_messages - tally.apart, "apart": tally.apart},
        "single_device": _beside(seen),
        "no_single_device": seen.alone or None,
        "sent": [{"rank": r.rank, "what": what, "type": kind, "bytes": size, "messages": count}
                 for r in seen.ranks for (what, kind), (size, count) in sent(r).items()],
        "same_in_another_form": list(tally.legal.values()), "not_compared": list(tally.not_compared),
        "differences": [{"kind": d.kind, "group": d.group, "says": d.says, "line": d.line, "factor": d.factor,
                         "parameters": list(d.parameters), "ranks": list(d.ranks)}
                        for d in told.comparison.differences],
        "unseen": [{"parameter": u.parameter, "what": u.what, "ranks": list(u.ranks)}
                   for u in told.comparison.unseen],
        "proposed": {"text": told.proposed, "rests_on": list(told.rests)} if told.proposed else None,
        "edits": [dict(e) for e in told.edits], "tables": {t: dict(e) for t, e in told.tables.items()}, "gap": told.gap,
        "hypotheses": [{"name": n, "says": HYPOTHESES[n]} for n in told.hypotheses],
        "proof": told.report.to_json(timing), "edited": None if told.edited is None else told.edited.to_json(timing),
    }
