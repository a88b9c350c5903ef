"""A strategy on the mesh as a drawing: what every device holds of each state, at rest and while in use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from math import prod

from placealg.errors import InputError
from placealg.mesh import Mesh
from placealg.placement import Mode, nested
from placealg.render.svg import CHARACTER, FAINT, INK, PALETTE, SOFT, Picture, clipped, element, label
from placealg.strategy.spec import Strategy, parts
from placealg.strategy.vocabulary import DATA_DIMS, EACH, NONE

HELD = {"parameters": PALETTE[0], "optimizer": PALETTE[1], "gradients": PALETTE[2]}
"""State that is drawn -> its colour."""

MOST, FEW, WIDEST = 64, 8, 1300
"""Devices that a drawing takes, those that it lays out where a strategy leaves sizes open; the width of a row."""

SIDE, GAP, HEAD, FOOT, MARGIN = 52, 10, 42, 94, 18
"""The side of a state's square, gaps between, the height above and below the devices, the margin, in pixels."""


@dataclass(frozen=True, slots=True)
class MatrixPart:
    """The part of a matrix that a device holds: from and to of its rows and of its columns, as parts of 1."""

    top: float
    bottom: float
    left: float
    right: float


def drawn_sizes(strategy: Strategy, sizes: Mapping[str, int]) -> dict[str, int]:
    """A size for every axis: the one said, else the strategy's own, else powers of two that make eight devices.

    >>> from placealg.strategy.catalogue import hsdp, zero3
    >>> drawn_sizes(zero3(), {}), drawn_sizes(hsdp(), {"dp_shard": 3})
    ({'dp': 8}, {'dp_replicate': 2, 'dp_shard': 3})
    """
    return mesh_sizes(strategy.mesh, strategy.name, sizes)


