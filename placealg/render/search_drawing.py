"""The front of a search as a picture: need against time, with card traffic as the area of the dots."""

from __future__ import annotations

from math import ceil, log10
from typing import NamedTuple

from placealg.render.search import GB, Answer
from placealg.render.svg import (
    BOLD,
    CHARACTER,
    FAINT,
    INK,
    PALETTE,
    PAPER,
    SOFT,
    Picture,
    clipped,
    element,
    label,
    written,
)

_WIDTH, _HEIGHT, _LEFT, _BELOW, _TOP, _RIGHT = 860, 520, 70, 60, 76, 40
_LINE = 17
"""The height of a line of the list below the axes."""


def draw_front(answer: Answer) -> Picture:
    """The front of an answer, every dot with the number under which the list below names it; the best is ringed."""
    found, best = answer.found, answer.best
    front = sorted(answer.front or (), key=lambda c: c.need)
    every = front if best in front else [*front, best]
    across, up = _scale(0, max(float(c.need) / GB for c in every)), _scale(0, max(float(c.estimate) for c in every))
    most = max([float(c.card) for c in every] + [1.0])

    def x(value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * value / across[-1]

    def y(value: float) -> float:
        return _HEIGHT - _BELOW - (_HEIGHT - _BELOW - _TOP) * value / up[-1]

    question = found.question
    height = _HEIGHT + _LINE * len(every) + 12
    title = f"{question.model.name} on {question.devices.count} devices: memory against time"
    parts = [element("rect", width=_WIDTH, height=height, fill=PAPER),
             label(_LEFT, 24, clipped(title, _WIDTH - _LEFT - 10, 15, BOLD), 15, fill=INK, font_weight="bold"),
             label(_LEFT, 41, "each dot is a configuration that no other beats in memory, time and card traffic; its "
                   "area is the traffic", 11, fill=SOFT),
             label(12, _TOP - 14, "about, s", fill=INK)]
    for tick in across:
        parts += [element("line", x1=x(tick), x2=x(tick), y1=y(0), y2=y(up[-1]), stroke=FAINT),
                  label(x(tick), y(0) + 16, f"{tick:g}", fill=SOFT, text_anchor="middle")]
    for tick in up:
        parts += [element("line", x1=x(0), x2=x(across[-1]), y1=y(tick), y2=y(tick), stroke=FAINT),
                  label(x(0) - 6, y(tick) + 4, f"{tick:g}", fill=SOFT, text_anchor="end")]
    parts.append(label(x(across[-1]), y(0) + 36, "needs at least, GB", fill=INK, text_anchor="end"))
    dots = [(x(float(one.need) / GB), y(float(one.estimate)), 3 + 7 * (float(one.card) / most) ** 0.5) for one in every]
    taken = [Box(cx - r - 1, cy - r - 1, cx + r + 1, cy + r + 1) for cx, cy, r in dots]
    for number, (one, (cx, cy, radius)) in enumerate(zip(every, dots, strict=True), 1):
        colour = PALETTE[1] if one == best else INK
        parts.append(element("circle", element("title", written(one.text)), cx=cx, cy=cy, r=radius,
                             fill=PALETTE[0], stroke=PALETTE[0], fill_opacity="0.55"))
        if one == best:
            parts.append(element("circle", cx=cx, cy=cy, r=radius + 3, fill="none", stroke=colour, stroke_width=2))
        name = f"{number} best" if one == best else str(number)
        parts += named(name, (cx, cy), radius + (3 if one == best else 0), taken, colour)
        told = f"{number}  {one.text}: {float(one.need) / GB:.4g} GB, {float(one.estimate):.4g} s" + (
            ", the best" if one == best else "")
        parts.append(label(_LEFT - 50, _HEIGHT + _LINE * (number - 1), clipped(told, _WIDTH - _LEFT + 40), fill=colour))
    return Picture(_WIDTH, height, "".join(parts), f"the front of {question.model.name}")


class Box(NamedTuple):
    """A rectangle in the picture: left, top, right, bottom."""

    left: float
    top: float
    right: float
    bottom: float

    def shared(self, other: Box) -> float:
        """The area that two rectangles share."""
        across = min(self.right, other.right) - max(self.left, other.left)
        down = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(across, 0) * max(down, 0)


_SIDES = ((1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (-1, -1), (1, 1), (-1, 1))
"""The directions from a dot in which its name is tried, at each distance."""


def named(text: str, dot: tuple[float, float], radius: float, taken: list[Box], colour: str) -> list[str]:
    """The name of a dot at the nearest place that no dot and no name has taken; a line joins them where it is far.

    Where every place is taken, it stands where it covers least.
    """
    wide, high = len(text) * CHARACTER * 11, 9.0
    places = []
    for far in (4.0, 14.0, 24.0, 36.0, 50.0):
        for side, up in _SIDES:
            reach = (radius + far) * (0.75 if side and up else 1)
            middle = dot[0] + side * (reach + wide / 2), dot[1] + up * (reach + high / 2)
            box = Box(middle[0] - wide / 2, middle[1] - high / 2, middle[0] + wide / 2, middle[1] + high / 2)
            inside = box.left >= 2 and box.right <= _WIDTH - 4
            if inside and box.top >= _TOP - 12 and box.bottom <= _HEIGHT - _BELOW - 1:
                places.append((sum(box.shared(other) for other in taken), far, box))
    _, far, box = min(places, key=lambda place: place[:2])
    taken.append(Box(box.left - 2, box.top - 2, box.right + 2, box.bottom + 2))
    found = [label(box.left, box.bottom, text, fill=colour, font_weight="bold" if colour != INK else "")]
    if far > 4:
        end = min(max(dot[0], box.left), box.right), min(max(dot[1], box.top), box.bottom)
        found.insert(0, element("line", x1=dot[0], y1=dot[1], x2=end[0], y2=end[1], stroke=SOFT, stroke_width=0.6))
    return found


def _scale(low: float, high: float) -> list[float]:
    """Round numbers from `low` to above `high`, about eight of them.

    >>> _scale(0, 75)
    [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0]
    """
    raw = max(high - low, 1e-9) / 8
    power = 10.0 ** (ceil(log10(raw)) - 1)
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= raw)
    return [round(low + k * step, 12) for k in range(ceil((high - low) / step) + 1)]
