"""One edit that makes a program provable again, what it costs, and what it is in the file that edits the program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from placealg.check.candidates import Table, candidates
from placealg.check.edit_folding import folded
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.number_formats import told
from placealg.progress import say
from placealg.prover.examine import examine
from placealg.prover.messages import posts_end
from placealg.prover.races import ORDER, ask
from placealg.prover.verdict import PROVED, Repair
from placealg.step.edit import Edited, apply_edits, edit, read_edits
from placealg.step.instances import ordered
from placealg.step.messages import sends_wait, unlike
from placealg.step.program import Event, Rule, Step
from placealg.step.sums import sums
from placealg.strategy.buffers import SIZE as SLOTS
from placealg.strategy.write import toml_value

if TYPE_CHECKING:
    from placealg.cost.formula import Formula


def find_repair(step: Step, base: Step, file: Edited | None = None) -> Repair | None:
    """The first edit towards `base` whose program is proved, as [[edit]] tables, with what it does to communication.

    `file`: what the edits of a file made into `step`; then the repair says what it is there.
    """
    seen = {_does(step)}
    for tables in candidates(step, base):
        repaired = applied(step, tables)
        if repaired is None or _does(repaired) in seen:
            continue
        seen.add(_does(repaired))
        say("looking for a repair")
        if _proved(repaired):
            return _told(step, tables, repaired, file)
    return None


@dataclass(frozen=True, slots=True)
class Mended:
    """The step whose loss is divided by all that it sums, and the table [loss] that says so."""

    step: Step
    loss: FrozenMap[str, Any]


def by_token_mean(step: Step, mended: Mended | None) -> Repair | None:
    """Another divisor of the loss of a derived step, where the step that has it is proved."""
    if mended is None or not _proved(mended.step):
        return None
    return Repair(f"loss = {toml_value(mended.loss)}", _cost(step, mended.step), "in place of what [loss] says")


def by_types(step: Step, asked: str, file: Edited | None) -> Repair | None:
    """The types that its sums are to have at least, said of every event that adds in a narrower one.

    `asked` is the type that a user asks, "" where the strategy says it.
    """
    tables = [{"set": s.event, "bytes": told(s.least)} for s in sums(step, asked) if s.narrow]
    repaired = applied(step, tables)
    return None if repaired is None or _narrow(repaired, asked) else _told(step, tables, repaired, file)


def by_wait(step: Step, first: str, second: str, file: Edited | None) -> Repair | None:
    """One wait after which nothing races: that of the event that is printed later for the other."""
    event = next(e for e in step.listing if e.path == second)
    for more in ({}, {"turn": -1}, {"turn": f"-{SLOTS}"}, {"step": -1}):
        waits = [*(w.said() for w in event.waits), {"on": first, **more} if more else first]
        tables: list[Table] = [{"set": second, "wait": waits}]
        repaired = applied(step, tables)
        if repaired is not None and _races(repaired) is False:
            return _told(step, tables, repaired, file)
    return None


def _races(step: Step) -> bool | None:
    """Whether anything races, or values share a slot; None where the program says what it cannot, or it is open."""
    try:
        program = ordered(step)
    except InputError:
        return None
    asked = [ask(program, identifier) for identifier in ORDER]
    return None if any(a.open for a in asked) else any(a.found for a in asked)


def _proved(step: Step) -> bool:
    values = all(v.verdict == PROVED for v in examine(step).verdicts) and not _narrow(step)
    ends = not sends_wait(step.reference.pipeline) or (not unlike(step) and posts_end(step).verdict == PROVED)
    return values and ends and (not step.order or _races(step) is False)


def _narrow(step: Step, asked: str = "") -> bool:
    """Whether a sum is taken in fewer bits than is asked, which the verdicts on values do not say."""
    return any(s.narrow for s in sums(step, asked))


def applied(step: Step, tables: Sequence[Table]) -> Step | None:
    """The step under edits; None where an event would say what it cannot: such an edit is no repair."""
    try:
        return edit(step, *tables)
    except InputError as error:
        say(f"no repair: {error}")
        return None


def written(table: Table) -> str:
    """An edit as a strategy file has it.

    >>> print(written({"set": "update.norm.all_reduce[dp]", "op": "sum"}))
    [[edit]]
    set = "update.norm.all_reduce[dp]"
    op = "sum"
    """
    return "\n".join(("[[edit]]", *(f"{key} = {toml_value(value)}" for key, value in table.items())))


def _does(step: Step) -> tuple[Event, ...]:
    """The events, without what only people read."""
    return tuple(replace(e, line=0, rule=Rule("", "")) for e in step.listing)


def _told(step: Step, tables: Sequence[Table], repaired: Step, file: Edited | None) -> Repair:
    wanted = _does(repaired)

    def same(edits: Sequence[Table]) -> bool:
        made = applied(step, edits)
        return made is not None and _does(made) == wanted

    def fits(edits: Sequence[Table]) -> bool:
        return same(edits) and file is not None and _after(file, edits) == wanted

    short = folded(tables, step, fits if fits(tables) else same)
    return Repair("\n".join(map(written, short)), _cost(step, repaired), _in_file(file, short, wanted) if file else "")


def _after(file: Edited, tables: Sequence[Table]) -> tuple[Event, ...]:
    """What the program of a file does under its edits and more of them; () where they do not fit together."""
    try:
        return _does(apply_edits(file.program, [*file.edits, *read_edits(tables, file.program.reference)]))
    except InputError:
        return ()


def _in_file(file: Edited, tables: Sequence[Table], wanted: tuple[Event, ...]) -> str:
    """What a repair is in its file, whose patterns address the program before its edits."""
    if _after(file, tables) == wanted:
        return "as it stands, at the end"
    for k, one in enumerate(file.edits):
        rest = apply_edits(file.program, [*file.edits[:k], *file.edits[k + 1:]])
        if _does(rest) == wanted or _proved(rest):
            return f"leave out the edit of line {one.line} instead: {_ADDRESSES}"
    return f"not as it stands: {_ADDRESSES}"


_ADDRESSES = "the repair addresses the program as edited"


_LONGEST = 160
"""Signs beyond which two formulas are told by their difference."""


def _cost(step: Step, repaired: Step) -> str:
    from placealg.cost.communication import communication  # SymPy loads only where a repair is priced

    try:
        before, after = communication(step), communication(repaired)
    except InputError as error:
        return f"not known: {error}"
    changes = (("communication", before.total, after.total), ("host link", before.host_link, after.host_link),
               ("nvme link", before.nvme_link, after.nvme_link))
    told = [_change(*change) for change in changes if change[1] != change[2]]
    return "; ".join(told) or "nothing that the totals of a training step count"


def _change(what: str, before: Formula, after: Formula) -> str:
    both = f"{what} {before.text()} -> {after.text()} bytes per step"
    if len(both) <= _LONGEST:
        return both
    difference = (after - before).shortest()
    if difference.falls():
        return f"{what}: {(before - after).shortest().text()} bytes per step less"
    return f"{what}: {difference.text()} bytes per step more"
