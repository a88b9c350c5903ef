"""What an optimizer reads of whole matrices, and by what it multiplies its step then: one number for each matrix.

A matrix is all of a parameter, or what one index of the dims has that number a stack of matrices, such as experts. Its
numbers are read as they lie in memory, so that neither owners nor groups enter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

import numpy as np

from placealg.simulator import network
from placealg.simulator.field import Array, Number, residues
from placealg.simulator.space import Space
from placealg.step.program import Group


def factors(space: Space, group: Group, tables: Sequence[Mapping[int, Number]]) -> dict[int, Number]:
    """Entry -> what its step is multiplied by, where all that is read of its elements' matrices is there.

    `tables` are the values that are read whole, each with its numbers by entry.
    """
    entries = range(len(space.parts(group)))
    if space.whole or not tables:
        there = all(entry in table for table in tables for entry in entries)
        return dict.fromkeys(entries, network.whole_matrix([table[k] for k in entries] for table in tables)
                             ) if there else {}
    found: dict[int, Number] = {}
    for name, numbered in zip_longest(group.parameters, group.numbered, fillvalue=()):
        own = [k for k in entries if space.parts(group)[k].parameter == name and all(k in table for table in tables)]
        found |= _of_parameter(space, group, own, tables, space.numbering(str(name), tuple(numbered)))
    return found


def _of_parameter(space: Space, group: Group, own: Sequence[int], tables: Sequence[Mapping[int, Number]],
                  matrices: Array) -> dict[int, Number]:
    """The same of the entries `own` of one parameter, the elements of which are in these `matrices`."""
    parts, there = {k: space.parts(group)[k].numbers for k in own}, np.zeros(matrices.size, bool)
    values = [np.zeros(matrices.size, residues(table[own[0]]).dtype) for table in tables if own]
    for k in own:
        there[parts[k]] = True
        for value, table in zip(values, tables, strict=True):
            value[parts[k]] = space.numbers(table[k])
    whole = {matrix: network.whole_matrix([space.number(value[matrices == matrix])] for value in values)
             for matrix in np.unique(matrices) if there[matrices == matrix].all()}
    return {k: space.number(np.concatenate([residues(whole[m]) for m in matrices[parts[k]]]))
            for k in own if all(m in whole for m in matrices[parts[k]])}
