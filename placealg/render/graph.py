"""The step program as a drawing: phases as lanes, collectives as coloured edges, reasons as tooltips."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from placealg.render.lanes import Row, beside, counted, lane
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
from placealg.step.program import LOOPED, Event, Step

LINE, LANE, GAP, MARGIN, HEAD = 17, 396, 18, 20, 74
"""Heights of a row and of the head, widths of a lane, between lanes and around the drawing, in pixels."""

SPINE, TEXT = 50, 66
"""Where a lane has its line of time and its text."""

BEFORE, AFTER = ("init", "resume", "prepare"), ("reduce", "update", "publish", "save")
"""The phases in the lane left of the microbatches, and in the lane right of them."""

_OUT = ("reduce", "publish", "send")
"""The verbs whose arrows lead away from the line of time."""


def draw_step(step: Step) -> Picture:
    """The program from left to right: what comes before the microbatches, forward down, backward up, what comes after.

    A row is an event, or what several parameter groups have alike. Whatever crosses from device to device is an arrow
    in the colour of its axes: along the line of time where a tensor changes its placement, towards it where states at
    rest are gathered, away from it where gradients leave. Every row has the paths and reasons of its events as tooltip.
    """
    forward, backward = (lane(step, phase) for phase in LOOPED)
    down, up = beside(forward, backward)
    sides = [[(phase, lane(step, phase)) for phase in phases] for phases in (BEFORE, AFTER)]
    colours = _colours(step.events)
    drawn, x, lines = [], float(MARGIN), max((row.y + 1 for row in (*down, *up)), default=0)
    before, after = ([(phase, rows) for phase, rows in side if rows] for side in sides)
    if before:
        drawn.append(_stack(step, before, x, colours))
        x += LANE + GAP
    if down or up:
        count = next((node.count for node in step.tree(*LOOPED)), "m")  # type: ignore[union-attr]
        drawn += [_frame(x - 6, 2 * LANE + GAP + 12, lines, f"microbatch × {readable(str(count))}"),
                  _lane(step, "forward", down, x, HEAD, colours, False),
                  _lane(step, "backward", up, x + LANE + GAP, HEAD, colours, True),
                  _turn(down, up, x)]
        x += 2 * (LANE + GAP)
    if after:
        drawn.append(_stack(step, after, x, colours))
        x += LANE + GAP
    tallest = max(lines, *(sum(len(rows) + 2 for _, rows in side) - 1 for side in (before, after)))
    title = f"{step.reference.strategy} on {step.reference.model}"
    width, height = x - GAP + MARGIN, HEAD + tallest * LINE + 2.0 * MARGIN
    head = _style() + _legend(title, colours, width)
    return Picture(width, height, head + "".join(drawn), f"the step program of {title}")


def _style() -> str:
    """Rows answer to the mouse where a browser shows the drawing."""
    return element("style", ".row:hover text{font-weight:bold}.row:hover .band{fill:#eef3f7}")


def _colours(events: Iterable[Event]) -> dict[tuple[str, ...], str]:
    """A colour for every set of axes over which something is sent."""
    told = dict.fromkeys(e.axes for e in events if Row((e,)).crosses and e.axes)
    ordered = sorted(told, key=lambda axes: (len(axes), list(told).index(axes)))
    return dict(zip(ordered, itertools.cycle(PALETTE)))


def _legend(title: str, colours: dict[tuple[str, ...], str], width: float) -> str:
    parts, x = [label(MARGIN, 28, clipped(title, width - 2 * MARGIN, 17), 17, font_weight="bold")], float(MARGIN)
    for axes, colour in colours.items():
        text = "sent over " + " and ".join(axes)
        parts += [arrow(x, 46, x + 24, 46, colour), label(x + 31, 50, text)]
        x += 52 + len(text) * CHARACTER * 11
    parts += [element("circle", cx=x + 5, cy=46, r=4, fill=INK), label(x + 15, 50, "an op runs"),
              label(x + 92, 50, "what stays on the device", fill=SOFT),
              label(x + 240, 50, "point at a row: its events and reasons", fill=SOFT)]
    return "".join(parts)


def _frame(x: float, width: float, lines: int, name: str) -> str:
    frame = element("rect", x=x, y=HEAD - 8, width=width, height=lines * LINE + 34, rx=8, fill="none", stroke=SOFT,
                    stroke_dasharray="5 4")
    return frame + label(x + width - 8 - len(name) * CHARACTER * 11, HEAD + 8, name, fill=SOFT)


def _stack(step: Step, phases: Sequence[tuple[str, list[Row]]], x: float,
           colours: dict[tuple[str, ...], str]) -> str:
    drawn, y = [], HEAD
    for phase, rows in phases:
        drawn.append(_lane(step, phase, counted(rows), x, y, colours, False))
        y += (len(rows) + 2) * LINE
    return "".join(drawn)


def _lane(step: Step, phase: str, rows: Sequence[Row], x: float, y: float, colours: dict[tuple[str, ...], str],
          rises: bool) -> str:
    """One phase: its name, the boxes of its loops, its line of time, then its rows."""
    name = f"{phase} ↑" if rises else phase
    drawn = [label(x + 8, y + 8, name, 13, font_weight="bold")]
    top = y + 16
    opened: list[int] = []
    for row in rows:
        if row.loop and row.opens:
            opened.append(row.y)
        elif row.loop:
            first = opened.pop()
            drawn.append(element("rect", x=x + 2, y=top + first * LINE + 1, width=LANE - 4,
                                 height=(row.y - first + 1) * LINE - 6, rx=6, fill="#f4f6f8", stroke=FAINT))
    shown = [row.y for row in rows if row.events]
    if shown:
        drawn.append(element("line", x1=x + SPINE, x2=x + SPINE, y1=top + min(shown) * LINE + 3,
                             y2=top + (max(shown) + 1) * LINE - 3, stroke=FAINT, stroke_width=2))
    drawn += _flows(step, rows, x, top)
    drawn += [_row(step, row, x, top + row.y * LINE, colours, rises) for row in rows]
    return "".join(drawn)


def _flows(step: Step, rows: Sequence[Row], x: float, top: float) -> Iterable[str]:
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


def _row(step: Step, row: Row, x: float, y: float, colours: dict[tuple[str, ...], str], rises: bool) -> str:
    middle = y + LINE / 2
    if row.loop:
        return label(x + TEXT, middle + 4, row.head, font_style="italic", fill=SOFT) if row.opens else ""
    event = row.events[0]
    colour = colours.get(event.axes, PALETTE[0]) if row.crosses else INK
    parts = [element("title", written("\n".join(_told(step, row)))),
             element("rect", x=x + 4, y=y, width=LANE - 8, height=LINE, fill="none", pointer_events="all",
                     class_="band")]
    if row.crosses:
        parts.append(_edge(event, x, y, colour, rises))
    elif row.computes:
        parts.append(element("circle", cx=x + SPINE, cy=middle, r=4, fill=INK))
    else:
        parts.append(element("circle", cx=x + SPINE, cy=middle, r=2, fill=SOFT))
    character = BOLD if row.crosses else CHARACTER
    head = clipped(row.head, LANE - TEXT - 8, character=character)
    used = len(head) * character * 11 + 12
    parts.append(label(x + TEXT, middle + 4, head, fill=colour if row.crosses else INK if row.computes else SOFT,
                       font_weight="600" if row.crosses else ""))
    if row.detail and LANE - TEXT - used > 40:
        parts.append(label(x + TEXT + used, middle + 4, clipped(row.detail, LANE - TEXT - used - 8, 10), 10, fill=SOFT))
    return element("g", *parts, class_="row")


def _edge(event: Event, x: float, y: float, colour: str, rises: bool) -> str:
    """What crosses: along the line of time for a tensor; to it or away from it for what rests beside it."""
    middle = y + LINE / 2
    if event.on_tensor:
        ends = (y + LINE - 1, y + 1.0) if rises else (y + 1.0, y + LINE - 1)
        return arrow(x + SPINE, ends[0], x + SPINE, ends[1], colour, 4)
    ends = (x + SPINE, x + 14) if event.verb in _OUT else (x + 14, x + SPINE)
    return arrow(ends[0], middle, ends[1], middle, colour)


def _turn(down: Sequence[Row], up: Sequence[Row], x: float) -> str:
    """From the end of forward to the start of backward."""
    ends = [max((row.y for row in rows if row.events), default=-1) for rows in (down, up)]
    if min(ends) < 0:
        return ""
    left, right = x + SPINE, x + LANE + GAP + SPINE
    low = HEAD + 16 + (max(ends) + 1) * LINE + 3
    starts = [HEAD + 16 + (end + 1) * LINE - 2 for end in ends]
    path = f"M{left} {starts[0]}V{low}H{right}V{starts[1] + 1}"
    return element("path", d=path, fill="none", stroke=FAINT, stroke_width=2)


def _told(step: Step, row: Row) -> Iterable[str]:
    """Path, claim and reason of every event of a row, a reason that several share once."""
    for reason, events in itertools.groupby(row.events, step.why):
        yield from (event.path for event in events)
        yield from ((row.detail,) if row.detail else ())
        yield reason