def mesh_sizes(mesh: Mesh, name: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """The same of a mesh; `name` says whose it is."""
    for axis in sizes:
        if axis not in mesh.names:
            raise InputError(f"{name} has no axis '{axis}'", name=axis, valid=mesh.names)
        if type(sizes[axis]) is not int or sizes[axis] < 1:
            raise InputError(f"{axis} = {sizes[axis]!r}: a size is a whole number of at least 1")
    known = {**mesh.sizes(), **sizes}
    free = [a for a in mesh.names if a not in known]
    room, found = max(FEW // prod(known.values()), 1), {}
    for k, axis in enumerate(free):
        share = room
        while len(free) > k + 1 and share ** (len(free) - k) > room and share > 2:
            share //= 2
        found[axis] = max(share, 2)
        room = max(room // found[axis], 1)
    chosen = {a: known.get(a, found.get(a, 2)) for a in mesh.names}
    if prod(chosen.values()) > MOST:
        raise InputError(f"{prod(chosen.values())} devices are too many to draw: name smaller sizes, {MOST} in all")
    return chosen


Span = tuple[Fraction, Fraction]
"""From and to, as parts of 1."""

MatrixParts = tuple[MatrixPart, ...]
"""Parts of one matrix, one below the other."""


def held(strategy: Strategy, state: str, rank: Mapping[str, int],
         sizes: Mapping[str, int]) -> tuple[MatrixParts, MatrixParts, str]:
    """What a device holds of a matrix of `state` at rest, and while in use; and the tier where it rests.

    Axes that split the model by dims cut columns, the first is major. Axes along which a state is sharded cut rows, as
    `nested` says: whichever state, a row has the same owner along an axis.

    >>> from placealg.strategy.catalogue import zero3
    >>> at_rest, in_use, tier = held(zero3(), "parameters", {"dp": 1}, {"dp": 4})
    >>> at_rest, in_use[0].bottom, tier
    ((MatrixPart(top=0.25, bottom=0.5, left=0.0, right=1.0),), 1.0, 'device')
    """
    placement, columns = strategy.state(state), (Fraction(0), Fraction(1))
    for axis in strategy.mesh.names:
        if _by_dims(strategy, axis):
            columns = _cut(columns, rank[axis], sizes[axis])
    modes = {a: placement.mode(a) for a in strategy.mesh.names if not _by_dims(strategy, a)}
    states = [{a for a in modes if strategy.state(s).sharded(a)} for s in HELD]

    def parts_of(*cutting: Mode) -> MatrixParts:
        cut, rows = [a for a in modes if modes[a] in cutting], [(Fraction(0), Fraction(1))]
        for axis in chain(*nested(modes, cut, states)):
            mine = [rank[axis]] if axis in cut else range(sizes[axis])
            rows = [_cut(span, k, sizes[axis]) for span in rows for k in mine]
        return tuple(MatrixPart(*map(float, (*span, *columns))) for span in _joined(rows))

    at_rest = () if Mode.M in modes.values() else parts_of(Mode.S, Mode.GATHERED)
    return at_rest, parts_of(Mode.S), "host" if placement.offloaded else "device"


def _joined(rows: Iterable[Span]) -> list[Span]:
    """Rows in order, those that follow each other as one."""
    found: list[Span] = []
    for top, bottom in rows:
        if found and found[-1][1] == top:
            top = found.pop()[0]
        found.append((top, bottom))
    return found


def _by_dims(strategy: Strategy, axis: str) -> bool:
    """Whether an axis splits parameters by a dim of their own."""
    dims = [parts(entry)[1] for entry in strategy.dims.get(axis, ())]
    return any(dim not in (*DATA_DIMS, NONE, EACH) for dim in dims)


def _cut(span: Span, rank: int, size: int) -> Span:
    start, end = span
    return start + (end - start) * rank / size, start + (end - start) * (rank + 1) / size


def draw_strategy(strategy: Strategy, **sizes: int) -> Picture:
    """The mesh, a box per device: of each state a square for one matrix, filled where the device holds it at rest.

    What is there only while it is used is hatched; what rests on the host stands in a dashed frame. The last axis runs
    to the right, the axes before it downwards.
    """
    at = drawn_sizes(strategy, sizes)
    names = strategy.mesh.names
    across = at[names[-1]] if names else 1
    box_width, box_height = len(HELD) * (SIDE + GAP) + GAP, SIDE + 36
    per_row = across // 2 if across * box_width > WIDEST and across % 2 == 0 else across
    body = [_patterns(), label(MARGIN, 26, clipped(strategy.name, 600, 15), 15, font_weight="bold")]
    ranks = list(strategy.mesh.ranks(at))
    for k, rank in enumerate(ranks):
        x, y = MARGIN + k % per_row * (box_width + GAP), HEAD + k // per_row * (box_height + GAP)
        body.append(_device(strategy, rank, at, x, y, box_width, box_height))
    bottom = HEAD + len(ranks) // per_row * (box_height + GAP)
    modes = {state: ", ".join(f"{strategy.mode_text(state, a)} along {a}" for a in names) for state in HELD}
    body.append(_legend(MARGIN, bottom + 14, modes))
    longest = max(len(text) for text in modes.values()) * CHARACTER * 11 + 100
    width = 2 * MARGIN + max(per_row * (box_width + GAP) - GAP, longest, 420.0)
    return Picture(width, float(bottom + FOOT), "".join(body), f"{strategy.name} on {len(ranks)} devices")


def _device(strategy: Strategy, rank: Mapping[str, int], sizes: Mapping[str, int], x: float, y: float,
            width: float, height: float) -> str:
    where = ", ".join(f"{axis} {k}" for axis, k in rank.items()) or "the only device"
    drawn = [element("rect", x=x, y=y, width=width, height=height, rx=6, fill="#f4f6f8", stroke=FAINT),
             label(x + GAP, y + 15, where, fill=SOFT)]
    for k, (state, colour) in enumerate(HELD.items()):
        left, top = x + GAP + k * (SIDE + GAP), y + 24
        rest, use, tier = held(strategy, state, rank, sizes)
        drawn.append(element("rect", x=left, y=top, width=SIDE, height=SIDE, fill="#ffffff", stroke=FAINT))
        if tier == "device":
            drawn += [*(_part(p, left, top, _use("while", state)) for p in use),
                      *(_part(p, left, top, colour) for p in rest)]
        else:
            drawn += [_part(p, left, top, _use("host", state)) for p in rest]
        drawn.append(element("rect", x=left, y=top, width=SIDE, height=SIDE, fill="none",
                             stroke=INK if tier == "device" else colour, stroke_width=0.7 if tier == "device" else 1.6,
                             stroke_dasharray="" if tier == "device" else "4 3"))
    return "".join(drawn)


def _part(part: MatrixPart, x: float, y: float, fill: str) -> str:
    width, height = (part.right - part.left) * SIDE, (part.bottom - part.top) * SIDE
    return element("rect", x=x + part.left * SIDE, y=y + part.top * SIDE, width=width, height=height, fill=fill)


def _patterns() -> str:
    """Hatching for what is held while in use, dots for what the host holds."""
    drawn = []
    for state, colour in HELD.items():
        drawn += [element("pattern", element("path", d="M-1 1L1 -1M0 6L6 0M5 7L7 5", stroke=colour, stroke_width=1.3),
                          id=f"while-{state}", width=6, height=6, patternUnits="userSpaceOnUse"),
                  element("pattern", element("circle", cx=2.5, cy=2.5, r=1.3, fill=colour),
                          id=f"host-{state}", width=5, height=5, patternUnits="userSpaceOnUse")]
    return element("defs", *drawn)


def _legend(x: float, y: float, modes: Mapping[str, str]) -> str:
    """The modes of each state in its colour, then what the fillings mean."""
    drawn = []
    for k, (state, colour) in enumerate(HELD.items()):
        drawn += [element("rect", x=x, y=y + 18 * k - 10, width=12, height=12, fill=colour),
                  label(x + 18, y + 18 * k, state), label(x + 92, y + 18 * k, modes[state], fill=SOFT)]
    y += 18 * len(HELD) + 4
    for fill, text, dashes in ((INK, "at rest", ""), (_use("while"), "while in use", ""),
                               (_use("host"), "on the host", "3 2")):
        drawn += [element("rect", x=x, y=y - 10, width=12, height=12, fill=fill, stroke=INK, stroke_width=0.7,
                          stroke_dasharray=dashes), label(x + 18, y, text, fill=SOFT)]
        x += 34 + len(text) * CHARACTER * 11
    return "".join(drawn) + label(x, y, "a square: one matrix", fill=SOFT)


def _use(pattern: str, state: str = "parameters") -> str:
    return f"url(#{pattern}-{state})"
