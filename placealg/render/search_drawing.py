"""The front of a search as a picture: need against time, with card traffic as the area of the dots."""

from __future__ import annotations

from math import ceil, log10

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
    taken: list[tuple[float, float]] = []
    for number, one in enumerate(every, 1):
        at = x(float(one.need) / GB), y(float(one.estimate))
        radius = 3 + 7 * (float(one.card) / most) ** 0.5
        parts.append(element("circle", element("title", written(one.text)), cx=at[0], cy=at[1], r=radius,
                             fill=PALETTE[0], stroke=PALETTE[0], fill_opacity="0.55"))
        if one == best:
            parts.append(element("circle", cx=at[0], cy=at[1], r=radius + 3, fill="none", stroke=PALETTE[1],
                                 stroke_width=2))
        parts.append(_number(f"{number} best" if one == best else str(number), at, radius, taken,
                             PALETTE[1] if one == best else INK))
        told = f"{number}  {one.text}: {float(one.need) / GB:.4g} GB, {float(one.estimate):.4g} s" + (
            ", the best" if one == best else "")
        parts.append(label(_LEFT - 50, _HEIGHT + _LINE * (number - 1), clipped(told, _WIDTH - _LEFT + 40),
                           fill=PALETTE[1] if one == best else INK))
    return Picture(_WIDTH, height, "".join(parts), f"the front of {question.model.name}")


def _number(text: str, at: tuple[float, float], radius: float, taken: list[tuple[float, float]], colour: str) -> str:
    """The name of a dot beside it, on the first side on which it stands on no other and inside of the picture."""
    width = len(text) * CHARACTER * 11
    away = radius + 8
    sides = [(at[0] + away, at[1] + 4), (at[0] - away - width, at[1] + 4), (at[0] - width / 2, at[1] - away),
             (at[0] - width / 2, at[1] + away + 8)]
    free = [(x, y) for x, y in sides if 0 <= x <= _WIDTH - width - 4 and all(
        abs(y - other_y) > 10 or abs(x - other_x) > width for other_x, other_y in taken)]
    place = (free or sides)[0]
    taken.append(place)
    return label(*place, text, fill=colour, font_weight="bold" if colour != INK else "")


def _scale(low: float, high: float) -> list[float]:
    """Round numbers from `low` to above `high`, about eight of them.

    >>> _scale(0, 75)
    [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0]
    """
    raw = max(high - low, 1e-9) / 8
    power = 10.0 ** (ceil(log10(raw)) - 1)
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= raw)
    return [round(low + k * step, 12) for k in range(ceil((high - low) / step) + 1)]
