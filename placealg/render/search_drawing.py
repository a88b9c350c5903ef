"""The front of a search as a picture: need against time, with card traffic as the area of the dots."""

from __future__ import annotations

from math import ceil, log10

from placealg.render.search import GB, Answer
from placealg.render.svg import FAINT, INK, PALETTE, PAPER, SOFT, Picture, element, label, written

_WIDTH, _HEIGHT, _LEFT, _BELOW, _TOP = 860, 520, 70, 60, 50


def draw_front(answer: Answer) -> Picture:
    """The front of an answer; the best is ringed, every dot names its configuration."""
    front = list(answer.front or ())
    found, best = answer.found, answer.best
    every = [*front, best]
    xs, ys = [float(c.need) / GB for c in every], [float(c.estimate) for c in every]
    across, up = _scale(0, max(xs)), _scale(0, max(ys))
    most = max([float(c.card) for c in every] + [1.0])

    def x(value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - 30) * value / across[-1]

    def y(value: float) -> float:
        return _HEIGHT - _BELOW - (_HEIGHT - _BELOW - _TOP) * value / up[-1]

    question = found.question
    parts = [element("rect", width=_WIDTH, height=_HEIGHT, fill=PAPER),
             label(_LEFT, 24, f"{question.model.name} on {question.devices.count} devices: memory against time", 15,
                   fill=INK, font_weight="bold"),
             label(_LEFT, 41, "each dot is a configuration that no other beats in memory, time and card traffic; its "
                   "area is the traffic", 11, fill=SOFT)]
    for tick in across:
        parts += [element("line", x1=x(tick), x2=x(tick), y1=y(0), y2=y(up[-1]), stroke=FAINT),
                  label(x(tick), y(0) + 16, f"{tick:g}", fill=SOFT, text_anchor="middle")]
    for tick in up:
        parts += [element("line", x1=x(0), x2=x(across[-1]), y1=y(tick), y2=y(tick), stroke=FAINT),
                  label(x(0) - 6, y(tick) + 4, f"{tick:g}", fill=SOFT, text_anchor="end")]
    parts += [label(x(across[-1]), y(0) + 36, "needs at least, GB", fill=INK, text_anchor="end"),
              label(12, _TOP - 2 + 10, "about, s", fill=INK)]
    for k, one in enumerate(every):
        ring = k == len(front)
        radius = 3 + 7 * (float(one.card) / most) ** 0.5
        colour = PALETTE[1] if ring else PALETTE[0]
        parts.append(element("circle", element("title", written(one.text)), cx=x(xs[k]), cy=y(ys[k]),
                             r=radius + 3 if ring else radius, fill="none" if ring else colour, stroke=colour,
                             fill_opacity="0.55", stroke_width=2 if ring else 1))
    parts.append(label(x(xs[-1]) + 14, y(ys[-1]) - 10, "best", fill=PALETTE[1], font_weight="bold"))
    return Picture(_WIDTH, _HEIGHT, "".join(parts), f"the front of {question.model.name}")


def _scale(low: float, high: float) -> list[float]:
    """Round numbers from `low` to above `high`, about eight of them.

    >>> _scale(0, 75)
    [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0]
    """
    raw = max(high - low, 1e-9) / 8
    power = 10.0 ** (ceil(log10(raw)) - 1)
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= raw)
    return [round(low + k * step, 12) for k in range(ceil((high - low) / step) + 1)]
