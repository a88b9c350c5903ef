"""A counterexample as a drawing: the ranks on which it was replayed, which of them is wrong, what it has and should."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from placealg.mesh import Axis, Mesh
from placealg.prover.verdict import Counterexample
from placealg.render.svg import BOLD, FAINT, INK, PALETTE, SOFT, Picture, clipped, element, label

WRONG, RIGHT = PALETTE[1], PALETTE[2]
"""The colours of what goes wrong and of what the single device has."""

MOST = 32
"""So many ranks are drawn; of more, those of the wrong one's row."""

BOX, HEIGHT, GAP, MARGIN, ROW = 118, 40, 10, 16, 18
"""A rank's width and height, gaps, the margin, the height of a line of text, in pixels."""

WIDTH = 430
"""The width of the text, in pixels."""


def draw_counterexample(found: Counterexample) -> Picture:
    """A box per rank, the wrong ones coloured; below, what the event has there beside what the single device has.

    The last axis runs to the right, the axes before it downwards, as in the drawing of a strategy.
    """
    sizes = {axis: n for axis, n in found.sizes if axis != "m"}
    device = dict(found.device)
    shown = sizes if prod(sizes.values()) <= MOST else {
        axis: n if k == len(sizes) - 1 else 1 for k, (axis, n) in enumerate(sizes.items())}
    ranks = [{axis: at if shown[axis] == sizes[axis] else device.get(axis, 0) for axis, at in rank.items()}
             for rank in Mesh(tuple(Axis(axis, n) for axis, n in shown.items())).ranks(shown)]
    across = min(list(shown.values())[-1] if shown else 1, 8)
    body = [label(MARGIN, 24, clipped(found.event, WIDTH, 13, BOLD), 13, font_weight="bold")]
    where = ", ".join(f"{axis} = {n}" for axis, n in found.sizes)
    body.append(label(MARGIN, 42, f"{found.obligation} fails at {where}", fill=SOFT))
    for k, rank in enumerate(ranks):
        x, y = MARGIN + k % across * (BOX + GAP), 54 + k // across * (HEIGHT + GAP)
        body.append(_rank(rank, all(rank.get(axis, at) == at for axis, at in found.device), x, y))
    y = 54 + -(-len(ranks) // across) * (HEIGHT + GAP) + 14
    for colour, who, what, number in ((WRONG, "this rank", found.got, found.distributed),
                                      (RIGHT, "the single device", found.want, found.single_device)):
        body.append(element("rect", x=MARGIN, y=y - 11, width=4, height=2 * ROW, fill=colour))
        told = f"{who}: {clipped(what, WIDTH - 110, character=BOLD)}"
        body.append(label(MARGIN + 12, y, told, fill=colour, font_weight="bold"))
        body.append(label(MARGIN + 12, y + ROW, clipped(number, WIDTH - 12), fill=SOFT))
        y += 2 * ROW + 12
    width = 2.0 * MARGIN + max(WIDTH, across * (BOX + GAP))
    return Picture(width, float(y), "".join(body), f"counterexample: {found.obligation} at {where}")


def _rank(rank: Mapping[str, int], wrong: bool, x: float, y: float) -> str:
    name = ", ".join(f"{axis} {at}" for axis, at in rank.items()) or "the only device"
    box = element("rect", x=x, y=y, width=BOX, height=HEIGHT, rx=6, fill="#fdeee5" if wrong else "#f4f6f8",
                  stroke=WRONG if wrong else FAINT, stroke_width=2 if wrong else 1)
    return (box + label(x + 8, y + 17, clipped(name, BOX - 14), fill=INK)
            + label(x + 8, y + 32, "wrong here" if wrong else "", fill=WRONG, font_weight="bold"))
