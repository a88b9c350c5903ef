"""The order of a pipeline as a picture: a row per stage, and in it what the stage runs, at the step at which it can."""

from __future__ import annotations

from collections.abc import Mapping

from placealg.errors import InputError
from placealg.render.svg import FAINT, INK, PALETTE, PAPER, SOFT, Picture, clipped, element, label, written
from placealg.step.actions import Action, Table, faults, read_table, starts
from placealg.step.pipeline import Pipeline, work
from placealg.step.program import Step

_ROW, _LEFT, _TOP, _PAGE = 34.0, 76.0, 62.0, 1180.0
_KINDS = {"forward": "F", "backward": "B", "weights": "W"}
_COLOURS = {"F": PALETTE[0], "B": PALETTE[2], "I": PALETTE[2], "W": PALETTE[4]}
_MEANS = {"F": "forward", "B": "backward", "I": "backward, for the inputs", "W": "backward, for the weights"}
_MOST = 4_000
"""The most actions of a picture."""


def order_of(step: Step, sizes: Mapping[str, int], microbatches: int | None = None) -> Table:
    """The actions of a program's pipeline: those that are written down, or those of its order at `sizes` of it and m.

    `microbatches` are those that the strategy says; where nobody says them there are 8, and 4 stages of 2 chunks.
    """
    pipeline = step.reference.pipeline
    if not pipeline.axis:
        raise InputError(f"{step.reference.strategy} has no pipeline, whose order could be drawn")
    if pipeline.actions:
        return read_table(pipeline.actions)
    known = {**{a.name: a.size for a in step.reference.mesh if a.size is not None}, **sizes}
    ranks, microbatches = known.get(pipeline.axis, 4), known.get("m") or microbatches or 8
    dealt = pipeline.dealt(ranks, pipeline.chunks or known.get("v", 2))
    if ranks * microbatches * 3 > _MOST:
        raise InputError(f"{ranks} stages and {microbatches} microbatches are more than a picture has room for: say "
                         f"fewer, with {pipeline.axis} and m")
    return read_table(tuple(_row(dealt, rank, ranks, microbatches) for rank in range(ranks)))


def _row(pipeline: Pipeline, rank: int, ranks: int, microbatches: int) -> str:
    own = pipeline.own(rank, ranks)
    kinds = {**_KINDS, "backward": "I"} if pipeline.splits else _KINDS
    return ",".join(f"{own[i.chunk]}{kinds[i.phase]}{i.microbatch}" for i in work(pipeline, rank, ranks, microbatches))


def draw_order(table: Table, name: str) -> Picture:
    """A box per action, of the colour of its kind, lighter in later chunks, with the number of its microbatch.

    Every action takes one step and starts as soon as it can. What never starts stands in red behind what does, and
    what is wrong with the order below.
    """
    count = sum(map(len, table.rows))
    if count > _MOST:
        raise InputError(f"{count} actions are more than a picture has room for, which is {_MOST}")
    when, wrong = starts(table), faults(table)
    late = {action: at for row in table.rows for at, action in enumerate(
        (a for a in row if a not in when), max((when[a] + 1 for a in row if a in when), default=0))}
    columns = 1 + max((*when.values(), *late.values()), default=0)
    cell = max(7.0, min(28.0, (_PAGE - _LEFT - 20) / columns))
    width = max(460.0, _LEFT + cell * columns + 20)
    below = _TOP + _ROW * table.ranks + 24
    told = [fault.says for fault in wrong[:4]] + ([f"and {len(wrong) - 4} more"] if len(wrong) > 4 else [])
    height = below + 18 * (1 + len(told)) + 8
    parts = [element("rect", width=width, height=height, fill=PAPER),
             label(12, 24, clipped(f"{name}: {table.ranks} stages, {table.microbatches} microbatches", width - 24, 15),
                   15, fill=INK, font_weight="bold"),
             label(12, 42, clipped("every action takes a step, and starts as soon as it can",
                                   width - 24), fill=SOFT)]
    for rank, row in enumerate(table.rows):
        y = _TOP + _ROW * rank
        parts += [label(12, y + 19, f"stage {rank}", fill=INK),
                  element("line", x1=_LEFT, x2=width - 20, y1=y + _ROW - 3, y2=y + _ROW - 3, stroke=FAINT)]
        parts += [_box(action, _LEFT + cell * {**when, **late}[action], y, cell, action in late, table)
                  for action in row]
    parts += _legend(table, below, bool(late), width)
    parts += [label(12, below + 18 * (k + 1), clipped(text, width - 24), fill=PALETTE[1])
              for k, text in enumerate(told)]
    return Picture(width, height, "".join(parts), f"the order of {name}")


def _box(action: Action, x: float, y: float, cell: float, late: bool, table: Table) -> str:
    colour = PALETTE[1] if late else _COLOURS.get(action.kind, SOFT)
    turn = action.chunk // table.ranks
    tip = element("title", written(f"{action}: rank {action.rank}, action {action.column}"
                                   + (", which never starts" if late else "")))
    number = label(x + cell / 2, y + 18, str(action.microbatch), min(11.0, cell * 0.55), fill=PAPER if not late and not
                   turn else INK, text_anchor="middle") if action.microbatch >= 0 and cell >= 11 else ""
    return element("rect", tip, x=x + 0.5, y=y + 3, width=cell - 1, height=_ROW - 9, fill="none" if late else colour,
                   stroke=colour, stroke_dasharray="3 2" if late else "",
                   fill_opacity=f"{max(0.25, 1 - 0.45 * turn):g}") + number


def _legend(table: Table, y: float, late: bool, width: float) -> list[str]:
    kinds = [kind for kind in _MEANS if any(a.kind == kind for row in table.rows for a in row)]
    parts, x = [], 12.0
    for text, colour in (*((_MEANS[kind], _COLOURS[kind]) for kind in kinds), *([("never starts", PALETTE[1])] * late),
                         *([("later chunks: lighter", SOFT)] * (table.chunks > 1))):
        if x + 14 + 6.4 * len(text) > width:
            break
        parts += [element("rect", x=x, y=y - 9, width=10, height=10, fill=colour), label(x + 14, y, text, fill=SOFT)]
        x += 14 + 6.4 * len(text) + 14
    return parts
