"""What a search found among axes of any table: how much there was, which rules refuse what, and what has no name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from placealg.configurations.found import Configuration
from placealg.configurations.space import Tables
from placealg.render.text_layout import Line, bold, dim, indent, line, prose, table
from placealg.render.values import number
from placealg.strategy.expression import parse_strategy, words
from placealg.strategy.write import write_strategy

UNNAMED = "nobody has named it"
"""What a strategy is called whose words hold a table."""


def is_unnamed(expression: str) -> bool:
    """Whether a factor of an expression is a table that no entry of the catalogue says.

    >>> is_unnamed("dp{batch,parameters=S*}*tp"), is_unnamed("zero3*tp")
    (True, False)
    """
    return any("{" in word for word in words(expression))


def enumerated(tables: Iterable[Tables], width: int) -> list[Line]:
    """How many lists and tables there are along each axis, and by which rules they are refused."""
    lines: list[Line] = []
    for one in tables:
        refused = sum(one.refused.values())
        lines += prose(f"{one.axis}  {number(one.lists)} lists of dims, {number(one.distinct)} of which split the ops "
                       f"differently; {number(one.tables)} tables of modes over these: {number(refused)} are refused, "
                       f"{number(one.alike)} give the program of another, {number(len(one.words))} are left, "
                       f"{number(one.named)} of them under a name", width, hang=len(one.axis) + 2)
        lines += indent(table([[number(count), dim(rule)] for rule, count in one.refused.items()], "rl", width - 7,
                              wrap={1: 40}), 7)
    return lines


def toml_of(best: Configuration, front: Sequence[Configuration] | None, width: int) -> list[Line]:
    """The TOML of what nobody has named: of the best, and of every strategy of the front."""
    named = dict.fromkeys(one.expression for one in (best, *(front or ())))
    chosen = [expression for expression in named if is_unnamed(expression)]
    if not chosen:
        return [(), *prose("named  the best" + (" and every one of the front" if front else "") + " has a name",
                           width, hang=7)]
    lines: list[Line] = [(), line(bold(UNNAMED), dim(f"  {len(chosen)} of {len(named)} strategies; as files:"))]
    for expression in chosen:
        text = write_strategy(parse_strategy(expression))
        lines += [(), *indent([line(dim(row)) if row else () for row in text.rstrip().splitlines()])]
    return lines
