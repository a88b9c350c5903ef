"""The streams of a program as lanes: what runs on which, in printed order, and who waits for whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from placealg.render.show import awaited
from placealg.render.svg import FAINT, INK, PALETTE, SOFT, clipped, element, label, written
from placealg.render.values import readable
from placealg.step.instances import Loop, Node, ordered
from placealg.step.order import COMPUTE, JOIN
from placealg.step.program import Step

ROW, BOX, LEFT, HEAD = 22, 16, 30.0, 44.0
"""The height of a row and of a box, the room for brackets of loops, and that for the names of lanes."""


@dataclass(frozen=True, slots=True)
class Row:
    """What stands in one row of one lane: an event, or several that nobody waits for and that wait for nobody."""

    nodes: tuple[Node, ...]
    stream: str

    @property
    def text(self) -> str:
        """What it is called: without the phase, and for several how many they are."""
        first = self.nodes[0]
        name = first.name.removeprefix(f"{first.event.phase}.")
        if first.event.verb == JOIN:
            return f"waits for {first.event.of}" if first.event.of else "waits for a handle"
        early = f", {first.ahead} ahead" if first.ahead else ""
        return f"{name} … {len(self.nodes)} events" if len(self.nodes) > 1 else name + early


def rows_of(nodes: Sequence[Node]) -> list[Row]:
    """The rows, in printed order.

    >>> from placealg.models.abstract import abstract
    >>> from placealg.step.derive import derive
    >>> from placealg.strategy.expression import parse_strategy
    >>> [row.text for row in rows_of(ordered(derive(parse_strategy("zero3"), abstract())).nodes)][:2]
    ['layer.weight.grad_sum.zero', 'layer.weight.gather[dp] … 3 events']
    """
    met = {wait.on for node in nodes for wait in node.event.waits}

    def alone(node: Node) -> bool:
        return node.name in met or bool(node.event.waits) or node.stream != COMPUTE or node.event.verb == JOIN

    found = list[Row]()
    for key, run in groupby(nodes, lambda n: (alone(n), n.path[:-1], n.event.phase)):
        some = list(run)
        found += [Row((n,), n.stream) for n in some] if key[0] else [Row(tuple(some), COMPUTE)]
    return found


def draw_streams(step: Step, x: float, y: float, width: float) -> tuple[str, float]:
    """The lanes from (x, y) on, and their height: nothing where all events run on one stream."""
    if not step.order:
        return "", 0.0
    program = ordered(step)
    rows = rows_of(program.nodes)
    streams = [COMPUTE, *(s for s in program.streams if s != COMPUTE)]
    lane = (width - LEFT) / len(streams)
    at = {stream: x + LEFT + lane * k for k, stream in enumerate(streams)}
    top = y + HEAD
    place = {node.name: (at[row.stream], top + ROW * k) for k, row in enumerate(rows) for node in row.nodes}
    height = HEAD + ROW * len(rows)
    drawn = [label(x, y + 12, "streams, and what waits for what", 13, font_weight="bold")]
    for stream, left in at.items():
        drawn += [label(left + 8, y + 34, stream, font_weight="600"),
                  element("line", x1=left + 4, x2=left + 4, y1=top, y2=y + height, stroke=FAINT)]
    drawn += list(_loops(rows, x, top, width))
    for k, row in enumerate(rows):
        left, here, node = at[row.stream], top + ROW * k, row.nodes[0]
        join = node.event.verb == JOIN
        title = "\n".join([n.name for n in row.nodes] + [t for t in (awaited(node.event), node.event.rule.why) if t])
        drawn.append(element("g", element("title", written(title)), element(
            "rect", x=left + 4, y=here + 2, width=lane - 12, height=BOX, rx=3, fill="none" if join else "#eef3f7",
            stroke=SOFT if join else FAINT, stroke_dasharray="3 2" if join else ""), label(
            left + 9, here + 14, clipped(row.text, lane - 22, 10), 10, fill=SOFT if join else INK)))
        for wait in node.event.waits:
            turn = f"turn {wait.turn}" if wait.turn else "the last step" if wait.step else ""
            drawn.append(_wait(place[wait.on], (left, here), lane, turn))
        if node.event.of:
            there = [r for r in rows if r.stream == node.event.of]
            before = [r for r in rows[:k] if r.stream == node.event.of]
            if there:
                last = (before or there)[-1].nodes[-1]
                drawn.append(_wait(place[last.name], (left, here), lane, "" if before else "the turn before"))
    return "".join(drawn), height


def _wait(source: tuple[float, float], target: tuple[float, float], lane: float, said: str) -> str:
    """A curve from what is waited for to what waits; dashed where it is of another turn, which is said."""
    right = target[0] >= source[0]
    start_x, end_x = source[0] + (lane - 8 if right else 4), target[0] + (4 if right else lane - 8)
    if source[0] == target[0]:
        start_x = end_x = source[0] + lane - 8
    middle = BOX / 2 + (7 if said else -1)  # two that wait for each other have two curves
    start_y, end_y = source[1] + middle, target[1] + middle
    bend = 14 if right else -14
    curve = element("path", d=f"M{start_x:g} {start_y:g}C{start_x + bend:g} {start_y:g} {end_x - bend:g} {end_y:g} "
                    f"{end_x:g} {end_y:g}", fill="none", stroke=PALETTE[0], stroke_width=1.4,
                    stroke_dasharray="4 3" if said else "")
    tip = element("circle", cx=end_x, cy=end_y, r=2.6, fill=PALETTE[0])
    told = label((start_x + end_x) / 2 + 7, (start_y + end_y) / 2 + 5, said, 9, fill=PALETTE[0]) if said else ""
    return curve + tip + told


def _loops(rows: Sequence[Row], x: float, top: float, width: float) -> Iterator[str]:
    """A bracket beside the rows of each loop, with its name."""
    spans: dict[tuple[int, ...], tuple[int, int, Loop]] = {}
    for k, row in enumerate(rows):
        node = row.nodes[0]
        for depth, loop in enumerate(node.loops):
            first = spans.get(node.path[:depth + 1], (k, k, loop))[0]
            spans[node.path[:depth + 1]] = (first, k, loop)
    for path, (first, last, loop) in spans.items():
        left = x + 10 * (len(path) - 1)
        name = f"{loop.name} × {readable(str(loop.count))}" + (", last to first" if loop.reverse else "")
        yield element("g", element("title", written(name)), element(
            "path", d=f"M{left + 8:g} {top + ROW * first + 2:g}H{left + 2:g}V{top + ROW * (last + 1) - 2:g}"
            f"H{left + 8:g}", fill="none", stroke=SOFT), element(
            "rect", x=left, y=top + ROW * first, width=10, height=ROW * (last - first + 1), fill="none",
            pointer_events="all"))
