"""What moves, on the mesh: per set of axes who exchanges with whom, and which collective carries what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from math import prod
from typing import Any

from placealg.mesh import Mesh
from placealg.render.mesh_drawing import mesh_sizes
from placealg.render.show import claim
from placealg.render.step_drawing import Colours, axis_colours
from placealg.render.step_lanes import LaneRow
from placealg.render.svg import FAINT, PAPER, SOFT, Picture, clipped, element, label
from placealg.step.program import STEP_PHASES, Event, Step

SIDE, GAP, BLOCK = 17, 7, 8
"""The side of a device's square, the gap between two, and more of it where an outer axis turns, in pixels."""

MARGIN, LINE, TEXT, WIDTH = 18, 18, 250, 1000
"""The margin, the height of a line, where the text begins at the least, and the width of the drawing."""

_PHASE, _VERB, _CLAIM = 74, 128, 150


def draw_moves(step: Step, colours: Colours | None = None, **sizes: int) -> Picture:
    """A panel per set of axes over which a training step sends something: the mesh, and the list of what is sent.

    On the mesh one group is filled: the devices that exchange with each other along these axes, in the order of their
    ranks. All groups like it do the same at once. `colours` are those of a page with other drawings.

    >>> import placealg as pa
    >>> draw_moves(pa.derive(pa.hsdp(), pa.abstract()))
    what hsdp on abstract moves: a picture of 1000 by 323
    """
    mesh = step.reference.mesh
    at = mesh_sizes(mesh, step.reference.strategy, sizes)
    colours = axis_colours(step) if colours is None else colours
    every = moved(step)
    where = _places(mesh, at)
    extent = tuple(max(place[k] for place in where.values()) + SIDE for k in (0, 1))
    text = max(float(TEXT), MARGIN + extent[0] + 30)
    title = f"what {step.reference.strategy} on {step.reference.model} moves"
    shape = " × ".join(f"{name} {at[name]}" for name in mesh.names)
    drawn = [label(MARGIN, 26, clipped(title, WIDTH - 2 * MARGIN, 15), 15, font_weight="bold"),
             label(MARGIN, 44, f"drawn on {shape}; a filled group exchanges, and all groups like it at once"
                   if every else "nothing crosses between devices", fill=SOFT)]
    y = 62.0
    for axes, rows in every.items():
        colour = colours[axes]
        drawn += [label(MARGIN, y + 13, f"over {', '.join(axes)}", 13, font_weight="bold", fill=colour),
                  *_mesh(mesh, at, where, axes, colour, MARGIN, y + 24), *_list(rows, text, y + 13)]
        y += max(24 + extent[1], LINE * len(rows)) + 22
    return Picture(float(WIDTH), y, "".join(drawn), title)


def moved(step: Step) -> dict[tuple[str, ...], list[tuple[str, str, str, str]]]:
    """Axes -> (phase, collective, what it carries, from where to where), events alike told once, in program order."""
    found: dict[tuple[str, ...], dict[Any, list[Event]]] = {}
    for event in step.phase(*STEP_PHASES):
        if LaneRow((event,)).crosses:
            key = event.phase, event.verb, claim(event), bool(event.group), event.value if event.group else ""
            found.setdefault(event.axes, {}).setdefault(key, []).append(event)
    ordered = sorted(found, key=lambda axes: len(axes))
    return {axes: [(phase, verb, _named(events), said) for (phase, verb, said, *_), events in found[axes].items()]
            for axes in ordered}


def _named(events: Sequence[Event]) -> str:
    """The subjects of events, the first two and how many there are."""
    names = list(dict.fromkeys(e.subject for e in events))
    return ", ".join(names[:2]) + (f" … {len(names)} in all" if len(names) > 2 else "")


def _places(mesh: Mesh, at: Mapping[str, int]) -> dict[tuple[int, ...], tuple[float, float]]:
    """Device -> where its square stands; the axes are laid out in two halves, downwards and to the right."""
    names = mesh.names
    cut = min(range(len(names) + 1), key=lambda k: (abs(prod(at[a] for a in names[:k]) * 2
                                                        - prod(at[a] for a in names[k:])), k))

    def along(rank: Mapping[str, int], axes: Sequence[str]) -> float:
        place, step = 0.0, float(SIDE + GAP)
        for k, axis in enumerate(reversed(axes)):
            place += rank[axis] * step
            step = at[axis] * step + (BLOCK if k + 1 < len(axes) else 0)
        return place

    return {tuple(rank.values()): (along(rank, names[cut:]), along(rank, names[:cut])) for rank in mesh.ranks(at)}


def _mesh(mesh: Mesh, at: Mapping[str, int], where: Mapping[tuple[int, ...], tuple[float, float]],
          axes: tuple[str, ...], colour: str, x: float, y: float) -> Iterable[str]:
    """All devices, the group of the first filled, with an arc from each of its devices to the next."""
    first = [tuple(rank.values()) for rank in mesh.ranks(at)
             if all(rank[a] == 0 for a in mesh.names if a not in axes)]
    for device, (left, top) in where.items():
        inside = device in first
        yield element("rect", x=x + left, y=y + top, width=SIDE, height=SIDE, rx=3, stroke_width=1.4,
                      fill=colour if inside else PAPER, stroke=colour if inside else FAINT)
    for one, two in pairwise(first):
        ends = [(x + where[d][0] + SIDE / 2, y + where[d][1] + SIDE / 2) for d in (one, two)]
        (x1, y1), (x2, y2) = ends
        bend = 7 if abs(x2 - x1) + abs(y2 - y1) > SIDE + GAP + 1 else 0
        middle = (x1 + x2) / 2 + (bend if x1 == x2 else 0), (y1 + y2) / 2 - (bend if y1 == y2 else 0)
        yield element("path", d=f"M{x1:g} {y1:g}Q{middle[0]:g} {middle[1]:g} {x2:g} {y2:g}", fill="none", stroke=colour,
                      stroke_width=2.2)
    for device in first:
        left, top = where[device]
        yield label(x + left + SIDE / 2, y + top + SIDE - 5, str(first.index(device)), 10, fill=PAPER,
                    text_anchor="middle", font_weight="bold", pointer_events="none")


def _list(rows: Sequence[tuple[str, str, str, str]], x: float, y: float) -> Iterable[str]:
    """One line per collective; a phase is named at its first."""
    y -= LINE
    for phase, run in groupby(rows, key=lambda row: row[0]):
        for k, (_, verb, what, said) in enumerate(run):
            y += LINE
            room = WIDTH - MARGIN - x - _PHASE - _VERB - _CLAIM - 14
            drawn = [label(x, y, phase, fill=SOFT)] if k == 0 else []
            drawn += [label(x + _PHASE, y, verb, font_weight="600"),
                      label(x + _PHASE + _VERB, y, clipped(what, room)),
                      label(WIDTH - MARGIN - _CLAIM, y, clipped(said, _CLAIM), fill=SOFT)]
            yield from drawn
