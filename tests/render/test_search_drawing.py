"""The picture of a front: every dot has a name, and no name stands on a dot or on another name."""

from __future__ import annotations

from random import Random

import pytest

from placealg.render.search_drawing import Box, named


@pytest.mark.parametrize("seed", range(20))
def test_names_stand_apart(seed: int) -> None:
    """A front of thirty dots, most of them near each other, as in memory against time."""
    draw = Random(seed)
    across = sorted(90 + 700 * draw.random() ** 2 for _ in range(30))
    dots = [(x, 440 - 300 * (90 / x) ** draw.uniform(0.9, 1.4), draw.choice([3, 3, 4, 6])) for x in across]
    taken = [Box(x - r, y - r, x + r, y + r) for x, y, r in dots]
    for number, (x, y, r) in enumerate(dots, 1):
        named("30 best" if number == 30 else str(number), (x, y), r, taken, "#000000")
    names = [Box(left + 2, top + 2, right - 2, bottom - 2) for left, top, right, bottom in taken[len(dots):]]
    among = [*taken[:len(dots)], *names]
    assert len(names) == 30
    assert not [(name, other) for name in names for other in among if other is not name and name.shared(other) > 4]
