"""The step program as a drawing: phases as lanes, collectives as coloured edges, reasons as tooltips."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from placealg.render.step_lanes import LaneRow, beside, counted, lane
from placealg.render.stream_drawing import draw_streams
from placealg.render.svg import (
    BOLD,
    CHARACTER,
    FAINT,
    INK,
    PALETTE,
    SOFT,
    Picture,
    arrow,
    clipped,
    element,
    label,
    written,
)
from placealg.render.values import readable
from placealg.step.gradient_targets import WEIGHTS
from placealg.step.program import LOOPED, Event, EventLoop, Step

LINE, LANE, WIDEST, GAP, MARGIN, HEAD = 17, 396, 640, 18, 20, 92
"""Heights of a row and of the head, the least and the largest width of a lane, widths between lanes and around."""

SPINE, TEXT = 50, 66
"""Where a lane has its line of time and its text."""

BEFORE, AFTER = ("init", "resume", "prepare"), (WEIGHTS, "reduce", "update", "publish", "save")
"""The phases in the lane below forward, and in the lane below backward; the backward for the weights begins that."""

_OUT = ("reduce", "publish", "send")
"""The verbs whose arrows lead away from the line of time."""


Colours = Mapping[tuple[str, ...], str]
"""A colour for every set of axes over which something is sent."""


def draw_step(step: Step, colours: Colours | None = None) -> Picture:
    """The loop over microbatches, forward down and backward up; below it what comes before it, and what comes after.

    A row is an event, or what several parameter groups have alike. Whatever crosses from device to device is an arrow
    in the colour of its axes: along the line of time where a tensor changes its placement, towards it where states at
    rest are gathered, away from it where gradients leave. Every row has the paths and reasons of its events as tooltip.
    `colours` are those of a page on which several programs are drawn.
    """
    down, up = beside(*(lane(step, phase) for phase in ("forward", "backward")))
    colours = axis_colours(step) if colours is None else colours
    title = f"{step.reference.strategy} on {step.reference.model}"
    stacks = [[(phase, lane(step, phase)) for phase in phases] for phases in (BEFORE, AFTER)]
    wide = _wide([*down, *up, *(row for stack in stacks for _, rows in stack for row in rows)])
    left, right, width = float(MARGIN), MARGIN + wide + GAP, 2 * (MARGIN + wide) + GAP
    drawn, y = [_style(), _legend(title, colours, width)], float(HEAD)
    if down or up:
        lines = max(row.y + 1 for row in (*down, *up))
        count = next((node.count for node in step.tree(*LOOPED) if isinstance(node, EventLoop)), "m")
        drawn += [_frame(left - 6, width - 2 * MARGIN + 12, y, lines, f"microbatch × {readable(str(count))}"),
                  _lane(step, "forward", down, left, y, colours, False, wide),
                  _lane(step, "backward", up, right, y, colours, True, wide), _turn(down, up, left, right, y)]
        y += (lines + 3) * LINE
    ends = [y]
    for x, stack in zip((left, right), stacks, strict=True):
        end = y
        for phase, rows in stack:
            if rows:
                drawn.append(_lane(step, phase, counted(rows), x, end, colours, False, wide))
                end += (len(rows) + 2) * LINE
        ends.append(end)
    bottom = max(ends)
    streams, height = draw_streams(step, left, bottom + LINE, width - 2 * MARGIN)
    return Picture(width, bottom + (height and height + LINE) + MARGIN, "".join(drawn) + streams,
                   f"the step program of {title}")


def _style() -> str:
    """Rows answer to the mouse where a browser shows the drawing."""
    return element("style", ".row:hover text{font-weight:bold}.row:hover .band{fill:#eef3f7}")


def axis_colours(*steps: Step) -> Colours:
    """A colour for every set of axes over which one of the programs sends something."""
    told = dict.fromkeys(e.axes for step in steps for e in step.events if LaneRow((e,)).crosses and e.axes)
    ordered = sorted(told, key=lambda axes: (len(axes), list(told).index(axes)))
    return dict(zip(ordered, itertools.cycle(PALETTE)))


def _legend(title: str, colours: Colours, width: float) -> str:
    parts, x = [label(MARGIN, 26, clipped(title, width - 2 * MARGIN, 17), 17, font_weight="bold")], float(MARGIN)
    for axes, colour in colours.items():
        text = "over " + ", ".join(axes)
        parts += [arrow(x, 42, x + 24, 42, colour), label(x + 31, 46, text)]
        x += 48 + len(text) * CHARACTER * 11
    parts += [element("circle", cx=MARGIN + 5, cy=60, r=4, fill=INK), label(MARGIN + 16, 64, "an op runs"),
              element("circle", cx=MARGIN + 94, cy=60, r=2, fill=SOFT),
              label(MARGIN + 104, 64, "stays on the device; point at a row for its events and reasons", fill=SOFT)]
    return "".join(parts)


def _frame(x: float, width: float, y: float, lines: int, name: str) -> str:
    frame = element("rect", x=x, y=y - 8, width=width, height=lines * LINE + 34, rx=8, fill="none", stroke=SOFT,
                    stroke_dasharray="5 4")
    return frame + label(x + width - 8 - len(name) * CHARACTER * 11, y + 8, name, fill=SOFT)


def _wide(rows: Iterable[LaneRow]) -> float:
    """The width of a lane in which every row has room for what it says, within bounds."""
    needed = (TEXT + len(row.head) * (BOLD if row.crosses else CHARACTER) * 11 + 24
              + len(row.detail) * CHARACTER * 10 for row in rows if row.events)
    return float(min(WIDEST, max((LANE, *needed))))


def _lane(step: Step, phase: str, rows: Sequence[LaneRow], x: float, y: float, colours: Colours,
          rises: bool, wide: float) -> str:
    """One phase: its name, the boxes of its loops, its line of time, then its rows."""
    name = f"{phase} ↑" if rises else f"{phase}, of each microbatch, later" if phase == WEIGHTS else phase
    drawn = [label(x + 8, y + 8, name, 13, font_weight="bold")]
    top = y + 16
    opened: list[int] = []
    for row in rows:
        if row.loop and row.opens:
            opened.append(row.y)
        elif row.loop:
            first = opened.pop()
            drawn.append(element("rect", x=x + 2, y=top + first * LINE + 1, width=wide - 4,
                                 height=(row.y - first + 1) * LINE - 6, rx=6, fill="#f4f6f8", stroke=FAINT))
    shown = [row.y for row in rows if row.events]
    if shown:
        drawn.append(element("line", x1=x + SPINE, x2=x + SPINE, y1=top + min(shown) * LINE + 3,
                             y2=top + (max(shown) + 1) * LINE - 3, stroke=FAINT, stroke_width=2))
    drawn += _flows(step, rows, x, top)
    drawn += [_row(step, row, x, top + row.y * LINE, colours, rises, wide) for row in rows]
    return "".join(drawn)


def _flows(step: Step, rows: Sequence[LaneRow], x: float, top: float) -> Iterable[str]:
    """Arcs left of the line of time: a tensor that is read further on than by the next row."""
    at = {event.path: row.y for row in rows for event in row.events
          if event.on_tensor and (row.computes or row.crosses)}
    ranked = {y: k for k, y in enumerate(sorted(at.values()))}
    for source, target in step.graph.edges:
        if source in at and target in at and abs(ranked[at[source]] - ranked[at[target]]) > 1:
            start, end = (top + at[path] * LINE + LINE / 2 for path in (source, target))
            reach = min(8 + abs(end - start) / 8, SPINE - 8.0)
            yield element("path", d=f"M{x + SPINE} {start}C{x + SPINE - reach} {start} {x + SPINE - reach} {end} "
                          f"{x + SPINE} {end}", fill="none", stroke="#b9c4cf")


def _row(step: Step, row: LaneRow, x: float, y: float, colours: Colours, rises: bool, wide: float) -> str:
    middle = y + LINE / 2
    if row.loop:
        return label(x + TEXT, middle + 4, row.head, font_style="italic", fill=SOFT) if row.opens else ""
    event = row.events[0]
    colour = colours.get(event.axes, PALETTE[0]) if row.crosses else INK
    parts = [element("title", written("\n".join(_told(step, row)))),
             element("rect", x=x + 4, y=y, width=wide - 8, height=LINE, fill="none", pointer_events="all",
                     class_="band")]
    if row.crosses:
        parts.append(_edge(event, x, y, colour, rises))
    elif row.computes:
        parts.append(element("circle", cx=x + SPINE, cy=middle, r=4, fill=INK))
    else:
        parts.append(element("circle", cx=x + SPINE, cy=middle, r=2, fill=SOFT))
    character = BOLD if row.crosses else CHARACTER
    head = clipped(row.head, wide - TEXT - 8, character=character)
    used = len(head) * character * 11 + 8
    parts.append(label(x + TEXT, middle + 4, head, fill=colour if row.crosses else INK if row.computes else SOFT,
                       font_weight="600" if row.crosses else ""))
    if row.detail and wide - TEXT - used > 40:
        parts.append(label(x + TEXT + used, middle + 4, clipped(row.detail, wide - TEXT - used - 8, 10), 10, fill=SOFT))
    return element("g", *parts, class_="row")


def _edge(event: Event, x: float, y: float, colour: str, rises: bool) -> str:
    """What crosses: along the line of time for a tensor; to it or away from it for what rests beside it."""
    middle = y + LINE / 2
    if event.on_tensor:
        ends = (y + LINE - 1, y + 1.0) if rises else (y + 1.0, y + LINE - 1)
        return arrow(x + SPINE, ends[0], x + SPINE, ends[1], colour, 4)
    ends = (x + SPINE, x + 14) if event.verb in _OUT else (x + 14, x + SPINE)
    return arrow(ends[0], middle, ends[1], middle, colour)


def _turn(down: Sequence[LaneRow], up: Sequence[LaneRow], left: float, right: float, y: float) -> str:
    """From the end of forward to the start of backward."""
    ends = [max((row.y for row in rows if row.events), default=-1) for rows in (down, up)]
    if min(ends) < 0:
        return ""
    starts = [y + 16 + (end + 1) * LINE - 2 for end in ends]
    path = f"M{left + SPINE} {starts[0]}V{max(starts) + 5}H{right + SPINE}V{starts[1] + 1}"
    return element("path", d=path, fill="none", stroke=FAINT, stroke_width=2)


def _told(step: Step, row: LaneRow) -> Iterable[str]:
    """Path, claim and reason of every event of a row, a reason that several share once."""
    for reason, events in itertools.groupby(row.events, step.why):
        yield from (event.path for event in events)
        yield from ((row.detail,) if row.detail else ())
        yield reason
